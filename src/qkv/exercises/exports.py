"""Exercises for other programs: JSON Lines, Moodle XML, QTI 1.2 packages and PrairieLearn question folders.

What a platform can check (choices, numbers) it checks; other answers are free text with the right answer and the worked
solution for graders. PrairieLearn draws variants of the bank and grades them with `qkv.exercises.checking`.
"""

from __future__ import annotations

import io
import json
import tomllib
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as Xml

from ..errors import OptionError, OptionTypeError, complaint
from ..figures.svg import tag
from ..render import document as d
from ..render.to_html import escape
from .bank import BankExercise, named
from .forms.arrays import entries
from .printing import option_words, points_of, question_blocks, spoken, statement_blocks, symbols_of, title
from .printing import worked_blocks as _worked
from .record import Asked, Exercise, Option
from .solving import Answer, Solved, remembering, solve_part

_SEEDS = 1000  # variants that PrairieLearn draws from
_SPACE = uuid.UUID("8f2ad1c0-6a3c-5b7e-9d49-1f0c57a1e3b2")  # of the ids below; another would make other questions
_ASI = "http://www.imsglobal.org/xsd/ims_qtiasiv1p2"
_PACKAGE = "http://www.imsglobal.org/xsd/imscp_v1p1"
_DIGITS = 5  # that a rounded answer has

Files = dict[str, bytes]


def export(exercises: Sequence[Exercise], form: str) -> Files:
    """The files of an export, by their names in the folder; `form` is a key of FORMATS."""
    if form not in FORMATS:
        raise OptionError(complaint("format", repr(form), f"one of {', '.join(FORMATS)}"))
    return FORMATS[form](exercises)


def save_export(exercises: Sequence[Exercise], form: str, folder: Path) -> list[Path]:
    """Write an export into a folder that exists; every file is written whole."""
    from ..render.saving import write

    files = {folder / name: content for name, content in export(exercises, form).items()}
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    return list(write(files))


class Field(NamedTuple):
    """A number of an answer: its label, its value, and how far off another may be."""

    label: str
    value: Fraction
    tolerance: Fraction


def fields(answer: Answer | None) -> tuple[Field, ...]:
    """The numbers of an answer that is nothing else, in order; empty for any other.

    >>> [field.label for field in fields(Answer("(1, 2)", (1, 2), "vector"))]
    ['[1]', '[2]']
    """
    if answer is None or answer.form not in ("number", "vector", "matrix", "tensor"):
        return ()
    found: list[Field] = []
    for name, item in answer.items.items() or {"": answer}.items():
        numbers = list(entries(item.value))
        if not numbers or any(isinstance(value, str | bool) or value is None for _, value in numbers):
            return ()
        for place, value in numbers:
            label = f"{name}[{','.join(map(str, place))}]" if place else name
            found.append(Field(label, Fraction(value), _tolerance(value)))
    return tuple(found)


def _tolerance(value: Any) -> Fraction:
    """Half a unit of the last of five digits for a rounded number, nothing for an exact one."""
    if isinstance(value, int | Fraction) or not value:
        return Fraction(0)
    return abs(Fraction(value)) / 10 ** (_DIGITS - 1)


def right_options(asked: Asked, answer: Answer | None) -> tuple[str, ...]:
    """The labels of the options that the answer chooses; empty where the question has none."""
    if answer is None or not asked.options:
        return ()
    chosen = answer.value if isinstance(answer.value, list | tuple) else (answer.value, answer.text)
    by_label = tuple(option.label for option in asked.options if option.label in chosen)
    return by_label or tuple(option.label for option in asked.options if option.text.strip("`$ ") == answer.text)


def identifier(exercise: Exercise, asked: Asked | None = None) -> str:
    """A name that no other question has."""
    name, seed = exercise.label or "exercise", ""
    if isinstance(exercise, BankExercise):
        name, seed = exercise.name, "-printed" if exercise.seed is None else f"-{exercise.seed}"
    letters = "" if asked is None else "-" + "".join(sign for sign in asked.label.lower() if sign.isalnum())
    return f"{name}{seed}{letters}"


