"""Other libraries' decoding steps behind one interface, so that all run in the same comparison."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Step:
    """One decoding step: the past, one new token, and its query.

    query                (batch, heads_q, 1, width)
    key, value           (batch, heads_kv, 1, width), the new token
    past_key, past_value (batch, heads_kv, past, width), contiguous
    all_key, all_value   (batch, heads_kv, past + 1, width), contiguous: for peers that do not append
    """

    query: Tensor
    key: Tensor
    value: Tensor
    past_key: Tensor
    past_value: Tensor
    all_key: Tensor
    all_value: Tensor

    @classmethod
    def draw(cls, shape: tuple[int, int, int, int, int], dtype: str, seed: int = 0) -> Step:
        """Gaussian numbers for (batch, heads_q, heads_kv, past, width)."""
        batch, heads_q, heads_kv, past, width = shape
        source = torch.Generator().manual_seed(seed)

        def normal(heads: int, length: int) -> Tensor:
            return torch.randn(batch, heads, length, width, generator=source).to(DTYPES[dtype])

        key, value = normal(heads_kv, past + 1), normal(heads_kv, past + 1)
        return cls(
            normal(heads_q, 1),
            key[:, :, past:].clone(),
            value[:, :, past:].clone(),
            key[:, :, :past].clone(),
            value[:, :, :past].clone(),
            key,
            value,
        )

    def copy(self) -> Step:
        """The same numbers in other memory."""
        return Step(**{name: tensor.clone() for name, tensor in vars(self).items()})

    @property
    def past(self) -> int:
        return self.past_key.shape[2]

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key.shape[1]

    def exact(self, keep: Tensor | None = None) -> Tensor:
        """The answer in float64: softmax(q kᵀ / √width) v, over the keys that `keep` (batch, past + 1) allows."""
        query, key, value = (tensor.double() for tensor in (self.query, self.all_key, self.all_value))
        batch, heads, _, width = query.shape
        rows = query.view(batch, heads // self.group, self.group, width)
        scores = rows @ key.transpose(-1, -2) / width**0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))
        return (scores.softmax(-1) @ value).reshape(batch, heads, 1, width)


@dataclass(frozen=True)
class TimedCall:
    """One call on one cache: `run` is timed, `undo` restores the cache and is not timed."""

    run: Callable[[], Any]
    undo: Callable[[], object] | None = None


class Peer:
    """A library's decoding step."""

    name = ""
    title = ""
    package = "torch"
    storages: tuple[str, ...] = ("float32", "float16", "bfloat16")
    owns = False  # whether prepare makes a new cache (for int8 all do)

    def absent(self) -> str | None:
        """Why this peer cannot run here at all, or None."""
        try:
            metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return f"{self.package} is not installed (make bench installs it)"
        return None

    def version(self) -> str:
        return f"{self.package} {metadata.version(self.package)}"

    def refuses(self, step: Step, storage: str) -> str | None:
        """Why the peer cannot run this step, or None; called before prepare."""
        if storage not in self.storages:
            return f"no {storage}"
        return None

    def prepare(self, step: Step, storage: str) -> TimedCall:
        """One step on this cache. For int8 the step is in float32, and the cache is made here."""
        raise NotImplementedError

    def answer(self, out: Any) -> Tensor:
        """The result of run as (batch, heads_q, 1, width)."""
        return out

    def keep(self, step: Step) -> Tensor | None:
        """The keys it attends to, (batch, past + 1), or None for all."""
        return None


FILES = ("pytorch", "huggingface", "onnx", "jax", "ggml", "vllm")


def all_peers() -> list[Peer]:
    """One object for each peer, also if it is not installed."""
    peers: list[Peer] = []
    for name in FILES:
        peers += importlib.import_module(f"{__name__}.{name}").PEERS
    return peers
