"""Read a sheet, or one question, into records: what is given, what is asked, and with what confidence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...documents import read_document
from ...errors import QkvError
from ..findings import Finding
from ..record import LOOKED_AT, Asked, Definition, Exercise, Given, Option, Span, Structure, plain_label, shape_of
from ..solving import Answer, Solution, Solved, quantities, solve_part
from . import coverage, stated
from .asked import TABLE, AskedFor, Clause, Wanted, find_asked, plain, row_number, sentences
from .conventions import Settled, settled
from .givens import find_definitions, find_givens
from .parts import stem_of, with_parts
from .splitting import Choice, Question, split
from .tasks import FENCED, Task, read_task

THRESHOLD = 0.6  # tuned on tests/exercises/sheets/own
LONGEST = 40_000  # characters of a question that are searched for what it asks
MOST = 300  # questions of a sheet that are read
_WITH_ROWS = frozenset({"projections", "scores", "weights", "output", "heads_output", "linear_state", "dependence"})
_OPTION = re.compile(r"^[ \t]*(?:[-*•]\s*)?\(?([A-Ha-h])[).:]\s+(\S.*)$", re.MULTILINE)
_INLINE_OPTION = re.compile(r"(?<=\s)\(?([A-H])[).:]\s+(\S[^\n]*?)(?=\s+\(?[A-H][).:]\s|\s*$)", re.MULTILINE)
_CHANGES = TABLE["changes"]
_LATEX = TABLE["latex"]
_REALS = re.compile(r"(?:\bR|ℝ|mathbb\s*\{?R\}?)\s*\^\s*\{?(\d+)")
_NUMBERED = re.compile(r"\b(?:exercise|question|problem|task)\s+\d", re.IGNORECASE)
_TORN = re.compile(r"\b([qkxw])\s?T\s?([qkxw])\b")  # q^T k in the text of a PDF
_ON_FORMULAS = frozenset({"sizes", "machines", "attention", "gradients", "norms", "positions"})
_ON_ATTENTION = frozenset({"attention", "gradients", "positions"})
_ON_FIGURES = _ON_FORMULAS | {"moments"}  # modules of solvers whose figures every number of the text may change
_OF_SCORES = frozenset({"query", "key", "tokens", "query_weight", "key_weight", "width", "head_width"})
_SEVERAL = re.compile(r"all that apply|select all|which of (?:the following|these)\b.{0,40}\bare\b", re.IGNORECASE)


@dataclass(frozen=True)
class Reading:
    """A question that was read: its record, what was found on the way, and whether it may be answered."""

    exercise: Exercise
    findings: tuple[Finding, ...] = ()
    understood: bool = False
    confidence: float = 0.0
    told: str = field(default="", repr=False)  # the text that the question refers to

    def solve(self) -> Solution:
        """Solve what was understood; of a choice, the one option that the answer is equal to."""
        return Solution(
            self.exercise, tuple(_chosen(solved(self.exercise, asked, self.told)) for asked in self.exercise.asked)
        )


def read_sheet(source: str | Path) -> list[Reading]:
    """Read every question of a sheet: a document in any format, or a text.

    Args:
        source: The path of a document as a `Path`, or a text; a text is never taken for the name of a file.

    Returns:
        A reading for each question without parts and each part, in the order of the sheet.

    >>> [reading] = read_sheet("1. A layer has width 96 and 8 heads. What is the width of a head?")
    >>> reading.solve().parts[0].answer.value
    12
    """
    if isinstance(source, Path):
        questions = split(read_document(source))
    else:
        document = read_document(source, name="text.tex" if _LATEX.search(source) else "text.md")
        questions = split(document)
        whole = with_parts(Question("", document.text, (0, len(document.text)), pieces=((0, len(document.text)),)))
        more = len(whole.parts) > sum(max(1, len(each.parts)) for each in questions) or len(questions) > 1
        if more and whole.parts and len(whole.text) > 20 and not _NUMBERED.search(document.text[1:]):
            questions = [whole]
    before: dict[str, tuple[Wanted, ...]] = {}
    questions = list(_with_referred(questions))
    read = [reading for question in questions[:MOST] for reading in _read_tree(question, before=before)]
    if len(questions) > MOST:
        size = {"what": "the sheet", "size": f"{len(questions):,} questions", "most": f"{MOST:,}"}
        read.append(Reading(Exercise(label="…"), (Finding("too_large", size),)))
    return read


def read_question(text: str) -> Reading:
    """Read a text as one question.

    >>> reading = read_question("A model has width 96 and 8 heads. What is the dimension of each head?")
    >>> reading.understood, reading.solve().parts[0].answer.value
    (True, 12)
    """
    readings = read_sheet(text) if text.strip() else []
    if len(readings) == 1:
        return readings[0]
    return _read(Question("", text, (0, len(text)), pieces=((0, len(text)),)))


def _read_tree(
    question: Question, setup: str = "", stem: str = "", before: dict[str, tuple[Wanted, ...]] | None = None
) -> Iterator[Reading]:
    """The readings of a question's leaves, and of the question where its text asks for more.

    `stem` is the sentence of the set-up that the part goes on with, `before` what the parts before it ask.
    """
    question = with_parts(question, coverage.defined(f"{setup}\n{question.text}"))
    if not question.parts:
        yield _read(question, setup, stem, before)
        return
    whole = f"{setup}\n\n{question.text}"
    below: list[Reading] = []
    listings = ""
    stem = stem_of(question.text)
    for place, part in enumerate(question.parts):
        told = "".join(f"\n\n{each}" for each in _told(question.parts[:place], part))
        below += _read_tree(replace(part, context=f"{part.context}{listings}{told}"), whole, stem, before)
        listings += (
            "".join(f"\n\n{match.group()}" for match in FENCED.finditer(part.text)) if "Test" not in part.label else ""
        )
    below = _inherited(below)
    own = _read(question, setup)
    asked = {each.quantity for reading in below for each in reading.exercise.asked}
    asks = own.understood and not asked & {each.quantity for each in own.exercise.asked}
    if asks and not _is_task(below) and not (stem and find_asked(stem).wanted):
        yield own
    yield from below


def _with_referred(questions: Sequence[Question]) -> Iterator[Question]:
    """The questions, each with the text of the earlier one that it refers to by its number."""
    earlier: dict[str, Question] = {}
    for question in questions:
        found = {match["label"]: match for match in TABLE["question_referred"].finditer(question.text)}
        told = [earlier[label] for label in found if label in earlier and not earlier[label].parts]
        if len(told) == 1 and len(found) == 1:
            question = replace(question, context=f"{question.context}\n\n{told[0].text}")
        earlier[plain_label(question.label).lstrip("abcdefghijklmnopqrstuvwxyz")] = question
        yield question


def _told(earlier: Sequence[Question], part: Question) -> Iterator[str]:
    """What earlier parts state for a part: what holds from there on, and what it refers to."""
    found = TABLE["referred"].search(part.text)
    wanted = found["part"] or (plain_label(earlier[-1].label)[-1:] if earlier else "") if found else ""
    for each in earlier:
        if wanted and plain_label(each.label)[-1:] == wanted.lower():
            yield each.text
        else:
            spans = sentences(each.text)
            yield from (each.text[slice(*span)] for span in spans if TABLE["carried"].search(each.text[slice(*span)]))


def _inherited(readings: Sequence[Reading]) -> list[Reading]:
    """A growth class without symbols of its answer takes those of the part before, a kernel its constant.

    Weights and outputs that do not say how their scores are scaled take what a part on the scores says.
    """
    found: list[Reading] = []
    symbols: tuple[str, ...] = ()
    constant: tuple[Given, ...] = ()
    scaled: dict[Any, Any] = {}
    for reading in readings:
        asked = []
        wanted = {each.quantity for each in reading.exercise.asked}
        conventions = reading.exercise.conventions
        if wanted & {"weights", "output"} and not reading.exercise.said("scale"):
            conventions = conventions | scaled
        elif "scores" in wanted and reading.exercise.said("scale"):
            scaled = {"scale": conventions["scale"]}
        givens = reading.exercise.givens
        said = reading.exercise.of_role("offset")
        if not said and any(each.quantity in ("kernel", "feature_map") for each in reading.exercise.asked):
            givens = (*givens, *(given.model_copy(update={"span": None}) for given in constant))
        constant = tuple(said) or constant
        for each in reading.exercise.asked:
            if each.quantity.startswith("growth"):
                symbols = each.in_terms_of or symbols
                asked.append(each.model_copy(update={"in_terms_of": symbols}))
            else:
                asked.append(each)
        inherited = {"asked": tuple(asked), "givens": givens, "conventions": conventions}
        found.append(replace(reading, exercise=reading.exercise.model_copy(update=inherited)))
    return found


def _is_task(readings: Sequence[Reading]) -> bool:
    return any("Test" in reading.exercise.label for reading in readings)


def _with_options(question: Question) -> Question:
    """A question whose options stand at the end of its text, as "(A) …" or "- a) …" on lines, has them apart."""
    found = list(_OPTION.finditer(question.text))
    found = found if len(found) > 1 else list(_INLINE_OPTION.finditer(question.text))
    letters = [match[1].upper() for match in found]
    if question.options or len(found) < 2 or letters != list("ABCDEFGH"[: len(found)]):
        return question
    choices = tuple(Choice(match[1], match[2].strip(), match.span()) for match in found)
    return replace(question, text=question.text[: found[0].start()], options=choices)


def _read(
    question: Question, setup: str = "", stem: str = "", before: dict[str, tuple[Wanted, ...]] | None = None
) -> Reading:
    question = _with_options(question)
    text, context = question.text[:LONGEST], question.context[-LONGEST:]
    resolved = "\n\n" in context and TABLE["question_referred"].search(text) is not None
    if task := read_task(text, context):
        return _read_test(question, task)
    names = coverage.defined(f"{setup}\n{text}")
    asks = find_asked(text, names, told=setup)
    if not asks.wanted and not asks.prose and stem:
        joined = f"{stem} {text}"
        if (led := find_asked(joined, names, told=setup)).wanted:
            question, text, asks = replace(question, text=joined, pieces=()), joined, led
    if not asks.wanted and not asks.prose and not question.parts and (setup or len(text) < 200):
        asks = find_asked(text, names, True, setup)
    if not asks.wanted and not asks.prose and question.title:
        titled = find_asked(question.title)
        asks = replace(asks, wanted=tuple(replace(each, span=(0, 0), weight=0.9) for each in titled.wanted))
    asks = _repeated(asks, before or {})
    if before is not None:
        before[""] = before[plain_label(question.label)[-1:]] = asks.wanted
    says = settled(text, context)
    whole = f"{text}\n{context}"
    givens = stated.by_words(find_givens(coverage.without_notes(text), coverage.without_notes(context)), whole)
    more = (
        *stated.upstream(text),
        *stated.upstream(context),
        *stated.torn_sizes(givens, whole),
        *stated.shapes(givens, whole),
        *stated.unnamed_numbers(asks, givens, text),
    )
    if any(given.role == "degree" for given in more):
        says.structure.setdefault("similarity", "polynomial")
    sized = any(quantities()[each.quantity]["module"] in ("sizes", "machines") for each in asks.wanted)
    givens = stated.with_usual_letters(givens) if sized else givens
    base = _base((*(given for given in givens if given.of != "change"), *more))
    if any(given.role == "scores" and given.span is not None and given.value is not None for given in base):
        # A question that states its scores does not speak of the queries, the keys and the scale of the set-up.
        base = tuple(given for given in base if given.span is not None or given.role not in _OF_SCORES)
        says = settled(text)
    options = tuple(Option(label=each.label, text=each.text) for each in question.options)
    base, assumed = stated.centred(base)
    exercise = Exercise(
        label=question.label, title=question.title, text=text, span=question.span, givens=base,
        definitions=(*stated.rules_of_thumb(asks, text), *_definitions(text), *_definitions(context)),
        structure=says.as_structure(), conventions=says.as_conventions(),
    )  # fmt: skip
    asked = _asked(question, asks, givens, exercise, says, options)
    findings = (*_unread(asks, asked), *assumed)
    pieces = tuple(dict.fromkeys(_left_out(asks, givens, exercise, says, text, setup, resolved))) if asks.wanted else ()
    if pieces:
        findings = (*findings, Finding("left_out", {"pieces": ", ".join(f'"{each}"' for each in pieces[:6])}))
    kept = () if pieces else tuple(each for each in asked if each.confidence >= THRESHOLD)
    confidence = max((each.confidence for each in asked), default=0.0)
    givens_kept = _with_blank_first(base, kept)
    exercise = exercise.model_copy(update={"asked": kept, "givens": givens_kept})
    if not kept:
        findings = (*findings, Finding("not_understood", {"found": _found(asks, asked)}))
    return Reading(exercise, findings, bool(kept), confidence, context)


def _repeated(asks: AskedFor, before: Mapping[str, tuple[Wanted, ...]]) -> AskedFor:
    """A part that asks what another part asks, with other givens: "give (b) for d = 4096"."""
    if asks.wanted or len(asks.again) != 1:
        return asks
    clause = asks.again[0]
    part = re.search(r"\((\w{1,3})\)", clause.verb)
    start = clause.span[0] + len(clause.plain) - len(clause.plain.lstrip())
    spans = ((start, start + len(clause.verb) - clause.prefix),)
    found = before.get(part[1].lower() if part else "", ())
    return replace(
        asks, again=(), wanted=tuple(replace(each, clause=clause, spans=spans, span=spans[0]) for each in found)
    )


def _left_out(
    asks: AskedFor, givens: Sequence[Given], exercise: Exercise, says: Settled, text: str, setup: str, resolved: bool
) -> Iterator[str]:
    """What nothing accounts for, in the question and in the set-up of the question that it is a part of."""
    modules = {quantities()[each.quantity]["module"] for each in asks.wanted}
    figures, formulas = bool(modules & _ON_FIGURES), bool(modules & _ON_FORMULAS)
    figures = figures or any(each.quantity in ("head_width", "receptive_field") for each in asks.wanted)
    if "moments" in modules:
        shapes_read = {size for given in exercise.givens for size in given.shape or ()}
        yield from (size for size in _REALS.findall(f"{text} {setup}") if int(size) not in shapes_read)
    told = [given for given in (*givens, *exercise.givens) if given.value is not None and given.role != "other"]
    values = frozenset(str(given.value) for given in told)
    if modules & _ON_ATTENTION and "norms" not in modules:
        yield from coverage.norms_in(f"{asks.plain}\n{plain(setup)}")
    known = [span for each in asks.wanted for span in each.spans] + says.spans + spans_of((*givens, *exercise.givens))
    known += [match.span() for match in (*stated.RULE.finditer(text), *stated.SHAPED.finditer(text))]
    known += [match.span() for match in TABLE["question_referred"].finditer(asks.plain)] if resolved else []
    apart = all(
        quantities()[each.quantity]["module"] == "identities" or TABLE["own_kind"].search(each.object)
        for each in asks.wanted
    )
    known += coverage.accounted(asks.plain, exercise)
    known += coverage.kinds(asks.plain) if apart else []
    known += [(clause.span[0], clause.span[0] + len(clause.verb)) for clause in asks.again]
    known += [found.span() for clause in asks.again for found in _CHANGES.finditer(asks.plain, *clause.span)]
    yield from coverage.left_out(asks, known, values, figures, formulas, {given.role for given in told})
    if setup.strip():
        whole = f"{setup}\n{text}"
        known = (
            spans_of(
                (*stated.by_words(find_givens(coverage.without_notes(setup), text), whole), *stated.upstream(setup))
            )
            + settled(setup).spans
        )
        known += [match.span() for match in (*stated.RULE.finditer(setup), *stated.SHAPED.finditer(setup))]
        asked = find_asked(setup)
        known += coverage.accounted(asked.plain, exercise) + (coverage.kinds(asked.plain) if apart else [])
        known += [clause.span for clause in (*asked.unread, *asked.prose)]
        yield from coverage.in_setup(asked.plain, known, values, figures, formulas)


def spans_of(givens: Iterable[Given]) -> list[Span]:
    """The spans of givens whose role is known, or that have no number."""
    return [
        each.span for each in givens
        if each.span is not None and (each.role != "other" or each.value is None or each.symbol == "theta")
    ]  # fmt: skip


def _with_blank_first(givens: tuple[Given, ...], asked: Sequence[Asked]) -> tuple[Given, ...]:
    """The listing that holds the blank that is asked for comes first."""
    letters = [each.object for each in asked if each.quantity == "blank" and each.object]
    if not letters:
        return givens
    blank = re.compile(rf"_+\s*\(?{re.escape(letters[0])}\)?\s*_+")
    return tuple(sorted(givens, key=lambda given: given.role == "listing" and not blank.search(str(given.value))))


def _definitions(text: str) -> list[Definition]:
    return [each.model_copy(update={"span": None}) for each in find_definitions(text)]


def _base(givens: Any) -> tuple[Given, ...]:
    """The givens without repetitions; a later statement of the question's own text has replaced earlier ones."""
    kept: list[Given] = []
    for given in givens:
        known = given.role not in ("other", "law", "listing") and given.span is None
        sized = given.value is not None and not shape_of(given.value)
        own = (
            known
            and sized
            and any(each.role == given.role and each.span is not None and each.of == given.of for each in kept)
        )
        same = any(each.model_copy(update={"span": None}) == given.model_copy(update={"span": None}) for each in kept)
        if not own and not same:
            kept.append(given)
    return tuple(kept)


