"""Plans: times follow the roofline; limits, crossings and formulas are exact; bad input is refused."""

import csv
import io
import json
import math
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.cost import Hardware, Model, hardware, model_cost, models, parts, plan, symbols
from qkv.cost.formulas import formula
from qkv.cost.planning import Run, first_size
from qkv.cost.report import comparison_text
from qkv.errors import OptionError, OptionTypeError, QkvError

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


@pytest.mark.slow
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


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5), st.integers(300_000, 3_000_000))
@settings(max_examples=60, deadline=None)
def test_what_is_largest_fits_and_one_more_does_not(context, batch, windowed, memory):
    model, box = replace(TINY, window=23, window_layers=windowed), replace(BOX, memory=memory)
    found = plan(model, box, context=context, batch=batch)
    weights = found.weight_bytes
    assert found.fits == (weights + model.cache_bytes(context, batch) <= memory)
    for largest, needed in (
        (found.largest_batch, lambda size: model.cache_bytes(context, size)),
        (found.largest_context, lambda size: model.cache_bytes(size, batch)),
    ):
        if largest is None:
            assert windowed == 5
            assert weights + needed(10**12) <= memory
        else:
            assert largest == 0 or weights + needed(largest) <= memory
            assert weights + needed(largest + 1) > memory


def test_nothing_fits_where_the_weights_do_not():
    found = plan("llama-3-70b", "rtx-4090")
    assert (found.fits, found.largest_batch, found.largest_context) == (False, 0, 0)
    assert any("does not fit" in note for note in found.notes)


@pytest.mark.parametrize("name", [name for name in SOME if name != "bert-base"])
def test_crossings_are_exact(name):
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


@pytest.mark.slow
def test_formulas_are_what_the_code_makes():
    found = spec_from_file_location("formulas", Path(__file__).parents[2] / "docs" / "formulas.py")
    assert found is not None
    assert found.loader is not None
    writer = module_from_spec(found)
    found.loader.exec_module(writer)
    assert files("qkv.cost").joinpath("formulas.toml").read_text(encoding="utf-8") == writer.generate()


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


HARDWARE, MODELS = hardware(), models()
DECODERS = sorted(name for name, model in MODELS.items() if model.kind == "decoder")

# 5 layers of 66 with 6 heads of 11 on 3 heads of keys, by hand: two tables of 101 words, a gated feed-forward of 71.
BY_HAND = "--layers 5 --width 66 --heads 6 --kv-heads 3 --head-width 11 --ff 71 --gated --vocabulary 101"
BY_HAND_PARAMETERS = 2 * 101 * 66 + 66 + 5 * (2 * 66 * 66 + 2 * 66 * 33 + 3 * 66 * 71 + 2 * 66)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text.strip()
    assert "\n" not in text.strip(), text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("llama-3-8b", "llama-3-8b"),
        ("LLAMA-3-8B", "llama-3-8b"),
        ("Llama 3 8B", "llama-3-8b"),
        ("meta-llama/Llama-3-8B", "llama-3-8b"),
        ("GPT-2", "gpt-2"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
    ],
)
def test_names_are_forgiving(given, wanted):
    assert plan(given, "h100-sxm", context=127).model == MODELS[wanted]


@pytest.mark.parametrize(
    ("given", "near"),
    [("lama-3-8b", "llama-3-8b"), ("gpt2-xll", "gpt-2-xl"), ("mistrel-7b", "mistral-7b"), ("bert-bass", "bert-base")],
)
def test_unknown_models_list_the_nearest(given, near):
    with pytest.raises(QkvError) as caught:
        plan(given, "h100-sxm")
    assert near in one_line(caught.value)


@pytest.mark.parametrize(
    ("given", "near"), [("h100-sxn", "h100-sxm"), ("a10-80gb", "a100-80gb"), ("rtx4091", "rtx-4090")]
)
def test_unknown_hardware_lists_the_nearest(given, near):
    with pytest.raises(QkvError) as caught:
        plan("gpt-2", given, context=127)
    assert near in one_line(caught.value)


@pytest.mark.parametrize("name", ["", " ", "../../etc/passwd", "🦙", "x" * 10_000, None, 7, ["gpt-2"]])
def test_invalid_names(name):
    with pytest.raises(QkvError) as caught:
        plan(name, "h100-sxm", context=127)
    one_line(caught.value)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "8", 2**63, 2**80, math.nan, [8]])
@pytest.mark.parametrize("option", ["context", "batch", "prompt"])
def test_sizes_of_a_plan_are_positive_integers(option, value):
    name = "t5-base" if option == "prompt" else "llama-3-8b"
    with pytest.raises(QkvError) as caught:
        plan(name, "h100-sxm", **({"context": 127} | {option: value}))
    assert option in one_line(caught.value)


