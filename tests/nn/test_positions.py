"""Positions against transformers, and against numbers computed by hand."""

import math
import warnings

import pytest
import torch

import qkv
from qkv.nn import ALiBi, Attention, Learned, RelativeBias, Rotary, Sinusoidal
from qkv.nn.positions import PositionRange

HERE = torch.device("cpu")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_rotary_is_llamas() -> None:
    from transformers.models.llama import LlamaConfig, modeling_llama

    config = LlamaConfig(hidden_size=3 * 22, num_attention_heads=3, rope_theta=500.0)
    query, key = draw(2, 3, 7, 22), draw(2, 1, 7, 22)
    at = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [31, 32, 33, 34, 35, 36, 37]])
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(query, at)
    wanted = modeling_llama.apply_rotary_pos_emb(query, key, cos, sin)
    base = config.rope_parameters["rope_theta"]
    found = Rotary(base=base)(query, key, position_range=PositionRange(torch.tensor([0, 31]), 7, 38))
    # transformers has its angles in float32.
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(Rotary(base=base)(query)[0][1], wanted[0][1], atol=0.1)


def test_interleaved_rotary_is_gpt_js() -> None:
    from transformers.models.gptj import modeling_gptj

    x = draw(1, 3, 7, 26)
    table = modeling_gptj.create_sinusoidal_positions(7, 10).double()
    sin, cos = table[None].chunk(2, dim=-1)
    turned = modeling_gptj.apply_rotary_pos_emb(x[..., :10].transpose(1, 2), sin, cos).transpose(1, 2)
    wanted = torch.cat([turned, x[..., 10:]], dim=-1)
    (found,) = Rotary(fraction=10 / 26, interleaved=True)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(found[..., 10:], x[..., 10:])


def test_rotary_sees_distances_only() -> None:
    query, key = draw(1, 1, 1, 6), draw(1, 1, 1, 6)

    def score(p: int, r: int) -> float:
        ranges = (PositionRange(torch.tensor(at), 1, at + 1) for at in (p, r))
        turned = [Rotary()(x, position_range=at)[0] for x, at in zip((query, key), ranges, strict=True)]
        return float((turned[0] * turned[1]).sum())

    assert score(11, 4) == pytest.approx(score(100_007, 100_000), rel=1e-9)
    assert score(11, 4) != pytest.approx(score(12, 4), rel=1e-3)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibis_slopes(heads, slopes) -> None:
    assert ALiBi(heads).slopes() == pytest.approx(slopes, rel=1e-12)


def test_alibi_by_hand() -> None:
    bias = ALiBi(2)(PositionRange(1, 2, 3), 3, torch.float64, HERE)
    wanted = torch.tensor([[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(bias, torch.stack([-wanted / 16, -wanted / 256]))


def test_alibi_reaches_the_scores() -> None:
    layer = Attention(4, 2, positions=ALiBi(2)).double()
    with torch.no_grad():
        layer.query.weight.zero_()
        _, weights = layer(draw(1, 3, 4), return_weights=True)
    wanted = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64).div(-16).softmax(0)
    torch.testing.assert_close(weights[0, 0, 2], wanted)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 23), (12, 1000)])
def test_relative_bias_is_t5s(bidirectional, buckets, farthest) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what transformers says when it is loaded
        from transformers.models.t5 import T5Config, modeling_t5

    config = T5Config(
        d_model=10, d_kv=2, num_heads=5, relative_attention_num_buckets=buckets, is_decoder=not bidirectional,
        relative_attention_max_distance=farthest,
    )  # fmt: skip
    t5 = modeling_t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = RelativeBias(5, buckets=buckets, farthest=farthest, bidirectional=bidirectional)
    with torch.no_grad():
        ours.weight.copy_(t5.relative_attention_bias.weight.normal_())
        wanted = t5.compute_bias(211, 307)[0]
        assert torch.equal(ours(PositionRange(0, 211, 211), 307, torch.float32, HERE), wanted)
        # Later queries, and rows of a batch at different positions.
        assert torch.equal(ours(PositionRange(torch.tensor(200), 11, 211), 307, torch.float32, HERE), wanted[:, 200:])
        rows = ours(PositionRange(torch.tensor([3, 101]), 13, 114), 307, torch.float32, HERE)
        assert torch.equal(rows, torch.stack([wanted[:, 3:16], wanted[:, 101:114]]))
    assert ours.weight.shape == (buckets, 5)


def test_sinusoidal_by_hand() -> None:
    table = Sinusoidal(5, base=100.0)(torch.zeros(1, 7, 5, dtype=torch.float64), PositionRange(0, 7, 7))[0]
    for p in range(7):
        for i in range(5):
            wave = math.cos if i % 2 else math.sin
            assert float(table[p, i]) == pytest.approx(wave(p / 100.0 ** ((i - i % 2) / 5)), abs=1e-12)


