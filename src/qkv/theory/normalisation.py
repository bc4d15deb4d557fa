"""Normalisation: which inputs an output depends on, and how long a normalised vector is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..errors import OptionError, ShapeError, complaint
from ..figures import Axis, Dots, Level, chart
from ..figures import Line as Curve
from .claim import Claim, Correction, Evidence, Line, measured

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
    Line(r"\frac{\partial}{\partial X_{kl}} \frac{X_{ij} - m_i}{s_i}", "layer normalisation", "", OVER_A_VECTOR),
    Line(
        r"\frac{\delta_{ik} (\delta_{jl} - \frac{1}{D})}{s_i}"
        r" - \frac{X_{ij} - m_i}{s_i^2} \cdot \frac{\delta_{ik} (X_{il} - m_i)}{D s_i}",
        "rule of quotients; mean and deviation are those of vector $i$",
    ),
    Line(
        r"\frac{\delta_{ik}}{s_i} (\delta_{jl} - \frac{1}{D} - \frac{(X_{ij} - m_i) (X_{il} - m_i)}{D s_i^2})",
        r"collected: 0 for another vector, $k \ne i$, and in general not for another component of the same one",
    ),
    Line(r"\frac{\partial}{\partial X_{kl}} \frac{X_{ij} - m_j}{s_j}", "batch, training", "", OVER_THE_BATCH),
    Line(
        r"\frac{\delta_{jl}}{s_j} (\delta_{ik} - \frac{1}{B} - \frac{(X_{ij} - m_j) (X_{kj} - m_j)}{B s_j^2})",
        r"the same with rows and columns changed over: 0 for another component, $l \ne j$, not for another vector",
    ),
    Line(r"\frac{X_{ij} - m_j}{s_j}", "batch normalisation in evaluation, with stored $m$ and $s$", "", STORED),
    Line(
        r"\frac{1}{s_j} X_{ij} - \frac{m_j}{s_j}", "a number times $X_{ij}$, and a number: nothing else of $X$ is in it"
    ),
    Line(r"\mathbf{1}^\top x", "the sum of the components of a vector", "", LAYER),
    Line(r"d \mu", r"definition of $\mu$"),
    Line(
        r"\mathbf{1}_d^\top (\mu \mathbf{1}_d)",
        r"$d$ ones: $x$ and $\mu \mathbf{1}_d$ have the same sum, so $x - \mu \mathbf{1}$ has none along $1_d$",
    ),
    Line(r"\frac{1}{d} \|x - \mu \mathbf{1}\|^2", r"the variance $\sigma^2$ over the components of one vector", ""),
    Line(
        r"\frac{1}{d} \|x\|^2 - \mu^2", "the mean of squares minus the square of the mean: 0 only for a constant vector"
    ),
    Line(r"\|y - \beta \mathbf{1}\|", r"how far the output is from $\beta \mathbf{1}_d$, without $\epsilon$", ""),
    Line(r"\|\gamma z\|", "definition of $y$"),
    Line(r"|\gamma| \|z\|", "a norm takes the absolute value of a factor"),
    Line(
        r"|\gamma| \frac{\|x - \mu \mathbf{1}\|}{\sigma}", r"definition of $z$; $\sigma > 0$, for $x$ is not constant"
    ),
    Line(r"|\gamma| \sqrt{d}", r"definition of $\sigma$: $\|x - \mu \mathbf{1}\| = \sigma \sqrt{d}$"),
    Line(r"\|y - \beta \mathbf{1}\|", r"the same with $\epsilon > 0$ under the root", "", WITH_EPSILON),
    Line(r"\frac{|\gamma|}{\sqrt{\sigma^2 + \epsilon}} \|x - \mu \mathbf{1}\|", "a norm takes the size of a factor"),
    Line(
        r"|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}",
        r"$\|x - \mu \mathbf{1}\| = \sigma \sqrt{d}$, and 0 for a constant vector",
    ),
)

CORRECTIONS = (
    Correction(
        "004, problem 3 (a)",
        "layer normalisation is 'elementwise'",
        "it is applied to each vector by itself: $y_{ij}$ depends on every component of the same vector, through its "
        "mean and variance, and on no other vector.",
    ),
    Correction(
        "004, problem 3 (a)",
        "batch normalisation depends on the other vectors of the batch",
        "in training only. In evaluation the stored statistics are constants, and $y_{ij}$ depends on $x_{ij}$ alone.",
    ),
    Correction(
        "004, problem 3 (b)",
        r"$\|y - \beta \mathbf{1}\| = \gamma \sqrt{d}$ for any $x$",
        r"$|\gamma| \sqrt{d}$, for a norm is never negative; $\gamma$ and $\beta$ are one number each (with a $\gamma$ "
        r"for each component the length depends on $x$ and lies between the smallest and the largest $|\gamma|$, times "
        r"$\sqrt{d}$); and $x$ must not be constant, or $\sigma = 0$.",
    ),
    Correction(
        "004, problem 3 (b)",
        r"takes $\epsilon = 0$",
        r"what runs has $\epsilon > 0$, and then it is $|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}$: "
        "shorter, and 0 for a constant vector.",
    ),
)


def normalisation(*, seed: int = 0, batch: int = 5, width: int = 7) -> Claim:
    """LayerNorm's y_ij depends on row i, BatchNorm's on column j while training; ‖y − β1‖ = |γ|√d·σ/√(σ²+ε).

    batch, width: at least three each, or a Jacobian may vanish that has no reason to.
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
    return replace(stated(), evidence=evidence)


