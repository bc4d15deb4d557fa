"""`dense`, operator by operator: bytes read, bytes written and memory held, from sizes alone. A leaf: no torch.

The lists follow the lines of backends/dense.py and backends/equation.py, temporaries and their lifetimes included; `watch`
counts the same from what really ran, and tests hold the two equal, so that a change in the backend shows here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from .ledger import Line
from .passes import Features
from .price import product_flops
from .sizes import Sizes


class Cells(NamedTuple):
    """A mask's booleans as they are held, each size full or 1. made: "given" (a tensor that was there), "diagonal"
    (`Causal`, or a `Window` with one limit), "window" (with two) or "lengths" (of a `Padding`)."""

    batch: int
    heads: int
    rows: int
    keys: int
    made: str = "given"

    @property
    def size(self) -> int:
        return self.batch * self.heads * self.rows * self.keys


class Options(NamedTuple):
    """What is on. bias: its numbers, as they are held, broadcast axes 1. sink: how many logits, 0 for none;
    sink_is_number: given as a Python number, which is made a tensor first."""

    cells: Cells | None = None
    bias: tuple[int, int, int, int] | None = None
    softcap: bool = False
    sink: int = 0
    sink_is_number: bool = False
    lse: bool = False


NOTHING_ON = Options()


@dataclass
class Passes:
    """Operators one after the other. read, written: bytes. peak: bytes made on the way, and alive at the worst moment,
    results included."""

    lines: list[Line] = field(default_factory=list)
    peak: int = 0
    _alive: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def products(self) -> int:
        return sum(line.flops for line in self.lines if line.product)

    @property
    def elementwise(self) -> int:
        return sum(line.flops for line in self.lines if not line.product)

    @property
    def read(self) -> int:
        return sum(line.read for line in self.lines)

    @property
    def written(self) -> int:
        return sum(line.written for line in self.lines)

    def make(self, name: str, size: int, read: int = 0, flops: int = 0, *, product: bool = False) -> None:
        """An operator that reads so many bytes and makes `name`. Made a second time, the first is alive until then."""
        self.lines.append(Line(name, flops, read, size, product))
        before = self._alive.pop(name, 0)
        self.peak = max(self.peak, sum(self._alive.values()) + before + size)
        self._alive[name] = size

    def drop(self, *names: str) -> None:
        for name in names:
            self._alive.pop(name, None)


def arithmetic_bytes(item: int) -> int:
    """Scores and sums are float32 for half precision."""
    return 8 if item == 8 else 4


def dense(
    sizes: Sizes, item: int, similarity: str, options: Options = NOTHING_ON, features: Features | None = None
) -> Passes:
    """`dense` without gradients, operator by operator, on inputs that are contiguous and finite.

    similarity: "softmax", "polynomial", "features" or "argmax". item: bytes of a number of the inputs.

    >>> small = Sizes(batch=1, heads=1, heads_kv=1, len_q=2, len_k=3, width=5, width_v=7)
    >>> passes = dense(small, 4, "softmax")
    >>> passes.products, passes.elementwise, passes.read, passes.written, passes.peak
    (144, 50, 436, 242, 166)
    """
    passes = Passes()
    _mask(passes, sizes, options.cells)
    if options.sink_is_number:
        passes.make("sink", arithmetic_bytes(item))
    if item < 4:
        given = {"query": sizes.query_numbers, "key": sizes.key_numbers, "value": sizes.value_numbers}
        for name, count in given.items():
            passes.make(name, 4 * count, item * count)
    if similarity == "softmax":
        _softmax(passes, sizes, arithmetic_bytes(item), item, options)
    elif similarity == "argmax":
        _argmax(passes, sizes, arithmetic_bytes(item), options.cells)
    else:
        _ratio(passes, sizes, arithmetic_bytes(item), options.cells, features)
    passes.drop(*(name for name in passes._alive if name not in ("keep", "out", "lse", "weights")))
    if item < 4:
        passes.make("rounded", item * sizes.out_numbers, 4 * sizes.out_numbers)
    return passes


def _mask(passes: Passes, sizes: Sizes, cells: Cells | None) -> None:
    """Positions are int64: two ranges, their differences, and one comparison for each limit."""
    if cells is None or cells.made == "given":
        return
    passes.make("keys", 8 * sizes.len_k)
    if cells.made == "lengths":
        passes.make("lengths", 8 * cells.batch)
        passes.make("keep", cells.size, 8 * (sizes.len_k + cells.batch), cells.size)
        passes.drop("keys", "lengths")
        return
    passes.make("rows", 8 * sizes.len_q)
    passes.make("ahead", 8 * cells.size, 8 * (sizes.len_k + sizes.len_q), cells.size)
    passes.drop("keys", "rows")
    passes.make("keep", cells.size, 8 * cells.size, cells.size)
    if cells.made == "window":
        passes.make("below", cells.size, 8 * cells.size, cells.size)
        passes.make("keep", cells.size, 2 * cells.size, cells.size)
    passes.drop("ahead", "below")


def _chosen(passes: Passes, name: str, size: int, count: int, read: int, cond: int) -> None:
    """torch.where with a number on one side, which becomes a tensor."""
    passes.make("number", size)
    passes.make(name, size * count, cond + size + read, count)
    passes.drop("number")


def _softmax(passes: Passes, sizes: Sizes, size: int, item: int, options: Options) -> None:
    pairs, rows = sizes.cells, sizes.rows
    held = bias = 0 if options.cells is None else options.cells.size
    if options.bias is not None:
        bias = prod(options.bias)
        passes.make("allowed", bias, item * bias, bias)
        if options.cells is not None:
            joined = prod(map(max, options.cells[:4], options.bias))
            passes.make("keep & allowed", joined, held + bias, joined)
            held = joined
        else:
            held = bias
    passes.make("scaled", size * sizes.query_numbers, size * sizes.query_numbers, sizes.query_numbers)
    _scores(passes, sizes, size, sizes.width)
    passes.drop("scaled")
    if options.softcap:
        passes.make("quotient", size * pairs, size * pairs, pairs)
        passes.make("tanh", size * pairs, size * pairs, pairs)
        passes.drop("quotient")
        passes.make("scores", size * pairs, size * pairs, pairs)
        passes.drop("tanh")
    if options.bias is not None:
        passes.make("scores", size * pairs, size * pairs + item * bias, pairs)
    if held:
        _filled(passes, "scores", size, pairs, held)
    passes.make("best", size * rows, size * pairs, pairs)
    passes.make("empty", rows, size * rows, rows)
    if options.sink:
        passes.make("top", size * rows, size * rows + size * options.sink, rows)
    passes.make("never", rows, size * rows, rows)
    _chosen(passes, "top", size, rows, size * rows, rows)
    passes.drop("never")
    passes.make("differences", size * pairs, size * (pairs + rows), pairs)
    passes.make("powers", size * pairs, size * pairs, pairs)
    passes.drop("differences")
    passes.make("total", size * rows, size * pairs, pairs)
    if options.sink:
        passes.make("sink - top", size * rows, size * (options.sink + rows), rows)
        passes.make("share", size * rows, size * rows, rows)
        passes.drop("sink - top")
        passes.make("total", size * rows, 2 * size * rows, rows)
        passes.drop("share")
    passes.make("zero", rows, size * rows, rows)
    _chosen(passes, "safe", size, rows, size * rows, rows)
    passes.drop("zero")
    passes.make("weights", size * pairs, size * (pairs + rows), pairs)
    if options.lse:
        passes.make("log", size * rows, size * rows, rows)
        passes.make("sum", size * rows, 2 * size * rows, rows)
        passes.drop("log")
        _chosen(passes, "lse", size, rows, size * rows, rows)
        passes.drop("sum")
    passes.make("one", size)
    _weighed(passes, sizes, size)
    passes.drop("one")
    if held:
        passes.make("out", size * sizes.out_numbers, size * sizes.out_numbers + rows, sizes.out_numbers)


def _ratio(passes: Passes, sizes: Sizes, size: int, cells: Cells | None, features: Features | None) -> None:
    pairs, rows = sizes.cells, sizes.rows
    if cells is not None:
        _without_strangers(passes, sizes, size, cells)
    if features is None:
        _scores(passes, sizes, size, sizes.width)
        if cells is not None:
            _filled(passes, "scores", size, pairs, cells.size)
        passes.make("raised", size * pairs, size * pairs, pairs)
        passes.make("power", size * pairs, size * pairs, pairs)
        passes.drop("raised", "scores")
    else:
        for name, count in (("φ(query)", rows), ("φ(key)", sizes.key_numbers // sizes.width)):
            numbers = count * features.width
            for _ in range(features.steps):
                passes.make(name, size * numbers, size * numbers, numbers)
            for _ in range(features.beside):
                passes.make("beside", size * numbers, size * numbers, numbers)
                passes.make(name, size * numbers, 2 * size * numbers, numbers)
                passes.drop("beside")
        _scores(passes, sizes, size, features.width, "power")
        passes.drop("φ(query)", "φ(key)")
    if cells is not None:
        _filled(passes, "power", size, pairs, cells.size)
    passes.make("total", size * rows, size * pairs, pairs)
    passes.make("zero", rows, size * rows, rows)
    passes.make("zero again", rows, size * rows, rows)
    _chosen(passes, "safe", size, rows, size * rows, rows)
    passes.drop("zero again")
    passes.make("quotient", size * pairs, size * (pairs + rows), pairs)
    passes.drop("safe")
    _chosen(passes, "weights", size, pairs, size * pairs, rows)
    passes.drop("zero", "quotient")
    passes.make("sign", size * pairs, size * pairs, pairs)
    _weighed(passes, sizes, size)
    passes.drop("sign")
    if cells is not None:
        own = cells.batch * cells.heads * cells.rows
        passes.make("any", own, cells.size, cells.size)
        passes.make("none", own, own, own)
        passes.drop("any")
        passes.make("out", size * sizes.out_numbers, size * sizes.out_numbers + own, sizes.out_numbers)
        passes.drop("none")


def _without_strangers(passes: Passes, sizes: Sizes, size: int, cells: Cells) -> None:
    """Queries that see nothing and keys that nobody sees are set to 0."""
    pairs, rows = sizes.cells, sizes.rows
    keys = sizes.batch * sizes.heads_kv * sizes.len_k
    read = cells.size
    # A group's heads that share their cells cannot be seen as rows without a copy, unless the rows share them too.
    shares = cells.heads == 1 < sizes.heads and cells.rows > 1
    if sizes.heads != sizes.heads_kv and shares:
        passes.make("pairs", pairs, cells.size)
        read = pairs
    passes.make("seen", keys, read, pairs)
    passes.drop("pairs")
    passes.make("sees", rows, cells.size, pairs)
    passes.make("sees nothing", rows, rows, rows)
    passes.drop("sees")
    passes.make("query seen", size * sizes.query_numbers, size * sizes.query_numbers + rows, sizes.query_numbers)
    passes.drop("sees nothing")
    passes.make("unseen", keys, keys, keys)
    passes.make("key seen", size * sizes.key_numbers, size * sizes.key_numbers + keys, sizes.key_numbers)
    passes.drop("unseen", "seen")


def _argmax(passes: Passes, sizes: Sizes, size: int, cells: Cells | None) -> None:
    pairs, rows, out = sizes.cells, sizes.rows, sizes.out_numbers
    _scores(passes, sizes, size, sizes.width)
    if cells is not None:
        _filled(passes, "scores", size, pairs, cells.size)
    passes.lines.append(Line("max", pairs, size * pairs, 0))
    passes.make("best", size * rows)
    passes.make("index", 8 * rows)
    passes.make("empty", rows, size * rows, rows)
    passes.make("lost", rows, size * rows, rows)
    passes.make("chosen", size * out, min(size * sizes.value_numbers, size * out) + 8 * rows)
    _chosen(passes, "or 0", size, out, size * out, rows)
    _chosen(passes, "out", size, out, size * out, rows)


def _scores(passes: Passes, sizes: Sizes, size: int, width: int, name: str = "scores") -> None:
    read = size * width * (sizes.rows + sizes.batch * sizes.heads_kv * sizes.len_k)
    passes.make(name, size * sizes.cells, read, product_flops(sizes.cells, width), product=True)


def _weighed(passes: Passes, sizes: Sizes, size: int) -> None:
    read = size * (sizes.cells + sizes.value_numbers)
    passes.make("out", size * sizes.out_numbers, read, product_flops(sizes.cells, sizes.width_v), product=True)


def _filled(passes: Passes, name: str, size: int, count: int, cells: int) -> None:
    passes.make("masked", cells, cells, cells)
    passes.make(name, size * count, size * count + cells, count)
    passes.drop("masked")
