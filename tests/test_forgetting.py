"""Forgetting attention: gates as sums, against the sum of the gates between each pair, and their edges."""

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.backends.base import RUNS
from qkv.errors import BackendRefused, DtypeError, MaskError, OptionError, OptionTypeError, QkvError, ShapeError
from qkv.testing.oracle import sums_of_gates

BATCH, HEADS, KV, N, WIDTH, VALUES = 2, 6, 3, 71, 5, 7


def draw(n: int = N, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    shapes = (HEADS, n, WIDTH), (KV, n, WIDTH), (KV, n, VALUES)
    query, key, value = (torch.randn(BATCH, *shape, generator=source).to(dtype) for shape in shapes)
    gates = torch.nn.functional.logsigmoid(torch.randn(BATCH, HEADS, n, generator=source) + 2)
    gates[0, 1, n // 3] = gates[1, 4, n // 2 :: 3] = -inf
    return query, key, value, gates.to(dtype)


def forget(gates: Tensor, **options: Any) -> qkv.Softmax:
    return qkv.Softmax(log_decay=gates, **options)


def by_bias(gates: Tensor, first: int, rows: int, dtype: torch.dtype) -> Tensor:
    return sums_of_gates(gates.double(), first, None, rows).to(dtype)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_is_a_bias_of_sums_of_gates(backend: str, dtype: torch.dtype) -> None:
    query, key, value, gates = draw(dtype=dtype)
    options: dict[str, Any] = {"mask": qkv.Causal() & qkv.Window(left=50), "return_lse": True, "backend": backend}
    wanted = qkv.attention(query, key, value, bias=by_bias(gates, 0, N, torch.float32), **options)
    for found, right in zip(qkv.attention(query, key, value, similarity=forget(gates), **options), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=2e-5 if dtype is torch.float32 else 1e-2, atol=1e-5)


def test_the_gradient_of_the_gates() -> None:
    tensors = [t.double().requires_grad_() for t in draw(13)]
    for backend in ("reference", "blockwise"):
        found = []
        for by_sums in (False, True):
            gates = tensors[3]
            options: dict[str, Any] = {"similarity": forget(gates)}
            if by_sums:
                options = {"bias": by_bias(gates, 0, 13, torch.float64)}
            out = qkv.attention(*tensors[:3], mask=qkv.Causal(), backend=backend, **options)
            found.append(torch.autograd.grad(out.square().sum(), tensors))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)
        assert found[0][3][gates == -inf].eq(0).all()


def test_the_gate_of_minus_infinity_forgets_everything_before_it() -> None:
    query, key, value, gates = draw()
    gates[:] = 0.0
    gates[:, :, 20] = -1e8  # as −infinity
    gates[:, :, 40:43] = -inf
    out = qkv.attention(query, key, value, similarity=forget(gates), mask=qkv.Causal())
    starts = torch.tensor([0] * 20 + [20] * 20 + [40, 41] + [42] * (N - 42))
    keep = torch.arange(N) >= starts[:, None]
    torch.testing.assert_close(out, qkv.attention(query, key, value, mask=qkv.Causal() & qkv.Dense(keep)))


def test_long_sums_do_not_lose_the_gates_between_neighbours() -> None:
    n = 1500
    query, key, value, _ = draw(n)
    gates = torch.full((BATCH, HEADS, n), -3.0)  # the sum of all is −2500, whose float32 neighbours are 2e-4 apart
    gates[:, :, ::2] = -1 / 3
    for backend in ("blockwise", "native"):
        out = qkv.attention(query, key, value, similarity=forget(gates), mask=qkv.Causal(), backend=backend)
        last = slice(n - 30, n)
        near = qkv.attention(
            query[:, :, -1:].double(), *(t[:, :, last].double() for t in (key, value)),
            mask=qkv.Causal(29), similarity=forget(gates[:, :, last].double()),
        )  # fmt: skip
        torch.testing.assert_close(out[:, :, -1:].double(), near, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "native"])
def test_nan_reaches_the_pairs_across_it_and_no_others(backend: str) -> None:
    query, key, value, gates = draw()
    gates[0, 2, 30] = nan
    gates[0, 2, 40] = -inf  # forgets the NaN too
    gates[1, :, 50:] = nan  # padding
    mask = qkv.Causal() & qkv.Padding(lengths=[N, 50])
    out = qkv.attention(query, key, value, similarity=forget(gates), mask=mask, backend=backend)
    wrong = torch.zeros(BATCH, HEADS, N, dtype=torch.bool)
    wrong[0, 2, 30:40] = True
    assert torch.equal(out.isnan().any(-1), wrong)
    clean = qkv.attention(query, key, value, similarity=forget(gates.nan_to_num(0.0, 0.0)), mask=mask, backend=backend)
    same = (torch.arange(N) < 30).expand(BATCH, HEADS, N) | (torch.arange(HEADS) != 2)[:, None]
    same = same & ~gates.eq(-inf).any(-1, keepdim=True)
    assert torch.equal(out[same], clean[same])


