"""Where a token stands: objects for one slot, `positions=`.

`Rotary` turns queries and keys, `ALiBi` and `RelativeBias` add to scores, `Learned` and `Sinusoidal` add to the input.
All take the same `Place`, so that a sequence in one piece and a sequence in many have the same positions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..cache import KVCache, LinearState
from ..cache.kv import check_cache
from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_lengths, check_size, compute_dtype
from ..shapes import Float, Int
from .module import ConfiguredModule, check_number, local_part


class PositionRange(NamedTuple):
    """n tokens at the positions start, start + 1, … of their sequence.

    start: 0, or a tensor: a number, or one for each row of the batch. Tokens that do not count may come out negative.
    end: how many positions there are up to the last token that counts, in the longest row.
    """

    start: Int[Tensor, "*batch"] | int
    n: int
    end: int

    def at(self, device: torch.device) -> Int[Tensor, "*batch n"]:
        """The position of each token."""
        offsets = torch.arange(self.n, device=device)
        return offsets + self.start.to(device).unsqueeze(-1) if isinstance(self.start, Tensor) else offsets + self.start


def positions_after(cache: KVCache | LinearState, n: int, lengths: Any, padding: str) -> PositionRange:
    """The position_range of n new tokens behind those that a cache holds, row by row."""
    if not isinstance(cache, LinearState):
        check_cache(cache)
    counts, left = check_lengths(lengths, padding, cache.batch, n)
    past = cache.lengths
    new = torch.full_like(past, n) if counts is None else torch.from_numpy(counts)
    start = past - (n - new) if left else past
    return PositionRange(start[0] if bool((start == start[0]).all()) else start, n, int((past + new).max()))


class Positions(ConfiguredModule):
    """What the five kinds have in common."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.init_options.items())

    def check_fit(self, width: int, heads: int, head_width: int) -> None:
        """Refuse sizes of an attention that these positions are not for."""


class Rotary(Positions):
    """Turns each pair of features (a, b) of a head by its position p: (a cos pθ − b sin pθ, b cos pθ + a sin pθ).

    θ_i = base^(−2i/w) for the i-th of w/2 pairs, so that q_p·k_r depends on p − r only.
    fraction: the part of the head's width that is turned, w features, the first ones; the rest is left as it is.
    interleaved: pairs are the features 2i and 2i + 1; otherwise i and i + w/2, as in Llama.

    >>> x = torch.ones(1, 1, 3, 4)  # (batch, heads, n, width)
    >>> turned, = Rotary()(x)
    >>> torch.equal(turned[:, :, 0], x[:, :, 0]), torch.allclose(turned.norm(dim=-1), x.norm(dim=-1))
    (True, True)

    There are no parameters. A fraction of the width that is no even number of features is refused.
    """

    def __init__(self, base: float = 10000.0, fraction: float = 1.0, interleaved: bool = False) -> None:
        super().__init__()
        self.base = check_number("base", base, "a positive number")
        self.fraction = check_number(
            "fraction", fraction, "a part of the head's width, above 0 and at most 1", high=1.0
        )
        if not isinstance(interleaved, bool):
            raise OptionTypeError(complaint("interleaved", repr(interleaved), "True or False"))
        self.interleaved = interleaved

    def check_fit(self, width: int, heads: int, head_width: int) -> None:
        self._turned(head_width)

    def _turned(self, head_width: int) -> int:
        turned = round(self.fraction * head_width)
        if turned % 2 or not turned or abs(turned - self.fraction * head_width) > 1e-6 * head_width:
            given = f"{self.fraction} of {head_width} features"
            raise OptionError(complaint("fraction", given, "an even number of features: they are turned in pairs"))
        return turned

    def forward(
        self, *heads: Float[Tensor, "batch _ n width"], position_range: PositionRange | None = None
    ) -> tuple[Float[Tensor, "batch _ n width"], ...]:
        """Queries, keys or both of the same tokens, turned; without a position_range they stand at 0, 1, 2, …"""
        first = heads[0]
        if first.dim() != 4:
            hint = "call x.unsqueeze(1) for one head, x.unflatten(-1, (heads, -1)).transpose(1, 2) for several"
            wanted = "(batch, heads, length, width): angles depend on the width of a head"
            raise ShapeError(complaint("Rotary", f"shape {tuple(first.shape)}", wanted, hint))
        n, turned = first.shape[2], self._turned(first.shape[3])
        position_range = PositionRange(0, n, n) if position_range is None else position_range
        # In float64: at position 100 000 an angle in float32 is already off in the third digit.
        pair = torch.arange(0, turned, 2, dtype=torch.float64, device=first.device)
        angle = position_range.at(first.device).unsqueeze(-1) * self.base ** (-pair / turned)
        angle = angle.unsqueeze(-3)  # the same for every head
        dtype = compute_dtype(first.dtype)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return tuple(self._turn(x, turned, cos, sin) for x in heads)

    def _turn(self, x: Tensor, turned: int, cos: Tensor, sin: Tensor) -> Tensor:
        part, rest = x[..., :turned], x[..., turned:]
        a, b = (part[..., 0::2], part[..., 1::2]) if self.interleaved else part.chunk(2, dim=-1)
        pairs = a * cos - b * sin, b * cos + a * sin
        part = torch.stack(pairs, dim=-1).flatten(-2) if self.interleaved else torch.cat(pairs, dim=-1)
        return torch.cat([part.to(x.dtype), rest], dim=-1)


