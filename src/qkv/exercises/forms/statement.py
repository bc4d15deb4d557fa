"""A short text read as one answer: marks, lead-in phrases and reasons are taken off, hedges and denials are refused.

The phrases are data (phrases.toml). What is left has to be mathematics as a whole: nothing is cut out of prose.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from functools import cache
from importlib.resources import files
from typing import Any

from ...documents.patterns import Table
from ..findings import Finding

LONGEST = 60_000  # characters of an answer
PATTERNS = Table("qkv.exercises.forms", "patterns.toml", 0)

_SMALL = str.maketrans({**{sign: f"_{digit}" for digit, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")}, "ᵢ": "_i", "ⱼ": "_j"})
MOST_PHRASES = 8  # around one answer; more are no sentence
_SHAPES = {
    "lead_ins": r"\s*(?:{})\s*",
    "tails": r"(?:{})\s*$",
    "hedges": r"(?<![\w\\=])(?:{})(?!\w)",
    "denials": r"(?<![\w\\=])(?:{})(?!\w)",
    "denying_signs": r"{}",
    "counted": r"(?:(?<=[\d.)}])|(?<=\d[kmbt])|(?<=illion)|(?<=housand))\s*(?:{})\s*$",
}


@cache
def phrases() -> dict[str, Any]:
    """The data file of phrases."""
    return tomllib.loads(files("qkv.exercises.forms").joinpath("phrases.toml").read_text(encoding="utf-8"))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """One expression for all phrases under a name."""
    each = "|".join(f"(?:{phrase})" for phrase in phrases()[name])
    return re.compile(_SHAPES[name].replace("{}", each), re.IGNORECASE | re.DOTALL)


def plain_text(text: str) -> str:
    """The text without control characters, bold letters and spacing commands; lower digits as subscripts."""
    text = "".join(sign for sign in text if sign in "\n\t" or unicodedata.category(sign) not in ("Cc", "Cf"))
    text = text.translate(_SMALL).replace("\xa0", " ").replace("−", "-").replace("’", "'")
    text = re.sub(r"_(\w),?_(\w)", r"_{\1,\2}", text)
    text = re.sub(r"(?<!\w)(?i:about|approximately|roughly|around|approx\.?)\s+(?=\$?[\d(\[.-])|~(?=\s?\d)", "≈ ", text)
    return PATTERNS["bold"].sub(lambda found: f" {found[1] or found[2]}", text)


def stated(text: str) -> str | Finding:
    r"""The one answer that a text states, or the finding that says why it states none.

    >>> stated(r"So the answer is $\mu^T \mu$."), stated(r"\boxed{d}"), stated("maybe d?").code, stated("not d").code
    ('\\mu^T \\mu', 'd', 'hedged', 'denied')
    """
    if not text.strip():
        return Finding("no_answer")
    if len(text) > LONGEST:
        return Finding("too_long", {"size": len(text), "most": LONGEST})
    text = plain_text(text)
    marked = _boxed(text) or _only([each.strip() for each in PATTERNS["answer"].split(text)[1:]]) or text
    return marked if isinstance(marked, Finding) else doubted(marked) or trimmed(marked) or Finding("no_answer")


def without_question(text: str, question: str) -> str:
    """What an answer says, where it begins with the words of its question; the text itself elsewhere.

    A case that the answer names, "when d = 3", must stand in the question.

    >>> without_question("The mean of the score is $d$.", "Find the mean of the score, in terms of $d$.")
    '$d$'
    >>> without_question("The mean is $d$.", "Find the variance.")
    'The mean is $d$.'
    """
    said = PATTERNS["restated"].match(text.strip())
    if said is None:
        return text
    asked, subject = _words(question), _words(said["subject"])
    cases = re.split(r",|\band\b", said["case"] or "")
    if not all(re.search(re.escape(squeezed(case)) + r"(?![\d^]|\.\d)", squeezed(question)) for case in cases):
        return text
    for asking in PATTERNS["asking"].finditer(asked):
        rest = asked[asking.end() :]
        if rest.startswith(subject) and PATTERNS["asked_end"].match(rest, len(subject)):
            return said["answer"]
    return text


def _words(text: str) -> str:
    return " ".join(PATTERNS["marks"].sub(" ", plain_text(text)).split())


def trimmed(text: str) -> str:
    """A text without marks, without the part's letter, and without phrases before and behind."""
    text = re.sub(r"\*\*([^*\n]+)\*\*", r"\1", text)
    text = PATTERNS["aligned"].sub(" ", text.replace("&", " ")) if PATTERNS["aligned"].search(text) else text
    text = PATTERNS["spaces"].sub(" ", PATTERNS["marks"].sub(" ", text))
    text = PATTERNS["part"].sub("", text.strip())
    for _ in range(MOST_PHRASES):
        before = text
        text = pattern("tails").sub("", text).strip()
        led = pattern("lead_ins").match(text)
        text = text[led.end() :] if led else text
        if text == before:
            break
    return text


