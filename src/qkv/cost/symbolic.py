"""Formulas with SymPy: symbols for sizes, Θ-classes, and formulas as plain text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy

from ..errors import OptionError, OptionTypeError, complaint

_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
Powers = dict[Any, Any]


def symbols(names: str) -> Any:
    """Symbols for sizes, which are integers of at least 1.

    Args:
        names: The names, with spaces between them.

    Returns:
        One SymPy symbol, or a tuple of several.

    Raises:
        OptionTypeError: `names` is not a text with a name.

    >>> b, n = symbols("b n")
    >>> text(2 * b * n**2)
    '2·b·n²'
    """
    if not isinstance(names, str) or not names.split():
        raise OptionTypeError(complaint("names", repr(names), "names of sizes", 'such as "b n d"'))
    found = [_symbol(name) for name in names.replace(",", " ").split()]
    return found[0] if len(found) == 1 else tuple(found)


def _symbol(name: str) -> Any:
    if not name.isidentifier():
        hint = "a name has letters, digits and _, and starts with a letter"
        raise OptionError(complaint("size", repr(name), "a whole number or a name", hint))
    return sympy.Symbol(name, positive=True, integer=True)


def as_size(size: Any) -> Any:
    """A size for formulas: a name, or any SymPy symbol, becomes the positive integer symbol of that name."""
    if isinstance(size, str):
        return int(size) if size.isdecimal() else _symbol(size)
    if not isinstance(size, sympy.Basic):
        return size
    if not isinstance(size, sympy.Expr) or size.has(sympy.oo, sympy.zoo, sympy.nan) or size.is_negative:
        raise OptionError(complaint("size", str(size), "a whole number, a name, or a formula of sizes"))
    known: Any = size.xreplace({other: _symbol(str(other)) for other in size.free_symbols})
    if known.free_symbols:
        return known
    if not known.is_Integer:
        raise OptionError(complaint("size", str(size), "a whole number"))
    return int(known)


def theta(formula: Any, at_most: Iterable[tuple[Any, Any]] = ()) -> Theta:
    """The Θ-class of a formula: without constants, and without terms that another term always bounds.

    Args:
        formula: a number or a SymPy expression of sizes, which are integers of at least 1.
        at_most: pairs of sizes (small, large), of which the first never exceeds the second.

    Returns:
        A `Theta`, which equals any expression of the same class's formula.

    Raises:
        OptionError: the largest terms are subtracted.

    >>> b, h, n, d = symbols("b h n d")
    >>> theta(4 * b * d**2 + 4 * b * n * d + 5 * b * h * n, at_most=[(h, d)])
    Θ(b·d² + b·d·n)
    """
    formula = _as_formula(formula)
    # For large sizes, the minimum of a size and a number is the number.
    simplified = formula.replace(
        lambda part: isinstance(part, sympy.Min) and any(a.is_number for a in part.args),
        lambda part: min(a for a in part.args if a.is_number),
    )
    terms = _terms(sympy.expand(simplified))
    pairs = _transitive_pairs(at_most)

    def is_bounded(i: int, powers: Powers) -> bool:
        # Of two terms that bound each other, the first stays.
        return any(
            _never_smaller(other, powers, pairs) and (j < i or not _never_smaller(powers, other, pairs))
            for j, (other, _) in enumerate(terms)
            if j != i
        )

    kept = [(powers, factor) for i, (powers, factor) in enumerate(terms) if not is_bounded(i, powers)]
    if any(factor.is_negative for _, factor in kept):
        hint = "pass at_most= with pairs of sizes, of which the first never exceeds the second"
        raise OptionError(complaint("formula", text(formula), "a formula whose largest terms are added", hint))
    return Theta(sympy.Add(*(_monomial(powers) for powers, _ in kept)))


def _as_formula(formula: Any) -> Any:
    """Text is refused: SymPy would evaluate it."""
    if isinstance(formula, Theta):
        return formula.formula
    if isinstance(formula, bool) or not isinstance(formula, int | float | sympy.Expr):
        hint = "build it with qkv.cost.symbols, or take it from a ledger"
        raise OptionTypeError(complaint("formula", repr(formula), "a number or a SymPy expression", hint))
    return sympy.sympify(formula, strict=True)


def _transitive_pairs(at_most: Any) -> list[tuple[Any, Any]]:
    """The pairs (smaller, larger) and those they imply: h ≤ n and n ≤ d give h ≤ d."""
    hint = 'at_most=[("h", "d")] says that h is at most d'
    pairs: list[tuple[Any, Any]] = []
    try:
        given = [(as_size(small), as_size(large)) for small, large in ([] if isinstance(at_most, str) else at_most)]
    except (TypeError, ValueError):
        given = [(None, None)]
    if isinstance(at_most, str) or not all(isinstance(side, sympy.Symbol) for pair in given for side in pair):
        raise OptionTypeError(complaint("at_most", repr(at_most), "pairs of sizes, the smaller one first", hint))
    for pair in given:
        pairs += [pair, *((low, pair[1]) for low, high in pairs if high == pair[0])]
        pairs += [(pair[0], high) for low, high in pairs if low == pair[1]]
    return list(dict.fromkeys(pairs))


class Theta:
    """Θ(formula); equal if the formulas are."""

    def __init__(self, formula: Any) -> None:
        self.formula = formula

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Theta):
            other = other.formula
        if not isinstance(other, int | sympy.Expr):
            return NotImplemented
        return bool(sympy.expand(self.formula - other) == 0)

    def __hash__(self) -> int:
        return hash(self.formula)

    def __repr__(self) -> str:
        return f"Θ({text(self.formula)})"


def text(formula: Any) -> str:
    """A formula as one line of text, with terms sorted by degree.

    Args:
        formula: A SymPy expression or a number.

    Returns:
        The text, with · for products and superscripts for powers.

    >>> b, h, n, d = symbols("b h n d")
    >>> text(d**2 + b * n * d / h + sympy.Rational(3, 2) * n)
    'b·d·n/h + d² + 3/2·n'
    """
    formula = sympy.expand(_as_formula(formula))
    try:
        terms = _sorted(_terms(formula))
    except OptionError:  # no sum of powers
        return str(formula)
    signed = "".join(f" {'-' if factor < 0 else '+'} {_term_text(powers, abs(factor))}" for powers, factor in terms)
    return ("-" if signed.startswith(" -") else "") + signed[3:] or "0"


def _term_text(powers: Powers, factor: Any) -> str:
    above = [_power_text(symbol, power) for symbol, power in _in_order(powers) if power > 0]
    below = [_power_text(symbol, -power) for symbol, power in _in_order(powers) if power < 0]
    if factor != 1 or not above:
        above.insert(0, str(factor))
    bottom = below[0] if len(below) == 1 else f"({'·'.join(below)})"
    return "·".join(above) + (f"/{bottom}" if below else "")


def _power_text(symbol: Any, power: Any) -> str:
    if power == 1:
        return str(symbol)
    return f"{symbol}{str(power).translate(_SUPERSCRIPTS)}" if sympy.Integer(power) == power else f"{symbol}^({power})"


def _in_order(powers: Powers) -> list[tuple[Any, Any]]:
    return sorted(powers.items(), key=lambda item: (str(item[0]).lower(), str(item[0])))


def _sorted(terms: list[tuple[Powers, Any]]) -> list[tuple[Powers, Any]]:
    """Highest degree first, then alphabetically."""
    return sorted(terms, key=lambda term: (-sum(term[0].values()), _term_text(term[0], sympy.Integer(1))))


def _terms(formula: Any) -> list[tuple[Powers, Any]]:
    """Each term as powers of symbols and a factor."""
    found = []
    for term in sympy.Add.make_args(formula):
        factor, rest = term.as_coeff_Mul()
        powers: Powers = {}
        for part in sympy.Mul.make_args(rest):
            base, power = part.as_base_exp()
            if base == 1:
                continue
            if not base.is_Symbol:
                raise OptionError(complaint("formula", str(formula), "a sum of products of powers of sizes"))
            powers[base] = powers.get(base, 0) + power
        if factor != 0:
            found.append((powers, factor))
    return found


def _monomial(powers: Powers) -> Any:
    return sympy.Mul(*(symbol**power for symbol, power in powers.items()))


def _never_smaller(large: Powers, small: Powers, at_most: list[tuple[Any, Any]]) -> bool:
    """Whether large/small ≥ 1 for all sizes of at least 1, given the pairs of `at_most`."""
    ratio = {symbol: large.get(symbol, 0) - small.get(symbol, 0) for symbol in {*large, *small}}
    for low, high in at_most:
        # low ≤ high, so powers of high can replace missing powers of low.
        moved = min(-ratio.get(low, 0), ratio.get(high, 0))
        if moved > 0:
            ratio[low], ratio[high] = ratio[low] + moved, ratio[high] - moved
    return all(power >= 0 for power in ratio.values())
