"""How far from the oracle an answer may be, and how that is measured.

Softmax's result is a convex combination of values, so its error is counted in ulp of the largest
attended |v| of the row, in the result's dtype; float16 and bfloat16 inputs are computed in float32 and
only the result is rounded. A backend may be off by the largest of

- the bound that the backend publishes,
- twice the error of the plain dense computation in the same dtype, plus one ulp,
- what the rounding of the scores alone does: a score that is off by δ changes every weight by a factor
  e^δ, and scores of size S have δ ≈ S·eps whatever the algorithm is. For scores below about 8 this
  stays under the bounds that qkv's backends publish.

and by half an ulp for the rounding of the result itself. Ratios (`Polynomial`, `FeatureMap`,
`Similarity`) are no convex combinations: where signs differ, Σ_j sim can cancel, and any rounding of a
term is then magnified by the condition number Σ_j |sim_j| (|v_j| + |V'_i|) / |Σ_j sim_j|, the two terms
for what stands above and below the fraction. Their bounds count ulp of that number; without cancellation
it is at most twice the largest attended |v|. lse is held to float32's accuracy, and for float16 and
bfloat16 inputs to 1/8 of their eps: pieces that are merged by it are then as good as undivided ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qkv.similarity import Argmax, FeatureMap, Polynomial, Softmax

from .oracle import Oracle
from .plain import arithmetic, plain_dense, similarities


@dataclass(frozen=True)
class Budget:
    """What is allowed beside the published bound: factor × the plain dense error + ulps.

    >>> Budget().allowed(bound=8.0, dense_error=6.0)
    13.0
    """

    factor: float = 2.0
    ulps: float = 1.0

    def allowed(self, bound: float, dense_error: float) -> float:
        return max(bound, self.factor * dense_error + self.ulps)


def ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbours of `magnitude` in `dtype`, in float64.

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

    gold is float64. NaN and ±inf must stand exactly where gold has them, else the error is inf; where
    gold is beyond what dtype can hold, dtype's infinity is right.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> error_in_ulp(one + 2**-22, one, torch.tensor([1.0]), torch.float32).item()
    2.0
    """
    rounded, found = gold.to(dtype).double(), actual.detach().double()
    same = (found == rounded) | (found.isnan() & rounded.isnan())
    error = torch.where(torch.isfinite(rounded) & torch.isfinite(found), (found - gold).abs(), torch.inf)
    error = torch.where(same & ~torch.isfinite(rounded), 0.0, error)
    if error.shape[-1] == 0:
        return torch.zeros(error.shape[:-1], dtype=torch.float64)
    return error.amax(-1) / ulp(scale_values, dtype)


@dataclass(frozen=True)
class Part:
    """One result (out, lse or weights) and what its error is measured by, row by row, in float64.

    gold: (..., q, n). reach: (..., q), what an ulp is taken of. condition: the size of the terms that
    are summed, at least reach. rounding: the error that rounded scores alone bring. dense_error: the
    plain dense computation's, in ulp.
    """

    gold: Tensor
    dtype: torch.dtype
    reach: Tensor
    condition: Tensor
    rounding: Tensor
    dense_error: float = 0.0

    def errors(self, actual: Tensor) -> Tensor:
        """Row by row, in ulp of reach."""
        return error_in_ulp(actual.reshape(self.gold.shape), self.gold, self.reach, self.dtype)

    def allowed(self, bound: Mapping[torch.dtype, float], budget: Budget) -> Tensor:
        """Row by row, in ulp of reach."""
        unit, inner = ulp(self.reach, self.dtype), arithmetic(self.dtype)
        terms = bound[inner] * ulp(self.condition, inner) / unit
        published = torch.where(self.condition > self.reach, terms.clamp(min=bound[self.dtype]), bound[self.dtype])
        plain = budget.factor * self.dense_error + budget.ulps
        return torch.maximum(published, self.rounding / unit).clamp(min=plain) + 0.5