def as_dict(exercise: Exercise, asked: Asked) -> dict[str, Any]:
    """One question as plain values: what is asked, the answer, its steps, hints, and known mistakes."""
    from .checking import planted

    with remembering():
        solved = solve_part(exercise, asked)
        mistaken = {name: planted(exercise, asked, name) for name in asked.mistakes}
    bank = isinstance(exercise, BankExercise)
    hints, record = (exercise.hints.get(asked.label, ()), exercise.record) if bank else ((), exercise)
    return {
        "id": identifier(exercise, asked),
        "title": exercise.title,
        "statement": exercise.text,
        "question": asked.text,
        "points": points_of(exercise, asked),
        "options": {option.label: option.text for option in asked.options},
        "hints": list(hints),
        "mistakes": [{"name": name, "answer": each.text} for name, each in mistaken.items() if each is not None],
        **solved.as_dict(),
        "exercise": record.model_dump(mode="json", exclude_defaults=True),
    }


def _jsonl(exercises: Sequence[Exercise]) -> Files:
    lines = (json.dumps(as_dict(each, asked), ensure_ascii=False) for each in exercises for asked in each.asked)
    return {"exercises.jsonl": "".join(f"{line}\n" for line in lines).encode()}


def _moodle(exercises: Sequence[Exercise]) -> Files:
    quiz = _node("quiz")
    for exercise in exercises:
        place = _node("text", f"$course$/top/qkv/{identifier(exercise)}")
        quiz.append(_node("question", _node("category", place), type="category"))
        quiz.extend(_moodle_question(exercise, solve_part(exercise, asked)) for asked in exercise.asked)
    return {"moodle.xml": _written(quiz)}


def _moodle_question(exercise: Exercise, solved: Solved) -> Xml.Element:
    asked, numbers = solved.asked, fields(solved.answer)
    right = right_options(asked, solved.answer)
    kind = "multichoice" if right else "cloze" if numbers else "essay"
    blanks = _moodle_blanks(numbers) if kind == "cloze" else ""
    solution = _solution(exercise, solved)
    # A cloze question takes its marks from its blanks.
    settings = {} if kind == "cloze" else {"defaultgrade": f"{points_of(exercise, asked)}.0"}
    settings |= {"penalty": "0.3333333", "hidden": "0", "idnumber": identifier(exercise, asked)}
    inside: list[Xml.Element] = []
    if right:
        settings |= {"single": str(not asked.several).lower(), "shuffleanswers": "0", "answernumbering": "none"}
        # What is right adds up to everything, and taking all takes everything away again.
        wrong = -100 / max(len(asked.options) - len(right), 1) if asked.several else 0
        for option in asked.options:
            share = _share(100 / len(right) if option.label in right else wrong, 5)
            text = _node("text", f"<p>{_option_html(exercise, asked, option)}</p>")
            inside.append(_node("answer", text, fraction=share, format="html"))
    elif kind == "essay":
        settings |= {
            "responseformat": "editor",
            "responserequired": "1",
            "responsefieldlines": "10",
            "attachments": "0",
        }
        inside += [_html("graderinfo", solution), _html("responsetemplate", "")]
    hints = exercise.hints[asked.label] if isinstance(exercise, BankExercise) else ()
    return _node(
        "question",
        _node("name", _node("text", f"{title(exercise)} ({asked.label})")),
        _html("questiontext", _question_html(exercise, asked) + blanks),
        _html("generalfeedback", solution),
        *(_node(name, value) for name, value in settings.items()),
        *inside,
        *(_html("hint", f"<p>{inline(spoken(hint, symbols_of(exercise)))}</p>") for hint in hints),
        type=kind,
    )


def _moodle_blanks(numbers: Sequence[Field]) -> str:
    blanks = []
    for field in numbers:
        tolerance = field.tolerance or Fraction(0 if field.value.denominator == 1 else "1/1000")
        blank = f"{{1:NUMERICAL:={decimal(field.value)}:{decimal(tolerance)}}}"
        blanks.append(f"{field.label} = {blank}" if field.label else blank)
    return f"\n<p>{'<br/>'.join(blanks)}</p>"