class BiasPositions(Positions):
    """A number for each head and distance j − i, added to the score of query i and key j."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = check_size("heads", heads)

    def check_fit(self, width: int, heads: int, head_width: int) -> None:
        if heads != self.heads:
            raise ShapeError(complaint("positions", f"{self.heads} heads", f"{heads}, as the attention has"))

    def distance_bias(
        self, offsets: Int[Tensor, "*batch offsets"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch heads offsets"]:
        """The bias of keys that stand so many positions behind their query."""
        raise NotImplementedError

    def forward(
        self, position_range: PositionRange, keys: int, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "*batch heads n keys"]:
        """For queries at a position_range and keys at 0 … keys − 1; dtype is that of the queries."""
        n, dtype = position_range.n, compute_dtype(dtype)
        if not n or not keys:
            return torch.zeros(self.heads, n, keys, dtype=dtype, device=device)
        # Along a diagonal it is always the same: n + keys − 1 numbers are made, and each query reads a run of them.
        offsets = torch.arange(1 - n, keys, device=device)
        start = position_range.start
        offsets = offsets - (start.to(device).unsqueeze(-1) if isinstance(start, Tensor) else start)
        return self.distance_bias(offsets, dtype).unfold(-1, keys, 1).flip(-2)


class ALiBi(BiasPositions):
    """−slope_h·|i − j|, added to the score of query i and key j (Press, Smith and Lewis, 2022).

    For a power of two, slope_h = 2^(−8(h + 1)/heads). For other numbers of heads: the slopes of the power of two below,
    then every other one of the slopes of twice that power, as in the paper's code.

    >>> ALiBi(heads=8).slopes()
    [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]

    There are no parameters. Similarities other than `Softmax` take no bias and refuse it.
    """

    def slopes(self) -> list[float]:
        """One for each head."""
        below = 1 << (self.heads.bit_length() - 1)
        slopes = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
        return slopes + [2.0 ** (-4.0 * (2 * h + 1) / below) for h in range(self.heads - below)]

    def distance_bias(self, offsets: Tensor, dtype: torch.dtype) -> Tensor:
        slopes = torch.tensor(self.slopes(), dtype=dtype, device=offsets.device)
        return -slopes.unsqueeze(-1) * offsets.abs().to(dtype).unsqueeze(-2)


class RelativeBias(BiasPositions):
    """T5's learned bias: weight[bucket(j − i), head], added to the score of query i and key j.

    Half of the buckets are for single distances, the others grow with the logarithm up to `farthest`; what is farther
    away shares the last one. bidirectional: half of all buckets is for keys ahead of their query. Otherwise keys ahead
    share the bucket of distance 0, which is right for a decoder, where nobody sees them. weight: (buckets, heads).

    >>> RelativeBias(heads=2, buckets=8, farthest=16).bucket(torch.tensor([-100, -2, -1, 0, 1, 2, 100]))
    tensor([3, 2, 1, 0, 5, 6, 7])
    """

    def __init__(self, heads: int, *, buckets: int = 32, farthest: int = 128, bidirectional: bool = True) -> None:
        super().__init__(heads)
        if not isinstance(bidirectional, bool):
            raise OptionTypeError(complaint("bidirectional", repr(bidirectional), "True or False"))
        self.bidirectional = bidirectional
        self.buckets = check_size("buckets", buckets, least=4 if bidirectional else 2)
        if bidirectional and self.buckets % 2:
            raise OptionError(complaint("buckets", buckets, "an even number: one half for each direction"))
        single = self.buckets // (4 if bidirectional else 2)
        self.farthest = check_size("farthest", farthest, least=single + 1)
        self.weight = nn.Parameter(torch.empty(self.buckets, self.heads))
        nn.init.normal_(self.weight, std=0.02)

    def bucket(self, offsets: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        """The number of the bucket for keys that stand so many positions behind their query."""
        ways = self.buckets // 2 if self.bidirectional else self.buckets
        ahead = (offsets > 0) * ways if self.bidirectional else torch.zeros_like(offsets)
        distance = offsets.abs() if self.bidirectional else (-offsets).clamp(min=0)
        single = ways // 2
        # float32, and in this order, as T5 does it: the edges of its buckets come out the same.
        growth = torch.log(distance.float().clamp(min=1) / single) / math.log(self.farthest / single)
        far = (single + (growth * (ways - single)).to(offsets.dtype)).clamp(max=ways - 1)
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
    """x_i + E_i, with E an embedding (length, width) that is learned.

    >>> Learned(length=5, width=3)(torch.zeros(2, 4, 3), Place(0, 4, 4)).shape
    torch.Size([2, 4, 3])

    Positions beyond `length` are refused.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__(width)
        self.length = check_size("length", length)
        self.embedding = nn.Embedding(self.length, self.width)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def check_reach(self, end: int) -> None:
        """Refuse `end` positions if there are not so many."""
        if end > self.length:
            hint = f"make it Learned(length={end}, width={self.width}), or take Rotary or Sinusoidal"
            raise ShapeError(complaint("positions", f"{end} positions", f"at most {self.length}, its length", hint))

    def forward(
        self, x: Float[Tensor, "batch n width"], position_range: PositionRange
    ) -> Float[Tensor, "batch n width"]:
        self.check_reach(position_range.end)
        # What lies outside is padding that does not count.
        return x + self.embedding(position_range.at(x.device).clamp(0, self.length - 1))


