"""The parts of a question by hand as a text asks them: vectors of some tokens, products, weights, outputs, shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..exact import vector
from ..judging.answers import Value, Values
from ..judging.blanks import ShapeOf
from ..problem import Misconception, Part
from ..reading.inline import on_own_lines
from ..reading.lettered import Asked, lettered
from .instance import UNSCALED, Instance
from .numbers import scores_part, sum_part, vectors_part
from .proofs import SCORES, SUMS, scores_proof, sum_proof
from .reading import ORDINALS

NEARLY = 0.8  # of the words of two asks, those that both have

_TOKEN = re.compile(
    rf"\b({'|'.join(ORDINALS)}) (?:token|word|one|position|row|embedding)|\b(?:token|word|position) \$?(\d)\b|"
    r"\bx\s*_?\s*\{?(\d)\}?",
    re.IGNORECASE,
)
_NAMED = (("q", r"quer(?:y|ies)|\bq(?:_|\b)"), ("k", r"keys?\b|\bk(?:_|\b)"), ("v", r"values?\b|\bv(?:_|\b)"))
_ALL = re.compile(r"\b(?:all|every|each|both|two|three|four|five|tokens)\b", re.IGNORECASE)


def parts_asked(text: str, given: Instance, bank: Sequence[Part]) -> tuple[Part, ...]:
    """A part for each that the text lists and that is known here; without letters, proofs only where they are asked."""
    _, asked = lettered(on_own_lines(text))
    found = [_part(each, given, bank) for each in asked]
    if asked or re.search(
        r"\bprove|\bshow that|\bexpress|data matri|\bstack|\bmatrix (?:form|notation)", text, re.IGNORECASE
    ):
        return tuple(part for part in found if part is not None)
    return tuple(part for part in bank if part.name in ("a", "b", "c") or given.x is None)


def _part(asked: Asked, given: Instance, bank: Sequence[Part]) -> Part | None:
    said = asked.whole.lower()
    token = token_in(said, len(given.q))
    given = replace(given, token=token) if token is not None else given

    def has(pattern: str) -> bool:
        return re.search(pattern, said) is not None

    if has(
        r"\bprove|\bshow (?:that|what|how|why)|\bjustify|\bexpress|\bwrite (?:down )?(?:the )?(?:matri|formula|\$?q\b)|"
        r"data matri|stack"
    ):
        proofs = [part for part in bank if part.name not in ("a", "b", "c")]
        part = _own_proof(given, asked.whole) or _best(proofs, asked.whole)
        if part is None and has(r"\bmatri(?:x|ces)\b.*\bq\b.*\bx\b|\bwrite \$?q\b.*\bk\b.*\bv\b.*\bx\b.*\bweights?\b"):
            part = next((each for each in proofs if each.name == "d"), None)
    elif has(r"\bshapes?\b|\bdimensions? of|\bsizes? of|how many (?:rows|columns)"):
        part = _shapes(given, asked.whole)
    elif has(r"\bsoftmax\s*\\?[\[({].*[\])}]\s*(?:\\mathbf\s*\{?)?v\b") and token is None:
        part = _outputs(given)
    elif has(r"\bweights?\b|\bsoftmax|probabilit") and not has(r"\boutput|weighted sum|weight matri|context vector"):
        part = weights_part(given)
    elif has(r"\boutput|weighted sum|context vector|\bresult of (?:the )?attention|attention result"):
        part = sum_part(given)
    elif has(r"dot product|inner product|unscaled|\braw\b") and not has(r"(?<!un)scal(?:ed|ing)\b|sqrt|√|\bdivi"):
        part = scores_part(replace(given, scale=UNSCALED))
    elif has(r"\bscores?\b|\blogits?\b|similarit|\bz_|attention (?:that|from|of)|product"):
        part = scores_part(given)
    elif has(r"quer(?:y|ies)|\bkeys?\b|\bvalues?\b|\b[qkv](?:_|\b)") and given.x is not None:
        part = _vectors(given, asked.whole)
    else:
        part = None
    return None if part is None else replace(part, name=asked.name)


def _outputs(given: Instance) -> Part:
    """The outputs of all tokens: softmax(…)V, row by row."""
    each = {f"y_{place}": sum_part(replace(given, token=place)) for place in range(1, len(given.q) + 1)}
    one = next(iter(each.values()))
    return replace(
        one,
        ask="Find the output of every token, the rows of the product of the weights with $V$.",
        answer=Values({name: part.answer for name, part in each.items()}),
        steps=lambda: tuple(step for part in each.values() for step in part.steps()),
        misconceptions=(),
        cues=(r"\bsoftmax", r"\boutputs?\b"),
        explanation="Each row is the sum of the values, weighted by the softmax of that token's scores.",
    )


def token_in(text: str, count: int) -> int | None:
    """The token that a text asks about; None where it names none, or several."""
    named = set()
    for word, *numbers in _TOKEN.findall(text):
        place = ORDINALS[word.lower()] if word else int(next(each for each in numbers if each))
        named.add(count if place < 0 else place)
    return next(iter(named)) if len(named) == 1 and 1 <= min(named) <= count else None


def _own_proof(given: Instance, text: str) -> Part | None:
    """The proof of the bank that a text asks for in nearly the bank's own words."""
    if given.x is None:
        return None
    sums = SUMS[:2] if given.causal else SUMS
    proofs = [*(scores_proof(given, kind) for kind in SCORES), *(sum_proof(given, kind) for kind in sums)]
    # What stands below the last part may be about the form of the answers.
    said = [_words(each) for each in (text, re.split(r"\n\s*\n", text.strip())[0])]
    shares = []
    for part in proofs:
        own = _words(part.ask)
        shares.append(max(len(own & each) / max(1, len(own | each)) for each in said))
    return proofs[shares.index(max(shares))] if max(shares) > NEARLY else None


def _words(text: str) -> set[str]:
    """The words and names of a text, however its indices and transposes are set."""
    plain = re.sub(r"\\top\b|\\intercal\b|ᵀ", "T", text)
    return set(re.findall(r"\w+", re.sub(r"[{}\\]|\bmathbf\b", "", plain)))


def _best(bank: Sequence[Part], text: str) -> Part | None:
    hits = [sum(re.search(cue, text, re.IGNORECASE) is not None for cue in part.cues) for part in bank]
    return bank[hits.index(max(hits))] if hits and max(hits) > 0 else None


def _vectors(given: Instance, text: str) -> Part | None:
    """The vectors that are asked for: all of them, those of one token, or one query and every key."""
    whole = vectors_part(given)
    token = token_in(text, len(given.q))
    wanted: list[str] = []
    for letter, word in _NAMED:
        found = re.search(word, text, re.IGNORECASE)
        if found is None:
            continue
        several = found.group().lower() in ("queries", "keys", "values", "q", "k", "v")
        one = token is not None and not (several and _ALL.search(text))
        wanted += [f"{letter}_{place}" for place in given.places if not one or place == token]
    named = {f"{letter}_{place}" for letter, place in re.findall(r"(?<![A-Za-z])([qkv])\}?\s*_?\s*\{?(\d)", text)}
    wanted = [name for name in wanted if name in named] if named & set(wanted) else wanted
    answer = whole.answer
    items = (
        {name: value for name, value in answer.items.items() if name in wanted} if isinstance(answer, Values) else {}
    )
    if not isinstance(answer, Values) or not items:
        return None
    return replace(whole, answer=replace(answer, items=items), misconceptions=_among(whole.misconceptions, set(items)))


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
