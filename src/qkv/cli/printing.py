"""`qkv solve --copies` and `--export`: sheets with their keys, and the bank for other programs."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from ..errors import OptionError, complaint
from .solve import Asked, Options, WrongWord

if TYPE_CHECKING:
    from ..problems import Problem
    from ..render import Document

T = TypeVar("T")
MOST_COPIES = 2000
FORMS = ("pdf", "tex", "html", "md", "ipynb")


def print_sheets(asked: Sequence[Asked], options: Options) -> None:
    """sheet-001.pdf, key-001.pdf and so on; or all in one file each."""
    from ..problems.printing.sheets import TITLE

    copies, form = options.copies or 0, (options.form or "pdf").lower().lstrip(".")
    if not 1 <= copies <= MOST_COPIES:
        raise WrongWord(complaint("--copies", copies, f"from 1 to {MOST_COPIES}"))
    if form not in FORMS:
        raise WrongWord(complaint("--as", repr(options.form), f"one of {', '.join(FORMS)}"))
    if any(each.parts for each in asked):
        raise WrongWord(complaint("PART", "beside --copies", "whole problems"))
    if form in ("pdf", "tex"):
        from ..render.to_typst import compiler

        compiler()
    folder = made_folder(options.out or "")
    names = tuple(each.problem.name for each in asked)
    first = options.seed or 0
    title = options.heading or TITLE
    if options.together:
        files = _together(names, first, copies, title, form, folder, options.as_json)
    else:
        jobs = [(names, first + copy, copy + 1, title, form, folder) for copy in range(copies)]
        files = [file for made in _worked(jobs, options.as_json) for file in made]
    if options.as_json:
        print(json.dumps({"copies": copies, "first_seed": first, "files": [str(file) for file in files]}, indent=2))
    else:
        typer.echo(f"{copies} sheet{'s' if copies > 1 else ''} with keys in {folder} ({len(files)} files)")


def export_bank(asked: Sequence[Asked], options: Options) -> None:
    """The problems in the format of another program."""
    from ..problems.printing.exports import FORMATS, save_export

    form = (options.export or "").lower()
    if form not in FORMATS:
        raise WrongWord(complaint("--export", repr(options.export), f"one of {', '.join(FORMATS)}"))
    files = save_export([each.problem for each in asked], form, made_folder(options.out or ""))
    if options.as_json:
        print(json.dumps({"format": form, "files": [str(file) for file in files]}, indent=2))
        return
    for file in files:
        typer.echo(f"written: {file}")


def made_folder(name: str) -> Path:
    """A folder that can be written to, made where it is not there."""
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise WrongWord(complaint("--out", repr(name), "a folder", "a file of that name is there"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(complaint("--out", repr(name), "a folder that can be made", str(error.strerror))) from None
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


def _worked(jobs: Sequence[Job], quiet: bool) -> Iterator[list[Path]]:
    """The jobs one after the other, or in two processes where there are many."""
    if len(jobs) < 12:
        yield from _counted(map(_print_one, jobs), len(jobs), quiet)
        return
    # Ctrl-C is for the one process that talks: the others end when it does.
    with ProcessPoolExecutor(2, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield from _counted(pool.map(_print_one, jobs, chunksize=4), len(jobs), quiet)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _together(
    names: Sequence[str], first: int, copies: int, title: str, form: str, folder: Path, quiet: bool
) -> list[Path]:
    from ..problems.printing.documents import joined_documents
    from ..render.saving import save

    made = (sheet_and_key(names, first + copy, copy + 1, title) for copy in range(copies))
    sheets, keys = zip(*_counted(made, copies, quiet), strict=True)
    files = save(joined_documents(sheets, title), folder / f"sheets.{form}")
    return [*files, *save(joined_documents(keys, f"{title}: keys"), folder / f"keys.{form}")]


def _counted(things: Iterator[T], total: int, quiet: bool) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("printing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    silent = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task("", total=total)
        for thing in things:
            yield thing
            bar.advance(task)
