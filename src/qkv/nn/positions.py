"""Position encodings, for the argument `positions=`.

`Rotary` rotates queries and keys, `ALiBi` and `RelativeBias` are added to scores, `Learned` and `Sinusoidal` are added
to the input. All take a `PositionRange`, so that a sequence decoded in chunks has the same positions as a whole one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..cache import KVCache, LinearState
from ..cache.inputs import check_lengths
from ..cache.kv import check_cache
from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_size, compute_dtype
from ..shapes import Float, Int
from .module import ConfiguredModule, check_flag, check_number, local_part


class PositionRange(NamedTuple):
    """The positions start, start + 1, …, start + n − 1 of n tokens, or those of `ids`.

    start: An integer, or a tensor with one integer or one per row of the batch. Padding may have negative positions.
    end: Number of positions up to the last real token of the longest row.
    ids: The position of each token where they do not follow one another, as in packed documents.
    """

    start: Int[Tensor, "*batch"] | int
    n: int
    end: int
    ids: Int[Tensor, "*batch n"] | None = None

    def at(self, device: torch.device) -> Int[Tensor, "*batch n"]:
        """The position of each token."""
        if self.ids is not None:
            return self.ids.to(device)
        offsets = torch.arange(self.n, device=device)
        return offsets + self.start.to(device).unsqueeze(-1) if isinstance(self.start, Tensor) else offsets + self.start

    def angles(self, width: int, base: float, device: torch.device) -> Float[Tensor, "*batch n pairs"]:
        """pθ_i with θ_i = base^(−2i/width); in float32, an angle at position 100,000 is wrong in the third digit."""
        pair = torch.arange(0, width, 2, dtype=torch.float64, device=device)
        return self.at(device).unsqueeze(-1) * base ** (-pair / width)


def positions_after(cache: KVCache | LinearState, n: int, lengths: Any, padding: str) -> PositionRange:
    """The positions of n new tokens after those in a cache, row by row."""
    if not isinstance(cache, LinearState):
        check_cache(cache)
    counts, left = check_lengths(lengths, padding, cache.batch, n)
    past = cache.lengths
    new = torch.full_like(past, n) if counts is None else torch.from_numpy(counts)
    start = past - (n - new) if left else past
    return PositionRange(start[0] if bool((start == start[0]).all()) else start, n, int((past + new).max()))


class Positions(ConfiguredModule):
    """Base class of the position encodings."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.init_options.items())

    def check_fit(self, width: int, heads: int, head_width: int) -> None:
        """Raise an error if the sizes of an attention do not fit."""


