"""Practice: what the page says of an answer is what the check says, less what would give the answer away."""

import contextlib
import io
import json
import re
import time
from urllib.parse import parse_qsl

import jsonschema
import pytest

from qkv.exercises import bank, solve
from qkv.exercises.checking import check
from qkv.exercises.outcome import known_mistakes
from qkv.exercises.solving import solve_part
from qkv.lab.fields import typed
from qkv.lab.view import Work
from qkv.lab.views import view
from qkv.lab.views.practice import LAST_SEED, TITLES, VIEW
from qkv.lab.views.practice_judging import QUICK
from qkv.lab.worker import answer

SCHEMA = jsonschema.Draft202012Validator(
    {"type": "object", "properties": dict(VIEW.schema), "required": list(VIEW.schema), "additionalProperties": False}
)


def asked(**texts):
    """The answer of the view, which every test holds to its schema."""
    found = answer(VIEW, texts, Work(), draw=True)
    if found.result is not None:
        json.dumps(found.result, allow_nan=False)
        SCHEMA.validate(found.result)
        assert not re.search(r"<(script|style|img)|<[^>]*\s(style|on\w+)=", found.html)
    return found


def result(**texts):
    found = asked(**texts)
    assert not found.problems
    return found.result


def run(program):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(program, "program", "exec"), {})
    return said.getvalue().splitlines()


