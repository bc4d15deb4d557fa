"""Bars: where they stand, what they say, and what they refuse."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import OptionError, OptionTypeError, ShapeError
from qkv.figures import Axis, Bars, Level, Line, chart
from qkv.figures.theme import COLOURS

SPACE = "{http://www.w3.org/2000/svg}"
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


def frame_of(svg):
    root = ElementTree.fromstring(svg.encode())
    (frame,) = [each for each in root.iter() if "qkv-frame" in each.get("class", "")]
    left, top, width, height = (float(frame.get(key, "")) for key in ("x", "y", "width", "height"))
    return left, top, left + width, top + height


def test_bars_stand_on_zero_between_their_edges():
    svg = chart("t", Axis("x", low=0, high=10), Axis("y", low=-5, high=5), [Bars("b", [0, 5, 10], [5, -2.5])])
    left, top, right, bottom = frame_of(svg)
    middle, zero = (left + right) / 2, (top + bottom) / 2
    (first, _), (second, _) = drawn(svg)
    assert first == pytest.approx((left, top, middle, zero), abs=0.03)
    assert second == pytest.approx((middle, zero, right, (zero + bottom) / 2), abs=0.03)


def test_zero_is_on_the_axis_unless_it_is_a_log_axis():
    (box, _), *_ = drawn(svg := chart("t", Axis("x"), Axis("y"), [Bars("b", [0, 1, 2], [90, 100])]))
    _, top, _, bottom = frame_of(svg)
    assert box[3] == pytest.approx(bottom, abs=0.03)
    assert box[1] == pytest.approx(bottom - 0.9 * (bottom - top), abs=0.03)
    (box, _), *_ = drawn(svg := chart("t", Axis("x"), Axis("y", scale="log"), [Bars("b", [0, 1, 2], [90, 100])]))
    assert box[3] == pytest.approx(frame_of(svg)[3], abs=0.03)


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
    frame = frame_of(svg)
    boxes = [box for box, _ in drawn(svg)]
    assert len(boxes) == 2
    assert boxes[1][1] == pytest.approx(frame[1], abs=0.03)
    assert "Left out: 4 points (1 not finite, 3 outside the axes)." in svg


@settings(max_examples=60)
@given(bars, st.sampled_from(["linear", "log"]), st.sampled_from(["linear", "log"]))
def test_any_bars_stay_in_the_frame(mark, x, y):
    svg = chart("t", Axis("x", scale=x), Axis("y", scale=y), [mark, Level("mean", y=1)])
    left, top, right, bottom = frame_of(svg)
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
