"""Reading a question about normalisation: is it one, which norms, options, numbers and claims does it have."""

from __future__ import annotations

import re
from fractions import Fraction
from math import isqrt

from ..reading.inline import on_own_lines
from ..reading.lettered import LONGEST, Asked, about, lettered
from .axes import NORMS, differing
from .numbers import Numbers

_NORMS = r"(?:layer|batch|instance|group|rms)[- ]?(?:norm\w*|normali[sz]\w+)"
_ASKS = (
    r"depends? on|select all|choose all|which of|prove|show that|\\beta|β|epsilon|statistics|invarian\w+|"
    r"normali[sz]ed vector|what comes out|shape \\?\[?b|compute|components?|length of|how long|scale|"
    r"\|\||\\\||‖|in terms of"
)
_CHOOSE = r"\bdepends?\b|(?:select|choose|tick|mark|check) all|influence|(?:is|are) affected by"
_LENGTH = r"\\\||‖|\|\||norm of|length|how (?:long|large)|magnitude|sum of|comes out|in terms of|invarian"
_SIGN = r"(?:^|[\s,;:])\(?(?:i{1,3}|iv|[A-D]|[1-4])\)"
_OPTION = re.compile(rf"{_SIGN}\s*((?:(?!{_SIGN}).)+)", re.DOTALL)
_PRIME = re.compile(r"\^?\{?\\prime\}?|′|’")


def likeness(text: str) -> float:
    """How surely a text is a question about norms; 0 where it is none."""
    plain = text[:LONGEST].lower()
    norms = len(set(re.findall(_NORMS, plain)))
    asks = len(set(re.findall(_ASKS, plain)))
    elsewhere = bool(re.search(r"\bkv[- ]?cache|receptive field|padding mask|feature map", plain))
    score = 0.3 * min(norms, 2) + 0.15 * min(asks, 3) - 0.4 * elsewhere
    return round(min(score, 1.0), 2) if norms and asks and score > 0.44 else 0.0


def parts_of(text: str) -> tuple[str, list[Asked]]:
    """What comes before the parts, and the parts; labelled options (i), (ii) … belong to the part that lists them."""
    before, parts = lettered(on_own_lines(text))
    whole: dict[str, Asked] = {}
    for part in parts:
        letter = part.name[:1]
        if "(" in part.name and re.search(_CHOOSE, part.stem.lower()):
            sign = part.name[2:-1]
            known = whole.get(letter, Asked(letter, part.stem))
            whole[letter] = Asked(letter, f"{known.text}\n({sign}) {part.text}")
        else:
            whole.setdefault(part.name, _again(part, list(whole.values())))
    return before, list(whole.values()) or [Asked("a", before)]


def _again(part: Asked, earlier: list[Asked]) -> Asked:
    """A part that asks what the one before asks, of another norm, with the options of that one."""
    if (
        not earlier
        or not _REPEATED.search(part.text)
        or not norms_in(part.text)
        or re.search(_CHOOSE, part.whole.lower())
    ):
        return part
    question = re.sub(_NORMS, "", earlier[-1].whole, flags=re.IGNORECASE)
    return Asked(part.name, f"{_REPEATED.sub('', part.text)} {_REPEATED.sub('', question)}")


def kind_of(asked: Asked, before: str) -> str | None:
    """What a part asks: "dependence", "numbers", "length in numbers" or "claim"."""
    said = asked.whole.lower()
    if re.search(_CHOOSE, said):
        return "dependence"
    whole = f"{about(before, asked.name)} {asked.whole}"
    if re.search(r"prove|show that", said):
        return "claim"
    if numbers_in(whole) is not None:
        return "numbers"
    if sizes_in(asked.whole) is not None:
        return "length in numbers"
    if re.search(_LENGTH, whole.lower()):
        return "claim"
    # "(a) for layer normalisation", where the question before the parts is what depends on what.
    return "dependence" if re.search(_CHOOSE, before.lower()) and norms_in(asked.text) else None


