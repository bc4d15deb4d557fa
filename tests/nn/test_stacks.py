"""`Encoder`, `Decoder` and `EncoderDecoder`: causal, the same with a cache and without, independent of padding."""

import copy
import itertools
import os
import subprocess
import sys

import pytest
import torch

import qkv
from qkv import nn
from qkv.errors import OptionError
from qkv.nn import ALiBi, Decoder, Encoder, EncoderDecoder, Learned, RelativeBias, Rotary, Sinusoidal
from qkv.nn.positions import PositionRange

WIDTH, HEADS, LAYERS, VOCABULARY = 12, 3, 2, 31
ENCODER_POSITIONS = {
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


@pytest.mark.parametrize("positions", list(ENCODER_POSITIONS.values()), ids=list(ENCODER_POSITIONS))
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


def test_encoder_refuses() -> None:
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


ELU1 = qkv.FeatureMap(qkv.features.elu1)
POSITIONS = {
    "none": lambda: None,
    "rotary": Rotary,
    "alibi": lambda: ALiBi(HEADS),
    "relative": lambda: RelativeBias(HEADS, bidirectional=False),
    "learned": lambda: Learned(13, WIDTH),
    "sinusoidal": lambda: Sinusoidal(WIDTH),
}
ALL = pytest.mark.parametrize("positions", list(POSITIONS.values()), ids=list(POSITIONS))
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # a KVCache stores float32


def decoder_of(**options) -> Decoder:
    torch.manual_seed(0)
    return Decoder(WIDTH, HEADS, LAYERS, vocabulary=VOCABULARY, **options).double()


def pair_of(**options) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(WIDTH, HEADS, LAYERS, vocabulary=VOCABULARY, **options).double()


def tokens_of(batch: int, n: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


@ALL
@torch.no_grad()
def test_no_token_sees_a_later_one(positions) -> None:
    model, tokens = decoder_of(positions=positions()), tokens_of(2, 7)
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % VOCABULARY
    out, changed = model(tokens), model(other)
    assert torch.equal(out[:, :4], changed[:, :4])
    assert not torch.isclose(out[:, 4:], changed[:, 4:]).all(-1).any()


@ALL
@torch.no_grad()
def test_padding_on_either_side_leaves_the_row_alone(positions) -> None:
    model, tokens, lengths, n = decoder_of(positions=positions()), tokens_of(3, 7), [4, 7, 1], 7
    right = torch.arange(n) < torch.tensor(lengths).unsqueeze(1)
    left = torch.stack([row.roll(n - count) for row, count in zip(tokens, lengths, strict=True)])
    for row, count in enumerate(lengths):
        alone = model(tokens[row : row + 1, :count])[0]
        torch.testing.assert_close(model(tokens)[row, :count], alone)
        torch.testing.assert_close(model(tokens, lengths)[row, :count], alone)
        torch.testing.assert_close(model(tokens, keep=right)[row, :count], alone)
        torch.testing.assert_close(model(left, keep=right.flip(1))[row, n - count :], alone)


SIMILARITIES = {"softmax": None, "elu1": ELU1, "argmax": qkv.Argmax()}
PAIRS = [
    pytest.param(positions, similarity, id=f"{name}-{kind}")
    for name, positions in POSITIONS.items()
    for kind, similarity in SIMILARITIES.items()
    if kind == "softmax" or name not in ("alibi", "relative")  # others take no bias
]


@pytest.mark.parametrize(("positions", "similarity"), PAIRS)
@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_prefill_and_steps_are_the_whole(positions, similarity, side) -> None:
    model = decoder_of(positions=positions(), similarity=similarity)
    lengths, n, new = [4, 7, 1], 7, 3
    tokens = tokens_of(3, n + new)
    prompt, keep = tokens.clone()[:, :n], torch.arange(n) < torch.tensor(lengths).unsqueeze(1)
    if side == "left":
        prompt = torch.stack([row.roll(n - count) for row, count in zip(prompt, lengths, strict=True)])
        keep = keep.flip(1)
    cache = model.cache(3)
    first = model(prompt, keep=keep, cache=cache)
    steps = [model(tokens[:, n + i : n + i + 1], cache=cache) for i in range(new)]
    assert [layer.lengths.tolist() for layer in cache] == [[7, 10, 4]] * LAYERS
    for row, count in enumerate(lengths):
        alone = model(torch.cat([tokens[row, :count], tokens[row, n:]])[None])[0]
        found = torch.cat([first[row, keep[row]], *(step[row] for step in steps)])
        torch.testing.assert_close(found, alone, **CLOSE)


@torch.no_grad()
def test_a_cache_in_a_smaller_format() -> None:
    model, tokens = decoder_of(positions=Rotary()).float(), tokens_of(2, 7)
    cache = model.cache(2, dtype=torch.int8, capacity=7)
    out = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(7)], 1)
    assert 1e-6 < (out - model(tokens)).abs().max() < 0.1
    with pytest.raises(qkv.errors.QkvError, match="capacity"):
        model(tokens[:, :1], cache=cache)


