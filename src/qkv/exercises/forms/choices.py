"""Answers that choose among options, by label or in the option's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..findings import Finding
from ..outcome import Outcome, right, unread, wrong
from ..record import plain_label
from ..solving import Answer
from .statement import LONGEST, PATTERNS, doubted, plain_text, split_outside, squeezed, trimmed
from .values import Context


def judge_choice(answer: Answer, text: str, context: Context) -> Outcome:
    """The set of labels that a text gives; a text that is anything else is unread."""
    options = {plain_label(option.label): option for option in context.asked.options}
    if not options or not text.strip() or len(text) > LONGEST:
        return unread("no_answer" if options else "no_options")
    chosen = chosen_labels(text, {squeezed(each.text).lower(): label for label, each in options.items()})
    if isinstance(chosen, Finding):
        return Outcome("unread", (chosen,))
    if not context.asked.several and len(chosen) > 1:
        return unread("several", count=len(chosen))
    value = answer.value if isinstance(answer.value, list | tuple | set | frozenset) else [answer.value or answer.text]
    gold = {plain_label(str(each)) for each in value}
    if chosen == gold:
        return right()
    extra, absent = (
        ", ".join(f"({options[label].label})" for label in options if label in each) or "nothing"
        for each in (chosen - gold, gold - chosen)
    )
    return wrong("options", extra=extra, absent=absent)


def chosen_labels(text: str, options: Mapping[str, str]) -> set[str] | Finding:
    """The labels that a text chooses, or why it chooses none; `options` are texts with their labels."""
    labels, plain = set(options.values()), plain_text(text)
    text = plain if plain_label(plain) in labels else trimmed(re.sub(r"^\s*\([a-h]\)\s*(?=\()", "", plain))
    if (found := options.get(squeezed(text).lower())) is not None:
        return {found}
    if (doubt := doubted(text)) is not None:
        return doubt
    if re.search(r"\bor\b", text):
        return Finding("several", {"count": 2})
    if re.fullmatch(r"(?:all|every one)(?: of (?:them|the above|these))?|all (?:the )?options", text, re.IGNORECASE):
        return labels
    if re.fullmatch(r"none(?: of (?:them|the above|these))?", text, re.IGNORECASE):
        return set()
    # What stands behind a colon says why.
    found = [_label(piece, options) for piece in _pieces(text)]
    found = found if None not in found else [_label(piece, options) for piece in _pieces(text.partition(":")[0])]
    chosen = {label for label in found if label is not None}
    return chosen if chosen and None not in found else Finding("no_option", {"given": text})


def _pieces(text: str) -> list[str]:
    pieces = (
        PATTERNS["filling"].sub("", each.strip(" .:")).strip()
        for each in split_outside(PATTERNS["between"].sub(";", text), ",;")
    )
    return [piece for piece in pieces if piece]


def option_named(text: str, options: Mapping[str, str]) -> str | None:
    """The label of the one option that a text names, as "(1)", "option 1" or "(1) [h, d]"; None where it names none.

    >>> options = {"[h,d]": "1", "[d]": "2"}
    >>> [option_named(text, options) for text in (r"\\text{(2)}", "Option 1: [h, d]", "(2) [h, d]", "[1]")]
    ['2', '1', None, None]
    """
    bare = PATTERNS["worded_option"].sub(r"\1", text)
    return _label(PATTERNS["filling"].sub("", bare.strip(" .:")).strip(), options)


def _label(piece: str, options: Mapping[str, str]) -> str | None:
    """The label of one piece: the option's text, its label, or both."""
    begun = re.match(r"\(?([A-Za-z0-9]+)\)?[\s.:)]*", piece)
    label = plain_label(begun[1]) if begun else ""
    rest = squeezed(piece[begun.end() :] if begun else "").lower()
    if label in options.values() and (not rest or options.get(rest) == label):
        return label
    return options.get(squeezed(piece).lower())
