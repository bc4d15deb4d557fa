"""A bias that is a function of scores: ALiBi, a softcap, what it is given, and what it may return."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.backends import blockwise
from qkv.errors import BackendRefused, DtypeError, OptionError, QkvError, ShapeError

BATCH, HEADS, KV, N, WIDTH = 2, 6, 3, 71, 5
SLOPES = 2.0 ** -torch.arange(1, HEADS + 1)


def draw(dtype: torch.dtype = torch.float32, n: int = N) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    shapes = (HEADS, n, WIDTH), (KV, n, WIDTH), (KV, n, WIDTH + 2)
    return [torch.randn(BATCH, *shape, generator=source).to(dtype) for shape in shapes]


def alibi(scores: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return scores + (SLOPES[head] * (key - query)).to(scores.dtype)


def softcap(scores: Tensor, *places: Tensor) -> Tensor:
    return 2.0 * torch.tanh(scores / 2.0)


def alibi_tensor(n: int = N) -> Tensor:
    at = torch.arange(n)
    return SLOPES[:, None, None] * (at - at[:, None])


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("similarity", [qkv.Softmax(), qkv.Sigmoid(bias=torch.linspace(-1, 1, HEADS))], ids=repr)
def test_alibi_is_its_tensor(backend: str, dtype: torch.dtype, similarity: Any) -> None:
    if isinstance(similarity, qkv.Sigmoid):
        similarity = qkv.Sigmoid(bias=similarity.bias.to(dtype))
    options = {"mask": qkv.Causal() & qkv.Padding(lengths=[N, 0]), "similarity": similarity, "backend": backend}
    found = qkv.attention(*draw(dtype), bias=alibi, **options)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    torch.testing.assert_close(found, qkv.attention(*draw(dtype), bias=alibi_tensor().to(wide), **options))


def test_a_softcap_and_its_gradients() -> None:
    found = []
    for options in ({"bias": softcap}, {"similarity": qkv.Softmax(softcap=2.0)}):
        leaves = [t.requires_grad_() for t in draw(torch.float64)]
        out = qkv.attention(*leaves, mask=qkv.Causal(), backend="blockwise", **options)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_what_the_function_uses_is_learned(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1 << 12)  # many blocks
    grads = []
    for by_function in (True, False):
        slopes, tensors = SLOPES.double().requires_grad_(), draw(torch.float64)
        at = torch.arange(N)
        bias = slopes[:, None, None] * (at - at[:, None])
        if by_function:
            bias = lambda s, b, h, i, j, slopes=slopes: s + slopes[h] * (j - i)  # noqa: E731
        out = qkv.attention(*tensors, mask=qkv.Causal(), bias=bias, backend=backend)
        grads.append(torch.autograd.grad(out.square().sum(), slopes)[0])
    torch.testing.assert_close(*grads)


def test_it_is_given_blocks_with_their_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1 << 12)
    seen = torch.zeros(BATCH, HEADS, N, N, dtype=torch.int64)

    def count(scores: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert torch.broadcast_shapes(*(t.shape for t in (batch, head, query, key))) == scores.shape
        assert scores.numel() <= 1 << 14, "not a block"
        seen[batch, head, query, key] += 1
        return scores

    with torch.no_grad():
        out = qkv.attention(*draw(), bias=count, backend="blockwise")
    assert seen.eq(1).all()
    torch.testing.assert_close(out, qkv.attention(*draw()))


def test_masked_numbers_cannot_matter_and_masked_scores_are_zero() -> None:
    query, key, value = draw()
    mask = qkv.Causal() & qkv.Padding(lengths=[N, 50])
    cells = mask.tile(qkv.masks.Extent(BATCH, HEADS, N, N), (0, N), (0, N)).expand(BATCH, HEADS, N, N)

    def root(scores: Tensor, *places: Tensor) -> Tensor:  # infinite derivative at 0
        assert not scores[~cells].any()
        return torch.sign(scores) * scores.abs().sqrt()

    results = []
    for dirty in (False, True):
        leaves = [t.clone() for t in (query, key, value)]
        if dirty:
            leaves[1][1, :, 50:], leaves[2][1, :, 50:] = torch.nan, torch.inf
        leaves = [t.requires_grad_() for t in leaves]
        out = qkv.attention(*leaves, mask=mask, bias=root, backend="reference")
        results.append([out, *torch.autograd.grad(out.sum(), leaves)])
    for clean, found in zip(*results, strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, clean)


def test_a_score_of_minus_infinity_masks_and_an_empty_row_is_zero() -> None:
    def only_even(scores: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(((key % 2 == 0) & (query > 3)).expand(scores.shape), scores, -torch.inf)

    at = torch.arange(N)
    keep = qkv.Dense((at % 2 == 0) & (at[:, None] > 3))
    for backend in ("reference", "blockwise"):
        out, lse = qkv.attention(*draw(), bias=only_even, backend=backend, return_lse=True)
        right = qkv.attention(*draw(), mask=keep, return_lse=True)
        torch.testing.assert_close(out, right[0])
        torch.testing.assert_close(lse, right[1])
        assert not out[:, :, :4].any()


@pytest.mark.parametrize("n", [0, 1])
def test_short_sequences(n: int) -> None:
    tensors = [t[:, :, :n] for t in draw()]
    torch.testing.assert_close(qkv.attention(*tensors, bias=alibi), qkv.attention(*tensors))


@pytest.mark.parametrize("options", [{}, {"window": 20}, {"window": 20, "sinks": 3}], ids=repr)
def test_decoding_counts_positions_in_the_whole_sequence(options: dict[str, Any]) -> None:
    tensors, caches = draw(), [qkv.KVCache(BATCH, KV, WIDTH, value_width=WIDTH + 2, **options) for _ in range(2)]
    for a, b in ((0, 65), (65, 66), (66, 71)):
        new = [t[:, :, a:b] for t in tensors]
        found = qkv.decode(*new, caches[0], bias=alibi)
        torch.testing.assert_close(found, qkv.decode(*new, caches[1], bias=alibi_tensor()[:, a:b, :b]))
    found = qkv.attend(tensors[0][:, :, :3], caches[0], bias=alibi)
    torch.testing.assert_close(found, qkv.attend(tensors[0][:, :, :3], caches[1], bias=alibi_tensor()[:, :3]))
    reasons = qkv.explain(*(t[:, :, :1] for t in tensors), cache=caches[0], bias=alibi).reasons
    assert "the kernel takes a tensor as bias, not a function of scores" in reasons["native"]


def test_rows_of_different_lengths() -> None:
    query, key, value = draw(n=20)
    caches = [qkv.KVCache(BATCH, KV, WIDTH, value_width=WIDTH + 2) for _ in range(2)]
    for cache, bias in zip(caches, (alibi, alibi_tensor(20)), strict=True):
        cache.append(key[:, :, :9], value[:, :, :9], lengths=[9, 4])
        if bias is alibi:
            found = qkv.decode(*(t[:, :, 9:12] for t in (query, key, value)), cache, bias=bias, lengths=[3, 2])
        else:
            rows = [bias[:, p : p + 3, :12] for p in (9, 4)]
            options = {"bias": torch.stack(rows), "lengths": [3, 2]}
            right = qkv.decode(*(t[:, :, 9:12] for t in (query, key, value)), cache, **options)
    torch.testing.assert_close(found, right)


X = torch.zeros(1, 2, 5, 3)
REFUSED: dict[str, tuple[dict[str, Any], type[QkvError], str]] = {
    "a number": ({"bias": lambda s, *places: 3.0}, DtypeError, "got float as its result, wanted a torch.Tensor"),
    "a shape": (
        {"bias": lambda s, *places: s[0]},
        ShapeError,
        r"got a result of shape \(2, 5, 5\), wanted \(1, 2, 5, 5\)",
    ),
    "a dtype": (
        {"bias": lambda s, *places: s.double()},
        DtypeError,
        "torch.float64, wanted torch.float32",
    ),
    "argmax": ({"bias": alibi, "similarity": qkv.Argmax()}, OptionError, r"a function with Argmax\(\), wanted None"),
    "no tensor": ({"bias": 3.0}, DtypeError, "bias: got float, wanted a torch.Tensor .* or a function of scores"),
    "sdpa": ({"bias": alibi, "backend": "sdpa"}, BackendRefused, "takes a tensor as bias, not a function"),
    "native": ({"bias": alibi, "backend": "native"}, BackendRefused, "takes a tensor as bias, not a function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    options, error, text = REFUSED[name]
    with torch.no_grad(), pytest.raises(error, match=text):
        qkv.attention(X, X, X, **options)
