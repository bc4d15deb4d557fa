"""How fast messages are between the ranks of an axis, and how fast a rank computes: measured, alike on every rank."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..cost.links import LOOPBACK, Link, links
from ..cost.price import product_flops
from ..functional import attention
from .agreement import agree
from .axis import Axis, read_axis
from .wire import Message, everybodys, start

SMALL, LARGE = 64, 4 << 20  # bytes of a message
TURNS = {SMALL: 31, LARGE: 7}
CALL = 1, 4, 768, 64  # batch, heads, tokens, width: of the call whose rate is taken
CALLS = 5
# By group: a group that is gone takes its figures along.
_KNOWN: WeakKeyDictionary[object, Link] = WeakKeyDictionary()


def measure(mesh: DeviceMesh | None = None, axis: str | int | None = None) -> Link:
    """Measure the axis, in about a second: messages that all ranks pass on to the next at once, and softmax attention
    that all compute at once. Every rank ends with the same figures, those of the slowest, and split="auto" and
    `explain` on this axis go by them from then on.

    Every rank has to call it. At the edges: an axis of one rank has no link; its rate alone is measured.
    """
    place = read_axis(mesh, axis)
    agree(place, {"call": "measure"})
    own = _measured(place)
    # The slowest of everybody's: a rank that is ready early waits for the others in any case.
    every = torch.stack(everybodys(place, torch.tensor(own, dtype=torch.float64, device=place.device)))
    small, large, seconds = every.amax(0).tolist()
    found = replace(_assumed(), rate=_flops() / seconds, name=f"axis {place.name}", measured=True, ranks=place.size)
    if place.size > 1:
        # What a small message takes is in the time of a large one, unless the clock says otherwise.
        bandwidth = LARGE / max(large - small, large / 2)
        found = replace(found, bandwidth=bandwidth, latency=small)
    _KNOWN[place.group] = found
    return found


def figures(axis: Axis) -> Link:
    """What was measured on this axis, by all its ranks, or built-in figures."""
    return _KNOWN.get(axis.group) or _assumed()


def _assumed() -> Link:
    return replace(links()[LOOPBACK], name="built-in figures", source="", title="")


def _measured(axis: Axis) -> list[float]:
    """Seconds of a small message, of a large one, and of the call."""
    found = [0.0, 0.0]
    if axis.size > 1:
        found = [_passed_on(axis, size) for size in (SMALL, LARGE)]
        _together(axis)
    batch, heads, tokens, width = CALL
    given = [torch.full((batch, heads, tokens, width), 0.5, device=axis.device) for _ in range(3)]
    with torch.no_grad():
        seconds = _timed(lambda: attention(given[0], given[1], given[2]), CALLS, axis)
    return [*found, seconds]


def _passed_on(axis: Axis, size: int) -> float:
    out, into = (torch.zeros(size, dtype=torch.uint8, device=axis.device) for _ in range(2))

    def turn() -> None:
        start(axis, [Message(axis.after(1), out)], [Message(axis.after(-1), into)]).wait()

    return _timed(turn, TURNS[size], axis)


def _together(axis: Axis) -> None:
    everybodys(axis, torch.zeros(1, device=axis.device))


def _timed(run: Callable[[], object], turns: int, axis: Axis) -> float:
    """The median; the first turn warms up."""
    times = []
    for _ in range(turns + 1):
        _settled(axis)
        begin = time.perf_counter()
        run()
        _settled(axis)
        times.append(time.perf_counter() - begin)
    return max(statistics.median(times[1:]), 1e-9)


def _settled(axis: Axis) -> None:
    if axis.device.type != "cpu":
        torch.accelerator.synchronize()


def _flops() -> int:
    batch, heads, tokens, width = CALL
    return product_flops(batch * heads * tokens * tokens, 2 * width)
