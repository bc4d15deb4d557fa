"""`qkv.parallel.attention` as a function of whole tensors that runs on several processes.

`ShardedAttention` shards the tensors of a call, runs the call on every rank, and concatenates the results, with
gradients, so that the contract of `qkv.attention` can test it.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import qkv
from qkv import errors
from qkv.backends import BACKENDS
from qkv.backends.base import RUNS
from qkv.parallel.transfer import TRAFFIC
from qkv.testing import CallCase, poisoned_memory
from qkv.testing.contract import Published, Subject
from qkv.testing.contract.correctness import oracle_gradients
from qkv.testing.contract.subject import cotangent_like
from tests.helpers.ranks import JobFailed, RankPool

SPLITS = ("auto", "ring", "gather", "heads", "scan", "argmax")
# The backends that may run a rank's part of a call.
BACKENDS_OF = {
    "softmax": ("reference", "sdpa", "blockwise", "native"),
    "argmax": ("reference", "argmax"),
    "polynomial": ("reference", "blockwise", "linear"),
    "feature_map": ("reference", "blockwise", "linear"),
    "similarity": ("reference", "blockwise"),
}
# Errors that all ranks raise, so that no rank waits.
_RAISED_BY_ALL = {"QkvError", "AssertionError"}
_NUMBERS = count()
# On a rank: results with their graph, and the leaves, kept for the backward pass.
_GRAPHS: dict[Any, tuple[list[Tensor], dict[str, Tensor]]] = {}


def bound_of(kind: str) -> dict[torch.dtype, float]:
    """The loosest bound among the backends that may run a rank's part. In half precision one ulp more: partial results
    are rounded by the backend, and once again after the merge."""
    bounds = [BACKENDS[name].bound for name in BACKENDS_OF[kind]]
    half = (torch.bfloat16, torch.float16)
    return {
        dtype: max(bound.get(dtype, 0.0) for bound in bounds) + (dtype in half)
        for dtype in (torch.float64, torch.float32, *half)
    }


def lengths(total: int, weights: tuple[int, ...]) -> list[int]:
    """Divide `total` positions among ranks in proportion to weights.

    >>> lengths(7, (1, 0, 2)), lengths(2, (1, 1, 1, 1))
    ([2, 0, 5], [0, 1, 0, 1])
    """
    edges = [total * part // sum(weights) for part in accumulate(weights, initial=0)]
    return [stop - start for start, stop in pairwise(edges)]


class Ranks:
    """A pool that is replaced after a job whose ranks did not all raise."""

    def __init__(self) -> None:
        self._pool: RankPool | None = None

    def run_or_errors(self, job: Callable[..., Any], ranks: int, **options: Any) -> list[Any]:
        if self._pool is None or not self._pool.alive:
            self._pool = RankPool(timeout=10.0)
        try:
            answers = self._pool.run_or_errors(job, ranks, **options)
        except BaseException:
            self.close()
            raise
        if any(isinstance(answer, JobFailed) and not _RAISED_BY_ALL & {*answer.kinds} for answer in answers):
            self.close()
        return answers

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@dataclass(frozen=True)
class ShardedAttention:
    """queries, keys: the lengths of the shards, as weights. bias: whether a rank is given its "own" rows or the
    "whole". delay_seed: of random delays before calls and messages, different on each rank."""

    ranks: Ranks = field(repr=False)
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    bias: str = "own"
    delay_seed: int | None = None

    def subject(self, kind: str) -> Subject:
        """For the contract: its backends are the strategies, with the bounds of the backends that may run the call."""
        return Subject(self.attend, dict.fromkeys(SPLITS, Published(bound_of(kind))))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, backend: str = "auto", **options: Any) -> Any:
        """As `qkv.attention`, with the name of the strategy as backend."""
        tensors, similarity = _tensors_of(query, key, value, options.pop("bias", None), options.pop("similarity", None))
        options |= {"similarity": similarity, "split": backend}
        found = _Called.apply(self, options, tuple(tensors), *tensors.values())
        return found[0] if len(found) == 1 else found

    def reports(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> list[dict[str, Any]]:
        """The "answer", "runs" and "traffic" of each rank for a call without gradients."""
        tensors, similarity = _tensors_of(query, key, value, options.pop("bias", None), options.pop("similarity", None))
        return self.run(forward, tensors=tensors, requires_grad=(), options={**options, "similarity": similarity})

    def sweep(self, call: CallCase, splits: tuple[str, ...] = SPLITS) -> dict[str, Subject | str]:
        """Run a call with several strategies, forward with lse and backward, in one job: for each a subject that
        replays the result, or the message of the refusal."""
        tensors, similarity = _tensors_of(*call.tensors, call.built_bias, call.built_similarity)
        options = {"similarity": similarity, "mask": call.built_mask, "return_lse": call.kind == "softmax"}
        reports = self.run(sweep, tensors=tensors, requires_grad=tuple(tensors), options=options, splits=splits)
        return {split: self._replay(call, split, [one[split] for one in reports], tensors) for split in splits}

    def rank_gradients(self, call: CallCase, split: str) -> list[dict[str, Tensor | None]]:
        """The gradients of each rank for its own tensors."""
        tensors, similarity = _tensors_of(*call.tensors, call.built_bias, call.built_similarity)
        options = {"similarity": similarity, "mask": call.built_mask}
        reports = self.run(sweep, tensors=tensors, requires_grad=tuple(tensors), options=options, splits=(split,))
        return [one[split]["grads"] for one in reports]

    def _replay(self, call: CallCase, split: str, reports: list[Any], tensors: dict[str, Tensor]) -> Subject | str:
        if any(isinstance(one, str) for one in reports):
            assert len({str(one) for one in reports}) == 1, f"{split}: ranks refuse differently: {reports}"
            return reports[0]
        answer = concatenated(reports)
        half = (
            call.torch_dtype in (torch.bfloat16, torch.float16) and call.values == "gaussian" and call.attended.numel()
        )
        right = oracle_gradients(call) if half else {}
        parts = [one["grads"] for one in reports]
        grads = [self.whole_gradient(parts, name, tensors, right.get(name)) for name in tensors]

        def attend(query: Tensor, key: Tensor, value: Tensor, *, return_lse: bool, **options: Any) -> Any:
            inputs, _ = _tensors_of(query, key, value, options.get("bias"), options["similarity"])
            found = _Recorded.apply(answer, grads, *inputs.values())
            return found if return_lse else found[0]

        return Subject(attend, dict.fromkeys(SPLITS, Published(bound_of(call.kind))))

    def whole_gradient(
        self, reports: list[dict[str, Any]], name: str, tensors: dict[str, Tensor], right: Tensor | None = None
    ) -> Tensor | None:
        """The gradient of the whole tensor from those of the ranks; a missing one counts as 0. right: if given, a sum
        is moved towards it by at most the rounding of its terms."""
        parts: list[Any] = [one.get(name) for one in reports]
        if all(part is None for part in parts):
            return None
        own_rows = name == "bias" and self.bias == "own" and has_rows(tensors["bias"], tensors["query"])
        if name in ("query", "key", "value") or own_rows:
            rows = lengths(tensors[name].shape[-2], self.keys if name in ("key", "value") else self.queries)
            missing = (torch.zeros_like(part) for part in tensors[name].split(rows, dim=-2))
            return torch.cat(
                [zeros if part is None else part for part, zeros in zip(parts, missing, strict=True)], dim=-2
            )
        # The gradients of a replicated tensor are rounded on each rank before they are added.
        terms = torch.stack([part.double() for part in parts if part is not None])
        total, slack = terms.sum(0), torch.finfo(tensors[name].dtype).eps / 2 * terms.abs().sum(0)
        return total if right is None else total + (right - total).clamp(-slack, slack)

    def run(self, job: Callable[..., Any], **given: Any) -> list[Any]:
        """The results of a job. An error is raised here if every rank has one; a rank must not fail alone."""
        # A check that poisons the memory of this process must poison that of the ranks.
        poison = bool(torch.empty(61).isnan().all())
        index = {"sharding": (self.queries, self.keys, self.bias), "delay_seed": self.delay_seed, "poison": poison}
        payload = pickle.dumps({**given, **index, "threads": torch.get_num_threads()})
        answers = self.ranks.run_or_errors(job, len(self.queries), payload=payload)
        failed = [answer for answer in answers if isinstance(answer, JobFailed)]
        if not failed:
            return answers
        assert len(failed) == len(answers), f"{len(failed)} of {len(answers)} ranks failed:\n{failed[0]}"
        # A rank whose own shard is valid raises Disagreement.
        first = next((one for one in failed if one.kinds[0] != "Disagreement"), failed[0])
        for one in failed:
            assert one.kinds[0] in (first.kinds[0], "Disagreement"), f"ranks fail differently:\n{first}\n{one}"
        kind = getattr(errors, first.kinds[0], None)
        if kind is None:
            raise first
        if kind is not errors.BackendRefused:
            raise kind(first.message)
        reasons = {one.message.split("Against it:", 1)[-1].split("\nHint:", 1)[0] for one in failed}
        assert len(reasons) == 1, f"ranks refuse for different reasons: {reasons}"
        listed = tuple(line.strip(" -") for line in reasons.pop().splitlines() if line.strip())
        raise errors.BackendRefused(first.message, listed)


class _Called(torch.autograd.Function):
    """A call whose graph stays on the ranks for the backward pass, which may run several times."""

    @staticmethod
    def forward(
        ctx: Any, attention: ShardedAttention, options: dict[str, Any], names: tuple[str, ...], *tensors: Tensor
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.attention, ctx.number = attention, next(_NUMBERS)
        ctx.tensors = {name: tensor.detach() for name, tensor in zip(names, tensors, strict=True)}
        requires_grad = tuple(name for name, wanted in zip(names, ctx.needs_input_grad[3:], strict=True) if wanted)
        reports = attention.run(
            forward, tensors=ctx.tensors, requires_grad=requires_grad, options=options, number=ctx.number
        )
        return tuple(concatenated(reports))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        reports = ctx.attention.run(backward, number=ctx.number, cotangents=cotangents)
        return None, None, None, *(ctx.attention.whole_gradient(reports, name, ctx.tensors) for name in ctx.tensors)


class _Recorded(torch.autograd.Function):
    """The result of the ranks with their gradients."""

    @staticmethod
    def forward(ctx: Any, answer: list[Tensor], grads: list[Tensor | None], *tensors: Tensor) -> Any:
        ctx.grads = grads
        return tuple(part.clone() for part in answer)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, None, *ctx.grads


def _tensors_of(query: Tensor, key: Tensor, value: Tensor, bias: Any, similarity: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a call by name, and its similarity without the sink, if that is a tensor."""
    sink = getattr(similarity, "sink", None)
    named = {"query": query, "key": key, "value": value, "bias": bias, "sink": sink}
    plain = _with_sink(similarity, None) if isinstance(sink, Tensor) else similarity
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}, plain


