"""qkv: `auto` and the softmax backends for whole sequences by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.errors import BackendRefused, QkvError

from ..verdict import NotOffered
from . import Subject


def mask_of(keep: Any, lengths: Any, causal: bool, corner: int | None, window: Any) -> Any:
    masks: list[Any] = []
    if keep is not None:
        masks.append(qkv.Dense(keep))
    if lengths is not None:
        masks.append(qkv.Padding(lengths=lengths))
    if causal:
        masks.append(qkv.Causal())
    if corner is not None:
        masks.append(qkv.Causal(offset=corner))
    if window is not None:
        masks.append(qkv.Window(left=window[0], right=window[1]))
    whole = None
    for mask in masks:
        whole = mask if whole is None else whole & mask
    return whole


class Qkv(Subject):
    name, short = "qkv", "qkv"
    packages = ("qkv",)
    ways = ("auto", "reference", "blockwise", "sdpa")
    error = QkvError
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

    def attend(self, way: str, query: Any, key: Any, value: Any, *, lse: bool = False, **options: Any) -> Any:
        mask = mask_of(
            options.pop("keep", None), options.pop("lengths", None), options.pop("causal", False),
            options.pop("corner", None), options.pop("window", None),
        )  # fmt: skip
        similarity = qkv.Softmax(scale=options.pop("scale", None), softcap=options.pop("softcap", None))
        try:
            return qkv.attention(
                query, key, value, similarity=similarity, mask=mask, backend=way, return_lse=lse, **options
            )
        except BackendRefused as refusal:
            # PyTorch's flash kernel has no softcap and no dropout; `auto` and the other backends have to answer.
            if way == "sdpa":
                raise NotOffered(str(refusal)) from refusal
            raise

    def lse(self, way: str, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return self.attend(way, query, key, value, lse=True, **options)[1]

    def cache(self, kind: str, size: int | None = None) -> Any:
        return QkvCache(kind, size)


class QkvCache:
    """A KVCache, made with the first token, which has its sizes."""

    def __init__(self, kind: str, size: int | None) -> None:
        self.limits = {"growing": {}, "ring": {"window": size}, "fixed": {"capacity": size}}[kind]
        self.cache: Any = None

    def _made(self, key: Tensor, value: Tensor) -> Any:
        if self.cache is None:
            sizes = {"batch": key.shape[0], "heads": key.shape[1], "width": key.shape[3]}
            self.cache = qkv.KVCache(**sizes, value_width=value.shape[3], **self.limits)
        return self.cache

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.decode(query, key, value, self._made(key, value))

    def append(self, key: Tensor, value: Tensor) -> None:
        self._made(key, value).append(key, value)

    @property
    def length(self) -> int:
        return self.cache.length

    def back(self, tokens: int) -> None:
        """Remove the last `tokens` tokens."""
        self.cache.crop(self.cache.length - tokens)

    def reset(self) -> None:
        self.cache.reset()


SUBJECTS = [Qkv()]
