"""Numbers, arrays, formulas, growth classes and shapes: read as a whole, and compared by `qkv.maths`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ...errors import MathsError
from ...maths import Verdict, compare, parse, tree
from ..findings import CannotSolve, Finding
from ..outcome import Outcome, conditional, right, unread, wrong
from ..record import Asked, Exercise
from ..solving import Answer
from ..units import dimension_of, quantity
from .arrays import MOST, bare_cells, cells_of, entries, is_line, lengths, written
from .statement import PATTERNS, alternatives, pattern, phrases, split_outside, squeezed, stated

CLOSE = Fraction(1, 200)  # a decimal nearer than this may come from numbers that were rounded on the way
_UNREAD = ("unreadable", "ill-typed")
_PREFIXES = {sign + kind: base**power for kind, base in (("", 1000), ("i", 1024))
             for power, sign in enumerate("kMGT", 1)}  # fmt: skip
_SCALES = {"%": "-2", "thousands": "3", "millions": "6", "billions": "9", "trillions": "12"}


@dataclass(frozen=True)
class Context:
    """The question that an answer belongs to; `replaced` are sizes that stand for others in it."""

    exercise: Exercise
    asked: Asked
    name: str = ""
    replaced: Mapping[str, str] = field(default_factory=dict)

    def symbols(self, answer: Answer) -> dict[str, str]:
        """The types of the names that an answer may have; of a number, every index is bound, and none is declared."""
        declared: dict[str, str] = getattr(self.exercise, "symbols", {})
        others = {name: kind for name, kind in declared.items() if not kind.startswith("index")}
        closed = len(others) < len(declared) and _is_closed(answer.text, {**others, **answer.symbols})
        same = {old: f"natural = {new}" for old, new in self.replaced.items()}
        return {**(others if closed else declared), **same, **answer.symbols}

    def names(self) -> list[str]:
        """Patterns of what the answer may be called."""
        quantity = self.name or self.asked.quantity
        given = (quantity.replace("_", " "), self.asked.object, self.asked.label)
        generic = r"(?:answer|result|value|total|it|sum)"
        return [*phrases()["names"].get(quantity, ()), generic, *(re.escape(each) for each in given if each)]


Judge = Callable[[Answer, str, Context], Outcome]


def reading(judge: Judge) -> Judge:
    """The judge of a formula as the judge of a text that states it; of two with an "or", both have to be right."""

    def judge_text(answer: Answer, text: str, context: Context) -> Outcome:
        formula = stated(text)
        if isinstance(formula, Finding):
            return Outcome("unread", (formula,))
        outcomes = [judge(answer, each, context) for each in alternatives(formula)]
        same = all(outcomes) or all(outcome.kind == "wrong" for outcome in outcomes)
        return outcomes[0] if same or len(outcomes) == 1 else unread("several", count=len(outcomes))

    return judge_text


_BOUND = re.compile(r"[≤≥]|[<>]=|\\(?:leq?|geq?|lesssim|gtrsim)(?:slant)?(?![A-Za-z])")


@reading
def judge_value(answer: Answer, formula: str, context: Context) -> Outcome:
    """A number, a formula or a growth class; the size of a matrix may stand behind it."""
    if _BOUND.search(formula) and not _BOUND.search(answer.text):
        return unread("other_bound", given=formula)
    size = PATTERNS["size"].search(formula) if answer.form == "formula" else None
    members = _members(formula[: size.start()] if size else formula)
    if isinstance(members, Outcome):
        return members
    end, symbols = members[-1], context.symbols(answer)
    if size and all(each.isdigit() for each in size.groups()) and shape_of(answer.text, symbols) != size.groups():
        return unread("other_quantity", given=size[0].strip())
    if (several := _several(answer, end, context)) is not None:
        return several
    outcome = _evaluated(judge_end(answer, end, context), answer, end, context)
    if len(members) == 1 or outcome.kind == "unread":
        return outcome
    # What begins a piece that has a label, "z = q^T k = 2", need not be read.
    if not context.name and not _names_it(members[0], answer, context):
        begins = compare(answer.text, members[0], symbols).kind
        if begins not in ("equal", "conditional" if outcome.kind == "conditional" else ""):
            return unread("other_quantity", given=members[0])
    declared = squeezed(members[0]) in {squeezed(name) for name in symbols}
    steps = members[int(_names_it(members[0], answer, context)) : -1]  # what is asked is no step towards it
    settled = any(PATTERNS["worded"].search(each) or compare(answer.text, each, symbols) for each in steps)
    if outcome.kind == "wrong" and (declared or settled):
        return unread("chain", first=members[0], second=end)
    for member in members[1:-1]:
        if compare(member, end, symbols).kind == "different":
            return unread("chain", first=member, second=end)
    return outcome


def _members(formula: str) -> list[str] | Outcome:
    """The sides of an equation, or a name in words and what it is said to be; of several equations none is taken."""
    count = sum(len(split_outside(piece, "=")) > 1 for piece in split_outside(formula, ",;\n"))
    if count > 1:
        return unread("several", count=count)
    equation = PATTERNS["equals"].sub("=", PATTERNS["about"].sub("=≈", formula)).lstrip(" =")
    members = [each.strip() for each in split_outside(equation, "=")]
    if len(members) == 1 and (said := PATTERNS["said"].match(formula)) and re.search(r"[A-Za-z]{2}", said[1]):
        members = [said[1], formula[said.end() :].strip()]
    return members if all(members) else unread("unreadable", given=formula)


def _evaluated(outcome: Outcome, answer: Answer, text: str, context: Context) -> Outcome:
    """The outcome, unless the text still has names or random vectors in it that the answer does not have."""
    symbols = context.symbols(answer)
    extra = names_in(text, symbols) - names_in(answer.text, symbols)
    if any("random" in symbols.get(name, "") for name in extra) and outcome.kind in ("right", "wrong"):
        finding = Finding("not_evaluated", {"given": text})
        return Outcome("incomplete" if outcome else "unread", (finding,))
    numeric = not names_in(answer.text, symbols) and answer.form in ("number", "vector", "matrix", "tensor")
    rounded = re.search(r"\d\.\d", text) and not re.fullmatch(r"[-+≈~\s]*[\d.,]+(?:[eE][-+]?\d+)?\s*[A-Za-z/%µ]*", text)
    if outcome.kind == "wrong" and ((numeric and extra) or rounded or re.search(r"\\pm(?![A-Za-z])|±", text)):
        return unread("not_evaluated", given=text)
    if outcome.kind == "wrong" and (fixed := _fixed(context, extra, symbols)) and compare(answer.text, text, fixed):
        return unread("not_evaluated", given=text)  # the general formula, of which the question asks a special case
    return outcome


def _fixed(context: Context, names: set[str], symbols: Mapping[str, str]) -> dict[str, str]:
    """The symbols with the values that the question gives to `names`; {} where it gives none to any of them."""
    given = {each.symbol: each.value for each in context.asked.changes if isinstance(each.value, int)}
    kinds = {name: f"{symbols[name]} = {given[name]}" for name in names & given.keys() & symbols.keys()}
    return {**symbols, **kinds} if kinds and not any("=" in symbols[name] for name in kinds) else {}


def names_in(text: str, symbols: Mapping[str, str]) -> set[str]:
    """The names of a formula that have no value of their kind given with them; none where it is not read."""
    try:
        found = tree.names(parse(text, symbols))
    except MathsError:
        return set()
    return {name for name in found if name in symbols and "=" not in symbols[name]}


def _names_it(left: str, answer: Answer, context: Context) -> bool:
    """Whether the left side of an equation is the name of what is asked, in words or as a symbol that is free."""
    words = re.sub(r"\\(?:text|mathrm|operatorname)\s*\{([^{}]*)\}", r"\1", left.strip())
    words = re.sub(r"^(?:the|its|an?)\s+", "", words, flags=re.IGNORECASE)
    thing = PATTERNS["of"].fullmatch(words)
    for name in context.names():
        flags = 0 if len(name) == 1 else re.IGNORECASE
        if re.fullmatch(name, words, flags):
            return True
        if thing is not None and re.fullmatch(name, thing[1], flags):
            wanted = {squeezed(each) for each in (context.asked.object, "q^T k", "the score", "score") if each}
            function = context.asked.quantity in ("kernel", "feature_map", "similarity")
            return function or bool({squeezed(thing[2]), squeezed(thing[2]).replace("·", "^T")} & wanted)
    if PATTERNS["lone"].fullmatch(context.name or context.asked.object):
        return False  # it has a name, and this is another
    declared = {squeezed(name) for name in context.symbols(answer)}
    return PATTERNS["lone"].fullmatch(words) is not None and squeezed(words) not in declared


def _several(answer: Answer, text: str, context: Context) -> Outcome | None:
    """The outcome of formulas next to each other of which some are not right: none of them is the answer."""
    pieces = [piece.strip() for piece in split_outside(re.sub(r"\s+and\s+", ",", text), ",;\n")]
    if len(pieces) < 2 or re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?\D*", text):
        return None
    if "\n" not in text and compare(text, text, context.symbols(answer)).kind == "equal":
        return None
    outcomes = [judge_end(answer, piece, context) for piece in pieces]
    return right() if all(outcomes) else unread("several", count=len(pieces))


def judge_end(answer: Answer, text: str, context: Context) -> Outcome:
    """A formula with nothing around it."""
    if answer.form == "class":
        return _judge_class(answer, text, context)
    if re.search(r"(?<![A-Za-z])O\s*\(", PATTERNS["growth_class"].sub("O", text)):
        return unread("other_bound", given=text)
    symbols = context.symbols(answer)
    verdict = _compared(answer, text, symbols, context)
    if verdict.kind != "equal" and (known := _sizes_given(context, symbols)) != symbols:
        second = _compared(answer, text, known, context)
        verdict = second if second.kind == "equal" else verdict
    wanted = shape_of(answer.text, symbols) if answer.form == "formula" and verdict.kind == "different" else ()
    if wanted and shape_of(text, symbols) != wanted:
        return _entry_formula(answer, text, symbols)
    near = _near(answer, text, context) if verdict.kind == "different" else None
    return from_verdict(verdict, answer, text) if near is None else near


def _entry_formula(answer: Answer, text: str, symbols: Mapping[str, str]) -> Outcome:
    """A formula for one entry of a matrix or a vector: right or unread, for its indices are not declared."""
    sizes = shape_of(answer.text, symbols)
    types = {name: f"index[{size}]" for name, size in zip("ij", sizes, strict=False)}
    types |= {"delta": f"matrix[{sizes[0]},{sizes[0]}] = I_{{{sizes[0]}}}"} if len(sizes) == 2 else {}
    entry = f"({answer.text})_{{{'ij'[: len(sizes)]}}}"
    return right() if compare(entry, text, {**types, **symbols}) else unread("unreadable", given=text)


def shape_of(text: str, symbols: Mapping[str, str]) -> tuple[str, ...]:
    """The shape of a formula; () for a scalar or a text that is not read."""
    try:
        return tuple(map(str, parse(text, symbols).shape))
    except MathsError:
        return ()


def _is_closed(text: str, symbols: Mapping[str, str]) -> bool:
    """Whether a formula is a number in which no index is free."""
    try:
        node = parse(text, symbols)
    except MathsError:
        return False
    return not node.shape and not tree.free_indices(node)


def from_verdict(verdict: Verdict, answer: Answer, text: str) -> Outcome:
    """What `qkv.maths` says, as the outcome of an answer."""
    data = {"right": answer.text, "given": text}
    if verdict.kind == "equal":
        return replace(right(), verdict=verdict)
    if verdict.kind == "different" and verdict.evidence == "refuted":
        point = "" if verdict.counterexample is None else str(verdict.counterexample)
        return replace(wrong("differs_at" if point else "different", point=point, **data), verdict=verdict)
    if verdict.kind == "conditional" and verdict.condition:
        return conditional(verdict.condition, verdict=verdict)
    code = "ill_typed" if verdict.kind == "ill-typed" else "unreadable"
    return replace(unread(code, given=text, why=verdict.reason), verdict=verdict)


def _compared(answer: Answer, text: str, symbols: Mapping[str, str], context: Context) -> Verdict:
    """The verdict with the unit of the answer, and without; an exact value is compared as it is."""
    given, unit = _as_number(text), _unit(answer, context)
    bare = answer.text.removesuffix(unit).strip() if unit else answer.text
    exact = isinstance(answer.value, int | Fraction) and number_of(bare) is not None
    gold = str(answer.value) if exact else bare
    verdict = compare(gold, given, symbols)
    if verdict.kind == "equal" or not unit:
        return verdict
    base = dimension_of(unit)
    # A value is in base units where the text has a prefix: 12288 and "12.288 kB".
    in_base = exact and base and quantity(bare, unit, base) != quantity(answer.value, unit, base)
    measured = compare(f"{gold} {base if in_base else unit}", text if unit.endswith("B") else given, symbols)
    return measured if measured.kind == "equal" or _has_unit(text) else verdict


def _unit(answer: Answer, context: Context) -> str:
    return answer.unit or context.asked.unit or phrases()["units"].get(context.asked.quantity, "")


def _as_number(text: str) -> str:
    """A count or a percentage as a number with the same digits.

    >>> _as_number("12.6M parameters"), _as_number("27 %")
    ('12.6e6', '0.27')
    """
    about, given = "≈ " if text.startswith("≈") else "", pattern("counted").sub("", text).strip(" ≈")
    if (scaled := PATTERNS["count"].fullmatch(given)) and (power := phrases()["counts"].get(scaled[2].lower())):
        return f"{about}{scaled[1].replace(',', '')}e{power}"
    if share := re.fullmatch(r"([-+]?\d{1,9}(?:\.\d{1,30})?)\s*(?:\\?%|percent)", given):
        return about + str(Decimal(share[1]).scaleb(-2))
    return about + given


def _has_unit(text: str) -> bool:
    return re.search(r"[A-Za-zµ%]", re.sub(r"\d[eE][-+]?\d|\\[A-Za-z]+|sqrt|exp|log", "", text)) is not None


def _sizes_given(context: Context, symbols: dict[str, str]) -> dict[str, str]:
    """The symbols with the sizes that the exercise sets: √d is 8 where d is 64."""
    sizes = {g.symbol: g.value for g in context.exercise.givens if g.symbol and type(g.value) is int and g.value > 0}
    free = {name: f"natural = {size}" for name, size in sizes.items() if symbols.get(name) in (None, "natural")}
    return {**symbols, **free}


def _near(answer: Answer, text: str, context: Context) -> Outcome | None:
    """The outcome of a number that misses the right one by little, by the tolerance that is said, or by a unit."""
    unit = _unit(answer, context)
    wanted, given = number_of(answer.value if answer.value is not None else answer.text), number_of(_as_number(text))
    if given is None and unit:
        with suppress(CannotSolve):
            given = Fraction(quantity(text.strip(" ≈~"), "", dimension_of(unit)))
    if wanted is None or given is None or not wanted:
        return None
    gap, tolerance = abs(given - wanted), context.exercise.convention("tolerance")
    if not gap:
        return right()
    if tolerance is not None and gap <= Fraction(str(tolerance)) * max(1, abs(wanted)):
        return right("within_tolerance", tolerance=tolerance)
    if (whole := re.match(r"[≈~\s]*([\d,]+)\s*([kKMGT]i?)(?=B|FLOP)", text.strip(), re.IGNORECASE)) and (
        2 * gap <= (size := given / int(whole[1].replace(",", "") or 0)) or _binary(whole, size, wanted)
    ):
        # A whole number of MB or GFLOPs is rounded, coarsely below a hundred; and MB may stand for MiB.
        near = len(whole[1]) > 2 and 2 * gap <= size
        return right() if near else replace(conditional("it is rounded", "unit"), kind="unread")
    exact = wanted.denominator == 1 and not re.search(r"[.≈]", text) and not isinstance(answer.value, float)
    if not exact and gap <= CLOSE * abs(wanted):
        return conditional("numbers were rounded on the way", "rounding", right=answer.text)
    if context.asked.unit or _has_unit(text):
        return None
    base = dimension_of(unit) or unit
    scaled = {prefix + base: (factor, f"{text} {prefix}{base}") for prefix, factor in _PREFIXES.items()}
    powers = {name: (Fraction(10) ** int(power), f"{text.strip()}e{power}") for name, power in _SCALES.items()}
    for name, (factor, other) in (scaled if unit else powers).items():
        near = abs(given * factor - wanted) <= abs(wanted) / 2  # no rounding is coarser
        if near and compare(f"{answer.text.removesuffix(unit)} {unit}".strip(), other, {}).kind == "equal":
            return conditional(f"it is in {name}", "unit")
    return None


def _binary(whole: re.Match[str], size: Fraction, wanted: Fraction) -> bool:
    """Whether a whole number of kB, MB or GB is right where these are powers of 1024."""
    powers = {1000**power: 1024**power for power in range(1, 5)}
    return size in powers and abs(int(whole[1].replace(",", "")) * powers[size] - wanted) * 2 <= powers[size]


def number_of(value: Any) -> Fraction | None:
    """A number, or a text that is one, exactly; None for anything else."""
    text = str(value).replace(",", "").strip(" ≈")
    number = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:e[-+]?\d{1,3}|/0{0,9}[1-9]\d{0,39})?"
    return Fraction(text) if re.fullmatch(number, text) else None


def _judge_class(answer: Answer, text: str, context: Context) -> Outcome:
    """A growth class with O, with Θ or as a count that grows so; other bounds are other claims."""
    if PATTERNS["other_class"].search(text):
        return unread("other_bound", given=text)
    given, gold = PATTERNS["growth_class"].sub("O", text), PATTERNS["growth_class"].sub("O", answer.text)
    gold = gold if re.match(r"\s*O\s*\(", gold) else f"O({gold})"
    return from_verdict(compare(gold, given, context.symbols(answer)), answer, text)


@reading
def judge_shape(answer: Answer, formula: str, context: Context) -> Outcome:
    """A shape: its sizes in order; names that are not the question's are not guessed."""
    members = _members(formula)
    end = formula if isinstance(members, Outcome) else members[-1]
    end = re.sub(r"^.{0,30}(?:\\in\b|∈)|\\mathbb\s*\{?R\}?\s*\^|ℝ\^", "", end)
    each = re.sub(r"^\{(.*)\}$", r"\1", end.strip())
    bare = "," in each and each[:1] not in "([{" and not re.match(r"[\w.]+\(", each)
    verdict = compare(answer.text, f"({each})" if bare else each, context.symbols(answer))
    found = unread("undeclared", given=each) if verdict.renaming else from_verdict(verdict, answer, each)
    listed = bare or re.match(r"[\[(]|[\w.]+\(|\S+\s*(?:x|×|\\times|by)\s*\S+", each)
    # Without declared sizes, a quotient may be another way to write one of them; numbers may be an example of names.
    numbers = answer.symbols and not re.search(r"[A-Za-z]", re.sub(r"^[\w.]+\(|\\[a-z]+", "", each))
    unsure = found.kind == "wrong" and (numbers or (not answer.symbols and re.search(r"[/*+-]", each)))
    return found if found or (listed and not unsure) else unread("unreadable", given=each)


