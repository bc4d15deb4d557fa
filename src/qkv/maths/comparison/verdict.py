"""`compare`: whether an answer equals the gold, by proof or by trial, and if not, why and under which condition."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qkv.errors import IllTyped, MathsError, OptionError, OptionTypeError, complaint, point_at
from qkv.maths.comparison.counterexample import Counterexample, pretty_symbol, value_text
from qkv.maths.comparison.trial import decide, differ, is_slow, try_as_sets, try_points
from qkv.maths.parsing.parse import parse
from qkv.maths.printing import plain
from qkv.maths.sizes import names_in, size_value
from qkv.maths.symmetry import declared_symmetric
from qkv.maths.tree import (
    Multiply,
    Node,
    Number,
    Order,
    Part,
    PlusMinus,
    Relation,
    Special,
    Symbol,
    Type,
    free_indices,
    names,
    rebuilt,
    substitute,
    symbols_of,
    walk,
)
from qkv.maths.values.arithmetic import DIGITS, Undefined, Unevaluable, effort, spend
from qkv.maths.values.points import Point, Vocabulary, agree_at, points, vocabulary, with_defined_sizes

APPROXIMATELY = re.compile(r"[\s$({\[\\]*(?:≈|\\?approx\b)")
COMPARE_EFFORT, SHOW_EFFORT = (
    160_000,
    5_000,
)  # products of numbers: for a comparison, and for values that are only shown
INEQUALITIES = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "!=": "!="}

# Whether to search for the condition under which a wrong answer would be right.
_EXPLAIN: ContextVar[bool] = ContextVar("remarks", default=True)


@dataclass(frozen=True)
class Verdict:
    """The result of `compare` and `holds`; true only if kind is "equal".

    Attributes:
        kind: "equal", "different", "conditional", "ill-typed" or "unreadable".
        evidence: "proved", "tested", "refuted", or None if nothing was compared.
        reason: One sentence on one line.
        condition: The condition under which a conditional answer is right.
        counterexample: A point at which the two differ.
        gold: The gold as it was given.
        answer: The answer as it was given.
        suggestion: A well-typed text that was probably meant instead of an ill-typed one.
        where: For a refused text, its line with carets below the error.
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
        """The fields for JSON; the numbers of the counterexample are texts."""
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
    """Compare an answer with the gold.

    Args:
        gold: The right answer, as LaTeX or Unicode mathematics.
        answer: The answer to judge.
        symbols: Names and their types, such as `{"mu": "vector[d]", "d": "natural"}`.

    Returns:
        A `Verdict`. Texts that cannot be parsed give kind "unreadable" or "ill-typed"; they do not raise.

    Raises:
        OptionTypeError: If `gold` or `answer` is not text.
        OptionError: If `symbols` are malformed.

    >>> verdict = compare(r"\\mu^T\\mu", "d mu^2", {"mu": "vector[d]", "d": "natural"})
    >>> verdict.kind, verdict.condition
    ('conditional', 'every component of μ is the same (μ = m·1, then both are d m²)')
    """
    check_arguments(gold, answer, symbols)
    return _compare_cached(gold, answer, tuple(symbols.items()), _EXPLAIN.get())


@lru_cache(maxsize=256)
def _compare_cached(gold: str, answer: str, items: tuple[tuple[str, str], ...], remarks: bool) -> Verdict:
    from qkv.maths.types import declare

    with declared_symmetric(declare(dict(items)).types.values()), effort(COMPARE_EFFORT):
        return compare_texts(gold, answer, dict(items))


def equal(gold: str, answer: str, symbols: Mapping[str, str]) -> bool:
    """Whether `compare` finds the two equal, without the work of explaining why not.

    Args:
        gold: The right answer.
        answer: The answer to judge.
        symbols: Names and their types.

    Returns:
        True only if the verdict is "equal".

    Raises:
        OptionTypeError, OptionError: As `compare`.

    >>> equal(r"\\mu^T\\mu", r"\\|\\mu\\|^2", {"mu": "vector[d]"}), equal("d", "d^2", {"d": "natural"})
    (True, False)
    """
    token = _EXPLAIN.set(False)
    try:
        return compare(gold, answer, symbols).kind == "equal"
    finally:
        _EXPLAIN.reset(token)


