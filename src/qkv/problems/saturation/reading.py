"""Reads a question on scores that are not scaled: its names and what it asks for."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..scaling.reading import undressed
from .numbers import Case
from .parts import Names

LONGEST = 20_000  # characters; a longer text is no single question

_SCORES = r"\battention\b|\b(?:dot|inner)[ -]products?\b|\bscores?\b|\blogits\b|\bd_\{? ?(?:head|k|h)\b"
_WITHOUT = (
    r"\bconsequence|\bnot (?:doing|divid|scal)|\bwithout\b|\bwhat (?:would|happens|if)|\bomit|\bleft out|"
    r"\bif we do(?: not|n't)"
)


class Question(NamedTuple):
    """What was read: how sure it is, the names, and what is asked."""

    confidence: float
    given: Names | Case
    asked: tuple[str, ...]


def read_question(text: str) -> Question | None:
    """The question, or None where the text asks something else."""
    if len(text) > LONGEST:
        return None
    plain = undressed(text)

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
    if divide and root and (softmax or has(_SCORES)) and (without or (why and not has(r"\bvar(?:iance)?\s*\("))):
        asked = _lettered(plain) or ("moments", "jacobian", "norm", "bound", "words")
        if len(asked) == 5 and not (has(r"\bprove\b|\bproof\b|\bmathematical|\bshow\b|\bderive\b") or jacobian):
            asked = ("words",)
        return Question(min(1.0, 0.5 + 0.12 * sum((why, divide, root, without, softmax))), names, asked)
    if jacobian and softmax:
        return Question(0.75, names, ("jacobian", "norm") if has(r"\bfrobenius\b|\bnorm\b") else ("jacobian",))
    return None


def _lettered(plain: str) -> tuple[str, ...]:
    """What the parts ask, where there are two or more with letters."""
    signs = {
        "bound": r"\bbound\b",
        "norm": r"\bfrobenius\b",
        "jacobian": r"\bjacobian\b",
        "moments": r"\bmean and (?:the )?variance\b|\bvariance of\b",
        "words": r"\bconsequence|\bcome of\b|\bwhat (?:would|happens)|\bwhy\b|\bwithout\b",
    }
    pieces = re.split(r"(?:^|\n|(?<=[.?:;]))\s*\(?\b[a-h]\)\s", plain)[1:]
    asked = (
        next((ask for ask, sign in signs.items() if re.search(sign, piece, re.IGNORECASE)), "") for piece in pieces
    )
    found = tuple(dict.fromkeys(ask for ask in asked if ask))
    return found if len(found) > 1 else ()


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


def _names(plain: str) -> Names:
    width = re.search(r"\\?(?:sqrt|√) ?[({]? ?([A-Za-z](?:_ ?\{? ?\w+ ?\}?)?)", plain)
    name = re.sub(r"[{} ]", "", width[1]) if width else "d"
    found = re.search(r"\b([a-z]) ?= ?softmax ?\(? ?([a-z])\b", plain)
    weights, scores = (found[1], found[2]) if found and found[1] != found[2] else ("a", "s")
    keys = re.search(r"\b([nNTLm]) (?:keys?|key vectors|scores|logits|tokens)\b", plain)
    # One letter cannot stand for two things.
    count = keys[1] if keys and keys[1] not in (name, weights, scores) else "n"
    return Names(name, scores, weights, count if count != name else "r")
