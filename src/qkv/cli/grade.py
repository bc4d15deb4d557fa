"""`qkv grade`: chats with a tutor, claim by claim; a file or a folder at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ..errors import OptionError, QkvError, complaint
from ..render.escapes import json_text, line
from .errors import UsageError, with_options
from .waiting import waiting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..exercises import Exercise
    from ..grading import GradeReport
    from ..reading import Chat, Reader

_COLOURS = {"one shot": "green", "needed correction": "yellow", "never right": "red", "unread": "dim"}
_KINDS = {"right": "green", "unread": "dim", "incomplete": "yellow"}
_INDENT = 4
MOST_FILES = 1000
LARGEST = 64 * 1024 * 1024  # bytes of the standard input


class Options(NamedTuple):
    """The arguments of the command."""

    chat: str
    sheet: str | None
    exercises: Sequence[str]
    insights: Sequence[str]
    to: Sequence[str]
    as_json: bool
    reader: str | None = None


def run(options: Options) -> None:
    """Grade the chats and print the tables."""
    from ..grading import grade
    from ..grading.report import documents, insights, summary
    from ..render.saving import save, writable

    pages = [(writable(name, "--insights"), insights) for name in options.insights]
    pages += [(writable(name, "--to"), documents) for name in options.to]
    questions = _questions(options)
    files = _files(options.chat)
    for page, _ in pages:
        if any(_is_same_file(page, file) for file in [*files, *([Path(options.sheet)] if options.sheet else [])]):
            hint = "the page would overwrite what is graded"
            raise OptionError(complaint("--to", f"{str(page)!r}, which is read", "another file", hint))
    reports: list[GradeReport] = []
    failed: dict[str, str] = {}
    reader = _reader(options.reader)
    for chat in _chats(options.chat, files, failed):
        try:
            with waiting(f"grading {line(chat.name)}") if options.reader is None else nullcontext():
                reports.append(grade(chat, questions, reader))
        except OptionError as error:  # a recording that is missing, or of another chat
            failed[chat.name] = str(error)
    if failed and not reports:
        raise UsageError(next(iter(failed.values())))
    for page, document in pages:
        try:
            save(documents(reports, failed) if document is documents else insights(reports), page)
        except OSError as error:
            why = (error.strerror or "it cannot be used").lower()
            raise UsageError(complaint(str(page), why, "a file that can be written")) from None
    found = {"chats": [report.as_dict() for report in reports], "summary": summary(reports), "failed": failed}
    if options.as_json:
        alone = len(reports) == 1 and not Path(options.chat).is_dir()
        print(json_text(reports[0].as_dict() if alone else found))
    else:
        _print(reports, failed)
    for page, _ in pages:
        typer.echo(f"written: {page}", err=True)


def _questions(options: Options) -> dict[str, Exercise] | None:
    """The questions that are named; None takes those of the chat."""
    from ..grading import from_bank, from_sheet

    if options.sheet is None and not options.exercises:
        return None
    try:
        found = from_sheet(Path(options.sheet)) if options.sheet is not None else {}
    except OptionError as error:
        raise with_options(error, {"file": "--sheet", "sheet": "--sheet"}) from error
    return found | from_bank(options.exercises)


def _reader(name: str | None) -> Reader:
    """The reader that is named: rules, recorded claims, or a language model, whose progress is printed."""
    from ..reading import ExplicitReader, ReplayReader

    if name is None:
        return ExplicitReader()
    if name.startswith("replay:"):
        recorded = name.removeprefix("replay:")
        if not Path(recorded).exists():
            raise UsageError(
                complaint("--reader", f"{recorded!r}, which does not exist", "recorded claims, or a folder")
            )
        return ReplayReader(recorded)
    from ..reading.model import ModelReader
    from .evaluate import model_named

    return ModelReader(model_named(name, {}, "--reader"), told=_progress)


def _progress(done: int, of: int, used: Mapping[str, float]) -> None:
    words = f"read {done} of {of} turns; {used['input']:,} tokens read, {used['output']:,} written"
    words += f", cost {used['cost']:.4f}" if used["cost"] else ""
    typer.echo(f"{words}, {used['cached']} replies from the cache" if used["cached"] else words, err=True)


def _files(name: str) -> list[Path]:
    """The files of a folder, or the one that is named; none for the standard input."""
    if not name.strip():
        raise OptionError(complaint("CHAT", "an empty name", "a file or a folder"))
    path = Path(name)
    if name in ("-", "/dev/stdin"):
        return []
    if not path.exists():
        raise OptionError(complaint("CHAT", f"{name!r}, which does not exist", "a file or a folder"))
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    if not found:
        raise OptionError(complaint("CHAT", f"the folder {name!r} without a file", "a folder with chats"))
    if len(found) > MOST_FILES:
        raise OptionError(complaint("CHAT", f"a folder with {len(found):,} files", f"at most {MOST_FILES:,}"))
    return found


def _chats(name: str, files: Sequence[Path], failed: dict[str, str]) -> Iterator[Chat]:
    """The chats, one after another, every one of an export; why a file cannot be read goes to `failed`."""
    from ..reading import read_chats

    if not files:
        yield from _from_stdin()
    watched = len(files) > 1 and sys.stderr is not None and sys.stderr.isatty()
    for at, file in enumerate(files, 1):
        if watched:
            typer.echo(f"grading {at} of {len(files)}: {line(file.name)}", err=True)
        try:
            yield from read_chats(file)
        except QkvError as error:
            failed[file.name] = str(error)


def _from_stdin() -> list[Chat]:
    from ..reading import read_chats

    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(complaint("CHAT", "'-'", "a text on the standard input", "qkv grade - < chat.md"))
    return read_chats(sys.stdin.buffer.read(LARGEST), "standard input")


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths name one file, through links too."""
    try:
        return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
    except OSError:
        return False


