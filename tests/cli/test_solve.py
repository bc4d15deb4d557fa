"""`qkv solve`: worked solutions as text, JSON and files; errors are one line."""

import json
import subprocess
import sys

import pytest

from qkv.cli import main
from tests.helpers import toy_problem


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process."""
    toy_problem.install(monkeypatch)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "solve", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


def test_a_problem_is_worked_out(run):
    code, out, err = run("toy")
    assert (code, err) == (0, "")
    for words in ("A toy", "Part (a), 3 points", "⎣ −5 ⎦", "Summary of answers", "Questions to go on with"):
        assert words in out
    assert "<b>are</b>" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_parts_seeds_and_brevity(run):
    out = run("toy", "b(i)", "--seed", 3)[1]
    assert "variant 3" in out
    assert "Part (a)" not in out
    assert "they tell" not in run("toy", "b.i", "--brief")[1]
    several = run("toy", "a", "toy", "bi")[1]
    assert several.count("A toy") == 2
    assert several.count("Part (a)") == several.count("Part (b)(i)") == 1


def test_json_holds_everything(run):
    found = json.loads(run("toy", "--json", "--seed", 2)[1])
    assert (found["name"], found["seed"]) == ("toy", 2)
    problem = toy_problem.make(2)
    for part in found["parts"]:
        assert problem.check(part["part"], part["answer"]).kind == "right"
    assert len(json.loads(run("toy", "toy", "--json")[1])) == 2
    assert [each["name"] for each in json.loads(run("--list", "--json")[1])] == ["toy"]
    assert run("--list")[1] == "toy  A toy (2 parts; 009-1)\n"


def test_files_of_every_kind(run, tmp_path):
    names = [tmp_path / f"a{ending}" for ending in (".md", ".tex", ".html", ".pdf", ".ipynb", ".json")]
    code, out, err = run("toy", *(word for name in names for word in ("--to", name)))
    assert (code, out) == (0, "")
    assert err.count("written: ") == 6
    assert all(name.stat().st_size > 500 for name in names)
    assert json.loads(names[-1].read_text())["summary"]["a"] == "q = (2, 3, -5)"
    run("toy", "toy", "--to", names[0])
    assert names[0].read_text().count("Summary of answers") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "a problem of the bank"),
        (["toy", "z"], "toy has the parts a, b(i)"),
        (["toy", "--to", "x.doc"], ".ipynb or .json"),
        (["toy", "--list"], "one of them"),
        (["--token", 2], "matrices, or --given"),
        (["--x", "1 2", "--given", "f"], "a file or matrices, not both"),
        (["--x", "1 2", "--seed", 1], "one of them"),
        (["--given", "f.toml", "--token", 1], "mask in the file"),
        (["--x", "1 2"], "x, wq, wk and wv, or q, k and v"),
        (["--q", "1 2; 3", "--k", "1", "--v", "1"], "rows of the same length"),
        (["--q", "1 two", "--k", "1 2", "--v", "1"], "a number such as"),
        (["--q", "1 2", "--k", "1 2", "--v", "1", "--token", 7], "from 1 to 1"),
        (["--sheet", "nowhere.md"], "an existing file"),
        (["toy", "--copies", 2], "--out"),
        (["toy", "--out", "x"], "without --copies"),
        (["toy", "--export", "qti", "--copies", 2, "--out", "x"], "one of them"),
        (["toy", "--export", "docx", "--out", "."], "moodle, qti, prairielearn, jsonl"),
        (["toy", "--copies", 0, "--out", "."], "from 1 to"),
        (["toy", "--copies", 1, "--out", ".", "--as", "doc"], "pdf, tex, html, md, ipynb"),
        (["toy", "a", "--copies", 1, "--out", "."], "whole problems"),
        (["--seed", "-1"], "Invalid value"),
    ],
)
def test_broken_calls_end_with_2_and_say_why(run, words, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_assignment(run, tmp_path):
    sheet = tmp_path / "sheet.md"
    sheet.write_text("# 1 First\n\na toy question\n\n# 2 Other [bold]\n\nwords\n")
    code, out, _ = run("--sheet", sheet)
    assert code == 0
    assert out.startswith("Question 1 (First): toy")
    assert "Question 2 (Other [bold]): not recognised" in out
    found = json.loads(run("--sheet", sheet, "--json")[1])
    assert found["unrecognised"] == ["2 (Other [bold])"]
    assert found["solved"][0]["solution"]["name"] == "toy"
    run("--sheet", sheet, "--to", tmp_path / "a.md")
    assert "Summary of answers" in (tmp_path / "a.md").read_text()


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"nothing known", 1, "no question in"),
        (b" \n", 1, "empty"),
        (b"%PDF\0\0", 1, "a binary file"),
        ("\ufeff# 1 \u00fc\n\na toy question".encode("utf-16"), 0, ""),
        (b"\xff caf\xe9 a toy question", 0, ""),
    ],
)
def test_assignments_of_any_kind(run, tmp_path, content, code, said):
    sheet = tmp_path / "sheet.txt"
    sheet.write_bytes(content)
    found, _, err = run("--sheet", sheet)
    assert found == code
    assert said in err


def test_sheets_with_keys(run, tmp_path):
    code, out, _ = run(
        "toy", "--copies", 3, "--out", tmp_path / "new" / "deep", "--seed", 5, "--as", "md", "--title", "Week 3"
    )
    assert code == 0
    assert "3 sheets" in out
    made = sorted(path.name for path in (tmp_path / "new" / "deep").iterdir())
    assert made == sorted(f"{kind}-00{n}.md" for kind in ("key", "sheet") for n in (1, 2, 3))
    third = toy_problem.make(7).part("a").answer.items["q"].gold
    key, sheet = ((tmp_path / "new" / "deep" / f"{kind}-003.md").read_text() for kind in ("key", "sheet"))
    assert third in key
    assert third not in sheet
    assert sheet.startswith("# Week 3")


def test_sheets_together_and_as_pdf(run, tmp_path):
    found = json.loads(run("toy", "--copies", 2, "--out", tmp_path, "--together", "--json")[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.pdf", "sheets.pdf"]
    assert len(found["files"]) == 2
    assert all(path.read_bytes().startswith(b"%PDF") for path in tmp_path.iterdir())


@pytest.mark.parametrize("form", ["moodle", "qti", "prairielearn", "jsonl"])
def test_exports(run, tmp_path, form):
    found = json.loads(run("--export", form, "--out", tmp_path, "--json")[1])
    assert found["format"] == form
    assert found["files"]
    assert "written: " in run("toy", "--export", form, "--out", tmp_path, "--seed", 1)[1]


OWN = ["--x", "2 3; -1 0; 1 -2", "--wq", "1 0 2; 0 1 -3", "--wk", "0 0 -1; -2 0 1", "--wv", "8 0; 0 9"]


def test_matrices_of_your_own(run, tmp_path):
    found = json.loads(run(*OWN, "--json")[1])
    assert found["summary"]["b"] == "z_{3,1} = 2; z_{3,2} = 8; z_{3,3} = -20"
    first = json.loads(run(*OWN, "--token", 1, "--causal", "--scale", "sqrt", "--json")[1])
    assert "z_{1,2}" not in first["summary"]["b"]
    direct = json.loads(run("--q", "1 1", "--k", "-1 0; 0 1", "--v", "1; 1/2", "--json")[1])
    assert direct["parts"]
    file = tmp_path / "own.toml"
    file.write_text("".join(f'{name.lstrip("-")} = "{rows}"\n' for name, rows in zip(OWN[::2], OWN[1::2], strict=True)))
    assert json.loads(run("--given", file, "--json")[1])["summary"] == found["summary"]
    code, _, err = run("--given", tmp_path / "none.toml")
    assert code == 1
    assert "a file that is there" in err


def test_help_has_an_example(run):
    assert "Example: qkv solve" in run("--help")[1]


@pytest.mark.slow
def test_neither_torch_nor_sympy_is_loaded():
    program = (
        "import sys; sys.argv = ['qkv', 'solve', '--brief']\n"
        "from qkv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'sympy', 'typst', 'numpy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip().endswith("[]")
    assert "Summary of answers" in ended.stdout


def test_a_sheet_of_too_many_questions_says_so(run, tmp_path):
    sheet = tmp_path / "sheet.md"
    sheet.write_text("\n\n".join(f"# {n} Toy\n\na toy question" for n in range(1, 206)))
    code, out, err = run("--sheet", sheet, "--json")
    found = json.loads(out)
    assert code == 0
    assert (len(found["solved"]), found["left_off"]) == (200, 5)
    assert "the first 200 questions were read, 5 more were not" in err
