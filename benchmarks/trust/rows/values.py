"""Rows 1 to 10: NaN, infinity and very large numbers."""

from __future__ import annotations

from math import inf, nan

import torch

from ..inputs import answers, by_way, check_gradients, problem, right, right_gradients
from ..subjects import Subject
from ..verdict import NotOffered, Wrong, close, each, zeros
from . import row


def _keep(subject: Subject) -> torch.Tensor:
    keep = torch.ones(2, 6, 5, 7, dtype=torch.bool)
    keep[..., 3] = False
    keep[1, :, 2, 4:] = False
    return keep


def _empty_row(subject: Subject, **option: torch.Tensor) -> str:
    """Row 2 of batch 0 sees nothing, in all heads."""
    tensors = problem(subject)

    def probe(way: str) -> None:
        out = subject.attend(way, *tensors, **option)
        zeros(out[0, :, 2], "the row")
        close(out, right(tensors, **option).out, torch.float32, "the rest")
        if subject.has_gradients:
            got = check_gradients(subject, tensors, right_gradients(tensors, **option), way, **option)
            zeros(got[1][0, :, 2], "dq of the row")
        try:
            lse = subject.lse(way, *tensors, **option)
        except NotOffered:
            return
        if not (lse[0, :, 2] == -inf).all():
            raise Wrong("its log-sum-exp is not -inf")

    by_way(subject, probe)
    return "the row is exactly 0, and nothing else is touched"


@row(1, "mask row all False")
def mask_row_all_false(subject: Subject) -> str:
    keep = _keep(subject)
    keep[0, :, 2] = False
    return _empty_row(subject, keep=keep)


@row(2, "bias row all -inf")
def bias_row_all_minus_infinity(subject: Subject) -> str:
    bias = torch.zeros(2, 6, 5, 7)
    bias[0, :, 2] = -inf
    return _empty_row(subject, bias=bias)


@row(3, "row of finite logits, all -1e5")
def finite_logits_far_below_zero(subject: Subject) -> str:
    tensors = problem(subject)
    bias = torch.zeros(2, 6, 5, 7)
    bias[1, :, 2] = -1e5
    query, key, value = problem(subject, seed=1)
    by_query = (query.abs() + 1) * 1e4, -(key.abs() + 1).mean(-1, keepdim=True).expand_as(key).contiguous(), value
    each(
        {
            "by bias": lambda: answers(subject, tensors, torch.float32, want=_shifted(tensors, bias), bias=bias),
            "by query and key": lambda: _one_hot_or_mean(subject, by_query),
        }
    )
    return "an ordinary softmax"


def _shifted(tensors: tuple[torch.Tensor, ...], bias: torch.Tensor) -> torch.Tensor:
    """float32 sums -1e5 and a score with a step of 1/128: the right answer is that of the rounded sums."""
    query, key, _ = tensors
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(-1, -2) / query.shape[-1] ** 0.5
    rounded = (scores + bias) - bias
    return right(tensors, bias=(rounded - scores).double()).out


def _one_hot_or_mean(subject: Subject, tensors: tuple[torch.Tensor, ...]) -> str:
    """Keys whose components are equal have scores far apart: the largest gets all the weight."""
    return answers(subject, tensors, torch.float32)


@row(4, "NaN, ±inf at masked keys and values")
def poison_behind_the_mask(subject: Subject) -> str:
    query, key, value = problem(subject)
    keep = _keep(subject)
    wanted = right_gradients((query, key, value), keep=keep)

    def probe(way: str, poison: float, where: str) -> None:
        k, v = key.clone(), value.clone()
        for name, tensor in (("key", k), ("value", v)):
            if name in where:
                tensor[:, :, 3] = poison
        close(subject.attend(way, query, k, v, keep=keep), wanted[0], torch.float32)
        if subject.has_gradients:
            check_gradients(subject, (query, k, v), wanted, way, keep=keep)

    cases = {
        f"{way}, {poison} in the {where}": lambda way=way, poison=poison, where=where: probe(way, poison, where)
        for way in subject.ways
        for poison, where in ((nan, "key"), (inf, "key"), (nan, "value"), (-inf, "key and value"))
    }
    each(cases)
    return "no influence, forward and backward" if subject.has_gradients else "no influence"


@row(5, "NaN in one query")
def nan_in_a_query(subject: Subject) -> str:
    query, key, value = problem(subject)
    query[1, 4, 3] = nan
    want = right((query, key, value)).out
    if not subject.grouped:  # one projection makes all heads of a token: all of them are that query
        want[1, :, 3] = nan
    answers(subject, (query, key, value), torch.float32, want=want)
    return "NaN in that row only"


@row(6, "NaN in an attended key")
def nan_in_an_attended_key(subject: Subject) -> str:
    query, key, value = problem(subject)
    key[0, :, 2] = nan
    keep = torch.ones(2, 6, 5, 7, dtype=torch.bool)
    keep[0, :, 1, 2] = False
    keep[0, :, 3, 2] = False
    answers(subject, (query, key, value), torch.float32, keep=keep)
    return "NaN in exactly the rows that may attend it"


@row(7, "one logit of +inf")
def infinite_logit(subject: Subject) -> str:
    tensors = problem(subject)
    bias = torch.zeros(2, 6, 5, 7)
    bias[0, :, 1, 4] = inf
    want, found = right(tensors, bias=bias).out, set()
    value = tensors[2].repeat_interleave(6 // tensors[2].shape[1], 1)

    def probe(way: str) -> None:
        out = subject.attend(way, *tensors, bias=bias)
        seen = out[0, :, 1]
        if seen.isnan().all():
            found.add("a row of NaN")
        elif torch.equal(seen, value[0, :, 4]):
            found.add("that key's value")
        else:
            raise Wrong("neither NaN nor the value of that key")
        out[0, :, 1], rest = 0.0, want.clone()
        rest[0, :, 1] = 0.0
        close(out, rest, torch.float32, "the rest")

    by_way(subject, probe)
    if subject.name == "qkv" and found != {"a row of NaN"}:
        raise Wrong(f"documented as a row of NaN in every backend, seen: {found}")
    return " and ".join(sorted(found))


@row(8, "float16 products beyond 65504")
def products_beyond_float16(subject: Subject) -> str:
    if torch.float16 not in subject.dtypes:
        raise NotOffered("no float16")
    query, key, value = problem(subject, torch.float16)
    # Every key points its own way, 200 long: scores of up to 14,000 · √8, made of products beyond 65504.
    key = torch.zeros_like(key)
    for at in range(7):
        key[:, :, at, at] = 300.0
    query = (query.sign() * 250).to(torch.float16)
    tensors = query, key, value
    # Scores of 250 · 300 / √8 do fit; their unscaled products do not.
    return answers(subject, tensors, torch.float16)


@row(9, "bfloat16 133120 everywhere")
def large_numbers_everywhere(subject: Subject) -> str:
    if torch.bfloat16 not in subject.dtypes:
        raise NotOffered("no bfloat16")
    tensors = tuple(torch.full_like(tensor, 133120.0) for tensor in problem(subject, torch.bfloat16))
    return answers(subject, tensors, torch.bfloat16)


@row(10, "softcap of a score of 1e6")
def softcap_of_large_scores(subject: Subject) -> str:
    query, key, value = problem(subject)
    return answers(subject, (query * 1e3, key.sign() * 1e3, value), torch.float32, softcap=20.0)
