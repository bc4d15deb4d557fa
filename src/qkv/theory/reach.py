"""The receptive field where every head attends to one token: at most (k+1)ⁿ positions after n layers, and when fewer;
the paths of values to one output."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import quantiles
from typing import Any

from ..derivation import Derivation, Step
from ..figures import Axis, Level, chart
from ..figures import Line as Curve
from .claim import Claim, Correction, Evidence, measured

# patterns[layer][head][i]: the position that the head attends to from position i; the layer at the input is first.
Patterns = Sequence[Sequence[Sequence[int]]]

SYMBOLS = {
    **dict.fromkeys(("k", "n", "N", "r", "h", "l", "i"), "natural"),
    **dict.fromkeys(("S", "T"), "matrix[N,N]"),
}

DERIVATION = (
    Step(
        r"r + k r", "$r$ positions of a layer reach themselves by the residual, and one more by each of $k$ heads", ""
    ),
    Step(r"(k + 1) r", "collected: at most $k + 1$ times as many in the layer below, fewer where heads meet"),
    Step(r"(k + 1)^{n-1} + k (k + 1)^{n-1}", "from $n - 1$ layers to $n$, where no two ever meet", ""),
    Step(r"(k + 1) (k + 1)^{n-1}", "collected"),
    Step(r"(k + 1)^n", "so that $n$ layers reach $(k + 1)^n$ positions: $2^n$ with one head, $3^n$ with two"),
    Step(
        r"((k + 1)^n - 1) + k (k + 1)^n",
        "the farthest, where head $h$ of layer $l$ attends $h (k + 1)^{l - 1}$ back",
        "",
    ),
    Step(
        r"(k + 1)^{n+1} - 1",
        "$n + 1$ digits to the base $k + 1$, all of them $k$: every distance up to it is met once",
    ),
    Step(r"(I + \mathrm{softmax}(S)) (I + \mathrm{softmax}(T)) \mathbf{1}", "value paths of two layers, by weight", ""),
    Step(r"(I + \mathrm{softmax}(S)) (\mathbf{1} + \mathbf{1})", "the weights of a row sum to 1"),
    Step(r"4 \mathbf{1}", r"once more: $2 \cdot 2$ paths from every position, each head's split among its keys"),
)

CORRECTIONS = (
    Correction(
        "heads (a)",
        "the receptive field has $(k + 1)^n$ positions",
        r"at most $\min(N, (k + 1)^n)$, and $\min(i, (k + 1)^n)$ for the $i$-th position under a causal mask. It is "
        "attained when no two paths meet, for instance when head $h$ of layer $l$ attends $h (k + 1)^{l - 1}$ "
        "positions back.",
    ),
    Correction(
        "heads (a)",
        "every head adds a branch",
        "only heads that attend to different positions do: $k$ heads that agree reach $2^n$, heads that attend 1 to "
        "$k$ back in every layer reach $k n + 1$, and one head with the same pattern in every layer reaches $n + 1$.",
    ),
    Correction(
        "heads (a)",
        "softmax can be approximated by argmax, so that other positions do not count",
        "this counts the paths of values only. With softmax every key has a weight and a derivative through the "
        "scores, so one layer reaches all $N$; with argmax that derivative is 0, and still a large enough change of "
        "any key changes which one wins.",
    ),
)


def reach(*, seed: int = 0) -> Claim:
    """With k heads that each attend to one position, layer n takes values from at most min(N, (k+1)ⁿ) positions.

    Args:
        seed: of the weights of the stacks whose derivatives are taken.

    Returns:
        The claim, with its derivation and the evidence for it.
    """
    evidence = (
        one_layer(),
        same_in_every_layer(),
        attained(),
        causal(),
        overlapping(),
        *(stack(patterns, seed, name) for name, patterns in stacks()),
        softmax_reaches_all(seed),
        any_key_can_win(seed),
    )
    return replace(without_evidence(), evidence=evidence)


def without_evidence() -> Claim:
    """The claim without its evidence, which takes time to compute."""
    return Claim(
        "reach",
        "The receptive field of argmax attention",
        "With $k$ heads that each attend to one position, and residuals, a position of layer $n$ takes values from "
        r"at most $\min(N, (k + 1)^n)$ positions. This is attained when no two paths meet; heads that overlap reach "
        "fewer.",
        Derivation(DERIVATION, SYMBOLS, shown=True),
        (),
        CORRECTIONS,
        ("heads (a)",),
        figure,
    )


def fields(patterns: Patterns, residual: bool = True) -> list[int]:
    """For each position the positions that it takes values from, as bits: the product of the layers' masks, with the
    diagonal where there is a residual.

    >>> [bin(bits) for bits in fields([[[0, 0, 1]]])]
    ['0b1', '0b11', '0b110']
    """
    seen = [1 << i for i in range(len(patterns[0][0]))]
    for layer in patterns:
        below, seen = seen, list(seen) if residual else [0] * len(seen)
        for head in layer:
            for i, j in enumerate(head):
                seen[i] |= below[j]
    return seen


def apart(length: int, heads: int, layers: int, wrapped: bool = True) -> Patterns:
    """Paths that never meet: head h of layer l attends h·(k+1)^(l−1) positions back.

    Args:
        wrapped: continue at the last position, instead of stopping at the first.
    """

    def back(i: int, by: int) -> int:
        return (i - by) % length if wrapped else max(0, i - by)

    steps = [[h * (heads + 1) ** layer for h in range(1, heads + 1)] for layer in range(layers)]
    return [[[back(i, by) for i in range(length)] for by in of_heads] for of_heads in steps]


def shifted(length: int, steps: Sequence[int], layers: int) -> Patterns:
    """The same in every layer: head h attends steps[h] positions back."""
    return [[[(i - by) % length for i in range(length)] for by in steps]] * layers


def agreeing(length: int, heads: int, layers: int) -> Patterns:
    """Heads that all attend to the same positions, those of `apart` with one head."""
    return [[layer[0]] * heads for layer in apart(length, 1, layers)]


def anywhere(length: int, heads: int, layers: int, seed: int) -> list[list[list[int]]]:
    """Every head attends to a random position, at every position and layer."""
    draw = random.Random(seed)
    return [[[draw.randrange(length) for _ in range(length)] for _ in range(heads)] for _ in range(layers)]


def one_layer(lengths: Sequence[int] = (2, 3, 4), most_heads: int = 2, factor: int = 1) -> Evidence:
    """All patterns of the heads of r positions: which numbers of positions they can reach."""
    wrong = 0
    for length, heads in product(lengths, range(1, most_heads + 1)):
        for r in range(1, length + 1):
            found = {len({*range(r), *looks}) for looks in product(range(length), repeat=heads * r)}
            wrong += found != set(range(r, min(length, (heads + factor) * r) + 1))
    what = (
        r"all patterns, $N \le 4$ and $k \le 2$: $r$ positions reach any number from $r$ to $\min(N, (k + 1) r)$, "
        "and no other"
    )
    return Evidence(what, "refuted" if wrong else "proved", float(wrong), 0.0)


def same_in_every_layer(length: int = 5, most: Callable[[int], int] = lambda layers: layers + 1) -> Evidence:
    """One head, the same in every layer, over all patterns: the most positions that it reaches."""
    wrong = 0
    for layers in range(1, length):
        found = max(
            max(map(int.bit_count, fields([[head]] * layers))) for head in product(range(length), repeat=length)
        )
        wrong += found != min(length, most(layers))
    what = (
        f"one head, the same in every layer, all {length**length} patterns: $n$ layers reach $n + 1$ positions at most"
    )
    return Evidence(what, "refuted" if wrong else "proved", float(wrong), 0.0)


def attained(make: Callable[[int, int, int], Patterns] = apart) -> Evidence:
    """Positions that do not reach min(N, (k+1)ⁿ), by products of masks, where paths never meet."""
    wrong = 0
    for length, heads, layers in product((5, 17, 83), (1, 2, 3, 4), (1, 2, 3, 4)):
        wanted = min(length, (heads + 1) ** layers)
        wrong += sum(bits.bit_count() != wanted for bits in fields(make(length, heads, layers)))
    what = r"masks kept apart, $k \le 4$ and $n \le 4$: positions that do not reach $\min(N, (k + 1)^n)$"
    return measured(what, wrong, 0)


def causal() -> Evidence:
    """The same without wrapping around: the i-th position has only i positions at or before it."""
    wrong = 0
    for heads, layers in product((1, 2, 3), (1, 2, 3)):
        found = fields(apart(31, heads, layers, wrapped=False))
        wrong += sum(bits.bit_count() != min(i, (heads + 1) ** layers) for i, bits in enumerate(found, 1))
    return measured(r"causal masks: positions $i$ that do not reach $\min(i, (k + 1)^n)$", wrong, 0)


def overlapping(length: int = 101) -> Evidence:
    """Heads that agree reach 2ⁿ, neighbours in every layer kn + 1, heads that attend to their own position 1."""
    wrong = 0
    for heads, layers in product((1, 2, 3), (1, 2, 3, 4)):
        cases = (
            (agreeing(length, heads, layers), 2**layers),
            (shifted(length, range(1, heads + 1), layers), heads * layers + 1),
            (shifted(length, [0] * heads, layers), 1),
        )
        wrong += sum(bits.bit_count() != wanted for patterns, wanted in cases for bits in fields(patterns))
    return measured("heads that overlap: positions that do not reach $2^n$, $k n + 1$ and 1", wrong, 0)


def stacks() -> list[tuple[str, Patterns]]:
    """The stacks that are run: paths apart with one and two heads, two heads that agree, and random heads."""
    return [
        ("one head, 3 layers, 11 positions", apart(11, 1, 3)),
        ("two heads, 2 layers, 11 positions", apart(11, 2, 2)),
        ("two heads that agree, 2 layers, 7 positions", agreeing(7, 2, 2)),
        ("two random heads, 3 layers, 13 positions", anywhere(13, 2, 3, seed=7)),
    ]


def stack(patterns: Patterns, seed: int, name: str, expected: Sequence[int] | None = None) -> Evidence:
    """Blocks of `qkv.nn` with argmax that attend as `patterns` say: which derivatives are not 0, against the masks."""
    wrong = 0
    masks = fields(patterns) if expected is None else expected
    for bits, sizes in zip(masks, slopes(patterns, seed, range(len(masks))), strict=True):
        wrong += sum(1 << j for j, size in enumerate(sizes) if size > 0) != bits
    return measured(f"autograd through blocks of `qkv.nn`, {name}: positions whose field is not the masks'", wrong, 0)


def slopes(patterns: Patterns, seed: int, outputs: Iterable[int]) -> Iterator[list[float]]:
    """For each output of such blocks, the size of its derivative with respect to each input."""
    import torch

    length = len(patterns[0][0])
    blocks = torch.nn.Sequential(*blocks_with(patterns, seed))
    generator = torch.Generator().manual_seed(seed)
    content = torch.randn(length, 5, dtype=torch.float64, generator=generator)
    x = torch.cat([MARK * torch.eye(length, dtype=torch.float64), content], 1)[None].requires_grad_()
    out = blocks(x)
    for i in outputs:
        towards = torch.randn(out.shape[-1], dtype=torch.float64, generator=generator)
        (found,) = torch.autograd.grad((out[0, i] * towards).sum(), x, retain_graph=True)
        yield found[0].abs().amax(-1).tolist()


MARK = 64.0  # size of the one-hot position: so large that the content does not change who attends where


def blocks_with(patterns: Patterns, seed: int) -> list[Any]:
    """Blocks that attend by the one-hot position in front of a token's features, and never change it."""
    import torch

    from ..nn import Block
    from ..similarity import Argmax

    generator = torch.Generator().manual_seed(seed)
    length, blocks = len(patterns[0][0]), []
    for layer in patterns:
        block = Block(length + 5, len(layer), head_width=length, hidden=17, similarity=Argmax()).double()
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 4)
            for norm in block.norms:
                norm.weight.fill_(1.0)  # pyright: ignore[reportCallIssue]
                norm.bias.zero_()  # pyright: ignore[reportCallIssue]
            attention = block.attention
            for projection in (attention.query, attention.key):
                projection.weight.zero_()
                projection.bias.zero_()
            for h, attended in enumerate(layer):
                for i, j in enumerate(attended):
                    attention.query.weight[h * length + j, i] = 1.0
                    attention.key.weight[h * length + i, i] = 1.0
            for out in (attention.out, block.feed_forward.out):
                out.weight[:length] = 0.0
                out.bias[:length] = 0.0
        blocks.append(block)
    return blocks


