"""Every check of the contract catches an attention function that breaks its promise; the cases cover every pair.

Every mutant below is qkv's reference backend with one bug. A check catches it when it passes with the
correct function and fails with the mutant on the same case.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.backends import BACKENDS
from qkv.errors import BackendRefused, QkvError
from qkv.masks import Mask
from qkv.testing.call_case import DTYPES
from qkv.testing.contract import BackendCase, Published, Subject, checks, contract_cases, pairwise, run
from qkv.testing.contract.grid import AXES, SIMILARITIES, _possible, build_case

Attend = Callable[..., Any]
CLAIMS = {"reference": Published(BACKENDS["reference"].bound, ("layouts",))}


def correct(query: Tensor, key: Tensor, value: Tensor, *, backend: str = "reference", **options: Any) -> Any:
    return qkv.attention(query, key, value, backend=backend, **options)


def on_out(change: Callable[..., Tensor]) -> Attend:
    """A mutant that changes out: change(out, query, key, value, options)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        answer = correct(query, key, value, **options)
        if isinstance(answer, tuple):
            return change(answer[0], query, key, value, options), *answer[1:]
        return change(answer, query, key, value, options)

    return attend


def on_inputs(change: Callable[..., dict[str, Any]]) -> Attend:
    """A mutant that changes the arguments."""

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        given = {"query": query, "key": key, "value": value, **options}
        given.update(change(**given))
        return correct(given.pop("query"), given.pop("key"), given.pop("value"), **given)

    return attend


def on_extra(which: str, change: Callable[[Tensor], Tensor]) -> Attend:
    """A mutant that changes lse or weights."""

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        answer = correct(query, key, value, **options)
        if not options.get(f"return_{which}"):
            return answer
        place = 1 if which == "lse" else -1
        parts = list(answer)
        parts[place] = change(parts[place])
        return tuple(parts)

    return attend


def mean_of_empty_rows(out: Tensor, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    if not isinstance(options.get("similarity") or qkv.Softmax(), qkv.Softmax):
        return out
    plain = {name: options.get(name) for name in ("similarity", "mask", "bias")}
    _, lse = correct(query, key, value, return_lse=True, **plain)
    heads = query.shape[1] // key.shape[1] if query.dim() == 4 else 1
    mean = value.mean(-2, keepdim=True)
    mean = mean.repeat_interleave(heads, dim=1) if query.dim() == 4 else mean
    # The query is added so that empty rows get a gradient.
    return torch.where((lse == -math.inf)[..., None], mean + query.mean(-1, keepdim=True), out)


def drop_scale(similarity: Any = None, **_: Any) -> dict[str, Any]:
    return {"similarity": qkv.Softmax(scale=1.0)} if similarity is None else {}


def tiled_heads(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> dict[str, Any]:
    if query.dim() < 4 or query.shape[1] == key.shape[1]:
        return {}
    times = query.shape[1] // key.shape[1]
    return {"key": key.repeat(1, times, 1, 1), "value": value.repeat(1, times, 1, 1)}


def later_keys_too(mask: Mask | None = None, **_: Any) -> dict[str, Any]:
    if isinstance(mask, qkv.Causal):
        return {"mask": qkv.Causal(offset=(mask.offset or 0) + 1)}
    return {"mask": None}


def always_at_the_end(query: Tensor, key: Tensor, mask: Any = None, **_: Any) -> dict[str, Any]:
    return {"mask": qkv.Causal(offset=key.shape[-2] - query.shape[-2])} if isinstance(mask, qkv.Causal) else {}


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """Read memory row by row and ignore the strides."""
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.dim())]
    available = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor if tensor.numel() > available else tensor.as_strided(tensor.shape, strides)


class ContiguousBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return as_if_contiguous(grad)