def largest_attended(value: Tensor, attended: Tensor) -> Tensor:
    """The largest finite |v| among the keys that each query attends to: (..., q)."""
    per_key = torch.where(value.isfinite(), value.double().abs(), 0.0)
    per_key = per_key.amax(-1) if per_key.shape[-1] else per_key.sum(-1)
    if attended.dim() == 4 and value.shape[1]:
        per_key = per_key.repeat_interleave(attended.shape[1] // value.shape[1], dim=1)
    spread = torch.where(attended, per_key.unsqueeze(-2), 0.0)
    return spread.amax(-1) if spread.shape[-1] else spread.sum(-1)


@dataclass(frozen=True)
class Yardstick:
    """The oracle's answer to one call with the measures for its parts: out, lse and weights."""

    gold: Oracle
    parts: Mapping[str, Part]


def yardstick(
    query: Tensor, key: Tensor, value: Tensor, gold: Oracle, similarity: Any = None, bias: Tensor | None = None
) -> Yardstick:
    """Measures for a call that the oracle has answered, the plain dense computation's errors among them."""
    similarity = Softmax() if similarity is None else similarity
    dtype, inner = query.dtype, arithmetic(query.dtype)
    scores, above, below = _sizes(query, key, value, gold, similarity, bias)
    reach = torch.maximum(largest_attended(value, gold.attended), _row_max(gold.out))
    rounding = 2 * torch.finfo(inner).eps * scores
    ones = torch.ones_like(reach).maximum(_row_max(gold.weights))
    parts = {
        "out": Part(gold.out, dtype, reach, reach.maximum(above + _row_max(gold.out) * below), rounding * reach),
        "weights": Part(gold.weights, dtype, ones, ones.maximum(below * (1 + _row_max(gold.weights))), rounding),
    }
    if gold.lse is not None:
        height = torch.where(gold.lse.isfinite(), gold.lse.abs(), 0.0).clamp(min=1.0)
        parts["lse"] = Part(gold.lse.unsqueeze(-1), inner, height, height, rounding.clamp(min=_lse_slack(dtype)))
    q, k, v = (torch.where(tensor.isfinite(), tensor, 0.0).detach() for tensor in (query, key, value))
    plain = plain_dense(q, k, v, gold.attended, similarity, None if bias is None else bias.detach())
    return Yardstick(gold, {name: _with_dense_error(part, getattr(plain, name)) for name, part in parts.items()})


def _lse_slack(dtype: torch.dtype) -> float:
    """An error of lse is a relative error of weights: below 1/8 ulp of half precision no result can show it."""
    return torch.finfo(dtype).eps / 8 if dtype in (torch.float16, torch.bfloat16) else 0.0


def _with_dense_error(part: Part, plain: Tensor) -> Part:
    """Rows that the oracle has NaN or infinity in say nothing about rounding and are left out."""
    errors = part.errors(plain)
    errors = errors[errors.isfinite()]
    return replace(part, dense_error=float(errors.max()) if errors.numel() else 0.0)


def _row_max(rows: Tensor) -> Tensor:
    finite = torch.where(rows.isfinite(), rows.abs(), 0.0)
    return finite.amax(-1) if rows.shape[-1] else finite.sum(-1)


def _sizes(
    query: Tensor, key: Tensor, value: Tensor, gold: Oracle, similarity: Any, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(S: the largest |score|, Σ_j ŝ_j|v_j| / |Σ_j s_j|, Σ_j ŝ_j / |Σ_j s_j|), each (..., q).

    ŝ bounds sim from above with every product taken by its absolute value: rounding is relative to that.
    """
    group = query.shape[1] // key.shape[1] if query.dim() == 4 and key.shape[1] else 1
    q, k, v = (torch.where(t.isfinite(), t, 0.0).double() for t in (query, key, value))
    if query.dim() == 4:
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    none = torch.zeros(gold.out.shape[:-1], dtype=torch.float64)
    size = q.abs() @ k.abs().transpose(-1, -2)
    if isinstance(similarity, Argmax):
        return none, none, none
    if isinstance(similarity, Softmax):
        size = size * abs(similarity.scale_for(query.shape[-1]))
        if bias is not None:
            size = size + torch.where(bias.isfinite(), bias, 0.0).double().abs()
        size = torch.where(gold.attended, size, 0.0)
        return (size.amax(-1) if size.shape[-1] else none), none, none
    sims = torch.where(gold.attended, similarities(similarity, q, k), 0.0)
    large = torch.where(gold.attended, _majorant(similarity, q, k, sims, size), 0.0)
    # Below the smallest normal number rounding is no longer relative: every product may be off by the same amount.
    large = torch.where(large > 0, large + torch.finfo(arithmetic(query.dtype)).smallest_normal, 0.0)
    below = sims.sum(-1).abs() if getattr(similarity, "normalize", True) else torch.ones_like(none)
    # Nothing to sum is exact; a sum that cancels to 0 leaves no digit that could be checked.
    below = torch.where(large.sum(-1) == 0, 1.0, below)
    per_key = v.abs().amax(-1, keepdim=True) if v.shape[-1] else torch.zeros_like(v[..., :1])
    return none, (large @ per_key).squeeze(-1) / below, large.sum(-1) / below


def _majorant(similarity: Any, q: Tensor, k: Tensor, sims: Tensor, size: Tensor) -> Tensor:
    if isinstance(similarity, Polynomial):
        # A relative error of x is one of degree times that size in x^degree.
        return max(1, similarity.degree) * (size + abs(similarity.offset)) ** similarity.degree
    if isinstance(similarity, FeatureMap):
        return similarity.map(q).abs() @ similarity.map(k).abs().transpose(-1, -2)
    # What happens inside of a function is not known: its terms are taken to be as large as its largest result.
    return sims.abs().amax(-1, keepdim=True).expand_as(sims) if sims.shape[-1] else sims.abs()


def assert_close_to_oracle(
    actual: Tensor,
    measure: Yardstick,
    *,
    backend: str,
    bound: Mapping[torch.dtype, float],
    part: str = "out",
    budget: Budget | None = None,
) -> None:
    """Raise AssertionError, with backend, dtype, error and allowance, when `actual` is too far from the oracle."""
    piece = measure.parts[part]
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
        f"{piece.reach[row]:.3g} at row {row}, allowed {allowed[row]:.3g} "
        f"({int((errors > allowed).sum())} of {errors.numel()} rows; the plain dense computation is off by "
        f"{piece.dense_error:.3g}).\n  got    {found.double().tolist()}\n  wanted {piece.gold[row].tolist()}"
    )


def assert_argmax(actual: Tensor, query: Tensor, key: Tensor, value: Tensor, gold: Oracle, *, backend: str) -> None:
    """Every row is, bit for bit, the value of a key whose float64 score is the best within rounding.

    Rounded dot products may order two nearly equal keys otherwise than float64 does. The slack is the
    error bound of both: 2·(width + 1)·eps·Σ_d |q_d k_d|. The contract's `ties_go_to_the_lowest_index` uses
    exact numbers and allows none.
    """
    slack_of = 2 * (query.shape[-1] + 1) * torch.finfo(arithmetic(query.dtype)).eps
    q, k = query.double(), key.double()
    v, attended = value, gold.attended
    if query.dim() == 4 and key.shape[1]:
        k, v = (t.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for t in (k, v))
    q, k, v, attended, out, right = (
        t.flatten(0, -3) if t.dim() > 2 else t[None] for t in (q, k, v, attended, actual.detach(), gold.out)
    )
    for plane in range(len(q)):
        for i in range(q.shape[1]):
            seen = attended[plane, i].nonzero().flatten()
            scores = (k[plane, seen] * q[plane, i]).sum(-1)
            where = f"{backend}: argmax in {str(query.dtype).removeprefix('torch.')}, plane {plane}, query {i}"
            if not len(seen) or not bool(scores.isfinite().all()):
                assert torch.equal(out[plane, i].double().isnan(), right[plane, i].isnan()), f"{where}: NaN differs"
                assert torch.equal(out[plane, i].double().nan_to_num(), right[plane, i].nan_to_num()), where
                continue
            slack = slack_of * (k[plane, seen] * q[plane, i]).abs().sum(-1).max()
            candidates = v[plane, seen[scores >= scores.max() - slack]]
            equal = (candidates == out[plane, i]) | (candidates.isnan() & out[plane, i].isnan())
            assert bool(equal.all(-1).any()), (
                f"{where}: got {out[plane, i].tolist()}, which is not the value of the best key, "
                f"{candidates[0].tolist()} at {int(seen[scores.argmax()])}"
            )
