"""`qkv check PROBLEM PART ANSWER`: the outcome, the known mistake by name, and hints."""

import io
import json
import sys

import pytest

import toy_problem
from qkv.cli import main
from qkv.problems import MISCONCEPTIONS


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process."""
    toy_problem.install(monkeypatch)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "check", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


@pytest.mark.parametrize(
    ("answer", "code", "first"),
    [("q = (2, 3, -5)", 0, "right"), ("(2,3,-5)", 0, "right"), ("(2,3,0)", 1, "wrong"), ("(2,3,1)", 1, "wrong"),
     ("?!", 1, "unread"), ("", 1, "unread")],
)  # fmt: skip
def test_outcomes(run, answer, code, first):
    found, out, err = run("toy", "a", answer)
    assert (found, err) == (code, "")
    assert out.splitlines()[0] == first
    said = json.loads(run("toy", "a", answer, "--json")[1])
    assert (said["kind"], said["right"], said["answer"]) == (first, code == 0, answer)


def test_a_known_mistake_is_named_with_what_is_right(run):
    out = " ".join(run("toy", "a", "(2,3,0)")[1].split())
    assert f"known mistake: no scaling. {MISCONCEPTIONS['no scaling'].right}" in out
    said = json.loads(run("toy", "a", "(2,3,0)", "--json")[1])
    assert said["mistakes"][0]["name"] == "no scaling"


def test_hints(run):
    assert "hint: The first entry is 2." in run("toy", "a", "(1,2,3)", "--hint", 3)[1]
    code, out, _ = run("toy", "(a)", "--hint", 2)
    assert (code, out) == (0, "Rows of W with x.\n")
    assert json.loads(run("toy", "a", "--hint", 1, "--json")[1])["hint"] == "What is $q$?"


def test_variants_and_answers_that_begin_with_a_minus_sign(run):
    answer = toy_problem.make(9).part("a").answer.items["q"].gold
    assert run("toy", "a", answer, "--seed", 9)[0] == 0
    assert run("toy", "a", "-1", "--seed", 9)[0] == 1


def test_an_answer_from_the_standard_input(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("q = (2,\n 3, -5)\n"))
    assert run("toy", "a", "-")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing", "a", "1"], "a problem of the bank"),
        (["toy", "c", "1"], "toy has the parts"),
        (["toy", "a"], "a problem, a part and an answer"),
        (["toy", "a", "1", "2"], "a problem, a part and an answer"),
        (["toy", "a", "1", "--hint", 4], "1, 2 or 3"),
        (["1", "--gold", "1", "--seed", 3], "a problem and a part of the bank"),
        (["toy", "--hint", 1], "a problem, a part and an answer"),
    ],
)
def test_broken_calls_end_with_2(run, words, said):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
