"""Norms in a browser: entries are taken and dragged by mouse and by keyboard, and torch's layers say what moves."""

import pytest
import torch

pytestmark = pytest.mark.slow

X = [[1.0, 2.0, 4.0, 9.0], [3.0, -1.0, 0.0, 2.0], [5.0, 1.0, 2.0, -4.0]]


def normalised(layer: torch.nn.Module, row: int, column: int, by: float) -> list[float]:
    x = torch.tensor(X, dtype=torch.float64)
    x[row, column] += by
    with torch.no_grad():
        return layer.double()(x).flatten().tolist()


def outputs(shown: dict) -> list[float]:
    return [float(shown[f"after.{i}.{j}"][0]) for i in range(3) for j in range(4)]


def test_edits_lead_to_what_torch_computes(opened, edit, shown) -> None:
    page = opened("norms", delta="0.5")
    assert outputs(shown(page)) == pytest.approx(normalised(torch.nn.LayerNorm(4), 1, 2, 0.5))
    assert page.locator(".outputs td.moved").count() == 4
    edit(page, "norm", "batch")
    assert outputs(shown(page)) == pytest.approx(normalised(torch.nn.BatchNorm1d(4), 1, 2, 0.5))
    assert page.locator(".outputs td.moved").count() == 3
    edit(page, "mode", "eval")
    assert page.locator(".outputs td.moved").count() == 1
    edit(page, "x", "1,2,4,9")
    assert shown(page)["stored.variance.0"][0] == repr(torch.nn.BatchNorm1d(4).running_var[0].item())
    edit(page, "mode", "train")
    assert "one vector" in page.locator("#p-x").inner_text()


def test_an_entry_is_pulled_by_mouse(opened, ready, shown) -> None:
    page = opened("norms")
    box = page.locator('[data-key="x-3-1"]').bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 30, y, steps=3)
    page.mouse.move(x + 60, y, steps=3)
    page.locator('[data-key="x-3-1"][aria-pressed="true"]').wait_for()
    page.wait_for_function("() => document.querySelector('[data-path=dragged_to]').value === '5.5'")
    page.mouse.up()
    ready(page)
    assert "delta=0.5" in page.url
    assert outputs(shown(page)) == pytest.approx(normalised(torch.nn.LayerNorm(4), 2, 0, 0.5))


def test_an_entry_is_taken_and_dragged_by_keyboard_alone(opened, ready, shown) -> None:
    page = opened("norms")
    page.locator('[data-key="x-2-3"]').focus()
    for key, focused in (("ArrowUp", "x-1-3"), ("ArrowUp", "x-1-3"), ("ArrowRight", "x-1-4")):
        page.keyboard.press(key)
        assert page.evaluate("() => document.activeElement.dataset.key") == focused
    page.keyboard.press("Enter")
    page.locator('[data-key="x-1-4"][aria-pressed="true"]').wait_for()
    ready(page)
    assert outputs(shown(page)) == pytest.approx(normalised(torch.nn.LayerNorm(4), 0, 3, 1.0))
    for key, delta in (("+", 1.1), ("PageDown", 0.1), ("-", 0.0), ("-", -0.1)):
        page.keyboard.press(key)
        page.wait_for_function("to => document.getElementById('f-delta').value === to", arg=f"{delta:g}")
        ready(page)
        assert page.evaluate("() => document.activeElement.dataset.key") == "x-1-4"
        assert outputs(shown(page)) == pytest.approx(normalised(torch.nn.LayerNorm(4), 0, 3, delta))