class Rotary(Positions):
    """Rotates each pair of features (a, b) of a head at position p: (a cos pθ − b sin pθ, b cos pθ + a sin pθ).

    θ_i = base^(−2i/w) for the i-th of w/2 pairs, so that q_p·k_r depends on p − r only. There are no parameters.

    Args:
        base: Base of the angles.
        fraction: The fraction of the head's width that is rotated: the first w features. w must be even.
        interleaved: Whether pairs are the features 2i and 2i + 1; otherwise they are i and i + w/2, as in Llama.

    >>> x = torch.ones(1, 1, 3, 4)  # (batch, heads, n, width)
    >>> rotated, = Rotary()(x)
    >>> torch.equal(rotated[:, :, 0], x[:, :, 0]), torch.allclose(rotated.norm(dim=-1), x.norm(dim=-1))
    (True, True)
    """

    def __init__(self, base: float = 10000.0, fraction: float = 1.0, interleaved: bool = False) -> None:
        super().__init__()
        self.base = check_number("base", base, "a positive number")
        self.fraction = check_number("fraction", fraction, "a number above 0 and at most 1", high=1.0)
        self.interleaved = check_flag("interleaved", interleaved)

    def check_fit(self, width: int, heads: int, head_width: int) -> None:
        self._rotated_width(head_width)

    def _rotated_width(self, head_width: int) -> int:
        rotated = round(self.fraction * head_width)
        if rotated % 2 or not rotated or abs(rotated - self.fraction * head_width) > 1e-6 * head_width:
            given = f"{self.fraction} of {head_width} features"
            raise OptionError(complaint("fraction", given, "an even number of features, which are rotated in pairs"))
        return rotated

    def forward(
        self,
        *heads: Float[Tensor, "*batch n width"],
        position_range: PositionRange | None = None,
        position_ids: Int[Tensor, "*rows n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch n width"], ...]:
        """Rotate queries, keys or both of the same tokens.

        Args:
            *heads: (batch, heads, n, width), or as in `qkv.attention` (batch, n, width) or (n, width) for one head.
            position_range: The positions of the tokens; 0, 1, 2, … if None.
            position_ids: Instead, the position of each token, integers (n,) or (batch, n).

        Returns:
            The rotated tensors, in the order given.
        """
        if not heads or not all(isinstance(x, Tensor) and 2 <= x.dim() <= 4 for x in heads):
            found = ", ".join(f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x) for x in heads)
            wanted = "(batch, heads, n, width), (batch, n, width) or (n, width)"
            raise ShapeError(complaint("Rotary", found or "no tensor", wanted))
        first = heads[0]
        n, rotated = first.shape[-2], self._rotated_width(first.shape[-1])
        for x in heads[1:]:
            if x.shape[-2:] != first.shape[-2:]:
                wanted = f"{tuple(first.shape[-2:])} at the end, as the first: tokens and width of a head"
                raise ShapeError(complaint("Rotary", f"shape {tuple(x.shape)}", wanted))
        if position_ids is not None:
            position_range = self._check_ids(position_ids, first, position_range)
        position_range = PositionRange(0, n, n) if position_range is None else position_range
        angle = position_range.angles(rotated, self.base, first.device)
        dtype = compute_dtype(first.dtype)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return tuple(self._rotate(x, rotated, cos, sin) for x in heads)

    def _check_ids(self, ids: Any, first: Tensor, position_range: PositionRange | None) -> PositionRange:
        if position_range is not None:
            raise OptionError(complaint("position_ids", "position_range as well", "one of them"))
        ids = torch.as_tensor(ids)
        if ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
            raise OptionTypeError(complaint("position_ids", f"{ids.dtype}", "integers"))
        n, batch = first.shape[-2], first.shape[:-2][:1]
        if tuple(ids.shape) not in ((n,), (1, n), (*batch, n)):
            wanted = f"shape {(n,)}" + (f" or {(*batch, n)}" if batch else "")
            raise ShapeError(complaint("position_ids", f"shape {tuple(ids.shape)}", wanted))
        return PositionRange(0, n, n, ids if ids.dim() <= first.dim() - 1 else ids[0])

    def _rotate(self, x: Tensor, rotated: int, cos: Tensor, sin: Tensor) -> Tensor:
        if x.dim() == 4:
            cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # the same for every head
        part, rest = x[..., :rotated], x[..., rotated:]
        a, b = (part[..., 0::2], part[..., 1::2]) if self.interleaved else part.chunk(2, dim=-1)
        pairs = a * cos - b * sin, b * cos + a * sin
        part = torch.stack(pairs, dim=-1).flatten(-2) if self.interleaved else torch.cat(pairs, dim=-1)
        return torch.cat([part.to(x.dtype), rest], dim=-1)


