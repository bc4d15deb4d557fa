"""A model folder is untrusted: none of its code or pickles run, no path leads out of it, and nothing hangs."""

import json
import os
import pickle
import shutil
import struct
import time

import pytest

from qkv import KVCache
from qkv.errors import OptionError, QkvError
from qkv.hf import convert
from qkv.hf.checkpoint import load
from qkv.nn.files import load as load_module
from tests.helpers.cli_calls import called
from tests.helpers.small_checkpoint import write

CODE = "from pathlib import Path\nPath({!r}).touch()\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("checkpoints") / "whole")


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


@pytest.fixture
def sprung(tmp_path):
    """What every trap here would write."""
    yield tmp_path / "sprung"
    assert not (tmp_path / "sprung").exists()


def change(path, **entries):
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def trap(sprung):
    class Trap:
        def __reduce__(self):
            return (open, (str(sprung), "w"))

    return pickle.dumps(Trap())


def refused(folder, *words):
    with pytest.raises(QkvError) as caught:
        load(folder)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_code_next_to_a_known_architecture_is_not_run(copy, sprung):
    (copy / "evil.py").write_text(CODE.format(str(sprung)))
    (copy / "custom_generate").mkdir()
    (copy / "custom_generate" / "generate.py").write_text(CODE.format(str(sprung)))
    change(copy / "config.json", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    model, tokenizer = load(copy)
    model.generate(**tokenizer("one two", return_tensors="pt"), max_new_tokens=2)
    assert type(model).__module__.startswith("transformers.models.")


def test_an_architecture_that_is_code_is_refused(copy, sprung):
    (copy / "evil.py").write_text(CODE.format(str(sprung)))
    change(copy / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.Config"})
    refused(copy, "custom code")


def test_a_tokenizer_that_is_code_is_refused(copy, sprung):
    (copy / "evil.py").write_text(CODE.format(str(sprung)))
    change(copy / "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    refused(copy, "its tokenizer")


def test_a_pickle_next_to_valid_weights_is_not_opened(copy, sprung):
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (copy / name).write_bytes(trap(sprung))
    assert load(copy).model.config._attn_implementation == "qkv"


@pytest.mark.parametrize("name", ["evil.bin", "evil.safetensors", "../copy/evil.bin", "evil.safetensors.index.json"])
def test_weights_of_another_name_are_refused(copy, sprung, name):
    (copy / "evil.bin").write_bytes(trap(sprung))
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "evil.bin"}}
    (copy / "evil.safetensors.index.json").write_text(json.dumps(index))
    change(copy / "config.json", transformers_weights=name)
    refused(copy, "weights in")


@pytest.mark.parametrize("name", ["../whole/model.safetensors", "/etc/passwd", "evil.bin", "a/b.safetensors"])
def test_an_index_that_leads_out_of_its_folder_is_refused(copy, sprung, name):
    (copy / "model.safetensors").unlink()
    (copy / "evil.bin").write_bytes(trap(sprung))
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    refused(copy, "the file name")


def test_an_adapter_next_to_the_weights_is_refused(copy, sprung):
    """peft would read its pickle, and without peft it would be as if it were not there."""
    (copy / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "another/model"}')
    (copy / "adapter_model.bin").write_bytes(trap(sprung))
    refused(copy, "adapter")


@pytest.mark.parametrize("count", [10_000, 10**12, 10**300])
@pytest.mark.parametrize("name", ["num_hidden_layers", "text_config"])
def test_more_layers_than_tensors_are_refused_at_once(copy, tmp_path, name, count):
    change(copy / "config.json", **{name: {"num_layers": count} if name == "text_config" else count})
    refused(copy, "layers above 1000")
    with pytest.raises(OptionError, match="layers above 1000"):
        convert(copy, tmp_path / "converted", kv_heads=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads"]
)
@pytest.mark.parametrize("size", [10**9, 10**15, 10**40, -1, 0])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_sizes_that_the_weights_do_not_have_are_refused_before_memory_is_taken(copy, name, size):
    change(copy / "config.json", **{name: size})
    refused(copy)


def test_a_gguf_file_of_a_million_layers_is_refused_at_once(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for add, size in (
        (writer.add_block_count, 10**6),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 24),
        (writer.add_feed_forward_length, 40),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
    ):
        add(size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(tmp_path / "model.gguf", "num_hidden_layers above 1000")


@pytest.mark.parametrize("count", [2**62, 2**31])
def test_a_gguf_file_whose_header_lies_is_refused_at_once(tmp_path, count):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, count, count) + bytes(64))
    refused(path, "ends in its header")


def test_a_config_of_any_depth_or_size_is_refused(copy):
    (copy / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    refused(copy, "not JSON")
    with (copy / "config.json").open("r+b") as file:
        file.truncate(100 << 20)  # a sparse file, without blocks on the disk
    refused(copy, f"{100 << 20} bytes")


def test_a_pipe_is_not_waited_for(copy, tmp_path):
    (copy / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    os.mkfifo(copy / "model-1.safetensors")
    refused(copy, "pipe")
    for read in (KVCache.load, load_module):
        with pytest.raises(OptionError, match="pipe"):
            read(copy / "model-1.safetensors")
    os.mkfifo(tmp_path / "only.gguf")
    refused(tmp_path / "only.gguf")


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__['os'].system('touch SPRUNG') }}",
        "{% for c in [].__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
        "{{ cycler.__init__.__globals__.os.popen('touch SPRUNG').read() }}",
        "{% import 'os' as os %}",
        "{% include '/etc/passwd' %}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{% for",
        "{{ raise_exception('no') }}",
        "{{ 'a' * 10**10 }}",
        "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
        "{% set x = namespace(s='a') %}{% for i in range(99) %}{% set x.s = x.s ~ x.s %}{% endfor %}",
    ],
)
def test_a_chat_template_is_held_in_a_sandbox(copy, sprung, template):
    (copy / "chat_template.jinja").write_text(template.replace("SPRUNG", str(sprung)))
    found = called("generate", str(copy), "--prompt", "one two", "--new", "2", "--chat")
    assert found.returncode == 2
    assert found.stderr.startswith("qkv: --chat: got a chat template that fails")
    assert "root:" not in found.stdout + found.stderr


@pytest.mark.slow
def test_a_chat_template_without_an_end_is_stopped(copy):
    loop = "{% for j in range(99999) %}{% endfor %}"
    (copy / "chat_template.jinja").write_text("{% for i in range(99999) %}" + loop + "{% endfor %}")
    started = time.monotonic()
    found = called("generate", str(copy), "--prompt", "one two", "--new", "2", "--chat")
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert found.stderr.startswith("qkv: --chat: got a chat template that ")
    assert time.monotonic() - started < 60


def test_tokens_of_a_model_do_not_steer_the_terminal(copy):
    """A vocabulary is untrusted text: here every token would change the colour of the terminal."""
    text = (copy / "tokenizer.json").read_text()
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", *"abcdefg"):
        text = text.replace(f'"{word}"', f'"\\u001b[31m\\u009b{word}\\u0007"')
    (copy / "tokenizer.json").write_text(text)
    for words in (("--prompt", "x"), ("--prompt", "x", "--prompt", "y"), ("--prompt", "x", "--json")):
        found = called("generate", str(copy), "--new", "6", *words)
        assert found.returncode == 0
        assert not set("\x1b\x07\x9b") & set(found.stdout + found.stderr)
    assert "\\u001b[31m\\u009b" in found.stdout
