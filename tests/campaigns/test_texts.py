"""The campaigns over texts and files: a few hundred inputs of each, and faults that they detect."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

import qkv
from campaigns import checkpoints, mathematics, transcripts, trials
from campaigns.broken_files import TRAP
from campaigns.ledger import ROOT
from campaigns.maths_texts import SYMBOLS, VALID, grafted, mutated, whole_pieces
from campaigns.reached import Reached
from campaigns.trials import TooLong, Trial, gathered, try_all
from qkv.maths import parse


@pytest.mark.slow
@pytest.mark.parametrize(("campaign", "count"), [(mathematics, 400), (transcripts, 300), (checkpoints, 250)])
def test_a_few_hundred_inputs_are_read_or_refused(campaign, count, monkeypatch):
    monkeypatch.setattr(trials, "FIRST", 3)
    batch = campaign.run(11, count)
    figures = gathered([batch.figures, batch.figures])
    assert batch.done == count
    assert sum(batch.figures["outcomes"].values()) == count
    assert figures["inputs"] == 2 * count
    assert 0.1 < figures["refused_share"] < 0.98
    assert 200 < figures["lines"] <= figures["lines_of_the_files"]
    assert figures["slowest"][0][0] <= trials.SECONDS


@pytest.mark.slow
@pytest.mark.parametrize(("thrown", "words"), [(KeyError("a name"), "KeyError"), (RecursionError(), "RecursionError")])
def test_a_parser_that_raises_something_else_is_a_finding(monkeypatch, thrown, words):
    def broken(text: str, symbols: object) -> None:
        if "mu" in text:
            raise thrown
        parse(text, SYMBOLS)

    monkeypatch.setattr("campaigns.maths_texts.parse", broken)
    with pytest.raises(AssertionError, match=words) as caught:
        mathematics.run(0, 100)
    assert "parse: '" in str(caught.value)
    assert "mu" in str(caught.value)


def test_a_span_outside_the_text_is_a_finding(monkeypatch):
    def broken(text: str, symbols: object) -> None:
        raise qkv.errors.Unreadable("a reason", text, (0, len(text) + 2))

    monkeypatch.setattr("campaigns.maths_texts.parse", broken)
    with pytest.raises(AssertionError, match="check"):
        mathematics.run(0, 10)


def test_a_turn_that_cannot_be_saved_is_a_finding(monkeypatch):
    turn = qkv.reading.Turn(0, "tutor", "\ud800")
    monkeypatch.setattr(transcripts, "read_chat", lambda *source, **named: qkv.reading.Chat("", "plain", (turn,)))
    with pytest.raises(AssertionError, match="UnicodeEncodeError"):
        transcripts.run(0, 50)


def test_a_cache_that_differs_from_its_file_is_a_finding(monkeypatch):
    def other(path):
        cache = load(path)
        if cache.length:
            cache.crop(1)
        return cache

    load = qkv.KVCache.load
    reader = checkpoints.READERS["cache"]._replace(load=other)
    monkeypatch.setitem(checkpoints.READERS, "cache", reader)
    with pytest.raises(AssertionError):
        checkpoints.run(0, 10)


@pytest.mark.slow
@pytest.mark.parametrize("action", [lambda path: path.with_name("more").write_text("x"),
                                  lambda path: __import__("subprocess").run(["true"], check=True),
                                  lambda path: __import__("pickle").loads(TRAP)])  # fmt: skip
def test_a_loader_that_does_something_is_a_finding(monkeypatch, action):
    reader = checkpoints.READERS["machine"]._replace(load=action)
    monkeypatch.setitem(checkpoints.READERS, "machine", reader)
    with pytest.raises(AssertionError, match="a file caused"):
        checkpoints.run(0, 10)


def always(given: object):
    return lambda chance, pool: Trial("kind", given)


@pytest.mark.slow
def test_an_input_that_takes_too_long_is_a_finding_by_its_processor_time():
    def slow(trial: Trial) -> bool:
        until = time.process_time() + 60
        while time.process_time() < until:
            pass
        return True

    before = time.process_time()
    with pytest.raises(AssertionError, match=TooLong.__name__):
        try_all(0, 1, always("x"), slow, (), seconds=0.2 / trials.SLOWER)
    assert time.process_time() - before < 30

    def waiting(trial: Trial) -> bool:
        time.sleep(0.3)
        return True

    assert try_all(0, 1, always("x"), waiting, (), seconds=0.2 / trials.SLOWER).done == 1


HUNGRY = """
from campaigns.trials import Trial, try_all
def large(trial):
    return len(b"x" * trial.given) > 0
print(try_all(0, 3, lambda chance, pool: Trial("kind", 90 << 20), large, ()).done)
try_all(0, 3, lambda chance, pool: Trial("kind", 300 << 20), large, ())
"""


@pytest.mark.slow
def test_an_input_that_takes_too_much_memory_is_a_finding():
    """In a new process, started by a shell: a child inherits the peak memory of its parent."""
    shell = ["sh", "-c", '"$0" -c "$1"; exit', sys.executable, HUNGRY]
    ended = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ended.stdout == "3\n"
    assert "TooLarge" in ended.stderr
    assert f"kind: {300 << 20}" in ended.stderr


def test_a_batch_reports_several_faults():
    def faults(trial: Trial) -> bool:
        return {"a": one, "b": other}[trial.given]()

    def one() -> bool:
        raise KeyError("first")

    def other() -> bool:
        raise IndexError("second")

    with pytest.raises(AssertionError) as caught:
        try_all(0, 50, lambda chance, pool: Trial("kind", chance.choice("ab")), faults, ())
    assert "first" in str(caught.value)
    assert "second" in str(caught.value)


def test_new_lines_are_detected():
    reached = Reached(("maths",))
    news = []
    for text in ("x", "x", "1/x", "x + 1/x", "(("):
        with reached:
            mathematics.check(text)
        news.append(reached.new)
    assert news[0]
    assert news[2]
    assert 50 < len(reached.lines) < reached.lines_of_files()


def test_pieces_are_whole():
    draw = random.Random(0)
    for text in VALID:
        for start, stop in whole_pieces(text):
            piece = text[start:stop]
            assert piece.count("{") == piece.count("}") or piece in ("\\{", "\\}")
    assert grafted(draw) not in VALID
    assert len({mutated(draw, ("x",)) for _ in range(20)}) > 10
