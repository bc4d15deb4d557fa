"""A claim fails if any line of its derivation is changed."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from qkv import theory
from qkv.derivation import Derivation
from qkv.maths import compare
from qkv.theory import Claim

pytestmark = pytest.mark.slow

DERIVED = [name for name in theory.claims() if name != "recall"]  # which has no derivation: it is an experiment
A_LINE = 2  # mutants of a line at most


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Kind and text: the line doubled; each digit one more; each sign flipped; a transpose dropped."""
    yield "doubled", f"2 ({text})"
    for found in re.finditer(r"(?<![_\w{.])\d(?![.\d])", text):
        yield "digit", text[: found.start()] + str(int(found[0]) + 1) + text[found.end() :]
    for found in re.finditer(r"(?<=[\w})\]]) ?([+-]) ?(?=\S)", text):
        turned = " - " if found[1] == "+" else " + "
        yield "sign", text[: found.start()] + turned + text[found.end() :]
    for transposed in ("^T", r"^\top"):
        if transposed in text:
            yield "transpose", text.replace(transposed, "", 1)


def chosen(text: str, place: int) -> list[tuple[str, str]]:
    """No more than `A_LINE`, of as many kinds as there are; which of a kind goes by the line's place."""
    kinds: dict[str, list[str]] = {}
    for kind, mutant in mutants(text):
        kinds.setdefault(kind, []).append(mutant)
    turns = [
        (turn, (number + place) % len(kinds), kind, texts[(turn + place) % len(texts)])
        for number, (kind, texts) in enumerate(kinds.items())
        for turn in range(len(texts))
    ]
    return [(kind, mutant) for _, _, kind, mutant in sorted(turns)[:A_LINE]]


@pytest.mark.parametrize("name", DERIVED)
def test_the_claim_holds(name: str, made: Callable[[str], Claim]) -> None:
    claim = made(name)
    wrong = [
        (line.text, verdict.reason)
        for line, verdict in zip(claim.derivation.steps, claim.checks, strict=True)
        if verdict is not None and verdict.kind != "equal"
    ]
    assert not wrong
    assert [item for item in claim.evidence if not item.holds] == []
    assert claim.holds
    assert claim.derivation.steps


@pytest.mark.parametrize("name", DERIVED)
def test_every_line_matters(name: str, made: Callable[[str], Claim]) -> None:
    claim = made(name)
    tried = set()
    for place, (line, _, symbols) in enumerate(claim.derivation.readings()):
        killed = 0
        for kind, text in chosen(line.text, place):
            if red(claim, place, text, symbols):
                killed += 1
                tried.add(kind)
            else:
                # What means the same is no mutant.
                assert compare(line.text, text, symbols).kind == "equal", f"line {place} may also be {text}"
        assert killed, f"line {place}: {line.text}"
    assert tried == {kind for line in claim.derivation.steps for kind, _ in mutants(line.text)}


def red(claim: Claim, place: int, text: str, symbols: Mapping[str, str]) -> bool:
    """Whether the claim falls with this line: only the checks that the line takes part in are made again."""
    lines = claim.with_line(place, text).derivation.steps
    pairs = [lines[n - 1 : n + 1] for n in (place, place + 1) if n < len(lines) and lines[n].relation != ""]
    return any(not Derivation((replace(a, relation=""), b), symbols).holds for a, b in pairs)
