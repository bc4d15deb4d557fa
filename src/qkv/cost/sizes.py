"""The sizes of a call, read off three shapes and checked once, whoever asks: a call with tensors or a count without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import ShapeError, complaint

RANKS = "2 (length, width), 3 (batch, length, width) or 4 (batch, heads, length, width)"
PAGE = 64  # tokens that a memory keeps together


class Sizes(NamedTuple):
    """query (batch, heads, len_q, width), key (batch, heads_kv, len_k, width), value (batch, heads_kv, len_k, width_v).

    Integers, or symbols where formulas are asked for.
    """

    batch: Any
    heads: Any
    heads_kv: Any
    len_q: Any
    len_k: Any
    width: Any
    width_v: Any

    @property
    def group(self) -> Any:
        """Query heads that share a key/value head; of no heads, none do."""
        return self.heads // self.heads_kv if self.heads_kv else 0

    @property
    def rows(self) -> Any:
        """Queries of all heads."""
        return self.batch * self.heads * self.len_q

    @property
    def cells(self) -> Any:
        """Scores, masked or not."""
        return self.rows * self.len_k

    @property
    def query_numbers(self) -> Any:
        return self.rows * self.width

    @property
    def key_numbers(self) -> Any:
        return self.batch * self.heads_kv * self.len_k * self.width

    @property
    def value_numbers(self) -> Any:
        return self.batch * self.heads_kv * self.len_k * self.width_v

    @property
    def out_numbers(self) -> Any:
        return self.rows * self.width_v


def check_sizes(query: Sequence[Any], key: Sequence[Any], value: Sequence[Any]) -> Sizes:
    """Three shapes of four axes that belong together.

    >>> check_sizes((2, 6, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
    Sizes(batch=2, heads=6, heads_kv=3, len_q=5, len_k=7, width=8, width_v=4)
    """
    (batch, heads, len_q, width), (key_batch, heads_kv, len_k, key_width) = query, key
    value_batch, value_heads, len_v, width_v = value
    if key_batch != batch or value_batch != batch:
        given = f"batch {key_batch} and {value_batch}"
        raise ShapeError(complaint("key, value", given, f"query's batch {batch}", "expand() them"))
    if width != key_width:
        raise ShapeError(complaint("key", f"width {key_width}", f"query's width {width}"))
    if width == 0:
        raise ShapeError(complaint("query", "width 0", "at least one coordinate to compare"))
    if len_k != len_v:
        raise ShapeError(complaint("value", f"length {len_v}", f"key's length {len_k}: one value for each key"))
    if heads_kv != value_heads:
        raise ShapeError(complaint("value", f"{value_heads} heads", f"key's {heads_kv} heads"))
    check_heads(heads, heads_kv)
    return Sizes(batch, heads, heads_kv, len_q, len_k, width, width_v)


def check_heads(heads: Any, heads_kv: Any) -> None:
    """Key/value heads divide the query heads; symbols are taken to."""
    if hasattr(heads, "free_symbols") or hasattr(heads_kv, "free_symbols"):
        return
    if heads and (heads_kv == 0 or heads % heads_kv):
        raise ShapeError(
            complaint(
                "key",
                f"{heads_kv} heads beside {heads} query heads",
                "a number that divides the query heads",
                "query head h reads key/value head h // (heads_q // heads_kv)",
            )
        )
