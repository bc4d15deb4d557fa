"""Random calls for the tests of executed work: every size another prime, and each call told in both languages."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch

import qkv
from qkv.cost.dense_passes import Cells
from qkv.cost.sizes import Sizes
from qkv.masks import Extent, Mask

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Draw(NamedTuple):
    sizes: Sizes
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.query, self.key, self.value

    @property
    def extent(self) -> Extent:
        return Extent(self.sizes.batch, self.sizes.heads, self.sizes.len_q, self.sizes.len_k)

    def learning(self) -> Draw:
        for tensor in self.tensors:
            tensor.requires_grad_()
        return self


def draw(rng: random.Random, dtype: torch.dtype, lengths: tuple[int, ...] = (11, 13, 17, 19, 23, 29)) -> Draw:
    batch, heads_kv, group = rng.sample((2, 3, 5), 3)
    group = rng.choice((1, group))
    len_q, len_k = rng.sample(lengths, 2)
    width, width_v = rng.sample([p for p in (7, 31, 37) if p not in (len_q, len_k)], 2)
    sizes = Sizes(batch, heads_kv * group, heads_kv, len_q, len_k, width, width_v)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return Draw(
        sizes,
        numbers(batch, sizes.heads, len_q, width),
        numbers(batch, heads_kv, len_k, width),
        numbers(batch, heads_kv, len_k, width_v),
    )


def draw_mask(rng: random.Random, sizes: Sizes, kinds: tuple[str, ...]) -> tuple[Mask | None, Cells | None]:
    batch, heads, len_q, len_k = sizes.batch, sizes.heads, sizes.len_q, sizes.len_k
    kind = rng.choice(kinds)
    if kind == "none":
        return None, None
    offset = rng.randrange(-3, len_k)
    if kind == "causal":
        return qkv.Causal(offset=offset), Cells(1, 1, len_q, len_k, "diagonal")
    if kind == "window":
        return qkv.Window(rng.randrange(5), rng.randrange(5), offset), Cells(1, 1, len_q, len_k, "window")
    if kind == "left":
        return qkv.Window(left=rng.randrange(5), offset=offset), Cells(1, 1, len_q, len_k, "diagonal")
    if kind == "lengths":
        lengths = [rng.randrange(len_k + 1) for _ in range(batch)]
        return qkv.Padding(lengths=lengths), Cells(batch, 1, 1, len_k, "lengths")
    shape = [rng.choice((1, full)) for full in (batch, heads, len_q, len_k)]
    keep = torch.rand(shape, generator=torch.Generator().manual_seed(rng.randrange(2**31))) < 0.7
    return qkv.Dense(keep), Cells(*keep.shape)  # pyright: ignore[reportArgumentType]
