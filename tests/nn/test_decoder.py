"""`Decoder` and `EncoderDecoder`: causal, the same with a cache and without, and able to learn."""

import copy
import os
import subprocess
import sys

import pytest
import torch

import qkv
from qkv.nn import ALiBi, Decoder, EncoderDecoder, Learned, RelativeBias, Rotary, Sinusoidal

WIDTH, HEADS, LAYERS, VOCABULARY = 12, 3, 2, 31
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
def test_a_memory_in_a_smaller_format() -> None:
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
def test_cross_attention_with_a_memory() -> None:
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


def test_compiled_in_one_graph() -> None:
    # In a process of its own: here beartype looks at every call, which no compiler can follow.
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


@pytest.mark.parametrize("similarity", [None, ELU1], ids=["softmax", "elu1"])
def test_gradients_are_the_numeric_ones(similarity) -> None:
    torch.manual_seed(0)
    model = Decoder(4, 2, 1, vocabulary=5, positions=Learned(3, 4), similarity=similarity, hidden=3).double()
    names, tokens = [name for name, _ in model.named_parameters()], torch.tensor([[0, 4, 2], [1, 1, 3]])

    def run(*weights):
        return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (tokens, [3, 2]))

    assert torch.autograd.gradcheck(run, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


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


def test_what_cannot_be() -> None:
    model, tokens = decoder_of(positions=Learned(5, WIDTH)), tokens_of(2, 5)
    cache = model.cache(2)
    hole = torch.tensor([[True, False, True, True, True], [True] * 5])
    sides = torch.tensor([[False, True, True, True, True], [True, True, True, True, False]])
    cross = decoder_of(cross=True)
    for call, error, says in (
        (lambda: model(tokens, cache=cache), qkv.errors.BackendRefused, "requires grad"),
        (lambda: model(tokens, cache=cache[:1]), qkv.errors.OptionTypeError, "a list of 2"),
        (lambda: model(tokens, cache=cache[0]), qkv.errors.OptionTypeError, "KVCache"),
        (lambda: model(tokens, keep=hole, cache=cache), qkv.errors.MaskError, "one run"),
        (lambda: model(tokens, keep=sides, cache=cache), qkv.errors.MaskError, "one run"),
        (lambda: model(tokens, keep=hole[:, :3], cache=cache), qkv.errors.MaskError, "keep"),
        (lambda: model(tokens, return_weights=True, cache=cache), qkv.errors.OptionError, "return_weights"),
        (lambda: model(tokens_of(2, 6)), qkv.errors.ShapeError, "at most 5"),
        (lambda: model(tokens, context=torch.zeros(2, 3, WIDTH)), qkv.errors.OptionError, "cross=False"),
        (lambda: cross(tokens), qkv.errors.OptionError, "cross=True"),
        (lambda: cross(tokens, context=[]), qkv.errors.OptionError, "one a layer"),
        (lambda: Decoder(WIDTH, HEADS, 1, vocabulary=None), qkv.errors.OptionTypeError, "vocabulary"),
    ):
        with pytest.raises(error, match=says):
            call()
    assert [layer.length for layer in cache] == [0, 0]
