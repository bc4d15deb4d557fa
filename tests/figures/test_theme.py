"""The palette has enough contrast, also with a colour vision deficiency."""

from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.figures import Axis, Line, chart, standalone, theme

# What the three kinds of dichromats see of linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "three cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_CONES = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.2119035, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.6299787],
]
TO_OKLAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]


def linear(colour):
    rgb = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb):
    return np.array(TO_OKLAB) @ np.cbrt(np.array(TO_CONES) @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize(
    ("paper", "texts", "colours"),
    [
        (theme.PAPER, (theme.INK, theme.SOFT), (*theme.COLOURS, theme.RULE)),
        (theme.DARK_PAPER, (theme.DARK_INK, theme.DARK_SOFT), (*theme.DARK_COLOURS, theme.DARK_RULE)),
    ],
)
def test_contrast(paper, texts, colours):
    assert min(contrast(paper, text) for text in texts) >= 4.5
    assert min(contrast(paper, colour) for colour in colours) >= 3


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("colours", [theme.COLOURS, theme.DARK_COLOURS], ids=["light", "dark"])
def test_colours_differ_for_every_eye(colours, eye):
    seen = [oklab(np.array(EYES[eye]) @ linear(colour)) for colour in colours]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 0.1


def test_many_series_differ_in_colour_and_shape():
    assert len(theme.COLOURS) == len(theme.DARK_COLOURS) == 8
    assert len(set(theme.SHAPES)) == len(theme.SHAPES) >= 8
    assert len({(theme.colour_of(n), theme.shape_of(n)) for n in range(72)}) == 72


def test_a_file_has_the_dark_colours_and_a_chart_has_no_style():
    svg = chart("t", Axis("x"), Axis("y"), [Line("a", [(2, 3), (5, 7)])])
    assert "style" not in svg
    root = ElementTree.fromstring(standalone(svg).encode())
    style = root.find("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert style.text == theme.STYLE
    for name in ("paper", "ink", "soft", "rule", "grid", "halo", "fill-0", "stroke-0"):
        assert f".qkv-{name}{{" in theme.STYLE
        assert f"qkv-{name}" in svg
