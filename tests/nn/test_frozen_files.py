"""`save` and `load`: models are loaded bit for bit; other files are refused in one sentence."""

import io
import json
import os
import pickle
import resource
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import qkv
from qkv import errors, nn
from tests.helpers.frozen_reference import PLACES, integers, numbers, randomize, refused

BATCH, N, M = 3, 7, 11
WIDTH, HEADS, VOCABULARY = 24, 6, 13


def words(n=N, seed=0):
    return integers(VOCABULARY, BATCH, n, seed=seed)


def floats(dtype=torch.float64, width=WIDTH, n=N):
    return numbers(BATCH, n, width, dtype=dtype)


SIMILARITIES = {
    "softmax": lambda: qkv.Softmax(scale=0.3, softcap=2.5, sink=-0.5),
    "argmax": lambda: qkv.Argmax(),
    "polynomial": lambda: qkv.Polynomial(4, 0.75),
    **{
        name: lambda name=name: qkv.FeatureMap(getattr(qkv.features, name))
        for name in ("elu1", "relu", "identity", "squared")
    },
    "sums": lambda: qkv.FeatureMap(qkv.features.elu1, normalize=False),
}
# name → (model, what it is given)
MODELS = {
    "attention": lambda: (nn.Attention(WIDTH, HEADS, kv_heads=2, head_width=10, bias=True), (floats(),)),
    "cross attention": lambda: (nn.Attention(WIDTH, HEADS, context_width=10), (floats(), floats(width=10, n=M))),
    "feed-forward": lambda: (nn.FeedForward(WIDTH, 17, kind="gated", activation="silu", bias=False), (floats(),)),
    "block": lambda: (
        nn.Block(WIDTH, HEADS, layout="residual", cross=True, hidden=17, feed_forward="gated", activation="tanh-gelu"),
        (floats(), floats(n=M)),
    ),
    "batch norm": lambda: (nn.Block(WIDTH, HEADS, layout="post-norm", norm="batch"), (floats(),)),
    "encoder": lambda: (nn.Encoder(WIDTH, HEADS, 2, positions=nn.Sinusoidal(WIDTH), final_norm=False), (floats(),)),
    "classifier": lambda: (nn.Encoder(WIDTH, HEADS, 2, vocabulary=VOCABULARY, classes=5, norm="rms"), (words(),)),
    "decoder": lambda: (nn.Decoder(WIDTH, HEADS, 2, vocabulary=VOCABULARY, dropout=0.1, bias=False), (words(),)),
    "untied": lambda: (nn.Decoder(WIDTH, HEADS, 2, vocabulary=VOCABULARY, tied=False, final_norm=False), (words(),)),
    "encoder-decoder": lambda: (
        nn.EncoderDecoder(
            WIDTH,
            HEADS,
            1,
            vocabulary=VOCABULARY,
            decoder_layers=2,
            positions=nn.RelativeBias(HEADS, buckets=8, farthest=11),
            decoder_positions=nn.RelativeBias(HEADS, buckets=6, farthest=9, bidirectional=False),
        ),
        (words(M, 1), words()),
    ),
    **{
        f"positions: {place}": lambda place=place: (
            nn.Decoder(WIDTH, HEADS, 2, vocabulary=VOCABULARY, positions=PLACES[place].make(HEADS, WIDTH)),
            (words(),),
        )
        for place in PLACES
    },
    **{
        f"similarity: {name}": lambda name=name: (
            nn.Attention(WIDTH, HEADS, similarity=SIMILARITIES[name]()),
            (floats(),),
        )
        for name in SIMILARITIES
    },
}


def make(name="decoder", seed=0, dtype=torch.float64):
    model, given = MODELS[name]()
    model = randomize(model, seed, dtype)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm1d):
                module.running_mean.copy_(numbers(*module.running_mean.shape, seed=seed))
                module.running_var.add_(0.5)
    return model.eval(), given


def kept(path, name="decoder", seed=0):
    """A file, its tensors and its metadata."""
    nn.save(make(name, seed)[0], path)
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118


