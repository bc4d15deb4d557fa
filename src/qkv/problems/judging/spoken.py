"""Formulas as they are spoken or typed in code: "the square root of d", "2 to the n", "mu @ mu", "x1: 2, x2: 8"."""

from __future__ import annotations

import re

from ..reading.literals import number_of, split_outside

_NAME = r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?)"
_ATOM = rf"(?:{_NAME}|\d+(?:\.\d+)?|\([^()]{{1,60}}\))"
_DIGITS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_WRITTEN = tuple(
    (re.compile(pattern), written)
    for pattern, written in (
        (r"\b(?:np|numpy|math|torch|jnp)\.", ""),
        (r"\*\*\s*(\d+|\w)", r"^{\1}"),
        (rf"<\s*({_NAME})\s*,\s*({_NAME})\s*>", r"\1^T \2"),
        (rf"(?<![\w@])({_NAME})\s*@\s*({_NAME})(?!\s*@|\w)", r"\1^T \2"),
        (rf"\b(?:dot|inner|vdot)\(\s*({_NAME})\s*,\s*({_NAME})\s*\)", r"\1^T \2"),
        (rf"({_NAME})['’]\s*({_NAME})", r"\1^T \2"),
        (r"(?<![\\\w])sum\(\s*(\\?[A-Za-z]+_i(?:\^\{?\w+\}?)?)\s*\)", r"\\sum_i \1"),
        (r"(?<![\\\w])eps\b", r"\\epsilon"),
        (r"(?<![\\\w])delta_\{?ij\}?", r"\\delta_{ij}"),
        (r"(?<![\w.^_{])1\s*(?=[a-z]\s*\^\s*\{?(?:T|\\top))", r"\\mathbf{1} "),
        (rf"(?i:\b(?:the )?(?:square )?root of )({_ATOM})$", r"\\sqrt{\1}"),
        (rf"(?i:\b(?:the )?squared (?:euclidean |l2 )?(?:norm|length) of )(?:the mean )?({_NAME})$", r"\\|\1\\|^2"),
        (rf"(?i:\b(?:the )?(?:dot|inner|scalar) product of )({_NAME})(?i: with itself)$", r"\1^T \1"),
        (rf"(?i:\b(?:the )?dot product of )({_NAME})(?i: and )({_NAME})$", r"\1^T \2"),
        (rf"(?i:\b(?:the )?sum of (?:the )?squares? of (?:the )?(?:components|entries|elements) of )({_NAME})$",
         r"\\|\1\\|^2"),
        (rf"(?i:\b(?:the )?sum of (?:the )?squared (?:components|entries|elements) of )({_NAME})$", r"\\|\1\\|^2"),
        (rf"({_ATOM})(?i: to the (?:power (?:of )?)?)({_ATOM})(?: power)?$", r"\1^{\2}"),
        (rf"({_ATOM})(?i: squared)$", r"\1^2"),
    )
)  # fmt: skip
_LABEL = re.compile(r"^\$?\s*(?:\\?[A-Za-z]{1,6}?)(?:_?\{?([1-9])\}?)?\s*(?:=|:)\s*(.+)$", re.DOTALL)


def written(text: str) -> str:
    r"""A formula in words or in code's signs as mathematics; any other text as it is.

    >>> written("the square root of d"), written("two to the power n"), written("sum(mu_i**2)"), written("a + b")
    ('\\sqrt{d}', '2^{n}', '\\sum_i mu_i^{2}', 'a + b')
    """
    if len(text) > 200:
        return text
    text = text.strip(" .")
    if begun := re.match(rf"({'|'.join(_DIGITS)}) to the\b", text, re.IGNORECASE):
        text = _DIGITS[begun[1].lower()] + text[begun.end(1) :]
    for pattern, formula in _WRITTEN:
        text = pattern.sub(formula, text)
    return text


def as_vector(text: str, count: int) -> str:
    """Numbers one after the other, with or without names that count, as a vector; "" for any other text.

    >>> as_vector("a_1 = 3/14, a_2 = 1/2", 2), as_vector("2 8 -20", 3), as_vector("a_2 = 1, a_1 = 2", 2)
    ('(3/14, 1/2)', '(2, 8, -20)', '')
    """
    if len(text) > 2000 or count < 2:
        return ""
    pieces = [
        piece.strip(" $") for piece in split_outside(re.sub(r"[;\n]|,?\s+and\s+", ",", text), ",") if piece.strip()
    ]
    if len(pieces) == 1:
        pieces = text.split()
    if len(pieces) != count:
        return ""
    labels = [_LABEL.match(piece) for piece in pieces]
    if all(labels):
        counted = [label[1] for label in labels if label]
        stems = [re.split(r"[_\d=:]", piece)[0].strip(" ${") for piece in pieces]
        named = len(set(stems)) == 1 and counted == [str(place) for place in range(1, count + 1)]
        if not named and stems != list("xyzw")[:count]:
            return ""
        pieces = [label[2].strip(" $.") for label in labels if label]
    numbers = [piece.rstrip(".") for piece in pieces]
    return f"({', '.join(numbers)})" if all(number_of(piece) is not None for piece in numbers) else ""
