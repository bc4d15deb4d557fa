"""Known mistakes on masks, bottlenecks and widths."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from .mistakes import mistake
from .record import Asked, Exercise
from .solvers.growth import regime
from .solving import Answer, answer

# The attention that a mistake is about, the mask that it has, and the one that is put in its place.
_MASKS = {
    "causal mask in an encoder": ("encoder", "", "causal mask"),
    "padding mask forgotten": ("", "padding mask", "no mask"),
    "no causal mask in the decoder": ("decoder", "", "padding mask"),
    "causal mask in cross-attention": ("cross", "", "causal mask"),
}


def _masked(place: str, mask: str, put: str, exercise: Exercise, asked: Asked) -> Answer:
    right = answer(exercise, asked)
    items = {
        name: replace(item, text=put) if name.startswith(place) and mask in ("", item.text) else item
        for name, item in right.items.items()
    }
    text = "; ".join(f"{name}: {item.text}" for name, item in items.items())
    return replace(right, text=text, value=text, items=items)


for _name, _change in _MASKS.items():
    mistake(_name, quantities=("masks_needed",))(partial(_masked, *_change))


@mistake("bottleneck mixed up", quantities=("bottleneck",))
def _mixed_up(exercise: Exercise, asked: Asked) -> Answer:
    width, _ = regime(asked.object or asked.text)
    other = "sequences long, width small" if width == 1 else "width large, sequences short"
    return answer(exercise, asked.model_copy(update={"object": other}))


@mistake("model width for head width", quantities=("mean", "variance", "scale_for_variance"))
def _whole_width(exercise: Exercise, asked: Asked) -> Answer | None:
    """The width of the model where a head's belongs; only where both are given."""
    head, whole = exercise.given("head_width"), exercise.given("width")
    if head is None or whole is None:
        return None
    wide = head.model_copy(update={"value": whole.value, "symbol": whole.symbol})
    givens = tuple(
        given.model_copy(update={"shape": None}) if given.law else wide if given is head else given
        for given in exercise.givens
        if given is not whole
    )
    return answer(exercise.model_copy(update={"givens": givens}), asked)
