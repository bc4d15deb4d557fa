"""Solvers on machines: times, throughput, what fits, how many chips, where reading and computing take as long."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

from ...cost.machine import Hardware, as_hardware
from ...cost.polynomial import Polynomial
from ...derivation import Derivation
from ...errors import QkvError
from ..findings import CannotSolve, refuse
from ..solving import Answer
from ..units import amount, chips, format_of, is_binary, quantity
from . import sizes
from .architecture import DATA, Found, Lines, Setting, called, evaluated, numbers, sized, steps, total


@dataclass
class Machine:
    """The machine of an exercise: figures of the text go before those of a preset."""

    setting: Setting
    preset: Hardware | None = None
    sliced: int | None = None

    @classmethod
    def of(cls, setting: Setting) -> Machine:
        exercise = setting.exercise
        given = exercise.given("machine")
        if given is None:
            return cls(setting)
        name, sliced = str(given.value if given.value is not None else given.symbol), None
        if found := re.search(r"\b(\d+(?:\s*[x×]\s*\d+)+)\b|^\s*(\d+)\s*[x×]?\s+(?=\D)", name):
            sliced, name = chips(found[1] or found[2]), name.replace(found[0], " ")
        name = re.sub(r"(?i)\b(slice|pod|gpu|chip|card|nvidia|google|cloud|server)s?\b", "", name).strip().lower()
        name = re.sub(r"^(tpu\s*)?v(?=\d)", "tpu v", re.sub(r"(?<=\d)s$", "", re.sub(r"\s+", " ", name)))
        try:
            preset = as_hardware(DATA["machines"].get(name, name))
        except QkvError as error:
            if any(exercise.given(role) is not None for role in ("rate", "bandwidth", "memory")):
                return cls(setting, None, sliced)
            raise CannotSolve("unknown_name", what="the machine", name=given.value, hint=str(error)) from None
        if name in ("a100", "h100"):
            setting.assume("which of its kinds the machine is", preset.title)
        return cls(setting, preset, sliced)

    def figure(self, role: str) -> Any:
        """A figure of the machine as a name with its value, or None."""
        given = self.setting.exercise.given(role)
        if given is not None:
            value = None if given.value is None else amount(given, binary=is_binary(self.setting.exercise))
            return self.setting.named(role, value)
        if self.preset is None or role == "link":
            return None
        value = self.preset.rate(self.rate_format) if role == "rate" else getattr(self.preset, role)
        return self.setting.named(role, Fraction(value))

    @property
    def rate_format(self) -> str:
        stated = self.setting.format_of("weights")
        chosen = "bfloat16" if stated is None else format_of(stated)
        return chosen if chosen in ("float32", "int8", "fp8") else "bfloat16"

    def need(self, role: str) -> Any:
        found = self.figure(role)
        refuse(found is None, "missing", needs=called(role))
        return found

    @property
    def chips(self) -> Any:
        given = self.setting.exercise.given("chips")
        if given is not None:
            return self.setting.named("chips", None if given.value is None else chips(given.value))
        return Polynomial.of(1) if self.sliced is None else self.setting.named("chips", self.sliced)

    @property
    def utilisation(self) -> Any:
        given = self.setting.exercise.given("utilisation")
        stated = given.value if given is not None else self.setting.exercise.convention("utilisation")
        if stated is None:
            return Polynomial.of(1)
        share = Fraction(quantity(stated, given.unit if given is not None else ""))
        return self.setting.named("utilisation", share / 100 if share > 1 else share)

    def reading(self, size: Any) -> Lines:
        """Seconds that reading so many bytes takes, each chip its share."""
        return [("reading", self.setting.short("bytes", size) / (self.need("bandwidth") * self.chips))]

    def computing(self, made: Any) -> Lines:
        """Seconds that so many operations take, each chip its share."""
        return [("computing", self.setting.short("flops", made) / (self.need("rate") * self.chips * self.utilisation))]

    def training(self) -> Machine:
        """The machine, with what is taken for training where the text does not say it."""
        if self.utilisation == 1:
            self.setting.assume("the utilisation", "all of the machine's rate")
        if self.setting.exercise.given("chips") is None and self.sliced is None:
            self.setting.assume("the number of chips", "1")
        return self

    @property
    def memory(self) -> Any:
        return self.need("memory") * self.chips


def _held(setting: Setting) -> Any:
    """Bytes of the weights, and of the cache where its length is given."""
    if setting.has("bytes") and not setting.has("parameters"):
        return setting.need("bytes")
    weights = sizes.weights_of(setting)
    if setting.has("bytes"):  # they agree with the weights
        return setting.need("bytes")
    if not setting.has("length") and not setting.has("keys_length"):
        return weights
    if sizes.by_parameters(setting) and setting.preset is None:
        setting.assume("the sizes of the cache", "the weights alone")
        return weights
    return weights + sizes.cache_of(setting, token=False)


def _step_parts(setting: Setting, machine: Machine) -> Lines:
    """Seconds that a decode step reads, and that it computes where the rate is known."""
    parts = machine.reading(_held(setting))
    if machine.figure("rate") is not None:
        parts += machine.computing(2 * sizes.parameters_of(setting, active=True) * setting.one("batch"))
    return parts


def _phase(setting: Setting) -> str:
    """The object of a time or a throughput; where the words are those of any step, the structure says which."""
    phase, kind = setting.exercise.structure.phase, setting.kind()
    if kind != "step" or sizes.decodes(setting):
        return kind
    if phase == "training" or (not setting.words and setting.has("training_tokens")):
        return "training"
    return "prefill" if phase in ("prefill", "forward") else kind


def _time_parts(setting: Setting, machine: Machine) -> Lines:
    kind, words = _phase(setting), setting.words
    if kind == "training":
        return machine.training().computing(sizes.training_work(setting)[0])
    if kind == "sending":
        return [("sending", setting.need("bytes") / machine.need("link"))]
    parts: Lines = []
    if setting.has("bytes") and machine.figure("bandwidth") is not None and "comput" not in words:
        parts += machine.reading(_held(setting))
    if setting.has("flops") and machine.figure("rate") is not None and not re.search(r"read|load|memory", words):
        parts += machine.computing(setting.need("flops"))
    if parts:
        return parts
    refuse(kind == "given", "missing", needs="the operations or the bytes")
    if kind in ("weights", "cache"):
        return machine.reading(sizes.weights_of(setting) if kind == "weights" else sizes.cache_of(setting, token=False))
    return machine.computing(_prefill(setting)) if kind == "prefill" else _step_parts(setting, machine)


def _prefill(setting: Setting) -> Any:
    """Operations of a forward pass over the length and batch: counted, or 2 for each parameter and token."""
    length = setting.need("length", "tokens_count")
    if sizes.by_parameters(setting) and setting.preset is None:
        return 2 * sizes.parameters_of(setting, active=True) * length * setting.one("batch")
    return total(sizes.counted_flops(setting, "model", 1, 2)[0])


def _joined(setting: Setting, parts: Lines) -> Found:
    """Several times as one: the longest, or their sum where the text says that they do not overlap."""
    if len(parts) == 1:
        return Found(parts[0][1])
    found = numbers(setting, *(each for _, each in parts))
    before = [steps(setting, name, each) for name, each in parts]
    longest, overlap = parts[found.index(max(found))][1], setting.exercise.convention("overlap")
    if overlap == "sum":
        return Found(total(parts), also=[("reading and computing at the same time", longest)], before=before)
    if overlap is None:
        setting.assume("whether reading and computing overlap", "the longer of the two")
    return Found(longest, also=[("reading and computing one after the other", total(parts))], before=before)


@sized
def time(setting: Setting) -> Found:
    """Seconds of reading, computing, a decode step, a prefill or training."""
    return _joined(setting, _time_parts(setting, Machine.of(setting)))


@sized
def throughput(setting: Setting) -> Found:
    """Tokens a second, or a minute, an hour or a day where that is asked."""
    machine, kind = Machine.of(setting), _phase(setting)
    per = re.search(r"(?:/|per |a )(minute|hour|day|min|h)\b", f"{setting.asked.unit} {setting.words}")
    times, unit = ({"m": 60, "h": 3600, "d": 86400}[per[1][0]], f"tokens/{per[1]}") if per else (1, "tokens/s")
    if setting.has("seconds"):
        tokens = setting.need("tokens_count", "batch", "training_tokens")
        return Found(times * tokens / setting.need("seconds"), unit=unit)
    if kind == "step":
        step = _joined(setting, _step_parts(setting, machine))
        return Found(times * setting.one("batch") / step.formula, before=step.before, unit=unit)
    machine = machine.training() if kind == "training" else machine
    each = (6 if kind == "training" else 2) * sizes.parameters_of(setting, active=True)
    return Found(times * machine.need("rate") * machine.chips * machine.utilisation / each, unit=unit)


def _left(setting: Setting, spare: Any) -> Any:
    """Memory that is left; refused where it is less than none."""
    left = evaluated(setting, spare)
    lacks = not isinstance(left, Polynomial) and left < 0
    refuse(lacks, "misfit", what="the model", why="it is larger than the memory")
    return spare


@sized
def fits(setting: Setting) -> Found | Answer:
    """The largest batch, context or model that fits, or whether something does."""
    machine, kind, by = Machine.of(setting), setting.kind(), setting.one("batch")
    if kind == "whether":
        needed = _held(setting)
        wanted, there = numbers(setting, needed, machine.memory)
        worked = Derivation.of(steps(setting, "needed", needed), steps(setting, "memory", machine.memory))
        said = "yes" if wanted <= there else "no"
        return Answer(said, bool(wanted <= there), "words", assumed=tuple(setting.assumed), derivation=worked)
    if kind == "parameters":
        return Found(machine.memory / setting.bytes_of("weights"), rounding=floor)
    if kind == "batch":
        by = setting.need("length", "keys_length")
        setting.note("a batch counts sequences, each with the whole context in the cache")
    elif not setting.has("batch"):
        setting.assume("the batch", "one sequence")
    spare = setting.short("bytes", _left(setting, machine.memory - sizes.weights_of(setting)))
    return Found(spare / (sizes.cache_of(setting, token=True) * by), rounding=floor)


@sized
def chips_needed(setting: Setting) -> Found:
    """The smallest number of chips whose memory holds weights, caches or training."""
    kind = setting.kind()
    if kind == "training":
        size = total(sizes.training_lines(setting))
    else:
        size = sizes.weights_of(setting) if kind == "weights" and not setting.has("bytes") else _held(setting)
    chips = setting.short("bytes", size) / Machine.of(setting).need("memory")
    found = evaluated(setting, chips)
    power = found if isinstance(found, Polynomial) else 1 << max(ceil(found) - 1, 0).bit_length()
    return Found(chips, also=[("a power of two, a usual size of a slice", power)], rounding=ceil)


@sized
def compute_bound_from(setting: Setting) -> Found:
    """The tokens of a batch, or the intensity, from which computing takes longer than reading weights."""
    machine = Machine.of(setting)
    ridge = machine.need("rate") / machine.need("bandwidth")
    if setting.kind() == "intensity":
        return Found(ridge)
    scale = setting.bytes_of("weights") * Polynomial.of(1) / 2
    if setting.has("experts", "active_experts"):
        scale = scale * setting.need("experts") / setting.need("active_experts")
    also: Lines = []
    if machine.preset is not None and machine.rate_format in ("int8", "fp8") and setting.exercise.given("rate") is None:
        slow = Fraction(machine.preset.rate("bfloat16")) / machine.need("bandwidth")
        also = [("8-bit weights multiplied in 16 bits", slow * scale)]
    return Found(ridge * scale, "2 operations for each weight and token", also=also)


@sized
def crossing(setting: Setting) -> Found:
    """The size at which two terms are equal."""
    sides = re.split(r"=| and | equals? | vs\.? | versus ", setting.asked.object)
    refuse(len(sides) != 2, "not_understood", found=f"the two terms of {setting.asked.object!r}")
    left, right = (setting.settled(_side(setting, side.strip())) for side in sides)
    difference, kept = left - right, set(setting.known) | set(setting.asked.in_terms_of)
    usual = [setting.names.get(role) for role in ("length", "keys_length", "tokens_count", "batch")]
    for name in dict.fromkeys([*usual, "n", "N", "T", "S", "s", "B", "b", *sorted(difference.free_symbols)]):
        if name in difference.free_symbols - kept and (found := _solved(difference, name)) is not None:
            return Found(found, f"{left} = {right}, divided by what both have, for {name}")
    raise CannotSolve("not_understood", found=f"where {left} and {right} are equal")


def _side(setting: Setting, text: str) -> Any:
    """A term of a crossing: a part of a layer, the cache or the weights, or a formula."""
    if not re.search(r"[a-z]{4}", text.lower()):
        return setting.expression(text, "the term")
    if not setting.has("length"):
        setting.named("length")
    if "cache" in text.lower():
        return sizes.cache_of(setting, token=True) * setting.need("length") * setting.one("batch")
    if "weights" in text.lower():
        return sizes.weights_of(setting)
    part = sizes.part_of(text, "operations")
    return total(sizes.work(setting, part, bool(sizes.is_causal(setting)))[0])


def _solved(difference: Polynomial, name: str) -> Polynomial | None:
    """The value of a name for which a sum is 0, if it is linear in it after division by a power."""
    by_power: dict[int, Polynomial] = {}
    for powers, factor in difference.terms.items():
        rest = Polynomial({tuple(each for each in powers if each[0] != name): factor})
        power = dict(powers).get(name, 0)
        by_power[power] = by_power.get(power, Polynomial({})) + rest
    low, high = min(by_power), max(by_power)
    return -by_power[low] / by_power[high] if len(by_power) == 2 and high - low == 1 else None


@sized
def utilisation(setting: Setting) -> Found:
    """Operations achieved a second over the machine's rate."""
    machine = Machine.of(setting)
    if setting.has("flops") or setting.has("training_tokens"):
        made = sizes.training_work(setting)[0]
    else:
        training = setting.kind() == "training" and setting.exercise.structure.phase in (None, "training")
        made = (6 if training else 2) * sizes.parameters_of(setting, active=True) * setting.need("tokens_count")
        setting.note("6 operations for each parameter and token" if training else "2 operations for each parameter")
    return Found(made / (setting.need("seconds") * machine.need("rate") * machine.chips))


@sized
def free_memory(setting: Setting) -> Found:
    """Memory left on each chip when weights, and caches where their length is given, are divided evenly."""
    machine = Machine.of(setting)
    spare = machine.need("memory") - setting.short("bytes", _held(setting)) / machine.chips
    return Found(_left(setting, spare))
