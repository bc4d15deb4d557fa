"""Parameters, caches and the cost of a model: against brute force, against torch's count of a real one, as formulas."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import Causal, Window
from qkv.cost import Latent, Model, block, count, model_cost, models, parts, symbols
from qkv.cost.blocks import StepSizes, attended_pairs, experts_used
from qkv.errors import OptionError, OptionTypeError, QkvError, ShapeError

SMALL = Model(layers=5, d_model=84, heads=6, kv_heads=3, head_width=11, d_ff=53, vocabulary=131)
LATENT = replace(SMALL, kv_heads=6, value_width=13, head_width=17, latent=Latent(23, 29, 4))
EXPERTS = replace(SMALL, experts=7, experts_active=3, shared_experts=2, expert_d_ff=19, dense_layers=2)
ENCODER = replace(SMALL, kind="encoder", kv_heads=6)
BOTH = replace(SMALL, kind="encoder-decoder", encoder_layers=3, kv_heads=6)
EVERY = {"plain": SMALL, "latent": LATENT, "experts": EXPERTS, "encoder": ENCODER, "encoder-decoder": BOTH}


def test_parameters_are_the_sum_of_their_lines():
    for model in EVERY.values():
        assert model.parameters == sum(number for _, number in model.parameter_lines)
    lines = dict(SMALL.parameter_lines)
    assert lines["projections: query"] == 5 * 84 * 6 * 11
    assert lines["feed-forward: matrices"] == 5 * 3 * 84 * 53
    assert lines["norms: vectors"] == (2 * 5 + 1) * 84


def test_active_parameters_leave_out_idle_experts():
    assert SMALL.active_parameters == SMALL.parameters
    assert EXPERTS.parameters - EXPERTS.active_parameters == 3 * (7 - 3) * 3 * 84 * 19


@pytest.mark.parametrize(
    ("model", "numbers"),
    [(SMALL, 5 * 2 * 3 * 11), (LATENT, 5 * (23 + 4)), (ENCODER, 0), (BOTH, 5 * 2 * 6 * 11)],
    ids=["heads", "latent", "encoder", "encoder-decoder"],
)
def test_cache(model, numbers):
    assert model.cache_numbers == numbers
    assert model.cache_bytes(97, 3, "float32") == 4 * 3 * 97 * numbers
    assert model.cache_bytes(1, 1, "int4") == -(-numbers // 2)
    assert isinstance(model.cache_bytes(97, 3, "int4"), int)


@given(st.integers(0, 60), st.integers(1, 30), st.integers(0, 5))
def test_a_windowed_layer_keeps_its_window(tokens, window, layers):
    model = replace(SMALL, window=window, window_layers=layers)
    kept = sum(min(tokens, window) if at < layers else tokens for at in range(5))
    assert model.cache_bytes(tokens, 7, "int8") == 7 * kept * 2 * 3 * 11


@given(st.integers(1, 23), st.integers(0, 29), st.integers(1, 31))
@settings(max_examples=200)
def test_pairs_are_those_of_the_masks(new, past, window):
    step = StepSizes(1, new, past, 2, 2, 2)
    seen = [[j for j in range(past + i + 1) if j > past + i - window] for i in range(new)]
    assert attended_pairs(step, None) == sum(past + i + 1 for i in range(new))
    assert attended_pairs(step, window) == sum(map(len, seen))


@pytest.mark.parametrize(("new", "past"), [(1, 96), (97, 0), (13, 29)])
def test_scores_are_those_of_a_call(new, past):
    found = parts(model_cost(SMALL, 7, new, past))["scores"]
    mask = Causal(offset=past)
    call = count((7, 6, new, 11), (7, 3, new + past, 11), (7, 3, new + past, 11), mask=mask, dtype="bfloat16")
    assert (found.products, found.elementwise) == (5 * call.products, 5 * call.elementwise)
    windowed = parts(model_cost(replace(SMALL, window=17, window_layers=5), 7, new, past))["scores"]
    call = count((7, 6, new, 11), (7, 3, new + past, 11), (7, 3, new + past, 11), mask=mask & Window(left=16, right=0))
    assert windowed.flops == 5 * call.flops


@pytest.mark.parametrize("name", ["plain", "latent", "experts"])
def test_products_of_a_token_are_twice_its_parameters(name):
    model = EVERY[name]
    found = parts(model_cost(model, 1, 1, 0))
    vectors = sum(number for line, number in model.parameter_lines if "norm" in line)
    matrices = model.active_parameters - vectors - model.vocabulary * model.d_model
    assert sum(part.products for part_name, part in found.items() if part_name != "scores") == 2 * matrices


def test_a_step_moves_the_cache_once_and_the_weights_once():
    for batch, past in itertools.product((1, 7), (1, 96)):
        found = parts(model_cost(SMALL, batch, 1, past, item=0))
        assert found["cache"].traffic == SMALL.cache_bytes(past + 1, batch)
        rest = sum(part.traffic for name, part in found.items() if name not in ("cache", "embedding"))
        assert rest == 2 * (SMALL.parameters - SMALL.vocabulary * SMALL.d_model)


def test_blocks_make_the_stack():
    for model in (SMALL, LATENT, replace(EXPERTS, dense_layers=0)):
        whole = parts(model_cost(model, 3, 7, 11))
        one = parts(block(model, 3, 7, 11))
        for name in ("projections", "scores", "cache", "feed-forward"):
            assert (whole[name].flops, whole[name].traffic) == (5 * one[name].flops, 5 * one[name].traffic)
    with pytest.raises(OptionError, match="window"):
        block(SMALL, windowed=True)


def test_few_latent_queries_are_absorbed_and_many_expand_the_keys():
    step = [line.name for line in model_cost(LATENT, 1, 1, 997).lines]
    prompt = [line.name for line in model_cost(LATENT, 1, 997, 0).lines]
    assert "projections: queries into the latent space" in step
    assert "projections: latent, up" in prompt


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_experts_that_a_batch_touches(tokens, experts, active):
    if active > experts:
        active = experts
    model = replace(SMALL, experts=experts, experts_active=active)
    found = experts_used(model, tokens)
    assert found == pytest.approx(experts * (1 - (1 - active / experts) ** tokens))
    assert active - 1e-9 <= found <= experts + 1e-9
    assert all(isinstance(line.read, int) for line in model_cost(model, 1, tokens, 0).lines)


def test_a_batch_shares_the_weights_but_not_the_cache():
    one, many = (parts(model_cost(SMALL, batch, 1, 96, item=0)) for batch in (1, 13))
    assert many["feed-forward"].read == one["feed-forward"].read
    assert many["cache"].traffic == 13 * one["cache"].traffic
    assert many["scores"].flops == 13 * one["scores"].flops


def test_linear_attention_does_not_grow():
    short, long = (model_cost(SMALL, 1, 1, past, similarity="linear") for past in (1, 10**15))
    assert (short.flops, short.traffic) == (long.flops, long.traffic)
    assert parts(long)["cache"].read == 5 * 4 * 3 * 11 * 12


def test_an_encoder_decoder_reads_its_source_once():
    first = parts(model_cost(BOTH, 2, 1, 0, source=17))
    later = parts(model_cost(BOTH, 2, 1, 5, source=17))
    assert any("encoder" in line.name for line in first["feed-forward"].lines)
    assert not any("encoder" in line.name for line in later["feed-forward"].lines)
    crossing = [line for line in later["cache"].lines if "cross" in line.name]
    assert sum(line.read for line in crossing) == 2 * 5 * 2 * (2 * 17 * 6 * 11)


def test_training_is_about_three_times_the_forward_pass():
    forward, training = (model_cost(SMALL, 3, 97, 0, training=training) for training in (False, True))
    for name in ("projections", "feed-forward", "logits"):
        assert parts(training)[name].products == 3 * parts(forward)[name].products
    assert 2 * forward.flops < training.flops < 4 * forward.flops


def test_formulas_are_the_numbers():
    L, d, h, g, w, f, V, b, n = letters = symbols("L d h g w f V b n")
    sizes = (5, 84, 6, 3, 11, 53, 131, 7, 96)
    model = Model(layers=L, d_model=d, heads=h, kv_heads=g, head_width=w, d_ff=f, vocabulary=V)
    values = dict(zip(letters, sizes, strict=True))
    assert model.parameters.subs(values) == SMALL.parameters
    assert model.cache_bytes(n, b).subs(values) == SMALL.cache_bytes(96, 7)
    formula, number = model_cost(model, b, 1, n), model_cost(SMALL, 7, 1, 96)
    assert formula.flops.subs(values) == number.flops
    assert formula.traffic.subs(values) == number.traffic
    assert str(formula.theta(at_most=[(h, d), (g, h)])).startswith("Θ(")


def test_torch_counts_the_same_products():
    """An independent count: torch's own, of a model of transformers. Its attention computes the masked half too."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    sizes = {"hidden_size": 84, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3}
    config = transformers.LlamaConfig(
        **sizes, head_dim=10, intermediate_size=53, vocab_size=131, attn_implementation="eager"
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        counter = FlopCounterMode(display=False)
        with counter:
            model(torch.zeros(7, 23, dtype=torch.long))
    ours = parts(model_cost(replace(SMALL, head_width=10, value_width=10), 7, 23, 0))
    outside = sum(part.products for name, part in ours.items() if name != "scores")
    assert counter.get_total_flops() == outside + 4 * 7 * 6 * 23 * 23 * 10 * 5


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"heads": 0}, OptionError, "heads"),
        ({"heads": -6}, OptionError, "heads"),
        ({"heads": 6.0}, OptionTypeError, "heads"),
        ({"heads": "6"}, OptionTypeError, "heads"),
        ({"heads": True}, OptionTypeError, "heads"),
        ({"kv_heads": 4}, ShapeError, "divides"),
        ({"head_width": None, "heads": 5, "kv_heads": 5}, ShapeError, "divides"),
        ({"layers": 2**63}, OptionError, "2\\^63"),
        ({"gated": 1}, OptionTypeError, "gated"),
        ({"kind": "decoders"}, OptionError, "kind"),
        ({"norm": "batch"}, OptionError, "norm"),
        ({"qk_norm": True}, OptionError, "qk_norm"),
        ({"window": 0}, OptionError, "window"),
        ({"window": 5, "window_layers": 6}, ShapeError, "window_layers"),
        ({"experts": 3, "experts_active": 4}, ShapeError, "experts_active"),
        ({"experts": 3}, ShapeError, "experts_active"),
        ({"kind": "encoder-decoder"}, ShapeError, "encoder_layers"),
        ({"encoder_layers": 3}, ShapeError, "encoder_layers"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(change, error, said):
    with pytest.raises(error, match=said):
        replace(SMALL, **change)


@pytest.mark.parametrize(
    "asked",
    [
        {"batch": 0}, {"new": 0}, {"past": -1}, {"weights": "int3"}, {"cache": "float8"}, {"similarity": "cosine"},
        {"batch": 2**63}, {"new": 1.5},
    ],
)  # fmt: skip
def test_questions_that_make_no_sense_are_refused(asked):
    with pytest.raises(QkvError):
        model_cost(SMALL, **asked)


def test_an_encoder_has_no_past():
    with pytest.raises(OptionError, match="past"):
        model_cost(ENCODER, 1, 1, 5)


def test_a_model_may_be_given_by_its_name():
    assert model_cost("gpt-2", 1, 1, 100).flops == model_cost(models()["gpt-2"], 1, 1, 100).flops
    assert block("GPT 2").flops == block(models()["gpt-2"]).flops


def test_an_encoder_runs_before_the_first_token_and_not_with_each():
    step, first = model_cost("t5-base", past=0, source=512, encodes=False), model_cost("t5-base", past=0, source=512)
    assert step.flops < first.flops / 50
    later = model_cost("t5-base", past=1, source=512)
    assert step.flops < later.flops < 1.01 * step.flops
