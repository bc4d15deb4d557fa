"""What torch executes inside a block: flops, bytes and cache, operator by operator.

    with watch() as seen:
        ...
    print(seen)

Every operator that passes torch's dispatcher is seen, backward passes included. It is counted by the tensors that go in
and come out, and by rules for what it does, which know nothing of the formulas in `passes`: tests hold the two equal.
qkv's own kernels do not pass the dispatcher and count for themselves.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .. import ops
from ..cost.price import readable_bytes
from ..errors import OptionError, complaint
from .operators import ADDS, ELEMENTWISE, EMPTY, FUSED, LIKE, MOVES, OVERWRITES, PICKS, PLACES, PLACES_SUMS, QUESTIONS

FLASH = "_scaled_dot_product_flash_attention_for_cpu"


@dataclass
class OperatorCount:
    """What one operator did, all calls together. flops: products and elementwise. read, written: bytes."""

    calls: int = 0
    products: int = 0
    elementwise: int = 0
    read: int = 0
    written: int = 0

    @property
    def flops(self) -> int:
        return self.products + self.elementwise

    def add(self, other: OperatorCount) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass
class Watch:
    """Counts what torch executes between `with` and its end; used again, it counts on.

    products: flops of matrix products, a multiplication and an addition two; under a triangle, and in torch's flash
    kernel, as executed, masked parts of tiles included. elementwise: one for each number of an operator's larger side,
    exp and tanh too. read, written: bytes of the tensors that go in and come out of each operator; views count nothing,
    an expanded axis holds nothing. What an operator reads twice or keeps for itself inside is not seen. peak: bytes
    that were made inside and were alive at the worst moment, results included. native: flops of qkv's own kernels, as
    executed in the whole process; bytes inside them are not seen.
    unknown: operators whose flops nobody knows here; their bytes are counted.

    >>> import torch
    >>> with watch() as seen:
    ...     out = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> seen.products, seen.elementwise, seen.written, seen.peak
    (60, 0, 124, 124)
    """

    by_operator: dict[str, OperatorCount] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    peak: int = 0
    native: int = 0
    _alive: dict[int, int] = field(default_factory=dict, repr=False)
    _held: int = field(default=0, repr=False)
    _listener: _Listener | None = field(default=None, repr=False)
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _counts: Any = field(default=None, repr=False)

    def __enter__(self) -> Watch:
        if self._listener is not None:
            hint = "call watch() once more for a count of its own"
            raise OptionError(complaint("watch", "a Watch that is counting already", "one that is not", hint))
        self._stack = ExitStack()
        self._counts = self._stack.enter_context(ops.count_executed() if ops.available() else nullcontext())
        self._listener = self._stack.enter_context(_Listener(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._listener = None
        self._stack.close()
        self.native += 0 if self._counts is None else int(self._counts.flops)

    @property
    def products(self) -> int:
        return sum(one.products for one in self.by_operator.values())

    @property
    def elementwise(self) -> int:
        return sum(one.elementwise for one in self.by_operator.values())

    @property
    def flops(self) -> int:
        """Of products, of everything else, and of qkv's own kernels."""
        return self.products + self.elementwise + self.native

    @property
    def read(self) -> int:
        return sum(one.read for one in self.by_operator.values())

    @property
    def written(self) -> int:
        return sum(one.written for one in self.by_operator.values())

    @property
    def calls(self) -> int:
        """How many operators ran; views are none."""
        return sum(one.calls for one in self.by_operator.values())

    def as_dict(self) -> dict[str, Any]:
        """Integers by name, ready for JSON; bytes are bytes."""
        totals = ("flops", "products", "elementwise", "native", "read", "written", "peak", "calls")
        return {
            **{name: getattr(self, name) for name in totals},
            "unknown": list(self.unknown),
            "by_operator": {
                name: {one.name: getattr(counted, one.name) for one in fields(counted)}
                for name, counted in self._sorted()
            },
        }

    def _sorted(self) -> list[tuple[str, OperatorCount]]:
        rows = self.by_operator.items()
        return sorted(rows, key=lambda row: (-row[1].flops, -(row[1].read + row[1].written), row[0]))

    def __str__(self) -> str:
        rows = [("operator", "calls", "flops", "read", "written")]
        if self.native:
            rows.append(("qkv kernels", "", short(self.native), "", ""))
        for name, one in self._sorted():
            told = short(one.flops) if name not in self.unknown else "?"
            rows.append((name, str(one.calls), told, readable_bytes(one.read), readable_bytes(one.written)))
        totals = str(self.calls), short(self.flops), readable_bytes(self.read), readable_bytes(self.written)
        rows.append(("together", *totals))
        lines = [
            f"{_shorten(name):<34}{calls:>8}{flops:>12}{r:>12}{w:>12}".rstrip() for name, calls, flops, r, w in rows
        ]
        lines.append(f"flops of products {short(self.products)}, of all else in torch {short(self.elementwise)}")
        lines.append(f"made inside and alive at the worst moment: {readable_bytes(self.peak)}")
        if self.unknown:
            lines.append(f"flops not known, and not counted, of the operators marked ? ({len(self.unknown)})")
        return "\n".join(lines)

    def _note(self, name: str, counted: OperatorCount, known: bool) -> None:
        self.by_operator.setdefault(name, OperatorCount()).add(counted)
        if not known and name not in self.unknown:
            self.unknown.append(name)

    def _hold(self, tensor: Tensor) -> None:
        """A storage counts from when it is made until nobody has it any more."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._alive:
            weakref.finalize(storage, self._release, key).atexit = False
        self._held += size - self._alive.get(key, 0)
        self._alive[key] = size
        self.peak = max(self.peak, self._held)

    def _release(self, key: int) -> None:
        self._held -= self._alive.pop(key, 0)


def watch() -> Watch:
    """A count of what torch executes: `with watch() as seen: ...`, then `print(seen)`. See `Watch`."""
    return Watch()


class _Listener(TorchDispatchMode):
    """Stands at the dispatcher and writes down what passes."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or _operator_name(func) in QUESTIONS:
            return func(*args, **kwargs)
        if func._overloadpacket not in flop_registry and _is_composite(func):
            # Under inference_mode such an operator comes as a whole; its parts are what is executed.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        self._count(func, args, kwargs, out)
        return out

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = _tensors((args, kwargs))
        changed = [t for t in _tensors(_written_arguments(func, args, kwargs)) if _is_strided(t)]
        outs = _tensors(out)
        known_storages = {t.untyped_storage()._cdata for t in given if _is_strided(t)}
        made = [t for t in outs if _is_strided(t) and t.untyped_storage()._cdata not in known_storages]
        name = _operator_name(func)
        if name == "lift_fresh":  # what Python made, seen for the first time
            given, made = [], outs
        for tensor in (*made, *(t for t in changed if t.untyped_storage()._cdata in self.watch._alive)):
            self.watch._hold(tensor)
        if outs and not made and not changed and all(map(_is_strided, (*given, *outs))):
            return
        products, elementwise, known = _operator_flops(func, args, kwargs, out, given, outs)
        read, written = _bytes_moved(func, given, changed, made)
        known = known and all(map(_is_strided, (*given, *outs)))
        counted = OperatorCount(1, products, elementwise, read, written)
        self.watch._note(f"{func.namespace}.{func._overloadpacket.__name__}", counted, known)


