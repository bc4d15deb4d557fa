"""Why scores are divided by √d: mean and variance of a dot product, and the divisor; for vector and scalar means."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from ...errors import QkvError
from ...render.document import Paragraph, prose
from ..problem import Part, Problem
from .law import Law, Spread, key
from .parts import centred_part, divisor_part, mean_part, scaled_part, variance_part
from .reading import read_question

NAME = "scaling"
SCALAR = "scaling-scalar"
TITLE = "Justifying scaled dot-product attention"

WIDTHS = ("d", "d_k", "n", "D", "p", "d_h")
MODELS = (("d", "h"), ("D", "H"), ("d_m", "h"), ("n", "h"), ("D", "h"), ("w", "r"))
MEANS = ((r"\mu", r"\nu"), ("m", "c"), (r"\theta", r"\eta"), (r"\mu_q", r"\mu_k"))
SPREADS = ((r"\sigma", r"\tau"), (r"\rho", r"\omega"), (r"\tau", r"\kappa"))
MATRICES = ((r"\Sigma", r"\Omega"), ("A", "B"), ("S", "C"))
VECTORS = (("q", "k"), ("x", "y"), ("u", "v"))

# Which questions are put together; "practical" is mean 0 and standard deviation 1.
ASKED = (
    ("mean", "practical", "divisor"),
    ("mean", "variance", "divisor"),
    ("mean", "wider", "wanted"),
    ("scaled mean", "scaled variance", "divisor"),
)
LAWS = (
    "one law",
    "two means",
    "two deviations",
    "two laws",
    "factor",
    "copies",
    "heads",
    "numbers",
    "full covariance",
    "two covariances",
    "diagonal",
)
SCALAR_LAWS = LAWS[:8]


def make(name: str, seed: int | None) -> Problem:
    """The documents' own question (None), or a fresh one."""
    if seed is None:
        scalar = name == SCALAR
        law = Law("scalar", "D_k") if scalar else Law()
        return built(name, law, ("mean", "practical", "divisor"), None, ("one law",))
    draw = random.Random(f"{name}:{seed}")
    kinds = LAWS if name == NAME else SCALAR_LAWS
    # One on, so that no seed up to the last combination gives the documents' own question.
    rest, kind = divmod(seed + 1, len(kinds))
    asked = (rest + kind) % len(ASKED)
    rest, width = divmod(rest, len(WIDTHS))
    rest, mean = divmod(rest, len(MEANS))
    rest, spread = divmod(rest, len(SPREADS))
    law = drawn(name, kinds[kind], WIDTHS[width], MEANS[mean], SPREADS[spread], VECTORS[rest % len(VECTORS)], draw)
    return built(name, law, ASKED[asked], seed, (kinds[kind],), draw)


def drawn(name: str, kind: str, width: str, means: tuple[str, str], spreads: tuple[str, str], vectors, draw) -> Law:
    """A law of a kind with these names."""
    scalar = name == SCALAR
    two_means = kind in ("two means", "two laws", "full covariance", "two covariances")
    two_spreads = kind in ("two deviations", "two laws", "diagonal")
    one, two = Spread("equal", spreads[0]), Spread("equal", spreads[1] if two_spreads else spreads[0])
    matrices = MATRICES[SPREADS.index(spreads)]
    if kind == "full covariance":
        one, two = Spread("full", matrices[0]), Spread("unit", "")
    elif kind == "two covariances":
        one, two = Spread("full", matrices[0]), Spread("full", matrices[1])
    elif kind == "diagonal":
        one = Spread("diagonal", r"\lambda")
    model = MODELS[WIDTHS.index(width)] if kind == "heads" else ()
    if model:
        width = "d_h"
    values = _numbers(scalar, width, means[0], spreads[0], draw) if kind == "numbers" else {}
    return Law(
        mean="scalar" if scalar else "vector",
        width=width,
        q=vectors[0],
        k=vectors[1],
        mean_q=means[0],
        mean_k=means[1] if two_means else means[0],
        spread_q=one,
        spread_k=two,
        factor=draw.choice((2, 3, 5)) if kind == "factor" else 1,
        copies=draw.choice(("r", "h", "g")) if kind == "copies" else "",
        model=model,
        values=values,
    )


def _numbers(scalar: bool, width: str, mean: str, spread: str, draw: random.Random) -> dict[str, str]:
    size = draw.choice((4, 9, 16, 25)) if scalar else 4
    entries = [draw.choice((-3, -2, -1, 1, 2, 3)) for _ in range(size)]
    return {
        key(width): str(size),
        key(mean): str(draw.choice((2, 3, 4, -2, -3))) if scalar else f"({', '.join(map(str, entries))})",
        key(spread): str(draw.choice((2, 3))),
    }


