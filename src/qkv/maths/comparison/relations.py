"""Equations, inequalities, systems, intervals and sets: compared by the points at which they hold.

Two equations are the same if left − right of one is left − right of the other times a factor that is never 0; two
inequalities, if that factor is positive. Where no such factor is found, points decide: solutions of either are found
name by name, and one at which only one of the two holds tells them apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from qkv.maths import tree as t
from qkv.maths.comparison.counterexample import Counterexample
from qkv.maths.comparison.domains import KINDS, Need, condition_text, is_positive, needs, with_first, zeros
from qkv.maths.comparison.rounding import compare_numbers, has_decimals, mark_rounded
from qkv.maths.comparison.trial import ENOUGH_KINKED, Outcome, decide
from qkv.maths.printing import plain
from qkv.maths.values.arithmetic import DIGITS, Undefined, Unevaluable, decimal, effort, plain_entries
from qkv.maths.values.points import Point, Vocabulary, agree_at, point, points, vocabulary

if TYPE_CHECKING:
    from qkv.maths.comparison.verdict import Verdict

Comparison: TypeAlias = "Callable[[t.Node, t.Node, Verdict], Verdict]"

REVERSED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
EQUALITIES = ("=", "≈")
STARTS, ENOUGH_SOLUTIONS, SOLVE_EFFORT = 8, 4, 60_000
NEAR = Fraction(1, 10**9)
SMOOTH = ("abs", "sqrt", "norm", "norm_F", "exp", "log", "trace", "sum")
MINUS_ONE = t.Number((), Fraction(-1))
ZERO = t.Number((), Fraction(0))


@dataclass(frozen=True)
class Statement:
    """left = right ("="), left ≠ right ("!="), left > right (">") or left ≥ right (">=")."""

    left: t.Node
    sign: str
    right: t.Node

    @property
    def gap(self) -> t.Node:
        """left − right; of a product that is compared with 0, only the factors that may be 0 or negative."""
        if isinstance(self.right, t.Number) and not self.right.value:
            if isinstance(self.left, t.Multiply):
                kept = [one for one in self.left.factors if one.shape or not is_positive(one) or needs(one)]
                return product(*kept) if kept else self.left
            return self.left
        return t.Add(self.left.shape, (self.left, product(MINUS_ONE, self.right)))

    def holds_at(self, place: Point) -> bool | None:
        """Whether it holds at a point; None if the precision does not tell."""
        right = self.right
        if right.shape != self.left.shape and right == ZERO:
            right = t.Special(self.left.shape, "zeros")
        same = agree_at(place, self.left, right)
        if self.sign in ("=", "!=") or same is not False:
            return same if same is None or self.sign in ("=", ">=") else not same
        a, b = (list(plain_entries(place.value(side, DIGITS))) for side in (self.left, right))
        return all(decimal(x) > decimal(y) for x, y in zip(a, b, strict=True))

    def __str__(self) -> str:
        signs = {"=": "=", "!=": "≠", ">": ">", ">=": "≥"}
        return f"{plain(self.left)} {signs[self.sign]} {plain(self.right)}"


def product(*factors: t.Node) -> t.Node:
    return t.Multiply(next((factor.shape for factor in factors if factor.shape), ()), factors)


def is_chain(node: t.Node) -> bool:
    """Whether a node is a chain of equalities."""
    return isinstance(node, t.Relation) and all(sign in EQUALITIES for sign in node.signs)


def head(node: t.Node) -> str | None:
    """The lone name that `name = value` or `name ∈ set` gives a value; None for anything else."""
    if not isinstance(node, t.Relation) or not (is_chain(node) or node.signs == ("in",)):
        return None
    match node.members:
        case (t.Symbol(name=name) | t.Index(name=name), *_, value) if name not in t.names(value):
            return name
    return None


def is_statement(node: t.Node) -> bool:
    return isinstance(node, t.Relation) or (
        isinstance(node, t.Collection) and all(isinstance(part, t.Relation) for part in node.parts)
    )


def values_of(gold: t.Node, answer: t.Node) -> tuple[t.Node, t.Node]:
    """Both without the left sides that may be dropped: a lone name, the same in both or absent in one.

    A chain of several equalities, and an equality that holds everywhere, are judged by their last member.
    """
    gold, answer = values_of_one_name(gold), values_of_one_name(answer)
    first, second = head(gold), head(answer)
    if first is not None and second is not None:
        return (last(gold), last(answer)) if first == second else (gold, answer)
    if first is not None and not is_statement(answer):
        return last(gold), answer
    if second is not None and not is_statement(gold):
        return gold, last(answer)
    several = any(isinstance(node, t.Relation) and len(node.signs) > 1 for node in (gold, answer))
    if first is None and is_derivation(gold) and (not is_statement(answer) or (is_chain(answer) and several)):
        gold = last(gold)
    if second is None and not is_statement(gold) and is_derivation(answer):
        answer = last(answer)
    return gold, answer


def values_of_one_name(node: t.Node) -> t.Node:
    """x = 1, x = −1 as x ∈ {1, −1}; any other node itself."""
    if not isinstance(node, t.Collection) or len(node.parts) < 2 or None in map(head, node.parts):
        return node
    if len(set(map(head, node.parts))) > 1:
        return node
    named = t.children(node.parts[0])[0]
    return t.Relation((), (named, t.Collection((), tuple(map(last, node.parts)))), ("in",), span=node.span)


def is_derivation(node: t.Node) -> bool:
    """Whether a chain computes a value: several equalities, or one that is not false at any point."""
    if not is_chain(node):
        return False
    assert isinstance(node, t.Relation)
    if node.signs != ("=",) or any(isinstance(member, (t.Order, t.PlusMinus)) for member in node.members):
        return True
    left, right = node.members
    if left.shape != right.shape:
        return False
    compared = compare_numbers(left, right)
    return (decide(left, right) if compared is None else compared[0]).equal is not False


def last(node: t.Node) -> t.Node:
    """The last member of a chain, marked as rounded after ≈; any other node itself."""
    if not isinstance(node, t.Relation):
        return node
    value = node.members[-1]
    if isinstance(value, t.Written) and node.members[0].shape:
        value = replace(value, brackets="")  # the name says that it is a vector
    return mark_rounded(value) if node.signs[-1] == "≈" else value


def statements(node: t.Node) -> list[Statement] | None:
    """The statements of a chain, a membership or a system; None if a part of it is something else."""
    if isinstance(node, t.Collection):
        parts = [statements(part) for part in node.parts]
        return None if None in parts else [one for part in parts for one in part or ()]
    if not isinstance(node, t.Relation):
        return None
    found: list[Statement] = []
    for left, sign, right in zip(node.members, node.signs, node.members[1:], strict=False):
        inside = as_interval(right) if sign == "in" else None
        if inside is not None:
            for end, closed, flip in ((inside.low, inside.closed[0], False), (inside.high, inside.closed[1], True)):
                if not infinite(end):
                    sides = (end, left) if flip else (left, end)
                    found.append(Statement(sides[0], ">=" if closed else ">", sides[1]))
            continue
        if sign == "in" or any(isinstance(side, (t.Order, t.Interval, t.Collection)) for side in (left, right)):
            return None
        if sign in ("<", "<="):
            left, sign, right = right, REVERSED[sign], left
        if sign == "=" and any(isinstance(n, t.PlusMinus) for n in t.walk(left, right)):
            both = [Statement(with_sign(left, by), "=", with_sign(right, by)).gap for by in (1, -1)]
            left, right = product(*both), ZERO
        sides = zeros_like(left, right)
        if len(sides[0].shape) != len(sides[1].shape):
            return None
        found.append(Statement(sides[0], "=" if sign == "≈" else sign, sides[1]))
    return found


def zeros_like(left: t.Node, right: t.Node) -> tuple[t.Node, t.Node]:
    """Both sides; zeros of another shape than the other side take its shape."""

    def shaped(side: t.Node, other: t.Node) -> t.Node:
        zero = side == ZERO or (isinstance(side, t.Special) and side.name == "zeros")
        if not zero or side.shape == other.shape:
            return side
        return t.Special(other.shape, "zeros") if other.shape else ZERO

    return shaped(left, right), shaped(right, left)


def with_sign(node: t.Node, sign: int) -> t.Node:
    """`node` with every ± replaced by one sign."""
    if isinstance(node, t.PlusMinus):
        inner = with_sign(node.body, sign)
        return inner if sign > 0 else product(MINUS_ONE, inner)
    return t.rebuilt(node, lambda child: with_sign(child, sign))


def as_interval(node: t.Node) -> t.Interval | None:
    """An interval, also one that was read as a pair in brackets; None for anything else."""
    if isinstance(node, t.Interval):
        return node
    brackets = getattr(node, "brackets", "")
    if isinstance(node, t.Written) and node.shape in ((2,), (1, 2)) and brackets in ("(", "["):
        low, high = node.entries
        return t.Interval((), low, high, (brackets == "[", brackets == "["), span=node.span)
    return None


def infinite(node: t.Node) -> int:
    """1 for ∞, −1 for −∞, 0 for anything else."""
    match node:
        case t.Constant(name="infinity"):
            return 1
        case t.Multiply(factors=(t.Number(value=value), t.Constant(name="infinity"))):
            return (value > 0) - (value < 0)
    return 0


def compare_brackets(gold: t.Node, answer: t.Node, found: Verdict) -> Verdict | None:
    """The verdict on two pairs in different brackets: (0, 1) and [0, 1] are intervals, (2, 3) and [2, 3] are vectors.

    With 0 as the lower end and another upper end they may be either; None for anything else.
    """
    first, second = (as_interval(node) for node in (gold, answer))
    if first is None or second is None or first.closed == second.closed:
        return None
    ends = [as_number(end) for pair in (first, second) for end in (pair.low, pair.high)]
    if ends[0] is not None and ends[:2] == ends[2:] and ends[:2] == [0, 1]:
        return found.different("the brackets differ: ( leaves an end out of an interval, [ keeps it")
    if ends[0] == 0 == ends[2] and min(end or 0 for end in ends[1::2]) > 0:
        condition = "both are vectors, not intervals"
        reason = f"equal only if {condition}: the brackets differ"
        return found.conditional(reason, condition)
    return None


def as_number(node: t.Node) -> Fraction | None:
    """The exact number that a node is, with or without a sign; None for anything else."""
    match node:
        case t.Number(value=value, unit=None):
            return value
        case t.Multiply(factors=(t.Number(value=sign), t.Number(value=value, unit=None))) if sign == -1:
            return -value
    return None


def compare_relations(gold: t.Node, answer: t.Node, found: Verdict, compare_values: Comparison) -> Verdict:
    """The verdict if at least one side is a relation, a system, an interval or a set."""
    first, second = statements(gold), statements(answer)
    if first is not None and second is not None:
        return compare_statements(first, second, found, compare_values)
    intervals = [as_interval(last(node) if is_membership(node) else node) for node in (gold, answer)]
    if intervals[0] is not None and intervals[1] is not None:
        return compare_intervals(intervals[0], intervals[1], found, compare_values)
    for interval, other, turned in ((intervals[0], answer, False), (intervals[1], gold, True)):
        free = t.symbols_of(other)
        if interval is not None and len(free) == 1 and (second if not turned else first) is not None:
            named = t.Relation((), (next(iter(free.values())), interval), ("in",))
            sides = (other, named) if turned else (named, other)
            return compare_relations(*sides, found, compare_values)
    sets = [elements(node) for node in (gold, answer)]
    if sets[0] is not None and sets[1] is not None:
        return compare_sets(sets[0], sets[1], found, compare_values)
    if any(is_membership(node) or isinstance(node, t.Written) for node in (gold, answer)):
        return found.unread("qkv cannot compare this set with the other")
    kinds = [kind_of(node) for node in (gold, answer)]
    if kinds[0] == kinds[1]:
        return found.unread(f"qkv cannot compare {kinds[0]} with another")
    return found.different(f"{kinds[0]} is expected, not {kinds[1]}")


def is_membership(node: t.Node) -> bool:
    return isinstance(node, t.Relation) and node.signs == ("in",)


def elements(node: t.Node) -> tuple[t.Node, ...] | None:
    """The elements of a set, a value as its one element, a ± as two; None for a statement or an interval."""
    if isinstance(node, (t.Relation, t.Interval, t.Written)) or is_statement(node):
        return None
    if isinstance(node, t.Collection):
        return node.parts
    two = any(isinstance(n, t.PlusMinus) for n in t.walk(node))
    return tuple(with_sign(node, sign) for sign in (1, -1)) if two else (node,)


def kind_of(node: t.Node) -> str:
    match node:
        case t.Relation():
            return "an equation" if is_chain(node) else "an inequality"
        case t.Interval():
            return "an interval"
        case t.Collection():
            return "a system" if is_statement(node) else "a set"
    return "a value"


def compare_intervals(gold: t.Interval, answer: t.Interval, found: Verdict, compare_values: Comparison) -> Verdict:
    ends = [compare_values(a, b, found) for a, b in ((gold.low, answer.low), (gold.high, answer.high))]
    wrong = next((end for end in ends if not end), None)
    if wrong is not None:
        which = "lower" if wrong is ends[0] else "upper"
        return replace(wrong, reason=f"the {which} end of the interval: {wrong.reason}")
    for closed, given, end, which in zip(
        gold.closed, answer.closed, (gold.low, gold.high), ("lower", "upper"), strict=True
    ):
        if closed != given and not infinite(end):
            reason = f"the {which} end {'belongs' if closed else 'does not belong'} to the interval that is expected"
            return found.different(reason)
    return joined(ends, found)


def joined(verdicts: Sequence[Verdict], found: Verdict) -> Verdict:
    """The verdict that all parts are equal: proved if all of them are."""
    weakest = next((verdict for verdict in verdicts if verdict.evidence != "proved"), verdicts[0])
    several = [v.certificate if isinstance(v.certificate, tuple) else (v.certificate,) for v in verdicts]
    certificates = tuple(certificate for each in several for certificate in each)
    proved = weakest.evidence == "proved" and None not in certificates
    return replace(
        found,
        kind="equal",
        evidence="proved" if proved else "tested",
        reason=weakest.reason,
        certificate=certificates if proved else None,
    )


def compare_sets(
    golds: Sequence[t.Node],
    answers: Sequence[t.Node],
    found: Verdict,
    compare_values: Comparison,
) -> Verdict:
    """The verdict on two finite sets: each element of one is an element of the other."""
    table = [[compare_values(gold, answer, found) for answer in answers] for gold in golds]
    columns = [list(column) for column in zip(*table, strict=True)]
    for lines, elements, whose in ((table, golds, "misses"), (columns, answers, "has, and should not have,")):
        for line, element in zip(lines, elements, strict=True):
            if any(line):
                continue
            if any(verdict.kind != "different" for verdict in line):
                return next(verdict for verdict in line if verdict.kind != "different")
            return found.different(f"the answer {whose} {plain(element)}")
    chosen = [next(verdict for verdict in line if verdict) for line in [*table, *columns]]
    return joined(chosen, found)


def compare_statements(
    golds: Sequence[Statement], answers: Sequence[Statement], found: Verdict, compare_values: Comparison
) -> Verdict:
    """The verdict on two systems of statements, which hold at the same points if each is one of the other's."""
    table = [[same_statement(gold, answer, found, compare_values) for answer in answers] for gold in golds]
    lines = [*table, *map(list, zip(*table, strict=True))]
    chosen = [next((verdict for verdict in line if verdict), None) for line in lines]
    if None not in chosen:
        return joined([verdict for verdict in chosen if verdict], found)
    what = "equations" if all(one.sign == "=" for one in golds) else "relations"
    conditional = [next((v for v in line if v.kind in ("equal", "conditional")), None) for line in table]
    if len(golds) == len(answers) == 1 and conditional[0] is not None:
        return conditional[0]
    outcome = try_statements(golds, answers)
    if outcome.equal:
        reason = f"the {what} hold at the same points, as far as tried"
        return replace(found, kind="equal", evidence="tested", reason=reason)
    if outcome.condition:
        return conditional_on(outcome.condition, found)
    if outcome.equal is None:
        return found.unread(f"qkv cannot tell whether the {what} hold at the same points")
    if not all(map(decisive, golds, answers)) and has_decimals(*(one.gap for one in (*golds, *answers))):
        return found.unread(f"the {what} have decimals, which may be rounded")
    place = outcome.counterexample
    reason = missing_name(golds, answers) or f"not the same {what}: at {place.where if place else ''} {outcome.why}"
    return found.different(reason, place)


