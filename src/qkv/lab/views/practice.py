"""Practice: a question of the bank, an answer judged while it is typed, hints and the worked solution."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...errors import complaint
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
    from .practice_preview import preview

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
    from ...maths.counterexample import written

    judged = {"": outcome, **outcome.items}
    found = []
    for name, each in judged.items():
        point = None if each.verdict is None else each.verdict.counterexample
        if point is not None and point.point:
            right = written(point.gold) if told else None
            found.append({"of": name, "where": point.where, "yours": written(point.answer), "right": right})
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
    from ..blocks import blocks_html
    from .practice_preview import preview

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
