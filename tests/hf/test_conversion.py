"""`convert`: pooled checkpoints, refusals, and atomic writes."""

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from qkv import errors
from qkv.hf.checkpoint import atomic_folder
from qkv.hf.conversion import convert
from qkv.nn.head_groups import pooled

SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "head_dim": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TOKENS = torch.tensor([[3, 5, 7, 11, 13], [17, 19, 23, 29, 31]])
KEY = "model.layers.0.self_attn.k_proj.weight"


def made(name: str = "Llama", **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL | {"num_key_value_heads": 6} | options)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, so that each of them matters
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def alike(model: Any, kv_heads: int) -> None:
    """Make the heads of every group equal."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "k_proj" in name or "v_proj" in name:
                split = parameter.unflatten(0, (kv_heads, -1, model.config.head_dim))
                split.copy_(split[:, :1].expand_as(split).clone())


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    made().save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", {"attention_bias": True}),
        ("Llama", {"tie_word_embeddings": True}),
        ("Mistral", {"sliding_window": 3}),
        ("Qwen2", {}),
        ("Qwen3", {}),
        ("Gemma2", {}),
        ("Gemma3Text", {}),
        ("Mixtral", {"num_local_experts": 2}),
    ],
    ids=lambda given: given if isinstance(given, str) else next(iter(given), ""),
)
@pytest.mark.parametrize("loaded", [False, True], ids=["folder", "model"])
def test_a_model_with_equal_heads_answers_as_before(name: str, options: dict, loaded: bool, tmp_path: Path) -> None:
    model = made(name, **options)
    alike(model, 2)
    model.save_pretrained(tmp_path / "source")
    report = convert(model if loaded else tmp_path / "source", tmp_path / "target", kv_heads=2)
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    assert type(small) is type(model)
    assert small.config.num_key_value_heads == 2
    torch.testing.assert_close(logits(small), logits(model), atol=1e-5, rtol=1e-5)
    assert report == (2, 6, 6, 2, model.num_parameters(), small.num_parameters(), 2 * 2 * 6 * 4 * 4, 2 * 2 * 2 * 4 * 4)


def test_weights_are_pooled_and_the_rest_is_the_same(source: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "LICENSE", "chat_template.jinja", "README.md", "modeling_own.py", "notes.bin"):
        (source / name).write_text("{}")
    convert(source, tmp_path / "target", kv_heads=3, keep=iter([2]))
    old, new = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "target"))
    assert set(old) == set(new)
    for name, tensor in old.items():
        changed = "k_proj" in name or "v_proj" in name
        assert torch.equal(new[name], pooled(tensor, 6, 3, keep=[2]) if changed else tensor)
    assert torch.equal(new[KEY][4:8], old[KEY][8:12])
    files = ["LICENSE", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"]
    assert left(tmp_path / "target") == [*files, "tokenizer.json"]
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "target"))
    assert after == {**before, "num_key_value_heads": 3}
    assert left(tmp_path) == ["source", "target"]


def test_grouped_becomes_multi_query_in_steps(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "two", kv_heads=2)
    steps = convert(tmp_path / "two", tmp_path / "one", kv_heads=1)
    assert steps[2:4] == (2, 1)
    convert(source, tmp_path / "direct", kv_heads=1)
    one, direct = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "direct"))
    torch.testing.assert_close(one[KEY], direct[KEY])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_stay(dtype: torch.dtype, tmp_path: Path) -> None:
    made().to(dtype).save_pretrained(tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / "target", kv_heads=1)
    assert report.cache_bytes_per_token == 2 * 2 * 4 * 2
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "target").dtype is dtype


def test_shards_stay_shards(tmp_path: Path) -> None:
    made().save_pretrained(tmp_path / "source", max_shard_size="20KB")
    made().save_pretrained(tmp_path / "single")
    assert len(left(tmp_path / "source")) > 4
    reports = [convert(tmp_path / name, tmp_path / f"{name}-2", kv_heads=2) for name in ("source", "single")]
    assert reports[0] == reports[1]
    assert left(tmp_path / "source-2") == left(tmp_path / "source")
    small, single = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("source-2", "single-2"))
    assert torch.equal(logits(small), logits(single))
    index = json.loads((tmp_path / "source-2" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * reports[0].parameters


def test_a_model_in_memory_is_not_touched(tmp_path: Path) -> None:
    model = made()
    before, config = logits(model), model.config.to_dict()
    (tmp_path / "target").mkdir()  # an empty folder is a place, too
    convert(model, tmp_path / "target", kv_heads=1)
    assert torch.equal(logits(model), before)
    assert model.config.to_dict() == config


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Phi3", {}, r"phi3 with model\.layers\.0\.self_attn\.qkv_proj\.weight.*split a fused"),
        ("Olmo2", {}, r"olmo2 with .*k_norm\.weight.*norm over all key heads"),
        ("GPT2", {}, "gpt2, in which no weight depends on num_key_value_heads"),
        ("GPT2", {"num_key_value_heads": None}, "gpt2 without num_key_value_heads"),
    ],
)
def test_other_architectures_are_refused_by_name(name: str, options: dict, words: str, tmp_path: Path) -> None:
    model = made(name, **options)
    model.save_pretrained(tmp_path / "source")
    for given in (tmp_path / "source", model):
        with pytest.raises(errors.OptionError, match=words):
            convert(given, tmp_path / "target", kv_heads=1)
    assert left(tmp_path) == ["source"]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"kv_heads": 4}, errors.OptionError, "one of 1, 2, 3, 6"),
        ({"kv_heads": 6}, errors.OptionError, "fewer than the model's 6"),
        ({"kv_heads": "2"}, errors.OptionTypeError, "kv_heads"),
        ({"kv_heads": 2, "keep": [0, 1]}, errors.OptionError, "both in group 0"),
        ({"kv_heads": 2, "keep": 3}, errors.OptionTypeError, "keep"),
        ({"kv_heads": 2, "source": 5}, errors.OptionTypeError, "source: got 5"),
        ({"kv_heads": 2, "source": "nowhere"}, errors.OptionError, "nowhere without config.json"),
        ({"kv_heads": 2, "source": "model.bin"}, errors.OptionError, "model.bin, a pickle"),
        ({"kv_heads": 2, "target": None}, errors.OptionTypeError, "target: got None"),
    ],
)
def test_options_are_refused(options: dict, kind: type[Exception], words: str, source: Path, tmp_path: Path) -> None:
    given = {"source": source, "target": tmp_path / "target"} | options
    with pytest.raises(kind, match=words):
        convert(given.pop("source"), given.pop("target"), **given)
    assert left(tmp_path) == ["source"]


def test_a_target_that_is_there_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").touch()
    for place in (target, source, target / "mine"):
        with pytest.raises(errors.OptionError, match=r"target: .*which exists"):
            convert(source, place, kv_heads=2)
    assert left(target) == ["mine"]


def rewritten(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def resaved(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-7])


def indexed(folder: Path, where: dict[str, str]) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


DAMAGE: dict[str, tuple[Any, str]] = {
    "pickle": (pickled, r"pytorch_model\.bin, a pickle.*safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "without weights"),
    "cut": (cut, r"model\.safetensors with .*damaged"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), r"model\.safetensors with"),
    "foreign": (lambda f: (f / "model.safetensors").write_bytes(b"PK\3\4" * 99), r"model\.safetensors with"),
    "text": (lambda f: (f / "config.json").write_text("{"), r"config\.json with text that is not JSON"),
    "list": (lambda f: (f / "config.json").write_text("[]"), r"config\.json with a list"),
    "unknown": (lambda f: rewritten(f, model_type="own"), "model_type 'own'"),
    "no type": (lambda f: rewritten(f, model_type=None), "model_type None"),
    "class": (lambda f: rewritten(f, architectures=["Own"]), r"architectures \['Own'\]"),
    "nested": (lambda f: rewritten(f, model_type="gemma3", architectures=None), "gemma3, in which no weight"),
    "quantised": (lambda f: rewritten(f, quantization_config={"quant_method": "awq"}), "quantization_config"),
    "layers": (lambda f: rewritten(f, num_hidden_layers=3), r"there is no model\.layers\.2"),
    "width": (lambda f: rewritten(f, hidden_size=36), "shape"),
    "heads": (lambda f: rewritten(f, num_key_value_heads=2), "shape"),
    "words": (lambda f: rewritten(f, hidden_size="wide"), r"a config\.json that"),
    "mlp": (lambda f: rewritten(f, intermediate_size=41), r"mlp.* of shape"),
    "missing": (lambda f: resaved(f, lambda t: t.pop("model.norm.weight")), r"no model\.norm\.weight"),
    "integers": (lambda f: resaved(f, lambda t: t.update({KEY: t[KEY].to(torch.int8)})), "of I8"),
    "extra": (lambda f: resaved(f, lambda t: t.update({KEY.replace("0", "9"): t[KEY].clone()})), "does not have"),
    "no map": (lambda f: indexed(f, {}), "no weight_map"),
    "outside": (lambda f: indexed(f, {KEY: "../a.safetensors"}), r"the file name '\.\./a\.safetensors'"),
    "absent": (lambda f: indexed(f, {KEY: "b.safetensors"}), r"b\.safetensors, which does not exist"),
    "elsewhere": (lambda f: indexed(f, {KEY: "a.safetensors"}), "belongs to another file"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_refused_in_one_sentence(what: str, source: Path, tmp_path: Path) -> None:
    damage, words = DAMAGE[what]
    damage(source)
    with pytest.raises(errors.OptionError, match=words) as caught:
        convert(source, tmp_path / "target", kv_heads=1)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == ["source"]


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()], ids=["disk", "interrupt"])
def test_an_error_while_writing_leaves_nothing(error: BaseException, source: Path, tmp_path: Path, monkeypatch) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(sys.modules[convert.__module__], "copy_other_files", fails)
    for given in (source, made()):
        with pytest.raises(type(error)):
            convert(given, tmp_path / "target", kv_heads=1)
        assert left(tmp_path) == ["source"]


@pytest.mark.slow  # a separate process
def test_a_killed_conversion_leaves_no_target_and_the_next_one_clears_up(source: Path, tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from qkv.hf.conversion import convert
        sys.modules[convert.__module__].copy_other_files = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        convert(sys.argv[1], sys.argv[2], kv_heads=1)
    """
    target = tmp_path / "target"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), source, target], timeout=100)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    hidden = [name for name in left(tmp_path) if name != "source"]
    assert len(hidden) == 1
    assert hidden[0].startswith(".target.qkv-")
    others = [".target.mine.part", ".target2.qkv-01234567.part"]
    for name in others:
        (tmp_path / name).mkdir()
    convert(source, target, kv_heads=1)
    assert left(tmp_path) == [*others, "source", "target"]
    shutil.rmtree(source)
    AutoModelForCausalLM.from_pretrained(target)


def test_a_conversion_that_is_running_is_left_alone(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "target") as first:
        (first / "file").touch()
        with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "target"):
            assert (first / "file").exists()
            raise ZeroDivisionError
    assert left(tmp_path / "target") == ["file"]
