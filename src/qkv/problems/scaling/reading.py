"""Reads a question on the moments of a dot product: its law, its names, and what it asks for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from qkv.maths.parsing.naming import canonical_name

from .law import Law, Spread, key
from .told import SOLUTION, factor_of, over_root, square_of, tells_more, without_work

LONGEST = 20_000  # characters; a longer text is no single question

_DRESS = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathrm|mathcal|mathbb|vec|operatorname|text|textbf|left|right|bigl?|bigr|Bigl?|Bigr|,|;|!|quad)"
    r"(?![a-zA-Z])\s*"
)
_NAME = r"\\?[a-zA-Z]+(?:_\{?\\?\w+\}?)?"
_DOT = re.compile(
    rf"(?<![\w\\])({_NAME})\s*(?:\^\s*\{{?\s*(?:T|\\top|⊤|\\intercal)\s*\}}?|ᵀ|\\cdot|·|⋅)\s*({_NAME})(?!\w)"
    rf"|(?:\\langle|⟨)\s*({_NAME})\s*,\s*({_NAME})\s*(?:\\rangle|⟩)"
)
_LAW = re.compile(r"(?<![\w\\])N\s*\(\s*((?:[^(),]|\([^()]*\))+),\s*((?:[^()]|\([^()]*\))+)\)")
_GREEK = {
    "μ": "mu",
    "σ": "sigma",
    "ν": "nu",
    "ρ": "rho",
    "τ": "tau",
    "θ": "theta",
    "η": "eta",
    "λ": "lambda",
    "ω": "omega",
    "Σ": "Sigma",
    "Ω": "Omega",
}
_SIGNS = {
    "dot": rf"{_DOT.pattern}|\b(?:dot|inner)[ -]products?\b",
    "mean": r"\bE\s*[\[({]|\bexpect(?:ed|ation)|\bmean of (?:\w+ ){0,2}(?:score|dot|inner|product|sum)",
    "variance": r"\bvar(?:iance)?s?\b",
    "scale": r"\bscal(?:e|ed|ing)\b|\bdivid|\bdivisor|\bnormali[sz]",
    "law": rf"{_LAW.pattern}|\brandom\b|\bgaussian|\bnormal\b|\bi\.?i\.?d|\bdrawn\b|\bdistribut|\bindependent",
}
_OTHERS = re.compile(
    r"\bjacobian|\bfrobenius|\bgradient|\bsaturat|\bkernel|\bbatch norm|\blayer norm|\bargmax|\bmatrix\}|einsum",
    re.IGNORECASE,
)
_CENTRED = re.compile(r"=\s*0\b|\bzero[- ]mean|mean (?:is )?(?:of )?(?:0|zero)\b|centred|centered", re.IGNORECASE)
_MOMENT = r"\b(?:mean|variance|covariance|standard deviation|std)\b"
_TOLD = re.compile(rf"{_LAW.pattern}|{_MOMENT}.{{0,80}}{_MOMENT}|standard normal", re.IGNORECASE | re.DOTALL)
_UNIT = re.compile(
    r"\bunit (?:variance|standard deviation)s?|\bstandard normal|\bstandard deviation (?:of |is )?(?:1|one)\b|"
    r"\b(?:components?|entries|coordinates|elements)\b[^.?]{0,40}variance (?:of |is |equal to )?(?:1|one)\b",
    re.IGNORECASE,
)
_DIVIDED = re.compile(r"/\s*\(?([a-zA-Z])\s*[)\]}?,]|/\s*(s)\b|\}\s*\{\s*([a-zA-Z])\s*\}")
_ASKING = re.compile(
    r"\?|\b(?:find|define|derive|compute|calculate|give|determine|show|express|what|state|evaluate|obtain|work out|"
    r"which|how)\b",
    re.IGNORECASE,
)
_MARKS = re.compile(r"(?:^|\n|(?<=[.?:;]))\s*(?:[-*•]\s*)?(?:\(?\b(?:[a-h]|[1-9]|i{1,3}|iv)\s*[).](?=\s))")
_COMMON = {"the", "of", "each", "is", "and", "a", "an", "in", "as", "to", "on", "by", "or", "no", "we", "be", "it"}


class Question(NamedTuple):
    """What was read: how sure it is, the law, what is asked in order, and the numbers of the special case."""

    confidence: float
    law: Law
    asked: tuple[str, ...]
    fixed: dict[str, str] | None
    wanted: str


def read_question(text: str) -> Question | None:
    """The question, or None where the text asks something else, or tells what no law here can say."""
    if len(text) > LONGEST:
        return None
    plain = undressed(text)
    signs = {name: re.search(pattern, plain, re.IGNORECASE) is not None for name, pattern in _SIGNS.items()}
    if not (signs["dot"] and signs["law"]) or not (signs["variance"] or signs["mean"]) or _OTHERS.search(plain):
        return None
    # With a single moment asked, the law has to be told in full.
    if not (signs["variance"] and (signs["mean"] or signs["scale"])) and not _TOLD.search(plain):
        return None
    told = undressed(without_work(text))
    law = None if tells_more(told, *_vectors(plain)) else _law(plain, told)
    if law is None or not _values_said(law, told):
        return None
    law = _as_special(law, plain)
    if not all(canonical_name(name) or name.isdigit() for name in law.symbols()):
        return None  # what stands where a name should is none
    asked, fixed, wanted = _asked(undressed(SOLUTION.sub("", text)), law)
    if not asked or "unsaid" in asked:
        return None
    return Question(0.5 + 0.1 * sum(signs.values()), law, asked, fixed, wanted)


def undressed(text: str) -> str:
    """LaTeX without what only changes how a letter looks; Greek letters by name; one kind of space."""
    for letter, name in _GREEK.items():
        text = re.sub(rf"{letter}|(?<![\w\\]){name}(?![a-zA-Z])", lambda _, name=name: f"\\{name} ", text)
    text = text.replace("ℝ", "R").replace("𝒩", "N").replace("𝔼", "E")
    text = re.sub(r"\\mathbb\s*\{?\s*1\s*\}?|\\mathbf\s*\{?\s*1\s*\}?", " 1", text)
    text = re.sub(r"\\(?:overset|stackrel)\s*\{[^{}]*\}\s*\{([^{}]*)\}", r"\1", text)
    previous = None
    while previous != text:
        previous = text
        text = re.sub(_DRESS.pattern + r"\{([^{}]*)\}", r" \1", text)
        text = _DRESS.sub(" ", text)
    text = re.sub(r"(?<![\w\\.])([a-z](?:_\w)?) [.*] ([a-z](?:_\w)?)(?!\w)", r"\1 \\cdot \2", text)
    text = re.sub(r"(?<![\w\\.])(?!i\.e|e\.g|a\.e)([a-z])\.([a-z])(?![\w.])", r"\1 \\cdot \2", text)
    text = re.sub(r"(?<![\w\\])<\s*([a-z](?:_\w)?)\s*,\s*([a-z](?:_\w)?)\s*>", r"⟨\1, \2⟩", text)
    text = re.sub(r"\b([A-Za-z])\s+(?=[\[(])", r"\1", text)
    text = re.sub(r" +(?=[_^])", "", text)
    return re.sub(r"[ \t\u00a0]+", " ", text.replace("$", " ").replace("**", ""))


def _law(plain: str, told: str) -> Law | None:
    given = _given(plain)
    q, k = _vectors(plain)
    width = _width(given)
    found = _LAW.findall(given) or _LAW.findall(plain)
    means = [_mean_name(mean) for mean, _ in found] or _said_means(given)
    spreads = [_spread(cov) for _, cov in found] or _said_spreads(given)
    factor = factor_of(told, q, k)
    if any(re.fullmatch(r"[\s-]*\d*\.?\d*[1-9]\d*\s*", mean) for mean, _ in found):
        return None  # a mean that is a number, and not 0
    if factor is None or None in spreads or any(re.search(r"\d", mean) and mean != "0" for mean in means):
        return None
    spreads = [spread for spread in spreads if spread is not None]
    mean_q, mean_k = (means[0], means[-1]) if means else (r"\mu", r"\mu")
    kind = "scalar" if _scalar(plain, mean_q, [mean for mean, _ in found]) else "vector"
    model: tuple[str, ...] = ()
    if heads := re.search(rf"\bwidth ({_NAME}) has ({_NAME}) heads, each of width ({_NAME})", given):
        model, width = (_unbraced(heads[1]), _unbraced(heads[2])), _unbraced(heads[3])
    elif parts := re.fullmatch(r"\\?(\w+)\s*/\s*(\w+)", width):
        model, width = (parts[1], parts[2]), "d_h" if parts[1] != "d_h" else "w"
    law = Law(kind, width, q, k, mean_q, mean_k, spreads[0], spreads[-1], factor=factor, model=model)
    if pairs := re.search(rf"\b({_NAME}) independent (?:pairs|scores)", given):
        law = replace(law, copies=pairs[1])
    return _with_numbers(law, given)


def _as_special(law: Law, plain: str) -> Law:
    """The law with the divisor's own name, and with a full covariance as the parts have it where they set it to I."""
    divisor = _DIVIDED.search(plain)
    name = next((each for each in divisor.groups() if each), "s") if divisor is not None else "s"
    taken = (law.width, law.q, law.k, law.spread_q.name, law.spread_k.name, *law.means)
    law = replace(law, divisor=next(each for each in (name, "s", "c", "r", "t", "u", "w", "y") if each not in taken))
    full = law.spread_q.kind == "full" and law.same_spread
    general = re.search(r"\bin general\b|arbitrary covariance", plain)
    if full and not general and re.search(rf"{re.escape(law.spread_q.name)}\s*=\s*I\b", plain):
        law = replace(law, spread_q=Spread("unit", ""), spread_k=Spread("unit", ""))
    return law


