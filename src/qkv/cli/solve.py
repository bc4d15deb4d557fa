"""`qkv solve`: worked solutions, whole assignments, printed sheets and exports. Torch and SymPy are not imported."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer

from ..errors import OptionError, QkvError, complaint
from ..render.escapes import json_text, line
from .errors import UsageError

if TYPE_CHECKING:
    from ..problems import Problem
    from ..render import Document

T = TypeVar("T")
WIDEST = 80
MOST_COPIES = 2000
SHEET_FORMATS = ("pdf", "tex", "html", "md", "ipynb")
SUFFIXES = (".md", ".tex", ".html", ".pdf", ".ipynb", ".json")
_PART = re.compile(r"\d{0,3}\(?[a-z]\)?(?:[.(]?[ivx]{1,4}\)?)?", re.IGNORECASE)


class Options(NamedTuple):
    """The arguments of the command; `own` maps the names of options to matrices."""

    words: list[str]
    seed: int | None
    brief: bool
    to: list[str]
    names: bool
    given: str | None
    own: dict[str, str]
    scale: str | None
    token: int | None
    causal: bool
    sheet: str | None
    copies: int | None
    export: str | None
    out: str | None
    form: str | None
    together: bool
    heading: str | None
    as_json: bool


class Request(NamedTuple):
    """A problem and the parts of it to solve; no parts means all."""

    problem: Problem
    parts: tuple[str, ...]


def run(options: Options) -> bool:
    """Run the command.

    Returns:
        False where no question of an assignment was recognised.
    """
    _check_combinations(options)
    if options.names:
        _show_list(options.as_json)
        return True
    paths = [_path(name) for name in options.to]
    if options.sheet is not None:
        return solve_sheet(options.sheet, options.brief, paths, options.as_json)
    requests = _requests(options)
    if options.copies is not None or options.export is not None:
        (print_sheets if options.copies is not None else export_bank)(requests, options)
        return True
    give_solutions(requests, options.brief, paths, options.as_json)
    return True


def give_solutions(requests: Sequence[Request], brief: bool, paths: Sequence[Path], as_json: bool) -> None:
    """Write the solutions into files, or print them one problem at a time."""
    for path in paths:
        write(requests, brief, path)
    if as_json:
        found = [as_dict(each) for each in requests]
        print(json_text(found[0] if len(found) == 1 else found))
    elif not paths:
        for place, each in enumerate(requests):
            if place:
                typer.echo()
            show(document(each, brief))
    for path in paths:
        typer.echo(f"written: {path}", err=True)


def show(document: Document) -> None:
    from rich.console import Console

    from ..render.to_terminal import show as show_document

    console = Console(highlight=False)
    if console.width > WIDEST:
        console.width = WIDEST
    show_document(document, console)


def _check_combinations(options: Options) -> None:
    own = bool(options.own or options.given)
    more = [f"--{name}" for name in ("scale", "token") if getattr(options, name) is not None]
    more += ["--causal"] if options.causal else []
    sources = [
        ("NAME", bool(options.words)), ("--given or matrices", own), ("--sheet", options.sheet is not None),
        ("--list", options.names),
    ]  # fmt: skip
    named = [name for name, there in sources if there]
    if len(named) > 1:
        raise UsageError(complaint(" and ".join(named), "together", "one of them"))
    if more and not own:
        hint = 'for example --x "2 3; -1 0" --wq "1 0; 0 1" --wk "1 1; 0 1" --wv "1 0; 0 2"'
        raise UsageError(complaint(", ".join(more), "no matrices of your own", "matrices, or --given", hint))
    if options.own and options.given is not None:
        raise UsageError(
            complaint("--given", f"it together with --{next(iter(options.own))}", "a file or matrices, not both")
        )
    if options.given is not None and more:
        raise UsageError(complaint(more[0], "it together with --given", "scale, token or mask in the file"))
    if own and options.seed is not None:
        raise UsageError(complaint("--seed", "it together with your own numbers", "one of them"))
    made = [name for name in ("copies", "export") if getattr(options, name) is not None]
    if len(made) > 1:
        raise UsageError(complaint("--copies and --export", "together", "one of them"))
    if made and (options.to or options.sheet is not None or own or options.names):
        raise UsageError(
            complaint(f"--{made[0]}", "it together with --to, --sheet, --list or your own numbers", "it alone")
        )
    if made and options.out is None:
        raise UsageError(complaint("--out", "nothing", f"the folder for --{made[0]} to write to"))
    unused = [name for name, value in (("--out", options.out), ("--as", options.form), ("--title", options.heading),
                                      ("--together", options.together)) if value]  # fmt: skip
    if unused and (not made or (made == ["export"] and unused != ["--out"])):
        raise UsageError(complaint(unused[-1], "it without --copies", "both of them"))


def _requests(options: Options) -> list[Request]:
    if options.own or options.given is not None:
        return [Request(_own_problem(options), ())]
    from ..problems import named, names

    whole_bank = options.export is not None and not options.words
    words = options.words or (list(names()) if whole_bank else ["by-hand"])
    found: list[Request] = []
    for word in words:
        try:
            if _PART.fullmatch(word.strip()) and found:
                problem, parts = found[-1]
                found[-1] = Request(problem, (*parts, problem.part(word).name))
            else:
                found.append(Request(named(word, options.seed), ()))
        except OptionError as error:
            raise UsageError(f"{error}") from None
    return found


def _own_problem(options: Options) -> Problem:
    from ..problems.by_hand.given import given, read_given

    if options.given is not None:
        return read_given(options.given)
    more: dict[str, Any] = {"scale": options.scale, "token": options.token}
    try:
        return given(**options.own, **more, mask="causal" if options.causal else None)
    except QkvError as error:
        raise UsageError(str(error)) from None


def _path(name: str) -> Path:
    """The output file, checked before the work begins."""
    from ..render.saving import writable

    try:
        return writable(name, "--to", SUFFIXES)
    except OptionError as error:
        raise UsageError(str(error)) from None


def document(request: Request, brief: bool) -> Document:
    from ..problems.printing.documents import solution_document

    return solution_document(request.problem.solve(), brief, request.parts)


def write(requests: Sequence[Request], brief: bool, path: Path) -> None:
    from ..problems.printing.documents import joined_documents
    from ..problems.printing.recomputed import cells
    from ..render.saving import save, write

    if path.suffix.lower() == ".json":
        found = [as_dict(each) for each in requests]
        text = json_text(found[0] if len(found) == 1 else found)
        write({path: f"{text}\n".encode()})
        return
    documents = [document(each, brief) for each in requests]
    if path.suffix.lower() == ".ipynb":
        documents = [
            replace(made, blocks=(*made.blocks, *cells(each.problem.solve())))
            for made, each in zip(documents, requests, strict=True)
        ]
    save(joined_documents(documents, "Worked solutions"), path)


def as_dict(request: Request) -> dict[str, Any]:
    from ..problems.printing.exports import solution_as_dict

    return solution_as_dict(request.problem.solve(), request.parts)


def _show_list(as_json: bool) -> None:
    from ..problems import bank

    rows = [(name, problem.title, len(problem.parts), problem.sources) for name, problem in bank().items()]
    if as_json:
        found = [
            {"name": name, "title": title, "parts": parts, "sources": list(sources)}
            for name, title, parts, sources in rows
        ]
        print(json_text(found))
        return
    wide = max(len(name) for name, *_ in rows)
    for name, title, parts, sources in rows:
        known = ", ".join(source.replace(" ", "-") for source in sources)  # as NAME takes them
        shown = f"{title} ({parts} part{'' if parts == 1 else 's'}; {known})"
        typer.echo(f"{name:<{wide}}  {shown}"[:WIDEST] if sys.stdout.isatty() else f"{name:<{wide}}  {shown}")


def solve_sheet(name: str, brief: bool, paths: Sequence[Path], as_json: bool) -> bool:
    """Solve what is recognised in an assignment, and list the questions that are not.

    Returns:
        Whether anything was recognised.
    """
    from ..problems.printing.assignments import LONGEST, MOST, left_off, recognised

    text = _read_assignment(Path(name), most=4 * LONGEST)
    found = recognised(text)
    known = [(question, match) for question, match in found if match is not None]
    unknown = [question.label for question, match in found if match is None]
    more = left_off(text) if len(found) == MOST else 0
    requests = [Request(match.problem, ()) for _, match in known]
    for path in paths if requests else ():
        write(requests, brief, path)
    if as_json:
        solved = [
            {"question": question.label, "score": round(match.score, 3), "solution": as_dict(each)}
            for (question, match), each in zip(known, requests, strict=True)
        ]
        print(json_text({"solved": solved, "unrecognised": unknown, "left_off": more}))
    else:
        for (question, match), each in zip(known, requests, strict=True):
            typer.secho(f"Question {line(question.label)}: {match.problem.name}", bold=True)
            if not paths:
                show(document(each, brief))
                typer.echo()
        for label in unknown:
            typer.echo(f"Question {line(label)}: not recognised")
    if more:
        typer.echo(f"qkv: the first {MOST} questions were read, {more} more were not; split the assignment", err=True)
    if not requests:
        typer.echo(f"qkv: no question in {name} was recognised; qkv solve --list shows the known problems", err=True)
    for path in paths if requests else ():
        typer.echo(f"written: {path}", err=True)
    return bool(requests)


def _read_assignment(path: Path, most: int) -> str:
    if not path.is_file():
        raise UsageError(complaint("--sheet", repr(str(path)), "an existing file", "a text or Markdown file"))
    size = path.stat().st_size
    if size > most:
        raise OptionError(complaint("--sheet", f"{size:,} bytes", f"at most {most:,}", "split the assignment"))
    raw = path.read_bytes()
    if b"\0" in raw[:4096] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "copy its text into a .md or .txt file"
        raise OptionError(complaint("--sheet", f"{path.name}, a binary file", "a text or Markdown file", hint))
    coding = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = raw.decode(coding, errors="replace")
    if not text.strip():
        raise OptionError(complaint("--sheet", f"{path.name}, an empty file", "an assignment"))
    return text


def print_sheets(requests: Sequence[Request], options: Options) -> None:
    """Write sheet-001.pdf, key-001.pdf and so on, or one file of sheets and one of keys."""
    from ..problems.printing.sheets import TITLE

    copies, form = options.copies or 0, (options.form or "pdf").lower().lstrip(".")
    if not 1 <= copies <= MOST_COPIES:
        raise UsageError(complaint("--copies", copies, f"from 1 to {MOST_COPIES}"))
    if form not in SHEET_FORMATS:
        raise UsageError(complaint("--as", repr(options.form), f"one of {', '.join(SHEET_FORMATS)}"))
    if any(each.parts for each in requests):
        raise UsageError(complaint("PART", "it together with --copies", "whole problems"))
    if form in ("pdf", "tex"):
        from ..render.to_typst import compiler

        compiler()
    folder = output_folder(options.out or "")
    names = tuple(each.problem.name for each in requests)
    first = options.seed or 0
    title = options.heading or TITLE
    if options.together:
        files = _together(names, first, copies, title, form, folder, options.as_json)
    else:
        jobs = [(names, first + copy, copy + 1, title, form, folder) for copy in range(copies)]
        files = [file for made in _printed(jobs, options.as_json) for file in made]
    if options.as_json:
        print(json.dumps({"copies": copies, "first_seed": first, "files": [str(file) for file in files]}, indent=2))
    else:
        typer.echo(f"{copies} sheet{'s' if copies > 1 else ''} with keys in {folder} ({len(files)} files)")


def export_bank(requests: Sequence[Request], options: Options) -> None:
    """Write the problems in the format of another program."""
    from ..problems.printing.exports import FORMATS, save_export

    form = (options.export or "").lower()
    if form not in FORMATS:
        raise UsageError(complaint("--export", repr(options.export), f"one of {', '.join(FORMATS)}"))
    files = save_export([each.problem for each in requests], form, output_folder(options.out or ""))
    if options.as_json:
        print(json.dumps({"format": form, "files": [str(file) for file in files]}, indent=2))
        return
    for file in files:
        typer.echo(f"written: {file}")


def output_folder(name: str) -> Path:
    """A folder that can be written to; it is created where it is missing."""
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise UsageError(complaint("--out", repr(name), "a folder", "a file of that name exists"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(complaint("--out", repr(name), "a folder that can be created", str(error.strerror))) from None
    if not os.access(folder, os.W_OK):
        raise OptionError(complaint("--out", repr(name), "a folder that can be written to"))
    return folder


@lru_cache(maxsize=32)
def _known(name: str) -> Problem:
    from ..problems import named

    return named(name)


def sheet_and_key(names: Sequence[str], seed: int, copy: int, title: str) -> tuple[Document, Document]:
    from ..problems.printing.sheets import sheet_document

    problems = [_known(name).variant(seed) for name in names]
    sheet = sheet_document(problems, title=title, copy=copy)
    return sheet, sheet_document(problems, key=True, title=title, copy=copy)


Job = tuple[Sequence[str], int, int, str, str, Path]


def _print_one(job: Job) -> list[Path]:
    from ..render.saving import save

    names, seed, copy, title, form, folder = job
    sheet, key = sheet_and_key(names, seed, copy, title)
    return [*save(sheet, folder / f"sheet-{copy:03d}.{form}"), *save(key, folder / f"key-{copy:03d}.{form}")]


def _printed(jobs: Sequence[Job], quiet: bool) -> Iterator[list[Path]]:
    """Run the jobs one after the other, or in two processes where there are many."""
    if len(jobs) < 12:
        yield from _with_progress(map(_print_one, jobs), len(jobs), quiet)
        return
    # Only the main process handles Ctrl-C; the workers end with it.
    with ProcessPoolExecutor(2, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield from _with_progress(pool.map(_print_one, jobs, chunksize=4), len(jobs), quiet)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _together(
    names: Sequence[str], first: int, copies: int, title: str, form: str, folder: Path, quiet: bool
) -> list[Path]:
    from ..problems.printing.documents import joined_documents
    from ..render.saving import save

    made = (sheet_and_key(names, first + copy, copy + 1, title) for copy in range(copies))
    sheets, keys = zip(*_with_progress(made, copies, quiet), strict=True)
    files = save(joined_documents(sheets, title), folder / f"sheets.{form}")
    return [*files, *save(joined_documents(keys, f"{title}: keys"), folder / f"keys.{form}")]


def _with_progress(things: Iterator[T], total: int, quiet: bool) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("printing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    silent = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task("", total=total)
        for thing in things:
            yield thing
            bar.advance(task)
