"""`generate`: greedy decoding, sampling and beam search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..cache.inputs import check_lengths
from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_size, compute_dtype
from ..masks.grid import as_integer
from ..shapes import Bool, Float, Int
from .module import check_number
from .stacks import Decoder, EncoderDecoder, LayerCaches

Advance = Callable[[Tensor], Tensor]  # appends a token to each row; log-probabilities of the next one
Found = tuple[Tensor, Tensor, Tensor]  # tokens (batch, t), lengths (batch,) and sums of log-probabilities (batch,)


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
    cache_dtype: torch.dtype | str = torch.float32,
    on_token: Callable[[int, int], Any] | None = None,
) -> Generation:
    """Continue each row of the prompt by at most `new` tokens, until one of `stop`.

    Greedy decoding gives the same tokens as running the model over the whole sequence for every token. The model runs
    in eval mode; its modes are restored afterwards.

    Args:
        model: A `Decoder` or an `EncoderDecoder`.
        prompt: Integers (batch, n) with at least one real token per row.
        new: The largest number of new tokens.
        lengths: How many tokens of each row are real; all if None.
        padding: Where the padding of a shorter row is: "left" or "right" of its real tokens.
        stop: Tokens that end a row.
        temperature: 0 takes the most probable token; otherwise tokens are sampled, p_i ∝ exp(logit_i / temperature).
        top_k: Sample among the k most probable tokens only.
        top_p: Sample among the smallest set of tokens with at least this probability only.
        beams: If above 1, beam search at temperature 0. The result is the continuation found with the largest sum of
            log-probabilities / length**length_penalty, the stop token included.
        length_penalty: See beams.
        seed: Makes sampling reproducible; if None, torch's generator is used.
        source: Input of an `EncoderDecoder`, integers (batch, m).
        source_lengths: How many tokens of each row of the source are real, from the left.
        cache_dtype: Storage format of the `KVCache`s.
        on_token: Called as on_token(row, token) for every new token, row by row at each step, but not in beam search;
            generation ends after the step if it returns False.

    Returns:
        A `Generation`.

    >>> import torch, qkv
    >>> model = qkv.nn.Decoder(12, heads=3, layers=2, vocabulary=31, positions=qkv.nn.Rotary())
    >>> found = qkv.nn.generate(model, torch.tensor([[0, 3, 5], [7, 11, 13]]), new=4, lengths=[2, 3])
    >>> found.tokens.shape, found.lengths
    (torch.Size([2, 4]), tensor([4, 4]))
    """
    if not isinstance(model, Decoder | EncoderDecoder):
        raise OptionTypeError(complaint("model", type(model).__name__, "a Decoder or an EncoderDecoder"))
    decoder = model if isinstance(model, Decoder) else model.decoder
    prompt_tokens = _read_prompt(decoder, prompt, lengths, padding)
    new = check_size("new", new)
    beams = check_size("beams", beams)
    temperature = 0.0 if temperature == 0 else check_number("temperature", temperature, "a number, 0 or more")
    top_k = None if top_k is None else check_size("top_k", top_k)
    top_p = None if top_p is None else check_number("top_p", top_p, "a probability, above 0 and at most 1", high=1.0)
    length_penalty = check_number("length_penalty", length_penalty, "a finite number", low=-float("inf"))
    if beams > 1 and temperature:
        hint = "use beams=1 to sample"
        raise OptionError(complaint("temperature", f"{temperature} with {beams} beams", "0", hint))
    if on_token is not None and not callable(on_token):
        raise OptionTypeError(complaint("on_token", repr(on_token), "a function of (row, token), or None"))
    seed = None if seed is None else _check_seed(seed)
    if temperature and seed is None and any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        hint = "otherwise each rank samples different tokens"
        raise OptionError(complaint("seed", "None for a model on several ranks", "the same integer on all ranks", hint))
    stops = _check_stop(decoder, stop)
    limit = decoder.max_length
    if limit is not None and prompt_tokens.longest + new > limit:
        given = f"{new} after {prompt_tokens.longest} tokens of the prompt"
        raise ShapeError(complaint("new", given, f"at most {limit} tokens in total, the length of Learned positions"))
    _check_source(model, prompt_tokens.tokens, source)

    with torch.no_grad(), _eval_mode(model):
        cache = decoder.cache(len(prompt_tokens.tokens), cache_dtype)
        context: dict[str, Any] = {}
        if isinstance(model, EncoderDecoder):
            assert source is not None
            context["context"] = model.decoder.project(model.encode(source, source_lengths))
        if source_lengths is not None:
            context["context_lengths"] = torch.as_tensor(source_lengths)
        log_probs = _next_log_probs(decoder, cache, context, *prompt_tokens[:3])
        if beams > 1:
            context = tree_map(lambda tensor: tensor.repeat_interleave(beams, dim=0), context)
        advance = partial(_next_log_probs, decoder, cache, context)
        if beams > 1:
            found = beam_search(log_probs, advance, cache, new=new, beams=beams, stop=stops, penalty=length_penalty)
        else:
            generator = None if seed is None else torch.Generator(log_probs.device).manual_seed(seed)
            choose = partial(choose_token, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
            found = _generate_tokens(advance, log_probs, new, stops, choose, on_token)
    return Generation(*found, sum(layer.nbytes for layer in cache))


class _Prompt(NamedTuple):
    """keep: Real tokens; None is all. last: Index of each row's last real token. longest: Length of the longest row."""

    tokens: Int[Tensor, "batch n"]
    keep: Bool[Tensor, "batch n"] | None
    last: Int[Tensor, " batch"]
    longest: int


