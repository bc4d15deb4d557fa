"""A problem: a typed statement, its parts, their worked solution, and how answers to them are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from ..render.document import Block
from .judging.answers import Answer
from .outcome import Outcome

HINTS = 3


@dataclass(frozen=True)
class Step:
    """One step of a solution: `what` is done and `why` it may be, and the chain of equal expressions that does it.

    `relation` ties the expressions of the chain ("=", or "<=" for a bound; asymptotic chains are tied by "=" too).
    Every link is checked by `qkv.maths` with `symbols` in the tests. `value` is the exact result: an int, a Fraction,
    a tuple of them, a text for a formula, or None where the step is words alone (then the chain is empty).
    """

    what: str
    why: str
    chain: tuple[str, ...] = ()
    value: Any = None
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    relation: str = "="

    @property
    def latex(self) -> str:
        """The chain in LaTeX, as it is printed."""
        from ..maths import latex, parse

        sign = {"=": "=", "<=": r"\le", ">=": r"\ge"}[self.relation]
        return f" {sign} ".join(latex(parse(text, self.symbols)) for text in self.chain)


@dataclass(frozen=True)
class Misconception:
    """A known mistake, made on this very part: `planted` is the answer that it leads to.

    An answer shows it when it says the same as `planted`, or when `detect` finds it in the words.
    """

    name: str
    planted: str
    detect: Callable[[str], bool] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Part:
    """One question: `ask` is prose with $mathematics$; `hints` are three, from a nudge to nearly the answer.

    `cues` are regular expressions (case ignored) by which a transcript's text is known to speak of this part where no
    letter says so: what is asked for, in words, or the left side of an equation that answers it. `wrong_reasons` are
    mistakes that leave the answer right: an outcome that is right and names one of them is right for a wrong reason.
    """

    name: str
    ask: str
    answer: Answer
    steps: Callable[[], tuple[Step, ...]] = field(compare=False)
    hints: tuple[str, str, str]
    points: int = 2
    misconceptions: tuple[Misconception, ...] = ()
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    cues: tuple[str, ...] = ()
    explanation: str = ""
    wrong_reasons: tuple[Misconception, ...] = ()

    def check(self, answer: str) -> Outcome:
        """Whether `answer` is right; where it is not, the known mistakes that it shows are named."""
        if not isinstance(answer, str):
            raise OptionTypeError(complaint("answer", repr(answer), "a text"))
        outcome = self.answer.check(answer)
        if outcome:
            reasons = (each.name for each in self.wrong_reasons if each.detect is not None and each.detect(answer))
            return replace(outcome, misconceptions=tuple(dict.fromkeys(reasons)))
        names = tuple(dict.fromkeys(each.name for each in self.misconceptions if self._shows(each, answer)))
        if names and outcome.kind == "unread":
            outcome = replace(outcome, kind="wrong")
        return replace(outcome, misconceptions=names)

    def _shows(self, known: Misconception, answer: str) -> bool:
        return self.answer.same(known.planted, answer) or (known.detect is not None and known.detect(answer))


@dataclass(frozen=True)
class Problem:
    """A problem of the bank, with the numbers of the documents (`seed` is None) or fresh ones.

    `structure` is what makes it another question than its neighbours: sizes, which entry is asked, which claim;
    digits do not belong in it. `make` gives the variant of a seed. `wholes` are parts that ask several of `parts` at
    once, in words of their own; others are put together where they are asked for.
    """

    name: str
    title: str
    statement: tuple[Block, ...]
    parts: tuple[Part, ...]
    make: Callable[[int | None], Problem] = field(compare=False, repr=False)
    seed: int | None = None
    structure: tuple[Any, ...] = ()
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    sources: tuple[str, ...] = ()
    follow_ups: tuple[str, ...] = ()
    wholes: tuple[Part, ...] = ()

    def variant(self, seed: int | None) -> Problem:
        """The same kind of problem with fresh numbers; None gives those of the documents."""
        return self.make(checked_seed(seed))

    def part(self, name: str) -> Part:
        """A part by its letter: "a", "(a)" and "1a" are one, "b(i)", "b.i" and "bi" too; "b" is "b(i)" and "b(ii)"."""
        if not isinstance(name, str):
            raise OptionTypeError(complaint("part", repr(name), "the name of a part, as text"))
        wanted = plain_name(name)
        for part in (*self.parts, *self.wholes):
            if plain_name(part.name) == wanted:
                return part
        within = [part for part in self.parts if len(wanted) == 1 and plain_name(part.name).startswith(wanted)]
        if within:
            from .several import together

            return together(wanted, within)
        hint = f"{self.name} has the parts {', '.join(part.name for part in self.parts)}"
        raise OptionError(complaint("part", repr(name), "a part of the problem", hint))

    def check(self, part: str, answer: str) -> Outcome:
        """Whether an answer to a part is right, and if not why not."""
        return self.part(part).check(answer)

    def hint(self, part: str, strength: int = 1) -> str:
        """A hint for a part: 1 is a nudge, 3 is nearly the answer."""
        if isinstance(strength, bool) or not isinstance(strength, int) or not 1 <= strength <= HINTS:
            raise OptionError(complaint("strength", repr(strength), "1, 2 or 3"))
        return self.part(part).hints[strength - 1]

    def solve(self) -> Solution:
        """Every part worked out."""
        return Solution(self)


def checked_seed(seed: int | None) -> int | None:
    """The seed, if it is one."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise OptionError(
            complaint("seed", repr(seed), "a whole number from 0 on, below 2^63", "seeds 0, 1, 2 … all differ")
        )
    return seed


def plain_name(name: str) -> str:
    """A part's name without brackets, dots and the question's number.

    >>> plain_name("4(b)(ii)"), plain_name("b.ii"), plain_name(" (B) ")
    ('bii', 'bii', 'b')
    """
    return "".join(sign for sign in name.lower() if sign.isalpha())


@dataclass(frozen=True)
class Solved:
    """A part with its steps and its answer."""

    part: Part
    steps: tuple[Step, ...]
    answer: str


@dataclass(frozen=True)
class Solution:
    """A worked solution: for each part the steps and the answer; then a summary and questions to go on with."""

    problem: Problem

    @cached_property
    def parts(self) -> tuple[Solved, ...]:
        return tuple(Solved(part, part.steps(), part.answer.text) for part in self.problem.parts)

    @property
    def summary(self) -> dict[str, str]:
        """Part to answer."""
        return {solved.part.name: solved.answer for solved in self.parts}

    @property
    def follow_ups(self) -> tuple[str, ...]:
        return self.problem.follow_ups
