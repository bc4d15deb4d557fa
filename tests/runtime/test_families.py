"""Families of models, each in a folder of transformers and, where it reads them, in GGUF files: what it computes."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

import qkv
from qkv import ops
from qkv.errors import OptionError, ShapeError
from qkv.runtime import reference
from qkv.runtime.architectures import read_program
from qkv.runtime.files import open_source
from qkv.runtime.native import NativeProgram
from tests.helpers.hf_harness import close
from tests.helpers.runtime_files import CONTEXT, FAMILIES, build, eager_logits, write_folder, write_gguf

pytestmark = pytest.mark.skipif(not ops.available(), reason=str(ops.reasons()))
TOLERANCE = 3e-6  # of the largest logit
TOKENS = torch.randint(3, 101, (2, 23), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def models():
    return {name: build(name) for name in FAMILIES}


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    return {name: write_folder(model, tmp_path_factory.mktemp(name)) for name, model in models.items()}


@pytest.fixture
def copied(folders, tmp_path):
    return lambda name: shutil.copytree(folders[name], tmp_path / name)


def change(folder, **entries):
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def same(program, other):
    """The same logits, to the last bit."""
    logits = [reference.run(p, TOKENS, reference.new_caches(p, 2, torch.float32, None)) for p in (program, other)]
    return torch.equal(*logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_that_of_transformers(models, folders, name):
    """The prompt, chunks, steps and greedy tokens; windows are shorter than the prompt."""
    theirs, model = models[name], qkv.runtime.load(folders[name], backend="native")
    wanted = eager_logits(theirs, TOKENS)
    for sizes in ((23,), (7, 16), (1,) * 23):
        cache = model.cache(2)
        parts = [model.step(part, cache, every=True) for part in TOKENS.split(sizes, dim=1)]
        close(torch.cat(parts, dim=1), wanted, tolerance=TOLERANCE, what=f"chunks of {sizes[0]}")
    windows = {layer.attention.window for layer in model.program.layers} - {None}
    assert bool(windows) == (name not in ("gpt2", "gpt_neox", "olmo2"))
    assert all(window < 23 for window in windows)
    settings = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=1, pad_token_id=0)
    for prompt in TOKENS[:, :9]:
        found = theirs.generate(prompt[None], generation_config=settings)[0, 9:].tolist()
        assert model.generate(prompt.tolist(), 12).tokens == found


# What a GGUF file cannot say, or transformers does not read from one, has transformers' own value.
GGUF = {
    "mistral": {"sliding_window": 4096, "hidden_size": 84},  # which transformers reads as llama
    "qwen3": {"head_dim": 128, "use_sliding_window": False, "attention_bias": False},
    "gemma2": {
        "head_dim": 256,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "phi3": {"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    "starcoder2": {"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "gpt2": {"n_positions": 1024, "n_inner": 140},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GGUF)
def test_a_gguf_file_is_what_transformers_reads(name, tmp_path):
    theirs = build(name, **GGUF[name])
    path = write_gguf(theirs, tmp_path / "model.gguf", tokenizer__ggml__padding_token_id=0)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, attn_implementation="eager").eval()
    assert read.config.model_type == ("llama" if name == "mistral" else name)
    wanted, model = eager_logits(read, TOKENS), qkv.runtime.load(path, backend="native")
    close(wanted, eager_logits(theirs, TOKENS), tolerance=TOLERANCE, what="the file")
    close(model.step(TOKENS, model.cache(2), every=True), wanted, tolerance=TOLERANCE)


def test_fused_tensors_are_ranges_of_mapped_rows(folders, tmp_path):
    """Those of GPT-NeoX take turns, head by head, and those of GPT-2 are transposed: copies."""
    path = write_gguf(build("phi3"), tmp_path / "model.gguf")
    for source in (folders["phi3"], path):
        for layer in read_program(open_source(source)).layers:
            attention, forward = layer.attention, layer.feed_forward
            for parts in ((attention.query, attention.key, attention.value), (forward.gate, forward.up)):
                starts = [part.weight.data.ctypes.data for part in parts]
                ends = [start + part.weight.data.nbytes for start, part in zip(starts, parts, strict=True)]
                assert starts[1:] == ends[:-1]
                assert len({part.weight.name for part in parts}) == 1
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    path = write_gguf(build("phi3", **sizes), tmp_path / "packed.gguf", quantized="q8_0")
    program = read_program(open_source(path))
    assert program.layers[0].attention.key.weight.format.name == "q8_0"
    wanted = reference.run(program, TOKENS, reference.new_caches(program, 2, torch.float32, None))
    found = NativeProgram(program).run(TOKENS, reference.new_caches(program, 2, torch.float32, None))
    close(found, wanted, tolerance=TOLERANCE)
    plain = write_folder(build("phi3", **sizes), tmp_path / "plain")
    loaded = qkv.runtime.load(plain, weights="q8_0")
    close(loaded.step(TOKENS, loaded.cache(2)), wanted, tolerance=TOLERANCE)


def test_half_precision_of_transposed_weights_is_kept(models, tmp_path):
    model = build("gpt2").to(torch.bfloat16)
    program = read_program(open_source(write_folder(model, tmp_path)))
    weight = program.layers[1].attention.key.weight
    assert weight.format.name == "bf16"
    wanted = model.transformer.h[1].attn.c_attn.weight.T[35:70]
    assert torch.equal(weight.dense(), wanted.float())


def test_no_token_is_beyond_the_learned_positions(models, folders):
    program = read_program(open_source(folders["gpt2"]))
    long = torch.randint(3, 101, (1, CONTEXT), generator=torch.Generator().manual_seed(7))
    native, by_torch = NativeProgram(program).run, lambda *given, **more: reference.run(program, *given, **more)
    last = eager_logits(models["gpt2"], long)[:, -1]
    for run in (native, by_torch):
        caches = reference.new_caches(program, 1, torch.float32, None)
        close(run(long, caches), last, tolerance=TOLERANCE)
        with pytest.raises(ShapeError, match="at most 211"):
            run(long[:, :1], caches)
        assert caches[0].lengths.tolist() == [CONTEXT]
        # Padding may be there.
        caches = reference.new_caches(program, 2, torch.float32, None)
        run(long[:, :209].expand(2, -1), caches, lengths=torch.tensor([209, 100]))
        found = run(long[:, 209:].expand(2, -1), caches, lengths=torch.tensor([1, 2]), every=True)
        close(found[:1, 0], eager_logits(models["gpt2"], long[:, :210])[:, -1], tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("mistral", {"rope_parameters": ..., "rope_theta": 300.0}),
        ("phi3", {"rope_parameters": ..., "rope_theta": 300.0, "partial_rotary_factor": 0.3, "rope_scaling": None}),
        ("gpt_neox", {"rope_parameters": ..., "rotary_emb_base": 300, "rotary_pct": 0.3}),
        ("gemma2", {"layer_types": ..., "rope_parameters": ..., "rope_theta": 300.0}),
        ("smollm3", {"layer_types": ...}),
        ("qwen3", {"layer_types": ...}),
    ],
)
def test_older_settings_are_read(folders, copied, name, entries):
    folder = copied(name)
    change(folder, **entries)
    assert same(read_program(open_source(folder)), read_program(open_source(folders[name])))


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("mistral", {"sliding_window": ...}),
        ("mistral", {"sliding_window": None}),
        ("phi3", {"sliding_window": None}),
        ("smollm3", {"no_rope_layers": ..., "layer_types": ..., "no_rope_layer_interval": 2}),
        ("smollm3", {"use_sliding_window": False, "layer_types": ["full_attention"] * 3}),
        ("qwen3", {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"attn_logit_softcapping": ..., "query_pre_attn_scalar": ..., "final_logit_softcapping": ...}),
        ("gpt_neox", {"use_parallel_residual": False}),
        ("gpt_neox", {"hidden_act": "relu"}),
        ("starcoder2", {"hidden_act": "gelu"}),
    ],
)
def test_settings_mean_what_they_mean_in_transformers(copied, name, entries):
    folder = copied(name)
    before = read_program(open_source(folder))
    change(folder, **entries)
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    program = read_program(open_source(folder))
    found = reference.run(program, TOKENS, reference.new_caches(program, 2, torch.float32, None), every=True)
    close(found, eager_logits(theirs, TOKENS), tolerance=TOLERANCE)
    assert same(program, before) == (name == "smollm3" and "no_rope_layers" in entries)


def test_files_of_the_model_without_its_class_and_with_masks(models, folders, copied):
    """As those of gpt2 and pythia on the hub."""
    for name, prefix, mask in (
        ("gpt2", "transformer.", "h.1.attn.bias"),
        ("gpt_neox", "", "gpt_neox.layers.1.attention.bias"),
    ):
        folder = copied(name)
        tensors = load_file(folder / "model.safetensors")
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
        tensors[mask] = torch.ones(1, 1, 7, 7)
        tensors[mask.replace("bias", "masked_bias")] = torch.tensor([-1e9])
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        assert same(read_program(open_source(folder)), read_program(open_source(folders[name])))


def refused(path, *words):
    with pytest.raises(OptionError) as caught:
        qkv.runtime.load(path, backend="native")
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("name", "entries", "words"),
    [
        ("phi3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 5.0}}, ("'longrope'", "qkv.hf.load")),
        (
            "phi3",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5.0, "factor": 2.0}},
            ("'yarn'", "no scaling"),
        ),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ("scale_attn_by_inverse_layer_idx", "qkv.hf.load")),
        ("gpt2", {"scale_attn_weights": False}, ("scale_attn_weights",)),
        ("gpt2", {"add_cross_attention": True}, ("add_cross_attention",)),
        ("gpt2", {"n_embd": "wide"}, ("n_embd: 'wide'",)),
        ("gpt2", {"n_positions": 210}, ("transformer.wpe.weight of shape (211, 35), not (210, 35)",)),
        ("gpt2", {"n_inner": None}, ("shape (53,), not (140,)",)),
        ("gpt2", {"n_head": ...}, ("no n_head",)),
        ("smollm3", {"no_rope_layers": [1, 0]}, ("no_rope_layers: [1, 0]",)),
        ("smollm3", {"no_rope_layers": [1, 0, 7]}, ("no_rope_layers: [1, 0, 7]",)),
        ("qwen3", {"layer_types": ["sliding_attention"]}, ("layer_types",)),
        ("qwen3", {"attn_logit_softcapping": 3.0}, ("attn_logit_softcapping 3.0",)),
        ("olmo2", {"num_key_value_heads": 3}, ("k_norm.weight of shape (28,), not (42,)",)),
        ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.36}}, ("5 rotated features of 14",)),
        ("starcoder2", {"norm_epsilon": -1}, ("norm_epsilon: -1",)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_covered_or_damaged_is_refused_by_name(copied, name, entries, words):
    folder = copied(name)
    change(folder, **entries)
    refused(folder, *words)


def test_gguf_settings_of_other_families_are_refused(models, tmp_path):
    path = tmp_path / "model.gguf"
    refused(write_gguf(models["gpt2"], path, gpt2__rope__freq_base=5.0), "gpt2.rope.freq_base", "qkv.hf.load")
    windowed = write_gguf(models["qwen3"], path, qwen3__attention__sliding_window=5)
    refused(windowed, "qwen3.attention.sliding_window")
    refused(write_gguf(models["qwen3"], path, qwen3__final_logit_softcapping=5.0), "qwen3.final_logit_softcapping")
    factors = np.ones(2, dtype=np.float32)
    refused(write_gguf(models["phi3"], path, rope_factors_long__weight=factors), "rope_factors_long")
    refused(write_gguf(models["olmo2"], path), "'olmo2'", "starcoder2")
