"""`attention` over the ranks of a mesh's axis: read the sharded, choose a split, run it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OptionError, complaint
from ..functional import Answer, empty_result, restore_shape
from ..functional import attention as attention_here
from ..inputs import AttentionInputs
from ..masks import Mask
from ..similarity import AnySimilarity
from .consensus import agree_before_backward, agreed_axis
from .inputs import ShardedInputs, read_sharded_inputs, unwrap_dtensors
from .strategy import choose


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mesh: DeviceMesh | None = None,
    axis: str | int | None = None,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    split: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
) -> Answer:
    """V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j) over a sequence that is spread over the ranks of an axis.

    Every rank gives its own shard: query (batch, heads_q, own queries, width), key and value (batch, heads_kv, own
    keys, …), or three or two dimensions as in `qkv.attention`. Shards are contiguous and in rank order, of any
    lengths; a rank may have nothing. The answer is that of the rank's own queries. Every rank makes the same call,
    forward and backward. mesh, axis: a `DeviceMesh` and the name or number of its axis; DTensors bring their mesh.
    mask: of the whole, in global positions, the same on every rank. bias: (…, own queries or all, all keys).
    similarity, dropout, backend, return_lse, return_weights: as in `qkv.attention`; backend is what each rank runs. split:
    how the work is spread; "auto" asks the cost model, and `explain` says what it took and why.

    - "ring": blocks of keys and values travel, and softmax's partial answers are merged by log-sum-exp.
    - "gather": every rank fetches the keys and values that its queries see.
    - "heads": tokens are exchanged for heads, so that each rank has the whole sequence for some of the heads.
    - "scan": sums of features travel instead of keys, whatever the length (`FeatureMap`, `Polynomial`).
    - "best": each rank finds its best key for every query, and the best of those is taken (`Argmax`).

    DTensors are answered by DTensors with the query's placements, which are the same for all three: Shard of the
    sequence along one axis of the mesh, which is then `axis` and need not be named; Shard of heads or of the batch,
    which do not travel, or Replicate along others. Masks, plain biases and sinks are those of the whole.

    What every rank holds whole, such as a learned sink or a bias with one row for all queries, gets the rank's own
    part of the gradient, as layers do under data parallelism: the sum over the ranks is the gradient.

    At the edges: as in `qkv.attention`. Ranks that disagree raise `Disagreement` on every rank, with the names of what
    differs; a rank that is gone or late raises `PeerLost` on the others, within the process group's timeout.
    """
    opening = unwrap_dtensors(query, key, value, similarity, mask, bias, mesh, axis)
    query, key, value, similarity, mask, bias, mesh, axis, _ = opening
    if not opening.travels:  # every rank has whole sequences
        if split not in ("auto", "heads"):
            wanted = "'auto' or 'heads' for DTensors whose sequences are whole on every rank"
            raise OptionError(complaint("split", repr(split), wanted))
        here = attention_here(
            query, key, value, similarity=similarity, mask=mask, bias=bias, dropout=dropout, backend=backend,
            return_lse=return_lse, return_weights=return_weights,
        )  # fmt: skip
        return opening.closed(here)
    place = agreed_axis(mesh, axis)
    sharded = read_sharded_inputs(
        place, query, key, value, similarity, mask, bias, dropout, backend, split, return_lse, return_weights
    )
    extent = sharded.extent
    if not (extent.len_k and extent.len_q and extent.heads and extent.batch):
        return opening.closed(restore_shape(sharded.call, empty_result(_with_all_keys(sharded))))
    with torch.autocast(sharded.call.query.device.type, enabled=False):
        result = choose(sharded).run(sharded)
        result = agree_before_backward(sharded.axis, result, _unchanged(sharded)) if sharded.needs_grad else result
    return opening.closed(restore_shape(sharded.call, result))


def _unchanged(sharded: ShardedInputs) -> Callable[[], None]:
    """Refuses a mask that was written to since now."""
    call = sharded.call._replace(query=None, key=None, value=None, mask=sharded.mask)  # pyright: ignore[reportArgumentType]
    versions = call.mask_versions()
    return lambda: call.check_mask_unchanged(versions)


def _with_all_keys(sharded: ShardedInputs) -> AttentionInputs:
    return sharded.call._replace(extent=sharded.call.extent._replace(len_k=sharded.extent.len_k))
