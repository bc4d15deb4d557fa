"""Which backend runs a call, and why not the others."""

from __future__ import annotations

import html
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from ..cost.machine import Machine, active, when_changed
from ..cost.price import Cost, readable_bytes
from ..cost.readable import readable_seconds
from ..errors import BackendRefused
from ..inputs import AttentionInputs
from . import BACKENDS, Backend, linear
from .base import exact_counts

_CHOSEN: dict[tuple, Backend] = {}
_MAX_CHOSEN = 4096
_MAX_KEYS = 1 << 30
when_changed(_CHOSEN.clear)


@dataclass(frozen=True)
class Candidate:
    """A backend beside the call: the reasons against it, or its cost. seconds: predicted from the machine's measured
    figures, or roughly from built-in ones."""

    backend: str
    reasons: tuple[str, ...]
    cost: Cost | None
    seconds: float = float("inf")


@dataclass(frozen=True)
class Choice:
    """What `auto` (or the backend that was asked for) came to. `backend` is the name of the backend that runs."""

    backend: str
    asked: str
    candidates: tuple[Candidate, ...]
    call: str
    crossover: int | None = None  # N*: the number of keys from which on a state is cheaper than scores
    machine: Machine | None = (
        None  # whose measured figures predict the seconds; None: built-in figures order the backends
    )

    @property
    def cost(self) -> Cost:
        """The cost of the backend that was taken."""
        cost = next(c.cost for c in self.candidates if c.backend == self.backend)
        assert cost is not None
        return cost

    @property
    def seconds(self) -> float:
        """How long the backend that was taken takes: predicted where `machine` is given, a rough figure otherwise."""
        return next(c.seconds for c in self.candidates if c.backend == self.backend)

    @property
    def error(self) -> float | None:
        """How far predictions for this engine were off when the machine was calibrated, in the middle of the calls that
        were tried, as a part; None without a prediction."""
        if self.machine is None or self.cost.work is None:
            return None
        return self.machine.errors.get(self.cost.work().engine)

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Why each of the other backends was not taken."""
        return {c.backend: self._why_not(c) for c in self.candidates if c.backend != self.backend}

    def _why_not(self, candidate: Candidate) -> tuple[str, ...]:
        if candidate.reasons:
            return candidate.reasons
        if self.asked != "auto":
            return (f"backend={self.asked!r} was asked for",)
        return (f"dearer: about {readable_seconds(candidate.seconds)}",)

    def __str__(self) -> str:
        cost = self.cost
        lines = [
            self.call,
            f"-> {self.backend}: {BACKENDS[self.backend].summary}",
            (f"   {cost.flops:.3g} flops, {readable_bytes(cost.extra)} beside inputs and output, {self._time()}"),
        ]
        if self.crossover is not None:
            lines.append(f"   N* = {self.crossover}: from so many keys on, sums of features are cheaper than scores")
        for backend, reasons in self.reasons.items():
            lines += [f"   not {backend}: {reason}" for reason in reasons]
        return "\n".join(lines)

    def _time(self) -> str:
        if self.machine is None:
            return f"about {readable_seconds(self.seconds)} on one core (not calibrated)"
        error = self.error
        return (
            f"about {readable_seconds(self.seconds)}"
            + ("" if error is None else f" ± {error:.0%}")
            + ", as measured here"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th scope='row'>{html.escape(c.backend)}</th>"
            f"<td>{'taken' if c.backend == self.backend else html.escape('; '.join(self._why_not(c)))}</td>"
            f"<td>{f'{c.cost.flops:.3g}' if c.cost else ''}</td>"
            f"<td>{readable_bytes(c.cost.extra) if c.cost else ''}</td></tr>"
            for c in self.candidates
        )
        head = "".join(f"<th scope='col'>{title}</th>" for title in ("backend", "why", "flops", "extra memory"))
        return f"<table><caption>{html.escape(self.call)}</caption><tr>{head}</tr>{rows}</table>"


def choose(call: AttentionInputs) -> Backend:
    """The backend that runs this call; remembered by the call's signature."""
    if call.traced:
        # A program that is being traced must not come to depend on what was remembered before.
        return BACKENDS[_taken(call, _candidates(call))]
    backend = _CHOSEN.get(call.signature)
    if backend is None:
        backend = BACKENDS[_taken(call, _candidates(call))]
        if len(_CHOSEN) >= _MAX_CHOSEN:
            _CHOSEN.clear()
        _CHOSEN[call.signature] = backend
    return backend


def explain_choice(call: AttentionInputs) -> Choice:
    """What `choose` comes to, with everything that it looked at."""
    taken = _taken(call, _candidates(call))
    # What is taken follows from the sizes, as in every call of the signature; what it costs is looked at closely.
    with nullcontext() if call.traced else exact_counts():
        candidates = [_with_exact_work(candidate) for candidate in _candidates(call)]
    machine = active()
    machine = machine if _predicted([c.cost for c in candidates]) else None
    return Choice(taken, call.backend, tuple(candidates), describe(call), crossover(call), machine)


