"""What one reader may ask of the lab: every cap in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body: int = 1_000_000  # bytes of a request's body
    seconds: float = 60.0  # of any computation, whatever its view allows
    header_seconds: float = 10.0  # for a request's head to arrive
    body_seconds: float = 15.0  # and its body
    workers: int = 2  # light computations at once
    waiting: int = 200  # requests that may wait for one
    heavy_waiting: int = 12  # and for the process that does the heavy ones
    connections: int = 400


class Busy(Exception):
    """More is waiting than there are places."""
