"""What is proved: tables of pairs, random trees against numbers, and changed certificates of the labelled pairs."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import numpy as np
import pytest

from qkv.maths import compare
from qkv.maths.certificate import prove
from qkv.maths.comparison.trial import differ
from qkv.maths.parsing.parse import parse
from qkv.maths.replay import Refused, replay
from qkv.maths.symmetry import declared_symmetric
from qkv.maths.tree import Node
from qkv.maths.types import declare
from tests.helpers.certificates import mutations
from tests.helpers.maths_calculus import Calculus
from tests.helpers.maths_trees import Trees, draw_values, evaluate

GROUPS = tomllib.loads((Path(__file__).parent / "proofs.toml").read_text(encoding="utf-8"))["group"]
POINTS = 5


@pytest.mark.slow
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_tables_of_pairs(group: int) -> None:
    symbols = GROUPS[group]["symbols"]
    with declared_symmetric(declare(symbols).types.values()):
        for wanted in ("proved", "unproved"):
            for left, right in GROUPS[group].get(wanted, ()):
                one = parse(left, symbols)
                other = parse(right, symbols, expected=one.shape)
                assert (prove(one, other) is not None) is (wanted == "proved"), (left, right)


def differing_points(a: Node, b: Node, largest: float) -> int:
    """At how many points two trees differ, of those where both are of moderate size, or one only has a value."""
    found = 0
    for seed in range(POINTS):
        values = draw_values(seed)
        try:
            with np.errstate(all="ignore"):
                x, y = np.asarray(evaluate(a, values)), np.asarray(evaluate(b, values))
        except np.linalg.LinAlgError:
            continue
        moderate = np.isfinite(x).all() and np.isfinite(y).all() and np.abs(x).max() < largest
        found += bool(moderate and not np.allclose(x, y, rtol=1e-5, atol=1e-5))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "largest", "seeds"), [(Trees, 1e8, 240), (Calculus, 1e5, 80)])
def test_what_is_proved_holds_in_numbers(kind: type[Trees], largest: float, seeds: int) -> None:
    count = 0
    for seed in range(seeds):
        trees = kind(seed)
        one = trees.tree(trees.shape(), 1 + seed % 3)
        for other in (trees.rewritten(trees.altered(one)), trees.rewritten(one)):
            if one.shape == other.shape and prove(one, other) is not None:
                count += 1
                assert not differing_points(one, other, largest), (seed, one, other)
    assert count > seeds // 4


def test_the_oracle_sees_a_difference() -> None:
    trees = Trees(7)
    pairs = [(tree, trees.altered(tree)) for tree in (trees.tree((), 2) for _ in range(60))]
    assert sum(differing_points(a, b, 1e8) > 0 for a, b in pairs) > 15


LABELLED = [
    pair
    for path in sorted((Path(__file__).parent / "labelled").glob("*.toml"))
    for pair in tomllib.loads(path.read_text(encoding="utf-8"))["pair"]
    if pair["kind"] == "equal"
]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_certificates_of_the_labelled_pairs_replay_and_changed_ones_do_not(part: int) -> None:
    proved, refused, draw = 0, 0, random.Random(part)
    for pair in LABELLED[part::4]:
        verdict = compare(pair["gold"], pair["answer"], pair["symbols"])
        assert (verdict.evidence == "proved") == (verdict.certificate is not None), pair["id"]
        several = verdict.certificate if isinstance(verdict.certificate, tuple) else (verdict.certificate,)
        for certificate in filter(None, several):
            replay(certificate)
            proved += 1
            for changed in mutations(certificate, draw, 4):
                claim = (changed.gold, changed.answer)
                if claim == (certificate.gold, certificate.answer) or differ(*claim):
                    refused += 1
                    with pytest.raises(Refused):
                        replay(changed)
    assert proved > 70
    assert refused > 150
