"""A plan for several machines: every split of the sequence over 1, 2, 4, … machines, with time, traffic and memory.

Every machine has all weights; tokens and their cache are split. Times are those of the plan's parts: scores shrink with
the busiest machine's share of them, other parts with the tokens of a machine, and communication is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, complaint
from .communication import Link, Phase, Spread, Wire, as_link, merged_step, shard_bytes, wire
from .formulas import wire_formula
from .planning import Run, first_size
from .readable import count_text
from .sizes import check_size, storage_bytes

DEFAULT_LINK = "100gbe"
SPLITS = ("ring", "gather", "heads", "scan")
LINEAR = "scan"  # the split for the same model with linear attention
MAX_MACHINES = 2**24
_ATTENTION = ("scores", "cache")


@dataclass(frozen=True)
class Split:
    """A prefill with one split.

    Attributes:
        sent_bytes, messages: of the busiest machine, over all layers.
        held_bytes: peak memory in a layer, beyond weights, cache and shard.
        reason: why this split is impossible; then the other fields are None.
    """

    seconds: float | None = None
    sent_bytes: int | None = None
    sent_bytes_per_layer: int | None = None
    messages: int | None = None
    held_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class ScalingRow:
    """A plan for `machines` machines.

    Attributes:
        tokens: of the longest shard.
        best: the fastest split that fits into memory, or the fastest of all if none fits; without linear attention.
        efficiency: time on one machine divided by machines × time on these.
        memory_bytes: of a machine: weights, its part of the cache, and what the split needs.
        largest_context: the longest context that fits; the prompt grows with it unless it was given.
        token_seconds, token_sent_bytes: a decode step with the cache split over machines.
    """

    machines: int
    tokens: int
    splits: dict[str, Split]
    best: str
    seconds: float
    efficiency: float
    sent_bytes: int
    sent_bytes_per_layer: int
    memory_bytes: int
    fits: bool
    largest_context: int | None
    token_seconds: float | None
    token_sent_bytes: int | None


@dataclass(frozen=True)
class Scaling:
    """How a plan scales. rows: by machines. formulas: bytes that a machine sends per layer, and messages, by split."""

    link: Link
    tokens: int
    rows: tuple[ScalingRow, ...]
    formulas: dict[str, dict[str, str]]
    notes: tuple[str, ...] = ()


def scaling(run: Run, context: int, machines: Any, link: Any) -> Scaling:
    """Scaling of a run; tokens are those of its prompt, or an encoder's context."""
    check_size("machines", machines, most=MAX_MACHINES)
    if run.model.kind == "encoder-decoder":
        hint = "plan the encoder and the decoder as separate models"
        raise OptionError(complaint("machines", f"{machines} for an encoder-decoder", "a decoder or an encoder", hint))
    used = as_link(DEFAULT_LINK if link is None else link)
    tokens = run.prompt if run.model.kind == "decoder" else context
    steps = [2**power for power in range(machines.bit_length()) if 2**power < machines]
    scaler = _Scaler(run, context, tokens, used)
    rows = tuple(scaler.row(count) for count in (*steps, machines))
    return Scaling(used, tokens, rows, _formulas(run), _notes(scaler, rows))


