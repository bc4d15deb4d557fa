"""`generate` against running the whole model for every token, and against exhaustive search."""

import itertools
import math

import pytest
import torch

import qkv
from qkv.nn import ALiBi, Decoder, EncoderDecoder, Generation, Learned, RelativeBias, Rotary, Sinusoidal, generate
from qkv.nn.generate import beam_search, choose_token, token_distribution

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


def decoder_of(vocabulary: int = VOCABULARY, **options) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(WIDTH, HEADS, LAYERS, vocabulary=vocabulary, tied=False, **options).double()
    torch.nn.init.normal_(model.head.weight)  # so that no two tokens are nearly as probable
    return model


def pair_of(vocabulary: int = VOCABULARY) -> EncoderDecoder:
    torch.manual_seed(0)
    positions = {"positions": RelativeBias(HEADS), "decoder_positions": Rotary()}
    model = EncoderDecoder(WIDTH, HEADS, LAYERS, vocabulary=vocabulary, **positions).double()
    torch.nn.init.normal_(model.encoder.embedding.weight)
    return model


def prompt_of(batch: int, n: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, n), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def greedy(run, prompt: list[int], new: int, stop=()) -> tuple[list[int], float]:
    """The whole model again for every token."""
    made, score = [], 0.0
    for _ in range(new):
        logs = run(torch.tensor([prompt + made]))[0, -1].log_softmax(-1)
        made.append(int(logs.argmax()))
        score += float(logs.max())
        if made[-1] in stop:
            break
    return made, score


PAIRS = [pytest.param(positions, None, id=f"{name}-softmax") for name, positions in POSITIONS.items()]
PAIRS += [
    pytest.param(positions, ELU1, id=f"{name}-elu1")
    for name, positions in POSITIONS.items()
    if name not in ("alibi", "relative")  # takes no bias
]


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "similarity"), PAIRS)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_greedy_is_the_whole_model_again(positions, similarity, padding) -> None:
    model = decoder_of(positions=positions(), similarity=similarity, dropout=0.5)
    prompt, lengths, n, new = prompt_of(3, 6), [2, 6, 5], 6, 7
    rows = [prompt[b, :count].tolist() for b, count in enumerate(lengths)]
    padded = torch.full((3, n), -100)  # not a token: must not be read
    for b, row in enumerate(rows):
        padded[b, slice(n - len(row), n) if padding == "left" else slice(0, len(row))] = torch.tensor(row)
    made = generate(model, padded, new=new, lengths=lengths, padding=padding)
    assert model.training
    assert all(module.training for module in model.modules())
    model.eval()
    wanted = [greedy(model, row, new) for row in rows]
    assert made.tokens.tolist() == [tokens for tokens, _ in wanted]
    assert made.lengths.tolist() == [new] * 3
    assert made.scores.tolist() == pytest.approx([score for _, score in wanted], abs=1e-4)
    assert made.cache_bytes > 0


@pytest.mark.slow
def test_encoder_decoder() -> None:
    model = pair_of()
    source, prompt = prompt_of(2, 7), prompt_of(2, 3)
    made = generate(model, prompt, new=5, source=source, source_lengths=[4, 7])
    wide = generate(model, prompt, new=5, source=source, source_lengths=[4, 7], beams=3)
    for b, count in enumerate([4, 7]):
        wanted, score = greedy(lambda t, b=b, n=count: model(source[b : b + 1, :n], t), prompt[b].tolist(), 5)
        assert made.tokens[b].tolist() == wanted
        assert float(wide.scores[b]) >= score - 1e-6
        alone = generate(model, prompt[b : b + 1], new=5, source=source[b : b + 1, :count], beams=3)
        assert alone.tokens[0].tolist() == wide.tokens[b].tolist()


def test_rows_stop_on_their_own() -> None:
    model, prompt = decoder_of(positions=Rotary()).eval(), prompt_of(3, 4)
    free = generate(model, prompt, new=6).tokens
    stop = [int(free[0, 1]), int(free[1, 3])]
    made = generate(model, prompt, new=6, stop=stop)
    for b in range(3):
        wanted, score = greedy(model, prompt[b].tolist(), 6, stop)
        count = len(wanted)
        assert int(made.lengths[b]) == count
        assert made.tokens[b, :count].tolist() == wanted
        assert (made.tokens[b, count:] == wanted[-1]).all()
        assert float(made.scores[b]) == pytest.approx(score, abs=1e-4)
    first = generate(model, prompt[:1], new=6, stop=stop[0])
    assert first.tokens.shape[1] == int(first.lengths[0]) < 6


