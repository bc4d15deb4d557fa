"""Machines: this one, as `qkv calibrate` measured it, and those of hardware.toml, from their data sheets.

A calibration is kept in the user's cache folder; dispatch and `plan` use it. Reading it needs no torch. Before the
first calibration, built-in conservative rates apply.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from .lookup import match_name, read_data
from .price import MEMORY_RATE, MULTIPLY_RATE, Price
from .sizes import check_size

FORMAT = 4  # of calibration files
HARDWARE_FILE = "hardware.toml"
HERE = "here"
# Formats to multiply in if a machine has no rate for the wanted one.
_INSTEAD = {
    "bfloat16": ("float16", "float32"), "float16": ("bfloat16", "float32"), "float32": (),
    "int8": ("bfloat16", "float16", "float32"), "fp8": ("bfloat16", "float16", "float32"),
}  # fmt: skip
MAX_FILE_BYTES = 1 << 22  # of a calibration file
_ACTIVE: list[Machine | None] = []
_LISTENERS: list[Callable[[], None]] = []

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Machine:
    """Rates and prices of a machine.

    Attributes:
        roofs: bytes or operations per second by name ("read.memory", "multiply.float32.square", …), and the seconds of
            a call ("call").
        prices: for each engine, a backend with a similarity, a dtype and a mode ("native.softmax.float32.few", …) or a
            cache ("cache.few.int8", …), its seconds for a call, a flop and a byte.
        errors: for each engine, the median relative error of the fit.
        dots: measured calls for a roofline chart: name, flops per byte, flops per second.
        taken: when it was measured; "" for built-in rates.
    """

    name: str
    cores: int
    threads: int
    memory_bytes: int
    torch: str = ""
    isa: str = ""
    taken: str = ""
    roofs: Mapping[str, float] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    dots: tuple[tuple[str, float, float], ...] = ()

    @property
    def measured(self) -> bool:
        return bool(self.taken)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Implausible roofs, which mean that other programs ran during the measurement."""
        found = []
        pairs = [(f"{kind}.cache", f"{kind}.memory") for kind in ("read", "write", "copy")]
        for near, far in pairs:
            if self.roofs.get(near, math.inf) < 0.8 * self.roofs.get(far, 0.0):
                found.append(f"{near} is slower than {far}")
        for name in ("threads.multiply", "threads.read"):
            if self.roofs.get(name, 1.0) < 0.8:
                found.append(f"{name}: all threads are slower than one")
        return tuple(found)

    @property
    def memory_rate(self) -> float:
        """Bytes per second read from main memory."""
        return self.roofs.get("read.memory", MEMORY_RATE)

    def multiply_rate(self, dtype: str = "float32") -> float:
        """Flops per second of a large matrix product; that of float32 for a dtype that was not measured."""
        known = self.roofs.get(f"multiply.{dtype}.square", self.roofs.get("multiply.float32.square"))
        return MULTIPLY_RATE * self.cores if known is None else known

    @classmethod
    def measure(cls, progress: Progress | None = None) -> Machine:
        """Measure this machine, in about 15 seconds; `store()` keeps the result. Run nothing else meanwhile."""
        # Imported by name: profiling is above cost, and loads torch.
        return import_module("qkv.profiling.calibrate").measure(progress)

    @classmethod
    def built_in(cls) -> Machine:
        """The rates assumed before a calibration."""
        cores = os.cpu_count() or 1
        return cls(processor_name(), cores, cores, memory_bytes())

    @classmethod
    def stored(cls) -> Machine | None:
        """The calibration of this machine with this version of torch; None if there is none or it is invalid."""
        try:
            return cls.read(calibration_path())
        except (OSError, OptionError):
            return None

    @classmethod
    def read(cls, file: Path | str) -> Machine:
        """A calibration from a file; OptionError if it is invalid."""
        file = Path(file)
        try:
            # A pipe or a device could block forever.
            if file.exists() and not (file.is_file() and file.stat().st_size <= MAX_FILE_BYTES):
                raise ValueError("not a calibration file")
            found = json.loads(file.read_text(encoding="utf-8"))
            return cls._checked(found)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            hint = "run qkv calibrate"
            raise OptionError(
                complaint("machine", f"{file.name}: {error}", "a file written by qkv calibrate", hint)
            ) from None

    @classmethod
    def _checked(cls, found: dict[str, Any]) -> Machine:
        if found.pop("format") != FORMAT:
            raise ValueError("format of another version")
        prices = {name: Price(*map(_check_figure, price)) for name, price in found.pop("prices").items()}
        roofs = {name: _check_rate(rate) for name, rate in found.pop("roofs").items()}
        if not {"read.memory", "multiply.float32.square"} <= roofs.keys():
            raise ValueError("roofs are missing")
        errors = {name: _check_figure(error) for name, error in found.pop("errors").items()}
        cores, threads, memory = (_check_count(found[name]) for name in ("cores", "threads", "memory_bytes"))
        torch, isa, taken = (str(found[name]) for name in ("torch", "isa", "taken"))
        dots = tuple(
            (str(name), _check_figure(intensity), _check_figure(rate)) for name, intensity, rate in found["dots"]
        )
        name = str(found["name"])
        if not all(each.isprintable() for each in (name, torch, isa, taken, *prices, *roofs, *errors)):
            raise ValueError("names with unprintable characters")
        return cls(name, cores, threads, memory, torch, isa, taken, roofs, prices, errors, dots)

    def store(self, file: Path | str | None = None) -> Path:
        """Write the calibration to a file, by default the one that `stored` reads; it is replaced atomically."""
        file = calibration_path() if file is None else Path(file)
        plain = {**asdict(self), "format": FORMAT, "prices": {name: list(price) for name, price in self.prices.items()}}
        write_json(file, plain)
        return file

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "prices": {name: price._asdict() for name, price in self.prices.items()}}


