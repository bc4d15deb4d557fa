"""ONNX's cases of Attention pass with every backend, or are listed here with the reason of the refusal."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.conformance import attention
from benchmarks.conformance.cases import FILES, base_cases
from benchmarks.conformance.outcomes import (
    DIFFERS,
    FAILED,
    PASSED,
    REFUSED,
    near_float64,
    of_attention,
    of_steps,
    outcome,
    summary,
)

CASES = 93
# By backend: the cases that it refuses, with the reason. A listed case that runs fails, too.
REFUSALS = {
    "auto": {},
    "reference": {},
    "blockwise": {},
    "sdpa": {
        case.name: "PyTorch's flash kernel has no softcap"
        for case in base_cases("Attention")
        if case.attributes.get("softcap")
    },
    "native": {"attention_local_window_gqa_rank4_mask": "the kernel computes in float32"},
}
STEPS = {
    "attention_4d_gqa_causal_nonpad_decode",
    "attention_4d_gqa_causal_nonpad_decode_fp16",
    "attention_4d_causal_nonpad_continued_prefill",
    "attention_4d_causal_with_past_and_present",
    "attention_causal_boolmask_nan_robustness",
    "attention_4d_causal_nonpad_attn_mask_composition",
    "attention_4d_causal_nonpad_batch_prefill",
    "attention_local_window_ext_cache_rank3_head_mask",
    "attention_local_window_ext_cache_rank4_batch_mask",
    "attention_local_window_ext_cache_rank2_mask",
    "attention_local_window_ext_cache_float16_mask",
}


def named(name: str):
    (case,) = (case for case in base_cases("Attention") if case.name == name)
    return case


@pytest.mark.slow
def test_the_loader_of_all_operators_has_the_same_cases() -> None:
    for operator, count in {"Attention": CASES, "LinearAttention": 14}.items():
        everywhere = [case.name for case in base_cases(operator, everything=True)]
        assert len(everywhere) == len(set(everywhere)) == count
        assert everywhere == [case.name for case in base_cases(operator)]


def test_cases_cover_every_opset_and_output() -> None:
    cases = base_cases("Attention")
    assert set(FILES) == {"Attention", "LinearAttention"}
    assert Counter(case.opset for case in cases) == {23: 69, 24: 13, 25: 11}
    modes = Counter(c.attributes["qk_matmul_output_mode"] for c in cases if "qk_matmul_output" in c.wanted)
    assert modes == {0: 3, 1: 2, 2: 7, 3: 6}
    assert sum("past_key" in case.inputs for case in cases) == 21
    assert Counter(case.inputs["Q"].dtype.name for case in cases) == {"float32": 82, "float16": 6, "bfloat16": 5}


@pytest.mark.slow
@pytest.mark.parametrize("backend", sorted(REFUSALS))
def test_every_case_passes_or_is_listed(backend: str) -> None:
    outcomes = of_attention(backend)
    assert not {o.name: o.detail for o in outcomes if o.kind == FAILED}
    assert {o.name: o.detail for o in outcomes if o.kind == REFUSED} == REFUSALS[backend]
    # Only half precision may differ, since the expected numbers depend on numpy's float16.
    passed = {o.name for o in outcomes if o.kind == PASSED}
    assert passed >= {c.name for c in base_cases("Attention") if c.inputs["Q"].dtype.itemsize != 2} - set(
        REFUSALS[backend]
    )
    assert len(passed) + len(REFUSALS[backend]) >= CASES - 4


def test_decoding_steps_pass_with_a_cache() -> None:
    outcomes = of_steps()
    assert {o.name: o.detail for o in outcomes if o.kind != PASSED} == {}
    assert {o.name for o in outcomes} == STEPS


def test_the_summary_counts_every_case() -> None:
    for counts, count in zip(summary().values(), (CASES, 14), strict=True):
        assert counts["of"] == count
        assert counts["passed"] + sum(len(counts[kind]) for kind in (REFUSED, DIFFERS, FAILED)) == count


@pytest.mark.parametrize("output", ["Y", "present_key", "qk_matmul_output"])
def test_a_wrong_number_fails(output: str) -> None:
    case = named("attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal")
    wrong = {name: array.copy() for name, array in case.wanted.items()}
    wrong[output][1, 2, 3, 0] *= 1.002
    assert outcome(case, attention.answers).kind == PASSED
    assert outcome(replace(case, wanted=wrong), attention.answers).kind == FAILED


def test_a_wrong_dtype_or_shape_fails() -> None:
    case = named("attention_3d_gqa")
    wide = {"Y": case.wanted["Y"].astype(np.float64)}
    flat = {"Y": case.wanted["Y"].reshape(2, -1)}
    for wanted in (wide, flat):
        assert outcome(replace(case, wanted=wanted), attention.answers).kind == FAILED


def test_half_precision_differs_only_near_the_float64_answer() -> None:
    for case in (named("attention_4d_fp16"), named("attention_3d_causal_bf16")):
        right = attention.answers(case, "reference")
        assert "ulp from float64" in (near_float64(case, right, "reference") or "")
        off = right["Y"].astype(np.float32) * 1.03
        assert near_float64(case, {"Y": off.astype(right["Y"].dtype)}, "reference") is None
    single = named("attention_4d")
    assert near_float64(single, attention.answers(single)) is None
