"""Exports contain the right answers in forms that the platforms read; ids are unique, XML is well-formed."""

import ast
import io
import json
import uuid
import zipfile
from fractions import Fraction
from xml.etree import ElementTree as Xml

import pytest

from qkv.errors import OptionError
from qkv.exercises import Exercise
from qkv.exercises.checking import check
from qkv.exercises.exports import export, fields, identifier, right_options, save_export
from qkv.exercises.solving import Answer, solve_part
from tests.helpers import toy_family

EXERCISES = [toy_family.make(), toy_family.make(1), toy_family.make(2)]
ASI = "{http://www.imsglobal.org/xsd/ims_qtiasiv1p2}"


def test_json_lines_have_answers_that_check_takes():
    lines = [json.loads(line) for line in export(EXERCISES, "jsonl")["exercises.jsonl"].decode().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines) == 6
    for line in lines:
        exercise = Exercise.from_plain(line["exercise"])
        assert check(exercise, line["label"], line["answer"]["text"])
        assert len(line["hints"]) == 3
        assert line["mistakes"]
        for mistake in line["mistakes"]:
            assert mistake["name"] in check(exercise, line["label"], mistake["answer"]).mistakes


def test_numbers_are_found_where_an_answer_is_nothing_else():
    exercise = toy_family.make()
    first, second = (solve_part(exercise, asked) for asked in exercise.asked)
    assert [(field.label, field.value) for field in fields(first.answer)] == [("[1]", 2), ("[2]", 3), ("[3]", -5)]
    assert fields(second.answer) == ()
    assert right_options(second.asked, second.answer) == ("i", "iii")
    assert right_options(first.asked, first.answer) == ()


def test_a_rounded_number_has_a_tolerance_and_an_exact_one_has_none():
    rounded, exact = (fields(Answer("", value))[0] for value in (0.33333, Fraction(1, 3)))
    assert 0 < rounded.tolerance < Fraction(1, 10_000)
    assert exact.tolerance == 0
    assert fields(Answer("d", "d", "formula")) == ()


def test_moodle():
    quiz = Xml.fromstring(export(EXERCISES, "moodle")["moodle.xml"])
    asked = [each for each in quiz if each.get("type") != "category"]
    assert [each.get("type") for each in asked] == ["cloze", "multichoice"] * 3
    assert len({each.findtext("idnumber") for each in asked}) == 6
    text = asked[0].findtext("questiontext/text")
    for words in ("{1:NUMERICAL:=2:0}", "{1:NUMERICAL:=-5:0}", "&lt;b&gt;", r"\[K = "):
        assert words in text
    assert [float(each.get("fraction")) for each in asked[1].findall("answer")] == [50, -50, 50, -50]
    for question in asked:
        assert len(question.findall("hint")) == 3
        Xml.fromstring(f"<div>{question.findtext('questiontext/text')}</div>")
        Xml.fromstring(f"<div>{question.findtext('generalfeedback/text')}</div>")


def test_qti():
    made = export(EXERCISES, "qti")["qti.zip"]
    assert made == export(EXERCISES, "qti")["qti.zip"]
    package = zipfile.ZipFile(io.BytesIO(made))
    manifest = Xml.fromstring(package.read("imsmanifest.xml"))
    named = [each.get("href") for each in manifest.iter() if each.tag.endswith("}file")]
    assert sorted([*named, "imsmanifest.xml"]) == sorted(package.namelist())
    items = [item for name in named for item in Xml.fromstring(package.read(name)).iter(f"{ASI}item")]
    assert len({item.get("ident") for item in items}) == len(items) == 6
    kinds = [item.findtext(f".//{ASI}fieldentry") for item in items]
    assert kinds == ["fill_in_multiple_blanks_question", "multiple_answers_question"] * 3
    blanks, choice = items[:2]
    chosen = {each.text for each in blanks.iter(f"{ASI}varequal")}
    labels = {each.get("ident"): each.findtext(f".//{ASI}mattext") for each in blanks.iter(f"{ASI}response_label")}
    assert [labels[each] for each in sorted(chosen)] == ["2", "3", "-5"]
    assert sum(float(each.text) for each in blanks.iter(f"{ASI}setvar")) == pytest.approx(100, abs=0.01)
    assert [each.text for each in choice.findall(f".//{ASI}and/{ASI}varequal")] == ["i", "iii"]


def test_prairielearn_draws_and_grades(monkeypatch):
    toy_family.install(monkeypatch)
    files = export(EXERCISES, "prairielearn")
    assert set(files) == {f"questions/qkv/toy/{name}" for name in ("info.json", "question.html", "server.py")}
    info = json.loads(files["questions/qkv/toy/info.json"])
    assert uuid.UUID(info["uuid"]).version == 5
    server = files["questions/qkv/toy/server.py"].decode()
    assert {each.name for each in ast.parse(server).body if isinstance(each, ast.FunctionDef)} == {"generate", "grade"}
    names = {}
    exec(compile(server, "server.py", "exec"), names)
    data = {"variant_seed": 4007, "params": {}, "submitted_answers": {}, "partial_scores": {}, "feedback": {}}
    names["generate"](data)
    assert [part["key"] for part in data["params"]["parts"]] == ["part_a", "part_bi"]
    assert "A query and keys" in data["params"]["statement"]
    data["submitted_answers"] = {"part_a": toy_family.scores(7), "part_bi": "(i), (ii)"}
    names["grade"](data)
    assert data["score"] == 3 / 5
    assert data["partial_scores"]["part_bi"]["score"] == 0
    assert data["feedback"]["lines"][0] == "(a) right"
    data["submitted_answers"] = {}
    names["grade"](data)
    assert data["score"] == 0


@pytest.mark.parametrize("form", ["moodle", "qti", "prairielearn", "jsonl"])
def test_files_are_written_whole(tmp_path, form):
    made = save_export(EXERCISES, form, tmp_path)
    assert made
    assert sorted(made) == sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_another_format_is_refused():
    with pytest.raises(OptionError, match="moodle, qti, prairielearn, jsonl"):
        export(EXERCISES, "docx")
    assert identifier(EXERCISES[0], EXERCISES[0].asked[1]) == "toy-printed-bi"
    assert identifier(EXERCISES[1]) == "toy-1"
