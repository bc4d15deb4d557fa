"""The contract: qkv's promises as checks that any attention can be held to.

>>> from qkv.testing import contract
>>> subject = contract.Subject.of_qkv()  # or Subject(my_attention, backends={"mine": Published(bound={...})})
>>> cases = [case for case in contract.contract_cases() if case.kind == "argmax" and case.dims == 2]
>>> report = contract.run(subject, cases, only=["out_agrees_with_oracle"], backends=["reference", "argmax"])
>>> report.raise_for_failures()
>>> len(report.of("passed")) == 2 * len(cases)
True

Each check is named, takes a `Subject` and a `Case`, and raises AssertionError with what went wrong.
A call that a backend refuses with `BackendRefused` and reasons is counted as refused; `print(report)` shows the
table of backend by check.
"""

from __future__ import annotations

from . import accuracy, gradients, invariance, manners, masking, relations  # each registers its checks
from .grid import contract_cases, pairwise
from .registry import Check, Outcome, Report, checks, run
from .subject import Case, Claims, Published, Subject

__all__ = [
    "Case",
    "Check",
    "Claims",
    "Outcome",
    "Published",
    "Report",
    "Subject",
    "accuracy",
    "checks",
    "contract_cases",
    "gradients",
    "invariance",
    "manners",
    "masking",
    "pairwise",
    "relations",
    "run",
]
