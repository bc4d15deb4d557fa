"""What is said of an answer that is not right while it may be tried again: why, without the right answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .misconceptions import MISCONCEPTIONS
from .outcome import Outcome
from .problem import Part

GENERAL = "that is not it"
_END = r"(?=; | \(only|$)"
# What a reason tells of the right answer, and what is said in its place.
_TOLD = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        (r" \(as [^;]{1,200}? is\)", ""),
        (rf"not the same: ([^;]*\w = [^;]*): [^;]*? against ([^;]*?){_END}", r"not the same: with \1 yours gives \2"),
        (rf"not the same: [^;]*? against ([^;]*?){_END}", r"\1 is not right"),
        (rf": [^;:]*? against ([^;]*?){_END}", r": yours gives \1"),
        (r"the right value is [^;]*?, which does not round to ([^;]*)", r"\1 is not right"),
        (r"with ([^;]{1,60}) the right value is [^;]* and (?=no scalar)", r"with \1 "),
        (r"the size is not ([^;]*?) but [^;]*", r"the size is not \1"),
        (r"a matrix \d+×\d+ is wanted", "a matrix of another size is wanted"),
        (r"\(\w{1,4}\) is missing: [^;]*", "one that belongs is missing"),
        (r"the (?:padding|causal) mask is missing", "a mask is missing"),
        (r"; did you mean [^;?]*\?", ""),
        (r", and \[[^\]]*\] are wanted", ", and others are wanted"),
        (r"(it says the opposite): .*", r"\1"),
        (r"(nothing was found of) (?:what is asked: )?.*", r"\1 what is asked"),
        (r"; all of it is .*", "; it is not all"),
        (r"missing: \w.*", "something is missing"),
    )
)


def discreet_lines(outcome: Outcome, part: Part) -> Iterator[str]:
    """Why, under which condition, and for a known mistake the question that leads on."""
    yield discreet_reason(outcome, part)
    if outcome.condition is not None and outcome.condition not in outcome.reason:
        yield f"condition: {outcome.condition}"
    for name in outcome.misconceptions:
        mistake = MISCONCEPTIONS.get(name)
        yield f"known mistake: {name}. {mistake.question}" if mistake else f"known mistake: {name}"


def discreet_reason(outcome: Outcome, part: Part) -> str:
    """Why an outcome is what it is; what could not be read holds nothing that is right."""
    return discreet(outcome.reason, part) if outcome.kind != "unread" else told_less(outcome.reason)


def discreet(reason: str, part: Part) -> str:
    """A reason without the right answer in it.

    >>> from qkv.problems import named
    >>> discreet("z_{3,3}: not the same: −20 against 20", named("by-hand").part("b"))
    'z_{3,3}: 20 is not right'
    """
    reason = told_less(reason)
    told = _signs(reason)
    return GENERAL if any(_signs(text) in told for text in _right(part)) else reason


def told_less(reason: str) -> str:
    """A reason without what it tells of the right answer in so many words."""
    for pattern, said in _TOLD:
        reason = pattern.sub(said, reason)
    return reason


def _right(part: Part) -> Iterator[str]:
    """The right answer and its pieces, where they are long enough to be nothing else."""
    texts = [part.answer.text, *(value.text for value in getattr(part.answer, "items", {}).values())]
    return (text for text in texts if len(_signs(text)) >= 5 and not re.fullmatch(r"\w+", text))


def _signs(text: str) -> str:
    return re.sub(r"[\s\\{}$]", "", text).replace("−", "-").lower()
