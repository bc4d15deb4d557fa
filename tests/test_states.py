"""`state=` in `attention`: what is refused and why, and the answers at the edges."""

import math
from itertools import pairwise

import pytest
import torch

import qkv
from qkv.errors import BackendRefused, DtypeError, MaskError, OptionError, OptionTypeError, ShapeError
from tests.helpers.state_cases import KINDS, case, relative

PLAIN = qkv.FeatureMap(qkv.features.identity, normalize=False)
Q, K, V = torch.randn(2, 6, 11, 5), torch.randn(2, 3, 11, 5) / 5, torch.randn(2, 3, 11, 7)
GATE = -torch.rand(2, 3, 11)
BOTH = pytest.mark.parametrize("backend", ["reference", "linear"])


def attend(state, mask=None, similarity=PLAIN, query=Q, key=K, value=V, **options):
    return qkv.attention(query, key, value, similarity=similarity, mask=mask, state=state, **options)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"similarity": None}, OptionError, r"similarity: got Softmax\(\) with state=, wanted a FeatureMap or a Poly"),
        ({"state": qkv.Delta(GATE), "similarity": qkv.Polynomial(2)}, OptionError, "with a delta rule|normalize=False"),
        ({"state": qkv.Gated}, OptionTypeError, r"state: got the class Gated, .* Hint: write qkv.Gated\(...\)"),
        ({"state": "gated"}, OptionTypeError, "state: got 'gated', wanted None, or a qkv.Decay"),
        ({"state": qkv.Gated(GATE[:1])}, ShapeError, r"log_gate: got shape \(1, 3, 11\), wanted \(2, 3, 11\): batch"),
        ({"state": qkv.KDA(GATE, GATE)}, ShapeError, r"log_gate: got shape .* wanted \(2, 3, 11, 5\)"),
        ({"state": qkv.Delta(GATE[:, 0])}, ShapeError, r"beta: got shape \(2, 11\), wanted \(2, 3, 11\)"),
        ({"state": qkv.Gated(GATE > 0)}, DtypeError, "log_gate: got dtype torch.bool"),
        ({"state": qkv.Gated(-GATE)}, OptionError, r"log_gate: got 0\.9.*, wanted 0 or less.*gate.log\(\)"),
        ({"state": qkv.Decay(-torch.ones(3))}, OptionError, "rate: got -1, wanted 0 or more"),
        ({"state": qkv.Decay(torch.ones(6))}, ShapeError, r"rate: got shape \(6,\), wanted \(3,\): one for each key"),
        ({"mask": qkv.Window(2)}, MaskError, r"mask: got Window\(left=2.*wanted None, Causal\(\), Padding or Segments"),
        ({"mask": qkv.Causal(1)}, MaskError, r"mask: got Causal\(offset=1\)"),
        ({"mask": qkv.Segments([0] * 5 + [1] * 5 + [0])}, MaskError, "each id in one run of tokens"),
        ({"mask": qkv.Segments([0] * 11, [1] * 11)}, MaskError, "the same ids for queries and keys"),
        ({"query": Q[:, :, :4]}, ShapeError, "query: got len_q=4 and len_k=11, wanted one query for each key"),
        ({"initial_state": torch.zeros(2, 3, 7, 5)}, ShapeError, r"initial_state: got .* wanted \(2, 3, 5, 7\)"),
        ({"return_weights": True}, BackendRefused, "return_weights: got True with state=, wanted False"),
        ({"dropout": 0.5}, BackendRefused, "dropout: got 0.5 with state=, wanted 0.0"),
        ({"return_state": 1}, OptionTypeError, "return_state: got 1, wanted True or False"),
        ({"backend": "blockwise"}, BackendRefused, "has no state="),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        attend(**{"state": qkv.Gated(GATE)} | given)


@pytest.mark.parametrize("rate", [-1.0, math.nan, True, "1"])
def test_a_rate_is_a_number_of_at_least_0(rate: object) -> None:
    with pytest.raises(OptionError, match="rate: got"):
        qkv.Decay(rate)  # pyright: ignore[reportArgumentType]


@BOTH
def test_without_gates_it_is_the_sum_of_linear_attention(backend: str) -> None:
    for similarity in (PLAIN, qkv.FeatureMap(qkv.features.elu1)):
        wanted = attend(None, qkv.Causal(), similarity, backend="reference")
        assert relative(attend(qkv.Decay(0.0), None, similarity, backend=backend), wanted) < 1e-5
        out, state = attend(None, None, similarity, backend=backend, return_state=True)
        assert relative(out, wanted) < 1e-5
        assert state.shape == (2, 3, 5, 7 + similarity.normalize)


@BOTH
@pytest.mark.parametrize("state", [qkv.Decay(math.inf), qkv.Gated(torch.full((2, 3, 11), -math.inf))])
def test_a_gate_of_0_leaves_the_token_alone(state: qkv.states.AnyState, backend: str) -> None:
    value = V.clone()
    value[:, :, 4] = math.nan  # forgotten by the next token
    out = attend(state, value=value, backend=backend)
    alone = (Q * K.repeat_interleave(2, 1)).sum(-1, keepdim=True) * value.repeat_interleave(2, 1)
    assert out[:, :, 4].isnan().all()
    assert relative(out.nan_to_num(0.0), alone.nan_to_num(0.0)) < 1e-5


