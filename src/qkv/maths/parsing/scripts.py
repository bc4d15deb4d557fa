"""Superscripts and subscripts: powers, transposes, inverses; components, rows, entries; arithmetic as in x_{t-1}."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from qkv.maths.parsing import functions, shapes
from qkv.maths.parsing.grammar import Syntax, Token, is_rule, is_token, only, span_of, walk
from qkv.maths.parsing.shapes import can_unify, describe_shape, describe_size, resolved_size, unify, unknown_size
from qkv.maths.sizes import NATURAL, Polynomial, is_impossible, polynomial, size_node, size_of
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Delta,
    Hadamard,
    Index,
    Multiply,
    Node,
    Number,
    Part,
    Power,
    Shape,
    Span,
    Special,
    Symbol,
    Transpose,
)

if TYPE_CHECKING:
    from qkv.maths.parsing.elaborate import Elaborator


@dataclass(frozen=True)
class LinearIndex:
    """A sum of multiples of indices, and a rest without indices."""

    indices: tuple[Index, ...]
    times: tuple[Fraction, ...]
    rest: Node


def linear_index(node: Node) -> LinearIndex | None:
    """A sum of indices, naturals and whole numbers as a LinearIndex; None for anything else."""
    if not isinstance(node, Add | Multiply):
        return None
    indices: dict[str, tuple[Index, Fraction]] = {}
    rest: list[Node] = []
    for term in node.terms if isinstance(node, Add) else (node,):
        factors = term.factors if isinstance(term, Multiply) else (term,)
        numbers = [factor for factor in factors if isinstance(factor, Number)]
        if any(factor.value.denominator != 1 or factor.unit is not None for factor in numbers):
            return None
        others = [factor for factor in factors if not isinstance(factor, Number)]
        if len(others) == 1 and isinstance(index := others[0], Index):
            value = Fraction(1)
            for factor in numbers:
                value *= factor.value
            indices[index.name] = (index, value + indices.get(index.name, (index, Fraction(0)))[1])
        elif all(isinstance(factor, Symbol) and factor.type.kind == "natural" for factor in others):
            rest.append(term)
        else:
            return None
    kept = [pair for pair in indices.values() if pair[1]]
    total = Add((), tuple(rest)) if rest else Number((), Fraction(0))
    return LinearIndex(tuple(index for index, _ in kept), tuple(times for _, times in kept), total)


def simplify_index(node: Node) -> Node:
    """Simplify a subscript: i for i + 1 - 1, and 3 for 2 + 1."""
    counted = linear_index(node)
    rest = None if counted is None else polynomial(counted.rest)
    if counted is None or rest is None or not set(rest) <= {()}:
        return node
    if not counted.indices:
        return Number((), rest.get((), Fraction(0)), span=node.span)
    if counted.times == (1,) and not rest:
        (index,) = counted.indices
        return Index((), index.name, index.size, span=node.span)
    if counted.times == (1,) and isinstance(node, Add):
        (index,) = counted.indices
        return Add((), (index, Number((), rest[()], span=node.span)), span=node.span)
    return node


def always_within(counted: LinearIndex, size: object) -> bool:
    """Whether a sum of indices always lies between 1 and `size`; each index starts at 1, naturals are at least 1."""
    if not isinstance(size, int | str):
        return False
    low, high = polynomial(counted.rest), polynomial(counted.rest)
    for index, times in zip(counted.indices, counted.times, strict=True):
        end = resolved_size(index.size)
        most = polynomial(size_node(end)) if isinstance(end, int | str) else None
        if most is None:
            return False
        one: Polynomial = {(): Fraction(1)}
        low = _add_multiple(low, one if times > 0 else most, times)
        high = _add_multiple(high, most if times > 0 else one, times)
    return _never_negative(_add_multiple(low, {(): Fraction(1)}, Fraction(-1))) and _never_negative(
        _add_multiple(polynomial(size_node(size)), high, Fraction(-1))
    )


def _add_multiple(left: Polynomial | None, right: Polynomial | None, times: Fraction) -> Polynomial | None:
    if left is None or right is None:
        return None
    total = dict(left)
    for key, value in right.items():
        total[key] = total.get(key, Fraction(0)) + times * value
    return {key: value for key, value in total.items() if value}


def _never_negative(part: Polynomial | None) -> bool:
    """Whether the signs of the coefficients show that this is never negative."""
    if part is None or any(power < 0 for key in part for _, power in key):
        return False
    return sum(part.values()) >= 0 and all(value > 0 for key, value in part.items() if key)


def subscript_names(syntax: Syntax | Token) -> frozenset[str]:
    """The single letters in subscripts anywhere; an undeclared one may be a free index."""
    found: set[str] = set()
    for part in walk(syntax):
        if is_rule(part, "suffix") and is_token(part[0], "SUB"):
            found |= {str(leaf) for leaf in walk(part) if is_token(leaf, "NAME") and len(str(leaf).rstrip("'")) == 1}
    return frozenset(found)


def script_entries(suffix: Syntax) -> list[Syntax | Token]:
    """The entries of a script, without its braces."""
    script = suffix[1]
    assert isinstance(script, Syntax)
    if is_token(script[0], "LBRACE"):
        return [entry for entry in script[1] if not is_token(entry, "COMMA")]
    if is_token(script[0], "LPAR"):
        return [script[1]]
    return [script]


def script_value(elaborator: Elaborator, part: Syntax | Token) -> Node:
    """A script entry as a scalar: n, -1, {1/2}."""
    if is_rule(part, "entry", "script"):
        pieces = list(part)
        if len(pieces) == 2 and is_token(pieces[0], "MINUS"):
            node = elaborator.term(pieces[1])
            return elaborator.negate(node, (span_of(pieces[0])[0], node.span[1]))
        if len(pieces) == 1:
            return elaborator.term(pieces[0])
        elaborator.unreadable("this index is not read", span_of(part))
    return elaborator.term(part)


def _leaf(part: Syntax | Token) -> Any:
    while isinstance(part, Syntax) and len(part) == 1 and part.kind in ("entry", "script", "chain"):
        part = part[0]
    return only(part)


def with_scripts(elaborator: Elaborator, atom: Syntax | Token, suffixes: list[Syntax], span: Span) -> Node:
    """An atom with its superscripts and subscripts, written in any order."""
    lower = [suffix for suffix in suffixes if is_token(suffix[0], "SUB")]
    upper = [suffix for suffix in suffixes if is_token(suffix[0], "SUP")]
    if len(lower) > 1:
        elaborator.unreadable("two lower indices on one thing: write x_{i,j}", lower[1].span)
    if is_token(atom, "NAME") and lower and upper and suffixes.index(upper[0]) < suffixes.index(lower[0]):
        joined = f"{atom}_{script_letters(script_entries(lower[0]))}"
        if joined in elaborator.types:  # σ^2_q is σ_q squared
            atom, lower = Token("NAME", joined, start_pos=span_of(atom)[0], end_pos=span[1]), []
    powers = 0
    if is_token(atom, "NAME") and atom == "e" and upper and _is_free(elaborator, "e") and not lower:
        exponent = script_value(elaborator, script_entries(upper[0])[0])
        base: Node = Call(exponent.shape, "exp", (exponent,), span=span)
        upper, powers = upper[1:], 1
    else:
        turned = bool(upper) and bool(lower) and suffixes.index(upper[0]) < suffixes.index(lower[0])
        if turned and _transposes(elaborator, script_entries(upper[0]), 2):
            base = with_upper_index(elaborator, elaborator.term(atom), upper[0], span)
            base = _part(elaborator, atom, base, lower[0], span)
            upper = upper[1:]
        else:
            base = _with_lower_index(elaborator, atom, lower, span)
    return with_upper_indices(elaborator, base, upper, span, powers)


def with_upper_indices(elaborator: Elaborator, base: Node, upper: list[Syntax], span: Span, powers: int = 0) -> Node:
    """Apply any number of transposes but only one power; `powers` of them are in the base already."""
    for suffix in upper:
        powers += not _transposes(elaborator, script_entries(suffix), len(base.shape))
        if powers > 1:
            elaborator.unreadable(
                "two upper indices on one thing: show by brackets what is raised to what", suffix.span
            )
        base = with_upper_index(elaborator, base, suffix, span)
    return base


def script_letters(parts: list[Syntax | Token]) -> str:
    """The letters of a script, as in a name."""
    return "".join(str(leaf) for part in parts for leaf in walk(part) if isinstance(leaf, Token))


def _is_free(elaborator: Elaborator, name: str) -> bool:
    return name not in elaborator.types and name not in elaborator.scope and not elaborator.naturals


def _has_parts(elaborator: Elaborator, name: str) -> bool:
    kind = elaborator.types.get(name)
    return name in elaborator.scope or (kind is not None and bool(kind.shape))


def _with_lower_index(elaborator: Elaborator, atom: Syntax | Token, lower: list[Syntax], span: Span) -> Node:
    """The atom with its subscript, which has its own meaning on a norm, a 1, an I, a δ and a name."""
    if is_rule(atom, "norm", "bars"):
        which = script_letters(script_entries(lower[0])) if lower else ""
        return functions.norm(elaborator, elaborator.term(atom[1]), which, span)
    if not lower:
        return elaborator.term(atom)
    name = str(atom) if is_token(atom, "NAME") else ""
    if is_token(atom, "ONES", "ZEROS"):
        indicator = delta(elaborator, _leaf(script_entries(lower[0])[0])) if is_token(atom, "ONES") else None
        return indicator or Special(_sizes(elaborator, lower[0]), atom.type.lower(), span=span)
    if name == "I" and _is_free(elaborator, name):
        indices = split_indices(script_entries(lower[0]))
        if len(indices) == 2 and all(_could_index(elaborator, index) for index in indices):
            return _delta_node(elaborator, indices[0], indices[1], span)
        shape = _sizes(elaborator, lower[0])
        if len(shape) == 2 and not unify(*shape):
            elaborator.ill_typed("the identity is square", span)
        return Special((shape[0], shape[0]), "identity", span=span)
    if name == "delta" and _is_free(elaborator, name):
        indices = split_indices(script_entries(lower[0]))
        if len(indices) != 2:
            elaborator.ill_typed("δ takes two indices, as in δ_{ij}", span)
        return _delta_node(elaborator, indices[0], indices[1], span)
    if name and elaborator.naturals and not _has_parts(elaborator, name):
        return Symbol((), f"{name}_{script_letters(script_entries(lower[0]))}", NATURAL, span=span)
    if name and _is_free(elaborator, name):
        elaborator.undeclared(f"{name}_{script_letters(script_entries(lower[0]))}", span)
    return _part(elaborator, atom, elaborator.term(atom), lower[0], span)


def _could_index(elaborator: Elaborator, part: Syntax | Token | None) -> bool:
    """Whether a subscript of I is an index, as in I_{ij}, and not a size: a letter not declared as a number."""
    if not is_token(part, "NAME"):
        return False
    kind = elaborator.types.get(str(part))
    return part in elaborator.scope or (len(part.rstrip("'")) == 1 if kind is None else kind.kind == "index")


def _sizes(elaborator: Elaborator, suffix: Syntax) -> Shape:
    """The sizes below a 1, a 0 or an I: d, n×d or n,d."""
    parts: list[Syntax | Token] = []
    for entry in script_entries(suffix):
        leaf = _leaf(entry)
        operators = (
            [at for at, piece in enumerate(leaf) if is_rule(piece, "operator")] if is_rule(leaf, "product") else []
        )
        if operators and is_token(leaf[operators[0]][0], "TIMES"):
            parts += [piece for piece in leaf if not is_rule(piece, "operator")]
        else:
            parts.append(entry)
    sizes = []
    for part in parts:
        node = script_value(elaborator, part)
        size = size_of(node) if not node.shape else None
        if size is None:
            elaborator.ill_typed("this is not a size", span_of(part))
        if is_impossible(size):
            reason = f"{elaborator.text(node)} is not a size: write a whole number from 1, or a name such as d"
            elaborator.ill_typed(reason, span_of(part))
        sizes.append(size)
    if len(sizes) > 2:
        elaborator.ill_typed("more than two sizes", suffix.span)
    return tuple(sizes)


def split_indices(entries: list[Syntax | Token]) -> list[Syntax | Token | None]:
    """The indices in a script: i,j and ij and 12 are two each; : and · are a whole axis (None)."""
    found: list[Syntax | Token | None] = []
    for entry in entries:
        pieces = list(entry) if is_rule(entry, "entry") else [entry]
        for piece in pieces:
            if is_token(piece, "ALL") or is_token(_leaf(piece), "ALL"):
                found.append(None)
                continue
            leaf = _leaf(piece)
            simple = is_rule(leaf, "product") and all(is_token(only(part), "NAME", "NUMBER") for part in leaf)
            found.extend([only(part) for part in leaf] if simple else [leaf])
    return found


def _part(elaborator: Elaborator, atom: Syntax | Token, base: Node, suffix: Syntax, span: Span) -> Node:
    """A component, a row, a column or an entry."""
    indices = split_indices(script_entries(suffix))
    shown = elaborator.text(base)
    if not base.shape:
        name = (
            shapes.pretty_name(f"{atom}_{script_letters(script_entries(suffix))}") if is_token(atom, "NAME") else shown
        )
        if isinstance(base, Symbol):
            elaborator.ill_typed(f"{name} is not declared, and {shown} is a scalar, which has no components", span)
        elaborator.ill_typed(f"{shown} is a scalar, which has no components", span)
    if len(base.shape) == 2 and resolved_size(base.shape[0]) == 1 and len(indices) == 1:
        base = base.body if isinstance(base, Transpose) else elaborator.transpose(base, base.span)
    digits = indices[0] if len(indices) == 1 else None
    if len(base.shape) == 2 and is_token(digits, "NUMBER") and re.fullmatch(r"[1-9]{2}", str(digits)):
        start, stop = span_of(digits)
        indices = [Token("NUMBER", digit, start_pos=start, end_pos=stop) for digit in str(digits)]
    if len(indices) > len(base.shape):
        wanted = "one index" if len(base.shape) == 1 else "two indices"
        elaborator.ill_typed(f"{shown} is {describe_shape(base.shape)} and takes {wanted}, not {len(indices)}", span)
    if all(index is None for index in indices):
        return base
    nodes = tuple(
        None if index is None else _part_index(elaborator, index, size, shown)
        for index, size in zip(indices, base.shape, strict=False)
    )
    return Part(_part_shape(base.shape, nodes), base, nodes, span=span)


def _part_shape(shape: Shape, indices: tuple[Node | None, ...]) -> Shape:
    if len(shape) == 1:
        return ()
    if len(indices) == 1:
        return (shape[1],)
    if indices[0] is None:
        return (shape[0],)
    return (1, shape[1]) if indices[1] is None else ()


def _part_index(elaborator: Elaborator, part: Syntax | Token, size: object, shown: str) -> Node:
    """One index, whose range must be that of the axis that it selects from."""
    span = span_of(part)
    node = simplify_index(index_node(elaborator, part))
    if isinstance(node, Index):
        if not can_unify(node.size, size):
            runs = f"{shapes.pretty_name(node.name)} runs to {describe_size(node.size)}"
            elaborator.ill_typed(f"{runs} but {shown} has {shapes.plural(describe_size(size), 'component')}", span)
        unify(node.size, size)
    elif isinstance(node, Number):
        most = resolved_size(size)
        if node.value < 1 or node.value.denominator != 1:
            elaborator.ill_typed("components are counted by whole numbers from 1", span)
        if isinstance(most, int) and node.value > most:
            has = shapes.plural(most, "component")
            elaborator.ill_typed(f"{shown} has {has}, and there is no number {node.value}", span)
    elif (counted := linear_index(node)) is not None:
        _check_range(elaborator, node, counted, size, shown, span)
    elif not (isinstance(node, Symbol) and node.type.kind == "natural"):
        described = describe_shape(node.shape) if isinstance(node, Symbol) else "an expression"
        elaborator.ill_typed(
            f"an index is a letter or a whole number, and {elaborator.text(node)} is {described}", span
        )
    return node


def _check_range(elaborator: Elaborator, node: Node, counted, size: object, shown: str, span: Span) -> None:
    """Refuse t - 1 or n + 1 as a subscript if a sum over t may take it out of the axis."""
    if always_within(counted, resolved_size(size)):
        return
    for one in counted.indices:
        if one.name in elaborator.scope or not can_unify(one.size, size):
            name, end = shapes.pretty_name(one.name), resolved_size(one.size)
            runs = (
                f"{name} runs to {describe_size(end)}"
                if isinstance(end, int | str)
                else f"nothing says how far {name} runs"
            )
            has = shapes.plural(describe_size(size), "component")
            reason = f"{runs}, so that {elaborator.text(node)} may lie outside of {shown}, which has {has}"
            elaborator.ill_typed(reason, span)
        unify(one.size, size)


def index_node(elaborator: Elaborator, part: Syntax | Token) -> Node:
    """A letter or a number in a subscript; an undeclared letter is a free index."""
    leaf = _leaf(part)
    if isinstance(leaf, Token) and leaf.type == "NAME":
        name = str(leaf)
        if name not in elaborator.scope and name not in elaborator.types and len(name.rstrip("'")) == 1:
            return elaborator.free_index(name, span_of(leaf))
    return script_value(elaborator, part)


def delta(elaborator: Elaborator, part: Syntax | Token) -> Node | None:
    """i = j below a 1, as a Delta; None for anything else."""
    if not is_rule(part, "chain") or len(part) != 3 or not is_token(part[1], "REL") or part[1] != "=":
        return None
    sides = [only(side) for side in (part[0], part[2])]
    indices = [_could_index(elaborator, side) for side in sides]
    if not all(indices) and not (any(indices) and any(is_token(side, "NUMBER") for side in sides)):
        elaborator.unreadable("below a 1 two indices are compared, or an index and a number", span_of(part))
    return _delta_node(elaborator, part[0], part[2], span_of(part))


def _delta_node(elaborator: Elaborator, left: Syntax | Token | None, right: Syntax | Token | None, span: Span) -> Node:
    if left is None or right is None:
        elaborator.ill_typed("δ takes two indices, as in δ_{ij}", span)
    a, b = index_node(elaborator, left), index_node(elaborator, right)
    if isinstance(a, Index) and isinstance(b, Index) and not unify(a.size, b.size):
        ends = [f"{shapes.pretty_name(one.name)} runs to {describe_size(one.size)}" for one in (a, b)]
        elaborator.ill_typed(" and ".join(ends), span)
    if a.shape or b.shape:
        elaborator.ill_typed("only indices are compared here", span)
    return Delta((), a, b, span=span)


def _transposes(elaborator: Elaborator, entries: list[Syntax | Token], rank: int) -> bool:
    leaf = _leaf(entries[0])
    if is_token(leaf, "TOP"):
        return True
    return is_token(leaf, "NAME") and leaf == "T" and (rank > 0 or "T" not in elaborator.types)


def with_upper_index(elaborator: Elaborator, base: Node, suffix: Syntax, span: Span) -> Node:
    """A transpose, an inverse or a power."""
    entries = script_entries(suffix)
    if len(entries) > 1:
        elaborator.unreadable("an upper index is one exponent", suffix.span)
    if _transposes(elaborator, entries, len(base.shape)):
        if isinstance(base, Number) and base.value in (0, 1):
            base = Special((unknown_size(),), "ones" if base.value else "zeros", span=base.span)
        return elaborator.transpose(base, span)
    entry = entries[0]
    if is_rule(entry, "entry") and is_token(entry[0], "ODOT"):
        return _entrywise_square(elaborator, base, elaborator.term(entry[1]), span)
    leaves = [leaf for leaf in walk(entry) if isinstance(leaf, Token)]
    if len(leaves) == 2 and leaves[0].type == "MINUS" and leaves[1] == "T" and len(base.shape) == 2:
        inverse = power(elaborator, base, elaborator.number(-1, suffix.span), span)
        return elaborator.transpose(inverse, span)
    return power(elaborator, base, script_value(elaborator, entry), span)


def _entrywise_square(elaborator: Elaborator, base: Node, exponent: Node, span: Span) -> Node:
    if not isinstance(exponent, Number) or exponent.value != 2:
        elaborator.unreadable("entry by entry only squares are read", span)
    return Hadamard(base.shape, base, base, span=span)


def power(elaborator: Elaborator, base: Node, exponent: Node, span: Span) -> Node:
    """A scalar to a scalar, or a square matrix to a whole number."""
    shown = shapes.shortened(shapes.power_text(base, exponent) or elaborator.source[slice(*span)].strip())
    if exponent.shape:
        elaborator.ill_typed(
            f"{shown}: an exponent is a scalar, and this is {describe_shape(exponent.shape)}", exponent.span
        )
    if not base.shape:
        return Power((), base, exponent, span=span)
    square = isinstance(exponent, Number) and exponent.value == 2
    if len(base.shape) == 1 or resolved_size(base.shape[0]) == 1:
        kind = "vector" if len(base.shape) == 1 else "row"
        what = "square" if square else "powers"
        bare = base.body if isinstance(base, Transpose) and len(base.body.shape) == 1 else base
        if len(bare.shape) == 2:
            bare = elaborator.transpose(bare, base.span)
        elaborator.ill_typed(f"{shown}: a {kind} has no {what}", span, _with_itself(bare) if square else "")
    if not can_unify(*base.shape):
        reason = f"{shown}: {describe_shape(base.shape)} is not square and has no powers"
        elaborator.ill_typed(reason, span, _with_itself(base) if square else "")
    if not isinstance(exponent, Number) or exponent.value.denominator != 1:
        elaborator.ill_typed(f"{shown}: a matrix has whole powers only", span)
    unify(*base.shape)
    return Power(base.shape, base, exponent, span=span)


def _with_itself(node: Node) -> str:
    """xᵀx as text."""
    return shapes.node_text(Contract((), Transpose((1, *node.shape[:1]), node), node))


def power_of_ten(node: Node) -> int | None:
    """k if this is 10^k, else None."""
    match node:
        case Power(base=Number(value=ten, unit=None), exponent=Number(value=Fraction() as exponent)) if ten == 10:
            return int(exponent) if exponent.denominator == 1 else None
    return None
