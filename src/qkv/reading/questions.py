"""Which question and part a place of a chat speaks of: by headings, prompts and labels, never by prose."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from ..exercises.record import Asked, Exercise
from ..exercises.solving import quantities

_ROMANS = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii")
_SHINGLE = 15  # letters; words may be glued or broken in either text
_LABEL = r"""
^(?P<lead>{lead})(?P<led>{led_in})?(?P<answer>(?:{answer}){answer_tie})?(?:{question_word})?
(?P<number>\d{{1,2}}(?=\s*[.,:-]?\s*(?:{part_word})?\(?[a-z]\)|[a-h]\b))?\s*[.,:-]?\s*
(?:(?P<part>{part_word})|(?P<blank>{blank_word}))?
(?:
  \((?P<round>[a-zA-Z]|[ivx]{{2,4}})\)(?:\s*[.,]?\s*\(?(?P<round_low>[ivx]{{1,4}})\)|(?P<tight>[ivx]{{1,4}})(?=[.:\s]))?
 |(?P<half>[a-z])\)(?:\s*\(?(?P<half_low>[ivx]{{1,4}})\))?
 |(?P<dotted>[a-h])(?:\s?\(?(?P<dotted_low>i{{1,3}}|iv|v)\)?)?(?=[.:]\s|[.:]$)
 |(?P<bare>[a-hA-H])(?:\s?\(?(?P<bare_low>i{{1,3}}|iv|v)\)?)?(?=[\s.:,)—–-]|$)
)(?P<end>\s*(?:[:：.)—–]|-(?=\s)|=(?!=)|(?=→|⇒))?)
"""


@cache
def phrases() -> dict[str, Any]:
    """The data file of phrases."""
    return tomllib.loads(files("qkv.reading").joinpath("phrases.toml").read_text(encoding="utf-8"))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """One of the expressions of the data file."""
    return re.compile(phrases()[name], re.IGNORECASE | re.MULTILINE)


@cache
def _label() -> re.Pattern[str]:
    # In a verbose expression "#" and spaces have to be escaped.
    names = ("lead", "led_in", "answer", "answer_tie", "question_word", "part_word", "blank_word")
    words = {name: re.sub(r"(?<!\\)#", r"\#", phrases()[name]).replace(" ", r"\ ") for name in names}
    return re.compile(_LABEL.format(**words), re.IGNORECASE | re.VERBOSE)


def tokens(label: str) -> tuple[str, ...]:
    """The steps of a part's label.

    >>> tokens("b(ii)"), tokens("(a)"), tokens("bii"), tokens("")
    (('b', 'ii'), ('a',), ('b', 'ii'), ())
    """
    found = re.findall(r"[a-z]+|\d+", label.lower())
    if len(found) == 1 and (glued := re.fullmatch(r"([a-h])([ivx]+)", found[0])):
        return glued[1], glued[2]
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Place:
    """A part of a question: `kind` says what its answer looks like, `blanks` are the names of several blanks."""

    question: str
    part: str
    number: str
    path: tuple[str, ...]
    kind: str
    asked: Asked = field(repr=False)
    exercise: Exercise = field(repr=False)
    blanks: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Label:
    """A label that a line begins with: the question's number if it says it, the steps, and where the rest begins."""

    number: str
    path: tuple[str, ...]
    end: int
    answer: bool
    part_word: bool
    blank_word: bool
    bare: bool


