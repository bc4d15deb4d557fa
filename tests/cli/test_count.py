"""`qkv count`: numbers against torch modules, formulas against numbers, and bad words in one line."""

import json
import re
import sys

import pytest
import torch

from qkv.cli import main
from qkv.cost.readable import quantity

SIZES = ["--layers", "3", "--width", "35", "--heads", "5", "--ff", "11", "--vocabulary", "13"]


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "count", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


def figures(run, *words):
    code, out, _ = run(*words, "--json")
    assert code == 0
    return json.loads(out)


def test_parameters_are_those_of_torch(run):
    layer = torch.nn.TransformerEncoderLayer(35, 5, 11)
    found = figures(run, *SIZES, "--no-gated", "--biases", "--norm", "layer")
    table = 13 * 35
    assert found["parameters"] == 3 * sum(each.numel() for each in layer.parameters()) + 2 * table + 2 * 35
    assert found["parts"]["embedding"]["parameters"] == found["parts"]["logits"]["parameters"] == table


@pytest.mark.parametrize("pairs", [["--causal"], ["--all-pairs"]])
def test_products_are_those_of_torch(run, pairs):
    from torch.utils.flop_counter import FlopCounterMode

    n, d, f, v = 7, 35, 11, 13
    x = torch.ones(2, n, d)
    with FlopCounterMode(display=False) as counter:
        for _ in range(3):
            for _ in range(4):
                x @ torch.ones(d, d)
            heads = torch.ones(2 * 5, n, 7)
            torch.bmm(torch.bmm(heads, heads.transpose(1, 2)), heads)
            x @ torch.ones(d, f) @ torch.ones(f, d)
        x @ torch.ones(d, v)
    found = figures(run, *SIZES, "--no-gated", "--length", n, "--batch", 2, *pairs)
    less = 3 * 2 * 2 * (n * n - n * (n + 1) // 2) * 2 * d if pairs == ["--causal"] else 0
    assert found["products"] == counter.get_total_flops() - less
    assert found["pairs"] == ("causal" if less else "all")
    trained = figures(run, *SIZES, "--no-gated", "--length", n, "--batch", 2, *pairs, "--phase", "training")
    assert trained["products"] == 3 * found["products"]


@pytest.mark.parametrize("phase", ["forward", "decode", "training"])
def test_formulas_have_the_values_of_numbers(run, phase):
    sizes = {"layers": 3, "width": 35, "heads": 5, "kv-heads": 1, "ff": 11, "vocabulary": 13, "length": 7, "batch": 2}
    letters = dict(zip(sizes, ["L", "d", "h", "g", "f", "V", "n", "b"], strict=True))
    numbers = figures(run, *(word for name in sizes for word in (f"--{name}", sizes[name])), "--phase", phase)
    formulas = figures(run, *(word for name in sizes for word in (f"--{name}", letters[name])), "--phase", phase)
    values = {letters[name]: size for name, size in sizes.items()}
    for key in ("parameters", "products", "other", "weight_bytes", "cache_bytes", "bytes"):
        text = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", formulas[key].replace("^", "**"))
        assert eval(text, {}, values) == numbers[key], key


def test_experts_and_caches(run):
    found = figures(run, *SIZES, "--experts", 8, "--active", 2, "--phase", "decode", "--length", 9)
    assert found["parts"]["feed-forward"]["parameters"] == 3 * (8 * 3 * 35 * 11 + 8 * 35)
    assert found["active_parameters"] == found["parameters"] - 3 * 6 * 3 * 35 * 11
    assert found["cache_bytes_per_token"] == 2 * 3 * 35 * 2
    assert found["cache_bytes"] == 9 * found["cache_bytes_per_token"]


@pytest.mark.parametrize("words", [SIZES, ["--model", "llama-3-8b"], ["--layers", "L", "--width", "d", "--ff", "f"]])
def test_the_table_fits_80_columns(run, words):
    code, out, _ = run(*words)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "parameters" in out
    assert "multiply-add" in out


def test_help_has_an_example(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Example: qkv count" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--layers"),
        (["--layers", "3"], "--width"),
        (["--layers", "3", "--width", "10", "--heads", "4"], "heads"),
        (["--layers", "0", "--width", "10"], "--layers"),
        (["--layers", "2+2", "--width", "10"], "--layers"),
        (["--model", "llama-3-8b", "--layers", "3"], "--layers"),
        (["--model", "no such model"], "model"),
        ([*SIZES, "--phase", "sideways"], "--phase"),
        ([*SIZES, "--norm", "batch"], "--norm"),
        ([*SIZES, "--weights", "int3"], "--weights"),
        ([*SIZES, "--experts", "4"], "--active"),
        (["--model", "bert-base", "--phase", "decode"], "encoder"),
    ],
)
def test_wrong_words_end_in_one_line(run, words, said):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_operations_over_lengths_are_drawn(run, tmp_path):
    for name, words in (("a.svg", ()), ("b.html", ("--phase", "decode")), ("c.html", ("--phase", "training"))):
        code, out, err = run("--model", "gpt-2", *words, "-o", tmp_path / name)
        assert (code, err) == (0, f"written: {tmp_path / name}\n")
        assert "parameters" in out
        drawn = (tmp_path / name).read_text(encoding="utf-8")
        assert "operations of matrix products (FLOP)" in drawn
        assert all(part in drawn for part in ("scores", "feed-forward", "length (tokens)", "1,024 tokens"))
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    total = json.loads(run("--model", "gpt-2", "--phase", "training", "--json")[1])["products"]
    assert quantity(total, "FLOP") in page
