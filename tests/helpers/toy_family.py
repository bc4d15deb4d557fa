"""A family small enough to see through, for what works on any exercise of the bank."""

import random

from qkv.exercises import Given, Option, bank
from qkv.exercises.bank.family import built, question

WORDS = {
    "title": "A toy",
    "statement": "A query and keys <b>are</b> given as $q$ and the rows of $K$.\n\n$$K = [[1, 0], [0, 1], [2, -3]]$$",
    "follow_ups": ("What if $K$ were the identity?",),
    "scores": {
        "ask": "Compute the scores of $q = (<x>, <y>)$.",
        "points": 3,
        "hints": ("What is a score?", "Rows of $K$ with $q$.", "The first entry is <x>."),
    },
    "which": {"ask": "Which does $y$ depend on?", "points": 2, "hints": ("1?", "2?", "3?")},
}
OPTIONS = (
    Option(label="i", text="$x_{b,j}$"),
    Option(label="ii", text="$x_{b',j}$ with $b' \\ne b$"),
    Option(label="iii", text="$x_{b,j'}$ with $j' \\ne j$"),
    Option(label="iv", text="$x_{b',j'}$ with $b' \\ne b$ and $j' \\ne j$"),
)


def make(seed=None):
    draw = random.Random(f"toy:{seed}")
    x, y = (2, 3) if seed is None else (draw.randint(-9, 9), draw.randint(10, 99))
    questions = [
        question("a", "scores", "scores", {"x": x, "y": y}, mistakes=("scaling where none is asked",)),
        question("b(i)", "which", "dependence", object="layer norm", options=OPTIONS, several=True, form="choice",
                 mistakes=("layer norm over the batch",)),
    ]  # fmt: skip
    givens = [
        Given(symbol="q", role="query", value=[x, y]),
        Given(symbol="K", role="key", value=[[1, 0], [0, 1], [2, -3]]),
        Given(symbol="x", role="input", shape=("B", "D")),
    ]
    return built("toy", seed, WORDS, questions, givens=givens, conventions={"scale": "none", "index_base": 1},
                 symbols={"K": "matrix[3,2]", "q": "vector[2]"}, kind=(x % 3,))  # fmt: skip


def scores(seed=None):
    """The right answer to part a."""
    x, y = make(seed).given("query").value
    return f"({x}, {y}, {2 * x - 3 * y})"


def install(monkeypatch):
    """The bank has this family and no other."""
    monkeypatch.setattr(bank, "_HOME", {})
    monkeypatch.setattr(bank, "_ADDED", {"toy": make})
