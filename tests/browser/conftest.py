"""A real server and a real browser, once for each worker; whatever goes wrong on a page fails its test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests.helpers.browser_lab import CHROMIUM, FLAGS, SLOW, WIDE, Watched, numbers, ready, type_into

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        why = "no Chromium here: make test installs Debian's as root, or run apt-get install chromium"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def lab() -> Iterator[str]:
    """The address of a lab that runs in a separate process."""
    command = [sys.executable, "-m", "qkv", "lab", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert found, "the lab printed no address"
        # Its first page is shown at once; wait until its numbers come with it.
        httpx.get(f"{found[0]}/api/walk", timeout=60).raise_for_status()
        yield found[0]
    finally:
        server.terminate()
        server.stdout.close()
        ended = server.wait(10)
    assert ended == 0


class Playing:
    """One browser for the tests of this folder that follow each other."""

    def __init__(self) -> None:
        self.playwright: Playwright | None = None
        self.chromium: Browser | None = None

    def start(self) -> Browser:
        if self.chromium is None:
            self.playwright = sync_playwright().start()
            self.chromium = self.playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        return self.chromium

    def stop(self) -> None:
        if self.chromium is not None and self.playwright is not None:
            self.chromium.close()
            self.playwright.stop()
        self.playwright = self.chromium = None


PLAYING = Playing()


@pytest.fixture
def browser() -> Browser:
    return PLAYING.start()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Playwright keeps an event loop running in this thread: a test of another folder may want its own."""
    if nextitem is None or HERE not in nextitem.path.parents:
        PLAYING.stop()


@pytest.fixture
def context_of(browser: Browser, lab: str) -> Iterator[Callable[..., BrowserContext]]:
    """Makes contexts that are watched: any complaint fails the test in the end."""
    made: list[tuple[BrowserContext, Watched]] = []

    def make(**options) -> BrowserContext:
        context = browser.new_context(**{"viewport": WIDE, "base_url": lab, "reduced_motion": "reduce"} | options)
        context.set_default_timeout(SLOW)
        made.append((context, Watched(context, lab)))
        return context

    yield make
    for context, watched in made:
        context.close()
        assert not watched.wrong, "\n".join(watched.wrong)


@pytest.fixture
def page(context_of) -> Page:
    return context_of().new_page()


@pytest.fixture
def opened(page: Page) -> Callable[..., Page]:
    """The page at a view, in a state, with its numbers."""

    def at(view: str, **fields: object) -> Page:
        page.goto(f"/{view}?{urlencode(fields)}" if fields else f"/{view}")
        ready(page)
        return page

    return at


@pytest.fixture
def api(lab: str) -> Callable[..., dict]:
    def ask(view: str, **fields: object) -> dict:
        answer = httpx.get(f"{lab}/api/{view}", params={k: str(v) for k, v in fields.items()}, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture(name="ready")
def ready_fixture() -> Callable[[Page], None]:
    return ready


@pytest.fixture
def shown() -> Callable[[Page], dict[str, tuple[str, str]]]:
    return numbers


@pytest.fixture
def edit() -> Callable[[Page, str, str], None]:
    return type_into
