"""Known mistakes in counts of parameters, operations and bytes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..cost.polynomial import whole
from .mistakes import mistake
from .record import Asked, Exercise, Given
from .solving import Answer, answer
from .units import factor, number_text, with_unit
from .values import changed

_BYTES = ("cache_bytes", "weight_bytes", "tensor_bytes", "moved_bytes", "activation_bytes", "training_bytes")
_COUNTS = ("parameters", "flops", "training_flops", *_BYTES)
_FLOPS = ("flops", "training_flops")


def _times(right: Answer, asked: Asked, by: Any) -> Answer | None:
    """The right number, multiplied."""
    if right.form != "number":
        return None
    value = whole(Fraction(right.value) * by)
    text = with_unit(value, right.unit, "B") if asked.quantity in _BYTES else number_text(value)
    return replace(right, text=text, value=value, also=(), assumed=())


def _with(exercise: Exercise, asked: Asked, role: Any, value: Any) -> Exercise:
    """The record with another size."""
    return exercise.with_changes(asked.model_copy(update={"changes": (Given(role=role, value=value),)}))


mistake("bits for bytes", quantities=_BYTES)(lambda record, asked: _times(answer(record, asked), asked, 8))


@mistake("keys counted, values not", quantities=("cache_bytes",))
def _keys_alone(exercise: Exercise, asked: Asked) -> Answer | None:
    latent = exercise.structure.variant == "mla" or exercise.size("latent_width") is not None
    return None if latent else _times(answer(exercise, asked), asked, Fraction(1, 2))


@mistake("multiply-adds counted once", quantities=_FLOPS)
def _counted_once(exercise: Exercise, asked: Asked) -> Answer | None:
    if asked.quantity == "training_flops":
        return _times(answer(exercise, asked), asked, Fraction(1, 2))
    return answer(changed(exercise, flops_per_mac=1), asked)


@mistake("query heads counted in the cache", quantities=("cache_bytes",))
def _query_heads(exercise: Exercise, asked: Asked) -> Answer | None:
    heads = exercise.size("heads")
    if heads is None or exercise.size("latent_width") is not None:
        return None
    return answer(changed(_with(exercise, asked, "kv_heads", heads), structure={"variant": None}), asked)


@mistake("one layer counted", quantities=_COUNTS)
def _one_layer(exercise: Exercise, asked: Asked) -> Answer | None:
    return None if exercise.size("layers") is None else answer(_with(exercise, asked, "layers", 1), asked)


@mistake("backward left out", quantities=_FLOPS)
def _forward_alone(exercise: Exercise, asked: Asked) -> Answer | None:
    if asked.quantity == "training_flops":
        return _times(answer(exercise, asked), asked, Fraction(1, 3))
    words = asked.object.replace("training", "").replace("backward", "").strip()
    return answer(changed(exercise, structure={"phase": "forward"}), asked.model_copy(update={"object": words}))


@mistake("embedding counted twice", quantities=("parameters", "weight_bytes"))
def _untied(exercise: Exercise, asked: Asked) -> Answer | None:
    return answer(changed(exercise, structure={"tied": False}), asked) if exercise.structure.tied else None


@mistake("GiB for GB", quantities=_BYTES)
def _binary(exercise: Exercise, asked: Asked) -> Answer | None:
    right = answer(exercise, asked)
    if right.form != "number" or right.unit not in ("kB", "MB", "GB", "TB"):
        return None
    return _times(right, asked, Fraction(factor(right.unit, "B")) / factor(right.unit, "B", binary=True))
