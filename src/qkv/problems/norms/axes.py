"""Which inputs a normalised number depends on: those that agree with it where the statistics do not run."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ..judging.choices import Choice, Choices, Option, labelled
from ..problem import Misconception, Part, Step

# Axes of a tensor: batch, token, feature.
SHAPES = {"BD": "[B, D]", "BTD": "[B, T, D]"}
INDEX = {"B": "b", "T": "t", "D": "j"}
WORDS = {"B": "example", "T": "token", "D": "feature"}


@dataclass(frozen=True)
class Norm:
    """A normalisation: `over` are the axes of its statistics, for each shape; `named` finds its name in a text."""

    name: str
    over: dict[str, str]
    named: str
    says: str
    mistakes: tuple[tuple[str, str], ...] = ()


NORMS: dict[str, Norm] = {
    "layer": Norm("layer normalisation", {"BD": "D", "BTD": "D"}, r"layer[- ]?norm\w*(?: normali[sz]ation)?|\bln\b",
                  "layer normalisation, with mean and variance over the features of one vector",
                  (("layer norm over the batch", "B"), ("only itself", ""), ("mean of every axis", "BTD"))),
    "batch": Norm("batch normalisation", {"BD": "B", "BTD": "BT"}, r"batch[- ]?norm\w*(?: normali[sz]ation)?|\bbn\b",
                  "batch normalisation in training, with mean and variance for each feature over all vectors of the "
                  "batch",
                  (("batch norm over the features", "D"), ("only itself", ""), ("mean of every axis", "BTD"))),
    "stored": Norm("batch normalisation in evaluation", {"BD": "", "BTD": ""},
                   r"(?:batch[- ]?norm\w*(?: normali[sz]ation)?|\bbn\b)(?: (?:in|at|during) \w+)?",
                   "batch normalisation in evaluation, with stored means and variances",
                   (("batch statistics in evaluation", "BT"), ("batch norm over the features", "D"))),
    "rms": Norm("RMS normalisation", {"BD": "D", "BTD": "D"}, r"rms[- ]?norm\w*(?: normali[sz]ation)?|\brms\b",
                "RMS normalisation, which divides by the root of the mean square of one vector's features",
                (("layer norm over the batch", "B"), ("only itself", ""))),
    "instance": Norm("instance normalisation", {"BTD": "T"}, r"instance[- ]?norm\w*(?: normali[sz]ation)?",
                     "instance normalisation, with mean and variance for each feature of one example over its tokens",
                     (("batch norm over the features", "D"), ("only itself", ""), ("mean of every axis", "BTD"))),
    "example": Norm("group normalisation", {"BTD": "TD"}, r"group[- ]?norm\w*(?: normali[sz]ation)?",
                    "group normalisation with one group, with mean and variance over all tokens and features of one "
                    "example",
                    (("layer norm over the batch", "BD"), ("only itself", ""), ("mean of every axis", "BTD"))),
}  # fmt: skip


@dataclass(frozen=True)
class NormChoices(Choices):
    """A choice for each norm, whose name may also come behind: "(i), (iii) for layer norm and (i), (ii) for …"."""

    def read(self, answer: str) -> dict[str, str]:
        text = answer[:5000].lower()
        places = sorted(
            (found.start(), found.end(), name)
            for name, pattern in self.names.items()
            if (found := re.search(rf"\b(?:for|under|with|in|by) (?:the )?(?:{pattern})", text)) is not None
        )
        between = zip([0, *(end for _, end, _ in places)], places, strict=False)
        pieces = {name: text[start:end].lstrip(" ,;.") for start, (end, _, name) in between}
        behind = len(pieces) == len(self.names) and not re.search(r"\w", text[places[-1][1] :])
        if behind and all(self.items[name].chosen(piece) is not None for name, piece in pieces.items()):
            return pieces
        return super().read(answer)


_NUMBER = r"(?:features?|entr(?:y|ies)|components?|columns?)"
_EXAMPLE = r"(?:sample|example|vector|row|token)s?"
_IN_WORDS = {
    "": (r"\bitself\b",),
    "D": (rf"(?:other|all|every)(?: the)? {_NUMBER} (?:of|in) (?:the same|its|this|one) {_EXAMPLE}",),
    "B": (rf"same {_NUMBER} (?:of|in|from|across|for|over) (?:the )?(?:other|every|all|each)(?: the)? {_EXAMPLE}",),
    "BD": (rf"other features? (?:of|in|from) (?:the )?other {_EXAMPLE}",),
}  # fmt: skip

# Ordered pairs of norms that can be told apart by name, with the shape that both have.
PAIRS = tuple(
    (shape, one, two)
    for shape in SHAPES
    for one in NORMS
    for two in NORMS
    if one != two and {one, two} != {"batch", "stored"} and shape in NORMS[one].over and shape in NORMS[two].over
)


def tensor_symbols(shape: str) -> dict[str, str]:
    """Names for printing: matrices have their indices; three axes are more than the types of `qkv.maths` know."""
    found = dict.fromkeys(shape, "natural")
    if shape != "BD":
        return found
    found |= dict.fromkeys(("X", "Y", "x", "y"), "matrix[B,D]")
    return found | {f"{INDEX[axis]}{prime}": f"index[{axis}]" for axis in shape for prime in ("", "'")}


def differing(shape: str) -> tuple[str, ...]:
    """The ways in which another entry's index can differ, as sets of axes: none, one axis, several."""
    return tuple("".join(axes) for size in range(len(shape) + 1) for axes in combinations(shape, size))


