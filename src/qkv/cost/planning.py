"""Plans: time and memory of a model on a machine before it runs, part by part, with crossing points and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OptionError, complaint
from .architecture import Model, as_model
from .blocks import model_cost, parts, state_bytes
from .formulas import formula
from .machine import HERE, Hardware, Machine, as_hardware
from .readable import count_text, integer_text
from .sizes import LARGEST, check_size, format_name, rate_format, storage_bytes

if TYPE_CHECKING:
    from .scaling import Scaling

CHART_CONTEXT = 131072  # charts go at least this far

Dot = tuple[str, float, float]


@dataclass(frozen=True)
class Part:
    """One part of a step. bound: "flops" or "bytes", whichever takes longer; formula: that of the bound."""

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
    """The model with other attention. as_is: the model unchanged. ratio: cache relative to the model's. speedup: the
    model's time divided by the variant's."""

    name: str
    kv_heads: int
    as_is: bool
    cache_bytes: int
    seconds_per_token: float
    ratio: float | None
    speedup: float


@dataclass(frozen=True)
class Crossing:
    """The size `at`, in `unit`, from which `question` is true; None if it never is, for `reason`."""

    question: str
    unit: str
    at: int | None
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """The result of `plan`; printing it shows tables.

    Bytes are exact. Times follow the roofline: a part takes as long as its flops or its bytes, whichever is longer, and
    parts follow one another. `held_bytes` is weights and caches.
    """

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
        """Time of a decode step, or of an encoder's pass."""
        return sum(part.seconds for part in self.parts.values())

    @property
    def flops(self) -> int:
        """Flops of a step."""
        return sum(part.flops for part in self.parts.values())

    @property
    def bytes(self) -> int:
        """Bytes that a step reads and writes."""
        return sum(part.bytes for part in self.parts.values())

    def as_dict(self) -> dict[str, Any]:
        """All fields and totals, for JSON."""
        found = asdict(self)
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
        """CSV with one line per quantity: model, hardware, options, subject, quantity, value."""
        from .report import csv_text

        return csv_text([self])

    def _repr_html_(self) -> str:
        from html import escape

        from ..notebook import framed

        return framed(f"<pre>{escape(str(self))}</pre>")

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
    """Time and memory of a model on a machine.

    Args:
        model: a `Model`, the name of a preset, or the path of a config.json.
        hardware: a `Hardware` or its name; "here" is this machine.
        context: tokens of each sequence, the newest included; by default 8192, or the model's own limit if less. An
            encoder does not decode: its parts are those of a pass over `context` tokens.
        batch: sequences.
        weights, cache: storage formats (float32, bfloat16, float16, int8, fp8, int4); quantised numbers are converted
            before they are multiplied, unless the machine has a rate for 8-bit weights.
        prompt: tokens of the prompt, or of the source of an encoder-decoder; `context` by default.
        machines: plan for up to this many machines too, in `Plan.scaling`.
        link: the link between any two machines: a `Link`, a name ("100gbe") or a rate ("10GBps"); by default 100 Gbit/s
            Ethernet.

    Returns:
        A `Plan`.

    Raises:
        OptionError: an unknown name or a value out of range.

    >>> found = plan("llama-3-8b", "h100-sxm", context=8192)
    >>> found.weight_bytes, found.cache_bytes, found.bottleneck, f"{found.seconds_per_token * 1e3:.2f} ms"
    (16060522496, 1073741824, 'feed-forward', '4.81 ms')
    """
    sizes, machine = as_model(model), as_hardware(hardware)
    sizes.check_numbers("qkv.cost.model_cost takes symbols")
    context = sizes.default_context if context is None else context
    prompt = context if prompt is None else prompt
    for name, size in (("context", context), ("batch", batch), ("prompt", prompt)):
        check_size(name, size)
    weights, cache = format_name("weights", weights), format_name("cache", cache)
    run = Run(sizes, machine, batch, weights, cache, prompt)
    if machines is None and link is not None:
        raise OptionError(complaint("link", repr(link), "None without machines=", "pass machines= too"))
    scaling = None
    if machines is not None:
        from .scaling import scaling as scale

        scaling = scale(run, context, machines, link)
    decodes = sizes.kind != "encoder"
    step = run.step(context)
    seconds = sum(part.seconds for part in step.values())
    return Plan(
        **vars(run),
        context=context,
        weight_bytes=run.weight_bytes,
        cache_bytes=sizes.cache_bytes(context, batch, cache),
        cache_bytes_per_token=storage_bytes(sizes.cache_numbers, cache),
        cross_cache_bytes=run.cross_bytes(batch),
        seconds_per_token=seconds if decodes else None,
        tokens_per_second=(batch if decodes else batch * context) / seconds,
        prefill_seconds=run.prefill(prompt) if decodes else seconds,
        parts=step,
        bottleneck=max(step.values(), key=lambda part: part.seconds).name,
        intensity=_intensity(step),
        ridge=run.ridge,
        rate_dtype=machine.rate_name(rate_format(run.weights)),
        fits=run.memory_needed(context, batch) <= machine.memory,
        largest_batch=run.largest(lambda size: run.memory_needed(context, size)) if decodes else None,
        largest_context=run.largest(lambda size: run.memory_needed(size, batch)) if decodes else None,
        variants=run.variants(context, seconds),
        crossings=crossings(run, context),
        notes=run.notes(context),
        scaling=scaling,
    )