def _with_sink(similarity: Any, sink: Tensor | None) -> qkv.Softmax:
    return qkv.Softmax(similarity.scale, similarity.softcap, sink)


def has_rows(bias: Tensor, query: Tensor) -> bool:
    """Whether a bias has a row for each query; a single row counts as broadcast."""
    return bias.dim() > 1 and bias.shape[-2] == query.shape[-2] != 1


def concatenated(reports: list[dict[str, Any]]) -> list[Tensor]:
    """out, lse and weights of all ranks."""
    first = reports[0]["answer"]
    axes = [_rows_of(index, part, first[0]) for index, part in enumerate(first)]
    return [torch.cat([one["answer"][index] for one in reports], dim=axis) for index, axis in enumerate(axes)]


def _rows_of(index: int, part: Tensor, out: Tensor) -> int:
    """The axis of queries: lse has it last, out and weights before the last."""
    return -2 if index == 0 or part.dim() == out.dim() else -1


def forward(mesh: Any, payload: bytes) -> dict[str, Any]:
    """A job: this rank's call."""
    return _forward(mesh, pickle.loads(payload))


def backward(mesh: Any, payload: bytes) -> dict[str, Tensor | None]:
    """A job: this rank's gradients."""
    return _backward(mesh, pickle.loads(payload))


