"""Ledgers as text: a table for the terminal, and the same for a page."""

from __future__ import annotations

import io
from collections.abc import Iterable

from .ledger import Ledger, Line, Number

COLUMNS = 80


def cells(number: Number) -> str:
    """An integer with its digits in groups, or a formula."""
    if isinstance(number, int):
        return f"{number:,}"
    from .symbols import text

    return text(number)


def rows_of(ledger: Ledger) -> list[tuple[str, str, str, str]]:
    """Name, flops, bytes read and bytes written of each line, and of all."""
    total = Line("all", ledger.flops, ledger.read, ledger.written)
    return [(line.name, cells(line.flops), cells(line.read), cells(line.written)) for line in (*ledger.lines, total)]


def table(ledger: Ledger) -> str:
    """A table of at most 80 columns."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    found = Table(title=ledger.name, title_justify="left", box=SIMPLE, padding=(0, 1))
    found.add_column("line", overflow="fold")
    for name in ("flops", "bytes read", "bytes written"):
        found.add_column(name, justify="right", overflow="fold")
    rows = rows_of(ledger)
    for row in rows[:-1]:
        found.add_row(*row)
    found.add_section()
    found.add_row(*rows[-1])
    out = io.StringIO()
    Console(file=out, width=COLUMNS, color_system=None).print(found)
    held = f"held beside inputs and outputs: {cells(ledger.extra)} bytes"
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip() + f"\n{held}"


def markdown(ledger: Ledger, at_most: Iterable[tuple[Number, Number]] = ()) -> str:
    """The same for a page, with the Θ-class of the sums."""
    pairs = list(at_most)
    lines = ["| line | flops | bytes read | bytes written |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows_of(ledger)]
    classes = [f"flops {ledger.theta('flops', pairs)}", f"bytes {ledger.theta('traffic', pairs)}"]
    return "\n".join([*lines, "", f"{', '.join(classes)}, space {ledger.theta('space', pairs)}"])
