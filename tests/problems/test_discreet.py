"""What practice says of a wrong answer does not hold the right one."""

import re

import pytest

from qkv.problems import named, names
from qkv.problems.discreet import discreet, discreet_lines
from qkv.problems.judging.answers import Value, Values


def plain(text):
    return re.sub(r"[\s\\{}$]", "", text).replace("−", "-")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [(name, place) for place, name in enumerate(names())])
def test_no_known_mistake_is_answered_with_the_right_values(name, seed):
    for part in named(name, seed).parts:
        if not isinstance(part.answer, Value | Values):
            continue
        values = part.answer.items.values() if isinstance(part.answer, Values) else [part.answer]
        right = [plain(value.text) for value in values if len(plain(value.text)) > 3 and not value.text.isidentifier()]
        for mistake in part.misconceptions:
            outcome = part.check(mistake.planted)
            if outcome:
                continue
            told = plain(" ".join(discreet_lines(outcome, part)))
            assert told
            # What the learner wrote under another name may be said again.
            assert not [text for text in right if text in told and text not in plain(mistake.planted)]
            assert "against" not in told
            assert "therightvalue" not in told


@pytest.mark.parametrize(
    ("name", "part", "reason", "said"),
    [
        ("argmax", "a", "2 is no vector, and one is wanted (as (1, 4, 3) is)", "2 is no vector, and one is wanted"),
        ("by-hand", "b", "z_{3,1}: not the same: 2 against 6; z_{3,2}: not the same: 8 against −1",
         "z_{3,1}: 6 is not right; z_{3,2}: −1 is not right"),
        ("by-hand", "a", "q_2: not the same: (−1, 0, −2) against (−1, 0, 2)", "q_2: (−1, 0, 2) is not right"),
        ("scaling", "b", "not the same: d = 2: 2 against 4; they agree where d = 1, not in general",
         "not the same: with d = 2 yours gives 4; they agree where d = 1, not in general"),
        ("by-hand", "c", "entry 1: the right value is −7.9, which does not round to −6", "entry 1: −6 is not right"),
        ("heads", "b(i)", "the causal mask does not belong there and the padding mask is missing",
         "the causal mask does not belong there and a mask is missing"),
    ],
)  # fmt: skip
def test_reasons_keep_what_is_wrong_and_lose_what_is_right(name, part, reason, said):
    assert discreet(reason, named(name).part(part)) == said
