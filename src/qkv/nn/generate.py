"""`generate`: tokens one after the other, from a decoder and its cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_lengths, check_size
from ..masks.grid import integer
from ..shapes import Bool, Float, Int
from .beams import search
from .decoder import Decoder
from .encoder_decoder import EncoderDecoder
from .module import number
from .sampling import Generation, log_probabilities, pick


def generate(
    model: Decoder | EncoderDecoder,
    prompt: Int[Tensor, "batch n"],
    *,
    new: int,
    lengths: Any = None,
    padding: str = "left",
    stop: int | Iterable[int] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    beams: int = 1,
    length_penalty: float = 1.0,
    seed: int | None = None,
    source: Int[Tensor, "batch m"] | None = None,
    source_lengths: Any = None,
    cache_dtype: torch.dtype = torch.float32,
    on_token: Callable[[int, int], Any] | None = None,
) -> Generation:
    """Continue each row of the prompt by at most `new` tokens, until one of `stop`.

    lengths: how many tokens of each row are real: the last ones, or with padding="right" the first ones.
    temperature: 0 takes the most probable token, otherwise p_i ∝ exp(logit_i / temperature) is drawn from; top_k keeps
    the k most probable tokens, top_p the smallest set with at least that probability. seed: the same seed, the same
    tokens; None draws from torch's own generator.
    beams: more than 1 is a beam search, at temperature 0: the answer is the continuation with the largest sum of
    log-probabilities / length**length_penalty that it meets, the stop token counted.
    source, source_lengths: what an `EncoderDecoder` reads. memory_dtype: how a `KVCache` stores tokens.
    on_token: called as on_token(row, token) for every new token, row by row at each step, but not with beams; if it
    returns False, generation ends after that step.

    >>> import torch, qkv
    >>> model = qkv.nn.Decoder(12, heads=3, layers=2, vocabulary=31, positions=qkv.nn.Rotary())
    >>> made = qkv.nn.generate(model, torch.tensor([[0, 3, 5], [7, 11, 13]]), new=4, lengths=[2, 3])
    >>> made.tokens.shape, made.lengths
    (torch.Size([2, 4]), tensor([4, 4]))

    Greedy tokens are those of running the model over the whole sequence again for every token. Dropout is off
    meanwhile, and the model's modes are as before afterwards.
    """
    if not isinstance(model, Decoder | EncoderDecoder):
        raise OptionTypeError(complaint("model", type(model).__name__, "a Decoder or an EncoderDecoder"))
    decoder = model if isinstance(model, Decoder) else model.decoder
    read = _read_prompt(decoder, prompt, lengths, padding)
    new = check_size("new", new)
    beams = check_size("beams", beams)
    temperature = 0.0 if temperature == 0 else number("temperature", temperature, "a number, 0 or more")
    top_k = None if top_k is None else check_size("top_k", top_k)
    top_p = None if top_p is None else number("top_p", top_p, "a probability, above 0 and at most 1", high=1.0)
    length_penalty = number("length_penalty", length_penalty, "a finite number", low=-float("inf"))
    if beams > 1 and temperature:
        hint = "beams=1 samples"
        raise OptionError(complaint("temperature", f"{temperature} with {beams} beams", "0", hint))
    if on_token is not None and not callable(on_token):
        raise OptionTypeError(complaint("on_token", repr(on_token), "a function of (row, token), or None"))
    seed = None if seed is None else _seed(seed)
    if temperature and seed is None and any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        hint = "ranks that draw different tokens would go different ways"
        raise OptionError(complaint("seed", "None for a model on several ranks", "a number, the same on each", hint))
    stops = _stops(decoder, stop)
    longest = decoder.longest
    if longest is not None and read.longest + new > longest:
        given = f"{read.longest} tokens of prompt and {new} new ones"
        raise ShapeError(complaint("new", given, f"at most {longest} together, the length of Learned positions"))
    _check_source(model, read.tokens, source)

    with torch.no_grad(), _evaluating(model):
        context = None
        if isinstance(model, EncoderDecoder):
            assert source is not None
            context = model.decoder.project(model.encode(source, source_lengths))
        run = _Run(decoder, decoder.cache(len(read.tokens), cache_dtype), context, source_lengths)
        logs = run.begin(read)
        if beams > 1:
            run.widen(beams)
            found = search(logs, run.advance, run.cache, new=new, beams=beams, stop=stops, penalty=length_penalty)
        else:
            generator = None if seed is None else torch.Generator(logs.device).manual_seed(seed)
            options = temperature, top_k, top_p, generator
            found = _one_by_one(run, logs, new, stops, options, on_token)
    return Generation(*found, sum(layer.nbytes for layer in run.cache))


class _Prompt(NamedTuple):
    """tokens, which are real (None: all), where each row's last real one stands, and how many the longest row has."""

    tokens: Int[Tensor, "batch n"]
    keep: Bool[Tensor, "batch n"] | None
    last: Int[Tensor, " batch"]
    longest: int


