"""Masks, similarities and biases in absolute positions, and a complete check of one decode call."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

import qkv
from tests.helpers.decode_reference import HEADS, QUERIES, STORAGE, Keep, Plain, has_scales, numbers


@dataclass(frozen=True)
class Scene:
    """The sizes that a mask is made for: n new queries at the end of `total` keys."""

    batch: int
    heads: int
    n: int
    total: int
    seed: int = 0

    def coins(self, *shape: int, salt: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(100 * self.seed + salt)
        return torch.rand(shape, generator=generator) < 0.7


def _ids(scene: Scene, salt: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * scene.seed + salt)
    return torch.randint(0, 3, (scene.batch, scene.total), generator=generator).sort(-1).values


def _rule(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (7 * i + 3 * j + 5 * h + b) % 4 != 0


MASKS = (
    "none",
    "causal",
    "causal offset",
    "window",
    "window right",
    "window offset",
    "lengths",
    "keep",
    "drop",
    "segments",
    "segments of new queries",
    "dense keys",
    "dense keys of rows",
    "dense new",
    "dense all",
    "dense whole",
    "dense heads",
    "dense queries",
    "dense nothing",
    "predicate",
    "and",
    "or",
)


def make_mask(name: str, s: Scene) -> tuple[Any, Keep | None]:
    """A mask of qkv and the same rule in absolute positions, both without causality."""
    match name:
        case "none":
            return None, None
        case "causal":
            return qkv.Causal(), None
        case "causal offset":
            return qkv.Causal(offset=-3), lambda b, h, i, p, j: j <= p - 3
        case "window":
            return qkv.Window(left=5), lambda b, h, i, p, j: j >= p - 5
        case "window right":
            return qkv.Window(left=9, right=2), lambda b, h, i, p, j: j >= p - 9
        case "window offset":
            return qkv.Window(left=2, right=1, offset=-4), lambda b, h, i, p, j: (j >= p - 6) & (j <= p - 3)
        case "lengths":
            ends = torch.tensor([(3 * s.total) // 4, 0, s.total, 2][: s.batch] + [s.total] * max(0, s.batch - 4))
            ends = ends.clamp(max=s.total)
            return qkv.Padding(lengths=ends), lambda b, h, i, p, j: j < ends[b]
        case "keep" | "drop":
            kept = s.coins(s.batch, s.total, salt=1)
            return qkv.Padding(**{name: kept if name == "keep" else ~kept}), lambda b, h, i, p, j: kept[b, j]
        case "segments":
            ids = _ids(s, 2)
            return qkv.Segments(ids), lambda b, h, i, p, j: ids[b, p] == ids[b, j]
        case "segments of new queries":
            ids, own = _ids(s, 2), _ids(Scene(s.batch, s.heads, s.n, s.n, s.seed), 3)
            return qkv.Segments(own, ids), lambda b, h, i, p, j: own[b, i] == ids[b, j]
        case "dense keys":
            kept = s.coins(s.total, salt=4)
            return qkv.Dense(kept), lambda b, h, i, p, j: kept[j]
        case "dense keys of rows":
            kept = s.coins(s.batch, 1, 1, s.total, salt=5)
            return qkv.Dense(kept), lambda b, h, i, p, j: kept[b, 0, 0, j]
        case "dense new":
            kept = s.coins(s.n, s.total, salt=6)
            return qkv.Dense(kept), lambda b, h, i, p, j: kept[i, j]
        case "dense all":
            kept = s.coins(s.batch, s.heads, s.n, s.total, salt=7)
            return qkv.Dense(kept), lambda b, h, i, p, j: kept[b, h, i, j]
        case "dense whole":
            kept = s.coins(s.total, s.total, salt=8)
            return qkv.Dense(kept), lambda b, h, i, p, j: kept[p, j]
        case "dense heads":
            kept = s.coins(s.heads, 1, s.total, salt=9)
            return qkv.Dense(kept), lambda b, h, i, p, j: kept[h, 0, j]
        case "dense queries":
            kept = s.coins(s.batch, 1, s.n, 1, salt=10)
            return qkv.Dense(kept), lambda b, h, i, p, j: kept[b, 0, i, 0]
        case "dense nothing":
            return qkv.Dense(torch.zeros(1, 1, dtype=torch.bool)), lambda b, h, i, p, j: j < 0
        case "predicate":
            return qkv.Predicate(_rule), lambda b, h, i, p, j: _rule(b, h, p, j)
        case "and":
            kept = s.coins(s.batch, s.total, salt=11)
            mask = qkv.Window(left=40) & qkv.Padding(keep=kept) & qkv.Predicate(_rule)
            return mask, lambda b, h, i, p, j: (j >= p - 40) & kept[b, j] & _rule(b, h, p, j)
        case "or":
            first = torch.arange(s.total) < 3
            return qkv.Window(left=4) | qkv.Dense(first), lambda b, h, i, p, j: (j >= p - 4) | (j < 3)
    raise ValueError(name)


SIMILARITIES = ("default", "scale", "softcap", "sink", "sinks", "everything", "argmax", "sigmoid", "sigmoid bias")


def make_similarity(name: str, heads: int, dtype: torch.dtype) -> Any:
    sinks = numbers((heads,), dtype, seed=77)
    return {
        "default": lambda: None,
        "scale": lambda: qkv.Softmax(scale=-0.37),
        "softcap": lambda: qkv.Softmax(softcap=1.3),
        "sink": lambda: qkv.Softmax(sink=0.7),
        "sinks": lambda: qkv.Softmax(sink=sinks),
        "everything": lambda: qkv.Softmax(scale=0.6, softcap=2.5, sink=sinks),
        "argmax": qkv.Argmax,
        "sigmoid": lambda: qkv.Sigmoid(bias=-1.5),
        "sigmoid bias": lambda: qkv.Sigmoid(scale=-0.6, bias=sinks),
    }[name]()


BIASES = {
    "full": lambda b, h, n, t: (b, h, n, t),
    "keys": lambda b, h, n, t: (t,),
    "one key axis": lambda b, h, n, t: (1, 1, 1, t),
    "new queries": lambda b, h, n, t: (n, t),
    "heads": lambda b, h, n, t: (h, 1, t),
    "rows": lambda b, h, n, t: (b, 1, 1, t),
    "queries only": lambda b, h, n, t: (b, 1, n, 1),
    "one number": lambda b, h, n, t: (1,),
}


def make_bias(name: str, s: Scene, dtype: torch.dtype, holes: bool = True) -> Tensor:
    shape = BIASES[name](s.batch, s.heads, s.n, s.total)
    bias = numbers(shape, dtype, seed=31 + s.seed)
    if holes and shape[-1] > 1:
        bias[numbers(shape, seed=32 + s.seed) > 0.9] = -inf
    return bias


def tokens(
    n: int, *, batch: int, heads: tuple[int, int], widths: tuple[int, int], dtype: torch.dtype, seed: int, whole=False
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of n new tokens. Whole numbers are exact in every dtype, ties included."""
    (heads_q, heads_kv), (width, value_width) = heads, widths
    query = numbers((batch, heads_q, n, width), dtype, 3 * seed, whole)
    key = numbers((batch, heads_kv, n, width), dtype, 3 * seed + 1, whole)
    return query, key, numbers((batch, heads_kv, n, value_width), dtype, 3 * seed + 2)


