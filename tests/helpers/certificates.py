"""Certificates changed in one place, so that they prove nothing any more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from qkv.maths.replay import RULES
from qkv.maths.tree import Add, Call, Certificate, Multiply, Node, Number, Step, Symbol, parts, with_subtree


def places(node: Node, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Every node of a tree with its place."""
    yield at, node
    for position, child in enumerate(parts(node)):
        yield from places(child, (*at, position))


def changed_tree(node: Node, draw: random.Random) -> Node | None:
    """The tree with one node changed: another number, name or function, one term or factor less; None if none fits."""
    found: list[tuple[tuple[int, ...], Node]] = []
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
    return with_subtree(node, *draw.choice(found)) if found else None


def changed_step(step: Step, draw: random.Random) -> Step | None:
    """A step with another result, rule, place or side."""
    match draw.randrange(6):
        case 0:
            return replace(step, rule=draw.choice([rule for rule in (*RULES, "multiply") if rule != step.rule]))
        case 1:
            return replace(step, place=(*step.place, 0) if draw.random() < 0.5 else (*step.place[:-1], 7))
        case 2:
            return replace(step, side={"gold": "answer", "answer": "gold", "both": "gold"}[step.side])
    tree = changed_tree(step.result, draw)
    return None if tree is None or tree == step.result else replace(step, result=tree)


def mutations(certificate: Certificate, draw: random.Random, count: int) -> Iterator[Certificate]:
    """Up to `count` changed certificates."""
    for _ in range(count):
        kind = draw.randrange(8)
        if kind == 0:
            yield replace(certificate, steps=certificate.steps[:-1])
        elif kind == 1:
            side = draw.choice(("gold", "answer"))
            tree = changed_tree(getattr(certificate, side), draw)
            if tree is not None and tree != getattr(certificate, side):
                yield replace(certificate, gold=tree) if side == "gold" else replace(certificate, answer=tree)
        else:
            place = draw.randrange(len(certificate.steps))
            step = changed_step(certificate.steps[place], draw)
            if step is not None:
                before, after = certificate.steps[:place], certificate.steps[place + 1 :]
                yield replace(certificate, steps=(*before, step, *after))