@pytest.mark.parametrize("option", ["weights", "cache"])
@pytest.mark.parametrize("value", ["float7", "", None, 16, "int4 "])
def test_unknown_formats(option, value):
    with pytest.raises(QkvError) as caught:
        plan("llama-3-8b", "h100-sxm", context=127, **{option: value})
    assert option in one_line(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"heads": 0},
        {"heads": 6, "kv_heads": 4},
        {"heads": 7, "kv_heads": 7},
        {"layers": 0},
        {"layers": -3},
        {"layers": 2.5},
        {"d_model": 0},
        {"d_ff": -1},
        {"vocabulary": -5},
        {"kind": "dekoder"},
        {"norm": "batch"},
        {"window": 0, "window_layers": 1},
        {"window": 7, "window_layers": 9},
        {"experts": 2, "experts_active": 3},
    ],
)
def test_impossible_models_are_refused(change):
    sizes = {"layers": 5, "d_model": 66, "heads": 6, "kv_heads": 3, "d_ff": 71, "vocabulary": 101}
    with pytest.raises(QkvError):
        Model(**(sizes | change))


# Data sheets, without sparsity: 16-bit flops a second, bytes a second.
SHEETS = {
    "a100-40gb": (312e12, 1555e9),
    "a100-80gb": (312e12, 2039e9),
    "h100-sxm": (989.4e12, 3.35e12),
    "h200": (989.4e12, 4.8e12),
    "l4": (121e12, 300e9),
    "l40s": (362e12, 864e9),
    "t4": (65e12, 320e9),
    "v100": (125e12, 900e9),
    "rtx-3090": (71e12, 936e9),
    "rtx-4090": (165.2e12, 1008e9),
    "mi300x": (1307.4e12, 5.3e12),
}


@pytest.mark.parametrize("name", SHEETS)
def test_hardware_is_as_the_data_sheet_says(name):
    machine, (rate, bandwidth) = HARDWARE[name], SHEETS[name]
    assert machine.rates.get("float16", machine.rates.get("bfloat16")) == pytest.approx(rate, rel=0.03)
    assert machine.bandwidth == pytest.approx(bandwidth, rel=0.08)
    assert isinstance(machine.memory, int)
    assert machine.source


def sample(count: int) -> list[tuple]:
    """Models, machines and options, drawn once."""
    draw, drawn = random.Random(3), []
    for _ in range(count):
        options = {
            "context": draw.choice([1, 2, 127, 1021, 8191]),
            "batch": draw.choice([1, 3, 61]),
            "weights": draw.choice(["float32", "bfloat16", "float16", "int8", "int4"]),
            "cache": draw.choice(["float32", "bfloat16", "int8"]),
        }
        name = draw.choice(DECODERS)
        if MODELS[name].positions:
            options["context"] = min(options["context"], 1021)
        drawn.append((name, draw.choice(sorted(SHEETS)), options))
    return drawn


SAMPLE = sample(60)
ITEM = {"float32": 8, "bfloat16": 4, "float16": 4, "int8": 2, "int4": 1}  # halves of a byte


