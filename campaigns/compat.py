"""Random calls of torch's `scaled_dot_product_attention`: `qkv.compat` has to give torch's answers and gradients.

tests/test_compat.py runs the first thousands. Each call depends on its seed and number only.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from qkv.compat import scaled_dot_product_attention

from .campaign import Batch, Campaign

LENGTHS = (1, 2, 3, 5, 7, 11, 13, 17)
WIDTHS = (1, 2, 3, 5, 7, 8, 16, 19)
NAMES = ("out", "query's gradient", "key's gradient", "value's gradient", "attn_mask's gradient")
DTYPES = (torch.float64, torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class SdpaCall:
    """A call's arguments, the leading sizes of its answer, which tensors require gradients, and its autocast dtype."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    others: dict[str, Any]
    lead: tuple[int, ...]
    requires_grad: tuple[bool, ...]
    autocast: torch.dtype | None = None

    def __str__(self) -> str:
        shapes = ", ".join(str(tuple(t.shape)) for t in (self.query, self.key, self.value))
        mask = self.attn_mask
        lead = "" if mask is None else f", {type(mask).__name__} {tuple(mask.shape)} {mask.dtype}"
        return f"{shapes} {self.query.dtype}{lead}, {self.others}, grad {self.requires_grad}, autocast {self.autocast}"

    @property
    def torch_fails(self) -> bool:
        """Whether torch's CPU kernel is known to be wrong: with a causal mask and a scale of 0 or less, since it scales
        after masking, and with a float32 mask for float64 queries."""
        if self.kind in ("causal", "CausalBias"):
            return self.others.get("scale", 1.0) <= 0.0
        return self.kind == "added mask" and self.attn_mask.dtype is torch.float32 and self.query.dtype is torch.float64

    @property
    def kind(self) -> str:
        mask = self.attn_mask
        if mask is None:
            return "causal" if self.others.get("is_causal") else "plain"
        if type(mask) is not Tensor:
            return type(mask).__name__
        return "boolean mask" if mask.dtype is torch.bool else "added mask"


def drawn(seed: int, number: int) -> SdpaCall:
    """Any call that torch documents as valid: ranks, broadcasting, head groups, masks, layouts, dtypes, sizes of 0."""
    chance = random.Random(f"{seed}/{number}")
    source = torch.Generator().manual_seed(chance.getrandbits(40))
    dtype, few = chance.choice(DTYPES), chance.random() < 0.1
    len_q, len_k = (chance.choice((0, 1)) if few and chance.random() < 0.5 else chance.choice(LENGTHS) for _ in "qk")
    len_k = len_q if chance.random() < 0.3 else len_k
    width = 0 if chance.random() < 0.02 else chance.choice(WIDTHS)
    width_v = width if chance.random() < 0.6 else 0 if few else chance.choice(WIDTHS)
    if chance.random() < 0.02:  # more than one block of a backend
        len_q, len_k = chance.choice((65, 131)), chance.choice((67, 137, 257))

    lead = tuple(chance.choice((1, 2, 3)) for _ in range(chance.choice((0, 1, 2, 2, 2, 2, 3, 4))))
    if few and lead and chance.random() < 0.3:
        lead = (*lead[:-1], 0)
    grouped = bool(lead) and chance.random() < 0.25
    leads = [lead] * 3
    empty = 0 in (*lead, len_q, len_k, width, width_v)  # torch then answers with the query's sizes
    if lead and not empty and chance.random() < 0.4:
        leads = [_partly(chance, lead) for _ in leads]
    if grouped:
        heads_kv, group = chance.choice((1, 2, 3)), chance.choice((1, 2, 3))
        leads = [(*own[:-1], heads) for own, heads in zip(leads, (heads_kv * group, heads_kv, heads_kv), strict=True)]

    spread = chance.choice((0.1, 1.0, 1.0, 3.0))
    make = _maker(chance, source, dtype)
    query, key = make((*leads[0], len_q, width)) * spread, make((*leads[1], len_k, width))
    value = make((*leads[2], len_k, width_v))
    others: dict[str, Any] = {"enable_gqa": True} if grouped else {}
    if chance.random() < 0.5:
        others["scale"] = chance.choice((0.0, -0.7, 0.3, 1, 1.9))
    if chance.random() < 0.03:
        others["dropout_p"] = 1.0
    shared = [(*own[:-1], 1) for own in leads] if grouped else leads
    scores = (*torch.broadcast_shapes(leads[0], shared[1]), len_q, len_k)
    full = torch.broadcast_shapes(leads[0], *shared[1:])
    mask = None
    if chance.random() < 0.25:
        others["is_causal"] = True
    elif chance.random() < 0.7:
        mask = _mask(chance, source, scores, dtype)
    autocast = chance.choice((torch.bfloat16, torch.float16)) if chance.random() < 0.05 else None
    if autocast and dtype is torch.float64 and mask is not None and mask.dtype is torch.float32:
        autocast = None  # torch turns the mask into something that it then refuses
    learns = tuple(chance.random() < 0.7 for _ in range(4)) if chance.random() < 0.6 else (False,) * 4
    return SdpaCall(query, key, value, mask, others, full, learns, autocast)


