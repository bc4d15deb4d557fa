"""What became of an answer: right or not, why, and which known mistake it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..maths import Verdict

KINDS = ("right", "conditional", "incomplete", "wrong", "unread")


@dataclass(frozen=True)
class Outcome:
    """Whether an answer is right; true only when it is.

    `kind`: "right"; "conditional" (right only under `condition`); "incomplete" (right as far as it goes); "wrong";
    "unread" (nothing in it could be read as an answer: never held against anybody). `misconceptions` are names of
    `qkv.problems.MISCONCEPTIONS`, the best fit first. `items` holds the outcome of each piece of an answer that has
    several.
    """

    kind: str
    reason: str
    misconceptions: tuple[str, ...] = ()
    condition: str | None = None
    verdict: Verdict | None = None
    items: Mapping[str, Outcome] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return self.kind == "right"

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "kind": self.kind,
            "right": bool(self),
            "reason": self.reason,
            "misconceptions": list(self.misconceptions),
            "condition": self.condition,
            "verdict": None if self.verdict is None else self.verdict.as_dict(),
            "items": {name: item.as_dict() for name, item in self.items.items()},
        }


def joined(items: Mapping[str, Outcome]) -> Outcome:
    """The outcome of an answer of several pieces: as good as its worst, and it names those that are not right.

    >>> both = joined({"q": Outcome("right", "as it should be"), "k": Outcome("wrong", "entry 2 is 0")})
    >>> both.kind, both.reason
    ('wrong', 'k: entry 2 is 0')
    """
    kinds = [item.kind for item in items.values()]
    if all(kind == "right" for kind in kinds):
        return Outcome("right", "every piece is right", items=items)
    if all(kind == "unread" for kind in kinds):
        return Outcome("unread", "; ".join(dict.fromkeys(item.reason for item in items.values())), items=items)
    faults = {name: item for name, item in items.items() if not item}
    kind = next(kind for kind in ("wrong", "conditional", "incomplete", "unread") if kind in kinds)
    # What was left out does not make wrong what is there.
    kind = "incomplete" if kind == "unread" else kind
    condition = next((item.condition for item in faults.values() if item.condition), None)
    reason = "; ".join(f"{name}: {item.reason}" for name, item in faults.items())
    return Outcome(kind, reason, condition=condition, items=items)