def doubted(text: str) -> Finding | None:
    """The finding on a text that doubts, asks, supposes or denies; None for one that states."""
    # A reason behind "because" says why, not what.
    claim = re.split(r"\b(?:because|since)\b", text, maxsplit=1)[0]
    if (hedge := pattern("hedges").search(text) or re.search(r"\?", claim)) is not None:
        return Finding("hedged", {"words": hedge[0].strip()})
    claim = PATTERNS["marks"].sub(" ", claim).strip()
    if (denial := pattern("denials").search(claim) or pattern("denying_signs").search(claim)) is not None:
        return Finding("denied", {"words": denial[0].strip()})
    return None


def alternatives(text: str) -> list[str]:
    """The answers between which an "or" leaves the choice, or one amount in two units; one for a text without them."""
    if both := PATTERNS["amounts"].match(text.strip()):
        return [both["one"], both["bracket"] or both["behind"]]
    return [piece.strip(" ,") for piece in re.split(r"(?<![\w\\])or(?!\w)", text)]


def _boxed(text: str) -> str | Finding | None:
    """What stands in the last box; the clause before it must not doubt it."""
    spans = [
        (opened.start(), opened.end(), closing(text, opened.end() - 1)) for opened in PATTERNS["box"].finditer(text)
    ]
    if any(end < 0 for _, _, end in spans):
        return Finding("torn")
    doubt = doubted(re.split(r"[.;\n]", text[: spans[-1][0]])[-1]) if spans else None
    return doubt or _only([text[start:end].strip() for _, start, end in spans])


def _only(found: list[str]) -> str | Finding | None:
    """The one answer that is marked as such, however often."""
    if len({squeezed(trimmed(each)) for each in found}) > 1:
        return Finding("several", {"count": len(found)})
    return found[-1] if found else None


def closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` is closed; -1 where it never is."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    return -1


def split_outside(text: str, signs: str) -> list[str]:
    """The text cut at `signs` that stand in no brackets and in no matrix.

    >>> split_outside("f(a, b), c", ",")
    ['f(a, b)', ' c']
    """
    pieces, depth, begun, start = [], 0, 0, 0
    for place, sign in enumerate(text):
        if sign == "\\":
            begun += text.startswith(r"\begin", place) - text.startswith(r"\end", place)
        depth += (sign in "([{") - (sign in ")]}")
        if sign in signs and depth <= 0 and begun <= 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]


def squeezed(text: str) -> str:
    """A text without what makes no difference to a reader.

    >>> squeezed(r"\\mathbf{W}_Q^\\top X") == squeezed("W_Q^T X")
    True
    """
    text = (
        PATTERNS["spaces"].sub("", PATTERNS["marks"].sub("", plain_text(text))).replace(r"\top", "T").replace("ᵀ", "^T")
    )
    text = re.sub(r"\\(?:mathrm|text|operatorname|mathcal|mathbb|cdot|times)(?![A-Za-z])", "", text)
    return "".join(sign for sign in text if sign not in " \t\n{}*;.\\")
