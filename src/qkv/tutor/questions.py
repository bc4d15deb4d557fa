"""Which problem each turn is about: questions by number and statement, known to the bank or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..problems.catalogue import Match
from ..problems.problem import Part, Problem, plain_name
from .formulas import sentences, without_code
from .labels import sections
from .matching import match_parts, relabelled, statement_items
from .transcript import Transcript, Turn

SURE = 0.4  # how sure a recogniser has to be where nothing else speaks for a question
LONGEST = 30_000  # characters of a statement that are looked at
MOST = 60  # questions of one conversation

Recogniser = Callable[[str], list[Match]]

_HEADING = re.compile(
    r"^[ \t>]*(?:(?P<hash>#{1,6})[ \t]*)?(?P<bold>\*\*|__)?[ \t]*"
    r"(?:(?P<word>problem|question|exercise|task|q)[ \t]*\.?[ \t]*#?)?(?P<number>\d{1,2})(?P<close>\*\*|__)?"
    r"(?P<dot>[ \t]*[.:)—–-])?(?P<title>[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_MENTION = re.compile(r"\b(?:problem|question|exercise|q)[ \t]*\.?[ \t]*#?(\d{1,2})\b", re.IGNORECASE)
_GO_ON = re.compile(
    r"\b(?:let'?s|now|next|on to|move|moving|go|start|begin|focus|solve|do|answer|turn)\b", re.IGNORECASE
)


@dataclass
class Question:
    """A question of the conversation: `name` is the number that the chat has, else the family's name."""

    number: str = ""
    title: str = ""
    statement: str = ""
    turn: int = 0
    problem: Problem | None = None
    score: float = 0.0
    parts: dict[str, Part] = field(default_factory=dict)  # plain name in the chat to the bank's part
    shown: dict[str, str] = field(default_factory=dict)  # plain name to how the part is called
    numbered: bool = False
    name: str = ""
    unknown: tuple[str, ...] = ()  # parts that it asks and the bank has not
    said: list[tuple[Turn, str]] = field(default_factory=list)

    def labels(self) -> set[str]:
        """The names by which a section may be labelled: those of the parts and of groups of them."""
        return set(self.parts) | {name[0] for name in self.parts if name}


def find_questions(transcript: Transcript, recognise: Recogniser) -> list[Question]:
    """The questions in order, each with the pieces of the turns that are about it, and the bank's problem."""
    ask, recognise = recognise, lambda text: ask(relabelled(text))
    found: list[Question] = []
    current: Question | None = None
    waiting: list[tuple[Turn, str]] = []
    for turn in transcript.turns:
        for number, title, text in pieces(turn):
            if turn.speaker == "student":
                current = _asked(found, current, turn, number, title, text, recognise)
                current = current or _asked_bit_by_bit(found, turn, text, waiting, recognise)
            elif number:
                current = _numbered(found, number) or _new(found, turn, number, title, "") or current
            if current is not None:
                current.said.append((turn, text))
            elif len(waiting) < MOST:
                waiting.append((turn, text))
    if not any(question.statement or question.number for question in found):
        found += _from_exchanges(transcript, recognise)
    for question in found:
        _resolve(question, recognise)
    _name(found)
    return [question for question in found if question.said]


def pieces(turn: Turn) -> Iterator[tuple[str, str, str]]:
    """A turn cut at the headings of problems: number, title and text of each piece."""
    marks = [found for found in _HEADING.finditer(turn.text) if _is_heading(found, turn)]
    first = marks[0].start() if marks else len(turn.text)
    if turn.text[:first].strip():
        yield "", "", turn.text[:first]
    for mark, following in zip(marks, [*marks[1:], None], strict=False):
        end = len(turn.text) if following is None else following.start()
        title = mark["title"].strip(" *_:.#—–-")
        yield mark["number"].lstrip("0") or "0", title if _titled(title) else "", turn.text[mark.start() : end]


