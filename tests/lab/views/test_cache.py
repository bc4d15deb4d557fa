"""Cache: what the page says of four ways to keep the past is what a count by hand says, at every edge of its fields."""

import contextlib
import io
import itertools
import json
import re

import jsonschema
import pytest
import torch

import qkv
from qkv.cost import Machine, variants
from qkv.cost.machine import as_hardware, calibration_path
from qkv.lab.fields import typed
from qkv.lab.view import Cancelled, Work
from qkv.lab.views import cache_race
from qkv.lab.views.cache import FORMS, VIEW
from qkv.lab.worker import answer

SCHEMA = jsonschema.Draft202012Validator(
    {"type": "object", "properties": dict(VIEW.schema), "required": list(VIEW.schema), "additionalProperties": False}
)


def asked(**texts):
    """The answer of the view, which every test holds to its schema."""
    found = answer(VIEW, {name: str(text) for name, text in texts.items()}, Work(seconds=60), draw=True)
    if found.result is not None:
        json.dumps(found.result, allow_nan=False)
        SCHEMA.validate(found.result)
        assert not re.search(r"<(script|style|img)|<[^>]*\s(style|on\w+)=", found.html)
    return found


def result(**texts):
    found = asked(**texts)
    assert not found.problems
    return found.result


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (64, 1), (64, 64), (12, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_every_edge(heads, kv_heads, dtype):
    item = {"float32": 4, "int8": 1}[dtype]
    edges = [(1, 8, 0, 0), (64, 256, 131072, 16), (3, 40, 63, 1)]
    for (batch, width, past, step), form in zip(edges, itertools.cycle(FORMS), strict=False):
        found = result(
            form=form, batch=batch, heads=heads, kvheads=kv_heads, width=width, past=past, step=step, dtype=dtype
        )
        tokens = past + step
        assert (found["tokens"], found["pages"]) == (tokens, -(-tokens // 64))
        assert [way["chosen"] for way in found["ways"]] == [name == form for name in FORMS]
        for way, kept in zip(found["ways"], (heads, kv_heads, 1), strict=False):
            assert way["held"] == batch * kept * tokens * 2 * width * item
            assert way["flops"] == batch * heads * ((tokens + 1) * (4 * width + 5) + width)
        assert found["ways"][3]["held"] == 4 * batch * kv_heads * width * (width + 1)
        for way in found["ways"]:
            assert way["intensity"] == way["flops"] / (way["read"] + way["written"])
            roof = min(1, way["intensity"] / found["machine"]["ridge"]) * found["machine"]["rate"]
            assert way["speed"] == pytest.approx(roof)


def test_a_step_adds_a_token_to_caches_and_nothing_to_the_state():
    before, after = result(step=4), result(step=5)
    grown = [b["held"] - a["held"] for a, b in zip(before["ways"], after["ways"], strict=True)]
    assert grown == [2 * heads * 128 * 2 for heads in (32, 8, 1)] + [0]
    assert before["smaller_from"] == after["smaller_from"] == {"MHA": 33, "GQA": 130, "MQA": 1033}


def test_what_is_said_holds_in_every_state():
    texts = {"past": 1000, "width": 8, "heads": 8, "kvheads": 8}
    page = asked(dtype="int8", **texts)
    assert page.result["ways"][0]["scales"] == 8 * 8 * 1000
    assert "two float32 scales" in page.html
    assert "Without the scales, the linear state" in page.html
    assert "scales stored with them" not in asked(dtype="float16", **texts).html
    linear = asked(form="linear", past=1).html
    assert "The linear state has no pages" in linear
    assert not re.search(r"\b1(</data>)? (tokens|earlier tokens|steps)\b", linear)
    assert "in a long past" not in linear
    assert '<span class="live">The left and right arrow keys' in linear


def test_groups_must_divide():
    found = asked(heads="32", kvheads="5")
    assert found.result is None
    assert "divides the 32 query heads" in found.problems["kvheads"]


def test_measured_memories_are_real():
    for form, heads in (("gqa", 2), ("linear", 2)):
        found = result(form=form, heads=4, kvheads=2, width=16, past=100, step=2, dtype="int8", measure="yes")[
            "measured"
        ]
        if form == "gqa":
            cache = qkv.KVCache(1, heads, 16, dtype=torch.int8)
            cache.append(torch.zeros(1, heads, 102, 16), torch.zeros(1, heads, 102, 16))
        else:
            cache = qkv.LinearState(qkv.FeatureMap(qkv.features.elu1), 1, heads, 16)
        assert found["nbytes"] == cache.nbytes
        assert found["low"] <= found["seconds"] <= found["high"]
        assert found["ratio"] == found["nbytes"] / found["counted"]
    assert result(heads=1, kvheads=1, past=0, measure="yes")["measured"]["ratio"] is None


def test_a_measurement_is_bounded_and_can_be_stopped():
    found = asked(form="mha", past=131072, measure="yes")
    assert found.result is None
    assert "at most 67.1 MB" in found.problems["measure"]
    state = typed(VIEW.fields, {"measure": "yes"}).state
    assert state is not None
    with pytest.raises(Cancelled):
        VIEW.compute(state, Work(stopped=lambda: True))


def test_the_machine_is_the_stored_one(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    found = asked()
    assert found.result is not None
    assert found.result["machine"]["measured"] is False
    assert "qkv calibrate" in found.html
    roofs = {"read.memory": 5e9, "multiply.float32.square": 40e9}
    Machine("mine", 2, 2, 1 << 33, taken="today", roofs=roofs).store(calibration_path())
    found = asked()
    assert found.result is not None
    machine = found.result["machine"]
    assert (machine["measured"], machine["rate"], machine["bandwidth"], machine["ridge"]) == (True, 40e9, 5e9, 8.0)
    assert "built-in" not in found.html


def test_the_program_says_the_same():
    texts = {"form": "mqa", "past": "1000", "step": "7", "dtype": "float16", "batch": "3"}
    found, said = result(**texts), io.StringIO()
    state = typed(VIEW.fields, texts).state
    assert state is not None
    with contextlib.redirect_stdout(said):
        exec(VIEW.python(state), {})
    names = ("held", "scales", "read", "written", "flops", "intensity")
    wanted = []
    for way in found["ways"]:
        wanted.append(" ".join([way["name"], *(str(way[name]) for name in names)]))
        wanted.append(f"{way['name']} by the roofline {way['seconds']}")
    assert said.getvalue().splitlines() == wanted


def test_the_race_has_the_bytes_and_the_time_of_the_library():
    layers, sizes = 3, {"batch": 1, "heads": 4, "kv_heads": 2, "width": 16, "cache": "bfloat16"}
    texts = {"layers": layers, "heads": 4, "kvheads": 2, "width": 16, "past": 7, "machine": "h100-sxm"}
    found, machine = result(**texts)["race"], as_hardware("h100-sxm")
    assert [way["name"] for way in found["ways"]] == ["MHA", "GQA", "MQA", "MLA", "linear"]
    for way in found["ways"]:
        name, full = way["name"], way["full_at"]
        for tokens, held in zip(way["tokens"], way["held"], strict=True):
            assert held == layers * cache_race.kept(name, tokens, sizes)[0]
        if name == "linear":
            assert full is None
            continue
        assert (
            layers * cache_race.kept(name, full, sizes)[0]
            <= found["memory"]
            < layers * cache_race.kept(name, full + 1, sizes)[0]
        )
        assert max(way["tokens"]) <= full
        if name != "MLA":
            assert way["held"][0] == layers * variants.past(name, tokens=7, **sizes).cache_bytes
    gqa = next(way for way in found["ways"] if way["name"] == "GQA")
    run = cache_race._Run("GQA", sizes, 7, layers, machine)
    few = sum(
        layers * variants.seconds_by_roofline(variants.past("GQA", tokens=7 + n, **sizes).step, machine)
        for n in range(50)
    )
    assert run.at(few * (1 + 1e-12))[0] == 57
    assert run.at(few * (1 - 1e-9))[0] == 56
    assert gqa["tokens"][-1] == gqa["full_at"]


def test_a_latent_cache_is_a_vector_a_token_whatever_the_heads():
    sizes = {"batch": 2, "kv_heads": 1, "width": 16, "cache": "float16"}
    for heads in (1, 8):
        assert cache_race.kept("MLA", 11, {"heads": heads, **sizes})[0] == 2 * 11 * (4 * 16 + 8) * 2


def test_a_memory_that_is_full_from_the_start_stays_so():
    way = result(past=131072, batch=64, heads=64, width=256, layers=256, machine="t4")["race"]["ways"][0]
    assert way["full_at"] == 131072
    assert set(way["tokens"]) == {131072}


def test_another_machine_moves_the_roof_and_a_dot_above_it_is_explained():
    page = asked(machine="h100-sxm")
    assert page.result["machine"]["bandwidth"] == as_hardware("h100-sxm").bandwidth
    assert "qkv calibrate" not in page.html
    measured = asked(heads=4, kvheads=2, width=16, past=100, measure="yes")
    dot, roof = measured.result["measured"]["speed"], measured.result["ways"][1]["speed"]
    assert ("above the roof" in measured.html) is (dot > roof)
