"""Associative recall, trained: which similarities learn to look something up, and what scaling has to do with it.

A sequence shows pairs of a key and a value and then one of its keys again; the value that stood beside it is wanted.
The model is one attention over the pairs: a table of queries, one of keys, one of values, and a linear reader. Every
run trains it with Adam on fresh sequences through `qkv.attention`, and is the same for the same seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .claim import Claim, Correction, Evidence, measured

if TYPE_CHECKING:
    import torch

    from ..similarity import AnySimilarity

PAIRS, KEYS, VALUES = 8, 32, 16  # pairs in a sequence, different keys, different values
BATCH, JUDGED, EVERY = 64, 512, 25  # sequences a step, sequences to judge by, steps between judgements
WIDTH_OF_VALUES = 16
RATE = 1e-2
LEARNT = 0.95


@dataclass(frozen=True)
class Run:
    """One training: (step, share of right answers) as it went, the largest gradient that queries and keys ever had,
    and the share of sequences whose heaviest weight lies on the right pair, before and after."""

    name: str
    width: int
    seed: int
    curve: tuple[tuple[int, float], ...]
    gradient: float
    found_before: float
    found_after: float

    @property
    def area(self) -> float:
        """The mean over the course: high for what learns early."""
        return statistics.fmean(right for _, right in self.curve)

    @property
    def last(self) -> float:
        return self.curve[-1][1]


def train(name: str, similarity: AnySimilarity, width: int, seed: int, steps: int) -> Run:
    """Train one model and say how it went."""
    import torch
    from torch.nn.functional import cross_entropy

    from ..api import attention

    chance = torch.Generator().manual_seed(seed)

    def table(rows: int, columns: int, size: float = 1.0) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=chance) * size).requires_grad_()

    queries, keys = table(KEYS, width), table(KEYS, width)
    values, reader = table(VALUES, WIDTH_OF_VALUES), table(WIDTH_OF_VALUES, VALUES, WIDTH_OF_VALUES**-0.5)

    def sequences(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shown = torch.rand(count, KEYS, generator=chance).argsort(1)[:, :PAIRS]
        beside = torch.randint(VALUES, (count, PAIRS), generator=chance)
        asked = torch.randint(PAIRS, (count, 1), generator=chance)
        return shown, beside, asked

    def answers(shown: torch.Tensor, beside: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        out = attention(queries[shown.gather(1, asked)], keys[shown], values[beside], similarity=similarity)
        return out[:, 0] @ reader

    def found() -> float:
        """How often the right pair has the largest weight, by weights that the values cannot change."""
        shown, _, asked = judged
        eye = torch.eye(PAIRS).expand(JUDGED, -1, -1)
        with torch.no_grad():
            weights = attention(queries[shown.gather(1, asked)], keys[shown], eye, similarity=similarity)
        return float((weights[:, 0].argmax(1) == asked[:, 0]).float().mean())

    judged = sequences(JUDGED)
    descent = torch.optim.Adam([queries, keys, values, reader], lr=RATE)
    before, largest, curve = found(), 0.0, []
    for step in range(1, steps + 1):
        shown, beside, asked = sequences(BATCH)
        descent.zero_grad()
        cross_entropy(answers(shown, beside, asked), beside.gather(1, asked)[:, 0]).backward()
        largest = max(largest, *(float(t.grad.abs().max()) if t.grad is not None else 0.0 for t in (queries, keys)))
        descent.step()
        if step % EVERY == 0 or step == steps:
            with torch.no_grad():
                right = answers(*judged).argmax(1) == judged[1].gather(1, judged[2])[:, 0]
            curve.append((step, float(right.float().mean())))
    return Run(name, width, seed, tuple(curve), largest, before, found())


def similarities() -> dict[str, AnySimilarity]:
    from ..features import elu1
    from ..similarity import Argmax, FeatureMap, Polynomial, Softmax

    return {"softmax": Softmax(), "quadratic": Polynomial(2, 1.0), "elu+1": FeatureMap(elu1), "argmax": Argmax()}


def recall(
    *,
    seeds: Sequence[int] = (0, 1, 2),
    widths: Sequence[int] = (16, 64, 256),
    steps: int = 400,
    progress: Callable[[float], None] | None = None,
) -> Claim:
    """What can be differentiated learns to look up; argmax does not move; without 1/√d learning is slower.

    `progress` is called with the part of the work that is done. About half a minute.
    """
    from ..similarity import Softmax

    plans = [(name, sim, 32, seed) for seed in seeds for name, sim in similarities().items()]
    scales = {"scaled": Softmax(), "unscaled": Softmax(scale=1.0)}
    plans += [(name, sim, width, seed) for seed in seeds for width in widths for name, sim in scales.items()]
    runs = []
    for done, (name, similarity, width, seed) in enumerate(plans):
        if progress is not None:
            progress(done / len(plans))
        runs.append(train(name, similarity, width, seed, steps))
    if progress is not None:
        progress(1.0)
    return Claim(
        "recall",
        "What learns to look something up",
        "Softmax, quadratic and elu+1 attention learn associative recall by gradient descent; with argmax queries and "
        "keys never move; with softmax, dividing by √d makes the same model learn sooner at every width.",
        {},
        (),
        evidence(runs),
        (
            Correction(
                "003-2b",
                "with argmax, gradient-based training becomes impossible for the attention mechanism",
                "queries and keys get no gradient, exactly; values and what reads them are still trained, so the model "
                "gets better than chance without ever learning where to look",
            ),
        ),
        ("003-2", "004-1a"),
        lambda: drawn(runs),
    )


def evidence(runs: Sequence[Run]) -> tuple[Evidence, ...]:
    """What the runs say, each against a bound that was set before they ran."""

    def of(name: str) -> list[Run]:
        return [run for run in runs if run.name == name]

    found = [
        measured(
            f"{name} learns: right answers missing at the end, worst seed", 1 - min(r.last for r in of(name)), 0.05
        )
        for name in ("softmax", "quadratic", "elu+1")
    ]
    hard = of("argmax")
    found.append(measured("argmax: largest gradient of queries and keys", max(r.gradient for r in hard), 0.0))
    moved = max(abs(r.found_after - r.found_before) for r in hard)
    found.append(measured("argmax: change in how often the right pair is found", moved, 0.0))
    pairs = list(zip(of("scaled"), of("unscaled"), strict=True))
    slower = max(without.area - scaled.area for scaled, without in pairs)
    found.append(measured("unscaled minus scaled, mean over the course, worst width and seed", slower, 0.0))
    return tuple(found)


def drawn(runs: Sequence[Run]) -> str:
    """Learning curves: the middle seed of each similarity, and softmax without scaling at each width."""
    from ..figures import Axis, Line, chart

    def middle(group: list[Run]) -> list[tuple[float, float]]:
        steps = [step for step, _ in group[0].curve]
        return [(s, statistics.median(r.curve[i][1] for r in group)) for i, s in enumerate(steps)]

    lines = [
        Line(name, middle([run for run in runs if run.name == name]))
        for name in dict.fromkeys(r.name for r in runs)
        if name not in ("scaled", "unscaled")
    ]
    for width in sorted({run.width for run in runs if run.name == "unscaled"}):
        group = [run for run in runs if run.name == "unscaled" and run.width == width]
        lines.append(Line(f"softmax unscaled, d = {width}", middle(group)))
    title = "Associative recall, 8 pairs: median of the seeds"
    return chart(title, Axis("training", "steps"), Axis("right answers", "share"), lines)


recall.slow = True  # type: ignore[attr-defined]  # qkv prove --quick leaves it out
