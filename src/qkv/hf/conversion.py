"""A model of transformers with fewer key and value heads: one checkpoint folder is read, another is written.

Which weights depend on the number of key and value heads is not guessed from names: the architecture is built twice on
the meta device, with the old number and with the new one. What differs in size is pooled, or named in a refusal.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import PreTrainedModel

from ..cache.files import write_safetensors
from ..errors import OptionError, OptionTypeError, complaint
from ..nn.head_groups import check_grouping, pooled
from .checkpoint import (
    CONFIG,
    FLOATS,
    INDEX,
    Checkpoint,
    atomic_folder,
    check_target,
    copy_other_files,
    damaged_file,
    one_line,
    open_checkpoint,
    quiet,
    read_tensors,
    source_error,
    write_json,
)

_PROJECTION = re.compile(r"\.[kv]_proj\.(weight|bias)$")


class Conversion(NamedTuple):
    """What `convert` did. The cache's bytes are those of all layers, in the dtype of k_proj and v_proj."""

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
    """Write a copy of a checkpoint whose layers have `kv_heads` key and value heads, each the mean of a group.

    source: a folder with config.json and safetensors, in one file or in shards; or a model that is loaded, as one from
    GGUF (it has no tokenizer: save that into the target afterwards). Its configuration has num_key_value_heads, and
    its layers have k_proj and v_proj, as Llama, Mistral, Qwen, Gemma and SmolLM. Pickles are never read.
    target: a folder that is not there yet, or is empty; `AutoModelForCausalLM.from_pretrained(target)` loads it.
    keep: heads that their groups take in place of the mean, in every layer, at most one a group.

        qkv.hf.convert("models/stories15M", "models/stories15M-2", kv_heads=2)

    There is either the whole new folder or none: it is written beside the target, under a hidden name, and moved at the
    end. What a killed process leaves there is removed by the next conversion to the same target.
    A model that was trained needs some more training to come back to what it was.
    """
    if not isinstance(target, str | os.PathLike):
        raise OptionTypeError(complaint("target", repr(target), "the path of a folder"))
    place = check_target(target)
    if isinstance(keep, Iterable) and not isinstance(keep, str):
        keep = tuple(keep)  # an iterator is read once
    if isinstance(source, PreTrainedModel):
        described = {**source.config.to_dict(), "architectures": [type(source).__name__]}
        described.pop("quantization_config", None)  # its weights are looked at instead
        _make_plan(described, kv_heads, keep)  # before anything is written
        plain = _copy_without_quantizer(source, described)
        with atomic_folder(place) as part:
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
    with atomic_folder(place) as part:
        return _write(checkpoint, plan, part, keep)


class _Plan(NamedTuple):
    kind: Any  # the class of the model
    config: Any
    kv_heads: tuple[int, int]  # before and after, as the next two
    shapes: dict[str, tuple[torch.Size, torch.Size]]  # of every k_proj and v_proj
    parameters: tuple[int, int]


