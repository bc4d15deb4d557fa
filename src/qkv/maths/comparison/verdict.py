"""`compare`: whether an answer equals the gold, by proof or by trial, and if not, why and under which condition."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qkv.errors import IllTyped, MathsError, OptionError, OptionTypeError, complaint, point_at
from qkv.maths import tree as t
from qkv.maths.comparison import relations, rounding
from qkv.maths.comparison.counterexample import Counterexample, pretty_symbol, value_text
from qkv.maths.comparison.domains import assuming, has_value
from qkv.maths.comparison.trial import decide, differ, is_slow, try_as_sets, try_points
from qkv.maths.parsing.naming import greek_name
from qkv.maths.parsing.parse import Reading, parse, readings
from qkv.maths.printing import plain
from qkv.maths.sizes import names_in, size_value
from qkv.maths.symmetry import declared_symmetric
from qkv.maths.types import declare
from qkv.maths.values.arithmetic import DIGITS, Undefined, Unevaluable, effort, spend
from qkv.maths.values.points import Point, Vocabulary, agree_at, points, vocabulary, with_defined_sizes

APPROXIMATELY = re.compile(r"[\s$({\[\\]*(?:≈|\\?approx\b)")
# Products of numbers: for a comparison, and for values that are only shown.
COMPARE_EFFORT, SHOW_EFFORT = 160_000, 5_000
MOST_READINGS, MOST_RENAMINGS = 4, 24
SPACE = re.compile(r"\\[A-Za-z]+\s*|(\s|\\[,;: ])")  # a space that does not only end a command
# How other readings are named, and the usual reading in their place.
USUAL = {"a shape": "as a product", "1024 bytes": "as 1000 bytes", "Python": "as mathematics"}

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
        renaming: Pairs of a name of the answer and the name of the gold that it stands for, if the answer is right
            under that renaming.
        certificate: For a proved verdict, the proof, which `qkv.maths.replay` has accepted; several, in a
            tuple, for several equations.
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
    renaming: tuple[tuple[str, str], ...] = ()
    certificate: Any = field(default=None, compare=False, repr=False)

    def __bool__(self) -> bool:
        return self.kind == "equal"

    def different(self, reason: str, counterexample: Counterexample | None = None) -> Verdict:
        return replace(self, kind="different", evidence="refuted", reason=reason, counterexample=counterexample)

    def conditional(self, reason: str, condition: str) -> Verdict:
        return replace(self, kind="conditional", evidence="refuted", reason=reason, condition=condition)

    def unread(self, reason: str) -> Verdict:
        return replace(self, kind="unreadable", reason=reason)

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON; the numbers of the counterexample are texts."""
        found = None if self.counterexample is None else self.counterexample.as_dict()
        names = ("kind", "evidence", "reason", "condition", "gold", "answer", "suggestion", "where")
        shown = {name: getattr(self, name) for name in names} | {"counterexample": found}
        several = self.certificate if isinstance(self.certificate, tuple) else (self.certificate,)
        steps = [[asdict(step) for step in one.steps] for one in several if one is not None]
        return shown | {"renaming": dict(self.renaming), "certificates": steps}

    def __str__(self) -> str:
        how = f" ({self.evidence})" if self.evidence else ""
        text = f"{self.kind}{how}: {self.reason}"
        point = self.counterexample
        if point is not None and point.point and str(point) not in text:
            text = f"{text}. At {point}"
        return f"{text}\n{self.where}" if self.where else text

    def _repr_html_(self) -> str:
        from html import escape

        from ...notebook import framed, table

        found = {"verdict": f"{self.kind} ({self.evidence})" if self.evidence else self.kind, "reason": self.reason}
        found |= {"right if": self.condition, "counterexample": self.counterexample, "answer": self.answer}
        found |= {"compared with": self.gold, "meant": self.suggestion}
        shown = table((name, text) for name, text in found.items() if text)
        return shown + framed(f"<pre>{escape(self.where)}</pre>") if self.where else shown


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
    types = declare(dict(items)).types.values()
    with declared_symmetric(types), assuming(types), effort(COMPARE_EFFORT):
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
    with unexplained():
        return compare(gold, answer, symbols).kind == "equal"


