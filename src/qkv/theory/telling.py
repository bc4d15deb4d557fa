"""A claim in the document model: what it says, line by line with the verdict on each, and what it corrects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..maths.tree import Relation
from ..render import document as d

if TYPE_CHECKING:
    from ..maths import Verdict
    from .claim import Claim, Correction


def statement(claim: Claim) -> list[d.Block]:
    return [d.Paragraph(said(part, claim)) for part in claim.statement.split("\n\n")]


def derivation(claim: Claim) -> d.Derivation:
    """Every line with its reason and its verdict against the line before."""
    steps, symbols, shape = [], claim.symbols, None
    for line, verdict in zip(claim.derivation, claim.checks, strict=True):
        if verdict is None:
            symbols = claim.symbols if line.symbols is None else line.symbols
        kind, why = ("", "") if verdict is None else (kind_of(verdict), remark(verdict))
        relation = "" if verdict is None else line.relation
        maths = d.Maths(line.text, symbols, shape if relation else None)
        tree = maths.tree()
        shape = None if tree is None else tree.shape
        steps.append(d.Step(maths, said(line.reason, claim, symbols), relation, kind, why))
    return d.Derivation(tuple(steps))


def chains(claim: Claim) -> list[d.Derivation]:
    """The same in pieces: one for each line that begins anew."""
    pieces: list[list[d.Step]] = []
    for step in derivation(claim).steps:
        if step.relation:
            pieces[-1].append(step)
        else:
            pieces.append([step])
    return [d.Derivation(tuple(piece)) for piece in pieces]


def corrections(claim: Claim) -> d.Items:
    return d.Items(tuple(_noted(each, claim) for each in claim.corrections))


def said(text: str, claim: Claim, *first: Mapping[str, str]) -> tuple[d.Inline, ...]:
    """What a claim says in words: a formula among them is read with the symbols of any of its chains."""
    own = [line.symbols for line in claim.derivation if line.symbols is not None]
    known = [*first, claim.symbols, *own]
    return tuple(_read(piece, known) if isinstance(piece, d.Maths) else piece for piece in d.prose(text))


def kind_of(verdict: Verdict) -> str:
    """proved or tested where a line follows; otherwise what it is instead."""
    return str(verdict.evidence) if verdict.kind == "equal" else verdict.kind


def remark(verdict: Verdict) -> str:
    """Why a line does not follow; nothing where it does."""
    if verdict.kind == "equal":
        return ""
    example = "" if verdict.counterexample is None else str(verdict.counterexample)
    return verdict.reason if not example or example in verdict.reason else f"{verdict.reason} ({example})"


def _noted(correction: Correction, claim: Claim) -> d.Words:
    says, right = (said(text, claim) for text in (correction.says.removesuffix("."), correction.right))
    return (d.Text(f"{correction.document}: ", "strong"), *says, d.Text(". "), d.Text("Right: ", "emphasis"), *right)


def _read(formula: d.Maths, known: Sequence[Mapping[str, str]]) -> d.Maths:
    readings = (replace(formula, symbols=symbols) for symbols in known)
    return next((reading for reading in readings if _whole(reading)), formula)


def _whole(formula: d.Maths) -> bool:
    """Whether all of it is read: of s = 2 with an s that is not declared, as of an answer, the 2 alone would be."""
    outside = str(formula.source)
    while (shorter := re.sub(r"\{[^{}]*\}", "", outside)) != outside:
        outside = shorter
    tree = formula.tree()
    return tree is not None and ("=" not in outside or isinstance(tree, Relation))
