"""What the walk starts from: exact matrices of tokens or of queries, keys and values, the similarity and the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...errors import complaint
from ...problems.exact import Matrix, Scale, times
from ..fields import State, WrongField
from ..view import Work

if TYPE_CHECKING:
    from ...masks import Mask
    from ...similarity import AnySimilarity
    from ..checkpoints import Checkpoint

LARGEST, SMALLEST = 1_000_000, Fraction(1, 1_000_000)  # of an entry: powers of its products stay inside float64
MOST_HEADS = 4
MOST_TOKENS = 12  # of a text

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
        return _of_text(state, work)
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
            return Softmax(scale=float(start.scale.value(Fraction(1))))
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
        # Beside Causal nothing to the right is left to limit.
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


def _of_text(state: State, work: Work) -> Given:
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
