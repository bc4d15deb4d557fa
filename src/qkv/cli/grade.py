"""`qkv grade`: a tutor's transcript, claim by claim, and its author's own table next to the recomputed one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ..errors import OptionError, complaint
from ..render.escapes import json_text, line
from .errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

    from ..tutor.ledger import Ledger, Row

_COLOURS = {"one shot": "green", "needed correction": "yellow", "never right": "red", "unread": "dim"}
_INDENT = 4
_SIGNS = {"right": "✓", "wrong": "✗", "conditional": "✗", "incomplete": "…", "unread": "?"}


class Options(NamedTuple):
    transcript: str
    as_json: bool
    insights: list[str]
    problem: str | None


def run(options: Options) -> None:
    """Grade every conversation in the file and print the tables."""
    from ..render.saving import writable
    from ..tutor.ledger import grade
    from ..tutor.transcript import decoded, read_all, read_text

    try:
        pages = [writable(name, "--insights") for name in options.insights]
        given = _path(options.transcript)
        for page in pages:
            if given is not None and _is_same_file(page, given):
                hint = "the page would overwrite the transcript"
                raise OptionError(complaint("--insights", repr(str(page)), "another file than TRANSCRIPT", hint))
        conversations = read_all(given) if given is not None else read_text(*decoded(_stdin()))
    except OptionError as error:
        raise UsageError(str(error)) from None
    ledgers = [grade(each) for each in conversations]
    if options.problem is not None:
        ledgers = _only(ledgers, options.problem)
    for page in pages:
        try:
            _write(ledgers, page)
        except OSError as error:
            text = complaint("--insights", repr(str(page)), "a file that can be written", _why(error))
            raise UsageError(text) from None
    if options.as_json:
        print(json_text(as_dict(ledgers)))
    else:
        from rich.console import Console

        console = Console(highlight=False)
        for place, ledger in enumerate(ledgers):
            if place:
                console.print()
            show(ledger, console)
    for page in pages:
        typer.echo(f"insights: {page}", err=True)


def _path(name: str) -> Path | None:
    """The named file; None for the standard input."""
    from pathlib import Path

    if not name.strip():
        raise OptionError(complaint("TRANSCRIPT", "an empty name", "a file"))
    return None if name in ("-", "/dev/stdin") else Path(name)


def _stdin() -> bytes:
    import sys

    from ..tutor.transcript import LARGEST

    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError(complaint("TRANSCRIPT", "'-'", "a text on the standard input", "qkv grade - < chat.md"))
    return sys.stdin.buffer.read(LARGEST)


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths name one file, through links too."""
    try:
        return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
    except OSError:
        return False


def _why(error: OSError) -> str:
    return (error.strerror or "it cannot be used").lower()


def as_dict(ledgers: list[Ledger]) -> dict[str, Any]:
    """One conversation as it is; several with their rows joined, and each by itself."""
    if len(ledgers) == 1:
        return ledgers[0].as_dict()
    each = [ledger.as_dict() for ledger in ledgers]
    names = ("rows", "problems", "rules", "author_table", "notes")
    whole = {name: [item for one in each for item in one[name]] for name in names}
    return {**whole, "conversations": each}


def _only(ledgers: list[Ledger], name: str) -> list[Ledger]:
    """The ledgers with this problem only."""
    from dataclasses import replace

    wanted = name.casefold().strip()
    source = wanted.replace("-", " ", 1)  # sources are written "003 1"
    kept = []
    for ledger in ledgers:
        mine = {
            q.name
            for q in ledger.questions
            if wanted == q.name.casefold()
            or (q.problem is not None and (wanted == q.problem.name or source in q.problem.sources))
        }
        if mine:
            rows = tuple(row for row in ledger.rows if row.problem in mine)
            kept.append(replace(ledger, rows=rows, questions=tuple(q for q in ledger.questions if q.name in mine)))
    if not kept:
        there = ", ".join(dict.fromkeys(q.name for ledger in ledgers for q in ledger.questions)) or "none"
        raise UsageError(complaint("--problem", repr(name), "a problem of the conversation", f"there are {there}"))
    return kept


def _write(ledgers: list[Ledger], path: Any) -> None:
    from ..render import Document
    from ..render.saving import save
    from ..tutor.for_class import insights

    pages = [insights(ledger) for ledger in ledgers]
    save(
        pages[0] if len(pages) == 1 else Document("What we learned", tuple(b for page in pages for b in page.blocks)),
        path,
    )


