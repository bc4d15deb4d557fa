"""A plan over many machines, on paper: every split of the sequence at 1, 2, 4, … machines, what travels, what fits.

Weights are whole on every machine; tokens and their cache are spread. Times are the plan's own parts: those of a token
shrink with the tokens of a machine, scores with the busiest machine's share of them, and what travels comes on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from .communication import Link, Phase, Spread, Wire, as_link, merged_step, shard_bytes, wire
from .formulas import wire_formula
from .planning import Run, first_size
from .readable import count_text, integer_text
from .sizes import storage_bytes

DEFAULT_LINK = "100gbe"
SPLITS = ("ring", "gather", "heads", "scan")
LINEAR = "scan"  # of the same model with linear attention
MAX_MACHINES = 2**24
_ATTENTION = ("scores", "cache")


@dataclass(frozen=True)
class Split:
    """A prefill, split so. sent_bytes, messages: of the busiest machine, over all layers. held_bytes: beside its
    weights, cache and shard, at the worst moment of a layer. reason: why it cannot be; then the rest is None."""

    seconds: float | None
    sent_bytes: int | None
    sent_bytes_per_layer: int | None
    messages: int | None
    held_bytes: int | None
    reason: str = ""


@dataclass(frozen=True)
class ScalingRow:
    """On so many machines. tokens: of the longest shard. best: the fastest split of the model as it is that fits, or of
    all if none does. efficiency: time on one machine, divided by machines × time on these. memory_bytes: of a machine:
    weights, its part of the cache, and what the split holds. largest_context: the longest that fits by the same count;
    the prompt is as long, unless it was given. token_*: a step of decoding from a spread cache."""

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
    """rows: by machines. formulas: bytes that a machine sends in a layer, and messages, for each split."""

    link: Link
    tokens: int
    rows: tuple[ScalingRow, ...]
    formulas: dict[str, dict[str, str]]
    notes: tuple[str, ...] = ()


def scaling(run: Run, context: int, machines: Any, link: Any) -> Scaling:
    """Of a plan's run; tokens are those of its prompt, of an encoder its context."""
    check_machines(machines)
    if run.model.kind == "encoder-decoder":
        hint = "decoders and encoders are spread by their one sequence"
        raise OptionError(complaint("machines", f"{machines} for an encoder-decoder", "a model of one sequence", hint))
    used = as_link(DEFAULT_LINK if link is None else link)
    tokens = run.prompt if run.model.kind == "decoder" else context
    steps = [2**power for power in range(machines.bit_length()) if 2**power < machines]
    paper = _Scaler(run, context, tokens, used)
    rows = tuple(paper.row(count) for count in (*steps, machines))
    return Scaling(used, tokens, rows, _formulas(run), _notes(paper, rows))


def check_machines(machines: Any) -> None:
    """A whole number in the one range that there is."""
    wanted = f"a whole number from 1 to {integer_text(MAX_MACHINES)}"
    if isinstance(machines, bool) or not isinstance(machines, int):
        raise OptionTypeError(complaint("machines", repr(machines), wanted))
    if not 1 <= machines <= MAX_MACHINES:
        raise OptionError(complaint("machines", machines, wanted))


