"""The oracle, on examples that were computed by hand or in closed form."""

import math

import pytest
import torch

from qkv import Argmax, Causal, FeatureMap, Padding, Polynomial, Similarity, Softmax, Window, features
from qkv.testing import oracle

NAN, INF = math.nan, math.inf


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)[:, None]


# One query (1,) and keys of width 1: the keys are the scores.
ONE = column(1.0)
UNSCALED = Softmax(scale=1.0)


def test_worked_example_unscaled() -> None:
    value = torch.tensor([[16.0, 27.0], [-8.0, 0.0], [8.0, -18.0]])
    found = oracle(ONE, column(2.0, 8.0, -20.0), value, similarity=UNSCALED)
    below = math.exp(2) + math.exp(8) + math.exp(-20)
    weights = [math.exp(2) / below, math.exp(8) / below, math.exp(-20) / below]
    assert found.weights[0].tolist() == pytest.approx(weights, rel=1e-15)
    assert found.out[0].tolist() == pytest.approx([-7.941, 0.067], abs=5e-4)
    assert found.lse is not None
    assert found.lse.tolist() == pytest.approx([math.log(below)], rel=1e-15)


def test_default_scale_is_one_over_the_root_of_the_width() -> None:
    query, key = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    weights = oracle(query, key, torch.eye(2)).weights[0]
    odds = math.exp(1 / math.sqrt(3))
    assert weights.tolist() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)], rel=1e-15)


