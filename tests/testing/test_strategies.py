"""Random calls have a repr that recreates them, and cover every kind."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from qkv.testing import CallCase, Spec
from qkv.testing.strategies import calls

NAMES = {"CallCase": CallCase, "Spec": Spec}
quick = settings(
    max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@quick
@given(calls())
def test_a_call_prints_as_the_code_that_makes_it_again(case: CallCase) -> None:
    again = eval(repr(case), NAMES)
    assert again == case
    for name, tensor in case.kwargs.items():
        if isinstance(tensor, torch.Tensor):
            other = again.kwargs[name]
            assert torch.equal(tensor.nan_to_num(9.0), other.nan_to_num(9.0))
            assert tensor.stride() == other.stride()
    assert torch.equal(again.attended, case.attended)


@pytest.mark.slow
def test_every_kind_is_drawn() -> None:
    seen: dict[str, set[object]] = {}

    @settings(quick, max_examples=400)
    @given(calls())
    def record(case: CallCase) -> None:
        kinds = case.mask.kinds() if case.mask is not None else frozenset({"none"})
        for name, found in (
            ("mask", kinds),
            ("kind", {case.kind}),
            ("dtype", {case.dtype}),
            ("dims", {case.dims}),
            ("bias", {case.bias}),
            ("layout", {case.layout}),
            ("values", {case.values}),
            ("heads", {(case.heads_q > case.heads_kv, case.heads_kv == 1)}),
            ("zero", {name for name in ("batch", "len_q", "len_k") if getattr(case, name) == 0}),
            ("empty rows", {bool((~case.attended.any(-1)).any())}),
        ):
            seen.setdefault(name, set()).update(found)

    record()
    assert seen["mask"] == {
        "none", "and", "or", "causal", "window", "padding", "segments", "dense", "predicate",
    }  # fmt: skip
    assert seen["kind"] == {"softmax", "sigmoid", "argmax", "polynomial", "feature_map", "similarity"}
    assert len(seen["dtype"]) == 4
    assert seen["dims"] == {2, 3, 4}
    assert seen["bias"] == {None, "full", "row", "heads", "holes"}
    assert len(seen["layout"]) == 9
    assert len(seen["values"]) == 4
    assert len(seen["heads"]) == 4
    assert seen["zero"] == {"batch", "len_q", "len_k"}
    assert seen["empty rows"] == {True, False}


def test_arguments_select_what_is_drawn() -> None:
    @quick
    @given(calls(dtypes=["float64"], kinds=["argmax"], values=["integers"]))
    def record(case: CallCase) -> None:
        assert (case.dtype, case.kind, case.values) == ("float64", "argmax", "integers")

    record()
