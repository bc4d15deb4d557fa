"""The formulas equal what the kernels count as they run, on random calls and every instruction set."""

import random
from itertools import combinations_with_replacement

import pytest
import torch

import qkv
from qkv import ops
from qkv.backends import linear
from qkv.backends.base import RUNS
from qkv.cost import native_flops
from qkv.cost.native_flops import Executed, FloorSeries, NativeMap
from qkv.cost.sizes import Sizes
from qkv.masks import Band, Mask
from qkv.ops.kernels import POWER, FeatureRule, linear_state_size
from qkv.ops.kernels import linear_attention as native_linear
from qkv.ops.loader import load

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
STORAGE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}
MAPS = ("identity", "elu1", "relu", "squared", "power")


@pytest.fixture(params=ops.isas())
def isa(request):
    """The kernels of one instruction set, for one test."""
    native_library = load().native
    assert native_library is not None
    native_library.use(request.param)
    yield request.param
    native_library.use(ops.isa())


def draw_sizes(source: random.Random, lengths: tuple[int, ...], longest: tuple[int, ...]) -> Sizes:
    """Different sizes, most of them prime."""
    heads_kv, group = source.choice((1, 2, 3)), source.choice((1, 1, 2, 5, 7, 49))
    len_q = source.choice(lengths)
    if len_q * group > 4000:
        group = 1
    len_k = source.choice([n for n in longest if n != len_q])
    width, width_v = source.sample((1, 3, 11, 16, 17, 19, 31, 37), 2)
    return Sizes(source.choice((1, 2, 3)), heads_kv * group, heads_kv, len_q, len_k, width, width_v)


