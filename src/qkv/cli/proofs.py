"""Claims as people read them: a table in the terminal, one claim line by line, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text as Coloured

from ..render import document as d
from ..render.escapes import line as on_one_line
from ..render.to_terminal import COLOURS, inline
from ..render.to_terminal import show as show_document
from ..theory.telling import corrections, derivation, kind_of, remark, said, statement

if TYPE_CHECKING:
    from ..theory.claim import Claim, Evidence

WIDEST = 80


@dataclass(frozen=True)
class Outcome:
    """What became of a claim; `claim` is None where it stopped with `error`."""

    name: str
    claim: Claim | None
    error: str
    seconds: float

    @property
    def holds(self) -> bool:
        return self.claim is not None and self.claim.holds

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "stopped" if self.claim is None else "RED"

    @property
    def lines(self) -> str:
        """How many lines follow by proof, how many by trial, how many not at all."""
        if self.claim is None:
            return ""
        kinds = [kind_of(verdict) for verdict in self.claim.checks if verdict is not None]
        counted = [(kinds.count("proved"), "proved"), (kinds.count("tested"), "tested")]
        counted.append((len(kinds) - sum(count for count, _ in counted), "red"))
        return ", ".join(f"{count} {word}" for count, word in counted if count) or "none"

    @property
    def evidence(self) -> str:
        if self.claim is None:
            return ""
        return f"{sum(each.holds for each in self.claim.evidence)} of {len(self.claim.evidence)}"

    @property
    def closest(self) -> Evidence | None:
        """The evidence whose residual comes nearest to its bound, or goes furthest beyond it."""
        measured = [each for each in self.claim.evidence if each.residual is not None] if self.claim else []
        return max(measured, key=_closeness, default=None)


def show(outcomes: Sequence[Outcome], in_full: bool) -> None:
    """The table; below it what is red and, `in_full`, every claim line by line."""
    console = Console(highlight=False)
    if console.width > WIDEST:
        console.width = WIDEST
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, side in zip(HEADER, ("left", "left", "right", "right", "left"), strict=True):
        grid.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    for outcome in outcomes:
        colour = "green" if outcome.holds else COLOURS["refuted"]
        grid.add_row(*(Coloured(cell) for cell in _row(outcome)[:-1]), Coloured(outcome.verdict, colour))
    console.print(grid)
    if in_full:
        for outcome in outcomes:
            console.print()
            show_document(d.Document(_title(outcome), tuple(_blocks(outcome, drawn=False))), console)
        return
    for outcome in outcomes:
        for fault in _faults(outcome):
            console.print(Coloured(f"{outcome.name}: {on_one_line(fault)}", COLOURS["refuted"]))
    console.print(Coloured(f"\n{_summary(outcomes)}; qkv prove NAME shows one line by line."))


def report(outcomes: Sequence[Outcome]) -> d.Document:
    """Everything: the table, then each claim with its derivation, evidence, figure and corrections."""
    table = d.Table(HEADER, tuple(tuple(_row(outcome)) for outcome in outcomes), right=frozenset({2, 3}))
    how = (
        "Each line of a derivation is compared with the one before it: proved where both have one normal form, tested "
        "where they agree at exact points. Evidence is what could have refuted a claim and did not. The command "
    )
    again = (d.Text(how), d.Text("qkv prove", "code"), d.Text(" makes this again."))
    blocks: list[d.Block] = [d.Paragraph(f"{_summary(outcomes)}."), d.Paragraph(again), table]
    for outcome in outcomes:
        blocks += [d.Heading(_title(outcome)), *_blocks(outcome, drawn=True)]
    return d.Document("Claims about attention, proved and tested", tuple(blocks))


HEADER = ("claim", "lines", "evidence", "residual / bound", "verdict")


def _row(outcome: Outcome) -> list[str]:
    return [outcome.name, outcome.lines, outcome.evidence, _beside_bound(outcome.closest), outcome.verdict]


def _title(outcome: Outcome) -> str:
    return outcome.name if outcome.claim is None else outcome.claim.title


def _summary(outcomes: Sequence[Outcome]) -> str:
    red = [outcome.name for outcome in outcomes if not outcome.holds]
    count = f"{len(outcomes)} claim{'s' if len(outcomes) != 1 else ''}"
    if not red:
        return f"{count}, {'all hold' if len(outcomes) != 1 else 'it holds'}"
    return f"{count}, {len(red)} red ({', '.join(red)})"


def _blocks(outcome: Outcome, drawn: bool) -> list[d.Block]:
    claim = outcome.claim
    if claim is None:
        return [d.Note("Stopped with an error", (d.Paragraph(outcome.error),), "refuted")]
    blocks = statement(claim)
    where = f", from {', '.join(claim.sources)}" if claim.sources else ""
    blocks.append(d.Paragraph((d.Text("Claim "), d.Text(claim.name, "code"), d.Text(f"{where}."))))
    if claim.derivation:
        blocks += [d.Heading("Derivation", 3), derivation(claim)]
    if claim.evidence:
        rows = tuple((said(each.what, claim), each.kind, *_numbers(each)) for each in claim.evidence)
        header = ("what could have refuted it", "found", "residual", "bound")
        blocks += [d.Heading("Evidence", 3), d.Table(header, rows, right=frozenset({2, 3}))]
    if drawn and claim.figure is not None:
        blocks.append(_figure(claim))
    if claim.corrections:
        blocks += [d.Heading("Where the documents are wrong or loose", 3), corrections(claim)]
    return blocks


def _figure(claim: Claim) -> d.Block:
    assert claim.figure is not None
    try:
        return d.Figure(claim.figure())
    except Exception as error:
        return d.Note("The figure could not be drawn", (d.Paragraph(f"{type(error).__name__}: {error}"),), "refuted")


def _faults(outcome: Outcome) -> list[str]:
    if outcome.claim is None:
        return [outcome.error]
    lines = zip(outcome.claim.derivation, outcome.claim.checks, strict=True)
    faults = [
        f"{line.relation} {line.text}: {verdict.kind}. {remark(verdict)}"
        for line, verdict in lines
        if verdict is not None and verdict.kind != "equal"
    ]
    return faults + [
        ": ".join(filter(None, (inline(said(each.what, outcome.claim)).plain, "refuted", _beside_bound(each))))
        for each in outcome.claim.evidence
        if not each.holds
    ]


def _closeness(evidence: Evidence) -> float:
    residual, bound = evidence.residual or 0.0, evidence.bound or 0.0
    if residual != residual:
        return float("inf")
    return residual / bound if bound else (float("inf") if residual else 0.0)


def _beside_bound(evidence: Evidence | None) -> str:
    if evidence is None or evidence.residual is None:
        return ""
    return " / ".join(_numbers(evidence))


def _numbers(evidence: Evidence) -> tuple[str, str]:
    """Residual and bound, with as many digits as tell the one from the other."""
    digits = 3
    residual, bound = (_short(value, digits) for value in (evidence.residual, evidence.bound))
    while residual == bound and evidence.residual != evidence.bound and digits < 17:
        digits += 1
        residual, bound = (_short(value, digits) for value in (evidence.residual, evidence.bound))
    return residual, bound


def _short(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"
