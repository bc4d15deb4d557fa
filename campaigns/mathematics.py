"""Texts for the parser of mathematics: a typed tree, or one of two errors with a place in the text, in bounded time."""

from __future__ import annotations

import random
from typing import Any

from qkv.errors import OptionError
from qkv.maths import Verdict, compare

from .campaign import Batch, Campaign
from .maths_texts import SYMBOLS, VALID, any_characters, check, grafted, grown, jumbled, mutated, nested
from .trials import Trial, gathered, try_all

LONGEST = 3000  # characters: longer texts are refused by their length
SHAPES = ("", "d", "n", "dd", "nd", "nn")


def drawn(chance: random.Random, pool: list[Any]) -> Trial:
    at = chance.random()
    if at < 0.005:
        shape = chance.choice(SHAPES)
        gold = grown(chance, shape, 2) if chance.random() < 0.5 else chance.choice(VALID)
        answers = (grown(chance, shape, 2), grafted(chance, (gold,)), grafted(chance), mutated(chance, (gold,)))
        return Trial("compare", (gold, chance.choice(answers)))
    if at < 0.012:
        return Trial("symbols", (declared(chance), chance.choice(VALID)))
    if at < 0.60:
        known = [text for text in chance.choices(pool, k=4) if isinstance(text, str)] if pool else []
        texts = known if known and chance.random() < 0.5 else VALID
        return Trial("parse", (mutated if chance.random() < 0.4 else grafted)(chance, texts)[:LONGEST])
    if at < 0.998:
        ((kind, _),) = chance.choices(OTHERS, [share for _, share in OTHERS])
        return Trial("parse", kind(chance))
    return Trial("parse", (mutated(chance) * 200)[:LONGEST])


def sensible(chance: random.Random) -> str:
    return grown(chance, chance.choice(SHAPES), chance.randint(1, 3))


OTHERS = ((jumbled, 50), (any_characters, 25), (nested, 10), (sensible, 15))


def declared(chance: random.Random) -> dict[str, str]:
    """Declarations of symbols, some of them changed."""
    symbols = dict(SYMBOLS)
    for name in chance.sample(list(symbols), 2):
        other = chance.choice(list(SYMBOLS.values()))
        symbols[name] = other if chance.random() < 0.7 else mutated(chance, (other,))
    return symbols


def check_promise(trial: Trial) -> bool:
    """Whether the text was read, not refused; raises if a promise does not hold."""
    if trial.kind == "compare":
        verdict = compare(*trial.given, SYMBOLS)
        assert isinstance(verdict, Verdict)
        assert verdict.reason
        assert "\n" not in verdict.reason
        return verdict.kind not in ("unreadable", "ill-typed")
    if trial.kind == "symbols":
        symbols, text = trial.given
        try:
            return check(text, symbols) is not None
        except OptionError as refused:
            error = str(refused)
        assert "symbols" in error, error
        return False
    return check(trial.given) is not None


def run(seed: int, count: int) -> Batch:
    return try_all(seed, count, drawn, check_promise, ("maths",))


CAMPAIGN = Campaign(
    about="parse returns a typed tree or an error with a place in the text; compare returns a verdict",
    unit="texts",
    goal=1_000_000,
    batch=20_000,
    run=run,
    limit=1800,
    gather=gathered,
)
