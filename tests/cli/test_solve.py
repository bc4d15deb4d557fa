"""`qkv solve`: the bank, records, sheets, questions in words and numbers; what was understood comes first."""

import json
import subprocess
import sys
from io import BytesIO, TextIOWrapper

import pytest

from qkv.cli import main

QUESTION = "A model has d_model = 96 and 8 heads. What is the dimension of each head?"


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process."""

    def command(*words, stdin=""):
        monkeypatch.setattr(sys, "argv", ["qkv", "solve", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


def test_an_exercise_of_the_bank(run):
    code, out, err = run("argmax", "a", "--seed", 3)
    assert (code, err) == (0, "")
    assert "variant 3" in out
    assert "Part (a)" in out
    assert "Part (b)" not in out
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads(run("argmax", "--seed", 3, "--json")[1])
    assert (found["name"], found["seed"], len(found["parts"])) == ("argmax", 3, 2)
    assert len(run("argmax", "--brief")[1]) < len(run("argmax")[1])
    names = [each["name"] for each in json.loads(run("--list", "--json")[1])]
    assert {"argmax", "scaling", "norms"} <= set(names)
    assert all(name in run("--list")[1] for name in names)


def test_a_question_in_words_shows_what_was_understood(run):
    code, out, _ = run(QUESTION)
    assert code == 0
    assert out.index("d_model = 96") < out.index("Answer: 12")
    assert "head width" in out
    assert out.rstrip().endswith("1 solved, 0 refused, 0 not understood")
    assert max(map(len, out.splitlines())) <= 80
    assert run("-", stdin=QUESTION)[1] == out


def test_what_is_not_understood_is_not_answered(run):
    code, out, _ = run("Explain in your own words why the sky is blue and compare it with attention.")
    assert code == 1
    assert "Answer" not in out
    assert "0 solved, 0 refused, 1 not understood" in out
    code, out, _ = run("Compute the attention output for Q = [[1, 0]] and K = [[1, 0]].")
    assert code == 1
    assert "needed and not given" in out
    assert "0 solved, 1 refused" in out


def test_a_record_is_read_printed_and_solved(run, tmp_path):
    text = run(QUESTION, "--record")[1]
    for name, content in (
        ("a.json", text),
        ("a.toml", 'givens = [{role = "scores", value = [0, 0]}]\n[[asked]]\nquantity = "softmax"'),
    ):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        assert run(path)[0] == 0
    record = json.loads(text)
    assert [asked["quantity"] for asked in record["asked"]] == ["head_width"]
    assert "properties" in json.loads(run("--schema")[1])
    (tmp_path / "b.json").write_text('{"asked": 3}', encoding="utf-8")
    code, _, err = run(tmp_path / "b.json")
    assert code == 2
    assert err.count("\n") == 1


def test_a_sheet(run, tmp_path):
    sheet = tmp_path / "sheet.md"
    sheet.write_text(f"# 1 Heads\n\n{QUESTION}\n\n# 2 Words\n\nWhy is attention useful?\n", encoding="utf-8")
    code, out, _ = run(sheet)
    assert code == 0
    assert "1 solved, 0 refused, 1 not understood" in out
    assert run("--sheet", sheet)[1] == out
    found = json.loads(run(sheet, "--json")[1])
    assert [question["understood"] for question in found["questions"]] == [True, False]
    assert found["solved"] == 1
    assert run("--sheet", tmp_path / "none.md")[0] == 2
    assert run(tmp_path / "none.md")[0] == 2


@pytest.mark.parametrize(
    "arguments", [(), ("--causal",), ("--mask", "1 0; 1 1"), ("--token", 2), ("--similarity", "sigmoid")]
)
def test_your_own_numbers(run, arguments):
    torch = pytest.importorskip("torch")
    matrices = {"q": [[1, 0], [2, -1]], "k": [[1, 1], [0, 1]], "v": [[1, 2], [3, 4]]}
    words = [
        word
        for name, rows in matrices.items()
        for word in (f"--{name}", "; ".join(" ".join(map(str, row)) for row in rows))
    ]
    code, out, _ = run(*words, *arguments, "--json")
    assert code == 0
    parts = {part["quantity"]: part["answer"]["value"] for part in json.loads(out)["questions"][0]["parts"]}
    q, k, v = (torch.tensor(rows, dtype=torch.float64) for rows in matrices.values())
    scores = q @ k.T / 2**0.5
    if "--causal" in arguments or "--mask" in arguments:
        scores[0, 1] = -torch.inf
    weights = torch.sigmoid(scores) if "sigmoid" in arguments else torch.softmax(scores, -1)
    wanted = (weights @ v)[1] if "--token" in arguments else weights @ v
    assert torch.allclose(torch.tensor(parts["output"], dtype=torch.float64), wanted)


def test_heads_and_projections(run):
    identity = "1 0; 0 1"
    words = ("--x", identity, "--wq", identity, "--wk", identity, "--wv", "2 0; 0 2", "--heads", 2, "--scale", "none")
    code, out, _ = run(*words, "--json")
    assert code == 0
    output = json.loads(out)["questions"][0]["parts"][-1]["answer"]["value"]
    assert [number for row in output for number in row] == pytest.approx([1.4621172, 1, 1, 1.4621172], rel=1e-6)


def test_files_of_every_kind(run, tmp_path):
    names = [tmp_path / f"a{ending}" for ending in (".md", ".tex", ".html", ".ipynb", ".json")]
    code, out, err = run(QUESTION, *(word for name in names for word in ("--to", name)))
    assert (code, out) == (0, "")
    assert err.count("written:") == len(names)
    assert all(name.stat().st_size > 100 for name in names)


def test_sheets_keys_and_exports(run, tmp_path):
    code, out, _ = run("argmax", "--copies", 2, "--out", tmp_path / "sheets", "--as", "md")
    assert code == 0
    assert "2 sheets" in out
    assert sorted(path.name for path in (tmp_path / "sheets").iterdir()) == [
        "key-001.md", "key-002.md", "sheet-001.md", "sheet-002.md",
    ]  # fmt: skip
    assert run("argmax", "--copies", 2, "--together", "--out", tmp_path / "all", "--as", "md")[0] == 0
    assert len(list((tmp_path / "all").iterdir())) == 2
    assert run("argmax", "--export", "jsonl", "--out", tmp_path / "bank")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("no-such-name",),
        ("argmax", "z"),
        ("argmax", "--sheet", "a.md"),
        ("--scale", "2"),
        ("--q", "one two", "--k", "1"),
        ("--q", "1 0", "--k", "1 0", "--similarity", "cosine"),
        ("argmax", "--copies", 2),
        ("argmax", "--together"),
        ("argmax", "--export", "nothing", "--out", "x"),
    ],
)
def test_wrong_usage_is_one_line(run, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("qkv: ")
    assert err.count("\n") == 1


def test_neither_torch_nor_sympy_is_imported(tmp_path):
    path = tmp_path / "one.md"
    path.write_text(QUESTION, encoding="utf-8")
    program = (
        "import sys; sys.argv = ['qkv', 'solve', sys.argv[1]]\n"
        "from qkv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'sympy'} & set(sys.modules), 'too much is imported'"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Answer: 12" in done.stdout
