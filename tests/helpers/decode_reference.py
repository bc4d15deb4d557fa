"""A cache kept as plain sequences, and decoding over it by the equation, in float64.

    V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j),   j ≤ the query's own absolute position

Written from the specification alone: tokens are rounded once, when they are appended, and nothing else is.
"""

import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import qkv
from qkv.cache.formats import FORMATS, rotate, rotate_back, storage_format
from qkv.testing.tolerance import error_in_ulp, ulp

STORAGE = tuple(each.dtype for each in FORMATS.values())
LATENTS = tuple(each for each in STORAGE if not FORMATS[each].group and FORMATS[each].values is None)
QUERIES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# (heads_q, heads_kv)
HEADS = {"mha": (5, 5), "gqa": (10, 2), "mqa": (7, 1)}
# Ulp of the largest attended |v|, in the arithmetic's dtype: what long sums and exp may lose.
BOUND = 16.0
PAGE = 64


def name_of(thing: object) -> str:
    return str(thing).removeprefix("torch.")


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0, whole: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if whole:
        return torch.randint(-2, 3, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes and float32 scales (..., 1) of each vector; the scale of a non-finite vector is NaN."""
    x = x.to(torch.float32)
    scale = x.abs().amax(-1, keepdim=True) / 127
    safe = torch.where((scale > 0) & scale.isfinite(), scale, 1.0)
    codes = torch.where(scale > 0, torch.round(x.nan_to_num(0.0, 0.0, 0.0) / safe).clamp(-127, 127), 0.0)
    return codes.to(torch.int8), torch.where(x.isfinite().all(-1, keepdim=True), scale, nan)


def quantized_int4(x: Tensor) -> Tensor:
    """Steps of a scale for each 32 rotated channels, rotated back; test_kv_int4.py has the rotation's own tests."""
    finite = x.isfinite().all(-1, keepdim=True)
    kept = []
    for group in rotate(torch.where(finite, x.to(torch.float32), 0.0)).split(32, -1):
        scale = (group.abs().amax(-1, keepdim=True) / 7.5).bfloat16().float()
        steps = (group / torch.where(scale > 0, scale, 1.0)).floor().clamp(-8, 7) + 0.5
        kept.append(torch.where(scale > 0, steps, -7.5) * scale)
    return torch.where(finite, rotate_back(torch.cat(kept, -1)), nan).double()


def stored(x: Tensor, storage: torch.dtype | str) -> Tensor:
    """The keys that a cache of that format keeps, in float64; of its values with `storage_format(...).of_values`."""
    if storage is torch.int4:
        return quantized_int4(x)
    if storage in (torch.int8, "int8/int4"):
        codes, scale = quantized(x)
        return torch.where(scale.isnan(), nan, codes.double() * scale.double())
    assert isinstance(storage, torch.dtype)
    return x.to(storage).double()


def has_scales(storage: torch.dtype | str) -> bool:
    return storage_format(storage).has_scales


@dataclass
class Expected:
    """The right result, (batch, heads_q, n, value_width), and the unit in which errors are measured."""

    out: Tensor
    seen: Tensor
    reach: Tensor
    sizes: Tensor
    storage: torch.dtype | str
    scores: Tensor | None = None
    slack: Tensor | None = None
    values: Tensor | None = None
    weights: Tensor | None = None

    def check_weights(self, found: Tensor) -> None:
        """Exactly 0 where nothing is attended, and as good as float32 scores allow; columns beyond all rows are 0."""
        assert self.weights is not None
        assert found.dtype is torch.float32
        slots = self.weights.shape[3]
        assert not found[..., slots:].any()
        found, seen = found[..., :slots].double(), self.seen
        assert not found[~seen].any(), "a key that is not attended has a weight"
        lost = self.weights.isnan()
        assert bool(found[lost & seen].isnan().all()), "a NaN that is attended must not be hidden"
        slack = 4 * torch.finfo(torch.float32).eps * (self.sizes[..., None].nan_to_num(0.0, 0.0, 0.0) + 8)
        error = (found - self.weights).abs().masked_fill(lost, 0.0)
        assert bool((error <= slack * self.weights.nan_to_num(0.0) + 1e-30).all()), f"off by {float(error.max()):.3g}"

    def check(self, found: Tensor, exact: bool = False) -> None:
        """`exact`: the scores are whole numbers, and Argmax must choose the first of equal ones."""
        assert found.shape == self.out.shape, f"shape {tuple(found.shape)}, not {tuple(self.out.shape)}"
        if not found.numel() or not self.seen.shape[-1]:
            assert not found.any(), "a query with nothing to see must get exactly 0"
            return
        if self.scores is not None:
            self._check_argmax(found, exact)
        else:
            self._check_softmax(found)

    def _check_softmax(self, found: Tensor) -> None:
        """Within BOUND ulp of the largest attended |v|, or the error that rounding the scores causes."""
        dtype = found.dtype
        inner = torch.float64 if dtype is torch.float64 and not has_scales(self.storage) else torch.float32
        rounding = torch.maximum(BOUND * ulp(self.reach, inner), 2 * torch.finfo(inner).eps * self.sizes * self.reach)
        allowed = rounding / ulp(self.reach, dtype) + 0.5 + 1e-6
        errors = error_in_ulp(found, self.out, self.reach, dtype)
        empty = ~self.seen.any(-1)
        assert not found[empty].any(), "a query with nothing to see must get exactly 0"
        worst = (errors / allowed).nan_to_num(inf, inf).argmax()
        row = tuple(int(i) for i in torch.unravel_index(worst, errors.shape))
        assert bool((errors <= allowed).all()), (
            f"{name_of(dtype)} over {name_of(self.storage)}: off by {errors[row]:.4g} ulp of {self.reach[row]:.3g} at "
            f"(batch, head, query) {row}, allowed {allowed[row]:.4g}; {int((errors > allowed).sum())} of "
            f"{errors.numel()} rows\n  got    {found[row].double().tolist()}\n  wanted {self.out[row].tolist()}"
        )

    def _check_argmax(self, found: Tensor, exact: bool) -> None:
        """Every row is the value of a key whose score is the maximum up to rounding."""
        scores, values, seen = self.scores, self.values, self.seen
        assert scores is not None
        assert values is not None
        assert self.slack is not None
        live = torch.where(seen, scores, -inf)
        lost = (seen & scores.isnan()).any(-1)
        empty = (live == -inf).all(-1) & ~lost
        assert bool(found[lost].isnan().all()), "a NaN among the scores that count must not be hidden"
        assert not found[empty].any(), "a query with nothing to see must get exactly 0"
        best = live.nan_to_num(nan=-inf, posinf=inf, neginf=-inf).amax(-1, keepdim=True)
        good = seen & (live >= best - (0.0 if exact else self.slack[..., None]))
        if exact:
            good &= good.cumsum(-1) == 1
        kept = values.to(torch.float32).to(found.dtype)[:, :, None]
        wanted = found[..., None, :]
        same = (kept == wanted) | (kept.isnan() & wanted.isnan())
        if found.dtype is torch.float64 and has_scales(self.storage):
            same |= (values[:, :, None] - wanted).abs() <= 1e-6 * values[:, :, None].abs()
        right = (same.all(-1) & good).any(-1) | lost | empty
        row = tuple(int(i) for i in torch.unravel_index((~right).int().argmax(), right.shape))
        assert bool(right.all()), (
            f"argmax: {int((~right).sum())} of {right.numel()} rows are not the value of their best key; first "
            f"(batch, head, query) {row}: got {found[row].tolist()}, best keys {good[row].nonzero().flatten().tolist()}"
        )


class Marks(NamedTuple):
    """Of a row: the position and the importance of each stored token (heads, tokens); how many are gone, and since."""

    at: Tensor
    sums: Tensor
    gone: int = 0
    since: int = 0


# keep(batch, head, new query, position, key) → bool, all of them index tensors that broadcast
Keep = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Any]


