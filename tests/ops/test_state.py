"""state_attention against its recurrence in float64, token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.errors import ShapeError
from qkv.ops.kernels import state_attention

BATCH, HEADS, GROUP, WIDTH, WIDTH_V = 2, 3, 2, 7, 5
GATES = ("none", "head", "token", "channel")


def recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_gate: Tensor | None = None,
    beta: Tensor | None = None,
    rule: str = "linear",
    state: Tensor | None = None,
    resets: Tensor | None = None,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and the last state, in float64."""
    batch, heads, length, width = key.shape
    group = query.shape[1] // heads
    query, key, value = (x.double() for x in (query, key, value))
    gate = torch.zeros(batch, heads, length, width).double() if log_gate is None else log_gate.double()
    gate = gate[None, :, None] if gate.dim() == 1 else gate
    gate = gate[..., None] if gate.dim() == 3 else gate
    gate = gate.expand(batch, heads, length, width)
    beta = torch.ones(batch, heads, length) if beta is None else beta
    now = torch.zeros(batch, heads, width, value.shape[3]).double() if state is None else state.double()
    out = torch.zeros(*query.shape[:3], value.shape[3]).double()
    for i in range(length):
        for b in range(batch):
            if resets is not None and resets[b, i]:
                now[b] = 0
            if keep is not None and not keep[b, i]:
                continue
            now[b] = gate[b, :, i].exp()[..., None] * now[b].masked_fill(gate[b, :, i, :, None] == -math.inf, 0)
            change = value[b, :, i]
            if rule == "delta":
                change = beta[b, :, i, None].double() * (change - torch.einsum("hwv,hw->hv", now[b], key[b, :, i]))
            now[b] = now[b] + key[b, :, i, :, None] * change[:, None]
            out[b, :, i] = torch.einsum("hwv,hw->hv", now[b].repeat_interleave(group, 0), query[b, :, i])
    return out, now


def draw(length: int, gate: str, rule: str, dtype: torch.dtype = torch.float32, **sizes: int) -> dict[str, Any]:
    source = torch.Generator().manual_seed(length)
    width, width_v = sizes.get("width", WIDTH), sizes.get("width_v", WIDTH_V)
    batch, heads, group = sizes.get("batch", BATCH), sizes.get("heads", HEADS), sizes.get("group", GROUP)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    given: dict[str, Any] = {"rule": rule, "state": random(batch, heads, width, width_v)}
    given["query"] = random(batch, heads * group, length, width).to(dtype)
    given["key"] = torch.nn.functional.normalize(random(batch, heads, length, width), dim=-1).to(dtype)
    given["value"] = random(batch, heads, length, width_v).to(dtype)
    shape = {"head": (heads,), "token": (batch, heads, length), "channel": (batch, heads, length, width)}.get(gate)
    if shape is not None:
        given["log_gate"] = -random(*shape).square()
        if gate != "head":  # some gates are closed, some nearly
            given["log_gate"].view(-1)[::11] = -math.inf
            given["log_gate"].view(-1)[5::13] = -95.0
    if rule == "delta":
        given["beta"] = 2 * torch.rand(batch, heads, length, generator=source)
    return given


def check(given: dict[str, Any], digits: float = 2e-5, **more: Any) -> Tensor:
    state = None if given["state"] is None else given["state"].clone()
    wanted, last = recurrence(**given)
    out = state_attention(**(given | {"state": state}), **more)
    assert out.dtype == given["query"].dtype
    finite = wanted[wanted.isfinite()].abs()
    size = max(float(finite.max()) if finite.numel() else 0.0, 1.0)
    torch.testing.assert_close(out.double(), wanted, atol=digits * size, rtol=0.0, equal_nan=True)
    if state is not None:
        torch.testing.assert_close(state.double(), last, atol=2e-5 * size, rtol=0.0, equal_nan=True)
    return out


