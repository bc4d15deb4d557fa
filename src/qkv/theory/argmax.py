"""Argmax attention: the limit of softmax as the temperature falls, which gives queries and keys no gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from ..derivation import Derivation, Step
from .claim import Claim, Correction, Evidence, measured

STATEMENT = (
    r"Argmax attention returns the value of the best key. As the temperature $\tau$ falls to 0 $a = softmax(s / \tau)$ "
    r"tends to it where the best key is unique: with a gap $\Delta$ to the second best among $n$ keys, "
    r"$\frac{1}{1 + e^{\Delta/\tau}} \le 1 - \max(a) \le (n - 1) e^{-\Delta/\tau}$. Where two keys tie it tends to "
    "their average instead, and `qkv.Argmax` takes the first of them. The choice of key $m$ stays the same while $q$ "
    r"moves by less than $\frac{s_m - s_j}{\|k_m - k_j\|}$ for every $j$, so the derivative with respect to queries "
    "and keys is 0 wherever it exists, everywhere but on the hyperplanes of ties; values still learn."
)

# The numbers of the exercise `argmax`.
QUERY = (1, 1, 2)
KEYS = ((1, 2, 0), (0, 3, 4), (5, 0, 0), (0, 0, 1))
VALUES = ((2, 0, 1), (1, 4, 3), (0, -1, 4), (1, 0, -1))

EXAMPLE = {
    "q": "vector[3] = (1,1,2)",
    "K": "matrix[4,3] = [[1,2,0],[0,3,4],[5,0,0],[0,0,1]]",
    "V": "matrix[4,3] = [[2,0,1],[1,4,3],[0,-1,4],[1,0,-1]]",
}
TEMPERED = {"s": "vector[n]", "tau": "positive", "a": "vector[n] = softmax(s/tau)"}
MOVED = {"q": "vector[d]", "u": "vector[d]", "k": "vector[d]", "l": "vector[d]"}
TWO = {"Delta": "positive", "tau": "positive", "x": "scalar", "a": "vector[2] = softmax((x+Delta, x)/tau)"}
MANY = {
    "g": "vector[n]",
    "Delta": "positive",
    "tau": "positive",
    "r": r"positive = \sum_{j=1}^n e^{-(Delta + g_j^2)/tau}",
}
TIED = {"x": "scalar", "tau": "positive"}
# The symbols of the prose, besides those of the derivation.
PROSE_SYMBOLS = {
    **TEMPERED,
    "q": "vector[d]",
    "k": "matrix[n,d]",
    **dict.fromkeys(("i", "j", "m"), "index[n]"),
    **dict.fromkeys(("Delta", "g"), "positive"),
    "n": "natural",
}


def argmax(*, seed: int = 0) -> Claim:
    """Argmax attention: the worked example, the limit of softmax with its rate, zero gradients, and ties.

    Args:
        seed: Of the random scores that are tested.

    Returns:
        The claim, with its derivation and the evidence for it.
    """
    return Claim(
        name="argmax",
        title="Argmax: the limit of softmax, without a gradient for queries and keys",
        statement=STATEMENT,
        derivation=Derivation((*_worked(), *_limit(), *_locally_constant(), *_ties()), PROSE_SYMBOLS, shown=True),
        evidence=(*_worked_by_qkv(), *_rate(seed), *_gradients(seed), *_radius(), *_tied()),
        corrections=CORRECTIONS,
        sources=("argmax",),
        figure=_figure,
    )


def _worked() -> list[Step]:
    return [
        Step("K q", "the example's scores, one for each key", "", symbols=EXAMPLE),
        Step("(1+2, 3+8, 5, 2)", "the dot products written out, without the terms that are 0"),
        Step("(3, 11, 5, 2)", "added"),
        Step("argmax(K q)", "where the largest stands", "", symbols=EXAMPLE),
        Step("2", "11 is larger than 3, 5 and 2"),
        Step("V_2", "the value that stands there", "", symbols=EXAMPLE),
        Step("(1, 4, 3)", "the second value: what argmax attention returns"),
    ]


def _limit() -> list[Step]:
    return [
        Step(r"\frac{a_j}{a_i}", r"weights at temperature $\tau$", "", symbols=TEMPERED),
        Step(r"e^{-(s_i - s_j)/\tau}", r"falls to 0 with $\tau$ for every key $j$ that is worse than $i$"),
        Step(r"1 - a_1", r"two keys, one $\Delta$ better than the other", "", symbols=TWO),
        Step(r"\frac{e^{-\Delta/\tau}}{1 + e^{-\Delta/\tau}}", "both over the larger power"),
        Step(
            r"\frac{1}{1 + e^{\Delta/\tau}}",
            r"multiplied above and below by $e^{\Delta/\tau}$: more keys only add to it",
        ),
        Step(r"1 - \frac{1}{1 + r}", r"$n$ keys besides the best, worse by $\Delta$ plus a square", "", symbols=MANY),
        Step(r"r - \frac{r^2}{1 + r}", "over one denominator"),
        Step("r", "something positive is taken away", "<="),
        Step(r"\sum_{j=1}^n e^{-(\Delta + g_j^2)/\tau}", "what $r$ stands for: each key's power over the best one's"),
        Step(
            r"n e^{-\Delta/\tau}",
            r"each of the $n$ is at most $e^{-\Delta/\tau}$",
            "<=",
            attained={"g": (0, 0, 0), "Delta": 2, "tau": 3},
        ),
        Step(r"\frac{\partial a_i}{\partial s_j}", r"the Jacobian at temperature $\tau$", "", symbols=TEMPERED),
        Step(
            r"\frac{1}{\tau} (\operatorname{diag}(a) - a a^T)_{ij}",
            r"the chain rule: $\frac{1}{\tau}$ grows, but $1 - \max(a)$ falls faster, as $e^{-\Delta/\tau}$",
        ),
        Step(r"1 - softmax((3, 11, 5, 2))_2", r"the example at $\tau = 1$", "", symbols=EXAMPLE),
        Step(r"\frac{e^{-8} + e^{-6} + e^{-9}}{1 + e^{-8} + e^{-6} + e^{-9}}", "all powers over the largest"),
        Step("0.002929", r"between $\frac{1}{1 + e^6} = 0.002473$ and $3 e^{-6} = 0.007436$, the gap being 6"),
    ]


def _locally_constant() -> list[Step]:
    return [
        Step(r"(q + u)^T (k - l)", "how far key $k$ leads key $l$ after $q$ has moved by $u$", "", symbols=MOVED),
        Step(r"q^T (k - l) + u^T (k - l)", "the dot product is linear"),
        Step(
            r"q^T (k - l) - \|u\| \|k - l\|",
            r"Cauchy and Schwarz: positive while $\|u\|$ is below the gap over $\|k - l\|$, so the choice stays",
            ">=",
            attained={"q": (1, 2), "u": (-3, -4), "k": (4, 4), "l": (1, 0)},
        ),
        Step(r"q^T k - q^T l - \|u\| \|k - l\|", "multiplied out"),
        Step(
            r"\frac{6}{\sqrt{5^2 + 3^2 + 4^2}}",
            "the example: the gap to the second best over the length of the keys' difference, $(-5, 3, 4)$",
            "",
            symbols=EXAMPLE,
        ),
        Step(r"\frac{6}{\sqrt{50}}", "$25 + 9 + 16 = 50$"),
        Step(r"\frac{3 \sqrt{2}}{5}", "reduced: any smaller step of $q$ changes nothing"),
        Step(r"K (q - \frac{6}{50} (-5, 3, 4))", "a step of exactly that length", "", symbols=EXAMPLE),
        Step(r"(\frac{72}{25}, 8, 8, \frac{38}{25})", "reaches a tie of the second and the third key"),
    ]


def _ties() -> list[Step]:
    return [
        Step(r"softmax((x/\tau, x/\tau))", "two keys that tie, at any temperature", "", symbols=TIED),
        Step(r"(\frac{1}{2}, \frac{1}{2})", "the limit is their average, no choice of one"),
    ]


def scores_of(query: Sequence[Fraction | int], keys: Sequence[Sequence[int]]) -> list[Fraction]:
    return [sum((Fraction(a) * b for a, b in zip(query, key, strict=True)), Fraction(0)) for key in keys]


def argmax_attention(query, keys, values):
    """qkv's argmax attention for one query."""
    import torch

    import qkv

    given = (torch.tensor(x, dtype=torch.float64) for x in ([query], keys, values))
    return qkv.attention(*given, similarity=qkv.Argmax())[0].tolist()


