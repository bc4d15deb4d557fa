"""`reference`: the equation, on a tile of query rows and all the keys that they may attend to.

    V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j)

This is the specification: short and literal, in torch operators, so that autograd differentiates it. `reference` runs
it on all rows at once, `blockwise` on one block of rows after the other.

Non-finite numbers need care. 0·NaN is NaN, so a masked NaN would leak through a product, forward in `weights @ value`
and backward in `dscores @ key`. Unless the inputs are known to be finite, vectors with non-finite numbers are set to 0
in the differentiable product, and the contribution of those that are attended is added afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, product_flops
from ..errors import DtypeError, ShapeError, complaint
from ..features import TensorMap, apply_feature_map, identity
from ..inputs import AttentionInputs, compact, compute_dtype, fold_group, is_traced, unfold_group
from ..scoring import ScoreRule
from ..shapes import Bool, Float, Int
from ..similarity import AnySimilarity, FeatureMap, Polynomial, Sigmoid, Softmax
from .base import NEG_INF, Backend, Result, attended_pairs
from .recurrent import literal_cost, run_literally

NAN = float("nan")
PairFunction = Callable[[Tensor, Tensor], Tensor]

# A matrix of scores up to this size, in bytes, stays in the CPU caches.
CACHED_SCORE_BYTES = 1 << 22

# Rows whose similarities have a smaller sum are computed in float64.
TINY_SUM = 1e-30


class Tile(NamedTuple):
    """Rows of queries, and the keys and values that they may attend to.

    Args:
        query: (batch, heads_q, rows, width).
        key: (batch, heads_kv, columns, width).
        value: (batch, heads_kv, columns, width_v).
        keep: Booleans that broadcast to the scores (batch, heads_q, rows, columns); True attends.
        bias: Numbers that broadcast to the scores.
        sink: (heads_q or 1, 1, 1).
        finite: Whether query, key and value are known to be finite.
        score_rule: Changes the scores after the bias is added; None for no change.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    bias: Tensor | None
    sink: Tensor | None
    finite: bool
    score_rule: ScoreRule | None = None


def attend(call: AttentionInputs, tile: Tile) -> Result:
    """The answer for the tile's rows, in the compute dtype."""
    dtype = compute_dtype(tile.query.dtype)
    tile = tile._replace(query=tile.query.to(dtype), key=tile.key.to(dtype), value=tile.value.to(dtype))
    if isinstance(call.similarity, Softmax):
        return _softmax(call, tile, call.similarity)
    if isinstance(call.similarity, Sigmoid):
        return _sigmoid(call, tile, call.similarity)
    if call.similarity.picks_one_key:
        return _argmax(call, tile)
    return _normalized_similarity(call, tile)


def _masked_scores(call: AttentionInputs, tile: Tile, similarity: Softmax | Sigmoid) -> tuple[Tensor, Tensor | None]:
    """The scores, −inf where masked, and which pairs attend."""
    scale = similarity.scale_for(call.width)
    keep = tile.keep
    if tile.bias is not None:
        # A bias of −inf masks the pair, whatever the key and value are.
        allowed = tile.bias != NEG_INF
        keep = allowed if keep is None else keep & allowed
    scores = _guarded_scores(tile._replace(keep=keep), lambda query, key: dot_products(query * scale, key))
    if isinstance(similarity, Sigmoid):
        scores = scores if similarity.bias is None else scores + similarity.bias
    elif similarity.softcap is not None:
        scores = similarity.softcap * torch.tanh(scores / similarity.softcap)
    if tile.bias is not None:
        scores = scores + tile.bias
    if tile.score_rule is not None:
        scores = tile.score_rule(scores if keep is None else scores.masked_fill(~keep, 0.0))
    if keep is not None:
        scores = scores.masked_fill(~keep, NEG_INF)
    return scores, keep


def _softmax(call: AttentionInputs, tile: Tile, similarity: Softmax) -> Result:
    scores, keep = _masked_scores(call, tile, similarity)
    # The largest score cancels in the weights, so it needs no derivative.
    best = scores.detach().amax(-1, keepdim=True)
    empty = best == NEG_INF
    top = best if tile.sink is None else torch.maximum(best, tile.sink.detach())
    top = torch.where(top == NEG_INF, 0.0, top)
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    if tile.sink is not None:
        total = total + torch.exp(tile.sink - top)
    safe = torch.where(total == 0, 1.0, total)
    weights = powers / safe
    if keep is not None and not tile.finite:
        # Masked weights are 0 even in a row of NaN.
        weights = weights.masked_fill(~keep, 0.0)
    lse = None
    if call.return_lse:
        lse = torch.where(empty, NEG_INF, top + torch.log(safe)).squeeze(-1)
    return _weighted(call, tile, scores, weights, None if keep is None else empty)._replace(lse=lse)


