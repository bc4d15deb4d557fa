"""Communication of attention split over ranks: bytes, messages, flops and memory of the busiest rank; links between
machines; and measured calls, kept in the user's cache folder.

Sizes are integers, or symbols for formulas. Shards are equal, n/R tokens each. With symbols R is even, a window reaches
no further than the previous rank, and heads divide evenly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptionError, OptionTypeError, QkvError, complaint
from .ledger import Number, quotient
from .lookup import MAX_SHOWN, match_name, read_data
from .machine import MAX_FILE_BYTES, cache_folder, processor_name, write_json
from .price import MULTIPLY_RATE
from .sizes import BITS, check_choice, check_number, check_size, is_symbol

SUM_BYTES = 4  # sums are float32, or wider if inputs are
INDEX_BYTES = 8  # of a key's position
DOUBLING_RANKS = 8  # from this many ranks on, outputs are merged by recursive doubling
LEAST_PIECE, PIECES = 1024, 64  # `ring`: fewest tokens in a message, and most messages per shard
LINKS_FILE, POINTS_FORMAT = "links.toml", 1
DEFAULT_LATENCY = 25e-6  # seconds, for a link given by its rate only
LOOPBACK = "loopback"
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_RATE = re.compile(
    rf"(?P<number>{_NUMBER})\s*(?:(?P<prefix>[kmgt]?)(?P<unit>bytes?|bits?|b)\s*(?:ps|/\s*s(?:ec)?)?)?", re.I
)
_TIME = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>ns|us|µs|ms|s)", re.I)
# What identifies a measured call, with its dtype.
_CALL = (
    "tokens", "batch", "heads", "kv_heads", "width", "value_width", "causal", "window", "learns", "features"
)  # fmt: skip
_POWERS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DTYPES = {"float64": 8, **{name: bits // 8 for name, bits in BITS.items() if name.startswith(("float", "bfloat"))}}


@dataclass(frozen=True)
class Spread:
    """A call of attention on `tokens` queries, keys and values, split into `ranks` equal shards.

    Attributes:
        item: bytes per number.
        causal: each token attends to itself and earlier tokens.
        window: number of keys that a query attends to, itself included; None: all.
        learns: whether there is a backward pass.
        features: per head, for the split "scan".
    """

    batch: Number
    heads: Number
    kv_heads: Number
    width: Number
    value_width: Number
    tokens: Number
    ranks: Number
    item: Number = 4
    causal: bool = True
    window: Number | None = None
    learns: bool = False
    features: Number | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "width", "value_width", "tokens", "ranks", "item"):
            check_size(name, getattr(self, name))
        for name in ("window", "features"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.window is not None and not self.causal:
            raise OptionError(complaint("window", self.window, "None with causal=False", "a window needs causal=True"))

    @property
    def shard(self) -> Number:
        return _over(self.tokens, self.ranks)

    @property
    def sums(self) -> Number:
        return SUM_BYTES if is_symbol(self.item) else max(SUM_BYTES, self.item)

    @property
    def passes(self) -> int:
        return 2 if self.learns else 1

    @property
    def swaps(self) -> bool:
        """Whether `ring` exchanges queries to balance the load: a causal call without a window, on several ranks."""
        return self.causal and self.window is None and self.ranks != 1


class Phase(NamedTuple):
    """Forward or backward pass of the busiest rank: bytes sent before, during and after computing; messages in a row;
    flops."""

    before: Number
    during: Number
    after: Number
    messages: Number
    flops: Number

    @property
    def sent(self) -> Number:
        return self.before + self.during + self.after

    def seconds(self, bandwidth: float, latency: float, rate: float) -> float:
        """before + max(compute, during) + after; latency counts with `during` if there are such bytes.

        >>> Phase(before=100, during=400, after=0, messages=3, flops=50).seconds(100.0, 0.0, 10.0)
        6.0
        """
        waits = float(self.messages) * latency
        overlapping = waits if self.during else 0.0
        outside = float(self.before + self.after) / bandwidth + waits - overlapping
        return outside + max(float(self.flops) / rate, float(self.during) / bandwidth + overlapping)


class Wire(NamedTuple):
    """Communication of one split.

    Attributes:
        total: bytes that all ranks send together.
        forward, backward: passes of the busiest rank; no backward pass without gradients.
        peak_bytes: peak memory of a rank, its shard and output included.

    `sent`, `messages` and `flops` are those of the busiest rank, which receives as many bytes as it sends.
    """

    split: str
    total: Number
    forward: Phase
    backward: Phase | None
    peak_bytes: Number

    @property
    def _phases(self) -> tuple[Phase, ...]:
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    @property
    def sent(self) -> Number:
        return sum(phase.sent for phase in self._phases)

    @property
    def messages(self) -> Number:
        return sum(phase.messages for phase in self._phases)

    @property
    def flops(self) -> Number:
        return sum(phase.flops for phase in self._phases)

    def seconds(self, bandwidth: float, latency: float, rate: float) -> float:
        """Time of both passes. bandwidth: bytes per second; latency: seconds per message; rate: flops per second."""
        return sum(phase.seconds(bandwidth, latency, rate) for phase in self._phases)


def wire(split: str, spread: Spread) -> Wire:
    """Communication and work of a call split by "ring", "gather", "heads", "scan" or "argmax".

    Args:
        split: how the call is split. "ring": keys and values pass along; "gather": every rank fetches the keys and
            values that it needs; "heads": tokens are exchanged for heads; "scan": sums of linear attention; "argmax":
            argmax.
        spread: the call and its ranks.

    Returns:
        A `Wire`.

    >>> call = Spread(batch=1, heads=8, kv_heads=2, width=64, value_width=64, tokens=4096, ranks=4, causal=False)
    >>> wire("ring", call).sent, wire("heads", call).sent, wire("gather", call).messages
    (3145728, 4718592, 3)
    """
    check_choice("split", split, SPLITS)
    found = _OF_SPLIT[split](spread)
    backward = None if found.backward is None else Phase(*map(_whole, found.backward))
    return Wire(split, _whole(found.total), Phase(*map(_whole, found.forward)), backward, _whole(found.peak_bytes))


def merged_step(
    batch: Number, heads: Number, value_width: Number, ranks: int, sums: Number = SUM_BYTES
) -> tuple[Number, Number]:
    """(bytes, messages) that a rank sends to decode one token of a layer from a cache split over ranks: its output and
    log-sum-exp, to every other rank, or from DOUBLING_RANKS ranks on to ⌈log₂ ranks⌉ of them.

    >>> merged_step(batch=1, heads=32, value_width=128, ranks=4)
    (49536, 3)
    >>> merged_step(batch=1, heads=32, value_width=128, ranks=1024)
    (165120, 10)
    """
    times = ranks - 1 if ranks < DOUBLING_RANKS else (ranks - 1).bit_length()
    return times * batch * heads * (value_width + 1) * sums, times


def pair_flops(spread: Spread, pairs: Number, *, backward: bool = False) -> Number:
    """Flops of products: a score and a weighted value for each pair; backward, the score again and four products for
    the gradients of weights, values, queries and keys."""
    each = 3 * spread.width + 2 * spread.value_width if backward else spread.width + spread.value_width
    return 2 * spread.batch * pairs * each


def _ring(s: Spread) -> Wire:
    """Every rank sends its keys and values to the ranks that attend to them. Under a causal mask, rank r computes the
    first half of its queries and the second half of rank R − 1 − r's, so that all ranks have equal work."""
    share, keys = s.shard, s.batch * s.kv_heads * (s.width + s.value_width)
    if s.swaps:
        all_keys, most = share * quotient(s.ranks * (3 * s.ranks - 2), 4), (s.ranks - 1) * share
        swapping = s.ranks if is_symbol(s.ranks) else s.ranks - s.ranks % 2
        pairs = s.heads * _over(s.tokens * (s.tokens + 1), 2 * s.ranks)
    else:
        (all_keys, most), swapping = _fetched(s), 0
        pairs = s.heads * _busiest_pairs(s)
    rows = s.batch * s.heads * _over(share, 2)  # of the exchanged half
    rows, moves = (rows, 2) if swapping != 0 else (0, 0)
    there, back = rows * s.width * s.item, rows * (s.value_width + 1) * s.sums
    others = _peers(s)
    forward = Phase(there, most * keys * s.item, back, others + moves, pair_flops(s, pairs))
    total = all_keys * keys * s.item + swapping * (there + back)
    backward = None
    if s.learns:
        # Queries, outputs, their gradients and log-sum-exps are sent; gradients of queries come back.
        there, back = rows * ((s.width + 2 * s.value_width) * s.item + s.sums), rows * s.width * s.sums
        during = most * keys * (s.item + s.sums)
        backward = Phase(there, during, back, 2 * others + moves, pair_flops(s, pairs, backward=True))
        total = total + all_keys * keys * (s.item + s.sums) + swapping * (there + back)
    # Two messages of keys and values are in flight; outputs are sums until the end.
    peak = shard_bytes(s) + 2 * _piece(share) * keys * s.item + s.batch * s.heads * share * (s.value_width + 1) * s.sums
    peak = peak + rows * s.width * s.item
    if s.learns:
        peak = peak + 2 * _piece(share) * keys * s.sums + share * (keys + s.batch * s.heads * s.width) * s.sums
    return Wire("ring", total, forward, backward, peak)


