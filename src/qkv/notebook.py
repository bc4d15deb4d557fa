"""HTML that a notebook shows: tables with text to the left and numbers to the right, in the theme's own colours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

# Notebooks align every cell to the right, and wrap text that has columns.
_STYLE = (
    "div.qkv-shown th,div.qkv-shown td{text-align:left!important}"
    "div.qkv-shown td.number,div.qkv-shown th.number{text-align:right!important}"
    "div.qkv-shown caption{text-align:left;font-weight:bold}"
    "div.qkv-shown pre{white-space:pre!important;overflow-x:auto}"
)


def framed(inside: str) -> str:
    """HTML with the style of what qkv shows in notebooks.

    >>> framed("<p>a</p>")[-14:]
    '<p>a</p></div>'
    """
    return f'<div class="qkv-shown"><style>{_STYLE}</style>{inside}</div>'


def table(
    rows: Iterable[Sequence[object]], header: Sequence[str] = (), caption: str = "", numbers: Collection[int] = ()
) -> str:
    """A table whose first column names the rows; `numbers` are the columns that are aligned to the right.

    >>> "<tr><th scope='row'>a &lt; b</th><td>1</td></tr>" in table([("a < b", 1)])
    True
    """

    def cell(name: str, place: int, text: object, more: str = "") -> str:
        kind = " class='number'" if place in numbers else ""
        return f"<{name}{more}{kind}>{escape(str(text))}</{name}>"

    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    if header:
        cells = "".join(cell("th", at, text, " scope='col'") for at, text in enumerate(header))
        lines.append(f"<tr>{cells}</tr>")
    for first, *others in rows:
        cells = "".join(cell("td", at, text) for at, text in enumerate(others, 1))
        name = cell("th", 0, first, " scope='row'")
        lines.append(f"<tr>{name}{cells}</tr>")
    return framed(f"<table>{''.join(lines)}</table>")
