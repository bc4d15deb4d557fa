"""Charts of plans: curves and dots are the numbers of the plan, and both charts are in one file."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from qkv.cost import plan
from qkv.cost.communication import Link, Point, write_points
from qkv.cost.planning import roofs, times_over_context
from qkv.figures.plans import clearest, picture, roofs_chart, scaling_chart, scaling_table, time_chart


@pytest.mark.parametrize("name", ["llama-3-8b", "bert-base", "t5-base", "deepseek-v3", "falcon-7b"])
def test_curves_meet_the_plan_at_its_context(name):
    found = plan(name, "t4", context=1024, batch=3)
    curves = times_over_context([found])
    assert [curve.name for curve in curves] == [*found.variants]
    for curve in curves:
        assert dict(curve.points)[1024] == pytest.approx(found.variants[curve.name].seconds_per_token, rel=1e-12)
    assert [curve.as_is for curve in curves].count(True) == 1


def test_several_plans_have_a_curve_and_a_dot_each():
    plans = [plan(name, machine) for name in ("gpt-2", "llama-3-8b") for machine in ("t4", "m1")]
    names = [f"{each.model.name} on {each.hardware.name}" for each in plans]
    assert [curve.name for curve in times_over_context(plans)] == names
    assert [dot[0] for dot in roofs(plans).counted] == names


def test_dots_are_under_the_roof():
    found = plan("mixtral-8x7b", "h100-sxm", batch=64)
    tops, dots, measured = roofs([found])
    (_, flops, bandwidth), *others = tops
    assert not others
    assert not measured
    assert [name for name, _, _ in dots] == ["a token", "attention", "projections", "feed-forward", "logits"]
    for _, intensity, speed in dots:
        assert speed <= min(flops, intensity * bandwidth) * (1 + 1e-12)


def test_charts_say_what_they_are_of():
    found = plan("bert-base", "t4", context=512)
    chart = time_chart("mine", times_over_context([found]), [512], "a note", decodes=False)
    assert "Time of a pass over context: mine" in chart
    assert "a note" in chart
    assert "Roofline: mine" in roofs_chart("mine", roofs([found]))
    assert "1 token<" in time_chart("mine", times_over_context([found]), [1])


def test_files():
    found = [plan("gpt-2", "t4")]
    assert ElementTree.fromstring(picture(found, html=False).partition("\n")[2]).tag.endswith("svg")
    html = picture(found, html=True)
    assert html.startswith("<!doctype html>")
    assert "Where the time goes: gpt-2 on t4" in html


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
    assert "Split over machines: gpt-2 on t4" in html
    assert "Speed over machines" not in picture([plan("gpt-2", "t4")], html=False)


def test_the_note_has_the_context_of_its_plan():
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