def _asked(
    question: Question,
    asks: AskedFor,
    givens: Sequence[Given],
    exercise: Exercise,
    says: Settled,
    options: tuple[Option, ...],
) -> list[Asked]:
    """The questions of the record: those that are asked, and those asked again with other givens."""
    found: list[Asked] = []
    for wanted in _specific(asks.wanted):
        changed = tuple(
            _changed(given) for given in givens if given.of == "change" and _inside(given.span, wanted.clause.span)
        )
        asked = Asked(
            label=question.label, quantity=wanted.quantity, object=_written(wanted.object), row=_row(wanted, exercise),
            in_terms_of=wanted.in_terms_of, unit=_unit(wanted.unit), options=options,
            several=bool(_SEVERAL.search(question.text)), changes=changed, text=_words(question, wanted),
            span=question.locate(wanted.clause.span), confidence=min(wanted.weight, 1.0),
        )  # fmt: skip
        if asks.experiments or coverage.doubtful(asked, exercise, f"{question.context} {question.text}"):
            asked = asked.model_copy(update={"confidence": 0.3})
        found += _apart(asked, givens)
    for clause in asks.again:
        changes = tuple(_changed(each) for each in givens if each.of == "change" and _inside(each.span, clause.span))
        if not changes and (match := _CHANGES.search(clause.plain)):
            changes = tuple(_changed(each) for each in find_givens(f"{match['noun']} is {match['number']}."))
        changes = changes or tuple(
            each for each in givens if each.value is not None and _inside(each.span, clause.span)
        )
        if changes:
            found += [each.model_copy(update={"changes": changes}) for each in tuple(found) if not each.changes]
    return found


