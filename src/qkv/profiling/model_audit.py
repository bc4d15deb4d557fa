"""`audit`: counts of other tools for the same model, next to qkv's, with the causes of the differences.

Tools that count the operations of a torch module are run on modules built from the model's sizes; LLM-Viewer's formulas
are computed. A cause is named only if it explains the difference exactly; the rest is reported as unexplained.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..cost.architecture import Model, as_model
from ..cost.blocks import model_cost, parts
from ..cost.ledger import Ledger
from ..cost.readable import WIDE, integer_text, quantity
from ..cost.sizes import check_size
from .audit_modules import TOOLS, Shape, Tool, part_modules, without_warnings

VIEWER = "LLM-Viewer's formulas"
NOT_INSTALLED = "not installed; run make bench to install it"
MAX_ELEMENTS = 2**60  # of a tensor; its bytes fit into 63 bits

__all__ = ["Audit", "Cause", "Row", "audit"]


@dataclass(frozen=True)
class Audit:
    """The result of `audit`: one row per tool, stage and quantity, what was run, missing tools, and notes."""

    model: Model
    context: int
    batch: int
    rows: tuple[Row, ...]
    ran: str
    missing: dict[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The audit as JSON values; sizes in bytes."""
        return {**vars(self), "model": self.model.name, "rows": [row.as_dict() for row in self.rows]}

    def __str__(self) -> str:
        sizes = f"context {integer_text(self.context)}, batch {integer_text(self.batch)}"
        lines = [*_wrap(f"{self.model.name}, {sizes}: counts of other tools", 0), *_wrap(self.ran, 2)]
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
            lines += _wrap(row.sentence, 6)
        lines.append("")
        for note in (*(f"{tool}: {why}" for tool, why in self.missing.items()), *self.notes):
            lines += _wrap(note, 2)
        return "\n".join(lines)


def audit(model: Model | str | Path, *, context: int | None = None, batch: int = 1) -> Audit:
    """Compare qkv's counts of a model with calflops, fvcore, torch's FlopCounterMode and LLM-Viewer's formulas.

    Args:
        model: A `qkv.cost.Model`, the name of a preset, or the path of a config.json.
        context: Tokens of the prompt, and tokens that a decoded token attends to, itself included. If None, the model's
            context, at most 8192.
        batch: Number of sequences.

    Returns:
        An `Audit`.

    Raises:
        OptionError: A size of the model is a symbol, or an argument is invalid.

    >>> found = audit("gpt-2", context=1024)
    >>> [row.sentence for row in found.rows if "stored" in row.quantity][0]
    'assumes an output of queries × keys, not queries × head width (+15 times), writes the output twice (+16 times).'
    """
    model = as_model(model)
    model.check_numbers("the tools run the model")
    context = model.default_context if context is None else context
    check_size("context", context)
    check_size("batch", batch)
    requested = (context, batch)
    context, batch = _fit_sizes(model, context, batch)
    stages = ["forward pass"] if model.kind == "encoder" else ["prefill", "decode"] if context > 1 else ["prefill"]
    missing = {tool.name: NOT_INSTALLED for tool in TOOLS if not tool.is_installed}
    rows: list[Row] = []
    for stage in stages:
        known = count_stage(model, stage, batch, context)
        for tool in TOOLS:
            if tool.name in missing:
                continue
            try:
                rows += _tool_rows(tool, model, known)
            except Exception as error:  # a tool that fails with this torch must not hide the others
                missing[tool.name] = f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        if model.kind != "encoder-decoder":
            rows += _viewer_rows(model, known, context)
    ran = _what_ran(model, context, batch, requested)
    return Audit(model, context, batch, tuple(rows), ran, missing, _notes(model))


def _tool_rows(tool: Tool, model: Model, known: StageCount) -> Iterator[Row]:
    """The tool's count of each part of the model."""
    found = dict.fromkeys(known.parts, 0)
    with without_warnings():
        with tool.where():
            built = part_modules(model, Shape(known.batch, known.new, known.past, known.absorbed))
        for piece in built:
            found[piece.part] += piece.times * tool.count(piece.module, piece.inputs)
    yield from _flops_rows(tool.label, known, found)


