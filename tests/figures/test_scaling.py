"""The scaling chart: lines are the plan's own numbers, points stand with what was predicted for them."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from qkv.cost import plan
from qkv.cost.communication import Link, Point, write_points
from qkv.figures.plans import clearest, picture, scaling_chart, scaling_table

LINK = Link(1e9, 1e-5, 4e10, measured=True)
POINT = Point("ring", 2, 4096, 0.5, 1 << 20, link=LINK)
POINTS = [replace(POINT, ranks=1, seconds=0.9, bytes=0, link=None), POINT, replace(POINT, ranks=4, seconds=0.3)]


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def found():
    return plan("gpt-2", "t4", machines=24, link="10gbe").scaling


def test_every_split_has_a_line_under_the_ideal(found):
    svg = scaling_chart("mine", found)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    for name in ("ideal", "ring", "gather", "heads", "linear attention, scan"):
        assert f">{name}<" in svg
    for words in ("Speed over machines: mine", "machines", "times as fast as one", "1.18 GB/s", "30 µs"):
        assert words in svg
    last = found.rows[-1]
    assert last.efficiency <= 1
    assert "measured" not in svg


def test_points_and_what_was_predicted(found):
    svg = scaling_chart("mine", found, POINTS)
    assert "ring, 4,096 tokens here: measured" in svg
    assert "ring, 4,096 tokens here: predicted" in svg
    assert "2 ranks: × 1.80" in svg
    assert "4 ranks: × 3.00" in svg
    assert "measured, 2 ranks: × 1.80: machines 2, times as fast as one 1.8<" in svg
    ring = {row.machines: row.splits["ring"].seconds for row in found.rows}
    assert f"ring: machines 4, times as fast as one {ring[1] / ring[4]:.4g}" in svg
    # Without the call in one process nothing can be compared, without a link nothing is predicted.
    assert "measured" not in scaling_chart("mine", found, POINTS[1:])
    bare = scaling_chart("mine", found, [POINTS[0], replace(POINT, link=None)])
    assert "here: measured" in bare
    assert "here: predicted" not in bare


def test_one_call_by_one_split_is_the_clearest():
    longer = [replace(point, tokens=8192) for point in POINTS]
    heads = [replace(POINT, split="heads"), replace(POINT, tokens=8192, split="heads", ranks=4)]
    learnt = [replace(point, tokens=16384, learns=True) for point in POINTS]
    alone = [replace(POINT, tokens=32768)]  # nothing to compare with
    every = sorted(
        [*POINTS, *longer, *heads, *learnt, *alone], key=lambda point: (*map(repr, point.sizes), point.ranks)
    )
    assert clearest(every) == longer
    assert clearest(heads) == []
    assert [point.split for point in clearest([POINTS[0], heads[0]])] == ["ring", "heads"]


def test_one_machine_can_be_drawn():
    assert "ideal" in scaling_chart("mine", plan("gpt-2", "t4", machines=1).scaling)


def test_the_table_has_a_row_for_each(found):
    table = scaling_table("mine", found)
    assert [row[0] for row in table.rows] == ["1", "2", "4", "8", "16", "24"]
    assert table.rows[1][table.header.index("best")] == found.rows[1].best


def test_a_plans_picture_has_it():
    write_points(POINTS)
    plans = [plan("gpt-2", "t4", machines=4)]
    svg, html = picture(plans, html=False), picture(plans, html=True)
    for text in (svg, html):
        assert "Speed over machines: gpt-2 on t4" in text
        assert "here: measured" in text
    assert "Spread over machines: gpt-2 on t4" in html
    assert "Speed over machines" not in picture([plan("gpt-2", "t4")], html=False)


def test_the_note_has_the_context_of_its_own_plan():
    plans = [plan(name, "t4", context=context, machines=4) for name, context in (("gpt-2", 389), ("llama-3-8b", 4099))]
    svg = picture(plans, html=False).split("Speed over machines: ")
    of = {part.split(" on ")[0]: part for part in svg[1:] if "context" in part}
    assert "context 389, " in of["gpt-2"]
    assert "context 4,099, " in of["llama-3-8b"]
    assert "389 or 4,099" not in "".join(of.values())


def test_the_legend_has_markers_where_lines_have(found):
    root = ElementTree.fromstring(scaling_chart("mine", found, POINTS))
    entries = [each for each in root.iter() if each.get("class") == "qkv-legend-entry"]
    marked = {
        "".join(entry.itertext()): any("qkv-marker" in (each.get("class") or "") for each in entry.iter())
        for entry in entries
    }
    plain = {name for name, has in marked.items() if not has}
    assert plain == {"ideal", "ring, 4,096 tokens here: predicted"}
    assert len(marked) == 7
