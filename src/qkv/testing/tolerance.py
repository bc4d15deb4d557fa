"""How far from the oracle an answer may be, and how that is measured.

Softmax's result is a convex combination of values, so its error is counted in ulp of the largest
attended |v| of the row, in the result's dtype; float16 and bfloat16 inputs are computed in float32 and
only the result is rounded. A backend may be off by the largest of

- the bound that the backend publishes,
- twice the error of the naive computation (`naive_attention`) in the same dtype, plus one ulp,
- the effect of rounded scores: a score that is off by δ changes every weight by a factor e^δ, and
  scores of size S have δ ≈ S·eps with any algorithm. For scores below about 8 this stays under the
  bounds that qkv's backends publish,

plus half an ulp for the rounding of the result itself. Ratios (`Polynomial`, `FeatureMap`,
`Similarity`) are not convex combinations: where signs differ, Σ_j sim can cancel, and the rounding of a
term is then magnified by the condition number Σ_j |sim_j| (|v_j| + |V'_i|) / |Σ_j sim_j|: one term for
the numerator and one for the denominator. Their bounds count ulp of that number; without cancellation
it is at most twice the largest attended |v|. lse must have float32's accuracy, and for float16 and
bfloat16 inputs 1/8 of their eps, so that merging partial results by lse loses no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.inputs import compute_dtype as compute_dtype
from qkv.similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Sigmoid, Softmax
from qkv.states import AnyState

from .oracle import Oracle, state_answers, to_caller_dims, to_four_dims_of_state


class Answer(NamedTuple):
    """What attention returns; lse and weights if they were requested."""

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None

    def rows(self, which: Any) -> Answer:
        """Some rows of out and lse."""
        return Answer(self.out[which], None if self.lse is None else self.lse[which])


def repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    """Keys or values with a copy for each query head of a group; unchanged without heads."""
    repeats = tensor.dim() == 4 and tensor.shape[1]
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1) if repeats else tensor


def largest(tensor: Tensor) -> Tensor:
    """The largest finite |x| along the last axis; 0 if there is none."""
    return torch.nn.functional.pad(torch.where(tensor.isfinite(), tensor.abs(), 0.0), (0, 1)).amax(-1)


def naive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    similarity: Any = None,
    bias: Tensor | None = None,
    state: AnyState | None = None,
) -> Answer:
    """The naive computation in one dtype: all scores, then softmax or the quotient, then one product with the values;
    with a state, the recurrence.

    Unlike the oracle it has the rounding errors of a straightforward computation, and backends are
    compared with it. It is differentiable, and expects finite numbers.

    Args:
        query: (..., len_q, width), with 2, 3 or 4 dimensions.
        key: (..., len_k, width).
        value: (..., len_k, width_v).
        attended: boolean (..., len_q, len_k).
        similarity: one of qkv's similarities; None is `Softmax()`.
        bias: broadcasts to the scores; only with softmax and sigmoid.
        state: one of qkv.states.

    Returns:
        out, lse (None unless softmax) and weights. float16 and bfloat16 are computed in float32.

    >>> x = torch.eye(2)
    >>> naive_attention(x, x, x, torch.tensor([[True, False], [False, False]])).out
    tensor([[1., 0.],
            [0., 0.]])
    """
    dtype = query.dtype
    if state is not None:
        q, k, v = (t.to(compute_dtype(dtype)) for t in (query, key, value))
        return Answer(_state_answer(q, k, v, attended, similarity, state)[0].to(dtype))
    q, k, v = (repeat_heads(t.to(compute_dtype(dtype)), query.shape[1]) for t in (query, key, value))
    similarity = Softmax() if similarity is None else similarity
    if isinstance(similarity, Softmax):
        weights, lse = _softmax_weights(q, k, attended, similarity, bias)
    elif isinstance(similarity, Sigmoid):
        weights, lse = torch.where(attended, torch.sigmoid(_sigmoid_scores(q, k, similarity, bias)), 0.0), None
    else:
        weights, lse = _other_weights(q, k, attended, similarity), None
    return Answer((weights @ v).to(dtype), lse, weights.to(dtype))


def _softmax_weights(
    q: Tensor, k: Tensor, attended: Tensor, similarity: Softmax, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2) * similarity.scale_for(q.shape[-1])
    if similarity.softcap is not None:
        scores = similarity.softcap * torch.tanh(scores / similarity.softcap)
    if bias is not None:
        scores = scores + torch.where(bias == -math.inf, 0.0, bias)
    # The sink is one more key; without a sink it has no weight.
    sink = torch.as_tensor(-math.inf if similarity.sink is None else similarity.sink).to(scores.dtype)
    sink = sink.reshape((-1, 1, 1) if scores.dim() == 4 else ()).expand(*scores.shape[:-1], 1)
    scores = torch.cat([torch.where(attended, scores, -math.inf), sink], -1)
    empty = ~attended.any(-1, keepdim=True)
    # An empty row gets scores of 0 and is zeroed afterwards: a softmax of −inf alone would be NaN.
    scores = torch.where(empty, 0.0, scores)
    weights = torch.where(empty, 0.0, torch.softmax(scores, -1))[..., :-1]
    return weights, torch.where(empty.squeeze(-1), -math.inf, torch.logsumexp(scores, -1))


def _sigmoid_scores(q: Tensor, k: Tensor, similarity: Sigmoid, bias: Tensor | None) -> Tensor:
    scores = q @ k.transpose(-1, -2) * similarity.scale_for(q.shape[-1])
    if similarity.bias is not None:
        own = torch.as_tensor(similarity.bias).to(scores.dtype)
        scores = scores + own.reshape((-1, 1, 1) if scores.dim() == 4 else ())
    return scores if bias is None else scores + torch.where(bias == -math.inf, 0.0, bias)


def _other_weights(q: Tensor, k: Tensor, attended: Tensor, similarity: Any) -> Tensor:
    if isinstance(similarity, Argmax):
        scores = torch.where(attended, q @ k.transpose(-1, -2), -math.inf)
        if not scores.shape[-1]:
            return scores
        return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0) * attended
    sims = torch.where(attended, similarities(similarity, q, k), 0.0)
    if not similarity.normalizes:
        return sims
    total = sims.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, sims / torch.where(total == 0, 1.0, total))


def similarities(similarity: Any, q: Tensor, k: Tensor) -> Tensor:
    """sim(q_i, k_j) of the ratios, (..., len_q, len_k), for queries and keys with the same heads."""
    match similarity:
        case Polynomial(degree=degree, offset=offset):
            return (q @ k.transpose(-1, -2) + offset) ** degree
        case FeatureMap(map=phi):
            return phi(q) @ phi(k).transpose(-1, -2)
        case AnySimilarity():
            blocks = (t if t.dim() == 4 else t[:, None] if t.dim() == 3 else t[None, None] for t in (q, k))
            return similarity.of_blocks(*blocks).reshape(*q.shape[:-1], k.shape[-2])
    raise TypeError(f"similarity: {similarity!r} is no similarity of qkv")


@dataclass(frozen=True)
class Budget:
    """What is allowed besides the published bound: factor × the naive computation's error + ulps.

    The larger of the two is what counts.
    """

    factor: float = 2.0
    ulps: float = 1.0


def ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbours of `magnitude` in `dtype`, in float64.

    Args:
        magnitude: Any shape.
        dtype: A floating-point dtype.

    Returns:
        The same shape; at 0 the smallest positive number.

    >>> ulp(torch.tensor([1.0, 1.5, 0.0]), torch.bfloat16).tolist()[:2]
    [0.0078125, 0.0078125]
    """
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(magnitude.double().abs())
    spacing = torch.ldexp(torch.full_like(magnitude, info.eps, dtype=torch.float64), exponent - 1)
    spacing = torch.where(magnitude == 0, 0.0, spacing)
    return spacing.clamp(min=info.smallest_normal * info.eps)


