"""Calibration: known prices are recovered, and real calls are measured."""

import random
from pathlib import Path

import pytest

from qkv.backends import BACKENDS
from qkv.cost.machine import Machine
from qkv.cost.price import Cost, Price
from qkv.profiling.calibrate import Measured, fit_price, fit_prices, measure_probes, prepare, probes

KNOWN = Price(4e-5, 2e-11, 3e-10)


def some_costs(count: int) -> list[Cost]:
    draw = random.Random(3)

    def between(low: float, high: float) -> int:
        return round(low * (high / low) ** draw.random())

    return [Cost(between(1e5, 1e10), between(1e4, 1e9), 0, 0.0) for _ in range(count)]


def test_known_prices_predict_calls_that_were_not_seen() -> None:
    costs = some_costs(120)
    found = fit_price([Measured("engine", cost, KNOWN.seconds(cost)) for cost in costs[:80]])
    for cost in costs[80:]:
        assert found.seconds(cost) == pytest.approx(KNOWN.seconds(cost), rel=0.03)


def test_noise_does_not_throw_the_fit_off() -> None:
    draw, costs = random.Random(5), some_costs(160)
    found = fit_price(
        [Measured("engine", cost, KNOWN.seconds(cost) * draw.lognormvariate(0, 0.15)) for cost in costs[:120]]
    )
    errors = sorted(abs(found.seconds(cost) / KNOWN.seconds(cost) - 1) for cost in costs[120:])
    assert errors[len(errors) // 2] < 0.08


def test_a_unit_without_measurements_costs_nothing() -> None:
    costs = [Cost(cost.flops, 0, 0, 0.0) for cost in some_costs(40)]
    found = fit_price([Measured("engine", cost, KNOWN.seconds(cost)) for cost in costs])
    assert found.byte == 0.0
    assert found.call > 0
    assert found.flop > 0


@pytest.mark.slow
def test_real_calls_are_measured_and_priced() -> None:
    wanted = [probe for probe in probes(3) if probe.backend in ("native", "reference")][:12]
    said = []
    visits = measure_probes(wanted, 1, lambda what, done: said.append((what, done)))
    assert [done for _, done in said] == list(range(len(wanted)))
    assert all(1e-6 < taken.seconds < 10 for taken in visits)
    prices, errors = fit_prices(visits)
    assert prices.keys() == errors.keys() == {taken.engine for taken in visits}


@pytest.mark.slow
def test_every_engine_that_auto_may_take_has_probes() -> None:
    """Whatever the size, the engines of the backends are among those that a calibration measures."""
    engines = {prepare(probe).engine for probe in probes(4)}
    kinds = {
        "reference": ("softmax", "polynomial", "feature_map", "argmax"),
        "blockwise": ("softmax", "polynomial", "feature_map"),
        "linear": ("polynomial", "feature_map"),
        "sdpa": ("softmax",),
        "native": ("softmax",),
        "argmax": ("argmax",),
    }
    assert kinds.keys() == BACKENDS.keys()
    dtypes = ("float32", "bfloat16", "float16")
    assert {f"{name}.{kind}.{dtype}" for name in kinds for kind in kinds[name] for dtype in dtypes} <= engines
    assert {f"linear.{kind}.float32.scores" for kind in kinds["linear"]} <= engines
    assert {"native.softmax.float32.few", "sdpa.softmax.float32.few"} <= engines
    assert {f"cache.{rows}.{dtype}" for rows in ("few", "many") for dtype in ("float32", "int8")} <= engines


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
