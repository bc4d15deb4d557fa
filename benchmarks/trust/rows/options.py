"""Rows 32 to 36: scales, dropout, and similarities other than softmax."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.testing.oracle import oracle

from ..inputs import answers, by_way, problem
from ..subjects import Subject
from ..verdict import NotOffered, Wrong, close, each, refused, same_bits, zeros
from . import row


def _all_refuse(subject: Subject, **options: Any) -> str:
    tensors = problem(subject)
    return by_way(subject, lambda way: refused(lambda: subject.attend(way, *tensors, **options), subject.error))


@row(32, "scale 0, negative, NaN, infinite")
def scales(subject: Subject) -> str:
    tensors = problem(subject)

    def defined(scale: float) -> str:
        if subject.name == "onnxruntime":
            raise NotOffered("its standard multiplies query and key by the square root of the scale")
        return answers(subject, tensors, torch.float32, scale=scale)

    return each(
        {
            "0": lambda: defined(0.0),
            "-0.7": lambda: defined(-0.7),
            "NaN": lambda: _all_refuse(subject, scale=nan),
            "inf": lambda: _all_refuse(subject, scale=inf),
        }
    )


@row(33, "dropout below 0, above 1, 1; in eval")
def dropouts(subject: Subject) -> str:
    tensors = problem(subject)

    def everything(way: str) -> None:
        zeros(subject.attend(way, *tensors, dropout=1.0), "the result with dropout 1")

    def nothing(way: str) -> None:
        same_bits(subject.attend(way, *tensors, dropout=0.0), subject.attend(way, *tensors), "dropout 0")
        if subject.name == "torch MultiheadAttention":
            layer = torch.nn.MultiheadAttention(48, 6, dropout=0.9, batch_first=True).eval()
            rows = [tensor.transpose(1, 2).flatten(2) for tensor in tensors]
            same_bits(layer(*rows)[0], layer(*rows)[0], "dropout 0.9 in eval")
        if subject.name == "qkv":
            layer = qkv.nn.Attention(48, heads=6, dropout=0.9).eval()
            rows = tensors[0].transpose(1, 2).flatten(2)
            same_bits(layer(rows), layer(rows), "dropout 0.9 in eval")

    return (
        each(
            {
                "-0.1": lambda: _all_refuse(subject, dropout=-0.1),
                "1.1": lambda: _all_refuse(subject, dropout=1.1),
                "1": lambda: by_way(subject, everything),
                "0, or in eval": lambda: by_way(subject, nothing),
            }
        )
        and "refused outside of 0 to 1, all zeros with 1, inactive with 0 and in eval"
    )


def _only_qkv(subject: Subject) -> None:
    if subject.name != "qkv":
        raise NotOffered("softmax only")


def _check_backends(
    similarity: Any, tensors: tuple[Tensor, ...], backends: tuple[str, ...] = ("auto", "reference")
) -> None:
    want = oracle(*tensors, similarity=similarity).out
    for backend in backends:
        close(
            qkv.attention(*tensors, similarity=similarity, backend=backend),
            want,
            torch.float64,
            f"{similarity}, {backend}",
        )


@row(34, "polynomial degree 0, -1, 1.5; odd degrees")
def polynomials(subject: Subject) -> str:
    _only_qkv(subject)
    tensors = problem(subject, torch.float64)
    balanced = torch.ones(1, 1, 1, 2).double(), torch.tensor([[[[1.0, 0.0], [-1.0, 0.0]]]]).double()
    value = torch.ones(1, 1, 2, 3).double()
    refusals: dict[str, Callable[[], str | None]] = {
        str(degree): lambda degree=degree: refused(
            lambda: qkv.attention(*tensors, similarity=qkv.Polynomial(degree=degree)), subject.error
        )
        for degree in (-1, 1.5, nan)
    }
    each(
        refusals
        | {
            "0": lambda: _check_backends(qkv.Polynomial(degree=0), tensors),
            "3": lambda: _check_backends(qkv.Polynomial(degree=3, offset=0.5), tensors),
            "a sum of 0": lambda: zeros(
                qkv.attention(*balanced, value, similarity=qkv.Polynomial(degree=1, offset=0.0)), "the row"
            ),
        }
    )
    return "uniform, refused, refused, signed as documented; a sum of exactly 0 is a zero row"


@row(35, "feature maps with a normaliser of any sign")
def normalisers(subject: Subject) -> str:
    _only_qkv(subject)
    tensors = problem(subject, torch.float64)
    negative = qkv.FeatureMap(lambda x: x)
    tiny = torch.full((1, 1, 1, 1), 1e-30).double()
    value = torch.tensor([[[[1.0, -2.0, 3.0]]]]).double()

    def no_epsilon() -> None:
        for sign in (1, -1):
            found = qkv.attention(sign * tiny, tiny, value, similarity=qkv.FeatureMap(lambda x: x))
            close(found, value, torch.float64, "the quotient of 1e-60")

    relu = qkv.FeatureMap(qkv.features.relu)
    dead = -tensors[0].abs(), tensors[1], tensors[2]
    each(
        {
            "negative": lambda: _check_backends(negative, tensors),
            "zero": lambda: zeros(qkv.attention(*dead, similarity=relu), "the result"),
            "no hidden epsilon": no_epsilon,
        }
    )
    return "zero rows where the sum is 0, the quotient elsewhere, no epsilon"


@row(36, "argmax ties")
def ties(subject: Subject) -> str:
    _only_qkv(subject)
    tensors = problem(subject, torch.float64, len_k=70)
    key = tensors[1].clone()
    key[:, :, 41], key[:, :, 69] = key[:, :, 3], key[:, :, 3]
    tensors = tensors[0], key, tensors[2]
    _check_backends(qkv.Argmax(), tensors, ("auto", "reference", "argmax"))
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    qkv.attention(*leaves, similarity=qkv.Argmax()).sum().backward()
    if leaves[2].grad is None or leaves[2].grad[:, :, [41, 69]].any():
        raise Wrong("a tied value behind the first has a gradient")
    return "the lowest index, and the gradient goes to its value alone"