def _bytes_moved(func: Any, given: list[Tensor], changed: list[Tensor], made: list[Tensor]) -> tuple[int, int]:
    name = _operator_name(func)
    overwrites = name in OVERWRITES or "out" in func._overloadname
    skipped = {id(t) for t in changed} if overwrites or name in PLACES else set()
    first = given[0] if given else None
    read, seen = 0, set()
    for tensor in given:
        if id(tensor) in skipped or name in LIKE or not _is_strided(tensor):
            continue
        place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        if place in seen:
            continue
        seen.add(place)
        size = tensor_bytes(tensor)
        read += min(size, sum(map(tensor_bytes, made))) if tensor is first and name in PICKS else size
    if name in EMPTY:
        return read, 0
    if name in PLACES and changed:
        placed = min(tensor_bytes(given[-1]), tensor_bytes(changed[0]))
        return read + (placed if name in PLACES_SUMS else 0), placed
    return read, sum(map(tensor_bytes, (*made, *changed)))


def _operator_flops(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, given: list[Tensor], outs: list[Tensor]
) -> tuple[int, int, bool]:
    """Flops of products, of everything else, and whether they are known."""
    name, packet = _operator_name(func), func._overloadpacket
    numbers = max((t.numel() for t in (*given, *outs)), default=0)
    made = outs[0].numel() if outs else 0
    if name in (FLASH, FLASH + "_backward"):
        return (*_flash_flops(name, given, args, kwargs), True)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out)), made if name in ADDS else 0, True
    if name in ("mv", "addmv", "dot", "vdot"):
        return 2 * max(t.numel() for t in given), made if name in ADDS else 0, True
    if name == "addbmm":
        return 2 * args[1].numel() * args[2].shape[2], args[1].shape[0] * made, True
    if name == "addr":
        return 0, 2 * made, True
    if name in MOVES or func.namespace == "qkv":
        return 0, 0, True
    if name in FUSED:
        return 0, FUSED[name] * numbers, True
    if name in ELEMENTWISE or _is_tagged(func):
        return 0, numbers, True
    return 0, 0, False


