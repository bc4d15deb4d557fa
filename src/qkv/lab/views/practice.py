"""Practice: an exercise of the bank or a pasted question, an answer judged as it is typed, hints and the solution."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import complaint
from ...render import document as d
from ...render.to_text import in_text, plain, pretty
from ..fields import Choice, Flag, Number, State, Words, WrongField
from ..view import Result, View, Work
from .practice_links import links

if TYPE_CHECKING:
    from ...exercises import Answer, Asked, Exercise, Solved
    from ...exercises.outcome import Outcome
    from ...exercises.sheets.reading import Reading

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
OWN = "own"
HINTS = 3
LAST_SEED = 2**31
LONGEST = 6000  # characters of a pasted question
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

_OF_BANK = ("exercise", tuple(TITLES))
FIELDS = (
    Words(name="answer", label="Your answer", longest=2000, lines=3,
          help="LaTeX, plain text or words. It is judged while you type."),
    Choice(name="exercise", label="Exercise", group="Question", default="scaling",
           options={**TITLES, OWN: "a question of your own"}),
    Words(name="question", label="The question", group="Question", needs=("exercise", (OWN,)), longest=LONGEST, lines=8,
          placeholder="Let Q = [[1, 0], [0, 2]], K = [[1, 1], [0, 1]]. Compute the scaled scores.",
          help="Paste it in words. What was understood is shown before the solution."),
    Choice(name="numbers", label="Numbers", group="Question", needs=_OF_BANK, default="printed",
           options={"printed": "as first printed", "fresh": "fresh ones, by a seed"}),
    Number(name="seed", label="Seed", group="Question", needs=_OF_BANK, low=0, high=LAST_SEED, default=0, whole=True,
           slider=False, help="The same seed gives the same numbers."),
    Words(name="part", label="Part", group="Question", longest=20, help="Its letter; empty is the first."),
    Number(name="hint", label="Hints", group="Help", needs=_OF_BANK, low=0, high=HINTS, default=0, whole=True,
           slider=False, help="1 is a nudge, 3 is nearly the answer."),
    Flag(name="solution", label="Show the solution", group="Help"),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    work.say("reading the question" if state["exercise"] == OWN else "judging the answer")
    now = _now(state)
    read = preview(now, state["answer"])
    return {
        "exercise": state["exercise"],
        "title": now.part.exercise.title or "A question of your own",
        "seed": state["seed"] if _is_fresh(state) else None,
        "parts": [_about(part) for part in now.parts],
        "part": _about(now.part),
        "place": now.parts.index(now.part) + 1,
        "parts_in_all": len(now.parts),
        "understood": _understood(now.part),
        "unread": [_unread_words(each) for each in _readings(now.key.question) if not each.exercise.asked],
        "links": links(now.part.exercise),
        "options": _options(now.part.asked, state["answer"]),
        "question": _markdown(_question(now.part)),
        "preview": {"kind": read.kind, "text": read.text},
        "outcome": None if now.outcome is None else _judged(now.outcome, now.told),
        "hints": [in_text(hint, now.part.symbols) for hint in now.hints],
        "hints_given": len(now.hints),
        "most_hints": 0 if state["exercise"] == OWN else HINTS,
        "solution": _markdown(_worked(now)) if now.told_all else "",
        "next": _next(state, now),
    }


class Key(NamedTuple):
    """An exercise: its name and its seed, or the text that was pasted."""

    name: str
    seed: int | None
    question: str


@dataclass(frozen=True)
class Part:
    """A question of an exercise, under the name that chooses it; `reading` is what was read of a pasted text."""

    name: str
    exercise: Exercise
    asked: Asked
    reading: Reading | None = None

    @property
    def symbols(self) -> dict[str, str]:
        from ...exercises.printing import symbols_of

        return symbols_of(self.exercise)


@dataclass(frozen=True)
class Now:
    """What the fields say: the exercise, the part that is asked, its answer, and what became of what was typed."""

    key: Key
    parts: tuple[Part, ...]
    part: Part
    solved: Solved
    outcome: Outcome | None
    hints: tuple[str, ...]
    told_all: bool  # whether the solution is shown

    @property
    def told(self) -> bool:
        """Whether words may have the right answer in them."""
        return self.told_all or bool(self.outcome)


def _now(state: State) -> Now:
    own = state["exercise"] == OWN
    key = Key(state["exercise"], state["seed"] if _is_fresh(state) else None, state["question"].strip() if own else "")
    parts = _parts(key)
    part = _chosen(state["part"], parts)
    # A question of one's own is asked to see its solution, unless an answer is to be judged first.
    told_all = state["solution"] or (own and not state["answer"].strip())
    solved, outcome = _solved(key, part.name), _outcome(key, part.name, state["answer"])
    return Now(key, parts, part, solved, outcome, _hints(part)[: state["hint"]], told_all)


def _is_fresh(state: State) -> bool:
    return state["numbers"] == "fresh" and state["exercise"] != OWN


@lru_cache(maxsize=64)
def _parts(key: Key) -> tuple[Part, ...]:
    from ...exercises import bank

    if key.name != OWN:
        exercise = bank.named(key.name, key.seed)
        return tuple(Part(asked.label, exercise, asked) for asked in exercise.asked)
    if not key.question:
        raise WrongField("question", complaint("question", "nothing", "a question in words"))
    readings = _readings(key.question)
    pairs = [(reading, asked) for reading in readings for asked in reading.exercise.asked]
    if not pairs:
        raise WrongField("question", "; ".join(map(_unread_words, readings)) or "nothing was read of this text")
    labels = [asked.label for _, asked in pairs]
    names = labels if len(set(labels)) == len(labels) else [str(place) for place in range(1, len(pairs) + 1)]
    return tuple(Part(name, reading.exercise, asked, reading)
                 for name, (reading, asked) in zip(names, pairs, strict=True))  # fmt: skip


@lru_cache(maxsize=16)
def _readings(question: str) -> tuple[Reading, ...]:
    from ...exercises.sheets.reading import read_sheet

    # The end of a line makes it a text: a name that is typed opens no file.
    return tuple(read_sheet(f"{question}\n")) if question else ()


def _unread_words(reading: Reading) -> str:
    label = f"({reading.exercise.label}) " if reading.exercise.label else ""
    return label + "; ".join(finding.words() for finding in reading.findings)


def _chosen(name: str, parts: tuple[Part, ...]) -> Part:
    """The part that is meant; an empty one is the first."""
    from ...exercises.record import plain_label

    if not name.strip():
        return parts[0]
    for part in parts:
        if plain_label(part.name) == plain_label(name):
            return part
    there = ", ".join(part.name or "(no label)" for part in parts)
    raise WrongField("part", complaint("part", repr(name), "a part of the exercise", f"there are {there}"))


def _hints(part: Part) -> tuple[str, ...]:
    from ...exercises.bank import BankExercise

    return part.exercise.hints[part.name] if isinstance(part.exercise, BankExercise) else ()


@lru_cache(maxsize=64)
def _solved(key: Key, name: str) -> Solved:
    from ...exercises.solving import Solved, solve_part

    part = _chosen(name, _parts(key))
    if part.reading is None:
        return solve_part(part.exercise, part.asked)
    if not part.reading.understood:
        return Solved(part.asked, refusal=part.reading.findings[0] if part.reading.findings else None)
    place = part.exercise.asked.index(part.asked)
    return part.reading.solve().parts[place]


@lru_cache(maxsize=16)
def _outcome(key: Key, name: str, answer: str) -> Outcome | None:
    """What becomes of an answer, judged once for the words and the pictures."""
    from ...exercises.checking import check
    from ...exercises.outcome import unread

    if not answer.strip():
        return None
    part, solved = _chosen(name, _parts(key)), _solved(key, name)
    if part.reading is not None and solved.answer is None:
        return unread("unsolved", why="" if solved.refusal is None else solved.refusal.words())
    alone = part.exercise.model_copy(update={"asked": (part.asked,)})
    return check(alone, part.asked.label, answer, gold=solved.answer)


def _about(part: Part) -> dict[str, Any]:
    from ...exercises.printing import points_of, shown_label

    return {"name": part.name, "letter": shown_label(part.name) or "1", "points": points_of(part.exercise, part.asked)}


def _understood(part: Part) -> list[dict[str, Any]]:
    """What was read of a pasted question; the bank's exercises say it in words."""
    if part.reading is None:
        return []
    alone = part.exercise.model_copy(update={"asked": (part.asked,)})
    return [{"name": name, "words": words} for name, words in alone.understood() if words]


