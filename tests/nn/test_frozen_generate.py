"""`generate` against running the model over the whole sequence: tokens, scores and beams."""

import itertools

import pytest
import torch

from qkv import nn
from tests.helpers.frozen_reference import PLACES, close, integers, numbers, randomize, refused

WIDTH, HEADS, VOCABULARY = 24, 6, 13
BATCH, N, NEW = 3, 5, 7
LENGTHS = torch.tensor([5, 1, 3])
LOOSE = {"atol": 2e-3, "rtol": 1e-3}

by_place = pytest.mark.parametrize("place", PLACES)
by_padding = pytest.mark.parametrize("padding", ["left", "right"])


def decoder(vocabulary=VOCABULARY, *, place="rotary", seed=0, dtype=torch.float32, **options):
    positions = PLACES[place].make(HEADS, WIDTH)
    model = nn.Decoder(WIDTH, HEADS, 2, vocabulary=vocabulary, kv_heads=3, positions=positions, **options)
    return randomize(model, seed, dtype, scale=1.7).eval()


def translator(vocabulary=VOCABULARY, *, seed=0, dtype=torch.float32, **options):
    model = nn.EncoderDecoder(
        WIDTH,
        HEADS,
        1,
        vocabulary=vocabulary,
        decoder_layers=2,
        positions=nn.Sinusoidal(WIDTH),
        decoder_positions=nn.Sinusoidal(WIDTH),
        **options,
    )
    return randomize(model, seed, dtype, scale=1.7).eval()


def prompt(n=N, seed=0, batch=BATCH, vocabulary=VOCABULARY):
    return integers(vocabulary, batch, n, seed=seed)


@torch.no_grad()
def log_probabilities(model, row, source=None):
    """(length, vocabulary) of one unpadded row, by the model over the whole of it."""
    out = model(row[None]) if source is None else model(source[None], row[None])
    return out[0].double().log_softmax(-1)


def real(given, lengths, padding="left"):
    if lengths is None:
        return list(given)
    n = given.shape[1]
    return [row[n - k :] if padding == "left" else row[:k] for row, k in zip(given, lengths.tolist(), strict=True)]


def check(found, model, rows, *, sources=None, greedy=True, tolerance=2e-3):
    """Each token is the best there is, up to rounding, and scores are what the model says of them."""
    for b, row in enumerate(rows):
        count = int(found.lengths[b])
        tokens = found.tokens[b, :count]
        whole = torch.cat([row, tokens])
        said = log_probabilities(model, whole, None if sources is None else sources[b])[len(row) - 1 : -1]
        picked = said.gather(1, tokens[:, None])[:, 0]
        if greedy:
            assert (picked >= said.amax(1) - tolerance).all(), f"row {b} is not greedy"
        close(found.scores[b], picked.sum(), {"atol": count * tolerance, "rtol": 1e-3})


