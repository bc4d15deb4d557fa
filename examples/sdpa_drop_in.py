"""A small training script in which qkv stands in for PyTorch's attention.

    python examples/sdpa_drop_in.py

A causal transformer learns to repeat a sequence. It is trained twice from the same weights on the same batches: with
torch.nn.functional.scaled_dot_product_attention, and with qkv.compat's function of the same arguments. The losses are
printed side by side; the exit code is 1 if they ever differ by more than the bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qkv

LETTERS, HALF, WIDTH, HEADS, KV_HEADS, BATCH = 11, 5, 48, 6, 2, 16
BOUND = 1e-4  # float32: each step rounds, and the next one starts from what was rounded

Attention = Callable[..., Tensor]


class Block(nn.Module):
    """Grouped-query attention and a feed-forward layer; `attention` is the only thing that changes."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.head = WIDTH // HEADS
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * self.head)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.forward_layer = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(self.before(x)).unflatten(-1, (-1, self.head)).transpose(1, 2)
        query, key, value = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        mixed = self.attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.forward_layer(self.after(x))


class Repeater(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Embedding(2 * HALF, WIDTH)
        self.blocks = nn.Sequential(Block(attention), Block(attention))
        self.last = nn.Linear(WIDTH, LETTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.letters(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.last(self.blocks(x))


def train(attention: Attention, steps: int) -> list[float]:
    """The loss of every step. The seed fixes the weights and the batches."""
    torch.manual_seed(0)
    model = Repeater(attention)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        half = torch.randint(LETTERS, (BATCH, HALF))
        tokens = torch.cat([half, half], dim=1)
        # Only the second half can be predicted.
        logits = model(tokens)[:, HALF - 1 : -1]
        loss = F.cross_entropy(logits.flatten(0, 1), half.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def backend() -> str:
    """Which algorithm qkv takes for the calls of this model."""
    query = torch.empty(BATCH, HEADS, 2 * HALF, WIDTH // HEADS, requires_grad=True)
    key = torch.empty(BATCH, KV_HEADS, 2 * HALF, WIDTH // HEADS, requires_grad=True)
    return qkv.explain(query, key, key, mask=qkv.Causal()).backend


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with PyTorch's attention and with qkv's, and compare.")
    parser.add_argument("--steps", type=int, default=120, help="set the number of training steps (120)")
    steps = max(parser.parse_args().steps, 1)
    torch.set_num_threads(1)  # threads cost more than they save on tensors this small
    theirs = train(F.scaled_dot_product_attention, steps)
    ours = train(qkv.compat.scaled_dot_product_attention, steps)
    print("step   torch     qkv       difference")
    shown = sorted({*range(0, steps, max(steps // 8, 1)), steps - 1})
    for step in shown:
        print(f"{step + 1:>4}   {theirs[step]:.6f}  {ours[step]:.6f}  {abs(theirs[step] - ours[step]):.1e}")
    largest = max(abs(one - other) for one, other in zip(theirs, ours, strict=True))
    print(f"largest difference of {steps} losses: {largest:.1e} (bound {BOUND:.0e})")
    print(f"qkv's backend for these calls: {backend()}")
    sys.exit(not largest <= BOUND)  # NaN is no agreement


if __name__ == "__main__":
    main()
