"""Saved models: safetensors files, written atomically and validated before they are loaded.

The tensors are all parameters and buffers, each once, under its first name. The metadata have a format, its version and
as JSON the class and options of the model. Objects in it are {"class": name, "options": {…}} with names from a fixed
list: no code in a file is run.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import features, similarity
from ..cache.files import MAX_MODEL_HEADER, check_path, damaged_file, opened, write_safetensors
from ..errors import OptionError, OptionTypeError, QkvError, complaint
from ..features import MAX_FEATURES
from ..similarity import AnySimilarity
from . import positions
from .attention import Attention
from .block import Block, FeedForward
from .module import ConfiguredModule, gathered
from .stacks import Decoder, Encoder, EncoderDecoder

_FORMAT, _VERSION = "qkv.nn", "1"
_MODELS: dict[str, Any] = {
    kind.__name__: kind for kind in (Attention, Block, FeedForward, Encoder, Decoder, EncoderDecoder)
}
_OPTION_CLASSES: dict[str, Any] = {
    name: getattr(positions, name) for name in ("Rotary", "ALiBi", "RelativeBias", "Learned", "Sinusoidal")
} | {name: getattr(similarity, name) for name in ("Softmax", "Sigmoid", "Argmax", "Polynomial", "FeatureMap")}
_FEATURE_MAPS: dict[str, Any] = {"polynomial": features.polynomial, "positive_random": features.positive_random}
_FUNCTIONS = {name: getattr(features, name) for name in ("elu1", "relu", "identity", "squared")}
_MAP_OPTIONS = {
    "polynomial": ("degree", "offset"),
    "positive_random": ("width", "count", "seed", "scale", "orthogonal"),
}
_MAX_DRAWING = 1 << 34  # multiplications, about 3 s
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64,
    "BOOL": torch.bool,
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model of `qkv.nn` to a safetensors file. The file is replaced atomically.

    The file contains the weights, the model's class and its options. Similarities and positions are written by name;
    user-defined functions and modules are refused. Weights that `qkv.parallel.parallelize` has sharded are gathered, so
    every rank must call `save`.

    Raises:
        OptionTypeError: The model is not of `qkv.nn`, or has an option that cannot be written.
        OptionError: The model was modified after it was created, or a weight is NaN.
        OSError: The file cannot be written.

    >>> import tempfile, torch, qkv
    >>> model = qkv.nn.Decoder(12, heads=3, layers=2, vocabulary=31, positions=qkv.nn.Rotary()).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     qkv.nn.save(model, f"{folder}/model.safetensors")
    ...     again = qkv.nn.load(f"{folder}/model.safetensors")
    >>> tokens = torch.tensor([[2, 3, 5, 7]])
    >>> torch.equal(model(tokens), again(tokens))
    True
    """
    target = check_path(path)
    if _MODELS.get(type(model).__name__) is not type(model):
        wanted = "one of " + ", ".join(_MODELS)
        hint = "save the original of a compiled model, or the state_dict() of another module"
        raise OptionTypeError(complaint("model", type(model).__name__, wanted, hint))
    about = _to_json("model", model)
    tensors = _tensors(model)
    expected = _tensors(_empty_model(about, max((size for t in tensors.values() for size in t.shape), default=0)))
    changed = sorted(set(tensors) ^ set(expected)) or [n for n, t in tensors.items() if t.shape != expected[n].shape]
    if changed:
        given = f"a model whose {changed[0]} was added, removed or resized"
        raise OptionError(complaint("model", given, "an unmodified model", "save its state_dict() instead"))
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPE_NAMES:
            raise OptionError(complaint("model", f"{name} of {tensor.dtype}", "one of " + ", ".join(_DTYPES)))
    dtypes = sorted({_DTYPE_NAMES[tensor.dtype] for tensor in tensors.values()})
    described = {"model": about, "training": model.training, "dtypes": dtypes}
    metadata = {"format": _FORMAT, "version": _VERSION, "description": json.dumps(described, allow_nan=False)}
    complete = {name: gathered(tensor.detach()).cpu().contiguous() for name, tensor in tensors.items()}
    if (with_nan := _find_nan(complete)) is not None:
        hint = "training has diverged; safetensors.torch.save_file saves any values"
        raise OptionError(complaint("model", f"NaN in {with_nan}", "weights without NaN", hint))
    write_safetensors(target, complete, metadata)


