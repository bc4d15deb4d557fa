"""Plans as text: tables of at most 80 columns with formulas, comparisons of several plans, scaling, and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .blocks import experts_used
from .communication import Point, read_points
from .formulas import LETTERS
from .readable import (
    count_text,
    in_columns,
    in_words,
    integer_text,
    quantity,
    rate_text,
    ratio_text,
    readable_seconds,
    wrap_lines,
)
from .scaling import LINEAR
from .sizes import BITS, storage_bytes

if TYPE_CHECKING:
    from .planning import Crossing, Plan
    from .scaling import Scaling, ScalingRow

SIDE_BY_SIDE = 3  # plans that fit into 80 columns
SHORT_FORMULA = 24
MAX_ROWS = 16  # of a table over machines


def plan_text(plan: Plan) -> str:
    """The result in one line, then tables."""
    sections = [_headline(plan), _summary(plan), _parts(plan), _variants(plan), _crossings(plan)]
    sections += [] if plan.scaling is None else [scaling_text(plan)]
    return "\n\n".join(filter(None, [*sections, _sources(plan)]))


def comparison_text(plans: Sequence[Plan]) -> str:
    """Several plans, one column each."""
    blocks = [plans[at : at + SIDE_BY_SIDE] for at in range(0, len(plans), SIDE_BY_SIDE)]
    sections = [_side_by_side(block) for block in blocks]
    spread = [f"{plan.model.name} on {plan.hardware.name}: {scaling_text(plan)}" for plan in plans if plan.scaling]
    return "\n\n".join([*sections, *spread, _all_notes(plans)]).rstrip()


def csv_text(plans: Sequence[Plan]) -> str:
    """CSV with one line per number of each plan."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["model", "hardware", "batch", "context", "weights", "cache", "of", "quantity", "value"])
    for plan in plans:
        options = [plan.model.name, plan.hardware.name, plan.batch, plan.context, plan.weights, plan.cache]
        for of, name, value in _quantities(plan.as_dict()):
            writer.writerow([_cell(each) for each in (*options, of, name, value)])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A cell; text that a spreadsheet would evaluate as a formula gets a leading apostrophe."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _quantities(found: dict[str, Any]) -> list[tuple[str, str, Any]]:
    options = ("batch", "context", "weights", "cache", "notes", "model", "hardware", "scaling")
    rows = [("plan", name, found[name]) for name in found if name not in options and not isinstance(found[name], dict)]
    rows += [("model", name, found["model"][name]) for name in ("parameters", "active_parameters", "cache_numbers")]
    for group, one in (("parts", "part"), ("variants", "variant"), ("crossings", "crossing")):
        for name, entry in found[group].items():
            rows += [(f"{one} {name}", key, value) for key, value in entry.items() if key != "name"]
    for row in found.get("scaling", {}).get("rows", ()):
        of = f"machines {row['machines']}"
        rows += [(of, key, value) for key, value in row.items() if not isinstance(value, dict)]
        for name, split in row["splits"].items():
            rows += [(f"{of} {name}", key, value) for key, value in split.items()]
    return rows


def _headline(plan: Plan) -> str:
    name = f"{plan.model.name} on {plan.hardware.name}"
    if plan.seconds_per_token is None:
        answer = f"{readable_seconds(plan.prefill_seconds)} for a pass over {count_text(plan.context, 'token')}"
    else:
        answer = f"{readable_seconds(plan.seconds_per_token)} a token"
    first = f"{name}: {answer}, {rate_text(plan.tokens_per_second)} tokens/s"
    sizes = f"batch {integer_text(plan.batch)}, context {integer_text(plan.context)}"
    options = f"{sizes}, {plan.weights} weights, {plan.cache} cache"
    return "\n".join([*wrap_lines(first, ""), *wrap_lines(options, "  ")])


