"""grammar.json is what generate.py makes from grammar.lark, and parses as lark does."""

import random
import sys
from subprocess import run

import lark

from qkv.maths.parsing.generate import generated, grammar
from qkv.maths.parsing.grammar import END, TABLES, Token, Unexpected, load_tables, run_parser


def test_the_tables_are_those_of_the_grammar():
    assert TABLES.read_text(encoding="utf-8") == generated(), "run python -m qkv.maths.parsing.generate"


def as_lists(tree):
    return [str(tree.data), *map(as_lists, tree.children)] if isinstance(tree, lark.Tree) else str(tree)


def test_any_tokens_are_arranged_as_lark_arranges_them():
    """Sentences grown from the tables themselves, some of them broken."""
    draw = random.Random("tables")
    theirs = grammar()
    kinds = sorted({symbol for state in load_tables().states for symbol in state if symbol.isupper()} - {END})
    read = 0
    for _ in range(1_000):
        chosen = grown(draw)
        if draw.random() < 0.3:
            chosen.insert(draw.randint(0, len(chosen)), draw.choice(kinds))
        try:
            ours = run_parser([Token(kind, kind) for kind in chosen], lambda kind, parts: [kind, *parts])
        except Unexpected as failed:
            ours = failed.token
        try:
            other = as_lists(theirs.parse([lark.Token(kind, kind) for kind in chosen]))  # pyright: ignore
            read += 1
        except lark.exceptions.UnexpectedToken as failed:
            other = None if failed.token.type == END else failed.token
        assert ours == other, chosen
    assert read > 200


def grown(draw: random.Random) -> list[str]:
    """Tokens that the tables let follow each other; short sentences end where they may."""
    states, rules = load_tables().states, load_tables().rules
    places, chosen = [0], []
    while True:
        row = states[places[-1]]
        options = [symbol for symbol in row if symbol.isupper() and symbol != END]
        ends = END in row and (not options or draw.random() < 0.1 + len(chosen) / 20)
        if len(chosen) > 40 or ends:
            return chosen
        closing = [symbol for symbol in options if symbol.startswith("R") or symbol.endswith("_R")]
        kind = draw.choice(closing if closing and len(chosen) > 15 else options)
        while (action := states[places[-1]].get(kind)) is not None and action < 0:
            rule = rules[-1 - action]
            del places[len(places) - rule.size :]
            places.append(states[places[-1]][rule.origin])
        if action is None:
            return chosen
        places.append(action)
        chosen.append(kind)


def test_reading_loads_no_parser_generator():
    code = "import sys, qkv.maths as m; m.parse('mu^T mu', {'mu': 'vector[d]'}); sys.exit('lark' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