@dataclass
class Plain:
    """`KVCache` as one plain sequence a row: keys (heads, length, width) and values, in float64."""

    batch: int
    heads: int
    width: int
    value_width: int
    dtype: torch.dtype | str = torch.float32
    window: int | None = None
    sinks: int = 0
    policy: Any = None  # of qkv.cache, of positions alone
    latent: bool = False
    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    marks: list["Marks"] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.rows:
            self.reset()

    @classmethod
    def like(cls, cache: Any) -> "Plain":
        forgetting = cache.window, cache.sinks, cache.eviction, cache.latent
        return cls(cache.batch, cache.heads, cache.width, cache.value_width, cache.dtype, *forgetting)

    @property
    def lengths(self) -> list[int]:
        return [row[0].shape[1] + marks.gone for row, marks in zip(self.rows, self.marks, strict=True)]

    @property
    def stored(self) -> list[int]:
        return [row[0].shape[1] for row in self.rows]

    @property
    def length(self) -> int:
        return max(self.lengths)

    def append(self, key: Tensor, value: Tensor | None, lengths: Any = None, padding: str = "right") -> Tensor:
        """The absolute position of each new token, (batch, n); −1 for padding."""
        n = key.shape[2]
        keys = stored(key, self.dtype)
        if value is None:
            values = keys[..., : self.value_width]
        else:
            values = stored(value, storage_format(self.dtype).of_values.dtype)
        positions = torch.full((self.batch, n), -1)
        for b, (k, v) in enumerate(self.rows):
            count = n if lengths is None else int(lengths[b])
            real = slice(n - count, n) if padding == "left" else slice(0, count)
            marks, past = self.marks[b], self.lengths[b]
            positions[b, real] = torch.arange(past, past + count)
            own = positions[b, real].expand(self.heads, count)
            sums = torch.cat([marks.sums, torch.zeros(self.heads, count).double()], 1)
            self.marks[b] = marks._replace(at=torch.cat([marks.at, own], 1), sums=sums)
            self.rows[b] = torch.cat([k, keys[b, :, real]], 1), torch.cat([v, values[b, :, real]], 1)
        return positions

    def evict(self, policy: Any, most: int | None = None) -> None:
        """What the policy leaves of rows that store more than it keeps, or at least `most` tokens."""
        for b, (k, v) in enumerate(self.rows):
            marks, length = self.marks[b], self.lengths[b]
            if marks.at.shape[1] < (policy.keep + 1 if most is None else most):
                continue
            keep = policy.select(marks.sums.float(), marks.at, length).expand(marks.at.shape)
            if keep.all():
                continue
            self.rows[b] = tuple(torch.stack([one[kept] for one, kept in zip(t, keep, strict=True)]) for t in (k, v))
            at, sums = (torch.stack([o[kept] for o, kept in zip(t, keep, strict=True)]) for t in (marks.at, marks.sums))
            if policy.positions == "renumbered":
                at = torch.arange(length - at.shape[1], length).expand(at.shape)
            self.marks[b] = Marks(at, sums, length - at.shape[1], length)

    def can_crop(self, n: int) -> bool:
        rows = zip(self.lengths, self.marks, strict=True)
        return n == 0 or all(length <= n or marks.since <= n for length, marks in rows)

    def crop(self, n: int) -> None:
        for b, (k, v) in enumerate(self.rows):
            marks = self.marks[b]
            kept = min(k.shape[1], n - marks.gone if n else 0)
            self.rows[b] = k[:, :kept], v[:, :kept]
            marks = marks._replace(at=marks.at[:, :kept], sums=marks.sums[:, :kept])
            self.marks[b] = marks if n else marks._replace(gone=0, since=0)

    def reorder(self, index: list[int]) -> None:
        self.rows, self.marks = [self.rows[i] for i in index], [self.marks[i] for i in index]
        self.batch = len(index)

    def extend(self, other: "Plain") -> None:
        self.rows, self.marks = [*self.rows, *other.rows], [*self.marks, *other.marks]
        self.batch = len(self.rows)

    def fork(self) -> "Plain":
        return replace(self, rows=list(self.rows), marks=list(self.marks))

    def reset(self) -> None:
        none = torch.zeros(self.heads, 0, self.width).double(), torch.zeros(self.heads, 0, self.value_width).double()
        self.rows = [none] * self.batch
        self.marks = [Marks(torch.zeros(self.heads, 0).long(), torch.zeros(self.heads, 0).double())] * self.batch

    def tensors(self) -> tuple[Tensor, Tensor]:
        """(batch, heads, tokens, width) and (…, value_width) in float64, zeros where a row stores none."""
        most = max(self.stored)
        keys = torch.zeros(self.batch, self.heads, most, self.width).double()
        values = torch.zeros(self.batch, self.heads, most, self.value_width).double()
        for b, (k, v) in enumerate(self.rows):
            keys[b, :, : k.shape[1]], values[b, :, : k.shape[1]] = k, v
        return keys, values

    def positions(self) -> Tensor:
        """(batch, heads, tokens), −1 where a row stores none."""
        at = torch.full((self.batch, self.heads, max(self.stored)), -1)
        for b, marks in enumerate(self.marks):
            at[b, :, : marks.at.shape[1]] = marks.at
        return at

    def importance(self) -> Tensor:
        sums = torch.zeros(self.batch, self.heads, max(self.stored)).double()
        for b, marks in enumerate(self.marks):
            sums[b, :, : marks.at.shape[1]] = marks.sums
        return sums

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        *,
        similarity: Any = None,
        keep: Keep | None = None,
        bias: Tensor | None = None,
        lengths: Any = None,
        padding: str = "right",
    ) -> Expected:
        positions = self.append(key, value, lengths, padding)
        expected = self.attend(query, positions, similarity=similarity, keep=keep, bias=bias)
        if expected.weights is not None:
            sums = expected.weights.unflatten(1, (self.heads, -1)).sum((2, 3))
            for b, marks in enumerate(self.marks):
                self.marks[b] = marks._replace(sums=marks.sums + sums[b, :, : marks.at.shape[1]])
        if self.policy is not None:
            self.evict(self.policy, self.policy.keep + self.policy.every)
        return expected

    def attend(
        self,
        query: Tensor,
        positions: Tensor,
        *,
        similarity: Any = None,
        keep: Keep | None = None,
        bias: Tensor | None = None,
    ) -> Expected:
        similarity = qkv.Softmax() if similarity is None else similarity
        q, (k, v) = query.double(), self.tensors()
        heads, group = q.shape[1], q.shape[1] // self.heads
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        b, h = torch.arange(self.batch)[:, None, None, None], torch.arange(heads)[:, None, None]
        at = self.positions().repeat_interleave(group, dim=1)[:, :, None]
        i, j, p = torch.arange(q.shape[2])[:, None], at.clamp(min=0), positions[:, None, :, None]
        seen = (at >= 0) & (j <= p) & (p >= 0)
        if self.window is not None:
            seen = seen & ((j > p - self.window) | (j < self.sinks))
        if keep is not None and at.shape[3]:
            seen = seen & keep(b, h, i, p.clamp(min=0), j)
        if bias is not None and at.shape[3]:
            if bias.shape[-1] > 1 or self.length == 1:
                bias = bias.expand(self.batch, heads, q.shape[2], self.length)
                bias = bias.gather(3, j.expand(-1, -1, q.shape[2], -1))
            seen = seen & (bias != -inf)
        seen = seen.expand(self.batch, heads, q.shape[2], at.shape[3])
        scores = q @ k.transpose(-1, -2)
        sizes = q.abs().nan_to_num(0.0, 0.0, 0.0) @ k.abs().nan_to_num(0.0, 0.0, 0.0).transpose(-1, -2)
        if storage_format(self.dtype).group:  # the products are of rotated rows
            norms = (t.nan_to_num(0.0, 0.0, 0.0).norm(dim=-1) for t in (q, k))
            sizes = torch.maximum(sizes, next(norms)[..., None] * next(norms)[:, :, None])
        reach = largest(torch.where(seen, v.abs().nan_to_num(0.0, 0.0, 0.0).amax(-1)[:, :, None], 0.0))
        if isinstance(similarity, qkv.Argmax):
            slack = 2 * (self.width + 4) * torch.finfo(torch.float32).eps * largest(sizes * seen)
            return Expected(
                reach[..., None].expand(*q.shape[:3], v.shape[-1]), seen, reach, slack, self.dtype, scores, slack, v
            )
        out, weights = by_scores(scores, v, seen, similarity, self.width, bias)
        sizes = sizes * abs(similarity.scale_for(self.width))
        if bias is not None:
            sizes = sizes + bias.double().abs().nan_to_num(0.0, 0.0, 0.0)
        sizes = largest(sizes * seen)
        if isinstance(similarity, qkv.Sigmoid):  # the weights do not add up to 1
            terms = weights.nan_to_num(0.0) @ v.abs().nan_to_num(0.0, 0.0, 0.0)
            reach = torch.maximum(reach, terms.amax(-1))
        reach = torch.maximum(reach, out.abs().nan_to_num(0.0, 0.0, 0.0).amax(-1))
        return Expected(out, seen, reach, sizes, self.dtype, weights=weights)


