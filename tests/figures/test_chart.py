"""Charts: marks are drawn at their values, nothing overlaps, and bad input is refused; bars and rooflines."""

import math
import re
import subprocess
import sys
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import OptionError, OptionTypeError, QkvError, ShapeError
from qkv.figures import Axis, Bars, Dots, Level, Line, chart, roofline
from qkv.figures.svg import LINE, text_width
from qkv.figures.theme import COLOURS

SPACE = "{http://www.w3.org/2000/svg}"

values = st.one_of(
    st.floats(),
    st.floats(-100, 100),
    st.floats(1e-9, 1e15),
    st.sampled_from([0.0, 1.0, 1024.0, 131072.0]),
    st.integers(),
)
points = st.lists(st.tuples(values, values), max_size=7)
names = st.text(st.characters(codec=None), min_size=1, max_size=90).filter(lambda name: bool(name.split()))
marks = st.one_of(
    st.builds(Line, names, points, st.booleans()),
    points.flatmap(lambda p: st.builds(Dots, names, st.just(p), st.lists(names, min_size=len(p), max_size=len(p)))),
    st.builds(Dots, names, points),
    st.builds(lambda name, y: Level(name, y=y), names, values),
    st.builds(lambda name, x: Level(name, x=x), names, values),
)
axes = st.builds(
    Axis,
    st.sampled_from(["", "context", "time <&>"]),
    st.sampled_from(["", "s", "tokens"]),
    st.sampled_from(["linear", "log"]),
)
few = settings(max_examples=60)


def parse(svg):
    return ElementTree.fromstring(svg.encode())


def having(root, name):
    return [element for element in root.iter() if name in element.get("class", "").split()]


def frame_of(root):
    (frame,) = having(root, "qkv-frame")
    left, top, width, height = (float(frame.get(key) or 0) for key in ("x", "y", "width", "height"))
    return left, top, left + width, top + height


def plotted(root):
    """Every place in the plot where something is drawn."""
    for marks in having(root, "qkv-marks"):
        for element in marks.iter():
            place = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
            if place:
                yield float(place[1]), float(place[2])
            elif element.get("cx"):
                yield float(element.get("cx", "")), float(element.get("cy", ""))
            elif element.tag == f"{SPACE}path":
                for x, y in re.findall(r"[ML](\S+?) (\S+?)(?=[ML]|$)", element.get("d", "")):
                    yield float(x), float(y)


def text_boxes(element):
    """(left, top, right, bottom) of each line of a text, by the estimate of its letters."""
    size = float(element.get("font-size", ""))
    for line in element.findall(f"{SPACE}tspan") or [element]:
        x, y, width = float(line.get("x", "")), float(line.get("y", "")), text_width(line.text or "", size)
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor", "start")]
        yield left, y - 0.8 * size, left + width, y + 0.2 * size


def apart(a, b):
    return a[2] <= b[0] + 0.1 or b[2] <= a[0] + 0.1 or a[3] <= b[1] + 0.1 or b[3] <= a[1] + 0.1


@pytest.mark.slow
@few
@given(axes, axes, st.lists(marks, max_size=6), names, st.integers(240, 900), st.integers(160, 700))
def test_any_chart(x, y, shown, title, width, height):
    svg = chart(title, x, y, shown, "a note", width, height)
    assert svg == chart(title, x, y, shown, "a note", width, height)
    root = parse(svg)
    assert root.tag == f"{SPACE}svg"
    assert root.get("role") == "img"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert root.get("aria-labelledby", "").split() == ids

    left, top, right, bottom = frame_of(root)
    assert 0 < left < right < width
    assert 0 < top < bottom < float(root.get("height", ""))
    for px, py in plotted(root):
        assert left - 0.1 <= px <= right + 0.1
        assert top - 0.1 <= py <= bottom + 0.1

    for side, low, high in (("x", left, right), ("y", top, bottom)):
        ticks = having(root, f"qkv-tick-{side}")
        assert ticks
        boxes = [box for tick in ticks for box in text_boxes(tick)]
        assert all(apart(a, b) for a, b in combinations(boxes, 2))
        at = [float(tick.get(side, "")) for tick in ticks]
        assert at == sorted(at, reverse=side == "y")
        assert low - 5 <= min(at)
        assert max(at) <= high + 5

    everything = [box for text in root.iter(f"{SPACE}text") for box in text_boxes(text)]
    assert all(
        a >= -1 and c <= width + 1 and b >= 0 and d <= float(root.get("height", "")) for a, b, c, d in everything
    )
    below = [
        box for legend in having(root, "qkv-legend") for text in legend.iter(f"{SPACE}text") for box in text_boxes(text)
    ]
    below += [box for name in ("qkv-note", "qkv-tick-x") for text in having(root, name) for box in text_boxes(text)]
    assert all(apart(a, b) for a, b in combinations(below, 2))
    assert all(box[1] >= bottom for box in below)
    labels = [box for text in having(root, "qkv-label") for box in text_boxes(text)]
    assert all(apart(a, b) for a, b in combinations(labels, 2))
    assert not any(a < px < c and b < py < d for a, b, c, d in labels for px, py in plotted(root))

    for element in root.iter():
        assert not {"style", "href", "onclick"} & set(element.attrib)
        assert element.tag not in (f"{SPACE}script", f"{SPACE}style", f"{SPACE}image")