def _gather(s: Spread) -> Wire:
    """Every rank fetches the keys and values that its queries attend to, then computes."""
    keys = s.batch * s.kv_heads * (s.width + s.value_width) * s.item
    all_keys, most = _fetched(s)
    pairs = s.heads * _busiest_pairs(s)
    forward = Phase(most * keys, 0, 0, _peers(s), pair_flops(s, pairs))
    back = Phase(0, 0, most * keys, _peers(s), pair_flops(s, pairs, backward=True)) if s.learns else None
    # Once as received, and once concatenated with the rank's own.
    peak = shard_bytes(s) + (2 * most + s.shard) * keys * s.passes
    return Wire("gather", s.passes * all_keys * keys, forward, back, peak)


def _heads(s: Spread) -> Wire:
    """Tokens are exchanged for heads: every rank computes all tokens of some heads, and outputs go back."""
    others, share = s.ranks - 1, s.shard
    # With fewer key/value heads than ranks, each goes to several ranks.
    own_heads, own_kv = _over(s.heads, s.ranks), _over(_larger(s.kv_heads, s.ranks), s.ranks)
    if not is_symbol(own_heads):
        own_heads, own_kv = math.ceil(own_heads), math.ceil(own_kv)
    ends = s.width + s.value_width
    there = others * share * s.batch * (own_heads * s.width + own_kv * ends) * s.item
    back = others * share * s.batch * own_heads * s.value_width * s.item
    pairs = own_heads * _pairs(s, s.tokens)
    forward = Phase(there, 0, back, 2 * others, pair_flops(s, pairs))
    # Gradients travel in the opposite direction.
    backward = Phase(back, 0, there, 2 * others, pair_flops(s, pairs, backward=True)) if s.learns else None
    peak = shard_bytes(s) + s.batch * s.tokens * (own_heads + own_kv) * ends * s.item * s.passes
    return Wire("heads", s.passes * s.ranks * (there + back), forward, backward, peak)


