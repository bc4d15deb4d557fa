"""The lab under load and in a browser: 50 clients at once for a minute, first paint, an edit, the weight of a page,
long tasks while the worked example plays, and motion that was not asked for.

Every light view is requested in many states by page, by part and by API; an answer that differs from a single client's
is an error, as is any status but 200. Memory is that of the server and the process of heavy work, at a sixth of the
time and at its end. The browser is Chromium through Playwright, cold for every first paint.

`python -m benchmarks lab`; `--quick` takes 3 s and few edits.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import qkv
from qkv.lab.views import NAMES

from .clients import Load, light, load, questions, resident, served
from .decode import bar
from .harness import report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CLIENTS, SECONDS = 50, 60.0
STATES = 12  # of each view
PAINTS, EDITS = 7, 40
MEBI = 1 << 20
FONT = Path(qkv.__file__).parent / "lab" / "static" / "fonts" / "qkv-math.woff2"
CHROMIUM = "/usr/bin/chromium"
# From the edit of a cell to the frame that shows new numbers, in milliseconds.
EDIT = """
(text) => new Promise((done) => {
  const root = document.getElementById("view")
  const cell = document.querySelector("#controls .field-matrix:not([hidden]) table input")
  const seen = new MutationObserver(() => {
    seen.disconnect()
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)))
  })
  seen.observe(root, { attributeFilter: ["data-computed"] })
  const began = performance.now()
  cell.value = text
  cell.dispatchEvent(new Event("input", { bubbles: true }))
})
"""
PLAYED = 8000  # milliseconds of the worked example
WATCH = """() => { window.tasks = [];
new PerformanceObserver(list => window.tasks.push(...list.getEntries().map(each => each.duration)))
  .observe({ type: "longtask" }) }"""
# Under prefers-reduced-motion: what is animated, and buttons that would start it.
MOVING = """() => document.getAnimations().length + [...document.querySelectorAll("button")]
  .filter(each => each.textContent === "Play" && each.checkVisibility()).length"""
PAINT = 'performance.getEntriesByName("first-contentful-paint")[0]?.startTime'


@dataclass(frozen=True)
class Minute:
    found: Load
    early: int  # bytes of memory at a sixth of the time
    late: int  # and at its end
    seconds: float  # until the last answer


@dataclass(frozen=True)
class Seen:
    """Measurements of a browser: milliseconds, bytes."""

    paints: list[float]
    edits: list[float]
    weights: dict[str, int]
    again: int  # times that the font was fetched on a second visit
    tasks: list[float]  # longer than 50 ms while the worked example plays
    moving: int  # elements that move although a reader asked for less motion


def _wait_for_paint(page: Page) -> None:
    """Poll from here: the page's content security policy does not evaluate a function sent as text."""
    while page.evaluate(PAINT) is None:
        page.wait_for_timeout(10)


def run() -> None:
    quick = "--quick" in sys.argv
    with served() as (port, process):
        minute = asyncio.run(_minute(port, process, 3.0 if quick else SECONDS))
        seen = _seen(f"http://127.0.0.1:{port}", 2 if quick else PAINTS, 5 if quick else EDITS)
    _report_load(minute)
    rows = [
        bar("wrong answers", sum(minute.found.wrong.values()), ".0f", most=0),
        bar("memory at the end / at a sixth of the time", minute.late / minute.early, ".2f", most=1.1),
        bar("font, kB", FONT.stat().st_size / 1e3, ".0f", most=200),
    ]
    if seen is None:
        print("  no browser here: first paint, edits and the weight of pages are not measured")
    else:
        heaviest = max(seen.weights, key=lambda name: seen.weights[name])
        rows += [
            bar("first paint, ms, median", statistics.median(seen.paints), ".0f", most=1000),
            bar("first paint, ms, worst", max(seen.paints), ".0f", most=1000),
            bar("edit to new numbers, ms, median", statistics.median(seen.edits), ".0f", most=100),
            bar("edit to new numbers, ms, worst", max(seen.edits), ".0f", most=100),
            bar(f"heaviest page without the font ({heaviest}), kB", seen.weights[heaviest] / 1e3, ".0f", most=200),
            bar("font fetched again on a second visit", seen.again, ".0f", most=0),
            bar("tasks over 50 ms while the worked example plays", len(seen.tasks), ".0f", most=0),
            bar("parts that move where less motion is asked for", seen.moving, ".0f", most=0),
        ]
        pages = [[name, f"{weight / 1e3:.0f}"] for name, weight in seen.weights.items()]
        data = [{"view": name, "bytes": weight} for name, weight in seen.weights.items()]
        report("lab-pages", "Weight of pages", ["view", "kB"], pages, data)
    report("lab", "Figures", ["figure", "value", "bar", ""], rows, [])


