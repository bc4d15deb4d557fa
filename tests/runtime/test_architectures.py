"""Programs from files: rotary scalings as transformers computes them, and what is refused by name."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qkv.errors import OptionError
from qkv.runtime import load
from qkv.runtime.architectures import read_program
from qkv.runtime.files import open_source
from tests.helpers.runtime_files import NAMES, build, write_folder, write_gguf

SCALINGS = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 50},
    "yarn, slow": {"factor": 6.0, "beta_fast": 8.0, "beta_slow": 2.0, "original_max_position_embeddings": 211},
    "yarn, mscale": {"factor": 6.0, "mscale": 0.7, "mscale_all_dim": 1.3, "original_max_position_embeddings": 100},
    "yarn, factor": {"factor": 6.0, "attention_factor": 0.8, "truncate": False, "original_max_position_embeddings": 99},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_folder(build(name), tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.fixture
def llama(folders, tmp_path):
    return shutil.copytree(folders["llama"], tmp_path / "copy")


def change(folder, **entries):
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def refused(path, *words):
    with pytest.raises(OptionError) as caught:
        load(path, backend="native")
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize("old", [False, True], ids=["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_scalings(llama, name, old):
    kind = name.split(",")[0]
    scaling = {"rope_type": kind, **SCALINGS[name]}
    if old:
        change(llama, rope_parameters=..., rope_theta=500.0, rope_scaling=scaling)
    else:
        change(llama, rope_parameters={**scaling, "rope_theta": 500.0})
    rotary = read_program(open_source(llama)).layers[1].attention.rotary
    config = LlamaConfig(head_dim=32, max_position_embeddings=211, rope_parameters={**scaling, "rope_theta": 500.0})
    wanted, scale = ROPE_INIT_FUNCTIONS[kind](config)
    torch.testing.assert_close(rotary.frequencies.float(), wanted, rtol=2e-6, atol=0)
    assert rotary.scale == pytest.approx(scale)
    assert not rotary.interleaved


def test_rope_freqs_of_a_gguf_file(tmp_path):
    divisors = np.linspace(1, 8, 16, dtype=np.float32)
    model = build("llama")
    plain = read_program(open_source(write_gguf(model, tmp_path / "a.gguf")))
    scaled = read_program(open_source(write_gguf(model, tmp_path / "b.gguf", rope_freqs__weight=divisors)))
    first, second = (each.layers[0].attention.rotary.frequencies for each in (plain, scaled))
    torch.testing.assert_close(first / torch.from_numpy(divisors), second)
    refused(write_gguf(model, tmp_path / "c.gguf", rope_freqs__weight=divisors[:5]), "5 divisors for 16")


def test_old_gemma3_settings(folders, tmp_path):
    folder = shutil.copytree(folders["gemma3"], tmp_path / "copy")
    before = read_program(open_source(folder))
    change(
        folder,
        rope_parameters=...,
        rope_theta=900.0,
        rope_local_base_freq=30.0,
        rope_scaling={"rope_type": "linear", "factor": 4.0},
    )
    after = read_program(open_source(folder))
    for one, two in zip(before.layers, after.layers, strict=True):
        torch.testing.assert_close(one.attention.rotary.frequencies, two.attention.rotary.frequencies)
    change(folder, layer_types=..., sliding_window_pattern=2)
    windows = [layer.attention.window for layer in read_program(open_source(folder)).layers]
    assert windows == [layer.attention.window for layer in before.layers] == [5, None, 5]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"model_type": "mamba"}, ("'mamba'", "qkv.hf.load")),
        ({"model_type": ["llama"]}, ("architecture",)),
        ({"hidden_act": "mish"}, ("'mish'", "qkv.hf.load")),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 5.0}}, ("'longrope'", "qkv.hf.load")),
        ({"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 5.0}}, ("rotary scaling",)),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "factor": 2.0}}, ("rope_theta: 1",)),
        ({"rope_parameters": 7}, ("rope_parameters: 7",)),
        ({"quantization_config": {"bits": 4}}, ("quantization_config", "qkv.hf.load")),
        ({"num_hidden_layers": 900}, ("900 layers and",)),
        ({"num_hidden_layers": 2}, ("model.layers.2", "unknown")),
        ({"num_hidden_layers": 4}, ("no tensor model.layers.3",)),
        ({"num_hidden_layers": True}, ("num_hidden_layers: True",)),
        ({"num_attention_heads": 0}, ("num_attention_heads: 0",)),
        ({"num_key_value_heads": 3}, ("4 heads on 3",)),
        ({"head_dim": 10**40}, ("head_dim: 1000",)),
        ({"hidden_size": 60}, ("shape (101, 64), not (101, 60)",)),
        ({"intermediate_size": 95}, ("mlp.gate_proj.bias of shape (96,)",)),
        ({"rms_norm_eps": "small"}, ("rms_norm_eps: 'small'",)),
        ({"rms_norm_eps": ...}, ("no rms_norm_eps",)),
        ({"partial_rotary_factor": 1e-9}, ("0 rotated features",)),
        ({"mlp_bias": 1}, ("mlp_bias: 1",)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_covered_or_damaged_is_refused_by_name(llama, entries, words):
    change(llama, **entries)
    refused(llama, *words)


def test_biases_that_are_missing_are_refused(folders, tmp_path):
    folder = shutil.copytree(folders["gemma3"], tmp_path / "copy")
    change(folder, attention_bias=True)
    refused(folder, "no tensor model.layers.0.self_attn.q_proj.bias")


def test_gguf_settings_that_are_unknown_are_refused(tmp_path):
    model = build("llama")
    path = tmp_path / "model.gguf"
    refused(write_gguf(model, path, llama__expert_count=4), "llama.expert_count", "qkv.hf.load")
    refused(write_gguf(model, path, llama__attention__scale=0.5), "llama.attention.scale")
    refused(write_gguf(model, path, blk__0__attn_sinks__weight=np.ones(4, dtype=np.float32)), "blk.0.attn_sinks")
    model.config.model_type = "command-r"
    refused(write_gguf(model, path), "'command-r'", "qkv.hf.load")


def test_gguf_values_of_another_type_are_refused(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_array("llama.block_count", [1, 2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(tmp_path / "model.gguf", "num_hidden_layers: an array")


def test_a_tied_matrix_is_one_matrix(folders):
    programs = {name: read_program(open_source(folder)) for name, folder in folders.items()}
    assert {name: each.logits.weight is each.embedding for name, each in programs.items()} == {
        "llama": False,
        "qwen2": True,
        "gemma3": True,
    }
