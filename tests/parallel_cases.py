"""`qkv.parallel.attention` seen from outside: a callable of whole tensors that really runs on several processes.

`Spread` cuts a call's tensors into shards, has every rank make its own call, and puts the answers together again, with
gradients: the contract that holds for `qkv.attention` can then be held against it as it stands.
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
from ranks import Crew, JobFailed

SPLITS = ("auto", "ring", "gather", "heads", "scan", "best")
# What may run a rank's part of a call.
FORMS_OF = {
    "softmax": ("reference", "sdpa", "native"),
    "argmax": ("reference", "argmax"),
    "polynomial": ("reference", "sdpa", "linear"),
    "feature_map": ("reference", "sdpa", "linear"),
    "similarity": ("reference", "sdpa"),
}
# Errors that all ranks raise together, so that none is left waiting.
_ORDERLY = {"QkvError", "AssertionError"}
_NUMBERS = count()
# On a rank: answers with a graph, and their leaves, that a backward pass may still come for.
_HELD: dict[Any, tuple[list[Tensor], dict[str, Tensor]]] = {}


def bound_of(kind: str) -> dict[torch.dtype, float]:
    """The loosest bound among the backends that may run a rank's part. In half precision one ulp more: partial answers
    come rounded from a backend, and are rounded once again when they have been merged."""
    bounds = [BACKENDS[name].bound for name in FORMS_OF[kind]]
    half = (torch.bfloat16, torch.float16)
    return {
        dtype: max(bound.get(dtype, 0.0) for bound in bounds) + (dtype in half)
        for dtype in (torch.float64, torch.float32, *half)
    }


def lengths(total: int, weights: tuple[int, ...]) -> list[int]:
    """`total` positions over ranks in proportion to weights.

    >>> lengths(7, (1, 0, 2)), lengths(2, (1, 1, 1, 1))
    ([2, 0, 5], [0, 1, 0, 1])
    """
    edges = [total * part // sum(weights) for part in accumulate(weights, initial=0)]
    return [stop - start for start, stop in pairwise(edges)]


class Ranks:
    """A crew that is replaced after a job that left its ranks waiting for each other."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def tried(self, job: Callable[..., Any], ranks: int, **options: Any) -> list[Any]:
        if self._crew is None or not self._crew.alive:
            self._crew = Crew(timeout=10.0)
        try:
            answers = self._crew.tried(job, ranks, **options)
        except BaseException:
            self.close()
            raise
        if any(isinstance(answer, JobFailed) and not _ORDERLY & {*answer.kinds} for answer in answers):
            self.close()
        return answers

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None