def _scan(s: Spread) -> Wire:
    """Sums of features are sent, whatever the length: under a causal mask to the ranks 1, 2, 4, … further on; otherwise
    as an all-reduce."""
    if s.features is None:
        raise OptionError(complaint("features", "None", "the number of features per head, for split 'scan'"))
    state = s.batch * s.kv_heads * s.features * (s.value_width + 1) * s.sums
    others = s.ranks - 1
    if s.causal:
        messages = _log2(s.ranks)
        sent = messages * state
        # Rank r sends to ⌈log₂(R - r)⌉ ranks; with symbols R is a power of two.
        total = (s.ranks * messages - (s.ranks if is_symbol(s.ranks) else 2**messages) + 1) * state
    else:
        messages, sent = 2 * others, _over(2 * others * state, s.ranks)
        total = 2 * others * state
    each = 2 * s.batch * s.features * (s.value_width + 1)
    flops = each * s.shard * (s.heads + s.kv_heads)  # every query reads the state, every key is added to it
    forward = Phase(sent, 0, 0, messages, flops)
    backward = Phase(sent, 0, 0, messages, 2 * flops) if s.learns else None
    return Wire("scan", s.passes * total, forward, backward, shard_bytes(s) + 3 * state)


def _argmax(s: Spread) -> Wire:
    """Queries go to the ranks whose keys they may attend to, and the best keys come back with their positions; then
    each query requests its value from all ranks, one of which has it."""
    all_rows, most = _queries_sent(s)
    rows = s.batch * s.heads
    found = INDEX_BYTES + s.width * s.item
    during = most * rows * (s.width * s.item + found)
    values = rows * s.shard * s.value_width * s.item if s.ranks != 1 else 0
    flops = 2 * s.batch * s.heads * _busiest_pairs(s) * s.width
    forward = Phase(0, during, most * rows * INDEX_BYTES + values, 4 * _peers(s), flops)
    # Values have a gradient, queries and keys have none.
    backward = Phase(values, 0, 0, _peers(s), 0) if s.learns else None
    total = all_rows * rows * (s.width * s.item + found + INDEX_BYTES) + s.ranks * values * s.passes
    peak = shard_bytes(s) + rows * s.shard * (2 * s.width * s.item + 2 * found)
    return Wire("argmax", total, forward, backward, peak)