def _read_prompt(decoder: Decoder, prompt: Any, lengths: Any, padding: str) -> _Prompt:
    if not isinstance(prompt, Tensor):
        raise DtypeError(complaint("prompt", type(prompt).__name__, "a torch.Tensor of integers (batch, n)"))
    if prompt.dim() != 2 or not prompt.numel():
        wanted = "(batch, n) with at least one token per row"
        raise ShapeError(complaint("prompt", f"shape {tuple(prompt.shape)}", wanted))
    batch, n = prompt.shape
    counts, left = check_lengths(lengths, padding, batch, n)
    if counts is not None and not counts.all():
        raise OptionError(complaint(f"lengths[{int(counts.argmin())}]", 0, "at least 1 real token per row"))
    real = torch.full((batch,), n) if counts is None else torch.from_numpy(counts)
    real, index = real.to(prompt.device), torch.arange(n, device=prompt.device)
    keep = index >= n - real.unsqueeze(1) if left else index < real.unsqueeze(1)
    keep = None if counts is None else keep
    decoder.read_tokens(prompt, keep=keep)
    return _Prompt(prompt, keep, torch.full_like(real, n - 1) if left else real - 1, int(real.max()))


def _check_seed(given: Any) -> int:
    seed = as_integer("seed", given)
    if not 0 <= seed < 1 << 63:
        raise OptionError(complaint("seed", given, "an integer from 0 to 2^63 - 1"))
    return seed


def _check_stop(decoder: Decoder, stop: Any) -> list[int]:
    if isinstance(stop, Tensor):
        stop = stop.flatten().tolist()
    given = list(stop) if isinstance(stop, Iterable) else [stop]
    stops, vocabulary = [as_integer("stop", token) for token in given], decoder.vocabulary or 0
    for token in stops:
        if not 0 <= token < vocabulary:
            raise OptionError(complaint("stop", token, f"tokens from 0 to {vocabulary - 1}, the vocabulary"))
    return stops


def _check_source(model: Decoder | EncoderDecoder, prompt: Tensor, source: Any) -> None:
    if isinstance(model, Decoder):
        if source is not None:
            raise OptionError(complaint("source", "a source for a Decoder", "None", "only an EncoderDecoder takes one"))
        return
    if source is None:
        raise OptionError(complaint("source", "None for an EncoderDecoder", "tokens (batch, m)"))
    model.encoder.read_tokens(source)
    if len(source) != len(prompt):
        raise ShapeError(complaint("source", f"{len(source)} rows", f"{len(prompt)}, one for each row of the prompt"))


@contextlib.contextmanager
def _eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch to eval mode, and restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _next_log_probs(
    decoder: Decoder, cache: LayerCaches, context: Any, tokens: Tensor, keep: Any = None, last: Tensor | None = None
) -> Float[Tensor, "batch vocabulary"]:
    """Append tokens (batch,) or (batch, n), of which `last` are the last ones; log-probabilities of the next token."""
    tokens = tokens if tokens.dim() == 2 else tokens.unsqueeze(1)
    states, _ = decoder.states(tokens, keep=keep, cache=cache, **context)
    states = states[:, -1] if last is None else states[torch.arange(len(last), device=last.device), last]
    log_probs = log_probabilities(decoder.logits(states))
    nan_rows = log_probs.isnan().any(-1)
    if bool(nan_rows.any()):  # among which no token can be chosen
        given, hint = f"NaN logits in row {int(nan_rows.int().argmax())}", "weights or context are non-finite"
        raise OptionError(complaint("model", given, "finite logits", hint))
    return log_probs


