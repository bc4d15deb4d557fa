"""sim(q, k) in V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j).

Each class is a frozen description; the backends know how to compute it. The quotient exists where
Σ_j sim(q_i, k_j) is not zero. Terms that are never negative, one of them positive, are enough, and softmax
always has them. Where the sum is exactly zero the output is zero: no epsilon is ever added.
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


def finite_number(argument: str, given: object, hint: str = "") -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise OptionTypeError(complaint(argument, f"{given!r}", "a plain number", hint))
    number = float(given)
    if not math.isfinite(number):
        raise OptionError(complaint(argument, given, "a finite number", hint))
    return number


_LARGEST, _SMALLEST = 3.4028234663852886e38, 1.1754943508222875e-38  # of float32, in which kernels compute


def _float32_number(argument: str, given: object) -> float:
    number = finite_number(argument, given)
    if abs(number) > _LARGEST:
        raise OptionError(complaint(argument, given, f"a number of float32, at most {_LARGEST:.6g}"))
    return number


def _check_normalize(given: object) -> None:
    if not isinstance(given, bool):
        raise OptionTypeError(complaint("normalize", repr(given), "True or False"))


def _logits_of_heads(argument: str, given: Any) -> Any:
    """None, a number of float32, or a tensor, whose shape is checked where the number of heads is known."""
    if isinstance(given, Real):
        return _float32_number(argument, given)
    if given is not None and not hasattr(given, "requires_grad"):
        wanted = "a number or a tensor with one logit per query head"
        raise OptionTypeError(complaint(argument, type(given).__name__, wanted))
    return given


@dataclass(frozen=True, eq=False, repr=False)
class AnySimilarity:
    """The base of all kinds: what backends ask of a similarity, and a signature without the contents of tensors.

    A similarity that declares none of these properties has `of_blocks`, and is computed by `reference` and `blockwise`.

    Attributes:
        kind: its name.
        has_lse: the weights are exp(score), so that a bias, a log-sum-exp, a sink and a softcap have a meaning.
        is_product: it is φ(q)·φ(k) with the features that `qkv.features.feature_maps` gives, and has a linear state.
        picks_one_key: there is no sum over the keys; all scores of a query have to be known before any of them counts.
        has_scores: it is a function of the scores scale·q·k, to which a bias is added.
    """

    kind: ClassVar[str]
    has_lse: ClassVar[bool] = False
    has_scores: ClassVar[bool] = False
    is_product: ClassVar[bool] = False
    picks_one_key: ClassVar[bool] = False
    signature: tuple[Any, ...] = field(init=False, repr=False)

    @property
    def normalizes(self) -> bool:
        """Whether the sum of values is divided by the sum of weights."""
        return True

    def of_blocks(self, query: Tensor, key: Tensor) -> Tensor:
        """sim of each query with each key, (batch, heads, queries, keys); each pair is computed on its own."""
        raise NotImplementedError

    def _sign(self, *parts: object) -> None:
        object.__setattr__(self, "signature", (self.kind, *parts))

    def __repr__(self) -> str:
        """The constructor call, without what is left at its default."""
        parts = []
        for f in fields(self):
            given = getattr(self, f.name, f.default)
            if f.init and given is not f.default and (hasattr(given, "shape") or given != f.default):
                shape = getattr(given, "shape", None)
                text = getattr(given, "__name__", repr(given)) if shape is None else f"<{tuple(shape)}>"
                parts.append(f"{f.name}={text}")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class Softmax(AnySimilarity):
    """sim(q, k) = exp(softcap·tanh(scale·q·k / softcap) + bias + Σ log f_t over the tokens t after the key).

    Args:
        scale: any finite number, 0 and negative ones included; None is 1/√width.
        softcap: a positive number that bounds the scores by tanh, or None.
        sink: None, a number, or a tensor with one logit per query head. exp(sink) is added to the denominator only, so
            that a head may attend to nothing. It can be learned.
        log_decay: None, or the logarithm of a forget gate for each token and query head, (batch, heads_q, length), 0 or
            less; with fewer dimensions as the query. Key j counts Π f_t times as much for query i, over j < t <= i. The
            mask must have `Causal`, whose offset says where the queries are among the tokens; `length` is that of all
            keys, and for `decode` that of the whole sequence with the new tokens. −infinity forgets all earlier tokens,
            and so does every gate of −1e8 or less. The gates of padding (`Padding`) are not read. It can be learned.

    >>> Softmax(scale=0.5)
    Softmax(scale=0.5)
    >>> import torch, qkv
    >>> x, value = torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [4.0]])
    >>> half = Softmax(log_decay=torch.tensor([0.5, 0.5, 0.5]).log())
    >>> qkv.attention(x, x, value, similarity=half, mask=qkv.Causal())[1]  # (1/2 · 1 + 2) / (1/2 + 1)
    tensor([1.6667])
    """

    kind: ClassVar[str] = "softmax"
    has_lse: ClassVar[bool] = True
    has_scores: ClassVar[bool] = True
    scale: float | None = None
    softcap: float | None = None
    sink: Tensor | float | None = None
    log_decay: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", None if self.scale is None else _float32_number("scale", self.scale))
        if self.softcap is not None:
            cap = _float32_number("softcap", self.softcap)
            if cap < _SMALLEST:
                wanted = f"a positive number, {_SMALLEST:.6g} or more"
                raise OptionError(complaint("softcap", cap, wanted, "None is no cap"))
            object.__setattr__(self, "softcap", cap)
        object.__setattr__(self, "sink", _logits_of_heads("sink", self.sink))
        if self.log_decay is not None and not hasattr(self.log_decay, "requires_grad"):
            raise OptionTypeError(complaint("log_decay", type(self.log_decay).__name__, "a torch.Tensor or None"))
        self._sign(self.scale, self.softcap, self.sink is not None, self.log_decay is not None)

    def scale_for(self, width: int) -> float:
        return 1.0 / math.sqrt(width) if self.scale is None else self.scale

    def without_decay(self) -> Softmax:
        """The same scores, without forgetting."""
        return self if self.log_decay is None else Softmax(self.scale, self.softcap, self.sink)


@dataclass(frozen=True, eq=False, repr=False)
class Sigmoid(AnySimilarity):
    """V'_i = Σ_j σ(scale·q·k + bias) v_j with σ(x) = 1 / (1 + e^−x): nothing is divided, and no key takes weight from
    another.

    A query with nothing to attend to gets 0. The `bias=` of a call is added to the scores too.

    Args:
        scale: any finite number, 0 and negative ones included; None is 1/√width.
        bias: a number, or a tensor with one for each query head, which can be learned; None is 0. With −log(n) the
            weights of n keys add up to about 1.

    >>> import torch, qkv
    >>> q, k, v = torch.zeros(1, 2), torch.ones(3, 2), torch.tensor([[1.0], [2.0], [4.0]])
    >>> qkv.attention(q, k, v, similarity=Sigmoid()), qkv.attention(q, k, v, similarity=Sigmoid(bias=-80.0)) < 1e-30
    (tensor([[3.5000]]), tensor([[True]]))
    """

    kind: ClassVar[str] = "sigmoid"
    has_scores: ClassVar[bool] = True
    scale: float | None = None
    bias: Tensor | float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", None if self.scale is None else _float32_number("scale", self.scale))
        object.__setattr__(self, "bias", _logits_of_heads("bias", self.bias))
        self._sign(self.scale, self.bias is not None)

    @property
    def normalizes(self) -> bool:
        return False

    def scale_for(self, width: int) -> float:
        return 1.0 / math.sqrt(width) if self.scale is None else self.scale


@dataclass(frozen=True, eq=False, repr=False)
class Argmax(AnySimilarity):
    """All weight on the key with the highest score, argmax_j q·k_j; ties go to the lowest index.

    The choice is a step function of queries and keys, whose derivative is zero wherever it exists: only values are
    trained, and the gradient of queries and keys is exactly zero.
    """

    kind: ClassVar[str] = "argmax"
    picks_one_key: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._sign()


@dataclass(frozen=True, eq=False, repr=False)
class Polynomial(AnySimilarity):
    """sim(q, k) = (q·k + offset)^degree.

    Args:
        degree: an integer, 0 or more. Even degrees are never negative, but may vanish: with q = (1, 0), the keys
            (−1, 0) and (−1, 3) both give (q·k + 1)² = 0, and the output is 0. Odd degrees can be negative; the weights
            still sum to 1, but leave [0, 1], and the denominator can cancel. Degree 0 is uniform.
        offset: any finite number.

    >>> Polynomial(degree=3)
    Polynomial(degree=3)
    """

    kind: ClassVar[str] = "polynomial"
    is_product: ClassVar[bool] = True
    degree: int = 2
    offset: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int):
            raise OptionTypeError(complaint("degree", repr(self.degree), "an integer, 0 or more"))
        if self.degree < 0:
            raise OptionError(complaint("degree", self.degree, "an integer, 0 or more"))
        object.__setattr__(self, "offset", finite_number("offset", self.offset))
        self._sign(self.degree, self.offset)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap(AnySimilarity):
    """sim(q, k) = φ(q)·φ(k), φ applied to the last axis: (..., width) → (..., features).

    Args:
        map: a callable; `qkv.features` has some. Maps with φ ≥ 0 and a positive product (elu1, positive_random) keep
            the denominator positive; with relu, identity and others it can be zero (the output is then 0) or cancel.
        normalize: False leaves out the division: V'_i = Σ_j φ(q_i)·φ(k_j) v_j.

    >>> import qkv
    >>> FeatureMap(qkv.features.elu1)
    FeatureMap(map=elu1)
    """

    kind: ClassVar[str] = "feature_map"
    is_product: ClassVar[bool] = True
    map: Callable[[Tensor], Tensor]
    normalize: bool = True

    def __post_init__(self) -> None:
        if not callable(self.map):
            wanted = "a callable of (..., width) tensors"
            raise OptionTypeError(complaint("map", repr(self.map), wanted, "qkv.features.elu1 is one"))
        _check_normalize(self.normalize)
        # An id may be reused after the map is freed; what is cached under it decides speed only, never the answer.
        self._sign(self.normalize, id(self.map))

    @property
    def normalizes(self) -> bool:
        return self.normalize


@dataclass(frozen=True, eq=False, repr=False)
class Similarity(AnySimilarity):
    """Any function of a block of queries and a block of keys.

    Args:
        function: is given a query block (batch, heads, queries, width) and a key block (batch, heads, keys, width),
            with heads already matched, and returns (batch, heads, queries, keys). It must compute each pair on its own,
            since blocks may be cut anywhere; `qkv.testing.check_similarity` tests that.
        normalize: False leaves out the division: V'_i = Σ_j function(q_i, k_j) v_j.

    >>> import torch, qkv
    >>> relu = Similarity(lambda q, k: (q @ k.mT).relu(), normalize=False)
    >>> k, v = torch.tensor([[1.0], [-2.0], [3.0]]), torch.tensor([[1.0], [10.0], [100.0]])
    >>> qkv.attention(torch.ones(1, 1), k, v, similarity=relu)
    tensor([[301.]])
    """

    kind: ClassVar[str] = "similarity"
    function: Callable[[Tensor, Tensor], Tensor]
    normalize: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionTypeError(complaint("function", repr(self.function), "a callable of a query and a key block"))
        _check_normalize(self.normalize)
        self._sign(self.normalize)

    @property
    def normalizes(self) -> bool:
        return self.normalize

    def of_blocks(self, query: Tensor, key: Tensor) -> Tensor:
        return self.function(query, key)


DEFAULT_SOFTMAX = Softmax()


def as_similarity(given: object) -> AnySimilarity:
    """The given similarity, or `Softmax()` for None."""
    if given is None:
        return DEFAULT_SOFTMAX
    if isinstance(given, AnySimilarity):
        return given
    if isinstance(given, type) and issubclass(given, AnySimilarity):
        name = given.__name__
        raise OptionTypeError(complaint("similarity", f"the class {name}", "an instance", f"write qkv.{name}(...)"))
    hint = _hint_for_callable(given) if callable(given) else ""
    wanted = "None, Softmax, Sigmoid, Argmax, Polynomial, FeatureMap or Similarity"
    raise OptionTypeError(complaint("similarity", repr(given), wanted, hint))


def _hint_for_callable(given: Any) -> str:
    """How to wrap a bare function: one of `qkv.features` is a feature map."""
    if getattr(given, "__module__", None) == "qkv.features":
        name = getattr(given, "__name__", None) or repr(given)
        name += "(...)" if isinstance(given, type) else ""
        return f"wrap a feature map: qkv.FeatureMap(qkv.features.{name})"
    return "wrap φ(x) as qkv.FeatureMap(map), and a function of query and key blocks as qkv.Similarity(function)"
