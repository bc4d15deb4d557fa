"""Plan: a model by name and one by the text of its config, with the numbers of the library's plan."""

from __future__ import annotations

import pytest

from qkv.cost import config_model, plan
from qkv.lab.views.plan import EXAMPLE

pytestmark = pytest.mark.slow


def agrees(found: dict[str, tuple[str, str]], wanted) -> None:
    plain = wanted.as_dict()
    for name in ("weight_bytes", "cache_bytes", "held_bytes", "seconds_per_token", "intensity", "prefill_seconds"):
        assert found[name][0] == repr(plain[name]), name
    for name, part in plain["parts"].items():
        assert found[f"parts.{name}.seconds"][0] == repr(part["seconds"])
    for name, variant in plain["variants"].items():
        assert found[f"variants.{name}.cache_bytes"][0] == str(variant["cache_bytes"])


def test_edits_plan_again(opened, edit, shown):
    page = opened("plan", hardware="t4")
    agrees(shown(page), plan("llama-3-8b", "t4", context=8192))
    edit(page, "model", "mixtral-8x7b")
    edit(page, "context", "3000")
    edit(page, "weights", "int4")
    agrees(shown(page), plan("mixtral-8x7b", "t4", context=3000, weights="int4"))
    assert page.locator("figure.chart svg").count() == 2


def test_a_config_is_dropped_or_typed(opened, edit, shown, ready, tmp_path):
    page = opened("plan", hardware="t4")
    assert page.locator("#f-config").is_hidden()
    edit(page, "model", "config")
    assert "the text of a config.json" in page.locator("#p-config").text_content()
    file = tmp_path / "config.json"
    file.write_text(EXAMPLE)
    page.set_input_files("[data-field=config] input[type=file]", file)
    page.wait_for_selector("text=config on t4")
    ready(page)
    agrees(shown(page), plan(config_model(EXAMPLE), "t4", context=8192))
    edit(page, "config", EXAMPLE.replace('"num_hidden_layers": 16', '"num_hidden_layers": 3'))
    agrees(shown(page), plan(config_model(EXAMPLE.replace("16", "3", 1)), "t4", context=8192))
    page.reload()
    ready(page)
    agrees(shown(page), plan(config_model(EXAMPLE.replace("16", "3", 1)), "t4", context=8192))
