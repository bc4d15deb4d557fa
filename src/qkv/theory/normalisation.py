"""Layer and batch normalisation: which inputs an output depends on, how long a normalised vector is, and what moves
when one input changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..derivation import Derivation, Step
from ..errors import OptionError, ShapeError, complaint
from ..figures import Axis, Dots, Level, chart
from ..figures import Line as Curve
from .claim import Claim, Correction, Evidence, measured

LAYER = {
    "x": "vector[d]",
    "gamma": "scalar",
    "beta": "scalar",
    "mu": r"scalar = \frac{1}{d} \mathbf{1}^\top x",
    "sigma": r"scalar = \sqrt{\frac{1}{d} \|x - \mu \mathbf{1}\|^2}",
    "z": r"vector[d] = (x - \mu \mathbf{1}) / \sigma",
    "y": r"vector[d] = \gamma z + \beta \mathbf{1}",
    "epsilon": "positive",
}
WITH_EPSILON = {
    **{name: LAYER[name] for name in ("x", "gamma", "beta", "mu", "sigma")},
    "epsilon": "positive",
    "y": r"vector[d] = \gamma (x - \mu \mathbf{1}) / \sqrt{\sigma^2 + \epsilon} + \beta \mathbf{1}",
}

# B vectors as rows; m and s are the means and deviations, over a vector or over the batch, or stored ones.
BATCH = {
    **dict.fromkeys(("X", "x", "y"), "matrix[B,D]"),
    **dict.fromkeys(("i", "k"), "index[B]"),
    **dict.fromkeys(("j", "l"), "index[D]"),
}
OVER_A_VECTOR = {
    **BATCH,
    "m": r"vector[B] = \frac{1}{D} X \mathbf{1}",
    "s": r"vector[B] = \sqrt{\frac{1}{D} \mathrm{diag}(X X^\top) - m \odot m}",
}
OVER_THE_BATCH = {
    **BATCH,
    "m": r"vector[D] = \frac{1}{B} X^\top \mathbf{1}",
    "s": r"vector[D] = \sqrt{\frac{1}{B} \mathrm{diag}(X^\top X) - m \odot m}",
}
STORED = {**BATCH, "m": "vector[D]", "s": "vector[D]"}

DERIVATION = (
    Step(
        r"\frac{\partial}{\partial X_{kl}} \frac{X_{ij} - m_i}{s_i}", "layer normalisation", "", symbols=OVER_A_VECTOR
    ),
    Step(
        r"\frac{\delta_{ik} (\delta_{jl} - \frac{1}{D})}{s_i}"
        r" - \frac{X_{ij} - m_i}{s_i^2} \cdot \frac{\delta_{ik} (X_{il} - m_i)}{D s_i}",
        "rule of quotients; mean and deviation are those of vector $i$",
    ),
    Step(
        r"\frac{\delta_{ik}}{s_i} (\delta_{jl} - \frac{1}{D} - \frac{(X_{ij} - m_i) (X_{il} - m_i)}{D s_i^2})",
        r"collected: 0 for another vector, $k \ne i$, and in general not for another component of the same one",
    ),
    Step(r"\frac{\partial}{\partial X_{kl}} \frac{X_{ij} - m_j}{s_j}", "batch, training", "", symbols=OVER_THE_BATCH),
    Step(
        r"\frac{\delta_{jl}}{s_j} (\delta_{ik} - \frac{1}{B} - \frac{(X_{ij} - m_j) (X_{kj} - m_j)}{B s_j^2})",
        r"the same with rows and columns changed over: 0 for another component, $l \ne j$, not for another vector",
    ),
    Step(r"\frac{X_{ij} - m_j}{s_j}", "batch normalisation in evaluation, with stored $m$ and $s$", "", symbols=STORED),
    Step(
        r"\frac{1}{s_j} X_{ij} - \frac{m_j}{s_j}", "a number times $X_{ij}$, and a number: nothing else of $X$ is in it"
    ),
    Step(r"\mathbf{1}^\top x", "the sum of the components of a vector", "", symbols=LAYER),
    Step(r"d \mu", r"definition of $\mu$"),
    Step(
        r"\mathbf{1}_d^\top (\mu \mathbf{1}_d)",
        r"$d$ ones: $x$ and $\mu \mathbf{1}_d$ have the same sum, so $x - \mu \mathbf{1}$ has none along $1_d$",
    ),
    Step(r"\frac{1}{d} \|x - \mu \mathbf{1}\|^2", r"the variance $\sigma^2$ over the components of one vector", ""),
    Step(
        r"\frac{1}{d} \|x\|^2 - \mu^2", "the mean of squares minus the square of the mean: 0 only for a constant vector"
    ),
    Step(r"\|y - \beta \mathbf{1}\|", r"how far the output is from $\beta \mathbf{1}_d$, without $\epsilon$", ""),
    Step(r"\|\gamma z\|", "definition of $y$"),
    Step(r"|\gamma| \|z\|", "a norm takes the absolute value of a factor"),
    Step(
        r"|\gamma| \frac{\|x - \mu \mathbf{1}\|}{\sigma}", r"definition of $z$; $\sigma > 0$, for $x$ is not constant"
    ),
    Step(r"|\gamma| \sqrt{d}", r"definition of $\sigma$: $\|x - \mu \mathbf{1}\| = \sigma \sqrt{d}$"),
    Step(r"\|y - \beta \mathbf{1}\|", r"the same with $\epsilon > 0$ under the root", "", symbols=WITH_EPSILON),
    Step(r"\frac{|\gamma|}{\sqrt{\sigma^2 + \epsilon}} \|x - \mu \mathbf{1}\|", "a norm takes the size of a factor"),
    Step(
        r"|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}",
        r"$\|x - \mu \mathbf{1}\| = \sigma \sqrt{d}$, and 0 for a constant vector",
    ),
)

CORRECTIONS = (
    Correction(
        "norms (a)",
        "layer normalisation is 'elementwise'",
        "it is applied to each vector by itself: $y_{ij}$ depends on every component of the same vector, through its "
        "mean and variance, and on no other vector.",
    ),
    Correction(
        "norms (a)",
        "batch normalisation depends on the other vectors of the batch",
        "in training only. In evaluation the stored statistics are constants, and $y_{ij}$ depends on $x_{ij}$ alone.",
    ),
    Correction(
        "norms (b)",
        r"$\|y - \beta \mathbf{1}\| = \gamma \sqrt{d}$ for any $x$",
        r"$|\gamma| \sqrt{d}$, for a norm is never negative; $\gamma$ and $\beta$ are one number each (with a $\gamma$ "
        r"for each component the length depends on $x$ and lies between the smallest and the largest $|\gamma|$, times "
        r"$\sqrt{d}$); and $x$ must not be constant, or $\sigma = 0$.",
    ),
    Correction(
        "norms (b)",
        r"takes $\epsilon = 0$",
        r"what runs has $\epsilon > 0$, and then it is $|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}$: "
        "shorter, and 0 for a constant vector.",
    ),
)


def normalisation(*, seed: int = 0, batch: int = 5, width: int = 7) -> Claim:
    """LayerNorm's y_ij depends on row i, BatchNorm's on column j while training; ‖y − β1‖ = |γ|√d·σ/√(σ²+ε).

    Args:
        seed: of the random rows.
        batch, width: at least three each: with two, the Jacobian vanishes.

    Returns:
        The claim, with its derivation and the evidence for it.

    >>> from qkv.theory import claims
    >>> claims()["normalisation"] is normalisation  # normalisation().holds takes a few seconds
    True
    """
    evidence = (
        *(depends(*case, seed=seed, batch=batch, width=width) for case in CASES),
        slopes(seed, width),
        vanishing_jacobian("layer"),
        vanishing_jacobian("batch"),
        length(seed, width),
        length(seed, width, epsilon=0.5),
        gamma_for_each(seed, width),
        constant_vector(width),
        in_a_block(seed),
    )
    return replace(without_evidence(), evidence=evidence)


def without_evidence() -> Claim:
    """The claim without its evidence, which takes time to compute."""
    return Claim(
        "normalisation",
        "What normalisation depends on, and the length of its result",
        "Layer normalisation's $y_{ij}$ depends on all of vector $i$ and on nothing else; batch normalisation's on "
        "component $j$ of all vectors while training, on $x_{ij}$ alone in evaluation. With one number each for "
        r"$\gamma$ and $\beta$, and $x$ not constant, $\|y - \beta \mathbf{1}\| = |\gamma| \sqrt{d}$; with "
        r"$\epsilon > 0$ it is $|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}$.",
        Derivation(DERIVATION, LAYER, shown=True),
        (),
        CORRECTIONS,
        ("norms (a)", "norms (b)"),
        figure,
    )


# Which norm, whether it trains, what y_ij depends on, and that as a rule for (i, j, i', j').
CASES: tuple[tuple[str, bool, str, Callable[[int, int, int, int], bool]], ...] = (
    ("layer", True, "vector $i$", lambda i, j, row, column: i == row),
    ("layer", False, "vector $i$", lambda i, j, row, column: i == row),
    ("batch", True, "component $j$ of every vector", lambda i, j, row, column: j == column),
    ("batch", False, "$x_{ij}$ alone", lambda i, j, row, column: (i, j) == (row, column)),
)


def norm_module(kind: str, width: int, **options: Any) -> Any:
    """torch's module, in float64."""
    import torch

    norms = {"layer": torch.nn.LayerNorm, "batch": torch.nn.BatchNorm1d}
    return norms[kind](width, **options).double()


