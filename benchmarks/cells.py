"""One shape in one storage: make the caches, check every answer, and compare all entries cold and warm."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import qkv
from qkv.cache.formats import storage_format
from qkv.cost.machine import last_level_cache

from .harness import Timings
from .peers import Peer, Step, TimedCall
from .roofs import Roof, Roofs
from .rotation import caches, compare

Shape = tuple[int, int, int, int, int]  # batch, query heads, key/value heads, past, width
Entry = tuple[str, Peer, str]  # name, peer, storage

# The error that an answer may have against float64, over max |v|: enough for rounding, too little for another answer.
ALLOWED = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 8e-3, "int8": 2e-2, "int8/int4": 0.1, "int4": 0.15}
SCALED = ("int8", "int8/int4", "int4")  # made of float32 steps
GROWTH = 16  # steps of a qkv cache before it is cropped


class Qkv(Peer):
    """qkv.decode on a KVCache. The cache grows from step to step, as in use, and is cropped now and then."""

    name = "qkv"
    title = "qkv.decode on a KVCache; the append is counted"
    package = "qkv"
    storages = tuple(ALLOWED)
    owns = True

    def prepare(self, step: Step, storage: str) -> TimedCall:
        batch, heads, _, width = step.key.shape
        cache = qkv.KVCache(batch, heads, width, dtype=storage)
        cache.append(step.past_key, step.past_value)
        query, key, value, past = step.query, step.key, step.value, step.past
        decode, steps = qkv.decode, 0
        # The first step opens a page, which the system clears; in use that is one step in 64.
        decode(query, key, value, cache)
        cache.crop(past)

        def undo() -> None:
            nonlocal steps
            steps += 1
            if steps == GROWTH:
                steps = 0
                cache.crop(past)

        return TimedCall(lambda: decode(query, key, value, cache), undo)


def stored(shape: Shape, storage: str) -> int:
    """Bytes of the keys and values of the past, with their scales."""
    batch, _, heads, past, width = shape
    return batch * heads * past * storage_format(storage).token_bytes(width)


def flops(shape: Shape) -> int:
    """Scores and weighted sum: a multiplication and an addition each for every query head, key and coordinate."""
    batch, heads, _, past, width = shape
    return 4 * batch * heads * past * width


@dataclass(frozen=True)
class Cell:
    """Times of the entries, and reasons of those that did not run. Storage, roof and bytes are those of "qkv"."""

    shape: Shape
    storage: str
    cold: Timings
    warm: Timings
    roof: Roof
    rotation: int
    refused: dict[str, str]
    errors: dict[str, float]

    @property
    def limit(self) -> float:
        return self.roof.seconds(stored(self.shape, self.storage), flops(self.shape))

    @property
    def bound(self) -> str:
        """What limits the roof; "cache" if the rotation fits into the processor's caches."""
        if not self.is_cold:
            return "cache"
        return self.roof.bound(stored(self.shape, self.storage), flops(self.shape))

    @property
    def is_cold(self) -> bool:
        return self.rotation > 4 * last_level_cache()

    @property
    def of_roof(self) -> float:
        return self.limit / self.cold.median("qkv")

    def data(self) -> dict[str, Any]:
        results = {"cold": self.cold, "warm": self.warm}
        return {
            "shape": self.shape,
            "storage": self.storage,
            "rotation_bytes": self.rotation,
            "roof": {"bandwidth": self.roof.bandwidth, "rate": self.roof.rate, "seconds": self.limit},
            "bound": self.bound,
            "of_roof": self.of_roof,
            "refused": self.refused,
            "errors": self.errors,
            "medians": {kind: {name: result.median(name) for name in result.times} for kind, result in results.items()},
            "times": {kind: result.times for kind, result in results.items()},
        }


def measure(shape: Shape, entries: list[Entry], roofs: Roofs, *, quick: bool) -> Cell:
    """Compare the entries; the first is "qkv"."""
    sources: dict[str, list[Step]] = {}
    calls: dict[str, list[TimedCall]] = {}
    refused, errors = {}, {}
    storage = entries[0][2]
    gc.collect()
    counts = {kept: caches(stored(shape, kept)) for _, _, kept in entries}  # while all memory is free
    for name, peer, kept in entries:
        given = "float32" if kept in SCALED else kept
        steps = sources.setdefault(given, [Step.draw(shape, given)])
        if reason := peer.absent() or peer.refuses(steps[0], kept):
            refused[name] = reason
            continue
        if peer.owns or kept in SCALED:
            own = [peer.prepare(steps[0], kept) for _ in range(counts[kept])]
        else:
            steps += [steps[0].copy() for _ in range(counts[kept] - len(steps))]
            own = [peer.prepare(step, kept) for step in steps]
        errors[name] = check(name, peer, own[0], steps[0], kept)
        calls[name] = own
    first = len(roofs.taken)
    roofs.measure()
    cold = compare(calls, rounds=3 if quick else 7, seconds=0.0 if quick else 1.5)
    roofs.measure()
    warm = compare({name: own[:1] for name, own in calls.items()}, rounds=3 if quick else 5, seconds=0.0)
    rotation = counts[storage] * stored(shape, storage)
    return Cell(shape, storage, cold, warm, roofs.best_since(first), rotation, refused, errors)


def check(name: str, peer: Peer, call: TimedCall, step: Step, storage: str) -> float:
    """The error against float64 over max |v|. A wrong answer stops the run."""
    out = peer.answer(call.run())
    if call.undo is not None:
        call.undo()
    error = float((out.double() - step.exact(peer.keep(step))).abs().max() / step.all_value.abs().max())
    if not error <= ALLOWED[storage]:
        raise AssertionError(f"{name} in {storage} is {error:.1e} of max |v| away from the answer in float64")
    return error
