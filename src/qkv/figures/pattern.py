"""Which entries of a matrix are not zero, drawn: blocks of rows and columns with rules between them."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.errors import ShapeError, complaint
from qkv.figures.chart import EDGE, whole
from qkv.figures.legend import text_block
from qkv.figures.marks import as_name
from qkv.figures.svg import number, tag, title
from qkv.figures.theme import COLOURS, INK, RULE, SOFT

SIZE = 14
NARROW, BROAD = 9, 22  # of an entry


def pattern(
    heading: str,
    entries: Sequence[Sequence[bool]],
    block: int,
    rows: str,
    columns: str,
    marked_column: int | None = None,
) -> str:
    """A square for each entry that is true; a rule after every `block` rows and columns, and one column marked.

    >>> "2 of 4 entries" in pattern("Jacobian", [[True, False], [False, True]], 1, "outputs", "inputs")
    True
    """
    heading, width = as_name("heading", heading), len(entries[0])
    if any(len(row) != width for row in entries):
        raise ShapeError(complaint("entries", "rows of different lengths", "as many entries in every row"))
    side = min(BROAD, max(NARROW, 300 / max(width, len(entries))))
    left, top = EDGE + SIZE + 8, EDGE + SIZE + 10
    right, bottom = left + width * side, top + len(entries) * side
    inset = 1 if side > 12 else 0.5
    squares = "".join(
        f"M{number(left + c * side + inset)} {number(top + r * side + inset)}"
        f"h{number(side - 2 * inset)}v{number(side - 2 * inset)}h{number(2 * inset - side)}z"
        for r, row in enumerate(entries)
        for c, here in enumerate(row)
        if here
    )
    count = sum(map(sum, entries))
    said = f"{count} of {width * len(entries)} entries are not zero"
    rules = "".join(f"M{number(left + at * side)} {number(top)}V{number(bottom)}" for at in range(0, width + 1, block))
    rules += "".join(
        f"M{number(left)} {number(top + at * side)}H{number(right)}" for at in range(0, len(entries) + 1, block)
    )
    marked = ""
    if marked_column is not None:
        place = {"x": left + marked_column * side, "y": top, "width": side, "height": bottom - top}
        looks = {"fill": "none", "stroke": COLOURS[1], "stroke_width": 2.5}
        marked = tag("rect", title("the entry that is dragged"), class_="qkv-stroke-1", **place, **looks)
    down = f"rotate(-90 {number(EDGE + SIZE)} {number((top + bottom) / 2)})"
    body = (
        text_block([columns], left, EDGE - 2, SIZE, "qkv-soft", SOFT),
        text_block([rows], EDGE + SIZE, (top + bottom) / 2 - SIZE, SIZE, "qkv-soft", SOFT, "middle", transform=down),
        tag("path", title(said), class_="qkv-ink", d=squares, fill=INK) if squares else "",
        tag("path", class_="qkv-rule", d=rules, fill="none", stroke=RULE),
        marked,
    )
    return whole(heading, f"{said}.", "".join(body), max(right + EDGE, 180), bottom + EDGE)
