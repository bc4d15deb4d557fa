"""Latent attention (MLA) on a cache of latents, in the form that takes fewer flops.

A token is stored as one vector: its latent c of width r, and a key with rotary positions that all heads share. Head h
has the keys [U_h c | rotary key] and the values W_h c.

Absorbed, q·(U_h c) = (U_hᵀ q)·c: queries are projected into the latent space, where all heads read the same keys and
values, and outputs are projected by W_h. Expanded, keys and values of all tokens are computed from their latents, once
for all new queries: cheaper for many of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, Never

import torch
from torch import Tensor

from ..cost.price import latent_flops
from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import raise_unknown_arguments
from ..masks import Mask
from ..shapes import Float
from ..similarity import AnySimilarity, Softmax, as_similarity
from .decode import decode
from .inputs import check_new_tokens, values_of
from .kv import KVCache

Form = Literal["absorbed", "expanded"]


def decode_latents(
    query: Float[Tensor, "batch heads n width"],
    key: Float[Tensor, "batch 1 n stored"],
    up: Float[Tensor, "heads rows rank"],
    cache: KVCache,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    lengths: Any = None,
    padding: str = "right",
    return_weights: bool = False,
    form: Form | None = None,
    **unknown: Never,
) -> Any:
    """Append n tokens to a cache of latents and attend from them: `qkv.decode` for latent attention (MLA).

    The result is that of `decode` with the keys and values that `expand_latents` computes from what is stored, up to
    rounding, in both forms.

    Args:
        query: (batch, heads, n, width): the coordinates without rotary positions, then those with them.
        key: (batch, 1, n, rank + rope): the latents, then the rotary key that all heads share.
        up: (heads, rows, rank): U_h, width − rope rows, over W_h, one row for each coordinate of a value.
            `kv_b_proj.weight.view(heads, -1, rank)` of a DeepSeek model.
        cache: `KVCache(batch, 1, rank + rope, value_width=rank, latent=True)`.
        similarity: `Softmax` (if None). A scale of None is 1/√width of the given queries.
        mask, bias, lengths, padding, return_weights: As for `decode`.
        form: "absorbed" or "expanded"; the one with fewer flops if None (`qkv.cost.price.latent_flops`). Caches that
            forget or count weights, and float64 queries, always run absorbed.

    Returns:
        (batch, heads, n, value_width), or that and the weights.

    Raises:
        ShapeError, DtypeError, MaskError, OptionError, OptionTypeError: An argument is invalid.
        BackendRefused: As `decode`.

    >>> import torch, qkv
    >>> cache = qkv.KVCache(batch=1, heads=1, width=12, value_width=8, latent=True)
    >>> query, key, up = torch.randn(1, 3, 5, 10), torch.randn(1, 1, 5, 12), torch.randn(3, 6 + 7, 8)
    >>> decode_latents(query, key, up, cache).shape
    torch.Size([1, 3, 5, 7])
    """
    if unknown:
        raise_unknown_arguments(decode_latents, unknown)
    plain = _check_latents(query, key, up, cache)
    chosen = _scaled(as_similarity(similarity), query.shape[3])
    options = {"similarity": chosen, "mask": mask, "bias": bias, "lengths": lengths, "padding": padding}
    options |= {"return_weights": return_weights}
    up = up.to(query.dtype)
    with cache.lock, torch.autocast(query.device.type, enabled=False):
        if _form(query, up, plain, cache, form) == "expanded":
            return _decode_expanded(query, key, up, cache, options)
        inner = torch.cat([_by_heads(query[..., :plain], up[:, :plain]), query[..., plain:]], dim=-1)
        found = decode(inner, key, None, cache, **options)
        out, *weights = found if return_weights else (found,)
        out = _by_heads(out, up[:, plain:], transposed=True)
        return (out, *weights) if return_weights else out


def expand_latents(
    latents: Float[Tensor, "batch 1 tokens stored"], up: Float[Tensor, "heads rows rank"], width: int
) -> tuple[Float[Tensor, "batch heads tokens width"], Float[Tensor, "batch heads tokens value_width"]]:
    """Keys of this width and values of every head, from what a cache of latents stores.

    >>> key, value = expand_latents(torch.ones(1, 1, 5, 12), torch.ones(3, 6 + 7, 8), width=10)
    >>> key.shape, value.shape
    (torch.Size([1, 3, 5, 10]), torch.Size([1, 3, 5, 7]))
    """
    heads, rows, rank = up.shape
    both = torch.nn.functional.linear(latents[:, 0, :, :rank], up.reshape(heads * rows, rank))
    both = both.unflatten(-1, (heads, rows)).transpose(1, 2)
    plain = width - (latents.shape[3] - rank)
    rope = latents[..., rank:].expand(-1, heads, -1, -1)
    return torch.cat([both[..., :plain], rope], dim=-1), both[..., plain:]


def _check_latents(query: Any, key: Any, up: Any, cache: Any) -> int:
    """Refuse what does not fit together; the coordinates of a query without rotary positions."""
    if not isinstance(cache, KVCache) or not cache.latent or cache.heads != 1:
        wanted = "KVCache(batch, 1, rank + rope, value_width=rank, latent=True)"
        raise OptionTypeError(complaint("cache", repr(cache), wanted))
    for name, tensor, dims in (("query", query, 4), ("key", key, 4), ("up", up, 3)):
        if not isinstance(tensor, Tensor) or tensor.dim() != dims:
            given = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ShapeError(complaint(name, given, f"a tensor of {dims} dimensions"))
    rope = cache.width - cache.value_width
    plain = query.shape[3] - rope
    if plain < 0:
        raise ShapeError(complaint("query", f"width {query.shape[3]}", f"at least {rope}, the rotary coordinates"))
    if up.shape[0] != query.shape[1] or up.shape[1] <= plain or up.shape[2] != cache.value_width:
        wanted = f"({query.shape[1]}, over {plain}, {cache.value_width}): heads, rows of keys and values, rank"
        raise ShapeError(complaint("up", f"shape {tuple(up.shape)}", wanted))
    return plain


@lru_cache
def _softmax(scale: float, softcap: float | None) -> Softmax:
    """Cached, so that the plan of an earlier step, which compares by identity, is found."""
    return Softmax(scale, softcap)


def _scaled(similarity: AnySimilarity, width: int) -> AnySimilarity:
    """The similarity with the scale of queries of this width, which the projected ones do not have."""
    if not isinstance(similarity, Softmax) or similarity.scale is not None:
        return similarity
    if similarity.sink is None:
        return _softmax(similarity.scale_for(width), similarity.softcap)
    return Softmax(similarity.scale_for(width), similarity.softcap, similarity.sink)


def _form(query: Tensor, up: Tensor, plain: int, cache: KVCache, form: Any) -> Form:
    forgets = cache.window is not None or cache.evicted or cache.eviction is not None
    only_absorbed = forgets or cache.importance_sums is not None or query.dtype is torch.float64
    if form not in (None, "absorbed", "expanded") or (form == "expanded" and only_absorbed):
        wanted = '"absorbed" for a cache that forgets or counts weights, and for float64'
        raise OptionError(complaint("form", repr(form), wanted if only_absorbed else '"absorbed", "expanded" or None'))
    if form is not None or only_absorbed:
        return form or "absorbed"
    (_, heads, n, _), past = query.shape, int(cache.row_lengths.max())
    pairs = n * past + n * (n + 1) // 2
    widths = {"plain": plain, "rope": query.shape[3] - plain, "value": up.shape[1] - plain}
    absorbed, expanded = latent_flops(heads, up.shape[2], **widths, queries=n, keys=past + n, pairs=pairs)
    return "absorbed" if absorbed <= expanded else "expanded"


def _by_heads(x: Tensor, matrices: Tensor, transposed: bool = False) -> Tensor:
    """x (batch, heads, n, a) times the matrix (heads, a, b) of its head, or its transpose (heads, b, a).

    A matrix is read once for all rows of the batch. torch is fastest with the transposed one on the left.
    """
    batch, heads, n, _ = x.shape
    rows = x.transpose(0, 1).reshape(heads, batch * n, -1)
    rows = (matrices @ rows.mT).mT if transposed else rows @ matrices
    return rows.unflatten(1, (batch, n)).transpose(0, 1)


def _decode_expanded(query: Tensor, key: Tensor, up: Tensor, cache: KVCache, options: dict[str, Any]) -> Any:
    """Attend to keys and values of all heads in another cache, then append the latents."""
    check_new_tokens(cache, key, values_of(cache, key, None))
    batch, heads, _, width = query.shape
    stored = cache.format.read(*cache.format.store(key), cache.width).to(query.dtype)
    new = expand_latents(stored, up, width)
    wide = KVCache(batch, heads, width, value_width=new[1].shape[3], dtype=query.dtype)
    if cache.length:
        wide.append(*expand_latents(cache.tensors()[0].to(query.dtype), up, width), lengths=cache.lengths)
    found = decode(query, *new, wide, **options)
    cache.append(key, None, options["lengths"], options["padding"])
    return found
