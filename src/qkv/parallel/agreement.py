"""Before anything travels, every rank says what it was asked for; where they differ, every rank names the difference.

A rank that refuses its own arguments says so too, so that the others do not wait for it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..backends.reference import Result
from ..errors import Disagreement, OptionError, QkvError, complaint
from ..masks import Mask
from ..masks.arrays import is_tensor
from ..masks.joined import Joined
from ..similarity import AnySimilarity
from .axis import Axis, read_axis
from .wire import TICKETS, Message, Pending, gathering, start

_HEAD = 5  # what every ticket begins with
_SLOTS = 32  # numbers that a rank can say
_MOST_BYTES = 1 << 24  # of a tensor that are looked at, to tell two from each other
_PLAIN = (int, float, complex, str, bytes)  # what prints the same in every process
# How many calls were made on each group: a rank that left one out is told from one whose arguments differ.
_CALLS: Counter[str] = Counter()


class Announced(NamedTuple):
    """What this rank has said, and what the others are saying; `settle` hears them out."""

    axis: Axis
    said: dict[str, str] | Exception
    text: bytes
    tickets: list[Tensor]
    pending: Pending


def agree(axis: Axis, said: dict[str, str] | Exception, numbers: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """The numbers of every rank, after all said the same. said: what must be equal, by names that people know, or the
    error that this rank ends with: then it is raised here, and every other rank raises `Disagreement`."""
    return settle(announce(axis, said, numbers))


def announce(axis: Axis, said: dict[str, str] | Exception, numbers: Sequence[int] = ()) -> Announced:
    """The first half of `agree`: tickets are on their way, and there is time to do something else."""
    name = _group_name(axis)
    _CALLS[name] += 1
    text = _as_text(said).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")
    failed = isinstance(said, Exception)
    head = [_CALLS[name], int(failed), digest, len(text), len(numbers)]
    ticket = torch.tensor([*head, *numbers, *[0] * (_SLOTS - len(numbers))], dtype=torch.int64, device=axis.device)
    found, pending = gathering(axis, ticket, TICKETS)
    return Announced(axis, said, text, found, pending)


def settle(announced: Announced) -> list[tuple[int, ...]]:
    """The second half: every rank's numbers, or what they do not agree on."""
    axis, said, text, found, pending = announced
    pending.wait()
    tickets = [ticket.tolist() for ticket in found]
    if any(other[1] for other in tickets) or len({tuple(other[:3]) for other in tickets}) > 1:
        texts = _texts(axis, text, [other[3] for other in tickets])
        if isinstance(said, Exception):
            raise said
        raise Disagreement(_difference(axis, tickets, texts))
    return [tuple(other[_HEAD : _HEAD + other[4]]) for other in tickets]


def known_axis(mesh: DeviceMesh | None, axis: str | int | None) -> Axis:
    """The axis that a call names. Where the mesh has only one, a rank that names another tells the others."""
    try:
        return read_axis(mesh, axis)
    except QkvError as error:
        if axis is not None and isinstance(mesh, DeviceMesh) and mesh.ndim == 1:
            agree(read_axis(mesh, None), error)
        raise


def met_again(axis: Axis, result: Result, check: Callable[[], None]) -> Result:
    """The same answer, whose backward pass begins with an agreement: a rank that makes another call meanwhile, or that
    `check` refuses, is told of, and nobody waits for what never comes."""
    held = [tensor for tensor in result if tensor is not None]
    number = _CALLS[_group_name(axis)]
    met = iter(_Met.apply(axis, number, check, *held))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return Result(*(None if tensor is None else next(met) for tensor in result))  # pyright: ignore[reportArgumentType]


class _Met(torch.autograd.Function):
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
        refusing(ctx.axis, ctx.check)
        agree(ctx.axis, {"call": f"the backward pass of call {ctx.number}"})
        return None, None, None, *grads


def _group_name(axis: Axis) -> str:
    return getattr(axis.group, "group_name", axis.name)


def _as_text(said: dict[str, str] | Exception) -> str:
    return f"{type(said).__name__}: {said}" if isinstance(said, Exception) else json.dumps(said)


def _texts(axis: Axis, text: bytes, lengths: list[int]) -> list[str]:
    own = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(axis.device)
    found = [own if r == axis.rank else own.new_empty(n) for r, n in enumerate(lengths)]
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    start(axis, [Message(r, own) for r in others], [Message(r, found[r]) for r in others], TICKETS).wait()
    return [bytes(each.tolist()).decode() for each in found]