def _generate_tokens(
    advance: Advance, log_probs: Tensor, new: int, stops: list[int], choose: Callable[[Tensor], Tensor], on_token: Any
) -> Found:
    """Greedy decoding or sampling; returns tokens, lengths and sums of log-probabilities."""
    batch = len(log_probs)
    active = torch.ones(batch, dtype=torch.bool, device=log_probs.device)
    lengths = torch.zeros(batch, dtype=torch.int64, device=log_probs.device)
    scores = log_probs.new_zeros(batch)
    stop = torch.tensor(stops, dtype=torch.int64, device=log_probs.device)
    tokens = torch.zeros(batch, 0, dtype=torch.int64, device=log_probs.device)
    while True:
        token = choose(log_probs)
        if tokens.shape[1]:
            token = torch.where(active, token, tokens[:, -1])
        tokens = torch.cat([tokens, token.unsqueeze(1)], dim=1)
        scores = scores + log_probs.gather(1, token.unsqueeze(1)).squeeze(1).masked_fill(~active, 0.0)
        lengths = lengths + active
        ended = False
        if on_token is not None:
            for row in active.nonzero().flatten().tolist():
                ended = (on_token(row, int(token[row])) is False) or ended
        active = active & ~torch.isin(token, stop)
        if ended or tokens.shape[1] == new or not bool(active.any()):
            return tokens, lengths, scores
        log_probs = advance(token)


class Generation(NamedTuple):
    """The result of `generate`.

    tokens: The new tokens; a row that has stopped is padded with its stop token. lengths: New tokens of each row, its
    stop token included. scores: Sums of their log-probabilities at temperature 1, without top_k and top_p.
    cache_bytes: Bytes of the caches at the end.
    """

    tokens: Int[Tensor, "batch new"]
    lengths: Int[Tensor, " batch"]
    scores: Float[Tensor, " batch"]
    cache_bytes: int


def log_probabilities(logits: Float[Tensor, "*batch vocabulary"]) -> Float[Tensor, "*batch vocabulary"]:
    """log_softmax, in float32 or float64."""
    return torch.log_softmax(logits, dim=-1, dtype=compute_dtype(logits.dtype))


def choose_token(
    log_probs: Float[Tensor, "batch vocabulary"],
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " batch"]:
    """The most probable token at temperature 0, otherwise a sampled one: p_i ∝ exp(log_probs_i / temperature).

    >>> log_probs = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    >>> choose_token(log_probs), choose_token(log_probs, temperature=1.0, top_k=1)
    (tensor([0]), tensor([0]))
    """
    if temperature == 0.0:
        return log_probs.argmax(-1)
    below = token_distribution(log_probs, temperature, top_k, top_p).cumsum(-1)
    below = below / below[..., -1:]  # exactly 1 at the end, so that a number below 1 finds a possible token
    drawn = torch.rand((len(below), 1), dtype=below.dtype, device=below.device, generator=generator)
    return torch.searchsorted(below, drawn, right=True).squeeze(-1).clamp(max=below.shape[-1] - 1)  # for NaN


def token_distribution(
    log_probs: Float[Tensor, "batch vocabulary"], temperature: float, top_k: int | None, top_p: float | None
) -> Float[Tensor, "batch vocabulary"]:
    """The probabilities that tokens are sampled with: temperature is applied first, then top_k, then top_p.

    top_k keeps the k most probable tokens, top_p the smallest set with at least that probability.

    >>> log_probs = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    >>> token_distribution(log_probs, 1.0, None, 0.7)
    tensor([[0.6250, 0.3750, 0.0000]], dtype=torch.float64)
    """
    # Subtract the maximum first, so that a small temperature overflows to −inf and not to NaN.
    scores = log_probs.double()
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k).values[..., -1:]
        tied, better = scores == least, (scores > least).sum(-1, keepdim=True)
        dropped = (scores < least) | (tied & (tied.cumsum(-1) > top_k - better))  # of equal ones, the first are kept
        scores = scores.masked_fill(dropped, -torch.inf)
    kept = scores.softmax(-1)
    if top_p is None or top_p >= 1.0:
        return kept
    # Before a token of probability p, others have at least 1 − vocabulary · p: improbable ones need no sorting.
    likely = int((kept > 0.5 * (1 - top_p) / kept.shape[-1]).sum(-1).max())
    tokens = kept.topk(max(likely, 1)).indices.sort(-1).values
    some, order = kept.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
    some = some.masked_fill(some.cumsum(-1) - some >= top_p, 0.0)
    return torch.zeros_like(kept).scatter_(-1, tokens.gather(-1, order), some / some.sum(-1, keepdim=True))


