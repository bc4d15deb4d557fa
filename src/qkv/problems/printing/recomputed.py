"""Python that computes a solution's numbers again, for the cells of a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ...maths import tree as t
from ...render import document as d
from ..problem import Problem, Solution, Step
from .documents import letter_of

_START = '''\
import numpy as np


def softmax(scores):
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


def same(name, computed, written):
    """Print what was computed, and make sure that the solution says the same."""
    print(name, "=", computed)
    assert np.allclose(computed, written, rtol=1e-3, atol=1e-12), (name, computed, written)
'''
_CALLS = {"exp": "np.exp", "sqrt": "np.sqrt", "log": "np.log", "softmax": "softmax", "norm": "np.linalg.norm"}


def cells(solution: Solution) -> Iterator[d.Block]:
    """Sections with code: the given numbers, the steps of each part that are numbers, and the answers checked."""
    problem = solution.problem
    numbers = dict(_numbers(problem.symbols))
    parts = [(each, list(_lines(problem, each.steps, numbers))) for each in solution.parts]
    if any(lines for _, lines in parts):
        given = "\n".join(f"{name} = {source}" for name, source in numbers.items())
        yield d.Heading("The same with NumPy")
        yield d.Code(f"{_START}\n\n{given}", "python")
        for each, lines in parts:
            if lines:
                yield d.Paragraph(f"Part {letter_of(each.part)}")
                yield d.Code("\n".join(lines), "python")
    if checking := _checking(solution):
        yield d.Heading("Your own answers")
        yield d.Paragraph("Put your answers in the place of these, and run the cell.")
        yield d.Code(checking, "python")


def source(node: t.Node, known: Mapping[str, str]) -> str | None:
    """NumPy for a tree whose names are all `known`; None for what has no plain form there.

    >>> from qkv.maths import parse
    >>> source(parse("W^T x / 2", {"W": "matrix[2,3]", "x": "vector[2]"}), {"W": "", "x": ""})
    '(W.T @ x) / 2'
    """
    parts = [source(child, known) for child in t.children(node)]
    if any(part is None for part in parts):
        return None
    inside = [part for part in parts if part is not None]
    match node:
        case t.Number(value=value):
            # NumPy's whole numbers have 64 bits, and products of them need room.
            if node.unit is not None or abs(value) >= 2**31:
                return repr(float(value))
            return str(value) if value.denominator == 1 and value >= 0 else f"({value})"
        case t.Symbol(name=name):
            return name if name in known and name.isidentifier() else None
        case t.Written(shape=(_,)):
            return f"np.array([{', '.join(inside)}])"
        case t.Written(shape=(_, int(wide))):
            rows = (", ".join(inside[at : at + wide]) for at in range(0, len(inside), wide))
            return f"np.array([{', '.join(f'[{row}]' for row in rows)}])"
        case t.Add():
            return f"({' + '.join(inside)})"
        case t.Multiply():
            return " * ".join(map(_held, inside))
        case t.Divide() | t.Power():
            return f"{_held(inside[0])} {'/' if isinstance(node, t.Divide) else '**'} {_held(inside[1])}"
        case t.Contract():
            return f"{_held(inside[0])} @ {_held(inside[1])}"
        case t.Transpose(body=body):
            return inside[0] if len(body.shape) == 1 else f"{_held(inside[0])}.T"
        case t.Part(body=body, indices=indices) if all(isinstance(each, t.Number) for each in indices):
            return f"{_held(inside[0])}[{', '.join(f'{place} - 1' for place in inside[1:])}]"
        case t.Call(name="argmax"):
            return f"np.argmax({inside[0]}) + 1"
        case t.Call(name=name, arguments=(_,), map=None) if name in _CALLS:
            return f"{_CALLS[name]}({inside[0]})"
    return None


def _held(text: str) -> str:
    """In parentheses, unless it is one name, number or call."""
    return text if re.fullmatch(r"[\w.]+|\w+(?:\.\w+)*(?:\.T)?|np\.array\([^()]*\)|\([^()]*\)", text) else f"({text})"


def _numbers(symbols: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names that stand for numbers, each with its NumPy; one may be defined by those before it."""
    known: dict[str, str] = {}
    for name, kind in symbols.items():
        _, equals, definition = kind.partition("=")
        node = d.Maths(definition.strip(), symbols).tree() if equals and name.isidentifier() else None
        text = None if node is None else source(node, known)
        if text is not None:
            known[name] = text
            yield name, text


def _lines(problem: Problem, steps: tuple[Step, ...], known: Mapping[str, str]) -> Iterator[str]:
    for step in steps:
        if len(step.chain) < 2 or step.relation != "=":
            continue
        symbols = {**problem.symbols, **step.symbols}
        # A step may speak of other numbers under the same name.
        own = dict(_numbers(symbols))
        usable = {name: text for name, text in known.items() if own.get(name) == text}
        trees = [d.Maths(text, symbols).tree() for text in step.chain]
        if any(tree is None for tree in trees):
            continue
        sources = [source(tree, usable) for tree in trees if tree is not None]
        computed = [text for text in sources if text is not None]
        if len(computed) > 1 and sources[-1] is not None and len(set(computed)) > 1:
            longest = max(computed[:-1], key=lambda text: text.count("@") + text.count("softmax"))
            yield f"same({step.chain[0]!r}, {longest}, {computed[-1]})"


def _checking(solution: Solution) -> str:
    """Code that checks answers, where the problem can be found again by its name."""
    from ..catalogue import named

    problem = solution.problem
    if named(problem.name, problem.seed).statement != problem.statement:
        return ""  # somebody's own numbers
    seed = "" if problem.seed is None else f", {problem.seed}"
    answers = "".join(f"    {name!r}: {answer!r},\n" for name, answer in solution.summary.items())
    return (
        f"from qkv.problems import named\n\nproblem = named({problem.name!r}{seed})\nanswers = {{\n{answers}}}\n"
        "for part, answer in answers.items():\n    print(part, problem.check(part, answer))"
    )
