"""The contract's cases: a covering array in which every pair of axis values occurs, instead of the full product.

The full product of the axes has about 70 000 calls, but nearly every bug shows with the right pair of
values. A greedy covering array has each pair at least once in about 150 cases, and every case runs with
every backend, so that backend × (any two axes) is covered too. Basic cases for each similarity and dtype
are added, so that backend × similarity × dtype is covered even where a backend refuses a mask.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..call_case import DTYPES, CallCase, Spec

Row = dict[str, str]
Axes = Mapping[str, Sequence[str]]
Rule = Callable[[Mapping[str, str]], bool]

SIMILARITIES: dict[str, Spec | None] = {
    "softmax": None,
    "softmax scaled": Spec("softmax", scale=-0.7),
    "softmax softcap": Spec("softmax", softcap=1.5),
    "softmax sink": Spec("softmax", sink="heads", seed=4),
    "softmax number sink": Spec("softmax", scale=0.4, sink=0.5),
    "softmax forgetting": Spec("softmax", log_decay=5),
    "softmax sink forgetting": Spec("softmax", scale=-0.4, softcap=3.0, sink="heads", log_decay=6),
    "sigmoid": Spec("sigmoid"),
    "sigmoid bias": Spec("sigmoid", scale=-0.7, bias="heads", seed=4),
    "sigmoid number bias": Spec("sigmoid", scale=0.4, bias=-2.5),
    "argmax": Spec("argmax"),
    "polynomial": Spec("polynomial", degree=2),
    "polynomial odd": Spec("polynomial", degree=3, offset=-0.5),
    "elu1": Spec("feature_map", map="elu1"),
    "relu": Spec("feature_map", map="relu"),
    "positive_random": Spec("feature_map", map="positive_random"),
    "elu1 unnormalised": Spec("feature_map", map="elu1", normalize=False),
    "function": Spec("similarity", function="gaussian"),
    "unnormalised function": Spec("similarity", function="gaussian", normalize=False),
    "signed function": Spec("similarity", function="signed"),
}

# (batch, heads_q, heads_kv, dims)
HEADS = {
    "mha": (2, 3, 3, 4),
    "gqa": (2, 6, 2, 4),
    "mqa": (3, 5, 1, 4),
    "batch": (3, 1, 1, 3),
    "sequence": (1, 1, 1, 2),
}

# (len_q, len_k, width, width_v): primes, so that no two axes have the same size by accident.
SIZES = {
    "tiny": (3, 5, 2, 3),
    "square": (7, 7, 5, 3),
    "one query": (1, 13, 3, 5),
    "more queries": (11, 7, 3, 2),
    "long": (67, 71, 17, 19),
    "one": (1, 1, 3, 2),
    "two chunks": (67, 67, 5, 3),
}

BIASES = {"none": None, "full": "full", "row": "row", "heads": "heads", "holes": "holes", "function": "function"}


def _segments(count: int, length: int) -> tuple[int, ...]:
    return tuple(i * count // max(1, length) for i in range(length))


def _lengths(batch: int, len_k: int) -> tuple[int, ...]:
    return tuple((len_k - 1, 0, len_k)[b % 3] for b in range(batch))


# (batch, len_q, len_k) → mask. Offsets align the last query with the last key, except in "causal late".
MASKS: dict[str, Callable[[int, int, int], Spec | None]] = {
    "none": lambda b, q, k: None,
    "causal": lambda b, q, k: Spec("causal") if q == k else Spec("causal", offset=k - q),
    "causal late": lambda b, q, k: Spec("causal", offset=-2),  # the first two queries attend to nothing
    "window": lambda b, q, k: Spec("window", left=2, right=1, offset=k - q),
    "causal window": lambda b, q, k: Spec("and", Spec("causal", offset=k - q), Spec("window", left=3)),
    "padding": lambda b, q, k: Spec("padding", lengths=_lengths(b, k)),
    "padding keep": lambda b, q, k: Spec("padding", keep_seed=5),
    "causal padding": lambda b, q, k: Spec(
        "and", Spec("causal", offset=k - q), Spec("padding", lengths=_lengths(b, k))
    ),
    "segments": lambda b, q, k: Spec("segments", query=_segments(3, q), key=_segments(4, k)),
    "own segments": lambda b, q, k: Spec("segments", query=_segments(3, q), key=_segments(3, q)),
    "dense": lambda b, q, k: Spec("dense", seed=7, density=0.4),
    "dense heads": lambda b, q, k: Spec("dense", seed=8, axes="hk"),
    "predicate": lambda b, q, k: Spec("predicate", rule="scattered"),
    "prefix": lambda b, q, k: Spec(
        "or", Spec("causal", offset=k - q), Spec("padding", lengths=tuple(min(2, k) for _ in range(b)))
    ),
}

_CAUSAL = ("causal", "causal late", "causal window", "causal padding")  # that gates can be combined with

# Similarities that differ from another one in numbers only: combined with the dtypes, not with the masks.
_ONLY_WITH_PLAIN_CALLS = frozenset(
    {"softmax number sink", "softmax sink forgetting", "sigmoid number bias", "positive_random", "signed function"}
)

AXES: dict[str, tuple[str, ...]] = {
    "similarity": tuple(name for name in SIMILARITIES if name not in _ONLY_WITH_PLAIN_CALLS),
    "mask": tuple(name for name in MASKS if name != "own segments"),
    "heads": tuple(HEADS),
    "dtype": tuple(DTYPES),
    "size": ("tiny", "square", "one query", "more queries", "long"),
    "bias": tuple(BIASES),
}


# Each with a similarity that it goes with.
_PLAIN = Spec("feature_map", map="identity", normalize=False)
STATES: dict[str, tuple[Spec | None, Spec]] = {
    "decay": (SIMILARITIES["elu1"], Spec("decay", seed=1)),
    "decay number": (_PLAIN, Spec("decay", rate=0.5)),
    "gated": (SIMILARITIES["elu1"], Spec("gated", seed=2)),
    "gated features": (SIMILARITIES["elu1 unnormalised"], Spec("gated", per="feature", seed=3)),
    "delta": (_PLAIN, Spec("delta", seed=4)),
    "gated delta": (_PLAIN, Spec("gated_delta", seed=5)),
    "kda": (_PLAIN, Spec("kda", seed=6)),
}
STATE_AXES: dict[str, tuple[str, ...]] = {
    "state": tuple(STATES),
    "mask": ("none", "causal", "padding", "padding keep", "causal padding", "own segments"),
    "heads": tuple(HEADS),
    "dtype": tuple(DTYPES),
    "size": ("one", "square", "two chunks"),
}


def _possible(row: Mapping[str, str]) -> bool:
    """Whether the values can be combined: gates need causality, and only softmax and sigmoid take a bias.

    A bias per head needs heads, and every query of a call with gates is one of the tokens.
    """
    bias, heads = row.get("bias", "none"), row.get("heads")
    per_head = bias == "heads" and heads in ("batch", "sequence")
    late = row.get("mask") == "causal late" and row.get("size") == "more queries"
    if "forgetting" in row.get("similarity", "") and (row.get("mask", "causal") not in _CAUSAL or late):
        return False
    return bias == "none" or (row.get("similarity", "softmax").startswith(("softmax", "sigmoid")) and not per_head)


def pairwise(axes: Axes, possible: Rule, seed: int = 0) -> list[Row]:
    """Rows in which every possible pair of values occurs: greedy, adds the best of 20 random rows at a time.

    >>> rows = pairwise({"a": "xyz", "b": "pq", "c": "01"}, lambda row: True)
    >>> len(rows) <= 8, len({(row["a"], row["b"]) for row in rows})
    (True, 6)
    """
    draw = random.Random(seed)
    values = [[(axis, value) for value in axes[axis]] for axis in axes]
    pairs = itertools.chain.from_iterable(itertools.starmap(itertools.product, itertools.combinations(values, 2)))
    missing = {pair for pair in pairs if possible(dict(pair))}
    rows: list[Row] = []
    while missing:
        must = dict(min(missing))
        candidates = [_filled(must, axes, missing, possible, draw) for _ in range(20)]
        best = max(candidates, key=lambda row: len(_pairs(row, axes) & missing))
        missing -= _pairs(best, axes)
        rows.append(best)
    return rows


def _pairs(row: Row, axes: Axes) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(itertools.combinations([(axis, row[axis]) for axis in axes if axis in row], 2))


def _filled(must: Row, axes: Axes, missing: set[Any], possible: Rule, draw: random.Random) -> Row:
    """`must` with the other axes filled in a random order, each with the value that covers most pairs."""
    row = dict(must)
    others = [axis for axis in axes if axis not in row]
    draw.shuffle(others)
    for axis in others:
        allowed = [value for value in axes[axis] if possible({**row, axis: value})]
        draw.shuffle(allowed)
        gains = {value: len(_pairs({**row, axis: value}, axes) & missing) for value in allowed}
        row[axis] = max(allowed, key=gains.__getitem__)
    return {axis: row[axis] for axis in axes}


def build_case(row: Mapping[str, str], seed: int) -> CallCase:
    """The call of a row of axis values."""
    names = ("batch", "heads_q", "heads_kv", "dims", "len_q", "len_k", "width", "width_v")
    sizes: dict[str, Any] = dict(zip(names, (*HEADS[row["heads"]], *SIZES[row["size"]]), strict=True))
    if row["size"] in ("long", "two chunks"):
        sizes["batch"] = 1  # the oracle loops over queries
    mask = MASKS[row["mask"]](sizes["batch"], sizes["len_q"], sizes["len_k"])
    similarity, state = STATES[row["state"]] if "state" in row else (SIMILARITIES[row["similarity"]], None)
    rules = {"similarity": similarity, "mask": mask, "bias": BIASES[row.get("bias", "none")], "state": state}
    return CallCase(**sizes, dtype=row["dtype"], **rules, seed=seed)


@lru_cache(maxsize=2)
def contract_cases(strength: int = 2) -> tuple[CallCase, ...]:
    """The cases of the contract, always the same; cached, so that the oracle answers each once.

    Args:
        strength: 2: every pair of axis values occurs in a case. 1: a few of these cases, in which every value occurs.
    """
    basic = {"mask": "none", "heads": "gqa", "size": "tiny", "bias": "none"}
    plain = itertools.product(SIMILARITIES, DTYPES)
    rows = [{**basic, "similarity": similarity, "dtype": dtype} for similarity, dtype in plain]
    rows = [row | ({} if _possible(row) else {"mask": "causal"}) for row in rows]
    rows += pairwise(AXES, _possible)
    chosen = range(len(rows)) if strength == 2 else _rows_with_every_value(rows)
    states = pairwise(STATE_AXES, lambda row: True)
    small = [n for n, row in enumerate(states) if row["size"] != "two chunks"]
    more = (
        range(len(states)) if strength == 2 else [small[n] for n in _rows_with_every_value([states[n] for n in small])]
    )
    cases = [build_case(rows[seed], seed) for seed in chosen]
    return *cases, *(build_case(states[seed], len(rows) + seed) for seed in more)


def _rows_with_every_value(rows: Sequence[Row]) -> list[int]:
    """Greedy: the row with most values that no earlier row has, until every value has occurred."""
    missing = {item for row in rows for item in row.items()}
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda i: (len(missing & set(rows[i].items())), -i))
        chosen.append(best)
        missing -= set(rows[best].items())
    return chosen
