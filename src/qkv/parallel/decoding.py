"""`decode` over a cache that ranks hold together: each attends to its own tokens, and the answers are merged.

What travels is an answer and a log-sum-exp for each query, however long the context is. Before that, while each rank
computes, tickets travel that say what it was asked for, so that nobody merges what does not belong together.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..backends.base import NEG_INF, RUNS
from ..cache import KVCache as LocalCache
from ..cache import LinearState
from ..cache.decode import native_reasons_against
from ..errors import BackendRefused, Disagreement, OptionError, OptionTypeError, QkvError, complaint
from ..inputs import DecodeInputs, compute_dtype, read_decode_inputs
from ..masks import Mask
from ..similarity import AnySimilarity, Softmax
from .agreement import Announced, agree, announce, mask_text, settle, similarity_text, value_text
from .axis import Axis
from .cache import KVCache
from .doubling import joined
from .looks import Look, look, placed
from .partial import by_kernel, by_torch, merged

# Numbers that a rank sends at a time.
_MOST = 1 << 22
# How far two ranks' tokens may lie apart, as a part of their size: above what rounding does in a deep model, which is
# some steps of the dtype, and below what another token does in a chunk of hundreds.
_FAR, _STEPS = 0.01, 8
_LOOKS = ("query", "key", "value", "the cache's past")  # what is compared, three numbers each
_END = 1 + 3 * len(_LOOKS)


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: KVCache,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    lengths: Any = None,
    padding: str = "right",
) -> Tensor:
    """Append n tokens to a cache that is spread over ranks, and attend from them to all that it holds.

    V'_i = Σ_r e^(lse_ri) V'_ri / Σ_r e^(lse_ri), where V'_ri and lse_ri are rank r's answer over its own tokens and the
    logarithm of the sum below its fraction; a sink joins that sum once. With `Argmax` the best of the ranks' best keys
    is taken, the lowest position of equals.
    query (batch, heads_q, n, width), key (batch, heads_kv, n, width), value (…, n, value_width): all new tokens. Every
    rank makes the same call with the same tokens, and gets the whole answer (batch, heads_q, n, value_width), bit for
    bit the same. similarity, mask, bias, lengths, padding: as in `qkv.decode`, over the whole context.
    cache: a `qkv.parallel.KVCache`.

    Each rank sends batch · heads_q · n · (value_width + 1) numbers, and 13 · R by which tokens are compared, to each
    other rank, or, from 8 ranks on, to ⌈log₂ R⌉ of them: whatever the context is. At the edges: as in `qkv.decode`; a
    rank that holds nothing takes part. Ranks that were given different arguments or tokens, or whose caches are not
    alike, raise `Disagreement` on every rank, with the names of what differs: tokens differ that lie further apart than
    rounding takes them, 1 % of their size (bfloat16: 6 %). A rank that is gone or late raises `PeerLost` on the others.
    Every error leaves the cache as it was.
    """
    cache = _checked(cache)
    with cache._lock:
        axis = cache._axis
        try:
            step = read_decode_inputs(query, key, value, cast(Any, cache), similarity, mask, bias, lengths, padding)
            _check_device(step, axis)
            cache._check_room(step.extent.len_q if step.counts is None else step.counts)
            said = _said(step, cache, mask, bias, padding)
            part = _Part(step, cache)
        except (QkvError, MemoryError, RuntimeError, TypeError, ValueError) as error:
            agree(axis, error)  # raises it
            raise
        with torch.no_grad():
            return _run(step, cache, part, announce(axis, said))


def _run(step: DecodeInputs, cache: KVCache, part: _Part, announced: Announced) -> Tensor:
    """Write, attend, hear the others out, and only then say that the tokens are there."""
    axis, own, failure = cache._axis, None, None
    try:
        try:
            own = cache._own(step.key, step.value, step.counts, step.left)
            _fill(step, cache, own, part)
        except BaseException as error:  # the others wait for this rank's answer, and hear that there is none
            failure = error
            part.fail()
        settle(announced)
        out = part.merged(axis, failure)
    except BaseException:
        cache._local._unreserve()
        raise
    assert own is not None
    if own[0].shape[2]:
        cache._local._publish(own[0], own[2])
    cache._publish(step.key, step.counts)
    cache._agreed(part.mark)
    RUNS["parallel.decode"] += 1
    return out


def _checked(cache: object) -> KVCache:
    if isinstance(cache, KVCache):
        return cache
    if isinstance(cache, LinearState):
        reason = "a LinearState is as large for a long context as for a short one, and every rank can hold it whole"
        hint = "call qkv.decode with it on each rank"
        said = complaint("cache", "a LinearState", "a qkv.parallel.KVCache", f"{reason}; {hint}")
        raise BackendRefused(said, (reason,))
    hint = "qkv.decode attends to a qkv.KVCache" if isinstance(cache, LocalCache) else ""
    raise OptionTypeError(complaint("cache", type(cache).__name__, "a qkv.parallel.KVCache", hint))


def _check_device(step: DecodeInputs, axis: Axis) -> None:
    if step.query.device.type != axis.device.type:
        given, wanted = f"a tensor on {step.query.device}", f"one on the mesh's {axis.device.type}"
        raise OptionError(complaint("query", given, wanted))


def _said(step: DecodeInputs, cache: KVCache, mask: Mask | None, bias: Tensor | None, padding: str) -> dict[str, str]:
    counts = "None" if step.counts is None else str(step.counts.tolist())
    return {
        "call": "decode",
        "query": f"{tuple(step.query.shape)} {str(step.query.dtype).removeprefix('torch.')}",
        "cache": repr(cache),
        "lengths of the cache": str(cache._lengths.tolist()),
        "the cache's past": cache._pasts[-1].happened,
        "similarity": similarity_text(step.similarity),
        "mask": mask_text(mask),
        "bias": "None" if bias is None else value_text(bias),
        "lengths": counts,
        "padding": padding,
    }


class _Part:
    """What a rank has come to: its answer for each query and a log-sum-exp, or for Argmax the best score and its
    position; a number that is 0 where all went well, and those that tell its tokens from others."""

    def __init__(self, step: DecodeInputs, cache: KVCache) -> None:
        self.step = step
        # Positions are whole numbers up to 2^53.
        kind = {"dtype": torch.float64 if step.hard else compute_dtype(step.query.dtype), "device": step.query.device}
        shape = step.query.shape[:3]
        self.out, self.lse = torch.zeros(*shape, cache.value_width, **kind), torch.full(shape, NEG_INF, **kind)
        self.at = torch.zeros(shape, **kind) if step.hard else None
        # Here, where the others can still be told that there is no room for it.
        self.answer = step.query.new_empty(self.out.shape)
        self.end = torch.zeros(_END, **kind)
        self.mark = ""
        if cache.ranks > 1:
            looks = *_looks(step), cache._pasts[-1].given
            numbers = [number for each in looks for number in (each.sum.real, each.sum.imag, each.size)]
            self.end[1:] = torch.tensor(numbers, **kind)

    def fail(self) -> None:
        self.end[0] = 1

    def merged(self, axis: Axis, failure: BaseException | None) -> Tensor:
        """The answer, after the ranks have joined theirs: some rows at a time, so that those of all ranks are never
        there together."""
        shape, width = self.out.shape, self.out.shape[3]
        held = [t.reshape(-1, w) for t, w in ((self.out, width), (self.lse, 1), (self.at, 1)) if t is not None]
        rows, sink = shape[:3].numel(), self._sink()
        height = max(1, _MOST // (width + len(held) - 1))
        ends = self.end.new_zeros(axis.size, _END)
        ends[axis.rank] = self.end
        for first in range(0, max(1, rows), height):
            mine = [t[first : first + height] for t in held]
            sizes = [*(t.numel() for t in mine), ends.numel()]
            flat = torch.cat([*(t.reshape(-1) for t in mine), ends.reshape(-1)]).to(axis.device)
            found = joined(axis, flat, lambda every, sizes=sizes: self._joined(every, sizes)).to(self.out.device)
            out, *others, said = found.split(sizes)
            if first == 0:
                every = said.view(-1, _END).tolist()
                _check_ends(axis, every, failure, self.step.query.dtype)
                self.mark = hashlib.blake2b(repr(every).encode(), digest_size=6).hexdigest()
            part: Any = out.view(-1, width), *others
            if self.at is not None:
                out = _settled(part)
            else:
                out, _ = merged([part], None if sink is None else sink[first : first + height])
            self.answer.view(-1, width)[first : first + height] = out
        return self.answer

    def _joined(self, every: list[Tensor], sizes: list[int]) -> Tensor:
        """What several ranks have come to, as one of them would say it."""
        width = self.out.shape[3]
        found = [each.split(sizes) for each in every]
        parts: list[Any] = [(out.view(-1, width), *others) for out, *others, _ in found]
        ends = torch.stack([each[-1] for each in found]).sum(0)  # each rank has its own place in them
        whole = merged(parts) if self.at is None else _best(parts)
        return torch.cat([*(t.reshape(-1) for t in whole), ends])

    def _sink(self) -> Tensor | None:
        """One for each row of the answer."""
        sink = self.step.similarity.sink if isinstance(self.step.similarity, Softmax) else None
        if sink is None:
            return None
        sink = torch.as_tensor(sink, dtype=self.out.dtype, device=self.out.device).detach()
        return sink.reshape(-1, 1).expand(self.lse.shape).reshape(-1)


def _best(parts: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The answer, score and place of the rank with the largest score; of equals, of the one whose key stands first. A
    NaN counts as the largest."""
    out, score, at = parts[0]
    for other, other_score, other_at in parts[1:]:
        better = (other_score > score) | ((other_score == score) & (other_at < at)) | other_score.isnan()
        better &= ~score.isnan()
        out = torch.where(better[..., None], other, out)
        score, at = torch.where(better, other_score, score), torch.where(better, other_at, at)
    return out, score, at


