"""`watch`: known counts, and torch's flash kernel."""

import json
import threading

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

import qkv
from qkv import ops
from qkv.errors import OptionError
from qkv.profiling.watch import tensor_bytes, watch

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
NAN = float("nan")


@pytest.mark.parametrize(
    "program",
    [
        lambda: torch.randn(3, 5) @ torch.randn(5, 7),
        lambda: torch.randn(2, 3, 5) @ torch.randn(2, 5, 7),
        lambda: torch.addmm(torch.randn(7), torch.randn(3, 5), torch.randn(5, 7)),
        lambda: torch.baddbmm(torch.randn(2, 3, 7), torch.randn(2, 3, 5), torch.randn(2, 5, 7)),
        lambda: torch.einsum("abc,acd->abd", torch.randn(2, 3, 5), torch.randn(2, 5, 7)),
        lambda: F.conv1d(torch.randn(2, 3, 11), torch.randn(5, 3, 7)),
        lambda: F.linear(torch.randn(2, 3, 5), torch.randn(7, 5), torch.randn(7)).sum(),
    ],
)
def test_products_are_those_of_torch(program) -> None:
    with FlopCounterMode(display=False) as theirs, watch() as seen:
        program()
    assert seen.products == theirs.get_total_flops() > 0
    assert not seen.unknown


