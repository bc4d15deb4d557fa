r"""Whether a quote supports a claim: no root, exponent, factor or digit is added to it, and none is left out.

A claim may be written otherwise than its quote (`\frac{a}{b}` for a/b, `sqrt(d)` for √d, exponents of a flattened
formula). Both are taken apart into glyphs, and those of the claim have to be among those of the quote.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import groupby

from ..errors import MathsError, Unreadable
from ..exercises.findings import Finding
from ..exercises.forms.choices import chosen_labels
from ..exercises.forms.statement import split_outside, squeezed, stated
from ..exercises.record import Exercise, plain_label
from ..maths import parse
from ..render.escapes import GREEK
from .claims import AnswerClaim
from .questions import Place, Questions, phrases

_RAISED = str.maketrans({sign: f"^{plain}" for sign, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿᵀ⊤⊺", "0123456789-nTTT", strict=True)})
_GAP = "¶"  # between glyphs that do not belong to one formula
_STARS = r"(?<=[\w)\]])\*\*(?=[\w(-])"  # a power in code; other stars are bold print
_MARKED = re.compile(rf"[\^\\⁰¹²³⁴⁵⁶⁷⁸⁹ⁿᵀ⊤]|{_STARS}")  # exponents are written as such
_SIGNS = [(re.compile(signs), plain) for signs, plain in (
    (r"\\\\|\\(?:begin|end)\s*\{\w+\}|&", f" {_GAP} "), (r"\\[,;:!]", " "),
    (r"\\(?:top|intercal)(?![A-Za-z])", "T"), (rf"\^\s*\{{?\s*\^|{_STARS}", "^"), (r"(?<=\^[-\d])\^", ""),
    (r"\\[dt]?frac(?![A-Za-z])|\\over(?![A-Za-z])|÷|⁄", "/"), (r"\\?(?<![A-Za-z])sqrt(?![A-Za-z])", "√"),
    (r"\\leq?(?![A-Za-z])|<=", "≤"), (r"\\geq?(?![A-Za-z])|>=", "≥"), (r"\\(?:approx|sim)(?![A-Za-z])|~", "≈"),
    (r"\\\||\\[lr]?Vert(?![A-Za-z])|\|\||∥", "‖"), (r"\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[·×⋅∙*]", " "),
    (r"\\?(?<![A-Za-z])sum(?![A-Za-z])|Σ", "∑"), (r"[−–—]", "-"), (r"(?<=\d)\{?,\}?(?=\d{3}(?!\d))", ""),
    (r"\\(?:left|right|[bB]igg?[lr]?|math[a-z]+|text[a-z]*|operatorname|boldsymbol|bm|boxed)(?![A-Za-z])", " "),
    (r"\\(?=[A-Za-z])", " "), (r"\{\s*(\w+)\s*\}", r" \1 "))]  # fmt: skip
_GREEK = re.compile(rf"(?<![A-Za-z])(?:var)?({'|'.join(GREEK)})(?![A-Za-z])")
_GLYPH = re.compile(
    r"\^[\s({]*(?P<power>-?\s*(?:\d+(?:\.\d+)?|\w|√|∑))|(?P<other>\d+(?:\.\d+)?|[^\W\d_]+|[√/+∑∏‖≈≤≥<>!∞%-])"
    rf"|(?P<gap>[=,;:?{_GAP}]|\.(?!\d))"
)
_NAMED = re.compile(r"\s*[A-Za-z][\w{}, ]{0,20}=(?!=)")


def glyphs(text: str) -> list[str]:
    r"""The glyphs of a formula in order; an exponent once more says which sign it stands on.

    >>> glyphs(r"\frac{d\mu^2}{\sqrt{2}}"), glyphs("dμ²/√2"), glyphs("(q^T k)^2")
    (['/', 'd', 'μ', 'μ^2', '√', '2'], ['dμ', 'μ^2', '/', '√', '2'], ['q', 'q^T', 'k', ')^2'])
    """
    for sign, said in phrases()["spoken"].items():
        text = re.sub(said, sign, text, flags=re.IGNORECASE)
    text = unicodedata.normalize("NFKC", text.translate(_RAISED))
    for pattern, plain in _SIGNS:
        text = pattern.sub(plain, text)
    text = _GREEK.sub(lambda name: GREEK[name[1]], text)
    found: list[str] = []
    for glyph in _GLYPH.finditer(text):
        base = re.sub(r"[)\]}|‖]", ")", text[: glyph.start()].rstrip()[-1:])
        power = glyph["power"] and f"{base}^{glyph['power'].replace(' ', '')}"
        found.append(power or (_GAP if glyph["gap"] else glyph["other"]))
    return found


def supported(claim: str, quote: str) -> bool:
    r"""Whether a formula says no more and no less than its quote.

    >>> supported(r"d\mu^2", "E = dμ²"), supported("d^2", "O(d)"), supported("d", "E = 2d"), supported("d^2", "O(d2)")
    (True, False, False, True)
    """
    said = glyphs(quote)
    flat = not _MARKED.search(quote)
    pool = Counter(said) + Counter(letter for run in said if len(run) > 1 for letter in _letters(run))
    # Of a flattened formula, a digit behind a sign may be its exponent; roots and sums have letters for signs.
    for base, sign in re.findall(r"([^\W\d_]|[)\]|‖])\s*(\d+(?![\d.])|T|>)", quote) if flat else ():
        pool[f"{')' if base in ')]|‖' else base}^{sign.replace('>', 'T')}"] += 1
    for letter, sign in (("p", "√"), ("P", "∑"), ("X", "∑")) if flat else ():
        pool[sign] += pool[letter]
    for name in re.findall(r"[^\W\d_]+(?:_[{ ]*[^\W\d_]+)+", claim):
        pool.update(glyphs(name) if re.sub(r"[_{ ]", "", name) in said else ())
    known = set(said)
    for piece in split_outside(claim, ";\n"):
        named = _NAMED.match(piece)
        wanted = glyphs(piece[named.end() :] if named else piece)
        parts = [sign for run in wanted for sign in ([run] if run in known else _letters(run) or [run])]
        absent = Counter(each for each in parts if each != _GAP) - pool
        # The line of a fraction that is stacked is no sign of the text.
        stacked = flat and "\n" in quote and set(absent) == {"/"}
        if (absent and not stacked) or _omits(parts, said):
            return False
    return True


def _letters(run: str) -> list[str]:
    """A product of one-letter names sign by sign; nothing for a word."""
    is_word = len(run) > 3 and re.search("[aeiou]", run) and not run.isupper()
    return list(run) if run[:1].isalpha() and "^" not in run and not is_word else []


def _omits(wanted: list[str], said: list[str]) -> bool:
    """Whether the formula that a claim was taken from has a number, a root or an exponent more."""
    end = Counter(next(([*group] for gap, group in groupby(reversed(wanted), _GAP.__eq__) if not gap), []))
    spread = [
        sign for run in said for sign in ([run] if run in end else _letters(run) or [_GAP if run.isalpha() else run])
    ]
    formulas = [Counter(group) for gap, group in groupby(spread, _GAP.__eq__) if not gap]
    more = [each - end for each in formulas if end <= each]
    return bool(more) and all(any(re.search(r"[\d√^]", sign) for sign in each) for each in more)


def readable(claim: str, place: Place) -> bool:
    """Whether a claim is mathematics; what has names without a known type is left to the judge, who knows the types."""
    if place.kind not in ("formula", "class"):
        return True
    formula = stated(claim)
    try:
        parse(split_outside(str(formula), "=")[-1], getattr(place.exercise, "symbols", {}))
    except Unreadable as error:
        return bool(error.undeclared)
    except MathsError:
        return True
    return not isinstance(formula, Finding)


def located(quote: str, text: str, taken: Collection[tuple[int, int]] = ()) -> tuple[int, int] | None:
    """Where a quote stands in a text, the first place that is not taken; spaces may differ, "[...]" leaves out."""
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in quote.split("[...]")]
    if not all(pieces):
        return None
    spans = [found.span() for found in re.finditer(r"[\s\S]*?".join(pieces), text)]
    return next((span for span in spans if span not in taken), spans[0] if spans else None)


class Admission:
    """The checks that every claim of a model or of a recording goes through."""

    def __init__(self, exercises: Mapping[str, Exercise]) -> None:
        places = [place for each in Questions(exercises).places.values() for place in each]
        self.places = {(place.question, plain_label(place.part)): place for place in places}
        self.counts: Counter[str] = Counter()

    def place(self, question: str, part: str) -> Place | None:
        """The part with these labels."""
        return self.places.get((question, plain_label(part)))

    def admitted(self, claim: AnswerClaim) -> AnswerClaim | None:
        """The claim; without text where its quote does not support it; None for a part that does not exist."""
        place = self.place(claim.question, claim.part)
        if place is None:
            self.counts["claims_elsewhere"] += 1
            return None
        text = claim.claim
        if text and (place.kind in ("words", "proof") or place.asked.form == "code"):
            text = claim.quote
        elif text and not (
            readable(text, place) and (_chooses(text, claim.quote, place) or supported(text, claim.quote))
        ):
            self.counts["claims_unsupported"] += 1
            text = ""
        return claim.model_copy(update={"claim": text, "part": place.part})

    def findings(self) -> list[Finding]:
        """How many claims were not taken."""
        return [Finding(code, {"count": count}) for code, count in self.counts.items()]


def _chooses(claim: str, quote: str, place: Place) -> bool:
    """Whether a claim is options that the quote has by label or by their words."""
    options = {plain_label(each.label): each for each in place.asked.options}
    chosen = chosen_labels(claim, {squeezed(each.text).lower(): label for label, each in options.items()})
    if not options or isinstance(chosen, Finding):
        return False
    words = squeezed(quote).lower()
    said = {plain_label(word) for word in re.findall(r"\w+", quote)}
    return all(label in said or squeezed(options[label].text).lower() in words for label in chosen)
