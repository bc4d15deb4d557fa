"""The questions on unscaled scores as formulas: their moments, the softmax Jacobian, its size, and the consequence."""

from __future__ import annotations

from dataclasses import dataclass

from ..judging.prose import Idea, Ideas
from ..problem import Misconception, Part, Step
from ..scaling.answers import Moment
from .answers import Jacobian, MeanAndVariance, Norm, UpperBound


@dataclass(frozen=True)
class Names:
    """What a question calls things; `deviation` is that of every component of queries and keys."""

    width: str = "d_head"
    scores: str = "s"
    weights: str = "a"
    keys: str = "n"
    q: str = "q"
    k: str = "k"
    deviation: int = 1

    @property
    def law(self) -> dict[str, str]:
        spread = "I" if self.deviation == 1 else f"{self.deviation**2} I"
        return {
            self.width: "natural",
            self.q: f"random vector[{self.width}] ~ (0, {spread})",
            self.k: f"random vector[{self.width}] ~ (0, {spread})",
        }

    @property
    def softmax(self) -> dict[str, str]:
        n = self.keys
        return {
            n: "natural",
            self.scores: f"vector[{n}]",
            self.weights: f"vector[{n}] = softmax({self.scores})",
            "i": f"index[{n}]",
            "j": f"index[{n}]",
            "delta": f"matrix[{n},{n}] = I_{n}",
        }

    @property
    def any_weights(self) -> dict[str, str]:
        return {self.keys: "natural", self.weights: f"vector[{self.keys}]", "epsilon": "positive"}


def moments_part(at: Names, name: str) -> Part:
    d, q, k, c = at.width, at.q, at.k, at.deviation
    total = rf"\sum_{{j=1}}^{{{d}}}"
    gold = d if c == 1 else f"{c**4} {d}"
    law = at.law
    other = law | {"d_model": "natural"}

    def steps() -> tuple[Step, ...]:
        return (
            Step(
                "The mean of a score is a sum of products of means.",
                f"${q}$ and ${k}$ are independent, and every component has mean 0.",
                (f"E[{q}^T {k}]", f"{total} E[{q}_j] E[{k}_j]", "0"),
                0,
                law,
            ),
            Step(
                "The variance is the mean of the square; only squares of single products are left.",
                "Terms with two different components vanish, for their means are 0.",
                (rf"\operatorname{{Var}}({q}^T {k})", f"E[({q}^T {k})^2]", rf"{total} E[{q}_j^2] E[{k}_j^2]", gold),
                gold,
                law,
            ),
        )

    each = "1" if c == 1 else str(c**4)
    return Part(
        name,
        f"Find the mean and the variance of one score, the dot product of ${q}$ and ${k}$, in terms of ${d}$.",
        MeanAndVariance({"mean": Moment("0", law), "variance": Moment(gold, other)}),
        steps,
        (
            "Write the score as a sum over the components.",
            "Independence turns means of products into products of means; with mean 0 only squares are left.",
            f"Each of the ${d}$ terms adds a product of two second moments to the variance, ${each}$.",
        ),
        2,
        (
            Misconception("terms not added", f"variance = {each}"),
            Misconception("standard deviation for variance", rf"variance = \sqrt{{{gold}}}"),
            Misconception("model width for head width", f"variance = {gold.replace(d, 'd_{model}')}"),
        ),
        law,
        (r"\bVar\b", r"\bvariance\b", r"\bmean\b"),
        f"Each of the ${d}$ products has mean 0 and adds the same to the variance, which grows with the width.",
    )


