"""What a campaign is: a goal, and a way to run one batch of it that raises when a promise breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Batch:
    """What one batch did: how much of the goal, and what else is worth publishing."""

    done: int
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Campaign:
    """`run(seed, count)` works off about `count` units, drawn from `seed` alone, in a process of its own.

    Whatever it raises, and a process that dies or outlives `limit` seconds, is a finding, kept under its seed: the next
    start runs that seed again, and the campaign is over when the goal is reached and no finding is open.
    """

    about: str
    unit: str
    goal: int
    batch: int
    run: Callable[[int, int], Batch]
    alone: bool = False  # measures time or cache: nothing else may run beside it
    limit: int = 1800
    # Turns the figures of all batches into those of the campaign; without it, the last batch's are kept.
    gather: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda figures: figures[-1] if figures else {}