@pytest.mark.slow
@pytest.mark.parametrize(("name", "machine", "options"), SAMPLE)
def test_numbers_of_a_plan_agree_with_one_another(name, machine, options):
    found, model, sheet = plan(name, machine, **options), MODELS[name], HARDWARE[machine]
    halves = model.parameters * ITEM[options["weights"]]
    assert found.weight_bytes == -(-halves // 2)
    assert found.cache_bytes == model.cache_bytes(options["context"], options["batch"], options["cache"])
    assert 2 * found.cache_bytes_per_token == model.cache_numbers * ITEM[options["cache"]]
    parts = found.as_dict()["parts"]
    for part in parts.values():
        # Rates depend on what multiplies; reading never takes longer than bytes over bandwidth.
        by_bytes = part["bytes"] / sheet.bandwidth
        assert part["seconds"] >= by_bytes * (1 - 1e-12)
        assert part["bound"] in ("bytes", "flops")
        if part["bound"] == "bytes":
            assert part["seconds"] == pytest.approx(by_bytes)
        else:
            assert any(part["seconds"] == pytest.approx(part["flops"] / rate) for rate in sheet.rates.values())
    assert sum(part["seconds"] for part in parts.values()) == pytest.approx(found.seconds_per_token)
    assert found.tokens_per_second == pytest.approx(options["batch"] / found.seconds_per_token)
    assert found.bottleneck == max(parts, key=lambda part: parts[part]["seconds"])
    assert found.prefill_seconds > 0
    # Everything that is stored is read once at least, but for the table of words; experts only as chosen.
    if not model.experts:
        read = model.parameters - (0 if model.tied else model.vocabulary * model.d_model)
        read -= model.positions * model.d_model
        assert sum(part["bytes"] for part in parts.values()) >= read * ITEM[options["weights"]] // 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "machine", "options"), SAMPLE[:25])
def test_the_largest_batch_and_context_fit_and_one_more_does_not(name, machine, options):
    found = plan(name, machine, **options)
    memory = HARDWARE[machine].memory
    assert found.fits == (options["batch"] <= found.largest_batch)
    assert found.weight_bytes + found.cache_bytes <= memory or not found.fits
    if found.weight_bytes > memory:
        assert (found.largest_batch, found.largest_context) == (0, 0)
        return
    if found.largest_batch:
        assert plan(name, machine, **options | {"batch": found.largest_batch}).fits
    assert not plan(name, machine, **options | {"batch": found.largest_batch + 1}).fits
    if found.largest_context and not MODELS[name].positions:
        assert plan(name, machine, **options | {"context": found.largest_context}).fits
        assert not plan(name, machine, **options | {"context": found.largest_context + 1}).fits


def test_seconds_of_the_same_model_with_other_attention():
    found = plan("llama-3-8b", "a100-80gb", context=8191, batch=7).as_dict()["variants"]
    token = 2 * 32 * 128 * 2 * 8191 * 7
    assert found["MHA"]["cache_bytes"] == 32 * token
    assert found["GQA(8)"]["cache_bytes"] == 8 * token
    assert found["MQA"]["cache_bytes"] == token
    times = [found[name]["seconds_per_token"] for name in ("MHA", "GQA(8)", "MQA")]
    assert times == sorted(times, reverse=True)
    # A linear state does not grow.
    shorter = plan("llama-3-8b", "a100-80gb", context=11, batch=7).as_dict()["variants"]
    assert shorter["linear"]["cache_bytes"] == found["linear"]["cache_bytes"]


def two_sides(crossing: str, found: dict) -> tuple[float, float]:
    """What the two lines are at a context, read from the plan of that context."""
    parts, variants = found["parts"], found["variants"]
    return {
        "cache_over_projections": (parts["cache"]["seconds"], parts["projections"]["seconds"]),
        "linear_smaller": (found["cache_bytes"], variants["linear"]["cache_bytes"]),
        "linear_faster": (found["seconds_per_token"], variants["linear"]["seconds_per_token"]),
    }[crossing]


@pytest.mark.slow
@pytest.mark.parametrize("crossing", ["cache_over_projections", "linear_smaller", "linear_faster"])
@pytest.mark.parametrize("batch", [1, 13, 997])
@pytest.mark.parametrize("where", ["llama-3-8b h100-sxm", "llama-7b t4", "deepseek-v2-lite a100-40gb", "t5-base t4"])
def test_at_a_crossing_both_sides_are_equal_within_a_token(where, batch, crossing):
    name, machine = where.split()
    options = {"batch": batch} | ({"prompt": 509} if name == "t5-base" else {})
    crossed = plan(name, machine, context=64, **options).as_dict()["crossings"][crossing]
    if crossed["at"] is None:
        assert crossed["reason"]
        return
    cache, other = two_sides(crossing, plan(name, machine, context=crossed["at"], **options).as_dict())
    assert cache >= other * (1 - 1e-9)
    if crossed["at"] > 1:
        cache, other = two_sides(crossing, plan(name, machine, context=crossed["at"] - 1, **options).as_dict())
        assert cache <= other * (1 + 1e-9)


@pytest.mark.parametrize("batch", [1, 13])
@pytest.mark.parametrize("name", ["llama-3-8b", "llama-65b", "falcon-7b", "gpt-2-xl"])
def test_where_the_cache_is_as_large_as_the_weights(name, batch):
    model = MODELS[name]
    at = plan(name, "h100-sxm", context=64, batch=batch).as_dict()["crossings"]["cache_over_weights"]["at"]
    tables = model.positions + (0 if model.tied else model.vocabulary)
    weights = 2 * (model.parameters - tables * model.d_model)
    token = batch * 2 * model.cache_numbers
    # With the tables that are only looked up, or without; a row of them may count too.
    assert weights / token - 2 <= at <= 2 * model.parameters / token + 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-7b", "llama-3-8b", "gpt-2-xl"])
def test_from_the_crossing_on_decoding_computes(name):
    def times(batch):
        found = plan(name, "l4", context=2, batch=batch)
        return found.flops / HARDWARE["l4"].rates["bfloat16"], found.bytes / HARDWARE["l4"].bandwidth

    at = plan(name, "l4", context=2).as_dict()["crossings"]["compute_bound"]["at"]
    assert at > 1
    assert times(at)[0] >= times(at)[1]
    assert times(at - 1)[0] <= times(at - 1)[1]


def test_encoders_do_not_decode():
    found = plan("bert-base", "t4", context=509, batch=3)
    assert found.cache_bytes == found.cache_bytes_per_token == 0
    assert found.largest_context is None
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False)) == found.as_dict()