def write_json(file: Path, plain: dict[str, Any]) -> None:
    """Write a new file with an unguessable name, then rename it: no partial file is seen, no symbolic link followed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as new:
            json.dump(plain, new, indent=1)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def active_machine() -> Machine | None:
    """The calibration that dispatch uses: read once, None before the first calibration."""
    if not _ACTIVE:
        _ACTIVE.append(Machine.stored())
    return _ACTIVE[0]


def use(machine: Machine | None) -> None:
    """Use this machine's prices for dispatch in this process.

    Args:
        machine: a `Machine`, or None for the built-in rates.

    Raises:
        OptionTypeError: another type.
    """
    if machine is not None and not isinstance(machine, Machine):
        raise OptionTypeError(complaint("machine", repr(machine), "a qkv.cost.Machine, or None"))
    _ACTIVE[:] = [machine]
    for forget in _LISTENERS:
        forget()


def on_change(forget: Callable[[], None]) -> None:
    """Call `forget` whenever `use` changes the machine, to clear cached decisions."""
    _LISTENERS.append(forget)


def calibration_path() -> Path:
    """The calibration file of this machine and version of torch."""
    known = f"{processor_name()}|{os.cpu_count()}|{_torch_version()}"
    return cache_folder() / f"machine-{hashlib.sha256(known.encode()).hexdigest()[:12]}.json"


def cache_folder() -> Path:
    """The user's cache folder for qkv: $QKV_CACHE if set, else the system's."""
    own = os.environ.get("QKV_CACHE")
    if own:
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "qkv"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qkv"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"


def processor_name() -> str:
    """The processor's name according to the system."""
    table = Path("/proc/cpuinfo")
    for line in table.read_text(encoding="utf-8").splitlines() if table.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "unknown"


def memory_bytes() -> int:
    """Bytes of main memory; 8 GiB if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def last_level_cache() -> int:
    """Bytes of the largest processor cache; 32 MiB if unknown."""
    sizes = []
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        text = (index / "size").read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
        sizes.append(int(text[:-1]) * unit if unit else int(text))
    return max(sizes, default=32 << 20)


def free_memory() -> int:
    """Bytes available without swapping; 8 GiB if unknown."""
    table = Path("/proc/meminfo")
    for line in table.read_text().splitlines() if table.exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 8 << 30


def _torch_version() -> str:
    """Torch's version, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def _check_figure(given: Any) -> float:
    number = float("nan") if isinstance(given, bool | str) else float(given)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{given!r} is not a number of at least 0")
    return number