def built(
    name: str,
    law: Law,
    asked: tuple[str, ...],
    seed: int | None,
    structure: tuple[str, ...],
    draw: random.Random | None = None,
    fixed: dict[str, str] | None = None,
    wanted: str = "1",
) -> Problem:
    """The problem of a law with these questions; `fixed` and `wanted` are the special case and the variance wanted."""
    draw = draw or random.Random(0)
    spreads = [spread for spread in (law.spread_q, law.spread_k) if spread.kind == "equal"]
    wider = {key(spread.name): str(draw.choice((2, 3))) for spread in spreads}
    if law.values:
        fixed = wider = {}
    makers: dict[str, Callable[[str], Part]] = {
        "mean": partial(mean_part, law),
        "variance": partial(variance_part, law),
        "practical": partial(centred_part, law, fixed=fixed),
        "wider": partial(centred_part, law, fixed=wider),
        "divisor": partial(divisor_part, law, fixed=fixed, wanted=wanted),
        "wanted": partial(divisor_part, law, fixed=wider, wanted=draw.choice(("4", "9", "16"))),
        "scaled mean": partial(scaled_part, law, moment="mean"),
        "scaled variance": partial(scaled_part, law, moment="variance"),
    }
    symbols = law.symbols()
    return Problem(
        name,
        TITLE,
        tuple(Paragraph(prose(text, symbols)) for text in statement(law)),
        tuple(makers[ask](letter) for letter, ask in zip("abcdefgh", asked, strict=False)),
        partial(make, name),
        seed,
        (*structure, asked, law.width, law.mean_q, law.spread_q.name, law.q),
        symbols,
        ("002 2",) if name == SCALAR else ("000 1", "003 1"),
        follow_ups(law),
    )  # fmt: skip


def statement(law: Law) -> list[str]:
    """What is given, in words."""
    w, q, k = law.width, law.q, law.k
    if law.model:
        whole, heads = law.model
        given = [
            f"A model of width ${whole}$ has ${heads}$ heads, each of width ${w} = {whole}/{heads}$.",
            f"In one head a query ${q}$ and a key ${k}$, vectors of ${w}$ components, are independent.",
        ]
    elif law.copies:
        given = [
            f"There are ${law.copies}$ independent pairs of a query ${q}$ and a key ${k}$ of ${w}$ components each.",
            f"All pairs have the same law, and their ${law.copies}$ scores ${law.dot}$ are added.",
            "A query and a key are independent.",
        ]
    else:
        given = [f"A query ${q}$ and a key ${k}$ are independent random vectors of ${w}$ components."]
    if law.same_mean and law.same_spread:
        given.append(f"Both are normal with {_mean(law, law.mean_q)} and covariance ${law.spread_q.matrix(w)}$.")
    else:
        for vector, mean, spread in ((q, law.mean_q, law.spread_q), (k, law.mean_k, law.spread_k)):
            given.append(f"${vector}$ is normal with {_mean(law, mean)} and covariance ${spread.matrix(w)}$.")
    if law.mean == "scalar":
        given.append("A mean is one number here: every component of a vector has it.")
    else:
        given.append("A mean is a vector here, with an entry for each component.")
    if law.values:
        names = [name for name in (w, law.mean_q, law.spread_q.name) if key(name) in law.values]
        listed = ", ".join(f"${name} = {law.values[key(name)]}$" for name in names)
        given.append(f"Take {listed}.")
    if not law.copies:
        given.append(f"Their score is ${law.score}$.")
    return [" ".join(given)]


def _mean(law: Law, mean: str) -> str:
    return f"mean ${mean}$" if law.mean == "vector" or mean == "0" else f"mean ${mean}$ in every component"


def follow_ups(law: Law) -> tuple[str, ...]:
    mean = law.mean_q
    return (
        f"How large is the mean of the scaled score when ${mean}$ is not zero, and how does it grow with the width?",
        "Two keys meet the same query: are their scores independent, and are they uncorrelated?",
        "What would a negative divisor do to the order of the attention weights?",
    )


def recognised(text: str) -> tuple[float, Problem] | None:
    """Whether the text asks for mean, variance and divisor of a dot product; with its own names and sizes."""
    found = read_question(text)
    if found is None:
        return None
    name = SCALAR if found.law.mean == "scalar" else NAME
    try:
        problem = built(name, found.law, found.asked, None, ("read",), fixed=found.fixed, wanted=found.wanted)
    except QkvError:
        return None  # names that cannot be declared: the text is not what it seemed
    return found.confidence, problem


PROBLEMS: dict[str, Callable[[int | None], Problem]] = {NAME: partial(make, NAME), SCALAR: partial(make, SCALAR)}
