"""One answer in the making: how its tokens are chosen, what is certain of its text, and why it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..inputs import check_size
from ..masks.grid import as_integer
from ..nn.generate import choose_token
from ..nn.module import check_number
from ..ops.packed import FEW_ROWS
from ..shapes import Float
from .constraints import Constraint, ConstraintState
from .tokenizer import TextTokenizer


@dataclass
class Generated:
    """What `generate` adds to a prompt.

    tokens: The new tokens, the stop token included. text: Their text without the stop; empty if the prompt was tokens.
    logprobs: log p of each token at temperature 1. top: The most probable tokens at each step, if `logprobs` was given.
    finish: "stop", "length" or "callback".
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    top: list[dict[int, float]] = field(default_factory=list)
    finish: str = ""


class Row:
    """An answer that is being generated; the arguments are those of `Model.generate`.

    Args:
        model: The model.
        new: `max_new_tokens`.
        generator: torch's if None.
        with_text: Whether the text of the answer is wanted; stop texts need it.

    found: The answer so far.
    """

    def __init__(
        self,
        model: Any,
        new: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        stop: Any = (),
        logprobs: int = 0,
        constraint: Constraint | None = None,
        with_text: bool = True,
    ) -> None:
        self.temperature = 0.0 if temperature == 0 else check_number("temperature", temperature, "a number, 0 or more")
        self.top_k = None if top_k is None else check_size("top_k", top_k)
        high = "a number above 0 and at most 1"
        self.top_p = None if top_p is None else check_number("top_p", top_p, high, high=1.0)
        self.new, self.logprobs = check_size("max_new_tokens", new), check_size("logprobs", logprobs, least=0)
        self.generator, self.found, self._shown = generator, Generated(), 0
        stops = [stop] if isinstance(stop, str | int) else list(stop)
        self.texts = [each for each in stops if isinstance(each, str) and each]
        ends = (as_integer("stop", each) for each in stops if not isinstance(each, str))
        self.ends: frozenset[int] = model.stop_tokens.union(ends)
        tokenizer: TextTokenizer | None = model.tokenizer if with_text or self.texts else None
        self._read = (lambda token: "") if tokenizer is None else tokenizer.stream()
        self._state: ConstraintState | None = None
        if constraint is not None:
            self._state = constraint.start(model.tokenizer, model.vocabulary, model.stop_tokens)

    def take(self, log_probs: Float[Tensor, " vocabulary"], best: int) -> str:
        """Choose the next token, of which `best` is the most probable; returns the text that is certain now."""
        choice, state = (self.temperature, self.top_k, self.top_p, self.generator), self._state
        greedy, token = self.temperature == 0, best
        if state is None and not greedy:
            token = int(choose_token(log_probs.unsqueeze(0), *choice))
        # The most probable token of all is that of the allowed ones, if it is one of them: then no mask is needed.
        if state is not None and not (greedy and state.try_accept(token)):
            # numpy copies in this thread; torch would wake its other threads, which costs more than the mask.
            state.mask(allowed := torch.from_numpy(log_probs.numpy().copy()))
            token = int(choose_token(allowed.unsqueeze(0), *choice))
            state.accept(token)
        self.found.logprobs.append(float(log_probs[token]))
        if self.logprobs:
            top = log_probs.topk(min(self.logprobs, len(log_probs)))
            self.found.top.append(dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)))
        return self.add(token)

    def add(self, token: int) -> str:
        """Append a token; returns the text that is certain now. What may begin a stop text is not certain."""
        found = self.found
        found.tokens.append(token)
        if token in self.ends:
            found.finish = "stop"
        else:
            found.text += self._read(token)
            found.finish = "length" if len(found.tokens) == self.new else ""
            found.finish = "stop" if self._state is not None and self._state.finished else found.finish
        cuts = [at for text in self.texts if (at := found.text.find(text, self._shown)) >= 0]
        if cuts:
            found.text, found.finish = found.text[: min(cuts)], "stop"
        begun = [n for text in self.texts for n in range(1, len(text)) if found.text.endswith(text[:n])]
        sure = len(found.text) - (0 if found.finish else max(begun, default=0))
        piece, self._shown = found.text[self._shown : sure], max(sure, self._shown)
        return piece


def chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts in which tokens start to stop − 1 of a prompt run: the last one is not so short that its rounding
    differs.

    >>> list(chunks(0, 1027, 512)), list(chunks(3, 5, 512))
    ([(0, 512), (512, 1027)], [(3, 5)])
    """
    while start < stop:
        end = stop if stop - start <= size + FEW_ROWS else start + size
        yield start, end
        start = end
