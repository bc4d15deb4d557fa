"""Small valid files of every kind that qkv loads, written by qkv, transformers and llama.cpp's GGUF writer."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import qkv
from qkv.cost import Machine
from qkv.cost.price import Price

ELU, POLYNOMIAL = qkv.FeatureMap(qkv.features.elu1), qkv.Polynomial(degree=2)
WORDS = ("<pad>", "</s>", "<unk>", "o", "n", "e", "on", "one")
SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "vocab_size": len(WORDS)}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}


def saved_by_qkv(folder: Path) -> dict[str, list[bytes]]:
    """Caches, states, models and a machine's calibration."""
    folder.mkdir()
    torch.manual_seed(0)
    path = folder / "file"
    found: dict[str, list[bytes]] = {"cache": [], "state": [], "polynomial state": [], "model": []}

    def keep(kind: str, thing) -> None:
        qkv.nn.save(thing, path) if isinstance(thing, torch.nn.Module) else thing.save(path)
        found[kind].append(path.read_bytes())

    for dtype, options in (
        (torch.float32, {}),
        (torch.int8, {"window": 5}),
        (torch.bfloat16, {"capacity": 70}),
        (torch.float16, {"window": 3, "value_width": 3}),
    ):
        cache = qkv.KVCache(2, 1, 2, dtype=dtype, **options)
        keep("cache", cache)
        width = options.get("value_width", 2)
        cache.append(torch.randn(2, 1, 70, 2), torch.randn(2, 1, 70, width), lengths=[70, 3])
        keep("cache", cache)
    for kind, similarity in (("state", ELU), ("polynomial state", POLYNOMIAL)):
        state = qkv.LinearState(similarity, 2, 1, 2)
        keep(kind, state)
        state.append(torch.randn(2, 1, 3, 2), torch.randn(2, 1, 3, 2), lengths=[3, 1])
        keep(kind, state)
        state.append(torch.randn(2, 1, 90, 2), torch.randn(2, 1, 90, 2))
        keep(kind, state)
    keep("model", qkv.nn.Attention(4, heads=2, similarity=qkv.FeatureMap(qkv.features.positive_random(2, 4, seed=1))))
    keep("model", qkv.nn.Decoder(4, heads=2, layers=1, vocabulary=5, positions=qkv.nn.Rotary()).eval())
    keep("model", qkv.nn.Encoder(4, heads=2, layers=2, vocabulary=5, positions=qkv.nn.Learned(6, 4)).half())
    prices = {"native": Price(*range(1, len(Price._fields) + 1))}
    roofs = {"read.memory": 1e10, "multiply.float32.square": 1e11}
    machine = Machine(
        "a processor", 2, 2, 1 << 33, "2.13", "avx2", "today", roofs, prices, {"native": 0.1}, (("a", 1, 2),)
    )
    found["machine"] = [machine.store(path).read_bytes()]
    return found


def saved_by_others(folder: Path) -> dict[str, list[bytes]]:
    """Folders of a tiny Llama, one for each kind of reader, and its GGUF file; returns the bytes of their parts."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from qkv.hf.checkpoint import quiet

    tokens = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, **tokens))
    with quiet():
        for name in ("weights", "transformers", "transformers' config"):
            model.save_pretrained(folder / name)
            PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder / name)
    weights = (folder / "weights" / "model.safetensors").read_bytes()
    config = (folder / "weights" / "config.json").read_bytes()
    gguf = _gguf(folder / "gguf", model)
    others = [{"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 9, "vocab_size": 7}]
    others.append({**json.loads(config), "model_type": "mistral", "sliding_window": 4})
    others.append({**json.loads(config), "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})
    return {
        "weights": [weights],
        "transformers": [weights],
        "transformers' config": [config],
        "config": [config, *(json.dumps(other).encode() for other in others)],
        "GGUF": [gguf],
        "GGUF header": [gguf],
    }


def _gguf(path: Path, model: torch.nn.Module) -> bytes:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(HEADS["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(HEADS["num_attention_heads"])
    writer.add_head_count_kv(HEADS["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(WORDS))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(WORDS))
    writer.add_token_merges(["o n", "on e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, SIZES["num_hidden_layers"])
    for name, tensor in model.state_dict().items():
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()