def _worked_by_qkv(attend=argmax_attention) -> list[Evidence]:
    found = scores_of(QUERY, KEYS)
    out = attend(QUERY, KEYS, VALUES)
    right = found == [3, 11, 5, 2] and found.index(max(found)) == 1
    return [
        Evidence(
            "the example in integers: scores $(3, 11, 5, 2)$, the best is the second", "proved" if right else "refuted"
        ),
        measured(
            "`qkv.attention` with `Argmax` on it against $(1, 4, 3)$",
            max(abs(a - b) for a, b in zip(out, VALUES[1], strict=True)),
            0.0,
        ),
    ]


def _rate(seed: int, trials: int = 400, keys: int = 7, sharpness: float = 1.0) -> list[Evidence]:
    """Both bounds of the rate, and the convergence of softmax to argmax at low temperatures."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(trials, keys, generator=generator, dtype=torch.float64)
    best = scores.topk(2, dim=1).values
    eps = torch.finfo(torch.float64).eps
    rounding = 4 * eps * float(scores.abs().max()) / 0.03  # a score of that size, at the lowest temperature
    below = above = 0.0
    for temperature in (4.0, 1.0, 0.25, 0.1, 0.03):
        gap = (best[:, 0] - best[:, 1]) / temperature
        missing = torch.softmax(sharpness * scores / temperature, 1).sort(1).values[:, :-1].sum(1)
        below = max(below, float((torch.sigmoid(-gap) - missing).max()))
        above = max(above, float((missing - (keys - 1) * torch.exp(-gap)).max()))
    query, key, value = (torch.tensor(x, dtype=torch.float64) for x in ([QUERY], KEYS, VALUES))
    target = value[1]
    far = float((value - target).norm(dim=1).max())
    ratio = 0.0
    for temperature in (3.0, 1.0, 0.5, 0.25):
        out = qkv.attention(query, key, value, similarity=qkv.Softmax(scale=sharpness / temperature))
        allowed = 3 * math.exp(-6 / temperature) * far + 64 * eps
        ratio = max(ratio, float((out[0] - target).norm()) / allowed)
    return [
        measured(
            r"$\frac{1}{1 + e^{\Delta/\tau}} \le 1 - \max(a)$, "
            f"{trials} score vectors at five temperatures: excess",
            below,
            rounding,
        ),
        measured(r"$1 - \max(a) \le (n - 1) e^{-\Delta/\tau}$ likewise: excess", above, rounding),
        measured(
            "the example by qkv's softmax at four temperatures: distance to $(1, 4, 3)$ over its bound", ratio, 1.0
        ),
    ]


def _gradients(seed: int, width: int = 5, keys: int = 7, similarity=None) -> list[Evidence]:
    """The gradient is exactly zero at queries and keys, and one at the chosen value; a small step changes no answer."""
    import torch

    import qkv

    similarity = qkv.Argmax() if similarity is None else similarity
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(rows, width, generator=generator, dtype=torch.float64).requires_grad_() for rows in (3, keys, keys)
    )
    out = qkv.attention(query, key, value, similarity=similarity)
    slopes = torch.autograd.grad(out.sum(), (query, key, value), allow_unused=True)
    into = [0.0 if slope is None else float(slope.abs().max()) for slope in slopes[:2]]
    taken = slopes[2]
    assert taken is not None
    chosen = torch.bincount((query @ key.T).argmax(1), minlength=keys).double()
    with torch.no_grad():
        difference = float((qkv.attention(query + 1e-9, key, value, similarity=similarity) - out).abs().max())
    return [
        measured("largest gradient of argmax attention at queries and keys", max(into), 0.0),
        measured(
            "gradient at value $j$ against how many queries chose it", float((taken[:, 0] - chosen).abs().max()), 0.0
        ),
        measured("change of the answer when queries move by $10^{-9}$", difference, 0.0),
    ]


def _radius(share: Fraction = Fraction(1, 1000)) -> list[Evidence]:
    """A step towards the tie, in fractions: before it the second key is best, at it two keys, after it the third."""
    step = [Fraction(6, 50) * x for x in (-5, 3, 4)]

    def moved(part: Fraction) -> list[Fraction]:
        return scores_of([a - part * b for a, b in zip(QUERY, step, strict=True)], KEYS)

    before, at, after = moved(1 - share), moved(Fraction(1)), moved(1 + share)
    right = before.index(max(before)) == 1 and at[1] == at[2] == max(at) and after.index(max(after)) == 2
    what = (
        r"the example in fractions: the choice changes at a step of length $\frac{6}{\sqrt{50}}$ and at no shorter one "
        "that way"
    )
    return [Evidence(what, "proved" if right else "refuted")]


def _tied(attend=argmax_attention) -> list[Evidence]:
    """All ties of four integer scores: qkv takes the first of the best."""
    wrong = cases = 0
    place = [[1], [2], [3], [4]]
    for code in range(3**4):
        keys = [[code // 3**n % 3] for n in range(4)]
        best = keys.index(max(keys))
        cases += 1
        wrong += attend([1], keys, place) != [best + 1.0]
    return [
        measured(
            f"`qkv.Argmax` over all {cases} score vectors of four keys with scores 0, 1, 2: not the first best",
            wrong,
            0,
        )
    ]


def _figure() -> str:
    from ..figures import Axis, chart
    from ..figures import Line as Curve

    temperatures = [0.25 * 1.13**step for step in range(30)]
    found = scores_of(QUERY, KEYS)
    gaps = [float(max(found) - score) for score in sorted(found)[:-1]]

    def missing(temperature: float) -> float:
        others = sum(math.exp(-gap / temperature) for gap in gaps)
        return others / (1 + others)

    curves = [
        Curve("softmax on the example, 1 − a_max", [(t, missing(t)) for t in temperatures]),
        Curve("at most 3e^(−6/τ)", [(t, 3 * math.exp(-6 / t)) for t in temperatures], dashed=True, markers=False),
        Curve("at least 1/(1 + e^(6/τ))", [(t, 1 / (1 + math.exp(6 / t))) for t in temperatures], True, False),
        Curve("two keys that tie", [(t, 0.5) for t in temperatures]),
    ]
    return chart(
        "Softmax tends to argmax as the temperature falls, unless keys tie",
        Axis("temperature τ", "", "log"),
        Axis("weight that is not on the best key", "", "log"),
        curves,
        note="Scores 3, 11, 5, 2: the best leads the second by 6.",
    )


CORRECTIONS = (
    Correction(
        "argmax (b)",
        "Gradient-based training of the attention mechanism is called impossible.",
        "Queries and keys, and what is before them that way, get a gradient of exactly 0. The chosen values, their "
        "projection, the output projection and all that is reached through them still learn.",
    ),
    Correction(
        "argmax (b)",
        "The derivative is called undefined at the jump points, without saying where these are.",
        "They are the ties, the hyperplanes $q^T (k_i - k_j) = 0$ between the two best keys: a set of measure zero. "
        "There softmax tends to the average of the tied values, and `qkv.Argmax` takes the first.",
    ),
    Correction(
        "argmax (a)",
        "The index that argmax returns is used as if it were always one.",
        "Here it is (11 against 5); with ties a rule is needed, and the answer depends on it.",
    ),
)