@pytest.mark.slow
def test_samples_are_seeded_and_scored_without_filters() -> None:
    model, prompt = decoder_of(positions=Rotary()).eval(), prompt_of(2, 4)
    options = {"new": 5, "temperature": 2.0, "top_k": 20, "top_p": 0.9}
    made = generate(model, prompt, seed=3, **options)
    assert torch.equal(made.tokens, generate(model, prompt, seed=3, **options).tokens)
    assert not torch.equal(made.tokens, generate(model, prompt, seed=4, **options).tokens)
    logs = model(torch.cat([prompt, made.tokens], 1)).log_softmax(-1)[:, 3:-1]
    wanted = logs.gather(2, made.tokens.unsqueeze(-1)).sum((1, 2))
    torch.testing.assert_close(made.scores, wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(
        generate(model, prompt, new=5, temperature=1.0, top_k=1).tokens, generate(model, prompt, new=5).tokens
    )
    torch.manual_seed(5)
    one = generate(model, prompt, **options).tokens
    torch.manual_seed(5)
    assert torch.equal(one, generate(model, prompt, **options).tokens)


def test_distributions_by_hand() -> None:
    logs = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64).log()

    def kept(temperature=1.0, top_k=None, top_p=None):
        return token_distribution(logs, temperature, top_k, top_p)[0].tolist()

    assert kept() == pytest.approx([0.1, 0.4, 0.2, 0.3])
    assert kept(temperature=0.5) == pytest.approx([x / 0.3 for x in (0.01, 0.16, 0.04, 0.09)])
    assert kept(top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert kept(top_k=9) == pytest.approx([0.1, 0.4, 0.2, 0.3])
    assert kept(top_p=0.3) == pytest.approx([0, 1, 0, 0])
    assert kept(top_p=0.5) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert kept(top_p=0.75) == pytest.approx([0, 4 / 9, 2 / 9, 3 / 9])
    assert kept(top_p=1.0) == pytest.approx([0.1, 0.4, 0.2, 0.3])
    assert kept(top_k=2, top_p=0.55) == pytest.approx([0, 1, 0, 0])
    assert kept(temperature=1e-300) == pytest.approx([0, 1, 0, 0])
    drawn = (
        choose_token(logs.expand(4000, 4), 1.0, 3, None, torch.Generator().manual_seed(0)).bincount(minlength=4) / 4000
    )
    assert drawn.tolist() == pytest.approx([0, 4 / 9, 2 / 9, 3 / 9], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.5, -1.0])
@pytest.mark.parametrize("similarity", [None, ELU1], ids=["softmax", "elu1"])
@torch.no_grad()
def test_a_beam_that_holds_everything_finds_the_best(penalty, similarity) -> None:
    vocabulary, new, stop = 3, 3, 2
    model = decoder_of(vocabulary, positions=Rotary(), similarity=similarity).eval()
    prompt = prompt_of(2, 5, vocabulary)
    lengths = [5, 2]
    made = generate(
        model, prompt, new=new, lengths=lengths, padding="right", beams=vocabulary**new, stop=stop,
        length_penalty=penalty,
    )  # fmt: skip
    for b, count in enumerate(lengths):
        found = {}
        for tokens in itertools.product(range(vocabulary), repeat=new):
            end = tokens.index(stop) + 1 if stop in tokens else new
            row = torch.cat([prompt[b, :count], torch.tensor(tokens[:end])])
            logs = model(row[None])[0].log_softmax(-1)
            found[tokens[:end]] = sum(float(logs[count - 1 + i, t]) for i, t in enumerate(tokens[:end]))
        best = max(found, key=lambda tokens: found[tokens] / len(tokens) ** penalty)
        assert made.tokens[b, : len(best)].tolist() == list(best)
        assert int(made.lengths[b]) == len(best)
        assert (made.tokens[b, len(best) :] == best[-1]).all()
        assert float(made.scores[b]) == pytest.approx(found[best], abs=1e-4)


@torch.no_grad()
def test_beams_are_beam_search_written_out() -> None:
    model, prompt, beams, new, stop = decoder_of(positions=ALiBi(HEADS)).eval(), prompt_of(4, 4), 3, 6, {5, 7, 11, 13}
    made = generate(model, prompt, new=new, beams=beams, stop=stop, length_penalty=0.7)
    for b in range(4):
        alive, best = [((), 0.0)], (-math.inf, (), 0.0)
        for step in range(1, new + 1):
            candidates = []
            for tokens, total in alive:
                logs = model(torch.cat([prompt[b], torch.tensor(tokens, dtype=torch.int64)])[None])[0, -1].log_softmax(
                    -1
                )
                candidates += [((*tokens, t), total + float(logs[t])) for t in range(VOCABULARY)]
            candidates.sort(key=lambda c: -c[1])
            ended = [c for c in candidates[:beams] if c[0][-1] in stop]
            alive = [c for c in candidates if c[0][-1] not in stop][:beams]
            for tokens, total in ended + (alive if step == new else []):
                best = max(best, (total / step**0.7, tokens, total))
        assert made.tokens[b, : len(best[1])].tolist() == list(best[1])
        assert float(made.scores[b]) == pytest.approx(best[2], abs=1e-4)


