"""Answers that are code: an einsum up to the names of its letters, a call with its arguments, a name as it is."""

from __future__ import annotations

import re
from itertools import permutations

from ...maths import Verdict, compare
from ..findings import Finding
from ..outcome import Outcome, right, unread, wrong
from ..record import plain_label
from ..solving import Answer
from .choices import option_named
from .statement import PATTERNS, split_outside, squeezed, stated
from .values import Context, from_verdict, judge_shape

_BEGINS = re.compile(r"__init__\(\s*self\s*,([\w\s,]+)\)")
_ASSIGNED = re.compile(
    r"^[ \t]*((?:self\.)?\w+)[ \t]*=[ \t]*([\w.]+(?:[ \t]*(?://?|\*)[ \t]*[\w.]+)?)[ \t]*$", re.MULTILINE
)


def judge_blank(answer: Answer, text: str, context: Context) -> Outcome:
    """What stands in a blank of a listing."""
    found = stated(re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE))
    if isinstance(found, Finding):
        return Outcome("unread", (found,))
    code = re.sub(r"^\s*\w+\s*=\s*(?!=)", "", found).strip(" ;`")
    options = {option.label: option.text for option in context.asked.options}
    label = option_named(code, {squeezed(each).lower(): plain_label(name) for name, each in options.items()})
    offered = next((each for name, each in options.items() if label == plain_label(name)), "")
    numbered = re.match(r"\(?(\w+)[).:\s]+", code)
    labelled = numbered and plain_label(numbered[1]) in map(plain_label, options)
    if not offered and numbered and labelled and squeezed(code[numbered.end() :]) in map(squeezed, options.values()):
        return unread("several", count=2)  # the label of one option and the text of another
    outcome = _judged(answer, offered or code, context)
    return wrong("different", given=code, right=answer.text) if offered and outcome.kind == "unread" else outcome


def _judged(answer: Answer, code: str, context: Context) -> Outcome:
    gold = answer.text
    # The listing may have "self." before the blank.
    if squeezed(code.removeprefix("self.")) == squeezed(gold.removeprefix("self.")):
        return right()
    ways = re.split(r"\s+or\s+", code)
    if len(ways) > 1:
        said = [_judged(answer, way, context) for way in ways]
        return right() if all(said) else unread("several", count=len(ways))
    if "->" in gold:
        return _judge_einsum(gold, code)
    if gold[:1] in "[(" or gold.startswith("torch.Size"):
        return judge_shape(answer, code, context)
    one, two = PATTERNS["code_call"].fullmatch(gold), PATTERNS["code_call"].fullmatch(code)
    if one and two:
        return _judge_call(one, two, answer, context)
    verdict = _compared(gold, code, answer, context)
    return unread("code", given=code) if one or two or verdict is None else from_verdict(verdict, answer, code)


def _compared(gold: str, code: str, answer: Answer, context: Context) -> Verdict | None:
    """The verdict on an expression; None where another name may stand for the same size."""
    code, sizes = _in_sizes(code, context)
    gold, known = _in_sizes(gold, context)
    if sizes and known and context.asked.form != "code":
        return compare(gold, code, dict.fromkeys(sizes | known, "natural"))
    verdict = compare(gold, code, context.symbols(answer))
    names = [set(re.findall(r"[A-Za-z_]\w*", each)) for each in (gold, code)]
    unsure = verdict.kind == "different" and not answer.symbols and names[0] != names[1]
    return None if verdict.renaming or unsure or context.asked.form == "code" else verdict


def _in_sizes(code: str, context: Context) -> tuple[str, set[str]]:
    """An expression by the sizes that a listing begins with, and their names: self.d_k as d_model / heads.

    No names where one of them is not assigned there, once and from sizes.
    """
    listing = "\n".join(str(given.value) for given in context.exercise.of_role("listing"))
    begins = {name for found in _BEGINS.findall(listing) for name in re.findall(r"\w+", found)}
    assigned: dict[str, set[str]] = {}
    for name, value in _ASSIGNED.findall(listing):
        assigned.setdefault(name, set()).add(value.strip().replace("//", "/"))
    for _ in range(3):
        for name, values in assigned.items():
            if len(values) == 1 and name not in begins:
                code = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.(])", f"({min(values)})", code)
    names = set(re.findall(r"[A-Za-z_][\w.]*", code))
    return (re.sub(r"^\((\w+)\)$", r"\1", code), names) if names and names <= begins else (code, set())


def _judge_call(gold: re.Match[str], given: re.Match[str], answer: Answer, context: Context) -> Outcome:
    """A call argument by argument: nn.Linear(d, 3 * d)."""
    if gold[1] != given[1]:
        return unread("code", given=given[0])
    arguments, others = (_arguments(call[2]) for call in (gold, given))
    if arguments.keys() != others.keys():
        return unread("code", given=given[0])
    for name, wanted in arguments.items():
        if squeezed(wanted) == squeezed(others[name]):
            continue
        verdict = _compared(wanted, others[name], answer, context)
        if verdict is None or verdict.kind not in ("equal", "different"):
            return unread("code", given=given[0])
        if verdict.kind == "different":
            return wrong("argument", name=name, given=others[name], right=wanted)
    return right()


def _arguments(text: str) -> dict[str, str]:
    pieces = [piece.strip() for piece in split_outside(text, ",") if piece.strip()]
    keyed = [re.fullmatch(r"(\w+)\s*=\s*(.+)", piece, re.DOTALL) for piece in pieces]
    return {key[1] if key else str(at): key[2] if key else pieces[at - 1] for at, key in enumerate(keyed, 1)}


def _judge_einsum(gold: str, code: str) -> Outcome:
    """Subscripts up to the names of letters; operands in another order are the same where they are named so."""
    wanted, given = _einsum(gold), _einsum(code)
    if wanted is None or given is None or len(wanted[0]) != len(given[0]):
        return unread("code", given=code)
    (terms, out, operands), (others, result, named) = wanted, given
    if len(set("".join(others))) > 26 or not set(result) <= set("".join(others)):
        return unread("code", given=code)
    if named and operands and sorted(named) != sorted(operands):
        return unread("code", given=code)
    orders = (
        [tuple(named.index(each) for each in operands)] if named and operands else [*permutations(range(len(terms)))]
    )
    same = any(_renamed(terms, out) == _renamed([others[place] for place in order], result) for order in orders)
    return right() if same else wrong("different", given=code, right=gold)


def _einsum(code: str) -> tuple[list[str], str, list[str]] | None:
    found = PATTERNS["einsum"].fullmatch(PATTERNS["einsum_call"].sub("", code.strip()))
    if found is None:
        return None
    terms = [term.strip() for term in found[1].split(",")]
    operands = [squeezed(each).replace("_", "").lower() for each in split_outside(found[3] or "", ",") if each.strip()]
    return terms, found[2], operands if len(operands) == len(terms) else []


def _renamed(terms: list[str], out: str) -> tuple[list[int], ...]:
    letters = list(dict.fromkeys("".join(terms)))
    return tuple([letters.index(letter) for letter in term] for term in (*terms, out))
