"""`plan`: what a model will take on a machine, before it runs: time, memory, where both go, and where they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, complaint
from .architecture import Model
from .attending import state_bytes
from .blocks import model_cost, parts
from .formats import LARGEST, arithmetic, check_size, format_name, is_symbol, stored
from .formulas import formula
from .hardware import Hardware, as_hardware
from .models import as_model
from .readable import counted, whole

if TYPE_CHECKING:
    from .scaling import Scaling

USUAL_CONTEXT = 8192


@dataclass(frozen=True)
class Part:
    """One part of a step. bound: whether its "flops" or its "bytes" take longer. formula: of those that do."""

    name: str
    flops: int
    bytes: int
    seconds: float
    bound: str
    formula: str
    flops_formula: str
    bytes_formula: str


@dataclass(frozen=True)
class Variant:
    """The same model with other heads. ratio: its cache to that of the model as it is. speedup: the model's time to its
    own."""

    name: str
    kv_heads: int
    as_is: bool
    cache_bytes: int
    seconds_per_token: float
    ratio: float | None
    speedup: float


@dataclass(frozen=True)
class Crossing:
    """Where two lines cross. at: the first size, of `unit`, at which it is so; None: nowhere, and `reason` says why."""

    question: str
    unit: str
    at: int | None
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """The answer of `plan`. Bytes are exact; times are those of the roofline: each part takes as long as its flops or
    its bytes do, whichever is longer, and parts follow one another. Printing it shows tables."""

    model: Model
    hardware: Hardware
    context: int
    batch: int
    weights: str
    cache: str
    prompt: int
    weight_bytes: int
    cache_bytes: int
    cache_bytes_per_token: int
    cross_cache_bytes: int
    seconds_per_token: float | None
    tokens_per_second: float
    prefill_seconds: float
    parts: dict[str, Part]
    bottleneck: str
    intensity: float
    ridge: float
    rate_dtype: str
    fits: bool
    largest_batch: int | None
    largest_context: int | None
    variants: dict[str, Variant]
    crossings: dict[str, Crossing]
    notes: list[str] = field(default_factory=list)
    scaling: Scaling | None = None

    @property
    def held_bytes(self) -> int:
        """Weights and caches."""
        return self.weight_bytes + self.cache_bytes + self.cross_cache_bytes

    @property
    def step_seconds(self) -> float:
        """Of a step of decoding, or of an encoder's pass."""
        return sum(part.seconds for part in self.parts.values())

    @property
    def flops(self) -> int:
        """Of a step."""
        return sum(part.flops for part in self.parts.values())

    @property
    def bytes(self) -> int:
        """That a step reads and writes."""
        return sum(part.bytes for part in self.parts.values())

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; bytes are integers."""
        found = {each.name: _plain(getattr(self, each.name)) for each in fields(self)}
        if self.scaling is None:
            del found["scaling"]
        model = found["model"]
        model["parameters"], model["active_parameters"] = self.model.parameters, self.model.active_parameters
        model["cache_numbers"] = self.model.cache_numbers
        for part in found["parts"].values():
            part["share"] = part["seconds"] / self.step_seconds
        sums = ("held_bytes", "step_seconds", "flops", "bytes")
        return {**found, **{name: getattr(self, name) for name in sums}}

    def to_csv(self) -> str:
        """A line for each quantity: model, hardware, what it is of, quantity, value."""
        from .report import csv_text

        return csv_text([self])

    def __str__(self) -> str:
        from .report import plan_text

        return plan_text(self)


def plan(
    model: Any,
    hardware: Any = "here",
    *,
    context: int | None = None,
    batch: int = 1,
    weights: str = "bfloat16",
    cache: str = "bfloat16",
    prompt: int | None = None,
    machines: int | None = None,
    link: Any = None,
) -> Plan:
    """What a model takes on a machine.

    model: a Model, the name of a preset, or the path of a config.json. hardware: a Hardware or the name of one.
    context: tokens of each sequence, the newest included; 8192, or what the model was made for if that is less.
    weights, cache: how numbers are stored (float32, bfloat16, float16, int8, int4); quantised ones are widened before
    they are multiplied. prompt: tokens that are read before the first new one, by the encoder of an encoder-decoder;
    as many as context. An encoder does not decode: its parts are those of a pass over `context` tokens.
    machines, link: how it scales to so many of these machines with such a link between any two ("10GBps", "100gbe", or
    a `Link`; 100 Gbit/s Ethernet): `scaling`.

    >>> found = plan("llama-3-8b", "h100-sxm", context=8192)
    >>> found.weight_bytes, found.cache_bytes, found.bottleneck, f"{found.seconds_per_token * 1e3:.2f} ms"
    (16060522496, 1073741824, 'feed-forward', '4.81 ms')
    """
    sizes, machine = as_model(model), as_hardware(hardware)
    _check_numbers(sizes)
    if context is None:
        context = min(USUAL_CONTEXT, sizes.context or USUAL_CONTEXT)
    prompt = context if prompt is None else prompt
    for name, size in (("context", context), ("batch", batch), ("prompt", prompt)):
        check_size(name, size)
    run = Run(sizes, machine, batch, format_name("weights", weights), format_name("cache", cache), prompt)
    if machines is None and link is not None:
        raise OptionError(complaint("link", repr(link), "machines= beside it", "one machine needs no link"))
    decodes = sizes.kind != "encoder"
    step = run.step(context)
    seconds = sum(part.seconds for part in step.values())
    total_flops, total_bytes = sum(p.flops for p in step.values()), sum(p.bytes for p in step.values())
    return Plan(
        model=sizes,
        hardware=machine,
        context=context,
        batch=batch,
        weights=run.weights,
        cache=run.cache,
        prompt=prompt,
        weight_bytes=run.weight_bytes,
        cache_bytes=sizes.cache_bytes(context, batch, cache),
        cache_bytes_per_token=stored(sizes.cache_numbers, cache),
        cross_cache_bytes=run.cross_bytes(batch),
        seconds_per_token=seconds if decodes else None,
        tokens_per_second=(batch if decodes else batch * context) / seconds,
        prefill_seconds=run.prefill(prompt) if decodes else seconds,
        parts=step,
        bottleneck=max(step.values(), key=lambda part: part.seconds).name,
        intensity=total_flops / total_bytes,
        ridge=run.ridge,
        rate_dtype=machine.rate_name(arithmetic(run.weights)),
        fits=run.held(context, batch) <= machine.memory,
        largest_batch=run.largest(lambda size: run.held(context, size)) if decodes else None,
        largest_context=run.largest(lambda size: run.held(size, batch)) if decodes else None,
        variants=run.variants(context, seconds),
        crossings=run.crossings(context),
        notes=run.notes(context),
        scaling=None if machines is None else run.scaling(context, machines, link),
    )


@dataclass(frozen=True)
class Run:
    """A model on a machine with a batch and storage formats: times and bytes at any context."""

    model: Model
    hardware: Hardware
    batch: int
    weights: str
    cache: str
    prompt: int

    @property
    def weight_bytes(self) -> int:
        return stored(self.model.parameters, self.weights)

    @property
    def ridge(self) -> float:
        return self.hardware.ridge(arithmetic(self.weights))

    def step(self, context: int, batch: int | None = None, similarity: str = "softmax") -> dict[str, Part]:
        """A step of decoding that makes the context's last token; of an encoder, a pass over all."""
        new, past = (1, context - 1) if self.model.kind != "encoder" else (context, 0)
        return self._timed(self.batch if batch is None else batch, new, past, similarity, encodes=False)

    def seconds(self, context: int, similarity: str = "softmax") -> float:
        return sum(part.seconds for part in self.step(context, similarity=similarity).values())

    def prefill(self, tokens: int) -> float:
        """From a prompt to the first token; an encoder-decoder's decoder starts with one."""
        new = 1 if self.model.kind == "encoder-decoder" else tokens
        return sum(part.seconds for part in self._timed(self.batch, new, 0, "softmax", encodes=True).values())

    def pass_over(self, tokens: int, similarity: str = "softmax") -> dict[str, Part]:
        """Over so many tokens with nothing before them: a decoder's prefill, or an encoder's pass."""
        return self._timed(self.batch, tokens, 0, similarity, encodes=True)

    def _timed(self, batch: int, new: int, past: int, similarity: str, *, encodes: bool) -> dict[str, Part]:
        ledger = model_cost(
            self.model,
            batch,
            new,
            past,
            weights=self.weights,
            cache=self.cache,
            similarity=similarity,
            source=self.prompt,
            logit_tokens=1,
            encodes=encodes,
        )
        rate, bandwidth = self.hardware.rate(arithmetic(self.weights)), self.hardware.bandwidth
        found = {}
        for name, part in parts(ledger).items():
            by_flops, by_bytes = part.flops / rate, part.traffic / bandwidth
            bound = "flops" if by_flops > by_bytes else "bytes"
            texts = formula(self.model, name)
            shown = texts.flops if bound == "flops" else texts.bytes
            seconds = max(by_flops, by_bytes)
            found[name] = Part(name, part.flops, part.traffic, seconds, bound, shown, texts.flops, texts.bytes)
        return found

    def cross_bytes(self, batch: int) -> int:
        """Keys and values of the source that an encoder-decoder keeps."""
        if self.model.kind != "encoder-decoder":
            return 0
        return stored(batch * self.prompt * self.model.cache_numbers, self.cache)

    def held(self, context: int, batch: int) -> int:
        """Weights and caches."""
        return self.weight_bytes + self.model.cache_bytes(context, batch, self.cache) + self.cross_bytes(batch)

    def largest(self, held: Callable[[int], int]) -> int | None:
        """The largest size that memory holds; None where no size is too large."""
        memory = self.hardware.memory
        found = first(lambda size: held(size) > memory)
        return None if found is None else found - 1

    def variants(self, context: int, seconds: float) -> dict[str, Variant]:
        """Multi-head, as it is, multi-query, and linear attention."""
        model, heads = self.model, self.model.heads
        grouped = "latent" if model.latent is not None else f"GQA({model.kv_heads})"
        as_is = grouped if model.latent is not None or 1 < model.kv_heads < heads else None
        as_is = as_is or ("MHA" if model.kv_heads == heads else "MQA")
        plain = {"latent": None}
        shapes = {"MHA": replace(model, kv_heads=heads, **plain), as_is: model}
        shapes |= {"MQA": replace(model, kv_heads=1, **plain)} if as_is != "MQA" else {}
        now = model.cache_bytes(context, self.batch, self.cache)
        found = {}
        for name, shape in shapes.items():
            run, kept = replace(self, model=shape), shape.cache_bytes(context, self.batch, self.cache)
            time = seconds if shape is model else run.seconds(context)
            found[name] = Variant(
                name, shape.kv_heads, name == as_is, kept, time, kept / now if now else None, seconds / time
            )
        state = self.batch * model.layers * state_bytes(model) if now else 0
        time = self.seconds(context, "linear")
        ratio = state / now if now else None
        return {**found, "linear": Variant("linear", model.kv_heads, False, state, time, ratio, seconds / time)}

    def crossings(self, context: int) -> dict[str, Crossing]:
        from .crossings import crossings

        return crossings(self, context)

    def scaling(self, context: int, machines: int, link: Any) -> Scaling:
        from .scaling import scaling

        return scaling(self, context, machines, link)

    def notes(self, context: int) -> list[str]:
        """What a reader of the figures must know."""
        found = []
        limit = self.model.context
        if limit and context > limit:
            found.append(f"{self.model.name} was made for {counted(limit, 'token')}, not for {whole(context)}")
        if not self.hardware.measured and self.hardware.name == "here":
            found.append("this machine was not measured yet: figures are careful guesses; run qkv calibrate")
        asked, used = arithmetic(self.weights), self.hardware.rate_name(arithmetic(self.weights))
        if asked != used:
            found.append(f"{self.hardware.name} has no rate for {asked}: that of {used} is taken")
        if self.held(context, self.batch) > self.hardware.memory:
            found.append("it does not fit: times are as if the memory were large enough")
        return found


def first(holds: Callable[[int], bool], start: int = 1, limit: int = LARGEST) -> int | None:
    """The smallest size at which something that stays true becomes true; None where it does not.

    >>> first(lambda size: size * size > 50)
    8
    """
    if not holds(limit):
        return None
    low, high = start - 1, start
    while high < limit and not holds(high):
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _check_numbers(model: Model) -> None:
    if any(is_symbol(getattr(model, each.name)) for each in fields(model)):
        hint = "qkv.cost.model_cost takes symbols"
        raise OptionError(complaint("model", f"{model.name} with symbols", "a model whose sizes are numbers", hint))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value
