"""The tools of a language model as plain functions: typed arguments, short answers as plain values, steps on request.

A text is never taken for the name of a file, and nothing in it is executed. The limits of sizes are in the types, which
the server checks; torch is imported by `explain_call` alone. The docstrings are what a language model reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from ..cost.lookup import match_name
from ..cost.machine import hardware
from ..errors import OptionError, complaint
from ..exercises import Exercise, Given, Solved, bank, solve
from ..exercises.record import plain_label
from ..exercises.sheets import Reading, read_sheet

LONGEST = 20_000  # characters of a text
MOST_STEPS = 200  # lines of a derivation
MOST_WORDS = 2_000  # characters of a reason, which may repeat an answer
MOST_NUMBERS = 2**28  # numbers of the tensors that a call is explained for

Answered: TypeAlias = dict[str, Any]
Text: TypeAlias = Annotated[str, Field(max_length=LONGEST)]
Question: TypeAlias = Annotated[str, Field(min_length=1, max_length=LONGEST)]
Name: TypeAlias = Annotated[str, Field(max_length=100)]
Number: TypeAlias = int | float | Annotated[str, Field(max_length=60)]
Row: TypeAlias = Annotated[list[Number], Field(min_length=1, max_length=64)]
Matrix: TypeAlias = Annotated[list[Row], Field(min_length=1, max_length=64)]
Whole: TypeAlias = Annotated[int, Field(ge=1, le=10**12)]
Size: TypeAlias = Whole | Annotated[str, Field(max_length=20)]
_EXERCISE = (
    "The whole question, word for word, with its numbers and the labels of its parts, not its title; "
    'or a name of the bank ("decoding", or "decoding:7" for a variant), or a record'
)
AnyExercise: TypeAlias = Annotated[Exercise | Question, Field(description=_EXERCISE)]
Part: TypeAlias = Annotated[str, Field(max_length=20, description='A label such as "a"; empty where there is one part')]
Steps: TypeAlias = Annotated[bool, Field(description="Give the derivation too")]
Format: TypeAlias = Literal["float32", "bfloat16", "float16", "int8", "fp8", "int4"]


class Sizes(BaseModel):
    """A model by its sizes: whole numbers, or for `count_cost` names such as "d", which give formulas."""

    model_config = ConfigDict(extra="forbid")

    layers: Size
    width: Size
    heads: Size = 1
    kv_heads: Size | None = None
    head_width: Size | None = None
    ff: Size | None = None
    vocabulary: Size | None = None
    experts: Size | None = None
    active: Size | None = None
    gated: bool | None = None
    tied: bool | None = None
    biases: bool | None = None
    norm: Literal["rms", "layer", "none"] | None = None


Similarity: TypeAlias = Literal["softmax", "argmax", "sigmoid", "relu", "linear", "exponential"]
Machine: TypeAlias = Annotated[Name, Field(description=f"here (this machine), or one of {', '.join(hardware())}")]
AnyModel: TypeAlias = Annotated[Sizes | Name, Field(description='A name such as "llama-3-8b", or the sizes')]


def solve_exercise(exercise: AnyExercise, part: Part = "", steps: Steps = False) -> Answered:
    """Solve an exercise about attention exactly: numbers, formulas, costs, gradients, shapes, listings.

    Each part has its answer, or why there is none. Of a question in words, `understood` is what was read: compare it
    with the question before you trust the answer."""
    readings, in_words = _read(exercise)
    found: list[Answered] = []
    for reading in readings:
        about = {"part": reading.exercise.label, "understood": str(reading.exercise)} if in_words else {}
        if reading.understood:
            found += [about | _shown(each, steps) for each in _parts(reading, in_words)]
        else:
            found.append(about | {"not_answered": _words(reading)})
    if part:
        label = _chosen(part, [each["part"] for each in found])
        found = [each for each in found if each["part"] == label]
    return {"parts": found}


def check_answer(exercise: AnyExercise, answer: Text, part: Part = "", reveal: bool = False) -> Answered:
    """Check an answer to a part of an exercise: "right", "wrong", "conditional", "incomplete" or "unread", and why.

    Nothing of the right answer is said unless `reveal` is true. "unread" counts neither for nor against the answer:
    write it as a number, a matrix or a formula and check again."""
    from ..exercises.sheets.questions import SheetQuestion, grouped
    from ..grading.questions import judge

    readings, in_words = _read(exercise)
    reading, record = readings[0], readings[0].exercise
    if in_words:
        questions = list(grouped(readings).values())
        if len(questions) != 1:
            raise OptionError(complaint("exercise", f"{len(questions)} questions", "one question, perhaps with parts"))
        record = questions[0]
    label = _chosen(part, [asked.label for asked in record.asked])
    if isinstance(record, SheetQuestion):
        reading = next(each for each in readings if each.exercise == record.records[plain_label(label)])
        refused = [each.refusal.words() for each in reading.solve().parts if each.refusal is not None]
        if refused or not reading.understood:
            return {"verdict": "unread", "why": "; ".join(refused) or _words(reading)}
    outcome = judge(record, label, answer)
    found: Answered = {"verdict": outcome.kind, "why": outcome.words(spoilers=reveal)[:MOST_WORDS]}
    if reveal:
        shown = [_shown(each, False) for each in _parts(reading, in_words) if in_words or each.asked.label == label]
        found["answer"] = "; ".join(str(each.get("answer", each.get("not_answered"))) for each in shown)
    return found


def compare(a: Question, b: Question, symbols: dict[Name, Name], steps: Steps = False) -> Answered:
    """Compare two formulas, LaTeX or plain: equal, different (with a counterexample) or equal under a condition.

    Where one of them is the right answer, it is `a`. `symbols` declares every name: {"mu": "vector[d]", "s":
    "positive", "A": "matrix[n,d]", "q": "random vector[d] ~ N(0, I)"}. "proved" is by algebra, "tested" by numbers."""
    from ..maths import compare as compared

    found = compared(a, b, symbols).as_dict()
    names = ("kind", "evidence", "reason", "condition", "counterexample", "suggestion", "where", "renaming")
    kept = {name: found[name] for name in (*names, *(["certificates"] if steps else [])) if found[name]}
    return {"verdict": kept.pop("kind"), **kept}


def attention_by_hand(
    query: Matrix, key: Matrix, value: Matrix | None = None, similarity: Similarity = "softmax",
    mask: Annotated[Matrix | Name, Field(description='"causal", "window(2, 0)", or a matrix of 0 and 1')] = "none",
    scale: Annotated[Number, Field(description='"sqrt" for 1/√d, "none", or a factor of the scores')] = "sqrt",
    heads: Whole = 1, kv_heads: Whole | None = None, steps: Steps = False,
) -> Answered:  # fmt: skip
    """Work out scores, weights and output of attention for small matrices, exactly. Tokens are rows.

    Numbers may be texts: "1/3", "sqrt(2)"."""
    givens = {"query": query, "key": key, **({} if value is None else {"value": value})}
    records = [Given(symbol=name[0].upper(), role=name, value=rows) for name, rows in givens.items()]  # type: ignore[arg-type]
    if not isinstance(mask, str):
        records.append(Given(symbol="M", role="mask", value=mask))
    asked = ["scores", *(["weights"] if similarity != "argmax" else []), *(["output"] if value is not None else [])]
    exercise = Exercise.from_plain({
        "givens": records,
        "structure": {"similarity": similarity, "mask": mask if isinstance(mask, str) else "none",
                      "heads": heads if heads > 1 else None, "kv_heads": kv_heads},
        "conventions": {"scale": {"value": scale}},
        "asked": [{"label": name, "quantity": name} for name in asked],
    })  # fmt: skip
    return _by_label(exercise, steps)


def moments(expression: Question, laws: dict[Name, Name], width: Size = "d", steps: Steps = False) -> Answered:
    """Find mean and variance of a score such as "q^T k" or "q^T k / sqrt(d)" of independent random vectors.

    `laws` has each vector's law: {"q": "normal(0, I)", "k": "uniform(-1, 1)", "w": "mean 0 variance s^2"}; `width` is
    the number of components, or its letter."""
    size = {"symbol": str(width)} if isinstance(width, str) else {"symbol": "d", "value": width}
    asked = [{"label": name, "quantity": name, "object": expression} for name in ("mean", "variance")]
    givens = [{"symbol": name, "role": "law", "law": law} for name, law in laws.items()]
    exercise = {"givens": [*givens, {"role": "head_width", **size}], "asked": asked}
    return _by_label(Exercise.from_plain(exercise), steps)


def count_cost(
    model: AnyModel, length: Size | None = None, batch: Size = 1,
    phase: Literal["forward", "decode", "training"] = "forward", causal: bool = False, weights: Format = "bfloat16",
    steps: Steps = False,
) -> Answered:  # fmt: skip
    """Count parameters, operations and bytes of a model exactly; with names as sizes, as formulas.

    `products` are the operations of matrix products, 2 for a multiply-add; `other` are the rest. `steps` lists the
    parts: embedding, norms, projections, scores, cache, feed-forward, logits."""
    from ..cost.model_counts import model_counts, plain_counts, read_size

    size = None if length is None else read_size("length", length)
    found = model_counts(_model(model), size, read_size("batch", batch), phase=phase, causal=causal, weights=weights)
    return plain_counts({name: value for name, value in found.items() if steps or name != "parts"})


def plan_model(
    model: AnyModel, hardware: Machine = "here", context: Whole | None = None, batch: Whole = 1,
    weights: Format = "bfloat16", cache: Format = "bfloat16", prompt: Whole | None = None,
    machines: Annotated[int, Field(ge=1, le=4096)] | None = None, link: Name | None = None, steps: Steps = False,
) -> Answered:  # fmt: skip
    """Predict what a model takes on a machine: time of a token, memory, whether it fits, and the bottleneck.

    `steps` gives the whole plan as text: parts, variants, and where the bottleneck changes."""
    from ..cost.planning import plan

    options: dict[str, Any] = {"context": context, "batch": batch, "weights": weights, "cache": cache}
    found = plan(_model(model), hardware, **options, prompt=prompt, machines=machines, link=link)
    names = ("context", "batch", "weight_bytes", "cache_bytes", "fits", "largest_batch", "largest_context",
             "seconds_per_token", "tokens_per_second", "prefill_seconds", "bottleneck", "notes")  # fmt: skip
    answer: Answered = {"model": found.model.name, "hardware": found.hardware.name}
    return answer | {name: getattr(found, name) for name in names} | ({"plan": str(found)} if steps else {})


def explain_call(
    batch: Whole = 1, heads: Whole = 1, kv_heads: Whole | None = None, queries: Whole = 1, keys: Whole = 1,
    width: Whole = 64, dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32",
    similarity: Literal["softmax", "argmax", "elu1"] = "softmax", causal: bool = False, window: Whole | None = None,
    steps: Steps = False,
) -> Answered:  # fmt: skip
    """Say which backend `qkv.attention` would run for these sizes, what it costs, and why not the others.

    With `causal`, the queries are the last of the keys; `window` lets each attend to that many keys before it."""
    shapes = (batch, heads, queries, width), (batch, kv_heads or heads, keys, width)
    if batch * width * (heads * queries + 2 * (kv_heads or heads) * keys) > MOST_NUMBERS:
        raise OptionError(
            complaint("sizes", " and ".join(map(str, shapes)), f"at most {MOST_NUMBERS:,} numbers in all")
        )
    import torch

    import qkv

    query, key = (torch.empty(shape, dtype=getattr(torch, dtype)) for shape in shapes)
    kinds = {"softmax": qkv.Softmax(), "argmax": qkv.Argmax(), "elu1": qkv.FeatureMap(qkv.features.elu1)}
    masks = [qkv.Causal(offset=keys - queries)] if causal else []
    masks += [qkv.Window(left=window, right=0, offset=keys - queries)] if window is not None else []
    found = qkv.explain(query, key, key, similarity=kinds[similarity], mask=masks[-1] if masks else None)
    answer: Answered = {"backend": found.backend, "call": found.call, "flops": found.cost.flops}
    answer |= {"seconds": found.seconds, "calibrated": found.machine is not None}
    return answer | ({"why_not": {name: list(why) for name, why in found.reasons.items()}} if steps else {})


TOOLS = (solve_exercise, check_answer, compare, attention_by_hand, moments, count_cost, plan_model, explain_call)


def _read(exercise: Exercise | str) -> tuple[list[Reading], bool]:
    """The exercise as readings, and whether it was read from words."""
    if isinstance(exercise, Exercise):
        return [Reading(exercise, understood=True)], False
    if (named := bank.read_name(exercise)) is not None:
        return [Reading(named, understood=True)], False
    readings = read_sheet(f"{exercise.strip()}\n")
    if not readings:
        raise OptionError(complaint("exercise", "a text without a question", "a question in words"))
    return readings, True


def _parts(reading: Reading, in_words: bool) -> tuple[Solved, ...]:
    return (reading.solve() if in_words else solve(reading.exercise)).parts


def _words(reading: Reading) -> str:
    return "; ".join(finding.words() for finding in reading.findings) or "the question was not understood"


def _chosen(part: str, labels: list[str]) -> str:
    """The label that a part names; the only one where none is named."""
    fitting = [each for each in labels if plain_label(each) == plain_label(part)]
    if not fitting and (part.strip() or len(labels) != 1):
        there = ", ".join(filter(None, labels))
        whole = "the exercise that was given has no labels: give the whole question, with its numbers and parts"
        raise OptionError(
            complaint("part", repr(part), "a part of the exercise", f"it has {there}" if there else whole)
        )
    return (fitting or labels)[0]


def _shown(solved: Solved, steps: bool) -> Answered:
    """A part: its answer with unit, what was assumed, and the derivation where it is wanted."""
    asked, answer = solved.asked, solved.answer
    of = f" of {asked.object}" if asked.object else ""
    found: Answered = {"part": asked.label, "asked": f"{asked.quantity.replace('_', ' ')}{of}"}
    if answer is None:
        return found | {"not_answered": "" if solved.refusal is None else solved.refusal.words()}
    unit = f" {answer.unit}" if answer.unit and not answer.text.endswith(answer.unit) else ""
    found["answer"] = f"{answer.text}{unit}"
    if assumed := [finding.words() for finding in answer.assumed]:
        found["assumed"] = assumed
    if also := {each.convention: each.text for each in answer.also if each.convention}:
        found["under_other_conventions"] = also
    return found | ({"steps": list(_lines(answer.as_dict()["steps"]))[:MOST_STEPS]} if steps else {})


def _lines(steps: list[dict[str, str]]) -> Iterator[str]:
    for step in steps:
        reason = f"({step['reason']})" if step["reason"] and step["text"] else step["reason"]
        line = " ".join(filter(None, (step["relation"], step["text"], reason)))
        yield ": ".join(filter(None, (step["title"], line)))


def _by_label(exercise: Exercise, steps: bool) -> Answered:
    """The answers by their labels; a question that cannot be solved is an error, since nothing else was asked."""
    shown = {each.asked.label: _shown(each, steps) for each in solve(exercise).parts}
    if all("not_answered" in each for each in shown.values()):
        raise OptionError(next(iter(shown.values()))["not_answered"])
    before: list[str] = []
    for each in shown.values():
        if lines := each.get("steps", []):  # without what led to the answer before this one
            each["steps"] = lines[len(before) :] if lines[: len(before)] == before else lines
            before = lines
        del each["part"], each["asked"]
    return shown


def _model(model: Sizes | str) -> Any:
    from ..cost.architecture import models
    from ..cost.model_counts import sized_model

    if isinstance(model, str):
        known = models()
        return known[match_name("model", model, known, "a model by name, or sizes", f"there are {', '.join(known)}")]
    sizes = model.model_dump()
    return sized_model(sizes, sizes.pop("biases"), sizes.pop("norm"))
