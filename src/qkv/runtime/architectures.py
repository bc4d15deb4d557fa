"""Programs of llama, qwen2 and gemma3, from a GGUF file's metadata or a config.json.

Metadata are renamed to the names of a config.json first. What the program cannot describe is refused by name.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError, complaint
from .blocks import PackedMatrix
from .files import Source
from .gguf import GgufArray, GgufFile, damaged
from .program import Attention, FeedForward, Layer, Linear, Norm, NotCovered, Program, Rotary

_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "gemma3_text": "gemma3"}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_TENSORS = _TABLES["tensors"]
SPLITS: dict[str, dict[str, Any]] = _TABLES["splits"]
_SLIDING, _FULL = "sliding_attention", "full_attention"

_FREQUENCY_DIVISORS = "rope_freqs.weight"  # llama3's scaling in a GGUF file
_REQUIRED = object()


def _refused(what: str, wanted: str) -> NotCovered:
    hint = 'transformers runs it with qkv\'s attention: qkv.hf.load(path), or attn_implementation="qkv"'
    return NotCovered(complaint("path", f"a model with {what}", wanted, hint))


@dataclass(frozen=True)
class _Values:
    """Typed values of a configuration; None is a value that is missing."""

    file: str
    given: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
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
        found = self.given[name]
        return damaged(self.file, f"{name}: {'an array' if isinstance(found, GgufArray) else repr(found)[:100]}")


def read_program(source: Source) -> Program:
    """The program of a file: sizes and shapes are checked, matrices stay where they are.

    Raises:
        OptionError: The architecture is not covered, or the file is damaged.
    """
    values = _gguf_values(source) if isinstance(source, GgufFile) else _Values("config.json", source.config)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        raise _refused(f"the architecture {kind!r}", ", ".join(_ARCHITECTURES))
    for name, allowed in _TABLES["refused"].items():
        if (found := values.get(name)) is not None and found not in allowed:
            raise _refused(f"{name} {str(found)[:60]}", f"{name} {(allowed or [None])[0]}")
    return _Builder(source, values, _ARCHITECTURES[kind]).build()


def _gguf_values(source: GgufFile) -> _Values:
    """A file's metadata under the names of a config.json."""
    kind = source.metadata.get("general.architecture")
    found: dict[str, Any] = {"model_type": "gemma3_text" if kind == "gemma3" else kind, "rope_scaling": {}}
    for key, value in source.metadata.items():
        name = key.removeprefix(f"{kind}.")
        if name == key:
            continue
        if name not in _TABLES["settings"]:
            raise _refused(f"the setting {key}", "settings of a plain llama, qwen2 or gemma3")
        outer, _, inner = _TABLES["settings"][name].rpartition(".")
        (found[outer] if outer else found)[inner] = value
    values = _Values(source.path.name, found)
    found["tie_word_embeddings"] = f"{_TENSORS['gguf']['logits']}.weight" not in source.names()
    if kind == "gemma3":
        heads, width = values.integer("num_attention_heads"), values.integer("hidden_size")
        # The largest Gemma 3 alone scales by the width that its heads would have if they shared the model's width.
        narrow = values.integer("num_hidden_layers") == 62
        found["query_pre_attn_scalar"] = width // heads if narrow else values.integer("head_dim", width // heads)
        values.integer("sliding_window")
    return values


