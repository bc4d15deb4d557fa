"""What the attention layers of a real model do with the reader's text: all heads at a glance, and one in detail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, complaint
from ..checkpoints import HOW_TO_GET_ONE, MOST_TOKENS, Checkpoint, Pass, available, check_range, maps
from ..fields import Choice, Flag, Number, State, Words, WrongField
from ..view import Result, View, Work

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 60
MOST_BARS, MOST_COVERED = 12, 0.999  # how many weights of a row are listed, and which share of it is enough
SENTENCE = "The cat that chased the mice sat on the mat because it was tired."
SMALL, SMALLER = 44, 36  # pixels of a thumbnail, for models of few and of many heads
MOST_CELLS = 48  # of a thumbnail, each way
CELL = 17  # pixels of a cell in detail: the height of a line of its labels

FOUND = {checkpoint.name: checkpoint for checkpoint in available()}
NONE = {"none": "none is installed"}
# What a head is asked about, and how a reader would say that it does much of it.
NOTABLE = {
    "previous": "most on the token before",
    "first": "most on the first token",
    "itself": "most on the token itself",
    "entropy": "most widely spread",
}


def compute(state: State, work: Work) -> Result:
    checkpoint = _chosen(state)
    check_range(checkpoint, state["layer"], state["head"])
    tokens, cut, layers = _passed(checkpoint, state["text"], work)
    count = len(tokens)
    if state["query"] > count:
        wanted = f"0 to {count}: there are {count} tokens, and 0 is the mean of all"
        raise WrongField("query", complaint("query", state["query"], wanted))
    overview = _overview(layers)
    weights = layers[state["layer"] - 1].weights[0, state["head"] - 1]
    return {
        "title": checkpoint.title,
        "kind": checkpoint.kind,
        "layers": checkpoint.layers,
        "heads": checkpoint.heads,
        "kv_heads": checkpoint.kv_heads,
        "tokens": tokens,
        "kept": count,
        "cut": cut,
        "layer": state["layer"],
        "head": state["head"],
        "query": state["query"],
        "overview": overview,
        "notable": _notable(overview),
        "habits": overview[state["layer"] - 1][state["head"] - 1],
        "reads": (state["head"] - 1) // (checkpoint.heads // checkpoint.kv_heads) + 1,
        "weights": weights.tolist(),
        "row": _row(weights, tokens, state["query"]),
    }


def _chosen(state: State) -> Checkpoint:
    if state["checkpoint"] not in FOUND:
        raise WrongField("checkpoint", complaint("checkpoint", "none", "a model on this machine", HOW_TO_GET_ONE))
    return FOUND[state["checkpoint"]]


def _passed(checkpoint: Checkpoint, text: str, work: Work) -> Pass:
    try:
        return maps(checkpoint, text, work)
    except OptionError as error:
        raise WrongField("checkpoint", str(error)) from error


def _overview(layers: list[Any]) -> list[list[dict[str, float | None]]]:
    """What each head of each layer does on the whole."""
    from ...hf import head_statistics

    rows = []
    for layer in layers:
        found = {name: values[0].tolist() for name, values in head_statistics(layer.weights)._asdict().items()}
        heads = zip(*found.values(), strict=True)
        # What is not a number is the mean over no query: one token has none before it.
        rows.append([{n: None if v != v else v for n, v in zip(found, values, strict=True)} for values in heads])
    return rows


def _notable(overview: list[list[dict[str, float | None]]]) -> list[dict[str, Any]]:
    """The heads that do most of something."""
    found = []
    for name, words in NOTABLE.items():
        placed = [
            (value, -at, -which)
            for at, heads in enumerate(overview, 1)
            for which, head in enumerate(heads, 1)
            if (value := head[name]) is not None
        ]
        if placed:
            value, at, which = max(placed)
            found.append({"name": name, "what": words, "layer": -at, "head": -which, "value": value})
    return found


def _row(weights: Tensor, tokens: list[str], query: int) -> dict[str, Any]:
    """The weights of one query, or the mean of all, and the largest of them."""
    chosen = weights[query - 1] if query else weights.double().mean(0)
    values = chosen.tolist()
    order = sorted(range(len(values)), key=lambda at: (-values[at], at))
    covered = chosen[order].double().cumsum(0)
    listed = min(MOST_BARS, 1 + int((covered < MOST_COVERED).sum()), len(order))
    top = [{"at": at + 1, "token": tokens[at], "weight": values[at]} for at in order[:listed]]
    rest = chosen[order[listed:]].double().sum().item()
    return {"weights": values, "top": top, "others": len(order) - listed, "rest": rest}


_DRAWN: dict[tuple[str, str, str], dict[str, str]] = {}


def pictures(state: State, result: Result) -> Mapping[str, str]:
    from ...figures import heat_map

    tokens, count = result["tokens"], result["kept"]
    masked = None
    if result["kind"] == "decoder":
        masked = [[key > query for key in range(count)] for query in range(count)]
    detail = heat_map(
        f"{result['title']}, layer {state['layer']}, head {state['head']}",
        result["weights"],
        rows=tokens,
        columns=tokens,
        masked=masked,
        high=_high(state),
        width=max(360, 110 + max(CELL, 30 if count <= 24 else 0) * count),
        numbers=state["numbers"],
    )
    return {"detail": detail, **_thumbnails(state)}


def _high(state: State) -> float | None:
    """The end of the colours; None is the largest weight of a map."""
    return 1.0 if state["colours"] == "one" else None


def _thumbnails(state: State) -> dict[str, str]:
    """By "layer.head". Those of the last text are kept: another head of it needs no new ones."""
    from ...figures import small_map

    checkpoint = _chosen(state)
    asked = checkpoint.name, state["text"], state["colours"]
    if asked not in _DRAWN:
        layers = _passed(checkpoint, state["text"], Work(seconds=SECONDS)).layers
        block = math.ceil(layers[0].weights.shape[-1] / MOST_CELLS)
        averaged = "" if block == 1 else f", averaged over {block} by {block} weights"
        high = _high(state)
        size = SMALL if checkpoint.layers * checkpoint.heads <= 144 else SMALLER
        drawn = {
            f"{at}.{which}": small_map(cells, title=f"layer {at}, head {which}{averaged}", high=high, size=size)
            for at, layer in enumerate(layers, 1)
            for which, cells in enumerate(_pooled(layer.weights[0], block), 1)
        }
        _DRAWN.clear()
        _DRAWN[asked] = drawn
    return _DRAWN[asked]


def _pooled(weights: Tensor, block: int) -> list[list[list[float]]]:
    """Means over blocks, head by head: what torch does at once, `small_map` would do cell by cell."""
    from torch.nn.functional import avg_pool2d

    return avg_pool2d(weights, block, ceil_mode=True).tolist()


def python(state: State) -> str:
    checkpoint = FOUND.get(state["checkpoint"])
    if checkpoint is None:
        return f'raise SystemExit("no model is installed: {HOW_TO_GET_ONE}")\n'
    layer, head, query = state["layer"], state["head"], state["query"]
    row = f"weights[{query - 1}]" if query else "weights.mean(0)"
    named = f"of token {query}" if query else "the mean of all queries"
    imports = "import importlib.util" if "importlib" in checkpoint.python else "import os"
    return f"""\
{imports}
from pathlib import Path

