"""What a reading leaves out: numbers, arrays, equations, mechanisms and words that may change an answer and that
nothing accounts for. A question of which something is left out is not answered."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

from ...errors import QkvError
from ..findings import Finding
from ..record import Asked, Exercise, Span
from ..solving import Answer, quantities
from ..units import factor
from .asked import TABLE, AskedFor, pattern, plain, sentences, spelled
from .literals import read_number

_ASIDE = re.compile(r"\W*(?:hint|for example|for instance|example|recall|note|remark|source|reminder)\b", re.IGNORECASE)
_ARRAY = re.compile(r"[\[(]\s*[-−]?\d[\d.]*(?:\s*[,;&]\s*\\?\\?\s*[-−]?\d[\d./]*)+\s*[\])]")
_NUMBER = re.compile(r"(?<![\w.^_{/⁻])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?%?(?![\w^]*_)", re.IGNORECASE)
_LEFT = TABLE["left"]
_ENDS = re.compile(r"[;?\n]|\.(?:\s|$)|(?<=\s)(?:where|with|and|for|so|of|is|are|which|the|in|to|per|bytes|read)\s|≠|≤")
_NAME = TABLE["name"]
_DERIVED = re.compile(r"jacobian|gradient|derivative", re.IGNORECASE)
_CHANGED = re.compile(
    r"\b(?:is|are) (?:then )?(?:changed|altered|perturbed|modified|replaced|swapped)\b", re.IGNORECASE
)
_WORD = re.compile(r"(?<![\\\w^_])[A-Za-z][a-z]{2,}(?![\w_^{(])")


@dataclass(frozen=True)
class Neutral:
    """Words and forms that change no answer, and those that always may."""

    words: frozenset[str]
    before_numbers: re.Pattern[str]
    after_numbers: re.Pattern[str]
    equations: tuple[tuple[re.Pattern[str], str], ...]  # known equations, and the quantity that each defines
    mechanisms: re.Pattern[str]
    denied: re.Pattern[str]
    asides: re.Pattern[str]
    scopes: re.Pattern[str]
    notes: re.Pattern[str]
    never: re.Pattern[str]
    assumptions: dict[str, str]  # what an answer may not assume, unless the text holds some words
    data: dict[str, Any]


@cache
def neutral() -> Neutral:
    """The words of neutral.toml."""
    data = tomllib.loads(files("qkv.exercises.sheets").joinpath("neutral.toml").read_text(encoding="utf-8"))
    return Neutral(
        frozenset(data["words"].split()),
        re.compile(rf"(?:{'|'.join(data['before_numbers'])})[\s({{]*$", re.IGNORECASE),
        re.compile(rf"\s*(?:{'|'.join(data['after_numbers'])})", re.IGNORECASE),
        tuple((re.compile(each), name) for name, known in data["equations"].items() for each in known),
        pattern(rf"\b(?:{'|'.join(data['mechanisms'])})\b", {}),
        re.compile(rf"(?:{'|'.join(data['denied'])})[\s\w,]{{0,20}}$", re.IGNORECASE),
        pattern("|".join([*data["asides"], *data["notes"]]), {}),
        pattern(rf"\b(?:{'|'.join(data['scopes'])})\b", {}),
        pattern("|".join(data["notes"]), {}),
        pattern("|".join(data["never"]), {}),
        data["assumptions"],
        data,
    )


def left_out(
    asks: AskedFor, known: Iterable[Span], values: frozenset[str], on_figures: bool, on_formulas: bool, roles: set[str]
) -> Iterator[str]:
    """The pieces of a question that `known` spans do not account for; a number among `values` was said before."""
    known = list(known)
    yield from in_setup(asks.plain, known, values, on_figures, on_formulas, [clause.sentence for clause in asks.prose])
    known += [found.span() for found in neutral().asides.finditer(asks.plain)]
    rest = blanked(asks.plain, [*known, *(clause.span for clause in (*asks.unread, *asks.prose, *asks.again))])
    for sentence in {
        each.clause.sentence for each in asks.wanted if each.quantity not in neutral().data["in_listings"]
    }:
        for found in neutral().scopes.finditer(rest[slice(*sentence)]):
            counted = neutral().data["counted"].get(found.group().split()[-1].lower().removesuffix("s"))
            if counted is None or roles & {*counted}:
                yield found.group()
        for found in _WORD.finditer(rest[slice(*sentence)]):
            if found.group().lower() not in neutral().words and not _is_name(asks.plain, sentence[0] + found.start()):
                yield found.group()


def _is_name(shown: str, start: int) -> bool:
    """Whether a word is a proper name: a capital inside a sentence, with no other capital word or sign next to it."""
    return shown[start].isupper() and bool(
        re.search(r"[a-z,]\s+(?:[A-Z][a-z]+\s+)?$", shown[max(0, start - 24) : start])
    )


def in_setup(
    shown: str, known: Iterable[Span], values: frozenset[str], on_figures: bool, on_formulas: bool, asides: Any = ()
) -> Iterator[str]:
    """The same of a text that only states: its words are not looked at, but what names a mechanism is."""
    known = [*known, *(found.span() for found in neutral().asides.finditer(shown))]
    rest = blanked(shown, known)
    for start, end in sentences(shown):
        if (start, end) in asides or _ASIDE.match(shown[start:end]):
            continue
        piece = rest[start:end]
        yield from (found.group() for found in neutral().never.finditer(shown[start:end]))
        for found in neutral().mechanisms.finditer(piece):
            if not neutral().denied.search(shown[max(0, start + found.start() - 40) : start + found.start()]):
                yield found.group().strip()
        for span, equation in equations(shown[start:end]) if on_formulas else ():
            if _quantity(equation) is not None:
                piece = blanked(piece, [span])
            else:
                begin = span[0] + equation.index("=")
                right = [
                    each[begin:].split("=", 1)[-1].split()[:1]
                    for each in (piece[: span[1]], shown[start:end][: span[1]])
                ]
                if right[0] == right[1]:  # its right side does not begin with a given
                    yield equation
        if on_figures:
            yield from (found.group() for found in _ARRAY.finditer(piece))
            yield from _numbers(shown, _ARRAY.sub(lambda found: " " * len(found.group()), piece), start, values)


def equations(text: str) -> Iterator[tuple[Span, str]]:
    """The equations of a text that define something by letters, each with the span of its right side."""
    for found in _LEFT.finditer(text):
        right = text[found.end() : found.end() + 160]
        depth = 0
        for place, sign in enumerate(right):
            depth += (sign in "([{") - (sign in ")]}")
            if depth < 0 or (depth == 0 and (sign == "," or _ENDS.match(right, place))):
                right = right[:place]
                break
        if re.search(r"[A-Za-zα-ωφΦ]", re.sub(r"\b(?:sqrt|top|T|pi|np|array|rad|inf\w*)\b|√", "", right)):
            yield (found.start(), found.end() + len(right)), f"{found['left']} = {right.strip()}"


def _quantity(equation: str) -> str | None:
    """The quantity that a known equation defines, "" where it only says how, None where it is not known."""
    short = squeezed(equation)
    return next((name.removeprefix("none") for known, name in neutral().equations if known.fullmatch(short)), None)


def defined(text: str) -> dict[str, str]:
    """The quantities that symbols stand for, by the equations of a text."""
    found = {re.split(r"[_({\[^]", squeezed(equation))[0].split("=")[0]: _quantity(equation)
             for _, equation in equations(plain(text))}  # fmt: skip
    return {symbol: name for symbol, name in found.items() if name}


def squeezed(text: str) -> str:
    """An equation without spaces, braces and signs of multiplication, in one way of writing."""
    for first, second in (("ᵀ", "^T"), ("⊤", "^T"), ("'", "^T"), ("√", "sqrt"), ("Σ", "sum"), ("∑", "sum"), ("ᵢ", "_i"),
                          ("ⱼ", "_j"), ("ₜ", "_t"), ("−", "-"), ("φ", "phi"), ("ϕ", "phi")):  # fmt: skip
        text = text.replace(first, second)
    return re.sub(r"[\s\\{}$*·!]+|(?<=\w)\s\.\s(?=\w)|cdot|dfrac|frac|operatorname|left|right|mathrm", "", text)


def _numbers(shown: str, piece: str, offset: int, values: frozenset[str]) -> Iterator[str]:
    for found in _NUMBER.finditer(piece):
        start, end = offset + found.start(), offset + found.end()
        number = found.group().replace(",", "").rstrip(".")
        if number in values or (number in ("0", "1", "2") and re.search(r"[-+*/^=|(−]\s*$", shown[:start][-3:])):
            continue
        if neutral().before_numbers.search(shown[max(0, start - 24) : start]):
            continue
        if neutral().after_numbers.match(shown[end : end + 16]):
            continue
        yield found.group()


def without_notes(text: str) -> str:
    """A text without remarks on units, whose numbers are no givens: "1 GB = 10^9 bytes"."""
    return blanked(text, (found.span() for found in neutral().notes.finditer(text)))


def blanked(text: str, spans: Iterable[Span]) -> str:
    """A text with spans, widened to whole words, made blank."""
    signs = list(text)
    for start, end in spans:
        end = min(end, len(text))
        while 0 < start < end and text[start].isalnum() and text[start - 1].isalnum():
            start -= 1
        while start < end < len(text) and text[end - 1].isalnum() and text[end].isalnum():
            end += 1
        signs[start:end] = [sign if sign == "\n" else " " for sign in text[start:end]]
    return "".join(signs)


def accounted(shown: str, exercise: Exercise) -> list[Span]:
    """The words of mechanisms that a given, a convention or the structure of the record stands for."""
    structure = exercise.structure.model_dump(exclude_defaults=True).values()
    has = {given.role for given in exercise.givens if given.role != "window"}
    has |= {str(value).partition("(")[0] for value in structure}
    rows = [words for name, words in neutral().data["given_as"].items() if name in has]
    return [found.span() for words in rows for found in re.finditer(words, shown, re.IGNORECASE)]


def kinds(shown: str) -> list[Span]:
    """The names of kinds of attention, which a question that says of which kind it is does not depend on."""
    return [found.span() for found in TABLE["kind"].finditer(shown)]


def norms_in(shown: str) -> Iterator[str]:
    """The norms that a text speaks of, where attention is computed that has none."""
    for found in re.finditer(r"\b(?:layer|batch|rms|group)[ -]?norm\w*", shown, re.IGNORECASE):
        if not neutral().denied.search(shown[max(0, found.start() - 40) : found.start()]):
            yield found.group()


def doubtful(asked: Asked, exercise: Exercise, text: str) -> bool:
    """Whether a question of this kind is known to be answered for something else."""
    quantity, structure = asked.quantity, exercise.structure
    if _DERIVED.search(asked.text) and not _DERIVED.search(quantity.replace("_", " ")):
        return quantity in ("matrix_form", "kernel_form", "output", "weights", "softmax", "scores")
    if quantity in ("matrix_form", "kernel_form") and any(
        isinstance(given.value, list) for given in exercise.of_role("key", "value")
    ):
        return True  # figures are given, so that a figure is asked for
    if quantity == "dependence" and _CHANGED.search(text):
        return True  # what an input acts on is asked for, not what an output depends on
    known = neutral().data["objects"].get(quantity)
    if known is not None and not re.fullmatch(known, asked.object, re.IGNORECASE):
        return True
    if quantity in ("kernel", "feature_map") and structure.similarity == "softmax":
        return not re.search(r"softmax|exponential|gaussian", text, re.IGNORECASE)
    if quantity == "gradient" and asked.object in ("Q", "K", "V"):
        return not exercise.of_role("query", "tokens")  # from weights alone, only the gradient of the scores follows
    if quantity == "listing_changes":  # blanks hide what else must change
        return any("___" in str(given.value) for given in exercise.of_role("listing"))
    if quantity.startswith("growth") and structure.variant in ("mqa", "gqa"):
        return exercise.size("heads") is None
    attends = quantity in ("projections", "scores", "weights", "output", "heads_output", "linear_state")
    return attends and structure.positions == "rotary"  # the scores are of rotated vectors


def unused(exercise: Exercise, asked: Asked, looked_at: set[str]) -> Iterator[Finding]:
    """The numbers and arrays of a question's own text that its solver never asked for."""
    data = neutral().data
    if quantities()[asked.quantity]["module"] in data["unused"]["modules"]:
        return
    spare = {*data["unused"]["roles"], *data["unused"].get(asked.quantity, ())}
    for given in exercise.givens:
        if given.span is None or given.value is None or given.role in looked_at or given.role in spare:
            continue
        if asked.quantity in data["figures_alone"] or isinstance(given.value, list):
            yield Finding("unused_given", {"what": given.symbol or given.role.replace("_", " ")})


