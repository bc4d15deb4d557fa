"""What the contract is held against: a callable with `qkv.attention`'s signature, and its backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from qkv.similarity import Polynomial

from ..cases import CallCase, as_called


class Claims(Protocol):
    """What a backend publishes: `bound` in ulp for each dtype, and what it `keeps` the same bits under.

    qkv's backends are such objects. `keeps` may hold "threads", "batch companions" and "layouts"; what is
    not claimed is checked within the bound instead of bit by bit.
    """

    @property
    def bound(self) -> Mapping[torch.dtype, float]: ...

    @property
    def keeps(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Published:
    """Claims for a backend that is not qkv's own.

    >>> Published(bound={torch.float32: 4.0}).keeps
    ()
    """

    bound: Mapping[torch.dtype, float]
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """attend: called as `qkv.attention` is, `backend=` included. backends: the names it knows, with their claims.

    A call that a backend cannot run must raise `qkv.errors.BackendRefused` with reasons: it is counted, not failed.
    """

    attend: Callable[..., Any]
    backends: Mapping[str, Claims] = field(default_factory=dict)

    @classmethod
    def of_qkv(cls) -> Subject:
        """qkv itself with every backend that it has."""
        from qkv import attention
        from qkv.backends import BACKENDS

        return cls(attention, BACKENDS)

    def bound(self, backend: str) -> Mapping[torch.dtype, float]:
        return self.backends[backend].bound

    def keeps(self, backend: str, what: str) -> bool:
        return what in self.backends[backend].keeps


@dataclass(frozen=True)
class Case:
    """One call with one backend."""

    backend: str
    call: CallCase

    def __repr__(self) -> str:
        return f"Case({self.backend!r}, {self.call!r})"


class Answer(NamedTuple):
    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


def ask(subject: Subject, case: Case, *, lse: bool = False, weights: bool = False, **changes: Any) -> Answer:
    """The case's call, some of its arguments changed, taken apart into out, lse and weights.

    lse is only asked for where it exists, with softmax.
    """
    lse = lse and case.call.kind == "softmax"
    given = {**case.call.kwargs, **changes}
    answer = subject.attend(
        given.pop("query"),
        given.pop("key"),
        given.pop("value"),
        backend=case.backend,
        return_lse=lse,
        return_weights=weights,
        **given,
    )
    if not (lse or weights):
        assert isinstance(answer, Tensor), f"out alone should be a tensor, not {type(answer).__name__}"
        return Answer(answer)
    assert isinstance(answer, tuple), f"should be a tuple (out, lse, weights), not {type(answer).__name__}"
    assert len(answer) == 1 + lse + weights, f"should be a tuple of {1 + lse + weights}, not of {len(answer)}"
    return Answer(answer[0], answer[1] if lse else None, answer[-1] if weights else None)


def gradients(subject: Subject, case: Case, cotangent: Tensor | None = None, **changes: Any) -> dict[str, Tensor]:
    """d Σ(cotangent · out) for query, key, value and, where the call has them, bias and sink."""
    leaves = leaves_of(case.call, **changes)
    out = ask(subject, case, **arguments(case.call, leaves)).out
    return differentiate(out, leaves, cotangent_like(out) if cotangent is None else cotangent)


def leaves_of(call: CallCase, dtype: torch.dtype | None = None, **changes: Tensor) -> dict[str, Tensor]:
    """The call's tensors as fresh leaves that require gradients."""
    given = {**call.kwargs, **changes}
    found = {name: given[name] for name in ("query", "key", "value", "bias") if given[name] is not None}
    sink = getattr(call.built_similarity, "sink", None)
    if isinstance(sink, Tensor):
        found["sink"] = sink
    return {name: tensor.detach().to(dtype or tensor.dtype).clone().requires_grad_() for name, tensor in found.items()}


def arguments(call: CallCase, leaves: dict[str, Tensor]) -> dict[str, Any]:
    """`leaves` as arguments of attention: the sink goes back into its similarity."""
    given: dict[str, Any] = {name: leaf for name, leaf in leaves.items() if name != "sink"}
    if "sink" in leaves:
        similarity = call.built_similarity
        given["similarity"] = type(similarity)(similarity.scale, similarity.softcap, leaves["sink"])
    return given


