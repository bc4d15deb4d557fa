"""How errors are measured, and what is allowed."""

import math

import pytest
import torch

from qkv import Argmax, FeatureMap, Polynomial, Softmax, features
from qkv.testing import (
    Budget,
    CallCase,
    Spec,
    assert_argmax,
    assert_close_to_oracle,
    error_bounds,
    error_in_ulp,
    oracle,
    ulp,
)
from qkv.testing.call_case import to_caller_dims
from qkv.testing.contract.grid import HEADS, MASKS, SIMILARITIES
from qkv.testing.tolerance import largest_attended, naive_attention

BOUND = {torch.float64: 8.0, torch.float32: 8.0, torch.bfloat16: 1.0, torch.float16: 1.0}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ulp_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    numbers = torch.tensor([1.0, 1.5, 2.0, 3.9, 1000.0, 0.013, 6e-8, 0.0], dtype=dtype)
    away = torch.nextafter(numbers, torch.tensor(torch.inf, dtype=dtype))
    assert torch.equal(ulp(numbers, dtype), away.double() - numbers.double())


def test_error_in_ulp_of_the_largest_value() -> None:
    gold = torch.tensor([[1.0, 2.0], [0.0, 0.5]], dtype=torch.float64)
    actual = gold + torch.tensor([[0.0, 3 * 2**-22], [2**-20, 0.0]])
    assert error_in_ulp(actual, gold, torch.tensor([2.0, 4.0]), torch.float32).tolist() == [3.0, 2.0]


def test_numbers_that_are_not_finite_must_match() -> None:
    nan, inf = math.nan, math.inf
    gold = torch.tensor([[nan], [inf], [1.0], [nan], [inf]], dtype=torch.float64)
    actual = torch.tensor([[nan], [inf], [nan], [1.0], [-inf]])
    assert error_in_ulp(actual, gold, torch.ones(5), torch.float32).tolist() == [0.0, 0.0, inf, inf, inf]


def test_beyond_the_dtype_infinity_is_right() -> None:
    gold = torch.tensor([[1e6], [1e6], [1.0]], dtype=torch.float64)
    actual = torch.tensor([[math.inf], [65504.0], [math.inf]], dtype=torch.float16)
    assert error_in_ulp(actual, gold, torch.ones(3), torch.float16).tolist() == [0.0, math.inf, math.inf]


