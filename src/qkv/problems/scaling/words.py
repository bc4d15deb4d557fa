"""What a law's questions call things: the score, the names an answer may use, the special case."""

from __future__ import annotations

from collections.abc import Mapping

from .law import Law, key


def terms(law: Law, centred: Mapping[str, str] | None = None) -> str:
    """The names that an answer may use."""
    names = [law.width] if not law.model else list(law.model)
    if law.copies:
        names.append(law.copies)
    if centred is None:
        names += law.means
    fixed = centred or {}
    names += [
        spread.name
        for spread in (law.spread_q, law.spread_k)
        if spread.kind not in ("unit", "number") and key(spread.name) not in fixed
    ]
    *most, last = [f"${name}$" for name in dict.fromkeys(names)]
    return f"{', '.join(most)} and {last}" if most else last


def special_case(law: Law, fixed: Mapping[str, str]) -> str:
    means = [f"${name} = 0$" for name in law.means]
    spreads = [spread for spread in dict.fromkeys((law.spread_q, law.spread_k)) if key(spread.name) in fixed]
    return " and ".join([*means, *(f"${spread.name} = {fixed[key(spread.name)]}$" for spread in spreads)])


def score_words(law: Law) -> str:
    if law.copies:
        return f"the sum of the ${law.copies}$ scores"
    return f"the score ${law.score}$"


def product_words(law: Law) -> str:
    if law.same_mean:
        return "the square of the mean's entry" if law.mean == "vector" else f"${law.mean_q}^2$"
    return "the product of the two means' entries" if law.mean == "vector" else f"${law.mean_q} {law.mean_k}$"