@contextmanager
def unexplained() -> Iterator[None]:
    """Compare inside without the work of explaining why two differ: "equal" stays, a condition may be missed."""
    token = _EXPLAIN.set(False)
    try:
        yield
    finally:
        _EXPLAIN.reset(token)


def compare_texts(gold: str, answer: str, symbols: Mapping[str, str]) -> Verdict:
    """`compare` with arguments that were checked."""
    found = Verdict("equal", None, "", gold=gold, answer=answer)
    try:
        golds = readings_of(gold, symbols)
    except MathsError as error:
        return replace(refusal(error, found, "the gold itself is refused: "), suggestion=None)
    right = golds[0].node
    wanted = final_value(right)
    try:
        answers = readings_of(answer, symbols, expected=wanted.shape, free=t.free_indices(wanted))
    except MathsError as error:
        unknown = getattr(error, "undeclared", ())
        if unknown:
            return compare_renamed(right, answer, symbols, unknown, refusal(error, found))
        refused = refusal(error, found)
        if not isinstance(error, IllTyped) or not _EXPLAIN.get():
            return refused
        conditional = reread_as_scalars(right, answer, symbols, replace(found, where=refused.where))
        return refused if conditional is None else conditional
    if isinstance(wanted, t.Order):
        renamed = compare_renamed_sizes(wanted, answers[0].node, symbols, found)
        if renamed is not None:
            return renamed
    return compare_readings(golds, answers, found)


def readings_of(text: str, symbols: Mapping[str, str], **options: Any) -> list[Reading]:
    """The ways to read a text, the standard one first, with decimals marked as rounded if it begins with ≈."""
    found = readings(text, symbols, **options)[:MOST_READINGS]
    if not APPROXIMATELY.match(text):
        return found
    return [replace(one, node=rounding.mark_rounded(one.node)) for one in found]


def compare_readings(golds: list[Reading], answers: list[Reading], found: Verdict) -> Verdict:
    """The verdict of the standard readings; if only some readings make the answer right, conditional on them.

    Readings of one kind go together: 1/2d equals 1/2d, however it is read.
    """
    golds, answers = tuples_first(golds, answers), tuples_first(answers, golds)
    standard = compare_trees(golds[0].node, answers[0].node, found)
    undecided = None
    for kind in dict.fromkeys(way_of(one) for one in (*golds, *answers) if one.note):
        alike = [next((one for one in many if way_of(one) == kind), None) for many in (golds, answers)]
        gold, answer = alike[0] or golds[0], alike[1] or answers[0]
        notes = [one.note.split(" read as ", 1) for one in alike if one is not None and one.note]
        # Right as mathematics, as the one product that may be a shape, or with a space after the divisor: it is right.
        below = notes[0][0].rpartition("/")[2].strip() if notes else ""
        spaced = kind == "a fraction" and any(space[1] for space in SPACE.finditer(below))
        settled = standard and (spaced or kind == "Python" or (kind == "a shape" and None in alike))
        if settled or (gold is golds[0] and answer is answers[0]):
            continue
        verdict = compare_trees(gold.node, answer.node, found)
        if bool(verdict) != bool(standard) and verdict.kind != "unreadable":
            ways = [(what, USUAL.get(kind, "from left to right") if standard else f"as {way}") for what, way in notes]
            condition = " and ".join(dict.fromkeys(f"{what} is read {way}" for what, way in ways))
            wrong = f"otherwise: {verdict.reason}" if standard else f"as it is usually read: {standard.reason}"
            return found.conditional(f"equal only if {condition}; {wrong}", condition)
        undecided = verdict if verdict.kind != "different" else undecided
    return undecided if undecided is not None and standard.kind == "different" else standard


def way_of(reading: Reading) -> str:
    """The kind of a reading, by its note."""
    way = reading.note.rpartition("read as ")[2]
    return way if way in USUAL or not way else "a fraction"


def tuples_first(ones: list[Reading], others: list[Reading]) -> list[Reading]:
    """The readings with tuples first if the other text is a tuple: n × m is a shape if (n, m) is wanted."""
    if not isinstance(final_value(others[0].node), t.Written):
        return ones
    return sorted(ones, key=lambda one: not isinstance(final_value(one.node), t.Written))


