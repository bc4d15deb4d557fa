"""Practice: what the page says of an answer is what the bank says, less what would give the answer away."""

import contextlib
import io
import json
import re
import time

import jsonschema
import pytest

from qkv.lab.fields import typed
from qkv.lab.view import Work
from qkv.lab.views.practice import LAST_SEED, QUICK, TITLES, VIEW
from qkv.lab.worker import answer
from qkv.problems import MISCONCEPTIONS, bank, named, names
from qkv.problems.discreet import discreet_reason
from qkv.problems.judging.answers import Value

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


def test_the_menu_has_every_problem_under_its_title():
    assert tuple(TITLES) == names()
    assert all(TITLES[name].startswith(problem.title) for name, problem in bank().items())


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_part_with_its_answer_hints_and_solution(name):
    for numbers, seed in (("documents", None), ("fresh", LAST_SEED)):
        problem = named(name, seed)
        state = {"problem": name, "numbers": numbers, "seed": str(seed or 0)}
        for place, part in enumerate(problem.parts[: 1 if seed else None]):
            solution = "no" if place % 2 else "yes"
            found = result(**state, part=part.name, answer=part.answer.text[:2000], hint="3", solution=solution)
            assert found["part"] == {"name": part.name, "letter": found["part"]["letter"], "points": part.points}
            assert [each["name"] for each in found["parts"]] == [each.name for each in problem.parts]
            assert found["outcome"]["kind"] == "right"
            assert found["preview"]["kind"] in ("formula", "words")
            assert len(found["hints"]) == 3
            assert bool(found["solution"]) is (solution == "yes")
            after = found["next"]["part"]
            assert after == (problem.parts[place + 1].name if place + 1 < len(problem.parts) else None)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_known_mistakes_are_named_and_the_right_answer_is_not_told(name):
    problem = named(name, 5)
    for part in problem.parts:
        for mistake in part.misconceptions[:1]:
            outcome = part.check(mistake.planted)
            state = {"problem": name, "numbers": "fresh", "seed": "5", "part": part.name, "answer": mistake.planted}
            said = result(**state)["outcome"]
            assert said["kind"] == outcome.kind
            assert [each["name"] for each in said["misconceptions"]] == list(outcome.misconceptions)
            if outcome:
                continue
            assert said["reason"] == discreet_reason(outcome, part)
            assert all(each["right"] is None for each in said["counterexamples"])
            assert all(each["told"] == MISCONCEPTIONS[each["name"]].question for each in said["misconceptions"])
            shown = result(**state, solution="yes")["outcome"]
            assert shown["reason"] == outcome.reason
            if isinstance(part.answer, Value) and outcome.verdict.counterexample is not None:
                point = outcome.verdict.counterexample
                assert [each["where"] for each in shown["counterexamples"]] == ([point.where] if point.point else [])


def test_what_was_typed_is_read_back():
    assert result()["outcome"] is None
    assert result()["preview"] == {"kind": "nothing", "text": "", "reason": ""}
    assert result(answer=r"\|\mu\|^2")["preview"] == {"kind": "formula", "text": "‖μ‖²", "reason": ""}
    loose = result(answer="d mu^2")
    assert loose["preview"] == {"kind": "formula", "text": "d μ²", "reason": "μ^2: a vector has no square"}
    assert loose["outcome"]["condition"] == "every component of μ is the same (μ = m·1, then both are d m²)"
    pieces = result(problem="by-hand", answer="q_1 = (2, 3, -5); k_1 = (1, 1, 1)")
    assert pieces["preview"]["text"] == "q₁ = (2, 3, -5)\nk₁ = (1, 1, 1)"
    kinds = {each["name"]: each["kind"] for each in pieces["outcome"]["items"]}
    assert (kinds["q_1"], kinds["k_1"], kinds["q_2"]) == ("right", "wrong", "unread")
    assert result(answer="\\frac{")["preview"]["kind"] == "unread"