class Questions:
    """The parts of the exercises, by the numbers and labels that a chat names them with."""

    def __init__(self, exercises: Mapping[str, Exercise]) -> None:
        self.places: dict[str, list[Place]] = {}
        texts: dict[str, list[str]] = {}
        titles: dict[str, set[str]] = {}
        for key, exercise in exercises.items():
            number, below = _number(key)
            single = len(exercise.asked) == 1
            for asked in exercise.asked:
                own = _number(asked.label)
                steps = own[1] if own[0] in ("", number) else tokens(asked.label)
                path = below if single and below else (*below, *steps)
                self.places.setdefault(number, []).append(_place(key, number, path, asked, exercise))
            self.places.setdefault(number, [])
            texts.setdefault(number, []).extend(_texts(exercise))
            printed = re.search(
                rf"^\W*{re.escape(number)}\s?[.):]\s*([A-Z].{{3,100}})$", getattr(exercise, "printed", ""), re.M
            )
            titles.setdefault(number, set()).update(_words(exercise.title or (printed[1] if printed else "")))
        self.titles = titles
        words = {number: set(_words(" ".join(text))) for number, text in texts.items()}
        spread = Counter(word for each in words.values() for word in each)
        self.words = {number: {word for word in each if spread[word] == 1} for number, each in words.items()}
        said = {each for text in texts.values() for each in text}
        said |= {getattr(exercise, "printed", "") for exercise in exercises.values()}
        self.shingles = {shingle for each in said for shingle in _shingles(each)}

    @property
    def only(self) -> str | None:
        """The number of the question, where there is one alone."""
        return next(iter(self.places)) if len(self.places) == 1 else None

    def letters(self, number: str) -> set[str]:
        return {place.path[0] for place in self.places.get(number, ()) if place.path}

    def at(self, number: str, path: tuple[str, ...]) -> Place | None:
        """The part with a label; the whole question where it has no parts."""
        return next((place for place in self.places.get(number, ()) if place.path == path), None)

    def is_restated(self, text: str) -> bool:
        """Whether a line repeats what the exercises say."""
        found = _shingles(text)
        return len(found) > 9 and sum(each in self.shingles for each in found) >= 0.7 * len(found)

    def by_content(self, text: str, among: Container[str]) -> str | None:
        """The question whose own words a text has most of all, and by a clear margin among those that it may be."""
        said = Counter(_words(text))
        scores = sorted(((sum(min(said[word], 9) for word in words if len(word) > 4), number)
                         for number, words in self.words.items()), reverse=True)  # fmt: skip
        others = [score for score, number in scores if number in among][1:2] or [0]
        best, number = scores[0]
        return number if number in among and best > 3 and 2 * best >= 3 * others[0] else None

    def is_title(self, number: str, text: str) -> bool:
        """Whether a line is the title of a question."""
        said = set(_words(text))
        known = self.titles.get(number) or set()
        return bool(known) and 2 * len(said & known) > len(said | known)


def _number(key: str) -> tuple[str, tuple[str, ...]]:
    """The number of a question and the steps below it: "3", "3a", "6(b)(ii)", "Question 4"."""
    found = re.fullmatch(r"(?:question|problem|exercise|q)?[ .]*(\d+(?:\.\d+)*)?[ .]*(.*)", key.strip(), re.IGNORECASE)
    number, rest = (found[1] or "", found[2]) if found else ("", key)
    return (
        (number, tokens(rest)) if number or re.fullmatch(r"\W*[a-h]\W*(?:[ivx]*\W*)", rest) or not rest else (key, ())
    )


def _place(key: str, number: str, path: tuple[str, ...], asked: Asked, exercise: Exercise) -> Place:
    names = tuple(quantity.rpartition("_")[2] for quantity in asked.quantity.split("+"))
    blanks = tuple(asked.object.split(", ")) if asked.quantity == "blank" and ", " in asked.object else ()
    pieces = names if len(names) > 1 else ()
    kind = "blanks" if blanks else "pieces" if pieces else _kind(asked)
    return Place(key, asked.label, number, path, kind, asked, exercise, blanks, pieces)


def _kind(asked: Asked) -> str:
    """What an answer looks like: "choice", "blank", "class", "words", "array", "formula", "proof", "shape" or ""."""
    if asked.rubric:
        return "words"
    form = asked.form or quantities().get(asked.quantity, {}).get("form", "")
    if asked.options:
        return "choice"
    if asked.quantity.startswith("growth"):
        return "class"
    kinds = {"number": "formula", "vector": "array", "matrix": "array", "tensor": "array", "code": "blank"}
    return kinds.get(form, form)


def _texts(exercise: Exercise) -> list[str]:
    """Everything that an exercise says, of its parts and options too."""
    found = [exercise.text, exercise.title]
    for asked in exercise.asked:
        found += [asked.text, *(option.text for option in asked.options)]
    for record in getattr(exercise, "records", {}).values():
        found += _texts(record)
    return [text for text in found if text]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{4,}", text.lower())


