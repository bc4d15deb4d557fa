"""Words as they are read: signs turned into words, sentences, what a negation takes back."""

from __future__ import annotations

import re
import unicodedata
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
