"""What a call of attention needs, whatever computes it: `count` of three shapes and the other slots."""

from __future__ import annotations

from typing import Any

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..masks import Causal, Extent, Mask, Padding, Window, as_mask
from ..masks.reach import Reach, reach
from ..similarity import AnySimilarity, as_similarity
from .formats import BITS
from .ledger import Ledger, Number, half, named
from .needs import Asked, forms_for, needed
from .sizes import RANKS, Sizes, check_sizes

ITEM_BYTES = {"float64": 8, **{name: bits // 8 for name, bits in BITS.items() if bits >= 8}}
BACKENDS = ("reference", "blockwise", "linear", "argmax", "native")


def count(
    query: Any,
    key: Any,
    value: Any,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    backend: str = "auto",
    dtype: Any = None,
    features: Number | None = None,
    training: bool = False,
) -> Ledger:
    """Flops, bytes and memory that attention needs, line by line.

    query, key, value: tensors, or shapes as `attention` takes them, of integers, names or SymPy symbols. With names
    the answer is a formula. backend: which algorithm; "auto" takes the one without the matrix of scores, and for feature
    maps the one with fewer flops. dtype: of shapes; float32 where nothing is said. features: how many a map of your
    own makes. training: forward and backward.

    Only pairs that the mask lets through are counted, exactly: `qkv.explain` says what a backend executes.

    >>> count((1, 8, 1024, 64), (1, 8, 1024, 64), (1, 8, 1024, 64), mask=Causal()).products
    1074790400
    >>> count("n d", "n d", "n m", backend="reference").theta()
    Θ(d·n² + m·n²)
    >>> count("n d", "n d", "n m", backend="reference").theta("space")
    Θ(d·n + m·n + n²)
    """
    chosen = as_similarity(similarity)
    sizes = sizes_of(query, key, value)
    item = item_bytes(dtype if dtype is not None else getattr(query, "dtype", "float32"))
    if not isinstance(training, bool):
        raise OptionTypeError(complaint("training", repr(training), "True or False"))
    if features is not None:
        (features,) = named(features)
        if not hasattr(features, "free_symbols") and (type(features) is not int or features < 1):
            raise OptionError(complaint("features", repr(features), "a whole number from 1 on"))
    pairs, reached = _pairs(sizes, mask, len(_shape("query", query)))
    asked = Asked(sizes, pairs, item, chosen, features, *(reached or (None, None)))
    chosen_backend = _backend(backend, asked, as_mask(mask))
    if training and chosen_backend == "native":
        hint = "backend='blockwise' has one"
        raise OptionError(complaint("training", "True with backend='native'", "a backend that has a derivative", hint))
    return needed(chosen_backend, asked, training)


def _backend(backend: str, asked: Asked, mask: Mask | None) -> str:
    """The algorithm whose lines are counted."""
    if backend != "auto" and backend not in BACKENDS:
        raise OptionError(complaint("backend", repr(backend), "one of auto, " + ", ".join(BACKENDS)))
    serving = forms_for(asked.similarity)
    if not all(isinstance(part, Causal | Padding) for part in (() if mask is None else mask.parts())):
        # What was added to a sum cannot be taken out again, and one sum serves all queries.
        serving = tuple(name for name in serving if name != "linear")
    if backend != "auto":
        if backend not in serving:
            given = f"{backend!r} with {asked.similarity!r}" + ("" if mask is None else f" and {mask!r}")
            raise OptionError(complaint("backend", given, "one of " + ", ".join(serving)))
        return backend
    if "linear" not in serving:
        return serving[0]
    by_sums, by_scores = needed("linear", asked, False).flops, needed("blockwise", asked, False).flops
    # Of formulas, the one that a long sequence would choose.
    return "linear" if not isinstance(by_sums - by_scores, int) or by_sums < by_scores else "blockwise"


def sizes_of(query: Any, key: Any, value: Any) -> Sizes:
    """The sizes of three tensors or shapes of two, three or four axes."""
    shapes = [_shape(name, given) for name, given in (("query", query), ("key", key), ("value", value))]
    dims = len(shapes[0])
    if dims not in (2, 3, 4):
        raise ShapeError(complaint("query", f"{dims} dimensions {shapes[0]}", RANKS))
    for name, shape in zip(("key", "value"), shapes[1:], strict=True):
        if len(shape) != dims:
            given = f"{len(shape)} dimensions {shape} beside query's {shapes[0]}"
            raise ShapeError(complaint(name, given, f"{dims}, as many as query has"))
    whole = [(shape if dims == 4 else (shape[0], 1, *shape[1:]) if dims == 3 else (1, 1, *shape)) for shape in shapes]
    return check_sizes(*whole)


def item_bytes(dtype: Any) -> Number:
    """Bytes of a number: of a dtype by name or torch's own, or as they are given."""
    if isinstance(dtype, int) and not isinstance(dtype, bool) and dtype > 0:
        return dtype
    if hasattr(dtype, "free_symbols"):
        return dtype
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise DtypeError(complaint("dtype", repr(dtype), f"one of {', '.join(ITEM_BYTES)}, or bytes a number"))
    return ITEM_BYTES[name]


def _shape(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str):
        return named(*given.replace(",", " ").split())
    shape = getattr(given, "shape", given)
    if not isinstance(shape, tuple | list):
        raise ShapeError(complaint(name, repr(given), "a tensor or a shape", 'such as (1, 8, 1024, 64) or "b h n d"'))
    sizes = []
    for size in shape:
        (size,) = named(size)
        if not hasattr(size, "free_symbols") and (isinstance(size, bool) or not isinstance(size, int)):
            raise ShapeError(complaint(name, repr(tuple(shape)), "whole numbers, or names of sizes"))
        if isinstance(size, int) and size < 0:
            raise ShapeError(complaint(name, repr(tuple(shape)), "sizes that are not negative"))
        sizes.append(size)
    return tuple(sizes)


def _pairs(sizes: Sizes, mask: Mask | None, dims: int) -> tuple[Number, Reach | None]:
    """Pairs of a query and a key that the mask lets through, over batch and heads; and who sees or is seen at all."""
    checked = as_mask(mask)
    if checked is None:
        return sizes.cells, Reach(0, 0) if sizes.len_k == 0 else None
    shape = (sizes.batch, sizes.heads, sizes.len_q, sizes.len_k)
    if all(isinstance(size, int) for size in shape):
        extent = Extent(*shape, dims)
        return checked.population(extent), reach(checked, extent, sizes.heads_kv)
    # The closed forms below leave no query blind and no key unseen.
    return sizes.batch * sizes.heads * _symbolic_pairs(checked, sizes), None


def _symbolic_pairs(mask: Mask, sizes: Sizes) -> Number:
    """Closed backends for lengths that are symbols."""
    n, m = sizes.len_q, sizes.len_k
    if isinstance(mask, Causal):
        if mask.offset is None and n == m:
            return half(n * (n + 1))
        if mask.offset is not None and m - n == mask.offset:  # the queries are the last of the keys
            return n * m - half(n * (n - 1))
    if isinstance(mask, Window) and mask.left is not None and mask.right == 0 and n == m and mask.offset in (None, 0):
        from .symbols import smaller

        w = smaller(n, mask.left + 1)  # each sees so many keys, the first ones fewer
        return n * w - half(w * (w - 1))
    raise OptionError(
        complaint(
            "mask",
            f"{mask!r} over {n} queries and {m} keys",
            "numbers for the lengths, or a mask with a closed form",
            "Causal() over n and n, or Causal(offset=past) over n and past + n, has one",
        )
    )
