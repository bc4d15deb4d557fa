"""`qkv.hf.capture` against the weights of transformers, and `head_statistics` against sums written out."""

import numpy as np
import pytest
import torch
import transformers

import qkv
from qkv.errors import BackendRefused
from qkv.hf import capture, head_statistics, load
from tests.helpers.small_checkpoint import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("checkpoints") / "whole")


def inputs(loaded, text="one two three four five six"):
    given = loaded.tokenizer(text, return_tensors="pt")
    return {name: given[name] for name in ("input_ids", "attention_mask")}


def test_weights_are_those_of_eager_attention(folder):
    loaded = load(folder, generates=False)
    assert not hasattr(loaded.model, "lm_head")
    layers = capture(loaded.model, inputs(loaded))
    eager = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        wanted = eager(**inputs(loaded), output_attentions=True).attentions
    assert [layer.layer for layer in layers] == [0, 1]
    for layer, weights in zip(layers, wanted, strict=True):
        assert torch.allclose(layer.weights, weights, atol=1e-6)


def test_tensors_are_what_attention_got(folder):
    loaded = load(folder, generates=False)
    for layer in capture(loaded.model, inputs(loaded)):
        assert (layer.query.shape, layer.key.shape) == ((1, 4, 6, 6), (1, 2, 6, 6))
        similarity = qkv.Softmax(layer.scale)
        tensors = layer.query, layer.key, layer.value
        again = qkv.attention(*tensors, similarity=similarity, mask=qkv.Causal(), return_weights=True)[1]
        assert torch.allclose(again, layer.weights, atol=1e-6)


def test_a_model_is_left_as_it_was(folder):
    loaded = load(folder, generates=False)
    before = loaded.model(**inputs(loaded)).last_hidden_state

    def stop(layer):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        capture(loaded.model, inputs(loaded), each=stop)
    assert loaded.model.config._attn_implementation == "qkv"
    assert torch.equal(loaded.model(**inputs(loaded)).last_hidden_state, before)


def test_a_model_on_another_implementation_is_refused(folder):
    loaded = load(folder, generates=False, implementation="sdpa")
    with pytest.raises(BackendRefused, match=r"sdpa.*set_attn_implementation"):
        capture(loaded.model, inputs(loaded))


def test_an_encoder_without_a_pooler_is_loaded(tmp_path, folder):
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 20}
    config = transformers.BertConfig(**sizes, num_attention_heads=4)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    load(folder).tokenizer.save_pretrained(tmp_path)
    loaded = load(tmp_path, generates=False)
    weights = capture(loaded.model, inputs(loaded))[0].weights
    assert (weights > 0).all(), "every token sees all"


def test_habits_by_hand():
    weights = torch.rand(2, 3, 5, 5, dtype=torch.float64).softmax(-1)
    found, cells = head_statistics(weights), weights.numpy()
    own = np.arange(5)
    assert np.allclose(found.entropy, -(cells * np.log(cells)).sum(-1).mean(-1))
    assert np.allclose(found.first, cells[..., 0].mean(-1))
    assert np.allclose(found.previous, cells[..., own[1:], own[:-1]].mean(-1))
    assert np.allclose(found.itself, cells[..., own, own].mean(-1))


def test_habits_of_one_token():
    found = head_statistics(torch.ones(1, 1, 1, 1))
    assert (found.entropy.item(), found.first.item(), found.itself.item()) == (0, 1, 1)
    assert found.previous.isnan().all()
