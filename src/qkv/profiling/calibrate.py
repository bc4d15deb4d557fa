"""Calibrate this machine: peak rates, and for each engine the seconds of a call, a flop and a byte.

Peak rates ("roofs") are what torch reaches with single operators. Prices are fitted to some dozen calls of each engine
over a range of sizes, by least squares of log(seconds).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from timeit import timeit
from typing import NamedTuple

import numpy as np
import torch

from .. import ops
from ..cache.decode import KVCache, decode
from ..cache.formats import FORMATS, storage_format
from ..cost.machine import Machine, Progress, free_memory, last_level_cache, memory_bytes, processor_name
from ..cost.price import Cost, Price
from ..features import elu1
from ..functional import attention, explain
from ..masks import Causal, Mask, Window
from ..similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Softmax
from .files import packed_rates

MIN_SAMPLE_SECONDS = 1.5e-3  # seconds
CALLS_PER_KIND = 10  # for each kind of call and dtype
MEBI = 1 << 20
_START = Price(3e-5, 1e-11, 1e-10)  # of the fit


class Measured(NamedTuple):
    """A measured call: its engine, its cost and its seconds."""

    engine: str
    cost: Cost
    seconds: float


def measure(progress: Progress | None = None) -> Machine:
    """Measure peak rates, then prices; progress is called with what is measured and the fraction done."""
    say = progress or (lambda what, part: None)
    measurements, wanted = list(_roof_measurements()), list(probes(CALLS_PER_KIND))
    total = len(measurements) + len(wanted)
    roofs: dict[str, float] = {}
    for _ in range(3):
        for done, (name, rate) in enumerate(measurements):
            say(name, done / total)
            roofs[name] = max(rate(), roofs.get(name, 0.0)) if name != "call" else min(rate(), roofs.get(name, 1.0))
        if not Machine("", 1, 1, 1, roofs=roofs).doubts:
            break  # otherwise another program was running: measure again and take the best
    measured = measure_probes(wanted, 1, lambda what, done: say(what, (len(measurements) + done) / total))
    prices, errors = fit_prices(measured)
    say("done", 1.0)
    threads, taken = torch.get_num_threads(), datetime.now(UTC).isoformat(timespec="seconds")
    here = processor_name(), threads, threads, memory_bytes(), torch.__version__, ops.isa(), taken
    return Machine(*here, roofs, prices, errors, _roofline_points(wanted, measured))


def measure_probes(
    wanted: Sequence[Probe], rounds: int, say: Callable[[str, int], None] | None = None
) -> list[Measured]:
    """Measure every probe once per round, so that a slow period of the machine does not affect one probe only."""
    measured: list[list[Measured]] = [[] for _ in wanted]
    for round_number in range(rounds):
        for place, probe in enumerate(wanted):
            if say is not None:
                say(f"{probe.backend} {probe.dtype}", round_number * len(wanted) + place)
            call = prepare(probe)
            with torch.no_grad():
                measured[place].append(Measured(call.engine, call.cost, time_call(call.run, 1)))
    return [own[0]._replace(seconds=statistics.median(one.seconds for one in own)) for own in measured]


# Engines in a roofline plot, each with its largest measured call.
ROOFLINE_LABELS = {
    "cache.few.float32": "decoding, float32",
    "cache.few.int8": "decoding, int8",
    "sdpa.softmax.float32": "prefill, torch's kernel",
    "native.softmax.float32": "prefill, native kernel",
    "linear.feature_map.float32": "linear",
    "argmax.argmax.float32": "argmax",
}


def _roofline_points(wanted: Sequence[Probe], measured: Sequence[Measured]) -> tuple[tuple[str, float, float], ...]:
    """(label, flops per byte that must be moved, flops per second) of the largest call of each engine."""
    found = []
    for engine, label in ROOFLINE_LABELS.items():
        calls = [(call, probe) for probe, call in zip(wanted, measured, strict=True) if call.engine == engine]
        if calls:
            (_, cost, seconds), probe = max(calls, key=lambda pair: pair[0].cost.flops)
            found.append((label, cost.flops / _bytes_moved(probe), cost.flops / seconds))
    return tuple(found)


def _bytes_moved(probe: Probe) -> int:
    """Bytes of queries, keys, values and outputs, each once."""
    item = getattr(torch, probe.dtype).itemsize
    rows = probe.batch * probe.heads * probe.len_q * (probe.width + probe.width_v)
    storage = storage_format(probe.storage or probe.dtype)
    return item * rows + storage.token_bytes(probe.width, probe.width_v) * probe.batch * probe.heads_kv * probe.len_k


def fit_prices(measured: Sequence[Measured]) -> tuple[dict[str, Price], dict[str, float]]:
    """The price of each engine, and the median relative error of its predictions."""
    prices, errors = {}, {}
    for engine in dict.fromkeys(call.engine for call in measured):
        calls = [call for call in measured if call.engine == engine]
        price = prices[engine] = fit_price(calls)
        errors[engine] = statistics.median(abs(price.seconds(c.cost) / c.seconds - 1) for c in calls)
    return prices, errors


class PreparedCall(NamedTuple):
    """A call that is ready to run, its engine and its cost."""

    run: Callable[[], object]
    engine: str
    cost: Cost


def prepare(probe: Probe) -> PreparedCall:
    """The call of a probe with random tensors. A decode step crops the cache afterwards, so that it can be repeated."""
    dtype = getattr(torch, probe.dtype)
    torch.manual_seed(0)
    query = torch.randn(probe.batch, probe.heads, probe.len_q, probe.width).to(dtype)
    widths = probe.width, probe.width_v
    key, value = (torch.randn(probe.batch, probe.heads_kv, probe.len_k, w).to(dtype) for w in widths)
    options = {"similarity": probe.similarity, "mask": probe.mask}
    if probe.storage is None:
        choice = explain(query, key, value, backend=probe.backend, **options)
        run = partial(attention, query, key, value, backend=probe.backend, **options)
        return PreparedCall(run, choice.engine, choice.cost)
    sizes = probe.batch, probe.heads_kv, probe.width
    cache = KVCache(*sizes, value_width=probe.width_v, dtype=probe.storage)
    cache.append(key, value)
    new_k, new_v = (torch.randn(probe.batch, probe.heads_kv, probe.len_q, w) for w in widths)
    choice = explain(query, new_k, new_v, cache=cache, **options)

    def step() -> None:
        decode(query, new_k, new_v, cache, **options)
        cache.crop(probe.len_k)

    return PreparedCall(step, choice.engine, choice.cost)


def time_call(run: Callable[[], object], rounds: int) -> float:
    """Median seconds of a call over rounds of one or two milliseconds."""
    return statistics.median(_times(run, rounds))


def _times(run: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of a call in each round, after one that is not counted."""
    run()
    repeats = max(1, min(1000, int(MIN_SAMPLE_SECONDS / max(timeit(run, number=1), 1e-7))))
    return [timeit(run, number=repeats) / repeats for _ in range(rounds)]


