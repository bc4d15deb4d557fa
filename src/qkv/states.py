"""What a linear state does before a token is added: the `state=` slot of `attention` and `decode`.

For each key/value head the state S is a matrix, features × value width, and token i changes it before query i reads it:

    none                          S_i = S_{i−1} + φ(k_i) v_iᵀ
    Decay(rate)                   S_i = e^{−rate} S_{i−1} + φ(k_i) v_iᵀ                            RetNet, lightning
    Gated(log_gate)               S_i = diag(e^{g_i}) S_{i−1} + φ(k_i) v_iᵀ                        GLA, Mamba-2
    Delta(beta)                   S_i = S_{i−1} + β_i φ(k_i) (v_i − S_{i−1}ᵀ φ(k_i))ᵀ              DeltaNet
    GatedDelta(log_gate, beta)    the delta rule on e^{g_i} S_{i−1}                                Gated DeltaNet
    KDA(log_gate, beta)           the delta rule on diag(e^{g_i}) S_{i−1}                          Kimi Delta Attention

    o_i = S_iᵀ φ(q_i)

Where the similarity normalizes, o_i is divided by z_i·φ(q_i), and z follows the rule of S with 1 in place of v_i; a
delta rule has no normalizer. The scale is the caller's: multiply the query by it. Padding changes no state, and a
segment starts from 0. The names are those of ONNX's LinearAttention: linear, gated, delta, gated_delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import OptionError, OptionTypeError, complaint

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class AnyState:
    """The base of all kinds.

    Attributes:
        rule: "linear" adds φ(k) vᵀ, "delta" adds the correction of what the state answers to k.
        gate_axes: how many axes a gate may have, counted without batch and heads: 1 for one number a token, 2 for one
            for each feature too; empty without gates.
    """

    rule: ClassVar[str] = "linear"
    gate_axes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if not hasattr(given, "requires_grad"):
                raise OptionTypeError(complaint(field.name, type(given).__name__, "a torch.Tensor"))

    @property
    def signature(self) -> tuple[Any, ...]:
        """What decides between backends, without the contents of tensors."""
        return type(self).__name__, *(tuple(getattr(getattr(self, f.name), "shape", ())) for f in fields(self))

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        parts = (f"{name}={value}" if isinstance(value, float) else f"<{tuple(value.shape)}>" for name, value in given)
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class Decay(AnyState):
    """S_i = e^{−rate} S_{i−1} + φ(k_i) v_iᵀ: every token counts e^{−rate} times as much after each later one.

    Args:
        rate: a number, or a tensor with one for each key/value head, which can be learned; 0 or more. 0 forgets
            nothing, infinity all earlier tokens.

    >>> Decay(0.5)
    Decay(rate=0.5)
    """

    rate: Tensor | float

    def __post_init__(self) -> None:
        if isinstance(self.rate, Real) and not isinstance(self.rate, bool):
            rate = float(self.rate)
            if math.isnan(rate) or rate < 0:
                raise OptionError(complaint("rate", self.rate, "0 or more", "the state is multiplied by e^(−rate)"))
            object.__setattr__(self, "rate", rate)
        elif not hasattr(self.rate, "requires_grad"):
            wanted = "a number, or a torch.Tensor with one for each key/value head"
            raise OptionTypeError(complaint("rate", repr(self.rate), wanted))


@dataclass(frozen=True, eq=False, repr=False)
class Gated(AnyState):
    """S_i = diag(e^{g_i}) S_{i−1} + φ(k_i) v_iᵀ.

    Args:
        log_gate: g, (batch, heads_kv, length), or (batch, heads_kv, length, features) with a gate for each feature of
            the key; 0 or less. 0 forgets nothing, −infinity everything before the token.

    >>> import torch, qkv
    >>> x, value = torch.ones(3, 1), torch.tensor([[1.0], [10.0], [100.0]])
    >>> plain = qkv.FeatureMap(qkv.features.identity, normalize=False)
    >>> qkv.attention(x, x, value, similarity=plain, state=Gated(torch.tensor([0.5, 0.5, 0.25]).log())).flatten()
    tensor([  1.0000,  10.5000, 102.6250])
    """

    gate_axes: ClassVar[tuple[int, ...]] = (1, 2)
    log_gate: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Delta(AnyState):
    """S_i = S_{i−1} + β_i φ(k_i) (v_i − S_{i−1}ᵀ φ(k_i))ᵀ: with β = 1 and |φ(k)| = 1, S_i answers v_i to k_i.

    Args:
        beta: β, (batch, heads_kv, length). The state stays bounded where β_i |φ(k_i)|² is between 0 and 2.

    >>> import torch
    >>> Delta(torch.ones(2, 3, 5))
    Delta(<(2, 3, 5)>)
    """

    rule: ClassVar[str] = "delta"
    beta: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class GatedDelta(AnyState):
    """First the gate, then the delta rule: S_i = S' + β_i φ(k_i) (v_i − S'ᵀ φ(k_i))ᵀ with S' = e^{g_i} S_{i−1}.

    Args:
        log_gate: g, (batch, heads_kv, length); 0 or less.
        beta: β, (batch, heads_kv, length).

    >>> import torch
    >>> GatedDelta(torch.zeros(2, 3, 5), torch.ones(2, 3, 5))
    GatedDelta(<(2, 3, 5)>, <(2, 3, 5)>)
    """

    rule: ClassVar[str] = "delta"
    gate_axes: ClassVar[tuple[int, ...]] = (1,)
    log_gate: Tensor
    beta: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class KDA(AnyState):
    """`GatedDelta` with a gate for each feature of the key: S' = diag(e^{g_i}) S_{i−1}.

    Args:
        log_gate: g, (batch, heads_kv, length, features); 0 or less.
        beta: β, (batch, heads_kv, length).

    >>> import torch
    >>> KDA(torch.zeros(2, 3, 5, 7), torch.ones(2, 3, 5))
    KDA(<(2, 3, 5, 7)>, <(2, 3, 5)>)
    """

    rule: ClassVar[str] = "delta"
    gate_axes: ClassVar[tuple[int, ...]] = (2,)
    log_gate: Tensor
    beta: Tensor


KINDS: tuple[type[AnyState], ...] = (Decay, Gated, Delta, GatedDelta, KDA)


def as_state(given: object) -> AnyState | None:
    """The given state, checked; None is a state that forgets nothing."""
    if given is None or isinstance(given, AnyState):
        return given
    name = given.__name__ if isinstance(given, type) else ""
    hint = f"write qkv.{name}(...)" if name in {kind.__name__ for kind in KINDS} else ""
    wanted = "None, or a qkv." + ", ".join(kind.__name__ for kind in KINDS)
    raise OptionTypeError(complaint("state", f"the class {name}" if name else repr(given), wanted, hint))
