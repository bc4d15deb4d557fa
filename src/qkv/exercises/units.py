"""Numbers with units: "16 GB", "2.0 TB/s", "312 TFLOP/s", "2T tokens", "13B", "bf16"; an unknown unit is refused."""

from __future__ import annotations

import re
import tomllib
from decimal import Context, Decimal
from fractions import Fraction
from importlib.resources import files
from math import log10, prod
from typing import Any

from ..cost.polynomial import whole
from .findings import CannotSolve, refuse
from .record import Exercise, Given

Exact = int | Fraction

_DATA = tomllib.loads(files("qkv.exercises").joinpath("units.toml").read_text(encoding="utf-8"))
DIMENSIONS: dict[str, str] = _DATA["dimensions"]
_PREFIXES, _COUNTS, _TIMES = (
    {name: Fraction(size) for name, size in _DATA[kind].items()} for kind in ("prefixes", "counts", "times")
)
_BASES = {name: (dimension, Fraction(size)) for name, (dimension, size) in _DATA["bases"].items()}
_COUNTED, _NUMBER, _POWER = (re.compile(_DATA["patterns"][name]) for name in ("counted", "number", "power"))


def amount(given: Given, *, binary: bool = False) -> Exact:
    """A given number in base units: bytes, seconds, operations, a second; its role says which unit it may have.

    >>> amount(Given(role="memory", value="80 GiB")), amount(Given(role="rate", value=312, unit="TFLOP/s"))
    (85899345920, 312000000000000)
    >>> amount(Given(role="parameters", value="13B")), amount(Given(role="training_tokens", value=2, unit="T tokens"))
    (13000000000, 2000000000000)
    """
    return quantity(given.value, given.unit, DIMENSIONS.get(given.role, ""), binary=binary)


def quantity(value: Any, unit: str = "", dimension: str = "", *, binary: bool = False) -> Exact:
    """A number, or a text with a number and a unit, in base units; `binary` reads GB as GiB."""
    number, written = _split(value)
    unit = " ".join(each for each in (written, unit.strip()) if each)
    return whole(Fraction(number) * factor(unit, dimension, binary=binary))


def factor(unit: str, dimension: str = "", *, binary: bool = False) -> Exact:
    """What a unit multiplies by; it must have the dimension, or be a bare prefix ("G", "billion").

    >>> factor("TB/s", "B/s"), factor("B"), factor("B", "B"), factor("GB", "B", binary=True), factor("ms", "s")
    (1000000000000, 1000000000, 1, 1073741824, Fraction(1, 1000))
    """
    plain = re.sub(r"\s+", " ", _COUNTED.sub(" ", unit.replace("\\", "").replace("$", ""))).strip(" ·.")
    plain = re.sub(r"\s*(?:/|per|a)\s*(?:s|sec|secs|second)$|(?<=[A-Za-z])ps$", "/s", plain).replace("·", "").strip()
    plain = plain.removesuffix("/").strip()
    if plain == "/s" and dimension != "s":
        return 1
    bare = plain.removesuffix("/s").strip()
    if bare in _COUNTS and not (bare in _BASES and dimension.startswith("B")):
        return whole(_COUNTS[bare])
    words = bare.split()
    if len(words) == 2 and words[0] in _COUNTS:
        return whole(_COUNTS[words[0]] * (factor(words[1] + plain[len(bare) :], dimension, binary=binary)))
    if plain in _TIMES:
        found, size = "s", _TIMES[plain]
    else:
        found, size = _prefixed(bare, binary)
        found += "/s" if plain.endswith("/s") and not found.endswith("/s") else ""
    # "312 TFLOPs" of a machine is its rate.
    if found == "FLOP" and dimension == "FLOP/s":
        found = "FLOP/s"
    refuse(not found, "unknown_unit", unit=unit.strip())
    refuse(found != dimension, "misfit", what=f"the unit {unit.strip()}", why=f"{_DATA['named'][dimension]} is wanted")
    return whole(size)


def dimension_of(unit: str) -> str:
    """The unit without its prefix: bytes, operations or seconds, maybe a second; empty where it is not known.

    >>> dimension_of("kB"), dimension_of("TFLOP/s"), dimension_of("ms"), dimension_of("tokens")
    ('B', 'FLOP/s', 's', '')
    """
    if unit in _TIMES:
        return "s"
    bare = unit.removesuffix("/s").strip()
    base = _prefixed(bare, False)[0]
    return f"{base}/s" if base and bare != unit and not base.endswith("/s") else base


def _prefixed(text: str, binary: bool) -> tuple[str, Fraction]:
    for prefix, size in _PREFIXES.items():
        base = _BASES.get(text.removeprefix(prefix).strip()) if text.startswith(prefix) else None
        if base is not None:
            if binary and base[0] == "B" and size in (10**3, 10**6, 10**9, 10**12, 10**15):
                size = Fraction(2 ** (10 * round(log10(size) / 3)))
            return base[0], size * base[1]
    return "", Fraction(1)