def test_gates_of_padding_are_not_read() -> None:
    query, key, value, gates = draw()
    keep = torch.rand(BATCH, N, generator=torch.Generator().manual_seed(3)) < 0.6
    mask = qkv.Causal() & qkv.Padding(keep=keep)
    dirty = gates.masked_fill(~keep[:, None], inf)
    out = qkv.attention(query, key, value, similarity=forget(dirty), mask=mask)
    for row in range(BATCH):  # as if the padding were not there
        alone = [t[row : row + 1, :, keep[row]] for t in (query, key, value, gates)]
        short = qkv.attention(*alone[:3], similarity=forget(alone[3]), mask=qkv.Causal())
        torch.testing.assert_close(out[row : row + 1, :, keep[row]], short, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [0, 1])
def test_short_sequences(n: int) -> None:
    query, key, value = (t[:, :, :n] for t in draw(3)[:3])
    gates = torch.full((BATCH, HEADS, n), -inf, requires_grad=True)
    out = qkv.attention(query, key, value, similarity=forget(gates), mask=qkv.Causal())
    torch.testing.assert_close(out, value.repeat_interleave(2, dim=1))
    assert torch.autograd.grad(out.sum(), gates)[0].eq(0).all()


def test_subnormal_gates_and_weights() -> None:
    query, key, value, gates = draw()
    gates[:] = -1e-42
    torch.testing.assert_close(
        qkv.attention(query, key, value, similarity=forget(gates), mask=qkv.Causal()),
        qkv.attention(query, key, value, mask=qkv.Causal()),
    )
    gates[:] = -95.0  # e^−95 is subnormal
    out = qkv.attention(0 * query, key, value, similarity=forget(gates), mask=qkv.Causal())
    torch.testing.assert_close(out, value.repeat_interleave(2, dim=1))


def test_packed_documents() -> None:
    query, key, value, gates = draw()
    packed = [t[0].transpose(0, 1) for t in (query, key, value)]
    edges = torch.tensor([0, 19, 19, N])
    out = qkv.varlen(*packed, edges, mask=qkv.Causal(), similarity=forget(gates[0].T))
    for a, b in ((0, 19), (19, N)):
        alone = [t[:1, :, a:b] for t in (query, key, value, gates)]
        right = qkv.attention(*alone[:3], mask=qkv.Causal(), similarity=forget(alone[3]))
        torch.testing.assert_close(out[a:b].transpose(0, 1)[None], right)
    with pytest.raises(ShapeError, match=r"log_decay: .*\(71, 6\): packed keys, query heads"):
        qkv.varlen(*packed, edges, mask=qkv.Causal(), similarity=forget(gates[0]))


