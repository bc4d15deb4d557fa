"""Superscripts and subscripts: powers, components, arithmetic as in x_{t-1}; and derivatives, which have both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from qkv.maths import tree
from qkv.maths.parsing import functions, shapes
from qkv.maths.parsing.grammar import Syntax, Token, is_rule, is_token, only, span_of, walk
from qkv.maths.parsing.shapes import can_unify, describe_shape, describe_size, resolved_size, unify, unknown_size
from qkv.maths.sizes import NATURAL, Polynomial, is_impossible, polynomial, size_node, size_of
from qkv.maths.tree import Add, Derivative, Index, Multiply, Node, Number, Part, Shape, Span, Special, Symbol, Transpose

if TYPE_CHECKING:
    from qkv.maths.parsing.elaborate import Elaborator

Piece: TypeAlias = Syntax | Token


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
            value = prod((factor.value for factor in numbers), start=Fraction(1))
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
    least, rest = _add_multiple(low, {(): Fraction(1)}, Fraction(-1)), polynomial(size_node(size))
    return never_negative(least) and never_negative(_add_multiple(rest, high, Fraction(-1)))


def added(size: Any, number: int) -> Polynomial | None:
    """A size plus a number."""
    return _add_multiple(polynomial(size_node(size)), {(): Fraction(number)}, Fraction(1))


def _add_multiple(left: Polynomial | None, right: Polynomial | None, times: Fraction) -> Polynomial | None:
    if left is None or right is None:
        return None
    total = dict(left)
    for key, value in right.items():
        total[key] = total.get(key, Fraction(0)) + times * value
    return {key: value for key, value in total.items() if value}


def never_negative(part: Polynomial | None) -> bool:
    """Whether the signs of the coefficients show that this is never negative."""
    if part is None or any(power < 0 for key in part for _, power in key):
        return False
    return sum(part.values()) >= 0 and all(value > 0 for key, value in part.items() if key)


def subscript_names(syntax: Piece) -> frozenset[str]:
    """The single letters in subscripts anywhere; an undeclared one may be a free index."""
    found: set[str] = set()
    for part in walk(syntax):
        if is_rule(part, "suffix") and is_token(part[0], "SUB"):
            found |= {str(leaf) for leaf in walk(part) if is_token(leaf, "NAME") and len(str(leaf).rstrip("'")) == 1}
    return frozenset(found)


def undeclared_names(build: Elaborator) -> list[str]:
    """The names in the text that are neither declared nor indices, with their subscripts."""
    found: list[str] = []
    pending: list[Piece] = [build.syntax]
    while pending:
        part = pending.pop()
        if is_token(part, "NAME") and _is_free(build, part) and part not in build.used | {"e", "I", "T"}:
            found.append(str(part))
        if not isinstance(part, Syntax):
            continue
        lower = [one for one in part if part.kind == "operand" and is_rule(one, "suffix") and is_token(one[0], "SUB")]
        if lower and is_token(part[0], "NAME") and not _has_parts(build, part[0]):
            found.append(f"{part[0]}_{script_letters(script_entries(lower[0]))}")
        elif part.kind != "suffix" or not is_token(part[0], "SUB"):
            pending += reversed(part.parts)
    return found


def script_entries(suffix: Syntax) -> list[Piece]:
    """The entries of a script, without its braces."""
    script = suffix[1]
    assert isinstance(script, Syntax)
    if is_token(script[0], "LBRACE"):
        return [entry for entry in script[1] if not is_token(entry, "COMMA")]
    if is_token(script[0], "LPAR"):
        return [script[1]]
    return [script]


def script_value(build: Elaborator, part: Piece) -> Node:
    """A script entry as a scalar: n, -1, {1/2}."""
    if is_rule(part, "entry", "script"):
        pieces = list(part)
        if len(pieces) == 2 and is_token(pieces[0], "MINUS"):
            node = build.term(pieces[1])
            return build.negate(node, (span_of(pieces[0])[0], node.span[1]))
        if len(pieces) == 1:
            return build.term(pieces[0])
        build.unreadable("this index is not read", span_of(part))
    return build.term(part)


def _leaf(part: Piece) -> Any:
    while isinstance(part, Syntax) and len(part) == 1 and part.kind in ("entry", "script", "chain"):
        part = part[0]
    return only(part)


def with_scripts(build: Elaborator, atom: Piece, suffixes: list[Syntax], span: Span) -> Node:
    """An atom with its superscripts and subscripts, written in any order."""
    lower = [suffix for suffix in suffixes if is_token(suffix[0], "SUB")]
    upper = [suffix for suffix in suffixes if is_token(suffix[0], "SUP")]
    if len(lower) > 1:
        build.unreadable("two lower indices on one thing: write x_{i,j}", lower[1].span)
    if is_token(atom, "NAME") and lower and upper and suffixes.index(upper[0]) < suffixes.index(lower[0]):
        joined = f"{atom}_{script_letters(script_entries(lower[0]))}"
        if joined in build.types:  # σ^2_q is σ_q squared
            atom, lower = Token("NAME", joined, start_pos=span_of(atom)[0], end_pos=span[1]), []
    if any(is_rule(suffix, "bang") for suffix in suffixes):
        if upper or not is_rule(suffixes[-1], "bang"):
            build.unreadable("show by brackets what the factorial is of", span)
        inner = Syntax("operand", (atom, *suffixes[:-1]), span, 0)
        return functions.known_call(build, "factorial", [build.term(inner)], span)
    powers = 0
    if is_token(atom, "NAME") and atom == "e" and upper and _is_free(build, "e") and not lower:
        exponent = script_value(build, script_entries(upper[0])[0])
        base: Node = tree.Call(exponent.shape, "exp", (exponent,), span=span)
        upper, powers = upper[1:], 1
    else:
        turned = bool(upper) and bool(lower) and suffixes.index(upper[0]) < suffixes.index(lower[0])
        if turned and _transposes(build, script_entries(upper[0]), 2):
            base = with_upper_index(build, build.term(atom), upper[0], span)
            base = _part(build, atom, base, lower[0], span)
            upper = upper[1:]
        else:
            base = _with_lower_index(build, atom, lower, span)
    return with_upper_indices(build, base, upper, span, powers)


def with_upper_indices(build: Elaborator, base: Node, upper: list[Syntax], span: Span, powers: int = 0) -> Node:
    """Apply any number of transposes but only one power; `powers` of them are in the base already."""
    for suffix in upper:
        powers += not _transposes(build, script_entries(suffix), len(base.shape))
        if powers > 1:
            build.unreadable("two upper indices on one thing: show by brackets what is raised to what", suffix.span)
        base = with_upper_index(build, base, suffix, span)
    return base


def script_letters(parts: list[Piece]) -> str:
    """The letters of a script, as in a name."""
    return "".join(str(leaf) for part in parts for leaf in walk(part) if isinstance(leaf, Token))


def _is_free(build: Elaborator, name: str) -> bool:
    return name not in build.types and name not in build.scope and not build.naturals


def _has_parts(build: Elaborator, name: str) -> bool:
    kind = build.types.get(name)
    return name in build.scope or (kind is not None and bool(kind.shape))


def _with_lower_index(build: Elaborator, atom: Piece, lower: list[Syntax], span: Span) -> Node:
    """The atom with its subscript, which has its own meaning on a norm, a 1, an I, a δ and a name."""
    if is_rule(atom, "norm", "bars"):
        which = script_letters(script_entries(lower[0])) if lower else ""
        return functions.norm(build, build.term(atom[1]), which, span)
    if not lower:
        return build.term(atom)
    name = str(atom) if is_token(atom, "NAME") else ""
    if is_token(atom, "ONES", "ZEROS"):
        indicator = delta(build, _leaf(script_entries(lower[0])[0])) if is_token(atom, "ONES") else None
        return indicator or Special(sizes_of(build, lower[0]), atom.type.lower(), span=span)
    if name == "I" and _is_free(build, name):
        indices = split_indices(script_entries(lower[0]))
        if len(indices) == 2 and all(_could_index(build, index) for index in indices):
            return _delta_node(build, indices[0], indices[1], span)
        shape = sizes_of(build, lower[0])
        if len(shape) == 2 and not unify(*shape):
            build.ill_typed("the identity is square", span)
        return Special((shape[0], shape[0]), "identity", span=span)
    if name == "delta" and _is_free(build, name):
        indices = split_indices(script_entries(lower[0]))
        if len(indices) != 2:
            build.ill_typed("δ takes two indices, as in δ_{ij}", span)
        return _delta_node(build, indices[0], indices[1], span)
    if name and build.naturals and not _has_parts(build, name):
        return Symbol((), f"{name}_{script_letters(script_entries(lower[0]))}", NATURAL, span=span)
    if name and _is_free(build, name):
        build.undeclared(f"{name}_{script_letters(script_entries(lower[0]))}", span)
    return _part(build, atom, build.term(atom), lower[0], span)


def _could_index(build: Elaborator, part: Piece | None) -> bool:
    """Whether a subscript of I is an index, as in I_{ij}, and not a size: a letter not declared as a number."""
    if not is_token(part, "NAME"):
        return False
    kind = build.types.get(str(part))
    return part in build.scope or (len(part.rstrip("'")) == 1 if kind is None else kind.kind == "index")


def sizes_of(build: Elaborator, suffix: Syntax, most: int = 2) -> Shape:
    """The sizes below a 1, a 0 or an I, or above an ℝ: d, n×d or n,d."""
    parts: list[Piece] = []
    for entry in script_entries(suffix):
        leaf = _leaf(entry)
        operators = [piece[0] for piece in leaf if is_rule(piece, "operator")] if is_rule(leaf, "product") else []
        times = bool(operators) and operators[0].type == "TIMES"
        parts += [piece for piece in leaf if not is_rule(piece, "operator")] if times else [entry]
    sizes = []
    for part in parts:
        node = script_value(build, part)
        size = size_of(node) if not node.shape else None
        if size is None:
            build.ill_typed("this is not a size", span_of(part))
        if is_impossible(size):
            reason = f"{build.text(node)} is not a size: write a whole number from 1, or a name such as d"
            build.ill_typed(reason, span_of(part))
        sizes.append(size)
    if len(sizes) > most:
        build.ill_typed(f"more than {'two' if most == 2 else most} sizes", suffix.span)
    return tuple(sizes)


def split_indices(entries: list[Piece]) -> list[Piece | None]:
    """The indices in a script: i,j and ij and 12 are two each; : and · are a whole axis (None)."""
    found: list[Piece | None] = []
    for entry in entries:
        for piece in entry.parts if is_rule(entry, "entry") else (entry,):
            leaf: Piece = _leaf(piece)
            parts = [only(part) for part in leaf.parts] if is_rule(leaf, "product") else []
            simple = bool(parts) and all(is_token(part, "NAME", "NUMBER") for part in parts)
            found.extend(parts if simple else [None if is_token(leaf, "ALL") else leaf])
    return found


def _part(build: Elaborator, atom: Piece, base: Node, suffix: Syntax, span: Span) -> Node:
    """A component, a row, a column or an entry."""
    indices = split_indices(script_entries(suffix))
    shown = build.text(base)
    if not base.shape:
        known = (_could_index(build, index) and index in (*build.types, *build.scope) for index in indices)
        if isinstance(base, Symbol) and is_token(atom, "NAME") and not all(known):
            build.undeclared(f"{atom}_{script_letters(script_entries(suffix))}", span)
        build.ill_typed(f"{shown} is a scalar, which has no components", span)
    if len(base.shape) == 2 and resolved_size(base.shape[0]) == 1 and len(indices) == 1:
        base = base.body if isinstance(base, Transpose) else build.transpose(base, base.span)
    digits = indices[0] if len(indices) == 1 else None
    if len(base.shape) == 2 and is_token(digits, "NUMBER") and re.fullmatch(r"[1-9]{2}", str(digits)):
        indices = [Token("NUMBER", digit, *span_of(digits)) for digit in str(digits)]
    if len(indices) > len(base.shape):
        wanted = "one index" if len(base.shape) == 1 else "two indices"
        build.ill_typed(f"{shown} is {describe_shape(base.shape)} and takes {wanted}, not {len(indices)}", span)
    if all(index is None for index in indices):
        return base
    nodes = tuple(
        None if index is None else _part_index(build, index, size, shown)
        for index, size in zip(indices, base.shape, strict=False)
    )
    return Part(_part_shape(base.shape, nodes), base, nodes, span=span)


def _part_shape(shape: Shape, indices: tuple[Node | None, ...]) -> Shape:
    if len(shape) == 1 or (len(indices) == 2 and None not in indices):
        return ()
    if len(indices) == 1:
        return (shape[1],)
    return (shape[0],) if indices[0] is None else (1, shape[1])


def _part_index(build: Elaborator, part: Piece, size: object, shown: str) -> Node:
    """One index, whose range must be that of the axis that it selects from."""
    span = span_of(part)
    node = simplify_index(index_node(build, part))
    if isinstance(node, Index):
        if not can_unify(node.size, size):
            runs = f"{shapes.pretty_name(node.name)} runs to {describe_size(node.size)}"
            once = LinearIndex((node,), (Fraction(1),), Number((), Fraction(0)))
            fits = node.name not in build.types and always_within(once, resolved_size(size))
            refuse = build.unreadable if fits else build.ill_typed
            refuse(f"{runs} but {shown} has {shapes.plural(describe_size(size), 'component')}", span)
        unify(node.size, size)
    elif isinstance(node, Number):
        most = resolved_size(size)
        if node.value < 1 or node.value.denominator != 1:
            build.ill_typed("components are counted by whole numbers from 1", span)
        if isinstance(most, int) and node.value > most:
            has = shapes.plural(most, "component")
            build.ill_typed(f"{shown} has {has}, and there is no number {node.value}", span)
    elif (counted := linear_index(node)) is not None:
        _check_range(build, node, counted, size, shown, span)
    elif not (isinstance(node, Symbol) and node.type.kind == "natural"):
        described = describe_shape(node.shape) if isinstance(node, Symbol) else "an expression"
        build.ill_typed(f"an index is a letter or a whole number, and {build.text(node)} is {described}", span)
    return node


def _check_range(build: Elaborator, node: Node, counted, size: object, shown: str, span: Span) -> None:
    """Refuse t - 1 or n + 1 as a subscript if a sum over t may take it out of the axis."""
    if always_within(counted, resolved_size(size)):
        return
    for one in counted.indices:
        if one.name in build.scope or not can_unify(one.size, size):
            name, end = shapes.pretty_name(one.name), resolved_size(one.size)
            known = isinstance(end, int | str)
            runs = f"{name} runs to {describe_size(end)}" if known else f"nothing says how far {name} runs"
            has = shapes.plural(describe_size(size), "component")
            reason = f"{runs}, so that {build.text(node)} may lie outside of {shown}, which has {has}"
            build.ill_typed(reason, span)
        unify(one.size, size)


def index_node(build: Elaborator, part: Piece) -> Node:
    """A letter or a number in a subscript; an undeclared letter is a free index."""
    leaf = _leaf(part)
    if is_token(leaf, "NAME") and leaf not in (*build.scope, *build.types) and len(leaf.rstrip("'")) == 1:
        return build.free_index(str(leaf), span_of(leaf))
    return script_value(build, part)


def delta(build: Elaborator, part: Piece) -> Node | None:
    """i = j below a 1, as a tree.Delta; None for anything else."""
    if not is_rule(part, "chain") or len(part) != 3 or not is_token(part[1], "REL") or part[1] != "=":
        return None
    sides = [only(side) for side in (part[0], part[2])]
    indices = [_could_index(build, side) for side in sides]
    if not all(indices) and not (any(indices) and any(is_token(side, "NUMBER") for side in sides)):
        build.unreadable("below a 1 two indices are compared, or an index and a number", span_of(part))
    return _delta_node(build, part[0], part[2], span_of(part))


def _delta_node(build: Elaborator, left: Piece | None, right: Piece | None, span: Span) -> Node:
    if left is None or right is None:
        build.ill_typed("δ takes two indices, as in δ_{ij}", span)
    a, b = index_node(build, left), index_node(build, right)
    if isinstance(a, Index) and isinstance(b, Index) and not unify(a.size, b.size):
        ends = [f"{shapes.pretty_name(one.name)} runs to {describe_size(one.size)}" for one in (a, b)]
        build.ill_typed(" and ".join(ends), span)
    if a.shape or b.shape:
        build.ill_typed("only indices are compared here", span)
    return tree.Delta((), a, b, span=span)


def _transposes(build: Elaborator, entries: list[Piece], rank: int) -> bool:
    leaf = _leaf(entries[0])
    if is_token(leaf, "TOP"):
        return True
    return is_token(leaf, "NAME") and leaf == "T" and (rank > 0 or "T" not in build.types)


def with_upper_index(build: Elaborator, base: Node, suffix: Syntax, span: Span) -> Node:
    """A transpose, an inverse or a power."""
    entries = script_entries(suffix)
    if len(entries) > 1:
        build.unreadable("an upper index is one exponent", suffix.span)
    if _transposes(build, entries, len(base.shape)):
        if isinstance(base, Number) and base.value in (0, 1):
            base = Special((unknown_size(),), "ones" if base.value else "zeros", span=base.span)
        return build.transpose(base, span)
    entry = entries[0]
    if is_rule(entry, "entry") and is_token(entry[0], "ODOT"):
        exponent = build.term(entry[1])
        if not isinstance(exponent, Number) or exponent.value != 2:
            build.unreadable("entry by entry only squares are read", span)
        return tree.Hadamard(base.shape, base, base, span=span)
    leaves = [leaf for leaf in walk(entry) if isinstance(leaf, Token)]
    if len(leaves) == 2 and leaves[0].type == "MINUS" and leaves[1] == "T" and len(base.shape) == 2:
        inverse = power(build, base, build.number(-1, suffix.span), span)
        return build.transpose(inverse, span)
    return power(build, base, script_value(build, entry), span)


def power(build: Elaborator, base: Node, exponent: Node, span: Span) -> Node:
    """A scalar to a scalar, or a square matrix to a whole number."""
    shown = shapes.shortened(shapes.power_text(base, exponent) or build.source[slice(*span)].strip())
    if exponent.shape:
        described = describe_shape(exponent.shape)
        build.ill_typed(f"{shown}: an exponent is a scalar, and this is {described}", exponent.span)
    if not base.shape:
        return tree.Power((), base, exponent, span=span)
    square = isinstance(exponent, Number) and exponent.value == 2
    if len(base.shape) == 1 or resolved_size(base.shape[0]) == 1:
        kind = "vector" if len(base.shape) == 1 else "row"
        what = "square" if square else "powers"
        bare = base.body if isinstance(base, Transpose) and len(base.body.shape) == 1 else base
        if len(bare.shape) == 2:
            bare = build.transpose(bare, base.span)
        build.ill_typed(f"{shown}: a {kind} has no {what}", span, _with_itself(bare) if square else "")
    if not can_unify(*base.shape):
        reason = f"{shown}: {describe_shape(base.shape)} is not square and has no powers"
        build.ill_typed(reason, span, _with_itself(base) if square else "")
    if not isinstance(exponent, Number) or exponent.value.denominator != 1:
        build.ill_typed(f"{shown}: a matrix has whole powers only", span)
    unify(*base.shape)
    return tree.Power(base.shape, base, exponent, span=span)


def _with_itself(node: Node) -> str:
    """xᵀx as text."""
    return shapes.node_text(tree.Contract((), Transpose((1, *node.shape[:1]), node), node))


def power_of_ten(node: Node) -> int | None:
    """k if this is 10^k, else None."""
    match node:
        case tree.Power(base=Number(value=ten, unit=None), exponent=Number(value=Fraction() as exponent)) if ten == 10:
            return int(exponent) if exponent.denominator == 1 else None
    return None


_HIGHEST_ORDER = 4
_MOST_DERIVATIVES = 12
_WRITTEN = "a derivative is written \\frac{\\partial f}{\\partial x}"
_Targets = list[tuple[Piece, int]]


def flatten_partials(pieces: Sequence[Piece]) -> list[Piece]:
    """The factors of a product, with each ∂ as a factor before what it applies to."""
    found: list[Piece] = []
    for piece in pieces:
        inner = only(piece)
        if is_rule(inner, "partial") and len(inner) == 2:
            start, stop = span_of(inner[0])
            found += [Syntax("partial", (inner[0],), (start, stop), 0), inner[1]]
        else:
            found.append(piece)
    return found


def derivative_acts(pieces: Sequence[Piece], at: int) -> bool:
    """Whether a derivative operator is here, which acts on all that follows."""
    inner = only(pieces[at])
    if is_rule(inner, "fraction"):
        above = _numerator(inner[1], "∂") or _numerator(inner[1], "d")
        return above is not None and above[1] is None
    bare = _derivative_order(pieces[at], "∂") is not None and at + 1 < len(pieces) and _divides(pieces[at + 1])
    return bare or _nabla(pieces[at]) is not None


def refuse_many_derivatives(build: Elaborator, pieces: Sequence[Piece], span: Span) -> None:
    """Refuse very many derivatives: each may contain all that follow it."""
    found = [derivative_acts(pieces, at) or _derivative_order(piece, "d") == 1 for at, piece in enumerate(pieces)]
    if sum(found) > _MOST_DERIVATIVES:
        build.unreadable(f"more than {_MOST_DERIVATIVES} derivatives in one product are not read", span)


def fraction_derivative(build: Elaborator, part: Syntax) -> Node | None:
    """The derivative \\frac{∂f}{∂x}; None if this fraction is not a derivative."""
    found = _of_fraction(build, part)
    if found is None:
        return None
    order, body, targets = found
    if body is None:
        build.unreadable("this derivative has nothing to act on", part.span)
    return _derivatives(build, build.term(body), order, targets, part.span)


def inline_derivative(build: Elaborator, pieces: list[Piece], at: int, span: Span) -> tuple[Node, int] | None:
    """The derivative that begins at `at` in a product, and its last position; None if there is none."""
    inner = only(pieces[at])
    if is_rule(inner, "fraction"):
        found = _of_fraction(build, inner)
        if found is None or found[1] is not None:
            return None
        return _apply_derivative(build, pieces[at + 1 :], found[0], found[2], span), len(pieces) - 1
    by = _nabla(pieces[at])
    if by is not None:
        node = _apply_derivative(build, pieces[at + 1 :], 1, [(by, 1)], span)
        if not isinstance(node, Derivative) or node.body.shape or len(node.shape) != 1:
            build.ill_typed("∇ is read of a scalar, with the vector below that it is taken by", span)
        return node, len(pieces) - 1
    for letter in ("∂", "d"):
        found = _slash_derivative(build, pieces, at, letter, span)
        if found is not None:
            return found
    return None


def _slash_derivative(
    build: Elaborator, pieces: list[Piece], at: int, letter: str, span: Span
) -> tuple[Node, int] | None:
    """∂f/∂x, or ∂/∂x before its argument."""
    order = _derivative_order(pieces[at], letter)
    if order is None:
        return None
    slashes = [place for place in range(at + 1, len(pieces) - 2) if _divides(pieces[place])]
    slash = next((place for place in slashes if _derivative_order(pieces[place + 1], letter) == 1), None)
    if slash is None:
        return None
    stop = slash + 1
    while stop + 2 < len(pieces) and _derivative_order(pieces[stop + 2], letter) == 1 and 2 * order > stop + 1 - slash:
        stop += 2
    targets = _denominator(pieces[slash + 1 : stop + 2], letter)
    if targets is None or (letter == "d" and not _is_differential(build, order, targets, span)):
        return None
    if slash == at + 1:
        return _apply_derivative(build, pieces[stop + 2 :], order, targets, span), len(pieces) - 1
    if _is_operator(pieces[at + 1]):
        return None
    body = build.term(_product_syntax(pieces[at + 1 : slash]))
    return _derivatives(build, body, order, targets, span), stop + 1


def _apply_derivative(build: Elaborator, rest: list[Piece], order: int, targets: _Targets, span: Span) -> Node:
    if not rest or _is_operator(rest[0]):
        build.unreadable("this derivative has nothing to act on", span)
    return _derivatives(build, build.term(_product_syntax(rest)), order, targets, span)


def _derivatives(build: Elaborator, body: Node, order: int, targets: _Targets, span: Span) -> Node:
    if not order or not all(times for _, times in targets):
        build.unreadable("a derivative is taken once or more, not 0 times: leave out the exponent 0", span)
    if order != sum(times for _, times in targets):
        build.unreadable("the numbers of ∂ above and below differ", span)
    if order > _HIGHEST_ORDER:
        build.unreadable(f"derivatives are read up to order {_HIGHEST_ORDER}", span)
    for target, times in targets:
        for _ in range(times):
            body = derivative(build, body, target, span)
        if times > 1 and isinstance(body, Derivative) and body.target.shape:
            build.ill_typed("a second derivative is taken by scalars: name two components", span_of(target))
    return body


def derivative(build: Elaborator, body: Node, target: Piece, span: Span) -> Node:
    """∂ body / ∂ target."""
    node = build.term(target)
    if not isinstance(node, Symbol) and not (isinstance(node, Part) and isinstance(node.body, Symbol)):
        build.ill_typed("a derivative is taken with respect to a name or a component of one", span_of(target))
    if isinstance(body, Transpose) and len(body.body.shape) == len(node.shape) == 1:
        body = body.body  # ∂aᵀ/∂s has the two axes of ∂a/∂s
    if len(body.shape) + len(node.shape) > 2:
        build.ill_typed("this derivative has more than two axes: take that of a component", span)
    return Derivative((*body.shape, *node.shape), body, node, span=span)


def _of_fraction(build: Elaborator, part: Syntax) -> tuple[int, Piece | None, _Targets] | None:
    """The order, the body and the targets of a derivative written as a fraction."""
    if part[0] == "binom":
        return None
    below = flatten_partials(_factors(part[2]))
    targets = _denominator(below, "∂")
    if targets is not None:
        above = _numerator(part[1], "∂")
        if above is None:
            build.unreadable(_WRITTEN, part.span)
        return (*above, targets)
    targets, above = _denominator(below, "d"), _numerator(part[1], "d")
    if targets is None or above is None or not _is_differential(build, above[0], targets, part.span):
        return None
    return (*above, targets)


def _is_differential(build: Elaborator, order: int, targets: _Targets, span: Span) -> bool:
    """Whether d is not a name, so that dy/dx is a derivative; refused if it could be either."""
    if build.naturals or order != sum(times for _, times in targets):
        return False
    if "d" not in build.types and "d" not in build.scope:
        return True
    for target, _ in targets:
        atom = only(target)
        atom = atom[0] if is_rule(atom, "operand") else atom
        kind = build.types.get(str(atom))
        if kind is not None and kind.kind != "natural":
            reason = "d is declared, so that this is a quotient or a derivative: write \\partial for a derivative"
            build.unreadable(f"{reason}, and d \\cdot {script_letters([atom])} for a product", span)
    return False


def _numerator(part: Piece, letter: str) -> tuple[int, Piece | None] | None:
    """The order of the ∂ or ∂^k at the beginning, and what follows it."""
    part = _without_braces(part)
    if is_rule(part, "expression"):
        first = _numerator(part[0], letter)
        if first is None or first[1] is None:
            return None
        return first[0], Syntax("expression", (first[1], *part.parts[1:]), part.span, part.depth)
    pieces = flatten_partials(_factors(part))
    order = _derivative_order(pieces[0], letter)
    if order is None or (len(pieces) > 1 and _is_operator(pieces[1])):
        return None
    return order, _product_syntax(pieces[1:]) if len(pieces) > 1 else None


def _denominator(pieces: list[Piece], letter: str) -> _Targets | None:
    """The targets and their orders in ∂x ∂y^2; None for anything else."""
    if not pieces or len(pieces) % 2:
        return None
    found: _Targets = []
    for mark, target in zip(pieces[::2], pieces[1::2], strict=True):
        atom, suffixes = (target[0], list(target.parts[1:])) if is_rule(target, "operand") else (target, [])
        wrong = _is_operator(target) or (letter == "d" and not is_token(atom, "NAME"))
        if wrong or _derivative_order(mark, letter) != 1:
            return None
        raised: list[Piece] = [one for one in suffixes if is_rule(one, "suffix") and is_token(one[0], "SUP")]
        times = _whole(raised[0]) if len(raised) == 1 and isinstance(raised[0], Syntax) else None
        if times is not None or (len(pieces) > 2 and len(raised) == 1 and script_letters(raised) == "^T"):
            kept = (atom, *(suffix for suffix in suffixes if suffix is not raised[0]))
            target = Syntax("operand", kept, span_of(target), 0)
        found.append((target, 1 if times is None else times))
    return found


def _derivative_order(piece: Piece, letter: str) -> int | None:
    """1 for ∂ (or d), k for ∂^k, else None."""
    inner = only(piece)
    if is_rule(inner, "operand") and len(inner) == 2 and is_token(inner[1][0], "SUP"):
        return _whole(inner[1]) if _is_mark(only(inner[0]), letter) else None
    return 1 if _is_mark(inner, letter) else None


def _is_mark(part: Piece, letter: str) -> bool:
    if letter == "d":
        return is_token(part, "NAME") and part == "d"
    return is_rule(part, "partial") and len(part) == 1 and part[0] == "partial"


def _nabla(piece: Piece) -> Piece | None:
    """u for ∇_u, else None."""
    inner = only(piece)
    if is_rule(inner, "operand") and len(inner) == 2 and is_token(inner[1][0], "SUB"):
        sign = only(inner[0])
        if is_rule(sign, "partial") and len(sign) == 1 and sign[0] == "nabla":
            (entry, *more) = script_entries(inner[1])
            return entry[0] if isinstance(entry, Syntax) and len(entry) == 1 and not more else None
    return None


def _whole(suffix: Syntax) -> int | None:
    written = script_letters(script_entries(suffix))
    return int(written) if written.isdecimal() and 0 < len(written) < 3 else None


def _is_operator(piece: Piece) -> bool:
    return is_rule(piece, "operator", "sign")


def _divides(piece: Piece) -> bool:
    return is_rule(piece, "operator") and is_token(piece[0], "DIV")


def _product_syntax(pieces: Sequence[Piece]) -> Syntax:
    span = (span_of(pieces[0])[0], span_of(pieces[-1])[1])
    return Syntax("product", tuple(pieces), span, 0)


def _factors(part: Piece) -> Sequence[Piece]:
    part = _without_braces(part)
    return part.parts if is_rule(part, "product") else (part,)


def _without_braces(part: Piece) -> Piece:
    """A part without braces and wrappers."""
    part = only(part)
    while is_rule(part, "group") and is_token(part[0], "LBRACE") and len(part[1]) == 1 and len(part[1][0]) == 1:
        part = only(part[1][0][0])
    return part
