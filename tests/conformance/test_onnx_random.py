"""The adapter and onnx's evaluator agree on random nodes."""

from collections import Counter

import pytest

from benchmarks.conformance import attention, linear
from benchmarks.conformance.cases import Case
from benchmarks.conformance.outcomes import compare
from tests.helpers.onnx_nodes import drawn_attention, drawn_linear

DRAWS = 60


def shows_raw_scores_under_a_cap(case: Case) -> bool:
    """onnx 1.23's evaluator returns capped scores there; its definition and the function body return raw ones."""
    options = case.attributes
    return "qk_matmul_output" in case.wanted and options["qk_matmul_output_mode"] == 0 and options["softcap"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("spelt_out", [False, True], ids=["evaluator", "body"])
def test_attention_agrees_with_onnx(spelt_out: bool) -> None:
    for seed in range(DRAWS):
        case = drawn_attention(seed, spelt_out=spelt_out)
        for backend in ("reference", "auto"):
            found = attention.answers(case, backend)
            if shows_raw_scores_under_a_cap(case) and not spelt_out:
                del found["qk_matmul_output"]
            try:
                compare(case, found)
            except AssertionError as error:
                inputs = {name: (array.dtype.name, array.shape) for name, array in case.inputs.items()}
                raise AssertionError(f"{backend}: drawn_attention({seed}), {case.attributes}, {inputs}") from error


def test_linear_attention_agrees_with_the_evaluator() -> None:
    for seed in range(DRAWS // 3):
        case = drawn_linear(seed)
        compare(case, linear.answers(case))


def test_draws_reach_every_option() -> None:
    """Each of them at least four times."""
    cases = [drawn_attention(seed) for seed in range(DRAWS)]
    counts = Counter(name for case in cases for name in (*case.inputs, *case.wanted))
    counts += Counter((name, value) for case in cases for name, value in case.attributes.items())
    counts += Counter(("mask", c.inputs["attn_mask"].dtype.name) for c in cases if "attn_mask" in c.inputs)
    options = ["past_key", "nonpad_kv_seqlen", "attn_mask", "qk_matmul_output", ("mask", "bool"), ("mask", "float64")]
    options += [("is_causal", 1), ("softcap", 1.5), ("left_window_size", 3), ("right_window_size", 0)]
    options += [("qk_matmul_output_mode", mode) for mode in range(4)]
    assert {option: counts[option] for option in options if counts[option] < 4} == {}
    assert Counter(case.opset for case in cases).keys() == {23, 24, 25}
    assert any(map(shows_raw_scores_under_a_cap, cases))
