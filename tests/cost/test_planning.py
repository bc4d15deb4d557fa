"""Plans: times are the roofline's, what fits fits exactly, lines cross where they are said to, formulas count."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.cost import Hardware, Model, model_cost, models, parts, plan, symbols
from qkv.cost.formulas import formula, generate
from qkv.cost.planning import Run, first_size
from qkv.cost.report import comparison_text
from qkv.errors import OptionError, OptionTypeError

TINY = Model(layers=5, d_model=84, heads=6, kv_heads=3, head_width=11, d_ff=53, vocabulary=131)
BOX = Hardware("box", {"float32": 3e9, "bfloat16": 7e9}, 5e8, 10**6)
SOME = ["gpt-2", "llama-3-8b", "mistral-7b", "gemma-3-4b", "deepseek-v3", "gpt-oss-20b", "bert-base", "t5-base"]


def test_the_time_of_a_part_is_the_longer_of_two():
    found = plan(TINY, BOX, context=97, batch=3)
    ledger = parts(model_cost(TINY, 3, 1, 96))
    assert set(found.parts) == set(ledger)
    for name, part in found.parts.items():
        assert (part.flops, part.bytes) == (ledger[name].flops, ledger[name].traffic)
        assert part.seconds == max(part.flops / 7e9, part.bytes / 5e8)
        assert part.bound == ("flops" if part.flops / 7e9 > part.bytes / 5e8 else "bytes")
    assert found.seconds_per_token == pytest.approx(sum(part.seconds for part in found.parts.values()))
    assert found.tokens_per_second == pytest.approx(3 / found.seconds_per_token)
    assert found.bottleneck == max(found.parts.values(), key=lambda part: part.seconds).name
    assert found.intensity == found.flops / found.bytes
    assert found.ridge == 7e9 / 5e8


@pytest.mark.parametrize("name", SOME)
def test_bytes_are_exact_integers(name):
    model = models()[name]
    for weights, cache in (("float32", "int8"), ("int8", "float16"), ("int4", "int4")):
        found = plan(name, "a100-80gb", weights=weights, cache=cache, batch=3)
        bits = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
        assert found.weight_bytes == -(-model.parameters * bits[weights] // 8)
        assert found.cache_bytes == model.cache_bytes(found.context, 3, cache)
        plain = json.loads(json.dumps(found.as_dict()))
        for key in ("weight_bytes", "cache_bytes", "cache_bytes_per_token", "held_bytes", "bytes", "flops"):
            assert type(plain[key]) is int
        assert all(type(part["bytes"]) is int for part in plain["parts"].values())


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5), st.integers(300_000, 3_000_000))
@settings(max_examples=60, deadline=None)
def test_what_is_largest_fits_and_one_more_does_not(context, batch, windowed, memory):
    model, box = replace(TINY, window=23, window_layers=windowed), replace(BOX, memory=memory)
    found = plan(model, box, context=context, batch=batch)
    weights = found.weight_bytes
    assert found.fits == (weights + model.cache_bytes(context, batch) <= memory)
    for largest, held in (
        (found.largest_batch, lambda size: model.cache_bytes(context, size)),
        (found.largest_context, lambda size: model.cache_bytes(size, batch)),
    ):
        if largest is None:
            assert windowed == 5
            assert weights + held(10**12) <= memory
        else:
            assert largest == 0 or weights + held(largest) <= memory
            assert weights + held(largest + 1) > memory


def test_nothing_fits_where_the_weights_do_not():
    found = plan("llama-3-70b", "rtx-4090")
    assert (found.fits, found.largest_batch, found.largest_context) == (False, 0, 0)
    assert any("does not fit" in note for note in found.notes)


@pytest.mark.parametrize("name", [name for name in SOME if name != "bert-base"])
def test_lines_cross_where_they_are_said_to(name):
    found = plan(name, "h100-sxm")
    run = Run(found.model, found.hardware, 1, "bfloat16", "bfloat16", found.prompt)
    at = {key: crossing.at for key, crossing in found.crossings.items()}
    read = sum(p.traffic for n, p in parts(model_cost(found.model, 1, 1, 9, item=0, source=9)).items() if n != "cache")
    checks = {
        "cache_over_weights": lambda n: run.step(n)["cache"].bytes >= read,
        "linear_faster": lambda n: run.seconds(n, "linear") < run.seconds(n),
        "compute_bound": lambda b: _intensity(run, found.context, b) >= found.ridge,
    }
    for key, holds in checks.items():
        if at[key] is None:
            assert not holds(10**15)
            assert found.crossings[key].reason
        else:
            assert holds(at[key])
            assert at[key] == 1 or not holds(at[key] - 1)


def _intensity(run, context, batch):
    found = run.step(context, batch).values()
    return sum(part.flops for part in found) / sum(part.bytes for part in found)


def test_first():
    assert [first_size(lambda size, at=at: size >= at) for at in (1, 2, 3, 97, 10**15)] == [1, 2, 3, 97, 10**15]
    assert first_size(lambda size: False) is None


def test_other_heads():
    found = plan("llama-3-8b", "h100-sxm", context=8192).variants
    assert [*found] == ["MHA", "GQA(8)", "MQA", "linear"]
    assert [found[name].cache_bytes // 2**20 for name in ("MHA", "GQA(8)", "MQA")] == [4096, 1024, 128]
    assert found["MHA"].ratio == 4
    assert found["MHA"].seconds_per_token > found["GQA(8)"].seconds_per_token > found["MQA"].seconds_per_token
    assert found["linear"].cache_bytes == 32 * 8 * 4 * 128 * 129
    assert [*plan("llama-7b", "l4").variants] == ["MHA", "MQA", "linear"]
    assert [*plan("falcon-7b", "l4").variants] == ["MHA", "MQA", "linear"]
    assert [*plan("deepseek-v3", "l4").variants] == ["MHA", "latent", "MQA", "linear"]


def test_an_encoder_does_not_decode():
    found = plan("bert-base", "l4")
    assert (found.context, found.cache_bytes, found.seconds_per_token, found.largest_batch) == (512, 0, None, None)
    assert found.prefill_seconds == found.step_seconds
    assert found.tokens_per_second == pytest.approx(512 / found.step_seconds)
    assert found.crossings["cache_over_weights"].at is None


def test_an_encoder_decoder_keeps_its_source():
    short, long = (plan("t5-base", "l4", prompt=prompt) for prompt in (128, 512))
    assert long.cross_cache_bytes == 4 * short.cross_cache_bytes
    assert long.seconds_per_token > short.seconds_per_token
    assert long.prefill_seconds > short.prefill_seconds


def test_contexts():
    assert plan("gpt-2", "l4").context == 1024
    assert plan("llama-3.1-8b", "l4").context == 8192
    assert any("1,024" in note for note in plan("gpt-2", "l4", context=4096).notes)
    assert plan("llama-3-8b", "l4", prompt=17).prefill_seconds < plan("llama-3-8b", "l4").prefill_seconds


def test_numbers_of_any_size():
    found = plan("llama-3-8b", "h100-sxm", context=10**15, batch=10**15)
    assert found.cache_bytes == 131072 * 10**30
    assert max(map(len, str(found).splitlines())) <= 80
    for size in (0, -1, 2**63, 1.5, "many", True):
        for name in ("context", "batch", "prompt"):
            with pytest.raises(OptionError, match=name):
                plan("llama-3-8b", "h100-sxm", **{name: size})


def test_formats_are_words():
    for name in ("weights", "cache"):
        with pytest.raises(OptionError, match=f"{name}.*int4"):
            plan("gpt-2", "l4", **{name: "int3"})
    with pytest.raises(OptionTypeError):
        plan(None, "l4")
    with pytest.raises(OptionError, match="symbols"):
        plan(replace(TINY, layers=symbols("L")), "l4")


@pytest.mark.parametrize("name", SOME)
def test_text_fits_a_terminal_and_says_the_answer_first(name):
    found = plan(name, "xeon-8480+", batch=7)
    text = str(found)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"{name} on xeon-8480+: ")
    assert "tokens/s" in lines[0]
    for word in (*found.parts, "formula", "bottleneck", "intensity", "linear", *found.variants, "where lines cross"):
        assert word in text
    # Every letter of a formula is explained.
    shown = [part.formula for part in found.parts.values() if part.formula in " ".join(text.split())]
    assert len(shown) >= 3
    assert all(f"{letter} = " in text for letter in re.findall("[a-zA-Z]", "".join(shown)))


def test_columns_side_by_side():
    plans = [plan(model, machine) for model in ("llama-3-8b", "bert-base") for machine in ("l4", "h100-sxm")]
    text = comparison_text(plans)
    assert max(map(len, text.splitlines())) <= 80
    assert all(word in text for word in ("llama-3-8b", "bert-base", "h100-sxm", "feed-forward", "largest batch"))


def test_csv_has_every_number():
    found = plan("llama-3-8b", "h100-sxm")
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    values = {(row["of"], row["quantity"]): row["value"] for row in rows}
    assert values["plan", "weight_bytes"] == "16060522496"
    assert values["part cache", "bytes"] == str(found.cache_bytes)
    assert float(values["plan", "seconds_per_token"]) == found.seconds_per_token
    assert {row["model"] for row in rows} == {"llama-3-8b"}


def test_formulas_are_what_the_code_makes():
    import qkv.cost

    assert (Path(qkv.cost.__file__).parent / "formulas.toml").read_text(encoding="utf-8") == generate()


@pytest.mark.parametrize("name", sorted(models()))
def test_every_part_of_every_preset_has_a_formula(name):
    model = models()[name]
    found = model_cost(model, 1, 1, 9, source=9) if model.kind != "encoder" else model_cost(model, 1, 9)
    for part in parts(found):
        assert formula(model, part).bytes, (name, part)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-4b", "deepseek-v3", "mixtral-8x7b", "deepseek-v2-lite"])
def test_shown_formulas_give_the_numbers(name):
    """The text itself is computed with the sizes: what is left out is small."""
    from qkv.cost.report import letters

    found = plan(name, "h100-sxm", context=100_000)
    values = {letter: float(text.replace(",", "")) for letter, text in letters(found).items()}
    for part in found.parts.values():
        for text, number in ((part.flops_formula, part.flops), (part.bytes_formula, part.bytes)):
            code = text.replace("·", "*").replace("²", "**2")
            assert eval(code, {"__builtins__": {}}, values) == pytest.approx(number, rel=0.05), part.name