def test_tied_and_untied() -> None:
    tied, untied = decoder_of(), decoder_of(tied=False)
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(tied.logits(x), x @ tied.embedding.weight.T)
    torch.testing.assert_close(untied.logits(x), x @ untied.head.weight.T)
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 1


@torch.no_grad()
def test_encoder_and_decoder() -> None:
    model = pair_of(positions=RelativeBias(HEADS), decoder_positions=Rotary(), decoder_layers=3)
    source, target = tokens_of(2, 7), tokens_of(2, 5, seed=2)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (LAYERS, 3)
    assert model.encoder.embedding.weight is model.decoder.embedding.weight
    out = model(source, target, [3, 7], [5, 2])
    torch.testing.assert_close(out[:1], model(source[:1, :3], target[:1]))
    torch.testing.assert_close(out[1:, :2], model(source[1:], target[1:, :2]))
    other = target.clone()
    other[:, 4] = (other[:, 4] + 1) % VOCABULARY
    torch.testing.assert_close(model(source, other, [3, 7])[:, :4], model(source, target, [3, 7])[:, :4])
    logits, weights = model(source, target, [3, 7], return_weights=True)
    torch.testing.assert_close(logits, model(source, target, [3, 7]))
    assert [[tuple(w.shape) for w in layer] for layer in weights["encoder"]] == [[(2, HEADS, 7, 7)]] * LAYERS
    assert [[tuple(w.shape) for w in layer] for layer in weights["decoder"]] == [
        [(2, HEADS, 5, 5), (2, HEADS, 5, 7)]
    ] * 3
    assert not weights["encoder"][0][0][0, :, :, 3:].any()
    assert not weights["decoder"][0][1][0, :, :, 3:].any()


@torch.no_grad()
def test_cross_attention_with_a_cache() -> None:
    model = pair_of(positions=Sinusoidal(WIDTH), decoder_positions=Sinusoidal(WIDTH))
    source, target = tokens_of(2, 7), tokens_of(2, 5, seed=2)
    context = model.encode(source, [3, 7])
    cache = model.decoder.cache(2)
    for given in (context, model.decoder.project(context)):
        for layer in cache:
            layer.reset()
        steps = [
            model.decoder(target[:, i : i + 1], context=given, context_lengths=[3, 7], cache=cache) for i in range(5)
        ]
        torch.testing.assert_close(torch.cat(steps, 1), model(source, target, [3, 7]), **CLOSE)
    keep = torch.arange(7) < torch.tensor([[3], [7]])
    torch.testing.assert_close(model.decoder(target, context=context, context_keep=keep), model(source, target, [3, 7]))


PROGRAM = """
import torch
from qkv.nn import *

tokens, lengths, keep = torch.randint(31, (2, 7)), torch.tensor([7, 2]), torch.arange(7) >= torch.tensor([[0], [3]])


def same(model, *given, **options):
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*given, **options)[:1], model(*given, **options)[:1])


same(Decoder(12, 3, 1, vocabulary=31, positions=Learned(9, 12), norm="rms"), tokens, keep=keep)
positions = {"positions": RelativeBias(3), "decoder_positions": Rotary()}
same(EncoderDecoder(12, 3, 1, vocabulary=31, layout="post-norm", **positions), tokens, tokens[:, :5], lengths)
print("all the same")
"""