def _options(asked: Asked, answer: str) -> list[dict[str, Any]]:
    """The choices: whether each is taken, and the answer when it is taken or left."""
    labels = [option.label for option in asked.options]
    taken = [label for label in labels if label in re.findall(r"[\w.]+", answer)]

    def after(label: str) -> str:
        wanted = set(taken) ^ {label} if asked.several else {label}
        return ", ".join(f"({each})" for each in labels if each in wanted)

    return [{"label": option.label, "text": option.text, "taken": option.label in taken, "answer": after(option.label)}
            for option in asked.options]  # fmt: skip


def _judged(outcome: Outcome, told: bool) -> dict[str, Any]:
    """What is said of an answer; what it should have been only where it is right, or the solution is shown anyway."""
    from ...exercises.outcome import known_mistakes

    mistakes = [(name, known_mistakes().get(name)) for name in outcome.mistakes]
    return {
        "kind": outcome.kind,
        "said": SAID[outcome.kind],
        "reason": "; ".join(finding.words(spoilers=told) for finding in outcome.findings),
        "condition": outcome.condition if told else None,
        "mistakes": [
            {"name": name, "told": "" if known is None else known.right if told else known.question}
            for name, known in mistakes
        ],
        "counterexamples": _counterexamples(outcome, told),
        "items": [
            {"name": name, "kind": item.kind, "said": "right" if item else item.words(spoilers=told)}
            for name, item in outcome.items.items()
        ],
    }