@pytest.mark.parametrize(
    ("program", "flops"),
    [
        (lambda: torch.randn(5, 7) @ torch.randn(7), 2 * 5 * 7),
        (lambda: torch.randn(7) @ torch.randn(7), 2 * 7),
        (lambda: torch.addmv(torch.randn(5), torch.randn(5, 7), torch.randn(7)), 2 * 5 * 7),
        (lambda: torch.addbmm(torch.randn(3, 7), torch.randn(2, 3, 5), torch.randn(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
    ],
)
def test_products_that_torch_does_not_count(program, flops: int) -> None:
    with FlopCounterMode(display=False) as theirs, watch() as seen:
        program()
    assert (seen.products, theirs.get_total_flops()) == (flops, 0)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu_is_not_free(causal: bool) -> None:
    x = torch.randn(2, 3, 523, 7, requires_grad=True)
    with FlopCounterMode(display=False) as theirs, watch() as seen:
        out = F.scaled_dot_product_attention(x, x, x, is_causal=causal)
    assert theirs.get_total_flops() == 0
    # Blocks of 512 keys are computed whole for the rows that attend to any of them.
    pairs = 512 * 512 + 11 * 523 if causal else 523 * 523
    assert seen.products == 2 * 6 * 2 * pairs * 7
    with watch() as back:
        out.sum().backward()
    assert 2 * back.products == 5 * seen.products


def looked_at(length: int) -> list[int]:
    """Places at which blocks end and begin."""
    return [i for i in (0, 31, 32, 255, 511, 512, 1023, 1024, length - 1) if i < length]


def executed_by_nan(n: int, m: int, dtype: torch.dtype) -> tuple[int, int]:
    """Pairs under a triangle that the kernel multiplies, forward and backward, for some keys and for some queries:
    0·NaN is NaN, so that each shows, masked or not."""
    q, k, v = (
        torch.randn(1, 1, n, 4, dtype=dtype),
        torch.randn(1, 1, m, 4, dtype=dtype),
        torch.zeros(1, 1, m, 4).to(dtype),
    )
    out, lse = FORWARD(q, k, v, 0.0, True)
    forward = backward = 0
    for j in looked_at(m):
        odd = v.index_fill(2, torch.tensor(j), NAN)
        forward += int(FORWARD(q, k, odd, 0.0, True)[0][0, 0, :, 0].isnan().sum())
    for i in looked_at(n):
        grad = torch.zeros_like(out).index_fill(2, torch.tensor(i), NAN)
        backward += int(BACKWARD(grad, q, k, v, out, lse, 0.0, True)[2][0, 0, :, 0].isnan().sum())
    return forward, backward


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("n", "m"), [(1031, 1543), (523, 1109), (199, 211), (41, 523), (787, 523)])
def test_tiles_of_the_flash_kernel_by_what_a_nan_reaches(n: int, m: int, dtype: torch.dtype) -> None:
    keys_of_row = [min(m, i // 512 * 512 + 512) for i in range(n)]
    forward = sum(keys > j for j in looked_at(m) for keys in keys_of_row)
    assert executed_by_nan(n, m, dtype) == (forward, sum(keys_of_row[i] for i in looked_at(n)))


def test_backward_is_seen() -> None:
    a, b = torch.randn(3, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    with watch() as seen:
        (a @ b).sum().backward()
    assert seen.products == 3 * 2 * 3 * 5 * 7


def test_a_backward_pass_that_another_thread_asks_for_is_its_own() -> None:
    a = torch.randn(3, 5, requires_grad=True)
    with watch() as seen:
        out = (a @ a.mT).sum()
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
    assert seen.products == 2 * 3 * 5 * 3


def test_under_inference_mode_operators_come_whole_and_are_taken_apart() -> None:
    x, layer = torch.randn(2, 3, 5, 7), torch.nn.Linear(7, 11)
    with torch.inference_mode(), watch() as seen:
        layer(x)
        F.scaled_dot_product_attention(x, x, x)
        torch.matmul(x, x.mT)
    assert seen.products == 2 * 30 * 7 * 11 + 6 * 4 * 5 * 5 * 7 + 6 * 2 * 5 * 7 * 5
    assert not seen.unknown


def test_bytes() -> None:
    x, row = torch.randn(3, 5), torch.randn(5)
    cases = [
        (lambda: x.t(), 0, 0),
        (lambda: x.view(15)[2:7].unsqueeze(0).detach(), 0, 0),
        (lambda: x + 1, 60, 60),
        (lambda: x * x, 60, 60),
        (lambda: x + row, 80, 60),
        (lambda: row.expand(3, 5) + 1, 20, 60),
        (lambda: x.clone().mul_(2), 120, 120),
        (lambda: x.sum(), 60, 4),
        (lambda: torch.zeros(3, 5), 0, 60),
        (lambda: torch.empty(3, 5), 0, 0),
        (lambda: torch.zeros_like(x), 0, 60),
        (lambda: torch.empty(3, 5).copy_(x), 60, 60),
        (lambda: torch.add(x, row, out=torch.empty(3, 5)), 80, 60),
        (lambda: x.to(torch.float64), 60, 120),
        (lambda: torch.cat([x, x]), 60, 120),
        (lambda: x[torch.ones(1, dtype=torch.int64)], 8 + 20, 8 + 20),
        (lambda: F.embedding(torch.ones(2, dtype=torch.int64), torch.ones(1000, 3)), 16 + 24, 16 + 12000 + 24),
        (lambda: x.masked_fill(x > 0, 0.0), 60 + 75, 15 + 60),
        (lambda: x.sum().item(), 64, 4),
    ]
    for program, read, written in cases:
        with watch() as seen:
            program()
        assert (seen.read, seen.written) == (read, written), seen
        assert not seen.unknown


def test_elementwise_is_one_for_each_number_of_the_larger_side() -> None:
    x = torch.randn(3, 5)
    for program, flops in [
        (lambda: x.exp(), 15),
        (lambda: x + torch.ones(2, 1, 1), 30),
        (lambda: x.sum(-1), 15),
        (lambda: x.amax(), 15),
        (lambda: torch.where(x > 0, x, 0.0), 30),
        (lambda: x.clone().tanh_(), 15),
        (lambda: x.softmax(-1), 75),
        (lambda: x.cumsum(0), 15),
        (lambda: x.t().contiguous(), 0),
        (lambda: torch.addmm(x, x, torch.ones(5, 5)), 15),
    ]:
        with watch() as seen:
            program()
        assert seen.elementwise == flops, seen


def test_peak_follows_what_is_alive() -> None:
    x = torch.randn(1000)
    with watch() as chain:
        (x + 1 + 1 + 1).sum()
    assert chain.peak == 2 * 4000
    with watch() as kept:
        everything = [x + i for i in range(7)]
        del everything[:5]
        everything.append(x[1:])
    assert kept.peak == 7 * 4000
    with watch() as views:
        y = x + 1
        y[3:].view(-1).unsqueeze(0)
        y.mul_(2)
    assert views.peak == 4000
    with watch() as later:
        del everything, y
    assert later.peak == 0


def test_saved_tensors_are_held_until_the_backward_pass() -> None:
    x = torch.randn(1000, requires_grad=True)
    with watch() as seen:
        out = x.exp().exp().exp()
    assert seen.peak == 3 * 4000
    del out


def test_unknown_operators_are_named_and_not_free() -> None:
    with watch() as seen:
        torch.linalg.inv(torch.eye(5))
    assert "aten.linalg_inv_ex" in seen.unknown
    assert seen.by_operator["aten.linalg_inv_ex"].read == 100
    assert "?" in str(seen)


def test_sparse_tensors_are_not_taken_for_dense_ones() -> None:
    sparse = torch.eye(7).to_sparse()
    with watch() as seen:
        torch.mm(sparse, torch.ones(7, 3))
    assert seen.unknown


@pytest.mark.skipif(not ops.available(), reason="no native library")
def test_kernels_of_qkv_have_a_separate_line() -> None:
    x = torch.randn(2, 3, 37, 7)
    with watch() as seen:
        qkv.attention(x, x, x, similarity=qkv.Argmax(), backend="argmax")
    assert seen.native >= 2 * 6 * 37 * 37 * 7
    assert seen.products == 0
    assert seen.flops == seen.native + seen.elementwise
    assert "qkv kernels" in str(seen)


def test_table_fits_a_terminal_and_is_sorted() -> None:
    x = torch.randn(2, 3, 523, 64, requires_grad=True)
    with watch() as seen:
        F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
        (x.to(torch.bfloat16) @ x.to(torch.bfloat16).mT).exp()
        torch.linalg.svd(torch.eye(3))
    lines = str(seen).splitlines()
    assert max(map(len, lines)) <= 80
    flops = [one["products"] + one["elementwise"] for one in seen.as_dict()["by_operator"].values()]
    assert flops == sorted(flops, reverse=True)


def test_as_dict_is_integers() -> None:
    with watch() as seen:
        torch.mm(torch.randn(3, 5), torch.randn(5, 7))
    found = json.loads(json.dumps(seen.as_dict()))
    assert found["products"] == 210
    assert found["by_operator"]["aten.mm"] == {
        "calls": 1,
        "products": 210,
        "elementwise": 0,
        "read": 200,
        "written": 84,
    }
    assert all(type(found[name]) is int for name in ("flops", "read", "written", "peak", "native", "calls"))


def test_one_block_inside_another_counts_for_both_and_one_used_again_counts_on() -> None:
    x = torch.ones(3, 5)
    with watch() as outer:
        with watch() as inner:
            torch.mm(x, x.t())
        torch.mm(x, x.t())
    assert (inner.products, outer.products) == (90, 180)
    with inner:
        torch.mm(x, x.t())
    assert inner.products == 180
    with inner, pytest.raises(OptionError, match="already counting"), inner:
        pass


def test_an_error_inside_ends_the_count() -> None:
    seen = watch()
    with pytest.raises(ZeroDivisionError), seen:
        raise ZeroDivisionError
    torch.ones(3).add(1)
    assert seen.calls == 0
    assert not _get_current_dispatch_mode_stack()


def test_expanded_axes_hold_nothing() -> None:
    assert tensor_bytes(torch.ones(3, 1, 5).expand(3, 7, 5)) == 60
    assert tensor_bytes(torch.ones(11).unfold(0, 5, 1)) == 44
    assert tensor_bytes(torch.ones(0, 5).expand(3, 0, 5)) == 0
