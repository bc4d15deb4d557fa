"""What a question about reach tells: heads and layers in digits, words or letters, the sequence's end, a residual."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reading.lettered import Asked

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
          "fourteen", "fifteen", "sixteen")  # fmt: skip
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_DIGITS = {word: str(place) for place, word in enumerate(_WORDS, 1)} | {"single": "1", "sixty-four": "64"}
_PLACES = {word: str(place) for place, word in enumerate(_ORDINALS, 1)}

_SKIP = r"(?:residuals?|skip[- ]connections?|identity (?:path|branch)\w*)"
_NO_RESIDUAL = (
    rf"\b(?:no|without|lack\w*|omit\w*|remov\w+|drop\w*|ignor\w+|disregard\w*|neglect\w*|leav\w+ out)\b "
    rf"(?:(?!with\b)[\w-]+,? ){{0,3}}{_SKIP}|{_SKIP}[^.;]{{0,30}}\b(?:are|is|were|was) (?:\w+ )?"
    rf"(?:removed|omitted|left out|dropped|absent|missing|ignored|disabled|not (?:used|there|present))|"
    rf"\bnot? \w+ (?:any |a )?{_SKIP}|non-residual"
)
_HEADS = (
    r"(?<![\w.^])(\d{1,3}|[A-Za-z])[- ](?:(?:attention|argmax|parallel|independent|different|distinct) )*heads?\b",
    r"\bheads? (?:count )?(?:is |= ?|: ?)(\d{1,3}|[A-Za-z])\b",
    r"\bnumber of (?:attention )?heads,? (?:is |= ?|: ?)?(\d{1,3}|[b-zB-Z])\b",
)
_LAYERS = (
    r"\blayer (?:number |no\.? |index )?(\d{1,3}|[A-Za-z])\b",
    r"(?<![\w.^])(\d{1,3}|[b-zB-Z])[- ](?:(?:such|attention|transformer|stacked|decoder|encoder) )*layers?\b",
    r"\b(?:depth|number of layers),? (?:is |= ?|of |: ?)?(\d{1,3}|[b-zB-Z])\b",
)
_LENGTH = (
    (
        r"\b(?:sequences?|inputs?|contexts?|texts?)(?: length)?(?: of| is|,| with| has| have| =)*"
        r"(?: length| exactly| only)?(?: of| is| =)? (\d{1,7})\b(?! (?:heads|layers))"
    ),
    r"(?<![\w.^])(\d{1,7}) (?:input )?(?:tokens|positions|words|time steps)\b(?! (?:back|before|away|farther))",
    r"(?<![\w.])[A-Za-z] ?= ?(\d{1,7}) (?:tokens|positions)\b",
    r"\blength(?: of| is| =)? (\d{1,7})\b",
)
_ENDLESS = r"long enough|far from|arbitrarily long|unbounded|infinitely long"
# Heads that look at more than one position, or in a pattern that is not told here.
_UNTOLD = (
    r"\btop[- ]?(?:\d|k\b|two|three)|\bdilat\w+|\bstrided?\b|each head (?:looks at|attends to) (?:two|three|[2-9])\b"
)


@dataclass(frozen=True)
class Reach:
    """What is asked: `heads` and `layers` are numbers or letters; `length` and `window` are 0 where none is told."""

    kind: str
    heads: str
    layers: str
    length: int = 0
    window: int = 0
    residual: bool = True

    @property
    def in_numbers(self) -> bool:
        return self.heads.isdigit() and self.layers.isdigit()


def reach_in(asked: Asked, before: str = "") -> Reach | None:
    """What a part tells about reach, or else what stands before it; None where that cannot be told as a `Reach`.

    >>> reach_in(Asked("a(ii)", "four heads?", "Without residuals, how many positions does layer L see with"))
    Reach(kind='plain', heads='4', layers='L', length=0, window=0, residual=False)
    """
    said = [
        _plain(text)
        for text in (asked.text, asked.stem, re.sub(r"\b(?:For p|P)art \([a-h]\).*", "", before, flags=re.DOTALL))
    ]
    whole = " ".join(said)
    if re.search(_UNTOLD, whole, re.IGNORECASE):
        return None
    heads = (
        _first(_HEADS, said[:1]) or _counted(said[0], whole) or _first(_HEADS, said[1:2]) or _first(_HEADS, said[2:])
    )
    layers = _first(_LAYERS, said)
    window = re.search(r"window of (?:size |width )?(\d{1,6})", whole)
    earlier = re.search(r"the (\d{1,6}) (?:positions|tokens) before", whole)
    size = int(window[1]) if window else int(earlier[1]) + 1 if earlier else 0
    length = (
        "" if re.search(_ENDLESS, whole) else _first(_LENGTH, [re.sub(r"window of.{0,30}", "", text) for text in said])
    )
    residual = next(
        (not re.search(_NO_RESIDUAL, text, re.IGNORECASE) for text in said if re.search(_SKIP, text, re.I)), True
    )
    kind = (
        "window" if size else
        "agreeing" if re.search(r"same (?:one |single )?position|\bagree", whole) else
        "neighbours" if re.search(r"positions? back|neighbou?rs", whole) else
        "capped" if length else "plain"
    )  # fmt: skip
    if kind == "window":
        heads = heads if heads.isdigit() else "1"
    found = Reach(kind, heads or "k", layers or "n", int(length or 0), size, residual)
    told = kind in ("plain", "capped") or (residual and found.in_numbers)
    # The end of the sequence matters only to a number.
    one_letter = found.heads == found.layers and not found.in_numbers
    return found if told and (kind != "capped" or found.in_numbers) and not one_letter else None


def _counted(said: str, whole: str) -> str:
    """The heads of a case that leaves the word to its neighbours: "if there are two"."""
    count = rf"({'|'.join(_DIGITS)}|\d{{1,3}}|[b-zB-Z])"
    found = re.fullmatch(
        rf"\W*(?:and )?(?:(?:if|when|where) )?(?:there (?:is|are)|with|for|of) {count}\W*", said, re.IGNORECASE
    )
    return _DIGITS.get(found[1].lower(), found[1]) if found and re.search(r"\bheads?\b", whole, re.IGNORECASE) else ""


def _first(patterns: tuple[str, ...], texts: list[str]) -> str:
    """What the first pattern finds in the first text that has any of them."""
    for text in texts:
        for pattern in patterns:
            for found in re.finditer(pattern, text, re.IGNORECASE):
                if found[1] not in ("a", "A", "I", "s"):
                    return found[1]
    return ""


def _plain(text: str) -> str:
    """A text with numbers in digits and without the signs that set type."""
    plain = re.sub(r"\\ell\b|ℓ", "l", text)
    plain = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r"\1", plain)
    plain = re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3}\b)", "", re.sub(r"[$*`]", "", plain))
    plain = re.sub(r"\s+", " ", plain)
    plain = re.sub(
        rf"\b({'|'.join(_PLACES)}) layer\b", lambda found: f"layer {_PLACES[found[1].lower()]}", plain, flags=re.I
    )
    numbers = "|".join(_DIGITS)
    after = r"(?=[- ](?:\w+ ){0,2}(?:heads?|layers?|tokens|positions)\b)"
    plain = re.sub(rf"\b({numbers})\b{after}", lambda found: _DIGITS[found[1].lower()], plain, flags=re.I)
    return re.sub(rf"\blayer ({numbers})\b", lambda found: f"layer {_DIGITS[found[1].lower()]}", plain, flags=re.I)