def _make_plan(raw: dict[str, Any], kv_heads: int, keep: Iterable[int]) -> _Plan:
    """What changes in a model of this configuration; refused unless it is k_proj and v_proj and nothing else."""
    name = raw.get("model_type")
    if not isinstance(name, str) or name not in transformers.CONFIG_MAPPING:
        raise source_error(
            f"model_type {name!r}", "an architecture of transformers", "code beside a checkpoint is not run"
        )
    if raw.get("quantization_config"):
        hint = "load it dequantised, and give the model"
        raise source_error(f"{name} with quantization_config", "weights that are not quantised", hint)
    config = _read_config(raw)
    before = getattr(config, "num_key_value_heads", None)
    if type(before) is not int:
        said = "without num_key_value_heads" if before is None else f"with num_key_value_heads {before}"
        raise source_error(f"{name} {said}", "one number of key and value heads in the configuration")
    _, after, _ = check_grouping(before, kv_heads, keep)
    if after == before:
        raise OptionError(complaint("kv_heads", kv_heads, f"fewer than the {before} that there are"))
    kind = _model_class(raw, config)
    old, new = _meta_model(kind, config), _meta_model(kind, _read_config({**raw, "num_key_value_heads": after}))
    was, becomes = ({key: tensor.shape for key, tensor in each.state_dict().items()} for each in (old, new))
    changed = [key for key in was if becomes.get(key) != was[key]]
    if not changed:
        raise source_error(f"{name}, where no weight depends on num_key_value_heads", "k_proj and v_proj that do")
    for key in changed:
        if not _PROJECTION.search(key) or becomes.get(key) != (was[key][0] // before * after, *was[key][1:]):
            given = f"{name} with {key}, whose size depends on the key and value heads"
            norm = "a norm over all key heads together cannot be pooled"
            hint = norm if "norm" in key else "a projection that is fused with others has to be split first"
            raise source_error(given, "a model where only k_proj and v_proj do", hint)
    counts = [sum(parameter.numel() for parameter in each.parameters()) for each in (old, new)]
    shapes = {key: (was[key], becomes[key]) for key in was if _PROJECTION.search(key)}
    return _Plan(kind, config, (before, after), shapes, (counts[0], counts[1]))


def _read_config(raw: dict[str, Any]) -> Any:
    try:
        with quiet():
            return transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(dict(raw))
    except Exception as error:  # every architecture has checks and errors of its own
        raise source_error(
            f"a {CONFIG} that {raw['model_type']} does not take ({one_line(error)})", "a sound one"
        ) from error


def _model_class(raw: dict[str, Any], config: Any) -> Any:
    """The class that the configuration names, or else the language model of its architecture."""
    named = raw.get("architectures")
    if not named and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    first = named[0] if isinstance(named, list) and named else None
    kind = getattr(transformers, first, None) if isinstance(first, str) else None
    if not isinstance(kind, type) or not issubclass(kind, PreTrainedModel):
        raise source_error(f"architectures {named!r}", "a model of transformers")
    return kind


def _meta_model(kind: Any, config: Any) -> Any:
    """The model without numbers."""
    try:
        with torch.device("meta"), quiet():
            return kind(config)
    except Exception as error:
        raise source_error(f"a {CONFIG} that makes no {kind.__name__} ({one_line(error)})", "a sound one") from error


def _copy_without_quantizer(source: PreTrainedModel, described: dict[str, Any]) -> Any:
    """The same weights in a model that does not know where they came from: one from GGUF refuses to be saved."""
    plain = _meta_model(type(source), _read_config(described))
    state, wanted = source.state_dict(), plain.state_dict()
    for key in sorted(set(state) | set(wanted)):
        if key not in state or key not in wanted or state[key].shape != wanted[key].shape:
            given = f"{type(source).__name__} whose {key} is not as its class makes it"
            raise source_error(given, "dense weights and no adapters", "load it dequantised, merge what was added")
        if state[key].is_meta or state[key].is_floating_point() is not wanted[key].is_floating_point():
            given = f"{type(source).__name__} whose {key} is {state[key].dtype} on {state[key].device}"
            raise source_error(given, "weights in floating point that are in memory")
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    plain.generation_config = source.generation_config
    return plain


def _check_weights(checkpoint: Checkpoint, plan: _Plan) -> None:
    """Names, shapes and dtypes, before a number is read."""
    found = checkpoint.tensors
    for key, (shape, _) in plan.shapes.items():
        if key not in found:
            raise damaged_file(CONFIG, f"layers that the weights do not have: there is no {key}")
        if found[key].shape != shape or found[key].dtype not in FLOATS:
            given = f"{key} of {found[key].dtype} and shape {found[key].shape}"
            raise damaged_file(found[key].file, f"{given}, where {CONFIG} makes it {tuple(shape)} of floating point")
    for key in found:
        if _PROJECTION.search(key) and key not in plan.shapes:
            raise damaged_file(found[key].file, f"{key}, which {plan.kind.__name__} does not have")
    # The rest by transformers' own rules, which know old names and shared weights. On meta nothing is read.
    try:
        with quiet():
            _, report = plan.kind.from_pretrained(
                checkpoint.folder, config=plan.config, device_map="meta", output_loading_info=True,
                ignore_mismatched_sizes=True, use_safetensors=True, local_files_only=True,
            )  # fmt: skip
    except Exception as error:
        raise damaged_file(str(checkpoint.folder), f"weights that are not loaded ({one_line(error)})") from error
    for key, there, wanted in sorted(report["mismatched_keys"]):
        raise damaged_file(
            str(checkpoint.folder), f"{key} of shape {tuple(there)}, where {CONFIG} makes it {tuple(wanted)}"
        )
    for key in sorted(report["missing_keys"]):
        raise damaged_file(str(checkpoint.folder), f"no {key}, which {CONFIG} asks for")


def _write(checkpoint: Checkpoint, plan: _Plan, part: Path, keep: Iterable[int]) -> Conversion:
    """The new folder's files."""
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
    cache = [sum(plan.shapes[key][i][0] * _item_size(checkpoint, key) for key in rows) for i in range(2)]
    return Conversion(
        layers=sum(key.endswith("k_proj.weight") for key in rows),
        heads=plan.config.num_attention_heads,
        kv_heads_before=before,
        kv_heads=after,
        parameters_before=plan.parameters[0],
        parameters=plan.parameters[1],
        cache_bytes_per_token_before=cache[0],
        cache_bytes_per_token=cache[1],
    )


def _item_size(checkpoint: Checkpoint, key: str) -> int:
    return FLOATS[checkpoint.tensors[key].dtype].itemsize