def _summary(plan: Plan) -> str:
    model, machine = plan.model, plan.hardware
    active = model.active_parameters
    some = "" if active == model.parameters else f", {in_words(active)} a token"
    rows = [("weights", quantity(plan.weight_bytes, "B"), f"{in_words(model.parameters)} parameters{some}")]
    if model.kind != "encoder":
        source = "source" if model.kind == "encoder-decoder" else "prompt"
        first = readable_seconds(plan.prefill_seconds)
        rows.insert(0, ("first token after", first, f"a {source} of {count_text(plan.prompt, 'token')}"))
        rows.append(("cache", quantity(plan.cache_bytes, "B"), _kept(plan)))
    if plan.cross_cache_bytes:
        rows.append(("cache of the source", quantity(plan.cross_cache_bytes, "B"), "kept by the decoder"))
    fits = "fits" if plan.fits else "does not fit"
    what = "weights" if model.kind == "encoder" else "weights and caches"
    rows.append(("memory", quantity(plan.held_bytes, "B"), f"{what} alone, of {quantity(machine.memory, 'B')}: {fits}"))
    if model.kind != "encoder":
        batch = "any batch" if plan.largest_batch is None else f"batch {integer_text(plan.largest_batch)}"
        context = "any context" if plan.largest_context is None else f"context {integer_text(plan.largest_context)}"
        beyond = plan.largest_context is not None and model.context and plan.largest_context > model.context
        trained_for = f" (trained for {integer_text(model.context)})" if beyond else ""
        rows.append(("largest that fits", batch, f"or {context}{trained_for}"))
    longest = plan.parts[plan.bottleneck]
    spent = "computing" if longest.bound == "flops" else "reading"
    rows.append(("bottleneck", plan.bottleneck, f"{longest.seconds / plan.step_seconds:.0%} of the time, {spent}"))
    bound = "flops" if plan.intensity >= plan.ridge else "bytes"
    rows.append(("intensity", quantity(plan.intensity), f"flops a byte, ridge {quantity(plan.ridge)}: {bound} decide"))
    return in_columns(rows, "<<<")


def _kept(plan: Plan) -> str:
    each, model = f"{quantity(plan.cache_bytes_per_token, 'B')} a token", plan.model
    window = f"; {model.window_layers} of {model.layers} layers keep {integer_text(model.window or 0)} at most"
    return each if model.window is None else each + window


def _parts(plan: Plan) -> str:
    title = "where the time of a token goes" if plan.seconds_per_token is not None else "where the time of a pass goes"
    rows = [("part", "time", "share", "flops", "bytes", "bound", "formula")]
    total, used = plan.step_seconds, ""
    for part in sorted(plan.parts.values(), key=lambda part: -part.seconds):
        flops, moved = quantity(part.flops), quantity(part.bytes, "B")
        share = part.seconds / total
        # Long formulas of negligible parts are left out; --json has them all.
        text = part.formula if share >= 0.001 or len(part.formula) <= SHORT_FORMULA else ""
        rows.append((part.name, readable_seconds(part.seconds), f"{share:.1%}", flops, moved, part.bound, text))
        used += text
    rows.append(("together", readable_seconds(total), "", quantity(plan.flops), quantity(plan.bytes, "B"), "", ""))
    note = "formulas of bytes are those of weights and caches; activations are added"
    legend = _legend(used, letters(plan), LETTERS)
    return "\n".join([title, in_columns(rows, "<>>>><<"), "", *legend, *wrap_lines(note, "  ")])


def _legend(used: str, values: dict[str, str], meaning: dict[str, str]) -> list[str]:
    """The letters of formulas with their values and meaning; no line breaks within one."""
    found = [
        f"{letter} = {values[letter]} {text}".replace("  ", " ") for letter, text in meaning.items() if letter in used
    ]
    return wrap_lines(", ".join(each.replace(" ", "\u00a0") for each in found), "  ")


def letters(plan: Plan) -> dict[str, str]:
    """Values of the formulas' letters for a plan."""
    model = plan.model
    item = storage_bytes(1, "float32" if plan.weights == "float32" else "bfloat16")
    sizes: dict[str, Any] = {
        "L": model.layers, "d": model.d_model, "h": model.heads, "g": model.kv_heads, "w": model.head_width,
        "v": model.value_width, "f": model.d_ff, "V": model.vocabulary, "b": plan.batch, "n": plan.context, "a": item,
        "F": model.layers - model.window_layers, "l": model.window_layers, "E": model.experts,
        "k": model.experts_active, "s": model.shared_experts, "e": model.expert_d_ff, "D": model.dense_layers,
        "S": model.layers - model.dense_layers, "j": model.norms_per_layer, "K": model.encoder_layers, "t": plan.prompt,
    }  # fmt: skip
    if model.window is not None:
        sizes["m"] = min(model.window, plan.context)
    if model.latent is not None:
        sizes |= {"r": model.latent.kv_rank, "q": model.latent.q_rank, "o": model.latent.rope_width}
    letters = {letter: integer_text(size) for letter, size in sizes.items() if size is not None}
    if model.experts:
        letters["x"] = f"{experts_used(model, plan.batch):.3g}"
    return {**letters, "p": f"{BITS[plan.weights] / 8:g}", "c": f"{BITS[plan.cache] / 8:g}"}


