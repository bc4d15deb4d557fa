"""What a question on unscaled scores tells that its parts cannot all say: another law, another softmax."""

from __future__ import annotations

import re
from math import isqrt

_SPREAD = (
    r"(?P<what>standard deviations?|std\b\.?|variances?) ?(?:of |is |equal to |= ?)?"
    r"(?P<number>\d+(?:[./]\d+)?|one\b|two\b|three\b|\\(?:sigma|tau|rho|omega)|[a-z](?= ?\^ ?\{?2))"
)
_LAW = (
    re.compile(rf"\bmean\b[^.?]{{0,30}}?\b{_SPREAD}", re.IGNORECASE),
    re.compile(
        rf"\b(?:entries|components|elements|coordinates|inputs?|i\.?i\.?d\.?)(?!\w)[^.?]{{0,60}}?\b{_SPREAD}",
        re.IGNORECASE,
    ),
)
_NORMAL = re.compile(r"(?<![\w\\])N ?\( ?(?P<mean>[^(),]+?) ?, ?(?P<number>[^()]+?) ?(?:I(?:_\{? ?\w+ ?\}?)?)? ?\)")
_OTHER_LAW = re.compile(
    r"\buniform(?:ly)? (?:on|over|in|from|between|distribut)|\blaplac|\bexponential(?:ly)? distribut|\bbernoulli|"
    r"\brademacher|\bstudent(?:'s)?[- ]t\b|\bcauchy|(?<!un)\bcorrelated|\bnot independent|\bdependent\b",
    re.IGNORECASE,
)
_MEAN = re.compile(r"\bmeans? (?:of |is |equal to |= ?)?(-?\d+(?:\.\d+)?|one\b|\\[a-z]+|[a-zA-Z](?= and\b|,))")
_OTHER_SOFTMAX = re.compile(
    r"\blog[- ]?softmax|\bsparsemax|\btemperature\b|\b(?:spectral|nuclear|operator|max|infinity|l1|1)[- ]norm\b|"
    r"\b[a-z] ?= ?softmax ?\( ?(?![a-zA-Z](?:_\w)? ?\))[^()]*\)",
    re.IGNORECASE,
)
_OTHER_DIVISOR = re.compile(
    r"\bnot (?:by|its|the) |\b(?:rather than|instead of) (?:by |dividing by )?\\?[a-zA-Z](?:_\{?\w+\}?)?(?!\w)|"
    r"\b(?:to|that|for|with|get|has|have|having|gives?) (?:a |the )?variance (?:of |is |equal to |= ?)?(?:[2-9]|\d\d)",
    re.IGNORECASE,
)
_NUMBERS = {"one": 1, "two": 2, "three": 3}


def deviation(plain: str) -> int | None:
    """The standard deviation of every component, 1 where none is told; None where the law is another.

    >>> deviation("i.i.d. with mean 0 and variance 9"), deviation("entries with mean 2"), deviation("iid N(0, 1)")
    (3, None, 1)
    """
    if _OTHER_LAW.search(plain) or any(mean.lstrip("-0.") for mean in _MEAN.findall(plain)):
        return None
    found = set()
    for told in (place for law in _LAW for place in law.finditer(plain)):
        found.add(_root(told["number"], told["what"].lower().startswith("var")))
    for told in _NORMAL.finditer(plain):
        found.add(_root(told["number"] or "1", True) if told["mean"].strip() == "0" else None)
    return None if len(found) > 1 else next(iter(found), 1)


def _root(text: str, squared: bool) -> int | None:
    number = _NUMBERS.get(text.strip().lower()) or (int(text) if text.strip().isdigit() else None)
    if not number or number > 10_000 or (squared and isqrt(number) ** 2 != number):
        return None
    return isqrt(number) if squared else number


def can_be_asked(plain: str, asked: tuple[str, ...]) -> bool:
    """Whether the softmax and the divisor of the text are those that the parts are about."""
    if {"jacobian", "norm", "bound"} & set(asked) and _OTHER_SOFTMAX.search(plain):
        return False
    return not ({"words", "scale"} & set(asked) and _OTHER_DIVISOR.search(plain))