def test_the_menu_has_every_exercise_under_its_title():
    assert tuple(TITLES) == bank.names()
    assert all(title.startswith(bank.named(name).title) for name, title in TITLES.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", bank.names())
def test_every_part_with_its_answer_hints_and_solution(name):
    for numbers, seed in (("printed", None), ("fresh", LAST_SEED)):
        exercise = bank.named(name, seed)
        state = {"exercise": name, "numbers": numbers, "seed": str(seed or 0)}
        for place, part in enumerate(exercise.asked[: 1 if seed else None]):
            solved = solve_part(exercise, part)
            assert solved.answer is not None or part.rubric
            solution = "no" if place % 2 else "yes"
            typed_in = "no idea" if part.rubric else solved.answer.text[:2000]
            found = result(**state, part=part.label, answer=typed_in, hint="3", solution=solution)
            assert found["part"]["name"] == part.label
            assert found["part"]["points"] == exercise.points[part.label]
            assert [each["name"] for each in found["parts"]] == list(exercise.labels)
            # A claim is not its proof.
            kinds = ("right", "incomplete") if part.quantity == "identity" else ("right",)
            assert part.rubric or found["outcome"]["kind"] in kinds, typed_in
            assert found["preview"]["kind"] in ("formula", "words")
            assert len(found["hints"]) == 3
            assert bool(found["solution"]) is (solution == "yes")
            after = found["next"]["part"]
            assert after == (exercise.labels[place + 1] if place + 1 < len(exercise.labels) else None)


@pytest.mark.slow
@pytest.mark.parametrize("name", bank.names())
def test_known_mistakes_are_named_and_the_right_answer_is_not_told(name):
    from qkv.exercises.mistakes import MISTAKES

    exercise = bank.named(name, 5)
    for part in exercise.asked:
        planted = [MISTAKES[mistake](exercise, part) for mistake in part.mistakes[:1] if mistake in MISTAKES]
        for wrong in filter(None, planted):
            outcome = check(exercise, part.label, wrong.text)
            state = {"exercise": name, "numbers": "fresh", "seed": "5", "part": part.label, "answer": wrong.text}
            said = result(**state)["outcome"]
            assert said["kind"] == outcome.kind
            assert [each["name"] for each in said["mistakes"]] == list(outcome.mistakes)
            if outcome:
                continue
            assert said["reason"] == "; ".join(finding.words(spoilers=False) for finding in outcome.findings)
            assert all(each["right"] is None for each in said["counterexamples"])
            assert all(each["told"] == known_mistakes()[each["name"]].question for each in said["mistakes"])
            shown = result(**state, solution="yes")["outcome"]
            assert shown["reason"] == "; ".join(finding.words() for finding in outcome.findings)


def test_what_was_typed_is_read_back():
    assert result()["outcome"] is None
    assert result()["preview"] == {"kind": "nothing", "text": ""}
    assert result(answer=r"\|\mu\|^2")["preview"] == {"kind": "formula", "text": "‖μ‖²"}
    assert result(answer="\\frac{")["preview"]["kind"] == "words"
    assert result(exercise="by-hand", part="c", answer="(1, 2)")["preview"]["text"] == "(1, 2)"
    pieces = result(exercise="by-hand", answer="q_1 = (2, 3, -5); k_1 = (1, 1, 1)")
    kinds = {each["name"]: each["kind"] for each in pieces["outcome"]["items"]}
    assert (kinds["Q"], kinds["K"], kinds["V"]) == ("incomplete", "wrong", "unread")


def test_a_condition_is_told_with_the_solution_alone():
    texts = {"exercise": "scaling", "answer": "d mu^2"}
    assert result(**texts)["outcome"]["kind"] == "conditional"
    assert result(**texts)["outcome"]["condition"] is None
    assert "every component" in result(**texts, solution="yes")["outcome"]["condition"]


def test_the_mean_of_what_is_no_polynomial_is_judged_aside():
    for text in (r"\mathbb{E}[e^{q^T k}]", "Var(exp(q_1))", "E[|q|]"):
        assert VIEW.is_heavy(typed(VIEW.fields, {"answer": text}).state)
    for text in (r"E[q^T k] = \mu^T\mu", r"\sqrt{d}", "softmax(s)", "exp(q)"):
        assert not VIEW.is_heavy(typed(VIEW.fields, {"answer": text}).state)


def test_markup_in_an_answer_is_text():
    hostile = '<img src=x onerror="y()"> & <b>no</b>'
    typed_in = asked(exercise="argmax", part="b", answer=hostile).html
    assert "&lt;b&gt;no" in typed_in
    assert "<img" not in typed_in
    assert "<b>no" not in typed_in


def test_an_unknown_part_is_refused_with_those_there_are():
    for part in ("z", "ab", "1", "b(ix)"):
        assert "it has a, b, c" in asked(part=part).problems["part"]
    assert result(part="(B)")["part"]["name"] == "b"


def test_the_next_variant_is_another_one_and_stays_in_range():
    assert result(seed="4")["next"]["seed"] == 4
    assert result(numbers="fresh", seed="4")["next"]["seed"] == 5
    assert result(numbers="fresh", seed=str(LAST_SEED))["next"]["seed"] == 0
    assert asked(numbers="fresh", seed=str(LAST_SEED + 1)).problems["seed"]


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"answer": "d mu^2", "hint": "2"},
        {"exercise": "argmax", "numbers": "fresh", "seed": "11", "part": "a", "answer": 'it\'s "x" \\ \n y'},
        {"exercise": "by-hand", "part": "b", "solution": "yes", "hint": "1"},
    ],
)
def test_the_program_prints_what_the_page_says(texts):
    found = asked(**texts)
    said = run(found.python)
    assert said[0].split()[:1] == [found.result["part"]["name"]]
    if found.result["outcome"]:
        outcome = found.result["outcome"]
        assert said[1] == "; ".join([outcome["kind"], *(each["name"] for each in outcome["mistakes"])])
    if texts.get("hint"):
        exercise = bank.named(found.result["exercise"], found.result["seed"])
        for strength in range(1, 1 + int(texts["hint"])):
            assert bank.hint(exercise, found.result["part"]["name"], strength) in "\n".join(said)
    if texts.get("solution"):
        solved = solve(bank.named("by-hand"))[texts["part"]]
        assert said[-1] == solved.answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "junk"),
    [
        ("argmax", "a", "(" * 1000 + "x" + ")" * 999),
        ("saturation", "", "(" * 1000 + "x" + ")" * 999),
        ("scaling", "b", "^".join("2" * 900)),
        ("scaling", "c", "\\sum_{i=1}^{d}" * 130),
        ("by-hand", "a", "9" * 2000),
        ("heads", "", "$" * 2000),
        ("norms", "b", "\\boxed{" * 280),
    ],
)
def test_junk_is_unread_or_wrong_and_never_breaks(name, part, junk):
    begun = time.perf_counter()
    assert result(exercise=name, part=part, answer=junk[:2000])["outcome"]["kind"] in ("unread", "wrong")
    state = typed(VIEW.fields, {"answer": junk[:2000]}).state
    assert VIEW.is_heavy(state)
    assert not VIEW.is_heavy({**state, "answer": junk[:QUICK]})
    kinds = ("unread", "wrong", "conditional")
    assert result(exercise=name, part=part, answer=junk[:QUICK])["outcome"]["kind"] in kinds
    assert time.perf_counter() - begun < 4


def test_choices_are_boxes_that_make_the_answer():
    found = result(exercise="norms", part="a(i)", answer="(i)")
    assert [each["taken"] for each in found["options"]] == [True, False, False, False]
    assert found["options"][2]["answer"] == "(i), (iii)"
    assert found["options"][0]["answer"] == ""
    assert result(exercise="norms", part="a(i)", answer=found["options"][2]["answer"])["outcome"]["kind"] == "right"
    one = result(exercise="module", part="a", answer="(2)")["options"]
    assert [each["answer"] for each in one] == ["(1)", "(2)", "(3)"]
    assert [each["taken"] for each in one] == [False, True, False]


def test_links_lead_to_views_with_the_same_numbers():
    assert result(exercise="scaling")["links"] == []
    (walk,) = result(exercise="by-hand")["links"]
    texts = dict(parse_qsl(walk["address"].partition("?")[2]))
    assert texts["x"] == "2,3;-1,0;1,-2"
    shown = answer(view("walk"), texts, Work(), draw=False)
    assert shown.result is not None
    assert shown.result["output"] == answer(view("walk"), {}, Work(), draw=False).result["output"]
