"""From tokens to a syntax tree: what was written, before anybody asks what it means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from qkv.errors import Unreadable
from qkv.maths.text.parsing import Token, Unexpected, parsed
from qkv.maths.text.saying import named
from qkv.maths.text.words import SIGNS
from qkv.maths.tree import Span

DEEPEST = 40
_AS_SIGN = {command: sign for sign, command in reversed(SIGNS.items()) if command.startswith("\\")}
_DEEPENING = frozenset(
    ("group", "fraction", "root", "applied", "big", "norm", "bars", "angle", "matrix", "partial", "script", "over")
)


@dataclass(frozen=True)
class Syntax:
    """A rule of the grammar with what it was made of; tokens are leaves."""

    kind: str
    parts: tuple[Syntax | Token, ...]
    span: Span
    depth: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, at: int) -> Any:
        return self.parts[at]


def span_of(part: Syntax | Token) -> Span:
    return part.span if isinstance(part, Syntax) else (part.start_pos, part.end_pos)


def is_token(part: Any, *kinds: str) -> TypeGuard[Token]:
    return isinstance(part, Token) and part.type in kinds


def is_rule(part: Any, *kinds: str) -> TypeGuard[Syntax]:
    return isinstance(part, Syntax) and part.kind in kinds


def only(part: Syntax | Token) -> Syntax | Token:
    """What is left when wrappers of one part (an expression of one product of one operand) are taken off."""
    while isinstance(part, Syntax) and len(part) == 1 and part.kind in ("chain", "expression", "product", "operand"):
        part = part[0]
    return part


def unwrapped(part: Syntax | Token) -> Syntax | Token:
    """`only`, and brackets around nothing but brackets taken off as well, so that they cost no depth."""
    part = only(part)
    while isinstance(part, Syntax) and (inner := _in_brackets(part)) is not None:
        part = inner
    return part


def _in_brackets(part: Syntax) -> Syntax | None:
    if part.kind != "group" or is_token(part[0], "LBRACK"):
        return None
    rows = part[1]
    if not isinstance(rows, Syntax) or len(rows) != 1 or not isinstance(rows[0], Syntax) or len(rows[0]) != 1:
        return None
    inner = only(rows[0][0])
    return inner if isinstance(inner, Syntax) and inner.kind == "group" else None


def walk(part: Syntax | Token) -> Iterator[Syntax | Token]:
    waiting = [part]
    while waiting:
        taken = waiting.pop()
        yield taken
        if isinstance(taken, Syntax):
            waiting.extend(reversed(taken.parts))


class TooDeep(Exception):
    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


def _made(kind: str, parts: Sequence[Syntax | Token]) -> Syntax:
    """A rule with its parts, made while the parser runs, so that nothing recurses over what it was given."""
    spans = [span_of(part) for part in parts]
    span = (min(s for s, _ in spans), max(e for _, e in spans)) if spans else (0, 0)
    below = max((part.depth for part in parts if isinstance(part, Syntax)), default=0)
    made = Syntax(kind, tuple(parts), span, below)
    if kind in _DEEPENING and _in_brackets(made) is None:
        made = Syntax(kind, made.parts, span, below + 1)
    if made.depth > DEEPEST:
        raise TooDeep(span)
    return made


def arrange(tokens: list[Token], source: str) -> Syntax:
    """The syntax tree of `tokens`, which were made of `source`; raises Unreadable where they fit no rule."""
    if not tokens:
        raise Unreadable("there is nothing here to read", source, (0, len(source)))
    try:
        return parsed(tokens, _made)
    except TooDeep as deep:
        raise Unreadable("this is nested too deeply to read", source, deep.span) from None
    except Unexpected as failed:
        token = failed.token
        if token is None:
            end = tokens[-1].end_pos or len(source)
            raise Unreadable("this stops before it is complete", source, (max(0, end - 1), end)) from None
        span = span_of(token)
        raise Unreadable(_unexpected(token, source[slice(*span)]), source, span) from None


def _unexpected(token: Token, written: str) -> str:
    if token.type == "COMMA":
        return "a comma separates the entries of a vector in brackets: write 1024 for 1,024, and (1, 2) for a vector"
    if token.type == "SUP":
        return "two upper indices on one thing: say by braces or brackets what is raised to what"
    if token.type == "NAME":
        written = named(token)
    return f"{_AS_SIGN.get(f'{written} ', written) or token.type} was not expected here"
