"""PyTorch's scaled_dot_product_attention as users call it: over past and new token in one contiguous tensor."""

from __future__ import annotations

from torch.nn.functional import scaled_dot_product_attention as sdpa

from . import Peer, Step, Turn


class TorchSdpa(Peer):
    name = "sdpa"
    title = "PyTorch SDPA, enable_gqa; given past and new token joined"

    def prepare(self, step: Step, storage: str) -> Turn:
        query, key, value, gqa = step.query, step.all_key, step.all_value, step.group > 1
        return Turn(lambda: sdpa(query, key, value, enable_gqa=gqa))


PEERS = [TorchSdpa()]
