"""Walk: attention from tokens to output, every number with where it came from, as formulas and as a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...errors import complaint
from ...exercises.exact import Scale
from ..fields import Choice, Flag, Number, State, Words, WrongField
from ..fields import Matrix as Grid
from ..markup import formula
from ..view import Result, View, Work
from . import walk_texts as say
from .walk_head import Head, Matrix, floats, heads, product_texts, scaled, texts, times

if TYPE_CHECKING:
    from ...masks import Mask
    from ...similarity import AnySimilarity
    from ..checkpoints import Checkpoint

LARGEST, SMALLEST = 1_000_000, Fraction(1, 1_000_000)  # of an entry: powers of its products stay inside float64
MOST_HEADS = 4
MOST_TOKENS = 12  # of a text

# The numbers to begin with: three tokens of width 2, as in the bank's exercise `by-hand`.
TOKENS: Matrix = tuple(tuple(map(Fraction, row)) for row in ((2, 3), (-1, 0), (1, -2)))
TO_QUERIES: Matrix = tuple(tuple(map(Fraction, row)) for row in ((1, 0, 2), (0, 1, -3)))
TO_KEYS: Matrix = tuple(tuple(map(Fraction, row)) for row in ((0, 0, -1), (-2, 0, 1)))
TO_VALUES: Matrix = tuple(tuple(map(Fraction, row)) for row in ((8, 0), (0, 9)))

_WEIGHTS = {"wq": "W_Q", "wk": "W_K", "wv": "W_V"}


@dataclass(frozen=True)
class Given:
    """Rows of q, k and v are tokens; `heads` cut the columns of q, `kv_heads` those of k and v."""

    q: Matrix
    k: Matrix
    v: Matrix
    scale: Scale
    heads: int = 1
    kv_heads: int = 1
    x: Matrix | None = None
    weights: dict[str, Matrix] | None = None
    tokens: tuple[str, ...] = ()
    causal: bool = False  # whether the model itself is causal
    model: Checkpoint | None = None
    cut: int = 0  # tokens of the text that were left out

    @property
    def width(self) -> int:
        return len(self.q[0]) // self.heads

    @property
    def value_width(self) -> int:
        return len(self.v[0]) // self.kv_heads

    def kv_head(self, head: int) -> int:
        return head // (self.heads // self.kv_heads)

    def sliced(self, head: int) -> tuple[Matrix, Matrix, Matrix]:
        """The queries, keys and values of a query head."""
        kv = self.kv_head(head)
        return (
            columns(self.q, head, self.width),
            columns(self.k, kv, self.width),
            columns(self.v, kv, self.value_width),
        )


def columns(rows: Matrix, which: int, width: int) -> Matrix:
    return tuple(row[which * width : (which + 1) * width] for row in rows)


def given(state: State, work: Work) -> Given:
    """What the fields say, or WrongField."""
    if state["source"] == "text":
        return _given_text(state, work)
    names = ("x", *_WEIGHTS) if state["source"] == "x" else ("q", "k", "v")
    for name in names:
        _check_sizes(name, state[name])
    if state["source"] == "x":
        x = state["x"]
        for name, letter in _WEIGHTS.items():
            _same(name, f"{len(state[name])} rows for {letter}", len(state[name]), len(x[0]), "as X has columns")
        q, k, v = (times(x, state[name]) for name in _WEIGHTS)
        more: dict[str, Any] = {"x": x, "weights": {name: state[name] for name in _WEIGHTS}}
    else:
        q, k, v = state["q"], state["k"], state["v"]
        _same("v", f"{len(v)} rows", len(v), len(k), "as K has: every key has one value")
        more = {}
    heads, kv_heads = state["heads"], state["kvheads"]
    _check_heads(state["source"], (len(q[0]), len(k[0]), len(v[0])), heads, kv_heads)
    scaled = state["scale"] == "root" and state["similarity"] == "softmax"
    return Given(q, k, v, Scale.by_root(len(q[0]) // heads) if scaled else Scale(), heads, kv_heads, **more)


def similarity_of(state: State, start: Given) -> AnySimilarity:
    from ... import features
    from ...similarity import Argmax, FeatureMap, Polynomial, Softmax

    match state["similarity"]:
        case "softmax":
            return Softmax(scale=scaled(start.scale, Fraction(1)))
        case "argmax":
            return Argmax()
        case "polynomial":
            return Polynomial(state["degree"], float(state["offset"]))
        case name:
            return FeatureMap(getattr(features, name))


def kinds_of(state: State, model_is_causal: bool) -> set[str]:
    """Which masks are joined: those of the field, and a model's own."""
    return set(state["mask"].split("-")) - {"none"} | ({"causal"} if model_is_causal else set())


