"""Every family: variants are solved, their answers are right, planted mistakes are named, seeds change structure."""

import re
from itertools import pairwise

import pytest

from benchmarks.bank import Row, problems, tried
from qkv.errors import OptionError, OptionTypeError
from qkv.exercises import Exercise, bank
from qkv.exercises.mistakes import MISTAKES
from qkv.exercises.outcome import known_mistakes
from qkv.exercises.solving import solve_part

SEEDS = range(36)
LABELS = {
    "by-hand": "a b c d e f",
    "scaling": "a b c",
    "scaling-scalar": "a b c",
    "argmax": "a b",
    "module": "a b c d e f g h",
    "values": "a",
    "decoding": "a b c d e f g",
    "kernels": "a b(i) b(ii) b(iii) c d",
    "saturation": "a(i) a(ii) a(iii) a(iv) a(v)",
    "heads": "a(i) a(ii) a(iii) b(i) b(ii) b(iii) c d(i) d(ii)",
    "norms": "a(i) a(ii) b",
}


def test_the_families_and_their_parts():
    assert {name: " ".join(bank.named(name).labels) for name in bank.names()} == LABELS


@pytest.mark.parametrize("name", LABELS)
def test_a_variant_is_solved_and_checked_and_mistakes_are_named(name):
    row = Row(name, 1)
    assert problems(bank.named(name, 7), row) == []
    assert row.questions == row.right


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELS)
def test_many_variants(name):
    """`python -m benchmarks exercises` tries a thousand of each."""
    row = tried(name, len(SEEDS))
    assert row.failures == []
    assert row.whole


@pytest.mark.parametrize("name", LABELS)
def test_seeds_change_the_structure_and_not_only_digits(name):
    kinds = [bank.named(name, seed).kind for seed in range(60)]
    assert len(set(kinds)) >= 45
    assert all(one != two for one, two in pairwise(kinds))


@pytest.mark.parametrize("name", LABELS)
def test_an_exercise_is_complete(name):
    for seed in (None, 3):
        exercise = bank.named(name, seed)
        assert exercise == bank.named(name, seed)
        assert exercise.text
        assert not re.search(r"<[a-z_]+>", " ".join([exercise.text, *(asked.text for asked in exercise.asked)]))
        for asked in exercise.asked:
            assert asked.text.rstrip()[-1] in ".?"
            assert len(set(exercise.hints[asked.label])) == 3
            assert exercise.points[asked.label] >= 1
            assert all(mistake in known_mistakes() for mistake in asked.mistakes), asked.mistakes
        assert Exercise.from_plain(exercise.record.model_dump(mode="json")) == exercise.record


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELS)
def test_every_mistake_is_planted_somewhere(name):
    """A mistake that never leads to a wrong answer does not belong in a family."""
    listed, planted = set(), set()
    for seed in (None, *SEEDS):
        exercise = bank.named(name, seed)
        for asked in exercise.asked:
            if asked.quantity in ("words", "masks_needed", "bottleneck", "condition", "listing_changes"):
                continue
            for mistake in asked.mistakes:
                listed.add((asked.quantity, mistake))
                if MISTAKES[mistake](exercise, asked) is not None:
                    planted.add((asked.quantity, mistake))
    assert listed == planted


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELS)
def test_derivations_hold_and_hints_do_not_tell_the_answer(name):
    for seed in (None, 4, 5, 6):
        exercise = bank.named(name, seed)
        for asked in exercise.asked:
            found = solve_part(exercise, asked).answer
            assert found.derivation.holds, (seed, asked.label)
            if len(found.text) > 3:
                assert found.text not in " ".join(exercise.hints[asked.label]), (seed, asked.label)


def test_names_seeds_hints_and_variants():
    assert bank.named("by-h").name == "by-hand"
    assert bank.variant(bank.named("argmax"), 5) == bank.variant("argmax", 5) == bank.named("argmax", 5)
    assert bank.hint(bank.named("heads"), "a.ii", 2) == bank.named("heads").hints["a(ii)"][1]
    for name in ("", "x", "nothing", "by-hand/a"):
        with pytest.raises(OptionError, match="an exercise of the bank"):
            bank.named(name)
    with pytest.raises(OptionTypeError):
        bank.named(3)
    for seed in (-1, True, 1.5, 2**63):
        with pytest.raises(OptionError, match="whole number"):
            bank.named("argmax", seed)
    with pytest.raises(OptionError, match="1, 2 or 3"):
        bank.hint(bank.named("argmax"), "a", 4)
    with pytest.raises(OptionError, match="a part of the exercise"):
        bank.hint(bank.named("argmax"), "z")
    with pytest.raises(OptionError, match="of the bank"):
        bank.variant(bank.named("argmax").record, 1)
