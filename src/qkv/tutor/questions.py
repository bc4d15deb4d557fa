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
from .numbering import MENTION, PART, pieces, switches
from .transcript import Transcript, Turn

SURE = 0.4  # how sure a recogniser has to be where nothing else speaks for a question
LONGEST = 30_000  # characters of a statement that are looked at
MOST = 60  # questions of one conversation

Recogniser = Callable[[str], list[Match]]

_GO_ON = re.compile(
    r"\b(?:let'?s|now|next|on to|move|moving|go|start|begin|focus|solve|do|answer|turn)\b", re.IGNORECASE
)
_ASKS = re.compile(
    r"\?|^\W*(?:\w+,? ){0,3}?(?:find|compute|calculate|give|show|prove|derive|determine|state|explain|write|express|"
    r"name|describe|define|work out|evaluate|which|what|how|why|mean|variance|the)\b",
    re.IGNORECASE,
)


_NAMED = re.compile(r"\b(?:the|that|your|our) ([\w-]+) (?:problem|question|exercise|task|one)\b", re.IGNORECASE)
_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")


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
    grown: bool = False  # parts were asked in later turns
    asked: dict[int, list[str]] = field(default_factory=dict)  # turn to the parts that it asked without letters
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
            for spoken_of, said in _by_question(found, turn, text, current):
                current = spoken_of
                if current is not None:
                    current.said.append((turn, said))
                elif len(waiting) < MOST:
                    waiting.append((turn, said))
    if not any(question.statement or question.number for question in found):
        found += _from_exchanges(transcript, recognise)
    for question in found:
        _resolve(question, recognise)
    _name(found)
    return [question for question in found if question.said]


def _by_question(
    found: list[Question], turn: Turn, text: str, current: Question | None
) -> Iterator[tuple[Question | None, str]]:
    """A tutor's text by the questions that it turns to; a student's whole."""
    known = {question.number: question.title for question in found if question.number}
    if turn.speaker == "student" or len(known) < 2:
        yield current, text
        return
    joined = ""
    for number, said in switches(text, known, known):
        other = _numbered(found, number) if number else current
        if other is not current and joined:
            yield current, joined
            joined = ""
        current, joined = other, joined + said
    if joined:
        yield current, joined


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
        if not _goes_on(known, text):
            known.statement = known.statement or text[:LONGEST]
        return known
    matches = recognise(text[:LONGEST]) if len(text) > 30 else []
    match = matches[0] if matches and matches[0].score >= SURE else None
    asks = match is not None or _lists_parts(text)
    mentioned = list(dict.fromkeys(each.lstrip("0") for each in MENTION.findall(text)))
    if not mentioned and not _lists_parts(text):
        mentioned = [each["number"] for each in PART.finditer(text) if _numbered(found, each["number"]) is not None]
    back = None if asks or mentioned else _gone_back_to(found, current, text)
    if back is not None:
        return back
    fresh = [each for each in mentioned if _numbered(found, each) is None]
    if asks and fresh:
        return _opened(found, turn, fresh[0], text, match) or current
    if mentioned and (match is None or len(text) < 400):
        known = _numbered(found, mentioned[0])
        if known is not None:
            _goes_on(known, text)
            return known
        if current is None or _GO_ON.search(text):
            return _new(found, turn, mentioned[0], "", "") or current
    if current is None:
        return _opened(found, turn, "", text, match) if match is not None else None
    if _goes_on(current, text) or _asks_more(current, turn, text, recognise):
        return current
    if match is None:
        # A list of questions that the bank does not know is another question still.
        return _opened(found, turn, "", text, None) if _asks_anew(current, text) else current
    if not _is_another(current, match, text):
        current.statement = current.statement or text[:LONGEST]
        return current
    return _opened(found, turn, "", text, match) or current


