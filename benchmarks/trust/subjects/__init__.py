"""The libraries under test: attention and its options behind one interface, one file a library."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from ..verdict import NotOffered

FILES = ("qkv_itself", "pytorch", "onnx_runtime", "jax_nn", "hf_transformers")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Subject:
    """A library under test. Inputs and results are torch tensors (batch, heads, length, width).

    `ways` are the calls that all have to be right: qkv's backends, and other libraries' default options. `error` is the
    type of a refusal.
    """

    name = ""
    short = ""  # at most five characters, for the table
    packages: tuple[str, ...] = ("torch",)
    ways: tuple[str, ...] = ("default",)
    error: type[BaseException] = Exception
    dtypes: tuple[torch.dtype, ...] = FLOATS
    grouped = True  # fewer key/value heads than query heads
    own_value_width = True
    has_gradients = True
    takes_strides = True  # whether it reads a tensor of any strides without a copy

    def absent(self) -> str | None:
        for package in self.packages:
            try:
                metadata.version(package)
            except metadata.PackageNotFoundError:
                return f"{package} is not installed (make trust installs it)"
        return None

    def versions(self) -> str:
        return ", ".join(f"{package} {metadata.version(package)}" for package in self.packages)

    def attend(self, way: str, query: Any, key: Any, value: Any, **options: Any) -> Tensor:
        """options: keep, bias, scale, softcap, causal, corner (causal, bottom right), window, lengths, dropout."""
        raise NotImplementedError

    def gradients(self, way: str, tensors: tuple[Tensor, ...], cotangent: Tensor, **options: Any) -> list[Tensor]:
        """The result and the gradients of <result, cotangent> by each tensor: query, key, value and, if given, bias."""
        if not self.has_gradients:
            raise NotOffered("no gradients")
        leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        if len(leaves) == 4:
            options["bias"] = leaves[3]
        out = self.attend(way, *leaves[:3], **options)
        return [out, *torch.autograd.grad(out, leaves, cotangent.to(out.dtype), materialize_grads=True)]

    def lse(self, way: str, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        raise NotOffered("no log-sum-exp")

    def cache(self, kind: str, size: int | None = None) -> Any:
        """A cache: "growing", a "ring" of `size` tokens, or "fixed" to `size` tokens."""
        raise NotOffered("no cache")


def only(options: dict[str, Any], *offered: str) -> None:
    """Raise NotOffered if an option is given that a library does not have."""
    for name, given in options.items():
        if given is not None and given is not False and name not in offered:
            raise NotOffered(f"no {name}")


def all_subjects() -> list[Subject]:
    return [subject for name in FILES for subject in importlib.import_module(f"{__name__}.{name}").SUBJECTS]


def named(name: str) -> Subject:
    """A subject by its name, or another one by "module:attribute"."""
    found = {subject.name: subject for subject in all_subjects()}
    if name in found:
        return found[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise SystemExit(f"trust: no subject {name!r}; choose from {', '.join(found)}")
    return getattr(importlib.import_module(module), attribute)
