"""Policies of eviction, sinks, renumbered positions, and what an evicted cache can do: forks, crops, files, errors."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import qkv
from qkv import errors
from qkv.cache import FirstLast, HeavyHitters, Select, SnapKV
from qkv.cache.eviction import named_policy
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, Plain, holds, name_of, page_bytes, untouched

SHAPE = {"batch": 2, "heads": (6, 2), "widths": (7, 5), "dtype": torch.float32}
POSITIONS = torch.arange(100).expand(2, 100)


def both(**options):
    cache = qkv.KVCache(2, 2, 7, value_width=5, **options)
    return cache, Plain.like(cache)


def step(cache, plain, n=1, seed=0, **options):
    given = tokens(n, seed=seed, **SHAPE)
    expected = plain.decode(*given, **options)
    expected.check(qkv.decode(*given, cache, **options))


def test_what_policies_choose():
    importance = torch.rand(2, 100, generator=torch.Generator().manual_seed(1))
    heavy = HeavyHitters(7, 11).select(importance, POSITIONS, 100)
    assert heavy.sum(1).tolist() == [18, 18]
    assert heavy[:, 89:].all()
    for head in range(2):
        ranked = importance[head, :89].argsort(descending=True)[:7]
        assert heavy[head, ranked].all()
    kept = SnapKV(20, observe=6, pool=3).select(importance, POSITIONS, 100)
    assert kept.sum(1).tolist() == [20, 20]
    assert kept[:, 94:].all()
    pooled = torch.nn.functional.max_pool1d(importance[:, None, :94], 3, stride=1, padding=1)[:, 0]
    for head in range(2):
        assert pooled[head][kept[head, :94]].min() >= pooled[head][~kept[head, :94]].max()
    assert SnapKV(20, observe=30).select(importance, POSITIONS, 100)[:, 80:].all()
    assert FirstLast(3, 5).select(None, POSITIONS, 100).nonzero().flatten().tolist() == [0, 1, 2, 95, 96, 97, 98, 99]
    for name in ("streaming", "h2o", "snapkv"):
        assert named_policy(name, 17).keep == 17


@pytest.mark.parametrize("storage", STORAGE, ids=name_of)
def test_heavy_hitters_step_by_step(storage):
    """Against a plain list that ranks by the importance of the cache, which is checked against the list's."""
    policy = HeavyHitters(20, 10, every=5)
    cache, plain = both(dtype=storage, importance=True)
    for seed, n in enumerate([50, *[1] * 40]):
        step(cache, plain, n, seed)
        torch.testing.assert_close(cache.importance().double(), plain.importance(), rtol=1e-4, atol=1e-4)
        if cache.stored.min() >= policy.keep + policy.every:
            sums = iter(cache.importance())
            plain.evict(Select(lambda importance, at, length, sums=sums: policy.select(next(sums), at, length), 0))
            cache.evict(policy)
        assert torch.equal(cache.positions(), plain.positions())
    assert cache.lengths.tolist() == [90, 90]
    assert len(set(map(tuple, cache.positions()[0].tolist()))) == 2, "heads keep different tokens"
    holds(cache, plain)


@pytest.mark.slow
def test_a_cache_evicts_by_itself_and_memory_goes_down():
    cache, plain = both(eviction=FirstLast(4, 60))
    assert cache.eviction == FirstLast(4, 60)
    one = page_bytes(2, 7, 5, torch.float32)
    for seed, n in enumerate([1000, *[1] * 70, 130]):
        step(cache, plain, n, seed)
        assert cache.stored.max() < 128
        assert cache.nbytes <= 2 * 2 * one
    holds(cache, plain)
    assert torch.equal(cache.positions(), plain.positions())


