"""A whole text: a chain of members, of which those before the last may only say what the last is the value of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from qkv.errors import IllTyped
from qkv.maths.text.fitting import is_list_turned
from qkv.maths.text.parsing import Token
from qkv.maths.text.saying import named
from qkv.maths.text.shaping import DEEPEST, depth, fit_shapes, settle
from qkv.maths.text.syntax import Syntax, is_rule, is_token, only, walk
from qkv.maths.tree import Index, Node, Number, Relation, Shape, Transpose, Written

if TYPE_CHECKING:
    from qkv.maths.text.elaborate import Elaborator


def whole(elaborator: Elaborator, expected: Shape | None) -> Node:
    """The tree of the whole text, its sizes settled."""
    syntax = elaborator.syntax
    chain = syntax[-1]
    assert isinstance(chain, Syntax)
    said = is_rule(syntax, "said")
    signs = [str(part) for part in chain if is_token(part, "REL")]
    written = [part for part in chain if not is_token(part, "REL")]
    dropping = all(sign in ("=", "≈") for sign in signs)
    members: list[Node] = []
    kept: list[str] = []
    for place, part in enumerate(written):
        try:
            member = _finished(elaborator, _member(elaborator, part), expected)
        except IllTyped:
            if not dropping or place == len(written) - 1 or not _is_head(part):
                raise
            continue
        if members:
            kept.append(signs[place - 1])
        members.append(member)
    if (signs and signs[-1] == "≈") or (said and syntax[0] == "≈"):
        members[-1] = _rounded(members[-1])
    if len(members) == 1:
        return members[0]
    return Relation(members[-1].shape, tuple(members), tuple(kept), span=chain.span)


def _member(elaborator: Elaborator, part: Syntax | Token) -> Node:
    """One member; what a sum binds in it is not meant outside that sum, unless it is declared or told to be free."""
    elaborator.bound, elaborator.loose = {}, {}
    node = elaborator.term(part)
    for name, span in elaborator.loose.items():
        if name in elaborator.bound and name not in elaborator.told:
            what, shown = elaborator.bound[name], named(name)
            reason = f"{shown} is bound by the {what} only, and nothing declares it outside"
            elaborator.ill_typed(f"{reason}; put brackets round all that the {what} is over if both are meant", span)
    return node


def _is_head(part: Syntax | Token) -> bool:
    """What stands before an = and may go unread: a name, or a call such as Attention(Q, K, V), with its indices."""
    part = only(part)
    if isinstance(part, Token):
        return part.type in ("NAME", "MAP")
    if part.kind == "operand":
        return _is_head(part[0])
    if part.kind == "product":
        named = only(part[0])
        base = named[0] if is_rule(named, "operand") else named
        group = only(part[1])
        inner = group[0] if is_rule(group, "operand") else group
        return len(part) == 2 and is_token(base, "NAME") and is_rule(inner, "group")
    if part.kind == "group":
        rows = part[1]
        return len(rows) == 1 and len(rows[0]) == 1 and _is_head(rows[0][0])
    if part.kind == "fraction":
        return any(is_token(leaf, "PARTIAL") for leaf in walk(part)) or all(map(_is_differential, part.parts[1:]))
    return part.kind in ("call", "applied", "mapped", "norm", "bars")


def _is_differential(part: Syntax | Token) -> bool:
    """dL or ds."""
    return next((str(leaf) for leaf in walk(part) if is_token(leaf, "NAME")), "") == "d"


def _finished(elaborator: Elaborator, node: Node, expected: Shape | None) -> Node:
    if isinstance(node, Transpose) and is_list_turned(node):
        node = node.body
    if expected is not None:
        node = elaborator.as_shape(node, expected)
        fit_shapes(node.shape, expected)
    if depth(node, DEEPEST) > DEEPEST:
        elaborator.unreadable("this is nested too deeply, definitions included", node.span)

    def missing(one: Node) -> NoReturn:
        if isinstance(one, Index):
            reason = f"nothing says how far {named(one.name)} runs: declare it as index[n], or write the range"
            elaborator.ill_typed(f"{reason} of the sum", one.span)
        sign = {"ones": "1", "zeros": "0", "identity": "I"}.get(getattr(one, "name", ""), "1")
        elaborator.ill_typed(f"nothing says of what size {elaborator.text(one)} is: write {sign}_d", one.span)

    return settle(node, missing)


def _rounded(node: Node) -> Node:
    if isinstance(node, Number):
        return Number((), node.value, node.unit, True, span=node.span)
    if isinstance(node, Written):
        return Written(node.shape, tuple(_rounded(entry) for entry in node.entries), span=node.span)
    return node
