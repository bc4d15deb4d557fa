"""Solve in a browser: pasted, understood, corrected in the record, solved anew, and followed into another view."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from qkv.exercises import Exercise, solve

pytestmark = pytest.mark.slow

CACHE = (
    "A model has 32 layers, 32 query heads, 8 key/value heads of width 128. How large is its KV cache at 4096 tokens?"
)


def put(page, path: str, text: str) -> None:
    """Types into a field of the record, as one does, and leaves it."""
    place = page.locator(f'[data-record="{path}"]')
    place.fill(text)
    counted = page.locator("#view").get_attribute("data-computed")
    place.press("Enter")
    page.wait_for_function("before => document.getElementById('view').dataset.computed !== before", arg=counted)


def test_a_corrected_record_is_solved_anew_and_restored(opened, ready):
    page = opened("solve")
    put(page, "givens.2.value", "[[1], [2], [5]]")
    put(page, "conventions.scale", "none")
    assert page.evaluate("document.activeElement.dataset.record") == "conventions.scale"
    record = json.loads(page.locator("#f-record").input_value())
    assert record["givens"][2]["value"] == [[1], [2], [5]]
    (part,) = solve(Exercise.from_plain(record)).parts
    assert part.answer is not None
    first = page.locator(".solution aside").text_content()
    assert str(float(part.answer.value[0][0]))[:5] in first
    page.reload()
    ready(page)
    assert page.locator(".solution aside").text_content() == first
    page.go_back()
    ready(page)
    assert page.locator(".solution aside").text_content() != first
    page.locator("#as-read").click()
    expect(page.locator("#understood-title")).to_have_text("Understood")
    with page.expect_navigation():
        page.get_by_role("link", name="Walk").last.click()
    ready(page)
    assert page.locator("#f-scale").input_value() == "root"
    assert "2.555" in page.locator("#result").text_content()


def test_what_is_missing_can_be_added(opened, edit):
    page = opened("solve")
    edit(page, "question", CACHE)
    expect(page.locator(".solution")).to_contain_text("format of numbers")
    before = len(json.loads(page.locator("#record").get_attribute("data-json"))["givens"])
    page.locator("#record-add").select_option("givens")
    expect(page.locator("[data-drop]")).to_have_count(before + 1)
    put(page, f"givens.{before}.role", "dtype")
    put(page, f"givens.{before}.value", "float32")
    expect(page.locator(".solution aside")).to_contain_text("1.0737 GB")
    page.locator("[data-drop]").last.click()
    expect(page.locator("[data-drop]")).to_have_count(before)
    # What cannot be read is said, and kept until it is corrected.
    page.locator('[data-record="givens.0.role"]').fill("nothing")
    page.locator('[data-record="givens.0.role"]').press("Enter")
    expect(page.locator("#p-record")).to_contain_text("givens.0.role")
    put(page, "givens.0.role", "layers")
    expect(page.locator("#p-record")).to_be_hidden()
    edit(page, "question", "Let Q = [[1, 2]] and K = [[1, 1], [0, 3]]. Compute the scores.")
    assert page.locator("#f-record").input_value() == ""
    edit(page, "answer", "[[3, 6]]")
    expect(page.locator("#verdict")).to_have_class("verdict verdict-right")
    assert page.locator(".solution aside").count() == 0
