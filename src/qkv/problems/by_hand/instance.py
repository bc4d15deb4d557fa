"""One worked attention: exact queries, keys, values and scores, the weights of one token, and its weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from ..exact import (
    DIGITS,
    Matrix,
    Scale,
    Vector,
    dot,
    listed,
    matrix,
    mixed,
    number,
    rounded,
    softmax,
    transposed,
    vector,
)

UNSCALED = Scale()
LONGEST = 440  # characters of a matrix that `qkv.maths` takes for a definition
SMALL = 6  # sizes up to here are written out; larger ones show the pattern

_DIGITS_SHOWN = 30  # of a decimal; what has more is shown as a fraction


class Point(Fraction):
    """A fraction that is shown as a decimal where it is one.

    >>> str(Point(1, 8)), str(Point(-3)), str(Point(1, 3))
    ('0.125', '-3', '1/3')
    """

    def __str__(self) -> str:
        places = next((n for n in range(_DIGITS_SHOWN + 1) if 10**n % self.denominator == 0), None)
        if not places:
            return super().__str__()
        digits = f"{abs(self.numerator) * (10**places // self.denominator):0{places + 1}d}"
        return f"{'-' if self < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def at(letter: str, place: int | str) -> str:
    """The vector of a token by its name.

    >>> at("x", 3), at("x", 30)
    ('x_3', 'x_{30}')
    """
    return f"{letter}_{place}" if len(str(place)) == 1 else f"{letter}_{{{place}}}"


@dataclass(frozen=True)
class Instance:
    """Queries, keys and values as rows, with what they were made of where that is given.

    `token` is the one that attends, from 1; `seen` says for each query which keys it may attend to (None: all);
    `columns` says that the tokens are the columns of X, and not its rows; `plain` that the question has queries as
    W_Q x, and not as W_Qᵀ x: the weights here are always such that tokens as rows are multiplied from the right;
    `decimals` that numbers were given as decimals, and are shown so.
    """

    q: Matrix
    k: Matrix
    v: Matrix
    token: int
    x: Matrix | None = None
    wq: Matrix | None = None
    wk: Matrix | None = None
    wv: Matrix | None = None
    scale: Scale = UNSCALED
    seen: tuple[tuple[bool, ...], ...] | None = None
    causal: bool = False
    columns: bool = False
    plain: bool = False
    decimals: bool = False

    def applied(self, letter: str) -> str:
        """What a token is multiplied by from the left: the transposed weights, or the weights themselves."""
        return f"W_{letter}" if self.plain else f"W_{letter}^T"

    def stacked(self, letter: str) -> str:
        """All queries (keys, values) at once, as a product."""
        if self.columns:
            return f"{self.applied(letter)} X"
        return f"X W_{letter}^T" if self.plain else f"X W_{letter}"

    def asked_for(self, weight: Matrix) -> Matrix:
        """A weight matrix the way round that the question has it."""
        return transposed(weight) if self.plain else weight

    def shown(self, weight: Matrix) -> Matrix:
        """A weight matrix as the question has it."""
        return self.printed(self.asked_for(weight))

    def printed(self, rows: Matrix) -> Matrix:
        """Rows whose numbers are written as the given ones are."""
        return tuple(map(self.printed_row, rows))

    def printed_row(self, row: Vector) -> Vector:
        return tuple(map(Point, row)) if self.decimals else row

    def printed_number(self, value: Fraction) -> str:
        return str(Point(value)) if self.decimals else number(value)

    @property
    def sizes(self) -> dict[str, int]:
        """N, D (where there is one), D_k and D_v."""
        found = {"N": len(self.k), "D_k": len(self.k[0]), "D_v": len(self.v[0])}
        return found if self.x is None else {"N": found["N"], "D": len(self.x[0]), **found}

    @cached_property
    def small(self) -> bool:
        """Whether everything is written out and `qkv.maths` is given the matrices themselves."""
        written = [rows for rows in (self.q, self.k, self.v, self.x, self.wq, self.wk, self.wv) if rows is not None]
        return all(1 < size <= SMALL for size in (*self.sizes.values(), max(2, len(self.q)))) and all(
            len(matrix(rows)) <= LONGEST for rows in written
        )

    @property
    def places(self) -> range:
        """The tokens, from 1."""
        return range(1, len(self.k) + 1)

    @property
    def attended(self) -> tuple[int, ...]:
        """The tokens that the asked one may attend to, from 1."""
        if self.seen is None:
            return tuple(self.places)
        return tuple(place for place, may in zip(self.places, self.seen[self.token - 1], strict=True) if may)

    @cached_property
    def products(self) -> tuple[Fraction, ...]:
        """The asked token's query with every key, exactly, before scaling."""
        return tuple(dot(self.q[self.token - 1], key) for key in self.k)

    @property
    def scores(self) -> tuple[str, ...]:
        return tuple(self.scale.text(product) for product in self.products)

    @property
    def shown_scores(self) -> tuple[str, ...]:
        """The scores as they are printed; `scores` are exact in every digit."""
        if not self.decimals:
            return self.scores
        texts = (self.printed_number(product * self.scale.factor) for product in self.products)
        root = "" if self.scale.under == 1 else rf"/\sqrt{{{self.scale.under}}}"
        return tuple(text if text == "0" else f"{text}{root}" for text in texts)

    @cached_property
    def weights(self) -> tuple[Decimal, ...]:
        """The softmax of the scores; what is not attended to weighs 0."""
        found = softmax([self.scale.value(self.products[place - 1]) for place in self.attended])
        kept = dict(zip(self.attended, found, strict=True))
        return tuple(kept.get(place, Decimal(0)) for place in self.places)

    @cached_property
    def output(self) -> tuple[Decimal, ...]:
        return mixed(self.weights, self.v)

    @property
    def heaviest(self) -> tuple[int, ...]:
        """The tokens with the three largest weights, the largest first."""
        return tuple(sorted(self.attended, key=lambda place: -self.weights[place - 1])[:3])

    def shown_weights(self, digits: int = DIGITS) -> tuple[str, ...]:
        return tuple(rounded(weight, digits) for weight in self.weights)

    @property
    def sheet_weights(self) -> tuple[str, ...]:
        """The weights as a sheet prints them: five decimals, or three digits of a small one."""
        return tuple(f"{weight:.5f}" if weight >= Decimal("0.001") else rounded(weight, 3) for weight in self.weights)

    @property
    def shown_output(self) -> str:
        return listed([rounded(entry) for entry in self.output])

    @property
    def plugged(self) -> str:
        """The weighted sum with the rounded weights put in."""
        values = {place: vector(self.printed_row(self.v[place - 1])) for place in self.attended}
        return " + ".join(f"{self.sheet_weights[place - 1]} {value}" for place, value in values.items())

    @cached_property
    def symbols(self) -> dict[str, str]:
        """The names of the problem with their values; empty where the matrices are not small."""
        if not self.small:
            return {}
        n, width, out = len(self.k), len(self.k[0]), len(self.v[0])
        rows = len(self.q)
        found = {"N": f"natural = {n}", "D_k": f"natural = {width}", "D_v": f"natural = {out}"}
        if self.x is not None and self.wq is not None and self.wk is not None and self.wv is not None:
            wide = len(self.x[0])
            found["D"] = f"natural = {wide}"
            if self.columns:
                found["X"] = f"matrix[{wide},{n}] = {matrix(transposed(self.x))}"
                found["x"] = f"matrix[{n},{wide}] = X^T"
            else:
                found["X"] = f"matrix[{n},{wide}] = {matrix(self.x)}"
                found["x"] = f"matrix[{n},{wide}] = X"
            for letter, weight in (("Q", self.wq), ("K", self.wk), ("V", self.wv)):
                shown = self.asked_for(weight)
                found[f"W_{letter}"] = f"matrix[{len(shown)},{len(shown[0])}] = {matrix(shown)}"
        # Numbers throughout: a definition through the weights would be expanded again in every comparison.
        for letter, given in (("q", self.q), ("k", self.k), ("v", self.v)):
            found[letter] = f"matrix[{len(given)},{len(given[0])}] = {matrix(given)}"
        found |= self._stacked(rows, n, width, out)
        if rows == 1:  # a matrix of one row is a vector itself: its rows need a name of their own
            found["Q"] = found["q"]
            found |= {"q": f"matrix[{n},{width}]", "q_1": f"vector[{width}] = {vector(self.q[0])}"}
        scores = [[self.scale.text(dot(query, key)) for key in self.k] for query in self.q]
        written = f"[{', '.join('[' + ', '.join(row) + ']' for row in scores)}]"
        product = self.scaled("Q k^T" if rows == 1 else "q k^T")
        found["z"] = f"matrix[{rows},{n}] = {written if len(written) <= LONGEST else product}"
        return found | self._weights() | {"A": f"matrix[{rows},{n}] = a"}

    @cached_property
    def names(self) -> dict[str, str]:
        """The same for words about them: where the matrices are not small, what they are without their values."""
        if self.small:
            return self.symbols
        found = dict.fromkeys(self.sizes, "natural")
        for letters, wide in (("qkQK", "D_k"), ("vV", "D_v"), ("azA", "N")):
            found |= dict.fromkeys(letters, f"matrix[N,{wide}]")
        if self.x is not None:
            found |= {"x": "matrix[N,D]", "X": "matrix[D,N]" if self.columns else "matrix[N,D]"}
            for letter, wide in (("Q", "D_k"), ("K", "D_k"), ("V", "D_v")):
                found[f"W_{letter}"] = f"matrix[{wide},D]" if self.plain else f"matrix[D,{wide}]"
        for letter, wide in (("x", "D"), ("q", "D_k"), ("k", "D_k"), ("v", "D_v")):
            # k_{18} would be read as entry 1, 8.
            found |= {f"{letter}_{place}": f"vector[{wide}]" for place in range(10, max(len(self.q), len(self.k)) + 1)}
        return {"D": "natural"} | found | {"i": "index[N]", "j": "index[N]"}

    def _stacked(self, rows: int, n: int, width: int, out: int) -> dict[str, str]:
        if self.columns:
            return {"Q": f"matrix[{width},{rows}] = q^T", "K": f"matrix[{width},{n}] = k^T",
                    "V": f"matrix[{out},{n}] = v^T"}  # fmt: skip
        return {"Q": f"matrix[{rows},{width}] = q", "K": f"matrix[{n},{width}] = k", "V": f"matrix[{n},{out}] = v"}

    @property
    def score(self) -> str:
        """What a score is: z_{i,j} = q_i^T k_j, scaled."""
        which = "1" if len(self.q) == 1 and self.x is None else "i"
        return f"z_{{{which},j}} = {self.scaled(f'q_{which}^T k_j')}"

    def scaled(self, product: str) -> str:
        """A product with the scale, as a formula."""
        if self.scale.plain:
            return product
        below = str(self.scale.factor.denominator) if self.scale.factor.numerator == 1 else ""
        if self.scale.under != 1:
            below = rf"{below} \sqrt{{{self.scale.under}}}".removeprefix("1 ")
        return rf"\frac{{{product}}}{{{below}}}" if below else f"{self.printed_number(self.scale.factor)} {product}"

    def _weights(self) -> dict[str, str]:
        """Row-wise softmax; where a mask leaves keys out, the row of the asked token alone, its weights called w."""
        shape = f"matrix[{len(self.q)},{len(self.k)}]"
        if self.seen is None:
            return {"a": f"{shape} = softmax(z)"}
        if len(self.attended) == 1:
            weights, found = ["1"], {}
        else:
            weights = [f"w_{place}" for place in range(1, len(self.attended) + 1)]
            kept = ", ".join(self.scores[place - 1] for place in self.attended)
            found = {"w": f"vector[{len(weights)}] = softmax(({kept}))"}
        row = dict(zip(self.attended, weights, strict=True))
        blank = f"[{', '.join(['0'] * len(self.k))}]"
        own = f"[{', '.join(row.get(place, '0') for place in self.places)}]"
        rows = [own if place == self.token else blank for place in range(1, len(self.q) + 1)]
        return {**found, "a": f"{shape} = [{', '.join(rows)}]"}