def lone(path):
    """The directory contains only the file."""
    assert [entry.name for entry in Path(path).parent.iterdir()] == [Path(path).name]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_comes_back_bit_for_bit(name, tmp_path):
    path = tmp_path / "model.safetensors"
    model, given = make(name)
    nn.save(model, path)
    again = nn.load(path)
    assert type(again) is type(model)
    one, other = model.state_dict(), again.state_dict()
    assert list(one) == list(other)
    for key in one:
        assert one[key].dtype is other[key].dtype
        assert torch.equal(one[key], other[key]), key
    assert len(list(again.parameters())) == len(list(model.parameters())), "what was shared is shared"
    assert all(p.requires_grad for p in again.parameters())
    assert torch.equal(again.eval()(*given), model(*given))
    lone(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(dtype, tmp_path):
    model, _ = make(dtype=dtype)
    nn.save(model, tmp_path / "model")
    again = nn.load(tmp_path / "model")
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert other.dtype is dtype
        assert torch.equal(one, other)


def test_a_loaded_model_is_as_good_as_new(tmp_path):
    path = tmp_path / "model.safetensors"
    model, given = make("positions: buckets")
    nn.save(model, str(path))
    again = nn.load(str(path))
    path.unlink()
    again.train()(*given).square().sum().backward()
    assert all(p.grad is not None for p in again.parameters())
    nn.save(make("decoder", 3)[0], path)
    nn.save(again, path)  # replaces what was there
    assert torch.equal(nn.load(path).eval()(*given), model(*given))
    lone(path)
    prompt = words()
    assert torch.equal(nn.generate(again.eval(), prompt, new=5).tokens, nn.generate(model, prompt, new=5).tokens)


def test_it_is_a_safetensors_file_with_json_in_its_metadata(tmp_path):
    tensors, metadata = kept(tmp_path / "model")
    model, _ = make()
    assert sum(t.numel() for t in tensors.values()) >= sum(p.numel() for p in model.parameters())
    assert any("Decoder" in value for value in metadata.values())
    parsed = []
    for value in metadata.values():
        try:
            parsed.append(json.loads(value))
        except ValueError:
            continue
    assert any(isinstance(part, dict) for part in parsed), "options as JSON"
    assert str(VOCABULARY) in json.dumps(metadata)


class Phi(torch.nn.Module):
    def forward(self, x):
        return x.exp()


UNSAVABLE = {
    "a function of one's own": lambda: nn.Attention(WIDTH, HEADS, similarity=qkv.Similarity(lambda q, k: q @ k.mT)),
    "a map of one's own": lambda: nn.Attention(WIDTH, HEADS, similarity=qkv.FeatureMap(lambda x: x.exp())),
    "a map that is a module": lambda: nn.Attention(WIDTH, HEADS, similarity=qkv.FeatureMap(Phi())),
    "an activation of one's own": lambda: nn.FeedForward(WIDTH, activation=lambda x: x.sin()),
    "a decoder of such blocks": lambda: nn.Decoder(WIDTH, HEADS, 1, vocabulary=VOCABULARY, activation=Phi()),
    "a module of torch": lambda: torch.nn.Linear(3, 5),
    "a module of one's own": lambda: Phi(),
    "no module": lambda: {"weight": torch.zeros(3)},
}


@pytest.mark.parametrize("what", UNSAVABLE)
def test_it_refuses_to_save(what, tmp_path):
    path = tmp_path / "model"
    with refused():
        nn.save(UNSAVABLE[what](), path)
    assert not list(tmp_path.iterdir())
    nn.save(make()[0], path)
    before = path.read_bytes()
    with refused():
        nn.save(UNSAVABLE[what](), path)
    assert path.read_bytes() == before
    lone(path)


@contextmanager
def file_size_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "model"
    nn.save(make()[0], path)
    before = path.read_bytes()
    for size in (1, 4000, len(before) - 1):
        with pytest.raises((OSError, errors.QkvError, SafetensorError)), file_size_limit(size):
            nn.save(make(seed=1)[0], path)
        assert path.read_bytes() == before
        lone(path)


def test_a_rename_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model"
    nn.save(make()[0], path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no")

    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "link"):
            patch.setattr(os, name, fail)
        with pytest.raises((OSError, errors.QkvError)):
            nn.save(make(seed=1)[0], path)
    assert path.read_bytes() == before
    lone(path)


def test_truncated_files(tmp_path):
    path = tmp_path / "model"
    kept(path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    places = {0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, (header + len(whole)) // 2, len(whole) - 1}
    for cut in (whole + b"\0", *(whole[:size] for size in sorted(places))):
        path.write_bytes(cut)
        with refused():
            nn.load(path)


@pytest.mark.slow
def test_flipped_bytes_in_the_header(tmp_path):
    """All bits of a byte: never text any more. One bit: refused, or a model, and never anything else."""
    path = tmp_path / "model"
    kept(path, "positions: learned")
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in (*range(8), *range(8, header, 23)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with refused():
            nn.load(path)
    for at in range(8, header, 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with suppress(errors.QkvError):
            assert isinstance(nn.load(path), torch.nn.Module)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


def npz():
    buffer = io.BytesIO()
    numpy.savez(buffer, weight=numpy.zeros(3))
    return buffer.getvalue()


FOREIGN = {
    "pickle": lambda path: path.write_bytes(pickle.dumps(Trap(path.with_name("sprung")))),
    "torch": lambda path: torch.save(make()[0].state_dict(), path),
    "npz": lambda path: path.write_bytes(npz()),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "text": lambda path: path.write_text("a model\n" * 100),
    "bare": lambda path: save_file({"weight": torch.zeros(3)}, path),
    "elsewhere": lambda path: save_file({"model.weight": torch.zeros(3)}, path, metadata={"format": "pt"}),
    "cache": lambda path: qkv.KVCache(1, 2, 4).save(path),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files(kind, tmp_path):
    path = tmp_path / "model.safetensors"
    FOREIGN[kind](path)
    with refused():
        nn.load(path)
    lone(path)  # no pickle was run


def test_other_metadata(tmp_path):
    path = tmp_path / "model"
    tensors, metadata = kept(path)
    versioned = [k for k, v in metadata.items() if "version" in k or "format" in k or v.replace(".", "").isdigit()]
    assert versioned, "a format version"
    later = {k: "".join("9" if c.isdigit() else c for c in v) for k, v in metadata.items() if k in versioned}
    classes = ("Destroyer", "Module", "generate")
    others = [
        *({k: v.replace("Decoder", other) for k, v in metadata.items()} for other in classes),
        {k: v.replace("vocabulary", "dictionary") for k, v in metadata.items()},
        {k: v.replace(str(VOCABULARY), '"many"') for k, v in metadata.items()},
        {k: v.replace(str(VOCABULARY), str(VOCABULARY + 1)) for k, v in metadata.items()},
        {k: v.replace(str(WIDTH), str(-WIDTH)) for k, v in metadata.items()},
        {k: v[: len(v) // 2] for k, v in metadata.items()},
        {},
        metadata | later,
    ]
    for changed in others:
        assert changed != metadata
        save_file(tensors, path, metadata=changed)
        with refused():
            nn.load(path)
    save_file(tensors, path, metadata=metadata)
    nn.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder", "batch norm", "positions: buckets"])
def test_other_weights(name, tmp_path):
    path = tmp_path / "model"
    tensors, metadata = kept(path, name)
    first, last = min(tensors), max(tensors)
    others = [
        {k: v for k, v in tensors.items() if k != first},
        {k: v for k, v in tensors.items() if k != last},
        tensors | {"extra": torch.zeros(3)},
        {},
        {k + "x" if k == first else k: v for k, v in tensors.items()},
    ]
    for key, tensor in tensors.items():
        if tensor.dim() and tensor.is_floating_point():
            others.append(tensors | {key: tensor[:-1].clone()})
            others.append(tensors | {key: tensor[None].clone()})
            others.append(tensors | {key: tensor.long()})
            others.append(tensors | {key: tensor.half()})
    for changed in others:
        save_file(changed, path, metadata=metadata)
        with refused():
            nn.load(path)
