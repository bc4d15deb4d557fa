"""Formulas that plans show: the counts with symbols for sizes, stored in formulas.toml.

Plans read the file and so never load SymPy; docs/formulas.py writes it, and a test compares.
"""

from __future__ import annotations

from typing import NamedTuple

from .architecture import Model
from .lookup import read_data

FORMULAS_FILE = "formulas.toml"
LETTERS: dict[str, str] = read_data("letters.toml")  # their meaning


class Formula(NamedTuple):
    """Formulas of one part of a model; biases are left out.

    Attributes:
        flops: of products, if there are any.
        bytes: of weights and caches.
        all_flops, all_bytes: with elementwise operations and activations too.
    """

    flops: str
    bytes: str
    all_flops: str
    all_bytes: str


def formula(model: Model, part: str) -> Formula:
    """The formulas of a part of a model, for a decode step or an encoder's pass; empty for combinations that no
    published model has.

    >>> from qkv.cost import models
    >>> formula(models()["llama-3-8b"], "cache").bytes
    '2·b·c·g·L·n·w'
    """
    entry = read_data(FORMULAS_FILE).get(part, {}).get(style(model, part), {})
    return Formula(*(entry.get(field, "") for field in Formula._fields))


def style(model: Model, part: str) -> str:
    """A name for the formula of a part: models of the same style share it."""
    words = [model.kind]
    if part in ("projections", "scores", "cache"):
        if model.latent is not None:
            words.append("latent" if model.latent.q_rank is not None or part != "projections" else "direct latent")
        else:
            words.append("heads" if model.window is None or part == "projections" else "windowed")
            words += ["values"] if model.value_width != model.head_width else []
    elif part == "feed-forward":
        words.append("gated" if model.gated else "plain")
        if model.experts:
            words.append("shared" if model.shared_experts else "experts")
            words += ["dense"] if model.dense_layers else []
    elif part == "norms":
        words += [model.norm] if model.final_norm else [model.norm, "open"]
    elif part == "embedding":
        words.append(f"{(model.positions != 0) + (model.segments != 0)} tables")
        words += [model.norm] if model.embedding_norm else []
    return " ".join(words)


class WireFormula(NamedTuple):
    """Bytes and messages that the busiest rank sends in a forward pass."""

    sent: str
    messages: str


def wire_formula(split: str, kind: str) -> WireFormula:
    """Formulas of a split of `qkv.cost.wire`. kind: "full", "causal" or "window". R is even, G is max(g, R), a is bytes
    per number, sums take 4 bytes, and with "scan" a head has as many features as its width.

    >>> wire_formula("gather", "full").sent
    'a·b·g·n·(R - 1)·(v + w)/R'
    """
    return WireFormula(**read_data(FORMULAS_FILE)["wire"][f"{split} {kind}"])
