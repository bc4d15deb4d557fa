"""A derivation: steps of mathematics with reasons, each of which `qkv.maths` can check against the one before.

Claims of `qkv.theory`, solutions of `qkv.exercises` and the writers of `qkv.render` share this one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .maths import Verdict

_SIGNS = {"=": "=", "<=": r"\le", ">=": r"\ge", "~": r"\approx"}


@dataclass(frozen=True)
class Step:
    """One line of a derivation.

    `relation` relates it to the line before: "=" is checked by `compare`, "<=" and ">=" by `holds` (which also requires
    both sides to be equal at `attained`, so that a weaker bound is refused), "~" (a rounded number) by `compare` with
    its rule of digits; "" begins a chain. `title` says what a chain computes, and `symbols` at its beginning replace
    those of the derivation. A step without `text` is words alone. `value` is the exact result where there is one.
    """

    text: str = ""
    reason: str = ""
    relation: str = "="
    title: str = ""
    symbols: Mapping[str, str] | None = None
    attained: Mapping[str, object] | None = None
    value: Any = None


def chain(
    title: str, *texts: str, reason: str = "", value: Any = None, symbols: Mapping[str, str] | None = None
) -> tuple[Step, ...]:
    """Equal expressions one after the other, under one title; `reason` and `value` belong to the last.

    >>> [step.relation for step in chain("the score", "q^T k", "2 + 6", "8")]
    ['', '=', '=']
    """
    last = len(texts) - 1
    return tuple(
        Step(
            text,
            reason if place == last else "",
            "=" if place else "",
            "" if place else title,
            None if place else symbols,
            None,
            value if place == last else None,
        )
        for place, text in enumerate(texts)
    ) or (Step("", reason, "", title, symbols, None, value),)


@dataclass(frozen=True)
class Derivation:
    """Steps, and the types of the symbols in them; `shown` asks writers to show the verdict on every step."""

    steps: tuple[Step, ...] = ()
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    shown: bool = False

    def __add__(self, other: Derivation) -> Derivation:
        first = tuple(_with_symbols(self))
        return Derivation((*first, *_with_symbols(other)), {**self.symbols, **other.symbols}, self.shown or other.shown)

    @classmethod
    def of(cls, *chains: Iterable[Step], symbols: Mapping[str, str] | None = None) -> Derivation:
        """The derivation of several chains."""
        return cls(tuple(step for each in chains for step in each), symbols or {})

    def symbols_at(self, place: int) -> Mapping[str, str]:
        """The symbols with which a step is read: those of the chain that it belongs to."""
        for step in reversed(self.steps[: place + 1]):
            if step.relation == "":
                return self.symbols if step.symbols is None else step.symbols
        return self.symbols

    @cached_property
    def checks(self) -> tuple[Verdict | None, ...]:
        """The verdict on each step against the step before; None where a chain begins or a step is words."""
        from .maths import compare, holds

        verdicts: list[Verdict | None] = []
        for place, step in enumerate(self.steps):
            before = self.steps[place - 1] if place else None
            if step.relation == "" or before is None or not step.text or not before.text:
                verdicts.append(None)
            elif step.relation in ("=", "~"):
                verdicts.append(compare(before.text, step.text, self.symbols_at(place)))
            else:
                symbols = self.symbols_at(place)
                verdicts.append(holds(before.text, step.relation, step.text, symbols, attained=step.attained))
        return tuple(verdicts)

    @property
    def holds(self) -> bool:
        """Whether every step follows from the one before."""
        return all(verdict is None or verdict.kind == "equal" for verdict in self.checks)

    @property
    def proved(self) -> bool:
        """Whether every step is proved, not only tested."""
        return all(verdict is None or verdict.evidence == "proved" for verdict in self.checks)

    def chains(self) -> Iterator[Derivation]:
        """Each chain as a derivation."""
        begun: list[Step] = []
        for step in _with_symbols(self):
            if step.relation == "" and begun:
                yield replace(self, steps=tuple(begun))
                begun = []
            begun.append(step)
        if begun:
            yield replace(self, steps=tuple(begun))

    def latex(self) -> str:
        """The mathematics in LaTeX, a chain a line."""
        from .errors import MathsError
        from .maths import latex, parse

        lines = []
        for each in self.chains():
            shown = ""
            for step in each.steps:
                if step.text:
                    try:
                        text = latex(parse(step.text, step.symbols or each.steps[0].symbols or self.symbols))
                    except MathsError:
                        text = rf"\text{{{step.text}}}"
                    shown += f" {_SIGNS[step.relation]} {text}" if shown else text
            if shown:
                lines.append(shown)
        return "\n".join(lines)


def _with_symbols(derivation: Derivation) -> Iterator[Step]:
    for step in derivation.steps:
        begins = step.relation == "" and step.symbols is None
        yield replace(step, symbols=derivation.symbols) if begins else step
