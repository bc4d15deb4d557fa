"""Architectures by the model_type of their config.json: what each entry means for the sizes of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import OptionError, complaint
from .architecture import Latent
from .configs import Fields

Sizes = dict[str, Any]


def _decoder(fields: Fields, *, tied: bool = False) -> Sizes:
    """What most decoders since LLaMA have in common."""
    d, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    layers = fields.size("num_hidden_layers")
    given: Sizes = {
        "layers": layers,
        "d_model": d,
        "heads": heads,
        "kv_heads": fields.size("num_key_value_heads", default=heads),
        "head_width": fields.optional_size("head_dim"),
        "d_ff": fields.size("intermediate_size"),
        "vocabulary": fields.size("vocab_size"),
        "tied": fields.flag("tie_word_embeddings", tied),
        "context": fields.size("max_position_embeddings", default=0),
        "qkv_bias": fields.flag("attention_bias", False),
        "out_bias": fields.flag("attention_bias", False),
        "ff_bias": fields.flag("mlp_bias", False),
    }
    return _rotated(fields, given)


def _rotated(fields: Fields, given: Sizes, share: float = 1.0) -> Sizes:
    width = given.get("head_width")
    width = given["d_model"] // given["heads"] if width is None else width
    given["rotary"] = int(fields.share("partial_rotary_factor", "rotary_pct", default=share) * width)
    return given


def _windows(fields: Fields, given: Sizes, windowed: int | None = None) -> Sizes:
    """Windows of the layers that have one: as listed, or `windowed` of them, or all."""
    window = fields.optional_size("sliding_window")
    kinds = fields.kinds_of_layers(given["layers"])
    if kinds is not None:
        windowed = kinds.count("sliding_attention")
    windowed = given["layers"] if windowed is None else windowed
    return {**given, "window": window, "window_layers": windowed} if window and windowed else given


def _llama(fields: Fields) -> Sizes:
    return _decoder(fields)


def _smollm3(fields: Fields) -> Sizes:
    given = _decoder(fields, tied=True)
    return _windows(fields, given) if fields.flag("use_sliding_window", False) else given


def _mistral(fields: Fields) -> Sizes:
    return _windows(fields, {**_decoder(fields), "qkv_bias": False, "out_bias": False, "ff_bias": False})


def _mixtral(fields: Fields) -> Sizes:
    experts = {"experts": fields.size("num_local_experts"), "experts_active": fields.size("num_experts_per_tok")}
    return {**_mistral(fields), **experts}


def _qwen2(fields: Fields) -> Sizes:
    given = {**_decoder(fields), "qkv_bias": True, "out_bias": False, "ff_bias": False}
    if not fields.flag("use_sliding_window", False):
        return given
    first = fields.size("max_window_layers", default=0, least=0)
    return _windows(fields, given, max(given["layers"] - first, 0))


def _qwen2_moe(fields: Fields) -> Sizes:
    fields.must_be("decoder_sparse_step", 1)
    wide = fields.size("moe_intermediate_size")
    shared = fields.size("shared_expert_intermediate_size")
    if shared % wide:
        given, wanted = f"{shared} beside experts of {wide}", "a multiple of moe_intermediate_size"
        raise OptionError(complaint(f"{fields.file}, shared_expert_intermediate_size", given, wanted))
    return {
        **_qwen2(fields),
        "experts": fields.size("num_experts"),
        "experts_active": fields.size("num_experts_per_tok"),
        "expert_d_ff": wide,
        "shared_experts": shared // wide,
        "shared_gate": True,
        "dense_layers": fields.list_length("mlp_only_layers"),
    }


def _qwen3(fields: Fields, width: int | None = 128) -> Sizes:
    width = fields.optional_size("head_dim") or width
    given = _rotated(fields, {**_decoder(fields), "head_width": width, "qk_norm": "head", "ff_bias": False})
    if not fields.flag("use_sliding_window", False):
        return given
    first = fields.size("max_window_layers", default=0, least=0)
    return _windows(fields, given, max(given["layers"] - first, 0))


def _qwen3_moe(fields: Fields) -> Sizes:
    fields.must_be("decoder_sparse_step", 1)
    return {
        **_qwen3(fields, None),
        "experts": fields.size("num_experts", "num_local_experts"),
        "experts_active": fields.size("num_experts_per_tok"),
        "expert_d_ff": fields.size("moe_intermediate_size"),
        "dense_layers": fields.list_length("mlp_only_layers"),
    }


def _gemma(fields: Fields) -> Sizes:
    width = fields.size("head_dim", default=256)
    return _rotated(fields, {**_decoder(fields, tied=True), "head_width": width, "ff_bias": False})


def _gemma2(fields: Fields) -> Sizes:
    given = {**_gemma(fields), "norms_per_layer": 4}
    return _windows(fields, given, (given["layers"] + 1) // 2)


def _gemma3(fields: Fields) -> Sizes:
    """Configs leave out what is as in the first of these models."""
    usual = {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 4096,
        "max_position_embeddings": 131072,
    }  # fmt: skip
    fields = Fields(
        {**usual, **{name: value for name, value in fields.config.items() if value is not None}}, fields.file
    )
    given = {**_gemma(fields), "norms_per_layer": 4, "qk_norm": "head"}
    every = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _windows(fields, given, given["layers"] - given["layers"] // every)


def _phi3(fields: Fields) -> Sizes:
    return _windows(fields, {**_decoder(fields), "qkv_bias": False, "out_bias": False, "ff_bias": False})


def _olmo(fields: Fields) -> Sizes:
    return {**_decoder(fields), "norm": "none"}


def _olmo2(fields: Fields) -> Sizes:
    return {**_decoder(fields), "qk_norm": "wide"}


def _olmoe(fields: Fields) -> Sizes:
    experts = {"experts": fields.size("num_experts"), "experts_active": fields.size("num_experts_per_tok")}
    return {**_olmo2(fields), **experts}


def _starcoder2(fields: Fields) -> Sizes:
    biased = fields.flag("use_bias", True)
    biases = {"qkv_bias": biased, "out_bias": biased, "ff_bias": biased}
    return _windows(fields, {**_decoder(fields, tied=True), "gated": False, "norm": "layer", **biases})


def _gpt_oss(fields: Fields) -> Sizes:
    given = _decoder(fields)
    bias = fields.flag("attention_bias", True)
    given |= {"qkv_bias": bias, "out_bias": bias, "ff_bias": True, "router_bias": True, "sinks": True}
    given["experts"] = fields.size("num_local_experts", "num_experts")
    given["experts_active"] = fields.size("num_experts_per_tok", "experts_per_token")
    return _windows(fields, given, (given["layers"] + 1) // 2)


def _deepseek(fields: Fields) -> Sizes:
    fields.must_be("moe_layer_freq", 1)
    rope = fields.size("qk_rope_head_dim")
    given = {
        **_decoder(fields),
        "head_width": fields.size("qk_nope_head_dim") + rope,
        "value_width": fields.size("v_head_dim"),
        "latent": Latent(fields.size("kv_lora_rank"), fields.optional_size("q_lora_rank"), rope),
        "rotary": 0,  # counted by the latent lines
        "ff_bias": False,
        "experts": fields.size("n_routed_experts"),
        "experts_active": fields.size("num_experts_per_tok"),
        "expert_d_ff": fields.size("moe_intermediate_size"),
        "shared_experts": fields.size("n_shared_experts", default=0, least=0),
        "dense_layers": fields.size("first_k_dense_replace", default=0, least=0),
    }
    given["kv_heads"] = given["heads"]
    return given


def _biased(given: Sizes) -> Sizes:
    """Layer norms and biases everywhere, two matrices: GPT-2 and what came from it."""
    every = {"qkv_bias": True, "out_bias": True, "ff_bias": True}
    return {"gated": False, "norm": "layer", **every, **given}


def _gpt2(fields: Fields) -> Sizes:
    d = fields.size("n_embd")
    positions = fields.size("n_positions", "n_ctx")
    given = {"layers": fields.size("n_layer"), "d_model": d, "heads": fields.size("n_head")}
    given |= {"d_ff": fields.size("n_inner", default=4 * d), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", True), "positions": positions, "context": positions}
    return _biased(given)


def _gptj(fields: Fields) -> Sizes:
    d, heads = fields.size("n_embd"), fields.size("n_head")
    given = {"layers": fields.size("n_layer"), "d_model": d, "heads": heads, "norms_per_layer": 1, "head_bias": True}
    given |= {"d_ff": fields.size("n_inner", default=4 * d), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", False), "context": fields.size("n_positions", default=0)}
    given["rotary"] = fields.size("rotary_dim", default=d // heads)
    return {**_biased(given), "qkv_bias": False, "out_bias": False}


def _gpt_neox(fields: Fields) -> Sizes:
    biased = fields.flag("attention_bias", True)
    given = {**_decoder(fields), "kv_heads": None, "qkv_bias": biased, "out_bias": biased, "ff_bias": True}
    return _rotated(fields, _biased(given), 0.25)


def _opt(fields: Fields) -> Sizes:
    d = fields.size("hidden_size")
    fields.must_be("word_embed_proj_dim", d)
    fields.must_be("do_layer_norm_before", True)
    positions, biased = fields.size("max_position_embeddings"), fields.flag("enable_bias", True)
    given: Sizes = {
        "layers": fields.size("num_hidden_layers"),
        "d_model": d,
        "heads": fields.size("num_attention_heads"),
    }
    given |= {"d_ff": fields.size("ffn_dim"), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", True), "positions": positions + 2, "context": positions}
    given |= {"qkv_bias": biased, "out_bias": biased, "ff_bias": biased}
    given["norm"] = "layer" if fields.flag("layer_norm_elementwise_affine", True) else "none"
    given["final_norm"] = not fields.flag("_remove_final_layer_norm", False)
    return _biased(given)


def _bloom(fields: Fields) -> Sizes:
    given = {"layers": fields.size("n_layer", "num_hidden_layers"), "d_model": fields.size("hidden_size", "n_embed")}
    given |= {"heads": fields.size("n_head", "num_attention_heads"), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", True), "embedding_norm": True}
    return _biased(given)


def _falcon(fields: Fields) -> Sizes:
    d, heads = fields.size("hidden_size"), fields.size("num_attention_heads", "n_head")
    new = fields.flag("new_decoder_architecture", False)
    shared = fields.flag("multi_query", True)
    kv_heads = fields.size("num_kv_heads", "n_head_kv", default=heads) if new else 1 if shared else heads
    parallel, biased = fields.flag("parallel_attn", True), fields.flag("bias", False)
    norms = fields.size("num_ln_in_parallel_attn", default=2) if new else 1 if parallel else 2
    given: Sizes = {"layers": fields.size("num_hidden_layers", "n_layer"), "d_model": d, "heads": heads}
    given |= {"kv_heads": kv_heads, "norms_per_layer": norms, "d_ff": fields.size("ffn_hidden_size", default=4 * d)}
    given |= {"vocabulary": fields.size("vocab_size"), "tied": fields.flag("tie_word_embeddings", True)}
    given |= {"qkv_bias": biased, "out_bias": biased, "ff_bias": biased}
    given["context"] = fields.size("max_position_embeddings", default=2048)
    given = _biased(given)
    return given if fields.flag("alibi", False) else _rotated(fields, given)


def _phi(fields: Fields) -> Sizes:
    fields.must_be("qk_layernorm", False)
    given = {**_decoder(fields), "qkv_bias": True, "out_bias": True, "ff_bias": True}
    given |= {"norms_per_layer": 1, "head_bias": True}
    return _rotated(fields, _biased(given), 0.5)


def _bert(fields: Fields) -> Sizes:
    positions = fields.size("max_position_embeddings")
    given: Sizes = {
        "kind": "encoder",
        "layers": fields.size("num_hidden_layers"),
        "d_model": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "d_ff": fields.size("intermediate_size"),
        "vocabulary": fields.size("vocab_size"),
        "positions": positions,
        "context": positions,
        "segments": fields.size("type_vocab_size", default=2),
        "tied": True,
        "embedding_norm": True,
        "final_norm": False,
        "pooler": True,
    }
    return _biased(given)


def _roberta(fields: Fields) -> Sizes:
    """The first rows of the table of positions are for padding."""
    given = _bert(fields)
    return {**given, "context": max(given["positions"] - 2, 1)}


def _distilbert(fields: Fields) -> Sizes:
    positions = fields.size("max_position_embeddings")
    given: Sizes = {"kind": "encoder", "layers": fields.size("n_layers"), "d_model": fields.size("dim")}
    given |= {
        "heads": fields.size("n_heads"),
        "d_ff": fields.size("hidden_dim"),
        "vocabulary": fields.size("vocab_size"),
    }
    given |= {"positions": positions, "context": positions, "tied": True, "embedding_norm": True, "final_norm": False}
    return _biased(given)


def _t5(fields: Fields) -> Sizes:
    encoder = fields.size("num_layers")
    return {
        "kind": "encoder-decoder",
        "layers": fields.size("num_decoder_layers", default=encoder),
        "encoder_layers": encoder,
        "d_model": fields.size("d_model"),
        "heads": fields.size("num_heads"),
        "head_width": fields.size("d_kv"),
        "d_ff": fields.size("d_ff"),
        "gated": fields.word("feed_forward_proj", "relu").startswith("gated"),
        "vocabulary": fields.size("vocab_size"),
        "tied": fields.flag("tie_word_embeddings", True),
        "relative_buckets": fields.size("relative_attention_num_buckets", default=32),
        "context": fields.size("n_positions", default=0),
    }


FAMILIES: dict[str, Callable[[Fields], Sizes]] = {
    "bert": _bert, "bloom": _bloom, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "distilbert": _distilbert,
    "falcon": _falcon, "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3, "gpt2": _gpt2, "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss, "gptj": _gptj, "granite": _llama, "llama": _llama, "mistral": _mistral, "mixtral": _mixtral,
    "olmo": _olmo, "olmo2": _olmo2, "olmoe": _olmoe, "opt": _opt, "phi": _phi, "phi3": _phi3, "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe, "roberta": _roberta, "smollm3": _smollm3,
    "starcoder2": _starcoder2, "t5": _t5, "xlm-roberta": _roberta,
}  # fmt: skip
