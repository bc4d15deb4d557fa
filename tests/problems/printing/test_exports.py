"""Exports hold the right answers, in forms that the platforms read; ids are unique, XML is well-formed."""

import ast
import io
import json
import uuid
import zipfile
from fractions import Fraction
from xml.etree import ElementTree as Xml

import pytest

from qkv.errors import OptionError
from qkv.problems.printing import to_prairielearn
from qkv.problems.printing.exports import export, fields, identifier, json_lines, save_export, solution_as_dict
from qkv.problems.printing.to_moodle import moodle
from qkv.problems.printing.to_qti import assessment, qti
from tests.helpers import toy_problem

PROBLEMS = [toy_problem.make(), toy_problem.make(1), toy_problem.make(2)]
ASI = "{http://www.imsglobal.org/xsd/ims_qtiasiv1p2}"


def test_a_solution_as_plain_values():
    found = solution_as_dict(toy_problem.make().solve())
    assert json.loads(json.dumps(found)) == found
    assert found["summary"] == {"a": "q = (2, 3, -5)", "b(i)": "(i)"}
    step = found["parts"][0]["steps"][0]
    assert step["value"] == [2, 3, -5]
    assert "pmatrix" in step["latex"]
    assert [part["part"] for part in solution_as_dict(toy_problem.make().solve(), ["a"])["parts"]] == ["a"]


def test_json_lines_hold_answers_that_check_takes():
    lines = [json.loads(line) for line in json_lines(PROBLEMS).splitlines()]
    assert len({line["id"] for line in lines}) == len(lines) == 6
    for line in lines:
        problem = toy_problem.make(line["seed"])
        assert problem.check(line["part"], line["answer"]).kind == "right"
        assert len(line["hints"]) == 3
        for mistake in line["misconceptions"]:
            assert problem.check(line["part"], mistake["answer"]).misconceptions == (mistake["name"],)


def test_numbers_are_found_where_an_answer_is_nothing_else():
    found = fields(toy_problem.make().part("a"))
    assert [(field.label, field.value) for field in found] == [
        ("q[1]", Fraction(2)), ("q[2]", Fraction(3)), ("q[3]", Fraction(-5)),
    ]  # fmt: skip
    assert fields(toy_problem.make().part("b(i)")) == ()


def test_moodle():
    quiz = Xml.fromstring(moodle(PROBLEMS))
    asked = [each for each in quiz if each.get("type") != "category"]
    assert [each.get("type") for each in asked] == ["cloze", "multichoice"] * 3
    ids = [each.findtext("idnumber") for each in asked]
    assert len(set(ids)) == len(ids)
    text = asked[0].findtext("questiontext/text")
    assert "{1:NUMERICAL:=2:0}" in text
    assert "{1:NUMERICAL:=-5:0}" in text
    assert "&lt;b&gt;" in text
    assert r"\[W = " in text
    options = {each.findtext("text"): float(each.get("fraction")) for each in asked[1].findall("answer")}
    assert list(options.values()) == [100, 0]
    for question in asked:
        assert len(question.findall("hint")) == 3
        assert question.find("generalfeedback").get("format") == "html"
        Xml.fromstring(f"<div>{question.findtext('questiontext/text')}</div>")


def test_qti():
    package = zipfile.ZipFile(io.BytesIO(qti(PROBLEMS)))
    manifest = Xml.fromstring(package.read("imsmanifest.xml"))
    named = [each.get("href") for each in manifest.iter() if each.tag.endswith("}file")]
    assert sorted([*named, "imsmanifest.xml"]) == sorted(package.namelist())
    items = [item for name in named for item in Xml.fromstring(package.read(name)).iter(f"{ASI}item")]
    assert len({item.get("ident") for item in items}) == len(items) == 6
    kinds = [item.findtext(f".//{ASI}fieldentry") for item in items]
    assert kinds == ["fill_in_multiple_blanks_question", "multiple_choice_question"] * 3
    assert qti(PROBLEMS) == qti(PROBLEMS)


def test_what_a_qti_item_takes_for_right_is_right():
    root = Xml.fromstring(assessment(toy_problem.make()))
    blanks, choice = root.iter(f"{ASI}item")
    chosen = {each.text for each in blanks.iter(f"{ASI}varequal")}
    labels = {each.get("ident"): each.findtext(f".//{ASI}mattext") for each in blanks.iter(f"{ASI}response_label")}
    assert [labels[each] for each in sorted(chosen)] == ["2", "3", "-5"]
    assert sum(float(each.text) for each in blanks.iter(f"{ASI}setvar")) == pytest.approx(100, abs=0.01)
    assert [each.text for each in choice.iter(f"{ASI}varequal")] == ["i"]


def test_prairielearn_draws_and_grades(monkeypatch):
    toy_problem.install(monkeypatch)
    files = to_prairielearn.prairielearn(PROBLEMS)
    assert set(files) == {f"questions/qkv/toy/{name}" for name in ("info.json", "question.html", "server.py")}
    info = json.loads(files["questions/qkv/toy/info.json"])
    assert uuid.UUID(info["uuid"]).version == 5
    assert {"title", "topic", "type"} <= set(info)
    server = files["questions/qkv/toy/server.py"].decode()
    assert {each.name for each in ast.parse(server).body if isinstance(each, ast.FunctionDef)} == {"generate", "grade"}
    room = {}
    exec(compile(server, "server.py", "exec"), room)
    data = {"variant_seed": 4007, "params": {}, "submitted_answers": {}, "partial_scores": {}, "feedback": {}}
    room["generate"](data)
    problem = toy_problem.make(7)
    assert [part["key"] for part in data["params"]["parts"]] == ["part_a", "part_bi"]
    assert "A vector and a matrix" in data["params"]["statement"]
    data["submitted_answers"] = {"part_a": problem.part("a").answer.text, "part_bi": "(ii)"}
    room["grade"](data)
    assert data["score"] == 3 / 5
    assert data["partial_scores"]["part_bi"]["score"] == 0
    assert data["feedback"]["lines"][0] == "(a) right"
    data["submitted_answers"] = {}
    room["grade"](data)
    assert data["score"] == 0


@pytest.mark.parametrize("form", ["moodle", "qti", "prairielearn", "jsonl"])
def test_files_are_written_whole(tmp_path, form):
    made = save_export(PROBLEMS, form, tmp_path)
    assert made
    assert sorted(made) == sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_another_format_is_refused():
    with pytest.raises(OptionError, match="moodle, qti, prairielearn, jsonl"):
        export(PROBLEMS, "docx")
    assert identifier(PROBLEMS[0], PROBLEMS[0].part("b(i)")) == "toy-document-bi"