def sweep(mesh: Any, payload: bytes) -> dict[str, Any]:
    """A job: one call, forward and backward, with one strategy after another; the message where one refuses."""
    given, found = pickle.loads(payload), {}
    for split in given["splits"]:
        given["options"]["split"], given["number"] = split, split
        try:
            reports = _forward(mesh, given)
        except errors.BackendRefused as refusal:
            found[split] = str(refusal)
            continue
        out = reports["answer"][0]
        whole = out.new_empty((*out.shape[:-2], given["tensors"]["query"].shape[-2], out.shape[-1]))
        given["cotangents"] = [cotangent_like(whole)]
        found[split] = reports | {"grads": _backward(mesh, given)}
    return found


def _forward(mesh: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Slice the shards, run the call, keep its graph for the backward pass."""
    rank, (queries, keys, index) = mesh.get_local_rank(), given["sharding"]
    whole, leaves = given["tensors"], {}
    for name, tensor in whole.items():
        if name in ("query", "key", "value"):
            weights = queries if name == "query" else keys
            tensor = tensor.split(lengths(tensor.shape[-2], weights), dim=-2)[rank]
        elif name == "bias" and index == "own" and has_rows(tensor, whole["query"]):
            tensor = tensor.split(lengths(tensor.shape[-2], queries), dim=-2)[rank]
        leaves[name] = tensor.detach().requires_grad_(name in given["requires_grad"])
    options = {**given["options"], "bias": leaves.get("bias"), "mesh": mesh, "axis": "ranks"}
    if "sink" in leaves:
        options["similarity"] = _with_sink(options["similarity"], leaves["sink"])
    runs, traffic = RUNS.copy(), TRAFFIC.copy()
    with _conditions(given, rank):
        found = qkv.parallel.attention(leaves["query"], leaves["key"], leaves["value"], **options)
    found = found if isinstance(found, tuple) else (found,)
    wanted = (*leaves["query"].shape[:-1], leaves["value"].shape[-1])
    assert found[0].shape == wanted, f"out is {tuple(found[0].shape)} instead of {wanted}"
    assert found[0].requires_grad == bool(given["requires_grad"]), "out should require a gradient when an input does"
    if given["requires_grad"]:
        if len(_GRAPHS) > 8:
            _GRAPHS.pop(next(iter(_GRAPHS)))
        _GRAPHS[given["number"]] = list(found), {name: leaves[name] for name in given["requires_grad"]}
    return {
        "answer": [part.detach() for part in found],
        "runs": {name.removeprefix("parallel.") for name in RUNS - runs if name.startswith("parallel.")},
        "traffic": TRAFFIC - traffic,
    }


def _backward(mesh: Any, given: dict[str, Any]) -> dict[str, Tensor | None]:
    """The gradients of the rank's own leaves, for its own rows of the cotangents."""
    rank, (queries, _, _) = mesh.get_local_rank(), given["sharding"]
    answers, leaves = _GRAPHS[given["number"]]
    outputs, cotangents = [], []
    for index, cotangent in enumerate(given["cotangents"]):
        if cotangent is not None:
            axis = _rows_of(index, cotangent, answers[0])
            outputs.append(answers[index])
            cotangents.append(cotangent.split(lengths(cotangent.shape[axis], queries), dim=axis)[rank])
    with _conditions(given, rank):
        grads = torch.autograd.grad(outputs, list(leaves.values()), cotangents, retain_graph=True, allow_unused=True)
    return dict(zip(leaves, grads, strict=True))


def _conditions(given: dict[str, Any], rank: int) -> Any:
    torch.set_num_threads(given["threads"])
    if given["delay_seed"] is not None:
        return _DelayedMessages(random.Random(7 * given["delay_seed"] + rank))
    return poisoned_memory() if given["poison"] else nullcontext()


class _DelayedMessages:
    """Inside, every exchange of messages is delayed."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._exchange = draw, dist.batch_isend_irecv

    def __enter__(self) -> None:
        self._delay()
        dist.batch_isend_irecv = self._delayed

    def __exit__(self, *_: object) -> None:
        dist.batch_isend_irecv = self._exchange

    def _delay(self) -> None:
        time.sleep(0.005 * self._draw.random())

    def _delayed(self, *arguments: Any) -> Any:
        self._delay()
        return self._exchange(*arguments)