_OF_SPLIT: dict[str, Callable[[Spread], Wire]] = {
    "ring": _ring, "gather": _gather, "heads": _heads, "scan": _scan, "argmax": _argmax
}  # fmt: skip
SPLITS = tuple(_OF_SPLIT)


def shard_bytes(s: Spread) -> Number:
    """Bytes of a rank's queries, keys, values and outputs, and of their gradients if there are any."""
    return s.passes * s.batch * s.shard * (s.heads + s.kv_heads) * (s.width + s.value_width) * s.item


def _fetched(s: Spread) -> tuple[Number, Number]:
    """Tokens whose keys are sent if every rank computes its own queries: of all ranks, and of the busiest."""
    share, others = s.shard, s.ranks - 1
    if not s.causal:
        return s.ranks * others * share, others * share
    if s.window is None:
        return share * _over(s.ranks * others, 2), others * share
    back = s.window - 1  # tokens before a shard that it attends to
    if is_symbol(back) or is_symbol(share) or is_symbol(others):
        return others * back, back
    near = min(math.floor(back / share), others)  # ranks that attend to everything before them
    return share * Fraction(near * (near + 1), 2) + (others - near) * back, min(back, others * share)


def _peers(s: Spread) -> Number:
    """Ranks that attend to the busiest rank's keys."""
    if s.window is None or s.ranks == 1:
        return s.ranks - 1
    if is_symbol(s.window) or is_symbol(s.shard):
        return 1
    return min(math.ceil((s.window - 1) / s.shard), s.ranks - 1)


def _queries_sent(s: Spread) -> tuple[Number, Number]:
    """Queries sent to other ranks that have keys they may attend to: of all ranks, and of the busiest."""
    others, reach = s.ranks - 1, _peers(s)
    if not s.causal:
        return s.shard * s.ranks * others, s.shard * others
    return s.shard * (reach * others - _over(reach * (reach - 1), 2)), reach * s.shard


