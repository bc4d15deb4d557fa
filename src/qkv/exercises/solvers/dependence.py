"""Which inputs an output depends on: under norms and masks, after several layers, and the masks that models need."""

from __future__ import annotations

import re

from ...derivation import Derivation, chain
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise, Option
from ..solving import Also, Answer, solver
from .formulas import number_in

# The axes that mean and variance run over, for inputs of two, three and four axes: batch, token, feature, and space.
_AXES = {2: "BD", 3: "BTD", 4: "BCHW"}
_OVER = {
    "layer": {2: "D", 3: "D", 4: "CHW"},
    "rms": {2: "D", 3: "D", 4: "CHW"},
    "batch": {2: "B", 3: "BT", 4: "BHW"},
    "instance": {3: "T", 4: "HW"},
    "group": {3: "TD", 4: "CHW"},
    "stored": {2: "", 3: "", 4: ""},
}
_WORDS = {
    "B": r"\b(?:examples?|rows?|samples?|vectors?|sequences?|batch|instances?)\b",
    "T": r"\b(?:tokens?|positions?|time ?steps?)\b",
    "D": r"\b(?:features?|dimensions?|columns?|components?|hidden units?)\b",
    "C": r"\bchannels?\b",
    "H": r"\b(?:pixels?|rows? of the image|spatial|places?)\b",
}


@solver("dependence")
def dependence(exercise: Exercise, asked: Asked) -> Answer:
    """The inputs that an output depends on; with options, the labels of those that it depends on."""
    words = asked.object.lower()
    kind = _norm(exercise, words)
    if kind is None:
        return _under_mask(exercise, asked, words)
    given = exercise.given("input") or exercise.given("tokens")
    rank = len(given.shape) if given is not None and given.shape else _rank_of_options(asked)
    if rank not in _OVER[kind]:
        raise CannotSolve("missing", needs="the shape of the input")
    if kind == "group" and exercise.size("groups") not in (None, 1):
        raise CannotSolve("not_understood", found="which channels belong to one group")
    axes, over = _AXES[rank], _OVER[kind][rank]
    names = {"B": "examples", "T": "tokens", "D": "features", "C": "channels", "H": "rows", "W": "columns"}
    runs = " and ".join(names[axis] for axis in axes if axis in over) or "nothing of the input"
    why = f"mean and variance run over {runs}" if kind != "stored" else "the statistics are stored numbers"
    if not asked.options:
        kept = " and ".join(names[axis][:-1] for axis in axes if axis not in over)
        text = f"all {runs} of the same {kept}" if over else "the entry itself alone"
        return Answer(text, text, "words", derivation=Derivation.of(chain(why)))
    chosen = [option for option in asked.options if _differs(option, axes) <= set(over)]
    return _choice(chosen, why)


def _choice(chosen: list[Option], why: str) -> Answer:
    labels = tuple(option.label for option in chosen)
    return Answer(
        ", ".join(f"({label})" for label in labels) or "none", labels, "choice", derivation=Derivation.of(chain(why))
    )


def _norm(exercise: Exercise, words: str) -> str | None:
    """The norm that is asked about, by its name or by the structure."""
    found = [kind for kind in ("layer", "rms", "batch", "instance", "group") if re.search(rf"\b{kind}", words)]
    if not found and "norm" in (words or "norm") and exercise.structure.norm not in (None, "none"):
        found = [str(exercise.structure.norm)] if not re.search(r"attention|mask", words) else []
    if len(found) > 1:
        raise CannotSolve("not_understood", found=f"{' and '.join(found)} norm at once")
    if found == ["batch"] and re.search(r"\beval|\binference|\btest time|stored|running", words):
        return "stored"
    return found[0] if found else None