def load(path: str | os.PathLike[str]) -> Any:
    """Load a model that `save` wrote: class, options, weights, dtypes and training mode.

    Names, shapes and dtypes are checked before memory for the weights is allocated. No random numbers are drawn.

    Raises:
        OptionError: The file is damaged, a pickle or not a model of `qkv.nn`, or a weight is NaN.
        OSError: The file cannot be read.
    """
    with opened(path, _FORMAT, _VERSION, MAX_MODEL_HEADER) as (source, file, metadata):
        names = list(file.keys())
        widest = max((size for name in names for size in file.get_slice(name).get_shape()), default=0)
        model, described = _read_description(source, metadata, len(names), widest)
        expected = _tensors(model)
        if set(names) != set(expected):
            name = min(set(names) ^ set(expected))
            raise damaged_file(source, f"no tensor {name}" if name in expected else f"an unexpected tensor {name}")
        for name, tensor in expected.items():
            part = file.get_slice(name)
            kind, shape = part.get_dtype(), tuple(part.get_shape())
            known = kind in _DTYPES and kind in described["dtypes"] and shape == tensor.shape
            if not known or _DTYPES[kind].is_floating_point is not tensor.dtype.is_floating_point:
                raise damaged_file(source, f"{name} of {kind} and shape {shape}")
        # Cloned, since the file may change later.
        found = {name: file.get_tensor(name).clone() for name in expected}
    if (with_nan := _find_nan(found)) is not None:
        raise damaged_file(source, f"NaN in {with_nan}")
    kinds = ((found[name], old) for name, old in expected.items())
    new = {id(old): nn.Parameter(tensor) if isinstance(old, nn.Parameter) else tensor for tensor, old in kinds}
    # Under all names, so that shared tensors stay shared.
    model.load_state_dict({name: new[id(t)] for name, t in model.state_dict(keep_vars=True).items()}, assign=True)
    return model.train(described["training"])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of the state_dict, each once, under its first name."""
    saved = set(model.state_dict(keep_vars=True))
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if name in saved}


def _find_nan(tensors: dict[str, Tensor]) -> str | None:
    """The name of a tensor with NaN in it."""
    return next((name for name, t in tensors.items() if t.is_floating_point() and bool(t.isnan().any())), None)


def _to_json(argument: str, given: Any) -> Any:
    """An option as JSON."""
    if given is None or isinstance(given, bool | int | float | str):
        return given
    if isinstance(given, Integral):
        return int(given)
    kind = type(given).__name__
    if isinstance(given, ConfiguredModule) and {**_MODELS, **_OPTION_CLASSES}.get(kind) is type(given):
        options = given.init_options
    elif isinstance(given, AnySimilarity) and _OPTION_CLASSES.get(kind) is type(given):
        options = {field.name: getattr(given, field.name) for field in fields(given) if field.init}
    elif isinstance(given, Tensor) and argument in ("sink", "bias"):
        return {"class": "sink", "options": {"shape": list(given.shape), "learned": isinstance(given, nn.Parameter)}}
    elif kind in _MAP_OPTIONS and isinstance(given, _FEATURE_MAPS[kind]):
        options = {name: getattr(given, name) for name in _MAP_OPTIONS[kind]}
    else:
        known = [name for name, function in _FUNCTIONS.items() if function is given]
        if not known:
            hint = "files contain no code: use a function of qkv, or save the state_dict()"
            raise OptionTypeError(complaint(argument, repr(given), "an object of qkv that has a name", hint))
        return {"class": "function", "options": {"name": known[0]}}
    return {"class": kind, "options": {name: _to_json(name, value) for name, value in options.items()}}


def _read_description(
    source: Path, metadata: dict[str, str], tensors: int, widest: int
) -> tuple[nn.Module, dict[str, Any]]:
    """The model that the metadata describe, on the meta device, and the description.

    Its sizes are compared with the number of tensors and their largest size before anything is made.
    """
    try:
        described = json.loads(metadata.get("description", ""))
        about = described["model"]
        valid = isinstance(described["training"], bool) and isinstance(described["dtypes"], list)
        if not valid or about["class"] not in _MODELS:
            raise ValueError("not a model of qkv.nn")
        # Every layer has tensors: more layers than tensors would only exhaust memory.
        for name in ("layers", "decoder_layers"):
            if (about["options"].get(name) or 0) > tensors:
                raise ValueError(f"{name} {about['options'][name]}")
        return _empty_model(about, widest), described
    except (QkvError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged_file(source, f"an invalid description: {error}") from error


def _empty_model(about: Any, widest: int) -> nn.Module:
    """A model of this class and options, on the meta device; `widest` is the largest size of its tensors."""
    with torch.device("meta"):
        options = {name: _from_json(value, widest) for name, value in about["options"].items()}
        return _MODELS[about["class"]](**options)


def _from_json(given: Any, widest: int) -> Any:
    """The inverse of `_to_json`, for options."""
    if not isinstance(given, dict):
        return given
    kind, options = given["class"], {name: _from_json(value, widest) for name, value in given["options"].items()}
    if kind == "function":
        return _FUNCTIONS[options["name"]]
    if kind == "sink":
        sink = torch.empty(options["shape"])
        return nn.Parameter(sink) if options["learned"] else sink
    if kind == "positive_random":
        width, count = options["width"], options["count"]
        # The directions are drawn again and made orthogonal: width² · count multiplications.
        if width > widest or width * count > MAX_FEATURES << 4 or width**2 * max(width, count) > _MAX_DRAWING:
            raise OptionError(complaint("map", f"{count} random features of width {width}", "fewer, of a head's width"))
    return {**_OPTION_CLASSES, **_FEATURE_MAPS}[kind](**options)
