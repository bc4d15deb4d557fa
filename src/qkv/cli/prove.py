"""`qkv prove`: run the claims, print which hold and what is proved of them, and write a report."""

from __future__ import annotations

import inspect
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text as Coloured

from ..cost.lookup import match_name
from ..derivation import describe
from ..errors import QkvError, complaint
from ..render import document as d
from ..render.escapes import line as on_one_line
from ..render.to_terminal import COLOURS, inline
from ..render.to_terminal import show as show_document
from ..theory.claim import correction_items, prose_of, statement_blocks
from .errors import UsageError

if TYPE_CHECKING:
    from ..theory.claim import Claim, Evidence

WIDEST = 80
HEADER = ("claim", "lines", "evidence", "residual / bound", "verdict")


class Options(NamedTuple):
    names: list[str]
    report: str | None
    as_json: bool
    quick: bool


def run(options: Options) -> bool:
    """Run the chosen claims.

    Returns:
        Whether all of them hold.
    """
    with _interruptible() as go_on:
        from ..theory import claims

        chosen = _chosen(claims(), options)
        path = _path(options.report)
        outcomes = _outcomes(chosen, go_on, quiet=options.as_json)
        if path is not None:
            _report(outcomes, path, go_on)
    if options.as_json:
        _print_json(outcomes)
    else:
        show_outcomes(outcomes, in_full=bool(options.names))
    if path is not None:
        typer.echo(f"report: {path}", err=True)
    return all(outcome.holds for outcome in outcomes)


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Remember Ctrl-C: a library may swallow it during an import or a callback, so `go_on()` raises it again."""
    interrupted = False

    def note(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def go_on() -> None:
        if interrupted:
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # another handler is installed
        yield go_on
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield go_on
        go_on()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def show_list(as_json: bool) -> None:
    """Print every claim with the first paragraph of its docstring."""
    from ..theory import claims

    rows = [(name, *_described(claim)) for name, claim in claims().items()]
    if as_json:
        found = [{"name": name, "about": about, "slow": slow} for name, about, slow in rows]
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    import textwrap

    wide = max(len(name) for name, _, _ in rows)
    for name, about, slow in rows:
        text = f"{about} (trains a model: about a minute)" if slow else about
        typer.echo(textwrap.fill(text, 80, initial_indent=f"{name:<{wide}}  ", subsequent_indent=" " * (wide + 2)))


def _described(claim: Callable[..., Claim]) -> tuple[str, bool]:
    paragraph = (claim.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split()), bool(getattr(claim, "slow", False))


def _chosen(known: Mapping[str, Callable[..., Claim]], options: Options) -> dict[str, Callable[..., Claim]]:
    if not options.names:
        return {name: claim for name, claim in known.items() if not (options.quick and getattr(claim, "slow", False))}
    names = [match_name("claim", name, known, "the name of a claim", "qkv prove --list shows them")
             for name in options.names]  # fmt: skip
    slow = [name for name in names if options.quick and getattr(known[name], "slow", False)]
    if slow:
        raise UsageError(
            complaint("--quick", f"it together with {', '.join(slow)}, which trains a model", "one of them")
        )
    return {name: known[name] for name in names}


def _path(report: str | None) -> Path | None:
    """The report's file, checked before the work begins."""
    if report is None:
        return None
    from ..render.saving import writable

    return writable(report, "--report")


