"""Whether the native library can be used, with which instruction set, and why not.

Two environment variables have a say, read once: `QKV_NATIVE=0` leaves the native library alone, and
`QKV_ISA=portable|avx2|avx512` takes that instruction set or fails. An instruction set that does not pass its own
check is refused and the next one is taken.
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

from ..cost.executed import Executed, Geometry
from ..errors import BackendRefused, OptionError, complaint


@dataclass(frozen=True)
class Capability:
    """What loading came to. `native` is None exactly when `reasons` is not empty."""

    native: ModuleType | None = None
    isa: str = "none"
    isas: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@cache
def load() -> Capability:
    """Load the native library once and choose its instruction set; OptionError where QKV_ISA cannot be had."""
    if os.environ.get("QKV_NATIVE") == "0":
        return Capability(reasons=("QKV_NATIVE=0 is set",))
    try:
        native = import_module("._native", __package__)
    except ImportError as error:
        return Capability(reasons=(f"the native library is not built or does not load: {error}",))
    # A daemon thread that comes back from a kernel while the interpreter goes down would abort the process.
    atexit.register(native.before_exit)
    return choose_isa(native, os.environ.get("QKV_ISA", ""))


def choose_isa(native: ModuleType, wanted: str) -> Capability:
    """The instruction set `wanted`, or the fastest one that passes its self-check when nothing is wanted."""
    isas: tuple[str, ...] = tuple(native.isas())
    if wanted and wanted not in isas:
        raise OptionError(
            complaint(
                "QKV_ISA",
                repr(wanted),
                f"one of {', '.join(isas)}: what this build and this machine can run",
                "unset it to take the fastest",
            )
        )
    refused: dict[str, str] = {}
    for isa in (wanted,) if wanted else isas:
        fault = native.self_check(isa)
        if not fault:
            native.use(isa)
            return Capability(native, isa, isas, refused=refused)
        refused[isa] = fault
    if wanted:
        raise OptionError(
            complaint(
                "QKV_ISA",
                repr(wanted),
                "an instruction set that passes its self-check",
                f"{refused[wanted]}; unset it to take another one",
            )
        )
    faults = tuple(f"{isa} failed its self-check: {fault}" for isa, fault in refused.items())
    return Capability(isas=isas, reasons=faults, refused=refused)


def available() -> bool:
    """Whether the native library can be used; `reasons` says why not."""
    return load().native is not None


def reasons() -> tuple[str, ...]:
    """Why the native library cannot be used; empty when it can.

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
    """The instruction sets that could run and failed their self-check, each with what went wrong."""
    return dict(load().refused)


def reasons_for_one_thread() -> tuple[str, ...]:
    """Why native kernels stay on one thread whatever `torch.set_num_threads` says; empty when they do not.

    They borrow the threads of the OpenMP runtime that torch has loaded, so torch has to be imported; a forked
    child has none of them.
    """
    native = load().native
    reason = "" if native is None else native.why_one_thread()
    return (reason,) if reason else ()


def calls() -> dict[str, int]:
    """How often each native kernel ran since the start or the last `reset_calls`; empty without the library.

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


def _in_child() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def limit_threads_after_fork() -> None:
    """Keeps torch on one thread in a process that was forked, as native kernels do (`reasons_for_one_thread`)."""
    if _forked:
        import torch

        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)


_lock = threading.Lock()
_open_blocks = 0


def _unlock_in_child() -> None:
    """A thread that held the lock when the process was forked does not exist in the child."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


@contextmanager
def counted() -> Iterator[Executed]:
    """Count what native kernels execute inside the block; the numbers are there when it ends, by an error too.

    Rows, keys and widths that fill up tiles and vectors count like all others, and so do masked parts of tiles. Packing
    and what goes number by number (scaling, masking, the division) does not. The kernels are the same and give the same
    bits; outside of every block nothing counts, and nobody pays.

    The counters are the process's: a block counts the calls of every thread, as far as they run inside it, and a block
    inside a block counts for both. A call that was under way before the first block opened is not counted.

    >>> import torch, qkv
    >>> with counted() as work:
    ...     x = torch.ones(1, 1, 8, 16)
    ...     out = qkv.attention(x, x, x, backend="native")
    >>> work.value_flops, work.tiles  # 8 queries x 8 keys x 16 channels, on one page
    (2048, 1)
    """
    native = _require_native("kernels.counted")
    executed = Executed()
    before = _switched(native, 1)
    try:
        yield executed
    finally:
        for name, count in _switched(native, -1).items():
            setattr(executed, name, count - before[name])


def _switched(native: ModuleType, blocks: int) -> dict[str, int]:
    """The counters as a block opens (1) or ends (-1); the first and the last one turn the counting on and off."""
    global _open_blocks
    with _lock:
        counts = native.counts()
        _open_blocks += blocks
        native.count(_open_blocks > 0)
    return counts


def geometry() -> Geometry:
    """The sizes that the kernels use here, for `qkv.cost.tiles`.

    >>> geometry().page_tokens
    64
    """
    return Geometry(**_require_native("kernels.geometry").geometry())


def chunk_tokens(features: int) -> int:
    """Tokens in a chunk of the linear backend; `geometry().chunk_tokens` without the rest."""
    return _require_native("kernels.chunk_tokens").chunk_tokens(features)


def _require_native(name: str) -> ModuleType:
    native = load().native
    if native is None:
        raise BackendRefused(f"{name} needs the native library", load().reasons)
    return native
