"""The linear figure: every peer and plain way gives attention's answer, flops are counted, the plot and grid stand."""

import math
from xml.etree import ElementTree

import pytest
import torch

import qkv
from benchmarks import choice, linear, resident, tokens
from benchmarks.choice import Entry, Setting, slow_choices
from benchmarks.harness import Timings
from benchmarks.peers.linear import ELU1, QUADRATIC, Whole, for_elu1, for_quadratic

SHAPE = (2, 3, 256, 5)  # of two chunks, of whole buckets
PEERS = [*for_elu1(), *for_quadratic()]
# performer adds 1e-6 to the sums below its fractions.
ALLOWED = {"performer": 1e-5}

# Warnings of other libraries on import are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def given(shape: tuple[int, int, int, int] = SHAPE) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(5)
    return [torch.randn(shape, generator=source, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.name}-{type(peer.similarity).__name__}")
def test_peer_is_right(peer: Whole) -> None:
    if reason := peer.absent():
        pytest.skip(f"{peer.name}: {reason}")
    q, k, v = given()
    kept = [tensor.clone() for tensor in (q, k, v)]
    out = peer.attend(q, k, v)
    for tensor, copy in zip((q, k, v), kept, strict=True):
        assert torch.equal(tensor, copy)
    if peer.similarity is None:
        assert out.shape == v.shape
        return
    exact = qkv.attention(q, k, v, similarity=peer.similarity, mask=qkv.Causal(), backend="reference")
    allowed = ALLOWED.get(peer.name, 1e-11)
    assert out.dtype is torch.float64
    torch.testing.assert_close(out, exact, atol=allowed, rtol=allowed)


@pytest.mark.parametrize("length", [1, 127, 128, 515])
def test_plain_ways_take_any_length(length: int) -> None:
    q, k, v = given((1, 2, length, 3))
    for peer in PEERS:
        if peer.package == "torch":
            exact = qkv.attention(q, k, v, similarity=peer.similarity, mask=qkv.Causal(), backend="reference")
            torch.testing.assert_close(peer.attend(q, k, v), exact, atol=1e-10, rtol=1e-10)


def test_a_peer_without_its_bucket_gives_another_answer() -> None:
    bucketed = next(peer for peer in PEERS if peer.name == "lin-tr 64")
    if reason := bucketed.absent():
        pytest.skip(reason)
    assert not bucketed.library
    assert not bucketed.attend(*given())[:, :, :64].any()


def test_a_wrong_answer_stops_the_run() -> None:
    tensors = given()
    peer = PEERS[0]
    out = peer.attend(*tensors)
    assert linear.error(peer, out, tensors) < 1e-10
    with pytest.raises(AssertionError, match="away from"):
        linear.error(peer, out + 1, tensors)


def test_flops() -> None:
    assert linear.flops(ELU1, (1, 8, 16384, 64)) == 8 * 16384 * (2 * 64 * 64 * 2 + 64 * 128)
    assert linear.flops(QUADRATIC, (1, 8, 8192, 64)) == 8 * 8192 * (4 * 2145 * 64 + 128 * 128)


def test_a_peer_with_fewer_heads_is_scaled() -> None:
    case = linear.Case((1, 8, 64, 4), for_quadratic(), {"blocks": 2})
    scaled = case._scaled(Timings({"qkv": [1.0, 2.0], "blocks": [1.0, 3.0]}))
    assert scaled.times == {"qkv": [1.0, 2.0], "blocks": [4.0, 12.0]}


def test_what_is_not_measured_is_not_met() -> None:
    case = linear.Case((1, 8, 64, 4), for_elu1(), {})
    assert math.isnan(case.faster("sdpa"))
    assert case.best_library() is None


@pytest.mark.slow
def test_memory_is_measured_in_a_new_process() -> None:
    if reason := resident.absent():
        pytest.skip(reason)
    assert abs(resident.extra("elu1", 1024)) < 64 << 20


def test_the_plot_is_svg_with_axes() -> None:
    series = {"qkv": [100.0, 110.0, 105.0], "chunks": [300.0, 310.0, 390.0]}
    root = ElementTree.fromstring(tokens.plot("a title", [1024, 2048, 4096], series))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"length (tokens, log scale)", "time per token (ns)", "1024", "4096", "qkv"} <= set(texts)


@pytest.mark.slow
def test_steps_fill_a_state_in_pieces() -> None:
    out = tokens._step(ELU1, 20_000).run()
    assert out.shape == (1, 8, 1, 64)
    found = tokens.steps(quick=True)
    assert found is not None
    assert len(found[0].times) == 4


def entries_of(*times: tuple[int, float, float]) -> list[Entry]:
    """Entries of (length, seconds of reference, seconds of linear)."""
    setting = Setting("elu+1", 8, 8, False)
    return [Entry(setting, n, "linear", times={"reference": slow, "linear": fast}) for n, slow, fast in times]


def test_the_crossing_lies_between_two_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio of scores to sums grows with the length."""
    monkeypatch.setattr(choice, "scores_to_sums", lambda *setting: (setting[-1] / 300) ** 2)
    assert choice.crossing(ELU1, 8, 1, True, 128) == "300"
    assert choice.crossing(ELU1, 8, 1, True, 9000) == "<= 1125"
    assert choice.crossing(ELU1, 8, 1, True, 16, longest=64) == "> 64"


def test_both_ways_of_the_kernel_are_timed() -> None:
    assert choice.scores_to_sums(ELU1, 8, 1, True, 16) > 0


def test_slow_choices_are_more_than_a_little_behind() -> None:
    entries = entries_of((16, 1.0, 1.1), (64, 1.0, 3.0), (256, 5.0, 1.0))
    assert [entry.behind for entry in entries] == pytest.approx([1.1, 3.0, 1.0])
    assert [row[1] for row in slow_choices(entries)] == ["64"]


def test_the_grid() -> None:
    whole = choice.settings(False)
    assert len(whole) * len(choice.LENGTHS) + len(choice.KINDS) == 200
    entry = choice.measure(whole[0], 16, None, quick=True)
    assert set(entry.times) <= set(choice.BACKENDS)
    assert "linear" in entry.times


def test_what_is_slow_runs_once_and_no_longer_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting("elu+1", 8, 1, True)
    monkeypatch.setattr(choice, "LONGEST", 0.0)
    monkeypatch.setattr(choice, "CHEAP", 0.0)
    entry = choice.measure(setting, 16, None, quick=True)
    assert entry.rounds.times == {}
    assert set(entry.times) == {"reference", "blockwise", "linear"}
    longer = choice.measure(setting, 64, entry, quick=True)
    assert set(longer.times) == {"linear"}
    assert set(longer.left_out) == {"reference", "blockwise"}
