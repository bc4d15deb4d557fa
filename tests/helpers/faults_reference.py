"""An independent reference for attention: float64, one query at a time, reading attended keys only.

Written from the specification alone, so that an error in qkv cannot hide in the code that checks it.
"""

import itertools
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from math import inf, nan
from types import FunctionType

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv import errors

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
SIZES = {"batch": 2, "heads_q": 6, "heads_kv": 3, "len_q": 5, "len_k": 7, "width": 11, "width_v": 13}
EXPECTED = {}
MASKS = ["dense", "causal", "early", "lengths", "keep", "drop", "window", "segments", "predicate", "and", "or"]


@dataclass(frozen=True)
class Way:
    """A similarity and the backend that computes it."""

    name: str
    backend: str

    def __str__(self):
        return f"{self.name}-{self.backend}"

    @property
    def softmax(self):
        return self.name == "softmax"

    def similarity(self):
        if self.name == "features":
            return qkv.FeatureMap(qkv.features.elu1)
        return {"softmax": qkv.Softmax, "argmax": qkv.Argmax, "polynomial": qkv.Polynomial}[self.name]()

    def problem(self, dtype, seed=0, **sizes):
        """Argmax gets small whole numbers: scores and ties are then exact in every dtype."""
        return problem(dtype, seed, whole=self.name == "argmax", **sizes)

    def reference(self, query, key, value, **given):
        return reference(query, key, value, similarity=self.name, **given)

    def expected(self, inputs, keep=None, bias=None, **given):
        """Result, log-sum-exp and gradients by query, key and value; cached, because all backends need them."""
        tensors = [tensor.detach().double() for tensor in (*inputs, keep, bias) if tensor is not None]
        numbers_of = (tensor.numpy().tobytes() for tensor in tensors)
        case = (self.name, *numbers_of, *(tensor.shape for tensor in tensors), *given.items())
        if case not in EXPECTED:
            exact = leaves(*tensors[:3])
            want = self.reference(*exact, keep=keep, bias=bias, **given)
            EXPECTED[case] = want.out.detach(), want.lse.detach(), gradients(want.out, exact)
        return EXPECTED[case]

    def attend(self, query, key, value, *, lse=None, **given):
        """Return (out, lse or None), after checking dtypes and shapes; a call without lse and gradients must agree."""
        both = lse is None and self.softmax and not given.get("dropout")
        lse = self.softmax if lse is None else lse
        given.setdefault("similarity", self.similarity())
        got = qkv.attention(query, key, value, backend=self.backend, return_lse=lse, **given)
        out, log = got if lse else (got, None)
        if both:  # the commonest call of all: without lse, without gradients
            with torch.no_grad():
                close(qkv.attention(query, key, value, backend=self.backend, **given), out, query.dtype)
        assert out.dtype == query.dtype
        assert out.shape == (*query.shape[:-1], value.shape[-1])
        if lse:
            assert log.dtype == (torch.float64 if query.dtype == torch.float64 else torch.float32)
            assert log.shape == query.shape[:-1]
        return out, log

    def refuses(self, kind, words, *tensors, **options):
        options.setdefault("similarity", self.similarity())
        refuses(kind, words, *tensors, backend=self.backend, **options)


SOFTMAX = tuple(Way("softmax", backend) for backend in ("reference", "blockwise", "sdpa", "auto"))
ARGMAX = tuple(Way("argmax", backend) for backend in ("reference", "argmax", "auto"))
POLYNOMIAL = tuple(Way("polynomial", backend) for backend in ("reference", "auto"))
FEATURES = tuple(Way("features", backend) for backend in ("reference", "auto"))
WAYS = SOFTMAX + ARGMAX + POLYNOMIAL + FEATURES

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
by_way = pytest.mark.parametrize("way", WAYS, ids=str)
by_softmax = pytest.mark.parametrize("way", SOFTMAX, ids=str)
by_argmax = pytest.mark.parametrize("way", ARGMAX, ids=str)
by_polynomial = pytest.mark.parametrize("way", POLYNOMIAL, ids=str)
by_features = pytest.mark.parametrize("way", FEATURES, ids=str)


