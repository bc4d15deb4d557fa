"""Encoder, Decoder and EncoderDecoder: layers written out, weights, caches."""

import copy
from math import nan

import pytest
import torch

from qkv import nn
from tests.helpers.frozen_reference import (
    PLACES,
    STORED,
    blocks_of,
    causal,
    close,
    embedding_of,
    feed_forward,
    integers,
    key_padding,
    multihead,
    normalized,
    numbers,
    only,
    outer_norms,
    randomize,
    refused,
    unembed,
    within,
)

BATCH, N, M = 3, 7, 11
WIDTH, HEADS, LAYERS, VOCABULARY = 24, 6, 2, 13
LENGTHS = torch.tensor([7, 2, 5])
SOURCE_LENGTHS = torch.tensor([4, 11, 1])

by_place = pytest.mark.parametrize("place", PLACES)
by_layout = pytest.mark.parametrize("layout", ["residual", "post-norm", "pre-norm"])


def build(kind, *, place="none", seed=0, dtype=torch.float64, **options):
    options = {"kv_heads": 3, **options}
    if place != "none":
        options["positions"] = PLACES[place].make(HEADS, WIDTH)
    if kind is not nn.Encoder:
        options["vocabulary"] = VOCABULARY
    return randomize(kind(WIDTH, HEADS, LAYERS, **options), seed, dtype).eval(), options.get("positions")


def words(n=N, seed=0, batch=BATCH):
    return integers(VOCABULARY, batch, n, seed=seed)


def layer(block, x, layout, *, seen=None, context=None, context_seen=None, place="none", at=None):
    added = PLACES[place].added is not None  # by the stack, once
    parts = [
        lambda y: multihead(block.attention, y, HEADS, 3, seen=seen, place="none" if added else place, positions=at)[0]
    ]
    if context is not None:
        parts.append(lambda y: multihead(block.cross, y, HEADS, 3, context=context, seen=context_seen)[0])
    parts.append(lambda y: feed_forward(block.feed_forward, y))
    if layout == "residual":
        for part in parts[:-1]:
            x = part(x) + x
        return parts[-1](x)
    for part, norm in zip(parts, block.norms, strict=True):
        x = normalized(norm, x + part(x)) if layout == "post-norm" else x + part(normalized(norm, x))
    return x


def stack(blocks, x, final=None, *, layout="pre-norm", place="none", at=None, **options):
    if PLACES[place].added is not None:
        x = x + PLACES[place].added(at, x.shape[1], WIDTH)
    for block in blocks:
        x = layer(block, x, layout, place=place, at=at, **options)
    return x if final is None else normalized(final, x)


def last_norm(model, *inputs, **options):
    ran = outer_norms(model, *inputs, **options)
    return ran[-1] if ran else None


@by_place
@by_layout
def test_decoder(place, layout):
    model, at = build(nn.Decoder, place=place, layout=layout)
    final = last_norm(model, words())
    assert (final is not None) == (layout == "pre-norm")
    x = embedding_of(model, VOCABULARY)[words()]
    x = stack(blocks_of(model), x, final, layout=layout, place=place, at=at, seen=causal(N))
    found = model(words())
    assert found.shape == (BATCH, N, VOCABULARY)
    close(found, unembed(model, x, VOCABULARY))


@pytest.mark.slow
@by_place
@by_layout
def test_encoder(place, layout):
    model, at = build(nn.Encoder, place=place, layout=layout)
    x = numbers(BATCH, N, WIDTH)
    final = last_norm(model, x)
    assert (final is not None) == (layout == "pre-norm")
    options = {"layout": layout, "place": place, "at": at}
    close(model(x), stack(blocks_of(model), x, final, **options))
    keep = within(LENGTHS, N)
    wanted = stack(blocks_of(model), x, final, **options, seen=key_padding(keep))
    x[~keep] = nan
    close(model(x, LENGTHS)[keep], wanted[keep])
    close(model(x, keep=keep)[keep], wanted[keep])


