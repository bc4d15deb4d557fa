"""Tokenizers of files: those of transformers, text that comes back, and one sentence for each that is damaged."""

import json

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer

from qkv.errors import OptionError
from qkv.runtime import load
from qkv.runtime.files import open_source
from qkv.runtime.gguf import GgufFile
from qkv.runtime.tokenizer import read_stop_tokens, read_tokenizer
from tests.helpers.runtime_files import build, write_folder, write_gguf
from tests.helpers.small_checkpoint import write


def vocabulary_file(path, model, tokens, scores=None, merges=None, kinds=None, architecture="llama", **more):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    if scores is not None:
        writer.add_token_scores(scores)
    if merges is not None:
        writer.add_token_merges(merges)
    if kinds is not None:
        writer.add_token_types(kinds)
    for key, value in more.items():
        writer.add_key_value(f"tokenizer.ggml.{key}", value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_a_byte_level_vocabulary(tmp_path):
    file = open_source(write_gguf(build("llama"), tmp_path / "model.gguf", vocabulary=True))
    tokenizer = read_tokenizer(file, 101)
    tokens = file.metadata["tokenizer.ggml.tokens"].texts()
    assert [tokens[at] for at in tokenizer.encode("the bathe.")] == ["the", "Ġ", "b", "a", "the", "."]
    assert [tokens[at] for at in tokenizer.encode("<bos>a the")] == ["<bos>", "a", "Ġthe"]
    assert tokenizer.decode(tokenizer.encode("<bos>a the bathe.")) == "a the bathe."
    assert read_stop_tokens(file) == {1}


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_vocabulary_merges_by_score(tmp_path, prefix):
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "ab",
        "▁a",
        "ba",
        "▁ab",
    ]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -3.0, -2.0, -1.0, -4.0]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 7
    more = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_space_prefix": prefix}
    tokenizer = read_tokenizer(vocabulary_file(tmp_path / "v.gguf", "llama", pieces, scores, kinds=kinds, **more), 300)
    name = pieces.__getitem__
    # Best first: "ba" before "▁a" before "ab".
    wanted = ["<s>", "▁a", "ba"] if prefix else ["<s>", "a", "ba"]
    assert list(map(name, tokenizer.encode("aba"))) == wanted
    assert list(map(name, tokenizer.encode("é")))[-2:] == ["<0xC3>", "<0xA9>"]
    for text in ("abba ab  a", "é ab", "ab"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    stream = tokenizer.stream()
    assert "".join(stream(token) for token in tokenizer.encode("ab é b")) == "ab é b"


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
def test_gemma_merges_in_the_order_of_its_tokens(tmp_path, architecture):
    pieces = ["<pad>", "<eos>", "<bos>", "a", "b", "c", "bc", "ab", "▁", "  "]
    kinds = [3, 3, 3, 1, 1, 1, 1, 1, 1, 4]
    more = {"architecture": architecture, "bos_token_id": 2, "kinds": kinds}
    file = vocabulary_file(tmp_path / "v.gguf", "llama", pieces, [0.0] * 10, **more)
    tokenizer = read_tokenizer(file, 10)
    assert tokenizer.encode("abc  a") == [2, 3, 6, 9, 3]
    assert tokenizer.decode([3, 6, 9, 3]) == "abc  a"


def test_digits_of_starcoder_are_single(tmp_path):
    pieces = ["1", "2", "12", "a", "b", "ab"]
    for split, wanted in (("starcoder", [0, 1, 5]), ("gpt-2", [2, 5])):
        file = vocabulary_file(tmp_path / "v.gguf", "gpt2", pieces, merges=["1 2", "a b"], pre=split)
        assert read_tokenizer(file, 6).encode("12ab") == wanted


def test_the_tokenizer_of_a_folder_is_that_of_transformers(tmp_path):
    folder = write(tmp_path / "model")
    tokenizer, theirs = read_tokenizer(open_source(folder), 20), AutoTokenizer.from_pretrained(folder)
    for text in ("one two three", "ten a b nothing"):
        assert tokenizer.encode(text) == theirs(text)["input_ids"]
    assert read_stop_tokens(open_source(folder)) == {1}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert read_stop_tokens(open_source(folder)) == {3, 4}


def refused(source, *words, vocabulary=101):
    with pytest.raises(OptionError) as caught:
        read_tokenizer(source, vocabulary)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    file = write_gguf(build("llama"), tmp_path / "model.gguf", vocabulary=True)
    refused(open_source(file), "101 tokens", "another model", vocabulary=100)
    folder = write(tmp_path / "folder")
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 777}, []))
    tokenizer.normalizer, tokenizer.decoder = normalizers.NFC(), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    model = load(folder)
    with pytest.raises(OptionError, match="778 tokens"):
        model.generate("a", 2)
    assert len(model.generate([3, 4], 2).tokens) <= 2, "tokens need no tokenizer"


def test_damaged_and_unknown_tokenizers_are_refused(tmp_path):
    path = tmp_path / "v.gguf"
    refused(vocabulary_file(path, "bert", ["a"]), "'bert'")
    refused(vocabulary_file(path, "gpt2", ["a"], merges=[], pre="chameleon"), "'chameleon'", "qkv.hf.load")
    refused(vocabulary_file(path, "gpt2", ["a"], merges=["no such"]), "cannot be read")
    refused(vocabulary_file(path, "gpt2", ["a"], merges=["a"]), "cannot be read")
    refused(vocabulary_file(path, "gpt2", ["a"], merges=[], bos_token_id="1"), "bos_token_id: 1")
    refused(vocabulary_file(path, "gpt2", ["a"], merges=[], bos_token_id=4000, add_bos_token=True), "4001 tokens")
    folder = write_folder(build("llama"), tmp_path / "folder")
    refused(open_source(folder), "without tokenizer.json", "pass tokens")
    for text in ("", "{", "[]", '{"model": 7}'):
        (folder / "tokenizer.json").write_text(text)
        refused(open_source(folder), "cannot be read")


def test_a_vocabulary_with_fewer_tokens_than_the_model_is_read(tmp_path):
    folder = write(tmp_path / "model", vocab_size=64)
    assert read_tokenizer(open_source(folder), 64).encode("one") == [3]


def test_the_bytes_of_tokens(tmp_path):
    byte_level = read_tokenizer(open_source(write_gguf(build("llama"), tmp_path / "model.gguf", vocabulary=True)), 101)
    found, control = byte_level.token_bytes(103)
    assert (found[3], found[4], found[31], found[32]) == (b" ", b"a", b"the", b" the")
    assert (control, found[101:]) == ({0, 1, 2}, [b"", b""])
    pieces = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "é", "▁a"]
    file = vocabulary_file(tmp_path / "v.gguf", "llama", pieces, [0.0] * 8, kinds=[2, 3, 3, 6, 6, 1, 1, 1])
    found, control = read_tokenizer(file, 8).token_bytes(8)
    assert found[3:] == [b"\xc3", b"\xa9", b" ", "é".encode(), b" a"]
    assert control >= {1, 2}
