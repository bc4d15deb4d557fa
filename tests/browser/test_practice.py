"""Practice in a browser: judged while it is typed, helped by pointer and by keys, and begun afresh with a question."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from qkv.problems import named
from qkv.problems.discreet import discreet_reason

pytestmark = pytest.mark.slow


def test_an_answer_is_judged_while_it_is_typed(opened, edit, ready):
    page = opened("practice", problem="scaling")
    part = named("scaling").part("b")
    page.get_by_role("button", name="Part (b)").click()
    ready(page)
    verdict = page.locator("#verdict")
    for answer in (part.misconceptions[0].planted, part.answer.text):
        edit(page, "answer", answer)
        outcome = part.check(answer)
        expect(verdict).to_have_class(f"verdict verdict-{outcome.kind}")
        assert (discreet_reason(outcome, part) if not outcome else outcome.reason) in verdict.inner_text()
        assert page.locator("#live").text_content() == verdict.get_attribute("data-said")
    assert page.locator(".read math").count() == 1
    edit(page, "answer", "what <b>now</b> $")
    expect(page.locator("#verdict b")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    places = [page.locator(each).bounding_box()["y"] for each in (".question", "#f-answer", "#f-problem", "#verdict")]
    assert places == sorted(places)


def test_another_question_begins_afresh(opened, edit, shown):
    page = opened("practice", problem="heads", part="b(ii)", answer="padding", hint=2, solution="yes")
    edit(page, "problem", "argmax")
    assert page.locator("#f-part").input_value() == ""
    assert page.locator("#f-answer").input_value() == ""
    assert page.locator("#verdict").count() == 0
    edit(page, "seed", "7")
    problem = named("argmax", 7)
    assert shown(page)["seed"] == ("7", "7")
    assert shown(page)["parts_in_all"][0] == str(len(problem.parts))
    edit(page, "answer", problem.parts[0].answer.text)
    expect(page.locator("#verdict")).to_have_class("verdict verdict-right")
    edit(page, "part", "z")
    assert "argmax has the parts a, b" in page.locator("#p-part").text_content()
    assert page.locator("#f-answer").input_value() == problem.parts[0].answer.text


def test_keys_alone_get_hints_the_solution_and_the_next_part(opened, ready, shown):
    page = opened("practice", problem="norms")
    first, second = named("norms").parts[:2]
    page.locator("#more-hints").focus()
    for strength in (1, 2):
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => document.querySelectorAll('#hints-title + ol li').length === {strength}")
        ready(page)
        assert page.evaluate("document.activeElement.id") == "more-hints"
    assert shown(page)["hints_given"][0] == "2"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".solution")).to_contain_text(first.answer.text)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("button[aria-pressed=true]")).to_contain_text("(a)(ii)")
    assert second.name == "a(ii)"
    assert page.locator(".solution").count() == 0
    page.locator("#f-answer").focus()
    page.keyboard.type(second.answer.text)
    expect(page.locator("#verdict")).to_have_class("verdict verdict-right")