def shift_of(state: State) -> int:
    return state["shift"] if {"causal", "window"} & set(state["mask"].split("-")) else 0


def mask_of(state: State, start: Given) -> Mask | None:
    from ...masks import Causal, Padding, Window

    kinds, shift = kinds_of(state, start.causal), shift_of(state)
    parts: list[Mask] = []
    if "causal" in kinds:
        parts.append(Causal(offset=shift))
    if "window" in kinds:
        # With Causal nothing to the right is left to limit.
        parts.append(Window(state["left"], None if "causal" in kinds else state["right"], offset=shift))
    if "padding" in kinds:
        keys = len(start.k)
        if state["lengths"] > keys:
            wanted = f"0 to {keys}, the number of keys"
            raise WrongField("lengths", complaint("lengths", state["lengths"], wanted))
        parts.append(Padding(lengths=[state["lengths"]]))
    if not parts:
        return None
    joined = parts[0]
    for part in parts[1:]:
        joined = joined & part
    return joined


def seen_by(mask: Mask | None, queries: int, keys: int) -> list[list[bool]]:
    """Which query may see which key."""
    from ...masks import Extent

    if mask is None:
        return [[True] * keys for _ in range(queries)]
    extent = Extent(1, 1, queries, keys)
    cells = mask.resolved(extent).tile(extent, (0, queries), (0, keys))
    return cells.expand(1, 1, queries, keys)[0, 0].tolist()