def tensors(sizes: Sizes, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query = torch.randn(sizes.batch, sizes.heads, sizes.len_q, sizes.width, dtype=dtype)
    key = torch.randn(sizes.batch, sizes.heads_kv, sizes.len_k, sizes.width, dtype=dtype)
    value = torch.randn(sizes.batch, sizes.heads_kv, sizes.len_k, sizes.width_v, dtype=dtype)
    return query, key, value


def draw_mask(source: random.Random, sizes: Sizes) -> tuple[Mask | None, Band | None]:
    """A mask and its band, by hand: offsets beyond both ends, windows, padding on both sides."""
    mask, band = None, Band()

    def join(part: Mask, own: Band) -> None:
        nonlocal mask, band
        mask, band = part if mask is None else mask & part, band.intersect(own)

    offset = source.choice((0, sizes.len_k - sizes.len_q, source.randint(-sizes.len_q - 9, sizes.len_k + 9)))
    if source.random() < 0.6:
        join(qkv.Causal(offset=offset), Band(upper=offset + 1))
    if source.random() < 0.4:
        left, right = source.choice((0, 5, 71, 301)), source.choice((0, 3, 67))
        join(qkv.Window(left, right, offset=offset), Band(offset - left, offset + right + 1))
    if source.random() < 0.4:
        lengths = [source.randint(0, sizes.len_k) for _ in range(sizes.batch)]
        if source.random() < 0.5:
            join(qkv.Padding(lengths=lengths), Band(stops=tuple(lengths)))
        else:
            keep = torch.arange(sizes.len_k) >= sizes.len_k - torch.tensor(lengths)[:, None]
            starts = tuple(sizes.len_k - n for n in lengths)
            join(qkv.Padding(keep=keep), Band(starts=starts))
    return mask, band


def counted_call(function) -> Executed:
    with ops.count_executed() as work:
        function()
    return work


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_attention(isa: str, seed: int) -> None:
    source = random.Random(f"plain {seed}")
    geometry = ops.geometry()
    for _ in range(20):
        sizes = draw_sizes(source, (1, 2, 13, 53, 211), (1, 5, 61, 67, 127, 257, 769))
        mask, band = draw_mask(source, sizes)
        softcap = source.choice((None, 3.0))
        query, key, value = tensors(sizes, source.choice(DTYPES))
        work = counted_call(
            lambda q=query, k=key, v=value, m=mask, s=softcap: qkv.attention(
                q, k, v, mask=m, similarity=qkv.Softmax(softcap=s), backend="native"
            )
        )
        assert work == native_flops.attention(geometry, sizes, band, softcap=softcap is not None), (sizes, band)


def test_a_mask_that_is_no_band_is_computed_as_a_whole(isa: str) -> None:
    sizes = Sizes(2, 6, 3, 29, 131, 11, 17)
    query, key, value = tensors(sizes, torch.float32)
    masks = (qkv.Dense(torch.rand(29, 131) > 0.5), qkv.Predicate(lambda b, h, i, j: (i + j) % 3 == 0))
    for mask in masks:
        work = counted_call(lambda m=mask: qkv.attention(query, key, value, mask=m, backend="native"))
        assert work == native_flops.attention(ops.geometry(), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_cached_attention(isa: str, seed: int) -> None:
    source = random.Random(f"cache {seed}")
    geometry = ops.geometry()
    for _ in range(8):
        sizes = draw_sizes(source, (1,), (7,))
        name, window = source.choice(list(STORAGE)), source.choice((None, None, 3, 71, 300))
        cache = qkv.KVCache(
            sizes.batch, sizes.heads_kv, sizes.width, value_width=sizes.width_v, dtype=STORAGE[name], window=window
        )
        dtype, is_argmax, softcap = source.choice(DTYPES), source.random() < 0.3, source.choice((None, 2.0))
        similarity = qkv.Argmax() if is_argmax else qkv.Softmax(softcap=softcap)
        for n in source.sample((1, 1, 1, 2, 61, 5, 263), 4):
            past = cache.lengths.tolist()
            mine = sizes._replace(len_q=n, len_k=max(past) + n)
            lengths, left, mask, band = None, False, None, None
            if source.random() < 0.4:
                lengths, left = [source.randint(0, n) for _ in range(sizes.batch)], source.random() < 0.5
            if source.random() < 0.4:
                near, first = source.choice((0, 7, 130)), source.choice((0, 66))
                mask, band = qkv.Window(left=near, offset=0), Band(lower=-near)
                if lengths is None and len(set(past)) == 1:
                    keep = (torch.arange(mine.len_k) >= first).expand(sizes.batch, -1)
                    mask, band = mask & qkv.Padding(keep=keep), band.intersect(Band(starts=(first,) * sizes.batch))
            query, _, _ = tensors(mine, dtype)
            _, key, value = tensors(mine._replace(len_k=n), dtype)
            work = counted_call(
                lambda q=query, k=key, v=value, m=mask, at=lengths, end=left, of=cache, s=similarity: qkv.decode(
                    q, k, v, of, similarity=s, mask=m, lengths=at, padding="left" if end else "right"
                )
            )
            wanted = native_flops.cached_attention(
                geometry, mine, past, band, storage=name, window=window, counts=lengths, left=left,
                softcap=softcap is not None and not is_argmax, is_argmax=is_argmax,
            )  # fmt: skip
            assert work == wanted, (mine, past, band, lengths, left, window)


@pytest.mark.parametrize("seed", range(4))
def test_argmax(isa: str, seed: int) -> None:
    source = random.Random(f"argmax {seed}")
    geometry, ran = ops.geometry(), 0
    for _ in range(20):
        sizes = draw_sizes(source, (1, 2, 7, 13, 53, 211), (1, 5, 61, 67, 127, 257, 769))
        mask, band = draw_mask(source, sizes)
        query, key, value = tensors(sizes, source.choice(DTYPES))
        before = RUNS["argmax.native"]
        work = counted_call(
            lambda q=query, k=key, v=value, m=mask: qkv.attention(
                q, k, v, mask=m, similarity=qkv.Argmax(), backend="argmax"
            )
        )
        wanted = native_flops.argmax(geometry, sizes, band)
        ran += RUNS["argmax.native"] - before
        assert work == (wanted if RUNS["argmax.native"] > before else Executed()), (sizes, band)
    assert ran >= 8


KERNEL_MAPS = [*map(NativeMap, MAPS[:4]), *(NativeMap("power", *power) for power in ((1, 0.0), (2, 1.0), (4, 0.5)))]


@pytest.mark.slow
@pytest.mark.parametrize("features", KERNEL_MAPS, ids=str)
def test_linear(isa: str, features: NativeMap, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(str(features))
    power = features.map == "power"
    similarity = qkv.Polynomial(*features[1:]) if power else qkv.FeatureMap(getattr(qkv.features, features.map))
    geometry = ops.geometry()
    for round_ in range(16):
        sizes = draw_sizes(source, (1, 2, 61, 131, 293, 1597), (1, 5, 61, 67, 257, 1031, 4099))
        if power:
            sizes = sizes._replace(width=min(sizes.width, 11), len_k=min(sizes.len_k, 257))
        if round_ % 5 == 0:  # enough heads to keep the keys in one segment
            sizes = sizes._replace(heads=5, heads_kv=5)
        offset = source.choice((None, 0, source.randint(-sizes.len_q - 9, sizes.len_k + 9)))
        mask = None if offset is None else qkv.Causal(offset=offset)
        if source.random() < 0.3:
            padding = qkv.Padding(lengths=[source.randint(0, sizes.len_k) for _ in range(sizes.batch)])
            mask = padding if mask is None else mask & padding
        direct = source.random() < 0.5
        monkeypatch.setattr(linear, "direct_is_cheaper", lambda call, features, answer=direct: answer)
        # Positive, so that no denominator vanishes: non-finite results would be computed again.
        query, key, value = (tensor.abs() for tensor in tensors(sizes, source.choice(DTYPES)))
        work = counted_call(
            lambda q=query, k=key, v=value, m=mask: qkv.attention(
                q, k, v, mask=m, similarity=similarity, backend="linear"
            )
        )
        # A mask that masks nothing is no mask.
        effective = None if offset is None or offset >= sizes.len_k - 1 else offset
        assert work == native_flops.linear(geometry, sizes, features, offset=effective, direct=direct), (
            sizes,
            offset,
            direct,
        )


@pytest.mark.parametrize("name", MAPS)
def test_linear_with_a_state(isa: str, name: str) -> None:
    source = random.Random(name)
    geometry = ops.geometry()
    for _ in range(12):
        sizes = draw_sizes(source, (1, 2, 61, 131, 293), (1, 5, 61, 67, 257, 1031))._replace(
            width=source.choice((3, 7))
        )
        features = NativeMap(name, 2, 1.0) if name == "power" else NativeMap(name)
        rule = FeatureRule(MAPS.index(name), sizes.width, features.degree, features.offset)
        query, key, value = tensors(sizes, torch.float32)
        state = torch.zeros(sizes.batch, sizes.heads_kv, linear_state_size(rule, sizes.width_v))
        direct, offset = source.random() < 0.5, source.choice((None, 0, source.randint(-300, 300)))
        if not direct and source.random() < 0.3:
            query, sizes, offset = None, sizes._replace(heads=sizes.heads_kv, len_q=0), None
        work = counted_call(
            lambda q=query, k=key, v=value, s=state, r=rule, o=offset, d=direct: native_linear(
                q, k, v, r, offset=o, state=s, direct=d
            )
        )
        wanted = native_flops.linear(geometry, sizes, features, offset=offset, direct=direct, state=True)
        assert work == wanted, (sizes, offset, direct)


def test_monomials_are_those_of_the_library() -> None:
    for width, degree, offset in ((1, 1, 0.0), (3, 2, 1.0), (5, 3, 0.0), (7, 4, 0.5), (2, 8, 1.0)):
        features = NativeMap("power", degree, offset)
        chosen = list(combinations_with_replacement(range(features.coordinates(width)), degree))
        assert features.count(width) == len(chosen)
        blocks: dict[tuple[int, ...], int] = {}
        for *prefix, _ in chosen:
            blocks[tuple(prefix)] = blocks.get(tuple(prefix), 0) + 1
        assert features.in_vectors(width, 4) == sum(-(-count // 4) * 4 for count in blocks.values())
        assert linear_state_size(FeatureRule(POWER, width, degree, offset), 1) == features.count(width) * 16 + (
            -(-features.count(width) // 16) * 16 + 16
        )


def test_sums_of_floor_series() -> None:
    source = random.Random(3)
    for _ in range(500):
        lo, hi = source.choice((None, source.randint(-9, 20))), source.choice((None, source.randint(0, 40)))
        steps = FloorSeries(source.randint(0, 50), source.randint(-90, 90), source.randint(1, 9), lo, hi)
        t0 = source.randint(0, 9)
        t1, multiple = t0 + source.randint(-2, 30), source.choice((1, 4, 16, 64))
        values = [steps.at(t) for t in range(t0, t1)]
        assert steps.total(t0, t1, multiple, up=True) == sum(-(-v // multiple) * multiple for v in values)
        assert steps.total(t0, t1, multiple, up=False) == sum(v // multiple * multiple for v in values)


def test_huge_lengths_take_no_time() -> None:
    """A causal mask leaves half of the pairs; padding of tiles is negligible."""
    geometry, far = ops.geometry(), 10**15
    sizes = Sizes(3, 14, 2, far, far, 64, 64)
    pairs = 3 * 14 * far * far // 2
    for work in (
        native_flops.attention(geometry, sizes, Band(upper=1)),
        native_flops.cached_attention(geometry, sizes, [0, 0, 0]),
        native_flops.linear(geometry, sizes, NativeMap("relu"), offset=0, direct=True),
    ):
        assert work.flops == pytest.approx(pairs * 2 * 128, rel=0.02)
    assert native_flops.argmax(geometry, sizes, Band(upper=1)).flops == pytest.approx(pairs * 2 * 64, rel=1e-6)
    one, two = (
        native_flops.linear(geometry, sizes._replace(len_q=n, len_k=n), NativeMap("elu1"), offset=0)
        for n in (far, 2 * far)
    )
    assert two.flops == pytest.approx(2 * one.flops)
