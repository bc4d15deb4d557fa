"""`qkv check`: the verdict as text, as JSON and as exit code, for any answer and for the bank; bad arguments."""

import io
import json
import subprocess
import sys

import pytest

from qkv.cli import main
from qkv.exercises import Answer, Asked, Given, bank, mistakes
from qkv.exercises.outcome import known_mistakes

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
        assert "^" not in run(answer, *GOLD)[1]
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


TOY = """
title = "A softmax"
[[givens]]
role = "scores"
value = [0, 0, 0]
[[asked]]
label = "a"
quantity = "softmax"
"""


def toy(seed):
    scores = [0, 0] if seed is None else [0] * (2 + seed)
    hints = ("How many weights are there?", "They add up to 1.", "The first entry is $1/2$.")
    return bank.BankExercise(
        name="toy",
        seed=seed,
        givens=[Given(role="scores", value=scores)],
        asked=[Asked(label="a", quantity="softmax", mistakes=["softmax not normalised"])],
        hints={"a": hints},
    )


@pytest.fixture
def on_bank(run, monkeypatch):
    """The same, with a small family in the bank."""
    monkeypatch.setitem(bank._ADDED, "toy", toy)
    planted = Answer("(1, 1)", (1, 1), "vector")
    monkeypatch.setitem(mistakes.MISTAKES, "softmax not normalised", lambda exercise, asked: planted)
    return run


@pytest.mark.parametrize(
    ("answer", "code", "first"),
    [("a = (1/2, 1/2)", 0, "right"), ("0.5, 0.5", 0, "right"), ("(1,1)", 1, "wrong"), ("(1,0)", 1, "wrong"),
     ("?!", 1, "unread"), ("", 1, "unread"), ("maybe (1/2, 1/2)", 1, "unread")],
)  # fmt: skip
def test_outcomes(on_bank, answer, code, first):
    found, out, err = on_bank("toy", "a", answer)
    assert (found, err) == (code, "")
    assert out.splitlines()[0] == first
    said = json.loads(on_bank("toy", "a", answer, "--json")[1])
    assert (said["kind"], said["right"], said["answer"]) == (first, code == 0, answer)
    assert (said["exercise"], said["part"], said["seed"]) == ("toy", "a", None)


def test_a_known_mistake_is_described_with_what_is_right(on_bank):
    known = known_mistakes()["softmax not normalised"]
    out = " ".join(on_bank("toy", "a", "(1,1)")[1].split())
    assert f"known mistake: {known.believed}. {known.right.capitalize()}." in out
    said = json.loads(on_bank("toy", "a", "(1,1)", "--json")[1])
    assert said["mistakes"][0]["name"] == "softmax not normalised"
    assert said["findings"][0]["code"] == "entry"


def test_hints(on_bank):
    assert "hint: The first entry is 1/2." in on_bank("toy", "a", "(1,0)", "--hint", 3)[1]
    code, out, _ = on_bank("toy", "(a)", "--hint", 2)
    assert (code, out) == (0, "They add up to 1.\n")
    assert json.loads(on_bank("toy", "a", "--hint", 1, "--json")[1])["hint"] == "How many weights are there?"


def test_variants_and_answers_that_begin_with_a_minus_sign(on_bank):
    assert on_bank("toy", "a", "(1/5, 1/5, 1/5, 1/5, 1/5)", "--seed", 3)[0] == 0
    assert on_bank("toy", "a", "-1", "--seed", 3)[0] == 1


def test_an_answer_from_the_standard_input(on_bank, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a = (1/2,\n 1/2)\n"))
    assert on_bank("toy", "a", "-")[0] == 0


def test_an_exercise_file(run, tmp_path):
    path = tmp_path / "softmax.toml"
    path.write_text(TOY)
    assert run(path, "a", "(1/3, 1/3, 1/3)")[0] == 0
    assert run(path, "a", "(1/2, 1/3, 1/3)")[0] == 1
    for words, said in (
        ((path, "b", "1"), "it has a"),
        ((path, "a"), "no answer"),
        ((path,), "has the parts a"),
        ((path, "a", "1", "--seed", 1), "an exercise of the bank"),
        ((path, "a", "--hint", 1), "files have no hints"),
        ((tmp_path / "absent.toml", "a", "1"), "an exercise as TOML or JSON"),
    ):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert said in err
    path.write_text("title = 3")
    assert run(path, "a", "1")[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing", "a", "1"], "an exercise of the bank"),
        (["toy", "c", "1"], "it has a"),
        (["toy"], "toy has the parts a"),
        (["toy", "a"], "an exercise, a part and an answer"),
        (["toy", "a", "1", "2"], "an exercise, a part and an answer"),
        (["toy", "a", "1", "--hint", 4], "1, 2 or 3"),
        (["1", "--gold", "1", "--seed", 3], "an exercise and a part"),
        (["toy", "--hint", 1], "an exercise, a part and an answer"),
    ],
)
def test_wrong_calls_about_the_bank_end_with_2(on_bank, words, said):
    code, out, err = on_bank(*words)
    assert (code, out) == (2, "")
    assert said in err
