"""What the frame does for every view: the address, broken input, keys, paper, files, and readers without a script."""

from __future__ import annotations

import functools
import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from qkv.lab.views import NAMES
from tests.helpers.browser_lab import NARROW, numbers, ready, type_into
from tests.helpers.lab_process import COMMAND, running

pytestmark = pytest.mark.slow

INK = "rgb(28, 31, 35)"  # of the light theme


def paste(page: Page, cell: str, text: str) -> None:
    page.locator(f'[aria-label="{cell}"]').focus()
    page.evaluate(
        """text => { const data = new DataTransfer(); data.setData("text", text);
        document.activeElement.dispatchEvent(
          new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true})); }""",
        text,
    )


def drop(page: Page, name: str, content: bytes) -> None:
    """A file let go somewhere on the page."""
    page.evaluate(
        """([name, bytes]) => { const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], name));
        for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(
          new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true})); }""",
        [name, list(content)],
    )


def test_what_cannot_be_used_is_told_at_it_and_kept(opened) -> None:
    page = opened("walk")
    before = numbers(page)
    page.locator('[aria-label="X row 1 column 1"]').fill("two")
    page.wait_for_selector('[data-field="x"] .problem:not([hidden])')
    assert "'two'" in page.locator("#p-x").text_content()
    assert page.locator('[data-field="x"] [aria-invalid="true"]').count() == 1
    assert numbers(page) == before  # what is shown still belongs together
    page.reload()
    ready(page)
    assert page.locator('[aria-label="X row 1 column 1"]').input_value() == "two"
    assert "'two'" in page.locator("#p-x").text_content()
    page.locator('[aria-label="X row 1 column 1"]').fill("2,5")  # as half the world writes it
    page.wait_for_function("() => document.querySelector('#p-x').hidden")
    ready(page)
    assert next(value for path, (value, _) in numbers(page).items() if path.endswith("x.0.0")) == "5/2"


def test_a_try_can_be_taken_back(opened) -> None:
    page = opened("walk", x="1,0;0,1;1,1")
    mine = numbers(page)
    page.get_by_role("button", name="The worked example").click()
    page.wait_for_function("() => location.search === ''")
    ready(page)
    assert next(value for path, (value, _) in numbers(page).items() if path.endswith("x.0.1")) == "3"
    page.go_back()
    page.wait_for_function("() => location.search !== '' && document.querySelector('[name=x]').value === '1,0;0,1;1,1'")
    ready(page)
    assert numbers(page) == mine


def test_a_table_is_pasted_where_the_hand_is(opened) -> None:
    page = opened("norms")
    paste(page, "X row 1 column 1", "1,5\t2\t3\n4\t5\t6\n")
    page.wait_for_function("() => document.querySelector('[name=x]').value === '1.5,2,3;4,5,6'")
    paste(page, "X row 2 column 2", "7 8\n9 10")
    page.wait_for_function("() => document.querySelector('[name=x]').value === '1.5,2,3;4,7,8;0,9,10'")
    paste(page, "X row 1 column 1", "\n".join("\t".join("1" * 9) for _ in range(9)))
    assert "left out" in page.locator('[data-field="x"] .note').text_content()
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')") == "X row 1 column 1"


def test_marks_of_a_chart_are_reached_by_keys(opened) -> None:
    page = opened("plan")
    chart = page.locator("figure.chart svg[role=img]").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    said = page.locator("#tip").text_content()
    assert page.locator("#live").text_content() == said
    assert said in chart.evaluate("e => [...e.querySelectorAll('title')].map(t => t.textContent)")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_paper_is_light_whatever_the_screen_is(opened) -> None:
    page = opened("scale")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("() => getComputedStyle(document.body).color") != INK
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate("() => getComputedStyle(document.body).color") == INK
    assert page.locator("#controls").is_hidden()


def test_the_theme_is_a_choice_that_stays(opened) -> None:
    page = opened("reach")
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    assert page.evaluate("() => getComputedStyle(document.body).color") != INK
    page.reload()
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_files_dropped_anywhere_find_their_field(opened) -> None:
    page = opened("plan")
    config = {"model_type": "gpt2", "n_embd": 96, "n_layer": 3, "n_head": 4, "n_positions": 512, "vocab_size": 1009}
    drop(page, "config.json", json.dumps(config).encode())
    page.wait_for_function("() => document.querySelector('[name=config]').value.includes('n_embd')")
    ready(page)
    assert page.locator("[name=model]").input_value() == "config"
    drop(page, "picture.png", b"\x89PNG\r\n\x1a\n\x00\xff\xfe")
    page.wait_for_selector("#p-config:not([hidden])")
    assert "no text" in page.locator("#p-config").text_content()
    assert "n_embd" in page.locator("[name=config]").input_value()


def test_a_long_state_is_packed_into_the_address_and_comes_back(opened) -> None:
    page = opened("transcript")
    aside = " ".join(f"word{n}" for n in range(900))  # long, and nothing in it to judge
    chat = f"Student: What is 3 + 4? {aside}\n\nTutor: It is 7."
    type_into(page, "chat", chat)
    assert "#z=" in page.url
    shared = page.url
    page.goto("about:blank")
    page.goto(shared)
    ready(page)
    assert page.locator("[name=chat]").input_value() == chat
    page.goto("about:blank")
    page.goto(shared[:-40])
    page.wait_for_selector("#whole:not([hidden])")
    assert "cut off" in page.locator("#whole").text_content()


