"""The bank as Moodle XML: choices and numbers are graded by Moodle, other answers by hand with the solution beside."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from xml.etree import ElementTree as Xml

from ...render.document import prose
from ..judging.choices import Choice
from ..problem import Part, Problem
from .exports import Field, fields, identifier, question_blocks, solution_blocks
from .web import fragment, inline


def moodle(problems: Sequence[Problem]) -> bytes:
    """One <quiz> with a category for each problem."""
    quiz = Xml.Element("quiz")
    for problem in problems:
        category = Xml.SubElement(quiz, "question", type="category")
        _text(Xml.SubElement(category, "category"), f"$course$/top/qkv/{problem.name}")
        for part in problem.parts:
            _question(quiz, problem, part)
    Xml.indent(quiz)
    return Xml.tostring(quiz, encoding="utf-8", xml_declaration=True) + b"\n"


def _question(quiz: Xml.Element, problem: Problem, part: Part) -> None:
    numbers = fields(part)
    choice = part.answer if isinstance(part.answer, Choice) else None
    kind = "multichoice" if choice else "cloze" if numbers else "essay"
    made = Xml.SubElement(quiz, "question", type=kind)
    _text(Xml.SubElement(made, "name"), f"{problem.title} ({part.name})")
    asked = fragment(question_blocks(problem, part, options=False))
    _html(made, "questiontext", f"{asked}\n{_blanks(numbers)}" if numbers else asked)
    solution = fragment(solution_blocks(problem, part))
    _html(made, "generalfeedback", solution)
    if kind != "cloze":  # which takes its marks from its blanks
        Xml.SubElement(made, "defaultgrade").text = f"{part.points}.0"
    Xml.SubElement(made, "penalty").text = "0.3333333"
    Xml.SubElement(made, "hidden").text = "0"
    Xml.SubElement(made, "idnumber").text = identifier(problem, part)
    if choice:
        _options(made, choice, problem, part)
    elif kind == "essay":
        for name, value in (("responseformat", "editor"), ("responserequired", "1"), ("responsefieldlines", "10"),
                            ("attachments", "0")):  # fmt: skip
            Xml.SubElement(made, name).text = value
        _html(made, "graderinfo", solution)
        _html(made, "responsetemplate", "")
    for hint in part.hints:
        _html(made, "hint", f"<p>{inline(prose(hint, {**problem.symbols, **part.symbols}))}</p>")


def _options(made: Xml.Element, choice: Choice, problem: Problem, part: Part) -> None:
    right = len(choice.right)
    wrong = len(choice.options) - right
    single = not choice.several
    Xml.SubElement(made, "single").text = "true" if single else "false"
    Xml.SubElement(made, "shuffleanswers").text = "0"
    Xml.SubElement(made, "answernumbering").text = "none"
    symbols = {**problem.symbols, **part.symbols}
    for option in choice.options:
        # What is right adds up to everything, and taking all takes everything away again.
        share = 100 / right if option.right else 0 if single else -100 / max(wrong, 1)
        answer = Xml.SubElement(made, "answer", fraction=f"{share:.5f}".rstrip("0").rstrip("."), format="html")
        _text_of(answer, f"<p>({option.label}) {inline(prose(option.text, symbols))}</p>")
        _html(answer, "feedback", f"<p>{inline(prose(option.why, symbols))}</p>")


def _blanks(numbers: Sequence[Field]) -> str:
    rows = (f"{field.label} = {_blank(field)}" if field.label else _blank(field) for field in numbers)
    return "<p>" + "<br/>".join(rows) + "</p>"


def _blank(field: Field) -> str:
    """
    >>> _blank(Field("q", Fraction(1, 2), Fraction(1, 200)))
    '{1:NUMERICAL:=0.5:0.005}'
    """
    tolerance = field.tolerance or (Fraction(0) if field.value.denominator == 1 else Fraction(1, 1000))
    return f"{{1:NUMERICAL:={decimal(field.value)}:{decimal(tolerance)}}}"


def decimal(value: Fraction) -> str:
    """A number as platforms read it.

    >>> decimal(Fraction(-7, 4)), decimal(Fraction(3)), decimal(Fraction(690, 10**15))
    ('-1.75', '3', '6.9e-13')
    """
    return str(int(value)) if value.denominator == 1 else f"{float(value):.12g}"


def _text(parent: Xml.Element, text: str) -> None:
    Xml.SubElement(parent, "text").text = text


_text_of = _text


def _html(parent: Xml.Element, name: str, text: str) -> None:
    _text(Xml.SubElement(parent, name, format="html"), text)
