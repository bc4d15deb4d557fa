"""What a user without context broke: padding, caches out of step, maps in half precision, shared weights."""

import pytest
import torch

import qkv
from qkv import nn
from qkv.errors import OptionError

ELU1 = qkv.FeatureMap(qkv.features.elu1)
RELU = qkv.FeatureMap(qkv.features.relu)


@pytest.mark.parametrize("positions", [nn.Rotary, lambda: nn.Learned(9, 8), lambda: nn.Sinusoidal(8)])
@pytest.mark.parametrize("similarity", [None, ELU1, RELU])
def test_a_row_padded_on_the_left_is_the_row_alone(positions, similarity) -> None:
    """φ(Rq)·φ(Rk) depends on where both stand, and not on their distance alone."""
    torch.manual_seed(0)
    model = nn.Decoder(8, 2, 2, vocabulary=7, positions=positions(), similarity=similarity).eval()
    tokens = torch.randint(0, 7, (1, 6))
    keep = torch.tensor([[False, False, False, True, True, True]])
    with torch.no_grad():
        alone = model(tokens[:, 3:])
        torch.testing.assert_close(model(tokens, keep=keep)[:, 3:], alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(tokens, keep=keep, cache=model.cache(1))[:, 3:], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_padding_cannot_matter_on_the_way_back(poison) -> None:
    model = nn.Encoder(8, 2, 2, classes=3).eval()
    x = torch.randn(2, 6, 8)
    x[1, 3:] = poison
    model(x, lengths=[6, 3]).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_padding_may_be_no_token() -> None:
    model = nn.Decoder(8, 2, 1, vocabulary=7).eval()
    tokens = torch.tensor([[1, 2, -100], [0, 1, 2]])
    found = model(tokens, lengths=[2, 3])
    torch.testing.assert_close(found[0, :2], model(tokens[:1, :2])[0])


def test_an_error_gives_back_what_layers_before_it_appended() -> None:
    torch.manual_seed(0)
    model = nn.Decoder(8, 2, 3, vocabulary=7, positions=nn.Rotary()).eval()
    tokens = torch.randint(0, 7, (2, 9))

    def stop(*args) -> None:
        raise KeyboardInterrupt

    with torch.no_grad():
        whole, cache = model(tokens), model.cache(2)
        model(tokens[:, :4], cache=cache)
        hook = model.layers[1].register_forward_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            model(tokens[:, 4:5], cache=cache)
        hook.remove()
        assert [layer.length for layer in cache] == [4, 4, 4]
        torch.testing.assert_close(model(tokens[:, 4:], cache=cache), whole[:, 4:], rtol=1e-5, atol=1e-5)


def test_memories_out_of_step_are_refused() -> None:
    model = nn.Decoder(8, 2, 3, vocabulary=7).eval()
    tokens = torch.randint(0, 7, (2, 4))
    with torch.no_grad():
        cache = model.cache(2)
        with pytest.raises(OptionError, match="several layers"):
            model(tokens, cache=[cache[0]] * 3)
        model(tokens, cache=cache)
        cache[1].reset()
        with pytest.raises(OptionError, match="layer 1"):
            model(tokens, cache=cache)
        assert [layer.length for layer in cache] == [4, 0, 4]


def test_a_state_that_an_error_left_behind_is_found_out() -> None:
    model = nn.Decoder(8, 2, 2, vocabulary=7, similarity=ELU1).eval()
    cache = model.cache(1)
    hook = model.layers[1].register_forward_pre_hook(lambda *args: 1 / 0)
    with torch.no_grad():
        with pytest.raises(ZeroDivisionError):
            model(torch.tensor([[1, 2]]), cache=cache)
        hook.remove()
        with pytest.raises(OptionError, match="reset"):
            model(torch.tensor([[1, 2]]), cache=cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_learned_map_in_half_precision_and_under_autocast(dtype) -> None:
    torch.manual_seed(0)
    learned = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Softplus())
    layer = nn.Attention(8, 2, similarity=qkv.FeatureMap(learned))
    x = torch.randn(2, 3, 8)
    wanted = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(x).float(), wanted, rtol=0.05, atol=0.05)
    torch.testing.assert_close(layer.to(dtype)(x.to(dtype)).float(), wanted, rtol=0.05, atol=0.05)


def test_functional_call_leaves_shared_weights_alone() -> None:
    model = nn.EncoderDecoder(8, 2, 2, vocabulary=5).eval()
    tokens = torch.randint(0, 5, (2, 3))
    before = model(tokens, tokens)
    zeros = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    torch.func.functional_call(model, zeros, (tokens, tokens))
    assert torch.equal(model(tokens, tokens), before)


def test_adapters_in_a_projections_place() -> None:
    class Adapter(torch.nn.Module):
        def __init__(self, inner) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    model = nn.Decoder(8, 2, 1, vocabulary=5).eval()
    tokens = torch.tensor([[1, 2, 3]])
    before = model(tokens)
    model.layers[0].attention.query = Adapter(model.layers[0].attention.query)
    assert torch.equal(model(tokens), before)


def test_per_sample_gradients() -> None:
    model = nn.Decoder(8, 2, 1, vocabulary=5).eval()
    weights = dict(model.named_parameters())

    def loss(weights, tokens):
        return torch.func.functional_call(model, weights, (tokens[None],)).square().sum()

    tokens = torch.randint(0, 5, (3, 4))
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, tokens)
    alone, name = torch.func.grad(loss)(weights, tokens[1]), "layers.0.attention.query.weight"
    torch.testing.assert_close(each[name][1], alone[name])


def test_nothing_to_pool_is_zero() -> None:
    model = nn.Encoder(8, 2, 1, vocabulary=5, classes=3)
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    assert torch.equal(model(nothing), model(nothing, lengths=[0, 0]))


def test_weights_that_are_no_numbers_generate_nothing() -> None:
    model = nn.Decoder(8, 2, 1, vocabulary=7)
    model.embedding.weight.data[3] = torch.nan
    for options in ({}, {"beams": 2}, {"temperature": 1.0, "seed": 0}):
        with pytest.raises(OptionError, match="no numbers"):
            nn.generate(model, torch.tensor([[1, 2]]), new=3, **options)


def test_files_keep_modes_and_links(tmp_path) -> None:
    model = nn.Decoder(8, 2, 1, vocabulary=5)
    file, link = tmp_path / "a", tmp_path / "link"
    file.touch()
    file.chmod(0o664)
    link.symlink_to(file)
    nn.save(model, link)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o664
    assert isinstance(nn.load(file), nn.Decoder)
    with pytest.raises(OptionError, match="a file"):
        nn.save(model, tmp_path)
    with pytest.raises(OptionError, match="a file"):
        nn.save(model, "/dev/null")


def test_argmax_blocks_take_dropout_and_what_cannot_go_together_is_refused_at_once() -> None:
    nn.Block(8, 2, dropout=0.1, similarity=qkv.Argmax())(torch.randn(1, 3, 8))
    for wrong in (
        {"positions": nn.ALiBi(2), "similarity": qkv.Polynomial(2)},
        {"similarity": qkv.Softmax(sink=torch.nn.Parameter(torch.zeros(3)))},
    ):
        with pytest.raises(qkv.errors.QkvError):
            nn.Attention(8, 2, **wrong)