@pytest.mark.parametrize(
    "options", [{}, {"window": 20}, {"window": 20, "sinks": 3}, {"dtype": torch.bfloat16}], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_chunks_and_steps_from_a_cache_are_the_whole(options: dict[str, Any], dtype: torch.dtype) -> None:
    query, key, value, gates = draw(dtype=dtype)
    stored = options.get("dtype", dtype)
    cache, parts = qkv.KVCache(BATCH, KV, WIDTH, value_width=VALUES, **options), []
    RUNS.clear()
    for a, b in ((0, 65), (65, 66), (66, 70), (70, 71)):
        tokens = (t[:, :, a:b] for t in (query, key, value))
        parts.append(qkv.decode(*tokens, cache, similarity=forget(gates[:, :, :b], sink=0.3)))
    assert set(RUNS) == {"decode.native"} if dtype is torch.float32 and "sinks" not in options else True
    at, window, sinks = torch.arange(N), options.get("window", N), options.get("sinks", 0)
    keep = qkv.Dense((at > at[:, None] - window) | (at < sinks))
    key, value = (t.to(stored).to(dtype) for t in (key, value))
    whole = qkv.attention(query, key, value, similarity=forget(gates, sink=0.3), mask=qkv.Causal() & keep)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_rows_of_different_lengths_and_a_crop(padding: str) -> None:
    query, key, value, gates = draw(20)
    cache = qkv.KVCache(BATCH, KV, WIDTH, value_width=VALUES)
    cache.append(key[:, :, :9], value[:, :, :9])
    cache.crop([7, 3])
    own = torch.full((BATCH, HEADS, 12), nan)  # gates by position; those after a row's tokens are not read
    own[0], own[1, :, :5] = gates[0, :, :12], gates[1, :, :5]
    out = qkv.decode(
        *(t[:, :, 10:15] for t in (query, key, value)), cache,
        similarity=forget(own), lengths=[5, 2], padding=padding,
    )  # fmt: skip
    for row, (past, new) in enumerate(((7, 5), (3, 2))):
        part = slice(15 - new, 15) if padding == "left" else slice(10, 10 + new)
        keys, values = (torch.cat([t[row, :, :past], t[row, :, part]], dim=1)[None] for t in (key, value))
        mask, similarity = qkv.Causal(past), forget(own[row, :, : past + new][None])
        right = qkv.attention(query[row, :, part][None], keys, values, mask=mask, similarity=similarity)
        torch.testing.assert_close(out[row, :, 5 - new :] if padding == "left" else out[row, :, :new], right[0])


def test_a_nan_gate_is_decoded_by_torch() -> None:
    query, key, value, gates = draw(9)
    gates[0, 0, 5] = nan
    cache = qkv.KVCache(BATCH, KV, WIDTH, value_width=VALUES)
    tokens = query, key, value
    assert "a gate is NaN" in qkv.explain(*tokens, cache=cache, similarity=forget(gates)).reasons["native"]
    out = qkv.decode(*tokens, cache, similarity=forget(gates))
    assert out.isnan().any(-1)[0, 0].tolist() == [False] * 5 + [True] * 4
    assert not out[:, 1:].isnan().any()


def test_weights_that_are_returned() -> None:
    query, key, value, gates = draw(9)
    out, weights = qkv.attention(
        query, key, value, similarity=forget(gates), mask=qkv.Causal(), return_weights=True, backend="reference"
    )
    cache = qkv.KVCache(BATCH, KV, WIDTH, value_width=VALUES)
    found = qkv.decode(query, key, value, cache, similarity=forget(gates), return_weights=True)
    torch.testing.assert_close(found[0], out)
    torch.testing.assert_close(found[1], weights)


X = torch.zeros(1, 2, 5, 3)
G = torch.zeros(1, 2, 5)
REFUSED: dict[str, tuple[dict[str, Any], type[QkvError], str]] = {
    "no mask": ({"mask": None}, MaskError, "mask: got None, wanted one with Causal, for log_decay"),
    "no causality": ({"mask": qkv.Padding(lengths=[3])}, MaskError, "join & qkv.Causal()"),
    "either": ({"mask": qkv.Causal() | qkv.Padding(lengths=[3])}, MaskError, "one with Causal"),
    "queries after the keys": ({"mask": qkv.Causal(2)}, MaskError, "last query at position 6, wanted .* one of the 5"),
    "shape": ({"similarity": forget(G[:, :1])}, ShapeError, r"log_decay: got shape \(1, 1, 5\), wanted \(1, 2, 5\)"),
    "dtype": ({"similarity": forget(G.int())}, DtypeError, "log_decay: got torch.int32"),
    "gates themselves": ({"similarity": forget(G + 0.5)}, OptionError, "log_decay: got 0.5, wanted 0 or less"),
    "sdpa": ({"backend": "sdpa"}, BackendRefused, "flash kernel has no log_decay"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    options, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        qkv.attention(X, X, X, **{"similarity": forget(G), "mask": qkv.Causal(), **options})


def test_refused_elsewhere() -> None:
    with pytest.raises(OptionTypeError, match="log_decay: got list"):
        qkv.Softmax(log_decay=[0.0])  # pyright: ignore[reportArgumentType]
    cache = qkv.KVCache(1, 2, 3)
    with pytest.raises(ShapeError, match=r"wanted \(1, 2, 5\): batch, query heads, tokens of the longest row"):
        qkv.decode(X, X, X, cache, similarity=forget(G[:, :, 1:]))
    cache.append(X, X)
    with pytest.raises(OptionError, match="queries of attend are no tokens"):
        qkv.attend(X, cache, similarity=forget(G))
    with pytest.raises(OptionError, match="gates belong to the tokens of a call"):
        qkv.nn.Attention(8, 2, similarity=forget(G))
    with pytest.raises(BackendRefused, match="requires grad"):
        qkv.decode(X, X, X, cache, similarity=forget(torch.zeros(1, 2, 10, requires_grad=True)))
