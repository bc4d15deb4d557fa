"""`qkv solve`: worked solutions, sheets and exports. Neither torch nor SymPy is loaded."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ..errors import OptionError, QkvError, complaint
from ..render.escapes import json_text

if TYPE_CHECKING:
    from ..problems import Problem
    from ..render import Document

WIDEST = 80
ENDINGS = (".md", ".tex", ".html", ".pdf", ".ipynb", ".json")
_PART = re.compile(r"\d{0,3}\(?[a-z]\)?(?:[.(]?[ivx]{1,4}\)?)?", re.IGNORECASE)


class Options(NamedTuple):
    """What the command was given; `own` are matrices by the names of their options."""

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


class WrongWord(Exception):
    """A call that is broken: the command ends with 2."""


class Asked(NamedTuple):
    """A problem and the parts of it that are wanted; none stands for all."""

    problem: Problem
    parts: tuple[str, ...]


def run(options: Options) -> bool:
    """Do what was asked; false where an assignment holds nothing that is known."""
    _refuse_mixtures(options)
    if options.names:
        _show_list(options.as_json)
        return True
    paths = [_path(name) for name in options.to]
    if options.sheet is not None:
        from .assignment import solve_sheet

        return solve_sheet(options.sheet, options.brief, paths, options.as_json)
    asked = _asked(options)
    if options.copies is not None or options.export is not None:
        from .printing import export_bank, print_sheets

        (print_sheets if options.copies is not None else export_bank)(asked, options)
        return True
    give(asked, options.brief, paths, options.as_json)
    return True


def give(asked: Sequence[Asked], brief: bool, paths: Sequence[Path], as_json: bool) -> None:
    """Write the solutions into files, and show them, one problem at a time."""
    for path in paths:
        write(asked, brief, path)
    if as_json:
        found = [as_dict(each) for each in asked]
        print(json_text(found[0] if len(found) == 1 else found))
    elif not paths:
        for place, each in enumerate(asked):
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


def _refuse_mixtures(options: Options) -> None:
    own = bool(options.own or options.given)
    more = [f"--{name}" for name in ("scale", "token") if getattr(options, name) is not None]
    more += ["--causal"] if options.causal else []
    sources = [
        ("NAME", bool(options.words)), ("--given or matrices", own), ("--sheet", options.sheet is not None),
        ("--list", options.names),
    ]  # fmt: skip
    named = [name for name, there in sources if there]
    if len(named) > 1:
        raise WrongWord(complaint(" and ".join(named), "together", "one of them"))
    if more and not own:
        hint = 'for example --x "2 3; -1 0" --wq "1 0; 0 1" --wk "1 1; 0 1" --wv "1 0; 0 2"'
        raise WrongWord(complaint(", ".join(more), "no matrices of your own", "matrices or --given beside it", hint))
    if options.own and options.given is not None:
        raise WrongWord(complaint("--given", f"beside --{next(iter(options.own))}", "a file, or matrices by hand"))
    if options.given is not None and more:
        raise WrongWord(complaint(more[0], "beside --given", "scale, token or mask in the file itself"))
    if own and options.seed is not None:
        raise WrongWord(complaint("--seed", "beside your own numbers", "one or the other"))
    made = [name for name in ("copies", "export") if getattr(options, name) is not None]
    if len(made) > 1:
        raise WrongWord(complaint("--copies and --export", "together", "one of them"))
    if made and (options.to or options.sheet is not None or own or options.names):
        raise WrongWord(complaint(f"--{made[0]}", "beside --to, --sheet, --list or your own numbers", "it alone"))
    if made and options.out is None:
        raise WrongWord(complaint("--out", "nothing", f"the folder that --{made[0]} writes to"))
    spare = [name for name, value in (("--out", options.out), ("--as", options.form), ("--title", options.heading),
                                      ("--together", options.together)) if value]  # fmt: skip
    if spare and (not made or (made == ["export"] and spare != ["--out"])):
        raise WrongWord(complaint(spare[-1], "nothing that it could belong to", "--copies beside it"))


def _asked(options: Options) -> list[Asked]:
    if options.own or options.given is not None:
        return [Asked(_own(options), ())]
    from ..problems import named, names

    whole_bank = options.export is not None and not options.words
    words = options.words or (list(names()) if whole_bank else ["by-hand"])
    found: list[Asked] = []
    for word in words:
        try:
            if _PART.fullmatch(word.strip()) and found:
                problem, parts = found[-1]
                found[-1] = Asked(problem, (*parts, problem.part(word).name))
            else:
                found.append(Asked(named(word, options.seed), ()))
        except OptionError as error:
            raise WrongWord(f"{error}") from None
    return found


def _own(options: Options) -> Problem:
    from ..problems.by_hand.given import given, read_given

    if options.given is not None:
        return read_given(options.given)
    more: dict[str, Any] = {"scale": options.scale, "token": options.token}
    try:
        return given(**options.own, **more, mask="causal" if options.causal else None)
    except QkvError as error:
        raise WrongWord(str(error)) from None


def _path(name: str) -> Path:
    """Before the work begins: a file that cannot be written is said at once."""
    from ..render.saving import writable

    try:
        return writable(name, "--to", ENDINGS)
    except OptionError as error:
        raise WrongWord(str(error)) from None


def document(asked: Asked, brief: bool) -> Document:
    from ..problems.printing.documents import solution_document

    return solution_document(asked.problem.solve(), brief, asked.parts)


def write(asked: Sequence[Asked], brief: bool, path: Path) -> None:
    from ..problems.printing.documents import joined_documents
    from ..problems.printing.recomputed import cells
    from ..render.saving import save, write

    if path.suffix.lower() == ".json":
        found = [as_dict(each) for each in asked]
        text = json_text(found[0] if len(found) == 1 else found)
        write({path: f"{text}\n".encode()})
        return
    documents = [document(each, brief) for each in asked]
    if path.suffix.lower() == ".ipynb":
        documents = [
            replace(made, blocks=(*made.blocks, *cells(each.problem.solve())))
            for made, each in zip(documents, asked, strict=True)
        ]
    save(joined_documents(documents, "Worked solutions"), path)


def as_dict(asked: Asked) -> dict[str, Any]:
    from ..problems.printing.exports import solution_as_dict

    return solution_as_dict(asked.problem.solve(), asked.parts)


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
