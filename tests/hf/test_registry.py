"""Who is refused, and that asking twice changes nothing."""

import pytest
import torch
import transformers
from torch import nn

import qkv
from qkv.errors import BackendRefused
from qkv.hf.interface import check_layers


class ByItselfAttention(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ByItselfAttention()


def test_a_layer_that_computes_by_itself_is_named():
    with pytest.raises(BackendRefused, match=r"Wrapped.*inner \(ByItselfAttention\)"):
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
    with pytest.raises(BackendRefused, match="GPTJForCausalLM"):
        model.set_attn_implementation("qkv")
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        assert model(torch.tensor([[3, 5]])).logits.isfinite().all()


def test_a_table_of_classes_is_refused_before_it_is_looked_into():
    """transformers would say KeyError: 'qkv'."""
    qkv.hf.register()
    config = transformers.GitConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    with pytest.raises(BackendRefused, match="Git"):
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="qkv")


def test_a_model_that_computes_with_an_additive_mask_gets_one():
    """DeepSeek-V4 joins numbers of its own to the mask; as booleans they would turn it round."""
    qkv.hf.register()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "deepseek_v4", hidden_size=32, num_attention_heads=4, head_dim=8, num_hidden_layers=2, vocab_size=99,
        q_lora_rank=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, sliding_window=5,
        layer_types=["compressed_sparse_attention"] * 2, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)
    tokens = torch.randint(5, 99, (1, 20))
    with torch.no_grad():
        wanted = model(tokens).logits
        model.set_attn_implementation("qkv")
        assert torch.allclose(model(tokens).logits, wanted, atol=1e-4)


@pytest.mark.parametrize("kind", [transformers.BertConfig, transformers.XLMRobertaConfig, transformers.ElectraConfig])
def test_encoders_have_no_cache(kind):
    qkv.hf.register()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.AutoModelForCausalLM.from_config(kind(**sizes, vocab_size=50), attn_implementation="qkv")
    with pytest.raises(BackendRefused, match=f"{type(model).__name__}.*no decoder"):
        qkv.hf.cache(model)
    decoder = kind(**sizes, vocab_size=50, is_decoder=True)
    qkv.hf.cache(transformers.AutoModelForCausalLM.from_config(decoder, attn_implementation="qkv"))
