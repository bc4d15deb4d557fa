"""Practice in a browser: judged while it is typed, helped by pointer and by keys, and begun afresh with a question."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from qkv.exercises import bank
from qkv.exercises.checking import check
from qkv.exercises.solving import solve_part

pytestmark = pytest.mark.slow


def right(exercise, label: str) -> str:
    found = solve_part(exercise, exercise.only(label).asked[0]).answer
    assert found is not None
    return found.text


def test_an_answer_is_judged_while_it_is_typed(opened, edit, ready):
    page = opened("practice", exercise="scaling")
    exercise = bank.named("scaling")
    page.get_by_role("button", name="Part (b)").click()
    ready(page)
    verdict = page.locator("#verdict")
    for answer in (r"d \sigma^2", right(exercise, "b")):
        edit(page, "answer", answer)
        outcome = check(exercise, "b", answer)
        expect(verdict).to_have_class(f"verdict verdict-{outcome.kind}")
        assert all(each.words(spoilers=bool(outcome)) in verdict.inner_text() for each in outcome.findings)
        assert page.locator("#live").text_content() == verdict.get_attribute("data-said")
    assert page.locator(".read math").count() == 1
    edit(page, "answer", "what <b>now</b> $")
    expect(page.locator("#verdict b")).to_have_count(0)
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        places = [page.locator(each).bounding_box()["y"] for each in (".question", "#f-answer", "#verdict")]
        assert places == sorted(places)


def test_another_question_begins_afresh(opened, edit, shown):
    page = opened("practice", exercise="scaling", part="b", answer="d", hint=2, solution="yes")
    edit(page, "exercise", "argmax")
    assert page.locator("#f-part").input_value() == ""
    assert page.locator("#f-answer").input_value() == ""
    assert page.locator("#verdict").count() == 0
    edit(page, "seed", "7")
    exercise = bank.named("argmax", 7)
    assert shown(page)["seed"] == ("7", "7")
    assert shown(page)["parts_in_all"][0] == str(len(exercise.asked))
    edit(page, "answer", right(exercise, "a"))
    expect(page.locator("#verdict")).to_have_class("verdict verdict-right")
    edit(page, "part", "z")
    assert "it has a, b" in page.locator("#p-part").text_content()
    assert page.locator("#f-answer").input_value() == right(exercise, "a")


def test_keys_alone_get_hints_the_solution_and_the_next_part(opened, ready, shown):
    page = opened("practice", exercise="scaling")
    exercise = bank.named("scaling")
    page.locator("#more-hints").focus()
    for strength in (1, 2):
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => document.querySelectorAll('#hints-title + ol li').length === {strength}")
        ready(page)
        assert page.evaluate("document.activeElement.id") == "more-hints"
    assert shown(page)["hints_given"][0] == "2"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".solution")).to_contain_text("Answer:")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("button[aria-pressed=true]")).to_contain_text("(b)")
    assert page.locator(".solution").count() == 0
    page.locator("#f-answer").focus()
    page.keyboard.type(right(exercise, "b"))
    expect(page.locator("#verdict")).to_have_class("verdict verdict-right")


def test_parts_that_were_answered_right_are_remembered(opened, edit):
    page = opened("practice", exercise="argmax")
    assert page.locator(".parts .done").count() == 0
    edit(page, "answer", right(bank.named("argmax"), "a"))
    expect(page.locator(".parts .done")).to_have_count(1)
    expect(page.locator("#done")).to_have_text("Answered right: 1 of 2.")
    page.reload()
    expect(page.locator(".parts .done")).to_have_count(1)
    edit(page, "seed", "3")
    expect(page.locator(".parts .done")).to_have_count(0)


def test_boxes_are_ticked_by_keys(opened, ready):
    page = opened("practice", exercise="norms", part="a(i)")
    for option in ("#option-1", "#option-3"):
        page.focus(option)
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => document.querySelector('{option}').getAttribute('aria-checked') === 'true'")
        ready(page)
    assert page.locator("#f-answer").input_value() == "(i), (iii)"
    expect(page.locator("#verdict")).to_have_class("verdict verdict-right")
