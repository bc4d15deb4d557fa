"""What of a model is run, and how often it is there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...cost.architecture import Model
from .modules import Embedding, Experts, Inward, LatentInward, Layer, Network, Outward, Scores, Shape, norm


class Piece(NamedTuple):
    """A module and its inputs; the part that it belongs to, how often the model has it, and how often one layer has."""

    part: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    times: int
    in_layer: int


def pieces(model: Model, shape: Shape) -> list[Piece]:
    """Every part of a model, for `new` tokens after `past` ones; logits are made for the last."""
    layers, encoder, network = model.layers, shape._replace(past=0), Network(model, model.d_ff, model.ff_bias)
    x, cross = shape.tokens(model.d_model), model.kind == "encoder-decoder"
    runs_encoder = cross and shape.past == 0
    sparse = layers - model.dense_layers if model.experts else 0
    found = [Piece("norms", norm(model), (x,), _norms(model, runs_encoder), model.norms_per_layer + cross)]
    windowed, everywhere = model.window_layers, layers - model.window_layers
    if everywhere:
        found += _attention(model, shape, everywhere, in_layer=1)
    if windowed:
        found += _attention(model, shape, windowed, in_layer=int(not everywhere), window=model.window)
    if cross:
        found += _attention(model, shape, layers, in_layer=1, source=shape.past + shape.new)
    if runs_encoder:
        found += _attention(model, encoder, model.encoder_layers, in_layer=0, causal=False)
    if sparse:
        found.append(Piece("feed-forward", Experts(model), (x,), sparse, 1))
    if layers - sparse or runs_encoder:
        count = layers - sparse + (model.encoder_layers if runs_encoder else 0)
        found.append(Piece("feed-forward", network, (x,), count, int(not sparse)))
    if model.vocabulary:
        numbers = torch.empty(shape.batch, shape.new, dtype=torch.long)
        tables = 1 + (model.positions > 0) + (model.segments > 0)
        found.append(Piece("embedding", Embedding(model), (numbers,) * tables, 1 + runs_encoder, 0))
        if model.kind != "encoder":
            logits = nn.Linear(model.d_model, model.vocabulary, bias=model.head_bias)
            found.append(Piece("logits", logits, (torch.empty(shape.batch, 1, model.d_model),), 1, 0))
    return found


def whole_layer(model: Model, shape: Shape) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """One layer in one module: what its pieces come to, taken together."""
    x, window = shape.tokens(model.d_model), model.window if model.window_layers == model.layers else None
    own_shape, causal = _windowed(shape, window), model.kind != "encoder"
    own = [_inward(model, own_shape), _scores(model, own_shape, causal), Outward(model, shape)]
    cross: list[nn.Module] = []
    inputs: tuple[Tensor, ...] = (x,)
    keep = _keep(shape, window)
    if keep is not None:
        inputs = (x, keep)
    if model.kind == "encoder-decoder":
        cross = [Inward(model, shape, reads_source=True), _scores(model, shape, False), Outward(model, shape)]
    network = Experts(model) if model.experts else Network(model, model.d_ff, model.ff_bias)
    return Layer(model, own, cross, network), inputs


def _attention(
    model: Model,
    shape: Shape,
    count: int,
    *,
    in_layer: int,
    causal: bool | None = None,
    window: int | None = None,
    source: int | None = None,
) -> list[Piece]:
    causal = model.kind != "encoder" if causal is None else causal
    shape = _windowed(shape, window)
    x, keep = shape.tokens(model.d_model), _keep(shape, window) if source is None else None
    inward = _inward(model, shape) if source is None else Inward(model, shape, reads_source=True)
    keys = shape.past + shape.new if source is None else source
    query, key, value = _shapes(model, shape, keys)
    scored = (query, key, value) if keep is None else (query, key, value, keep)
    answers = torch.empty(*query.shape[:3], value.shape[3])
    return [
        Piece("projections", inward, (x,), count, in_layer),
        Piece("scores", _scores(model, shape, causal and source is None), scored, count, in_layer),
        Piece("projections", Outward(model, shape), (answers,), count, in_layer),
    ]


def _inward(model: Model, shape: Shape) -> nn.Module:
    return Inward(model, shape) if model.latent is None else LatentInward(model, shape)


def _scores(model: Model, shape: Shape, causal: bool) -> Scores:
    """A token that comes alone sees everything before it: there is nothing to mask."""
    return Scores(causal and shape.new > 1, shape.absorbed or (model.latent is None and model.kv_heads != model.heads))


def _shapes(model: Model, shape: Shape, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    heads, kv_heads, width, value_width = model.heads, model.kv_heads, model.head_width, model.value_width
    if model.latent is not None:
        kv_heads = heads
        if shape.absorbed:
            kv_heads, width, value_width = 1, model.latent.kv_rank + model.latent.rope_width, model.latent.kv_rank
    return (
        torch.empty(shape.batch, heads, shape.new, width),
        torch.empty(shape.batch, kv_heads, keys, width),
        torch.empty(shape.batch, kv_heads, keys, value_width),
    )


def _windowed(shape: Shape, window: int | None) -> Shape:
    """A windowed layer keeps no more of the past than its window."""
    return shape if window is None else shape._replace(past=min(shape.past, window - 1))


def _keep(shape: Shape, window: int | None) -> Tensor | None:
    """Where a window hides keys of a prompt, the mask that a program would give."""
    if window is None or shape.new == 1 or window >= shape.new:
        return None
    return torch.empty(shape.new, shape.past + shape.new, dtype=torch.bool)


def _norms(model: Model, runs_encoder: bool) -> int:
    cross = model.layers if model.kind == "encoder-decoder" else 0
    count = model.layers * model.norms_per_layer + cross + model.final_norm
    return count + (model.encoder_layers * model.norms_per_layer + model.final_norm if runs_encoder else 0)
