"""The sharded cache, compared with a plain list through random sequences of methods."""

import random
from typing import Any

import pytest
import torch

import qkv
from qkv.cache.pages import PAGE
from qkv.parallel.transfer import TRAFFIC
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, Plain, page_bytes, same_bits
from tests.helpers.ranks import RankPool

pytestmark = pytest.mark.slow

RANKS = (1, 2, 3, 4)
HEADS, WIDTHS = (6, 2), (5, 7)


def walk(seed: int, steps: int, batch: int, window: int | None) -> list[tuple[str, Any]]:
    """A random sequence of valid calls of methods."""
    draw = random.Random(seed)
    lengths, done = [0] * batch, []
    for step in range(steps):
        kind = draw.choice(["decode"] * 5 + ["append", "ragged", "crop", "reorder", "fork", "reset"][: 6 - (step < 3)])
        n = draw.choice((1, 1, 2, 3, 7, 40))
        if kind in ("decode", "append"):
            lengths = [length + n for length in lengths]
            done.append((kind, {"n": n, "seed": seed * 100 + step}))
        elif kind == "ragged":
            counts = [draw.randint(0, n) for _ in lengths]
            lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
            given = {"lengths": counts, "padding": draw.choice(("left", "right"))}
            done.append(("decode", {"n": n, "seed": seed * 100 + step, **given}))
        elif kind == "crop":
            n = draw.randint(0, max(lengths)) if window is None else 0
            lengths = [min(length, n) for length in lengths]
            done.append((kind, n))
        elif kind == "reorder":
            index = [draw.randrange(len(lengths)) for _ in range(draw.randint(1, 4))]
            lengths = [lengths[row] for row in index]
            done.append((kind, index))
        else:
            lengths = [0] * len(lengths) if kind == "reset" else lengths
            done.append((kind, None))
    return done


def run(cache: Any, done: list[tuple[str, Any]], decode: Any) -> list[Any]:
    found, forked = [], []
    for kind, what in done:
        if kind in ("decode", "append"):
            n, seed, options = what["n"], what["seed"], {k: v for k, v in what.items() if k not in ("n", "seed")}
            new = tokens(n, batch=cache.batch, heads=HEADS, widths=WIDTHS, dtype=torch.float32, seed=seed)
            found.append(cache.append(*new[1:], **options) if kind == "append" else decode(cache, *new, **options))
        elif kind == "fork":
            forked.append(cache)
            cache = cache.fork()
        elif kind == "reset":
            cache.reset()
        else:
            getattr(cache, kind)(what)
        if kind != "decode":
            found.append(None)
    # A fork has not changed the cache it came from.
    for old in forked:
        new = tokens(2, batch=old.batch, heads=HEADS, widths=WIDTHS, dtype=torch.float32, seed=17)
        found.append(decode(old, *new))
    return found


def walking(mesh, walks):
    answers = []
    for done, batch, options in walks:
        cache = qkv.parallel.KVCache(batch, HEADS[1], WIDTHS[0], value_width=WIDTHS[1], mesh=mesh, **options)

        def decode(cache, query, key, value, **options):
            before = TRAFFIC["data messages"], TRAFFIC["agreement messages"]
            out = qkv.parallel.decode(query, key, value, cache, **options)
            sent = mesh.size() - 1
            assert (TRAFFIC["data messages"], TRAFFIC["agreement messages"]) == (before[0] + sent, before[1] + sent)
            return out, cache.lengths.tolist(), cache._local.lengths.tolist()

        sent = TRAFFIC.copy()
        cache.fork().reset()
        assert sent == TRAFFIC
        answers.append(run(cache, done, decode))
    return answers


@pytest.mark.parametrize("ranks", RANKS)
def test_equals_a_plain_list(pool: RankPool, ranks: int) -> None:
    walks = []
    for seed, storage in enumerate(STORAGE * 2):
        window = (None, None, None, 11)[(seed + ranks) % 4]
        walks.append((walk(10 * seed + ranks, 14, 2, window), 2, {"dtype": storage, "window": window}))
    found = pool.run(walking, ranks, walks=walks)
    for (done, batch, options), *each in zip(walks, *found, strict=True):
        plain = Plain(batch, HEADS[1], *WIDTHS, options["dtype"], options["window"])
        wanted = run(plain, done, lambda cache, *new, **given: (cache.decode(*new, **given), cache.lengths))
        for want, *got in zip(wanted, *each, strict=True):
            if not isinstance(want, tuple):
                continue
            expected, lengths = want
            expected.check(got[0][0])
            for out, whole, _ in got:
                same_bits(out, got[0][0], "another rank")
                assert whole == lengths
            # Every token is stored, and the numbers of two ranks differ by at most one.
            stored = torch.tensor([own for *_, own in got])
            assert stored.sum(0).tolist() == lengths
            assert bool((stored.amax(0) - stored.amin(0) <= 1).all())