def depends(
    kind: str,
    training: bool,
    inputs: str,
    rule: Callable[[int, int, int, int], bool],
    *,
    seed: int = 0,
    batch: int = 5,
    width: int = 7,
) -> Evidence:
    """How many entries of the Jacobian ∂y_ij/∂x_i'j' of torch's module are 0 against the rule, or not 0 against it."""
    import torch

    norm = norm_module(kind, width)
    generator = torch.Generator().manual_seed(seed)
    # The stored statistics for evaluation come from other batches.
    for _ in range(3):
        norm(3 + 2 * torch.randn(batch, width, dtype=torch.float64, generator=generator))
    norm.train(training)
    x = torch.randn(batch, width, dtype=torch.float64, generator=generator)
    jacobian: Any = torch.autograd.functional.jacobian(norm, x)
    # Terms that cancel leave a few eps at most: derivatives are of the order of 1/σ.
    noise = 16 * width * batch * torch.finfo(torch.float64).eps
    places = product(range(batch), range(width), range(batch), range(width))
    wrong = sum((abs(jacobian[place].item()) > noise) != rule(*place) for place in places)
    mode = "training" if training else "evaluation"
    what = (
        f"{type(norm).__name__} in {mode}: $y_{{ij}}$ depends on {inputs}; entries of its Jacobian at {batch} vectors "
        f"of {width} that differ"
    )
    return measured(what, wrong, 0)