def _indices(text: str) -> list[str] | None:
    plain = re.sub(r"\^?\s*\{?\\prime\}?|′|’", "'", text)
    found = re.search(r"x\s*_?\s*[{\[(]?\s*([a-z]'?(?:\s*,?\s*[a-z]'?){1,3})\s*[}\])]?", plain)
    return re.findall(r"[a-z]'?", found[1]) if found else None


def _rank_of_options(asked: Asked) -> int:
    ranks = {len(indices) for option in asked.options if (indices := _indices(option.text)) is not None}
    return ranks.pop() if len(ranks) == 1 else 2


def _differs(option: Option, axes: str) -> set[str]:
    """The axes on which an option's entry differs from the output's."""
    indices = _indices(option.text)
    if indices is not None and len(indices) == len(axes):
        return {axis for axis, index in zip(axes, indices, strict=True) if index.endswith("'")}
    text = option.text.lower()
    found = set()
    for clause in re.split(r"\band\b|,|\bof\b|\bin\b|\bfrom\b", text):
        for axis in axes:
            if axis in _WORDS and re.search(r"\bother|different|another", clause) and re.search(_WORDS[axis], clause):
                found.add(axis)
    if not found and not re.search(r"itself|same (?:entry|element|position)|own", text):
        raise CannotSolve("not_understood", found=option.text)
    return found


def _under_mask(exercise: Exercise, asked: Asked, words: str) -> Answer:
    """Attention: an output depends on its query's token and on the keys and values that its mask allows."""
    mask = exercise.structure.mask
    causal = "causal" in mask or re.search(r"causal|decoder|autoregressive", words)
    window = re.search(r"window\(\s*(\d+)\s*,\s*(\d+)\s*\)", mask)
    if not causal and not window and not re.search(r"attention|full|bidirectional|encoder|unmasked", words):
        raise CannotSolve("not_understood", found=asked.object)
    row, length = asked.row, exercise.size("length")
    first, last = "1", str(length or "n")
    base = exercise.convention("index_base", 1)
    if row is not None and (causal or window):
        low = max(base, row - int(window[1])) if window else base
        high = row if causal else row + int(window[2]) if window else row
        high = min(high, base + length - 1) if isinstance(length, int) else high
        places = range(low, high + 1)
        named = [option for option in asked.options if re.search(r"\d+", option.text)]
        if asked.options and len(named) == len(asked.options):
            chosen = [option for option in named if int((re.findall(r"\d+", option.text) or ["-1"])[-1]) in places]
            return _choice(chosen, f"position {row} attends to positions {low} to {high}")
        steps = chain(f"position {row} attends to positions {low} to {high}")
        return Answer(f"({', '.join(map(str, places))})", tuple(places), "vector", derivation=Derivation(steps))
    if window and not causal:
        raise CannotSolve("missing", needs="the position that is asked about")
    last = "i" if causal else last
    text = f"positions {first} to {last}"
    return Answer(text, text, "words", derivation=Derivation.of(chain(f"output i depends on {text}")))


@solver("receptive_field", ["layers"])
def receptive_field(exercise: Exercise, asked: Asked) -> Answer:
    """How many positions an output can depend on after the layers."""
    layers, length = exercise.size("layers"), exercise.size("length")
    words = f"{asked.object} {exercise.structure.mask} {exercise.structure.similarity}".lower()
    window, stated = exercise.size("window"), re.search(r"window\(\s*(\w+)\s*,\s*(\w+)\s*\)", exercise.structure.mask)
    if window is not None or stated is not None:
        return _window_field(asked, layers, window, stated, length)
    if not re.search(r"argmax|hard|one position|head", words):
        raise CannotSolve("missing", needs="what one layer sees")
    heads = exercise.size("heads") or 1
    residual = exercise.structure.residual is not False
    base = f"{int(heads) + residual}" if isinstance(heads, int) else f"({heads} + 1)" if residual else heads
    why = "each position keeps itself and meets one more by each head" if residual else "each head meets one position"
    return _counted(
        f"{base}^{layers}" if len(str(layers)) == 1 else f"{base}^{{{layers}}}", length, (heads, layers), why
    )


