"""The contract's cases: every pair of values meets, and nothing depends on chance."""

import itertools

from qkv.testing.cases import DTYPES
from qkv.testing.contract import contract_cases, pairwise
from qkv.testing.contract.grid import AXES, SIMILARITIES, _possible, build


def test_every_possible_pair_occurs() -> None:
    rows = pairwise(AXES, _possible)
    assert all(_possible(row) for row in rows)
    for one, two in itertools.combinations(AXES, 2):
        wanted = {(a, b) for a in AXES[one] for b in AXES[two] if _possible({one: a, two: b})}
        assert {(row[one], row[two]) for row in rows} == wanted, (one, two)


def test_the_cases_are_few_and_always_the_same() -> None:
    rows = pairwise(AXES, _possible)
    assert rows == pairwise(AXES, _possible)
    assert len(rows) < 1.25 * len(AXES["similarity"]) * len(AXES["mask"])
    assert [repr(build(row, 0)) for row in rows] == [repr(build(row, 0)) for row in pairwise(AXES, _possible)]


def test_every_similarity_meets_every_dtype_without_a_mask() -> None:
    plain = {(case.similarity, case.dtype) for case in contract_cases() if case.mask is None and case.bias is None}
    assert plain >= set(itertools.product(SIMILARITIES.values(), DTYPES))


def test_empty_rows_and_hidden_keys_are_common() -> None:
    cases = contract_cases()
    assert sum(bool((~case.attended.any(-1)).any()) for case in cases) > 20
    assert sum(bool((~case.attended).any()) for case in cases) > 80