def test_points_stand_where_their_values_are():
    root = parse(
        chart(
            "t", Axis("x", low=0, high=11), Axis("y", scale="log", low=1, high=100), [Dots("d", [(5.5, 10), (11, 1)])]
        )
    )
    left, top, right, bottom = frame_of(root)
    assert list(plotted(root)) == [
        pytest.approx(((left + right) / 2, (top + bottom) / 2), abs=0.02),
        pytest.approx((right, bottom), abs=0.02),
    ]


def titles(svg):
    return [element.text for element in parse(svg).iter(f"{SPACE}title")]


def test_marks_say_what_they_are():
    svg = chart(
        "t",
        Axis("context", "tokens", "log"),
        Axis("time", "s"),
        [
            Line("ours", [(1024, 0.0021), (4096, 0.013)]),
            Dots("seen", [(2048, 0.005)], ["here"]),
            Level("goal", y=0.007),
        ],
    )
    assert {
        "ours: context 1024 tokens, time 2.1 ms",
        "ours: context 4096 tokens, time 13 ms",
        "seen, here: context 2048 tokens, time 5 ms",
        "goal: time 7 ms",
    } <= set(titles(svg))
    (about,) = parse(svg).iter(f"{SPACE}desc")
    assert about.text == (
        "Across: context, log scale, 931 tokens to 4.51k tokens. Upwards: time, linear scale, 0 s to 14 ms. "
        "Line ours: 2 points, time 2.1 ms to 13 ms. Dots seen: 1 point, time 5 ms. Reference line goal: time 7 ms."
    )


def test_what_cannot_be_drawn_is_counted():
    bad = [(1, 0), (2, -3), (3, math.nan), (math.inf, 5), (5, 7), (10**400, 7), (700, 11)]
    svg = chart("t", Axis("x", high=13), Axis("y", scale="log"), [Line("a", bad), Level("b", y=-1)], "A note.")
    assert "A note. Left out: 7 points (3 not finite, 1 outside the axes, 3 zero or negative on a log axis)." in svg


def test_a_gap_breaks_the_line():
    svg = chart("t", Axis("x"), Axis("y"), [Line("a", [(1, 2), (2, 3), (3, math.nan), (5, 7), (7, 11)])])
    (path,) = [p for g in having(parse(svg), "qkv-series") for p in having(g, "qkv-line")]
    assert path.get("d", "").count("M") == 2


def test_lines_are_cut_at_the_frame():
    root = parse(chart("t", Axis("x", low=2, high=3), Axis("y", low=0, high=1), [Line("a", [(0, 0), (5, 1)])]))
    left, top, right, bottom = frame_of(root)
    (ax, ay), (bx, by) = plotted(root)
    assert (ax, bx) == pytest.approx((left, right), abs=0.02)
    assert [(bottom - y) / (bottom - top) for y in (ay, by)] == pytest.approx([0.4, 0.6], abs=1e-3)


@pytest.mark.parametrize("shown", [[], [Line("a", [])], [Dots("a", [(math.nan, 1)])]])
def test_nothing_to_draw_is_said(shown):
    svg = chart("t", Axis("x", scale="log"), Axis("y"), shown)
    assert "nothing to draw" in svg
    assert ("a (no points)" in svg) == bool(shown)


def test_long_lines_have_few_markers_and_many_places_to_point_at():
    root = parse(chart("t", Axis("x"), Axis("y"), [Line("a", [(n, math.sin(n / 97)) for n in range(2003)])]))
    marks = having(root, "qkv-series")[0]
    assert 2 <= len(having(marks, "qkv-marker")) <= 40
    assert 40 <= len(having(marks, "qkv-pointer")) <= 400


def test_a_long_legend_makes_the_figure_higher():
    lines = [Line(f"series {n} with a name", [(1, n), (2, n + 1)]) for n in range(73)]
    root = parse(chart("t", Axis("x"), Axis("y"), lines, width=360, height=300))
    _, top, _, bottom = frame_of(root)
    assert bottom - top >= 150
    assert float(root.get("height", "")) > 1000
    assert len(having(root, "qkv-legend-name")) == 73


