"""The equation on a block of query rows and all the keys that they may see.

    V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j)

Short and literal, in torch operators that differentiate themselves: this is the specification. `dense`
runs it on all rows at once, `streaming` block by block where no kernel serves.

Numbers that are not finite get a second look. 0·NaN is NaN, so a masked NaN would leak through a
product, forward in `weights @ value` and backward in `dscores @ key`. Where the inputs are not known to
be finite, rows with such numbers are taken out of the differentiable product, and what the attended ones
among them would have given is put back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, product_flops
from ..errors import DtypeError, ShapeError, complaint
from ..features import mapped
from ..inputs import AttentionInputs, compact, compute_dtype, fold_group, is_traced, unfold_group
from ..shapes import Bool, Float, Int
from ..similarity import Argmax, FeatureMap, Polynomial, Similarity, Softmax
from . import work
from .base import NEG_INF, Backend, Result, population

NAN = float("nan")


class Tile(NamedTuple):
    """A block: query (b, heads_q, r, d), key (b, heads_kv, c, d), value (b, heads_kv, c, d_v).

    keep and bias broadcast to the scores (b, heads_q, r, c); sink is (heads_q or 1, 1, 1). finite: nothing
    in query, key and value is NaN or infinite.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    bias: Tensor | None
    sink: Tensor | None
    finite: bool


def attend(call: AttentionInputs, rows: Tile) -> Result:
    """The block's rows of the answer, in the arithmetic's dtype."""
    dtype = compute_dtype(call.query.dtype)
    rows = rows._replace(query=rows.query.to(dtype), key=rows.key.to(dtype), value=rows.value.to(dtype))
    if isinstance(call.similarity, Softmax):
        return _softmax(call, rows, call.similarity)
    if isinstance(call.similarity, Argmax):
        return _argmax(call, rows)
    return _ratio(call, rows)


def _softmax(call: AttentionInputs, rows: Tile, similarity: Softmax) -> Result:
    scale = similarity.scale_for(call.width)
    keep = rows.keep
    if rows.bias is not None:
        # A bias of −inf masks, whatever stands at that key.
        allowed = rows.bias != NEG_INF
        keep = allowed if keep is None else keep & allowed
    scores = _guarded(rows._replace(keep=keep), lambda query, key: products(query * scale, key))
    if similarity.softcap is not None:
        scores = similarity.softcap * torch.tanh(scores / similarity.softcap)
    if rows.bias is not None:
        scores = scores + rows.bias
    if keep is not None:
        scores = scores.masked_fill(~keep, NEG_INF)

    # The largest score is a constant to the derivative: it cancels.
    best = scores.detach().amax(-1, keepdim=True)
    empty = best == NEG_INF
    top = best if rows.sink is None else torch.maximum(best, rows.sink.detach())
    top = torch.where(top == NEG_INF, 0.0, top)
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    if rows.sink is not None:
        total = total + torch.exp(rows.sink - top)
    safe = torch.where(total == 0, 1.0, total)
    weights = powers / safe
    if keep is not None and not rows.finite:
        # In a row that is NaN, the masked weights are still 0.
        weights = weights.masked_fill(~keep, 0.0)
    lse = None
    if call.return_lse:
        lse = torch.where(empty, NEG_INF, top + torch.log(safe)).squeeze(-1)
    weights = _dropped(call, weights)
    attended = None if rows.finite else torch.broadcast_to(scores.detach() != NEG_INF, weights.shape)
    out = _weigh(rows, weights, attended, weights.new_ones(()))
    if keep is not None:
        # Already 0; this keeps what comes back for such a row from reaching a key.
        out = out.masked_fill(empty, 0.0)
    return Result(out, lse, weights)