def compare_texts(gold: str, answer: str, symbols: Mapping[str, str]) -> Verdict:
    """`compare` with arguments that were checked."""

    found = Verdict("equal", None, "", gold=gold, answer=answer)
    try:
        right = with_rounding(gold, parse(gold, symbols))
    except MathsError as error:
        return replace(refusal(error, found, "the gold itself is refused: "), suggestion=None)
    try:
        wanted = final_value(right)
        given = with_rounding(answer, parse(answer, symbols, expected=wanted.shape, free=free_indices(wanted)))
    except IllTyped as error:
        refused = refusal(error, found)
        if not _EXPLAIN.get():
            return refused
        conditional = reread_as_scalars(right, answer, symbols, replace(found, where=refused.where))
        return refused if conditional is None else conditional
    except MathsError as error:
        return refusal(error, found)
    return compare_trees(right, given, found)


def with_rounding(text: str, node: Node) -> Node:
    """The tree of a text, with its decimals marked as rounded if the text begins with ≈."""
    if not APPROXIMATELY.match(text) or isinstance(node, Relation):
        return node
    from qkv.maths.comparison.rounding import mark_rounded

    return mark_rounded(node)


def check_arguments(gold: object, answer: object, symbols: object) -> None:
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
    """The verdict on a text that was refused; `whose` names it if it is not the answer."""
    kind = "ill-typed" if isinstance(error, IllTyped) else "unreadable"
    reason = error.reason
    if error.suggestion and not whose:
        reason = f"{reason}; did you mean {error.suggestion}?"
    # One character for one, so that the carets stay in place.
    source = re.sub(r"[^\S\n]", " ", error.source)
    where = point_at(source, error.span) if source.strip() else ""
    line = " ".join(f"{whose}{reason}".split())
    return replace(found, kind=kind, reason=line, suggestion=error.suggestion.split(" or ")[0] or None, where=where)


def final_value(node: Node) -> Node:
    """The last member of a chain, marked as rounded after ≈; any other node itself."""
    if not isinstance(node, Relation):
        return node
    last = node.members[-1]
    if node.signs[-1] == "≈":
        from qkv.maths.comparison.rounding import mark_rounded

        return mark_rounded(last)
    return last