def test_encoder_with_words_and_classes():
    model, _ = build(nn.Encoder, vocabulary=VOCABULARY, classes=5, place="sinusoidal")
    final = last_norm(model, words())
    x, keep = embedding_of(model, VOCABULARY)[words()], within(LENGTHS, N)
    x = stack(blocks_of(model), x, final, place="sinusoidal", seen=key_padding(keep))
    mean = torch.stack([x[b, : LENGTHS[b]].mean(0) for b in range(BATCH)])
    found = model(words(), LENGTHS)
    assert found.shape == (BATCH, 5)
    close(found, unembed(model, mean, 5))
    everything = stack(blocks_of(model), embedding_of(model, VOCABULARY)[words()], final, place="sinusoidal")
    close(model(words()), unembed(model, everything.mean(1), 5))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["none", "sinusoidal", "learned", "rotary", "alibi", "buckets"])
@by_layout
def test_encoder_decoder(place, layout):
    """Positions belong to self-attention: cross-attention has none."""
    ahead = PLACES[place].make(HEADS, WIDTH)
    model, at = build(nn.EncoderDecoder, place=place, layout=layout, decoder_layers=3, decoder_positions=ahead)
    source, target = words(M, 1), words()
    norms = outer_norms(model, source, target)
    assert len(norms) == (2 if layout == "pre-norm" else 0)
    first, last = norms or (None, None)
    encoders = [block for block in blocks_of(model) if block.cross is None]
    decoders = [block for block in blocks_of(model) if block.cross is not None]
    assert (len(encoders), len(decoders)) == (LAYERS, 3)
    table, real = embedding_of(model, VOCABULARY), key_padding(within(SOURCE_LENGTHS, M))
    options = {"layout": layout, "place": place}
    cache = stack(encoders, table[source], first, at=at, seen=real, **options)
    x = stack(decoders, table[target], last, at=ahead, seen=causal(N), context=cache, context_seen=real, **options)
    inside = within(SOURCE_LENGTHS, M)
    close(model.encode(source, SOURCE_LENGTHS)[inside], cache[inside])
    found = model(source, target, SOURCE_LENGTHS)
    close(found, unembed(model, x, VOCABULARY))
    keep = within(LENGTHS, N)
    close(model(source, target, SOURCE_LENGTHS, LENGTHS)[keep], found[keep])


def disturbed(tokens, keep, seed):
    return torch.where(keep, tokens, words(tokens.shape[1], seed))


@pytest.mark.slow
@by_place
@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_padding_cannot_matter(kind, place):
    """Words that are padding become any others; answers at real ones stay, and so do the classes."""
    keep, kept = within(LENGTHS, N), within(SOURCE_LENGTHS, M)
    if kind == "encoder":
        model, _ = build(nn.Encoder, vocabulary=VOCABULARY, place=place)
        runs = [model(disturbed(words(), keep, seed), LENGTHS)[keep] for seed in range(3)]
        sorts, _ = build(nn.Encoder, vocabulary=VOCABULARY, classes=5, place=place)
        close(sorts(disturbed(words(), keep, 1), LENGTHS), sorts(words(), keep=keep))
    elif kind == "decoder":
        model, _ = build(nn.Decoder, place=place)
        runs = [model(disturbed(words(), keep, seed), LENGTHS)[keep] for seed in range(2)]
        runs += [model(disturbed(words(), keep, seed))[keep] for seed in range(2)]  # causal is enough
        runs.append(model(words(), keep=keep)[keep])
    else:
        model, _ = build(nn.EncoderDecoder, place=place)
        runs = [
            model(disturbed(words(M, 5), kept, a), disturbed(words(), keep, b), SOURCE_LENGTHS, lengths)[keep]
            for a, b, lengths in ((0, 0, None), (1, 2, None), (3, 0, LENGTHS))
        ]
    for other in runs[1:]:
        close(other, runs[0])
    together = runs[0].split(LENGTHS.tolist())
    if kind != "encoder-decoder":
        for b, n in enumerate(LENGTHS.tolist()):
            close(together[b], model(words()[b : b + 1, :n])[0])


