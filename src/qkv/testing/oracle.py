"""Attention from its definition, in float64, one query at a time.

    V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j),   j over the keys that query i attends to

The oracle shares no code with qkv's backends. It selects the attended keys first and computes with those
alone, so that masked keys cannot matter. It is slow, and differentiable: where the inputs require
gradients, so does the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.masks import Extent
from qkv.masks.grid import NumpyGrid
from qkv.similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Sigmoid, Softmax
from qkv.states import AnyState, Decay

# The result of one query over the keys that it attends to: (width_v,), (), (attended,)
RowResult = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Oracle:
    """The right answer, in float64 and in the caller's dimensions.

    out: (..., len_q, width_v). lse: (..., len_q) for `Softmax`, else None.
    weights: (..., len_q, len_k), 0 where not attended. attended: the same shape, boolean.
    """

    out: Tensor
    lse: Tensor | None
    weights: Tensor
    attended: Tensor


def oracle(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: object = None,
    mask: object = None,
    bias: Tensor | None = None,
    state: AnyState | None = None,
) -> Oracle:
    """The right answer to `qkv.attention` with the same arguments, in float64.

    Args:
        query: (batch, heads_q, len_q, width), or three dimensions without heads, or two without a batch.
            Query head h reads key/value head h // (heads_q // heads_kv).
        key: (batch, heads_kv, len_k, width).
        value: (batch, heads_kv, len_k, width_v).
        similarity: one of qkv's similarities; None is `Softmax()`. The order of softmax's logits is scale,
            softcap, bias, mask.
        mask: one of qkv's masks, or a boolean tensor that broadcasts to the scores.
        bias: broadcasts to the scores; only with `Softmax` and `Sigmoid`.
        state: one of qkv.states, for a similarity with features; the attended keys of a query are added one by one.

    Returns:
        out, lse, weights and the attended pairs.

    Raises:
        ValueError: for a bias with another similarity.

    >>> from qkv import Softmax
    >>> q = torch.tensor([[1.0, 0.0]])
    >>> k = torch.tensor([[2.0, 5.0], [8.0, 5.0], [-20.0, 5.0]])
    >>> v = torch.tensor([[16.0, 27.0], [-8.0, 0.0], [8.0, -18.0]])
    >>> [round(x, 3) for x in oracle(q, k, v, similarity=Softmax(scale=1.0)).out[0].tolist()]
    [-7.941, 0.067]

    Edge cases of `Softmax`: a query with nothing to attend to, or whose logits are all −inf, gets 0,
    lse −inf and weights 0, with a sink too. A bias of −inf masks. A key whose logit is −inf has a
    weight of exactly 0, and its value does not matter. A logit that is NaN or +inf makes the row NaN,
    lse included. An attended value of ±inf gives ±inf however small its weight is, since a weight that
    underflows is positive; one that is NaN gives NaN.
    `Sigmoid` treats −inf, and infinite values, in the same way; its weights are not divided.
    For the ratios (`Polynomial`, `FeatureMap`, `Similarity`) a sum of exactly 0 gives weights of 0, so
    a zero row; `normalize=False` does not divide; 0 · ∞ is NaN as usual. `Argmax` takes the lowest
    index among equals; a NaN among the attended scores makes the row NaN; only −inf is an empty row.
    """
    similarity = Softmax() if similarity is None else similarity
    if bias is not None and not isinstance(similarity, Softmax | Sigmoid):
        raise ValueError(f"bias: got one with {similarity!r}, wanted None; only Softmax and Sigmoid take a bias")
    dims = query.dim()
    q, k, v = (_to_four_dims(tensor.double(), dims) for tensor in (query, key, value))
    batch, heads, len_q, _ = q.shape
    group = heads // k.shape[1] if k.shape[1] else 1
    scores = (batch, heads, len_q, k.shape[2])
    attended = attended_pairs(mask, bias, Extent(*scores, dims))
    if state is not None:
        attended = attended & torch.ones(scores[2:], dtype=torch.bool).tril()
        wide = to_four_dims_of_state(state, dims)
        found = (to_caller_dims(t, dims) for t in state_answers(q, k, v, attended, similarity, wide)[:2])
        return Oracle(next(found), None, next(found), to_caller_dims(attended, dims))
    added = None if bias is None else _scores_to_four_dims(bias.double(), scores, dims)
    out, lse, weights = [q.new_empty(0, v.shape[3])], [q.new_empty(0)], [q.new_empty(0, scores[3])]
    for b, h, i in product(range(batch), range(heads), range(len_q)):
        keys = attended[b, h, i].nonzero().flatten()
        plus = 0.0 if added is None else added[b, h, i][keys]
        row = _row(similarity, q[b, h, i], k[b, h // group][keys], v[b, h // group][keys], plus, h, heads)
        out.append(row[0][None])
        lse.append(row[1][None])
        weights.append(q.new_zeros(1, scores[3]).index_copy(1, keys, row[2][None]))
    whole = (torch.cat(rows).reshape(*scores[:3], *rows[0].shape[1:]) for rows in (out, lse, weights))
    found, lses, kept, attended = (to_caller_dims(tensor, dims) for tensor in (*whole, attended))
    return Oracle(found, lses if isinstance(similarity, Softmax) else None, kept, attended)


def sums_of_gates(log_decay: Tensor, first: int, real: Tensor | None, len_q: int) -> Tensor:
    """Σ log f_t over the tokens t after key j up to query i, at position first + i: (batch, heads, len_q, len_k).

    Args:
        log_decay: (batch, heads, len_k); from −1e8 on downwards a gate is −infinity.
        first: the position of query 0.
        real: (batch, len_k), False for tokens whose gates count as 0.
        len_q: the number of queries.

    >>> sums_of_gates(torch.tensor([[[-1.0, -2.0, -math.inf, -4.0]]]), 1, None, 3)[0, 0].tolist()
    [[-2.0, 0.0, 0.0, 0.0], [-inf, -inf, 0.0, 0.0], [-inf, -inf, -4.0, 0.0]]
    """
    gates = log_decay.masked_fill(log_decay <= -1e8, -math.inf)
    gates = gates if real is None else gates.masked_fill(~real[:, None], 0.0)
    rows = [gates.new_zeros(*gates.shape[:2], 0, gates.shape[2])]
    for end in range(max(first, 0) + 1 if len_q else 1, first + len_q + 1):
        before = gates[..., 1:end].flip(-1).cumsum(-1).flip(-1)
        rows.append(torch.nn.functional.pad(before, (0, gates.shape[2] - before.shape[2]))[:, :, None])
    early = gates.new_zeros(*gates.shape[:2], min(max(-first, 0), len_q), gates.shape[2])  # queries before all keys
    return torch.cat([early, *rows], dim=2)


def state_answers(
    q: Tensor, k: Tensor, v: Tensor, attended: Tensor, similarity: Any, state: AnyState
) -> tuple[Tensor, Tensor, Tensor]:
    """out, weights and the sizes of the terms of out, by the recurrence over the keys that each query attends to.

    A size bounds what rounding can change: Σ_j Γ_ij |φ(q_i)|·|φ(k_j)| (β_j |v_j| + |u_j| + β_j |φ(k_j)|·|S|), with u_j
    what token j adds; v_j alone without a delta rule.
    """
    (batch, heads, n, _), group, columns = q.shape, q.shape[1] // k.shape[1], v.shape[3]
    # The weights are what the recurrence answers for unit values, and the sum of them for a value of 1.
    units = torch.eye(n, dtype=v.dtype)
    parts: list[list[Tensor]] = [[], [], []]
    for b, h in product(range(batch), range(heads)):
        own, known = h // group, {(): (None, None)}
        maps = [_features(similarity, rows) for rows in (q[b, h], k[b, own])]
        values = torch.cat([v[b, own], units, torch.ones(n, 1, dtype=v.dtype)], dim=1)
        for i in range(n):
            keys = tuple(attended[b, h, i].nonzero().flatten().tolist())
            before = keys[: len(keys) - 1] if keys[:-1] in known else ()
            held, size = known[before]
            for j in keys[len(before) :]:
                held, size = _after_token(_gates_of(state, b, own, j), maps[1][j], values[j], held, size)
            known = {(): (None, None), keys: (held, size)}
            if held is None or size is None:
                answer = values[:0].sum(0) + maps[0][:0].sum()
                bound = answer.detach()
            else:
                answer, bound = maps[0][i] @ held, maps[0][i].detach().abs() @ size
            below = answer[-1] if similarity.normalizes else torch.ones_like(answer[-1])
            zero = below == 0
            answer = torch.where(zero, 0.0, answer / torch.where(zero, 1.0, below))
            bound = bound[:columns] + (answer[:columns].detach().abs() * bound[-1] if similarity.normalizes else 0)
            bound = torch.where(zero, 0.0, bound / torch.where(zero, 1.0, below.detach().abs()))
            for rows, row in zip(parts, (answer[:columns], answer[columns : columns + n], bound), strict=True):
                rows.append(row)
    shapes = (columns, n, columns)
    out, weights, sizes = (
        torch.stack(rows).reshape(batch, heads, n, w) if rows else v.new_zeros(batch, heads, n, w)
        for rows, w in zip(parts, shapes, strict=True)
    )
    return out, weights, sizes


def to_four_dims_of_state(state: AnyState, dims: int) -> AnyState:
    """Gates in the caller's dimensions as (batch, heads, n, …)."""
    if isinstance(state, Decay):
        return state
    given = (getattr(state, field.name) for field in fields(state))
    return type(state)(*(t if dims == 4 else t.unsqueeze(1) if dims == 3 else t[None, None] for t in given))


