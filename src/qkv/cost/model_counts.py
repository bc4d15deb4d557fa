"""Parameters, operations and bytes of a model by part, for a pass, a decode step or a training step.

A size is a whole number, or a name: then the figures are formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import OptionError, complaint
from .architecture import Model
from .blocks import PARTS, model_cost, parts
from .ledger import Ledger
from .polynomial import Polynomial
from .sizes import check_choice, format_name, storage_bytes

PHASES = ("forward", "decode", "training")
NORMS = ("rms", "layer", "none")
DEFAULT_LENGTH = 1024
# Sizes by the names that commands and tools have for them, and the fields of `Model`.
SIZES = {
    "layers": "layers", "width": "d_model", "heads": "heads", "kv_heads": "kv_heads", "head_width": "head_width",
    "ff": "d_ff", "gated": "gated", "vocabulary": "vocabulary", "tied": "tied", "experts": "experts",
    "active": "experts_active",
}  # fmt: skip


def read_size(name: str, given: Any) -> Any:
    """A whole number from 1 on, or a name for formulas.

    >>> read_size("width", "4,096"), str(read_size("width", "d"))
    (4096, 'd')
    """
    written = str(given).strip().replace(",", "")
    if written.isdecimal():
        if int(written) < 1:
            raise OptionError(complaint(name, repr(given), "a whole number of at least 1, or a name"))
        return int(written)
    if not written.isidentifier():
        raise OptionError(complaint(name, repr(given), "a whole number of at least 1, or a name such as d or d_ff"))
    return Polynomial.name(written)


def with_options(model: Model, biases: bool | None = None, norm: str | None = None) -> Model:
    """The model with a bias in every projection or none, and with other norms."""
    if biases is not None:
        model = replace(model, qkv_bias=biases, out_bias=biases, ff_bias=biases)
    if norm is not None:
        there = norm != "none"
        model = replace(model, norm=norm, norms_per_layer=2 if there else 0, final_norm=there)
    return model


def sized_model(sizes: Mapping[str, Any], biases: bool | None = None, norm: str | None = None) -> Model:
    """The model of sizes by the names of `SIZES`; one head where none are given."""
    given = {"heads": 1, **{name: value for name, value in sizes.items() if value is not None}}
    if missing := [name for name in ("layers", "width") if name not in given]:
        raise OptionError(complaint(" and ".join(missing), "nothing", "the sizes of a model, or a model's name"))
    if given.get("experts") and "active" not in given:
        raise OptionError(complaint("active", "nothing, with experts", "the experts that each token uses"))
    fields: dict[str, Any] = {}
    for name, value in given.items():
        fields[SIZES[name]] = value if isinstance(value, bool) else read_size(name, value)
    return with_options(Model(name="sizes by hand", **fields), biases, norm)


def model_counts(
    model: Model, length: Any = None, batch: Any = 1, *, phase: str = "forward", causal: bool = False,
    weights: str = "bfloat16",
) -> dict[str, Any]:  # fmt: skip
    """Every figure by name: exact whole numbers, or formulas where a size is a name.

    Args:
        model: the model.
        length: tokens of each sequence; by default 1024 or the model's limit, and n where sizes are names.
        batch: sequences.
        phase: "forward", "decode" (one token, with the others in the cache) or "training".
        causal: count causal pairs, not all pairs of tokens.
        weights: the storage format of all numbers.
    """
    check_choice("phase", phase, PHASES)
    if phase == "decode" and model.kind == "encoder":
        raise OptionError(complaint("phase", "'decode'", "forward or training: an encoder does not decode"))
    weights = format_name("weights", weights)
    length = _default_length(model) if length is None else length
    new, past = (1, length - 1) if phase == "decode" else (length, 0)
    pairs = True if phase == "decode" or causal else None if model.kind == "encoder" else False
    ledger = model_cost(model, batch, new, past, weights=weights, cache=weights, causal=pairs)
    times = 3 if phase == "training" else 1
    by_part, groups = {}, parts(ledger)
    for name in PARTS:
        own = sum(count for line, count in model.parameter_lines if line.partition(":")[0] == name)
        group = groups.get(name, Ledger(name, ()))
        work = {"products": times * group.products, "other": times * group.elementwise, "bytes": group.traffic}
        row = {"parameters": own, **work}
        if any(value != 0 for value in row.values()):
            by_part[name] = row
    total = {key: sum(row[key] for row in by_part.values()) for key in ("parameters", "products", "other", "bytes")}
    return {
        "model": model.name, "phase": phase, "pairs": "causal" if pairs or pairs is None else "all",
        "length": length, "batch": batch, "weights": weights, "parts": by_part, **total,
        "active_parameters": model.active_parameters, "weight_bytes": storage_bytes(model.parameters, weights),
        "cache_bytes_per_token": storage_bytes(model.cache_numbers, weights),
        "cache_bytes": model.cache_bytes(length, batch, weights),
        "causal": model.kind != "encoder",
    }  # fmt: skip


def plain_counts(value: Any) -> Any:
    """What `model_counts` gives, for JSON: formulas as texts."""
    if isinstance(value, Mapping):
        return {name: plain_counts(each) for name, each in value.items() if name != "causal"}
    return str(value) if isinstance(value, Polynomial) else value


def _default_length(model: Model) -> Any:
    if any(isinstance(getattr(model, name), Polynomial) for name in ("layers", "d_model", "heads")):
        return Polynomial.name("n")
    return min(DEFAULT_LENGTH, model.context or DEFAULT_LENGTH)