def filling(mesh, count, options):
    cache = qkv.parallel.KVCache(3, 2, 5, mesh=mesh, value_width=7, **options)
    empty = cache.nbytes
    x = torch.randn(3, 2, 1, 7)
    cache.append(x[..., :5].expand(3, 2, count, 5), x.expand(3, 2, count, 7))
    return empty, cache.nbytes, cache.length, cache.capacity, cache.window, repr(cache)


@pytest.mark.parametrize("ranks", RANKS)
def test_bytes_are_those_of_the_rank(pool: RankPool, ranks: int) -> None:
    page = page_bytes(2, 5, 7, torch.float16)
    count = 6 * PAGE * ranks
    for empty, full, length, *_ in pool.run(filling, ranks, count=count, options={"dtype": torch.float16}):
        assert (empty, full, length) == (0, 3 * 6 * page, count)
    # Capacity is that of a row on all ranks together, and allocated at once.
    options = {"dtype": torch.float16, "capacity": count}
    for empty, full, _, capacity, _, text in pool.run(filling, ranks, count=count, options=options):
        assert (empty, full, capacity) == (3 * 6 * page, 3 * 6 * page, count)
        assert f"{count} tokens over {ranks} ranks" in text
        assert f"capacity={count}" in text
    # With a window each rank stores a part of it, and a page that is partly before it.
    options = {"dtype": torch.float16, "window": 2 * PAGE * ranks}
    for _, full, length, _, window, _ in pool.run(filling, ranks, count=count, options=options):
        assert 3 * 2 * page <= full <= 3 * 3 * page
        assert (length, window) == (count, 2 * PAGE * ranks)


def cropping(mesh, count, window):
    """The smallest length that a cache with a window can be cropped to, after a check of the result."""
    cache = qkv.parallel.KVCache(1, 2, 5, mesh=mesh, window=window)
    key, text = torch.randn(1, 2, count + 1, 5), ""
    cache.append(key[:, :, :-1], key[:, :, :-1])
    for n in range(1, count):
        again = cache.fork()
        try:
            again.crop(n)
        except qkv.errors.OptionError as error:
            text = str(error)
            assert again.length == count
            continue
        new = key[:, :, n : n + 1]
        out = qkv.parallel.decode(new, new, new, again)
        attended = key[:, :, max(0, n + 1 - window) : n + 1]
        torch.testing.assert_close(out, qkv.attention(new, attended, attended), rtol=1e-5, atol=1e-5)
        again.crop(0)
        assert again.length == 0
        return n, text
    raise AssertionError("no length to crop to")


@pytest.mark.parametrize("ranks", [2, 3])
def test_crop_with_a_window(pool: RankPool, ranks: int) -> None:
    count, window = 5 * PAGE * ranks + 61, PAGE + 3
    found = pool.run(cropping, ranks, count=count, window=window)
    assert len(set(found)) == 1
    n, text = found[0]
    assert f"at least {n}, or 0" in text
    assert count - n > PAGE * (ranks - 1)


def refusing(mesh):
    cache = qkv.parallel.KVCache(2, 3, 5, mesh=mesh, capacity=7)
    x = torch.randn(2, 3, 5, 5)
    cache.append(x, x)
    with pytest.raises(qkv.errors.ShapeError, match="the capacity of the cache on all ranks"):
        cache.append(x, x)
    with pytest.raises(qkv.errors.ShapeError, match="one for each row"):
        cache.append(x, x, lengths=[1])
    with pytest.raises(qkv.errors.DtypeError, match="as the cache was given before"):
        cache.append(x.double(), x.double())
    with pytest.raises(qkv.errors.OptionError, match="0 to 5"):
        cache.crop(6)
    with pytest.raises(qkv.errors.OptionError, match="a row of the cache"):
        cache.reorder([2])
    with pytest.raises(qkv.errors.OptionTypeError, match="no pickling"):
        cache.__reduce__()
    wrong: list[dict[str, Any]] = [{"window": 0}, {"capacity": -1}, {"axis": "rows"}, {"mesh": None}]
    for options in wrong:
        with pytest.raises(qkv.errors.OptionError, match=next(iter(options))):
            qkv.parallel.KVCache(2, 3, 5, **({"mesh": mesh} | options))
    assert cache.lengths.tolist() == [5, 5]
    cache.reset()
    cache.append(x.double(), x.double(), lengths=[2, 5], padding="left")
    return cache.lengths.tolist(), cache._local.lengths.tolist()


def test_refusals_do_not_change_the_cache(pool: RankPool) -> None:
    assert pool.run(refusing, 3) == [([2, 5], [1, 2]), ([2, 5], [1, 2]), ([2, 5], [0, 1])]