class _Builder:
    """Takes the tensors of a file into a program; all of them must be used."""

    def __init__(self, source: Source, values: _Values, architecture: str) -> None:
        self.source, self.values, self.architecture = source, values, architecture
        self.gemma, from_gguf = architecture == "gemma3", isinstance(source, GgufFile)
        self.names = _TENSORS["gguf"] if from_gguf else _TENSORS["config"] | (_TENSORS["gemma3"] if self.gemma else {})
        self.norm_offset = float(self.gemma and not from_gguf)  # GGUF files have it in the weights
        self.interleaved = from_gguf and architecture == "llama"
        self.left = set(source.names())
        self.layers = values.integer("num_hidden_layers")
        if self.layers > len(self.left):
            raise damaged(values.file, f"{self.layers} layers and {len(self.left)} tensors")
        self.heads, self.width = values.integer("num_attention_heads"), values.integer("hidden_size")
        self.kv_heads = values.integer("num_key_value_heads", 4 if self.gemma else self.heads)
        if self.heads % self.kv_heads:
            raise damaged(values.file, f"{self.heads} heads on {self.kv_heads} key/value heads")
        self.head_width = values.integer("head_dim", 256 if self.gemma else self.width // self.heads or 1)
        if values.integer("value_head_dim", self.head_width) != self.head_width:
            raise _refused("values of another width than keys", "the same width")
        self.inner_width = values.integer("intermediate_size")
        self.context = values.integer("max_position_embeddings")
        self.eps = float(values.number("rms_norm_eps"))
        by_family = ("hidden_activation", "gelu_pytorch_tanh") if self.gemma else ("hidden_act", "silu")
        activation = values.get(*by_family)
        if not isinstance(activation, str) or activation not in _ACTIVATIONS:
            raise _refused(f"the activation {activation!r}", ", ".join(_ACTIVATIONS))
        self.activation = _ACTIVATIONS[activation]
        biased = 4 if values.flag("attention_bias", False) else 3 if architecture == "qwen2" else 0
        self.biases = set(("query", "key", "value", "output")[:biased])
        self.biases |= {"gate", "up", "down"} if values.flag("mlp_bias", False) else set()

    def build(self) -> Program:
        name = self.names["embedding"] + ".weight"
        rows = self.source.shape(name)[0] if name in self.left else 0
        embedding = self._matrix(self.names["embedding"], rows, self.width)
        if self.values.flag("tie_word_embeddings", self.gemma):
            logits = Linear(embedding)
            self.left.discard(self.names["logits"] + ".weight")
        else:
            logits = Linear(self._matrix(self.names["logits"], rows, self.width))
        rotaries = {sliding: self._rotary(sliding) for sliding in (True, False)}
        windows = self._windows()
        program = Program(
            self.architecture,
            embedding,
            tuple(self._layer(at, window, rotaries[window is not None]) for at, window in enumerate(windows)),
            self._norm(self.names["final_norm"], self.width),
            logits,
            self.context,
            embedding_scale=math.sqrt(self.width) if self.gemma else 1.0,
            logits_softcap=self.values.number("final_logit_softcapping", None) if self.gemma else None,
        )
        unused = sorted(name for name in self.left if not name.endswith("rotary_emb.inv_freq"))
        if unused:
            wanted = f"the tensors of a plain {self.architecture}"
            raise _refused(f"the tensor {unused[0]} and {len(unused) - 1} other unknown ones", wanted)
        return program

    def _windows(self) -> list[int | None]:
        """The window of each layer; None where there is none."""
        values, layers = self.values, self.layers
        if not self.gemma and not (self.architecture == "qwen2" and values.flag("use_sliding_window", False)):
            return [None] * layers
        window = values.integer("sliding_window", 4096)
        kinds = values.get("layer_types")
        if kinds is None and self.gemma:
            period = values.integer("sliding_window_pattern", 6)
            kinds = [_SLIDING if (at + 1) % period else _FULL for at in range(layers)]
        elif kinds is None:
            first = values.integer("max_window_layers", 28)
            kinds = [_SLIDING if at >= first else _FULL for at in range(layers)]
        if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (_SLIDING, _FULL) for kind in kinds):
            raise damaged(values.file, f"layer_types that are not {layers} times {_SLIDING} or {_FULL}")
        return [window if kind == _SLIDING else None for kind in kinds]

    def _rotary(self, sliding: bool) -> Rotary:
        """The rotary of layers with or without a window: rope_parameters, or rope_theta and rope_scaling as before."""
        values = self.values
        given = values.part("rope_parameters")
        if self.gemma and (_SLIDING in given or _FULL in given):
            given = _Values(values.file, given).part(_SLIDING if sliding else _FULL)
        if self.gemma and sliding:
            given = {"rope_theta": values.number("rope_local_base_freq", 1e4), **given}
        else:
            theta = values.number("rope_theta", 1e6 if self.gemma else 1e4)
            given = {"rope_theta": theta, **values.part("rope_scaling"), **given}
        fraction = values.number("partial_rotary_factor", 1.0)
        rotated = int(self.head_width * _Values(values.file, given).number("partial_rotary_factor", fraction))
        rotated = values.integer("rotary_width", rotated)
        if rotated % 2 or not 0 < rotated <= self.head_width:
            raise damaged(values.file, f"{rotated} rotated features of {self.head_width}")
        frequencies, scale = _scaled_frequencies(_Values(values.file, given), rotated, self.context)
        if _FREQUENCY_DIVISORS in self.source.names() and isinstance(self.source, GgufFile):
            self.left.discard(_FREQUENCY_DIVISORS)
            divisors = self.source.matrix(_FREQUENCY_DIVISORS).dense().flatten()
            if len(divisors) != len(frequencies):
                raise damaged(values.file, f"{len(divisors)} divisors for {len(frequencies)} frequencies")
            frequencies = frequencies / divisors
        return Rotary(frequencies, scale, self.interleaved)

    def _layer(self, at: int, window: int | None, rotary: Rotary) -> Layer:
        prefix, width, inner = self.names["layer"].format(at), self.width, self.inner_width
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        shapes = {"query": (queries, width), "key": (keys, width), "value": (keys, width), "output": (width, queries)}
        shapes |= {"up": (inner, width), "down": (width, inner), "gate": (inner, width)}

        def linear(part: str) -> Linear:
            name = prefix + self.names[part]
            bias = part in self.biases or f"{name}.bias" in self.left
            vector = self._vector(f"{name}.bias", shapes[part][0]) if bias else None
            return Linear(self._matrix(name, *shapes[part]), vector)

        def norms(width: int, *parts: str) -> dict[str, Any]:
            return {part: self._norm(prefix + self.names[part], width) for part in parts}

        scale = (self.values.number("query_pre_attn_scalar", 256.0) if self.gemma else self.head_width) ** -0.5
        more = norms(self.head_width, "query_norm", "key_norm") if self.gemma else {}
        more |= {part: linear(part) for part in ("query", "key", "value", "output")}
        sizes = {"heads": self.heads, "kv_heads": self.kv_heads, "width": self.head_width}
        attention = Attention(**more, **sizes, scale=scale, rotary=rotary, window=window)
        forward = FeedForward(linear("up"), linear("down"), linear("gate"), self.activation)
        more = norms(width, "attention_post_norm", "feed_forward_post_norm") if self.gemma else {}
        return Layer(attention, forward, **norms(width, "attention_norm", "feed_forward_norm"), **more)

    def _norm(self, name: str, width: int) -> Norm:
        return Norm(self._vector(f"{name}.weight", width) + self.norm_offset, self.eps)

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


def _scaled_frequencies(given: _Values, width: int, context: int) -> tuple[Tensor, float]:
    """θ_i = base^(−2i/w), scaled: linear by a factor, llama3 by wavelength, yarn by rotations in the old context; and
    what cos and sin are multiplied by."""
    base, kind = given.number("rope_theta"), given.get("rope_type", given.get("type", "default"))
    if base <= 1:
        raise given.wrong("rope_theta")
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if kind in ("default", "none"):
        return frequencies, 1.0
    if kind not in ("linear", "llama3", "yarn"):
        raise _refused(f"the rotary scaling {kind!r}", "linear, llama3 or yarn")
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