def _settled(best: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """A NaN among the scores is the answer, and where nobody sees anything it is 0."""
    out, score, _ = best
    out = torch.where((score == NEG_INF)[..., None], 0.0, out)
    return torch.where(score.isnan()[..., None], torch.nan, out)


def _fill(step: DecodeInputs, cache: KVCache, own: tuple[Tensor, Tensor, np.ndarray | None], part: _Part) -> None:
    """Write this rank's part of the tokens, where nobody sees them yet, and attend to all that it holds."""
    key, value, counts = own
    if key.shape[2]:
        cache._local._reserve(key.shape[2], counts)
        cache._local._write(key, value, counts, False)
    nothing = step.extent.len_q == 0 or (step.counts is not None and not step.counts.any())
    if nothing or not cache._slots(step.extent.len_k):
        return
    if step.hard or native_reasons_against(step):
        by_torch(step, cache, part.out, part.lse, part.at)
    else:
        by_kernel(step, cache, part.out, part.lse)


def _check_ends(axis: Axis, ends: list[list[float]], failure: BaseException | None, dtype: torch.dtype) -> None:
    if failure is not None:
        raise failure
    failed = [rank for rank, (bad, *_) in enumerate(ends) if bad]
    if failed:
        hint = "the cache is as it was on every rank; what went wrong is in that rank's own output"
        raise Disagreement(f"axis {axis.name!r}, rank {axis.rank}: {_ranks(failed)} could not attend. Hint: {hint}.")
    far = max(_FAR, _STEPS * torch.finfo(dtype).eps)
    looks = [[Look(complex(*end[i : i + 2]), end[i + 2]) for i in range(1, _END, 3)] for end in ends]
    differ = {  # what, and on which ranks
        name: others
        for at, name in enumerate(_LOOKS)
        if (others := [rank for rank, each in enumerate(looks) if _apart(each[at], looks[0][at], far)])
    }
    if not differ:
        return
    parts = "; ".join(f"{name}: other on {_ranks(others)} than on rank 0" for name, others in differ.items())
    hint = "every rank has to go on with the same token: sample it on one of them, or with the same seed on all"
    if [*differ] == [_LOOKS[-1]]:
        hint = "every rank has to append the same tokens: crop them away or reset the cache, and append them again"
    where = f"axis {axis.name!r}, rank {axis.rank}"
    raise Disagreement(f"{where}: the ranks were given different tokens. {parts}. Hint: {hint}.")


def _apart(one: Look, other: Look, far: float) -> bool:
    if repr(one) == repr(other):  # NaN is like NaN
        return False
    return not max(abs(one.sum - other.sum), abs(one.size - other.size)) <= far * max(one.size, other.size)


def _ranks(which: list[int]) -> str:
    return f"rank{'s' * (len(which) > 1)} {', '.join(map(str, which))}"


def _looks(step: DecodeInputs) -> tuple[Look, Look, Look]:
    places = placed(step.past, step.key, step.counts, step.left)
    return look(step.query, places), look(step.key, places), look(step.value, places)
