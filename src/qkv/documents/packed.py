"""Notebooks, docx and PDF files into a text: Markdown, or pages with form feeds between them."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from io import BytesIO
from typing import Any

from ..errors import MissingExtra
from .document import TABLE, counted, unreadable
from .latex import table

MOST_UNPACKED = 60_000_000  # bytes that a docx may unpack to
MOST_PAGES = 500


def read_notebook(data: str, name: str) -> str:
    """The cells of a Jupyter notebook: text as it is, code between lines of backticks; outputs are left out."""
    try:
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(data)["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        wanted = "a Jupyter notebook of format 4 or later (JSON with cells)"
        raise unreadable(repr(name), wanted, "save it again in Jupyter") from None
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells)


def read_pdf(data: bytes, name: str) -> str:
    """The pages of a PDF file."""
    try:
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError
    except ImportError:
        raise MissingExtra(f"reading the PDF file {name!r}", "pypdf", "documents") from None
    import logging

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings on damaged files are not for the user
    try:
        pages = PdfReader(BytesIO(data)).pages[: MOST_PAGES + 1]
        text = "\n\f".join(page.extract_text().rstrip() for page in pages)
    # A damaged file fails anywhere inside pypdf.
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as error:
        hint = "open it in a viewer and save it again, without a password"
        raise unreadable(f"{name!r}, which pypdf cannot read ({error})", "a PDF file", hint) from None
    if len(pages) > MOST_PAGES:
        raise unreadable(f"{name!r} with more pages", f"at most {MOST_PAGES}", "give the pages with the exercises")
    if not text.strip():
        hint = "run optical character recognition on it first"
        raise unreadable(f"{name!r}, a PDF without text", "a PDF with text, not scanned pages", hint)
    return text


def read_docx(data: bytes, name: str) -> str:
    """The paragraphs and tables of a docx file as Markdown; formulas as LaTeX, numbered lists with their labels."""
    try:
        import docx
    except ImportError:
        raise MissingExtra(f"reading the docx file {name!r}", "python-docx", "documents") from None
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        document = docx.Document(BytesIO(data)) if unpacked <= MOST_UNPACKED else None
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        hint = "open it and save it again as docx"
        raise unreadable(f"{name!r}, which python-docx cannot read ({error})", "a docx file", hint) from None
    if document is None:
        what = f"{name!r}, which unpacks to {unpacked:,} bytes"
        raise unreadable(what, f"at most {MOST_UNPACKED:,}", "remove its pictures")
    numbering = _Numbering(document)
    texts: list[str] = []
    each: Any
    for each in document.iter_inner_content():
        if hasattr(each, "rows"):
            texts.append(table([[" ".join(cell.text.split()) for cell in row.cells] for row in each.rows]))
        elif text := _typed(each._p).strip():
            style = (each.style.name if each.style is not None else "") or ""
            level = int(style[-1]) if style[-1:].isdigit() else 1
            heading = style.startswith(("Heading", "Title"))
            texts.append((f"{'#' * level} " if heading else numbering.label(each)) + text)
    return "\n\n".join(texts)


class _Numbering:
    """The labels of numbered paragraphs, which a docx file does not print but counts."""

    def __init__(self, document: Any) -> None:
        self.counts: dict[tuple[int, int], int] = defaultdict(int)
        try:
            self.root = document.part.numbering_part.element
        except (KeyError, NotImplementedError, AttributeError):
            self.root = document.element

    def label(self, paragraph: Any) -> str:
        holders = (paragraph._p.pPr, paragraph.style.element.pPr if paragraph.style is not None else None)
        found = next((each.numPr for each in holders if each is not None and each.numPr is not None), None)
        if found is None or found.numId is None:
            return ""
        number, level = found.numId.val, found.ilvl.val if found.ilvl is not None else 0
        self.counts[number, level] += 1
        self.counts |= {(number, deeper): 0 for deeper in range(level + 1, 9)}
        text = self.said(number, level, "lvlText") or f"%{level + 1}."
        if self.said(number, level, "numFmt") in ("bullet", "none"):
            return "- "
        for at in range(level + 1):
            kind = TABLE.data["docx"]["counters"].get(self.said(number, at, "numFmt"), "1")
            text = text.replace(f"%{at + 1}", counted(max(self.counts[number, at], 1), kind))
        return f"{text} "

    def said(self, number: int, level: int, tag: str) -> str:
        """What the numbering says of a level of a list: its format, or the text around its number."""
        kind = f'w:abstractNum[@w:abstractNumId = ../w:num[@w:numId = "{number}"]/w:abstractNumId/@w:val]'
        return next(iter(self.root.xpath(f'./{kind}/w:lvl[@w:ilvl = "{level}"]/w:{tag}/@w:val')), "")


def _typed(element: Any) -> str:
    """The text of a paragraph; a formula in it as LaTeX between dollar signs."""
    name = element.tag.rpartition("}")[2]
    if name == "t":
        return element.text or ""
    children = [(child.tag.rpartition("}")[2], _typed(child)) for child in element.iterchildren()
                if not child.tag.endswith("Pr")]  # fmt: skip
    kinds = TABLE.data["docx"]
    fields: defaultdict[str, str] = defaultdict(str, children)
    fields["all"] = kinds["joined"].get(name, "").join(text for _, text in children)
    return kinds["text"].get(name, "{all}").format_map(fields)
