"""What every split is: a name, the reasons against it, and a way to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..backends.reference import Result
from .share import Share


@dataclass(frozen=True)
class Way:
    """reasons_against: why a call cannot be split so; the same on every rank, for it looks only at what they agreed on.
    run: the answer for this rank's queries, in the dtype of the query, in four dimensions; lse and weights if they are
    asked for."""

    name: str
    summary: str
    reasons_against: Callable[[Share], tuple[str, ...]]
    run: Callable[[Share], Result]