def slopes(seed: int, width: int, kept: int = 1) -> Evidence:
    """∂z/∂x of torch's LayerNorm against (I − 11ᵀ/d − zzᵀ/d)/σ: changes of the mean or of the deviation vanish."""
    import torch

    x = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    norm = norm_module("layer", width, eps=0.0, elementwise_affine=False)
    z, sigma = norm(x), x.std(correction=0)
    expected = (torch.eye(width, dtype=torch.float64) - 1 / width - kept * torch.outer(z, z) / width) / sigma
    jacobian: Any = torch.autograd.functional.jacobian(norm, x)
    # Sums over d of products of numbers of the order of √d, over σ.
    bound = 8 * width * math.sqrt(width) * torch.finfo(torch.float64).eps / sigma.item()
    what = r"LayerNorm's Jacobian against $(I_d - 1_d 1_d^\top / d - z z^\top / d) / \sigma$"
    return measured(what, (jacobian - expected).abs().max().item(), bound)


def vanishing_jacobian(kind: str, count: int = 2) -> Evidence:
    """Why tests use three of everything: of two numbers, normalised without ε, only the order remains."""
    import torch

    # torch refuses ε = 0 for batch normalisation in training; this ε is lost in the rounding of σ².
    options = {"eps": 1e-300} | ({"elementwise_affine": False} if kind == "layer" else {"affine": False})
    x = torch.tensor([[1.0, 5.0, 2.0, 9.0, 3.0][:count]], dtype=torch.float64)
    x = x if kind == "layer" else x.T
    norm = norm_module(kind, x.shape[1], **options)
    jacobian: Any = torch.autograd.functional.jacobian(norm, x)
    # Slopes are differences of a few numbers of the order of 1/σ, which is less than 1 here.
    bound = 16 * torch.finfo(torch.float64).eps
    of = "width" if kind == "layer" else "batch"
    return measured(
        f"{type(norm).__name__} with {of} 2 and $\\epsilon = 0$: the Jacobian vanishes",
        jacobian.abs().max().item(),
        bound,
    )


