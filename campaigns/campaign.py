"""A campaign: a goal, and a function that runs one batch and raises if a promise does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Batch:
    """The result of one batch: units done, and figures to publish."""

    done: int
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Campaign:
    """`run(seed, count)` does about `count` units, drawn from `seed` only, in a separate process.

    An exception, a crash, and a process that runs longer than `limit` seconds are findings, kept with their seed: the
    next start runs that seed again. The campaign is over when the goal is reached and no finding is open.
    """

    about: str
    unit: str
    goal: int
    batch: int
    run: Callable[[int, int], Batch]
    alone: bool = False  # measures time or memory: nothing else may run at the same time
    limit: int = 1800
    # Makes the figures of the campaign from those of its batches; the default keeps the last batch's.
    gather: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda figures: figures[-1] if figures else {}
