"""A call of attention described by sizes, kinds and a seed, so that it prints as the code that makes it again.

A mask or a sink holds tensors, and a printed tensor cannot be pasted back. A `Spec` describes it by
numbers, names and seeds; `build_mask` and `build_similarity` turn a spec into qkv's objects. A
`CallCase` describes a whole call, builds its tensors on first use, and knows the oracle's answer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import and_, or_
from typing import Any

import torch
from torch import Tensor

from qkv import features
from qkv.masks import Causal, Dense, Extent, Padding, Predicate, Segments, Window
from qkv.similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Sigmoid, Similarity, Softmax
from qkv.states import KDA, AnyState, Decay, Delta, Gated, GatedDelta

from .oracle import Oracle, attended_pairs, oracle, sums_of_gates
from .oracle import to_caller_dims as to_caller_dims
from .poison import LAYOUTS, poison_masked
from .tolerance import ErrorBounds, compute_dtype, error_bounds


class Spec:
    """A kind, its parts and its options; prints as the call that makes it.

    Args:
        kind: The name of the kind.
        parts: Of a kind that joins others.
        options: By their names.

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


# Rules of batch, head, query and key.
def _scattered(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (7 * i + 3 * j + h + b) % 4 != 0


def _stripes(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i + j) % 3 == 0


def _nothing(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i + j + h + b) < 0


# Functions with names: cases are sent to other processes.
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


# Similarities whose specs have the options of the class.
KINDS: dict[str, Callable[..., AnySimilarity]] = {
    "softmax": Softmax,
    "sigmoid": Sigmoid,
    "argmax": Argmax,
    "polynomial": Polynomial,
}
FUNCTIONS = {"gaussian": gaussian, "rational": rational, "signed": signed}
MAPS = ("elu1", "relu", "identity", "squared", "positive_random", "polynomial")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build_similarity(spec: Spec | None, *, width: int, heads: int, dtype: torch.dtype) -> Any:
    """qkv's similarity for a spec; None stays None.

    `softmax` takes scale, softcap and sink (a number, or "heads" for one drawn logit per head), with
    seed (log_decay, the seed of gates, is left to `CallCase`); `sigmoid` scale and bias, which is given as
    a sink is; `argmax`; `polynomial` degree and offset;
    `feature_map` map (a name in `MAPS`) and normalize; `similarity` function (a name in `FUNCTIONS`) and normalize.

    >>> build_similarity(Spec("polynomial", degree=3), width=4, heads=1, dtype=torch.float32).degree
    3
    """
    if spec is None:
        return None
    options = dict(spec.options)
    made = {"positive_random": lambda: features.positive_random(width, 8, seed=1), "polynomial": features.polynomial}
    seed, _ = options.pop("seed", 0), options.pop("log_decay", None)
    for name in ("sink", "bias"):
        if options.get(name) == "heads":
            options[name] = torch.randn(heads, generator=generator(seed), dtype=torch.float64).to(dtype)
    if spec.kind == "feature_map":
        name = options.pop("map")
        return FeatureMap(made[name]() if name in made else getattr(features, name), **options)
    if spec.kind == "similarity":
        return Similarity(FUNCTIONS[options.pop("function")], **options)
    if spec.kind not in KINDS:
        raise ValueError(f"spec: got {spec!r}, wanted a similarity")
    return KINDS[spec.kind](**options)


def build_mask(spec: Spec | None, extent: Extent) -> Any:
    """qkv's mask for a spec; None stays None.

    `causal` offset; `window` left, right, offset; `padding` lengths, or keep_seed or drop_seed;
    `segments` query and key; `dense` seed, density and axes (which of b, h, q, k it varies over);
    `predicate` rule (a name in `RULES`); `and` and `or` join their parts.
    """
    if spec is None:
        return None
    options = dict(spec.options)
    integers = partial(torch.tensor, dtype=torch.int64)
    keys = (extent.batch, extent.len_k)
    match spec.kind:
        case "and" | "or":
            return reduce(and_ if spec.kind == "and" else or_, (build_mask(part, extent) for part in spec.parts))
        case "causal" | "window":
            return (Causal if spec.kind == "causal" else Window)(**options)
        case "padding" if "lengths" in options:
            return Padding(lengths=integers(options["lengths"]))
        case "padding" if "keep_seed" in options:
            return Padding(keep=torch.rand(keys, generator=generator(options["keep_seed"])) < 0.6)
        case "padding":
            return Padding(drop=torch.rand(keys, generator=generator(options["drop_seed"])) < 0.4)
        case "segments":
            return Segments(integers(options["query"]), integers(options["key"]))
        case "dense":
            return Dense(draw_keep(extent, **options))
        case "predicate":
            return Predicate(RULES[options["rule"]])
    raise ValueError(f"spec: got {spec!r}, wanted a mask")


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


def distance_terms(scores: Tensor, batch: Any, head: Any, query: Any, key: Any) -> Tensor:
    """A bias that is a function: less for distant keys, in proportion to the head, and more for each third key."""
    terms = 0.25 * ((batch + key) % 3) - 0.0625 * (head + 1) * (query - key).abs()
    return scores + terms.to(scores.dtype)


# States whose specs have the options per ("token" or "feature") and seed; "decay" has a rate or draws one per head.
STATES: dict[str, type[AnyState]] = {"gated": Gated, "delta": Delta, "gated_delta": GatedDelta, "kda": KDA}


def build_state(
    spec: Spec | None, shape: tuple[int, ...], *, heads: int, features: int, dtype: torch.dtype
) -> AnyState | None:
    """qkv's state for a spec, with gates of all sizes, 0 and 1 among them, and beta between 0 and 2.

    shape: that of beta, in the caller's dimensions: (batch, heads_kv, length).

    >>> build_state(Spec("kda", seed=1), (2, 3, 5), heads=3, features=7, dtype=torch.float32)
    KDA(<(2, 3, 5, 7)>, <(2, 3, 5)>)
    """
    if spec is None:
        return None
    options, source = dict(spec.options), generator(spec.options.get("seed", 0))
    if spec.kind == "decay":
        rate = options.get("rate")
        return Decay(torch.rand(heads, generator=source, dtype=torch.float64).to(dtype) if rate is None else rate)
    kind, per = STATES[spec.kind], options.get("per", "feature" if spec.kind == "kda" else "token")
    wide = (*shape, features) if per == "feature" else shape
    gate = draw_log_gates(wide, source, dtype)
    beta = 2 * torch.rand(shape, generator=source, dtype=torch.float64)
    beta = torch.where(beta < 0.3, 0.0, torch.where(beta > 1.7, 2.0, beta)).to(dtype)
    given = {"log_gate": gate, "beta": beta}
    return kind(**{field.name: given[field.name] for field in dataclasses.fields(kind)})


def draw_log_gates(shape: tuple[int, ...], source: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Logarithms of gates of all sizes, 0 and 1 among them."""
    gate = torch.nn.functional.logsigmoid(3 * torch.randn(shape, generator=source, dtype=torch.float64) + 1)
    chance = torch.rand(shape, generator=source, dtype=torch.float64)
    return torch.where(chance < 0.1, 0.0, torch.where(chance > 0.95, -math.inf, gate)).to(dtype)


DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}
VALUES = ("gaussian", "large", "integers", "poisoned")
BIASES = ("full", "row", "heads", "holes")


@dataclass(frozen=True, kw_only=True)
class CallCase:
    """A call that can be printed, pasted and run again.

    Args:
        dims: 4; 3 has no heads and 2 no batch either: those sizes must then be 1.
        values: "gaussian"; "large" has queries 30 times as long, so that softmax saturates; "integers" are
            exact in every dtype and full of ties; "poisoned" has NaN, infinity and 1e30 wherever nothing
            is attended.
        bias: None, one of `BIASES`, or "function", which is `distance_terms`.
        state: None or a spec for `build_state`; such a call is causal, with as many queries as keys.
        layout: a name in `qkv.testing.poison.LAYOUTS`; with "expanded" every batch row (with dims 2 every
            key) has the same keys and values, at stride 0.

    >>> case = CallCase(heads_q=2, len_q=1, len_k=3, mask=Spec("causal", offset=1), seed=5)
    >>> case
    CallCase(heads_q=2, len_q=1, len_k=3, mask=Spec('causal', offset=1), seed=5)
    >>> case.query.shape, case.gold.attended[0, 0].tolist()
    (torch.Size([1, 2, 1, 3]), [[True, True, False]])
    """

    batch: int = 1
    heads_q: int = 1
    heads_kv: int = 1
    len_q: int = 5
    len_k: int = 7
    width: int = 3
    width_v: int = 2
    dims: int = 4
    dtype: str = "float32"
    similarity: Spec | None = None
    mask: Spec | None = None
    bias: str | None = None
    state: Spec | None = None
    layout: str = "contiguous"
    values: str = "gaussian"
    seed: int = 0

    def __post_init__(self) -> None:
        heads = self.heads_q, self.heads_kv
        if (self.dims < 4 and heads != (1, 1)) or (self.dims < 3 and self.batch != 1):
            raise ValueError(f"dims: got {self.dims} with batch={self.batch} and heads={heads}, wanted sizes of 1")

    def __repr__(self) -> str:
        named = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        shown = (f"{field.name}={value!r}" for field, value in named if value != field.default)
        return f"CallCase({', '.join(shown)})"

    def replace(self, **changes: Any) -> CallCase:
        """The same call with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def extent(self) -> Extent:
        return Extent(self.batch, self.heads_q, self.len_q, self.len_k, self.dims)

    @property
    def kind(self) -> str:
        """Which of the similarities this is."""
        return "softmax" if self.similarity is None else self.similarity.kind

    @cached_property
    def built_similarity(self) -> Any:
        built = build_similarity(self.similarity, width=self.width, heads=self.heads_q, dtype=self.torch_dtype)
        if not self.forgets:
            return built
        assert self.similarity is not None
        shape = {4: (self.batch, self.heads_q), 3: (self.batch,), 2: ()}[self.dims]
        source = generator(self.similarity.options["log_decay"])
        return dataclasses.replace(built, log_decay=draw_log_gates((*shape, self.len_k), source, self.torch_dtype))

    @property
    def forgets(self) -> bool:
        """Whether the similarity has gates."""
        return self.similarity is not None and "log_decay" in self.similarity.options

    @cached_property
    def built_mask(self) -> Any:
        return build_mask(self.mask, self.extent)

    @cached_property
    def built_bias(self) -> Any:
        if self.bias == "function":
            return distance_terms
        return None if self.bias is None else draw_bias(self.extent, self.bias, self.seed + 3, self.torch_dtype)

    @cached_property
    def built_state(self) -> AnyState | None:
        shape = {4: (self.batch, self.heads_kv), 3: (self.batch,), 2: ()}[self.dims]
        sizes = {"heads": self.heads_kv, "features": self.width, "dtype": self.torch_dtype}
        return build_state(self.state, (*shape, self.len_k), **sizes)

    @cached_property
    def attended(self) -> Tensor:
        """Which query attends to which key: (batch, heads_q, len_q, len_k)."""
        bias = self.by_definition(self.built_similarity, self.built_bias)["bias"]
        allowed = attended_pairs(self.built_mask, bias, self.extent)
        return allowed if self.state is None else allowed.tril()

    @property
    def keep(self) -> Tensor:
        """`attended` in the caller's dimensions."""
        return to_caller_dims(self.attended, self.dims)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        query = self._draw(self.heads_q, self.len_q, self.width, 0)
        key = self._draw(self.heads_kv, self.len_k, self.width, 1)
        value = self._draw(self.heads_kv, self.len_k, self.width_v, 2)
        if self.state is not None and self.state.kind in (
            "delta",
            "gated_delta",
            "kda",
        ):  # longer keys make the state grow
            key = key / key.double().norm(dim=-1, keepdim=True).clamp(min=1.0).to(key.dtype)
        if self.values == "large":
            query = query * 30
        if self.layout == "expanded":
            key, value = (tensor[:1].expand_as(tensor).contiguous() for tensor in (key, value))
        if self.values == "poisoned":
            query, key, value = poison_masked(query, key, value, self.keep)
        lay_out = LAYOUTS[self.layout]
        return lay_out(query), lay_out(key), lay_out(value)

    query = property(lambda self: self.tensors[0])
    key = property(lambda self: self.tensors[1])
    value = property(lambda self: self.tensors[2])

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments of `qkv.attention`: query, key, value, similarity, mask, bias, and state where there is one."""
        given = {"similarity": self.built_similarity, "mask": self.built_mask, "bias": self.built_bias}
        given |= {} if self.state is None else {"state": self.built_state}
        return dict(zip(("query", "key", "value"), self.tensors, strict=True)) | given

    def with_tensors(self, **changed: Tensor) -> CallCase:
        """The same call with other queries, keys or values."""
        other = self.replace()
        other.__dict__["tensors"] = tuple((self.kwargs | changed)[name] for name in ("query", "key", "value"))
        return other

    @cached_property
    def gold(self) -> Oracle:
        """The oracle's answer."""
        rules = self.by_definition(self.built_similarity, self.built_bias)
        return oracle(*self.tensors, mask=self.keep, state=self.built_state, **rules)

    @cached_property
    def error_bounds(self) -> ErrorBounds:
        """The bounds that an answer's error must stay within."""
        rules = self.by_definition(self.built_similarity, self.built_bias, compute_dtype(self.torch_dtype))
        bounds = error_bounds(*self.tensors, self.gold, rules["similarity"], rules["bias"], self.built_state)
        if not self.forgets:
            return bounds
        # The sum of gates between two tokens is a difference of sums from the first token on, in float64.
        sums = self.built_similarity.log_decay.double().clamp(min=-1e8).nan_to_num(neginf=0.0).sum(-1).abs().max()
        off, parts = 4 * torch.finfo(torch.float64).eps * sums, dict(bounds.parts)
        for name, part in parts.items():
            size = part.magnitude if name == "out" else 1.0
            parts[name] = dataclasses.replace(part, rounding=part.rounding + off * size)
        return dataclasses.replace(bounds, parts=parts)

    def by_definition(self, similarity: Any, bias: Any, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
        """The similarity without gates, and what the oracle adds to the scores: the bias, and the sums of gates."""
        if callable(bias):
            sizes = (self.batch, self.heads_q, self.len_q, self.len_k)
            places = (
                torch.arange(n).reshape([-1 if k == axis else 1 for k in range(4)]) for axis, n in enumerate(sizes)
            )
            terms: Any = bias(torch.zeros(sizes, dtype=torch.float64), *places)
            bias = to_caller_dims(terms, self.dims).to(dtype)
        if not self.forgets:
            return {"similarity": similarity, "bias": bias}
        parts = self.built_mask.resolved(self.extent).parts()
        first = min(part.offset or 0 for part in parts if isinstance(part, Causal))
        real = torch.ones(self.batch, self.len_k, dtype=torch.bool)
        for part in parts:
            if isinstance(part, Padding):
                real &= attended_pairs(part, None, self.extent)[:, 0, 0]
        gates = similarity.log_decay.double().reshape(self.batch, self.heads_q, self.len_k)
        sums = to_caller_dims(sums_of_gates(gates, first, real, self.len_q), self.dims).to(dtype)
        return {"similarity": similarity.without_decay(), "bias": sums if bias is None else sums + bias}

    def _draw(self, heads: int, length: int, width: int, which: int) -> Tensor:
        shape, source = (self.batch, heads, length, width), generator(10 * self.seed + which)
        if self.values == "integers":
            numbers = torch.randint(-2, 3, shape, generator=source)
        else:
            numbers = torch.randn(shape, generator=source, dtype=torch.float64)
        return to_caller_dims(numbers, self.dims).to(self.torch_dtype)