def test_work_shows_how_far_it_is_and_can_be_stopped(opened) -> None:
    page = opened("transcript")
    chats = sorted((Path(__file__).parents[1] / "grading" / "first").glob("*.md"))
    chat = "\n\n".join(file.read_text(encoding="utf-8") for file in chats * 6)
    page.locator("[name=chat]").fill(chat)
    page.wait_for_selector("#status:not([hidden])")
    assert page.locator("#progress-words").text_content()
    page.locator("#cancel").click()
    page.wait_for_selector("#status", state="hidden")
    assert "Stopped" in page.locator("#whole").text_content()
    type_into(page, "chat", "")
    assert page.locator("#whole").is_hidden()


def saved_page(page: Page, browser: Browser, tmp_path: Path, wrong: list[str]) -> Page:
    """The view, saved and opened from the disk without a network; what the browser complains of goes into `wrong`."""
    with page.expect_download() as download:
        page.locator("#save").click()
    file = tmp_path / "saved.html"
    download.value.save_as(file)
    saved = browser.new_context(offline=True, viewport=NARROW).new_page()
    saved.on("console", lambda said: wrong.append(said.text))
    saved.on("pageerror", lambda error: wrong.append(str(error)))
    saved.goto(file.as_uri())
    return saved


@pytest.mark.parametrize("name", [name for name in NAMES if name != "model"])
def test_a_saved_view_opens_from_disk_with_its_numbers(opened, browser: Browser, tmp_path: Path, name: str) -> None:
    page, wrong = opened(name), []
    wanted = numbers(page)
    saved = saved_page(page, browser, tmp_path, wrong)
    found = saved.eval_on_selector_all(
        "data[data-path]", "all => all.map(e => [e.dataset.path, e.getAttribute('value')])"
    )
    assert dict(found) == {path: value for path, (value, _) in wanted.items()}
    if saved.locator("math").locator("visible=true").count():
        assert saved.evaluate("() => document.fonts.ready.then(() => document.fonts.check('16px \"qkv Math\"'))")
    assert saved.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    assert saved.locator("#result a[href^='/']").count() == 0
    level = saved.locator("#level")
    before = level.inner_text()
    level.click()
    assert level.inner_text() != before
    saved.context.close()
    assert not wrong


def test_a_saved_view_stays_interactive_where_it_can(opened, browser: Browser, tmp_path: Path) -> None:
    wrong: list[str] = []
    walk = saved_page(opened("walk", scale="root"), browser, tmp_path, wrong)
    walk.locator("dfn").locator("visible=true").first.focus()
    walk.wait_for_function("() => !document.getElementById('tip').hidden")
    walk.click("#walk-next")
    assert walk.locator("#stage-1").is_visible()
    walk.click("[data-step='2']")
    walk.focus('[data-key="scores-0:0:0"]')
    assert "q₁·k₁" in walk.locator("#why").inner_text()
    walk.context.close()
    race = saved_page(opened("cache"), browser, tmp_path, wrong)
    before = race.locator(".race-tokens").first.inner_text()
    race.focus("#race-moment")
    race.keyboard.press("Home")
    assert race.locator(".race-tokens").first.inner_text() != before
    assert race.locator("#cache-next").is_disabled()
    race.context.close()
    start = saved_page(opened(""), browser, tmp_path, wrong)
    before = start.locator("[data-path='weights.1']").inner_text()
    start.focus("#point-1")
    start.keyboard.press("ArrowLeft")
    assert start.locator("[data-path='weights.1']").inner_text() != before
    start.context.close()
    assert not wrong


@pytest.mark.parametrize("name", ["walk", "transcript"])
def test_without_a_script_forms_are_sent_and_answered(context_of, name: str) -> None:
    page = context_of(java_script_enabled=False).new_page()
    page.goto(f"/{name}")
    if name == "walk":
        page.locator('noscript input[name="x"]').fill("1,0;0,1;2,2")
        page.get_by_role("button", name="Compute").click()
        assert page.locator('data[data-path$="x.2.0"]').first.get_attribute("value") == "2"
    else:
        page.get_by_role("link", name="Compute it and wait").click()
        page.locator("#result data").first.wait_for(state="attached")  # the page comes when the work is done


def test_a_page_of_the_named_origin_shows_the_lab_in_a_frame_and_no_other(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>course</title><iframe width=900 height=700></iframe>")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}"
        for embed in (origin, "https://course.example"):
            with running(*COMMAND, "--embed", embed) as lab:
                page = browser.new_page()
                page.goto(origin)
                page.evaluate("address => (document.querySelector('iframe').src = address)", f"{lab.address}/")
                if embed == origin:
                    page.frame_locator("iframe").locator("#point-1").wait_for(timeout=60_000)
                else:
                    page.wait_for_timeout(1500)
                    assert page.frame_locator("iframe").locator("#point-1").count() == 0
                page.close()
        server.shutdown()
