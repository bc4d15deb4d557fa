"""A state that is gated and corrected by the delta rule: chunks of tokens give what one token at a time gives."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ..derivation import Derivation, Step
from ..figures import Axis, Line, chart
from .claim import Claim, Evidence, measured

SYMBOLS = {
    "S": "matrix[D,M]",  # the state before the chunk
    "K": "matrix[N,D]",  # the keys of the chunk so far
    "U": "matrix[N,M]",  # what each of them added
    "d": "vector[N]",  # how much of it is left
    "c": "scalar",
    "a": "scalar",
    "b": "scalar",
    "k": "vector[D]",
    "v": "vector[M]",
    "q": "vector[D]",
    "u": "vector[M]",
    "j": "index[N]",
    "k_1": "vector[D]",
    "k_2": "vector[D]",
    "v_1": "vector[M]",
    "v_2": "vector[M]",
    "b_1": "scalar",
    "b_2": "scalar",
    "u_1": "vector[M] = b_1 (v_1 - S^T k_1)",
    "u_2": "vector[M] = b_2 (v_2 - S^T k_2 - (k_2^T k_1) u_1)",
}
_HELD = r"c S + \sum_{j=1}^{N} d_j K_j U_j^\top"

DERIVATION = (
    Step(rf"a ({_HELD}) + k u^\top", "a gate $a$, then a token that adds $u$, after $N$ tokens of a chunk", ""),
    Step(
        r"a c S + \sum_{j=1}^{N} a d_j K_j U_j^\top + k u^\top",
        "the same form with one token more: by induction the state inside a chunk is a multiple of the state before it "
        "and a weighted sum over its tokens, the gates between a token and now multiplied",
    ),
    Step(rf"({_HELD})^\top q", "what a query reads", ""),
    Step(
        r"c S^\top q + \sum_{j=1}^{N} d_j (K_j^\top q) U_j",
        "one product with the state before the chunk, and scores inside the chunk",
    ),
    Step(rf"b (v - (a ({_HELD}))^\top k)", "what a delta rule adds: $b$ times what the state answers wrongly", ""),
    Step(
        r"b v - b a c S^\top k - \sum_{j=1}^{N} b a d_j (k^\top K_j) U_j",
        "linear in what earlier tokens of the chunk added: a triangular system, solved for a whole chunk at once",
    ),
    Step(r"S + b k (v - S^\top k)^\top", "one step of the delta rule", ""),
    Step(r"(I - b k k^\top) S + b k v^\top", "for a key of length 1: a projection if $b = 1$, a reflection if $b = 2$"),
    Step(r"(I - b_2 k_2 k_2^\top) ((I - b_1 k_1 k_1^\top) S + b_1 k_1 v_1^\top) + b_2 k_2 v_2^\top", "two steps", ""),
    Step(
        r"S + k_1 u_1^\top + k_2 u_2^\top",
        r"a chunk of two: $u_1 = b_1 (v_1 - S^\top k_1)$, $u_2 = b_2 (v_2 - S^\top k_2 - (k_2^\top k_1) u_1)$",
    ),
)  # fmt: skip

Rows = Sequence[Sequence[float]]


def chunks(*, seed: int = 0, tokens: int = 149, width: int = 5, value_width: int = 3) -> Claim:
    """A state with gates and the delta rule, computed in chunks, equals the recurrence one token at a time.

    Args:
        seed, tokens, width, value_width: of the random sequence on which `qkv.attention` is compared.

    Returns:
        The claim, with its derivation and the evidence for it.
    """
    sequence = drawn_sequence(seed, tokens, width, value_width)
    return Claim(
        "chunks",
        "A state in chunks of tokens",
        r"After $N$ tokens of a chunk the state is $c S + \sum_{j=1}^{N} d_j K_j U_j^\top$, $S$ that before it: gates "
        r"and the delta rule keep this form, so that a chunk needs one product with $S$, scores inside the chunk and, "
        r"for the delta rule, one triangular system.",
        Derivation(DERIVATION, SYMBOLS, shown=True),
        (agreement(sequence), continuation(sequence)),
        (),
        (),
        lambda: figure(sequence),
    )


def drawn_sequence(seed: int, tokens: int, width: int, value_width: int) -> dict[str, Rows]:
    """Queries, keys of length 1, values, logarithms of gates near 0 and 1, and β between 0 and 2."""
    draw = random.Random(seed)

    def rows(columns: int) -> list[list[float]]:
        return [[draw.gauss(0.0, 1.0) for _ in range(columns)] for _ in range(tokens)]

    keys = [[x / math.hypot(*row) for x in row] for row in rows(width)]
    gates = [[0.0 if draw.random() < 0.2 else -math.exp(draw.uniform(-7.0, 2.5))] for _ in range(tokens)]
    betas = [[draw.choice((0.0, 1.0, 2.0, draw.uniform(0.0, 2.0)))] for _ in range(tokens)]
    return {"query": rows(width), "key": keys, "value": rows(value_width), "log_gate": gates, "beta": betas}


def one_by_one(sequence: dict[str, Rows]) -> list[list[float]]:
    """The recurrence in Python's floats."""
    query, key, value = (sequence[name] for name in ("query", "key", "value"))
    state = [[0.0] * len(value[0]) for _ in key[0]]
    outs = []
    for i, k in enumerate(key):
        gate, beta = math.exp(sequence["log_gate"][i][0]), sequence["beta"][i][0]
        state = [[gate * held for held in row] for row in state]
        answer = [math.fsum(x * row[c] for x, row in zip(k, state, strict=True)) for c in range(len(value[0]))]
        added = [beta * (v - told) for v, told in zip(value[i], answer, strict=True)]
        state = [[held + x * u for held, u in zip(row, added, strict=True)] for x, row in zip(k, state, strict=True)]
        outs.append(
            [math.fsum(x * row[c] for x, row in zip(query[i], state, strict=True)) for c in range(len(value[0]))]
        )
    return outs


