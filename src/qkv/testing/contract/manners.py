"""Promises about saying no: refusals have reasons, errors have types, names and advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qkv.errors import BackendRefused, QkvError

from ..cases import CallCase
from .registry import check
from .subject import Case, Subject, ask


def _error(subject: Subject, case: Case, **wrong: Any) -> QkvError | None:
    """What qkv says to the call; errors of other kinds go through, and fail the check."""
    try:
        ask(subject, case, **wrong)
    except QkvError as error:
        return error
    return None


@check(7)
def refusals_have_reasons(subject: Subject, case: Case) -> None:
    """A backend that was asked for by name runs, or is refused with its reasons."""
    error = _error(subject, case)
    if error is None:
        return
    assert isinstance(error, BackendRefused), f"{case.backend}: neither ran nor was refused: {error}"
    assert error.reasons, f"{case.backend}: refused without a reason"
    assert all(reason.strip() in str(error) for reason in error.reasons), (
        f"{case.backend}: the message leaves out reasons"
    )
    raise error


@check(7, applies=lambda call: call.seed % 20 == 0, refusable=False)
def an_unknown_form_is_an_error(subject: Subject, case: Case) -> None:
    """A backend that does not exist is an error of qkv's, not a fallback."""
    error = _error(subject, Case("no such backend", case.call))
    assert error is not None, f"{case.backend}: backend='no such backend' ran"
    assert isinstance(error, ValueError), f"{type(error).__name__} is no ValueError"
    assert "backend" in str(error), f"the message does not name the argument: {error}"


_WRONG: tuple[tuple[str, type[Exception], Callable[[CallCase], dict[str, Any]]], ...] = (
    ("key", ValueError, lambda call: {"key": torch.cat([call.key, call.key], dim=-1)}),
    ("value", ValueError, lambda call: {"value": torch.cat([call.value, call.value], dim=-2)}),
    ("query", TypeError, lambda call: {name: call.kwargs[name].int() for name in ("query", "key", "value")}),
    ("key", TypeError, lambda call: {"key": call.key.to(torch.float64 if call.dtype != "float64" else torch.float32)}),
    ("mask", TypeError, lambda call: {"mask": torch.ones(call.len_q, call.len_k)}),
    ("dropout", ValueError, lambda call: {"dropout": 1.5}),
)


@check(8, applies=lambda call: call.len_k > 0, refusable=False)
def errors_name_the_argument(subject: Subject, case: Case) -> None:
    """Wrong arguments raise qkv's own errors, also ValueError or TypeError, that name the argument."""
    for name, kind, wrong in _WRONG:
        error = _error(subject, case, **wrong(case.call))
        assert error is not None, f"{case.backend}: a wrong {name} was accepted"
        assert not isinstance(error, BackendRefused), (
            f"{case.backend}: a wrong {name} is no matter of backends: {error}"
        )
        assert isinstance(error, kind), f"wrong {name}: {type(error).__name__} is no {kind.__name__}"
        assert name in str(error), f"wrong {name}: the message does not name it: {error}"
