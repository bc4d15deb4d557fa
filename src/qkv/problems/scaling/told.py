"""What a question on a dot product tells of its law beyond names: numbers, factors, and what no law here can say."""

from __future__ import annotations

import re

_OTHER_LAW = re.compile(
    r"\buniform(?:ly)?\b|\blaplac|\bexponential(?:ly)? distribut|\bbernoulli|\brademacher|\bstudent(?:'s)?[- ]t\b|"
    r"\bcauchy|\bpoisson|\bgamma distribut|\bchi[- ]squared?|\bcoin|\bequal probability|\\pm ?1|±1|\+1 or -1|"
    r"(?<!un)(?<!un-)\bcorrelated|\bcorrelation\b|\bnot (?:necessarily )?independent|(?<!in)\bdependent\b|"
    r"\b(?:is|are|be|a) (?:fixed|given|deterministic|known|constant)(?= and|,| vector| while| query| key)|"
    r"\bsame vector\b|\bunit (?:sphere|length|norm)|\bon the sphere\b|\bones[- ]vector|\bvector of (?:all )?ones",
    re.IGNORECASE,
)
_OTHER_ASK = re.compile(
    r"\bskew|\bkurtosis|\b(?:second|third|fourth) moment of|\bcovariance (?:of|between)\b[^.?]{0,30}\band\b|"
    r"\bprobability that|\bcosine\b|\bmedian\b|\bmaximum of\b|\bEuclidean distance",
    re.IGNORECASE,
)
_TURN = r"(?:\^ ?\{? ?(?:T|\\top|\\intercal|⊤) ?\}?|ᵀ|\\cdot|·|⋅)"
_ROOT = re.compile(r"\\?(?:sqrt|√) ?[{(]? ?\\?[A-Za-z]+(?:_\{?\w+\}?)? ?[})]?")


SOLUTION = re.compile(
    r"^[ \t>*#-]*(?:Solutions?|Answers?|Proof)\b[*_ ]*[:.].*?(?=^[ \t>*#-]*\(?(?:[a-h]|[ivx]+|\d)[).]\s|\Z)",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_DISPLAY = re.compile(r"\$\$.*?\$\$|\\\[.*?\\\]", re.DOTALL)


def without_work(text: str) -> str:
    """A question without solutions that stand in it and without displayed formulas that derive something.

    >>> without_work("Find E[x].\\nSolution: it is 3.\\n(b) And $$a = b$$? Since $$a = b = c$$ so.")
    'Find E[x].\\n(b) And $$a = b$$? Since  so.'
    """
    return _DISPLAY.sub(lambda found: found[0] if found[0].count("=") < 2 else "", SOLUTION.sub("", text))


def tells_more(plain: str, q: str, k: str) -> bool:
    """Whether a text tells of a law, or asks of a score, that cannot be said here.

    >>> tells_more("q standard normal and k = q", "q", "k"), tells_more("q, k uniform on [0, 1]", "q", "k")
    (True, True)
    """
    if _OTHER_LAW.search(plain) or _OTHER_ASK.search(plain):
        return True
    one, two = re.escape(q), re.escape(k)
    same = rf"(?<![\w^,]){one} ?= ?-?{two}(?!\w)|(?<![\w^,]){two} ?= ?-?(?:\w ?)?{one}(?![\w^])"
    if re.search(same, plain) or re.search(rf"\bE ?\[ ?{one}_i ?{two}_i ?\] ?= ?(?:[a-z]\b|\\rho|[\d.-])", plain):
        return True
    dot = rf"(?<![\w\\]){one} ?{_TURN} ?"
    if re.search(rf"{dot}[A-Z](?:_\w+)? ?{two}(?!\w)|{dot}{two} ?(?:\+|- ?(?:\d|\\|{one}\b)|\^ ?\{{?[2-9])", plain):
        return True  # a bilinear form, or a score with something added
    return any(not _is_score(inside, one, two) for inside in _moments(plain))


def _moments(plain: str) -> list[str]:
    """What stands in the brackets of every E and Var."""
    found = []
    for place in re.finditer(r"(?<![A-Za-z\\])(?:E|Var|var|V) ?([\[(])", plain):
        depth = 0
        for at in range(place.end() - 1, min(len(plain), place.end() + 200)):
            depth += (plain[at] in "([{") - (plain[at] in ")]}")
            if depth == 0:
                found.append(plain[place.end() : at])
                break
    return found


def _is_score(inside: str, q: str, k: str) -> bool:
    """Whether it is the score, over a divisor or not, a sum of its terms, or something of one vector alone."""
    bare = re.sub(r"[{}()\[\] ]|\\(?:left|right|bigl?|bigr?)", "", inside)
    dot = rf"(?:\d*\\?[dt]?(?:frac)?(?:{q}(?:_\w)?(?:\^(?:T|\\top|\\intercal|⊤)|ᵀ|\\cdot|·|⋅){k}(?:_\w)?|⟨{q},{k}⟩|"
    dot += rf"\\langle{q},{k}\\rangle|(?:\\sum|∑|Σ)?(?:_(?:\w=?1?)(?:\^\w(?:_\w)?)?)?{q}_\w{k}_\w))"
    below = r"(?:/?(?:\\?sqrt|√)?\\?[A-Za-z]+(?:_\w+)?)?"
    if re.fullmatch(dot + below, bare) or "..." in bare or re.fullmatch(r"\\?\w+(?:_\w+)?(?:/\\?\w+)?", bare):
        return True
    apart = re.sub(r"\^(?:T|\\top|\\intercal|⊤)", "^", bare)
    return not all(re.search(rf"(?<![A-Za-z]){name}(?![a-z])", apart) for name in (q, k))


def factor_of(plain: str, q: str, k: str) -> int | None:
    """The whole number that every asked score is multiplied by; None where scores have several, or a fraction.

    >>> factor_of("the mean of 3q^T k", "q", "k"), factor_of("E[q^T k] and E[2 q^T k]", "q", "k")
    (3, None)
    """
    number = r"(-?\d+(?:\.\d+)?|\\[dt]?frac ?\{? ?\d ?\}? ?\{? ?\d ?\})?"
    dot = rf"(?<![\w^_]){number} ?{re.escape(q)} ?{_TURN} ?{re.escape(k)}(?![a-zA-Z])"
    found = {each[1] or "1" for each in re.finditer(dot, plain)}
    if not found:
        return 1
    only = found.pop()
    return int(only) if not found and only.isdigit() and 0 < int(only) < 1000 else None


def over_root(piece: str) -> bool:
    """Whether what is asked is a moment of a score that is divided by a root already."""
    return any(_ROOT.search(inside) for inside in _moments(piece))


def square_of(text: str, deviation: bool) -> str | None:
    """The variance that a number tells, as digits: of a standard deviation its square; None for a fraction."""
    text = {"one": "1", "two": "2", "three": "3", "four": "4", "zero": ""}.get(text.lower(), text)
    if not re.fullmatch(r"\d{1,4}", text) or int(text) == 0:
        return None
    return str(int(text) ** 2) if deviation else text
