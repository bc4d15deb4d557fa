"""Links between machines: by name, by a rate that people type, or as they were measured; and calls that were measured
on several ranks, kept in the user's cache folder so that plans can show them beside what they predict."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import OptionError, OptionTypeError, QkvError, complaint
from .formats import BITS
from .machine import MOST_BYTES, folder, processor, write_json
from .naming import MOST_SHOWN, resolve
from .price import MULTIPLY_RATE
from .shipped import shipped
from .wire import SPLITS, Spread, Wire, wire

FILE, FORMAT = "links.toml", 1
LATENCY = 25e-6  # seconds, for a link of which only the rate is known
LOOPBACK = "loopback"
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_RATE = re.compile(
    rf"(?P<number>{_NUMBER})\s*(?:(?P<prefix>[kmgt]?)(?P<unit>bytes?|bits?|b)\s*(?:ps|/\s*s(?:ec)?)?)?", re.I
)
_TIME = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>ns|us|µs|ms|s)", re.I)
_POWERS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DTYPES = {"float64": 8, **{name: bits // 8 for name, bits in BITS.items() if name.startswith(("float", "bfloat"))}}


@dataclass(frozen=True)
class Link:
    """bandwidth: bytes a second, from one rank, while all talk. latency: seconds a message. rate: flops a second of a
    rank in a large softmax call, while all compute. ranks: on how many it was measured."""

    bandwidth: float
    latency: float = LATENCY
    rate: float = MULTIPLY_RATE
    name: str = "by hand"
    measured: bool = False
    ranks: int | None = None
    source: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        for name in ("bandwidth", "latency", "rate"):
            given = getattr(self, name)
            good = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
            if not good or given < 0 or (given == 0 and name != "latency"):
                raise OptionError(complaint(name, repr(given), "a positive number"))

    def seconds(self, found: Wire) -> float:
        """What a spread call takes over this link."""
        return found.seconds(self.bandwidth, self.latency, self.rate)

    def __str__(self) -> str:
        from .readable import quantity, readable_seconds

        said = f"{quantity(self.bandwidth, 'B/s')}, {readable_seconds(self.latency)} a message, "
        said = "no link, " if self.ranks == 1 else said  # nothing travels, and nothing of it was measured
        return f"{self.name}: {said}{quantity(self.rate, 'FLOP/s')} a rank" + (", measured" if self.measured else "")


def links() -> dict[str, Link]:
    """Every link that is known by name.

    >>> links()["10gbe"].bandwidth
    1180000000.0
    """
    return {name: Link(**entry, name=name) for name, entry in shipped(FILE).items()}


def as_link(given: Any) -> Link:
    """A link; one by name; or a rate: "10GBps", "10 GB/s", "100Gbit", and a bare number in GB/s; a latency may follow,
    "10GBps,5us". b alone is a bit where bits are meant by custom, in Gbps and Mbps, and B a byte.

    >>> as_link("10GBps").bandwidth, as_link("100Gbit").bandwidth, as_link(2.5).bandwidth, as_link("10 GbE").name
    (10000000000.0, 12500000000.0, 2500000000.0, '10gbe')
    """
    if isinstance(given, Link):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise OptionTypeError(complaint("link", repr(given), "a Link, a rate such as '10GBps', or a name"))
    text = str(given).strip()
    rate, _, wait = text.partition(",")
    found, waits = _RATE.fullmatch(rate.strip()), _TIME.fullmatch(wait.strip()) if wait else None
    if found is None or (wait and waits is None):
        hint = "10GBps, '10 GB/s' and 100Gbit are rates, a bare number is GB/s; 10GBps,5us has a latency too"
        return links()[resolve("link", text, shipped(FILE), "a rate, or a link that is known by name", hint)]
    bandwidth = float(found["number"]) * _scale(found["prefix"], found["unit"])
    latency = LATENCY if waits is None else float(waits["number"]) * _SECONDS[waits["unit"].lower()]
    if not 0 < bandwidth < 1e18 or not 0 <= latency < 1e6:
        shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
        wanted = "a rate above 0 that a link can have" if 0 <= latency < 1e6 else "a latency of 0 or more, in seconds"
        raise OptionError(complaint("link", repr(shown), wanted))
    return Link(bandwidth, latency, name=text if isinstance(given, str) and found["unit"] else f"{text} GB/s")


def _scale(prefix: str | None, unit: str | None) -> float:
    if unit is None:
        return 1e9
    power = _POWERS[(prefix or "").lower()]
    bits = unit == "b" or unit.lower().startswith("bit")
    return power / 8 if bits else power


@dataclass(frozen=True)
class Point:
    """A call of `qkv.parallel.attention` that was measured. seconds: of the slowest rank, in the middle of several.
    bytes: that all ranks sent together. ranks = 1 is the same call in one process, on as many threads as one rank has.
    link: as it was measured on these ranks, or None."""

    split: str
    ranks: int
    tokens: int
    seconds: float
    bytes: int
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    width: int = 64
    value_width: int = 64
    dtype: str = "float32"
    causal: bool = False
    window: int | None = None
    learns: bool = False
    features: int | None = None
    link: Link | None = None
    taken: str = ""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise OptionError(complaint("split", repr(self.split), f"one of {', '.join(SPLITS)}"))
        if self.dtype not in _DTYPES:
            raise OptionError(complaint("dtype", repr(self.dtype), f"one of {', '.join(_DTYPES)}"))
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float) or not 0 < self.seconds < 1e9:
            raise OptionError(complaint("seconds", repr(self.seconds), "a positive number"))
        if isinstance(self.bytes, bool) or not isinstance(self.bytes, int) or self.bytes < 0:
            raise OptionError(complaint("bytes", repr(self.bytes), "a whole number"))
        self.spread()

    @property
    def sizes(self) -> tuple[Any, ...]:
        """Points with the same sizes are of one call, spread over other numbers of ranks or in another way."""
        mine = ("tokens", "batch", "heads", "kv_heads", "width", "value_width", "dtype", "causal", "window", "learns")
        return tuple(getattr(self, name) for name in (*mine, "features"))

    def spread(self, ranks: int | None = None) -> Spread:
        names = ("batch", "heads", "kv_heads", "width", "value_width", "tokens", "causal", "window", "learns")
        sizes = {name: getattr(self, name) for name in (*names, "features")}
        return Spread(**sizes, ranks=self.ranks if ranks is None else ranks, item=_DTYPES[self.dtype])

    def predicted(self, link: Link | None = None) -> float:
        """Seconds by the model, over a link or over its own."""
        used = link or self.link
        if used is None:
            raise OptionError(complaint("link", "None", "a Link, for a point that was kept without one"))
        return used.seconds(wire(self.split, self.spread()))


def points_path() -> Path:
    """The file of this machine: {"format": 1, "machine": its processor, "points": [what a `Point` has, by name]}."""
    return folder() / "parallel.json"


def read_points(file: Path | str | None = None) -> list[Point]:
    """The points of this machine, by ranks; none where there is no file, or none that makes sense. A file that is named
    has to."""
    try:
        path = points_path() if file is None else Path(file)
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ValueError("no file of points")
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError("another version's format")
        if file is None and found["machine"] != processor():
            return []
        return sorted(
            map(_point, found["points"]), key=lambda point: (*map(repr, point.sizes), point.ranks, point.split)
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, QkvError) as error:
        if file is None:
            return []
        hint = "qkv calibrate --ranks 4 measures some"
        raise OptionError(complaint("points", f"{Path(file).name}: {error}", "points of a calibration", hint)) from None


def write_points(points: Iterable[Point], file: Path | str | None = None) -> Path:
    """Keep points; those of the same call, split and ranks are replaced, others stay. A reader sees the old file or the
    new one, never a part."""
    path = points_path() if file is None else Path(file)
    try:
        before = read_points(path)
    except OptionError:
        before = []
    kept = {(*point.sizes, point.split, point.ranks): point for point in (*before, *points)}
    plain = {"format": FORMAT, "machine": processor(), "points": [asdict(point) for point in kept.values()]}
    write_json(path, plain)
    return path


def _point(entry: dict[str, Any]) -> Point:
    known = {each.name for each in fields(Point)}
    point = Point(**{name: value for name, value in entry.items() if name in known and name != "link"})
    return point if entry.get("link") is None else replace(point, link=Link(**entry["link"]))
