"""`KVCache(dtype="auto", bound=...)`: the smallest storage format whose error stays within a bound.

The first prompt decides. Its keys and values are first kept in float32; its last queries attend to them, and to what
each format of `CANDIDATES` keeps of them, without mask and bias. The relative error of a format is the norm of the
difference of the outputs over that of the float32 outputs, for all rows and heads together. The first format within the
bound is taken, and float32 if there is none; the same prompt gives the same format. The prompt itself is answered from
float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, complaint
from .formats import StorageFormat, storage_format
from .inputs import DecodeInputs
from .kv import KVCache
from .pages import StoredTokens, from_storage, to_storage

# From the smallest on; int8 keys where int4 keys miss the bound.
CANDIDATES = tuple(map(storage_format, ("int4", "int8/int4", "int8", "bfloat16", "float16")))
MIN_TOKENS = 32  # fewer keys do not say what the attention of later tokens loses
QUERIES = 16


def last_queries(step: DecodeInputs) -> tuple[Tensor, np.ndarray]:
    """The last queries of each row, as many in all rows, and their first positions.

    Raises:
        OptionError: The prompt is too short to decide.
    """
    counts = np.full(len(step.past), step.extent.len_q) if step.counts is None else step.counts
    shortest = int((step.past + counts).min())
    if shortest < MIN_TOKENS or not counts.min():
        wanted = f"a first prompt of at least {MIN_TOKENS} tokens in each row"
        hint = "its last queries decide the format; give a format for shorter prompts"
        raise OptionError(complaint("dtype", f'"auto" with a prompt of {shortest} tokens', wanted, hint))
    n = min(QUERIES, int(counts.min()))
    ends = [step.extent.len_q if step.left else int(count) for count in counts]
    rows = [step.query[row, :, end - n : end] for row, end in enumerate(ends)]
    return torch.stack(rows), step.past + counts - n


def stored_as(cache: KVCache, dtype: torch.dtype | str) -> KVCache:
    """A cache of another format with the same tokens; each is rounded once."""
    sizes = {"value_width": cache.value_width, "window": cache.window, "latent": cache.latent}
    other = KVCache(cache.batch, cache.heads, cache.width, dtype=dtype, **sizes)
    rows = [cache.stored_row(row) for row in range(cache.batch)]
    tokens = [to_storage(other.page_layout, *from_storage(cache.page_layout, stored)) for _, stored in rows]
    span = max(each.key.shape[1] for each in tokens)

    parts: dict[str, Tensor] = {}
    for name in StoredTokens._fields:
        if getattr(tokens[0], name) is not None:
            padded = (
                torch.nn.functional.pad(each, (0, 0, 0, span - each.shape[1]))
                for each in (getattr(row, name) for row in tokens)
            )
            parts[name] = torch.stack(list(padded))
    starts = np.array([start for start, _ in rows], dtype=np.int64)
    other.fill(starts, cache.stored_lengths, cache.capacity, StoredTokens(**parts), None, None, None)
    return other


def _outputs(cache: KVCache, query: Tensor, positions: np.ndarray, scale: float) -> Tensor:
    """Attention of query (batch, heads_q, n, width) from these positions on, by the equation in float32."""
    rows = []
    for row, first in enumerate(positions.tolist()):
        start, stored = cache.stored_row(row)
        key, value = (each.float().unsqueeze(1) for each in from_storage(cache.page_layout, stored))
        own = query[row].unflatten(0, (cache.heads, -1)).float().to(key.device)
        later = torch.arange(start, start + key.shape[2]) > first + torch.arange(own.shape[2])[:, None]
        weights = (own @ key.mT * scale).masked_fill(later, -torch.inf).softmax(-1)
        rows.append(weights @ value)
    return torch.stack(rows).double()


def relative_errors(
    cache: KVCache, formats: Iterable[StorageFormat], query: Tensor, positions: np.ndarray, scale: float
) -> Iterator[tuple[KVCache, float]]:
    """The tokens of a cache in each format, and its relative error; NaN if an output is."""
    wanted = _outputs(cache, query, positions, scale)
    for each in formats:
        other = stored_as(cache, each.dtype)
        difference = (_outputs(other, query, positions, scale) - wanted).norm()
        yield other, float(difference / wanted.norm()) if difference else 0.0


def choose_format(cache: KVCache, query: Tensor, positions: np.ndarray, scale: float) -> None:
    """Store the tokens of a cache with dtype="auto" in the first format within its bound."""
    assert cache.bound is not None
    for other, error in relative_errors(cache, CANDIDATES, query, positions, scale):
        if error <= cache.bound:  # NaN is not
            cache.adopt(other)
            return
    cache.bound = None