def show(ledger: Ledger, console: Console) -> None:
    """Print the performance table, the claims, the author's table, rules and notes."""
    from rich.text import Text

    if ledger.title:
        console.print(Text(line(ledger.title), style="bold"))
    _performance(ledger, console)
    _claims(ledger, console)
    if ledger.author_table:
        _authors(ledger, console)
    _rules(ledger, console)
    for note in ledger.notes:
        console.print(Text(f"Note: {line(note)}", style="dim"))


def _performance(ledger: Ledger, console: Console) -> None:
    """Print a line for each problem, then a table with a row for each part."""
    from rich.table import Table
    from rich.text import Text

    table = Table("problem", "part", "performance", "right in turn", "found by", "error", box=None, pad_edge=False)
    for each in ledger.problems():
        name = Text(f"Problem {line(each['problem'])}", "bold")
        title = " ".join(dict.fromkeys(word for word in (each["title"], f"({each['family']})") if word.strip("()")))
        if not each["parts"]:
            console.print(Text.assemble(name, f" {line(title)}: unknown problem", style="dim"))
            continue
        console.print(Text.assemble(name, f" {line(title)}: ", _status(each["status"])))
        for row in ledger.rows:
            if row.problem == each["problem"]:
                right = "" if row.first_right_turn is None else str(row.first_right_turn)
                table.add_row(line(row.problem), row.part, _status(row.status), right, row.found_by or "", _named(row))
    if ledger.rows:
        console.print()
        console.print(table)


def _status(status: str) -> Text:
    from rich.text import Text

    return Text(status, _COLOURS.get(status, ""))


def _named(row: Row) -> Text:
    from rich.text import Text

    from ..tutor.telling import error_name

    names = [error_name(error) for error in row.errors]
    if row.given_up:
        names.append("given up")
    if row.stood_firm:
        names.append("stood firm under a wrong correction")
    return Text(line("; ".join(dict.fromkeys(names))))


def _claims(ledger: Ledger, console: Console) -> None:
    """Print each claim and, where it is not right, the reason below it."""
    from rich.padding import Padding
    from rich.text import Text

    from ..tutor.telling import readable

    if any(row.claims for row in ledger.rows):
        console.print()
    for row in ledger.rows:
        for claim in row.claims:
            kind = claim.outcome.kind
            colour = {"right": "green", "unread": "dim", "incomplete": "yellow"}.get(kind, "red")
            head = Text.assemble((line(f"{row.problem} {row.part}"), "bold"), f"  turn {claim.turn}  ",
                                 (f"{_SIGNS[kind]} {kind}", colour))  # fmt: skip
            text = Text(_shortened(line(readable(ledger, row, claim.text))), "cyan")
            if head.cell_len + 2 + text.cell_len <= console.width:
                console.print(Text.assemble(head, "  ", text))
            else:
                console.print(head)
                console.print(Padding(text, (0, 0, 0, _INDENT), expand=False))
            if kind != "right":
                console.print(Padding(Text(line(claim.outcome.reason)), (0, 0, 0, _INDENT), expand=False))
        for error in row.errors:
            if error.kind in ("wrong reason", "false line"):
                console.print(Text.assemble((line(f"{row.problem} {row.part}"), "bold"), f"  turn {error.turn}  ",
                                            ("! reason", "yellow")))  # fmt: skip
                console.print(Padding(Text(line(error.what), "yellow"), (0, 0, 0, _INDENT), expand=False))


def _shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _authors(ledger: Ledger, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("question", "its author says", "recomputed", "", box=None, pad_edge=False, title="The author's table",
                  title_justify="left")  # fmt: skip
    for row in ledger.author_table:
        style = {"agrees": "green", "not in evidence": "yellow", "differs": "red"}.get(row.remark, "dim")
        table.add_row(
            Text(line(row.question)), Text(line(row.author)), _status(row.recomputed), Text(row.remark, style)
        )
    console.print()
    console.print(table)


def _rules(ledger: Ledger, console: Console) -> None:
    from rich.text import Text

    from ..tutor.telling import RULES

    for rule in ledger.rules:
        if rule.broken:
            where = f"(set in turn {rule.set_in_turn}), in turn {rule.turn}"
            text = f"Rule broken: {RULES[rule.name]} {where}: {line(rule.evidence)}"
            console.print(Text(text, "red"))
        else:
            console.print(Text(f"Rule kept: {RULES[rule.name]} (set in turn {rule.set_in_turn})", "green"))