def stated() -> Claim:
    """The claim before anything was tried on it."""
    return Claim(
        "normalisation",
        "What normalisation looks at, and the length that it leaves",
        "Layer normalisation's $y_{ij}$ depends on all of vector $i$ and on nothing else; batch normalisation's on "
        "component $j$ of all vectors while training, on $x_{ij}$ alone in evaluation. With one number each for "
        r"$\gamma$ and $\beta$, and $x$ not constant, $\|y - \beta \mathbf{1}\| = |\gamma| \sqrt{d}$; with "
        r"$\epsilon > 0$ it is $|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}$.",
        LAYER,
        DERIVATION,
        (),
        CORRECTIONS,
        ("004-3a", "004-3b"),
        figure,
    )


# Which norm, whether it trains, what y_ij depends on, and that as a rule for (i, j, i', j').
CASES: tuple[tuple[str, bool, str, Callable[[int, int, int, int], bool]], ...] = (
    ("layer", True, "vector $i$", lambda i, j, row, column: i == row),
    ("layer", False, "vector $i$", lambda i, j, row, column: i == row),
    ("batch", True, "component $j$ of every vector", lambda i, j, row, column: j == column),
    ("batch", False, "$x_{ij}$ alone", lambda i, j, row, column: (i, j) == (row, column)),
)


def made(kind: str, width: int, **options: Any) -> Any:
    """torch's own module, in float64."""
    import torch

    norms = {"layer": torch.nn.LayerNorm, "batch": torch.nn.BatchNorm1d}
    return norms[kind](width, **options).double()


def depends(
    kind: str,
    training: bool,
    said: str,
    rule: Callable[[int, int, int, int], bool],
    *,
    seed: int = 0,
    batch: int = 5,
    width: int = 7,
) -> Evidence:
    """Entries of the Jacobian ∂y_ij/∂x_i'j' of torch's module that are 0 where the rule says not, or the reverse."""
    import torch

    norm = made(kind, width)
    generator = torch.Generator().manual_seed(seed)
    # Statistics of its own for evaluation, from batches that are not the one looked at.
    for _ in range(3):
        norm(3 + 2 * torch.randn(batch, width, dtype=torch.float64, generator=generator))
    norm.train(training)
    x = torch.randn(batch, width, dtype=torch.float64, generator=generator)
    jacobian: Any = torch.autograd.functional.jacobian(norm, x)
    # What is written with a formula cancels to a few eps at most: slopes are of the order of 1/σ.
    noise = 16 * width * batch * torch.finfo(torch.float64).eps
    places = product(range(batch), range(width), range(batch), range(width))
    wrong = sum((abs(jacobian[place].item()) > noise) != rule(*place) for place in places)
    mode = "training" if training else "evaluation"
    what = (
        f"{type(norm).__name__} in {mode}: $y_{{ij}}$ depends on {said}; entries of its Jacobian at {batch} vectors of "
        f"{width} that differ"
    )
    return measured(what, wrong, 0)


