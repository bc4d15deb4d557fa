"""The contract: qkv's promises as checks that any attention can be held to.

    from qkv.testing import contract
    subject = contract.Subject(my_attention, forms={"mine": contract.Published(bound={torch.float32: 8.0, ...})})
    report = contract.run(subject, contract.contract_cases())
    print(report)
    report.raise_for_failures()

Each check is named, takes a `Subject` and a `Case`, and raises AssertionError with what went wrong.
A call that a form refuses with `FormRefused` and reasons is counted as refused in the report.
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
