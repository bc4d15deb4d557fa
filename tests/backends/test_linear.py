"""`linear`: the equation for every similarity, mask, shape and dtype, its gradients, its edge cases, and dispatch."""

import copy
import re
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import errors, features
from qkv.testing import layouts
from tests.helpers.decode_reference import in_a_process, name_of, numbers, same_bits
from tests.helpers.linear_reference import DTYPES, HEADS, close, draw, learned, quadratic, recurrence, similarities

SIMILARITIES = similarities()
by_similarity = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
by_causal = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
LENGTHS = (1, 2, 3, 63, 64, 65, 127, 129, 257)
KEEP = torch.tensor([[j % 3 != 1 for j in range(67)], [j > 40 for j in range(67)]])


def linear(query: Any, key: Any, value: Any, similarity: Any, mask: Any = None, **options: Any) -> torch.Tensor:
    return qkv.attention(query, key, value, similarity=similarity, mask=mask, backend="linear", **options)


@by_similarity
@pytest.mark.parametrize("offset", [None, 0, -2, 4])
def test_the_two_references_agree(similarity: Any, offset: int | None) -> None:
    tensors, keep = draw(5, 11), KEEP[:, :11] | (torch.arange(11) > 7)
    wanted = quadratic(*tensors, similarity, offset=offset, keep=keep)
    close(recurrence(*tensors, similarity, offset=offset, keep=keep), wanted)


@by_similarity
@pytest.mark.parametrize("padding", ["none", "lengths", "keep", "drop"])
@by_causal
def test_every_similarity_with_every_mask(similarity: Any, padding: str, causal: bool) -> None:
    tensors = draw(67, seed=1)
    mask, keep = {
        "none": (None, None),
        "lengths": (qkv.Padding(lengths=torch.tensor([43, 67])), torch.arange(67) < torch.tensor([[43], [67]])),
        "keep": (qkv.Padding(keep=KEEP), KEEP),
        "drop": (qkv.Padding(drop=~KEEP), KEEP),
    }[padding]
    if causal:
        mask = qkv.Causal() if mask is None else qkv.Causal() & mask
    found = linear(*tensors, similarity, mask)
    assert found.dtype is torch.float32
    close(found, quadratic(*tensors, similarity, offset=0 if causal else None, keep=keep))


@pytest.mark.parametrize("name", ["elu1", "two-sided", "polynomial 2"])
@by_causal
def test_lengths_that_are_no_multiple_of_a_chunk(name: str, causal: bool) -> None:
    for n in LENGTHS:
        tensors = draw(n, batch=1, heads=(2, 1), seed=n)
        wanted = quadratic(*tensors, SIMILARITIES[name], offset=0 if causal else None)
        close(linear(*tensors, SIMILARITIES[name], qkv.Causal() if causal else None), wanted, what=f"length {n}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elu1", "polynomial 3"])