def numbers(shape, dtype=torch.float64, seed=0, whole=False):
    generator = torch.Generator().manual_seed(seed)
    if whole:
        return torch.randint(-2, 3, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def problem(dtype, seed=0, whole=False, **sizes):
    n = SIZES | sizes
    query = numbers((n["batch"], n["heads_q"], n["len_q"], n["width"]), dtype, 3 * seed, whole)
    key = numbers((n["batch"], n["heads_kv"], n["len_k"], n["width"]), dtype, 3 * seed + 1, whole)
    value = numbers((n["batch"], n["heads_kv"], n["len_k"], n["width_v"]), dtype, 3 * seed + 2)
    return query, key, value


@dataclass
class Expected:
    out: torch.Tensor
    lse: torch.Tensor
    weights: torch.Tensor


def reference(query, key, value, *, similarity="softmax", keep=None, bias=None, scale=None, softcap=None, sink=None):
    """Four-dimensional inputs; `similarity` is a name, or w(q, keys) for any other weights."""
    q, k, v = query.double(), key.double(), value.double()
    batch, heads, len_q, width = q.shape
    len_k, group = k.shape[2], heads // k.shape[1]
    shape = (batch, heads, len_q, len_k)
    keep = torch.ones(shape, dtype=torch.bool) if keep is None else keep.expand(shape)
    if bias is not None:
        bias = bias.double().expand(shape)
        keep = keep & (bias != -inf)
    if similarity == "polynomial":
        similarity = lambda q, k: (k @ q + 1.0) ** 2  # noqa: E731
    elif similarity == "features":
        similarity = lambda q, k: (F.elu(k) + 1.0) @ (F.elu(q) + 1.0)  # noqa: E731
    none = torch.tensor(-inf, dtype=torch.float64)
    rows = q.reshape(-1, width).unbind()
    caches = list(zip(k.flatten(0, 1).unbind(), v.flatten(0, 1).unbind(), strict=True))
    outs, logs, weights = [], [], torch.zeros(shape, dtype=torch.float64).view(-1, len_k)
    for number, (b, h, i) in enumerate(itertools.product(range(batch), range(heads), range(len_q))):
        at = keep[b, h, i].nonzero().flatten()
        keys, values = (tensor[at] for tensor in caches[b * k.shape[1] + h // group])
        log = none
        if similarity == "softmax":
            logits = (keys @ rows[number]) * (width**-0.5 if scale is None else scale)
            logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
            logits = logits if bias is None else logits + bias[b, h, i, at]
            if bool((logits == -inf).any()):
                alive = (logits != -inf).nonzero().flatten()
                at, values, logits = at[alive], values[alive], logits[alive]
            if len(at):
                log = torch.logsumexp(logits, 0) if bool(logits.max() < inf) else logits.sum() * nan
                log = log if sink is None else torch.logaddexp(log, sink[h].double())
            w = torch.exp(logits - log)
        elif similarity == "argmax":
            scores = (keys @ rows[number]).detach()
            w = torch.full_like(scores, nan)
            if len(at) and not scores.isnan().any():
                best = int(np.argmax(scores.numpy()))
                at, values, w = at[best : best + 1], values[best : best + 1], torch.ones(1).double()
        else:
            w = similarity(rows[number], keys)
            total = w.sum()
            w = torch.zeros_like(w) if total == 0 else w / total
        outs.append(w @ values)
        logs.append(log)
        weights[number, at] = w.detach()
    out = torch.stack(outs).view(batch, heads, len_q, v.shape[-1])
    return Expected(out, torch.stack(logs).view(shape[:-1]), weights.view(shape))


def close(got, want, dtype, loose=1.0):
    """Equal within the dtype's tolerance of the largest number; NaN and infinity at the same places."""
    got, want = got.detach().double(), want.detach().double()
    assert got.shape == want.shape
    assert torch.equal(got.isnan(), want.isnan())
    finite = want.isfinite()
    rest = ~finite & ~want.isnan()
    assert torch.equal(got[rest], want[rest])
    if finite.any():
        unit = max(1.0, float(want[finite].abs().max()))
        error = float((got[finite] - want[finite]).abs().max())
        assert error <= loose * TOLERANCE[dtype] * unit, f"{dtype}: off by {error:.3g}, up to {unit:.3g}"


def same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    dtype, got, want = got.dtype, *(tensor.detach().contiguous().view(width) for tensor in (got, want))
    assert torch.equal(got, want), f"{dtype}: {int((got != want).sum())} of {got.numel()} numbers differ"


def leaves(*tensors):
    return tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)


def gradients(out, inputs, seed=99):
    """Of <out, fixed random numbers>; zeros where the graph has no path (Argmax)."""
    cotangent = numbers(out.shape, seed=seed).to(out.dtype)
    return torch.autograd.grad(out, inputs, cotangent, materialize_grads=True)


def make_mask(name, keep_seed=5):
    """The mask and what it keeps, for SIZES; most mask some keys for all queries, some mask all keys of a query."""
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in (2, 6, 5, 7)), indexing="ij")
    if name == "dense":
        keep = numbers((2, 6, 5, 7), seed=keep_seed) > -0.3
        keep[..., 1] = False
        keep[0, 2, 3], keep[1, :, 0] = False, False
        keep[1, 2:4] &= j[1, 2:4] < 4
        return qkv.Dense(keep), keep
    if name in ("causal", "early"):
        offset = {"causal": 1, "early": -2}[name]
        return qkv.Causal(offset=offset), j <= i + offset
    lengths = torch.tensor([4, 0])
    if name == "lengths":
        return qkv.Padding(lengths=lengths), j < lengths[b]
    rows = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1]]).bool()
    if name in ("keep", "drop"):
        return qkv.Padding(**{name: rows if name == "keep" else ~rows}), rows[b, j]
    if name == "window":
        return qkv.Window(left=1, right=0, offset=3), (i + 2 <= j) & (j <= i + 3)
    if name == "segments":
        query_ids = torch.tensor([[0, 0, 1, 1, 4], [0, 1, 1, 2, 2]])
        key_ids = torch.tensor([[0, 0, 0, 1, 1, 3, 3], [0, 0, 1, 1, 1, 1, 5]])
        return qkv.Segments(query_ids, key_ids), query_ids[b, i] == key_ids[b, j]
    if name == "predicate":
        rule = lambda b, h, i, j: ((i + j + b + h) % 3 != 0) & (j != 5) & (i != 2)  # noqa: E731
        return qkv.Predicate(rule), rule(b, h, i, j)
    if name == "and":
        mask = qkv.Causal(offset=2) & qkv.Padding(lengths=torch.tensor([3, 6]))
        return mask, (j <= i + 2) & (j < torch.tensor([3, 6])[b])
    assert name == "or"
    prefix = j[0, 0] < 2
    return qkv.Causal(offset=1) | qkv.Dense(prefix), (j <= i + 1) | (j < 2)


