"""Exercises read and solved: real sheets, records that others wrote, exercises by authors who had not seen the solver.

`python -m benchmarks exercises [--field DIR]`. DIR holds the sheets of benchmarks/field_key.json, whose text is not in
the project: the key has the name of a sheet, the label of a question and the right values. Without DIR the sheets are
"absent". An exercise is wrong as soon as one printed answer is; "partly" right where another part has no answer;
"assumed" where the figure is that of a convention which the text leaves open and which is not the key's; "unjudged"
where the key has no value to compare with (words, proofs). Only "right" counts as right. One that must be refused is
wrong where a figure is printed without saying that a given is missing.
"""

from __future__ import annotations

import json
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.exercises import Answer, Exercise, Solved, solve
from qkv.exercises.record import plain_label
from qkv.exercises.sheets import Reading, read_sheet
from qkv.exercises.solving import plain
from qkv.exercises.units import factor
from qkv.maths import compare

from .decode import bar
from .harness import report

HERE = Path(__file__).parent
KEY = HERE / "field_key.json"
RECORDS = HERE / "field_records.json"
FRESH = Path("tests/exercises/fresh")
VERDICTS = ("right", "partly", "assumed", "unjudged", "wrong", "refused", "not understood")
WRITTEN = ("words", "proof")  # forms whose answer no value judges


def numbers(value: Any) -> list[float]:
    """Every number of nested lists, in order; empty where something else is among them."""
    flat: list[Any] = []

    def add(each: Any) -> None:
        if isinstance(each, list | tuple):
            for one in each:
                add(one)
        elif isinstance(each, dict):
            add(list(each.values()))
        else:
            flat.append(each)

    add(plain(value) if not isinstance(value, str) else value)
    try:
        return [float(each) for each in flat]
    except (TypeError, ValueError):
        return []


def near(found: Sequence[float], wanted: Sequence[float], tolerance: float, relative: bool) -> bool:
    if not found or len(found) != len(wanted):
        return False
    return all(
        abs(a - b) <= tolerance * (abs(b) if relative else 1) + 1e-9 * abs(b) or a == b
        for a, b in zip(found, wanted, strict=True)
    )


def written_number(text: Any) -> float | None:
    """A number that is written as a text: "3/4", "1.5e9", "sqrt(2)"."""
    from qkv.exercises.sheets.literals import read_number

    if not isinstance(text, str):
        return None
    read = read_number(text.strip().rstrip("%").strip())
    try:
        return float(read) if read is not None else float(text)
    except (TypeError, ValueError):
        return None


def candidates(answer: Answer) -> Iterator[tuple[list[float], str]]:
    """The numbers that an answer states, each with its unit."""
    yield numbers(answer.value), ""
    stated = written_number(answer.text.removesuffix(answer.unit).strip())
    if stated is not None:
        yield [stated], answer.unit
    if answer.items:
        yield [number for item in answer.items.values() for number in numbers(item.value)], ""
        for item in answer.items.values():
            yield numbers(item.value), ""


def equal_numbers(answer: Answer, value: Any, wanted: Mapping[str, Any], relative: bool) -> bool:
    target = numbers(value)
    tolerance = float(wanted.get("tolerance", 1e-3 if not relative else 0.01))
    units = {1.0}
    if unit := wanted.get("unit"):
        try:
            units.add(float(factor(unit)))
        except QkvError:
            units |= {0.01} if unit == "%" else set()
    for found, _ in candidates(answer):
        for scale in units:
            slack = tolerance if relative else tolerance * scale
            if near(found, [each * scale for each in target], slack, relative):
                return True
    return False


def equal_text(answer: Answer, text: str, wanted: Mapping[str, Any]) -> bool:
    labels = answer.value if isinstance(answer.value, tuple) else (answer.value,)
    if answer.form == "choice" and plain_label(text) in {plain_label(str(each)) for each in labels}:
        return True
    symbols = {**answer.symbols, **wanted.get("symbols", {})}
    stated = [answer.text, *(each.text for each in answer.also if not each.convention)]
    stated += [item.text for item in answer.items.values()]
    squeezed = "".join(text.split()).lower()
    return any(
        "".join(each.split()).lower() == squeezed or compare(text, each, symbols).kind == "equal" for each in stated
    )


