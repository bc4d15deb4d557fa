"""A transformer as its sizes: how many parameters it has and how many numbers it keeps for each token.

Every size is an integer or a SymPy symbol. `qkv.cost.model_cost` counts what running it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from .formats import check_size, is_symbol, smaller, stored
from .layers import check_layer
from .ledger import Number, quotient

KINDS = ("decoder", "encoder", "encoder-decoder")
NORM_VECTORS = {"rms": 1, "layer": 2, "none": 0}
QK_NORMS = (None, "head", "wide")


@dataclass(frozen=True)
class Latent:
    """Keys and values made from one short vector a token, which alone is kept (multi-head latent attention, DeepSeek).

    kv_rank: numbers of that vector. q_rank: of the one that queries are made from; None: queries are projected in one
    step. rope_width: coordinates of each head that carry the position; the key's are shared by all heads.
    """

    kv_rank: Number
    q_rank: Number | None
    rope_width: Number


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sizes of a transformer.

    >>> tiny = Model(layers=2, d_model=8, heads=4, kv_heads=2, d_ff=16, vocabulary=32)
    >>> tiny.parameters, tiny.cache_numbers, tiny.cache_bytes(tokens=10)
    (1704, 16, 320)
    """

    name: str = "by hand"
    kind: str = "decoder"
    layers: Number
    d_model: Number
    heads: Number
    kv_heads: Any = None  # heads
    head_width: Any = None  # d_model / heads
    value_width: Any = None  # head_width
    d_ff: Any = None  # 4·d_model
    gated: bool = True  # three matrices in the feed-forward network, not two
    vocabulary: Number = 32000
    tied: bool = False  # the output matrix is the embedding
    positions: Number = 0  # rows of a learned table
    context: Number = 0  # tokens that the model was made for; 0: not known
    qkv_bias: bool = False
    out_bias: bool = False
    ff_bias: bool = False
    head_bias: bool = False  # of the output matrix
    norm: str = "rms"  # "rms": one vector, "layer": two, "none": no parameters
    norms_per_layer: Number = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: str | None = None  # of queries and keys: "head" by head, "wide" over all heads
    rotary: Number = 0  # coordinates of each head that are rotated by the position
    window: Any = None  # keys that a query of a windowed layer sees, itself included
    window_layers: Any = None  # how many layers have the window; all
    experts: Number = 0
    experts_active: Number = 0
    shared_experts: Number = 0
    expert_d_ff: Any = None  # d_ff
    shared_gate: bool = False  # one more number decides how much of the shared experts is added
    router_bias: bool = False
    dense_layers: Number = 0  # first layers without experts
    latent: Latent | None = None
    encoder_layers: Number = 0
    sinks: bool = False  # one learned logit a head that attends to nothing
    relative_buckets: Number = 0  # rows of a learned table of relative positions, one for each stack (T5)
    segments: Number = 0
    pooler: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if field.type == "bool" and not isinstance(given, bool):
                raise OptionTypeError(complaint(field.name, repr(given), "True or False"))
            if field.type in ("Number", "Any") and given is not None:
                check_size(field.name, given, 0 if field.name in MAY_BE_ZERO else 1)
        check_layer(self.d_model, self.heads, self.heads if self.kv_heads is None else self.kv_heads, self.head_width)
        fill = {"kv_heads": self.heads, "d_ff": 4 * self.d_model, "window_layers": self.layers if self.window else 0}
        if self.head_width is None:
            fill["head_width"] = quotient(self.d_model, self.heads)
        for name, value in fill.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name, other in (("value_width", "head_width"), ("expert_d_ff", "d_ff")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, other))
        self._check()

    def _check(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(complaint("kind", repr(self.kind), f"one of {', '.join(KINDS)}"))
        if self.norm not in NORM_VECTORS:
            raise OptionError(complaint("norm", repr(self.norm), f"one of {', '.join(NORM_VECTORS)}"))
        if self.qk_norm not in QK_NORMS:
            raise OptionError(complaint("qk_norm", repr(self.qk_norm), "None, 'head' or 'wide'"))
        self._check_at_most("window_layers", self.layers, "the number of layers")
        self._check_at_most("dense_layers", self.layers, "the number of layers")
        self._check_at_most("experts_active", self.experts, "the number of experts")
        self._check_at_most("rotary", self.head_width, "head_width")
        if self.experts and not is_symbol(self.experts_active) and self.experts_active < 1:
            raise ShapeError(complaint("experts_active", self.experts_active, "at least one expert for each token"))
        if (self.kind == "encoder-decoder") != (self.encoder_layers != 0):
            wanted = "layers of the encoder for an encoder-decoder, and 0 for the rest"
            raise ShapeError(complaint("encoder_layers", f"{self.encoder_layers} for a {self.kind}", wanted))

    def _check_at_most(self, name: str, most: Any, what: str) -> None:
        size = getattr(self, name)
        if not is_symbol(size) and not is_symbol(most) and size > most:
            raise ShapeError(complaint(name, size, f"at most {what}, {most}"))

    @property
    def parameters(self) -> Number:
        """All of them, exactly."""
        return _total(self.parameter_lines)

    @property
    def active_parameters(self) -> Number:
        """Those that one token meets: of the experts, those that it is sent to."""
        idle = (self.experts - self.experts_active) * (self.layers - self.dense_layers)
        one = _matrices(self) * self.d_model * self.expert_d_ff + int(self.ff_bias) * _biases(self, self.expert_d_ff)
        return self.parameters - idle * one

    @property
    def parameter_lines(self) -> list[tuple[str, Number]]:
        """(name, how many) of each kind of parameter, over all layers; the names start with the part they belong to."""
        cross, stacks = self.kind == "encoder-decoder", 1 + (self.kind == "encoder-decoder")
        blocks, d = self.layers + self.encoder_layers, self.d_model
        vectors = NORM_VECTORS[self.norm]
        attentions = blocks + (self.layers if cross else 0)
        sparse = self.layers - self.dense_layers if self.experts else 0
        norms = blocks * self.norms_per_layer + (self.layers if cross else 0) + stacks * int(self.final_norm)
        lines = [
            ("embedding: tokens", self.vocabulary * d),
            ("embedding: positions", self.positions * d),
            ("embedding: segments", self.segments * d),
            ("embedding: norm", vectors * d * int(self.embedding_norm)),
            *((f"projections: {name}", attentions * count) for name, count in _projections(self)),
            ("scores: sinks", attentions * int(self.sinks) * self.heads),
            ("scores: relative positions", stacks * self.relative_buckets * self.heads),
            ("feed-forward: matrices", (blocks - sparse) * _matrices(self) * d * self.d_ff),
            ("feed-forward: biases", (blocks - sparse) * int(self.ff_bias) * _biases(self, self.d_ff)),
            ("feed-forward: router", sparse * self.experts * (d + int(self.router_bias))),
            ("feed-forward: experts", sparse * self.experts * _matrices(self) * d * self.expert_d_ff),
            (
                "feed-forward: biases of experts",
                sparse * self.experts * int(self.ff_bias) * _biases(self, self.expert_d_ff),
            ),
            ("feed-forward: shared", sparse * self.shared_experts * _matrices(self) * d * self.expert_d_ff),
            ("feed-forward: shared gate", sparse * int(self.shared_gate) * d),
            ("norms: vectors", vectors * d * norms),
            ("logits: pooler", int(self.pooler) * (d * d + d)),
        ]
        if self.kind != "encoder":
            lines.append(("logits: matrix", 0 if self.tied else self.vocabulary * d))
            lines.append(("logits: bias", int(self.head_bias) * self.vocabulary))
        return [(name, count) for name, count in lines if is_symbol(count) or count]

    @property
    def cache_numbers_per_layer(self) -> Number:
        """Numbers that a layer of a decoder keeps for each token."""
        if self.kind == "encoder":
            return 0
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_width
        return self.kv_heads * (self.head_width + self.value_width)

    @property
    def cache_numbers(self) -> Number:
        """Numbers kept for each token over all layers; of an encoder-decoder, by the decoder's attention to itself."""
        return self.layers * self.cache_numbers_per_layer

    def cache_bytes(self, tokens: Number, batch: Number = 1, dtype: Any = "bfloat16") -> Number:
        """Bytes in the cache after so many tokens of each sequence. A windowed layer holds its window at most."""
        check_size("tokens", tokens, 0)
        check_size("batch", batch)
        held = (self.layers - self.window_layers) * tokens
        if self.window is not None:
            held = held + self.window_layers * smaller(self.window, tokens)
        return stored(batch * held * self.cache_numbers_per_layer, dtype)


MAY_BE_ZERO = {
    "positions", "context", "norms_per_layer", "rotary", "window_layers", "experts", "experts_active", "shared_experts",
    "dense_layers", "encoder_layers", "relative_buckets", "segments",
}  # fmt: skip


def _matrices(model: Model) -> int:
    """Matrices of a feed-forward network."""
    return 3 if model.gated else 2


def _biases(model: Model, wide: Number) -> Number:
    """Biases of a feed-forward network that has them."""
    return (_matrices(model) - 1) * wide + model.d_model


def _projections(model: Model) -> list[tuple[str, Number]]:
    """Parameters of one attention."""
    d, queries = model.d_model, model.heads * model.head_width
    keys, values = model.kv_heads * model.head_width, model.kv_heads * model.value_width
    out = [("output", model.heads * model.value_width * d), ("output bias", int(model.out_bias) * d)]
    norms = {None: 0, "head": 2 * model.head_width, "wide": queries + keys}[model.qk_norm]
    if model.latent is None:
        biases = int(model.qkv_bias) * (queries + keys + values)
        matrices = [("query", d * queries), ("key", d * keys), ("value", d * values)]
        return [*matrices, *out, ("biases", biases), ("norms of queries and keys", norms)]
    kv_rank, q_rank, rope = model.latent.kv_rank, model.latent.q_rank, model.latent.rope_width
    query = [("query", d * queries)]
    if q_rank is not None:
        query = [("query, down", d * q_rank), ("query, up", q_rank * queries), ("query norm", q_rank)]
    plain = model.head_width - rope
    biases = int(model.qkv_bias) * (kv_rank + rope + (0 if q_rank is None else q_rank))
    return [
        *query,
        ("latent, down", d * (kv_rank + rope)),
        ("latent norm", kv_rank),
        ("latent, up", kv_rank * model.heads * (plain + model.value_width)),
        *out,
        ("biases", biases),
    ]


def _total(lines: list[tuple[str, Number]]) -> Number:
    total: Number = 0
    for _, count in lines:
        total = total + count
    return total