def jacobian_part(at: Names, name: str) -> Part:
    a, s = at.weights, at.scores
    gold = rf"\operatorname{{diag}}({a}) - {a} {a}^T"
    symbols = at.softmax
    entry = f"({gold})_{{ij}}"

    def steps() -> tuple[Step, ...]:
        return (
            Step(
                "Differentiate one weight by one score.",
                "The quotient rule: the exponential above gives the diagonal, the sum below the product.",
                (rf"\frac{{\partial {a}_i}}{{\partial {s}_j}}", rf"{a}_i (\delta_{{ij}} - {a}_j)"),
                rf"{a}_i (\delta_{{ij}} - {a}_j)",
                symbols,
            ),
            Step(
                "Put the entries together.",
                "The first term stands on the diagonal, the second is an outer product.",
                (rf"{a}_i (\delta_{{ij}} - {a}_j)", entry),
                gold,
                symbols,
            ),
        )

    return Part(
        name,
        f"Let ${a} = softmax({s})$. Find the Jacobian of ${a}$ with respect to ${s}$.",
        Jacobian(gold, symbols, entry=entry, diagonal=f"{a}_i (1 - {a}_i)", off=f"-{a}_i {a}_j"),
        steps,
        (
            "Differentiate one weight by one score; treat the same index and another one apart.",
            f"The same index gives ${a}_i (1 - {a}_i)$. What does another one give?",
            f"Off the diagonal stands $-{a}_i {a}_j$; write both as a diagonal matrix less an outer product.",
        ),
        2,
        (
            Misconception("only the diagonal", rf"\operatorname{{diag}}({a}) - \operatorname{{diag}}({a})^2"),
            Misconception("sign turned", rf"{a} {a}^T - \operatorname{{diag}}({a})"),
        ),
        symbols,
        (r"\bjacobian\b", r"\\partial"),
        "A weight grows with its own score and falls with every other: what one gains the others lose.",
    )


def norm_part(at: Names, name: str) -> Part:
    a = at.weights
    symbols = at.any_weights
    gold = rf"\sum_i {a}_i^2 (1 - {a}_i)^2 + 2 \sum_{{i<j}} {a}_i^2 {a}_j^2"
    start = rf"\|\operatorname{{diag}}({a}) - {a} {a}^T\|_F^2"
    short = rf"\|{a}\|^2 - 2 \sum_i {a}_i^3 + \|{a}\|^4"
    return Part(
        name,
        "Write its squared Frobenius norm as sums over the weights.",
        Norm(gold, symbols),
        lambda: (
            Step(
                "Add the squares of all entries.",
                f"Diagonal entries are ${a}_i (1 - {a}_i)$; every other entry $-{a}_i {a}_j$ stands twice.",
                (start, gold),
                gold,
                symbols,
            ),
            Step(
                "It can be written shorter.", "Multiplied out, the fourth powers join.", (gold, short), short, symbols
            ),
        ),
        (
            "The squared norm is the sum of the squares of all entries.",
            "Part the entries on the diagonal from those off it; the matrix is symmetric.",
            f"Diagonal: the squares of ${a}_i (1 - {a}_i)$. Off it: each $({a}_i {a}_j)^2$ with $i < j$ comes twice.",
        ),
        2,
        (
            Misconception("pairs counted once", rf"\sum_i {a}_i^2 (1 - {a}_i)^2 + \sum_{{i<j}} {a}_i^2 {a}_j^2"),
            Misconception("only the diagonal", rf"\sum_i {a}_i^2 (1 - {a}_i)^2"),
        ),
        symbols,
        (r"\bfrobenius\b", r"\\\|", r"\bnorm\b"),
        "Squares on the diagonal once, and every pair off it twice.",
    )


def bound_part(at: Names, name: str) -> Part:
    n, e = at.keys, r"\epsilon"
    symbols = at.any_weights
    sums = rf"{e}^2 + ({n} - 1) {e}^2 + {n} ({n} - 1) {e}^2"
    gold = rf"{n}^2 {e}^2"
    return Part(
        name,
        f"Suppose that one weight exceeds $1 - {e}$, so that every other is below ${e}$. Bound the squared norm in "
        f"terms of ${n}$ and ${e}$.",
        UpperBound(gold, symbols, (rf"4 {e}^2", rf"(2 {e})^2")),
        lambda: (
            Step(
                "Bound each kind of entry.",
                f"The largest weight leaves less than ${e}$ to 1; each of the other ${n} - 1$ diagonal entries is "
                f"below ${e}$; a product of two weights is below the smaller, which is below ${e}$.",
                (sums, gold),
                gold,
                symbols,
            ),
            Step(
                f"A sharper bound has no ${n}$.",
                f"The norm is at most the trace, which is at most $2 (1 - \\max({at.weights}))$, below $2 {e}$.",
            ),
        ),
        (
            f"Which factor of each entry is below ${e}$?",
            "There are three kinds: the diagonal entry of the largest weight, the other diagonal entries, the pairs.",
            f"Add ${sums}$ and simplify.",
        ),
        2,
        (
            Misconception("only the diagonal", rf"{n} {e}^2"),
            Misconception("bound not squared", rf"{n} {e}"),
        ),
        symbols,
        (r"\\epsilon", r"\bbound"),
        f"Every entry has a factor below ${e}$, and there are ${n}^2$ of them.",
    )


