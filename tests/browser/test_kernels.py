"""Kernels in a browser: edits lead to the library's numbers, and one cell is followed through all maps."""

from __future__ import annotations

import math

import pytest
from playwright.sync_api import Page

import qkv
from qkv.figures import readable
from qkv.theory import similarities

pytestmark = pytest.mark.slow

NAMES = ("softmax", "polynomial", "elu1", "random", "argmax")


def wanted(n: int, temperature: float) -> dict[str, similarities.Compared]:
    """What the library says of the default data at that length and temperature."""
    scale = 1 / (temperature * math.sqrt(8))
    kinds = {
        "softmax": qkv.Softmax(scale=scale),
        "polynomial": qkv.Polynomial(2, 1.0),
        "elu1": qkv.FeatureMap(qkv.features.elu1),
        "random": qkv.FeatureMap(qkv.features.positive_random(8, 128, seed=0, scale=scale)),
        "argmax": qkv.Argmax(),
    }
    return similarities.compared(*similarities.sample("random", n, 8, seed=0), kinds)


def pointed(page: Page) -> tuple[str, list[str]]:
    """The cell that is said, and its five weights."""
    panel = page.locator(".kernel-pointed")
    return panel.locator(".where").text_content(), panel.locator("dd").all_text_contents()


def weights_at(found: dict[str, similarities.Compared], row: int, column: int) -> list[str]:
    return [readable(float(found[name].weights[row, column])) for name in NAMES]


def test_edits_and_buttons_lead_to_the_librarys_numbers(opened, edit, shown, ready) -> None:
    page = opened("kernels")
    edit(page, "n", "7")
    edit(page, "temperature", "0.25")
    numbers = shown(page)
    for name, each in wanted(7, 0.25).items():
        # Sums of a batch may be added in another order in another process.
        assert float(numbers[f"maps.{name}.weights_apart"][0]) == pytest.approx(each.weights_apart, abs=1e-12)
        assert float(numbers[f"maps.{name}.mean_entropy"][0]) == pytest.approx(float(each.entropy.mean()), abs=1e-12)
    assert page.locator("[data-kernel=argmax] .qkv-cells rect").count() == 49
    page.get_by_role("button", name="T = 0.01").click()
    page.wait_for_function("() => document.querySelector('[name=temperature]').value === '0.01'")
    ready(page)
    cold = wanted(7, 0.01)["argmax"].weights_apart
    page.wait_for_function(
        "cold => Math.abs(document.querySelector('[data-path=\"maps.argmax.weights_apart\"]').value - cold) < 1e-9",
        arg=cold,
    )


def test_one_cell_is_followed_through_all_maps_by_mouse(opened) -> None:
    page, found = opened("kernels"), wanted(12, 1.0)
    assert pointed(page)[0] == "No cell is chosen yet."
    page.locator("[data-kernel=elu1] .qkv-cells > g").nth(4).locator("rect").nth(2).hover()
    assert pointed(page) == ("query 5, key 3", weights_at(found, 4, 2))
    assert page.locator(".kernel-map .pointed").count() == 5
    assert page.locator("#tip").text_content().startswith("query 5, key 3: ")


def test_one_cell_is_followed_through_all_maps_by_keyboard(opened, edit) -> None:
    page, found = opened("kernels"), wanted(12, 1.0)
    page.get_by_role("button", name="Other random features").focus()
    page.keyboard.press("Tab")
    if page.evaluate("() => document.activeElement.matches('dfn')"):  # a word of the glossary, once that is there
        page.keyboard.press("Tab")
    assert pointed(page) == ("query 1, key 1", weights_at(found, 0, 0))
    for key in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert pointed(page) == ("query 3, key 2", weights_at(found, 2, 1))
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')").startswith(
        "softmax, query 3, key 2"
    )
    page.keyboard.press("End")
    assert pointed(page) == ("query 3, key 12", weights_at(found, 2, 11))
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.closest('figure').dataset.kernel") == "polynomial"
    # The cell stays chosen when the numbers change.
    edit(page, "temperature", "2")
    assert pointed(page)[1] == weights_at(wanted(12, 2.0), *_place(pointed(page)[0]))


def _place(words: str) -> tuple[int, int]:
    query, key = (int(part.split()[1]) - 1 for part in words.split(", "))
    return query, key
