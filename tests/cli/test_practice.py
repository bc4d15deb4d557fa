"""`qkv practice`: a session can be ended at any time; answers are checked, stored and summarised."""

import io
import json
import sys

import pytest

from qkv.cli import main
from qkv.exercises import progress
from tests.helpers import toy_family


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """(exit code, stdout, stderr) of a practice with these lines."""
    toy_family.install(monkeypatch)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def command(*words, lines=()):
        monkeypatch.setattr(sys, "argv", ["qkv", "practice", *map(str, words)])
        stdin = lines if hasattr(lines, "readline") else io.StringIO("".join(f"{line}\n" for line in lines))
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


right = toy_family.scores


def mistaken(seed):
    """The scores divided by the root of the width."""
    return f"({', '.join(f'{each}/sqrt(2)' for each in right(seed)[1:-1].split(', '))})"


def summary(run, *words, lines):
    code, out, err = run("--json", *words, lines=lines)
    assert code == 0
    assert "> " in err
    return json.loads(out)


def test_right_at_once_after_tries_skipped_and_shown(run):
    lines = [mistaken(1), "?!?", "hint", right(1), "(i), (iii)", "skip", "solution"]
    found = summary(run, "--seed", 1, "--rounds", 4, lines=lines)
    assert [each["ended"] for each in found["questions"]] == ["after tries", "at once", "skipped", "shown"]
    assert found["questions"][0] == {
        "exercise": "toy", "part": "a", "seed": 1, "ended": "after tries", "tries": 2, "hints": 1,
        "mistakes": {"scaling where none is asked": 1},
    }  # fmt: skip
    assert found["mistakes"] == {"scaling where none is asked": 1}
    assert found["ended"] == {"at once": 1, "after tries": 1, "skipped": 1, "shown": 1}
    kept, said = progress.load()
    assert said == ""
    # What went well at once was not asked again.
    assert [each["part"] for each in found["questions"]] == ["a", "b(i)", "a", "a"]
    assert kept.records["toy/a"].last == "shown"
    assert kept.records["toy/b(i)"].last == "at once"


def test_what_went_wrong_is_asked_again_and_what_went_well_is_not(run):
    summary(run, "--seed", 1, "--rounds", 2, lines=[right(1), "skip"])
    found = summary(run, "--seed", 2, "--rounds", 1, lines=["(i), (iii)"])
    assert [(each["part"], each["ended"]) for each in found["questions"]] == [("b(i)", "at once")]


@pytest.mark.parametrize("last", ["quit", "EXIT", ":q", None])
def test_it_ends_when_the_learner_does(run, last):
    lines = [right(1), *([last] if last else [])]
    code, out, _ = run("--seed", 1, lines=lines)
    assert code == 0
    assert "1 question\n" in out
    assert "at once" in out
    assert progress.load()[0].records["toy/a"].last == "at once"


def test_ctrl_c_ends_with_the_summary(run):
    class Interrupted(io.StringIO):
        def readline(self, *_):
            line = super().readline()
            if not line:
                raise KeyboardInterrupt
            return line

    code, out, _ = run("--seed", 1, lines=Interrupted(f"{right(1)}\n"))
    assert code == 0
    assert "1 question\n" in out
    assert progress.load()[0].records


def test_what_was_tried_and_left_is_remembered(run):
    found = summary(run, "--seed", 1, lines=[mistaken(1), "quit"])
    assert [(each["ended"], each["mistakes"]) for each in found["questions"]] == [
        ("skipped", {"scaling where none is asked": 1})
    ]
    assert progress.load()[0].records["toy/a"].mistakes == {"scaling where none is asked": 1}


def test_nothing_answered(run):
    code, out, _ = run(lines=[])
    assert code == 0
    assert "No question was answered." in out
    assert not progress.path().exists()


def test_an_answer_of_several_lines(run):
    first, rest = right(1).split(",", 1)
    found = summary(run, "--seed", 1, "--rounds", 1, lines=[f"{first},\\", rest])
    assert found["questions"][0]["ended"] == "at once"


def test_words_of_the_conversation(run):
    _, out, _ = run("--seed", 1, "--rounds", 1, lines=["help", "", "hint", "hint", "hint", "hint", "solution"])
    assert out.count("Type an answer") == 2
    assert out.count("Hint 3 of 3") == 2
    assert "Dot products." in out
    assert "Summary of answers" not in out
    assert "To practise again: toy a." in out


def test_a_hostile_line_is_shown_and_not_obeyed(run):
    _, out, _ = run("--seed", 1, "--rounds", 1, lines=["[bold red]x[/] \x1b[31m", "skip"])
    assert "[bold red]x[/]" in out
    assert "\x1b" not in out


def test_a_foreign_file_is_set_aside_with_a_word(run):
    progress.path().parent.mkdir(parents=True)
    progress.path().write_text("mine")
    _, out, _ = run("--seed", 1, "--rounds", 1, lines=["skip"])
    assert "set-aside-1" in "".join(out.split())
    assert progress.path().with_name("practice.json.set-aside-1").read_text() == "mine"
    assert progress.load()[0].records


def test_a_place_that_cannot_be_written_is_said_and_the_practice_goes_on(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    code, out, _ = run("--seed", 1, "--rounds", 1, lines=["skip"])
    assert code == 0
    assert "cannot be kept" in " ".join(out.split())
    assert "1 question" in out


def test_reset(run):
    summary(run, "--seed", 1, "--rounds", 1, lines=["skip"])
    assert run("--reset")[1] == "the progress is forgotten\n"
    assert not progress.path().exists()
    assert "no progress" in json.loads(run("--reset", "--json")[1])["reset"]


def test_a_wrong_name_ends_with_2(run):
    code, out, err = run("nothing")
    assert (code, out) == (2, "")
    assert "an exercise of the bank" in err


def test_a_closed_input_is_said(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["qkv", "practice"])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "standard input" in capsys.readouterr().err
