"""`python -m qkv.maths.parsing.generate` makes grammar.json from grammar.lark, so that parsing does not need lark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lark import Lark
from lark.lexer import Lexer
from lark.parsers.lalr_analysis import Shift

from qkv.maths.parsing.grammar import TABLES


class _GivenTokens(Lexer):
    """A lexer for tokens that exist already."""

    def __init__(self, conf: Any) -> None:
        del conf

    def lex(self, data: Iterable[Any]) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(data)


def grammar(**options: Any) -> Lark:
    """The parser that lark builds from grammar.lark."""
    text = TABLES.with_suffix(".lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer=_GivenTokens, maybe_placeholders=False, **options)


def generated() -> str:
    """The text of grammar.json; states are numbered in the order in which they are reached."""
    lark = grammar()
    table: Any = lark.parser.parser._parse_table  # pyright: ignore[reportAttributeAccessIssue]
    number = {rule: place for place, rule in enumerate(lark.rules)}
    reached: dict[int, int] = {table.start_states["start"]: 0}
    states = []
    for state in (pending := list(reached)):
        row: dict[int, list[str]] = {}
        for symbol, (action, argument) in sorted(table.states[state].items()):
            if action is Shift and argument not in reached:
                reached[argument] = len(reached)
                pending.append(argument)
            row.setdefault(reached[argument] if action is Shift else -1 - number[argument], []).append(symbol)
        states.append({str(action): " ".join(symbols) for action, symbols in row.items()})
    rules = [
        [rule.origin.name, rule.alias or rule.origin.name, len(rule.expansion), rule.options.expand1 and not rule.alias]
        for rule in lark.rules
    ]
    first, second = (",\n".join(map(json.dumps, rows)) for rows in (rules, states))
    return f'{{"final": {reached[table.end_states["start"]]}, "rules": [\n{first}\n], "states": [\n{second}\n]}}\n'


if __name__ == "__main__":
    TABLES.write_text(generated(), encoding="utf-8")