def decisive(gold: Statement, answer: Statement) -> bool:
    """Whether decimals are compared as such: both give a name a number."""
    return all(isinstance(one.left, t.Symbol) or isinstance(one.right, t.Symbol) for one in (gold, answer))


def conditional_on(condition: str, found: Verdict) -> Verdict:
    """The verdict on two that are the same where both have a value."""
    reason = f"equal only if {condition}; elsewhere one of the two has no value"
    return found.conditional(reason, condition)


def missing_name(golds: Sequence[Statement], answers: Sequence[Statement]) -> str | None:
    """Which named number is missing or extra, as text; None if both give the same names, or other things."""
    if any(t.names(one.right) for one in (*golds, *answers)):
        return None
    named = [
        [one.left.name for one in many if isinstance(one.left, t.Symbol) and one.sign == "="]
        for many in (golds, answers)
    ]
    if len(named[0]) != len(golds) or len(named[1]) != len(answers):
        return None
    missing, extra = ([n for n in named[a] if n not in named[1 - a]] for a in (0, 1))
    if missing:
        return f"the answer does not say what {' and '.join(missing)} is"
    return f"the answer also gives {' and '.join(extra)}, which is not asked for" if extra else None


def same_statement(gold: Statement, answer: Statement, found: Verdict, compare_values: Comparison) -> Verdict:
    """Whether two statements have the same sides, or the same difference up to a factor; unreadable if not known."""
    undecided = found.unread("qkv finds no factor between the two")
    order = gold.sign in REVERSED
    if order != (answer.sign in REVERSED) or (not order and gold.sign != answer.sign):
        return undecided
    conditional = None
    sides = (answer.left, answer.right)
    for turned in [sides] if order else [sides, sides[::-1]]:
        pairs = list(zip((gold.left, gold.right), turned, strict=True))
        if gold.sign != answer.sign or any(a.shape != b.shape for a, b in pairs):
            continue
        both = [compare_values(a, b, found) for a, b in pairs]
        if all(both):
            return joined(both, found)
        if conditional is None and all(verdict.kind in ("equal", "conditional") for verdict in both):
            conditional = next(verdict for verdict in both if not verdict)
            # Sides that are the same for equal components only say nothing about an inequality.
            if order and (conditional.condition or "").startswith("every component"):
                conditional = None
    outcome = proportional(gold, answer) if gold.sign == answer.sign else Outcome(None)
    if ">" in (gold.sign, answer.sign) and not outcome.equal:
        whole = [one for one in map(tightened, (gold, answer)) if one is not None]
        outcome = proportional(*whole) if len(whole) == 2 else outcome
    if outcome.equal:
        reason = "the two are the same by algebra" if outcome.evidence == "proved" else "the two are proportional"
        return replace(found, evidence=outcome.evidence, reason=reason, certificate=outcome.certificate)
    if outcome.condition:
        return conditional_on(outcome.condition, found)
    return undecided if conditional is None else conditional


