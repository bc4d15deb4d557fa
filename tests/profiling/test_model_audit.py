"""`audit`: known errors of other tools, verified on the tools, and exact explanations of differences."""

import json
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import flop_registry

from qkv.cost.architecture import Latent, Model
from qkv.cost.blocks import model_cost
from qkv.cost.symbolic import symbols
from qkv.errors import OptionError, QkvError
from qkv.profiling import audit_modules
from qkv.profiling.audit_modules import Scores, Shape, part_modules
from qkv.profiling.model_audit import (
    CAUSAL,
    HEADS,
    KEYS_ONLY,
    LATENT,
    NO_CACHE,
    NO_ELEMENTWISE,
    ONE_FLOP,
    QUERY_HEADS,
    SQUARE,
    TWICE,
    WINDOW,
    Cause,
    PartCount,
    Row,
    audit,
    byte_causes,
    flop_causes,
    viewer_count,
)

BATCH, CONTEXT = 3, 29
CPU, META = (next(tool for tool in audit_modules.TOOLS if where in tool.name) for where in ("CPU", "meta"))

PLAIN = Model(name="plain", layers=5, d_model=42, heads=6, kv_heads=6, d_ff=67, vocabulary=101)
LATENTS = {"layers": 3, "d_model": 30, "heads": 5, "head_width": 13, "value_width": 11, "d_ff": 37, "vocabulary": 41}
MODELS = {
    "multi-head": PLAIN,
    "grouped": replace(PLAIN, kv_heads=2, rotary=4, qk_norm="head"),
    "multi-query, parallel": replace(PLAIN, kv_heads=1, norms_per_layer=1, gated=False, qk_norm="wide"),
    "wide heads, four norms": replace(PLAIN, head_width=11, value_width=11, kv_heads=3, norms_per_layer=4),
    "biases": replace(PLAIN, norm="layer", qkv_bias=True, out_bias=True, ff_bias=True, head_bias=True, gated=False,
                      positions=64),
    "no parameters in norms": replace(PLAIN, norm="none"),
    "window": replace(PLAIN, window=7, window_layers=3),
    "window everywhere": replace(PLAIN, window=7, window_layers=5),
    "experts": replace(PLAIN, experts=7, experts_active=2, shared_experts=3, expert_d_ff=13, dense_layers=1),
    "latent": Model(name="latent", latent=Latent(17, 19, 3), **LATENTS),
    "latent, plain queries": Model(name="latent, plain queries", latent=Latent(2, None, 3), **LATENTS),
    "encoder": replace(PLAIN, kind="encoder", norm="layer", gated=False, positions=64, segments=2, embedding_norm=True),
    "encoder-decoder": replace(PLAIN, kind="encoder-decoder", encoder_layers=2),
}  # fmt: skip


@pytest.fixture(scope="module")
def audits():
    return {name: audit(model, context=CONTEXT, batch=BATCH) for name, model in MODELS.items()}


def rows(found, tool, quantity):
    return [row for row in found.rows if tool in row.tool and quantity in row.quantity]


def attention(tool, heads=6, kv_heads=2, queries=11, keys=13, causal=False):
    with torch.device("meta"):
        module = Scores(causal, kv_heads != heads)
        inputs = [torch.empty(3, h, n, 5) for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys))]
    with audit_modules.without_warnings():
        return tool.count(module, tuple(inputs))


def installed(name):
    tool = next(tool for tool in audit_modules.TOOLS if tool.name == name)
    if not tool.is_installed:
        pytest.skip(f"{name} is not installed; run make bench to install it")
    return tool


@pytest.mark.parametrize("name", ["calflops", "fvcore"])
def test_sdpa_counts_nothing(name):
    assert attention(installed(name)) == 0


def test_calflops_grows_in_proportion_to_the_prompt_as_if_there_were_no_attention():
    tool = installed("calflops")
    counts = []
    for context in (CONTEXT, 2 * CONTEXT):
        with audit_modules.without_warnings():
            with tool.where():
                built = part_modules(PLAIN, Shape(BATCH, context, 0))
            counts.append(sum(tool.count(piece.module, piece.inputs) for piece in built if piece.part != "logits"))
    assert counts[1] == 2 * counts[0]


