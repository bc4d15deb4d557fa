"""Heat maps show values as colours, as text and, on request, as numbers that are legible in both themes."""

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import OptionError, OptionTypeError, ShapeError
from qkv.figures import heat_map, small_map, theme
from qkv.figures.svg import text_width

SPACE = "{http://www.w3.org/2000/svg}"
numbers = st.one_of(st.floats(), st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5, math.inf, -math.inf, math.nan]))
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
names = st.text(st.characters(codec=None), max_size=40)


def matrices(rows, columns, entries):
    return st.lists(st.lists(entries, min_size=columns, max_size=columns), min_size=rows, max_size=rows)


def luminance(colour):
    rgb = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def root_of(svg):
    return ElementTree.fromstring(svg)


def cells_of(svg):
    groups = [g for g in root_of(svg).iter(f"{SPACE}g") if g.get("class") == "qkv-cells"]
    return [list(row) for row in groups[0]]


def words_of(svg):
    return [[cell.findtext(f"{SPACE}title") for cell in row] for row in cells_of(svg)]


def test_every_cell_says_its_place_and_its_value():
    values = [[1.0, 0.0], [0.25, 0.75], [0.1239, 0.8761]]
    svg = heat_map("Weights", values, rows=["the", " ", "cat & dog"], columns=["a<b", "c"])
    assert words_of(svg) == [
        ["query 1 the, key 1 a<b: 1", "query 1 the, key 2 c: 0"],
        ["query 2 ␣, key 1 a<b: 0.25", "query 2 ␣, key 2 c: 0.75"],
        ["query 3 cat & dog, key 1 a<b: 0.1239", "query 3 cat & dog, key 2 c: 0.8761"],
    ]
    description = root_of(svg).findtext(f"{SPACE}desc")
    assert "3 by 2 cells" in description
    assert "Largest: 1 at query 1 the, key 1 a<b." in description
    counted = words_of(heat_map("t", [[0.002]], row_axis="token", column_axis="head", unit="s"))
    assert counted == [["token 1, head 1: 2 ms"]]


def test_colours_go_from_low_to_high():
    looks = [cell.get("class") for cell in cells_of(heat_map("t", [[0, 0.05, 0.5, 1.0]]))[0]]
    assert looks == ["qkv-heat-0", "qkv-heat-1", "qkv-heat-10", "qkv-heat-20"]
    fills = [cell.get("fill") for cell in cells_of(heat_map("t", [[0, 2]], high=4))[0]]
    assert fills == [theme.HEAT[0], theme.HEAT[10]]
    svg = heat_map("t", [[-3, 0, 1, math.nan]], low=-1, high=0.5)
    assert "Not a number: 1. Beyond the ends of the colours: 2." in svg
    assert words_of(svg)[0][-1] == "query 1, key 4: not a number"


