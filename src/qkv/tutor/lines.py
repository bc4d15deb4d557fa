"""Displayed lines that are false: every chain of a section is held to the mathematics, link by link."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import MathsError
from ..problems.problem import Part
from .asserted import asserted
from .formulas import equations, formulas, without_code

MOST_LINKS = 24  # links of one section that are compared

_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)|(?P<about>\\approx\b|≈)")
_CONDITION = re.compile(r"(?<![A-Za-z\\_^{,])([i-n])\s*(?:\\neq?\b|≠|!=|=)\s*([i-n])(?![A-Za-z])")
_OTHER_SIGNS = re.compile(r"\\(?:le|ge|leq|geq|neq|ne|sim|propto|to|in|rightarrow|Rightarrow|implies)\b|[<>≤≥≠→∈]")


def false_lines(part: Part, section: str) -> list[tuple[str, str]]:
    """The links of a section's chains that are refuted, each with the reason; what cannot be read is no fault."""
    symbols = part.symbols or getattr(part.answer, "symbols", {})
    found: list[tuple[str, str]] = []
    compared = 0
    apart = {frozenset(pair) for pair in _CONDITION.findall(section)}
    for said in asserted(without_code(section)):
        if said.wanted:
            continue
        for span in formulas(said.text):
            for equation in equations(span.text):
                if _OTHER_SIGNS.search(equation) or len(equation) > 1500:
                    continue
                if any(pair <= set(re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", equation)) for pair in apart):
                    continue  # a line for i = j or for i ≠ j need not hold for every i and j
                for left, right in _links(equation):
                    if compared == MOST_LINKS:
                        return found
                    compared += 1
                    why = _refuted(left, right, symbols)
                    if why:
                        found.append((f"{left} = {right}", why))
    return found


def _links(equation: str) -> list[tuple[str, str]]:
    """The neighbours of a chain; a sign within brackets of a subscript or of an index does not part it."""
    members, start, depth = [], 0, 0
    signs: list[str] = []
    for place in re.finditer(r"[{}()\[\]]|(?<![<>!:\\])=(?!=)|\\approx\b|≈", equation):
        sign = place.group()
        if sign in "{([":
            depth += 1
        elif sign in "})]":
            depth = max(0, depth - 1)
        elif depth == 0:
            members.append(equation[start : place.start()].strip())
            signs.append(sign)
            start = place.end()
    members.append(equation[start:].strip())
    return [
        (left, right if sign == "=" else rf"\approx {right}")
        for left, right, sign in zip(members, members[1:], signs, strict=False)
        if left and right
    ]


def _refuted(left: str, right: str, symbols: Mapping[str, str]) -> str:
    """Why two neighbours of a chain are not equal; empty where they are, or where that cannot be told."""
    from ..maths import compare, parse
    from ..maths.tree import Order, Symbol, walk

    try:
        trees = [parse(side.removeprefix(r"\approx"), symbols) for side in (left, right)]
    except MathsError:
        return ""
    if any(isinstance(node, Order) for tree in trees for node in walk(tree)):
        return ""
    free = [{node.name for node in walk(tree) if isinstance(node, Symbol) and not _given(node)} for tree in trees]
    # An unknown on one side alone is being defined or solved for.
    if free[0] ^ free[1]:
        return ""
    verdict = compare(left, right, symbols)
    # A row for a column, or a shape read another way, is no false line.
    refuted = (
        verdict.kind == "different" and verdict.evidence == "refuted" and verdict.reason.startswith("not the same")
    )
    return verdict.reason if refuted else ""


def _given(symbol: object) -> bool:
    """Whether a symbol has a value or a law of its own."""
    kind = getattr(symbol, "type", None)
    return getattr(kind, "definition", None) is not None or getattr(kind, "law", None) is not None