def test_fvcore_counts_a_multiplication_and_an_addition_as_one():
    tool = installed("fvcore")
    with audit_modules.without_warnings(), torch.device("meta"):
        module, x = nn.Linear(7, 11), torch.empty(3, 5, 7)
    with audit_modules.without_warnings():
        assert tool.count(module, (x,)) == 3 * 5 * 7 * 11


def test_flop_counter_mode_has_no_formula_for_the_operator_that_the_cpu_runs():
    query, key = torch.zeros(3, 6, 11, 5), torch.zeros(3, 2, 11, 5)
    with audit_modules.without_warnings():
        real = audit_modules.count_with_torch(Scores(True, True), (query, key, key))
        with CPU.where():
            faked = Scores(True, True), tuple(torch.empty(t.shape) for t in (query, key, key))
        assert CPU.count(*faked) == real
    if torch.ops.aten._scaled_dot_product_flash_attention_for_cpu not in flop_registry:
        assert real == 0


@pytest.mark.parametrize("causal", [False, True])
def test_flop_counter_mode_counts_the_whole_rectangle(causal):
    assert attention(META, queries=13, keys=13, causal=causal) == 3 * 6 * 13 * 13 * 4 * 5
    assert attention(META, queries=11, keys=13) == 3 * 6 * 11 * 13 * 4 * 5


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_difference_is_explained_to_the_last_flop_and_byte(audits, name):
    found = audits[name]
    assert found.rows
    assert set(found.missing.values()) <= {"not installed; run make bench to install it"}
    for row in found.rows:
        assert row.unexplained == 0, (row.tool, row.stage, row.quantity, row.sentence)
        assert (row.sentence == "the same number.") == (row.theirs == row.ours)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_torch_multiplies_is_what_qkv_counts(audits, name):
    """Where no mask hides anything, matrix products counted by torch's operators are those of the formulas."""
    model = MODELS[name]
    for row in rows(audits[name], "meta", "of the model"):
        new, past = (1, CONTEXT - 1) if row.stage == "decode" else (CONTEXT, 0)
        hidden = sum(cause.amount for cause in row.causes if cause.text in (CAUSAL, WINDOW))
        assert row.theirs == model_cost(model, BATCH, new, past, logit_tokens=1).products + hidden
        if row.stage != "prefill":
            assert hidden == 0


def test_a_model_has_the_parameters_that_its_pieces_have():
    for name in ("grouped", "biases", "window", "encoder"):
        with META.where():
            found = part_modules(MODELS[name], Shape(BATCH, CONTEXT, 0))
        held = sum(p.times * sum(w.numel() for w in p.module.parameters()) for p in found if p.part != "scores")
        assert held == MODELS[name].parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_table_fits_a_terminal_and_json_holds_it_all(audits, name):
    found = audits[name]
    assert max(map(len, str(found).splitlines())) <= 80
    plain = json.loads(json.dumps(found.as_dict()))
    for row, told in zip(found.rows, plain["rows"], strict=True):
        assert (told["theirs"], told["qkv"]) == (row.theirs, row.ours)
        assert told["qkv"] + sum(cause["amount"] for cause in told["causes"]) + told["unexplained"] == told["theirs"]


def test_causes_are_those_of_the_model(audits):
    def texts(name, quantity, tool="LLM-Viewer"):
        return [[cause.text for cause in row.causes] for row in rows(audits[name], tool, quantity)]

    assert texts("multi-head", "held") == [[]]
    assert texts("multi-head", "read") == [[KEYS_ONLY]]
    assert texts("grouped", "read") == [[QUERY_HEADS, KEYS_ONLY]]
    assert texts("multi-head", "stored") == [[SQUARE, TWICE]] * 2
    assert texts("wide heads, four norms", "held") == [[HEADS]]
    assert texts("window", "held") == [[WINDOW]]
    assert texts("latent", "held") == [[LATENT]]
    assert texts("encoder", "held") == [[NO_CACHE]]
    assert texts("window", "of attention", "meta") == [[WINDOW, CAUSAL, NO_ELEMENTWISE], [NO_ELEMENTWISE]]
    assert not rows(audits["encoder-decoder"], "LLM-Viewer", "")
    assert any("left out" in note for note in audits["encoder-decoder"].notes)
    assert any("latent" in note for note in audits["latent"].notes)


