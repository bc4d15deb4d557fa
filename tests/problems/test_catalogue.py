"""What every problem of the bank keeps, as the documents ask it and in fresh variants."""

import itertools

import pytest

from qkv import problems
from qkv.errors import OptionError, OptionTypeError
from qkv.maths import compare
from qkv.problems import MISCONCEPTIONS

NAMES = problems.names()
SEEDS = (None, 5, 13)


@pytest.fixture(scope="module")
def bank():
    """Every problem with a few seeds: made once, since all of them only read."""
    return {(name, seed): problems.named(name, seed) for name in NAMES for seed in SEEDS}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", SEEDS)
class TestEveryProblem:
    @pytest.mark.slow
    def test_its_solution_is_right_by_its_own_checker(self, bank, name, seed):
        problem = bank[name, seed]
        for solved in problem.solve().parts:
            assert problem.check(solved.part.name, solved.answer).kind == "right", (solved.part.name, solved.answer)

    @pytest.mark.slow
    def test_every_planted_mistake_is_seen_by_name_and_is_no_right_answer(self, bank, name, seed):
        for part in bank[name, seed].parts:
            for known in part.misconceptions:
                outcome = part.check(known.planted)
                assert known.name in outcome.misconceptions, (part.name, known.name, known.planted, str(outcome))
                assert not outcome
                assert known.name in MISCONCEPTIONS

    @pytest.mark.slow
    def test_every_link_of_every_chain_holds(self, bank, name, seed):
        for solved in bank[name, seed].solve().parts:
            for step in solved.steps:
                assert step.what
                assert step.why
                if step.relation == "=":
                    for left, right in zip(step.chain, step.chain[1:], strict=False):
                        assert compare(left, right, step.symbols).kind == "equal", (left, right)

    def test_hints_are_three_and_do_not_give_the_answer_away(self, bank, name, seed):
        for part in bank[name, seed].parts:
            assert len(set(part.hints)) == 3
            assert all(len(hint) > 10 for hint in part.hints)
            if len(part.answer.text) > 8:
                assert not any(part.answer.text in hint for hint in part.hints[:2])

    @pytest.mark.slow
    def test_nonsense_is_unread_and_never_wrong(self, bank, name, seed):
        for part in bank[name, seed].parts:
            for nonsense in ("", "   ", "I do not know", "$$", r"\frac{", "((((", "\x00"):
                assert part.check(nonsense).kind in ("unread", "incomplete"), (part.name, nonsense)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_neighbours_differ_in_structure_and_seeds_repeat(name):
    variants = [problems.named(name, seed) for seed in range(20)]
    for one, next_one in itertools.pairwise(variants):
        assert one.structure != next_one.structure
    assert len({variant.statement + tuple(part.ask for part in variant.parts) for variant in variants}) == 20
    assert problems.named(name, 7).statement == variants[7].statement
    assert problems.named(name, 7).solve().summary == variants[7].solve().summary


@pytest.mark.parametrize("name", NAMES)
def test_problems_end_with_questions_to_go_on_with(name):
    problem = problems.named(name)
    assert 2 <= len(problem.solve().follow_ups) <= 3
    assert problem.sources
    assert all(part.points > 0 and part.cues and part.explanation for part in problem.parts)


def test_questions_of_the_documents_have_names():
    assert problems.named("003-4").name == "decoding"
    assert problems.named("002 1").name == "by-hand"
    with pytest.raises(OptionError, match=r"nearest names are.*kernels"):
        problems.named("kernel attention")


def test_a_seed_is_a_whole_number():
    for seed in (-1, 1.5, True, "3"):
        with pytest.raises(OptionError, match="seed"):
            problems.named("argmax", seed)  # pyright: ignore[reportArgumentType]


def test_a_part_is_found_however_it_is_written_and_a_wrong_one_is_refused():
    kernels = problems.named("kernels")
    assert kernels.part("6(b)(ii)") is kernels.part("b(ii)") is kernels.part("b.ii")
    with pytest.raises(OptionError, match="has the parts"):
        kernels.part("z")


@pytest.mark.parametrize("name", [None, 3, "", "a", "scaling/a", "s"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(OptionError if isinstance(name, str) else OptionTypeError, match="problem: got"):
        problems.named(name)


def test_what_is_no_text_is_refused():
    problem = problems.named("scaling")
    for call in (lambda: problem.check("a", None), lambda: problem.check(None, "d"), lambda: problems.recognise(None)):
        with pytest.raises(OptionTypeError, match="got None"):
            call()
    with pytest.raises(OptionError, match="strength"):
        problem.hint("a", 1.0)