def never_attended(keep, heads_kv):
    """(batch, heads_kv, len_k): no query of the key's group of heads may attend it."""
    batch, heads, len_q, len_k = keep.shape
    return ~keep.view(batch, heads_kv, heads // heads_kv, len_q, len_k).any(dim=3).any(dim=2)


def poisoned(tensor, where):
    """A copy with NaN, +inf and -inf in turn at the rows `where`."""
    result = tensor.detach().clone()
    rows = int(where.sum()) * tensor.shape[-1]
    poison = torch.tensor([nan, inf, -inf], dtype=tensor.dtype).repeat(rows // 3 + 1)[:rows]
    result[where] = poison.view(-1, tensor.shape[-1])
    return result


def refuses(kind, words, *tensors, **options):
    """attention and explain both refuse the call with qkv's message; options may be functions that make the value."""
    for run in (qkv.attention, qkv.explain):
        with pytest.raises(errors.QkvError) as caught:
            made = {name: it() if isinstance(it, FunctionType) else it for name, it in options.items()}
            run(*tensors, **made)
        assert_speaks(caught.value, kind, *words)


def assert_speaks(error, kind, *words):
    """Check the error's class, that it is a ValueError or TypeError, and that its message has each of `words`."""
    assert isinstance(error, kind), type(error)
    assert isinstance(error, (ValueError, TypeError))
    text = str(error)
    assert "wanted" in text.lower(), text
    for word in words:
        assert re.search(rf"(?<!\w){re.escape(str(word))}(?!\w)", text), f"{word!r} is not in: {text}"


def zero_sizes():
    """The cases of rows 13 and 14: (name, shapes of query, key and value)."""
    return {
        "batch": ((0, 6, 5, 11), (0, 3, 7, 11), (0, 3, 7, 13)),
        "heads_q": ((2, 0, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)),
        "heads": ((2, 0, 5, 11), (2, 0, 7, 11), (2, 0, 7, 13)),
        "len_q": ((2, 6, 0, 11), (2, 3, 7, 11), (2, 3, 7, 13)),
        "len_q and len_k": ((2, 6, 0, 11), (2, 3, 0, 11), (2, 3, 0, 13)),
        "batch of three dimensions": ((0, 5, 11), (0, 7, 11), (0, 7, 13)),
        "len_q of two dimensions": ((0, 11), (7, 11), (7, 13)),
        "len_k": ((2, 6, 5, 11), (2, 3, 0, 11), (2, 3, 0, 13)),
        "len_k of three dimensions": ((2, 5, 11), (2, 0, 11), (2, 0, 13)),
        "len_k of two dimensions": ((5, 11), (0, 11), (0, 13)),
    }


def run_zero_size(way, shapes, dtype, **given):
    """Zeros of the right shape, log-sum-exp -inf, and zero gradients of the right shapes."""
    inputs = leaves(*(torch.ones(shape, dtype=dtype) for shape in shapes))
    out, lse = way.attend(*inputs, **given)
    assert not out.any()
    assert lse is None or bool((lse == -inf).all())
    for tensor, gradient in zip(inputs, gradients(out, inputs), strict=True):
        assert gradient.shape == tensor.shape
        assert gradient.dtype == dtype
        assert not gradient.any()


def in_separate_process(script):
    """Run a script and return its standard output; a crash of the interpreter fails with its output."""
    paths = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, f"ended with {run.returncode}:\n{run.stdout}\n{run.stderr}"
    return run.stdout
