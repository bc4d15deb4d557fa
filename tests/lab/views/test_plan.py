"""Plan: what the page says is what `qkv plan --json` says, for presets and for configs of a reader's own."""

import contextlib
import io
import json
import re

import jsonschema
import pytest

from qkv.cost import config_model, plan
from qkv.cost.architecture import models
from qkv.cost.machine import hardware
from qkv.lab.fields import typed
from qkv.lab.view import Work
from qkv.lab.views.plan import EXAMPLE, VIEW
from qkv.lab.worker import answer

SCHEMA = jsonschema.Draft202012Validator(
    {"type": "object", "properties": dict(VIEW.schema), "required": list(VIEW.schema), "additionalProperties": False}
)
LARGE = 2**63 - 1


def asked(**texts):
    """The answer of the view, which every test holds to its schema."""
    found = answer(VIEW, {name: str(text) for name, text in texts.items()}, Work(), draw=True)
    if found.result is not None:
        json.dumps(found.result, allow_nan=False)
        SCHEMA.validate(found.result)
        assert not re.search(r"<(script|style|img)|<[^>]*\s(style|on\w+)=", found.html)
    return found


def result(**texts):
    found = asked(**texts)
    assert not found.problems
    return found.result


# One of each kind and of each style of attention and feed-forward network.
KINDS = ["gpt-2", "bert-base", "t5-small", "llama-3-8b", "mixtral-8x7b", "gemma-3-4b", "deepseek-v3", "falcon-7b"]


@pytest.mark.slow
@pytest.mark.parametrize("model", KINDS)
def test_it_is_what_the_command_says(model):
    texts = {"model": model, "hardware": "t4", "context": 777, "batch": 3, "weights": "int4", "cache": "int8"}
    found = result(**texts, prompt=99)
    wanted = plan(model, "t4", context=777, batch=3, weights="int4", cache="int8", prompt=99).as_dict()
    assert {name: found[name] for name in wanted} == json.loads(json.dumps(wanted))
    assert {curve["name"] for curve in found["curves"]} == set(wanted["variants"])
    assert all(part["formula"] for part in found["parts"].values())


def test_every_preset_can_be_chosen():
    fields = {field.name: field for field in VIEW.fields}
    assert set(fields["model"].options) == {"config", *models()}
    assert set(fields["hardware"].options) == set(hardware())


@pytest.mark.slow
@pytest.mark.parametrize("context", [1, 1 << 24])
@pytest.mark.parametrize("batch", [1, 1 << 16])
@pytest.mark.parametrize("model", ["bert-base", "t5-small", "deepseek-v3"])
def test_edges(model, batch, context):
    found = result(model=model, context=context, batch=batch, prompt=0, hardware="m1", weights="float32")
    assert found["prompt"] == context
    assert found["step_seconds"] > 0


@pytest.mark.parametrize("model", ["bert-base", "llama-3-8b"])
def test_one_is_one(model):
    page = asked(model=model, context=1, batch=1, hardware="m1", weights="int4").html
    assert not re.search(r"\b1(</data>)? (tokens|sequences)\b", page)
    assert "scales come on top" in page
    assert "can lie below the roof" in re.sub(r"\s*</?tspan[^>]*>\s*", " ", page)


def test_a_config_of_ones_own():
    found = result(model="config", config="\ufeff" + EXAMPLE, hardware="h100-sxm")
    wanted = plan(config_model(EXAMPLE), "h100-sxm", context=8192).as_dict()
    assert {name: found[name] for name in wanted} == json.loads(json.dumps(wanted))


def test_sizes_beyond_reason_are_still_answered():
    sizes = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"), LARGE)
    config = {"model_type": "bert", **sizes, "vocab_size": LARGE, "max_position_embeddings": LARGE}
    found = result(model="config", config=json.dumps(config), context=1 << 24, batch=1 << 16)
    assert found["fits"] is False


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "the text of a config.json"),
        ("{", "read as JSON"),
        ("[1]", "a JSON object"),
        ('{"a":' * 30_000, "read as JSON"),
        ("9" * 5000, "read as JSON"),
        ('{"model_type": "llama", "hidden_size": NaN}', "hidden_size"),
        ('{"model_type": "<b>"}', "model_type"),
        ("/etc/passwd", "read as JSON"),
        ("x" * 200_001, "at most 200000"),
    ],
    ids=["nothing", "broken", "list", "deep", "long", "nan", "unknown", "path", "large"],
)
def test_configs_that_are_none_are_refused_at_their_field(config, said):
    found = asked(model="config", config=config)
    assert found.result is None
    assert said in found.problems["config"]


@pytest.mark.parametrize("model", ["llama-3.2-1b", "config"])
def test_the_program_says_the_same(model):
    texts = {"model": model, "config": EXAMPLE, "hardware": "t4", "context": "5000", "batch": "2", "prompt": "70"}
    state, said, names = typed(VIEW.fields, texts).state, io.StringIO(), {}
    assert state is not None
    with contextlib.redirect_stdout(said):
        exec(VIEW.python(state), names)
    found = result(**texts)
    wanted = json.loads(json.dumps(names["found"].as_dict()))
    assert {name: found[name] for name in wanted} == wanted
    assert said.getvalue() == f"{names['found']}\n"