def _is_heading(found: re.Match[str], turn: Turn) -> bool:
    """Whether a line with a number begins a problem: a heading, bold, with the word, or a title at the very start."""
    title = found["title"].strip(" *_")
    if re.match(r"\s*[,.]?\s*\(?[a-h]\)|\s*[a-h]\b\s*[).:]|\s*\([ivx]+\)", found["title"]) and not found["word"]:
        return False  # 1(a) labels a part
    if re.match(r"\s*\(?[a-h]\)", found["title"]):
        return False
    if found["word"]:
        # "Problem 1 is …" within running text says something of it.
        return bool(found["hash"] or found["bold"] or found["dot"]) or not title or _titled(title)
    if turn.speaker != "student":
        return False
    if not found["dot"] or not title:
        return False
    if found["hash"]:
        return len(found["hash"]) <= 3
    begins = not turn.text[: found.start()].strip()
    return begins and (bool(found["bold"]) or (_titled(title) and not title.endswith(("?", ".", ":"))))


def _titled(title: str) -> bool:
    """Whether words look like a title: few, and no sentence."""
    return len(title) <= 90 and len(title.split()) <= 12 and not re.search(r"[.?!]\s+\w|[$=]", title) and not (
        re.match(r"(?:is|was|asks?|has|and|or|,)\b", title)
    )  # fmt: skip


def _numbered(found: list[Question], number: str) -> Question | None:
    return next((question for question in found if question.number == number), None)


def _new(found: list[Question], turn: Turn, number: str, title: str, statement: str) -> Question | None:
    if len(found) >= MOST:
        return None
    found.append(Question(number, title, statement[:LONGEST], turn.index))
    return found[-1]


def _asked(
    found: list[Question],
    current: Question | None,
    turn: Turn,
    number: str,
    title: str,
    text: str,
    recognise: Recogniser,
) -> Question | None:
    """The question that a student's piece of text asks or goes on with."""
    if number:
        known = _numbered(found, number)
        if known is None:
            return _new(found, turn, number, title, text) or current
        known.statement = known.statement or text[:LONGEST]
        return known
    matches = recognise(text[:LONGEST]) if len(text) > 30 else []
    match = matches[0] if matches and matches[0].score >= SURE else None
    mentioned = list(_MENTION.findall(text))
    if mentioned and (match is None or len(text) < 400):
        known = _numbered(found, mentioned[0])
        if known is not None:
            return known
        if match is not None or current is None or _GO_ON.search(text):
            return _new(found, turn, mentioned[0], "", text if match else "") or current
    if match is None:
        if current is not None:
            _goes_on(current, text, recognise)
        return current
    if current is not None and not _is_another(current, match, text):
        current.statement = current.statement or text[:LONGEST]
        _goes_on(current, text, recognise)
        return current
    question = _new(found, turn, mentioned[0] if mentioned else "", "", text)
    if question is not None:
        question.problem, question.score = match.problem, match.score
    return question or current


def _asked_bit_by_bit(
    found: list[Question], turn: Turn, text: str, waiting: list[tuple[Turn, str]], recognise: Recogniser
) -> Question | None:
    """A question that is asked a part at a time, each too little to know it by: known once enough was asked."""
    before = [said for each, said in waiting if each.speaker == "student"]
    matches = recognise("\n\n".join([*before, text])[:LONGEST]) if before and len(text) > 30 else []
    if not matches or matches[0].score < SURE:
        return None
    question = _new(found, turn, "", "", "\n\n".join([*before, text]))
    if question is not None:
        question.turn = next(each.index for each, _ in waiting)
        question.said = list(waiting)
        question.problem, question.score = matches[0].problem, matches[0].score
    return question


def _goes_on(question: Question, text: str, recognise: Recogniser) -> None:
    """Add what a student asks later to a statement: parts with letters of their own that it did not have."""
    there = {name for name, _, _ in statement_items(relabelled(question.statement))}
    more = [(name, said) for name, _, said in statement_items(relabelled(text), first="") if name not in there]
    if not question.statement or not there or not more or min(name for name, _ in more) < "b":
        return
    longer = f"{question.statement}\n\n{text}"[:LONGEST]
    matches = recognise(longer)
    if matches and question.problem is not None and matches[0].problem.name == question.problem.name:
        question.statement, question.problem = longer, matches[0].problem


