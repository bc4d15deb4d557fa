"""Formulas that PDFs tear: told apart from whole ones; flattened ones are rewritten where one reading is possible."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ENDS = re.compile(r"(?:[=+*/·⋅×,(\[{<>≤≥≈∼~^_∈]|(?<![-–—])[-−]|\\(?:cdot|times|frac|sum|approx|le|ge))\s*$")
_BEGINS = re.compile(r"^\s*(?:[=+*/·⋅×,)\]}^_]|[-−]\s)")
_FRAGMENT = re.compile(r"[\w⊤⊺′'∑∏√⋅·,.;:()\[\]{}✓◆%!#−+=/*^|∥∣≤≥<>∈∼⇠−⇒→-]{1,3}|[a-z]=\d|[ijkdnN][ ,]?[ijkdnN]\]?")
_LOST = re.compile(r"[A-Za-z0-9)][ ]+[)\]]|[(\[][ ]+[A-Za-z0-9]|[A-Za-z0-9][ ]+,")  # where an exponent or an index was
_MARKED = re.compile(r"[\^²³⁴ᵀ\\_√]")
_NORM = re.compile(r"(?<![A-Za-z])k\s?([μxqwvz])\s?k2(?![A-Za-z0-9])")
# Sizes and moments: a digit behind one of them is an exponent, behind a vector it may be an index.
_SCALARS = "dDnNhbmMLFμσs"


def is_fragment(line: str) -> bool:
    """Whether a line holds nothing but a piece of a formula: an exponent, an index, a bracket, a limit of a sum."""
    return _FRAGMENT.fullmatch(line.strip()) is not None


def is_torn(text: str, before: str = "", after: str = "") -> bool:
    r"""Whether a formula has lost something, or goes on in the lines around it.

    >>> is_torn("O(bd + bnd)", after="2"), is_torn("Var(q k) ="), is_torn("O(N )"), is_torn("Var(q^T k) = d")
    (True, True, True, False)
    """
    text = text.strip()
    if not text or _ENDS.search(text) or _BEGINS.search(text) or not balanced(text):
        return True
    if _ENDS.search(before.strip()) and not before.strip().endswith((",", ">")):
        return True
    if is_fragment(after) or is_fragment(before):
        return True
    return "\\" not in text and "^" not in text and _LOST.search(text) is not None


def balanced(text: str) -> bool:
    """Whether every bracket is closed by one of its kind; LaTeX may close an interval by another kind."""
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return False
    return depth == 0


def whole(text: str, names: frozenset[str] = frozenset()) -> str | None:
    """A flattened formula with its exponents, transposes and roots; None where more than one reading is possible.

    >>> whole("E[q>k] = dµ2"), whole("O(bd2 + bnd)"), whole("(qT k + 1)2"), whole("x1 + 2"), whole("kµk2")
    ('E[q^T k] = dμ^2', 'O(bd^2 + bnd)', '(q^T k + 1)^2', 'x1 + 2', None)
    """
    text = text.replace("µ", "μ").replace("⇥", "×")
    if _MARKED.search(text.replace("\\", "", 1) if text.startswith("\\[") else text):
        return text
    if _NORM.search(text):
        return None
    text = re.sub(r"(?<=[A-Za-z])>(?=[A-Za-z\s\])]|$)", "^T ", text)
    if "T" not in names:
        text = re.sub(r"(?<![A-Za-z])([a-zQKVA])\s?T\s(?=[a-zA-Z(])", r"\1^T ", text)
    text = re.sub(r"\)(\d)(?![\d.])", r")^\1", text)
    for inside in re.findall(r"O\s*\([^\n]*\)", text):
        # No class has a factor 2: a digit behind a letter is its exponent.
        text = text.replace(inside, re.sub(r"([A-Za-z])[ ]?(\d)(?![\d.])", r"\1^\2 ", inside))
    kept = "".join(sign for sign in _SCALARS if f"{sign}_1" not in names and f"{sign}1" not in names)
    text = re.sub(rf"([{kept}])(\d)(?![\d.])", r"\1^\2", text)
    text = re.sub(rf"(?<![A-Za-z\d])p\s?([{kept}])(?![A-Za-z\d(])", r"sqrt(\1)", text) if "p" not in names else text
    return re.sub(r"[ ]{2,}", " ", re.sub(r"[ ]+(?=[)\],]|$)", "", text)).strip()


def over_lines(text: str, after: Sequence[str]) -> tuple[str, int] | None:
    """A formula that ends on the lines below it, and on how many: a squared norm, "kµk2" and "2"; a root.

    >>> over_lines("s =", ["p", "d", "This is why"]), over_lines("s =", ["p", "d", "k"]), over_lines("s =", ["d"])
    (('s = sqrt(d)', 2), None, None)
    """
    text, (first, second, third) = text.replace("µ", "μ").strip(), [*after, "", "", ""][:3]
    if text.endswith("=") and first.strip() == "p" and re.fullmatch(r"[A-Za-z]|\d+", second.strip()):
        return None if is_fragment(third) else (f"{text} sqrt({second.strip()})", 2)
    if first.strip() != "2" or not _NORM.search(text) or not text.endswith("k2"):
        return None
    squared = _NORM.sub(r"\\|\1\\|_2^2", text)
    return re.sub(r"(?<=[A-Za-z])>(?=[A-Za-z\s\])]|$)", "^T ", squared), 1
