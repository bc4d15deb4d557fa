"""`Encoder`: padding cannot matter, positions are applied once, and what is pooled is the mean of real tokens."""

import pytest
import torch

import qkv
from qkv.nn import ALiBi, Encoder, Learned, RelativeBias, Rotary, Sinusoidal
from qkv.nn.positions import PositionRange

WIDTH, HEADS, LAYERS, VOCABULARY = 12, 3, 2, 31
POSITIONS = {
    "none": lambda: None,
    "rotary": Rotary,
    "alibi": lambda: ALiBi(HEADS),
    "relative": lambda: RelativeBias(HEADS),
    "learned": lambda: Learned(11, WIDTH),
    "sinusoidal": lambda: Sinusoidal(WIDTH),
}


def encoder_of(**options) -> Encoder:
    torch.manual_seed(0)
    return Encoder(WIDTH, HEADS, LAYERS, **options).double()


def tokens_of(batch: int, n: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("positions", list(POSITIONS.values()), ids=list(POSITIONS))
@pytest.mark.parametrize("classes", [None, 5])
@torch.no_grad()
def test_a_padded_row_is_the_row_alone(positions, classes) -> None:
    model = encoder_of(vocabulary=VOCABULARY, classes=classes, positions=positions())
    tokens, lengths, n = tokens_of(3, 7), [4, 7, 1], 7
    left = torch.stack([row.roll(n - count) for row, count in zip(tokens, lengths, strict=True)])
    right = torch.arange(n) < torch.tensor(lengths).unsqueeze(1)
    for given, options in (
        (tokens, {"lengths": lengths}),
        (tokens, {"keep": right}),
        (left, {"keep": right.flip(1)}),
    ):
        out = model(given, **options)
        for row, count in enumerate(lengths):
            alone = model(tokens[row : row + 1, :count])
            found = out[row : row + 1]
            if classes is None:
                found = found[:, n - count :] if given is left else found[:, :count]
            torch.testing.assert_close(found, alone)


@pytest.mark.parametrize("layout", ["residual", "post-norm", "pre-norm"])
@torch.no_grad()
def test_a_stack_is_its_blocks(layout) -> None:
    positions = Sinusoidal(WIDTH)
    model = encoder_of(positions=positions, layout=layout, similarity=qkv.Softmax(scale=0.3))
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    y = positions(x, PositionRange(0, 5, 5))
    for block in model.layers:
        assert block.attention.positions is None
        y = block(y, mask=qkv.Padding([5, 3]))
    assert (model.norm is not None) is (layout == "pre-norm")
    wanted = y if model.norm is None else model.norm(y)
    found = model(x, [5, 3])
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1, :3], wanted[1, :3])
    assert encoder_of(final_norm=True, layout="post-norm").norm is not None
    assert encoder_of(final_norm=False).norm is None


def test_other_positions_are_one_object_for_all_layers() -> None:
    bias = RelativeBias(HEADS)
    model = encoder_of(positions=bias)
    assert all(block.attention.positions is bias for block in model.layers)
    model(torch.randn(2, 5, WIDTH, dtype=torch.float64)).square().sum().backward()
    assert bias.weight.grad is not None
    assert sum(p is bias.weight for p in model.parameters()) == 1


@torch.no_grad()
def test_padding_may_hold_anything() -> None:
    model = encoder_of(classes=5)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    wanted = model(x, [3, 7])
    x[0, 3:] = torch.nan
    torch.testing.assert_close(model(x, [3, 7]), wanted)
    assert wanted.isfinite().all()
    torch.testing.assert_close(model(x, [0, 7])[0], model.head.bias)


@torch.no_grad()
def test_weights_of_every_layer() -> None:
    model = encoder_of(vocabulary=VOCABULARY)
    out, weights = model(tokens_of(2, 5), [5, 2], return_weights=True)
    torch.testing.assert_close(out, model(tokens_of(2, 5), [5, 2]))
    assert [[tuple(w.shape) for w in layer] for layer in weights] == [[(2, HEADS, 5, 5)]] * LAYERS
    assert not weights[1][0][1, :, :, 2:].any()


def test_learns_to_count() -> None:
    torch.manual_seed(0)
    model = Encoder(16, 2, 1, vocabulary=7, classes=2, similarity=qkv.FeatureMap(qkv.features.elu1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        tokens, lengths = torch.randint(7, (64, 5)), torch.randint(1, 6, (64,))
        real = torch.arange(5) < lengths.unsqueeze(1)
        answer = ((tokens == 3) & real).any(1).long()
        loss = torch.nn.functional.cross_entropy(model(tokens, lengths), answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2  # chance is 0.66


def test_what_cannot_be() -> None:
    model, features = encoder_of(vocabulary=VOCABULARY), encoder_of()
    tokens = tokens_of(2, 5)
    for call, error, says in (
        (lambda: model(tokens + 27), qkv.errors.OptionError, "the vocabulary"),
        (lambda: model(tokens - 5), qkv.errors.OptionError, "number -"),
        (lambda: model(tokens.double()), qkv.errors.DtypeError, "integers"),
        (lambda: model(tokens[0]), qkv.errors.ShapeError, r"\(batch, n\)"),
        (lambda: model(tokens, [1, 2], keep=tokens > 3), qkv.errors.OptionError, "exactly one"),
        (lambda: model(tokens, [6, 2]), qkv.errors.MaskError, "len_k = 5"),
        (lambda: features(tokens), qkv.errors.ShapeError, r"\(batch, n, 12\)"),
        (lambda: encoder_of(positions=Learned(4, WIDTH), vocabulary=9)(tokens % 9), qkv.errors.ShapeError, "most 4"),
        (lambda: encoder_of(positions=Sinusoidal(5)), qkv.errors.ShapeError, "width 5"),
        (lambda: Encoder(WIDTH, HEADS, 0), qkv.errors.OptionError, "layers"),
    ):
        with pytest.raises(error, match=says):
            call()
