"""Attention with a kernel for softmax: when it is finite, its features, the rewritten equation, the costs."""

from __future__ import annotations

import random
from collections.abc import Callable

from ...errors import QkvError
from ...render.document import Formula, Maths, Paragraph, prose
from ..problem import Part, Problem
from ..variety import digits
from .costs import elu_part, linear_part, one_cost, softmax_part, streamed_part
from .numbers import crossover_part, similarity_part, vanishing_part
from .parts import condition_part, count_part, kernel_part, map_part, rewrite_part
from .reading import read_question
from .setting import Setting

NAME = "kernels"
TITLE = "Kernelised linear attention"

LENGTHS = ("N", "n", "S", "L", "R", "B")
WIDTHS = ("D", "d", "p", "h", "g")
VALUES = ("M", "m", "w", "u", "a")
VECTORS = (("q", "k"), ("x", "y"))
KERNELS = ((2, 1), (2, 0), (3, 1), (3, 0))
# The part on a feature map is asked of quadratic kernels alone: a cubic one's is too long to write down.
ASKED = (
    ("condition", "kernel", "map", "rewrite", "softmax", "linear"),
    ("similarity", "count", "linear", "crossover"),
    ("vanishing", "kernel", "count", "softmax", "streamed"),
    ("condition", "count", "rewrite", "elu", "linear"),
)
MAKERS: dict[str, Callable[[Setting, str], Part]] = {
    "condition": condition_part,
    "kernel": kernel_part,
    "map": map_part,
    "rewrite": rewrite_part,
    "count": count_part,
    "softmax": softmax_part,
    "linear": linear_part,
    "elu": elu_part,
    "streamed": streamed_part,
    "similarity": similarity_part,
    "vanishing": vanishing_part,
    "crossover": crossover_part,
    "softmax time": one_cost(softmax_part, "time"),
    "softmax space": one_cost(softmax_part, "space"),
    "linear time": one_cost(linear_part, "time"),
    "linear space": one_cost(linear_part, "space"),
}
DOCUMENT = ("a", "b(i)", "b(ii)", "b(iii)", "c", "d")


def make(seed: int | None) -> Problem:
    """The documents' own question (None), or a fresh one."""
    if seed is None:
        return built(Setting(), ASKED[0], DOCUMENT, None)
    draw = random.Random(f"{NAME}:{seed}")
    sizes = (len(KERNELS), len(LENGTHS), len(WIDTHS), len(VALUES), len(VECTORS))
    # One on, so that the documents' own names come last.
    kernel, length, width, value, vectors = digits(seed + 1, *sizes)
    asked, tied = seed % len(ASKED), seed // len(ASKED) % 2
    degree, constant = KERNELS[kernel]
    query, key = _friendly(draw)
    setting = Setting(
        degree,
        constant,
        LENGTHS[length],
        WIDTHS[width],
        VALUES[value],
        *VECTORS[vectors],
        tied=bool(tied),
        query=query,
        key=key,
        concrete=draw.choice((3, 4, 5, 6, 8)),
    )
    questions = tuple("kernel" if ask == "map" and degree != 2 else ask for ask in ASKED[asked])
    questions = tuple(dict.fromkeys(questions))
    return built(setting, questions, tuple("abcdefgh"[: len(questions)]), seed)


def _friendly(draw: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two vectors whose dot product is no number that a power leaves as it is."""
    while True:
        width = draw.choice((2, 3))
        query = tuple(draw.choice((-2, -1, 1, 2, 3)) for _ in range(width))
        key = tuple(draw.choice((-1, 0, 1, 2)) for _ in range(width))
        dot = sum(a * b for a, b in zip(query, key, strict=True))
        if 2 <= abs(dot) <= 6 and dot != -2:
            return query, key


def built(setting: Setting, asked: tuple[str, ...], names: tuple[str, ...], seed: int | None) -> Problem:
    """The problem of a setting with these questions."""
    parts = tuple(MAKERS[ask](setting, name) for ask, name in zip(asked, names, strict=True))
    symbols = setting.symbols
    return Problem(
        NAME,
        TITLE,
        statement(setting),
        parts,
        make,
        seed,
        (
            asked,
            setting.degree,
            setting.constant,
            setting.tied,
            setting.length,
            setting.width,
            setting.value,
            setting.q,
        ),
        symbols,
        ("003 6",),
        (
            "For which keys does the sum below the fraction vanish, with the kernel above?",
            "How would a causal mask change the two sums over the keys, and what would have to be kept?",
            "From which length on does the linear form pay, for your own width?",
        ),
    )


def statement(setting: Setting):
    n, d, m, q, k = setting.length, setting.width, setting.value, setting.q, setting.k
    given = (
        f"${n}$ queries and ${n}$ keys of ${d}$ components are the rows of $Q$ and $K$, and ${n}$ values of ${m}$ "
        "components the rows of $V$. Attention with a similarity $sim$ answers query $i$ with"
    )
    kind = {2: "quadratic", 3: "cubic"}[setting.degree]
    after = (
        f"Softmax attention has the similarity $\\exp({q}^T {k} / \\sqrt{{{d}}})$ of a query ${q}$ and a key ${k}$. A "
        f"polynomial kernel of degree $r$ is $({q}^T {k} + c)^r$; here it is {kind}, with $c = {setting.constant}$."
    )
    symbols = setting.symbols
    return (
        Paragraph(prose(given, symbols)),
        Formula(Maths(setting.attention("sim(Q_i, K_j)"), symbols)),
        Paragraph(prose(after, symbols)),
    )


def recognised(text: str) -> tuple[float, Problem] | None:
    """Whether the text asks of attention with kernels: the condition, the features, the rewriting, the costs."""
    found = read_question(text)
    if found is None:
        return None
    try:
        return found.confidence, built(found.setting, found.asked, found.names, None)
    except QkvError:
        return None  # names that cannot be declared: the text is not what it seemed


PROBLEMS: dict[str, Callable[[int | None], Problem]] = {NAME: make}
