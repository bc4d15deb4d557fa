"""Whether the native library can be used, with which instruction set, and why not.

Two environment variables have a say, read once: `QKV_NATIVE=0` leaves the native library alone, and
`QKV_ISA=portable|avx2|avx512` takes that instruction set or fails. An instruction set that does not pass its own
check is refused and the next one is taken.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType

from ..errors import OptionError, complaint


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
    return choose(native, os.environ.get("QKV_ISA", ""))


def choose(native: ModuleType, wanted: str) -> Capability:
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
