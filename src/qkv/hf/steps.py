"""A step of a `PagedLayer` that needs more than `decode` alone: padding among the new tokens, masks, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..cache.decode import decode
from ..errors import MaskError, ShapeError, complaint
from ..functional import attention
from ..masks import Dense, Mask, Padding, Window
from ..similarity import Softmax
from .patterns import Pattern, joined, read_cells
from .refusal import refusal

if TYPE_CHECKING:
    from .layers import PagedLayer


class Step(NamedTuple):
    """query (batch, heads_q, n, width); key, value (batch, heads_kv, n, …); given: the mask as the model passed it."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    given: Any
    similarity: Softmax
    bias: Tensor | None
    want_weights: bool


class Rule(NamedTuple):
    """Masks and bias over all positions; causal: whether no query sees a later key."""

    masks: list[Mask]
    bias: Tensor | None
    causal: bool
    distances: bool  # whether leaving out a token between two others would be noticed
    columns: bool  # whether masks or bias have a column for each position


def run(layer: PagedLayer, step: Step) -> tuple[Tensor, Tensor | None]:
    """Append, attend, and remember which positions are padding."""
    cache = layer.cache
    assert cache is not None
    n = step.key.shape[2]
    total = layer.seen + n
    visible = _visible(layer, step, total)
    rule = _rule(layer, step, total)
    if n > 1 and not rule.causal:
        if layer.seen:
            raise refusal(step.module, "several new tokens may see each other both ways, and the cache is not empty")
        out = _both_ways(step, rule, visible)
        cache.append(step.key, step.value)
        layer.remember(total, visible, None, visible is not None)
    else:
        stored = None if visible is None or rule.columns else _worth_storing(visible, n, rule.distances)
        out, holes = _decoded(layer, step, rule, visible, stored, total)
        layer.remember(total, visible, stored, holes)
    return out, _weights(layer, step, rule, visible, total) if step.want_weights else None


def _visible(layer: PagedLayer, step: Step, total: int) -> Tensor | None:
    """Which of all positions are real. What was padding when it came must still be padding, and the other way round."""
    given, before = step.given, layer._visible
    keep = given.keep if isinstance(given, Pattern) else None
    if isinstance(given, Tensor) and not isinstance(given, Pattern) and given.dim() == 2:
        keep = given.bool()
    if keep is None:
        if before is None:
            return None
        keep = torch.ones(before.shape[0], total, dtype=torch.bool, device=before.device)
        if not isinstance(given, Pattern):
            keep[:, : layer.seen] = before  # a mask of cells says nothing of padding
    if keep.shape[0] != step.key.shape[0] or (before is not None and before.shape[0] != keep.shape[0]):
        held = keep.shape[0] if before is None else before.shape[0]
        raise ShapeError(complaint("input", f"{step.key.shape[0]} rows", f"{held}, as in the mask and in the cache"))
    if keep.shape[1] != total:
        hint = "one column for each token so far and each new one"
        raise MaskError(complaint("attention_mask", f"{keep.shape[1]} columns", str(total), hint))
    past = keep[:, : layer.seen]
    if not (bool(past.all()) if before is None else torch.equal(past, before)):
        hint = "tokens in the cache were appended with another mask; reset() the cache, or give the same mask again"
        raise MaskError(complaint("attention_mask", "another value for a past token", "what was given before", hint))
    return keep


def _rule(layer: PagedLayer, step: Step, total: int) -> Rule:
    cache = layer.cache
    assert cache is not None
    if not isinstance(step.given, Pattern):
        if step.given is None or step.given.dim() == 2:
            return Rule([], step.bias, True, cache.window is not None, step.bias is not None)
        mask, added = read_cells(step.query, step.given, total)
        bias = added if step.bias is None else step.bias if added is None else step.bias + added
        seen_later = step.given[..., :total].triu(layer.seen + 1) if mask is not None else _open(added, layer.seen)
        return Rule([] if mask is None else [mask], bias, not bool(seen_later.any()), True, True)
    rules = step.given.rules
    if cache.window is not None and not any(left < cache.window for left, _ in rules.windows):
        raise refusal(step.module, f"its cache is a ring of {cache.window} tokens, and its mask asks for more")
    windows = [
        Window(left, right) for left, right in rules.windows if left + 1 != cache.window or right not in (None, 0)
    ]
    columns = bool(rules.others) or step.bias is not None
    return Rule([*windows, *rules.others], step.bias, rules.causal, bool(rules.windows), columns)


def _open(added: Tensor | None, seen: int) -> Tensor:
    """Cells behind a query that numbers which are added to the scores do not close."""
    assert added is not None
    return (added > torch.finfo(added.dtype).min / 2).triu(seen + 1)


def _both_ways(step: Step, rule: Rule, visible: Tensor | None) -> Tensor:
    """The first tokens, which may see each other: attention over them alone."""
    masks = list(rule.masks)
    if visible is not None:
        masks.append(Padding(keep=visible))
    return attention(
        step.query, step.key, step.value, similarity=step.similarity, mask=joined(masks), bias=rule.bias
    )  # fmt: skip


