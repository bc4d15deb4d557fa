"""The first page in a browser: dragging, keys, the tour, the glossary and the two levels of words."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.helpers.browser_lab import NARROW, numbers, ready

pytestmark = pytest.mark.slow


def centre(page: Page, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def points(page: Page) -> str:
    return page.locator("[name=points]").input_value()


def test_a_dragged_word_moves_the_weights_at_once_and_as_the_library(opened, api) -> None:
    page = opened("")
    before = numbers(page)
    x, y = centre(page, "#point-1 circle:not(.start-touch)")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 150, y + 60, steps=4)
    dragged = numbers(page)  # the pointer is still down: no request was made
    assert page.locator("#view").get_attribute("data-computed") == "1"
    page.mouse.up()
    page.wait_for_function("() => document.getElementById('view').dataset.computed === '2'")
    ready(page)
    assert points(page) != page.locator("[data-field=points]").get_attribute("data-default")
    found = api("start", points=points(page))["result"]
    for j in range(7):
        for name in ("scores", "weights"):
            assert float(dragged[f"{name}.{j}"][0]) == pytest.approx(found[name][j], abs=1e-13)
            assert float(numbers(page)[f"{name}.{j}"][0]) == found[name][j]
    assert dragged["weights.1"] != before["weights.1"]
    page.reload()
    ready(page)
    assert float(numbers(page)["weights.1"][0]) == found["weights"][1]


def test_keys_move_a_word_and_choose_the_query(opened, api) -> None:
    page = opened("")
    page.focus("#point-1")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.getElementById('view').dataset.computed === '2'")
    ready(page)
    assert points(page).split(";")[1] == "1.8,1"
    assert page.evaluate("() => document.activeElement.id") == "point-1"
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('hero').dataset.at === '1'")
    ready(page)
    page.click("#causal")
    page.wait_for_function("() => document.getElementById('hero').dataset.causal === 'true'")
    ready(page)
    wanted = api("start", points=points(page), query=2, causal="yes")["result"]["weights"]
    assert [float(numbers(page)[f"weights.{j}"][0]) for j in range(7)] == wanted
    assert page.locator("[data-share='4']").inner_text() == "masked"


def test_another_sentence_gets_its_points(opened, edit) -> None:
    page = opened("")
    edit(page, "words", "one two three four five six seven eight")
    assert len(points(page).split(";")) == 8
    edit(page, "words", "one two three")
    assert page.locator(".start-point").count() == 3
    assert page.locator(".problem:visible").count() == 0


def test_a_finger_drags_too_and_an_edit_takes_less_than_100_ms(context_of) -> None:
    page = context_of(viewport=NARROW, has_touch=True).new_page()
    page.goto("/")
    ready(page)
    slowest = page.evaluate(
        """() => { const times = []; const group = document.getElementById("point-1");
        for (let n = 0; n < 30; n += 1) { const began = performance.now();
          group.dispatchEvent(new KeyboardEvent("keydown", {key: n % 2 ? "ArrowLeft" : "ArrowRight", bubbles: true}));
          group.getBoundingClientRect(); times.push(performance.now() - began); }
        return Math.max(...times); }"""
    )
    assert slowest < 100
    ready(page)


def test_the_tour_has_eight_stops_and_stays_until_it_is_ended(opened) -> None:
    page = opened("")
    page.get_by_role("link", name="Take the tour").click()
    for place in range(1, 9):
        bar = page.locator("#tour")
        page.wait_for_function(f"() => document.querySelector('#tour .place')?.textContent.startsWith('{place} of 8')")
        ready(page)
        assert page.locator("#whole").is_hidden()
        if place == 4:  # an edit and a reload keep the stop
            page.locator("[data-step='5']").click()
            ready(page)
            page.reload()
            page.wait_for_selector("#tour")
        if place < 8:
            bar.get_by_role("link", name="Next").click()
    page.locator("#tour").get_by_role("button", name="End").click()
    page.reload()
    ready(page)
    assert page.locator("#tour").count() == 0


def test_words_are_explained_at_two_levels_that_are_remembered(opened) -> None:
    page = opened("")
    term = page.locator("dfn[data-term=query]").locator("visible=true").first
    term.focus()
    page.wait_for_function("() => !document.getElementById('tip').hidden")
    simple = page.locator("#tip").inner_text()
    assert page.locator("#live").text_content() == simple
    page.click("#level")
    assert page.locator(".simpler:visible").count() == 0
    assert page.locator(".exact:visible").count() > 0
    page.goto("/scale")
    ready(page)
    assert page.locator(".lead .exact").is_visible()
    assert page.locator(".lead .simpler").is_hidden()
    page.goto("/")
    ready(page)
    assert page.locator("#level").inner_text() == "Simpler"
