"""Attention with a state that decays, is gated or corrected: prompts and decoding steps; a part of benchmarks.linear.

The targets, in float32: decayed and gated at 1x8x16384 and widths 64 and 128 at least 8 times as fast as the best of
torch's chunks, or at 50% of the multiply rate; gated delta at least 5 times as fast as transformers' torch path; a step
within 1.3 of reading and writing the state once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from qkv.ops.kernels import state_attention

from .decode import bar
from .peers import TimedCall
from .peers.states import chunked, recurrent, transformers_chunks
from .roofs import Roofs
from .rotation import caches, compare

HEADS, CHUNK, CHECKED = 8, 64, 512
WIDTHS = (64, 128)
PEER_CHUNKS = {"scalar": (32, 64, 128), "channel": (16, 32)}
KINDS = {"decayed": "head", "gated": "token", "gated by channel": "channel", "gated delta": "token", "KDA": "channel"}
ALLOWED = 1e-4  # of the largest answer


def flops(length: int, width: int, *, delta: bool) -> int:
    """The state read and added to for every token, and inside a chunk the causal half of scores and sums."""
    token = 4 * width * width + CHUNK * 2 * width
    return HEADS * length * (token + delta * (2 * width * width + CHUNK * 2 * width))


def draw(kind: str, length: int, width: int, batch: int = 1) -> dict[str, Any]:
    """Keys of length 1, and gates and β as the models have them."""
    source = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(batch, HEADS, length, width, generator=source) for _ in range(3))
    query, key = (torch.nn.functional.normalize(x, dim=-1) for x in (query, key))
    shape = {"head": (HEADS,), "token": (batch, HEADS, length), "channel": (batch, HEADS, length, width)}[KINDS[kind]]
    given = {"query": query, "key": key, "value": value, "log_gate": -0.1 * torch.rand(shape, generator=source)}
    if kind in ("gated delta", "KDA"):
        given["beta"] = torch.rand(batch, HEADS, length, generator=source)
    return given


def attend(given: dict[str, Any], state: Tensor | None = None) -> Tensor:
    return state_attention(**given, rule="delta" if "beta" in given else "linear", state=state)


def peers(kind: str) -> dict[str, Any]:
    entries: dict[str, Any] = {"qkv": attend}
    if kind != "KDA":
        for size in PEER_CHUNKS["channel" if KINDS[kind] == "channel" else "scalar"]:
            entries[f"chunks {size}"] = functools.partial(_chunked, chunk=size)
    if kind == "gated delta":
        entries["transformers"] = lambda given: transformers_chunks(**given)
    return entries


def _chunked(given: dict[str, Any], chunk: int) -> Tensor:
    return chunked(**given, chunk=chunk)


def prompt(
    kind: str, width: int, roofs: Roofs, *, quick: bool
) -> tuple[list[list[str]], list[list[str]], dict[str, Any]]:
    """The rows of the table, the targets, and what is written to the file."""
    length = 2048 if quick else 16384
    given, runs, errors = draw(kind, length, width), peers(kind), {}
    first = {name: x[:, :, :CHECKED] if x.dim() > 1 else x for name, x in given.items()}
    exact = recurrent(**{name: x.double() for name, x in first.items()})
    for name, run in runs.items():
        errors[name] = float((run(given)[:, :, :CHECKED] - exact).abs().max() / exact.abs().max())
        if not errors[name] <= ALLOWED:
            raise AssertionError(f"{name} is {errors[name]:.1e} of the largest answer away from float64's")
    begun = len(roofs.taken)
    roofs.measure()
    calls = {name: [TimedCall(functools.partial(run, given))] for name, run in runs.items()}
    times = compare(calls, seconds=0.3 if quick else 2.0, rounds=3 if quick else 5)
    roofs.measure()
    rate = roofs.best_since(begun).rate
    part = flops(length, width, delta="beta" in given) / times.median("qkv") / rate
    rows = [
        [
            f"{kind}, {width}" if name == "qkv" else f"  {name}",
            f"{times.median(name) * 1e3:.1f}",
            f"{times.spread(name):.0%}",
            f"{part:.0%}" if name == "qkv" else f"{times.ratio(name, 'qkv'):.1f}x",
            f"{errors[name]:.0e}",
        ]
        for name in runs
    ]
    targets = []
    if kind == "gated delta":
        targets.append(bar(f"{kind}, {width}: transformers", times.ratio("transformers", "qkv"), ".1f", least=5.0))
    elif kind != "KDA":
        best = times.best_of([name for name in runs if name.startswith("chunks")])
        faster = times.ratio(best, "qkv")
        if faster >= 8 or part < 0.5:
            targets.append(bar(f"{kind}, {width}: {best}", faster, ".1f", least=8.0))
        else:
            targets.append(bar(f"{kind}, {width}: part of the multiply rate", part, ".2f", least=0.5))
    return rows, targets, {"state": kind, "width": width, "length": length, "of_rate": part, "times": times.times}


def steps(*, quick: bool) -> tuple[list[list[str]], list[list[str]], dict[str, Any]]:
    """A step of qkv and of torch, and reading and writing the same states once, over states that are out of cache."""
    rows, targets, data = [], [], {}
    for kind in ("gated", "gated delta"):
        for width, batch in ((64, 16), (128, 16)):
            shape = (batch, HEADS, width, width)
            many = min(caches(4 * batch * HEADS * width * width), 40)
            states = [torch.zeros(shape) for _ in range(many)]
            given = draw(kind, 1, width, batch)
            calls = {
                "qkv": [TimedCall(functools.partial(attend, given, state)) for state in states],
                "read and write": [TimedCall(functools.partial(state.mul_, 0.999)) for state in states],
                "torch": [TimedCall(functools.partial(recurrent, **given))],
            }
            times = compare(calls, seconds=0.3 if quick else 1.5, rounds=5 if quick else 9)
            ratio = times.ratio("qkv", "read and write")
            cells = [f"{times.median(name) * 1e6:.0f}" for name in calls]
            rows.append(
                [f"{kind}, {batch}x{HEADS}x{width}x{width}", *cells, f"{times.spread('qkv'):.0%}", f"{ratio:.2f}"]
            )
            targets.append(bar(f"{kind}, {width}: a step / its state once", ratio, ".2f", most=1.3))
            data[f"{kind} {width}"] = times.times
    return rows, targets, {"steps": data}