def _split(value: Any) -> tuple[Fraction, str]:
    """A number and what is written after it."""
    if isinstance(value, int | float | Fraction) and not isinstance(value, bool):
        return Fraction(str(value)), ""
    text = str(value).strip().strip("$").replace("~", "").replace("\u00a0", " ")
    if found := _POWER.match(text):
        return Fraction(int(found["base"])) ** int(found["power"]), text[found.end() :]
    if not (found := _NUMBER.match(text)):
        raise CannotSolve("misfit", what=str(value), why="a number is wanted")
    number = Fraction(re.sub("[,_ ]", "", found["number"])) / int(found["below"] or 1)
    return number * Fraction(10) ** (int(found["e"] or 0) + int(found["ten"] or 0)), text[found.end() :]


def chips(value: Any) -> int:
    """A number of chips, or the size of a slice: "4x4" is 16."""
    text = str(value).strip().lower().replace("×", "x")
    if re.fullmatch(r"\d+(\s*x\s*\d+)+", text):
        return prod(map(int, text.split("x")))
    found = quantity(value)
    refuse(found < 1 or whole(found) != int(found), "misfit", what=f"{value} chips", why="a whole number is wanted")
    return int(found)


def element_bytes(dtype: Any) -> Exact:
    """Bytes of one number in a format.

    >>> element_bytes("bf16"), element_bytes("int4"), element_bytes("16 bits"), element_bytes(4)
    (2, Fraction(1, 2), 2, 4)
    """
    if isinstance(dtype, int | float) and not isinstance(dtype, bool):
        return whole(Fraction(str(dtype)))
    text = str(dtype).strip().lower().removeprefix("torch.")
    name = re.sub(r"[^a-z0-9]", "", text)
    if name in _DATA["bits"]:
        return whole(Fraction(_DATA["bits"][name], 8))
    if found := re.fullmatch(r"(\d+)[- ]?bits?(?: (?:float|int|integer|precision).*)?", text):
        return whole(Fraction(int(found[1]), 8))
    try:
        return quantity(re.sub(r"bytes?.*|b$", "B", text), "", "B")
    except CannotSolve:
        hint = "bf16, int8, 16 bits or 2 bytes are formats"
        raise CannotSolve("unknown_name", what="the format", name=dtype, hint=hint) from None


def format_of(dtype: Any) -> str:
    """The name in `qkv.cost` of a format: "fp16" is float16, "8-bit" int8; a number of bytes is the usual one."""
    named = _DATA["formats"].get(re.sub(r"[^a-z0-9]", "", str(dtype).lower()))
    return named or _DATA["formats"].get(f"{8 * element_bytes(dtype)} bits", "float32")


def is_binary(exercise: Exercise) -> bool:
    """Whether the exercise reads GB as 2^30 bytes."""
    return str(exercise.convention("byte_unit", "GB")) in ("GiB", "binary", "2^30")


def number_text(value: Any, digits: int = 5) -> str:
    """A number as one would type it: whole numbers exactly, others with so many significant digits.

    >>> number_text(404389888), number_text(Fraction(1, 3)), number_text(156 * 10**21), number_text(2.5e-7)
    ('404389888', '0.33333', '1.56*10^23', '2.5*10^-7')
    """
    if isinstance(value, bool | str):
        return str(value)
    exact = Fraction(str(value))
    if exact.denominator == 1 and (abs(exact) < 10**15 or len(str(abs(int(exact))).rstrip("0")) > digits):
        return str(int(exact))
    kept = Context(digits).divide(Decimal(exact.numerator), Decimal(exact.denominator)).normalize(Context(digits))
    power = kept.adjusted()
    return f"{kept:f}" if -5 < power < 15 else f"{kept.scaleb(-power):f}*10^{power}"


def readable_unit(value: Any, dimension: str, *, binary: bool = False) -> str:
    """The unit in which a number of bytes, seconds or operations is easy to read."""
    size = abs(Fraction(str(value)))
    if dimension == "s":
        times = (("h", 7200), ("s", 1), ("ms", Fraction(1, 1000)), ("us", Fraction(1, 10**6)))
        return next((name for name, least in times if size >= least), "ns") if size else "s"
    step, suffix = (1024, "iB") if binary else (1000, "B")
    names = ("B", *(f"{name}{suffix}" for name in (("K" if binary else "k"), "M", "G", "T", "P")))
    return names[sum(size >= step**power for power in range(1, len(names)))]


def with_unit(value: Any, unit: str, dimension: str, digits: int = 5) -> str:
    """A number of base units in a unit, as one would type it.

    >>> with_unit(2621440, "MB", "B"), with_unit(864000, "days", "s")
    ('2.6214 MB', '10 days')
    """
    number = number_text(whole(Fraction(str(value)) / factor(unit, dimension)), digits)
    # The parser of answers has no unit longer than a week: the number stands alone, and the answer names its unit.
    return number if dimension == "s" and factor(unit, "s") > 604800 else f"{number} {_DATA['written'].get(unit, unit)}"
