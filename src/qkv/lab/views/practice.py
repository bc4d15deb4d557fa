"""Practice: a question of the bank, an answer judged while it is typed, hints and the worked solution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...errors import MathsError, complaint
from ...maths import parse
from ...maths.comparison.verdict import final_value
from ...maths.parsing.parse import tokens
from ...maths.tree import Shape, free_indices
from ...maths.types import declare
from ...problems import Outcome, Part, Problem
from ...problems.discreet import told_less
from ...problems.judging.answers import Value, Values
from ...problems.printing.documents import spoken
from ...render import document as d
from ...render.to_text import plain, pretty
from ..fields import Choice, Flag, Number, State, Words, WrongField
from ..view import Result, View, Work

if TYPE_CHECKING:
    from ...problems import Outcome, Part, Problem
    from ...render import Block

# The bank's names and titles: its families take a third of a second to load, and a page's menu cannot wait for them.
TITLES = {
    "by-hand": "Queries, keys and values by hand",
    "scaling": "Justifying scaled dot-product attention: the mean is a vector",
    "scaling-scalar": "Justifying scaled dot-product attention: the mean is a number",
    "argmax": "Argmax attention",
    "decoding": "Decoding with one set of keys for all heads",
    "kernels": "Kernelised linear attention",
    "saturation": "Scaled dot-product attention: why, and what if not",
    "heads": "Many heads: reach, masks and cost",
    "norms": "What normalisation looks at, and what it leaves",
}
HINTS = 3
LAST_SEED = 2**31
QUICK = 160  # characters of an answer that are judged at once; a longer one may take seconds
# So may the mean of what is no polynomial, which is added up over many values.
_COSTLY = re.compile(r"(?:E|Var|Cov|var|cov)\b.*(?:exp|e\s*\^|softmax|log|ln|sqrt|√|abs|\||frac|/)", re.DOTALL)
SAID = {
    "right": "Right.",
    "conditional": "Right only under a condition.",
    "incomplete": "Right as far as it goes, and not all of it.",
    "wrong": "Not right.",
    "unread": "This could not be read as an answer.",
}
SHORTLY = {
    "right": "right",
    "conditional": "right only under a condition",
    "incomplete": "not all of it",
    "wrong": "not right",
    "unread": "missing or not read",
}

FIELDS = (
    Words(name="answer", label="Answer", group="Your answer", longest=2000, lines=3,
          help="LaTeX, plain text or words. It is judged while you type."),
    Choice(name="problem", label="Problem", group="Question", options=TITLES, default="scaling"),
    Choice(name="numbers", label="Numbers", group="Question", default="documents",
           options={"documents": "as in the documents", "fresh": "fresh ones, by a seed"}),
    Number(name="seed", label="Seed", group="Question", low=0, high=LAST_SEED, default=0, whole=True, slider=False,
           help="The same seed gives the same numbers."),
    Words(name="part", label="Part", group="Question", longest=20, help="Its letter; empty is the first."),
    Number(name="hint", label="Hints", group="Help", low=0, high=HINTS, default=0, whole=True, slider=False,
           help="1 is a nudge, 3 is nearly the answer."),
    Flag(name="solution", label="Show the solution", group="Help"),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    from ...render.to_text import in_text

    problem, part = _asked(state)
    work.say("judging the answer")
    answer, shown = state["answer"], state["solution"]
    outcome = _outcome(problem.name, problem.seed, part.name, answer)
    read = preview(problem, part, answer, outcome)
    symbols = {**problem.symbols, **part.symbols}
    return {
        "problem": problem.name,
        "title": problem.title,
        "seed": problem.seed,
        "parts": [_about(each) for each in problem.parts],
        "part": _about(part),
        "place": problem.parts.index(part) + 1,
        "parts_in_all": len(problem.parts),
        "question": _markdown(_question(problem, part)),
        "preview": {"kind": read.kind, "text": read.text, "reason": read.reason},
        "outcome": None if outcome is None else _judged(outcome, part, shown),
        "explanation": in_text(part.explanation, symbols) if outcome and not shown else "",
        "hints": [in_text(each, symbols) for each in part.hints[: state["hint"]]],
        "hints_given": state["hint"],
        "most_hints": HINTS,
        "solution": _markdown(_worked(problem, part)) if shown else "",
        "next": _next(state, problem, part),
    }


def _asked(state: State) -> tuple[Problem, Part]:
    """The problem and the part that are meant; an empty part is the first."""
    from ...problems.problem import plain_name

    problem = _problem(state["problem"], state["seed"] if state["numbers"] == "fresh" else None)
    wanted = plain_name(state["part"])
    if not state["part"].strip():
        return problem, problem.parts[0]
    for part in problem.parts:
        if plain_name(part.name) == wanted:
            return problem, part
    hint = f"{problem.name} has the parts {', '.join(part.name for part in problem.parts)}"
    raise WrongField("part", complaint("part", repr(state["part"]), "a part of the problem", hint))


@lru_cache(maxsize=64)
def _problem(name: str, seed: int | None) -> Problem:
    from ...problems import named

    return named(name, seed)


@lru_cache(maxsize=16)
def _outcome(name: str, seed: int | None, part: str, answer: str) -> Outcome | None:
    """What becomes of an answer, judged once for the words and the pictures."""
    return _problem(name, seed).check(part, answer) if answer.strip() else None


def _about(part: Part) -> dict[str, Any]:
    from ...problems.printing.documents import letter_of

    return {"name": part.name, "letter": letter_of(part), "points": part.points}


def _judged(outcome: Outcome, part: Part, shown: bool) -> dict[str, Any]:
    """What is said of an answer; what it should have been only where it is right, or the solution is shown anyway."""
    from ...problems import MISCONCEPTIONS

    told = bool(outcome) or shown
    mistakes = [(name, MISCONCEPTIONS.get(name)) for name in outcome.misconceptions]
    return {
        "kind": outcome.kind,
        "said": SAID[outcome.kind],
        "reason": _why(outcome, part, told),
        "condition": outcome.condition,
        "misconceptions": [
            {"name": name, "told": "" if known is None else known.right if told else known.question}
            for name, known in mistakes
        ],
        "counterexamples": list(_counterexamples(outcome, told)),
        "items": [
            {"name": name, "kind": item.kind, "said": SHORTLY["right"] if item else _why(item, part, told)}
            for name, item in outcome.items.items()
        ],
    }


def _why(outcome: Outcome, part: Part, told: bool) -> str:
    from ...problems.discreet import discreet_reason

    return outcome.reason if told else discreet_reason(outcome, part)


def _counterexamples(outcome: Outcome, told: bool) -> list[dict[str, Any]]:
    """Where an answer differs from the right one, and what it gives there."""
    from ...maths.comparison.counterexample import value_text

    judged = {"": outcome, **outcome.items}
    found = []
    for name, each in judged.items():
        point = None if each.verdict is None else each.verdict.counterexample
        if point is not None and point.point:
            right = value_text(point.gold) if told else None
            found.append({"of": name, "where": point.where, "yours": value_text(point.answer), "right": right})
    return found


def _next(state: State, problem: Problem, part: Part) -> dict[str, Any]:
    """Where to go on: the next part or else the next problem, and a variant that was not seen."""
    names = [each.name for each in problem.parts]
    place = names.index(part.name) + 1
    problems = list(TITLES)
    after = problems[(problems.index(problem.name) + 1) % len(problems)]
    seed = state["seed"] + (state["numbers"] == "fresh")
    return {"part": names[place] if place < len(names) else None, "problem": after, "seed": seed % (LAST_SEED + 1)}


def _question(problem: Problem, part: Part) -> list[Block]:
    from ...problems.printing.documents import labelled, question

    return [*labelled(problem.statement), *question(problem, part)]


def _worked(problem: Problem, part: Part) -> list[Block]:
    from ...problems import Solved
    from ...problems.printing.documents import worked_part

    return list(worked_part(problem, Solved(part, part.steps(), part.answer.text)))


def _markdown(blocks: list[Block]) -> str:
    from ...render import Document, Figure, markdown

    told = tuple(block for block in blocks if not isinstance(block, Figure))
    return markdown(Document("", told)).removeprefix("# ").strip()


def pictures(state: State, result: Result) -> dict[str, str]:
    from ...problems.printing.documents import said
    from ...render import Items, Paragraph
    from ..markup import blocks_html

    problem, part = _asked(state)
    outcome = _outcome(problem.name, problem.seed, part.name, state["answer"])
    hints = tuple(said(each, problem, part) for each in part.hints[: state["hint"]])
    drawn: dict[str, list[Block]] = {
        "question": _question(problem, part),
        "preview": list(preview(problem, part, state["answer"], outcome).blocks),
        "hints": [Items(hints, ordered=True)] if hints else [],
        "explanation": [Paragraph(said(part.explanation, problem, part))] if result["explanation"] else [],
        "solution": _worked(problem, part) if state["solution"] else [],
    }
    return {name: blocks_html(blocks) for name, blocks in drawn.items()}


def python(state: State) -> str:
    _, part = _asked(state)
    seed = f", {state['seed']}" if state["numbers"] == "fresh" else ""
    lines = [
        "from qkv import problems",
        "",
        f"problem = problems.named({state['problem']!r}{seed})",
        f"part = problem.part({part.name!r})",
        "print(part.name, part.points)",
    ]
    if state["answer"].strip():
        lines += [
            f"outcome = part.check({state['answer']!r})",
            "print(outcome.kind, *outcome.misconceptions, sep='; ')",
        ]
    lines += [f"print(part.hints[{place}])" for place in range(state["hint"])]
    if state["solution"]:
        lines += [
            "for step in part.steps():",
            "    print(step.what, *step.chain, sep='\\n    ')",
            "print(part.answer.text)",
        ]
    return "\n".join(lines) + "\n"


def _texts(*names: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**{name: {"type": "string"} for name in names}, **more},
        "required": [*names, *more],
    }


_PART = _texts("name", "letter", points={"type": "integer"})
_OUTCOME = _texts(
    "kind",
    "said",
    "reason",
    condition={"type": ["string", "null"]},
    misconceptions={"type": "array", "items": _texts("name", "told")},
    counterexamples={"type": "array", "items": _texts("of", "where", "yours", right={"type": ["string", "null"]})},
    items={"type": "array", "items": _texts("name", "kind", "said")},
)


MOST_LINES = 40  # of an answer that are read back
_FORMULA = re.compile(r"[\\^_=+*/]|O\(|\d")  # what words do not have


@dataclass(frozen=True)
class Preview:
    """`kind`: "nothing", "formula", "words" or "unread".

    `reason` says why an answer does not fit the question's symbols; it is drawn all the same where it can be.
    """

    kind: str
    blocks: tuple[d.Block, ...] = ()
    reason: str = ""

    @property
    def text(self) -> str:
        """What was read, on lines of Unicode."""
        return "\n".join(_said(words) for block in self.blocks for words in _words(block))


def preview(problem: Problem, part: Part, answer: str, outcome: Outcome | None) -> Preview:
    """The formula that was judged, where one was; else the answer with its formulas."""
    if outcome is None:
        return Preview("nothing")
    if isinstance(part.answer, Value) and outcome.verdict is not None:
        return _formula(part.answer, outcome.verdict.answer)
    if isinstance(part.answer, Values):
        return _pieces(part.answer, answer, outcome)
    symbols = {**problem.symbols, **part.symbols, **getattr(part.answer, "symbols", {})}
    lines = [_line(line, symbols) for line in answer.splitlines()[:MOST_LINES] if line.strip()]
    drawn = any(isinstance(piece, d.Maths) and piece.tree() is not None for line in lines for piece in line)
    return Preview("formula" if drawn else "words", tuple(map(d.Paragraph, lines)))


def _formula(value: Value, judged: str) -> Preview:
    found = _read(judged, value)
    if isinstance(found, d.Maths):
        return Preview("formula", (d.Formula(found),))
    loosely = spoken(f"${judged.strip()}$", value.symbols)
    if len(loosely) == 1 and isinstance(loosely[0], d.Maths) and loosely[0].tree() is not None:
        if _alike(judged.strip(), value.symbols, loosely[0].symbols):
            return Preview("formula", (d.Formula(loosely[0]),), found)
        return Preview("words", (d.Paragraph((d.Text(judged.strip(), "code"),)),), found)
    return Preview("unread", reason=found)


def _alike(text: str, symbols: Mapping[str, str], loose: Mapping[str, str]) -> bool:
    """Whether a text that was drawn with every letter as a number has the signs that were judged.

    The transpose of a number is not drawn, and a^Ta has another power where T is a name.
    """
    try:
        judged, drawn = (tokens(text, types.types, types.maps) for types in map(declare, (symbols, loose)))
    except MathsError:
        return False
    turned = any(token.type == "TOP" or token == "T" for token in judged)
    return not turned and list(map(str, judged)) == list(map(str, drawn))


def _pieces(values: Values, answer: str, outcome: Outcome) -> Preview:
    lines: list[d.Block] = []
    drawn = False
    for name, text in values.read(answer).items():
        value, item = values.items[name], outcome.items.get(name)
        judged = text if item is None or item.verdict is None else item.verdict.answer
        found = _read(judged, value) if isinstance(value, Value) else text
        drawn = drawn or isinstance(found, d.Maths)
        said = found if isinstance(found, d.Maths) else d.Text(text.strip(), "code")
        lines.append(d.Paragraph((d.Text(f"{pretty(name)} = "), said)))
    if not lines:
        return Preview("unread", reason=f"no piece could be found; write {', '.join(values.items)} each with its value")
    return Preview("formula" if drawn else "words", tuple(lines[:MOST_LINES]))


def _read(text: str, value: Value) -> d.Maths | str:
    """A formula as it is compared with the right one, or why it cannot be."""
    shape, free = _wanted(value)
    try:
        formula = d.Maths(parse(text, value.symbols, expected=shape, free=free))
    except MathsError as error:
        return told_less(error.reason)
    return formula if formula.tree() is not None else "it is too deep to be drawn"


def _wanted(value: Value) -> tuple[Shape | None, tuple[str, ...]]:
    try:
        gold = parse(value.gold, value.symbols)
    except MathsError:
        return None, ()
    wanted = final_value(gold)
    return wanted.shape, tuple(free_indices(wanted))


def _line(line: str, symbols: dict[str, str]) -> tuple[d.Inline, ...]:
    whole = d.Maths(line.strip().strip("$").strip(), symbols)
    if "$" not in line.strip().strip("$") and _FORMULA.search(line) and whole.tree() is not None:
        return (whole,)
    return spoken(line, symbols)


def _words(block: d.Block) -> tuple[d.Words, ...]:
    if isinstance(block, d.Formula):
        return block.all
    return (block.words,) if isinstance(block, d.Paragraph) else ()


def _said(words: d.Words) -> str:
    pieces = d.inlines(words)
    return "".join(pretty(plain(piece)) if isinstance(piece, d.Maths) else piece.text for piece in pieces)


VIEW = View(
    name="practice",
    title="Practice",
    verb="teach",
    lead="Answer a question of the problem bank in LaTeX or plain text: it is judged as you type.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        "problem": {"type": "string"},
        "title": {"type": "string"},
        "seed": {"type": ["integer", "null"]},
        "parts": {"type": "array", "items": _PART},
        "part": _PART,
        "place": {"type": "integer"},
        "parts_in_all": {"type": "integer"},
        "question": {"type": "string"},
        "preview": _texts("kind", "text", "reason"),
        "outcome": {"anyOf": [_OUTCOME, {"type": "null"}]},
        "explanation": {"type": "string"},
        "hints": {"type": "array", "items": {"type": "string"}},
        "hints_given": {"type": "integer"},
        "most_hints": {"type": "integer"},
        "solution": {"type": "string"},
        "next": _texts("problem", part={"type": ["string", "null"]}, seed={"type": "integer"}),
    },
    heavy=lambda state: len(state["answer"]) > QUICK or _COSTLY.search(state["answer"]) is not None,
    seconds=8.0,
    scripts=("views/practice.js",),
)