def _shingles(text: str) -> list[str]:
    letters = re.sub(r"\\[A-Za-z]+|[\W_]+", "", text).lower()
    return [letters[at : at + _SHINGLE] for at in range(len(letters) - _SHINGLE + 1)]


def label_of(line: str) -> Label | None:
    """The label that a line begins with, or None.

    >>> found = label_of("✅ Final answer for part (b)(ii): x")
    >>> found.path, found.answer, label_of("Then (a) holds."), label_of("4(c): time").number
    (('b', 'ii'), True, None, '4')
    """
    found = _label().match(line)
    if found is None:
        return None
    lows = ("round_low", "tight", "half_low", "dotted_low", "bare_low")
    low = next((found[name] for name in lows if found[name]), "")
    letter = next(found[name] for name in ("round", "half", "dotted", "bare") if found[name])
    part, blank, number = bool(found["part"]), bool(found["blank"]), found["number"] or ""
    if (found["bare"] and not (part or blank or number)) or (found["led"] and ":" not in found["end"]):
        return None
    if found["answer"] and not found["end"].strip() and not (part or found["round"]):
        return None
    if letter.isupper() and not (part or blank):
        return None
    rest = line[found.end() :]
    told = re.match(r"\s*(?:is|are)\s*[:：]?(?=\s|$)", rest) if found["answer"] else None
    if pattern("mentioned").match(rest) and not found["end"].strip() and told is None:
        return None
    path = (letter.lower(), low.lower()) if low else (letter.lower(),)
    answer = re.search(r"answer|result", found["answer"] or "", re.IGNORECASE) is not None
    end = found.end() + (told.end() if told else 0)
    return Label(number, path, end, answer, part, blank, bool(found["dotted"] or found["bare"]))


def heading_of(line: str, questions: Questions) -> str | None:
    """The number of the question that a line is the heading of."""
    plain = re.sub(rf"^{phrases()['lead']}", "", line)
    found = pattern("heading").match(plain)
    short = found is not None and re.match(r"q\W*\d", plain, re.IGNORECASE) is not None
    if (
        found
        and len(plain) < 200
        and not (short and not re.match(r"Q\s*\.?#?\d{1,2}\s*[.:)(—–-]|Q\s*\d{1,2}[a-h]\b", plain))
    ):
        return found["number"]
    titled = pattern("numbered_title").match(plain)
    if titled and titled["number"] in questions.places and questions.is_title(titled["number"], titled["title"]):
        return titled["number"]
    return None


def prompted(text: str, student: bool) -> str | None:
    """The number of the question that a prompt asks for; the last one where it names several. "?" for the next one."""
    found = None
    for match in pattern("prompt").finditer(text):
        before = text[: match.start("noun")]
        if re.search(phrases()["not_this"], before, re.IGNORECASE):
            continue
        if student or re.search(phrases()["prompt_verb"], before, re.IGNORECASE):
            found = match["number"]
    if bare := pattern("prompt_bare").search(text):
        found = bare["number"]
    following = pattern("next").search(text)
    if found is None and following and (student or len(text) < 200):
        asked = student or re.search(phrases()["prompt_verb"], text[: following.start()], re.IGNORECASE)
        return "?" if asked else None
    return found


def mentions(text: str) -> list[tuple[str, ...]]:
    """The parts that a prompt speaks of.

    >>> mentions("Are you sure about b? And part (c)(ii)?")
    [('b',), ('c', 'ii')]
    """
    found = []
    for match in pattern("mention").finditer(text):
        letter = match["one"] or match["two"] or match["three"]
        low = match["sub"] or match["low"] or match["under"]
        found.append((letter.lower(), low.lower()) if low else (letter.lower(),))
    return list(dict.fromkeys(found))


def deeper(path: tuple[str, ...], letters: set[str], current: tuple[str, ...]) -> tuple[str, ...]:
    """A label "(ii)" as a step below the letter that is spoken of."""
    lone = len(path) == 1 and path[0] in _ROMANS and (path[0] not in letters or len(path[0]) > 1)
    return (current[0], path[0]) if lone and current else path