def proportional(gold: Statement, answer: Statement) -> Outcome:
    """Whether left − right of one is that of the other times a factor: never 0, and positive for inequalities."""
    first, second = gold.gap, answer.gap
    best = Outcome(None)
    for factor in factors_between(first, second, gold, answer) if first.shape == second.shape else ():
        if gold.sign not in REVERSED or is_positive(factor):
            outcome = decide(first, product(factor, second))
            if outcome.equal:
                return outcome
            best = outcome if outcome.condition else best
    return best


def tightened(one: Statement) -> Statement | None:
    """a > b as a ≥ b + 1 for whole numbers; ≥ as it is; None for other numbers."""
    if one.sign == ">=":
        return one
    symbols = t.symbols_of(one.left, one.right).values()
    parts = [n for n in t.walk(one.left, one.right) if not isinstance(n, t.Symbol)]
    whole = all(
        isinstance(n, (t.Add, t.Multiply)) or (isinstance(n, t.Number) and n.value.denominator == 1) for n in parts
    )
    if not whole or not symbols or any(symbol.type.kind != "natural" for symbol in symbols):
        return None
    return Statement(one.left, ">=", t.Add((), (one.right, t.Number((), Fraction(1)))))


def factors_between(first: t.Node, second: t.Node, gold: Statement, answer: Statement) -> Iterator[t.Node]:
    """Factors that may take `second` to `first` and are never 0: a constant times powers of positive names, and
    the denominators of either. They are guesses, to be proved."""
    words = vocabulary(first, second)
    for attempt in range(STARTS):
        start = ratio_at(words, attempt, {}, first, second)
        if start is not None:
            break
    else:
        return
    constant, powers = start, []
    for name in positive_names(words):
        now = point(words, attempt, {})
        value = Fraction(now.sizes[name]) if name in now.sizes else now.values[name]
        other = ratio_at(words, attempt, {name: 2 * value}, first, second)
        if other is None or other / start <= 0:
            continue
        exponent = Fraction(round(2 * math.log2(other / start)), 2)
        if exponent and abs(exponent) <= 6:
            constant /= float(value) ** float(exponent)
            symbol = words.symbols.get(name) or t.Symbol((), name, t.Type("natural"))
            powers.append(t.Power((), symbol, t.Number((), exponent)))
    number = Fraction(constant).limit_denominator(10_000)
    if number:
        yield product(t.Number((), number), *powers)
    for side, turned in ((gold, True), (answer, False)):
        for node in (side.left, side.right):
            for bottom in (n.bottom for n in t.walk(node) if isinstance(n, t.Divide)):
                if is_positive(bottom):
                    yield t.Divide((), t.Number((), Fraction(1)), bottom) if turned else bottom