def compare_renamed(
    gold: t.Node, answer: str, symbols: Mapping[str, str], unknown: Iterable[str], refused: Verdict
) -> Verdict:
    """The verdict on an answer with names that are not declared: right if one renaming alone makes it right."""
    declared, words = declare(symbols).types, vocabulary(gold)
    targets = [n for n in dict.fromkeys([*words.symbols, *words.sizes]) if n in declared and not declared[n].definition]
    return only_renaming(
        tuple(dict.fromkeys(unknown)),
        targets,
        lambda renaming: read_renamed(gold, answer, symbols, renaming),
        gold,
        replace(refused, kind="unreadable"),
    )


def only_renaming(
    unknown: Sequence[str],
    targets: Sequence[str],
    renamed: Callable[[dict[str, str]], t.Node | None],
    gold: t.Node,
    refused: Verdict,
) -> Verdict:
    """The verdict if exactly one renaming of the unknown names makes the answer right; else the refusal."""
    right = []
    if any(len(base) > 1 and not greek_name(base) for base in (re.split("[_']", name)[0] for name in unknown)):
        return refused  # a word is not another spelling of a symbol
    for chosen in itertools.islice(itertools.permutations(targets, len(unknown)), MOST_RENAMINGS):
        renaming = dict(zip(unknown, chosen, strict=True))
        given = renamed(renaming)
        if given is not None and compare_trees(gold, given, refused):
            right.append(renaming)
    if len(right) != 1:
        return refused
    condition = " and ".join(f"{new} means {old}" for new, old in right[0].items())
    verdict = refused.conditional(f"equal only if {condition}, which nothing declares", condition)
    return replace(verdict, renaming=tuple(right[0].items()), where="", suggestion=None)


def read_renamed(gold: t.Node, answer: str, symbols: Mapping[str, str], renaming: Mapping[str, str]) -> t.Node | None:
    """The answer with names of the gold that it lacks in place of others; None if it cannot be read so."""
    declared, wanted = declare(symbols).types, final_value(gold)
    options: dict[str, Any] = {"expected": wanted.shape, "free": t.free_indices(wanted)}
    extended = {**symbols, **{new: symbols.get(old, "natural") for new, old in renaming.items()}}
    with suppress(MathsError, OptionError, ValueError):
        given = parse(answer, extended, **options)
        if t.names(given) & set(renaming.values()):
            return None
        return t.substitute(given, {n: t.Symbol(declared[o].shape, o, declared[o]) for n, o in renaming.items()})
    # A size may be the range of a sum, which the tree keeps as text.
    for new, old in renaming.items():
        if re.search(rf"(?<![A-Za-z]){re.escape(old)}(?![A-Za-z])", answer):
            return None
        answer = re.sub(rf"(?<![A-Za-z\\]){re.escape(new)}(?![A-Za-z])", lambda _, old=old: old, answer)
    with suppress(MathsError):
        return parse(answer, symbols, **options)
    return None


def compare_renamed_sizes(gold: t.Order, answer: t.Node, symbols: Mapping[str, str], found: Verdict) -> Verdict | None:
    """The verdict if the answer has sizes that are neither declared nor in the gold, and lacks as many of it."""
    declared, given = declare(symbols).types, final_value(answer)
    used, answered = t.symbols_of(gold), t.symbols_of(given)
    unknown = [name for name in answered if name not in used and name not in declared]
    lacking = [name for name in used if name not in answered]
    if not unknown or not lacking:
        return None
    whose = "them" if len(unknown) > 1 else "it"
    reason = f"nothing declares {' and '.join(unknown)}, and the right answer does not mention {whose}"
    return only_renaming(
        unknown,
        lacking,
        lambda renaming: t.substitute(given, {new: used[old] for new, old in renaming.items()}),
        gold,
        found.unread(reason),
    )


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


def final_value(node: t.Node) -> t.Node:
    """The last member of a chain, marked as rounded after ≈; any other node itself."""
    return relations.last(node)


