"""Time per token of causal linear attention, over the length; and of a decoding step, over the past.

Both should be flat: the plot goes to benchmarks/plots/linear-tokens.svg.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

import qkv

from .growth import round_up
from .harness import Timings
from .peers import TimedCall
from .peers.linear import CHUNKS, ELU1, QUADRATIC, for_elu1
from .rotation import compare

PLOT = Path(__file__).parent / "plots" / "linear-tokens.svg"
HEADS, WIDTH = 2, 64
LENGTHS = [1 << power for power in range(10, 19)]
SHORT = [1 << power for power in range(10, 14)]
PASTS = (1_000, 1_000_000)
NEAR = (1_000, 20_000)
PIECE = 8_192  # tokens appended at a time
STATE = "LinearState"
COLOURS = {"qkv": "#1f6fb4", CHUNKS: "#c8541b"}


def lengths(quick: bool) -> tuple[Timings, list[int]]:
    """qkv and torch's chunks at every length, all in the same rounds; an entry's name is `peer N`."""
    peers = [peer for peer in for_elu1() if peer.name in COLOURS]
    taken = SHORT if quick else LENGTHS
    entries: dict[str, list[TimedCall]] = {}
    for length in taken:
        torch.manual_seed(length)
        given = [torch.randn(1, HEADS, length, WIDTH) for _ in range(3)]
        entries |= {f"{peer.name} {length}": [peer.timed_call(given)] for peer in peers}
    return compare(entries, seconds=1.0 if quick else 15.0, rounds=3 if quick else 7), taken


def per_token(result: Timings, name: str, taken: list[int]) -> list[float]:
    """Nanoseconds a token, both heads, at each length."""
    return [result.median(f"{name} {length}") / length * 1e9 for length in taken]


def plot(title: str, taken: list[int], series: dict[str, list[float]]) -> str:
    """Nanoseconds over tokens; each step to the right doubles the length."""
    left, top, width, height = 70, 40, 620, 260
    ceiling = round_up(max(max(points) for points in series.values()))
    first, last = math.log2(taken[0]), math.log2(taken[-1])

    def across(length: int) -> float:
        return left + width * (math.log2(length) - first) / (last - first)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 350" font-family="sans-serif" font-size="13">',
        f"<title>{title}</title>",
        '<rect width="720" height="350" fill="white"/>',
        f'<text x="{left}" y="24" font-size="15">{title}</text>',
    ]
    for i in range(5):
        y = top + height - height * i / 4
        parts += [
            f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{ceiling * i / 4:g}</text>',
        ]
    for length in taken:
        x, y = across(length), top + height
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}" stroke="#555"/>',
            f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{length}</text>',
        ]
    middle = top + height / 2
    parts += [
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">length (tokens, log scale)</text>',
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">time per token (ns)</text>',
    ]
    for i, (name, points) in enumerate(series.items()):
        spots = [
            (across(length), top + height * (1 - point / ceiling)) for length, point in zip(taken, points, strict=True)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        colour, x0, y0 = COLOURS[name], left + 20 + 130 * i, top + 12
        parts += [
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in spots),
            f'<line x1="{x0}" x2="{x0 + 24}" y1="{y0}" y2="{y0}" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{x0 + 30}" y="{y0 + 4}">{"torch, chunks of 128" if name == CHUNKS else name}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


SIMILARITIES = {"elu+1": ELU1, "(q·k+1)²": QUADRATIC}


def steps(quick: bool) -> tuple[Timings, tuple[int, int]] | None:
    """A decoding step at a short and at a long past, 1x8x64, for each similarity; None without LinearState."""
    if not hasattr(qkv, STATE):
        return None
    pasts = NEAR if quick else PASTS
    entries = {
        f"{name} {past}": [_step(similarity, past)] for name, similarity in SIMILARITIES.items() for past in pasts
    }
    return compare(entries, seconds=0.5 if quick else 3.0, rounds=5 if quick else 31), pasts


def _step(similarity: Any, past: int, heads: int = 8) -> TimedCall:
    """qkv.decode on a state of `past` tokens; it appends, so that the past grows by one from step to step."""
    state = getattr(qkv, STATE)(similarity, 1, heads, WIDTH)
    source = torch.Generator().manual_seed(past)

    def normal(length: int) -> torch.Tensor:
        return torch.randn(1, heads, length, WIDTH, generator=source)

    for start in range(0, past, PIECE):
        length = min(PIECE, past - start)
        state.append(normal(length), normal(length))
    query, key, value = normal(1), normal(1), normal(1)
    return TimedCall(lambda: qkv.decode(query, key, value, state))