def _given(plain: str) -> str:
    """What stands before the first part, where parts have letters."""
    return re.split(_MARKS, plain)[0] if len(re.findall(_MARKS, plain)) > 1 else plain


def _with_numbers(law: Law, given: str) -> Law:
    """The law with the numbers that are given, if all of its names have one: then answers are numbers too."""
    names = [law.width, *law.means, *(spread.name for spread in (law.spread_q, law.spread_k) if spread.kind == "equal")]
    values = {"d": law.width} if law.width.isdigit() else {}
    given = _unbraced(given)
    law = replace(law, width="d") if values else law
    for name in dict.fromkeys(names):
        value = re.search(rf"(?<!\w){re.escape(name)}\s*=\s*(\([-\d, ]+\)|-?\d+)", given)
        if value is not None:
            values[key(name)] = value[1]
    plain = not law.model and {law.spread_q.kind, law.spread_k.kind} <= {"equal", "unit"}
    complete = all(name.isdigit() or key(name) in values for name in names)
    return replace(law, values=values) if values and plain and complete else law


def _unbraced(text: str) -> str:
    return re.sub(r"_\{\s*(\w+)\s*\}", r"_\1", text)


def _values_said(law: Law, plain: str) -> bool:
    """Whether every number that is told of a name is used: means are 0 or have values, and so has the width."""
    plain = _unbraced(plain)
    for name in (law.width, *law.means):
        told = re.findall(rf"(?<![\w\\]){re.escape(name)}\s*=\s*(\(?-?[\d.]+)", plain)
        if key(name) not in law.values and any(value.strip("(-0.") for value in told):
            return False
    return True


