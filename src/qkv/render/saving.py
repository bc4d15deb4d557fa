"""Write a document into a file, completely or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import OptionError, complaint
from ..figures.theme import standalone
from . import document as d

SUFFIXES = (".html", ".pdf", ".md", ".tex", ".ipynb")


def writable(path: str | os.PathLike[str], argument: str = "path", suffixes: tuple[str, ...] = SUFFIXES) -> Path:
    """The path, if a document can be written there; to be checked before the work begins.

    >>> writable("report.doc", "--report")
    Traceback (most recent call last):
    qkv.errors.OptionError: --report: got 'report.doc', wanted a file that ends in .html, .pdf, .md, .tex or .ipynb.
    """
    given = Path(path)
    if given.suffix.lower() not in suffixes:
        raise OptionError(complaint(argument, repr(str(path)), f"a file that ends in {_either(suffixes)}"))
    if given.exists() and not given.is_file():
        raise OptionError(complaint(argument, repr(str(path)), "a file", "a folder or device has that name"))
    folder = given.resolve().parent
    if not folder.is_dir():
        raise OptionError(
            complaint(argument, repr(str(path)), "a file in an existing folder", "create the folder first")
        )
    if not os.access(folder, os.W_OK) or (given.exists() and not os.access(given, os.W_OK)):
        raise OptionError(complaint(argument, repr(str(path)), "a file that can be written"))
    if given.suffix.lower() in (".pdf", ".tex"):
        from .to_typst import compiler

        compiler()
    return given


def save(document: d.Document, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the document in the format of the path's suffix; Markdown and LaTeX get their figures as separate files.

    Every file is written under a temporary name first, and renamed when all are complete.
    """
    return write(contents(document, writable(path)))


def write(contents: Mapping[Path, bytes]) -> tuple[Path, ...]:
    """Write all files, or none of them."""
    waiting: list[tuple[str, Path]] = []
    try:
        for place, content in contents.items():
            waiting.append((_write_temporary(place, content), place))
        for written, place in waiting:
            os.replace(written, place.resolve())
    finally:
        for written, _ in waiting:
            Path(written).unlink(missing_ok=True)
    return tuple(contents)


def contents(document: d.Document, path: Path) -> dict[Path, bytes]:
    """The contents of the files; the document is last, so that the files that it names exist before it."""
    suffix, files = path.suffix.lower(), {}
    if suffix == ".html":
        from .to_html import html

        whole = html(document).encode()
    elif suffix == ".pdf":
        from .to_typst import pdf

        whole = pdf(document)
    elif suffix == ".md":
        from .to_markdown import markdown

        names = _names(document, path, "svg")
        files = {
            path.with_name(name): standalone(figure.svg).encode()
            for name, figure in zip(names, document.figures(), strict=True)
        }
        whole = markdown(document, [_linked(name) for name in names]).encode()
    elif suffix == ".ipynb":
        from .to_markdown import notebook

        whole = notebook(document).encode()
    else:
        from .to_latex import latex
        from .to_typst import figure_pdf

        names = _names(document, path, "pdf")
        files = {
            path.with_name(name): figure_pdf(figure.svg) for name, figure in zip(names, document.figures(), strict=True)
        }
        whole = latex(document, names).encode()
    return {**files, path: whole}


def _names(document: d.Document, path: Path, ending: str) -> list[str]:
    return [f"{path.stem}-{place}.{ending}" for place, _ in enumerate(document.figures(), 1)]


def _linked(name: str) -> str:
    from urllib.parse import quote

    return quote(name)


def _write_temporary(place: Path, content: bytes) -> str:
    target = place.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return name


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
