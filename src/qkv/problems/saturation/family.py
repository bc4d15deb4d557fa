"""What becomes of softmax and its gradients when scores are not scaled: moments, Jacobian, its size, consequences."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

from ...errors import QkvError
from ...render.document import Paragraph, prose
from ..problem import Part, Problem
from . import numbers as numbers
from . import parts as formulas
from .numbers import Case
from .parts import Names
from .reading import read_question
from .scale import scale_part

NAME = "saturation"
TITLE = "Scaled dot-product attention: why, and what if not"

WIDTHS = ("d_k", "d", "D", "d_h", "m", "p")
SCORES = ("s", "z", "l")
KEYS = ("n", "N", "T")
VECTORS = (("q", "k"), ("x", "y"))
DEVIATIONS = (1, 2, 3)
FORMULAS: dict[str, Callable[[Names, str], Part]] = {
    "moments": formulas.moments_part,
    "jacobian": formulas.jacobian_part,
    "norm": formulas.norm_part,
    "bound": formulas.bound_part,
    "words": formulas.words_part,
    "scale": scale_part,
}
DOCUMENT = ("moments", "jacobian", "norm", "bound", "words")
NUMBERS: dict[str, Callable[[Case, str], Part]] = {
    "weights": numbers.weights_part,
    "entry": numbers.entry_part,
    "matrix": numbers.matrix_part,
    "size": numbers.size_part,
    "row": numbers.row_part,
    "trace": numbers.trace_part,
    "largest": numbers.largest_part,
    "spectral": numbers.spectral_part,
    "temperature": numbers.temperature_part,
}
COUNTED = (
    ("weights", "entry", "matrix", "size"),
    ("weights", "row", "trace", "largest"),
    ("weights", "spectral", "temperature"),
)


def make(seed: int | None) -> Problem:
    """The documents' own question (None), or a fresh one."""
    if seed is None:
        return asked_of(Names(), DOCUMENT, tuple(f"a({roman})" for roman in ("i", "ii", "iii", "iv", "v")), None)
    # Formulas and three kinds of numbers take turns, so that neighbours are never alike.
    turn, kind = divmod(seed, 4)
    if kind == 0:
        turn, width = divmod(turn, len(WIDTHS))
        turn, scores = divmod(turn, len(SCORES))
        turn, keys = divmod(turn, len(KEYS))
        turn, vectors = divmod(turn, len(VECTORS))
        names = Names(WIDTHS[width], SCORES[scores], "a", KEYS[keys], *VECTORS[vectors], DEVIATIONS[turn % 3])
        asked = (DOCUMENT, DOCUMENT[:3], ("moments", "words"), DOCUMENT[1:])[(width + scores) % 4]
        return asked_of(names, asked, tuple("abcde"[: len(asked)]), seed)
    return counted(_case(kind, turn, random.Random(f"{NAME}:{seed}")), COUNTED[kind - 1], seed)


def _case(kind: int, turn: int, draw: random.Random) -> Case:
    """Numbers that no other turn has; the first two kinds share them out between each other."""
    size, largest = (2, 10) if kind == 3 else ((3, 7), (4, 5))[turn % 2]
    choices = [counts for counts in product(range(1, largest + 1), repeat=size) if len(set(counts)) > 1]
    random.Random(f"{NAME}:{size}").shuffle(choices)
    place = turn if size == 2 else turn // 2 * 2 + kind - 1
    turned, place = divmod(place, len(choices))
    row = draw.randrange(size) + 1
    column = draw.choice([column for column in range(1, size + 1) if kind != 3 or column != row])
    return Case(choices[place], row, column, draw.choice((2, 3)), SCORES[turned % len(SCORES)])


def asked_of(
    at: Names, asked: tuple[str, ...], names: tuple[str, ...], seed: int | None, case: Case | None = None
) -> Problem:
    """The problem in formulas, with these questions; those at numbers are asked of `case`."""
    d, c = at.width, at.deviation
    given = (
        f"A query ${at.q}$ and ${at.keys}$ keys have ${d}$ components each, all independent with mean 0 and standard "
        f"deviation {c}. The score of a key ${at.k}$ is the dot product ${at.q}^T {at.k}$; the scores ${at.scores}$ of "
        f"all keys go into a softmax. In attention they are divided by $\\sqrt{{{d}}}$ first. Show why, and what would "
        "come of leaving it out."
    )
    symbols = at.softmax | at.law
    parts = tuple(
        NUMBERS[ask](case, name) if case is not None and ask in NUMBERS else FORMULAS[ask](at, name)
        for ask, name in zip(asked, names, strict=True)
    )
    structure = ("formulas", asked, at.width, at.scores, at.keys, at.q, c)
    return _problem(given, parts, structure, symbols, seed)


def counted(at: Case, asked: tuple[str, ...], seed: int | None) -> Problem:
    """The problem at numbers."""
    logs = ", ".join(rf"\ln {count}" for count in at.counts)
    keys, scores = len(at.counts), at.scores
    given = f"The scores of one query for {keys} keys are ${scores} = ({logs})$, and ${at.weights}$ are their softmax."
    parts = tuple(NUMBERS[ask](at, name) for ask, name in zip(asked, "abcdefghi", strict=False))
    structure = ("numbers", asked, len(at.counts), at.row, at.column, at.scores)
    return _problem(given, parts, structure, at.symbols, seed)


def _problem(
    given: str, parts: tuple[Part, ...], structure: tuple, symbols: dict[str, str], seed: int | None
) -> Problem:
    follow_ups = (
        "For which weights is the Jacobian largest, and how large is it there?",
        "The two best scores nearly tie: does the softmax saturate then, however wide the vectors are?",
        "How does the gradient that reaches a query depend on the lengths of the keys?",
    )
    words = (Paragraph(prose(given, symbols)),)
    return Problem(NAME, TITLE, words, parts, make, seed, structure, symbols, ("004 1",), follow_ups)


def recognised(text: str) -> tuple[float, Problem] | None:
    """Whether the text asks why scores are divided by √d, what if not, or for the Jacobian of softmax."""
    found = read_question(text)
    if found is None:
        return None
    romans = ("i", "ii", "iii", "iv", "v", "vi")
    names = found.names or tuple(f"a({roman})" for roman in romans[: len(found.asked)])
    try:
        if isinstance(found.given, Case):
            return found.confidence, counted(found.given, found.asked, None)
        return found.confidence, asked_of(found.given, found.asked, names, None, found.case)
    except QkvError:
        return None  # names that cannot be declared: the text is not what it seemed


PROBLEMS: dict[str, Callable[[int | None], Problem]] = {NAME: make}
