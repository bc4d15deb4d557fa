"""Shared by the browser tests: the path of Chromium, waiting for a page, and reading its numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import BrowserContext, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SCREENS = Path(__file__).parents[2] / "build" / "screens"
WIDE, NARROW = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
SHOWN = {"width": 1200, "height": 760}
SLOW = 90_000  # milliseconds that a busy machine may take: transformers alone load for 20 s there


class Watched:
    """Collects the errors of a page."""

    def __init__(self, context: BrowserContext, lab: str) -> None:
        self.wrong: list[str] = []
        self.lab = lab
        context.route(lambda url: not url.startswith(lab), self._refuse)
        context.on(
            "console", lambda said: said.type in ("error", "warning") and self.wrong.append(f"console: {said.text}")
        )
        context.on("weberror", lambda error: self.wrong.append(f"script: {error.error}"))
        context.on("requestfailed", self._failed)
        context.on(
            "response", lambda answer: answer.status >= 500 and self.wrong.append(f"{answer.status} {answer.url}")
        )

    def _console(self, said) -> None:
        if said.type in ("error", "warning"):
            self.wrong.append(f"console: {said.text}")

    def _answered(self, answer) -> None:
        if answer.status >= 500:
            self.wrong.append(f"{answer.status} {answer.url}")

    def _refuse(self, route) -> None:
        url = route.request.url
        if url.startswith(("blob:", "data:")):
            route.continue_()
            return
        self.wrong.append(f"a request off loopback: {url}")
        route.abort()

    def _failed(self, request) -> None:
        # An edit aborts the request before it, as intended.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.wrong.append(f"failed: {request.url} {request.failure}")


def ready(page: Page) -> None:
    """Waits until the numbers of the last edit are on the page."""
    page.wait_for_function(
        "() => { const view = document.getElementById('view');"
        " return view.dataset.started && view.dataset.busy === undefined"
        " && (view.dataset.computed || view.dataset.refused); }"
    )


def numbers(page: Page) -> dict[str, tuple[str, str]]:
    """Every number of the result by its path: exactly, and as it is shown."""
    found = page.eval_on_selector_all(
        "#result data[data-path]", "all => all.map(e => [e.dataset.path, e.getAttribute('value'), e.textContent])"
    )
    return {path: (value, text) for path, value, text in found}


def type_into(page: Page, field: str, text: str) -> None:
    """Type into a field as a user does, and wait for the result."""
    counted = page.evaluate(_COUNT)
    place = page.locator(f'#controls [name="{field}"]')
    kind = place.evaluate("e => e.tagName === 'SELECT' ? 'select' : e.type")
    if kind == "select":
        place.select_option(text)
    elif kind == "checkbox":
        place.set_checked(text == "yes")
    elif kind == "hidden":
        _fill_grid(page, field, text)
    else:
        place.fill(text)
    page.wait_for_function(f"before => ({_COUNT})() > before", arg=counted)
    ready(page)


_COUNT = (
    "() => { const view = document.getElementById('view');"
    " return Number(view.dataset.computed ?? 0) + Number(view.dataset.refused ?? 0); }"
)


def _fill_grid(page: Page, field: str, text: str) -> None:
    box = page.locator(f'[data-field="{field}"]')
    rows = [row.split(",") for row in text.split(";")]
    for what, wanted in (("row", len(rows)), ("column", len(rows[0]))):
        count = "e => e.querySelectorAll('tr').length" if what == "row" else "e => e.querySelector('tr').cells.length"
        while (now := box.evaluate(count)) != wanted:
            box.locator(f'[data-{"grow" if now < wanted else "shrink"}="{what}"]').click()
    for i, row in enumerate(rows):
        for j, each in enumerate(row):
            cell = box.locator("tr").nth(i).locator("input").nth(j)
            if cell.input_value() != each:
                cell.fill(each)