class _Scaler:
    """What rows have in common: the model's parts on one machine."""

    def __init__(self, run: Run, context: int, tokens: int, link: Link) -> None:
        self.run, self.model, self.context, self.tokens, self.link = run, run.model, context, tokens, link
        self.decodes = run.model.kind == "decoder"
        self.item = storage_bytes(1, "float32" if run.weights == "float32" else "bfloat16")
        self.alone = {name: run.pass_over(tokens, kind) for name, kind in (("softmax", "softmax"), (LINEAR, "linear"))}
        self.step = run.step(context) if self.decodes else None
        self.first: ScalingRow | None = None

    def row(self, machines: int) -> ScalingRow:
        run, ranks = self.run, min(machines, self.tokens)
        splits = {name: self._split(name, ranks) for name in SPLITS}
        good = {name: split.seconds for name, split in splits.items() if split.seconds is not None and name != LINEAR}
        own = {name: self._memory(name, machines, self.context, self.tokens) for name in good}
        fitting = {name: seconds for name, seconds in good.items() if own[name] <= run.hardware.memory}
        best = min(fitting or good, key=lambda name: good[name])
        seconds, taken = good[best], splits[best]
        self_alone = seconds if self.first is None else self.first.seconds
        token = self._token(machines)
        found = ScalingRow(
            machines=machines,
            tokens=-(-self.tokens // machines),
            splits=splits,
            best=best,
            seconds=seconds,
            efficiency=self_alone / (machines * seconds),
            sent_bytes=taken.sent_bytes or 0,
            sent_bytes_per_layer=taken.sent_bytes_per_layer or 0,
            memory_bytes=own[best],
            fits=bool(fitting),
            largest_context=self._largest(machines),
            token_seconds=None if token is None else token[0],
            token_sent_bytes=None if token is None else token[1],
        )
        self.first = self.first or found
        return found

    def _largest(self, machines: int) -> int | None:
        """None where no context is too long."""
        if not self.decodes:
            return None
        # Memory grows with the context, but for two places: one from which on every machine has a token, and one from
        # which on windows are shorter than the context.
        start = max((size for size in (machines, (self.model.window or 0) + 1) if self.fits(machines, size)), default=1)
        found = first_size(lambda size: not self.fits(machines, size), start)
        return None if found is None else found - 1

    def fits(self, machines: int, context: int) -> bool:
        """Whether some split of the model as it is fits. A prompt as long as the context stays as long."""
        tokens = context if self.tokens == self.context else self.tokens
        names = [name for name in SPLITS if name != LINEAR and not self._reason(name, min(machines, tokens))]
        return any(self._memory(name, machines, context, tokens) <= self.run.hardware.memory for name in names)

    def _memory(self, name: str, machines: int, context: int, tokens: int) -> int:
        """Of a machine: weights, its part of the cache, and what the split holds."""
        run = self.run
        cache = -(-self.model.cache_bytes(context, run.batch, run.cache) // machines)
        return run.weight_bytes + cache + self._held(name, min(machines, tokens), tokens)

    def _held(self, name: str, ranks: int, tokens: int) -> int:
        """Beside the shard itself, at the worst moment of a layer."""
        if ranks == 1:
            return 0
        spreads = [self._spread(ranks, window, tokens) for _, window in self._windows(name, tokens)]
        return max(wire(name, each).held for each in spreads) - math.floor(shard_bytes(spreads[0]))

    def _split(self, name: str, ranks: int) -> Split:
        reason = self._reason(name, ranks)
        if reason:
            return Split(None, None, None, None, None, reason)
        parts = self.alone[LINEAR if name == LINEAR else "softmax"]
        beside = sum(part.seconds for key, part in self._shorter(name, ranks).items() if key not in _ATTENTION)
        beside += parts["cache"].seconds / ranks if "cache" in parts else 0.0
        layers = self._layers(name, ranks)
        # The plan's count of scores has more than products, and may be bound by memory: it sets the rate.
        products = sum(count * one.flops for count, _, one in layers)
        rate = products / parts["scores"].seconds
        seconds = beside + sum(
            count * each.forward.seconds(self.link.bandwidth, self.link.latency, rate) for count, each, _ in layers
        )
        sent = sum(count * each.sent for count, each, _ in layers)
        messages = sum(count * each.messages for count, each, _ in layers)
        held = self._held(name, ranks, self.tokens)
        return Split(seconds, sent, max(each.sent for _, each, _ in layers), messages, held)

    def _shorter(self, name: str, ranks: int) -> dict[str, Any]:
        """The parts of a pass over the tokens of one machine."""
        return self.run.pass_over(-(-self.tokens // ranks), "linear" if name == LINEAR else "softmax")

    def _layers(self, name: str, ranks: int) -> list[tuple[int, Wire, Wire]]:
        """(how many layers, what one takes on so many ranks, and on one): those with a window, and those without."""
        found = []
        for count, window in self._windows(name, self.tokens):
            spread, alone = (self._spread(some, window, self.tokens) for some in (ranks, 1))
            found.append((count, wire(name, spread), wire(name, alone)))
        return found

    def _windows(self, name: str, tokens: int) -> list[tuple[int, int | None]]:
        """(how many layers, their window)"""
        model = self.model
        windowed = 0 if name == LINEAR or model.window is None or tokens <= model.window else model.window_layers
        kinds = (model.layers - windowed, None), (windowed, model.window)
        return [(count, window) for count, window in kinds if count]

    def _spread(self, ranks: int, window: int | None, tokens: int) -> Spread:
        model = self.model
        return Spread(
            batch=self.run.batch,
            heads=model.heads,
            kv_heads=model.kv_heads,
            width=model.head_width,
            value_width=model.value_width,
            tokens=tokens,
            ranks=ranks,
            item=self.item,
            causal=self.decodes,
            window=window if self.decodes else None,
            features=model.head_width,
        )

    def _reason(self, name: str, ranks: int) -> str:
        heads, kv_heads = self.model.heads, self.model.kv_heads
        if name != "heads" or (heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)):
            return ""
        return f"{heads} query and {kv_heads} key/value heads do not divide among {ranks}"

    def _token(self, machines: int) -> tuple[float, int] | None:
        if self.step is None:
            return None
        split = sum(part.seconds for name, part in self.step.items() if name in _ATTENTION) / machines
        beside = sum(part.seconds for name, part in self.step.items() if name not in _ATTENTION)
        model = self.model
        sent, messages = merged_step(self.run.batch, model.heads, model.value_width, machines)
        merging = Phase(0, 0, sent, messages, 0).seconds(self.link.bandwidth, self.link.latency, 1.0)
        return split + beside + model.layers * merging, model.layers * sent


def _formulas(run: Run) -> dict[str, dict[str, str]]:
    kind = "full" if run.model.kind == "encoder" else "causal"
    found = {name: wire_formula(name, kind)._asdict() for name in SPLITS}
    if run.model.window is not None and kind == "causal":
        found |= {f"{name}, window": wire_formula(name, "window")._asdict() for name in ("ring", "gather")}
    return found


def _notes(paper: _Scaler, rows: tuple[ScalingRow, ...]) -> tuple[str, ...]:
    run, tokens = paper.run, paper.tokens
    found = ["weights are whole on every machine; tokens and their cache are spread"]
    if rows[-1].machines > tokens:
        found.append(f"{count_text(tokens, 'token')} keep no more machines than that at work")
    if run.model.latent is not None:
        found.append("keys and values travel as heads have them, not as the latent vector")
    if not any(row.fits for row in rows):
        found.append(f"it fits on none of these{_remedy(paper)}")
    return tuple(found)


def _remedy(paper: _Scaler) -> str:
    if paper.run.weight_bytes > paper.run.hardware.memory:
        return ": weights would have to be spread too"
    if paper.fits(MAX_MACHINES, paper.context):
        return ": more machines would do"
    return ", nor on more machines: one token of each sequence is too much"
