"""Solvers on machines: times, throughput, what fits, how many chips, where reading and computing take as long."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import Any

from ...cost.machine import as_hardware
from ...cost.polynomial import Polynomial
from ...derivation import Derivation, Step
from ...errors import QkvError
from ..findings import CannotSolve
from ..record import Asked, Exercise
from ..solving import Also, Answer, solver
from ..units import amount, chips, format_of, is_binary, quantity
from .architecture import Setting, answer, evaluated, steps, total
from .sizes import (
    _FLOP_LINES,
    cache_of,
    counted_flops,
    flops_of,
    is_causal,
    parameters_of,
    part_of,
    training_work,
    weights_of,
)


@dataclass
class Machine:
    """The machine of an exercise: figures of the text go before those of a preset."""

    setting: Setting

    def __post_init__(self) -> None:
        exercise = self.setting.exercise
        self.preset, self.sliced = None, None
        given = exercise.given("machine")
        if given is None:
            return
        name = str(given.value if given.value is not None else given.symbol)
        if found := re.search(r"\b(\d+(?:\s*[x×]\s*\d+)+)\b", name):
            self.sliced = chips(found[1])
            name = name.replace(found[1], "")
        elif found := re.match(r"\s*(\d+)\s*[x×]?\s+(?=\D)", name):
            self.sliced = int(found[1])
            name = name[found.end() :]
        name = re.sub(
            r"\b(slice|pod|gpus?|chips?|cards?|nvidia|google|cloud|server)s?\b", "", name, flags=re.IGNORECASE
        )
        name = re.sub(r"(?<=\d)s$", "", name.strip())
        wanted = re.sub(r"^v(?=\d)", "tpu v", re.sub(r"\s+", " ", name).lower().replace("tpuv", "tpu v"))
        usual = {"a100": "a100-80gb", "h100": "h100-sxm", "tpu v5 lite": "tpu-v5e", "trillium": "tpu-v6e"}
        try:
            self.preset = as_hardware(usual.get(wanted, wanted))
        except QkvError as error:
            if any(exercise.given(role) is not None for role in ("rate", "bandwidth", "memory")):
                return
            raise CannotSolve("unknown_name", what="the machine", name=given.value, hint=str(error)) from None
        if self.preset.name in usual.values() and wanted in usual:
            self.setting.assume("which of its kinds the machine is", f"{self.preset.title}")

    def figure(self, role: str) -> Any:
        """A figure of the machine as a name with its value, or None."""
        setting, letter = self.setting, {"rate": "R", "bandwidth": "W", "memory": "H", "link": "I"}[role]
        given = setting.exercise.given(role)
        if given is not None and given.value is None:
            return Polynomial.name(given.symbol)
        if given is not None:
            value: Any = amount(given, binary=is_binary(setting.exercise))
        elif self.preset is None or role == "link":
            return None
        elif role == "rate":
            dtype = format_of(self._dtype())
            value = Fraction(self.preset.rate(dtype if dtype in ("float32", "int8", "fp8") else "bfloat16"))
        else:
            value = Fraction(getattr(self.preset, role))
        setting.values[letter] = value
        return Polynomial.name(letter)

    def _dtype(self) -> Any:
        given = next((each for each in self.setting.exercise.of_role("dtype")), None)
        stated = self.setting.exercise.convention("bytes_per_element")
        return stated if stated is not None else (given.value if given is not None and given.value else 2)

    def need(self, role: str) -> Any:
        if (found := self.figure(role)) is None:
            words = {"rate": "operations a second", "bandwidth": "the memory bandwidth", "memory": "the memory"}
            raise CannotSolve("missing", needs=f"{words.get(role, role)} of the machine")
        return found

    @property
    def chips(self) -> Any:
        given = self.setting.exercise.given("chips")
        if given is not None and given.value is None:
            return Polynomial.name(given.symbol or "c")
        count = self.sliced if given is None else chips(given.value)
        if count is None:
            return Polynomial.of(1)
        self.setting.values["c"] = count
        return Polynomial.name("c")

    @property
    def utilisation(self) -> Any:
        given = self.setting.exercise.given("utilisation")
        stated = given.value if given is not None else self.setting.exercise.convention("utilisation")
        if stated is None:
            return Polynomial.of(1)
        share = quantity(stated, given.unit if given is not None else "")
        share = Fraction(share) / 100 if share > 1 else share
        self.setting.values["u"] = share
        return Polynomial.name("u")


def _named(setting: Setting, letter: str, formula: Any) -> Any:
    """A number under one letter, so that later formulas stay short; a formula of symbols as it is."""
    found = evaluated(setting, formula)
    if isinstance(found, Polynomial):
        return found
    setting.values[letter] = found
    return Polynomial.name(letter)


def _reading(setting: Setting, machine: Machine, size: Any) -> Any:
    return size / (machine.need("bandwidth") * machine.chips)


def _computing(setting: Setting, machine: Machine, work: Any) -> Any:
    utilisation = machine.utilisation
    if utilisation == 1 and setting.asked.object and "train" in setting.asked.object:
        setting.assume("the utilisation", "all of the machine's rate")
    return work / (machine.need("rate") * machine.chips * utilisation)


def _step_parts(setting: Setting, machine: Machine) -> list[tuple[str, Any]]:
    """Seconds that a decode step reads, and that it computes where the rate is known."""
    batch = setting.size("batch") or 1
    moved = weights_of(setting)
    length = setting.size("length") is not None or setting.size("keys_length") is not None
    structured = setting.size("layers") is not None or setting.exercise.given("model") is not None
    work = 2 * parameters_of(setting, active=True) * batch
    if length and structured:
        moved = moved + cache_of(setting, token=False)[0]
    parts = [("reading", _reading(setting, machine, _named(setting, "M", moved)))]
    if machine.figure("rate") is not None:
        parts.append(("computing", _computing(setting, machine, _named(setting, "C", work))))
    return parts


def _time_parts(setting: Setting, machine: Machine) -> list[tuple[str, Any]]:
    words = setting.asked.object.lower()
    given_work, given_bytes = setting.size("flops"), setting.size("bytes")
    if re.search(r"train|epoch", words) or (not words and setting.size("training_tokens") is not None):
        return [("training", _computing(setting, machine, _named(setting, "C", training_work(setting)[0])))]
    if re.search(r"commun|transfer|send|all-?(gather|reduce)|link", words):
        return [("sending", setting.need("bytes") / machine.need("link"))]
    if given_work is not None or given_bytes is not None:
        parts = []
        if given_bytes is not None and machine.figure("bandwidth") is not None and not re.search(r"comput", words):
            parts.append(("reading", _reading(setting, machine, given_bytes)))
        if given_work is not None and machine.figure("rate") is not None and not re.search(r"read|load|memory", words):
            parts.append(("computing", _computing(setting, machine, given_work)))
        if parts:
            return parts
    if re.search(r"weight|parameter|load|read", words) and "cache" not in words:
        return [("reading", _reading(setting, machine, _named(setting, "M", weights_of(setting))))]
    if "cache" in words and not re.search(r"step|token", words):
        size = _named(setting, "M", cache_of(setting, token=False)[0])
        return [("reading", _reading(setting, machine, size))]
    if re.search(r"prefill|forward|prompt|first token|ttft|comput", words) or setting.exercise.structure.phase in (
        "prefill", "forward"):  # fmt: skip
        return [("computing", _computing(setting, machine, _named(setting, "C", _prefill(setting))))]
    return _step_parts(setting, machine)


def _prefill(setting: Setting) -> Any:
    """Operations of a forward pass over the length and batch: the weights twice for each token, unless counted."""
    length, batch = setting.need("length", "tokens_count"), setting.size("batch") or 1
    if setting.size("layers") is None and setting.exercise.given("model") is None:
        return 2 * parameters_of(setting, active=True) * length * batch
    return counted_flops(setting, "model", 1, 2)[0]


@solver("time")
def time(exercise: Exercise, asked: Asked) -> Answer:
    """Seconds of reading, computing, a decode step, a prefill or training."""
    setting = Setting(exercise, asked)
    machine = Machine(setting)
    parts = _time_parts(setting, machine)
    found, also, before = _joined(setting, parts)
    return answer(setting, found, title="time", dimension="s", also=also, before=before)


def _joined(setting: Setting, parts: list[tuple[str, Any]]) -> tuple[Any, list[tuple[str, Any]], Derivation | None]:
    """Several times as one: the longest, or their sum where the text says that they do not overlap."""
    if len(parts) == 1:
        return parts[0][1], [], None
    found = [evaluated(setting, each) for _, each in parts]
    if any(isinstance(each, Polynomial) for each in found):
        raise CannotSolve("missing", needs="numbers for all sizes, to see which takes longer")
    before = Derivation.of(*(steps(setting, name, each) for name, each in parts))
    overlap = setting.exercise.convention("overlap")
    longest = max(range(len(parts)), key=lambda place: found[place])
    if overlap == "sum":
        return total(parts), [("reading and computing at the same time", parts[longest][1])], before
    if overlap is None:
        setting.assume("whether reading and computing overlap", "the longer of the two")
    return parts[longest][1], [("one after the other", total(parts))], before


@solver("throughput")
def throughput(exercise: Exercise, asked: Asked) -> Answer:
    """Tokens a second."""
    setting = Setting(exercise, asked)
    machine, words = Machine(setting), asked.object.lower()
    seconds, tokens = setting.size("seconds"), setting.size("tokens_count")
    before = None
    if seconds is not None and tokens is not None:
        found = tokens / seconds
    elif seconds is not None and setting.size("training_tokens") is not None:
        found = setting.need("training_tokens") / seconds
    elif seconds is not None:
        found = (setting.size("batch") or Polynomial.of(1)) / seconds
    elif re.search("train", words) or exercise.structure.phase == "training":
        found = machine.need("rate") * machine.chips * machine.utilisation / (6 * parameters_of(setting, active=True))
    elif re.search("prefill|prompt", words) or exercise.structure.phase == "prefill":
        found = machine.need("rate") * machine.chips * machine.utilisation / (2 * parameters_of(setting, active=True))
    else:
        step, _, before = _joined(setting, _step_parts(setting, machine))
        found = (setting.size("batch") or Polynomial.of(1)) / step
    per = re.search(r"(?:/|per |a )(minute|hour|day|min|h)\b", f"{asked.unit} {words}")
    found = Polynomial.of(found) * ({"m": 60, "h": 3600, "d": 86400}[per[1][0]] if per else 1)
    setting.asked = asked.model_copy(update={"unit": ""})
    result = answer(setting, found, title="tokens a second" if not per else f"tokens a {per[1]}", before=before)
    unit = f"tokens/{per[1]}" if per else "tokens/s"
    shown = f"{result.text} tokens/s" if not per and result.form == "number" else result.text
    return replace(result, unit=unit, text=shown)


def _fit_sizes(setting: Setting, machine: Machine) -> tuple[Any, Any]:
    """The memory of all chips, and the bytes of the weights."""
    memory = machine.need("memory") * machine.chips
    return memory, weights_of(setting)


@solver("fits")
def fits(exercise: Exercise, asked: Asked) -> Answer:
    """The largest batch, context or model that fits, or whether something does."""
    setting = Setting(exercise, asked)
    machine, words = Machine(setting), asked.object.lower()
    if re.search(r"parameter|largest model|model size|how large", words):
        memory = machine.need("memory") * machine.chips
        return _whole(setting, memory / setting.bytes_of("weights"), "parameters that fit", floor)
    wants = next((name for name, pattern in (("context", r"context|length|token|sequence length"),
                                             ("batch", r"batch|request|sequence|user|concurren"))
                  if re.search(pattern, words)), "")  # fmt: skip
    if wants == "":
        return _whether(setting, machine)
    memory, weights = _fit_sizes(setting, machine)
    if wants == "batch":
        if setting.size("length") is None and setting.size("keys_length") is None:
            raise CannotSolve("missing", needs="the length of the context")
        by = setting.need("length", "keys_length")
        setting.note("a batch counts sequences, each with the whole context in the cache")
    else:
        by = setting.size("batch") or 1
        if setting.size("batch") is None:
            setting.assume("the batch", "one sequence")
    token = cache_of(setting, token=True)[0]
    spare = evaluated(setting, memory - weights)
    if not isinstance(spare, Polynomial) and spare < 0:
        raise CannotSolve("misfit", what="the model", why="its weights alone are larger than the memory")
    room = _named(setting, "M", memory - weights)
    return _whole(setting, Polynomial.of(room) / (token * by), f"largest {wants}", floor)


def _whole(setting: Setting, formula: Any, title: str, rounding: Any) -> Answer:
    """A number of things: rounded down or up to a whole number."""
    found = evaluated(setting, formula)
    result = answer(setting, formula, title=title)
    if isinstance(found, Polynomial):
        return result
    count = rounding(found)
    rounded = Step(str(count), f"rounded {'down' if rounding is floor else 'up'}", "", title, {}, None, count)
    worked = replace(result.derivation, steps=(*result.derivation.steps, rounded))
    return replace(result, text=str(count), value=count, derivation=worked)


def _whether(setting: Setting, machine: Machine) -> Answer:
    memory, weights = _fit_sizes(setting, machine)
    needed = weights
    if setting.size("length") is not None:
        needed = needed + cache_of(setting, token=False)[0]
    there, wanted = evaluated(setting, memory), evaluated(setting, needed)
    if isinstance(there, Polynomial) or isinstance(wanted, Polynomial):
        raise CannotSolve("missing", needs="numbers for all sizes")
    worked = Derivation.of(steps(setting, "needed", needed), steps(setting, "memory", memory))
    return Answer("yes" if wanted <= there else "no", bool(wanted <= there), "words", assumed=tuple(setting.assumed),
                  derivation=worked)  # fmt: skip


@solver("chips_needed")
def chips_needed(exercise: Exercise, asked: Asked) -> Answer:
    """The smallest number of chips whose memory holds weights, caches or training."""
    setting = Setting(exercise, asked)
    machine, words = Machine(setting), asked.object.lower()
    if setting.size("bytes") is not None:
        size = setting.need("bytes")
    elif re.search("train|optimi", words):
        setting.assume("what training keeps", "16 bytes a parameter: weights, gradients and Adam")
        size = 16 * parameters_of(setting)
    else:
        size = weights_of(setting)
        if setting.size("length") is not None and not re.search(r"weight|parameter|model", words):
            size = size + cache_of(setting, token=False)[0]
    result = _whole(setting, _named(setting, "M", size) / machine.need("memory"), "chips", ceil)
    if isinstance(result.value, int):
        power = 1 << max(result.value - 1, 0).bit_length()
        if power != result.value:
            more = Also(str(power), power, "as a power of two, a usual size of a slice")
            result = replace(result, also=(*result.also, more))
    return result


@solver("compute_bound_from")
def compute_bound_from(exercise: Exercise, asked: Asked) -> Answer:
    """The batch of tokens, or the intensity, from which computing takes longer than reading weights."""
    setting = Setting(exercise, asked)
    machine = Machine(setting)
    ridge = machine.need("rate") / machine.need("bandwidth")
    if re.search(r"intensity|ridge|flops? (per|a) byte", asked.object.lower()):
        return answer(setting, ridge, title="operations for each byte")
    size = setting.bytes_of("weights")
    experts, active = setting.size("experts"), setting.size("active_experts")
    factor = 1 if experts is None or active is None else experts / active
    setting.note("each weight of a format of so many bytes is read once and used in a multiplication and an addition")
    return answer(setting, ridge * size * factor / 2, title="tokens in a batch",
                  reason="2 operations for each weight and token")  # fmt: skip


@solver("crossing")
def crossing(exercise: Exercise, asked: Asked) -> Answer:
    """The size at which two terms are equal."""
    setting = Setting(exercise, asked)
    sides = re.split(r"=| and | equals? | vs\.? | versus ", asked.object)
    if len(sides) != 2:
        raise CannotSolve("not_understood", found=f"the two terms of {asked.object!r}")
    left, right = (Polynomial.of(_side(setting, side.strip())) for side in sides)
    kept = set(setting.known) | set(asked.in_terms_of)
    difference = left - right
    free = [name for name in _unknowns(setting) if name in difference.free_symbols and name not in kept]
    free += [name for name in sorted(difference.free_symbols) if name not in kept and name not in free]
    for name in free:
        if (found := _solved(difference, name)) is not None:
            return answer(setting, found, title=name, reason=f"{left} = {right}, divided by what both have")
    raise CannotSolve("not_understood", found=f"where {left} and {right} are equal")


def _unknowns(setting: Setting) -> list[str]:
    """The sizes that a crossing is usually asked for, first."""
    found = []
    for role in ("length", "keys_length", "tokens_count", "batch"):
        size = setting.size(role)
        found += sorted(size.free_symbols) if isinstance(size, Polynomial) else []
    return [*found, "n", "N", "T", "S", "s", "m", "B", "b"]


def _side(setting: Setting, text: str) -> Any:
    words = text.lower()
    if words in ("cache", "kv cache", "the cache", "weights", "the weights"):
        if "cache" not in words:
            return weights_of(setting)
        length = setting.size("length")
        if length is None:
            length = setting.named("length", None)
        return cache_of(setting, token=True)[0] * length * (setting.size("batch") or 1)
    if re.search(r"attention|score|project|feed|mlp|ffn|layer", words):
        if setting.size("length") is None:
            setting.named("length", None)
        asked = setting.asked.model_copy(update={"object": text})
        part = part_of(asked, _FLOP_LINES)
        return total(flops_of(setting, part, causal=bool(is_causal(setting.exercise)))[1])
    return setting.expression(text, "the term")


def _solved(difference: Polynomial, name: str) -> Polynomial | None:
    """The value of a name for which a sum is 0, if it is linear in it after division by a power."""
    by_power: dict[int, Polynomial] = {}
    for powers, factor in difference.terms.items():
        power = dict(powers).get(name, 0)
        rest = Polynomial({tuple(each for each in powers if each[0] != name): factor})
        by_power[power] = by_power.get(power, Polynomial({})) + rest
    by_power = {power: rest for power, rest in by_power.items() if rest}
    if len(by_power) != 2 or max(by_power) - min(by_power) != 1:
        return None
    return -by_power[min(by_power)] / by_power[max(by_power)]


@solver("utilisation")
def utilisation(exercise: Exercise, asked: Asked) -> Answer:
    """Operations achieved a second over the machine's rate."""
    setting = Setting(exercise, asked)
    machine = Machine(setting)
    if setting.size("flops") is not None:
        work = setting.need("flops")
    elif setting.size("training_tokens") is not None:
        work = training_work(setting)[0]
    else:
        training = exercise.structure.phase in (None, "training") and not re.search("infer|decod", asked.object.lower())
        work = (6 if training else 2) * parameters_of(setting, active=True) * setting.need("tokens_count")
        setting.note("6 operations for each parameter and token" if training else "2 operations for each parameter")
    found = work / (setting.need("seconds") * machine.need("rate") * machine.chips)
    return answer(setting, found, title="utilisation")


@solver("free_memory")
def free_memory(exercise: Exercise, asked: Asked) -> Answer:
    """Memory left on each chip when weights, and caches where their length is given, are divided evenly."""
    setting = Setting(exercise, asked)
    machine = Machine(setting)
    held = setting.size("bytes")
    if held is None:
        held = weights_of(setting)
        if setting.size("length") is not None:
            held = held + cache_of(setting, token=False)[0]
    found = machine.need("memory") - _named(setting, "M", held) / machine.chips
    left = evaluated(setting, found)
    if not isinstance(left, Polynomial) and left < 0:
        raise CannotSolve("misfit", what="the model", why="it is larger than the memory")
    return answer(setting, found, title="memory left on each chip", dimension="B")
