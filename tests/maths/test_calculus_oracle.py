"""Expectations, derivatives, maps, products and determinants: what their normal forms say must be so in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from maths_calculus import Calculus
from maths_trees import draw_values, evaluate
from maths_values import evaluate_normal
from qkv.maths.algebra.normal import NotNormal, TooLarge, normal, same
from qkv.maths.tree import Node

POINTS = 2


def value(node: Node, seed: int) -> np.ndarray | None:
    """The value of a tree at a point; None where it has none, or a large one."""
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(evaluate(node, draw_values(seed)))
    except np.linalg.LinAlgError:
        return None
    return found if np.isfinite(found).all() and np.abs(found).max() < 1e5 else None


def differ(a: Node, b: Node) -> int:
    found = 0
    for seed in range(POINTS):
        x, y = value(a, seed), value(b, seed)
        found += x is not None and y is not None and not np.allclose(x, y, rtol=1e-5, atol=1e-5)
    return found


@pytest.mark.parametrize("block", range(2))
def test_a_normal_form_has_the_value_of_its_tree(block: int) -> None:
    compared = 0
    for seed in range(60 * block, 60 * block + 60):
        trees = Calculus(seed)
        node = trees.tree(trees.shape(), 2 + seed % 2)
        wanted = value(node, seed % POINTS)
        if wanted is None:
            continue
        try:
            form = normal(node, work=4000)
            with np.errstate(all="ignore"):
                found = evaluate_normal(form, draw_values(seed % POINTS))
        except (NotNormal, TooLarge, np.linalg.LinAlgError):
            continue
        if not np.isfinite(found).all():
            continue
        compared += 1
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5), (seed, node, form)
    assert compared > 35


def test_what_is_proved_holds_in_numbers() -> None:
    said = 0
    for seed in range(70):
        trees = Calculus(seed)
        one = trees.tree(trees.shape(), 2 + seed % 2)
        other = trees.rewritten(trees.altered(one))
        try:
            proved = same(one, other, work=4000)
        except NotNormal:
            continue
        if proved:
            said += 1
            assert not differ(one, other), (seed, one, other)
    assert said, "no pair was proved: the test says nothing"


def test_what_is_rewritten_is_proved() -> None:
    missed, asked = 0, 0
    for seed in range(1000, 1070):
        trees = Calculus(seed)
        one = trees.tree(trees.shape(), 2 + seed % 2)
        other = trees.rewritten(one)
        try:
            verdict = same(one, other, work=4000)
        except NotNormal:
            continue
        asked += 1
        missed += not verdict
        assert not (verdict and differ(one, other)), (seed, one, other)
    assert missed <= asked // 20
