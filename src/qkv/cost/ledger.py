"""Ledgers: work listed line by line, in integers or, with symbols for sizes, in formulas."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from ..errors import OptionError, complaint
from .polynomial import Polynomial
from .sizes import Number, check_choice

QUANTITIES = ("flops", "products", "elementwise", "read", "written", "traffic", "extra", "space", "inputs", "outputs")


@dataclass(frozen=True)
class Line:
    """One line of work.

    Attributes:
        flops: operations; a multiplication and an addition are two, an exponential is one.
        read, written: bytes.
        product: whether it is a matrix product; other operations run at other rates.
    """

    name: str
    flops: Number = 0
    read: Number = 0
    written: Number = 0
    product: bool = False

    def times(self, count: Number) -> Line:
        return replace(self, flops=count * self.flops, read=count * self.read, written=count * self.written)

    @property
    def traffic(self) -> Number:
        return self.read + self.written


@dataclass(frozen=True)
class Ledger:
    """Lines of work and their totals.

    Attributes:
        inputs, outputs: bytes of the arguments and of the results.
        extra: peak bytes of memory beyond inputs and outputs.

    >>> ledger = Ledger("a product", (Line("q·k", flops=2 * 3 * 5, read=60, written=4, product=True),), 60, 4)
    >>> ledger.flops, ledger.read, ledger.written
    (30, 60, 4)
    """

    name: str
    lines: tuple[Line, ...]
    inputs: Number = 0
    outputs: Number = 0
    extra: Number = 0

    @property
    def flops(self) -> Number:
        return sum(line.flops for line in self.lines)

    @property
    def products(self) -> Number:
        """Flops of matrix products only."""
        return sum(line.flops for line in self.lines if line.product)

    @property
    def elementwise(self) -> Number:
        """Flops of everything but matrix products: softmax, scaling, normalisation."""
        return sum(line.flops for line in self.lines if not line.product)

    @property
    def read(self) -> Number:
        return sum(line.read for line in self.lines)

    @property
    def written(self) -> Number:
        return sum(line.written for line in self.lines)

    @property
    def traffic(self) -> Number:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def space(self) -> Number:
        """Peak bytes of memory: inputs, outputs and what is extra."""
        return self.inputs + self.outputs + self.extra

    @property
    def intensity(self) -> Number:
        """Flops per byte read or written; infinite without traffic."""
        traffic = self.traffic
        return float("inf") if traffic == 0 else self.flops / traffic

    def line(self, name: str) -> Line:
        """The line of that name."""
        for line in self.lines:
            if line.name == name:
                return line
        raise OptionError(complaint("name", repr(name), f"one of {', '.join(line.name for line in self.lines)}"))

    def times(self, count: Number, name: str | None = None) -> Ledger:
        """The work `count` times over; extra memory is freed in between."""
        lines = tuple(line.times(count) for line in self.lines)
        return Ledger(name or self.name, lines, count * self.inputs, count * self.outputs, self.extra)

    def theta(self, quantity: str = "flops", at_most: Iterable[tuple[Number, Number]] = ()) -> Any:
        """The Θ-class of a quantity ("flops", "traffic", "space", …): `qkv.cost.theta` of its formula."""
        from .symbolic import theta

        check_choice("quantity", quantity, QUANTITIES)
        return theta(getattr(self, quantity), at_most)

    def __str__(self) -> str:
        """A table of the lines, at most 80 columns wide."""
        return ledger_table(self)

    def as_dict(self) -> dict[str, Any]:
        """Integers for JSON; formulas become text."""
        names = [name for name in QUANTITIES if name != "traffic"]
        lines = [{name: _plain(value) for name, value in vars(line).items()} for line in self.lines]
        return {"name": self.name, **{n: _plain(getattr(self, n)) for n in names}, "lines": lines}


def as_sizes(*sizes: Number) -> tuple[Number, ...]:
    """Names as symbols, and integers of other libraries as Python's, which do not overflow."""
    return tuple(_as_size(size) for size in sizes)


def _as_size(size: Number) -> Number:
    if isinstance(size, Polynomial):
        return size
    if isinstance(size, str) or hasattr(size, "free_symbols"):
        from .symbolic import as_size

        return as_size(size)
    is_integer = isinstance(size, Integral) and not isinstance(size, bool)
    return int(size) if is_integer else size


def quotient(number: Number, by: Number) -> Number:
    """The integer quotient, without overflow; with symbols, a fraction.

    >>> quotient(4096, 32)
    128
    """
    return number // by if isinstance(number, int) and isinstance(by, int) else number / by


def _plain(value: Any) -> Any:
    if isinstance(value, int | str):
        return value
    from .symbolic import text

    return text(value)


COLUMNS = 80


def number_text(number: Number) -> str:
    """An integer with thousands separators, or a formula."""
    return f"{number:,}" if isinstance(number, int) else _plain(number)


def table_rows(ledger: Ledger) -> list[tuple[str, str, str, str]]:
    """Name, flops, bytes read and bytes written of each line, then of all lines."""
    total = Line("all", ledger.flops, ledger.read, ledger.written)
    return [
        (line.name, number_text(line.flops), number_text(line.read), number_text(line.written))
        for line in (*ledger.lines, total)
    ]


def ledger_table(ledger: Ledger) -> str:
    """The lines as a table of at most 80 columns."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    found = Table(title=ledger.name, title_justify="left", box=SIMPLE, padding=(0, 1))
    found.add_column("line", overflow="fold")
    for name in ("flops", "bytes read", "bytes written"):
        found.add_column(name, justify="right", overflow="fold")
    rows = table_rows(ledger)
    for row in rows[:-1]:
        found.add_row(*row)
    found.add_section()
    found.add_row(*rows[-1])
    out = io.StringIO()
    Console(file=out, width=COLUMNS, color_system=None).print(found)
    extra = f"memory beyond inputs and outputs: {number_text(ledger.extra)} bytes"
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip() + f"\n{extra}"
