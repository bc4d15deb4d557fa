"""What one reader may ask of the lab: every cap in one place, and how a refusal is said."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Scope

from ..errors import OptionError, complaint
from ..web.guard import HEADERS, LOOPBACK, Guard


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


_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9-]+\.)*[A-Za-z0-9-]+(?::[0-9]{1,5})?")
NOT_PAGES = ("/api", "/part", "/save")


def guarded(app: ASGIApp, limits: Limits, hosts: Iterable[str] = LOOPBACK, embed: str | None = None) -> Guard:
    """The lab's app behind its guard. embed: the origin whose pages may show the lab in a frame; none if None."""
    caps = {"body": limits.body, "seconds": limits.body_seconds}
    headers = HEADERS if embed is None else _framed_by(embed)
    return Guard(app, "lab", **caps, hosts=hosts, refuse=_refusal, no_pages=NOT_PAGES, headers=headers)


def _framed_by(origin: str) -> dict[str, str]:
    if not _ORIGIN.fullmatch(origin):
        wanted = "an origin such as https://course.example or http://127.0.0.1:8000"
        raise OptionError(complaint("embed", repr(origin[:80]), wanted, "no path, and no * for all"))
    policy = HEADERS["content-security-policy"].replace("frame-ancestors 'none'", f"frame-ancestors {origin}")
    always = {**HEADERS, "content-security-policy": policy}
    del always["x-frame-options"]  # it cannot name an origin
    return always


def _refusal(scope: Scope, status: int, words: str) -> Response:
    if scope["path"].startswith(("/api", "/part")):
        return JSONResponse({"problems": {"": words}}, status)
    return PlainTextResponse(f"{words}\n", status)
