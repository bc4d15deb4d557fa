"""What the native kernels report: the sizes of their tiles, and the work that they have executed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Tile sizes of the kernels for one instruction set, as the native library reports them.

    Attributes:
        lanes: numbers in a vector.
        tile_rows, tile_keys: a tile of argmax.
        query_rows: query rows that read the keys together.
        page_tokens: tokens in a page of a cache.
        part_tokens: tokens whose softmax is computed before it is merged with the rest.
        group_tokens, value_line, linear_line: multiples to which rows of weights, of values and of the linear backend
            are padded.
        bfloat16_pair: channels of keys that a bfloat16 cache stores together.
        linear_rows: rows of the linear backend that are scored against the keys of the last of them.
        chunks: (largest number of features, tokens) of a chunk of the linear backend.
        segment_chunks, most_segments, enough_heads: when the linear backend splits keys into segments.
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
    """Work of one kernel call.

    Attributes:
        score_flops: products of queries and keys.
        value_flops: products of weights and values.
        other_flops: products of the linear backend.
        feature_flops: monomials, powers and squares.
        exponentials: computed in vectors; the two for each query's sink are not included.
        tiles: pages and tiles of scores.

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
        """Flops of all products; a multiplication and an addition are two."""
        return self.score_flops + self.value_flops + self.other_flops