@dataclass(frozen=True)
class Run:
    """A model on a machine, with a batch and storage formats: times and bytes at any context."""

    model: Model
    hardware: Hardware
    batch: int
    weights: str
    cache: str
    prompt: int

    @property
    def weight_bytes(self) -> int:
        return storage_bytes(self.model.parameters, self.weights)

    @property
    def ridge(self) -> float:
        return self.hardware.ridge(rate_format(self.weights))

    def step(self, context: int, batch: int | None = None, similarity: str = "softmax") -> dict[str, Part]:
        """The decode step of the context's last token; for an encoder, a pass over the context."""
        new, past = (1, context - 1) if self.model.kind != "encoder" else (context, 0)
        return self._timed(self.batch if batch is None else batch, new, past, similarity, encodes=False)

    def seconds(self, context: int, similarity: str = "softmax") -> float:
        return sum(part.seconds for part in self.step(context, similarity=similarity).values())

    def prefill(self, tokens: int) -> float:
        """Time from the prompt to the first token."""
        new = 1 if self.model.kind == "encoder-decoder" else tokens
        return sum(part.seconds for part in self._timed(self.batch, new, 0, "softmax", encodes=True).values())

    def pass_over(self, tokens: int, similarity: str = "softmax") -> dict[str, Part]:
        """A pass over `tokens` tokens with an empty cache: prefill, or an encoder's pass."""
        return self._timed(self.batch, tokens, 0, similarity, encodes=True)

    def _timed(self, batch: int, new: int, past: int, similarity: str, *, encodes: bool) -> dict[str, Part]:
        formats = {"weights": self.weights, "cache": self.cache, "similarity": similarity}
        options = {**formats, "source": self.prompt, "logit_tokens": 1, "encodes": encodes}
        ledger = model_cost(self.model, batch, new, past, **options)
        rate, bandwidth = self.hardware.rate(rate_format(self.weights)), self.hardware.bandwidth
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
        """Bytes of the source's keys and values that an encoder-decoder caches."""
        if self.model.kind != "encoder-decoder":
            return 0
        return storage_bytes(batch * self.prompt * self.model.cache_numbers, self.cache)

    def memory_needed(self, context: int, batch: int) -> int:
        """Bytes of weights and caches."""
        return self.weight_bytes + self.model.cache_bytes(context, batch, self.cache) + self.cross_bytes(batch)

    def largest(self, needed: Callable[[int], int]) -> int | None:
        """The largest size whose bytes fit into memory; None if every size does."""
        too_large = first_size(lambda size: needed(size) > self.hardware.memory)
        return None if too_large is None else too_large - 1

    def shapes(self) -> dict[str, Model]:
        """The model with multi-head attention, unchanged, with multi-query attention, and for linear attention."""
        model, heads = self.model, self.model.heads
        as_is = {1: "MQA", heads: "MHA"}.get(model.kv_heads, f"GQA({model.kv_heads})")
        shapes = {
            "MHA": replace(model, kv_heads=heads, latent=None),
            as_is if model.latent is None else "latent": model,
        }
        return {**shapes, "MQA": shapes.get("MQA", replace(model, kv_heads=1, latent=None)), "linear": model}

    def shape_seconds(self, name: str, shape: Model, context: int) -> float:
        """Time of a step with one of the `shapes`."""
        return replace(self, model=shape).seconds(context, "linear" if name == "linear" else "softmax")

    def variants(self, context: int, seconds: float) -> dict[str, Variant]:
        """Multi-head, unchanged, multi-query and linear attention."""
        model, found = self.model, {}
        now = model.cache_bytes(context, self.batch, self.cache)
        for name, shape in self.shapes().items():
            kept, time = shape.cache_bytes(context, self.batch, self.cache), self.shape_seconds(name, shape, context)
            if name == "linear":
                kept = self.batch * model.layers * state_bytes(model) if now else 0
            as_is, ratio = shape is model and name != "linear", kept / now if now else None
            found[name] = Variant(name, shape.kv_heads, as_is, kept, time, ratio, seconds / time)
        return found

    def notes(self, context: int) -> list[str]:
        """Remarks that readers of the figures need."""
        found, limit = [], self.model.context
        if limit and context > limit:
            trained_for = count_text(limit, "token")
            found.append(f"{self.model.name} was trained for {trained_for}, not for {integer_text(context)}")
        if not self.hardware.measured and self.hardware.name == "here":
            found.append("this machine has not been measured: rates are conservative guesses; run qkv calibrate")
        wanted, used = rate_format(self.weights), self.hardware.rate_name(rate_format(self.weights))
        if wanted != used and wanted not in ("int8", "fp8"):
            found.append(f"{self.hardware.name} has no rate for {wanted}: that of {used} is used")
        if self.memory_needed(context, self.batch) > self.hardware.memory:
            found.append("it does not fit into memory: times are those of a machine with enough")
        return found


