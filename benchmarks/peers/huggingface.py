"""transformers' step: DynamicCache, which concatenates, and its call of SDPA.

With a padding mask transformers repeats the key/value heads before it calls SDPA; without one it does not.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from . import Peer, Step, TimedCall

PADDED = 3  # tokens of row 0 that count as padding


class HuggingFace(Peer):
    name = "hf"
    title = "transformers: DynamicCache.update and sdpa_attention_forward"
    package = "transformers"
    padded = False

    def keep(self, step: Step) -> Tensor | None:
        if not self.padded:
            return None
        keep = torch.ones(step.query.shape[0], step.past + 1, dtype=torch.bool)
        keep[0, : min(PADDED, step.past)] = False  # left padding, as in generate()
        return keep

    def prepare(self, step: Step, storage: str) -> TimedCall:
        from transformers.cache_utils import DynamicCache
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        keep = self.keep(step)
        mask = None if keep is None else keep[:, None, None, :]
        module: Any = SimpleNamespace(num_key_value_groups=step.group, is_causal=True)
        query, key, value, scaling = step.query, step.key, step.value, step.query.shape[-1] ** -0.5
        cache: Any = DynamicCache()
        cache.update(key, value, 0)
        layer = cache.layers[0]

        def undo() -> None:
            layer.keys, layer.values = step.past_key, step.past_value

        def run() -> Tensor:
            joined_key, joined_value = cache.update(key, value, 0)
            return sdpa_attention_forward(module, query, joined_key, joined_value, mask, scaling=scaling)[0]

        undo()
        return TimedCall(run, undo)

    def answer(self, out: Tensor) -> Tensor:
        return out.transpose(1, 2)


class HuggingFacePadded(HuggingFace):
    name = "hf+p"
    title = "the same with a padding mask"
    padded = True


PEERS = [HuggingFace(), HuggingFacePadded()]
