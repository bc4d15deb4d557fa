"""One document model, and a writer for each output format: terminal, Markdown, HTML, PDF, LaTeX, notebook.

Names are imported on first use, so that one writer does not load the others.

>>> from qkv.render import Document, Paragraph, html
>>> "<p>a &lt; b</p>" in html(Document("Report", (Paragraph("a < b"),)))
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_MODULE_OF_NAME = {
    **dict.fromkeys(("BlankLines", "Block", "Code", "Derivation", "Document", "Figure", "Formula"), "document"),
    **dict.fromkeys(("Heading", "Inline", "Items", "Margin", "Maths", "Note", "PageBreak", "Paragraph"), "document"),
    **dict.fromkeys(("Table", "Text", "Words", "prose"), "document"),
    **dict.fromkeys(("SUFFIXES", "save", "writable"), "saving"),
    "html": "to_html",
    "html_of": "to_html",
    "latex": "to_latex",
    "markdown": "to_markdown",
    "mathml": "to_html",
    "notebook": "to_markdown",
    "pdf": "to_typst",
    "show": "to_terminal",
}

__all__ = [
    "SUFFIXES", "BlankLines", "Block", "Code", "Derivation", "Document", "Figure", "Formula", "Heading", "Inline",
    "Items", "Margin", "Maths", "Note", "PageBreak", "Paragraph", "Table", "Text", "Words", "html", "html_of", "latex",
    "markdown", "mathml", "notebook", "pdf", "prose", "save", "show", "writable",
]  # fmt: skip

if TYPE_CHECKING:
    from .document import (
        BlankLines,
        Block,
        Code,
        Derivation,
        Document,
        Figure,
        Formula,
        Heading,
        Inline,
        Items,
        Margin,
        Maths,
        Note,
        PageBreak,
        Paragraph,
        Table,
        Text,
        Words,
        prose,
    )
    from .saving import SUFFIXES, save, writable
    from .to_html import html, html_of, mathml
    from .to_latex import latex
    from .to_markdown import markdown, notebook
    from .to_terminal import show
    from .to_typst import pdf


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'qkv.render' has no attribute {name!r}; dir(qkv.render) lists its names")
    value = getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