def _vectors(plain: str) -> tuple[str, str]:
    for found in _DOT.finditer(plain):
        left, right = (found[1], found[2]) if found[1] else (found[3], found[4])
        if left != right and key(left)[0].islower() and key(right)[0].islower() and len(left) == 1 and len(right) == 1:
            return left, right
    return "q", "k"


def _width(plain: str) -> str:
    size = r"(\\?[A-Za-z]+(?:_\{?\\?\w+\}?)?(?:\s*/\s*\w+)?|\d+)"
    patterns = (
        rf"\bR\s*\}}?\s*\^\s*\{{\s*{size}\s*\}}",
        r"\bR\s*\}?\s*\^\s*([A-Za-z\d](?:_\w+)?)",
        rf"\b{size}\s*-\s*dimensional",
        rf"\b{size} (?:components|entries|coordinates|dimensions)\b",
        rf"\b(?:dimension|length|size|width)s? (?:of )?(?:is )?{size}(?!\w)",
    )
    for pattern in patterns:
        for found in re.finditer(pattern, plain):
            name = found[1].replace("{", "").replace("}", "").strip()
            if _is_name(name):
                return name
    return "d"


def _is_name(text: str) -> bool:
    """Whether a word names a size: a letter or two, d with what it is of, a number, a quotient; no word of English."""
    if text.lower() in _COMMON:
        return False
    return re.fullmatch(r"\\\w+|\w{1,2}|\d+|d(?:im|k|model|head)|\w{1,5}_\\?\w+|\w+\s*/\s*\w+", text) is not None


def _mean_name(text: str) -> str:
    bare = re.sub(r"(?<![\w_])1(?:_\{?\w+\}?)?(?!\w)", "", text).strip(" {}\\cdot" if "cdot" in text else " {}")
    bare = bare if bare.startswith("\\") or not text.strip().startswith("\\") else f"\\{bare}"
    return bare or r"\mu"


