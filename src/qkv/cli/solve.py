"""`qkv solve`: exercises of the bank, of a file, of a sheet or in words; printed sheets and exports. No torch."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer

from ..errors import OptionError, complaint
from ..render.escapes import json_text, line
from .errors import UsageError
from .waiting import waiting

if TYPE_CHECKING:
    from ..exercises import Exercise, Finding, Solution
    from ..exercises.bank import BankExercise
    from ..render import Document

T = TypeVar("T")
WIDEST = 80
MOST_COPIES = 2000
SHEET_FORMATS = ("pdf", "tex", "html", "md", "ipynb")
SUFFIXES = (".md", ".tex", ".html", ".pdf", ".ipynb", ".json")
_PART = re.compile(r"\d{0,3}\(?[a-z]\)?(?:[.(]?[ivx]{1,4}\)?)?", re.IGNORECASE)
_ROLES = {"x": "tokens", "wq": "query_weight", "wk": "key_weight", "wv": "value_weight", "wo": "output_weight",
          "q": "query", "k": "key", "v": "value"}  # fmt: skip
_SIMILARITIES = ("softmax", "argmax", "sigmoid", "relu", "linear", "exponential")


class Options(NamedTuple):
    """The arguments of the command; `own` maps the names of options to matrices, `setting` to the other numbers."""

    words: Sequence[str] = ()
    seed: int | None = None
    brief: bool = False
    to: Sequence[str] = ()
    names: bool = False
    own: Mapping[str, str] = MappingProxyType({})
    setting: Mapping[str, Any] = MappingProxyType({})
    sheet: str | None = None
    copies: int | None = None
    export: str | None = None
    out: str | None = None
    form: str | None = None
    together: bool = False
    heading: str | None = None
    schema: bool = False
    record: bool = False
    as_json: bool = False


@dataclass
class Entry:
    """One exercise to solve: from the bank with the parts that are wanted, or as it was read."""

    exercise: Exercise
    parts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    understood: bool = True
    confidence: float = 1.0
    choose: Any = field(default=None, repr=False)

    @property
    def in_bank(self) -> bool:
        from ..exercises.bank import BankExercise

        return isinstance(self.exercise, BankExercise)

    def solution(self) -> Solution:
        from ..exercises import solve

        return self.choose() if self.choose is not None else solve(self.exercise)


def run(options: Options) -> bool:
    """Run the command.

    Returns:
        Whether anything was solved, or done.
    """
    _check_combinations(options)
    if options.schema:
        from ..exercises import schema

        print(json_text(schema()))
        return True
    if options.names:
        _show_list(options.as_json)
        return True
    paths = [_path(name) for name in options.to]
    entries = _entries(options)
    if options.copies is not None or options.export is not None:
        if any(not entry.in_bank for entry in entries):
            raise UsageError(complaint("NAME", "an exercise that is not of the bank", "names of the bank"))
        (print_sheets if options.copies is not None else export_bank)(entries, options)
        return True
    if options.record:
        found = [entry.exercise.model_dump(mode="json", exclude_defaults=True) for entry in entries]
        print(json_text(found[0] if len(found) == 1 else found))
        return any(entry.understood for entry in entries)
    return give_solutions(entries, options.brief, paths, options.as_json)


def give_solutions(entries: Sequence[Entry], brief: bool, paths: Sequence[Path], as_json: bool) -> bool:
    """Write the solutions into files, or print them one exercise at a time, with a count at the end."""
    with waiting(f"solving {len(entries)} exercises" if len(entries) > 1 else "solving"):
        solutions = [entry.solution() if entry.understood else None for entry in entries]
        documents = [_document(entry, solution, brief) for entry, solution in zip(entries, solutions, strict=True)]
    counts = _counts(entries, solutions)
    plain = [_as_dict(entry, solution) for entry, solution in zip(entries, solutions, strict=True)]
    for path in paths:
        _write(documents, plain, path)
    if as_json:
        alone = len(entries) == 1 and entries[0].in_bank
        print(json_text(plain[0] if alone else {"questions": plain, **counts}))
    elif not paths:
        for place, document in enumerate(documents):
            if place:
                typer.echo()
            show(document)
        if not all(entry.in_bank for entry in entries):
            words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
            typer.echo(f"\n{words}")
    for path in paths:
        typer.echo(f"written: {path}", err=True)
    return counts["solved"] > 0


def show(document: Document) -> None:
    from rich.console import Console

    from ..render.to_terminal import show as show_document

    console = Console(highlight=False)
    if console.width > WIDEST:
        console.width = WIDEST
    show_document(document, console)


def _counts(entries: Sequence[Entry], solutions: Sequence[Solution | None]) -> dict[str, int]:
    parts = [part for solution in solutions if solution is not None for part in solution.parts]
    solved = sum(part.answer is not None for part in parts)
    unread = sum(not entry.understood for entry in entries)
    unread += sum(
        finding.code == "unread_clause" for entry in entries if entry.understood for finding in entry.findings
    )
    return {"solved": solved, "refused": len(parts) - solved, "not_understood": unread}


def _check_combinations(options: Options) -> None:
    own = bool(options.own)
    set_up = [f"--{name.replace('_', '-')}" for name, value in options.setting.items() if value]
    sources = [("NAME", bool(options.words)), ("matrices", own), ("--sheet", options.sheet is not None),
               ("--list", options.names), ("--schema", options.schema)]  # fmt: skip
    named = [name for name, there in sources if there]
    if len(named) > 1:
        raise UsageError(complaint(" and ".join(named), "together", "one of them"))
    if set_up and not own:
        hint = 'for example --x "2 3; -1 0" --wq "1 0; 0 1" --wk "1 1; 0 1" --wv "1 0; 0 2"'
        raise UsageError(complaint(", ".join(set_up), "it without matrices", "your own numbers with it", hint))
    if own and options.seed is not None:
        raise UsageError(complaint("--seed", "it together with your own numbers", "one of them"))
    made = [name for name in ("copies", "export") if getattr(options, name) is not None]
    if len(made) > 1:
        raise UsageError(complaint("--copies and --export", "together", "one of them"))
    if made and (options.to or options.sheet is not None or own or options.names or options.record):
        others = "it together with --to, --sheet, --list, --record or your own numbers"
        raise UsageError(complaint(f"--{made[0]}", others, "it alone"))
    if made and options.out is None:
        raise UsageError(complaint("--out", "nothing", f"the folder for --{made[0]} to write to"))
    unused = [name for name, value in (("--out", options.out), ("--as", options.form), ("--title", options.heading),
                                      ("--together", options.together)) if value]  # fmt: skip
    if unused and (not made or (made == ["export"] and unused != ["--out"])):
        raise UsageError(complaint(unused[-1], "it without --copies", "both of them"))


def _entries(options: Options) -> list[Entry]:
    if options.own:
        return [Entry(_own_exercise(options))]
    if options.sheet is not None:
        path = Path(options.sheet)
        if not path.is_file():
            raise UsageError(complaint("--sheet", repr(options.sheet), "an existing file"))
        return _read_sheet(path)
    from ..exercises.bank import names

    words = list(options.words) or (list(names()) if options.export is not None else ["by-hand"])
    found: list[Entry] = []
    for word in words:
        if found and found[-1].in_bank and _PART.fullmatch(word.strip()):
            entry = found[-1]
            label = entry.exercise.only(word).asked[0].label
            found[-1] = Entry(entry.exercise, (*entry.parts, label))
        else:
            found += _of_word(word, options)
    return found


def _of_word(word: str, options: Options) -> list[Entry]:
    """The exercises that an argument stands for: stdin, a record, a sheet, a question in words, or a name."""
    if word == "-":
        return _read_words(_from_stdin())
    from ..exercises.bank import names

    path = Path(word) if len(word) < 1000 and "\n" not in word else None
    if path is not None and word.strip() and path.is_dir() and path.name not in names():
        raise UsageError(complaint("NAME", f"{word!r}, which is a folder", "a file, a name of the bank, or a question"))
    if path is not None and path.is_file():
        if path.suffix.lower() in (".toml", ".json"):
            from ..exercises import Exercise

            return [Entry(Exercise.load(path))]
        return _read_sheet(path)
    if path is not None and (path.suffix.lower() in (".md", ".txt", ".tex", ".pdf", ".docx", ".ipynb", ".toml", ".json")
                             and " " not in word):  # fmt: skip
        raise UsageError(complaint("NAME", repr(word), "an existing file, a name of the bank, or a question"))
    if len(word.split()) > 2 or "?" in word or not word.strip():
        return _read_words(word)
    from ..exercises.bank import named

    return [Entry(named(word, options.seed))]


def _from_stdin() -> str:
    """The text of the standard input, in any encoding that documents have."""
    from ..documents import read_document

    if sys.stdin is None:  # the parent process closed it
        raise UsageError(complaint("-", "a closed standard input", "a question in words"))
    return read_document(sys.stdin.buffer.read(), "standard input").source


def _read_words(text: str) -> list[Entry]:
    from ..exercises.sheets import read_sheet

    if not text.strip():
        raise UsageError(complaint("NAME", "an empty text", "a question in words"))
    return _from_readings(read_sheet(f"{text.strip()}\n"))


def _read_sheet(path: Path) -> list[Entry]:
    from ..documents import read_document
    from ..exercises.sheets import read_sheet

    if not read_document(path).source.strip():
        raise UsageError(complaint("FILE", f"{str(path)!r}, which is empty", "a sheet with questions"))
    entries = _from_readings(read_sheet(path))
    if not entries:
        raise OptionError(complaint("sheet", f"{path.name}, without a question", "an assignment"))
    return entries


def _from_readings(readings: Sequence[Any]) -> list[Entry]:
    return [Entry(each.exercise, (), each.findings, each.understood, each.confidence, each.solve) for each in readings]


def _own_exercise(options: Options) -> Exercise:
    """The record of numbers on the command line: scores, weights and output of attention."""
    from ..exercises import Exercise
    from ..exercises.sheets.arrays import read_array
    from ..exercises.sheets.literals import read_number

    own, setting = options.own, options.setting

    def matrix(name: str, text: str) -> Any:
        found = read_array(text)
        found = read_array(f"[{text}]") if found is None or not isinstance(found, list) else found
        if not isinstance(found, list) or not found:
            hint = 'rows with ";" between them: "2 3; -1 0"'
            wanted = "a matrix of numbers, with rows of one length"
            if name == "mask":
                wanted, hint = 'causal, "window(2, 0)" or a matrix of 0 and 1', 'rows with ";" between them: "1 0; 1 1"'
            raise UsageError(complaint(f"--{name}", repr(text), wanted, hint))
        return found if isinstance(found[0], list) else [found]

    symbols = {"x": "X", "wq": "W_Q", "wk": "W_K", "wv": "W_V", "wo": "W_O", "q": "Q", "k": "K", "v": "V"}
    givens = [
        {"symbol": symbols[name], "role": _ROLES[name], "value": matrix(name, text)} for name, text in own.items()
    ]
    similarity = setting.get("similarity") or "softmax"
    if similarity not in _SIMILARITIES:
        raise UsageError(complaint("--similarity", repr(similarity), f"one of {', '.join(_SIMILARITIES)}"))
    mask = "causal" if setting.get("causal") else "none"
    if said := setting.get("mask"):
        if re.match(r"(?:causal|none|window|padding)\b", said):
            mask = said if mask == "none" else f"causal & {said}"
        else:
            givens.append({"symbol": "M", "role": "mask", "value": matrix("mask", said)})
    scale: dict[str, Any] = {"value": "sqrt", "source": "assumed"}
    if said := setting.get("scale"):
        scale = {"value": said if said in ("sqrt", "none") else read_number(said)}
        if scale["value"] is None:
            raise UsageError(complaint("--scale", repr(said), 'a number, "sqrt" or "none"'))
    sizes = {name: setting[name] for name in ("heads", "kv_heads") if setting.get(name)}
    has_values = {"v", "wv"} & own.keys() or set(own) == {"x"}
    asked = ["scores", *(["weights"] if similarity != "argmax" else []), *(["output"] if has_values else [])]
    return Exercise.from_plain({
        "title": "Your own numbers",
        "givens": givens,
        "structure": {"similarity": similarity, "mask": mask, **sizes},
        "conventions": {"scale": scale},
        "asked": [{"label": label, "quantity": name, "row": setting.get("token")}
                  for label, name in zip("abc", asked, strict=False)],
    })  # fmt: skip


def _path(name: str) -> Path:
    """The output file, checked before the work begins."""
    from ..render.saving import writable

    return writable(name, "--to", SUFFIXES)


def _document(entry: Entry, solution: Solution | None, brief: bool) -> Document:
    """What was understood, then each answer; an exercise of the bank as its family prints it."""
    from ..exercises.printing import answer_note, shown_label, solution_document, worked_blocks
    from ..render import document as d

    exercise = entry.exercise
    if entry.in_bank and solution is not None:
        return solution_document(solution, brief=brief, parts=entry.parts)
    name = line(" ".join(filter(None, (exercise.label, exercise.title)))) or "Question"
    blocks: list[Any] = []
    said = [(head, ", ".join(words)) for head, words in exercise.understood() if words]
    if said and entry.understood:
        blocks.append(d.Table(("understood", ""), tuple((head, line(words)) for head, words in said)))
    for finding in entry.findings:
        words = line(finding.words())
        blocks.append(d.Paragraph(f"{words[:1].upper()}{words[1:]}."))
    if not entry.understood and said:
        found = "; ".join(f"{head}: {words}" for head, words in said)
        blocks.append(d.Paragraph(line(f"Found: {found}.")))
    parts = solution.parts if solution is not None else ()
    for part in parts:
        if len(parts) > 1:
            what = f"{part.asked.quantity} of {part.asked.object}" if part.asked.object else part.asked.quantity
            label = (
                f"{shown_label(part.asked.label)} " if part.asked.label and part.asked.label != exercise.label else ""
            )
            blocks.append(d.Heading(line(f"{label}{what.replace('_', ' ')}"), 3))
        blocks += [answer_note(exercise, part)] if brief else list(worked_blocks(exercise, part))
    return d.Document(name, tuple(blocks))


def _as_dict(entry: Entry, solution: Solution | None) -> dict[str, Any]:
    exercise = entry.exercise
    found = solution.as_dict()["parts"] if solution is not None else []
    if entry.in_bank:
        wanted = [part for part in found if not entry.parts or part["label"] in entry.parts]
        named: Any = exercise
        return {"name": named.name, "seed": named.seed, "title": exercise.title, "parts": wanted}
    record = exercise.model_dump(mode="json", exclude_defaults=True)
    findings = [{**finding.as_dict(), "words": finding.words()} for finding in entry.findings]
    return {"label": exercise.label, "understood": entry.understood, "confidence": entry.confidence, "record": record,
            "findings": findings, "parts": found}  # fmt: skip


def _write(documents: Sequence[Document], plain: Sequence[dict[str, Any]], path: Path) -> None:
    from ..exercises.printing import joined_documents
    from ..render.saving import save, write

    if path.suffix.lower() == ".json":
        write({path: f"{json_text(plain[0] if len(plain) == 1 else list(plain))}\n".encode()})
    else:
        save(joined_documents(list(documents), "Worked solutions"), path)


def _show_list(as_json: bool) -> None:
    from ..exercises.bank import named, names

    rows = [(name, named(name)) for name in names()]
    if as_json:
        found = [
            {"name": name, "title": each.title, "parts": len(each.asked), "sources": list(each.sources)}
            for name, each in rows
        ]
        print(json_text(found))
        return
    wide = max(len(name) for name, _ in rows)
    for name, each in rows:
        count = len(each.asked)
        shown = f"{name:<{wide}}  {each.title} ({count} part{'' if count == 1 else 's'})"
        typer.echo(shown[:WIDEST] if sys.stdout.isatty() else shown)


def print_sheets(entries: Sequence[Entry], options: Options) -> None:
    """Write sheet-001.pdf, key-001.pdf and so on, or one file of sheets and one of keys."""
    from ..exercises.printing import TITLE

    copies, form = options.copies or 0, (options.form or "pdf").lower().lstrip(".")
    if not 1 <= copies <= MOST_COPIES:
        raise UsageError(complaint("--copies", copies, f"from 1 to {MOST_COPIES}"))
    if form not in SHEET_FORMATS:
        raise UsageError(complaint("--as", repr(options.form), f"one of {', '.join(SHEET_FORMATS)}"))
    if any(entry.parts for entry in entries):
        raise UsageError(complaint("PART", "it together with --copies", "whole exercises"))
    if form in ("pdf", "tex"):
        from ..render.to_typst import compiler

        compiler()
    folder = output_folder(options.out or "")
    exercises: list[Any] = [entry.exercise for entry in entries]
    names = tuple(each.name for each in exercises)
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


def export_bank(entries: Sequence[Entry], options: Options) -> None:
    """Write the exercises in the format of another program."""
    from ..exercises.exports import FORMATS, save_export

    form = (options.export or "").lower()
    if form not in FORMATS:
        raise UsageError(complaint("--export", repr(options.export), f"one of {', '.join(FORMATS)}"))
    files = save_export([entry.exercise for entry in entries], form, output_folder(options.out or ""))
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


@lru_cache(maxsize=64)
def _variant(name: str, seed: int) -> BankExercise:
    from ..exercises.bank import named

    return named(name, seed)


def sheet_and_key(names: Sequence[str], seed: int, copy: int, title: str) -> tuple[Document, Document]:
    from ..exercises.printing import sheet_document

    exercises = [_variant(name, seed) for name in names]
    sheet = sheet_document(exercises, title=title, copy=copy)
    return sheet, sheet_document(exercises, key=True, title=title, copy=copy)


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
    from ..exercises.printing import joined_documents
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