def matches(answer: Answer, wanted: Mapping[str, Any], relative: bool) -> bool:
    """Whether an answer is one of those that are right."""
    for value in (wanted.get("value", wanted.get("values", wanted.get("text"))), *wanted.get("also", ())):
        number = written_number(value)
        if isinstance(value, str) and number is None:
            if equal_text(answer, value, wanted):
                return True
        elif isinstance(value, bool):
            if answer.value is value:
                return True
        elif value is not None:
            texts = isinstance(value, list) and any(isinstance(each, str) for each in value)
            if texts and answer.form == "choice" and {*map(str, value)} == {*map(str, answer.value)}:
                return True
            if equal_numbers(answer, value if number is None else number, wanted, relative):
                return True
    return False


def judged(parts: Sequence[Solved], wanted: Sequence[Mapping[str, Any]], relative: bool = False) -> Iterator[str]:
    """The verdict on each answer that is wanted: its part by quantity and object, by label, by order, or alone."""
    for place, each in enumerate(wanted):
        chosen = list(parts)
        if quantity := each.get("quantity"):
            names = {quantity, *each.get("names", ())}
            chosen = [part for part in parts if part.asked.quantity in names]
            chosen = [part for part in chosen if each.get("object", part.asked.object) == part.asked.object]
        elif len(parts) > 1:
            label = plain_label(str(each.get("part", "")))
            same = [part for part in parts if label and plain_label(part.asked.label).endswith(label)]
            chosen = same or (list(parts[place : place + 1]) if len(parts) == len(wanted) else list(parts))
        answers = [part.answer for part in chosen if part.answer is not None]
        if len(answers) > 1:  # several parts may state together what the key holds as one
            answers.append(Answer(value=[answer.value for answer in answers]))
        if not chosen:
            yield "not understood"
        elif not answers:
            yield "refused"
        elif each.get("form") in WRITTEN or each.get("text") == "":
            yield "unjudged"
        else:
            exact = relative or each.get("relative", False)
            assumed = {**each, "values": None, "text": None, "also": each.get("assumed", ())}
            if any(matches(answer, each, exact) for answer in answers):
                yield "right"
            else:
                yield "assumed" if any(matches(answer, assumed, exact) for answer in answers) else "wrong"


def together(verdicts: Iterable[str]) -> str:
    """One verdict of several: wrong as soon as one is, right where all are."""
    found = set(verdicts)
    if "wrong" in found or len(found) == 1:
        return "wrong" if "wrong" in found else found.pop()
    if found & {"refused", "not understood"}:
        return "partly" if found & {"right", "assumed", "unjudged"} else "refused"
    return "assumed" if "assumed" in found else "unjudged"


def solved_parts(readings: Iterable[Reading]) -> list[Solved]:
    return [part for reading in readings if reading.understood for part in reading.solve().parts]


