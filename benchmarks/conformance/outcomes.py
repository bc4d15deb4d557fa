"""The outcome of each case in qkv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx.backend.test.runner import Runner

import qkv
from qkv.backends import BACKENDS
from qkv.errors import BackendRefused
from qkv.testing import oracle
from qkv.testing.tolerance import assert_close_to_oracle, error_bounds

from . import attention, linear
from .cases import Case, Refused, base_cases, to_tensor

PASSED, REFUSED, DIFFERS, FAILED = "passed", "refused", "differs", "failed"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case.

    passed: every output within the case's own tolerances, in its shape and dtype, as onnx's runner compares them.
    refused: it did not run; detail says why. differs: half precision within the backend's bound of the float64 answer,
    but not of the expected numbers, which were rounded after every operation. failed: neither.
    """

    name: str
    kind: str
    detail: str = ""


def outcome(
    case: Case,
    found: Callable[[Case], dict[str, np.ndarray]],
    excuse: Callable[[Case, dict[str, np.ndarray]], str | None] = lambda *_: None,
) -> Outcome:
    """found: makes the outputs. excuse: why outputs that differ from the expected ones are right, or None."""
    try:
        outputs = found(case)
    except (Refused, BackendRefused) as refusal:
        return Outcome(case.name, REFUSED, "; ".join(getattr(refusal, "reasons", ())) or str(refusal))
    try:
        compare(case, outputs)
    except AssertionError as error:
        reason = excuse(case, outputs)
        return Outcome(case.name, FAILED, str(error).strip()) if reason is None else Outcome(case.name, DIFFERS, reason)
    return Outcome(case.name, PASSED)


def compare(case: Case, outputs: dict[str, np.ndarray]) -> None:
    """Compare as onnx does: shape, dtype, and the case's tolerances; two ulp for bfloat16."""
    wanted = {name: case.wanted[name] for name in outputs}
    Runner.assert_similar_outputs(list(wanted.values()), list(outputs.values()), case.rtol, case.atol)


def of_attention(backend: str = "auto") -> list[Outcome]:
    """All cases of Attention with one of qkv's backends."""
    return [
        outcome(case, partial(attention.answers, backend=backend), partial(near_float64, backend=backend))
        for case in base_cases("Attention")
    ]


def of_steps() -> list[Outcome]:
    """The cases of Attention that are a decoding step, with a cache and `qkv.decode`."""
    return [
        found for case in base_cases("Attention") if (found := outcome(case, attention.step_answers)).kind != REFUSED
    ]


def of_linear() -> list[Outcome]:
    """All cases of LinearAttention."""
    return [outcome(case, linear.answers) for case in base_cases("LinearAttention")]


def near_float64(case: Case, outputs: dict[str, np.ndarray], backend: str = "auto") -> str | None:
    """In half precision: the error of Y against the float64 oracle, if it is within the backend's bound."""
    if case.inputs["Q"].dtype.itemsize != 2:
        return None
    call = attention.arguments(case)
    taken = qkv.explain(**call).backend if backend == "auto" else backend
    query, key, value, similarity, bias = (call[name] for name in ("query", "key", "value", "similarity", "bias"))
    measure, bound = error_bounds(query, key, value, oracle(**call), similarity, bias), BACKENDS[taken].bound
    ours, theirs = (attention.with_heads(case, "Y", to_tensor(each["Y"])) for each in (outputs, case.wanted))
    try:
        compare(case, {name: array for name, array in outputs.items() if name != "Y"})
        assert_close_to_oracle(ours, measure, backend=taken, bound=bound)
    except AssertionError:
        return None
    here, there = (float(measure.parts["out"].errors(t).max()) for t in (ours, theirs))
    return f"{here:.2f} ulp from float64, up to {bound[query.dtype]:g} allowed; the expected numbers are {there:.2f}"


def summary(backend: str = "auto") -> dict[str, dict[str, Any]]:
    """{"attention": {"passed": n, "of": m, "refused": {name: why}, "differs": {name: why}, …}, "linear": …}."""
    return {"attention": summarize(of_attention(backend)), "linear": summarize(of_linear())}


def summarize(outcomes: list[Outcome]) -> dict[str, Any]:
    """The number that passed, and the name and reason of every other case."""
    named = {kind: {o.name: o.detail for o in outcomes if o.kind == kind} for kind in (REFUSED, DIFFERS, FAILED)}
    return {"passed": sum(o.kind == PASSED for o in outcomes), "of": len(outcomes), **named}