def compare_trees(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """The verdict on two trees."""
    if isinstance(gold, Relation) and gold.signs[-1] in INEQUALITIES:
        return compare_inequalities(gold, answer, found)
    if isinstance(answer, Relation) and answer.signs[-1] in INEQUALITIES:
        return replace(found, kind="different", evidence="refuted", reason="a value is expected, not an inequality")
    verdict = compare_values(final_value(gold), final_value(answer), found)
    return check_chain(answer, verdict)


def check_chain(answer: Node, verdict: Verdict) -> Verdict:
    """The verdict on the end of a chain, with a note if an earlier member is not equal to it."""
    if not isinstance(answer, Relation):
        return verdict

    last = final_value(answer)
    for member, sign in zip(answer.members, answer.signs, strict=False):
        if sign != "=" or isinstance(member, (Order, PlusMinus)) or isinstance(last, (Order, PlusMinus)):
            continue
        # A name without a definition is being defined here; a decimal at the end may be the rounded value.
        if (isinstance(member, Symbol) and member.type.definition is None) or is_rounded_from(member, last):
            continue
        if member.shape == last.shape and differ(member, last):
            note = f"only the end of the chain is judged: it is not equal to {short_text(member)} before it"
            return replace(verdict, reason=f"{verdict.reason} ({note})")
    return verdict


def is_rounded_from(member: Node, last: Node) -> bool:
    """Whether the end of a chain is the member rounded to the digits shown."""
    from qkv.maths.comparison.rounding import compare_numbers

    compared = compare_numbers(member, last) if member.shape == last.shape else None
    return compared is not None and compared[0].equal is True


def compare_inequalities(gold: Relation, answer: Node, found: Verdict) -> Verdict:
    """The verdict on two inequalities, which are equal if their sides are, in the same or the reversed order."""
    wanted = (gold.members[-2], gold.signs[-1], gold.members[-1])
    if not isinstance(answer, Relation) or answer.signs[-1] not in INEQUALITIES:
        return replace(found, kind="different", evidence="refuted", reason="an inequality is expected, not a value")
    sign, sides = answer.signs[-1], answer.members[-2:]
    # ≠ is symmetric: either order may be meant.
    orders = [order for read, order in ((sign, sides), (INEQUALITIES[sign], sides[::-1])) if read == wanted[1]]
    if not orders:
        return replace(found, kind="different", evidence="refuted", reason=f"{wanted[1]} is expected, not {sign}")
    wrong: list[Verdict] = []
    for order in orders:
        both = [compare_values(a, b, found) for a, b in zip((wanted[0], wanted[2]), order, strict=True)]
        if all(both):
            return next((verdict for verdict in both if verdict.evidence == "tested"), both[0])
        wrong += [verdict for verdict in both if not verdict]
    return wrong[0]


def compare_values(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """The verdict on two trees that are not chains."""
    from qkv.maths.comparison.asymptotics import compare_growth

    if isinstance(gold, Order) or isinstance(answer, Order):
        return compare_growth(gold, answer, found)
    if any(any(plus_minus_nodes(node)) for node in (gold, answer)):
        return compare_two_valued(gold, answer, found)
    return compare_ordinary(gold, answer, found)


def plus_minus_nodes(node: Node):

    return (n for n in walk(node) if isinstance(n, PlusMinus))


def with_sign(node: Node, sign: int) -> Node:
    """`node` with every ± replaced by one sign."""

    if isinstance(node, PlusMinus):
        inner = with_sign(node.body, sign)
        return inner if sign > 0 else Multiply(inner.shape, (Number((), Fraction(-1)), inner))
    return rebuilt(node, lambda child: with_sign(child, sign))


def compare_two_valued(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """The verdict on trees with ±, whose pairs of values are compared as sets: by proof, or point by point."""

    golds, answers = (
        [with_sign(node, sign) for sign in (1, -1)] if list(plus_minus_nodes(node)) else [node]
        for node in (gold, answer)
    )
    if len(golds) != len(answers):
        count = {1: "one value", 2: "two values (±)"}
        reason = f"the answer has {count[len(answers)]}, the right one has {count[len(golds)]}"
        extra = golds if len(golds) == 2 else answers
        if compare_ordinary(extra[0], extra[1], found).kind == "equal":
            return compare_ordinary(golds[0], answers[0], found)
        return replace(found, kind="different", evidence="refuted", reason=reason)
    first = compare_ordinary(golds[0], answers[0], found)
    if not same_shape(golds[0], answers[0]):
        return first
    for order in (answers, answers[::-1]):
        both = [compare_ordinary(a, b, found) for a, b in zip(golds, order, strict=True)]
        if all(both):
            return next((verdict for verdict in both if verdict.evidence == "tested"), both[0])
    outcome = try_as_sets(golds, answers)
    if outcome.equal:
        reason = "the two have the same two values at every point that was tried"
        return replace(found, kind="equal", evidence="tested", reason=reason)
    if outcome.equal is None:
        reason = f"qkv can neither prove nor test whether the two have the same values: {outcome.why}"
        return replace(found, kind="unreadable", reason=reason)
    point = outcome.counterexample
    reason = f"not the same two values: {point}"
    return replace(found, kind="different", evidence="refuted", reason=reason, counterexample=point)


def compare_ordinary(gold: Node, answer: Node, found: Verdict) -> Verdict:
    """The verdict by shapes, then decimals as written, then proof, then trial, then a condition."""
    from qkv.maths.comparison.rounding import compare_numbers, within_rounding

    gold, answer = as_column(gold), as_column(answer)
    if not same_shape(gold, answer):
        point = first_values(gold, answer) if _EXPLAIN.get() else None
        reason = shape_mismatch(gold, answer)
        return replace(found, kind="different", evidence="refuted", reason=reason, counterexample=point)
    compared = compare_numbers(gold, answer)
    if compared is not None:
        outcome, reason = compared
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
    if not _EXPLAIN.get():
        return wrong
    if outcome.small is not None:
        gold, answer = outcome.small.gold, outcome.small.answer
    conditional = find_condition(gold, answer, wrong)
    if conditional is not None:
        return conditional
    where = special_case(gold, answer)
    return replace(wrong, reason=f"{wrong.reason}; they agree where {where}, not in general") if where else wrong


def as_column(node: Node) -> Node:
    """A matrix of one column as a vector, and a 1×1 matrix as a scalar."""
    one = Number((), Fraction(1))
    if node.shape == (1, 1):
        return Part((), node, (one, one))
    if len(node.shape) == 2 and node.shape[1] == 1:
        return Part(node.shape[:1], node, (None, one))
    return node


def same_shape(gold: Node, answer: Node) -> bool:
    """Whether two shapes are equal, as texts or after substituting definitions."""
    if gold.shape == answer.shape:
        return True
    if len(gold.shape) != len(answer.shape):
        return False

    tried = 0
    words = vocabulary(gold, answer)
    scalars = {name: symbol for name, symbol in words.symbols.items() if not symbol.shape}
    for point in points(replace(words, symbols=scalars), 6):
        try:
            if any(
                size_value(a, point.sizes) != size_value(b, point.sizes)
                for a, b in zip(gold.shape, answer.shape, strict=True)
            ):
                return False
        except (Undefined, Unevaluable):
            return False
        tried += 1
    return tried > 2


def first_values(gold: Node, answer: Node) -> Counterexample | None:
    """The values of both at the first point where both have one; None if none of the first few has."""

    words = vocabulary(gold, answer)
    for place in points(words, 3):
        with suppress(Undefined, Unevaluable), effort(SHOW_EFFORT):
            return Counterexample.at(place, words, place.value(gold, DIGITS), place.value(answer, DIGITS))
    return None


def shape_mismatch(gold: Node, answer: Node) -> str:
    expected = f"{describe_shape_of(gold)} is wanted (as {short_text(gold)} is)"
    return f"{short_text(answer)} is {describe_shape_of(answer)}, and {expected}"


def describe_shape_of(node: Node) -> str:
    match node.shape:
        case ():
            return "a scalar"
        case (size,):
            return f"a vector (a column) of {size}"
        case (1, size):
            return f"a row of {size} (1×{size})"
    return "a matrix " + "×".join(map(str, node.shape))


def short_text(node: Node) -> str:

    text = plain(node)
    return text if len(text) <= 60 else f"{text[:57]}…"


LETTERS = ("m", "c", "t", "a", "b", "u", "w", "s")
MOST_VECTORS, MOST_SPECIAL = 5, 24
REMARK_EFFORT = 8_000  # products for a remark that a verdict can do without
CONDITION_WORK = 6_000
MOST_OUTSIDE = 24


def plain_vectors(*nodes: Node) -> dict[str, Symbol]:
    """The vectors that are neither random nor defined."""
    found = symbols_of(*nodes).items()
    return {name: s for name, s in found if s.type.kind == "vector" and not s.type.random and s.type.definition is None}


def constant_vector(symbol: Symbol, scalar: Symbol) -> Node:
    return Multiply(symbol.shape, (scalar, Special(symbol.shape, "ones")))


def fresh_letters(taken: set[str]) -> Iterator[str]:
    return (
        letter for letter in itertools.chain(LETTERS, (f"m_{k}" for k in itertools.count(1))) if letter not in taken
    )


def vector_groups(vectors: Mapping[str, Symbol]) -> Iterator[tuple[str, ...]]:
    """Each vector by itself, then all of them together."""
    for name in vectors:
        yield (name,)
    if 1 < len(vectors) <= MOST_VECTORS:
        yield tuple(vectors)


def reread_as_scalars(gold: Node, answer: str, symbols: Mapping[str, str], found: Verdict) -> Verdict | None:
    """The verdict on an ill-typed answer read with scalars in place of vectors; None if that is wrong too."""

    right = final_value(gold)
    if isinstance(right, (Order, PlusMinus)) or (isinstance(gold, Relation) and gold.signs[-1] not in ("=", "≈")):
        return None
    vectors = plain_vectors(right)
    for group in vector_groups(dict(itertools.islice(vectors.items(), MOST_VECTORS))):
        declared = dict(symbols)
        for name in group:
            declared[name] = "scalar"
            for size in vectors[name].shape:
                for dimension in names_in(size):
                    declared.setdefault(dimension, "natural")
        try:
            given = final_value(parse(answer, declared, expected=right.shape, free=free_indices(right)))
        except (MathsError, OptionError):
            continue
        if given.shape != right.shape or isinstance(given, (Order, PlusMinus)) or not set(group) <= names(given):
            continue
        scalars = {name: Symbol((), name, Type("scalar")) for name in group}
        swapped = substitute(right, {name: constant_vector(vectors[name], scalars[name]) for name in group})
        if decide(swapped, given, work=CONDITION_WORK).equal and not is_degenerate(given, group):
            return conditional_verdict(group, vectors, right, given, found)
    return None


def conditional_verdict(
    group: tuple[str, ...], vectors: Mapping[str, Symbol], right: Node, given: Node, found: Verdict
) -> Verdict:
    """The verdict on an answer that is right if these vectors are constant."""
    taken = names(right, given) | {size for s in vectors.values() for part in s.shape for size in names_in(part)}
    letters = dict(zip(group, fresh_letters(taken), strict=False))
    common = plain(substitute(given, {name: Symbol((), letter, Type("scalar")) for name, letter in letters.items()}))
    shown = {name: pretty_symbol(vectors[name]) for name in group}
    where = ", ".join(f"{shown[name]} = {letters[name]}·1" for name in group)
    text = f"every component of {' and of '.join(shown.values())} is the same ({where}, then both are {common})"
    meaning = " or ".join(f"scalar {name}" for name in shown.values())
    value = example_value(right)
    reason = f"equal only if {text}" + (f"; with {value} and no {meaning} is meant" if value else "")
    return replace(found, kind="conditional", evidence="refuted", reason=reason, condition=text)


def example_value(gold: Node) -> str:
    """The right value at a simple point: "μ = (1, 2) the right value is 5"."""
    words = vocabulary(gold)
    for place in points(words, 3):
        try:
            value = place.value(gold, DIGITS)
        except (Undefined, Unevaluable):
            continue
        parts = [
            f"{pretty_symbol(symbol)} = {value_text(place.values[name])}"
            for name, symbol in words.symbols.items()
            if name in place.values and not symbol.type.random and matters(gold, place, name, value)
        ]
        if parts:
            return f"{', '.join(parts)} the right value is {value_text(value)}"
    return ""


def matters(gold: Node, place: Point, name: str, value: Any) -> bool:
    """Whether the value at a point changes with the value of `name`."""
    now = place.values[name]
    if callable(now):
        return False
    try:
        return replace(place, values={**place.values, name: doubled(now)}).value(gold, DIGITS) != value
    except (Undefined, Unevaluable):
        return True


def doubled(value: Any) -> Any:
    return tuple(map(doubled, value)) if isinstance(value, tuple) else 2 * value + 1


def find_condition(gold: Node, answer: Node, wrong: Verdict) -> Verdict | None:
    """The verdict with the condition under which a wrong answer of the right shape is right; None if there is none."""
    if is_slow(gold, answer):
        return None
    vectors = {name: s for name, s in plain_vectors(gold, answer).items() if name not in indexed_names(gold)}
    used, answered = names(gold), names(answer)
    words = vocabulary(gold, answer)
    for group in vector_groups(dict(itertools.islice(vectors.items(), MOST_VECTORS))):
        equal = dict.fromkeys(group, 3)
        if not set(group) <= used or not try_points(gold, answer, fixed=equal, enough=2, simplify=False).equal:
            continue
        letters = dict(zip(group, fresh_letters(names(gold, answer)), strict=False))
        scalars = {name: Symbol((), letter, Type("scalar")) for name, letter in letters.items()}
        constants = {name: constant_vector(vectors[name], scalars[name]) for name in group}
        try:
            first, second = substitute(gold, constants), substitute(answer, constants)
        except ValueError:
            continue
        mentioned = [letter for name, letter in letters.items() if name in answered]

        def varied(place: Point, group: tuple[str, ...] = group) -> Point | None:
            return place if any(len(set(place.values[name])) > 1 for name in group) else None

        if decide(first, second, work=CONDITION_WORK).equal and not is_degenerate(first, mentioned):
            shown = [pretty_symbol(vectors[name]) for name in group]
            where = ", ".join(f"{name} = {letter}·1" for name, letter in zip(shown, letters.values(), strict=True))
            text = f"every component of {' and of '.join(shown)} is the same ({where})"
            reason = condition_reason(text, is_necessary(gold, answer, words, varied), wrong)
            return replace(wrong, kind="conditional", condition=text, reason=reason)
    return sign_condition(gold, answer, wrong)


def indexed_names(gold: Node) -> set[str]:
    """The names of which the gold takes a component by a free index; another index there is wrong, not conditional."""
    free = free_indices(gold)
    found: set[str] = set()
    for node in walk(gold):
        if isinstance(node, Part) and free.keys() & free_indices(*filter(None, node.indices)):
            found |= names(node.body)
    return found


def is_degenerate(common: Node, scalars: Iterable[str]) -> bool:
    """Whether the common value at constant vectors does not depend on one of the constants.

    softmax(s) and softmax(2s) are both uniform at every constant s, which is not a useful condition.
    """
    others = fresh_letters(names(common))
    changed = [substitute(common, {name: Symbol((), next(others), Type("scalar"))}) for name in scalars]
    return any(try_points(common, other, simplify=False).equal for other in changed)


def sign_condition(gold: Node, answer: Node, wrong: Verdict) -> Verdict | None:
    """The verdict if the answer is right for one sign of a number and wrong for the other; None if there is none."""
    words = vocabulary(gold, answer)
    for name, symbol in symbols_of(gold, answer).items():
        if symbol.type.kind != "scalar" or symbol.type.random or symbol.type.definition is not None:
            continue
        positive = Symbol((), name, Type("nonnegative"))
        for sign, value in (("≥", positive), ("≤", Multiply((), (Number((), Fraction(-1)), positive)))):
            probe = {name: Fraction(3 if sign == "≥" else -3)}
            if try_points(gold, answer, fixed=probe, enough=2, simplify=False).equal is not True:
                continue
            try:
                first, second = substitute(gold, {name: value}), substitute(answer, {name: value})
            except ValueError:
                continue

            def with_other_sign(place: Point, name: str = name, wanted: int = -1 if sign == "≥" else 1) -> Point | None:
                values = place.values
                if any(isinstance(value, Fraction) and not value for value in values.values()):
                    return None
                return replace(place, values={**values, name: wanted * abs(values[name])})

            if decide(first, second, work=CONDITION_WORK).equal:
                text = f"{pretty_symbol(symbol)} {sign} 0"
                if not is_necessary(gold, answer, words, with_other_sign):
                    return replace(wrong, reason=condition_reason(text, False, wrong))
                return replace(wrong, kind="conditional", condition=text, reason=condition_reason(text, True, wrong))
    return None


def is_necessary(gold: Node, answer: Node, words: Vocabulary, outside: Callable[[Point], Point | None]) -> bool:
    """Whether the two differ at every tried point at which the condition does not hold."""
    for place in points(words, MOST_OUTSIDE):
        try:
            outside_point = outside(place)
            if outside_point is not None and agree_at(with_defined_sizes(words, outside_point), gold, answer):
                return False
        except (Undefined, Unevaluable):
            continue
    return True


def condition_reason(text: str, only: bool, wrong: Verdict) -> str:
    if only:
        return f"equal only if {text}; not the same in general: {wrong.counterexample}"
    return f"equal if {text}, not in general: {wrong.counterexample}"


def special_case(gold: Node, answer: Node) -> str | None:
    """A special value for which a wrong answer is right, as text: "σ = 1"; None if there is none."""
    if is_slow(gold, answer):
        return None
    words = vocabulary(gold, answer)
    shown = {name: pretty_symbol(symbol) for name, symbol in words.symbols.items()}
    with effort(REMARK_EFFORT), suppress(Unevaluable):
        for text, fixed in itertools.islice(special_values(words, shown), MOST_SPECIAL):
            if try_points(gold, answer, fixed=fixed, simplify=False).equal:
                spend(0)  # out of effort: an untried point may be one at which the two differ
                return text
    return None


def special_values(words: Any, shown: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    free = {name: s for name, s in words.symbols.items() if s.type.definition is None and not s.type.random}
    numbers = {name: s.type.kind for name, s in free.items() if s.type.kind in ("scalar", "positive", "nonnegative")}
    for name in numbers:
        yield f"{shown[name]} = 1", {name: Fraction(1)}
    for name in words.sizes:
        yield f"{shown.get(name, name)} = 1", {name: 1}
    for a, b in itertools.combinations(words.sizes, 2):
        yield f"{shown.get(a, a)} = {shown.get(b, b)}", {b: ("as", a)}
    vectors = [name for name, symbol in free.items() if symbol.type.kind in ("vector", "matrix")]
    for a, b in itertools.combinations(vectors, 2):
        if free[a].shape == free[b].shape:
            yield f"{shown[a]} = {shown[b]}", {b: ("as", a)}
    for name, symbol in free.items():
        if symbol.type.kind == "vector" or numbers.get(name, "positive") != "positive":
            yield f"{shown[name]} = 0", {name: Fraction(0)}