def _partly(chance: random.Random, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes that broadcast to these: some are 1, and leading ones may be missing."""
    own = tuple(1 if chance.random() < 0.4 else size for size in sizes)
    return own[chance.randint(0, len(own)) :] if chance.random() < 0.3 else own


def _maker(chance: random.Random, source: torch.Generator, dtype: torch.dtype) -> Callable[[tuple[int, ...]], Tensor]:
    """Normal numbers in a random memory layout."""

    def make(shape: tuple[int, ...]) -> Tensor:
        layout, (*lead, rows, width) = chance.randrange(6), shape
        if layout == 0:
            return torch.randn(*lead, width, rows, generator=source, dtype=torch.float64).to(dtype).mT
        if layout == 1:
            return torch.randn(*lead, rows, 2 * width, generator=source, dtype=torch.float64).to(dtype)[..., ::2]
        if layout == 2:
            return torch.randn(*lead, 1, width, generator=source, dtype=torch.float64).to(dtype).expand(shape)
        if layout == 3 and lead:
            return torch.randn(rows, *lead, width, generator=source, dtype=torch.float64).to(dtype).movedim(0, -2)
        if layout == 4:
            flat = torch.randn(math.prod(shape) + 1, generator=source, dtype=torch.float64).to(dtype)
            return flat[1:].view(shape)
        return torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)

    return make


def _mask(chance: random.Random, source: torch.Generator, scores: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    *lead, len_q, len_k = scores
    if chance.random() < 0.1 and len_q <= len_k:  # torch warns if there are more queries than keys
        return chance.choice((causal_lower_right, causal_upper_left))(len_q, len_k)
    own = tuple(1 if chance.random() < 0.3 else size for size in scores)
    least = 2 if len(lead) == 2 else 0  # with four dimensions torch needs a mask of at least two
    own = own[chance.randint(0, len(own) - least) :] if chance.random() < 0.5 else own
    if chance.random() < 0.5:
        keep = torch.rand(own, generator=source) < chance.choice((0.1, 0.5, 0.9))
        return keep.mT.contiguous().mT if len(own) > 1 and chance.random() < 0.3 else keep
    added = torch.randn(own, generator=source, dtype=torch.float64) * chance.choice((0.5, 2.0))
    if chance.random() < 0.5:
        hidden = torch.rand(own, generator=source) < chance.choice((0.3, 0.9))
        added = added.masked_fill(hidden, chance.choice((-math.inf, -1e4)))
    return added.to(torch.float32 if chance.random() < 0.3 else dtype)


def check(call: SdpaCall) -> float:
    """Compare `qkv.compat` with torch on one call, in float64 and in its dtype; the largest error over its bound.

    Shapes and dtypes have to be torch's; a row that is exactly 0 in float64 has to be exactly 0.
    """
    rounded = call.autocast if call.autocast and call.query.dtype is not torch.float64 else call.query.dtype
    gold, ours, torchs = (
        _run(F.scaled_dot_product_attention, call, rounded),
        *(_run(way, call, None) for way in (scaled_dot_product_attention, F.scaled_dot_product_attention)),
    )
    worst = 0.0
    for name, ideal, mine, other, bound in zip(NAMES, gold, ours, torchs, _bounds(call, rounded), strict=True):
        if ideal is None:  # no gradient was requested
            continue
        both = f"{mine.dtype} {tuple(mine.shape)}, and torch's {other.dtype} {tuple(other.shape)}"
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), f"{call}: {name} is {both}"
        if mine.numel() == 0:
            continue
        off, apart = ((mine.double() - against.double()).abs().max().item() for against in (ideal, other))
        assert off <= bound, f"{call}: {name} is off by {off}, and {bound} is allowed"
        assert apart <= 2 * bound, f"{call}: {name} is {apart} from torch's, and {2 * bound} is allowed"
        worst = max(worst, off / bound if bound else 0.0)
    nothing = (gold[0] == 0).all(-1)
    assert not ours[0][nothing].any(), f"{call}: fully masked rows are not exactly 0"
    return worst


def _run(way: Callable[..., Tensor], call: SdpaCall, gold: torch.dtype | None) -> list[Any]:
    """The answer and the requested gradients; with `gold`, in float64 after rounding the inputs to that dtype."""
    leaves: list[Tensor | None] = []
    for tensor, learns in zip((call.query, call.key, call.value, call.attn_mask), call.requires_grad, strict=True):
        if type(tensor) is Tensor and tensor.is_floating_point():
            if gold is not None:
                tensor = (tensor.to(gold) if call.autocast else tensor).double()
            tensor = tensor.detach().requires_grad_(learns)
        leaves.append(tensor)
    on = nullcontext() if call.autocast is None or gold is not None else torch.autocast("cpu", call.autocast)
    with on, sdpa_kernel(SDPBackend.MATH) if gold is not None or call.torch_fails else nullcontext():
        out = way(*leaves, **call.others)
    learning = [at for at, leaf in enumerate(leaves) if leaf is not None and leaf.requires_grad]
    gradients = [torch.zeros_like(leaf) if at in learning else None for at, leaf in enumerate(leaves)]
    if learning and out.requires_grad:  # without keys torch's answer may not be part of the graph
        found = torch.autograd.grad(out, [leaves[at] for at in learning], _cotangent(out), materialize_grads=True)
        for at, gradient in zip(learning, found, strict=True):
            gradients[at] = gradient
    return [out.detach(), *gradients]


def _cotangent(out: Tensor) -> Tensor:
    """The same small integers for every dtype."""
    return ((torch.arange(out.numel()) * 5 % 7) - 3).view(out.shape).to(out.dtype)


def _bounds(call: SdpaCall, dtype: torch.dtype) -> list[float]:
    """Rounding bounds of the answer and each gradient: eps times the size of the summed terms.

    A score of size S is rounded by S·eps, and so is each weight; a sum of n similar terms by n·eps.
    """
    query, key, value = (tensor.double() for tensor in (call.query, call.key, call.value))
    scale = call.others.get("scale")
    scale = abs(1 / math.sqrt(max(1, query.shape[-1])) if scale is None else scale)
    score = scale * _largest(query.norm(dim=-1)) * _largest(key.norm(dim=-1))
    mask = call.attn_mask if call.kind == "added mask" else None
    if mask is not None:
        score += _largest(mask[mask.isfinite()])
    arithmetic = torch.float64 if dtype is torch.float64 else torch.float32
    eps = 4 * torch.finfo(dtype).eps + (8 + 8 * score + key.shape[-2]) * torch.finfo(arithmetic).eps
    rows = math.prod(call.lead) * query.shape[-2]
    weight = 3 * value.shape[-1] * _largest(value) * 2  # of a score's gradient: Σ|dout·v|, twice
    out = eps * _largest(value)
    summed = [rows * tensor.shape[-1] / max(1, tensor.numel()) for tensor in (query, key, value)]
    cells = 0.0 if mask is None else rows * key.shape[-2] / max(1, mask.numel())
    return [
        out,
        eps * weight * scale * _largest(key) * summed[0],
        eps * weight * scale * _largest(query) * summed[1] * key.shape[-2],
        eps * 3 * summed[2] * key.shape[-2],
        (eps + (0.0 if mask is None else torch.finfo(mask.dtype).eps)) * weight * cells,
    ]


def _largest(numbers: Tensor) -> float:
    return numbers.abs().max().item() if numbers.numel() else 0.0


def run(seed: int, count: int) -> Batch:
    torch.set_num_threads(1)
    kinds: Counter[str] = Counter()
    worst = 0.0
    for number in range(count):
        call = drawn(seed, number)
        worst = max(worst, check(call))
        kinds[call.kind] += 1
    return Batch(count, {"largest error, in what rounding allows": round(worst, 3), "calls": dict(kinds)})


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest error of all batches, and the number of calls of each kind."""
    kinds: Counter[str] = Counter()
    for batch in figures:
        kinds.update(batch["calls"])
    worst = "largest error, in what rounding allows"
    return {worst: max((batch[worst] for batch in figures), default=0.0), "calls": dict(sorted(kinds.items()))}


CAMPAIGN = Campaign(
    about="calls of scaled_dot_product_attention, forward and backward, compared with torch's in float64",
    unit="calls",
    goal=50_000,
    batch=2_500,
    run=run,
    gather=gather,
)
