"""Sums with dots, written with Σ: the terms before the dots say what stands in them, the last one how far it goes."""

from __future__ import annotations

import re

_DOTS = re.compile(r"\+\s*(?:\\[lc]?dots[bcmio]?|\.{3}|…|⋯)\s*\+")
_SMALL = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_BELOW = re.compile(r"_\s*\{\s*([A-Za-z0-9]+(?:_[A-Za-z0-9])?)\s*\}|_\s*([A-Za-z0-9])|([₀-₉]+)")
_REACH = 160  # characters on each side of the dots


def undotted(text: str) -> str:
    r"""The text with each sum whose dots can be filled written as a sum over an index.

    >>> undotted(r"E = \mu_1^2 + \mu_2^2 + \dots + \mu_d^2, as before")
    'E =\\sum_{\\iota=1}^{d} (\\mu_{\\iota}^2), as before'
    >>> undotted("1 + ... + n")
    '1 + ... + n'
    """
    dots = _DOTS.search(text)
    if dots is None:
        return text
    before, after = text[max(0, dots.start() - _REACH) : dots.start()], text[dots.end() : dots.end() + _REACH]
    found = _summed(before, after)
    if found is None:
        return text
    taken, written, left = found
    start = dots.start() - taken
    return text[:start] + written + undotted(text[dots.end() + left :])


def _summed(before: str, after: str) -> tuple[int, str, int] | None:
    """How much of the text before is part of the sum, the sum, and how much of the text after."""
    terms, after = before.split("+"), re.split(r"\\[)\]]", after)[0]
    ends = [match.end() for match in re.finditer(r"[^\s,;.$=+]+", after.split("+")[0].split("=")[0])]
    for end in reversed(ends):
        last = after[:end].strip()
        for high in dict.fromkeys(_indices(last)):
            shape = _shape(last, high)
            count = 0
            while count < len(terms) and _fits(terms[-1 - count], shape, terms, count):
                count += 1
            if not count:
                continue
            first = _suffix(terms[-count], shape)
            lows = [low for low in _indices(first or "") if first and _shape(first, low) == shape]
            if first is None or not lows or not lows[0].isdigit() or not _in_order(terms, count, shape, int(lows[0])):
                continue
            index = r"\iota" if "iota" not in before + after else "t"
            body = _placed(last, high, index)
            taken = len("+".join(terms[len(terms) - count :])) - _start(terms[-count], shape)
            return taken, rf"\sum_{{{index}={lows[0]}}}^{{{high}}} ({body})", end
    return None


def _indices(term: str) -> list[str]:
    return [_name(found) for found in _BELOW.finditer(term)]


def _name(found: re.Match[str]) -> str:
    return found[1] or found[2] or "".join(_SMALL[sign] for sign in found[3])


def _shape(term: str, index: str) -> str:
    """A term without its index and without what makes no difference."""
    kept = _BELOW.sub(lambda found: "_#" if _name(found) == index else f"_{_name(found)}", term)
    return re.sub(r"[\s{}]|\\(?:mathbf|boldsymbol|bm|,|;|cdot)", "", kept)


def _placed(term: str, index: str, name: str) -> str:
    return _BELOW.sub(lambda found: f"_{{{name}}}" if _name(found) == index else found[0], term)


def _start(term: str, shape: str) -> int:
    """Where in a term the part of this shape begins."""
    for begin in [0, *(found.end() for found in re.finditer(r"[\s=$(\[]", term))]:
        if any(_shape(term[begin:], index) == shape for index in _indices(term[begin:])):
            return begin
    return -1


def _suffix(term: str, shape: str) -> str | None:
    begin = _start(term, shape)
    return term[begin:] if begin >= 0 else None


def _fits(term: str, shape: str, terms: list[str], count: int) -> bool:
    begin = _start(term, shape)
    # Only the first term of the sum may have something before it.
    return begin >= 0 and (count == 0 or not terms[-count][: _start(terms[-count], shape)].strip())


def _in_order(terms: list[str], count: int, shape: str, low: int) -> bool:
    """Whether the written terms go up by one."""
    for place, term in enumerate(terms[len(terms) - count :]):
        text = term[_start(term, shape) :]
        if str(low + place) not in [index for index in _indices(text) if _shape(text, index) == shape]:
            return False
    return True