def positive_names(words: Vocabulary) -> list[str]:
    """The names that are positive numbers, on which no array depends in its size."""
    arrays = any(symbol.shape for symbol in words.symbols.values())
    kinds = {name: symbol.type for name, symbol in words.symbols.items() if symbol.type.definition is None}
    found = [name for name, kind in kinds.items() if kind.kind in ("positive", "natural")]
    return [name for name in found if not arrays or name not in words.sized()]


def ratio_at(words: Vocabulary, attempt: int, fixed: Mapping[str, Any], first: t.Node, second: t.Node) -> float | None:
    try:
        place = point(words, attempt, fixed)
        values = [list(plain_entries(place.value(node, DIGITS))) for node in (first, second)]
        return next((float(a) / float(b) for a, b in zip(*values, strict=True) if a and b), None)
    except (Undefined, Unevaluable, OverflowError, ZeroDivisionError):
        return None


def try_statements(golds: Sequence[Statement], answers: Sequence[Statement]) -> Outcome:
    """Look for a point at which only one of two systems holds; equal if both have solutions and none is found."""
    sides = [side for one in (*golds, *answers) for side in (one.left, one.right)]
    words, needed = vocabulary(*sides), list(dict.fromkeys(need for side in sides for need in needs(side)))
    agreed, solved, failing = 0, [0, 0], {}
    with effort(SOLVE_EFFORT):
        for place, whose in trial_places(words, golds, answers, needed):
            first, second = (all_hold(many, place) for many in (golds, answers))
            if first is not None and second is not None and first != second:
                shown = Counterexample.at(place, words, str(first).lower(), str(second).lower())
                why = "only the right one holds" if first else "only the answer holds"
                return Outcome(False, "refuted", shown, why=why)
            if first or second:
                failing |= dict.fromkeys(need for need in needed if need.fails_at(place))
            if first is None or second is None:
                continue
            agreed += 1
            if whose is not None and (first or any(one.sign in REVERSED for one in (golds, answers)[whose])):
                solved[whose] += 1
    # Without a solution there is no evidence, nor where some may be missed.
    several = any(sum(one.sign == "=" for one in many) > 1 for many in (golds, answers))
    arrays = any(side.shape for side in sides)
    if several or arrays or any(isinstance(n, t.Call) and n.name not in SMOOTH for n in t.walk(*sides)):
        return Outcome(None, why="solutions may be missed")
    enough = ENOUGH_SOLUTIONS if movable_count(words) > 1 else 1
    if min(solved) < enough or agreed < ENOUGH_KINKED / 2:
        return Outcome(None, why="too few solutions are found")
    return Outcome(None, condition=condition_text(list(failing))) if failing else Outcome(True, "tested")