class Sinusoidal(AddedPositions):
    """x_p + PE_p, with PE_{p, 2i} = sin(p·base^(−2i/width)) and PE_{p, 2i+1} = cos(p·base^(−2i/width)).

    The fixed table of "Attention is all you need", for any length; there are no parameters.

    >>> Sinusoidal(width=4)(torch.zeros(1, 2, 4), Place(0, 2, 2))[0, 0]
    tensor([0., 1., 0., 1.])
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__(width)
        self.base = check_number("base", base, "a positive number")

    def forward(
        self, x: Float[Tensor, "batch n width"], position_range: PositionRange
    ) -> Float[Tensor, "batch n width"]:
        pair = torch.arange(0, self.width, 2, dtype=torch.float64, device=x.device)
        angle = position_range.at(x.device).unsqueeze(-1) * self.base ** (-pair / self.width)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., : self.width]
        return x + table.to(x.dtype)


def check_positions(given: Any, width: int, heads: int, head_width: int) -> Positions | None:
    """Positions that fit, or None."""
    if given is None:
        return None
    if not isinstance(given, Positions):
        said = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        wanted = "None, Rotary, ALiBi, RelativeBias, Learned or Sinusoidal, an object of it"
        raise OptionTypeError(complaint("positions", said, wanted))
    given.check_fit(width, heads, head_width)
    return given
