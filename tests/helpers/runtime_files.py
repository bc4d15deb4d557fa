"""Files of tiny random models for the tests of qkv.runtime: safetensors, and GGUF as llama.cpp writes them."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from tests.helpers.tiny_models import draw

NAMES = ("llama", "qwen2", "gemma3")
CONTEXT = 211
_ROPE = {"rope_type": "default", "rope_theta": 300.0}
_GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2}
# Other families: their class, and the settings that differ from SIZES below. Widths of heads are even where they are
# rotated; the width of the model is theirs times the number of heads where the class leaves no choice.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {**_GROUPED, "head_dim": 14, "rope_parameters": _ROPE, "sliding_window": 5}),
    "qwen3": (
        "Qwen3",
        {**_GROUPED, "head_dim": 14, "rope_parameters": _ROPE, "attention_bias": True}
        | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "gemma2": (
        "Gemma2",
        {**_GROUPED, "hidden_size": 66, "head_dim": 14, "rope_parameters": _ROPE, "sliding_window": 5}
        | {
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 9.0,
            "attention_bias": True,
        },
    ),
    "phi3": (
        "Phi3",
        {**_GROUPED, "hidden_size": 84, "sliding_window": 7}
        | {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.3}, "original_max_position_embeddings": CONTEXT},
    ),
    "smollm3": (
        "SmolLM3",
        {**_GROUPED, "hidden_size": 84, "rope_parameters": _ROPE, "no_rope_layers": [1, 0, 1], "attention_bias": True}
        | {"use_sliding_window": True, "sliding_window": 5, "layer_types": None, "mlp_bias": True},
    ),
    "starcoder2": (
        "Starcoder2",
        {**_GROUPED, "hidden_size": 84, "rope_parameters": _ROPE, "norm_epsilon": 0.3, "sliding_window": 5},
    ),
    "gpt2": (
        "GPT2",
        {"n_embd": 35, "n_layer": 3, "n_head": 5, "n_inner": 53, "n_positions": CONTEXT, "layer_norm_epsilon": 0.3},
    ),
    "gpt_neox": (
        "GPTNeoX",
        {"hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 3, "layer_norm_eps": 0.3}
        | {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.3}},
    ),
    "olmo2": ("Olmo2", {**_GROUPED, "hidden_size": 84, "rope_parameters": _ROPE, "attention_bias": True}),
}
# For fixtures: every architecture, those of FAMILIES in the slow tests only.
ALL = [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES)]


def build(name: str, **options: Any) -> Any:
    """A model in eager attention, drawn so that a dropped feature changes its logits."""
    sizes: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 0.3,
    }
    if name == "llama":
        kind, more = "Llama", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}
        more["rope_parameters"] = {"rope_type": "default", "rope_theta": 77.0}
        more["tie_word_embeddings"] = False
    elif name == "qwen2":
        kind, more = "Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
        more["rope_parameters"] = {"rope_type": "default", "rope_theta": 300.0}
        more["tie_word_embeddings"] = True
    elif name in FAMILIES:
        kind, more = FAMILIES[name]
        sizes |= {"hidden_size": 37, "intermediate_size": 53}
        if name == "gpt2":
            sizes = {each: sizes[each] for each in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    else:
        kind = "Gemma3Text"
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        more = {"head_dim": 32, "query_pre_attn_scalar": 7, "sliding_window": 5, "layer_types": kinds}
        more["final_logit_softcapping"] = 9.0
        full = {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0}
        more["rope_parameters"] = {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        }
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **more, **options})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    draw(model, 1.6)
    return model


def write_folder(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def eager_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def write_gguf(
    model: Any, path: Path, quantized: str | None = None, vocabulary: bool | str = False, **more: Any
) -> Path:
    """Write a model as GGUF: queries and keys of llama are permuted, gemma's norms have their one, and the products of
    GPT-2 are not transposed.

    The vocabulary is one of letters and words, or has the characters that are given.
    """
    config = model.config
    family = config.model_type.removesuffix("_text")
    name = "llama" if family == "mistral" else family
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.n_inner if name == "gpt2" else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if name in ("gpt2", "starcoder2"):
        writer.add_layer_norm_eps(config.layer_norm_epsilon if name == "gpt2" else config.norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_key_length(width)
        writer.add_value_length(width)
    if name != "gpt2":
        writer.add_head_count_kv(config.num_key_value_heads)
        _add_positions(writer, config, name, width)
    for part in ("attn", "final"):
        if family in ("gemma2", "gemma3") and getattr(config, f"{part}_logit_softcapping", None) is not None:
            writer.add_float32(f"{name}.{part}_logit_softcapping", getattr(config, f"{part}_logit_softcapping"))
    if vocabulary:
        _add_vocabulary(writer, config.vocab_size, vocabulary if isinstance(vocabulary, str) else "")
    for key, value in more.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key.replace("__", "."), value)
        else:
            writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    code = next(code for code, each in gguf.MODEL_ARCH_NAMES.items() if each == name)
    names = gguf.get_tensor_name_map(code, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.float().numpy()
        if name == "llama" and ("q_proj" in key or "k_proj" in key):
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            data = data.reshape(heads, 2, width // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        if name in ("gemma2", "gemma3") and "norm" in key:
            data = data + 1
        if name == "gpt2" and "transformer.h." in key:
            data = data.T
        _add_tensor(writer, names.get_name(key, (".weight", ".bias")) or key, np.ascontiguousarray(data), quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_positions(writer: gguf.GGUFWriter, config: Any, name: str, width: int) -> None:
    """Windows and the rotary."""
    rope = config.rope_parameters
    if getattr(config, "sliding_window", None) and name not in ("qwen2", "qwen3"):  # whose files do not say it
        writer.add_sliding_window(config.sliding_window)
    if name == "gemma3":
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if "partial_rotary_factor" in rope:
        writer.add_rope_dimension_count(int(width * rope["partial_rotary_factor"]))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{name}.rope.scaling.type", rope["rope_type"])
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, quantized: str | None) -> None:
    kind = gguf.GGMLQuantizationType[quantized.upper()] if quantized and data.ndim == 2 else None
    if kind is None:
        writer.add_tensor(name, data)
    else:
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int, characters: str) -> None:
    """Byte-level tokens: three that control the model, letters, a few words, and a word for each other number."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = ["<pad>", "<eos>", "<bos>", "Ġ", *letters, "th", "the", "Ġthe", "."]
    merges = ["t h", "th e", "Ġ the"]
    if characters:
        tokens, merges = ["<pad>", "<eos>", "<bos>", *characters.replace(" ", "Ġ").replace("\n", "Ċ")], []
    tokens += [f"W{at}" for at in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if at < 3 else 1 for at in range(len(tokens))])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
