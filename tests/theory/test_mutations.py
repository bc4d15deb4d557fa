"""A derivation that says anything else turns its claim red: every line of every claim, written differently."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from qkv import theory
from qkv.maths import compare
from qkv.theory import Claim

DERIVED = [name for name in theory.claims() if name != "recall"]  # which has no derivation: it is an experiment


@pytest.fixture(scope="module")
def made() -> dict[str, Claim]:
    return {}


def claim_called(name: str, made: dict[str, Claim]) -> Claim:
    if name not in made:
        made[name] = theory.claims()[name]()
    return made[name]


def mutants(text: str) -> Iterator[str]:
    """The line doubled; each digit one more; each sign turned; a transpose dropped."""
    yield f"2 ({text})"
    for found in re.finditer(r"(?<![_\w{.])\d(?![.\d])", text):
        yield text[: found.start()] + str(int(found[0]) + 1) + text[found.end() :]
    for found in re.finditer(r"(?<=[\w})\]]) ?([+-]) ?(?=\S)", text):
        turned = " - " if found[1] == "+" else " + "
        yield text[: found.start()] + turned + text[found.end() :]
    if "^T" in text:
        yield text.replace("^T", "", 1)


@pytest.mark.parametrize("name", DERIVED)
def test_the_claim_holds(name: str, made: dict[str, Claim]) -> None:
    claim = claim_called(name, made)
    wrong = [
        (line.text, verdict.reason)
        for line, verdict in zip(claim.derivation, claim.checks, strict=True)
        if verdict is not None and verdict.kind != "equal"
    ]
    assert not wrong
    assert [item for item in claim.evidence if not item.holds] == []
    assert claim.holds
    assert claim.derivation


@pytest.mark.parametrize("name", DERIVED)
def test_every_line_matters(name: str, made: dict[str, Claim]) -> None:
    claim = claim_called(name, made)
    symbols = claim.symbols
    for place, line in enumerate(claim.derivation):
        if line.relation == "":
            symbols = line.symbols or claim.symbols
        killed = 0
        for text in mutants(line.text):
            if not red(claim, place, text, symbols):
                # What means the same is no mutant.
                assert compare(line.text, text, symbols).kind == "equal", f"line {place} may also be {text}"
            else:
                killed += 1
        assert killed, f"line {place}: {line.text}"


def red(claim: Claim, place: int, text: str, symbols: Mapping[str, str]) -> bool:
    """Whether the claim falls with this line: only the checks that the line takes part in are made again."""
    lines = claim.with_line(place, text).derivation
    first = place if lines[place].relation == "" else place - 1
    after = place + 1 < len(lines) and lines[place + 1].relation != ""
    around = (replace(lines[first], relation=""), *lines[first + 1 : place + 1 + after])
    return not Claim("part", "", "", symbols, around).holds
