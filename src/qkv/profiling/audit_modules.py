"""Torch modules of the parts of a model, and the tools that count their flops.

The tools count matrix products, norms, softmax and activations, and nothing between them (rotations, sums, gates), so
that a model is a list of such modules. They are never run on data: weights and inputs are tensors with shapes only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ..cost.architecture import Model


class PartModule(NamedTuple):
    """A module, its inputs and its part of the model. times: its number in the model."""

    part: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    times: int


class Shape(NamedTuple):
    """`new` tokens of each of `batch` sequences after `past` ones. absorbed: latent attention in the latent space."""

    batch: int
    new: int
    past: int
    absorbed: bool = False

    def tokens(self, width: int) -> Tensor:
        return torch.empty(self.batch, self.new, width)

    def heads(self, count: int, length: int, width: int) -> Tensor:
        return torch.empty(self.batch, count, length, width)


def part_modules(model: Model, shape: Shape) -> list[PartModule]:
    """The parts of a model for `new` tokens after `past` ones; logits are for the last token."""
    layers, encoder = model.layers, shape._replace(past=0)
    cross = model.kind == "encoder-decoder"
    runs_encoder = cross and shape.past == 0
    sparse = layers - model.dense_layers if model.experts else 0
    norms = layers * (model.norms_per_layer + cross) + model.final_norm
    norms += (model.encoder_layers * model.norms_per_layer + model.final_norm) if runs_encoder else 0
    found = [PartModule("norms", _norm(model), (shape.tokens(model.d_model),), norms)]
    windowed = model.window_layers
    found += _attention(model, shape, layers - windowed)
    found += _attention(model, shape, windowed, window=model.window)
    if cross:
        found += _attention(model, shape, layers, reads_source=True)
    if runs_encoder:
        found += _attention(model, encoder, model.encoder_layers, causal=False)
    if sparse:
        found += _experts(model, shape, sparse)
    if dense := layers - sparse + (model.encoder_layers if runs_encoder else 0):
        found += _feed_forward(model, shape, model.d_ff, model.ff_bias, dense)
    if model.vocabulary:
        found += _embedding(model, shape, 1 + runs_encoder)
        if model.kind != "encoder":
            logits = nn.Linear(model.d_model, model.vocabulary, bias=model.head_bias)
            found.append(PartModule("logits", logits, (torch.empty(shape.batch, 1, model.d_model),), 1))
    return found


def _attention(
    model: Model, shape: Shape, times: int, causal: bool = True, window: int | None = None, reads_source: bool = False
) -> list[PartModule]:
    """Projections and scores of `times` layers; a layer with a window caches no more tokens than the window."""
    if not times:
        return []
    if window is not None:
        shape = shape._replace(past=min(shape.past, window - 1))
    causal = causal and model.kind != "encoder" and not reads_source and shape.new > 1
    kv_heads, width, value_width = model.kv_heads, model.head_width, model.value_width
    if model.latent is None or reads_source:
        found = _projections(model, shape, makes_keys=not (reads_source and shape.past))
    else:
        found, kv_heads = _latent_projections(model, shape), model.heads
        if shape.absorbed:
            kv_heads, width, value_width = 1, model.latent.kv_rank + model.latent.rope_width, model.latent.kv_rank
    keys = shape.past + shape.new
    inputs = [shape.heads(model.heads, shape.new, width)]
    inputs += [shape.heads(kv_heads, keys, each) for each in (width, value_width)]
    if window is not None and window < shape.new and shape.new > 1:
        inputs.append(torch.empty(shape.new, keys, dtype=torch.bool))
    output = nn.Linear(model.heads * model.value_width, model.d_model, bias=model.out_bias)
    found.append((output, shape.tokens(model.heads * model.value_width)))
    scores = PartModule("scores", Scores(causal, kv_heads != model.heads), tuple(inputs), times)
    return [scores, *(PartModule("projections", module, (x,), times) for module, x in found)]


def _projections(model: Model, shape: Shape, *, makes_keys: bool) -> list[tuple[nn.Module, Tensor]]:
    h, g, w, d, bias = model.heads, model.kv_heads, model.head_width, model.d_model, model.qkv_bias
    made = [(h, nn.Linear(d, h * w, bias=bias))]
    if makes_keys:
        made.append((g, nn.Linear(d, g * w, bias=bias)))
    found: list[tuple[nn.Module, Tensor]] = [(module, shape.tokens(d)) for _, module in made]
    for heads, _ in made:
        if model.qk_norm == "head":
            found.append((nn.RMSNorm(w), shape.heads(heads, shape.new, w)))
        elif model.qk_norm == "wide":
            found.append((nn.RMSNorm(heads * w), shape.tokens(heads * w)))
    if makes_keys:
        found.append((nn.Linear(d, g * model.value_width, bias=bias), shape.tokens(d)))
    return found


def _latent_projections(model: Model, shape: Shape) -> list[tuple[nn.Module, Tensor]]:
    """Latents are projected to keys and values, or (absorbed) queries to latents and outputs back."""
    assert model.latent is not None
    latent, d, h, bias = model.latent, model.d_model, model.heads, model.qkv_bias
    rank, rope, plain = latent.kv_rank, latent.rope_width, model.head_width - latent.rope_width
    found: list[tuple[nn.Module, Tensor]] = []
    narrow = d
    if latent.q_rank is not None:
        narrow = latent.q_rank
        found += [(nn.Linear(d, narrow, bias=bias), shape.tokens(d)), (nn.RMSNorm(narrow), shape.tokens(narrow))]
    found.append((nn.Linear(narrow, h * model.head_width, bias=False), shape.tokens(narrow)))
    found += [(nn.Linear(d, rank + rope, bias=bias), shape.tokens(d)), (nn.RMSNorm(rank), shape.tokens(rank))]
    if not shape.absorbed:
        kept = torch.empty(shape.batch, shape.past + shape.new, rank)
        return [*found, (nn.Linear(rank, h * (plain + model.value_width), bias=False), kept)]
    into, back = HeadProjections(h, plain, rank), HeadProjections(h, rank, model.value_width)
    return [*found, (into, shape.heads(h, shape.new, plain)), (back, shape.heads(h, shape.new, rank))]


def _feed_forward(model: Model, shape: Shape, wide: int, bias: bool, times: int) -> list[PartModule]:
    d = model.d_model
    up = nn.Sequential(nn.Linear(d, wide, bias=bias), nn.SiLU() if model.gated else nn.GELU())
    made: list[tuple[nn.Module, int]] = [(up, d), (nn.Linear(wide, d, bias=bias), wide)]
    if model.gated:
        made.append((nn.Linear(d, wide, bias=bias), d))
    return [PartModule("feed-forward", module, (shape.tokens(width),), times) for module, width in made]


def _experts(model: Model, shape: Shape, times: int) -> list[PartModule]:
    """The active experts process every token: as many flops as routing each token to as many experts."""
    wide, shared = model.expert_d_ff, model.shared_experts
    router = nn.Sequential(nn.Linear(model.d_model, model.experts, bias=False), nn.Softmax(-1))
    found = [PartModule("feed-forward", router, (shape.tokens(model.d_model),), times)]
    found += _feed_forward(model, shape, wide, False, times * model.experts_active)
    return found + (_feed_forward(model, shape, shared * wide, False, times) if shared else [])


def _embedding(model: Model, shape: Shape, times: int) -> list[PartModule]:
    tables = [nn.Embedding(size, model.d_model) for size in (model.vocabulary, model.positions, model.segments) if size]
    numbers = torch.empty(shape.batch, shape.new, dtype=torch.long)
    found = [PartModule("embedding", table, (numbers,), times) for table in tables]
    if model.embedding_norm:
        found.append(PartModule("embedding", _norm(model), (shape.tokens(model.d_model),), times))
    return found


class Scores(nn.Module):
    def __init__(self, causal: bool, grouped: bool) -> None:
        super().__init__()
        self.causal, self.grouped = causal, grouped
        self.unused = _unused_parameter()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        causal = self.causal and keep is None
        return F.scaled_dot_product_attention(query, key, value, keep, is_causal=causal, enable_gqa=self.grouped)


class HeadProjections(nn.Module):
    """One matrix for each head."""

    def __init__(self, heads: int, width: int, out: int) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.empty(heads, width, out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.matrices)


def _norm(model: Model) -> nn.Module:
    if model.norm == "rms":
        return nn.RMSNorm(model.d_model)
    made = nn.LayerNorm(model.d_model, elementwise_affine=model.norm != "none")
    if model.norm == "none":
        made.unused = _unused_parameter()
    return made


def _unused_parameter() -> nn.Parameter:
    """For modules without parameters: calflops reads the device of a module's first parameter."""
    return nn.Parameter(torch.empty(1))


