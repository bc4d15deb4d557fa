"""The checker, Math-Verify and SymPy's parser: probes, labelled pairs, fresh pairs, attacks, certificates, time.

The labelled pairs (`tests/maths/labelled`) have served to develop the checker. The fresh ones (`tests/maths/fresh`) and
the attacks (`tests/maths/attacks.toml`, pairs that are not equal) were written by authors who had not seen its code,
and committed before it first ran on them; docs/maths.md has the figures of that first run. A peer answers yes or no, so
it only has to say whether the two are equal; a text that it refuses counts as no. qkv has to give the right one of five
verdicts. Every certificate of a labelled pair is replayed, and changed certificates must be refused.

`python -m benchmarks checker`. About four minutes, most of them the peers'.
"""

from __future__ import annotations

import random
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
from qkv.maths.comparison.trial import differ
from qkv.maths.replay import Refused, replay
from qkv.maths.tree import Certificate
from tests.helpers.certificates import mutations

from .decode import bar
from .harness import report

LABELLED = Path("tests/maths/labelled")
FRESH = Path("tests/maths/fresh")
ATTACKS = Path("tests/maths/attacks.toml")
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


def pairs_in(*paths: Path) -> list[Pair]:
    """Every pair of some files, in their order; attacks are pairs that are not equal."""
    read = [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]
    entries = [entry for found in read for entry in (*found.get("pair", ()), *found.get("attack", ()))]
    return [Pair(e["id"], e["gold"], e["answer"], e["symbols"], e.get("kind", "different")) for e in entries]


@dataclass(frozen=True)
class Judged:
    """The verdicts on many pairs, with the seconds that each took."""

    pairs: list[Pair]
    verdicts: list[Verdict]
    seconds: list[float]

    @classmethod
    def of(cls, pairs: list[Pair]) -> Judged:
        found = [timed(pair.gold, pair.answer, pair.symbols) for pair in pairs]
        return cls(pairs, [verdict for verdict, _ in found], [seconds for _, seconds in found])

    def count(self, wanted: Callable[[Pair, Verdict], bool]) -> int:
        return sum(wanted(pair, verdict) for pair, verdict in zip(self.pairs, self.verdicts, strict=True))

    @property
    def right(self) -> int:
        return self.count(lambda pair, verdict: verdict.kind == pair.kind)

    @property
    def unread(self) -> int:
        return self.count(lambda pair, verdict: verdict.kind == "unreadable" != pair.kind)

    @property
    def wrongly_proved(self) -> int:
        return self.count(lambda pair, verdict: verdict.kind != pair.kind and verdict.evidence == "proved")


def certificates(verdicts: list[Verdict]) -> list[Certificate]:
    found = [verdict.certificate for verdict in verdicts]
    return [one for each in found if each is not None for one in (each if isinstance(each, tuple) else (each,))]


def accepted(certificate: Certificate) -> bool:
    try:
        replay(certificate)
    except Refused:
        return False
    return True


def changed_certificates(proofs: list[Certificate]) -> list[Certificate]:
    """Changed certificates, without those whose changed claim may still be true."""
    draw, found = random.Random(1), []
    for proof in proofs:
        for changed in mutations(proof, draw, 5):
            same_claim = (changed.gold, changed.answer) == (proof.gold, proof.answer)
            if same_claim or differ(changed.gold, changed.answer):
                found.append(changed)
    return found


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

    labelled = Judged.of(pairs_in(*sorted(LABELLED.glob("*.toml"))))
    fresh = Judged.of(pairs_in(*sorted(FRESH.glob("*.toml"))))
    attacks = Judged.of(pairs_in(ATTACKS))
    columns, shown, data = ["pairs", "checker", "right", "of", "unread"], [], []
    for title, judged in (("labelled", labelled), ("fresh", fresh)):
        shown.append([title, "qkv", str(judged.right), str(len(judged.pairs)), str(judged.unread)])
        for name, peer in peers.items():
            answers = [answer_of(peer, pair.gold, pair.answer) for pair in judged.pairs]
            right = sum(bool(s) == (p.kind == "equal") for s, p in zip(answers, judged.pairs, strict=True))
            shown.append([title, name, str(right), str(len(answers)), str(sum(s is None for s in answers))])
        data.append({"set": title, "right": judged.right, "of": len(judged.pairs)})
    report("checker-pairs", "Labelled and fresh pairs", columns, shown, data)
    wrong = [
        [pair.id, pair.kind, verdict.kind]
        for judged in (labelled, fresh)
        for pair, verdict in zip(judged.pairs, judged.verdicts, strict=True)
        if verdict.kind != pair.kind
    ]
    if wrong:
        report("checker-wrong", "Not as labelled", ["pair", "label", "qkv"], wrong, [])
    proofs = certificates(labelled.verdicts + fresh.verdicts)
    changed = changed_certificates(proofs)
    process = command_seconds()
    seconds = labelled.seconds + fresh.seconds + attacks.seconds
    misjudged = len(fresh.pairs) - fresh.right - fresh.unread
    believed = attacks.count(lambda _, verdict: verdict.kind == "equal" and verdict.evidence == "proved")
    tested = attacks.count(lambda _, verdict: verdict.kind == "equal" and verdict.evidence == "tested")
    figures = [
        bar("probes right", probes_right, ".0f", least=len(rows)),
        bar("labelled pairs right, part", labelled.right / len(labelled.pairs), ".4f", least=1.0),
        bar("fresh pairs", len(fresh.pairs), ".0f", least=300),
        bar("fresh pairs right, part", fresh.right / len(fresh.pairs), ".4f", least=0.93),
        bar("fresh pairs judged wrong, part", misjudged / len(fresh.pairs), ".4f", most=0.02),
        bar("wrong though proved", labelled.wrongly_proved + fresh.wrongly_proved, ".0f", most=0),
        bar("attacks", len(attacks.pairs), ".0f", least=500),
        bar("attacks proved equal", believed, ".0f", most=0),
        bar("attacks tested equal", tested, ".0f", most=0),
        bar("certificates accepted, part", sum(map(accepted, proofs)) / len(proofs), ".4f", least=1.0),
        bar("changed certificates", len(changed), ".0f", least=1000),
        bar("changed certificates accepted", sum(map(accepted, changed)), ".0f", most=0),
        bar("compare, median, ms", statistics.median(seconds) * 1e3, ".1f", most=10.0),
        bar("compare, worst, ms", max(seconds) * 1e3, ".0f", most=1000.0),
        bar("qkv check, a process, median, s", statistics.median(process), ".2f", most=0.5),
    ]
    report("checker", "Figures", ["figure", "value", "bar", ""], figures, [{"seconds": seconds, "process": process}])
