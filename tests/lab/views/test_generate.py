"""Generate: what the page says is what the runtime gives, step by step and from any state alone."""

from __future__ import annotations

import math

import pytest

from qkv.lab.fields import WrongField, typed
from qkv.lab.view import Cancelled, Work
from qkv.lab.views import generate, model
from qkv.lab.views.generate import FOUND, VIEW
from qkv.runtime import load

PROMPT = "One, two, three,"
installed = pytest.mark.skipif("smollm2" not in FOUND, reason="make weights installs SmolLM2")


def result(work: Work | None = None, **given: str) -> dict:
    read = typed(VIEW.fields, {"checkpoint": "smollm2", "prompt": PROMPT} | given)
    assert read.state is not None, read.problems
    return VIEW.compute(read.state, work or Work(seconds=100))


def test_an_empty_prompt_and_a_missing_model_are_told() -> None:
    read = typed(VIEW.fields, {"prompt": " "})
    assert read.state is not None
    with pytest.raises(WrongField) as caught:
        VIEW.compute(read.state, Work())
    assert caught.value.field in ("prompt", "checkpoint")


@installed
@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_text_and_the_chances_are_the_runtime_s(temperature: str) -> None:
    runtime = load(FOUND["smollm2"].place)
    assert runtime.tokenizer is not None
    wanted = runtime.generate(PROMPT, 5, temperature=float(temperature), seed=3, logprobs=8)
    given = {"temperature": temperature, "seed": "3"}
    for new in (2, 5, 3):  # on, and back
        found = result(new=str(new), **given)
        pieces = [generate._piece(runtime.tokenizer.decode, token) for token in wanted.tokens[:new]]
        assert found["tokens"][found["prompted"] :] == pieces
        assert found["cache"]["tokens"] == found["prompted"] + new
        if new < 5:
            best = wanted.top[new]
            assert [each["logprob"] for each in found["next"]] == pytest.approx([*best.values()], abs=1e-4)
    chances = [each["chance"] for each in found["next"]]
    if temperature == "0":
        assert chances == [1.0, *[0.0] * 7]
    else:
        logs = [each["logprob"] / 0.8 for each in found["next"]]
        assert chances[1] / chances[0] == pytest.approx(math.exp(logs[1] - logs[0]), rel=1e-6)
    generate._TEXTS.clear()  # another process, which has nothing kept
    assert result(new="3", **given) == found


@installed
@pytest.mark.slow
@pytest.mark.parametrize("mask", ["recent", "sinks"])
def test_a_mask_hides_tokens_as_the_cache_s_policy_does(mask: str) -> None:
    from qkv.cache import FirstLast

    runtime = load(FOUND["smollm2"].place)
    assert runtime.tokenizer is not None
    prompt = "Once upon a time there was a little girl who lived in a village near the forest. Every day she"
    first = 4 if mask == "sinks" else 0
    cache = runtime.cache(eviction=FirstLast(first, 8, every=1))
    wanted = runtime.generate(prompt, 7, temperature=0, cache=cache)
    found = result(prompt=prompt, new="7", temperature="0", mask=mask)
    assert "".join(found["tokens"][found["prompted"] :]).replace("␣", " ") == wanted.text
    assert found["hidden"] == [first, len(found["tokens"]) - 8]
    assert found["tokens"] != result(prompt=prompt, new="7", temperature="0")["tokens"]


@installed
@pytest.mark.slow
def test_a_question_that_is_stopped_leaves_what_was_written() -> None:
    result(new="1")
    with pytest.raises(Cancelled):
        result(Work(stopped=lambda: True), new="40")
    assert result(new="2")["written"] == 2


@installed
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_weights_are_those_of_the_model_view() -> None:
    found = result(new="2", look="yes", layer="2", head="3")
    text = PROMPT + "".join(found["tokens"][found["prompted"] :]).replace("␣", " ")
    read = typed(model.VIEW.fields, {"checkpoint": "smollm2", "text": text, "layer": "2", "head": "3"})
    assert read.state is not None
    assert found["weights"] == model.VIEW.compute(read.state, Work(seconds=100))["weights"][-1]
    assert sum(found["weights"]) == pytest.approx(1, abs=1e-5)
