"""Words as they are read: signs turned into words, sentences, what a negation takes back, what is put where."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

SIGNS = {
    r"\\(?:neq?|not\s*=)(?![a-z])|≠|!=|=/=|/=": " is not equal to ",
    r"\\(?:geq?|geqslant)(?![a-z])|≥|>=": " is at least ",
    r"\\(?:leq?|leqslant)(?![a-z])|≤|<=": " is at most ",
    r"\\gg(?![a-z])|≫|>>": " is much greater than ",
    r"\\ll(?![a-z])|≪|<<": " is much less than ",
    r"\\(?:long)?(?:right)?arrow(?![a-z])|\\to(?![a-z])|→|⟶|->": " tends to ",
    r"\\(?:implies|Rightarrow|therefore)(?![a-z])|⇒|∴|=>": " so ",
    r"\\gt(?![a-z])|>": " is greater than ",
    r"\\lt(?![a-z])|<": " is less than ",
    r"\\(?:approx|simeq|sim)(?![a-z])|≈|≃": " is about ",
    r"\\propto(?![a-z])|∝": " is proportional to ",
    r"\\infty(?![a-z])|∞": " infinity ",
    r"\\forall(?![a-z])|∀": " for all ",
    r"\\exists(?![a-z])|∃": " there is ",
    r"\\nabla(?![a-z])|∇": " gradient ",
    r"\\partial(?![a-z])|∂": " d",
    r"\\sum(?![a-z])|∑|Σ": " sum ",
    r"\\sqrt(?![a-z])|√": " sqrt ",
    r"\\(?:times|cdot)(?![a-z])|×|·": " times ",
    r"\\(?:checkmark|surd)(?![a-z])|[✓✔☑✅]": " yes ",
    r"\\xmark(?![a-z])|[✗✘❌☒]": " no ",
}
_GREEK = {sign: unicodedata.name(sign).split()[-1].lower() for sign in "αβγδεζηθικλμνξπρστυφχψω"}
_GREEK |= {"ϵ": "epsilon", "ϕ": "phi", "λ": "lambda"}
_RAISED = str.maketrans({**{sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}, "ᵀ": "^T"})
_SHORT = {r"\bcan['’]?t\b": "can not", r"\bcannot\b": "can not", r"\bwon['’]t\b": "will not", r"n['’]t\b": " not"}
_WRAPPERS = (
    r"\\(?:text\w*|math\w*|operatorname\*?|boldsymbol|bm|left|right|big+l?r?|displaystyle|emph|quad|qquad)(?![a-z])"
)
_NEGATIONS = (
    r"(?:not(?! (?:only|just|merely|simply))|no|never|none|nothing|neither|nor|without|hardly|barely|"
    r"fails? to|failing to|"
    r"instead of|rather than)"
)
# Words that may stand between a negation and what it takes back: "is not at all likely to be zero".
_LIGHT = (
    r"(?:a|an|the|any|case|true|all|every|each|at|be|been|being|is|are|was|it|that|to|very|so|too|quite|just|only|even|ever|"
    r"longer|become|becomes|get|gets|go|goes|reach|reaches|equal|hit|hits|remain|remains|stay|stays|have|has|"
    r"likely|of|this|these|those|its|their|such|much|more|as|by|in|into|need|needs|use|uses|apply|applied|"
    r"or|and|strictly|exactly|necessarily|always|\w+ly)"
)
_FALSE_THAT = (
    r"\b(?:not (?:true|the case|so|correct|right)|wrong|false|incorrect|untrue|mistaken|nonsense|"
    r"an? (?:common |known |frequent )?(?:myth|mistake|error|misconception|fallacy)) "
    r"(?:to (?:say|think|claim|believe) )?that\b"
    r"|\b(?:nobody|no one|few) (?:says?|claims?|thinks?|believes?)(?: that)?\b"
    r"|\bfar from (?:true|clear) that\b"
)
_TAKEN_BACK = (
    r"^\W*(?:(?:\w+\W+){0,3}?(?:is|are|was|would be|will be)\s+(?:(?:simply|just|plainly|quite|also)\s+)?"
    r"(?:not\s+(?:the case|true|so|right|correct|a problem|needed|required|necessary|used|applied|there|present)|"
    r"false|wrong|untrue|incorrect|a myth|impossible|unnecessary|absent)|"
    r"(?:do|does|did|will|would|can|could|may|need|should|must)\s+not\b|never\b|is\s+not\s+(?:needed|used|applied|required))"
)


@lru_cache(maxsize=256)
def normalised(text: str) -> str:
    """Lower case, signs as words, LaTeX and Markdown taken off, "n't" as "not", one space between words.

    >>> normalised(r"The **Gradient** isn't zero: $\\sum_j s_{ij} \\neq 0$, i.e. non-zero.")
    'the gradient is not zero: sum _j s_ij is not equal to 0, i.e. nonzero.'
    """
    text = unicodedata.normalize("NFKC", text.translate(_RAISED)).replace("’", "'")
    for sign, name in _GREEK.items():
        text = text.replace(sign, f" {name} ")
    text = re.sub(r"\\(?:begin|end)\s*\{[^{}]*\}", "\n", text)
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1 / \2", text)
    text = re.sub(_WRAPPERS, " ", text)
    for sign, word in SIGNS.items():
        text = re.sub(sign, word, text)
    text = re.sub(r"\\[,;:!]|~", " ", text)
    text = text.replace("\\\\", "\n")
    text = re.sub(r"[$\\{}*`\"“”]", "", text)
    text = re.sub(r"(?<!\w)_+(\w[^_\n]*)_+(?!\w)", r"\1", text)
    text = text.lower()
    for short, full in _SHORT.items():
        text = re.sub(short, full, text)
    text = re.sub(r"\bnon[\s-]+(?=[a-z])", "non", text)
    text = re.sub(r"(?<=[a-z])[-‐‑–](?=[a-z])", " ", text)
    text = re.sub(r"[ \t\r\f\v\u00a0]+", " ", text)
    if "1)" in text and " 2) " in text and "(2)" not in text:
        text = re.sub(r" (?=[1-9]\) )", "\n", text)  # a list that was written in one line
    return re.sub(r" ?\n[\n ]*", "\n", text).strip()


@lru_cache(maxsize=256)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, normalised; a line of a list is one of its own."""
    kept = re.sub(
        r"\b(i\.e|e\.g|cf|etc|resp|vs|eq|w\.r\.t)\.", lambda found: found[1].replace(".", ""), normalised(text)
    )
    joined_lines = re.sub(r"\n(?![-•#|(\d]|[^\n:]{1,60}:)", " ", kept)
    pieces = re.split(r"(?<=[.!?;])\s+|\n", joined_lines)
    return tuple(piece.strip() for piece in pieces if piece.strip())