def test_masked_cells_are_hatched_whatever_they_hold():
    svg = heat_map("t", [[1, math.nan], [0.5, 0.5]], masked=[[False, True], [False, False]])
    hidden = cells_of(svg)[0][1]
    assert hidden.findtext(f"{SPACE}title") == "query 1, key 2: masked"
    (pattern,) = root_of(svg).iter(f"{SPACE}pattern")
    assert hidden.get("fill") == f"url(#{pattern.get('id')})"
    assert "Not a number" not in svg
    assert "pattern" not in heat_map("t", [[1, 2]])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_anything_is_drawn_within_the_figure(data):
    rows, columns = data.draw(sizes)
    values = data.draw(matrices(rows, columns, numbers))
    masked = data.draw(st.none() | matrices(rows, columns, st.booleans()))
    labels = {"rows": data.draw(st.none() | st.lists(names, min_size=rows, max_size=rows))}
    labels["columns"] = data.draw(st.none() | st.lists(names, min_size=columns, max_size=columns))
    options = {"masked": masked, "numbers": data.draw(st.booleans()), "width": data.draw(st.sampled_from([240, 320]))}
    svg = heat_map("t", values, **labels, **options)
    assert svg == heat_map("t", values, **labels, **options)
    assert "style" not in svg
    root = root_of(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    drawn = cells_of(svg)
    assert [len(row) for row in drawn] == [columns] * rows
    for text in root.iter(f"{SPACE}text"):
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        wide = text_width("".join(text.itertext()), float(text.get("font-size")))
        if text.get("transform"):
            assert y - wide >= 0
        elif not list(text):
            start = x - {"middle": wide / 2, "end": wide}.get(text.get("text-anchor", ""), 0)
            assert start >= -1
            assert start + wide <= width + 1
        assert 0 <= y <= height


def test_figures_in_cells_can_be_read_in_both_themes():
    values = [[n / 20 for n in range(21)]]
    svg = heat_map("t", values, numbers=True)
    texts = [text for text in root_of(svg).iter(f"{SPACE}text") if "qkv-heat-text" in text.get("class")]
    assert [text.text for text in texts] == [f"{n / 20:.2f}" for n in range(21)]
    for cell, text in zip(cells_of(svg)[0], texts, strict=True):
        assert contrast(cell.get("fill"), text.get("fill")) >= 4.5
        step = cell.get("class").removeprefix("qkv-heat-")
        assert text.get("class") == f"qkv-heat-text-{step}"
        dark = [re.search(rf"\.qkv-heat-{kind}{step}{{fill:(#\w+)}}", theme.STYLE)[1] for kind in ("", "text-")]
        assert contrast(*dark) >= 4.5
    assert float(root_of(svg).get("width")) > 320  # wider rather than unreadable


@pytest.mark.parametrize(("ramp", "paper"), [(theme.HEAT, theme.PAPER), (theme.DARK_HEAT, theme.DARK_PAPER)])
def test_each_step_of_colour_is_further_from_the_paper(ramp, paper):
    apart = [contrast(colour, paper) for colour in ramp]
    assert len(ramp) == theme.HEAT_STEPS == 21
    assert all(b > a * 1.04 for a, b in itertools.pairwise(apart))


@pytest.mark.slow
def test_long_names_are_cut_and_crowded_ones_left_out():
    long = ["incomprehensibilities of the third kind"] * 3
    svg = heat_map("t", [[1, 2, 3]] * 3, rows=long, columns=long)
    assert "incompre" in svg
    assert "…</text>" in svg
    ticks = [t for t in root_of(heat_map("t", [[0.5] * 90] * 90)).iter(f"{SPACE}text") if "tick-y" in t.get("class")]
    assert 10 < len(ticks) < 40


def test_a_thumbnail_averages_what_is_too_large():
    values = np.arange(96 * 144, dtype=float).reshape(96, 144) / (96 * 144)
    svg = small_map(values, title="layer 1, head 2", high=1)
    root = root_of(svg)
    assert root.findtext(f"{SPACE}title") == "layer 1, head 2, 96 by 144, averaged over blocks of 2 by 3"
    assert (root.get("viewBox"), root.get("width"), root.get("height")) == ("0 0 48 48", "64", "64")
    steps = np.round(values.reshape(48, 2, 48, 3).mean((1, 3)) * 20).astype(int)
    found = np.zeros((48, 48), int)
    for path in root.iter(f"{SPACE}path"):
        step = int(path.get("class").removeprefix("qkv-heat-line-"))
        assert path.get("stroke") == theme.HEAT[step]
        for x, y, run in re.findall(r"M(\d+) (\d+)\.5h(\d+)", path.get("d")):
            found[int(y), int(x) : int(x) + int(run)] = step
    assert (found == steps).all()


def test_a_thumbnail_leaves_masked_cells_out_of_averages():
    values = [[1.0, math.nan] * 48] * 96
    svg = small_map(values, masked=[[False, True] * 48] * 96, high=1)
    assert 'qkv-heat-line-20" d="M0 0.5h48' in svg
    causal = small_map([[1, 0], [0.5, 0.5]], masked=[[False, True], [False, False]], size=24)
    assert 'class="qkv-grid" d="M1 0.5h1"' in causal
    assert root_of(small_map([[1, 2, 3]])).get("height") == "21.33"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"values": []}, ShapeError, "nothing"),
        ({"values": [[]]}, ShapeError, "at least one"),
        ({"values": [[1, 2], [3]]}, ShapeError, "equal numbers of values"),
        ({"values": 3}, OptionTypeError, "a list of rows"),
        ({"values": [["a"]]}, OptionTypeError, "a number"),
        ({"values": [[1]], "masked": [[True, False]]}, ShapeError, "1 by 1"),
        ({"values": [[1]], "rows": ["a", "b"]}, ShapeError, "rows"),
        ({"values": [[1]], "columns": "a"}, OptionTypeError, "columns"),
        ({"values": [[1]], "low": 2, "high": 1}, OptionError, "low below high"),
        ({"values": [[1]], "low": math.nan}, OptionError, "finite"),
        ({"values": [[1]], "width": 10}, OptionError, "240"),
        ({"values": [[1]], "width": "wide"}, OptionTypeError, "pixels"),
        ({"values": [[1]], "note": 3}, OptionTypeError, "note"),
        ({"values": [[1] * 200] * 200}, OptionError, "small_map"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        heat_map("t", **given)