def _counterexamples(outcome: Outcome, told: bool) -> list[dict[str, Any]]:
    """Where an answer differs from the right one, and what it gives there."""
    from ...maths.comparison.counterexample import value_text

    found = []
    for name, each in {"": outcome, **outcome.items}.items():
        point = None if each.verdict is None else each.verdict.counterexample
        if point is not None and point.point:
            right = value_text(point.gold) if told else None
            found.append({"of": name, "where": point.where, "yours": value_text(point.answer), "right": right})
    return found


def _next(state: State, now: Now) -> dict[str, Any]:
    """Where to continue: the next part or else the next exercise, and a variant that was not seen."""
    place = now.parts.index(now.part) + 1
    names = list(TITLES)
    after = "" if state["exercise"] == OWN else names[(names.index(state["exercise"]) + 1) % len(names)]
    seed = (state["seed"] + _is_fresh(state)) % (LAST_SEED + 1)
    return {"part": now.parts[place].name if place < len(now.parts) else None, "exercise": after, "seed": seed}


def _question(part: Part) -> list[d.Block]:
    from ...exercises.printing import question_blocks, statement_blocks

    statement = list(statement_blocks(part.exercise))
    return statement if part.reading is not None else [*statement, *question_blocks(part.exercise, part.asked)]


def _worked(now: Now) -> list[d.Block]:
    from ...exercises.printing import worked_blocks

    return list(worked_blocks(now.part.exercise, now.solved))


def _markdown(blocks: list[d.Block]) -> str:
    from ...render import markdown

    told = tuple(block for block in blocks if not isinstance(block, d.Figure))
    return markdown(d.Document("", told)).removeprefix("# ").strip()


def pictures(state: State, result: Result) -> dict[str, str]:
    from ...exercises.printing import spoken
    from ..markup import blocks_html

    now = _now(state)
    hints = tuple(spoken(hint, now.part.symbols) for hint in now.hints)
    drawn: dict[str, list[d.Block]] = {
        "question": _question(now.part),
        "preview": list(preview(now, state["answer"]).blocks),
        "hints": [d.Items(hints, ordered=True)] if hints else [],
        "solution": _worked(now) if now.told_all else [],
    }
    for place, option in enumerate(now.part.asked.options):
        drawn[f"option-{place}"] = [d.Paragraph(spoken(option.text, now.part.symbols))]
    return {name: blocks_html(blocks) for name, blocks in drawn.items()}


MOST_LINES = 40  # of an answer that are read back
_FORMULA = re.compile(r"[\\^_=+*/]|O\(|\d")  # what words do not have


@dataclass(frozen=True)
class Preview:
    """What was read of an answer; `kind` is "nothing", "formula" or "words"."""

    kind: str
    blocks: tuple[d.Formula | d.Paragraph, ...] = ()

    @property
    def text(self) -> str:
        """What was read, on lines of Unicode."""
        lines = [block.all if isinstance(block, d.Formula) else d.inlines(block.words) for block in self.blocks]
        return "\n".join("".join(map(_said, pieces)) for pieces in lines)


def preview(now: Now, answer: str) -> Preview:
    """The formulas that were judged, where some were; else the answer with its formulas."""
    if now.outcome is None:
        return Preview("nothing")
    gold = now.solved.answer
    blocks = [_judged_block(name, item, gold) for name, item in {"": now.outcome, **now.outcome.items}.items()]
    found = [block for block in blocks if block is not None]
    if not found:
        symbols = now.part.symbols if gold is None else {**now.part.symbols, **gold.symbols}
        lines = [line for line in answer.splitlines() if line.strip()]
        found = [d.Paragraph(_line(line, symbols)) for line in lines[:MOST_LINES]]
    pieces = [piece for block in found if isinstance(block, d.Paragraph) for piece in d.inlines(block.words)]
    drawn = any(isinstance(piece, d.Maths) and piece.tree() is not None for piece in pieces)
    formula = drawn or any(isinstance(block, d.Formula) for block in found)
    return Preview("formula" if formula else "words", tuple(found[:MOST_LINES]))