def unsettled(asked: Asked, answer: Answer) -> Iterator[Finding]:
    """What an answer assumes that a text must say: a size that changes the figure as much as one likes."""
    for finding in answer.assumed:
        name = str(finding.data.get("convention", ""))
        said = neutral().assumptions.get(name)
        if said is not None and not (said and re.search(said, f"{asked.text} {asked.object}", re.IGNORECASE)):
            yield Finding("unsettled", {"convention": name})


def foreign(exercise: Exercise, asked: Asked, answer: Answer, told: str) -> Iterator[Finding]:
    """Symbols of a formula that its question does not have; of a growth class only where it names others."""
    module = quantities()[asked.quantity]["module"]
    if module not in ("growth", "moments", "shapes") or asked.quantity == "blank":  # names of code are the listing's
        return
    said = {
        each
        for text in (exercise.text, told, *(given.symbol for given in exercise.givens))
        for each in _NAME.findall(spelled(re.sub("[²³⁴]", "^", text)))
    }
    names = {name for name in answer.symbols if re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", answer.text)}
    missing = sorted(name for name in names if name not in said and name not in asked.in_terms_of)
    if missing and (module != "growth" or names - {*missing}):
        yield Finding("unsettled", {"convention": ", ".join(missing)})


def contradictory(exercise: Exercise, asked: Asked) -> Iterator[Finding]:
    """Givens that contradict each other, or one of which two values are given."""
    exercise = exercise.with_changes(asked)
    seen: dict[tuple[str, str], Any] = {}
    sized = quantities()[asked.quantity]["module"] in ("sizes", "machines")
    trains = asked.quantity == "time" and asked.object == "training" and exercise.given("chips") is None
    if trains and re.search(r"\b(?:GPUs|TPUs|chips|accelerators|devices|cards|[AHBV]\d00s)\b", exercise.text):
        yield Finding("missing", {"needs": "the number of chips"})
    for given in exercise.givens if sized else ():
        key = (given.role, given.of)
        plain_number = isinstance(given.value, int | float) and given.role not in (
            "other",
            "position",
            "scores",
            "value",
        )
        if given.role == "dtype" and sized and seen.setdefault(key, given.value) != given.value:
            yield Finding("contradiction", {"what": "the format", "first": seen[key], "second": given.value})
        if not plain_number:
            continue
        try:
            value = float(given.value) * float(factor(given.unit) if given.unit else 1)
        except QkvError:
            value = float(given.value)
        if abs(seen.setdefault(key, value) - value) > 1e-9 * abs(value):
            name = given.role.replace("_", " ")
            yield Finding("contradiction", {"what": name, "first": seen[key], "second": value})
    sizes = [exercise.size(role) for role in ("heads", "head_width", "width")]
    if all(isinstance(size, int) for size in sizes) and "d_model / heads" in exercise.text:
        yield Finding("misfit", {"what": "the width of heads", "why": "heads times their width is not the width"})
    weights = exercise.given("weights")
    if weights is not None and isinstance(weights.value, list) and exercise.structure.similarity == "softmax":
        rows = weights.value if isinstance(weights.value[0], list) else [weights.value]
        for row in rows:
            numbers = [value for value in map(read_number, map(str, row)) if isinstance(value, int | float | Fraction)]
            if len(numbers) == len(row) and abs(float(sum(numbers)) - 1) > 0.02:
                yield Finding("misfit", {"what": "the attention weights", "why": f"a row adds up to {sum(numbers)}"})
