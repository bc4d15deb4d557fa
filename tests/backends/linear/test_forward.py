"""backend="linear" is the equation: every similarity, mask, shape and dtype against two plain references."""

from typing import Any

import pytest
import torch

import qkv
from decode_reference import in_a_process, name_of, same_bits
from linear_reference import DTYPES, HEADS, close, draw, quadratic, recurrence, similarities
from qkv import errors, features
from qkv.testing import layouts

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
def test_lengths_that_are_no_multiple_of_anything(name: str, causal: bool) -> None:
    for n in LENGTHS:
        tensors = draw(n, batch=1, heads=(2, 1), seed=n)
        wanted = quadratic(*tensors, SIMILARITIES[name], offset=0 if causal else None)
        close(linear(*tensors, SIMILARITIES[name], qkv.Causal() if causal else None), wanted, what=f"length {n}")


@pytest.mark.parametrize("name", ["elu1", "polynomial 3"])
def test_a_thousand_tokens_against_the_recurrence(name: str) -> None:
    tensors = draw(1000, batch=1, heads=(1, 1), seed=8)
    found = linear(*tensors, SIMILARITIES[name], qkv.Causal())
    close(found, quadratic(*tensors, SIMILARITIES[name], offset=0))
    wanted = recurrence(*tensors, SIMILARITIES[name], offset=0)
    torch.testing.assert_close(found.double(), wanted, atol=1e-3 if name != "elu1" else 1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["elu1", "elu1 undivided", "two-sided", "polynomial 2", "polynomial 3"])
@pytest.mark.parametrize(("len_q", "len_k"), [(5, 13), (67, 131), (131, 67), (1, 300), (300, 1), (64, 65)])
def test_cross_attention_with_any_offset(name: str, len_q: int, len_k: int) -> None:
    tensors, similarity = draw(len_q, len_k, batch=1, heads=(2, 1), seed=2), SIMILARITIES[name]
    close(linear(*tensors, similarity), quadratic(*tensors, similarity))
    for offset in (0, len_k - len_q, 3, -3, -len_q, len_k, 10**6, -(10**6)):
        wanted = quadratic(*tensors, similarity, offset=offset)
        close(linear(*tensors, similarity, qkv.Causal(offset)), wanted, what=f"offset {offset}")


def test_causal_without_an_offset_is_refused_where_it_has_two_readings() -> None:
    with pytest.raises(errors.MaskError, match="offset"):
        linear(*draw(5, 13), SIMILARITIES["elu1"], qkv.Causal())


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("name", ["elu1", "random", "polynomial 2"])
@by_causal
def test_query_heads_share_key_heads(heads: tuple[int, int], name: str, causal: bool) -> None:
    tensors = draw(71, heads=heads, seed=3)
    wanted = quadratic(*tensors, SIMILARITIES[name], offset=0 if causal else None)
    close(linear(*tensors, SIMILARITIES[name], qkv.Causal() if causal else None), wanted)


@by_similarity
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_dtype(similarity: Any, dtype: torch.dtype) -> None:
    tensors = draw(37, 41, heads=(2, 1), dtype=dtype, seed=4, coarse=True)
    for offset, mask in ((None, None), (4, qkv.Causal(4))):
        found = linear(*tensors, similarity, mask)
        assert found.dtype is dtype
        close(found, quadratic(*tensors, similarity, offset=offset))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_sums_of_narrow_inputs_are_not_narrow(dtype: torch.dtype) -> None:
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
    """No help from terms that cancel inside a weight: a part of Σ|sim|(|v| + |V'|)/|Σ sim| alone."""
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
def test_a_polynomial_and_its_feature_map_are_one(degree: int, offset: float, causal: bool) -> None:
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
def test_what_has_no_state_is_refused_with_a_reason(options: dict, name: str) -> None:
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
def test_what_belongs_to_softmax_is_refused(options: dict) -> None:
    with pytest.raises(errors.QkvError):
        linear(*draw(11), SIMILARITIES["elu1"], **options)


def exact(x: torch.Tensor) -> torch.Tensor:
    """A map of the caller's that has the same bits wherever a vector stands, as torch's softplus has not."""
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
def test_bits_do_not_depend_on_companions(name: str, causal: bool) -> None:
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


def test_inputs_stay_as_they_are() -> None:
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
        Path("/proc/self/clear_refs").write_text("5")  # The high-water mark starts again from what is held now.
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


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_features_of_a_whole_sequence_are_never_held(grad: bool) -> None:
    """3,072 tokens more may cost what inputs, answers and gradients do, and far less than φ(K) alone."""
    # What is freed goes back at once: a peak is then what is held, not what malloc keeps.
    settings = {"MALLOC_MMAP_THRESHOLD_": "200000", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
    in_a_process(PEAK.format(grad=grad), **settings)
