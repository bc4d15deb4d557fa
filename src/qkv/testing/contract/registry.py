"""The list of checks, and what running them gives."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from qkv.errors import BackendRefused

from ..cases import CallCase
from .subject import Case, Subject

Body = Callable[[Subject, Case], None]


@dataclass(frozen=True)
class Check:
    """One promise, as a function of a subject and a case that raises AssertionError when it is broken.

    promise: its number in qkv's design. applies: which calls it makes sense for. wants: what it asks for
    beside `out`: "lse", "weights", "grad". also: the further calls that it makes with the same form.
    refusable: False when the check makes no call that a backend could refuse.
    """

    name: str
    promise: int
    body: Body
    applies: Callable[[CallCase], bool]
    wants: frozenset[str]
    also: Callable[[CallCase], tuple[CallCase, ...]]
    refusable: bool

    def __call__(self, subject: Subject, case: Case) -> None:
        self.body(subject, case)

    @property
    def says(self) -> str:
        """The promise in a sentence."""
        return (self.body.__doc__ or self.name).strip().splitlines()[0]


_REGISTERED: dict[str, Check] = {}


def _always(call: CallCase) -> bool:
    return True


def _no_more(call: CallCase) -> tuple[CallCase, ...]:
    return ()


def check(
    promise: int,
    *,
    applies: Callable[[CallCase], bool] = _always,
    wants: Iterable[str] = (),
    also: Callable[[CallCase], tuple[CallCase, ...]] = _no_more,
    refusable: bool = True,
) -> Callable[[Body], Body]:
    """Register a function of (subject, case) as a check, under its own name."""

    def register(body: Body) -> Body:
        name = body.__name__
        _REGISTERED[name] = Check(name, promise, body, applies, frozenset(wants), also, refusable)
        return body

    return register


def checks() -> tuple[Check, ...]:
    """Every check, by promise."""
    return tuple(sorted(_REGISTERED.values(), key=lambda one: one.promise))


@dataclass(frozen=True)
class Outcome:
    """What one check said of one case: "passed", "failed" or "refused", and why."""

    check: str
    case: Case
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """All outcomes. Prints as a table of backend by check; nothing is left out of it."""

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
        for backend, name in pairs:
            passed, failed, refused = (counts[backend, name, status] for status in ("passed", "failed", "refused"))
            lines.append(f"{backend:10} {name:36} {passed:7} {failed:7} {refused:8}")
        return "\n".join(lines)

    def raise_for_failures(self, most: int = 3) -> None:
        """AssertionError with the first few failures in full, and how many there are."""
        if self.failures:
            shown = "\n\n".join(f"{one.check} on {one.case!r}\n{one.detail}" for one in self.failures[:most])
            raise AssertionError(f"{len(self.failures)} of {len(self.outcomes)} outcomes failed.\n\n{shown}")


def run(
    subject: Subject, cases: Iterable[CallCase], *, backends: Iterable[str] = (), only: Iterable[str] = ()
) -> Report:
    """Every check on every case it applies to, with every backend; `backends` and `only` narrow it down."""
    names, outcomes = frozenset(only), []
    unknown = names - _REGISTERED.keys()
    if unknown:
        raise ValueError(f"only: got {sorted(unknown)}, wanted names out of {sorted(_REGISTERED)}")
    chosen = [one for one in checks() if not names or one.name in names]
    calls = tuple(cases)
    for backend in tuple(backends) or tuple(subject.backends):
        for one in chosen:
            outcomes += [_outcome(one, subject, Case(backend, call)) for call in calls if one.applies(call)]
    return Report(tuple(outcomes))


def _outcome(one: Check, subject: Subject, case: Case) -> Outcome:
    try:
        one(subject, case)
    except BackendRefused as refusal:
        if not refusal.reasons:
            return Outcome(one.name, case, "failed", "refused without a reason")
        return Outcome(one.name, case, "refused", "; ".join(refusal.reasons))
    except AssertionError as broken:
        return Outcome(one.name, case, "failed", str(broken))
    except Exception:
        # A crash of the subject is a failure of the promise, with its traceback.
        return Outcome(one.name, case, "failed", traceback.format_exc(limit=-4))
    return Outcome(one.name, case, "passed")
