"""Cache and decode step of one layer's attention, for multi-head, grouped-query, multi-query and linear attention.

The lines are those that `plan` counts for the scores and the cache of one layer, without projections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .architecture import Model
from .blocks import model_cost, parts, state_bytes
from .ledger import Ledger, Number, as_sizes
from .lookup import read_data
from .machine import as_hardware
from .planning import first_size
from .sizes import check_choice

VARIANTS = ("MHA", "GQA", "MQA", "linear")
ITEM = "float32"  # format of queries, new keys and values, outputs and sums
# Bytes of the scales of a KVCache per token and head, key and value: in int8 one float32 each, in int4 a bfloat16 for
# each 32 channels.
SCALES: dict[str, Callable[[Number], Number]] = {"int8": lambda width: 8, "int4": lambda width: width / 8}


class DecodeCost(NamedTuple):
    """The cache of a variant and its next step.

    Attributes:
        cache_bytes: bytes of the cache, or of the linear state.
        step: the lines of the next decode step.
        scale_bytes: bytes of the scales of an int8 or int4 KVCache, which `cache_bytes` and `step` leave out, as
            `plan` does.
    """

    way: str
    kv_heads: Number
    cache_bytes: Number
    step: Ledger
    scale_bytes: Number


def past(
    way: str, *, batch: Number, heads: Number, kv_heads: Number, width: Number, tokens: Number, cache: Any = "float32"
) -> DecodeCost:
    """What attention keeps after `tokens` tokens of each sequence, and its next decode step.

    Args:
        way: "MHA", "GQA", "MQA", or "linear", whose state is sums of features as wide as a head, in float32.
        batch, heads, kv_heads, width, tokens: integers, symbols or names of symbols; kv_heads is for GQA and linear.
        cache: storage format of keys and values; queries, new tokens and outputs are float32.

    Returns:
        A `DecodeCost`.

    >>> found = past("GQA", batch=1, heads=32, kv_heads=8, width=128, tokens=4096, cache="bfloat16")
    >>> found.cache_bytes, found.step.line("cache: read").read, found.step.products
    (16777216, 16777216, 67125248)
    >>> past("linear", batch=1, heads=32, kv_heads=8, width=128, tokens=4096).cache_bytes
    528384
    """
    batch, heads, kv_heads, width, tokens = as_sizes(batch, heads, kv_heads, width, tokens)
    check_choice("way", way, VARIANTS)
    linear, own = way == "linear", {"MHA": heads, "MQA": 1}.get(way, kv_heads)
    model = Model(name=way, layers=1, d_model=heads * width, heads=heads, kv_heads=own, head_width=width)
    similarity = "linear" if linear else "softmax"
    by_part = parts(model_cost(model, batch, 1, tokens, weights=ITEM, cache=cache, similarity=similarity))
    kept = batch * state_bytes(model) if linear else model.cache_bytes(tokens, batch, cache)
    scales = 0
    if not linear and (of := SCALES.get(str(cache).removeprefix("torch."))):
        scales = batch * model.kv_heads * tokens * of(width)
    step = Ledger(way, (*by_part["scores"].lines, *by_part["cache"].lines))
    return DecodeCost(way, model.kv_heads, kept, step, scales)


def seconds_by_roofline(step: Ledger, hardware: Any, dtype: str = ITEM) -> float:
    """Time of a step on a machine: its flops or its bytes, whichever take longer. `plan` instead adds up parts, each
    with its own roofline.

    >>> from qkv.cost import Hardware
    >>> step = past("GQA", batch=1, heads=32, kv_heads=8, width=128, tokens=4096, cache="bfloat16").step
    >>> step.flops / 80e9, step.traffic / 8e9
    (0.0008473108, 0.002102784)
    >>> seconds_by_roofline(step, Hardware("mine", {"float32": 80e9}, 8e9, 2**34))
    0.002102784
    """
    machine = as_hardware(hardware)
    return max(step.flops / machine.rate(dtype), step.traffic / machine.bandwidth)


def smaller_from(way: str, **sizes: Any) -> int | None:
    """The first number of tokens at which the linear state is smaller than the cache of `way`; sizes as of `past`.

    >>> smaller_from("GQA", batch=1, heads=32, kv_heads=8, width=128, cache="bfloat16")
    130
    """
    state = past("linear", tokens=0, **sizes).cache_bytes
    return first_size(lambda tokens: past(way, tokens=tokens, **sizes).cache_bytes > state)


class Formulas(NamedTuple):
    """What `past` counts, as formulas in the letters of `qkv.cost.formulas`. held: bytes kept. intensity: flops of
    products per byte of cache."""

    held: str
    read: str
    written: str
    flops: str
    intensity: str


def formulas_of(way: str) -> Formulas:
    """Formulas of a variant, read from formulas.toml without SymPy.

    >>> formulas_of("GQA").held, formulas_of("GQA").intensity
    ('2·b·c·g·n·w', '2·h/(c·g)')
    """
    return Formulas(**read_data("formulas.toml")["past"][way])