def _ratio(call: AttentionInputs, rows: Tile) -> Result:
    rows = _without_masked(rows)
    sims = _guarded(rows, _similarity_function(call, rows.keep), _features(call))
    if rows.keep is not None:
        sims = sims.masked_fill(~rows.keep, 0.0)
    weights = sims
    if not (isinstance(call.similarity, FeatureMap) and not call.similarity.normalize):
        total = sims.sum(-1, keepdim=True)
        # An exactly zero sum gives a zero row, whatever the terms were that cancelled.
        weights = torch.where(total == 0, 0.0, sims / torch.where(total == 0, 1.0, total))
    if rows.keep is not None and not rows.finite:
        weights = weights.masked_fill(~rows.keep, 0.0)
    weights = _dropped(call, weights)
    attended = None
    if not rows.finite:
        everything = torch.ones((), dtype=torch.bool, device=weights.device)
        attended = torch.broadcast_to(everything if rows.keep is None else rows.keep, weights.shape)
    out = _weigh(rows, weights, attended, torch.sign(weights.detach()))
    if rows.keep is not None:
        out = out.masked_fill(~rows.keep.any(-1, keepdim=True), 0.0)
    return Result(out, None, weights)


def _without_masked(rows: Tile) -> Tile:
    """Queries that see nothing and keys that nobody sees are set to 0: whatever a similarity makes of them, and of
    its derivative there, must not turn 0·∞ into NaN."""
    if rows.keep is None:
        return rows
    query, key = rows.query, rows.key
    pairs = torch.broadcast_to(rows.keep, (*query.shape[:3], key.shape[2]))
    seen = fold_group(pairs, key.shape[1]).any(2).unsqueeze(-1)
    return rows._replace(query=query.masked_fill(~pairs.any(-1, keepdim=True), 0.0), key=key.masked_fill(~seen, 0.0))


def _argmax(call: AttentionInputs, rows: Tile) -> Result:
    with torch.no_grad():
        scores = products(rows.query, rows.key)
        if rows.keep is not None:
            scores = scores.masked_fill(~rows.keep, NEG_INF)
        best, index = scores.max(-1)  # the first of equals; NaN counts as the largest
    out = pick(rows.query, rows.key, rows.value, index, best == NEG_INF, best.isnan(), call.traced)
    weights = None
    if call.return_weights:
        chosen = torch.zeros_like(scores).scatter(-1, index.unsqueeze(-1), 1.0)
        best = best.unsqueeze(-1)
        weights = torch.where(best.isnan(), NAN, torch.where(best == NEG_INF, 0.0, chosen))
    return Result(out, None, weights)


def pick(
    query: Float[Tensor, "b hq r d"],
    key: Float[Tensor, "b hkv c d"],
    value: Float[Tensor, "b hkv c dv"],
    index: Int[Tensor, "b hq r"],
    empty: Bool[Tensor, "b hq r"],
    lost: Bool[Tensor, "b hq r"],
    traced: bool,
) -> Float[Tensor, "b hq r dv"]:
    """value[index], 0 in empty rows, NaN in lost ones: those with a NaN among their scores."""
    heads_q, heads_kv = index.shape[1], value.shape[1]
    folded = fold_group(index.unsqueeze(-1), heads_kv)
    chosen = unfold_group(value.gather(2, folded.expand(*folded.shape[:3], value.shape[3])), heads_q)
    out = torch.where(lost.unsqueeze(-1), NAN, torch.where(empty.unsqueeze(-1), 0.0, chosen))
    return out if traced else _StepFunction.apply(out, query, key)  # pyright: ignore[reportReturnType]


