"""A checkpoint folder of a tiny Llama with a word tokenizer, for tests of `load` and `qkv generate`."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<pad>", "</s>", "<unk>", *("one two three four five six seven eight nine ten a b c d e f g".split())]  # noqa: SIM905


def write(folder, **options):
    """Write the checkpoint and return its folder; it has positions for 41 tokens."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": len(WORDS)}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 41}
    tokens = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = LlamaConfig(**{**sizes, **heads, **tokens, "initializer_range": 0.5, **options})
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder
