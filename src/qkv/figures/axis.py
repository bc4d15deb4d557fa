"""Axes: positions of values between two ends, readable ticks, and numbers as text (16k, 1.5 ms, 10⁻⁹)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from qkv.errors import OptionError, OptionTypeError, complaint

# Only values between these are drawn, so that no margin, step or quotient overflows.
LARGEST, SMALLEST = 1e100, 1e-100
NARROWEST = 1e-6  # an axis spans at least this share of its values
MAX_TICKS = 11
NEARLY_LINEAR = 0.5  # decades below which a logarithmic axis gets linear ticks
LEADS = ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5))  # leading digits of ticks within a decade, densest first
# Units that get SI prefixes. With others (tokens, flop/byte, ms) the number gets the prefix.
PREFIXED = frozenset({"s", "B", "B/s", "bit/s", "FLOP", "FLOP/s", "flop", "flop/s", "Hz", "J", "W"})
_ONE = {"tokens": "token", "nats": "nat"}
_PREFIXES = {-15: "f", -12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SHORT_UNIT = 3  # longest unit that ticks repeat; a longer one is only in the axis' caption

Ticks = list[tuple[float, str]]


@dataclass(frozen=True)
class Axis:
    """Label, unit and scale of an axis.

    Args:
        label: what the axis shows.
        unit: SI units (s, B, B/s, FLOP/s, …) get prefixes: values are seconds, ticks say µs or ms.
        scale: "linear" or "log".
        low, high: the ends; None takes them from the data.

    Raises:
        OptionError: an end that the scale cannot show, or ends that are too close.
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
            wanted = "low below high by more than a millionth of them"
            raise OptionError(complaint("low", f"{low} with high={high}", wanted))

    def can_show(self, value: float) -> bool:
        if self.scale == "log":
            return SMALLEST <= value <= LARGEST
        return abs(value) <= LARGEST

    def say(self, value: float) -> str:
        """The label and a value, for a caption or tooltip.

        >>> Axis("time", "s").say(0.0025)
        'time 2.5 ms'
        """
        return f"{self.label} {readable(value, self.unit)}".strip()


@dataclass(frozen=True)
class Ruler:
    """An axis with fixed ends."""

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
            unit = ""  # the ticks have it
        return f"{self.axis.label} ({unit})".strip() if unit else self.axis.label

    def tick_sets(self) -> Iterator[Ticks]:
        """Sets of ticks in ascending order, densest set first: take the first that fits. The last has one tick."""
        densest: Ticks = []
        for ticks in self._all_sets():
            if 2 <= len(ticks) <= MAX_TICKS:
                densest = densest or ticks
                yield ticks
        yield [densest[0], densest[-1]]
        yield densest[:1]

    def _all_sets(self) -> Iterator[Ticks]:
        if self.axis.scale == "linear":
            yield from self._linear_sets()
        elif self.binary:
            yield from self._powers(2)
            yield from self._linear_sets()
        else:
            decades = math.log10(self.high) - math.log10(self.low)
            if decades < NEARLY_LINEAR:
                yield from self._linear_sets()
            elif decades < 3.5:
                # Linear steps would crowd at one end of a logarithmic axis.
                yield from map(self._leading, LEADS[1 if decades >= 1 else 0 :])
            yield from self._powers(10)
            yield from self._linear_sets()

    def _linear_sets(self) -> Iterator[Ticks]:
        """Steps of 1, 2 or 5 times a power of ten."""
        for step in steps(self.low, self.high):
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first >= MAX_TICKS:
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
        """Ticks at these digits times powers of ten."""
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
    """The axis with fixed ends: those given, else round numbers around the data."""
    inside = [v for v in values if (axis.low is None or v >= axis.low) and (axis.high is None or v <= axis.high)]
    return _log_ruler(axis, inside) if axis.scale == "log" else _linear_ruler(axis, inside)


