"""The roofline: what a machine allows at each intensity, and what calls reach of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from qkv.errors import OptionError, OptionTypeError, ShapeError, complaint
from qkv.figures.axis import Axis, as_number
from qkv.figures.chart import chart
from qkv.figures.marks import Dots, Level, Line, Mark, as_name
from qkv.figures.quantity import readable

STEPS = 48  # places along a roof that can be pointed at


def roofline(
    title: str,
    roofs: Iterable[tuple[str, float, float]],
    dots: Iterable[tuple[str, float, float]] = (),
    dots_name: str = "measured",
    note: str = "",
    width: float = 720,
    height: float = 460,
    *,
    more: Mapping[str, Sequence[tuple[str, float, float]]] | None = None,
) -> str:
    """`roofs` are (name, flops per second, bytes per second), `dots` (name, flops per byte, flops per second); `more`
    are further dots, by the name of their series.

    A roof rises with the intensity as min(flops per second, intensity × bytes per second); the ridge, where the two are
    equal, is marked with its value.

    >>> "ridge 5 flop/byte" in roofline("Here", [("this machine", 40e9, 8e9)], [("decode", 0.5, 3.1e9)])
    True
    """
    tops = [_roof(roof) for roof in roofs]
    if not tops:
        raise OptionError(complaint("roofs", "none", "one (name, flops per second, bytes per second) or more"))
    series = {dots_name: [_dot(dot) for dot in dots]}
    series |= {name: [_dot(dot) for dot in given] for name, given in (more or {}).items()}
    spots = [spot for some in series.values() for spot in some]
    ridges = [flops / bandwidth for _, flops, bandwidth in tops]
    reached = [x for _, x, y in spots if 0 < x < math.inf and 0 < y < math.inf]
    low, high = min([*ridges, *reached]) / 8, max([*ridges, *reached]) * 8
    axis = Axis("arithmetic intensity", "flop/byte", "log", low, high)
    marks: list[Mark] = []
    for n, ((name, flops, bandwidth), ridge) in enumerate(zip(tops, ridges, strict=True)):
        ways = sorted({*(low * (high / low) ** (k / STEPS) for k in range(1, STEPS)), low, high, ridge})
        said = f"{name}: {readable(flops, 'FLOP/s', 3)}, {readable(bandwidth, 'B/s', 3)}"
        marks.append(
            Line(said, [(x, min(flops, x * bandwidth)) for x in ways], dashed=n % 2 == 1, markers=False)
        )  # roofs that coincide show both
    for (name, _, _), ridge in zip(tops, ridges, strict=True):
        said = (
            f"ridge {readable(ridge, digits=3)}, {name}"
            if len(tops) > 1
            else f"ridge {readable(ridge, 'flop/byte', 3)}"
        )
        marks.append(Level(said, x=ridge))
    for named, some in series.items():
        if some:
            marks.append(Dots(named, [(x, y) for _, x, y in some], [name for name, _, _ in some]))
    return chart(title, axis, Axis("speed", "FLOP/s", "log"), marks, note, width, height)


def _roof(given: object) -> tuple[str, float, float]:
    name, flops, bandwidth = _three("roofs", given, "(name, flops per second, bytes per second)")
    for argument, rate in (("flops per second", flops), ("bytes per second", bandwidth)):
        if not 1e-30 <= rate <= 1e30:
            raise OptionError(complaint(f"roofs, {argument} of {name}", rate, "a finite number above zero"))
    return name, flops, bandwidth


def _dot(given: object) -> tuple[str, float, float]:
    return _three("dots", given, "(name, flops per byte, flops per second)")


def _three(argument: str, given: object, wanted: str) -> tuple[str, float, float]:
    if not isinstance(given, (tuple, list)):
        raise OptionTypeError(complaint(argument, repr(given), wanted))
    if len(given) != 3:
        raise ShapeError(complaint(argument, repr(given), wanted))
    return as_name(argument, given[0]), as_number(argument, given[1]), as_number(argument, given[2])
