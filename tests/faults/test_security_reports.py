"""Untrusted text in reports, sheets and exports is shown, and never interpreted by the program that opens the file."""

import io
import json
import re
import xml.etree.ElementTree as Xml
import zipfile

import pytest

from qkv.errors import QkvError
from qkv.exercises.bank import named
from qkv.exercises.exports import export
from qkv.grading import grade
from qkv.grading.report import documents, insights
from qkv.maths import parse
from qkv.reading import read_chat
from qkv.render import document as d
from qkv.render.saving import save
from qkv.render.to_html import html
from qkv.render.to_latex import latex
from qkv.render.to_typst import compiled, markup, pdf
from tests.helpers import toy_family

STRING = re.compile(r'"(?:\\.|[^"\\])*"')  # of typst
SECRET = "a secret"
TYPST = (
    '#read("secret.txt")',
    '"#read("secret.txt")',
    '\\"; #read("secret.txt") //',
    '#import "@preview/x:1.0.0"',
    "$#x$",
)
MARKUP = "</p><script>alert(1)</script><img src=x onerror=alert(1)>]]>&xxe;<!DOCTYPE a [<!ENTITY xxe SYSTEM 'file:///etc/passwd'>]>"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "secret.txt").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everywhere(text):
    """A document with a text in each of its slots."""
    return d.Document(
        text,
        (
            d.Heading(text),
            d.Paragraph((d.Text(text), d.Text(text, "strong"), d.Text(text, "code"), d.Maths(text, {}))),
            d.Items((text, text)),
            d.Table((text, text), ((text, text),)),
            d.Code(text),
            d.Note(text, (d.Paragraph(text),)),
        ),
    )


def test_typst_has_no_folder_to_read_from(folder):
    """If a text were ever taken for typst's language, there would be nothing for it: no file, no package, no cache."""
    for line in ('#read("secret.txt")', '#read("/secret.txt")', '#image("secret.txt")', '#include "secret.txt"'):
        with pytest.raises(Exception, match="not found"):
            compiled(line)


@pytest.mark.parametrize("text", TYPST)
def test_typst_is_given_strings_and_no_commands(folder, text):
    assert pdf(everywhere(text)).startswith(b"%PDF")
    bare, harmless = (STRING.sub('""', markup(everywhere(each))) for each in (text, "harmless"))
    assert bare == harmless


def test_a_chat_full_of_commands_becomes_a_plain_report(folder):
    """From the transcript to the file, by every writer."""
    hostile = " ".join((*TYPST, MARKUP, r"\input{secret.txt} \write18{id}"))
    said = f"Answer (a): d mu^2 {hostile}\n\nAnswer (b): 7\n\n{hostile}"
    chat = read_chat(f"Student: Solve problem 1. {hostile}\n\nTutor: {said}\n\nStudent: {hostile}")
    reports = [grade(chat, {"1": named("scaling")})]
    blocks = (*insights(reports).blocks, *documents(reports).blocks, *documents(2 * reports).blocks)
    document = d.Document(hostile, (*blocks, *everywhere(hostile).blocks))
    for ending in ("html", "md", "tex", "pdf", "ipynb"):
        for path in save(document, folder / f"report.{ending}"):
            assert SECRET.encode() not in path.read_bytes()
    page = html(document)
    assert "<script" not in page
    assert "<img" not in page
    source = latex(document, [])
    assert r"\input{" not in source
    assert r"\write18" not in source
    cells = json.loads((folder / "report.ipynb").read_text())["cells"]
    assert not [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("text", ["x<script>", "x&amp;", "\\href{javascript:alert(1)}{x}", "x\\unicode{x3c}", "x]]>"])
def test_mathematics_has_no_markup_in_it(text):
    """What is no formula is shown as text; what is one is written from its tree."""
    page = html(d.Document("t", (d.Formula(d.Maths(text, {"x": "scalar"})),)))
    assert "<script" not in page
    assert "javascript:" not in page.replace("&", "").lower() or "<code>" in page
    with pytest.raises(QkvError):
        parse(text, {"x": "scalar"})


def test_exports_have_no_entities_and_no_untrusted_markup():
    """A title that looks like XML adds no element and no document type."""
    exercise = toy_family.make().model_copy(update={"title": MARKUP})
    for form in ("moodle", "qti"):
        for name, data in export([exercise], form).items():
            files = {name: data}
            if data.startswith(b"PK"):
                package = zipfile.ZipFile(io.BytesIO(data))
                files = {each: package.read(each) for each in package.namelist()}
            for each, held in files.items():
                assert not each.startswith("/")
                assert ".." not in each
                assert b"<!DOCTYPE" not in held
                assert b"<!ENTITY" not in held
                elements = [element.tag.rpartition("}")[2] for element in Xml.fromstring(held).iter()]
                assert not {"script", "img"} & set(elements)


def test_code_for_another_grader_has_no_untrusted_text():
    exercise = toy_family.make().model_copy(update={"name": 'x"\nimport os; os.system("id")\n#'})
    sources = [data for name, data in export([exercise], "prairielearn").items() if name.endswith("server.py")]
    for source in sources:
        assert b"\nimport os" not in source
    assert sources