def test_largest_attended_value_reads_in_groups() -> None:
    value = torch.tensor([[1.0], [-5.0], [math.inf], [3.0]]).reshape(1, 2, 2, 1)
    attended = torch.tensor([[True, True], [True, False], [True, True], [False, False]]).reshape(1, 4, 1, 2)
    assert largest_attended(value, attended).flatten().tolist() == [5.0, 1.0, 3.0, 0.0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_rounded_oracle_is_close_and_a_wrong_answer_is_not(dtype: str) -> None:
    case = CallCase(batch=2, heads_q=4, heads_kv=2, dtype=dtype, seed=1)
    rounded = case.gold.out.to(case.torch_dtype)
    assert_close_to_oracle(rounded, case.error_bounds, backend="rounded", bound=BOUND)
    off = rounded.clone()
    off[1, 2, 3, 0] += 40 * torch.finfo(case.torch_dtype).eps * float(case.value.abs().max())
    with pytest.raises(AssertionError, match=rf"mine: out in {dtype} .* ulp .* row \(1, 2, 3\), allowed"):
        assert_close_to_oracle(off, case.error_bounds, backend="mine", bound=BOUND)


def test_the_message_shows_both_rows() -> None:
    case = CallCase(seed=1)
    with pytest.raises(AssertionError, match=r"got .*\n.*wanted"):
        assert_close_to_oracle(case.gold.out * 2, case.error_bounds, backend="mine", bound=BOUND)


def test_shapes_must_agree() -> None:
    case = CallCase(seed=1)
    with pytest.raises(AssertionError, match="shape"):
        assert_close_to_oracle(case.gold.out[:, :, 1:], case.error_bounds, backend="mine", bound=BOUND)


@pytest.mark.parametrize("part", ["lse", "weights"])
def test_other_parts_are_measured_too(part: str) -> None:
    case = CallCase(seed=2, mask=Spec("causal", offset=-1))
    right = getattr(case.gold, part)
    assert_close_to_oracle(right.float(), case.error_bounds, backend="mine", bound=BOUND, part=part)
    with pytest.raises(AssertionError, match=part):
        assert_close_to_oracle(right.float() + 1e-4, case.error_bounds, backend="mine", bound=BOUND, part=part)


def test_half_precision_is_rounded_once() -> None:
    """One bfloat16 rounding passes; rounding the weights as well as the result does not, with a bound of 0."""
    case = CallCase(len_k=64, width_v=16, dtype="bfloat16", seed=3)
    strict, none = {**BOUND, torch.bfloat16: 0.0}, Budget(0.0, 0.0)
    assert_close_to_oracle(case.gold.out.bfloat16(), case.error_bounds, backend="once", bound=strict, budget=none)
    coarse = (case.gold.weights.bfloat16().double() @ case.value.double()).bfloat16()
    coarse = coarse + 0.01 * case.value.abs().max()
    with pytest.raises(AssertionError):
        assert_close_to_oracle(coarse, case.error_bounds, backend="twice", bound=strict, budget=none)


def test_large_scores_may_round_more_and_ordinary_ones_may_not() -> None:
    small, large = CallCase(seed=4), CallCase(seed=4, values="large")
    allowed = [case.error_bounds.parts["out"].allowed(BOUND, Budget()).max() for case in (small, large)]
    assert allowed[0] <= 10
    assert allowed[1] > 50


def test_cancellation_is_allowed_for_and_nothing_else_is() -> None:
    query = torch.ones(1, 1)
    key = torch.tensor([[1.0], [-0.999]])
    value = torch.tensor([[1.0], [2.0]])
    odd, even = Polynomial(1, 0.0), FeatureMap(features.squared)
    bad = error_bounds(query, key, value, oracle(query, key, value, similarity=odd), odd).parts["out"]
    good = error_bounds(query, key, value, oracle(query, key, value, similarity=even), even).parts["out"]
    assert bad.condition.item() > 1000 * bad.magnitude.item()
    assert good.condition.item() <= 2 * good.magnitude.item()
    assert bad.allowed(BOUND, Budget()).item() > 1000
    assert good.allowed(BOUND, Budget()).item() < 20


def test_the_naive_error_widens_the_budget() -> None:
    case = CallCase(seed=5, len_k=67, width=11)
    part = case.error_bounds.parts["out"]
    assert part.naive_error > 0
    assert part.allowed({**BOUND, torch.float32: 0.0}, Budget(1000.0, 0.0)).min() >= 1000 * part.naive_error


def test_poisoned_and_empty_calls_can_be_measured() -> None:
    for changes in ({"values": "poisoned", "mask": Spec("causal", offset=-2)}, {"len_k": 0}, {"len_q": 0}):
        case = CallCase(seed=6, **changes)
        assert_close_to_oracle(case.gold.out.float(), case.error_bounds, backend="gold", bound=BOUND)


class TestArgmax:
    query = torch.tensor([[1.0, 0.0]])
    value = torch.tensor([[1.0], [2.0], [3.0]])

    def gold(self, key: torch.Tensor, mask: torch.Tensor | None = None):  # type: ignore[no-untyped-def]
        return oracle(self.query, key, self.value, similarity=Argmax(), mask=mask)

    def test_the_best_and_its_equal_within_rounding(self) -> None:
        key = torch.tensor([[1.0, 0.0], [1.0 + 2**-23, 0.0], [0.5, 0.0]])
        for right in ([[2.0]], [[1.0]]):
            assert_argmax(torch.tensor(right), self.query, key, self.value, self.gold(key), backend="mine")

    def test_another_key_or_no_key_at_all(self) -> None:
        key = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.5, 0.0]])
        for wrong in ([[3.0]], [[1.9999999]], [[math.nan]]):
            with pytest.raises(AssertionError, match="mine: argmax in float32"):
                assert_argmax(torch.tensor(wrong), self.query, key, self.value, self.gold(key), backend="mine")

    def test_empty_and_nan_rows(self) -> None:
        key = torch.tensor([[1.0, 0.0], [math.nan, 0.0], [0.5, 0.0]])
        nothing = torch.zeros(1, 3, dtype=torch.bool)
        for gold, right, wrong in (
            (self.gold(key), math.nan, 1.0),
            (self.gold(key, nothing), 0.0, 1.0),
        ):
            assert_argmax(torch.tensor([[right]]), self.query, key, self.value, gold, backend="mine")
            with pytest.raises(AssertionError):
                assert_argmax(torch.tensor([[wrong]]), self.query, key, self.value, gold, backend="mine")


def test_softmax_is_the_default() -> None:
    x = torch.randn(3, 2)
    left, right = (error_bounds(x, x, x, oracle(x, x, x), similarity) for similarity in (None, Softmax()))
    assert torch.equal(left.parts["out"].magnitude, right.parts["out"].magnitude)


@pytest.mark.slow
@pytest.mark.parametrize("heads", sorted(HEADS))
@pytest.mark.parametrize("similarity", sorted(SIMILARITIES))
def test_the_naive_computation_is_the_oracle_in_float64(similarity: str, heads: str) -> None:
    batch, heads_q, heads_kv, dims = HEADS[heads]
    gates = "forgetting" in similarity
    for mask in ("causal", "causal late", "causal padding") if gates else ("none", "causal late", "dense"):
        case = CallCase(
            batch=batch,
            heads_q=heads_q,
            heads_kv=heads_kv,
            dims=dims,
            dtype="float64",
            similarity=SIMILARITIES[similarity],
            mask=MASKS[mask](batch, 5, 7),
            bias="holes" if similarity.startswith("softmax") else None,
            seed=3,
        )
        attended = to_caller_dims(case.attended, dims)
        rules = case.by_definition(case.built_similarity, case.built_bias)
        found = naive_attention(*case.tensors, attended, **rules)
        assert torch.allclose(found.out, case.gold.out, atol=1e-11)
        assert torch.allclose(found.weights, case.gold.weights, atol=1e-11)
        if case.gold.lse is not None:
            assert found.lse is not None
            assert torch.allclose(found.lse, case.gold.lse, atol=1e-13)


def test_the_naive_computation_without_keys() -> None:
    attended = torch.ones(2, 0, dtype=torch.bool)
    for similarity in SIMILARITIES.values():
        case = CallCase(len_q=2, len_k=0, dims=2, similarity=similarity)
        out = naive_attention(*case.tensors, attended, case.built_similarity).out
        assert out.shape == (2, 2)
        assert not out.any()
