"""Answers: what was typed, judged against the solution and read back. Practice and Solve show them in one way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...render import document as d
from ...render.to_text import plain, pretty

if TYPE_CHECKING:
    from ...exercises import Answer, Asked
    from ...exercises.outcome import Outcome

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


def is_costly(answer: str) -> bool:
    """Whether to judge an answer may take seconds."""
    return len(answer) > QUICK or _COSTLY.search(answer) is not None


def options(asked: Asked, answer: str) -> list[dict[str, Any]]:
    """The choices: whether each is taken, and the answer when it is taken or left."""
    labels = [option.label for option in asked.options]
    taken = [label for label in labels if label in re.findall(r"[\w.]+", answer)]

    def after(label: str) -> str:
        wanted = set(taken) ^ {label} if asked.several else {label}
        return ", ".join(f"({each})" for each in labels if each in wanted)

    return [{"label": option.label, "text": option.text, "taken": option.label in taken, "answer": after(option.label)}
            for option in asked.options]  # fmt: skip


def judged(outcome: Outcome, told: bool) -> dict[str, Any]:
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


def markdown(blocks: list[d.Block]) -> str:
    from ...render import markdown as written

    told = tuple(block for block in blocks if not isinstance(block, d.Figure))
    return written(d.Document("", told)).removeprefix("# ").strip()


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


def preview(outcome: Outcome | None, gold: Answer | None, symbols: Mapping[str, str], answer: str) -> Preview:
    """The formulas that were judged, where some were; else the answer with its formulas."""
    if outcome is None:
        return Preview("nothing")
    blocks = [_judged_block(name, item, gold) for name, item in {"": outcome, **outcome.items}.items()]
    found = [block for block in blocks if block is not None]
    if not found:
        symbols = symbols if gold is None else {**symbols, **gold.symbols}
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


def _line(line: str, symbols: Mapping[str, str]) -> tuple[d.Inline, ...]:
    from ...exercises.printing import spoken

    whole = d.Maths(line.strip().strip("$").strip(), symbols)
    if "$" not in line.strip().strip("$") and _FORMULA.search(line) and whole.tree() is not None:
        return (whole,)
    return spoken(line, symbols)


def _said(piece: d.Inline) -> str:
    return pretty(plain(piece)) if isinstance(piece, d.Maths) else piece.text


def texts(*names: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**{name: {"type": "string"} for name in names}, **more},
        "required": [*names, *more],
    }


def listed(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


MAYBE = {"type": ["string", "null"]}
OUTCOME = texts(
    "kind",
    "said",
    "reason",
    condition=MAYBE,
    mistakes=listed(texts("name", "told")),
    counterexamples=listed(texts("of", "where", "yours", right=MAYBE)),
    items=listed(texts("name", "kind", "said")),
)
PRINTED = (  # lines of a program
    "if solved.answer is None:", "    print(solved.refusal.words())",
    "else:", "    print(solved.answer.derivation.latex())", "    print(solved.answer.text)",
)  # fmt: skip
