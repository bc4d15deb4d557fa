"""From tokens to a syntax tree, by the LALR tables in grammar.json (which generate.py makes from grammar.lark)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from qkv.errors import Unreadable
from qkv.maths.parsing.shapes import pretty_name
from qkv.maths.parsing.words import CLOSES, DEEPENING, SIGNS
from qkv.maths.tree import Span, Type

TABLES = Path(__file__).parent / "grammar.json"
END = "$END"


class Token(str):
    """A token: its text, its kind, and its span in the source."""

    __slots__ = ("end_pos", "start_pos", "type")

    type: str
    start_pos: int
    end_pos: int

    def __new__(cls, kind: str, value: str, start_pos: int = 0, end_pos: int = 0) -> Token:
        made = super().__new__(cls, value)
        made.type, made.start_pos, made.end_pos = kind, start_pos, end_pos
        return made


class Unexpected(Exception):
    """No rule accepts this token; None is the end of the text."""

    def __init__(self, token: Token | None) -> None:
        super().__init__(token)
        self.token = token


@dataclass(frozen=True)
class Rule:
    """`size` parts become a `kind`; `origin` is its name in the tables. `opens`: a single part is not wrapped."""

    origin: str
    kind: str
    size: int
    opens: bool

    @property
    def repeats(self) -> bool:
        """Whether this is a repetition, whose parts are spliced into the rule above."""
        return self.kind.startswith("_")


@dataclass(frozen=True)
class Tables:
    """For each state, the action of each symbol: the next state, or -1 - r to reduce by rule r."""

    rules: tuple[Rule, ...]
    states: tuple[dict[str, int], ...]
    final: int


@cache
def load_tables() -> Tables:
    """The tables in grammar.json; the first state is the start."""
    kept = json.loads(TABLES.read_text(encoding="utf-8"))
    states = [
        {symbol: int(action) for action, symbols in row.items() for symbol in symbols.split()} for row in kept["states"]
    ]
    return Tables(tuple(Rule(*rule) for rule in kept["rules"]), tuple(states), kept["final"])


def run_parser(tokens: Iterable[Token], made: Callable[[str, Sequence[Any]], Any]) -> Any:
    """Parse the tokens, building nodes with `made(kind, parts)` bottom-up; raises Unexpected."""
    rules, states, final = (given := load_tables()).rules, given.states, given.final
    state, places = 0, [0]
    parts: list[Any] = []
    for token in (*tokens, None):
        symbol = END if token is None else token.type
        while (action := states[state].get(symbol)) is None or action < 0:
            if action is None:
                raise Unexpected(token)
            rule = rules[-1 - action]
            below = _flat(parts[len(parts) - rule.size :])
            del parts[len(parts) - rule.size :], places[len(places) - rule.size :]
            if rule.repeats:
                parts.append(_Repeated(below))
            else:
                parts.append(below[0] if rule.opens and len(below) == 1 else made(rule.kind, below))
            state = states[places[-1]][rule.origin]
            places.append(state)
            if token is None and state == final:
                return parts[0]
        parts.append(token)
        places.append(state := action)
    raise Unexpected(None)


class _Repeated(list):
    """The parts of a repetition."""


def _flat(parts: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for part in parts:
        if isinstance(part, _Repeated):
            flat += part
        else:
            flat.append(part)
    return flat


_OPENING = {"LPAR": "RPAR", "LBRACK": "RBRACK", "LBRACE": "RBRACE", "LSET": "RSET"}
_JOINING_TOKENS = frozenset(("REL", "PLUS", "MINUS", "PM", "TIMES", "DIV", "ODOT", "OTIMES", "OVER", "COMMA"))


def statements(tokens: list[Token], wide: Collection[int], names: Mapping[str, Type], source: str) -> list[list[Token]]:
    """The tokens of each statement, without outer brackets; where the split is not certain, they are refused.

    Args:
        tokens: The tokens of the text.
        wide: Positions of tokens after a wide space.
        names: Declared names and their types.
        source: The text, for error messages.
    """
    levels = _levels(tokens)
    cuts = [at for at, token in enumerate(tokens) if token.type in ("COMMA", "SEMI") and not levels[at]]
    if not cuts and _last_group(tokens) == 0 and all(map(_relates, _split_tokens(tokens[1:-1]))):
        inner = statements(tokens[1:-1], (), names, source)
        if len(inner) > 1:
            return inner
    pieces = _split_tokens(tokens)
    if (
        cuts
        and all(len(one) > 2 and _relates(one) for one in pieces)
        and not any(map(_shares_a_sign, pieces, pieces[1:]))
    ):
        return [statements(piece, (), names, source)[0] for piece in pieces]
    joined = next((tokens[at] for at in cuts if tokens[at] == "and"), None)
    if joined is not None:
        raise Unreadable("this reads like words, not like mathematics", source, span_of(joined))
    _refuse_two_statements(tokens, wide, levels, source)
    return [_read_indicators(_strip_outer_brackets(tokens, names), names)]


def _split_tokens(tokens: list[Token]) -> list[list[Token]]:
    """The tokens between the outer commas and semicolons."""
    pieces: list[list[Token]] = [[]]
    for token, level in zip(tokens, _levels(tokens), strict=True):
        if token.type in ("COMMA", "SEMI") and not level:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


def _relates(tokens: list[Token]) -> bool:
    """Whether there is a relation outside all brackets."""
    return any(token.type == "REL" and not level for token, level in zip(tokens, _levels(tokens), strict=True))


def _shares_a_sign(left: list[Token], right: list[Token]) -> bool:
    """0 < i, j < n compares both names with both ends: not two statements."""
    return left[-2] != "=" and left[-2].type == "REL" and right[1].type == "REL" and right[1] != "="


def _refuse_two_statements(tokens: list[Token], wide: Collection[int], levels: list[int], source: str) -> None:
    relations = [at for at, token in enumerate(tokens) if token.type == "REL" and levels[at] == 0]
    for at in sorted(wide):
        inside = 0 < at < len(tokens) and levels[at] == 0 and tokens[at - 1].type not in _JOINING_TOKENS
        if inside and tokens[at].type not in _JOINING_TOKENS and relations and relations[0] < at < relations[-1]:
            span = (tokens[at].start_pos, tokens[-1].end_pos)
            raise Unreadable("these are two statements: give one", source, span)
    unequal = [at for at in relations if tokens[at] == "!="]
    if unequal and len(relations) > 1:
        raise Unreadable("≠ in a chain leaves open what is meant", source, span_of(tokens[unequal[0]]))


def _levels(tokens: list[Token]) -> list[int]:
    """The number of brackets open around each token; a bracket itself is at the outer level."""
    levels, level = [], 0
    for token in tokens:
        level -= token.type in CLOSES.values()
        levels.append(level)
        level += token.type in CLOSES
    return levels


def _strip_outer_brackets(tokens: list[Token], names: Mapping[str, Type]) -> list[Token]:
    """Remove brackets around a whole chain, or braces (as of \\boxed{}) around what follows an =."""
    start = _last_group(tokens)
    boxed = start > 0 and tokens[start].type == "LBRACE" and tokens[start - 1].type == "REL"
    if start != 0 and not boxed:
        return tokens
    inner, around = tokens[start + 1 : -1], tokens[start]
    while _last_group(inner) == 0:
        inner, around = inner[1:-1], inner[0]
    indicator = around.type == "LBRACK" and _compares(inner, names) and inner[0].type == inner[2].type == "NAME"
    return _strip_outer_brackets(tokens[:start] + inner, names) if _relates(inner) and not indicator else tokens


def _last_group(tokens: list[Token]) -> int:
    """The position of the bracket that is closed by the last token, or -1."""
    if len(tokens) < 3 or tokens[-1].type not in _OPENING.values():
        return -1
    levels = _levels(tokens)
    return max(at for at in range(len(tokens) - 1) if levels[at] == 0 and tokens[at].type in CLOSES)


def _compares(tokens: list[Token], names: Mapping[str, Type]) -> bool:
    """Whether the tokens are i = j or i = 1."""
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


def _read_indicators(tokens: list[Token], names: Mapping[str, Type]) -> list[Token]:
    """1[i = j], I(i = j) and [i = j] as 1_{i = j}."""
    made: list[Token] = []
    while tokens:
        token, *inner = tokens[:5]
        opens = token.type in ("LPAR", "LBRACK", "LSET") and _compares(inner[:3], names) and len(inner) == 4
        marked = bool(made) and not _is_argument(made) and _marks(made[-1], names)
        if opens and inner[3].type == _OPENING[token.type] and (marked or token.type == "LBRACK"):
            start = made.pop().start_pos if marked else token.start_pos
            made.append(Token("ONES", "1", start, token.end_pos))
            made += [
                Token(kind, sign, token.start_pos, token.end_pos) for kind, sign in (("SUB", "_"), ("LBRACE", "{"))
            ]
            made += [*inner[:3], Token("RBRACE", "}", *span_of(inner[3]))]
        else:
            made.append(token)
        tokens = tokens[5 if made[-1].type == "RBRACE" and made[-1] is not token else 1 :]
    return made


def _is_argument(tokens: list[Token]) -> bool:
    """Whether the last token is an argument of what is before it: a script, a root, or a fraction."""
    before = tokens[:-1]
    if not before or before[-1].type in ("SUB", "SUP", "SQRT", "FRAC"):
        return bool(before)
    start = len(before) - 1
    if before[-1].type in CLOSES:
        return False
    if before[-1].type in CLOSES.values():
        levels = _levels(before)
        opening = (at for at in range(start) if levels[at] == levels[-1] and before[at].type in CLOSES)
        start = max(opening, default=0)
    return start > 0 and before[start - 1].type == "FRAC"


def _marks(token: Token, names: Mapping[str, Type]) -> bool:
    """Whether this is the 1 or the I of an indicator such as 1[i = j]."""
    return token.type == "ONES" or (token.type == "NUMBER" and token == "1") or (token == "I" and "I" not in names)


DEEPEST = 40
_AS_SIGN = {command: sign for sign, command in reversed(SIGNS.items()) if command.startswith("\\")}


@dataclass(frozen=True)
class Syntax:
    """A node of the syntax tree: a rule of the grammar and its parts; tokens are leaves."""

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
    """The part inside wrappers of a single part (an expression of one product of one operand)."""
    while isinstance(part, Syntax) and len(part) == 1 and part.kind in ("chain", "expression", "product", "operand"):
        part = part[0]
    return part


def without_brackets(part: Syntax | Token) -> Syntax | Token:
    """`only`, without redundant nested brackets, so that they do not add depth."""
    part = only(part)
    while isinstance(part, Syntax) and (inner := _inner_group(part)) is not None:
        part = inner
    return part


def _inner_group(part: Syntax) -> Syntax | None:
    if part.kind != "group" or is_token(part[0], "LBRACK"):
        return None
    rows = part[1]
    if not isinstance(rows, Syntax) or len(rows) != 1 or not isinstance(rows[0], Syntax) or len(rows[0]) != 1:
        return None
    inner = only(rows[0][0])
    return inner if isinstance(inner, Syntax) and inner.kind == "group" else None


def walk(part: Syntax | Token) -> Iterator[Syntax | Token]:
    pending = [part]
    while pending:
        taken = pending.pop()
        yield taken
        if isinstance(taken, Syntax):
            pending.extend(reversed(taken.parts))


class TooDeep(Exception):
    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


def _syntax_node(kind: str, parts: Sequence[Syntax | Token]) -> Syntax:
    """A node with its span and depth; built bottom-up while parsing, so that nothing recurses over the input."""
    spans = [span_of(part) for part in parts]
    span = (min(s for s, _ in spans), max(e for _, e in spans)) if spans else (0, 0)
    below = max((part.depth for part in parts if isinstance(part, Syntax)), default=0)
    made = Syntax(kind, tuple(parts), span, below)
    if kind in DEEPENING and _inner_group(made) is None:
        made = Syntax(kind, made.parts, span, below + 1)
    if made.depth > DEEPEST:
        raise TooDeep(span)
    return made


def syntax_tree(tokens: list[Token], source: str) -> Syntax:
    """The syntax tree of the tokens of `source`; raises Unreadable if they fit no rule."""
    if not tokens:
        raise Unreadable("the text is empty", source, (0, len(source)))
    try:
        return run_parser(tokens, _syntax_node)
    except TooDeep as deep:
        raise Unreadable("this is nested too deeply to read", source, deep.span) from None
    except Unexpected as failed:
        token = failed.token
        if token is None:
            end = tokens[-1].end_pos or len(source)
            raise Unreadable("the text is incomplete", source, (max(0, end - 1), end)) from None
        span = span_of(token)
        raise Unreadable(_unexpected(token, source[slice(*span)]), source, span) from None


def _unexpected(token: Token, written: str) -> str:
    if token.type == "COMMA":
        return "a comma separates the entries of a vector in brackets: write 1024 for 1,024, and (1, 2) for a vector"
    if token.type == "SUP":
        return "two upper indices on one thing: show by braces or brackets what is raised to what"
    if token.type == "NAME":
        written = pretty_name(token)
    return f"{_AS_SIGN.get(f'{written} ', written) or token.type} was not expected here"