def _print(reports: Sequence[GradeReport], failed: dict[str, str]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from ..grading.report import error

    console = Console(highlight=False)
    if len(reports) == 1 and not failed:
        show(reports[0], console)
        return
    for report in reports:
        counts = ", ".join(f"{count} {status}" for status, count in report.counts().items() if count)
        console.print(Text.assemble((line(report.name), "bold"), f": {counts or _first_note(report)}"))
        faults = [f"{row.label} {said}" for row in report.rows if (said := error(row))]
        faults += dict.fromkeys(f"rule broken: {rule.kept}" for rule in report.rules if rule.broken)
        if faults:
            console.print(Padding(Text(line("; ".join(faults)), "red"), (0, 0, 0, _INDENT), expand=False))
    for name, why in failed.items():
        console.print(Text.assemble((line(name), "bold"), (f": {line(why)}", "red")))
    _summary(reports, console)


def _first_note(report: GradeReport) -> str:
    return line(report.findings[0].words()) if report.findings else "nothing to grade"


def _summary(reports: Sequence[GradeReport], console: Console) -> None:
    from ..grading.grade import STATUSES
    from ..grading.report import summary

    for name, rows in summary(reports).items():
        if name == "chats" or not rows:
            continue
        table = _table(name[:-1], *STATUSES)
        for key, counts in rows.items():
            table.add_row(line(key), *(str(count) if count else "" for count in counts.values()))
        console.print()
        console.print(table)


def _table(*columns: str) -> Any:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)


def show(report: GradeReport, console: Console) -> None:
    """Print the table, each claim with its finding, rules and notes."""
    from rich.text import Text

    from ..grading.report import error, notes

    console.print(Text(line(report.name), style="bold"))
    table = _table("part", "went", "right in turn", "found by", "error")
    for row in report.rows:
        right = "" if row.first_right is None else str(row.first_right + 1)
        status = Text(row.status, _COLOURS[row.status])
        table.add_row(line(row.label), status, right, row.found_by or "", Text(line(error(row))))
    if report.rows:
        console.print(table)
        console.print()
    _claims(report, console)
    for note in notes(report):
        style = "red" if note.startswith("Rule broken") else "dim"
        console.print(Text(line(note), style=style))


def _claims(report: GradeReport, console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from ..grading.report import SIGNS, quote

    for row in report.rows:
        for each in row.claims:
            kind = each.outcome.kind
            colour = _KINDS.get(kind, "red") if each.decides or each.outcome else "dim"
            head: Text = Text.assemble((line(row.label), "bold"), f"  turn {each.claim.turn + 1}  ",
                                       (f"{SIGNS[kind]} {kind}", colour))  # fmt: skip
            console.print(head)
            said = Text(line(quote(each)), "cyan")
            console.print(Padding(said, (0, 0, 0, _INDENT), expand=False))
            if not each.outcome:
                console.print(Padding(Text(line(each.outcome.words())), (0, 0, 0, _INDENT), expand=False))
