"""Attention with any similarity: when it is finite, the quadratic kernel's features, the linear rewrite, the costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import prod
from typing import Any

from ..cost import count
from ..derivation import Derivation, Step
from ..figures import Axis, Level, chart
from ..figures import Line as Curve
from ..maths import compare
from ..similarity import Polynomial
from .claim import Claim, Correction, Evidence, measured

SYMBOLS = {
    "Q": "matrix[N,D]",
    "K": "matrix[N,D]",
    "V": "matrix[N,M]",
    "phi": "map vector[D] -> vector[F]",
    "i": "index[N]",
    "j": "index[N]",
    "D": "natural",
    "M": "natural",
    "N": "natural",
    "F": "natural",
    # The symbols of the prose: one query and key, all of them, any similarity.
    "q": "matrix[N,D]",
    "k": "matrix[N,D]",
    "v": "matrix[N,M]",
    "sim": "map vector[D], vector[D] -> scalar",
}
VANISHING = {
    "s": "scalar",
    "t": "scalar",
    "q": "vector[2] = (1, 0)",
    "k": "matrix[2,2] = [[s - 1, 0], [t - 1, 3]]",
}
TWO_VECTORS = {"q": "vector[D]", "k": "vector[D]"}
QUADRATIC = {**SYMBOLS, "F": r"natural = (D+1)(D+2)/2"}
LISTED = Fraction(1, 10**6)  # what the listing of the exercise adds to the denominator

DERIVATION = (
    Step(r"(\mathrm{softmax}(Q K^\top / \sqrt{D}) V)_i", "softmax attention of query $i$", ""),
    Step(
        r"\frac{\sum_{j=1}^{N} \exp(Q_i^\top K_j / \sqrt{D}) V_j}{\sum_{j=1}^{N} \exp(Q_i^\top K_j / \sqrt{D})}",
        r"definition of softmax: the similarity is $\exp(q_i^\top k_j / \sqrt{D})$",
    ),
    Step(
        r"\sum_{j=1}^{2} (q^\top k_j + 1)^2",
        "the sum for $q = (1, 0)$ and keys $(s - 1, 0)$, $(t - 1, 3)$",
        "",
        symbols=VANISHING,
    ),
    Step(r"((s - 1) + 1)^2 + ((t - 1) + 1)^2", "$q$ takes the first component of a key"),
    Step(
        r"s^2 + t^2",
        "never negative, and 0 at $s = t = 0$: the keys $(-1, 0)$, $(-1, 3)$ leave nothing to divide by",
    ),
    Step(r"(q^\top k + 1)^2", "the quadratic kernel", "", symbols=TWO_VECTORS),
    Step(r"(q^\top k)^2 + 2 q^\top k + 1", "the square of a sum"),
    Step(
        r"\sum_{i=1}^{D} q_i^2 k_i^2 + 2 \sum_{1 \le i < j \le D} q_i q_j k_i k_j + 2 \sum_{i=1}^{D} q_i k_i + 1",
        "the square of the dot product has each square once and each mixed product twice",
    ),
    Step(
        r"\sum_{i=1}^{D} (q_i^2) (k_i^2) + \sum_{1 \le i < j \le D} (\sqrt{2} q_i q_j) (\sqrt{2} k_i k_j)"
        r" + \sum_{i=1}^{D} (\sqrt{2} q_i) (\sqrt{2} k_i) + 1",
        r"$2 = \sqrt{2} \sqrt{2}$: a product of features of $q$ with the same features of $k$",
    ),
    Step(r"D + \frac{D (D - 1)}{2} + D + 1", "features: squares, mixed products, coordinates, the constant", ""),
    Step(r"\frac{D^2 + 3 D + 2}{2}", "collected"),
    Step(r"\frac{(D + 1)(D + 2)}{2}", r"factorised: exactly so many, about $\frac{D^2}{2}$ for large $D$"),
    Step(
        r"\sum_{j=1}^{N} (\phi(Q_i)^\top \phi(K_j)) V_j", "above the fraction, the similarity a product of features", ""
    ),
    Step(
        r"\sum_{j=1}^{N} V_j (\phi(K_j)^\top \phi(Q_i))",
        "a scalar may stand on either side; a dot product is symmetric",
    ),
    Step(r"\sum_{j=1}^{N} (V_j \phi(K_j)^\top) \phi(Q_i)", "the product of matrices is associative"),
    Step(
        r"(\sum_{j=1}^{N} V_j \phi(K_j)^\top) \phi(Q_i)",
        r"$\phi(q_i)$ does not depend on $j$: the $M F$ sums serve all queries",
    ),
    Step(r"\sum_{j=1}^{N} \phi(Q_i)^\top \phi(K_j)", "below the fraction", ""),
    Step(r"\phi(Q_i)^\top \sum_{j=1}^{N} \phi(K_j)", "likewise: $F$ sums"),
    Step(r"2 N^2 D + 6 N^2 + 2 N^2 M", "flops of softmax attention: scores, softmax, weighted values (`qkv.cost`)", ""),
    Step(r"2 N^2 (D + M + 3)", "collected"),
    Step(
        r"2 N F + 2 N F (M + 1) + 2 N F (M + 1) + N M",
        "flops with sums: features, sums, answers, quotient (`qkv.cost`)",
        "",
        symbols=QUADRATIC,
    ),
    Step(r"2 N F (2 M + 3) + N M", "collected"),
    Step(r"N (D + 1)(D + 2)(2 M + 3) + N M", r"$F = \frac{(D + 1)(D + 2)}{2}$"),
    Step(r"\Theta(N F M)", "the rate with sums", "", symbols=QUADRATIC),
    Step(r"\Theta(N D^2 M)", "$F$ grows as $D^2$"),
)

CORRECTIONS = (
    Correction(
        "kernels (a)",
        "the sum must be positive because a squared kernel is never negative",
        r"for any similarity the condition is $\sum_j sim(q_i, k_j) \ne 0$ for every $i$. No negative term and one "
        "positive term are enough, as the exponential always has. The quadratic kernel has no such guarantee: "
        "$q = (1, 0)$ with keys $(-1, 0)$ and $(-1, 3)$ makes the sum 0. A similarity of both signs can cancel without "
        "any term being 0.",
    ),
    Correction(
        "kernels (b) (ii)",
        r"a feature map of dimension 'approximately $\frac{D^2}{2}$'",
        r"exactly $\frac{(D + 1)(D + 2)}{2}$: $D$ squares, $\frac{D (D - 1)}{2}$ mixed products, $D$ coordinates and a "
        "constant.",
    ),
    Correction(
        "kernels (c)",
        "softmax attention takes $O(N^2 D)$ time and $O(N^2)$ space",
        r"time $\Theta(N^2 D + N^2 M)$: the weighted sum of values costs $N^2 M$, which $D$ covers only where $M$ is "
        r"at most about $D$. Space $\Theta(N^2 + N D + N M)$: the question itself asks that $Q$, $K$ and $V$ be "
        "counted, and for $N < D$ they are larger.",
    ),
    Correction(
        "kernels (d)",
        "$O(N D^3)$ time and $O(N D^2 + D^3)$ space",
        r"right for $M \approx D$ where all features are kept for the backward pass. Nothing forces that: with sums "
        r"over the keys the features can be computed again, and $\Theta(D^2 M + N D + N M)$ is kept.",
    ),
    Correction(
        "kernels, equation numbers",
        "refers to (2), (3) and (4) where it means softmax attention, the general equation and its exponential case",
        "these are printed as (3), (4) and (5): the references are one too low, except in part (a) and the sentence "
        "before it.",
    ),
    Correction(
        "kernels, listing",
        "divides by the sum plus $10^{-6}$",
        "this hides a vanishing sum, and shrinks an answer whose sum is small: a sum of $10^{-8}$ gives about 1% of "
        "the right answer. Its column of ones also is float32 whatever $Q$ is.",
    ),
    Correction(
        "decoding, multi-query listing",
        "einsum subscripts `bhn,bhv->bhv` for the weighted values and `bhv,bdv->bd` for the output",
        "the shared values are `bnv` and the output projection is `hvd`: `bhn,bnv->bhv` and `bhv,hvd->bd`. As printed "
        "torch refuses them, or, where heads happen to equal the length, attends to nothing.",
    ),
    Correction(
        "decoding, both listings",
        r"logits without $\frac{1}{\sqrt{D}}$; only the answer is returned",
        r"scores are divided by $\sqrt{D}$, as the first problem asks, and the grown caches must be returned: "
        "otherwise the next step does not see this token.",
    ),
)


def kernels(*, seed: int = 0, length: int = 7, width: int = 5, value_width: int = 3) -> Claim:
    """V'_i = Σ_j sim(q_i,k_j) v_j / Σ_j sim(q_i,k_j) is finite when no sum below vanishes; features make it linear.

    Args:
        seed, length, width, value_width: of the random tensors on which the backends are compared.

    Returns:
        The claim, with its derivation and the evidence for it.

    >>> from qkv.theory import claims
    >>> claims()["kernels"] is kernels  # kernels().holds takes about ten seconds
    True
    """
    return Claim(
        "kernels",
        "Kernels instead of softmax",
        r"Attention with a similarity is finite where $\sum_j sim(q_i, k_j) \ne 0$ for every $i$; no negative term and "
        r"one positive term are enough. $(q_i^\top k_j + 1)^2$ is a product of $\frac{(D + 1)(D + 2)}{2}$ features, "
        r"and then sums over the keys serve all queries: $\Theta(N D^2 M)$ flops instead of "
        r"$\Theta(N^2 (D + M))$.",
        Derivation(DERIVATION, SYMBOLS, shown=True),
        (
            enough(),
            vanishing(),
            added_epsilon(),
            kernel_is_features(),
            linear_backend(seed, length, width, value_width),
            *counted_runs(seed),
            formulas(),
            *classes(),
            listing_subscripts(),
            decoding(seed),
        ),
        CORRECTIONS,
        ("kernels (a)", "kernels (b)", "kernels (c)", "kernels (d)", "decoding"),
        figure,
    )


def enough(values: Sequence[int] = (0, 1, 2)) -> Evidence:
    """Among similarities that are not negative, a sum vanishes only where every term does: all of four keys."""
    wrong = sum((sum(terms) == 0) != (not any(terms)) for terms in product(values, repeat=4))
    what = "similarities that are not negative, four keys: cases where the sum vanishes and one term does not"
    return Evidence(what, "refuted" if wrong else "proved", float(wrong), 0.0)


def vanishing(keys: Sequence[Sequence[float]] = ((-1.0, 0.0), (-1.0, 3.0))) -> Evidence:
    """The counterexample on a real call: the sum is exactly 0, the plain quotient NaN, and qkv's answer 0."""
    import torch

    import qkv

    query, key = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor(keys, dtype=torch.float64)
    value = torch.tensor([[2.0, 3.0, 5.0], [7.0, 11.0, 13.0]], dtype=torch.float64)
    sim = (query @ key.T + 1) ** 2
    plain = (sim @ value) / sim.sum(-1, keepdim=True)
    answer = qkv.attention(query, key, value, similarity=qkv.Polynomial(2, 1.0))
    finite = plain.isfinite().sum().item() + answer.abs().sum().item()
    return measured(
        r"quadratic kernel, keys with $q_i^\top k_j = -1$: finite entries of the quotient, and the answer of qkv",
        finite,
        0,
    )