def _is_another(current: Question, match: Match, text: str) -> bool:
    """Whether a text that is recognised asks something new, or goes on about the current question."""
    if current.problem is None and not current.statement:
        return False
    labels = len(sections(text, "abcdef")) > 2
    if current.problem is not None and current.problem.name == match.problem.name:
        asked = {part.name for part in current.problem.parts}
        fresh = all(part.name not in asked for part in match.problem.parts)
        return fresh or (labels and len(text) > 250 and match.problem.parts != current.problem.parts)
    return labels or len(text) > 150 or match.score > 0.8


def _from_exchanges(transcript: Transcript, recognise: Recogniser) -> list[Question]:
    """Questions that only question and answer together tell: the statement may be in an attachment."""
    text = "\n\n".join(turn.text for turn in transcript.turns)[:LONGEST]
    matches = recognise(text)
    if not matches:
        return []
    answers = "\n\n".join(turn.text for turn in transcript.of("tutor"))[:LONGEST]
    question = Question(turn=1, problem=_better_labelled(matches[0].problem, answers), score=matches[0].score)
    question.said = [(turn, turn.text) for turn in transcript.turns]
    return [question]


def _resolve(question: Question, recognise: Recogniser) -> None:
    """The bank's problem for a question: by its statement, else by everything that is said about it."""
    if question.problem is None and question.statement:
        _take(question, recognise(question.statement))
    if question.problem is None:
        said = [(turn.speaker, _of_itself(text, question.number)) for turn, text in question.said[:MOST]]
        spoken = "\n\n".join(text for _, text in said)
        # Said last is said best: a correction that quotes the statement comes after what misread it.
        tutor = [text for speaker, text in said if speaker == "tutor"]
        for text in (spoken[:LONGEST], "\n\n".join(tutor)[:LONGEST], *tutor[::-1]):
            _take(question, recognise(text))
            if question.problem is not None:
                question.problem = _better_labelled(question.problem, "\n\n".join(tutor))
                break
    if question.problem is not None:
        found = match_parts(question.problem, question.statement)
        question.parts, question.shown = found.parts, found.shown
        question.numbered, question.unknown = found.numbered, found.unknown


def _better_labelled(problem: Problem, answers: str) -> Problem:
    """The problem as it was read from answers, or as the documents ask it: whose parts fit the answers' labels."""

    def fit(each: Problem) -> int:
        parts = {plain_name(part.name): part for part in each.parts}
        cut = [section for section in sections(answers, "abcdefgh") if section.part]
        hits = (section.part in parts and _hit(parts[section.part], section.text[:400]) for section in cut)
        return sum(1 if hit else -1 for hit in hits)

    general = problem.variant(None)
    return general if general.name == problem.name and fit(general) > fit(problem) else problem


def _hit(part: Part, text: str) -> bool:
    return any(re.search(cue, text, re.IGNORECASE) for cue in part.cues)


def _of_itself(text: str, number: str) -> str:
    """A text without the sentences that speak of another problem: what comes next says nothing of this one."""
    text = without_code(text[:LONGEST])
    return "".join(
        text[start:end]
        for start, end in sentences(text)
        if all(each == number for each in _MENTION.findall(text[start:end]))
    )


def _take(question: Question, matches: list[Match]) -> None:
    if matches:
        question.problem, question.score = matches[0].problem, matches[0].score


def _name(found: list[Question]) -> None:
    taken: dict[str, set[str]] = {}
    for question in found:
        name = question.number or (question.problem.name if question.problem else question.title or "unknown")
        parts, place, given = set(question.parts), 1, name
        # Two questions share a name only where no part of one is called like a part of the other.
        while given in taken and (not parts or parts & taken[given]):
            place, given = place + 1, f"{name} ({place + 1})"
        taken[given] = taken.get(given, set()) | parts
        question.name = given
