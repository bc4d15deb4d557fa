"""`qkv grade`: tables in 80 columns, JSON, folders, reports; bad arguments exit with 2."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time

import pytest

from qkv.cli import main

LAWS = r"Let $q$ and $k$ be independent with $q, k \sim N(\mu, \sigma^2 I)$, where $\mu \in \mathbb{R}^d$."
PARTS = r"""(a) Find $E[q^T k]$ in terms of $\mu$, $\sigma$ and $d$.

(b) Compute the softmax of the scores $(0, 0)$.
"""
ANSWERS = r"""**Tutor:** Each of the $d$ terms has the same mean.

Answer (a): $d\mu^2$

Answer (b): $(1/2, 1/2)$

**Student:** Is the mean in (a) one number?

**Tutor:** No, it is not.

Answer (a): $\mu^T\mu$
"""
CHAT = f"**Student:** No code. Problem 3. {LAWS}\n\n{PARTS}\n{ANSWERS}"
SHEET = f"## Problem 3\n\n{LAWS}\n\n{PARTS}"


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


def statuses(found):
    return {row["label"]: row["status"] for row in found["rows"]}


def test_tables_fit_80_columns(run, chat):
    code, out, err = run(chat)
    assert code == 0
    assert not err
    assert max(map(len, out.splitlines())) <= 80
    for words in ("needed correction", "mean read as a scalar", "one shot", "Rule kept: no code", "turn 2"):
        assert words in out


def test_json_has_the_rows(run, chat):
    code, out, _ = run(chat, "--json")
    found = json.loads(out)
    assert code == 0
    first = found["rows"][0]
    assert (first["question"], first["part"], first["status"]) == ("3", "a", "needed correction")
    assert (first["first_right"], first["found_by"]) == (3, "student")
    assert first["mistakes"] == ["mean read as a scalar"]
    assert found["counts"]["one shot"] == 1


def test_questions_from_a_sheet_and_from_the_bank(run, tmp_path):
    path, sheet = tmp_path / "chat.md", tmp_path / "sheet.md"
    path.write_text(f"**Student:** Solve problem 3 please.\n\n{ANSWERS}", encoding="utf-8")
    sheet.write_text(SHEET, encoding="utf-8")
    assert statuses(json.loads(run(path, "--json")[1])) == {}
    wanted = {"3(a)": "needed correction", "3(b)": "one shot"}
    assert statuses(json.loads(run(path, "--sheet", sheet, "--json")[1])) == wanted
    found = statuses(json.loads(run(path, "--exercise", "3=scaling", "--json")[1]))
    assert found == {"3(a)": "needed correction", "3(b)": "never right", "3(c)": "unread"}
    for words in (["--sheet", tmp_path / "nowhere.md"], ["--exercise", "scaling"], ["--exercise", "3=nothing"]):
        code, out, err = run(path, *words)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("option", "words"), [("--insights", "What caught it"), ("--to", "✓ 3")])
@pytest.mark.parametrize("ending", ["md", "html"])
def test_pages(run, chat, tmp_path, option, words, ending):
    page = tmp_path / f"page.{ending}"
    code, _, err = run(chat, option, page)
    assert code == 0
    assert str(page) in err
    text = page.read_text(encoding="utf-8")
    assert "mean read as a scalar" in text
    assert words in text


def test_a_folder_has_a_summary_and_says_what_cannot_be_read(run, chat, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "one.md").write_text(CHAT, encoding="utf-8")
    (folder / "two.md").write_text(CHAT.replace(r"d\mu^2", r"\mu^T\mu"), encoding="utf-8")
    (folder / "three.md").write_text("**Student:** Hello\n\n**Tutor:** Hello", encoding="utf-8")
    (folder / "four.bin").write_bytes(b"\x7fELF")
    code, out, _ = run(folder)
    assert code == 0
    for words in (
        "one.md: 1 one shot, 1 needed correction\n    3(a) mean read as a scalar\n",
        "two.md: 2 one shot",
        "three.md: no question",
        "four.bin",
    ):
        assert words in out
    found = json.loads(run(folder, "--json")[1])
    assert found["summary"]["questions"]["3(a)"] == {
        "one shot": 1, "needed correction": 1, "never right": 0, "unread": 0
    }  # fmt: skip
    assert found["summary"]["models"] == {
        "Tutor": {"one shot": 3, "needed correction": 1, "never right": 0, "unread": 0}
    }
    assert list(found["failed"]) == ["four.bin"]
    page = tmp_path / "report.html"
    assert run(folder, "--to", page)[0] == 0
    assert "two.md" in page.read_text(encoding="utf-8")


def test_an_export_of_several_chats_is_graded_like_a_folder(run, tmp_path):
    def messages(answer):
        asked = f"Problem 3. {LAWS}\n\n{PARTS}"
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": f"Answer (a): {answer}"}]

    right, wrong = messages("$\\mu^T\\mu$"), messages("$d\\mu^2$")
    export = [{"title": "Monday", "messages": right}, {"messages": wrong}, {"title": "Monday", "messages": right}]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export), encoding="utf-8")
    found = json.loads(run(path, "--json")[1])
    named = {each["name"]: statuses(each)["3(a)"] for each in found["chats"]}
    assert named == {
        "export.json: Monday": "one shot",
        "export.json: chat (1)": "never right",
        "export.json: Monday (2)": "one shot",
    }
    code, out, _ = run(path, "--to", tmp_path / "report.html")
    assert code == 0
    assert "export.json: chat (1): 1 never right" in out
    assert '<a href="#chat-1">export.json: chat (1)</a>' in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [SHEET, "We talked about attention.\n\nIt was useful to hear of problem 3.\n"])
@pytest.mark.parametrize("with_sheet", [True, False])
def test_a_worksheet_or_notes_are_called_so_and_nothing_is_judged(run, tmp_path, text, with_sheet):
    path, sheet = tmp_path / "chat.md", tmp_path / "sheet.md"
    path.write_text(text, encoding="utf-8")
    sheet.write_text(SHEET, encoding="utf-8")
    code, out, _ = run(path, *(["--sheet", sheet] if with_sheet else []))
    assert code == 0
    assert "a worksheet or a page of notes" in " ".join(out.split())
    found = json.loads(run(path, "--sheet", sheet, "--json")[1])
    assert set(statuses(found).values()) <= {"unread"}
    assert not [claim for row in found["rows"] for claim in row["claims"]]


def test_fifty_megabytes_are_refused_at_once(run, tmp_path):
    path = tmp_path / "chat.md"
    path.write_bytes(b"User: hello\n\nTutor: hello\n\n" * 1_900_000)
    start = time.perf_counter()
    code, out, err = run(path)
    assert time.perf_counter() - start < 3
    assert (code, out) == (2, "")
    assert "bytes" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("content", [None, b"", b"\0\1\2", b"%PDF-1.5"])
def test_what_cannot_be_graded_ends_with_2(run, tmp_path, content):
    path = tmp_path / "chat"
    if content is not None:
        path.write_bytes(content)
    code, out, err = run(path)
    assert code == 2
    assert not out
    assert err.startswith("qkv: ")
    assert len(err.splitlines()) == 1


def test_an_empty_folder_ends_with_2(run, tmp_path):
    assert run(tmp_path)[0] == 2


def test_a_page_that_cannot_be_written_ends_with_2(run, chat, tmp_path):
    assert run(chat, "--insights", tmp_path / "page.doc")[0] == 2
    assert run(chat, "--to", tmp_path / "no" / "page.md")[0] == 2


def test_the_page_never_takes_the_place_of_the_chat(run, chat):
    link = chat.with_name("link.md")
    link.symlink_to(chat)
    for name in (chat, link):
        assert run(chat, "--insights", name)[0] == 2
        assert run(chat, "--to", name)[0] == 2
    assert chat.read_text(encoding="utf-8") == CHAT


def test_the_standard_input(run, monkeypatch):
    class Typed(io.StringIO):
        buffer = io.BytesIO(CHAT.encode())

    monkeypatch.setattr(sys, "stdin", Typed())
    assert statuses(json.loads(run("-", "--json")[1])) == {"3(a)": "needed correction", "3(b)": "one shot"}


def test_grading_needs_no_torch(chat):
    code = (
        "import sys; from qkv.grading import grade; from qkv.reading import read_chat; "
        "print(len(grade(read_chat(sys.argv[1])).rows), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(chat)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "2 False", done.stderr


@pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning")
def test_other_readers(run, chat, tmp_path, monkeypatch):
    from qkv.reading import from_quotes, read_chat, record

    (tmp_path / "claims").mkdir()
    row = {"turn": 1, "question": "3", "part": "a", "quote": r"$d\mu^2$", "claim": r"d\mu^2", "anchor": "answer"}
    (tmp_path / "sheet.md").write_text(SHEET, encoding="utf-8")
    from qkv.grading import from_sheet

    found = from_quotes(read_chat(chat), from_sheet(tmp_path / "sheet.md"), [row])
    record(tmp_path / "claims" / "chat.jsonl", read_chat(chat), found, reader="a person")
    for source in (tmp_path / "claims", tmp_path / "claims" / "chat.jsonl"):
        code, out, _ = run(chat, "--sheet", tmp_path / "sheet.md", "--reader", f"replay:{source}", "--json")
        rows = json.loads(out)["rows"]
        assert code == 0
        assert [len(each["claims"]) for each in rows] == [1, 0]
    code, _, err = run(chat, "--reader", f"replay:{tmp_path / 'sheet.md'}")
    assert (code, "--reader: got sheet.md (" in err) == (2, True)
    code, _, err = run(chat, "--reader", "nosuch/model")
    assert (code, "--reader: got 'nosuch/model'" in err) == (2, True)


@pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning")
def test_a_language_model_as_reader_prints_progress_and_what_it_used(run, chat, tmp_path, monkeypatch):
    pytest.importorskip("inspect_ai")
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def reply(*_):
        output = ModelOutput.from_content("mockllm/model", '{"claims": []}')
        return output.model_copy(update={"usage": ModelUsage(input_tokens=1000, output_tokens=20, total_tokens=1020)})

    model = get_model("mockllm/model", custom_outputs=reply, memoize=False)
    monkeypatch.setattr("qkv.cli.evaluate.model_named", lambda name, arguments, option: model)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    code, out, err = run(chat, "--reader", "mockllm/model", "--json")
    assert code == 0
    assert err.splitlines()[-1] == "read 2 of 2 turns; 4,000 tokens read, 80 written"
    assert json.loads(out)["used"]["input"] == 4000
    code, out, err = run(chat, "--reader", "mockllm/model", "--json")
    assert err.splitlines()[-1] == "read 2 of 2 turns; 0 tokens read, 0 written, 4 replies from the cache"
