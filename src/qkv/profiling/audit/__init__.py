"""What other tools say of the same model: their number beside qkv's, and the reason for the difference.

Tools that count what a torch module does are run, on modules built from the model's sizes; LLM-Viewer's formulas are
computed. A reason is given only where it accounts for the difference to the last flop or byte; what is left over is
called unexplained.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ...cost.architecture import Model
from ...cost.formats import check_size, is_symbol
from ...cost.models import as_model
from ...cost.readable import WIDE, quantity, whole
from ...errors import OptionError, complaint
from .causes import Cause, Row, causes_of, merged, steps_to
from .modules import Shape
from .pieces import pieces, whole_layer
from .readings import Reading, reading
from .tools import TOOLS, Tool, quietly
from .viewer import viewed

USUAL_CONTEXT = 8192
VIEWER = "LLM-Viewer's formulas"
NOT_INSTALLED = "not installed: make bench installs it"
LARGEST_TENSOR = 2**60  # numbers; its bytes fit into 63 bits

__all__ = ["Audit", "Cause", "Row", "audit"]


@dataclass(frozen=True)
class Audit:
    """Rows, one for each tool, stage and quantity; what was run; the tools that could not be; and what else to know."""

    model: Model
    context: int
    batch: int
    rows: tuple[Row, ...]
    ran: str
    missing: dict[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Integers and text, ready for JSON; bytes are bytes."""
        return {
            "model": self.model.name,
            "context": self.context,
            "batch": self.batch,
            "ran": self.ran,
            "rows": [row.as_dict() for row in self.rows],
            "missing": dict(self.missing),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        sizes = f"context {whole(self.context)}, batch {whole(self.batch)}"
        lines = [*_told(f"{self.model.name}, {sizes}: as others count it", 0), *_told(self.ran, 2)]
        stage = tool = ""
        for row in self.rows:
            if row.stage != stage:
                stage, tool = row.stage, ""
                lines += ["", f"{stage:<44}{'theirs':>12}{'qkv':>12}{'ratio':>12}"]
            if row.tool != tool:
                tool = row.tool
                lines.append(f"  {tool}")
            unit = "B" if row.quantity.startswith("bytes") else ""
            ratio = "-" if row.ratio is None else quantity(row.ratio)
            lines.append(
                f"    {row.quantity:<40}{quantity(row.theirs, unit):>12}{quantity(row.ours, unit):>12}{ratio:>12}"
            )
            lines += _told(row.sentence, 6)
        lines.append("")
        for note in (*(f"{tool}: {why}" for tool, why in self.missing.items()), *self.notes):
            lines += _told(note, 2)
        return "\n".join(lines)


def audit(model: Any, *, context: int | None = None, batch: int = 1) -> Audit:
    """The same model through calflops, fvcore, torch's FlopCounterMode and LLM-Viewer's formulas.

    model: a `qkv.cost.Model`, the name of a preset, or the path of a config.json. context: tokens of the prompt, and
    those that the decoded token sees, itself included.

    >>> found = audit("gpt-2", context=1024)
    >>> [row.sentence for row in found.rows if "stored" in row.quantity][0]
    'takes the answer for queries × keys, not queries × head width (+15 times), writes the answer twice (+16 times).'
    """
    model = as_model(model)
    symbols = [field.name for field in fields(model) if is_symbol(getattr(model, field.name))]
    if symbols:
        given = f"symbols for {', '.join(symbols)}"
        raise OptionError(complaint("model", given, "numbers for all sizes", "tools count what runs"))
    if context is None:
        context = min(USUAL_CONTEXT, model.context or USUAL_CONTEXT)
    check_size("context", context)
    check_size("batch", batch)
    asked = (context, batch)
    context, batch = _fitting(model, context, batch)
    stages = ["forward pass"] if model.kind == "encoder" else ["prefill", "decode"] if context > 1 else ["prefill"]
    missing = {tool.name: NOT_INSTALLED for tool in TOOLS if not tool.is_installed}
    rows: list[Row] = []
    for stage in stages:
        known = reading(model, stage, batch, context)
        for tool in TOOLS:
            if tool.name in missing:
                continue
            try:
                rows += _rows(tool, model, known)
            except Exception as error:  # a tool that this torch is too new for is no reason to hide the others
                missing[tool.name] = f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        if model.kind != "encoder-decoder":
            rows += _viewer_rows(model, known, context)
    return Audit(model, context, batch, tuple(rows), _ran(model, context, batch, asked), missing, _notes(model))


def _rows(tool: Tool, model: Model, known: Reading) -> Iterator[Row]:
    """Each part of the model is run alone, which tells what the tool makes of it; a layer as a whole is their sum."""
    shape = Shape(known.batch, known.new, known.past, known.absorbed)
    with quietly():
        with tool.where():
            built, (layer, inputs) = pieces(model, shape), whole_layer(model, shape)
        counted = [tool.count(piece.module, piece.inputs) for piece in built]
        whole = tool.count(layer, inputs)
    found = dict.fromkeys(known.parts, 0)
    for piece, count in zip(built, counted, strict=True):
        found[piece.part] += piece.times * count
    beside = whole - sum(piece.in_layer * count for piece, count in zip(built, counted, strict=True))
    yield from _flops_rows(tool.label, known, found, model.layers * beside)


def _viewer_rows(model: Model, known: Reading, context: int) -> Iterator[Row]:
    theirs = viewed(model, known.batch, context, known.stage)
    yield from _flops_rows(VIEWER, known, {**dict.fromkeys(known.parts, 0), **theirs.flops}, 0)
    bytes_rows = [("bytes held by the cache", known.held, theirs.cache_held)]
    if known.stage == "decode":
        bytes_rows = [("bytes read from the cache, flash", known.read, theirs.cache_read)]
    bytes_rows.append(("bytes stored by flash attention", known.stored, theirs.flash_stored))
    for what, part, count in bytes_rows:
        yield Row(VIEWER, known.stage, what, count, part.total, tuple(steps_to(part, count)))


def _flops_rows(tool: str, known: Reading, found: dict[str, int], beside: int) -> Iterator[Row]:
    causes = {name: causes_of(known.parts[name], count) for name, count in found.items()}
    attention = known.parts["scores"]
    yield Row(tool, known.stage, "flops of attention", found["scores"], attention.total, tuple(causes["scores"]))
    every = merged(cause for part in causes.values() for cause in part)
    total = sum(found.values()) + beside
    yield Row(tool, known.stage, "flops of the model", total, known.ledger.flops, every)


def _fitting(model: Model, context: int, batch: int) -> tuple[int, int]:
    """The largest halves of halves whose tensors a 64-bit machine can address."""
    wide = max(model.d_model, model.d_ff, model.heads * model.head_width, model.expert_d_ff * model.shared_experts)
    while batch * context * max(wide, model.heads * context) > LARGEST_TENSOR:
        context, batch = (context // 2, batch) if context >= batch else (context, batch // 2)
    return context, batch


def _ran(model: Model, context: int, batch: int, asked: tuple[int, int]) -> str:
    layers = f"One layer of {model.layers}" if model.layers > 1 else "The one layer"
    told = f"{layers} was counted whole and in parts, on tensors that have a shape and no cache, and multiplied by how "
    told += "often the model has it."
    if model.kind != "encoder":
        told += " Logits are made for one token of each sequence."
    if model.experts:
        told += (
            f" Of the experts, {model.experts_active} read every token: the work of {model.experts} that share them."
        )
    if asked != (context, batch):
        told += f" Asked for were context {whole(asked[0])} and batch {whole(asked[1])}: no tensor can be that large."
    return told


def _notes(model: Model) -> tuple[str, ...]:
    notes = ["calflops, fvcore and FlopCounterMode count no bytes."]
    if model.kind == "encoder-decoder":
        notes.append(f"{VIEWER} are left out: they know a decoder alone.")
    elif model.latent is not None:
        notes.append(f"{VIEWER} know no latent attention: they are given d_model, heads and kv_heads.")
    return tuple(notes)


def _told(text: str, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(text, WIDE, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
