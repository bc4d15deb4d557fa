"""Similarities and masks as the plain arguments of a torch operator: a text, numbers and tensors.

An operator takes no objects. A mask is written as the constructor calls that make it again, with numbers and tensors
in separate lists, so that sizes may stay symbolic and tensors stay part of the graph:

    Causal() & Padding(lengths=[3, 5])  ->  "Causal offset;Padding lengths#2;And&2", [0, 3, 5], []
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import features, masks
from ..masks import And, Dense, Extent, Mask, Or
from ..similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Sigmoid, Softmax

_SIMILARITIES = {"Softmax": Softmax, "Sigmoid": Sigmoid, "Argmax": Argmax, "Polynomial": Polynomial}
_MAPS = {"identity": features.identity, "elu1": features.elu1, "relu": features.relu, "squared": features.squared}


class MaskDescription(NamedTuple):
    """A mask: constructor calls in postfix order, the integers and the tensors that they take."""

    text: str
    numbers: list[int]
    tensors: list[Tensor]


def describe_mask(mask: Mask | None, extent: Extent | None, device: torch.device) -> MaskDescription | None:
    """The description of a mask; None if it cannot be described.

    Args:
        mask: A mask of `qkv.masks`.
        extent: The sizes; masks that are no plain data are described by their cells. None if the sizes are not known.
        device: The device of the cells.
    """
    numbers: list[int] = []
    tensors: list[Tensor] = []
    text = "" if mask is None else _describe(mask, extent, device, numbers, tensors)
    return None if text is None else MaskDescription(text, numbers, tensors)


def _describe(
    mask: Mask, extent: Extent | None, device: torch.device, numbers: list[int], tensors: list[Tensor]
) -> str | None:
    if isinstance(mask, And | Or):
        parts = [_describe(part, extent, device, numbers, tensors) for part in mask.masks]
        known = [part for part in parts if part is not None]
        joined = f"{'And' if isinstance(mask, And) else 'Or'}&{len(parts)}"
        return ";".join([*known, joined]) if len(known) == len(parts) else None
    plain = getattr(masks, type(mask).__name__, None) is type(mask)
    fields = {name: getattr(mask, name) for name in _field_names(mask)}
    if plain and all(_is_data(value) for value in fields.values()) and not (isinstance(mask, Dense) and extent):
        words = [type(mask).__name__]
        for name, value in fields.items():
            if isinstance(value, tuple):
                words.append(f"{name}#{len(value)}")
                numbers.extend(value)
            elif isinstance(value, int):
                words.append(name)
                numbers.append(value)
            elif value is not None:
                words.append(f"{name}*")
                tensors.append(torch.as_tensor(value, device=device))
        return " ".join(words)
    if extent is None:
        return None
    tensors.append(mask.tile(extent, (0, extent.len_q), (0, extent.len_k), device))
    return "Dense keep*"


def _field_names(mask: Mask) -> list[str]:
    slots = [name for cls in type(mask).__mro__ for name in getattr(cls, "__slots__", ())]
    return [name for name in slots if not name.startswith("_")]


def _is_data(value: Any) -> bool:
    return value is None or isinstance(value, int | tuple) or hasattr(value, "dtype")


def mask_from_description(text: str, numbers: list[int], tensors: list[Tensor]) -> Mask | None:
    """The mask that `describe_mask` has described."""
    if not text:
        return None
    return _build(text, numbers, tensors) if tensors else _build_without_tensors(text, tuple(numbers))


@lru_cache
def _build_without_tensors(text: str, numbers: tuple[int, ...]) -> Mask:
    return _build(text, list(numbers), [])


def _build(text: str, numbers: list[int], tensors: list[Tensor]) -> Mask:
    next_number, next_tensor = iter(numbers), iter(tensors)
    stack: list[Mask] = []
    for call in text.split(";"):
        name, *fields = call.split(" ")
        if "&" in name:
            name, _, count = name.partition("&")
            parts = stack[-int(count) :]
            del stack[-int(count) :]
            stack.append(getattr(masks, name)(*parts))
            continue
        arguments: dict[str, Any] = {}
        for field in fields:
            if field.endswith("*"):
                arguments[field[:-1]] = next(next_tensor)
            elif "#" in field:
                field, _, count = field.partition("#")
                arguments[field] = tuple(next(next_number) for _ in range(int(count)))
            else:
                arguments[field] = next(next_number)
        stack.append(getattr(masks, name)(**arguments))
    return stack[0]


def describe_similarity(similarity: AnySimilarity) -> tuple[str, list[float]] | None:
    """A similarity as a text and numbers, without a sink that is a tensor; None if it has a function of the caller."""
    kind, given = type(similarity).__name__, {}
    if isinstance(similarity, FeatureMap):
        given["normalize"] = similarity.normalize
        if isinstance(similarity.map, features.polynomial):
            kind, given = "polynomial", given | vars(similarity.map)
        else:
            kind = next((name for name, function in _MAPS.items() if similarity.map is function), "")
    elif kind in _SIMILARITIES:
        given = {f.name: getattr(similarity, f.name) for f in fields(similarity) if f.init}
    if kind not in (*_SIMILARITIES, *_MAPS, "polynomial"):
        return None
    numbers = {name: float(x) for name, x in given.items() if x is not None and not isinstance(x, Tensor)}
    return " ".join([kind, *numbers]), list(numbers.values())


def similarity_from_description(text: str, numbers: list[float], sink: Tensor | None) -> AnySimilarity:
    """The similarity that `describe_similarity` has described."""
    if sink is None:
        return _similarity(text, tuple(numbers))
    _, *names = text.split(" ")
    options: dict[str, Any] = dict(zip(names, numbers, strict=True))
    return Softmax(sink=sink, **options)


@lru_cache
def _similarity(text: str, numbers: tuple[float, ...]) -> AnySimilarity:
    kind, *names = text.split(" ")
    options: dict[str, Any] = dict(zip(names, numbers, strict=True))
    if "degree" in options:
        options["degree"] = int(options["degree"])
    if kind in _SIMILARITIES:
        return _SIMILARITIES[kind](**options)
    normalize = bool(options.pop("normalize"))
    return FeatureMap(features.polynomial(**options) if kind == "polynomial" else _MAPS[kind], normalize)