def _viewer_rows(model: Model, known: StageCount, context: int) -> Iterator[Row]:
    theirs = viewer_count(model, known.batch, context, known.stage)
    yield from _flops_rows(VIEWER, known, {**dict.fromkeys(known.parts, 0), **theirs.flops})
    bytes_rows = [("bytes held by the cache", known.cached, theirs.cache_held)]
    if known.stage == "decode":
        bytes_rows = [("bytes read from the cache, flash", known.read, theirs.cache_read)]
    bytes_rows.append(("bytes stored by flash attention", known.stored, theirs.flash_stored))
    for what, part, count in bytes_rows:
        yield Row(VIEWER, known.stage, what, count, part.total, tuple(byte_causes(part, count)))


def _flops_rows(tool: str, known: StageCount, found: dict[str, int]) -> Iterator[Row]:
    causes = {name: flop_causes(known.parts[name], count) for name, count in found.items()}
    attention = known.parts["scores"]
    yield Row(tool, known.stage, "flops of attention", found["scores"], attention.total, tuple(causes["scores"]))
    every = merge_causes(cause for part in causes.values() for cause in part)
    yield Row(tool, known.stage, "flops of the model", sum(found.values()), known.ledger.flops, every)


def _fit_sizes(model: Model, context: int, batch: int) -> tuple[int, int]:
    """Halve context or batch until all tensors can be addressed with 64 bits."""
    wide = max(model.d_model, model.d_ff, model.heads * model.head_width, model.expert_d_ff * model.shared_experts)
    while batch * context * max(wide, model.heads * context) > MAX_ELEMENTS:
        context, batch = (context // 2, batch) if context >= batch else (context, batch // 2)
    return context, batch


def _what_ran(model: Model, context: int, batch: int, requested: tuple[int, int]) -> str:
    text = "Each part was counted once, on tensors without data, and multiplied by its number in the model."
    if model.kind != "encoder":
        text += " Logits are counted for one token of each sequence."
    if model.experts:
        text += f" Each token goes to {model.experts_active} of {model.experts} experts."
    if requested != (context, batch):
        sizes = f"context {integer_text(requested[0])} and batch {integer_text(requested[1])}"
        text += f" The requested {sizes} were reduced: their tensors would be too large."
    return text


def _notes(model: Model) -> tuple[str, ...]:
    notes = ["calflops, fvcore and FlopCounterMode count no bytes."]
    if model.kind == "encoder-decoder":
        notes.append(f"{VIEWER} are left out: they are for decoders only.")
    elif model.latent is not None:
        notes.append(f"{VIEWER} do not support latent attention; they use d_model, heads and kv_heads.")
    return tuple(notes)


def _wrap(text: str, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(text, WIDE, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


ONE_FLOP = "counts a multiply-add as one flop"
NO_ELEMENTWISE = "does not count elementwise operations"
MAX_ELEMENTWISE_FLOPS = 24  # per element, that a tool may count
SHOWN_SHARE = 0.0005  # of qkv's count; smaller causes are added up


@dataclass(frozen=True)
class Cause:
    """A cause of a difference, and the amount that it adds to qkv's count."""

    text: str
    amount: int


@dataclass(frozen=True)
class PartCount:
    """The count of a part of a model, and the other counts that a tool may have.

    readings: Known errors of tools and the products after each of them, cumulative. numbers: What elementwise
    operations may be counted for, and how many there are.
    """

    name: str
    products: int
    elementwise: int = 0
    readings: tuple[tuple[str, int], ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return self.products + self.elementwise


def flop_causes(part: PartCount, theirs: int) -> list[Cause]:
    """The known causes that lead exactly from qkv's count to theirs, or none.

    >>> scores = PartCount("SDPA", products=60, elementwise=7, readings=(("counts masked scores", 100),))
    >>> [cause.amount for cause in flop_causes(scores, 50)], flop_causes(scores, 51)
    ([40, -50, -7], [])
    """
    if theirs == part.total:
        return []
    if theirs == 0:
        return [Cause(f"does not count {part.name}" if part.products else NO_ELEMENTWISE, -part.total)]
    for steps, products in _misreadings(part):
        for halved in (False, True):
            if halved and products % 2:
                continue
            counted = products // 2 if halved else products
            elementwise = _elementwise_causes(part, theirs - counted)
            if elementwise is not None:
                one_flop = [Cause(ONE_FLOP, counted - products)] if halved and products else []
                return [*steps, *one_flop, *elementwise]
    return []


def byte_causes(part: PartCount, theirs: int) -> list[Cause]:
    """The same for bytes: the readings that lead exactly to theirs, or none.

    >>> [cause.text for cause in byte_causes(PartCount("the cache", 6, readings=(("a", 8), ("b", 9))), 8)]
    ['a']
    """
    return next((steps for steps, reached in _misreadings(part) if reached == theirs), [])


def _misreadings(part: PartCount) -> Iterator[tuple[list[Cause], int]]:
    steps, products = [], part.products
    yield [], products
    for text, other in part.readings:
        if other != products:
            steps = [*steps, Cause(text, other - products)]
            products = other
            yield steps, products


def _elementwise_causes(part: PartCount, rest: int) -> list[Cause] | None:
    """The causes of a rest of `rest` elementwise flops; None if they are unknown."""
    if rest == part.elementwise:
        return []
    if rest == 0:
        return [Cause(NO_ELEMENTWISE, -part.elementwise)]
    for thing, count in part.numbers:
        if count and rest > 0 and rest % count == 0 and rest // count <= MAX_ELEMENTWISE_FLOPS:
            each = rest // count
            text = f"counts {each} flop{'s' * (each > 1)} for each {thing}, qkv {part.elementwise / count:.3g}"
            return [Cause(text, rest - part.elementwise)]
    return None


@dataclass(frozen=True)
class Row:
    """One quantity: the counts of a tool and of qkv, and the causes of their difference."""

    tool: str
    stage: str
    quantity: str
    theirs: int
    ours: int
    causes: tuple[Cause, ...] = ()

    @property
    def ratio(self) -> float | None:
        """theirs / ours; None if ours is 0."""
        return self.theirs / self.ours if self.ours else None

    @property
    def unexplained(self) -> int:
        """The part of the difference that the causes do not explain."""
        return self.theirs - self.ours - sum(cause.amount for cause in self.causes)

    @property
    def sentence(self) -> str:
        """The causes as text, each with its share.

        >>> Row("t", "prefill", "flops", 50, 67, (Cause("does not count SDPA", -20), Cause("adds", 3))).sentence
        'does not count SDPA (-29.9%), adds (+4.48%).'
        """
        if self.theirs == self.ours and not self.causes:
            return "the same number."
        large = [cause for i, cause in enumerate(self.causes) if i < 2 or abs(cause.amount) >= SHOWN_SHARE * self.ours]
        small = [cause for cause in self.causes if cause not in large]
        if len(small) == 1:
            large, small = [*large, *small], []
        texts = [f"{cause.text} ({self._percent(cause.amount)})" for cause in large]
        if small:
            texts.append(f"{len(small)} smaller causes ({self._percent(sum(c.amount for c in small))} together)")
        if self.unexplained:
            texts.append(f"unexplained: {self._percent(self.unexplained)}")
        return ", ".join(texts) + "."

    def _percent(self, amount: int) -> str:
        if not self.ours:
            return f"{amount:+,}"
        share = 100 * amount / self.ours
        if abs(share) >= 1000:
            return f"{amount / self.ours:+,.0f} times"
        return f"{share:+.3g}%" if abs(share) >= 0.001 else f"{'-' if share < 0 else '+'}0.00%"

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["qkv"] = found.pop("ours")
        return found | {"ratio": self.ratio, "unexplained": self.unexplained, "sentence": self.sentence}


def merge_causes(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Add up causes with the same text, largest first, without those that cancel.

    >>> merge_causes([Cause("a", 2), Cause("b", 3), Cause("a", 5), Cause("c", 1), Cause("c", -1)])
    (Cause(text='a', amount=7), Cause(text='b', amount=3))
    """
    amounts: dict[str, int] = {}
    for cause in causes:
        amounts[cause.text] = amounts.get(cause.text, 0) + cause.amount
    found = (Cause(text, amount) for text, amount in amounts.items() if amount)
    return tuple(sorted(found, key=lambda cause: -abs(cause.amount)))


ITEM = 2  # bytes per element of weights, cache and activations
WINDOW = "ignores the window"
CAUSAL = "counts scores that the causal mask excludes"
HEADS = "assumes heads of width d_model / heads"
LATENT = "assumes heads of width d_model / heads instead of latent attention"
EXPERTS = "assumes one network of width d_ff instead of the experts"
NO_LOGITS = "counts logits, which an encoder does not have"
NO_CACHE = "counts a cache, which an encoder does not need"
QUERY_HEADS = "counts query heads instead of key/value heads (ignores GQA)"
KEYS_ONLY = "counts keys but not values"
SQUARE = "assumes an output of queries × keys, not queries × head width"
TWICE = "writes the output twice"


@dataclass(frozen=True)
class StageCount:
    """qkv's count of one stage of a model, by part, with the other counts that tools may have."""

    stage: str
    batch: int
    new: int
    past: int
    ledger: Ledger
    parts: dict[str, PartCount]
    cached: PartCount
    read: PartCount
    stored: PartCount

    @property
    def absorbed(self) -> bool:
        """Whether latent attention runs in the latent space, which is cheaper in decoding."""
        return any(line.name == "projections: queries into the latent space" for line in self.ledger.lines)


def count_stage(model: Model, stage: str, batch: int, context: int) -> StageCount:
    """Count a prompt ("prefill"), or one token ("decode"), the last of the context."""
    new, past = (1, context - 1) if stage == "decode" else (context, 0)
    ledger = model_cost(model, batch, new, past, logit_tokens=1, item=ITEM)
    found = parts(ledger)
    everywhere = replace(model, window=None, window_layers=0)
    unwindowed = parts(model_cost(everywhere, batch, new, past, item=ITEM))["scores"].products
    theirs, narrow = viewer_count(model, batch, context, stage, ITEM), HEADS if model.latent is None else LATENT
    masked = unwindowed + _masked_flops(model, batch, new, ledger)
    readings = {
        "projections": [(narrow, theirs.products["projections"])],
        "scores": [(WINDOW, unwindowed), (CAUSAL, masked), (narrow, theirs.products["scores"])],
        "feed-forward": [(EXPERTS, theirs.products["feed-forward"])],
        "logits": [(NO_LOGITS, 2 * theirs.products["logits"])],
    }
    numbers = _elementwise_counts(model, batch, new, past, batch * model.heads * new * context * model.layers)
    items = {}
    for name in {**found, **theirs.flops}:
        part, shown = found.get(name, Ledger(name, ())), "SDPA" if name == "scores" else name
        more = tuple(readings.get(name, ())), numbers.get(name, ())
        items[name] = PartCount(shown, part.products, part.elementwise, *more)
    cached = model.cache_bytes(context, batch, ITEM)
    window = WINDOW, everywhere.cache_bytes(context, batch, ITEM)
    first = NO_CACHE if model.kind == "encoder" else narrow
    held, read, stored = theirs.cache_held, theirs.cache_read, theirs.flash_stored
    reads = window, (narrow, held), (QUERY_HEADS, 2 * read), (KEYS_ONLY, read)
    return StageCount(
        stage, batch, new, past, ledger, items,
        PartCount("the cache", cached, 0, (window, (first, held))),
        PartCount("the cache", cached, 0, reads),
        PartCount("the outputs", found["scores"].written, 0, ((SQUARE, stored // 2), (TWICE, stored))),
    )  # fmt: skip


def _masked_flops(model: Model, batch: int, new: int, ledger: Ledger) -> int:
    """Flops of products above the diagonal."""
    if model.kind == "encoder":
        return 0
    wide = model.head_width + model.value_width
    if model.latent is not None and any("latent space" in line.name for line in ledger.lines):
        wide = 2 * model.latent.kv_rank + model.latent.rope_width
    return model.layers * model.heads * 2 * wide * batch * (new * (new - 1) // 2)


def _elementwise_counts(
    model: Model, batch: int, new: int, past: int, cells: int
) -> dict[str, tuple[tuple[str, int], ...]]:
    """For each part, what elementwise operations may be counted for, and how many there are."""
    tokens, d, encoder = batch * new, model.d_model, model.encoder_layers if past == 0 else 0
    sparse = model.layers - model.dense_layers if model.experts else 0
    dense = (model.layers - sparse + encoder) * model.d_ff
    activations = tokens * (dense + sparse * (model.experts_active + model.shared_experts) * model.expert_d_ff)
    routed = activations + tokens * sparse * model.experts
    cross = model.layers * (model.kind == "encoder-decoder")
    scaled = (model.layers + encoder) * model.norms_per_layer + cross + model.final_norm * (1 + (encoder > 0))
    passed = tokens * d * model.layers
    return {
        "scores": (("score", cells),),
        "feed-forward": (
            ("element of an activation", activations),
            ("element of an activation or of the router", routed),
            ("of d_model, not d_ff, elements of an activation", passed),
        ),
        "norms": (("normalised element", tokens * d * scaled), ("element of a layer's norms and sums", passed)),
        "embedding": (("normalised element", tokens * d * (1 + (encoder > 0))),),
    }


SOFTMAX_FLOPS = 5  # largest, subtract, exp, sum, divide
NORM_FLOPS = 7
ACTIVATION_FLOPS = 2


@dataclass(frozen=True)
class ViewerCount:
    """LLM-Viewer's flops by part of the model, products and others, and its bytes."""

    products: dict[str, int]
    elementwise: dict[str, int]
    cache_held: int
    cache_read: int
    flash_stored: int

    @property
    def flops(self) -> dict[str, int]:
        parts = {**self.products, **self.elementwise}
        return {part: self.products.get(part, 0) + self.elementwise.get(part, 0) for part in parts}


def viewer_count(model: Model, batch: int, context: int, stage: str, item: int = 2) -> ViewerCount:
    """LLM-Viewer's counts for a prompt of `context` tokens or, for "decode", for one token after `context` tokens.

    LLM-Viewer uses d_model, heads, kv_heads, d_ff, layers and the vocabulary: a head is d_model / heads wide, every
    layer attends to every key, causal or not, experts are one network, and logits are for one token of each sequence.

    >>> from qkv.cost.architecture import Model
    >>> llama = Model(layers=32, d_model=4096, heads=32, d_ff=11008)
    >>> viewer_count(llama, 1, 4096, "prefill").flash_stored // 32  # per layer; the output has 33554432 bytes
    2147483648
    """
    d, heads, layers = model.d_model, model.heads, model.layers
    tokens, queries = (batch, 1) if stage == "decode" else (batch * context, context)
    width, keys = d // heads, d * model.kv_heads // heads  # elements of a head, and of a token's keys
    scores = layers * batch * heads * queries * context
    products = {
        "projections": layers * 2 * tokens * d * (2 * d + 2 * keys),
        "scores": 4 * scores * width,
        "feed-forward": layers * 2 * tokens * (3 if model.gated else 2) * d * model.d_ff,
        # LLM-Viewer counts a multiply-add as one flop here, and as two elsewhere.
        "logits": batch * d * model.vocabulary,
    }
    elementwise = {
        "scores": SOFTMAX_FLOPS * scores,
        "feed-forward": layers * ACTIVATION_FLOPS * tokens * d,
        "norms": layers * 2 * (NORM_FLOPS + 1) * tokens * d,  # two norms, two sums
    }
    return ViewerCount(
        products,
        elementwise,
        cache_held=layers * item * 2 * batch * context * keys,
        # Keys of all query heads, where flash attention reads keys and values of the key/value heads.
        cache_read=layers * item * batch * context * width * heads,
        # The output is assumed to be as large as the scores, and to be written twice.
        flash_stored=2 * item * scores,
    )
