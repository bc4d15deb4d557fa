import math
from xml.etree import ElementTree

import pytest

from qkv.errors import OptionError, OptionTypeError, QkvError, ShapeError
from qkv.figures import roofline

SPACE = "{http://www.w3.org/2000/svg}"


def said(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SPACE}title")]


def test_the_ridge_is_marked_with_its_value():
    svg = roofline("r", [("here", 42e9, 6e9)])
    assert "ridge 7 flop/byte: arithmetic intensity 7 flop/byte" in said(svg)
    assert ">ridge 7 flop/byte<" in svg
    assert "here: 42 GFLOP/s, 6 GB/s: arithmetic intensity 7 flop/byte, speed 42 GFLOP/s" in said(svg)


def test_several_roofs_are_told_apart():
    svg = roofline("r", [("memory", 40e9, 8e9), ("cache", 40e9, 50e9)], width=720)
    assert ">ridge 5, memory<" in svg
    assert ">ridge 0.8, cache<" in svg


def test_a_roof_is_the_lower_of_the_two():
    titles = said(roofline("r", [("m", 1e12, 1e11)]))
    speeds = [t.rpartition("speed ")[2] for t in titles if t.startswith("m: 1 TFLOP/s") and "speed" in t]
    assert "1 TFLOP/s" in speeds
    assert not any(speed.endswith("PFLOP/s") for speed in speeds)


def test_dots_are_labelled():
    svg = roofline("r", [("m", 40e9, 8e9)], [("decode", 0.5, 3e9), ("prefill", 90, 31e9)])
    assert ">decode<" in svg
    assert ">prefill<" in svg
    assert "measured, decode: arithmetic intensity 0.5 flop/byte, speed 3 GFLOP/s" in said(svg)


def test_dots_that_cannot_be_drawn_are_counted():
    dots = [("a", 0, 1e9), ("b", math.nan, 1e9), ("c", 2, 3e9), ("d", math.inf, 1e9)]
    assert "Left out: 3 points (2 not finite, 1 zero or negative on a log axis)." in roofline(
        "r", [("m", 4e10, 8e9)], dots
    )


@pytest.mark.parametrize(
    ("roofs", "error"),
    [
        ([], OptionError),
        ([("m", 0, 8e9)], OptionError),
        ([("m", 1e9, math.nan)], OptionError),
        ([("m", 1e9, -5)], OptionError),
        ([("m", 1e9)], ShapeError),
        (["m"], OptionTypeError),
        ([("m", "fast", 1)], OptionTypeError),
        ([("", 1, 1)], OptionError),
    ],
)
def test_roofs_that_cannot_be(roofs, error):
    with pytest.raises(error, match="roofs"):
        roofline("r", roofs)


def test_far_apart():
    for flops, bandwidth in ((1e30, 1e-30), (1e-30, 1e30)):
        ElementTree.fromstring(roofline("r", [("m", flops, bandwidth)], [("d", 1e-9, 1e15)]))
    with pytest.raises(QkvError):
        roofline("r", [("m", 1e31, 1)])