@by_place
def test_the_future_cannot_matter(place):
    decoder, _ = build(nn.Decoder, place=place)
    both, _ = build(nn.EncoderDecoder, place=place)
    past = (torch.arange(N) < 4).expand(BATCH, N)
    close(decoder(disturbed(words(), past, 9))[:, :4], decoder(words())[:, :4])
    source = words(M, 5)
    close(both(source, disturbed(words(), past, 9))[:, :4], both(source, words())[:, :4])
    encoder, _ = build(nn.Encoder, vocabulary=VOCABULARY, place=place)
    assert (encoder(disturbed(words(), past, 9)) - encoder(words()))[:, :4].abs().max() > 1e-4


@pytest.mark.parametrize("place", ["none", "rotary", "rotary, part", "alibi", "buckets, one way"])
def test_padding_on_the_left_needs_keep(place):
    model, _ = build(nn.Decoder, place=place)
    keep = within(LENGTHS, N).flip(1)
    found = model(disturbed(words(), keep, 1), keep=keep)
    for b, n in enumerate(LENGTHS.tolist()):
        close(found[b, N - n :], model(words()[b : b + 1, N - n :])[0])


def check_weights(weights, seen, real):
    assert weights.shape == (BATCH, HEADS, *seen.shape[-2:])
    seen = seen.expand_as(weights)
    assert not weights[~seen].any()
    sums = weights.sum(-1).transpose(1, 2)[real]
    close(sums, torch.ones_like(sums))


@by_layout
def test_weights_of_every_layer_and_head(layout):
    keep, kept = within(LENGTHS, N), within(SOURCE_LENGTHS, M)
    encoder, _ = build(nn.Encoder, layout=layout, vocabulary=VOCABULARY)
    answer, weights = encoder(words(), LENGTHS, return_weights=True)
    close(answer, encoder(words(), LENGTHS))
    assert [len(w) for w in weights] == [1] * LAYERS
    for (own,) in weights:
        check_weights(own, key_padding(keep).expand(BATCH, 1, N, N), keep)
    decoder, _ = build(nn.Decoder, layout=layout)
    answer, weights = decoder(words(), LENGTHS, return_weights=True)
    close(answer[keep], decoder(words())[keep])
    for (own,) in weights:
        check_weights(own, causal(N) & key_padding(keep), keep)
    both, _ = build(nn.EncoderDecoder, layout=layout, decoder_layers=3)
    answer, weights = both(words(M, 1), words(), SOURCE_LENGTHS, return_weights=True)
    close(answer, both(words(M, 1), words(), SOURCE_LENGTHS))
    assert set(weights) == {"encoder", "decoder"}
    assert (len(weights["encoder"]), len(weights["decoder"])) == (LAYERS, 3)
    for (own,) in weights["encoder"]:
        check_weights(own, key_padding(kept).expand(BATCH, 1, M, M), kept)
    for own, cross in weights["decoder"]:
        check_weights(own, causal(N).expand(BATCH, 1, N, N), torch.ones_like(keep))
        check_weights(cross, key_padding(kept).expand(BATCH, 1, N, M), torch.ones_like(keep))


def test_a_decoder_that_reads_a_context():
    model, _ = build(nn.Decoder, cross=True)
    context, kept = numbers(BATCH, M, WIDTH), within(SOURCE_LENGTHS, M)
    final = last_norm(model, words(), context=context)
    x = embedding_of(model, VOCABULARY)[words()]
    options = {"seen": causal(N), "context": context.clone(), "context_seen": key_padding(kept)}
    wanted = unembed(model, stack(blocks_of(model), x, final, **options), VOCABULARY)
    context[~kept] = nan
    close(model(words(), context=context, context_lengths=SOURCE_LENGTHS), wanted)
    close(model(words(), context=context, context_keep=kept), wanted)
    cache = model.cache(BATCH)
    with torch.no_grad():
        parts = [model(part, context=context, context_keep=kept, cache=cache) for part in words().split([4, 1, 2], 1)]
    close(torch.cat(parts, 1), wanted, STORED)


@pytest.mark.slow
@by_place
def test_with_caches(place):
    model, _ = build(nn.Decoder, place=place)
    wanted = model(words())
    for chunks in ([N], [1] * N, [3, 1, 3]):
        cache = model.cache(BATCH)
        assert isinstance(cache, list)
        assert len(cache) == LAYERS
        with torch.no_grad():
            found = torch.cat([model(part, cache=cache) for part in words().split(chunks, 1)], 1)
        close(found, wanted, STORED)