def test_a_thousand_tokens_against_the_recurrence(name: str) -> None:
    tensors = draw(1000, batch=1, heads=(1, 1), seed=8)
    found = linear(*tensors, SIMILARITIES[name], qkv.Causal())
    close(found, quadratic(*tensors, SIMILARITIES[name], offset=0))
    wanted = recurrence(*tensors, SIMILARITIES[name], offset=0)
    torch.testing.assert_close(found.double(), wanted, atol=1e-3 if name != "elu1" else 1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elu1", "elu1 undivided", "two-sided", "polynomial 2", "polynomial 3"])
@pytest.mark.parametrize(("len_q", "len_k"), [(5, 13), (67, 131), (131, 67), (1, 300), (300, 1), (64, 65)])
def test_cross_attention_with_any_offset(name: str, len_q: int, len_k: int) -> None:
    tensors, similarity = draw(len_q, len_k, batch=1, heads=(2, 1), seed=2), SIMILARITIES[name]
    close(linear(*tensors, similarity), quadratic(*tensors, similarity))
    for offset in (0, len_k - len_q, 3, -3, -len_q, len_k, 10**6, -(10**6)):
        wanted = quadratic(*tensors, similarity, offset=offset)
        close(linear(*tensors, similarity, qkv.Causal(offset)), wanted, what=f"offset {offset}")


def test_causal_without_an_offset_is_refused_if_ambiguous() -> None:
    with pytest.raises(errors.MaskError, match="offset"):
        linear(*draw(5, 13), SIMILARITIES["elu1"], qkv.Causal())


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("name", ["elu1", "random", "polynomial 2"])
@by_causal
def test_query_heads_share_key_heads(heads: tuple[int, int], name: str, causal: bool) -> None:
    tensors = draw(71, heads=heads, seed=3)
    wanted = quadratic(*tensors, SIMILARITIES[name], offset=0 if causal else None)
    close(linear(*tensors, SIMILARITIES[name], qkv.Causal() if causal else None), wanted)


@pytest.mark.slow
@by_similarity
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_dtype(similarity: Any, dtype: torch.dtype) -> None:
    tensors = draw(37, 41, heads=(2, 1), dtype=dtype, seed=4, coarse=True)
    for offset, mask in ((None, None), (4, qkv.Causal(4))):
        found = linear(*tensors, similarity, mask)
        assert found.dtype is dtype
        close(found, quadratic(*tensors, similarity, offset=offset))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_sums_of_half_precision_inputs_are_float32(dtype: torch.dtype) -> None:
    """8,192 ones: bfloat16 stops counting at 256, float16 at 2,048."""
    ones = torch.ones(1, 1, 8192, 2, dtype=dtype)
    value = (torch.arange(8192) % 2).to(dtype)[None, None, :, None]
    for mask in (None, qkv.Causal()):
        found = linear(ones, ones, value, SIMILARITIES["elu1"], mask)
        torch.testing.assert_close(found[0, 0, -1], torch.tensor([0.5], dtype=dtype))
        undivided = linear(ones[:, :, :1], ones, value, SIMILARITIES["elu1 undivided"])
        assert undivided.item() == 32768.0


@pytest.mark.parametrize("name", ["elu1", "polynomial 2"])
def test_long_sums_keep_their_digits(name: str) -> None:
    tensors = draw(3, 20011, batch=1, heads=(1, 1), seed=6)
    for offset, mask in ((None, None), (20008, qkv.Causal(20008)), (17000, qkv.Causal(17000))):
        close(linear(*tensors, SIMILARITIES[name], mask), quadratic(*tensors, SIMILARITIES[name], offset=offset))


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("offset", [1.0, 0.0, 0.5, -1.0, -3.0])
@by_causal
def test_polynomials_of_any_degree_and_offset(degree: int, offset: float, causal: bool) -> None:
    tensors, similarity = draw(67, heads=(2, 1), widths=(3, 5), seed=7), qkv.Polynomial(degree, offset)
    wanted = quadratic(*tensors, similarity, offset=0 if causal else None)
    close(linear(*tensors, similarity, qkv.Causal() if causal else None), wanted)


@pytest.mark.parametrize("width", [2, 7, 16])
@by_causal
def test_polynomials_within_the_sum_of_their_weights(width: int, causal: bool) -> None:
    """The error is small against Σ|sim|(|v| + |V'|)/|Σ sim|, without allowing for terms that cancel inside a weight."""
    tensors, similarity = draw(129, heads=(2, 1), widths=(width, 5), seed=9), qkv.Polynomial(2, 1.0)
    offset = 0 if causal else None
    out, _ = quadratic(*tensors, similarity, offset=offset)
    reach = quadratic(*tensors[:2], tensors[2].abs(), similarity, offset=offset)[0] + out.abs()
    late = slice(17, None)
    found = linear(*tensors, similarity, qkv.Causal() if causal else None)
    close(found[:, :, late], (out[:, :, late], reach[:, :, late]), allowed=1e-4)


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("offset", [1.0, 0.0, 0.5])
@by_causal
def test_a_polynomial_and_its_feature_map_agree(degree: int, offset: float, causal: bool) -> None:
    tensors, mask = draw(70, seed=degree), qkv.Causal() if causal else None
    explicit = qkv.FeatureMap(features.polynomial(degree, offset))
    one, other = (linear(*tensors, s, mask) for s in (qkv.Polynomial(degree, offset), explicit))
    _, reach = quadratic(*tensors, explicit, offset=0 if causal else None)
    close(one, (other.double(), reach), allowed=1e-5)


def test_degree_zero_is_the_mean_of_the_values() -> None:
    query, key, value = draw(67, dtype=torch.float64)
    found = linear(query, key, value, qkv.Polynomial(0, -2.0), qkv.Causal())
    mean = value.cumsum(2) / torch.arange(1, 68)[:, None]
    torch.testing.assert_close(found, mean.repeat_interleave(2, dim=1))


@by_causal
def test_two_and_three_dimensions(causal: bool) -> None:
    mask, (query, key, value) = qkv.Causal() if causal else None, draw(67, heads=(1, 1))
    for name in ("elu1", "polynomial 2"):
        whole = linear(query, key, value, SIMILARITIES[name], mask)
        same_bits(linear(query[:, 0], key[:, 0], value[:, 0], SIMILARITIES[name], mask), whole[:, 0], "three")
        same_bits(linear(query[1, 0], key[1, 0], value[1, 0], SIMILARITIES[name], mask), whole[1, 0], "two")


REFUSED = {
    "window": {"mask": qkv.Window(left=3)},
    "causal window": {"mask": qkv.Causal() & qkv.Window(left=3)},
    "dense": {"mask": qkv.Dense(torch.ones(11, 11).tril().bool())},
    "predicate": {"mask": qkv.Predicate(lambda b, h, q, k: q >= k)},
    "segments": {"mask": qkv.Segments(torch.zeros(2, 11).long(), torch.zeros(2, 11).long())},
    "dropout": {"dropout": 0.5},
    "weights": {"return_weights": True},
    "softmax": {"similarity": qkv.Softmax()},
    "argmax": {"similarity": qkv.Argmax()},
    "any function": {"similarity": qkv.Similarity(lambda q, k: (q @ k.transpose(-1, -2)).square())},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("name", ["elu1", "polynomial 2"])
def test_calls_without_a_state_are_refused_with_a_reason(options: dict, name: str) -> None:
    for call in (qkv.attention, qkv.explain):
        with pytest.raises(errors.BackendRefused, match="linear") as refused:
            call(*draw(11), backend="linear", **({"similarity": SIMILARITIES[name]} | options))
        assert refused.value.reasons
        assert all(refused.value.reasons)


def test_the_reason_against_a_window_names_it() -> None:
    with pytest.raises(errors.BackendRefused) as refused:
        linear(*draw(11), SIMILARITIES["elu1"], qkv.Window(left=3))
    assert any("window" in reason.lower() for reason in refused.value.reasons)


@pytest.mark.parametrize("options", [{"bias": torch.zeros(11, 11)}, {"return_lse": True}], ids=["bias", "lse"])
def test_options_of_softmax_are_refused(options: dict) -> None:
    with pytest.raises(errors.QkvError):
        linear(*draw(11), SIMILARITIES["elu1"], **options)


def exact(x: torch.Tensor) -> torch.Tensor:
    """A map with the same bits wherever a vector is in memory, unlike torch's softplus."""
    return torch.cat([x.clamp_min(-0.25) + 0.5, (-x).clamp_min(-0.25) + 0.5, x.square()], dim=-1)


def bitwise(width: int = 7) -> dict[str, Any]:
    made = similarities(width)
    names = "elu1", "elu1 undivided", "relu", "random", "polynomial 2", "polynomial 3", "negative offset"
    return {"own map": qkv.FeatureMap(exact)} | {name: made[name] for name in names}


BITWISE = bitwise()
by_bitwise = pytest.mark.parametrize("name", BITWISE)


@by_bitwise
@by_causal
def test_bits_do_not_depend_on_threads(name: str, causal: bool, threads: Any) -> None:
    mask, tensors = qkv.Causal() if causal else None, draw(517, batch=3, heads=(4, 2), widths=(16, 19), seed=5)
    similarity = bitwise(16)[name]
    threads(1)
    once = linear(*tensors, similarity, mask)
    for count in (2, 3, 7):
        threads(count)
        same_bits(linear(*tensors, similarity, mask), once, f"{count} threads")


@by_bitwise
@by_causal
def test_bits_do_not_depend_on_the_rest_of_the_batch(name: str, causal: bool) -> None:
    mask, tensors = qkv.Causal() if causal else None, draw(131, batch=5, heads=(6, 3), seed=5)
    whole = linear(*tensors, BITWISE[name], mask)
    for b in (0, 3):
        alone = linear(*(tensor[b : b + 1] for tensor in tensors), BITWISE[name], mask)
        same_bits(whole[b : b + 1], alone, f"row {b} alone")
    query, key, value = tensors
    group = linear(query[:, 4:], key[:, 2:], value[:, 2:], BITWISE[name], mask)
    same_bits(whole[:, 4:], group, "a group of heads alone")


@by_bitwise
@by_causal
def test_bits_do_not_depend_on_layout(name: str, causal: bool) -> None:
    mask, tensors = qkv.Causal() if causal else None, draw(67, seed=5)
    whole = linear(*tensors, BITWISE[name], mask)
    for same in zip(*(layouts(tensor) for tensor in tensors), strict=True):
        same_bits(linear(*(tensor for _, tensor in same), BITWISE[name], mask), whole, same[0][0])


def test_inputs_do_not_change() -> None:
    tensors = draw(129)
    before = [tensor.clone() for tensor in tensors]
    for similarity in SIMILARITIES.values():
        linear(*tensors, similarity, qkv.Causal())
    for tensor, was in zip(tensors, before, strict=True):
        same_bits(tensor, was)


PEAK = """
    import torch, qkv
    from pathlib import Path

    def wide(x):
        return torch.cat([torch.nn.functional.softplus(x + t / 50) for t in range(50)], dim=-1)

    def peak(n, grad, **call):
        Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
        sizes = Path("/proc/self/status").read_text()
        tensors = [torch.ones(1, 2, n, 15).requires_grad_(grad) for _ in range(3)]
        out = qkv.attention(*tensors, backend="linear", **call)
        if grad:
            out.sum().backward()
        high = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
        return (int(high) - int(sizes.split("VmRSS:")[1].split()[0])) * 1024

    torch.set_num_threads(1)
    for similarity, count in (
        (qkv.Polynomial(3, 1.0), 816),
        (qkv.FeatureMap(qkv.features.positive_random(15, 750)), 750),
        (qkv.FeatureMap(wide), 750),
    ):
        for mask in (None, qkv.Causal()):
            call = dict(grad={grad}, similarity=similarity, mask=mask)
            peak(300, **call)
            grown = peak(4096, **call) - peak(1024, **call)
            assert grown < 0.4 * 3072 * 2 * count * 4, (similarity, mask, grown / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_features_of_a_whole_sequence_are_never_in_memory(grad: bool) -> None:
    """3,072 more tokens take the memory of inputs, outputs and gradients, far less than that of φ(K)."""
    # malloc returns freed memory at once, so that the peak is what is in use.
    settings = {"MALLOC_MMAP_THRESHOLD_": "200000", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
    in_a_process(PEAK.format(grad=grad), **settings)


FEW = {name: SIMILARITIES[name] for name in ("elu1", "elu1 undivided", "two-sided", "random", "polynomial 2")}
by_few = pytest.mark.parametrize("similarity", FEW.values(), ids=FEW)
BAD = {"nan": nan, "inf": inf, "-inf": -inf, "huge": 1e30}
by_bad = pytest.mark.parametrize("bad", BAD.values(), ids=BAD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, qkv.Causal(1)], ids=["all", "causal"])
def test_a_sum_of_exactly_zero_gives_a_zero_row(dtype: torch.dtype, mask: Any) -> None:
    query = torch.tensor([[1.0, 0.0], [2.0, 1.0]], dtype=dtype)
    key = torch.tensor([[-1.0, 0.0], [-1.0, 3.0]], dtype=dtype)
    value = torch.tensor([[3.0, 5.0, 7.0], [11.0, 13.0, 17.0]], dtype=dtype)
    found = linear(query, key, value, qkv.Polynomial(2, 1.0), mask)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    # (−2 + 1)² = 1 and (−2 + 3 + 1)² = 4.
    torch.testing.assert_close(found[1].double(), (value[0] + 4 * value[1]).double() / 5, rtol=1e-2, atol=0.0)


def test_orthogonal_relu_features_give_a_zero_row() -> None:
    query = torch.tensor([[1.0, -2.0], [-1.0, 2.0], [-1.0, -1.0]])
    key = torch.tensor([[3.0, -1.0], [5.0, -7.0], [-1.0, -1.0]])
    for mask in (None, qkv.Causal()):
        found = linear(query, key, torch.ones(3, 5), qkv.FeatureMap(features.relu), mask)
        assert found.tolist() == [[1.0] * 5, [0.0] * 5, [0.0] * 5]


@by_few
def test_no_epsilon_is_added_to_small_sums(similarity: Any) -> None:
    if not isinstance(similarity, qkv.FeatureMap):
        similarity = qkv.Polynomial(2, 0.0)
    elif similarity.normalize:
        similarity = qkv.FeatureMap(features.squared)
    query, key, value = draw(67, seed=1)
    tensors = query * 1e-8, key * 1e-7, value
    for mask, offset in ((None, None), (qkv.Causal(), 0)):
        close(linear(*tensors, similarity, mask), quadratic(*tensors, similarity, offset=offset))


@by_similarity
def test_fully_masked_queries_get_exactly_zero(similarity: Any) -> None:
    query, key, value = draw(67)
    query[:, :, :5] = nan
    found = linear(query, key, value, similarity, qkv.Causal(-5))
    assert not found[:, :, :5].any()
    assert bool(found[:, :, 5:].isfinite().all())
    found = linear(query, key, value, similarity, qkv.Padding(lengths=torch.tensor([0, 67])))
    assert not found[0].any()
    keep = torch.arange(67).expand(2, 67) >= 41
    query = draw(67)[0]
    found = linear(query, key, value, similarity, qkv.Causal() & qkv.Padding(keep=keep))
    assert not found[:, :, :41].any()
    close(found, quadratic(query, key, value, similarity, offset=0, keep=keep))


@by_similarity
def test_lengths_of_zero_and_one(similarity: Any) -> None:
    assert linear(*draw(0, 5), similarity).shape == (2, 6, 0, 5)
    assert linear(*draw(0), similarity, qkv.Causal()).shape == (2, 6, 0, 5)
    assert linear(*draw(3, batch=0), similarity, qkv.Causal()).shape == (0, 6, 3, 5)
    empty = linear(*draw(3, 0), similarity)
    assert empty.shape == (2, 6, 3, 5)
    assert not empty.any()
    one = draw(1)
    close(linear(*one, similarity, qkv.Causal()), quadratic(*one, similarity))
    close(linear(*draw(3, 1), similarity), quadratic(*draw(3, 1), similarity))


@pytest.mark.slow
@by_similarity
@by_bad
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_padded_keys_and_values_do_not_change_a_bit(similarity: Any, bad: float, causal: bool) -> None:
    query, key, value = draw(131)
    keep = torch.ones(2, 131, dtype=torch.bool)
    keep[0, 70:], keep[1, ::3], keep[1, :2] = False, False, False
    mask = qkv.Padding(keep=keep)
    mask = qkv.Causal() & mask if causal else mask
    clean = linear(query, key, value, similarity, mask)
    for poison in ((key,), (value,), (key, value)):
        dirty = [tensor.clone() if any(tensor is p for p in poison) else tensor for tensor in (key, value)]
        for tensor, was in zip(dirty, (key, value), strict=True):
            if tensor is not was:
                tensor.transpose(1, 2)[~keep] = bad
        same_bits(linear(query, *dirty, similarity, mask), clean)


@pytest.mark.slow
@by_similarity
@by_bad
def test_later_keys_do_not_change_a_bit(similarity: Any, bad: float) -> None:
    query, key, value = draw(131, batch=1, heads=(2, 1))
    clean = linear(query, key, value, similarity, qkv.Causal())
    for first in (1, 5, 63, 64, 65, 100, 128, 130):
        dirty_key, dirty_value = key.clone(), value.clone()
        dirty_key[:, :, first:], dirty_value[:, :, first:] = bad, bad
        found = linear(query, dirty_key, dirty_value, similarity, qkv.Causal())
        same_bits(found[:, :, :first], clean[:, :, :first], f"keys from {first} on")
    for offset, rows in ((-40, 131), (10, 111)):
        dirty_key, dirty_value = key.clone(), value.clone()
        dirty_key[:, :, rows + offset :], dirty_value[:, :, rows + offset :] = bad, bad
        part = linear(query[:, :, :rows], key, value, similarity, qkv.Causal(offset))
        same_bits(linear(query[:, :, :rows], dirty_key, dirty_value, similarity, qkv.Causal(offset)), part)


@pytest.mark.slow
@by_few
@pytest.mark.parametrize("offset", [None, 0, 3], ids=["all", "causal", "causal 3"])
def test_attended_nan_is_never_hidden(similarity: Any, offset: int | None) -> None:
    mask = None if offset is None else qkv.Causal(offset)
    for which in range(3):
        for at in (0, 50, 63, 64, 66):
            tensors = draw(67)
            tensors[which][1, 2, at, 4] = nan
            close(linear(*tensors, similarity, mask), quadratic(*tensors, similarity, offset=offset), what=f"{at}")


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [2, 67])
def test_a_sum_of_zero_hides_no_attended_value(n: int, dtype: torch.dtype, bad: float) -> None:
    """0 · NaN and 0 · ∞ are NaN, in their columns alone; the other numbers are 0, never −0."""
    query, key, value = (tensor.to(dtype) for tensor in draw(n))
    query, key, value[1, 2, 1, 3] = -query.abs(), key.abs() + 0.5, bad
    relu = qkv.FeatureMap(features.relu)
    for mask in (None, qkv.Causal(), qkv.Causal() & qkv.Padding(lengths=[n, n])):
        found = linear(query, key, value, relu, mask)
        exact = qkv.attention(query, key, value, similarity=relu, mask=mask, backend="reference")
        assert torch.equal(found.isnan(), exact.isnan())
        assert found.isnan().any()
        assert not found.nan_to_num(0.0).any()
        assert not found.signbit().masked_fill(found.isnan(), False).any()


@by_few
def test_attended_nan_with_padding(similarity: Any) -> None:
    query, key, value = draw(67)
    keep = torch.ones(2, 67, dtype=torch.bool)
    keep[0, 10:20] = False
    key[0, 1, 15], key[0, 1, 40], value[0, 1, 12], value[1, 2, 50, 1] = nan, nan, inf, nan
    clean = key.clone(), value.clone()
    clean[0][0, 1, 15], clean[1][0, 1, 12] = 0.0, 0.0
    for offset, mask in ((None, qkv.Padding(keep=keep)), (0, qkv.Causal() & qkv.Padding(keep=keep))):
        found = linear(query, key, value, similarity, mask)
        close(found, quadratic(query, *clean, similarity, offset=offset, keep=keep))


@pytest.mark.parametrize("name", ["elu1", "elu1 undivided", "two-sided", "random"])
def test_attended_infinite_values_stay_infinite(name: str) -> None:
    """Positive features: inf in rows that attend to it, NaN where both signs meet, all other rows unchanged."""
    query, key, value = draw(131, batch=1, heads=(2, 1))
    value[0, 0, 70, 1], value[0, 0, 90, 1], value[0, 0, 100, 3] = inf, -inf, -inf
    for offset, mask in ((None, None), (0, qkv.Causal())):
        wanted = quadratic(query, key, value, SIMILARITIES[name], offset=offset)
        close(linear(query, key, value, SIMILARITIES[name], mask), wanted)


def test_degree_zero_does_not_depend_on_keys() -> None:
    query, key, value = draw(67)
    clean = linear(query, key, value, qkv.Polynomial(0), qkv.Causal())
    key[0, 1, 3], key[1, 2, 5] = nan, inf
    same_bits(linear(query, key, value, qkv.Polynomial(0), qkv.Causal()), clean)


def flattened(x: Tensor) -> Tensor:
    return x.flatten()


def one_token_less(x: Tensor) -> Tensor:
    return x[..., 1:, :]


def summed_up(x: Tensor) -> Tensor:
    return x.sum(-1)


def one_axis_more(x: Tensor) -> Tensor:
    return x[..., None]


def widened(x: Tensor) -> Tensor:
    return x.double()


def rounded_to_whole(x: Tensor) -> Tensor:
    return x.round().int()


def made_complex(x: Tensor) -> Tensor:
    return x.to(torch.complex64)


@pytest.mark.parametrize("phi", [flattened, one_token_less, summed_up, one_axis_more], ids=lambda f: f.__name__)
def test_a_map_of_the_wrong_shape_is_named(phi: Any) -> None:
    for mask in (None, qkv.Causal()):
        for grad in (False, True):
            tensors = [tensor.requires_grad_(grad) for tensor in draw(67)]
            with pytest.raises(errors.ShapeError, match=phi.__name__):
                linear(*tensors, qkv.FeatureMap(phi), mask)


@pytest.mark.parametrize("phi", [widened, rounded_to_whole, made_complex], ids=lambda f: f.__name__)
def test_a_map_of_the_wrong_dtype_is_named(phi: Any) -> None:
    for mask in (None, qkv.Causal()):
        for grad in (False, True):
            tensors = [tensor.requires_grad_(grad) for tensor in draw(67)]
            with pytest.raises(errors.DtypeError, match=phi.__name__):
                linear(*tensors, qkv.FeatureMap(phi), mask)


def test_a_map_for_another_width_says_so() -> None:
    with pytest.raises(errors.ShapeError, match="width"):
        linear(*draw(67), qkv.FeatureMap(features.positive_random(8, 11)))


def test_errors_of_the_map_itself_come_through() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ZeroDivisionError("of the map")

    with pytest.raises(ZeroDivisionError, match="of the map"):
        linear(*draw(67), qkv.FeatureMap(broken), qkv.Causal())


@pytest.mark.parametrize("name", ["elu1", "random", "polynomial 2"])
def test_large_numbers_without_overflow(name: str) -> None:
    query, key, value = draw(67)
    tensors = query * (100.0 if name != "random" else 1.0), key * (100.0 if name != "random" else 1.0), value * 1e25
    for offset, mask in ((None, None), (0, qkv.Causal())):
        found = linear(*tensors, SIMILARITIES[name], mask)
        close(found, quadratic(*tensors, SIMILARITIES[name], offset=offset), allowed=1e-5)


@pytest.mark.parametrize("width", [1, 3, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_very_negative_queries_keep_their_ratios(width: int, dtype: torch.dtype) -> None:
    """e^x of all coordinates underflows in float32, but only their ratios matter, with −inf among them too."""
    query, key, value = draw(5, 7, widths=(width, 3), dtype=dtype)
    query = (query - torch.tensor([30.0, 86.0, 95.0, 300.0, 5000.0]).view(5, 1)).to(dtype)
    if width > 1:
        query[..., 0] = -inf
    elu1 = qkv.FeatureMap(features.elu1)
    top = query.double().amax(dim=-1, keepdim=True)
    near = qkv.attention(query.double() - top, key.double(), value.double(), similarity=elu1, backend="reference")
    found = qkv.attention(query, key, value, similarity=elu1, backend="linear")
    torch.testing.assert_close(found, near.to(dtype))
    hidden = torch.full_like(query, -inf)
    assert not qkv.attention(hidden, key, value, similarity=elu1, backend="linear").any()


by_offset = pytest.mark.parametrize("offset", [None, 0], ids=["all", "causal"])
SMOOTH = {
    "elu1": qkv.FeatureMap(features.elu1),
    "not normalized": qkv.FeatureMap(features.elu1, normalize=False),
    "squared": qkv.FeatureMap(features.squared),
    "monomials": qkv.FeatureMap(features.polynomial(2, 0.5)),
    "random": qkv.FeatureMap(features.positive_random(3, 5, seed=1)),
    "learned": qkv.FeatureMap(learned(3, 5).double()),
    "polynomial 0": qkv.Polynomial(0),
    "polynomial 2": qkv.Polynomial(2, 1.0),
    "negative offset": qkv.Polynomial(2, -9.0),
    "polynomial 3": qkv.Polynomial(3, 9.0),
}
MASKS = {
    "all": None,
    "causal": qkv.Causal(2),
    "padded": qkv.Padding(keep=torch.tensor([[True, False, True, True, True, False, True]])),
    "both": qkv.Causal(1) & qkv.Padding(lengths=torch.tensor([6])),
    "empty rows": qkv.Causal(-2),
}


def small(len_q: int = 5, len_k: int = 7, **options: Any) -> list[Tensor]:
    options = {"batch": 1, "heads": (2, 1), "widths": (3, 2), "dtype": torch.float64} | options
    return [tensor.requires_grad_() for tensor in draw(len_q, len_k, **options)]


def gradients(out: Tensor, inputs: Any, seed: int = 70) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, inputs, numbers(tuple(out.shape), seed=seed).to(out.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("similarity", SMOOTH.values(), ids=SMOOTH)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_first_derivatives_match_finite_differences(similarity: Any, mask: Any) -> None:
    fast = mask is not MASKS["both"]
    assert torch.autograd.gradcheck(lambda q, k, v: linear(q, k, v, similarity, mask), small(), fast_mode=fast)


# With degree 0 the output is linear in the values and constant in the rest.
CURVED = {name: s for name, s in SMOOTH.items() if not (isinstance(s, qkv.Polynomial) and s.degree == 0)}


@pytest.mark.slow
@pytest.mark.parametrize("similarity", CURVED.values(), ids=CURVED)
@pytest.mark.parametrize("mask", [MASKS["all"], MASKS["both"]], ids=["all", "both"])
def test_second_derivatives_match_finite_differences(similarity: Any, mask: Any) -> None:
    tensors = small(3, 7, heads=(1, 1), widths=(3, 1))
    assert torch.autograd.gradgradcheck(lambda q, k, v: linear(q, k, v, similarity, mask), tensors, fast_mode=True)


@pytest.mark.slow
@by_similarity
@by_offset
@pytest.mark.parametrize("n", [67, 131])
def test_gradients_of_float32_are_those_of_the_reference(similarity: Any, offset: int | None, n: int) -> None:
    if getattr(similarity, "map", None) is features.identity:
        similarity = qkv.FeatureMap(features.identity, normalize=False)
    tensors = [t.requires_grad_() for t in draw(n, batch=1, heads=(2, 1), seed=n)]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    out, reach = quadratic(*doubles, similarity, offset=offset)
    weights = numbers(tuple(out.shape), seed=70).double()
    if getattr(similarity, "normalize", True):
        # Rows whose sums nearly cancel have arbitrarily large gradients: they get no weight.
        stable = reach.amax(-1, keepdim=True) < 50
        assert stable.double().mean() > 0.4
        weights = weights * stable
    found = linear(*tensors, similarity, None if offset is None else qkv.Causal())
    found = torch.autograd.grad(found, tensors, weights.float())
    wanted = torch.autograd.grad(out, doubles, weights)
    for one, other, name in zip(found, wanted, "qkv", strict=True):
        assert one.dtype is torch.float32
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error < (3e-5 if isinstance(similarity, qkv.FeatureMap) else 3e-4), f"{name}: {error:.2g}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("name", ["elu1", "polynomial 2"])
@by_offset
def test_gradients_of_half_precision_inputs(dtype: torch.dtype, name: str, offset: int | None) -> None:
    tensors = [t.requires_grad_() for t in draw(67, batch=1, heads=(2, 1), widths=(3, 5), dtype=dtype, coarse=True)]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    out, reach = quadratic(*doubles, SIMILARITIES[name], offset=offset)
    weights = (numbers(tuple(out.shape), seed=70) * (reach < 10)).to(dtype)
    found = linear(*tensors, SIMILARITIES[name], None if offset is None else qkv.Causal())
    wanted = torch.autograd.grad(out, doubles, weights.double())
    for one, other in zip(torch.autograd.grad(found, tensors, weights), wanted, strict=True):
        assert one.dtype is dtype
        assert (one.double() - other).abs().max() < 8 * torch.finfo(dtype).eps * other.abs().max()


@by_offset
@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_of_learned_maps(offset: int | None, normalize: bool) -> None:
    module = learned()
    double = copy.deepcopy(module).double()
    tensors = [t.requires_grad_() for t in draw(131, batch=1, heads=(2, 1))]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    mask = None if offset is None else qkv.Causal()
    found = gradients(linear(*tensors, qkv.FeatureMap(module, normalize), mask), (*tensors, *module.parameters()))
    out, _ = quadratic(*doubles, qkv.FeatureMap(double, normalize), offset=offset)
    for one, other in zip(found, gradients(out, (*doubles, *double.parameters())), strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).abs().max() < 3e-5 * other.abs().max()


@by_offset
def test_a_map_gets_gradients_if_no_input_does(offset: int | None) -> None:
    module = learned()
    tensors, mask = draw(67), None if offset is None else qkv.Causal()
    out = linear(*tensors, qkv.FeatureMap(module), mask)
    assert out.requires_grad
    out.square().sum().backward()
    double = copy.deepcopy(module).double()
    double.zero_grad()
    quadratic(*tensors, qkv.FeatureMap(double), offset=offset)[0].square().sum().backward()
    for one, other in zip(module.parameters(), double.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad.double() - other.grad).abs().max() < 3e-5 * other.grad.abs().max()


def test_gradients_of_parameters_match_finite_differences() -> None:
    module = learned(3, 5).double()
    names = [name for name, _ in module.named_parameters()]
    query, key, value = (t.detach() for t in small(5, 5))

    def of_parameters(*given: Tensor) -> Tensor:
        named = dict(zip(names, given, strict=True))
        phi = qkv.FeatureMap(lambda x: torch.func.functional_call(module, named, (x,)))
        return linear(query, key, value, phi, qkv.Causal())

    inputs = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(of_parameters, inputs)


def test_gradient_descent_trains_a_map() -> None:
    module, teacher = learned(), learned(seed=40)
    tensors = draw(67, heads=(1, 1))
    wanted = linear(*tensors, qkv.FeatureMap(teacher), qkv.Causal()).detach()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (linear(*tensors, qkv.FeatureMap(module), qkv.Causal()) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
@by_offset
def test_one_input_alone_gets_the_same_gradient(which: int, offset: int | None) -> None:
    mask = None if offset is None else qkv.Causal()
    for name in ("elu1", "two-sided", "polynomial 2"):
        tensors = [t.requires_grad_() for t in draw(67)]
        wanted = gradients(linear(*tensors, SIMILARITIES[name], mask), tensors)[which]
        alone = [t.detach().requires_grad_(at == which) for at, t in enumerate(tensors)]
        (found,) = gradients(linear(*alone, SIMILARITIES[name], mask), alone[which])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["elu1", "elu1 undivided", "two-sided", "polynomial 2", "polynomial 3"])
def test_fully_masked_rows_pass_no_gradient(name: str) -> None:
    query, key, value = draw(67)
    query[:, :, :3] = nan
    tensors = [t.requires_grad_() for t in (query, key, value)]
    out = linear(*tensors, SIMILARITIES[name], qkv.Causal(-3))
    weights = torch.ones_like(out)
    weights[:, :, :3] = nan
    dq, dk, dv = torch.autograd.grad(out, tensors, weights)
    assert not dq[:, :, :3].any()
    assert not dk[:, :, 64:].any()
    assert not dv[:, :, 64:].any()
    assert all(bool(grad.isfinite().all()) for grad in (dq, dk, dv))


@pytest.mark.slow
@by_similarity
@by_offset
@pytest.mark.parametrize("bad", [nan, inf, 1e30])
def test_masked_keys_do_not_change_gradients(similarity: Any, offset: int | None, bad: float) -> None:
    keep = torch.ones(2, 67, dtype=torch.bool)
    keep[0, 50:], keep[1, ::5] = False, False
    mask = qkv.Padding(keep=keep) if offset is None else qkv.Causal() & qkv.Padding(keep=keep)
    query, key, value = draw(67)
    clean = [t.clone().requires_grad_() for t in (query, key, value)]
    for tensor in (key, value):
        tensor.transpose(1, 2)[~keep] = bad
    dirty = [t.requires_grad_() for t in (query, key, value)]
    wanted, found = (gradients(linear(*tensors, similarity, mask), tensors) for tensors in (clean, dirty))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    for grad in found[1:]:
        assert not grad.transpose(1, 2)[~keep].any(), "masked keys and values get a gradient of exactly zero"


@pytest.mark.parametrize("name", ["elu1", "two-sided", "polynomial 2"])
def test_attended_nan_is_visible_in_gradients(name: str) -> None:
    for which in (0, 1):
        tensors = draw(67, heads=(1, 1))
        tensors[which][0, 0, 20, 3] = nan
        inputs = [t.requires_grad_() for t in tensors]
        dq, dk, dv = gradients(linear(*inputs, SIMILARITIES[name], qkv.Causal()), inputs)
        assert bool(dq[0, 0, 20].isnan().all())
        if which == 1:
            assert bool(dq[0, 0, 20:].isnan().all())
        assert bool(dq[0, 0, :20].isfinite().all())
        assert all(bool(grad[1].isfinite().all()) for grad in (dq, dk, dv))


def test_empty_calls_have_empty_gradients() -> None:
    for len_q, len_k in ((0, 5), (5, 0), (0, 0)):
        tensors = [t.requires_grad_() for t in draw(len_q, len_k)]
        for similarity in (SIMILARITIES["elu1"], SIMILARITIES["polynomial 2"]):
            for grad in torch.autograd.grad(linear(*tensors, similarity).sum(), tensors):
                assert not grad.any()


def test_gradients_add_up_over_two_uses() -> None:
    tensors = [t.requires_grad_() for t in draw(67)]
    once = gradients(linear(*tensors, SIMILARITIES["elu1"], qkv.Causal()), tensors)
    out = linear(*tensors, SIMILARITIES["elu1"], qkv.Causal())
    first = torch.autograd.grad(out, tensors, numbers(tuple(out.shape), seed=70), retain_graph=True)
    second = torch.autograd.grad(out, tensors, numbers(tuple(out.shape), seed=70))
    for one, two, three in zip(once, first, second, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.slow
def test_gradients_of_a_polynomial_have_the_same_bits_with_many_threads(threads: Any) -> None:
    threads(4)
    similarity, tensors = qkv.Polynomial(3, -0.5), draw(67, 71, heads=(3, 3), widths=(16, 16))
    seen = set()
    for _ in range(12):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        out = qkv.attention(*leaves, similarity=similarity, mask=qkv.Causal(offset=4), backend="linear")
        grads = torch.autograd.grad(out.square().sum(), leaves)
        seen.add(tuple(grad.contiguous().numpy().tobytes() for grad in grads))
    assert len(seen) == 1


DISPATCHED = {
    "elu1": qkv.FeatureMap(features.elu1),
    "not normalized": qkv.FeatureMap(features.elu1, normalize=False),
    "monomials": qkv.FeatureMap(features.polynomial(2, 1.0)),
    "random": qkv.FeatureMap(features.positive_random(16, 64)),
    "own map": qkv.FeatureMap(lambda x: x.exp()),
    "quadratic": qkv.Polynomial(2, 1.0),
}
by_dispatched = pytest.mark.parametrize("similarity", DISPATCHED.values(), ids=DISPATCHED)
by_mask = pytest.mark.parametrize("mask", [None, qkv.Causal()], ids=["all", "causal"])


def explain(n: int, similarity: Any, mask: Any = None, heads: int = 2, **options: Any) -> Any:
    x = torch.zeros(1, heads, n, 16)
    return qkv.explain(x, x, x, similarity=similarity, mask=mask, **options)


@by_dispatched
@by_mask
def test_long_calls_are_linear(similarity: Any, mask: Any) -> None:
    explained = explain(16384, similarity, mask)
    assert explained.backend == "linear"
    assert explained.crossover is not None
    assert explained.crossover <= 16384


@pytest.mark.slow
@by_dispatched
@by_mask
def test_longer_calls_stay_linear(similarity: Any, mask: Any) -> None:
    chosen = [explain(2**power, similarity, mask).backend for power in range(1, 16)]
    first = chosen.index("linear")
    assert set(chosen[first:]) == {"linear"}


@by_dispatched
@by_mask
def test_the_crossover_is_printed(similarity: Any, mask: Any) -> None:
    for n in (3, 200, 16384):
        text = str(explain(n, similarity, mask))
        assert "N*" in text
        assert re.search(r"N\*[^\n]*\d", text), "no number after N*"


def test_the_crossover_is_printed_for_backends_given_by_name() -> None:
    for backend in ("linear", "reference"):
        assert "N*" in str(explain(64, DISPATCHED["elu1"], backend=backend))


def test_more_features_have_a_later_crossover() -> None:
    def crossover_with(count: int) -> int:
        found = explain(100, qkv.FeatureMap(features.positive_random(16, count))).crossover
        assert found is not None
        return found

    assert crossover_with(16) <= crossover_with(256) < crossover_with(2048)
    assert explain(100, qkv.Polynomial(2)).crossover < explain(100, qkv.Polynomial(3)).crossover


@by_mask
def test_both_sides_of_the_crossover_agree_with_the_equation(mask: Any) -> None:
    """The kernel scores all pairs below N* and uses a state above it."""
    crossover = explain(100, qkv.Polynomial(2), mask).crossover
    for n in (crossover - 7, crossover + 7):
        tensors = draw(n, batch=1, heads=(1, 1), widths=(16, 5))
        found = qkv.attention(*tensors, similarity=qkv.Polynomial(2), mask=mask, backend="linear")
        close(
            found, quadratic(*tensors, qkv.Polynomial(2), offset=None if mask is None else 0), allowed=1e-4, what=f"{n}"
        )


@pytest.mark.parametrize(
    "options",
    [{"mask": qkv.Window(left=50)}, {"return_weights": True}, {"dropout": 0.1}],
    ids=["window", "weights", "dropout"],
)
def test_auto_takes_another_backend_if_linear_cannot_run(options: dict) -> None:
    explained = explain(2048, DISPATCHED["elu1"], **options)
    assert explained.backend != "linear"
    assert explained.reasons["linear"]
    assert "linear" in str(explained)


def test_softmax_is_never_linear() -> None:
    explained = explain(16384, qkv.Softmax())
    assert explained.backend != "linear"
    assert explained.reasons["linear"]


@pytest.mark.slow
@by_mask
def test_auto_agrees_with_the_equation_for_short_and_long_calls(mask: Any) -> None:
    for n in (3, 1500):
        tensors = draw(n, batch=1, heads=(1, 1), widths=(16, 5))
        for name in ("elu1", "quadratic"):
            found = qkv.attention(*tensors, similarity=DISPATCHED[name], mask=mask)
            wanted = quadratic(*tensors, DISPATCHED[name], offset=None if mask is None else 0)
            close(found, wanted, allowed=1e-5, what=f"{name}, {n}")


def test_gradients_are_finite_where_the_sum_of_similarities_is_subnormal() -> None:
    similarity = qkv.FeatureMap(qkv.features.elu1)
    numbers = ([-45.0, -44.0], [-46.0, -45.5], [1.0, 2.0])
    found = []
    for backend, dtype in (("linear", torch.float32), ("reference", torch.float64)):
        leaves = [torch.tensor(x, dtype=dtype).reshape(1, 1, 2, 1).requires_grad_() for x in numbers]
        out = qkv.attention(*leaves, similarity=similarity, backend=backend)
        found.append(torch.autograd.grad(out.sum(), leaves))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", [None, qkv.Causal()], ids=["all", "causal"])
def test_large_values_do_not_overflow_before_the_division(mask: qkv.Causal | None) -> None:
    query, value = torch.zeros(1, 1, 300, 64), torch.full((1, 1, 300, 3), 1e37)
    out = qkv.attention(query, query, value, mask=mask, similarity=qkv.FeatureMap(qkv.features.elu1), backend="linear")
    torch.testing.assert_close(out, value, rtol=1e-5, atol=0.0)
