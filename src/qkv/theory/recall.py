"""Associative recall, trained: which similarities learn to look something up, and how scaling changes that.

A sequence shows pairs of a key and a value and then one of its keys again; the target is the value of that key.
The model is one attention over the pairs: a table of queries, one of keys, one of values, and a linear reader. Every
run trains it with Adam on fresh sequences through `qkv.attention`, and is the same for the same seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..derivation import Derivation
from .claim import Claim, Correction, Evidence, measured

if TYPE_CHECKING:
    import torch

    from ..similarity import AnySimilarity

PAIRS, KEYS, VALUES = 8, 32, 16  # pairs in a sequence, different keys, different values
BATCH, EVALUATED, EVERY = 64, 512, 25  # sequences a step, sequences of an evaluation, steps between evaluations
WIDTH_OF_VALUES = 16
RATE = 1e-2
LEARNT = 0.95


@dataclass(frozen=True)
class Run:
    """One training run: the learning curve (step, share of right answers), the largest gradient of queries and keys,
    and the share of sequences whose largest weight is on the right pair, before and after."""

    name: str
    width: int
    seed: int
    curve: tuple[tuple[int, float], ...]
    gradient: float
    found_before: float
    found_after: float

    @property
    def area(self) -> float:
        """The mean of the curve: high for what learns early."""
        return statistics.fmean(right for _, right in self.curve)

    @property
    def last(self) -> float:
        return self.curve[-1][1]


def train(name: str, similarity: AnySimilarity, width: int, seed: int, steps: int) -> Run:
    """Train one model."""
    import torch
    from torch.nn.functional import cross_entropy

    from ..functional import attention

    chance = torch.Generator().manual_seed(seed)

    def table(rows: int, columns: int, size: float = 1.0) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=chance) * size).requires_grad_()

    queries, keys = table(KEYS, width), table(KEYS, width)
    values, reader = table(VALUES, WIDTH_OF_VALUES), table(WIDTH_OF_VALUES, VALUES, WIDTH_OF_VALUES**-0.5)

    def sequences(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shown = torch.rand(count, KEYS, generator=chance).argsort(1)[:, :PAIRS]
        paired = torch.randint(VALUES, (count, PAIRS), generator=chance)
        queried = torch.randint(PAIRS, (count, 1), generator=chance)
        return shown, paired, queried

    def answers(shown: torch.Tensor, paired: torch.Tensor, queried: torch.Tensor) -> torch.Tensor:
        out = attention(queries[shown.gather(1, queried)], keys[shown], values[paired], similarity=similarity)
        return out[:, 0] @ reader

    def found() -> float:
        """How often the right pair has the largest weight, by weights that the values cannot change."""
        shown, _, queried = evaluated
        eye = torch.eye(PAIRS).expand(EVALUATED, -1, -1)
        with torch.no_grad():
            weights = attention(queries[shown.gather(1, queried)], keys[shown], eye, similarity=similarity)
        return float((weights[:, 0].argmax(1) == queried[:, 0]).float().mean())

    evaluated = sequences(EVALUATED)
    descent = torch.optim.Adam([queries, keys, values, reader], lr=RATE)
    before, largest, curve = found(), 0.0, []
    for step in range(1, steps + 1):
        shown, paired, queried = sequences(BATCH)
        descent.zero_grad()
        cross_entropy(answers(shown, paired, queried), paired.gather(1, queried)[:, 0]).backward()
        largest = max(largest, *(float(t.grad.abs().max()) if t.grad is not None else 0.0 for t in (queries, keys)))
        descent.step()
        if step % EVERY == 0 or step == steps:
            with torch.no_grad():
                right = answers(*evaluated).argmax(1) == evaluated[1].gather(1, evaluated[2])[:, 0]
            curve.append((step, float(right.float().mean())))
    return Run(name, width, seed, tuple(curve), largest, before, found())


def similarities() -> dict[str, AnySimilarity]:
    from ..features import elu1
    from ..similarity import Argmax, FeatureMap, Polynomial, Softmax

    return {"softmax": Softmax(), "quadratic": Polynomial(2, 1.0), "elu+1": FeatureMap(elu1), "argmax": Argmax()}


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread: the tensors are too small for more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def recall(
    *,
    seeds: Sequence[int] = (0, 1, 2),
    widths: Sequence[int] = (16, 64, 256),
    steps: int = 400,
    progress: Callable[[float], None] | None = None,
) -> Claim:
    """Differentiable similarities learn to look up; argmax does not; without 1/√d learning is slower.

    Takes about half a minute.

    Args:
        seeds: Of the weights and the sequences, one training for each.
        widths: Of the keys, on which the scales are compared.
        steps: Of each training.
        progress: called with the part of the work that is done, from 0 to 1.

    Returns:
        The claim, with its derivation and the evidence for it.

    >>> from qkv.theory import claims
    >>> claims()["recall"] is recall  # recall().holds takes about half a minute
    True
    """
    from ..similarity import Softmax

    plans = [(name, sim, 32, seed) for seed in seeds for name, sim in similarities().items()]
    scales = {"scaled": Softmax(), "unscaled": Softmax(scale=1.0)}
    plans += [(name, sim, width, seed) for seed in seeds for width in widths for name, sim in scales.items()]
    runs = []
    with _one_thread():
        for done, (name, similarity, width, seed) in enumerate(plans):
            if progress is not None:
                progress(done / len(plans))
            runs.append(train(name, similarity, width, seed, steps))
    if progress is not None:
        progress(1.0)
    return Claim(
        "recall",
        "What learns to look something up",
        f"A sequence shows {PAIRS} pairs of a key and a value, then one of the keys again; the target is its value. "
        " Softmax, quadratic and elu+1 attention learn this by gradient descent; with argmax queries and keys "
        r"never move; with softmax, dividing by $\sqrt{d}$ makes the same model learn sooner at every width $d$.",
        Derivation(symbols={"d": "natural"}),
        evidence(runs),
        (
            Correction(
                "argmax (b)",
                "With argmax, gradient-based training becomes impossible for the attention mechanism.",
                "Queries and keys get no gradient, exactly; values and what reads them are still trained, so the model "
                "gets better than chance without ever learning where to look.",
            ),
        ),
        ("argmax", "saturation (a)"),
        lambda: drawn(runs),
    )


def evidence(runs: Sequence[Run]) -> tuple[Evidence, ...]:
    """The evidence of the runs, against bounds that were set before them."""

    def of(name: str) -> list[Run]:
        return [run for run in runs if run.name == name]

    found = [
        measured(
            f"{name} learns: share of wrong answers at the end, worst seed",
            1 - min(r.last for r in of(name)),
            1 - LEARNT,
        )
        for name in ("softmax", "quadratic", "elu+1")
    ]
    argmax = of("argmax")
    found.append(
        measured("argmax: largest gradient that queries and keys ever had", max(r.gradient for r in argmax), 0.0)
    )
    moved = max(abs(r.found_after - r.found_before) for r in argmax)
    found.append(measured("argmax: change in how often the right pair is found", moved, 0.0))
    pairs = list(zip(of("scaled"), of("unscaled"), strict=True))
    slower = max(without.area - scaled.area for scaled, without in pairs)
    what = "softmax: right answers over the whole course, unscaled less scaled, the largest over widths and seeds"
    found.append(measured(what, slower, 0.0))
    return tuple(found)


def drawn(runs: Sequence[Run]) -> str:
    """Learning curves, medians of the seeds: each similarity, and softmax at other widths with and without scaling."""
    from ..figures import Axis, Level, Line, chart

    def middle(group: list[Run]) -> list[tuple[float, float]]:
        steps = [step for step, _ in group[0].curve]
        return [(s, statistics.median(r.curve[i][1] for r in group)) for i, s in enumerate(steps)]

    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.name, run.width), []).append(run)
    lines: list[Line | Level] = [
        Line(name, middle(group)) for (name, _), group in groups.items() if name not in ("scaled", "unscaled")
    ]
    lines += [
        Line(f"softmax unscaled, d = {width}", middle(group))
        for (name, width), group in groups.items()
        if name == "unscaled"
    ]
    # Scaled runs are so close together that the slowest of them is enough.
    scaled = {width: group for (name, width), group in groups.items() if name == "scaled"}
    slowest = min(scaled, key=lambda width: statistics.median(run.area for run in scaled[width]))
    title = "What learns to look something up"
    lines += [
        Line(f"softmax scaled, d = {slowest}, the slowest", middle(scaled[slowest]), dashed=True),
        Level(f"chance, 1/{VALUES}", y=1 / VALUES),
    ]
    alike = ", ".join(str(width) for width in dict.fromkeys(w for n, w in groups if n not in ("scaled", "unscaled")))
    seeds = len({run.seed for run in runs})
    note = f"{PAIRS} pairs, {KEYS} keys, {VALUES} values; d = {alike} unless noted; medians of {seeds} seeds."
    return chart(title, Axis("training", "steps"), Axis("right answers", "share", low=0, high=1.05), lines, note)


vars(recall)["slow"] = True  # qkv prove --quick leaves it out
