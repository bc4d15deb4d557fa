"""Dispatch: which backend runs a call, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ..cost.machine import Machine, active_machine, on_change
from ..cost.price import Cost, readable_bytes
from ..cost.readable import readable_seconds
from ..errors import BackendRefused
from ..inputs import AttentionInputs
from ..notebook import table
from . import BACKENDS, Backend, linear
from .base import CHOSEN, exact_counts

_MAX_CHOSEN = 4096
_MAX_KEYS = 1 << 30
on_change(CHOSEN.clear)


@dataclass(frozen=True)
class Candidate:
    """A backend considered for a call.

    Args:
        backend: Its name.
        reasons: Why it cannot run the call; empty if it can.
        cost: What the call costs; None if it cannot run.
        seconds: Predicted time: from the calibrated machine if there is one, otherwise a rough built-in estimate.
        engine: The name under which a calibration has its price.
    """

    backend: str
    reasons: tuple[str, ...]
    cost: Cost | None
    seconds: float = float("inf")
    engine: str = ""


@dataclass(frozen=True)
class Choice:
    """The result of dispatch.

    Args:
        backend: The name of the backend that runs.
        requested: The `backend=` argument of the call.
        candidates: All backends, each with its reasons against the call or its cost.
        call: The call in a line.
        crossover: N*, the number of keys from which a state is cheaper than scores; None if there is none.
        machine: The calibrated machine whose figures predict the seconds; None if built-in figures are used.
    """

    backend: str
    requested: str
    candidates: tuple[Candidate, ...]
    call: str
    crossover: int | None = None
    machine: Machine | None = None

    @property
    def cost(self) -> Cost:
        """The cost of the call on the chosen backend."""
        cost = self._chosen.cost
        assert cost is not None
        return cost

    @property
    def seconds(self) -> float:
        """Predicted time on the chosen backend; a rough estimate if `machine` is None."""
        return self._chosen.seconds

    @property
    def engine(self) -> str:
        """The name under which a calibration has the price of the chosen backend."""
        return self._chosen.engine

    @property
    def error(self) -> float | None:
        """Median relative error of predictions for this engine during calibration; None without a prediction."""
        return None if self.machine is None else self.machine.errors.get(self.engine)

    @property
    def _chosen(self) -> Candidate:
        return next(c for c in self.candidates if c.backend == self.backend)

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Why each of the other backends was not chosen."""
        return {c.backend: self._why_not(c) for c in self.candidates if c.backend != self.backend}

    def _why_not(self, candidate: Candidate) -> tuple[str, ...]:
        if candidate.reasons:
            return candidate.reasons
        if self.requested != "auto":
            return (f"the call says backend={self.requested!r}",)
        return (f"slower: about {readable_seconds(candidate.seconds)}",)

    def __str__(self) -> str:
        cost = self.cost
        lines = [
            self.call,
            f"-> {self.backend}: {BACKENDS[self.backend].summary}",
            f"   {cost.flops:.3g} flops, {readable_bytes(cost.extra)} besides inputs and output, {self._time()}",
        ]
        if cost.note:
            lines.append(f"   {cost.note}")
        if self.crossover is not None:
            lines.append(f"   N* = {self.crossover}: with at least that many keys, a state is cheaper than scores")
        for backend, reasons in self.reasons.items():
            lines += [f"   not {backend}: {reason}" for reason in reasons]
        return "\n".join(lines)

    def _time(self) -> str:
        if self.machine is None:
            return f"about {readable_seconds(self.seconds)} on one core (not calibrated)"
        error = "" if self.error is None else f" ± {self.error:.0%}"
        return f"about {readable_seconds(self.seconds)}{error}, as measured here"

    def _repr_html_(self) -> str:
        rows = [
            (
                each.backend,
                "chosen" if each.backend == self.backend else "; ".join(self._why_not(each)),
                f"{each.cost.flops:.3g}" if each.cost else "",
                readable_bytes(each.cost.extra) if each.cost else "",
            )
            for each in self.candidates
        ]
        return table(rows, ("backend", "why", "flops", "extra memory"), self.call, numbers=(2, 3))


def choose(call: AttentionInputs) -> Backend:
    """The backend that runs this call; the choice is remembered by the call's signature."""
    if call.traced:
        # A traced program must not depend on choices remembered from earlier calls.
        return BACKENDS[_select(call, _candidates(call))]
    backend = CHOSEN.get(call.signature)
    if backend is None:
        backend = BACKENDS[_select(call, _candidates(call))]
        if len(CHOSEN) >= _MAX_CHOSEN:
            CHOSEN.clear()
        CHOSEN[call.signature] = backend
    return backend


def explain_choice(call: AttentionInputs) -> Choice:
    """The choice of `choose`, with all candidates, reasons and exact costs."""
    chosen = _select(call, _candidates(call))
    # Sizes alone decide, as in `choose`; the costs shown are exact.
    with nullcontext() if call.traced else exact_counts():
        candidates = _candidates(call)
    machine = pricing_machine({c.engine: c.cost for c in candidates if c.cost is not None})
    return Choice(chosen, call.backend, tuple(candidates), describe(call), crossover(call), machine)