def added_epsilon(below: Fraction = LISTED) -> Evidence:
    """How much of the right answer is left where `below` is added to a sum of 10⁻⁸, exactly: q·k = −1 + 10⁻⁴."""
    similarity = (Fraction(-1) + Fraction(1, 10**4) + 1) ** 2
    left = similarity / (similarity + below)
    what = "share of the answer that $10^{-6}$ below the fraction leaves of a sum of $10^{-8}$"
    return measured(what, float(left), 0.01)


def kernel_is_features(widths: Sequence[int] = (1, 2, 3, 5), features: Callable[..., Any] | None = None) -> Evidence:
    """(q·k + 1)² as a polynomial: its monomials, once each, and how often they come up, against the map's."""
    wrong = 0
    for width in widths:
        found = (features or quadratic_features)(width)
        expanded: dict[tuple[int, ...], int] = {}
        for pair in product(range(width + 1), repeat=2):  # the last coordinate stands for the constant 1
            key = tuple(sorted(pair))
            expanded[key] = expanded.get(key, 0) + 1
        wrong += (found != expanded) + (len(found) != (width + 1) * (width + 2) // 2)
    listed = ", ".join(map(str, widths))
    what = rf"monomials of $(q_i^\top k_j + 1)^2$ against the features, widths {listed}: widths that differ"
    return Evidence(what, "refuted" if wrong else "proved", float(wrong), 0.0)


def formulas(softmax: str = "2 N^2 (D + M + 3)", linear: str = "N (D + 1)(D + 2)(2 M + 3) + N M") -> Evidence:
    """The two counts of the derivation against `qkv.cost`, as polynomials."""
    from ..cost import text

    names = {"N": "natural", "D": "natural", "M": "natural"}
    scores = count("N D", "N D", "N M", backend="reference").flops
    sums = count("N D", "N D", "N M", backend="linear", similarity=Polynomial(2, 1.0)).flops
    verdicts = [compare(text(flops), formula, names) for flops, formula in ((scores, softmax), (sums, linear))]
    proved = all(verdict.kind == "equal" and verdict.evidence == "proved" for verdict in verdicts)
    wrong = sum(verdict.kind != "equal" for verdict in verdicts)
    kind = "refuted" if wrong else "proved" if proved else "tested"
    return Evidence(
        "flops of both backends in the derivation are those of `qkv.cost`, as polynomials", kind, float(wrong), 0.0
    )


def classes(expected: Sequence[tuple[str, str, str]] | None = None) -> list[Evidence]:
    """Rates of time and space by `qkv.cost`: (backend, quantity, class)."""
    expected = expected or (
        ("reference", "flops", r"\Theta(N^2 D + N^2 M)"),
        ("reference", "space", r"\Theta(N^2 + N D + N M)"),
        ("linear", "flops", r"\Theta(N D^2 M)"),
        ("linear", "space", r"\Theta(D^2 M + N D + N M)"),
    )
    found = []
    for backend, quantity, rate in expected:
        similarity = Polynomial(2, 1.0) if backend == "linear" else None
        counted = count("N D", "N D", "N M", backend=backend, similarity=similarity).theta(quantity)
        verdict = compare(rate, repr(counted), {})
        kind = (verdict.evidence or "tested") if verdict.kind == "equal" else "refuted"
        found.append(
            Evidence(
                f"{quantity} of `backend={backend!r}` by `qkv.cost` is ${counted}$", kind, float(kind == "refuted"), 0.0
            )
        )
    return found


def figure(width: int = 64) -> str:
    """Flops of softmax attention and of the quadratic kernel with sums, over the length."""
    lengths = [2**p for p in range(6, 18)]
    similarity = Polynomial(2, 1.0)
    scores = [(n, count((n, width), (n, width), (n, width), backend="reference").flops) for n in lengths]
    sums = [
        (n, count((n, width), (n, width), (n, width), backend="linear", similarity=similarity).flops) for n in lengths
    ]
    crossing = ((width + 1) * (width + 2) * (2 * width + 3) + width) / (2 * (2 * width + 3))
    marks = [
        Curve("softmax, matrix of scores: 2N²(D + M + 3)", scores),
        Curve("quadratic kernel, sums over the keys: N(D+1)(D+2)(2M+3) + NM", sums),
        Level(f"equal at N = {crossing:.0f}", x=crossing),
    ]
    note = f"One head of width D = M = {width}, by qkv.cost. Sums are cheaper from about (D+1)(D+2)/2 tokens on."
    return chart(
        "Work of a kernel with sums", Axis("length", "tokens", "log"), Axis("work", "FLOP", "log"), marks, note
    )


Rows = Sequence[Sequence["Counted"]]


def quadratic_features(width: int) -> dict[tuple[int, ...], int]:
    """Each feature as the coordinates that it multiplies, `width` for the constant 1, and the square of its factor.

    >>> quadratic_features(2)
    {(0, 0): 1, (1, 1): 1, (0, 1): 2, (0, 2): 2, (1, 2): 2, (2, 2): 1}
    """
    squares = {(i, i): 1 for i in range(width)}
    mixed = dict.fromkeys(combinations(range(width), 2), 2)
    return squares | mixed | {(i, width): 2 for i in range(width)} | {(width, width): 1}


class Counted:
    """An exact number that counts all additions and multiplications."""

    operations = 0

    def __init__(self, value: Fraction | int) -> None:
        self.value = Fraction(value)

    def __add__(self, other: Counted) -> Counted:
        Counted.operations += 1
        return Counted(self.value + other.value)

    def __mul__(self, other: Counted) -> Counted:
        Counted.operations += 1
        return Counted(self.value * other.value)


def dot(left: Sequence[Counted], right: Sequence[Counted]) -> Counted:
    """A multiplication and an addition for each pair, the first addition to 0 included."""
    total = Counted(0)
    for a, b in zip(left, right, strict=True):
        total = total + a * b
    return total


def by_scores(queries: Rows, keys: Rows, values: Rows) -> list[list[Fraction]]:
    """The equation with (q·k + 1)², by scores."""
    answers = []
    for query in queries:
        sims = [(dot(query, key).value + 1) ** 2 for key in keys]
        above = [dot([Counted(sim) for sim in sims], column) for column in zip(*values, strict=True)]
        answers.append([one.value / sum(sims) for one in above])
    return answers


def by_sums(queries: Rows, keys: Rows, values: Rows) -> list[list[Fraction]]:
    """Sums over the keys first, with one more column for the denominator; no root is taken: √2·√2 is 2."""
    features = quadratic_features(len(queries[0]))

    def monomials(row: Sequence[Counted]) -> list[Counted]:
        extended = [one.value for one in row] + [Fraction(1)]
        return [Counted(prod(extended[place] for place in places)) for places in features]

    by_feature = list(zip(*(monomials(key) for key in keys), strict=True))
    columns = [*zip(*values, strict=True), [Counted(1)] * len(values)]
    sums = [[dot(feature, column) for feature in by_feature] for column in columns]
    answers = []
    for query in queries:
        weighted = [Counted(one.value * twice) for one, twice in zip(monomials(query), features.values(), strict=True)]
        *above, below = [dot(weighted, column) for column in sums]
        answers.append([one.value / below.value for one in above])
    return answers


def counted_runs(
    seed: int, length: int = 5, width: int = 3, value_width: int = 2, rewritten: Callable[..., Any] = by_sums
) -> list[Evidence]:
    """Both orders of the products in exact arithmetic: the same answer, and the work that `qkv.cost` counts."""
    draw = random.Random(seed)
    rows = [
        [[Counted(draw.randint(-4, 4)) for _ in range(w)] for _ in range(length)] for w in (width, width, value_width)
    ]
    answers, operations = [], []
    for run in (by_scores, rewritten):
        Counted.operations = 0
        answers.append(run(*rows))
        operations.append(Counted.operations)
    shapes = ((length, width), (length, width), (length, value_width))
    counts = [
        count(*shapes, backend=backend, similarity=Polynomial(2, 1.0)).products for backend in ("reference", "linear")
    ]
    unlike = sum(a != b for one, other in zip(*answers, strict=True) for a, b in zip(one, other, strict=True))
    return [
        measured("both orders of the products in exact fractions: entries of the answer that differ", unlike, 0),
        measured("sums and products of the run with scores, against `qkv.cost`", abs(operations[0] - counts[0]), 0),
        measured(
            "sums and products of the run with sums over the keys, against `qkv.cost`",
            abs(operations[1] - counts[1]),
            0,
        ),
    ]


def linear_backend(
    seed: int, length: int, width: int, value_width: int, attend: Callable[..., Any] | None = None
) -> Evidence:
    """The linear backend, with sums over the keys, against the equation with the matrix of similarities."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(length, width, dtype=torch.float64, generator=generator) for _ in range(2))
    v = torch.randn(length, value_width, dtype=torch.float64, generator=generator)
    sim = (q @ k.T + 1) ** 2
    expected = (sim @ v) / sim.sum(-1, keepdim=True)
    similarity = qkv.Polynomial(2, 1.0)
    attend = attend or (lambda *qkv_: qkv.attention(*qkv_, similarity=similarity, backend="linear"))
    residual = (attend(q, k, v) - expected).abs().max().item()
    # Sums of F·N products round on the scale of Σ|φ(q)||φ(k)||v|, which is at most (|q||k| + 1)² |v|.
    size = ((q.norm(dim=-1, keepdim=True) * k.norm(dim=-1) + 1) ** 2).sum(-1) / sim.sum(-1)
    terms = length * (width + 1) * (width + 2) // 2
    bound = 4 * terms * torch.finfo(torch.float64).eps * (size.max() * v.abs().max()).item()
    return measured("`backend='linear'` of the quadratic kernel against the matrix of similarities", residual, bound)


def listing_subscripts(values: str = "bhn,bhv->bhv", output: str = "bhv,bdv->bd") -> Evidence:
    """How many of the multi-query listing's two products torch can do when all sizes differ."""
    import torch

    b, h, n, v, d = 2, 3, 5, 7, 11
    weights, cached, heads = torch.ones(b, h, n), torch.ones(b, n, v), torch.ones(b, h, v)
    done = 0
    for subscripts, operands in ((values, (weights, cached)), (output, (heads, torch.ones(h, v, d)))):
        try:
            torch.einsum(subscripts, *operands)
            done += 1
        except RuntimeError:
            pass
    return measured(
        "products of the multi-query listing, as printed, that torch can do with sizes that differ", done, 0
    )


def decoding(seed: int, *, scaled: bool = True, kept_cache: bool = True) -> Evidence:
    """Multi-query decoding steps, token by token, against causal attention over all tokens."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    b, h, n, width, out = 2, 3, 5, 7, 11
    q = torch.randn(b, h, n, width, dtype=torch.float64, generator=generator)
    k = torch.randn(b, 1, n, width, dtype=torch.float64, generator=generator)
    v = torch.randn(b, 1, n, out, dtype=torch.float64, generator=generator)
    whole = qkv.attention(q, k, v, mask=qkv.Causal(), backend="reference")
    keys, values, steps = k[:, 0, :0], v[:, 0, :0], []
    for t in range(n):
        new_keys, new_values = torch.cat([keys, k[:, 0, t : t + 1]], 1), torch.cat([values, v[:, 0, t : t + 1]], 1)
        logits = torch.einsum("bhk,bnk->bhn", q[:, :, t], new_keys) / (width**0.5 if scaled else 1)
        steps.append(torch.einsum("bhn,bnv->bhv", logits.softmax(-1), new_values))
        if kept_cache:
            keys, values = new_keys, new_values
    residual = (torch.stack(steps, 2) - whole).abs().max().item()
    # A score is off by at most its terms times eps times |q||k|, and each weight by twice that.
    scores = (q.norm(dim=-1).max() * k.norm(dim=-1).max()).item()
    bound = 4 * (width * scores + n) * torch.finfo(torch.float64).eps * v.abs().max().item()
    return measured("multi-query steps with scaling, the cache kept, against causal attention", residual, bound)