def sizes_in(text: str) -> tuple[Fraction, Fraction] | None:
    """The scale and the width where both are numbers: "gamma = 3 and d = 16"."""
    plain = re.sub(r"[$\\{}]", " ", text[:LONGEST])
    scale = re.search(r"(?:gamma|γ|scale)\s*(?:=|of|is)?\s*(\d{1,4})\b", plain)
    width = re.search(
        r"(?<![A-Za-z])(?:d|D|n)\s*(?:=|is)\s*(\d{1,6})\b|\b(\d{1,6}) (?:components|entries|features)", plain
    )
    return (Fraction(scale[1]), Fraction(width[1] or width[2])) if scale and width else None


def shape_in(text: str) -> str:
    """The axes of a tensor: a batch of vectors, or of sequences of them."""
    return "BTD" if re.search(r"\[\s*B\s*,\s*[TSNL]\s*,\s*[DHC]|x_\{?\s*\w\s*,\s*\w\s*,\s*\w", text) else "BD"


def norms_in(text: str) -> tuple[str, ...]:
    """The norms that a text names, in its order; batch normalisation by its mode."""
    plain = text.lower()
    places = {}
    for norm, known in NORMS.items():
        found = re.search(known.named, plain)
        if found:
            places[norm] = found.start()
    if "batch" in places:
        behind = plain[places["batch"] : places["batch"] + 60]
        stored = bool(re.search(r"evaluation|inference|test time|eval\b|stored|running", behind))
        del places["batch" if stored else "stored"]
    return tuple(sorted(places, key=lambda norm: places[norm]))


def order_in(text: str, shape: str) -> tuple[str, ...]:
    """The options of a text as the axes on which each differs, in its order; empty where it lists none."""
    plain = _PRIME.sub("'", text[:LONGEST])
    start = re.search(_CHOOSE, plain, re.IGNORECASE)
    listed = plain[start.end() :] if start else plain
    index = r"\s*,?\s*".join([r"([a-z]'?)"] * len(shape))
    found: list[str] = []
    for match in re.finditer(rf"x_?\{{?\s*{index}\s*\}}?(?![\w'])", listed):
        axes = "".join(axis for axis, name in zip(shape, match.groups(), strict=True) if name.endswith("'"))
        if axes not in found:
            found.append(axes)
    if len(found) >= 3 and set(found) <= set(differing(shape)):
        return tuple(found)
    return _worded_order(listed) if shape == "BD" else ()


def _worded_order(listed: str) -> tuple[str, ...]:
    """Options in words: "the same column in other rows" differs in the example alone."""
    found: list[str] = []
    for said in _OPTION.findall(listed):
        plain = said.lower()
        rows = re.search(r"other (?:rows?|examples?|samples?|inputs?|batch)|same (?:column|feature|coordinate)", plain)
        columns = re.search(r"other (?:columns?|features?|coordinates?|components?)|same (?:row|example|sample)", plain)
        both = re.search(r"\brest\b|\belse\b|neither|remaining|different row and|other rows? (?:and|in) other", plain)
        itself = re.search(r"itself|\bown\b|same (?:entry|place|position)|x_?\{?\s*[a-z]\s*,?\s*[a-z]\b(?!')", plain)
        axes = "BD" if both or (rows and columns and "same" not in plain) else "B" if rows else "D" if columns else ""
        if not axes and not itself:
            return ()
        found.append(axes)
    distinct = len(set(found)) == len(found)
    return tuple(found) if len(found) >= 3 and distinct else ()


def style_in(text: str) -> str:
    """How a text labels its options."""
    for style, label in (("i", r"\(i\)|\bi\)"), ("A", r"\(A\)|\bA\)"), ("1", r"\(1\)|\b1\)")):
        if re.search(label, text):
            return style
    return "i"


