"""Numbers and tables as text for readers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDE = 80
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIMES = ((365.25 * 86400, "y"), (86400, "days"), (3600, "h"), (60, "min"))
_WORDS = {10**6: "million", 10**9: "billion", 10**12: "trillion"}
_LEAST = 20  # columns that wrapped text needs


def quantity(value: float, unit: str = "") -> str:
    """Three significant digits with an SI prefix, or a power of ten beyond those.

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
    return f"{power_of_ten(number) if number >= 1e6 else rate_text(number)} {unit}"


def integer_text(count: int) -> str:
    """
    >>> integer_text(487819), integer_text(10**15), integer_text(1_234_567_890_123), integer_text(99_999_999_999)
    ('487,819', '10¹⁵', '1.23·10¹²', '10¹¹')
    """
    return f"{count:,}" if count < 10**10 else power_of_ten(count)


def count_text(count: int, one: str) -> str:
    """
    >>> count_text(1, "token"), count_text(8192, "token")
    ('1 token', '8,192 tokens')
    """
    return f"{integer_text(count)} {one}{'' if count == 1 else 's'}"


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
    return f"{float(f'{count / size:.3g}'):,g} {_WORDS[size]}" if size > 1 else integer_text(count)


def rate_text(value: float) -> str:
    """
    >>> rate_text(1048.3), rate_text(0.986)
    ('1,048', '0.986')
    """
    return integer_text(round(value)) if value >= 100 else quantity(value)


def ratio_text(ratio: float) -> str:
    """
    >>> ratio_text(4.0), ratio_text(0.0157), ratio_text(1.304)
    ('× 4', '× 0.0157', '× 1.3')
    """
    return f"× {quantity(ratio)}"


def in_columns(rows: Sequence[Sequence[str]], align: str, indent: str = "  ") -> str:
    """Rows in columns, two spaces apart; the last column wraps where a line would be too long.

    >>> print(in_columns([("time", "4.81 ms", "a token"), ("cache", "1 GB", "")], "<><"))
      time   4.81 ms  a token
      cache     1 GB
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(align))]
    start = sum(widths[:-1]) + 2 * (len(align) - 1) + len(indent)
    # Where the other columns leave too little width, the last one wraps below them.
    fits = WIDE - start >= _LEAST
    more = " " * (start if fits else 3 * len(indent))
    lines = []
    for row in rows:
        sides = zip(row, widths, align, strict=True)
        *cells, last = [cell.ljust(wide) if side == "<" else cell.rjust(wide) for cell, wide, side in sides]
        broken = [last.rstrip()]
        if start + len(broken[0]) > WIDE and align[-1] == "<":
            broken = textwrap.wrap(row[-1], WIDE - len(more))
            broken = broken if fits else ["", *broken]
        lines.append((indent + "  ".join([*cells, broken[0]])).rstrip())
        lines += [more + line for line in broken[1:]]
    return "\n".join(lines)


def wrap_lines(text: str, indent: str) -> list[str]:
    """Lines broken at spaces; no-break spaces keep words together and become spaces."""
    lines = textwrap.wrap(text, WIDE, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]
