"""What kernels execute, and the sizes that decide it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Geometry:
    """The sizes that the kernels of one instruction set work in, as the native library states them.

    lanes: numbers in a vector. tile_rows, tile_keys: a tile of argmax. query_rows: rows that go along a past together.
    page_tokens, part_tokens: a past is read by pages, and its softmax folded by parts. group_tokens, value_line,
    linear_line: what rows of weights, of values and of the linear backend are filled up to. bfloat16_pair: channels of
    keys that a memory keeps together. linear_rows: rows that see as far as the last of them. chunks: (most features,
    tokens) of a chunk of the linear backend. The last three: when its keys go in segments.
    """

    isa: str
    lanes: int
    tile_rows: int
    tile_keys: int
    query_rows: int
    page_tokens: int
    part_tokens: int
    group_tokens: int
    value_line: int
    bfloat16_pair: int
    linear_line: int
    linear_rows: int
    chunks: tuple[tuple[int, int], ...]
    segment_chunks: int
    most_segments: int
    enough_heads: int

    def chunk_tokens(self, features: int) -> int:
        """Tokens in a chunk of the linear backend."""
        return next(tokens for most, tokens in self.chunks if features <= most)


@dataclass
class Executed:
    """score_flops: queries by keys. value_flops: weights by values. other_flops: the products of the linear backend, which
    its kernel does not tell apart. feature_flops: monomials, powers and squares. exponentials: of vectors, so that the
    two that a sink takes for each query are not among them. tiles: pages and tiles of scores.

    >>> Executed(score_flops=6, value_flops=4).flops
    10
    """

    score_flops: int = 0
    value_flops: int = 0
    other_flops: int = 0
    feature_flops: int = 0
    exponentials: int = 0
    tiles: int = 0

    @property
    def flops(self) -> int:
        """All products: two for a multiplication and an addition."""
        return self.score_flops + self.value_flops + self.other_flops

    def __add__(self, other: Executed) -> Executed:
        return Executed(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Executed)))

    def times(self, count: int) -> Executed:
        return Executed(*(getattr(self, f.name) * count for f in fields(Executed)))