def numbers_in(text: str) -> Numbers | None:
    """A vector of numbers with the norm that it goes through; None where there is none or its root is not rational."""
    plain = re.sub(r"[$\\]|mathbf|begin\{\w+\}|end\{\w+\}", " ", text[:LONGEST])
    vector = re.search(r"[(\[{]\s*(-?\d+(?:\s*[,&]\s*-?\d+)+)\s*[)\]}]", plain)
    norms = norms_in(text)
    if not vector or not norms or len(vector[1]) > 200:
        return None
    x = tuple(int(value) for value in re.split(r"\s*[,&]\s*", vector[1]))
    kind = {"layer": "layer", "rms": "rms", "batch": "batch", "stored": "stored"}.get(norms[0])
    if kind is None or len(x) < 2 or max(map(abs, x)) > 10_000:
        return None
    given = {name: _number(plain, words) for name, words in (
        ("gamma", r"(?:scale|gamma|γ)"), ("beta", r"(?:shift|bias|beta|β)"), ("mean", r"(?:mean|mu|μ)"),
        ("deviation", r"(?:deviation|sigma|σ)"))}  # fmt: skip
    numbers = Numbers(
        kind,
        x,
        given["gamma"] if given["gamma"] is not None else 1,
        given["beta"] or 0,
        given["mean"] or 0,
        given["deviation"] or 1,
    )
    return numbers if kind == "stored" or _has_root(numbers) else None


def _number(text: str, words: str) -> int | None:
    found = re.search(rf"{words}\s*(?:of|is|=|:)?\s*(-?\d{{1,6}})\b", text)
    return int(found[1]) if found else None


def _has_root(numbers: Numbers) -> bool:
    square = sum(((Fraction(value) - numbers.centre) ** 2 for value in numbers.x), Fraction(0)) / len(numbers.x)
    return square > 0 and all(isqrt(part) ** 2 == part for part in (square.numerator, square.denominator))


def compared_in(own: str, before: str) -> tuple[str, ...]:
    """The norms that a part asks about: "repeat this for batch normalisation" adds to those before it."""
    repeat = _REPEATED.search(own)
    if not repeat:
        return norms_in(own) or norms_in(before)
    first = norms_in(own[: repeat.start()]) or norms_in(before)
    again = norms_in(own[repeat.start() :])
    # What is repeated for another norm was asked for the layer's first, where nothing else is said.
    return tuple(dict.fromkeys([*(first or (() if "layer" in again else ("layer",))), *again]))


_REPEATED = re.compile(
    r"\brepeat\b|\b(?:do the )?same (?:analysis|question|thing|for)\b|\band for\b|\balso for\b|\bwhat about\b",
    re.IGNORECASE,
)


def letters_in(text: str) -> tuple[str, str]:
    """The letters of a text for the scale and the shift, where they are not gamma and beta; else ""."""
    plain = re.sub(r"[$\\{}]|mathbf", " ", text[:LONGEST])
    scale = re.search(r"\b(?:scale|gain|weight)(?: parameter| factor)?,? +([a-z])\b(?! [a-z])", plain)
    scale = scale or re.search(r"\b(?:scale|gain|weight)(?: parameter| factor)?,? +([b-hj-z])\b", plain)
    shift = re.search(r"\b(?:shift|bias|offset)(?: parameter)?,? +([b-hj-z])\b", plain)
    return (scale[1] if scale else ""), (shift[1] if shift else "")


def claim_in(text: str) -> str | None:
    """Which of CLAIMS a text asks, or "rms proof"; None where it asks what none of them says."""
    plain = re.sub(r"\s+", " ", text.lower())
    norms = norms_in(text)
    root = "rms" in norms and "layer" not in norms
    if norms and not root and "layer" not in norms:
        return None
    length = bool(
        re.search(r"\\\||‖|\|\||\\l?vert|\bnorm of\b|\blengths?\b|how long|magnitude|(?:l2|euclidean)[- ]norm", plain)
    )
    added = re.search(r"(?:epsilon|ε|eps) *(?:>|\\gt) *0", plain)
    if re.search(r"prove|show that", plain):
        return None if added or not length else "rms proof" if root else "proof"
    if root:
        return "root mean square" if length and not added else None
    if re.search(r"sum of the components|1\^\\?t(?:op)? y", plain):
        return "sum"
    if added:
        return "epsilon"
    if re.search(r"place of|replaced|instead of", plain):
        return (
            "turned" if re.search(r"[-−] *c *x", plain) else "shifted" if re.search(r"x *\+ *\w", plain) else "scaled"
        )
    return "length" if length else None
