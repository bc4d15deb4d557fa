"""`qkv check`: the verdict in words, in JSON and in the exit code; broken calls end with 2."""

import json
import subprocess
import sys

import pytest

from qkv.cli import main

LET = ["--let", "mu: vector[d]", "--let", "d: natural"]
GOLD = ["--gold", r"\mu^T\mu", *LET]


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "check", *words])
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
