"""Normalisation (004 3): what an output depends on, numbers worked out, and what holds of every output."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from ...render.document import Block, Paragraph, prose
from ...theory.normalisation import LAYER
from ..judging.answers import Value
from ..problem import Part, Problem
from ..reading.lettered import Asked, about
from ..variety import digits
from . import numbers as norms_numbers
from .axes import INDEX, NORMS, PAIRS, SHAPES, STYLES, dependence_part, differing, shuffled_order, tensor_symbols
from .claims import CLAIMS, RMS_PROOF, claim_part, with_letters
from .numbers import numeric_part
from .reading import (
    claim_in,
    compared_in,
    kind_of,
    letters_in,
    likeness,
    norms_in,
    numbers_in,
    order_in,
    parts_of,
    shape_in,
    sizes_in,
    style_in,
)

NAME = "norms"
CHECKED = tuple(name for name in CLAIMS)
FOLLOW_UPS = (
    "What does layer normalisation give for a vector whose components are all equal, and why is there an epsilon?",
    (
        "Why does a language model's output not depend on its batch with layer normalisation, and could with batch "
        "normalisation?"
    ),
    "Which of these norms can be applied to a single token that has just been decoded?",
)
DOCUMENT = ("", "B", "D", "BD")


def make(seed: int | None = None) -> Problem:
    """The documents' question, or the variant of a seed."""
    if seed is None:
        return documents_problem()
    draw = random.Random(f"{NAME}:{seed}")
    pair, kind, claim = digits(seed, len(PAIRS), len(norms_numbers.KINDS), len(CHECKED))
    shape, *norms = PAIRS[pair]
    style = draw.choice(STYLES)
    numbers = norms_numbers.drawn(norms_numbers.KINDS[kind], draw)
    chosen = CLAIMS[CHECKED[claim]]
    parts = (
        dependence_part("a", shape, norms, shuffled_order(shape, draw), style),
        numeric_part("b", numbers),
        claim_part("c", chosen, alone=False),
    )
    said = " and ".join(NORMS[norm].says for norm in norms)
    statement = (
        *_tensor(shape, f"It is normalised in two ways, for comparison: by {said}."),
        Paragraph(prose(f"For part (b): {norms_numbers.given(numbers)}", numbers.symbols)),
        Paragraph(prose(f"For part (c): {chosen.given}", chosen.symbols)),
    )
    structure = (shape, *norms, numbers.kind, len(numbers.x), chosen.name, style)
    return _problem(statement, parts, seed, structure)


def documents_problem(norms: tuple[str, ...] = ("layer", "batch"), order: tuple[str, ...] = DOCUMENT) -> Problem:
    """The documents' question: both norms, then the length of the output."""
    pairs = zip(("i", "ii"), norms, strict=True)
    each = (dependence_part(f"a({sign})", "BD", (norm,), order, "i") for sign, norm in pairs)
    parts = (*each, claim_part("b", CLAIMS["proof"], alone=False))
    both = dependence_part("a", "BD", norms, order, "i")
    statement = (
        *_tensor("BD", "It is normalised to $Y$ of the same shape."),
        Paragraph(prose(f"For part (b): {CLAIMS['proof'].given}", CLAIMS["proof"].symbols)),
    )
    return replace(_problem(statement, parts, None, ("BD", *norms, "proof")), wholes=(both,))


def _tensor(shape: str, more: str) -> tuple[Block, ...]:
    sizes = {
        "B": "$B$ examples",
        "T": "$T$ tokens each",
        "D": "$D$ features" + (" each" if shape == "BD" else " a token"),
    }
    listed = ", ".join(sizes[axis] for axis in shape)
    index = ",".join(INDEX[axis] for axis in shape)
    given = (
        f"A tensor $X$ of shape {SHAPES[shape]} holds {listed}. {more} An entry of the input is $x_{{{index}}}$, the "
        f"entry of the output at the same place $y_{{{index}}}$."
    )
    return (Paragraph(prose(given, tensor_symbols(shape))),)


def _problem(statement: tuple[Block, ...], parts: tuple[Part, ...], seed: int | None, structure: tuple) -> Problem:
    return Problem(
        NAME, "What normalisation looks at, and what it "
              "leaves", statement, parts, make, seed, structure, {}, ("004 3",), FOLLOW_UPS
    )  # fmt: skip


def recognised(text: str) -> tuple[float, Problem] | None:
    """How surely a text asks this, and the problem with the text's own parts, options, norms and numbers."""
    score = likeness(text)
    if score == 0:
        return None
    before, asked = parts_of(text)
    parts = [part for each in asked if (part := _part(each, before)) is not None]
    if not parts:
        return None
    statement = _tensor(shape_in(text), "It is normalised.")
    return score, _problem(statement, tuple(parts), None, ("read", *(part.ask for part in parts)))


def _part(asked: Asked, before: str) -> Part | None:
    """The bank's part for a part of a text; `before` is what the text gives before its parts."""
    kind = kind_of(asked, before)
    if kind == "dependence":
        shape = shape_in(f"{before} {asked.whole}")
        norms = compared_in(asked.whole, before) or ("layer",)
        if any(shape not in NORMS[norm].over for norm in norms):
            return None
        order = order_in(asked.whole, shape) or order_in(before, shape) or tuple(differing(shape))[:8]
        own = asked.whole if order_in(asked.whole, shape) else before
        return dependence_part(asked.name, shape, norms, order, style_in(own))
    if kind == "numbers":
        numbers = numbers_in(f"{about(before, asked.name)} {asked.whole}")
        return numeric_part(asked.name, numbers) if numbers else None
    if kind == "length in numbers" and (sizes := sizes_in(asked.whole)) is not None:
        return _length_part(asked.name, rf"{sizes[0]} \sqrt{{{sizes[1]}}}", {})
    if kind == "claim":
        whole = f"{about(before, asked.name)} {asked.whole}"
        claim = claim_in(whole if norms_in(whole) else f"{before} {whole}")
        if claim is None:
            return None
        letters = letters_in(f"{before} {whole}")
        if claim == "length" and not re.search(r"any sign|negative|absolute", whole):
            return _length_part(asked.name, r"\gamma \sqrt{d}", {**LAYER, "gamma": "positive"})
        known = RMS_PROOF if claim == "rms proof" else CLAIMS[claim]
        return claim_part(asked.name, with_letters(known, *letters))
    return None


def _length_part(name: str, length: str, symbols: Mapping[str, str]) -> Part:
    """The length of the output for a scale above 0, in letters or in numbers."""
    part = claim_part(name, CLAIMS["length"])
    wrong = tuple(each for each in part.misconceptions if each.name != "sign of the scale") if symbols else ()
    return replace(part, answer=Value(length, symbols), symbols=symbols, misconceptions=wrong)


PROBLEMS: dict[str, Callable[[int | None], Problem]] = {NAME: make}
