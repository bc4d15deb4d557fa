"""How certain it is that a reading overlooks nothing that changes an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..record import Exercise, Given, Span
from ..solving import quantities
from .asked import AskedFor, Wanted, sentences, table
from .conventions import Settled
from .splitting import Question
from .stated import RULE, SHAPED

_WITH_ROTATION = frozenset({"projections", "scores", "weights", "output", "heads_output", "linear_state"})
# Modules of solvers whose figures every number of the text may change.
_ON_FIGURES = frozenset({"sizes", "machines", "attention", "gradients", "norms", "positions", "moments"})
_NUMBER = re.compile(r"(?<![\w.^_{\[(/-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?%?(?![\w^]*_)", re.IGNORECASE)
_REFERENCE = re.compile(
    r"\b(?:eq(?:uation)?s?|part|question|exercise|section|figure|fig|table|chapter|step|line|problem|page|lecture|gpt"
    r"|llama|version|layer|token|position|key|query|head|row|entry|degree)\.?\s*\(?$",
    re.IGNORECASE,
)  # fmt: skip
_GIVEN_AS = {"temperature": "temperature", "window": "window", "sliding": "window", "shared": "shared_experts",
             "random": "feature_count"}  # fmt: skip


def doubtful(wanted: Wanted, exercise: Exercise, question: Question) -> bool:
    """Whether a question of this kind is known to be misread, or answered for something else."""
    quantity, structure = wanted.quantity, exercise.structure
    if quantity in ("kernel", "feature_map") and structure.similarity == "softmax":
        whole = f"{question.context} {question.text}"
        return not re.search(r"softmax|exponential|gaussian", whole, re.IGNORECASE)
    if quantity == "gradient" and wanted.object in ("Q", "K", "V"):
        return not exercise.of_role("query", "tokens")  # from weights alone, only the gradient of the scores follows
    if quantity == "listing_changes":  # blanks hide what else must change
        return any("___" in str(given.value) for given in exercise.of_role("listing"))
    if quantity == "tensor_bytes" and re.search(r"\ball\b", wanted.clause.plain):
        return exercise.given("layers") is not None  # of all layers, or of one
    if quantity.startswith("growth") and structure.variant in ("mqa", "gqa"):
        return exercise.size("heads") is None
    return quantity in _WITH_ROTATION and structure.positions == "rotary"  # the scores are of rotated vectors


def confidence(wanted: Wanted, asks: AskedFor, exercise: Exercise, question: Question, certain: float) -> float:
    """The confidence in one question: its phrase, what was overlooked, and what is known to go wrong."""
    found = wanted.weight * (0.5 if doubtful(wanted, exercise, question) else 1.0)
    found *= certain if quantities()[wanted.quantity]["module"] in _ON_FIGURES else 1.0
    return round(found * (0.3 if asks.experiments else 1.0), 3)


def certainty(asks: AskedFor, givens: Sequence[Given], question: Question, says: Settled) -> float:
    """How certain it is that nothing was overlooked that changes a figure."""
    text = question.text
    known = [each.span for each in givens if each.span is not None and each.role != "other"] + says.spans
    if not any(quantities()[wanted.quantity]["module"] in ("sizes", "machines") for wanted in asks.wanted):
        known += [each.span for each in givens if each.span is not None]
    known += [wanted.span for wanted in asks.wanted]
    values = {str(given.value) for given in givens if given.value is not None}
    certain = 1.0
    known += [match.span() for match in (*RULE.finditer(text), *SHAPED.finditer(text))]
    known += [clause.span for clause in asks.again]
    for match in _NUMBER.finditer(asks.plain):
        part = match.span()
        if re.search(r"(?:\^|times|×|sqrt|√|\bx|R|\\mathbb)[\s({]*$", asks.plain[: part[0]][-16:]) or re.match(
            r"\s*(?:times|×|x\s*\d|/\s*\\?(?:sqrt|√))", asks.plain[part[1] :]
        ):
            continue  # a shape, or a root that is written out
        if match.group().replace(",", "").rstrip(".") in values:
            continue  # said before
        if match.group() == "0" and re.search(r"\bbe\s*$", asks.plain[: part[0]][-6:]):
            continue
        covered = any(start <= part[0] < end or part[0] <= start < part[1] for start, end in known)
        if not covered and not _REFERENCE.search(asks.plain[max(0, part[0] - 14) : part[0]]) and not _aside(asks, part):
            certain *= 0.55
    for match in table().complications.finditer(asks.plain):
        if re.search(
            r"\b(?:no|without|ignor\w+|not|neglect\w*)\s+(?:any\s+|the\s+|use\s+)*$", asks.plain[: match.start()][-24:]
        ):
            continue
        if _GIVEN_AS.get(match.group().lower().split()[0].rstrip("s"), "") in {given.role for given in givens}:
            continue
        if not any(start < match.end() and match.start() < end for start, end in known):
            certain *= 0.5
    if re.search(r"\bMoEs?\b|\bexperts?\b", f"{question.context} {text}") and not any(
        given.role == "experts" for given in givens
    ):
        certain *= 0.5
    return max(certain, 0.1)


def _aside(asks: AskedFor, part: Span) -> bool:
    """Whether a number stands in a sentence that does not count: a hint, a remark, a question in words."""
    sentence = next((span for span in sentences(asks.plain) if span[0] <= part[0] < span[1]), (0, 0))
    words = asks.plain[slice(*sentence)].strip()
    hint = re.match(r"\W*(?:hint|for example|for instance|example|recall)\b", words, re.IGNORECASE)
    return bool(hint) or any(clause.sentence == sentence for clause in asks.prose)
