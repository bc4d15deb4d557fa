"""What a decoder keeps of its past, and what a step of its attention takes: four ways beside each other.

The lines are those that `plan` counts of one layer: its scores and its cache, without projections.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import OptionError, complaint
from .architecture import Model
from .blocks import model_cost, parts, state_bytes
from .ledger import Ledger, Number, as_sizes, join_ledgers
from .lookup import read_data
from .machine import as_hardware
from .planning import first_size

VARIANTS = ("MHA", "GQA", "MQA", "linear")
MEMBERS = ("scores", "cache")
ITEM = "float32"  # what queries, new keys, new values and answers are in; sums too
SCALES = {"int8": 8}  # bytes for a token and head, of a KVCache: one float32 for its key and one for its value


class DecodeCost(NamedTuple):
    """held: bytes that are kept of the past. step: the lines of the step that comes next. scales: bytes that a KVCache
    of int8 keeps beside its numbers, which neither of the two counts, as `plan` does not."""

    way: str
    kv_heads: Number
    held: Number
    step: Ledger
    scales: Number


def past(
    way: str, *, batch: Number, heads: Number, kv_heads: Number, width: Number, tokens: Number, cache: Any = "float32"
) -> DecodeCost:
    """After so many tokens of each sequence. way: "MHA", "GQA" with so many kv_heads, "MQA", or "linear": sums of
    feature maps as wide as a head, in float32, for each of kv_heads. cache: how keys and values are stored; queries,
    answers and what is new are float32. Sizes are numbers, symbols, or names of symbols.

    >>> found = past("GQA", batch=1, heads=32, kv_heads=8, width=128, tokens=4096, cache="bfloat16")
    >>> found.held, found.step.line("cache: read").read, found.step.products
    (16777216, 16777216, 67125248)
    >>> past("linear", batch=1, heads=32, kv_heads=8, width=128, tokens=4096).held
    528384
    """
    batch, heads, kv_heads, width, tokens = as_sizes(batch, heads, kv_heads, width, tokens)
    model = _layer(way, heads, kv_heads, width)
    similarity = _similarity_of(way)
    ledger = model_cost(model, batch, 1, tokens, weights=ITEM, cache=cache, similarity=similarity)
    by_part = parts(ledger)
    linear = similarity == "linear"
    held = batch * state_bytes(model) if linear else model.cache_bytes(tokens, batch, cache)
    scales = 0 if linear else batch * model.kv_heads * tokens * SCALES.get(str(cache).removeprefix("torch."), 0)
    return DecodeCost(way, model.kv_heads, held, join_ledgers(way, [by_part[name] for name in MEMBERS]), scales)


def seconds_by_roofline(step: Ledger, hardware: Any, dtype: str = ITEM) -> float:
    """How long one pass over everything takes on a machine: its flops or its bytes, whichever takes longer. `plan` has
    parts one after another instead, each with a roofline of its own.

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
    """The first number of tokens from which the linear state is smaller than what `way` keeps; sizes as of `past`.

    >>> smaller_from("GQA", batch=1, heads=32, kv_heads=8, width=128, cache="bfloat16")
    130
    """
    state = past("linear", tokens=0, **sizes).held
    return first_size(lambda tokens: past(way, tokens=tokens, **sizes).held > state)


class Formulas(NamedTuple):
    """What `past` counts, as text in the letters of `qkv.cost.formulas`: n tokens, c bytes a cached number. intensity:
    of products and memory alone, the same at every length."""

    held: str
    read: str
    written: str
    flops: str
    intensity: str


def formulas_of(way: str) -> Formulas:
    """Read from formulas.toml, so that SymPy is not loaded.

    >>> formulas_of("GQA").held, formulas_of("GQA").intensity
    ('2·b·c·g·n·w', '2·h/(c·g)')
    """
    return Formulas(**read_data("formulas.toml")["past"][way])


def symbolic(way: str) -> tuple[Number, ...]:
    """What formulas.toml is made of: `past` with symbols for sizes, in the order of Formulas."""
    import sympy

    from .symbolic import symbols

    b, h, g, w, n, c = symbols("b h g w n c")
    found = past(way, batch=b, heads=h, kv_heads=g, width=w, tokens=n, cache=c)
    step, moved = found.step, parts(found.step)["cache"].traffic
    return found.held, step.read, step.written, step.flops, sympy.cancel(step.products / moved)


def _layer(way: str, heads: Number, kv_heads: Number, width: Number) -> Model:
    if way not in VARIANTS:
        raise OptionError(complaint("way", repr(way), f"one of {', '.join(VARIANTS)}"))
    kept = {"MHA": heads, "MQA": 1}.get(way, kv_heads)
    return Model(name=way, layers=1, d_model=heads * width, heads=heads, kv_heads=kept, head_width=width)


def _similarity_of(way: str) -> str:
    return "linear" if way == "linear" else "softmax"