def compare_trees(gold: t.Node, answer: t.Node, found: Verdict) -> Verdict:
    """The verdict on two trees."""
    first, second = relations.values_of(gold, answer)
    if any(isinstance(node, (t.Relation, t.Collection, t.Interval)) for node in (first, second)):
        return relations.compare_relations(first, second, found, compare_values)
    return check_chain(answer, compare_values(first, second, found))


def check_chain(answer: t.Node, verdict: Verdict) -> Verdict:
    """The verdict on the end of a chain, with a note if an earlier member is not equal to it."""
    if not isinstance(answer, t.Relation):
        return verdict

    last = final_value(answer)
    for member, sign in zip(answer.members, answer.signs, strict=False):
        if sign != "=" or isinstance(member, (t.Order, t.PlusMinus)) or isinstance(last, (t.Order, t.PlusMinus)):
            continue
        # A name without a definition is being defined here; a decimal at the end may be the rounded value.
        if (isinstance(member, t.Symbol) and member.type.definition is None) or is_rounded_from(member, last):
            continue
        if member.shape == last.shape and differ(member, last):
            note = f"only the end of the chain is judged: it is not equal to {short_text(member)} before it"
            return replace(verdict, reason=f"{verdict.reason} ({note})")
    return verdict


def is_rounded_from(member: t.Node, last: t.Node) -> bool:
    """Whether the end of a chain is the member rounded to the digits shown."""
    compared = rounding.compare_numbers(member, last) if member.shape == last.shape else None
    return compared is not None and compared[0].equal is True


def compare_values(gold: t.Node, answer: t.Node, found: Verdict) -> Verdict:
    """The verdict on two trees that are not chains."""
    from qkv.maths.comparison.asymptotics import compare_growth

    if isinstance(gold, t.Order) or isinstance(answer, t.Order):
        return compare_growth(gold, answer, found)
    if rounding.has_units(gold, answer):
        return rounding.compare_quantities(gold, answer, found, compare_values)
    if any(isinstance(node, t.PlusMinus) for node in t.walk(gold, answer)):
        return compare_two_valued(gold, answer, found)
    limits = [relations.infinite(node) for node in (gold, answer)]
    if any(limits):
        kind, same = ("equal", "tested") if limits[0] == limits[1] else ("different", "refuted")
        reason = f"the two limits are {'' if kind == 'equal' else 'not '}the same"
        return replace(found, kind=kind, evidence=same, reason=reason)
    verdict = compare_ordinary(gold, answer, found)
    brackets = relations.compare_brackets(gold, answer, found) if verdict else None
    return verdict if brackets is None else brackets


def compare_two_valued(gold: t.Node, answer: t.Node, found: Verdict) -> Verdict:
    """The verdict on trees with ±, whose pairs of values are compared as sets: by proof, or point by point."""

    golds, answers = (list(relations.elements(node) or [node]) for node in (gold, answer))
    if len(golds) != len(answers):
        count = {1: "one value", 2: "two values (±)"}
        reason = f"the answer has {count[len(answers)]}, the right one has {count[len(golds)]}"
        extra = golds if len(golds) == 2 else answers
        if compare_ordinary(extra[0], extra[1], found).kind == "equal":
            return compare_ordinary(golds[0], answers[0], found)
        return found.different(reason)
    first = compare_ordinary(golds[0], answers[0], found)
    if not same_shape(golds[0], answers[0]):
        return first
    verdict = relations.compare_sets(golds, answers, found, compare_ordinary)
    if verdict:
        return verdict
    outcome = try_as_sets(golds, answers)
    if outcome.equal:
        reason = "the two have the same two values at every point that was tried"
        return replace(found, kind="equal", evidence="tested", reason=reason)
    if outcome.equal is None:
        reason = f"qkv can neither prove nor test whether the two have the same values: {outcome.why}"
        return found.unread(reason)
    point = outcome.counterexample
    return found.different(f"not the same two values: {point}", point)