def largest(x: Tensor) -> Tensor:
    return x.amax(-1) if x.shape[-1] else x.sum(-1)


def by_scores(
    scores: Tensor, v: Tensor, seen: Tensor, similarity: Any, width: int, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Σ_j exp(s_j) v_j / (Σ_j exp(s_j) + exp(sink)), over the attended keys, and the weights; for Sigmoid,
    Σ_j v_j / (1 + exp(−s_j)).
    """
    logits = scores * (1 / math.sqrt(width) if similarity.scale is None else similarity.scale)
    sigmoid = isinstance(similarity, qkv.Sigmoid)
    if sigmoid and similarity.bias is not None:
        logits = logits + torch.as_tensor(similarity.bias, dtype=torch.float64).reshape(-1, 1, 1)
    elif not sigmoid and similarity.softcap is not None:
        logits = similarity.softcap * torch.tanh(logits / similarity.softcap)
    if bias is not None:
        logits = logits + torch.where(bias == -inf, 0.0, bias.double())
    logits = torch.where(seen, logits, -inf)
    odd = (logits.isnan() | ((logits == inf) & (not sigmoid))) & seen
    lost = odd.any(-1)
    logits = torch.where(odd if sigmoid else lost[..., None], -inf, logits)
    live = (logits != -inf) & seen
    if not sigmoid and similarity.sink is not None:
        sink = torch.as_tensor(similarity.sink, dtype=torch.float64).reshape(-1, 1, 1).expand(logits.shape[1], 1, 1)
        sink = sink.expand(*logits.shape[:3], 1)
    else:
        sink = torch.full((*logits.shape[:3], 1), -inf).double()
    joined = torch.cat([logits, sink], -1)
    top = joined.amax(-1, keepdim=True)
    powers = torch.exp(joined - torch.where(top == -inf, 0.0, top))
    total = powers.sum(-1, keepdim=True)
    weights = powers[..., :-1] / torch.where(total == 0, 1.0, total)
    weights = 1 / (1 + torch.exp(-logits)) if sigmoid else weights
    out = weights @ torch.where(v.isfinite(), v, 0.0)
    if not bool(v.isfinite().all()):
        # A weight is positive however small it is, so a non-finite value in an attended token shows.
        counts = live.double()
        lies, up, down = (counts @ (mark.double()) > 0 for mark in (v.isnan(), v == inf, v == -inf))
        out = torch.where(up, inf, torch.where(down, -inf, out))
        out = torch.where(lies | (up & down), nan, out)
    out = torch.where(live.any(-1)[..., None], out, 0.0)
    return torch.where(lost[..., None], nan, out), torch.where(odd if sigmoid else lost[..., None] & seen, nan, weights)


def fill(cache: Any, *tensors: Tensor, chunk: int | None = None, lengths: Any = None) -> None:
    """Append keys and values, `chunk` tokens at a time."""
    key, value = tensors
    n = key.shape[2]
    for first in range(0, n, chunk or max(n, 1)):
        last = first + (chunk or n)
        cache.append(
            key[:, :, first:last], value[:, :, first:last], **({} if lengths is None else {"lengths": lengths})
        )


def same_bits(found: Tensor, wanted: Tensor, what: str = "") -> None:
    assert found.dtype is wanted.dtype
    assert found.shape == wanted.shape
    as_int = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    one, other = (t.detach().contiguous().view(as_int) for t in (found, wanted))
    assert torch.equal(one, other), f"{what}: {int((one != other).sum())} of {one.numel()} numbers differ"


def contents(cache: Any) -> tuple[Tensor, Tensor]:
    return tuple(t.clone() for t in cache.tensors())  # pyright: ignore


def holds(cache: Any, plain: Plain) -> None:
    """Compare lengths and contents: the same bits as when each token was rounded at append."""
    assert cache.lengths.tolist() == plain.lengths
    assert cache.length == plain.length
    assert cache.batch == plain.batch
    dtype = cache.dtype if cache.dtype in (torch.float16, torch.bfloat16) else torch.float32
    for stored, wanted in zip(cache.tensors(), plain.tensors(), strict=True):
        assert stored.dtype is dtype
        if plain.sinks:
            stored = by_position(cache, stored, plain.length)
        else:
            assert stored.shape[2] == max(plain.stored) - cache.start
        found = torch.nn.functional.pad(stored, (0, 0, wanted.shape[2] - stored.shape[2], 0))
        assert found.shape == wanted.shape
        for b, length in enumerate(plain.stored):
            first = 0 if cache.window is None else max(0, length - cache.window + 1)
            got, want = found[b, :, first:length], wanted[b, :, first:length].to(dtype)
            assert torch.equal(got.isnan(), want.isnan())
            assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0)), f"row {b} holds other numbers"
            assert not found[b, :, length:].any(), "slots beyond a row's length must be zero"
            # An evicted token is zero, or unchanged while its page is in use.
            gone, was = found[b, :, :first], wanted[b, :, :first].to(dtype)
            assert bool(((gone == 0) | (gone == was) | (gone.isnan() & was.isnan())).all())


def by_position(cache: Any, stored: Tensor, length: int) -> Tensor:
    """The stored tokens at their positions, zeros elsewhere."""
    at = cache.positions()
    rows = torch.zeros(*stored.shape[:2], length + 1, stored.shape[3], dtype=stored.dtype)
    return rows.scatter(2, at.where(at >= 0, length)[..., None].expand(stored.shape), stored)[:, :, :length]


@contextmanager
def untouched(cache: Any) -> Iterator[None]:
    """Check that the cache is unchanged after the block."""
    before = cache.batch, cache.length, cache.lengths.tolist(), cache.nbytes, contents(cache)
    yield
    after = cache.batch, cache.length, cache.lengths.tolist(), cache.nbytes, contents(cache)
    assert before[:4] == after[:4]
    for one, other in zip(before[4], after[4], strict=True):
        same_bits(one, other, "the cache's contents")


def page_bytes(heads: int, width: int, value_width: int, storage: torch.dtype | str, latent: bool = False) -> int:
    """A page holds 64 tokens of one row: header, scales, keys, values, each head's slab a multiple of 64 bytes.

    Of latents it has no keys, and rows as wide as keys in place of values.
    """
    value_width = width if latent else value_width
    groups = tuple(math.ceil(each / 32) for each in (width, value_width))
    sizes = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2, torch.int8: 1, "int8/int4": 1}
    pairs = 2 if storage is torch.bfloat16 else 1
    keys = values = PAGE * 18  # a group of int4: 16 bytes and a scale
    keys = keys * groups[0]
    if storage in sizes:
        keys = sizes[storage] * PAGE * pairs * math.ceil(width / pairs) + 4 * PAGE * (sizes[storage] == 1)
    values = values * groups[1]
    if storage in sizes and storage != "int8/int4":
        values = sizes[storage] * PAGE * (math.ceil(value_width / 16) * 16) + 4 * PAGE * (sizes[storage] == 1)
    return heads * (64 + (0 if latent else keys) + values)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_a_process(script: str, timeout: float = 100, **environment: str) -> str:
    """Run a Python program that can import this file and return its output; a failure shows its errors."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("QKV_")}
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", textwrap.dedent(script)],
        env=settings | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