def test_many_labels_stay_with_the_pointer():
    dots = Dots("d", [(n % 11, n % 7) for n in range(53)], [f"label {n}" for n in range(53)])
    assert "Labels that show when a dot is pointed at: 13 more." in chart("t", Axis("x"), Axis("y"), [dots], width=900)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"title": ""}, OptionError),
        ({"title": None}, OptionTypeError),
        ({"x_axis": "x"}, OptionTypeError),
        ({"marks": ["a"]}, OptionTypeError),
        ({"note": 3}, OptionTypeError),
        ({"width": 239}, OptionError),
        ({"width": "wide"}, OptionTypeError),
        ({"height": math.nan}, OptionError),
        ({"marks": [Dots("d", [(1, 2)] * 20_001)]}, OptionError),
    ],
)
def test_what_no_chart_can_be(change, error):
    options = {"title": "t", "x_axis": Axis("x"), "y_axis": Axis("y"), "marks": [], **change}
    with pytest.raises(error, match="wanted"):
        chart(**options)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Line("a", 3), OptionTypeError),
        (lambda: Line("a", [(1, 2, 3)]), ShapeError),
        (lambda: Line("a", [(1, "2")]), OptionTypeError),
        (lambda: Line(" ", []), OptionError),
        (lambda: Line(7, []), OptionTypeError),
        (lambda: Dots("a", [(1, 2)], ["b", "c"]), ShapeError),
        (lambda: Dots("a", [(1, 2)], "b"), OptionTypeError),
        (lambda: Level("a"), OptionError),
        (lambda: Level("a", x=1, y=2), OptionError),
        (lambda: Level("a", x="1"), OptionTypeError),
    ],
)
def test_what_no_mark_can_be(make, error):
    with pytest.raises(error, match="wanted"):
        make()


def test_legend_lines_keep_their_distance():
    root = parse(chart("t", Axis("x"), Axis("y"), [Line("a very long name " * 9, [(2, 3)])], width=360))
    (name,) = having(root, "qkv-legend-name")
    heights = [float(line.get("y", "")) for line in name]
    assert len(heights) == 3
    assert all(b - a == pytest.approx(13 * LINE, abs=0.02) for a, b in pairwise(heights))
    assert (name[-1].text or "").endswith("…")


def test_it_needs_neither_torch_nor_numpy():
    code = "import sys, qkv.figures; print({'torch', 'numpy', 'sympy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


edges = st.lists(st.floats(-100, 100), max_size=9, unique=True).map(sorted)
heights = st.one_of(st.floats(), st.floats(-5, 5))
bars = edges.flatmap(
    lambda at: st.builds(
        Bars,
        st.just("seen"),
        st.just(at if len(at) > 1 else []),
        st.lists(heights, min_size=max(0, len(at) - 1), max_size=max(0, len(at) - 1)),
    )
)


def drawn(svg):
    """(left, top, right, bottom) and title of each bar in the plot."""
    root = ElementTree.fromstring(svg.encode())
    for group in root.iter():
        if group.get("class", "").startswith("qkv-series"):
            for bar in group.iter(f"{SPACE}rect"):
                x, y, width, height = (float(bar.get(key, "")) for key in ("x", "y", "width", "height"))
                yield (x, y, x + width, y + height), bar.findtext(f"{SPACE}title")


def frame_of_svg(svg):
    root = ElementTree.fromstring(svg.encode())
    (frame,) = [each for each in root.iter() if "qkv-frame" in each.get("class", "")]
    left, top, width, height = (float(frame.get(key, "")) for key in ("x", "y", "width", "height"))
    return left, top, left + width, top + height


def test_bars_stand_on_zero_between_their_edges():
    svg = chart("t", Axis("x", low=0, high=10), Axis("y", low=-5, high=5), [Bars("b", [0, 5, 10], [5, -2.5])])
    left, top, right, bottom = frame_of_svg(svg)
    middle, zero = (left + right) / 2, (top + bottom) / 2
    (first, _), (second, _) = drawn(svg)
    assert first == pytest.approx((left, top, middle, zero), abs=0.03)
    assert second == pytest.approx((middle, zero, right, (zero + bottom) / 2), abs=0.03)


def test_zero_is_on_the_axis_unless_it_is_a_log_axis():
    (box, _), *_ = drawn(svg := chart("t", Axis("x"), Axis("y"), [Bars("b", [0, 1, 2], [90, 100])]))
    _, top, _, bottom = frame_of_svg(svg)
    assert box[3] == pytest.approx(bottom, abs=0.03)
    assert box[1] == pytest.approx(bottom - 0.9 * (bottom - top), abs=0.03)
    (box, _), *_ = drawn(svg := chart("t", Axis("x"), Axis("y", scale="log"), [Bars("b", [0, 1, 2], [90, 100])]))
    assert box[3] == pytest.approx(frame_of_svg(svg)[3], abs=0.03)