def denied(sentence: str, start: int, stop: int, own: bool) -> bool:
    """Whether what stands from `start` to `stop` is taken back by words around it, or in it unless it is its `own`.

    >>> say = "the sum is not necessarily zero"
    >>> denied(say, say.index("zero"), len(say), False)
    True
    >>> say = "if we do not scale, gradients vanish"
    >>> denied(say, say.index("gradients"), len(say), False)
    False
    """
    before = re.split(r"[,:;()]|\bbut\b|\bhowever\b|\bso\b|\bthen\b|\bbecause\b", sentence[:start])[-1]
    # "It is false that …" denies all that follows in its clause.
    false = re.search(_FALSE_THAT, before)
    before = before[false.end() :] if false else before
    # "no useful gradient" denies the gradient, whatever word stands between.
    count = len(re.findall(rf"\b(?:{_NEGATIONS}\s+(?:{_LIGHT}\s+)*|no\s+\w+\s+)$", before)) + (false is not None)
    if not own:
        count += len(re.findall(rf"\b{_NEGATIONS}\b", sentence[start:stop]))
    after = re.split(r"[,:;()]|\bbut\b|\bbecause\b|\bwhen\b|\bif\b", sentence[stop:])[0]
    count += re.match(_TAKEN_BACK, after) is not None
    return count % 2 == 1


def places_of(
    answer: str, places: Mapping[str, tuple[str, ...]], things: Mapping[str, tuple[str, ...]]
) -> dict[str, frozenset[str]]:
    """Place to things, from a table where there is one, else from sentences."""
    rows = [line for line in normalised(answer).split("\n") if line.count("|") >= 2 or line.count("&") >= 2]
    found = _from_table(rows, places, things) if len(rows) >= 2 else {}
    return found or _from_sentences(answer, places, things)