def test_llm_viewer_stores_a_square_and_saves_nothing_with_fewer_heads():
    llama = Model(layers=32, d_model=4096, heads=32, d_ff=11008)
    grouped = replace(llama, kv_heads=8)
    assert viewer_count(llama, 1, 4096, "prefill").flash_stored == 32 * 2 * 2 * 32 * 4096**2
    assert viewer_count(llama, 1, 4096, "decode").cache_read == viewer_count(grouped, 1, 4096, "decode").cache_read
    assert viewer_count(grouped, 1, 4096, "prefill").cache_held == grouped.cache_bytes(4096)


@given(
    products=st.integers(1, 10**9).map(lambda n: 2 * n),
    elementwise=st.integers(0, 10**9),
    hidden=st.integers(1, 10**9).map(lambda n: 2 * n),
    numbers=st.integers(1, 10**6),
    each=st.integers(1, 24),
    reads=st.booleans(),
    halves=st.booleans(),
)
def test_causes_lead_exactly_from_one_number_to_the_other(products, elementwise, hidden, numbers, each, reads, halves):
    part = PartCount("it", products, elementwise, (("more", products + hidden),), (("number", numbers),))
    counted = (products + hidden * reads) // (1 + halves)
    for theirs in (counted, counted + elementwise, counted + each * numbers, 0, products + elementwise):
        causes = flop_causes(part, theirs)
        assert theirs == part.total or causes
        assert part.total + sum(cause.amount for cause in causes) == theirs


def test_a_number_that_no_cause_leads_to_is_called_unexplained():
    part = PartCount("SDPA", 1000, 70, (("more", 2000),), (("number", 100),))
    assert flop_causes(part, 501) == []
    assert byte_causes(part, 1999) == []
    row = Row("a tool", "prefill", "flops", 1177, part.total, tuple(flop_causes(part, 1177)))
    assert (row.unexplained, row.sentence) == (107, "unexplained: +10%.")
    row = Row("a tool", "prefill", "flops", 963, part.total, (Cause(ONE_FLOP, -214),))
    assert row.sentence.endswith("unexplained: +10%.")


@pytest.mark.slow
def test_tools_that_are_not_there_are_named(monkeypatch):
    monkeypatch.setattr(audit_modules, "find_spec", lambda name: None if name in ("calflops", "fvcore") else object())
    found = audit(PLAIN, context=5)
    assert found.missing == dict.fromkeys(("calflops", "fvcore"), "not installed; run make bench to install it")
    assert "calflops: not installed; run make bench to install it" in str(found)
    assert {row.tool for row in found.rows} >= {"LLM-Viewer's formulas"}


def test_a_tool_that_fails_is_named_and_torch_is_as_it_was(monkeypatch):
    def fails(module, inputs):
        with audit_modules._restore_torch():
            F.linear = torch.add = None  # pyright: ignore
            torch.Tensor.made_up = 1  # pyright: ignore
            raise ValueError("too new\nfor me")

    linear, add = F.linear, torch.add
    broken = audit_modules.Tool("broken", "torch", META.where, fails)
    monkeypatch.setattr(sys.modules["qkv.profiling.model_audit"], "TOOLS", (broken, META))
    found = audit(PLAIN, context=5)
    assert found.missing == {"broken": "failed: ValueError: too new"}
    assert (F.linear, torch.add, hasattr(torch.Tensor, "made_up")) == (linear, add, False)
    assert rows(found, "meta", "of the model")


def test_calflops_leaves_torch_as_it_was():
    tool = installed("calflops")
    before = F.linear, torch.matmul, torch.Tensor.add, set(vars(torch.Tensor))
    attention(tool)
    assert (F.linear, torch.matmul, torch.Tensor.add, set(vars(torch.Tensor))) == before


def test_sizes_that_no_tensor_has_are_cut_down_and_said():
    found = audit(PLAIN, context=10**15, batch=10**12)
    assert found.context < 10**15
    assert "The requested context 10¹⁵ and batch 10¹²" in found.ran
    assert all(row.unexplained == 0 for row in found.rows)
    assert audit(PLAIN, context=1).rows


@pytest.mark.parametrize("wrong", [{"context": 0}, {"context": -3}, {"context": True}, {"batch": 0}, {"batch": 2.0}])
def test_sizes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(QkvError, match=next(iter(wrong))):
        audit(PLAIN, **wrong)


def test_models_in_symbols_are_refused():
    n = symbols("n")
    with pytest.raises(OptionError, match="symbols for layers"):
        audit(replace(PLAIN, layers=n))