def crossover(call: AttentionInputs) -> int | None:
    """N*: the least number of keys, with queries in proportion, for which a state is cheaper than scores.

    None if `linear` cannot run the call, or if a state is never cheaper. The costs compared are those that `choose` and
    the backend compare, so both change to a state exactly there.
    """
    if call.state is not None or BACKENDS["linear"].reasons_against(call):
        return None
    others = [b for b in BACKENDS.values() if b.name != "linear" and not b.reasons_against(call)]

    def is_cheapest(keys: int) -> bool:
        extent = call.extent
        queries = max(1, round(keys * extent.len_q / max(1, extent.len_k)))
        longer = call._replace(extent=extent._replace(len_q=queries, len_k=keys))
        costs = {backend.name: backend.cost(longer) for backend in (BACKENDS["linear"], *others)}
        by_state, *rest = comparable_seconds({engine_name(name, call, cost): cost for name, cost in costs.items()})
        return linear.state_is_cheaper(longer) and by_state < min(rest)

    if not is_cheapest(_MAX_KEYS):
        return None
    low, high = 0, _MAX_KEYS  # not the cheapest at low, the cheapest at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_cheapest(middle) else (middle, high)
    return high


def _candidates(call: AttentionInputs) -> list[Candidate]:
    """All backends with their reasons or costs, and with seconds that can be compared."""
    reasons = {backend.name: backend.reasons_against(call) for backend in BACKENDS.values()}
    if call.backend == "auto" and not reasons["sdpa"]:
        reasons["blockwise"] = (*reasons["blockwise"], "sdpa runs the same call in one kernel, which is faster")
    costs = {name: BACKENDS[name].cost(call) for name, against in reasons.items() if not against}
    engines = {name: engine_name(name, call, cost) for name, cost in costs.items()}
    seconds = dict(zip(costs, comparable_seconds({engines[name]: costs[name] for name in costs}), strict=True))
    return [
        Candidate(name, against, costs.get(name), seconds.get(name, float("inf")), engines.get(name, ""))
        for name, against in reasons.items()
    ]


def engine_name(backend: str, call: AttentionInputs, cost: Cost) -> str:
    """The name under which a calibration has the price of a backend for calls of this kind."""
    name = f"{backend}.{call.similarity.kind}.{str(call.query.dtype).removeprefix('torch.')}"
    return f"{name}.{cost.mode}" if cost.mode else name


def comparable_seconds(costs: Mapping[str, Cost]) -> list[float]:
    """Seconds of each engine: predicted by the calibrated machine if it has all prices, otherwise by built-in rates."""
    machine = pricing_machine(costs)
    if machine is None:
        return [cost.seconds for cost in costs.values()]
    return [machine.prices[engine].seconds(cost) for engine, cost in costs.items()]


def pricing_machine(engines: Iterable[str]) -> Machine | None:
    """The calibrated machine, if it has prices for all these engines with the current number of threads."""
    # Under torch.compile reading the machine would break the graph.
    machine = None if torch.compiler.is_compiling() else active_machine()
    if machine is None or machine.threads != torch.get_num_threads():
        return None
    return machine if machine.prices.keys() >= set(engines) else None


def _select(call: AttentionInputs, candidates: list[Candidate]) -> str:
    """`auto` chooses the fastest backend; a backend given by name runs or is refused."""
    if call.backend == "auto":
        # A loop, since torch.compile does not trace min(..., key=...).
        fastest, least = "", float("inf")
        for candidate in candidates:
            if candidate.cost is not None and candidate.seconds < least:
                fastest, least = candidate.backend, candidate.seconds
        return fastest
    requested = next(c for c in candidates if c.backend == call.backend)
    if requested.reasons:
        hint = f"backend='auto' chooses among: {', '.join(c.backend for c in candidates if not c.reasons)}"
        raise refusal("backend", call.backend, f"a backend that can run {describe(call)}", requested.reasons, hint)
    return requested.backend


def refusal(argument: str, given: str, wanted: str, reasons: tuple[str, ...], hint: str) -> BackendRefused:
    """The error for a backend or a strategy that was requested and cannot run the call."""
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    return BackendRefused(f"{argument}: got {given!r}, wanted {wanted}. Against it:{listed}\nHint: {hint}.", reasons)


def describe(call: AttentionInputs) -> str:
    """Shapes, dtype, similarity and mask of the call in a line."""
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
    if call.state is not None:
        parts.append(f"state={call.signature[7][3][0][0]}")
    if call.forgetting is not None:
        parts.append("log_decay")
    if call.score_rule is not None:
        parts.append(f"bias={getattr(call.score_rule.function, '__name__', 'a function')}")
    if call.bias is not None:
        parts.append(f"bias {tuple(call.bias.shape)}")
    if call.dropout:
        parts.append(f"dropout {call.dropout:g}")
    return ", ".join(parts)