async def _minute(port: int, process: int, seconds: float) -> Minute:
    known = await questions(port, light(), STATES)
    working = asyncio.create_task(load(port, CLIENTS, seconds, known))
    began = time.monotonic()
    await asyncio.sleep(seconds / 6)
    early = resident(process)
    found = await working
    return Minute(found, early, resident(process), time.monotonic() - began)


def _report_load(minute: Minute) -> None:
    found = minute.found
    milliseconds = {f"p{round(100 * part)}": 1e3 * found.quantile(part) for part in (0.5, 0.95, 0.99)}
    columns = ["clients", "s", "questions", "answers", "a second", *(f"{name}, ms" for name in milliseconds), "MiB"]
    row = [str(CLIENTS), f"{minute.seconds:.0f}", str(found.questions), f"{len(found.seconds):,}"]
    row += [f"{len(found.seconds) / minute.seconds:.0f}", *(f"{each:.0f}" for each in milliseconds.values())]
    row += [f"{minute.early / MEBI:.0f}, then {minute.late / MEBI:.0f}"]
    data = {"wrong": dict(found.wrong), "answers": len(found.seconds), "seconds": minute.seconds, **milliseconds}
    data |= {"memory_early": minute.early, "memory_late": minute.late}
    report("lab-load", f"{CLIENTS} clients at once", columns, [row], [data])
    for what, often in found.wrong.most_common(5):
        print(f"  {often} x {what}")


def _seen(address: str, paints: int, edits: int) -> Seen | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not Path(CHROMIUM).exists():
        return None
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            first = [_in(browser, _painted(address)) for _ in range(paints)]
            weights = {name: _in(browser, _weight(f"{address}/{name}")) for name in NAMES}
            edited, again = _in(browser, _edited(address, edits)), _in(browser, _fonts_again(address))
            tasks = _in(browser, _played(address))
            moving = sum(_in(browser, _moving(f"{address}/{name}"), "reduce") for name in ("walk", "cache"))
            return Seen(first, edited, weights, again, tasks, moving)
        finally:
            browser.close()


def _in(browser: Browser, look: Callable, motion: Literal["reduce", "no-preference"] = "no-preference"):
    """The result of `look` on a page of a new browser context."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion=motion)
    try:
        return look(context.new_page())
    finally:
        context.close()


def _painted(address: str) -> Callable:
    def look(page) -> float:
        page.goto(f"{address}/walk")
        _wait_for_paint(page)
        return page.evaluate(PAINT) or math.nan

    return look


def _edited(address: str, many: int) -> Callable:
    def look(page) -> list[float]:
        page.goto(f"{address}/walk")
        page.wait_for_selector("#result:not([data-pending]) data", state="attached")
        page.evaluate(EDIT, "7")  # the first edit waits for what is loaded once
        return [page.evaluate(EDIT, str(number + 2)) for number in range(many)]

    return look


def _played(address: str) -> Callable:
    def look(page) -> list[float]:
        page.goto(f"{address}/walk?step=2")
        page.wait_for_selector("#walk-play:not([hidden])")
        page.wait_for_load_state("networkidle")
        page.evaluate(WATCH)
        page.click("#walk-play")
        page.wait_for_timeout(PLAYED)
        return page.evaluate("() => window.tasks")

    return look


def _moving(address: str) -> Callable:
    def look(page) -> int:
        page.goto(address)
        page.wait_for_selector("#result:not([data-pending]) data", state="attached")
        page.wait_for_load_state("networkidle")
        return page.evaluate(MOVING)

    return look


def _weight(address: str) -> Callable:
    """Bytes of everything that a page loads, as transferred, without the font."""

    def look(page) -> int:
        brought = []
        page.on("response", lambda response: brought.append(response))
        page.goto(address)
        # A model may have to be read.
        page.wait_for_selector("#result:not([data-pending])", state="attached", timeout=120_000)
        page.wait_for_load_state("networkidle")
        return sum(_size(response) for response in brought if response.ok and "/fonts/" not in response.url)

    return look


def _fonts_again(address: str) -> Callable:
    def look(page) -> int:
        page.goto(f"{address}/kernels")
        page.wait_for_load_state("networkidle")
        fetched = []
        page.on("response", lambda response: fetched.append(response) if "/fonts/" in response.url else None)
        page.goto(f"{address}/scale")
        page.wait_for_load_state("networkidle")
        return sum(_size(response) > 0 for response in fetched)

    return look


def _size(response) -> int:
    return response.request.sizes()["responseBodySize"]
