"""Fewer key and value heads: multi-head attention becomes grouped-query or multi-query attention.

Group g of a projection is its heads g·s … g·s + s - 1, with s = heads / kv_heads: those that query heads of the group
read before. Its new head is their mean (arXiv 2305.13245, figure 1), or one of them as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import _DTYPE_SET, check_size
from ..masks.grid import as_integer
from .attention import Attention
from .module import ConfiguredModule

Module = TypeVar("Module", bound=nn.Module)


def pooled(weight: Tensor, heads: int, kv_heads: int, *, keep: Iterable[int] = ()) -> Tensor:
    """The weight or the bias of a key or value projection with fewer heads: W'_g = mean of W_h over the heads h of g.

    weight: (heads·head_width, width), or a bias (heads·head_width,), of heads that are to become `kv_heads`, which
    divides `heads`. The answer is (kv_heads·head_width, …) in the same dtype: the mean is computed in float64 and
    rounded at the end. keep: heads that their groups take as they are, in place of the mean; at most one a group.
    Rotary positions turn all heads alike, so turning and pooling can be exchanged.

    >>> import torch
    >>> from qkv.nn.heads import pooled
    >>> bias = torch.tensor([1.0, 2.0, 3.0, 6.0, 10.0, 20.0, 30.0, 60.0])  # 4 heads of width 2
    >>> pooled(bias, 4, 2)
    tensor([ 2.,  4., 20., 40.])
    >>> pooled(bias, 4, 2, keep=[3])
    tensor([ 2.,  4., 30., 60.])

    At the edges: kv_heads = heads gives a copy. Heads that are equal stay as they are, bit for bit below float64.
    """
    heads, kv_heads, kept = check_grouping(heads, kv_heads, keep)
    if not isinstance(weight, Tensor):
        raise DtypeError(complaint("weight", type(weight).__name__, "a torch.Tensor"))
    if weight.dtype not in _DTYPE_SET or weight.layout is not torch.strided:
        wanted = "a dense tensor of float32, float64, bfloat16 or float16"
        hint = "what is quantised is pooled after dequantising"
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
    """A copy of a model of `qkv.nn` whose attentions have `kv_heads` key and value heads, cross attention included.

    model: an `Attention` or any module that holds some; the number of key and value heads of each is a multiple of
    `kv_heads`. keep: as for `pooled`, in every attention. What was shared is shared in the copy, `save` takes it, and a
    cache of it is smaller: a model that was trained needs some more training to come back to what it was.

    >>> import torch, qkv
    >>> from qkv.nn.heads import grouped
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
        hint = "qkv.hf.convert changes models of transformers"
        raise OptionError(complaint("model", f"a {type(model).__name__} without attention", "Attention in it", hint))
    # All of them first: a refusal costs nothing.
    for attention in attentions:
        check_grouping(attention.kv_heads, kv_heads, keep)
    smaller: dict[int, Any] = {}
    for attention in attentions:
        for parameter in (*attention.key.parameters(), *attention.value.parameters()):
            if id(parameter) not in smaller:
                weight = pooled(parameter.detach(), attention.kv_heads, kv_heads, keep=keep)
                smaller[id(parameter)] = nn.Parameter(weight, requires_grad=parameter.requires_grad)
    # deepcopy takes what it finds in here for the copy of an object, wherever the model holds it.
    model = copy.deepcopy(model, smaller)
    for module in model.modules():
        if isinstance(module, Attention):
            module.kv_heads = int(kv_heads)
            module.key.out_features = module.value.out_features = module.kv_heads * module.head_width
        # `save` writes these options, of the modules around an attention too.
        if isinstance(module, ConfiguredModule) and any(isinstance(inner, Attention) for inner in module.modules()):
            module.init_options["kv_heads"] = int(kv_heads)
    return model


def check_grouping(heads: Any, kv_heads: Any, keep: Iterable[int]) -> tuple[int, int, dict[int, int]]:
    """The two numbers of heads, and which head each group keeps."""
    heads, kv_heads = check_size("heads", heads), check_size("kv_heads", kv_heads)
    if heads % kv_heads:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        wanted = f"a number that divides the {heads} key and value heads that there are"
        raise OptionError(complaint("kv_heads", kv_heads, wanted, f"one of {divisors}"))
    group = heads // kv_heads
    kept: dict[int, int] = {}
    for head in _head_list(keep):
        if not 0 <= head < heads:
            raise OptionError(complaint("keep", f"head {head}", f"heads from 0 to {heads - 1}"))
        if kept.setdefault(head // group, head) != head:
            given = f"heads {kept[head // group]} and {head}, both of group {head // group}"
            raise OptionError(complaint("keep", given, f"at most one head of each {group}"))
    return heads, kv_heads, kept


def _head_list(keep: Any) -> list[int]:
    """The heads to keep; an iterator is read once."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise OptionTypeError(complaint("keep", repr(keep), "numbers of heads, as (0, 2)"))
    return [as_integer("keep", head) for head in keep]