def _read_prompt(decoder: Decoder, prompt: Any, lengths: Any, padding: str) -> _Prompt:
    if not isinstance(prompt, Tensor):
        raise DtypeError(complaint("prompt", type(prompt).__name__, "a torch.Tensor of integers (batch, n)"))
    if prompt.dim() != 2 or not prompt.numel():
        raise ShapeError(
            complaint("prompt", f"shape {tuple(prompt.shape)}", "(batch, n), with at least one token a row")
        )
    batch, n = prompt.shape
    counts, left = check_lengths(lengths, padding, batch, n)
    last = torch.full((batch,), n - 1, device=prompt.device)
    if counts is None:
        decoder.check_tokens(prompt)
        return _Prompt(prompt, None, last, n)
    if not counts.all():
        row = int(counts.argmin())
        raise OptionError(complaint(f"lengths[{row}]", 0, "at least 1: a prompt begins with a token"))
    real = torch.from_numpy(counts).to(prompt.device)
    places = torch.arange(n, device=prompt.device)
    keep = places >= n - real.unsqueeze(1) if left else places < real.unsqueeze(1)
    # Padding may be anything, also what is no token.
    prompt = prompt.masked_fill(~keep, 0)
    decoder.check_tokens(prompt)
    return _Prompt(prompt, keep, last if left else real - 1, int(counts.max()))


def _seed(given: Any) -> int:
    seed = integer("seed", given)
    if not 0 <= seed < 1 << 63:
        raise OptionError(complaint("seed", given, "a number from 0 to 2^63 - 1"))
    return seed


def _stops(decoder: Decoder, stop: Any) -> list[int]:
    if isinstance(stop, Tensor):
        stop = stop.flatten().tolist()
    given = list(stop) if isinstance(stop, Iterable) else [stop]
    stops = [integer("stop", token) for token in given]
    assert decoder.embedding is not None
    vocabulary = decoder.embedding.num_embeddings
    for token in stops:
        if not 0 <= token < vocabulary:
            raise OptionError(complaint("stop", token, f"tokens from 0 to {vocabulary - 1}, the vocabulary"))
    return stops


def _check_source(model: Decoder | EncoderDecoder, prompt: Tensor, source: Any) -> None:
    if isinstance(model, Decoder):
        if source is not None:
            raise OptionError(complaint("source", "a source for a Decoder", "None", "an EncoderDecoder reads one"))
        return
    if source is None:
        raise OptionError(complaint("source", "None for an EncoderDecoder", "what it reads, (batch, m) tokens"))
    model.encoder.check_tokens(source)
    if len(source) != len(prompt):
        raise ShapeError(complaint("source", f"{len(source)} rows", f"{len(prompt)}, one for each row of the prompt"))


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout; every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class _Run:
    """A decoder, its caches and what it attends to beside them."""

    def __init__(self, decoder: Decoder, cache: Any, context: list[Any] | None, context_lengths: Any) -> None:
        self.decoder, self.cache, self.context = decoder, cache, context
        self.context_lengths = None if context_lengths is None else torch.as_tensor(context_lengths)

    def widen(self, beams: int) -> None:
        """From now on every row stands there `beams` times."""
        if self.context is not None:
            self.context = [tuple(t.repeat_interleave(beams, dim=0) for t in pair) for pair in self.context]
        if self.context_lengths is not None:
            self.context_lengths = self.context_lengths.repeat_interleave(beams)

    def begin(self, read: _Prompt) -> Float[Tensor, "batch vocabulary"]:
        """Log-probabilities of what follows the prompt; only the last token's are made."""
        states = self._states(read.tokens, read.keep)
        rows = torch.arange(len(read.last), device=read.last.device)
        return _sound(log_probabilities(self.decoder.logits(states[rows, read.last])))

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Log-probabilities of what follows one more token a row."""
        return _sound(log_probabilities(self.decoder.logits(self._states(tokens.unsqueeze(1))[:, 0])))

    def _states(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        states, _ = self.decoder.states(
            tokens, keep=keep, context=self.context, context_lengths=self.context_lengths, cache=self.cache
        )
        return states


def _sound(logs: Tensor) -> Tensor:
    """Nothing can be chosen among what are no numbers."""
    wrong = logs.isnan().any(-1)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        hint = "weights or a context that are not finite; NaN is never hidden"
        raise OptionError(complaint("model", f"logits that are no numbers in row {row}", "finite ones", hint))
    return logs


def _one_by_one(
    run: _Run,
    logs: Float[Tensor, "batch vocabulary"],
    new: int,
    stops: list[int],
    options: tuple[Any, ...],
    on_token: Callable[[int, int], Any] | None,
) -> tuple[Int[Tensor, "batch t"], Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Greedy, or drawn: tokens, lengths and sums of log-probabilities."""
    batch = len(logs)
    going = torch.ones(batch, dtype=torch.bool, device=logs.device)
    lengths = torch.zeros(batch, dtype=torch.int64, device=logs.device)
    scores = logs.new_zeros(batch)
    stop = torch.tensor(stops, dtype=torch.int64, device=logs.device)
    tokens = torch.zeros(batch, 0, dtype=torch.int64, device=logs.device)
    while True:
        token = pick(logs, *options)
        if tokens.shape[1]:
            token = torch.where(going, token, tokens[:, -1])
        tokens = torch.cat([tokens, token.unsqueeze(1)], dim=1)
        scores = scores + logs.gather(1, token.unsqueeze(1)).squeeze(1).masked_fill(~going, 0.0)
        lengths = lengths + going
        ended = False
        if on_token is not None:
            for row in going.nonzero().flatten().tolist():
                ended = (on_token(row, int(token[row])) is False) or ended
        going = going & ~torch.isin(token, stop)
        if ended or tokens.shape[1] == new or not bool(going.any()):
            return tokens, lengths, scores
        logs = run.advance(token)
