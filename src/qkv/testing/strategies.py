"""Hypothesis strategies for calls of attention.

`calls()` draws a `CallCase`: sizes, head layout, dtype, similarity, mask, bias, memory layout and numbers.
A failing case prints as the code that makes the call again. This is the only module that needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from .call_case import BIASES, DTYPES, FUNCTIONS, MAPS, RULES, VALUES, CallCase, Spec
from .poison import LAYOUTS

# Small primes, ones and odd numbers: blocks of 2, 4 and 8 always leave a remainder.
LENGTHS = (1, 2, 3, 5, 7, 9, 11, 13, 17)
WIDTHS = (1, 2, 3, 5, 7, 8, 11)
KINDS = ("softmax", "sigmoid", "argmax", "polynomial", "feature_map", "similarity")
# (heads_q, heads_kv): MHA, GQA and MQA.
HEAD_LAYOUTS = ((1, 1), (2, 2), (3, 3), (4, 2), (6, 2), (6, 3), (2, 1), (5, 1))


def lengths(*, zero: bool = True) -> st.SearchStrategy[int]:
    """A number of positions; rarely 0, or enough to fill more than one block."""
    common = st.sampled_from(LENGTHS)
    rare = st.sampled_from((0, 33, 67) if zero else (33, 67))
    return st.integers(0, 19).flatmap(lambda n: rare if n == 0 else common)


def similarities(kinds: Sequence[str] = KINDS) -> Any:
    """A similarity of one of the kinds; None stands for the default, Softmax()."""
    of = st.sampled_from
    softmax = {
        "scale": of((1.0, 0.25, 0.0, -0.5, 2.0)),
        "softcap": of((0.5, 2.0, 30.0)),
        "sink": of(("heads", 0.0, 1.5, -3.0)),
    }
    options: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "sigmoid": {"scale": of((None, 1.0, -0.5)), "bias": of((None, 0.0, -3.0))},
        "polynomial": {"degree": st.integers(0, 4), "offset": of((1.0, 0.0, 0.5, -0.5))},
        "feature_map": {"map": of(MAPS), "normalize": of((True, True, False))},
        "similarity": {"function": of(sorted(FUNCTIONS)), "normalize": of((True, True, False))},
    }
    made = {kind: _specs(kind, st.fixed_dictionaries(options.get(kind, {}))) for kind in KINDS}
    made["softmax"] = st.none() | _specs("softmax", st.fixed_dictionaries({}, optional=softmax))
    # Softmax twice: most of what can go wrong belongs to it.
    return st.one_of(*(made[kind] for kind in kinds), made[kinds[0]])


def _specs(kind: str, options: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Spec | None]:
    return options.map(lambda chosen: Spec(kind, **chosen))


@st.composite
def masks(draw: st.DrawFn, batch: int, len_q: int, len_k: int, *, depth: int = 2) -> Spec | None:
    """No mask, one of the six kinds, or several of them joined by & and |."""
    shape = draw(st.sampled_from(("none", "one", "one", "one", "and", "or") if depth else ("one",)))
    if shape == "none" and depth == 2:
        return None
    if shape in ("and", "or"):
        inner = masks(batch, len_q, len_k, depth=depth - 1).filter(lambda spec: spec is not None)
        parts = draw(st.lists(inner, min_size=2, max_size=3))
        return Spec(shape, *[part for part in parts if part is not None])
    return draw(_one_mask(batch, len_q, len_k))


def _one_mask(batch: int, len_q: int, len_k: int) -> st.SearchStrategy[Spec | None]:
    of, seeds, sides = st.sampled_from, st.integers(0, 99), st.sampled_from((None, 0, 1, 2, 5, len_k + 3))
    offset = of((len_k - len_q, 0, -2, 1, len_k, -len_q))
    query, key = (st.lists(st.integers(0, 3), min_size=n, max_size=n).map(sorted).map(tuple) for n in (len_q, len_k))
    rows = st.tuples(*[st.integers(0, len_k)] * batch)
    axes = of(("bhqk", "qk", "k", "bk", "hq", "bqk", "h"))
    causal = {} if len_q == len_k else {"offset": offset}
    options: list[tuple[str, dict[str, st.SearchStrategy[Any]]]] = [
        ("causal", causal),
        ("causal", {"offset": offset}),
        ("window", {"left": sides, "right": sides, "offset": offset}),
        ("padding", {"lengths": rows}),
        ("padding", {"keep_seed": seeds}),
        ("padding", {"drop_seed": seeds}),
        ("segments", {"query": query, "key": key}),
        ("dense", {"seed": seeds, "density": of((0.6, 0.1, 0.95)), "axes": axes}),
        ("predicate", {"rule": of(sorted(RULES))}),
    ]
    return st.one_of(*(_specs(kind, st.fixed_dictionaries(each)) for kind, each in options))


@st.composite
def calls(
    draw: st.DrawFn,
    *,
    dtypes: Sequence[str] = tuple(DTYPES),
    kinds: Sequence[str] = KINDS,
    values: Sequence[str] = VALUES,
) -> CallCase:
    """Any call that `qkv.attention` must answer.

    Sizes are small primes and odd numbers, rarely 0 or more than a block; `dtypes`, `kinds` of similarity
    and kinds of `values` select which calls are drawn.
    """
    dims = draw(st.sampled_from((4, 4, 4, 3, 2)))
    heads_q, heads_kv = draw(st.sampled_from(HEAD_LAYOUTS)) if dims == 4 else (1, 1)
    batch = draw(st.sampled_from((1, 2, 3, 0) if dims == 4 else (1, 2, 3))) if dims > 2 else 1
    len_q = draw(lengths())
    len_k = len_q if draw(st.booleans()) else draw(lengths())
    similarity = draw(similarities(kinds))
    has_scores = similarity is None or similarity.kind in ("softmax", "sigmoid")
    biases = ("full", "row", "holes") if dims < 4 else BIASES
    return CallCase(
        batch=batch,
        heads_q=heads_q,
        heads_kv=heads_kv,
        len_q=len_q,
        len_k=len_k,
        width=draw(st.sampled_from(WIDTHS)),
        width_v=draw(st.sampled_from(WIDTHS)),
        dims=dims,
        dtype=draw(st.sampled_from(tuple(dtypes))),
        similarity=similarity,
        mask=draw(masks(batch, len_q, len_k)),
        bias=draw(st.sampled_from((None, None, *biases))) if has_scores else None,
        layout=draw(st.sampled_from(tuple(LAYOUTS))),
        values=draw(st.sampled_from(tuple(values))),
        seed=draw(st.integers(0, 9999)),
    )