class _StepFunction(torch.autograd.Function):
    """out = pick(argmax_j q·k_j): a step function of q and k, whose derivative is 0 and not missing."""

    @staticmethod
    def forward(ctx, out: Tensor, query: Tensor, key: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.like = query.new_empty(()).expand(query.shape), key.new_empty(()).expand(key.shape)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key = ctx.like
        return grad, torch.zeros_like(query), torch.zeros_like(key)


def products(query: Float[Tensor, "b hq r n"], key: Float[Tensor, "b hkv c n"]) -> Float[Tensor, "b hq r c"]:
    return unfold_group(fold_group(query, key.shape[1]) @ key.transpose(-1, -2), query.shape[1])


def mixed(weights: Float[Tensor, "b hq r c"], value: Float[Tensor, "b hkv c dv"]) -> Float[Tensor, "b hq r dv"]:
    return unfold_group(fold_group(weights, value.shape[1]) @ value, weights.shape[1])


def _similarity_function(call: AttentionInputs, keep: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    similarity = call.similarity
    if isinstance(similarity, Polynomial):
        return partial(_power, similarity, keep)
    if isinstance(similarity, FeatureMap):
        # Even torch's elementwise functions differ in the last bit between an expanded tensor and a plain one.
        return lambda query, key: products(mapped(similarity, query), mapped(similarity, key))
    assert isinstance(similarity, Similarity)
    return partial(_of_matched_heads, similarity)


def _power(
    similarity: Polynomial, keep: Tensor | None, query: Float[Tensor, "b hq r n"], key: Float[Tensor, "b hkv c n"]
) -> Float[Tensor, "b hq r c"]:
    scores = products(query, key)
    # Masked before the power, which may overflow there, and not only after it.
    scores = scores if keep is None else scores.masked_fill(~keep, 0.0)
    return (scores + similarity.offset) ** similarity.degree


def _of_matched_heads(similarity: Similarity, query: Tensor, key: Tensor) -> Tensor:
    batch, heads_kv, columns, width = key.shape
    group = query.shape[1] // heads_kv
    matched = key.unsqueeze(2).expand(batch, heads_kv, group, columns, width).flatten(1, 2)
    sims = similarity.function(query.contiguous(), matched.contiguous())
    wanted = (*query.shape[:3], columns)
    if not isinstance(sims, Tensor) or sims.shape != wanted:
        given = f"shape {tuple(sims.shape)}" if isinstance(sims, Tensor) else type(sims).__name__
        raise ShapeError(complaint("function (of a Similarity)", given, f"a tensor of shape {wanted}"))
    if sims.dtype is not query.dtype:
        given = f"{sims.dtype} for {query.dtype}"
        raise DtypeError(complaint("function (of a Similarity)", given, "the dtype that it was given"))
    return sims.contiguous()


def _features(call: AttentionInputs) -> Callable[[Tensor], Tensor]:
    """What has to be finite for a product of two of them to be harmless where it is masked."""
    similarity = call.similarity
    return (lambda x: mapped(similarity, x)) if isinstance(similarity, FeatureMap) else lambda x: x


def _guarded(
    rows: Tile,
    function: Callable[[Tensor, Tensor], Tensor],
    features: Callable[[Tensor], Tensor] = lambda x: x,
) -> Float[Tensor, "b hq r c"]:
    """function(query, key), with pairs that are not finite kept out of its derivative."""
    query, key = rows.query, rows.key
    if rows.finite:
        return function(query, key)
    with torch.no_grad():
        odd_query = ~features(query).isfinite().all(-1, keepdim=True)
        odd_key = ~features(key).isfinite().all(-1, keepdim=True)
        raw = function(query, key)
    clean = function(_cleared(query, odd_query), _cleared(key, odd_key))
    odd_key = odd_key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(-1, -2)
    # 0·clean carries a NaN of the row's derivative on to the pair. Masked pairs have none, whatever follows.
    pairs = torch.where(odd_query | odd_key, raw + 0.0 * clean, clean)
    return pairs if rows.keep is None else pairs.masked_fill(~rows.keep, 0.0)


def _cleared(x: Tensor, odd: Tensor) -> Tensor:
    # What is being traced takes torch's own operator, whose derivative at the odd places is 0.
    cleared = x.masked_fill(odd, 0.0) if is_traced(x) else _Cleared.apply(x, odd)
    assert isinstance(cleared, Tensor)
    return cleared


class _Cleared(torch.autograd.Function):
    """x with its odd places set to 0. The derivative is passed on: what it is at a NaN is for the rest to say."""

    @staticmethod
    def forward(ctx, x: Tensor, odd: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.masked_fill(odd, 0.0)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad, None


def _weigh(
    rows: Tile,
    weights: Float[Tensor, "b hq r c"],
    attended: Bool[Tensor, "b hq r c"] | None,
    sign: Tensor,
) -> Float[Tensor, "b hq r dv"]:
    """weights @ value, in which a value that is not attended cannot matter.

    attended: None when all values are finite. sign: of the weights; softmax's are positive even where
    they underflow, so that an attended infinity is an infinity.
    """
    value = rows.value
    if attended is None:
        return mixed(weights, value)
    odd = ~value.isfinite()
    out = mixed(weights, _cleared(value, odd))
    with torch.no_grad():
        dtype = value.dtype
        up, down, lost = (attended & (sign > 0)), (attended & (sign < 0)), (attended & (sign == 0))
        plus, minus, nan = (value == torch.inf).to(dtype), (value == -torch.inf).to(dtype), value.isnan().to(dtype)
        to_plus = mixed(up.to(dtype), plus) + mixed(down.to(dtype), minus) > 0
        to_minus = mixed(up.to(dtype), minus) + mixed(down.to(dtype), plus) > 0
        to_nan = mixed(attended.to(dtype), nan) + mixed(lost.to(dtype), plus + minus) > 0
        special = torch.where(to_plus, torch.inf, 0.0) + torch.where(to_minus, -torch.inf, 0.0)
        special = torch.where(to_nan, NAN, special).to(dtype)
    # The factor is 1; its derivative by the weights, 0·special, is NaN where the answer is not finite.
    return out + special * (1.0 + 0.0 * weights.sum(-1, keepdim=True))


def _dropped(call: AttentionInputs, weights: Tensor) -> Tensor:
    return torch.nn.functional.dropout(weights, call.dropout) if call.dropout else weights


# Bytes of scores that stay near the cores.
NEAR = 1 << 22


def reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    return ()


def cost(call: AttentionInputs) -> Cost:
    batch, heads, len_q, len_k = call.extent.batch, call.extent.heads, call.extent.len_q, call.extent.len_k
    pairs = batch * heads * len_q * len_k
    size = compute_dtype(call.query.dtype).itemsize
    # About eight passes over the scores: product, mask, largest, exp, sum, quotient, product. Small ones stay cached.
    passes = 8 if pairs * size > NEAR else 2
    flops = product_flops(population(call), call.width + call.width_v)
    # A product with few rows reads the other matrix for little work.
    rows = max(1, len_q * call.group)
    return Cost(
        flops=flops,
        charged=int(product_flops(pairs, call.width + call.width_v) * (1 + 32 / rows)),
        traffic=passes * pairs * size,
        extra=3 * pairs * size,
        overhead=60e-6,
        work=partial(work.reference, call),
    )


def run(call: AttentionInputs) -> Result:
    extent = call.extent
    keep = None
    if call.mask is not None:
        keep = call.mask.tile(extent, (0, extent.len_q), (0, extent.len_k), call.query.device)
    finite = not call.traced and ops.all_finite(call.query, call.key, call.value)
    query, key, value = call.query, call.key, call.value
    if not call.traced:
        query, key, value = compact(query), compact(key), compact(value)
    result = attend(call, Tile(query, key, value, keep, call.bias, call.sink, finite))
    dtype = call.query.dtype
    weights = result.weights.to(dtype) if call.return_weights and result.weights is not None else None
    return Result(result.out.to(dtype), result.lse, weights)


REFERENCE = Backend(
    name="reference",
    summary="all scores at once, by the equation",
    bound={torch.float64: 16.0, torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    keeps=("runs at the same number of threads", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)
