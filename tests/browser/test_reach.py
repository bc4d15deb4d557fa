"""Reach in a browser: another output by mouse and by keyboard, and the numbers that the library finds for it."""

import pytest

from qkv.theory.reach import apart, paths, shifted

pytestmark = pytest.mark.slow


def reached(looks, output: int) -> list[int]:
    return [sum(count > 0 for count in level) for level in paths(looks, output - 1)]


def counts(shown: dict, layers: int) -> list[int]:
    return [int(shown[f"levels.{below}.count"][0]) for below in range(layers + 1)]


def test_edits_lead_to_what_the_library_counts(opened, edit, shown) -> None:
    page = opened("reach", n=20, layers=3, heads=2, output=9)
    assert counts(shown(page), 3) == reached(apart(20, 2, 3), 9)
    edit(page, "pattern", "window")
    assert counts(shown(page), 3) == reached(shifted(20, range(1, 3), 3), 9) == [1, 3, 5, 7]
    edit(page, "n", "5")
    assert shown(page)["output"][0] == "5", "beyond the last token it is the last"
    assert counts(shown(page), 3) == reached(shifted(5, range(1, 3), 3), 5)


def test_an_output_is_chosen_by_mouse(opened, ready, shown) -> None:
    page = opened("reach", pattern="causal")
    page.locator('.qkv-pick[data-column="4"]').click()
    page.locator('.qkv-pick[data-column="4"][aria-checked="true"]').wait_for()
    ready(page)
    assert counts(shown(page), 2) == reached(apart(12, 2, 2, wrapped=False), 4)
    assert "output=4" in page.url


def test_an_output_is_chosen_by_keyboard_alone(opened, ready, shown) -> None:
    page = opened("reach", pattern="causal", output=5)
    page.locator(".lattice .scroll").first.focus()
    page.keyboard.press("Tab")
    for key, wanted in (("ArrowRight", 6), ("ArrowLeft", 5), ("Home", 1), ("ArrowLeft", 1), ("End", 12)):
        page.keyboard.press(key)
        page.locator(f'.qkv-pick[data-column="{wanted}"][aria-checked="true"]').wait_for()
        ready(page)
        assert page.evaluate("() => document.activeElement.dataset.column") == str(wanted)
        assert counts(shown(page), 2) == reached(apart(12, 2, 2, wrapped=False), wanted)
