"""Descriptions of masks and similarities that print as the code that makes them again.

A mask or a sink holds tensors, and a printed tensor cannot be pasted back. A `Spec` holds plain
numbers, names and seeds; `build_mask` and `build_similarity` turn it into qkv's objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from qkv import features
from qkv.masks import Causal, Dense, Extent, Padding, Predicate, Segments, Window
from qkv.similarity import Argmax, FeatureMap, Polynomial, Similarity, Softmax


class Spec:
    """A kind, its parts and its options; prints as the call that makes it.

    >>> Spec("and", Spec("causal", offset=2), Spec("padding", lengths=(3, 0)))
    Spec('and', Spec('causal', offset=2), Spec('padding', lengths=(3, 0)))
    """

    __slots__ = ("kind", "options", "parts")

    def __init__(self, kind: str, *parts: Spec, **options: Any) -> None:
        self.kind, self.parts, self.options = kind, parts, options

    def __repr__(self) -> str:
        shown = [repr(self.kind), *map(repr, self.parts)]
        return f"Spec({', '.join(shown + [f'{name}={value!r}' for name, value in self.options.items()])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def kinds(self) -> frozenset[str]:
        """This kind and those of every part.

        >>> sorted(Spec("or", Spec("causal"), Spec("dense", seed=1)).kinds())
        ['causal', 'dense', 'or']
        """
        return frozenset({self.kind}).union(*(part.kinds() for part in self.parts))


def _scattered(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (7 * query + 3 * key + head + batch) % 4 != 0


def _stripes(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query + key) % 3 == 0


def _nothing(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query + key + head + batch) < 0


RULES: dict[str, Callable[..., Any]] = {"scattered": _scattered, "stripes": _stripes, "nothing": _nothing}


def _distance(query: Tensor, key: Tensor) -> Tensor:
    return (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)


def gaussian(query: Tensor, key: Tensor) -> Tensor:
    """exp(−|q − k|² / 2 width): positive, so sums never vanish."""
    return torch.exp(-_distance(query, key) / (2 * query.shape[-1]))


def rational(query: Tensor, key: Tensor) -> Tensor:
    """1 / (1 + |q − k|²): positive, with heavy tails."""
    return 1 / (1 + _distance(query, key))


def signed(query: Tensor, key: Tensor) -> Tensor:
    """q·k + |q − k|² / 8: both signs, so sums can cancel."""
    return query @ key.transpose(-1, -2) + _distance(query, key) / 8


FUNCTIONS = {"gaussian": gaussian, "rational": rational, "signed": signed}
MAPS = ("elu1", "relu", "identity", "squared", "positive_random", "polynomial")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build_similarity(spec: Spec | None, *, width: int, heads: int, dtype: torch.dtype) -> Any:
    """qkv's similarity for a spec; None stays None.

    `softmax` takes scale, softcap and sink (a number, or "heads" for one drawn logit per head), with
    seed; `argmax`; `polynomial` degree and offset; `feature_map` map (a name out of `MAPS`) and
    normalize; `similarity` function (a name out of `FUNCTIONS`).

    >>> build_similarity(Spec("polynomial", degree=3), width=4, heads=1, dtype=torch.float32).degree
    3
    """
    if spec is None:
        return None
    options = dict(spec.options)
    match spec.kind:
        case "softmax":
            seed = options.pop("seed", 0)
            if options.get("sink") == "heads":
                options["sink"] = torch.randn(heads, generator=generator(seed), dtype=torch.float64).to(dtype)
            return Softmax(**options)
        case "argmax":
            return Argmax()
        case "polynomial":
            return Polynomial(**options)
        case "feature_map":
            return FeatureMap(_build_map(options.pop("map"), width), **options)
        case "similarity":
            return Similarity(FUNCTIONS[options["function"]])
    raise ValueError(f"{spec!r} is no similarity")


def _build_map(name: str, width: int) -> Callable[[Tensor], Tensor]:
    if name == "positive_random":
        return features.positive_random(width, 8, seed=1)
    if name == "polynomial":
        return features.polynomial(2)
    return getattr(features, name)


def build_mask(spec: Spec | None, extent: Extent) -> Any:
    """qkv's mask for a spec; None stays None.

    `causal` offset; `window` left, right, offset; `padding` lengths, or keep_seed or drop_seed;
    `segments` query and key; `dense` seed, density and axes (which of b, h, q, k it varies over);
    `predicate` rule (a name out of `RULES`); `and` and `or` join their parts.
    """
    if spec is None:
        return None
    options = dict(spec.options)
    match spec.kind:
        case "and":
            return reduce(lambda a, b: a & b, (build_mask(part, extent) for part in spec.parts))
        case "or":
            return reduce(lambda a, b: a | b, (build_mask(part, extent) for part in spec.parts))
        case "causal":
            return Causal(**options)
        case "window":
            return Window(**options)
        case "padding":
            return _build_padding(options, extent)
        case "segments":
            query, key = (torch.tensor(options[name], dtype=torch.int64) for name in ("query", "key"))
            return Segments(query, key)
        case "dense":
            return Dense(draw_keep(extent, **options))
        case "predicate":
            return Predicate(RULES[options["rule"]])
    raise ValueError(f"{spec!r} is no mask")


def _build_padding(options: dict[str, Any], extent: Extent) -> Padding:
    if "lengths" in options:
        return Padding(lengths=torch.tensor(options["lengths"], dtype=torch.int64))
    if "keep_seed" in options:
        return Padding(keep=torch.rand(extent.batch, extent.len_k, generator=generator(options["keep_seed"])) < 0.6)
    return Padding(drop=torch.rand(extent.batch, extent.len_k, generator=generator(options["drop_seed"])) < 0.4)


def draw_keep(extent: Extent, *, seed: int, density: float = 0.6, axes: str = "bhqk") -> Tensor:
    """A random boolean tensor that broadcasts, right-aligned, to the caller's scores.

    >>> draw_keep(Extent(2, 3, 5, 7, 4), seed=0, axes="hk").shape
    torch.Size([3, 1, 7])
    """
    named = zip("bhqk", (extent.batch, extent.heads, extent.len_q, extent.len_k), strict=True)
    seen = [(axis, size) for axis, size in named if axis in {4: "bhqk", 3: "bqk", 2: "qk"}[extent.dims]]
    while seen and seen[0][0] not in axes:
        seen = seen[1:]
    shape = [size if axis in axes else 1 for axis, size in seen]
    return torch.rand(shape, generator=generator(seed)) < density


def draw_bias(extent: Extent, kind: str, seed: int, dtype: torch.dtype) -> Tensor:
    """Numbers to add to the scores: "full", "row" (one per key), "heads" (as ALiBi), "holes" (some −inf)."""
    axes = {"full": "bhqk", "row": "k", "heads": "hqk", "holes": "bhqk"}[kind]
    shape = draw_keep(extent, seed=seed, axes=axes).shape
    numbers = torch.randn(shape, generator=generator(seed + 1), dtype=torch.float64)
    if kind == "holes":
        numbers[draw_keep(extent, seed=seed, density=0.3, axes=axes)] = -math.inf
    return numbers.to(dtype)
