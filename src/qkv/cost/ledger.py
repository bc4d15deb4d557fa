"""Work written down line by line. Integers in, integers out; symbols in, formulas out: one definition, two faces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from ..errors import OptionError, complaint

# An int, or a SymPy expression. Only +, -, * and exact halves are used on it, so that either works.
Number = Any
QUANTITIES = ("flops", "products", "elementwise", "read", "written", "traffic", "extra", "space", "inputs", "outputs")


@dataclass(frozen=True)
class Line:
    """One step. flops: a multiplication and an addition are two, an exponential one. read, written: bytes. product:
    whether the flops are those of a matrix product; what else there is runs at another rate."""

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
    """Lines and what they add up to. inputs, outputs: bytes of what is given and of what comes back. extra: bytes that
    are held beside both at the worst moment.

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
        return _sum(line.flops for line in self.lines)

    @property
    def products(self) -> Number:
        """Flops of matrix products alone."""
        return _sum(line.flops for line in self.lines if line.product)

    @property
    def elementwise(self) -> Number:
        """Flops of everything that is no matrix product: softmax, scaling, normalisation."""
        return _sum(line.flops for line in self.lines if not line.product)

    @property
    def read(self) -> Number:
        return _sum(line.read for line in self.lines)

    @property
    def written(self) -> Number:
        return _sum(line.written for line in self.lines)

    @property
    def traffic(self) -> Number:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def space(self) -> Number:
        """Bytes held at the worst moment: what is given, what comes back, what stands between."""
        return self.inputs + self.outputs + self.extra

    @property
    def intensity(self) -> Number:
        """Flops for each byte that moves; ∞ where nothing does."""
        traffic = self.traffic
        return float("inf") if traffic == 0 else self.flops / traffic

    def line(self, name: str) -> Line:
        """The line of that name."""
        for line in self.lines:
            if line.name == name:
                return line
        raise OptionError(complaint("name", repr(name), f"one of {', '.join(line.name for line in self.lines)}"))

    def times(self, count: Number, name: str | None = None) -> Ledger:
        """The same again and again; what stands between is given back in between."""
        return Ledger(
            name or self.name,
            tuple(line.times(count) for line in self.lines),
            count * self.inputs,
            count * self.outputs,
            self.extra,
        )

    def theta(self, quantity: str = "flops", at_most: Iterable[tuple[Number, Number]] = ()) -> Any:
        """The Θ-class of a quantity ("flops", "traffic", "space", …): `qkv.cost.theta` of its formula."""
        from .symbols import theta

        if quantity not in QUANTITIES:
            raise OptionError(complaint("quantity", repr(quantity), f"one of {', '.join(QUANTITIES)}"))
        return theta(getattr(self, quantity), at_most)

    def __str__(self) -> str:
        """A table of the lines, at most 80 columns wide."""
        from .tables import table

        return table(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain integers, for JSON; formulas become text."""
        names = [name for name in QUANTITIES if name != "traffic"]
        lines = [
            {
                "name": line.name,
                **{n: _plain(getattr(line, n)) for n in ("flops", "read", "written")},
                "product": line.product,
            }
            for line in self.lines
        ]
        return {"name": self.name, **{n: _plain(getattr(self, n)) for n in names}, "lines": lines}


def together(
    name: str, ledgers: Iterable[Ledger], inputs: Number = 0, outputs: Number = 0, extra: Number = 0
) -> Ledger:
    """Several, one after the other: every line is counted, inputs and outputs are those of the whole."""
    return Ledger(name, tuple(line for ledger in ledgers for line in ledger.lines), inputs, outputs, extra)


def named(*sizes: Number) -> tuple[Number, ...]:
    """Sizes with those that are given by name as symbols, and other libraries' integers as Python's, which do not
    overflow."""
    return tuple(_named(size) for size in sizes)


def _named(size: Number) -> Number:
    if isinstance(size, str) or hasattr(size, "free_symbols"):
        from .symbols import as_size

        return as_size(size)
    is_integer = isinstance(size, Integral) and not isinstance(size, bool)
    return int(size) if is_integer else size


def half(number: Number) -> Number:
    """n/2 of a number that is even.

    >>> half(10)
    5
    """
    return number // 2 if isinstance(number, int) else number / 2


def quotient(number: Number, by: Number) -> Number:
    """A division that leaves no rest: exact for integers, a fraction for symbols.

    >>> quotient(4096, 32)
    128
    """
    if isinstance(number, int) and isinstance(by, int):
        whole, rest = divmod(number, by)
        assert rest == 0, f"{number} is no multiple of {by}"
        return whole
    return number / by


def _sum(numbers: Iterable[Number]) -> Number:
    total: Number = 0
    for number in numbers:
        total = total + number
    return total


def _plain(number: Number) -> Any:
    if isinstance(number, int):
        return number
    from .symbols import text

    return text(number)