def test_a_search_goes_on_while_a_longer_one_may_be_better() -> None:
    # Stopping at once has log 0.6; going on costs log 0.4 once, and by four tokens that is the better mean.
    first, later = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[1e-9, 1.0]]).log()
    steps = []

    def advance(tokens):
        steps.append(len(tokens))
        return later.expand(len(tokens), 2)

    tokens, lengths, totals = beam_search(first, advance, [], new=4, beams=2, stop=[0], penalty=1.0)
    assert tokens.tolist() == [[1, 1, 1, 1]]
    assert lengths.tolist() == [4]
    assert totals.tolist() == pytest.approx([math.log(0.4)])
    assert len(steps) == 3
    steps.clear()
    # Without a penalty nothing can make up for it, and the search ends at once.
    tokens, lengths, _ = beam_search(first, advance, [], new=4, beams=2, stop=[0], penalty=0.0)
    assert (tokens.tolist(), lengths.tolist(), steps) == ([[0]], [1], [])


def test_on_token_hears_every_token_and_can_end_it() -> None:
    model, prompt = decoder_of(), prompt_of(2, 4)
    heard = []
    made = generate(model, prompt, new=4, on_token=lambda row, token: heard.append((row, token)))
    assert heard == [(row, int(made.tokens[row, i])) for i in range(4) for row in range(2)]
    heard.clear()
    ended = generate(model, prompt, new=4, on_token=lambda row, token: heard.append(row) or len(heard) != 3)
    assert heard == [0, 1, 0, 1]
    assert torch.equal(ended.tokens, made.tokens[:, :2])
    heard.clear()
    stop = int(made.tokens[0, 0])
    generate(model, prompt, new=2, stop=stop, on_token=lambda row, token: heard.append(row))
    assert heard.count(0) == 1


def test_what_it_gives_back() -> None:
    model = decoder_of().float()
    made = generate(model, prompt_of(2, 70), new=3, cache_dtype=torch.int8)
    assert isinstance(made, Generation)
    assert made.tokens.dtype is made.lengths.dtype is torch.int64
    assert made.scores.dtype is torch.float32
    assert not made.scores.requires_grad
    assert 0 < made.cache_bytes < generate(model, prompt_of(2, 70), new=3).cache_bytes / 2


def test_modes_come_back_after_an_error() -> None:
    model = decoder_of(dropout=0.1)
    model.layers[0].eval()

    def fails(row, token):
        assert not model.training
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        generate(model, prompt_of(1, 2), new=1, on_token=fails)
    assert model.training
    assert not model.layers[0].training
    assert model.layers[1].attention.training


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"prompt": torch.zeros(2, 0, dtype=torch.int64)}, qkv.errors.ShapeError, "at least one token"),
        ({"lengths": [3, 0]}, qkv.errors.OptionError, r"lengths\[1\]"),
        ({"lengths": [3, 5]}, qkv.errors.OptionError, r"lengths\[1\]"),
        ({"padding": "middle"}, qkv.errors.OptionError, "padding"),
        ({"new": 0}, qkv.errors.OptionError, "new"),
        ({"new": 6}, qkv.errors.ShapeError, "at most 9 tokens in total"),
        ({"temperature": -1.0}, qkv.errors.OptionError, "temperature"),
        ({"temperature": math.nan}, qkv.errors.OptionError, "temperature"),
        ({"top_k": 0}, qkv.errors.OptionError, "top_k"),
        ({"top_p": 0.0}, qkv.errors.OptionError, "top_p"),
        ({"top_p": 1.1}, qkv.errors.OptionError, "top_p"),
        ({"beams": 0}, qkv.errors.OptionError, "beams"),
        ({"beams": 2, "temperature": 1.0}, qkv.errors.OptionError, "temperature"),
        ({"stop": 31}, qkv.errors.OptionError, "stop"),
        ({"stop": "x"}, qkv.errors.OptionTypeError, "stop"),
        ({"prompt": torch.full((2, 4), 31)}, qkv.errors.OptionError, "vocabulary"),
        ({"prompt": [[1, 2]]}, qkv.errors.DtypeError, "prompt"),
        ({"source": torch.zeros(2, 3, dtype=torch.int64)}, qkv.errors.OptionError, "source"),
        ({"model": torch.nn.Linear(2, 2)}, qkv.errors.OptionTypeError, "Linear"),
    ],
)
def test_what_cannot_be(options, error, says) -> None:
    given = {"model": decoder_of(positions=Learned(9, WIDTH)), "prompt": prompt_of(2, 4), "new": 2, **options}
    with pytest.raises(error, match=says):
        generate(given.pop("model"), given.pop("prompt"), **given)


def test_an_encoder_decoder_needs_a_source_for_every_row() -> None:
    model, prompt = pair_of(), prompt_of(2, 3)
    with pytest.raises(qkv.errors.OptionError, match="source"):
        generate(model, prompt, new=2)
    with pytest.raises(qkv.errors.ShapeError, match="3 rows"):
        generate(model, prompt, new=2, source=prompt_of(3, 5))