def _flash_flops(name: str, given: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """torch's flash kernel on the CPU, tile by tile, as aten/native/cpu/FlashAttentionKernel.cpp goes over them.

    A block of queries goes over blocks of keys, each as a whole; under `is_causal` over those that begin before the
    block's last row. Forward, a pair takes part in two products and in scale, max, subtract, exp and sum; backward in
    five and in subtract, exp, subtract and multiply; an additive mask is one more. Each further block of keys scales
    the rows of the answer once more, and the first is the division at the end. What a machine with matrix units fills
    up with zeros in half precision is not in it.
    """
    backward = name != FLASH
    query, key = given[1:3] if backward else given[:2]
    batch, heads, len_q, width = query.shape
    len_k = key.shape[2]
    place = 7 if backward else 4
    causal = args[place] if len(args) > place else kwargs.get("is_causal", False)
    masked = kwargs.get("attn_mask") is not None
    rows = min(256 if len_q >= 768 else 64 if len_q >= 192 else 32, max(len_q, 1))
    pairs = scaled = 0
    for first in range(0, len_q, rows):
        last = min(first + rows, len_q)
        for start in range(0, min(last, len_k) if causal else len_k, 512):
            pairs += (last - first) * (min(start + 512, len_k) - start)
            scaled += last - first
    each = batch * heads
    if backward:
        return 10 * each * pairs * width, each * ((4 + masked) * pairs + 2 * len_q * width)
    return 4 * each * pairs * width, each * ((5 + masked) * pairs + scaled * width)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes that a tensor's numbers take: an axis that `expand` made holds nothing, and no more than the storage has.

    >>> held_bytes(torch.ones(3, 1).expand(3, 5))
    12
    """
    if not _is_strided(tensor):
        return 0
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= min(size, 1) if stride == 0 else size
    return min(count * tensor.element_size(), tensor.untyped_storage().nbytes())


def short(count: int) -> str:
    """
    >>> short(999), short(2_000_000), short(123_456_789_000)
    ('999', '2.00 M', '123 G')
    """
    if count < 1000:
        return str(count)
    size, units = float(count), "kMGTPEZY"
    for unit in units:
        size /= 1000
        if size < 999.5 or unit == units[-1]:
            digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
            return f"{size:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def _shorten(name: str) -> str:
    return name if len(name) <= 33 else "…" + name[-32:]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


def _operator_name(func: Any) -> str:
    """The operator's name without the mark of those that work in place."""
    name = func._overloadpacket.__name__
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _written_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return found


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _is_tagged(func: Any) -> bool:
    """Whether torch calls it elementwise or a reduction; what works in place is asked for under its other name."""
    plain = getattr(getattr(torch.ops.aten, _operator_name(func), None), func._overloadname, None)
    tags = {*func.tags, *(plain.tags if plain is not None else ())}
    return torch.Tag.pointwise in tags or torch.Tag.reduction in tags