def compare_ordinary(gold: t.Node, answer: t.Node, found: Verdict) -> Verdict:
    """The verdict by shapes, then decimals as written, then proof, then trial, then a condition."""
    gold, answer = as_column(gold), as_column(answer)
    if not same_shape(gold, answer):
        point = first_values(gold, answer) if _EXPLAIN.get() else None
        reason = shape_mismatch(gold, answer)
        return found.different(reason, point)
    compared = rounding.compare_numbers(gold, answer)
    if compared is not None:
        outcome, reason = compared
        compared = replace(found, kind="equal" if outcome.equal else "different", evidence=outcome.evidence)
        return replace(compared, reason=reason, counterexample=outcome.counterexample, certificate=outcome.certificate)
    outcome = decide(gold, answer)
    if outcome.equal is False and rounding.within_rounding(gold, answer):
        reason = "the two are the same within the rounding of the numbers after ≈"
        return replace(found, kind="equal", evidence="tested", reason=reason)
    if outcome.equal:
        how = "by algebra" if outcome.evidence == "proved" else "at every point that was tried, in several sizes"
        if outcome.small is not None:
            how = f"at every point that was tried, with {outcome.small} and other sizes"
        reason, certificate = f"the two are the same {how}", outcome.certificate
        return replace(found, kind="equal", evidence=outcome.evidence, reason=reason, certificate=certificate)
    if outcome.condition is not None:
        return relations.conditional_on(outcome.condition, found)
    if outcome.equal is None:
        return found.unread(f"qkv can neither prove nor test whether the two are the same: {outcome.why}")
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


def as_column(node: t.Node) -> t.Node:
    """A matrix of one column as a vector, and a 1×1 matrix as a scalar."""
    one = t.Number((), Fraction(1))
    if node.shape == (1, 1):
        return t.Part((), node, (one, one))
    if len(node.shape) == 2 and node.shape[1] == 1:
        return t.Part(node.shape[:1], node, (None, one))
    return node


def same_shape(gold: t.Node, answer: t.Node) -> bool:
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


def first_values(gold: t.Node, answer: t.Node) -> Counterexample | None:
    """The values of both at the first point where both have one; None if none of the first few has."""

    words = vocabulary(gold, answer)
    for place in points(words, 3):
        with suppress(Undefined, Unevaluable), effort(SHOW_EFFORT):
            return Counterexample.at(place, words, place.value(gold, DIGITS), place.value(answer, DIGITS))
    return None


def shape_mismatch(gold: t.Node, answer: t.Node) -> str:
    expected = f"{describe_shape_of(gold)} is wanted (as {short_text(gold)} is)"
    return f"{short_text(answer)} is {describe_shape_of(answer)}, and {expected}"


def describe_shape_of(node: t.Node) -> str:
    match node.shape:
        case ():
            return "a scalar"
        case (size,):
            return f"a vector (a column) of {size}"
        case (1, size):
            return f"a row of {size} (1×{size})"
    return "a matrix " + "×".join(map(str, node.shape))


def short_text(node: t.Node) -> str:

    text = plain(node)
    return text if len(text) <= 60 else f"{text[:57]}…"


LETTERS = ("m", "c", "t", "a", "b", "u", "w", "s")
MOST_VECTORS, MOST_SPECIAL = 5, 24
REMARK_EFFORT = 8_000  # products for a remark that a verdict can do without
MOST_OUTSIDE = 24


def plain_vectors(*nodes: t.Node) -> dict[str, t.Symbol]:
    """The vectors that are neither random nor defined."""
    found = t.symbols_of(*nodes).items()
    return {name: s for name, s in found if s.type.kind == "vector" and not s.type.random and s.type.definition is None}


def constant_vector(symbol: t.Symbol, scalar: t.Symbol) -> t.Node:
    return t.Multiply(symbol.shape, (scalar, t.Special(symbol.shape, "ones")))


def fresh_letters(taken: set[str]) -> Iterator[str]:
    return (
        letter for letter in itertools.chain(LETTERS, (f"m_{k}" for k in itertools.count(1))) if letter not in taken
    )


def vector_groups(vectors: Mapping[str, t.Symbol]) -> Iterator[tuple[str, ...]]:
    """Each vector by itself, then all of them together."""
    for name in vectors:
        yield (name,)
    if 1 < len(vectors) <= MOST_VECTORS:
        yield tuple(vectors)


