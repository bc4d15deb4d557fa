"""`qkv solve --sheet`: a whole assignment, one problem at a time, and what of it is not known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from ..errors import OptionError, complaint
from ..problems.printing.assignments import LONGEST, MOST, left_off, recognised
from ..render.escapes import json_text, line
from .solve import Asked, WrongWord, as_dict, document, show, write

_LARGEST = 4 * LONGEST  # bytes


def solve_sheet(name: str, brief: bool, paths: Sequence[Path], as_json: bool) -> bool:
    """Whether anything in it was recognised."""
    text = _read(Path(name))
    found = recognised(text)
    known = [(question, match) for question, match in found if match is not None]
    unknown = [question.label for question, match in found if match is None]
    more = left_off(text) if len(found) == MOST else 0
    asked = [Asked(match.problem, ()) for _, match in known]
    for path in paths if asked else ():
        write(asked, brief, path)
    if as_json:
        solved = [
            {"question": question.label, "score": round(match.score, 3), "solution": as_dict(each)}
            for (question, match), each in zip(known, asked, strict=True)
        ]
        told = {"solved": solved, "unrecognised": unknown, "left_off": more}
        print(json_text(told))
    else:
        for (question, match), each in zip(known, asked, strict=True):
            typer.secho(f"Question {line(question.label)}: {match.problem.name}", bold=True)
            if not paths:
                show(document(each, brief))
                typer.echo()
        for label in unknown:
            typer.echo(f"Question {line(label)}: not recognised")
    if more:
        typer.echo(f"qkv: the first {MOST} questions were read, {more} more were not; split the assignment", err=True)
    if not asked:
        typer.echo(
            f"qkv: nothing in {name} is a question that qkv knows; qkv solve --list shows what it does", err=True
        )
    for path in paths if asked else ():
        typer.echo(f"written: {path}", err=True)
    return bool(asked)


def _read(path: Path) -> str:
    if not path.is_file():
        raise WrongWord(complaint("--sheet", repr(str(path)), "a file that is there", "a text or Markdown file"))
    size = path.stat().st_size
    if size > _LARGEST:
        raise OptionError(complaint("--sheet", f"{size:,} bytes", f"at most {_LARGEST:,}", "split the assignment"))
    raw = path.read_bytes()
    if b"\0" in raw[:4096] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "copy its text into a .md or .txt file"
        raise OptionError(complaint("--sheet", f"{path.name}, which is no text", "a text or Markdown file", hint))
    coding = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = raw.decode(coding, errors="replace")
    if not text.strip():
        raise OptionError(complaint("--sheet", f"{path.name}, which is empty", "an assignment"))
    return text