def head_counts(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Which numbers of heads fit so many columns of q, k and v.

    >>> head_counts((4, 2, 2)), head_counts((3, 3, 2))
    ([(2, 1), (4, 2)], [(1, 1)])
    """
    of_q, of_k, of_v = widths
    return [
        (heads, kv)
        for heads in range(1, MOST_HEADS + 1)
        for kv in range(1, heads + 1)
        if not (heads % kv or of_q % heads or of_k % kv or of_v % kv) and of_q // heads == of_k // kv
    ]


def _check_heads(source: str, widths: tuple[int, int, int], heads: int, kv_heads: int) -> None:
    fitting = head_counts(widths)
    if (heads, kv_heads) in fitting:
        return
    pairs = " or ".join(f"{one} and {other}" for one, other in fitting)
    if not fitting or heads == kv_heads == 1:
        name = "wk" if source == "x" else "k"
        wanted = f"{widths[0]}, as Q has: a query and a key are multiplied entry by entry"
        hint = f"or heads and kvheads {pairs}" if pairs else ""
        raise WrongField(name, complaint(name, f"{widths[1]} columns of K", wanted, hint))
    of_q, of_k, of_v = widths
    field = "heads" if heads not in {pair[0] for pair in fitting} else "kvheads"
    found = f"heads {heads} and kvheads {kv_heads} for {of_q} columns of Q, {of_k} of K and {of_v} of V"
    hint = ""
    if heads % kv_heads == 0 and of_q % heads == 0:
        hint = f"with so many heads K needs {of_q // heads * kv_heads} columns"
        hint += f", and V a multiple of {kv_heads}" if of_v % kv_heads else ""
    elif heads % kv_heads == 0:
        hint = f"with so many heads Q needs a multiple of {heads} columns"
    raise WrongField(field, complaint(field, found, f"heads and kvheads {pairs}", hint))


def _check_sizes(name: str, rows: Matrix) -> None:
    for entry in (entry for row in rows for entry in row):
        if entry and not SMALLEST <= abs(entry) <= LARGEST:
            wanted = f"entries of 0, or from {float(SMALLEST):g} to {LARGEST:,} in size"
            raise WrongField(name, complaint(name, f"{float(entry):g}", wanted))


def _same(name: str, found: str, size: int, wanted: int, why: str) -> None:
    if size != wanted:
        raise WrongField(name, complaint(name, found, f"{wanted}, {why}"))


def _given_text(state: State, work: Work) -> Given:
    """The queries, keys and values that a real model makes of a text."""
    from .. import checkpoints

    installed = checkpoints.available()
    if not installed:
        wanted = "x or qkv: no model is installed"
        raise WrongField("source", complaint("source", "text", wanted, checkpoints.HOW_TO_GET_ONE))
    model = installed[0]
    found = checkpoints.heads_of(model, state["text"], state["layer"], state["head"], work, most=MOST_TOKENS)
    cut = checkpoints.maps(model, state["text"], work, most=MOST_TOKENS).cut
    q, k, v = (_exactly(found[name]) for name in "qkv")
    scale = found["scale"]
    return Given(q, k, v, Scale(Fraction(scale)), tokens=tuple(found["tokens"]), causal=found["causal"], model=model,
                 cut=cut)  # fmt: skip


def _exactly(rows: Sequence[Sequence[float]]) -> Matrix:
    return tuple(tuple(Fraction(entry) for entry in row) for row in rows)


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
    Words(name="labels", label="Words of the tokens", group="Numbers", needs=_TYPED, default="the cat sat", longest=120,
          help="They label the rows."),
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
           high=8, default=0, whole=True, help="Which key is at the first query's position, from 0."),
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
    Flag(name="all", label="All steps at once", group="Showing"),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    start = given(state, work)
    similarity, mask = similarity_of(state, start), mask_of(state, start)
    seen = seen_by(mask, len(start.q), len(start.k))
    run, backend = run_attention(start, similarity, mask)
    each = heads(state, start, seen, run)
    made = [head.result() for head in each]
    for place, head in enumerate(made):
        head["head"], head["kv_head"] = place + 1, start.kv_head(place) + 1
    exactly = state["numbers"] == "exact" and start.model is None
    joined = [[entry for head in made for entry in head["output"][i]] for i in range(len(start.q))]
    return {
        "tokens": list(start.tokens),
        "labels": _labels(state, start),
        "model": None if start.model is None else start.model.words,
        "shape": _shape(start),
        "x": None if start.x is None else floats(start.x),
        **{name: None if start.weights is None else floats(start.weights[name]) for name in ("wq", "wk", "wv")},
        "q": floats(start.q),
        "k": floats(start.k),
        "v": floats(start.v),
        "exact": _exact_grids(start, made) if exactly else None,
        "why": _why(start, exactly) | {"output": _joined_why(start, each)},
        "factor": scaled(start.scale, Fraction(1)),
        "heads": made,
        "output": joined,
        "backend": backend,
        "notes": _notes(start, each, made[0]["empty"]),
    }


def _labels(state: State, start: Given) -> list[str]:
    """A word for each row, where there are so many."""
    words = list(start.tokens) or state["labels"].split()
    rows = max(len(start.q), len(start.k))
    return [*words, *[""] * rows][:rows]


def run_attention(
    start: Given, similarity: AnySimilarity, mask: Mask | None
) -> tuple[dict[str, Tensor | None], Result]:
    """What attention gives, and the backend that gave it."""
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
    # Only the reference keeps the weights; what attention alone would take is what a reader will meet.
    choice = explain(q, k, v, similarity=similarity, mask=mask)
    others = [{"backend": name, "reasons": list(said)} for name, said in choice.reasons.items()]
    backend = {
        "here": explain(q, k, v, **options).backend,
        "taken": choice.backend,
        "summary": BACKENDS[choice.backend].summary,
    }
    return run, {**backend, "others": others}


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


def python(state: State) -> str:
    """Public calls that give what the page shows: `scores`, `weights` and `out`."""
    heads, kv_heads = state["heads"], state["kvheads"]
    if state["source"] == "text":
        lines, heads, kv_heads = _text_program(state), 1, 1
    else:
        names = ("x", "wq", "wk", "wv") if state["source"] == "x" else ("q", "k", "v")
        lines = ["import torch", "", "import qkv", "", *(f"{name} = {_tensor_text(state[name])}" for name in names)]
        if state["source"] == "x":
            lines.append("q, k, v = x @ wq, x @ wk, x @ wv")
        if heads > 1:
            lines.append("# (tokens, columns) becomes (batch, heads, tokens, width)")
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                lines.append(f"{name} = {name}.unflatten(-1, ({count}, -1)).transpose(0, 1)[None]")
    call = ["q", "k", "v", f"similarity={_similarity_text(state)}"]
    if mask := _mask_text(state):
        call.append(f"mask={mask}")
    shared = f".repeat_interleave({heads // kv_heads}, dim=1)" if heads > kv_heads else ""
    lines += [
        f"out, weights = qkv.attention({', '.join(call)}, return_weights=True)",
        f"print((q @ k{shared}.mT).tolist())",
        "print(weights.tolist())",
        "print(out.tolist())",
    ]
    return "\n".join(lines) + "\n"


def _tensor_text(rows: Matrix) -> str:
    written = ", ".join(f"[{', '.join(map(str, row))}]" for row in rows)
    return f"torch.tensor([{written}], dtype=torch.float64)"


def _similarity_text(state: State) -> str:
    match state["similarity"]:
        case "softmax" if state["source"] == "text":
            return "qkv.Softmax(scale=layer.scale)"
        case "softmax":
            return "qkv.Softmax()" if state["scale"] == "root" else "qkv.Softmax(scale=1.0)"
        case "argmax":
            return "qkv.Argmax()"
        case "polynomial":
            return f"qkv.Polynomial(degree={state['degree']}, offset={float(state['offset'])!r})"
        case name:
            return f"qkv.FeatureMap(qkv.features.{name})"


def _mask_text(state: State) -> str:
    kinds = kinds_of(state, _model_is_causal(state))
    parts = []
    if "causal" in kinds:
        parts.append(f"qkv.Causal(offset={shift_of(state)})")
    if "window" in kinds:
        right = "" if "causal" in kinds else f"right={state['right']}, "
        parts.append(f"qkv.Window(left={state['left']}, {right}offset={shift_of(state)})")
    if "padding" in kinds:
        parts.append(f"qkv.Padding(lengths=[{state['lengths']}])")
    return " & ".join(parts)


def _model_is_causal(state: State) -> bool:
    from ..checkpoints import available

    if state["source"] != "text":
        return False
    installed = available()
    return bool(installed) and installed[0].kind == "decoder"


def _text_program(state: State) -> list[str]:
    from ..checkpoints import available

    installed = available()
    place = installed[0].python if installed else 'Path("model")'
    return [
        "import importlib.util" if "importlib" in place else "import os",
        "from pathlib import Path",
        "",
        "import qkv",
        "import qkv.hf",
        "",
        f"model, tokenizer = qkv.hf.load({place}, generates=False)",
        f"inputs = tokenizer({state['text']!r}, truncation=True, max_length={MOST_TOKENS}, return_tensors='pt')",
        'layers = qkv.hf.capture(model, {name: inputs[name] for name in ("input_ids", "attention_mask")})',
        f"layer = layers[{state['layer'] - 1}]",
        f"read = {state['head'] - 1} // (layer.query.shape[1] // layer.key.shape[1])",
        f"q = layer.query[0, {state['head'] - 1}].double()",
        "k, v = layer.key[0, read].double(), layer.value[0, read].double()",
    ]


_TYPES = {
    "N": "natural", "M": "natural", "D": "natural", "E": "natural", "W": "natural", "i": "index[N]", "j": "index[M]",
    "X": "matrix[N,W]", "W_Q": "matrix[W,D]", "W_K": "matrix[W,D]", "W_V": "matrix[W,E]",
    "Q": "matrix[N,D]", "K": "matrix[M,D]", "V": "matrix[M,E]",
    "q": "matrix[N,D]", "k": "matrix[M,D]", "v": "matrix[M,E]", "o": "matrix[N,E]",
    "z": "matrix[N,M]", "s": "matrix[N,M]", "a": "matrix[N,M]", "phi": "map vector[D] -> vector[D]",
}  # fmt: skip
_PRODUCTS = r"z_{i,j} = q_i^T k_j"
_SHARE = r"a_{i,j} = \frac{s_{i,j}}{\sum_{l=1}^M s_{i,l}}"
_SOFTMAX = r"a_{i,j} = \frac{e^{s_{i,j}}}{\sum_{l=1}^M e^{s_{i,l}}}"


def pictures(state: State, result: Result) -> dict[str, str]:
    kind = state["similarity"]
    shown = {
        "scores": _stage_formula(_PRODUCTS),
        "similarity": _stage_formula(_similarity_formula(state, result)),
        "sums": _stage_formula(r"o_i = \sum_{j=1}^M a_{i,j} v_j"),
    }
    # For Argmax the rule is a sentence: which index it takes among equals is no part of a formula.
    if kind != "argmax":
        shown["weights"] = _stage_formula(_SOFTMAX if kind == "softmax" else _SHARE)
    if result["x"] is not None:
        shown |= {letter: _stage_formula(f"{letter.upper()} = X W_{letter.upper()}") for letter in "qkv"}
    return shown


def _similarity_formula(state: State, result: Result) -> str:
    match state["similarity"]:
        case "polynomial":
            offset = state["offset"]
            sign = "-" if offset < 0 else "+"
            plain = format(Decimal(repr(abs(offset))).normalize(), "f")  # no exponent: a formula would read e
            inside = f"z_{{i,j}} {sign} {plain}" if offset else "z_{i,j}"
            return f"s_{{i,j}} = ({inside})^{{{state['degree']}}}"
        case "elu1" | "relu":
            return r"s_{i,j} = \phi(q_i)^T \phi(k_j)"
    if result["factor"] == 1 or state["similarity"] == "argmax":
        return r"s_{i,j} = z_{i,j}"
    width = result["shape"]["width"]
    if math.isclose(result["factor"], scaled(Scale.by_root(width), Fraction(1))):
        return rf"s_{{i,j}} = \frac{{z_{{i,j}}}}{{\sqrt{{{width}}}}}"
    return f"s_{{i,j}} = {result['factor']:.6f} z_{{i,j}}"


@lru_cache(maxsize=256)
def _stage_formula(text: str) -> str:
    return formula(text, _TYPES)


_NUMBERS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}


_MAYBE = {"anyOf": [_NUMBERS, {"type": "null"}]}


_OBJECT = {"type": "object"}


VIEW = View(
    name="walk",
    title="Walk",
    verb="compute",
    lead="Attention step by step, on your own numbers.",
    bar=("similarity", "scale", "mask", "heads", "kvheads", "numbers"),
    simple="Attention as a table of numbers, one step at a time.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema={
        **{name: {"type": "array", "items": {"type": "string"}} for name in ("tokens", "labels")},
        "model": {"type": ["string", "null"]},
        "shape": _OBJECT,
        **dict.fromkeys(("x", "wq", "wk", "wv"), _MAYBE),
        **dict.fromkeys(("q", "k", "v"), _NUMBERS),
        "exact": {"type": ["object", "null"]},
        "why": _OBJECT,
        "factor": {"type": "number"},
        "heads": {"type": "array", "items": _OBJECT},
        "output": _NUMBERS,
        "backend": _OBJECT,
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    heavy=lambda state: state["source"] == "text",
    seconds=30.0,  # a model is read once
    scripts=("views/walk.js",),
    alone=True,
)