def numbers(value, key=""):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, key)
    else:
        yield key, value


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_prints_in_eighty_columns_and_survives_json(name):
    found = plan(name, "rtx-4090", weights="int4", cache="int8", batch=3)
    assert max(len(line) for line in str(found).splitlines()) <= 80
    record = found.as_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    for key, value in numbers(record):
        if key == "bytes" or key.endswith("_bytes") or "bytes_per" in key:
            assert isinstance(value, int), key
    assert found.to_csv().count("\n") > 10


@pytest.mark.parametrize(("context", "batch"), [(10**15, 1), (1, 10**15), (10**15, 10**15), (2**63 - 1, 1)])
def test_absurd_sizes_are_counted(context, batch):
    start = time.perf_counter()
    found = plan("llama-3-8b", "h100-sxm", context=context, batch=batch)
    assert found.cache_bytes == 2 * 32 * 8 * 128 * 2 * context * batch
    assert not found.fits
    text = str(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert not any(word in text for word in ("inf", "nan"))
    json.dumps(found.as_dict(), allow_nan=False)
    assert time.perf_counter() - start < 2


def call(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    """The command line, in this process."""
    from qkv.cli import main

    monkeypatch.setattr(sys, "argv", ["qkv", "plan", *words])
    monkeypatch.setenv("COLUMNS", "80")
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_says_what_the_function_does(monkeypatch, capsys):
    words = ["--model", "llama-3-8b", "--hardware", "h100-sxm", "--context", "4093", "--batch", "7", "--cache", "int8"]
    code, out, _ = call(monkeypatch, capsys, *words, "--json")
    record = plan("llama-3-8b", "h100-sxm", context=4093, batch=7, cache="int8").as_dict()
    assert code == 0
    printed = json.loads(out)
    plans = printed if isinstance(printed, list) else printed.values()
    assert record in (printed, *plans, *printed.get("plans", []))
    code, out, _ = call(monkeypatch, capsys, *words)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    code, out, _ = call(monkeypatch, capsys, *BY_HAND.split(), "--hardware", "t4", "--context", "31", "--json")
    assert code == 0
    assert str(BY_HAND_PARAMETERS) in out


@pytest.mark.parametrize(
    ("words", "codes", "message"),
    [
        ("--nonsense", {2}, "nonsense"),
        ("--model gpt-2 --context many", {2}, "context"),
        ("--model lama-3-8b", {1, 2}, "llama-3-8b"),
        ("--model gpt-2 --hardware h100-sxn", {1, 2}, "h100-sxm"),
        ("--model gpt-2 --context 0", {1, 2}, "context"),
        ("--model gpt-2 --batch -1", {1, 2}, "batch"),
        ("--model llama-3-8b --context 9223372036854775808", {1, 2}, "context"),
        ("--model gpt-2 --weights int3", {1, 2}, "int4"),
        ("--config /nowhere/config.json", {1, 2}, "config.json"),
        ("--layers 5 --width 66 --heads 7 --ff 71 --vocabulary 101", {1, 2}, "7"),
        ("--layers 5 --width 66 --heads 6 --kv-heads 4 --ff 71 --vocabulary 101", {1, 2}, "4"),
        ("--layers 5 --width 66 --heads 6 --vocabulary 0", {1, 2}, "vocabulary"),
        ("--model gpt-2 --plot /nowhere/at/all.svg", {1, 2}, ""),
        ("--model gpt-2 --plot plan.exe", {1, 2}, ".svg"),
    ],
)
def test_bad_options_end_without_a_traceback(monkeypatch, capsys, words, codes, message):
    code, _, err = call(monkeypatch, capsys, *words.split())
    assert code in codes
    assert message in err
    assert "Traceback" not in err


def test_a_process_answers_soon_and_loads_neither_torch_nor_sympy():
    script = (
        "import sys\nfrom qkv.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'sympy', 'transformers', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    words = ["plan", "--model", "llama-3-8b", "--context", "8192", "--batch", "1", "--hardware", "h100-sxm"]
    took = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
        took.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
        assert "torch" not in done.stderr
        assert "sympy" not in done.stderr
        if took[-1] < 1.5:
            break
    # Half a second on an idle machine; three times as much on a busy one.
    assert min(took) < 1.5


def test_no_module_hides_a_public_name():
    """Importing a module binds its name in the package: it must not be that of a public function."""
    import qkv.cost

    modules = {file.stem for file in Path(qkv.cost.__file__).parent.glob("*.py")}
    assert not modules & set(qkv.cost.__all__)