def _features(similarity: Any, x: Tensor) -> Tensor:
    """Rows whose products are the similarity: φ(x), or all (degree + 1)-fold products of (x, √offset)."""
    if isinstance(similarity, FeatureMap):
        return similarity.map(x)
    if similarity.offset < 0:
        raise ValueError("similarity: a Polynomial with state= is checked for offsets of 0 or more only")
    wide = torch.cat([x, x.new_full((len(x), 1), math.sqrt(similarity.offset))], dim=1)
    rows = x.new_ones(len(x), 1)
    for _ in range(similarity.degree):
        rows = (rows[:, :, None] * wide[:, None]).flatten(1)
    return rows


def _gates_of(state: AnyState, batch: int, head: int, token: int) -> tuple[Tensor | float, Tensor | None]:
    """The logarithm of the gate (one, or one for each feature) and beta of a token."""
    if isinstance(state, Decay):
        return -(state.rate[head] if isinstance(state.rate, Tensor) else state.rate), None

    gate, beta = (getattr(state, name, None) for name in ("log_gate", "beta"))
    return 0.0 if gate is None else gate[batch, head, token], None if beta is None else beta[batch, head, token]


def _after_token(
    gates: tuple[Tensor | float, Tensor | None], key: Tensor, value: Tensor, held: Tensor | None, size: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The state after a token, and the size of its terms."""
    log_gate, beta = torch.as_tensor(gates[0], dtype=torch.float64).to(key.dtype), gates[1]
    held = key.new_zeros(len(key), len(value)) if held is None else held
    size = torch.zeros_like(held).detach() if size is None else size
    forgets = (log_gate == -math.inf).reshape(-1, 1)
    gate = torch.exp(log_gate).reshape(-1, 1)
    held, size = gate * torch.where(forgets, 0.0, held), gate.detach() * torch.where(forgets, 0.0, size)
    added, large = value, value.detach().abs()
    if beta is not None:
        beta = beta.to(key.dtype)
        added = beta * (value - key @ held)
        terms = key.detach().abs() @ held.detach().abs()
        large = beta.detach().abs() * (large + terms) + added.detach().abs()
    return held + key[:, None] * added, size + key.detach().abs()[:, None] * large


def attended_pairs(mask: Any, bias: Tensor | None, extent: Extent) -> Tensor:
    """Which query attends to which key, (batch, heads, len_q, len_k), from the mask's rule in numpy.

    A bias of −inf masks. `mask` is a qkv mask, a boolean tensor that broadcasts
    right-aligned to the caller's scores, or None.
    """
    shape = (extent.batch, extent.heads, extent.len_q, extent.len_k)
    if mask is None:
        attended = torch.ones(shape, dtype=torch.bool)
    elif isinstance(mask, Tensor):
        attended = _scores_to_four_dims(mask, shape, extent.dims).clone()
    else:
        cells = mask.resolved(extent).cells(NumpyGrid(extent, (0, extent.len_q), (0, extent.len_k)))
        attended = torch.from_numpy(np.broadcast_to(cells, shape).copy())
    if bias is not None:
        attended &= _scores_to_four_dims(bias.detach(), shape, extent.dims) != -math.inf
    return attended


def _row(similarity: object, q: Tensor, k: Tensor, v: Tensor, plus: Tensor | float, head: int, heads: int) -> RowResult:
    """out, lse and weights of one query over its keys, with their values and bias."""
    match similarity:
        case Softmax():
            return _softmax(similarity, q, k, v, plus, head)
        case Sigmoid():
            return _sigmoid(similarity, q, k, v, plus, head)
        case Argmax():
            return _argmax((k * q).sum(-1), v)
        case Polynomial(degree=degree, offset=offset):
            return _ratio(((k * q).sum(-1) + offset) ** degree, v, True)
        case FeatureMap(map=phi, normalize=normalize):
            return _ratio((phi(k) * phi(q)).sum(-1), v, normalize)
        case AnySimilarity():
            # As blocks with all heads: a similarity may hold parameters per head.
            sims = similarity.of_blocks(q.expand(1, heads, 1, -1), k.expand(1, heads, -1, -1))[0, head, 0]
            return _ratio(sims, v, similarity.normalizes)
    raise TypeError(f"similarity: got {similarity!r}, wanted a similarity of qkv")


def _softmax(similarity: Softmax, q: Tensor, k: Tensor, v: Tensor, plus: Tensor | float, head: int) -> RowResult:
    logits = (k * q).sum(-1) * (similarity.scale if similarity.scale is not None else 1 / math.sqrt(len(q)))
    if similarity.softcap is not None:
        logits = similarity.softcap * torch.tanh(logits / similarity.softcap)
    logits = logits + plus
    live = logits != -math.inf
    if not bool(live.any()):
        return _empty_row(logits, v)
    if bool((logits.isnan() | (logits == math.inf)).any()):
        return _nan_row(logits, v)
    sinks = logits[:0] if similarity.sink is None else torch.as_tensor(similarity.sink).double().reshape(-1)
    joined = torch.cat([logits, sinks[head : head + 1] if len(sinks) > 1 else sinks])
    top = joined.detach().max()
    total = torch.exp(joined - top).sum()
    lse = top + total.log()
    # Not exp(logits − lse): where lse is large, its rounding would be a relative error of every weight.
    weights = torch.exp(logits - top) / total
    out = (weights[:, None] * torch.where(torch.isfinite(v), v, 0.0)).sum(0)
    # exp may underflow to 0, but the weight is positive: a non-finite value must not be lost.
    return out + torch.where(~torch.isfinite(v) & live[:, None], v, 0.0).sum(0), lse, weights


def _sigmoid(similarity: Sigmoid, q: Tensor, k: Tensor, v: Tensor, plus: Tensor | float, head: int) -> RowResult:
    own = torch.as_tensor(0.0 if similarity.bias is None else similarity.bias).double().reshape(-1)
    logits = (k * q).sum(-1) * (similarity.scale if similarity.scale is not None else 1 / math.sqrt(len(q)))
    logits = logits + own[head if len(own) > 1 else 0] + plus
    live = logits != -math.inf
    weights = 1 / (1 + torch.exp(-logits))
    out = (weights[:, None] * torch.where(torch.isfinite(v), v, 0.0)).sum(0)
    return out + torch.where(~torch.isfinite(v) & live[:, None], v, 0.0).sum(0), logits.sum(), weights


def _argmax(scores: Tensor, v: Tensor) -> RowResult:
    if bool(scores.isnan().any()):
        return _nan_row(scores, v)
    if bool((scores == -math.inf).all()):
        return _empty_row(scores, v)
    best = int((scores == scores.max()).nonzero()[0])
    return v[best], scores[best], torch.eye(len(scores), dtype=scores.dtype)[best]


def _empty_row(scores: Tensor, v: Tensor) -> RowResult:
    return 0 * v[:0].sum(0), scores.new_tensor(-math.inf), torch.zeros_like(scores)


def _nan_row(scores: Tensor, v: Tensor) -> RowResult:
    nan = scores.new_tensor(math.nan)
    return nan.expand(v.shape[1]), nan, nan.expand(len(scores))


def _ratio(sims: Tensor, v: Tensor, normalize: bool) -> RowResult:
    below = sims.sum()
    weights = sims if not normalize else 0 * sims if below == 0 else sims / below
    return (weights[:, None] * v).sum(0), below.detach(), weights


def _to_four_dims(tensor: Tensor, dims: int) -> Tensor:
    """Three dimensions have one head, two dimensions one head and one batch row."""
    return tensor if dims == 4 else tensor.unsqueeze(1) if dims == 3 else tensor[None, None]


def _scores_to_four_dims(tensor: Tensor, scores: tuple[int, int, int, int], dims: int) -> Tensor:
    """Broadcast, right-aligned, to scores in the caller's dimensions; then to four dimensions."""
    batch, _, len_q, len_k = scores
    shape = scores if dims == 4 else (batch, len_q, len_k) if dims == 3 else (len_q, len_k)
    return _to_four_dims(tensor.expand(shape), dims)


def to_caller_dims(tensor: Tensor, dims: int) -> Tensor:
    """(batch, heads, …) in the caller's dimensions: without heads for 3, without a batch for 2."""
    return tensor if dims == 4 else tensor[:, 0] if dims == 3 else tensor[0, 0]
