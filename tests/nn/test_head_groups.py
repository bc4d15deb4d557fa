"""Pooling key/value heads: the mean of each group, and models that pooling does not change."""

from fractions import Fraction

import pytest
import torch

import qkv
from qkv import errors, nn
from qkv.nn.head_groups import grouped, pooled


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def alike(attention: nn.Attention, kv_heads: int) -> None:
    """Make the heads of every group equal: pooling then loses nothing."""
    with torch.no_grad():
        for linear in (attention.key, attention.value):
            for parameter in linear.parameters():
                split = parameter.unflatten(0, (kv_heads, -1, attention.head_width))
                split.copy_(split[:, :1].expand_as(split).clone())


@pytest.mark.parametrize("shape", [(6 * 5, 7), (6 * 5,)], ids=["weight", "bias"])
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
def test_a_group_becomes_its_mean(shape: tuple[int, ...], kv_heads: int) -> None:
    weight = numbers(*shape)
    out = pooled(weight, 6, kv_heads)
    group = 6 // kv_heads
    assert out.shape == (kv_heads * 5, *shape[1:])
    for g in range(kv_heads):
        rows = [weight[(g * group + h) * 5 : (g * group + h + 1) * 5] for h in range(group)]
        torch.testing.assert_close(out[g * 5 : (g + 1) * 5], sum(rows) / group, atol=1e-15, rtol=1e-15)


def test_a_kept_head_is_taken_as_it_is() -> None:
    weight = numbers(6 * 5, 7, dtype=torch.bfloat16)
    out = pooled(weight, 6, 2, keep=[1])
    assert torch.equal(out[:5], weight[5:10])
    assert torch.equal(out[5:], pooled(weight, 6, 2)[5:])
    assert torch.equal(pooled(weight, 6, 2, keep=iter((5, 0))), torch.cat([weight[:5], weight[25:]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_mean_is_rounded_at_the_end(dtype: torch.dtype) -> None:
    # Sums in the weight's own dtype would lose the small terms next to the large one.
    weight = torch.tensor([1.0] + 7 * [2.0**-8], dtype=dtype)
    exact = sum(map(Fraction, weight.tolist())) / 8
    assert pooled(weight, 8, 1).item() == torch.tensor(float(exact), dtype=torch.float64).to(dtype).item()
    assert pooled(weight, 8, 1).dtype is dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", [3, 7])
def test_equal_heads_keep_every_bit(dtype: torch.dtype, heads: int) -> None:
    head = numbers(11, 13, dtype=dtype)
    assert torch.equal(pooled(head.repeat(heads, 1), heads, 1), head)


def test_the_answer_is_a_copy() -> None:
    weight = numbers(6, 5)
    pooled(weight, 3, 3).zero_()
    pooled(weight, 3, 3, keep=[0, 1, 2]).zero_()
    assert bool((weight != 0).all())


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"weight": [1.0]}, errors.DtypeError, "weight: got list"),
        ({"weight": torch.ones(12, 3, dtype=torch.int8)}, errors.DtypeError, "torch.int8"),
        ({"weight": torch.ones(13, 3)}, errors.ShapeError, r"shape \(13, 3\)"),
        ({"weight": torch.ones(12, 3, 2)}, errors.ShapeError, "shape"),
        ({"weight": torch.ones(0, 3)}, errors.ShapeError, "shape"),
        ({"kv_heads": 4}, errors.OptionError, "one of 1, 2, 3, 6"),
        ({"kv_heads": 12}, errors.OptionError, "kv_heads: got 12"),
        ({"kv_heads": 0}, errors.OptionError, "kv_heads: got 0"),
        ({"kv_heads": 2.0}, errors.OptionTypeError, "kv_heads"),
        ({"heads": True}, errors.OptionTypeError, "heads"),
        ({"keep": [6]}, errors.OptionError, "keep: got head 6, wanted heads from 0 to 5"),
        ({"keep": [-1]}, errors.OptionError, "head -1"),
        ({"keep": [3, 5]}, errors.OptionError, "heads 3 and 5, both in group 1"),
        ({"keep": 2}, errors.OptionTypeError, "keep"),
        ({"keep": "12"}, errors.OptionTypeError, "keep"),
        ({"keep": [1.0]}, errors.OptionTypeError, "keep"),
    ],
)
def test_pooled_refuses(given: dict, kind: type[Exception], words: str) -> None:
    call = {"weight": torch.ones(12, 3), "heads": 6, "kv_heads": 2, "keep": ()} | given
    with pytest.raises(kind, match=words):
        pooled(call["weight"], call["heads"], call["kv_heads"], keep=call["keep"])


