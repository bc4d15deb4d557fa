"""Linear attention in float64, written out in two ways.

Over all pairs:     V'_i = Σ_j φ(q_i)·ψ(k_j) v_j / Σ_j φ(q_i)·ψ(k_j), over the keys j that query i attends to
As a recurrence:    S_t = S_{t−1} + ψ(k_t) v_tᵀ,  z_t = z_{t−1} + ψ(k_t),  V'_i = φ(q_i)ᵀS / φ(q_i)·z

φ = ψ for a feature map. For (q·k + c)ⁿ, φ(q) is the n-fold outer product of (q, 1), ψ(k) that of (k, c).
Written from the specification alone. Where a denominator is exactly zero the row is zero.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qkv
from qkv import features
from tests.helpers.decode_reference import numbers

# (heads_q, heads_kv)
HEADS = {"mha": (3, 3), "gqa": (6, 3), "mqa": (5, 1)}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WIDTH, VALUE_WIDTH = 7, 5

Map = Callable[[Tensor], Tensor]
# The right result, and the unit in which errors are measured: Σ_j size_j (|v_j| + |V'_i|) / |Σ_j sim_j|.
Answer = tuple[Tensor, Tensor]


def two_sided(x: Tensor) -> Tensor:
    """A feature map that is not one of qkv's."""
    return torch.cat([F.softplus(x), F.softplus(-x)], dim=-1)


def learned(width: int = WIDTH, count: int = 11, seed: int = 5) -> nn.Module:
    module = nn.Sequential(nn.Linear(width, count), nn.Softplus())
    with torch.no_grad():
        for at, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(tuple(parameter.shape), seed=seed + at) / 2)
    return module


def similarities(width: int = WIDTH) -> dict[str, Any]:
    return {
        "elu1": qkv.FeatureMap(features.elu1),
        "elu1 undivided": qkv.FeatureMap(features.elu1, normalize=False),
        "relu": qkv.FeatureMap(features.relu),
        "identity": qkv.FeatureMap(features.identity),
        "squared": qkv.FeatureMap(features.squared),
        "monomials": qkv.FeatureMap(features.polynomial(2, 0.5)),
        "random": qkv.FeatureMap(features.positive_random(width, 29, seed=3)),
        "two-sided": qkv.FeatureMap(two_sided),
        "polynomial 2": qkv.Polynomial(2, 1.0),
        "polynomial 3": qkv.Polynomial(3, 2.0),
        "negative offset": qkv.Polynomial(2, -1.5),
    }


