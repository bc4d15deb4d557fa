"""Sizes of a call, checked once for calls with tensors and for counts without; storage formats and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import OptionError, OptionTypeError, ShapeError, complaint

Number = Any  # an int or a formula: only operations that work on both are used
RANKS = "2 (length, width), 3 (batch, length, width) or 4 (batch, heads, length, width)"
PAGE = 64  # tokens in a page of a cache


class Sizes(NamedTuple):
    """query (batch, heads, len_q, width), key (batch, heads_kv, len_k, width), value (batch, heads_kv, len_k, width_v).

    Each is an integer, or a SymPy symbol for formulas.
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
        """Query heads that share a key/value head; 0 without heads."""
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
    """Check that three shapes of four axes belong together, and return their sizes.

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
    """Check that key/value heads divide the query heads; symbols are assumed to."""
    # torch.compile does not trace hasattr of a symbolic size, which is an int there.
    if any(not isinstance(size, int) and hasattr(size, "free_symbols") for size in (heads, heads_kv)):
        return
    if heads and (heads_kv == 0 or heads % heads_kv):
        given, wanted = f"{heads_kv} heads for {heads} query heads", "a number that divides the query heads"
        hint = "query head h reads key/value head h // (heads_q // heads_kv)"
        raise ShapeError(complaint("key", given, wanted, hint))


# Quantised formats count their numbers only: scales add a few percent that depend on the scheme.
BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "fp8": 8, "int4": 4}
LARGEST = 2**63 - 1


def storage_bytes(numbers: Number, dtype: Any) -> Number:
    """Bytes that `numbers` numbers take in a storage format, or at `dtype` bytes each; rounded up to whole bytes.

    >>> storage_bytes(7, "bfloat16"), storage_bytes(7, "int4"), storage_bytes(7, 4)
    (14, 4, 28)
    """
    if is_symbol(dtype) or (isinstance(dtype, int) and not isinstance(dtype, bool)):
        return numbers * dtype
    bits = BITS[format_name("dtype", dtype)]
    return -(-numbers * bits // 8) if isinstance(numbers, int) else numbers * bits / 8


def format_name(argument: str, dtype: Any) -> str:
    """The name of a storage format, given by name or as a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in BITS:
        raise OptionError(complaint(argument, repr(dtype), f"one of {', '.join(BITS)}"))
    return name


def compute_format(dtype: Any) -> str:
    """The format in which numbers are multiplied: quantised weights are converted first."""
    return "float32" if dtype == "float32" else "float16" if dtype == "float16" else "bfloat16"


def rate_format(dtype: Any) -> str:
    """The format whose rate a machine multiplies weights at, where it has such a rate: 8-bit ones have their own."""
    return str(dtype) if dtype in ("int8", "fp8") else compute_format(dtype)


def is_symbol(size: Any) -> bool:
    return hasattr(size, "free_symbols")


def check_size(argument: str, size: Any, least: int = 1, most: int = LARGEST) -> None:
    """Check for a whole number from `least` to `most`; symbols pass."""
    if is_symbol(size):
        return
    wanted = f"a whole number from {least} to {'2^63 - 1' if most == LARGEST else f'{most:,}'}"
    if isinstance(size, bool) or not isinstance(size, int):
        raise OptionTypeError(complaint(argument, repr(size), wanted))
    if not least <= size <= most:
        raise OptionError(complaint(argument, size, wanted))


def check_choice(argument: str, given: Any, known: Iterable[Any]) -> None:
    """Check for one of the known values."""
    if given not in (known := tuple(known)):
        raise OptionError(complaint(argument, repr(given), f"one of {', '.join(known)}"))


def check_number(argument: str, given: Any, wanted: str = "a positive number", zero: bool = False) -> None:
    """Check for a finite number above 0, or for 0."""
    number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not number or given < 0 or (given == 0 and not zero):
        raise OptionError(complaint(argument, repr(given), wanted))


def minimum(one: Number, other: Number) -> Number:
    """The smaller of two integers; with symbols, the first."""
    return min(one, other) if isinstance(one, int) and isinstance(other, int) else one
