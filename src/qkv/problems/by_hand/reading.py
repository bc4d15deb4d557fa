"""Whether a text asks for attention by hand, and with which numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from ..exact import Matrix, Scale, times, transposed
from ..reading.literals import matrices_in
from .instance import UNSCALED, Instance

ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "last": -1}

_READ = 20_000
_OTHER = re.compile(
    r"\barg\s?m(?:ax|in)\b|\\arg\\?m(?:ax|in)|hard attention|linear(?:i[sz]ed)? attention|"
    # What an instance cannot say: several heads, biases, positions, another softmax, another likeness.
    r"\b(?:two|three|four|[2-9]|several|multiple) (?:attention )?heads\b|\bmulti-?head|\bb(?:ias)?_\{?[QKV]\}?\s*=|"
    r"(?<!no )(?<!without )\bbias(?:es)? (?:vectors?|terms?|of)\b|"
    r"(?<!no )(?<!without )\bpositional (?:encoding|embedding)|"
    r"\bALiBi\b|\brotary\b|\btemperature\b|\bsparsemax|\brelu\b|\b(?:squared|euclidean) distance|\bcosine similarit|"
    r"\bsliding window|\bpadding mask|\bis masked\b",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"attention|attend|softmax|quer(?:y|ies)", re.IGNORECASE)
_CAUSAL = re.compile(
    r"\bcausal|(?:only|just) (?:attends?|looks?) (?:to|at) (?:itself and )?(?:the )?(?:previous|earlier|tokens before)"
    r"|cannot (?:see|attend to) (?:the )?(?:future|later)",
    re.IGNORECASE,
)
_ROOT = r"(?:\\sqrt|sqrt|√)\s*[{(]?\s*(?:(?:\\mathbf|\\mathrm)?\{?\s*[dD]|(?P<root>[0-9]{1,4})(?![0-9]|\.[0-9]))"
_NUMERATOR = r"\\frac\s*\{[^{}]{0,60}(?:\{[^{}]{0,20}\}[^{}]{0,40}){0,6}\}\s*\{"
_SCALED = re.compile(
    rf"(?:{_NUMERATOR}|/\s*|divid\w+ by\s*\$?|scal\w+ by\s*\$?(?:1\s*/)?\s*)(?:{_ROOT})", re.IGNORECASE
)
_CALLED_SCALED = re.compile(r"(?<!un)(?<!un-)\bscaled[- ](?:dot|attention|scores?|softmax|self)", re.IGNORECASE)
_NUMBER_BELOW = re.compile(rf"=\s*{_NUMERATOR}\s*([2-9])\s*\}}")
_DIVIDED = re.compile(
    r"(?:k_?\{?\w?\}?|K\s*\^?\s*\{?\s*(?:T|\\top)\s*\}?|scores?|products?|logits)\)?\s*\$?\s*"
    r"(?:/|,?\s*(?:are |is )?divided by|,?\s*(?:are |is )?scaled by 1\s*/)\s*\$?([0-9]{1,3})(?![0-9]|\.[0-9])",
)
_UNSCALED = re.compile(r"\bunscaled|without (?:the )?scal|no scal|(?:do not|don't|not) (?:scale|divide)", re.IGNORECASE)
_COLUMNS = re.compile(
    r"columns? of (?:the )?(?:\w+ ){0,3}\$?\s*(?:\\mathbf\s*\{?)?X|"
    r"\b(?:tokens?|embeddings?|words|inputs)\b[^.;\n]{0,50}\b(?:its|the|in|as|per|a|each) columns?\b"
    r"(?! vectors?| of W)|"
    r"\bcolumns?\b(?! vectors?)[^.;\n]{0,50}\b(?:tokens?|embeddings?|words|inputs)\b",
    re.IGNORECASE,
)
_ROWS = re.compile(
    r"\brows? of (?:the )?(?:\w+ ){0,3}\$?\s*(?:\\mathbf\s*\{?)?X|\b(?:tokens?|embeddings?)\b[^.;\n]{0,50}\brows?\b",
    re.IGNORECASE,
)
_BOLD = r"(?:\\(?:mathbf|boldsymbol|bm|vec)\s*\{?\s*)?"
_ASKED = (
    re.compile(rf"(?<![A-Za-z]){_BOLD}[zsea]\s*\}}?\s*_\s*\{{?\s*([1-9])\s*,?\s*[1-9]"),
    re.compile(
        rf"(?:attention|scores?|output|weighted sum|token)[^.\n]{{0,60}}?(?:token|for|of|that)\s*\$?\s*{_BOLD}"
        r"(?:x|token|number)?\s*\}?\s*_?\{?\s*([1-9])(?![0-9])\}?\s*\$?\s*(?:places|gives|pays|puts|assigns|attends)?",
        re.IGNORECASE,
    ),
    re.compile(r"\b(?:for|of)\s+(?:the\s+)?token\s*(?:number\s*)?\$?([1-9])(?![0-9])", re.IGNORECASE),
    re.compile(rf"for\s*\$?\s*{_BOLD}x\s*\}}?\s*_\s*\{{?\s*([1-9])", re.IGNORECASE),
)


def read_question(text: str) -> tuple[float, Instance | None] | None:
    """How sure it is that a text asks this, and the instance that it gives (None: the numbers are not in it)."""
    text = text[:_READ]
    if not _ABOUT.search(text) or _OTHER.search(text):
        return None
    named: dict[str, Matrix] = {}
    for name, rows in matrices_in(text):
        named.setdefault(_plain(name), rows)
    scaled = bool(_SCALED.search(text) or _CALLED_SCALED.search(text)) and not _UNSCALED.search(text)
    causal = bool(_CAUSAL.search(text))
    weights = [named.get(f"W_{letter}") for letter in "QKV"]
    tokens = _tokens(named, text, weights[0])
    if tokens is not None and all(weight is not None for weight in weights):
        wq, wk, wv = (_turned(weight, tokens[0], text) for weight in weights if weight is not None)
        if _fit(tokens[0], wq, wk, wv):
            made = [times(tokens[0], weight) for weight in (wq, wk, wv)]
            given = _instance(made, text, scaled, causal)
            plain = _applied_plainly(text)
            return 0.97, replace(given, x=tokens[0], wq=wq, wk=wk, wv=wv, columns=tokens[1], plain=plain)
    direct = [_stack(named, letter) for letter in "qkv"]
    if all(direct) and re.search("softmax", text, re.IGNORECASE):
        q, k, v = (rows for rows in direct if rows is not None)
        if len(k) == len(v) and len(k[0]) == len(q[0]):
            return 0.8, _instance([q, k, v], text, scaled, causal)
    return (0.4, None) if _in_words(text) else None


def _plain(name: str) -> str:
    letter, _, below = name.partition("_")
    return f"W_{below[0].upper()}" if letter == "W" and below[:1].upper() in ("Q", "K", "V") and below else name


def _tokens(named: dict[str, Matrix], text: str, weight: Matrix | None) -> tuple[Matrix, bool] | None:
    """The tokens as rows, and whether the text has them as columns of X."""
    columns = bool(_COLUMNS.search(text)) and not _ROWS.search(text)
    stacked = _stack(named, "x", big=False)
    if stacked is not None:
        return stacked, columns
    rows = named.get("X")
    if rows is None or weight is None:
        return None
    wide = {len(weight), len(weight[0])} if _applied_plainly(text) else {len(weight)}
    if columns or (len(rows[0]) not in wide and len(rows) in wide):
        return transposed(rows), True
    return rows, False


def _stack(named: dict[str, Matrix], letter: str, *, big: bool = True) -> Matrix | None:
    """x_1, x_2, … as the rows of one matrix; or the matrix of the big letter."""
    if big and letter.upper() in named:
        return named[letter.upper()]
    rows = []
    while (row := named.get(f"{letter}_{len(rows) + 1}")) is not None and len(row) == 1:
        rows.append(row[0])
    return tuple(rows) if rows and len({len(row) for row in rows}) == 1 else None


def _applied_plainly(text: str) -> bool:
    """Whether queries are W_Q x, with no transpose."""
    turned = re.search(r"W\s*\}?\s*_\s*\{?\s*Q\s*\}?\s*(?:\^\s*\{?\s*(?:T|\\top|\\intercal)|ᵀ)", text, re.IGNORECASE)
    plain = re.search(rf"W\s*\}}?\s*[_^]\s*\{{?\s*Q\s*\}}?\s*{_BOLD}x", text, re.IGNORECASE)
    return plain is not None and turned is None


def _turned(weight: Matrix, tokens: Matrix, text: str) -> Matrix:
    return transposed(weight) if _applied_plainly(text) and len(weight[0]) == len(tokens[0]) else weight


def _fit(x: Matrix, wq: Matrix, wk: Matrix, wv: Matrix) -> bool:
    return all(len(weight) == len(x[0]) for weight in (wq, wk, wv)) and len(wq[0]) == len(wk[0])


def _instance(made: list[Matrix], text: str, scaled: bool, causal: bool) -> Instance:
    q, k, v = made
    asked = next((int(found[1]) for pattern in _ASKED if (found := pattern.search(text))), None)
    if asked is None:
        word = re.search(rf"\b({'|'.join(ORDINALS)}) token", text, re.IGNORECASE)
        asked = ORDINALS[word[1].lower()] if word else len(q)
        asked = len(q) if asked < 0 else asked
    causal = causal and len(q) == len(k)
    seen = tuple(tuple(key <= query for key in range(len(k))) for query in range(len(q))) if causal else None
    halved = _NUMBER_BELOW.search(text)
    scaled = scaled or (halved is not None and int(halved[1]) ** 2 == len(k[0]))
    scale = Scale.by_root(len(k[0])) if scaled else UNSCALED
    told = _SCALED.search(text)
    if scaled and told is not None and told["root"] and int(told["root"]):
        scale = Scale.by_root(int(told["root"]))
    elif (by := _DIVIDED.search(text)) is not None and int(by[1]) and not _UNSCALED.search(text):
        scale = Scale(Fraction(1, int(by[1])))
    return Instance(q, k, v, asked if asked <= len(q) else len(q), scale=scale, seen=seen, causal=causal)


def _in_words(text: str) -> bool:
    """A question in words alone, its numbers elsewhere: several of its parts have to be there."""
    signs = (
        r"(?:compute|calculate|find)[^.]{0,40}quer(?:y|ies)[^.]{0,20}keys?[^.]{0,20}values?[^.]{0,60}(?:vector|x_|token)",
        r"weighted sum of (?:the )?values?",
        r"z_\{?\s*i\s*,?\s*j",
        r"data matrix|stack",
    )
    return sum(bool(re.search(sign, text, re.IGNORECASE)) for sign in signs) >= 3