def _worth_storing(visible: Tensor, n: int, distances: bool) -> Tensor | None:
    """(batch, n): the new tokens that the cache keeps; None: all."""
    keep = (visible.cumsum(1) > 0) if distances else visible
    new = keep[:, keep.shape[1] - n :]
    return None if bool(new.all()) else new


def _decoded(
    layer: PagedLayer, step: Step, rule: Rule, visible: Tensor | None, stored: Tensor | None, total: int
) -> tuple[Tensor, bool]:
    """The answer, and whether the cache then holds padding."""
    cache = layer.cache
    assert cache is not None
    new = torch.ones(cache.batch, total - layer.seen, dtype=torch.bool) if stored is None else stored.cpu()
    held = torch.cat([layer.stored(layer.seen), new], 1)
    gaps = not bool(held.all())
    masks: list[Mask] = list(rule.masks)
    bias = rule.bias
    if gaps and rule.columns:
        # Tokens were left out before somebody began to speak of columns: a cell for each that is held.
        cells = _cells(step, rule, total)
        masks[:] = [Dense(_columns(cells, held))]
        bias = None if bias is None else _columns(bias, held)
    holes = visible is not None and bool((held.to(visible.device) & ~visible).any())
    if holes:
        assert visible is not None
        masks.append(Padding(keep=_columns(visible[:, None, None], held)[:, 0, 0]))
    mask = joined(masks)
    if stored is None:
        return decode(step.query, step.key, step.value, cache, similarity=step.similarity, mask=mask, bias=bias), holes
    counts = stored.sum(1)
    place = torch.arange(stored.shape[1], device=stored.device)
    if bool((stored == (place >= stored.shape[1] - counts[:, None])).all()):
        side, order = "left", None
    elif bool((stored == (place < counts[:, None])).all()):
        side, order = "right", None
    else:
        # Gaps in the middle: what counts goes to the front, and its answers back to where they belong.
        side, order = "right", torch.argsort(~stored, dim=1, stable=True)
    query, key, value = (_ordered(t, order) for t in (step.query, step.key, step.value))
    out = decode(
        query, key, value, cache, similarity=step.similarity, mask=mask, bias=bias, lengths=counts, padding=side
    )  # fmt: skip
    return out if order is None else _ordered(out, order.argsort(1)), holes


def _ordered(tensor: Tensor, order: Tensor | None) -> Tensor:
    if order is None:
        return tensor
    return tensor.gather(2, order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))


def _cells(step: Step, rule: Rule, total: int) -> Tensor:
    """(batch, 1 or heads, n, total) booleans, causal among the new ones."""
    if isinstance(step.given, Pattern):
        return step.given.cells()
    n = step.key.shape[2]
    cells = torch.ones(step.key.shape[0], 1, n, total, dtype=torch.bool).tril(total - n)
    for mask in rule.masks:
        assert isinstance(mask, Dense)
        cells = cells & mask.keep
    return cells


def _columns(cells: Tensor, held: Tensor) -> Tensor:
    """cells (batch or 1, heads, n, total) at the positions that each row holds: (batch, heads, n, longest)."""
    if bool(held.all()):
        return cells
    counts = held.sum(1)
    batch = held.shape[0]
    moved = cells.new_zeros(batch, cells.shape[1], cells.shape[2], int(counts.max()))
    whole = cells.expand(batch, -1, -1, -1)
    for row in range(batch):
        moved[row, ..., : int(counts[row])] = whole[row][..., held[row].to(cells.device)]
    return moved


def _weights(layer: PagedLayer, step: Step, rule: Rule, visible: Tensor | None, total: int) -> Tensor:
    """(batch, heads_q, n, total) over all positions, 0 where nothing is held: computed again, to look at."""
    cache = layer.cache
    assert cache is not None
    n = step.key.shape[2]
    held = layer.stored(total)
    keys, values = (tensor.to(step.query.dtype) for tensor in cache.tensors())
    cells = _cells(step, rule, total)
    if visible is not None:
        cells = cells & visible[:, None, None]
    if rule.masks and not isinstance(step.given, Pattern) and rule.causal:
        cells = cells.tril(total - n)
    weights = step.query.new_zeros(*step.query.shape[:3], total)
    for row in range(cache.batch):
        at = held[row].nonzero()[:, 0]
        count = len(at)
        if not count:
            continue
        bias = None if rule.bias is None else rule.bias.expand(cache.batch, -1, -1, -1)[row : row + 1][..., at]
        keep = cells.expand(cache.batch, -1, -1, -1)[row : row + 1][..., at]
        weights[row : row + 1, :, :, at] = attention(
            step.query[row : row + 1],
            keys[row : row + 1, :, :count],
            values[row : row + 1, :, :count],
            similarity=step.similarity,
            mask=Dense(keep),
            bias=bias,
            return_weights=True,
        )[1]
    return weights
