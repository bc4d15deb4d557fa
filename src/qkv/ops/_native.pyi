from typing import Any

from torch import Tensor

finite_parallel_bytes: int

def isas() -> list[str]: ...
def self_check(isa: str, /) -> str: ...
def use(isa: str, /) -> None: ...
def why_one_thread() -> str: ...
def calls() -> dict[str, int]: ...
def reset_calls() -> None: ...
def before_exit() -> None: ...
def set_counting(on: bool, /) -> None: ...
def is_counting() -> bool: ...
def counts() -> dict[str, int]: ...
def geometry() -> dict[str, Any]: ...
def chunk_tokens(features: int, /) -> int: ...
def all_finite(data: int, count: int, dtype: int, threads: int, /) -> bool: ...
def argmax_scores(
    dtype: int,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    query: int,
    query_strides: tuple[int, ...],
    key: int,
    key_strides: tuple[int, ...],
    starts: int,
    stops: int,
    result: int,
    threads: int,
    /,
) -> None: ...
def softmax_attention(
    dtype: int,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    value_width: int,
    query: int,
    query_strides: tuple[int, ...],
    key: int,
    key_strides: tuple[int, ...],
    value: int,
    value_strides: tuple[int, ...],
    out: int,
    lse: int,
    starts: int,
    stops: int,
    lower: int | None,
    upper: int | None,
    keep: int,
    keep_strides: tuple[int, ...],
    bias: int,
    bias_strides: tuple[int, ...],
    scale: float,
    softcap: float,
    sink: int,
    heads_last: bool,
    threads: int,
    /,
) -> None: ...
def linear_state_size(map_code: int, width: int, degree: int, offset: float, value_width: int, /) -> int: ...
def linear_attention(
    map_code: int,
    width: int,
    degree: int,
    power_offset: float,
    dtype: int,
    sizes: tuple[int, int, int, int],
    lengths: tuple[int, int],
    query: int,
    query_strides: tuple[int, ...],
    key: int,
    key_strides: tuple[int, ...],
    value: int,
    value_strides: tuple[int, ...],
    keep: int,
    offset: int | None,
    normalize: bool,
    out: int,
    state: int,
    direct: bool,
    threads: int,
    /,
) -> None: ...
def cache_append(
    storage: int,
    heads: int,
    width: int,
    value_width: int,
    table: int,
    slots: int,
    shape: tuple[int, ...],
    positions: int,
    counts: int,
    left: bool,
    dtype: int,
    key: int,
    key_strides: tuple[int, ...],
    value: int,
    value_strides: tuple[int, ...],
    threads: int,
    /,
) -> None: ...
def cache_attend(
    storage: int,
    heads: int,
    width: int,
    value_width: int,
    table: int,
    slots: int,
    dtype: int,
    query_shape: tuple[int, ...],
    query: int,
    query_strides: tuple[int, ...],
    out: int,
    lse: int,
    positions: int,
    counts: int,
    left: bool,
    window: int,
    starts: int,
    stops: int,
    lower: int | None,
    upper: int | None,
    keep: int,
    keep_strides: tuple[int, ...],
    bias: int,
    bias_strides: tuple[int, ...],
    scale: float,
    softcap: float,
    sink: int,
    argmax: bool,
    threads: int,
    /,
) -> None: ...
def advise_huge_pages(data: int, size: int, /) -> None: ...
def populate_memory(data: int, size: int, /) -> None: ...

class DecodeStep:
    def __init__(
        self,
        tensor_type: type,
        layout: tuple[int, int, int, int],
        dtype: int,
        query_shape: tuple[int, ...],
        key_shape: tuple[int, ...],
        value_shape: tuple[int, ...],
        window: int,
        scale: float,
        softcap: float,
        sink: int,
        argmax: bool,
        /,
    ) -> None: ...
    def fits(self, query: Tensor, key: Tensor, value: Tensor, /) -> bool: ...
    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        table: int,
        slots: int,
        lengths: int,
        lengths_copy: int,
        threads: int,
        /,
    ) -> bool: ...
