from collections.abc import Sequence

import torch

def isas() -> list[str]: ...
def self_check(isa: str) -> str: ...
def use(isa: str) -> None: ...
def why_one_thread() -> str: ...
def calls() -> dict: ...
def reset_calls() -> None: ...
def before_exit() -> None: ...
def all_finite(data: int, count: int, dtype: int, threads: int) -> bool: ...
def argmax_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    result: torch.Tensor,
    *,
    starts: torch.Tensor | None = None,
    stops: torch.Tensor | None = None,
    threads: int,
) -> None: ...
def cache_append(
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    layout: Sequence[int],
    table: int,
    slots: int,
    positions: Sequence[int],
    counts: Sequence[int] | None = None,
    left: bool = False,
    threads: int,
) -> None: ...
def cache_attend(
    query: torch.Tensor,
    out: torch.Tensor,
    *,
    layout: Sequence[int],
    table: int,
    slots: int,
    positions: Sequence[int],
    counts: Sequence[int] | None = None,
    left: bool = False,
    lse: torch.Tensor | None = None,
    window: int | None = None,
    starts: Sequence[int] | None = None,
    stops: Sequence[int] | None = None,
    lower: int | None = None,
    upper: int | None = None,
    keep: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    first_key: int = 0,
    scale: float = 1.0,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
    argmax: bool = False,
    threads: int,
    sinks: int = 0,
    cross: bool = False,
    weights: torch.Tensor | None = None,
    importance: torch.Tensor | None = None,
    importance_from: Sequence[int] | None = None,
    sigmoid: bool = False,
    offset: float = 0.0,
    decay_query: torch.Tensor | None = None,
    decay_key: torch.Tensor | None = None,
    decay_starts: torch.Tensor | None = None,
) -> None: ...
def softmax_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    *,
    lse: torch.Tensor | None = None,
    starts: Sequence[int] | None = None,
    stops: Sequence[int] | None = None,
    lower: int | None = None,
    upper: int | None = None,
    keep: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: float,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
    sigmoid: bool = False,
    offset: float = 0.0,
    decay_query: torch.Tensor | None = None,
    decay_key: torch.Tensor | None = None,
    decay_starts: torch.Tensor | None = None,
    threads: int,
) -> None: ...
def linear_attention(
    rule: tuple[int, int, int, float],
    query: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor | None,
    *,
    keep: torch.Tensor | None = None,
    offset: int | None = None,
    normalize: bool = True,
    state: torch.Tensor | None = None,
    direct: bool = False,
    threads: int,
) -> None: ...
def state_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    *,
    log_gate: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
    resets: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    threads: int,
) -> None: ...
def linear_state_size(rule: tuple[int, int, int, float], value_width: int) -> int: ...
def advise_huge_pages(data: int, size: int) -> None: ...
def populate_memory(data: int, size: int) -> None: ...
def guard_mapping(data: int, size: int) -> bool: ...
def unguard_mapping(data: int) -> None: ...

class DecodeStep:
    def __init__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        layout: Sequence[int],
        window: int | None = None,
        sinks: int = 0,
        scale: float = 1.0,
        softcap: float = 0.0,
        sink: torch.Tensor | None = None,
        argmax: bool = False,
        sigmoid: bool = False,
        offset: float = 0.0,
    ) -> None: ...
    def fits(self, query: object, key: object, value: object) -> bool: ...
    def run(
        self,
        query: object,
        key: object,
        value: object,
        out: object,
        table: int,
        slots: int,
        lengths: int,
        lengths_copy: int,
        threads: int,
        importance: int,
        importance_columns: int,
    ) -> bool: ...

def set_counting(on: bool) -> None: ...
def is_counting() -> bool: ...
def counts() -> dict: ...
def chunk_tokens(features: int) -> int: ...
def packed_product(
    matrices: Sequence[tuple[int, int, int, int, int]],
    x: torch.Tensor,
    ys: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    *,
    activations: int,
    threads: int,
) -> None: ...

class TransformerLayer:
    pass

def transformer_layer(
    *,
    norms: Sequence[tuple[int, int, int, float, bool] | None],
    linears: Sequence[tuple[tuple[int, int, int, int, int], int]],
    gate: tuple[tuple[int, int, int, int, int], int] | None = None,
    heads: int,
    kv_heads: int,
    width: int,
    scale: float,
    softcap: float,
    sinks: int,
    rotary: int,
    activation: int,
    parallel: bool,
) -> TransformerLayer: ...

class Program:
    def __init__(
        self,
        *,
        embedding: tuple[int, int, int, int, int],
        embedding_scale: float,
        positions: int,
        rotaries: Sequence[tuple[Sequence[float], float, bool]],
        layers: Sequence[TransformerLayer],
        norm: tuple[int, int, int, float, bool] | None,
        logits: tuple[tuple[int, int, int, int, int], int],
        logits_softcap: float,
        activations: int,
    ) -> None: ...
    def run(
        self,
        tokens: torch.Tensor,
        counts: Sequence[int],
        positions: Sequence[int],
        caches: torch.Tensor,
        wanted: Sequence[int],
        logits: torch.Tensor,
        threads: int,
    ) -> None: ...

finite_parallel_bytes: int = 2097152
