"""Norms: one entry of the input is dragged; which outputs of LayerNorm and BatchNorm move, and what stays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...errors import complaint
from ..fields import Choice, Matrix, Number, State, WrongField
from ..view import Result, View, Work

LARGEST = 1000  # beyond it rounding would be all that the differences show
MOST = 6

SAID = {
    ("layer", True): "A vector is normalised by itself: no other vector can move.",
    ("batch", True): "A component is normalised over the batch: no other component can move.",
    ("batch", False): "The stored mean and variance are constants: only the output at the same place can move.",
}


def training(state: State) -> bool:
    return state["norm"] == "layer" or state["mode"] == "train"


def said(state: State, width: int) -> str:
    """What may move and, where nothing can, why."""
    rule = SAID[state["norm"], training(state)]
    if not state["delta"]:
        return f"{rule} Here nothing is dragged."
    if not state["gamma"]:
        return f"{rule} With γ = 0 every output is β."
    if state["norm"] == "layer" and width == 1:
        return f"{rule} A vector of one component is its own mean, and its output is β."
    return rule


def place(state: State) -> tuple[int, int]:
    """Row and column of the dragged entry, from 0; beyond the last, the last."""
    return min(state["row"], len(state["x"])) - 1, min(state["column"], len(state["x"][0])) - 1


def given(state: State) -> list[list[float]]:
    return [[float(entry) for entry in row] for row in state["x"]]


def compute(state: State, work: Work) -> Result:
    from ...theory.normalisation import change_input

    x, (row, column) = given(state), place(state)
    if (largest := max(abs(entry) for line in x for entry in line)) > LARGEST:
        raise WrongField("x", complaint("x", f"an entry of size {largest:g}", f"entries from -{LARGEST} to {LARGEST}"))
    if state["norm"] == "batch" and training(state) and len(x) < 2:
        raise WrongField("x", complaint("x", "one vector", "two or more", "over a batch of one there is no spread"))
    moved = change_input(
        x,
        row,
        column,
        state["delta"],
        kind=state["norm"],
        training=training(state),
        epsilon=state["eps"],
        gamma=state["gamma"],
        beta=state["beta"],
    )
    change = moved.difference
    flat = [[entry for line in other for entry in line] for each in moved.depends for other in each]
    expected = sum(entry for each in moved.expected for other in each for line in other for entry in line)
    return {
        "rows": len(x),
        "columns": len(x[0]),
        "row": row + 1,
        "column": column + 1,
        "delta": state["delta"],
        "x": x,
        "dragged_to": x[row][column] + state["delta"],
        "before": moved.before,
        "after": moved.after,
        "difference": change,
        "moved": [[entry != 0 for entry in line] for line in change],
        "moved_count": sum(entry != 0 for line in change for entry in line),
        "outputs": len(x) * len(x[0]),
        "slopes": [[entry[row][column] for entry in line] for line in moved.jacobian],
        "depends": [[entry[row][column] for entry in line] for line in moved.depends],
        "jacobian": flat,
        "entries": len(flat) ** 2,
        "nonzero": sum(map(sum, flat)),
        "expected": expected,
        "said": said(state, len(x[0])),
        "normalised": [
            {"mean": each.mean, "sigma": each.sigma, "length": each.length, "said": each.predicted}
            for each in moved.normalised
        ],
        "stored": None if moved.stored is None else {"mean": moved.stored[0], "variance": moved.stored[1]},
    }


def pictures(state: State, result: Result) -> dict[str, str]:
    from ...figures.diagrams import sparsity_pattern

    dragged = (result["row"] - 1) * result["columns"] + result["column"] - 1
    drawn = sparsity_pattern(
        "Where the Jacobian is not zero",
        result["jacobian"],
        result["columns"],
        "outputs, vector by vector",
        "inputs, vector by vector",
        dragged,
    )
    told = _said()
    which = "stored" if result["stored"] else state["norm"]
    return {"jacobian": drawn, **told, "slopes": told[which]}


@lru_cache(maxsize=1)
def _said() -> dict[str, str]:
    """What the claim says, and its derivations by name: the same for every state."""
    from ...theory.claim import correction_items, statement_blocks
    from ...theory.normalisation import without_evidence
    from ..markup import blocks_html

    claim = without_evidence()
    layer, batch, stored, *_, without_eps, with_eps = claim.derivation.chains()
    blocks = {
        "statement": statement_blocks(claim),
        "layer": [layer],
        "batch": [batch],
        "stored": [stored],
        "length": [without_eps, with_eps],
        "corrections": [correction_items(claim)],
    }
    return {name: blocks_html(each) for name, each in blocks.items()}


def python(state: State) -> str:
    row, column = place(state)
    options = {
        "kind": repr(state["norm"]),
        "training": training(state),
        "epsilon": state["eps"],
        "gamma": state["gamma"],
        "beta": state["beta"],
    }
    said = "".join(f", {name}={value}" for name, value in options.items())
    return (
        "from qkv.theory.normalisation import change_input\n\n"
        f"x = {given(state)}\n"
        f"moved = change_input(x, {row}, {column}, {state['delta']}{said})\n"
        "for before, after, change in zip(moved.before, moved.after, moved.difference):\n"
        "    print(before, after, change)\n"
        f"print([[entry[{row}][{column}] for entry in line] for line in moved.jacobian])\n"
        "print(moved.normalised, moved.stored)\n"
    )


_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_NUMBER: dict[str, Any] = {"type": "number"}
_GRID = {"type": "array", "items": {"type": "array", "items": _NUMBER}}
_FLAGS = {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}

VIEW = View(
    name="norms",
    title="Norms",
    verb="prove",
    simple="What a normalisation looks at: change one number and see what moves.",
    lead="What one entry of the input can move: in LayerNorm its vector, in BatchNorm its component, in evaluation one "
    "place.",
    fields=(
        Choice(
            name="norm",
            label="Norm",
            options={"layer": "LayerNorm: over a vector", "batch": "BatchNorm: over the batch"},
            default="layer",
        ),
        Choice(
            name="mode",
            label="Mode",
            options={"train": "training: statistics of this batch", "eval": "evaluation: stored statistics"},
            default="train",
            needs=("norm", ("batch",)),
        ),
        Number(name="delta", label="Drag by", low=-3, high=3, default=1, step=0.1, group="The dragged entry"),
        Number(name="row", label="Vector (row)", low=1, high=MOST, default=2, whole=True, group="The dragged entry"),
        Number(
            name="column",
            label="Component (column)",
            help="Beyond the last, the last.",
            low=1,
            high=MOST,
            default=3,
            whole=True,
            group="The dragged entry",
        ),
        Matrix(
            name="x",
            label="X: vectors as rows",
            default="1,2,4,9;3,-1,0,2;5,1,2,-4",
            most_rows=MOST,
            most_columns=MOST,
            rows="vector",
            columns="component",
            group="Input",
        ),
        Number(name="gamma", label="Gain γ", low=-3, high=3, default=1, step=0.1, group="Parameters"),
        Number(name="beta", label="Shift β", low=-3, high=3, default=0, step=0.1, group="Parameters"),
        Number(
            name="eps",
            label="ε under the root",
            low=1e-12,
            high=10,
            default=1e-5,
            step=1e-5,
            slider=False,
            group="Parameters",
        ),
    ),
    compute=compute,
    pictures=pictures,
    python=python,
    schema={
        **dict.fromkeys(
            ("rows", "columns", "row", "column", "moved_count", "outputs", "entries", "nonzero", "expected"), _WHOLE
        ),
        **dict.fromkeys(("delta", "dragged_to"), _NUMBER),
        **dict.fromkeys(("x", "before", "after", "difference", "slopes"), _GRID),
        **dict.fromkeys(("moved", "depends", "jacobian"), _FLAGS),
        "said": {"type": "string"},
        "normalised": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": dict.fromkeys(("mean", "sigma", "length", "said"), _NUMBER),
            },
        },
        "stored": {
            "type": ["object", "null"],
            "properties": {name: {"type": "array", "items": _NUMBER} for name in ("mean", "variance")},
        },
    },
    scripts=("views/norms.js",),
)
