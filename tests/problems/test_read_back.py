"""Own questions, printed as a sheet and read again: the same parts with the same answers."""

import pytest

from qkv.problems.decoding import family as decoding
from qkv.problems.heads import family as heads
from qkv.problems.kernels import family as kernels
from qkv.problems.saturation import family as saturation
from tests.helpers.bank_checks import as_text

pytestmark = pytest.mark.slow

SEEDS = range(45)


@pytest.mark.parametrize("family", [decoding, heads, kernels, saturation], ids=lambda family: family.NAME)
def test_most_variants_are_read_back(family):
    read = 0
    for seed in SEEDS:
        problem = family.make(seed)
        found = family.recognised(as_text(problem))
        read += found is not None and [part.answer.text for part in found[1].parts] == [
            part.answer.text for part in problem.parts
        ]
    assert read >= 40
