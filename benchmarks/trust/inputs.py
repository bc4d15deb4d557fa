"""Small inputs and the right answers: qkv.testing's oracle, in float64 and one query at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv import Softmax
from qkv.testing.oracle import Oracle, oracle

from .subjects import Subject
from .verdict import close, each

SIZES = {"batch": 2, "heads_q": 6, "heads_kv": 3, "len_q": 5, "len_k": 7, "width": 8}


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)


def problem(
    subject: Subject, dtype: torch.dtype = torch.float32, seed: int = 0, **sizes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value; grouped heads if the subject has them."""
    n = SIZES | sizes
    if not subject.grouped and "heads_kv" not in sizes:
        n["heads_kv"] = n["heads_q"]
    query = numbers((n["batch"], n["heads_q"], n["len_q"], n["width"]), dtype, 3 * seed)
    key, value = (
        numbers((n["batch"], n["heads_kv"], n["len_k"], n.get(width, n["width"])), dtype, 3 * seed + at)
        for at, width in ((1, "width"), (2, "width_v"))
    )
    return query, key, value


def right(tensors: Any, **options: Any) -> Oracle:
    """The right answer for the same options."""
    similarity = Softmax(scale=options.get("scale"), softcap=options.get("softcap"))
    return oracle(*tensors[:3], similarity=similarity, mask=options.get("keep"), bias=options.get("bias"))


def by_way(subject: Subject, probe: Callable[[str], str | None]) -> str:
    """Run the probe on all ways of the subject; all have to pass."""
    return each({way: lambda way=way: probe(way) for way in subject.ways})


def answers(subject: Subject, tensors: Any, dtype: torch.dtype, want: Tensor | None = None, **options: Any) -> str:
    """Every way gives the oracle's answer (or `want`)."""
    expected = right(tensors, **options).out if want is None else want

    def probe(way: str) -> None:
        close(subject.attend(way, *tensors, **options), expected, dtype)

    by_way(subject, probe)
    return "equal to the float64 oracle"


def check_gradients(subject: Subject, tensors: Any, wanted: list[Tensor], way: str, **options: Any) -> list[Tensor]:
    """Compare result and gradients with `wanted`; returns them."""
    got = subject.gradients(way, tuple(tensors), cotangent(wanted[0]), **options)
    for what, found, want in zip(("the result", "dq", "dk", "dv", "dbias"), got, wanted, strict=False):
        close(found, want, tensors[0].dtype, what)
    return got


def cotangent(out: Tensor) -> Tensor:
    return numbers(tuple(out.shape), torch.float64, 99)


def right_gradients(tensors: Any, **options: Any) -> list[Tensor]:
    """The oracle's result, and its gradients by query, key, value and, as a fourth tensor, bias."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in tensors]
    if len(leaves) == 4:
        options["bias"] = leaves[3]
    out = right(leaves, **options).out
    return [out.detach(), *torch.autograd.grad(out, leaves, cotangent(out), materialize_grads=True)]
