"""Numbers as people read them: 16k, 1.5 ms, 10⁻⁹."""

from __future__ import annotations

from decimal import Decimal

# Units that take the prefixes of the SI. Others (tokens, flop/byte, ms) keep their spelling: the number takes them.
PREFIXED = frozenset({"s", "B", "B/s", "bit/s", "FLOP", "FLOP/s", "flop", "flop/s", "Hz", "J", "W"})
_ONE = {"tokens": "token", "nats": "nat"}
_PREFIXES = {-15: "f", -12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SHORT_UNIT = 3  # letters of a unit that a tick repeats; a longer one stands once, in the axis' caption


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
    """What a tick of a logarithmic axis says: with its unit where that is short.

    >>> tick(1e-5, "s"), tick(1e10, "FLOP/s"), tick(1e6, "tokens"), tick(1e-9, "")
    ('10 µs', '10 G', '1M', '10⁻⁹')
    """
    number, prefix = _split(value, 6, unit in PREFIXED)
    if unit not in PREFIXED:
        return number + prefix
    return f"{number} {prefix}{unit if len(unit) <= SHORT_UNIT else ''}".strip()


def binary_tick(exponent: int, unit: str) -> str:
    """2^exponent: context lengths are spoken in thousands of 1024.

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
    """(power of ten, what each tick adds, the unit of the caption) for a linear axis that reaches `peak`.

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
    """value / 10^power in decimal digits, so that no rounding shows."""
    return _signed(f"{Decimal(repr(value)).scaleb(-power).normalize():f}")


def _signed(text: str) -> str:
    """A true minus sign, and none before a zero."""
    if not text.startswith("-"):
        return text
    return "−" + text[1:] if text.strip("-0.") else text[1:]
