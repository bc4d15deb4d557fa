"""Find what a text asks: quantities by the table of phrases, each with its object, row, unit and confidence."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from ...documents.patterns import Table as Patterns
from ..record import Span

TABLE = Patterns("qkv.exercises.sheets", "forms.toml", 0)
_GAP = r"\s{0,12}"  # bounded, so that long blanks cost no time
_BLANKED = re.compile(r"```.*?(?:```|\Z)|<[^<>\n]{1,40}>", re.DOTALL)
# Replacements keep the length of the text, so that every span is also a span of the text as it was written.
_MARKS = (
    (
        re.compile(r"\\(?:mathbf|mathrm|mathbb|mathcal|boldsymbol|bm|text|textbf|textit|operatorname|emph)\*?(?=\W)"),
        " ",
    ),
    (re.compile(r"\\(?:left|right|big|Big|displaystyle|quad|qquad|,|;|!|:)(?![a-zA-Z])"), " "),
    (re.compile(r"\\(?:top|intercal)(?![a-zA-Z])"), "T"),
    (re.compile(r"[$*`]|\\(?=[a-zA-Z_%&#$])"), " "),
    (re.compile(r"(?<=\w)[-‐‑–](?=\w)"), " "),
    (re.compile(r"[“”]"), '"'),
    (re.compile(r"[’‘]"), "'"),
)
_FRACTION = re.compile(r"\\[dt]?frac\{((?:[^{}]|\{[^{}]*\})*)\}\{((?:[^{}]|\{[^{}]*\})*)\}")
_LATE = r"Consider|Considering|How|What|Which|Derive|Compute|Find|Do|Can|Explore|Look|Think|Give|For"
_ENDS = TABLE["ends"]
_ABBREVIATIONS = TABLE["abbreviations"]
# A verb that lost the space after it ("DefineE[q]"): only before what cannot continue the word.
_GLUED = re.compile(r"(?:Define|Perform|Derive|Compute|Calculate|Find)(?=[A-Z\[(]|arg ?max|softmax|the\b)")
_PARENTHESES = TABLE["parentheses"]
_MARKING = re.compile(r"\[\s*[\d.]+\s*(?:pts?|points?|marks?)\s*\]", re.IGNORECASE)
_SYMBOL_NAME = r"(?:[A-Za-zα-ωμσ]|alpha|PE|sigma|mu)(?:_? ?\{?\d\}?)?"
_SYMBOLS = TABLE["symbols"]
_EQUATED = re.compile(r"(?<=[\w}])\s*=\s*[^,;?]*?(?=,|\s+and\s+[A-Za-z]\w*\s*=|\.\s*$|[;?]|\s+(?:where|with|for)\b|$)")
_AGAIN = TABLE["again"]
_CLAUSE = TABLE["clause"]
_LINKS = "of|at|for|over|from|to|on|in|by|under|with respect to|wrt|per|between"
_ARTICLES = "the|these|those|a|an|its|given|following|all|one|each|this|that|your"
_VERB = "Compute the "
_DENIED = TABLE["denied"]
_PRONOUN = re.compile(r"\b(?:it|its|the (?:layer|block))\b", re.IGNORECASE)
_FINITE = re.compile(r"\b(?:is|are|was|were|has|have|be|let|uses?|enters?|produces?)\b|=", re.IGNORECASE)
_RESULT = TABLE["result"]
_OPERATIONS = frozenset(
    {
        "softmax",
        "log_softmax",
        "logsumexp",
        "layer_norm",
        "rms_norm",
        "batch_norm",
        "group_norm",
        "rotary",
        "sinusoidal",
    }
)
_ITSELF = re.compile(r"\b(?:it|this|them|that|these)\b(?!\s+\w+\s+(?:is|are|has)\b)", re.IGNORECASE)
_ORDINALS = {
    name: place for place, name in enumerate(("first", "second", "third", "fourth", "fifth", "sixth", "seventh"), 1)
}
_ROW = TABLE["row"]
_UNIT = TABLE["unit"]
_SYMBOL = r"\\?[A-Za-zα-ωΑ-Ωµ]+(?:_\{?\w+\}?)?"
_TERMS = TABLE["terms"]
_WORDS_IN_TERMS = frozenset(
    [
        "the",
        "of",
        "and",
        "sequence",
        "length",
        "width",
        "number",
        "size",
        "heads",
        "batch",
        "only",
        "feature",
        "map",
        "phi",
        "kernel",
    ]
)


class Phrase:
    """One row of the table; its patterns are compiled when they are first used."""

    def __init__(self, row: Mapping[str, Any], words: dict[str, str]) -> None:
        self.quantity: str = row["quantity"]
        self.cues: tuple[str, ...] = tuple(row["cues"])
        self.required: bool = row.get("required", False)  # whether a question without an object is not understood
        self.weight: float = row.get("weight", 1.0)
        self._row, self._words = row, words

    @cached_property
    def when(self) -> tuple[re.Pattern[str], ...]:
        return tuple(pattern(each, self._words) for each in self._row["when"])

    @cached_property
    def unless(self) -> re.Pattern[str] | None:
        return pattern("|".join(self._row["unless"]), self._words) if "unless" in self._row else None

    @cached_property
    def needs(self) -> re.Pattern[str] | None:
        """What the same sentence must hold."""
        return pattern(self._row["needs"], self._words) if "needs" in self._row else None

    @cached_property
    def nearby(self) -> re.Pattern[str] | None:
        """What the question must hold somewhere."""
        return pattern(self._row["nearby"], self._words) if "nearby" in self._row else None

    @cached_property
    def objects(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        return tuple((pattern(first, self._words), second) for first, second in self._row.get("object", ()))

    @cached_property
    def splits(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        return tuple((pattern(first, self._words), second) for first, second in self._row.get("splits", ()))


@dataclass(frozen=True)
class Table:
    """The table of phrases, compiled."""

    phrases: tuple[Phrase, ...]
    verb: re.Pattern[str]
    wh: re.Pattern[str]
    stops: re.Pattern[str]
    ignored: re.Pattern[str]
    words: re.Pattern[str]
    experiments: re.Pattern[str]


@dataclass(frozen=True)
class Clause:
    """A part of the text that asks: its span, its words from the asking verb on, and the sentence that it stands in."""

    span: Span
    sentence: Span
    plain: str
    asking: int  # where the words that say with what begin, from the start of the clause
    verb: str
    prefix: int = 0  # how many signs of `plain` were put before the clause, where it has no verb


@dataclass(frozen=True)
class Wanted:
    """One thing that is asked, before it is a question of the record."""

    quantity: str
    span: Span
    clause: Clause
    object: str = ""
    row: str = ""
    unit: str = ""
    in_terms_of: tuple[str, ...] = ()
    weight: float = 1.0
    spans: tuple[Span, ...] = ()  # the words that say the quantity, its object, row, unit and symbols


@dataclass(frozen=True)
class AskedFor:
    """What a text asks, the clauses that ask for something else, and what stands in the way of an answer."""

    wanted: tuple[Wanted, ...] = ()
    unread: tuple[Clause, ...] = ()
    prose: tuple[Clause, ...] = ()
    again: tuple[Clause, ...] = ()  # "what if ... instead": the questions before, with other givens
    experiments: tuple[str, ...] = ()
    plain: str = field(default="", repr=False)


def plain(text: str) -> str:
    """A text of the same length without marks of LaTeX, Markdown and code, for patterns of words.

    >>> plain("Find `Q` for a dot-product now")
    'Find  Q  for a dot product now'
    """
    text = _BLANKED.sub(lambda match: re.sub(r"[^\n]", "\0", match.group()), text)
    for _ in range(2):
        text = _FRACTION.sub(lambda found: f"{'(':>{found.start(1) - found.start()}}{found[1]})/{found[2]} ", text)
    for pattern, sign in _MARKS:
        text = pattern.sub(lambda match, sign=sign: sign.ljust(len(match.group())), text)
    return re.sub(r"(?<=[ _^])\{([^{}]*)\}", r" \1 ", text)


def pattern(text: str, words: dict[str, str]) -> re.Pattern[str]:
    """Compile a pattern of the table."""
    for _ in range(3):
        text = re.sub(r"\{([a-z]+)\}", lambda match: words[match[1]], text)
    text = text.replace(
        r"\w+ ", r"\w+" + _GAP.replace("{0,", "{1,").replace(" ", "")
    )  # else words could be cut anywhere
    text = re.sub(r"(?<![a-z\\\[])(an?|one|its|our) ", lambda match: match[1] + _GAP.replace("{0,", "{1,"), text)
    pieces = re.split(r"(\[[^\]]*\]|\\.)", text)  # a space within brackets, or after a backslash, is no gap
    return re.compile(
        "".join(each if place % 2 else each.replace(" ", _GAP) for place, each in enumerate(pieces)), re.IGNORECASE
    )


@cache
def data() -> dict[str, Any]:
    """The content of phrases.toml."""
    return tomllib.loads(files("qkv.exercises.sheets").joinpath("phrases.toml").read_text(encoding="utf-8"))


@cache
def table() -> Table:
    """The table of phrases."""
    words = data()["words"]
    phrases = tuple(Phrase(each, words) for each in data()["phrase"])
    asks, prose = data()["asks"], data()["prose"]
    return Table(
        phrases,
        pattern(rf"(?:{asks['verbs']})\b", {}),
        pattern(rf"(?:{asks['wh']})\b", {}),
        pattern(rf"\b(?:{asks['stops']})\b", {}),
        pattern("|".join(data()["ignored"]["patterns"]), words),
        pattern(prose["words"], words),
        pattern(prose["experiments"], words),
    )


def sentences(text: str) -> Iterator[Span]:
    """The spans of the sentences of a text, in order."""
    start = 0
    for end in _ENDS.finditer(text):
        if _ABBREVIATIONS.search(text[start : end.start()]) and end.group().strip() == "" and "\n\n" not in end.group():
            continue
        if text[start : end.end()].strip():
            yield start, end.end()
        start = end.end()
    if text[start:].strip():
        yield start, len(text)


def find_asked(text: str, names: Mapping[str, str] | None = None, noun: bool = False, told: str = "") -> AskedFor:
    """What a text asks.

    Args:
        text: The text of a question.
        names: The quantities that symbols stand for where the text or its set-up defines them.
        noun: Whether a text without an asking verb is itself what is asked, as parts of a question may be.
        told: The set-up, which may state the operation whose result is asked for.
    """
    known = table()
    shown, told = plain(text), plain(told)
    for aside in (_PARENTHESES, _MARKING):
        shown = aside.sub(lambda match: " " * len(match.group()), shown)
    wanted: list[Wanted] = []
    unread: list[Clause] = []
    prose: list[Clause] = []
    again: list[Clause] = []
    before: Span = (0, 0)
    asking = {sentence: list(_clauses(shown, sentence)) for sentence in sentences(shown)}
    if noun and not any(asking.values()):
        asking = {clause.sentence: [clause] for clause in _noun(shown)}
    for sentence, clauses in asking.items():
        for clause in clauses:
            words = clause.plain.strip()
            if known.ignored.match(words):
                continue
            found = _matches(clause, shown, text, told=told) or list(_by_symbol(clause, names or {}))
            if (repeated := _AGAIN.match(words)) and (wanted or not found):
                again.append(replace(clause, verb=repeated.group()))
                continue
            if known.words.match(words):
                prose.append(clause)
            elif found:
                for each in found:
                    if not any(_same(each, other) for other in wanted):
                        wanted.append(each)
            elif _RESULT.match(words) and (meant := _operation(shown, sentence, text, told)):
                wanted += [replace(each, clause=clause, spans=(*each.spans, clause.span), row="") for each in meant]
            elif _ITSELF.search(words[:60]) and (meant := _matches(_whole(shown, before), shown, text, anywhere=True)):
                prose = [each for each in prose if each.sentence != before]
                wanted += [Wanted(each.quantity, clause.span, clause, each.object, weight=0.9) for each in meant[:1]]
            else:
                unread.append(clause)
        before = sentence
    experiments = tuple(match.group() for match in known.experiments.finditer(shown))
    return AskedFor(tuple(wanted), tuple(unread), tuple(prose), tuple(again), experiments, shown)


def _whole(shown: str, sentence: Span) -> Clause:
    words = shown[slice(*sentence)]
    return Clause(sentence, sentence, words, len(words), "")


def _operation(shown: str, sentence: Span, text: str, told: str) -> list[Wanted]:
    """The one operation that the sentences before a question state: "LayerNorm is applied to x. Result?"."""
    before = [each for each in sentences(shown) if each[0] <= sentence[0]]
    found = [wanted for each in before for wanted in _matches(_whole(shown, each), shown, text, anywhere=True)]
    if told:
        found += [
            wanted for each in sentences(told) for wanted in _matches(_whole(told, each), told, told, anywhere=True)
        ]
        found = [replace(each, spans=()) for each in found]
    found = [each for each in found if each.quantity in _OPERATIONS]
    return found[:1] if len({each.quantity for each in found}) == 1 else []


def _noun(shown: str) -> Iterator[Clause]:
    """A text without a verb that asks, as one clause: "attention weights", "FLOPs for the four projections"."""
    first = next(sentences(shown), (0, 0))
    if _FINITE.search(shown[slice(*first)]):
        return
    start = first[0] + len(shown[slice(*first)]) - len(shown[slice(*first)].lstrip(" \n-*•"))
    if start < first[1]:
        yield _clause(shown, (start, first[1]), first, "")


def _by_symbol(clause: Clause, names: Mapping[str, str]) -> Iterator[Wanted]:
    """What a clause asks for by symbols that the text defines: "find S_2 and o_2"."""
    match = _SYMBOLS.match(_EQUATED.sub(lambda found: " " * len(found.group()), clause.plain))
    if not match:
        return
    found = [each for each in re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", match["symbols"].strip()) if each]
    parts = [re.fullmatch(r"([^\W\d_]+)_? ?\{?(\d*)\}?", each) for each in found]
    start = clause.span[0] - clause.prefix
    for part in parts if all(part and part[1] in names for part in parts) else ():
        assert part is not None
        quantity, _, own = names[part[1]].partition(":")
        row = part[2] if quantity in ("output", "weights", "linear_state") else ""
        own = own or (part.group().replace(" ", "") if quantity == "projections" else "")
        own = own or (f"s_{part[2]}" if quantity == "scores" and part[2] else "")
        span = (max(clause.span[0], start), start + match.end())
        yield Wanted(quantity, span, clause, own, row, spans=(span,))


def _same(first: Wanted, second: Wanted) -> bool:
    return (first.quantity, first.object, first.row) == (second.quantity, second.object, second.row)


def _clauses(shown: str, sentence: Span) -> Iterator[Clause]:
    """The asking clauses of a sentence: each from its verb or question word to the next one."""
    known = table()
    words = shown[slice(*sentence)]
    if re.match(r"\W*(?:hint|note|recall|for example|for instance|example|remark|e\.g)\b", words, re.IGNORECASE):
        return
    question = words.rstrip(" )\"'*_\n").endswith("?")
    starts = []
    for found in _CLAUSE.finditer(words):
        place = found.end()
        if verb := known.verb.match(words, place) or _GLUED.match(words, place):
            if not (starts and re.match(r"use\b|apply\b", verb.group(), re.IGNORECASE) and "and" not in found.group()):
                starts.append((place, verb.group().lower()))
        elif (asking := known.wh.match(words, place)) and (question or _opens(words, found, asking)):
            starts.append((place, asking.group().lower()))
    if question and not starts:  # "The memory is then how large?"
        inner = re.search(r"\b(?:what|which|how|why|where)\b", words, re.IGNORECASE)
        starts = [(inner.start() if inner else 0, inner.group().lower() if inner else "")]
    for place, (start, verb) in enumerate(starts):
        end = starts[place + 1][0] if place + 1 < len(starts) else len(words)
        yield _clause(shown, (sentence[0] + start, sentence[0] + end), sentence, verb)


def _clause(shown: str, span: Span, sentence: Span, verb: str) -> Clause:
    """A clause; one that is only a noun ("attention weights?") is read with a verb before it."""
    prefix = "" if verb else _VERB
    body = prefix + shown[slice(*span)]
    stop = table().stops.search(body, len(prefix) + max(len(verb), 1))
    return Clause(span, sentence, body, stop.start() if stop else len(body), verb, len(prefix))


def _opens(words: str, found: re.Match[str], asking: re.Match[str]) -> bool:
    """Whether a question word without a question mark opens the sentence as a question does."""
    strong = re.match(r"(?:what|which|how|why|by|at|for (?:what|which|how))", asking.group(), re.IGNORECASE)
    return bool(strong) and not words[: found.start()].strip(" .:()[]0123456789")


def _matches(clause: Clause, shown: str, text: str, anywhere: bool = False, told: str = "") -> list[Wanted]:
    """The quantities that a clause asks for: the longest phrases that do not overlap."""
    found: list[tuple[int, int, Phrase, re.Match[str]]] = []
    small = " ".join(clause.plain.lower().split())
    for phrase in table().phrases:
        if not any(cue in small for cue in phrase.cues):
            continue
        here = [
            match
            for when in phrase.when
            for match in when.finditer(clause.plain)
            if (match.start() < clause.asking or anywhere)
            and match.group().strip()
            and not _within_word(clause.plain, match)
        ]
        if not here or (phrase.unless and phrase.unless.search(clause.plain)):
            continue
        if phrase.needs and not phrase.needs.search(shown[slice(*clause.sentence)]):
            continue
        if phrase.nearby and not (phrase.nearby.search(shown) or phrase.nearby.search(told)):
            continue
        found += [(match.start(), match.end(), phrase, match) for match in here]
    found.sort(key=lambda each: (-(each[1] - each[0]) * each[2].weight, each[0]))
    kept: list[tuple[int, int, Phrase, re.Match[str]]] = []
    for each in found:
        if not any(each[0] < other[1] and other[0] < each[1] for other in kept):
            kept.append(each)
    kept.sort(key=lambda each: each[0])
    claim = next((place for place, each in enumerate(kept) if each[2].quantity == "identity"), len(kept))
    kept = kept[: claim + 1]  # what a claim speaks of is not asked for
    kept = [
        each for place, each in enumerate(kept) if not (place and _complements(clause.plain, kept[place - 1], each))
    ]
    return [wanted for _, _, phrase, match in kept for wanted in _wanted(clause, shown, text, phrase, match, told)]


def _complements(
    text: str, first: tuple[int, int, Phrase, re.Match[str]], second: tuple[int, int, Phrase, re.Match[str]]
) -> bool:
    """Whether a phrase only says what the one before it is of: "the softmax of the scores"."""
    between = text[first[1] : second[0]]
    if re.search(r"\b(?:and|then|or)\b|[;,:?]", between, re.IGNORECASE):
        return False
    before = text[first[0] : second[0]]
    return bool(re.search(rf"\b(?:{_LINKS})\W+(?:(?:{_ARTICLES})\W+)*$", before, re.IGNORECASE))


def _within_word(text: str, match: re.Match[str]) -> bool:
    start, end = match.span()
    while start < end and not text[start].isalnum():
        start += 1
    torn = text[start].isupper() and text[start - 1].islower()  # a space was lost
    return start > 0 and text[start - 1].isalnum() and text[start].isalnum() and not torn


def _wanted(clause: Clause, shown: str, text: str, phrase: Phrase, match: re.Match[str], told: str) -> Iterator[Wanted]:
    shift = clause.span[0] - clause.prefix
    span = (max(clause.span[0], shift + match.start()), max(clause.span[0], shift + match.end()))
    near, far = (span[0], clause.span[1]), clause.sentence
    unit = _UNIT.search(shown, *near) or _UNIT.search(shown, *far)
    terms = _TERMS.search(shown, *far)
    symbols = tuple(_symbols(terms[1])) if terms else ()
    row, rows = _row(shown, near) if _row(shown, near)[0] else _row(shown, far, named=False)
    own, place = _object(phrase, shown, text, near)
    own, place = (own, place) if own else _object(phrase, shown, text, far)
    if own in ("", "layer") and phrase.quantity in ("parameters", "flops") and _PRONOUN.search(shown, *near):
        subject = f"{told} {shown[: clause.sentence[0]]}".strip()  # what the first sentence speaks of
        own = _object(phrase, subject, subject, (0, min(60, next(sentences(subject), (0, 0))[1])))[0] or own
    if not own and phrase.nearby:
        own, place = _object(phrase, shown, text, (0, len(shown)))
        own = own or _object(phrase, told, told, (0, len(told)))[0]
    shared: dict[str, Any] = {
        "row": row,
        "in_terms_of": symbols,
        "weight": phrase.weight,
        "unit": (unit[1] or unit[2]) if unit else "",
        "spans": (span, *(each.span() for each in (unit, terms) if each), *rows, *([place] if place else [])),
    }
    parts = [name for pattern, name in phrase.splits if pattern.search(match.group())]
    if parts and not own and (len(parts) < len(phrase.splits) or phrase.quantity == "gradient"):
        for name in parts:
            yield Wanted(phrase.quantity, span, clause, name, **shared)
    elif own or not phrase.required:
        yield Wanted(phrase.quantity, span, clause, own, **shared)


def _object(phrase: Phrase, shown: str, text: str, span: Span) -> tuple[str, Span | None]:
    """What the quantity is of, and where it is said; a group of a pattern is taken as the text writes it."""
    end = span[0] + len(shown[slice(*span)].rstrip(" .?!;,\n\t"))
    for pattern, value in phrase.objects:
        for match in pattern.finditer(shown, span[0], end):
            if _DENIED.search(shown[max(span[0], match.start() - 40) : match.start()]):
                continue  # "no biases, no norms" does not ask for norms
            if value in (r"\0", r"\1"):
                found = text[slice(*match.span(int(value[1])))]
            else:
                found = match.expand(value) if "\\" in value else value
            found = re.sub(r"\s+", " ", found.replace("$", " ").replace("`", "").replace("**", "")).strip(" .,;:?")
            return found, match.span()
    return "", None


def _row(text: str, span: Span, named: bool = True) -> tuple[str, list[Span]]:
    """The row that is asked for, as it is written: a number, "first", "last", or with `named` the index of a vector."""
    found = {match[1] or match[2] or (match[3] if named else "") or "": match.span()
             for match in _ROW.finditer(text, *span)}  # fmt: skip
    found.pop("", None)
    return (next(iter(found)).lower(), list(found.values())) if len(found) == 1 else ("", [])


def row_number(row: str, base: int, last: int | None) -> int | None:
    """A written row as a number that counts from the index base; None where there is none or it is unknown."""
    if row in ("last", "final"):
        return None if last is None else last - 1 + base
    if row in _ORDINALS:
        return _ORDINALS[row] - 1 + base
    return int(row) if row.isdigit() else None


def _symbols(text: str) -> Iterator[str]:
    for word in re.split(r"\s*,\s*|\s+and\s+|\s+", text):
        name = word.strip(" \\").removeprefix("and")
        if glued := re.fullmatch(r"([A-Za-zµσμ])and([A-Za-z])", name):
            yield glued[1]
            name = glued[2]
        name = spelled(name)
        if name and name.lower() not in _WORDS_IN_TERMS and (len(name) <= 3 or "_" in name or name in _GREEK):
            yield name.replace("{", "").replace("}", "")


def spelled(text: str) -> str:
    """A text with the names of Greek letters in place of the letters.

    >>> spelled("σ τ")
    'sigma tau'
    """
    return re.sub("[α-ωµ]", lambda sign: unicodedata.name(unicodedata.normalize("NFKC", sign[0])).split()[-1].lower()
                  .replace("lamda", "lambda"), text)  # fmt: skip


_GREEK = frozenset(
    ["alpha", "beta", "gamma", "delta", "epsilon", "lambda", "mu", "sigma", "tau", "theta", "phi", "omega"]
)
