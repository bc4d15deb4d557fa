"""Solve: an exercise in words, what was understood of it as a record that can be edited, and its worked solution."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

from ...errors import QkvError, complaint
from ...render import document as d
from ..fields import Flag, State, Words, WrongField
from ..view import Result, View, Work
from .practice_judging import MAYBE, OUTCOME, PRINTED, judged, listed, markdown, preview, texts
from .practice_links import links

if TYPE_CHECKING:
    from ...exercises import Asked, Exercise, Solved
    from ...exercises.outcome import Outcome
    from ...exercises.sheets.reading import Reading

LONGEST, LONGEST_RECORD = 6000, 20_000  # characters
EXAMPLE = (
    "Let Q = [[1, 0], [0, 2]], K = [[1, 1], [0, 1], [3, 0]] and V = [[1], [2], [3]]. "
    "Compute the attention output, with scores divided by sqrt(d)."
)
FIELDS = (
    Words(name="question", label="The exercise", default=EXAMPLE, longest=LONGEST, lines=4, drop=".txt,.md,.tex",
          help="In words, with its numbers; parts as (a), (b). It is read here and sent nowhere."),
    Words(name="part", label="Part", longest=20, help="Its letter; empty is the first."),
    Words(name="answer", label="Your answer, to be checked", longest=2000, lines=2,
          help="The solution is hidden meanwhile."),
    Flag(name="solution", label="Show the solution all the same"),
    Words(name="record", label="The record, where it was edited", longest=LONGEST_RECORD, lines=5,
          help="JSON, as `qkv solve --record` prints it. Empty: as it was understood."),
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A question of the text under the name that chooses it; `asked` is None where none was found."""

    name: str
    reading: Reading
    asked: Asked | None


@dataclass(frozen=True)
class Now:
    """What the fields say: the parts, the one that is shown, its record, and what became of them."""

    parts: tuple[Part, ...]
    part: Part | None  # None for a record without a text
    exercise: Exercise  # with the one question
    edited: bool
    solved: Solved | None
    outcome: Outcome | None

    @property
    def symbols(self) -> dict[str, str]:
        from ...exercises.printing import symbols_of

        return symbols_of(self.exercise)

    @property
    def findings(self) -> tuple[str, ...]:
        if self.edited or self.part is None:
            return ()
        return tuple(finding.words() for finding in self.part.reading.findings)

    def preview(self, answer: str) -> Any:
        return preview(self.outcome, None if self.solved is None else self.solved.answer, self.symbols, answer)


def compute(state: State, work: Work) -> Result:
    work.say("reading the exercise")
    now = _now(state["question"].strip(), state["part"], state["record"].strip(), state["answer"].strip())
    told = _told(state)
    answer = None if now.solved is None else now.solved.answer
    read = now.preview(state["answer"])
    return {
        "parts": [{"name": part.name, "solvable": part.reading.understood} for part in now.parts],
        "part": "" if now.part is None else now.part.name,
        "place": 1 + (now.parts.index(now.part) if now.part else 0),
        "parts_in_all": max(len(now.parts), 1),
        "edited": now.edited,
        "record": _record(now.exercise),
        "understood": [{"name": name, "words": words} for name, words in now.exercise.understood() if words],
        "findings": list(now.findings),
        "links": links(now.exercise),
        "answer": answer.text if answer is not None and told else None,
        "refusal": None if now.solved is None or now.solved.refusal is None else now.solved.refusal.words(),
        "solution": markdown(_worked(now)) if told else "",
        "told": told,
        "preview": {"kind": read.kind, "text": read.text},
        "outcome": None if now.outcome is None else judged(now.outcome, told or bool(now.outcome)),
    }


def _told(state: State) -> bool:
    """An exercise is pasted to see its solution, unless an answer is to be judged first."""
    return state["solution"] or not state["answer"].strip()


@lru_cache(maxsize=32)
def _now(question: str, name: str, record: str, answer: str) -> Now:
    from ...exercises.solving import Solved, solve_part

    parts = _parts(question)
    part = _chosen(name, parts) if parts else None
    if record:
        exercise = _edited(record)
    elif part is not None:
        exercise = part.reading.exercise.model_copy(update={"asked": (part.asked,) if part.asked else ()})
    else:
        raise WrongField("question", complaint("question", "nothing", "an exercise in words"))
    solved = None
    if exercise.asked and (record or part is None):
        solved = solve_part(exercise, exercise.asked[0])
    elif part is not None and part.asked is not None and part.reading.understood:
        solved = part.reading.solve().parts[part.reading.exercise.asked.index(part.asked)]
    elif part is not None and part.asked is not None and part.reading.findings:
        solved = Solved(part.asked, refusal=part.reading.findings[0])
    return Now(parts, part, exercise, bool(record), solved, _outcome(exercise, solved, answer))


@lru_cache(maxsize=16)
def _parts(question: str) -> tuple[Part, ...]:
    from ...exercises.sheets.reading import read_sheet

    # The end of a line makes it a text: a name that is typed opens no file.
    readings = read_sheet(f"{question}\n") if question else []
    pairs = [(reading, asked) for reading in readings for asked in (reading.exercise.asked or (None,))]
    labels = [asked.label if asked else reading.exercise.label for reading, asked in pairs]
    names = labels if len(set(labels)) == len(labels) else [str(place) for place in range(1, len(pairs) + 1)]
    return tuple(Part(name, reading, asked) for name, (reading, asked) in zip(names, pairs, strict=True))


