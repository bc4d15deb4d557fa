"""Transcript in a browser: a dropped chat is graded, and marks lead to verdicts and back while the address stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from qkv.grading import grade
from qkv.reading import read_chat

pytestmark = pytest.mark.slow

CHAT = Path(__file__).parents[1] / "grading" / "first" / "09-by-hand-boxed.md"


def test_a_file_is_graded_as_the_library_does(opened, ready):
    page = opened("transcript")
    before = page.locator("#view").get_attribute("data-computed")
    page.locator("input[type=file][data-into=chat]").set_input_files(CHAT)
    page.wait_for_function("before => document.getElementById('view').dataset.computed !== before", arg=before)
    ready(page)
    assert page.locator("#f-source").input_value() == "own"
    report = grade(read_chat(CHAT))
    rows = page.locator(".ledger tbody tr")
    assert rows.count() == len(report.rows)
    for row, graded in zip(rows.all(), report.rows, strict=True):
        expect(row).to_contain_text(graded.status)
        if graded.first_right is not None:
            assert row.locator("data").first.get_attribute("value") == str(graded.first_right + 1)
    assert page.locator(".claim").count() == sum(len(row.claims) for row in report.rows)


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