def _check_rate(given: Any) -> float:
    number = _check_figure(given)
    if not 1e-9 <= number <= 1e21:
        raise ValueError(f"{given!r} is out of range")
    return number


def _check_count(given: Any) -> int:
    number = _check_rate(given)
    if not number.is_integer():
        raise ValueError(f"{given!r} is not a whole number")
    return int(number)


@dataclass(frozen=True)
class Hardware:
    """A machine for `plan`.

    Attributes:
        rates: FLOP/s of dense matrix products by dtype.
        bandwidth: bytes per second from memory.
        memory: bytes.
        source: where the figures come from.
        measured: whether they were measured on this machine.
    """

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
                raise OptionError(complaint(name, repr(rate), "a positive number per second"))

    def rate(self, dtype: str) -> float:
        """FLOP/s in a dtype, or in the nearest one that the machine has a rate for."""
        return self.rates[self.rate_name(dtype)]

    def rate_name(self, dtype: str) -> str:
        """The dtype whose rate is used for a dtype.

        >>> Hardware("old", {"float32": 1e12}, 1e11, 2**34).rate_name("bfloat16")
        'float32'
        """
        for name in (dtype, *_INSTEAD.get(dtype, ())):
            if name in self.rates:
                return name
        raise OptionError(complaint("hardware", f"{self.name} without a rate for {dtype}", f"one of {[*self.rates]}"))

    def chips(self, count: int) -> Hardware:
        """So many of these machines as one, with weights and caches divided evenly; links cost nothing.

        >>> Hardware("chip", {"bfloat16": 1e12}, 1e11, 2**34).chips(4).bandwidth
        400000000000.0
        """
        check_size("chips", count)
        if count == 1:
            return self
        title = f"{count} × {self.title or self.name}"
        rates = {dtype: count * rate for dtype, rate in self.rates.items()}
        return replace(
            self, name=f"{count} × {self.name}", rates=rates, bandwidth=count * self.bandwidth,
            memory=count * self.memory, title=title,
        )  # fmt: skip

    def ridge(self, dtype: str) -> float:
        """Flops per byte above which computing takes longer than reading."""
        return self.rate(dtype) / self.bandwidth


def hardware() -> dict[str, Hardware]:
    """All machines of hardware.toml by name, and "here", this machine.

    >>> hardware()["h100-sxm"].bandwidth
    3350000000000.0
    """
    return {HERE: _here(), **{name: _preset(name) for name in read_data(HARDWARE_FILE)}}


def as_hardware(given: Any) -> Hardware:
    """A machine given as a `Hardware` or by name; case and punctuation do not matter."""
    if isinstance(given, Hardware):
        return given
    if not isinstance(given, str):
        raise OptionTypeError(complaint("hardware", repr(given), "a qkv.cost.Hardware or the name of one"))
    hint = "qkv plan --list shows every name; qkv.cost.Hardware(...) describes another machine"
    name = match_name("hardware", given, [HERE, *read_data(HARDWARE_FILE)], "the name of a machine", hint)
    return _here() if name == HERE else _preset(name)


def _here() -> Hardware:
    """This machine as `qkv calibrate` measured it, or with built-in conservative rates."""
    machine = Machine.stored() or Machine.built_in()
    rates = {dtype: machine.multiply_rate(dtype) for dtype in ("float32", "bfloat16", "float16")}
    source = (
        "measured by qkv calibrate" if machine.measured else "built-in conservative rates; run qkv calibrate to measure"
    )
    title = f"this machine, {machine.name}"
    return Hardware(HERE, rates, machine.memory_rate, machine.memory_bytes, source, title, machine.measured)


@cache
def _preset(name: str) -> Hardware:
    entry = read_data(HARDWARE_FILE)[name]
    rates, source = entry.get("rates"), entry["source"]
    if rates is None:
        each = entry["cores"] * entry["clock"] * 2
        rates = {dtype: each * lanes for dtype, lanes in entry["lanes"].items()}
        lanes = " or ".join(f"{count} lanes of {dtype}" for dtype, count in entry["lanes"].items())
        source += f"; rates are {entry['cores']} cores × {entry['clock'] / 1e9:g} GHz × {lanes} × 2"
    return Hardware(name, rates, float(entry["bandwidth"]), entry["memory"], source, entry["title"])
