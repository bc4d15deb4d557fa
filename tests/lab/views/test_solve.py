"""Solve: the page says of an exercise what the reader and the solvers say of it, and its record can be edited."""

import contextlib
import io
import json
import re
from html.parser import HTMLParser
from urllib.parse import parse_qsl

import jsonschema
import pytest

from qkv.exercises import Exercise, solve
from qkv.exercises.sheets import read_sheet
from qkv.lab.fields import typed
from qkv.lab.view import Work
from qkv.lab.views import view
from qkv.lab.views.solve import EXAMPLE, LONGEST, VIEW
from qkv.lab.worker import answer

SCHEMA = jsonschema.Draft202012Validator(
    {"type": "object", "properties": dict(VIEW.schema), "required": list(VIEW.schema), "additionalProperties": False}
)
GIVEN = "Let Q = [[1, 0], [0, 2]] and K = [[1, 1], [0, 1], [3, 0]]."
QUESTION = f"{GIVEN} Compute the scores Q K^T without scaling."
CACHE = "How large is the KV cache of Llama-3-8B at 8192 tokens in float16?"
SIZES = (
    "A model has 32 layers, 32 query heads, 8 key/value heads of width 128 and stores bfloat16. "
    "How many bytes does its KV cache take at 4096 tokens?"
)
CAUSAL = (
    "Let X = [[1, 0], [0, 1], [1, 1]], W_Q = [[1, 0], [0, 1]], W_K = [[1, 0], [0, 1]], W_V = [[2, 0], [0, 3]]. "
    "Compute causal attention without scaling."
)
HEADS = (
    "Q = [[1,0,2,1],[0,1,1,0]], K=[[1,0,0,1],[2,1,0,1]], V=[[1,2],[3,4]]. "
    "Compute attention with 2 heads, scaled by 1/sqrt(d_k)."
)
PARTS = f"{GIVEN}\n\n(a) Compute the scores.\n\n(b) Why is the sky blue?\n\n(c) Compute the attention weights."
LAW = "The components of q and k are independent with mean 0 and variance 1, and d_k = 64. What is the variance of {}?"


class Plain(HTMLParser):
    """Markup without scripts, styles and pictures from elsewhere, whatever is in its texts."""

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "style", "img")
        assert not [name for name, _ in attrs if name == "style" or name.startswith("on")]


def asked(**texts):
    """The answer of the view, which every test holds to its schema."""
    found = answer(VIEW, texts, Work(), draw=True)
    if found.result is not None:
        json.dumps(found.result, allow_nan=False)
        SCHEMA.validate(found.result)
        Plain().feed(found.html)
    return found


def result(**texts):
    found = asked(**texts)
    assert not found.problems
    return found.result


def run(program):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(program, "program", "exec"), {})
    return said.getvalue().splitlines()


@pytest.mark.parametrize("question", [EXAMPLE, QUESTION, CACHE, SIZES, CAUSAL, LAW.format("the dot product")])
def test_an_exercise_in_words_is_understood_and_solved(question):
    (reading,) = read_sheet(f"{question}\n")
    found = result(question=question)
    (part,) = reading.solve().parts
    assert found["answer"] == part.answer.text
    assert found["solution"]
    assert found["understood"] == [
        {"name": name, "words": words} for name, words in reading.exercise.understood() if words
    ]
    assert run(asked(question=question).python)[-1] == part.answer.text
    again = result(question=question, record=json.dumps(found["record"]))
    assert again["edited"]
    assert (again["record"], again["answer"]) == (found["record"], found["answer"])


