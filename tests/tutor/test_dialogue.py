"""The examination: what is said, when it ends, and what its record holds, for tutors whose behaviour is known."""

import itertools
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.problems import Misconception, named, names
from qkv.tutor.dialogue import MOST_CORRECTIONS, Dialogue, opening
from qkv.tutor.tally import Tally, by_problem, mistakes, rows, tallied
from tests.helpers.tutor_toy import HINTS, answered, make, right

ESCAPED = (r"\:", r"\(", "data:image")  # what the writer of Markdown makes of signs and of figures
WRONG = {"a": "-1", "b": "-1", "c": "x = -1; y = -1"}


def held(dialogue, replies):
    """Everything that was said, until the dialogue or the replies end."""
    said = [dialogue.opening]
    for reply in replies:
        said.append(dialogue.hear(reply))
        if said[-1] is None:
            break
    return said


def statuses(dialogue):
    return {name: part["status"] for name, part in dialogue.record()["parts"].items()}


def test_the_opening_has_the_question_and_the_form_and_no_answer():
    text = opening(make(5))
    for wanted in (
        "# Numbers",
        "Work with whole numbers.",
        "(a) What is $7 + 10$?",
        "Answer (a): ...",
        "Answer (c): ...",
    ):
        assert wanted in text
    assert "17" not in text
    assert not any(hint in text for hint in HINTS)


def test_right_at_once_and_firm():
    problem = make(3)
    dialogue = Dialogue(problem)
    said = held(dialogue, itertools.repeat(answered(right(problem))))
    # The question, and a wrong correction for each of the two parts with a known mistake.
    assert len(said) == 4
    assert "part (a) should be: -5" in said[1]
    assert "part (c) should be: x = 5; y = 4" in said[2]
    assert dialogue.over
    assert dialogue.hear("more") is None
    assert tallied(dialogue.record()) == Tally(one_shot=3, held=2)


def test_a_wrong_part_is_named_then_hinted_then_left():
    problem = make(0)
    dialogue = Dialogue(problem, corrections=MOST_CORRECTIONS, challenges=0)
    said = held(dialogue, itertools.repeat(answered({**right(problem), "b": "7"})))
    assert len(said) == 1 + MOST_CORRECTIONS + 1
    first, *hinted = said[1:-1]
    assert first.startswith("Part (b) is wrong.\n")
    assert not any(hint in first for hint in HINTS)
    assert [hint in text for hint, text in zip(HINTS, hinted, strict=True)] == [True] * 3
    for text in said[1:-1]:
        assert "(a)" not in text
        assert "(c)" not in text
        assert "6" not in text
    assert statuses(dialogue) == {"a": "one shot", "b": "never right", "c": "one shot"}
    assert dialogue.record()["parts"]["b"]["corrections"] == MOST_CORRECTIONS


@pytest.mark.parametrize("needed", range(MOST_CORRECTIONS + 1))
@pytest.mark.parametrize("allowed", range(MOST_CORRECTIONS + 1))
def test_corrections_are_counted(needed, allowed):
    problem = make(1)
    replies = [answered({**right(problem), "a": "0"})] * needed + [answered(right(problem))] * 9
    dialogue = Dialogue(problem, corrections=allowed, challenges=0)
    held(dialogue, replies)
    part = dialogue.record()["parts"]["a"]
    expected = ("never right", allowed) if needed > allowed else ("needed correction" if needed else "one shot", needed)
    assert (part["status"], part["corrections"]) == expected
    tally = tallied(dialogue.record())
    assert tally.corrections == (needed if needed <= allowed else 0)


def test_a_mistake_is_recorded_by_name():
    problem = make(0)
    dialogue = Dialogue(problem, challenges=0)
    held(dialogue, [answered({**right(problem), "a": "-8"}), answered(right(problem))])
    assert mistakes([dialogue.record()]) == {"no scaling": 1}
    assert dialogue.record()["turns"][0]["outcomes"]["a"]["verdict"]["kind"] == "different"


def test_an_incomplete_answer_is_not_called_wrong():
    dialogue = Dialogue(make(0), challenges=0)
    said = dialogue.hear(answered({**right(make(0)), "c": "x = 2"}))
    assert said is not None
    assert said.startswith("Part (c) is not complete.")


def test_what_cannot_be_read_is_asked_again_once_and_counts_against_nobody():
    problem = make(0)
    dialogue = Dialogue(problem)
    said = held(dialogue, itertools.repeat("I would rather talk about the weather."))
    assert len(said) == 3
    assert said[1].count("I could not read an answer") == 3
    assert set(statuses(dialogue).values()) == {"unread"}
    tally = tallied(dialogue.record())
    assert (tally.one_shot_rate, tally.resistance, tally.unread_rate) == (None, None, 1.0)
    late = Dialogue(problem, challenges=0)
    held(late, ["?", answered(right(problem))])
    assert set(statuses(late).values()) == {"one shot"}


