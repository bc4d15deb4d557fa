"""Tokens, and the parser that runs the tables of grammar.json (which tables.py makes of grammar.lark) over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "grammar.json"
END = "$END"


class Token(str):
    """A word of a text: its kind, and where in the source it stands."""

    __slots__ = ("end_pos", "start_pos", "type")

    type: str
    start_pos: int
    end_pos: int

    def __new__(cls, kind: str, value: str, start_pos: int = 0, end_pos: int = 0) -> Token:
        made = super().__new__(cls, value)
        made.type, made.start_pos, made.end_pos = kind, start_pos, end_pos
        return made


class Unexpected(Exception):
    """No rule goes on with this token; None stands for the end of the text."""

    def __init__(self, token: Token | None) -> None:
        super().__init__(token)
        self.token = token


@dataclass(frozen=True)
class Rule:
    """`size` parts become a `kind`; `origin` is what the tables call it. `opens`: a single part stands for itself."""

    origin: str
    kind: str
    size: int
    opens: bool

    @property
    def repeats(self) -> bool:
        """Whether this is a repetition, whose parts go into the rule above."""
        return self.kind.startswith("_")


@dataclass(frozen=True)
class Tables:
    """For every state what follows each symbol: the next state, or -1 - r where rule r ends."""

    rules: tuple[Rule, ...]
    states: tuple[dict[str, int], ...]
    final: int


@cache
def tables() -> Tables:
    """The tables as they lie beside the grammar; the first state is the start."""
    kept = json.loads(TABLES.read_text(encoding="utf-8"))
    states = [
        {symbol: int(action) for action, symbols in row.items() for symbol in symbols.split()} for row in kept["states"]
    ]
    return Tables(tuple(Rule(*rule) for rule in kept["rules"]), tuple(states), kept["final"])


def parsed(tokens: Iterable[Token], made: Callable[[str, Sequence[Any]], Any]) -> Any:
    """What `made(kind, parts)` makes of the rules that the tokens fit, from the inside out; raises Unexpected."""
    rules, states, final = (given := tables()).rules, given.states, given.final
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
