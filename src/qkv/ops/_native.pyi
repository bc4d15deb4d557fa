from typing import Any

finite_parallel_bytes: int

def isas() -> list[str]: ...
def self_check(isa: str, /) -> str: ...
def use(isa: str, /) -> None: ...
def why_one_thread() -> str: ...
def calls() -> dict[str, int]: ...
def reset_calls() -> None: ...
def before_exit() -> None: ...
def count(on: bool, /) -> None: ...
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
def attend_plain(
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
