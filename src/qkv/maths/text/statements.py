"""One statement: brackets around a whole chain fall away, 1[i = j] is 1_{i = j}, and two statements are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from qkv.errors import Unreadable
from qkv.maths.text.parsing import Token
from qkv.maths.tree import Type

_OPENING = {"LPAR": "RPAR", "LBRACK": "RBRACK", "LBRACE": "RBRACE", "LSET": "RSET"}
_ANY_OPENING = frozenset((*_OPENING, "ROOT_L", "LANGLE", "BEGIN", "NORM_L", "BAR_L"))
_CLOSING = frozenset((*_OPENING.values(), "ROOT_R", "RANGLE", "END", "NORM_R", "BAR_R"))
_JOINS = frozenset(("REL", "PLUS", "MINUS", "PM", "TIMES", "DIV", "ODOT", "OTIMES", "OVER", "COMMA"))


def one_statement(tokens: list[Token], wide: Collection[int], names: Mapping[str, Type], source: str) -> list[Token]:
    """The tokens of a text that says one thing. `wide`: those that a wide space stands before."""
    _refuse_two(tokens, wide, source)
    return _indicators(_without_brackets(tokens, names), names)


def _refuse_two(tokens: list[Token], wide: Collection[int], source: str) -> None:
    levels = _levels(tokens)
    relations = [at for at, token in enumerate(tokens) if token.type == "REL" and levels[at] == 0]
    for at in sorted(wide):
        inside = 0 < at < len(tokens) and levels[at] == 0 and tokens[at - 1].type not in _JOINS
        if inside and tokens[at].type not in _JOINS and relations and relations[0] < at < relations[-1]:
            span = (tokens[at].start_pos, tokens[-1].end_pos)
            raise Unreadable("these are two statements: give one", source, span)
    unequal = [at for at in relations if tokens[at] == "!="]
    if unequal and len(relations) > 1:
        token = tokens[unequal[0]]
        raise Unreadable("≠ in a chain leaves open what is meant", source, (token.start_pos, token.end_pos))


def _levels(tokens: list[Token]) -> list[int]:
    """How many brackets are open around each token; a bracket is as deep as what it stands beside."""
    levels, level = [], 0
    for token in tokens:
        level -= token.type in _CLOSING
        levels.append(level)
        level += token.type in _ANY_OPENING
    return levels


def _without_brackets(tokens: list[Token], names: Mapping[str, Type]) -> list[Token]:
    """Brackets taken off that hold a chain: all of the text, or in braces (as in \\boxed{}) what comes after an =."""
    start = _last_group(tokens)
    boxed = start > 0 and tokens[start].type == "LBRACE" and tokens[start - 1].type == "REL"
    if start != 0 and not boxed:
        return tokens
    inner, around = tokens[start + 1 : -1], tokens[start]
    while _last_group(inner) == 0:
        inner, around = inner[1:-1], inner[0]
    levels = _levels(inner)
    chained = any(token.type == "REL" and not level for token, level in zip(inner, levels, strict=True))
    indicator = around.type == "LBRACK" and _compares(inner, names) and inner[0].type == inner[2].type == "NAME"
    return _without_brackets(tokens[:start] + inner, names) if chained and not indicator else tokens


def _last_group(tokens: list[Token]) -> int:
    """Where the brackets open that close at the very end; -1 where none do."""
    if len(tokens) < 3 or tokens[-1].type not in _OPENING.values():
        return -1
    levels = _levels(tokens)
    return max(at for at in range(len(tokens) - 1) if levels[at] == 0 and tokens[at].type in _ANY_OPENING)


def _compares(tokens: list[Token], names: Mapping[str, Type]) -> bool:
    """i = j, or i = 1."""
    if len(tokens) != 3 or tokens[1].type != "REL" or tokens[1] != "=":
        return False
    indices = [_could_index(token, names) for token in (tokens[0], tokens[2])]
    whole = [token.type == "NUMBER" and token.isdigit() for token in (tokens[0], tokens[2])]
    return all(indices) or (any(indices) and any(whole))


def _could_index(token: Token, names: Mapping[str, Type]) -> bool:
    if token.type != "NAME":
        return False
    kind = names.get(str(token))
    return len(token.rstrip("'")) == 1 if kind is None else kind.kind == "index"


def _indicators(tokens: list[Token], names: Mapping[str, Type]) -> list[Token]:
    made: list[Token] = []
    at = 0
    while at < len(tokens):
        token, inner = tokens[at], tokens[at + 1 : at + 4]
        opens = token.type in ("LPAR", "LBRACK", "LSET") and at + 4 < len(tokens)
        if not opens or tokens[at + 4].type != _OPENING[token.type] or not _compares(inner, names):
            made.append(token)
            at += 1
            continue
        marked = bool(made) and not _is_argument(made) and _marks(made[-1], names)
        if not marked and token.type != "LBRACK":
            made.append(token)
            at += 1
            continue
        start = made.pop().start_pos if marked else token.start_pos
        made.append(Token("ONES", "1", start, token.end_pos))
        made.append(Token("SUB", "_", token.start_pos, token.end_pos))
        made.append(Token("LBRACE", "{", token.start_pos, token.end_pos))
        last = tokens[at + 4]
        made += [*inner, Token("RBRACE", "}", last.start_pos, last.end_pos)]
        at += 5
    return made


def _is_argument(tokens: list[Token]) -> bool:
    """Whether the last token belongs to what stands before it: a script, a root, or either part of a fraction."""
    before = tokens[:-1]
    if not before or before[-1].type in ("SUB", "SUP", "SQRT", "FRAC"):
        return bool(before)
    start = len(before) - 1
    if before[-1].type in _ANY_OPENING:
        return False
    if before[-1].type in _CLOSING:
        levels = _levels(before)
        opening = (at for at in range(start) if levels[at] == levels[-1] and before[at].type in _ANY_OPENING)
        start = max(opening, default=0)
    return start > 0 and before[start - 1].type == "FRAC"


def _marks(token: Token, names: Mapping[str, Type]) -> bool:
    """Whether this is the 1 or the I before the brackets of an indicator."""
    return token.type == "ONES" or (token.type == "NUMBER" and token == "1") or (token == "I" and "I" not in names)
