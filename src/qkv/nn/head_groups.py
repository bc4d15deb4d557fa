"""Reduce key/value heads: convert multi-head attention to grouped-query or multi-query attention.

Group g of a projection is its heads g·s … g·s + s - 1, with s = heads / kv_heads, which the query heads of the group
read before. Its new head is their mean (arXiv 2305.13245, figure 1), or one of them unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import DTYPE_SET, check_size
from ..masks.grid import as_integer
from .attention import Attention
from .module import ConfiguredModule

Module = TypeVar("Module", bound=nn.Module)


def pooled(weight: Tensor, heads: int, kv_heads: int, *, keep: Iterable[int] = ()) -> Tensor:
    """Pool the weight or bias of a key or value projection: W'_g = mean of W_h over the heads h of group g.

    The mean is computed in float64 and rounded once, so equal heads stay equal, bit for bit below float64. Rotary
    positions rotate all heads alike, so rotation and pooling commute.

    Args:
        weight: (heads·head_width, width), or a bias (heads·head_width,).
        heads: Heads of the weight.
        kv_heads: Heads of the result, a divisor of heads.
        keep: Heads that their groups take instead of the mean; at most one per group.

    Returns:
        (kv_heads·head_width, …) in the same dtype.

    >>> import torch
    >>> from qkv.nn import pooled
    >>> bias = torch.tensor([1.0, 2.0, 3.0, 6.0, 10.0, 20.0, 30.0, 60.0])  # 4 heads of width 2
    >>> pooled(bias, 4, 2)
    tensor([ 2.,  4., 20., 40.])
    >>> pooled(bias, 4, 2, keep=[3])
    tensor([ 2.,  4., 30., 60.])
    """
    heads, kv_heads, kept = check_grouping(heads, kv_heads, keep)
    if not isinstance(weight, Tensor):
        raise DtypeError(complaint("weight", type(weight).__name__, "a torch.Tensor"))
    if weight.dtype not in DTYPE_SET or weight.layout is not torch.strided:
        wanted = "a dense tensor of float32, float64, bfloat16 or float16"
        hint = "dequantize the weight first"
        raise DtypeError(complaint("weight", f"{weight.dtype}, {weight.layout}", wanted, hint))
    if weight.dim() not in (1, 2) or weight.shape[0] % heads or not weight.shape[0]:
        wanted = f"(heads·head_width, width) or (heads·head_width,) of {heads} heads"
        raise ShapeError(complaint("weight", f"shape {tuple(weight.shape)}", wanted))
    group = heads // kv_heads
    split = weight.unflatten(0, (kv_heads, group, -1))
    means = split.double().mean(1).to(weight.dtype)
    if kept:
        chosen = [split[g, kept[g] - g * group] if g in kept else means[g] for g in range(kv_heads)]
        means = torch.stack(chosen)
    return means.flatten(0, 1)


def grouped(model: Module, kv_heads: int, *, keep: Iterable[int] = ()) -> Module:
    """Copy a model of `qkv.nn` with `kv_heads` key/value heads in every attention, cross attention included.

    Shared parameters stay shared, and `save` accepts the copy. A trained model needs some more training afterwards.

    Args:
        model: An `Attention` or a module that contains some; their kv_heads are multiples of `kv_heads`.
        kv_heads: The new number of key/value heads.
        keep: As for `pooled`, in every attention.

    >>> import torch, qkv
    >>> from qkv.nn import grouped
    >>> model = qkv.nn.Decoder(24, heads=6, layers=2, vocabulary=31, positions=qkv.nn.Rotary())
    >>> smaller = grouped(model, 2)
    >>> model.layers[0].attention.kv_heads, smaller.layers[0].attention.kv_heads
    (6, 2)
    >>> smaller(torch.tensor([[2, 3, 5, 7]])).shape
    torch.Size([1, 4, 31])
    """
    if not isinstance(model, nn.Module):
        raise OptionTypeError(complaint("model", type(model).__name__, "a module of qkv.nn"))
    keep = _head_list(keep)
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    if not attentions:
        hint = "use qkv.hf.convert for models of transformers"
        raise OptionError(complaint("model", type(model).__name__, "a module with qkv.nn.Attention in it", hint))
    # Check all before computing anything.
    for attention in attentions:
        check_grouping(attention.kv_heads, kv_heads, keep)
    smaller: dict[int, Any] = {}
    for attention in attentions:
        for parameter in (*attention.key.parameters(), *attention.value.parameters()):
            if id(parameter) not in smaller:
                weight = pooled(parameter.detach(), attention.kv_heads, kv_heads, keep=keep)
                smaller[id(parameter)] = nn.Parameter(weight, requires_grad=parameter.requires_grad)
    # deepcopy uses the entries of its memo as copies, so parameters are replaced wherever they are used.
    model = copy.deepcopy(model, smaller)
    for module in model.modules():
        if isinstance(module, Attention):
            module.kv_heads = int(kv_heads)
            module.key.out_features = module.value.out_features = module.kv_heads * module.head_width
        # `save` writes these options, also those of modules that contain an attention.
        if isinstance(module, ConfiguredModule) and any(isinstance(inner, Attention) for inner in module.modules()):
            module.init_options["kv_heads"] = int(kv_heads)
    return model


def check_grouping(heads: Any, kv_heads: Any, keep: Iterable[int]) -> tuple[int, int, dict[int, int]]:
    """Check the numbers of heads; return them and the head that each group keeps."""
    heads, kv_heads = check_size("heads", heads), check_size("kv_heads", kv_heads)
    if heads % kv_heads:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        wanted = f"a divisor of the model's {heads} key/value heads"
        raise OptionError(complaint("kv_heads", kv_heads, wanted, f"one of {divisors}"))
    group = heads // kv_heads
    kept: dict[int, int] = {}
    for head in _head_list(keep):
        if not 0 <= head < heads:
            raise OptionError(complaint("keep", f"head {head}", f"heads from 0 to {heads - 1}"))
        if kept.setdefault(head // group, head) != head:
            given = f"heads {kept[head // group]} and {head}, both in group {head // group}"
            raise OptionError(complaint("keep", given, f"at most one head of each group of {group}"))
    return heads, kv_heads, kept


def _head_list(keep: Any) -> list[int]:
    """The heads to keep as a list; an iterator is read once."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise OptionTypeError(complaint("keep", repr(keep), "head indices such as (0, 2)"))
    return [as_integer("keep", head) for head in keep]