def _busiest_pairs(s: Spread) -> Number:
    """Pairs of one head of the busiest rank, if every rank computes its own queries."""
    if not s.causal:
        return s.tokens * s.shard
    if s.window is not None and (is_symbol(s.window) or is_symbol(s.tokens) or is_symbol(s.ranks)):
        return s.shard * s.window
    return _pairs(s, s.tokens) - _pairs(s, s.tokens - s.shard)


def _pairs(s: Spread, tokens: Number) -> Number:
    """Pairs of one head, of the first `tokens` queries."""
    if not s.causal:
        return tokens * s.tokens
    whole = _over(tokens * (tokens + 1), 2)
    if s.window is None:
        return whole
    if is_symbol(s.window) or is_symbol(tokens):
        return tokens * s.window - _over(s.window * (s.window - 1), 2)
    return whole if tokens <= s.window else tokens * s.window - _over(s.window * (s.window - 1), 2)


def _piece(share: Number) -> Number:
    """Tokens of a message."""
    longest = _over(share, PIECES)
    return longest if is_symbol(share) else min(share, max(LEAST_PIECE, longest))


def _log2(ranks: Number) -> Number:
    if is_symbol(ranks):
        import sympy

        return sympy.ceiling(sympy.log(ranks, 2))
    return (ranks - 1).bit_length()


def _larger(one: Number, other: Number) -> Number:
    if is_symbol(one) or is_symbol(other):
        import sympy

        return sympy.Max(one, other)
    return max(one, other)


def _over(number: Number, by: Number) -> Number:
    """An exact quotient, as a fraction."""
    if is_symbol(number) or is_symbol(by):
        return number / by
    return Fraction(number) / by


def _whole(number: Number) -> Number:
    """Rounded up to an integer; symbols stay."""
    return math.ceil(number) if isinstance(number, Fraction | int) else number


@dataclass(frozen=True)
class Link:
    """A link between machines.

    Attributes:
        bandwidth: bytes per second from one rank while all ranks send.
        latency: seconds per message.
        rate: flops per second of a rank in a large softmax call while all ranks compute.
        measured, ranks: whether it was measured, and on how many ranks.
    """

    bandwidth: float
    latency: float = DEFAULT_LATENCY
    rate: float = MULTIPLY_RATE
    name: str = "by hand"
    measured: bool = False
    ranks: int | None = None
    source: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        for name in ("bandwidth", "latency", "rate"):
            check_number(name, getattr(self, name), zero=name == "latency")

    def seconds(self, call: Wire) -> float:
        """Time of a split call over this link."""
        return call.seconds(self.bandwidth, self.latency, self.rate)

    def __str__(self) -> str:
        from .readable import quantity, readable_seconds

        rates = f"{quantity(self.bandwidth, 'B/s')}, {readable_seconds(self.latency)} a message, "
        rates = "no link, " if self.ranks == 1 else rates  # one rank sends nothing
        return f"{self.name}: {rates}{quantity(self.rate, 'FLOP/s')} a rank" + (", measured" if self.measured else "")


def links() -> dict[str, Link]:
    """All links of links.toml by name.

    Returns:
        A `Link` for each name.

    >>> links()["10gbe"].bandwidth
    1180000000.0
    """
    return {name: Link(**entry, name=name) for name, entry in read_data(LINKS_FILE).items()}


