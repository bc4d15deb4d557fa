"""Beam search: several continuations of each row go on side by side, and the best one is given back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..shapes import Float, Int
from .decoder import LayerCaches


class Best:
    """The best finished continuation of each row so far: score = sum of log-probabilities / length**penalty."""

    def __init__(self, batch: int, new: int, like: Tensor) -> None:
        self.score = like.new_full((batch,), -torch.inf)
        self.total = self.score.clone()
        self.tokens = torch.zeros(batch, new, dtype=torch.int64, device=like.device)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)

    def offer(self, tokens: Int[Tensor, "batch n t"], totals: Float[Tensor, "batch n"], penalty: float) -> None:
        """Take the best of n continuations of t tokens, where it is better; −inf is none."""
        t = tokens.shape[2]
        total, place = totals.max(1)
        score = total / t**penalty
        better = ~(score <= self.score)  # NaN is not hidden
        chosen = tokens[torch.arange(len(place), device=place.device), place]
        # A row that has stopped is filled with its stop token.
        filled = torch.cat([chosen, chosen[:, -1:].expand(-1, self.tokens.shape[1] - t)], dim=1)
        self.tokens = torch.where(better.unsqueeze(1), filled, self.tokens)
        self.lengths = torch.where(better, t, self.lengths)
        self.score, self.total = torch.where(better, score, self.score), torch.where(better, total, self.total)


def search(
    first: Float[Tensor, "batch vocabulary"],
    advance: Callable[[Int[Tensor, " rows"]], Float[Tensor, "rows vocabulary"]],
    cache: LayerCaches,
    *,
    new: int,
    beams: int,
    stop: list[int],
    penalty: float,
) -> tuple[Int[Tensor, "batch t"], Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Tokens, lengths and sums of log-probabilities of the best continuation of each row.

    first: log-probabilities of the first new token. advance: appends a token to every row, and gives those of the next.
    At each step the `beams` best continuations by their sum go on. One that ends with a stop token among the `beams`
    best of all is finished. The search ends when none that goes on could still become better.
    """
    batch, vocabulary = first.shape
    best = Best(batch, new, first)
    # All beams of a row begin alike: only one of them counts, or they would all stay the same.
    totals = first.new_full((batch, beams), -torch.inf)
    totals[:, 0] = 0.0
    tokens = torch.zeros(batch, beams, 0, dtype=torch.int64, device=first.device)
    logs = first.repeat_interleave(beams, dim=0)
    rows = torch.arange(batch, device=first.device).unsqueeze(1)
    stops = torch.tensor(stop, dtype=torch.int64, device=first.device)
    for step in range(1, new + 1):
        candidates = totals.unsqueeze(-1) + logs.view(batch, beams, vocabulary)
        sums, _, ending = _best_of(candidates, tokens)
        best.offer(ending, sums.masked_fill(~torch.isin(ending[:, :, -1], stops), -torch.inf), penalty)
        candidates[:, :, stops] = -torch.inf
        totals, parent, tokens = _best_of(candidates, tokens)
        if step == new:
            best.offer(tokens, totals, penalty)
            break
        # The best that a continuation can come to: no further loss, at the length that suits it most.
        bound = totals[:, 0] / (new if penalty > 0 else step + 1) ** penalty
        if bool((bound <= best.score).all()):
            break
        at = rows.expand(batch, beams) if step == 1 else rows * beams + parent
        for layer in cache:
            layer.reorder(at.flatten())
        logs = advance(tokens[:, :, -1].flatten())
    return best.tokens[:, : int(best.lengths.max())], best.lengths, best.total


def _best_of(
    candidates: Float[Tensor, "batch beams vocabulary"], tokens: Int[Tensor, "batch beams t"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The `beams` best continuations: their sums, which beam each continues, and its tokens."""
    _, beams, vocabulary = candidates.shape
    sums, index = candidates.flatten(1).topk(beams, dim=1)
    parent = index // vocabulary
    past = tokens.gather(1, parent.unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
    return sums, parent, torch.cat([past, (index % vocabulary).unsqueeze(-1)], dim=2)