def draw(
    len_q: int,
    len_k: int | None = None,
    *,
    batch: int = 2,
    heads: tuple[int, int] = (6, 3),
    widths: tuple[int, int] = (WIDTH, VALUE_WIDTH),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    coarse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value; `coarse` numbers are exact in every dtype."""
    len_k = len_q if len_k is None else len_k
    shapes = (
        (batch, heads[0], len_q, widths[0]),
        (batch, heads[1], len_k, widths[0]),
        (batch, heads[1], len_k, widths[1]),
    )
    made = [numbers(shape, seed=3 * seed + at) for at, shape in enumerate(shapes)]
    if coarse:
        made = [tensor.mul(16).round().clamp(-64, 64).div(16) for tensor in made]
    query, key, value = (tensor.to(dtype) for tensor in made)
    return query, key, value


def in_double(phi: Map) -> Map:
    if not isinstance(phi, nn.Module) or all(p.dtype is torch.float64 for p in phi.parameters()):
        return phi
    return copy.deepcopy(phi).double()


def all_pairs(similarity: Any, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """sim(q_i, k_j) for (len_q, width) and (len_k, width), and its size with every term made positive."""
    if isinstance(similarity, qkv.Polynomial):
        dots, sizes = query @ key.T, query.abs() @ key.abs().T
        return (dots + similarity.offset) ** similarity.degree, (sizes + abs(similarity.offset)) ** similarity.degree
    phi = in_double(similarity.map)
    return phi(query) @ phi(key).T, (phi(query).abs() @ phi(key).abs().T).detach()


def quadratic(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: Any,
    *,
    offset: int | None = None,
    keep: Tensor | None = None,
) -> Answer:
    """All pairs, head by head. offset: query i attends to keys j ≤ i + offset. keep: (batch, len_k)."""
    q, k, v = query.double(), key.double(), value.double()
    (batch, heads, len_q, _), len_k, group = q.shape, k.shape[2], q.shape[1] // k.shape[1]
    keep = torch.ones(batch, len_k, dtype=torch.bool) if keep is None else keep
    i, j = torch.arange(len_q)[:, None], torch.arange(len_k)
    answers = []
    for b in range(batch):
        seen = keep[b] & (j <= i + (len_k if offset is None else offset))
        for h in range(heads):
            sims, sizes = all_pairs(similarity, q[b, h], k[b, h // group])
            answers.append(weighted(similarity, sims, sizes, v[b, h // group], seen))
    shape = batch, heads, len_q, v.shape[-1]
    if not answers:
        return torch.zeros(shape).double(), torch.zeros(shape).double()
    out, reach = (torch.stack(parts).view(shape) for parts in zip(*answers, strict=True))
    return out, reach


def weighted(similarity: Any, sims: Tensor, sizes: Tensor, values: Tensor, seen: Tensor) -> Answer:
    """The rows of one head. Masked keys are left out of the sums, not multiplied by zero: they may be NaN."""
    above = torch.where(seen[:, :, None], sims[:, :, None] * values, 0.0).sum(1)
    total = torch.where(seen, sims, 0.0).sum(1, keepdim=True)
    with torch.no_grad():
        spread = torch.where(seen[:, :, None], sizes[:, :, None] * values.abs(), 0.0).sum(1)
        size = torch.where(seen, sizes, 0.0).sum(1, keepdim=True)
    if not getattr(similarity, "normalize", True):
        return above, spread
    nothing = total == 0
    row = torch.where(nothing, 0.0, above / torch.where(nothing, 1.0, total))
    with torch.no_grad():
        reach = torch.where(nothing, 0.0, (spread + size * row.abs()) / torch.where(nothing, 1.0, total.abs()))
    return row, reach


def outer_power(x: Tensor, last: float, degree: int) -> Tensor:
    """The degree-fold outer product of (x, last), flat."""
    extended, product = torch.cat([x, x.new_tensor([last])]), x.new_ones(1)
    for _ in range(degree):
        product = (product[:, None] * extended[None, :]).flatten()
    return product


def two_maps(similarity: Any) -> tuple[Map, Map]:
    if isinstance(similarity, qkv.Polynomial):
        degree, offset = similarity.degree, similarity.offset
        return lambda q: outer_power(q, 1.0, degree), lambda k: outer_power(k, offset, degree)
    phi = in_double(similarity.map)
    return phi, phi


def recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: Any,
    *,
    offset: int | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    """Key by key into a state of constant size, query by query out of it."""
    q, k, v = query.double(), key.double(), value.double()
    (batch, heads, len_q, width), len_k, group = q.shape, k.shape[2], q.shape[1] // k.shape[1]
    phi, psi = two_maps(similarity)
    count = len(psi(torch.zeros(width).double()))
    out = torch.zeros(batch, heads, len_q, v.shape[-1]).double()
    for b in range(batch):
        for h in range(heads):
            state, total, t = torch.zeros(count, v.shape[-1]).double(), torch.zeros(count).double(), 0
            for i in range(len_q):
                while t < len_k and (offset is None or t <= i + offset):
                    if keep is None or bool(keep[b, t]):
                        mapped = psi(k[b, h // group, t])
                        state, total = state + mapped[:, None] * v[b, h // group, t], total + mapped
                    t += 1
                row = phi(q[b, h, i])
                below = row @ total
                if not getattr(similarity, "normalize", True):
                    out[b, h, i] = row @ state
                elif bool(below != 0):
                    out[b, h, i] = row @ state / below
    return out


# Errors allowed, as a part of Σ_j size_j (|v_j| + |V'_i|) / |Σ_j sim_j|.
ALLOWED = {
    torch.float64: 1e-13,
    torch.float32: 5e-6,
    torch.float16: 4 * torch.finfo(torch.float16).eps,
    torch.bfloat16: 4 * torch.finfo(torch.bfloat16).eps,
}


def close(found: Tensor, wanted: Answer, allowed: float | None = None, what: str = "") -> None:
    """NaN and infinities at the same places, exact zeros, and the rest within the allowed error."""
    out, reach = wanted
    assert found.shape == out.shape, f"shape {tuple(found.shape)}, not {tuple(out.shape)}"
    odd = ~out.isfinite()
    assert torch.equal(found.isnan(), out.isnan()), f"{what}: NaN in other places"
    assert torch.equal(found[odd].double().nan_to_num(0.0), out[odd].nan_to_num(0.0)), f"{what}: other infinities"
    part = ALLOWED[found.dtype] if allowed is None else allowed
    errors = torch.where(odd, 0.0, (found.double() - out).abs())
    bound = torch.where(odd, 0.0, part * reach.nan_to_num(0.0, 0.0, 0.0))
    worst = torch.where(errors > 0, errors / bound.clamp_min(1e-300), 0.0)
    if worst.numel():
        at = tuple(int(i) for i in torch.unravel_index(worst.argmax(), worst.shape))
        assert bool((errors <= bound).all()), (
            f"{what}: off by {errors[at]:.3g} at (batch, head, query, channel) {at}, {worst[at]:.3g} times what is "
            f"allowed; {int((errors > bound).sum())} of {errors.numel()} numbers; got {found[at]}, wanted {out[at]}"
        )


Rows = list[tuple[Tensor, Tensor]]


def no_rows(batch: int, heads: int = 3, widths: tuple[int, int] = (WIDTH, VALUE_WIDTH)) -> Rows:
    """A cache as a plain list: the keys (heads, length, width) and the values of each row."""
    return [
        (torch.zeros(heads, 0, widths[0]).double(), torch.zeros(heads, 0, widths[1]).double()) for _ in range(batch)
    ]


def real_part(n: int, count: int, padding: str) -> slice:
    return slice(n - count, n) if padding == "left" else slice(0, count)


def append_rows(
    rows: Rows, key: Tensor, value: Tensor, lengths: list[int] | None = None, padding: str = "right"
) -> None:
    n = key.shape[2]
    for b, (keys, values) in enumerate(rows):
        real = real_part(n, n if lengths is None else lengths[b], padding)
        rows[b] = torch.cat([keys, key[b, :, real].double()], 1), torch.cat([values, value[b, :, real].double()], 1)


def decode_rows(
    rows: Rows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: Any,
    lengths: list[int] | None = None,
    padding: str = "right",
) -> Answer:
    """Append to the plain list, then attend: padding gets zero."""
    n = query.shape[2]
    pasts = [keys.shape[1] for keys, _ in rows]
    append_rows(rows, key, value, lengths, padding)
    out, reach = (torch.zeros(*query.shape[:3], value.shape[-1]).double() for _ in range(2))
    for b, (keys, values) in enumerate(rows):
        real = real_part(n, n if lengths is None else lengths[b], padding)
        answer = quadratic(query[b : b + 1, :, real], keys[None], values[None], similarity, offset=pasts[b])
        out[b, :, real], reach[b, :, real] = answer[0][0], answer[1][0]
    return out, reach


def lengths_of(rows: Rows) -> list[int]:
    return [keys.shape[1] for keys, _ in rows]


def recalls(state: Any, seed: int = 91, dtype: torch.dtype = torch.float32) -> Tensor:
    """The result of a fork for a fixed token: it changes when the past changes."""
    widths = state.width, state.value_width
    step = draw(1, batch=state.batch, heads=(state.heads, state.heads), widths=widths, seed=seed, dtype=dtype)
    return qkv.decode(*step, state.fork())