@reading
def judge_array(answer: Answer, formula: str, context: Context) -> Outcome:
    """A vector, a matrix or a tensor, entry by entry."""
    members = _members(formula)
    if isinstance(members, Outcome):
        return members
    if len(members) > 1 and not _names_it(members[0], answer, context) and not _begins(answer, members[0], context):
        return unread("other_quantity", given=members[0])
    end = members[-1].lstrip("≈ ")
    wanted, given = cells_of(answer.text), cells_of(end)
    given = bare_cells(end) if given is None else given
    if wanted is None or given is None:
        return _as_mathematics(answer, end, context)
    return judge_cells(wanted, given, answer, context)


def _begins(answer: Answer, member: str, context: Context) -> bool:
    """Whether a chain may begin with this: what is asked as an expression, which the question's names do not settle."""
    if PATTERNS["lone"].fullmatch(member) is not None or re.fullmatch(r"[A-Za-z '-]+", member):
        return False
    symbols = context.symbols(answer)
    open_ended = names_in(member, symbols) or re.search(r"\d\.\d", member)
    return bool(open_ended) or compare(answer.text, member, symbols).kind in ("equal", *_UNREAD)


def _as_mathematics(answer: Answer, text: str, context: Context) -> Outcome:
    """An expression for an array; a row may stand for a column."""
    symbols = context.symbols(answer)
    verdicts = [compare(answer.text, each, symbols) for each in (text, f"({text})^T")]
    best = next((verdict for verdict in verdicts if verdict.kind == "equal"), verdicts[0])
    return _evaluated(from_verdict(best, answer, text), answer, text, context)


