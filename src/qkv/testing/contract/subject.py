"""What the contract tests (a function with `qkv.attention`'s signature and its backends), the checks, the report."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from qkv.errors import BackendRefused
from qkv.similarity import Polynomial

from ..call_case import CallCase
from ..tolerance import Answer, repeat_heads

GATES = ("rate", "log_gate", "beta")  # the tensors of a state
LOGITS = {"sink": "sink", "own bias": "bias", "log_decay": "log_decay"}  # the tensors of a similarity, and their fields


class Claims(Protocol):
    """What a backend publishes: `bound` in ulp for each dtype, and `same_bits_across`, what does not change the bits.

    qkv's backends are such objects. `same_bits_across` may contain "threads", "batch" (the other rows of the
    batch) and "layouts"; what is not claimed is checked within the bound instead of bit by bit.
    """

    @property
    def bound(self) -> Mapping[torch.dtype, float]: ...

    @property
    def same_bits_across(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Published:
    """Claims for a backend that is not qkv's own.

    >>> Published(bound={torch.float32: 4.0}).same_bits_across
    ()
    """

    bound: Mapping[torch.dtype, float]
    same_bits_across: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """An attention function and its backends.

    Args:
        attend: called as `qkv.attention` is, with `backend=`. A call that a backend cannot run must raise
            `qkv.errors.BackendRefused` with reasons: it counts as refused, not as failed.
        backends: the names that `backend=` takes, each with its claims.
    """

    attend: Callable[..., Any]
    backends: Mapping[str, Claims] = field(default_factory=dict)

    @classmethod
    def of_qkv(cls) -> Subject:
        """qkv itself with all its backends."""
        from qkv import attention
        from qkv.backends import BACKENDS

        return cls(attention, BACKENDS)

    def bound(self, backend: str) -> Mapping[torch.dtype, float]:
        return self.backends[backend].bound

    def same_bits_across(self, backend: str, what: str) -> bool:
        return what in self.backends[backend].same_bits_across


@dataclass(frozen=True)
class BackendCase:
    """One call with one backend."""

    backend: str
    call: CallCase

    def __repr__(self) -> str:
        return f"Case({self.backend!r}, {self.call!r})"


def run_case(
    subject: Subject, case: BackendCase, *, lse: bool = False, weights: bool = False, **changes: Any
) -> Answer:
    """Run the case's call, with some arguments changed; lse is returned only for softmax."""
    lse = lse and case.call.kind == "softmax"
    given = {**case.call.kwargs, **changes}
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    answer = subject.attend(*tensors, backend=case.backend, return_lse=lse, return_weights=weights, **given)
    if not (lse or weights):
        assert isinstance(answer, Tensor), f"out alone should be a tensor, not {type(answer).__name__}"
        return Answer(answer)
    assert isinstance(answer, tuple), f"should be a tuple (out, lse, weights), not {type(answer).__name__}"
    assert len(answer) == 1 + lse + weights, f"should be a tuple of {1 + lse + weights}, not of {len(answer)}"
    return Answer(answer[0], answer[1] if lse else None, answer[-1] if weights else None)


def gradients(
    subject: Subject, case: BackendCase, cotangent: Tensor | None = None, *, missing: bool = True, **changes: Any
) -> dict[str, Tensor]:
    """d Σ(cotangent · out) for query, key, value and, where the call has them, bias and sink."""
    leaves = leaves_of(case.call, **changes)
    out = run_case(subject, case, **arguments(case.call, leaves)).out
    return differentiate(out, leaves, cotangent_like(out) if cotangent is None else cotangent, missing=missing)


def leaves_of(call: CallCase, dtype: torch.dtype | None = None, **changes: Tensor) -> dict[str, Tensor]:
    """The call's tensors as new leaves that require gradients."""
    given = {**call.kwargs, **changes}
    found = {name: given[name] for name in ("query", "key", "value", "bias") if isinstance(given[name], Tensor)}
    for name, field_name in LOGITS.items():
        if isinstance(logits := getattr(call.built_similarity, field_name, None), Tensor):
            found[name] = logits
    found |= {name: t for name in GATES if isinstance(t := getattr(call.built_state, name, None), Tensor)}
    return {name: tensor.detach().to(dtype or tensor.dtype).clone().requires_grad_() for name, tensor in found.items()}


