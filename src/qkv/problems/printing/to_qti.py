"""The bank as a QTI 1.2 package, which Canvas and others import: a zip with a manifest and an assessment a problem."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from ...render.document import prose
from ..judging.choices import Choice
from ..problem import Part, Problem
from .exports import Field, fields, identifier, question_blocks, solution_blocks
from .to_moodle import decimal
from .web import fragment, inline

_ASI = "http://www.imsglobal.org/xsd/ims_qtiasiv1p2"
_PACKAGE = "http://www.imsglobal.org/xsd/imscp_v1p1"


def qti(problems: Sequence[Problem]) -> bytes:
    """The zip; the same problems give the same bytes."""
    files = {f"{identifier(problem)}/{identifier(problem)}.xml": assessment(problem) for problem in problems}
    files = {"imsmanifest.xml": _manifest(list(files)), **files}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in files.items():
            package.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return whole.getvalue()


def assessment(problem: Problem) -> bytes:
    """One problem as an assessment of one section, an item a part."""
    root = Xml.Element("questestinterop", xmlns=_ASI)
    made = Xml.SubElement(root, "assessment", ident=identifier(problem), title=problem.title)
    section = Xml.SubElement(made, "section", ident="root_section")
    for part in problem.parts:
        _item(section, problem, part)
    return _written(root)


def _item(section: Xml.Element, problem: Problem, part: Part) -> None:
    numbers = fields(part)
    choice = part.answer if isinstance(part.answer, Choice) else None
    if choice:
        kind = "multiple_answers_question" if choice.several else "multiple_choice_question"
    elif len(numbers) == 1:
        kind = "numerical_question"
    else:
        # Canvas compares blanks as texts, which suits whole numbers and nothing else.
        whole = numbers and all(field.value.denominator == 1 and not field.tolerance for field in numbers)
        kind = "fill_in_multiple_blanks_question" if whole else "essay_question"
    ident = identifier(problem, part)
    item = Xml.SubElement(section, "item", ident=ident, title=f"{problem.title} ({part.name})")
    details = Xml.SubElement(Xml.SubElement(item, "itemmetadata"), "qtimetadata")
    for label, entry in (("question_type", kind), ("points_possible", f"{part.points}.0")):
        field = Xml.SubElement(details, "qtimetadatafield")
        Xml.SubElement(field, "fieldlabel").text = label
        Xml.SubElement(field, "fieldentry").text = entry
    presentation = Xml.SubElement(item, "presentation")
    asked = fragment(question_blocks(problem, part, options=False))
    if kind.startswith("fill_in"):
        asked += "<p>" + "<br/>".join(f"{each.label} = [blank{n}]" for n, each in enumerate(numbers, 1)) + "</p>"
    _material(presentation, asked)
    score = Xml.SubElement(item, "resprocessing")
    outcomes = Xml.SubElement(score, "outcomes")
    Xml.SubElement(outcomes, "decvar", maxvalue="100", minvalue="0", varname="SCORE", vartype="Decimal")
    if choice:
        _choice(presentation, score, choice, problem, part)
    elif kind == "numerical_question":
        _number(presentation, score, numbers[0])
    elif kind.startswith("fill_in"):
        _blanks(presentation, score, numbers)
    else:
        _free(presentation, score)
    feedback = Xml.SubElement(item, "itemfeedback", ident="general_fb")
    _material(Xml.SubElement(feedback, "flow_mat"), fragment(solution_blocks(problem, part)))


def _choice(presentation: Xml.Element, score: Xml.Element, choice: Choice, problem: Problem, part: Part) -> None:
    symbols = {**problem.symbols, **part.symbols}
    response = Xml.SubElement(
        presentation, "response_lid", ident="response1", rcardinality="Multiple" if choice.several else "Single"
    )
    render = Xml.SubElement(response, "render_choice")
    for option in choice.options:
        label = Xml.SubElement(render, "response_label", ident=option.label)
        _material(label, f"({option.label}) {inline(prose(option.text, symbols))}")
    asked = _condition(score)
    both = Xml.SubElement(asked, "and") if choice.several else asked
    for option in choice.options:
        if option.right:
            Xml.SubElement(both, "varequal", respident="response1").text = option.label
        elif choice.several:
            Xml.SubElement(Xml.SubElement(both, "not"), "varequal", respident="response1").text = option.label


def _number(presentation: Xml.Element, score: Xml.Element, field: Field) -> None:
    response = Xml.SubElement(presentation, "response_str", ident="response1", rcardinality="Single")
    Xml.SubElement(Xml.SubElement(response, "render_fib", fibtype="Decimal"), "response_label", ident="answer1")
    either = Xml.SubElement(_condition(score), "or")
    Xml.SubElement(either, "varequal", respident="response1").text = decimal(field.value)
    both = Xml.SubElement(either, "and")
    Xml.SubElement(both, "vargte", respident="response1").text = decimal(field.value - field.tolerance)
    Xml.SubElement(both, "varlte", respident="response1").text = decimal(field.value + field.tolerance)


def _blanks(presentation: Xml.Element, score: Xml.Element, numbers: Sequence[Field]) -> None:
    share = 100 / len(numbers)
    for place, field in enumerate(numbers, 1):
        ident = f"response_blank{place}"
        response = Xml.SubElement(presentation, "response_lid", ident=ident)
        _material(response, f"blank{place}", "text/plain")
        label = Xml.SubElement(Xml.SubElement(response, "render_choice"), "response_label", ident=f"answer{place}")
        _material(label, decimal(field.value), "text/plain")
        Xml.SubElement(_condition(score, "Add", share), "varequal", respident=ident).text = f"answer{place}"


def _free(presentation: Xml.Element, score: Xml.Element) -> None:
    response = Xml.SubElement(presentation, "response_str", ident="response1", rcardinality="Single")
    Xml.SubElement(Xml.SubElement(response, "render_fib"), "response_label", ident="answer1", rshuffle="No")
    condition = Xml.SubElement(score, "respcondition", {"continue": "No"})
    Xml.SubElement(Xml.SubElement(condition, "conditionvar"), "other")


def _condition(score: Xml.Element, action: str = "Set", share: float = 100) -> Xml.Element:
    """A condition under which points are given; what it asks is put into what is returned."""
    condition = Xml.SubElement(score, "respcondition", {"continue": "No" if action == "Set" else "Yes"})
    asked = Xml.SubElement(condition, "conditionvar")
    Xml.SubElement(condition, "setvar", action=action, varname="SCORE").text = f"{share:.4f}".rstrip("0").rstrip(".")
    return asked


def _material(parent: Xml.Element, text: str, kind: str = "text/html") -> None:
    Xml.SubElement(Xml.SubElement(parent, "material"), "mattext", texttype=kind).text = text


def _manifest(files: Sequence[str]) -> bytes:
    root = Xml.Element("manifest", identifier="qkv-bank", xmlns=_PACKAGE)
    about = Xml.SubElement(root, "metadata")
    Xml.SubElement(about, "schema").text = "IMS Content"
    Xml.SubElement(about, "schemaversion").text = "1.1.3"
    Xml.SubElement(root, "organizations")
    resources = Xml.SubElement(root, "resources")
    for name in files:
        ident = name.partition("/")[0]
        resource = Xml.SubElement(resources, "resource", identifier=ident, type="imsqti_xmlv1p2", href=name)
        Xml.SubElement(resource, "file", href=name)
    return _written(root)


def _written(root: Xml.Element) -> bytes:
    Xml.indent(root)
    return Xml.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