def _outcomes(chosen: Mapping[str, Callable[..., Claim]], go_on: Callable[[], None], quiet: bool) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("proving"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    silent = quiet or not sys.stderr.isatty()
    found = []
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task("", total=len(chosen))
        for place, (name, claim) in enumerate(chosen.items()):
            go_on()
            bar.update(task, description=name, completed=place)

            def progress(part: float, done: int = place) -> None:
                go_on()
                bar.update(task, completed=done + part)

            found.append(_outcome(name, claim, progress))
        go_on()
    return found


def _outcome(name: str, claim: Callable[..., Claim], progress: Callable[[float], None]) -> Outcome:
    """Run a claim; an error fails this claim and not the others."""
    began = time.perf_counter()
    try:
        # A slow claim reports its progress.
        made = claim(progress=progress) if "progress" in inspect.signature(claim).parameters else claim()
        made.checks  # noqa: B018 - computed and cached here, so that the time is counted
    except Exception as error:
        text = str(error) if isinstance(error, QkvError) else f"{type(error).__name__}: {error}"
        return Outcome(name, None, text, time.perf_counter() - began)
    return Outcome(name, made, "", time.perf_counter() - began)


def _report(outcomes: Sequence[Outcome], path: Path, go_on: Callable[[], None]) -> None:
    from ..render.saving import save

    document = report(outcomes)
    go_on()
    save(document, path)


def _print_json(outcomes: Sequence[Outcome]) -> None:
    found = {"holds": all(outcome.holds for outcome in outcomes), "claims": [_as_dict(each) for each in outcomes]}
    print(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    common = {"name": outcome.name, "holds": outcome.holds, "seconds": round(outcome.seconds, 3)}
    claim = outcome.claim
    if claim is None:
        return {**common, "error": outcome.error}
    lines = []
    for line, verdict in zip(claim.derivation.steps, claim.checks, strict=True):
        entry: dict[str, Any] = {"relation": line.relation, "text": line.text, "reason": line.reason}
        if line.symbols is not None:
            entry["symbols"] = dict(line.symbols)
        lines.append({**entry, "verdict": None if verdict is None else verdict.as_dict()})
    evidence = [
        {"what": each.what, "kind": each.kind, "residual": _number(each.residual), "bound": _number(each.bound)}
        for each in claim.evidence
    ]
    corrections = [{"document": each.document, "says": each.says, "right": each.right} for each in claim.corrections]
    return {
        **common,
        "title": claim.title,
        "statement": claim.statement,
        "proved": claim.proved,
        "symbols": dict(claim.symbols),
        "derivation": lines,
        "evidence": evidence,
        "corrections": corrections,
        "sources": list(claim.sources),
    }


def _number(value: float | None) -> float | None:
    """JSON has neither nan nor infinity: such a residual is null, and its kind is "refuted"."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Outcome:
    """The result of running a claim; `claim` is None where it raised `error`."""

    name: str
    claim: Claim | None
    error: str
    seconds: float

    @property
    def holds(self) -> bool:
        return self.claim is not None and self.claim.holds

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "stopped" if self.claim is None else "FAILS"

    @property
    def lines(self) -> str:
        """How many lines are proved, how many tested, how many failed."""
        if self.claim is None:
            return ""
        kinds = [describe(verdict)[0] for verdict in self.claim.checks if verdict is not None]
        counted = [(kinds.count("proved"), "proved"), (kinds.count("tested"), "tested")]
        counted.append((len(kinds) - sum(count for count, _ in counted), "failed"))
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


def show_outcomes(outcomes: Sequence[Outcome], in_full: bool) -> None:
    """Print the table, then every claim line by line (`in_full`) or the failures."""
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
        for failure in _failures(outcome):
            console.print(Coloured(f"{outcome.name}: {on_one_line(failure)}", COLOURS["refuted"]))
    console.print(Coloured(f"\n{_summary(outcomes)}; qkv prove NAME shows one line by line."))


def report(outcomes: Sequence[Outcome]) -> d.Document:
    """The report: the table, then each claim with its derivation, evidence, figure and corrections."""
    table = d.Table(HEADER, tuple(tuple(_row(outcome)) for outcome in outcomes), right=frozenset({2, 3}))
    how = (
        "Each line of a derivation is compared with the line before it: proved where both have the same normal form, "
        "tested where they agree at exact points. Evidence is what could have refuted a claim and did not. The command "
    )
    again = (d.Text(how), d.Text("qkv prove", "code"), d.Text(" writes this report again."))
    blocks: list[d.Block] = [d.Paragraph(f"{_summary(outcomes)}."), d.Paragraph(again), table]
    for outcome in outcomes:
        blocks += [d.Heading(_title(outcome)), *_blocks(outcome, drawn=True)]
    return d.Document("Claims about attention, proved and tested", tuple(blocks))


def _row(outcome: Outcome) -> list[str]:
    return [outcome.name, outcome.lines, outcome.evidence, _residual_and_bound(outcome.closest), outcome.verdict]


def _title(outcome: Outcome) -> str:
    return outcome.name if outcome.claim is None else outcome.claim.title


def _summary(outcomes: Sequence[Outcome]) -> str:
    failed = [outcome.name for outcome in outcomes if not outcome.holds]
    count = f"{len(outcomes)} claim{'s' if len(outcomes) != 1 else ''}"
    if not failed:
        return f"{count}, {'all hold' if len(outcomes) != 1 else 'it holds'}"
    return f"{count}, {len(failed)} fail{'s' if len(failed) == 1 else ''} ({', '.join(failed)})"


def _blocks(outcome: Outcome, drawn: bool) -> list[d.Block]:
    claim = outcome.claim
    if claim is None:
        return [d.Note("Stopped with an error", (d.Paragraph(outcome.error),), "refuted")]
    blocks = statement_blocks(claim)
    where = f", on the exercises {', '.join(claim.sources)}" if claim.sources else ""
    blocks.append(d.Paragraph((d.Text("Claim "), d.Text(claim.name, "code"), d.Text(f"{where}."))))
    if claim.derivation.steps:
        blocks += [d.Heading("Derivation", 3), claim.derivation]
    if claim.evidence:
        rows = tuple((prose_of(each.what, claim), each.kind, *_numbers(each)) for each in claim.evidence)
        header = ("what could have refuted it", "found", "residual", "bound")
        blocks += [d.Heading("Evidence", 3), d.Table(header, rows, right=frozenset({2, 3}))]
    if drawn and claim.figure is not None:
        blocks.append(_figure(claim))
    if claim.corrections:
        blocks += [d.Heading("Where published solutions are wrong or imprecise", 3), correction_items(claim)]
    return blocks


def _figure(claim: Claim) -> d.Block:
    assert claim.figure is not None
    try:
        return d.Figure(claim.figure())
    except Exception as error:
        return d.Note("The figure could not be drawn", (d.Paragraph(f"{type(error).__name__}: {error}"),), "refuted")


def _failures(outcome: Outcome) -> list[str]:
    if outcome.claim is None:
        return [outcome.error]
    lines = zip(outcome.claim.derivation.steps, outcome.claim.checks, strict=True)
    failures = [
        f"{line.relation} {line.text}: {verdict.kind}. {describe(verdict)[1]}"
        for line, verdict in lines
        if verdict is not None and verdict.kind != "equal"
    ]
    return failures + [
        ": ".join(
            filter(None, (inline(prose_of(each.what, outcome.claim)).plain, "refuted", _residual_and_bound(each)))
        )
        for each in outcome.claim.evidence
        if not each.holds
    ]


def _closeness(evidence: Evidence) -> float:
    residual, bound = evidence.residual or 0.0, evidence.bound or 0.0
    if residual != residual:
        return float("inf")
    return residual / bound if bound else (float("inf") if residual else 0.0)


def _residual_and_bound(evidence: Evidence | None) -> str:
    if evidence is None or evidence.residual is None:
        return ""
    return " / ".join(_numbers(evidence))


def _numbers(evidence: Evidence) -> tuple[str, str]:
    """Residual and bound, with as many digits as are needed to distinguish them."""
    digits = 3
    residual, bound = (_short(value, digits) for value in (evidence.residual, evidence.bound))
    while residual == bound and evidence.residual != evidence.bound and digits < 17:
        digits += 1
        residual, bound = (_short(value, digits) for value in (evidence.residual, evidence.bound))
    return residual, bound


def _short(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"