def reread_as_scalars(gold: t.Node, answer: str, symbols: Mapping[str, str], found: Verdict) -> Verdict | None:
    """The verdict on an ill-typed answer read with scalars in place of vectors; None if that is wrong too."""

    right = final_value(gold)
    if isinstance(right, (t.Order, t.PlusMinus)) or (isinstance(gold, t.Relation) and gold.signs[-1] not in ("=", "≈")):
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
            given = final_value(parse(answer, declared, expected=right.shape, free=t.free_indices(right)))
        except (MathsError, OptionError):
            continue
        if given.shape != right.shape or isinstance(given, (t.Order, t.PlusMinus)) or not set(group) <= t.names(given):
            continue
        scalars = {name: t.Symbol((), name, t.Type("scalar")) for name in group}
        swapped = t.substitute(right, {name: constant_vector(vectors[name], scalars[name]) for name in group})
        if decide(swapped, given).equal and not is_degenerate(given, group):
            return conditional_verdict(group, vectors, right, given, found)
    return None


def conditional_verdict(
    group: tuple[str, ...], vectors: Mapping[str, t.Symbol], right: t.Node, given: t.Node, found: Verdict
) -> Verdict:
    """The verdict on an answer that is right if these vectors are constant."""
    taken = t.names(right, given) | {size for s in vectors.values() for part in s.shape for size in names_in(part)}
    letters = dict(zip(group, fresh_letters(taken), strict=False))
    common = plain(
        t.substitute(given, {name: t.Symbol((), letter, t.Type("scalar")) for name, letter in letters.items()})
    )
    shown = {name: pretty_symbol(vectors[name]) for name in group}
    where = ", ".join(f"{shown[name]} = {letters[name]}·1" for name in group)
    text = f"every component of {' and of '.join(shown.values())} is the same ({where}, then both are {common})"
    meaning = " or ".join(f"scalar {name}" for name in shown.values())
    value = example_value(right)
    reason = f"equal only if {text}" + (f"; with {value} and no {meaning} is meant" if value else "")
    return found.conditional(reason, text)


def example_value(gold: t.Node) -> str:
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


def matters(gold: t.Node, place: Point, name: str, value: Any) -> bool:
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


def find_condition(gold: t.Node, answer: t.Node, wrong: Verdict) -> Verdict | None:
    """The verdict with the condition under which a wrong answer of the right shape is right; None if there is none."""
    if is_slow(gold, answer):
        return None
    vectors = {name: s for name, s in plain_vectors(gold, answer).items() if name not in indexed_names(gold)}
    used, answered = t.names(gold), t.names(answer)
    words = vocabulary(gold, answer)
    for group in vector_groups(dict(itertools.islice(vectors.items(), MOST_VECTORS))):
        equal = dict.fromkeys(group, 3)
        if not set(group) <= used or not try_points(gold, answer, fixed=equal, enough=2, simplify=False).equal:
            continue
        letters = dict(zip(group, fresh_letters(t.names(gold, answer)), strict=False))
        scalars = {name: t.Symbol((), letter, t.Type("scalar")) for name, letter in letters.items()}
        constants = {name: constant_vector(vectors[name], scalars[name]) for name in group}
        try:
            first, second = t.substitute(gold, constants), t.substitute(answer, constants)
        except ValueError:
            continue
        mentioned = [letter for name, letter in letters.items() if name in answered]

        def varied(place: Point, group: tuple[str, ...] = group) -> Point | None:
            return place if any(len(set(place.values[name])) > 1 for name in group) else None

        outcome = decide(first, second)
        if (outcome.equal or outcome.condition) and not is_degenerate(first, mentioned):
            shown = [pretty_symbol(vectors[name]) for name in group]
            where = ", ".join(f"{name} = {letter}·1" for name, letter in zip(shown, letters.values(), strict=True))
            text = f"every component of {' and of '.join(shown)} is the same ({where})"
            text = f"{text} and {outcome.condition}" if outcome.condition else text
            reason = condition_reason(text, is_necessary(gold, answer, words, varied), wrong)
            return replace(wrong, kind="conditional", condition=text, reason=reason)
    signed = sign_condition(gold, answer, wrong)
    absolute = None if signed is not None and signed.kind == "conditional" else absolute_condition(gold, answer, wrong)
    return signed if absolute is None else absolute