def test_an_edited_record_is_solved_anew():
    record = result()["record"]
    record["givens"][2]["value"] = [[1, 5], [2, 7], [3, "1/2"]]
    record["conventions"]["scale"] = {"value": "none"}
    record["structure"] = {"similarity": "argmax"}
    found = result(record=json.dumps(record))
    (part,) = solve(Exercise.from_plain(record)).parts
    assert found["answer"] == part.answer.text
    assert run(asked(record=json.dumps(record)).python)[-1] == part.answer.text
    assert not found["findings"]
    page = asked(record=json.dumps(record)).html
    assert 'value="[[1, 5], [2, 7], [3, &#34;1/2&#34;]]"' in page
    assert result(question="", record=json.dumps(record))["answer"] == part.answer.text


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ("{", "JSON"),
        ("[]", "exercise"),
        ('{"givens": [{"role": "nothing"}]}', "role"),
        ('{"structure": {"heads": []}}', "heads"),
        ("[" * 5000, "exercise"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused_at_its_field(record, named):
    assert named in asked(record=record).problems["record"]


def test_an_answer_of_ones_own_hides_the_solution():
    right = result(question=QUESTION, answer="[[1, 0, 3], [2, 2, 0]]")
    assert right["outcome"]["kind"] == "right"
    assert right["solution"] == ""
    assert right["answer"] is None
    wrong = asked(question=QUESTION, answer="[[1, 0, 3], [2, 2, 1]]")
    assert wrong.result["outcome"]["kind"] == "wrong"
    assert "[[1, 0, 3], [2, 2, 0]]" not in json.dumps([wrong.result, wrong.html, wrong.python])
    assert result(question=QUESTION, answer="no", solution="yes")["solution"]
    said = run(asked(question=QUESTION, answer="[[1, 0, 3], [2, 2, 1]]").python)
    assert said[-1].startswith("wrong")


def test_parts_and_what_was_not_understood():
    found = result(question=PARTS)
    assert [(each["name"], each["solvable"]) for each in found["parts"]] == [("a", True), ("b", False), ("c", True)]
    assert found["part"] == "a"
    assert result(question=PARTS, part="(c)")["place"] == 3
    unread = asked(question=PARTS, part="b")
    assert any("sky" in each for each in unread.result["findings"])
    assert "sky" in unread.html
    assert unread.result["solution"] == ""
    assert unread.result["answer"] is None
    mended = unread.result["record"] | {
        "givens": result(question=PARTS)["record"]["givens"],
        "asked": [{"quantity": "scores"}],
    }
    assert result(question=PARTS, part="b", record=json.dumps(mended))["answer"] == found["answer"]
    assert "there are a, b, c" in asked(question=PARTS, part="z").problems["part"]
    assert asked(question="").problems["question"]
    assert asked(question="x" * (LONGEST + 1)).problems["question"]
    assert result(question="The weather is nice today.")["findings"]


def test_what_was_read_with_a_missing_convention_is_refused_by_its_name():
    found = result(question=SIZES.replace(" and stores bfloat16", ""))
    assert found["answer"] is None
    assert "format of numbers" in found["refusal"]
    assert "format of numbers" in found["solution"]


def test_a_name_that_is_typed_opens_no_file(tmp_path):
    place = tmp_path / "sheet.md"
    place.write_text(QUESTION, encoding="utf-8")
    assert result(question=str(place))["answer"] is None


def test_markup_is_text():
    hostile = '<img src=x onerror="y()"> & <b>no</b>'
    record = json.dumps({"givens": [{"symbol": hostile, "role": "other", "value": hostile}]})
    for texts in ({"question": QUESTION + hostile}, {"record": record}, {"answer": hostile}):
        assert "<b>no" not in asked(**texts).html


def linked(question):
    (link,) = result(question=question)["links"]
    name, _, query = link["address"][1:].partition("?")
    assert name == link["view"]
    texts = dict(parse_qsl(query))
    found = answer(view(name), texts, Work(), draw=False)
    assert not found.problems
    return name, texts, found.result


@pytest.mark.parametrize(
    "question",
    [
        EXAMPLE,
        CAUSAL,
        EXAMPLE.replace("the attention output, with scores divided by sqrt(d)", "argmax attention"),
        HEADS,
    ],
)
def test_the_walk_that_is_linked_shows_the_same_output(question):
    name, _, found = linked(question)
    assert name == "walk"
    numbers = [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?(?![\d/])", result(question=question)["answer"])]
    shown = [each for row in found["output"] for each in row]
    assert shown == pytest.approx(numbers, rel=1e-4)


def test_links_lead_to_views_with_the_same_numbers():
    name, texts, _ = linked(CACHE)
    assert (name, texts) == ("plan", {"model": "llama-3-8b", "context": "8192", "cache": "float16"})
    name, texts, found = linked(SIZES)
    assert name == "cache"
    assert found["ways"][1]["held"] * 32 == pytest.approx(536_870_912)
    name, texts, _ = linked(LAW.format("the dot product"))
    assert (name, texts["d"], float(texts["sigma"])) == ("scale", "64", 1.0)
    # The walk has no such scale, and would show other numbers.
    record = result()["record"] | {"conventions": {"scale": {"value": "1/3"}}}
    assert result(record=json.dumps(record))["links"] == []


def test_what_may_take_long_is_computed_aside():
    assert not VIEW.is_heavy(typed(VIEW.fields, {}).state)
    for texts in ({"question": QUESTION}, {"record": "{}"}, {"answer": "1"}):
        assert VIEW.is_heavy(typed(VIEW.fields, texts).state)
