"""Practice: an exercise of the bank, an answer judged as it is typed, hints and the solution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ...render import document as d
from ...render.to_text import in_text
from ..fields import Choice, Flag, Number, State, Words, WrongField
from ..view import Result, View, Work
from .practice_judging import MAYBE, OUTCOME, PRINTED, is_costly, judged, listed, markdown, options, preview, texts
from .practice_links import links

if TYPE_CHECKING:
    from ...exercises import Asked, Exercise, Solved
    from ...exercises.bank import BankExercise
    from ...exercises.outcome import Outcome

# The names and titles of the bank: its families take a while to load, and a page's menu cannot wait for them.
TITLES = {
    "by-hand": "Queries, keys and values by hand",
    "scaling": "Justifying scaled dot-product attention: the mean is a vector",
    "scaling-scalar": "Justifying scaled dot-product attention: the mean is a number",
    "argmax": "Argmax attention",
    "module": "The blanks of a multi-head attention module",
    "values": "Wider values",
    "decoding": "Decoding with a cache of keys and values",
    "kernels": "Kernelised linear attention",
    "saturation": "Scaled dot-product attention: why, and what if not",
    "heads": "Many heads: reach, masks and cost",
    "norms": "What normalisation looks at, and what it leaves",
}
HINTS = 3
LAST_SEED = 2**31

FIELDS = (
    Words(name="answer", label="Your answer", longest=2000, lines=3,
          help="LaTeX, plain text or words. It is judged while you type."),
    Choice(name="exercise", label="Exercise", group="Question", default="scaling", options=TITLES),
    Choice(name="numbers", label="Numbers", group="Question", default="printed",
           options={"printed": "as first printed", "fresh": "fresh ones, by a seed"}),
    Number(name="seed", label="Seed", group="Question", low=0, high=LAST_SEED, default=0, whole=True, slider=False,
           help="The same seed gives the same numbers."),
    Words(name="part", label="Part", group="Question", longest=20, help="Its letter; empty is the first."),
    Number(name="hint", label="Hints", group="Help", low=0, high=HINTS, default=0, whole=True, slider=False,
           help="1 is a nudge, 3 is nearly the answer."),
    Flag(name="solution", label="Show the solution", group="Help"),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    work.say("judging the answer")
    now = _now(state)
    read = now.preview(state["answer"])
    return {
        "exercise": state["exercise"],
        "title": now.exercise.title,
        "seed": now.key.seed,
        "parts": [_about(now.exercise, asked) for asked in now.exercise.asked],
        "part": _about(now.exercise, now.asked),
        "place": now.exercise.asked.index(now.asked) + 1,
        "parts_in_all": len(now.exercise.asked),
        "links": links(now.exercise),
        "options": options(now.asked, state["answer"]),
        "question": markdown(_question(now)),
        "preview": {"kind": read.kind, "text": read.text},
        "outcome": None if now.outcome is None else judged(now.outcome, state["solution"] or bool(now.outcome)),
        "hints": [in_text(hint, now.symbols) for hint in now.hints],
        "hints_given": len(now.hints),
        "most_hints": HINTS,
        "solution": markdown(_worked(now)) if state["solution"] else "",
        "next": _next(state, now),
    }


class Key(NamedTuple):
    """An exercise: its name, and the seed of its numbers."""

    name: str
    seed: int | None


@dataclass(frozen=True)
class Now:
    """What the fields say: the exercise, the part that is asked, and what became of what was typed."""

    key: Key
    exercise: BankExercise
    asked: Asked
    solved: Solved
    outcome: Outcome | None
    hints: tuple[str, ...]

    @property
    def symbols(self) -> dict[str, str]:
        from ...exercises.printing import symbols_of

        return symbols_of(self.exercise)

    def preview(self, answer: str) -> Any:
        return preview(self.outcome, self.solved.answer, self.symbols, answer)


@lru_cache(maxsize=64)
def _exercise(key: Key) -> BankExercise:
    from ...exercises import bank

    return bank.named(*key)


def _now(state: State) -> Now:
    key = Key(state["exercise"], state["seed"] if state["numbers"] == "fresh" else None)
    exercise = _exercise(key)
    asked = _chosen(state["part"], exercise)
    solved, outcome = _solved(key, asked.label), _outcome(key, asked.label, state["answer"])
    return Now(key, exercise, asked, solved, outcome, exercise.hints[asked.label][: state["hint"]])


def _chosen(name: str, exercise: Exercise) -> Asked:
    """The part that is meant; an empty one is the first."""
    from ...errors import OptionError

    try:
        return exercise.only(name).asked[0] if name.strip() else exercise.asked[0]
    except OptionError as error:
        raise WrongField("part", str(error)) from None


@lru_cache(maxsize=64)
def _solved(key: Key, name: str) -> Solved:
    from ...exercises.solving import solve_part

    return solve_part(_exercise(key), _chosen(name, _exercise(key)))


@lru_cache(maxsize=16)
def _outcome(key: Key, name: str, answer: str) -> Outcome | None:
    """What becomes of an answer, judged once for the words and the pictures."""
    from ...exercises.checking import check

    if not answer.strip():
        return None
    return check(_exercise(key).only(name), name, answer, gold=_solved(key, name).answer)


def _about(exercise: Exercise, asked: Asked) -> dict[str, Any]:
    from ...exercises.printing import points_of, shown_label

    return {"name": asked.label, "letter": shown_label(asked.label) or "1", "points": points_of(exercise, asked)}


def _next(state: State, now: Now) -> dict[str, Any]:
    """Where to continue: the next part or else the next exercise, and a variant that was not seen."""
    after = now.exercise.asked[now.exercise.asked.index(now.asked) + 1 :]
    names = list(TITLES)
    seed = (state["seed"] + (now.key.seed is not None)) % (LAST_SEED + 1)
    exercise = names[(names.index(state["exercise"]) + 1) % len(names)]
    return {"part": after[0].label if after else None, "exercise": exercise, "seed": seed}


def _question(now: Now) -> list[d.Block]:
    from ...exercises.printing import question_blocks, statement_blocks

    return [*statement_blocks(now.exercise), *question_blocks(now.exercise, now.asked)]


def _worked(now: Now) -> list[d.Block]:
    from ...exercises.printing import worked_blocks

    return list(worked_blocks(now.exercise, now.solved))


def pictures(state: State, result: Result) -> dict[str, str]:
    from ...exercises.printing import spoken
    from ..markup import blocks_html

    now = _now(state)
    hints = tuple(spoken(hint, now.symbols) for hint in now.hints)
    drawn: dict[str, list[d.Block]] = {
        "question": _question(now),
        "preview": list(now.preview(state["answer"]).blocks),
        "hints": [d.Items(hints, ordered=True)] if hints else [],
        "solution": _worked(now) if state["solution"] else [],
    }
    for place, option in enumerate(now.asked.options):
        drawn[f"option-{place}"] = [d.Paragraph(spoken(option.text, now.symbols))]
    return {name: blocks_html(blocks) for name, blocks in drawn.items()}


def python(state: State) -> str:
    now, answer = _now(state), state["answer"]
    label, place = now.asked.label, now.exercise.asked.index(now.asked)
    lines = ["from qkv.exercises import bank"]
    lines += ["from qkv.exercises.checking import check"] if answer.strip() else []
    lines += ["from qkv.exercises.solving import solve_part"] if state["solution"] else []
    lines += ["", f"exercise = bank.named({now.key.name!r}{'' if now.key.seed is None else f', {now.key.seed}'})"]
    lines += [f"asked = exercise.asked[{place}]", "print(asked.label, asked.quantity)"]
    if answer.strip():
        lines.append(f"outcome = check(exercise, {label!r}, {answer!r})")
        lines.append("print(outcome.kind, *outcome.mistakes, sep='; ')")
    lines += [f"print(bank.hint(exercise, {label!r}, {strength}))" for strength in range(1, 1 + len(now.hints))]
    if state["solution"]:
        lines += ["solved = solve_part(exercise, asked)", *PRINTED]
    return "\n".join(lines) + "\n"


_PART = texts("name", "letter", points={"type": "integer"})
VIEW = View(
    name="practice",
    title="Practice",
    verb="teach",
    bar=("answer",),
    simple="Exercises with hints; your answer is judged while you type.",
    lead="Answer a question of the bank: answers are compared as mathematics while you type.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        **{key: {"type": "string"} for key in ("exercise", "title", "question", "solution")},
        **{key: {"type": "integer"} for key in ("place", "parts_in_all", "hints_given", "most_hints")},
        "seed": {"type": ["integer", "null"]},
        "parts": listed(_PART),
        "part": _PART,
        "links": listed(texts("view", "address")),
        "options": listed(texts("label", "text", "answer", taken={"type": "boolean"})),
        "preview": texts("kind", "text"),
        "outcome": {"anyOf": [OUTCOME, {"type": "null"}]},
        "hints": listed({"type": "string"}),
        "next": texts("exercise", part=MAYBE, seed={"type": "integer"}),
    },
    heavy=lambda state: is_costly(state["answer"]),
    seconds=8.0,
    scripts=("views/practice.js",),
)
