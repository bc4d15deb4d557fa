"""Transcript: a chat with a tutor, graded turn by turn, each claim beside its verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, complaint
from ...tutor.claims import Claim
from ..fields import Choice, State, Words, WrongField
from ..view import Result, View, Work

if TYPE_CHECKING:
    from ...problems.catalogue import Match
    from ...tutor import Ledger, Row, Transcript

LONGEST = 400_000
MOST_CONVERSATIONS = 12  # of an archive
MOST_TURNS = 400  # of a conversation that are shown; all are graded

SHORTLY = {
    "right": "right",
    "conditional": "right only under a condition",
    "incomplete": "not all of it",
    "wrong": "not right",
    "unread": "missing or not read",
}
FIELDS = (
    Choice(name="source", label="Chat", default="sample",
           options={"sample": "a short sample", "own": "a chat of your own"}),
    Words(name="chat", label="The chat", longest=LONGEST, lines=12,
          drop=".txt,.md,.json,.jsonl,.html", placeholder="Student: …\n\nTutor: …",
          help="Paste it, or drop a file: text or Markdown with speakers, or the JSON of a chat program."),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    from ...tutor.tally import Tally

    work.say("reading the chat")
    chats = _read(state)
    told = [_conversation(chat, place, work) for place, chat in enumerate(chats[:MOST_CONVERSATIONS])]
    ended = Counter(row["status"] for each in told for row in each["rows"])
    tally = Tally(ended["one shot"], ended["needed correction"], ended["never right"], ended["unread"])
    counted = tally.as_dict()
    return {
        "conversations": told,
        "left_out": max(0, len(chats) - MOST_CONVERSATIONS),
        "tally": {name: counted[name] for name in ("parts", "one_shot", "corrected", "never", "unread")},
    }


def _read(state: State) -> tuple[Transcript, ...]:
    """Every conversation of the text itself: a name that is typed opens no file."""
    from ...tutor.sample import sample
    from ...tutor.transcript import read_text

    if state["source"] == "sample":
        return read_text(sample())
    if not state["chat"].strip():
        raise WrongField("chat", complaint("chat", "nothing", "a conversation", "paste one, or drop a file"))
    try:
        return read_text(state["chat"])
    except OptionError as error:
        raise WrongField("chat", str(error)) from None


def _conversation(chat: Transcript, place: int, work: Work) -> dict[str, Any]:
    from ...problems.catalogue import recognise
    from ...tutor import grade

    def recogniser(text: str) -> list[Match]:
        work.say("looking for questions")
        return recognise(text)

    ledger = grade(chat, recogniser, lambda done, of: work.say("judging what was said, turn", done, of))
    work.say("marking the claims")
    rows = [_row(ledger, row, f"{place + 1}-{number}") for number, row in enumerate(ledger.rows, 1)]
    turns = []
    for turn in chat.turns[:MOST_TURNS]:
        claims = {
            told["id"]: claim
            for row, shown in zip(ledger.rows, rows, strict=True)
            for claim, told in zip(row.claims, shown["claims"], strict=True)
            if claim.turn == turn.index
        }
        cut = [{"text": text, "claims": names} for text, names in pieces(turn.text, claims)]
        turns.append({"index": turn.index, "speaker": turn.speaker, "name": turn.name, "pieces": cut})
    return {
        "title": ledger.title,
        "turns": turns,
        "turns_in_all": len(chat.turns),
        "problems": ledger.problems(),
        "rows": rows,
        "rules": _rules(ledger),
        "author_table": [row.as_dict() for row in ledger.author_table],
        "notes": list(ledger.notes),
    }


def _row(ledger: Ledger, row: Row, name: str) -> dict[str, Any]:
    from ...problems import MISCONCEPTIONS
    from ...tutor.telling import error_name, formula_of, readable

    known = dict.fromkeys(error.name for error in row.errors if error.name in MISCONCEPTIONS)
    told = [
        {
            "id": f"claim-{name}-{place}",
            "turn": claim.turn,
            "text": claim.text,
            "shown": readable(ledger, row, claim.text),
            "symbols": dict(formula.symbols) if (formula := formula_of(ledger, row, claim.text)) is not None else None,
            "kind": claim.outcome.kind,
            "said": SHORTLY[claim.outcome.kind],
            "reason": claim.outcome.reason,
            "misconceptions": list(claim.outcome.misconceptions),
        }
        for place, claim in enumerate(row.claims, 1)
    ]
    return {
        "id": f"row-{name}",
        "problem": row.problem,
        "family": row.family,
        "part": row.part,
        "status": row.status,
        "first_right_turn": row.first_right_turn,
        "turns": len({claim.turn for claim in row.claims}),
        "found_by": row.found_by,
        "given_up": row.given_up,
        "stood_firm": row.stood_firm,
        "errors": [
            {"name": error_name(error), "turn": error.turn, "what": error.what, "kind": error.kind}
            for error in row.errors
        ],
        "misconceptions": [
            {"name": each, "believed": MISCONCEPTIONS[each].believed, "right": MISCONCEPTIONS[each].right}
            for each in known
        ],
        "claims": told,
    }


def _rules(ledger: Ledger) -> list[dict[str, Any]]:
    from ...tutor.telling import RULES

    return [
        {"rule": RULES[rule.name], "broken": rule.broken, "set_in_turn": rule.set_in_turn, "turn": rule.turn,
         "evidence": rule.evidence}
        for rule in ledger.rules
    ]  # fmt: skip


def pictures(state: State, result: Result) -> dict[str, str]:
    from ..markup import formula

    return {
        claim["id"]: formula(claim["text"], claim["symbols"])
        for chat in result["conversations"]
        for row in chat["rows"]
        for claim in row["claims"]
        if claim["symbols"] is not None
    }


def python(state: State) -> str:
    sample = state["source"] == "sample"
    lines = "\n".join(f"    {line!r}" for line in state["chat"].splitlines(keepends=True))
    imported = "from qkv.tutor.sample import sample\n" if sample else ""
    return f"""\