def _qti(exercises: Sequence[Exercise]) -> Files:
    """A zip with a manifest and an assessment an exercise; the same exercises give the same bytes."""
    files = {f"{identifier(each)}/{identifier(each)}.xml": _assessment(each) for each in exercises}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in {"imsmanifest.xml": _manifest(list(files)), **files}.items():
            package.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return {"qti.zip": whole.getvalue()}


def _assessment(exercise: Exercise) -> bytes:
    items = (_item(exercise, solve_part(exercise, asked)) for asked in exercise.asked)
    section = _node("section", *items, ident="root_section")
    made = _node("assessment", section, ident=identifier(exercise), title=title(exercise))
    return _written(_node("questestinterop", made, xmlns=_ASI))


def _item(exercise: Exercise, solved: Solved) -> Xml.Element:
    asked, numbers = solved.asked, fields(solved.answer)
    right = right_options(asked, solved.answer)
    # Canvas compares blanks as texts, which suits whole numbers and nothing else.
    whole = numbers and all(field.value.denominator == 1 and not field.tolerance for field in numbers)
    kind = ("multiple_answers" if asked.several else "multiple_choice") if right else (
        "numerical" if len(numbers) == 1 else "fill_in_multiple_blanks" if whole else "essay")  # fmt: skip
    data = {"question_type": f"{kind}_question", "points_possible": f"{points_of(exercise, asked)}.0"}
    details = (_node("qtimetadatafield", _node("fieldlabel", name), _node("fieldentry", entry))
               for name, entry in data.items())  # fmt: skip
    blanks = "<br/>".join(f"{each.label} = [blank{n}]" for n, each in enumerate(numbers, 1))
    shown = _question_html(exercise, asked) + (f"<p>{blanks}</p>" if kind.startswith("fill") else "")
    if right:
        inputs, conditions = _choice(exercise, asked, right)
    elif kind.startswith("fill"):
        inputs, conditions = _blanks(numbers)
    elif kind == "numerical":
        inputs, conditions = [_response(fibtype="Decimal")], [_points_if(_close_to(numbers[0]))]
    else:
        other = _node("respcondition", _node("conditionvar", _node("other")), **{"continue": "No"})
        inputs, conditions = [_response()], [other]
    score = _node("decvar", maxvalue="100", minvalue="0", varname="SCORE", vartype="Decimal")
    feedback = _node("flow_mat", _material(_solution(exercise, solved)))
    return _node(
        "item",
        _node("itemmetadata", _node("qtimetadata", *details)),
        _node("presentation", _material(shown), *inputs),
        _node("resprocessing", _node("outcomes", score), *conditions),
        _node("itemfeedback", feedback, ident="general_fb"),
        ident=identifier(exercise, asked),
        title=f"{title(exercise)} ({asked.label})",
    )


def _choice(exercise: Exercise, asked: Asked, right: Sequence[str]) -> tuple[list[Xml.Element], list[Xml.Element]]:
    labels = (_node("response_label", _material(_option_html(exercise, asked, option)), ident=option.label)
              for option in asked.options)  # fmt: skip
    many = "Multiple" if asked.several else "Single"
    response = _node("response_lid", _node("render_choice", *labels), ident="response1", rcardinality=many)
    wanted = [_equal(option.label) if option.label in right else _node("not", _equal(option.label))
              for option in asked.options if asked.several or option.label in right]  # fmt: skip
    return [response], [_points_if(_node("and", *wanted) if asked.several else wanted[0])]


def _close_to(field: Field) -> Xml.Element:
    low, high = field.value - field.tolerance, field.value + field.tolerance
    between = _node("and", _equal(decimal(low), sign="vargte"), _equal(decimal(high), sign="varlte"))
    return _node("or", _equal(decimal(field.value)), between)


def _blanks(numbers: Sequence[Field]) -> tuple[list[Xml.Element], list[Xml.Element]]:
    inputs, conditions = [], []
    for place, field in enumerate(numbers, 1):
        ident, answer = f"response_blank{place}", f"answer{place}"
        label = _node("response_label", _material(decimal(field.value), "text/plain"), ident=answer)
        name = _material(f"blank{place}", "text/plain")
        inputs.append(_node("response_lid", name, _node("render_choice", label), ident=ident))
        conditions.append(_points_if(_equal(answer, ident), "Add", 100 / len(numbers)))
    return inputs, conditions