def _sigmoid(call: AttentionInputs, tile: Tile, similarity: Sigmoid) -> Result:
    """σ(score): a score of −inf has weight 0 exactly, and one of +inf 1."""
    scores, keep = _masked_scores(call, tile, similarity)
    empty = None if keep is None else scores.detach().amax(-1, keepdim=True) == NEG_INF
    return _weighted(call, tile, scores, torch.sigmoid(scores), empty)


def _weighted(call: AttentionInputs, tile: Tile, scores: Tensor, weights: Tensor, empty: Tensor | None) -> Result:
    """The sum of the values, for weights that are positive wherever a score is above −inf."""
    weights = _apply_dropout(call, weights)
    attended = None if tile.finite else torch.broadcast_to(scores.detach() != NEG_INF, weights.shape)
    out = _weighted_values(tile, weights, attended, weights.new_ones(()))
    if empty is not None:
        # The row is 0 already; this stops its incoming gradient from reaching a key.
        out = out.masked_fill(empty, 0.0)
    return Result(out, None, weights)


def _normalized_similarity(call: AttentionInputs, tile: Tile) -> Result:
    tile = _zero_masked(tile)
    sims = _guarded_scores(tile, *_similarity_functions(call, tile.keep))
    if tile.keep is not None:
        sims = sims.masked_fill(~tile.keep, 0.0)
    weights = sims
    if call.similarity.normalizes:
        total = sims.sum(-1, keepdim=True)
        if not call.traced and total.dtype is torch.float32 and _has_tiny(total):
            # The derivative of the division overflows in float32, before that of the similarity makes it small again.
            with suppress(RuntimeError):  # of a function with float32 parameters
                wide = tile._replace(query=tile.query.double(), key=tile.key.double(), value=tile.value.double())
                return attend(call, wide)
        # A sum of exactly 0 gives a row of zeros, whatever terms cancelled.
        weights = torch.where(total == 0, 0.0, sims / torch.where(total == 0, 1.0, total))
    if tile.keep is not None and not tile.finite:
        weights = weights.masked_fill(~tile.keep, 0.0)
    weights = _apply_dropout(call, weights)
    attended = None
    if not tile.finite:
        everything = torch.ones((), dtype=torch.bool, device=weights.device)
        attended = torch.broadcast_to(everything if tile.keep is None else tile.keep, weights.shape)
    out = _weighted_values(tile, weights, attended, torch.sign(weights.detach()))
    if tile.keep is not None:
        out = out.masked_fill(~tile.keep.any(-1, keepdim=True), 0.0)
    return Result(out, None, weights)


def _has_tiny(total: Tensor) -> bool:
    size = total.detach().abs()
    return bool(((size < TINY_SUM) & (size > 0)).any())


def _zero_masked(tile: Tile) -> Tile:
    """The tile with fully masked queries and keys set to 0.

    Otherwise a similarity, or its derivative, may be infinite there, and 0·∞ is NaN.
    """
    if tile.keep is None:
        return tile
    query, key = tile.query, tile.key
    pairs = torch.broadcast_to(tile.keep, (*query.shape[:3], key.shape[2]))
    attended = fold_group(pairs, key.shape[1]).any(2).unsqueeze(-1)
    return tile._replace(
        query=query.masked_fill(~pairs.any(-1, keepdim=True), 0.0), key=key.masked_fill(~attended, 0.0)
    )


def _argmax(call: AttentionInputs, tile: Tile) -> Result:
    with torch.no_grad():
        scores = dot_products(tile.query, tile.key)
        if tile.keep is not None:
            scores = scores.masked_fill(~tile.keep, NEG_INF)
        best, index = scores.max(-1)  # the lowest index of equal scores; NaN counts as the largest
    out = gather_best(tile.query, tile.key, tile.value, index, best == NEG_INF, best.isnan(), call.traced)
    weights = None
    if call.return_weights:
        chosen = torch.zeros_like(scores).scatter(-1, index.unsqueeze(-1), 1.0)
        best = best.unsqueeze(-1)
        weights = torch.where(best.isnan(), NAN, torch.where(best == NEG_INF, 0.0, chosen))
    return Result(out, None, weights)


