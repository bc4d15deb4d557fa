"""A compiled two-layer decoder: against the same model uncompiled, and against one compiled with torch's attention.

The target: at most 1.05 times the time of either, forward and in training.
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import qkv
from qkv.backends.base import RUNS

from .harness import compare, report

LENGTHS = (1024, 2048)
WIDTH, HEADS, VOCABULARY = 512, 8, 1000
TARGET = 1.05


class TorchAttention(qkv.nn.Attention):
    """The projections of a layer of qkv around torch's attention."""

    def forward(self, x: Tensor, context: Any = None, *, position_range: Any = None, **options: Any) -> Tensor:
        query, key, value = self._project_self(x, position_range)
        return self._merge_heads(sdpa(query, key, value, is_causal=True))


def models() -> dict[str, Any]:
    """The eager model, the compiled one, and one compiled with torch's attention; all with the same weights."""
    torch.manual_seed(0)
    eager = qkv.nn.Decoder(WIDTH, heads=HEADS, layers=2, vocabulary=VOCABULARY, positions=qkv.nn.Rotary())
    peer = copy.deepcopy(eager)
    for block in peer.blocks:
        block.attention.__class__ = TorchAttention
    own = copy.deepcopy(eager)
    return {
        "qkv eager": eager,
        "qkv compiled": torch.compile(own, fullgraph=True, dynamic=False),
        "sdpa compiled": torch.compile(peer, fullgraph=True, dynamic=False),
    }


def step(model: Any, tokens: Tensor, train: bool) -> Tensor:
    """A forward pass, or one with a backward pass."""
    if not train:
        with torch.no_grad():
            return model(tokens)
    model.zero_grad(set_to_none=True)
    out = model(tokens)
    nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten()).backward()
    return out.detach()


def run() -> None:
    rows, data = [], []
    seconds = 2.0 if "--quick" in sys.argv else 20.0
    for length in LENGTHS:
        tokens = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))
        for train in (False, True):
            torch._dynamo.reset()
            named = models()
            answers = [step(model, tokens, train) for model in named.values()]
            for answer in answers[1:]:
                torch.testing.assert_close(answer, answers[0], rtol=1e-3, atol=1e-3)
            RUNS.clear()
            step(named["qkv compiled"], tokens, train)
            engines = ", ".join(f"{engine} x {count}" for engine, count in RUNS.items())
            timings = compare(
                {name: partial(step, model, tokens, train) for name, model in named.items()}, seconds=seconds
            )
            ratios = [timings.ratio("qkv compiled", other) for other in ("qkv eager", "sdpa compiled")]
            cells = [f"{1e3 * timings.median(name):.1f} ms ±{timings.spread(name):.0%}" for name in named]
            verdict = "met" if max(ratios) <= TARGET else "MISSED"
            kind = "training" if train else "forward"
            rows.append([f"{length} tokens, {kind}", *cells, *(f"{r:.2f}" for r in ratios), engines, verdict])
            data.append({
                "length": length, "kind": kind, "seconds": {name: timings.median(name) for name in named},
                "spread": {name: timings.spread(name) for name in named}, "ratios": ratios, "engines": engines,
            })  # fmt: skip
    columns = ["model", "qkv eager", "qkv compiled", "sdpa compiled", "/ eager", "/ sdpa", "ran", f"{TARGET}"]
    report("compiled", f"A two-layer decoder of width {WIDTH}, {HEADS} heads", columns, rows, data)