def slopes(seed: int, width: int, kept: int = 1) -> Evidence:
    """∂z/∂x of torch's LayerNorm against (I − 11ᵀ/d − zzᵀ/d)/σ: what moves the mean or the spread is taken out."""
    import torch

    x = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    norm = made("layer", width, eps=0.0, elementwise_affine=False)
    z, sigma = norm(x), x.std(correction=0)
    said = (torch.eye(width, dtype=torch.float64) - 1 / width - kept * torch.outer(z, z) / width) / sigma
    jacobian: Any = torch.autograd.functional.jacobian(norm, x)
    # Sums over d of products of numbers of the order of √d, over σ.
    bound = 8 * width * math.sqrt(width) * torch.finfo(torch.float64).eps / sigma.item()
    what = r"LayerNorm's Jacobian against $(I_d - 1_d 1_d^\top / d - z z^\top / d) / \sigma$"
    return measured(what, (jacobian - said).abs().max().item(), bound)


def vanishing_jacobian(kind: str, count: int = 2) -> Evidence:
    """Why tests use three of everything: of two numbers, normalised without ε, only the order is left."""
    import torch

    # torch takes no ε = 0 for a batch that trains; one that is lost beside σ² in rounding is as good.
    options = {"eps": 1e-300} | ({"elementwise_affine": False} if kind == "layer" else {"affine": False})
    x = torch.tensor([[1.0, 5.0, 2.0, 9.0, 3.0][:count]], dtype=torch.float64)
    x = x if kind == "layer" else x.T
    norm = made(kind, x.shape[1], **options)
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
    seed: int, width: int, epsilon: float = 0.0, said: Callable[[float, int, float], float] | None = None
) -> Evidence:
    """torch's LayerNorm with γ of both signs: ‖y − β1‖ against |γ|√d·σ/√(σ² + ε), relative."""
    import torch

    said = said or length_left
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(11, width, dtype=torch.float64, generator=generator) * torch.logspace(-2, 2, 11)[:, None].double()
    norm, sigma = made("layer", width, eps=epsilon), x.std(dim=-1, correction=0)
    shrunk, off, bounds = sigma / (sigma**2 + epsilon).sqrt(), [], []
    for gamma, beta in ((1.5, 0.0), (-2.0, 3.0), (0.25, -1.0)):
        torch.nn.init.constant_(norm.weight, gamma)
        torch.nn.init.constant_(norm.bias, beta)
        wanted = torch.tensor([said(gamma, width, one) for one in shrunk.tolist()], dtype=torch.float64)
        off.append(((norm(x) - beta).norm(dim=-1) - wanted).abs() / wanted.abs())
        # Taking β away again leaves the rounding of γz + β on what is left of γz.
        bounds.append(8 * width * torch.finfo(torch.float64).eps * (1 + abs(beta / gamma) / shrunk))
    residuals, bound = torch.cat(off), torch.cat(bounds)
    worst = (residuals / bound).argmax()  # of NaN, where there is one
    formula = r"$|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}$"
    what = rf"LayerNorm, $\epsilon = {epsilon:g}$: $\|y - \beta \mathbf{{1}}\|$ against {formula}, relative"
    return measured(what, residuals[worst].item(), bound[worst].item())


