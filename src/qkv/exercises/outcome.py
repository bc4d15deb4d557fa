"""What became of an answer: right or not, the findings that say why, and which known mistake it shows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .findings import Finding

if TYPE_CHECKING:
    from ..maths import Verdict


@dataclass(frozen=True)
class Known:
    """A known mistake: `believed` describes it, `right` says what is so, `question` is what a tutor may ask."""

    believed: str
    right: str
    question: str


@cache
def known_mistakes() -> dict[str, Known]:
    """Every known mistake by its name."""
    text = files("qkv.exercises").joinpath("mistakes.toml").read_text(encoding="utf-8")
    return {name: Known(**entry) for name, entry in tomllib.loads(text).items()}


@dataclass(frozen=True)
class Outcome:
    """Whether an answer is right; true only when it is.

    `kind`: "right"; "conditional" (right only under `condition`); "incomplete" (right as far as it goes); "wrong" (read
    as a whole and refuted); "unread" (not read with certainty: it counts neither for nor against anybody). `mistakes`
    are names of `known_mistakes()`. `items` holds the outcome of each piece of an answer that has several.
    """

    kind: str
    findings: tuple[Finding, ...] = ()
    mistakes: tuple[str, ...] = ()
    condition: str | None = None
    verdict: Verdict | None = None
    items: Mapping[str, Outcome] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return self.kind == "right"

    def __str__(self) -> str:
        return f"{self.kind}: {self.words()}"

    def _repr_html_(self) -> str:
        from ..notebook import table

        found = {"outcome": self.kind, "why": self.words(), "known mistake": ", ".join(self.mistakes)}
        found |= {"right only if": self.condition or ""}
        return table((name, text) for name, text in found.items() if text)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all findings, those of pieces included."""
        pieces = (code for item in self.items.values() for code in item.codes)
        return tuple(dict.fromkeys((*(finding.code for finding in self.findings), *pieces)))

    def words(self, *, spoilers: bool = True) -> str:
        """The outcome in a sentence or two; without spoilers, nothing of the right answer is in it."""
        said = [finding.words(spoilers=spoilers) for finding in self.findings]
        faults = {name: item for name, item in self.items.items() if not item}
        said += [f"{name}: {item.words(spoilers=spoilers)}" for name, item in faults.items()]
        known = [known_mistakes()[name] for name in self.mistakes if name in known_mistakes()]
        said += [f"{each.believed}: {each.right}" if spoilers else each.question for each in known]
        return "; ".join(dict.fromkeys(said)) or Finding("right").words(spoilers=spoilers)

    def as_dict(self, *, spoilers: bool = True) -> dict[str, Any]:
        """Everything as plain values; without spoilers, codes and words alone."""
        findings = [
            {**(finding.as_dict() if spoilers else {"code": finding.code}), "words": finding.words(spoilers=spoilers)}
            for finding in self.findings
        ]
        return {
            "kind": self.kind,
            "right": bool(self),
            "words": self.words(spoilers=spoilers),
            "findings": findings,
            "mistakes": [
                {"name": name, **(asdict(known) if spoilers else {"question": known.question})}
                for name, known in known_mistakes().items()
                if name in self.mistakes
            ],
            "condition": self.condition if spoilers else None,
            "verdict": self.verdict.as_dict() if spoilers and self.verdict is not None else None,
            "items": {name: item.as_dict(spoilers=spoilers) for name, item in self.items.items()},
        }


def unread(code: str, **data: Any) -> Outcome:
    """An answer that was not read, with the finding that says why."""
    return Outcome("unread", (Finding(code, data),))


def wrong(code: str, **data: Any) -> Outcome:
    """An answer that is refuted."""
    return Outcome("wrong", (Finding(code, data),))


def right(code: str = "right", **data: Any) -> Outcome:
    return Outcome("right", (Finding(code, data),))


def conditional(condition: str, code: str = "condition", verdict: Verdict | None = None, **data: Any) -> Outcome:
    """An answer that is right under a condition."""
    found = Finding(code, {"condition": condition, **data})
    return Outcome("conditional", (found,), condition=condition, verdict=verdict)


def joined(items: Mapping[str, Outcome], optional: frozenset[str] = frozenset()) -> Outcome:
    """The outcome of an answer of several pieces; a missing piece among `optional` ones is no fault.

    >>> both = joined({"q": right(), "k": unread("missing_piece")})
    >>> both.kind, joined({"q": right(), "k": wrong("different", right="3")}).kind
    ('incomplete', 'wrong')
    """
    missing = {name for name, item in items.items() if "missing_piece" in item.codes and item.kind == "unread"}
    items = {name: item for name, item in items.items() if name not in missing & optional}
    kinds = [item.kind for item in items.values()]
    if kinds and all(kind == "right" for kind in kinds):
        return Outcome("right", (Finding("right"),), items=items)
    if not kinds or all(kind == "unread" for kind in kinds):
        found = tuple(dict.fromkeys(each for item in items.values() for each in item.findings))
        return Outcome("unread", found, items=items)
    # What was left out does not make wrong what is there.
    order = ("wrong", "conditional") if "unread" not in kinds and "incomplete" not in kinds else ("wrong",)
    kind = next((kind for kind in order if kind in kinds), "incomplete")
    condition = next((item.condition for item in items.values() if item.condition), None)
    return Outcome(kind, condition=condition if kind == "conditional" else None, items=items)