def judge_cells(wanted: Any, given: Any, answer: Answer, context: Context) -> Outcome:
    """Entries against entries; a vector may stand as a row or as a column."""
    sizes, found = lengths(wanted), lengths(given)
    if sizes is None or found is None or not found:
        return unread("unreadable", given=written(given))
    if sum(1 for _ in entries(given)) > MOST:
        return unread("too_many_entries", most=MOST)
    if sizes != found and is_line(wanted) and is_line(given):
        wanted, given = ([each for _, each in entries(cells)] for cells in (wanted, given))
        sizes, found = lengths(wanted), lengths(given)
    if sizes == found:
        outcome = _entrywise(wanted, given, answer, context)
        layout = _other_layout(wanted, given, answer, context) if outcome.kind == "wrong" else None
        return outcome if layout is None else layout
    if len(sizes or ()) == 2 and found is not None:
        rows = given if len(found) == 2 else [given]
        if len(rows) < len(wanted) and all(_is_row(row, wanted, answer, context) for row in rows):
            return Outcome("incomplete", (Finding("rows_missing", {"given": len(rows), "count": len(wanted)}),))
    layout = _other_layout(wanted, given, answer, context)
    shown = {name: " × ".join(map(str, each or ())) for name, each in (("given", found), ("right", sizes))}
    return wrong("sizes", **shown) if layout is None else layout