@pytest.mark.parametrize(("window", "sinks"), [(1, 1), (5, 3), (64, 4), (70, 64), (100, 65), (300, 5)])
def test_sinks_and_window_are_a_mask_over_everything(window, sinks):
    """In chunks and steps, ragged, with a mask and a bias; the pages between are released."""
    cache, plain = both(window=window, sinks=sinks)
    for seed, n in enumerate([260, *[1] * 70, 3, 190, 1]):
        step(cache, plain, n, seed, lengths=[n, max(n - 1, 0)])
    step(cache, plain, 2, 99, similarity=qkv.Argmax())
    most = -(-window // 64) + -(-sinks // 64) + 1
    assert cache.nbytes <= 2 * most * page_bytes(2, 7, 5, torch.float32)
    mask = qkv.Predicate(lambda b, h, i, j: (i + j + h) % 3 > 0)
    given = tokens(2, seed=5, **SHAPE)
    added = torch.linspace(-2, 2, cache.length + 2)
    expected = plain.decode(*given, keep=lambda b, h, i, p, j: (p + j + h) % 3 > 0, bias=added)
    expected.check(qkv.decode(*given, cache, mask=mask, bias=added))


@pytest.mark.parametrize("interleaved", [False, True])
def test_renumbered_rotary_keys_score_as_if_they_had_been_there(interleaved):
    """A key that moves by s positions is turned by s · frequency: the output is of keys at new places."""
    frequencies = 10000.0 ** -torch.arange(0, 1, 0.25, dtype=torch.float64)

    def turn(x, by):
        angle = by.unsqueeze(-1) * frequencies
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        pairs = a * cos - b * sin, b * cos + a * sin
        return torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)

    query, key, value = tokens(200, batch=1, heads=(4, 2), widths=(8, 8), dtype=torch.float32, seed=3)
    at = torch.arange(200)
    cache = qkv.KVCache(1, 2, 8)
    cache.append(turn(key, at)[:, :, :199], value[:, :, :199])
    cache.evict(FirstLast(5, 30, positions="renumbered", rotate=turn))
    assert torch.equal(cache.positions()[0, 0], torch.arange(164, 199))
    new = (turn(query, at)[:, :, 199:], turn(key, at)[:, :, 199:], value[:, :, 199:])
    out = qkv.decode(*new, cache)
    kept = torch.cat([at[:5], at[169:]])
    places = torch.arange(164, 200)
    wanted = qkv.attention(turn(query, at)[:, :, 199:], turn(key[:, :, kept], places), value[:, :, kept])
    torch.testing.assert_close(out, wanted, rtol=2e-5, atol=2e-5)
    cache.evict(FirstLast(5, 7, positions="renumbered", rotate=turn))  # the first tokens, not their first positions
    torch.testing.assert_close(cache.tensors()[1][:, :, :5], value[:, :, :5])
    torch.testing.assert_close(
        cache.tensors()[0][:, :, :5], turn(key[:, :, :5], torch.arange(188, 193)), atol=1e-5, rtol=0
    )