def _difference(axis: Axis, tickets: list[list[int]], texts: list[str]) -> str:
    where = f"axis {axis.name!r}, rank {axis.rank}: "
    failed = [rank for rank, ticket in enumerate(tickets) if ticket[1]]
    if failed:
        said = "; ".join(f"rank {rank} refused the call: {texts[rank]}" for rank in failed)
        return f"{where}{said}"
    each = [json.loads(text) for text in texts]
    names = [name for name in each[0] if any(other.get(name) != each[0][name] for other in each)]
    names = names or [name for other in each for name in other if name not in each[0]]
    names = ["call"] if "call" in names else names  # of different calls, the rest says nothing
    parts = [f"{name}: {_by_value([other.get(name, 'nothing') for other in each])}" for name in dict.fromkeys(names)]
    if not parts:
        calls = _by_value([f"its call number {ticket[0]}" for ticket in tickets])
        return f"{where}the ranks are not at the same call: {calls}. Hint: every rank has to make the same calls."
    hint = "every rank gives the same arguments; only the shards of a split tensor are each rank's own"
    return f"{where}the ranks were given different arguments. {'; '.join(parts)}. Hint: {hint}."


def _by_value(values: list[str]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on rank{'s' * (len(r) > 1)} {', '.join(map(str, r))}" for value, r in ranks.items())


def refusing(axis: Axis, make: Any) -> Any:
    """What `make` gives; if it refuses, the other ranks hear of it before the error goes on."""
    try:
        return make()
    except (QkvError, MemoryError, RuntimeError) as error:
        agree(axis, error)
        raise


def mask_text(mask: Mask | None) -> str:
    """The mask in words that are the same in every process, with a mark that tells contents apart."""
    if mask is None:
        return "None"
    if isinstance(mask, Joined):
        return f" {mask._sign} ".join(f"({mask_text(part)})" for part in mask.masks)
    held = [getattr(mask, name, None) for cls in type(mask).__mro__ for name in getattr(cls, "__slots__", ())
            if not name.startswith("_")]  # fmt: skip
    marks = [value_text(thing) for thing in held if thing is not None]
    return f"{type(mask).__name__}({', '.join(marks)})"


def similarity_text(similarity: AnySimilarity) -> str:
    """The similarity likewise."""
    fields = {name: value for name, value in vars(similarity).items() if name not in ("signature", "kind")}
    return f"{type(similarity).__name__}({', '.join(f'{k}={value_text(v)}' for k, v in fields.items())})"


def value_text(thing: Any) -> str:
    """Numbers as they are, tensors by shape and a mark of the contents, functions by name and a mark of their code."""
    if isinstance(thing, torch.nn.Module):
        return type(thing).__qualname__
    if isinstance(thing, FunctionType):
        return f"{thing.__qualname__} #{hashlib.blake2b(_doings(thing).encode(), digest_size=4).hexdigest()}"
    if callable(thing):
        return _made_of(thing)
    if is_tensor(thing) or hasattr(thing, "__array__"):
        tensor = torch.as_tensor(thing).detach()
        kind = str(tensor.dtype).removeprefix("torch.")
        return f"<{kind} {tuple(tensor.shape)} #{_mark(tensor)}>"
    return repr(thing)


def _made_of(thing: Any) -> str:
    """A callable object by its class and what it was made with."""
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    held = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
    plain = [f"{k}={v!r}" for k, v in held.items() if isinstance(v, (int, float, str))]
    return f"{name}({', '.join(plain)})" if plain and name == type(thing).__qualname__ else name


def _doings(function: FunctionType) -> str:
    """The code of a function with its constants and the plain values that it closes over: the same in every process
    that runs the same Python, without the address of anything."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    kept = [each for each in (*cells, *(function.__defaults__ or ())) if isinstance(each, _PLAIN) or is_tensor(each)]
    return "|".join([_code_text(function.__code__), *map(value_text, kept)])


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that was not given a value yet
        return False


def _code_text(code: CodeType) -> str:
    constants = [
        _code_text(each) if isinstance(each, CodeType) else repr(each)
        for each in code.co_consts
        if isinstance(each, (CodeType, *_PLAIN))
    ]
    return "|".join([code.co_code.hex(), *code.co_names, *constants])


def _mark(tensor: Tensor) -> str:
    """A few signs that differ when the contents do; of a large tensor, when parts of it do."""
    flat = tensor.flatten()
    if flat.numel() * flat.element_size() > _MOST_BYTES:
        flat = flat[:: -(-flat.numel() * flat.element_size() // _MOST_BYTES)]
    plain = flat.contiguous().cpu()
    plain = plain.to(torch.uint8) if plain.dtype is torch.bool else plain
    return hashlib.blake2b(plain.view(torch.uint8).numpy().tobytes(), digest_size=4).hexdigest()
