"""Transcript: a chat with a tutor, graded part by part, each claim next to its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, complaint
from ..fields import State, Words, WrongField
from ..view import Result, View, Work

if TYPE_CHECKING:
    from ...exercises import Exercise
    from ...grading import GradeReport, Row
    from ...reading import Chat

LONGEST = 400_000
MOST_TURNS = 400  # of a chat that are shown; all are graded
SHORTLY = {
    "right": "right",
    "conditional": "right only under a condition",
    "incomplete": "not all of it",
    "wrong": "not right",
    "unread": "not read",
}
FIELDS = (
    Words(name="chat", label="The chat", longest=LONGEST, lines=12,
          drop=".txt,.md,.json,.jsonl,.html", placeholder="Student: …\n\nTutor: …",
          help="Paste it, or drop a file: text with speakers, a saved page, or the JSON of a chat program. "
               "While it is empty, a short sample is graded."),
    Words(name="sheet", label="The sheet, if the chat does not have the questions", longest=LONGEST, lines=4,
          drop=".txt,.md,.tex", placeholder="1. Let q and k be …\n\n(a) …",
          help="The questions by their numbers; left empty, those that the student puts are taken."),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    from ...grading import grade

    work.say("reading the chat")
    chat = _chat(state)
    work.say("looking for questions")
    questions = _questions(state)
    report = grade(chat, questions, told=lambda done, of: work.say("judging claims", done, of))
    work.say("marking the claims")
    rows = [_row(row, str(place)) for place, row in enumerate(report.rows, 1)]
    return {
        "name": "" if state["chat"] else "A short sample",
        "turns": list(_turns(report, rows)),
        "turns_in_all": len(chat.turns),
        "rows": rows,
        "rules": [rule.as_dict() for rule in report.rules],
        "notes": [finding.words() for finding in report.findings],
        "tally": {"parts": len(rows), **{name.replace(" ", "_"): count for name, count in report.counts().items()}},
    }


def sample() -> str:
    """A short chat to try a grader on: one answer right at once, one corrected, one wrong to the end."""
    return files("qkv.grading").joinpath("sample.md").read_text(encoding="utf-8")


def _chat(state: State) -> Chat:
    """The chat of the text itself: a name that is typed opens no file."""
    from ...reading import read_chat

    text = state["chat"] or sample()
    if not text.strip():
        raise WrongField("chat", complaint("chat", "nothing", "a chat", "paste one, or drop a file"))
    try:
        return read_chat(text.encode(), name="chat")
    except OptionError as error:
        raise WrongField("chat", str(error)) from None


def _questions(state: State) -> dict[str, Exercise] | None:
    from ...grading import from_sheet

    if not state["sheet"].strip():
        return None
    try:
        return from_sheet(f"{state['sheet']}\n\n")
    except OptionError as error:
        raise WrongField("sheet", str(error)) from None


def _row(row: Row, name: str) -> dict[str, Any]:
    from ...exercises.outcome import known_mistakes
    from ...grading.report import error, quote

    claims = [
        {
            "id": f"claim-{name}-{place}",
            "turn": each.claim.turn + 1,
            "quote": quote(each),
            "span": list(each.claim.span),
            "kind": each.outcome.kind,
            "said": SHORTLY[each.outcome.kind],
            "words": each.outcome.words(),
            "decides": each.decides,
        }
        for place, each in enumerate(row.claims, 1)
    ]
    known = {each: known_mistakes()[each] for each in row.mistakes if each in known_mistakes()}
    return {
        "id": f"row-{name}",
        "question": row.question,
        "part": row.part,
        "label": row.label,
        "status": row.status,
        "first_right": None if row.first_right is None else row.first_right + 1,
        "found_by": row.found_by,
        "error": error(row),
        "mistakes": [{"name": name, "believed": each.believed, "right": each.right} for name, each in known.items()],
        "claims": claims,
    }


def _turns(report: GradeReport, rows: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    from ...grading.report import margins
    from ..markup import blocks_html

    ids = {
        id(each.claim): claim["id"]
        for row, shown in zip(report.rows, rows, strict=True)
        for each, claim in zip(row.claims, shown["claims"], strict=True)
    }
    claims = [claim for row in rows for claim in row["claims"]]
    for turn in report.chat.turns[:MOST_TURNS]:
        mine = {claim["id"]: (*claim["span"],) for claim in claims if claim["turn"] == turn.index + 1}
        cut = [{"text": text, "claims": names} for text, names in pieces(turn.text, mine)]
        yield {"index": turn.index + 1, "speaker": turn.speaker, "name": turn.name, "pieces": cut,
               "html": blocks_html(margins(report, turn, lambda claim: ids[id(claim)]))}  # fmt: skip


def pictures(state: State, result: Result) -> dict[str, str]:
    """The turns as they are shown; what they hold is escaped already."""
    return {f"turn-{turn['index']}": turn["html"] for turn in result["turns"]}


def pieces(text: str, spans: Mapping[str, tuple[int, ...]]) -> list[tuple[str, list[str]]]:
    """The text cut at the spans of claims, by their names; claims that overlap share a piece.

    >>> pieces("so it is d, and s = d", {"b": (16, 21)})
    [('so it is d, and ', []), ('s = d', ['b'])]
    """
    joined: list[tuple[int, int, list[str]]] = []
    for (start, end), name in sorted((span[:2], name) for name, span in spans.items()):
        if joined and start < joined[-1][1]:
            first, last, names = joined[-1]
            joined[-1] = (first, max(last, end), [*names, name])
        else:
            joined.append((start, end, [name]))
    cut: list[tuple[str, list[str]]] = []
    done = 0
    for start, end, names in joined:
        cut += [(text[done:start], [])] if start > done else []
        cut.append((text[start:end], names))
        done = end
    return [*cut, (text[done:], [])] if done < len(text) else cut


def python(state: State) -> str:
    def literal(text: str) -> str:
        lines = "\n".join(f"    {line!r}" for line in text.splitlines(keepends=True))
        return f"(\n{lines}\n)"

    own = bool(state["chat"])
    sheet = f"from_sheet({literal(state['sheet'])} + '\\n\\n')" if state["sheet"].strip() else "None"
    source = literal(state["chat"]) if own else "sample()"
    return f"""\