@pytest.mark.slow
@by_place
@pytest.mark.parametrize("side", ["right by lengths", "right", "left"])
def test_rows_of_different_lengths_with_caches(place, side):
    model, _ = build(nn.Decoder, place=place)
    cache, keep, more = model.cache(BATCH), within(LENGTHS, N), words(2, 8)
    keep = keep.flip(1) if side == "left" else keep
    given = {"lengths": LENGTHS} if side == "right by lengths" else {"keep": keep}
    with torch.no_grad():
        found = model(disturbed(words(), keep, 3), **given, cache=cache)
        after = model(more, cache=cache)
    assert [m.lengths.tolist() for m in cache] == [(LENGTHS + 2).tolist()] * LAYERS
    for b in range(BATCH):
        row = torch.cat([words()[b][keep[b]], more[b]])[None]
        close(torch.cat([found[b][keep[b]], after[b]])[None], model(row), STORED)


def test_tied_untied_and_shared():
    tied, _ = build(nn.Decoder)
    untied, _ = build(nn.Decoder, tied=False)
    matrices = [[p for p in m.parameters() if p.shape == (VOCABULARY, WIDTH)] for m in (tied, untied)]
    assert [len(found) for found in matrices] == [1, 2]
    x = stack(blocks_of(untied), embedding_of(untied, VOCABULARY)[words()], last_norm(untied, words()), seen=causal(N))
    close(untied(words()), unembed(untied, x, VOCABULARY))
    for place in ("buckets", "learned"):
        model, at = build(nn.Decoder, place=place)
        assert sum(p is only(at) for p in model.parameters()) == 1, "one object for all layers"
        model(words()).square().sum().backward()
        assert only(at).grad.any()
        twin = copy.deepcopy(model)
        assert len(list(twin.parameters())) == len(list(model.parameters()))
        close(twin(words()), model(words()))
        other, _ = build(nn.Decoder, place=place, seed=4)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(words()), model(words()))


@pytest.mark.parametrize("final", [True, False])
def test_final_norm_on_request(final):
    for layout in ("pre-norm", "post-norm"):
        model, _ = build(nn.Decoder, layout=layout, final_norm=final)
        norm = last_norm(model, words())
        assert (norm is not None) == final
        x = stack(blocks_of(model), embedding_of(model, VOCABULARY)[words()], norm, layout=layout, seen=causal(N))
        close(model(words()), unembed(model, x, VOCABULARY))


@pytest.mark.parametrize("kind", ["Decoder", "EncoderDecoder"])
def test_autocast_and_training(kind):
    model, _ = build(getattr(nn, kind), place="rotary", dtype=torch.float32)
    given = (words(),) if kind == "Decoder" else (words(M, 1), words(), SOURCE_LENGTHS)
    wanted = model(*given)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.train()(*given)
    close(found, wanted, {"atol": 0.4, "rtol": 0.1})
    loss = torch.nn.functional.cross_entropy(found.float().flatten(0, 1), words(seed=2).flatten())
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


REFUSED = {
    "a hole in keep with a cache": lambda m: m(words(), keep=torch.arange(N).expand(3, N) != 3, cache=m.cache(3)),
    "padding on both sides with a cache": lambda m: m(
        words(), keep=torch.stack([torch.arange(N) < 3, torch.arange(N) > 3, torch.arange(N) < 9]), cache=m.cache(3)
    ),
    "a context without cross attention": lambda m: m(words(), context=numbers(BATCH, M, WIDTH)),
    "weights with a cache": lambda m: m(words(), cache=m.cache(3), return_weights=True),
    "floats for words": lambda m: m(numbers(BATCH, N, WIDTH)),
    "lengths beyond the tokens": lambda m: m(words(), torch.tensor([1, 2, N + 1])),
    "too few caches": lambda m: m(words(), cache=m.cache(3)[:1]),
    "no layers": lambda _: nn.Decoder(WIDTH, HEADS, 0, vocabulary=VOCABULARY),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(what):
    model, _ = build(nn.Decoder)
    with torch.no_grad(), refused():
        REFUSED[what](model)