def _variants(plan: Plan) -> str:
    decodes = plan.seconds_per_token is not None
    rows = [("", "kv heads", "cache", "ratio", "time a token" if decodes else "time of a pass", "speed")]
    for each in plan.variants.values():
        name = f"{each.name}, as it is" if each.as_is else each.name
        kept = quantity(each.cache_bytes, "B"), "" if each.ratio is None else ratio_text(each.ratio)
        speed = readable_seconds(each.seconds_per_token), ratio_text(each.speedup)
        rows.append((name, integer_text(each.kv_heads), *kept, *speed))
    return "\n".join(["the same model with other attention", in_columns(rows, "<>>>>>")])


def _crossings(plan: Plan) -> str:
    rows = [(each.question, _where(each)) for each in plan.crossings.values()]
    reasons = dict.fromkeys(each.reason for each in plan.crossings.values() if each.at is None)
    never = [line for reason in reasons for line in wrap_lines(f"never: {reason}", "  ")]
    return "\n".join(["where lines cross", in_columns(rows, "<<"), *never])


def _where(crossing: Crossing) -> str:
    if crossing.at is None:
        return "never"
    return f"from {'n' if crossing.unit == 'tokens' else 'b'} = {integer_text(crossing.at)}"


def _sources(plan: Plan) -> str:
    machine, dtype = plan.hardware, plan.rate_dtype
    rates = f"{quantity(machine.rates[dtype], 'FLOP/s')} in {dtype}, {quantity(machine.bandwidth, 'B/s')}"
    lines = [f"machine: {machine.title or machine.name}, {rates} ({machine.source})"]
    if plan.model.source:
        lines.append(f"sizes: {plan.model.source}")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(line for text in lines for line in wrap_lines(text, "  "))


def _side_by_side(plans: Sequence[Plan]) -> str:
    rows: dict[str, Callable[[Plan], str]] = {
        "": lambda plan: plan.hardware.name,
        "time a token": lambda plan: _or_none(plan.seconds_per_token, readable_seconds),
        "tokens a second": lambda plan: rate_text(plan.tokens_per_second),
        "first token after": lambda plan: readable_seconds(plan.prefill_seconds),
        "parameters": lambda plan: in_words(plan.model.parameters),
        "weights": lambda plan: quantity(plan.weight_bytes, "B"),
        "cache": lambda plan: quantity(plan.cache_bytes, "B"),
        "cache of a token": lambda plan: quantity(plan.cache_bytes_per_token, "B"),
        "fits": lambda plan: "yes" if plan.fits else "no",
        "largest batch": lambda plan: _or_none(plan.largest_batch, integer_text, "any"),
        "largest context": lambda plan: _or_none(plan.largest_context, integer_text, "any"),
        "bottleneck": lambda plan: plan.bottleneck,
        "intensity, ridge": lambda plan: f"{quantity(plan.intensity)}, {quantity(plan.ridge)}",
    }
    table = [("", *(plan.model.name for plan in plans))]
    table += [(name, *map(shown, plans)) for name, shown in rows.items()]
    for name in dict.fromkeys(name for plan in plans for name in plan.parts):
        times = (_or_none(plan.parts.get(name), lambda part: readable_seconds(part.seconds)) for plan in plans)
        table.append((f"  {name}", *times))
    crossings = {"cache = weights": "cache_over_weights", "linear is faster": "linear_faster"}
    for name, key in {**crossings, "compute-bound": "compute_bound"}.items():
        table.append((name, *(_where(plan.crossings[key]).removeprefix("from ") for plan in plans)))
    return in_columns(table, "<" + ">" * len(plans))


def _or_none(value: Any, shown: Callable[[Any], str], otherwise: str = "-") -> str:
    return otherwise if value is None else shown(value)


def _all_notes(plans: Sequence[Plan]) -> str:
    plan = plans[0]
    first = f"batch {integer_text(plan.batch)}, {plan.weights} weights, {plan.cache} cache, context "
    contexts = dict.fromkeys(integer_text(plan.context) for plan in plans)
    notes = [first + " or ".join(contexts)]
    notes += [f"{plan.model.name} on {plan.hardware.name}: {note}" for plan in plans for note in plan.notes]
    return "\n".join(line for note in dict.fromkeys(notes) for line in wrap_lines(note, "  "))