@pytest.mark.slow
def test_compiled_in_one_graph() -> None:
    # In a separate process: here beartype checks every call, which dynamo cannot trace.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.stdout == "all the same\n", done.stderr


@ALL
def test_autocast_float64_copies_and_state_dicts(positions) -> None:
    model, tokens = decoder_of(positions=positions(), norm="rms"), tokens_of(2, 7)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(tokens), model(tokens))
    other = decoder_of(positions=positions(), norm="rms")
    torch.nn.init.normal_(other.embedding.weight)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tokens), model(tokens))
    single = twin.float()
    with torch.autocast("cpu", torch.bfloat16):
        half = single(tokens)
        half.float().square().sum().backward()
    assert half.dtype is torch.bfloat16
    assert all(p.grad is not None and p.grad.isfinite().all() for p in single.parameters())
    torch.testing.assert_close(half.double(), model(tokens), rtol=0.05, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", [None, ELU1], ids=["softmax", "elu1"])
def test_gradients_are_the_numeric_ones(similarity) -> None:
    torch.manual_seed(0)
    model = Decoder(4, 2, 1, vocabulary=5, positions=Learned(3, 4), similarity=similarity, hidden=3).double()
    names, tokens = [name for name, _ in model.named_parameters()], torch.tensor([[0, 4, 2], [1, 1, 3]])

    def run(*weights):
        return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (tokens, [3, 2]))

    assert torch.autograd.gradcheck(run, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize(("similarity", "steps"), [(None, 40), (ELU1, 90)], ids=["softmax", "elu1"])
def test_learns_to_copy(similarity, steps) -> None:
    torch.manual_seed(0)
    options = {"similarity": similarity, "norm": "rms", "feed_forward": "gated", "positions": Rotary()}
    model = Decoder(32, 4, 2, vocabulary=11, **options)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        half = torch.randint(1, 11, (64, 5))
        tokens = torch.cat([half, torch.zeros(64, 1, dtype=torch.int64), half], dim=1)
        logits = model(tokens[:, :-1])[:, 5:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 6:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.6  # chance is log 10 = 2.3
    made = qkv.nn.generate(model, tokens[:, :6], new=5)
    assert (made.tokens == half).float().mean() > 0.8


def test_decoder_refuses() -> None:
    model, tokens = decoder_of(positions=Learned(5, WIDTH)), tokens_of(2, 5)
    cache = model.cache(2)
    hole = torch.tensor([[True, False, True, True, True], [True] * 5])
    sides = torch.tensor([[False, True, True, True, True], [True, True, True, True, False]])
    cross = decoder_of(cross=True)
    for call, error, says in (
        (lambda: model(tokens, cache=cache), qkv.errors.BackendRefused, "requires grad"),
        (lambda: model(tokens, cache=cache[:1]), qkv.errors.OptionTypeError, "a list of 2"),
        (lambda: model(tokens, cache=cache[0]), qkv.errors.OptionTypeError, "KVCache"),
        (lambda: model(tokens, keep=hole, cache=cache), qkv.errors.MaskError, "contiguous"),
        (lambda: model(tokens, keep=sides, cache=cache), qkv.errors.MaskError, "contiguous"),
        (lambda: model(tokens, keep=hole[:, :3], cache=cache), qkv.errors.MaskError, "keep"),
        (lambda: model(tokens, return_weights=True, cache=cache), qkv.errors.OptionError, "return_weights"),
        (lambda: model(tokens_of(2, 6)), qkv.errors.ShapeError, "at most 5"),
        (lambda: model(tokens, context=torch.zeros(2, 3, WIDTH)), qkv.errors.OptionError, "cross=False"),
        (lambda: cross(tokens), qkv.errors.OptionError, "cross=True"),
        (lambda: cross(tokens, context=[]), qkv.errors.OptionError, "one per layer"),
        (lambda: Decoder(WIDTH, HEADS, 1, vocabulary=None), qkv.errors.OptionTypeError, "vocabulary"),
    ):
        with pytest.raises(error, match=says):
            call()
    assert [layer.length for layer in cache] == [0, 0]


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


def test_caches_out_of_step_are_refused() -> None:
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
        with pytest.raises(OptionError, match="NaN logits"):
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
    with pytest.raises(OptionError, match="a regular file"):
        nn.save(model, tmp_path)
    with pytest.raises(OptionError, match="a regular file"):
        nn.save(model, "/dev/null")


def test_argmax_blocks_take_dropout_and_what_cannot_go_together_is_refused_at_once() -> None:
    nn.Block(8, 2, dropout=0.1, similarity=qkv.Argmax())(torch.randn(1, 3, 8))
    for wrong in (
        {"positions": nn.ALiBi(2), "similarity": qkv.Polynomial(2)},
        {"similarity": qkv.Softmax(sink=torch.nn.Parameter(torch.zeros(3)))},
    ):
        with pytest.raises(qkv.errors.QkvError):
            nn.Attention(8, 2, **wrong)


EDGES = [0, 4, 5, 5, 9]


@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("positions", [None, Rotary(), ALiBi(3), Learned(4, 12), Sinusoidal(12), RelativeBias(3)])
def test_packed_documents_are_documents_alone(kind, positions) -> None:
    torch.manual_seed(2)
    model = kind(12, 3, 2, vocabulary=31, positions=positions).double()
    tokens = torch.randint(31, (2, EDGES[-1]))
    packed = model(tokens, cu_seqlens=torch.tensor(EDGES))
    alone = [model(tokens[:, start:stop]) for start, stop in itertools.pairwise(EDGES)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=0, atol=1e-12)
    if not isinstance(positions, Learned):
        assert (model(tokens) - packed).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_a_mask_is_applied_in_every_layer_in_addition(kind) -> None:
    torch.manual_seed(2)
    model = kind(12, 3, 2, vocabulary=31, positions=Rotary())
    tokens = torch.randint(31, (2, 7))
    mask, lengths = qkv.Window(left=2, right=1), [7, 4]
    _, weights = model(tokens, lengths, mask=mask, return_weights=True)
    keys = qkv.Padding(lengths) & mask if kind is Encoder else qkv.Padding(lengths) & mask & qkv.Causal()
    wanted = keys.tile(qkv.masks.Extent(2, 3, 7, 7), (0, 7), (0, 7)).expand(2, 3, 7, 7)
    assert len(weights) == 2
    for (layer,) in weights:
        assert torch.equal(layer != 0, wanted)
    with pytest.raises(qkv.errors.MaskTypeError, match=r"qkv\.Dense"):
        model(tokens, mask=torch.ones(7, 7).bool())


def test_a_mask_with_a_cache_is_in_absolute_positions() -> None:
    torch.manual_seed(2)
    model = Decoder(12, 3, 2, vocabulary=31, positions=Rotary()).eval()
    tokens, mask = torch.randint(31, (2, 7)), qkv.Predicate(lambda b, h, q, k: (q - k) % 3 != 1)
    cache = model.cache(batch=2)
    with torch.no_grad():
        steps = [model(part, mask=mask, cache=cache) for part in tokens.split([3, 1, 2, 1], dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), model(tokens, mask=mask), rtol=1e-4, atol=1e-5)
        with pytest.raises(qkv.errors.OptionError, match="cu_seqlens"):
            model(tokens, cu_seqlens=[0, 7], cache=cache)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"cu_seqlens": [0, 3]}, "7, the number of tokens"),
        ({"cu_seqlens": [0, 3, 7], "lengths": [7, 7]}, "lengths or keep"),
        ({"cu_seqlens": [1, 7]}, "start at 0"),
    ],
)
def test_documents_that_do_not_fit_are_refused(options, word) -> None:
    for kind in (Encoder, Decoder):
        with pytest.raises(qkv.errors.QkvError, match=word):
            kind(12, 3, 1, vocabulary=31)(torch.zeros(2, 7, dtype=torch.long), **options)
    if "lengths" not in options:
        with pytest.raises(qkv.errors.OptionError, match="classes"):
            Encoder(12, 3, 1, classes=2)(torch.zeros(2, 7, 12), **options)
