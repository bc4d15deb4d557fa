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

    def readings(self) -> Iterator[tuple[Step, str, Mapping[str, str]]]:
        """Each step, the text before it in its chain ("" where there is none), and the symbols to read both with."""
        before, symbols = "", self.symbols
        for place, step in enumerate(self.steps):
            if step.relation == "" or not place:
                before, symbols = "", self.symbols if step.symbols is None else step.symbols
            yield step, before, symbols
            before = step.text or before

    def all_symbols(self) -> list[Mapping[str, str]]:
        """The symbols of the derivation, and of every chain that has others."""
        return [self.symbols, *(step.symbols for step in self.steps if step.symbols is not None)]

    @cached_property
    def checks(self) -> tuple[Verdict | None, ...]:
        """The verdict on each step against the text before it; None where a chain begins or a step is words."""
        from .maths import compare, holds

        verdicts: list[Verdict | None] = []
        for step, before, symbols in self.readings():
            if not before or not step.text:
                verdicts.append(None)
            elif step.relation in ("=", "~"):
                verdicts.append(compare(before, step.text, symbols))
            else:
                verdicts.append(holds(before, step.relation, step.text, symbols, attained=step.attained))
        return tuple(verdicts)

    @property
    def holds(self) -> bool:
        """Whether every step follows from the one before."""
        return all(verdict is None or verdict.kind == "equal" for verdict in self.checks)

    @property
    def proved(self) -> bool:
        """Whether every step is proved, not only tested."""
        return all(verdict is None or verdict.evidence == "proved" for verdict in self.checks)

    def _repr_markdown_(self) -> str:
        lines: list[str] = []
        for step, _, symbols in self.readings():
            lines += [f"**{step.title}**"] if step.title else []
            sign = _SIGNS.get(step.relation, step.relation)
            formula = f"${sign} {_latex_of(step.text, symbols)}$" if step.text else ""
            lines.append(" — ".join(filter(None, (formula, step.reason))))
        return "\n\n".join(lines)

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
        lines: list[str] = []
        for step, before, symbols in self.readings():
            if not step.text:
                continue
            text = _latex_of(step.text, symbols)
            if before:
                lines[-1] += f" {_SIGNS[step.relation]} {text}"
            else:
                lines.append(text)
        return "\n".join(lines)


def _latex_of(text: str, symbols: Mapping[str, str]) -> str:
    """LaTeX of a line; of words, a text."""
    from .errors import MathsError
    from .maths import latex, parse

    try:
        return latex(parse(text, symbols))
    except MathsError:
        return rf"\text{{{text}}}"


def describe(verdict: Verdict) -> tuple[str, str]:
    """The verdict on a step in a word, "proved" or "tested" where it follows, and why where it does not."""
    if verdict.kind == "equal":
        return str(verdict.evidence), ""
    example = "" if verdict.counterexample is None else str(verdict.counterexample)
    known = not example or example in verdict.reason
    return verdict.kind, verdict.reason if known else f"{verdict.reason} ({example})"


def _with_symbols(derivation: Derivation) -> Iterator[Step]:
    """The steps, each chain with the symbols to read it with."""
    for place, step in enumerate(derivation.steps):
        begins = step.relation == "" or not place
        symbols = derivation.symbols if step.symbols is None else step.symbols
        yield replace(step, relation="", symbols=symbols) if begins else step
