"""The arithmetic of the decode figures: roofs, rotations, means, lines and plots."""

import math
import time
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.cells import flops, stored
from benchmarks.decode import SHAPES, TABLE, bar, label, mean, ms
from benchmarks.growth import SHAPES as GROWN
from benchmarks.growth import binned, jumps, plot, steps_of_listing, steps_of_qkv, straight
from benchmarks.peers import TimedCall
from benchmarks.roofs import MEBI, Roof
from benchmarks.rotation import FEW, caches, compare
from qkv.cost.machine import last_level_cache


def test_bytes_and_flops() -> None:
    shape = (1, 32, 8, 4096, 128)
    assert stored(shape, "float32") == 2 * 8 * 4096 * 128 * 4
    assert stored(shape, "bfloat16") == 2 * 8 * 4096 * 128 * 2
    assert stored(shape, "int8") == 2 * 8 * 4096 * (128 + 4)
    assert flops(shape) == 4 * 32 * 4096 * 128


def test_the_roof_is_the_higher_of_two() -> None:
    roof = Roof(bandwidth=10.0, rate=100.0)
    assert roof.seconds(20, 100) == 2.0
    assert roof.bound(20, 100) == "bytes"
    assert roof.seconds(20, 300) == 3.0
    assert roof.bound(20, 300) == "flops"


def test_a_rotation_exceeds_the_cache_four_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.rotation.last_level_cache", lambda: 32 * MEBI)
    monkeypatch.setattr("benchmarks.rotation.free_memory", lambda: 1 << 40)
    assert caches(8 * MEBI) * 8 > 4 * 32
    assert caches(1 << 30) == 2
    assert caches(64) == FEW
    monkeypatch.setattr("benchmarks.rotation.free_memory", lambda: 200 * MEBI)
    assert caches(8 * MEBI) == 3
    assert last_level_cache() >= MEBI


def test_a_comparison_rotates_over_all_caches_and_times_only_the_step() -> None:
    seen: list[int] = []

    def call(i: int) -> TimedCall:
        return TimedCall(lambda: seen.append(i), lambda: time.sleep(0.002))

    result = compare({"a": [call(0), call(1), call(2)]}, rounds=3, seconds=0.0)
    assert set(seen) == {0, 1, 2}
    assert len(result.times["a"]) == 3
    assert result.median("a") < 0.001


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.1432, "143"), (0.01234, "12.3"), (0.001234, "1.23"), (0.0009999, "1.00"), (1.2e-4, ".120"), (1.2e-5, ".012")],
)
def test_milliseconds_in_four_characters(seconds: float, shown: str) -> None:
    assert ms(seconds) == shown


def test_tables_fit_eighty_columns() -> None:
    columns = ["qkv", "sdpa", "pack", "hf", "hf+p", "flex", "onnx", "jax", "ggml", "list"]
    assert max(len(label(shape)) for shape in SHAPES) + len(columns) * 6 <= 80
    assert set(TABLE) <= set(SHAPES)


def test_geometric_mean_and_bars() -> None:
    assert mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(mean([]))
    assert bar("x", 2.5, ".1f", least=2.4)[-1] == "met"
    assert bar("x", 2.5, ".1f", most=2.4) == ["x", "2.5", "<= 2.4", "NOT MET"]
    assert bar("x", math.nan, ".1f", least=2.4)[-1] == "NOT MET"


def test_a_line_and_its_jumps() -> None:
    past = np.arange(1024)
    times = 1e-5 + 1e-8 * past
    start, slope, off = straight(binned(times))
    assert start == pytest.approx(1e-5, rel=0.01)
    assert slope == pytest.approx(1e-8, rel=0.01)
    assert off < 0.01
    assert jumps(times) == 0
    times[[100, 700]] *= 5
    assert jumps(times) == 2


@pytest.mark.slow
def test_both_ways_grow_from_nothing() -> None:
    for shape in GROWN.values():
        assert len(steps_of_qkv(shape, 3)) == len(steps_of_listing(shape, 3)) == 3


def test_the_plot_is_svg_with_axes() -> None:
    points = np.linspace(1e-5, 9e-4, 16)
    root = ElementTree.fromstring(plot("a title", {"listing": points * 10, "qkv": points}))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts.count("past (tokens)") == 2
    assert texts.count("time per step (ms)") == 2
    assert {"qkv", "listing"} <= set(texts)
