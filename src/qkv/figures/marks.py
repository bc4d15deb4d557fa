"""What a chart can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.errors import OptionError, OptionTypeError, ShapeError, complaint
from qkv.figures.axis import as_number

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """Points in the order in which the line joins them; one that cannot be drawn (nan) leaves a gap. markers: whether
    points are marked; a curve that was computed, and not measured, has none.

    >>> Line("ours", [(1, 2), (2, 3.5)]).points
    ((1.0, 2.0), (2.0, 3.5))
    """

    name: str
    points: Points
    dashed: bool = False
    markers: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", as_name("name", self.name))
        object.__setattr__(self, "points", _as_points(self.points))


@dataclass(frozen=True)
class Dots:
    """Points for themselves; `labels`, one for each, stand beside them where there is room. "" is no label."""

    name: str
    points: Points
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", as_name("name", self.name))
        object.__setattr__(self, "points", _as_points(self.points))
        if self.labels is None:
            return
        if isinstance(self.labels, str) or not all(isinstance(label, str) for label in self.labels):
            raise OptionTypeError(complaint("labels", repr(self.labels), "a list of texts"))
        object.__setattr__(self, "labels", tuple(" ".join(label.split()) for label in self.labels))
        if len(self.labels) != len(self.points):
            raise ShapeError(complaint("labels", f"{len(self.labels)}", f"{len(self.points)}, one for each point"))


@dataclass(frozen=True)
class Level:
    """A line across the chart: at a height `y`, or upright at an `x`."""

    name: str
    y: float | None = None
    x: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", as_name("name", self.name))
        if (self.x is None) == (self.y is None):
            raise OptionError(complaint("level", f"x={self.x}, y={self.y}", "one of the two"))
        for argument in ("x", "y"):
            if getattr(self, argument) is not None:
                object.__setattr__(self, argument, as_number(argument, getattr(self, argument)))


Mark = Line | Dots | Level


def as_name(argument: str, given: object) -> str:
    """A text that says something, on one line."""
    if not isinstance(given, str):
        raise OptionTypeError(complaint(argument, repr(given), "text"))
    if not given.split():
        raise OptionError(complaint(argument, repr(given), "a text that says what is drawn"))
    return " ".join(given.split())


def _as_points(given: object) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [tuple(pair) for pair in given]  # pyright: ignore[reportGeneralTypeIssues]
    except TypeError:
        raise OptionTypeError(complaint("points", repr(given), "a list of pairs (x, y)")) from None
    for pair in pairs:
        if len(pair) != 2:
            raise ShapeError(complaint("points", f"{pair!r}", "pairs (x, y)"))
    return tuple((as_number("x", x), as_number("y", y)) for x, y in pairs)
