"""The verdict on an answer: the same as the gold, by proof or by trial, or not, and what is the matter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qkv.errors import IllTyped, MathsError, OptionError, OptionTypeError, complaint, pointed
from qkv.maths.counterexample import Counterexample
from qkv.maths.tree import Multiply, Node, Number, Order, Part, PlusMinus, Relation, Symbol

APPROXIMATELY = re.compile(r"[\s$({\[\\]*(?:≈|\\?approx\b)")
EFFORT, SHOWING = 160_000, 5_000  # of a comparison, and of the values that only show what is the matter
INEQUALITIES = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "!=": "!="}

# Whether a wrong answer is looked at for the condition under which it would be right.
_REMARKS: ContextVar[bool] = ContextVar("remarks", default=True)


@dataclass(frozen=True)
class Verdict:
    """What `compare` and `holds` give; true only where the answer is equal to the gold.

    kind is "equal", "different", "conditional", "ill-typed" or "unreadable"; evidence "proved", "tested", "refuted" or
    None where nothing was compared; reason is one sentence for people, on one line; where, for a text that was refused,
    is the line of it that holds the fault with carets below.
    """

    kind: str
    evidence: str | None
    reason: str
    condition: str | None = None
    counterexample: Counterexample | None = None
    gold: str = ""
    answer: str = ""
    suggestion: str | None = None
    where: str = ""

    def __bool__(self) -> bool:
        return self.kind == "equal"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: texts, and the counterexample with its numbers as texts."""
        found = None if self.counterexample is None else self.counterexample.as_dict()
        names = ("kind", "evidence", "reason", "condition", "gold", "answer", "suggestion", "where")
        return {name: getattr(self, name) for name in names} | {"counterexample": found}

    def __str__(self) -> str:
        how = f" ({self.evidence})" if self.evidence else ""
        text = f"{self.kind}{how}: {self.reason}"
        point = self.counterexample
        if point is not None and point.point and str(point) not in text:
            text = f"{text}. At {point}"
        return f"{text}\n{self.where}" if self.where else text


def compare(gold: str, answer: str, symbols: Mapping[str, str]) -> Verdict:
    """Whether `answer` says the same as `gold`, where `symbols` gives the names their types.

    >>> verdict = compare(r"\\mu^T\\mu", "d mu^2", {"mu": "vector[d]", "d": "natural"})
    >>> verdict.kind, verdict.condition
    ('conditional', 'every component of μ is the same (μ = m·1, then both are d m²)')
    """
    checked(gold, answer, symbols)
    return _judge(gold, answer, tuple(symbols.items()), _REMARKS.get())


@lru_cache(maxsize=256)
def _judge(gold: str, answer: str, items: tuple[tuple[str, str], ...], remarks: bool) -> Verdict:
    from qkv.maths.algebra.symmetry import declared_symmetric
    from qkv.maths.types import declare
    from qkv.maths.values.arithmetic import effort

    with declared_symmetric(declare(dict(items)).types.values()), effort(EFFORT):
        return compared(gold, answer, dict(items))


def equal(gold: str, answer: str, symbols: Mapping[str, str]) -> bool:
    """Whether `compare` would call them equal, without the work of saying why not.

    >>> equal(r"\\mu^T\\mu", r"\\|\\mu\\|^2", {"mu": "vector[d]"}), equal("d", "d^2", {"d": "natural"})
    (True, False)
    """
    asked = _REMARKS.set(False)
    try:
        return compare(gold, answer, symbols).kind == "equal"
    finally:
        _REMARKS.reset(asked)


def compared(gold: str, answer: str, symbols: Mapping[str, str]) -> Verdict:
    """`compare`, where what it was given is known to be of the right kind."""
    from qkv.maths.reading import parse
    from qkv.maths.substitution import free_indices

    found = Verdict("equal", None, "", gold=gold, answer=answer)
    try:
        right = as_written(gold, parse(gold, symbols))
    except MathsError as error:
        return replace(refusal(error, found, "the gold itself is refused: "), suggestion=None)
    try:
        wanted = meant(right)
        given = as_written(answer, parse(answer, symbols, expected=wanted.shape, free=free_indices(wanted)))
    except IllTyped as error:
        from qkv.maths.conditions import reread

        refused = refusal(error, found)
        if not _REMARKS.get():
            return refused
        conditional = reread(right, answer, symbols, replace(found, where=refused.where))
        return refused if conditional is None else conditional
    except MathsError as error:
        return refusal(error, found)
    return judged(right, given, found)


