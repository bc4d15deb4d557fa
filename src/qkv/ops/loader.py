"""Loads the native library, chooses its instruction set, and says why it cannot be used.

Two environment variables are read once: `QKV_NATIVE=0` turns the native library off, and
`QKV_ISA=portable|avx2|avx512` selects that instruction set or fails. Without `QKV_ISA`, an instruction set that fails
its self-check is refused, and the next fastest one is used.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType

from ..errors import BackendRefused, OptionError, complaint


@dataclass(frozen=True)
class Capability:
    """The result of loading.

    Args:
        native: The extension; None exactly if `reasons` is not empty.
        isa: The instruction set in use, or "none".
        isas: The instruction sets that this build and this machine can run, the fastest first.
        reasons: Why the native library cannot be used.
        refused: The instruction sets that failed their self-check, each with the fault.
    """

    native: ModuleType | None = None
    isa: str = "none"
    isas: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@cache
def load() -> Capability:
    """Load the native library once and choose its instruction set.

    Raises:
        OptionError: QKV_ISA names an instruction set that cannot run here, or that fails its self-check.
    """
    if os.environ.get("QKV_NATIVE") == "0":
        return Capability(reasons=("QKV_NATIVE=0 is set",))
    try:
        native = import_module("._native", __package__)
    except ImportError as error:
        return Capability(reasons=(f"the native library is not built or does not load: {error}",))
    # A daemon thread that returns from a kernel while the interpreter shuts down would abort the process.
    atexit.register(native.before_exit)
    return choose_isa(native, os.environ.get("QKV_ISA", ""))


def choose_isa(native: ModuleType, requested: str) -> Capability:
    """Use the instruction set `requested` or, if it is "", the fastest one that passes its self-check."""
    isas: tuple[str, ...] = tuple(native.isas())
    if requested and requested not in isas:
        wanted = f"one of {', '.join(isas)}, which this build and this machine can run"
        raise OptionError(complaint("QKV_ISA", repr(requested), wanted, "unset it to use the fastest"))
    refused: dict[str, str] = {}
    for isa in (requested,) if requested else isas:
        fault = native.self_check(isa)
        if not fault:
            native.use(isa)
            return Capability(native, isa, isas, refused=refused)
        refused[isa] = fault
    if requested:
        hint = f"{refused[requested]}; unset it to use another one"
        raise OptionError(complaint("QKV_ISA", repr(requested), "an instruction set that passes its self-check", hint))
    faults = tuple(f"{isa} failed its self-check: {fault}" for isa, fault in refused.items())
    return Capability(isas=isas, reasons=faults, refused=refused)


def available() -> bool:
    """Whether the native library can be used; if not, `reasons` says why."""
    return load().native is not None


def reasons() -> tuple[str, ...]:
    """Why the native library cannot be used; empty if it can.

    >>> available() == (reasons() == ())
    True
    """
    return load().reasons


def isa() -> str:
    """The instruction set that the kernels use; "none" without the native library.

    >>> isa() in (*isas(), "none")
    True
    """
    return load().isa


def isas() -> tuple[str, ...]:
    """The instruction sets that this build and this machine can run, the fastest first."""
    return load().isas


def refused_isas() -> dict[str, str]:
    """The instruction sets that can run here but failed their self-check, each with the fault."""
    return dict(load().refused)


def reasons_for_one_thread() -> tuple[str, ...]:
    """Why native kernels use one thread regardless of `torch.set_num_threads`; empty if they use as many as torch.

    They run on the threads of the OpenMP runtime that torch has loaded, so torch must be imported; a forked child
    process has none of these threads.
    """
    native = load().native
    reason = "" if native is None else native.why_one_thread()
    return (reason,) if reason else ()


def calls() -> dict[str, int]:
    """How often each native kernel ran since the start or the last `reset_calls`; empty without the native library.

    >>> reset_calls()
    >>> set(calls().values()) <= {0}
    True
    """
    native = load().native
    return {} if native is None else native.calls()


def reset_calls() -> None:
    """Set every count of `calls` to 0."""
    native = load().native
    if native is not None:
        native.reset_calls()


_forked = False
_lock = threading.Lock()
_open_blocks = 0


def _after_fork_in_child() -> None:
    """Note the fork, and replace the lock: a thread that held it does not exist in the child."""
    global _forked, _lock
    _forked = True
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def limit_threads_after_fork() -> None:
    """Set torch to one thread in a forked process: it would wait forever for OpenMP threads of its parent."""
    if _forked:
        import torch

        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)


@dataclass
class Executed:
    """Work of one kernel call.

    Attributes:
        score_flops: products of queries and keys.
        value_flops: products of weights and values.
        other_flops: products of the linear backend.
        feature_flops: monomials, powers and squares.
        exponentials: computed in vectors; the two for each query's sink are not included.
        tiles: pages and tiles of scores.

    >>> Executed(score_flops=6, value_flops=4).flops
    10
    """

    score_flops: int = 0
    value_flops: int = 0
    other_flops: int = 0
    feature_flops: int = 0
    exponentials: int = 0
    tiles: int = 0

    @property
    def flops(self) -> int:
        """Flops of all products; a multiplication and an addition are two."""
        return self.score_flops + self.value_flops + self.other_flops


@contextmanager
def count_executed() -> Iterator[Executed]:
    """Count the work that native kernels execute inside the `with` block.

    Padding of tiles and vectors counts, and so do masked parts of tiles. Packing and elementwise work (scaling,
    masking, division) does not. Kernels give the same bits while counting; outside of every block counting is off and
    costs nothing.

    The counters belong to the process: a block counts the calls of all threads that run inside it, and nested blocks
    both count. A call that started before the first block is not counted.

    Returns:
        A context manager that gives an `Executed`; its numbers are set when the block ends, by an error too.

    Raises:
        BackendRefused: The native library cannot be used.

    >>> import torch, qkv
    >>> with count_executed() as work:
    ...     x = torch.ones(1, 1, 8, 16)
    ...     out = qkv.attention(x, x, x, backend="native")
    >>> work.value_flops, work.tiles  # 8 queries x 8 keys x 16 channels, on one page
    (2048, 1)
    """
    native = require_native("qkv.ops.count_executed")
    executed = Executed()
    before = _switch_counting(native, 1)
    try:
        yield executed
    finally:
        for name, count in _switch_counting(native, -1).items():
            setattr(executed, name, count - before[name])


def _switch_counting(native: ModuleType, blocks: int) -> dict[str, int]:
    """The counters as a block starts (1) or ends (-1); the first start turns counting on, the last end off."""
    global _open_blocks
    with _lock:
        counts = native.counts()
        _open_blocks += blocks
        native.set_counting(_open_blocks > 0)
    return counts


def chunk_tokens(features: int) -> int:
    """Tokens in a chunk of the native linear kernel."""
    return require_native("qkv.ops.chunk_tokens").chunk_tokens(features)


def require_native(function: str) -> ModuleType:
    """The extension; BackendRefused, with the reasons, if it cannot be used. function: its caller, for the message."""
    found = load()
    if found.native is None:
        why = "; ".join(found.reasons)
        raise BackendRefused(f"{function} needs the native library, which cannot be used: {why}", found.reasons)
    return found.native
