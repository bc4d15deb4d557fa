"""Cache: steps by mouse, by keyboard and by themselves, with the numbers that the library counts."""

from __future__ import annotations

import pytest

from qkv.cost.variants import VARIANTS, past

pytestmark = pytest.mark.slow

SIZES = {"batch": 1, "heads": 32, "kv_heads": 8, "width": 128, "cache": "bfloat16"}


def held(tokens: int, **other) -> dict[str, str]:
    """What each way keeps, by the path of its number."""
    sizes = SIZES | other
    return {f"ways.{n}.held": str(past(way, tokens=tokens, **sizes).cache_bytes) for n, way in enumerate(VARIANTS)}


def seen(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {path: value for path, (value, _) in found.items() if path.endswith(".held")}


def columns(page) -> int:
    """Of the first cache that is drawn."""
    return page.locator("#cache-growing .qkv-lane").first.locator(".qkv-column").count()


def test_edits_count_again(opened, edit, shown):
    page = opened("cache")
    assert seen(shown(page)) == held(4096)
    edit(page, "past", "100")
    edit(page, "dtype", "int8")
    edit(page, "heads", "16")
    assert seen(shown(page)) == held(100, heads=16, cache="int8")
    edit(page, "kvheads", "5")
    assert "divides the 16 query heads" in page.locator("#p-kvheads").text_content()
    edit(page, "kvheads", "2")
    assert seen(shown(page)) == held(100, heads=16, kv_heads=2, cache="int8")


def test_steps_by_mouse_and_by_keyboard_alone(opened, ready, shown):
    page = opened("cache", past=100)
    before = columns(page)
    page.click("#cache-next")
    ready(page)
    assert (seen(shown(page)), columns(page)) == (held(101), before + 1)
    page.wait_for_function("() => document.activeElement.id === 'cache-next'")
    page.keyboard.press("Enter")
    ready(page)
    assert seen(shown(page)) == held(102)
    page.focus("#cache-growing")
    for key, tokens in (("ArrowRight", 103), ("End", 116), ("ArrowRight", 116), ("ArrowLeft", 115), ("Home", 100)):
        page.keyboard.press(key)
        ready(page)
        assert seen(shown(page)) == held(tokens), key
        assert page.evaluate("() => document.activeElement.id") == "cache-growing"
    assert page.locator("#cache-play").is_hidden()  # these readers asked for less motion


def test_it_plays_and_pauses(context_of, ready):
    page = context_of(reduced_motion="no-preference").new_page()
    page.goto("/cache?past=100&step=13")
    ready(page)
    page.click("#cache-play")
    page.wait_for_function("() => document.querySelector('[data-path=step]').value === '15'")
    page.click("#cache-play")
    page.wait_for_function("() => document.getElementById('cache-play').textContent === 'Play'")
    stopped = page.locator("[data-path=step]").get_attribute("value")
    page.click("#cache-play")
    page.wait_for_function("before => document.querySelector('[data-path=step]').value !== before", arg=stopped)


def test_it_measures_when_asked(opened, ready, shown):
    page = opened("cache", past=200, heads=4, kvheads=2, width=32)
    page.click("#cache-measure")
    page.wait_for_selector("[data-path='measured.seconds']")
    ready(page)
    found = shown(page)
    assert float(found["measured.seconds"][0]) > 0
    assert found["measured.counted"][0] == held(200, heads=4, kv_heads=2, width=32)["ways.1.held"]
    assert "measure=yes" in page.url


def test_the_race_shows_the_library_s_numbers_at_every_moment(opened, shown, api):
    page = opened("cache", machine="h100-sxm", layers=16)
    race = api("cache", machine="h100-sxm", layers=16)["result"]["race"]
    page.focus("#race-moment")
    for key, moment in (("Home", 0), ("ArrowRight", 1), ("End", 60)):
        page.keyboard.press(key)
        found = shown(page)
        for i, way in enumerate(race["ways"]):
            assert found[f"race.ways.{i}.tokens.{moment}"][0] == str(way["tokens"][moment])
            assert found[f"race.ways.{i}.held.{moment}"][0] == str(way["held"][moment])
        assert float(found[f"race.seconds.{moment}"][0]) == race["seconds"][moment]
    full = [way["tokens"][60] == way["full_at"] for way in race["ways"]]
    assert [way.is_visible() for way in page.locator(".race-end").all()] == full
    page.wait_for_function("() => location.search.includes('moment=60')")
    assert page.locator("#view").get_attribute("data-computed") == "1"  # no moment asks the server


def test_the_race_plays(context_of, ready):
    page = context_of(reduced_motion="no-preference").new_page()
    page.goto("/cache?moment=52")
    ready(page)
    page.click("#race-play")
    page.wait_for_function("() => document.getElementById('race-play').textContent === 'Pause'")
    page.wait_for_function("() => location.search.includes('moment=60')")
    assert page.locator("#race-play").inner_text() == "Play"
