"""A claim: its statement, its derivation step by step, and the evidence that could have refuted it; and the same as
blocks of a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..derivation import Derivation
from ..maths import Verdict
from ..render import document as d


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
    derivation: Derivation
    evidence: tuple[Evidence, ...] = ()
    corrections: tuple[Correction, ...] = ()
    sources: tuple[str, ...] = ()
    figure: Callable[[], str] | None = field(default=None, compare=False)

    @property
    def symbols(self) -> Mapping[str, str]:
        """The types of the symbols in the statement."""
        return self.derivation.symbols

    @property
    def checks(self) -> tuple[Verdict | None, ...]:
        """The verdict on each step of the derivation; None where a chain begins."""
        return self.derivation.checks

    @property
    def holds(self) -> bool:
        return self.derivation.holds and all(evidence.holds for evidence in self.evidence)

    @property
    def proved(self) -> bool:
        """Whether every step of the derivation is proved, not only tested."""
        return self.derivation.proved

    def with_line(self, place: int, text: str) -> Claim:
        """The claim with another text in one step of its derivation."""
        steps = list(self.derivation.steps)
        steps[place] = replace(steps[place], text=text)
        return replace(self, derivation=replace(self.derivation, steps=tuple(steps)))


def statement_blocks(claim: Claim) -> list[d.Block]:
    return [d.Paragraph(prose_of(part, claim)) for part in claim.statement.split("\n\n")]


def correction_items(claim: Claim) -> d.Items:
    return d.Items(tuple(_correction_item(each, claim) for each in claim.corrections))


def prose_of(text: str, claim: Claim) -> tuple[d.Inline, ...]:
    """Prose of a claim: its formulas are parsed with the symbols of the claim or of any of its chains."""
    return d.prose(text, *claim.derivation.all_symbols())


def _correction_item(correction: Correction, claim: Claim) -> d.Words:
    says, right = (prose_of(text, claim) for text in (correction.says.removesuffix("."), correction.right))
    return (d.Text(f"{correction.document}: ", "strong"), *says, d.Text(". "), d.Text("Right: ", "emphasis"), *right)