def test_argmax_example() -> None:
    query = torch.tensor([[1.0, 1.0, 2.0]])
    key = torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0], [5.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    value = torch.tensor([[2.0, 0.0, 1.0], [1.0, 4.0, 3.0], [0.0, -1.0, 4.0], [1.0, 0.0, -1.0]])
    found = oracle(query, key, value, similarity=Argmax())
    assert found.out.tolist() == [[1.0, 4.0, 3.0]]
    assert found.weights.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert found.lse is None


def test_argmax_ties_nan_and_nothing() -> None:
    value = column(10.0, 20.0, 30.0)
    assert oracle(ONE, column(1.0, 3.0, 3.0), value, similarity=Argmax()).out.item() == 20.0
    assert oracle(ONE, column(1.0, NAN, 3.0), value, similarity=Argmax()).out.isnan().all()
    hidden = torch.tensor([[True, False, True]])
    assert oracle(ONE, column(1.0, NAN, 3.0), value, similarity=Argmax(), mask=hidden).out.item() == 30.0
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert oracle(ONE, column(1.0, 2.0, 3.0), value, similarity=Argmax(), mask=nothing).out.item() == 0.0


def test_argmax_sends_gradients_to_values_only() -> None:
    query, key, value = (torch.randn(4, 3, requires_grad=True) for _ in range(3))
    oracle(query, key, value, similarity=Argmax()).out.sum().backward()
    assert value.grad is not None
    assert value.grad.sum() == 12.0
    assert query.grad is None
    assert key.grad is None


def test_scale_then_softcap_then_bias_then_mask() -> None:
    bias = torch.tensor([[0.5, -1.0, 7.0]])
    mask = torch.tensor([[True, True, False]])
    similarity = Softmax(scale=0.5, softcap=2.0)
    found = oracle(ONE, column(3.0, 5.0, 1.0), torch.eye(3), similarity=similarity, mask=mask, bias=bias)
    logits = [2 * math.tanh(1.5 / 2) + 0.5, 2 * math.tanh(2.5 / 2) - 1.0]
    below = sum(map(math.exp, logits))
    assert found.out[0].tolist() == pytest.approx([math.exp(x) / below for x in logits] + [0.0], rel=1e-14)
    assert found.attended.tolist() == [[True, True, False]]


def test_the_sink_is_added_to_the_denominator() -> None:
    found = oracle(ONE, column(0.0, 0.0), column(6.0, 6.0), similarity=Softmax(scale=1.0, sink=0.0))
    assert found.out.item() == pytest.approx(4.0)
    assert found.weights.sum().item() == pytest.approx(2 / 3)
    assert found.lse is not None
    assert found.lse.item() == pytest.approx(math.log(3))


def test_sink_of_each_head_and_an_empty_row_without_it() -> None:
    query = torch.zeros(1, 2, 1, 1)
    sink = torch.tensor([0.0, math.log(3.0)])
    found = oracle(query, query, query + 8, similarity=Softmax(sink=sink))
    assert found.out.flatten().tolist() == pytest.approx([4.0, 2.0])
    empty = oracle(query, query, query, similarity=Softmax(sink=sink), mask=torch.zeros(1, 1, dtype=torch.bool))
    assert empty.lse is not None
    assert empty.lse.flatten().tolist() == [-INF, -INF]
    assert empty.out.flatten().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("how", ["mask", "bias", "scores"])
def test_rows_with_nothing_to_attend(how: str) -> None:
    key = column(-INF, -INF) if how == "scores" else column(1.0, 2.0)
    bias = torch.full((1, 2), -INF) if how == "bias" else None
    mask = torch.zeros(1, 2, dtype=torch.bool) if how == "mask" else None
    found = oracle(ONE, key, column(NAN, 5.0), similarity=UNSCALED, mask=mask, bias=bias)
    assert found.out.tolist() == [[0.0]]
    assert found.weights.tolist() == [[0.0, 0.0]]
    assert found.lse is not None
    assert found.lse.tolist() == [-INF]
    assert found.attended.any().item() is (how == "scores")


def test_no_keys_and_no_queries() -> None:
    found = oracle(torch.zeros(2, 3, 4), torch.zeros(2, 0, 4), torch.zeros(2, 0, 5))
    assert found.out.shape == (2, 3, 5)
    assert not found.out.any()
    found = oracle(torch.zeros(2, 0, 4), torch.zeros(2, 3, 4), torch.zeros(2, 3, 5))
    assert found.out.shape == (2, 0, 5)
    assert found.weights.shape == (2, 0, 3)


def test_nonfinite_logits() -> None:
    value = column(1.0, 2.0)
    up = oracle(ONE, column(INF, 0.0), value, similarity=UNSCALED)
    assert up.out.isnan().all()
    assert up.lse is not None
    assert up.lse.isnan().all()
    down = oracle(ONE, column(-INF, 0.0), value, similarity=UNSCALED)
    assert down.out.item() == 2.0
    assert down.weights.tolist() == [[0.0, 1.0]]
    assert oracle(ONE, column(NAN, 0.0), value, similarity=UNSCALED).out.isnan().all()
    capped = oracle(ONE, column(INF, 0.0), value, similarity=Softmax(scale=1.0, softcap=1.0))
    assert capped.out.isfinite().all()


def test_nonfinite_values() -> None:
    far = column(0.0, -2000.0)  # the second weight underflows, but is positive
    assert oracle(ONE, far, column(1.0, INF), similarity=UNSCALED).out.item() == INF
    assert oracle(ONE, far, column(1.0, -INF), similarity=UNSCALED).out.item() == -INF
    assert oracle(ONE, far, column(1.0, NAN), similarity=UNSCALED).out.isnan().all()
    assert oracle(ONE, far, column(INF, -INF), similarity=UNSCALED).out.isnan().all()
    assert oracle(ONE, column(0.0, -INF), column(1.0, INF), similarity=UNSCALED).out.item() == 1.0
    hidden = torch.tensor([[True, False]])
    assert oracle(ONE, column(0.0, NAN), column(1.0, INF), similarity=UNSCALED, mask=hidden).out.item() == 1.0


def test_a_value_is_nan_in_its_own_column_only() -> None:
    found = oracle(ONE, column(0.0, 0.0), torch.tensor([[1.0, NAN], [3.0, 1.0]]), similarity=UNSCALED)
    assert found.out[0, 0].item() == 2.0
    assert found.out[0, 1].isnan()


def test_logits_far_below_zero_are_ordinary() -> None:
    assert oracle(ONE, column(-1e5, -1e5), column(1.0, 3.0), similarity=UNSCALED).out.item() == 2.0


def test_ratios() -> None:
    key, value = column(1.0, 3.0), column(10.0, 20.0)
    assert oracle(ONE, key, value, similarity=Polynomial(2, 1.0)).out.item() == pytest.approx((40 + 320) / 20)
    relu = FeatureMap(features.relu)
    assert oracle(ONE, key, value, similarity=relu).out.item() == pytest.approx(70 / 4)
    raw = oracle(ONE, key, value, similarity=FeatureMap(features.relu, normalize=False))
    assert raw.out.item() == 70.0
    assert raw.weights.tolist() == [[1.0, 3.0]]
    assert oracle(-ONE, key, value, similarity=relu).out.item() == 0.0

    def difference(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return (query - keys.transpose(-1, -2)).abs()

    assert oracle(ONE, key, value, similarity=Similarity(difference)).out.item() == 20.0


def test_a_sum_that_cancels_exactly_gives_a_zero_row() -> None:
    found = oracle(ONE, column(2.0, -2.0), column(10.0, 20.0), similarity=Polynomial(1, 0.0))
    assert found.out.item() == 0.0
    assert found.weights.tolist() == [[0.0, 0.0]]


def test_a_function_may_have_parameters_per_head() -> None:
    factors = torch.tensor([1.0, 100.0], dtype=torch.float64)[:, None, None]

    def steep(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        assert query.shape[1] == key.shape[1] == 2
        return torch.exp(factors * (query @ key.transpose(-1, -2)))

    key = torch.tensor([0.0, 1.0]).reshape(1, 1, 2, 1)
    found = oracle(torch.ones(1, 2, 1, 1), key, key, similarity=Similarity(steep)).out.flatten()
    assert found.tolist() == pytest.approx([math.e / (1 + math.e), 1.0])


def test_query_heads_read_in_groups() -> None:
    value = torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1)
    found = oracle(torch.zeros(1, 6, 1, 1), torch.zeros(1, 2, 1, 1), value)
    assert found.out.flatten().tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def test_dimensions_agree() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 1, 5, 3), torch.randn(2, 1, 7, 3), torch.randn(2, 1, 7, 4)
    bias = torch.randn(2, 5, 7)
    four = oracle(query, key, value, mask=Causal(offset=2), bias=bias[:, None])
    three = oracle(query[:, 0], key[:, 0], value[:, 0], mask=Causal(offset=2), bias=bias)
    two = oracle(query[1, 0], key[1, 0], value[1, 0], mask=Causal(offset=2), bias=bias[1])
    assert torch.equal(four.out[:, 0], three.out)
    assert torch.equal(three.out[1], two.out)
    assert three.lse is not None
    assert two.lse is not None
    assert torch.equal(three.lse[1], two.lse)
    assert torch.equal(three.weights[1], two.weights)


def test_masks_are_evaluated_pair_by_pair() -> None:
    x = torch.randn(2, 4, 3)
    mask = (Causal() & Padding(lengths=[4, 2])) | Window(0, 0)
    attended = oracle(x, x, x, mask=mask).attended
    for b in range(2):
        for i in range(4):
            for j in range(4):
                assert attended[b, i, j].item() is ((j <= i and j < (4, 2)[b]) or i == j)


def test_masked_numbers_cannot_matter() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 2)
    clean = oracle(query, key, value, mask=Causal()).out
    key[3:], value[3:] = NAN, INF
    assert torch.equal(oracle(query, key, value, mask=Causal()).out[:3], clean[:3])


def test_inputs_are_converted_to_float64_and_gradients_flow() -> None:
    query, key, value = (torch.randn(2, 3, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = oracle(query, key, value).out
    assert out.dtype is torch.float64
    out.sum().backward()
    assert all(tensor.grad is not None for tensor in (query, key, value))


def test_gradients_are_right() -> None:
    torch.manual_seed(2)
    tensors = [torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    sink = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    def run(q, k, v, b, s):  # type: ignore[no-untyped-def]
        found = oracle(q, k, v, similarity=Softmax(softcap=3.0, sink=s), bias=b, mask=Causal())
        return found.out, found.lse

    assert torch.autograd.gradcheck(run, (*tensors, bias, sink))


def test_bias_belongs_to_softmax() -> None:
    with pytest.raises(ValueError, match="bias"):
        oracle(ONE, ONE, ONE, similarity=Argmax(), bias=torch.zeros(1, 1))


def test_other_similarities_are_refused() -> None:
    with pytest.raises(TypeError, match="similarity"):
        oracle(ONE, ONE, ONE, similarity="cosine")