def _is_row(row: Any, wanted: Any, answer: Answer, context: Context) -> bool:
    """Whether a matrix has this row."""
    row = [each for _, each in entries(row)]
    return any(len(each) == len(row) and _entrywise(each, row, answer, context) for each in wanted)


def _other_layout(wanted: Any, given: Any, answer: Answer, context: Context) -> Outcome | None:
    """The outcome of the transposed matrix: another layout of the tokens, unless the text says which."""
    if len(lengths(wanted) or ()) != 2 or len(lengths(given) or ()) != 2 or context.exercise.said("layout"):
        return None
    turned = [list(column) for column in zip(*given, strict=True)]
    if lengths(turned) != lengths(wanted) or not _entrywise(wanted, turned, answer, context):
        return None
    return conditional("rows and columns are exchanged", "transposed")


def _entrywise(wanted: Any, given: Any, answer: Answer, context: Context) -> Outcome:
    symbols, conditions = context.symbols(answer), []
    precise = dict(entries(answer.value)) if lengths(answer.value) == lengths(wanted) else {}
    for (place, one), (_, other) in zip(entries(wanted), entries(given), strict=True):
        if one == other or ((first := number_of(one)) is not None and first == number_of(other)):
            continue
        verdict = compare(one, _as_number(other), symbols)
        if verdict.kind == "equal":
            continue
        data = {"place": ", ".join(map(str, place)), "given": other, "right": one}
        if verdict.kind != "different":
            return unread("entry_unread", **data)
        entry = Answer(one, number_of(precise.get(place, one)))
        near = _near(replace(entry, value=float(entry.value) if entry.value is not None else None), other, context)
        if near is None:
            return replace(wrong("entry", **data), verdict=verdict)
        conditions += [near] if near.kind == "conditional" else []
    return conditions[0] if conditions else right()
