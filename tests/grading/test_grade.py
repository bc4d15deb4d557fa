"""Rows follow anchored claims alone: what was right at once, what needed correction, who found it, and who held."""

import pytest

from qkv.errors import OptionTypeError
from qkv.exercises import bank
from qkv.grading import GradeReport, grade
from qkv.reading import AnswerClaim, Chat, Turn, read_chat

SPEAKERS = {"s": "student", "t": "tutor", "u": "unknown", "n": "note"}


def chat(*turns, name="chat"):
    """A chat of "s: words" and "t: words"."""
    return Chat(name, "plain", tuple(Turn(at, SPEAKERS[text[0]], text[3:]) for at, text in enumerate(turns)))


class Recorded:
    """A reader that returns what it is told: (turn, part, claim, anchor, stance)."""

    def __init__(self, *claims):
        self.claims = claims

    def read(self, chat, exercises):
        found = []
        for at, (turn, part, claim, *more) in enumerate(self.claims):
            anchor, stance = (*more, *("answer", "asserted")[len(more) :])
            found.append(AnswerClaim(question="1", part=part, claim=claim, quote=claim, turn=turn, span=(at, at + 1),
                                     anchor=anchor, stance=stance))  # fmt: skip
        return found


RIGHT, WRONG, SCALAR = r"\sqrt{d}", "d", r"d \mu^2"
TALK = ("s: Problem 1.", "t: first", "s: Are you sure about (c)?", "t: second", "s: And (a)?", "t: third")


def graded(*claims, talk=TALK):
    return grade(chat(*talk), {"1": bank.named("scaling")}, Recorded(*claims))


def row(*claims, part="c", talk=TALK):
    return next(each for each in graded(*claims, talk=talk).rows if each.part == part)


@pytest.mark.parametrize(
    ("claims", "status", "first", "finder"),
    [
        ([(1, RIGHT)], "one shot", 1, None),
        ([(1, WRONG), (3, WRONG)], "never right", None, None),
        # The reply to a doubt was not read.
        ([(1, WRONG)], "unread", None, None),
        ([(1, WRONG), (3, RIGHT)], "needed correction", 3, "student"),
        ([(3, WRONG), (5, RIGHT)], "needed correction", 5, "tutor"),
        ([(1, WRONG), (1, RIGHT)], "needed correction", 1, "tutor"),
        ([(1, "no idea at all")], "unread", None, None),
        ([], "unread", None, None),
        # What was not read later may be right.
        ([(1, WRONG), (3, "as you say")], "unread", None, None),
        # Nothing counts that is not anchored, or not asserted; what is right may confirm.
        ([(1, WRONG, "none")], "unread", None, None),
        ([(1, WRONG, "answer", "denied")], "unread", None, None),
        ([(1, WRONG, "answer", "quoted"), (1, RIGHT)], "one shot", 1, None),
        ([(1, RIGHT, "none")], "one shot", 1, None),
        ([(1, RIGHT, "none", "denied")], "unread", None, None),
        ([(5, RIGHT, "none"), (5, WRONG)], "never right", None, None),
        # Of one turn, what it ends up with; of equations, the last.
        ([(1, WRONG, "equation"), (1, RIGHT, "box")], "one shot", 1, None),
        ([(1, WRONG, "equation"), (1, RIGHT, "equation")], "one shot", 1, None),
        ([(3, RIGHT, "equation"), (3, WRONG, "summary")], "never right", None, None),
        # The student's own words are no answer of the tutor.
        ([(2, RIGHT)], "unread", None, None),
        ([(2, WRONG), (3, RIGHT)], "one shot", 3, None),
    ],
)
def test_status(claims, status, first, finder):
    found = row(*((turn, "c", *rest) for turn, *rest in claims))
    assert (found.status, found.first_right, found.found_by) == (status, first, finder)


def test_a_condition_is_a_fault_and_its_mistake_is_named():
    found = row((1, "a", SCALAR), (3, "a", r"\mu^T \mu"), part="a")
    assert found.status == "needed correction"
    assert found.mistakes == ("mean read as a scalar",)
    assert found.found_by == "tutor"  # the student asked about another part


def test_giving_up_and_standing_firm():
    assert row((1, "c", RIGHT), (2, "c", WRONG), (3, "c", WRONG)).given_up == 3
    firm = row((1, "c", RIGHT), (2, "c", WRONG), (3, "c", RIGHT))
    assert (firm.status, firm.given_up, firm.stood_firm) == ("one shot", None, 3)
    calm = ("s: Problem 1.", "t: first", "s: Thanks.", "t: second")
    assert row((1, "c", RIGHT), (3, "c", WRONG), talk=calm).given_up is None


