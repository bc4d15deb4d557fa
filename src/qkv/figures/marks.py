"""Marks of a chart: lines, dots, bars and reference lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from qkv.errors import OptionError, OptionTypeError, ShapeError, complaint
from qkv.figures.axis import as_number

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A line through points in order; a point that cannot be drawn (nan) leaves a gap. markers: whether points are
    marked, as measurements are; computed curves are not.

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
    """Separate points. labels: one text per point, shown where it fits; "" is no label."""

    name: str
    points: Points
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", as_name("name", self.name))
        object.__setattr__(self, "points", _as_points(self.points))
        object.__setattr__(self, "labels", _as_labels(self.labels, len(self.points), "point"))


@dataclass(frozen=True)
class Bars:
    """Bars from zero (on a log axis from its low end) to `heights`, between consecutive ascending `edges`; a height
    that cannot be drawn (nan) leaves a gap. labels: one text per bar, shown in its tooltip instead of the edges.

    >>> Bars("seen", [0, 1, 2], [3, 5]).heights
    (3.0, 5.0)
    """

    name: str
    edges: Sequence[float]
    heights: Sequence[float]
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", as_name("name", self.name))
        for argument in ("edges", "heights"):
            object.__setattr__(self, argument, _as_numbers(argument, getattr(self, argument)))
        if len(self.edges) != len(self.heights) + 1 and (self.edges or self.heights):
            wanted = f"{len(self.heights) + 1}, one more than there are heights"
            raise ShapeError(complaint("edges", f"{len(self.edges)}", wanted))
        if not all(left < right for left, right in pairwise(self.edges)):
            raise OptionError(complaint("edges", repr(self.edges), "numbers in ascending order"))
        object.__setattr__(self, "labels", _as_labels(self.labels, len(self.heights), "bar"))

    @property
    def bars(self) -> tuple[tuple[float, float, float], ...]:
        """(left, right, height) of each."""
        return tuple((*ends, height) for ends, height in zip(pairwise(self.edges), self.heights, strict=True))


@dataclass(frozen=True)
class Level:
    """A reference line across the chart: horizontal at `y`, or vertical at `x`."""

    name: str
    y: float | None = None
    x: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", as_name("name", self.name))
        if (self.x is None) == (self.y is None):
            raise OptionError(complaint("level", f"x={self.x}, y={self.y}", "exactly one of x and y"))
        for argument in ("x", "y"):
            if getattr(self, argument) is not None:
                object.__setattr__(self, argument, as_number(argument, getattr(self, argument)))


Mark = Line | Dots | Bars | Level


def as_name(argument: str, given: object) -> str:
    """A non-empty text on one line."""
    if not isinstance(given, str):
        raise OptionTypeError(complaint(argument, repr(given), "text"))
    if not given.split():
        raise OptionError(complaint(argument, repr(given), "a text that is not empty"))
    return " ".join(given.split())


def _as_labels(given: Sequence[str] | None, count: int, what: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(label, str) for label in given):
        raise OptionTypeError(complaint("labels", repr(given), "a list of texts"))
    if len(given) != count:
        raise ShapeError(complaint("labels", f"{len(given)}", f"{count}, one per {what}"))
    return tuple(" ".join(label.split()) for label in given)


def _as_numbers(argument: str, given: object) -> tuple[float, ...]:
    try:
        numbers = list(given)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise OptionTypeError(complaint(argument, repr(given), "a list of numbers")) from None
    return tuple(as_number(argument, number) for number in numbers)


def _as_points(given: object) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [tuple(pair) for pair in given]  # pyright: ignore[reportGeneralTypeIssues]
    except TypeError:
        raise OptionTypeError(complaint("points", repr(given), "a list of pairs (x, y)")) from None
    for pair in pairs:
        if len(pair) != 2:
            raise ShapeError(complaint("points", f"{pair!r}", "pairs (x, y)"))
    return tuple((as_number("x", x), as_number("y", y)) for x, y in pairs)