def steps(low: float, high: float) -> Iterator[float]:
    """Steps of 1, 2 or 5 times a power of ten, from about a fiftieth of the range to all of it.

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
    """count × step without rounding errors in the last bits.

    >>> 3 * 0.1, round_to(3, 0.1)
    (0.30000000000000004, 0.3)
    """
    return float(f"{count * step:.12g}")


def as_number(argument: str, given: object) -> float:
    """A number as a float, numpy and torch scalars included; one too large for a float is infinite."""
    try:
        if isinstance(given, (str, bytes, bytearray)):
            raise TypeError
        return float(given)  # pyright: ignore[reportArgumentType]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # of a torch tensor with several numbers
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
    return Ruler(axis, low, high, _has_binary_ticks(axis, values))


def _has_binary_ticks(axis: Axis, values: Sequence[float]) -> bool:
    """Whether ticks are powers of two: all values are integers, and most of them (at least two) powers of two."""
    if axis.unit in PREFIXED - {"B"}:
        return False
    whole = {int(v) for v in values if v == int(v) and v < 2**60}
    powers = [n for n in whole if n & (n - 1) == 0]
    return len(whole) == len(set(values)) and len(powers) >= 2 and max(powers) >= 8 and 2 * len(powers) > len(whole)


def readable(value: float, unit: str = "", digits: int = 4) -> str:
    """A value with its unit, rounded to `digits` significant digits; whole numbers below ten million stay whole.

    >>> readable(0.00123, "s"), readable(4.2e10, "FLOP/s"), readable(131072, "tokens"), readable(3e-9)
    ('1.23 ms', '42 GFLOP/s', '131072 tokens', '3·10⁻⁹')
    >>> readable(1, "tokens")
    '1 token'
    """
    unit = _ONE.get(unit, unit) if value == 1 else unit
    if unit not in PREFIXED and value == int(value) and abs(value) < 1e7:
        return f"{_signed(str(int(value)))} {unit}".strip()
    number, prefix = _split(value, digits, unit in PREFIXED)
    return f"{number} {prefix}{unit}".strip() if unit in PREFIXED else f"{number}{prefix} {unit}".strip()


def tick(value: float, unit: str) -> str:
    """A tick of a logarithmic axis, with its unit if that is short.

    >>> tick(1e-5, "s"), tick(1e10, "FLOP/s"), tick(1e6, "tokens"), tick(1e-9, "")
    ('10 µs', '10 G', '1M', '10⁻⁹')
    """
    number, prefix = _split(value, 6, unit in PREFIXED)
    if unit not in PREFIXED:
        return number + prefix
    return f"{number} {prefix}{unit if len(unit) <= SHORT_UNIT else ''}".strip()


def binary_tick(exponent: int, unit: str) -> str:
    """2^exponent with binary prefixes: 128k is 128 × 1024.

    >>> binary_tick(17, "tokens"), binary_tick(9, ""), binary_tick(30, "B")
    ('128k', '512', '1 GiB')
    """
    thousands, rest = divmod(exponent, 10)
    if thousands > 6:
        return f"2{str(exponent).translate(_RAISED)}"
    if unit == "B":
        return f"{2**rest} {['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'][thousands]}B"
    return f"{2**rest}{_PREFIXES[3 * thousands]}"


def common_scale(peak: float, unit: str) -> tuple[int, str, str]:
    """(power of ten, suffix of ticks, unit of the caption) for a linear axis that reaches `peak`.

    >>> common_scale(0.004, "s"), common_scale(120_000, "tokens"), common_scale(0.5, "")
    ((-3, '', 'ms'), (3, 'k', 'tokens'), (0, '', ''))
    """
    if peak == 0:
        return 0, "", unit
    power = exponent_of(peak) // 3 * 3
    if power in _PREFIXES and unit in PREFIXED:
        return power, "", _PREFIXES[power] + unit
    if 1e-3 <= peak < 1e4:
        return 0, "", unit
    if 0 < power <= 12 and unit not in PREFIXED:
        return power, _PREFIXES[power], unit
    return power, "", f"{power_of_ten(power)} {unit}".strip()


def fixed(value: float, decimals: int) -> str:
    """
    >>> fixed(-2.5, 2), fixed(-0.0, 0)
    ('−2.50', '0')
    """
    return _signed(f"{value:.{decimals}f}")


def exponent_of(value: float) -> int:
    """
    >>> exponent_of(1000), exponent_of(0.00999)
    (3, -3)
    """
    return Decimal(repr(float(value))).adjusted()


def power_of_ten(exponent: int) -> str:
    return f"10{str(exponent).translate(_RAISED)}"


def _split(value: float, digits: int, every_prefix: bool) -> tuple[str, str]:
    """The number and its prefix; without `every_prefix` only the thousands of counts: 10k, but 0.02."""
    value = float(f"{value:.{digits - 1}e}")  # rounded first: 999.99 µs is 1 ms
    if value == 0:
        return "0", ""
    exponent = exponent_of(value)
    power = exponent // 3 * 3
    if every_prefix and power in _PREFIXES:
        return _shifted(value, power), _PREFIXES[power]
    if not every_prefix and -3 <= exponent < 15:
        power = max(0, power)
        return _shifted(value, power), _PREFIXES[power]
    mantissa = _shifted(value, exponent)
    lead = {"1": "", "−1": "−"}.get(mantissa, f"{mantissa}·")
    return lead + power_of_ten(exponent), ""


def _shifted(value: float, power: int) -> str:
    """value / 10^power in decimal arithmetic, without rounding."""
    return _signed(f"{Decimal(repr(value)).scaleb(-power).normalize():f}")


def _signed(text: str) -> str:
    """With a typographic minus sign, and none before zero."""
    if not text.startswith("-"):
        return text
    return "−" + text[1:] if text.strip("-0.") else text[1:]