def test_forks_rows_that_forget_everything_and_crops():
    cache, plain = both()
    step(cache, plain, 150)
    fork, other = cache.fork(), plain.fork()
    policy = Select(lambda importance, at, length: (at % 7 == 0) & (at < length - 7))
    fork.evict(policy.function)
    other.evict(policy)
    holds(cache, plain)
    holds(fork, other)
    given = tokens(1, seed=4, **SHAPE)
    choice = qkv.explain(*given, cache=fork, bias=torch.zeros(151), mask=qkv.Window(left=99))
    assert choice.backend in ("native", "reference")
    for at, (one, two) in enumerate(((cache, plain), (fork, other), (cache, plain), (fork, other))):
        step(one, two, 1, at)
    with untouched(fork), pytest.raises(errors.OptionError, match="at least 150, or 0"):
        fork.crop(149)
    fork.crop(150)
    other.crop(150)
    step(fork, other, 70, 8)
    fork.evict(lambda importance, at, length: at < 0)
    other.evict(Select(lambda importance, at, length: at < 0))
    assert fork.stored.tolist() == [0, 0]
    assert (fork.nbytes, fork.length) == (0, 220)
    fork.append(*tokens(2, seed=1, **SHAPE)[1:])
    fork.crop(220)
    assert (fork.stored.tolist(), fork.length) == ([0, 0], 220)
    step(fork, other, 3, 9)
    assert fork.positions()[0, 0].tolist() == [220, 221, 222]
    fork.crop(0)
    other.crop(0)
    step(fork, other, 3, 10)
    assert fork.positions()[0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("options", [{"importance": True}, {"window": 40, "sinks": 3}], ids=str)
def test_files_keep_positions_and_importance(options, tmp_path):
    cache, plain = both(**options)
    step(cache, plain, 300)
    if "window" not in options:
        policy = Select(lambda importance, at, length: at % 5 != 2)
        cache.evict(policy)
        plain.evict(policy)
    step(cache, plain, 2, 1)
    cache.save(tmp_path / "cache")
    loaded = qkv.KVCache.load(tmp_path / "cache")
    assert repr(loaded) == repr(cache)
    assert torch.equal(loaded.positions(), cache.positions())
    if "window" not in options:
        assert torch.equal(loaded.importance(), cache.importance())
        assert qkv.KVCache.load(tmp_path / "cache", eviction=HeavyHitters(9, 9)).eviction == HeavyHitters(9, 9)
    step(loaded, plain, 80, 2)
    holds(loaded, plain)
    with untouched(loaded), pytest.raises(errors.OptionError, match="at least"):
        loaded.crop(250)
    data = load_file(tmp_path / "cache")
    with safe_open(tmp_path / "cache", "pt") as file:
        about = file.metadata()
    for name in ("gone", "counts", "since", "at"):
        damaged = data | {name: data[name] - 10**6}
        save_file(damaged, tmp_path / "bad", about)
        with pytest.raises(errors.OptionError, match="invalid positions"):
            qkv.KVCache.load(tmp_path / "bad")


def test_snapkv_counts_the_last_queries_of_the_prompt():
    cache = qkv.KVCache(2, 2, 7, value_width=5, eviction=SnapKV(40, observe=8))
    counted = qkv.KVCache(2, 2, 7, value_width=5, importance=True)
    prompt = tokens(200, seed=1, **SHAPE)
    qkv.decode(*prompt, cache)
    parts = [[tensor[:, :, part] for tensor in prompt] for part in (slice(0, 192), slice(192, 200))]
    counted.append(*parts[0][1:])
    qkv.decode(*parts[1], counted)
    torch.testing.assert_close(cache.importance(), counted.importance(), rtol=1e-4, atol=1e-6)
    cache.evict()
    assert cache.stored.tolist() == [40, 40]
    before = cache.importance()
    for seed in range(3):
        qkv.decode(*tokens(1, seed=seed, **SHAPE), cache)
    assert torch.equal(cache.importance()[:, :, :40], before)
    assert cache.stored.tolist() == [43, 43]


def test_what_cannot_be_is_refused():
    cache = qkv.KVCache(2, 2, 7, value_width=5)
    x = tokens(90, seed=1, **SHAPE)
    cache.append(*x[1:])
    refused = [
        (lambda: qkv.KVCache(1, 1, 4, sinks=4), "without a window"),
        (lambda: qkv.KVCache(1, 1, 4, window=9, eviction=FirstLast(1, 2)), "one of the two"),
        (lambda: qkv.KVCache(1, 1, 4, window=9, importance=True), "one of the two"),
        (lambda: qkv.KVCache(1, 1, 4, eviction="h2o"), "a policy of qkv.cache"),  # pyright: ignore
        (lambda: cache.evict(), r"KVCache\(eviction=...\)"),
        (lambda: cache.evict(HeavyHitters(1, 2)), "importance=True"),
        (lambda: FirstLast(-1, 2), "first"),
        (lambda: FirstLast(1, 2, positions="moved"), "'absolute' or 'renumbered'"),
        (lambda: FirstLast(1, 2, rotate=lambda key, by: key), "None where positions stay absolute"),
        (lambda: cache.evict(lambda importance, at, length: at), "booleans"),
        (lambda: cache.evict(lambda importance, at, length: at[:, 1:] > 3), r"\(90,\), or \(2, 90\)"),
        (lambda: cache.evict(lambda i, at, length: at < torch.tensor([[3], [4]])), "as many for each head"),
        (lambda: qkv.KVCache(1, 1, 4, window=9).evict(FirstLast(1, 2)), "one of the two"),
    ]
    for call, match in refused:
        with untouched(cache), pytest.raises(errors.QkvError, match=match):
            call()


def test_a_policy_that_raises_leaves_the_cache_as_it_was():
    def fails(importance, at, length):
        if length > 100:
            raise RuntimeError("no choice")
        return at % 2 == 0

    cache = qkv.KVCache(2, 2, 7, value_width=5, importance=True, eviction=Select(fails, most=80, every=16))
    qkv.decode(*tokens(98, seed=1, **SHAPE), cache)
    assert cache.stored.tolist() == [49, 49]
    before = cache.importance()
    with untouched(cache), pytest.raises(RuntimeError, match="no choice"):
        qkv.decode(*tokens(60, seed=2, **SHAPE), cache)
    assert torch.equal(cache.importance(), before)
    qkv.decode(*tokens(1, seed=3, **SHAPE), cache)
    assert cache.lengths.tolist() == [99, 99]


def test_a_compiled_step_refuses_what_its_handle_cannot_say():
    for options in ({"importance": True}, {"window": 9, "sinks": 2}):
        cache = qkv.KVCache(2, 2, 7, value_width=5, **options)
        given = tokens(1, seed=1, **SHAPE)
        with pytest.raises(errors.BackendRefused, match="without sinks, importance and eviction"):
            qkv.ops.library.decode(*given, cache.handle)


def test_a_mask_over_a_cache_that_forgot_everything():
    cache = qkv.KVCache(1, 1, 4)
    cache.append(torch.ones(1, 1, 5, 4), torch.ones(1, 1, 5, 4))
    cache.evict(qkv.cache.Select(lambda importance, at, length: at < 0, 0))
    out = qkv.attend(torch.ones(1, 1, 3, 4), cache, mask=qkv.Causal(offset=0))
    assert torch.equal(out, torch.zeros(1, 1, 3, 4))


@pytest.mark.parametrize("change", [lambda cache, x: cache.append(x, x), lambda cache, x: cache.reset()])
def test_a_policy_that_changes_the_cache_is_refused(change):
    x = torch.ones(1, 1, 100, 4)
    cache = qkv.KVCache(1, 1, 4)
    cache.append(x, x)

    def chooses(importance, at, length):
        change(cache, x)
        return at[0] % 2 == 0

    with pytest.raises(errors.OptionError, match="changed the cache"):
        cache.evict(chooses)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda: HeavyHitters(1.5, 2), "heavy"),
        (lambda: SnapKV(None), "most"),
        (lambda: FirstLast(1, 2, positions="renumbered", rotate=3), "rotate"),
        (lambda: FirstLast(1, 2, every=1.5), "every"),
        (lambda: Select(3), "function"),
        (lambda: qkv.KVCache(1, 1, 8, window=10**30), "window"),
        (lambda: qkv.KVCache(1, 1, 8, window=5, sinks=10**30), "sinks"),
    ],
)
def test_options_that_no_cache_can_have(wrong, name):
    with pytest.raises(errors.QkvError, match=f"^{name}: got"):
        wrong()
