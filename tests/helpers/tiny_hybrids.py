"""Configurations of small models with linear attention, of every family that `qkv.hf` runs on `qkv.states`."""

from __future__ import annotations

from typing import Any

import transformers

LAYERS = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
COMMON = {
    "vocab_size": 101,
    "hidden_size": 60,
    "intermediate_size": 53,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 211,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 7,
    "linear_value_head_dim": 11,
    "linear_conv_kernel_dim": 4,
    "layer_types": LAYERS,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 29, "experts_implementation": "eager"}
MAMBA = {
    "mamba_n_heads": 10,
    "mamba_d_head": 12,
    "mamba_expand": 2,
    "mamba_n_groups": 2,
    "mamba_d_state": 7,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 5,
}


def qwen3_next() -> Any:
    more = {"num_experts": 4, "shared_expert_intermediate_size": 31, "decoder_sparse_step": 2, "head_dim": 14}
    return transformers.Qwen3NextConfig(**COMMON, **DELTA, **EXPERTS, **more)


def qwen3_5() -> Any:
    return transformers.Qwen3_5TextConfig(**COMMON, **DELTA, head_dim=14)


def olmo_hybrid() -> Any:
    return transformers.OlmoHybridConfig(**COMMON, **DELTA, linear_allow_neg_eigval=True)


def kimi_linear() -> Any:
    widths = {"kv_lora_rank": 17, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 11}
    states = {"layer_types": LAYERS, "linear_num_heads": 6, "linear_head_dim": 7}
    more = {"num_local_experts": 4, "n_group": 1, "topk_group": 1, **EXPERTS}
    return transformers.KimiLinearConfig(**{**COMMON, "num_key_value_heads": 6}, **widths, **states, **more)


def minimax() -> Any:
    """Full attention first: transformers' own cache for MiniMax counts the tokens of its first layer."""
    more = {"block_size": 5, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
    return transformers.MiniMaxConfig(**COMMON, **more, head_dim=14)


def mamba2(**more: Any) -> Any:
    sizes = {"num_heads": 10, "head_dim": 12, "expand": 2, "n_groups": 2, "state_size": 7, "chunk_size": 5}
    tokens = {name: COMMON[name] for name in ("vocab_size", "hidden_size", "pad_token_id", "bos_token_id")}
    return transformers.Mamba2Config(**tokens, **sizes, num_hidden_layers=3, eos_token_id=None, **more)


def bamba() -> Any:
    return transformers.BambaConfig(**COMMON, **MAMBA, attn_layer_indices=[1, 3])


def granite() -> Any:
    more = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
    return transformers.GraniteMoeHybridConfig(**COMMON, **MAMBA, **more, layer_types=LAYERS)


def nemotron() -> Any:
    sizes = {"mamba_num_heads": 10, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 7, "chunk_size": 5}
    kinds = ["linear_attention", "full_attention", "linear_attention", "mlp"]
    return transformers.NemotronHConfig(**COMMON, **sizes, layers_block_type=kinds, head_dim=14)


def falcon_h1() -> Any:
    """Both kinds in every layer, and a gate without a norm."""
    return transformers.FalconH1Config(**COMMON, **MAMBA, head_dim=14, mamba_d_ssm=120, mamba_rms_norm=False)


def zamba2() -> Any:
    sizes = {"n_mamba_heads": 10, "mamba_headdim": 12, "mamba_ngroups": 2, "mamba_d_state": 7, "chunk_size": 5}
    kinds = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
    return transformers.Zamba2Config(**{**COMMON, "num_key_value_heads": 6}, **sizes, layers_block_type=kinds)


# Name: (configuration, class of its layers of linear attention, how many).
HYBRIDS = {
    "qwen3_next": (qwen3_next, "Qwen3NextGatedDeltaNet", 2),
    "qwen3_5": (qwen3_5, "Qwen3_5GatedDeltaNet", 2),
    "olmo_hybrid": (olmo_hybrid, "OlmoHybridGatedDeltaNet", 2),
    "kimi_linear": (kimi_linear, "KimiLinearDeltaAttention", 2),
    "minimax": (minimax, "MiniMaxLightningAttention", 2),
    "mamba2": (mamba2, "Mamba2Mixer", 3),
    "bamba": (bamba, "BambaMixer", 2),
    "granitemoehybrid": (granite, "GraniteMoeHybridMambaLayer", 2),
    "nemotron": (nemotron, "NemotronHMamba2Mixer", 2),
    "falcon_h1": (falcon_h1, "FalconH1Mixer", 4),
    "zamba2": (zamba2, "Zamba2MambaMixer", 4),
}
# Without a layer that `qkv.hf.cache` refuses.
CACHED = [name for name in HYBRIDS if name not in ("nemotron", "falcon_h1", "zamba2")]
