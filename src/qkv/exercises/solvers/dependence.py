"""Which inputs an output depends on: under norms and masks, after several layers, and the masks that models need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ...derivation import chain
from ..findings import CannotSolve
from ..record import Asked, Exercise, Option
from ..solving import Also, Answer, solver
from .formulas import assumed, formula, naturals, number_in, table


@solver("dependence")
def dependence(exercise: Exercise, asked: Asked) -> Answer:
    """The inputs that an output depends on; with options, the labels of those that it depends on."""
    words, known = asked.object.lower(), table("norms")
    kind = _norm(exercise, words)
    if kind is None:
        return _under_mask(exercise, asked, words)
    given = exercise.given("input") or exercise.given("tokens")
    ranks = {len(indices) for option in asked.options if (indices := _indices(option.text))}
    rank = str(len(given.shape) if given is not None and given.shape else ranks.pop() if len(ranks) == 1 else 2)
    if rank not in known["over"][kind]:
        raise CannotSolve("missing", needs="the shape of the input")
    if kind == "group" and exercise.size("groups") not in (None, 1):
        raise CannotSolve("not_understood", found="which channels belong to one group")
    axes, over, names = known["axes"][rank], known["over"][kind][rank], known["names"]
    runs = " and ".join(names[axis] for axis in axes if axis in over)
    why = f"mean and variance run over {runs}" if over else "the statistics are stored numbers"
    if asked.options:
        return _choice([option for option in asked.options if _differs(option, axes) <= set(over)], why)
    kept = " and ".join(names[axis][:-1] for axis in axes if axis not in over)
    return formula(f"all {runs} of the same {kept}" if over else "the entry itself alone", chain(why), form="words")


def _choice(chosen: Sequence[Option], why: str) -> Answer:
    labels = tuple(option.label for option in chosen)
    return formula(", ".join(f"({label})" for label in labels) or "none", chain(why), form="choice", value=labels)


def _norm(exercise: Exercise, words: str) -> str | None:
    """The norm that is asked about, by its name or by the structure."""
    found = [kind for kind in table("norms")["over"] if kind != "stored" and re.search(rf"\b{kind}", words)]
    norm = exercise.structure.norm
    if not found and "norm" in (words or "norm") and norm not in (None, "none"):
        found = [] if re.search(r"attention|mask", words) else [norm]
    if len(found) > 1:
        raise CannotSolve("not_understood", found=f"{' and '.join(found)} norm at once")
    if found == ["batch"] and re.search(r"\beval|\binference|\btest time|stored|running", words):
        return "stored"
    return found[0] if found else None


def _indices(text: str) -> list[str]:
    plain = re.sub(r"\^?\s*\{?\\prime\}?|′|’", "'", text)
    found = re.search(r"x\s*_?\s*[{\[(]?\s*([a-z]'?(?:\s*,?\s*[a-z]'?){1,3})\s*[}\])]?", plain)
    return re.findall(r"[a-z]'?", found[1]) if found else []


def _differs(option: Option, axes: str) -> set[str]:
    """The axes on which an option's entry differs from the output's."""
    indices, text = _indices(option.text), option.text.lower()
    if len(indices) == len(axes):
        return {axis for axis, index in zip(axes, indices, strict=True) if index.endswith("'")}
    clauses = re.split(r"\band\b|,|\bof\b|\bin\b|\bfrom\b", text)
    clauses = [clause for clause in clauses if re.search(r"other|different", clause)]
    words = {axis: words for axis, words in table("norms")["words"].items() if axis in axes}
    found = {axis for axis in words for clause in clauses if re.search(words[axis], clause)}
    if not found and not re.search(r"itself|same (?:entry|element|position)|own", text):
        raise CannotSolve("not_understood", found=option.text)
    return found


def _under_mask(exercise: Exercise, asked: Asked, words: str) -> Answer:
    """Attention: an output depends on its query's token and on the keys and values that its mask allows."""
    mask, row, length = exercise.structure.mask, asked.row, exercise.size("length")
    causal = "causal" in mask or re.search(r"causal|decoder|autoregressive", words)
    window = re.search(r"window\(\s*(\d+)\s*,\s*(\d+)\s*\)", mask)
    if not causal and not window and not re.search(r"attention|full|bidirectional|encoder|unmasked", words):
        raise CannotSolve("not_understood", found=asked.object)
    if window and not causal and row is None:
        raise CannotSolve("missing", needs="the position that is asked about")
    if row is None or not (causal or window):
        text = f"positions 1 to {'i' if causal else length or 'n'}"
        return formula(text, chain(f"output i depends on {text}"), form="words")
    base = exercise.convention("index_base", 1)
    low = max(base, row - int(window[1])) if window else base
    high = row if causal or not window else row + int(window[2])
    high = min(high, base + length - 1) if isinstance(length, int) else high
    places, why = range(low, high + 1), f"position {row} attends to positions {low} to {high}"
    numbers = {option.label: re.findall(r"\d+", option.text) for option in asked.options}
    if numbers and all(numbers.values()):
        return _choice([option for option in asked.options if int(numbers[option.label][-1]) in places], why)
    return formula(f"({', '.join(map(str, places))})", chain(why), form="vector", value=tuple(places))


