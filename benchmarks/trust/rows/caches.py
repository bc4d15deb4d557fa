"""Rows 39 to 44: what a cache keeps, drops, restores and refuses, compared with a plain list of all tokens."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import torch
from torch import Tensor

from ..inputs import by_way, numbers, problem, right
from ..subjects import Subject
from ..verdict import Wrong, close, each, refused
from . import row


class Past:
    """A subject's cache, and all tokens that it was given."""

    def __init__(self, subject: Subject, kind: str, size: int | None = None) -> None:
        self.subject, self.window = subject, size if kind == "ring" else None
        self.cache = subject.cache(kind, size)
        self.key, self.value = torch.empty(2, 3, 0, 8), torch.empty(2, 3, 0, 8)
        self.seed = 0

    def tokens(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        self.seed += 1
        return tuple(numbers((2, heads, count, 8), seed=7 * self.seed + heads + at) for heads, at in HEADS)  # type: ignore[return-value]

    def step(self, count: int) -> None:
        query, key, value = self.tokens(count)
        before = self.key.shape[2]
        self.key, self.value = torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)
        at, keys = before + torch.arange(count)[:, None], torch.arange(before + count)
        keep = (keys <= at) & (keys > at - (self.window or 10**9))
        want = right((query, self.key, self.value), keep=keep.expand(2, 6, count, before + count)).out
        close(self.cache.step(query, key, value), want, torch.float32, f"the step to {before + count} tokens")

    def back(self, tokens: int) -> None:
        self.cache.back(tokens)
        self.key, self.value = (tensor[:, :, : tensor.shape[2] - tokens] for tensor in (self.key, self.value))


HEADS = ((6, 0), (3, 1), (3, 2))


def _continues(past: Past, count: int) -> None:
    """A refused step changed nothing; only qkv promises it, so only qkv is checked."""
    if past.subject.name == "qkv":
        past.step(count)


@row(39, "cache beyond its capacity: grow, ring, fixed")
def beyond_capacity(subject: Subject) -> str:
    def steps(past: Past) -> None:
        for count in (5, 1, 64, 1, 3):
            past.step(count)

    def fixed() -> str:
        past = Past(subject, "fixed", 6)
        past.step(4)
        words = refused(lambda: past.cache.step(*past.tokens(3)), subject.error if subject.name == "qkv" else Exception)
        _continues(past, 2)
        return words

    return each(
        {
            "growing": lambda: steps(Past(subject, "growing")),
            "ring": lambda: steps(Past(subject, "ring", 9)),
            "fixed": fixed,
        }
    )


@row(40, "ring: appends across the wrap, or larger")
def across_the_wrap(subject: Subject) -> str:
    def run(window: int, counts: tuple[int, ...]) -> None:
        past = Past(subject, "ring", window)
        for count in counts:
            past.step(count)

    each(
        {
            "across the wrap": lambda: run(9, (5, 3, 4, 1, 7, 2)),
            "more than the window at once": lambda: run(4, (2, 9, 1, 13, 2)),
        }
    )
    return "equal to the last w keys computed anew"


@row(41, "going back after the wrap, or too far")
def going_back(subject: Subject) -> str:
    def after_the_wrap() -> str:
        past = Past(subject, "ring", 9)
        for count in (8, 8, 4):
            past.step(count)
        try:
            past.back(3)
        except Exception as error:
            if not isinstance(error, subject.error):
                raise Wrong(f"refused by a stray {type(error).__name__}") from error
            return "refused after the wrap"
        past.step(2)
        return "exact after the wrap"

    def plain() -> None:
        past = Past(subject, "growing")
        past.step(9)
        past.back(3)
        past.step(2)

    def too_far() -> str:
        past = Past(subject, "growing")
        past.step(5)
        words = refused(lambda: past.cache.back(6), subject.error)
        _continues(past, 1)
        return words

    return each({"after the wrap": after_the_wrap, "before it": plain, "6 of 5 tokens": too_far})


@row(42, "reset, then reuse; stale slots of NaN")
def stale_slots(subject: Subject) -> str:
    def run(kind: str, size: int | None) -> None:
        past = Past(subject, kind, size)
        bad = torch.full((2, 3, 6, 8), nan)
        past.cache.append(bad, bad)
        past.cache.reset()
        for count in (4, 1, 1):
            past.step(count)

    each(
        {
            "growing": lambda: run("growing", None),
            "ring": lambda: run("ring", 9),
            "fixed": lambda: run("fixed", 16),
        }
    )
    return "no trace"


@row(43, "batch, heads, dtype, device change midway")
def changes_between_steps(subject: Subject) -> str:
    def changed(make: Callable[[Tensor], Tensor]) -> str:
        past = Past(subject, "growing")
        past.step(3)
        fresh: list[Any] = [make(tensor) for tensor in past.tokens(1)]
        words = refused(lambda: past.cache.step(*fresh), subject.error)
        _continues(past, 1)
        return words

    return each(
        {
            "batch": lambda: changed(lambda tensor: tensor[:1]),
            "heads": lambda: changed(lambda tensor: tensor[:, : tensor.shape[1] // 3]),
            "width": lambda: changed(lambda tensor: tensor[..., :7]),
            "dtype": lambda: changed(lambda tensor: tensor.double()),
            "device": lambda: changed(lambda tensor: tensor.to("meta")),
        }
    )


@row(44, "rows of other lengths, padded on the left")
def left_padding(subject: Subject) -> str:
    """Each row of a causal batch equals itself alone; the queries of the padding do not count."""
    query, key, value = problem(subject, len_q=7)
    real = torch.arange(7) >= torch.tensor([4, 0])[:, None]
    keep = (torch.ones(7, 7, dtype=torch.bool).tril() & real[:, None, None, :]).expand(2, 6, 7, 7)

    def probe(way: str) -> None:
        out = subject.attend(way, query, key, value, keep=keep)
        for batch, start in ((0, 4), (1, 0)):
            alone = [tensor[batch : batch + 1, :, start:] for tensor in (query, key, value)]
            length = 7 - start
            causal = torch.ones(length, length, dtype=torch.bool).tril().expand(1, 6, length, length)
            close(out[batch : batch + 1, :, start:], right(alone, keep=causal).out, torch.float32, f"row {batch}")

    by_way(subject, probe)
    return "each row equals its unpadded self"
