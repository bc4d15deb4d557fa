"""Sizes of a transformer: its parameters, its cache, and the presets of models.toml.

A size is an integer or a SymPy symbol. `qkv.cost.model_cost` counts what running the model takes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from .counting import check_layer
from .ledger import Number, quotient
from .lookup import match_name, read_data
from .sizes import check_choice, check_size, is_symbol, minimum, storage_bytes

DEFAULT_CONTEXT = 8192
KINDS = ("decoder", "encoder", "encoder-decoder")
NORM_VECTORS = {"rms": 1, "layer": 2, "none": 0}
QK_NORMS = (None, "head", "wide")
MODELS_FILE = "models.toml"
LIST_HINT = "qkv plan --list shows every name; --config PATH reads a config.json; --layers ... gives sizes by hand"
MAY_BE_ZERO = {
    "positions", "context", "norms_per_layer", "rotary", "window_layers", "experts", "experts_active", "shared_experts",
    "dense_layers", "encoder_layers", "relative_buckets", "segments",
}  # fmt: skip


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek): keys and values come from one short vector per token, which is cached.

    Attributes:
        kv_rank: numbers in the cached vector.
        q_rank: numbers in the vector that queries are made from; None: one projection makes queries.
        rope_width: rotated coordinates of each head; those of keys are shared by all heads.
    """

    kv_rank: Number
    q_rank: Number | None
    rope_width: Number


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sizes of a transformer.

    Args:
        name: What reports call it.
        kind: "decoder", "encoder" or "encoder-decoder".
        layers: Number of layers; of the decoder, if there is an encoder.
        d_model: Width of a token between layers.
        heads: Query heads.
        kv_heads: Key/value heads; as many as `heads`.
        head_width: Width of queries and keys of a head; d_model / heads.
        value_width: Width of values of a head; head_width.
        d_ff: Width of the feed-forward network; 4·d_model.
        gated: Whether the feed-forward network has three matrices, not two.
        vocabulary: Number of different tokens.
        tied: Whether the output matrix is the embedding.
        positions: Rows of a learned position table.
        context: Longest context that the model was trained for; 0: unknown.
        qkv_bias, out_bias, ff_bias, head_bias: Whether projections, feed-forward network and output matrix have biases.
        norm: "rms" (one vector), "layer" (two) or "none".
        norms_per_layer, final_norm, embedding_norm, qk_norm: Which norms there are; qk_norm is "head" or "wide".
        rotary: Rotated coordinates of each head.
        window, window_layers: Keys that a query of a windowed layer attends to, and how many layers have the window.
        experts, experts_active, shared_experts, expert_d_ff, shared_gate, router_bias, dense_layers: Of a mixture of
            experts.
        latent: Sizes of latent attention.
        encoder_layers, sinks, relative_buckets: Of encoder-decoders, sink logits and relative positions.

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
    gated: bool = True  # the feed-forward network has three matrices, not two
    vocabulary: Number = 32000
    tied: bool = False  # the output matrix is the embedding
    positions: Number = 0  # rows of a learned position table
    context: Number = 0  # longest context that the model was trained for; 0: unknown
    qkv_bias: bool = False
    out_bias: bool = False
    ff_bias: bool = False
    head_bias: bool = False  # of the output matrix
    norm: str = "rms"  # "rms": one vector, "layer": two, "none": no parameters
    norms_per_layer: Number = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: str | None = None  # norm of queries and keys: "head", for each head, or "wide", over all heads
    rotary: Number = 0  # rotated coordinates of each head
    window: Any = None  # keys that a query of a windowed layer attends to, itself included
    window_layers: Any = None  # number of layers with the window; all layers
    experts: Number = 0
    experts_active: Number = 0
    shared_experts: Number = 0
    expert_d_ff: Any = None  # d_ff
    shared_gate: bool = False  # a learned gate scales the shared experts
    router_bias: bool = False
    dense_layers: Number = 0  # layers without experts, the first ones
    latent: Latent | None = None
    encoder_layers: Number = 0
    sinks: bool = False  # one learned sink logit per head
    relative_buckets: Number = 0  # rows of a learned table of relative positions in each stack (T5)
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
        width = quotient(self.d_model, self.heads) if self.head_width is None else self.head_width
        wide = 4 * self.d_model if self.d_ff is None else self.d_ff
        fill = {"kv_heads": self.heads, "head_width": width, "value_width": width, "d_ff": wide, "expert_d_ff": wide}
        for name, value in {**fill, "window_layers": self.layers if self.window else 0}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_choice("norm", self.norm, NORM_VECTORS)
        if self.qk_norm not in QK_NORMS:
            raise OptionError(complaint("qk_norm", repr(self.qk_norm), "None, 'head' or 'wide'"))
        for name, most, what in (
            ("window_layers", self.layers, "the number of layers"),
            ("dense_layers", self.layers, "the number of layers"),
            ("experts_active", self.experts, "the number of experts"),
            ("rotary", self.head_width, "head_width"),
        ):
            size = getattr(self, name)
            if not is_symbol(size) and not is_symbol(most) and size > most:
                raise ShapeError(complaint(name, size, f"at most {what}, {most}"))
        if self.experts and not is_symbol(self.experts_active) and self.experts_active < 1:
            raise ShapeError(complaint("experts_active", self.experts_active, "at least one active expert per token"))
        if (self.kind == "encoder-decoder") != (self.encoder_layers != 0):
            wanted = "at least 1 for an encoder-decoder, and 0 for other kinds"
            raise ShapeError(complaint("encoder_layers", f"{self.encoder_layers} for a {self.kind}", wanted))

    def check_numbers(self, why: str) -> None:
        """Refuse sizes that are symbols."""
        if symbols := [each.name for each in fields(self) if is_symbol(getattr(self, each.name))]:
            given = f"{self.name} with symbols for {', '.join(symbols)}"
            raise OptionError(complaint("model", given, "numbers for all sizes", why))

    @property
    def default_context(self) -> int:
        """Tokens of a plan or an audit that says nothing else: 8192, or the model's own limit if less."""
        return min(DEFAULT_CONTEXT, self.context or DEFAULT_CONTEXT)

    @property
    def parameters(self) -> Number:
        """Number of parameters, exact."""
        return sum(count for _, count in self.parameter_lines)

    @property
    def active_parameters(self) -> Number:
        """Parameters that one token uses: of the experts, only the active ones."""
        idle = (self.experts - self.experts_active) * (self.layers - self.dense_layers)
        one = _matrices(self) * self.d_model * self.expert_d_ff + _biases(self, self.expert_d_ff)
        return self.parameters - idle * one

    @property
    def parameter_lines(self) -> list[tuple[str, Number]]:
        """(name, count) of each kind of parameter over all layers; names start with their part."""
        cross, stacks = self.kind == "encoder-decoder", 1 + (self.kind == "encoder-decoder")
        blocks, d = self.layers + self.encoder_layers, self.d_model
        vectors = NORM_VECTORS[self.norm]
        attentions = blocks + (self.layers if cross else 0)
        sparse = self.layers - self.dense_layers if self.experts else 0
        experts = sparse * self.experts
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
            ("feed-forward: biases", (blocks - sparse) * _biases(self, self.d_ff)),
            ("feed-forward: router", experts * (d + int(self.router_bias))),
            ("feed-forward: experts", experts * _matrices(self) * d * self.expert_d_ff),
            ("feed-forward: biases of experts", experts * _biases(self, self.expert_d_ff)),
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
        """Numbers that a decoder layer caches per token."""
        if self.kind == "encoder":
            return 0
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_width
        return self.kv_heads * (self.head_width + self.value_width)

    @property
    def cache_numbers(self) -> Number:
        """Numbers cached per token over all layers; in an encoder-decoder, by the decoder's self-attention."""
        return self.layers * self.cache_numbers_per_layer

    def cache_bytes(self, tokens: Number, batch: Number = 1, dtype: Any = "bfloat16") -> Number:
        """Bytes of the cache with `tokens` tokens in each sequence; windowed layers keep at most their window."""
        check_size("tokens", tokens, 0)
        check_size("batch", batch)
        cached = (self.layers - self.window_layers) * tokens
        if self.window is not None:
            cached = cached + self.window_layers * minimum(self.window, tokens)
        return storage_bytes(batch * cached * self.cache_numbers_per_layer, dtype)


