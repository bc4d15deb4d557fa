"""Saved models: they are loaded unchanged, and damaged files are refused."""

import json
import os
import pickle
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import qkv
from qkv import features
from qkv.nn import (
    ALiBi,
    Attention,
    Block,
    Decoder,
    Encoder,
    EncoderDecoder,
    FeedForward,
    Learned,
    RelativeBias,
    Rotary,
    Sinusoidal,
    load,
    save,
)

TOKENS = torch.tensor([[2, 3, 5, 7], [1, 0, 6, 2]])
X = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(1))
MODELS = {
    "attention": lambda: Attention(
        12, 6, kv_heads=2, similarity=qkv.Softmax(softcap=3.0, sink=0.5), positions=Rotary()
    ),
    "sink": lambda: Attention(12, 3, similarity=qkv.Softmax(sink=torch.nn.Parameter(torch.ones(3)))),
    "fixed sink": lambda: Attention(12, 3, similarity=qkv.Softmax(sink=torch.ones(3))),
    "block": lambda: Block(12, 3, layout="post-norm", norm="batch", similarity=qkv.Polynomial(2, 0.5)),
    "feed-forward": lambda: FeedForward(12, 5, kind="gated", activation="silu", bias=False),
    "encoder": lambda: Encoder(12, 3, 2, positions=Learned(9, 12), similarity=qkv.FeatureMap(features.elu1)),
    "classes": lambda: Encoder(12, 3, 1, vocabulary=8, classes=3, positions=Sinusoidal(12, base=50.0)),
    "decoder": lambda: Decoder(12, 3, 2, vocabulary=8, positions=RelativeBias(3, buckets=8, farthest=9)),
    "shared sink": lambda: Decoder(
        12, 3, 2, vocabulary=8, similarity=qkv.Softmax(sink=torch.nn.Parameter(torch.ones(3)))
    ),
    "untied": lambda: Decoder(12, 3, 2, vocabulary=8, tied=False, positions=ALiBi(3), feed_forward="gated"),
    "random": lambda: Decoder(
        12, 3, 1, vocabulary=8, similarity=qkv.FeatureMap(features.positive_random(4, 8, seed=3))
    ),
    "powers": lambda: Decoder(
        12, 3, 1, vocabulary=8, similarity=qkv.FeatureMap(features.polynomial(2), normalize=False)
    ),
    "hard": lambda: Decoder(12, 3, 1, vocabulary=8, similarity=qkv.Argmax(), positions=Rotary(fraction=0.5)),
    "both": lambda: EncoderDecoder(
        12, 3, 2, vocabulary=8, decoder_layers=1, positions=RelativeBias(3), final_norm=False
    ),
}


def run(model: torch.nn.Module) -> torch.Tensor:
    if isinstance(model, EncoderDecoder):
        return model(TOKENS, TOKENS)
    reads_tokens = isinstance(model, Encoder | Decoder) and model.vocabulary is not None
    return model(TOKENS if reads_tokens else X.to(next(model.parameters()).dtype))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_model_again(name, dtype, path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    run(model)  # statistics of a batch norm
    model.eval()
    save(model, path)
    before = torch.get_rng_state()
    again = load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert type(again) is type(model)
    assert repr(again) == repr(model)
    assert not again.training
    assert torch.equal(run(again), run(model))
    old, new = model.state_dict(), again.state_dict()
    assert list(old) == list(new)
    assert all(torch.equal(old[key], new[key]) and old[key].dtype is new[key].dtype for key in old)
    # What was shared is shared again, what learned learns, and it can be saved again.
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in again.named_parameters()] == names
    assert all(p.requires_grad and not p.is_meta for p in again.parameters())
    save(again, path)
    assert torch.equal(run(load(path)), run(model))


def test_a_loaded_model_trains_and_generates(path) -> None:
    save(MODELS["decoder"](), path)
    model = load(path)
    assert model.training
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = run(model)
    before.square().sum().backward()
    optimizer.step()
    assert not torch.equal(run(model), before)
    assert qkv.nn.generate(model, TOKENS, new=3).tokens.shape == (2, 3)


def test_options_by_position_and_numpy_are_kept(path) -> None:
    import numpy as np

    save(Decoder(np.int64(12), 3, 1, vocabulary=8), path)
    assert load(path).width == 12


def test_an_old_file_stays_when_writing_fails(path, monkeypatch) -> None:
    save(MODELS["decoder"](), path)
    old = path.read_bytes()

    def fails(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no"):
        save(MODELS["untied"](), path)
    assert path.read_bytes() == old
    assert [p.name for p in path.parent.iterdir()] == [path.name]


class Mine(Decoder):
    pass


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.nn.Linear(2, 2), "Linear"),
        (lambda: Mine(12, 3, 1, vocabulary=8), "Mine"),
        (lambda: Decoder(12, 3, 1, vocabulary=8, similarity=qkv.FeatureMap(torch.exp)), "map: got"),
        (lambda: Decoder(12, 3, 1, vocabulary=8, similarity=qkv.Similarity(lambda q, k: q @ k.mT)), "similarity: got"),
        (lambda: Decoder(12, 3, 1, vocabulary=8, activation=torch.sin), "activation: got"),
    ],
)
def test_what_a_file_cannot_name_is_refused(make, says, path) -> None:
    with pytest.raises(qkv.errors.OptionTypeError, match=says):
        save(make(), path)
    assert not path.exists()


