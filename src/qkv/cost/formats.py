"""How many bytes numbers take in a storage format; and sizes that are whole numbers, or symbols."""

from __future__ import annotations

from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from .ledger import Number

# Of quantised formats only the numbers are counted: scales add a few percent, differently in every scheme.
BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "int4": 4}
LARGEST = 2**63 - 1


def stored(numbers: Number, dtype: Any) -> Number:
    """Bytes of so many numbers: of a format by name, or of so many bytes each. Never half a byte.

    >>> stored(7, "bfloat16"), stored(7, "int4"), stored(7, 4)
    (14, 4, 28)
    """
    if is_symbol(dtype) or (isinstance(dtype, int) and not isinstance(dtype, bool)):
        return numbers * dtype
    bits = BITS[format_name("dtype", dtype)]
    return -(-numbers * bits // 8) if isinstance(numbers, int) else numbers * bits / 8


def format_name(argument: str, dtype: Any) -> str:
    """A storage format by its name, or torch's own dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in BITS:
        raise OptionError(complaint(argument, repr(dtype), f"one of {', '.join(BITS)}"))
    return name


def arithmetic(dtype: Any) -> str:
    """The format that numbers are multiplied in: quantised weights are widened on their way."""
    return "float32" if dtype == "float32" else "float16" if dtype == "float16" else "bfloat16"


def is_symbol(size: Any) -> bool:
    return hasattr(size, "free_symbols")


def check_size(argument: str, size: Any, least: int = 1) -> None:
    """A whole number that a 64-bit machine can count to; symbols pass."""
    if is_symbol(size):
        return
    if isinstance(size, bool) or not isinstance(size, int):
        raise OptionTypeError(complaint(argument, repr(size), "a whole number"))
    if not least <= size <= LARGEST:
        raise OptionError(complaint(argument, size, f"a whole number from {least} to 2^63 - 1"))


def smaller(one: Number, other: Number) -> Number:
    """The smaller of two; of symbols, the first."""
    return min(one, other) if isinstance(one, int) and isinstance(other, int) else one