def error_in_ulp(actual: Tensor, gold: Tensor, scale_values: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of each row, in ulp of `scale_values`: (..., q, n), (..., q, n), (..., q) → (..., q).

    gold is float64. NaN and ±inf must be exactly where gold has them, else the error is inf; where
    gold overflows dtype, dtype's infinity is right.

    Args:
        actual: (..., q, n), the result.
        gold: (..., q, n), the oracle's result.
        scale_values: (..., q), the magnitude of each row.
        dtype: The dtype whose ulp is the unit.

    Returns:
        (..., q), in float64.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> error_in_ulp(one + 2**-22, one, torch.tensor([1.0]), torch.float32).item()
    2.0
    """
    rounded, found = gold.to(dtype).double(), actual.detach().double()
    same = _equal(found, rounded)
    error = torch.where(torch.isfinite(rounded) & torch.isfinite(found), (found - gold).abs(), torch.inf)
    error = torch.where(same & ~torch.isfinite(rounded), 0.0, error)
    if error.shape[-1] == 0:
        return torch.zeros(error.shape[:-1], dtype=torch.float64)
    return error.amax(-1) / ulp(scale_values, dtype)


@dataclass(frozen=True)
class ResultBounds:
    """The bounds of one result (out, lse or weights), row by row, in float64.

    gold: (..., q, n). magnitude: (..., q), errors count in ulp of it. condition: the size of the terms that
    are summed, at least magnitude. rounding: the error caused by rounded scores. naive_error: the naive
    computation's, in ulp.
    """

    gold: Tensor
    dtype: torch.dtype
    magnitude: Tensor
    condition: Tensor
    rounding: Tensor
    naive_error: float = 0.0

    def errors(self, actual: Tensor) -> Tensor:
        """Row by row, in ulp of magnitude."""
        return error_in_ulp(actual.reshape(self.gold.shape), self.gold, self.magnitude, self.dtype)

    def allowed(self, bound: Mapping[torch.dtype, float], budget: Budget) -> Tensor:
        """Row by row, in ulp of magnitude."""
        unit, inner = ulp(self.magnitude, self.dtype), compute_dtype(self.dtype)
        terms = bound[inner] * ulp(self.condition, inner) / unit
        published = torch.where(self.condition > self.magnitude, terms.clamp(min=bound[self.dtype]), bound[self.dtype])
        naive = budget.factor * self.naive_error + budget.ulps
        return torch.maximum(published, self.rounding / unit).clamp(min=naive) + 0.5


def largest_attended(value: Tensor, attended: Tensor) -> Tensor:
    """The largest finite |v| among the keys that each query attends to: (..., q)."""
    per_key = repeat_heads(value, attended.shape[1] if attended.dim() == 4 else 1)
    return largest(torch.where(attended, largest(per_key.double()).unsqueeze(-2), 0.0))


@dataclass(frozen=True)
class ErrorBounds:
    """The oracle's answer to one call, and the bounds of its parts: out, lse and weights."""

    gold: Oracle
    parts: Mapping[str, ResultBounds]


def error_bounds(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gold: Oracle,
    similarity: Any = None,
    bias: Tensor | None = None,
    state: AnyState | None = None,
) -> ErrorBounds:
    """The bounds of the answers to a call, from the oracle's answer and the naive computation's errors.

    Args:
        query: (..., len_q, width), with 2, 3 or 4 dimensions.
        key: (..., len_k, width).
        value: (..., len_k, width_v).
        gold: what `oracle` returned for the same call.
        similarity: that of the call.
        bias: that of the call.
        state: that of the call.

    Returns:
        What `assert_close_to_oracle` takes.

    >>> from qkv.testing import assert_close_to_oracle, oracle
    >>> import qkv
    >>> x = torch.eye(3)
    >>> bounds = error_bounds(x, x, x, oracle(x, x, x))
    >>> published = qkv.backends.BACKENDS["sdpa"].bound
    >>> assert_close_to_oracle(qkv.attention(x, x, x, backend="sdpa"), bounds, backend="sdpa", bound=published)
    """
    similarity = Softmax() if similarity is None else similarity
    dtype, inner = query.dtype, compute_dtype(query.dtype)
    if state is not None:
        return _state_error_bounds((query, key, value), gold, similarity, state)
    scores, above, below = _term_sizes(query, key, value, gold, similarity, bias)
    outs, weights = largest(gold.out), largest(gold.weights)
    magnitude = torch.maximum(largest_attended(value, gold.attended), outs)
    rounding, ones = 2 * torch.finfo(inner).eps * scores, torch.ones_like(magnitude).maximum(weights)
    conditions = magnitude.maximum(above + outs * below), ones.maximum(below * (1 + weights))
    parts = {
        "out": ResultBounds(gold.out, dtype, magnitude, conditions[0], rounding * magnitude),
        "weights": ResultBounds(gold.weights, dtype, ones, conditions[1], rounding),
    }
    if gold.lse is not None:
        # An error of lse is a relative error of weights: below 1/8 ulp of half precision it has no visible effect.
        least = torch.finfo(dtype).eps / 8 if inner is not dtype else 0.0
        height = torch.where(gold.lse.isfinite(), gold.lse.abs(), 0.0).clamp(min=1.0)
        parts["lse"] = ResultBounds(gold.lse.unsqueeze(-1), inner, height, height, rounding.clamp(min=least))
    q, k, v = (torch.where(tensor.isfinite(), tensor, 0.0).detach() for tensor in (query, key, value))
    naive = naive_attention(q, k, v, gold.attended, similarity, None if bias is None else bias.detach())
    return ErrorBounds(gold, {name: _with_naive_error(part, getattr(naive, name)) for name, part in parts.items()})


def _state_error_bounds(
    tensors: tuple[Tensor, Tensor, Tensor], gold: Oracle, similarity: Any, state: AnyState
) -> ErrorBounds:
    """The bounds of an answer with `state=`."""
    q, k, v = (torch.where(t.isfinite(), t, 0.0).detach() for t in tensors)
    with torch.no_grad():
        sizes = _state_answer(q.double(), k.double(), v.double(), gold.attended, similarity, state)[1]
        naive = naive_attention(q, k, v, gold.attended, similarity, state=state).out
    magnitude = torch.maximum(largest_attended(tensors[2], gold.attended), largest(gold.out))
    condition, none = magnitude.maximum(largest(sizes)), torch.zeros_like(magnitude)
    part = ResultBounds(gold.out, tensors[0].dtype, magnitude, condition, none)
    return ErrorBounds(gold, {"out": _with_naive_error(part, naive)})


def _state_answer(
    query: Tensor, key: Tensor, value: Tensor, attended: Tensor, similarity: Any, state: AnyState
) -> tuple[Tensor, Tensor]:
    """out and the size of its terms, in the dtype of the tensors and the caller's dimensions."""
    dims = query.dim()
    wide = (t if dims == 4 else t.unsqueeze(1) if dims == 3 else t[None, None] for t in (query, key, value, attended))
    q, k, v, allowed = wide
    out, _, sizes = state_answers(q, k, v, allowed, similarity, to_four_dims_of_state(state, dims))
    return to_caller_dims(out, dims), to_caller_dims(sizes, dims)


def _with_naive_error(part: ResultBounds, naive: Tensor) -> ResultBounds:
    """Rows in which the oracle has NaN or infinity tell nothing about rounding and are left out."""
    errors = part.errors(naive)
    errors = errors[errors.isfinite()]
    return replace(part, naive_error=float(errors.max()) if errors.numel() else 0.0)


def _term_sizes(
    query: Tensor, key: Tensor, value: Tensor, gold: Oracle, similarity: Any, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(S: the largest |score|, Σ_j ŝ_j|v_j| / |Σ_j s_j|, Σ_j ŝ_j / |Σ_j s_j|), each (..., q).

    ŝ bounds sim from above with every product taken by its absolute value: rounding is relative to that.
    """
    finite = (torch.where(t.isfinite(), t, 0.0).double() for t in (query, key, value))
    q, k, v = (repeat_heads(t, query.shape[1]) for t in finite)
    none = torch.zeros(gold.out.shape[:-1], dtype=torch.float64)
    size = q.abs() @ k.abs().transpose(-1, -2)
    if isinstance(similarity, Argmax):
        return none, none, none
    if isinstance(similarity, Softmax):
        size = size * abs(similarity.scale_for(query.shape[-1]))
        if bias is not None:
            size = size + torch.where(bias.isfinite(), bias, 0.0).double().abs()
        return largest(torch.where(gold.attended, size, 0.0)), none, none
    if isinstance(similarity, Sigmoid):
        # A rounded score is off by its size times eps, and the weight by as much at most, relatively.
        scores = _sigmoid_scores(q, k, similarity, None if bias is None else bias.detach().double()).detach()
        sims = torch.where(gold.attended, torch.sigmoid(scores), 0.0)
        size = size * abs(similarity.scale_for(query.shape[-1])) + scores.abs()
        large = sims * (1 + size)
    else:
        sims = torch.where(gold.attended, similarities(similarity, q, k), 0.0)
        large = torch.where(gold.attended, _majorant(similarity, q, k, sims, size), 0.0)
    # Below the smallest normal number rounding is no longer relative: every product may be off by the same amount.
    large = torch.where(large > 0, large + torch.finfo(compute_dtype(query.dtype)).smallest_normal, 0.0)
    below = sims.sum(-1).abs() if similarity.normalizes else torch.ones_like(none)
    # Nothing to sum is exact; a sum that cancels to 0 leaves no digit that could be checked.
    below = torch.where(large.sum(-1) == 0, 1.0, below)
    return none, (large @ largest(v).unsqueeze(-1)).squeeze(-1) / below, large.sum(-1) / below


def _majorant(similarity: Any, q: Tensor, k: Tensor, sims: Tensor, size: Tensor) -> Tensor:
    if isinstance(similarity, Polynomial):
        # A relative error of x is one of degree times that size in x^degree.
        return max(1, similarity.degree) * (size + abs(similarity.offset)) ** similarity.degree
    if isinstance(similarity, FeatureMap):
        return similarity.map(q).abs() @ similarity.map(k).abs().transpose(-1, -2)
    # The terms inside a function are unknown: assume that they are as large as its largest result.
    return largest(sims).unsqueeze(-1).expand_as(sims)


def assert_close_to_oracle(
    actual: Tensor,
    bounds: ErrorBounds,
    *,
    backend: str,
    bound: Mapping[torch.dtype, float],
    part: str = "out",
    budget: Budget | None = None,
) -> None:
    """Check that a result is as close to the oracle as its backend claims.

    Args:
        actual: the result, in the shape of the oracle's.
        bounds: what `error_bounds` returned for the call.
        backend: a name for the message.
        bound: the error that the backend publishes, in ulp, by dtype.
        part: "out", "lse" or "weights".
        budget: what is allowed besides the published bound.

    Raises:
        AssertionError: with backend, dtype, error and allowance, when `actual` is too far from the oracle.
    """
    piece = bounds.parts[part]
    assert actual.numel() == piece.gold.numel(), (
        f"{backend}: {part} has shape {tuple(actual.shape)}, the oracle's is {tuple(piece.gold.shape)}"
    )
    errors, allowed = piece.errors(actual), piece.allowed(bound, budget or Budget())
    if not errors.numel() or bool((errors <= allowed).all()):
        return
    worst = int((errors / allowed).nan_to_num(torch.inf).argmax())
    row = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), errors.shape))
    found = actual.reshape(piece.gold.shape)[row].detach()
    raise AssertionError(
        f"{backend}: {part} in {str(piece.dtype).removeprefix('torch.')} is off by {errors[row]:.3g} ulp of "
        f"{piece.magnitude[row]:.3g} at row {row}, allowed {allowed[row]:.3g} "
        f"({int((errors > allowed).sum())} of {errors.numel()} rows; the naive computation is off by "
        f"{piece.naive_error:.3g}).\n  got    {found.double().tolist()}\n  wanted {piece.gold[row].tolist()}"
    )


def assert_argmax(actual: Tensor, query: Tensor, key: Tensor, value: Tensor, gold: Oracle, *, backend: str) -> None:
    """Check that every row is, bit for bit, the value of a key whose float64 score is the largest within rounding.

    Rounded dot products may order two nearly equal keys differently than float64 does. The slack is the
    error bound of both: 2·(width + 1)·eps·Σ_d |q_d k_d|. The contract's `ties_go_to_the_lowest_index` uses
    exact numbers and allows none.

    Args:
        actual: (..., len_q, width_v), the result.
        query: (..., len_q, width).
        key: (..., len_k, width).
        value: (..., len_k, width_v).
        gold: What `oracle` returned for the same call.
        backend: A name for the message.

    Raises:
        AssertionError: when a row is the value of another key.

    >>> from qkv.testing import oracle
    >>> import qkv
    >>> x = torch.eye(3)
    >>> gold = oracle(x, x, x, similarity=qkv.Argmax())
    >>> assert_argmax(qkv.attention(x, x, x, similarity=qkv.Argmax()), x, x, x, gold, backend="argmax")
    """
    q, k, v = (repeat_heads(t, query.shape[1]) for t in (query.double(), key.double(), value))
    terms = torch.where(gold.attended[..., None], q[..., :, None, :] * k[..., None, :, :], 0.0)
    scores = torch.where(gold.attended, terms.sum(-1), -math.inf)
    slack = 2 * (query.shape[-1] + 1) * torch.finfo(compute_dtype(query.dtype)).eps * largest(terms.abs().sum(-1))
    top = torch.nn.functional.pad(scores, (0, 1), value=-math.inf).amax(-1)
    best = gold.attended & (scores >= (top - slack).unsqueeze(-1))
    found, values = actual.detach()[..., None, :], v[..., None, :, :]
    is_best = (best & _equal(values, found).all(-1)).any(-1)
    # Where nothing is attended, or a score is not finite, the oracle's row is right.
    decided = gold.attended.any(-1) & (terms.isfinite().all(-1) | ~gold.attended).all(-1)
    wrong = ~torch.where(decided, is_best, _equal(actual.detach().double(), gold.out).all(-1))
    if bool(wrong.any()):
        row = tuple(wrong.nonzero()[0].tolist())
        wanted = f"the value of the best key, at {int(scores[row].argmax())}" if decided[row] else "the oracle's row"
        raise AssertionError(
            f"{backend}: argmax in {str(query.dtype).removeprefix('torch.')}, row {row}: got {actual[row].tolist()}, "
            f"which is not {wanted}, {gold.out[row].tolist()}"
        )


def _equal(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | (one.isnan() & other.isnan())
