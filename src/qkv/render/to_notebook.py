"""A Jupyter notebook: words and mathematics in Markdown cells, code in cells that run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from . import document as d
from .escapes import clean


def notebook(document: d.Document) -> str:
    """The text of an .ipynb file, format 4.5; the same document gives the same text.

    >>> json.loads(notebook(d.Document("Report", (d.Code("1 + 1", "python"),))))["cells"][1]["source"]
    ['1 + 1']
    """
    cells = [_cell(place, kind, text) for place, (kind, text) in enumerate(_cells(document))]
    language = {"name": "python"}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": language},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cells(document: d.Document) -> Iterator[tuple[str, str]]:
    """A cell for each section; Python that stands at the top level has cells of its own."""
    title: str | None = document.title
    section: list[d.Block] = []
    for block in document.blocks:
        code = isinstance(block, d.Code) and block.language == "python"
        if code or isinstance(block, d.Heading):
            if section or title is not None:
                yield "markdown", _markdown(title, section)
            title, section = None, []
        if isinstance(block, d.Code) and code:
            yield "code", clean(block.text)
        elif not isinstance(block, d.PageBreak):
            section.append(block)
    if section or title is not None:
        yield "markdown", _markdown(title, section)


def _markdown(title: str | None, blocks: Iterable[d.Block]) -> str:
    from .to_markdown import markdown

    text = markdown(d.Document(title or "", tuple(blocks))).strip()
    return text if title is not None else text.removeprefix("#").strip()


def _cell(place: int, kind: str, text: str) -> dict[str, Any]:
    made: dict[str, Any] = {"cell_type": kind, "id": f"cell-{place}", "metadata": {}}
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    lines = text.splitlines(keepends=True)
    return {**made, "source": lines}
