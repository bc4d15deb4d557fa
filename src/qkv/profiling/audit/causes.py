"""Why two counts of the same thing differ, found by arithmetic: a cause is named only where its amount fits exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

ONE_FLOP = "counts a multiplication and an addition as one flop"
NO_ELEMENTWISE = "does not count elementwise work"
MOST_FLOPS = 24  # for each number, that anybody would count for elementwise work
SHOWN = 0.0005  # of qkv's number: what is less is added up


@dataclass(frozen=True)
class Cause:
    """A reason, and what it adds to qkv's number."""

    text: str
    amount: int


@dataclass(frozen=True)
class Part:
    """What a part of a model takes, and how else it may be read.

    readings: what the products come to where something is taken for something else, one upon the other. numbers: what
    elementwise work is done on, and how many there are.
    """

    name: str
    products: int
    elementwise: int = 0
    readings: tuple[tuple[str, int], ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return self.products + self.elementwise


def causes_of(part: Part, theirs: int) -> list[Cause]:
    """The causes that lead exactly from qkv's number to theirs; none where no known ones do.

    >>> scores = Part("SDPA", products=60, elementwise=7, readings=(("counts what the mask hides", 100),))
    >>> [cause.amount for cause in causes_of(scores, 50)], causes_of(scores, 51)
    ([40, -50, -7], [])
    """
    if theirs == part.total:
        return []
    if theirs == 0:
        return [Cause(f"does not count {part.name}" if part.products else NO_ELEMENTWISE, -part.total)]
    for steps, products in _readings(part):
        for halved in (False, True):
            if halved and products % 2:
                continue
            counted = products // 2 if halved else products
            elementwise = _elementwise(part, theirs - counted)
            if elementwise is not None:
                one_flop = [Cause(ONE_FLOP, counted - products)] if halved and products else []
                return [*steps, *one_flop, *elementwise]
    return []


def steps_to(part: Part, theirs: int) -> list[Cause]:
    """The same for what is no flops: the readings that lead exactly to theirs, or none.

    >>> [cause.text for cause in steps_to(Part("the cache", 6, readings=(("a", 8), ("b", 9))), 8)]
    ['a']
    """
    return next((steps for steps, reached in _readings(part) if reached == theirs), [])


def _readings(part: Part) -> Iterator[tuple[list[Cause], int]]:
    steps, products = [], part.products
    yield [], products
    for text, other in part.readings:
        if other != products:
            steps = [*steps, Cause(text, other - products)]
            products = other
            yield steps, products


def _elementwise(part: Part, rest: int) -> list[Cause] | None:
    """What became of the elementwise work, if the products leave so much; None: nothing that is known."""
    if rest == part.elementwise:
        return []
    if rest == 0:
        return [Cause(NO_ELEMENTWISE, -part.elementwise)]
    for thing, count in part.numbers:
        if count and rest > 0 and rest % count == 0 and rest // count <= MOST_FLOPS:
            each = rest // count
            text = f"counts {each} flop{'s' * (each > 1)} for each {thing}, qkv {part.elementwise / count:.3g}"
            return [Cause(text, rest - part.elementwise)]
    return None


@dataclass(frozen=True)
class Row:
    """One quantity: what a tool says, what qkv says, and the causes that lie between."""

    tool: str
    stage: str
    quantity: str
    theirs: int
    ours: int
    causes: tuple[Cause, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Theirs for each of qkv's; None where qkv has nothing."""
        return self.theirs / self.ours if self.ours else None

    @property
    def unexplained(self) -> int:
        """What the causes leave over."""
        return self.theirs - self.ours - sum(cause.amount for cause in self.causes)

    @property
    def sentence(self) -> str:
        """The causes, each with what it changes.

        >>> Row("t", "prefill", "flops", 50, 67, (Cause("does not count SDPA", -20), Cause("adds", 3))).sentence
        'does not count SDPA (-29.9%), adds (+4.48%).'
        """
        if self.theirs == self.ours and not self.causes:
            return "the same number."
        large = [cause for i, cause in enumerate(self.causes) if i < 2 or abs(cause.amount) >= SHOWN * self.ours]
        small = [cause for cause in self.causes if cause not in large]
        if len(small) == 1:
            large, small = [*large, *small], []
        told = [f"{cause.text} ({self._percent(cause.amount)})" for cause in large]
        if small:
            told.append(f"{len(small)} smaller causes ({self._percent(sum(c.amount for c in small))} together)")
        if self.unexplained:
            told.append(f"unexplained: {self._percent(self.unexplained)}")
        return ", ".join(told) + "."

    def _percent(self, amount: int) -> str:
        if not self.ours:
            return f"{amount:+,}"
        share = 100 * amount / self.ours
        if abs(share) >= 1000:
            return f"{amount / self.ours:+,.0f} times"
        return f"{share:+.3g}%" if abs(share) >= 0.001 else f"{'-' if share < 0 else '+'}0.00%"

    def as_dict(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "stage": self.stage,
            "quantity": self.quantity,
            "theirs": self.theirs,
            "qkv": self.ours,
            "ratio": self.ratio,
            "causes": [{"text": cause.text, "amount": cause.amount} for cause in self.causes],
            "unexplained": self.unexplained,
            "sentence": self.sentence,
        }


def merged(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Causes of the same name become one, the largest first; those that come to nothing are left out.

    >>> merged([Cause("a", 2), Cause("b", 3), Cause("a", 5), Cause("c", 1), Cause("c", -1)])
    (Cause(text='a', amount=7), Cause(text='b', amount=3))
    """
    amounts: dict[str, int] = {}
    for cause in causes:
        amounts[cause.text] = amounts.get(cause.text, 0) + cause.amount
    found = (Cause(text, amount) for text, amount in amounts.items() if amount)
    return tuple(sorted(found, key=lambda cause: -abs(cause.amount)))