def last_of_equals(
    query: Tensor, key: Tensor, value: Tensor, mask: Any = None, similarity: Any = None, **_: Any
) -> Any:
    if mask is not None or not isinstance(similarity, qkv.Argmax):
        return {}
    return {"key": key.flip(-2), "value": value.flip(-2)}


def narrow_joined(mask: Any = None, query: Any = None, **_: Any) -> dict[str, Any]:
    joined = mask is not None and "Window" in repr(mask)
    return {"mask": mask & qkv.Window(1, 1, offset=0)} if joined else {}


def overwrite(out: Tensor, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    query.detach().mul_(2.0)
    return out


def raise_other_errors(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    try:
        return correct(query, key, value, **options)
    except BackendRefused:
        raise
    except QkvError as error:
        raise RuntimeError("something is wrong") from error


def refuse(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    raise BackendRefused("no")


def any_backend(query: Tensor, key: Tensor, value: Tensor, backend: str = "reference", **options: Any) -> Any:
    return correct(query, key, value, **options)


def without_gradient(*names: str) -> Attend:
    def change(**given: Any) -> dict[str, Any]:
        # The gradient is 0, not missing.
        cut = {name: given[name].detach() + 0 * given[name] for name in names if given.get(name) is not None}
        sink = getattr(given.get("similarity"), "sink", None)
        if "sink" in names and isinstance(sink, Tensor):
            old = given["similarity"]
            cut["similarity"] = qkv.Softmax(old.scale, old.softcap, sink.detach() + 0 * sink)
        return cut

    return on_inputs(change)


def ramp(value: Tensor) -> Tensor:
    return value * (1 + 0.01 * torch.arange(value.shape[-2], dtype=value.dtype))[:, None]


# name → (the broken attention, the checks that have to catch it)
MUTANTS: dict[str, tuple[Attend, tuple[str, ...]]] = {
    "forgets the scale": (on_inputs(drop_scale), ("out_agrees_with_oracle",)),
    "forgets the initial state": (
        on_inputs(lambda **options: {"initial_state": None} if "initial_state" in options else {}),
        ("a_state_continues_where_it_stopped",),
    ),
    "tiles heads": (on_inputs(tiled_heads), ("out_agrees_with_oracle",)),
    "lse in base 2": (
        on_extra("lse", lambda lse: lse / math.log(2)),
        ("lse_agrees_with_oracle", "pieces_merge_by_lse"),
    ),
    "weights of other keys": (on_extra("weights", lambda w: w.flip(-1)), ("weights_agree_with_oracle",)),
    "weights before dropout": (on_extra("weights", lambda w: w * 1.1), ("weights_agree_with_oracle",)),
    "returns the mean in empty rows": (
        on_out(mean_of_empty_rows),
        ("empty_rows_are_zero", "empty_rows_have_zero_gradient"),
    ),
    "zero times everything": (
        on_out(lambda out, q, k, v, o: out + 0 * (k.sum() + v.sum())),
        ("masked_numbers_cannot_matter",),
    ),
    "a little of everything": (
        on_out(lambda out, q, k, v, o: out + 1e-3 * (k.mean() + v.mean())),
        ("masked_numbers_get_no_gradient", "masked_pairs_have_zero_gradient", "unattended_keys_do_not_change_a_bit"),
    ),
    "hides NaN": (on_out(lambda out, q, k, v, o: out.nan_to_num(0.0)), ("attended_nan_propagates",)),
    "spreads NaN": (on_out(lambda out, q, k, v, o: out + 0 * v.sum()), ("attended_nan_propagates",)),
    "sees the next key": (
        on_inputs(later_keys_too),
        ("unattended_keys_do_not_change_a_bit", "masked_pairs_have_zero_gradient"),
    ),
    "ignores offsets": (on_inputs(always_at_the_end), ("chunks_of_queries_are_rows_of_the_whole",)),
    "ignores strides": (
        on_inputs(lambda **given: {name: as_if_contiguous(given[name]) for name in ("query", "key", "value")}),
        ("layouts_give_the_same_bits",),
    ),
    "reads newly allocated memory": (
        on_out(lambda out, q, k, v, o: out * (1 + torch.empty_like(out).isnan())),
        ("repeats_give_the_same_bits", "gradients_repeat"),
    ),
    "noise": (
        on_out(lambda out, q, k, v, o: out * (1 + 1e-3 * torch.rand((), dtype=out.dtype))),
        ("repeats_give_the_same_bits", "gradients_repeat"),
    ),
    "normalises over the batch": (
        on_out(lambda out, q, k, v, o: out * (1 + 1e-2 * q.detach().abs().mean())),
        ("other_batch_rows_do_not_matter", "a_batch_row_alone_gives_the_same"),
    ),
    "counts its threads": (
        on_out(lambda out, q, k, v, o: out * (1 + 0.01 * (torch.get_num_threads() - 1))),
        ("threads_do_not_matter",),
    ),
    "no gradient for queries": (without_gradient("query"), ("gradients_agree_with_oracle", "gradcheck")),
    "no gradient for keys": (without_gradient("key"), ("gradients_agree_with_oracle", "gradcheck")),
    "no gradient for values": (
        without_gradient("value"),
        ("gradients_agree_with_oracle", "masked_pairs_have_zero_gradient"),
    ),
    "no gradient for bias": (without_gradient("bias"), ("gradients_agree_with_oracle",)),
    "no gradient for the sink": (without_gradient("sink"), ("gradients_agree_with_oracle",)),
    "leaves queries out of the graph": (
        on_inputs(lambda **g: {"query": g["query"].detach()}),
        ("gradients_agree_with_oracle",),
    ),
    "a backward pass that ignores strides": (
        on_out(lambda out, q, k, v, o: ContiguousBackward.apply(out)),
        ("gradients_do_not_depend_on_layout",),
    ),
    "answers in float32": (on_out(lambda out, q, k, v, o: out.float()), ("results_have_their_kind",)),
    "works in place": (on_out(overwrite), ("inputs_stay_as_they_are",)),
    "values by position": (on_inputs(lambda **g: {"value": ramp(g["value"])}), ("out_agrees_with_oracle",)),
    "narrow windows": (on_inputs(narrow_joined), ("out_agrees_with_oracle",)),
    "clips the bias": (
        on_inputs(lambda **g: {} if g.get("bias") is None else {"bias": g["bias"].clamp(max=1.0)}),
        ("out_agrees_with_oracle",),
    ),
    "last of equals": (on_inputs(last_of_equals), ("ties_go_to_the_lowest_index",)),
    "an epsilon": (on_out(lambda out, q, k, v, o: out + 1e-6), ("a_zero_sum_gives_a_zero_row",)),
    "refuses without a reason": (refuse, ("refusals_have_reasons",)),
    "takes any backend": (any_backend, ("an_unknown_backend_is_an_error",)),
    "other errors": (raise_other_errors, ("errors_name_the_argument",)),
}
BY_NAME = {one.name: one for one in checks()}
PAIRS = [(mutant, name) for mutant, (_, names) in MUTANTS.items() for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "name"), PAIRS, ids=lambda part: part.replace(" ", "-"))
def test_the_check_catches_the_mutant(mutant: str, name: str) -> None:
    good, bad = Subject(correct, CLAIMS), Subject(MUTANTS[mutant][0], CLAIMS)
    for call in contract_cases():
        if call.attended.numel() > 800 or not BY_NAME[name].applies(call):
            continue
        (found,) = run(bad, [replace(call)], only=[name]).outcomes
        if found.status == "failed" and run(good, [call], only=[name]).outcomes[0].status == "passed":
            return
    pytest.fail(f"{name} did not catch the mutant: {mutant}")


def test_every_check_has_a_mutant() -> None:
    assert {name for _, name in PAIRS} == set(BY_NAME)


def test_checks_state_their_promise() -> None:
    for one in checks():
        assert 1 <= one.promise <= 8
        assert one.summary.endswith(".")
        assert one.wants <= {"lse", "weights", "grad"}


@pytest.mark.slow
def test_refusals_are_counted_with_their_reasons() -> None:
    def without_two_dimensions(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if query.dim() == 2:
            raise BackendRefused("mine needs a batch", ("two dimensions",))
        return correct(query, key, value, **{**options, "backend": "reference"})

    subject = Subject(without_two_dimensions, {"mine": CLAIMS["reference"]})
    cases = [call for call in contract_cases() if call.kind == "softmax" and call.attended.numel() < 300]
    report = run(subject, cases, only=["out_agrees_with_oracle"])
    assert not report.failures
    assert {one.case.call.dims for one in report.refusals} == {2}
    assert all(one.detail == "two dimensions" for one in report.refusals)
    assert len(report.of("passed")) + len(report.refusals) == len(cases)
    assert f"{len(report.refusals):8}" in str(report)
    report.raise_for_failures()


def test_a_failure_shows_the_case_as_code() -> None:
    call = next(call for call in contract_cases() if call.similarity is None)
    report = run(Subject(MUTANTS["forgets the scale"][0], CLAIMS), [call], only=["out_agrees_with_oracle"])
    with pytest.raises(AssertionError, match=r"1 of 1 outcomes failed(.|\n)*CallCase\(.*dtype="):
        report.raise_for_failures()


def test_a_crash_is_a_failure() -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("by a kernel")

    report = run(Subject(crash, CLAIMS), [contract_cases()[0]], only=["out_agrees_with_oracle"])
    assert "by a kernel" in report.failures[0].detail


def test_unknown_checks_are_refused() -> None:
    with pytest.raises(ValueError, match="no_such_check"):
        run(Subject(correct, CLAIMS), [], only=["no_such_check"])


def test_a_check_takes_a_subject_and_a_case() -> None:
    call = contract_cases()[0]
    BY_NAME["out_agrees_with_oracle"](Subject(correct, CLAIMS), BackendCase("reference", call))


def test_every_possible_pair_occurs() -> None:
    rows = pairwise(AXES, _possible)
    assert all(_possible(row) for row in rows)
    for one, two in itertools.combinations(AXES, 2):
        wanted = {(a, b) for a in AXES[one] for b in AXES[two] if _possible({one: a, two: b})}
        assert {(row[one], row[two]) for row in rows} == wanted, (one, two)


@pytest.mark.slow
def test_cases_are_few_and_always_the_same() -> None:
    rows = pairwise(AXES, _possible)
    assert rows == pairwise(AXES, _possible)
    assert len(rows) < 1.25 * len(AXES["similarity"]) * len(AXES["mask"])
    assert [repr(build_case(row, 0)) for row in rows] == [repr(build_case(row, 0)) for row in pairwise(AXES, _possible)]


def test_every_similarity_occurs_with_every_dtype_without_a_mask() -> None:
    basic = {
        (case.similarity, case.dtype)
        for case in contract_cases()
        if (case.mask is None or case.forgets) and case.bias is None  # gates need causality
    }
    assert basic >= set(itertools.product(SIMILARITIES.values(), DTYPES))


@pytest.mark.slow
def test_empty_rows_and_masked_keys_are_common() -> None:
    cases = contract_cases()
    assert sum(bool((~case.attended.any(-1)).any()) for case in cases) > 20
    assert sum(bool((~case.attended).any()) for case in cases) > 80


def test_quick_cases_are_some_of_the_full_ones_and_have_every_value() -> None:
    full, quick = contract_cases(2), contract_cases(1)
    assert len(quick) < len(full) / 8
    assert set(quick) < set(full)
    for field in ("similarity", "dtype", "bias"):
        assert {getattr(call, field) for call in quick} == {getattr(call, field) for call in full}
