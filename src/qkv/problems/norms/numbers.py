"""Normalising small vectors by hand: deviations are chosen so that every root is a whole number."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from ..judging.answers import Value
from ..problem import Misconception, Part, Step

KINDS = ("layer", "rms", "batch", "stored")
# Whole numbers that sum to 0 and whose mean square is a whole number squared.
SPREADS = ((1, -1), (1, 1, -1, -1), (5, -1, -1, -3), (4, -1, -1, -1, -1), (3, 1, 0, -1, -3), (1, 1, 1, -1, -1, -1))


@dataclass(frozen=True)
class Numbers:
    """The numbers of one question: a vector (or a column of the batch), scale and shift, and what is stored."""

    kind: str
    x: tuple[int, ...]
    gamma: int
    beta: int
    mean: int = 0
    deviation: int = 1

    @property
    def symbols(self) -> dict[str, str]:
        return {"u": f"vector[{len(self.x)}]", "epsilon": "nonnegative"}

    @property
    def centre(self) -> Fraction:
        return Fraction(self.mean) if self.kind == "stored" else _mean(self.x) if self.kind != "rms" else Fraction(0)

    @property
    def spread(self) -> Fraction:
        """The deviation, or the root of the mean square."""
        if self.kind == "stored":
            return Fraction(self.deviation)
        return _root(_mean(tuple((value - self.centre) ** 2 for value in self.x)))

    @property
    def result(self) -> tuple[Fraction, ...]:
        return tuple(self.gamma * (value - self.centre) / self.spread + self.beta for value in self.x)


def _mean(values: tuple[int | Fraction, ...]) -> Fraction:
    return Fraction(sum(values)) / len(values)


def _root(square: Fraction) -> Fraction:
    top, bottom = isqrt(square.numerator), isqrt(square.denominator)
    root = Fraction(top, bottom)
    assert root * root == square, "spreads are chosen to have rational roots"
    return root


def drawn(kind: str, draw: random.Random) -> Numbers:
    """Numbers whose result is whole; the scale is a multiple of what would stay below a stroke."""
    spread = list(draw.choice(SPREADS))
    draw.shuffle(spread)
    base = _root(_mean(tuple(value * value for value in spread)))
    size = draw.randint(1, 3)
    gamma = int(base) * draw.choice((1, 2, -1, 3, -2))
    beta = draw.choice((-3, -2, -1, 1, 2, 3, 4))
    if kind == "rms":
        signs = [draw.choice((-1, 1)) for _ in spread]
        x = [size * value * sign for value, sign in zip(spread, signs, strict=True)]
        x = x if len(set(x)) > 1 else [-x[0], *x[1:]]
        return Numbers(kind, tuple(x), gamma, 0)
    centre = draw.randint(-4, 9)
    x = [centre + size * value for value in spread]
    if kind == "stored":
        deviation = draw.randint(2, 5)
        mean = draw.randint(-2, 6)
        return Numbers(
            kind, tuple(mean + deviation * step for step in draw.sample(range(-3, 4), 3)), gamma, beta, mean, deviation
        )
    return Numbers(kind, tuple(x), gamma, beta)


def written(values: tuple[int | Fraction, ...]) -> str:
    return f"({', '.join(map(str, values))})"


def given(numbers: Numbers) -> str:
    """The numbers as a sentence of the statement."""
    x, gamma, beta = written(numbers.x), numbers.gamma, numbers.beta
    return {
        "layer": f"The vector $u = {x}$ goes through layer normalisation with scale ${gamma}$, shift ${beta}$ and "
        r"$\epsilon = 0$.",
        "rms": f"The vector $u = {x}$ goes through RMS normalisation with scale ${gamma}$ and without a shift: it is "
        f"divided by "
        "the root of the mean of its squares.",
        "batch": f"One feature has the values $u = {x}$ in a batch of {len(numbers.x)} examples. It goes through batch "
        rf"normalisation in training with scale ${gamma}$, shift ${beta}$ and $\epsilon = 0$.",
        "stored": f"One feature has the values $u = {x}$ in a batch of {len(numbers.x)} examples. It goes through "
        f"batch normalisation in evaluation, with stored mean ${numbers.mean}$ and deviation ${numbers.deviation}$, "
        f"scale ${gamma}$ "
        rf"and shift ${beta}$.",
    }[numbers.kind]


def numeric_part(name: str, numbers: Numbers) -> Part:
    """The normalised vector, worked out."""
    n = len(numbers.x)
    definition = {"x": f"vector[{n}] = {written(numbers.x)}"}
    result = written(numbers.result)

    def steps() -> tuple[Step, ...]:
        found: list[Step] = []
        centre, spread = numbers.centre, numbers.spread
        apart = tuple(value - centre for value in numbers.x)
        if numbers.kind in ("layer", "batch"):
            chain = (f"({' + '.join(f'({value})' for value in numbers.x)}) / {n}", str(centre))
            found.append(Step("Take the mean.", "Over all the numbers that are normalised together.", chain, centre))
        if numbers.kind != "rms":
            chain = (f"{written(numbers.x)} - {_signed(centre)} {written((1,) * n)}", written(apart))
            found.append(Step("Take the mean off.", "So that what is left has none." if numbers.kind != "stored" else
                              "The stored one: the batch is not looked at.", chain, apart))  # fmt: skip
        if numbers.kind != "stored":
            squares = f"\\sqrt{{({' + '.join(f'({value})^2' for value in apart)}) / {n}}}"
            what = "Take the root of the mean square." if numbers.kind == "rms" else "Take the standard deviation."
            found.append(Step(what, "The mean of the squares, then its root.", (squares, str(spread)), spread))
        scaled = tuple(value / spread for value in apart)
        chain = (f"\\frac{{1}}{{{spread}}} {written(apart)}", written(scaled))
        found.append(Step("Divide.", "Now the mean of the squares is 1." if numbers.kind != "stored" else
                          "By the stored deviation.", chain, scaled))  # fmt: skip
        shift = f" + {_signed(numbers.beta)} {written((1,) * n)}" if numbers.beta else ""
        what = "Scale and shift." if numbers.beta else "Scale."
        chain = (f"{_signed(numbers.gamma)} {written(scaled)}{shift}", result)
        found.append(Step(what, "Every component alike.", chain, numbers.result))
        return tuple(found)

    wrong = {mistake: text for mistake, text in _mistaken(numbers).items() if text != result}
    unit = "root of the mean square" if numbers.kind == "rms" else "standard deviation"
    return Part(
        name,
        "What comes out, all of its components?",
        Value(result, definition),
        steps,
        (
            "Which two statistics are needed, and over which numbers?" if numbers.kind != "stored" else
            "Which statistics are used in evaluation?",
            (f"Take the mean off (if this norm does), divide by the {unit}, then multiply by the scale and add the "
            f"shift."),
            f"The {unit} is {numbers.spread}"
            + (f" and the mean {numbers.centre}" if numbers.kind != "rms" else "")
            + ": put them in.",
        ),
        3,
        tuple(Misconception(mistake, text) for mistake, text in wrong.items()),
        definition,
        (r"^\W*y\b", r"components?", r"what comes out", r"normali[sz]ed (?:vector|output)"),
        f"With {unit} {numbers.spread}"
        + (f" and mean {numbers.centre}" if numbers.kind != "rms" else "")
        + f" the result is ${result}$.",
    )  # fmt: skip


def _signed(number: int | Fraction) -> str:
    return f"({number})" if number < 0 else str(number)


def _mistaken(numbers: Numbers) -> dict[str, str]:
    """The mistakes as results; only those that this norm admits."""
    x, gamma, beta, centre, spread = numbers.x, numbers.gamma, numbers.beta, numbers.centre, numbers.spread
    found = {
        "divided by the variance in a norm": tuple(gamma * (value - centre) / spread**2 + beta for value in x),
        "scale left out": tuple((value - centre) / spread + beta for value in x),
    }
    if numbers.kind != "rms":
        found["shift left out"] = tuple(gamma * (value - centre) / spread for value in x)
    if numbers.kind in ("layer", "batch"):
        found["mean not taken off"] = tuple(gamma * value / spread + beta for value in x)
    texts: dict[str, str] = {}
    for mistake, values in found.items():
        if written(values) not in texts.values():
            texts[mistake] = written(values)
    return texts
