"""Every peer of the decode figure gives attention's answer. One that is not installed is named in pytest's summary."""

import pytest
import torch

import qkv
from benchmarks.cells import ALLOWED, Qkv, check
from benchmarks.peers import Peer, Step, all_peers
from benchmarks.peers.ggml import Ggml
from benchmarks.peers.jax import Jax
from benchmarks.peers.pytorch import Listing, multiquery

# batch, query heads, key/value heads, past, width: groups 3, 5, 1 and all, widths that fill no register
SHAPES = [(2, 15, 5, 37, 96), (1, 20, 4, 513, 64), (1, 7, 7, 33, 80), (3, 6, 1, 29, 128), (1, 8, 2, 1, 256)]
STORAGES = ("float32", "float16", "bfloat16", "int8")
PEERS = [Qkv(), *all_peers()]

# Warnings of other libraries on import or compilation are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def step_of(shape: tuple[int, int, int, int, int], storage: str) -> Step:
    return Step.draw(shape, "float32" if storage == "int8" else storage, seed=3)


def test_the_exact_answer_is_attention_in_float64() -> None:
    step = step_of(SHAPES[0], "float32")
    q, k, v = step.query.double(), step.all_key.double(), step.all_value.double()
    torch.testing.assert_close(step.exact(), qkv.attention(q, k, v, backend="reference"))
    keep = torch.rand(2, 38) < 0.5
    masked = qkv.attention(q, k, v, mask=qkv.Padding(keep=keep), backend="reference")
    torch.testing.assert_close(step.exact(keep), masked)


def test_a_step_is_the_past_and_one_more_token() -> None:
    step = step_of(SHAPES[0], "bfloat16")
    assert torch.equal(torch.cat([step.past_key, step.key], dim=2), step.all_key)
    assert torch.equal(torch.cat([step.past_value, step.value], dim=2), step.all_value)
    copy = step.copy()
    for name, tensor in vars(step).items():
        other = getattr(copy, name)
        assert torch.equal(other, tensor)
        assert other.data_ptr() != tensor.data_ptr()
        assert tensor.is_contiguous()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.name != "flex"], ids=lambda peer: peer.name)
def test_peer_is_right(peer: Peer, shape: tuple[int, int, int, int, int], storage: str) -> None:
    if reason := peer.absent():
        pytest.skip(f"{peer.name}: {reason}")
    step = step_of(shape, storage)
    if reason := peer.refuses(step, storage):
        assert len(reason) > 5
        return
    call = peer.prepare(step, storage)
    assert check(peer.name, peer, call, step, storage) <= ALLOWED[storage]
    if peer.name != "qkv":  # qkv's cache grows from step to step
        assert check(peer.name, peer, call, step, storage) <= ALLOWED[storage]


@pytest.mark.slow
def test_flex_is_right() -> None:
    peer = next(peer for peer in PEERS if peer.name == "flex")
    if reason := peer.absent():
        pytest.skip(f"flex: {reason}")
    step = step_of(SHAPES[0], "float32")
    check("flex", peer, peer.prepare(step, "float32"), step, "float32")


def test_what_each_peer_refuses() -> None:
    grouped, ungrouped = step_of(SHAPES[0], "float32"), step_of(SHAPES[2], "float32")
    peers = {peer.name: peer for peer in PEERS}
    assert set(peers) == {"qkv", "sdpa", "pack", "hf", "hf+p", "flex", "onnx", "jax", "ggml", "mulmat", "vllm", "list"}
    assert "pack" in (peers["pack"].refuses(ungrouped, "float32") or "")
    assert peers["pack"].refuses(grouped, "float32") is None
    assert "MHA and MQA" in (Listing().refuses(grouped, "float32") or "")
    assert "float16" in (Jax().refuses(grouped, "float16") or "")
    assert "32" in (Ggml().refuses(ungrouped, "int8") or "")
    for name in set(peers) - {"qkv", "ggml"}:
        assert peers[name].refuses(grouped, "int8") is not None


def test_a_wrong_answer_stops_the_run() -> None:
    peer, step = PEERS[1], step_of(SHAPES[0], "float32")
    other = step_of(SHAPES[0], "float32").copy()
    other.all_value[0, 0, 0, 0] += 1
    with pytest.raises(AssertionError, match="away from the answer"):
        check("sdpa", peer, peer.prepare(other, "float32"), step, "float32")


def test_a_peer_that_is_missing_says_so() -> None:
    class Missing(Peer):
        package = "no-such-package-anywhere"

    assert "not installed" in (Missing().absent() or "")


def test_qkv_grows_and_is_cropped() -> None:
    """The cache takes steps as in use, and never goes far from the past that the table names."""
    step = step_of(SHAPES[3], "float32")
    call = Qkv().prepare(step, "float32")
    exact = step.exact().float()
    assert call.undo is not None
    for visit in range(40):
        out = call.run()
        call.undo()
        if visit % 16 == 0:
            torch.testing.assert_close(out, exact, atol=1e-5, rtol=1e-5)


def test_the_listing_returns_its_cache() -> None:
    step = step_of(SHAPES[3], "float32")
    given = (step.query[:, :, 0], step.key[:, 0, 0], step.value[:, 0, 0], step.past_key[:, 0], step.past_value[:, 0])
    _, key, value = multiquery(*given)
    assert torch.equal(key, step.all_key[:, 0])
    assert torch.equal(value, step.all_value[:, 0])