def _response(**attributes: str) -> Xml.Element:
    label = _node("response_label", ident="answer1", rshuffle="No")
    return _node("response_str", _node("render_fib", label, **attributes), ident="response1", rcardinality="Single")


def _equal(text: str, ident: str = "response1", sign: str = "varequal") -> Xml.Element:
    return _node(sign, text, respident=ident)


def _points_if(wanted: Xml.Element, action: str = "Set", share: float = 100) -> Xml.Element:
    """A condition under which points are given."""
    points = _node("setvar", _share(share, 4), action=action, varname="SCORE")
    goes_on = "No" if action == "Set" else "Yes"
    return _node("respcondition", _node("conditionvar", wanted), points, **{"continue": goes_on})


def _manifest(files: Sequence[str]) -> bytes:
    about = _node("metadata", _node("schema", "IMS Content"), _node("schemaversion", "1.1.3"))
    each = (_node("resource", _node("file", href=name), identifier=name.partition("/")[0], type="imsqti_xmlv1p2",
                  href=name) for name in files)  # fmt: skip
    made = (about, _node("organizations"), _node("resources", *each))
    return _written(_node("manifest", *made, identifier="qkv-bank", xmlns=_PACKAGE))


def _prairielearn(exercises: Sequence[Exercise]) -> Files:
    """A question folder for each family: info.json, question.html and server.py."""
    files: Files = {}
    text = tomllib.loads(resources("qkv.exercises").joinpath("prairielearn.toml").read_text(encoding="utf-8"))
    for name, exercise in {each.name: each for each in exercises if isinstance(each, BankExercise)}.items():
        info = {"uuid": str(uuid.uuid5(_SPACE, name)), "title": exercise.title, "topic": "Attention", "tags": ["qkv"],
                "type": "v3"}  # fmt: skip
        folder = f"questions/qkv/{name}"
        files[f"{folder}/info.json"] = (json.dumps(info, indent=2, ensure_ascii=False) + "\n").encode()
        files[f"{folder}/question.html"] = text["page"].encode()
        files[f"{folder}/server.py"] = text["server"].format(name=name).encode()
    return files


def generate(name: str, data: dict[str, Any]) -> None:
    """Fill a PrairieLearn question's data with the variant of its seed."""
    exercise = _variant(name, data)
    data["params"]["statement"] = fragment(statement_blocks(exercise))
    data["params"]["parts"] = [
        {"key": key_of(asked), "name": asked.label, "points": points_of(exercise, asked),
         "ask": fragment(question_blocks(exercise, asked))} for asked in exercise.asked
    ]  # fmt: skip
    data["params"]["solution"] = "\n".join(
        f"<p><strong>({asked.label})</strong></p>{_solution(exercise, solve_part(exercise, asked))}"
        for asked in exercise.asked
    )


def grade(name: str, data: dict[str, Any]) -> None:
    """Check what was submitted to PrairieLearn against the variant, part by part; reasons go into the feedback."""
    from .checking import check

    exercise = _variant(name, data)
    lines, gained = [], 0
    for asked in exercise.asked:
        outcome = check(exercise, asked.label, str(data["submitted_answers"].get(key_of(asked)) or ""))
        points = points_of(exercise, asked)
        gained += points if outcome else 0
        said = "right" if outcome else f"{outcome.kind}: {outcome.words(spoilers=False)}"
        lines.append(f"({asked.label}) {said}")
        data["partial_scores"][key_of(asked)] = {"score": float(bool(outcome)), "weight": points, "feedback": said}
    data["score"] = gained / sum(points_of(exercise, asked) for asked in exercise.asked)
    data["feedback"]["lines"] = lines


def key_of(asked: Asked) -> str:
    """The name of a question's input: letters alone."""
    return "part_" + "".join(sign for sign in asked.label.lower() if sign.isalnum())


def _variant(name: str, data: Mapping[str, Any]) -> BankExercise:
    return named(name, int(data["variant_seed"]) % _SEEDS)


