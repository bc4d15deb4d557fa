"""Numbers on a page: looked up in the result by their path, shown shortly, kept exactly with what is shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from markupsafe import Markup, escape

from ..cost.readable import power_of_ten, quantity, readable_seconds
from ..errors import OptionError, complaint
from .view import Result

SHADES = 20


def at(result: Result, path: str) -> Any:
    """
    >>> at({"scores": [[1, 2], [3, 4]]}, "scores.1.0")
    3
    """
    found: Any = result
    for name in path.split("."):
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise OptionError(complaint("path", path, "a path into the result")) from None
    return found


def shown(value: object, style: str = "") -> str:
    """
    >>> shown(0.123456), shown(-3), shown(1234567), shown(2048, "B"), shown(0.5, "%"), shown(1e-9), shown("1/3")
    ('0.1235', '−3', '1,234,567', '2.05 kB', '50 %', '10⁻⁹', '1/3')
    """
    if value is None:
        return "–"
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
        text = _said(value)
        return text.replace("-", "\N{MINUS SIGN}") if _is_exact(text) else text
    return _number(value, style).replace("-", "\N{MINUS SIGN}")


def marked(result: Result) -> Callable[..., Markup]:
    """The function `n` of templates."""

    def n(path: str, style: str = "") -> Markup:
        value = at(result, path)
        exact = repr(value) if isinstance(value, float) else "" if value is None else _said(value)
        words = escape(shown(value, style))
        return Markup(f'<data class="n" value="{escape(exact)}" data-path="{escape(path)}">{words}</data>')

    return n


def heat(value: float | None, low: float = 0.0, high: float = 1.0) -> str:
    """The class of a cell, by how far its value is from `low` to `high`.

    >>> heat(0.5), heat(2.0), heat(None)
    ('heat-10', 'heat-20', 'heat-none')
    """
    if value is None or not math.isfinite(value):
        return "heat-none"
    share = (value - low) / (high - low) if high > low else 0.0
    return f"heat-{round(SHADES * min(max(share, 0.0), 1.0))}"


def _number(value: float, style: str) -> str:
    if style in ("B", "B/s", "FLOP", "FLOP/s"):
        return quantity(value, style)
    if style == "flop/byte":
        return f"{quantity(value)} flop/byte"
    if style == "s":
        return readable_seconds(value) if value > 0 else "0 s"
    if style == "%":
        return f"{_plain(float(f'{100 * value:.3g}'))} %"
    if style == "e":
        return f"{value:.3e}"
    if style[:1].isdigit() and style[1:] == "f":
        return _without_negative_zero(f"{value:.{style[0]}f}")
    if style:
        raise OptionError(complaint("style", style, "B, B/s, FLOP, FLOP/s, flop/byte, s, %, e, 2f, 3f, 4f or 6f"))
    if isinstance(value, int):
        return f"{value:,}"
    return _plain(value)


def _plain(value: float) -> str:
    """Four significant digits; powers of ten only far from one. Zeros at the end tell that something was cut off.

    >>> _plain(14.9962), _plain(15.0), _plain(0.99996), _plain(0.5)
    ('15.00', '15', '1.000', '0.5')
    """
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return ("-" if value < 0 else "") + power_of_ten(abs(value))
    digits = max(0, 3 - math.floor(math.log10(abs(float(f"{value:.3e}")))))
    text = f"{value:,.{digits}f}"
    whole = float(text.replace(",", "")) == value
    return text.rstrip("0").rstrip(".") if whole and "." in text else text


def _without_negative_zero(text: str) -> str:
    return text.removeprefix("-") if not text.strip("-0.") else text


def _said(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _is_exact(text: str) -> bool:
    return bool(text) and all(sign.isdigit() or sign in "-/.+√ " for sign in text)
