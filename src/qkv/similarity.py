"""What sim(q, k) is, in V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j).

Each class is a frozen description; the backends know how to compute it. For the quotient to exist,
Σ_j sim(q_i, k_j) must not vanish for any i. sim ≥ 0 with one positive term is enough, and softmax
always has it. Where a sum is exactly zero the row is zero: no epsilon is ever added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import OptionError, OptionTypeError, complaint

if TYPE_CHECKING:
    from torch import Tensor


def _finite_number(argument: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise OptionTypeError(complaint(argument, f"{given!r}", "a plain number"))
    number = float(given)
    if not math.isfinite(number):
        raise OptionError(complaint(argument, given, "a finite number"))
    return number


@dataclass(frozen=True, eq=False, repr=False)
class AnySimilarity:
    """What the five kinds have in common: a name, and a signature without tensors' contents."""

    kind: ClassVar[str]
    signature: tuple[Any, ...] = field(init=False, repr=False)

    def _sign(self, *parts: object) -> None:
        object.__setattr__(self, "signature", (self.kind, *parts))

    def __repr__(self) -> str:
        """The constructor call, without what is left at its default."""
        said = []
        for f in fields(self):
            given = getattr(self, f.name, f.default)
            if f.init and given is not f.default and (hasattr(given, "shape") or given != f.default):
                shape = getattr(given, "shape", None)
                text = getattr(given, "__name__", repr(given)) if shape is None else f"<{tuple(shape)}>"
                said.append(f"{f.name}={text}")
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, eq=False, repr=False)
class Softmax(AnySimilarity):
    """sim(q, k) = exp(softcap·tanh(scale·q·k / softcap) + bias).

    scale: None is 1/√width; any finite number, 0 and negative ones included.
    softcap: None, or a positive number that bounds the scores by tanh.
    sink: None, a number, or a tensor with one logit per query head: exp(sink) joins the sum below
        the fraction and nothing above it, so that a head may attend to nothing. It can be learned.

    >>> Softmax(scale=0.5)
    Softmax(scale=0.5)
    """

    kind: ClassVar[str] = "softmax"
    scale: float | None = None
    softcap: float | None = None
    sink: Tensor | float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            object.__setattr__(self, "scale", _finite_number("scale", self.scale))
        if self.softcap is not None:
            cap = _finite_number("softcap", self.softcap)
            if cap <= 0:
                raise OptionError(complaint("softcap", cap, "a positive number", "None is no cap"))
            object.__setattr__(self, "softcap", cap)
        if isinstance(self.sink, Real):
            object.__setattr__(self, "sink", _finite_number("sink", self.sink))
        elif self.sink is not None and not hasattr(self.sink, "requires_grad"):
            raise OptionTypeError(
                complaint("sink", type(self.sink).__name__, "a number or a tensor with one logit per query head")
            )
        self._sign(self.scale, self.softcap, self.sink is not None)

    def scale_for(self, width: int) -> float:
        return 1.0 / math.sqrt(width) if self.scale is None else self.scale


@dataclass(frozen=True, eq=False, repr=False)
class Argmax(AnySimilarity):
    """All weight on the best key, argmax_j q·k_j; ties go to the lowest index.

    The choice is a step function of queries and keys: its derivative is zero wherever it exists, so
    training moves values only. Queries and keys get a gradient of exactly zero.
    """

    kind: ClassVar[str] = "argmax"

    def __post_init__(self) -> None:
        self._sign()


@dataclass(frozen=True, eq=False, repr=False)
class Polynomial(AnySimilarity):
    """sim(q, k) = (q·k + offset)^degree.

    Even degrees are never negative, but may vanish: with q = (1, 0), the keys (−1, 0) and (−1, 3)
    both give (q·k + 1)² = 0, and the row is 0. Odd degrees can be negative; the weights then still
    sum to 1, but leave [0, 1], and the sum below the fraction can cancel. Degree 0 is uniform.

    >>> Polynomial(degree=3)
    Polynomial(degree=3)
    """

    kind: ClassVar[str] = "polynomial"
    degree: int = 2
    offset: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int):
            raise OptionTypeError(complaint("degree", repr(self.degree), "a whole number, 0 or more"))
        if self.degree < 0:
            raise OptionError(complaint("degree", self.degree, "a whole number, 0 or more"))
        object.__setattr__(self, "offset", _finite_number("offset", self.offset))
        self._sign(self.degree, self.offset)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap(AnySimilarity):
    """sim(q, k) = φ(q)·φ(k), φ applied to the last axis: (..., width) → (..., features).

    map: a callable; `qkv.features` has some. Maps with φ ≥ 0 and a positive product (elu1,
        positive_random) keep the sum positive; relu, identity and others may give a zero sum
        (a zero row) or, with signs, one that cancels.
    normalize: False leaves out the division: V'_i = Σ_j φ(q_i)·φ(k_j) v_j.
    """

    kind: ClassVar[str] = "feature_map"
    map: Callable[[Tensor], Tensor]
    normalize: bool = True

    def __post_init__(self) -> None:
        if not callable(self.map):
            raise OptionTypeError(
                complaint("map", repr(self.map), "a callable of (..., width) tensors", "qkv.features.elu1 is one")
            )
        if not isinstance(self.normalize, bool):
            raise OptionTypeError(complaint("normalize", repr(self.normalize), "True or False"))
        # A number that another map may have after this one is gone: what is remembered by it is a choice of speed.
        self._sign(self.normalize, id(self.map))


@dataclass(frozen=True, eq=False, repr=False)
class Similarity(AnySimilarity):
    """Any function of a block of queries and a block of keys.

    function(query, key) gets (batch, heads, queries, width) and (batch, heads, keys, width), heads
    already matched, and returns (batch, heads, queries, keys). It must treat every pair alike and on
    its own, since blocks are cut where it suits the machine; `qkv.testing.check_similarity` tries that.
    """

    kind: ClassVar[str] = "similarity"
    function: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionTypeError(complaint("function", repr(self.function), "a callable of a query and a key block"))
        self._sign()


ANY_SOFTMAX = Softmax()


def as_similarity(given: object) -> AnySimilarity:
    """The similarity that was given, or `Softmax()` for None."""
    if given is None:
        return ANY_SOFTMAX
    if isinstance(given, AnySimilarity):
        return given
    if isinstance(given, type) and issubclass(given, AnySimilarity):
        raise OptionTypeError(
            complaint("similarity", f"the class {given.__name__}", "an object of it", f"write {given.__name__}(...)")
        )
    hint = "wrap a function of query and key blocks: qkv.Similarity(function)" if callable(given) else ""
    raise OptionTypeError(
        complaint("similarity", repr(given), "None, Softmax, Argmax, Polynomial, FeatureMap or Similarity", hint)
    )
