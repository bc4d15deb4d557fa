"""One HTML file with figures and tables, for light and dark screens and for print, without a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from qkv.errors import OptionError, OptionTypeError, ShapeError, complaint
from qkv.figures.marks import as_name
from qkv.figures.svg import escape, tag
from qkv.figures.theme import DARK_INK, DARK_PAPER, DARK_RULE, FONT, INK, PAPER, RULE, STYLE

Cell = str | int | float

_PAGE_STYLE = (
    f":root{{color-scheme:light dark}}body{{margin:2rem auto;padding:0 1rem;max-width:60rem;font-family:{FONT};"
    f"line-height:1.5;color:{INK};background:{PAPER}}}"
    ".scroll{overflow-x:auto;margin:0 0 2rem}figure svg{display:block;max-width:100%;height:auto}"
    "figure .qkv-wide{min-width:34rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:bold}"
    f"th,td{{padding:.25rem .75rem .25rem 0;text-align:left;border-bottom:1px solid {RULE}}}"
    ".number{text-align:right}"
    f"@media screen and (prefers-color-scheme:dark){{body{{color:{DARK_INK};background:{DARK_PAPER}}}"
    f"th,td{{border-color:{DARK_RULE}}}}}"
    "@media print{body{margin:0;max-width:none}.scroll{overflow:visible}figure .qkv-wide{min-width:0}"
    "figure,tr{break-inside:avoid}h1{font-size:1.3rem}}"
)


@dataclass(frozen=True)
class Table:
    """A table with a caption; columns of numbers are aligned to the right."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "caption", as_name("caption", self.caption))
        object.__setattr__(self, "header", tuple(self.header))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        for row in self.rows:
            if len(row) != len(self.header):
                raise ShapeError(complaint("rows", f"{len(row)} cells", f"{len(self.header)}, like the header"))


def page(title: str, figures: Iterable[str], tables: Iterable[Table] = (), note: str = "") -> str:
    """An HTML page.

    Args:
        title: of the page.
        figures: <svg> texts of `chart`, `roofline`, `heat_map` or `small_map`.
        tables: shown after the figures.
        note: a paragraph under the title.

    Returns:
        The text of an .html file.

    Raises:
        OptionError: a figure is not an <svg> element.

    >>> page("Report", [], [Table("Cost", ["n", "time"], [[7, "1 ms"]])]).startswith("<!doctype html>")
    True
    """
    title = as_name("title", title)
    if isinstance(figures, str):
        raise OptionTypeError(complaint("figures", "one text", "a list of SVG texts", "pass [figure]"))
    parts = [tag("h1", escape(title))]
    if note:
        parts.append(tag("p", escape(note)))
    for which, figure in enumerate(figures):
        parts.append(
            tag(
                "figure",
                _own_ids(checked(figure), which),
                class_="scroll",
                tabindex="0",
                aria_label=f"Figure {which + 1}",
            )
        )
    parts += [_table(table) for table in tables]
    style = STYLE + _PAGE_STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # Only this style sheet is allowed: contents of the page can load and run nothing.
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    body = tag("main", "\n".join(parts))
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def checked(figure: object) -> str:
    """The figure, if it is an <svg> element."""
    if not isinstance(figure, str):
        raise OptionTypeError(complaint("figures", type(figure).__name__, "texts of <svg> elements"))
    try:
        root = ElementTree.fromstring(figure)
    except ElementTree.ParseError as error:
        raise OptionError(complaint("figures", f"invalid XML ({error})", "an <svg> element")) from None
    if root.tag != "{http://www.w3.org/2000/svg}svg" or not figure.startswith("<svg"):
        hint = "chart() and roofline() return them; standalone() is for files"
        raise OptionError(complaint("figures", f"a text that starts {figure[:20]!r}", "an <svg> element", hint))
    return figure


def _own_ids(figure: str, which: int) -> str:
    """The figure with ids that are unique on the page, where the same chart may occur twice."""
    named = re.search(r'aria-labelledby="(qkv-[0-9a-f]+)-title', figure)
    return figure.replace(named[1], f"{named[1]}-{which + 1}") if named else figure


def _table(table: Table) -> str:
    numeric = [
        bool(table.rows) and all(isinstance(row[n], (int, float)) for row in table.rows)
        for n in range(len(table.header))
    ]

    def cells(name: str, row: Sequence[Cell], **more: str) -> str:
        return tag(
            "tr",
            *(
                tag(name, escape(str(cell)), **more, **({"class_": "number"} if right else {}))
                for cell, right in zip(row, numeric, strict=True)
            ),
        )

    head = tag("thead", cells("th", table.header, scope="col"))
    body = tag("tbody", *(cells("td", row) for row in table.rows)) if table.rows else ""
    whole = tag("table", tag("caption", escape(table.caption)), head, body)
    return tag("div", whole, class_="scroll", tabindex="0", role="group", aria_label=table.caption)
