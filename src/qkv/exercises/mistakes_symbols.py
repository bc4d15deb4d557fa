"""Known mistakes on masks, bottlenecks, proofs and widths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from .mistakes import mistake
from .record import Asked, Exercise
from .solvers.growth import regime
from .solving import Answer, answer

_ENCODER, _DECODER, _CROSS = "encoder self-attention", "decoder self-attention", "cross-attention"
_PADDING, _CAUSAL, _NONE = "padding mask", "causal mask", "no mask"


def _masks(name: str, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
    """Register a mistake that puts other masks on some of the attentions of a model."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        table = {place: item.text for place, item in right.items.items()}
        changed = {place: mask for place, mask in change(table).items() if place in table}
        if not changed:
            return None
        items = {place: replace(item, text=changed.get(place, item.text)) for place, item in right.items.items()}
        text = "; ".join(f"{place}: {item.text}" for place, item in items.items())
        return replace(right, text=text, value=text, items=items)

    mistake(name, quantities=("masks_needed",))(wrong)


_masks("causal mask in an encoder", lambda table: {_ENCODER: _CAUSAL})
_masks("padding mask forgotten", lambda table: {place: _NONE for place, mask in table.items() if mask == _PADDING})
_masks("no causal mask in the decoder", lambda table: {_DECODER: _PADDING})
_masks("causal mask in cross-attention", lambda table: {_CROSS: _CAUSAL})


@mistake("bottleneck mixed up", quantities=("bottleneck",))
def _mixed_up(exercise: Exercise, asked: Asked) -> Answer:
    width, _ = regime(asked.object or asked.text)
    other = "sequences long, width small" if width == 1 else "width large, sequences short"
    return answer(exercise, asked.model_copy(update={"object": other}))


@mistake("width instead of its root", quantities=("identity",))
def _without_root(exercise: Exercise, asked: Asked) -> Answer | None:
    right = answer(exercise, asked)
    text = re.sub(r"\\sqrt\{(\w+)\}", r"\1", right.text)
    return replace(right, text=text) if text != right.text else None


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
