"""Matrix products row by row: Q = X W_Q, (QKᵀ)_ij = q_i·k_j, and row i of AV is Σ_j a_ij v_j."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from ..derivation import Derivation, Step
from ..errors import IllTyped
from ..figures import Axis, Dots, chart
from ..maths import parse
from .claim import Claim, Correction, Evidence, measured

Matrix = Sequence[Sequence[int]]

# The numbers of the exercise `by-hand`: three tokens of width 2.
TOKENS: Matrix = ((2, 3), (-1, 0), (1, -2))
TO_QUERIES: Matrix = ((1, 0, 2), (0, 1, -3))
TO_KEYS: Matrix = ((0, 0, -1), (-2, 0, 1))
PRINTED_QUERY = (-1, 0, 2)  # q₂ as the published solution has it

SYMBOLS = {
    "X": "matrix[N,D]",
    "W_Q": "matrix[D,D_k]",
    "W_K": "matrix[D,D_k]",
    "W_V": "matrix[D,D_v]",
    "Q": "matrix[N,D_k] = X W_Q",
    "K": "matrix[N,D_k] = X W_K",
    "V": "matrix[N,D_v] = X W_V",
    "A": "matrix[N,N] = softmax(Q K^T)",
    "i": "index[N]",
    "j": "index[N]",
    "c": "index[D_v]",
    # What the words name: a token's own query, key and value, its weights and its scores.
    "x": "matrix[N,D]",
    "q": "matrix[N,D_k]",
    "k": "matrix[N,D_k]",
    "v": "matrix[N,D_v]",
    "a": "matrix[N,N]",
    "z": "matrix[N,N]",
}

EXAMPLE = {
    "X": "matrix[3,2] = [[2, 3], [-1, 0], [1, -2]]",
    "W_Q": "matrix[2,3] = [[1, 0, 2], [0, 1, -3]]",
    "W_K": "matrix[2,3] = [[0, 0, -1], [-2, 0, 1]]",
    "W_V": "matrix[2,2] = [[8, 0], [0, 9]]",
    "Q": "matrix[3,3] = X W_Q",
    "K": "matrix[3,3] = X W_K",
    "V": "matrix[3,2] = X W_V",
    "A": "matrix[3,3] = softmax(Q K^T)",
    "x": "matrix[3,2]",
    "q": "matrix[3,3]",
}
_SUM = r"e^2 + e^8 + e^{-20}"

DERIVATION = (
    Step(r"W_Q^\top X_i", "the query of token $i$, a column; $X_i$ is its embedding, row $i$ of $X$", ""),
    Step(r"(X_{i\cdot} W_Q)^\top", "the transpose of a product is the product of the transposes in the other order"),
    Step(r"(X W_Q)_i", "row $i$ of a product is row $i$ of its left factor times the right one"),
    Step(r"Q_i", "the queries stacked as rows are $Q = X W_Q$, of $N$ rows and $D_k$ columns"),
    Step(r"(Q K^\top)_{ij}", "entry $i$, $j$ of the matrix of scores", ""),
    Step(r"\sum_{l=1}^{D_k} Q_{il} K_{jl}", "definition of the product; transposing $K$ swaps its two subscripts"),
    Step(r"Q_i^\top K_j", r"definition of the dot product: $z_{ij} = q_i^\top k_j$"),
    Step(r"(W_Q^\top X_i)^\top (W_K^\top X_j)", "what queries and keys are"),
    Step(r"X_i^\top W_Q W_K^\top X_j", "the transpose of a product"),
    Step(r"(A V)_{ic}", "entry $c$ of row $i$ of the answer", ""),
    Step(r"\sum_{j=1}^{N} A_{ij} V_{jc}", "definition of the product"),
    Step(
        r"(\sum_{j=1}^{N} A_{ij} V_j)_c",
        r"a sum of vectors is taken component by component: row $i$ is $\sum_j a_{ij} v_j$",
    ),
    Step(r"A \mathbf{1}", "the weights of each row, summed", ""),
    Step(r"\mathbf{1}", "softmax divides by the sum"),
    Step(r"A V", "all rows at once", ""),
    Step(r"A (X W_V)", "$V = X W_V$"),
    Step(r"(A X) W_V", "the product of matrices is associative: mixing tokens and projecting them may change places"),
    Step(r"X W_Q", "the example's queries, one a row", "", symbols=EXAMPLE),
    Step(
        r"\begin{bmatrix}2&3&-5\\-1&0&-2\\1&-2&8\end{bmatrix}",
        r"arithmetic: the last component of $q_2$ is $2 \cdot (-1) - 3 \cdot 0$, negative",
    ),
    Step(r"X W_K", "its keys", "", symbols=EXAMPLE),
    Step(r"\begin{bmatrix}-6&0&1\\0&0&1\\4&0&-3\end{bmatrix}", "arithmetic"),
    Step(r"X W_V", "its values", "", symbols=EXAMPLE),
    Step(r"\begin{bmatrix}16&27\\-8&0\\8&-18\end{bmatrix}", "arithmetic"),
    Step(r"Q K^\top", "its scores", "", symbols=EXAMPLE),
    Step(r"\begin{bmatrix}-17&-5&23\\4&-2&2\\2&8&-20\end{bmatrix}", "arithmetic"),
    Step(r"A_3", "the weights of its third token", "", symbols=EXAMPLE),
    Step(
        rf"[\frac{{e^2}}{{{_SUM}}}, \frac{{e^8}}{{{_SUM}}}, \frac{{e^{{-20}}}}{{{_SUM}}}]",
        "softmax of the third row of scores",
    ),
    Step(r"[0.00247, 0.99753, 6.90 \times 10^{-13}]", "arithmetic, rounded as in the published solution"),
    Step(r"(A V)_3", "its weighted sum of values", "", symbols=EXAMPLE),
    Step(
        rf"[\frac{{16 e^2 - 8 e^8 + 8 e^{{-20}}}}{{{_SUM}}}, \frac{{27 e^2 - 18 e^{{-20}}}}{{{_SUM}}}]",
        "each value times its weight, component by component",
    ),
    Step(r"[-7.94, 0.067]", "arithmetic, rounded as in the published solution"),
)

CORRECTIONS = (
    Correction(
        "by-hand (a)",
        "$q_2 = (-1, 0, 2)$",
        r"$W_Q^\top x_2 = (-1, 0, -2)$: the last component is $2 \cdot (-1) - 3 \cdot 0$. Parts (b) and (c) use $q_3$ "
        "only, so the mistake shows nowhere else; in $Q$ it would turn the second token's scores $(4, -2, 2)$ into "
        "$(8, 2, -10)$.",
    ),
    Correction(
        "by-hand (d)",
        "derives $Q$ alone, 3 by 3 'or $N$ by $D_k$'",
        "$K = X W_K$ is $N$ by $D_k$ and $V = X W_V$ is $N$ by $D_v$ (3 by 2 in the example). The example has "
        "$N = D_k = 3$, which hides which side is which: a wrong order of factors is seen only when all sizes differ.",
    ),
    Correction(
        "by-hand (e)",
        r"asks for $(Q K^\top)_{ij} = z_{ij}$ and gives no solution",
        r"it is the definition of the product: $\sum_{l=1}^{D_k} Q_{il} K_{jl} = q_i^\top k_j$.",
    ),
)


def products(*, seed: int = 0, tokens: int = 7, width: int = 5, key_width: int = 3, value_width: int = 2) -> Claim:
    """With tokens as rows, Q = X W_Q (N×D_k), (QKᵀ)_ij = q_i·k_j, and row i of AV is Σ_j a_ij v_j.

    Args:
        seed, tokens, width, key_width, value_width: of the random integers on which `qkv.attention` is compared.

    Returns:
        The claim, with its derivation and the evidence for it.
    """
    x = random_integers(seed, tokens, width)
    weights = [random_integers(seed + n, width, w) for n, w in ((1, key_width), (2, key_width), (3, value_width))]
    return Claim(
        "products",
        "Queries, scores and answers as products of matrices",
        r"With tokens as the rows of $X$: $Q = X W_Q$ has the $N$ rows $q_i = W_Q^\top x_i$, of $D_k$ entries each; "
        r"$(Q K^\top)_{ij} = q_i^\top k_j$; and row $i$ of $A V$ is the weighted sum $\sum_j a_{ij} v_j$.",
        Derivation(DERIVATION, SYMBOLS, shown=True),
        (
            *shapes(),
            example(),
            entry_by_entry(x, *weights),
            weighted_sums(x, *weights),
        ),
        CORRECTIONS,
        ("by-hand (d)", "by-hand (e)", "by-hand (f)"),
        figure,
    )


def shapes(orders: Sequence[tuple[str, tuple[str, ...] | None]] | None = None) -> list[Evidence]:
    """The shapes of products, None for one that does not exist."""
    orders = orders or (
        ("X W_Q", ("N", "D_k")),
        ("X W_V", ("N", "D_v")),
        ("Q K^T", ("N", "N")),
        ("A V", ("N", "D_v")),
        ("W_Q X", None),
        ("Q K", None),
    )
    wrong = []
    for text, wanted in orders:
        try:
            found = parse(text, SYMBOLS).shape
        except IllTyped:
            found = None
        if found != wanted:
            wrong.append(text)
    listed = ", ".join(
        f"${text}$ is {' by '.join(f'${size}$' for size in w)}" if w else f"`{text}` is no product"
        for text, w in orders
    )
    return [Evidence(f"shapes: {listed}", "refuted" if wrong else "proved", len(wrong), 0.0)]


def example(second_query: Sequence[int] = (-1, 0, -2)) -> Evidence:
    """The worked example in integers: how many entries of Q and of the scores are wrong."""
    queries, keys = times(TOKENS, TO_QUERIES), times(TOKENS, TO_KEYS)
    expected = [[2, 3, -5], list(second_query), [1, -2, 8]]
    scores = [[-17, -5, 23], [4, -2, 2], [2, 8, -20]]
    wrong = sum(a != b for rows in ((queries, expected), (dots(queries, keys), scores)) for a, b in entries(*rows))
    what = "the example in integers: entries of $Q$ and of the scores that are not those above"
    return Evidence(what, "refuted" if wrong else "proved", float(wrong), 0.0)


def entry_by_entry(
    x: Matrix, to_queries: Matrix, to_keys: Matrix, to_values: Matrix, *, product: Callable[..., Any] | None = None
) -> Evidence:
    """X W_Q and Q Kᵀ by torch in integers against one token and one pair at a time."""
    import torch

    product = product or torch.matmul
    whole = [torch.tensor(m) for m in (x, to_queries, to_keys)]
    queries, keys = product(whole[0], whole[1]), product(whole[0], whole[2])
    by_token = [[sum(w[r][c] * row[r] for r in range(len(row))) for c in range(len(w[0]))]
                for w in (to_queries, to_keys) for row in x]  # fmt: skip
    by_pair = dots(by_token[: len(x)], by_token[len(x) :])
    wrong = sum(
        a != b
        for rows in ((torch.cat([queries, keys]).tolist(), by_token), (product(queries, keys.T).tolist(), by_pair))
        for a, b in entries(*rows)
    )
    what = r"torch's $X W_Q$, $X W_K$ and $Q K^\top$ in integers: entries that differ from one token at a time"
    return measured(what, wrong, 0)


def weighted_sums(
    x: Matrix, to_queries: Matrix, to_keys: Matrix, to_values: Matrix, *, attend: Callable[..., Any] | None = None
) -> Evidence:
    """`qkv.attention` on integers against Σ_j a_ij v_j, the weights from exact scores, one row at a time."""
    import torch

    import qkv

    q, k, v = (times(x, w) for w in (to_queries, to_keys, to_values))
    attend = attend or (lambda *qkv_: qkv.attention(*qkv_, similarity=qkv.Softmax(scale=1.0), backend="reference"))
    given = attend(*(torch.tensor(m, dtype=torch.float64) for m in (q, k, v)))
    expected = []
    for scores in dots(q, k):
        powers = [math.exp(score - max(scores)) for score in scores]
        sums = [math.fsum(p * one for p, one in zip(powers, column, strict=True)) for column in zip(*v, strict=True)]
        expected.append([one / math.fsum(powers) for one in sums])
    residual = (given - torch.tensor(expected, dtype=torch.float64)).abs().max().item()  # NaN if there is one
    largest = max(abs(value) for row in v for value in row)
    # Integer scores are exact: two exponentials and two sums of N products are rounded, on either side.
    bound = 4 * (len(x) + 4) * torch.finfo(torch.float64).eps * largest
    return measured(r"`qkv.attention` against $\sum_j a_{ij} v_j$, row by row", residual, bound)


def figure() -> str:
    """The weights of the example, and those of the second token with the published q₂."""
    queries, keys = times(TOKENS, TO_QUERIES), times(TOKENS, TO_KEYS)
    rows = [(f"token {n + 1}", query) for n, query in enumerate(queries)] + [("token 2, as printed", PRINTED_QUERY)]
    marks = []
    # Side by side, so that equal weights do not cover each other.
    for place, (name, query) in enumerate(rows):
        scores = dots([query], keys)[0]
        powers = [math.exp(score - max(scores)) for score in scores]
        weights = [power / sum(powers) for power in powers]
        marks.append(Dots(name, [(n + 1 + 0.08 * (place - 1.5), weight) for n, weight in enumerate(weights)]))
    note = "Rows of softmax(QKᵀ) in the example. A wrong sign in q₂ hides the third token from the second."
    axes = Axis("attends to token", low=0.5, high=3.5), Axis("weight", scale="log", low=1e-18, high=3)
    return chart("Weights of the worked example", *axes, marks, note)


def times(left: Matrix, right: Matrix) -> list[list[int]]:
    """The product of two integer matrices.

    >>> times([[1, 2]], [[3], [4]])
    [[11]]
    """
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]


def dots(left: Matrix, right: Matrix) -> list[list[int]]:
    """All dot products of a row of one with a row of the other."""
    return times(left, list(zip(*right, strict=True)))


def entries(left: Matrix, right: Matrix) -> list[tuple[int, int]]:
    """Pairs of entries at the same place."""
    return [pair for rows in zip(left, right, strict=True) for pair in zip(*rows, strict=True)]


def random_integers(seed: int, rows: int, columns: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randint(-3, 3) for _ in range(columns)] for _ in range(rows)]