from qkv import tutor
{imported}from qkv.tutor.transcript import read_text

chat = {"sample()" if sample else f"({chr(10)}{lines}{chr(10)})"}
for conversation in read_text(chat)[:{MOST_CONVERSATIONS}]:
    for row in tutor.grade(conversation).rows:
        print(row.problem, row.part, row.status, row.first_right_turn, row.found_by)
        for claim in row.claims:
            print("   ", claim.turn, claim.outcome.kind, repr(claim.text))
"""


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT, _COUNT, _YES = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TURN = {"type": ["integer", "null"]}
_CLAIM = _object(
    id=_TEXT,
    turn=_COUNT,
    text=_TEXT,
    shown=_TEXT,
    symbols={"type": ["object", "null"]},
    kind=_TEXT,
    said=_TEXT,
    reason=_TEXT,
    misconceptions=_list(_TEXT),
)
_ROW = _object(
    id=_TEXT,
    problem=_TEXT,
    family=_TEXT,
    part=_TEXT,
    status=_TEXT,
    first_right_turn=_TURN,
    turns=_COUNT,
    found_by={"type": ["string", "null"]},
    given_up=_YES,
    stood_firm=_YES,
    errors=_list(_object(name=_TEXT, turn=_COUNT, what=_TEXT, kind=_TEXT)),
    misconceptions=_list(_object(name=_TEXT, believed=_TEXT, right=_TEXT)),
    claims=_list(_CLAIM),
)
_CONVERSATION = _object(
    title=_TEXT,
    turns=_list(
        _object(index=_COUNT, speaker=_TEXT, name=_TEXT, pieces=_list(_object(text=_TEXT, claims=_list(_TEXT))))
    ),
    turns_in_all=_COUNT,
    problems=_list({"type": "object"}),
    rows=_list(_ROW),
    rules=_list(_object(rule=_TEXT, broken=_YES, set_in_turn=_COUNT, turn=_TURN, evidence=_TEXT)),
    author_table=_list({"type": "object"}),
    notes=_list(_TEXT),
)


LONGEST_SOUGHT = 2000  # characters of a claim that is looked for with other spaces
_BEGINNING = 60  # characters by which a section is found


def pieces(text: str, claims: Mapping[str, Claim]) -> list[tuple[str, list[str]]]:
    """The text cut at its claims, by their names; claims that overlap share a piece.

    >>> pieces("so it is d, and s = d", {"b": Claim(1, "s = d", None)})
    [('so it is d, and ', []), ('s = d', ['b'])]
    """
    spans = sorted((*span, name) for name, claim in claims.items() if (span := place(text, claim)) is not None)
    cut: list[tuple[str, list[str]]] = []
    done = 0
    for start, end, names in _joined(spans):
        if start > done:
            cut.append((text[done:start], []))
        cut.append((text[start:end], names))
        done = end
    return [*cut, (text[done:], [])] if done < len(text) else cut


def place(text: str, claim: Claim) -> tuple[int, int] | None:
    """Where a claim stands: its own words within the section that it was found in, or else that section."""
    begin = max(0, text.find(claim.section[:_BEGINNING]))
    end = min(len(text), begin + len(claim.section)) if claim.section else len(text)
    for sought in dict.fromkeys((claim.text, claim.whole)):
        if sought.strip() and (found := _last(text, sought.strip(), begin, end)):
            return found
    if claim.section and (at := text.find(claim.section)) >= 0:
        return at, at + len(claim.section)
    return None


def _last(text: str, sought: str, begin: int, end: int) -> tuple[int, int] | None:
    """The last mention within a section, or else anywhere: what is said at the end counts."""
    if len(sought) > LONGEST_SOUGHT:
        at = text.find(sought)
        return (at, at + len(sought)) if at >= 0 else None
    # A letter alone is no piece of a word, and line breaks may stand where spaces are.
    words = r"\s+".join(map(re.escape, sought.split()))
    pattern = re.compile(rf"(?<![\w\\]){words}(?!\w)")
    within = [found.span() for found in pattern.finditer(text, begin, end)]
    if within:
        return within[-1]
    found = pattern.search(text)
    return found.span() if found else None


def _joined(spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, list[str]]]:
    joined: list[tuple[int, int, list[str]]] = []
    for start, end, name in spans:
        if joined and start < joined[-1][1]:
            first, last, names = joined[-1]
            joined[-1] = (first, max(last, end), [*names, name])
        else:
            joined.append((start, end, [name]))
    return joined


VIEW = View(
    name="transcript",
    title="Transcript",
    verb="teach",
    lead="Drop a chat with a tutor: what was right at once, what needed correction, who found it.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        "conversations": _list(_CONVERSATION),
        "left_out": _COUNT,
        "tally": _object(parts=_COUNT, one_shot=_COUNT, corrected=_COUNT, never=_COUNT, unread=_COUNT),
    },
    heavy=True,
    seconds=40.0,
    scripts=("views/transcript.js",),
)
