"""`attention` and `explain` over the ranks of a mesh axis: read the shards, choose a strategy, run or describe it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..backends.reference import Result
from ..errors import OptionError, complaint
from ..functional import Answer, empty_result, restore_shape
from ..functional import attention as local_attention
from ..functional import explain as explain_local
from ..masks import Mask
from ..similarity import AnySimilarity
from .consensus import agree_before_backward, agreed_axis
from .inputs import SEQUENCE, ShardedInputs, read_sharded_inputs, unwrap_dtensors
from .strategy import LOCAL, Candidate, SplitChoice, explain_split, run_split


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
    """V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j) over a sequence that is sharded over the ranks of a mesh axis.

    Every rank makes the same call with its own shard, forward and backward, and gets the answer for its own queries.
    Shards are contiguous and in rank order, of any lengths; a rank may have no tokens. Edge cases are as in
    `qkv.attention`.

    Strategies:

    - "ring": blocks of keys and values are sent round a ring; partial results of softmax are merged by log-sum-exp.
    - "gather": every rank fetches the keys and values that its queries attend to.
    - "heads": tokens are exchanged for heads, so that each rank has the whole sequence for some of the heads.
    - "scan": sums of features are sent instead of keys, for any length (`FeatureMap`, `Polynomial`).
    - "argmax": each rank finds its best key for every query, and the best of those is taken (`Argmax`).

    DTensors give DTensors with the query's placements, which must be those of key and value too: Shard of the sequence
    along at most one axis of the mesh, which is then `axis`; Shard of heads or of the batch, or Replicate, along
    others. Masks, plain biases and sinks are those of the whole call.

    The gradient of what is replicated, such as a learned sink or a bias with one row for all queries, is this rank's
    part, as in data parallelism: the sum over the ranks is the gradient.

    Args:
        query: this rank's queries (batch, heads_q, own queries, width), or three or two dimensions as in
            `qkv.attention`.
        key: this rank's keys (batch, heads_kv, own keys, width).
        value: this rank's values (batch, heads_kv, own keys, value width).
        mesh: a `DeviceMesh`; None for DTensors.
        axis: the name or number of an axis of the mesh; a mesh with one axis needs none.
        similarity: as in `qkv.attention`.
        mask: of the whole call, in global positions, the same on every rank.
        bias: (…, own queries or all queries, all keys).
        dropout: as in `qkv.attention`.
        backend: what each rank runs.
        split: one of the strategies, or "auto": the cost model chooses, and `explain` tells which and why.
        return_lse: as in `qkv.attention`.
        return_weights: as in `qkv.attention`.

    Returns:
        out (batch, heads_q, own queries, value width), and lse and weights if requested.

    Raises:
        Disagreement: on every rank, if arguments differ between ranks or a rank refuses its own.
        PeerLost: if a rank is lost, or does not respond within the timeout of the process group.
        BackendRefused: if the backend or the strategy cannot run the call.
    """
    given = {"query": query, "key": key, "value": value, "similarity": similarity, "mask": mask, "bias": bias}
    local, mesh, axis, layout = unwrap_dtensors(given, mesh, axis)
    if layout is not None and SEQUENCE not in layout.roles:
        if split not in ("auto", "heads"):
            wanted = "'auto' or 'heads' for DTensors whose sequence is not sharded"
            raise OptionError(complaint("split", repr(split), wanted))
        returns: dict[str, Any] = {"return_lse": return_lse, "return_weights": return_weights}
        answer = local_attention(**local, dropout=dropout, backend=backend, **returns)
    else:
        options = dropout, backend, split, (return_lse, return_weights)
        sharded = read_sharded_inputs("attention", agreed_axis(mesh, axis), local, layout, options)
        answer = restore_shape(sharded.call, _run(sharded))
    if layout is None:
        return answer
    return tuple(map(layout.wrap, answer)) if isinstance(answer, tuple) else layout.wrap(answer)


def _run(sharded: ShardedInputs) -> Result:
    call, extent = sharded.call, sharded.extent
    if not (extent.len_k and extent.len_q and extent.heads and extent.batch):
        return empty_result(call._replace(extent=call.extent._replace(len_k=extent.len_k)))
    with torch.autocast(call.query.device.type, enabled=False):
        result = run_split(sharded)
    return agree_before_backward(sharded.axis, result) if sharded.needs_grad else result


def explain(
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
) -> SplitChoice:
    """What `qkv.parallel.attention` would do: the strategy, its bytes and seconds, and why not the others.

    Every rank has to call it, and all get the same answer; only the agreement is sent. Bytes are those of
    equal shards. Seconds are predicted from built-in figures until `qkv.parallel.measure` has measured the
    axis.

    Args:
        query, key, value, mesh, axis, similarity, mask, bias, dropout, backend, split, return_lse, return_weights: as
            in `attention`.

    Returns:
        The choice; printed, it is a table of the strategies.

    Raises:
        The same errors as `attention`.
    """
    given = {"query": query, "key": key, "value": value, "similarity": similarity, "mask": mask, "bias": bias}
    local, mesh, axis, layout = unwrap_dtensors(given, mesh, axis)
    if layout is not None and SEQUENCE not in layout.roles:
        choice = explain_local(**local, dropout=dropout, backend=backend)
        return SplitChoice(LOCAL, split, (Candidate(LOCAL, (), seconds=choice.seconds),), choice.call, 1)
    options = dropout, backend, split, (return_lse, return_weights)
    return explain_split(read_sharded_inputs("explain", agreed_axis(mesh, axis), local, layout, options))