def arguments(call: CallCase, leaves: dict[str, Tensor]) -> dict[str, Any]:
    """`leaves` as arguments of attention; a sink and the like become part of the similarity, gates of the state."""
    given: dict[str, Any] = {name: leaf for name, leaf in leaves.items() if name not in (*LOGITS, *GATES)}
    if call.built_state is not None:
        given["state"] = replace(call.built_state, **{name: leaf for name, leaf in leaves.items() if name in GATES})
    own = {field_name: leaves[name] for name, field_name in LOGITS.items() if name in leaves}
    if own:
        given["similarity"] = replace(call.built_similarity, **own)
    return given


def cotangent_like(out: Tensor) -> Tensor:
    """A fixed cotangent without zeros and without symmetry."""
    numbers = torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape)
    return torch.cos(1.7 * numbers + 0.3).to(out.dtype)


def differentiate(
    out: Tensor, leaves: dict[str, Tensor], cotangent: Tensor, *, missing: bool = True
) -> dict[str, Tensor]:
    """The gradients of all leaves; a missing one counts as zero, unless `missing` is False."""
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "materialize_grads": missing}
    found = torch.autograd.grad(out, list(leaves.values()), cotangent, **options)
    for name, grad in zip(leaves, found, strict=True):
        assert grad is not None, f"{name} has no gradient: it is not part of the graph"
    return dict(zip(leaves, found, strict=True))


def gradient_noise(call: CallCase, dtype: torch.dtype, backend: str = "") -> float:
    """Below this a gradient is rounding error: the size of the terms that cancel in it, times a few eps.

    The gradient of a softmax is p_j (dp_j − Σ_i p_i dp_i): with one key the difference is 0, and a kernel
    returns the rounding error of dp = cotangent · v, multiplied by query and key. The linear backend sums
    features of a polynomial and divides by a Σ_j sim that may cancel to a number close to 0.
    """
    query, key, value = (float(tensor.detach().nan_to_num(0, 0, 0).abs().max()) for tensor in call.tensors)
    noise = 8 * torch.finfo(dtype).eps * value * call.width_v * max(1.0, query, key)
    if backend != "linear" or call.kind != "polynomial":
        return noise
    out = call.error_bounds.parts["out"]
    cancellation = torch.where(out.magnitude > 0, out.condition / out.magnitude, 1.0).nan_to_num(1.0, 1.0)
    return noise * _steepness(call) * max([1.0, *cancellation.flatten().tolist()])


def _steepness(call: CallCase) -> float:
    """The largest Σ_i or Σ_j of |∂ sim(q_i, k_j) / ∂ (q_i·k_j)| / |Σ_j sim(q_i, k_j)|; at least 1."""
    similarity = call.built_similarity
    assert isinstance(similarity, Polynomial)
    degree, offset = similarity.degree, similarity.offset
    query, key = (tensor.detach().double().nan_to_num(0, 0, 0) for tensor in call.tensors[:2])
    inside = query @ repeat_heads(key, call.heads_q).mT + offset
    below = torch.where(call.keep, inside**degree, 0.0).sum(-1, keepdim=True).abs()
    slopes = torch.where(call.keep & (below > 0), degree * inside.abs() ** max(0, degree - 1) / below, 0.0)
    return max([1.0, *(float(slopes.sum(axis).max()) for axis in (-1, -2) if slopes.numel())])