def as_written(text: str, node: Node) -> Node:
    """What was read from a text; where ≈ stands at its beginning, its decimals are rounded ones."""
    if not APPROXIMATELY.match(text) or isinstance(node, Relation):
        return node
    from qkv.maths.numbers import rounded

    return rounded(node)


def checked(gold: object, answer: object, symbols: object) -> None:
    for argument, text in (("gold", gold), ("answer", answer)):
        if not isinstance(text, str):
            raise OptionTypeError(complaint(argument, f"a {type(text).__name__}", "a text"))
    if not isinstance(symbols, Mapping):
        hint = 'for example {"mu": "vector[d]", "d": "natural"}'
        raise OptionError(complaint("symbols", f"a {type(symbols).__name__}", "a mapping of names to types", hint))
    for name, declared in symbols.items():
        if not isinstance(name, str) or not isinstance(declared, str):
            raise OptionError(complaint("symbols", f"{name!r}: {declared!r}", "a name and its type, both texts"))


def refusal(error: MathsError, found: Verdict, whose: str = "") -> Verdict:
    """The verdict on a text that was refused; `whose` says which one it is where it is not the answer."""
    kind = "ill-typed" if isinstance(error, IllTyped) else "unreadable"
    reason = error.reason
    if error.suggestion and not whose:
        reason = f"{reason}; did you mean {error.suggestion}?"
    # One sign for another, so that the carets stay under the fault.
    source = re.sub(r"[^\S\n]", " ", error.source)
    where = pointed(source, error.span) if source.strip() else ""
    said = " ".join(f"{whose}{reason}".split())
    return replace(found, kind=kind, reason=said, suggestion=error.suggestion.split(" or ")[0] or None, where=where)


def meant(node: Node) -> Node:
    """The last member of a chain; numbers after ≈ are rounded ones."""
    if not isinstance(node, Relation):
        return node
    last = node.members[-1]
    if node.signs[-1] == "≈":
        from qkv.maths.numbers import rounded

        return rounded(last)
    return last