def fit_price(calls: list[Measured]) -> Price:
    """The price that minimizes the squared error of log(seconds), by Levenberg-Marquardt.

    The price of a unit that no call uses is 0.
    """
    units = np.array([[1.0, c.cost.compared_flops, c.cost.traffic] for c in calls])
    used = units.max(0) > 0
    wanted, start = np.log([c.seconds for c in calls]), np.log(np.array(_START)[used])
    # Flops and bytes grow together: prices that the calls do not determine stay near the start.
    regularization = np.array([0.02, 0.3, 0.3])[used]

    def off(x: np.ndarray) -> np.ndarray:
        predicted = np.log((units[:, used] * np.exp(x)).sum(1))
        return np.concatenate([predicted - wanted, regularization * (x - start)])

    x, damping = start, 1.0
    errors = off(x)
    for _ in range(200):
        slopes = np.stack([(off(x + 1e-5 * unit) - errors) / 1e-5 for unit in np.eye(len(x))], axis=1)
        step = np.clip(np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(x)), -slopes.T @ errors), -2.0, 2.0)
        better = off(x + step)
        gain = errors @ errors - better @ better
        if gain > 0:
            x, errors, damping = x + step, better, damping / 3
        else:
            damping *= 4
        if 0 < gain < 1e-10 or damping > 1e9:
            break
    found = np.zeros(len(_START))
    found[used] = np.exp(x)
    return Price(*(float(each) for each in found))


def _best_time(run: Callable[[], object]) -> float:
    """The least seconds of a call: a peak rate is the most that the machine reaches."""
    return min(_times(run, 5))


