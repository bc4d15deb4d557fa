"""`LinearState` with `state=`: prefill, chunks and steps agree; rolled back, forked, reordered, saved and padded."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.errors import BackendRefused, OptionError, OptionTypeError, ShapeError
from tests.helpers.state_cases import (
    CLOSE,
    KINDS,
    case,
    decode_part,
    gates_of_step,
    padded,
    part_of_state,
    relative,
    state_for,
    whole,
)

EACH = pytest.mark.parametrize("kind", KINDS)
SOME = pytest.mark.parametrize("kind", ["decay", "gated features", "kda"])


@EACH
@pytest.mark.parametrize("dtype", ["float32", "float64", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("rollback", [0, 3])
def test_chunks_and_steps_are_the_whole(kind: str, dtype: str, rollback: int) -> None:
    call = case(kind, 43, dtype)
    state, wanted, outs, at = state_for(call, rollback=rollback), whole(call), [], 0
    for n in (17, 1, 1, 5, 1, 11, 1, 1, 1, 1, 1, 1, 1):
        outs.append(decode_part(call, state, at, at + n))
        at += n
    assert at == 43 == state.length
    assert relative(torch.cat(outs, dim=2), wanted) < CLOSE[dtype]


@EACH
@pytest.mark.parametrize("saved", [False, True])
def test_rolled_back_tokens_can_be_given_again(kind: str, saved: bool, tmp_path: Path) -> None:
    """Each row goes back by another number of tokens; the tokens come back ragged, NaN in their padding."""
    call = case(kind, 29)
    state, wanted = state_for(call, rollback=5), whole(call)
    for start, stop in ((0, 23), (23, 24), (24, 29)):
        decode_part(call, state, start, stop)
    kept = [24, 28, 29]
    shorter = state.fork()
    shorter.crop(kept)
    assert shorter.lengths.tolist() == kept
    assert state.length == 29
    if saved:
        shorter.save(tmp_path / "state")
        shorter = qkv.LinearState.load(tmp_path / "state", call.built_similarity)
    counts = [29 - n for n in kept]
    for left in (False, True):
        again = shorter.fork()
        given = [padded(tensor, counts, kept, 5, left) for tensor in call.tensors]
        change = call.built_state
        assert change is not None
        gates = {
            f.name: padded(t, counts, kept, 5, left) for f in fields(change) if (t := getattr(change, f.name)).dim() > 1
        }
        out = qkv.decode(
            *given, again, state=replace(change, **gates) if gates else None,
            lengths=counts, padding="left" if left else "right",
        )  # fmt: skip
        expected = padded(wanted, counts, kept, 5, left).nan_to_num(0.0)
        assert relative(out, expected) < 2e-5
        assert not bool(out[expected.isnan()].any())
        assert again.lengths.tolist() == [29] * 3


@SOME
def test_rows_are_reordered_and_the_fork_stays(kind: str) -> None:
    call = case(kind, 13)
    state, wanted, rows = state_for(call, rollback=2), whole(call), [2, 0, 2, 1]
    decode_part(call, state, 0, 12)
    other = state.fork()
    other.reorder(rows)
    assert call.built_state is not None
    out = qkv.decode(
        *(t[rows, :, 12:] for t in call.tensors), other, state=gates_of_step(call.built_state, 12, 13, rows)
    )
    assert relative(out, wanted[rows, :, 12:]) < 2e-5
    assert relative(decode_part(call, state, 12, 13), wanted[:, :, 12:]) < 2e-5


@SOME
def test_a_snapshot_is_returned_to(kind: str) -> None:
    call = case(kind, 19)
    state, wanted = state_for(call), whole(call)
    decode_part(call, state, 0, 11)
    state.snapshot()
    decode_part(call, state, 11, 19)
    state.crop(11)
    assert relative(decode_part(call, state, 11, 19), wanted[:, :, 11:]) < 2e-5


@SOME
def test_appended_tokens_count_and_reset_forgets_them(kind: str) -> None:
    call = case(kind, 11)
    state, wanted = state_for(call), whole(call)
    assert call.built_state is not None
    state.append(*(t[:, :, :10] for t in call.tensors[1:]), state=gates_of_step(call.built_state, 0, 10))
    assert relative(decode_part(call, state, 10, 11), wanted[:, :, 10:]) < 2e-5
    state.reset()
    assert state.length == 0
    assert relative(decode_part(call, state, 0, 11), wanted) < 2e-5


def test_crop_goes_back_as_far_as_it_says() -> None:
    call = case("kda", 31)
    state = state_for(call, rollback=4)
    decode_part(call, state, 0, 31)
    with pytest.raises(OptionError, match=r"n: got 26.*rollback="):
        state.crop(26)
    state.crop(27)
    assert state.length == 27


def test_a_state_that_is_not_finite_stays_in_its_column_and_row() -> None:
    call = case("gated delta", 9)
    query, key, value = (t.clone() for t in call.tensors)
    value[0, 0, 3, 2] = float("nan")
    state = state_for(call)
    change = call.built_state
    assert change is not None
    change = replace(change, log_gate=torch.full((3, 2, 9), -0.1))
    outs = [
        qkv.decode(*(t[:, :, i : i + 1] for t in (query, key, value)), state, state=part_of_state(change, i, i + 1))
        for i in range(9)
    ]
    nan = torch.cat(outs, dim=2).isnan()
    expected = torch.zeros_like(nan)
    expected[0, :3, 3:, 2] = True
    assert torch.equal(nan, expected)
    state.crop(9)
    with pytest.raises(OptionError, match="n: got 3"):
        state.crop(3)


def test_nbytes_counts_both_states_and_recent_tokens() -> None:
    call = case("delta", 8)
    plain, back = state_for(call), state_for(call, rollback=3)
    assert plain.nbytes == 3 * 2 * 5 * 7 * 4
    decode_part(call, back, 0, 8)
    assert back.nbytes == 2 * plain.nbytes + 3 * 3 * 2 * (5 + 7 + 1) * 4


def test_what_does_not_fit_is_refused() -> None:
    call = case("gated", 5)
    similarity, tensors = call.built_similarity, call.tensors
    gates = qkv.Gated(torch.zeros(3, 2, 5))
    with pytest.raises(OptionTypeError, match="gates are given with the tokens"):
        qkv.LinearState(similarity, 1, 1, 5, state=gates)
    with pytest.raises(OptionError, match=r"similarity.*normalize=False"):
        qkv.LinearState(similarity, 1, 1, 5, state=qkv.Delta)
    with pytest.raises(OptionError, match="rollback: got 3, wanted 0 without state="):
        qkv.LinearState(similarity, 1, 1, 5, rollback=3)
    state = state_for(call)
    with pytest.raises(OptionTypeError, match=r"state: got None, wanted a qkv.Gated"):
        qkv.decode(*tensors, state)
    with pytest.raises(ShapeError, match="log_gate: got shape"):
        qkv.decode(*tensors, state, state=qkv.Gated(torch.zeros(3, 6, 5)))
    with pytest.raises(BackendRefused, match="log_gate requires grad"):
        qkv.decode(*tensors, state, state=qkv.Gated(torch.zeros(3, 2, 5, requires_grad=True)))
    assert state.length == 0
    with pytest.raises(OptionTypeError, match="only adds tokens"):
        qkv.decode(*tensors, qkv.LinearState(similarity, 3, 2, 5, value_width=7), state=gates)
    cache = qkv.KVCache(batch=3, heads=2, width=5, value_width=7)
    with pytest.raises(OptionTypeError, match="None with a KVCache"):
        qkv.decode(*tensors, cache, state=gates)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    call = case("decay", 9)
    state = state_for(call, rollback=2)
    decode_part(call, state, 0, 9)
    path = tmp_path / "state"
    state.save(path)
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        about = file.metadata()
    for change, words in (
        ({"rate": None}, "tensors"),
        ({"lengths": torch.tensor([9, 9, 8])}, "invalid lengths"),
        ({"keep": torch.ones(3, 1, dtype=torch.bool)}, "different lengths"),
    ):
        tensors = load_file(path) | change
        save_file({n: t for n, t in tensors.items() if t is not None}, tmp_path / "other", metadata=about)
        with pytest.raises(OptionError, match=words):
            qkv.LinearState.load(tmp_path / "other", call.built_similarity)
    save_file(load_file(path), tmp_path / "other", metadata=about | {"state": "Own"})
    with pytest.raises(OptionError, match="Own"):
        qkv.LinearState.load(tmp_path / "other", call.built_similarity)