def judged(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """The verdict on two trees."""
    if isinstance(gold, Relation) and gold.signs[-1] in INEQUALITIES:
        return inequality(gold, answer, found)
    if isinstance(answer, Relation) and answer.signs[-1] in INEQUALITIES:
        return replace(
            found, kind="different", evidence="refuted", reason="an inequality is no value; a value is asked"
        )
    verdict = values(meant(gold), meant(answer), found)
    return with_chain(answer, verdict)


def with_chain(answer: Node, verdict: Verdict) -> Verdict:
    """The verdict on a chain is that on its end; where an earlier member is not equal to it, the reason says so."""
    if not isinstance(answer, Relation):
        return verdict
    from qkv.maths.trial import differ

    last = meant(answer)
    for member, sign in zip(answer.members, answer.signs, strict=False):
        if sign != "=" or isinstance(member, (Order, PlusMinus)) or isinstance(last, (Order, PlusMinus)):
            continue
        # A name that stands for itself is being defined, and a decimal at the end is what was rounded.
        if (isinstance(member, Symbol) and member.type.definition is None) or rounds(member, last):
            continue
        if member.shape == last.shape and differ(member, last):
            text = (
                f"{verdict.reason} (only the end of the chain is judged: it is not equal to {wrote(member)} before it)"
            )
            return replace(verdict, reason=text)
    return verdict


def rounds(member: Node, last: Node) -> bool:
    """Whether the end of a chain is what comes before it, rounded to the digits that it shows."""
    from qkv.maths.numbers import compare_numbers

    said = compare_numbers(member, last) if member.shape == last.shape else None
    return said is not None and said[0].equal is True


def inequality(gold: Relation, answer: Node, found: Verdict) -> Verdict:
    """Two inequalities are the same where their sides are, in the same or in the turned order."""
    wanted = (gold.members[-2], gold.signs[-1], gold.members[-1])
    if not isinstance(answer, Relation) or answer.signs[-1] not in INEQUALITIES:
        return replace(found, kind="different", evidence="refuted", reason="an inequality is asked, not a value")
    sign, sides = answer.signs[-1], answer.members[-2:]
    # ≠ reads the same from both ends: either order may be the one that was meant.
    orders = [order for read, order in ((sign, sides), (INEQUALITIES[sign], sides[::-1])) if read == wanted[1]]
    if not orders:
        return replace(found, kind="different", evidence="refuted", reason=f"{wanted[1]} is asked, not {sign}")
    wrong: list[Verdict] = []
    for order in orders:
        both = [values(a, b, found) for a, b in zip((wanted[0], wanted[2]), order, strict=True)]
        if all(both):
            return next((verdict for verdict in both if verdict.evidence == "tested"), both[0])
        wrong += [verdict for verdict in both if not verdict]
    return wrong[0]


def values(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """The verdict on two trees that are no chains."""
    from qkv.maths.asymptotics import compare_growth

    if isinstance(gold, Order) or isinstance(answer, Order):
        return compare_growth(gold, answer, found)
    if any(any(signed(node)) for node in (gold, answer)):
        return two_valued(gold, answer, found)
    return ordinary(gold, answer, found)


def signed(node: Node):
    from qkv.maths.substitution import walk

    return (n for n in walk(node) if isinstance(n, PlusMinus))


def with_sign(node: Node, sign: int) -> Node:
    """`node` with every ± read as one sign."""
    from qkv.maths.substitution import rebuilt

    if isinstance(node, PlusMinus):
        inner = with_sign(node.body, sign)
        return inner if sign > 0 else Multiply(inner.shape, (Number((), Fraction(-1)), inner))
    return rebuilt(node, lambda child: with_sign(child, sign))


def two_valued(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """Things with a ± are the same where their values are, as a set: by proof in some order, or point by point."""
    from qkv.maths.trial import tried_as_sets

    golds, answers = (
        [with_sign(node, sign) for sign in (1, -1)] if list(signed(node)) else [node] for node in (gold, answer)
    )
    if len(golds) != len(answers):
        count = {1: "one value", 2: "two values (±)"}
        reason = f"the answer has {count[len(answers)]}, the right one has {count[len(golds)]}"
        extra = golds if len(golds) == 2 else answers
        if ordinary(extra[0], extra[1], found).kind == "equal":
            return ordinary(golds[0], answers[0], found)
        return replace(found, kind="different", evidence="refuted", reason=reason)
    first = ordinary(golds[0], answers[0], found)
    if not same_shape(golds[0], answers[0]):
        return first
    for order in (answers, answers[::-1]):
        both = [ordinary(a, b, found) for a, b in zip(golds, order, strict=True)]
        if all(both):
            return next((verdict for verdict in both if verdict.evidence == "tested"), both[0])
    outcome = tried_as_sets(golds, answers)
    if outcome.equal:
        reason = "the two have the same two values at every point that was tried"
        return replace(found, kind="equal", evidence="tested", reason=reason)
    if outcome.equal is None:
        reason = f"qkv can neither prove nor test whether the two have the same values: {outcome.why}"
        return replace(found, kind="unreadable", reason=reason)
    point = outcome.counterexample
    reason = f"not the same two values: {point}"
    return replace(found, kind="different", evidence="refuted", reason=reason, counterexample=point)


def ordinary(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """Shapes, then numbers as they were written, then proof, then trial, then the condition that would help."""
    from qkv.maths.conditions import condition, special
    from qkv.maths.numbers import compare_numbers, within_rounding
    from qkv.maths.trial import decide

    gold, answer = column(gold), column(answer)
    if not same_shape(gold, answer):
        point = first_values(gold, answer) if _REMARKS.get() else None
        reason = shapes_apart(gold, answer)
        return replace(found, kind="different", evidence="refuted", reason=reason, counterexample=point)
    said = compare_numbers(gold, answer)
    if said is not None:
        outcome, reason = said
        kind = "equal" if outcome.equal else "different"
        return replace(
            found, kind=kind, evidence=outcome.evidence, reason=reason, counterexample=outcome.counterexample
        )
    outcome = decide(gold, answer)
    if outcome.equal is False and within_rounding(gold, answer):
        reason = "the two are the same within the rounding of the numbers after ≈"
        return replace(found, kind="equal", evidence="tested", reason=reason)
    if outcome.equal:
        how = "by algebra" if outcome.evidence == "proved" else "at every point that was tried, in several sizes"
        if outcome.small is not None:
            how = f"at every point that was tried, with {outcome.small} and other sizes"
        return replace(found, kind="equal", evidence=outcome.evidence, reason=f"the two are the same {how}")
    if outcome.equal is None:
        reason = f"qkv can neither prove nor test whether the two are the same: {outcome.why}"
        return replace(found, kind="unreadable", reason=reason)
    point = outcome.counterexample
    wrong = replace(found, kind="different", evidence="refuted", counterexample=point, reason=f"not the same: {point}")
    if not _REMARKS.get():
        return wrong
    if outcome.small is not None:
        gold, answer = outcome.small.gold, outcome.small.answer
    conditional = condition(gold, answer, wrong)
    if conditional is not None:
        return conditional
    where = special(gold, answer)
    return replace(wrong, reason=f"{wrong.reason}; they agree where {where}, not in general") if where else wrong


def column(node: Node) -> Node:
    """A matrix of one column as the vector that it is, and a 1×1 matrix as a scalar."""
    one = Number((), Fraction(1))
    if node.shape == (1, 1):
        return Part((), node, (one, one))
    if len(node.shape) == 2 and node.shape[1] == 1:
        return Part(node.shape[:1], node, (None, one))
    return node


def same_shape(gold: Node, answer: Node) -> bool:
    """Shapes are the same where their texts are, or where definitions make them so."""
    if gold.shape == answer.shape:
        return True
    if len(gold.shape) != len(answer.shape):
        return False
    from qkv.maths.extents import measure
    from qkv.maths.values.arithmetic import Undefined, Unevaluable
    from qkv.maths.values.points import points, vocabulary

    tried = 0
    words = vocabulary(gold, answer)
    scalars = {name: symbol for name, symbol in words.symbols.items() if not symbol.shape}
    for point in points(replace(words, symbols=scalars), 6):
        try:
            if any(
                measure(a, point.sizes) != measure(b, point.sizes)
                for a, b in zip(gold.shape, answer.shape, strict=True)
            ):
                return False
        except (Undefined, Unevaluable):
            return False
        tried += 1
    return tried > 2


def first_values(gold: Node, answer: Node) -> Counterexample | None:
    """Both at the first point at which they have a value, None where that is soon not found."""
    from qkv.maths.values.arithmetic import DIGITS, Undefined, Unevaluable, effort
    from qkv.maths.values.points import points, vocabulary

    words = vocabulary(gold, answer)
    for place in points(words, 3):
        with suppress(Undefined, Unevaluable), effort(SHOWING):
            return Counterexample.at(place, words, place.value(gold, DIGITS), place.value(answer, DIGITS))
    return None


def shapes_apart(gold: Node, answer: Node) -> str:
    return f"{wrote(answer)} is {shape_text(answer)}, and {shape_text(gold)} is wanted (as {wrote(gold)} is)"


def shape_text(node: Node) -> str:
    match node.shape:
        case ():
            return "a scalar"
        case (size,):
            return f"a vector (a column) of {size}"
        case (1, size):
            return f"a row of {size} (1×{size})"
    return "a matrix " + "×".join(map(str, node.shape))


def wrote(node: Node) -> str:
    from qkv.maths.writing import plain

    text = plain(node)
    return text if len(text) <= 60 else f"{text[:57]}…"
