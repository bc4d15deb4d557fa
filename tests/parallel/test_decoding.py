"""`parallel.decode` compared with the equation over plain lists; merging by log-sum-exp."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.backends.base import RUNS
from qkv.cache.pages import PAGE
from qkv.parallel import decoding
from qkv.parallel.ring import merge_into
from qkv.parallel.transfer import TRAFFIC
from tests.helpers.decode_cases import (
    BIASES,
    MASKS,
    SIMILARITIES,
    Scene,
    cut,
    make_bias,
    make_mask,
    make_similarity,
    tokens,
)
from tests.helpers.decode_reference import HEADS, QUERIES, STORAGE, Plain, has_scales, same_bits
from tests.helpers.ranks import JobFailed, RankPool

RANKS = (1, 2, 3, 4)
# Sigmoid has neither a log-sum-exp nor a best key by which parts could be merged.
MERGED = tuple(name for name in SIMILARITIES if not name.startswith("sigmoid"))


def given(case: dict[str, Any]) -> tuple[list[Tensor], tuple[Tensor, ...], dict[str, Any], Any]:
    """The cached key and value, the new tokens, the options of decode and the rule of the mask."""
    heads, widths, n, past = case.get("heads", (10, 2)), (11, 13), case.get("n", 1), case.get("past", 67)
    seed, dtype, batch = case.get("seed", 0), case.get("dtype", torch.float32), case.get("batch", 3)
    shape = {"batch": batch, "heads": heads, "widths": widths, "dtype": dtype, "whole": case.get("whole", False)}
    _, key, value = tokens(past, seed=2 * seed, **shape)
    before = case.get("ragged", [past] * batch)
    lengths = case.get("lengths")
    total = max(b + (n if lengths is None else c) for b, c in zip(before, lengths or before, strict=True))
    scene = Scene(batch, heads[0], n, total, seed)
    mask, keep = make_mask(case.get("mask", "none"), scene)
    if mask is not None and case.get("window"):  # masks that reach behind the window are refused
        mask = mask & qkv.Window(left=case["window"] - 1, offset=0)
    similarity = make_similarity(case.get("similarity", "default"), heads[0], dtype)
    options: dict[str, Any] = {"mask": mask, "similarity": similarity}
    if "bias" in case:
        options["bias"] = make_bias(case["bias"], scene, dtype)
    if lengths is not None:
        options |= {"lengths": lengths, "padding": case.get("padding", "right")}
    return [key, value], tokens(n, seed=2 * seed + 1, **shape), options, keep


def job(mesh, cases, small=False):
    with blocks(small):
        return [decoded(mesh, case) for case in cases]


@contextmanager
def blocks(small: bool) -> Iterator[None]:
    """Small pieces of masks and of messages, so that a short call has many."""
    names = [(decoding, "MAX_MASK_CELLS", 1000), (decoding, "_MAX_NUMBERS_SENT", 1000)] if small else []
    before = [getattr(module, name) for module, name, _ in names]
    for module, name, number in names:
        setattr(module, name, number)
    yield
    for (module, name, _), number in zip(names, before, strict=True):
        setattr(module, name, number)


def decoded(mesh, case):
    (key, value), new, options, _ = given(case)
    cache = qkv.parallel.KVCache(
        key.shape[0], key.shape[1], 11, mesh=mesh, value_width=13, dtype=case.get("storage", torch.float32),
        window=case.get("window"),
    )  # fmt: skip
    cache.append(key, value, case.get("ragged"))
    runs = RUNS["parallel.decode"]
    query, key, value = new
    out = qkv.parallel.decode(query, key, value, cache, **options)
    assert RUNS["parallel.decode"] == runs + 1
    return out, cache.lengths.tolist()


def check(pool: RankPool, ranks: int, cases: list[dict[str, Any]], small: bool = False) -> None:
    found = pool.run(job, ranks, cases=cases, small=small)
    for case, *each in zip(cases, *found, strict=True):
        (key, value), new, options, keep = given(case)
        storage = case.get("storage", torch.float32)
        plain = Plain(key.shape[0], key.shape[1], 11, 13, storage, case.get("window"))
        plain.append(key, value, case.get("ragged"))
        del options["mask"]
        expected = plain.decode(*new, keep=keep, **options)
        for out, lengths in each:
            same_bits(out, each[0][0], f"{case}: another rank")
            assert out.dtype is new[0].dtype
            assert lengths == plain.lengths
        try:
            expected.check(each[0][0], exact=case.get("whole", False) and not has_scales(storage))
        except AssertionError as error:
            raise AssertionError(f"{ranks} ranks, {case}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_dtypes_and_heads(pool: RankPool, ranks: int) -> None:
    kinds = itertools.product(STORAGE, QUERIES, HEADS.values(), (1, 5))
    cases = [
        {"storage": storage, "dtype": dtype, "heads": heads, "n": n, "seed": seed}
        for seed, (storage, dtype, heads, n) in enumerate(kinds)
    ]
    check(pool, ranks, cases[ranks - 1 :: 4] + cases[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_masks_in_absolute_positions(pool: RankPool, ranks: int) -> None:
    cases: list[dict[str, Any]] = []
    for at, mask in enumerate(MASKS):
        for turn, similarity in enumerate(("everything", "argmax")):
            storage, dtype = STORAGE[at % len(STORAGE)], QUERIES[(at // 4 + turn) % 4]
            n = (1, 3, 7)[(at + turn + ranks) % 3]
            case = {"storage": storage, "dtype": dtype, "mask": mask, "similarity": similarity}
            cases.append(case | {"n": n, "seed": at, "past": 139})
    check(pool, ranks, cases, small=ranks % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_similarities_windows_and_few_tokens(pool: RankPool, ranks: int) -> None:
    """Whole numbers: Argmax must take the first of equals, which other ranks hold too."""
    pasts = itertools.product(MERGED, ((0, 1), (2, 2), (63, 1), (129, 5)), (None, 1, 50))
    cases = [
        {"storage": STORAGE[at % len(STORAGE)], "similarity": kind, "past": past, "n": n, "window": window, "seed": at}
        for at, (kind, (past, n), window) in enumerate(pasts)
    ]
    check(pool, ranks, [case | {"whole": True} for case in cases[ranks % 2 :: 2]])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_ragged_rows(pool: RankPool, ranks: int) -> None:
    kinds = itertools.product(("left", "right"), (None, 9), ("none", "window", "predicate"), (1, 9), ("sink", "argmax"))
    cases: list[dict[str, Any]] = []
    for seed, (padding, window, mask, n, similarity) in enumerate(kinds):
        case = {"window": window, "mask": mask, "n": n, "similarity": similarity, "seed": seed, "past": 71}
        case |= {"ragged": [71, 0, 70], "dtype": (torch.float32, torch.float64)[seed % 5 == 0]}
        cases += [case, case | {"padding": padding, "lengths": [n // 2, n, 0]}]
    check(pool, ranks, cases[ranks % 5 :: 5], small=ranks % 2 == 1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_bias(pool: RankPool, ranks: int) -> None:
    cases = [
        {
            "bias": bias,
            "dtype": QUERIES[(at + n) % 4],
            "storage": STORAGE[at % len(STORAGE)],
            "n": n,
            "seed": at,
            "past": 139,
        }
        for at, bias in enumerate(BIASES)
        for n in (1, 5)
    ]
    check(pool, ranks, cases, small=ranks < 3)


def in_chunks(mesh, new, sizes, options):
    """All results of decode, and the bytes that a step sent to each other rank."""
    cache = qkv.parallel.KVCache(2, 2, 11, mesh=mesh, value_width=13)
    edges, parts, sent = [0, *itertools.accumulate(sizes)], [], set()
    for a, b in itertools.pairwise(edges):
        before = TRAFFIC["data bytes"]
        query, key, value = cut(new, a, b)
        parts.append(qkv.parallel.decode(query, key, value, cache, **options))
        if mesh.size() > 1:
            sent.add(((TRAFFIC["data bytes"] - before) / (mesh.size() - 1), b - a))
    return torch.cat(parts, dim=2), sent


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_chunks_and_context_do_not_change_results_and_bytes(pool: RankPool, ranks: int) -> None:
    new = tokens(41, batch=2, heads=(6, 2), widths=(11, 13), dtype=torch.float32, seed=ranks)
    for similarity in (None, qkv.Argmax()):
        options: dict[str, Any] = {"similarity": similarity}
        whole = qkv.decode(*new, qkv.KVCache(2, 2, 11, value_width=13), **options)
        for sizes in ([1] * 41, [41], [1, 20, 2, 7, 11]):
            found = pool.run(in_chunks, ranks, new=new, sizes=sizes, options=options)
            for out, sent in found:
                same_bits(out, found[0][0])
                torch.testing.assert_close(out, whole, rtol=1e-5, atol=2e-6)
                # A result and a log-sum-exp of each query (for Argmax in float64, with a position), and a flag.
                row = 8 * (13 + 2) if similarity else 4 * (13 + 1)
                for count, n in sent:
                    assert count - 2 * 6 * n * row == ranks * (8 if similarity else 4)


def equal_keys(mesh, key, value, query):
    cache = qkv.parallel.KVCache(2, 3, 19, mesh=mesh)
    cache.append(key, value)
    with blocks(small=True):
        return qkv.parallel.decode(query, query[:, :3], query[:, :3], cache, similarity=qkv.Argmax())


@pytest.mark.parametrize("ranks", RANKS)
def test_of_equal_keys_the_first_is_best(pool: RankPool, ranks: int) -> None:
    """On any rank, and despite rounding."""
    draw = torch.Generator().manual_seed(ranks)
    order = torch.randint(0, 3, (131,), generator=draw)
    key = torch.randn(2, 3, 3, 19, generator=draw)[:, :, order]
    value = torch.randn(2, 3, 131, 19, generator=draw)
    query = torch.randn(2, 6, 7, 19, generator=draw) / 100
    plain = qkv.KVCache(2, 3, 19)
    plain.append(key, value)
    wanted = qkv.decode(query, query[:, :3], query[:, :3], plain, similarity=qkv.Argmax())
    for out in pool.run(equal_keys, ranks, key=key, value=value, query=query):
        same_bits(out, wanted)


def poisoned(mesh):
    """Masked NaN cannot matter, and attended NaN is not lost in the merge."""
    cache = qkv.parallel.KVCache(2, 1, 3, mesh=mesh)
    x = torch.randn(2, 1, 9, 3)
    bad = x.clone()
    bad[0, :, 4] = torch.nan
    cache.append(bad, bad)
    new = torch.randn(2, 1, 2, 3)
    hide = qkv.Padding(keep=torch.arange(11).expand(2, 11) != 4)
    clean = cache.fork()
    clean.reset()
    clean.append(x, x)
    lengths = [1, 2]
    worse = new.clone()
    worse[0, :, 1] = torch.nan  # padding
    attended = qkv.parallel.decode(new, new, new, cache.fork())
    masked = qkv.parallel.decode(worse, worse, worse, cache, mask=hide, lengths=lengths)
    wanted = qkv.parallel.decode(new, new, new, clean.fork(), mask=hide, lengths=lengths)
    # An infinite value whose weight underflows.
    far = clean.fork()
    far.append(torch.full((2, 1, 1, 3), -1e4), torch.full((2, 1, 1, 3), torch.inf))
    ones = torch.ones(2, 1, 1, 3)
    return attended, masked, wanted, qkv.parallel.decode(ones, ones, ones, far)


@pytest.mark.parametrize("ranks", RANKS)
def test_nonfinite_numbers(pool: RankPool, ranks: int) -> None:
    for attended, masked, wanted, far in pool.run(poisoned, ranks):
        assert bool(attended[0].isnan().all())
        assert bool(attended[1].isfinite().all())
        same_bits(masked, wanted)
        assert not masked[0, :, 1].any()
        assert not far.isfinite().any()


def disagreeing(mesh, what):
    """Rank 1 does something else; afterwards the cache is unchanged, and the next call works."""
    rank = mesh.get_local_rank()
    differs = rank == 1
    # The pages of every rank are full: new tokens take new pages, which must be released.
    past = PAGE * mesh.size()
    cache: Any = qkv.parallel.KVCache(2, 1, 3, mesh=mesh, capacity=None if what != "capacity" or not differs else past)
    x = torch.randn(2, 2, past, 3)
    cache.append(x[:, :1], x[:, :1])
    before = cache.nbytes, cache._local.lengths.tolist()
    n = 3 if what == "n" and differs else 2
    new = x[:, :, :n].clone()
    options: dict[str, Any] = {}
    if differs:
        if what == "mask":
            options["mask"] = qkv.Window(left=4)
        elif what == "similarity":
            options["similarity"] = qkv.Softmax(sink=torch.tensor([1.0, 2.0]))
        elif what == "lengths":
            options["lengths"] = [1, 2]
        elif what == "grad":
            new.requires_grad_()
        elif what == "tokens":
            new = -new
        elif what == "write":
            cache._local.write = lambda *_: (_ for _ in ()).throw(MemoryError("no memory left"))
        elif what == "length":
            cache.append(x[:, :1, :1], x[:, :1, :1])
            before = cache.nbytes, cache._local.lengths.tolist()
    error = None
    try:
        qkv.parallel.decode(new, new[:, :1], new[:, :1], cache, check=what == "tokens", **options)
    except (qkv.errors.QkvError, MemoryError) as raised:
        error = type(raised).__name__, str(raised)
    assert (cache.nbytes, cache._local.lengths.tolist()) == before
    if differs and what == "write":
        del cache._local.write
    if differs and what == "length":
        cache.crop(past)
    if what == "capacity":
        return error
    good = x[:, :, :2]
    out = qkv.parallel.decode(good, good[:, :1], good[:, :1], cache)
    plain = qkv.KVCache(2, 1, 3)
    plain.append(x[:, :1], x[:, :1])
    torch.testing.assert_close(out, qkv.decode(good, good[:, :1], good[:, :1], plain), rtol=1e-5, atol=1e-6)
    return error


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("n", "query: (2, 2, 2, 3) float32 on ranks 0, 2, (2, 2, 3, 3) float32 on rank 1"),
        ("mask", "mask: None on ranks 0, 2, Window("),
        ("similarity", "similarity: Softmax("),
        ("lengths", "lengths: None on ranks 0, 2, [1, 2] on rank 1"),
        ("length", "lengths of the cache: [192, 192] on ranks 0, 2, [193, 193] on rank 1"),
        ("tokens", "query: other numbers on rank 1 than on rank 0"),
    ],
)
def test_ranks_that_differ_all_raise(pool: RankPool, what: str, message: str) -> None:
    for error in pool.run(disagreeing, 3, what=what):
        assert error is not None
        assert error[0] == "Disagreement"
        assert message in error[1]


def other_tokens(mesh, whats):
    """The difference that check=True reports when rank 1 has other tokens; None if there is none."""
    found = []
    for what, dtype in [(what, dtype) for dtype in (torch.float32, torch.bfloat16) for what in whats]:
        query, key, value = tokens(5, batch=2, heads=(6, 3), widths=(11, 13), dtype=dtype, seed=1)
        cache = qkv.parallel.KVCache(2, 3, 11, mesh=mesh, value_width=13)
        counts = [5, 4]
        if "poison" in what:
            key[1, :, 2], query[0, 0, 0, 0] = torch.nan, torch.inf
        if mesh.get_local_rank() == 1:
            query = {"heads": query.roll(1, 1), "poison away": query.nan_to_num(posinf=0.0)}.get(what, query)
            value = {"offset": value + 1, "rows": value.roll(1, 0)}.get(what, value)
            if what == "older key":
                key[0, :, 1] = key[0, :, 2]
            elif what == "rounding":
                key *= 1 + 2 * torch.finfo(dtype).eps
        try:
            qkv.parallel.decode(query, key, value, cache, lengths=counts, check=True)
            found.append(None)
        except qkv.errors.Disagreement as error:
            assert cache.length == 0
            found.append(str(error))
    return found


def test_other_tokens_are_named(pool: RankPool) -> None:
    message = {
        "heads": "query: other numbers on rank 1 than on rank 0", "offset": "value: other numbers on rank 1",
        "rows": "value: other numbers on rank 1", "older key": "key: other numbers on rank 1",
        "poison away": "query, non-finite numbers: 1 on ranks 0, 2, 0 on rank 1", "poison": None, "rounding": None,
    }  # fmt: skip
    for found in pool.run(other_tokens, 3, whats=list(message)):
        for text, wanted in zip(found, [*message.values()] * 2, strict=True):
            assert (text is None) == (wanted is None)
            assert wanted is None or wanted in text


@pytest.mark.parametrize(
    ("what", "own", "message"),
    [
        ("grad", ("BackendRefused", "requires grad"), "rank 1 refused the call: BackendRefused: query"),
        ("capacity", ("ShapeError", "capacity"), "rank 1 refused the call: ShapeError: key"),
        ("write", ("MemoryError", "no memory left"), "rank 1 failed"),
    ],
)
def test_a_failure_of_one_rank_reaches_the_others(
    pool: RankPool, what: str, own: tuple[str, str], message: str
) -> None:
    first, second, third = pool.run(disagreeing, 3, what=what)
    assert second[0] == own[0]
    assert own[1] in second[1]
    for error in (first, third):
        assert error[0] == "Disagreement"
        assert message in error[1]


def weights(query, key):
    return torch.exp(-torch.cdist(query, key))


def refused(mesh, cache):
    x = torch.randn(2, 2, 1, 3)
    other: Any = (
        qkv.LinearState(qkv.FeatureMap(qkv.features.elu1), 2, 2, 3) if cache == "state" else qkv.KVCache(2, 2, 3)
    )
    own: Any = qkv.parallel.KVCache(2, 2, 3, mesh=mesh)
    if cache in ("decode", "explain"):
        return getattr(qkv, cache)(x, x, x, cache=own)
    options: dict[str, Any] = {
        "polynomial": {"similarity": qkv.Polynomial()},
        "sigmoid": {"similarity": qkv.Sigmoid(bias=-1.5)},
        "function": {"similarity": qkv.Similarity(weights)},
        "gates": {"similarity": qkv.Softmax(log_decay=torch.zeros(2, 2, 1)), "mask": qkv.Causal()},
        "rule": {"bias": lambda scores, b, h, i, j: scores},
    }
    if cache in options:
        return qkv.parallel.decode(x, x, x, own, **options[cache])
    return qkv.parallel.decode(x, x, x, other)


@pytest.mark.parametrize(
    ("cache", "kind", "message"),
    [
        ("state", "BackendRefused", "every rank can store the whole"),
        ("local", "OptionTypeError", "a qkv.parallel.KVCache"),
        ("decode", "OptionTypeError", "got a qkv.parallel.KVCache, wanted a qkv.KVCache"),
        ("explain", "OptionTypeError", "Hint: call qkv.parallel.decode"),
        ("polynomial", "BackendRefused", "serves Softmax, Sigmoid, Argmax and Similarity"),
        ("sigmoid", "BackendRefused", "wanted Softmax or Argmax. Hint: parts of ranks are merged by"),
        (
            "function",
            "BackendRefused",
            "wanted Softmax or Argmax. Hint: parts of ranks are merged by their log-sum-exp",
        ),
        ("gates", "BackendRefused", "wanted no log_decay in qkv.parallel. Hint: a rank does not have the gates"),
        ("rule", "BackendRefused", "wanted a tensor in qkv.parallel. Hint: a function of scores is given the whole"),
    ],
)
def test_refusals(pool: RankPool, cache: str, kind: str, message: str) -> None:
    for failed in pool.run_or_errors(refused, 2, cache=cache):
        assert isinstance(failed, JobFailed)
        assert failed.kinds[0] == kind
        assert message in failed.message


NEVER = float("-inf")


def merged(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    out, lse = (tensor.clone() for tensor in parts[0])
    for part in parts[1:]:
        merge_into(out, lse, *part)
    return out, lse


@pytest.mark.parametrize("sizes", [[17], [1, 16], [5, 0, 7, 5], [0, 0, 17]], ids=str)
@pytest.mark.parametrize("sink", [None, 0.7, 90.0])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_merged_parts_equal_the_whole(sizes: list[int], sink: float | None, scale: float) -> None:
    """A sink is a part whose value is 0."""
    draw = torch.Generator().manual_seed(len(sizes))
    query, key, value = (torch.randn(2, 3, n, 5, generator=draw, dtype=torch.float64) for n in (7, 17, 17))
    pairs = zip(key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
    parts: list[Any] = [qkv.attention(query * scale, k, v, return_lse=True) for k, v in pairs]
    if sink is not None:
        parts.append((torch.zeros_like(query), torch.full(query.shape[:3], sink, dtype=torch.float64)))
    wanted = qkv.attention(query * scale, key, value, similarity=qkv.Softmax(sink=sink), return_lse=True)
    for got, want in zip(merged(parts), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_merging_empty_parts() -> None:
    nothing = torch.zeros(2, 3), torch.full((2,), NEVER)
    something = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), torch.tensor([0.5, NEVER])
    out, lse = merged([nothing, nothing])
    assert not out.any()
    assert bool((lse == NEVER).all())
    out, lse = merged([nothing, something, nothing])
    assert out.tolist() == [[1.0, 2.0, 3.0], [0.0] * 3]
    assert lse.tolist() == [0.5, NEVER]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_merging_nonfinite_numbers(bad: float, place: int) -> None:
    """In a result, in a log-sum-exp, and with a weight that underflows."""
    good = torch.ones(1, 2), torch.zeros(1)
    for part in ((torch.full((1, 2), bad), torch.tensor([-1e4])), (torch.ones(1, 2), torch.tensor([bad]))):
        parts = [part, good] if place == 0 else [good, part]
        assert not merged(parts)[0].isfinite().any()
