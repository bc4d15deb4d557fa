"""The float32 error of the delta rule by chunks, against its recurrence in float64.

A chunk of C tokens solves (I + L) U = β(V - e^D K S) with L_ij = β_i e^(D_i - D_j) k_i·k_j below the diagonal, then
O = e^D Q S + (QKᵀ ∘ e^(D_i - D_j)) U. `substitution` solves for U from the state of the chunk's beginning; `WY` solves
for both parts first (what torch's chunks do); `inverse` multiplies by an explicit inverse. Factors of gates are
products of e^g, never quotients. Errors are over the largest number of the head's output; `recurrence` is float32's.

`python -m benchmarks.state_error` (about a minute).
"""

from __future__ import annotations

import torch
from torch import Tensor

LENGTH, HEADS = 1024, 8
GATES = {"1": 0.0, "0.999": 1e-3, "0.9": 0.1, "0.01": 4.6, "0": float("inf")}
KEYS = ("random", "repeated", "alternating")


def draw(width: int, gate: float, beta: float, keys: str) -> list[Tensor]:
    """query, key, value, log_gate, beta in float32; keys have length 1 as in the models."""
    source = torch.Generator().manual_seed(width)
    query, key, value = (torch.randn(HEADS, LENGTH, width, generator=source) for _ in range(3))
    if keys != "random":  # near one direction; every second one may point the other way
        sign = 1 - 2 * (torch.arange(LENGTH) % 2)[:, None] if keys == "alternating" else 1
        key = sign * (key[:, :1] + 0.05 * key)
    key, query = (torch.nn.functional.normalize(x, dim=-1) for x in (key, query))
    spread = torch.rand(HEADS, LENGTH, generator=source)
    log_gate = -gate * (0.5 + spread) if gate else torch.zeros_like(spread)
    if gate == float("inf"):  # every eighth gate is closed
        log_gate = torch.where(spread < 0.125, -float("inf"), -0.01)
    return [query, key, value, log_gate, (beta * (1 - 1e-3 * spread))]


def recurrence(query: Tensor, key: Tensor, value: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
    state, out = query.new_zeros(len(query), query.shape[-1], value.shape[-1]), torch.empty_like(value)
    for i in range(query.shape[1]):
        state = state * log_gate[:, i, None, None].exp()
        change = beta[:, i, None] * (value[:, i] - torch.einsum("hwv,hw->hv", state, key[:, i]))
        state = state + key[:, i, :, None] * change[:, None]
        out[:, i] = torch.einsum("hwv,hw->hv", state, query[:, i])
    return out


def chunks(given: list[Tensor], size: int, form: str) -> Tensor:
    query, key, value, log_gate, beta = given
    state, out = query.new_zeros(len(query), query.shape[-1], value.shape[-1]), torch.empty_like(value)
    for first in range(0, query.shape[1], size):
        q, k, v, g, b = (x[:, first : first + size] for x in (query, key, value, log_gate, beta))
        a, b = g.exp(), b[..., None]
        rows = [torch.ones_like(a[:, :0])]
        for i in range(size):  # the product of the gates after j, up to i
            last = rows[-1] * a[:, i, None]
            rows.append(torch.cat([last, torch.ones_like(a[:, :1])], dim=1))
        weights = torch.stack([torch.nn.functional.pad(row, (0, size - row.shape[1])) for row in rows[1:]], dim=1)
        before = (a[:, :1] * weights[:, :, 0])[..., None]
        lower = (b * (k @ k.mT) * weights).tril(-1)

        def solve(right: Tensor, lower: Tensor = lower) -> Tensor:
            eye = torch.eye(lower.shape[-1], dtype=lower.dtype)
            if form == "inverse":
                inverse = torch.linalg.solve_triangular(lower + eye, eye.expand_as(lower), upper=False)
                return inverse @ right
            return torch.linalg.solve_triangular(lower + eye, right, upper=False)

        joint = b * (v - (before * k) @ state)
        change = solve(b * v) - solve(b * before * k) @ state if form == "WY" else solve(joint)
        out[:, first : first + size] = (before * q) @ state + ((q @ k.mT) * weights).tril() @ change
        state = before[:, -1:] * state + (weights[:, -1, :, None] * k).mT @ change
    return out


def run() -> None:
    torch.set_num_threads(1)
    for width in (64, 128):
        print(f"\nwidth {width}: the largest error of {LENGTH} tokens, over keys {', '.join(KEYS)}")
        forms = [(form, size) for form in ("substitution", "WY", "inverse") for size in (16, 32, 64)]
        print("  ".join(["gate   beta", "recurrence", *(f"{form} {size}" for form, size in forms)]))
        for name, gate in GATES.items():
            for beta in (1.0, 2.0):
                worst = [0.0] * (len(forms) + 1)
                for keys in KEYS:
                    given = draw(width, gate, beta, keys)
                    exact = recurrence(*(x.double() for x in given))
                    found = [recurrence(*given), *(chunks(given, size, form) for form, size in forms)]
                    most = exact.abs().amax((1, 2), keepdim=True)
                    errors = [float(((out - exact).abs() / most).max()) for out in found]
                    worst = [max(pair) for pair in zip(worst, errors, strict=True)]
                cells = [f"{e:.1e}".rjust(len(f"{f} {s}")) for e, (f, s) in zip(worst[1:], forms, strict=True)]
                print("  ".join([f"{name:<5}  {beta:>4}", f"{worst[0]:.1e}".rjust(10), *cells]))


if __name__ == "__main__":
    run()