def movable_count(words: Vocabulary) -> int:
    return len([s for s in words.symbols.values() if s.type.definition is None and s.type.kind != "map"])


def all_hold(many: Sequence[Statement], place: Point) -> bool | None:
    """Whether all hold at a point; None if that is not known, or there is no value."""
    try:
        found = [one.holds_at(place) for one in many]
    except (Undefined, Unevaluable):
        return None
    return False if False in found else None if None in found else True


def trial_places(
    words: Vocabulary, golds: Sequence[Statement], answers: Sequence[Statement], needed: Sequence[Need]
) -> Iterator[tuple[Point, int | None]]:
    """Solutions of each system and points at which one of its statements has equal sides; others; then their like."""
    near: list[tuple[int, int, dict[str, Any]]] = []
    for (whose, many), attempt in itertools.product(enumerate((golds, answers)), range(STARTS)):
        found = [each for one in many for each in zeros(words, one.gap, attempt, {})]
        near += [(whose, attempt, like) for fixed, name in found for like in neighbours(words, fixed, name)]
        edges = [[Statement(need.node, "=", ZERO), one] for need in needed if not need.indices for one in many]
        joint = [fixed for system in [list(many), *edges] for fixed in solutions(words, attempt, system, {})]
        for fixed in [*joint, *(fixed for fixed, _ in found)]:
            # An array of zeros solves too many equations to be evidence.
            blank = any(
                words.symbols[name].shape and value == 0 for name, value in fixed.items() if name in words.symbols
            )
            with suppress(Undefined, Unevaluable):
                yield point(words, attempt, fixed), None if blank else whose
    for place in points(words, ENOUGH_KINKED):
        yield place, None
    for whose, attempt, fixed in near:
        with suppress(Undefined, Unevaluable):
            yield point(words, attempt, fixed), whose


def neighbours(words: Vocabulary, fixed: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """The fixed values with a little more and a little less for `name`."""
    value, step = fixed[name], Fraction(1) if name in words.sizes else NEAR
    for by in (step, -step):
        if isinstance(value, tuple):
            yield {**fixed, name: ("set", with_first(value[1], by))}
        elif KINDS.get(words.symbols[name].type.kind if name in words.symbols else "natural", bool)(value + by):
            yield {**fixed, name: value + by}


def solutions(
    words: Vocabulary, attempt: int, many: list[Statement], fixed: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Values that make both sides of each statement equal, one statement after the other."""
    if not many:
        yield dict(fixed)
        return
    for chosen, _ in zeros(words, many[0].gap, attempt, fixed):
        yield from solutions(words, attempt, many[1:], chosen)
