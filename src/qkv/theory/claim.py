"""A claim: what is said, why it follows line by line, and what was tried that could have refuted it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..maths import Verdict, compare, holds


@dataclass(frozen=True)
class Line:
    """One line of a derivation: `relation` ties it to the line before ("" begins a new chain).

    "=" is checked by `compare`; "<=" and ">=" by `holds`, which also wants the two sides to be equal at `attained`, so
    that no weaker bound passes for the one that was proved. `symbols` given at the beginning of a chain replace those
    of the claim for that chain.
    """

    text: str
    reason: str
    relation: str = "="
    symbols: Mapping[str, str] | None = None
    attained: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Evidence:
    """What could have refuted the claim: "proved" symbolically, "tested" on numbers, "refuted" where it did."""

    what: str
    kind: str
    residual: float | None = None
    bound: float | None = None

    @property
    def holds(self) -> bool:
        return self.kind != "refuted"


def measured(what: str, residual: float, bound: float) -> Evidence:
    """Evidence from numbers: tested where the residual is within the bound, refuted elsewhere (NaN included).

    >>> measured("row sums", 1e-9, 1e-6).kind, measured("row sums", float("nan"), 1e-6).kind
    ('tested', 'refuted')
    """
    return Evidence(what, "tested" if residual <= bound else "refuted", float(residual), float(bound))


@dataclass(frozen=True)
class Correction:
    """Where a source document is wrong or loose: which one, what it says, what is right."""

    document: str
    says: str
    right: str


@dataclass(frozen=True)
class Claim:
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
        """The verdict on each line against the one before; None for a line that begins a chain."""
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
        """Whether every line of the derivation follows by proof, not by trial."""
        return all(v is None or v.evidence == "proved" for v in self.checks)

    def with_line(self, place: int, text: str) -> Claim:
        """The same claim with one line of its derivation written differently."""
        lines = list(self.derivation)
        lines[place] = replace(lines[place], text=text)
        return replace(self, derivation=tuple(lines))