def first_size(holds: Callable[[int], bool], start: int = 1, limit: int = LARGEST) -> int | None:
    """The smallest size at which a monotone condition becomes true; None if it never does.

    >>> first_size(lambda size: size * size > 50)
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


def crossings(run: Run, context: int) -> dict[str, Crossing]:
    """Crossing points by name."""
    encodes = run.model.kind == "encoder"
    weights, state = weights_read(run), run.model.layers * state_bytes(run.model)

    def from_context(question: str, holds: Callable[[int], bool]) -> Crossing:
        at, window = first_size(holds), run.model.window
        kept = f"windows of {window} keys keep the cache small at every context" if window else "not at any context"
        return Crossing(question, "tokens", at, "" if at else kept)

    def of_cache(question: str, holds: Callable[[int], bool]) -> Crossing:
        reason = "an encoder keeps no cache"
        return Crossing(question, "tokens", None, reason) if encodes else from_context(question, holds)

    def cache_is_longer(size: int) -> bool:
        step = run.step(size)
        return step["cache"].seconds >= step["projections"].seconds

    return {
        "cache_over_projections": of_cache("the cache takes as long as projections", cache_is_longer),
        "cache_over_weights": of_cache(
            "the cache takes as long to read as a step's weights", lambda size: run.step(size)["cache"].bytes >= weights
        ),
        "linear_smaller": of_cache(
            "a linear state is smaller than the cache", lambda size: run.model.cache_bytes(size, 1, run.cache) > state
        ),
        "linear_faster": from_context(
            f"linear attention makes a {'pass' if encodes else 'token'} sooner",
            lambda size: run.seconds(size, "linear") < run.seconds(size),
        ),
        "compute_bound": _compute_bound(run, context),
    }


def weights_read(run: Run) -> int:
    """Bytes of weights that a step reads."""
    past = 0 if run.model.kind == "encoder" else 1
    step = model_cost(run.model, run.batch, 1, past, weights=run.weights, cache=run.cache, item=0, source=run.prompt)
    return sum(lines.read for name, lines in parts(step).items() if name != "cache")


def _intensity(step: dict[str, Part]) -> float:
    return sum(part.flops for part in step.values()) / sum(part.bytes for part in step.values())


def _compute_bound(run: Run, context: int) -> Crossing:
    """Intensity grows with the batch, up to a limit: each sequence reads its own cache."""
    question = f"{'a pass' if run.model.kind == 'encoder' else 'decoding'} computes longer than it reads"

    at = first_size(lambda batch: _intensity(run.step(context, batch)) >= run.ridge)
    if at is not None:
        return Crossing(question, "sequences", at)
    dtype = run.hardware.rate_name(rate_format(run.weights))
    own = "tokens are read and written" if run.model.kind == "encoder" else "each sequence reads its own cache"
    most = _intensity(run.step(context, LARGEST))
    reason = f"{own}: {most:.3g} flops a byte at most, {run.ridge:.3g} are needed for {dtype}"
    return Crossing(question, "sequences", None, reason)


class Curve(NamedTuple):
    """(context, seconds) points. as_is: the model with its own attention."""

    name: str
    as_is: bool
    points: list[tuple[int, float]]


class Roofs(NamedTuple):
    """A roofline chart. tops: (name, flops per second, bytes per second) of machines. counted, measured: (name, flops
    per byte, flops per second) of calls."""

    tops: list[Dot]
    counted: list[Dot]
    measured: list[Dot]


def times_over_context(plans: Sequence[Plan]) -> list[Curve]:
    """Time of a token (or of an encoder's pass) at contexts from 128 to four times the plan's: one plan with its
    variants, or one curve for each of several plans.

    >>> from qkv.cost import plan
    >>> [curve.name for curve in times_over_context([plan("llama-3-8b", "t4")])]
    ['MHA', 'GQA(8)', 'MQA', 'linear']
    """
    far = max(4 * max(plan.context for plan in plans), CHART_CONTEXT)
    contexts = [2**power for power in range(7, min(far, LARGEST).bit_length())]
    curves = []
    for plan in plans:
        run = Run(plan.model, plan.hardware, plan.batch, plan.weights, plan.cache, plan.prompt)
        for name, shape in ({plan_name(plan): run.model} if len(plans) > 1 else run.shapes()).items():
            points = [(n, run.shape_seconds(name, shape, n)) for n in contexts]
            curves.append(Curve(name, shape is run.model and name != "linear", points))
    return curves


def roofs(plans: Sequence[Plan]) -> Roofs:
    """The roofline of each machine, with the plans' steps and parts, and calls measured here."""
    machines = {(plan.hardware.name, plan.rate_dtype): plan for plan in plans}
    tops = [(name, plan.hardware.rates[dtype], plan.hardware.bandwidth) for (name, dtype), plan in machines.items()]
    dots = []
    for plan in plans:
        whole_step = "a token" if plan.seconds_per_token is not None else "a pass"
        name = whole_step if len(plans) == 1 else plan_name(plan)
        dots.append((name, plan.intensity, plan.flops / plan.step_seconds))
        dots += _part_dots(plan) if len(plans) == 1 else []
    machine = Machine.stored() if any(name == HERE for name, _ in machines) else None
    measured = [] if machine is None else list(machine.dots)
    if machine is not None and measured and (HERE, "float32") not in machines:
        # Measured calls multiply in float32, whatever their storage.
        tops.append((f"{HERE}, float32", machine.multiply_rate("float32"), machine.memory_rate))
    return Roofs(tops, dots, measured)


def plan_name(plan: Plan) -> str:
    return f"{plan.model.name} on {plan.hardware.name}"


def _part_dots(plan: Plan) -> list[Dot]:
    """One dot per part; scores and the cache are one dot."""
    groups = {"attention": ("scores", "cache"), **{name: (name,) for name in ("projections", "feed-forward", "logits")}}
    found = []
    for name, members in groups.items():
        some = [plan.parts[member] for member in members if member in plan.parts]
        flops, moved = sum(part.flops for part in some), sum(part.bytes for part in some)
        if flops and moved:
            found.append((name, flops / moved, flops / sum(part.seconds for part in some)))
    return found