def gamma_for_each(seed: int, width: int, wider: float = 0.0) -> Evidence:
    """A γ for each component: lengths outside min|γ|√d to max|γ|√d, and inputs that share their length with another."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(11, width, dtype=torch.float64, generator=generator)
    norm = made("layer", width, eps=0.0)
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
    without = made("layer", width, eps=epsilon)(x).isfinite().sum().item()
    with_one = made("layer", width, eps=1e-5)(x).abs().max().item()
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
        norm = made("layer", width, eps=epsilon)
        sigmas = [10 ** (p / 4) for p in range(-28, 9)]
        found = [(s, (norm(s * direction).norm() / math.sqrt(width)).item()) for s in sigmas[::3]]
        formula = [(s, s / math.sqrt(s * s + epsilon)) for s in sigmas]
        marks += [Dots(f"LayerNorm, ε = {epsilon:g}", found), Curve(f"σ/√(σ² + {epsilon:g})", formula, markers=False)]
    marks.append(Level("ε = 0", y=1.0))
    note = f"torch's LayerNorm at d = {width}. From σ ≈ √ε down, ε decides; torch's default is 10⁻⁵."
    axes = Axis("σ of the input", scale="log"), Axis("‖y − β1‖ / (|γ|√d)", low=0, high=1.1)
    return chart("The length that layer normalisation leaves", *axes, marks, note, height=480)


Grid = list[list[float]]


@dataclass(frozen=True)
class Normalised:
    """A vector of layer normalisation, or a component of batch normalisation over the batch, as it came out.

    sigma is the spread of what went in; the mean of what came out is β, and its distance from β1 `length`, which
    should be `said`: |γ|√d·σ/√(σ² + ε).
    """

    mean: float
    sigma: float
    length: float
    said: float


@dataclass(frozen=True)
class Drag:
    before: Grid
    after: Grid
    jacobian: list[list[Grid]]  # ∂y_ij/∂x_kl where the drag begins
    depends: list[list[list[list[bool]]]]  # whether that is more than rounding
    expected: list[list[list[list[bool]]]]  # whether y_ij is made from x_kl at all
    normalised: list[Normalised]  # none in evaluation, where the batch is not normalised by itself
    stored: tuple[list[float], list[float]] | None  # mean and variance that evaluation uses

    @property
    def difference(self) -> Grid:
        pairs = zip(self.before, self.after, strict=True)
        return [[new - old for old, new in zip(*rows, strict=True)] for rows in pairs]


def drag(
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
) -> Drag:
    """torch's LayerNorm or BatchNorm1d on vectors as rows, before and after x[row][column] grows `by`.

    Batch normalisation in evaluation uses what it stored from one pass over the batch as it was: its mean, and its
    variance with B − 1 in the divisor, as torch keeps it. One vector alone leaves its mean, which is itself; the
    variance that is stored stays that of a new layer, 1.

    >>> moved = drag([[1.0, 2.0, 4.0], [3.0, 5.0, 0.0]], 0, 1, 1.0)
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
        raise ShapeError(complaint("x", "one vector", "two or more: one alone has no spread over the batch"))
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
    # What is written with a formula cancels to a few eps of its terms, which are of the order of γ/√(σ² + ε).
    noise = 16 * start.numel() * torch.finfo(torch.float64).eps * abs(gamma) / (variance + epsilon).sqrt()
    depends = jacobian.abs() > noise.expand(batch, width)[:, :, None, None]
    return Drag(
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
    norm = made(kind, width, eps=epsilon, **options).requires_grad_(False)
    torch.nn.init.constant_(norm.weight, gamma)
    torch.nn.init.constant_(norm.bias, beta)
    if kind == "batch" and len(x) == 1:
        norm.running_mean.copy_(x[0])
    else:
        norm(x)  # what evaluation finds stored
    return norm.train(training)


def _normalised(x: Any, y: Any, over: int, epsilon: float, gamma: float, beta: float) -> list[Normalised]:
    means, sigmas = y.mean(dim=over).tolist(), x.std(dim=over, correction=0).tolist()
    lengths = (y - beta).norm(dim=over).tolist()
    said = [length_left(gamma, x.shape[over], sigma / math.sqrt(sigma**2 + epsilon)) for sigma in sigmas]
    return [Normalised(*each) for each in zip(means, sigmas, lengths, said, strict=True)]