def _chosen(name: str, parts: tuple[Part, ...]) -> Part:
    from ...exercises.record import plain_label

    if not name.strip():
        return next((part for part in parts if part.reading.understood), parts[0])
    for part in parts:
        if plain_label(part.name) == plain_label(name):
            return part
    there = ", ".join(part.name or "(no label)" for part in parts)
    raise WrongField("part", complaint("part", repr(name), "a part of the exercise", f"there are {there}"))


def _edited(record: str) -> Exercise:
    from ...exercises import Exercise

    try:
        found = Exercise.from_text(record)
    except QkvError as error:
        raise WrongField("record", str(error)) from None
    return found.model_copy(update={"asked": found.asked[:1]})


def _record(exercise: Exercise) -> dict[str, Any]:
    """The record as plain values, without the places in the text that they were read from."""
    return _without_spans(exercise.model_dump(mode="json", exclude_defaults=True))


def _without_spans(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_spans(each) for name, each in value.items() if name != "span"}
    return [_without_spans(each) for each in value] if isinstance(value, list) else value


def _outcome(exercise: Exercise, solved: Solved | None, answer: str) -> Outcome | None:
    from ...exercises.checking import check
    from ...exercises.outcome import unread

    if not answer:
        return None
    if solved is None or solved.answer is None:
        return unread("unsolved", why="" if solved is None or solved.refusal is None else solved.refusal.words())
    return check(exercise, solved.asked.label, answer, gold=solved.answer)


def _worked(now: Now) -> list[d.Block]:
    from ...exercises.printing import worked_blocks

    return [] if now.solved is None else list(worked_blocks(now.exercise, now.solved))


def pictures(state: State, result: Result) -> dict[str, str]:
    from ..markup import blocks_html

    now = _now(state["question"].strip(), state["part"], state["record"].strip(), state["answer"].strip())
    return {
        "preview": blocks_html(now.preview(state["answer"]).blocks),
        "solution": blocks_html(_worked(now)) if result["told"] else "",
        "choices": _choices(),
    }


@lru_cache(maxsize=1)
def _choices() -> str:
    """What a record may have: lists that its inputs offer, and a menu of what can be added, each with a first value."""
    from html import escape

    from ...exercises import record, solving

    added: dict[str, Any] = {"givens": {"role": "other"}}
    for name, field in record.Structure.model_fields.items():
        kinds = [each for kind in get_args(field.annotation) for each in get_args(kind) or (kind,)]
        first = {"similarity": "argmax", "mask": "causal"}.get(name) or kinds[0]
        added[f"structure.{name}"] = {bool: True, int: 1}.get(first, first)
    for name in get_args(record.ConventionName):
        added[f"conventions.{name}"] = {"source": "missing"}
    menu = [f'<option value="{name}" data-value="{escape(json.dumps(value))}">{name.replace("_", " ")}</option>'
            for name, value in added.items()]  # fmt: skip
    lists = {"roles": get_args(record.Role), "quantities": tuple(solving.quantities())}
    offered = [f'<datalist id="{name}">{"".join(f"<option>{each}</option>" for each in words)}</datalist>'
               for name, words in lists.items()]  # fmt: skip
    first = '<select id="record-add" aria-label="Add to the record"><option value="">Add …</option>'
    return "".join([*offered, first, *menu, "</select>"])


def python(state: State) -> str:
    question, answer = state["question"].strip(), state["answer"].strip()
    now = _now(question, state["part"], state["record"].strip(), answer)
    lines = ["from qkv.exercises import Exercise" if now.edited else "from qkv.exercises.sheets import read_sheet"]
    lines += ["from qkv.exercises.checking import check"] if answer else []
    lines += ["from qkv.exercises.solving import solve_part"] if now.edited else []
    lines.append("")
    place = 0
    if now.edited:
        lines += [f"exercise = Exercise.from_plain({_record(now.exercise)!r})"]
    elif now.part is not None:
        which = list(dict.fromkeys(id(part.reading) for part in now.parts)).index(id(now.part.reading))
        lines += [f"reading = read_sheet({question + chr(10)!r})[{which}]", "exercise = reading.exercise"]
        place = now.part.reading.exercise.asked.index(now.part.asked) if now.part.asked else 0
    lines.append("print(exercise)")
    if now.solved is None:
        return "\n".join(lines) + "\n"
    solve = f"reading.solve().parts[{place}]"
    lines.append(f"solved = {f'solve_part(exercise, exercise.asked[{place}])' if now.edited else solve}")
    if answer:
        lines += [f"outcome = check(exercise, solved.asked.label, {answer!r}, gold=solved.answer)",
                  "print(outcome.kind, *outcome.mistakes, sep='; ')"]  # fmt: skip
    return "\n".join([*lines, *(PRINTED if _told(state) else ())]) + "\n"


VIEW = View(
    name="solve",
    title="Solve",
    verb="teach",
    bar=("question",),
    simple="Paste an exercise: see how it was understood, correct that, and read the steps.",
    lead="An exercise in words becomes a record, and the record is solved with steps. Edit it: it is solved anew.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        "parts": listed(texts("name", solvable={"type": "boolean"})),
        **{key: {"type": "string"} for key in ("part", "solution")},
        **{key: {"type": "integer"} for key in ("place", "parts_in_all")},
        **{key: {"type": "boolean"} for key in ("edited", "told")},
        **dict.fromkeys(("answer", "refusal"), MAYBE),
        "record": {"type": "object"},
        "understood": listed(texts("name", words=listed({"type": "string"}))),
        "findings": listed({"type": "string"}),
        "links": listed(texts("view", "address")),
        "preview": texts("kind", "text"),
        "outcome": {"anyOf": [OUTCOME, {"type": "null"}]},
    },
    heavy=lambda state: state["question"] != EXAMPLE or bool(state["record"] or state["answer"]),
    seconds=8.0,
    scripts=("views/solve.js",),
)
