"""`compat.scaled_dot_product_attention`: the same results, and errors that name torch's arguments."""

import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from torch.autograd import gradgradcheck
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import qkv
from campaigns.compat import check, drawn
from qkv.compat import scaled_dot_product_attention as ours
from qkv.errors import DtypeError, MaskError, MaskTypeError, OptionError, OptionTypeError, QkvError, ShapeError

theirs = F.scaled_dot_product_attention
CALLS = 2500


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=source, dtype=torch.float64).to(dtype) for shape in shapes]


def four(heads: int = 2, heads_kv: int = 2, width_v: int = 7, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return tensors((3, heads, 5, 7), (3, heads_kv, 11, 7), (3, heads_kv, 11, width_v), dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_calls_give_torchs_answers_and_gradients(seed: int) -> None:
    worst = max(check(drawn(seed, number)) for number in range(CALLS // 5))
    assert 0.0 < worst <= 1.0


def test_random_calls_reach_what_torch_can_be_asked() -> None:
    calls = [drawn(0, number) for number in range(CALLS // 5)]
    assert str(calls[7]) == str(drawn(0, 7))
    kinds = Counter(call.kind for call in calls)
    assert min(kinds[kind] for kind in ("plain", "causal", "boolean mask", "added mask", "CausalBias")) >= 10
    assert {call.query.dim() for call in calls} >= {2, 3, 4, 5, 6}
    assert {call.query.dtype for call in calls} == {torch.float64, torch.float32, torch.bfloat16, torch.float16}
    reached = {
        "ranks that differ": [call for call in calls if call.key.dim() != call.query.dim()],
        "broadcasting": [call for call in calls if call.lead != call.query.shape[:-2]],
        "groups": [call for call in calls if call.others.get("enable_gqa") and call.key.shape[-3] < call.lead[-1]],
        "no keys": [call for call in calls if call.key.shape[-2] == 0],
        "no width": [call for call in calls if call.key.shape[-1] == 0],
        "other values": [call for call in calls if call.value.shape[-1] != call.key.shape[-1]],
        "autocast": [call for call in calls if call.autocast],
        "all dropped": [call for call in calls if call.others.get("dropout_p")],
        "float32 with others": [
            call for call in calls if call.kind == "added mask" and call.attn_mask.dtype is not call.query.dtype
        ],
        "rows that see nothing": [
            call for call in calls if call.kind == "boolean mask" and not call.attn_mask.any(-1).all()
        ],
        "learned masks": [call for call in calls if call.kind == "added mask" and call.requires_grad[3]],
        "odd layouts": [call for call in calls if not call.key.is_contiguous()],
    }
    assert all(len(found) >= 3 for found in reached.values()), {name: len(found) for name, found in reached.items()}


def test_the_signature_is_torchs() -> None:
    q, k, v = four()
    mask = torch.ones(5, 11, dtype=torch.bool).tril()
    assert torch.equal(ours(q, k, v, mask, 0.0, False), ours(query=q, key=k, value=v, attn_mask=mask))
    assert torch.allclose(ours(q, k, v, None, 0.0, True), theirs(q, k, v, None, 0.0, True))
    for call in (ours, theirs):
        with pytest.raises(TypeError, match="positional"):
            call(q, k, v, None, 0.0, False, 0.5)
    for scale in (1, np.float32(0.5), np.int64(2), torch.tensor(0.25)):
        assert torch.allclose(ours(q, k, v, scale=scale), theirs(q, k, v, scale=scale))


@pytest.mark.parametrize("variant", [causal_lower_right, causal_upper_left])
def test_a_causal_bias_is_read_with_more_queries_than_keys(variant) -> None:
    q, k, v = tensors((2, 3, 11, 7), (2, 3, 5, 7), (2, 3, 5, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of NaN that do not come
        bias = variant(11, 5)
        assert torch.allclose(ours(q, k, v, bias), theirs(q, k, v, bias))


def test_dropout_drops_weights_with_its_probability_and_scales_the_rest() -> None:
    torch.manual_seed(5)
    q, k = tensors((3, 2, 101, 7), (3, 2, 67, 7))
    v = torch.eye(67, dtype=torch.float64).expand(3, 2, 67, 67)
    weights, dropped = ours(q, k, v), ours(q, k, v, dropout_p=0.3)
    gone = dropped == 0
    assert gone.double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.allclose(dropped[~gone], weights[~gone] / 0.7)
    assert not ours(q, k, v, dropout_p=1).any()


def test_without_coordinates_every_key_weighs_the_same() -> None:
    (v,) = tensors((3, 2, 11, 5))
    q, k = torch.zeros(3, 2, 5, 0, dtype=torch.float64), torch.zeros(3, 2, 11, 0, dtype=torch.float64)
    assert torch.allclose(ours(q, k, v), v.mean(-2, keepdim=True).expand(3, 2, 5, 5))
    assert torch.allclose(ours(q, k, v, scale=3.0), theirs(q, k, v, scale=3.0))


def test_sizes_of_0_broadcast_and_stay_in_the_graph() -> None:
    q, k, v = tensors((5, 7), (3, 1, 0, 7), (2, 0, 4))
    mask = torch.zeros(5, 0, dtype=torch.float64, requires_grad=True)
    out = ours(q.requires_grad_(), k, v, mask)
    assert out.shape == (3, 2, 5, 4)
    assert not out.any()
    gradients = torch.autograd.grad(out.sum(), (q, mask))
    assert gradients[0].shape == (5, 7)
    assert not gradients[0].any()


def test_a_float64_call_under_autocast_stays_float64() -> None:
    q, k, v = four()
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(q, k, v).dtype is torch.float64
        assert ours(q.float(), k.bfloat16(), v.half()).dtype is torch.bfloat16


def test_what_is_hidden_cannot_matter_and_what_is_seen_shows() -> None:
    q, k, v = four()
    poison_k, poison_v = k.clone(), v.clone()
    poison_k[:, :, -1], poison_v[:, :, -1] = torch.nan, torch.inf
    keep = torch.ones(5, 11, dtype=torch.bool)
    keep[:, -1] = False
    assert torch.equal(ours(q, poison_k, poison_v, keep), ours(q, k, v, keep))
    assert torch.equal(ours(q, poison_k, poison_v, is_causal=True), ours(q, k, v, is_causal=True))
    q[1, 0, 2, 3] = torch.nan
    rows = ours(q, k, v).isnan().any(-1)
    assert rows.nonzero().tolist() == [[1, 0, 2]]


def test_torch_still_differs_as_the_page_of_differences_says() -> None:
    q, k, v = four()
    poison, keep = v.clone(), torch.ones(5, 11, dtype=torch.bool)
    poison[:, :, -1], keep[:, -1] = torch.nan, False
    assert theirs(q, k, poison, keep).isnan().any()
    assert theirs(q, k, v, scale=0.0, is_causal=True).isnan().any()
    assert theirs(q, k, v, scale=-1.0, is_causal=True).isnan().any()
    longer, added = tensors((3, 2, 37, 7), (5, 37))
    apart = theirs(q, longer, longer, added.float()) - theirs(q, longer, longer, added)
    assert not apart.abs().max() < 0.1  # NaN differs too
    assert theirs(q, k, v, keep, is_causal=True).shape == q.shape
    assert theirs(q, k, v[:, :, :10]).shape == q.shape
    assert theirs(q[:, :, :0], k[:1], v).shape == (3, 2, 0, 7)
    assert theirs(q[:1], k[..., :0, :], v[..., :0, :]).shape == (1, 2, 5, 7)
    with pytest.raises(IndexError):
        theirs(q, k, v, keep[0])
    assert torch.equal(ours(q, k, v, keep[0]), ours(q, k, v, keep))
    mixed = tensors((3, 6, 5, 7), (3, 3, 11, 7), (3, 2, 11, 7))
    assert theirs(*mixed, enable_gqa=True).shape == (3, 6, 5, 7)


ROW = torch.ones(5, 11)
REFUSED = {
    "both masks": (four(), {"attn_mask": ROW > 0, "is_causal": True}, MaskError, "attn_mask: got a mask with"),
    "both masks, a bias": (four(), {"attn_mask": causal_upper_left(5, 11), "is_causal": True}, MaskError, "attn_mask"),
    "a list as mask": (four(), {"attn_mask": [[True] * 11] * 5}, MaskTypeError, "attn_mask: got list"),
    "whole numbers as mask": (four(), {"attn_mask": ROW.int()}, MaskTypeError, "attn_mask: got dtype torch.int32"),
    "a mask in half": (four(), {"attn_mask": ROW.half()}, MaskTypeError, "attn_mask: got dtype torch.float16"),
    "a mask that does not fit": (four(), {"attn_mask": torch.ones(3, 5, 11)}, MaskError, r"\(3, 2, 5, 11\)"),
    "a mask of too many": (four(), {"attn_mask": torch.ones(1, 3, 2, 5, 11)}, MaskError, "attn_mask: got shape"),
    "a sparse mask": (four(), {"attn_mask": ROW.to_sparse()}, DtypeError, "attn_mask: got torch.sparse_coo"),
    "a mask elsewhere": (four(), {"attn_mask": ROW.to("meta")}, DtypeError, "attn_mask: .* on meta"),
    "a bias of other lengths": (four(), {"attn_mask": causal_upper_left(7, 11)}, MaskError, r"\(5, 11\)"),
    "dropout below 0": (four(), {"dropout_p": -0.1}, OptionError, "dropout_p: got -0.1"),
    "dropout above 1": (four(), {"dropout_p": 1.1}, OptionError, "dropout_p: got 1.1"),
    "dropout of NaN": (four(), {"dropout_p": float("nan")}, OptionError, "dropout_p: got nan"),
    "dropout True": (four(), {"dropout_p": True}, OptionTypeError, "dropout_p: got True"),
    "dropout None": (four(), {"dropout_p": None}, OptionTypeError, "dropout_p: got None"),
    "causal 1": (four(), {"is_causal": 1}, OptionTypeError, "is_causal: got 1"),
    "causal None": (four(), {"is_causal": None}, OptionTypeError, "is_causal: got None"),
    "groups 1": (four(), {"enable_gqa": 1}, OptionTypeError, "enable_gqa: got 1"),
    "scale of NaN": (four(), {"scale": float("nan")}, OptionError, "scale: got nan"),
    "scale infinite": (four(), {"scale": float("inf")}, OptionError, "scale: got inf"),
    "scale a word": (four(), {"scale": "0.5"}, OptionTypeError, "scale: got '0.5'"),
    "scale True": (four(), {"scale": True}, OptionTypeError, "scale: got True"),
    "scale that learns": (four(), {"scale": torch.tensor(0.5, requires_grad=True)}, OptionTypeError, "gradient"),
    "heads without groups": (four(6, 2), {}, ShapeError, "enable_gqa=True lets 6 query heads share 2"),
    "batches that differ": (tensors((2, 5, 7), (3, 11, 7), (3, 11, 7)), {}, ShapeError, "that broadcast"),
    "groups that do not divide": (four(6, 4), {"enable_gqa": True}, ShapeError, "4 heads for 6 query heads"),
    "groups without heads": (four(6, 0), {"enable_gqa": True}, ShapeError, "0 heads for 6 query heads"),
    "groups in two dimensions": (
        tensors((5, 7), (11, 7), (11, 7)), {"enable_gqa": True}, ShapeError, "enable_gqa: got True with",
    ),
    "other value heads": (
        tensors((3, 6, 5, 7), (3, 3, 11, 7), (3, 2, 11, 7)), {"enable_gqa": True}, ShapeError, "value: got 2 heads",
    ),
    "one dimension": (tensors((7,), (11, 7), (11, 7)), {}, ShapeError, "query: got 1 dimensions"),
    "widths that differ": (tensors((3, 5, 7), (3, 11, 6), (3, 11, 7)), {}, ShapeError, "key: got width 6"),
    "no width with one": (tensors((3, 5, 0), (3, 11, 6), (3, 11, 7)), {}, ShapeError, "key: got width 6"),
    "lengths that differ": (tensors((2, 5, 7), (2, 11, 7), (2, 10, 7)), {}, ShapeError, "value: got length 10"),
    "0 with what does not broadcast": (tensors((3, 5, 7), (4, 0, 7), (4, 0, 7)), {}, ShapeError, "broadcast"),
    "dtypes that differ": ([*four()[:2], four()[2].float()], {}, DtypeError, "value: got dtype torch.float32"),
    "whole numbers": ([t.int() for t in four()], {}, DtypeError, "query: got dtype torch.int32"),
    "an array": ([four()[0].numpy(), *four()[1:]], {}, DtypeError, "query: got ndarray"),
    "a sparse key": ([four()[0], four()[1].to_sparse(), four()[2]], {}, DtypeError, "key: got layout"),
    "numbers that are not there": ([t.to("meta") for t in four()], {}, DtypeError, "query: got a meta tensor"),
    "nested": ([torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(5, 2)], layout=torch.jagged)] * 3, {},
               DtypeError, "nested tensor.*varlen"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_speak_of_torchs_arguments(name: str) -> None:
    given, options, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        ours(*given, **options)
    assert isinstance(caught.value, QkvError)
    assert "bias=" not in str(caught.value)
    assert "Dense" not in str(caught.value)


def test_second_derivatives() -> None:
    q, k, v = (t.requires_grad_() for t in tensors((2, 1, 3, 2), (1, 2, 5, 2), (5, 3)))
    mask = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda *given: ours(*given[:3], given[3]), (q, k, v, mask))


@pytest.mark.parametrize("boolean", [False, True])
def test_vmap_maps_a_mask_too(boolean: bool) -> None:
    q, k, v, mask = *four(), *tensors((3, 5, 11))
    mask = mask > 0 if boolean else mask
    assert torch.allclose(torch.vmap(ours)(q, k, v, mask), torch.vmap(theirs)(q, k, v, mask))


def test_torchs_own_layers_run_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    layer = torch.nn.TransformerDecoderLayer(14, 2, 23, dropout=0.0, batch_first=True, dtype=torch.float64)
    x, cache = tensors((3, 5, 14), (3, 11, 14))
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    padding = torch.arange(11) >= torch.tensor([[11], [7], [2]])

    def run() -> torch.Tensor:
        return layer(x, cache, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding)

    before, served = run(), []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: served.append(1) or ours(*a, **k))
    assert torch.allclose(run(), before)
    assert len(served) == 2


def test_a_model_of_transformers_runs_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.helpers.tiny_models import TABLE

    model = TABLE["llama"].build("sdpa")
    tokens = torch.arange(3, 16).reshape(1, 13).expand(2, 13).clone()
    seen = torch.ones(2, 13, dtype=torch.long)
    seen[1, :4] = 0
    with torch.no_grad():
        before, served = model(tokens, attention_mask=seen).logits, []
        monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: served.append(1) or ours(*a, **k))
        after = model(tokens, attention_mask=seen).logits
    assert served
    assert (after - before)[seen.bool()].abs().max() <= 2e-5 * before.abs().max()


def test_it_is_a_module_of_qkv() -> None:
    assert qkv.compat.scaled_dot_product_attention is ours
