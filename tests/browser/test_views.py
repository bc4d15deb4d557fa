"""What every view owes its reader, in a real browser."""

from __future__ import annotations

import json

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from qkv.lab.numbers import at
from qkv.lab.views import NAMES
from tests.helpers.browser_lab import NARROW, SCREENS, SHOWN, WIDE, numbers, ready, type_into

pytestmark = pytest.mark.slow

# Edits that lead every view to other numbers than the ones it starts with.
EDITS = {
    "start": {"query": "2", "causal": "yes"},
    "walk": {"x": "1,0,1;0,2,0;1,1,3", "scale": "root"},
    "scale": {"d": "16", "mu": "0.5"},
    "cache": {"form": "mqa", "batch": "4"},
    "plan": {"context": "4096", "batch": "2"},
    "kernels": {"n": "7", "temperature": "0.5"},
    "reach": {"n": "11", "layers": "2"},
    "norms": {"delta": "1.5"},
    "solve": {"question": "Let Q = [[1, 2]] and K = [[1, 1], [0, 3]]. (a) Compute the scores. (b) And why?"},
    "practice": {"exercise": "argmax", "seed": "5"},
    "transcript": {"chat": "Student: Compute E[q^T k] for iid q, k with mean mu.\n\nTutor: It is mu^T mu.\n"},
    "generate": {"prompt": "One, two, three,", "new": "3", "temperature": "0.5"},
    "model": {"text": "Attention looks back.", "layer": "2"},
}


def told(lab: str, page: Page) -> dict:
    """What the API says of the state that the page is in."""
    view = page.locator("#view").get_attribute("data-view")
    texts = page.evaluate("() => import('/static/lab.js').then(lab => lab.stateNow())")
    answer = httpx.post(f"{lab}/api/{view}", json=texts, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def agree(page: Page, result: dict, measured: tuple[str, ...] = ("measured",)) -> int:
    """Every number on the page is the API's; returns how many there are."""
    found = numbers(page)
    for path, (value, _) in found.items():
        if path.startswith(measured):
            continue
        wanted = at(result, path)
        if isinstance(wanted, float):
            assert float(value) == wanted, path
        elif isinstance(wanted, bool):
            assert value == ("yes" if wanted else "no"), path
        else:
            assert value == ("" if wanted is None else str(wanted)), path
    return len(found)


def inspected(page: Page, *rules: str) -> None:
    """axe-core finds nothing serious, by all of its rules or by these."""
    options = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    told = {
        each["id"]: [(node["html"][:200], node["failureSummary"][:300]) for node in each["nodes"][:3]]
        for each in found
        if each["impact"] in ("serious", "critical")
    }
    assert not told, json.dumps(told, indent=1)


def fits(page: Page) -> None:
    """Nothing sticks out of a page, a narrow one neither."""
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        over = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{over} pixels wider than a screen of {size['width']}"


def pictured(page: Page, name: str) -> None:
    """Both widths in both themes, for people to look at."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            file = SCREENS / f"{name}-{size['width']}-{theme}.jpeg"
            page.screenshot(path=file, full_page=True, type="jpeg", quality=75)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(SHOWN)
    page.screenshot(path=SCREENS / f"{name}.png")  # what the README shows: make screens


@pytest.mark.parametrize("name", NAMES)
def test_a_view(lab: str, opened, name: str, pytestconfig: pytest.Config) -> None:
    """Its numbers are the library's, at first, after edits and from its address alone; and anybody can read it."""
    page = opened(name)
    assert agree(page, told(lab, page)["result"]) > 0
    before = numbers(page)
    inspected(page)
    fits(page)
    if pytestconfig.getoption("--screens"):
        pictured(page, name)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(NARROW)
    inspected(page, "color-contrast", "scrollable-region-focusable", "link-in-text-block", "target-size")
    for field, text in EDITS[name].items():
        type_into(page, field, text)
    after = told(lab, page)
    agree(page, after["result"])
    edited = numbers(page)
    assert edited != before
    assert page.locator("#program").text_content() == after["python"]
    page.goto("about:blank")
    page.go_back()
    page.reload()
    ready(page)
    assert numbers(page).keys() == edited.keys()
    agree(page, after["result"])