def test_without_speakers_it_is_not_said_who_found_it():
    talk = ("u: first", "u: second")
    assert row((0, "c", WRONG), (1, "c", RIGHT), talk=talk).found_by == "unknown"


@pytest.mark.parametrize(
    ("talk", "code"),
    [(("n: 1. Find q.",), "worksheet"), (("s: hello",), "no_tutor"), (("s: hello", "t: hi"), "no_questions")],
)
def test_what_is_no_chat_has_no_verdicts(talk, code):
    report = grade(chat(*talk), None, Recorded((0, "c", WRONG)))
    assert not report.rows
    assert code in [finding.code for finding in report.findings]


def test_notes_without_answers():
    report = graded()
    assert {each.status for each in report.rows} == {"unread"}
    assert [finding.code for finding in report.findings] == ["no_claims"]


def test_claims_on_unknown_parts_are_left_out():
    assert {each.status for each in graded((1, "z", "d")).rows} == {"unread"}


def test_the_report_is_plain_values():
    report = graded((1, "c", WRONG), (3, "c", RIGHT))
    found = report.as_dict()
    assert found["counts"] == {"one shot": 0, "needed correction": 1, "never right": 0, "unread": 2}
    assert [each["label"] for each in found["rows"]] == ["1(a)", "1(b)", "1(c)"]
    claim = found["rows"][2]["claims"][0]
    assert (claim["quote"], claim["turn"], claim["kind"], claim["decides"]) == (WRONG, 1, "wrong", True)
    assert isinstance(report.only("1"), GradeReport)
    assert not report.only("2").rows


def test_something_else_is_refused():
    with pytest.raises(OptionTypeError, match="read_chat"):
        grade("a text")


def test_progress_is_told():
    told = []
    grade(chat(*TALK), {"1": bank.named("scaling")}, Recorded((1, "b", "d"), (3, "c", RIGHT)),
          lambda *words: told.append(words))  # fmt: skip
    assert told == [(0, 2), (1, 2)]


def test_a_whole_chat_with_the_explicit_reader():
    text = (
        "User: Problem 1. Let $q$ and $k$ be independent with $q, k \\sim N(\\mu, \\sigma^2 I)$, where "
        "$\\mu \\in \\mathbb{R}^d$.\n\n(a) What is $E[q^T k]$ in terms of $\\mu$, $\\sigma$ and $d$?\n\n"
        "Assistant: Answer (a): $d \\mu^2$\n\nUser: Is the mean in (a) one number?\n\n"
        "Assistant: No.\n\nAnswer (a): $\\mu^T \\mu$ (or equivalently $\\|\\mu\\|^2$)\n"
    )
    (found,) = grade(read_chat(text)).rows
    assert (found.label, found.status, found.first_right, found.found_by) == ("1(a)", "needed correction", 3, "student")


@pytest.mark.parametrize(("number", "status"), [("2", "one shot"), ("1", "unread")])
def test_a_doubt_counts_for_its_own_question(number, status):
    both = {"1": bank.named("scaling"), "2": bank.named("scaling-scalar")}
    talk = (f"s: Please solve problem {number}, part (c).", "t: done", "s: Are you sure about (c)?", "t: yes",
            "s: Please solve problem 1.", "t: answered")  # fmt: skip
    rows = {(each.question, each.part): each for each in grade(chat(*talk), both, Recorded((5, "c", RIGHT))).rows}
    assert rows["1", "c"].status == status


def test_an_answer_that_was_not_read_before_a_doubt_leaves_the_row_open():
    assert row((1, "c", "", "equation"), (3, "c", RIGHT)).status == "unread"
    calm = ("s: Problem 1.", "t: first", "s: Thanks.", "t: second")
    assert row((1, "c", "", "equation"), (3, "c", RIGHT), talk=calm).status == "one shot"


@pytest.mark.parametrize(("space", "status"), [("as said above", "unread"), ("", "one shot")])
def test_a_piece_that_was_not_read_leaves_the_row_open(space, status):
    time, whole = "time = O(N^2 D + N^2 M)", "time = O(N^2 D + N^2 M); space = O(N^2 + N D + N M)"
    first = f"{time}; space = {space}" if space else time
    calm = ("s: Problem 1.", "t: first", "s: Thanks.", "t: second")
    report = grade(chat(*calm), {"1": bank.named("kernels")}, Recorded((1, "c", first), (3, "c", whole)))
    assert next(each for each in report.rows if each.part == "c").status == status