@dataclass(frozen=True)
class Spread:
    """queries, keys: how the positions are spread over the ranks, as weights. bias: whether a rank is given its "own"
    rows or the "whole". naps: a seed for the ranks to come late to calls and messages, each in its own way."""

    ranks: Ranks = field(repr=False)
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    bias: str = "own"
    naps: int | None = None

    def subject(self, kind: str) -> Subject:
        """For the contract: backends are splits, held to the bounds of what may run a call of this kind."""
        return Subject(self.attend, dict.fromkeys(SPLITS, Published(bound_of(kind))))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, backend: str = "auto", **options: Any) -> Any:
        """As `qkv.attention`, with the split's name as backend."""
        tensors, similarity = _tensors_of(query, key, value, options.pop("bias", None), options.pop("similarity", None))
        options |= {"similarity": similarity, "split": backend}
        found = _Called.apply(self, options, tuple(tensors), *tensors.values())
        return found[0] if len(found) == 1 else found

    def tell(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> list[dict[str, Any]]:
        """What each rank has to tell of a call without gradients: its "answer", "runs" and "traffic"."""
        tensors, similarity = _tensors_of(query, key, value, options.pop("bias", None), options.pop("similarity", None))
        return self.run(forward, tensors=tensors, learns=(), options={**options, "similarity": similarity})

    def sweep(self, call: CallCase, splits: tuple[str, ...] = SPLITS) -> dict[str, Subject | str]:
        """A call by several splits, forward with lse and backward, in one job: for each a subject that answers this one
        call as the ranks did, or what they said against it."""
        tensors, similarity = _tensors_of(*call.tensors, call.built_bias, call.built_similarity)
        options = {"similarity": similarity, "mask": call.built_mask, "return_lse": call.kind == "softmax"}
        told = self.run(sweep, tensors=tensors, learns=tuple(tensors), options=options, splits=splits)
        return {split: self._replay(call, split, [one[split] for one in told], tensors) for split in splits}

    def told_gradients(self, call: CallCase, split: str) -> list[dict[str, Tensor | None]]:
        """The gradients that each rank has for what it was given."""
        tensors, similarity = _tensors_of(*call.tensors, call.built_bias, call.built_similarity)
        options = {"similarity": similarity, "mask": call.built_mask}
        told = self.run(sweep, tensors=tensors, learns=tuple(tensors), options=options, splits=(split,))
        return [one[split]["grads"] for one in told]

    def _replay(self, call: CallCase, split: str, told: list[Any], tensors: dict[str, Tensor]) -> Subject | str:
        if any(isinstance(one, str) for one in told):
            assert len({str(one) for one in told}) == 1, f"{split}: ranks refuse differently: {told}"
            return told[0]
        answer = joined(told)
        half = (
            call.torch_dtype in (torch.bfloat16, torch.float16) and call.values == "gaussian" and call.attended.numel()
        )
        right = oracle_gradients(call) if half else {}
        parts = [one["grads"] for one in told]
        grads = [self.joined_gradient(parts, name, tensors, right.get(name)) for name in tensors]

        def attend(query: Tensor, key: Tensor, value: Tensor, *, return_lse: bool, **options: Any) -> Any:
            inputs, _ = _tensors_of(query, key, value, options.get("bias"), options["similarity"])
            found = _Recorded.apply(answer, grads, *inputs.values())
            return found if return_lse else found[0]

        return Subject(attend, dict.fromkeys(SPLITS, Published(bound_of(call.kind))))

    def joined_gradient(
        self, told: list[dict[str, Any]], name: str, tensors: dict[str, Tensor], right: Tensor | None = None
    ) -> Tensor | None:
        """The whole gradient of what the ranks hold parts of; what only some ranks lack counts as 0. right: where it is
        known, a sum of parts is taken to be as close to it as the rounding of each part explains."""
        parts: list[Any] = [one.get(name) for one in told]
        if all(part is None for part in parts):
            return None
        own_rows = name == "bias" and self.bias == "own" and has_rows(tensors["bias"], tensors["query"])
        if name in ("query", "key", "value") or own_rows:
            rows = lengths(tensors[name].shape[-2], self.keys if name in ("key", "value") else self.queries)
            nothing = (torch.zeros_like(part) for part in tensors[name].split(rows, dim=-2))
            return torch.cat(
                [zeros if part is None else part for part, zeros in zip(parts, nothing, strict=True)], dim=-2
            )
        # What every rank holds whole gets each rank's part, rounded to its dtype before anybody can add them up.
        held = torch.stack([part.double() for part in parts if part is not None])
        total, slack = held.sum(0), torch.finfo(tensors[name].dtype).eps / 2 * held.abs().sum(0)
        return total if right is None else total + (right - total).clamp(-slack, slack)

    def run(self, job: Callable[..., Any], **given: Any) -> list[Any]:
        """The job's answers. An error is raised again when every rank has one: a rank must never fail alone."""
        # A check that poisons this process's cache means the ranks'.
        poison = bool(torch.empty(61).isnan().all())
        place = {"place": (self.queries, self.keys, self.bias), "naps": self.naps, "poison": poison}
        payload = pickle.dumps({**given, **place, "threads": torch.get_num_threads()})
        answers = self.ranks.tried(job, len(self.queries), payload=payload)
        failed = [answer for answer in answers if isinstance(answer, JobFailed)]
        if not failed:
            return answers
        assert len(failed) == len(answers), f"{len(failed)} of {len(answers)} ranks failed:\n{failed[0]}"
        # A rank that finds nothing wrong with its own shard is told by the others.
        first = next((one for one in failed if one.kinds[0] != "Disagreement"), failed[0])
        for one in failed:
            assert one.kinds[0] in (first.kinds[0], "Disagreement"), f"ranks fail differently:\n{first}\n{one}"
        kind = getattr(errors, first.kinds[0], None)
        if kind is None:
            raise first
        if kind is not errors.BackendRefused:
            raise kind(first.message)
        said = {one.message.split("Against it:", 1)[-1].split("\nHint:", 1)[0] for one in failed}
        assert len(said) == 1, f"ranks refuse for different reasons: {said}"
        reasons = tuple(line.strip(" -") for line in said.pop().splitlines() if line.strip())
        raise errors.BackendRefused(first.message, reasons)


class _Called(torch.autograd.Function):
    """A call whose graph stays on the ranks until the backward pass, which may come several times."""

    @staticmethod
    def forward(ctx: Any, spread: Spread, options: dict[str, Any], names: tuple[str, ...], *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.spread, ctx.number = spread, next(_NUMBERS)
        ctx.tensors = {name: tensor.detach() for name, tensor in zip(names, tensors, strict=True)}
        learns = tuple(name for name, wanted in zip(names, ctx.needs_input_grad[3:], strict=True) if wanted)
        told = spread.run(forward, tensors=ctx.tensors, learns=learns, options=options, number=ctx.number)
        return tuple(joined(told))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        told = ctx.spread.run(backward, number=ctx.number, cotangents=cotangents)
        return None, None, None, *(ctx.spread.joined_gradient(told, name, ctx.tensors) for name in ctx.tensors)


class _Recorded(torch.autograd.Function):
    """An answer with its gradients, as they came from the ranks."""

    @staticmethod
    def forward(ctx: Any, answer: list[Tensor], grads: list[Tensor | None], *tensors: Tensor) -> Any:
        ctx.grads = grads
        return tuple(part.clone() for part in answer)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, None, *ctx.grads


def _tensors_of(query: Tensor, key: Tensor, value: Tensor, bias: Any, similarity: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a call by name, and its similarity without a sink that is one of them."""
    sink = getattr(similarity, "sink", None)
    named = {"query": query, "key": key, "value": value, "bias": bias, "sink": sink}
    plain = _with_sink(similarity, None) if isinstance(sink, Tensor) else similarity
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}, plain


def _with_sink(similarity: Any, sink: Tensor | None) -> qkv.Softmax:
    return qkv.Softmax(similarity.scale, similarity.softcap, sink)


def has_rows(bias: Tensor, query: Tensor) -> bool:
    """Whether a bias has a row for each query; where there is one query, the row counts as one for all."""
    return bias.dim() > 1 and bias.shape[-2] == query.shape[-2] != 1


def joined(told: list[dict[str, Any]]) -> list[Tensor]:
    """The whole of out, lse and weights from what the ranks tell."""
    first = told[0]["answer"]
    axes = [_rows_of(place, part, first[0]) for place, part in enumerate(first)]
    return [torch.cat([one["answer"][place] for one in told], dim=axis) for place, axis in enumerate(axes)]


def _rows_of(place: int, part: Tensor, out: Tensor) -> int:
    """The axis of queries: lse has it last, out and weights before the last."""
    return -2 if place == 0 or part.dim() == out.dim() else -1


def forward(mesh: Any, payload: bytes) -> dict[str, Any]:
    """A job: this rank's call."""
    return _forward(mesh, pickle.loads(payload))


def backward(mesh: Any, payload: bytes) -> dict[str, Tensor | None]:
    """A job: this rank's gradients."""
    return _backward(mesh, pickle.loads(payload))


def sweep(mesh: Any, payload: bytes) -> dict[str, Any]:
    """A job: one call, forward and backward, by one split after the other; a message where one refuses."""
    given, found = pickle.loads(payload), {}
    for split in given["splits"]:
        given["options"]["split"], given["number"] = split, split
        try:
            told = _forward(mesh, given)
        except errors.BackendRefused as refusal:
            found[split] = str(refusal)
            continue
        out = told["answer"][0]
        whole = out.new_empty((*out.shape[:-2], given["tensors"]["query"].shape[-2], out.shape[-1]))
        given["cotangents"] = [cotangent_like(whole)]
        found[split] = told | {"grads": _backward(mesh, given)}
    return found


def _forward(mesh: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Cut the shards, make the call, keep its graph for the backward pass."""
    rank, (queries, keys, place) = mesh.get_local_rank(), given["place"]
    whole, leaves = given["tensors"], {}
    for name, tensor in whole.items():
        if name in ("query", "key", "value"):
            weights = queries if name == "query" else keys
            tensor = tensor.split(lengths(tensor.shape[-2], weights), dim=-2)[rank]
        elif name == "bias" and place == "own" and has_rows(tensor, whole["query"]):
            tensor = tensor.split(lengths(tensor.shape[-2], queries), dim=-2)[rank]
        leaves[name] = tensor.detach().requires_grad_(name in given["learns"])
    options = {**given["options"], "bias": leaves.get("bias"), "mesh": mesh, "axis": "ranks"}
    if "sink" in leaves:
        options["similarity"] = _with_sink(options["similarity"], leaves["sink"])
    runs, traffic = RUNS.copy(), TRAFFIC.copy()
    with _as_told(given, rank):
        found = qkv.parallel.attention(leaves["query"], leaves["key"], leaves["value"], **options)
    found = found if isinstance(found, tuple) else (found,)
    wanted = (*leaves["query"].shape[:-1], leaves["value"].shape[-1])
    assert found[0].shape == wanted, f"out is {tuple(found[0].shape)} instead of {wanted}"
    assert found[0].requires_grad == bool(given["learns"]), "out should require a gradient when an input does"
    if given["learns"]:
        if len(_HELD) > 8:
            _HELD.pop(next(iter(_HELD)))
        _HELD[given["number"]] = list(found), {name: leaves[name] for name in given["learns"]}
    return {
        "answer": [part.detach() for part in found],
        "runs": {name.removeprefix("parallel.") for name in RUNS - runs if name.startswith("parallel.")},
        "traffic": TRAFFIC - traffic,
    }


def _backward(mesh: Any, given: dict[str, Any]) -> dict[str, Tensor | None]:
    """The gradients of the rank's own leaves, for its own rows of the cotangents."""
    rank, (queries, _, _) = mesh.get_local_rank(), given["place"]
    answers, leaves = _HELD[given["number"]]
    asked, cotangents = [], []
    for place, cotangent in enumerate(given["cotangents"]):
        if cotangent is not None:
            axis = _rows_of(place, cotangent, answers[0])
            asked.append(answers[place])
            cotangents.append(cotangent.split(lengths(cotangent.shape[axis], queries), dim=axis)[rank])
    with _as_told(given, rank):
        grads = torch.autograd.grad(asked, list(leaves.values()), cotangents, retain_graph=True, allow_unused=True)
    return dict(zip(leaves, grads, strict=True))


def _as_told(given: dict[str, Any], rank: int) -> Any:
    torch.set_num_threads(given["threads"])
    if given["naps"] is not None:
        return _Late(random.Random(7 * given["naps"] + rank))
    return poisoned_memory() if given["poison"] else nullcontext()


class _Late:
    """Inside, torch's exchange of messages comes after a nap."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._exchange = draw, dist.batch_isend_irecv

    def __enter__(self) -> None:
        self._nap()
        dist.batch_isend_irecv = self._late

    def __exit__(self, *_: object) -> None:
        dist.batch_isend_irecv = self._exchange

    def _nap(self) -> None:
        time.sleep(0.005 * self._draw.random())

    def _late(self, *arguments: Any) -> Any:
        self._nap()
        return self._exchange(*arguments)
