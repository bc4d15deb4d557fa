"""Axes: where values stand between two ends, and ticks that people can read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.errors import OptionError, OptionTypeError, complaint
from qkv.figures.quantity import (
    PREFIXED,
    SHORT_UNIT,
    binary_tick,
    common_scale,
    exponent_of,
    fixed,
    readable,
    tick,
)

# What is drawn at all: between these, no margin, step or quotient leaves the range of a float.
LARGEST, SMALLEST = 1e100, 1e-100
NARROWEST = 1e-6  # an axis spans at least this share of its values: finer ticks would be unreadable
MOST_TICKS = 11
NEARLY_EVEN = 0.5  # decades below which a logarithmic axis looks like an even one
LEADS = ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5))  # digits of ticks within decades, the densest first

Ticks = list[tuple[float, str]]


@dataclass(frozen=True)
class Axis:
    """What runs along an axis, its unit and its scale. Ends that are not given follow the data.

    Units of the SI (s, B, B/s, FLOP/s ...) take its prefixes: give seconds, and the ticks say µs or ms.
    """

    label: str
    unit: str = ""
    scale: str = "linear"
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for argument in ("label", "unit"):
            if not isinstance(getattr(self, argument), str):
                raise OptionTypeError(complaint(argument, repr(getattr(self, argument)), "text"))
        if self.scale not in ("linear", "log"):
            raise OptionError(complaint("scale", repr(self.scale), "'linear' or 'log'"))
        for argument in ("low", "high"):
            end = getattr(self, argument)
            if end is None:
                continue
            object.__setattr__(self, argument, as_number(argument, end))
            if not self.can_show(getattr(self, argument)):
                wanted = "a number above zero on a log axis" if self.scale == "log" else "a finite number"
                raise OptionError(complaint(argument, end, wanted, "None takes it from the data"))
        low, high = self.low, self.high
        if low is not None and high is not None and high - low <= max(NARROWEST * max(-low, high), SMALLEST):
            wanted = "an end below the other, by more than a millionth of them"
            raise OptionError(complaint("low", f"{low} with high={high}", wanted))

    def can_show(self, value: float) -> bool:
        if self.scale == "log":
            return SMALLEST <= value <= LARGEST
        return abs(value) <= LARGEST

    def say(self, value: float) -> str:
        """The value for a caption.

        >>> Axis("time", "s").say(0.0025)
        'time 2.5 ms'
        """
        return f"{self.label} {readable(value, self.unit)}".strip()


@dataclass(frozen=True)
class Ruler:
    """An axis whose ends are fixed."""

    axis: Axis
    low: float
    high: float
    binary: bool = False

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one.

        >>> Ruler(Axis("n", scale="log"), 1, 10_000).share(100)
        0.5
        """
        if self.axis.scale == "log":
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def caption(self) -> str:
        unit = self.axis.unit
        if self.axis.scale == "linear":
            unit = common_scale(max(abs(self.low), abs(self.high)), unit)[2]
        elif (unit in PREFIXED and len(unit) <= SHORT_UNIT and not self.binary) or (self.binary and unit == "B"):
            unit = ""  # every tick has it
        return f"{self.axis.label} ({unit})".strip() if unit else self.axis.label

    def tick_sets(self) -> Iterator[Ticks]:
        """Ticks in ascending order, the densest set first: whoever draws takes the first that fits. The last is one
        tick, which always does."""
        densest: Ticks = []
        for ticks in self._all_sets():
            if 2 <= len(ticks) <= MOST_TICKS:
                densest = densest or ticks
                yield ticks
        yield [densest[0], densest[-1]]
        yield densest[:1]

    def _all_sets(self) -> Iterator[Ticks]:
        if self.axis.scale == "linear":
            yield from self._even_sets()
        elif self.binary:
            yield from self._powers(2)
            yield from self._even_sets()
        else:
            decades = math.log10(self.high) - math.log10(self.low)
            if decades < NEARLY_EVEN:
                yield from self._even_sets()
            elif decades < 3.5:
                # Even steps would crowd at one end of a logarithmic axis and leave the other bare.
                yield from map(self._leading, LEADS[1 if decades >= 1 else 0 :])
            yield from self._powers(10)
            yield from self._even_sets()

    def _even_sets(self) -> Iterator[Ticks]:
        """Steps of 1, 2 or 5 times a power of ten."""
        for step in steps(self.low, self.high):
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first >= MOST_TICKS:
                continue
            values = [min(max(round_to(n, step), self.low), self.high) for n in range(first, last + 1)]
            if self.axis.scale == "log":
                yield [(value, tick(value, self.axis.unit)) for value in values]
                continue
            power, suffix, _ = common_scale(max(abs(self.low), abs(self.high)), self.axis.unit)
            decimals = max(0, power - exponent_of(step))
            scale = 10.0**power
            yield [(value, fixed(value / scale, decimals) + (suffix if value else "")) for value in values]

    def _leading(self, leads: Sequence[float]) -> Ticks:
        """These times powers of ten."""
        powers = range(exponent_of(self.low), exponent_of(self.high) + 1)
        values = [float(f"{lead}e{power}") for power in powers for lead in leads]
        return [(value, tick(value, self.axis.unit)) for value in values if self.holds(value)]

    def _powers(self, base: int) -> Iterator[Ticks]:
        first = math.ceil(math.log(self.low, base) - 1e-9)
        last = math.floor(math.log(self.high, base) + 1e-9)
        for stride in range(1, 2 + max(0, last - first)):
            exponents = [n for n in range(first, last + 1) if n % stride == 0]
            if base == 2:
                ticks = [(2.0**n, binary_tick(n, self.axis.unit)) for n in exponents if n >= 0]
            else:
                ticks = [(float(f"1e{n}"), tick(float(f"1e{n}"), self.axis.unit)) for n in exponents]
            yield [(min(max(value, self.low), self.high), text) for value, text in ticks]