@pytest.mark.slow
@by_place
def test_greedy_is_the_model_over_the_whole_sequence(place):
    model = decoder(place=place)
    found = nn.generate(model, prompt(), new=NEW)
    assert isinstance(found, nn.Generation)
    assert found._fields == ("tokens", "lengths", "scores", "cache_bytes")
    assert found.tokens.shape == (BATCH, NEW)
    assert not found.tokens.is_floating_point()
    assert found.lengths.tolist() == [NEW] * BATCH
    assert isinstance(found.cache_bytes, int)
    assert found.cache_bytes > 0
    assert not found.scores.requires_grad
    check(found, model, prompt())
    rows = prompt()
    for _ in range(NEW):
        rows = torch.cat([rows, model(rows)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(found.tokens, rows[:, N:])


@pytest.mark.slow
@by_place
@by_padding
def test_padded_prompts_are_the_rows_alone(place, padding):
    model, rows = decoder(place=place), real(prompt(), LENGTHS, padding)
    found = nn.generate(model, prompt(), new=NEW, lengths=LENGTHS, padding=padding)
    check(found, model, rows)
    for b, row in enumerate(rows):
        alone = nn.generate(model, row[None], new=NEW)
        assert torch.equal(found.tokens[b], alone.tokens[0])
        close(found.scores[b], alone.scores[0], LOOSE)


@by_padding
def test_what_stands_in_the_padding_does_not_matter(padding):
    model, keep = decoder(place="learned"), torch.arange(N) < LENGTHS[:, None]
    keep = keep.flip(1) if padding == "left" else keep
    options = {"new": NEW, "lengths": LENGTHS, "padding": padding}
    wanted = nn.generate(model, prompt(), **options)
    found = nn.generate(model, torch.where(keep, prompt(), prompt(seed=9)), **options)
    assert torch.equal(found.tokens, wanted.tokens)
    assert torch.equal(found.scores, wanted.scores)


@by_padding
def test_translation(padding):
    model, source, source_lengths = translator(), prompt(11, 4), torch.tensor([4, 11, 1])
    rows, sources = real(prompt(), LENGTHS, padding), real(source, source_lengths, "right")
    options = {"lengths": LENGTHS, "padding": padding, "source_lengths": source_lengths}
    found = nn.generate(model, prompt(), new=NEW, source=source, **options)
    check(found, model, rows, sources=sources)
    spoiled = torch.where(torch.arange(11) < source_lengths[:, None], source, prompt(11, 6))
    again = nn.generate(model, prompt(), new=NEW, source=spoiled, **options)
    assert torch.equal(again.tokens, found.tokens)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_dtypes(dtype):
    model = decoder(dtype=dtype)
    found = nn.generate(model, prompt(), new=NEW)
    check(found, model, prompt(), tolerance=1e-4 if dtype is torch.float64 else 0.5)


def test_smaller_caches():
    model = decoder()
    sizes = []
    for storage, tolerance in ((torch.float32, 2e-3), (torch.bfloat16, 0.2), (torch.int8, 0.3)):
        found = nn.generate(model, prompt(), new=NEW, cache_dtype=storage)
        check(found, model, prompt(), tolerance=tolerance)
        sizes.append(found.cache_bytes)
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_row_that_stops_is_filled():
    model = decoder()
    free = nn.generate(model, prompt(), new=NEW)
    for stop in ({int(free.tokens[0, 2])}, {int(free.tokens[1, 0]), int(free.tokens[2, 3])}, set(range(VOCABULARY))):
        found = nn.generate(model, prompt(), new=NEW, stop=tuple(sorted(stop)))
        lengths = [next((i + 1 for i, t in enumerate(row) if t in stop), NEW) for row in free.tokens.tolist()]
        assert found.lengths.tolist() == lengths
        assert found.tokens.shape == (BATCH, max(lengths))
        for b, count in enumerate(lengths):
            assert torch.equal(found.tokens[b, :count], free.tokens[b, :count])
            assert (found.tokens[b, count:] == found.tokens[b, count - 1]).all()
        check(found, model, prompt())
    one = int(free.tokens[0, 2])
    assert torch.equal(
        nn.generate(model, prompt(), new=NEW, stop=one).tokens, nn.generate(model, prompt(), new=NEW, stop=[one]).tokens
    )


def test_on_token_hears_every_token_in_order():
    model, heard = decoder(), []
    stop = int(nn.generate(model, prompt(), new=NEW).tokens[1, 2])
    found = nn.generate(model, prompt(), new=NEW, stop=stop, on_token=lambda row, token: heard.append((row, token)))
    steps = range(found.tokens.shape[1])
    wanted = [(b, int(found.tokens[b, i])) for i in steps for b in range(BATCH) if i < found.lengths[b]]
    assert heard == wanted
    assert all(type(part) is int for pair in heard for part in pair)


@pytest.mark.parametrize("row", range(BATCH))
def test_on_token_can_end_it(row):
    model, heard = decoder(), []

    def hear(b, token):
        heard.append((b, token))
        return not (b == row and len([1 for c, _ in heard if c == b]) == 3)

    found = nn.generate(model, prompt(), new=NEW, on_token=hear)
    free = nn.generate(model, prompt(), new=NEW)
    assert torch.equal(found.tokens, free.tokens[:, :3])
    assert found.lengths.tolist() == [3] * BATCH
    assert (
        heard[: 2 * BATCH + row + 1]
        == [(b, int(free.tokens[b, i])) for i in range(3) for b in range(BATCH)][: 2 * BATCH + row + 1]
    )
    check(found, model, prompt())


def test_sampling_repeats_by_its_seed():
    model = decoder()
    runs = [nn.generate(model, prompt(), new=NEW, temperature=1.5, seed=seed).tokens for seed in (3, 3, 4, 5)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2]) or not torch.equal(runs[0], runs[3])
    torch.manual_seed(0)
    state = torch.get_rng_state()
    again = nn.generate(model, prompt(), new=NEW, temperature=1.5, seed=3)
    assert torch.equal(again.tokens, runs[0])
    assert torch.equal(torch.get_rng_state(), state), "a seed must not change the global generator"
    check(again, model, prompt(), greedy=False)


def fits(counts, chances):
    """Chi-square: these counts are not one in ten thousand, and what cannot be is not there."""
    counts, chances = counts.double().flatten(), chances.double().flatten()
    assert not counts[chances == 0].any()
    expected = chances * counts.sum()
    cells = torch.where(expected >= 5, torch.arange(len(expected)), expected.argmax())  # rare ones join the largest
    counts, expected = (torch.zeros(len(t)).double().index_add(0, cells, t) for t in (counts, expected))
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(expected) > 1:
        statistic = ((counts - expected).square() / expected).sum()
        freedom = torch.tensor(len(expected) - 1).double()
        assert torch.special.gammaincc(freedom / 2, statistic / 2) > 1e-4, f"chi-square {statistic} of {freedom}"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_has_the_right_frequencies(temperature):
    model, row = decoder(5, seed=1), prompt(1, vocabulary=5, batch=1).expand(2000, -1)
    found = nn.generate(model, row, new=2, temperature=temperature, seed=7)
    first = (log_probabilities(model, row[0])[-1] / temperature).softmax(-1)
    pairs = torch.stack([torch.cat([row[0], torch.tensor([t])]) for t in range(5)])
    second = torch.stack([(log_probabilities(model, pair)[-1] / temperature).softmax(-1) for pair in pairs])
    joint = first[:, None] * second
    counts = torch.bincount(found.tokens[:, 0] * 5 + found.tokens[:, 1], minlength=25)
    fits(counts.view(5, 5).sum(1), first)
    fits(counts, joint)
    few = [0, 1, 999, 1999]
    check(type(found)(*(t[few] for t in found[:3]), 1), model, row[few], greedy=False)


FILTERS = [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 4, "top_p": 0.8}, {"top_p": 1.0}, {"top_k": 1}, {"top_p": 1e-6}]


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_filters_never_emit_what_they_exclude(options):
    model, row = decoder(7, seed=2), prompt(2, vocabulary=7, batch=1).expand(1500, -1)
    found = nn.generate(model, row, new=1, temperature=1.0, seed=11, **options)
    chances = log_probabilities(model, row[0])[-1].exp()
    order = chances.argsort(descending=True)
    before = chances[order].cumsum(0) - chances[order]
    keep = torch.zeros(7, dtype=torch.bool)
    keep[order[: options.get("top_k", 7)]] = True
    keep[order[before >= options.get("top_p", 2.0)]] = False
    emitted = torch.bincount(found.tokens[:, 0], minlength=7)
    assert not emitted[~keep].any()
    if len(options) == 1:
        kept = torch.where(keep, chances, 0.0)
        fits(emitted, kept / kept.sum())
    check(type(found)(*(t[:3] for t in found[:3]), 1), model, row[:3], greedy=False)


