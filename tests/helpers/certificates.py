"""Certificates changed in one place, so that they prove nothing any more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import count

from qkv.maths.tree import Add, Call, Certificate, Multiply, Node, Number, Symbol, parts, rebuilt

RULES = ("definition", "exponential", "logarithm", "absolute value", "power", "expectation", "derivative")


def places(node: Node, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Every node of a tree with its place."""
    yield at, node
    for position, child in enumerate(parts(node)):
        yield from places(child, (*at, position))


def with_subtree(node: Node, place: tuple[int, ...], new: Node) -> Node:
    if not place:
        return new
    position = count()
    return rebuilt(node, lambda child: with_subtree(child, place[1:], new) if next(position) == place[0] else child)


def changed_tree(node: Node, draw: random.Random) -> Node:
    """The tree with one node changed: another number, name or function, one term or factor less."""
    found: list[tuple[tuple[int, ...], Node]] = [((), Multiply(node.shape, (Number((), Fraction(2)), node)))]
    names = [part for _, part in places(node) if isinstance(part, Symbol)]
    for at, part in places(node):
        match part:
            case Number(value=value):
                found += [(at, replace(part, value=value + 1)), (at, replace(part, value=-value - Fraction(1, 2)))]
            case Symbol(shape=shape, name=name, type=kind):
                same = [other for other in names if other.shape == shape and other.name != name]
                found += [(at, other) for other in same if other.type.kind == kind.kind]
            case Add(terms=terms) if len(terms) > 2:
                found.append((at, replace(part, terms=terms[1:])))
            case Multiply(factors=factors) if len(factors) > 2 and not factors[0].shape:
                found.append((at, replace(part, factors=factors[1:])))
            case Call(name="exp" | "abs"):
                found.append((at, replace(part, name={"exp": "abs", "abs": "exp"}[part.name])))
    return with_subtree(node, *draw.choice(found))


def mutations(certificate: Certificate, draw: random.Random, most: int) -> Iterator[Certificate]:
    """Up to `most` changed certificates: of another claim, or with a step of another rule, place or side."""
    for _ in range(most):
        kind = draw.randrange(5 if certificate.steps else 2)
        if kind < 2:
            side = ("gold", "answer")[kind]
            tree = changed_tree(getattr(certificate, side), draw)
            yield replace(certificate, gold=tree) if side == "gold" else replace(certificate, answer=tree)
            continue
        place = draw.randrange(len(certificate.steps))
        step = certificate.steps[place]
        if kind == 2:
            step = replace(step, rule=draw.choice([rule for rule in RULES if rule != step.rule]))
        elif kind == 3:
            step = replace(step, place=(*step.place, 7))
        else:
            step = replace(step, side={"gold": "answer", "answer": "gold"}[step.side], place=(*step.place, 3))
        yield replace(certificate, steps=(*certificate.steps[:place], step, *certificate.steps[place + 1 :]))