def ruler(axis: Axis, values: Sequence[float]) -> Ruler:
    """Ends for values that the axis can show: those that were asked for, else round ones around the data."""
    inside = [v for v in values if (axis.low is None or v >= axis.low) and (axis.high is None or v <= axis.high)]
    return _log_ruler(axis, inside) if axis.scale == "log" else _linear_ruler(axis, inside)


def steps(low: float, high: float) -> Iterator[float]:
    """1-2-5 steps from about a fiftieth of the range to all of it.

    >>> list(steps(0, 10))
    [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    """
    power = exponent_of(high - low)
    for lift in (-2, -1, 0):
        for lead in (1, 2, 5):
            step = float(f"{lead}e{power + lift}")
            if (high - low) / 60 <= step <= high - low:
                yield step


def round_to(count: int, step: float) -> float:
    """count × step without the noise of its last bits.

    >>> 3 * 0.1, round_to(3, 0.1)
    (0.30000000000000004, 0.3)
    """
    return float(f"{count * step:.12g}")


def as_number(argument: str, given: object) -> float:
    """Any real number, numpy's and torch's scalars included; one too large for a float is infinite."""
    try:
        if isinstance(given, (str, bytes, bytearray)):
            raise TypeError
        return float(given)  # pyright: ignore[reportArgumentType]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # torch's, of a tensor that holds several
        raise OptionTypeError(complaint(argument, repr(given), "a number", "nan leaves a gap")) from None


def _linear_ruler(axis: Axis, values: Sequence[float]) -> Ruler:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if 0 < low <= 0.4 * high:
        low = 0.0
    low, high = axis.low if axis.low is not None else low, axis.high if axis.high is not None else high
    peak = max(abs(low), abs(high))
    least = peak * (NARROWEST if high > low else 0.5) if peak > SMALLEST else 1.0
    if high - low < least:
        if axis.high is None:
            high = low + least if axis.low is not None or low == 0 else high + least / 2
        if axis.low is None:
            low = min(low, high - least)
    step = next(s for s in steps(low, high) if (high - low) / s <= 8)
    if axis.low is None:
        low = round_to(math.floor(low / step + 1e-9), step)
    if axis.high is None:
        high = round_to(math.ceil(high / step - 1e-9), step)
    return Ruler(axis, min([low, *values]), max([high, *values]))


def _log_ruler(axis: Axis, values: Sequence[float]) -> Ruler:
    anchor = axis.low or (axis.high and axis.high / 100) or 1.0
    low, high = (min(values), max(values)) if values else (anchor, anchor * 100)
    low, high = axis.low or low, axis.high or high
    span = math.log10(high) - math.log10(low)
    margin = max(10 ** (0.04 * span), 1.1) if high > low * (1 + NARROWEST) else 4.0
    low = low if axis.low else max(low / margin, SMALLEST / 10)
    high = high if axis.high else high * margin
    return Ruler(axis, low, high, _speaks_binary(axis, values))


def _speaks_binary(axis: Axis, values: Sequence[float]) -> bool:
    """Whether powers of two are the natural ticks: whole numbers, of which most are such powers, two at least."""
    if axis.unit in PREFIXED - {"B"}:
        return False
    whole = {int(v) for v in values if v == int(v) and v < 2**60}
    powers = [n for n in whole if n & (n - 1) == 0]
    return len(whole) == len(set(values)) and len(powers) >= 2 and max(powers) >= 8 and 2 * len(powers) > len(whole)
