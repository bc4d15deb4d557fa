"""transformers: the attention functions of its models, eager and sdpa, with masks as its masking_utils make them (True
attends for sdpa, finfo.min is added for eager), and its caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..verdict import NotOffered
from . import Subject, only


class _Layer(torch.nn.Module):
    """The attributes of a layer that the attention functions read."""

    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        self.num_key_value_groups, self.head_dim, self.layer_idx, self.is_causal = groups, width, 0, False


class Transformers(Subject):
    name, short = "transformers", "HF"
    packages = ("transformers", "safetensors")
    ways = ("sdpa", "eager")
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

    def attend(self, way: str, query: Any, key: Any, value: Any, **options: Any) -> Tensor:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

        only(options, "keep", "bias", "scale", "softcap", "dropout", "window")
        heads_kv = key.shape[1]
        layer = _Layer(query.shape[1] // heads_kv if heads_kv else 0, query.shape[-1])
        keep, bias = options.get("keep"), options.get("bias")
        if options.get("window") is not None:
            keep = self._window(query, key, options["window"])
        if keep is not None and (way == "eager" or bias is not None):
            lowest = torch.finfo(query.dtype).min
            keep = torch.where(keep, torch.zeros((), dtype=query.dtype), lowest) if keep.dtype == torch.bool else keep
        mask = keep if bias is None else bias if keep is None else bias + keep
        given: dict[str, Any] = {"dropout": options.get("dropout") or 0.0, "scaling": options.get("scale")}
        layer.train(given["dropout"] != 0.0)
        if options.get("softcap") is not None:
            if way == "sdpa":
                raise NotOffered("sdpa refuses softcap")
            given["softcap"] = options["softcap"]
        run = sdpa_attention_forward if way == "sdpa" else eager_attention_forward
        return run(layer, query, key, value, mask, **given)[0].transpose(1, 2)

    def _window(self, query: Tensor, key: Tensor, window: tuple[int, int]) -> Tensor:
        """Its window counts the query itself, and is causal."""
        from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

        rule = sliding_window_causal_mask_function(window[0] + 1)
        mask = sdpa_mask(query.shape[0], query.shape[2], key.shape[2], mask_function=rule, allow_is_causal_skip=False)
        assert mask is not None
        return mask

    def cache(self, kind: str, size: int | None = None) -> Any:
        return TransformersCache(kind, size)


class TransformersCache:
    """A layer of its caches, and sdpa on its tensors with a mask of absolute positions."""

    def __init__(self, kind: str, size: int | None) -> None:
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer

        made = {"growing": DynamicLayer, "ring": DynamicSlidingWindowLayer, "fixed": StaticLayer}[kind]
        self.cache: Any = made(size) if size is not None else made()
        self.window = size if kind == "ring" else None

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

        rule = causal_mask_function if self.window is None else sliding_window_causal_mask_function(self.window)
        count, before = query.shape[2], self.length
        span, offset = self.cache.get_mask_sizes(count)
        keys, values = self.cache.update(key, value)
        mask = sdpa_mask(
            query.shape[0], count, span, q_offset=before, kv_offset=offset, mask_function=rule,
            allow_is_causal_skip=False,
        )  # fmt: skip
        return SUBJECTS[0].attend("sdpa", query, keys, values, keep=mask)

    def append(self, key: Tensor, value: Tensor) -> None:
        self.cache.update(key, value)

    @property
    def length(self) -> int:
        return int(self.cache.get_seq_length())

    def back(self, tokens: int) -> None:
        self.cache.crop(-tokens)

    def reset(self) -> None:
        self.cache.reset()


SUBJECTS = [Transformers()]
