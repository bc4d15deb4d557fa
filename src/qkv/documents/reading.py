"""Read a file or a text as a document, by its name or by what it begins with."""

from __future__ import annotations

import re
from pathlib import Path

from .cleaning import clean
from .document import TABLE, Document, Draft, unreadable
from .latex import read_latex
from .markdown import read_markdown
from .packed import read_docx, read_notebook, read_pdf
from .plain import read_plain

MOST_BYTES = 5 * 1024 * 1024  # of a text
MOST_PACKED = 4 * MOST_BYTES  # of a PDF or docx file
_BINARY = (b"\x7fELF", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!",
           b"\xd0\xcf\x11\xe0", b"RIFF", b"OggS", b"MZ\x90", b"\x80\x04\x95", b"GGUF", b"SQLite format")  # fmt: skip


def read_document(source: str | Path | bytes, name: str = "") -> Document:
    """Read a file, bytes or a text.

    Args:
        source: A path (a `Path`, or a `str` that names a file), bytes, or with `name` a text.
        name: The file's name where bytes or a text are given; its suffix says the format.

    Returns:
        The document. `document.text` is clean.

    Raises:
        OptionError: The file is missing, too large, binary, or not what its suffix says.
        MissingExtra: A docx or a PDF file, and the package that reads it is not installed.

    >>> read_document("## 1. Scores\\n\\nLet **q** = (1, 2).", name="sheet.md").text
    '1. Scores\\n\\nLet q = (1, 2).'
    """
    if isinstance(source, bytes):
        data, name = source, name or "document"
    elif isinstance(source, str) and name:
        data = source.encode("utf-8", "replace")
    else:
        data, name = _load(Path(source)), name or Path(source).name
    kind = _kind(data, name)
    packed = kind in ("pdf", "docx")
    _bounded(name, len(data), MOST_PACKED if packed else MOST_BYTES)
    if packed:
        text = read_pdf(data, name) if kind == "pdf" else read_docx(data, name)
        _bounded(name, len(text), MOST_BYTES)
    else:
        text = _decoded(data) if kind else None
        if text is None:
            supported = "Markdown, plain text, LaTeX, a notebook, docx or PDF"
            raise unreadable(f"{name!r}, a binary file", supported, "save it as one of these")
        text = read_notebook(text, name) if kind == "notebook" else text
        text = f"```python\n{text}\n```" if kind == "python" else text
    draft = Draft(text)
    paged = clean(draft)
    if kind == "markdown" and paged and not re.search(r"^#{1,6} |^```", draft.text, re.MULTILINE):
        kind = "plain"  # PDF text that was saved as Markdown
    if kind == "latex":
        read_latex(draft)
    blocks = read_plain(draft) if kind in ("plain", "pdf") else read_markdown(draft)
    return Document(name, kind, text, draft, tuple(sorted(blocks, key=lambda block: block.span)))


def _load(path: Path) -> bytes:
    if path.is_dir():
        raise unreadable(repr(str(path)), "a file, not a folder")
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MOST_PACKED else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise unreadable(f"{str(path)!r} ({reason})", "a file that can be read") from None
    _bounded(str(path), size, MOST_PACKED)
    return data


def _bounded(name: str, size: int, most: int) -> None:
    if size > most:
        raise unreadable(f"{name!r} with {size:,} bytes", f"at most {most:,}", "give the part with the exercises")


def _kind(data: bytes, name: str) -> str:
    """The format of a file; "" of a binary one."""
    kind = TABLE.data["suffixes"].get(Path(name).suffix.lower(), "")
    if data.startswith(b"%PDF-"):
        return "pdf"
    if data.startswith(b"PK\x03\x04") and (kind == "docx" or b"word/" in data[:20_000]):
        return "docx"
    if data.startswith((b"PK\x03\x04", *_BINARY)):
        return ""
    if kind in ("pdf", "docx"):
        raise unreadable(f"{name!r}, which is not what its name says", f"a {kind} file")
    if kind:
        return kind
    head = data[:200_000]
    if head.lstrip()[:1] == b"{" and b'"cells"' in data and b'"cell_type"' in data:
        return "notebook"
    if re.search(rb"\\documentclass|\\begin\{document\}|\\section\*?\{", head):
        return "latex"
    return "markdown" if re.search(rb"^#{1,6} |^```|^\|.*\|\s*$", head, re.MULTILINE) else "plain"


def _decoded(data: bytes) -> str | None:
    """The text of bytes: UTF-8, UTF-16 by its mark or its zeros, else Latin letters; None for binary ones."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    zeros = data[1:4000:2].count(0), data[:4000:2].count(0)
    if len(data) > 8 and max(zeros) > 0.4 * min(2000, len(data) / 2) and min(zeros) < 0.05 * max(zeros) + 1:
        return data.decode("utf-16-le" if zeros[0] > zeros[1] else "utf-16-be", "replace")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    return None if len(re.findall(r"[\0-\x08\x0e-\x1f\x7f\ufffd]", text)) > max(8, 0.1 * len(text)) else text