def indexed_names(gold: t.Node) -> set[str]:
    """The names of which the gold takes a component by a free index; another index there is wrong, not conditional."""
    free = t.free_indices(gold)
    found: set[str] = set()
    for node in t.walk(gold):
        if isinstance(node, t.Part) and free.keys() & t.free_indices(*filter(None, node.indices)):
            found |= t.names(node.body)
    return found


def is_degenerate(common: t.Node, scalars: Iterable[str]) -> bool:
    """Whether the common value at constant vectors does not depend on one of the constants.

    softmax(s) and softmax(2s) are both uniform at every constant s, which is not a useful condition.
    """
    others = fresh_letters(t.names(common))
    changed = [t.substitute(common, {name: t.Symbol((), next(others), t.Type("scalar"))}) for name in scalars]
    return any(try_points(common, other, simplify=False).equal for other in changed)


def sign_condition(gold: t.Node, answer: t.Node, wrong: Verdict) -> Verdict | None:
    """The verdict if the answer is right for one sign of a number and wrong for the other; None if there is none."""
    words = vocabulary(gold, answer)
    for name, symbol in t.symbols_of(gold, answer).items():
        if symbol.type.kind != "scalar" or symbol.type.random or symbol.type.definition is not None:
            continue
        positive = t.Symbol((), name, t.Type("nonnegative"))
        for sign, value in (("≥", positive), ("≤", t.Multiply((), (t.Number((), Fraction(-1)), positive)))):
            probe = {name: Fraction(3 if sign == "≥" else -3)}
            if try_points(gold, answer, fixed=probe, enough=2, simplify=False).equal is not True:
                continue
            try:
                first, second = t.substitute(gold, {name: value}), t.substitute(answer, {name: value})
            except ValueError:
                continue

            def with_other_sign(place: Point, name: str = name, wanted: int = -1 if sign == "≥" else 1) -> Point | None:
                values = place.values
                if any(isinstance(value, Fraction) and not value for value in values.values()):
                    return None
                return replace(place, values={**values, name: wanted * abs(values[name])})

            outcome = decide(first, second)
            if outcome.equal or outcome.condition:
                text = f"{pretty_symbol(symbol)} {sign} 0"
                if outcome.condition == f"{pretty_symbol(symbol)} ≠ 0":
                    text = text.replace("≥", ">").replace("≤", "<")
                elif outcome.condition:
                    text = f"{text} and {outcome.condition}"
                if not is_necessary(gold, answer, words, with_other_sign):
                    return replace(wrong, reason=condition_reason(text, False, wrong))
                return replace(wrong, kind="conditional", condition=text, reason=condition_reason(text, True, wrong))
    return None


def absolute_condition(gold: t.Node, answer: t.Node, wrong: Verdict) -> Verdict | None:
    """The verdict if one is the absolute value of the other, which is positive at some point; None if not."""
    if gold.shape or not any(map(loses_sign, t.walk(gold, answer))):
        return None
    words = vocabulary(gold, answer)
    for inside, other in ((gold, answer), (answer, gold)):
        if decide(t.Call((), "abs", (inside,)), other).equal:
            values = (place.value(inside, DIGITS) for place in points(words, MOST_OUTSIDE) if has_value(place, inside))
            if any(value > 0 for value in values):
                text = f"{plain(inside)} ≥ 0"
                return replace(wrong, kind="conditional", condition=text, reason=condition_reason(text, True, wrong))
    return None


def loses_sign(node: t.Node) -> bool:
    """Whether a node is an absolute value, a norm or an even root."""
    if isinstance(node, t.Power):
        return isinstance(node.exponent, t.Number) and node.exponent.value.denominator % 2 == 0
    return isinstance(node, t.Call) and (node.name in ("abs", "sqrt") or node.name.startswith("norm"))


def is_necessary(gold: t.Node, answer: t.Node, words: Vocabulary, outside: Callable[[Point], Point | None]) -> bool:
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


def special_case(gold: t.Node, answer: t.Node) -> str | None:
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