def _roof_measurements() -> Iterator[tuple[str, Callable[[], float]]]:
    """Names of the peak rates, each with a function that measures it."""
    far = min(2 * last_level_cache(), free_memory() // 8)
    buffers: dict[int, torch.Tensor] = {}

    def buffer(size: int) -> torch.Tensor:
        if size not in buffers:
            buffers[size] = torch.ones(max(size, MEBI) // 4)
        return buffers[size]

    for place, size in (("cache", MEBI), ("memory", far)):
        yield f"read.{place}", lambda size=size: size / _best_time(buffer(size).sum)
        yield f"write.{place}", lambda size=size: size / _best_time(lambda: buffer(size).fill_(1.0))
        yield f"copy.{place}", lambda size=size: size / _best_time(partial(torch.Tensor.copy_, *buffer(size).chunk(2)))
    for dtype in ("float32", "bfloat16", "float16"):
        # Without instructions for half precision torch is hundreds of times slower.
        side = 768 if dtype == "float32" else 192
        yield f"multiply.{dtype}.square", partial(_multiply_rate, dtype, side, side, side)
        yield f"multiply.{dtype}.tall", partial(_multiply_rate, dtype, 4 * side, 64, side)
        yield f"multiply.{dtype}.vector", partial(_multiply_rate, dtype, 1, side, side)
    yield "exponential", lambda: MEBI // 8 / _best_time(torch.rand(MEBI // 8).exp)
    yield "call", lambda: _best_time(partial(torch.add, torch.ones(1), torch.ones(1)))
    yield "threads.multiply", lambda: _thread_scaling(partial(_multiply_rate, "float32", 512, 512, 512))
    yield "threads.read", lambda: _thread_scaling(lambda: far / _best_time(buffer(far).sum))
    if not ops.reasons():
        yield from packed_rates(far, _best_time)


def _multiply_rate(dtype: str, rows: int, inner: int, columns: int) -> float:
    a, b = (torch.randn(shape).to(getattr(torch, dtype)) for shape in ((rows, inner), (inner, columns)))
    return 2 * rows * inner * columns / _best_time(partial(torch.matmul, a, b))


def _thread_scaling(rate: Callable[[], float]) -> float:
    """The speed with all threads relative to one thread."""
    threads = torch.get_num_threads()
    together = rate()
    torch.set_num_threads(1)
    try:
        return together / rate()
    finally:
        torch.set_num_threads(threads)


DTYPES = ("float32", "bfloat16", "float16")
STORAGES = tuple(each.name for each in FORMATS.values() if each.native_code is not None)
MAX_FLOPS = 4e9  # of a call, some tens of milliseconds


class Probe(NamedTuple):
    """A call of `attention`, or of `decode` with a cache if storage is given."""

    backend: str
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


def probes(many: int = 10, seed: int = 0) -> Iterator[Probe]:
    """The calls of a calibration, about `many` of each kind; another seed gives other calls, to test predictions."""
    draw = random.Random(seed)
    for dtype in DTYPES:
        yield from _dtype_probes(draw, dtype, many)
    for storage in STORAGES:
        for _ in range(many + many // 2):
            yield _decode_probe(draw, storage, draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 1, 2)))
        for _ in range(many):
            yield _decode_probe(draw, storage, draw.choice((1, 2, 4)), _log_uniform(draw, 17, 64))


def _dtype_probes(draw: random.Random, dtype: str, count: int) -> Iterator[Probe]:
    more, softmax = count + count // 2, Softmax()
    kinds: list[tuple[str, AnySimilarity, int, int, int]] = [
        *(("sdpa", softmax, *lengths, more) for lengths in ((1, 16), (17, 190), (192, 760), (768, 2048))),
        ("native", softmax, 1, 8, count),
        ("native", softmax, 17, 1500, more),
        *(("reference", each, 8, 1024, count) for each in (softmax, Polynomial(2), FeatureMap(elu1))),
        # A softcap is not supported by torch's kernel.
        *(("blockwise", each, 8, 1024, count) for each in (Softmax(softcap=30.0), Polynomial(2), FeatureMap(elu1))),
        *((backend, Argmax(), 8, 2048, count) for backend in ("reference", "argmax")),
        *(
            ("linear", each, *lengths, count)
            for each in (Polynomial(2), FeatureMap(elu1))
            for lengths in ((8, 100), (200, 4096))
        ),
    ]
    for backend, similarity, low, high, times in kinds:
        for _ in range(times):
            yield _call_probe(draw, backend, dtype, similarity, low, high)


def _call_probe(draw: random.Random, backend: str, dtype: str, similarity: AnySimilarity, low: int, high: int) -> Probe:
    while True:
        group, heads_kv, batch = draw.choice((1, 1, 2, 4)), draw.choice((1, 2, 3, 4, 8)), draw.choice((1, 1, 1, 2, 3))
        width = draw.choice((32, 48, 64, 64, 80, 96, 128))
        if isinstance(similarity, Polynomial):
            width = draw.choice((8, 16, 32, 64))
        len_q = _log_uniform(draw, low, high)
        causal = draw.random() < 0.4
        same = causal or draw.random() < 0.5
        len_k = len_q if same else _log_uniform(draw, max(low, 16), max(high, 4096 if low < 17 else 0))
        heads = group * heads_kv
        flops = 4 * batch * heads * len_q * len_k * width
        if flops <= MAX_FLOPS / (1 if dtype == "float32" else 2):
            mask = Causal() if causal else None
            if causal and backend in ("sdpa", "native") and isinstance(similarity, Softmax) and draw.random() < 0.4:
                mask = Window(left=_log_uniform(draw, 8, max(9, len_q)), right=0)
            return Probe(backend, dtype, batch, heads, heads_kv, len_q, len_k, width, width, similarity, mask)


def _decode_probe(draw: random.Random, storage: str, group: int, len_q: int) -> Probe:
    heads_kv, batch = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2, 4))
    width = draw.choice((32, 64, 64, 96, 128))
    past = _log_uniform(draw, 16, 16384 // batch)
    heads = group * heads_kv
    return Probe("native", "float32", batch, heads, heads_kv, len_q, past, width, width, Softmax(), None, storage)


def _log_uniform(draw: random.Random, low: int, high: int) -> int:
    """A random integer, uniform in the logarithm."""
    return max(low, min(high, round(low * (high / low) ** draw.random())))
