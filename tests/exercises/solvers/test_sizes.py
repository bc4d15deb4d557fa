"""Solvers on sizes against torch modules, torch's counter of operations, and plain arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.exercises import Asked, Exercise, Given, solve
from qkv.exercises.findings import CannotSolve, Finding
from qkv.exercises.solving import SOLVERS, quantities
from qkv.maths import compare
from tests.helpers.exercise_sizes import also, solved

L, D, H, G, W, F, V, N, B = 3, 35, 5, 1, 7, 11, 13, 17, 2
MODEL = {"layers": L, "width": D, "heads": H, "ff_width": F, "vocabulary": V}


def numel(*modules: nn.Module) -> int:
    return sum(each.numel() for module in modules for each in module.parameters())


@pytest.mark.parametrize("biases", [False, True])
def test_parameters_of_attention(biases: bool) -> None:
    module = nn.MultiheadAttention(D, H, bias=biases)
    assert solved("parameters", "attention", structure={"biases": biases}, width=D, heads=H).value == numel(module)
    grouped = numel(
        nn.Linear(D, D, biases), nn.Linear(D, G * W, biases), nn.Linear(D, G * W, biases), nn.Linear(D, D, biases)
    )
    found = solved("parameters", "attention layer", structure={"biases": biases}, width=D, heads=H, kv_heads=G)
    assert found.value == grouped


@pytest.mark.parametrize("biases", [None, False, True])
@pytest.mark.parametrize("norm", [None, "layer", "rms"])
@pytest.mark.parametrize("tied", [None, False, True])
def test_parameters_of_a_model(biases: bool | None, norm: str | None, tied: bool | None) -> None:
    """What is not said is not counted, and stands in `also`."""
    layer = [nn.Linear(D, D, bool(biases)) for _ in range(4)] + [
        nn.Linear(D, F, bool(biases)),
        nn.Linear(F, D, bool(biases)),
    ]
    vectors = {None: 0, "layer": 2, "rms": 1}[norm] * (2 * L + 1) * D
    structure = {"biases": biases, "norm": norm, "tied": tied, "gated": False}
    found = solved("parameters", structure=structure, **MODEL)
    expected = L * numel(*layer) + vectors + (1 if tied else 2) * V * D
    assert found.value == expected
    if biases is None:
        assert also(found, "biases") == expected + L * (5 * D + F)
    if norm is None:
        assert also(found, "norms") == expected + 2 * (2 * L + 1) * D
    if tied is None:
        assert also(found, "tied") == expected - V * D
    assert also(found, "no embeddings") == L * numel(*layer) + vectors


def test_parameters_by_part_and_experts() -> None:
    moe = {"experts": 8, "active_experts": 2, "gated": True}
    assert solved("parameters", "feed-forward", structure={"gated": True}, **MODEL).value == L * 3 * D * F
    assert solved("parameters", "a layer", structure={"gated": False}, **MODEL).value == 4 * D * D + 2 * D * F
    assert solved("parameters", "embeddings", **MODEL).value == V * D
    whole = L * (4 * D * D + 8 * 3 * D * F) + 2 * V * D
    found = solved("parameters", structure=moe, **MODEL)
    assert found.value == whole
    assert also(found, "router") == whole + L * 8 * D
    assert solved("parameters", "active", structure=moe, **MODEL).value == whole - L * 6 * 3 * D * F
    assert solved("parameters", "experts", structure=moe, **MODEL).value == L * 8 * 3 * D * F
    assert solved("parameters", "linear", in_features=7, out_features=3, structure={"biases": True}).value == numel(
        nn.Linear(7, 3)
    )


def test_parameters_of_a_named_model() -> None:
    assert solved("parameters", model="gpt-2").value == 124_439_808
    fewer = solved("parameters", model="gpt-2", layers=3).value
    assert 124_439_808 - fewer == 9 * numel(
        nn.MultiheadAttention(768, 12), nn.Linear(768, 3072), nn.Linear(3072, 768), nn.LayerNorm(768), nn.LayerNorm(768)
    )


def test_formulas_of_symbols() -> None:
    letters = {"layers": "L", "width": "d", "vocabulary": "V"}
    found = solved("parameters", structure={"gated": False, "tied": False}, **letters)
    assert compare("12 L d^2 + 2 V d", found.text, found.symbols).kind == "equal"
    found = solved("flops", "model", length="n", batch="b", structure={"gated": False, "mask": "causal"}, **letters)
    want = "24 L b n d^2 + 2 L b d n (n + 1) + 2 b n d V"
    assert compare(want, found.text, found.symbols).kind == "equal"
    kept = solved("parameters", "attention", width=("d", D), heads=H, terms=("d",))
    assert compare("4 d^2", kept.text, kept.symbols).kind == "equal"
    assert solved("parameters", "feed-forward", width=("d", D), ff_width="4 d", layers=1).value == 8 * D * D


def test_a_rule_goes_before_the_count() -> None:
    rule = {"layers": ("L", L), "width": ("d", D), "vocabulary": ("V", V)}
    assert solved("parameters", rule="N = 13 L d^2 + V d", **rule).value == 13 * L * D * D + V * D
    assert solved("training_flops", rule="C = 8 N D", parameters=("N", 7), training_tokens=("D", 11)).value == 8 * 77


def pass_of_torch(length: int, keys: int | None = None, layers: int = 1) -> dict[str, int]:
    """Operations that torch counts in each part of a layer."""
    keys = length if keys is None else keys
    x, y = torch.ones(B, length, D), torch.ones(B, keys, D)
    parts = {}
    with FlopCounterMode(display=False) as counter:
        for _ in range(layers):
            query, key = (each.reshape(B, -1, H, W).transpose(1, 2) for each in (x, y))
            scores = query @ key.transpose(2, 3)
    parts["scores"] = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        for _ in range(layers):
            scores @ key
    parts["output"] = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        for _ in range(layers):
            [each @ torch.ones(D, D) for each in (x, y, y, x)]
    parts["projections"] = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        for _ in range(layers):
            x @ torch.ones(D, F) @ torch.ones(F, D)
    parts["feed-forward"] = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        x @ torch.ones(D, V)
    parts["logits"] = counter.get_total_flops()
    return parts


def test_operations_are_those_of_torch() -> None:
    counted = pass_of_torch(N, layers=L)
    sizes = {**MODEL, "length": N, "batch": B}
    plain = {"gated": False}
    for part in ("scores", "projections", "feed-forward"):
        assert solved("flops", part, structure=plain, **sizes).value == counted[part]
    assert solved("flops", "A V", structure=plain, **sizes).value == counted["output"]
    core = counted["scores"] + counted["output"]
    attention = solved("flops", "attention", structure=plain, **sizes)
    assert attention.value == core
    assert also(attention, "projections") == core + counted["projections"]
    assert also(attention, "multiply-add") == core // 2
    assert also(attention, "causal") == core * (N + 1) // (2 * N)
    found = solved("flops", "model", structure=plain, **sizes)
    assert found.value == sum(counted.values())
    for phase, times in (("training", 3), ("backward", 2)):
        assert solved("flops", "model", structure={**plain, "phase": phase}, **sizes).value == times * found.value
    training = {**plain, "phase": "training"}
    assert solved("flops", "forward pass", structure=training, **sizes).value == found.value
    one = solved("flops", "a layer", structure=plain, **sizes).value
    assert one * L == found.value - counted["logits"]
    assert solved("flops", "per token", structure=plain, **sizes).value == Fraction(found.value, N * B)
    mac = solved("flops", "model", structure=plain, conventions={"flops_per_mac": 1}, **sizes)
    assert 2 * mac.value == found.value


def test_cross_attention_and_decoding() -> None:
    cross = pass_of_torch(N, 19)
    sizes = {"width": D, "heads": H, "length": N, "keys_length": 19, "batch": B, "structure": {"source": "cross"}}
    assert solved("flops", "scores", **sizes).value == cross["scores"]
    assert solved("flops", "projections", **sizes).value == cross["projections"]
    step = pass_of_torch(1, N)
    decode = {"width": D, "heads": H, "length": N, "batch": B, "structure": {"phase": "decode", "gated": False}}
    assert solved("flops", "scores", **decode).value == step["scores"]
    found = solved("flops", "layer", ff_width=F, **decode).value
    assert found == step["scores"] + step["output"] + pass_of_torch(1, 1)["projections"] + step["feed-forward"]


def test_operations_from_parameters() -> None:
    assert solved("flops", "token", parameters="7B").value == 14 * 10**9
    assert solved("flops", "token", parameters=70, active_parameters=11).value == 22
    assert solved("flops", "forward", parameters=70, tokens_count=3).value == 420
    assert solved("training_flops", parameters="13B", training_tokens="2T").value == 6 * 13 * 2 * 10**21
    assert solved("flops", "linear", in_features=7, out_features=3, batch=5).value == 210
    tokens = solved("flops", "model", structure={"gated": True, "experts": 8, "active_experts": 2, "tied": True},
                    tokens_count="T", **MODEL)  # fmt: skip
    assert tokens.text == f"{2 * (L * (4 * D * D + 2 * 3 * D * F) + V * D)} T"


def test_multiplications_and_additions_apart() -> None:
    """Each entry of a product of width w takes w multiplications and w - 1 additions."""
    sizes = {"length": N, "width": D, "conventions": {"pairs": "all"}}
    assert solved("multiplications", "scores", **sizes).value == N * N * D
    assert solved("multiplications", "additions in scores", **sizes).value == N * N * (D - 1)
    assert solved("multiplications", "additions in A V", **sizes).value == N * D * (N - 1)
    assert solved("multiplications", "additions", in_features=7, out_features=3, batch=5).value == 5 * 3 * 6


@pytest.mark.parametrize(("variant", "kept"), [("mha", H), ("gqa", G), ("mqa", 1)])
@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2), ("int8", 1), ("int4", Fraction(1, 2))])
def test_cache(variant: str, kept: int, dtype: str, size: Any) -> None:
    sizes = {"layers": L, "width": D, "heads": H, "dtype": dtype} | ({"kv_heads": G} if variant == "gqa" else {})
    token = solved("cache_bytes", "token", structure={"variant": variant}, **sizes)
    assert token.value == 2 * L * kept * W * size
    whole = solved("cache_bytes", structure={"variant": variant}, length=N, batch=B, **sizes)
    assert whole.value == N * B * token.value
    assert (
        solved("cache_bytes", "per layer", structure={"variant": variant}, length=N, batch=B, **sizes).value * L
        == whole.value
    )


def test_cache_of_latent_attention_and_units() -> None:
    latent = {"structure": {"variant": "mla"}, "layers": L, "latent_width": 19, "rope_width": 3, "dtype": "bf16"}
    assert solved("cache_bytes", "token", **latent).value == 2 * L * 22
    found = solved(
        "cache_bytes", layers=32, kv_heads=8, heads=32, head_width=128, length=4096, unit="MiB", dtype="fp16"
    )
    assert (found.text, found.unit, found.value) == ("512 MiB", "MiB", 2**29)
    found = solved("cache_bytes", layers=32, kv_heads=8, heads=32, head_width=128, length=4096, dtype="fp16")
    assert (found.text, found.also[0].text) == ("536.87 MB", "512 MiB")
    ratio = solved("savings", "cache", latent_width=19, rope_width=3, heads=H, head_width=W)
    assert ratio.value == Fraction(2 * H * W, 22)


def test_weights_tensors_and_training() -> None:
    assert solved("weight_bytes", parameters="70B", dtype="int4").value == 35 * 10**9
    assert solved("tensor_bytes", "scores", batch=B, heads=H, length=N, dtype="fp32").value == B * H * N * N * 4
    assert (
        solved("tensor_bytes", "K", batch=B, heads=H, kv_heads=G, width=D, length=N, dtype="fp32").value
        == B * N * W * 4
    )
    assert solved("tensor_bytes", "logits", batch=B, length=N, vocabulary=V, dtype="bf16").value == B * N * V * 2
    assert solved("training_bytes", parameters=1000, dtype="bf16").value == 16_000
    assert solved("training_bytes", parameters=1000, dtype="fp32").value == 16_000
    assert solved("training_bytes", "gradients", parameters=1000, dtype="bf16").value == 2000
    assert solved("training_bytes", "optimizer", parameters=1000, dtype="fp32").value == 8000
    stored = solved("activation_bytes", layers=L, batch=B, length=N, width=D, heads=H)
    assert stored.value == L * B * (34 * N * D + 5 * H * N * N)


def test_moved_bytes_and_intensity() -> None:
    linear = {"in_features": 7, "out_features": 3, "batch": 5, "conventions": {"bytes_per_element": 2}}
    assert solved("moved_bytes", "matmul", **linear).value == 2 * (5 * 7 + 7 * 3 + 5 * 3)
    assert solved("intensity", "matmul", **linear).value == Fraction(2 * 5 * 7 * 3, 2 * (5 * 7 + 7 * 3 + 5 * 3))
    sizes = {"batch": B, "heads": H, "width": D, "length": N, "conventions": {"bytes_per_element": 4}}
    found = solved("moved_bytes", "attention", **sizes)
    assert found.value == 4 * 4 * B * N * D
    assert also(found, "written and read") == 4 * (4 * B * N * D + 4 * B * H * N * N)
    assert solved("intensity", "scores", **sizes).value == Fraction(2 * N * N * D, 4 * (2 * N * D + H * N * N))
    formula = solved(
        "intensity", "matmul", in_features="D", out_features="F", batch="B", conventions={"bytes_per_element": 2}
    )
    assert compare("2 B D F/(2 B D + 2 D F + 2 B F)", formula.text, formula.symbols).kind == "equal"


def test_savings() -> None:
    moe = solved("savings", "FLOPs", experts=250, active_experts=1, in_features=7, out_features=3)
    assert (moe.text, moe.value) == ("99.6%", Fraction(498, 5))
    asked_in_percent = solved("savings", "FLOPs", experts=250, active_experts=1, unit="%")
    assert [each.text for each in (asked_in_percent, *asked_in_percent.also)] == ["99.6%", "250"]
    heads = solved("savings", "cache", heads=32, kv_heads=8)
    assert heads.value == 4
    assert also(heads, "percent") == 75


@pytest.mark.parametrize(
    ("quantity", "of", "givens", "said"),
    [
        ("parameters", "attention", {"width": 10, "heads": 4}, "divide"),
        ("parameters", "attention", {"width": 12, "heads": 4, "kv_heads": 3}, "divide"),
        ("parameters", "attention", {"heads": 4}, "width"),
        ("parameters", "the moon", {"width": 4}, "not clear"),
        ("parameters", "", {"width": 12, "vocabulary": 7}, "layers"),
        ("parameters", "attention", {"width": 2.5}, "whole"),
        ("parameters", "", {"model": "no such model"}, "not known"),
        ("flops", "scores", {"width": 4}, "length"),
        ("cache_bytes", "", {"width": 4, "batch": 3}, "length"),
        ("training_flops", "", {"parameters": 3}, "tokens"),
        ("weight_bytes", "", {"parameters": "7 furlongs", "dtype": "int8"}, "furlongs"),
        ("parameters", "attention", {"kv_heads": 8, "head_width": 7, "layers": L}, "number of heads .or the width"),
        ("parameters", "attention", {"kv_heads": 8, "width": D}, "number of heads"),
        ("parameters", "active", {"experts": 8, **MODEL}, "active experts"),
        ("parameters", "embeddings", {"width": D}, "vocabulary"),
        ("flops", "model", {"experts": 8, "length": N, **MODEL}, "active experts"),
        ("flops", "logits", {"width": D, "length": N}, "vocabulary"),
        ("tensor_bytes", "scores", {"kv_heads": 2, "head_width": 7, "length": N}, "heads"),
        ("activation_bytes", "", {"width": D, "length": N}, "heads"),
        ("savings", "cache", {"heads": 32}, "key/value heads"),
        ("weight_bytes", "", {"parameters": "7B", "dtype": "int8", "bytes": "14 GB"}, "7 GB"),
        ("cache_bytes", "token", {"width": 4, "dtype": "int9000"}, "not known"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_refused(quantity: str, of: str, givens: dict[str, Any], said: str) -> None:
    with pytest.raises(CannotSolve, match=said):
        solved(quantity, of, **givens)


@pytest.mark.parametrize("quantity", [name for name, entry in quantities().items()
                                      if entry["module"] in ("sizes", "machines")])  # fmt: skip
@pytest.mark.parametrize("of", ["the moon", "dropout", "an LSTM"])
def test_unknown_objects_are_refused(quantity: str, of: str) -> None:
    givens = {**MODEL, "length": N, "batch": B, "kv_heads": G, "parameters": "7B", "training_tokens": "1T",
              "tokens_count": 5, "seconds": 3, "dtype": "bf16", "rate": "3 TFLOP/s", "bandwidth": "7 GB/s",
              "memory": "80 GB", "chips": 2}  # fmt: skip
    with pytest.raises(CannotSolve, match="not clear"):
        solved(quantity, of, **givens)
    assert quantity in SOLVERS


def test_a_block_without_layers_is_one_block() -> None:
    """Attention, or a layer, is counted once; norms where the text says them."""
    for of in ("attention", "attention block", "the attention layer"):
        found = solved("parameters", of, width=D, heads=H)
        assert found.value == 4 * D * D
        assert not any("layers" in finding.words() for finding in found.assumed)
    plain = {"gated": False, "biases": False}
    block = 4 * D * D + 2 * D * F
    assert solved("parameters", "one block", structure=plain, **MODEL).value == block
    assert solved("parameters", "one block", structure={**plain, "norm": "layer"}, **MODEL).value == block + 4 * D
    assert solved("parameters", "model", structure=plain, **MODEL).value == L * block + 2 * V * D


def test_a_router_is_counted_where_it_is_said() -> None:
    moe = {"experts": 8, "active_experts": 2, "gated": False}
    layer = 4 * D * D + 8 * 2 * D * F
    assert solved("parameters", "layer", structure=moe, **MODEL).value == layer
    assert solved("parameters", "layer with a router", structure=moe, **MODEL).value == layer + 8 * D
    assert solved("parameters", "experts and router", structure=moe, **MODEL).value == L * 8 * (2 * D * F + D)
    assert solved("parameters", "layer", structure=moe, claim="a router", **MODEL).value == layer + 8 * D
    assert solved("parameters", "router", structure=moe, **MODEL).value == L * 8 * D


def test_weights_without_a_format_are_unsettled() -> None:
    with pytest.raises(CannotSolve) as refused:
        solved("weight_bytes", parameters="7B")
    assert refused.value.finding.code == "unsettled"
    assert refused.value.finding.data["figures"] == {"fp32": "28 GB", "bf16": "14 GB", "int8": "7 GB"}
    assert all(text in str(refused.value) for text in ("number format", "28 GB", "14 GB", "7 GB"))
    assert solved("weight_bytes", parameters="7B", dtype="int8", bytes="7.05 GB").value == 7 * 10**9


def test_widths_that_differ_are_mentioned() -> None:
    found = solved("parameters", "attention", width=D, heads=H, head_width=W + 1)
    assert found.value == 4 * D * H * (W + 1)
    assert any("40 wide" in finding.words() for finding in found.assumed)
    assert not any("wide" in each.words() for each in solved("parameters", width=D, heads=H, head_width=W).assumed)


def test_alternatives_read_well_and_name_their_unit_once() -> None:
    found = [solved("parameters", **MODEL), solved("parameters", "layer", **MODEL), solved("cache_bytes", **MODEL),
             solved("flops", "attention", length=N, **MODEL), solved("savings", "cache", heads=8, kv_heads=2),
             solved("moved_bytes", "attention", length=N, **MODEL)]  # fmt: skip
    for other in (each for answer in found for each in answer.also):
        first = other.convention.split()[0]
        assert first not in ("with", "without", "in", "as", "counting"), "it must read well after With"
        words = Finding("alternative", {"convention": other.convention, "value": other.text}).words()
        assert words == f"{other.convention}: {other.text}"
        assert len(set(other.text.split())) == len(other.text.split())


@pytest.mark.parametrize(
    ("of", "ratio"),
    [("cache", Fraction(H, G)), ("the KV cache", Fraction(H, G)), ("parameters", None), ("FLOPs", None)],
)
def test_savings_against_a_changed_record(of: str, ratio: Fraction | None) -> None:
    """The record as it is against the record with other key/value heads."""
    sizes = {**MODEL, "length": N}
    givens = tuple(Given(role=role, value=value) for role, value in sizes.items())  # pyright: ignore
    asked = Asked(quantity="savings", object=of, changes=(Given(role="kv_heads", value=G),))
    found = solve(Exercise(givens=givens, asked=(asked,))).parts[0].answer
    assert found is not None
    if ratio is None:
        name = {"parameters": "parameters", "FLOPs": "flops"}[of]
        before, after = solved(name, **sizes).value, solved(name, kv_heads=G, **sizes).value
        ratio = Fraction(before, after)
    assert found.value == ratio
    bare = Exercise(givens=(Given(role="heads", value=H),), asked=(asked,))
    if "cache" in of.lower():
        assert solve(bare).parts[0].answer.value == ratio  # pyright: ignore[reportOptionalMemberAccess]


def test_windows_and_latent_vectors_in_numbers() -> None:
    """A window is full from its width on; how a latent prefill is computed is not settled."""
    pairs = sum(min(token + 1, 5) for token in range(N))
    sizes = {"layers": L, "width": D, "heads": H, "length": N, "window": 5, "dtype": "bf16"}
    assert solved("flops", "scores", **sizes).value == 2 * pairs * D * L
    assert solved("cache_bytes", **sizes).value == 2 * 2 * L * D * 5
    assert solved("cache_bytes", **{**sizes, "length": 3}).value == 2 * 2 * L * D * 3
    with pytest.raises(CannotSolve, match="expanded"):
        solved("flops", "attention", model="deepseek-v3", length=N)
