"""Numbers and tables for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDE = 80
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIMES = ((365.25 * 86400, "y"), (86400, "days"), (3600, "h"), (60, "min"))
_WORDS = {10**6: "million", 10**9: "billion", 10**12: "trillion"}
_LEAST = 20  # columns that a text is broken into


def quantity(value: float, unit: str = "") -> str:
    """Three digits and a prefix of the SI; beyond those, a power of ten.

    >>> quantity(16060522496, "B"), quantity(0.25), quantity(999_999), quantity(3 * 10**25)
    ('16.1 GB', '0.25', '1 M', '3·10²⁵')
    """
    if value == 0:
        return f"0 {unit}".rstrip()
    rounded = float(f"{value:.2e}")
    power = 0
    while power < len(_PREFIXES) - 1 and rounded >= 1000 ** (power + 1):
        power += 1
    if rounded >= 1e21 or rounded < 1e-3:
        return f"{power_of_ten(rounded)} {unit}".rstrip()
    number = float(f"{rounded / 1000**power:.3g}")
    return f"{number:g} {_PREFIXES[power]}{unit}".rstrip()


def readable_seconds(seconds: float) -> str:
    """
    >>> [readable_seconds(t) for t in (3.2e-9, 4.81e-3, 0.9996, 75.0, 7200.0, 4e9)]
    ['3.2 ns', '4.81 ms', '1 s', '75 s', '2 h', '127 y']
    """
    seconds = float(f"{seconds:.2e}")
    if seconds < 120:
        for power, unit in ((0, "s"), (-3, "ms"), (-6, "µs")):
            if seconds >= 10**power:
                return f"{float(f'{seconds / 10**power:.3g}'):g} {unit}"
        return f"{seconds * 1e9:.3g} ns"
    size, unit = next((size, unit) for size, unit in _TIMES if seconds >= size)
    number = seconds / size
    return f"{power_of_ten(number) if number >= 1e6 else pace(number)} {unit}"


def whole(count: int) -> str:
    """
    >>> whole(487819), whole(10**15), whole(1_234_567_890_123), whole(99_999_999_999)
    ('487,819', '10¹⁵', '1.23·10¹²', '10¹¹')
    """
    return f"{count:,}" if count < 10**10 else power_of_ten(count)


def counted(count: int, one: str) -> str:
    """
    >>> counted(1, "token"), counted(8192, "token")
    ('1 token', '8,192 tokens')
    """
    return f"{whole(count)} {one}{'' if count == 1 else 's'}"


def power_of_ten(value: float) -> str:
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    lead = "" if float(mantissa) == 1 else f"{float(mantissa):g}·"
    return f"{lead}10{str(int(exponent)).translate(_RAISED)}"


def in_words(count: int) -> str:
    """
    >>> in_words(8_030_261_248), in_words(671_026_404_352), in_words(1704)
    ('8.03 billion', '671 billion', '1,704')
    """
    size = max((size for size in _WORDS if float(f"{count:.2e}") >= size), default=1)
    return f"{float(f'{count / size:.3g}'):,g} {_WORDS[size]}" if size > 1 else whole(count)


def pace(value: float) -> str:
    """
    >>> pace(1048.3), pace(0.986)
    ('1,048', '0.986')
    """
    return whole(round(value)) if value >= 100 else quantity(value)


def times(ratio: float) -> str:
    """
    >>> times(4.0), times(0.0157), times(1.304)
    ('× 4', '× 0.0157', '× 1.3')
    """
    return f"× {quantity(ratio)}"


def in_columns(rows: Sequence[Sequence[str]], align: str, indent: str = "  ") -> str:
    """Rows in columns, two spaces apart; the last column goes on below itself where a line would be too long.

    >>> print(in_columns([("time", "4.81 ms", "a token"), ("cache", "1 GB", "")], "<><"))
      time   4.81 ms  a token
      cache     1 GB
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(align))]
    start = sum(widths[:-1]) + 2 * (len(align) - 1) + len(indent)
    # With no room left beside the other columns, what is too long stands below them.
    beside = WIDE - start >= _LEAST
    more = " " * (start if beside else 3 * len(indent))
    lines = []
    for row in rows:
        sides = zip(row, widths, align, strict=True)
        *cells, last = [cell.ljust(wide) if side == "<" else cell.rjust(wide) for cell, wide, side in sides]
        broken = [last.rstrip()]
        if start + len(broken[0]) > WIDE and align[-1] == "<":
            broken = textwrap.wrap(row[-1], WIDE - len(more))
            broken = broken if beside else ["", *broken]
        lines.append((indent + "  ".join([*cells, broken[0]])).rstrip())
        lines += [more + line for line in broken[1:]]
    return "\n".join(lines)


def wrapped(text: str, indent: str) -> list[str]:
    """Lines that are broken at spaces; what is joined by a no-break space stays together."""
    lines = textwrap.wrap(text, WIDE, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]