FORMATS: dict[str, Callable[[Sequence[Exercise]], Files]] = {
    "moodle": _moodle, "qti": _qti, "prairielearn": _prairielearn, "jsonl": _jsonl}  # fmt: skip


def fragment(blocks: Iterable[d.Block]) -> str:
    r"""Blocks as HTML with LaTeX between \( and \), which learning platforms show with MathJax.

    >>> fragment([d.Paragraph(d.prose("the mean is $d$, not < it", {"d": "natural"}))])
    '<p>the mean is \\(d\\), not &lt; it</p>'
    """
    return "\n".join(map(_block, blocks))


def inline(words: d.Words) -> str:
    return "".join(map(_piece, d.inlines(words)))


def _question_html(exercise: Exercise, asked: Asked) -> str:
    """The statement and one question, to be shown alone; options are added by the platform."""
    return fragment([*statement_blocks(exercise), *question_blocks(exercise, asked, options=False)])


def _solution(exercise: Exercise, solved: Solved) -> str:
    return fragment(_worked(exercise, solved))


def _option_html(exercise: Exercise, asked: Asked, option: Option) -> str:
    return f"({option.label}) {inline(option_words(exercise, asked, option))}"


def _latex(maths: d.Maths) -> str | None:
    from ..render.layout import latex_source

    node = maths.tree()
    return None if node is None else escape(latex_source(node, maths.labels))


def _piece(piece: d.Inline) -> str:
    if isinstance(piece, d.Maths):
        source = _latex(piece)
        return rf"\({source}\)" if source is not None else tag("code", escape(piece.text()))
    # A text that holds MathJax's own marks is shown and not set.
    text = escape(piece.text).replace("\\(", "\\&#8288;(").replace("\\[", "\\&#8288;[").replace("$$", "$&#8288;$")
    names = {"strong": "strong", "emphasis": "em", "code": "code"}
    return tag(names[piece.style], text) if piece.style else text


def _block(block: d.Block) -> str:
    from ..render.steps import blocks as shown

    match block:
        case d.Paragraph(words=words):
            return tag("p", inline(words))
        case d.Formula(maths=maths, more=()) if (source := _latex(maths)) is not None:
            return tag("p", rf"\[{source}\]")
        case d.Formula():
            return tag("p", ", ".join(map(_piece, block.all)))
        case d.Derivation():
            return fragment(shown(block))
        case d.Lines(lines=lines):
            written = (f"{escape(line.relation)} {inline(line.maths)} {inline(line.reason)}".strip() for line in lines)
            return tag("p", "<br/>".join(written))
        case d.Items(items=items, ordered=ordered):
            return tag("ol" if ordered else "ul", *(tag("li", inline(item)) for item in items), "")
        case d.Code(text=text):
            return tag("pre", escape(text))
        case d.Note(title=words, blocks=inside):
            return tag("div", tag("p", tag("strong", inline(words))), fragment(inside))
        case _:
            raise OptionTypeError(complaint("block", type(block).__name__, "one that a question or a solution has"))


def decimal(value: Fraction) -> str:
    """A number as platforms read it.

    >>> decimal(Fraction(-7, 4)), decimal(Fraction(3)), decimal(Fraction(690, 10**15))
    ('-1.75', '3', '6.9e-13')
    """
    return str(int(value)) if value.denominator == 1 else f"{float(value):.12g}"


def _share(share: float, digits: int) -> str:
    return f"{share:.{digits}f}".rstrip("0").rstrip(".")


def _node(name: str, *inside: Xml.Element | str, **attributes: str) -> Xml.Element:
    """An element with its text or its children."""
    made = Xml.Element(name, attributes)
    made.extend(each for each in inside if not isinstance(each, str))
    made.text = next((each for each in inside if isinstance(each, str)), None)
    return made


def _html(name: str, text: str) -> Xml.Element:
    return _node(name, _node("text", text), format="html")


def _material(text: str, kind: str = "text/html") -> Xml.Element:
    return _node("material", _node("mattext", text, texttype=kind))


def _written(root: Xml.Element) -> bytes:
    Xml.indent(root)
    return Xml.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
