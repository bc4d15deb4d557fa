"""Calls over several ranks that cover every pair of properties, and what each strategy may refuse."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from qkv.testing import CallCase, Spec
from qkv.testing.call_case import DTYPES
from qkv.testing.contract import pairwise
from qkv.testing.contract.grid import MASKS as CONTRACT_MASKS
from tests.helpers.parallel_cases import Ranks, ShardedAttention, lengths

SIMILARITIES: dict[str, Spec | None] = {
    "softmax": None,
    "softcap and sink": Spec("softmax", scale=-0.7, softcap=1.5, sink="heads", seed=4),
    "argmax": Spec("argmax"),
    "polynomial": Spec("polynomial", degree=2, offset=1.0),
    "elu1": Spec("feature_map", map="elu1"),
    "function": Spec("similarity", function="gaussian"),
}
# Similarities that differ from those above only in numbers: combined with fewer masks.
VARIANTS: dict[str, Spec | None] = {
    "number sink": Spec("softmax", scale=0.4, sink=0.5),
    "softcap": Spec("softmax", softcap=0.5),
    **{
        f"polynomial {degree} {offset:g}": Spec("polynomial", degree=degree, offset=offset)
        for degree, offset in ((1, 0.0), (1, 1.0), (2, 0.0), (3, 0.0), (3, 1.0))
    },
    **{name: Spec("feature_map", map=name) for name in ("relu", "identity", "squared", "positive_random")},
    "elu1 unnormalised": Spec("feature_map", map="elu1", normalize=False),
    "rational": Spec("similarity", function="rational"),
    "signed": Spec("similarity", function="signed"),
}
MASKS = {
    # "own segments" is for calls with as many queries as keys, which "segments" holds here as well.
    **{name: mask for name, mask in CONTRACT_MASKS.items() if name != "own segments"},
    "padding drop": lambda b, q, k: Spec("padding", drop_seed=6),
    "dense row": lambda b, q, k: Spec("dense", seed=10, axes="k"),
    "dense batch": lambda b, q, k: Spec("dense", seed=11, axes="bk"),
    "dense queries": lambda b, q, k: Spec("dense", seed=12, axes="hq"),
}
# (batch, heads_q, heads_kv, dims): for every number of ranks some heads that it divides, and some that it does not.
HEADS = {
    "mha": (2, 3, 3, 4),
    "gqa": (2, 4, 2, 4),
    "gqa wide": (1, 6, 2, 4),
    "mqa": (1, 6, 1, 4),
    "batch": (2, 1, 1, 3),
    "sequence": (1, 1, 1, 2),
}
# (len_q, len_k, width, width_v)
SIZES = {
    "tiny": (3, 5, 2, 3),
    "square": (7, 7, 5, 3),
    "one query": (1, 13, 3, 5),
    "more queries": (11, 7, 3, 2),
    "long": (19, 19, 7, 5),
}
BIASES = {"none": (None, "own"), "own rows": ("holes", "own"), "whole": ("full", "whole"), "row": ("row", "own")}
LAYOUTS = ("contiguous", "transposed", "expanded", "step_two", "misaligned")
# Shards of queries and keys: even, uneven, empty on a rank, on one rank alone, different for queries and keys.
SHARDS = {
    "2 uneven": ((5, 2), (5, 2)),
    "2 apart": ((1, 3), (2, 1)),
    "3 hole": ((2, 0, 3), (2, 0, 3)),
    "3 apart": ((0, 2, 1), (1, 3, 0)),
    "4 even": ((1, 1, 1, 1), (1, 1, 1, 1)),
    "4 uneven": ((1, 4, 2, 3), (1, 4, 2, 3)),
    "4 one": ((0, 0, 1, 0), (0, 0, 1, 0)),
    "4 apart": ((3, 1, 0, 2), (1, 2, 4, 1)),
}


class Trial(NamedTuple):
    """A call, the shards of queries and keys, and whether each rank gets its own rows of the bias."""

    call: CallCase
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    bias: str = "own"

    def on(self, ranks: Ranks) -> ShardedAttention:
        return ShardedAttention(ranks, self.queries, self.keys, self.bias)


def _possible(row: Mapping[str, str]) -> bool:
    """Only softmax takes a bias."""
    return row.get("bias", "none") == "none" or row.get("similarity") in (None, "softmax", "softcap and sink")


def _build(row: Mapping[str, str], seed: int) -> Trial:
    batch, heads_q, heads_kv, dims = HEADS[row["heads"]]
    len_q, len_k, width, width_v = SIZES[row["size"]]
    if row["size"] == "long":
        batch = 1  # the oracle loops over queries
    bias, bias_rows = BIASES[row.get("bias", "none")]
    name = row["similarity"]
    call = CallCase(
        batch=batch,
        heads_q=heads_q,
        heads_kv=heads_kv,
        len_q=len_q,
        len_k=len_k,
        width=width,
        width_v=width_v,
        dims=dims,
        dtype=row["dtype"],
        similarity=SIMILARITIES[name] if name in SIMILARITIES else VARIANTS[name],
        mask=MASKS[row["mask"]](batch, len_q, len_k),
        bias=bias,
        layout=row.get("layout", "contiguous"),
        seed=seed,
    )
    queries, keys = SHARDS[row["shards"]]
    return Trial(call, queries, keys, bias_rows)


@lru_cache(maxsize=1)
def trials() -> tuple[Trial, ...]:
    """The cases, always the same; cached, so that the oracle answers each once."""
    most = {
        "similarity": tuple(SIMILARITIES),
        "mask": tuple(MASKS),
        "heads": tuple(HEADS),
        "dtype": tuple(DTYPES),
        "size": tuple(SIZES),
        "bias": tuple(BIASES),
        "layout": LAYOUTS,
        "shards": tuple(SHARDS),
    }
    rest = {
        "similarity": tuple(VARIANTS),
        "mask": ("none", "causal", "causal padding"),
        "heads": ("mha", "gqa", "batch"),
        "dtype": ("float64", "float32", "bfloat16"),
        "size": ("tiny", "square"),
        "shards": ("2 uneven", "3 hole", "4 even"),
    }
    rows = pairwise(most, _possible) + pairwise(rest, _possible)
    return tuple(_build(row, seed) for seed, row in enumerate(rows, start=1000))


def refused(split: str, trial: Trial, wants: frozenset[str] = frozenset()) -> str | None:
    """Part of the reason for every call that a strategy may refuse; None: it must run."""
    call = trial.call
    if split in ("auto", "gather"):
        return None
    if split == "heads":
        return _refused_by_heads(call, len(trial.queries))
    matrix = "return_weights" if "weights" in wants else None
    if split == "ring":
        return matrix if call.kind == "softmax" else "no log-sum-exp"
    if split == "argmax":
        return matrix if call.kind == "argmax" else "only Argmax()"
    return _refused_by_scan(trial) or matrix


def _refused_by_heads(call: CallCase, ranks: int) -> str | None:
    if call.heads_q % ranks:
        return "query heads"
    return None if call.heads_kv % ranks == 0 or ranks % call.heads_kv == 0 else "key/value heads"


def _refused_by_scan(trial: Trial) -> str | None:
    call = trial.call
    if call.kind not in ("polynomial", "feature_map"):
        return "no product of features"
    masks = _conjuncts(call.mask)
    kinds = {mask.kind for mask in masks}
    if "window" in kinds:
        return "Window"
    if kinds - {"causal", "padding"}:
        return "one state for all queries supports Causal and Padding"
    offsets = [mask.options.get("offset", 0) for mask in masks if mask.kind == "causal"]
    return "keys" if offsets and not _is_aligned(trial, min(offsets)) else None


def _conjuncts(mask: Any) -> list[Any]:
    """The parts of a mask that are combined by &."""
    if mask is None:
        return []
    return [part for inner in mask.parts for part in _conjuncts(inner)] if mask.kind == "and" else [mask]


def _is_aligned(trial: Trial, offset: int) -> bool:
    """Whether each query attends to all keys of earlier ranks and to none of later ranks."""
    query = key = 0
    call = trial.call
    shards = zip(lengths(call.len_q, trial.queries), lengths(call.len_k, trial.keys), strict=True)
    for own_queries, own_keys in shards:
        counts = [max(0, min(call.len_k, i + offset + 1)) for i in range(query, query + own_queries)]
        if any(count < key or count > key + own_keys for count in counts):
            return False
        query, key = query + own_queries, key + own_keys
    return True
