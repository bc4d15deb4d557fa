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
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from .lookup import match_name, read_data
from .price import MEMORY_RATE, MULTIPLY_RATE, Price
from .sizes import check_number, check_size

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
        found = [
            f"{kind}.cache is slower than {kind}.memory"
            for kind in ("read", "write", "copy")
            if self.roofs.get(f"{kind}.cache", math.inf) < 0.8 * self.roofs.get(f"{kind}.memory", 0.0)
        ]
        scaling = [name for name in ("threads.multiply", "threads.read") if self.roofs.get(name, 1.0) < 0.8]
        return (*found, *(f"{name}: all threads are slower than one" for name in scaling))

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
            return cls._checked(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            given = f"{file.name}: {error}".rstrip(".")
            raise OptionError(
                complaint("machine", given, "a file written by qkv calibrate", "run qkv calibrate")
            ) from None

    @classmethod
    def _checked(cls, found: dict[str, Any]) -> Machine:
        if found.pop("format") != FORMAT:
            raise ValueError("format of another version")
        sizes = [found[name] for name in ("cores", "threads", "memory_bytes")]
        for size in sizes:
            check_size("cores, threads or memory", size)
        name, *texts = (str(found[name]) for name in ("name", "torch", "isa", "taken"))
        roofs, errors = dict(found["roofs"]), dict(found["errors"])
        dots = [(str(dot), x, y) for dot, x, y in found["dots"]]
        prices = {engine: Price(*price) for engine, price in found["prices"].items()}
        for figure in (*roofs.values(), *errors.values(), *chain(*prices.values()), *chain(*(dot[1:] for dot in dots))):
            check_number("figure", figure, "a number of at least 0", zero=True)
        if not {"read.memory", "multiply.float32.square"} <= roofs.keys():
            raise ValueError("roofs are missing")
        if not all(1e-9 <= rate <= 1e21 for rate in roofs.values()):
            raise ValueError("roofs are out of range")
        if not all(each.isprintable() for each in (name, *texts, *prices, *roofs, *errors)):
            raise ValueError("names with unprintable characters")
        return cls(name, *sizes, *texts, roofs=roofs, prices=prices, errors=errors, dots=tuple(dots))

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

    >>> use(None)  # from now on dispatch uses the built-in rates
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
    if own := os.environ.get("QKV_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "qkv"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qkv"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"


def processor_name() -> str:
    """The processor's name according to the system."""
    return _entry("/proc/cpuinfo", "model name") or platform.processor() or platform.machine() or "unknown"


def _entry(table: str, name: str) -> str:
    """The first entry of a table of the system with that name; "" if there is none."""
    lines = Path(table).read_text(encoding="utf-8").splitlines() if Path(table).exists() else ()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def memory_bytes() -> int:
    """Bytes of main memory; 8 GiB if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def last_level_cache() -> int:
    """Bytes of the largest processor cache; 32 MiB if unknown."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    texts = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(text.rstrip("KMG")) * units.get(text[-1:], 1) for text in texts), default=32 << 20)


def free_memory() -> int:
    """Bytes available without swapping; 8 GiB if unknown."""
    available = _entry("/proc/meminfo", "MemAvailable")
    return int(available.split()[0]) << 10 if available else 8 << 30


def _torch_version() -> str:
    """Torch's version, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


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
            check_number(name, rate, "a positive number per second")

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
        rates = {dtype: count * rate for dtype, rate in self.rates.items()}
        sizes = {"rates": rates, "bandwidth": count * self.bandwidth, "memory": count * self.memory}
        return replace(self, name=f"{count} × {self.name}", title=f"{count} × {self.title or self.name}", **sizes)

    def ridge(self, dtype: str) -> float:
        """Flops per byte above which computing takes longer than reading."""
        return self.rate(dtype) / self.bandwidth


def hardware() -> dict[str, Hardware]:
    """All machines of hardware.toml by name, and "here", this machine.

    Returns:
        A `Hardware` for each name.

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
    hint = "qkv plan --list shows every name; --chip, or qkv.cost.Hardware(...), describes another machine"
    name = match_name("hardware", given, [HERE, *read_data(HARDWARE_FILE)], "the name of a machine", hint)
    return _here() if name == HERE else _preset(name)


def _here() -> Hardware:
    """This machine as `qkv calibrate` measured it, or with built-in conservative rates."""
    machine = Machine.stored() or Machine.built_in()
    rates = {dtype: machine.multiply_rate(dtype) for dtype in ("float32", "bfloat16", "float16")}
    built_in = "built-in conservative rates; run qkv calibrate to measure"
    source, title = "measured by qkv calibrate" if machine.measured else built_in, f"this machine, {machine.name}"
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