def by_chunks(sequence: dict[str, Rows], edges: Sequence[int] = ()) -> Any:
    """`qkv.attention` in chunks, the sequence in parts at `edges`, each from the state after the one before."""
    import torch

    import qkv

    tensors = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in sequence.items()}
    outs, state, rule = [], None, qkv.FeatureMap(qkv.features.identity, normalize=False)
    bounds = [0, *edges, len(sequence["key"])]
    for i, j in pairwise(bounds):
        query, key, value, gate, beta = (tensor[i:j] for tensor in tensors.values())
        change = qkv.GatedDelta(gate[:, 0], beta[:, 0])
        out, state = qkv.attention(
            query, key, value, similarity=rule, state=change, initial_state=state, return_state=True, backend="linear"
        )
        outs.append(out)
    return torch.cat(outs)


def _residual(found: Any, expected: list[list[float]]) -> tuple[float, float]:
    """The largest difference, and a bound for it: rounding in each token, and keys of length 1 do not enlarge it."""
    import torch

    wanted = torch.tensor(expected, dtype=torch.float64)
    bound = 8 * len(expected) * torch.finfo(torch.float64).eps * float(wanted.abs().max())
    return float((found - wanted).abs().max()), bound


def agreement(sequence: dict[str, Rows], compute: Callable[[dict[str, Rows]], Any] = by_chunks) -> Evidence:
    """Chunks against one token at a time."""
    residual, bound = _residual(compute(sequence), one_by_one(sequence))
    return measured("`qkv.attention` in chunks against the recurrence, in float64", residual, bound)


def continuation(
    sequence: dict[str, Rows], compute: Callable[[dict[str, Rows], Sequence[int]], Any] = by_chunks
) -> Evidence:
    """The sequence in parts of other lengths than a chunk."""
    residual, bound = _residual(compute(sequence, (1, 17, 64, 81)), one_by_one(sequence))
    return measured("the sequence in five parts, each from the state after the one before", residual, bound)


def figure(sequence: dict[str, Rows]) -> str:
    """How much of the first token's contribution is left after each later one."""
    sums = [0.0]
    for (gate,) in sequence["log_gate"][1:40]:
        sums.append(sums[-1] + gate)
    points = [(float(i), math.exp(total)) for i, total in enumerate(sums)]
    axes = Axis("token"), Axis("gates multiplied")
    return chart("What the gates leave of the first token", *axes, [Line("the first token", points)])
