"""The contract: qkv's promises as checks of any attention function.

>>> from qkv.testing import contract
>>> subject = contract.Subject.of_qkv()  # or Subject(my_attention, backends={"mine": Published(bound={...})})
>>> cases = [case for case in contract.contract_cases() if case.kind == "argmax" and case.dims == 2]
>>> report = contract.run(subject, cases, only=["out_agrees_with_oracle"], backends=["reference", "argmax"])
>>> report.raise_for_failures()
>>> len(report.of("passed")) == 2 * len(cases)
True

Each check has a name, takes a `Subject` and a `BackendCase`, and raises AssertionError when the promise is
broken. A call that a backend refuses with `BackendRefused` and reasons counts as refused; `print(report)`
prints a table of backends and checks.
"""

from __future__ import annotations

from . import correctness, invariance  # importing them registers their checks
from .grid import contract_cases, pairwise
from .subject import BackendCase, Check, Claims, Outcome, Published, Report, Subject, checks, run

__all__ = ["BackendCase", "Check", "Claims", "Outcome", "Published", "Report", "Subject", "checks", "contract_cases"]
__all__ += ["correctness", "invariance", "pairwise", "run"]