def gather_best(
    query: Float[Tensor, "b hq r d"],
    key: Float[Tensor, "b hkv c d"],
    value: Float[Tensor, "b hkv c dv"],
    index: Int[Tensor, "b hq r"],
    empty: Bool[Tensor, "b hq r"],
    has_nan: Bool[Tensor, "b hq r"],
    traced: bool,
) -> Float[Tensor, "b hq r dv"]:
    """value[index], 0 in rows without an attended key, NaN in rows with a NaN score."""
    heads_q, heads_kv = index.shape[1], value.shape[1]
    folded = fold_group(index.unsqueeze(-1), heads_kv)
    chosen = unfold_group(value.gather(2, folded.expand(*folded.shape[:3], value.shape[3])), heads_q)
    out = torch.where(has_nan.unsqueeze(-1), NAN, torch.where(empty.unsqueeze(-1), 0.0, chosen))
    return out if traced else StepFunction.apply(out, query, key)  # pyright: ignore[reportReturnType]


class StepFunction(torch.autograd.Function):
    """Returns `out`, with zero gradients for query and key: argmax is piecewise constant in both."""

    @staticmethod
    def forward(ctx, out: Tensor, query: Tensor, key: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.like = query.new_empty(()).expand(query.shape), key.new_empty(()).expand(key.shape)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key = ctx.like
        return grad, torch.zeros_like(query), torch.zeros_like(key)


def dot_products(query: Float[Tensor, "b hq r n"], key: Float[Tensor, "b hkv c n"]) -> Float[Tensor, "b hq r c"]:
    """q·k for every pair; query heads share key heads in groups."""
    return unfold_group(fold_group(query, key.shape[1]) @ key.transpose(-1, -2), query.shape[1])


def weighted_sum(weights: Float[Tensor, "b hq r c"], value: Float[Tensor, "b hkv c dv"]) -> Float[Tensor, "b hq r dv"]:
    """weights @ value; query heads share value heads in groups."""
    return unfold_group(fold_group(weights, value.shape[1]) @ value, weights.shape[1])


def _similarity_functions(call: AttentionInputs, keep: Tensor | None) -> tuple[PairFunction, TensorMap]:
    """sim of all pairs, and the vectors whose products it is made of: these must be finite for masked products to be
    harmless."""
    similarity = call.similarity
    if isinstance(similarity, FeatureMap):
        # Map before expanding: elementwise functions differ in the last bit between expanded and contiguous tensors.
        phi = partial(apply_feature_map, similarity)
        return lambda query, key: dot_products(phi(query), phi(key)), phi
    function = partial(_custom_similarity, similarity)
    if isinstance(similarity, Polynomial):
        function = partial(_polynomial, similarity, keep)
    return function, identity


def _polynomial(
    similarity: Polynomial, keep: Tensor | None, query: Float[Tensor, "b hq r n"], key: Float[Tensor, "b hkv c n"]
) -> Float[Tensor, "b hq r c"]:
    scores = dot_products(query, key)
    # Masked before the power too, since it may overflow there.
    scores = scores if keep is None else scores.masked_fill(~keep, 0.0)
    return (scores + similarity.offset) ** similarity.degree


def _custom_similarity(similarity: AnySimilarity, query: Tensor, key: Tensor) -> Tensor:
    batch, heads_kv, columns, width = key.shape
    group = query.shape[1] // heads_kv
    matched = key.unsqueeze(2).expand(batch, heads_kv, group, columns, width).flatten(1, 2)
    sims = similarity.of_blocks(query.contiguous(), matched.contiguous())
    expected = (*query.shape[:3], columns)
    if not isinstance(sims, Tensor) or sims.shape != expected:
        given = f"shape {tuple(sims.shape)}" if isinstance(sims, Tensor) else type(sims).__name__
        raise ShapeError(complaint("function (of a Similarity)", given, f"a tensor of shape {expected}"))
    if sims.dtype is not query.dtype:
        given = f"{sims.dtype} for {query.dtype}"
        raise DtypeError(complaint("function (of a Similarity)", given, "the dtype of its arguments"))
    return sims.contiguous()


def _guarded_scores(tile: Tile, function: PairFunction, features: TensorMap = identity) -> Float[Tensor, "b hq r c"]:
    """function(query, key), with non-finite pairs kept out of its derivative."""
    query, key = tile.query, tile.key
    if tile.finite:
        return function(query, key)
    with torch.no_grad():
        nonfinite_query = ~features(query).isfinite().all(-1, keepdim=True)
        nonfinite_key = ~features(key).isfinite().all(-1, keepdim=True)
        raw = function(query, key)
    clean = function(_zero_nonfinite(query, nonfinite_query), _zero_nonfinite(key, nonfinite_key))
    nonfinite_key = nonfinite_key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(-1, -2)
    # 0·clean passes a NaN of the row's gradient on to the pair; masked pairs get no gradient.
    pairs = torch.where(nonfinite_query | nonfinite_key, raw + 0.0 * clean, clean)
    return pairs if tile.keep is None else pairs.masked_fill(~tile.keep, 0.0)


def _zero_nonfinite(x: Tensor, nonfinite: Tensor) -> Tensor:
    # Traced code uses masked_fill, whose derivative at non-finite places is 0.
    cleared = x.masked_fill(nonfinite, 0.0) if is_traced(x) else _ZeroNonfinite.apply(x, nonfinite)
    assert isinstance(cleared, Tensor)
    return cleared


class _ZeroNonfinite(torch.autograd.Function):
    """x with 0 where `nonfinite`. The gradient passes through, so that an attended NaN is visible in it."""

    @staticmethod
    def forward(ctx, x: Tensor, nonfinite: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.masked_fill(nonfinite, 0.0)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad, None


def _weighted_values(
    tile: Tile, weights: Float[Tensor, "b hq r c"], attended: Bool[Tensor, "b hq r c"] | None, sign: Tensor
) -> Float[Tensor, "b hq r dv"]:
    """weights @ value, where values that are not attended cannot matter.

    Args:
        tile: The rows; only its values are read.
        weights: 0 for masked pairs.
        attended: Which pairs are attended; None if all values are finite.
        sign: The sign of each weight. Softmax weights count as positive even if they underflow to 0, so that an
            attended infinity stays infinite.
    """
    value = tile.value
    if attended is None:
        return weighted_sum(weights, value)
    nonfinite = ~value.isfinite()
    out = weighted_sum(weights, _zero_nonfinite(value, nonfinite))
    with torch.no_grad():
        dtype = value.dtype
        positive, negative, zero = (attended & (sign > 0)), (attended & (sign < 0)), (attended & (sign == 0))
        plus, minus, nan = (value == torch.inf).to(dtype), (value == -torch.inf).to(dtype), value.isnan().to(dtype)
        to_plus = weighted_sum(positive.to(dtype), plus) + weighted_sum(negative.to(dtype), minus) > 0
        to_minus = weighted_sum(positive.to(dtype), minus) + weighted_sum(negative.to(dtype), plus) > 0
        to_nan = weighted_sum(attended.to(dtype), nan) + weighted_sum(zero.to(dtype), plus + minus) > 0
        special = torch.where(to_plus, torch.inf, 0.0) + torch.where(to_minus, -torch.inf, 0.0)
        special = torch.where(to_nan, NAN, special).to(dtype)
    # The factor is 1; its derivative by the weights, 0·special, is NaN where the answer is non-finite.
    return out + special * (1.0 + 0.0 * weights.sum(-1, keepdim=True))


def _apply_dropout(call: AttentionInputs, weights: Tensor) -> Tensor:
    return torch.nn.functional.dropout(weights, call.dropout) if call.dropout else weights


def cost(call: AttentionInputs) -> Cost:
    if call.state is not None:
        return literal_cost(call)
    pairs = call.extent.cells
    size = compute_dtype(call.query.dtype).itemsize
    # About eight passes over the scores (product, mask, max, exp, sum, division, product); small matrices stay cached.
    passes = 8 if pairs * size > CACHED_SCORE_BYTES else 2
    flops = product_flops(attended_pairs(call), call.width + call.width_v)
    # A product with few rows is bound by reading the other matrix.
    rows = max(1, call.extent.len_q * call.group)
    charged = int(product_flops(pairs, call.width + call.width_v) * (1 + 32 / rows))
    return Cost(flops, passes * pairs * size, 3 * pairs * size, 60e-6, charged)


def run(call: AttentionInputs) -> Result:
    if call.state is not None:
        return run_literally(call)
    query, key, value, finite = call.query, call.key, call.value, False
    keep = call.keep()
    if not call.traced:
        finite = ops.all_finite(query, key, value)
        query, key, value = compact(query), compact(key), compact(value)
    bias = call.bias
    if call.forgetting is not None:
        bias = call.forgetting.added_to(bias, compute_dtype(query.dtype))
    result = attend(call, Tile(query, key, value, keep, bias, call.sink, finite, call.score_rule))
    dtype = call.query.dtype
    weights = result.weights.to(dtype) if call.return_weights and result.weights is not None else None
    return Result(result.out.to(dtype), result.lse, weights)


REFERENCE = Backend(
    name="reference",
    summary="the equation, with all scores at once",
    bound={torch.float64: 16.0, torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    same_bits_across=("runs at the same number of threads", "layouts"),
    cost=cost,
    run=run,
    has_states=True,
)
