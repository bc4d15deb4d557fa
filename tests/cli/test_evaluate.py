"""`qkv evaluate`: the table and JSON for Inspect's mock model; errors are one line."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qkv.cli.evaluate as command
from qkv.cli import main
from qkv.grading import inspect_task
from qkv.grading.dialogue import opening
from tests.helpers.examined_toy import firm, lost, make, mock, slow

pytestmark = [
    # Inspect's own: what it gives to tenacity, and streams that it leaves to the collector.
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """(exit code, stdout, stderr) of the command in this process; the bank is the toy."""
    monkeypatch.setattr(inspect_task, "names", lambda: ("toy",))
    monkeypatch.setattr(inspect_task, "named", lambda name, seed=None: make(seed, name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def evaluated(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "evaluate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return evaluated


@pytest.fixture
def mocked(run, monkeypatch):
    """The same with a mock model of a given behaviour and two variants."""

    def evaluated(behave, *words):
        monkeypatch.setattr(command, "model_named", lambda name, args: mock([make(0), make(1)], behave))
        return run("--model", "mockllm/model", "--seeds", "2", *words)

    yield evaluated
    gc.collect()


@pytest.mark.slow
def test_the_table_fits_a_terminal_and_says_what_failed(mocked, tmp_path):
    def breaks(problem, said):
        if problem.seed == 1:
            raise RuntimeError("the [line] is dead")
        return slow(problem, said)

    code, out, err = mocked(breaks, "--log-dir", str(tmp_path / "kept"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "mockllm/model: 1 conversation, checked by qkv.maths"
    assert " ".join(lines[2].split()) == "exercise parts one shot corrected never unread corrections resisted"
    assert " ".join(lines[3].split()) == "toy 3 33 % 67 % 0 % 0 % 1.00 100 %"
    assert max(map(len, lines[:-1])) <= 80
    assert "1 failed and are not counted, toy/1 with: " in " ".join(out.split())
    assert "the [line] is dead" in " ".join(out.split())
    assert list((tmp_path / "kept").iterdir())


@pytest.mark.slow
def test_nothing_but_failures_is_an_error(mocked):
    def breaks(problem, said):
        raise RuntimeError("no connection")

    code, out, err = mocked(breaks)
    assert (code, out) == (1, "")
    assert err.startswith("qkv: every conversation failed, the first with: ")
    assert "no connection" in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_json_has_the_counts_the_rows_and_the_mistakes(mocked):
    code, out, err = mocked(lost, "--limit", "1", "--json", "--corrections", "1")
    assert (code, err) == (0, "")
    found = json.loads(out)["runs"]["none"]
    assert found["exercises"]["toy"] == found["all"]
    assert (found["all"]["parts"], found["all"]["one_shot"], found["all"]["never"]) == (3, 1, 2)
    assert found["all"]["resistance"] is None
    assert found["mistakes"] == {"scaling where none is asked": 1}
    statuses = [(row["exercise"], row["seed"], row["part"], row["status"]) for row in found["rows"]]
    assert statuses == [("toy", 0, "a", "never right"), ("toy", 0, "b", "one shot"), ("toy", 0, "c", "never right")]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--model", "nonsense"], "--model: got 'nonsense'"),
        (["--model", "nowhere/at-all"], "PROVIDER/MODEL"),
        (["--model", "mockllm/model", "-M", "device"], "-M: got 'device'"),
        (["--model", "mockllm/model", "--corrections", "5"], "--corrections"),
        (
            ["--model", "mockllm/model", "--tools", "hammer"],
            "--tools: got 'hammer', wanted 'none' or 'compute' or 'qkv' or 'both'",
        ),
        (["--model", "mockllm/model", "--to", "report.doc"], "--to: got 'report.doc'"),
        ([], "--model"),
    ],
)
def test_wrong_words_end_with_2(run, words, part):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert part in err
    assert "Traceback" not in err


def test_an_exercise_that_there_is_not_is_refused(run, monkeypatch):
    from qkv.exercises.bank import named

    monkeypatch.setattr(inspect_task, "named", named)
    code, out, err = run("--model", "mockllm/model", "--exercises", "nothing")
    assert (code, out) == (2, "")
    assert "'nothing'" in err


def test_without_inspect_the_extra_is_named():
    program = (
        "import sys; sys.modules['inspect_ai'] = None\n"
        "sys.argv = ['qkv', 'evaluate', '--model', 'a/b']\n"
        "from qkv.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "pip install 'qkv[grading]'" in ended.stderr


@pytest.mark.slow
def test_a_model_with_tools_calls_the_real_server_and_both_runs_stand_side_by_side(run, monkeypatch, tmp_path):
    """Without tools the model errs in part c; with them it asks qkv for the moments first, and is right."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    seen = []
    known = {opening(make(0)): make(0)}

    def reply(messages, tools, tool_choice, config):
        said = [message.text for message in messages if message.role == "user"]
        results = [message.text for message in messages if message.role == "tool"]
        if tools and not results:
            laws = {"u": "N(0, I)", "w": "N(0, I)"}
            output = ModelOutput.for_tool_call("mockllm/model", "moments", {"expression": "u^T w", "laws": laws})
        else:
            seen.append((sorted(tool.name for tool in tools), results))
            output = ModelOutput.from_content("mockllm/model", (firm if results else lost)(known[said[0]], said))
        output.usage = ModelUsage(input_tokens=3, output_tokens=2, total_tokens=5)
        return output

    def mocked(name, args):
        return get_model("mockllm/model", custom_outputs=reply, memoize=False)

    monkeypatch.setattr(command, "model_named", mocked)
    page = tmp_path / "report.html"
    words = ["--model", "mockllm/model", "--seeds", "1", "--to", str(page), "--json"]
    code, out, err = run(*words, "--tools", "none,compute,qkv")
    assert code == 0, err
    runs = json.loads(out)["runs"]
    rates = {name: each["all"]["one_shot_rate"] for name, each in runs.items()}
    assert rates == {"none": pytest.approx(1 / 3), "compute": 1, "qkv": 1}
    assert {name: each["calls"] for name, each in runs.items()} == {
        "none": {}, "compute": {"moments": 1}, "qkv": {"moments": 1}
    }  # fmt: skip
    assert all(each["tokens"]["input"] >= 3 for each in runs.values())
    offered = [set(names) for names, _ in seen]
    assert set() in offered
    assert any("solve_exercise" in names for names in offered)
    assert any("moments" in names and not {"solve_exercise", "check_answer"} & names for names in offered)
    assert all("d" in results[0] for names, results in seen if names)
    text = page.read_text(encoding="utf-8")
    assert "with compute" in text
    assert "without tools" in text
    code, out, _ = run(*words[:-1], "--tools", "both")
    assert " ".join(out.split()).count("with qkv") == 1
    assert "tools called: moments (1)" in " ".join(out.split())
    assert max(map(len, out.splitlines()[:5])) <= 80
    gc.collect()


@pytest.mark.slow
def test_few_servers_run_at_once(run, monkeypatch):
    """Inspect's client of each holds one of 40 threads that everything else needs too: with more, all would wait."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    seen = []

    def reply(messages, tools, tool_choice, config):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        seen.append(sum(b"mcp" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children))
        output = ModelOutput.from_content("mockllm/model", "Answer (a): 1")
        output.usage = ModelUsage(input_tokens=3, output_tokens=2, total_tokens=5)
        return output

    model = get_model("mockllm/model", custom_outputs=reply, memoize=False)
    monkeypatch.setattr(command, "model_named", lambda name, args: model)
    monkeypatch.setattr(inspect_task, "MOST_SERVERS", 2)
    code, out, err = run("--model", "mockllm/model", "--seeds", "7", "--tools", "compute", "--json")
    assert code == 0, err
    assert json.loads(out)["runs"]["compute"]["conversations"] == 7
    assert set(seen) <= {1, 2}
    gc.collect()