def test_a_model_that_was_taken_apart_is_refused(path) -> None:
    model = MODELS["decoder"]()
    model.layers[0].feed_forward.up = torch.nn.Linear(12, 7)
    with pytest.raises(qkv.errors.OptionError, match=r"feed_forward\.up"):
        save(model, path)
    assert not path.exists()


def refused(path, match: str = "got") -> None:
    with pytest.raises(qkv.errors.OptionError, match=match) as caught:
        load(path)
    assert str(caught.value).startswith("path: got model.safetensors")


def test_damaged_and_foreign_files(path) -> None:
    save(MODELS["decoder"](), path)
    whole = path.read_bytes()
    for cut in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused(path)
    path.write_bytes(whole + b"x")
    refused(path)
    path.write_bytes(pickle.dumps({"weight": [1.0]}))
    refused(path)
    torch.save({"weight": torch.ones(2)}, path)
    refused(path)
    save_file({"weight": torch.ones(2)}, path)
    refused(path, "format None")
    qkv.KVCache(1, 1, 2).save(path)
    refused(path, "qkv.KVCache")
    with pytest.raises(OSError):
        load(path.with_name("nothing"))
    with pytest.raises(qkv.errors.OptionTypeError, match="path"):
        load(7)


def rewritten(path, change_tensors=None, change=None) -> None:
    """A good file with something else in it."""
    save(MODELS["decoder"](), path)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    if change_tensors:
        change_tensors(tensors)
    if change:
        about = json.loads(metadata["description"])
        change(about)
        metadata["description"] = json.dumps(about)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("norm.weight"),
        lambda t: t.update(more=torch.ones(2)),
        lambda t: t.update({"norm.weight": torch.ones(13)}),
        lambda t: t.update({"norm.weight": torch.ones(12, dtype=torch.float64)}),
        lambda t: t.update({"norm.weight": torch.ones(12, dtype=torch.int64)}),
    ],
)
def test_tensors_that_are_not_the_models(change, path) -> None:
    rewritten(path, change_tensors=change)
    refused(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.pop("model"),
        lambda a: a["model"].update({"class": "Linear"}),
        lambda a: a["model"].update({"class": "Rotary"}),
        lambda a: a["model"]["options"].update(layers=10**12),
        lambda a: a["model"]["options"].update(layers="2"),
        lambda a: a["model"]["options"].update(width=10**15),
        lambda a: a["model"]["options"].update(width=10**40),
        lambda a: a["model"]["options"].update(vocabulary=10**12),
        lambda a: a["model"]["options"].update(strange=1),
        lambda a: a["model"]["options"].update(positions={"class": "ALiBi", "options": {"heads": 10**12}}),
        lambda a: a["model"]["options"].update(positions={"class": "Encoder", "options": {"layers": 10**12}}),
        lambda a: a["model"]["options"].update(positions={"class": "system", "options": {"command": "ls"}}),
        lambda a: a["model"]["options"].update(
            similarity={"class": "FeatureMap", "options": {"map": {"class": "function", "options": {"name": "eval"}}}}
        ),
        lambda a: a["model"]["options"].update(
            similarity={
                "class": "FeatureMap",
                "options": {"map": {"class": "positive_random", "options": {"width": 10**6, "count": 10**9}}},
            }
        ),
        lambda a: a.update(training="yes"),
        lambda a: a.update(dtypes=["F64"]),
        lambda a: a.update(dtypes=7),
    ],
)
def test_descriptions_that_cannot_be(change, path) -> None:
    rewritten(path, change=change)
    refused(path)


@pytest.mark.parametrize(("width", "count"), [(8192, 8), (8192, 8192), (4, 1 << 30)])
def test_random_features_that_no_tensor_of_the_file_has_are_refused_at_once(path, width, count) -> None:
    random = {"class": "positive_random", "options": {"width": width, "count": count}}
    rewritten(
        path,
        change=lambda a: a["model"]["options"].update(similarity={"class": "FeatureMap", "options": {"map": random}}),
    )
    began = time.perf_counter()
    refused(path)
    assert time.perf_counter() - began < 1


def test_random_features_that_take_long_to_draw_are_not_saved(tmp_path) -> None:
    model = Attention(8, 1, head_width=2**14, similarity=qkv.FeatureMap(features.positive_random(4, 8)))
    model.init_options["similarity"].map.width = 2**14
    with pytest.raises(qkv.errors.OptionError, match="random features of width 16384"):
        save(model, tmp_path / "large.safetensors")


def test_a_learned_bias_of_sigmoid_is_trained_saved_and_decoded(tmp_path):
    layer = Attention(12, 3, similarity=qkv.Sigmoid(0.5, torch.nn.Parameter(torch.tensor([-1.0, 0.5, 2.0]))))
    x = torch.randn(2, 5, 12)
    whole = layer(x, mask=qkv.Causal())
    whole.sum().backward()
    assert layer.score_bias.grad.ne(0).all()
    qkv.nn.save(layer, tmp_path / "layer.safetensors")
    again = qkv.nn.load(tmp_path / "layer.safetensors")
    assert torch.equal(again.score_bias, layer.score_bias)
    with torch.no_grad():
        cache = again.cache(2)
        steps = torch.cat([again(x[:, i : i + 1], cache=cache) for i in range(5)], dim=1)
    torch.testing.assert_close(steps, whole.detach())