SATURATES = Idea(
    "that the softmax saturates",
    (
        r"softmax … (?:saturat\w+|one ?hot|peak\w*|sharp\w*|spik\w*|hard|argmax|concentrat\w+)",
        r"saturat\w+",
        r"one weight … (?:1|one|all)",
        r"(?:weights?|attention|distribution|probabilit\w+) … (?:one ?hot|peak\w*|sharp\w*|concentrat\w+)",
        r"(?:weights?|attention|distribution|probabilit\w+) … (?:single|one) (?:key|token|position|entry)",
        r"almost all … (?:weight|mass|probability) … (?:one|single)",
    ),
    "The softmax saturates: one weight is nearly 1 and all others are nearly 0.",
)  # fmt: skip
VANISH = Idea(
    "that gradients vanish",
    (
        r"(?:gradients?|derivatives?|jacobian) … (?:vanish\w*|0|zero|small|tiny|shrink\w*|negligible)",
        r"vanishing[ -]gradients?",
        r"gradients? (?:[^\s.;]+ ){0,14}vanish\w*",
        r"(?:vanish\w*|no|small|tiny|zero) … gradients?",
        r"(?:learning|training) … (?:stalls?|stops?|slows?|fails?|hard\w*|difficult|slow)",
    ),
    "Its Jacobian, and with it the gradients, vanish.",
)
FLAT = Idea(
    "that the softmax flattens",
    (r"softmax … (?:flat\w*|uniform)", r"(?:weights?|distribution) … (?:flat\w*|uniform)"),
    "larger scores only sharpen the softmax, they never flatten it",
)
SHRINK = Idea(
    "that scores shrink",
    (
        (
            r"(?:scores?|logits?|dot products?|inner products?|variance) "
            r"(?:(?!not\b|would\b|divid\w+|scal\w+|with\b)\w+ ){0,3}(?:shrink|shrinks|smaller|decreas\w+|tiny)\b"
        ),
    ),
    "without the division the scores grow with the width, they do not shrink",
)
EXPLODE = Idea(
    "that gradients explode",
    (r"gradients? … explod\w*", r"exploding gradients?"),
    "the entries of the Jacobian are at most 1/4 in size and shrink as the softmax saturates: nothing explodes there",
)


def words_part(at: Names, name: str) -> Part:
    d = at.width
    return Part(
        name,
        f"What would come of leaving the division by $\\sqrt{{{d}}}$ out, for the weights and for training?",
        Ideas(
            (SATURATES, VANISH),
            (FLAT, EXPLODE, SHRINK),
            "Scores grow with the root of the width, so that the softmax saturates: one weight is nearly 1, the others "
            "nearly 0. There the Jacobian is nearly 0 and the gradients vanish. Divided by the root, scores keep "
            "variance 1 at every width.",
        ),
        lambda: (
            Step(
                "Scores of a large variance lie far apart.",
                f"Without the division their standard deviation is of the order of $\\sqrt{{{d}}}$, and the softmax of "
                "scores that lie far apart has one weight near 1: it saturates.",
            ),
            Step(
                "Near a single weight of 1 the Jacobian is near 0.",
                "Every entry has a factor that is small there, so that the typical gradient vanishes. With the "
                "division the variance of scores is 1 at every width.",
            ),
        ),
        (
            "How far apart do scores lie when their variance is large, and what does softmax make of that?",
            "Two things are to be said: what becomes of the weights, and what becomes of the Jacobian at such weights.",
            "The softmax comes near to an argmax. What is the derivative of something that is nearly constant?",
        ),
        2,
        (
            Misconception("softmax flattens", "Without the division the softmax becomes flat and nearly uniform."),
            Misconception("gradients explode", "Without the division the gradients explode."),
        ),
        {d: "natural"},
        (r"\bconsequence", r"\bvanish", r"\bsaturat", r"\bwhy\b"),
        "Large scores saturate the softmax, and a saturated softmax passes hardly any gradient on.",
    )  # fmt: skip
