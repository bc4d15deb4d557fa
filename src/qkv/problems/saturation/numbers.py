"""The softmax Jacobian at numbers: weights that are fractions, entries, rows, traces, norms, temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..judging.answers import Value
from ..problem import Misconception, Part, Step


@dataclass(frozen=True)
class Case:
    """Scores ln w_1, ln w_2, …, so that the weights are w_i over their sum; `row` and `column` are asked, from 1."""

    counts: tuple[int, ...]
    row: int = 1
    column: int = 2
    power: int = 2
    scores: str = "s"
    weights: str = "a"

    @property
    def exact(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(count, sum(self.counts)) for count in self.counts)

    @property
    def symbols(self) -> dict[str, str]:
        n, logs = len(self.counts), ", ".join(rf"\ln {count}" for count in self.counts)
        return {self.scores: f"vector[{n}] = ({logs})", self.weights: f"vector[{n}] = softmax({self.scores})"}

    def jacobian(self) -> tuple[tuple[Fraction, ...], ...]:
        a = self.exact
        return tuple(tuple((x if i == j else 0) - x * y for j, y in enumerate(a)) for i, x in enumerate(a))


def fraction(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    top = abs(value.numerator)
    return f"{sign}{top}" if value.denominator == 1 else rf"{sign}\frac{{{top}}}{{{value.denominator}}}"


def listed(values) -> str:
    return f"({', '.join(map(fraction, values))})"


def weights_part(at: Case, name: str) -> Part:
    total = sum(at.counts)
    gold, a = listed(at.exact), at.weights
    raw = f"({', '.join(map(str, at.counts))})"
    return Part(
        name,
        f"Find the weights ${a} = softmax({at.scores})$ as fractions.",
        Value(gold, at.symbols),
        lambda: (
            Step(
                "Exponentials of logarithms are the numbers themselves; divide by their sum.",
                f"They add up to {total}.",
                (f"softmax({at.scores})", rf"\frac{{1}}{{{total}}} {raw}", gold),
                at.exact,
                at.symbols,
            ),
        ),
        (
            "What is the exponential of a logarithm?",
            "The exponentials are whole numbers; the weights are their shares.",
            f"Divide each of ${raw}$ by {total}.",
        ),
        1,
        (Misconception("softmax not normalised", raw),),
        at.symbols,
        (r"\bweights\b", r"\bsoftmax\b"),
        "Each weight is its number's share of the sum.",
    )


def entry_part(at: Case, name: str) -> Part:
    i, j, a, s = at.row, at.column, at.weights, at.scores
    x, y = at.exact[i - 1], at.exact[j - 1]
    value = at.jacobian()[i - 1][j - 1]
    formula = f"-{a}_{i} {a}_{j}" if i != j else f"{a}_{i} (1 - {a}_{i})"
    numbers = f"-{fraction(x)} \\cdot {fraction(y)}" if i != j else rf"{fraction(x)} \cdot {fraction(1 - x)}"
    wrong = -value if i != j else -(x**2)
    planted = [Misconception("sign turned" if i != j else "identity forgotten", fraction(wrong))]
    return Part(
        name,
        f"Find the derivative of ${a}_{i}$ by ${s}_{j}$.",
        Value(fraction(value), at.symbols),
        lambda: (
            Step(
                "Take the entry of the Jacobian.",
                "Off the diagonal it is less the product of two weights, on it a weight times what it leaves to 1.",
                (rf"(\operatorname{{diag}}({a}) - {a} {a}^T)_{{{i}{j}}}", formula, numbers, fraction(value)),
                value,
                at.symbols,
            ),
        ),
        (
            "Is this an entry on the diagonal of the Jacobian?",
            f"The Jacobian is $\\operatorname{{diag}}({a}) - {a} {a}^T$.",
            f"Work out ${numbers}$.",
        ),
        2,
        tuple(each for each in planted if wrong != value),
        at.symbols,
        (r"\bderivative\b", r"\\partial"),
        "A weight grows with its own score and falls with the others.",
    )  # fmt: skip


def row_part(at: Case, name: str) -> Part:
    i, a = at.row, at.weights
    row = at.jacobian()[i - 1]
    x = at.exact[i - 1]
    unit = [Fraction(int(place == i - 1)) for place in range(len(at.counts))]
    outer = tuple(-x * y for y in at.exact)
    return Part(
        name,
        f"Find row {i} of the Jacobian of ${a}$ with respect to ${at.scores}$.",
        Value(listed(row), at.symbols),
        lambda: (
            Step(
                f"Row {i} is the weight times a unit vector less the weights.",
                "The outer product has in each row a weight times all weights.",
                (f"{a}_{i} ({listed(unit)} - {a})", listed(row)),
                row,
                at.symbols,
            ),
        ),
        (
            "What do the entries of one row add up to?",
            f"The diagonal entry is ${a}_{i} (1 - {a}_{i})$, the others are $-{a}_{i} {a}_j$.",
            f"Multiply ${fraction(x)}$ with ${listed(unit)}$ less the weights.",
        ),
        2,
        (
            Misconception("identity forgotten", listed(outer)),
            Misconception("sign turned", listed([-entry for entry in row])),
        ),
        at.symbols,
        (r"\brow\b", r"\bjacobian\b"),
        "The entries of a row add up to 0: adding the same to all scores changes nothing.",
    )


def _written(rows: Sequence[Sequence[Fraction]]) -> str:
    """A matrix of fractions as one would type it."""
    return f"[{', '.join('[' + ', '.join(map(fraction, row)) + ']' for row in rows)}]"


def matrix_part(at: Case, name: str) -> Part:
    a, table = at.weights, at.jacobian()
    gold = _written(table)
    diagonal = [[entry if i == j else Fraction(0) for j, entry in enumerate(row)] for i, row in enumerate(table)]
    turned = [[-entry for entry in row] for row in table]
    return Part(
        name,
        f"Write down the Jacobian of ${a}$ with respect to ${at.scores}$ as a matrix of fractions.",
        Value(gold, at.symbols),
        lambda: (
            Step(
                "Put the weights into the formula.",
                "On the diagonal a weight less its square, off it less the product of two weights.",
                (rf"\operatorname{{diag}}({a}) - {a} {a}^T", gold),
                table,
                at.symbols,
            ),
        ),
        (
            "The matrix is symmetric and its rows add up to 0.",
            f"It is $\\operatorname{{diag}}({a}) - {a} {a}^T$.",
            f"On the diagonal stands ${a}_i - {a}_i^2$, elsewhere $-{a}_i {a}_j$: put the fractions in.",
        ),
        3,
        (Misconception("only the diagonal", _written(diagonal)), Misconception("sign turned", _written(turned))),
        at.symbols,
        (r"\bmatrix\b", r"\bjacobian\b", r"\bwrite (?:it|this|that) (?:out|down)\b|\bfor \W*[a-z]\s*=\s*[(\[]"),
        "A diagonal of the weights less their outer product.",
    )


def trace_part(at: Case, name: str) -> Part:
    a = at.weights
    squares = sum((x**2 for x in at.exact), Fraction(0))
    terms = " - ".join(f"({fraction(x)})^2" for x in at.exact)
    planted = [Misconception("identity forgotten", fraction(-squares))]
    if squares != Fraction(1, 2):
        planted.append(Misconception("squares not taken away", fraction(squares)))
    return Part(
        name,
        "Find the trace of that Jacobian, which bounds its Frobenius norm.",
        Value(fraction(1 - squares), at.symbols),
        lambda: (
            Step(
                "The trace is 1 less the squared length of the weights.",
                "The weights add up to 1.",
                (
                    rf"\operatorname{{tr}}(\operatorname{{diag}}({a}) - {a} {a}^T)",
                    f"1 - {a}^T {a}",
                    f"1 - {terms}",
                    fraction(1 - squares),
                ),
                1 - squares,
                at.symbols,
            ),
        ),
        (
            f"Which entries does a trace add? They are ${a}_i (1 - {a}_i)$.",
            "The weights add up to 1; what is taken away is the sum of their squares.",
            f"Work out $1 - {terms}$.",
        ),
        2,
        tuple(planted),
        at.symbols,
        (r"\btrace\b",),
        "One less the sum of the squared weights: near 0 where one weight is near 1.",
    )  # fmt: skip


def size_part(at: Case, name: str) -> Part:
    a = at.weights
    table = at.jacobian()
    total = sum((entry**2 for row in table for entry in row), Fraction(0))
    diagonal = sum((table[i][i] ** 2 for i in range(len(table))), Fraction(0))
    return Part(
        name,
        "Find its squared Frobenius norm.",
        Value(fraction(total), at.symbols),
        lambda: (
            Step(
                "Add the squares of all entries.",
                "Those off the diagonal come twice.",
                (
                    rf"\|\operatorname{{diag}}({a}) - {a} {a}^T\|_F^2",
                    rf"\sum_i {a}_i^2 (1 - {a}_i)^2 + 2 \sum_{{i<j}} {a}_i^2 {a}_j^2",
                    rf"{fraction(diagonal)} + {fraction(total - diagonal)}",
                    fraction(total),
                ),
                total,
                at.symbols,
            ),
        ),
        (
            "Square every entry and add.",
            "The matrix is symmetric: entries off the diagonal come twice.",
            f"The diagonal gives ${fraction(diagonal)}$, the rest ${fraction(total - diagonal)}$.",
        ),
        2,
        (
            Misconception("only the diagonal", fraction(diagonal)),
            Misconception("pairs counted once", fraction(diagonal + (total - diagonal) / 2)),
        ),
        at.symbols,
        (r"\bfrobenius\b", r"\bnorm\b"),
        "All squared entries, those off the diagonal twice.",
    )


def largest_part(at: Case, name: str) -> Part:
    a = at.weights
    table = at.jacobian()
    place = max(range(len(table)), key=lambda i: table[i][i])
    value, x = table[place][place], at.exact[place]
    return Part(
        name,
        "Which value has the largest entry of that Jacobian?",
        Value(fraction(value), at.symbols),
        lambda: (
            Step(
                "Entries off the diagonal are negative; compare those on it.",
                "A weight times what it leaves to 1 is largest for the weight nearest to one half.",
                (f"{a}_{place + 1} (1 - {a}_{place + 1})", rf"{fraction(x)} \cdot {fraction(1 - x)}", fraction(value)),
                value,
                at.symbols,
            ),
        ),
        (
            "Which entries are positive?",
            "Those on the diagonal: a weight times what it leaves to 1.",
            f"Take the weight nearest to one half, ${fraction(x)}$.",
        ),
        1,
        (
            Misconception("weight for derivative", fraction(max(at.exact))),
            Misconception("identity forgotten", fraction(-(x**2))),
        ),
        at.symbols,
        (r"\blargest\b",),
        "No entry is larger than 1/4.",
    )  # fmt: skip


def spectral_part(at: Case, name: str) -> Part:
    x, y = at.exact
    a = at.weights
    return Part(
        name,
        "There are two keys. Find the larger eigenvalue of the Jacobian, which is its spectral norm.",
        Value(fraction(2 * x * y), at.symbols),
        lambda: (
            Step(
                "With two keys the Jacobian is one number times a fixed matrix.",
                "All four entries have the same size; the eigenvector $(1, -1)$ has the eigenvalue that is asked.",
                (rf"(\operatorname{{diag}}({a}) - {a} {a}^T) (1, -1)", f"2 {a}_1 {a}_2 (1, -1)"),
                f"2 {a}_1 {a}_2",
                at.symbols,
            ),
            Step(
                "Put the weights in.",
                "It is never above one half, which equal weights reach.",
                (f"2 {a}_1 {a}_2", rf"2 \cdot {fraction(x)} \cdot {fraction(y)}", fraction(2 * x * y)),
                2 * x * y,
                at.symbols,
            ),
        ),
        (
            "Try the vector $(1, -1)$: moving the two scores apart.",
            f"Multiply the Jacobian with it: each entry of the product is a multiple of ${a}_1 {a}_2$.",
            f"The eigenvalue is $2 {a}_1 {a}_2$: put the weights in.",
        ),
        2,
        (Misconception("pairs counted once", fraction(x * y)),),
        at.symbols,
        (r"\beigenvalue\b", r"\bspectral\b"),
        "Twice the product of the two weights: at most one half.",
    )


def temperature_part(at: Case, name: str) -> Part:
    i, j, t = at.row, at.column, at.power
    ratio = Fraction(at.counts[i - 1], at.counts[j - 1])
    heated = {**at.symbols, at.weights: f"vector[{len(at.counts)}] = softmax({t} {at.scores})"}
    a, s = at.weights, at.scores
    return Part(
        name,
        f"All scores are now made {t} times as large. Find the ratio ${a}_{i} / {a}_{j}$ of two weights.",
        Value(fraction(ratio**t), heated),
        lambda: (
            Step(
                "In a ratio of weights the sum below falls away.",
                "What is left is the exponential of the difference of the scores.",
                (
                    rf"\frac{{{a}_{i}}}{{{a}_{j}}}",
                    f"e^{{{t} ({s}_{i} - {s}_{j})}}",
                    f"({fraction(ratio)})^{t}",
                    fraction(ratio**t),
                ),
                ratio**t,
                heated,
            ),
        ),
        (
            "The sum below is the same for both weights.",
            f"The ratio is the exponential of ${t} ({s}_{i} - {s}_{j})$.",
            f"Raise the old ratio, ${fraction(ratio)}$, to the power {t}.",
        ),
        1,
        (Misconception("ratio multiplied", fraction(ratio * t)),) if ratio * t != ratio**t else (),
        heated,
        (r"\bratio\b", r"\btimes as large\b"),
        "Ratios are raised to a power: larger scores sharpen the softmax.",
    )  # fmt: skip
