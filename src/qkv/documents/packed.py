"""Notebooks, docx and PDF files into a text with the places of cells, paragraphs and pages."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from ..errors import MissingExtra, OptionError, complaint
from .latex import ROMAN

MOST_UNPACKED = 60_000_000  # bytes that a docx may unpack to
MOST_PAGES = 500

Parts = list[tuple[str, str]]  # the name of a place, and its text


def read_notebook(data: str, name: str) -> Parts:
    """The cells of a Jupyter notebook: text as it is, code between lines of backticks; outputs are left out."""
    try:
        cells = json.loads(data)["cells"]
        texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError):
        wanted = "a Jupyter notebook of format 4 or later (JSON with cells)"
        raise OptionError(complaint("file", repr(name), wanted, "save it again in Jupyter")) from None
    shown = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts]
    return [(f"cell {number}", f"{text}\n\n") for number, text in enumerate(shown, 1)]


def read_pdf(data: bytes, name: str) -> Parts:
    """The pages of a PDF file."""
    try:
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError
    except ImportError:
        raise MissingExtra(f"reading the PDF file {name!r}", "pypdf", "documents") from None
    import logging

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings on damaged files are not for the user
    try:
        reader = PdfReader(BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise OptionError(complaint("file", f"the encrypted PDF {name!r}", "a PDF without a password",
                                        "print it to a new PDF file"))  # fmt: skip
        if len(reader.pages) > MOST_PAGES:
            raise OptionError(complaint("file", f"{name!r} with {len(reader.pages)} pages", f"at most {MOST_PAGES}",
                                        "give the pages with the exercises"))  # fmt: skip
        parts = [(f"page {number}", ("\f" if number > 1 else "") + page.extract_text().rstrip() + "\n")
                 for number, page in enumerate(reader.pages, 1)]  # fmt: skip
    except OptionError:
        raise
    # A damaged file fails anywhere inside pypdf.
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as error:
        raise OptionError(complaint("file", f"{name!r}, which pypdf cannot read ({error})", "a PDF file",
                                    "open it in a viewer and save it again")) from None  # fmt: skip
    if not any(text.strip() for _, text in parts):
        raise OptionError(complaint("file", f"{name!r}, a PDF without text", "a PDF with text, not scanned pages",
                                    "run optical character recognition on it first"))  # fmt: skip
    return parts


def read_docx(data: bytes, name: str) -> Parts:
    """The paragraphs and tables of a docx file as Markdown; formulas as LaTeX, numbered lists with their labels."""
    try:
        import docx
    except ImportError:
        raise MissingExtra(f"reading the docx file {name!r}", "python-docx", "documents") from None
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MOST_UNPACKED:
            raise OptionError(complaint("file", f"{name!r}, which unpacks to {unpacked:,} bytes",
                                        f"at most {MOST_UNPACKED:,}", "remove its pictures"))  # fmt: skip
        document = docx.Document(BytesIO(data))
    except OptionError:
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise OptionError(complaint("file", f"{name!r}, which python-docx cannot read ({error})", "a docx file",
                                    "open it and save it again as docx")) from None  # fmt: skip
    numbering = _Numbering(document)
    parts: Parts = []
    each: Any
    for number, each in enumerate(document.iter_inner_content(), 1):
        if hasattr(each, "rows"):
            rows = [[" ".join(cell.text.split()) for cell in row.cells] for row in each.rows]
            lines = [f"| {' | '.join(row)} |" for row in rows]
            rule = "|" + " --- |" * len(rows[0]) if rows else ""
            text = "\n".join([*lines[:1], rule, *lines[1:]])
        else:
            text = "".join(_words(each._p))
            style = (each.style.name if each.style is not None else "") or ""
            if text.strip() and style.startswith(("Heading", "Title")):
                text = f"{'#' * (int(style[-1]) if style[-1].isdigit() else 1)} {text}"
            elif text.strip():
                text = numbering.label(each) + text
        parts.append((f"paragraph {number}", text + "\n\n"))
    return parts


class _Numbering:
    """The labels of numbered paragraphs, which a docx file does not print but counts."""

    def __init__(self, document: Any) -> None:
        self.formats: dict[tuple[str, int], tuple[str, str]] = {}
        self.counts: dict[str, list[int]] = {}
        try:
            root = document.part.numbering_part.element
        except (KeyError, NotImplementedError, AttributeError):
            return
        kinds = {_value(num, "w:abstractNumId"): num.get(_w("numId")) for num in root.iter(_w("num"))}
        for abstract in root.iter(_w("abstractNum")):
            used = kinds.get(abstract.get(_w("abstractNumId")))
            for level in abstract.iter(_w("lvl")):
                key = used or "", int(level.get(_w("ilvl")) or 0)
                self.formats[key] = _value(level, "w:numFmt"), _value(level, "w:lvlText")

    def label(self, paragraph: Any) -> str:
        style = paragraph.style._element if paragraph.style is not None else None
        for element in (paragraph._p, style):
            found = next(element.iter(_w("numPr")), None) if element is not None else None
            if found is not None:
                break
        else:
            return ""
        number, level = _value(found, "w:numId"), int(_value(found, "w:ilvl") or 0)
        shape, text = self.formats.get((number, level), ("decimal", f"%{level + 1}."))
        if shape in ("bullet", "none"):
            return "- "
        counts = self.counts.setdefault(number, [0] * 9)
        counts[level] += 1
        counts[level + 1 :] = [0] * (8 - level)
        for at in range(level + 1):
            text = text.replace(f"%{at + 1}", _shown(counts[at], self.formats.get((number, at), (shape, ""))[0]))
        return f"{text} "


def _shown(count: int, shape: str) -> str:
    count = max(count, 1)
    shown = {"lowerLetter": chr(97 + (count - 1) % 26), "lowerRoman": ROMAN[(count - 1) % len(ROMAN)]}
    shown |= {"upperLetter": shown["lowerLetter"].upper(), "upperRoman": shown["lowerRoman"].upper()}
    return shown.get(shape, str(count))


def _w(tag: str) -> str:
    return f"{{http://schemas.openxmlformats.org/wordprocessingml/2006/main}}{tag}"


def _value(element: Any, tag: str) -> str:
    found = next(element.iter(_w(tag.removeprefix("w:"))), None)
    return "" if found is None else found.get(_w("val")) or ""


def _words(element: Any) -> Iterator[str]:
    """The text of a paragraph; a formula in it as LaTeX between dollar signs."""
    for child in element.iterchildren():
        name = child.tag.rpartition("}")[2]
        if name == "oMath":
            yield f"${_formula(child)}$"
        elif name == "t":
            yield child.text or ""
        elif name in ("tab", "br", "cr"):
            yield " " if name == "tab" else "\n"
        elif name not in ("pPr", "rPr", "del"):
            yield from _words(child)


_FORMULAS = {"f": r"\frac{{{num}}}{{{den}}}", "sSub": "{e}_{{{sub}}}", "sSup": "{e}^{{{sup}}}", "rad": r"\sqrt{{{e}}}",
             "sSubSup": "{e}_{{{sub}}}^{{{sup}}}", "d": "({e})"}  # fmt: skip


def _formula(element: Any) -> str:
    name = element.tag.rpartition("}")[2]
    children = [child for child in element.iterchildren() if not child.tag.endswith("Pr")]
    if name == "t":
        return element.text or ""
    if name == "m":
        rows = [" & ".join(map(_formula, row.iterchildren())) for row in children]
        return r"\begin{matrix}" + r" \\ ".join(rows) + r"\end{matrix}"
    if name in _FORMULAS:
        fields = {"num": "", "den": "", "e": "", "sub": "", "sup": ""}
        fields |= {child.tag.rpartition("}")[2]: _formula(child) for child in children}
        return _FORMULAS[name].format_map(fields)
    return "".join(_formula(child) for child in children)
