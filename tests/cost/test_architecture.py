"""Parameters, caches and costs of models, against brute force, torch's counts and formulas."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import Causal, KVCache, Window
from qkv.cost import Latent, Model, block, count, model_cost, models, parts, symbols
from qkv.cost.architecture import as_model, is_path, model_named
from qkv.cost.blocks import StepSizes, _absorbed, _expanded, attended_pairs, experts_used
from qkv.cost.lookup import _normalized
from qkv.cost.price import latent_flops
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
    attended = [[j for j in range(past + i + 1) if j > past + i - window] for i in range(new)]
    assert attended_pairs(step, None) == sum(past + i + 1 for i in range(new))
    assert attended_pairs(step, window) == sum(map(len, attended))


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


@pytest.mark.parametrize(("new", "past"), [(1, 997), (997, 0), (40, 61)])
def test_the_flops_of_both_forms_of_latent_attention_are_those_of_their_products(new, past):
    step = StepSizes(3, new, past, 2, 2, 2)
    widths = {"plain": 17 - 4, "rope": 4, "value": 13}
    pairs = attended_pairs(step, None)
    both = latent_flops(LATENT.heads, 23, **widths, queries=3 * new, keys=3 * (new + past), pairs=pairs)
    for form, flops in zip((_absorbed, _expanded), both, strict=True):
        names = ("projections", "scores: queries by keys", "scores: weighted values")
        assert flops == sum(line.flops for line in form(LATENT, step, None) if line.name.startswith(names))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_cached_latents_are_the_rows_of_a_cache(dtype):
    """Rank and rotary width together are a multiple of 16 in published models: pages have no padding."""
    for name in ("deepseek-v2-lite", "deepseek-v3"):
        model = models()[name]
        numbers, rank = model.cache_numbers_per_layer, model.latent.kv_rank
        cache = KVCache(1, 1, numbers, value_width=rank, dtype=dtype, latent=True)
        cache.append(torch.zeros(1, 1, 128, numbers))
        scales = 4 * 128 if dtype == "int8" else 0
        assert cache.nbytes - 2 * 64 - scales == model.cache_bytes(128, dtype=dtype) // model.layers


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
    ("change", "error", "words"),
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
def test_impossible_sizes_are_refused(change, error, words):
    with pytest.raises(error, match=words):
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


# Parameters of the checkpoints, as their files list them.
CHECKPOINTS = {
    "gpt-2": 124439808, "gpt-2-medium": 354823168, "gpt-2-large": 774030080, "gpt-2-xl": 1557611200,
    "bert-base": 109482240, "bert-large": 335141888, "roberta-base": 124645632, "roberta-large": 355359744,
    "minilm-l6": 22713216, "t5-small": 60506624, "t5-base": 222903552, "t5-large": 737668096, "t5-3b": 2851598336,
    "t5-11b": 11307321344, "flan-t5-small": 76961152, "flan-t5-base": 247577856, "flan-t5-large": 783150080,
    "flan-t5-xl": 2849757184, "flan-t5-xxl": 11135332352, "llama-7b": 6738415616, "llama-13b": 13015864320,
    "llama-33b": 32528943616, "llama-65b": 65285660672, "llama-2-7b": 6738415616, "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192, "llama-3-8b": 8030261248, "llama-3-70b": 70553706496, "llama-3.1-8b": 8030261248,
    "llama-3.1-70b": 70553706496, "llama-3.3-70b": 70553706496, "llama-3.1-405b": 405853388800,
    "llama-3.2-1b": 1235814400, "llama-3.2-3b": 3212749824, "mistral-7b": 7241732096, "mixtral-8x7b": 46702792704,
    "mistral-nemo-12b": 12247782400, "mistral-small-24b": 23572403200, "mixtral-8x22b": 140620634112,
    "gemma-2b": 2506172416, "gemma-7b": 8537680896, "gemma-2-2b": 2614341888, "gemma-2-9b": 9241705984,
    "gemma-2-27b": 27227128320, "gemma-3-270m": 268098176, "gemma-3-1b": 999885952, "gemma-3-4b": 3880263168,
    "gemma-3-12b": 11766034176, "gemma-3-27b": 27009346304, "qwen2-7b": 7615616512, "qwen2.5-0.5b": 494032768,
    "qwen2.5-1.5b": 1543714304, "qwen2.5-3b": 3085938688, "qwen2.5-7b": 7615616512, "qwen2.5-14b": 14770033664,
    "qwen2.5-32b": 32763876352, "qwen2.5-72b": 72706203648, "qwen3-0.6b": 596049920, "qwen3-1.7b": 1720574976,
    "qwen3-4b": 4022468096, "qwen3-8b": 8190735360, "qwen3-14b": 14768307200, "qwen3-32b": 32762123264,
    "qwen3-30b-a3b": 30532122624, "qwen3-235b-a22b": 235093634560, "phi-2": 2779683840, "phi-1.5": 1418270720,
    "phi-3-mini": 3821079552, "phi-3-medium": 13960238080, "phi-4": 14659507200, "smollm2-135m": 134515008,
    "smollm2-360m": 361821120, "smollm2-1.7b": 1711376384, "smollm3-3b": 3075098624, "tinyllama-1.1b": 1100048384,
    "pythia-70m": 70426624, "pythia-160m": 162322944, "pythia-410m": 405334016, "pythia-1b": 1011781632,
    "pythia-1.4b": 1414647808, "pythia-2.8b": 2775208960, "pythia-6.9b": 6857302016, "pythia-12b": 11846072320,
    "deepseek-v2": 235741434880, "deepseek-v2-lite": 15706484224, "deepseek-v3": 671026404352,
    "falcon-7b": 6921720704, "falcon-40b": 41303293952, "opt-125m": 125239296, "opt-1.3b": 1315758080,
    "opt-2.7b": 2651596800, "opt-6.7b": 6658473984, "opt-13b": 12853473280, "opt-30b": 29974540288,
    "bloom-560m": 559214592, "bloom-7b1": 7069016064, "bloom-176b": 176247271424, "bloom-1b1": 1065314304,
    "bloom-1b7": 1722408960, "bloom-3b": 3002557440, "olmo-1b": 1176764416, "olmo-7b": 6888095744,
    "olmo-2-7b": 7298617344, "olmo-2-13b": 13716198400, "starcoder2-3b": 3030371328, "starcoder2-7b": 7173923840,
    "starcoder2-15b": 15957889024, "gpt-j-6b": 6050882784, "gpt-neox-20b": 20554567680, "yi-6b": 6061035520,
    "yi-34b": 34388917248, "gpt-oss-20b": 20914757184, "gpt-oss-120b": 116829156672,
}  # fmt: skip
# Millions, from papers.
PAPERS = {
    "gpt-3-125m": 125, "gpt-3-350m": 356, "gpt-3-760m": 760, "gpt-3-1.3b": 1320, "gpt-3-2.7b": 2650,
    "gpt-3-6.7b": 6660, "gpt-3-13b": 12850, "gpt-3-175b": 174600, "opt-66b": 66000, "deepseek-r1": 671000,
    "bert-base": 110, "bert-large": 340, "t5-11b": 11300, "mixtral-8x7b": 47000, "llama-65b": 65200,
}  # fmt: skip
# Billions of active parameters.
ACTIVE = {
    "mixtral-8x7b": 12.9, "deepseek-v2": 21, "deepseek-v3": 37, "qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22,
    "gpt-oss-20b": 3.6, "gpt-oss-120b": 5.1,
}  # fmt: skip
# Presets whose sizes are the defaults of transformers' configs.
DEFAULT_CONFIGS = {
    "bert-base": "bert", "deepseek-v3": "deepseek_v3", "falcon-7b": "falcon", "gemma-7b": "gemma",
    "gemma-2-2b": "gemma2", "gpt-2": "gpt2", "gpt-neox-20b": "gpt_neox", "gpt-oss-120b": "gpt_oss", "gpt-j-6b": "gptj",
    "llama-7b": "llama", "mistral-7b": "mistral", "mixtral-8x7b": "mixtral", "olmo-7b": "olmo", "opt-125m": "opt",
    "phi-1.5": "phi", "phi-3-mini": "phi3", "smollm3-3b": "smollm3", "starcoder2-3b": "starcoder2", "t5-small": "t5",
}  # fmt: skip


def test_every_preset_names_its_source_and_has_a_published_total():
    known = models()
    assert len(known) > 100
    assert all(model.source and model.context for model in known.values())
    assert set(known) == {*CHECKPOINTS, *PAPERS}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parameters_of_checkpoints(name):
    assert models()[name].parameters == CHECKPOINTS[name]


@pytest.mark.parametrize("name", PAPERS)
def test_parameters_that_papers_give(name):
    assert models()[name].parameters == pytest.approx(PAPERS[name] * 1e6, rel=0.02)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_the_published_ones(name):
    model = models()[name]
    # Model cards differ in whether the embedding, of which a token uses one row, is counted.
    low = model.active_parameters - model.vocabulary * model.d_model
    assert 0.97 * low <= ACTIVE[name] * 1e9 <= 1.03 * model.active_parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFAULT_CONFIGS)
def test_transformers_builds_models_of_the_same_size(name):
    import torch
    import transformers

    from qkv.cost.configs import model_of

    config = transformers.AutoConfig.for_model(DEFAULT_CONFIGS[name])
    kinds = {"bert": transformers.AutoModel, "t5": transformers.AutoModelForSeq2SeqLM}
    with torch.device("meta"):
        built = kinds.get(DEFAULT_CONFIGS[name], transformers.AutoModelForCausalLM).from_config(config)
    ours = models()[name]
    assert sum(parameter.numel() for parameter in built.parameters()) == ours.parameters
    read = model_of(json.loads(json.dumps(config.to_dict(), default=str)), name)
    assert read.parameters == ours.parameters
    assert read.cache_numbers == ours.cache_numbers


# Bytes of a token's cache in 16 bits.
CACHES = {
    "llama-2-7b": 524288, "llama-2-70b": 327680, "llama-3-8b": 131072, "llama-3.1-405b": 516096, "mistral-7b": 131072,
    "falcon-7b": 8192, "gpt-3-175b": 4718592, "deepseek-v3": 70272, "qwen2.5-7b": 57344, "gpt-2": 36864,
    "bert-base": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", CACHES)
def test_cache_of_a_token(name):
    assert models()[name].cache_bytes(1) == CACHES[name]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Llama 3 8B", "llama-3-8b"),
        ("meta-llama/Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("GPT2", "gpt-2"),
        ("gpt2-xl", "gpt-2-xl"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("falcon_40b", "falcon-40b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("tinyllama", "tinyllama-1.1b"),
    ],
)
def test_names_are_matched_loosely(typed, meant):
    assert model_named(typed).name == meant


def test_normalized_names_are_unique():
    names = [_normalized(name) for name in models()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("typed", "near"), [("lama-3-8b", "llama-3-8b"), ("gpt-5", "gpt-"), ("llama", "llama-2-")])
def test_unknown_names_list_the_nearest(typed, near):
    with pytest.raises(OptionError, match="nearest") as caught:
        model_named(typed)
    assert near in str(caught.value)
    assert "--list" in str(caught.value)


def test_other_objects_are_refused():
    for name in ("", "???", "x" * 10**5):
        with pytest.raises(OptionError):
            as_model(name)
    with pytest.raises(OptionTypeError, match=r"qkv\.cost\.Model"):
        as_model(7)
    assert as_model(models()["gpt-2"]) is models()["gpt-2"]


def test_paths_and_names_are_distinguished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt-2").mkdir()
    (tmp_path / "mine").mkdir()
    assert not is_path("gpt-2")
    assert not is_path("meta-llama/Llama-3-8B")
    assert all(map(is_path, ("./gpt-2", "mine", "config.json", str(tmp_path))))