def as_link(given: Any) -> Link:
    """A link given as a `Link`, a name, or a rate: "10GBps", "10 GB/s", "100Gbit", or a number in GB/s; a latency may
    follow: "10GBps,5us". A lower-case b is a bit (Gbps), B a byte (GBps).

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
        return links()[match_name("link", text, read_data(LINKS_FILE), "a rate, or the name of a link", hint)]
    prefix, unit = (found["prefix"] or "").lower(), found["unit"] or ""
    bits = 8 if unit == "b" or unit.lower().startswith("bit") else 1
    bandwidth = float(found["number"]) * (_POWERS[prefix] / bits if unit else 1e9)
    latency = DEFAULT_LATENCY if waits is None else float(waits["number"]) * _SECONDS[waits["unit"].lower()]
    if not 0 < bandwidth < 1e18 or not 0 <= latency < 1e6:
        shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
        wanted = "a rate above 0 and below 10^18 bytes per second, and a latency of 0 or more, in seconds"
        raise OptionError(complaint("link", repr(shown), wanted))
    return Link(bandwidth, latency, name=text if isinstance(given, str) and found["unit"] else f"{text} GB/s")


@dataclass(frozen=True)
class Point:
    """A measured call of `qkv.parallel.attention`.

    Attributes:
        ranks: 1 is the same call in one process, with the threads of one rank.
        seconds: of the slowest rank; median of several runs.
        bytes: sent by all ranks together.
        link: as measured on these ranks, or None.
        taken: when it was measured.
    """

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
        check_choice("split", self.split, SPLITS)
        check_choice("dtype", self.dtype, _DTYPES)
        check_number("seconds", self.seconds)
        check_size("bytes", self.bytes, 0)
        self.spread()

    @property
    def sizes(self) -> tuple[Any, ...]:
        """Identifies the call: points with equal sizes differ in ranks or split."""
        return tuple(getattr(self, name) for name in (*_CALL, "dtype"))

    def spread(self, ranks: int | None = None) -> Spread:
        sizes = {name: getattr(self, name) for name in _CALL}
        return Spread(**sizes, ranks=self.ranks if ranks is None else ranks, item=_DTYPES[self.dtype])

    def predicted(self, link: Link | None = None) -> float:
        """Predicted seconds over a link; by default over the measured one."""
        used = link or self.link
        if used is None:
            raise OptionError(complaint("link", "None", "a Link, because this point has none"))
        return used.seconds(wire(self.split, self.spread()))


def points_path() -> Path:
    """The file of this machine: {"format": 1, "machine": its processor, "points": [fields of a `Point`]}."""
    return cache_folder() / "parallel.json"


def read_points(file: Path | str | None = None) -> list[Point]:
    """The points of this machine, sorted; none if the default file is missing or invalid. OptionError if `file` is
    given and invalid."""
    try:
        path = points_path() if file is None else Path(file)
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError("not a file of points")
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != POINTS_FORMAT:
            raise ValueError("format of another version")
        if file is None and found["machine"] != processor_name():
            return []
        points = map(_point, found["points"])
        return sorted(points, key=lambda point: (*map(repr, point.sizes), point.ranks, point.split))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, QkvError) as error:
        if file is None:
            return []
        given, wanted = f"{Path(file).name}: {error}", "points written by qkv calibrate --ranks"
        raise OptionError(complaint("points", given, wanted, "run qkv calibrate --ranks 4")) from None


def write_points(points: Iterable[Point], file: Path | str | None = None) -> Path:
    """Add points to the file; those of the same call, split and ranks are replaced. The file is replaced atomically."""
    path = points_path() if file is None else Path(file)
    try:
        before = read_points(path)
    except OptionError:
        before = []
    kept = {(*point.sizes, point.split, point.ranks): point for point in (*before, *points)}
    plain = {"format": POINTS_FORMAT, "machine": processor_name(), "points": [asdict(point) for point in kept.values()]}
    write_json(path, plain)
    return path


def _point(entry: dict[str, Any]) -> Point:
    known = {each.name for each in fields(Point)}
    entry = {**entry, "split": "argmax"} if entry.get("split") == "best" else entry  # the name in older files
    point = Point(**{name: value for name, value in entry.items() if name in known and name != "link"})
    return point if entry.get("link") is None else replace(point, link=Link(**entry["link"]))
