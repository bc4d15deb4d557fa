"""`qkv check`: the verdict as text, as JSON and as exit code, for any answer and for the bank; bad arguments."""

import io
import json
import subprocess
import sys

import pytest

from qkv.cli import main
from qkv.problems import MISCONCEPTIONS
from tests.helpers import toy_problem

LET = ["--let", "mu: vector[d]", "--let", "d: natural"]
GOLD = ["--gold", r"\mu^T\mu", *LET]


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "check", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


@pytest.mark.parametrize(
    ("answer", "code", "first"),
    [
        (r"\|\mu\|^2", 0, "equal (proved)"),
        (r"2\mu^T\mu", 1, "different (refuted)"),
        (r"d\mu^2", 1, "conditional"),
        (r"\mu + d", 1, "ill-typed"),
        ("{mu", 1, "unreadable"),
    ],
)
def test_verdicts(run, answer, code, first):
    found, out, err = run(answer, *GOLD)
    assert (found, err) == (code, "")
    assert out.startswith(first)
    assert len(out.splitlines()) >= 2
    assert "\x1b" not in out
    said = json.loads(run(answer, *GOLD, "--json")[1])
    assert said["kind"] == first.split()[0]
    assert (said["answer"], said["gold"], said["symbols"]["d"]) == (answer, r"\mu^T\mu", "natural")


def test_a_caret_points_at_the_fault(run):
    _, out, _ = run(r"d\mu^2", *GOLD)
    source, caret = out.splitlines()[-2:]
    assert source.strip() == r"d\mu^2"
    assert set(caret.strip()) == {"^"}
    assert caret.index("^") > source.index("d")
    assert "every component of μ is the same" in out
    said = json.loads(run(r"d\mu^2", *GOLD, "--json")[1])
    start, stop = said["span"]
    assert r"\mu" in r"d\mu^2"[start:stop]
    assert said["where"].splitlines() == [source, caret]
    assert "^^" not in said["reason"]


def test_no_caret_where_nothing_was_refused(run):
    for answer in (r"2\mu^T\mu", r"\|\mu\|^2"):
        assert len(run(answer, *GOLD)[1].splitlines()) == 2
        said = json.loads(run(answer, *GOLD, "--json")[1])
        assert (said["where"], said["span"]) == ("", None)


def test_a_counterexample_is_shown_once(run):
    _, out, _ = run(r"2\mu^T\mu", *GOLD)
    assert out.count("against") == 1


def test_an_answer_may_begin_with_a_minus_sign(run):
    for answer in ("-x", r"-\phi x", "-h"):
        names = ["--let", "x, phi, h: scalar"]
        assert run(answer, "--gold", answer, *names)[0] == 0
        assert run("x + 1", "--gold", answer, *names)[0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x", "y", "--gold", "x"), "2 words"),
        (("--gold", "x"), "ANSWER: got nothing"),
        (("x", "--let", "x: scalar"), "--gold: got nothing"),
        (("x", "--gold", "x", "--let", "x"), "a name, a colon and a type"),
        (("x", "--gold", "x", "--let", ": scalar"), "a name, a colon and a type"),
        (("x", "--gold", "x", "--let", "x: scalar", "--let", "x: natural"), "'x' twice"),
        (("x", "--gold", "x", "--let", "x: wector[d]"), "wector"),
        (("x", "--golden", "x"), "'--golden'"),
        (("--", "-x", "--gold", "x"), "'--gold' after --, wanted every option before --"),
        (("x", "--gold", "{x", "--let", "x: scalar"), "--gold: "),
        (("x", "--gold", "y", "--let", "x: scalar"), "--gold: "),
    ],
)
def test_broken_calls_end_with_two(run, words, said):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("qkv: ")
    assert said in err
    assert "Traceback" not in err


def test_a_text_without_end_has_a_verdict_too(run):
    code, out, err = run("q" + "ᵀ" * 1000, "--gold", "q", "--let", "q: vector[d]")
    assert (code, err) == (1, "")
    assert out.startswith("unreadable")


def test_the_screen_is_not_steered(run):
    code, out, _ = run("mu\x1b[31m\x07", *GOLD)
    assert code == 1
    assert not {"\x1b", "\x07"} & set(out)


def test_help_has_an_example(run):
    for words in (("--help",), ("-h",)):
        code, out, _ = run(*words)
        assert code == 0
        assert r"Example: qkv check 'd mu^2' --gold '\mu^T \mu' --let 'mu: vector[d]'" in out


def test_nothing_heavy_is_loaded():
    program = (
        "import sys; from qkv.cli import main\n"
        f"sys.argv = ['qkv', 'check', 'd mu^2', *{GOLD!r}]\n"
        "try:\n    main()\nexcept SystemExit as ended:\n"
        "    print(ended.code, sorted({'torch', 'numpy', 'sympy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "1 []"


@pytest.fixture
def on_bank(run, monkeypatch):
    """The same, with a bank that holds the toy problem alone."""
    toy_problem.install(monkeypatch)
    return run


@pytest.mark.parametrize(
    ("answer", "code", "first"),
    [("q = (2, 3, -5)", 0, "right"), ("(2,3,-5)", 0, "right"), ("(2,3,0)", 1, "wrong"), ("(2,3,1)", 1, "wrong"),
     ("?!", 1, "unread"), ("", 1, "unread")],
)  # fmt: skip
def test_outcomes(on_bank, answer, code, first):
    found, out, err = on_bank("toy", "a", answer)
    assert (found, err) == (code, "")
    assert out.splitlines()[0] == first
    said = json.loads(on_bank("toy", "a", answer, "--json")[1])
    assert (said["kind"], said["right"], said["answer"]) == (first, code == 0, answer)


def test_a_known_mistake_is_named_with_what_is_right(on_bank):
    out = " ".join(on_bank("toy", "a", "(2,3,0)")[1].split())
    assert f"known mistake: no scaling. {MISCONCEPTIONS['no scaling'].right}" in out
    said = json.loads(on_bank("toy", "a", "(2,3,0)", "--json")[1])
    assert said["mistakes"][0]["name"] == "no scaling"


def test_hints(on_bank):
    assert "hint: The first entry is 2." in on_bank("toy", "a", "(1,2,3)", "--hint", 3)[1]
    code, out, _ = on_bank("toy", "(a)", "--hint", 2)
    assert (code, out) == (0, "Rows of W with x.\n")
    assert json.loads(on_bank("toy", "a", "--hint", 1, "--json")[1])["hint"] == "What is $q$?"


def test_variants_and_answers_that_begin_with_a_minus_sign(on_bank):
    answer = toy_problem.make(9).part("a").answer.items["q"].gold
    assert on_bank("toy", "a", answer, "--seed", 9)[0] == 0
    assert on_bank("toy", "a", "-1", "--seed", 9)[0] == 1


def test_an_answer_from_the_standard_input(on_bank, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("q = (2,\n 3, -5)\n"))
    assert on_bank("toy", "a", "-")[0] == 0


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
def test_wrong_calls_about_the_bank_end_with_2(on_bank, words, said):
    code, out, err = on_bank(*words)
    assert (code, out) == (2, "")
    assert said in err