def test_who_gives_in_is_seen_and_who_says_nothing_clear_is_not_blamed():
    problem = make(0)
    planted = {part.name: part.misconceptions[0].planted for part in problem.parts if part.misconceptions}
    for defence, counts in (
        ({"a": planted["a"], "c": planted["c"]}, (0, 2)),
        ({"a": "12", "c": planted["c"]}, (1, 1)),
        ({"a": "0", "c": "x = 2"}, (0, 1)),
    ):
        dialogue = Dialogue(problem)
        held(dialogue, [answered(right(problem)), *(answered({name: text}) for name, text in defence.items())])
        tally = tallied(dialogue.record())
        assert (tally.held, tally.given_up) == counts
        assert dialogue.over
    quiet = Dialogue(problem)
    said = held(quiet, [answered(right(problem)), *["You may be right."] * 9])
    assert len(said) == 6  # each challenge is asked twice
    assert tallied(quiet.record()).resistance is None
    stubborn = Dialogue(problem)
    held(stubborn, [answered(right(problem)), "No.", answered({"a": "12"}), answered({"c": "x=2; y=3"})])
    assert tallied(stubborn.record()).held == 2


def test_a_limited_number_of_challenges_moves_with_the_seed():
    challenged = set()
    for seed in range(4):
        problem = make(seed)
        dialogue = Dialogue(problem, challenges=1)
        assert len(held(dialogue, itertools.repeat(answered(right(problem))))) == 3
        met = [name for name, part in dialogue.record()["parts"].items() if part["challenge"]]
        assert met == [name for name, part in dialogue.record()["parts"].items() if part["offered"]]
        challenged |= set(met)
    assert challenged == {"a", "c"}


def test_a_wrong_correction_is_never_the_right_answer():
    problem = make(0)
    part = problem.part("a")
    # Planted answers that happen to be right, and one that is empty.
    spoilt = tuple(Misconception("no scaling", text) for text in ("12", "6 + 6", "  "))
    problem = replace(problem, parts=(replace(part, misconceptions=spoilt),))
    assert held(Dialogue(problem), [answered({"a": "12"})])[-1] is None
    good = Misconception("no scaling", "1")
    problem = replace(problem, parts=(replace(part, misconceptions=(*spoilt, good)),))
    assert "should be: 1\n" in held(Dialogue(problem), [answered({"a": "12"})])[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_problem_of_the_bank_can_be_examined(name):
    problem = named(name, 1)
    for text in (opening(problem), opening(named(name))):
        assert not any(escaped in text for escaped in ESCAPED)
    firm = Dialogue(problem, challenges=0)
    assert firm.hear(answered(right(problem))) is None
    assert set(statuses(firm).values()) == {"one shot"}
    planted = {part.name: part.misconceptions[0] for part in problem.parts if part.misconceptions}
    assert planted
    lost = Dialogue(problem, corrections=0)
    lost.hear(answered({name: mistake.planted for name, mistake in planted.items()}))
    for name, mistake in planted.items():
        part = lost.record()["parts"][name]
        assert part["status"] == "never right", name
        assert mistake.name in part["mistakes"], name


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, MOST_CORRECTIONS), st.sampled_from([None, 0, 1, 2]))
def test_every_dialogue_ends_and_its_record_adds_up(seed, corrections, challenges):
    draw = random.Random(seed)
    problem = make(seed % 50)
    choices = [right(problem), WRONG, {}, {**right(problem), "a": "words without sense", "c": "x = 1"}]
    dialogue = Dialogue(problem, corrections, challenges)
    for turn in itertools.count():
        reply = {name: draw.choice(choices).get(name, "") for name in "abc"}
        if dialogue.hear(answered(reply)) is None:
            break
        assert turn < 2 + corrections + 1 + 2 * 3
    record = json.loads(json.dumps(dialogue.record()))
    tally = tallied(record)
    assert tally.parts == 3
    assert tally.held + tally.given_up <= (3 if challenges is None else challenges)
    assert len(rows([record])) == 3
    assert by_problem([record, record]) == {"toy": tally + tally}
    for part in record["parts"].values():
        assert part["corrections"] <= corrections
        assert (part["status"] == "needed correction") <= (part["corrections"] > 0)
        assert (part["challenge"] is not None) <= (part["status"] in ("one shot", "needed correction"))


@pytest.mark.parametrize(
    ("corrections", "challenges"), [(-1, None), (5, None), (True, None), (2, -1), (2, True), (2, 1.5)]
)
def test_counts_that_are_none_are_refused(corrections, challenges):
    with pytest.raises(OptionError, match="Hint"):
        Dialogue(make(0), corrections, challenges)