def test_one_choice_is_greedy():
    model = decoder()
    wanted = nn.generate(model, prompt(), new=NEW)
    for options in ({"top_k": 1, "temperature": 3.0}, {"top_p": 1e-9, "temperature": 1.0}, {"temperature": 1e-4}):
        found = nn.generate(model, prompt(), new=NEW, seed=1, **options)
        assert torch.equal(found.tokens, wanted.tokens)
        close(found.scores, wanted.scores, LOOSE)


def all_endings(vocabulary, steps, stop):
    for tokens in itertools.product(range(vocabulary), repeat=steps):
        cut = next((i + 1 for i, t in enumerate(tokens) if t in stop), steps)
        yield tokens[:cut]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [(), (1,), (0, 2)], ids=str)
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@by_padding
def test_enough_beams_are_exhaustive_search(stop, penalty, padding):
    model, given, lengths = decoder(3, seed=3), prompt(3, vocabulary=3, batch=2), torch.tensor([3, 2])
    options = {"lengths": lengths, "padding": padding, "stop": stop, "length_penalty": penalty}
    found = nn.generate(model, given, new=3, beams=27, **options)
    for b, row in enumerate(real(given, lengths, padding)):
        sums = {}
        for tokens in set(all_endings(3, 3, stop)):
            said = log_probabilities(model, torch.cat([row, torch.tensor(tokens)]))[len(row) - 1 : -1]
            sums[tokens] = float(said.gather(1, torch.tensor(tokens)[:, None]).sum())
        ranked = {tokens: total / len(tokens) ** penalty for tokens, total in sums.items()}
        got = tuple(found.tokens[b, : int(found.lengths[b])].tolist())
        assert ranked[got] >= max(ranked.values()) - 1e-3
        assert abs(float(found.scores[b]) - sums[got]) < 2e-3
        assert (found.tokens[b, len(got) :] == got[-1]).all()