def _gone_back_to(found: list[Question], current: Question | None, text: str) -> Question | None:
    """The question that a text goes back to by its place or its name: "the first problem", "the scaling question"."""
    for said in _NAMED.findall(text):
        word = said.lower()
        if word in _PLACES:
            place = _PLACES.index(word)
            return found[place] if place < len(found) else None
        if word in ("previous", "earlier", "other") and current in found and len(found) > 1:
            place = found.index(current)
            return found[place - 1] if place else found[1] if len(found) == 2 else None
        for question in found:
            names = f"{question.title} {question.problem.name if question.problem else ''}".lower()
            if word in re.findall(r"[a-z]{4,}", names):
                return question
    return None


def _opened(found: list[Question], turn: Turn, number: str, text: str, match: Match | None) -> Question | None:
    question = _new(found, turn, number, "", text)
    if question is not None and match is not None:
        question.problem, question.score = match.problem, match.score
    return question


def _lists_parts(text: str) -> bool:
    """Whether a text lists parts that ask something."""
    items = [said for _, _, said in statement_items(relabelled(text), first="")]
    return len(items) > 1 and 2 * sum(_ASKS.search(said) is not None for said in items) >= len(items)


def _asks_anew(current: Question, text: str) -> bool:
    """Whether a text lists questions of its own, and not those of the current one again."""
    if len(text) < 120 or not _lists_parts(text) or not current.statement:
        return False
    items = statement_items(relabelled(text))
    asked = set(re.findall(r"[a-z]{4,}", current.statement.lower()))
    said = set(re.findall(r"[a-z]{4,}", text.lower()))
    return bool(items) and not re.search(r"\byour?\b", text, re.IGNORECASE) and 2 * len(said & asked) < len(said)


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


def _goes_on(question: Question, text: str) -> bool:
    """Add what a student asks later to a statement: parts whose letters go on where it ended."""
    there = {name for name, _, _ in statement_items(relabelled(question.statement))}
    more = {name for name, _, said in statement_items(relabelled(text), first="") if len(said.split()) > 2}
    if not there or not more or min(more)[0] <= max(there)[0] or len(question.statement) + len(text) > LONGEST:
        return False
    question.statement, question.grown = f"{question.statement}\n\n{text}", True
    return True


def _asks_more(question: Question, turn: Turn, text: str, recognise: Recogniser) -> bool:
    """Add a question without letters to one without letters, where the bank has more parts for both together."""
    if question.problem is None or "?" not in text or len(question.statement) + len(text) > LONGEST:
        return False
    if any(statement_items(relabelled(each), first="") for each in (question.statement, text)):
        return False
    longer = f"{question.statement}\n\n{text}"
    matches = [match for match in recognise(longer) if match.problem.name == question.problem.name]
    before = [part.name for part in question.problem.parts]
    if not matches or [part.name for part in matches[0].problem.parts][: len(before)] != before:
        return False
    more = [plain_name(part.name) for part in matches[0].problem.parts[len(before) :]]
    if not more:
        return False
    question.asked.setdefault(question.turn, [plain_name(name) for name in before])
    question.statement, question.problem, question.asked[turn.index] = longer, matches[0].problem, more
    return True


def _is_another(current: Question, match: Match, text: str) -> bool:
    """Whether a text that is recognised asks something new, or goes on about the current question."""
    if current.problem is None and not current.statement:
        return False
    labels = len(sections(text, "abcdef")) > 2
    if current.problem is not None and current.problem.name == match.problem.name:
        return labels and len(text) > 250 and match.problem.parts != current.problem.parts
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
    if question.statement and (question.problem is None or question.grown):
        _take(question, _fitting(question.statement, recognise(question.statement)))
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
        if all(each == number for each in MENTION.findall(text[start:end]))
    )


def _fitting(statement: str, matches: list[Match]) -> list[Match]:
    """The matches in the order of how many of the statement's parts they have."""
    return sorted(matches, key=lambda match: (len(match_parts(match.problem, statement).unknown), -match.score))


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