def cotangent_like(out: Tensor) -> Tensor:
    """A fixed cotangent without zeros and without symmetry."""
    numbers = torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape)
    return torch.cos(1.7 * numbers + 0.3).to(out.dtype)


def differentiate(
    out: Tensor, leaves: dict[str, Tensor], cotangent: Tensor, *, missing: bool = True
) -> dict[str, Tensor]:
    """The gradients of all leaves; one that is missing counts as zero, unless `missing` forbids it."""
    found = torch.autograd.grad(out, list(leaves.values()), cotangent, retain_graph=True, allow_unused=True)
    for name, grad in zip(leaves, found, strict=True):
        assert missing or grad is not None, f"{name} has no gradient at all: it is not part of the graph"
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def gradient_noise(call: CallCase, dtype: torch.dtype, backend: str = "") -> float:
    """Below this a gradient is rounding: the size of the terms that cancel in it, times a few eps.

    The gradient of a softmax is p_j (dp_j − Σ_i p_i dp_i): with one key the difference is 0, and what a
    kernel leaves of it is a rounding error of dp = cotangent · v, passed on to query and key. The backend linear sums the
    features of a polynomial, and divides by a Σ_j sim that may be close to 0 and off by what cancels in it.
    """
    query, key, value = (float(tensor.detach().nan_to_num(0, 0, 0).abs().max()) for tensor in call.tensors)
    noise = 8 * torch.finfo(dtype).eps * value * call.width_v * max(1.0, query, key)
    if backend != "linear" or call.kind != "polynomial":
        return noise
    out = call.measure.parts["out"]
    cancelling = torch.where(out.reach > 0, out.condition / out.reach, 1.0).nan_to_num(1.0, 1.0)
    return noise * _steepness(call) * max([1.0, *cancelling.flatten().tolist()])


def _steepness(call: CallCase) -> float:
    """The largest Σ_i or Σ_j of |∂ sim(q_i, k_j)| / |Σ_j sim(q_i, k_j)|, by the product q_i·k_j; at least 1."""
    similarity = call.built_similarity
    assert isinstance(similarity, Polynomial)
    degree, offset = similarity.degree, similarity.offset
    query, key = (tensor.detach().double().nan_to_num(0, 0, 0) for tensor in call.tensors[:2])
    if query.dim() == 4:
        key = key.repeat_interleave(query.shape[1] // max(1, key.shape[1]), dim=1)
    inside = query @ key.mT + offset
    attended = as_called(call.attended, call.dims)
    below = torch.where(attended, inside**degree, 0.0).sum(-1, keepdim=True).abs()
    slopes = torch.where(attended & (below > 0), degree * inside.abs() ** max(0, degree - 1) / below, 0.0)
    return max([1.0, *(float(slopes.sum(axis).max()) for axis in (-1, -2) if slopes.numel())])


def apart(found: Tensor, wanted: Tensor) -> float:
    """The largest difference; the same infinity in both, as of a gradient beyond float16's range, is none."""
    rounded = wanted.to(found.dtype)
    same = (found == rounded) | (found.isnan() & rounded.isnan())
    off = torch.where(same & ~rounded.isfinite(), 0.0, (found.detach().double() - wanted.double()).abs())
    return float(off.nan_to_num(torch.inf, torch.inf).max()) if off.numel() else 0.0


def assert_same_bits(found: Tensor | None, wanted: Tensor | None, what: str) -> None:
    """Equal everywhere, NaN in the same places; 0 and −0 count as equal."""
    if wanted is None or found is None:
        assert found is wanted, f"{what}: only one of the two calls gave a result"
        return
    assert found.shape == wanted.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    differs = (found != wanted) & ~(found.isnan() & wanted.isnan())
    if bool(differs.any()):
        where = tuple(int(i) for i in differs.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(differs.sum())} of {differs.numel()} numbers differ, the first at {where}: "
            f"{found[where].item()!r} instead of {wanted[where].item()!r}"
        )