class _BestContinuations:
    """The best finished continuation of each row so far: score = sum of log-probabilities / length**penalty."""

    def __init__(self, batch: int, new: int, like: Tensor) -> None:
        self.score = like.new_full((batch,), -torch.inf)
        self.total = self.score.clone()
        self.tokens = torch.zeros(batch, new, dtype=torch.int64, device=like.device)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)

    def offer(self, tokens: Int[Tensor, "batch n t"], totals: Float[Tensor, "batch n"], penalty: float) -> None:
        """Update with the best of n finished continuations of t tokens; a total of −inf is no continuation."""
        t = tokens.shape[2]
        total, index = totals.max(1)
        score = total / t**penalty
        better = ~(score <= self.score)  # true for NaN too, so that it is not hidden
        chosen = tokens[torch.arange(len(index), device=index.device), index]
        # Pad with the stop token.
        filled = torch.cat([chosen, chosen[:, -1:].expand(-1, self.tokens.shape[1] - t)], dim=1)
        self.tokens = torch.where(better.unsqueeze(1), filled, self.tokens)
        self.lengths = torch.where(better, t, self.lengths)
        self.score, self.total = torch.where(better, score, self.score), torch.where(better, total, self.total)


def beam_search(
    first: Tensor, advance: Advance, cache: LayerCaches, *, new: int, beams: int, stop: list[int], penalty: float
) -> Found:
    """Tokens, lengths and sums of log-probabilities of the best continuation of each row.

    At each step the `beams` continuations with the largest sums are continued. A continuation that ends with a stop
    token and is among the `beams` best is finished. The search ends when no other one could become better.

    Args:
        first: Log-probabilities of the first new token, (batch, vocabulary).
        advance: Appends a token to every row and returns the log-probabilities of the next.
    """
    batch, vocabulary = first.shape
    best = _BestContinuations(batch, new, first)
    # All beams of a row are equal at first: use one of them, or all would stay equal.
    totals = first.new_full((batch, beams), -torch.inf)
    totals[:, 0] = 0.0
    tokens = torch.zeros(batch, beams, 0, dtype=torch.int64, device=first.device)
    log_probs = first.repeat_interleave(beams, dim=0)
    rows = torch.arange(batch, device=first.device).unsqueeze(1)
    stops = torch.tensor(stop, dtype=torch.int64, device=first.device)
    for step in range(1, new + 1):
        candidates = totals.unsqueeze(-1) + log_probs.view(batch, beams, vocabulary)
        sums, _, ending = _top_continuations(candidates, tokens)
        best.offer(ending, sums.masked_fill(~torch.isin(ending[:, :, -1], stops), -torch.inf), penalty)
        candidates[:, :, stops] = -torch.inf
        totals, parent, tokens = _top_continuations(candidates, tokens)
        if step == new:
            best.offer(tokens, totals, penalty)
            break
        # The best possible score: all later tokens have probability 1, and the length is the best one.
        bound = totals[:, 0] / (new if penalty > 0 else step + 1) ** penalty
        if bool((bound <= best.score).all()):
            break
        cache_rows = rows.expand(batch, beams) if step == 1 else rows * beams + parent
        for layer in cache:
            layer.reorder(cache_rows.flatten())
        log_probs = advance(tokens[:, :, -1].flatten())
    return best.tokens[:, : int(best.lengths.max())], best.lengths, best.total


def _top_continuations(
    candidates: Float[Tensor, "batch beams vocabulary"], tokens: Int[Tensor, "batch beams t"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The `beams` best continuations: their sums, the beams that they continue, and their tokens."""
    _, beams, vocabulary = candidates.shape
    sums, index = candidates.flatten(1).topk(beams, dim=1)
    parent = index // vocabulary
    past = tokens.gather(1, parent.unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
    return sums, parent, torch.cat([past, (index % vocabulary).unsqueeze(-1)], dim=2)
