"""How a plan scales, as text: tables of at most 80 columns over machines, the formulas, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from .formulas import LETTERS
from .links import Point, read_points
from .readable import counted, in_columns, quantity, readable_seconds, whole, wrapped
from .report import letters
from .scaling import LINEAR

if TYPE_CHECKING:
    from .planning import Plan
    from .scaling import Scaling, Spreading

MOST_ROWS = 16


def scaling_text(plan: Plan) -> str:
    """What more machines bring, what a machine holds, and by which formulas."""
    found = plan.scaling
    assert found is not None
    link = found.link
    rate = f"{quantity(link.bandwidth, 'B/s')}, {readable_seconds(link.latency)} a message"
    title = f"spread over machines: {counted(found.tokens, 'token')}"
    over = f"over {link.title or link.name}: {rate}"
    shown = _chosen(found.rows)
    said = [*wrapped(over, "  "), *wrapped(_answer(found.rows), "  ")]
    blocks = ["\n".join([title, *said, _times(shown)]), _memory(shown)]
    blocks += [_tokens(shown)] if shown[0].token_seconds is not None else []
    blocks.append(_formulas(plan, found))
    measured = measured_text(read_points())
    return "\n\n".join([*blocks, *([measured] if measured else [])])


def measured_text(points: Sequence[Point]) -> str:
    """Calls that were measured on ranks of this machine, each beside its prediction; "" without any."""
    rows = [("call", "split", "ranks", "time", "predicted", "speedup", "sent")]
    for _, some in groupby(points, key=lambda point: point.sizes):
        group = list(some)
        alone = next((point.seconds for point in group if point.ranks == 1), None)
        for point in group:
            predicted = "" if point.link is None else readable_seconds(point.predicted())
            faster = "" if alone is None else f"× {alone / point.seconds:.2f}"
            split = point.split if point.ranks > 1 else ""
            name = (
                f"{whole(point.tokens)} tokens{', causal' if point.causal else ''}{' + grad' if point.learns else ''}"
            )
            sent = quantity(point.bytes, "B")
            rows.append((name, split, str(point.ranks), readable_seconds(point.seconds), predicted, faster, sent))
    return "\n".join(["measured on ranks of this machine", in_columns(rows, "<<>>>>>")]) if len(rows) > 1 else ""


def _answer(rows: Sequence[Spreading]) -> str:
    """Where it is fastest, and how far machines are worth their while."""
    fastest = min(rows, key=lambda row: row.seconds)
    by = f" by {fastest.best}" if fastest.machines > 1 else ""
    useful = max(row.machines for row in rows if row.efficiency >= 0.5)
    first = f"fastest on {counted(fastest.machines, 'machine')}: {readable_seconds(fastest.seconds)}{by}"
    return f"{first}; up to {whole(useful)}, half of each machine or more is used"


def _chosen(rows: Sequence[Spreading]) -> Sequence[Spreading]:
    """All, or where they are many every second one or so, the first and the last among them."""
    step = -(-len(rows) // MOST_ROWS)
    return [row for at, row in enumerate(rows) if at % step == 0 or row is rows[-1]]


def _times(rows: Sequence[Spreading]) -> str:
    names = list(rows[0].splits)
    shown = ["linear" if name == LINEAR else name for name in names]
    table = [("machines", "tokens", *shown, "best", "efficiency")]
    for row in rows:
        times = [row.splits[name].seconds for name in names]
        cells = ["-" if seconds is None else readable_seconds(seconds) for seconds in times]
        best = row.best if row.machines > 1 else ""
        table.append((whole(row.machines), whole(row.tokens), *cells, best, part(row.efficiency)))
    return in_columns(table, ">>" + ">" * len(names) + "<>")


def _memory(rows: Sequence[Spreading]) -> str:
    decodes = rows[0].token_seconds is not None
    more = ("largest context",) if decodes else ()
    table = [("machines", "memory each", "", *more, "sent a layer", "sent in all")]
    for row in rows:
        context = "any" if row.largest_context is None else whole(row.largest_context)
        sent = quantity(row.sent_bytes_per_layer, "B"), quantity(row.sent_bytes, "B")
        fits = "fits" if row.fits else "too much"
        held = quantity(row.memory_bytes, "B")
        table.append((whole(row.machines), held, fits, *((context,) if decodes else ()), *sent))
    return in_columns(table, ">><>>" + ">" * len(more))


def _tokens(rows: Sequence[Spreading]) -> str:
    table = [("machines", "time a token", "sent for it")]
    for row in rows:
        assert row.token_seconds is not None
        sent = quantity(row.token_sent_bytes or 0, "B")
        table.append((whole(row.machines), readable_seconds(row.token_seconds), sent))
    title = "decoding from a cache that is spread: answers are merged, by doubling from 8 machines on"
    return "\n".join([*wrapped(title, ""), in_columns(table, ">>>")])


def part(share: float) -> str:
    """
    >>> part(1.0), part(0.876), part(0.0042)
    ('100%', '88%', '0.42%')
    """
    return f"{share:.0%}" if share >= 0.1 else f"{float(f'{100 * share:.2g}'):g}%"


def _formulas(plan: Plan, found: Scaling) -> str:
    table = [("split", "messages", "bytes that the busiest machine sends in a layer")]
    used = ""
    for name, texts in found.formulas.items():
        sent = re.sub(r"\(.*?\)", lambda some: some[0].replace(" ", "\u00a0"), texts["sent"])
        table.append(("linear" if name == LINEAR else name, texts["messages"], sent))
        used += texts["sent"].replace("⌈log₂ R⌉", "R")
    values = {**letters(plan), "R": "", "G": "", "n": whole(found.tokens)}
    meaning = {**LETTERS, "n": "tokens"}
    legend = [
        f"{letter} = {values[letter]} {meaning[letter]}".replace("  ", " ") for letter in meaning if letter in used
    ]
    joined = ", ".join(each.replace(" ", "\u00a0") for each in legend)
    lines = [in_columns(table, "<<<").replace("\u00a0", " "), "", *wrapped(joined, "  ")]
    return "\n".join([*lines, *(line for note in found.notes for line in wrapped(note, "  "))])