@BOTH
def test_beta_of_0_changes_nothing_and_1_stores_the_value(backend: str) -> None:
    key = torch.nn.functional.normalize(K, dim=-1)
    given = {"query": key, "key": key, "backend": backend}
    assert not bool(attend(qkv.Delta(torch.zeros(2, 3, 11)), **given).any())
    assert relative(attend(qkv.Delta(torch.ones(2, 3, 11)), **given), V) < 1e-5
    # With 2 the state is reflected: asked for the key again, it answers 2 v − what it answered before.
    twice = torch.cat([key[:, :, :1]] * 2, dim=2)
    beta = torch.tensor([1.0, 2.0]).expand(2, 3, 2)
    out = attend(qkv.Delta(beta), query=twice, key=twice, value=V[:, :, :2], backend=backend)
    assert relative(out[:, :, 1], 2 * V[:, :, 1] - V[:, :, 0]) < 1e-5


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1])
def test_no_token_and_one(kind: str, n: int, backend: str) -> None:
    call = case(kind, n, "float64")
    start = torch.randn(3, 2, 5, 7 + call.built_similarity.normalize, dtype=torch.float64)
    options = {"similarity": call.built_similarity, "state": call.built_state, "backend": backend}
    out, state = qkv.attention(*call.tensors, initial_state=start, return_state=True, **options)
    assert out.shape == (3, 6, n, 7)
    assert state.shape == start.shape
    assert n or torch.equal(state, start)
    assert relative(qkv.attention(*call.tensors, **options), call.gold.out) < 1e-13 if n else True


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_move_the_state_on_either_side(kind: str, backend: str) -> None:
    """NaN in the padding of tokens and gates; the padded sequence ends in the state of the sequence alone."""
    call = case(kind, 17, "float64")
    options = {"similarity": call.built_similarity, "backend": backend, "return_state": True}
    wanted, last = qkv.attention(*call.tensors, state=call.built_state, **options)
    for before, after in ((4, 0), (0, 4), (2, 3)):
        pad = (before, after)
        tensors = (torch.nn.functional.pad(t, (0, 0, *pad), value=math.nan) for t in call.tensors)
        gates = {n: getattr(call.built_state, n) for n in ("log_gate", "beta") if hasattr(call.built_state, n)}
        wide = {
            n: torch.nn.functional.pad(t, (0, 0, *pad) if t.dim() == 4 else pad, value=math.nan)
            for n, t in gates.items()
        }
        state = type(call.built_state)(**wide) if wide else call.built_state
        keep = torch.nn.functional.pad(torch.ones(3, 17, dtype=torch.bool), pad)
        out, end = qkv.attention(*tensors, mask=qkv.Padding(keep=keep), state=state, **options)
        assert relative(out[:, :, before : before + 17], wanted) < 1e-13
        assert relative(end, last) < 1e-13
        assert not bool(out[:, :, :before].ne(0).any())  # nothing to attend to


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_are_alone(kind: str) -> None:
    call, edges = case(kind, 23, "float64", batch=1), [0, 9, 9, 10, 23]
    gates = {n: getattr(call.built_state, n) for n in ("log_gate", "beta") if hasattr(call.built_state, n)}
    packed = (
        type(call.built_state)(**{n: t[0].transpose(0, 1) for n, t in gates.items()}) if gates else call.built_state
    )
    tensors = (t[0].transpose(0, 1) for t in call.tensors)
    options = {"similarity": call.built_similarity}
    out = qkv.varlen(*tensors, torch.tensor(edges), state=packed, **options)
    for i, j in pairwise(edges):
        state = type(call.built_state)(**{n: t[:, :, i:j] for n, t in gates.items()}) if gates else call.built_state
        alone = qkv.attention(*(t[:, :, i:j] for t in call.tensors), state=state, backend="reference", **options)
        assert out[i:j].numel() == 0 or relative(out[i:j].transpose(0, 1)[None], alone) < 1e-13
    with pytest.raises(MaskError, match="the same, or None, with state="):
        x = torch.zeros(3, 1, 1)
        qkv.varlen(x, x, x, torch.tensor([0, 3]), torch.tensor([0, 2, 3]), similarity=PLAIN, state=qkv.Decay(1.0))


def test_three_and_two_dimensions() -> None:
    wanted, last = attend(qkv.KDA(-torch.rand(2, 3, 11, 5), GATE.abs()), return_state=True)
    assert wanted.shape == (2, 6, 11, 7)
    gate, beta, one = -torch.rand(2, 11, 5), torch.rand(2, 11), [t[:, 0] for t in (Q, K, V)]
    wanted, last = qkv.attention(*one, similarity=PLAIN, state=qkv.KDA(gate, beta), return_state=True)
    again = [t[1] for t in one]
    out, end = qkv.attention(*again, similarity=PLAIN, state=qkv.KDA(gate[1], beta[1]), return_state=True)
    assert relative(out, wanted[1]) < 1e-5
    assert relative(end, last[1]) < 1e-5
    assert end.shape == (5, 7)


def test_a_polynomial_has_a_state_too() -> None:
    gate = qkv.Gated(GATE.double())
    given = {"similarity": qkv.Polynomial(2), "query": Q.double(), "key": K.double(), "value": V.double()}
    one, other = (attend(gate, backend=backend, **given) for backend in ("reference", "linear"))
    assert relative(one, other) < 1e-11