def models() -> dict[str, nn.Attention | nn.Block | nn.Decoder | nn.EncoderDecoder]:
    torch.manual_seed(0)
    return {
        "attention": nn.Attention(24, 6, bias=True, positions=nn.Rotary()),
        "already grouped": nn.Attention(24, 12, kv_heads=6, head_width=4, similarity=qkv.Polynomial(2)),
        "block": nn.Block(24, 6, cross=True, context_width=10),
        "decoder": nn.Decoder(24, 6, 2, vocabulary=31, positions=nn.ALiBi(6)),
        "encoder-decoder": nn.EncoderDecoder(24, 6, 2, vocabulary=31, positions=nn.RelativeBias(6)),
    }


def answer(model: torch.nn.Module) -> torch.Tensor:
    x, tokens = numbers(2, 5, 24, dtype=torch.float32), torch.tensor([[2, 3, 5, 7], [11, 13, 17, 19]])
    with torch.no_grad():
        if isinstance(model, nn.Attention):
            return model(x, mask=qkv.Causal())
        if isinstance(model, nn.Block):
            return model(x, numbers(2, 7, 10, dtype=torch.float32))
        return model(tokens, tokens[:, :3]) if isinstance(model, nn.EncoderDecoder) else model(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(models()))
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_a_model_with_equal_heads_answers_as_before(name: str, kv_heads: int, tmp_path) -> None:
    model = models()[name].eval()
    for module in model.modules():
        if isinstance(module, nn.Attention):
            alike(module, kv_heads)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    small = grouped(model, kv_heads)
    assert type(small) is type(model)
    torch.testing.assert_close(answer(small), answer(model), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    for module in small.modules():
        if isinstance(module, nn.Attention):
            assert module.kv_heads == kv_heads
            assert module.key.weight.shape[0] == module.key.out_features == kv_heads * 4
            assert module.value.weight.shape[0] == module.value.out_features == kv_heads * 4
    nn.save(small, tmp_path / "small.safetensors")
    assert torch.equal(answer(nn.load(tmp_path / "small.safetensors")), answer(small))


def test_a_pooled_decoder_steps_with_a_smaller_cache() -> None:
    model = grouped(models()["decoder"].eval(), 2)
    tokens = torch.tensor([[2, 3, 5, 7, 11]])
    cache = model.cache(1)
    with torch.no_grad():
        steps = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(5)], dim=1)
        torch.testing.assert_close(steps, model(tokens), atol=1e-5, rtol=1e-5)
    assert {layer.heads for layer in cache} == {2}


def test_shared_parameters_are_pooled_once_and_stay_shared() -> None:
    first, second = nn.Attention(12, 4), nn.Attention(12, 4)
    second.key = first.key
    second.value.weight = first.value.weight
    first.key.weight.requires_grad_(False)
    small = grouped(torch.nn.ModuleList([first, second]), 1, keep=[2])
    one, two = small[0], small[1]
    assert isinstance(one, nn.Attention)
    assert isinstance(two, nn.Attention)
    assert one.key is two.key
    assert one.value.weight is two.value.weight
    assert one.key.weight.shape == (3, 12)
    assert not one.key.weight.requires_grad
    assert one.value.weight.requires_grad
    assert torch.equal(one.value.weight, first.value.weight[6:9])


def test_a_pooled_model_trains() -> None:
    small = grouped(models()["decoder"], 1)
    small(torch.tensor([[2, 3, 5]])).square().mean().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())


def test_grouped_refuses() -> None:
    with pytest.raises(errors.OptionError, match=r"Linear.*qkv\.hf\.convert"):
        grouped(torch.nn.Linear(3, 3), 1)
    with pytest.raises(errors.OptionTypeError, match="model: got int"):
        grouped(3, 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.OptionError, match="one of 1, 2, 4"):
        grouped(nn.Attention(12, 4), 3)
    with pytest.raises(errors.OptionError, match="group 0"):
        grouped(nn.Attention(12, 4), 2, keep=[0, 1])
