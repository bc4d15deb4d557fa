"""SDPA over packed heads: the query heads of a group become query rows, so that a key is read once for all."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from . import Peer, Step, Turn


class PackedSdpa(Peer):
    name = "pack"
    title = "PyTorch SDPA, the query heads of a group packed as rows; joined likewise"

    def refuses(self, step: Step, storage: str) -> str | None:
        return super().refuses(step, storage) or ("no heads to pack" if step.group == 1 else None)

    def prepare(self, step: Step, storage: str) -> Turn:
        query, key, value, group = step.query, step.all_key, step.all_value, step.group
        batch, heads, _, width = query.shape

        def run() -> Tensor:
            out = sdpa(query.view(batch, heads // group, group, width), key, value)
            return out.reshape(batch, heads, 1, width)

        return Turn(run)


PEERS = [PackedSdpa()]
