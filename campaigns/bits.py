"""The same inputs give the same bits: 250 repeats of every call with 1, 2 and 4 threads, as each backend promises.

Repeats have other layouts in memory and, where the backend promises the same bits in any batch, other rows in the
batch. A cell is a backend, a similarity and a dtype, or a cache's storage, a similarity and a dtype; each batch takes
the next few cells.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import qkv
from qkv.backends import BACKENDS
from qkv.errors import BackendRefused, MaskError
from qkv.testing import CallCase
from qkv.testing.call_case import DTYPES
from qkv.testing.contract.grid import HEADS, MASKS, SIMILARITIES
from qkv.testing.contract.subject import BackendCase, Subject, gradients
from qkv.testing.poison import LAYOUTS

from .campaign import Batch, Campaign

REPEATS = 250
THREADS = (1, 2, 4)
NAMES = ("query", "key", "value")
SUBJECT = Subject.of_qkv()
# (len_q, len_k): less than a tile, several tiles, and few queries with a long past.
LENGTHS = ((7, 11), (67, 71), (130, 257), (3, 700))
STORED = ("float32", "float16", "bfloat16", "int8")
CACHE_SIMILARITIES = {"softmax": None, "softcap and sink": qkv.Softmax(softcap=2.5, sink=0.5), "argmax": qkv.Argmax()}


class Cell(NamedTuple):
    """where: a backend, or a cache and its storage."""

    where: str
    similarity: str
    dtype: str


@cache
def cells() -> tuple[Cell, ...]:
    """Every backend with every similarity and dtype that it accepts, and every cache."""
    found = []
    for backend in BACKENDS:
        for name in SIMILARITIES:
            for dtype in DTYPES:
                plain = CallCase(similarity=SIMILARITIES[name], dtype=dtype, mask=MASKS[_plain_mask(name)](1, 5, 7))
                if _accepted(backend, plain):
                    found.append(Cell(backend, name, dtype))
    for stored in STORED:
        found += [Cell(f"KVCache {stored}", name, dtype) for name in CACHE_SIMILARITIES for dtype in DTYPES]
    maps = ("polynomial", "elu1", "positive_random")
    return (*found, *(Cell("LinearState", name, dtype) for name in maps for dtype in DTYPES))


def _plain_mask(similarity: str) -> str:
    """The mask of a plain call: gates forget what is before a token."""
    return "causal" if "forgetting" in similarity else "none"


def _accepted(backend: str, call: CallCase) -> bool:
    try:
        qkv.attention(**call.kwargs, backend=backend)
    except (BackendRefused, MaskError):
        return False
    return True


def same_bits(found: Tensor, wanted: Tensor, what: str) -> None:
    """Compare every bit, also of NaN and −0."""
    as_whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[wanted.element_size()]
    one, other = (tensor.detach().contiguous().view(as_whole) for tensor in (found, wanted))
    if not torch.equal(one, other):
        at = tuple(int(i) for i in (one != other).nonzero()[0])
        raise AssertionError(
            f"{what}: {int((one != other).sum())} of {one.numel()} numbers differ, the first at {at}: "
            f"{found[at].item()!r} instead of {wanted[at].item()!r}"
        )


def run(seed: int, count: int) -> Batch:
    """About `count` repeats: the next cells, with a new call in each."""
    before, tally = torch.get_num_threads(), Counter()
    every = cells()
    many = max(1, round(count / (REPEATS * len(THREADS))))
    try:
        for at in range(seed * many, (seed + 1) * many):
            cell = every[at % len(every)]
            # Another call in each round over all cells.
            tally.update(repeat_cell(cell, random.Random(f"{cell} {at // len(every)}"), REPEATS))
            tally["cells"] += 1
    finally:
        torch.set_num_threads(before)
    compared = tally["repeats"] + tally["gradients"]
    return Batch(compared, {**dict(sorted(tally.items())), "first cell": (seed * many) % len(every)})


def repeat_cell(cell: Cell, draw: random.Random, repeats: int) -> Counter[str]:
    if cell.where.startswith("KVCache"):
        return _repeat_with_cache(cell, draw, repeats)
    if cell.where == "LinearState":
        return _repeat_with_state(cell, draw, repeats)
    return _repeat_call(cell, draw, repeats)


def _drawn_call(cell: Cell, draw: random.Random) -> CallCase:
    """A call that the backend accepts: a refused mask is drawn again, at last without a mask."""
    for last in (False,) * 8 + (True,):
        batch, heads_q, heads_kv, dims = HEADS[draw.choice(("mha", "gqa", "mqa", "gqa", "batch", "sequence"))]
        # Functions of pairs and cubes of vectors take a hundred times as long as products.
        slow = cell.similarity in ("function", "signed function", "polynomial odd")
        len_q, len_k = draw.choice(LENGTHS[:1] if slow else LENGTHS)
        kind = _plain_mask(cell.similarity) if last else draw.choice(list(MASKS))
        softmax = cell.similarity.startswith("softmax")
        call = CallCase(
            batch=batch,
            heads_q=heads_q,
            heads_kv=heads_kv,
            len_q=len_q,
            len_k=len_k,
            width=draw.choice((5, 16) if slow else (5, 16, 33, 64)),
            width_v=draw.choice((3, 16, 40)),
            dims=dims,
            dtype=cell.dtype,
            similarity=SIMILARITIES[cell.similarity],
            mask=MASKS[kind](batch, len_q, len_k),
            bias=draw.choice((None, None, "full", "row")) if softmax else None,
            seed=draw.randrange(9999),
        )
        if _accepted(cell.where, call):
            return call
    raise AssertionError(f"{cell}: accepted a plain call before, and refuses one now")


def _repeat_call(cell: Cell, draw: random.Random, repeats: int) -> Counter[str]:
    call, keeps, tally = _drawn_call(cell, draw), BACKENDS[cell.where].same_bits_across, Counter()
    plain: dict[str, Any] = {**call.kwargs, **{name: call.kwargs[name].contiguous() for name in NAMES}}
    options = {"backend": cell.where, "return_lse": call.kind == "softmax"}
    wanted: tuple[Tensor, ...] = ()
    gradients_wanted: dict[str, Tensor] = {}
    with_gradients = cell.where in ("reference", "sdpa", "blockwise", "linear") and call.kind != "argmax"
    for threads in THREADS:
        torch.set_num_threads(threads)
        if not wanted or "threads" not in keeps:
            wanted = _parts(qkv.attention(**plain, **options))
            gradients_wanted = gradients(SUBJECT, BackendCase(cell.where, call)) if with_gradients else {}
        names = list(LAYOUTS)
        for repeat in range(repeats):
            layout, what = names[repeat % len(names)], f"{cell}, {call!r}, {threads} threads, repeat {repeat}"
            filler = torch.empty(draw.randrange(1, 4096))  # moves the next allocations to other addresses
            given = {**plain, **{name: LAYOUTS[layout](plain[name]) for name in NAMES}}
            other_rows = "batch" in keeps and call.dims > 2 and call.batch > 1 and repeat % 3 == 0
            if other_rows:
                given |= {name: _change_other_rows(given[name], repeat) for name in NAMES}
            found = _parts(qkv.attention(**given, **options))
            for part, right in zip(found, wanted, strict=True):
                same = (part[:1], right[:1]) if other_rows else (part, right)
                same_bits(*same, f"{what}, layout {layout}{', other rows' if other_rows else ''}")
            tally["repeats"] += 1
            tally["other rows"] += other_rows
            if gradients_wanted and repeat % 10 == 0:
                for name, slope in gradients(SUBJECT, BackendCase(cell.where, call)).items():
                    same_bits(slope, gradients_wanted[name], f"{what}, gradient of {name}")
                tally["gradients"] += 1
            del filler
    return tally


def _parts(answer: Any) -> tuple[Tensor, ...]:
    return tuple(answer) if isinstance(answer, tuple) else (answer,)


def _change_other_rows(tensor: Tensor, repeat: int) -> Tensor:
    """Row 0 unchanged, other numbers in the other rows."""
    other = tensor.clone()
    other[1:] = other[1:] * (2 + repeat % 5) - 1
    return other


def _sequence(n: int, batch: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    heads = {"query": 6, "key": 2, "value": 2}
    query, key, value = (torch.randn(batch, heads[name], n, 17, generator=source).to(dtype) for name in NAMES)
    return query, key, value


def _chunks(total: int, draw: random.Random) -> Iterator[slice]:
    start = 0
    while start < total:
        stop = min(total, start + draw.choice((1, 3, 64, 65, 300)))
        yield slice(start, stop)
        start = stop


def _filled(kv_cache: Any, key: Tensor, value: Tensor, parts: Iterator[slice]) -> Any:
    for part in parts:
        kv_cache.append(key[:, :, part], value[:, :, part])
    return kv_cache


def _repeat_with_cache(cell: Cell, draw: random.Random, repeats: int) -> Counter[str]:
    """One step after a past that was appended in other chunks and batches; float64 queries run on torch."""
    stored, dtype, kind = getattr(torch, cell.where.split()[1]), DTYPES[cell.dtype], CACHE_SIMILARITIES[cell.similarity]
    past, n = draw.choice((63, 300, 700)), draw.choice((1, 1, 5))
    window = draw.choice((None, None, 100))
    tensors = _sequence(past + n, 2, dtype, draw.randrange(9999))
    native, everything = dtype is not torch.float64, slice(past, past + n)

    def made(batch: int) -> Any:
        return qkv.KVCache(batch, 2, 17, dtype=stored, window=window)

    def step(kv_cache: Any, of: Callable[[Tensor], Tensor]) -> Tensor:
        return qkv.decode(*(of(tensor[:, :, everything]) for tensor in tensors), kv_cache, similarity=kind)

    whole, tally, wanted = iter([slice(0, past)]), Counter(), None
    kv_cache = _filled(made(2), *tensors[1:], whole)
    names = list(LAYOUTS)
    for threads in THREADS:
        torch.set_num_threads(threads)
        if wanted is None or not native:
            wanted = step(kv_cache.fork(), Tensor.contiguous)
        for repeat in range(repeats):
            what = f"{cell}, past {past} + {n}, window {window}, {threads} threads, repeat {repeat}"
            layout = LAYOUTS[names[repeat % len(names)]]
            if repeat % 25 == 24 and native:
                # A single row, with its past appended in other chunks.
                alone = _filled(made(1), *(tensor[:1] for tensor in tensors[1:]), _chunks(past, draw))
                found = step(alone, lambda tensor, layout=layout: layout(tensor[:1]))
                same_bits(found, wanted[:1], f"{what}, alone and in other chunks")
                tally["other rows"] += 1
            else:
                same_bits(step(kv_cache.fork(), layout), wanted, what)
            tally["repeats"] += 1
    return tally


def _repeat_with_state(cell: Cell, draw: random.Random, repeats: int) -> Counter[str]:
    """The same tokens in the same calls, alone or in a batch of two rows."""
    dtype = DTYPES[cell.dtype]
    similarity = CallCase(similarity=SIMILARITIES[cell.similarity], width=17, dtype=cell.dtype).built_similarity
    past = draw.choice((5, 40, 300))
    tensors = _sequence(past + 2, 2, dtype, draw.randrange(9999))
    native, tally, wanted = dtype is not torch.float64, Counter(), None

    def state(rows: int) -> Any:
        return _filled(
            qkv.LinearState(similarity, rows, 2, 17), *(tensor[:rows] for tensor in tensors[1:]), iter([slice(0, past)])
        )

    for threads in THREADS:
        torch.set_num_threads(threads)
        both, alone = state(2), state(1)
        if wanted is None or not native:
            wanted = _two_steps(both.fork(), tensors, past)
        for repeat in range(repeats):
            what = f"{cell}, past {past}, {threads} threads, repeat {repeat}"
            if native and repeat % 3 == 0:
                found = _two_steps(alone.fork(), tuple(tensor[:1] for tensor in tensors), past)
                same_bits(found, wanted[:1], f"{what}, alone")
                tally["other rows"] += 1
            else:
                same_bits(_two_steps(both.fork(), tensors, past), wanted, what)
            tally["repeats"] += 1
    return tally


def _two_steps(state: Any, tensors: tuple[Tensor, ...], past: int) -> Tensor:
    steps = [qkv.decode(*(tensor[:, :, t : t + 1] for tensor in tensors), state) for t in (past, past + 1)]
    return torch.cat(steps, dim=2)


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of comparisons, of cells, and of rounds over all cells."""
    tally: Counter[str] = Counter()
    for batch in figures:
        tally.update({name: number for name, number in batch.items() if name != "first cell"})
    return {
        "repeats at each number of threads": REPEATS,
        "threads": list(THREADS),
        "calls compared": tally["repeats"],
        "of them with other rows in the batch": tally["other rows"],
        "backward passes compared": tally["gradients"],
        "kinds of calls": len(cells()),
        "rounds": round(tally["cells"] / len(cells()), 2),
    }


CAMPAIGN = Campaign(
    about="calls repeated 250 times with 1, 2 and 4 threads, in other layouts and batches: the same bits",
    unit="repeats",
    goal=160_000,  # every cell once
    batch=10 * REPEATS * len(THREADS),
    run=run,
    gather=gather,
)
