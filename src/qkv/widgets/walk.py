"""Walk: one attention in a notebook, from queries, keys and values to the output, one step at a time.

The numbers and the sentences are those of the lab's view of the same name, and so is the script that lights up cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from html import escape
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..exercises.exact import Scale
from ..lab.numbers import shown
from ..lab.views import walk as lab
from ..lab.views.walk_head import Head, Matrix, heads
from ..masks.base import Mask

MOST_TOKENS, MOST_COLUMNS = 12, 8
STEPS = ("Inputs", "Scores", "Scale and mask", "Weights", "Output")
_LARGEST = 1e6
_SHOWING = {"similarity": "softmax", "numbers": "decimal"}
_PAGE = """<div class="qkv-walk-place" id="{place}">{text}</div>
<style>{style}</style>
<script type="module">
{script}
const state = {state};
const listeners = new Set();
const model = {{
  get: (name) => state[name],
  set: (name, value) => {{ state[name] = value; for (const listener of listeners) listener(); }},
  save_changes: () => {{}},
  on: (_, listener) => listeners.add(listener),
  off: (_, listener) => listeners.delete(listener),
}};
const place = document.getElementById("{place}");
place.replaceChildren();
render({{ model, el: place }});
</script>
"""
_SCRIPTS = ("lab/static/views/walk_cells.js", "widgets/walk.js")


def _text(name: str) -> str:
    return files("qkv").joinpath(name).read_text(encoding="utf-8")


class Walk(anywidget.AnyWidget):
    """Attention of a few tokens, one step at a time: scores, scale and mask, softmax, weighted sum.

    Next, Back and Play change the step; a number that is pointed at, or reached with Tab and the arrow keys, says how
    it was made. All numbers come from `qkv.attention` in float64.

    Args:
        query: (len_q, width), a tensor, an array or nested lists; at most 12 rows and 8 columns.
        key: (len_k, width).
        value: (len_k, width_v).
        mask: a mask of qkv; None lets every query attend to every key.
        scale: what scores are multiplied by; None is 1/√width.
        words: a word for each key, which labels the rows; none by default.
        step: where to begin: 0 (inputs) to 4 (output).

    Attributes:
        step: the step that is shown; it follows the buttons, and setting it moves the widget.
        data: the steps as they are shown, with every number (read only).

    Raises:
        OptionTypeError: a matrix is not made of numbers, or the mask is not one of qkv's.
        OptionError: an entry is not finite or beyond 1e6, or the scale or the words do not fit.
        ShapeError: the sizes do not fit each other, or are too large to be shown.
        MissingExtra: anywidget is not installed.

    >>> import qkv
    >>> walk = Walk([[1, 0], [0, 2]], [[1, 1], [0, 1]], [[3], [5]], mask=qkv.Causal(), scale=1.0)
    >>> walk.numbers("weights")[0]
    [1.0, 0.0]
    >>> walk.step = 3
    """

    _esm = "\n".join(
        # One module: what the lab imports is here already.
        "\n".join(line for line in _text(name).splitlines() if not line.startswith("import "))
        for name in _SCRIPTS
    )
    _css = _text("widgets/walk.css")

    data = traitlets.Dict(read_only=True).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        words: Sequence[str] = (),
        step: int = 0,
    ) -> None:
        start = _given(query, key, value, scale)
        words = _checked_words(words, len(start.k))
        if mask is not None and not isinstance(mask, Mask):
            hint = "qkv.Dense(tensor) makes one of booleans"
            raise OptionTypeError(complaint("mask", type(mask).__name__, "a mask of qkv, or None", hint))
        similarity = lab.similarity_of(_SHOWING, start)
        seen = lab.seen_by(mask, len(start.q), len(start.k))
        run, _ = lab.run_attention(start, similarity, mask)
        [head] = heads(_SHOWING, start, seen, run)
        super().__init__()
        self.set_trait("data", {"stages": _stages(start, head, words), "notes": head.notes("")})
        self.step = step

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> int:
        step = proposal["value"]
        if not 0 <= step < len(STEPS):
            raise OptionError(complaint("step", step, f"0 to {len(STEPS) - 1}: {', '.join(STEPS)}"))
        return step

    def to_html(self) -> str:
        """The widget for a web page, where no kernel runs: a place, its style and its script, without addresses.

        Returns:
            HTML for the body of a page; the step is the one that is shown now.
        """
        state = json.dumps({"data": self.data, "step": self.step}).replace("<", "\\u003c")
        return _PAGE.format(place=f"qkv-walk-{self.model_id}", text=escape(repr(self)), style=self._css,
                            script=str(self._esm).replace("export default { render };", ""), state=state)  # fmt: skip

    def __repr__(self) -> str:
        queries, keys = (len(self.numbers(name)) for name in "qk")
        return f"Walk({queries} queries, {keys} keys, step {self.step}: {STEPS[self.step]})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """A front end without widgets shows the page."""
        bundle, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**bundle, "text/html": self.to_html()}, metadata

    def numbers(self, name: str) -> list[list[float]]:
        """The numbers of a matrix as they are shown, in float64.

        Args:
            name: "q", "k", "v", "scores", "scaled", "weights" or "output".

        Returns:
            Its rows. A scaled score that the mask hides is −inf.

        Raises:
            OptionError: there is no such matrix.
        """
        found = {grid["id"]: grid for stage in self.data["stages"] for grid in stage["grids"]}
        if name not in found:
            raise OptionError(complaint("name", name, ", ".join(found)))
        hidden = -math.inf if name == "scaled" else 0.0
        return [[hidden if cell["value"] is None else cell["value"] for cell in row] for row in found[name]["rows"]]


def _given(query: Any, key: Any, value: Any, scale: float | None) -> lab.Given:
    q, k, v = (_matrix(name, rows) for name, rows in (("query", query), ("key", key), ("value", value)))
    if len(q[0]) != len(k[0]):
        raise ShapeError(complaint("key", f"{len(k[0])} columns", f"{len(q[0])}, as query has"))
    if len(v) != len(k):
        raise ShapeError(complaint("value", f"{len(v)} rows", f"{len(k)}, as key has: every key has one value"))
    if scale is None:
        return lab.Given(q, k, v, Scale.by_root(len(q[0])))
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise OptionError(complaint("scale", repr(scale), "a finite number, or None for 1/√width"))
    return lab.Given(q, k, v, Scale(Fraction(repr(scale))))


def _matrix(name: str, given: Any) -> Matrix:
    """Rows of exact numbers: those that float64 prints."""
    rows = given.tolist() if hasattr(given, "tolist") else given
    wanted = "a matrix: a tensor, an array or lists with a row for each token"
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise OptionTypeError(complaint(name, type(given).__name__, wanted, "one head of one batch row"))
    sizes = {len(row) for row in rows}
    if len(sizes) != 1 or not 1 <= len(rows) <= MOST_TOKENS or not 1 <= max(sizes) <= MOST_COLUMNS:
        found = f"{len(rows)} rows of {' or '.join(map(str, sorted(sizes))) or 0} columns"
        raise ShapeError(complaint(name, found, f"1 to {MOST_TOKENS} rows of 1 to {MOST_COLUMNS} columns, all as long"))
    for entry in (entry for row in rows for entry in row):
        if isinstance(entry, bool) or not isinstance(entry, int | float):
            raise OptionTypeError(complaint(name, f"an entry of type {type(entry).__name__}", wanted))
        if not abs(entry) <= _LARGEST:  # NaN too
            raise OptionError(complaint(name, f"the entry {entry}", f"finite numbers up to {_LARGEST:,.0f} in size"))
    return tuple(tuple(Fraction(repr(entry)) for entry in row) for row in rows)


def _checked_words(words: Sequence[str], keys: int) -> list[str]:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise OptionTypeError(complaint("words", repr(words)[:40], "a list of words", "text.split() makes one"))
    if words and len(words) != keys:
        raise OptionError(complaint("words", f"{len(words)} words", f"{keys}, one for each key"))
    return list(words)


def _stages(start: lab.Given, head: Head, words: list[str]) -> list[dict[str, Any]]:
    """What each step shows: a sentence, and grids whose cells have their text, number and explanation."""
    found = head.result()
    why = found["why"]
    keys = [_named("k", j, words) for j in range(len(start.k))]
    queries = [_named("q", i, words if len(start.q) == len(start.k) else []) for i in range(len(start.q))]
    values = [_named("v", j, words) for j in range(len(start.k))]
    outputs = [{**each, "letter": "o"} for each in queries]
    factor = shown(lab.scaled(start.scale, Fraction(1)))
    masked = any(map(any, found["masked"]))

    def grid(name: str, title: str, rows: list[dict[str, Any]], columns: list[dict[str, Any]] | None = None,
             made: str = "", **more: Any) -> dict[str, Any]:  # fmt: skip
        own = found["output" if name == "output" else name]
        return {"id": name, "title": title, "rowNames": rows, "columnNames": columns, "made": made,
                "rows": _cells(name, own, found["masked"], why.get(name)), **more}  # fmt: skip

    inputs = [grid("q", "Q", queries), grid("k", "K", keys), grid("v", "V", values)]
    scores = grid("scores", "q·k", queries, keys, "q:{r}:* k:{c}:*")
    plain = start.scale.plain
    scaled = grid("scaled", "scores" if plain else f"{factor}·q·k", queries, keys, "scores:{r}:{c}")
    weights = grid("weights", "weights", queries, values, "scaled:{r}:*", bars=True)
    output = grid("output", "output", outputs, None, "weights:{r}:* v:*:{c}")
    hidden = " A key that the mask hides gets −∞." if masked else ""
    words_of_steps = (
        "The query says what a token looks for, the key what it offers, the value what it hands over.",
        "Each query times each key, entry by entry, and added up: a large score means that the two fit.",
        f"{'The scale is 1.' if plain else f'Every score is multiplied by {factor}.'}{hidden}",
        "Softmax: e to the power of each score, divided by the sum of its row. Every row sums to 1.",
        "Each output is a mix: every value times its weight, added up.",
    )
    shown_at = ([], ["q", "k"], ["scores"], ["scaled"], ["weights", "v"])
    grids = (inputs, [scores], [scaled], [weights], [output])
    return [
        {"title": title, "words": text, "grids": own, "from": sources}
        for title, text, own, sources in zip(STEPS, words_of_steps, grids, shown_at, strict=True)
    ]


def _named(letter: str, place: int, words: list[str]) -> dict[str, Any]:
    return {"letter": letter, "place": place + 1, "word": words[place] if words else ""}


def _cells(
    name: str, rows: list[list[float | None]], masked: list[list[bool]], why: list[list[str]] | None
) -> list[list[dict[str, Any]]]:
    hidden = {"scaled": "−∞", "weights": "0"}.get(name)
    cells = []
    for i, row in enumerate(rows):
        line = []
        for j, value in enumerate(row):
            hides = hidden is not None and masked[i][j]
            cell: dict[str, Any] = {"value": None if hides else value, "text": hidden if hides else shown(value)}
            line.append(cell | {"masked": hides} | ({} if why is None else {"why": why[i][j]}))
        cells.append(line)
    return cells