def length_left(gamma: float, width: int, shrunk: float) -> float:
    """|γ|√d·σ/√(σ² + ε), where `shrunk` is σ/√(σ² + ε): 1 without ε."""
    return abs(gamma) * math.sqrt(width) * shrunk


def length(
    seed: int, width: int, epsilon: float = 0.0, formula: Callable[[float, int, float], float] | None = None
) -> Evidence:
    """torch's LayerNorm with γ of both signs: ‖y − β1‖ against |γ|√d·σ/√(σ² + ε), relative."""
    import torch

    formula = formula or length_left
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(11, width, dtype=torch.float64, generator=generator) * torch.logspace(-2, 2, 11)[:, None].double()
    norm, sigma = norm_module("layer", width, eps=epsilon), x.std(dim=-1, correction=0)
    shrunk, off, bounds = sigma / (sigma**2 + epsilon).sqrt(), [], []
    for gamma, beta in ((1.5, 0.0), (-2.0, 3.0), (0.25, -1.0)):
        torch.nn.init.constant_(norm.weight, gamma)
        torch.nn.init.constant_(norm.bias, beta)
        expected = torch.tensor([formula(gamma, width, one) for one in shrunk.tolist()], dtype=torch.float64)
        off.append(((norm(x) - beta).norm(dim=-1) - expected).abs() / expected.abs())
        # Taking β away again leaves the rounding of γz + β on what is left of γz.
        bounds.append(8 * width * torch.finfo(torch.float64).eps * (1 + abs(beta / gamma) / shrunk))
    residuals, bound = torch.cat(off), torch.cat(bounds)
    worst = (residuals / bound).argmax()  # that of NaN, where there is one
    written = r"$|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}$"
    what = rf"LayerNorm, $\epsilon = {epsilon:g}$: $\|y - \beta \mathbf{{1}}\|$ against {written}, relative"
    return measured(what, residuals[worst].item(), bound[worst].item())


