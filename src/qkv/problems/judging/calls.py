"""Calls in a text as code has them: which operands an einsum or a matrix product names, and what is done with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..outcome import Outcome
from ..reading.literals import split_outside

_NAME = r"[A-Za-z]\w*(?:_?\{\w+\})?"
_MODULE = r"(?:(?:torch|np|numpy|jnp|tf|jax\.numpy)\.)?"
_EINSUM = re.compile(r"(?<![\w])(?:\w+\.)*einsum\s*\(")
_QUOTED = re.compile(r"([\"'“‘])[^\"'”’]*->[^\"'”’]*[\"'”’]")
_PRODUCTS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?<![\w.\])])({_NAME})\s*@\s*({_NAME})(?!\w|\.\w|\s*@|\[)",
        rf"(?<![\w.]){_MODULE}(?:matmul|mm|dot)\(\s*({_NAME})\s*,\s*({_NAME})\s*\)",
        rf"(?<![\w.])({_NAME})\.(?:matmul|mm|dot)\(\s*({_NAME})\s*\)",
    )
)
_SWAPPED = re.compile(r"\.(?:transpose|swapaxes)\(\s*(?:0\s*,\s*1|1\s*,\s*0)\s*\)|\.permute\(\s*1\s*,\s*0\s*,\s*2\s*\)")
_HARMLESS = re.compile(r"(?:\.(?:contiguous|clone|detach|float|double)\(\))+")
_TENSOR = re.compile(r"(?:[wW]_?\{?[A-Za-z]+\}?|[A-Za-z])")


class NotRunnable(Exception):
    """Why an einsum cannot be run on the operands of a question."""

    @property
    def outcome(self) -> Outcome:
        return Outcome("wrong", f"it does not run: {self}")


class Otherwise(NotRunnable):
    """Why a call is another than the one that is asked for, or cannot be judged."""

    def __init__(self, reason: str, kind: str = "wrong") -> None:
        super().__init__(reason)
        self.kind = kind

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.kind, str(self))


@dataclass(frozen=True)
class Product:
    """`x @ W`, or the same as a call: the places of its operands, and whether its first two axes are swapped."""

    order: tuple[int, ...]
    swapped: bool


def einsum_order(text: str, arrow: int, operands: Sequence[str]) -> tuple[int, ...] | None:
    """Which operand each argument of the einsum around `arrow` is; None where there is no call.

    >>> einsum_order('einsum("ij,jk->ik", W_q, x)', 14, ("x", "W_q"))
    (1, 0)
    """
    for begun in _EINSUM.finditer(text[:arrow]):
        end = _closed(text, begun.end())
        if end <= arrow:
            continue
        _only(text, begun.start(), end)
        inner = text[begun.end() : end - 1]
        quoted = _QUOTED.search(inner)
        if quoted is not None:
            rest = f"{inner[: quoted.start()]},{inner[quoted.end() :]}"
        else:
            rest = re.sub(r"^[^>]*->\s*[A-Za-z. ]*", "", inner)
        given = [each.strip() for each in split_outside(rest, ",") if each.strip() and "=" not in each]
        return which(given, operands) if given else None
    return None


def product_in(text: str, operands: Sequence[str]) -> Product | None:
    """The product of two named tensors that a text has; None where it has none that can be read."""
    for pattern in _PRODUCTS:
        for found in pattern.finditer(text):
            start, end = found.span()
            while text[:start].rstrip().endswith("(") and text[end:].lstrip().startswith(")"):
                start, end = len(text[:start].rstrip()) - 1, end + text[end:].index(")") + 1
            turned = _SWAPPED.match(text, end)
            _only(text, start, turned.end() if turned else end)
            return Product(which([found[1], found[2]], operands), turned is not None)
    return None


def which(given: Sequence[str], operands: Sequence[str]) -> tuple[int, ...]:
    """The place of each given name among the operands; raises where a name is another tensor's, or not known."""
    wanted = " and ".join(operands)
    if len(given) != len(operands):
        raise NotRunnable(f"{len(given)} operands are given, and there are {len(operands)}: {wanted}")
    order: list[int] = []
    for name in given:
        short = name.removeprefix("self.")
        places = [place for place, operand in enumerate(operands) if re.fullmatch(loose(operand), short, re.IGNORECASE)]
        places = places or [place for place, operand in enumerate(operands) if _in_short(short, operand)]
        if not places:
            if _TENSOR.fullmatch(short):
                raise Otherwise(f"it takes {name}, and {wanted} are wanted")
            raise Otherwise(f"{name[:40]} is no name that the question has; {wanted} are", "unread")
        order.append(places[0])
    if len(set(order)) < len(order):
        raise Otherwise(f"it takes {operands[order[0]]} twice, and {wanted} are wanted")
    return tuple(order)


def loose(name: str) -> str:
    """A tensor's name in either case of its subscript, with or without the line below: W_q, W_Q, Wq."""
    head, _, below = name.partition("_")
    return rf"{re.escape(head)}(?:_?\{{?(?i:{re.escape(below)})\}}?)" if below else re.escape(head)


def _in_short(name: str, operand: str) -> bool:
    """Whether a name is an operand's letter alone, or its subscript spelt out: W or W_query for W_q."""
    head, _, below = operand.partition("_")
    longer = rf"{re.escape(head)}_?{{?{re.escape(below)}[a-z]{{2,}}}}?"
    return bool(below) and (name == head or re.fullmatch(longer, name, re.IGNORECASE) is not None)


def _only(text: str, start: int, end: int) -> None:
    """Raises where something is done with the result of a call that stands from `start` to `end`."""
    before, after = text[max(0, start - 60) : start], text[end : end + 60]
    if harmless := _HARMLESS.match(after):
        after = after[harmless.end() :]
    if re.search(r"(?:[\d.)]|\b\w)[^\S\n]*[*/+-][^\S\n]*$|(?:^|[=(:])\s*-$", before) or re.match(
        r"[^\S\n]*(?:[*/+][^\S\n]*[\d.]|-[^\S\n]*\d)", after
    ):
        raise Otherwise("the result is multiplied or something is added to it, which is not wanted")
    if re.search(r"\w\($|@\s*$", before) or re.match(r"[^\S\n]*(?:[*/+@][^\S\n]*[\w(]|\.[A-Za-z]+|\[)", after):
        raise Otherwise("something is done with the result that cannot be followed here", "unread")


def _closed(text: str, start: int) -> int:
    """One behind the bracket that closes what was opened before `start`; the end of the text where none does."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text) + 1
