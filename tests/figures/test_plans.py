"""Charts of plans: the curves and dots are the plan's own numbers, and both charts are one file."""

from xml.etree import ElementTree

import pytest

from qkv.cost import plan
from qkv.cost.planning import roofs, times_over_context
from qkv.figures.plans import picture, roofs_chart, time_chart


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
