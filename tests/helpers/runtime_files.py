"""Files of tiny random models for the tests of qkv.runtime: safetensors, and GGUF as llama.cpp writes them."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from tests.helpers.tiny_models import draw

NAMES = ("llama", "qwen2", "gemma3")
CONTEXT = 211
_TENSORS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
}  # fmt: skip
_NORMS = {
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
}


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


def write_gguf(model: Any, path: Path, quantized: str | None = None, vocabulary: bool = False, **more: Any) -> Path:
    """Write a model as GGUF: queries and keys of llama are permuted, and gemma's norms have their one."""
    config = model.config
    name = config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(width)
    writer.add_value_length(width)
    rope = config.rope_parameters
    if name == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        writer.add_float32("gemma3.final_logit_softcapping", config.final_logit_softcapping)
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{name}.rope.scaling.type", rope["rope_type"])
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if vocabulary:
        _add_vocabulary(writer, config.vocab_size)
    for key, value in more.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key.replace("__", "."), value)
        else:
            writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.float().numpy()
        if name == "llama" and ("q_proj" in key or "k_proj" in key):
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            data = data.reshape(heads, 2, width // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        if name == "gemma3" and "norm" in key:
            data = data + 1
        _add_tensor(writer, _gguf_name(key, name), np.ascontiguousarray(data), quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(key: str, name: str) -> str:
    table = _TENSORS | _NORMS.get(name, {"post_attention_layernorm": "ffn_norm"})
    stem, _, last = key.rpartition(".")
    layer = ""
    if stem.startswith("model.layers."):
        _, _, at, stem = stem.split(".", 3)
        layer = f"blk.{at}."
    return f"{layer}{table[stem]}.{last}"


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, quantized: str | None) -> None:
    kind = gguf.GGMLQuantizationType[quantized.upper()] if quantized and data.ndim == 2 else None
    if kind is None:
        writer.add_tensor(name, data)
    else:
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Byte-level tokens: three that control the model, letters, a few words, and a word for each other number."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = ["<pad>", "<eos>", "<bos>", "Ġ", *letters, "th", "the", "Ġthe", "."]
    merges = ["t h", "th e", "Ġ the"]
    tokens += [f"W{at}" for at in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