def test_bars_say_what_they_are():
    svg = chart(
        "t",
        Axis("time", "s"),
        Axis("share"),
        [Bars("seen", [0.001, 0.002, 0.003], [0.25, 0.5]), Bars("named", [0.001, 0.002], [0.1], ["key 7"])],
    )
    assert [title for _, title in drawn(svg)] == [
        "seen: time 1 ms to 2 ms, share 0.25",
        "seen: time 2 ms to 3 ms, share 0.5",
        "named: key 7, share 0.1",
    ]
    assert "Bars seen: 2 bars, share 0.25 to 0.5. Bars named: 1 bar, share 0.1." in svg
    assert ">seen</text>" in svg


def test_light_colours_are_attributes_and_dark_ones_classes():
    svg = chart("t", Axis("x"), Axis("y"), [Line("a", [(0, 1)]), Bars("b", [0, 1], [1])])
    assert 'class="qkv-bar qkv-fill-1 qkv-stroke-1" x=' in svg
    assert f'fill="{COLOURS[1]}" fill-opacity="0.3" stroke="{COLOURS[1]}"' in svg
    assert svg.index("qkv-bar") < svg.index("qkv-line"), "a line lies over the bars"


def test_what_does_not_fit_is_cut_or_left_out_and_counted():
    bars = Bars("b", [-2, -1, 0, 1, 2, 3], [1, 1, 9, math.nan, 2])
    svg = chart("t", Axis("x", low=-1, high=2), Axis("y", high=3), [bars])
    frame = frame_of_svg(svg)
    boxes = [box for box, _ in drawn(svg)]
    assert len(boxes) == 2
    assert boxes[1][1] == pytest.approx(frame[1], abs=0.03)
    assert "Left out: 4 points (1 not finite, 3 outside the axes)." in svg


@settings(max_examples=60)
@given(bars, st.sampled_from(["linear", "log"]), st.sampled_from(["linear", "log"]))
def test_any_bars_stay_in_the_frame(mark, x, y):
    svg = chart("t", Axis("x", scale=x), Axis("y", scale=y), [mark, Level("mean", y=1)])
    left, top, right, bottom = frame_of_svg(svg)
    for (a, b, c, d), _ in drawn(svg):
        assert left - 0.1 <= a <= c <= right + 0.1
        assert top - 0.1 <= b <= d <= bottom + 0.1


def test_no_bars_are_no_error():
    assert "b (no points)" in chart("t", Axis("x"), Axis("y"), [Bars("b", [], [])])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Bars("a", [1, 2], [1, 2]), ShapeError),
        (lambda: Bars("a", [2, 1], [1]), OptionError),
        (lambda: Bars("a", [1, math.nan], [1]), OptionError),
        (lambda: Bars("a", 3, [1]), OptionTypeError),
        (lambda: Bars("a", [1, 2], ["1"]), OptionTypeError),
        (lambda: Bars(" ", [1, 2], [1]), OptionError),
        (lambda: Bars("a", [1, 2], [1], ["b", "c"]), ShapeError),
        (lambda: Bars("a", [1, 2], [1], "b"), OptionTypeError),
        (lambda: chart("t", Axis("x"), Axis("y"), [Bars("a", range(20_002), [1] * 20_001)]), OptionError),
    ],
)
def test_what_no_bars_can_be(make, error):
    with pytest.raises(error, match="wanted"):
        make()


def tooltips(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SPACE}title")]


def test_the_ridge_is_marked_with_its_value():
    svg = roofline("r", [("here", 42e9, 6e9)])
    assert "ridge 7 flop/byte: arithmetic intensity 7 flop/byte" in tooltips(svg)
    assert ">ridge 7 flop/byte<" in svg
    assert "here: 42 GFLOP/s, 6 GB/s: arithmetic intensity 7 flop/byte, speed 42 GFLOP/s" in tooltips(svg)


def test_several_roofs_are_told_apart():
    svg = roofline("r", [("memory", 40e9, 8e9), ("cache", 40e9, 50e9)], width=720)
    assert ">ridge 5, memory<" in svg
    assert ">ridge 0.8, cache<" in svg


def test_a_roof_is_the_lower_of_the_two():
    titles = tooltips(roofline("r", [("m", 1e12, 1e11)]))
    speeds = [t.rpartition("speed ")[2] for t in titles if t.startswith("m: 1 TFLOP/s") and "speed" in t]
    assert "1 TFLOP/s" in speeds
    assert not any(speed.endswith("PFLOP/s") for speed in speeds)


def test_dots_are_labelled():
    svg = roofline("r", [("m", 40e9, 8e9)], [("decode", 0.5, 3e9), ("prefill", 90, 31e9)])
    assert ">decode<" in svg
    assert ">prefill<" in svg
    assert "measured, decode: arithmetic intensity 0.5 flop/byte, speed 3 GFLOP/s" in tooltips(svg)


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