def depends(norm: Norm, shape: str, axes: str) -> bool:
    """Whether an output depends on an input whose index differs on these axes."""
    return set(axes) <= set(norm.over[shape])


def entry(shape: str, axes: str) -> str:
    """An entry whose index is primed on these axes: "x_{b',j}"."""
    return "x_{" + ",".join(INDEX[axis] + ("'" if axis in axes else "") for axis in shape) + "}"


def asked(shape: str, order: Sequence[str], norm: Norm, style: str) -> Choice:
    """The options in an order, right where this norm's output depends on them."""
    options = []
    for axes in order:
        where = " and ".join(f"${INDEX[axis]}' \\ne {INDEX[axis]}$" for axis in shape if axis in axes)
        text = f"${entry(shape, axes)}$" + (f" where {where}" if where else "")
        options.append(Option("", text, depends(norm, shape, axes), _reason(norm, shape, axes), _wordings(shape, axes)))
    return Choice(labelled(options, style), several=True)


def _wordings(shape: str, axes: str) -> tuple[str, ...]:
    """The entry as people type it: x_{b',j}, x_b'j, x[b', j]."""
    index = r"[\s,]*".join("[a-z]" + ("'" if axis in axes else "(?!')") for axis in shape)
    return (rf"x[_\s]*[{{(\[]?\s*{index}", *(_IN_WORDS.get(axes, ()) if shape == "BD" else ()))


def _reason(norm: Norm, shape: str, axes: str) -> str:
    if not axes:
        return "the entry itself is what is normalised"
    over = " and ".join(f"{WORDS[axis]}s" for axis in norm.over[shape])
    if depends(norm, shape, axes):
        return f"mean and variance run over the {over}, this entry among them"
    stays = " and ".join(WORDS[axis] for axis in axes if axis not in norm.over[shape])
    return f"the statistics run over {f'the {over}' if over else 'nothing of the input'}, and this is another {stays}"


def dependence_part(name: str, shape: str, norms: Sequence[str], order: Sequence[str], style: str) -> Part:
    """Which inputs an output depends on, for one norm or for two."""
    chosen = {NORMS[key].name: (NORMS[key], asked(shape, order, NORMS[key], style)) for key in norms}
    first = next(iter(chosen.values()))[1]
    # A single choice has its options printed below the question by itself.
    options = "; ".join(f"({option.label}) {option.text}" for option in first.options) if len(chosen) > 1 else ""
    both = " Answer for " + " and for ".join(norm.says for norm, _ in chosen.values()) + "."
    if len(chosen) > 1:
        answer = NormChoices({key: choice for key, (_, choice) in chosen.items()},
                             {key: norm.named for key, (norm, _) in chosen.items()})  # fmt: skip
    else:
        answer = first

    def steps() -> tuple[Step, ...]:
        found = []
        for norm, choice in chosen.values():
            over = norm.over[shape]
            run = " and ".join(f"${INDEX[axis]}$" for axis in over)
            what = f"For {norm.name} " + (f"let {run} run, and keep every other index." if over else "nothing runs.")
            why = (f"Mean and variance are taken over {run}: these entries come in." if over else
                   "The statistics are stored numbers, whatever the batch.")  # fmt: skip
            found.append(Step(what, why, value=choice.text))
        return tuple(found)

    mistakes = []
    for key, (norm, choice) in chosen.items():
        for mistake, over in norm.mistakes:
            picked = [
                option.label for option, axes in zip(choice.options, order, strict=True) if set(axes) <= set(over)
            ]
            if frozenset(picked) != choice.right:
                text = ", ".join(f"({label})" for label in picked)
                mistakes.append(Misconception(mistake, f"{key}: {text}" if len(chosen) > 1 else text))
    index = ",".join(INDEX[axis] for axis in shape)
    listed = f": {options}" if options else ""
    return Part(
        name,
        f"Which of these does $y_{{{index}}}$ depend on? Select all that apply{listed}.{both}",
        answer,
        steps,
        (
            "Over which index does the sum in the mean run?",
            "An input matters when it differs from the output's place only in indices that the statistics run over.",
            " ".join(_third(norm, shape) for norm, _ in chosen.values()),
        ),
        2 * len(chosen),
        tuple(mistakes),
        tensor_symbols(shape),
        (r"depends? on", r"select all", *(norm.named for norm, _ in chosen.values())),
        " ".join(f"{_third(norm, shape)[:-1]}: {choice.text}." for norm, choice in chosen.values()),
    )


def _third(norm: Norm, shape: str) -> str:
    over = norm.over[shape]
    run = " and ".join(f"the {WORDS[axis]}s" for axis in over)
    name = f"{norm.name[0].upper()}{norm.name[1:]}"
    return f"{name} takes its statistics over {run}." if over else f"{name} takes no statistics at all."


def shuffled_order(shape: str, draw: random.Random) -> tuple[str, ...]:
    """Four or five ways to differ, in any order, the entry itself among them."""
    ways = list(differing(shape))
    if shape == "BTD":
        ways = [way for way in ways if len(way) < 2] + draw.sample([way for way in ways if len(way) > 1], 1)
    draw.shuffle(ways)
    return tuple(ways)


STYLES = ("i", "A", "1")
