"""Before data is sent, all ranks compare their arguments; where they differ, every rank raises the same error.

A call sends one message of a fixed size to each rank: a digest of the arguments and a few numbers. Only if digests
differ, a second message says what the arguments are. A rank that refuses its own arguments reports that too, so that
the others do not wait for it. Arguments are texts that are the same in every process, with hashes of tensors and
functions.

With `check=True` the numbers of tensors, and every argument of the calls of a sharded layer, are compared too.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..backends.reference import Result
from ..cache import KVCache, LinearState
from ..errors import Disagreement, OptionError, QkvError, complaint
from ..inputs import in_transform
from ..masks import Mask
from ..masks.grid import is_tensor
from ..masks.joined import Joined
from ..raw import as_bytes
from ..similarity import AnySimilarity
from .transfer import AGREEMENT, CALLS, Axis, all_to_all, read_axis, start_all_to_all

_MAX_HASHED_BYTES = 1 << 24  # a larger tensor is hashed in part
PORTABLE_TYPES = (int, float, complex, str, bytes)  # types whose repr is the same in every process
_HEADER = 5  # numbers at the start of every message
_MAX_NUMBERS = 32  # numbers that a rank can add
# Calls made on each group: tells a rank that skipped a call from one whose arguments differ.
_COUNTS: Counter[str] = Counter()

# The methods that users and `generate` call.
CHECKED_METHODS = ("forward", "states", "encode", "project")
_MAX_COMPARED = 1 << 20  # a larger tensor is compared in part
_CHECKSUMS, _MAX_TENSORS = 3, 8  # checksums of a tensor, and tensors of a call: an agreement has 32 numbers
_ACTIVE: set[Any] = set()  # the groups whose outermost call is running: inner calls need no agreement


def agree(axis: Axis, arguments: dict[str, str] | Exception, numbers: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """Check that all ranks have the same arguments, and return the numbers of every rank.

    arguments: what must be equal, under the names of the public API, with the name of the "call"; or the error of this
    rank: then it is raised here, and every other rank raises `Disagreement`. numbers: up to 32, each rank its own.
    """
    return start_agreement(axis, arguments, numbers)()


def start_agreement(
    axis: Axis, arguments: dict[str, str] | Exception, numbers: Sequence[int] = ()
) -> Callable[[], list[tuple[int, ...]]]:
    """Start the messages of `agree`, so that this rank can compute meanwhile; calling the result finishes it."""
    _COUNTS[axis.key] += 1
    failed = isinstance(arguments, Exception)
    if not failed:
        CALLS[axis.key] = f"{arguments['call']} (call {_COUNTS[axis.key]})"
    text = (f"{type(arguments).__name__}: {arguments}" if failed else json.dumps(arguments)).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")
    header = [_COUNTS[axis.key], int(failed), digest, len(text), len(numbers), *numbers]
    own = torch.tensor(header + [0] * (_HEADER + _MAX_NUMBERS - len(header)), dtype=torch.int64, device=axis.device)
    (received,), pending = start_all_to_all(axis, [[own] * axis.size], [[own.shape] * axis.size], AGREEMENT)

    def finish() -> list[tuple[int, ...]]:
        pending.wait()
        messages = [message.tolist() for message in received]
        if any(message[1] for message in messages) or len({tuple(message[:3]) for message in messages}) > 1:
            own = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(axis.device)
            (texts,) = all_to_all(axis, [[own] * axis.size], [[[message[3]] for message in messages]], AGREEMENT)
            if isinstance(arguments, Exception):
                raise arguments
            raise Disagreement(_describe_difference(axis, messages, [bytes(each.tolist()).decode() for each in texts]))
        return [tuple(message[_HEADER : _HEADER + message[4]]) for message in messages]

    return finish


@contextmanager
def sharing_errors(axis: Axis) -> Iterator[None]:
    """If the block, which must not send anything, raises, the other ranks are told before the error propagates."""
    try:
        yield
    except Exception as error:
        agree(axis, error)  # raises it


def agreed_axis(mesh: DeviceMesh | None, axis: str | int | None) -> Axis:
    """The axis that a call names. In a mesh with one axis, a rank that names an unknown one tells the others."""
    try:
        return read_axis(mesh, axis)
    except QkvError as error:
        if axis is not None and isinstance(mesh, DeviceMesh) and mesh.ndim == 1:
            agree(read_axis(mesh, None), error)
        raise


def agree_before_backward(axis: Axis, result: Result) -> Result:
    """The same result, with an agreement at the start of its backward pass: a rank that makes another call instead
    causes an error on every rank instead of a timeout."""
    tensors = [tensor for tensor in result if tensor is not None]
    wrapped = iter(_AgreeBeforeBackward.apply(axis, _COUNTS[axis.key], *tensors))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return Result(*(None if tensor is None else next(wrapped) for tensor in result))  # pyright: ignore[reportArgumentType]


class _AgreeBeforeBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, axis: Axis, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axis, ctx.number = axis, number
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            hint = "distributed calls have first derivatives only"
            agree(ctx.axis, OptionError(complaint("create_graph", "True", "False", hint)))  # raises it
        agree(ctx.axis, {"call": f"the backward pass of call {ctx.number}"})
        return None, None, *grads


def _describe_difference(axis: Axis, messages: list[list[int]], texts: list[str]) -> str:
    where = f"axis {axis.name!r}, rank {axis.rank}: "
    failed = [rank for rank, message in enumerate(messages) if message[1]]
    if failed:
        return where + "; ".join(f"rank {rank} refused the call: {texts[rank]}" for rank in failed)
    each = [json.loads(text) for text in texts]
    names = dict.fromkeys(name for arguments in each for name in arguments)
    values = {name: [arguments.get(name, "nothing") for arguments in each] for name in names}
    differing = {name: texts for name, texts in values.items() if len(set(texts)) > 1}
    if "call" in differing:  # different calls have different arguments
        differing = {"call": differing["call"]}
    if not differing:
        calls = list_by_value([f"call number {message[0]}" for message in messages])
        return f"{where}the ranks are not at the same call: {calls}. Hint: every rank has to make the same calls."
    parts = "; ".join(f"{name}: {list_by_value(texts)}" for name, texts in differing.items())
    hint = "give every rank the same arguments; only the shards of tensors differ"
    return f"{where}the ranks have different arguments. {parts}. Hint: {hint}."


def list_by_value(values: Sequence[str]) -> str:
    """Which ranks have which value.

    >>> list_by_value(["one", "two", "one"])
    'one on ranks 0, 2, two on rank 1'
    """
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on {list_ranks(which)}" for value, which in ranks.items())


def list_ranks(which: list[int]) -> str:
    return f"rank{'s' * (len(which) > 1)} {', '.join(map(str, which))}"


def mask_text(mask: Mask | None) -> str:
    """The mask as a text that is the same in every process, with hashes of its tensors."""
    if mask is None:
        return "None"
    if isinstance(mask, Joined):
        return f" {mask._sign} ".join(f"({mask_text(part)})" for part in mask.masks)
    names = [name for cls in type(mask).__mro__ for name in getattr(cls, "__slots__", ()) if not name.startswith("_")]
    values = [getattr(mask, name, None) for name in names]
    return f"{type(mask).__name__}({', '.join(value_text(value) for value in values if value is not None)})"


def similarity_text(similarity: AnySimilarity) -> str:
    """The similarity as a text that is the same in every process."""
    fields = {name: value for name, value in vars(similarity).items() if name not in ("signature", "kind")}
    return f"{type(similarity).__name__}({', '.join(f'{k}={value_text(v)}' for k, v in fields.items())})"


def dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def value_text(thing: Any) -> str:
    """A value as a text that is the same in every process: tensors by shape and hash, functions by name and hash,
    other callable objects by their class and their public numbers and strings."""
    if isinstance(thing, torch.nn.Module):
        return type(thing).__qualname__
    if isinstance(thing, FunctionType):
        code = thing.__code__
        values = (
            *code.co_consts,
            *(thing.__defaults__ or ()),
            *(cell.cell_contents for cell in thing.__closure__ or ()),
        )
        kept = [value_text(value) for value in values if isinstance(value, PORTABLE_TYPES) or is_tensor(value)]
        return f"{thing.__qualname__} #{_hash('|'.join([code.co_code.hex(), *code.co_names, *kept]).encode())}"
    if callable(thing):
        if hasattr(thing, "__qualname__"):
            return thing.__qualname__
        public = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
        options = [f"{k}={v!r}" for k, v in public.items() if isinstance(v, (int, float, str))]
        return f"{type(thing).__qualname__}({', '.join(options)})"
    if is_tensor(thing) or hasattr(thing, "__array__"):
        tensor = torch.as_tensor(thing).detach()
        return f"<{dtype_text(tensor.dtype)} {tuple(tensor.shape)} #{_hash(_bytes(tensor))}>"
    return repr(thing)


def _bytes(tensor: Tensor) -> bytes:
    """The contents; of a large tensor, every n-th number."""
    flat = tensor.flatten()
    if flat.nbytes > _MAX_HASHED_BYTES:
        flat = flat[:: -(-flat.nbytes // _MAX_HASHED_BYTES)]
    return as_bytes(flat.cpu()).numpy().tobytes()


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def compare_numbers(axis: Axis, arguments: dict[str, str], tensors: dict[str, Tensor]) -> None:
    """Check that all ranks have the same arguments and, up to rounding, the same numbers."""
    with sharing_errors(axis):
        checksums = {name: _checksums(tensor) for name, tensor in tensors.items()}
        texts = {f"{name}, non-finite numbers": str(nonfinite) for name, (nonfinite, _) in checksums.items()}
    every = agree(axis, arguments | texts, [n for _, numbers in checksums.values() for n in numbers])
    found = torch.tensor(every, dtype=torch.int64).view(torch.float64)
    found = found.view(axis.size, len(checksums), _CHECKSUMS + 1)
    for index, (name, tensor) in enumerate(tensors.items()):
        each, tolerance = found[:, index], max(1e-3, 16 * torch.finfo(tensor.dtype).eps)
        # The tolerance is relative to the last number, the norm.
        differs = ((each - each[0]).abs() > tolerance * torch.maximum(each[:, -1:], each[0, -1])).any(1)
        if differs.any():
            others = list_ranks(differs.nonzero().flatten().tolist())
            hint = "give every rank the same numbers; where they are drawn, draw them with the same seed"
            where = f"axis {axis.name!r}, rank {axis.rank}"
            raise Disagreement(f"{where}: {name}: other numbers on {others} than on rank 0. Hint: {hint}.")


def _checksums(tensor: Tensor) -> tuple[int, list[int]]:
    """The number of non-finite entries; weighted sums, which depend on the order of rows and columns, and the norm, as
    the bits of float64. They are compared with a tolerance, since machines round differently."""
    if not tensor.numel():
        return 0, [0] * (_CHECKSUMS + 1)
    rows = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    rows = rows[:: -(-rows.numel() // _MAX_COMPARED)].double()
    nonfinite = int(rows.numel() - rows.isfinite().sum())
    rows = rows.nan_to_num(0.0, 0.0, 0.0)
    frequencies = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, device=rows.device).sqrt()
    # Without two equal rows.
    places = (torch.arange(1, size + 1, dtype=torch.float64, device=rows.device)[:, None] for size in rows.shape)
    across, along = (torch.cos(place * frequencies) for place in places)
    numbers = torch.cat([(across * (rows @ along)).sum(0), rows.norm().reshape(1)])
    return nonfinite, numbers.cpu().view(torch.int64).tolist()


class CheckedCall:
    """A method of a sharded layer that first compares its arguments with the other ranks.

    It is an attribute of the layer and not a subclass, since `save` stores the class; a copy of the layer gets its own.
    """

    def __init__(self, layer: nn.Module, name: str, axis: Axis) -> None:
        self.layer, self.name, self.axis = layer, name, axis
        self.__name__, self.__signature__ = name, inspect.signature(self._method())

    def __deepcopy__(self, memo: dict[int, Any]) -> CheckedCall:
        return CheckedCall(copy.deepcopy(self.layer, memo), self.name, self.axis)

    def _method(self) -> Callable[..., Any]:
        return getattr(type(self.layer), self.name).__get__(self.layer)

    def __call__(self, *given: Any, **options: Any) -> Any:
        # A traced program has no numbers to compare.
        if self.axis.group in _ACTIVE or torch.compiler.is_compiling() or in_transform():
            return self._method()(*given, **options)
        _ACTIVE.add(self.axis.group)
        try:
            with sharing_errors(self.axis):
                bound = self.__signature__.bind(*given, **options)
                bound.apply_defaults()
                texts, tensors = self._arguments(bound.arguments)
            compare_numbers(self.axis, texts, tensors)
            return self._method()(*given, **options)
        finally:
            _ACTIVE.discard(self.axis.group)

    def _arguments(self, arguments: dict[str, Any]) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What must be equal on all ranks, as texts, and floating-point tensors."""
        device, weight = self.axis.device.type, next(self.layer.parameters(), None)
        modes, tensors = [module.training for module in self.layer.modules()], dict[str, Tensor]()
        texts = {
            "call": f"{type(self.layer).__name__}.{self.name}",
            "training": f"{sum(modes)} of {len(modes)} modules",
            "gradients": str(torch.is_grad_enabled()),
            "autocast": str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "off",
            "weights": "none" if weight is None else str(weight.dtype),
        }
        flat = [*arguments.items()]
        for name, thing in arguments.items():
            flat += [(f"{name}[{key!r}]", each) for key, each in thing.items()] if isinstance(thing, dict) else []
        for name, thing in flat:
            if isinstance(thing, Tensor) and thing.is_floating_point() and len(tensors) < _MAX_TENSORS:
                tensors[name] = thing
            texts[name] = _describe(thing)
        return texts, tensors


def _describe(thing: Any) -> str:
    """What must be equal on all ranks, as a text; of floating-point tensors only the shape, since they may differ by
    rounding or have the heads of a rank."""
    if isinstance(thing, list | tuple):
        return f"[{', '.join(map(_describe, thing))}]"
    if isinstance(thing, KVCache | LinearState):
        return f"{thing!r} of lengths {thing.lengths.tolist()}"
    if isinstance(thing, Tensor) and (thing.is_floating_point() or thing.is_complex()):
        gradient = ", with a gradient" * (thing.requires_grad and torch.is_grad_enabled())
        return f"{dtype_text(thing.dtype)} {tuple(thing.shape)}{gradient}"
    if isinstance(thing, Mask):
        return mask_text(thing)
    known = thing is None or callable(thing) or hasattr(thing, "__array__") or isinstance(thing, torch.dtype)
    # The repr of other objects may contain an address.
    return value_text(thing) if known or isinstance(thing, PORTABLE_TYPES) else type(thing).__qualname__
