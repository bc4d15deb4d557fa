"""Programs of the families in architectures.toml, from a GGUF file's metadata or a config.json.

Metadata are renamed to the names of a config.json first. What the program cannot describe is refused by name.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, complaint
from .blocks import PackedMatrix
from .files import Source
from .gguf import GgufArray, GgufFile, damaged
from .program import Attention, FeedForward, Layer, Linear, Norm, NotCovered, Program, Rotary

_ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_TENSORS = _TABLES["tensors"]
SPLITS: dict[str, dict[str, Any]] = _TABLES["splits"]
_SLIDING, _FULL = "sliding_attention", "full_attention"

_FREQUENCY_DIVISORS = "rope_freqs.weight"  # llama3's scaling in a GGUF file
_REQUIRED = object()


@dataclass(frozen=True)
class _Family:
    """What no setting says about a model: a table of architectures.toml."""

    gguf: str = ""  # its architecture in GGUF files, if transformers reads those, too
    norm: str = "rms"
    norm_offset: float = 0.0  # added to the weights of norms; GGUF files have it in them
    norms: Sequence[str] = ("attention_norm", "feed_forward_norm")
    head_norms: str = ""  # of queries and keys: "head", or "projection", of all heads together
    biases: Sequence[str] = ()  # of products that always have one
    gated: bool = True
    rotary: bool = True  # otherwise positions are learned
    scalings: Sequence[str] = ("linear", "llama3", "yarn")  # of the rotary
    scaled_embedding: bool = False  # by √width
    windows: str = ""  # which layers have one: "all", "last", "periodic" or "unrotated"
    fused: Sequence[str] = ()  # products that are one tensor: "query_key_value", "gate_up"
    by_head: bool = False  # the rows of queries, keys and values take turns
    transposed: bool = False  # the weights of a config.json's products, as (columns, rows)
    inner_ratio: int = 0  # width of the feed-forward, if it is not given
    narrow_layers: int = 0  # in GGUF files, so many layers say that scores are scaled by width / heads
    own: Sequence[str] = ()  # settings that others do not have, or that have no effect there
    names: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()  # how the names of tensors end that have no effect


_FAMILIES = {kind: _Family(**table) for kind, table in _TABLES["families"].items()}
_GGUF_KINDS = {family.gguf: kind for kind, family in _FAMILIES.items() if family.gguf}


def _refused(what: str, wanted: str) -> NotCovered:
    hint = 'transformers runs it with qkv\'s attention: qkv.hf.load(path), or attn_implementation="qkv"'
    return NotCovered(complaint("path", f"a model with {what}", wanted, hint))


@dataclass(frozen=True)
class _Values:
    """Typed values of a configuration; None is a value that is missing. names: What the file calls them."""

    file: str
    given: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        name = self.names.get(name, name)
        found = self.given.get(name)
        if found is None and default is _REQUIRED:
            raise damaged(self.file, f"no {name}")
        return default if found is None else found

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        found = self.get(name, default)
        if found is not default and (type(found) is not int or not 1 <= found < 1 << 31):
            raise self.wrong(name)
        return found

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        found = self.get(name, default)
        if found is not default and (type(found) not in (int, float) or not 0 < found < math.inf):
            raise self.wrong(name)
        return found

    def flag(self, name: str, default: bool) -> bool:
        found = self.get(name, default)
        if type(found) is not bool:
            raise self.wrong(name)
        return found

    def part(self, name: str) -> dict[str, Any]:
        """The dictionary under a name, without the values that are missing."""
        found = self.get(name, {})
        if not isinstance(found, dict):
            raise self.wrong(name)
        return {key: value for key, value in found.items() if value is not None}

    def wrong(self, name: str) -> OptionError:
        name = self.names.get(name, name)
        found = self.given[name]
        return damaged(self.file, f"{name}: {'an array' if isinstance(found, GgufArray) else repr(found)[:100]}")


def read_program(source: Source) -> Program:
    """The program of a file: sizes and shapes are checked, matrices stay where they are.

    Raises:
        OptionError: The architecture is not covered, or the file is damaged.
    """
    kind, values = _gguf_values(source) if isinstance(source, GgufFile) else _config_values(source.config)
    for name, allowed in _TABLES["refused"].items():
        found = None if name in _FAMILIES[kind].own else values.get(name)
        if found is not None and found not in allowed:
            raise _refused(f"{name} {str(found)[:60]}", f"{name} {(allowed or [None])[0]}")
    program = _Builder(source, values, kind).build()
    if isinstance(source, GgufFile):
        known = values.read | {"", "vocab_size"}
        unread = [key for key in source.metadata if _setting(source, key).partition(".")[0] not in known]
        if unread:
            raise _refused(f"the setting {unread[0]}", f"settings of a plain {program.architecture}")
    return program


def _config_values(config: dict[str, Any]) -> tuple[str, _Values]:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise _refused(f"the architecture {kind!r}", ", ".join(_FAMILIES))
    names = _FAMILIES[kind].names
    defaults = {names.get(name, name): value for name, value in _FAMILIES[kind].defaults.items()}
    return kind, _Values("config.json", defaults | config, names)


def _setting(source: GgufFile, key: str) -> str:
    """The name of a metadatum in a config.json; "" if it is not about the model."""
    kind, _, name = key.partition(".")
    if kind != source.metadata.get("general.architecture"):
        return ""
    if name not in _TABLES["settings"]:
        raise _refused(f"the setting {key}", f"settings of a plain {kind}")
    return _TABLES["settings"][name]


def _gguf_values(source: GgufFile) -> tuple[str, _Values]:
    """A file's metadata under the names of a config.json."""
    name = source.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _GGUF_KINDS:
        raise _refused(f"the architecture {name!r}", ", ".join(_GGUF_KINDS))
    found: dict[str, Any] = {"rope_scaling": {}}
    for key, value in source.metadata.items():
        if setting := _setting(source, key):
            outer, _, inner = setting.rpartition(".")
            (found[outer] if outer else found)[inner] = value
    # A GGUF file calls Mistral llama.
    kind = "mistral" if name == "llama" and "sliding_window" in found else _GGUF_KINDS[name]
    values, family = _Values(source.path.name, found), _FAMILIES[kind]
    layers = values.integer("num_hidden_layers")
    heads, width = values.integer("num_attention_heads"), values.integer("hidden_size")
    if family.narrow_layers:
        narrow = layers == family.narrow_layers
        found["query_pre_attn_scalar"] = width // heads if narrow else values.integer("head_dim", width // heads)
    if kind == "gemma3_text":
        values.integer("sliding_window")
    sizes = {"num_key_value_heads": heads, "head_dim": width // heads or 1}
    tied = f"{_TENSORS['gguf']['logits']}.weight" not in source.names()
    return kind, _Values(source.path.name, family.defaults | sizes | found | {"tie_word_embeddings": tied})


class _Builder:
    """Takes the tensors of a file into a program; all of them must be used."""

    def __init__(self, source: Source, values: _Values, kind: str) -> None:
        self.source, self.values, self.kind, self.family = source, values, kind, _FAMILIES[kind]
        family, self.from_gguf = self.family, isinstance(source, GgufFile)
        self.left = {name for name in source.names() if not name.endswith(tuple(family.ignored))}
        self.names: dict[str, str] = _TENSORS["gguf"] if self.from_gguf else _TENSORS["config"] | family.tensors
        model, _, name = self.names["embedding"].partition(".")
        if not self.from_gguf and f"{name}.weight" in self.left:  # the file has the model without its class
            self.names = {part: name.removeprefix(f"{model}.") for part, name in self.names.items()}
        self.interleaved = isinstance(source, GgufFile) and source.metadata["general.architecture"] == "llama"
        self.layers = values.integer("num_hidden_layers")
        if self.layers > len(self.left):
            raise damaged(values.file, f"{self.layers} layers and {len(self.left)} tensors")
        self.heads, self.width = values.integer("num_attention_heads"), values.integer("hidden_size")
        self.kv_heads = values.integer("num_key_value_heads", self.heads)
        if self.heads % self.kv_heads:
            raise damaged(values.file, f"{self.heads} heads on {self.kv_heads} key/value heads")
        self.head_width = values.integer("head_dim", self.width // self.heads or 1)
        if values.integer("value_head_dim", self.head_width) != self.head_width:
            raise _refused("values of another width than keys", "the same width")
        self.inner_width = values.integer("intermediate_size", family.inner_ratio * self.width or _REQUIRED)
        self.context = values.integer("max_position_embeddings")
        self.eps = float(values.number("rms_norm_eps"))
        activation = values.get("hidden_act", family.defaults.get("hidden_act", "silu"))
        if not isinstance(activation, str) or activation not in _ACTIVATIONS:
            raise _refused(f"the activation {activation!r}", ", ".join(_ACTIVATIONS))
        self.activation = _ACTIVATIONS[activation]
        self.biases = set(family.biases)
        if values.flag("attention_bias", False):
            self.biases |= {"query", "key", "value", "query_key_value", "output"}
        if values.flag("mlp_bias", False):
            self.biases |= {"gate", "up", "down"}
        self.parallel = "use_parallel_residual" in family.own and values.flag("use_parallel_residual", False)

    def build(self) -> Program:
        family, name = self.family, self.names["embedding"] + ".weight"
        rows = self.source.shape(name)[0] if name in self.left else 0
        embedding = self._matrix(self.names["embedding"], rows, self.width)
        if self.values.flag("tie_word_embeddings", False):
            logits = Linear(embedding)
            self.left.discard(self.names["logits"] + ".weight")
        else:
            logits = Linear(self._matrix(self.names["logits"], rows, self.width))
        rotaries = {sliding: self._rotary(sliding) for sliding in (True, False)} if family.rotary else {}
        learned = None if family.rotary else self._matrix(self.names["positions"], self.context, self.width).dense()
        rotated = self._rotated_layers()
        windows = self._windows(rotated)
        parts = [rotaries[window is not None] if own else None for window, own in zip(windows, rotated, strict=True)]
        program = Program(
            self.kind.removesuffix("_text"),
            embedding,
            tuple(self._layer(at, windows[at], parts[at]) for at in range(self.layers)),
            self._norm(self.names["final_norm"], self.width),
            logits,
            self.context,
            embedding_scale=math.sqrt(self.width) if family.scaled_embedding else 1.0,
            logits_softcap=self._own("final_logit_softcapping"),
            positions=learned,
        )
        unused = sorted(name for name in self.left if not name.endswith("rotary_emb.inv_freq"))
        if unused:
            wanted = f"the tensors of a plain {program.architecture}"
            raise _refused(f"the tensor {unused[0]} and {len(unused) - 1} other unknown ones", wanted)
        return program

    def _own(self, name: str) -> Any:
        """A number that only some families have."""
        return self.values.number(name, None) if name in self.family.own else None

    def _rotated_layers(self) -> list[bool]:
        """Which layers have a rotary."""
        values, layers = self.values, self.layers
        if "no_rope_layers" not in self.family.own:
            return [self.family.rotary] * layers
        period = values.integer("no_rope_layer_interval", 4)
        found = values.get("no_rope_layers", [int((at + 1) % period > 0) for at in range(layers)])
        if not isinstance(found, list) or len(found) != layers or not all(each in (0, 1) for each in found):
            raise values.wrong("no_rope_layers")
        return [bool(each) for each in found]

    def _windows(self, rotated: list[bool]) -> list[int | None]:
        """The window of each layer; None where there is none."""
        values, layers, rule = self.values, self.layers, self.family.windows
        used = rule in ("all", "periodic") or (bool(rule) and values.flag("use_sliding_window", False))
        window = values.integer("sliding_window", None) if used else None
        if window is None or rule == "all":
            return [window] * layers
        kinds = values.get("layer_types")
        if kinds is None:
            period, first = values.integer("sliding_window_pattern", 6), values.integer("max_window_layers", 28)
            sliding = {
                "periodic": [bool((at + 1) % period) for at in range(layers)],
                "last": [at >= first for at in range(layers)],
                "unrotated": [not own for own in rotated],
            }
            kinds = [_SLIDING if each else _FULL for each in sliding[rule]]
        if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (_SLIDING, _FULL) for kind in kinds):
            raise damaged(values.file, f"layer_types that are not {layers} times {_SLIDING} or {_FULL}")
        return [window if kind == _SLIDING else None for kind in kinds]

    def _rotary(self, sliding: bool) -> Rotary:
        """The rotary of layers with or without a window: rope_parameters, or rope_theta and rope_scaling as before."""
        values = self.values
        given, local = values.part("rope_parameters"), "rope_local_base_freq" in self.family.own
        if local and (_SLIDING in given or _FULL in given):
            given = _Values(values.file, given).part(_SLIDING if sliding else _FULL)
        if local and sliding:
            given = {"rope_theta": values.number("rope_local_base_freq", 1e4), **given}
        else:
            given = {"rope_theta": values.number("rope_theta", 1e4), **values.part("rope_scaling"), **given}
        fraction = values.number("partial_rotary_factor", 1.0)
        rotated = int(self.head_width * _Values(values.file, given).number("partial_rotary_factor", fraction))
        rotated = values.integer("rotary_width", rotated)
        if rotated % 2 or not 0 < rotated <= self.head_width:
            raise damaged(values.file, f"{rotated} rotated features of {self.head_width}")
        known = self.family.scalings
        frequencies, scale = _scaled_frequencies(_Values(values.file, given), rotated, self.context, known)
        if _FREQUENCY_DIVISORS in self.source.names() and isinstance(self.source, GgufFile):
            self.left.discard(_FREQUENCY_DIVISORS)
            divisors = self.source.matrix(_FREQUENCY_DIVISORS).dense().flatten()
            if len(divisors) != len(frequencies):
                raise damaged(values.file, f"{len(divisors)} divisors for {len(frequencies)} frequencies")
            frequencies = frequencies / divisors
        return Rotary(frequencies, scale, self.interleaved)

    def _layer(self, at: int, window: int | None, rotary: Rotary | None) -> Layer:
        prefix, family, width, inner = self.names["layer"].format(at), self.family, self.width, self.inner_width
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width

        def norm(part: str, width: int) -> Norm:
            return self._norm(prefix + self.names[part], width)

        more: dict[str, Any] = {}
        if family.head_norms:
            whole = family.head_norms == "projection"
            more["query_norm"] = norm("query_norm", queries if whole else self.head_width)
            more["key_norm"] = norm("key_norm", keys if whole else self.head_width)
        more |= self._products(prefix, "query_key_value", {"query": queries, "key": keys, "value": keys})
        attention = Attention(
            **more,
            output=self._product(prefix, "output", width, queries),
            heads=self.heads,
            kv_heads=self.kv_heads,
            width=self.head_width,
            scale=(self._own("query_pre_attn_scalar") or self.head_width) ** -0.5,
            rotary=rotary,
            window=window,
            softcap=self._own("attn_logit_softcapping"),
        )
        rows = {"gate": inner, "up": inner} if family.gated else {"up": inner}
        parts = self._products(prefix, "gate_up", rows)
        down = self._product(prefix, "down", width, inner)
        forward = FeedForward(parts["up"], down, parts.get("gate"), self.activation)
        norms: dict[str, Any] = {"attention_norm": None, "feed_forward_norm": None}
        norms |= {part: norm(part, width) for part in family.norms}
        return Layer(attention, forward, **norms, parallel=self.parallel)

    def _product(self, prefix: str, part: str, rows: int, columns: int) -> Linear:
        name = prefix + self.names[part]
        has_bias = part in self.biases or f"{name}.bias" in self.left
        bias = self._vector(f"{name}.bias", rows) if has_bias else None
        if self.family.transposed and not self.from_gguf:
            return Linear(self._matrix(name, columns, rows).transposed(), bias)
        return Linear(self._matrix(name, rows, columns), bias)

    def _products(self, prefix: str, together: str, rows: dict[str, int]) -> dict[str, Linear]:
        """Products of the model's width: of a tensor each, or of ranges of the rows of one tensor."""
        if together not in self.family.fused:
            return {part: self._product(prefix, part, count, self.width) for part, count in rows.items()}
        whole = self._product(prefix, together, sum(rows.values()), self.width)
        order = np.arange(whole.weight.rows).reshape(self.heads if self.family.by_head else 1, -1)
        found, first = {}, 0
        for part, count in rows.items():
            stop = first + count // len(order)
            place: Any = order[:, first:stop].flatten() if self.family.by_head else slice(first, stop)
            found[part] = Linear(whole.weight.part(place), None if whole.bias is None else whole.bias[place])
            first = stop
        return found

    def _norm(self, name: str, width: int) -> Norm:
        centred = self.family.norm == "layer"
        weight = self._vector(f"{name}.weight", width) + (0.0 if self.from_gguf else self.family.norm_offset)
        return Norm(weight, self.eps, self.family.norm, self._vector(f"{name}.bias", width) if centred else None)

    def _matrix(self, name: str, rows: int, columns: int) -> PackedMatrix:
        return self._take(f"{name}.weight", (rows, columns))

    def _vector(self, name: str, width: int) -> Tensor:
        return self._take(name, (width,)).dense()[0]

    def _take(self, name: str, shape: tuple[int, ...]) -> PackedMatrix:
        if name not in self.left:
            raise damaged(self.source.path.name, f"no tensor {name}")
        if (found := self.source.shape(name)) != shape:
            raise damaged(self.source.path.name, f"tensor {name} of shape {found}, not {shape}")
        self.left.discard(name)
        return self.source.matrix(name)


def _scaled_frequencies(given: _Values, width: int, context: int, known: Sequence[str]) -> tuple[Tensor, float]:
    """θ_i = base^(−2i/w), scaled: linear by a factor, llama3 by wavelength, yarn by rotations in the old context; and
    what cos and sin are multiplied by."""
    base, kind = given.number("rope_theta"), given.get("rope_type", given.get("type", "default"))
    if base <= 1:
        raise given.wrong("rope_theta")
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if kind in ("default", "none"):
        return frequencies, 1.0
    if kind not in known:
        raise _refused(f"the rotary scaling {kind!r}", ", ".join(known) or "no scaling")
    factor, old = given.number("factor"), given.integer("original_max_position_embeddings", context)
    if kind == "linear":
        return frequencies / factor, 1.0
    if kind == "llama3":
        low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
        smooth = ((old * frequencies / (2 * math.pi) - low) / ((high - low) or 1e-3)).clamp(0, 1)
        return frequencies * (smooth + (1 - smooth) / factor), 1.0
    turns = given.number("beta_fast", 32.0), given.number("beta_slow", 1.0)
    low, high = (width * math.log(old / (each * 2 * math.pi)) / (2 * math.log(base)) for each in turns)
    if given.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float64) - low) / ((high - low) or 1e-3)).clamp(0, 1)
    scale = 0.1 * math.log(factor) + 1
    by, over = given.number("mscale", None), given.number("mscale_all_dim", None)
    if by and over:
        scale = (0.1 * by * math.log(factor) + 1) / (0.1 * over * math.log(factor) + 1)
    return frequencies * (1 - ramp + ramp / factor), given.number("attention_factor", scale if factor > 1 else 1.0)