def field(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Sheet, question and verdict for every question of the key."""
    key = json.loads(KEY.read_text(encoding="utf-8"))
    read = {name: read_sheet(folder / f"{name}.md") for name in dict.fromkeys(each["sheet"] for each in key)}
    for each in key:
        labels = {plain_label(label) for label in (each["part"], *each.get("more", ()))}
        readings = [one for one in read[each["sheet"]] if plain_label(one.exercise.label) in labels]
        yield each["sheet"], each["question"], _field_verdict(solved_parts(readings), each["answers"])


def _field_verdict(parts: Sequence[Solved], answers: Sequence[Mapping[str, Any]]) -> str:
    if not answers:  # words, experiments, what qkv does not model: any figure would be wrong
        return "wrong" if any(part.answer is not None for part in parts) else "not understood"
    return together(judged(parts, answers))


def _filled(record: Any, sheet: str) -> Any:
    """A record with the texts of a sheet that it only names by their spans: listings, and options as "@start:end"."""
    if isinstance(record, list):
        return [_filled(each, sheet) for each in record]
    if not isinstance(record, dict):
        return record
    filled = {name: _filled(value, sheet) for name, value in record.items()}
    if record.get("role") == "listing" and record.get("value") is None and record.get("span"):
        filled["value"] = sheet[slice(*record["span"])]
    if (place := re.fullmatch(r"@(\d+):(\d+)", str(record.get("text", "")))) is not None:
        filled["text"] = sheet[int(place[1]) : int(place[2])].strip(" ⃝\n")
    return filled


def field_records(folder: Path) -> Iterator[tuple[str, str, str]]:
    """The same questions from records that were written by hand."""
    key = {(each["sheet"], each["question"]): each for each in json.loads(KEY.read_text(encoding="utf-8"))}
    for each in json.loads(RECORDS.read_text(encoding="utf-8")):
        name = (each["sheet"].removesuffix(".md"), each["question"])
        sheet = (folder / each["sheet"]).read_text(encoding="utf-8")
        parts = solve(Exercise.from_plain(_filled(each["record"], sheet))).parts
        yield *name, _field_verdict(parts, key[name]["answers"])


def fresh(names: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """Set, exercise and verdict for the exercises that were written without sight of the solver."""
    for path in sorted(FRESH.glob("*.toml")):
        if names and path.stem not in names:
            continue
        for each in tomllib.loads(path.read_text(encoding="utf-8")).get("exercise", ()):
            try:
                readings = [one for one in read_sheet(f"{each['text'].strip()}\n") if one.understood]
            except QkvError:
                readings = []
            if each["expect"] == "answer":
                wanted = [{**one, "relative": _is_relative(path.stem, one)} for one in each["answer"]]
                yield path.stem, each["id"], verdict(readings, wanted)
            else:
                yield path.stem, each["id"], "wrong" if any(map(is_definite, solved_parts(readings))) else "right"


def fresh_sheets() -> Iterator[tuple[str, str, str]]:
    """Set, question and verdict for whole sheets that were written without sight of the solver, with keys as JSON."""
    for key in sorted(FRESH.glob("*/*.json")):
        path = next(each for each in sorted(key.parent.glob(f"{key.stem}.*")) if each.suffix != ".json")
        wanted: dict[str, list[Mapping[str, Any]]] = {}
        for each in json.loads(key.read_text(encoding="utf-8")):  # "5[2]": the second thing that 5 asks for
            wanted.setdefault(_bare(re.sub(r"\[\d+\]$", "", each["label"])), []).append(each)
        readings = read_sheet(path)
        for label, answers in wanted.items():
            parts = solved_parts(one for one in readings if _bare(one.exercise.label) == label)
            values = [{"relative": True, **each} for each in answers if each["answerable"]]
            if values:
                outcome = together(judged(parts, values))
            else:
                outcome = "wrong" if any(map(is_definite, parts)) else "right"
            yield key.parent.name, f"{key.stem} {label}", outcome


def _bare(label: str) -> str:
    """A label without the word before its number: "Task 3" and "Q3" are "3"."""
    return re.sub(r"^[a-z]+(?=\d)", "", plain_label(label))


def _is_relative(name: str, wanted: Mapping[str, Any]) -> bool:
    """Whether the tolerance is relative: in no answer of the set of numbers, and of the second set in numbers alone."""
    return name == "symbols" or (name != "numbers" and wanted.get("form") == "number")


def verdict(readings: Sequence[Reading], wanted: Sequence[Mapping[str, Any]]) -> str:
    """The verdict on an exercise.

    "wrong" where a printed answer is none of those that are wanted for its part, "right" where every wanted answer is
    printed, "partly" where some are, otherwise "refused" or "not understood".
    """
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for each in wanted:
        parts.setdefault(plain_label(str(each.get("part", ""))), []).append(each)
    found: list[str] = []
    placed = {part: [one for one in readings if _has_label(one, part)] for part in parts}
    elsewhere = [one for one in readings if not any(one in of_part for of_part in placed.values())]
    if not all(is_wanted(answer, wanted) for answer in printed(elsewhere)):
        return "wrong"
    for part, answers in parts.items():
        own = placed[part] or elsewhere
        if not all(is_wanted(answer, answers) for answer in printed(placed[part])):
            return "wrong"
        for each in answers:
            right = any(fits(one, each) for answer in printed(own) for one in (answer, *answer.items.values()))
            right = right or any(fits(answer, _together(answers)) for answer in printed(own))
            found.append("right" if right else "refused" if own else "not understood")
    if all(each == "right" for each in found):
        return "right"
    return next(
        (name for name, each in (("partly", "right"), ("refused", "refused")) if each in found), "not understood"
    )


def _has_label(reading: Reading, part: str) -> bool:
    label = reading.exercise.label.lower()
    return bool(part) and (plain_label(label) == part or re.findall(r"[a-z]+|\d+", label)[-1:] == [part])


def printed(readings: Iterable[Reading]) -> list[Answer]:
    """The answers of readings."""
    return [part.answer for reading in readings for part in reading.solve().parts if part.answer is not None]


def is_wanted(answer: Answer, wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an answer, or each of its items, is one of those that are wanted, or all of them together."""
    items = answer.items.values()
    one = any(fits(answer, each) for each in wanted) or fits(answer, _together(wanted))
    return one or (bool(items) and all(any(fits(item, each) for each in wanted) for item in items))


def _together(wanted: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Several wanted answers as one: the rows of a matrix, or a mean and a variance."""
    return {**wanted[0], "value": [each.get("value") for each in wanted], "also": ()}


def fits(answer: Answer, wanted: Mapping[str, Any]) -> bool:
    """Whether an answer is the one that is wanted, or says under which other convention it would be."""
    if matches(answer, wanted, wanted["relative"]):
        return True
    others = [each for each in answer.also if each.convention] if answer.assumed else []
    return any(matches(replace(answer, text=each.text, value=each.value, items={}, also=()), wanted,
                       wanted["relative"]) for each in others)  # fmt: skip


def is_definite(part: Solved) -> bool:
    """Whether an answer states a figure without saying that something unsettled is needed for it."""
    if part.answer is None or part.asked.quantity in ("words", "identity"):
        return False
    return not any(finding.code in ("unsettled", "missing", "contradiction") for finding in part.answer.assumed)


def shown(name: str, title: str, rows: Sequence[tuple[str, str, str]]) -> Counter[str]:
    """Print a table by set, and what is wrong; return the counts."""
    sets = list(dict.fromkeys(row[0] for row in rows))
    counts = {each: Counter(row[2] for row in rows if row[0] == each) for each in sets}
    total = sum(counts.values(), Counter())
    table = [[each, *(str(counts[each][verdict]) for verdict in VERDICTS)] for each in sets]
    table.append(["all", *(str(total[verdict]) for verdict in VERDICTS)])
    report(name, title, ["set", *VERDICTS], table, [{"set": row[0], "id": row[1], "verdict": row[2]} for row in rows])
    if "--verbose" in sys.argv:
        for row in rows:
            print(f"  {row[0]} {row[1]}: {row[2]}")
    elif wrong := [f"{row[0]} {row[1]}" for row in rows if row[2] == "wrong"]:
        print(f"  wrong: {', '.join(wrong)}")
    return total


def run() -> None:
    place = sys.argv.index("--field") + 1 if "--field" in sys.argv else 0
    folder = Path(sys.argv[place]) if place and place < len(sys.argv) else None
    figures = []
    if folder is None or not folder.is_dir():
        print("exercises: the sheets of the field are absent (--field DIR)")
    else:
        begun = time.perf_counter()
        total = shown("exercises-field", "Sheets of the field, read", list(field(folder)))
        seconds = time.perf_counter() - begun
        figures += [bar("of 76, right from the sheet alone", total["right"], ".0f", least=40),
                    bar("wrong from the sheet alone", total["wrong"], ".0f", most=0),
                    bar("reading and solving the sheets, s", seconds, ".1f", most=60)]  # fmt: skip
    if folder is not None and folder.is_dir():
        rows = list(field_records(folder))
        total = shown("exercises-records", "Sheets of the field, records written by others", rows)
        figures += [bar("of 76, right from a record", total["right"], ".0f", least=54)]
    if FRESH.is_dir():
        rows = [*fresh(), *fresh_sheets()]
        total = shown("exercises-fresh", "Exercises written without sight of the solver", rows)
        figures += [bar("fresh exercises", len(rows), ".0f", least=150),
                    bar("fresh exercises wrong, part", total["wrong"] / len(rows), ".4f", most=0.02)]  # fmt: skip
    report("exercises", "Figures", ["figure", "value", "bar", ""], figures, [])
