"""A model's parts as torch modules, for tools that count what a module does. They are shapes: nothing is ever computed,
and weights and inputs are made where they take no cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cost.architecture import Model


class Shape(NamedTuple):
    """`new` tokens of each of `batch` sequences after `past` ones. absorbed: latent attention in the latent space."""

    batch: int
    new: int
    past: int
    absorbed: bool = False

    def tokens(self, width: int) -> Tensor:
        return torch.empty(self.batch, self.new, width)


class Scores(nn.Module):
    def __init__(self, causal: bool, grouped: bool) -> None:
        super().__init__()
        self.causal, self.grouped = causal, grouped
        self.unused = _unused()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        causal = self.causal and keep is None
        return F.scaled_dot_product_attention(query, key, value, keep, is_causal=causal, enable_gqa=self.grouped)


class Rotation(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, new: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("cos", torch.empty(new, width))
        self.register_buffer("sin", torch.empty(new, width))

    def forward(self, x: Tensor) -> Tensor:
        if not self.width:
            return x
        turned, plain = x[..., : self.width], x[..., self.width :]
        front, back = turned.chunk(2, -1)
        turned = turned * self.cos + torch.cat([-back, front], -1) * self.sin
        return torch.cat([turned, plain], -1)


class Inward(nn.Module):
    """Queries, keys and values of the new tokens, those of the past before them. source: other tokens for keys."""

    past_key: Tensor
    past_value: Tensor

    def __init__(self, model: Model, shape: Shape, *, reads_source: bool = False) -> None:
        super().__init__()
        self.model, self.reads_source = model, reads_source
        h, g, w, v, d = model.heads, model.kv_heads, model.head_width, model.value_width, model.d_model
        self.query = nn.Linear(d, h * w, bias=model.qkv_bias)
        self.makes_keys = not (reads_source and shape.past)
        if self.makes_keys:
            self.key = nn.Linear(d, g * w, bias=model.qkv_bias)
            self.value = nn.Linear(d, g * v, bias=model.qkv_bias)
        self.norm = None
        if model.qk_norm is not None:
            self.norm = nn.RMSNorm(w if model.qk_norm == "head" else h * w)
            self.key_norm = nn.RMSNorm(w if model.qk_norm == "head" else g * w)
        self.rotation = Rotation(0 if reads_source else model.rotary, shape.new)
        held = shape.past + shape.new if reads_source else shape.past  # a source as long as the answer
        self.register_buffer("past_key", torch.empty(shape.batch, g, held, w))
        self.register_buffer("past_value", torch.empty(shape.batch, g, held, v))

    def forward(self, x: Tensor, source: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        m, wide = self.model, self.model.qk_norm == "wide"
        query = self.query(x)
        query = self.norm(query) if self.norm is not None and wide else query
        query = _heads(query, m.heads)
        query = self.norm(query) if self.norm is not None and not wide else query
        query = self.rotation(query)
        if not self.makes_keys:
            return query, self.past_key, self.past_value
        given = x if source is None else source
        key = self.key(given)
        key = self.key_norm(key) if self.norm is not None and wide else key
        key = _heads(key, m.kv_heads)
        key = self.key_norm(key) if self.norm is not None and not wide else key
        key, value = self.rotation(key), _heads(self.value(given), m.kv_heads)
        if self.reads_source:
            return query, key, value
        return query, torch.cat([self.past_key, key], 2), torch.cat([self.past_value, value], 2)


class LatentInward(nn.Module):
    """Multi-head latent attention: the latent vectors are made into keys and values, or (absorbed) queries are taken
    into their space."""

    past_latent: Tensor
    past_rope: Tensor

    def __init__(self, model: Model, shape: Shape) -> None:
        super().__init__()
        assert model.latent is not None
        self.model, self.absorbed, latent = model, shape.absorbed, model.latent
        h, w, d, rank, rope = model.heads, model.head_width, model.d_model, latent.kv_rank, latent.rope_width
        self.rope, self.plain, self.rank = rope, w - rope, rank
        narrow = d
        if latent.q_rank is not None:
            self.query_down, narrow = nn.Linear(d, latent.q_rank, bias=model.qkv_bias), latent.q_rank
            self.query_norm = nn.RMSNorm(narrow)
        self.query = nn.Linear(narrow, h * w, bias=False)
        self.down = nn.Linear(d, rank + rope, bias=model.qkv_bias)
        self.norm = nn.RMSNorm(rank)
        self.rotation = Rotation(rope, shape.new)
        if shape.absorbed:
            self.into = nn.Parameter(torch.empty(h, self.plain, rank))
        else:
            self.up = nn.Linear(rank, h * (self.plain + model.value_width), bias=False)
        self.register_buffer("past_latent", torch.empty(shape.batch, shape.past, rank))
        self.register_buffer("past_rope", torch.empty(shape.batch, 1, shape.past, rope))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m = self.model
        assert m.latent is not None
        narrow = x if m.latent.q_rank is None else self.query_norm(self.query_down(x))
        plain, rope = _heads(self.query(narrow), m.heads).split([self.plain, self.rope], -1)
        latent, shared = self.down(x).split([self.rank, self.rope], -1)
        latent = torch.cat([self.past_latent, self.norm(latent)], 1)
        shared = torch.cat([self.past_rope, self.rotation(shared.unsqueeze(1))], 2)
        rope = self.rotation(rope)
        if self.absorbed:
            query = torch.cat([torch.matmul(plain, self.into), rope], -1)
            value = latent.unsqueeze(1)
            return query, torch.cat([value, shared], -1), value
        key, value = _heads(self.up(latent), m.heads).split([self.plain, m.value_width], -1)
        key = torch.cat([key, shared.expand(-1, m.heads, -1, -1)], -1)
        return torch.cat([plain, rope], -1), key, value


class Outward(nn.Module):
    def __init__(self, model: Model, shape: Shape) -> None:
        super().__init__()
        self.back = None
        if model.latent is not None and shape.absorbed:
            self.back = nn.Parameter(torch.empty(model.heads, model.latent.kv_rank, model.value_width))
        self.output = nn.Linear(model.heads * model.value_width, model.d_model, bias=model.out_bias)

    def forward(self, answers: Tensor) -> Tensor:
        answers = answers if self.back is None else torch.matmul(answers, self.back)
        return self.output(answers.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, model: Model, wide: int, bias: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(model.d_model, wide, bias=bias) if model.gated else None
        self.up, self.down = nn.Linear(model.d_model, wide, bias=bias), nn.Linear(wide, model.d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each of the active experts reads every token: as much work as when each token goes to so many of all."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        wide, shared = model.expert_d_ff, model.shared_experts
        self.router = nn.Linear(model.d_model, model.experts, bias=False)
        self.active = nn.ModuleList(Network(model, wide, False) for _ in range(model.experts_active))
        self.shared = Network(model, shared * wide, False) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        shares = F.softmax(self.router(x), -1)
        out = x if self.shared is None else self.shared(x)
        for i, expert in enumerate(self.active):
            out = out + shares[..., i : i + 1] * expert(x)
        return out


class Embedding(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        sizes = (model.vocabulary, model.positions, model.segments)
        self.tables = nn.ModuleList(nn.Embedding(size, model.d_model) for size in sizes if size)
        self.norm = norm(model) if model.embedding_norm else None

    def forward(self, *numbers: Tensor) -> Tensor:
        found = self.tables[0](numbers[0])
        for table, rows in zip(list(self.tables)[1:], numbers[1:], strict=True):
            found = found + table(rows)
        return found if self.norm is None else self.norm(found)


class Layer(nn.Module):
    """A whole layer: norms before attention and network, further ones behind them, and what is added up. cross: queries
    and keys of attention to an encoder's tokens."""

    def __init__(self, model: Model, own: list[nn.Module], cross: list[nn.Module], network: nn.Module) -> None:
        super().__init__()
        self.own, self.cross, self.network = nn.ModuleList(own), nn.ModuleList(cross), network
        self.norms = nn.ModuleList(norm(model) for _ in range(model.norms_per_layer + bool(cross)))

    def forward(self, x: Tensor, keep: Tensor | None = None, source: Tensor | None = None) -> Tensor:
        norms = list(self.norms)
        inward, scores, outward = self.own
        seen = norms.pop(0)(x) if norms else x
        found = outward(scores(*inward(seen), keep))
        if not norms:  # attention and network beside each other
            return x + found + self.network(seen)
        x = x + found
        if self.cross:
            inward, scores, outward = self.cross
            x = x + outward(scores(*inward(norms.pop(0)(x), source)))
        found = self.network(norms.pop(0)(x) if norms else x)
        for further in norms:
            found = further(found)
        return x + found


def norm(model: Model) -> nn.Module:
    if model.norm == "rms":
        return nn.RMSNorm(model.d_model)
    made = nn.LayerNorm(model.d_model, elementwise_affine=model.norm != "none")
    if model.norm == "none":
        made.unused = _unused()
    return made


def _unused() -> nn.Parameter:
    """For modules without parameters: calflops asks a module's first parameter for the device."""
    return nn.Parameter(torch.empty(1))


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)
