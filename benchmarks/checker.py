"""The checker, Math-Verify and SymPy's parser: eleven probes, a labelled set, and the time of a verdict.

The labelled pairs (`tests/maths/labelled/*.toml`) were written from the description of the checker, by an author who
had not seen its code, and committed before it first ran on them. A peer answers yes or no, so it only has to say
whether the two are equal; a text that it refuses counts as no. qkv has to give the right one of five verdicts.

`python -m benchmarks checker`. About two minutes, most of them the peers'.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qkv.maths import Verdict, compare

from .decode import bar
from .harness import report

LABELLED = Path("tests/maths/labelled")
PROBES = Path("tests/maths/probes.toml")
PEER_SECONDS = 5
PROCESSES = 9


@dataclass(frozen=True)
class Pair:
    id: str
    gold: str
    answer: str
    symbols: dict[str, str]
    kind: str


def labelled() -> list[Pair]:
    """Every labelled pair, in the order of the files."""
    return [
        Pair(entry["id"], entry["gold"], entry["answer"], entry["symbols"], entry["kind"])
        for path in sorted(LABELLED.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["pair"]
    ]


def math_verify() -> Callable[[str, str], bool | None]:
    from math_verify import parse, verify

    def decide(gold: str, answer: str) -> bool | None:
        left, right = (parse(f"${text}$", raise_on_error=False) for text in (gold, answer))
        return verify(left, right, raise_on_error=False) if left and right else None

    return decide


def sympy_reader() -> Callable[[str, str], bool | None]:
    import sympy
    from sympy.parsing.latex import parse_latex

    def decide(gold: str, answer: str) -> bool | None:
        left, right = (parse_latex(text) for text in (gold, answer))
        return bool(sympy.simplify(left - right) == 0)

    return decide


def answer_of(peer: Callable[[str, str], bool | None], gold: str, answer: str) -> bool | None:
    """A peer's answer; None if it refuses, fails or takes too long."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(PEER_SECONDS)
    try:
        return peer(gold, answer)
    except Exception:  # any exception means no verdict
        return None
    finally:
        signal.alarm(0)


def word(answer: bool | None) -> str:
    return {True: "yes", False: "no", None: "refused"}[answer]


def timed(gold: str, answer: str, symbols: dict[str, str]) -> tuple[Verdict, float]:
    before = time.perf_counter()
    verdict = compare(gold, answer, symbols)
    return verdict, time.perf_counter() - before


def command_seconds() -> list[float]:
    """How long `qkv check` takes as a process, from start to end."""
    command = [sys.executable, "-m", "qkv", "check", r"d\mu^2", "--gold", r"\mu^T\mu", "--let", "mu: vector[d]"]
    took = []
    for _ in range(PROCESSES):
        before = time.perf_counter()
        subprocess.run(command, capture_output=True, check=False)
        took.append(time.perf_counter() - before)
    return took


def run() -> None:
    peers = {"Math-Verify": math_verify(), "SymPy": sympy_reader()}
    probes = tomllib.loads(PROBES.read_text(encoding="utf-8"))
    rows = []
    for probe in probes["probe"]:
        gold, answer = probe["gold"], probe["answer"]
        verdict = compare(gold, answer, probes["symbols"])
        answers = {name: word(answer_of(peer, gold, answer)) for name, peer in peers.items()}
        rows.append([gold, answer, word(probe["equal"]), verdict.kind, *answers.values()])
    probes_right = sum((row[3] == "equal") == (row[2] == "yes") for row in rows)
    columns = ["gold", "answer", "right", "qkv", *peers]
    report(
        "checker-probes", "Eleven probes: equal?", columns, rows, [dict(zip(columns, row, strict=True)) for row in rows]
    )

    pairs = labelled()
    wrong, proved_wrong, seconds = [], 0, []
    for pair in pairs:
        verdict, took = timed(pair.gold, pair.answer, pair.symbols)
        seconds.append(took)
        if verdict.kind != pair.kind:
            wrong.append([pair.id, pair.gold, pair.answer, pair.kind, verdict.kind])
            proved_wrong += verdict.evidence == "proved"
    right_of, refused = {"qkv": len(pairs) - len(wrong)}, {"qkv": 0}
    for name, peer in peers.items():
        answers = [answer_of(peer, pair.gold, pair.answer) for pair in pairs]
        right_of[name] = sum(bool(s) == (pair.kind == "equal") for s, pair in zip(answers, pairs, strict=True))
        refused[name] = sum(s is None for s in answers)
    columns = ["checker", "right", "of", "refused"]
    shown = [[name, str(count), str(len(pairs)), str(refused[name])] for name, count in right_of.items()]
    report("checker-pairs", "Labelled pairs", columns, shown, [{"right": right_of, "refused": refused}])
    if wrong:
        report("checker-wrong", "Not as labelled", ["pair", "gold", "answer", "label", "qkv"], wrong, [])
    process = command_seconds()
    figures = [
        bar("probes right", probes_right, ".0f", least=len(rows)),
        bar("labelled pairs", len(pairs), ".0f", least=400),
        bar("verdicts right, part", right_of["qkv"] / len(pairs), ".4f", least=1.0),
        bar("wrong though proved", proved_wrong, ".0f", most=0),
        bar("compare, median, ms", statistics.median(seconds) * 1e3, ".1f", most=50.0),
        bar("compare, worst, ms", max(seconds) * 1e3, ".0f", most=1000.0),
        bar("qkv check, a process, median, s", statistics.median(process), ".2f", most=0.7),
    ]
    report("checker", "Figures", ["figure", "value", "bar", ""], figures, [{"seconds": seconds, "process": process}])