def _from_table(rows: Iterable[str], places, things) -> dict[str, frozenset[str]]:
    cells = [[cell.strip() for cell in re.split(r"[|&]", row.strip().strip("|"))] for row in rows]
    cells = [row for row in cells if not all(re.fullmatch(r"[:\s-]*", cell) for cell in row)]
    header = [next(iter(_mentioned(cell, things)), None) for cell in cells[0]]
    found: dict[str, frozenset[str]] = {}
    for row in cells[1:]:
        where = _mentioned(row[0], places)
        if not where:
            continue
        if any(header[1:]):
            put = {
                thing
                for thing, cell in zip(header[1:], row[1:], strict=False)
                if thing and re.match(r"(?:yes|y|x|1|true|applied|used|needed|required|✓)\b", cell)
            }
        else:
            put = _put(" ".join(row[1:]), things)
        for place in where:
            found[place] = frozenset(put)
    return found


def _from_sentences(answer: str, places, things) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    last: tuple[str, ...] = ()
    context: set[str] = set()
    for sentence in sentences(answer):
        for clause in re.split(r";|\bwhereas\b|\bwhile\b|(?<=\w), but\b|\bbut\b", sentence):
            here = _mentioned(clause, places) or _completed(clause, places, context)
            if re.search(r"\b(?:all|every|each|both) (?:\w+ )?(?:attentions?|modules?|places|stacks|cases)\b", clause):
                here = tuple(places)
            context = _vocabulary(clause, places) or context
            named = _put(clause, things)
            spoken = named or re.search(r"\b(?:no|none|neither|nothing)\b", clause) or _said_at_all(clause, things)
            where = here or last
            if here:
                last = here
            if spoken:
                for place in where:
                    found.setdefault(place, set()).update(named)
    return {place: frozenset(put) for place, put in found.items()}


def _put(clause: str, things) -> set[str]:
    """The things that a clause puts somewhere: those that it names and does not deny."""
    if re.search(r"\bneither\b", clause):
        return set()
    every = r"(?<!not )\b(?:both|all)\b(?! (?:\w+ )?(?:attentions?|modules?|stacks|cases|positions|tokens|keys))"
    if re.search(every, clause):
        return set(things)
    only = [name for name in things if any(f"only {match}" in clause for match in _matches(name, things[name], clause))]
    if only:
        return set(only)
    return {
        name
        for name, patterns in things.items()
        if any(
            not denied(clause, *found.span(), False)
            for expression in _expressions(name, patterns)
            for found in expression.finditer(clause)
        )
    }


def _said_at_all(clause: str, things) -> bool:
    return any(_matches(name, patterns, clause) for name, patterns in things.items())


def _matches(name: str, patterns: tuple[str, ...], clause: str) -> list[str]:
    return [found[0] for expression in _expressions(name, patterns) for found in expression.finditer(clause)]


def _mentioned(clause: str, places) -> tuple[str, ...]:
    """The places that a clause names; one whose words lie inside another's that is named is not meant by them."""
    spans = {
        name: [found.span() for expression in _expressions(name, patterns) for found in expression.finditer(clause)]
        for name, patterns in places.items()
    }
    every = [span for found in spans.values() for span in found]

    def inside(span: tuple[int, int]) -> bool:
        return any(a <= span[0] and span[1] <= b and (a, b) != span for a, b in every)

    return tuple(name for name, found in spans.items() if any(not inside(span) for span in found))


@lru_cache(maxsize=512)
def _expressions(name: str, patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    words = re.findall(r"\w+", normalised(name))
    plain = r"(?<!\w)" + r"(?:s|'s)?(?:\s+\w+)?\s+".join(map(re.escape, words)) + r"(?:s|ed|ing)?(?!\w)"
    return tuple(re.compile(rf"(?<!\w)(?:{pattern})", re.IGNORECASE) for pattern in patterns) or (re.compile(plain),)


def _vocabulary(clause: str, places) -> set[str]:
    words = set(re.findall(r"\w+", clause))
    return {word for name in places for word in re.findall(r"\w+", normalised(name)) if word in words}


def _completed(clause: str, places, context: set[str]) -> tuple[str, ...]:
    """Places that a clause names in part ("the self-attention") and the words before it complete ("in the decoder")."""
    here = _vocabulary(clause, places)
    if not here:
        return ()
    marks = here - {"attention"}
    own = {name: set(re.findall(r"\w+", normalised(name))) - {"attention"} for name in places}
    fits = {name: words for name, words in own.items() if words and words <= here} or {
        name: words for name, words in own.items() if words & marks and words <= here | context
    }
    if not fits:
        # One word is enough where it belongs to one place alone.
        fits = {
            name: own[name]
            for mark in marks
            for name in places
            if [mark in words for words in own.values()].count(True) == 1 and mark in own[name]
        }
    return tuple(name for name, words in fits.items() if not any(words < other for other in fits.values()))
