"""Known mistakes in counts of parameters, operations and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..cost.polynomial import whole
from .mistakes import Mistake, mistake
from .record import Asked, Exercise, Given
from .solving import Answer, answer
from .units import factor, number_text, with_unit
from .values import changed

_BYTES = ("cache_bytes", "weight_bytes", "tensor_bytes", "moved_bytes", "activation_bytes", "training_bytes")
_COUNTS = ("parameters", "flops", "training_flops", *_BYTES)
_FLOPS = ("flops", "training_flops")


def _times(by: Any, applies: Callable[[Exercise], bool] = lambda _: True) -> Mistake:
    """A mistake that multiplies the right number."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        if right.form != "number" or not applies(exercise):
            return None
        value = whole(Fraction(right.value) * by)
        in_bytes = asked.quantity in _BYTES
        text = with_unit(value, right.unit, "B") if in_bytes else number_text(value)
        return replace(right, text=text, value=value, also=(), assumed=())

    return wrong


def _with(exercise: Exercise, asked: Asked, role: Any, value: Any) -> Exercise:
    """The record with another size."""
    return exercise.with_changes(asked.model_copy(update={"changes": (Given(role=role, value=value),)}))


mistake("keys counted, values not", quantities=("cache_bytes",))(
    _times(
        Fraction(1, 2), lambda exercise: exercise.structure.variant != "mla" and exercise.size("latent_width") is None
    )
)
mistake("bits for bytes", quantities=_BYTES)(_times(8))
mistake("backward left out", quantities=("training_flops",))(_times(Fraction(1, 3)))


@mistake("multiply-adds counted once", quantities=_FLOPS)
def _counted_once(exercise: Exercise, asked: Asked) -> Answer | None:
    if asked.quantity == "training_flops":
        return _times(Fraction(1, 2))(exercise, asked)
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


@mistake("backward left out", quantities=("flops",))
def _forward_alone(exercise: Exercise, asked: Asked) -> Answer:
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
    value = whole(Fraction(right.value) * factor(right.unit, "B") / factor(right.unit, "B", binary=True))
    return replace(right, text=with_unit(value, right.unit, "B"), value=value, also=(), assumed=())
