"""Rows 23 to 26: the same numbers in other memory layouts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor

from ..inputs import answers, by_way, cotangent, problem, right, right_gradients
from ..subjects import Subject
from ..verdict import NotOffered, Wrong, close, each, in_one_line, refused, same_bits
from . import row


def _between(tensor: Tensor, steps: tuple[int, ...], start: int = 0) -> Tensor:
    """The same numbers, `steps` apart along each axis, in memory that is otherwise NaN."""
    shape = [size * step + start for size, step in zip(tensor.shape, steps, strict=True)]
    memory = torch.full(shape, float("nan"), dtype=tensor.dtype)
    view = memory[tuple(slice(start, None, step) for step in steps)]
    view = view[tuple(slice(0, size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def _swapped(tensor: Tensor, one: int, other: int) -> Tensor:
    return tensor.transpose(one, other).contiguous().transpose(one, other)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "(batch, length, heads, width)": lambda t: _swapped(t, 1, 2),
    "width before length": lambda t: _swapped(t, 2, 3),
    "heads before batch": lambda t: _swapped(t, 0, 1),
    "every second token": lambda t: _between(t, (1, 1, 2, 1)),
    "every second number": lambda t: _between(t, (1, 1, 1, 2)),
    "a slice that starts at 3": lambda t: _between(t, (1, 1, 1, 1), 3),
}


def _same(subject: Subject, change: Callable[[Tensor], Tensor], at: tuple[int, ...] = (0, 1, 2)) -> str:
    # A width that is no multiple of a vector register, lengths beyond one tile.
    tensors = problem(subject, len_q=37, len_k=70, width=24)

    def probe(way: str) -> None:
        changed = [change(tensor) if number in at else tensor for number, tensor in enumerate(tensors)]
        same_bits(subject.attend(way, *changed), subject.attend(way, *tensors), "against the contiguous call")

    return by_way(subject, probe)


@row(23, "transposed, sliced, stepped")
def other_strides(subject: Subject) -> str:
    each({name: lambda change=change: _same(subject, change) for name, change in LAYOUTS.items()})
    return f"equal to the bit in {len(LAYOUTS)} layouts"


@row(24, "expanded keys, values, mask")
def expanded(subject: Subject) -> str:
    query, key, value = problem(subject, batch=3)
    k, v = (tensor[:1].expand(3, -1, -1, -1) for tensor in (key, value))
    keep = (torch.arange(7) != 2).expand(3, 6, 5, 7)

    def probe(way: str) -> None:
        whole = subject.attend(way, query, k.contiguous(), v.contiguous(), keep=keep.contiguous())
        same_bits(subject.attend(way, query, k, v, keep=keep), whole, "against the contiguous call")
        if not subject.has_gradients or not subject.takes_strides:
            return
        base = [tensor[:1].clone().requires_grad_() for tensor in (key, value)]
        out = subject.attend(way, query, *(tensor.expand(3, -1, -1, -1) for tensor in base), keep=keep)
        wanted = right_gradients((query, k, v), keep=keep)
        got = torch.autograd.grad(out, base, cotangent(wanted[0]).to(out.dtype))
        for name, found, want in zip(("dk", "dv"), got, wanted[2:], strict=True):
            close(found, want.sum(0, keepdim=True), torch.float32, f"{name} of the base")

    by_way(subject, probe)
    return "equal to the bit" + (", and the base has the summed gradient" if subject.has_gradients else "")


@row(25, "data one element off alignment")
def misaligned(subject: Subject) -> str:
    def off(tensor: Tensor) -> Tensor:
        memory = torch.full((tensor.numel() + 1,), float("nan"), dtype=tensor.dtype)
        memory[1:] = tensor.flatten()
        return memory[1:].view(tensor.shape)

    _same(subject, off)
    return "equal to the bit"


@row(26, "out that overlaps an input")
def shared_memory(subject: Subject) -> str:
    query, key, value = problem(subject, heads_kv=6, len_q=7)
    if subject.name == "onnxruntime":
        return _bound_output(query, key, value)
    # A library without out= refuses the argument; its adapter may do so first.
    with contextlib.suppress(NotOffered):
        by_way(subject, lambda way: refused(lambda: subject.attend(way, query, key, value, out=query), TypeError))
    before = query.clone()
    answers(subject, (query, query, query), torch.float32)
    if not torch.equal(query, before):
        raise Wrong("an input was written to")
    return "there is no out=; one tensor may be query, key and value, and is not written to"


def _bound_output(query: Tensor, key: Tensor, value: Tensor) -> str:
    """onnxruntime writes to the bound output: here, the query's memory."""
    from ..subjects.onnx_runtime import ELEMENT, session

    want = right((query, key, value)).out
    tensors = {"query": query, "key": key, "value": value}
    running = session(tensors, 23)
    binding = running.io_binding()
    for name, tensor in tensors.items():
        binding.bind_input(name, "cpu", 0, ELEMENT[tensor.dtype], list(tensor.shape), tensor.data_ptr())
    binding.bind_output("out", "cpu", 0, ELEMENT[query.dtype], list(query.shape), query.data_ptr())
    try:
        running.run_with_iobinding(binding)
    except Exception as error:  # the row asks for any refusal
        return f"refused: {in_one_line(error)}"
    close(query, want, torch.float32, "the output bound onto the query")
    return "an output bound onto the query is right"