def scaling_text(plan: Plan) -> str:
    """Times, memory and traffic by number of machines, with formulas."""
    found = plan.scaling
    assert found is not None
    link, step = found.link, -(-len(found.rows) // MAX_ROWS)
    over = (
        f"over {link.title or link.name}: {quantity(link.bandwidth, 'B/s')}, {readable_seconds(link.latency)} a message"
    )
    # Of many rows, evenly chosen ones with the first and the last.
    shown = [row for at, row in enumerate(found.rows) if at % step == 0 or row is found.rows[-1]]
    intro = [*wrap_lines(over, "  "), *wrap_lines(_answer(found.rows), "  ")]
    times = "\n".join([f"split over machines: {count_text(found.tokens, 'token')}", *intro, _times(shown)])
    tokens = _tokens(shown) if shown[0].token_seconds is not None else ""
    blocks = [times, _memory(shown), tokens, _scaling_formulas(plan, found), measured_text(read_points())]
    return "\n\n".join(filter(None, blocks))


def measured_text(points: Sequence[Point]) -> str:
    """Calls measured on ranks of this machine, each with its prediction; "" if there are none."""
    rows = [("call", "split", "ranks", "time", "predicted", "speedup", "sent")]
    for _, some in groupby(points, key=lambda point: point.sizes):
        group = list(some)
        alone = next((point.seconds for point in group if point.ranks == 1), None)
        for point in group:
            predicted = "" if point.link is None else readable_seconds(point.predicted())
            faster = "" if alone is None else f"× {alone / point.seconds:.2f}"
            split = point.split if point.ranks > 1 else ""
            options = f"{', causal' if point.causal else ''}{' + grad' if point.learns else ''}"
            name = f"{integer_text(point.tokens)} tokens{options}"
            sent = quantity(point.bytes, "B")
            rows.append((name, split, str(point.ranks), readable_seconds(point.seconds), predicted, faster, sent))
    return "\n".join(["measured on ranks of this machine", in_columns(rows, "<<>>>>>")]) if len(rows) > 1 else ""


def _answer(rows: Sequence[ScalingRow]) -> str:
    """The fastest number of machines, and the largest with an efficiency of at least a half."""
    fastest = min(rows, key=lambda row: row.seconds)
    by = f" by {fastest.best}" if fastest.machines > 1 else ""
    useful = max(row.machines for row in rows if row.efficiency >= 0.5)
    first = f"fastest on {count_text(fastest.machines, 'machine')}: {readable_seconds(fastest.seconds)}{by}"
    return f"{first}; up to {integer_text(useful)}, efficiency is at least 50%"


def _times(rows: Sequence[ScalingRow]) -> str:
    names = list(rows[0].splits)
    shown = ["linear" if name == LINEAR else name for name in names]
    table = [("machines", "tokens", *shown, "best", "efficiency")]
    for row in rows:
        cells = [_or_none(row.splits[name].seconds, readable_seconds) for name in names]
        best = row.best if row.machines > 1 else ""
        table.append((integer_text(row.machines), integer_text(row.tokens), *cells, best, percent(row.efficiency)))
    return in_columns(table, ">>" + ">" * len(names) + "<>")


def _memory(rows: Sequence[ScalingRow]) -> str:
    decodes = rows[0].token_seconds is not None
    more = ("largest context",) if decodes else ()
    table = [("machines", "memory each", "", *more, "sent a layer", "sent in all")]
    for row in rows:
        context = _or_none(row.largest_context, integer_text, "any")
        sent = quantity(row.sent_bytes_per_layer, "B"), quantity(row.sent_bytes, "B")
        fits = "fits" if row.fits else "too much"
        memory = quantity(row.memory_bytes, "B")
        table.append((integer_text(row.machines), memory, fits, *((context,) if decodes else ()), *sent))
    return in_columns(table, ">><>>" + ">" * len(more))


def _tokens(rows: Sequence[ScalingRow]) -> str:
    table = [("machines", "time a token", "sent for it")]
    for row in rows:
        assert row.token_seconds is not None
        sent = quantity(row.token_sent_bytes or 0, "B")
        table.append((integer_text(row.machines), readable_seconds(row.token_seconds), sent))
    title = "decoding from a split cache: outputs are merged, by recursive doubling from 8 machines on"
    return "\n".join([*wrap_lines(title, ""), in_columns(table, ">>>")])


def percent(share: float) -> str:
    """
    >>> percent(1.0), percent(0.876), percent(0.0042)
    ('100%', '88%', '0.42%')
    """
    return f"{share:.0%}" if share >= 0.1 else f"{float(f'{100 * share:.2g}'):g}%"


def _scaling_formulas(plan: Plan, found: Scaling) -> str:
    table = [("split", "messages", "bytes that the busiest machine sends in a layer")]
    used = ""
    for name, texts in found.formulas.items():
        sent = re.sub(r"\(.*?\)", lambda some: some[0].replace(" ", "\u00a0"), texts["sent"])
        table.append(("linear" if name == LINEAR else name, texts["messages"], sent))
        used += texts["sent"].replace("⌈log₂ R⌉", "R")
    values = {**letters(plan), "R": "", "G": "", "n": integer_text(found.tokens)}
    lines = [in_columns(table, "<<<").replace("\u00a0", " "), "", *_legend(used, values, {**LETTERS, "n": "tokens"})]
    return "\n".join([*lines, *(line for note in found.notes for line in wrap_lines(note, "  "))])
