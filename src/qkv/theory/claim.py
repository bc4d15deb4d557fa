"""A claim: its statement, its derivation line by line, and the evidence that could have refuted it; and the same as
blocks of a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..maths import Verdict, compare, holds
from ..maths.tree import Relation
from ..render import document as d


@dataclass(frozen=True)
class Line:
    """One line of a derivation: `relation` relates it to the line before ("" begins a new chain).

    "=" is checked by `compare`; "<=" and ">=" by `holds`, which also requires the two sides to be equal at `attained`,
    so that a weaker bound is refused. `symbols` at the beginning of a chain replace those of the claim for that chain.
    """

    text: str
    reason: str
    relation: str = "="
    symbols: Mapping[str, str] | None = None
    attained: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Evidence:
    """A check that could have refuted the claim: "proved" symbolically, "tested" on numbers, or "refuted"."""

    what: str
    kind: str
    residual: float | None = None
    bound: float | None = None

    @property
    def holds(self) -> bool:
        return self.kind != "refuted"


def measured(what: str, residual: float, bound: float) -> Evidence:
    """Evidence from numbers: "tested" where the residual is within the bound, else "refuted" (NaN included).

    >>> measured("row sums", 1e-9, 1e-6).kind, measured("row sums", float("nan"), 1e-6).kind
    ('tested', 'refuted')
    """
    return Evidence(what, "tested" if residual <= bound else "refuted", float(residual), float(bound))


@dataclass(frozen=True)
class Correction:
    """Where the published solution of an exercise is wrong or imprecise: the exercise, what it says, what is right."""

    document: str
    says: str
    right: str


@dataclass(frozen=True)
class Claim:
    """A statement about attention with its derivation, evidence, corrections and figure."""

    name: str
    title: str
    statement: str
    symbols: Mapping[str, str]
    derivation: tuple[Line, ...]
    evidence: tuple[Evidence, ...] = ()
    corrections: tuple[Correction, ...] = ()
    sources: tuple[str, ...] = ()
    figure: Callable[[], str] | None = field(default=None, compare=False)

    @cached_property
    def checks(self) -> tuple[Verdict | None, ...]:
        """The verdict on each line against the line before; None for a line that begins a chain."""
        verdicts: list[Verdict | None] = []
        symbols: Mapping[str, str] = self.symbols
        for before, line in zip((None, *self.derivation), self.derivation, strict=False):
            if line.relation == "" or before is None:
                symbols = self.symbols if line.symbols is None else line.symbols
                verdicts.append(None)
            elif line.relation == "=":
                verdicts.append(compare(before.text, line.text, symbols))
            else:
                verdicts.append(holds(before.text, line.relation, line.text, symbols, attained=line.attained))
        return tuple(verdicts)

    @property
    def holds(self) -> bool:
        return all(v is None or v.kind == "equal" for v in self.checks) and all(e.holds for e in self.evidence)

    @property
    def proved(self) -> bool:
        """Whether every line of the derivation is proved, not only tested."""
        return all(v is None or v.evidence == "proved" for v in self.checks)

    def with_line(self, place: int, text: str) -> Claim:
        """The claim with another text in one line of its derivation."""
        lines = list(self.derivation)
        lines[place] = replace(lines[place], text=text)
        return replace(self, derivation=tuple(lines))


def statement_blocks(claim: Claim) -> list[d.Block]:
    return [d.Paragraph(prose_of(part, claim)) for part in claim.statement.split("\n\n")]


def derivation_block(claim: Claim) -> d.Derivation:
    """The derivation as a block: every line with its reason and its verdict."""
    steps, symbols, shape = [], claim.symbols, None
    for line, verdict in zip(claim.derivation, claim.checks, strict=True):
        if verdict is None:
            symbols = claim.symbols if line.symbols is None else line.symbols
        kind, why = ("", "") if verdict is None else (kind_of(verdict), remark(verdict))
        relation = "" if verdict is None else line.relation
        maths = d.Maths(line.text, symbols, shape if relation else None)
        tree = maths.tree()
        shape = None if tree is None else tree.shape
        steps.append(d.Step(maths, prose_of(line.reason, claim, symbols), relation, kind, why))
    return d.Derivation(tuple(steps))


def derivation_chains(claim: Claim) -> list[d.Derivation]:
    """The derivation as blocks, one for each chain."""
    chains: list[list[d.Step]] = []
    for step in derivation_block(claim).steps:
        if step.relation:
            chains[-1].append(step)
        else:
            chains.append([step])
    return [d.Derivation(tuple(chain)) for chain in chains]


def correction_items(claim: Claim) -> d.Items:
    return d.Items(tuple(_correction_item(each, claim) for each in claim.corrections))


def prose_of(text: str, claim: Claim, *first: Mapping[str, str]) -> tuple[d.Inline, ...]:
    """Prose of a claim: its formulas are parsed with the symbols of the claim or of any of its chains."""
    own = [line.symbols for line in claim.derivation if line.symbols is not None]
    known = [*first, claim.symbols, *own]
    return tuple(_parsed(piece, known) if isinstance(piece, d.Maths) else piece for piece in d.prose(text))


def kind_of(verdict: Verdict) -> str:
    """The evidence, proved or tested, where a line follows; otherwise the kind of its verdict."""
    return str(verdict.evidence) if verdict.kind == "equal" else verdict.kind


def remark(verdict: Verdict) -> str:
    """Why a line does not follow; empty where it does."""
    if verdict.kind == "equal":
        return ""
    example = "" if verdict.counterexample is None else str(verdict.counterexample)
    return verdict.reason if not example or example in verdict.reason else f"{verdict.reason} ({example})"


def _correction_item(correction: Correction, claim: Claim) -> d.Words:
    says, right = (prose_of(text, claim) for text in (correction.says.removesuffix("."), correction.right))
    return (d.Text(f"{correction.document}: ", "strong"), *says, d.Text(". "), d.Text("Right: ", "emphasis"), *right)


def _parsed(formula: d.Maths, known: Sequence[Mapping[str, str]]) -> d.Maths:
    readings = (replace(formula, symbols=symbols) for symbols in known)
    return next((reading for reading in readings if _is_fully_parsed(reading)), formula)


def _is_fully_parsed(formula: d.Maths) -> bool:
    """Whether all of the formula was parsed: of s = 2 with an undeclared s, only the 2 would be."""
    outside = str(formula.source)
    while (shorter := re.sub(r"\{[^{}]*\}", "", outside)) != outside:
        outside = shorter
    tree = formula.tree()
    return tree is not None and ("=" not in outside or isinstance(tree, Relation))
