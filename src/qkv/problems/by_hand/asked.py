"""The parts of a question by hand as a text asks them: vectors of some tokens, products, weights, outputs, shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..exact import vector
from ..judging.answers import Value, Values
from ..judging.blanks import ShapeOf
from ..problem import Misconception, Part
from ..reading.lettered import Asked, lettered
from .instance import UNSCALED, Instance
from .numbers import scores_part, sum_part, vectors_part
from .reading import ORDINALS

_TOKEN = re.compile(
    rf"\b({'|'.join(ORDINALS)}) (?:token|word|one|position|row|embedding)|\b(?:token|word|position) \$?(\d)\b|"
    r"\bx\s*_?\s*\{?(\d)\}?",
    re.IGNORECASE,
)
_ALL = re.compile(r"\b(?:all|every|each|both|two|three|four|five|tokens)\b", re.IGNORECASE)


def parts_asked(text: str, given: Instance, bank: Sequence[Part]) -> tuple[Part, ...]:
    """A part for each that the text lists; empty where it lists none, or asks what is not known here."""
    _, asked = lettered(text)
    found = [_part(each, given, bank) for each in asked]
    return tuple(part for part in found if part is not None) if all(found) else ()


def _part(asked: Asked, given: Instance, bank: Sequence[Part]) -> Part | None:
    said = asked.whole.lower()
    token = token_in(said, len(given.q))
    given = replace(given, token=token) if token is not None else given

    def has(pattern: str) -> bool:
        return re.search(pattern, said) is not None

    if has(
        r"\bprove|\bshow that|\bjustify|\bexpress|\bwrite (?:down )?(?:the )?(?:matri|formula|\$?q)|data matri|stack"
    ):
        part = _best([part for part in bank if part.name not in ("a", "b", "c")], asked.whole)
    elif has(r"\bshapes?\b|\bdimensions? of|\bsizes? of|how many (?:rows|columns)"):
        part = _shapes(given, asked.whole)
    elif has(r"\bweights?\b|\bsoftmax|probabilit") and not has(r"\boutput|weighted sum|weight matri|context vector"):
        part = weights_part(given)
    elif has(r"\boutput|weighted sum|context vector|\bresult of (?:the )?attention|attention result"):
        part = sum_part(given)
    elif has(r"dot product|inner product|unscaled|\braw\b") and not has(r"(?<!un)scal(?:ed|ing)\b|sqrt|√|\bdivi"):
        part = scores_part(replace(given, scale=UNSCALED))
    elif has(r"\bscores?\b|\blogits?\b|similarit|\bz_|attention (?:that|from|of)|product"):
        part = scores_part(given)
    elif has(r"quer(?:y|ies)|\bkeys?\b|\bvalues?\b|\bq_|\bk_|\bv_") and given.x is not None:
        part = _vectors(given, asked.whole)
    else:
        part = None
    return None if part is None else replace(part, name=asked.name)


def token_in(text: str, count: int) -> int | None:
    """The token that a text asks about; None where it names none, or several."""
    named = set()
    for word, *numbers in _TOKEN.findall(text):
        place = ORDINALS[word.lower()] if word else int(next(each for each in numbers if each))
        named.add(count if place < 0 else place)
    return next(iter(named)) if len(named) == 1 and 1 <= min(named) <= count else None


def _best(bank: Sequence[Part], text: str) -> Part | None:
    hits = [sum(re.search(cue, text, re.IGNORECASE) is not None for cue in part.cues) for part in bank]
    return bank[hits.index(max(hits))] if hits and max(hits) > 0 else None


def _vectors(given: Instance, text: str) -> Part | None:
    """The vectors that are asked for: all of them, those of one token, or one query and every key."""
    whole = vectors_part(given)
    token = token_in(text, len(given.q))
    wanted: list[str] = []
    for letter, word in (("q", r"quer(?:y|ies)|\bq_"), ("k", r"keys?\b|\bk_"), ("v", r"values?\b|\bv_")):
        found = re.search(word, text, re.IGNORECASE)
        if found is None:
            continue
        several = found.group().lower() in ("queries", "keys", "values")
        one = token is not None and not (several and _ALL.search(text))
        wanted += [f"{letter}_{place}" for place in given.places if not one or place == token]
    named = {f"{letter}_{place}" for letter, place in re.findall(r"(?<![A-Za-z])([qkv])\}?\s*_?\s*\{?(\d)", text)}
    wanted = [name for name in wanted if name in named] if named & set(wanted) else wanted
    items = {name: value for name, value in whole.answer.items.items() if name in wanted}  # type: ignore[attr-defined]
    if not items:
        return None
    answer = replace(whole.answer, items=items) if isinstance(whole.answer, Values) else whole.answer
    return replace(whole, answer=answer, misconceptions=_among(whole.misconceptions, set(items)))


def _among(planted: Sequence[Misconception], names: set[str]) -> tuple[Misconception, ...]:
    """Mistakes as far as they are about these pieces."""
    found = []
    for each in planted:
        kept = [piece for piece in each.planted.split("; ") if piece.partition(" =")[0].strip() in names]
        if kept:
            found.append(replace(each, planted="; ".join(kept)))
    return tuple(found)


def weights_part(given: Instance) -> Part:
    """The softmax weights of the asked token."""
    scores = [given.scores[place - 1] for place in given.attended]
    count = len(scores)
    listed = f"({', '.join(scores)})"
    symbols = {"z": f"vector[{count}] = {listed}", "a": f"vector[{count}] = softmax(z)"}
    products = vector([given.products[place - 1] for place in given.attended])
    wrong = [] if given.scale.plain else [Misconception("no scaling", f"softmax({products})")]
    likeness = sum_part(given)
    return replace(
        likeness,
        ask=f"Find the attention weights of token {given.token}.",
        answer=Value("a", symbols, shown=f"({', '.join(given.shown_weights()[p - 1] for p in given.attended)})"),
        misconceptions=(*wrong, Misconception("scores used as weights", listed)),
        symbols=symbols,
        cues=(r"attention weights?|softmax", rf"(?<![A-Za-z])a\}}?_\{{?{given.token}\}}?\s*(?:=|\\approx|≈)"),
        explanation=f"The weights are the softmax of the scores {listed}.",
    )


def _shapes(given: Instance, text: str) -> Part | None:
    """The shapes of Q, K and V, tokens by rows."""
    rows = {"Q": given.q, "K": given.k, "V": given.v}
    named = [letter for letter in rows if re.search(rf"(?<![A-Za-z]){letter}(?![A-Za-z_])", text)]
    items = {name: ShapeOf((str(len(rows[name])), str(len(rows[name][0])))) for name in named}
    if not items:
        return None
    return replace(sum_part(given), ask="Which shapes do the matrices have?", answer=Values(items), misconceptions=(),
                   cues=(r"\bshapes?\b",), explanation="One row for each token.")  # fmt: skip