def _judged_block(name: str, outcome: Outcome, gold: Answer | None) -> d.Formula | d.Paragraph | None:
    """One formula as it was compared with the right one; None where none was."""
    text = "" if outcome.verdict is None else outcome.verdict.answer.strip()
    wanted = None if gold is None else gold.items.get(name, gold)
    # The verdict on an array is about one of its entries.
    if not text or wanted is None or wanted.form not in ("number", "formula", "class"):
        return None
    maths = d.Maths(text, wanted.symbols)
    if maths.tree() is not None and not name:
        return d.Formula(maths)
    shown = d.Text(text, "code") if maths.tree() is None else maths
    return d.Paragraph((*([d.Text(f"{pretty(name)} = ")] if name else []), shown))


def _line(line: str, symbols: dict[str, str]) -> tuple[d.Inline, ...]:
    from ...exercises.printing import spoken

    whole = d.Maths(line.strip().strip("$").strip(), symbols)
    if "$" not in line.strip().strip("$") and _FORMULA.search(line) and whole.tree() is not None:
        return (whole,)
    return spoken(line, symbols)


def _said(piece: d.Inline) -> str:
    return pretty(plain(piece)) if isinstance(piece, d.Maths) else piece.text


def python(state: State) -> str:
    now, own, answer = _now(state), state["exercise"] == OWN, state["answer"]
    label, place = now.part.asked.label, now.part.exercise.asked.index(now.part.asked)
    lines = ["from qkv.exercises.sheets.reading import read_sheet"] if own else ["from qkv.exercises import bank"]
    lines += ["from qkv.exercises.checking import check"] if answer.strip() else []
    lines += ["from qkv.exercises.solving import solve_part"] if now.told_all and not own else []
    lines = [*sorted(lines), ""]
    if own and now.part.reading is not None:
        which = _readings(now.key.question).index(now.part.reading)
        lines += [f"reading = read_sheet({now.key.question + chr(10)!r})[{which}]", "exercise = reading.exercise"]
    else:
        lines.append(f"exercise = bank.named({now.key.name!r}{'' if now.key.seed is None else f', {now.key.seed}'})")
    lines += [f"asked = exercise.asked[{place}]", "print(asked.label, asked.quantity)"]
    if answer.strip():
        lines += [
            f"outcome = check(exercise, {label!r}, {answer!r})",
            "print(outcome.kind, *outcome.mistakes, sep='; ')",
        ]
    lines += [f"print(bank.hint(exercise, {label!r}, {strength}))" for strength in range(1, 1 + len(now.hints))]
    if now.told_all:
        lines += [
            f"solved = reading.solve().parts[{place}]" if own else "solved = solve_part(exercise, asked)",
            "if solved.answer is None:",
            "    print(solved.refusal.words())",
            "else:",
            "    print(solved.answer.derivation.latex())",
            "    print(solved.answer.text)",
        ]
    return "\n".join(lines) + "\n"


def _texts(*names: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**{name: {"type": "string"} for name in names}, **more},
        "required": [*names, *more],
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_MAYBE = {"type": ["string", "null"]}
_PART = _texts("name", "letter", points={"type": "integer"})
_OUTCOME = _texts(
    "kind",
    "said",
    "reason",
    condition=_MAYBE,
    mistakes=_list(_texts("name", "told")),
    counterexamples=_list(_texts("of", "where", "yours", right=_MAYBE)),
    items=_list(_texts("name", "kind", "said")),
)


VIEW = View(
    name="practice",
    title="Practice",
    verb="teach",
    bar=("answer",),
    simple="Exercises with hints; your answer is judged while you type.",
    lead="Answer a question of the bank, or paste one of your own: answers are judged as you type.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        "exercise": {"type": "string"},
        "title": {"type": "string"},
        "seed": {"type": ["integer", "null"]},
        "parts": _list(_PART),
        "part": _PART,
        "place": {"type": "integer"},
        "parts_in_all": {"type": "integer"},
        "understood": _list(_texts("name", words=_list({"type": "string"}))),
        "unread": _list({"type": "string"}),
        "links": _list(_texts("view", "address")),
        "options": _list(_texts("label", "text", "answer", taken={"type": "boolean"})),
        "question": {"type": "string"},
        "preview": _texts("kind", "text"),
        "outcome": {"anyOf": [_OUTCOME, {"type": "null"}]},
        "hints": _list({"type": "string"}),
        "hints_given": {"type": "integer"},
        "most_hints": {"type": "integer"},
        "solution": {"type": "string"},
        "next": _texts("exercise", part=_MAYBE, seed={"type": "integer"}),
    },
    heavy=lambda state: (
        len(state["answer"]) > QUICK or state["exercise"] == OWN or _COSTLY.search(state["answer"]) is not None
    ),
    seconds=8.0,
    scripts=("views/practice.js",),
)