class BiasPositions(Positions):
    """A bias for each head and offset j − i, added to the score of query i and key j."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = check_size("heads", heads)

    def check_fit(self, width: int, heads: int, head_width: int) -> None:
        if heads != self.heads:
            raise ShapeError(complaint("positions", f"{self.heads} heads", f"{heads}, the heads of the attention"))

    def distance_bias(
        self, offsets: Int[Tensor, "*batch offsets"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch heads offsets"]:
        """The bias of keys at these offsets j − i from their query."""
        raise NotImplementedError

    def forward(
        self, position_range: PositionRange, keys: int, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "*batch heads n keys"]:
        """The bias of queries in a range and keys at positions 0 … keys − 1; dtype is that of the queries."""
        n, dtype = position_range.n, compute_dtype(dtype)
        if not n or not keys:
            return torch.zeros(self.heads, n, keys, dtype=dtype, device=device)
        # The bias is constant along diagonals: compute n + keys − 1 values, of which each query reads a slice.
        offsets = torch.arange(1 - n, keys, device=device)
        offsets = offsets - position_range._replace(n=1, ids=None).at(device)
        return self.distance_bias(offsets, dtype).unfold(-1, keys, 1).flip(-2)


class ALiBi(BiasPositions):
    """−slope_h·|i − j|, added to the score of query i and key j (Press, Smith and Lewis, 2022).

    For a power of two, slope_h = 2^(−8(h + 1)/heads). For other numbers of heads, the slopes of the next smaller power
    of two come first, then every other slope of twice that power, as in the paper's code. There are no parameters.
    Similarities other than `Softmax` refuse a bias.

    >>> ALiBi(heads=8).slopes()
    [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    """

    def slopes(self) -> list[float]:
        """One slope per head."""
        below = 1 << (self.heads.bit_length() - 1)
        slopes = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
        return slopes + [2.0 ** (-4.0 * (2 * h + 1) / below) for h in range(self.heads - below)]

    def distance_bias(self, offsets: Tensor, dtype: torch.dtype) -> Tensor:
        slopes = torch.tensor(self.slopes(), dtype=dtype, device=offsets.device)
        return -slopes.unsqueeze(-1) * offsets.abs().to(dtype).unsqueeze(-2)


class RelativeBias(BiasPositions):
    """T5's learned bias: weight[bucket(j − i), head], added to the score of query i and key j.

    Half of the buckets are for single distances; the others grow logarithmically up to `farthest`, and larger distances
    share the last one. The parameter `weight` is (buckets, heads).

    Args:
        heads: Query heads.
        buckets: Number of buckets.
        farthest: Distance from which on all keys share the last bucket.
        bidirectional: Whether half of the buckets are for keys after their query. If False, such keys share the bucket
            of distance 0; causal attention does not use them.

    >>> RelativeBias(heads=2, buckets=8, farthest=16).bucket(torch.tensor([-100, -2, -1, 0, 1, 2, 100]))
    tensor([3, 2, 1, 0, 5, 6, 7])
    """

    def __init__(self, heads: int, *, buckets: int = 32, farthest: int = 128, bidirectional: bool = True) -> None:
        super().__init__(heads)
        self.bidirectional = check_flag("bidirectional", bidirectional)
        self.buckets = check_size("buckets", buckets, least=4 if bidirectional else 2)
        if bidirectional and self.buckets % 2:
            raise OptionError(complaint("buckets", buckets, "an even number: one half for each direction"))
        single = self.buckets // (4 if bidirectional else 2)
        self.farthest = check_size("farthest", farthest, least=single + 1)
        self.weight = nn.Parameter(torch.empty(self.buckets, self.heads))
        nn.init.normal_(self.weight, std=0.02)

    def bucket(self, offsets: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        """The buckets of keys at these offsets j − i from their query."""
        per_direction = self.buckets // 2 if self.bidirectional else self.buckets
        ahead = (offsets > 0) * per_direction if self.bidirectional else torch.zeros_like(offsets)
        distance = offsets.abs() if self.bidirectional else (-offsets).clamp(min=0)
        single = per_direction // 2
        # In float32 and in T5's order of operations, so that bucket boundaries are the same.
        growth = torch.log(distance.float().clamp(min=1) / single) / math.log(self.farthest / single)
        far = (single + (growth * (per_direction - single)).to(offsets.dtype)).clamp(max=per_direction - 1)
        return ahead + torch.where(distance < single, distance, far)

    def distance_bias(self, offsets: Tensor, dtype: torch.dtype) -> Tensor:
        return nn.functional.embedding(self.bucket(offsets), local_part(self.weight)).to(dtype).transpose(-1, -2)


class AddedPositions(Positions):
    """A vector for each position, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = check_size("width", width)

    def check_fit(self, width: int, heads: int, head_width: int) -> None:
        if width != self.width:
            raise ShapeError(complaint("positions", f"width {self.width}", f"{width}, the width of the input"))


class Learned(AddedPositions):
    """x_i + E_i with a learned embedding E, (length, width). Positions beyond `length` are refused.

    >>> Learned(length=5, width=3)(torch.zeros(2, 4, 3), PositionRange(0, 4, 4)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__(width)
        self.length = check_size("length", length)
        self.embedding = nn.Embedding(self.length, self.width)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "batch n width"], position_range: PositionRange
    ) -> Float[Tensor, "batch n width"]:
        if (end := position_range.end) > self.length:
            hint = f"make it Learned(length={end}, width={self.width}), or take Rotary or Sinusoidal"
            raise ShapeError(complaint("positions", f"{end} positions", f"at most {self.length}, its length", hint))
        # What lies outside is padding that does not count.
        return x + self.embedding(position_range.at(x.device).clamp(0, self.length - 1))


class Sinusoidal(AddedPositions):
    """x_p + PE_p, with PE_{p, 2i} = sin(p·base^(−2i/width)) and PE_{p, 2i+1} = cos(p·base^(−2i/width)).

    The encoding of "Attention is all you need", for any length; there are no parameters.

    >>> Sinusoidal(width=4)(torch.zeros(1, 2, 4), PositionRange(0, 2, 2))[0, 0]
    tensor([0., 1., 0., 1.])
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__(width)
        self.base = check_number("base", base, "a positive number")

    def forward(
        self, x: Float[Tensor, "batch n width"], position_range: PositionRange
    ) -> Float[Tensor, "batch n width"]:
        angle = position_range.angles(self.width, self.base, x.device)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., : self.width]
        return x + table.to(x.dtype)


def check_positions(given: Any, width: int, heads: int, head_width: int) -> Positions | None:
    """Check positions against the sizes of an attention."""
    if given is None:
        return None
    if not isinstance(given, Positions):
        text = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        wanted = "an instance of Rotary, ALiBi, RelativeBias, Learned or Sinusoidal, or None"
        raise OptionTypeError(complaint("positions", text, wanted))
    given.check_fit(width, heads, head_width)
    return given
