"""Calibration: known prices are recovered, and real calls are measured."""

import random
from pathlib import Path

import pytest

from qkv.cost.machine import Machine
from qkv.cost.price import Price, Work
from qkv.profiling.calibrate import Measured, fit_price, fit_prices, measure_probes, prepare, probes

KNOWN = Price(4e-5, 2e-6, 2e-11, 1e-9, 5e-10, 1e-10, 3e-10)


def some_works(count: int, overlaps: bool) -> list[Work]:
    draw = random.Random(3)

    def between(low: float, high: float) -> float:
        return low * (high / low) ** draw.random()

    return [
        Work("engine", 0, between(1, 1e3), between(1e5, 1e10), between(1e3, 1e7), between(1e3, 1e6), between(1e4, 1e8),
             between(1e3, 1e9), overlaps)
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("overlaps", [False, True])
def test_known_prices_predict_calls_that_were_not_seen(overlaps: bool) -> None:
    works = some_works(120, overlaps)
    found = fit_price([Measured(work, KNOWN.seconds(work)) for work in works[:80]])
    for work in works[80:]:
        assert found.seconds(work) == pytest.approx(KNOWN.seconds(work), rel=0.03)


def test_noise_does_not_throw_the_fit_off() -> None:
    draw, works = random.Random(5), some_works(160, False)
    taken = [Measured(work, KNOWN.seconds(work) * draw.lognormvariate(0, 0.15)) for work in works[:120]]
    found = fit_price(taken)
    errors = sorted(abs(found.seconds(work) / KNOWN.seconds(work) - 1) for work in works[120:])
    assert errors[len(errors) // 2] < 0.08


def test_a_unit_without_measurements_costs_nothing() -> None:
    works = [work._replace(far=0.0, pairs=0.0) for work in some_works(40, False)]
    found = fit_price([Measured(work, KNOWN.seconds(work)) for work in works])
    assert found.far == found.pair == 0.0
    assert all(price > 0 for price in (found.call, found.step, found.product, found.row, found.near))


@pytest.mark.slow
def test_real_calls_are_measured_and_priced() -> None:
    wanted = [probe for probe in probes(3) if probe.backend in ("native", "reference")][:12]
    said = []
    visits = measure_probes(wanted, 1, lambda what, done: said.append((what, done)))
    assert [done for _, done in said] == list(range(len(wanted)))
    assert all(1e-6 < taken.seconds < 10 for taken in visits)
    prices, errors = fit_prices(visits)
    assert prices.keys() == errors.keys() == {taken.work.engine for taken in visits}


@pytest.mark.slow
def test_every_engine_that_auto_may_take_has_probes() -> None:
    """Whatever the size, the engines of the backends are among those that a calibration measures."""
    engines = {prepare(probe).work.engine for probe in probes(3)}
    kinds = ("softmax", "polynomial", "feature_map")
    assert {f"{backend}.{kind}" for backend in ("reference", "blockwise") for kind in kinds} | {
        "reference.argmax",
        "argmax",
    } <= engines
    assert {
        f"sdpa.{block}.{dtype}" for block in (1, 32, 64, 256) for dtype in ("float32", "bfloat16", "float16")
    } <= engines
    assert {"native", "native.few", "linear.native", "linear.scores", "linear.scores.power"} <= engines
    assert {f"cache.{kind}.{dtype}" for kind in ("few", "many") for dtype in ("float32", "int8")} <= engines


def test_the_same_seed_gives_the_same_calls() -> None:
    def plain(probe) -> tuple:
        return probe[:9], probe.similarity.kind, probe.storage, probe.mask is None

    assert [plain(p) for p in probes(2)] == [plain(p) for p in probes(2)]
    assert [plain(p) for p in probes(2)] != [plain(p) for p in probes(2, seed=1)]


@pytest.mark.slow
def test_a_whole_calibration_of_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, with one call of each kind: every roof, every engine, and dots for a roofline."""
    monkeypatch.setattr("qkv.profiling.calibrate.CALLS_PER_KIND", 1)
    parts: list[float] = []
    machine = Machine.measure(lambda what, part: parts.append(part))
    assert machine.measured
    assert parts[-1] == 1.0
    assert all(figure > 0 for figure in machine.roofs.values())
    for place in ("cache", "cache"):
        assert {f"{way}.{place}" for way in ("read", "write", "copy")} <= machine.roofs.keys()
    assert {f"multiply.{dtype}.{shape}" for dtype in ("float32", "bfloat16", "float16") for shape in ("square", "tall",
            "vector")} <= machine.roofs.keys()  # fmt: skip
    assert machine.prices.keys() == machine.errors.keys()
    assert machine.dots
    assert Machine.read(machine.store(tmp_path / "machine.json")) == machine
