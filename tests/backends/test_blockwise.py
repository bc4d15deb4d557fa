"""`blockwise`: the same answer for any size of the blocks, forward and backward."""

import pytest
import torch

import qkv
from qkv import features
from qkv.backends import blockwise
from qkv.backends.base import RUNS
from qkv.inputs import read_inputs

CASES = {
    "softmax": {"mask": qkv.Causal(16)},
    "softcap": {"similarity": qkv.Softmax(softcap=2.0)},
    "softcap, causal": {"similarity": qkv.Softmax(softcap=2.0), "mask": qkv.Causal(16) & qkv.Padding(lengths=[50, 20])},
    "softcap, fully masked rows": {"similarity": qkv.Softmax(softcap=2.0), "mask": qkv.Causal(-20)},
    "softcap, heads differ": {
        "similarity": qkv.Softmax(softcap=2.0),
        "mask": qkv.Dense(torch.rand(2, 6, 37, 53) > 0.4),
    },
    "polynomial": {"similarity": qkv.Polynomial(), "mask": qkv.Window(9, 9, offset=0)},
    "features": {"similarity": qkv.FeatureMap(features.elu1, normalize=False), "mask": qkv.Causal(3)},
    "any function": {"similarity": qkv.Similarity(lambda q, k: torch.exp(-torch.cdist(q, k)))},
}


def inputs():
    torch.manual_seed(2)
    shapes = ((2, 6, 37, 11), (2, 3, 53, 11), (2, 3, 53, 13))
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 1 << 9, 1 << 12, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_block_size_does_not_matter(name: str, size: int, monkeypatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", size)
    tensors = inputs()
    RUNS.clear()
    expected, out = (qkv.attention(*tensors, backend=backend, **CASES[name]) for backend in ("reference", "blockwise"))
    assert dict(RUNS) == {"blockwise": 1}
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, tensors, grad)
    for one, other in zip(torch.autograd.grad(out, tensors, grad), expected_grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["blockwise", "sdpa"])  # sdpa takes these gradients from `block_gradients`
@pytest.mark.parametrize("size", [1 << 9, 1 << 20])
def test_learned_bias_sink_and_lse_have_gradients(backend: str, size: int, monkeypatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", size)
    query, key, value = inputs()
    for shape in ((6, 37, 53), (2, 1, 1, 53), (37, 53), (2, 6, 37, 1)):
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        sink = torch.randn(6, dtype=torch.float64, requires_grad=True)
        tensors = (query, key, value, bias, sink)
        options = {"bias": bias, "similarity": qkv.Softmax(sink=sink), "mask": qkv.Causal(16), "return_lse": True}
        answers = [qkv.attention(query, key, value, backend=name, **options) for name in ("reference", backend)]
        grads = [torch.randn_like(x) for x in answers[0]]
        expected, found = (torch.autograd.grad(answer, tensors, grads) for answer in answers)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_blocks_cover_all_rows_and_hold_no_more_scores_than_they_may(monkeypatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1 << 12)
    q, k = torch.zeros(3, 6, 500, 4), torch.zeros(3, 3, 40, 4)
    call = read_inputs(q, k, k, None, qkv.Causal(0), None, 0.0, "auto", False, False)
    blocks = list(blockwise.blocks_of(call, blockwise.rows_in_block(call)))
    size = range(500)
    rows = {(b, g, i) for x in blocks for b in size[x.batch] for g in size[x.heads_kv] for i in size[x.queries]}
    assert len(rows) == 3 * 3 * 500
    for x in blocks:
        assert len(size[x.batch]) * len(size[x.heads_q]) * len(size[x.queries]) * 40 <= 1 << 12
        assert x.keys.stop <= min(40, x.queries.stop)
