"""Who is refused, and that asking twice changes nothing."""

import pytest
import torch
import transformers
from torch import nn

import qkv
from qkv.errors import FormRefused
from qkv.hf.registry import check_layers


class ByItselfAttention(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ByItselfAttention()


def test_a_layer_that_computes_by_itself_is_named():
    with pytest.raises(FormRefused, match=r"Wrapped.*inner \(ByItselfAttention\)"):
        check_layers(Wrapped())


def test_registering_again_wraps_nothing_again():
    qkv.hf.register()
    before = transformers.PreTrainedModel.set_attn_implementation, transformers.PreTrainedModel.post_init
    qkv.hf.register()
    assert before == (transformers.PreTrainedModel.set_attn_implementation, transformers.PreTrainedModel.post_init)


def test_other_implementations_are_left_alone():
    qkv.hf.register()
    config = transformers.GPTJConfig(n_embd=16, n_head=2, n_layer=1, rotary_dim=4, vocab_size=20, n_positions=32)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with pytest.raises(FormRefused, match="GPTJForCausalLM"):
        model.set_attn_implementation("qkv")
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        assert model(torch.tensor([[3, 5]])).logits.isfinite().all()
