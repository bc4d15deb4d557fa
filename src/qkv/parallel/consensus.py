"""Before anything travels, every rank says what it was asked for; where they differ, every rank names the difference.

A rank that refuses its own arguments says so too, so that the others do not wait for it.
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

_HEADER = 5  # what every ticket begins with
_MAX_NUMBERS = 32  # numbers that a rank can say
# How many calls were made on each group: a rank that left one out is told from one whose arguments differ.
_CALLS: Counter[str] = Counter()


class PendingAgreement(NamedTuple):
    """What this rank has said, and what the others are saying; `settle` hears them out."""

    axis: Axis
    said: dict[str, str] | Exception
    text: bytes
    tickets: list[Tensor]
    pending: Pending


def agree(axis: Axis, said: dict[str, str] | Exception, numbers: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """The numbers of every rank, after all said the same. said: what must be equal, by names that people know, or the
    error that this rank ends with: then it is raised here, and every other rank raises `Disagreement`."""
    return finish_agreement(start_agreement(axis, said, numbers))


def start_agreement(axis: Axis, said: dict[str, str] | Exception, numbers: Sequence[int] = ()) -> PendingAgreement:
    """The first half of `agree`: tickets are on their way, and there is time to do something else."""
    name = _group_name(axis)
    _CALLS[name] += 1
    text = _encode(said).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")
    failed = isinstance(said, Exception)
    head = [_CALLS[name], int(failed), digest, len(text), len(numbers)]
    ticket = torch.tensor(
        [*head, *numbers, *[0] * (_MAX_NUMBERS - len(numbers))], dtype=torch.int64, device=axis.device
    )
    found, pending = start_all_gather(axis, ticket, AGREEMENT)
    return PendingAgreement(axis, said, text, found, pending)


def finish_agreement(announced: PendingAgreement) -> list[tuple[int, ...]]:
    """The second half: every rank's numbers, or what they do not agree on."""
    axis, said, text, found, pending = announced
    pending.wait()
    tickets = [ticket.tolist() for ticket in found]
    if any(other[1] for other in tickets) or len({tuple(other[:3]) for other in tickets}) > 1:
        texts = _exchange_texts(axis, text, [other[3] for other in tickets])
        if isinstance(said, Exception):
            raise said
        raise Disagreement(_describe_difference(axis, tickets, texts))
    return [tuple(other[_HEADER : _HEADER + other[4]]) for other in tickets]


def agreed_axis(mesh: DeviceMesh | None, axis: str | int | None) -> Axis:
    """The axis that a call names. Where the mesh has only one, a rank that names another tells the others."""
    try:
        return read_axis(mesh, axis)
    except QkvError as error:
        if axis is not None and isinstance(mesh, DeviceMesh) and mesh.ndim == 1:
            agree(read_axis(mesh, None), error)
        raise


def agree_before_backward(axis: Axis, result: Result, check: Callable[[], None]) -> Result:
    """The same answer, whose backward pass begins with an agreement: a rank that makes another call meanwhile, or that
    `check` refuses, is told of, and nobody waits for what never comes."""
    held = [tensor for tensor in result if tensor is not None]
    number = _CALLS[_group_name(axis)]
    met = iter(_AgreeBeforeBackward.apply(axis, number, check, *held))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return Result(*(None if tensor is None else next(met) for tensor in result))  # pyright: ignore[reportArgumentType]


class _AgreeBeforeBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, axis: Axis, number: int, check: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axis, ctx.number, ctx.check = axis, number, check
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            hint = "split calls have first derivatives only"
            agree(ctx.axis, OptionError(complaint("create_graph", "True", "False", hint)))  # raises it
        sharing_errors(ctx.axis, ctx.check)
        agree(ctx.axis, {"call": f"the backward pass of call {ctx.number}"})
        return None, None, None, *grads


def _group_name(axis: Axis) -> str:
    return getattr(axis.group, "group_name", axis.name)


def _encode(said: dict[str, str] | Exception) -> str:
    return f"{type(said).__name__}: {said}" if isinstance(said, Exception) else json.dumps(said)


def _exchange_texts(axis: Axis, text: bytes, lengths: list[int]) -> list[str]:
    own = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(axis.device)
    found = [own if r == axis.rank else own.new_empty(n) for r, n in enumerate(lengths)]
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    start(axis, [Message(r, own) for r in others], [Message(r, found[r]) for r in others], AGREEMENT).wait()
    return [bytes(each.tolist()).decode() for each in found]


def _describe_difference(axis: Axis, tickets: list[list[int]], texts: list[str]) -> str:
    where = f"axis {axis.name!r}, rank {axis.rank}: "
    failed = [rank for rank, ticket in enumerate(tickets) if ticket[1]]
    if failed:
        said = "; ".join(f"rank {rank} refused the call: {texts[rank]}" for rank in failed)
        return f"{where}{said}"
    each = [json.loads(text) for text in texts]
    names = [name for name in each[0] if any(other.get(name) != each[0][name] for other in each)]
    names = names or [name for other in each for name in other if name not in each[0]]
    names = ["call"] if "call" in names else names  # of different calls, the rest says nothing
    parts = [
        f"{name}: {_group_by_value([other.get(name, 'nothing') for other in each])}" for name in dict.fromkeys(names)
    ]
    if not parts:
        calls = _group_by_value([f"its call number {ticket[0]}" for ticket in tickets])
        return f"{where}the ranks are not at the same call: {calls}. Hint: every rank has to make the same calls."
    hint = "every rank gives the same arguments; only the shards of a split tensor are each rank's own"
    return f"{where}the ranks were given different arguments. {'; '.join(parts)}. Hint: {hint}."


def _group_by_value(values: list[str]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on rank{'s' * (len(r) > 1)} {', '.join(map(str, r))}" for value, r in ranks.items())


def sharing_errors(axis: Axis, make: Any) -> Any:
    """What `make` gives; if it refuses, the other ranks hear of it before the error goes on."""
    try:
        return make()
    except (QkvError, MemoryError, RuntimeError) as error:
        agree(axis, error)
        raise