from qkv.grading import from_sheet, grade
from qkv.reading import read_chat
{"" if own else "from qkv.lab.views.transcript import sample" + chr(10)}
chat = read_chat({source}.encode(), name="chat")
for row in grade(chat, {sheet}).rows:
    print(row.label, row.status, row.first_right, row.found_by)
    for each in row.claims:
        print("   ", each.claim.turn, each.outcome.kind, repr(each.claim.quote))
"""


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT, _COUNT, _YES = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TURN, _MAYBE = {"type": ["integer", "null"]}, {"type": ["string", "null"]}
_CLAIM = _object(
    id=_TEXT, turn=_COUNT, quote=_TEXT, span=_list(_COUNT), kind=_TEXT, said=_TEXT, words=_TEXT, decides=_YES
)
_ROW = _object(
    id=_TEXT, question=_TEXT, part=_TEXT, label=_TEXT, status=_TEXT, first_right=_TURN, found_by=_MAYBE, error=_TEXT,
    mistakes=_list(_object(name=_TEXT, believed=_TEXT, right=_TEXT)), claims=_list(_CLAIM),
)  # fmt: skip
_PIECES = _list(_object(text=_TEXT, claims=_list(_TEXT)))

VIEW = View(
    name="transcript",
    title="Transcript",
    verb="teach",
    simple="Drop a chat with a tutor and see which of its claims are right.",
    lead="Drop a chat with a tutor: what was right at once, what needed correction, who found it.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        "name": _TEXT,
        "turns": _list(_object(index=_COUNT, speaker=_TEXT, name=_TEXT, pieces=_PIECES, html=_TEXT)),
        "turns_in_all": _COUNT,
        "rows": _list(_ROW),
        "rules": _list(_object(name=_TEXT, kept=_TEXT, set_in=_COUNT, turn=_TURN, evidence=_TEXT, broken=_YES)),
        "notes": _list(_TEXT),
        "tally": _object(parts=_COUNT, one_shot=_COUNT, needed_correction=_COUNT, never_right=_COUNT, unread=_COUNT),
    },
    heavy=True,
    seconds=40.0,
    scripts=("views/transcript.js",),
    alone=True,
)
