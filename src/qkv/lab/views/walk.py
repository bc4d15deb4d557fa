"""Walk: attention from tokens to output, every number with where it came from."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...problems.by_hand.family import TO_KEYS, TO_QUERIES, TO_VALUES, TOKENS
from ...problems.exact import Matrix, times
from ..fields import Choice, Number, State, Words
from ..fields import Matrix as Grid
from ..view import Result, View, Work
from . import walk_texts as say
from .walk_formulas import pictures
from .walk_given import MOST_HEADS, Given, given, mask_of, seen_by, similarity_of
from .walk_head import Head, floats, heads, product_texts, texts
from .walk_program import python

if TYPE_CHECKING:
    from torch import Tensor

    from ...masks import Mask
    from ...similarity import AnySimilarity

STAGES = ("Inputs", "Projections", "Scores", "Similarity", "Weights", "Sums", "Output")


def _typed(rows: Matrix) -> str:
    return ";".join(",".join(map(str, row)) for row in rows)


def _grid(name: str, label: str, source: str, rows: Matrix, down: str, across: str) -> Grid:
    return Grid(name=name, label=label, group="Numbers", needs=("source", (source,)), default=_typed(rows), rows=down,
                columns=across)  # fmt: skip


_TYPED = ("source", ("x", "qkv"))
_DIAGONAL = ("causal", "window", "causal-padding", "causal-window")
FIELDS = (
    Choice(name="source", label="Start from", group="Numbers", default="x",
           options={"x": "X and weights", "qkv": "Q, K, V", "text": "a text through a model"}),
    _grid("x", "X", "x", TOKENS, "token", "feature"),
    _grid("wq", "W_Q", "x", TO_QUERIES, "feature", "query entry"),
    _grid("wk", "W_K", "x", TO_KEYS, "feature", "key entry"),
    _grid("wv", "W_V", "x", TO_VALUES, "feature", "value entry"),
    _grid("q", "Q", "qkv", times(TOKENS, TO_QUERIES), "token", "query entry"),
    _grid("k", "K", "qkv", times(TOKENS, TO_KEYS), "token", "key entry"),
    _grid("v", "V", "qkv", times(TOKENS, TO_VALUES), "token", "value entry"),
    Words(name="text", label="Text", group="Numbers", needs=("source", ("text",)), longest=200,
          default="The cat sat on the mat because it was tired", help="The first 12 tokens are taken."),
    Number(name="layer", label="Layer", group="Numbers", needs=("source", ("text",)), low=1, high=64, default=1,
           whole=True, slider=False),
    Number(name="head", label="Head of the model", group="Numbers", needs=("source", ("text",)), low=1, high=64,
           default=1, whole=True, slider=False),
    Choice(name="similarity", label="Similarity", group="Attention", default="softmax",
           options={"softmax": "softmax", "argmax": "argmax", "polynomial": "polynomial", "elu1": "elu + 1 features",
                    "relu": "relu features"}),
    Choice(name="scale", label="Scale", group="Attention", needs=("similarity", ("softmax",)), default="none",
           options={"none": "none", "root": "1/√d"}, help="d is the width of a head. A model brings its own."),
    Number(name="degree", label="Degree", group="Attention", needs=("similarity", ("polynomial",)), low=0, high=5,
           default=2, whole=True),
    Number(name="offset", label="Added constant", group="Attention", needs=("similarity", ("polynomial",)), low=-10,
           high=10, default=1, step=0.5),
    Choice(name="mask", label="Mask", group="Attention", default="none",
           options={"none": "none", "causal": "causal", "window": "window", "padding": "padding",
                    "causal-padding": "causal and padding", "causal-window": "causal and window"}),
    Number(name="shift", label="Position of the first query", group="Attention", needs=("mask", _DIAGONAL), low=-8,
           high=8, default=0, whole=True, help="Which key the first query stands beside, from 0."),
    Number(name="left", label="Keys to the left", group="Attention", needs=("mask", ("window", "causal-window")),
           low=0, high=8, default=1, whole=True),
    Number(name="right", label="Keys to the right", group="Attention", needs=("mask", ("window",)), low=0, high=8,
           default=1, whole=True),
    Number(name="lengths", label="Real keys", group="Attention", needs=("mask", ("padding", "causal-padding")), low=0,
           high=12, default=2, whole=True, help="What comes behind them is padding."),
    Number(name="heads", label="Heads", group="Attention", needs=_TYPED, low=1, high=MOST_HEADS, default=1, whole=True,
           help="Q is cut into so many."),
    Number(name="kvheads", label="Key/value heads", group="Attention", needs=_TYPED, low=1, high=MOST_HEADS, default=1,
           whole=True, help="K and V are cut into so many."),
    Choice(name="numbers", label="Numbers as", group="Showing", default="exact",
           options={"exact": "fractions", "decimal": "decimals"}),
    Number(name="step", label="Step", group="Showing", low=0, high=len(STAGES) - 1, default=0, whole=True),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    start = given(state, work)
    similarity, mask = similarity_of(state, start), mask_of(state, start)
    seen = seen_by(mask, len(start.q), len(start.k))
    run, form = _run(start, similarity, mask)
    each = heads(state, start, seen, run)
    made = [head.result() for head in each]
    for place, head in enumerate(made):
        head["head"], head["kv_head"] = place + 1, start.kv_head(place) + 1
    exactly = state["numbers"] == "exact" and start.model is None
    joined = [[entry for head in made for entry in head["output"][i]] for i in range(len(start.q))]
    return {
        "tokens": list(start.tokens),
        "model": None if start.model is None else start.model.words,
        "shape": _shape(start),
        "x": None if start.x is None else floats(start.x),
        **{name: None if start.weights is None else floats(start.weights[name]) for name in ("wq", "wk", "wv")},
        "q": floats(start.q),
        "k": floats(start.k),
        "v": floats(start.v),
        "exact": _exact_grids(start, made) if exactly else None,
        "why": _why(start, exactly) | {"output": _joined_why(start, each)},
        "factor": float(start.scale.value(Fraction(1))),
        "heads": made,
        "output": joined,
        "form": form,
        "notes": _notes(start, each, made[0]["empty"]),
    }


def _run(start: Given, similarity: AnySimilarity, mask: Mask | None) -> tuple[dict[str, Tensor | None], Result]:
    """What attention gives, and the form that gave it."""
    import torch

    from ... import attention, explain
    from ...backends import BACKENDS
    from ...similarity import FeatureMap, Softmax

    q = _tensor(start.q, start.heads)
    k, v = _tensor(start.k, start.kv_heads), _tensor(start.v, start.kv_heads)
    soft = isinstance(similarity, Softmax)
    options: Any = {"similarity": similarity, "mask": mask, "return_weights": True, "return_lse": soft}
    answer = attention(q, k, v, **options)
    run: dict[str, Tensor | None] = {"out": answer[0], "weights": answer[-1], "lse": answer[1] if soft else None}
    run |= dict.fromkeys(("similar", "phi_q", "phi_k"))
    if isinstance(similarity, FeatureMap):
        # With the unit matrix for values and no division, the output is the matrix of similarities itself.
        unit = torch.eye(k.shape[2], dtype=q.dtype).expand(1, start.kv_heads, -1, -1)
        run["similar"] = attention(q, k, unit, similarity=FeatureMap(similarity.map, normalize=False))
        run["phi_q"], run["phi_k"] = similarity.map(q), similarity.map(k)
    # Only dense keeps the weights; what attention alone would take is what a reader will meet.
    choice = explain(q, k, v, similarity=similarity, mask=mask)
    others = [{"form": name, "reasons": list(said)} for name, said in choice.reasons.items()]
    form = {
        "here": explain(q, k, v, **options).backend,
        "taken": choice.backend,
        "summary": BACKENDS[choice.backend].summary,
    }
    return run, {**form, "others": others}


def _tensor(rows: Matrix, count: int) -> Tensor:
    import torch

    whole = torch.tensor(floats(rows), dtype=torch.float64)
    return whole.unflatten(-1, (count, -1)).transpose(0, 1)[None]


def _shape(start: Given) -> dict[str, int | str]:
    queries, keys = len(start.q), len(start.k)
    return {"queries": queries, "keys": keys, "width": start.width, "value_width": start.value_width,
            "heads": start.heads, "kv_heads": start.kv_heads}  # fmt: skip


def _exact_grids(start: Given, made: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"q": start.q, "k": start.k, "v": start.v, "x": start.x, **(start.weights or {})}
    sums = [head["exact"]["output"] for head in made]
    output = None if None in sums else [[entry for rows in sums for entry in rows[i]] for i in range(len(start.q))]
    return {**{name: None if rows is None else texts(rows) for name, rows in found.items()}, "output": output}


def _joined_why(start: Given, each: list[Head]) -> list[list[str]]:
    return [
        [
            head.why_entry(
                f"entry {place * start.value_width + c + 1} of the output for {say.subscript('q', i)} = "
                f"entry {c + 1} of {say.subscript('o', i)} in head {place + 1}",
                i,
                c,
            )
            for place, head in enumerate(each)
            for c in range(start.value_width)
        ]
        for i in range(len(start.q))
    ]


def _why(start: Given, exactly: bool) -> dict[str, Any]:
    if start.x is None or start.weights is None:
        return {"q": None, "k": None, "v": None}
    return {
        letter: product_texts(start.x, start.weights[f"w{letter}"], (letter, "x", f"W_{letter.upper()}"), exactly)
        for letter in "qkv"
    }


def _notes(start: Given, each: list[Head], empty: list[bool]) -> list[str]:
    """What a reader should know of these numbers."""
    notes = []
    if start.cut:
        words = "token at its end is" if start.cut == 1 else "tokens at its end are"
        notes.append(f"The text is longer: {start.cut} {words} left out.")
    if blind := [say.subscript("q", i) for i, nothing in enumerate(empty) if nothing]:
        notes.append(f"{say.listed(blind)} may see nothing: the output of such a row is exactly 0.")
    for place, head in enumerate(each):
        notes += head.notes(f" in head {place + 1}" if len(each) > 1 else "")
    return notes


_NUMBERS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
_MAYBE = {"anyOf": [_NUMBERS, {"type": "null"}]}
_OBJECT = {"type": "object"}

VIEW = View(
    name="walk",
    title="Walk",
    verb="compute",
    lead="Attention step by step, on your own numbers.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        "tokens": {"type": "array", "items": {"type": "string"}},
        "model": {"type": ["string", "null"]},
        "shape": _OBJECT,
        **dict.fromkeys(("x", "wq", "wk", "wv"), _MAYBE),
        **dict.fromkeys(("q", "k", "v"), _NUMBERS),
        "exact": {"type": ["object", "null"]},
        "why": _OBJECT,
        "factor": {"type": "number"},
        "heads": {"type": "array", "items": _OBJECT},
        "output": _NUMBERS,
        "form": _OBJECT,
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    heavy=lambda state: state["source"] == "text",
    seconds=30.0,  # a model is read once
    scripts=("views/walk.js",),
)