def softmax_reaches_all(seed: int, length: int = 7, similarity: Any = None) -> Evidence:
    """One block with softmax: pairs of positions without a derivative from one to the other."""
    import torch

    from ..nn import Block

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        block = Block(6, 2, similarity=similarity).double()
        x = torch.randn(1, length, 6, dtype=torch.float64, requires_grad=True)
        out, missing = block(x), 0
        for i in range(length):
            (slopes,) = torch.autograd.grad((out[0, i] * torch.randn(6)).sum(), x, retain_graph=True)
            missing += sum(not slope.abs().max().item() > 0 for slope in slopes[0])
    return measured("one block of `qkv.nn` with softmax: pairs of positions without a derivative", missing, 0)


def any_key_can_win(seed: int, length: int = 7, by: float = 100.0) -> Evidence:
    """Argmax: keys that have no effect on the answer however far they move towards the query."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, 5, dtype=torch.float64, generator=generator) for n in (1, length, length))
    before, stuck = qkv.attention(q, k, v, similarity=qkv.Argmax()), 0
    winner = (k @ q[0]).argmax().item()
    for j in range(length):
        changed = k.clone()
        changed[j] += by * (-q[0] if j == winner else q[0])
        stuck += torch.equal(qkv.attention(q, changed, v, similarity=qkv.Argmax()), before)
    return measured("argmax: keys that no change makes matter, though their derivative is 0", stuck, 0)


def figure(length: int = 500, heads: int = 2, layers: int = 7, draws: int = 15) -> str:
    """Positions reached over layers: the bound, paths apart, random heads, and the same heads in every layer."""
    drawn = [anywhere(length, heads, layers, seed) for seed in range(draws)]
    depths = range(1, layers + 1)

    def middle(patterns: Callable[[int], list[Patterns]], which: int) -> list[tuple[float, float]]:
        found = []
        for depth in depths:
            sizes = [bits.bit_count() for one in patterns(depth) for bits in fields(one)]
            found.append((depth, quantiles(sizes, n=10, method="inclusive")[which]))
        return found

    marks = [
        Curve("bound (k+1)ⁿ", [(n, (heads + 1) ** n) for n in depths], dashed=True, markers=False),
        Curve("paths apart", middle(lambda n: [apart(length, heads, n)], 4)),
        Curve("random heads, median", middle(lambda n: [one[:n] for one in drawn], 4)),
        Curve("the same, 1st decile", middle(lambda n: [one[:n] for one in drawn], 0), dashed=True, markers=False),
        Curve("random, the same in every layer, median", middle(lambda n: [one[:1] * n for one in drawn], 4)),
        Curve("1 to k back in every layer: kn + 1", middle(lambda n: [shifted(length, range(1, heads + 1), n)], 4)),
        Level(f"all {length} positions", y=length),
    ]
    note = f"{heads} heads, {length} positions, by products of masks; medians over positions and {draws} draws."
    axes = Axis("layers"), Axis("receptive field", "positions", "log")
    return chart("The receptive field of argmax attention", *axes, marks, note, height=480)


def paths(patterns: Patterns, output: int, residual: bool = True) -> list[list[int]]:
    """How many paths lead from the output to each position: the layer of the output first, the input last.

    Every layer continues each path by every head and by the residual, so that their number is the bound; two paths
    that end at one position have met there.

    >>> paths([[[0, 0, 1]], [[0, 0, 1]]], output=2)
    [[0, 0, 1], [0, 1, 1], [1, 2, 1]]
    """
    length = len(patterns[0][0])
    counts = [[int(i == output) for i in range(length)]]
    for layer in reversed(patterns):
        above = counts[-1]
        below = list(above) if residual else [0] * length
        for head in layer:
            for i, j in enumerate(head):
                below[j] += above[i]
        counts.append(below)
    return counts


def bound(heads: int, layers: int, residual: bool = True) -> int:
    """(k+1)ⁿ, and kⁿ without residuals: the most positions that n layers of k heads can reach.

    >>> bound(2, 3), bound(2, 3, residual=False)
    (27, 8)
    """
    return (heads + residual) ** layers


def spread(length: int, heads: int, layers: int, residual: bool = True, wrapped: bool = True) -> Patterns:
    """Heads that reach the bound: `apart`; without residuals the first head attends to its own position instead.

    >>> spread(5, 1, 1), spread(5, 2, 1, residual=False)
    ([[[4, 0, 1, 2, 3]]], [[[0, 1, 2, 3, 4], [4, 0, 1, 2, 3]]])
    """
    if residual:
        return apart(length, heads, layers, wrapped)
    return [[list(range(length)), *layer] for layer in apart(length, heads - 1, layers, wrapped)]