class _Scaler:
    """Computes rows from the model's parts on one machine."""

    def __init__(self, run: Run, context: int, tokens: int, link: Link) -> None:
        self.run, self.model, self.context, self.tokens, self.link = run, run.model, context, tokens, link
        self.decodes = run.model.kind == "decoder"
        self.item = storage_bytes(1, "float32" if run.weights == "float32" else "bfloat16")
        self.one_machine = {kind: run.pass_over(tokens, kind) for kind in ("softmax", "linear")}
        self.step = run.step(context) if self.decodes else None
        self.first: ScalingRow | None = None

    def row(self, machines: int) -> ScalingRow:
        run, ranks = self.run, min(machines, self.tokens)
        splits = {name: self._split(name, ranks) for name in SPLITS}
        good = {name: split.seconds for name, split in splits.items() if split.seconds is not None and name != LINEAR}
        own = {name: self._memory(name, machines, self.context, self.tokens) for name in good}
        fitting = {name: seconds for name, seconds in good.items() if own[name] <= run.hardware.memory}
        best = min(fitting or good, key=lambda name: good[name])
        seconds, chosen = good[best], splits[best]
        one_machine = seconds if self.first is None else self.first.seconds
        token_seconds, token_sent_bytes = self._token(machines)
        found = ScalingRow(
            machines=machines,
            tokens=-(-self.tokens // machines),
            splits=splits,
            best=best,
            seconds=seconds,
            efficiency=one_machine / (machines * seconds),
            sent_bytes=chosen.sent_bytes or 0,
            sent_bytes_per_layer=chosen.sent_bytes_per_layer or 0,
            memory_bytes=own[best],
            fits=bool(fitting),
            largest_context=self._largest(machines),
            token_seconds=token_seconds,
            token_sent_bytes=token_sent_bytes,
        )
        self.first = self.first or found
        return found

    def _largest(self, machines: int) -> int | None:
        """The longest context that fits; None if every context does."""
        if not self.decodes:
            return None
        # Memory grows with the context, except where every machine first has a token, and where the context first
        # exceeds the window.
        start = max((size for size in (machines, (self.model.window or 0) + 1) if self.fits(machines, size)), default=1)
        found = first_size(lambda size: not self.fits(machines, size), start)
        return None if found is None else found - 1

    def fits(self, machines: int, context: int) -> bool:
        """Whether any split fits, without linear attention. A prompt as long as the context grows with it."""
        tokens = context if self.tokens == self.context else self.tokens
        names = [name for name in SPLITS if name != LINEAR and not self._reason(name, min(machines, tokens))]
        return any(self._memory(name, machines, context, tokens) <= self.run.hardware.memory for name in names)

    def _memory(self, name: str, machines: int, context: int, tokens: int) -> int:
        """Bytes of a machine: weights, its part of the cache, and what the split needs."""
        run = self.run
        cache = -(-self.model.cache_bytes(context, run.batch, run.cache) // machines)
        return run.weight_bytes + cache + self._split_bytes(name, min(machines, tokens), tokens)

    def _split_bytes(self, name: str, ranks: int, tokens: int) -> int:
        """Peak bytes of a layer beyond the shard itself."""
        if ranks == 1:
            return 0
        spreads = [self._spread(ranks, window, tokens) for _, window in self._windows(name, tokens)]
        return max(wire(name, each).peak_bytes for each in spreads) - math.floor(shard_bytes(spreads[0]))

    def _split(self, name: str, ranks: int) -> Split:
        if reason := self._reason(name, ranks):
            return Split(reason=reason)
        similarity = "linear" if name == LINEAR else "softmax"
        parts, shorter = self.one_machine[similarity], self.run.pass_over(-(-self.tokens // ranks), similarity)
        other = sum(part.seconds for key, part in shorter.items() if key not in _ATTENTION)
        other += parts["cache"].seconds / ranks if "cache" in parts else 0.0
        layers = self._layers(name, ranks)
        # The plan's time for scores includes more than products, and may be bound by memory: it gives the rate.
        products = sum(count * one.flops for count, _, one in layers)
        rate = products / parts["scores"].seconds
        link = self.link.bandwidth, self.link.latency
        seconds = other + sum(count * each.forward.seconds(*link, rate) for count, each, _ in layers)
        sent = sum(count * each.sent for count, each, _ in layers)
        messages = sum(count * each.messages for count, each, _ in layers)
        needed = self._split_bytes(name, ranks, self.tokens)
        return Split(seconds, sent, max(each.sent for _, each, _ in layers), messages, needed)

    def _layers(self, name: str, ranks: int) -> list[tuple[int, Wire, Wire]]:
        """(number of layers, cost of one on `ranks` ranks, cost on one rank): with a window, and without."""

        def cost(some: int, window: int | None) -> Wire:
            return wire(name, self._spread(some, window, self.tokens))

        return [(count, cost(ranks, kept), cost(1, kept)) for count, kept in self._windows(name, self.tokens)]

    def _windows(self, name: str, tokens: int) -> list[tuple[int, int | None]]:
        """(number of layers, their window)."""
        model = self.model
        windowed = 0 if name == LINEAR or model.window is None or tokens <= model.window else model.window_layers
        kinds = (model.layers - windowed, None), (windowed, model.window)
        return [(count, window) for count, window in kinds if count]

    def _spread(self, ranks: int, window: int | None, tokens: int) -> Spread:
        model = self.model
        heads = {"heads": model.heads, "kv_heads": model.kv_heads, "width": model.head_width}
        sizes = {"batch": self.run.batch, **heads, "value_width": model.value_width, "features": model.head_width}
        window = window if self.decodes else None
        return Spread(**sizes, tokens=tokens, ranks=ranks, item=self.item, causal=self.decodes, window=window)

    def _reason(self, name: str, ranks: int) -> str:
        heads, kv_heads = self.model.heads, self.model.kv_heads
        if name != "heads" or (heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)):
            return ""
        return f"{heads} query and {kv_heads} key/value heads do not divide evenly over {ranks} machines"

    def _token(self, machines: int) -> tuple[float, int] | tuple[None, None]:
        if self.step is None:
            return None, None
        split = sum(part.seconds for name, part in self.step.items() if name in _ATTENTION) / machines
        other = sum(part.seconds for name, part in self.step.items() if name not in _ATTENTION)
        model = self.model
        sent, messages = merged_step(self.run.batch, model.heads, model.value_width, machines)
        merging = Phase(0, 0, sent, messages, 0).seconds(self.link.bandwidth, self.link.latency, 1.0)
        return split + other + model.layers * merging, model.layers * sent


def _formulas(run: Run) -> dict[str, dict[str, str]]:
    kind = "full" if run.model.kind == "encoder" else "causal"
    found = {name: wire_formula(name, kind)._asdict() for name in SPLITS}
    if run.model.window is not None and kind == "causal":
        found |= {f"{name}, window": wire_formula(name, "window")._asdict() for name in ("ring", "gather")}
    return found


def _notes(scaler: _Scaler, rows: tuple[ScalingRow, ...]) -> tuple[str, ...]:
    run, tokens = scaler.run, scaler.tokens
    found = ["every machine has all weights; tokens and their cache are split"]
    if rows[-1].machines > tokens:
        found.append(f"{count_text(tokens, 'token')}: more machines than tokens have no work")
    if run.model.latent is not None:
        found.append("keys and values are sent per head, not as latent vectors")
    if not any(row.fits for row in rows):
        found.append(f"it fits on none of these numbers of machines{_remedy(scaler)}")
    return tuple(found)


def _remedy(scaler: _Scaler) -> str:
    if scaler.run.weight_bytes > scaler.run.hardware.memory:
        return ": weights would have to be split too"
    if scaler.fits(MAX_MACHINES, scaler.context):
        return ": use more machines"
    return ", nor on more: one token of each sequence does not fit"