def _specific(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Without "perform attention" where the output that is asked for then is said more closely."""
    settings = ("perform", "apply", "use", "run", "carry out")
    return [
        each
        for place, each in enumerate(wanted)
        if not (each.clause.verb in settings and any(other.quantity == each.quantity for other in wanted[place + 1 :]))
    ]


def _apart(asked: Asked, givens: Sequence[Given]) -> list[Asked]:
    """A question that names several objects, as one question for each: every blank of a listing, several shapes."""
    names: list[str] = []
    if asked.quantity == "blank" and not asked.object:
        listings = [str(given.value) for given in givens if given.role == "listing"]
        names = [
            match[1] for text in listings[-1:] for match in re.finditer(r"_{2,}\s*\(?([A-Za-z0-9])\)?\s*_{2,}", text)
        ]
    elif asked.quantity == "sinusoidal":
        names = re.findall(r"PE\s?_?\([^()]*\)", asked.object)
    elif asked.quantity == "shape":
        bare = re.sub(r"^\w+\s*=\s*|\s+(?:for|in|with|of one|when|if)\b.*$", "", asked.object)
        asked = asked.model_copy(update={"object": re.sub(r"(?<=[A-Z])(?=[A-Z](?:\^|\b))", " ", bare)})
        pieces = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", bare)
        names = pieces if all(re.fullmatch(r"(?:the )?\W*\w{1,8}\W*", piece) for piece in pieces) else []
    elif asked.quantity == "listing_changes":
        layer = re.search(
            r"(\w+)\s*=\s*nn\.Linear\(\s*(?:in_features\s*=\s*)?[^,()]+,\s*(?:out_features\s*=\s*)?([^()]+?)\s*\)",
            asked.text,
        )
        if layer and not asked.changes:
            change = Given(symbol=layer[1], role="out_features", value=layer[2])
            return [asked.model_copy(update={"changes": (change,)})]
    if len(names) < 2:
        return [asked]
    return [asked.model_copy(update={"object": name.strip()}) for name in dict.fromkeys(names)]


def _changed(given: Given) -> Given:
    return given.model_copy(update={"of": ""})


def _written(text: str) -> str:
    """An object as solvers write it: q^T k may be torn, and words may be joined by hyphens."""
    text = _TORN.sub(r"\1^T \2", re.sub(r"\^?\s?\{?\\?top\b\}?|ᵀ", "^T", text)).replace("dot-product", "dot product")
    return re.sub(r"\b([qkx])\s?(?:·|\\cdot)\s?([qkx])\b", r"\1^T \2", text)


def _words(question: Question, wanted: Wanted) -> str:
    """The sentence that asks; of a change to a listing, all of the question."""
    sentence = question.text if wanted.quantity == "listing_changes" else question.text[slice(*wanted.clause.sentence)]
    return re.sub(r"\s+", " ", sentence).strip()


def _inside(span: Span | None, outer: Span) -> bool:
    return span is not None and outer[0] <= span[0] < outer[1]


def _unit(unit: str) -> str:
    named = {"bytes": "B", "kilobytes": "kB", "megabytes": "MB", "gigabytes": "GB", "terabytes": "TB",
             "milliseconds": "ms", "seconds": "s", "microseconds": "us", "percent": "%", "minutes": "min",
             "hours": "h"}  # fmt: skip
    return named.get(unit.lower(), unit)


def _row(wanted: Wanted, exercise: Exercise) -> int | None:
    if wanted.quantity not in _WITH_ROWS or re.search(r"\d", wanted.object):
        return None
    base = int(exercise.convention("index_base", 1))
    rows = next(
        (
            shape_of(each.value)
            for each in exercise.of_role("query", "tokens", "scores")
            if len(shape_of(each.value)) == 2
        ),
        (),
    )
    if exercise.of_role("query") and not rows:
        return None  # a single query is its own row
    return row_number(wanted.row, base, rows[0] if rows else None)


def _unread(asks: AskedFor, asked: Sequence[Asked]) -> Iterator[Finding]:
    for clause in asks.unread:
        yield Finding("unread_clause", {"text": _short(clause)})
    for clause in asks.prose:
        yield Finding("prose_clause", {"text": _short(clause)})
    for clause in asks.again:
        if not any(each.changes for each in asked):
            yield Finding("unread_clause", {"text": _short(clause)})


def _short(clause: Clause) -> str:
    words = " ".join(clause.plain.replace("\0", " ").split()).rstrip(" ,;.")
    return words if len(words) <= 90 else f"{words[:87]}…"


def _found(asks: AskedFor, asked: Sequence[Asked]) -> str:
    if asks.experiments:
        return f"it asks to run or look at something ({asks.experiments[0].strip()})"
    if asked:
        names = ", ".join(dict.fromkeys(each.quantity.replace("_", " ") for each in asked))
        return f"perhaps {names}, but a number or a condition of the text was not understood"
    if asks.prose:
        return "it asks for an explanation in words"
    return "no known quantity is asked for"


def _read_test(question: Question, task: Task) -> Reading:
    """A test of a coding task: the value that it prints."""
    says = settled(f"{question.context}\n{FENCED.sub('', question.text)}", question.title)
    structure = says.as_structure()
    if task.mask:
        structure = structure.model_copy(update={"mask": task.mask})
    elif any(given.role == "mask" for given in task.givens):
        structure = structure.model_copy(update={"mask": Structure().mask})
    conventions = says.as_conventions()
    if task.decimals is not None:
        conventions |= settled(f"Round to {task.decimals} decimals.").as_conventions()
    givens, findings = task.givens, ()
    if quantities()[task.quantity]["module"] == "norms" and not any(given.role == "epsilon" for given in givens):
        # The functions of every library add 1e-5 where a call does not say.
        givens = (*givens, Given(symbol="epsilon", role="epsilon", value="1e-5"))
        findings = (Finding("assumed", {"convention": "epsilon", "value": "1e-5, the usual default of a function,"}),)
    confidence = 0.9 if task.understood else 0.3
    asked = Asked(
        label=question.label, quantity=task.quantity, text=question.title, span=question.span, confidence=confidence
    )
    exercise = Exercise(
        label=question.label, title=question.title, text=question.text, span=question.span, givens=givens,
        definitions=tuple(_definitions(question.context)), structure=structure, conventions=conventions,
        asked=(asked,) if task.understood else (),
    )  # fmt: skip
    words = f"{task.quantity.replace('_', ' ')} of a call with an argument that was not understood"
    findings = findings if task.understood else (Finding("not_understood", {"found": words}),)
    return Reading(exercise, findings, task.understood, confidence)


def solved(exercise: Exercise, asked: Asked, told: str = "") -> Solved:
    """One question; refused where the text that it is told with leaves open, contradicts or says more than is solved.

    What a solver cannot read is a refusal too, so that the other questions of a sheet are answered.
    """
    looked_at: set[str] = set()
    token = LOOKED_AT.set(looked_at)
    try:
        for finding in coverage.contradictory(exercise, asked):
            return Solved(asked, refusal=finding)
        found = solve_part(exercise, asked)
    except QkvError as error:
        return Solved(asked, refusal=Finding("misfit", {"what": asked.quantity.replace("_", " "), "why": str(error)}))
    finally:
        LOOKED_AT.reset(token)
    if found.answer is not None:
        for finding in (
            *coverage.unused(exercise, asked, looked_at),
            *coverage.unsettled(asked, found.answer),
            *coverage.foreign(exercise, asked, found.answer, told),
        ):
            return Solved(asked, refusal=finding)
    return found


def _chosen(part: Solved) -> Solved:
    """The option of a choice that the answer is equal to; refused where none or several are."""
    answer, options = part.answer, part.asked.options
    if answer is None or not options:
        return part
    labels = {plain_label(option.label) for option in options}
    chosen_labels = answer.value if isinstance(answer.value, tuple) else (answer.value,)
    if answer.form == "blank" or (
        answer.form == "choice" and all(plain_label(str(each)) in labels for each in chosen_labels)
    ):
        return part
    from ...maths import compare

    symbols = dict(answer.symbols)
    texts = [answer.text, *(each.text for each in answer.also if not each.convention)]
    fitting = [
        option
        for option in options
        if any(compare(text, option.text, symbols).kind == "equal" for text in texts if text)
    ]
    if len(fitting) != 1:
        said = "no option is" if not fitting else "several options are"
        return Solved(part.asked, refusal=Finding("unmatched_options", {"answer": answer.text, "said": said}))
    chosen = Answer(
        f"({fitting[0].label})", (fitting[0].label,), form="choice", also=answer.also, assumed=answer.assumed,
        derivation=answer.derivation,
    )  # fmt: skip
    return Solved(part.asked, chosen)
