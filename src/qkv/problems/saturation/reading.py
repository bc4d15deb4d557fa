"""Reads a question on scores that are not scaled: its names and what it asks for."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from ..reading.inline import on_own_lines
from ..reading.lettered import lettered
from ..scaling.reading import undressed
from ..scaling.told import without_work
from .numbers import Case
from .parts import Names
from .told import can_be_asked, deviation

LONGEST = 20_000  # characters; a longer text is no single question

_SCORES = r"\battention\b|\b(?:dot|inner)[ -]products?\b|\bscores?\b|\blogits\b|\bd_\{? ?(?:head|k|h)\b"
_WITHOUT = (
    r"\bconsequence|\bnot (?:doing|divid|scal)|\bwithout\b|\bwhat (?:would|happens|if)|\bomit|\bleft out|"
    r"\bif we do(?: not|n't)"
)


class Question(NamedTuple):
    """What was read: how sure it is, the names, what is asked, the parts' own names where they have letters.

    `case` are the numbers of parts that have some, in a question in letters.
    """

    confidence: float
    given: Names | Case
    asked: tuple[str, ...]
    names: tuple[str, ...] = ()
    case: Case | None = None


def read_question(text: str) -> Question | None:
    """The question, or None where the text asks something else, or tells what no part can say."""
    if len(text) > LONGEST:
        return None
    plain = undressed(text)
    found = _question(text, plain)
    if found is None or isinstance(found.given, Case):
        return found
    told = undressed(without_work(text))
    if not can_be_asked(told, found.asked):
        return None
    spread = deviation(told)
    if spread is None:
        return None if {"moments", "scale"} & set(found.asked) else found
    return found._replace(given=replace(found.given, deviation=spread))


def _question(text: str, plain: str) -> Question | None:

    def has(pattern: str) -> bool:
        return re.search(pattern, plain, re.IGNORECASE) is not None

    if has(r"\bkernel|\beinsum|\breceptive|\bargmax attention|\bbatch norm"):
        return None
    why = has(r"\bwhy\b|\bjustify\b|\breasons?\b|\bexplain\b|\bmotivat|\bpurpose\b")
    divide = has(r"\bdivid\w+|\bscal(?:e|ed|ing)\b|\bnormali[sz]")
    root = has(r"\\?sqrt|√|square root")
    without = has(_WITHOUT)
    softmax = has(r"\bsoftmax\b")
    jacobian = has(r"\bjacobian\b|\bfrobenius\b")
    if softmax and (counted := _counted(plain)) is not None:
        return counted
    names = _names(plain)
    if (parts := _lettered(text)) is not None and (softmax or jacobian) and (divide or root or jacobian):
        asked, letters, case = parts
        return Question(min(1.0, 0.5 + 0.1 * len(asked)), names, asked, letters, case)
    if divide and root and (softmax or has(_SCORES)) and (without or (why and not has(r"\bvar(?:iance)?\s*\("))):
        asked: tuple[str, ...] = ("moments", "jacobian", "norm", "bound", "words")
        if not (has(r"\bprove\b|\bproof\b|\bmathematical|\bshow\b|\bderive\b") or jacobian):
            asked = ("words",)
        return Question(min(1.0, 0.5 + 0.12 * sum((why, divide, root, without, softmax))), names, asked)
    if jacobian and softmax:
        return Question(0.75, names, ("jacobian", "norm") if has(r"\bfrobenius\b|\bnorm\b") else ("jacobian",))
    return None


_ASKS = {
    "bound": r"\bbound\b",
    "norm": r"\bfrobenius\b|\bnorm of\b",
    "jacobian": r"\bjacobian\b|\bderivatives? of (?:the )?softmax\b|\\partial\s*a|∂\s*a",
    "moments": r"\bmean\b[^.?]{0,30}\bvariance\b|\bvariance\b[^.?]{0,30}\bmean\b|\bvariance of\b|\bexpectation\b",
    "scale": r"\b(?:by|through) (?:what|which)\b|\bwhat\b[^.?]{0,30}\bdivide|\bdivid\w+ by\b|\bscal(?:e|ing) factor\b|"
    r"\b(?:unit variance|variance (?:is|of|becomes|equals|equal to) (?:1|one)\b(?! [a-z]))",
    "words": r"\bconsequence|\bcome of\b|\bwhat (?:would|happens|goes)|\bwhy\b|\bwithout\b|"
    r"\bif (?:nobody|we|you|one)\b|"
    r"\bexplain\b|\bgoes wrong\b",
}
_WEIGHTS = r"([a-z]) ?= ?[(\[] ?((?:\\[dt]?frac ?\{? ?\d+ ?\}? ?\{? ?\d+ ?\}?|\d+ ?/ ?\d+|\d?\.\d+|[,;& ])+) ?[)\]]"


def _lettered(text: str) -> tuple[tuple[str, ...], tuple[str, ...], Case | None] | None:
    """What the parts with letters ask, their names, and the weights of those at numbers; None for fewer than two."""
    _, parts = lettered(on_own_lines(text))
    found: dict[str, str] = {}
    case: Case | None = None
    for part in parts:
        piece = undressed(part.text)
        ask = _asks(piece)
        if ask in (None, "jacobian", "words") and (here := _weights(piece)) is not None:
            case, ask = here, "matrix"
        if ask is not None and ask not in found.values():
            found[part.name] = ask
    if len(found) < 2 or not {"jacobian", "words", "norm", "bound", "matrix"} & set(found.values()):
        return None
    return tuple(found.values()), tuple(found), case


def _asks(piece: str) -> str | None:
    """What a piece asks; what it asks first counts, and the Jacobian comes before what it is used for."""
    places = {
        ask: place.start()
        for ask, sign in _ASKS.items()
        if (place := re.search(sign, piece, re.IGNORECASE)) is not None
    }
    if "words" in places and re.search(r"\btraining\b|\bconsequence|\bcome of\b|\bgoes wrong\b", piece, re.IGNORECASE):
        return "words"
    for ask in ("bound", "norm", "jacobian", "scale", "moments", "words"):
        if ask in places and (ask != "moments" or "scale" not in places):
            return ask
    return None


def _weights(piece: str) -> Case | None:
    """Weights that are given as fractions, "a = (1/2, 1/3, 1/6)": as the softmax of logarithms of whole numbers."""
    given = re.search(_WEIGHTS, piece)
    if given is None:
        return None
    fractions = (
        re.findall(r"(\d+)\D{1,4}?(\d+)(?=\D|$)", re.sub(r"\\[dt]?frac", "", given[2])) if "." not in given[2] else ()
    )
    weights = [Fraction(int(top), int(below)) for top, below in fractions if int(below)]
    if "." in given[2]:
        weights = [Fraction(number) for number in re.findall(r"\d?\.\d{1,4}", given[2])]
    if not 2 <= len(weights) <= 6 or sum(weights) != 1 or min(weights) <= 0:
        return None
    whole = lcm(*(weight.denominator for weight in weights))
    counts = tuple(int(weight * whole) for weight in weights)
    return Case(counts, weights=given[1]) if max(counts) < 1000 and len(set(counts)) > 1 else None


_NUMBERS = {
    "temperature": r"\btimes as large\b|\btemperature\b",
    "spectral": r"\beigenvalue|\bspectral\b",
    "trace": r"\btrace\b",
    "size": r"\bfrobenius\b",
    "largest": r"\blargest entry\b",
    "row": r"\brow \d",
    "entry": r"\bderivative of\b|\\partial",
    "matrix": r"\bjacobian\b",
    "weights": r"\bweights?\b|\bsoftmax\b",
}


def _counted(plain: str) -> Question | None:
    """A question at scores that are logarithms of whole numbers."""
    given = re.search(r"([a-z]) ?= ?[(\[] ?((?:\\?(?:ln|log) ?\(?\d+\)?,? ?){2,8})[)\]]", plain)
    if given is None:
        return None
    counts = tuple(map(int, re.findall(r"\d+", given[2])))
    at = {"row": 1, "column": 2 if len(counts) > 1 else 1, "power": 2}
    asked: list[str] = []
    for piece in re.split(r"(?<=[.?])\s|\n", plain[given.end() :]):
        if not re.search(r"\?|\b(?:find|give|compute|write|which|what|derive|calculate)\b", piece, re.IGNORECASE):
            if (times := re.search(r"\b(\d) times as large", piece)) is None:
                continue
            at["power"] = int(times[1])
        ask = next((name for name, pattern in _NUMBERS.items() if re.search(pattern, piece, re.IGNORECASE)), None)
        if ask == "row" and (row := re.search(r"\brow (\d)", piece)):
            at["row"] = int(row[1])
        places = re.findall(r"_\{?(\d)\}?", piece) + re.findall(r"_(\d)", piece)
        if len(re.findall(r"_\{?\d", piece)) == 2:
            at["row"], at["column"] = int(places[0]), int(places[1])
        if ask is not None and ask not in asked:
            asked.append(ask)
    fits = max(at["row"], at["column"]) <= len(counts) and len(set(counts)) > 1 and all(0 < n < 100 for n in counts)
    if not asked or not fits or ("spectral" in asked and len(counts) != 2):
        return None
    return Question(0.8, Case(counts, at["row"], at["column"], at["power"], given[1]), tuple(asked))


_SIZE = r"([A-Za-z](?:_ ?\{? ?\w+ ?\}?)?)(?![\w^])"
_WIDTHS = (
    rf"\\?(?:sqrt|√) ?[({{]? ?{_SIZE}",
    rf"\bhead\b[^.;]{{0,20}}\b(?:width|dimension|size)(?: of| is)? {_SIZE}",
    rf"\b(?:have|has|with|of) {_SIZE} (?:components|entries|coordinates|dimensions)\b",
    r"\b(d_\{? ?(?:head|k|h)\b ?\}?)",
    rf"\b(?:width|dimension|length)(?: of| is)? {_SIZE}",
    r"\\in ?R\^ ?\{? ?([A-Za-z](?:_ ?\{? ?\w+ ?\}?)?)",
)


def _names(plain: str) -> Names:
    plain = plain.replace("`", " ").replace("  ", " ")
    width = next((found for pattern in _WIDTHS if (found := re.search(pattern, plain, re.IGNORECASE))), None)
    name = re.sub(r"[{} ]", "", width[1]) if width else "d"
    if "model" in name and (head := re.search(r"\b(d_\{? ?(?:head|k|h)\b ?\}?)", plain)):
        name = re.sub(r"[{} ]", "", head[1])  # a wrong guess in the text itself
    found = re.search(r"\b([a-z]) ?= ?softmax ?\(? ?([a-z])\b", plain)
    weights, scores = (found[1], found[2]) if found and found[1] != found[2] else ("a", "s")
    keys = re.search(r"\b([nNTLm]) (?:keys?|key vectors|scores|logits|tokens)\b", plain)
    # One letter cannot stand for two things.
    count = keys[1] if keys and keys[1] not in (name, weights, scores) else "n"
    return Names(name, scores, weights, count if count != name else "r")
