"""A family small enough to be seen through, for what works on any problem of the bank."""

import random
import sys
from types import ModuleType

from qkv.problems import Misconception, Part, Problem, Step, catalogue
from qkv.problems.judging.answers import Value, Values
from qkv.problems.judging.choices import Choice, Option
from qkv.render import Formula, Maths, Paragraph


def make(seed=None):
    draw = random.Random(f"toy:{seed}")
    x, y = (2, 3) if seed is None else (draw.randint(-9, 9), draw.randint(10, 99))
    W = "[[1,0],[0,1],[2,-3]]"
    symbols = {"x": f"vector[2] = ({x},{y})", "W": f"matrix[3,2] = {W}", "q": "vector[3] = W x"}
    q = (x, y, 2 * x - 3 * y)
    shown = f"({', '.join(map(str, q))})"
    statement = (Paragraph("A vector and a matrix <b>are</b> given."), Formula(Maths(f"W = {W}", symbols)))
    options = (Option("i", "$q$ is a vector", True, "so it is"), Option("ii", "$q$ is a number", False, "it is not"))
    chain = ("q", "W x", f"{W} ({x},{y})", shown)
    parts = (
        Part(
            "a", "Compute $q = W x$.", Values({"q": Value(shown, symbols)}),
            lambda: (Step("Multiply", "that is how $q$ is defined", chain, q, symbols),),
            ("What is $q$?", "Rows of $W$ with $x$.", f"The first entry is {x}."), 3,
            (Misconception("no scaling", f"q = ({x}, {y}, 0)"),), symbols, explanation="It is the product.",
        ),
        Part("b(i)", "Which?", Choice(options), lambda: (Step("Look at the sizes", "they tell"),), ("1?", "2?", "3?")),
    )  # fmt: skip
    follow_ups = ("What if $W$ were the identity?", "And if $x$ were 0?")
    return Problem("toy", "A toy", statement, parts, make, seed, (x % 3,), symbols, ("009 1",), follow_ups)


def recognised(text):
    return (0.9, make()) if "toy question" in text else None


def install(monkeypatch):
    """The bank has this problem and no other."""
    family = ModuleType("qkv.problems.toy_family.family")
    family.PROBLEMS, family.recognised = {"toy": make}, recognised
    monkeypatch.setitem(sys.modules, family.__name__, family)
    monkeypatch.setattr(catalogue, "_HOME", {"toy": "toy_family"})