def test_what_is_read_back_is_what_was_judged():
    for text in ("diag(a)-a^T a", "diag(a)-a^Ta"):
        found = result(problem="saturation", part="a(ii)", answer=text)
        assert (found["preview"]["kind"], found["preview"]["text"]) == ("words", text)
        assert found["preview"]["reason"] in found["outcome"]["reason"]
    cases = "J_ij = a_i(1-a_i) if i=j else -a_i a_j"
    assert result(problem="saturation", part="a(ii)", answer=cases)["preview"]["text"] == cases
    for text, read in (("mu . mu", "μᵀμ"), ("not $d$: it is $\\mu^T\\mu$", "μᵀμ")):
        found = result(answer=text)
        assert (found["outcome"]["kind"], found["preview"]["text"]) == ("right", read)
    assert result(problem="argmax", answer="v2")["preview"]["text"] == "v₂"


def test_the_mean_of_what_is_no_polynomial_is_judged_aside():
    for text in (r"\mathbb{E}[e^{q^T k}]", "Var(exp(q_1))", "E[|q|]"):
        assert VIEW.is_heavy(typed(VIEW.fields, {"answer": text}).state)
    for text in (r"E[q^T k] = \mu^T\mu", r"\sqrt{d}", "softmax(s)", "exp(q)"):
        assert not VIEW.is_heavy(typed(VIEW.fields, {"answer": text}).state)


def test_markup_in_an_answer_is_text():
    found = asked(problem="argmax", part="b", answer='<img src=x onerror="y()"> & <b>no</b>')
    assert "<img" not in found.html
    assert "<b>no" not in found.html
    assert "&lt;b&gt;no" in found.html


def test_an_unknown_part_is_refused_with_those_there_are():
    for part in ("z", "ab", "1", "b(ix)"):
        assert "scaling has the parts a, b, c" in asked(part=part).problems["part"]
    assert result(part="(B)")["part"]["name"] == "b"
    assert result(problem="heads", part="b.ii")["part"]["name"] == "b(ii)"


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
        {"problem": "heads", "numbers": "fresh", "seed": "11", "part": "c", "answer": 'it\'s "x" \\ \n y'},
        {"problem": "norms", "part": "b", "solution": "yes", "hint": "1"},
    ],
)
def test_the_program_prints_what_the_page_says(texts):
    found = asked(**texts)
    said = run(found.python)
    part = named(found.result["problem"], found.result["seed"]).part(found.result["part"]["name"])
    assert said[0] == f"{part.name} {part.points}"
    if found.result["outcome"]:
        outcome = found.result["outcome"]
        assert said[1] == "; ".join([outcome["kind"], *(each["name"] for each in outcome["misconceptions"])])
    for hint in part.hints[: len(found.result["hints"])]:
        assert hint in said
    if texts.get("solution"):
        assert said[-1] == part.answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "junk"),
    [
        ("argmax", "a", "(" * 1000 + "x" + ")" * 999),
        ("saturation", "a(ii)", "(" * 1000 + "x" + ")" * 999),
        ("scaling", "b", "^".join("2" * 900)),
        ("scaling", "c", "\\sum_{i=1}^{d}" * 130),
        ("by-hand", "a", "9" * 2000),
        ("heads", "c", "$" * 2000),
        ("norms", "b", "\\boxed{" * 280),
    ],
)
def test_junk_is_unread_or_wrong_and_never_breaks(name, part, junk):
    begun = time.perf_counter()
    assert result(problem=name, part=part, answer=junk[:2000])["outcome"]["kind"] in ("unread", "wrong")
    state = typed(VIEW.fields, {"answer": junk[:2000]}).state
    assert VIEW.is_heavy(state)
    assert not VIEW.is_heavy({**state, "answer": junk[:QUICK]})
    assert result(problem=name, part=part, answer=junk[:QUICK])["outcome"]["kind"] in ("unread", "wrong", "conditional")
    assert time.perf_counter() - begun < 4