@pytest.mark.parametrize("beams", [2, 3])
def test_few_beams_are_beam_search(beams):
    model, source = translator(), prompt(4, 5)
    found = nn.generate(model, prompt(), new=4, beams=beams, source=source)
    for b, row in enumerate(prompt()):
        held = [(0.0, row)]
        for _ in range(4):
            grown = []
            for total, sequence in held:
                said = log_probabilities(model, sequence, source[b])[-1].tolist()
                grown += [(total + p, torch.cat([sequence, torch.tensor([t])])) for t, p in enumerate(said)]
            held = sorted(grown, key=lambda pair: -pair[0])[:beams]
        assert abs(float(found.scores[b]) - held[0][0]) < 5e-3
    check(found, model, prompt(), sources=source, greedy=False)


def test_one_beam_is_greedy():
    model = decoder()
    one, other = nn.generate(model, prompt(), new=NEW, beams=1), nn.generate(model, prompt(), new=NEW)
    assert torch.equal(one.tokens, other.tokens)


def short(length):
    return randomize(nn.Decoder(WIDTH, HEADS, 1, vocabulary=VOCABULARY, positions=nn.Learned(length, WIDTH)))


REFUSED = {
    "an empty prompt": lambda: nn.generate(decoder(), prompt(0), new=1),
    "a row of length 0": lambda: nn.generate(decoder(), prompt(), new=1, lengths=torch.tensor([1, 0, 2])),
    "lengths beyond the prompt": lambda: nn.generate(decoder(), prompt(), new=1, lengths=torch.tensor([1, 6, 2])),
    "a temperature below 0": lambda: nn.generate(decoder(), prompt(), new=1, temperature=-0.1),
    "top_k below 1": lambda: nn.generate(decoder(), prompt(), new=1, temperature=1.0, top_k=0),
    "top_p of 0": lambda: nn.generate(decoder(), prompt(), new=1, temperature=1.0, top_p=0.0),
    "top_p above 1": lambda: nn.generate(decoder(), prompt(), new=1, temperature=1.0, top_p=1.1),
    "no beams": lambda: nn.generate(decoder(), prompt(), new=1, beams=0),
    "beams at a temperature": lambda: nn.generate(decoder(), prompt(), new=1, beams=2, temperature=1.0),
    "nothing new": lambda: nn.generate(decoder(), prompt(), new=0),
    "more than Learned has": lambda: nn.generate(short(N + 3), prompt(), new=4),
    "a token beyond the vocabulary": lambda: nn.generate(decoder(), prompt() + VOCABULARY, new=1),
    "a token below 0": lambda: nn.generate(decoder(), prompt() - VOCABULARY, new=1),
    "a source for a Decoder": lambda: nn.generate(decoder(), prompt(), new=1, source=prompt()),
    "no source for an EncoderDecoder": lambda: nn.generate(translator(), prompt(), new=1),
    "numbers for words": lambda: nn.generate(decoder(), numbers(BATCH, N), new=1),
    "an unknown side": lambda: nn.generate(decoder(), prompt(), new=1, lengths=LENGTHS, padding="middle"),
    "another model": lambda: nn.generate(torch.nn.Linear(3, 3), prompt(), new=1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(what):
    with refused():
        REFUSED[what]()


def test_learned_serves_up_to_its_length():
    assert nn.generate(short(N + 3), prompt(), new=3).tokens.shape == (BATCH, 3)
