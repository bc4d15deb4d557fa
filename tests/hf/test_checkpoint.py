"""`qkv.hf.load`: local checkpoints, and one clear sentence for each error."""

import json
import pickle
import resource
import shutil
import time

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from qkv.errors import QkvError
from qkv.hf.checkpoint import load
from tests.helpers.small_checkpoint import write


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write(tmp_path_factory.mktemp("checkpoints") / "whole")


@pytest.fixture
def copy(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "copy")


def refused(path, *words):
    with pytest.raises(QkvError) as caught:
        load(path)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    return text


@pytest.mark.slow
def test_it_is_the_model_of_transformers_on_qkv(checkpoint):
    model, tokenizer = load(checkpoint)
    assert model.config._attn_implementation == "qkv"
    assert not model.training
    ids = tokenizer(["one two three", "four five six"], return_tensors="pt")["input_ids"]
    eager = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager")
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, eager(ids).logits, atol=2e-5)


def test_another_dtype_and_another_implementation(checkpoint):
    assert load(checkpoint, dtype=torch.bfloat16).model.dtype is torch.bfloat16
    assert load(checkpoint, implementation="sdpa").model.config._attn_implementation == "sdpa"


def test_a_path_that_is_not_there(tmp_path):
    refused(tmp_path / "nowhere", "does not exist")
    refused("organisation/model-on-a-hub", "does not exist", "downloads nothing")


def test_pickles_are_refused(copy):
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    refused(copy, "pickle")


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_a_pickle_in_disguise_is_not_unpickled(copy, tmp_path, name):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    if name.endswith("gguf"):
        for path in copy.iterdir():
            path.unlink()
    (copy / name).write_bytes(pickle.dumps(Trap()))
    refused(copy, name)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.99])
def test_truncated_weights(copy, part):
    path = copy / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    refused(copy, "model.safetensors")


def test_weights_of_another_model(copy, tmp_path):
    other = write(tmp_path / "other", intermediate_size=56)
    shutil.copy(other / "model.safetensors", copy / "model.safetensors")
    refused(copy)


def test_weights_that_are_missing(copy):
    config = json.loads((copy / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (copy / "config.json").write_text(json.dumps(config))
    refused(copy, "missing")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "no_such_model"}', '{"model_type": 7}'])
def test_a_config_that_is_none(copy, text):
    (copy / "config.json").write_text(text)
    refused(copy)


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 10**8), ("head_dim", 10**7), ("hidden_size", 8 * 10**6)])
def test_a_size_that_the_weights_do_not_have_takes_no_memory(copy, name, value):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, name: value}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(copy, "numbers and weights of", "different models")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kB


def test_a_panic_of_the_tokenizer_is_one_sentence(copy):
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    vocabulary = {word: index for index, word in enumerate(["a", "b", "ab"])}
    tokenizer["model"] = {
        "type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]], "continuing_subword_prefix": "##"
    }  # fmt: skip
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(copy, "tokenizer")


def test_no_escape_character_of_a_file_reaches_the_message(copy):
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    tensors["\x1b[31mmodel\u202e\x07"] = torch.zeros(1)
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    assert refused(copy, r"\x1b[31mmodel\u202e\x07").isprintable()


def test_a_missing_tokenizer(copy):
    for path in copy.glob("tokenizer*"):
        path.unlink()
    refused(copy, "tokenizer")


def test_a_model_that_qkv_cannot_serve(tmp_path, copy):
    from transformers import GPTJConfig, GPTJForCausalLM

    config = GPTJConfig(n_embd=16, n_head=2, n_layer=1, rotary_dim=4, vocab_size=20, n_positions=32)
    GPTJForCausalLM(config).save_pretrained(tmp_path / "gptj")
    for path in copy.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "gptj")
    refused(tmp_path / "gptj", "GPTJForCausalLM")


def test_several_gguf_files(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    refused(tmp_path, "2 GGUF files", "a.gguf")


def test_a_folder_with_nothing(tmp_path):
    refused(tmp_path, "config.json")


@pytest.mark.parametrize("elements", [[7] * (3 << 20), ["x"] * (3 << 18), [[1, 2]]], ids=["bytes", "strings", "arrays"])
def test_a_gguf_file_with_a_large_array_is_refused_at_once(tmp_path, elements):
    path = tmp_path / "model.gguf"
    inner = {int: 0, str: 8, list: 9}[type(elements[0])]
    items = b"".join(b"\1\0\0\0\0\0\0\0x" if inner == 8 else bytes(1) for _ in elements)
    key = b"\4\0\0\0\0\0\0\0long"
    header = [b"GGUF", *(n.to_bytes(w, "little") for n, w in ((3, 4), (0, 8), (1, 8)))]
    array = [n.to_bytes(w, "little") for n, w in ((9, 4), (inner, 4), (len(elements), 8))]
    path.write_bytes(b"".join([*header, key, *array, items]))
    began = time.perf_counter()
    refused(path, "arrays of more than" if len(elements) > 1 else "of type 9")
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("bytes_", [b"GGUF", b"GGUF" + bytes(20), b"GGUF\3\0\0\0" + b"\xff" * 16])
def test_a_gguf_file_that_ends_in_its_header(tmp_path, bytes_):
    (tmp_path / "model.gguf").write_bytes(bytes_)
    refused(tmp_path / "model.gguf", "model.gguf")


def test_a_gguf_file_of_more_layers_than_tensors_is_refused_at_once(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for add, size in (
        (writer.add_block_count, 900),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 24),
        (writer.add_feed_forward_length, 40),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
    ):
        add(size)
    writer.add_tensor("output_norm.weight", np.ones(24, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(tmp_path / "model.gguf", "900 layers and 1 tensors")
