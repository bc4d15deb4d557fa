"""What the answers on a score's moments are held to: their names and types, and the mistakes that are told apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ...maths import compare
from ..problem import Misconception
from .answers import WHOLE_WIDTH, Moment
from .law import Law, key

# What is said of these is not the answer.
NOT_MEAN = r"\bvariance|\bVar\b|\bdeviation|\bcovariance"
NOT_VARIANCE = r"\bmean\b|\bexpect|\bE\}?\s*(?:\\left)?[\[({](?!.*(?:\^|²))|\bdeviation|\bstd\b"
NOT_DIVISOR = r"\bvariance|\bVar\b|\bmean\b|\bexpect|\bE\}?\s*(?:\\left)?[\[({]"


def moment_of(law: Law, gold: str, symbols: Mapping[str, str], asides: str) -> Moment:
    """The answer that is `gold` for any mean, with what a mistaken reading of the mean would make of its names."""
    misread = {} if law.values else widths(law, law.symbols(misread=True))
    means = tuple(map(key, law.means)) if law.mean == "vector" and not law.values else ()
    return Moment(gold, widths(law, symbols), misread=misread, width=law.width, means=means, asides=asides)


def whole_width(law: Law) -> str:
    return law.model[0] if law.model else "d_{model}"


def widths(law: Law, symbols: Mapping[str, str]) -> dict[str, str]:
    """The names of the question, and the width of a whole model, which it does not ask for."""
    return dict(symbols) if law.model else {**symbols, WHOLE_WIDTH: "natural"}


def distinct(
    planted: Sequence[Misconception | None], gold: str, symbols: Mapping[str, str]
) -> tuple[Misconception, ...]:
    """Those whose answer is not the right one, for these numbers, nor an earlier one's."""
    found: dict[str, Misconception] = {}
    for each in planted:
        if each is None or each.planted in found or each.planted == gold:
            continue
        # Formulas in names are different by what they are; numbers may happen to agree.
        if re.search(r"[a-zA-Z]", re.sub(r"\\[a-z]+", "", gold)) or not compare(gold, each.planted, symbols):
            found[each.planted] = each
    return tuple(found.values())
