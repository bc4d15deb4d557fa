"""qkv.widgets.Walk in a browser: its numbers, its buttons and keys, and its step, which Python and the page share."""

from __future__ import annotations

import json

import pytest
import torch

import qkv
from tests.helpers.browser_lab import SCREENS, SLOW

pytestmark = pytest.mark.slow

Q = torch.tensor([[2.0, 3], [-1, 0], [1, -2]])
K = torch.tensor([[-6.0, 1], [0, 1], [4, -3]])
V = torch.tensor([[16.0, 27], [-8, 0], [8, -18]])
HEAD = '<!doctype html><html lang="en"><meta charset="utf-8"><title>walk</title><body {}>{}</body></html>'
# A model as anywidget gives one to `render`, with two functions of this test on the side of Python.
MODEL = """
const listeners = new Set();
window.state = %s;
window.model = {
  get: (name) => window.state[name],
  set: (name, value) => { window.state[name] = value; for (const each of [...listeners]) each(); },
  save_changes: () => window.saved(window.state.step),
  on: (_, each) => listeners.add(each), off: (_, each) => listeners.delete(each),
};
window.end = render({ model: window.model, el: document.getElementById("place") });
window.listening = () => listeners.size;
"""


@pytest.fixture
def walk():
    return qkv.widgets.Walk(Q, K, V, mask=qkv.Causal(), scale=1.0, words=["the", "cat", "<i>sat</i>"])


@pytest.fixture
def context(browser):
    made = browser.new_context(viewport={"width": 900, "height": 600}, reduced_motion="reduce", offline=True)
    made.set_default_timeout(SLOW)
    wrong: list[str] = []
    made.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    made.on("weberror", lambda error: wrong.append(str(error.error)))
    made.on("request", lambda request: wrong.append(request.url))
    yield made
    made.close()
    assert not wrong


def opened(context, walk, attributes=""):
    page = context.new_page()
    page.set_content(HEAD.format(attributes, walk.to_html()))
    page.wait_for_selector(".qkv-walk")
    return page


def shown(page, grid):
    """The numbers of a grid on the page; None where the mask hides one."""
    read = "cells => cells.map(c => [c.dataset.key, c.querySelector('data')?.value ?? null])"
    cells = page.eval_on_selector_all(f'td[data-key^="{grid}:"]', read)
    rows: dict[int, list[float | None]] = {}
    for key, value in cells:
        rows.setdefault(int(key.split(":")[1]), []).append(None if value is None else float(value))
    return [rows[at] for at in sorted(rows)]


def test_next_shows_the_librarys_numbers_one_step_at_a_time(context, walk):
    page = opened(context, walk)
    out, weights = qkv.attention(Q, K, V, mask=qkv.Causal(), similarity=qkv.Softmax(scale=1.0), return_weights=True)
    assert shown(page, "q") == Q.tolist()
    page.click("text=Next")
    assert shown(page, "scores") == (Q @ K.T).tolist()
    page.click("text=Next")
    assert shown(page, "scaled")[0] == [(Q @ K.T)[0, 0].item(), None, None]
    page.click("text=Next")
    found = [[0.0 if cell is None else cell for cell in row] for row in shown(page, "weights")]
    torch.testing.assert_close(torch.tensor(found), weights)
    page.click("text=Next")
    torch.testing.assert_close(torch.tensor(shown(page, "output")), out)
    assert page.locator("button:has-text('Next')").get_attribute("aria-disabled") == "true"
    assert page.locator(".from figure").count() == 2
    page.click("text=Back")
    assert page.locator(".now").get_attribute("data-stage") == "3"
    assert page.locator("text=<i>sat</i>").count() == 4  # a word is text