def _said_means(given: str) -> list[str]:
    if re.search(
        r"\b(?:zero[- ]means?|means? (?:of |is |equal to |= ?|both )?(?:zero|0)|centred|centered|standard normal)\b|"
        r"\bE\s*\[\s*\w\s*\]\s*=\s*(?:E\s*\[\s*\w\s*\]\s*=\s*)?0\b",
        given,
        re.IGNORECASE,
    ):
        return ["0"]
    if numbers := re.findall(r"\bmeans? (?:of |is |equal to |= ?)?(-?\d+(?:\.\d+)?|one(?! number))\b", _telling(given)):
        return numbers
    names = re.findall(rf"\bmeans? (?:of |is |vector )?({_NAME})", given)
    return [name for name in names if name.startswith("\\") or (len(name) <= 3 and _is_name(name))]


def _spread(text: str) -> Spread | None:
    """The covariance that is written; None for one that cannot be said."""
    bare = re.sub(r"I\s*_\s*(?:\{.*\}|\w+)", "I", text.strip().replace("²", "^2"))
    if (name := re.search(r"diag\s*\(\s*(\\?\w+)", bare)) is not None:
        return Spread("diagonal", name[1])
    if re.search(r"[/+]|\\[dt]?frac|\d\.|\.\d", bare):
        return None
    if (name := re.match(r"(\\?[a-zA-Z]+(?:_\{?\w+\}?)?)\s*\^\s*\{?2\}?", bare)) is not None:
        return Spread("equal", name[1].replace("{", "").replace("}", ""))
    if (number := re.match(r"(\d+)(\s*\^\s*\{?2\}?)?(?!\w)", bare)) is not None:
        return _numeric(number[1], deviation=number[2] is not None)
    if re.match(r"(?:\\mathbf)?\s*I", bare):
        return Spread("unit", "")
    name = re.match(_NAME, bare)
    if name and name[0].lstrip("\\")[0].isupper():
        return Spread("full", name[0])
    return Spread() if not bare.strip("{} ") else None


def _numeric(text: str, deviation: bool) -> Spread | None:
    squared = square_of(text, deviation)
    if squared is None:
        return None
    return Spread("unit", "") if squared == "1" else Spread("number", squared)


def _said_spreads(given: str) -> list[Spread | None]:
    telling = _telling(given)
    if re.search(r"\bunit (?:variance|standard deviation)|standard normal", telling, re.IGNORECASE):
        return [Spread("unit", "")]
    stop = r"(?:Cov\s*[(\[]\s*\w\s*[)\]]\s*=\s*)?((?:[^.,;\s]|\s(?=I_|\(|I\b))+)"
    if covariances := re.findall(rf"\bCov(?:ariance)?\s*[(\[]\s*\w\s*[)\]]\s*=\s*{stop}", given):
        return [_spread(covariance) for covariance in covariances]
    if covariances := re.findall(rf"\bcovariances? (?:matrix )?(?:of |is )?(?!and\b|matri){stop}", given):
        return [_spread(covariance) for covariance in covariances]
    size = r"(standard deviation|variance|std\.?)s? (?:of |is |equal to |both |= ?)?"
    found: list[Spread | None] = []
    for place in re.finditer(rf"\b{size}(\d+(?:[./]\d+)?|one\b|two\b|three\b|four\b|{_NAME})", telling):
        what, name = place[1], place[2]
        if re.match(r"\d|one\b|two\b|three\b|four\b", name):
            found.append(_numeric(name, deviation=not what.startswith("var")))
        elif name.startswith("\\") or len(name) == 1 or re.fullmatch(r"[a-z]_\w", name):
            found.append(Spread("equal", name.replace("{", "").replace("}", "")))
    return found or [Spread()]


def _telling(given: str) -> str:
    """What is told and not asked: sentences up to the word that asks; all of it where each begins with one."""
    sentences = [re.split(_ASKING, each)[0] for each in re.split(r"(?<=[.?])\s|\n", given)]
    told = " . ".join(each for each in sentences if each.strip())
    return told if re.search(_MOMENT, told) or "normal" in told else given