def _with_exact_work(candidate: Candidate) -> Candidate:
    """With its work as it is now, and not as it would be when somebody asks."""
    if candidate.cost is None or candidate.cost.work is None:
        return candidate
    work = candidate.cost.work()
    return replace(candidate, cost=replace(candidate.cost, work=lambda: work))


def crossover(call: AttentionInputs) -> int | None:
    """N*: how many keys, with queries in proportion, make sums of features cheaper than scores, however those are made;
    None where `linear` cannot run, or where that never happens.

    Costs are compared as `choose` and the backend itself compare them, so that they turn to sums just there.
    """
    if BACKENDS["linear"].reasons_against(call):
        return None
    others = [
        backend for backend in BACKENDS.values() if backend.name != "linear" and not backend.reasons_against(call)
    ]

    def is_cheapest(keys: int) -> bool:
        extent = call.extent
        queries = max(1, round(keys * extent.len_q / max(1, extent.len_k)))
        longer = call._replace(extent=extent._replace(len_q=queries, len_k=keys))
        own, *rest = seconds_of([backend.cost(longer) for backend in (BACKENDS["linear"], *others)])
        return linear.sums_are_cheaper(longer) and own < min(rest)

    if not is_cheapest(_MAX_KEYS):
        return None
    low, high = 0, _MAX_KEYS  # not the cheapest at low, the cheapest at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_cheapest(middle) else (middle, high)
    return high


def _candidates(call: AttentionInputs) -> list[Candidate]:
    """Backends with their reasons or costs, and with seconds that can be compared."""
    reasons = {backend.name: backend.reasons_against(call) for backend in BACKENDS.values()}
    if call.backend == "auto" and not reasons["sdpa"]:
        reasons["blockwise"] = (*reasons["blockwise"], "sdpa computes the same in one kernel, faster")
    costs = {name: None if against else BACKENDS[name].cost(call) for name, against in reasons.items()}
    known = {name: cost for name, cost in costs.items() if cost is not None}
    seconds = dict(zip(known, seconds_of(list(known.values())), strict=True))
    return [Candidate(name, against, costs[name], seconds.get(name, float("inf"))) for name, against in reasons.items()]


def seconds_of(costs: list[Cost]) -> list[float]:
    """Predicted from the machine's figures if it has some for all of them; otherwise built-in ones compare them."""
    return _predicted(costs) or [cost.seconds for cost in costs]


def _predicted(costs: Sequence[Cost | None]) -> list[float] | None:
    # A program that is being traced asks nobody: it has one backend, and a question would end the graph.
    machine = None if torch.compiler.is_compiling() else active()
    if machine is None or machine.threads != torch.get_num_threads():
        return None
    found = [machine.seconds(cost.work()) if cost.work else None for cost in costs if cost is not None]
    known = [seconds for seconds in found if seconds is not None]
    return known if known and len(known) == len(found) else None


def _taken(call: AttentionInputs, candidates: list[Candidate]) -> str:
    """`auto` takes the cheapest; a backend that was asked for by name runs or is refused."""
    if call.backend != "auto":
        return _requested(call, candidates)
    taken, least = "", float("inf")
    for candidate in candidates:
        if candidate.cost is not None and candidate.seconds < least:
            taken, least = candidate.backend, candidate.seconds
    return taken


def _requested(call: AttentionInputs, candidates: list[Candidate]) -> str:
    asked = next(c for c in candidates if c.backend == call.backend)
    if asked.reasons:
        others = ", ".join(c.backend for c in candidates if not c.reasons)
        listed = "".join(f"\n  - {reason}" for reason in asked.reasons)
        raise BackendRefused(
            f"backend: got {call.backend!r}, wanted a backend that can run {describe(call)}. Against it:{listed}\n"
            f"Hint: backend='auto' chooses among: {others}.",
            asked.reasons,
        )
    return asked.backend


def describe(call: AttentionInputs) -> str:
    """The call in a line."""
    extent = call.extent
    heads = f"{extent.heads}" if extent.heads == call.heads_kv else f"{extent.heads}/{call.heads_kv}"
    parts = [
        f"{extent.batch} x {heads} heads",
        f"{extent.len_q} queries x {extent.len_k} keys",
        f"width {call.width}" if call.width == call.width_v else f"width {call.width}, values {call.width_v}",
        str(call.query.dtype).removeprefix("torch."),
        repr(call.similarity),
    ]
    if call.mask is not None:
        parts.append(repr(call.mask))
    if call.bias is not None:
        parts.append(f"bias {tuple(call.bias.shape)}")
    if call.dropout:
        parts.append(f"dropout {call.dropout:g}")
    return ", ".join(parts)
