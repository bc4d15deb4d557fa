"""A state in chunks: the evidence holds for what qkv computes, and fails for what is nearly right."""

from itertools import pairwise

import pytest

from qkv.theory.chunks import agreement, by_chunks, chunks, continuation, drawn_sequence

SEQUENCE = drawn_sequence(1, 97, 5, 3)


def test_chunks_agree_with_the_recurrence() -> None:
    assert agreement(SEQUENCE).kind == "tested"
    assert continuation(SEQUENCE).kind == "tested"


@pytest.mark.parametrize("name", ["log_gate", "beta", "key"])
def test_other_numbers_are_refuted(name: str) -> None:
    rows = [[row[0] - 1e-9, *row[1:]] for row in SEQUENCE[name]]
    changed = SEQUENCE | {name: rows}
    assert agreement(SEQUENCE, lambda _: by_chunks(changed)).kind == "refuted"


def test_a_state_that_is_lost_between_parts_is_refuted() -> None:
    def parts_alone(sequence, edges):
        import torch

        bounds = [0, *edges, len(sequence["key"])]
        parts = [{n: r[i:j] for n, r in sequence.items()} for i, j in pairwise(bounds)]
        return torch.cat([by_chunks(part) for part in parts])

    assert continuation(SEQUENCE, parts_alone).kind == "refuted"


def test_the_derivation_is_proved_and_drawn() -> None:
    claim = chunks(tokens=97)
    assert claim.proved
    assert claim.figure is not None
    assert "the first token" in claim.figure()