Counter = Callable[[nn.Module, tuple[Tensor, ...]], int]


class Tool(NamedTuple):
    """package: The package to install. where: Context in which tensors without data are created; the tool itself runs
    outside of it. count: The tool's flops."""

    name: str
    package: str
    where: Callable[[], AbstractContextManager[object]]
    count: Counter

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    @property
    def label(self) -> str:
        number = version(self.package).partition("+")[0]
        return self.name.replace(self.package, f"{self.package} {number}")


def count_with_calflops(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    from calflops import calculate_flops  # pyright: ignore[reportMissingImports]

    with _restore_torch():
        flops, _, _ = calculate_flops(module, args=list(inputs), print_results=False, output_as_string=False)
    return int(flops)


def count_with_fvcore(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis  # pyright: ignore[reportMissingImports]

    analysis = FlopCountAnalysis(module, inputs)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    return int(analysis.total())


def count_with_torch(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    with getattr(inputs[0], "fake_mode", nullcontext()), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return int(counter.get_total_flops())


# torch's counter counts the operators of a device, so its result depends on the device.
TOOLS = (
    Tool("calflops", "calflops", lambda: torch.device("meta"), count_with_calflops),
    Tool("fvcore", "fvcore", lambda: torch.device("meta"), count_with_fvcore),
    Tool("torch FlopCounterMode, CPU tensors", "torch", FakeTensorMode, count_with_torch),
    Tool("torch FlopCounterMode, meta tensors", "torch", lambda: torch.device("meta"), count_with_torch),
)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Disable gradients, and ignore the warnings of tools that are older than this torch."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _restore_torch() -> Iterator[None]:
    """calflops patches functions of torch; restore them, also after an error."""
    owners = (torch, torch.Tensor, F)
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, names in zip(owners, before, strict=True):
            for name, thing in names.items():
                if vars(owner).get(name) is not thing:
                    setattr(owner, name, thing)
        for name in set(vars(torch.Tensor)) - set(before[1]):
            delattr(torch.Tensor, name)
