"""The walk in a browser: edits give the library's numbers, and cells say what made them, by mouse and by keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import qkv
from tests.helpers.browser_lab import NARROW

LONG_TASK = 50  # milliseconds, as browsers count them


@pytest.mark.slow
def test_edits_show_what_the_library_computes(opened, edit, shown) -> None:
    page = opened("walk", numbers="decimal", scale="root")
    edit(page, "x", "2,3;-1,0;1/2,-2")
    edit(page, "mask", "causal")
    x = torch.tensor([[2.0, 3], [-1, 0], [0.5, -2]], dtype=torch.float64)
    wq = torch.tensor([[1.0, 0, 2], [0, 1, -3]], dtype=torch.float64)
    wk = torch.tensor([[0.0, 0, -1], [-2, 0, 1]], dtype=torch.float64)
    wv = torch.tensor([[8.0, 0], [0, 9]], dtype=torch.float64)
    out, weights = qkv.attention(x @ wq, x @ wk, x @ wv, mask=qkv.Causal(), return_weights=True)
    found = shown(page)
    for path, wanted in (("output", out), ("heads.0.weights", weights)):
        for i, j in torch.cartesian_prod(*(torch.arange(size) for size in wanted.shape)).tolist():
            if path == "output" or j <= i:
                assert float(found[f"{path}.{i}.{j}"][0]) == pytest.approx(wanted[i, j].item(), abs=1e-12)
    assert page.locator('[data-key="weights-0:0:2"][aria-label="masked"]').count() == 1
    edit(page, "heads", "2")
    assert "heads and kvheads 1 and 1" in page.locator("#p-heads").inner_text()


@pytest.mark.slow
def test_pointing_at_a_cell_lights_up_what_made_it(opened) -> None:
    page = opened("walk", all="yes")
    page.hover('[data-key="scores-0:1:0"]')
    q, k = torch.tensor([-1, 0, -2]), torch.tensor([-6, 0, 1])
    assert page.locator("#why").inner_text() == f"q₂·k₁ = (−1)·(−6) + 0·0 + (−2)·1 = {int(q @ k)}"
    lit = "all => all.map(cell => cell.dataset.key)"
    assert page.eval_on_selector_all(".lit", lit) == ["q:1:0", "q:1:1", "q:1:2"]
    assert page.eval_on_selector_all(".lit-2", lit) == ["k:0:0", "k:0:1", "k:0:2"]
    page.hover('[data-key="sums-0:2:1"]')
    assert page.eval_on_selector_all(".lit", lit) == ["weights-0:2:0", "weights-0:2:1", "weights-0:2:2"]
    assert page.eval_on_selector_all(".lit-2", lit) == ["v:0:1", "v:1:1", "v:2:1"]
    page.hover("h1")
    assert page.locator(".lit, .lit-2").count() == 0


@pytest.mark.slow
def test_the_keyboard_alone_walks(opened, ready) -> None:
    page = opened("walk")
    page.focus("button[data-step='0']")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.activeElement.dataset.step === '1'")
    ready(page)
    page.keyboard.press("PageDown")
    page.wait_for_function("() => document.activeElement.dataset.step === '2'")
    ready(page)
    page.wait_for_function("() => location.search === '?step=2'")
    assert page.locator("#stage-2.now").count() == 1
    page.focus('[data-key="scores-0:0:0"]')
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate("() => document.activeElement.dataset.key") == "scores-0:1:2"
    assert page.locator("#why").inner_text() == "q₂·k₃ = (−1)·4 + 0·0 + (−2)·(−3) = 2"
    assert page.locator("#live").inner_text() == page.locator("#why").inner_text()
    assert page.locator('[data-key^="scores-0:"][tabindex="0"]').count() == 1
    page.keyboard.press("PageDown")
    page.wait_for_function("() => document.querySelector('#stage-3.now') !== null")
    ready(page)
    assert page.evaluate("() => document.activeElement.dataset.key") == "scores-0:1:2"


@pytest.mark.slow
def test_a_matrix_that_grows_takes_the_others_along(opened, ready, shown) -> None:
    page = opened("walk", numbers="decimal")
    page.click('[data-field="x"] [data-grow="column"]')
    page.wait_for_function("() => document.querySelectorAll('[data-key^=\"wq:\"]').length === 9")
    ready(page)
    assert page.locator(".problem:visible").count() == 0
    assert shown(page)["output.2.0"][1] == "−7.941"


@pytest.mark.slow
def test_next_and_back_show_one_step_and_what_it_is_made_of(opened) -> None:
    page = opened("walk")
    stages = page.locator(".stage:visible")
    assert stages.count() == 1
    for step, shown in enumerate((2, 2, 2, 2, 3, 2), 1):
        page.click("#walk-next")
        page.wait_for_function(f"() => location.search === '?step={step}'")
        assert page.locator(f"#stage-{step}.now").is_visible()
        assert stages.count() == shown
        assert page.locator("#view").get_attribute("data-computed") == "1"
    page.click("#walk-back")
    page.wait_for_function("() => location.search === '?step=5'")
    page.reload()
    assert page.locator("#stage-5.now").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("size", [{"width": 1440, "height": 900}, NARROW])
def test_the_controls_are_seen_without_scrolling(opened, size) -> None:
    page = opened("walk")
    page.set_viewport_size(size)
    for name in ("similarity", "scale", "mask", "heads"):
        box = page.locator(f"[name={name}]").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < size["height"] / 2, name
    box = page.locator("#walk-next").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < size["height"] * 0.55


@contextmanager
def tasks_of(browser, page) -> Iterator[list[float]]:
    """The tasks of the page's thread: milliseconds that each computed, without those in which others had the processor.

    An observer of long tasks counts those too, and calls any task long on a busy machine.
    """
    found: list[float] = []
    browser.start_tracing(page=page, categories=["toplevel", "blink.user_timing"])
    try:
        page.evaluate("() => { performance.mark('tasks'); }")
        yield found
    finally:
        trace = browser.stop_tracing()
    events = json.loads(trace)["traceEvents"]
    (mark,) = [event for event in events if event["name"] == "tasks"]
    place = mark["pid"], mark["tid"]
    tasks = [event for event in events if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) == place]
    found += [event["tdur"] / 1000 for event in tasks if "tdur" in event]


@pytest.mark.slow
def test_play_adds_up_term_by_term_in_short_tasks(browser, context_of) -> None:
    page = context_of(reduced_motion="no-preference").new_page()
    page.goto("/walk?step=2")
    page.wait_for_function("() => document.getElementById('view').dataset.started")
    page.evaluate(
        """() => { window.said = [];
        new MutationObserver(() => window.said.push(document.getElementById("why").textContent))
          .observe(document.getElementById("why"), {childList: true}); }"""
    )
    with tasks_of(browser, page) as tasks:
        page.click("#walk-play")
        page.wait_for_function("() => document.getElementById('flow').dataset.step === '3'")
        page.click("#walk-play")
    said = page.evaluate("() => window.said")
    assert [line for line in said if line][:3] == [
        "2·(−6) = −12 …", "2·(−6) + 3·0 = −12 …", "2·(−6) + 3·0 + (−5)·1 = −17",
    ]  # fmt: skip
    ends = [line for line in said if re.fullmatch(r"[^q]* = \S+", line)]
    q, k = torch.tensor([[2, 3, -5], [-1, 0, -2], [1, -2, 8]]), torch.tensor([[-6, 0, 1], [0, 0, 1], [4, 0, -3]])
    assert [int(line.split()[-1].replace("−", "-")) for line in ends] == (q @ k.T).flatten().tolist()
    assert len(tasks) > len(said)
    assert [task for task in tasks if task > LONG_TASK] == []


@pytest.mark.slow
def test_a_long_task_is_seen(browser, page) -> None:
    page.goto("about:blank")
    with tasks_of(browser, page) as tasks:
        page.evaluate("() => new Promise((done) => setTimeout(() => {"
                      "let x = 1; for (let i = 0; i < 3e8; i++) x = Math.imul(x, 7) + i; done(x); }))")  # fmt: skip
    assert max(tasks) > LONG_TASK