def gamma_for_each(seed: int, width: int, wider: float = 0.0) -> Evidence:
    """A γ for each component: lengths outside min|γ|√d to max|γ|√d, and inputs that share their length with another."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(11, width, dtype=torch.float64, generator=generator)
    norm = norm_module("layer", width, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-2.0, 1.5, width))
        lengths = (norm(x) / math.sqrt(width)).norm(dim=-1)
    sizes = norm.weight.abs()
    outside = ((lengths < sizes.min() + wider) | (lengths > sizes.max() - wider)).sum().item()
    shared = len(lengths) - len(lengths.unique())
    what = (
        r"LayerNorm with a $\gamma$ for each component: lengths outside the smallest to the largest "
        r"$|\gamma| \sqrt{d}$, or equal"
    )
    return measured(what, outside + shared, 0)


def constant_vector(width: int, epsilon: float = 0.0) -> Evidence:
    """A constant vector: without ε there is no output, with ε it is β1."""
    import torch

    x = torch.full((1, width), 2.0, dtype=torch.float64)
    without = norm_module("layer", width, eps=epsilon)(x).isfinite().sum().item()
    with_one = norm_module("layer", width, eps=1e-5)(x).abs().max().item()
    return measured(
        r"a constant vector: finite outputs without $\epsilon$, and the distance from $\beta \mathbf{1}_d$ with it",
        without + with_one,
        0,
    )


def in_a_block(seed: int, norms: tuple[str, str] = ("layer", "batch")) -> Evidence:
    """Blocks of `qkv.nn` while training: a row of the batch depends on no other row, or on all."""
    import torch

    from ..nn import Block

    leaks = []
    for norm in norms:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            block = Block(6, 2, norm=norm).double().train()
            x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
            (slopes,) = torch.autograd.grad((block(x)[0] * torch.randn(5, 6)).sum(), x)
        leaks.append(sum(slope.abs().max().item() != 0 for slope in slopes[1:]))
    wrong = (leaks[0] != 0) + (leaks[1] != 2)
    return measured(
        "blocks of `qkv.nn`: other rows matter with norm='batch' in training, never with norm='layer'", wrong, 0
    )


def figure(width: int = 64) -> str:
    """How much of |γ|√d is left, over the spread of the input, for several ε: torch's module on the curve."""
    import torch

    direction = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    direction = (direction - direction.mean()) / direction.std(correction=0)
    marks: list[Any] = []
    for epsilon in (1e-12, 1e-5, 1e-2):
        norm = norm_module("layer", width, eps=epsilon)
        sigmas = [10 ** (p / 4) for p in range(-28, 9)]
        found = [(s, (norm(s * direction).norm() / math.sqrt(width)).item()) for s in sigmas[::3]]
        formula = [(s, s / math.sqrt(s * s + epsilon)) for s in sigmas]
        marks += [Dots(f"LayerNorm, ε = {epsilon:g}", found), Curve(f"σ/√(σ² + {epsilon:g})", formula, markers=False)]
    marks.append(Level("ε = 0", y=1.0))
    note = f"torch's LayerNorm at d = {width}. Below σ ≈ √ε, ε dominates; torch's default is 10⁻⁵."
    axes = Axis("σ of the input", scale="log"), Axis("‖y − β1‖ / (|γ|√d)", low=0, high=1.1)
    return chart("The length after layer normalisation", *axes, marks, note, height=480)


Grid = list[list[float]]


@dataclass(frozen=True)
class Normalised:
    """A normalised vector (layer normalisation), or a normalised component over the batch (batch normalisation).

    sigma: the standard deviation of the input; mean: that of the output, which is β; length: the distance of the
    output from β1; predicted: |γ|√d·σ/√(σ² + ε), which `length` should be.
    """

    mean: float
    sigma: float
    length: float
    predicted: float


@dataclass(frozen=True)
class InputChange:
    before: Grid
    after: Grid
    jacobian: list[list[Grid]]  # ∂y_ij/∂x_kl before the change
    depends: list[list[list[list[bool]]]]  # whether it is more than rounding
    expected: list[list[list[list[bool]]]]  # whether y_ij depends on x_kl by definition
    normalised: list[Normalised]  # empty for batch normalisation in evaluation
    stored: tuple[list[float], list[float]] | None  # mean and variance for evaluation

    @property
    def difference(self) -> Grid:
        pairs = zip(self.before, self.after, strict=True)
        return [[new - old for old, new in zip(*rows, strict=True)] for rows in pairs]


