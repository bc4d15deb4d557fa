"""Untrusted texts and figures: answers, transcripts, numbers in files, names. None is executed, and none takes long."""

import contextlib
import csv
import io
import json
import pickle
import time
import zipfile

import pytest

from qkv.cost.communication import write_points
from qkv.cost.configs import read_config
from qkv.cost.machine import Machine
from qkv.errors import OptionError, QkvError
from qkv.exercises import Exercise
from qkv.exercises.bank import named
from qkv.exercises.checking import check
from qkv.grading import grade
from qkv.maths import compare
from qkv.reading import read_chat
from tests.helpers.cli_calls import called

PATIENCE = 20.0  # seconds of a processor; each takes one, and the first that needs transformers five
STEERING = set("\x1b\x07\x9b\u202e")
STEERED = "\x1b[31mEVIL\x07\x9b2J\u202e"
SYMBOLS = {"x": "scalar", "d": "natural", "q": "vector[d]"}


@pytest.fixture(autouse=True)
def in_time():
    began = time.process_time()
    yield
    assert time.process_time() - began < PATIENCE


# Answers


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "9^{9^{9^{9}}}",
        "((9^9)^9)^9",
        "10^(10^(10^10))",
        "x^{9^{9^9}}",
        "(((x+1)^100+1)^100+1)^100",
        "2^{-9^{9^9}}",
        "exp(exp(exp(exp(9))))",
        "1e999999999",
        "(2/3)^(10^7)",
        r"\sum_{i=1}^{10^{12}} i^2",
        r"\prod_{i=1}^{10^{9}} i",
        "(" * 900 + "x" + ")" * 900,
        "x^" * 900 + "x",
        r"\frac{1}" * 200 + "x",
        "-" * 1999 + "1",
        "9" * 1999,
        "__import__('os').system('touch /tmp/sprung')",
        "(lambda: x)()",
        "x if True else exit()",
        r"\input{/etc/passwd}",
        r"\write18{id}",
        "{x.__class__.__mro__}",
        "\0",
        "x" * 10**6,
    ],
)
def test_no_answer_is_run_and_none_takes_long(text):
    """Towers of powers are not multiplied out; Python, shell and TeX are undeclared letters."""
    for gold in ("x", "9", r"\frac{1}{3}"):
        assert not compare(gold, text, SYMBOLS)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["(a) ", "= ", "d mu^2 ", "because ", "1, ", "0.", "```\n", "| ", "[1,2],", "or "])
