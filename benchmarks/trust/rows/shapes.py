"""Rows 13 to 22: sizes of zero, sizes that disagree, dtypes and tensors that attention does not take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import inf

import torch
from torch import Tensor

from ..inputs import answers, by_way, numbers, problem
from ..subjects import Subject
from ..verdict import NotOffered, Wrong, each, refused, zeros
from . import row


def _ones(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.ones(shape) for shape in shapes)


def _refuses(subject: Subject, *tensors: Tensor) -> str:
    return by_way(subject, lambda way: refused(lambda: subject.attend(way, *tensors), subject.error))


def _nothing(subject: Subject, shapes: tuple[tuple[int, ...], ...]) -> str:
    """Zeros of the right shape, and gradients of the right shapes that are 0."""
    tensors = _ones(*shapes)

    def probe(way: str) -> None:
        out = subject.attend(way, *tensors)
        wanted = (*shapes[0][:-1], shapes[2][-1])
        if tuple(out.shape) != wanted:
            raise Wrong(f"shape {tuple(out.shape)} instead of {wanted}")
        zeros(out, "the result")
        if not subject.has_gradients:
            return
        got = subject.gradients(way, tensors, torch.ones(wanted))
        for name, tensor, gradient in zip(("dq", "dk", "dv"), tensors, got[1:], strict=True):
            if gradient.shape != tensor.shape:
                raise Wrong(f"{name} has shape {tuple(gradient.shape)}")
            zeros(gradient, name)

    by_way(subject, probe)
    return "empty, of the right shape" + (", and differentiable" if subject.has_gradients else "")


@row(13, "batch 0, heads 0, no queries")
def nothing_to_answer(subject: Subject) -> str:
    heads = 3 if subject.grouped else 6
    shapes = {
        "batch 0": ((0, 6, 5, 8), (0, heads, 7, 8), (0, heads, 7, 8)),
        "no queries": ((2, 6, 0, 8), (2, heads, 7, 8), (2, heads, 7, 8)),
        "neither queries nor keys": ((2, 6, 0, 8), (2, heads, 0, 8), (2, heads, 0, 8)),
    }
    if subject.grouped:  # a layer is made with a number of heads
        shapes["heads 0"] = ((2, 0, 5, 8), (2, 0, 7, 8), (2, 0, 7, 8))
    return each({name: lambda given=given: _nothing(subject, given) for name, given in shapes.items()})


@row(14, "no keys")
def nothing_to_attend(subject: Subject) -> str:
    heads = 3 if subject.grouped else 6
    seen = _nothing(subject, ((2, 6, 5, 8), (2, heads, 0, 8), (2, heads, 0, 8)))
    tensors = _ones((2, 6, 5, 8), (2, heads, 0, 8), (2, heads, 0, 8))
    try:
        logs = [subject.lse(way, *tensors) for way in subject.ways]
    except NotOffered:
        return seen
    if not all(bool((log == -inf).all()) for log in logs):
        raise Wrong("the log-sum-exp is not -inf")
    return "zeros, log-sum-exp -inf, gradients 0"


@row(15, "heads of width 0")
def width_zero(subject: Subject) -> str:
    heads = 3 if subject.grouped else 6
    return _refuses(subject, *_ones((2, 6, 5, 0), (2, heads, 7, 0), (2, heads, 7, 0)))


@row(16, "heads that do not divide; no kv heads")
def heads_that_do_not_divide(subject: Subject) -> str:
    if not subject.grouped:
        return refused(lambda: torch.nn.MultiheadAttention(10, 3))
    return each(
        {
            "5 on 2": lambda: _refuses(subject, *_ones((2, 5, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))),
            "4 on 0": lambda: _refuses(subject, *_ones((2, 4, 5, 8), (2, 0, 7, 8), (2, 0, 7, 8))),
        }
    )


@row(17, "query and key of other widths")
def widths_that_disagree(subject: Subject) -> str:
    query, key, value = problem(subject)
    return _refuses(subject, query, numbers((*key.shape[:-1], 9)), value)


@row(18, "values of another width than the keys")
def values_of_another_width(subject: Subject) -> str:
    if not subject.own_value_width:
        raise NotOffered("documented: values have the keys' width")
    return answers(subject, problem(subject, width_v=13), torch.float32)


@row(19, "key and value of other lengths")
def lengths_that_disagree(subject: Subject) -> str:
    query, key, value = problem(subject)
    more = numbers((*value.shape[:2], 9, 8))
    return each(
        {
            "7 and 9": lambda: _refuses(subject, query, key, more),
            "7 and 1": lambda: _refuses(subject, query, key, value[:, :, :1]),
        }
    )


@row(20, "query float32, key float16")
def dtypes_that_disagree(subject: Subject) -> str:
    query, key, value = problem(subject)
    return each(
        {
            "the key": lambda: _refuses(subject, query, key.half(), value),
            "key and value": lambda: _refuses(subject, query, key.half(), value.half()),
            "the value": lambda: _refuses(subject, query, key, value.half()),
        }
    )


@row(21, "int, complex, bool, float8")
def dtypes_that_are_none(subject: Subject) -> str:
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "int64": lambda tensor: tensor.long(),
        "complex64": lambda tensor: tensor.to(torch.complex64),
        "bool": lambda tensor: tensor > 0,
        "float8": lambda tensor: tensor.to(torch.float8_e4m3fn),
    }
    return each(
        {name: lambda make=make: _refuses(subject, *map(make, problem(subject))) for name, make in made.items()}
    )


@row(22, "other devices, nested, sparse, quantised")
def tensors_that_are_none(subject: Subject) -> str:
    if subject.name in ("onnxruntime", "jax.nn"):
        raise NotOffered("takes its own arrays only")
    query, key, value = problem(subject)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([query[0].transpose(0, 1), query[1, :, :3].transpose(0, 1)])
        quantised = torch.quantize_per_tensor(query, 0.1, 0, torch.qint8)
    cases: dict[str, Callable[[], str | None]] = {
        "key on meta": lambda: _refuses(subject, query, key.to("meta"), value),
        "value on meta": lambda: _refuses(subject, query, key, value.to("meta")),
        "sparse query": lambda: _refuses(subject, query.to_sparse(), key, value),
        "quantised query": lambda: _refuses(subject, quantised, key, value),
    }
    if subject.grouped:  # the adapter of a layer cannot reshape nested tensors
        cases["nested query"] = lambda: _refuses(subject, nested, key, value)
    if subject.name == "qkv":  # torch computes shapes only, as documented
        meta = [tensor.to("meta") for tensor in (query, key, value)]
        cases["everything on meta"] = lambda: _refuses(subject, *meta)
    return each(cases)
