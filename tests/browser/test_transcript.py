"""Transcript in a browser: a dropped chat is graded, and marks lead to verdicts and back while the address stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from qkv.grading import grade
from qkv.reading import read_chat

pytestmark = pytest.mark.slow

DROP = """([place, text]) => { const data = new DataTransfer(); data.items.add(new File([text], "a.md"));
for (const kind of ["dragover", "drop"]) document.querySelector(place).dispatchEvent(
  new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true})); }"""
CHAT = Path(__file__).parents[1] / "grading" / "first" / "09-by-hand-boxed.md"


def test_a_file_is_graded_as_the_library_does(opened, ready):
    page = opened("transcript")
    before = page.locator("#view").get_attribute("data-computed")
    page.locator("input[type=file][data-into=chat]").set_input_files(CHAT)
    page.wait_for_function("before => document.getElementById('view').dataset.computed !== before", arg=before)
    ready(page)
    assert page.locator("#f-chat").input_value() == CHAT.read_text(encoding="utf-8")
    report = grade(read_chat(CHAT))
    rows = page.locator(".ledger tbody tr")
    assert rows.count() == len(report.rows)
    for row, graded in zip(rows.all(), report.rows, strict=True):
        expect(row).to_contain_text(graded.status)
        if graded.first_right is not None:
            assert row.locator("data").first.get_attribute("value") == str(graded.first_right + 1)
    assert page.locator(".claim").count() == sum(len(row.claims) for row in report.rows)


@pytest.mark.parametrize("place", ["body", "#result", "#f-chat"])
def test_what_is_dropped_anywhere_is_what_is_graded_and_shown(opened, ready, place):
    page = opened("transcript")
    before = page.locator("#view").get_attribute("data-computed")
    page.evaluate(DROP, [place, "Student: What is 3 + 4?\n\nTutor: It is 7 and nothing else."])
    page.wait_for_function("before => document.getElementById('view').dataset.computed !== before", arg=before)
    ready(page)
    turns = [turn.inner_text() for turn in page.locator(".turn .words").all()]
    assert [" ".join(turn.split()) for turn in turns] == ["What is 3 + 4?", "It is 7 and nothing else."]
    page.reload()
    ready(page)
    assert "It is 7 and nothing else." in page.locator(".talk").inner_text()


def test_a_sheet_dropped_on_its_field_is_the_sheet(opened, ready):
    page = opened("transcript")
    page.evaluate(DROP, ["#f-sheet", "1. Let q and k be vectors.\n\n(a) Compute E[q^T k]."])
    page.wait_for_function("() => document.getElementById('f-sheet').value.startsWith('1. Let')")
    ready(page)
    assert page.locator("#f-chat").input_value() == ""


def test_marks_lead_to_verdicts_and_back_by_pointer_and_keys(opened):
    page = opened("transcript")
    address = page.url
    mark = page.locator(".words .notes a").first
    mark.click()
    assert page.evaluate("document.activeElement.id") == "claim-1-1"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "turn-5"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "claim-1-1"
    assert page.url == address


def test_markup_in_a_chat_is_shown_and_not_run(opened, edit):
    page = opened("transcript")
    edit(
        page,
        "chat",
        "Student: why is &lt;img src=x onerror=alert(1)&gt; here?\n\nTutor: <script>alert(2)</script> it is not.",
    )
    expect(page.locator(".turn-student")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("#result img, #result script").count() == 0