def test_long_answers_to_a_question_of_the_bank_end(unit):
    assert not check(named("scaling"), "a", unit * (20_000 // len(unit)))


# Transcripts


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    ["Student: ", "Problem 1\n", "(a) ", "a: b\n", "```\n", "<!--", "<p>", "&amp;", "> ", "**", "$", "| a ", "1. ",
     "\t", "\\begin{matrix}", "<think>", "Why? ", "E[q^T k] = "],
)  # fmt: skip
def test_no_transcript_makes_reading_blow_up(unit):
    """Four times as long takes about four times as long, and not sixteen."""
    took = []
    for length in (10_000, 40_000):
        began = time.process_time()
        with contextlib.suppress(QkvError):
            said = unit * (length // len(unit))
            chat = read_chat(f"Student: (a) What is E[q^T k]?\n\nTutor: {said}\n\nStudent: d")
            grade(chat)
            grade(chat, {"1": named("scaling")})
        took.append(time.process_time() - began)
    assert took[1] < 0.5 or took[1] < 10 * took[0], took


@pytest.mark.parametrize("text", ["[" * 500_000, '{"messages":' * 100_000, '[{"role": "user", "content": ' * 50_000])
def test_json_of_any_depth_is_no_crash(text):
    with contextlib.suppress(QkvError):
        assert not grade(read_chat(text)).rows


def test_an_archive_is_never_unpacked(tmp_path):
    """A bomb of a gigabyte in a megabyte is a binary file, and no more is read of it."""
    packed = tmp_path / "chat.md"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("chat.md", bytes(1 << 20))
    for data in (packed.read_bytes(), b"\x1f\x8b\x08" + bytes(100), pickle.dumps("Student: hi")):
        packed.write_bytes(data)
        found = called("grade", str(packed))
        assert found.returncode != 0
        assert "Traceback" not in found.stderr


# What is printed


@pytest.fixture
def chat(tmp_path):
    text = f"Student: problem 1 {STEERED}: what is E[q^T k]?\n\nTutor {STEERED}: d mu^2 {STEERED}\n\nStudent: {STEERED}"
    path = tmp_path / f"chat{STEERED}.md"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def config(tmp_path):
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    folder = tmp_path / f"=cmd|' -C calc'!A0{STEERED}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    return folder


def test_untrusted_text_does_not_control_the_terminal(chat, config, tmp_path):
    broken = tmp_path / "config.json"
    broken.write_text(json.dumps({"model_type": STEERED}))
    for words in (
        ("grade", str(chat)),
        ("grade", "--json", str(chat)),
        ("grade", str(chat) + "nowhere"),
        ("plan", "--config", str(config)),
        ("plan", "--json", "--config", str(config)),
        ("plan", "--csv", "--config", str(config)),
        ("plan", "--config", str(broken)),
        ("plan", "--config", str(config) + "nowhere"),
        ("check", f"x{STEERED}", "--gold", "x", "--let", "x: scalar"),
        ("check", f"x{STEERED}", "--gold", "x", "--let", "x: scalar", "--json"),
        ("check", "x", "--gold", "x", "--let", f"x{STEERED}: scalar"),
        ("check", "scaling", "a", f"d{STEERED}", "--json"),
        ("solve", f"scaling{STEERED}"),
        ("prove", f"mean{STEERED}"),
        ("generate", str(config), "--prompt", "x"),
    ):
        found = called(*words)
        assert found.stdout + found.stderr
        assert not STEERING & set(found.stdout + found.stderr), words


def test_json_means_the_same_where_it_is_spelt_otherwise(chat):
    """What steers is escaped, and comes back when it is read."""
    found = json.loads(called("check", f"x{STEERED}", "--gold", "x", "--let", "x: scalar", "--json").stdout)
    assert found["answer"] == f"x{STEERED}"


def test_a_spreadsheet_takes_no_name_for_a_formula(config):
    rows = list(csv.reader(io.StringIO(called("plan", "--csv", "--config", str(config)).stdout)))
    assert len(rows) > 20
    assert all(row[0].startswith("'=cmd") for row in rows[1:])
    for row in rows:
        assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in row)
        assert all(float(cell) <= 0 for cell in row if cell.startswith("-"))


# Records in files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("given.toml", "x = " + "[" * 100_000),
        ("given.toml", "a." * 200_000 + "b = 1"),
        ("given.toml", "[" + "a." * 200_000 + "b]"),
        ("given.toml", f"x = {'9' * 5000}"),
        ("given.toml", "x = [[1e999999]]"),
        ("given.toml", "x = ''' + '''"),
        ("given.json", "[" * 100_000),
        ("given.json", '{"x": [[' + "9" * 5000 + "]]}"),
        ("given.json", '{"givens": [{"role": "__import__", "value": 1}]}'),
        ("given.json", '{"asked": [{"quantity": 7}]}'),
    ],
)
def test_records_that_are_none_are_refused_in_time(tmp_path, name, text):
    """A name of 200,000 dotted parts took tomllib minutes and four gigabytes."""
    (tmp_path / name).write_text(text)
    with pytest.raises(QkvError):
        Exercise.load(tmp_path / name)


# Figures of a machine


@pytest.fixture
def machine():
    roofs = {"read.memory": 1e10, "multiply.float32.square": 5e10}
    return Machine("a processor", 2, 2, 8 << 30, "2", "avx2", "today", roofs)


@pytest.mark.parametrize("change", [{"name": STEERED}, {"isa": STEERED}, {"errors": {STEERED: 0.1}}])
def test_figures_with_names_that_steer_are_refused(machine, tmp_path, change):
    path = machine.store(tmp_path / "machine.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(OptionError, match="qkv calibrate"):
        Machine.read(path)


def test_figures_follow_no_link_that_waits_for_them(machine, tmp_path, monkeypatch):
    """Who may write into the folder must not choose what else is overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for pid in range(20):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        for name in ("machine.json", "parallel.json"):
            link = tmp_path / f"{name}.{pid}"
            link.symlink_to(victim)
        machine.store(tmp_path / "machine.json")
        write_points([], tmp_path / "parallel.json")
    assert victim.read_text() == "mine"
    assert Machine.read(tmp_path / "machine.json").name == "a processor"


@pytest.mark.parametrize("layers", [10**12, 2**63 - 1])
def test_a_config_of_any_number_of_layers_is_planned_or_refused_at_once(tmp_path, layers):
    sizes = {"n_embd": 768, "n_layer": layers, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", **sizes, "auto_map": {"AutoConfig": "e.C"}})
    )
    assert read_config(tmp_path).layers == layers
    found = called("plan", "--json", "--config", str(tmp_path))
    assert found.returncode == 0 or found.stderr.startswith("qkv: ")
    assert "Traceback" not in found.stderr
