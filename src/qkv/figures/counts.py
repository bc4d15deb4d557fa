"""Counts of a model as a figure: operations of each part over the length of the sequences, with a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.cost.architecture import Model
from qkv.cost.model_counts import model_counts
from qkv.cost.readable import count_text, integer_text, quantity
from qkv.figures.axis import Axis
from qkv.figures.chart import chart
from qkv.figures.marks import Level, Line
from qkv.figures.page import Table, page
from qkv.figures.theme import standalone

SHORTEST, LONGEST = 64, 2**20
_WORK = {"forward": "a forward pass", "decode": "a decode step", "training": "a training step"}


def picture(model: Model, found: dict[str, Any], *, html: bool) -> str:
    """The chart as the text of an .svg file, or of an HTML page with a table.

    Args:
        model: The model, with numbers as sizes.
        found: What `model_counts` gave for one length; the chart goes over lengths around it.
        html: Whether to write a page.
    """
    least, most = min(SHORTEST, found["length"]), max(LONGEST, found["length"])
    lengths = sorted({least * 2**step for step in range((most // least).bit_length())} | {found["length"], most})
    given = {"phase": found["phase"], "causal": found["pairs"] == "causal", "weights": found["weights"]}
    curves = [model_counts(model, length, found["batch"], **given) for length in lengths]
    figure = _chart(found, lengths, curves)
    if not html:
        return standalone(figure)
    return page(_title(found), [figure], [_table(lengths, curves)], _note(found))


def _chart(found: dict[str, Any], lengths: Sequence[int], curves: Sequence[dict[str, Any]]) -> str:
    names = [name for name, part in found["parts"].items() if part["products"]]
    lines = [
        Line(
            name, [(n, each["parts"][name]["products"]) for n, each in zip(lengths, curves, strict=True)], markers=False
        )
        for name in names
    ]
    total = [(n, each["products"]) for n, each in zip(lengths, curves, strict=True)]
    marks = [*lines, Line("all", total, dashed=True, markers=False)]
    here = Level(count_text(found["length"], "token"), x=found["length"])
    x_axis, y_axis = Axis("length", "tokens", "log"), Axis("operations of matrix products", "FLOP", "log")
    return chart(_title(found), x_axis, y_axis, [*marks, here], _note(found))


def _title(found: dict[str, Any]) -> str:
    return f"Operations of {_WORK[found['phase']]} over length: {found['model']}"


def _note(found: dict[str, Any]) -> str:
    pairs = "" if found["phase"] == "decode" or not found["causal"] else f", {found['pairs']} pairs"
    return f"batch {integer_text(found['batch'])}{pairs}; a multiply-add is 2 operations; counted, not measured"


def _table(lengths: Sequence[int], curves: Sequence[dict[str, Any]]) -> Table:
    names = [name for name, part in curves[-1]["parts"].items() if part["products"]]
    rows = []
    for n, each in zip(lengths, curves, strict=True):
        products = [each["parts"][name]["products"] for name in names] + [each["products"]]
        held = quantity(each["bytes"], "B"), quantity(each["cache_bytes"], "B")
        rows.append([integer_text(n), *(quantity(product, "FLOP") for product in products), *held])
    return Table("Matrix products of each part", ["length", *names, "all", "bytes moved", "cache"], rows)
