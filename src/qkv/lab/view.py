"""A view: its fields, what it computes of them, and how that is shown and said in Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import QkvError
from .fields import Field, State

Result = dict[str, Any]  # JSON: what the API answers, and the only source of the numbers on the page


class Cancelled(QkvError, RuntimeError):
    """The reader went away, or the time was over."""


@dataclass
class Work:
    """What a computation tells while it runs, and how it hears that the reader has left.

    `say` must be called at least twice a second by whatever can take longer: it raises Cancelled."""

    told: Callable[[str, int, int], None] = lambda what, done, of: None
    stopped: Callable[[], bool] = lambda: False
    seconds: float = 10.0
    began: float = field(default_factory=time.monotonic)

    def say(self, what: str, done: int = 0, of: int = 0) -> None:
        """`what` is being done, and `done` of `of` is ready (0 of 0: it is not known how much there is)."""
        if self.stopped():
            raise Cancelled("stopped")
        if time.monotonic() - self.began > self.seconds:
            raise Cancelled(f"stopped after {self.seconds:g} s, which is all that one question gets; ask for less")
        self.told(what, done, of)

    def restart(self) -> None:
        """Time spent waiting for a place is not the work's."""
        self.began = time.monotonic()


@dataclass(frozen=True, kw_only=True)
class View:
    name: str  # in addresses, file names and the API
    title: str
    verb: str  # compute, cost, prove or teach
    lead: str  # one sentence under the title, in exact words
    fields: tuple[Field, ...]
    compute: Callable[[State, Work], Result]
    python: Callable[[State], str]  # a whole program: what "copy as Python" gives
    # Charts and formulas by name, as SVG and MathML that qkv.figures and qkv.render wrote: put in as they are.
    pictures: Callable[[State, Result], Mapping[str, str]] = lambda state, result: {}
    simple: str = ""  # and in simpler ones
    bar: tuple[str, ...] = ()  # fields in the bar above the result, which is seen without scrolling
    schema: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema of each key of the result, for OpenAPI
    # May take longer than half a second, always or in some states: runs in a separate process, with progress.
    heavy: bool | Callable[[State], bool] = False
    seconds: float = 10.0  # and is stopped after so many
    scripts: tuple[str, ...] = ()  # modules under static/ that this view needs besides lab.js
    alone: bool = False  # they work in a saved file too, where there is no server

    def is_heavy(self, state: State) -> bool:
        return self.heavy(state) if callable(self.heavy) else self.heavy
