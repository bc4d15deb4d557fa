"""`qkv generate`: streams text, prints figures, and reports bad input in one line."""

import json
import shutil
import subprocess
import sys

import pytest
import transformers
from safetensors.torch import load_file, save_file

from qkv.cache.formats import FORMATS
from qkv.cli import _check_formats
from tests.helpers.cli_calls import called
from tests.helpers.small_checkpoint import write
from tests.helpers.tiny_hybrids import qwen3_5
from tests.helpers.tiny_models import draw


def run(*words: str) -> subprocess.CompletedProcess:
    return called("generate", *words)


def started(*words: str) -> subprocess.CompletedProcess:
    """In a separate process: only the intended output is printed."""
    command = [sys.executable, "-c", "from qkv.cli import main; main()", "generate", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return str(write(tmp_path_factory.mktemp("checkpoints") / "whole"))


@pytest.mark.slow
def test_it_streams_text_and_tells_figures(checkpoint):
    done = started(checkpoint, "--prompt", "one two three", "--new", "7", "--compare")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert max(len(line) for line in (done.stdout + done.stderr).splitlines()) <= 80
    for words in ("2 layers on qkv", "4 heads on 2 x 6", "bytes a token", "tok/s", "sdpa f32", "the same tokens"):
        assert words in done.stderr


@pytest.mark.slow
def test_a_hybrid_is_compared_with_transformers(tmp_path):
    folder = write(tmp_path / "hybrid")
    model = transformers.AutoModelForCausalLM.from_config(qwen3_5(), attn_implementation="eager")
    draw(model, 1.6)
    model.save_pretrained(folder)
    done = started(str(folder), "--prompt", "one two three", "--new", "7", "--compare", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["same_tokens"]
    states = 2 * 4 * (6 * 7 * 11 + 4 * 94)  # of transformers, with four inputs of each convolution
    assert report["runs"]["sdpa f32"]["cache_bytes"] == states + 2 * 2 * 2 * 14 * 4 * (3 + 6)


def test_json_has_the_same_tokens_for_the_same_seed(checkpoint):
    options = ["--json", "--new", "9", "--temperature", "0.8", "--top-k", "7", "--top-p", "0.9", "--seed", "5"]
    reports = []
    for _ in range(2):
        done = run(checkpoint, "-p", "one two three", "-p", "four", "--kv-cache", "int8", *options)
        assert done.returncode == 0, done.stderr
        reports.append(json.loads(done.stdout))
    first, second = (report["runs"]["qkv int8"]["tokens"] for report in reports)
    assert first == second
    assert len(first) == 2
    plan = reports[0]["plan"]
    # Two layers, two kv heads, keys and values: six bytes and a scale of four each.
    assert plan["cache_bytes_per_token"] == 2 * 2 * 2 * (6 + 4)
    assert plan["prompt_tokens"] == 3
    assert isinstance(reports[0]["runs"]["qkv int8"]["cache_bytes"], int)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", "  "], "--prompt 1"),
        (
            ["--prompt", "one", "--new", "42"],
            "--prompt, --new: got 1 tokens of prompt and 42 new ones, wanted at most 41",
        ),
        (["--prompt", "one", "--chat"], "--chat: got"),
        (["--prompt", "one", "--temperature", "1e-320"], "--temperature"),
    ],
)
def test_bad_input_ends_in_one_line(checkpoint, words, said):
    done = run(checkpoint, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


def test_wrong_words_and_a_missing_model(checkpoint, tmp_path):
    for words in (
        ["--prompt", "one", "--kv-cache", "f64"],
        ["--prompt", "one", "--new", "0"],
        ["--seed", str(2**63)],
        [],
    ):
        assert run(checkpoint, *words).returncode == 2
    done = run(str(tmp_path / "nowhere"), "--prompt", "one")
    assert done.returncode == 2
    assert done.stderr.startswith("qkv: MODEL: got ")
    assert "does not exist" in done.stderr


def test_habits_of_a_checkpoint_are_not_taken_over(checkpoint, tmp_path):
    """Beams, static caches and other returns in generation_config.json: what is asked for here is greedy."""
    plain = json.loads(run(checkpoint, "-p", "one two", "-n", "6", "--json").stdout)
    folder = shutil.copytree(checkpoint, tmp_path / "habits")
    habits = {"num_beams": 3, "return_dict_in_generate": True, "do_sample": True, "num_return_sequences": 2}
    (folder / "generation_config.json").write_text(
        json.dumps({**habits, "cache_implementation": "static", "eos_token_id": 1})
    )
    done = run(str(folder), "-p", "one two", "-n", "6", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == plain["text"]


@pytest.mark.parametrize(
    ("number", "said"), [(float("nan"), "not finite is model.layers.0.mlp.up_proj"), (3e38, "NaN")]
)
def test_weights_that_are_no_numbers_or_lead_to_none(checkpoint, tmp_path, number, said):
    folder = shutil.copytree(checkpoint, tmp_path / "bad")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][0] = number
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    done = run(str(folder), "-p", "one two", "-n", "4")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.splitlines()[-1].startswith("qkv: MODEL: got NaN logits")


def test_help_has_an_example():
    assert "Example: qkv generate" in run("--help").stdout


@pytest.mark.parametrize("each", FORMATS.values(), ids=lambda each: each.name)
def test_every_storage_format_is_an_option(each):
    _check_formats(each.short, "float32")
