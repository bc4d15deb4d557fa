"""`qkv plan`: the answer as text, JSON, CSV and chart; bad arguments are reported in one line."""

import csv
import io
import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from qkv.cli import main

LLAMA = ["--model", "llama-3-8b", "--hardware", "h100-sxm"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """(exit code, stdout, stderr) of a command, in this process."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


def test_the_answer_comes_first(run):
    code, out, _ = run(*LLAMA, "--context", 8192, "--batch", 1)
    assert code == 0
    assert out.splitlines()[0] == "llama-3-8b on h100-sxm: 4.81 ms a token, 208 tokens/s"
    assert max(map(len, out.splitlines())) <= 80
    for word in ("16.1 GB", "1.07 GB", "feed-forward", "2·b·c·g·L·n·w", "MQA", "from n ="):
        assert word in out


def test_json_has_what_the_table_shows(run):
    code, out, _ = run(*LLAMA, "--cache", "int8", "--weights", "int4", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["weight_bytes"], found["cache_bytes"]) == (4015130624, 536870912)
    assert found["model"]["parameters"] == 8030261248
    assert found["parts"]["cache"]["formula"] == "2·b·c·g·L·n·w"
    assert sum(part["seconds"] for part in found["parts"].values()) == pytest.approx(found["seconds_per_token"])
    assert {"variants", "crossings", "bottleneck", "largest_batch", "largest_context", "ridge"} <= set(found)


@pytest.mark.slow
def test_several_stand_side_by_side(run):
    code, out, _ = run("--model", "llama-3-8b", *LLAMA[2:], "--model", "gpt2", "--hardware", "a100-80gb")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert all(name in out for name in ("llama-3-8b", "gpt-2", "h100-sxm", "a100-80gb"))
    _, out, _ = run("--model", "llama-3-8b", *LLAMA[2:], "--model", "gpt2", "--json")
    assert [each["model"]["name"] for each in json.loads(out)] == ["llama-3-8b", "gpt-2"]


def test_csv(run):
    _, out, _ = run(*LLAMA, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {"quantity": "weight_bytes", "value": "16060522496"}.items() <= next(
        row for row in rows if row["quantity"] == "weight_bytes"
    ).items()


def test_sizes_by_hand_are_those_of_the_preset(run):
    sizes = "--layers 32 --width 4096 --heads 32 --kv-heads 8 --head-width 128 --ff 14336 --gated --vocabulary 128256"
    _, out, _ = run(*sizes.split(), "--hardware", "h100-sxm", "--context", 8192, "--json")
    found = json.loads(out)
    assert found["model"]["parameters"] == 8030261248
    _, out, _ = run(*sizes.split(), "--no-gated", "--tied", "--hardware", "h100-sxm", "--json")
    less = 32 * 4096 * 14336 + 128256 * 4096
    assert json.loads(out)["model"]["parameters"] == 8030261248 - less


def test_a_config_is_read(run, tmp_path):
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for words in (["--config", tmp_path], ["--config", tmp_path / "config.json"], ["--model", tmp_path]):
        code, out, _ = run(*words, "--hardware", "l4", "--json")
        assert code == 0
        assert json.loads(out)["model"]["parameters"] == 124439808


def test_the_list_has_every_name(run):
    code, out, _ = run("--list")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert all(name in out for name in ("gpt-3-175b", "deepseek-v3", "m4-max", "here"))
    known = json.loads(run("--list", "--json")[1])
    assert known["models"]["gpt-2"]["parameters"] == 124439808
    assert known["hardware"]["h100-sxm"]["source"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [LLAMA, [*LLAMA, "--model", "mistral-7b"], ["--model", "bert-base"]])
def test_drawings(run, tmp_path, words):
    for name in ("plan.svg", "plan.HTML"):
        code, out, err = run(*words, "--plot", tmp_path / name)
        assert code == 0
        assert out
        assert name in err
    drawing = ElementTree.parse(tmp_path / "plan.svg").getroot()
    assert len(drawing.findall("{http://www.w3.org/2000/svg}svg")) == 2
    page = (tmp_path / "plan.HTML").read_text(encoding="utf-8")
    assert "Roofline" in page
    assert "<script" not in page


def test_huge_sizes_are_answered(run):
    code, out, _ = run(*LLAMA, "--context", 10**15, "--batch", 10**15)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "10¹⁵" in out
    assert json.loads(run(*LLAMA, "--context", 10**15, "--json")[1])["cache_bytes"] == 131072 * 10**15


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--list"),
        (["--model", "lama-3-8b"], "llama-3-8b"),
        (["--model", "gpt-2", "--hardware", "h200x"], "h200"),
        (["--model", "gpt-2", "--weights", "int3"], "int4"),
        (["--model", "gpt-2", "--cache", "int3"], "--cache"),
        (["--model", "gpt-2", "--plot", "x.png"], ".svg"),
        (["--model", "gpt-2", "--json", "--csv"], "one of them"),
        (["--model", "gpt-2", "--layers", "3"], "--layers"),
        (["--layers", "3", "--heads", "2"], "--width"),
        (["--model", "gpt-2", "--batch", "0"], "batch"),
        (["--model", "gpt-2", "--context", "-5"], "context"),
        (["--model", "gpt-2", "--prompt", 2**63], "prompt"),
        (["--layers", "3", "--heads", "5", "--width", "84"], "a divisor of --width"),
        (["--layers", "3", "--heads", "6", "--width", "84", "--kv-heads", "4"], "a divisor of --heads"),
        (["--layers", "0", "--heads", "6", "--width", "84"], "layers"),
        (["--config", "nowhere.json"], "nowhere.json"),
        (["--model", "./nowhere"], "nowhere"),
        (["--model", "gpt-2", "--plot", "no/such/folder/x.svg"], "x.svg"),
    ],
)
def test_wrong_words_end_in_one_line(run, words, said):
    ended, out, err = run(*words)
    assert ended == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("qkv: ")


def test_words_that_are_no_numbers_are_refused(run):
    code, _, err = run("--model", "gpt-2", "--batch", "many")
    assert code == 2
    assert "batch" in err


def test_help_has_an_example(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Example: qkv plan --model llama-3-8b" in " ".join(out.split())


def test_neither_torch_nor_sympy_is_loaded():
    program = (
        "import sys; sys.argv = ['qkv', 'plan', '--model', 'deepseek-v3', '--hardware', 'h200']\n"
        "from qkv.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'sympy', 'numpy', 'transformers'} & set(sys.modules), sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("deepseek-v3 on h200")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layers", 2, "--width", 64, "--heads", 4, "--kv-heads", 3], "--kv-heads: got 3 with --heads 4"),
        (["--layers", 2, "--width", 65, "--heads", 4], "--heads: got 4 with --width 65"),
        (["--model", ""], "--model: got ''"),
    ],
)
def test_errors_speak_of_the_words_that_were_typed(run, words, said):
    code, out, err = run(*words)
    assert code != 0
    assert not out
    assert said in err


def test_the_largest_context_says_what_the_model_was_made_for(run):
    _, out, _ = run("--model", "gpt-2", "--hardware", "h100-sxm")
    assert "(trained for 1,024)" in out
    assert "weights and caches alone, of 80 GB" in out


def test_several_plans_are_drawn_with_their_own_contexts(run, tmp_path):
    run("--model", "gpt-2", "--model", "llama-3-8b", "--hardware", "t4", "--plot", tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text(encoding="utf-8")
    assert "context 1,024 or 8,192" in text


def test_machines_and_a_link(run, tmp_path):
    code, out, _ = run(*LLAMA, "--context", 2**20, "--machines", 4096, "--link", "10GBps")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for word in (
        "split over machines: 1,048,576 tokens",
        "10 GB/s",
        "4,096",
        "ring",
        "linear",
        "a·b·g·n·(R - 1)·(v + w)/R",
    ):
        assert word in out
    drawn = tmp_path / "scaling.svg"
    code, out, _ = run(*LLAMA, "--machines", 6, "--json", "--plot", drawn)
    found = json.loads(out)["scaling"]
    assert [row["machines"] for row in found["rows"]] == [1, 2, 4, 6]
    assert found["link"]["name"] == "100gbe"
    assert "Speed over machines" in drawn.read_text(encoding="utf-8")
    known = json.loads(run("--list", "--json")[1])
    assert known["links"]["25gbe"]["bandwidth"] == 2.95e9
    assert "loopback" in run("--list")[1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--machines", 4, "--link", "quick"], 2, "link: got 'quick'"),
        (["--link", "10GBps"], 2, "--machines"),
        *(
            (["--machines", many], 2, f"machines: got {many}, wanted a whole number from 1 to 16,777,216")
            for many in (0, 10**12)
        ),
        *((["--machines", 4, "--link", rate], 2, "a rate above 0 and below") for rate in ("0", "-1", "1e99")),
        (["--machines", 4, "--audit"], 2, "--audit"),
    ],
)
def test_wrong_words_about_machines(run, words, code, said):
    ended, _, err = run(*LLAMA, *words)
    assert ended == code
    assert said in err
    assert "Traceback" not in err


CHIP = "rate=197T,bandwidth=820G,memory=16G"


def test_chips_by_figures_share_weights_and_cache(run):
    """Four chips read four times as fast and hold four times as much; the sizes stay the same."""
    words = ["--model", "llama-3-8b", "--weights", "int8", "--json"]
    _, one, _ = run(*words, "--chip", CHIP)
    _, four, _ = run(*words, "--chip", CHIP, "--chips", 4)
    one, four = json.loads(one), json.loads(four)
    assert four["step_seconds"] == pytest.approx(one["step_seconds"] / 4)
    assert four["hardware"]["memory"] == 4 * one["hardware"]["memory"] == 64 * 10**9
    assert four["weight_bytes"] == one["weight_bytes"]
    assert any("4 chips" in note for note in four["notes"])
    code, out, _ = run("--model", "llama-3-8b", "--chip", f"{CHIP},link=90G", "--chips", 2)
    assert code == 0
    assert "split over machines" in out
    assert max(map(len, out.splitlines())) <= 80


def test_chips_of_a_preset_use_its_8_bit_rate(run):
    words = ["--model", "llama-3-8b", "--hardware", "tpu-v5e", "--chips", 16, "--json"]
    found = {each: json.loads(run(*words, "--weights", each)[1]) for each in ("bfloat16", "int8", "fp8")}
    assert found["int8"]["rate_dtype"] == "int8"
    assert found["fp8"]["rate_dtype"] == found["bfloat16"]["rate_dtype"] == "bfloat16"
    assert found["int8"]["ridge"] == pytest.approx(2 * found["bfloat16"]["ridge"])
    assert found["fp8"]["weight_bytes"] == found["int8"]["weight_bytes"]


@pytest.mark.parametrize(
    "words",
    [
        ["--chip", "rate=197T,bandwidth=820G"],
        ["--chip", "rate=197T,bandwidth=820G,memory=16 furlongs"],
        ["--chip", "rate=197T,bandwidth=820G,memory=16G,memory=17G"],
        ["--chip", "rate=197T,bandwidth=0,memory=16G"],
        ["--chip", "speed=9"],
        ["--chip", CHIP, "--hardware", "h100-sxm"],
        ["--chip", CHIP, "--chips", 2, "--machines", 2],
        ["--chip", CHIP, "--chips", 0],
    ],
)
def test_wrong_chips_end_in_one_line(run, words):
    code, out, err = run("--model", "llama-3-8b", *words)
    assert code == 2
    assert out == ""
    assert "--chip" in err


def test_the_model_of_a_file_in_its_own_formats(run, tmp_path):
    from tests.helpers.runtime_files import build, write_folder, write_gguf

    path = write_gguf(build("llama"), tmp_path / "model.gguf", quantized="q8_0")
    folder = write_folder(build("llama"), tmp_path / "folder")
    code, out, _ = run(path, "--context", 50)
    assert code == 0
    for words in ("model.gguf on here", "q8_0", "a step", "a prompt of 50 tokens", "float32", "int8"):
        assert words in out
    assert run("--model", path, "--context", 50)[1] == out
    assert "f32" in run(folder, "--hardware", "here")[1]
    found = json.loads(run(path, "--json", "--prompt", 20, "--cache", "bfloat16")[1])
    assert (found["prompt"], found["cache"], found["architecture"]) == (20, "bfloat16", "llama")
    for words in (("--weights", "int8"), ("--csv",), ("--model", "gpt-2"), ("--layers", 3), ("--machines", 2)):
        code, out, err = run(path, *words)
        assert (code, out) == (2, "")
        assert "formats" in err
    path.write_bytes(b"GGUF" + bytes(40))
    code, _, err = run(path)
    assert (code, err.count("\n")) == (2, 1)
    assert run("nowhere.gguf")[0] == 2


def test_a_name_needs_no_option(run):
    assert run("gpt-2", "--context", 71)[1] == run("--model", "gpt-2", "--context", 71)[1]