def cut(tensors: Iterable[Tensor], first: int, last: int) -> tuple[Tensor, ...]:
    return tuple(tensor[:, :, first:last] for tensor in tensors)


def decode_in_chunks(cache: Any, tensors: Sequence[Tensor], sizes: Iterable[int], **options: Any) -> Tensor:
    """Return the results of all decode calls, concatenated."""
    edges = [0, *itertools.accumulate(sizes)]
    assert edges[-1] == tensors[0].shape[2]
    parts = [qkv.decode(*cut(tensors, a, b), cache, **options) for a, b in itertools.pairwise(edges)]
    return torch.cat(parts, dim=2)


def check_decode(
    *,
    storage: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (10, 2),
    widths: tuple[int, int] = (11, 13),
    batch: int = 3,
    past: int = 67,
    n: int = 1,
    similarity: str = "default",
    mask: str = "none",
    bias: str | None = None,
    window: int | None = None,
    lengths: list[int] | None = None,
    padding: str = "right",
    seed: int = 0,
    whole: bool = False,
) -> Tensor:
    """Compare one decode call after `past` tokens with the plain list, and return its result."""
    shape = {"batch": batch, "heads": heads, "widths": widths, "dtype": dtype, "whole": whole}
    cache = qkv.KVCache(batch, heads[1], widths[0], value_width=widths[1], dtype=storage, window=window)
    plain = Plain.like(cache)
    _, key, value = tokens(past, seed=2 * seed, **shape)
    cache.append(key, value)
    plain.append(key, value)
    total = past + (n if lengths is None else max(lengths))
    scene = Scene(batch, heads[0], n, total, seed)
    built, keep = make_mask(mask, scene)
    if built is not None and window is not None:  # masks that reach behind the window are refused
        built = built & qkv.Window(left=window - 1, offset=0)
    kind = make_similarity(similarity, heads[0], dtype)
    added = None if bias is None else make_bias(bias, scene, dtype)
    query, key, value = tokens(n, seed=2 * seed + 1, **shape)
    given: dict[str, Any] = {"similarity": kind, "bias": added}
    if lengths is not None:
        given |= {"lengths": lengths, "padding": padding}
    expected = plain.decode(query, key, value, keep=keep, **given)
    if lengths is not None:
        given["lengths"] = torch.tensor(lengths)
    found = qkv.decode(query, key, value, cache, mask=built, **given)
    assert found.dtype is dtype
    assert cache.lengths.tolist() == plain.lengths
    expected.check(found, exact=whole and not has_scales(storage))
    return found


def battery() -> int:
    """Check all features of decode in a few seconds, and return the number of checked calls."""
    count = 0
    for storage in STORAGE:
        for dtype in QUERIES:
            for heads in HEADS.values():
                for n in (1, 5):
                    check_decode(storage=storage, dtype=dtype, heads=heads, n=n, seed=count)
                    count += 1
    for at, mask in enumerate(MASKS):
        for similarity in ("everything", "argmax"):
            storage, dtype = STORAGE[at % len(STORAGE)], QUERIES[(at // 4) % 4]
            check_decode(storage=storage, dtype=dtype, mask=mask, similarity=similarity, n=3, seed=at)
            count += 1
    for at, bias in enumerate(BIASES):
        check_decode(storage=STORAGE[at % len(STORAGE)], dtype=QUERIES[at // 2 % 4], bias=bias, n=3, seed=at)
        count += 1
    for at, similarity in enumerate(SIMILARITIES):
        for past, n in ((0, 1), (63, 1), (64, 65), (129, 2)):
            for window in (None, 50):
                check_decode(
                    storage=STORAGE[at % len(STORAGE)],
                    similarity=similarity,
                    past=past,
                    n=n,
                    window=window,
                    seed=count,
                    whole=True,
                )
                count += 1
    for padding in ("left", "right"):
        for at, storage in enumerate(STORAGE):
            check_decode(storage=storage, n=4, lengths=[2, 0, 4], padding=padding, seed=at)
            count += 1
    return count