def _scalar(plain: str, mean: str, laws: list[str]) -> bool:
    """Whether the mean is one number for all components."""
    if any(re.search(r"(?<![\w_^])1(?:_\{?\w+\}?)?\s*$", law.strip()) for law in laws):
        return True
    name = re.escape(mean)
    if re.search(
        rf"{name}\s*\\in\s*R\s*\}}?\s*\^|{name}_\{{?i|mean vector|vector[- ]valued mean|{name} is a vector", plain
    ):
        return False
    if re.search(
        rf"{name}\s*(?:\\in|∈)\s*R(?!\s*\}}?\s*\^)|\bscalars?\b|\bone number\b|{name} is (?:a|one) (?:single )?number",
        plain,
    ):
        return True
    same = rf"(?i:\b(?:component|entr|coordinate|element))\w*\b[^.;]{{0,80}}?\bmean {name}(?![^.]{{0,40}}covariance)"
    return not laws and mean != "0" and re.search(same, plain) is not None


def _asked(plain: str, law: Law) -> tuple[tuple[str, ...], dict[str, str] | None, str]:
    """What the parts ask, in order; values of the standard deviations in the special case; the wanted variance."""
    asks: list[str] = []
    zero, wanted = law.mean_q == "0", "1"
    special: dict[str, str] = {}
    for piece in _pieces(plain):
        zero = zero or _CENTRED.search(piece) is not None
        for name in {law.spread_q.name, law.spread_k.name} - {""}:
            if (value := re.search(rf"{re.escape(name)}\s*=\s*(\d+)", piece)) is not None:
                special.setdefault(key(name), value[1])
        scaling = _one(piece, zero) == "divisor"
        unit = (
            rf"\b(?:assum|suppos|let|with|where|when|if)\w*\b[^.?]{{0,40}}(?:{_UNIT.pattern})"
            if scaling
            else _UNIT.pattern
        )
        if re.search(unit, piece, re.IGNORECASE) and not (scaling and special):
            special.update({key(name): "1" for name in {law.spread_q.name, law.spread_k.name} - {""}})
        for ask in _several(piece, zero):
            if ask not in asks:
                asks.append(ask)
            if ask == "divisor":
                wanted = _wanted(piece)
        if over_root(piece) and asks[-1:] in (["mean"], ["variance"], ["practical"]):
            # The mean or the variance of a quotient is asked for any mean and spread.
            known = asks[-1] == "practical" and (law.mean_q != "0" or special)
            asks[-1] = "unsaid" if known or law.values else f"scaled {asks[-1].replace('practical', 'variance')}"
    # A standard deviation that has a name and no value keeps its name.
    names = {law.spread_q.name, law.spread_k.name} - {""}
    named = bool(names) and all(re.search(rf"{re.escape(name)}(?![a-zA-Z])", plain) for name in names)
    return tuple(asks), special if special or named else None, wanted


def _pieces(plain: str) -> list[str]:
    """The parts by their letters, or what the sentences ask one after the other."""
    pieces = re.split(_MARKS, plain)[1:]
    if len(pieces) > 1:
        return [f"{piece} ?" for piece in pieces]  # what has a letter is asked, with or without a verb
    inside = r";|,? (?:and )?then\b|,? and (?=what|which|how|by|find|the|Var\b|E ?\[)|, (?=Var\b|E ?\[)"
    asking = [whole for whole in re.split(r"(?<=[.?])\s|\n", plain) if _ASKING.search(whole)]
    return [f"{piece}?" for whole in asking for piece in re.split(inside, whole)]


def _several(piece: str, zero: bool) -> tuple[str, ...]:
    """What a piece asks: one thing, or the mean and the variance."""
    ask = _one(piece, zero)
    both = r"\b(?:means?|expectations?|expected values?)(?: value)?,? and (?:the |its )?variance\b"
    if ask in ("variance", "practical") and re.search(both, piece, re.IGNORECASE):
        return "mean", ask
    return (ask,) if ask is not None else ()


def _one(piece: str, zero: bool) -> str | None:
    if not _ASKING.search(piece):
        return None
    if re.search(r"\bdivided by \\?sqrt", piece) and (found := re.search(r"\b(mean|variance) of the", piece)):
        return f"scaled {found[1]}"
    if re.search(r"\bscal(?:e|ed|ing)\b|\bdivi[ds]|\bs\b (?:be|should)", piece) or _DIVIDED.search(piece):
        return "divisor"
    if re.search(r"\bvar(?:iance)?\b", piece, re.IGNORECASE):
        return "practical" if zero else "variance"
    return "mean" if re.search(r"\bE\s*[\[({]|\bexpect|\bmean\b", piece) else None


def _wanted(piece: str) -> str:
    found = re.search(r"[Vv]ar[^.?]*?(?:to be|equal(?:s)?(?: to)?|=|of|is|iance)\s*(?:\\?\w+\s*=\s*)?(\d+)", piece)
    return found[1] if found and found[1] != "0" else "1"