def test_a_cell_says_how_it_was_made_by_mouse_and_keyboard(context, walk):
    page = opened(context, walk)
    page.click("button[data-step='1']")
    page.hover('[data-key="scores:1:0"]')
    assert page.locator(".why").inner_text() == "q₂·k₁ = (−1)·(−6) + 0·1 = 6"
    lit = "all => all.map(cell => cell.dataset.key)"
    assert page.eval_on_selector_all(".lit", lit) == ["q:1:0", "q:1:1"]
    assert page.eval_on_selector_all(".lit-2", lit) == ["k:0:0", "k:0:1"]
    page.focus('[data-key="scores:0:0"]')
    page.mouse.move(899, 599)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.dataset.key") == "scores:1:1"
    assert page.locator(".why").inner_text() == "q₂·k₂ = (−1)·0 + 0·1 = 0"
    page.keyboard.press("PageDown")
    assert page.evaluate("() => document.activeElement.dataset.key") == "scaled:0:0"


def test_the_step_goes_both_ways(context, walk):
    page = context.new_page()
    page.expose_function("saved", lambda step: setattr(walk, "step", step))
    script = str(walk._esm).replace("export default { render };", "")
    state = json.dumps({"data": walk.data, "step": walk.step}).replace("<", "\\u003c")
    page.set_content(HEAD.format("", f'<div id="place"></div><script type="module">{script}\n{MODEL % state}</script>'))
    page.wait_for_selector(".qkv-walk")
    page.click("text=Next")
    page.wait_for_function("() => document.querySelector('.now').dataset.stage === '1'")
    assert walk.step == 1
    walk.step = 4
    page.evaluate("step => window.model.set('step', step)", walk.step)
    assert page.locator(".now").get_attribute("data-stage") == "4"
    assert page.locator("[aria-current=step]").inner_text() == "Output"
    assert page.evaluate("() => window.listening()") == 1
    page.evaluate("() => window.end()")
    assert page.evaluate("() => window.listening()") == 0


def test_play_adds_up_and_goes_on_to_the_last_step(context, browser, walk):
    other = browser.new_context(reduced_motion="no-preference", offline=True)
    page = opened(other, walk)
    page.evaluate("() => { const real = setTimeout; window.setTimeout = (f, time) => real(f, time / 40); }")
    page.evaluate(
        """() => { window.said = []; new MutationObserver(() => window.said.push(
        document.querySelector(".why").textContent)).observe(document.querySelector(".why"), {childList: true}); }"""
    )
    page.click("text=Play")
    assert page.locator("button:has-text('Pause')").count() == 1
    page.wait_for_function("() => document.querySelector('.now').dataset.stage === '4'")
    page.wait_for_selector("button:has-text('Play')")
    said = [line for line in page.evaluate("() => window.said") if line]
    assert said[said.index("2·(−6) = −12 …") + 1] == "2·(−6) + 3·1 = −9"
    other.close()
    assert context.pages == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [{"width": 900, "height": 600}, {"width": 390, "height": 844}])
def test_text_is_read_in_both_themes_and_fits(context, walk, theme, size, pytestconfig):
    page = opened(context, walk, f'data-jp-theme-light="{"true" if theme == "light" else "false"}"')
    page.set_viewport_size(size)
    for step in range(5):
        page.click(f"button[data-step='{step}']")
        page.hover(".now td[data-key] >> nth=1")
        # Canvas turns whatever a style says into red, green, blue and alpha.
        poor = page.evaluate(
            """() => {
            const draw = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
            const over = (colours) => { for (const c of colours) { draw.fillStyle = c; draw.fillRect(0, 0, 1, 1); }
              return [...draw.getImageData(0, 0, 1, 1).data].slice(0, 3); };
            const luminance = (rgb) => { const [r, g, b] = rgb.map(v => v / 255).map(v =>
              v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
            const behind = (e) => e ? [...behind(e.parentElement), getComputedStyle(e).backgroundColor] : ["white"];
            return [...document.querySelectorAll(".qkv-walk *")].filter(e => e.checkVisibility() &&
              [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e => {
                const ink = luminance(over([getComputedStyle(e).color])), paper = luminance(over(behind(e)));
                return [(Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05), e.outerHTML.slice(0, 80)];
              }).filter(([contrast]) => contrast < 4.5); }"""
        )
        assert not poor
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        if pytestconfig.getoption("screens"):
            SCREENS.mkdir(parents=True, exist_ok=True)
            page.locator(".qkv-walk").screenshot(path=SCREENS / f"walk-{theme}-{size['width']}-{step}.png")
