"""Machines: those of `hardware.toml`, as their data sheets describe them, and this one, as it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from .formats import check_size
from .machine import Machine
from .naming import resolve
from .shipped import shipped

FILE = "hardware.toml"
HERE = "here"
# What numbers are multiplied in where a machine has no rate for them.
_INSTEAD = {"bfloat16": ("float16", "float32"), "float16": ("bfloat16", "float32"), "float32": ()}


@dataclass(frozen=True)
class Hardware:
    """rates: FLOP/s of matrix products by dtype, dense, without sparsity. bandwidth: bytes a second from memory.
    memory: bytes. source: where the figures come from. measured: whether they were measured on this machine."""

    name: str
    rates: dict[str, float]
    bandwidth: float
    memory: int
    source: str = ""
    title: str = ""
    measured: bool = False

    def __post_init__(self) -> None:
        check_size("memory", self.memory)
        if not isinstance(self.rates, dict) or not self.rates:
            raise OptionTypeError(complaint("rates", repr(self.rates), "FLOP/s by dtype, such as {'float32': 1e12}"))
        for name, rate in [*self.rates.items(), ("bandwidth", self.bandwidth)]:
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not isfinite(rate) or rate <= 0:
                raise OptionError(complaint(name, repr(rate), "a positive number, a second"))

    def rate(self, dtype: str) -> float:
        """FLOP/s in a dtype, or in the nearest one that the machine multiplies."""
        return self.rates[self.rate_name(dtype)]

    def rate_name(self, dtype: str) -> str:
        """
        >>> Hardware("old", {"float32": 1e12}, 1e11, 2**34).rate_name("bfloat16")
        'float32'
        """
        for name in (dtype, *_INSTEAD.get(dtype, ())):
            if name in self.rates:
                return name
        raise OptionError(complaint("hardware", f"{self.name} without a rate for {dtype}", f"one of {[*self.rates]}"))

    def ridge(self, dtype: str) -> float:
        """Flops for each byte from which the machine computes longer than it reads."""
        return self.rate(dtype) / self.bandwidth


def hardware() -> dict[str, Hardware]:
    """Every machine by its name; "here" is this one.

    >>> hardware()["h100-sxm"].bandwidth
    3350000000000.0
    """
    return {HERE: _here(), **{name: _preset(name) for name in shipped(FILE)}}


def as_hardware(given: Any) -> Hardware:
    """A machine, or one by a name as people type it."""
    if isinstance(given, Hardware):
        return given
    if not isinstance(given, str):
        raise OptionTypeError(complaint("hardware", repr(given), "a qkv.cost.Hardware or the name of one"))
    hint = "qkv plan --list shows every name; qkv.cost.Hardware(...) describes another machine"
    name = resolve("hardware", given, [HERE, *shipped(FILE)], "a machine that is known by name", hint)
    return _here() if name == HERE else _preset(name)


def _here() -> Hardware:
    """This machine as `qkv calibrate` measured it; before that, careful figures."""
    machine = Machine.stored() or Machine.built_in()
    rates = {dtype: machine.multiply_rate(dtype) for dtype in ("float32", "bfloat16", "float16")}
    source = "measured by qkv calibrate" if machine.measured else "built-in careful figures; qkv calibrate measures"
    title = f"this machine, {machine.name}"
    return Hardware(HERE, rates, machine.memory_rate, machine.memory_bytes, source, title, machine.measured)


@cache
def _preset(name: str) -> Hardware:
    entry = shipped(FILE)[name]
    rates, source = entry.get("rates"), entry["source"]
    if rates is None:
        each = entry["cores"] * entry["clock"] * 2
        rates = {dtype: each * lanes for dtype, lanes in entry["lanes"].items()}
        lanes = " or ".join(f"{count} lanes of {dtype}" for dtype, count in entry["lanes"].items())
        source += f"; rates are {entry['cores']} cores × {entry['clock'] / 1e9:g} GHz × {lanes} × 2"
    return Hardware(name, rates, float(entry["bandwidth"]), entry["memory"], source, entry["title"])