def max_difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference; equal infinities, as of a gradient that overflows float16, count as equal."""
    rounded = wanted.to(found.dtype)
    same = (found == rounded) | (found.isnan() & rounded.isnan())
    off = torch.where(same & ~rounded.isfinite(), 0.0, (found.detach().double() - wanted.double()).abs())
    return float(off.nan_to_num(torch.inf, torch.inf).max()) if off.numel() else 0.0


def assert_same_bits(found: Tensor | None, wanted: Tensor | None, what: str) -> None:
    """Equal everywhere, NaN in the same places; 0 and −0 count as equal."""
    if wanted is None or found is None:
        assert found is wanted, f"{what}: only one of the two calls returned a result"
        return
    assert found.shape == wanted.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    differs = (found != wanted) & ~(found.isnan() & wanted.isnan())
    if bool(differs.any()):
        where = tuple(int(i) for i in differs.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(differs.sum())} of {differs.numel()} numbers differ, the first at {where}: "
            f"{found[where].item()!r} instead of {wanted[where].item()!r}"
        )


Body = Callable[[Subject, BackendCase], None]


@dataclass(frozen=True)
class Check:
    """One promise as a function of a subject and a case that raises AssertionError when it is broken.

    promise: its number in the list of qkv's promises. applies: which calls it can check. wants: what it
    requests besides `out`: "lse", "weights", "grad". extra_calls: other calls that it makes with the same
    backend. refusable: False when the check makes no call that a backend could refuse.
    """

    name: str
    promise: int
    body: Body
    applies: Callable[[CallCase], bool] = lambda call: True
    wants: frozenset[str] = frozenset()
    extra_calls: Callable[[CallCase], tuple[CallCase, ...]] = lambda call: ()
    refusable: bool = True

    def __call__(self, subject: Subject, case: BackendCase) -> None:
        self.body(subject, case)

    @property
    def summary(self) -> str:
        """The promise in one sentence."""
        return (self.body.__doc__ or self.name).strip().splitlines()[0]


_REGISTERED: dict[str, Check] = {}


def check(promise: int, *, wants: Iterable[str] = (), **fields: Any) -> Callable[[Body], Body]:
    """Register a function of (subject, case) as a check, under its own name; fields: other fields of `Check`."""

    def register(body: Body) -> Body:
        _REGISTERED[body.__name__] = Check(body.__name__, promise, body, wants=frozenset(wants), **fields)
        return body

    return register


def checks() -> tuple[Check, ...]:
    """Every check, by promise."""
    return tuple(sorted(_REGISTERED.values(), key=lambda one: one.promise))


@dataclass(frozen=True)
class Outcome:
    """The result of one check on one case: "passed", "failed" or "refused", and why."""

    check: str
    case: BackendCase
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """All outcomes; prints as a table of backends and checks."""

    outcomes: tuple[Outcome, ...] = field(repr=False)

    def of(self, status: str) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if one.status == status)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return self.of("failed")

    @property
    def refusals(self) -> tuple[Outcome, ...]:
        return self.of("refused")

    def __str__(self) -> str:
        counts = Counter((one.case.backend, one.check, one.status) for one in self.outcomes)
        pairs = dict.fromkeys((one.case.backend, one.check) for one in self.outcomes)
        lines = [f"{'backend':10} {'check':36} {'passed':>7} {'failed':>7} {'refused':>8}"]
        for pair in pairs:
            passed, failed, refused = (counts[*pair, status] for status in ("passed", "failed", "refused"))
            lines.append(f"{pair[0]:10} {pair[1]:36} {passed:7} {failed:7} {refused:8}")
        return "\n".join(lines)

    def raise_for_failures(self, most: int = 3) -> None:
        """AssertionError with the first few failures in full, and how many there are."""
        if self.failures:
            shown = "\n\n".join(f"{one.check} on {one.case!r}\n{one.detail}" for one in self.failures[:most])
            raise AssertionError(f"{len(self.failures)} of {len(self.outcomes)} outcomes failed.\n\n{shown}")


def run(
    subject: Subject, cases: Iterable[CallCase], *, backends: Iterable[str] = (), only: Iterable[str] = ()
) -> Report:
    """Run every check on every case that it applies to, with every backend.

    Args:
        subject: the function to test.
        cases: for example `contract_cases()`.
        backends: names of the backends to run; all by default.
        only: names of the checks to run; all by default.

    Raises:
        ValueError: for an unknown name in `only`.
    """
    names, outcomes = frozenset(only), []
    unknown = names - _REGISTERED.keys()
    if unknown:
        raise ValueError(f"only: got {sorted(unknown)}, wanted names of checks: {sorted(_REGISTERED)}")
    chosen = [one for one in checks() if not names or one.name in names]
    calls = tuple(cases)
    for backend in tuple(backends) or tuple(subject.backends):
        for one in chosen:
            outcomes += [_outcome(one, subject, BackendCase(backend, call)) for call in calls if one.applies(call)]
    return Report(tuple(outcomes))


def _outcome(one: Check, subject: Subject, case: BackendCase) -> Outcome:
    try:
        one(subject, case)
    except BackendRefused as refusal:
        status, reasons = ("refused", refusal.reasons) if refusal.reasons else ("failed", ["refused without a reason"])
        return Outcome(one.name, case, status, "; ".join(reasons))
    except AssertionError as broken:
        return Outcome(one.name, case, "failed", str(broken))
    except Exception:
        # A crash of the subject counts as a failure.
        return Outcome(one.name, case, "failed", traceback.format_exc(limit=-4))
    return Outcome(one.name, case, "passed")
