"""Before data is sent, all ranks compare their arguments; where they differ, every rank raises the same error.

A rank that refuses its own arguments reports that too, so that the others do not wait for it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..backends.reference import Result
from ..errors import Disagreement, OptionError, QkvError, complaint
from .transfer import AGREEMENT, Axis, Message, Pending, read_axis, start, start_all_gather

_HEADER = 5  # numbers at the start of every message
_MAX_NUMBERS = 32  # numbers that a rank can add
# Calls made on each group: tells a rank that skipped a call from one whose arguments differ.
_CALLS: Counter[str] = Counter()


class PendingAgreement(NamedTuple):
    """An agreement in progress, for `finish_agreement`."""

    axis: Axis
    arguments: dict[str, str] | Exception
    text: bytes
    messages: list[Tensor]
    pending: Pending


def agree(axis: Axis, arguments: dict[str, str] | Exception, numbers: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """Check that all ranks have the same arguments, and return the numbers of every rank.

    arguments: what must be equal, under the names of the public API, or the error of this rank: then it is raised here,
    and every other rank raises `Disagreement`. numbers: up to 32, each rank its own.
    """
    return finish_agreement(start_agreement(axis, arguments, numbers))


def start_agreement(axis: Axis, arguments: dict[str, str] | Exception, numbers: Sequence[int] = ()) -> PendingAgreement:
    """The first half of `agree`: starts the messages, so that this rank can compute meanwhile."""
    name = _group_name(axis)
    _CALLS[name] += 1
    text = _encode(arguments).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")
    failed = isinstance(arguments, Exception)
    header = [_CALLS[name], int(failed), digest, len(text), len(numbers)]
    message = torch.tensor(
        [*header, *numbers, *[0] * (_MAX_NUMBERS - len(numbers))], dtype=torch.int64, device=axis.device
    )
    messages, pending = start_all_gather(axis, message, AGREEMENT)
    return PendingAgreement(axis, arguments, text, messages, pending)


def finish_agreement(started: PendingAgreement) -> list[tuple[int, ...]]:
    """The second half of `agree`: returns the numbers of every rank, or raises."""
    axis, arguments, text, received, pending = started
    pending.wait()
    messages = [message.tolist() for message in received]
    if any(message[1] for message in messages) or len({tuple(message[:3]) for message in messages}) > 1:
        texts = _exchange_texts(axis, text, [message[3] for message in messages])
        if isinstance(arguments, Exception):
            raise arguments
        raise Disagreement(_describe_difference(axis, messages, texts))
    return [tuple(message[_HEADER : _HEADER + message[4]]) for message in messages]


def agreed_axis(mesh: DeviceMesh | None, axis: str | int | None) -> Axis:
    """The axis that a call names. In a mesh with one axis, a rank that names an unknown one tells the others."""
    try:
        return read_axis(mesh, axis)
    except QkvError as error:
        if axis is not None and isinstance(mesh, DeviceMesh) and mesh.ndim == 1:
            agree(read_axis(mesh, None), error)
        raise


def agree_before_backward(axis: Axis, result: Result, check: Callable[[], None]) -> Result:
    """The same result, with an agreement at the start of its backward pass: a rank that makes another call instead, or
    whose `check` raises, causes an error on every rank instead of a timeout."""
    tensors = [tensor for tensor in result if tensor is not None]
    number = _CALLS[_group_name(axis)]
    wrapped = iter(_AgreeBeforeBackward.apply(axis, number, check, *tensors))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return Result(*(None if tensor is None else next(wrapped) for tensor in result))  # pyright: ignore[reportArgumentType]


class _AgreeBeforeBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, axis: Axis, number: int, check: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axis, ctx.number, ctx.check = axis, number, check
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            hint = "distributed calls have first derivatives only"
            agree(ctx.axis, OptionError(complaint("create_graph", "True", "False", hint)))  # raises it
        sharing_errors(ctx.axis, ctx.check)
        agree(ctx.axis, {"call": f"the backward pass of call {ctx.number}"})
        return None, None, None, *grads


def _group_name(axis: Axis) -> str:
    return getattr(axis.group, "group_name", axis.name)


def _encode(arguments: dict[str, str] | Exception) -> str:
    if isinstance(arguments, Exception):
        return f"{type(arguments).__name__}: {arguments}"
    return json.dumps(arguments)


def _exchange_texts(axis: Axis, text: bytes, lengths: list[int]) -> list[str]:
    own = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(axis.device)
    found = [own if r == axis.rank else own.new_empty(n) for r, n in enumerate(lengths)]
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    start(axis, [Message(r, own) for r in others], [Message(r, found[r]) for r in others], AGREEMENT).wait()
    return [bytes(each.tolist()).decode() for each in found]


def _describe_difference(axis: Axis, messages: list[list[int]], texts: list[str]) -> str:
    where = f"axis {axis.name!r}, rank {axis.rank}: "
    failed = [rank for rank, message in enumerate(messages) if message[1]]
    if failed:
        return where + "; ".join(f"rank {rank} refused the call: {texts[rank]}" for rank in failed)
    each = [json.loads(text) for text in texts]
    names = [name for name in each[0] if any(other.get(name) != each[0][name] for other in each)]
    names = names or [name for other in each for name in other if name not in each[0]]
    names = ["call"] if "call" in names else names  # different calls have different arguments
    parts = [
        f"{name}: {_group_by_value([other.get(name, 'nothing') for other in each])}" for name in dict.fromkeys(names)
    ]
    if not parts:
        calls = _group_by_value([f"call number {message[0]}" for message in messages])
        return f"{where}the ranks are not at the same call: {calls}. Hint: every rank has to make the same calls."
    hint = "give every rank the same arguments; only the shards of tensors differ"
    return f"{where}the ranks have different arguments. {'; '.join(parts)}. Hint: {hint}."


def _group_by_value(values: list[str]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on rank{'s' * (len(r) > 1)} {', '.join(map(str, r))}" for value, r in ranks.items())


def sharing_errors(axis: Axis, action: Callable[[], Any]) -> Any:
    """Run an action; if it raises, the other ranks are told before the error propagates."""
    try:
        return action()
    except (QkvError, MemoryError, RuntimeError) as error:
        agree(axis, error)
        raise