def change_input(
    x: Sequence[Sequence[float]],
    row: int,
    column: int,
    by: float,
    *,
    kind: str = "layer",
    training: bool = True,
    epsilon: float = 1e-5,
    gamma: float = 1.0,
    beta: float = 0.0,
) -> InputChange:
    """torch's LayerNorm or BatchNorm1d on vectors as rows, before and after `by` is added to x[row][column].

    Batch normalisation in evaluation uses the statistics of one pass over the unchanged batch: its mean, and its
    variance with B − 1 in the divisor, as torch stores it. From one vector alone only the mean is stored; the
    variance stays 1, that of a new layer.

    >>> moved = change_input([[1.0, 2.0, 4.0], [3.0, 5.0, 0.0]], 0, 1, 1.0)
    >>> [[change != 0 for change in row] for row in moved.difference]
    [[True, True, True], [False, False, False]]
    """
    import torch

    start = torch.tensor(x, dtype=torch.float64)
    if start.ndim != 2 or not start.numel():
        raise ShapeError(complaint("x", f"shape {tuple(start.shape)}", "vectors as rows"))
    batch, width = start.shape
    if kind not in ("layer", "batch"):
        raise OptionError(complaint("kind", repr(kind), "layer or batch"))
    if kind == "batch" and training and batch < 2:
        raise ShapeError(complaint("x", "one vector", "two or more, as one alone has no deviation over the batch"))
    end = start.clone()
    end[row, column] += by

    norm = _norm(kind, width, training, start, epsilon, gamma, beta)
    with torch.no_grad():
        before, after = norm(start), norm(end)
    jacobian: Any = torch.autograd.functional.jacobian(norm, start)
    rule = next(rule for name, trains, _, rule in CASES if (name, trains) == (kind, training))
    places = [[(i, j) for j in range(width)] for i in range(batch)]
    over = {"layer": 1, "batch": 0}[kind]
    evaluating = kind == "batch" and not training
    variance = norm.running_var if evaluating else start.var(dim=over, correction=0, keepdim=True)
    # Terms that cancel leave a few eps of their size, which is of the order of γ/√(σ² + ε).
    noise = 16 * start.numel() * torch.finfo(torch.float64).eps * abs(gamma) / (variance + epsilon).sqrt()
    depends = jacobian.abs() > noise.expand(batch, width)[:, :, None, None]
    return InputChange(
        before.tolist(),
        after.tolist(),
        jacobian.tolist(),
        depends.tolist(),
        [[[[rule(*here, *there) for there in line] for line in places] for here in rows] for rows in places],
        [] if evaluating else _normalised(end, after, over, epsilon, gamma, beta),
        (norm.running_mean.tolist(), norm.running_var.tolist()) if evaluating else None,
    )


def _norm(kind: str, width: int, training: bool, x: Any, epsilon: float, gamma: float, beta: float) -> Any:
    import torch

    options = {"momentum": 1.0} if kind == "batch" else {}
    norm = norm_module(kind, width, eps=epsilon, **options).requires_grad_(False)
    torch.nn.init.constant_(norm.weight, gamma)
    torch.nn.init.constant_(norm.bias, beta)
    if kind == "batch" and len(x) == 1:
        norm.running_mean.copy_(x[0])
    else:
        norm(x)  # stores the statistics for evaluation
    return norm.train(training)


def _normalised(x: Any, y: Any, over: int, epsilon: float, gamma: float, beta: float) -> list[Normalised]:
    means, sigmas = y.mean(dim=over).tolist(), x.std(dim=over, correction=0).tolist()
    lengths = (y - beta).norm(dim=over).tolist()
    predicted = [length_left(gamma, x.shape[over], sigma / math.sqrt(sigma**2 + epsilon)) for sigma in sigmas]
    return [Normalised(*each) for each in zip(means, sigmas, lengths, predicted, strict=True)]
