"""Answers that choose among options, by label or in the option's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..findings import Finding
from ..outcome import Outcome, right, unread, wrong
from ..record import plain_label
from ..solving import Answer
from .statement import LONGEST, doubted, plain_text, split_outside, squeezed, trimmed
from .values import Context

_BETWEEN = re.compile(r"[&+/\n]|\band\b|(?<=\))\s*(?=\()")
_FILLING = re.compile(
    r"^(?:(?:both|only|just|options?|choices?|answers?|statements?|select|pick)\b[\s:]*)+"
    r"|\s+(?:only|both|alone|(?:is|are) (?:correct|right|true))$",
    re.IGNORECASE,
)


def judge_choice(answer: Answer, text: str, context: Context) -> Outcome:
    """The set of labels that a text gives; a text that is anything else is unread."""
    options = context.asked.options
    if not options:
        return unread("no_options")
    if not text.strip() or len(text) > LONGEST:
        return unread("no_answer")
    chosen = chosen_labels(text, context)
    if isinstance(chosen, Finding):
        return Outcome("unread", (chosen,))
    gold = {plain_label(each) for each in _labels(answer)}
    if not context.asked.several and len(chosen) > 1:
        return unread("several", count=len(chosen))
    if chosen == gold:
        return right()
    shown = {plain_label(option.label): f"({option.label})" for option in options}
    extra = ", ".join(shown[each] for each in shown if each in chosen - gold)
    absent = ", ".join(shown[each] for each in shown if each in gold - chosen)
    return wrong("options", extra=extra or "nothing", absent=absent or "nothing")


def _labels(answer: Answer) -> list[str]:
    if isinstance(answer.value, str):
        return [answer.value]
    if isinstance(answer.value, list | tuple | set | frozenset):
        return [str(each) for each in answer.value]
    return re.findall(r"\w+", answer.text)


def chosen_labels(text: str, context: Context) -> set[str] | Finding:
    """The labels that a text chooses, or why it chooses none."""
    labels = {plain_label(option.label): plain_label(option.label) for option in context.asked.options}
    whole = {squeezed(option.text).lower(): plain_label(option.label) for option in context.asked.options}
    plain = plain_text(text)
    text = trimmed(re.sub(r"^\s*\([a-h]\)\s*(?=\()", "", plain)) if plain_label(plain) not in labels else plain
    if (found := whole.get(squeezed(text).lower())) is not None:
        return {found}
    if (doubt := doubted(text)) is not None:
        return doubt
    if re.search(r"\bor\b", text):
        return Finding("several", {"count": 2})
    if re.fullmatch(r"(?:all|every one)(?: of (?:them|the above|these))?|all (?:the )?options", text, re.IGNORECASE):
        return set(labels)
    if re.fullmatch(r"none(?: of (?:them|the above|these))?", text, re.IGNORECASE):
        return set()
    found = _listed_labels(text, labels, whole)
    # What stands behind a colon says why.
    return found if isinstance(found, set) or ":" not in text else _listed_labels(text.partition(":")[0], labels, whole)


def _listed_labels(text: str, labels: Mapping[str, str], whole: Mapping[str, str]) -> set[str] | Finding:
    chosen: set[str] = set()
    for each in split_outside(_BETWEEN.sub(";", text), ",;"):
        piece = _FILLING.sub("", each.strip(" .:")).strip()
        if not piece:
            continue
        begun = re.match(r"\(?([A-Za-z0-9]+)\)?[\s.:)]*", piece)
        label = plain_label(begun[1]) if begun else ""
        rest = squeezed(piece[begun.end() :] if begun else "").lower()
        if (found := whole.get(squeezed(piece).lower())) is not None:
            chosen.add(found)
        elif label in labels and (not rest or whole.get(rest) == label):
            chosen.add(label)
        else:
            return Finding("no_option", {"given": piece})
    return chosen or Finding("no_option", {"given": text})
