"""Work is counted, and what was learnt under one budget is not known under another."""

from __future__ import annotations

import pytest

from qkv.maths.algebra.monomials import Head, TooLarge, budget, has_root, note_root, root_count, spend

HEAD = Head("name", "x")


def test_a_budget_is_spent() -> None:
    with budget(3):
        spend()
        spend(2)
        with pytest.raises(TooLarge, match="too large to be brought to its normal form"):
            spend(1)
    spend(10**9)


def test_a_budget_inside_another_counts_on_its_own() -> None:
    with budget(2):
        with budget(5):
            spend(5)
        spend(2)
        with pytest.raises(TooLarge):
            spend()


def test_roots_are_remembered_at_their_indices() -> None:
    assert not has_root(HEAD, ())
    note_root(HEAD, ())
    assert not has_root(HEAD, ())
    with budget():
        assert root_count() == 0
        note_root(HEAD, ())
        note_root(HEAD, (("f", "i"),))
        note_root(HEAD, (("c", 1), ("v", "n")))
        note_root(HEAD, (("b", 0),))
        note_root(HEAD, (("f", "i"), ("p", 0)))
        assert has_root(HEAD, ())
        assert has_root(HEAD, (("f", "i"),))
        assert not has_root(HEAD, (("f", "j"),))
        assert not has_root(HEAD, (("b", 0),))
        assert not has_root(HEAD, (("f", "i"), ("p", 0)))
        assert root_count() == 3
        note_root(HEAD, (("o", 4),))
        assert has_root(HEAD, (("o", 4),))
        assert root_count() == 3
        with budget():
            assert not has_root(HEAD, ())
        assert has_root(HEAD, ())
    assert not has_root(HEAD, ())
    assert root_count() == 0
