"""`qkv grade`: tables in 80 columns, JSON, a page for the class; bad arguments exit with 2."""

from __future__ import annotations

import io
import json
import sys

import pytest

from qkv.cli import main

CHAT = r"""# A session

| Question | Performance |
|---|---|
| 3. Scores | One Shot |

**Student:** No code. Problem 3. Let $q, k \in \mathbb{R}^d$ be independent,
$q, k \sim N(\mu, \sigma^2 I)$, $\mu \in \mathbb{R}^d$.
(a) Find $E[q^T k]$.
(b) For $\mu = 0$ and $\sigma = 1$ find $\text{Var}(q^T k)$.
(c) Which $s$ gives $q^T k / s$ the variance 1?

**Tutor:** (a) $d\mu^2$

(b) $d$

(c) $\sqrt{d}$

**Student:** Is the mean in (a) one number?

**Tutor:** No, so (a) is $\mu^T\mu$.
"""


@pytest.fixture
def run(capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command, in this process and in 80 columns."""

    def command(*words):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["qkv", "grade", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.md"
    path.write_text(CHAT, encoding="utf-8")
    return path


def test_tables_fit_80_columns(run, chat):
    code, out, err = run(chat)
    assert code == 0
    assert not err
    assert max(map(len, out.splitlines())) <= 80
    for words in ("needed correction", "mean read as a scalar", "one shot", "differs", "Rule kept: no code"):
        assert words in out


def test_json_has_the_rows(run, chat):
    code, out, _ = run(chat, "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) >= {"rows", "problems", "rules", "author_table", "notes"}
    first = found["rows"][0]
    assert (first["problem"], first["part"], first["status"]) == ("3", "a", "needed correction")
    assert first["first_right_turn"] == 4
    assert first["found_by"] == "student"
    assert first["errors"][0]["name"] == "mean read as a scalar"
    assert first["errors"][0]["turn"] == 2
    assert found["author_table"][0]["remark"] == "differs"


@pytest.mark.parametrize("ending", ["md", "html"])
def test_insights(run, chat, tmp_path, ending):
    page = tmp_path / f"page.{ending}"
    code, _, err = run(chat, "--insights", page)
    assert code == 0
    assert str(page) in err
    assert "mean read as a scalar" in page.read_text(encoding="utf-8")


def test_every_page_that_is_named_is_written(run, chat, tmp_path):
    pages = [tmp_path / "one.md", tmp_path / "two.html"]
    code, _, err = run(chat, "--insights", pages[0], "--insights", pages[1])
    assert code == 0
    for page in pages:
        assert str(page) in err
        assert "mean read as a scalar" in page.read_text(encoding="utf-8")
    assert run(chat, "--insights", pages[0], "--insights", chat)[0] == 2


def test_one_problem_alone(run, chat):
    assert run(chat, "--problem", "scaling", "--json")[0] == 0
    code, _, err = run(chat, "--problem", "9")
    assert code == 2
    assert "there are 3" in err


def test_several_conversations(run, tmp_path):
    said = [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hello"}]
    path = tmp_path / "all.json"
    path.write_text(json.dumps([{"title": "one", "messages": said}, {"title": "two", "messages": said}]))
    found = json.loads(run(path, "--json")[1])
    assert [each["title"] for each in found["conversations"]] == ["one", "two"]
    assert found["rows"] == []


@pytest.mark.parametrize("content", [None, b"", b"\0\1\2", b"%PDF-1.5"])
def test_what_cannot_be_graded_ends_with_2(run, tmp_path, content):
    path = tmp_path / "chat"
    if content is not None:
        path.write_bytes(content)
    code, out, err = run(path)
    assert code == 2
    assert not out
    assert err.startswith("qkv: transcript: got")
    assert run(tmp_path)[0] == 2


def test_a_page_that_cannot_be_written_ends_with_2(run, chat, tmp_path):
    assert run(chat, "--insights", tmp_path / "page.doc")[0] == 2
    assert run(chat, "--insights", tmp_path / "no" / "page.md")[0] == 2


def test_grading_needs_no_torch(chat):
    import subprocess

    code = "import sys; from qkv.tutor import grade, read; grade(read(sys.argv[1])); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(chat)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "False", done.stderr


def test_the_page_never_takes_the_place_of_the_transcript(run, chat):
    link = chat.with_name("link.md")
    link.symlink_to(chat)
    for name in (chat, link):
        code, _, err = run(chat, "--insights", name)
        assert code == 2
        assert "TRANSCRIPT" in err
    assert chat.read_text(encoding="utf-8") == CHAT


def test_a_transcript_that_is_piped_in(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CHAT.encode())))
    code, out, _ = run("-", "--json")
    assert code == 0
    assert [row["part"] for row in json.loads(out)["rows"]] == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["{}", "[]", "null", '["a", "b"]', '[{"role": "user", "content', '{"x": {"y": 1}}'])
def test_json_that_is_no_conversation(run, tmp_path, text):
    path = tmp_path / "chat.json"
    path.write_text(text, encoding="utf-8")
    code, _, err = run(path)
    assert code == 2
    assert "JSON" in err
