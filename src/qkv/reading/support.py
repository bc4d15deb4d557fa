r"""Whether a quote supports a claim: no root, exponent, factor or digit is added to it, and none is left out.

A claim may be written otherwise than its quote (`\frac{a}{b}` for a/b, `sqrt(d)` for √d, exponents of a flattened
formula). Both are taken apart into glyphs, and those of the claim have to be among those of the quote.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any

from ..errors import MathsError, Unreadable
from ..exercises.findings import Finding
from ..exercises.forms.statement import split_outside, stated
from ..exercises.record import Exercise, plain_label
from ..maths import compare, parse
from ..render.escapes import GREEK
from .chat import Turn
from .claims import AnswerClaim
from .explicit import explanation
from .questions import Place, Questions, phrases
from .units import units

_SUPERSCRIPTS = {
    sign: f"^{unicodedata.normalize('NFKC', sign).replace('−', '-')}"
    for sign in map(chr, (0xB2, 0xB3, 0xB9, *range(0x1D2C, 0x1DC0), *range(0x2070, 0x2080)))
    if unicodedata.decomposition(sign).startswith("<super>")
}
_RAISED = str.maketrans({"⊤": "^T", "⊺": "^T", **_SUPERSCRIPTS})
_GAP = "¶"  # between glyphs that do not belong to one formula
_GREEK = re.compile(rf"(?<![A-Za-z])(?:var)?({'|'.join(GREEK)})(?![A-Za-z])")


def glyphs(text: str) -> list[str]:
    r"""The glyphs of a formula in order; an exponent once more says which sign it stands on.

    >>> glyphs(r"\frac{d\mu^2}{\sqrt{2}}"), glyphs("dμ²/√2"), glyphs("(q^T k)^2")
    (['/', 'd', 'μ', 'μ^2', '√', '2'], ['dμ', 'μ^2', '/', '√', '2'], ['q', 'q^T', 'k', ')^2'])
    """
    for sign, said in phrases()["spoken"].items():
        text = re.sub(said, sign, text, flags=re.IGNORECASE)
    text = unicodedata.normalize("NFKC", text.translate(_RAISED))
    for written, sign in phrases()["written"]:
        text = re.sub(written, sign, text)
    text = _GREEK.sub(lambda name: GREEK[name[1]], text)
    found: list[str] = []
    for glyph in re.finditer(phrases()["glyph"], text):
        base = re.sub(r"[)\]}|‖]", ")", text[: glyph.start()].rstrip()[-1:])
        power = glyph["power"] and f"{base}^{glyph['power'].replace(' ', '')}"
        found.append(power or (_GAP if glyph["gap"] else glyph["other"]))
    return found


def supported(claim: str, quote: str) -> bool:
    r"""Whether a formula says no more and no less than its quote.

    >>> supported(r"d\mu^2", "E = dμ²"), supported("d^2", "O(d)"), supported("d", "E = 2d"), supported("d^2", "O(d2)")
    (True, False, False, True)
    """
    quote = quote.replace("µ", "μ")
    said = glyphs(quote)
    if claim == quote:
        return True
    if re.search(phrases()["lone_sign"], quote):
        return _supported_by_torn(claim, quote)
    flat = not re.search(phrases()["raised"], quote)
    pool = Counter(said) + Counter(letter for run in said if len(run) > 1 for letter in _letters(run))
    # Of a flattened formula, a digit behind a sign may be its exponent; roots and sums have letters for signs.
    for base, sign in re.findall(r"([^\W\d_]|[)\]|‖])\s*(\d+(?![\d.])|T|>)", quote) if flat else ():
        pool[f"{')' if base in ')]|‖' else base}^{sign.replace('>', 'T')}"] += 1
    for letter, sign in (("p", "√"), ("P", "∑"), ("X", "∑")) if flat else ():
        pool[sign] += pool[letter]
    for name in re.findall(r"[^\W\d_]+(?:_[{ ]*[^\W\d_]+)+", claim):
        pool.update(glyphs(name) if re.sub(r"[_{ ]", "", name) in said else ())
    for piece in split_outside(claim, ";\n"):
        named = re.match(phrases()["piece_name"], piece)
        wanted = glyphs(piece[named.end() :] if named else piece)
        parts = [sign for run in wanted for sign in ([run] if run in said else _letters(run) or [run])]
        absent = Counter(each for each in parts if each != _GAP) - pool
        # The line of a fraction that is stacked is no sign of the text.
        stacked = flat and "\n" in quote and set(absent) == {"/"}
        if (absent and not stacked) or _omits(parts, said):
            return False
    return True


def _supported_by_torn(claim: str, quote: str) -> bool:
    r"""Whether a formula has the signs of a quote whose exponents and limits stand on lines apart: where is lost.

    >>> _supported_by_torn("N d^2", "O(Nd )\n2"), _supported_by_torn("N d", "O(Nd )\n2")
    (True, False)
    """
    pool, lone = _signs(quote), Counter(re.findall(r"^\s*(\d+)\s*$", quote, re.MULTILINE))
    for letter, sign in (("p", "√"), ("P", "∑"), ("X", "∑"), (">", "T"), ("k", "‖")):
        pool[sign] += pool[letter]
    wanted = _signs(re.sub(r"(^|[;\n])" + phrases()["piece_name"], r"\1", claim))
    # A quote that leads from one formula to another has numbers which the claim does not have.
    formula = r"O\s*\(" if "O(" in claim else "="
    whole = len(re.findall(formula, quote)) <= max(1, len(re.findall(formula, claim)))
    return not (wanted - pool) and not (whole and lone - wanted)


def _signs(text: str) -> Counter[str]:
    """The signs of a formula wherever they stand; a line of a fraction is none."""
    runs = [run.rpartition("^")[2] for run in glyphs(text) if run not in (_GAP, "/")]
    return Counter(sign for run in runs for sign in (run if run.isalpha() else [run]))


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
    """Whether a claim is mathematics; types that the question does not declare are left to the judge."""
    try:
        parse(split_outside(str(stated(claim)), "=")[-1], getattr(place.exercise, "symbols", {}))
    except MathsError as error:
        return place.kind not in ("formula", "class") or not isinstance(error, Unreadable) or bool(error.undeclared)
    return True


def located(quote: str, text: str, taken: Collection[tuple[int, int]] = ()) -> tuple[int, int] | None:
    """Where a quote stands in a text, the first place that is not taken; spaces may differ, "[...]" leaves out."""
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in quote.split("[...]")]
    if not all(pieces):
        return None
    spans = [found.span() for found in re.finditer(r"[\s\S]*?".join(pieces), text)]
    free = [span for span in spans if not any(start <= span[0] and span[1] <= stop for start, stop in taken)]
    return next(iter(free or spans), None)


class Admission:
    """The checks that every claim of a model or of a recording goes through."""

    def __init__(self, exercises: Mapping[str, Exercise]) -> None:
        self.questions = Questions(exercises)
        places = [place for each in self.questions.places.values() for place in each]
        self.places = {(place.question, plain_label(place.part)): place for place in places}
        self.counts: Counter[str] = Counter()

    def quoted(self, rows: Iterable[Mapping[str, Any]], turn: Turn) -> list[AnswerClaim]:
        """The claims of rows whose quotes stand in a turn, as they are admitted."""
        found: list[AnswerClaim] = []
        for row in rows:
            claim = at_quote(row, turn, found)
            self.counts["claims_not_quoted"] += claim is None
            claim = claim and self.admitted(claim)
            found += [claim] if claim else []
        return found

    def admitted(self, claim: AnswerClaim) -> AnswerClaim | None:
        """The claim; without text where its quote does not support it; None for a part that does not exist."""
        place, text = self.places.get((claim.question, plain_label(claim.part))), claim.claim
        if place is None:
            self.counts["claims_elsewhere"] += 1
            return None
        if text and place.kind == "words":
            text = self._explained(claim)
        elif text and _in_words(place):
            text = claim.quote
        elif text and not (readable(text, place) and supported(text, claim.quote)):
            self.counts["claims_unsupported"] += 1
            text = ""
        # Who understands the text knows a conclusion from a step; rules see only where an equation stands.
        anchor = "label" if claim.anchor == "equation" else claim.anchor
        return claim.model_copy(update={"claim": text, "part": place.part, "anchor": anchor})

    def _explained(self, claim: AnswerClaim) -> str:
        """An explanation as it is judged: without lines of the sheet, torn formulas, and what it contrasts."""
        lines = units(Turn(claim.turn, "unknown", claim.quote))
        return explanation([line for line in lines if not self.questions.is_restated(line.text)])[1]

    def same(self, one: AnswerClaim, two: AnswerClaim) -> bool:
        """Whether two claims on one part say the same."""
        place = self.places[one.question, plain_label(one.part)]
        if _in_words(place):
            return max(one.span[0], two.span[0]) < min(one.span[1], two.span[1])
        pieces = [[split_outside(piece, "=")[-1] for piece in split_outside(each.claim, ";\n")] for each in (one, two)]
        if len(pieces[0]) != len(pieces[1]) or bool(one.claim) != bool(two.claim):
            return False
        symbols, pairs = getattr(place.exercise, "symbols", {}), list(zip(*pieces, strict=True))
        alike = all((glyphs(first), first.count("(")) == (glyphs(last), last.count("(")) for first, last in pairs)
        return alike or all(compare(first, last, symbols).kind == "equal" for first, last in pairs)

    def findings(self) -> list[Finding]:
        """How many claims were not taken, and why."""
        return [Finding(code, {"count": count}) for code, count in self.counts.items() if count]


def at_quote(row: Mapping[str, Any], turn: Turn, before: Iterable[AnswerClaim]) -> AnswerClaim | None:
    """The claim of a row that has a quote; None where the turn does not have it. A quote that comes again moves on."""
    taken = [each.span for each in before if (each.turn, each.part) == (turn.index, row["part"])]
    span = located(row["quote"], turn.text, taken)
    return at_span({**row, "turn": turn.index, "span": span}, turn.text) if span else None


def at_span(row: Mapping[str, Any], text: str) -> AnswerClaim:
    """The claim of a row that has a span; it is the quote itself where the row has None."""
    start, stop = row["span"]
    quote = text[start:stop]
    if start < 0 or not quote or len(quote) != stop - start:
        raise ValueError("a span that the turn does not have")
    return AnswerClaim.model_validate({**row, "quote": quote, "claim": quote if row["claim"] is None else row["claim"]})


def _in_words(place: Place) -> bool:
    """Whether the answer is a text that is judged as it stands."""
    return place.kind in ("words", "proof") or place.asked.form == "code"
