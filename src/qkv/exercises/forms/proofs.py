"""Answers that are proofs: a chain of equalities or inequalities from one side of the claim to the other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ...errors import MathsError
from ...maths import Verdict, compare, holds, latex, parse
from ..findings import Finding
from ..outcome import Outcome, right, unread
from ..solving import Answer
from .statement import PATTERNS, plain_text, split_outside, trimmed
from .values import Context

LONGEST = 4_000  # characters of a proof

_WRITTEN = {"≤": r"\\leq?(?![A-Za-z])|<=", "≥": r"\\geq?(?![A-Za-z])|>=", "=": r"\\equiv(?![A-Za-z])|≡"}
_SIGNS = {"=": "=", "≤": "<=", "≥": ">=", "<": "<", ">": ">"}


class Link(NamedTuple):
    before: str
    relation: str
    after: str


def judge_proof(answer: Answer, text: str, context: Context) -> Outcome:
    """Every link by `qkv.maths`; a refuted link is wrong and named, one that cannot be read leaves the proof unread."""
    if not text.strip() or len(text) > LONGEST:
        return unread("no_answer" if not text.strip() else "too_long", size=len(text), most=LONGEST)
    if (taken_back := PATTERNS["taken_back"].search(PATTERNS["formula"].sub(" ", text))) is not None:
        return unread("hedged", words=taken_back[0])
    symbols = {**answer.derivation.symbols, **answer.symbols}
    chains = _chains(PATTERNS["aligned"].sub(" ", plain_text(text)))
    verdicts = {link: _verdict(link, symbols) for chain in chains for link in chain}
    if not verdicts:
        return unread("no_chain")
    sides = _sides(answer)
    # Where nothing ties the names of the claim together, a true link may seem refuted.
    tied = bool(sides) and compare(sides[0][0], sides[-1][0], symbols).kind == "equal"
    for link, verdict in verdicts.items():
        if tied and verdict.kind == "different" and verdict.evidence == "refuted":
            return Outcome("wrong", (Finding("link", link._asdict()),), verdict=verdict)
    for link, verdict in verdicts.items():
        if verdict.kind != "equal":
            return unread("link_unread", **link._asdict())
    return _complete(answer, chains, symbols)


def _complete(answer: Answer, chains: list[list[Link]], symbols: Mapping[str, str]) -> Outcome:
    """Whether links that hold lead from one side of the claim to the other, with a step between them."""
    sides = [{_form(text, symbols) for text in side} for side in _sides(answer)]
    joined: list[set[str]] = []
    for chain in chains:
        members = {_form(text, symbols) for link in chain for text in (link.before, link.after)}
        touching = [each for each in joined if each & members]
        joined = [each for each in joined if not each & members] + [members.union(*touching)]
    for members in joined:
        if sides and all(side & members for side in sides):
            between = members - set().union(*sides)
            return right("proof") if between else Outcome("incomplete", (Finding("restated"),))
    return Outcome("incomplete", (Finding("proof_open", {"claim": answer.text}),))


def _sides(answer: Answer) -> list[list[str]]:
    """Both sides of the claim, each with other ways to write it."""
    members, _ = _members(answer.text)
    steps = [step.text for step in answer.derivation.steps if step.text]
    sides = [[members[0]], [members[-1]]] if len(members) > 1 else []
    if len(steps) > 1:
        sides = [[*side, step] for side, step in zip(sides or [[], []], (steps[0], steps[-1]), strict=True)]
    if sides:
        sides[-1] += [other.text.rpartition("=")[2].strip() for other in answer.also]
    return sides


def _members(formula: str) -> tuple[list[str], list[str]]:
    """The sides of the relations of a formula, and their signs; those within brackets, "Σ_{j=1}", are no relations."""
    for sign, written in _WRITTEN.items():
        formula = re.sub(written, sign, formula)
    pieces, signs, place = split_outside(formula, "".join(_SIGNS)), [], -1
    for piece in pieces[:-1]:
        place += len(piece) + 1
        signs.append(formula[place])
    return [piece.replace("\x01", r"\\").strip() for piece in pieces], signs


def _chains(text: str) -> list[list[Link]]:
    """The chains of a text: formulas with relations, line by line; a line that begins with a sign goes on."""
    text = (
        PATTERNS["matrix"]
        .sub(lambda found: found[0].replace(r"\\", "\x01").replace("&", "\x02"), text)
        .replace("&", " ")
    )
    chains: list[list[Link]] = []
    last = ""
    for line in PATTERNS["line"].split(text.replace("\x02", "&")):
        marked = [next(filter(None, groups)) for groups in PATTERNS["formula"].findall(line)]
        for formula in marked or [line]:
            pieces, signs = _members(formula)
            members = [trimmed(PATTERNS["remark"].sub(" ", piece)) for piece in pieces]
            if not signs or not members[-1]:
                continue
            goes_on, members[0] = not members[0] and bool(chains), members[0] or last
            links = [Link(*each) for each in zip(members, signs, members[1:], strict=False) if each[0] and each[2]]
            chains = [*chains[:-1], [*chains[-1], *links]] if goes_on else [*chains, links]
            last = members[-1]
    return [chain for chain in chains if chain]


def _verdict(link: Link, symbols: Mapping[str, str]) -> Verdict:
    if link.relation != "=":
        return holds(link.before, _SIGNS[link.relation], link.after, symbols)
    verdict = compare(link.before, link.after, symbols)
    # A row and a column of the same numbers are one, as on paper, and Q_i may be a row of Q.
    before, after = (PATTERNS["row"].sub(r"(\1_{\2\3\\cdot})", each) for each in (link.before, link.after))
    ways = ((f"({link.before})^T", link.after), (before, after), (f"({before})^T", after), (link.before, after))
    others = (compare(*way, symbols) for way in ways) if verdict.kind == "different" else ()
    return next((each for each in others if each.kind == "equal"), verdict)


def _form(text: str, symbols: Mapping[str, str]) -> str:
    """How an expression is written, whatever its bound indices are called."""
    try:
        shown = latex(parse(text, symbols))
    except MathsError:
        return text
    for place, index in enumerate(dict.fromkeys(re.findall(r"\\sum_\{([a-z]+)=", shown))):
        shown = re.sub(rf"(?<![A-Za-z\\]){index}(?![A-Za-z])", f"bound{place}", shown)
    return shown