@solver("receptive_field", ["layers"])
def receptive_field(exercise: Exercise, asked: Asked) -> Answer:
    """How many positions an output can depend on after the layers."""
    layers, length, window = (exercise.size(role) for role in ("layers", "length", "window"))
    stated = re.search(r"window\(\s*(\w+)\s*,\s*(\w+)\s*\)", exercise.structure.mask)
    if window is None and stated is None:
        words = f"{asked.object} {exercise.structure.similarity}".lower()
        if not re.search(r"argmax|hard|one position|head", words):
            raise CannotSolve("missing", needs="what one layer sees")
        heads, residual = exercise.size("heads") or 1, exercise.structure.residual is not False
        base = str(heads + residual) if isinstance(heads, int) else f"({heads} + 1)" if residual else heads
        why = "each position keeps itself and meets one more by each head"
        why = why if residual else "each head meets one position"
        power = str(layers) if len(str(layers)) == 1 else f"{{{layers}}}"
        return _counted(f"{base}^{power}", length, (heads, layers), why)
    why, many = "each layer reaches farther by what one window adds", rf"{layers} \cdot "
    if stated is not None:
        reach = f"({stated[1]} + {stated[2]})" if stated[2] != "0" else stated[1]
        return _counted(f"{many}{reach} + 1", length, (stated[1], stated[2], layers), why)
    if re.search(r"each side|both sides|either side|two-sided|neighbou?rs", f"{asked.object} {asked.text}".lower()):
        return _counted(rf"{many}2 \cdot {window} + 1", length, (window, layers), why)
    other = _counted(f"{many}{window} + 1", length, (window, layers), "")
    also = (Also(other.text, other.value, "the window without the position itself", other.symbols),)
    taken = assumed("whether the window counts the position itself", "that it does")
    return replace(_counted(f"{many}({window} - 1) + 1", length, (window, layers), why), also=also, assumed=taken)


def _counted(text: str, length: object, names: Sequence[object], why: str) -> Answer:
    """A count, at most the length of the sequence where that is a number."""
    value = number_in(text)
    if value is None:
        return formula(text, chain(why, text), symbols=naturals(*names))
    short, whole = text, int(value)
    if isinstance(length, int) and length < whole:
        short, whole = rf"\min({length}, {text})", length
    return formula(str(whole), chain(why, short, str(whole)), form="number", value=whole)


@solver("masks_needed")
def masks_needed(exercise: Exercise, asked: Asked) -> Answer:
    """Which masks each attention of a model needs when sequences are padded."""
    words = f"{asked.object} {exercise.structure.source or ''}".lower()
    left = "left" in f"{words} {asked.text.lower()}"
    needed = next((model["masks"] for model in table("models") if re.search(model["words"], words)), None)
    if needed is None:
        raise CannotSolve("not_understood", found=asked.object)
    masks = {place: table("masks")["left" if left and mask == "own" else mask] for place, mask in needed.items()}
    items = {place: formula(each["mask"], chain(f"{place}: {each['mask']}", reason=each["why"]), form="words")
             for place, each in masks.items()}  # fmt: skip
    side = () if left or "own" not in needed.values() else assumed("the side of the pads", "the right")
    return Answer.joined(items, ": ", form="words", assumed=side)
