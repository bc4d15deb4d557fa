"""One document model, and a writer for each place that it is read in: terminal, Markdown, HTML, PDF, LaTeX, notebook.

Names load on first touch: who wants one writer does not wait for the others.

>>> from qkv.render import Document, Paragraph, html
>>> "<p>a &lt; b</p>" in html(Document("Report", (Paragraph("a < b"),)))
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOME_OF_NAME = {
    **dict.fromkeys(("Block", "Code", "Derivation", "Document", "Figure", "Formula", "Heading", "Inline"), "document"),
    **dict.fromkeys(("Items", "Maths", "Note", "PageBreak", "Paragraph", "Room", "Step", "Table", "Text"), "document"),
    **dict.fromkeys(("Words", "prose"), "document"),
    **dict.fromkeys(("ENDINGS", "save", "writable"), "saving"),
    "html": "to_html",
    "latex": "to_latex",
    "markdown": "to_markdown",
    "mathml": "to_mathml",
    "notebook": "to_notebook",
    "pdf": "to_typst",
    "show": "to_terminal",
}

__all__ = [
    "ENDINGS", "Block", "Code", "Derivation", "Document", "Figure", "Formula", "Heading", "Inline", "Items", "Maths",
    "Note", "PageBreak", "Paragraph", "Room", "Step", "Table", "Text", "Words", "html", "latex", "markdown", "mathml",
    "notebook", "pdf", "prose", "save", "show", "writable",
]  # fmt: skip

if TYPE_CHECKING:
    from .document import (
        Block,
        Code,
        Derivation,
        Document,
        Figure,
        Formula,
        Heading,
        Inline,
        Items,
        Maths,
        Note,
        PageBreak,
        Paragraph,
        Room,
        Step,
        Table,
        Text,
        Words,
        prose,
    )
    from .saving import ENDINGS, save, writable
    from .to_html import html
    from .to_latex import latex
    from .to_markdown import markdown
    from .to_mathml import mathml
    from .to_notebook import notebook
    from .to_terminal import show
    from .to_typst import pdf


def __getattr__(name: str) -> object:
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module 'qkv.render' has no attribute {name!r}; dir(qkv.render) lists what there is")
    thing = getattr(importlib.import_module(f".{_HOME_OF_NAME[name]}", __name__), name)
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)
