"""The calls that a calibration measures: for each form and dtype a few, spread over sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from ..features import elu1, relu
from ..masks import Causal, Mask, Window
from ..similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Softmax

DTYPES = ("float32", "bfloat16", "float16")
STORAGES = ("float32", "bfloat16", "float16", "int8")
MOST_FLOPS = 4e9  # of a call: some tens of milliseconds


class Probe(NamedTuple):
    """A call of `attention`, or of `decode` on a memory where storage is given."""

    form: str
    dtype: str
    batch: int
    heads: int
    heads_kv: int
    len_q: int
    len_k: int
    width: int
    width_v: int
    similarity: AnySimilarity
    mask: Mask | None = None
    storage: str | None = None

    @property
    def widths(self) -> tuple[int, int]:
        return self.width, self.width_v


def probes(many: int = 10, seed: int = 0) -> Iterator[Probe]:
    """All calls of a calibration, about `many` for each kind; another seed gives others, that predictions can be tried
    on."""
    draw = random.Random(seed)
    for dtype in DTYPES:
        yield from _of_dtype(draw, dtype, many)
    for storage in STORAGES:
        for _ in range(many + many // 2):
            yield _step(draw, storage, draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 1, 2)))
        for _ in range(many):
            yield _step(draw, storage, draw.choice((1, 2, 4)), _between(draw, 17, 64))


def _of_dtype(draw: random.Random, dtype: str, count: int) -> Iterator[Probe]:
    for low, high in ((1, 16), (17, 190), (192, 760), (768, 2048)):
        for _ in range(count + count // 2):
            yield _call(draw, "streaming", dtype, Softmax(), low, high)
    for _ in range(count):
        yield _call(draw, "decode", dtype, Softmax(), 1, 8)
    for _ in range(count + count // 2):
        yield _call(draw, "decode", dtype, Softmax(), 17, 1500)
    for form in ("dense", "streaming"):
        softmax = Softmax(softcap=30.0) if form == "streaming" else Softmax()  # which no kernel of torch's knows
        for similarity in (softmax, Polynomial(2), FeatureMap(elu1)):
            for _ in range(count):
                yield _call(draw, form, dtype, similarity, 8, 1024)
    for form in ("dense", "hard"):
        for _ in range(count):
            yield _call(draw, form, dtype, Argmax(), 8, 2048)
    for similarity in (Polynomial(2), FeatureMap(elu1)):
        for low, high in ((8, 100), (200, 4096)):
            for _ in range(count):
                yield _call(draw, "linear", dtype, similarity, low, high)


def _call(draw: random.Random, form: str, dtype: str, similarity: AnySimilarity, low: int, high: int) -> Probe:
    while True:
        group, heads_kv, batch = draw.choice((1, 1, 2, 4)), draw.choice((1, 2, 3, 4, 8)), draw.choice((1, 1, 1, 2, 3))
        width = draw.choice((32, 48, 64, 64, 80, 96, 128))
        if isinstance(similarity, Polynomial):
            width = draw.choice((8, 16, 24, 32))
        len_q = _between(draw, low, high)
        causal = draw.random() < 0.4
        len_k = (
            len_q if causal or draw.random() < 0.5 else _between(draw, max(low, 16), max(high, 4096 if low < 17 else 0))
        )
        heads = group * heads_kv
        flops = 4 * batch * heads * len_q * len_k * width
        if flops <= MOST_FLOPS / (1 if dtype == "float32" else 2):
            mask = Causal() if causal else None
            if causal and form in ("streaming", "decode") and isinstance(similarity, Softmax) and draw.random() < 0.4:
                mask = Window(left=_between(draw, 8, max(9, len_q)), right=0)
            return Probe(form, dtype, batch, heads, heads_kv, len_q, len_k, width, width, similarity, mask)


def _step(draw: random.Random, storage: str, group: int, len_q: int) -> Probe:
    heads_kv, batch = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2, 4))
    width = draw.choice((32, 64, 64, 96, 128))
    past = _between(draw, 16, 16384 // batch)
    heads = group * heads_kv
    return Probe("decode", "float32", batch, heads, heads_kv, len_q, past, width, width, Softmax(), None, storage)


def _between(draw: random.Random, low: int, high: int) -> int:
    """Evenly in the logarithm."""
    return max(low, min(high, round(low * (high / low) ** draw.random())))


_PRIMES = (
    2,
    3,
    5,
    7,
    11,
    13,
    17,
    19,
    23,
    29,
    31,
    37,
    41,
    43,
    47,
    53,
    59,
    61,
    67,
    71,
    73,
    79,
    83,
    89,
    97,
    101,
    211,
    523,
)


def odd_calls(count: int, seed: int = 0) -> Iterator[Probe]:
    """Calls of small, odd sizes over forms, similarities, masks, heads and dtypes, to count what they execute."""
    draw = random.Random(seed)
    maps = (FeatureMap(elu1), FeatureMap(relu))
    kinds: dict[str, tuple[AnySimilarity, ...]] = {
        "dense": (Softmax(), Softmax(softcap=5.0), Polynomial(3), Argmax(), *maps),
        "streaming": (Softmax(), Softmax(softcap=5.0), Polynomial(2), *maps),
        "decode": (Softmax(), Softmax(softcap=5.0)),
        "hard": (Argmax(),),
        "linear": (Polynomial(2), Polynomial(3, offset=0.0), *maps),
    }
    for _ in range(count):
        form = draw.choice([*kinds, "memory"])
        len_q, len_k, width, width_v = draw.choice(_PRIMES), draw.choice(_PRIMES), *(draw.choice(_PRIMES[:9]),) * 2
        batch, heads_kv, group = draw.choice((1, 2, 3)), draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 5))
        heads = group * heads_kv
        if form == "memory":
            storage = draw.choice(STORAGES)
            sizes = batch, heads, heads_kv, min(len_q, 29), len_k, width, draw.choice(_PRIMES[:9])
            yield Probe("decode", "float32", *sizes, Softmax(), None, storage)
            continue
        mask = None
        if draw.random() < 0.6:
            mask = Causal(offset=draw.randint(-len_q, len_k))
            if draw.random() < 0.4 and form not in ("linear",):
                mask = Window(left=draw.randint(0, 40), right=draw.randint(0, 9), offset=mask.offset)
        dtype = draw.choice((*DTYPES, "float64")) if form not in ("decode",) else draw.choice(DTYPES)
        value_width = draw.choice((width_v, draw.choice(_PRIMES[:9])))
        similarity = draw.choice(kinds[form])
        yield Probe(form, dtype, batch, heads, heads_kv, len_q, len_k, width, value_width, similarity, mask)
