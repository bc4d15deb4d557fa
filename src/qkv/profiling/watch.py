"""`watch`: count flops, bytes and memory of what torch executes, operator by operator.

    with watch() as counts:
        ...
    print(counts)

Every operator that goes through torch's dispatcher is counted, backward passes included, from its input and output
tensors and a table of what it does. The formulas of `qkv.cost` are not used; tests compare the two. qkv's native
kernels do not go through the dispatcher and count their flops themselves.
"""

from __future__ import annotations

import tomllib
import weakref
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .. import ops
from ..cost.price import readable_bytes
from ..cost.readable import in_columns, quantity
from ..errors import OptionError, complaint

FLASH = "_scaled_dot_product_flash_attention_for_cpu"


_TABLES = tomllib.loads(files("qkv.profiling").joinpath("operators.toml").read_text(encoding="utf-8"))
FUSED: dict[str, int] = _TABLES.pop("fused")
OPERATORS = {name: frozenset(text.split()) for name, text in _TABLES.items()}


@dataclass
class OperatorCount:
    """Totals of one operator. products, elementwise: Flops. read, written: Bytes."""

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


def _total(name: str) -> Any:
    """The sum over all operators."""
    return property(lambda watch: sum(getattr(one, name) for one in watch.by_operator.values()))


@dataclass
class Watch:
    """Counts what torch executes inside a `with` block; a second block adds to the counts.

    Attributes:
        products: Flops of matrix products, two per multiply-add, as executed: in torch's flash kernel, masked parts of
            tiles are included.
        elementwise: One flop per element of an operator's larger side, also for exp and tanh.
        read, written: Bytes of the inputs and outputs of each operator. Views and expanded axes count 0. What an
            operator reads twice or allocates internally is not counted.
        peak: The largest number of bytes allocated inside the block that were alive at the same time.
        native: Flops of qkv's native kernels, in the whole process; their bytes are not counted.
        unknown: Operators whose flops are not known; their bytes are counted.

    >>> import torch
    >>> with watch() as counts:
    ...     out = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> counts.products, counts.elementwise, counts.written, counts.peak
    (60, 0, 124, 124)
    """

    by_operator: dict[str, OperatorCount] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    peak: int = 0
    native: int = 0
    _alive: dict[int, int] = field(default_factory=dict, repr=False)
    _alive_bytes: int = field(default=0, repr=False)
    _listener: _Listener | None = field(default=None, repr=False)
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _counts: Any = field(default=None, repr=False)

    def __enter__(self) -> Watch:
        if self._listener is not None:
            hint = "call watch() again for a separate count"
            raise OptionError(complaint("watch", "a Watch that is already counting", "one that is not", hint))
        self._stack = ExitStack()
        self._counts = self._stack.enter_context(ops.count_executed() if ops.available() else nullcontext())
        self._listener = self._stack.enter_context(_Listener(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._listener = None
        self._stack.close()
        self.native += 0 if self._counts is None else int(self._counts.flops)

    products, elementwise, read, written, calls = map(_total, ("products", "elementwise", "read", "written", "calls"))

    @property
    def flops(self) -> int:
        """Flops of products, of elementwise operations and of qkv's native kernels."""
        return self.products + self.elementwise + self.native

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON values; sizes in bytes."""
        totals = ("flops", "products", "elementwise", "native", "read", "written", "peak", "calls", "unknown")
        by_operator = {name: asdict(counted) for name, counted in self._sorted()}
        return {**{name: getattr(self, name) for name in totals}, "by_operator": by_operator}

    def _sorted(self) -> list[tuple[str, OperatorCount]]:
        rows = self.by_operator.items()
        return sorted(rows, key=lambda row: (-row[1].flops, -(row[1].read + row[1].written), row[0]))

    def __str__(self) -> str:
        rows = [("operator", "calls", "flops", "read", "written")]
        if self.native:
            rows.append(("qkv kernels", "", quantity(self.native), "", ""))
        total = OperatorCount(self.calls, self.flops - self.elementwise, self.elementwise, self.read, self.written)
        for name, one in (*self._sorted(), ("total", total)):
            flops = quantity(one.flops) if name not in self.unknown else "?"
            shown = name if len(name) <= 33 else "…" + name[-32:]
            rows.append((shown, str(one.calls), flops, readable_bytes(one.read), readable_bytes(one.written)))
        lines = [in_columns(rows, "<>>>>", "")]
        lines.append(f"flops of products {quantity(self.products)}, elementwise {quantity(self.elementwise)}")
        lines.append(f"peak memory allocated inside: {readable_bytes(self.peak)}")
        if self.unknown:
            lines.append(f"flops of the {len(self.unknown)} operators marked ? are not known and not counted")
        return "\n".join(lines)

    def _allocate(self, tensor: Tensor) -> None:
        """Count a storage from its allocation until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._alive:
            weakref.finalize(storage, self._release, key).atexit = False
        self._alive_bytes += size - self._alive.get(key, 0)
        self._alive[key] = size
        self.peak = max(self.peak, self._alive_bytes)

    def _release(self, key: int) -> None:
        self._alive_bytes -= self._alive.pop(key, 0)


def watch() -> Watch:
    """Count what torch executes: `with watch() as counts: ...`, then `print(counts)`. See `Watch`.

    Returns:
        A context manager with the counts.
    """
    return Watch()


class _Listener(TorchDispatchMode):
    """The dispatch mode that counts operators."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or _operator_name(func) in OPERATORS["metadata"]:
            return func(*args, **kwargs)
        if func._overloadpacket not in flop_registry and _is_composite(func):
            # Under inference_mode composite operators are not decomposed before; count their parts.
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
        if name == "lift_fresh":  # a tensor created from Python data
            given, made = [], outs
        for tensor in (*made, *(t for t in changed if t.untyped_storage()._cdata in self.watch._alive)):
            self.watch._allocate(tensor)
        if outs and not made and not changed and all(map(_is_strided, (*given, *outs))):
            return
        products, elementwise, known = _operator_flops(func, args, kwargs, out, given, outs)
        read, written = _bytes_moved(func, given, changed, made)
        known = known and all(map(_is_strided, (*given, *outs)))
        counted = OperatorCount(1, products, elementwise, read, written)
        shown = f"{func.namespace}.{func._overloadpacket.__name__}"
        self.watch.by_operator.setdefault(shown, OperatorCount()).add(counted)
        if not known and shown not in self.watch.unknown:
            self.watch.unknown.append(shown)


def _bytes_moved(func: Any, given: list[Tensor], changed: list[Tensor], made: list[Tensor]) -> tuple[int, int]:
    name = _operator_name(func)
    overwrites = name in OPERATORS["overwrites"] or "out" in func._overloadname
    skipped = {id(t) for t in changed} if overwrites or name in OPERATORS["scattering"] else set()
    first = given[0] if given else None
    read, seen = 0, set()
    for tensor in given:
        if id(tensor) in skipped or name in OPERATORS["like_factories"] or not _is_strided(tensor):
            continue
        index = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        if index in seen:
            continue
        seen.add(index)
        size = tensor_bytes(tensor)
        read += min(size, sum(map(tensor_bytes, made))) if tensor is first and name in OPERATORS["indexing"] else size
    if name in OPERATORS["empty_factories"]:
        return read, 0
    if name in OPERATORS["scattering"] and changed:
        placed = min(tensor_bytes(given[-1]), tensor_bytes(changed[0]))
        return read + (placed if name in OPERATORS["scatter_adding"] else 0), placed
    return read, sum(map(tensor_bytes, (*made, *changed)))


def _operator_flops(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, given: list[Tensor], outs: list[Tensor]
) -> tuple[int, int, bool]:
    """Flops of products, of everything else, and whether they are known."""
    name, packet = _operator_name(func), func._overloadpacket
    numbers = max((t.numel() for t in (*given, *outs)), default=0)
    made = outs[0].numel() if outs else 0
    added = made if name in OPERATORS["product_sums"] else 0
    if name in (FLASH, FLASH + "_backward"):
        return (*_flash_flops(name, given, args, kwargs), True)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out)), added, True
    if name in ("mv", "addmv", "dot", "vdot"):
        return 2 * max(t.numel() for t in given), added, True
    if name == "addbmm":
        return 2 * args[1].numel() * args[2].shape[2], args[1].shape[0] * made, True
    if name == "addr":
        return 0, 2 * made, True
    if name in OPERATORS["data_movement"] or func.namespace == "qkv":
        return 0, 0, True
    known = name in FUSED or name in OPERATORS["elementwise"] or _is_tagged(func)
    return 0, FUSED.get(name, 1) * numbers if known else 0, known


def _flash_flops(name: str, given: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Flops of torch's flash kernel on the CPU, in the tiles of aten/native/cpu/FlashAttentionKernel.cpp.

    A block of queries processes whole blocks of keys; with `is_causal`, those that begin before the block's last row.
    Forward, a query-key pair takes two products and scale, max, subtract, exp and sum; backward, five products and
    subtract, exp, subtract and multiply; an additive mask adds one. Each block of keys rescales the output rows once;
    for the first, this is the final division. Zero padding on machines with matrix units is not counted.
    """
    backward = name != FLASH
    query, key = given[1:3] if backward else given[:2]
    batch, heads, len_q, width = query.shape
    len_k = key.shape[2]
    index = 7 if backward else 4
    causal = args[index] if len(args) > index else kwargs.get("is_causal", False)
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
    """Bytes of a tensor's elements: expanded axes count once, and the storage is the limit.

    >>> tensor_bytes(torch.ones(3, 1).expand(3, 5))
    12
    """
    if not _is_strided(tensor):
        return 0
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= min(size, 1) if stride == 0 else size
    return min(count * tensor.element_size(), tensor.untyped_storage().nbytes())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


def _operator_name(func: Any) -> str:
    """The operator's name without the trailing underscore of in-index operators."""
    name = func._overloadpacket.__name__
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _written_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[index] if index < len(args) else kwargs.get(argument.name))
    return found


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _is_tagged(func: Any) -> bool:
    """Whether torch tags the operator, or its out-of-index variant, as pointwise or a reduction."""
    plain = getattr(getattr(torch.ops.aten, _operator_name(func), None), func._overloadname, None)
    tags = {*func.tags, *(plain.tags if plain is not None else ())}
    return torch.Tag.pointwise in tags or torch.Tag.reduction in tags
