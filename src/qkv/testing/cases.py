"""One call of attention as a recipe: sizes, kinds and a seed.

A `CallCase` prints as the code that makes it again, builds its tensors when asked, and knows what the
oracle says about them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from qkv.masks import Extent

from .oracle import Oracle, attended_pairs, oracle
from .poison import LAYOUTS, poison_masked
from .specs import Spec, build_mask, build_similarity, draw_bias, generator
from .tolerance import Yardstick, yardstick

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
VALUES = ("gaussian", "large", "integers", "poisoned")
BIASES = ("full", "row", "heads", "holes")


@dataclass(frozen=True, kw_only=True)
class CallCase:
    """A call that can be printed, pasted and run again.

    dims 3 has no heads and dims 2 no batch either: those sizes must then be 1. values: "gaussian";
    "large" has queries 30 times as long, so that softmax saturates; "integers" are exact in every dtype
    and full of ties; "poisoned" has NaN, infinity and 1e30 wherever nothing is attended. bias: None or
    one of `BIASES`. layout: a name out of `qkv.testing.poison.LAYOUTS`; with "expanded" every batch row
    (with dims 2 every key) has the same keys and values, at stride 0.

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
    layout: str = "contiguous"
    values: str = "gaussian"
    seed: int = 0

    def __post_init__(self) -> None:
        heads = self.heads_q, self.heads_kv
        if (self.dims < 4 and heads != (1, 1)) or (self.dims < 3 and self.batch != 1):
            raise ValueError(f"dims={self.dims} has no room for batch={self.batch}, heads={heads}")

    def __repr__(self) -> str:
        named = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        shown = (f"{field.name}={value!r}" for field, value in named if value != field.default)
        return f"CallCase({', '.join(shown)})"

    def but(self, **changes: Any) -> CallCase:
        """The same recipe with some things changed."""
        return dataclasses.replace(self, **changes)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def extent(self) -> Extent:
        return Extent(self.batch, self.heads_q, self.len_q, self.len_k, self.dims)

    @property
    def kind(self) -> str:
        """Which of the five similarities this is."""
        return "softmax" if self.similarity is None else self.similarity.kind

    @property
    def normalized(self) -> bool:
        """Whether the weights of a row sum to 1."""
        return self.similarity is None or self.similarity.options.get("normalize", True)

    @cached_property
    def built_similarity(self) -> Any:
        return build_similarity(self.similarity, width=self.width, heads=self.heads_q, dtype=self.torch_dtype)

    @cached_property
    def built_mask(self) -> Any:
        return build_mask(self.mask, self.extent)

    @cached_property
    def built_bias(self) -> Tensor | None:
        return None if self.bias is None else draw_bias(self.extent, self.bias, self.seed + 3, self.torch_dtype)

    @cached_property
    def attended(self) -> Tensor:
        """Which query attends to which key: (batch, heads_q, len_q, len_k)."""
        return attended_pairs(self.built_mask, self.built_bias, self.extent)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        query = self._draw(self.heads_q, self.len_q, self.width, 0)
        key = self._draw(self.heads_kv, self.len_k, self.width, 1)
        value = self._draw(self.heads_kv, self.len_k, self.width_v, 2)
        if self.values == "large":
            query = query * 30
        if self.layout == "expanded":
            key, value = (tensor[:1].expand_as(tensor).contiguous() for tensor in (key, value))
        if self.values == "poisoned":
            query, key, value = poison_masked(query, key, value, as_called(self.attended, self.dims))
        query, key, value = (LAYOUTS[self.layout](tensor) for tensor in (query, key, value))
        return query, key, value

    @property
    def query(self) -> Tensor:
        return self.tensors[0]

    @property
    def key(self) -> Tensor:
        return self.tensors[1]

    @property
    def value(self) -> Tensor:
        return self.tensors[2]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments of `qkv.attention`: query, key, value, similarity, mask and bias."""
        names = ("query", "key", "value")
        options = {"similarity": self.built_similarity, "mask": self.built_mask, "bias": self.built_bias}
        return {**dict(zip(names, self.tensors, strict=True)), **options}

    @cached_property
    def gold(self) -> Oracle:
        """What the oracle says."""
        mask = as_called(self.attended, self.dims)
        return oracle(*self.tensors, similarity=self.built_similarity, mask=mask, bias=self.built_bias)

    @cached_property
    def measure(self) -> Yardstick:
        """What an answer's error is measured by."""
        return yardstick(*self.tensors, self.gold, self.built_similarity, self.built_bias)

    def _draw(self, heads: int, length: int, width: int, which: int) -> Tensor:
        shape = {4: (self.batch, heads, length, width), 3: (self.batch, length, width), 2: (length, width)}
        source = generator(10 * self.seed + which)
        if self.values == "integers":
            numbers = torch.randint(-2, 3, shape[self.dims], generator=source).double()
        else:
            numbers = torch.randn(shape[self.dims], generator=source, dtype=torch.float64)
        return numbers.to(self.torch_dtype)


def as_called(tensor: Tensor, dims: int) -> Tensor:
    """(batch, heads, …) in the caller's dimensions: without heads for 3, without a batch for 2."""
    return tensor if dims == 4 else tensor[:, 0] if dims == 3 else tensor[0, 0]