def test_learned_adds_its_rows_and_ends_where_it_ends() -> None:
    layer = Attention(6, 2, positions=Learned(7, 6)).double()
    plain = Attention(6, 2).double()
    plain.load_state_dict({name: w for name, w in layer.state_dict().items() if "positions" not in name})
    x = draw(2, 5, 6)
    with torch.no_grad():
        table = next(layer.positions.parameters())
        torch.testing.assert_close(layer(x), plain(x + table[:5]))
        cache = layer.cache(2)
        layer(x, cache=cache)
        layer(draw(2, 3, 6), cache=cache, lengths=[2, 1])
        with pytest.raises(qkv.errors.ShapeError, match="at most 7, its length"):
            layer(draw(2, 1, 6), cache=cache)
        assert cache.lengths.tolist() == [7, 6]
        layer(draw(2, 1, 6), cache=cache, lengths=[0, 1])
        with pytest.raises(qkv.errors.ShapeError, match="8 positions"):
            layer(draw(2, 8, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_positions_keep_the_dtype(dtype) -> None:
    x = draw(1, 2, 3, 4).to(dtype)
    assert Rotary()(x)[0].dtype is dtype
    assert Sinusoidal(4)(x[0], PositionRange(0, 3, 3)).dtype is dtype
    layer = Attention(4, 2, positions=RelativeBias(2)).to(dtype)
    assert layer(x[0]).dtype is dtype


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Rotary(base=0), "base"),
        (lambda: Rotary(fraction=1.5), "fraction"),
        (lambda: Rotary(fraction=0.0), "fraction"),
        (lambda: ALiBi(0), "heads"),
        (lambda: RelativeBias(2, buckets=7), "even"),
        (lambda: RelativeBias(2, buckets=32, farthest=8), "farthest"),
        (lambda: Learned(0, 3), "length"),
        (lambda: Sinusoidal(4, base=-1.0), "base"),
        (lambda: Rotary(fraction=0.25)(torch.zeros(1, 1, 1, 10)), "even number of features"),
    ],
)
def test_positions_that_cannot_be(make, says) -> None:
    with pytest.raises(qkv.errors.OptionError, match=says):
        make()


@pytest.mark.parametrize("interleaved", [False, True])
def test_three_dimensions_of_rotary_are_one_head(interleaved: bool) -> None:
    rotary, query, key = Rotary(interleaved=interleaved), draw(2, 1, 7, 8), draw(2, 3, 7, 8)
    wanted = rotary(query, key)
    found = rotary(query[:, 0], key)
    assert torch.equal(found[0], wanted[0][:, 0])
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(rotary(query[0, 0])[0], wanted[0][0, 0])


def test_position_ids_of_rotary_are_the_positions_of_tokens() -> None:
    x, rotary = draw(2, 3, 5, 8), Rotary()
    ids = torch.tensor([[7, 0, 3, 3, 100], [1, 2, 0, 1, 0]])
    alone = [
        [rotary(x[b, :, t : t + 1], position_range=PositionRange(int(ids[b, t]), 1, 101))[0] for t in range(5)]
        for b in range(2)
    ]
    wanted = torch.stack([torch.cat(row, dim=1) for row in alone])
    assert torch.equal(rotary(x, position_ids=ids)[0], wanted)
    assert torch.equal(rotary(x[:, 0], position_ids=ids)[0], wanted[:, 0])
    assert torch.equal(rotary(x[0], position_ids=ids[0])[0], wanted[0])
    assert torch.equal(rotary(x, position_ids=range(5))[0], rotary(x)[0])


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        ((), {}),
        ((draw(8),), {}),
        ((draw(1, 2, 3, 4, 8),), {}),
        ((draw(2, 5, 8), draw(2, 4, 8)), {}),
        ((draw(2, 5, 8),), {"position_ids": torch.arange(4)}),
        ((draw(2, 5, 8),), {"position_ids": torch.zeros(3, 5, dtype=torch.long)}),
        ((draw(5, 8),), {"position_ids": torch.zeros(2, 5, dtype=torch.long)}),
        ((draw(2, 5, 8),), {"position_ids": torch.arange(5.0)}),
        ((draw(2, 5, 8),), {"position_ids": torch.arange(5), "position_range": PositionRange(0, 5, 5)}),
    ],
)
def test_what_rotary_cannot_rotate_is_refused(tensors, options) -> None:
    with pytest.raises(qkv.errors.QkvError):
        Rotary()(*tensors, **options)
