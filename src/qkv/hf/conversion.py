"""`convert`: reduce the key/value heads of a checkpoint of transformers.

To find the weights that depend on the number of key/value heads, the architecture is built twice on the meta device,
with the old number and with the new one. Weights whose sizes differ are pooled; others than k_proj and v_proj are
refused.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import PreTrainedModel

from ..cache.files import write_safetensors
from ..errors import OptionError, OptionTypeError, complaint
from ..nn.head_groups import check_grouping, pooled
from .checkpoint import FLOATS, atomic_folder, check_target, copy_other_files, quiet, write_json
from .folders import CONFIG, INDEX, Checkpoint, damaged_file, one_line, open_checkpoint, read_tensors, source_error

_PROJECTION = re.compile(r"\.[kv]_proj\.(weight|bias)$")


class Conversion(NamedTuple):
    """Summary of a conversion. Cache bytes are of all layers, in the dtype of k_proj and v_proj."""

    layers: int
    heads: int
    kv_heads_before: int
    kv_heads: int
    parameters_before: int
    parameters: int
    cache_bytes_per_token_before: int
    cache_bytes_per_token: int


def convert(
    source: str | os.PathLike[str] | PreTrainedModel,
    target: str | os.PathLike[str],
    *,
    kv_heads: int,
    keep: Iterable[int] = (),
) -> Conversion:
    """Write a copy of a checkpoint with `kv_heads` key/value heads per layer, each the mean of a group of heads.

        qkv.hf.convert("models/stories15M", "models/stories15M-2", kv_heads=2)

    The target is written atomically: under a hidden name next to it, then renamed. What a killed process leaves there
    is removed by the next conversion to the same target. A trained model needs some more training afterwards.

    Args:
        source: A folder with config.json and safetensors, or a loaded model, such as one from GGUF; save its tokenizer
            into the target afterwards. The configuration must have num_key_value_heads and the layers k_proj and
            v_proj, as in Llama, Mistral, Qwen, Gemma and SmolLM. Pickles are never read.
        target: A new or empty folder; `AutoModelForCausalLM.from_pretrained(target)` loads it.
        kv_heads: The new number of key/value heads, a divisor of the old one.
        keep: Heads that their groups take instead of the mean, in every layer; at most one per group.

    Returns:
        A `Conversion`.

    Raises:
        OptionError: The checkpoint is damaged or not supported, or an option is invalid.
        OptionTypeError: An argument has a wrong type.
    """
    if not isinstance(target, str | os.PathLike):
        raise OptionTypeError(complaint("target", repr(target), "the path of a folder"))
    location = check_target(target)
    if isinstance(keep, Iterable) and not isinstance(keep, str):
        keep = tuple(keep)  # an iterator is read once
    if isinstance(source, PreTrainedModel):
        described = {**source.config.to_dict(), "architectures": [type(source).__name__]}
        described.pop("quantization_config", None)  # its weights are checked instead
        _make_plan(described, kv_heads, keep)  # before anything is written
        plain = _copy_without_quantizer(source, described)
        with atomic_folder(location) as part:
            with quiet():
                plain.save_pretrained(part / "source")
            checkpoint = open_checkpoint(part / "source")
            plan = _make_plan(checkpoint.config, kv_heads, keep)
            _check_weights(checkpoint, plan)
            report = _write(checkpoint, plan, part, keep)
            shutil.rmtree(part / "source")
        return report
    if not isinstance(source, str | os.PathLike):
        raise OptionTypeError(complaint("source", repr(source), "a folder, or a model of transformers"))
    checkpoint = open_checkpoint(Path(source))
    plan = _make_plan(checkpoint.config, kv_heads, keep)
    _check_weights(checkpoint, plan)
    with atomic_folder(location) as part:
        return _write(checkpoint, plan, part, keep)


class _Plan(NamedTuple):
    kind: Any  # the class of the model
    config: Any
    kv_heads: tuple[int, int]  # before and after, as in the next two fields
    shapes: dict[str, tuple[torch.Size, torch.Size]]  # of every k_proj and v_proj
    parameters: tuple[int, int]


def _make_plan(raw: dict[str, Any], kv_heads: int, keep: Iterable[int]) -> _Plan:
    """Find what changes in a model of this configuration; refuse changes other than to k_proj and v_proj."""
    name = raw.get("model_type")
    if not isinstance(name, str) or name not in transformers.CONFIG_MAPPING:
        raise source_error(f"model_type {name!r}", "an architecture of transformers", "code in a checkpoint is not run")
    if raw.get("quantization_config"):
        hint = "load it dequantized and pass the model"
        raise source_error(f"{name} with quantization_config", "weights that are not quantized", hint)
    config = _read_config(raw)
    before = getattr(config, "num_key_value_heads", None)
    if type(before) is not int:
        given = "without num_key_value_heads" if before is None else f"with num_key_value_heads {before}"
        raise source_error(f"{name} {given}", "one number of key/value heads in the configuration")
    _, after, _ = check_grouping(before, kv_heads, keep)
    if after == before:
        raise OptionError(complaint("kv_heads", kv_heads, f"fewer than the model's {before}"))
    kind = _model_class(raw, config)
    configs = config, _read_config({**raw, "num_key_value_heads": after})
    old, new = (_made(kind.__name__, partial(kind, each)) for each in configs)
    old_shapes, new_shapes = ({key: tensor.shape for key, tensor in each.state_dict().items()} for each in (old, new))
    changed = [key for key in old_shapes if new_shapes.get(key) != old_shapes[key]]
    if not changed:
        raise source_error(f"{name}, in which no weight depends on num_key_value_heads", "k_proj and v_proj that do")
    for key in changed:
        rows, *columns = old_shapes[key]
        if not _PROJECTION.search(key) or new_shapes.get(key) != (rows // before * after, *columns):
            given = f"{name} with {key}, whose size depends on the key/value heads"
            pool = "a norm over all key heads cannot be pooled"
            hint = pool if "norm" in key else "split a fused projection first"
            raise source_error(given, "a model in which only k_proj and v_proj do", hint)
    counts = [sum(parameter.numel() for parameter in each.parameters()) for each in (old, new)]
    shapes = {key: (old_shapes[key], new_shapes[key]) for key in old_shapes if _PROJECTION.search(key)}
    return _Plan(kind, config, (before, after), shapes, (counts[0], counts[1]))


def _read_config(raw: dict[str, Any]) -> Any:
    return _made(raw["model_type"], lambda: transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(dict(raw)))


def _made(name: str, make: Any) -> Any:
    """A configuration or a model on the meta device."""
    try:
        with torch.device("meta"), quiet():
            return make()
    except Exception as error:  # architectures raise errors of any type
        raise source_error(f"a {CONFIG} that {name} refuses ({one_line(error)})", "a valid one") from error


def _model_class(raw: dict[str, Any], config: Any) -> Any:
    """The class that the configuration names, or the causal language model of its architecture."""
    named = raw.get("architectures")
    if not named and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    first = named[0] if isinstance(named, list) and named else None
    kind = getattr(transformers, first, None) if isinstance(first, str) else None
    if not isinstance(kind, type) or not issubclass(kind, PreTrainedModel):
        raise source_error(f"architectures {named!r}", "a model of transformers")
    return kind


def _copy_without_quantizer(source: PreTrainedModel, described: dict[str, Any]) -> Any:
    """The same weights in a new model; transformers refuses to save a model that was loaded from GGUF."""
    config = _read_config(described)
    plain = _made(type(source).__name__, lambda: type(source)(config))
    state, wanted = source.state_dict(), plain.state_dict()
    for key in sorted(set(state) | set(wanted)):
        if key not in state or key not in wanted or state[key].shape != wanted[key].shape:
            given = f"{type(source).__name__} whose {key} was added, removed or resized"
            raise source_error(given, "dense weights and no adapters", "load it dequantized, and merge adapters")
        if state[key].is_meta or state[key].is_floating_point() is not wanted[key].is_floating_point():
            given = f"{type(source).__name__} whose {key} is {state[key].dtype} on {state[key].device}"
            raise source_error(given, "floating-point weights in memory")
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    plain.generation_config = source.generation_config
    return plain


def _check_weights(checkpoint: Checkpoint, plan: _Plan) -> None:
    """Check names, shapes and dtypes before any tensor is read."""
    found = checkpoint.tensors
    for key, (shape, _) in plan.shapes.items():
        if key not in found:
            raise damaged_file(CONFIG, f"layers without weights: there is no {key}")
        if found[key].shape != shape or found[key].dtype not in FLOATS:
            given = f"{key} of {found[key].dtype} and shape {found[key].shape}"
            raise damaged_file(found[key].file, f"{given}; {CONFIG} needs floating point of shape {tuple(shape)}")
    for key in found:
        if _PROJECTION.search(key) and key not in plan.shapes:
            raise damaged_file(found[key].file, f"{key}, which {plan.kind.__name__} does not have")
    # transformers checks the rest: it knows old names and shared weights. On the meta device no tensor is read.
    try:
        with quiet():
            _, report = plan.kind.from_pretrained(
                checkpoint.folder, config=plan.config, device_map="meta", output_loading_info=True,
                ignore_mismatched_sizes=True, use_safetensors=True, local_files_only=True,
            )  # fmt: skip
    except Exception as error:
        raise damaged_file(str(checkpoint.folder), f"weights that cannot be loaded ({one_line(error)})") from error
    for key, there, wanted in sorted(report["mismatched_keys"]):
        raise damaged_file(str(checkpoint.folder), f"{key} of shape {tuple(there)}; {CONFIG} needs {tuple(wanted)}")
    for key in sorted(report["missing_keys"]):
        raise damaged_file(str(checkpoint.folder), f"no {key}, which {CONFIG} needs")


def _write(checkpoint: Checkpoint, plan: _Plan, part: Path, keep: Iterable[int]) -> Conversion:
    """Write the files of the new folder."""
    before, after = plan.kv_heads
    size = 0
    for name in checkpoint.files:
        tensors, metadata = read_tensors(checkpoint.folder / name)
        for key in tensors:
            if key in plan.shapes and plan.shapes[key][0] != plan.shapes[key][1]:
                tensors[key] = pooled(tensors[key], before, after, keep=keep)
        write_safetensors(part / name, tensors, metadata)
        shutil.copymode(checkpoint.folder / name, part / name)
        size += sum(tensor.nbytes for tensor in tensors.values())
    if checkpoint.shards is not None:
        about = {**(checkpoint.shards.get("metadata") or {}), "total_size": size}
        if "total_parameters" in about:
            about["total_parameters"] = plan.parameters[1]
        write_json(part / INDEX, {**checkpoint.shards, "metadata": about})
    write_json(part / CONFIG, {**checkpoint.config, "num_key_value_heads": after})
    copy_other_files(checkpoint.folder, part)
    rows = [key for key in plan.shapes if key.endswith(".weight")]
    sizes = {key: FLOATS[checkpoint.tensors[key].dtype].itemsize for key in rows}
    cache = [sum(plan.shapes[key][i][0] * sizes[key] for key in rows) for i in range(2)]
    layers = sum(key.endswith("k_proj.weight") for key in rows)
    return Conversion(layers, plan.config.num_attention_heads, *plan.kv_heads, *plan.parameters, *cache)
