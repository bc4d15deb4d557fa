"""Models with latent attention: latents are stored once, and both forms give the logits of eager attention."""

import copy

import pytest
import torch
import transformers
from torch import nn

import qkv
from qkv.cache import latents
from qkv.errors import BackendRefused
from tests.helpers.hf_harness import close
from tests.helpers.tiny_models import llama_like, token_ids

LAYERS, RANK, ROPE = 2, 24, 8
SIZES = {
    "num_hidden_layers": LAYERS, "num_attention_heads": 5, "num_key_value_heads": 5, "q_lora_rank": 19,
    "kv_lora_rank": RANK, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": 6, "v_head_dim": 11, "head_dim": ROPE,
}  # fmt: skip
EXPERTS = {
    "first_k_dense_replace": 1, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 29, "experts_implementation": "eager",
}  # fmt: skip
CONFIGS = {
    "DeepseekV2Config": {**SIZES, **EXPERTS, "q_lora_rank": None},
    "DeepseekV3Config": {**SIZES, **EXPERTS},
    "Glm4MoeLiteConfig": {**SIZES, **EXPERTS},
    "MiniCPM3Config": {**SIZES, "qk_head_dim": 6 + ROPE},
}


def models(kind="DeepseekV3Config"):
    """The same weights on eager and on qkv, with scores that spread."""
    qkv.hf.register()
    torch.manual_seed(0)
    config = llama_like(kind, **CONFIGS[kind])
    config.initializer_range = 0.4
    eager = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("qkv")
    return eager, ours


def logits(model, ids, cache):
    with torch.no_grad():
        return model(ids, past_key_values=cache).logits


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_equals_eager_and_stores_latents_once(kind, monkeypatch):
    eager, ours = models(kind)
    forms = []
    chosen = latents._form
    monkeypatch.setattr(latents, "_form", lambda *given: forms.append(chosen(*given)) or forms[-1])
    theirs, own = transformers.DynamicCache(config=eager.config), qkv.hf.cache(ours)
    for seed, n in enumerate((67, 1, 1, 40, 1)):
        ids = token_ids(3, n, seed=seed)
        close(logits(ours, ids, own), logits(eager, ids, theirs))
    assert set(forms) == {"absorbed", "expanded"}
    # Two pages of each row and layer: r + rope numbers a token, and a header of 64 bytes a page.
    assert own.nbytes == LAYERS * 3 * 2 * (64 + 64 * 4 * (RANK + ROPE))
    assert own.layers[0].cache.latent


# int8 has one scale for a latent and its rotary key.
LOOSE = {torch.bfloat16: 6e-2, torch.float16: 1e-2, torch.int8: 0.15}


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
def test_storage_formats(dtype):
    eager, ours = models()
    theirs, own = transformers.DynamicCache(config=eager.config), qkv.hf.cache(ours, dtype=dtype)
    for seed, n in enumerate((33, 1, 1)):
        ids = token_ids(2, n, seed=seed)
        found = logits(ours, ids, own)
        close(found, logits(eager, ids, theirs), tolerance=LOOSE[dtype])
    assert own.layers[0].cache.format.name == str(dtype).removeprefix("torch.")


def test_a_format_that_rotates_rows_is_refused():
    ours = models()[1]
    with pytest.raises(qkv.errors.OptionError, match="int8 stores latents"):
        logits(ours, token_ids(1, 3), qkv.hf.cache(ours, dtype="int4"))


def test_expanding_tensors_is_unchanged():
    """Transformers' own caches work with a model whose class hands latents on."""
    eager, ours = models()
    qkv.hf.cache(ours)
    attention = ours.model.layers[0].self_attn
    key, value = attention.expand_kv(torch.randn(2, 1, 7, RANK), torch.randn(2, 1, 7, ROPE))
    assert (key.shape, value.shape) == ((2, 5, 7, 6 + ROPE), (2, 5, 7, 11))
    ids = token_ids(2, 9)
    own = transformers.DynamicCache(config=ours.config)
    close(logits(ours, ids, own), logits(eager, ids, transformers.DynamicCache(config=eager.config)))
    before = type(attention).expand_kv
    qkv.hf.cache(ours)
    assert type(attention).expand_kv is before, "wrapped once"


@pytest.mark.parametrize(
    "projection", [nn.Linear(RANK, 5 * 17), nn.Sequential(nn.Linear(RANK, 5 * 17, bias=False))], ids=["bias", "other"]
)
def test_another_projection_is_refused(projection):
    """The weights of an adapter or of quantised layers are not those of a plain one."""
    ours = models()[1]
    for layer in ours.model.layers:
        layer.self_attn.kv_b_proj = projection
    with pytest.raises(BackendRefused, match="kv_b_proj"):
        logits(ours, token_ids(1, 3), qkv.hf.cache(ours))


def test_attentions_and_a_mask_that_is_not_causal():
    eager, ours = models()
    ids, own = token_ids(2, 6), qkv.hf.cache(ours)
    with torch.no_grad():
        found = ours(ids, past_key_values=own, output_attentions=True).attentions
        wanted = eager(ids, output_attentions=True).attentions
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
        own.reset()
        full = ours(ids, attention_mask=mask, past_key_values=own).logits
        added = torch.zeros(2, 1, 6, 6)
        close(full, eager(ids, attention_mask=added).logits)


def test_generation_with_beams():
    eager, ours = models()
    ids = token_ids(2, 7)
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 3, "pad_token_id": 0, "eos_token_id": None}
    wanted = eager.generate(ids, **options)
    assert torch.equal(ours.generate(ids, past_key_values=qkv.hf.cache(ours), **options), wanted)