def _window_field(asked: Asked, layers: object, window: object, stated: re.Match[str] | None, length: object) -> Answer:
    also: tuple[Also, ...] = ()
    assumed: tuple[Finding, ...] = ()
    if stated is not None:
        reach = f"({stated[1]} + {stated[2]})" if stated[2] != "0" else stated[1]
        names = (stated[1], stated[2], layers)
    elif re.search(r"each side|both sides|either side|two-sided|neighbou?rs", f"{asked.object} {asked.text}".lower()):
        reach, names = f"2 \\cdot {window}", (window, layers)
    else:
        reach, names = f"({window} - 1)", (window, layers)
        other = _counted(f"{layers} \\cdot {window} + 1", length, names, "")
        also = (Also(other.text, other.value, "the window without the position itself", other.symbols),)
        value = "that it does"
        assumed = (Finding("assumed", {"convention": "whether the window counts the position itself", "value": value}),)
    found = _counted(
        f"{layers} \\cdot {reach} + 1", length, names, "each layer reaches farther by what one window adds"
    )
    return Answer(
        found.text,
        found.value,
        found.form,
        symbols=found.symbols,
        also=also,
        assumed=assumed,
        derivation=found.derivation,
    )


def _counted(text: str, length: object, names: tuple[object, ...], why: str) -> Answer:
    """A count, at most the length of the sequence where that is a number."""
    kinds = {str(name): "natural" for name in names if isinstance(name, str) and not name.isdigit()}
    value = number_in(text)
    if value is None:
        return Answer(text, text, "formula", symbols=kinds, derivation=Derivation.of(chain(why, text), symbols=kinds))
    short, whole = text, int(value)
    if isinstance(length, int) and length < whole:
        short, whole = rf"\min({length}, {text})", length
    return Answer(str(whole), whole, "number", derivation=Derivation.of(chain(why, short, str(whole))))


_PADDING, _CAUSAL = "padding mask", "causal mask"


@solver("masks_needed")
def masks_needed(exercise: Exercise, asked: Asked) -> Answer:
    """Which masks each attention of a model needs when sequences are padded."""
    words = f"{asked.object} {exercise.structure.source or ''}".lower()
    left = bool(re.search(r"left", f"{words} {asked.text.lower()}"))
    both = re.search(r"encoder[-– ](?:and[- ])?decoder|seq2seq|translat|\bt5\b|\bbart\b", words)
    decoder = re.search(r"decoder|\bgpt|language model|generat|autoregress|causal", words)
    encoder = re.search(r"encoder|\bbert|classif|embedding", words)
    own = f"{_CAUSAL} and {_PADDING}" if left else _CAUSAL
    if both:
        items = {"encoder self-attention": _PADDING, "decoder self-attention": own, "cross-attention": _PADDING}
    elif decoder:
        items = {"decoder self-attention": own}
    elif encoder:
        items = {"encoder self-attention": _PADDING}
    else:
        raise CannotSolve("not_understood", found=asked.object)
    why = {
        _PADDING: "its queries may see every key but the pads",
        _CAUSAL: "no query may see a later token; pads on the right come later than every token",
        own: "no query may see a later token, and pads on the left come first" if left else "",
    }
    if not left and "decoder self-attention" in items:
        why[own] = "no query may see a later token; pads on the right come later than every token"
    steps = [chain(f"{place}: {mask}", reason=why[mask]) for place, mask in items.items()]
    text = "; ".join(f"{place}: {mask}" for place, mask in items.items())
    assumed = (
        ()
        if left or not (decoder or both)
        else (Finding("assumed", {"convention": "the side of the pads", "value": "the right"}),)
    )
    return Answer(text, text, "words", items={place: Answer(mask, mask, "words") for place, mask in items.items()},
                  assumed=assumed, derivation=Derivation.of(*steps))  # fmt: skip