import qkv.hf

place = {checkpoint.python}
model, tokenizer = qkv.hf.load(place, generates=False)
text = {state["text"]!r}
space = min({MOST_TOKENS}, getattr(model.config, "max_position_embeddings", {MOST_TOKENS}))
given = tokenizer(text, truncation=True, max_length=space, return_tensors="pt")
layers = qkv.hf.capture(model, {{name: given[name] for name in ("input_ids", "attention_mask")}})

layer = layers[{layer - 1}]
weights = layer.weights[0, {head - 1}]  # layer {layer}, head {head}: a row for each query
for line in weights.tolist():
    print(*line)
print(*{row}.tolist())  # {named}
for habit, of_heads in qkv.hf.head_statistics(layer.weights)._asdict().items():
    print(habit, float(of_heads[0, {head - 1}]))
"""


_MOST_LAYERS = max((checkpoint.layers for checkpoint in FOUND.values()), default=1)
_MOST_HEADS = max((checkpoint.heads for checkpoint in FOUND.values()), default=1)
_OPTIONS = {name: f"{checkpoint.title}, {checkpoint.kind}" for name, checkpoint in FOUND.items()} or NONE
_LIST, _WHOLE = {"type": "array"}, {"type": "integer"}
_HABITS = {
    "type": "object",
    "properties": {name: {"type": ["number", "null"]} for name in ("entropy", "first", "previous", "itself")},
    "required": ["entropy", "first", "previous", "itself"],
}

VIEW = View(
    name="model",
    title="Model",
    verb="compute",
    simple="Where the heads of a real model look in your text.",
    lead="Where the heads of a real model look while it reads your text.",
    fields=(
        Choice(name="checkpoint", label="Model", options=_OPTIONS, default=next(iter(_OPTIONS))),
        Words(
            name="text",
            label="Text",
            default=SENTENCE,
            longest=2000,
            lines=3,
            help=f"The first {MOST_TOKENS} tokens are read.",
        ),
        Number(name="layer", label="Layer", low=1, high=_MOST_LAYERS, default=1, whole=True),
        Number(name="head", label="Head", low=1, high=_MOST_HEADS, default=min(3, _MOST_HEADS), whole=True),
        Number(
            name="query",
            label="Query",
            low=0,
            high=MOST_TOKENS,
            default=0,
            whole=True,
            slider=False,
            help="Which token looks; 0 is the mean of all.",
        ),
        Flag(name="numbers", label="Numbers in the map"),
        Choice(
            name="colours",
            label="Colours",
            default="one",
            options={"one": "one scale for all heads, 0 to 1", "own": "each map from 0 to its largest"},
        ),
    ),
    compute=compute,
    pictures=pictures,
    python=python,
    heavy=True,
    seconds=SECONDS,
    scripts=("views/model.js",),
    schema={
        "title": {"type": "string"},
        "kind": {"type": "string", "enum": ["encoder", "decoder"]},
        "layers": _WHOLE,
        "heads": _WHOLE,
        "kv_heads": _WHOLE,
        "tokens": {**_LIST, "items": {"type": "string"}},
        "kept": _WHOLE,
        "cut": _WHOLE,
        "layer": _WHOLE,
        "head": _WHOLE,
        "query": _WHOLE,
        "overview": {**_LIST, "items": {**_LIST, "items": _HABITS}},
        "notable": _LIST,
        "habits": _HABITS,
        "reads": _WHOLE,
        "weights": {**_LIST, "items": {**_LIST, "items": {"type": "number"}}},
        "row": {"type": "object"},
    },
)
