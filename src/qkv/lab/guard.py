"""What one reader may ask of the lab: every cap in one place, and how a refusal is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Scope

from ..web.guard import LOOPBACK, Guard


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


NOT_PAGES = ("/api", "/part", "/save")


def guarded(app: ASGIApp, limits: Limits, hosts: Iterable[str] = LOOPBACK) -> Guard:
    """The lab's app behind its guard."""
    return Guard(
        app, "lab", body=limits.body, seconds=limits.body_seconds, hosts=hosts, refuse=_refusal, no_pages=NOT_PAGES
    )


def _refusal(scope: Scope, status: int, words: str) -> Response:
    if scope["path"].startswith(("/api", "/part")):
        return JSONResponse({"problems": {"": words}}, status)
    return PlainTextResponse(f"{words}\n", status)