def _matrices(model: Model) -> int:
    """Number of matrices in a feed-forward network."""
    return 3 if model.gated else 2


def _biases(model: Model, wide: Number) -> Number:
    """Number of biases in a feed-forward network."""
    return int(model.ff_bias) * ((_matrices(model) - 1) * wide + model.d_model)


def _projections(model: Model) -> list[tuple[str, Number]]:
    """(name, count) of the parameters of one attention layer."""
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
    up = kv_rank * model.heads * (plain + model.value_width)
    latent = [("latent, down", d * (kv_rank + rope)), ("latent norm", kv_rank), ("latent, up", up)]
    return [*query, *latent, *out, ("biases", biases)]


def models() -> dict[str, Model]:
    """All presets of models.toml by name.

    Returns:
        A `Model` for each name.

    >>> models()["gpt-2"].parameters
    124439808
    """
    return {name: preset(name) for name in read_data(MODELS_FILE)["models"]}


def model_named(name: str) -> Model:
    """The preset that a name stands for; case, punctuation and owner do not matter.

    >>> model_named("Llama 3 8B").name
    'llama-3-8b'
    """
    return preset(match_name("model", name, read_data(MODELS_FILE)["models"], "the name of a preset", LIST_HINT))


def as_model(model: Any) -> Model:
    """A model given as a `Model`, the name of a preset, or the path of a config.json or its folder."""
    if isinstance(model, Model):
        return model
    if isinstance(model, Path) or (isinstance(model, str) and is_path(model)):
        from .configs import read_config

        return read_config(model)
    if not isinstance(model, str):
        raise OptionTypeError(complaint("model", repr(model), "a qkv.cost.Model, the name of a preset, or a path"))
    return model_named(model)


@cache
def preset(name: str) -> Model:
    """A preset by its exact name: the fields of its family, then its own."""
    known = read_data(MODELS_FILE)
    own = dict(known["models"][name])
    fields = {**known["families"][own.pop("family")], **own}
    share = fields.pop("rotary_share", 0)
    if "latent" in fields:
        fields["latent"] = Latent(**{"q_rank": None, **fields["latent"]})
    width = fields.get("head_width", fields["d_model"] // fields["heads"])
    return Model(name=name, rotary=int(share * width), **fields)


def is_path(text: str) -> bool:
    """Whether the text is a path. Presets come first: gpt-2 is a preset, ./gpt-2 a folder."""
    if text.endswith(".json") or text.startswith((".", "/", "~", "\\")):
        return True
    path = Path(text)
    try:
        return path.exists() and ("/" in text or text not in read_data(MODELS_FILE)["models"])
    except (OSError, ValueError):  # not a valid path
        return False
