"""The backward pass at its edges: twice, with a mask that changed, with NaN on either side."""

import pytest
import torch

import qkv


def inputs(*, heads=6, kv=3, len_q=5, len_k=7, width=11, width_v=13):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, heads, len_q, width), (2, kv, len_k, width), (2, kv, len_k, width_v))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("options", [{}, {"mask": qkv.Causal(2)}, {"similarity": qkv.Softmax(softcap=3.0, sink=0.5)}])
def test_second_derivatives_are_right_in_every_form(options: dict) -> None:
    query, key, value = inputs(heads=2, kv=1, len_q=3, len_k=5, width=2, width_v=3)
    hessians = [
        torch.autograd.functional.hessian(
            lambda q, k, f=backend: qkv.attention(q, k, value, backend=f, **options).square().sum(), (query, key)
        )
        for backend in ("reference", "sdpa", "auto")
    ]
    for hessian in hessians[1:]:
        torch.testing.assert_close(hessian, hessians[0])
    assert hessians[0][0][1].abs().max() > 1e-3


@pytest.mark.parametrize("similarity", [qkv.Softmax(), qkv.Softmax(softcap=3.0)])
def test_a_mask_that_changes_before_the_backward_pass_is_refused(similarity) -> None:
    query, key, value = (t.requires_grad_() for t in inputs())
    buffer = torch.ones(5, 7).tril().bool()
    out = qkv.attention(query, key, value, mask=qkv.Dense(buffer), similarity=similarity, backend="sdpa")
    buffer.fill_(True)
    with pytest.raises(qkv.errors.MaskError, match="clone"):
        out.sum().backward()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
class TestNanInTheBackwardPass:
    def test_attended_nan_is_not_hidden(self, backend: str) -> None:
        for which in range(3):
            tensors = inputs(heads=1, kv=1)
            tensors[which][0, 0, 2, 3] = float("nan")
            query, key, value = (t.requires_grad_() for t in tensors)
            out = qkv.attention(query, key, value, backend=backend, mask=qkv.Causal(2))
            dq, dk, dv = torch.autograd.grad(out.sum(), (query, key, value))
            rows = [2] if which == 0 else list(range(0 if which else 2, 5))
            assert dq[0, 0, rows].isnan().all()
            assert dk[0, 0, 2].isnan().all()
            assert dq[1].isfinite().all()
            if which == 2:  # values weigh into no derivative of their own
                assert dv.isfinite().all()
                weights = qkv.attention(query, key, value, mask=qkv.Causal(2), return_weights=True)[1]
                torch.testing.assert_close(dv[..., 0], weights.sum(-2))

    def test_nothing_comes_back_from_a_row_that_saw_nothing(self, backend: str) -> None:
        query, key, value = (t.requires_grad_() for t in inputs())
        out = qkv.attention(query, key, value, mask=qkv.Causal(-2), backend=backend)
        grad = torch.ones_like(out)
        grad[:, :, :2] = float("nan")
        for found in torch.autograd.grad(out, (query, key, value), grad):
            assert found.isfinite().all()
