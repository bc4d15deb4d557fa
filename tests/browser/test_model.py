"""The model view by mouse and by keyboard: other heads, other rows, other texts, and the library's numbers for them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

import qkv
from qkv.lab.checkpoints import available
from qkv.lab.views.model import SENTENCE
from tests.helpers.browser_lab import numbers, ready, type_into

MINILM = next((each for each in available() if each.name == "minilm"), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MINILM is None, reason="no weights here: make weights"),
]


@pytest.fixture(scope="module")
def looked():
    """The layers of a text, by the library alone."""
    assert MINILM is not None
    model, tokenizer = qkv.hf.load(MINILM.place, generates=False)

    def layers(text: str):
        given = tokenizer(text, return_tensors="pt")
        return qkv.hf.capture(model, {name: given[name] for name in ("input_ids", "attention_mask")})

    return layers


def agrees(page: Page, looked, text: str, layer: int, head: int, query: int) -> None:
    """The page is at this head and row, and its numbers are the library's."""
    found = {path: value for path, (value, _) in numbers(page).items()}
    assert [int(found[name]) for name in ("layer", "head")] == [layer, head]
    weights = looked(text)[layer - 1].weights
    for name, values in qkv.hf.head_statistics(weights)._asdict().items():
        assert float(found[f"habits.{name}"]) == pytest.approx(values[0, head - 1].item(), abs=1e-6)
    row = weights[0, head - 1, query - 1] if query else weights[0, head - 1].mean(0)
    most = row.topk(min(3, sum(path.endswith(".weight") for path in found)))
    for place, (value, at) in enumerate(zip(most.values.tolist(), most.indices.tolist(), strict=True)):
        assert float(found[f"row.top.{place}.weight"]) == pytest.approx(value, abs=1e-6)
        assert int(found[f"row.top.{place}.at"]) == at + 1


def test_a_text_and_a_refusal(opened, looked) -> None:
    page = opened("model")
    agrees(page, looked, SENTENCE, 1, 3, 0)
    text = "Colourless green ideas sleep furiously."
    type_into(page, "text", text)
    agrees(page, looked, text, 1, 3, 0)
    type_into(page, "query", "99")
    expect(page.locator("#p-query")).to_contain_text("wanted 0 to ")
    assert page.locator("#f-query").input_value() == "99", "what was typed is kept"
    type_into(page, "query", "2")
    agrees(page, looked, text, 1, 3, 2)
    type_into(page, "text", "cat " * 200)
    expect(page.locator("#result .warn")).to_contain_text("first 128 tokens were kept, and 74 were left out")


def test_heads_by_mouse_and_by_keyboard(opened, looked) -> None:
    page = opened("model")
    page.click("#head-4-8")
    ready(page)
    agrees(page, looked, SENTENCE, 4, 8, 0)
    for key in ("ArrowDown", "ArrowLeft", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    ready(page)
    agrees(page, looked, SENTENCE, 5, 6, 0)
    expect(page.locator("#head-5-6")).to_be_focused()
    assert page.locator('#heads button[tabindex="0"]').count() == 1, "one stop for all heads"
    page.click(".habits >> text=layer 1, head 3")
    ready(page)
    agrees(page, looked, SENTENCE, 1, 3, 0)


def test_cells_and_tokens_by_mouse_and_by_keyboard(opened, looked) -> None:
    page = opened("model", layer=2, head=9)
    page.locator(".qkv-cells > g").nth(6).locator("rect").nth(5).click()
    ready(page)
    agrees(page, looked, SENTENCE, 2, 9, 7)
    page.focus("#map")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    weight = looked(SENTENCE)[1].weights[0, 8, 7, 6].item()
    said = page.locator("#cell").text_content() or ""
    place, value = said.split(": ")
    assert place == "query 8 sat, key 7 mice"
    assert float(value) == pytest.approx(weight, rel=1e-3)
    expect(page.locator("#live")).to_have_text(said)
    page.keyboard.press("Enter")
    ready(page)
    agrees(page, looked, SENTENCE, 2, 9, 8)
    expect(page.locator("#map")).to_be_focused()
    page.keyboard.press("Tab")
    while page.evaluate("() => document.activeElement.matches('dfn')"):  # words of the glossary
        page.keyboard.press("Tab")
    expect(page.locator("#token-8")).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    ready(page)
    agrees(page, looked, SENTENCE, 2, 9, 9)
    page.click("#token-0")
    ready(page)
    agrees(page, looked, SENTENCE, 2, 9, 0)
