"""Σ and Π over indices: what they bind, the range of each index, and the conditions below the sign."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from qkv.maths.parsing import scripts
from qkv.maths.parsing.grammar import Syntax, Token, is_rule, is_token, only, span_of, walk
from qkv.maths.parsing.shapes import pretty_name, unify, unknown_size
from qkv.maths.sizes import is_impossible, size_node, size_of
from qkv.maths.tree import Add, Index, Multiply, Node, Number, Size, Span, Sum, Symbol, symbols_of

if TYPE_CHECKING:
    from qkv.maths.parsing.elaborate import Elaborator

_LONGEST = 200
_LATEST = 6
_FLIPPED = {">": "<", ">=": "<=", "<": "<", "<=": "<=", "!=": "!="}


@dataclass
class Range:
    """The range of a Σ: bound names in order, lower and upper ends, and comparisons of indices."""

    names: list[str] = field(default_factory=list)
    low: dict[str, Node] = field(default_factory=dict)
    high: dict[str, Node] = field(default_factory=dict)
    pairs: list[tuple[str, str, str]] = field(default_factory=list)

    def bind(self, name: str) -> None:
        if name not in self.names:
            self.names.append(name)


def big_operator(elaborator: Elaborator, part: Syntax) -> Node:
    suffixes = [piece for piece in part if is_rule(piece, "suffix")]
    body = Syntax("expression", tuple(part.parts[1 + len(suffixes) :]), part.span, part.depth)
    bounds = _bounds(elaborator, suffixes, body, part)
    return _expand(elaborator, bounds, body, part[0] == "prod", part.span)


def single_index(elaborator: Elaborator, lower: Syntax, part: Syntax) -> Index:
    """The one index, from 1, below the function of `part`."""
    bounds = _bounds(elaborator, [lower], part, part)
    name = bounds.names[0]
    low = bounds.low.get(name)
    if len(bounds.names) > 1 or bounds.pairs or (low is not None and low != elaborator.number(1, low.span)):
        elaborator.unreadable(f"{part[0]} is read over one index that runs from 1", lower.span)
    return Index((), name, _size(elaborator, bounds.high.get(name)), span=lower.span)


def _bounds(elaborator: Elaborator, suffixes: list[Syntax], body: Syntax, part: Syntax) -> Range:
    bounds = Range()
    lower = [suffix for suffix in suffixes if is_token(suffix[0], "SUB")]
    upper = [suffix for suffix in suffixes if is_token(suffix[0], "SUP")]
    if len(lower) > 1 or len(upper) > 1:
        elaborator.unreadable("a sum has one lower and one upper end", part.span)
    for entry in scripts.script_entries(lower[0]) if lower else []:
        _condition(elaborator, bounds, entry, body)
    if not lower:
        unbound = sorted(_names(body) & elaborator.used - set(elaborator.types) - set(elaborator.scope))
        if len(unbound) != 1:
            elaborator.unreadable("this sum does not say over what: write \\sum_i", part.span)
        bounds.bind(unbound[0])
    if upper:
        _read_upper_end(elaborator, bounds, scripts.script_entries(upper[0])[0], part.span)
    if not bounds.names:
        elaborator.unreadable("nothing is bound by this sum", part.span)
    return bounds


def _names(part: Syntax | Token) -> set[str]:
    return {str(leaf) for leaf in walk(part) if is_token(leaf, "NAME")}


def _condition(elaborator: Elaborator, bounds: Range, entry: Syntax | Token, body: Syntax) -> None:
    """One entry below the sign: i, i = 1, i ≠ j, 1 ≤ i < j ≤ n."""
    chain = entry[0] if is_rule(entry, "entry") and len(entry) == 1 else entry
    if not is_rule(chain, "chain"):
        leaf = only(chain)
        leaf = leaf[0] if is_rule(leaf, "script") and len(leaf) == 1 else leaf
        if not is_token(leaf, "NAME"):
            elaborator.unreadable("below a sum there must be an index", span_of(entry))
        bounds.bind(str(leaf))
        return
    members = [only(piece) for piece in chain if not is_token(piece, "REL")]
    signs = [str(piece) for piece in chain if is_token(piece, "REL")]
    if not signs:
        _bare_names(elaborator, bounds, members[0])
        return
    bound = _bound_here(elaborator, bounds, members, signs, body)
    for place, sign in enumerate(signs):
        _read_pair(elaborator, bounds, members[place], sign, members[place + 1], bound, span_of(entry))


def _bare_names(elaborator: Elaborator, bounds: Range, part: Syntax | Token) -> None:
    pieces = list(part) if is_rule(part, "product") else [part]
    for piece in pieces:
        leaf = only(piece)
        if not is_token(leaf, "NAME"):
            elaborator.unreadable("below a sum there must be an index", span_of(part))
        bounds.bind(str(leaf))


def _bound_here(elaborator: Elaborator, bounds: Range, members: list, signs: list[str], body: Syntax) -> set[str]:
    """The names that a condition binds.

    A name between two ends is always bound. Of two names that are compared, a name is not bound if it is declared as an
    index, given as free, bound by an outer sum (unless that leaves this sum nothing to bind), used in a subscript
    outside this sum, or missing from the body although the other one occurs there. All others are bound: both in i ≠ j,
    i < j and j ≤ i. If none is left, the names that another condition binds are compared; if there are none either, the
    first name is bound.
    """
    names = [str(member) for member in members if is_token(member, "NAME")]
    if not names:
        return set()
    if "=" in signs or len(names) == 1:
        return {names[0]}
    between = {str(member) for member in members[1:-1] if is_token(member, "NAME")}
    candidates = [name for name in names if name in between or not _is_end(elaborator, name)]
    free = _free_outside(elaborator, body) | set(elaborator.given_free)
    fresh = [name for name in candidates if name not in free and name not in elaborator.scope]
    if not fresh and not bounds.names:  # a sum binds something, if need be again what an outer sum binds
        fresh = candidates
    given = {name for name in fresh if _is_declared_index(elaborator, name)} | free | set(bounds.names)
    summed = _names(body) & set(fresh)
    if summed:
        given |= set(fresh) - summed
    first = fresh[0] if fresh else names[0]
    return between | (set(fresh) - given) or set(bounds.names) or {first}


def _is_end(elaborator: Elaborator, name: str) -> bool:
    """Whether a name is declared as a number, which may be the end of a sum."""
    kind = elaborator.types.get(name)
    return name not in elaborator.scope and kind is not None and not kind.shape and kind.kind not in ("index", "map")


def _is_declared_index(elaborator: Elaborator, name: str) -> bool:
    kind = elaborator.types.get(name)
    return kind is not None and kind.kind == "index"


def _free_outside(elaborator: Elaborator, body: Syntax) -> set[str]:
    """Names in subscripts of the whole text, outside this sum and not bound by another one."""
    start, stop = body.span
    found: set[str] = set()
    pending: list[tuple[Syntax | Token, frozenset[str]]] = [(elaborator.syntax, frozenset())]
    while pending:
        part, bound = pending.pop()
        left, right = span_of(part)
        if not isinstance(part, Syntax) or (start <= left and right <= stop):
            continue
        if part.kind == "big":
            below = [piece for piece in part if is_rule(piece, "suffix") and is_token(piece[0], "SUB")]
            bound = bound.union(*(_names(piece) for piece in below))
        if part.kind == "suffix" and is_token(part[0], "SUB"):
            found |= _names(part) - bound
        pending.extend((piece, bound) for piece in part)
    return found


def _read_pair(elaborator, bounds: Range, left, sign: str, right, bound: set[str], span: Span) -> None:
    a = str(left) if is_token(left, "NAME") else ""
    b = str(right) if is_token(right, "NAME") else ""
    if sign == "=":
        if not a:
            elaborator.unreadable("below a sum there must be an index, as in i = 1", span)
        bounds.bind(a)
        bounds.low[a] = elaborator.term(right)
        return
    if sign not in _FLIPPED:
        elaborator.unreadable(f"{sign} below a sum is not read", span)
    if a and a == b:
        elaborator.unreadable(f"{a} is compared with itself", span)
    if a and b and _is_index(elaborator, a, bound) and _is_index(elaborator, b, bound):
        for name in (a, b):
            if name in bound:
                bounds.bind(name)
        bounds.pairs.append((_FLIPPED[sign], b, a) if sign in (">", ">=") else (_FLIPPED[sign], a, b))
        return
    less = sign in ("<", "<=")
    if sign == "!=":
        elaborator.unreadable("≠ below a sum must be between two indices", span)
    name, end, is_low = (b, left, less) if b in bound else (a, right, not less)
    if not name:
        elaborator.unreadable("below a sum there must be an index", span)
    bounds.bind(name)
    if sign in ("<", ">"):
        elaborator.unreadable("the ends of a sum are written with ≤, as in 1 ≤ i ≤ n", span)
    (bounds.low if is_low else bounds.high)[name] = elaborator.term(end)


def _is_index(elaborator: Elaborator, name: str, bound: set[str]) -> bool:
    kind = elaborator.types.get(name)
    if name in bound or name in elaborator.scope:
        return True
    # An undeclared word or Greek letter is not an index elsewhere either.
    return (len(name) == 1 or not name.isalpha()) if kind is None else kind.kind == "index"


def _read_upper_end(elaborator: Elaborator, bounds: Range, part: Syntax | Token, span: Span) -> None:
    end = scripts.script_value(elaborator, part)
    for other in bounds.names:
        bounds.high.setdefault(other, end)
    if end.shape:
        elaborator.ill_typed("a sum runs to a scalar", end.span)


def _expand(elaborator: Elaborator, bounds: Range, body: Syntax, product: bool, span: Span) -> Node:
    for name, low in bounds.low.items():
        if not isinstance(low, Number) or low.value != 1:
            return _from_other_start(elaborator, bounds, body, product, span, name)
    if len(bounds.names) == 1 and not bounds.pairs and _constant(bounds.high.get(bounds.names[0])) == 0:
        return _written_out(elaborator, body, product, span, bounds.names[0], range(0))
    return _from_one(elaborator, bounds, body, product, span)


def _from_one(elaborator: Elaborator, bounds: Range, body: Syntax, product: bool, span: Span) -> Node:
    equal = [pair for pair in bounds.pairs if pair[0] == "<="]
    for name in list(bounds.high):
        _triangle(bounds, name, equal)
    others = [pair for pair in bounds.pairs if pair[0] != "<="]
    if equal and len(equal) + len(others) > 1:
        elaborator.unreadable("a ≤ between indices cannot be combined with another comparison of indices", span)
    strict = others + [("<", a, b) for _, a, b in equal]
    whole = _sum_node(elaborator, bounds, strict, body, product, span, {})
    if not equal:
        return whole
    _, a, b = equal[0]
    if a not in bounds.names and b not in bounds.names:  # otherwise the diagonal would be added even if they differ
        elaborator.unreadable("a ≤ below a sum compares an index that it binds", span)
    replaced, kept = (a, b) if a in bounds.names else (b, a)
    diagonal = _sum_node(elaborator, bounds, [], body, product, span, {replaced: kept})
    if product:
        return Multiply((), (whole, diagonal), span=span)
    return Add(whole.shape, (whole, diagonal), span=span)


def _triangle(bounds: Range, name: str, equal: list[tuple[str, str, str]]) -> None:
    """Σ_{j=1}^{i} is Σ over j ≤ i."""
    end = bounds.high[name]
    if isinstance(end, Index):
        equal.append(("<=", name, end.name))
        del bounds.high[name]


def _from_other_start(
    elaborator: Elaborator, bounds: Range, body: Syntax, product: bool, span: Span, name: str
) -> Node:
    """A range that does not start at 1: written out term by term, or shifted to 1 and corrected by the first terms."""
    low, high = bounds.low[name], bounds.high.get(name)
    start, stop = _constant(low), _constant(high)
    if start is not None and stop is not None:
        _one_index(elaborator, bounds, span)
        if stop < start - 1:  # an end one before the start is an empty range
            what = "product" if product else "sum"
            elaborator.ill_typed(f"this {what} runs backwards, from {start} to {stop}: exchange its ends", span)
        if stop - start + 1 > _LONGEST:
            elaborator.unreadable(f"a sum written out has at most {_LONGEST} terms", span)
        return _written_out(elaborator, body, product, span, name, range(start, stop + 1))
    # A sum from 3 up to an index that is 1 has no first terms to subtract.
    latest = 2 if isinstance(high, Index) else _LATEST
    if start is None or not 0 <= start <= latest or product:
        elaborator.unreadable(
            f"a sum runs from 1: let {pretty_name(name)} start there, or give both its ends as numbers", span
        )
    _one_index(elaborator, bounds, span)
    if start == 0 and name in _subscripts(body):
        elaborator.unreadable(f"components are counted from 1: let {pretty_name(name)} start there", span)
    size = None if start or high is None else size_of(high)
    if isinstance(size, str) and (before := re.fullmatch(r"(.*[^-+])-(\d+)", size)):
        # Σ from 0 to n - 1 is over n places, each one less.
        bounds.high[name] = size_node(before[1] if before[2] == "1" else f"{before[1]}-{int(before[2]) - 1}")
        return _sum_node(elaborator, bounds, [], body, product, span, {}, shift=-1)
    whole = _from_one(elaborator, bounds, body, product, span)
    missing = range(1) if start == 0 else range(1, start)
    rest = _written_out(elaborator, body, product, span, name, missing)
    return elaborator.add([whole, rest if start == 0 else elaborator.negate(rest, span)], span)


def _constant(end: Node | None) -> int | None:
    """The whole number that an end is, or None if it has names."""
    size = None if end is None or symbols_of(end) else size_of(end)
    return size if isinstance(size, int) else None


def _one_index(elaborator: Elaborator, bounds: Range, span: Span) -> None:
    if len(bounds.names) > 1 or bounds.pairs:
        elaborator.unreadable("a sum that does not start at 1 binds one index", span)


def _subscripts(body: Syntax) -> set[str]:
    """The letters that are subscripts by themselves."""
    found: set[str] = set()
    for part in walk(body):
        if is_rule(part, "suffix") and is_token(part[0], "SUB"):
            found |= {
                str(leaf) for leaf in scripts.split_indices(scripts.script_entries(part)) if is_token(leaf, "NAME")
            }
    return found


def _written_out(elaborator, body: Syntax, product: bool, span: Span, name: str, values: range) -> Node:
    before = elaborator.scope
    terms: list[Node] = []
    for value in values:
        elaborator.scope = {**before, name: Number((), Fraction(value), span=span)}
        terms.append(elaborator.term(body))
    elaborator.scope = before
    if not terms:
        return elaborator.number(1 if product else 0, span)
    if not product:
        return elaborator.add(terms, span)
    total = terms[0]
    for term in terms[1:]:
        total = elaborator.multiply(total, term, "", span)
    return total


def _sum_node(
    elaborator, bounds: Range, pairs, body: Syntax, product: bool, span: Span, same: dict[str, str], shift: int = 0
) -> Node:
    """The Sum node; `same` replaces one index by another (a diagonal), `shift` is added to each index."""
    before = elaborator.scope
    elaborator.bound |= dict.fromkeys(bounds.names, "product" if product else "sum")
    indices: dict[str, Index] = {}
    for name in bounds.names:
        if name not in same:
            indices[name] = Index((), name, _size(elaborator, bounds.high.get(name)), span=span)
    elaborator.scope = {**before, **indices}
    if shift:
        elaborator.scope |= {n: elaborator.add([ix, elaborator.number(shift, span)], span) for n, ix in indices.items()}
    for replaced, kept in same.items():
        elaborator.scope[replaced] = indices.get(kept) or outer_index(elaborator, kept, span)
    inner = elaborator.term(body)
    conditions = tuple(
        (op, indices.get(a) or outer_index(elaborator, a, span), indices.get(b) or outer_index(elaborator, b, span))
        for op, a, b in pairs
    )
    for _, a, b in conditions:
        if isinstance(a, Index) and isinstance(b, Index) and not unify(a.size, b.size):
            elaborator.ill_typed(
                f"{pretty_name(a.name)} and {pretty_name(b.name)} run to different ends and are compared", span
            )
    elaborator.scope = before
    if product and inner.shape:
        elaborator.ill_typed("a product over an index is of scalars", span)
    if not indices:
        return inner
    return Sum(inner.shape, tuple(indices.values()), inner, conditions, product, span=span)


def outer_index(elaborator: Elaborator, name: str, span: Span) -> Node:
    """An index that this sum does not bind."""
    if name in elaborator.scope or name in elaborator.types:
        return elaborator.name(name, span)
    return elaborator.free_index(name, span)


def _size(elaborator: Elaborator, end: Node | None) -> Size:
    if end is None:
        return unknown_size()
    size = size_of(end)
    if size is None or (isinstance(end, Symbol) and end.shape):
        elaborator.ill_typed("a sum runs to a whole number, a size or an index", end.span)
    if is_impossible(size):
        reason = f"from 1 a sum runs to a whole number from 1, a size or an index, and not to {elaborator.text(end)}"
        elaborator.ill_typed(reason, end.span)
    return size