@pytest.mark.parametrize("rule", ["linear", "delta"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("length", [0, 1, 4, 17, 64, 131])
def test_agrees_with_the_recurrence(length: int, gate: str, rule: str) -> None:
    check(draw(length, gate, rule))


@pytest.mark.parametrize("rule", ["linear", "delta"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("width", "width_v"), [(1, 1), (16, 17), (32, 65), (48, 129)])
def test_widths(width: int, width_v: int, gate: str, rule: str) -> None:
    given = draw(67, gate, rule, batch=1, heads=1, group=1, width=width, width_v=width_v)
    check(given)
    steps = draw(2, gate, rule, batch=1, heads=1, group=3, width=width, width_v=width_v)
    check(steps)


@pytest.mark.parametrize("gate", GATES)
def test_padding_has_no_effect_and_segments_start_from_zero(gate: str) -> None:
    given = draw(101, gate, "delta")
    source = torch.Generator().manual_seed(3)
    keep = torch.rand(BATCH, 101, generator=source) > 0.2
    keep[0, :7] = keep[1, 90:] = False
    for name in ("key", "value", "query"):
        given[name][~keep[:, None].expand(given[name].shape[:3])] = math.nan
    given["beta"][~keep[:, None].expand(given["beta"].shape)] = math.nan
    if gate in ("token", "channel"):
        given["log_gate"][~keep[:, None].expand(given["beta"].shape)] = math.nan
    given["keep"] = keep
    check(given)
    given["resets"] = torch.rand(BATCH, 101, generator=source) < 0.05
    out = check(given)
    assert (out[~keep[:, None].expand(out.shape[:3])] == 0).all()


@pytest.mark.parametrize("rule", ["linear", "delta"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("poisoned", ["query", "key", "value", "beta", "log_gate"])
def test_nan_reaches_what_attends_to_it_and_no_earlier_token(poisoned: str, gate: str, rule: str) -> None:
    given = draw(83, gate, rule, width_v=37)
    if poisoned not in given or (poisoned == "log_gate" and gate == "head"):
        return
    given[poisoned][0, 1, 41].view(-1)[-1] = math.nan
    wanted, _ = recurrence(**given)
    out = check(given)
    assert (out.isnan() == wanted.isnan()).all()
    assert not out[:, :, :41].isnan().any()


def test_a_gate_of_minus_infinity_forgets_nan() -> None:
    for gate in ("token", "channel"):
        for rule in ("linear", "delta"):
            for length in (3, 70):
                given = draw(length, gate, rule, width_v=37)
                given["state"][0, :, :, 30] = math.nan
                given["log_gate"][:, :, 2] = -math.inf
                out = check(given)
                assert out[0, :, :1, 30].isnan().all()
                assert not out[0, :, 2:].isnan().any()


def test_bits_do_not_depend_on_threads_rows_or_layout() -> None:
    for gate in GATES:
        given = draw(150, gate, "delta", batch=2, heads=1, group=2, width=16, width_v=48)
        given["value"][1, 0, 99, 20] = math.inf
        given["state"] = None
        one = state_attention(**given, threads=1)
        assert torch.equal(one.nan_to_num(), state_attention(**given, threads=3).nan_to_num())
        heads_last = {n: given[n].transpose(1, 2).contiguous().transpose(1, 2) for n in ("query", "key", "value")}
        again = state_attention(**(given | heads_last))
        assert again.transpose(1, 2).is_contiguous()
        assert torch.equal(one.nan_to_num(), again.nan_to_num())
        first: dict[str, Any] = {n: x[:1] if isinstance(x, Tensor) and x.dim() > 1 else x for n, x in given.items()}
        assert torch.equal(one[:1], state_attention(**first, threads=2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    for gate in GATES:
        check(draw(70, gate, "delta", dtype), digits=2.0**-8 if dtype == torch.bfloat16 else 2.0**-11)


def test_chunks_and_steps_are_the_whole() -> None:
    for gate in ("token", "channel"):
        given = draw(150, gate, "delta")
        whole, state, parts, at = check(given), given["state"].clone(), [], 0
        for count in (1, 63, 2, 70, 1, 13):
            part: dict[str, Any] = {
                n: x[:, :, at : at + count] if isinstance(x, Tensor) else x for n, x in given.items()
            }
            parts.append(state_attention(**(part | {"state": state})))
            at += count
        torch.testing.assert_close(torch.cat(parts, 2), whole, atol=2e-5 * float(whole.abs().max()), rtol=0.0)


def test_a_state_of_another_form_is_refused() -> None:
    given = draw(3, "none", "linear")
    for state in (given["state"].double(), given["state"][:, :, :2], given["state"].mT):
        with pytest.raises(ShapeError, match="contiguous float32"):
            state_attention(**(given | {"state": state}))
