"""Rows 11, 12 and 27 to 31: causality, shapes and dtypes of masks, windows, lengths."""

from __future__ import annotations

from collections.abc import Callable

import torch

import qkv

from ..inputs import answers, by_way, check_gradients, problem, right, right_gradients
from ..subjects import Subject
from ..verdict import NotOffered, Wrong, each, refused
from . import row


def _all_refuse(subject: Subject, tensors: tuple[torch.Tensor, ...], make: Callable[[], dict]) -> str:
    return by_way(subject, lambda way: refused(lambda: subject.attend(way, *tensors, **make()), subject.error))


@row(11, "causal, 3 queries on 7 keys, no offset")
def causal_without_an_offset(subject: Subject) -> str:
    seen = _all_refuse(subject, problem(subject, len_q=3), lambda: {"causal": True})
    if subject.name == "qkv" and not ("offset=0" in (text := _whole(subject)) and "offset=4" in text):
        raise Wrong("the refusal does not name both readings")
    return seen


def _whole(subject: Subject) -> str:
    try:
        subject.attend("auto", *problem(subject, len_q=3), causal=True)
    except subject.error as error:
        return str(error)
    return ""


@row(12, "causal bottom-right, more queries than keys")
def more_queries_than_keys(subject: Subject) -> str:
    tensors = problem(subject, len_q=7, len_k=4)
    keep = torch.ones(7, 4, dtype=torch.bool).tril(-3).expand(2, 6, 7, 4)
    want = right(tensors, keep=keep).out

    def corner() -> str:
        return answers(subject, tensors, torch.float32, want=want, corner=-3)

    by_mask = lambda: answers(subject, tensors, torch.float32, want=want, keep=keep)  # noqa: E731
    return each({"its own bottom-right mask": corner, "a boolean mask": by_mask})


@row(27, "mask that does not broadcast, or widens")
def masks_that_do_not_fit(subject: Subject) -> str:
    tensors, one = problem(subject), problem(subject, batch=1)
    ones = lambda *shape: {"keep": torch.ones(shape, dtype=torch.bool)}  # noqa: E731
    cases: dict[str, Callable[[], str | None]] = {
        "of 6 keys for 7": lambda: _all_refuse(subject, tensors, lambda: ones(2, 6, 5, 6)),
        "of 4 queries for 5": lambda: _all_refuse(subject, tensors, lambda: ones(2, 1, 4, 7)),
        "of batch 3 for 2": lambda: _all_refuse(subject, tensors, lambda: ones(3, 1, 5, 7)),
    }
    if subject.grouped:  # the adapter of a layer expands masks
        cases["of batch 3 for 1"] = lambda: _all_refuse(subject, one, lambda: ones(3, 1, 5, 7))
        cases["of rank 3, batch = heads"] = lambda: _aligned(subject)
    return each(cases)


def _aligned(subject: Subject) -> str:
    """(2, 5, 7) with two sequences and two heads: the last three axes, as documented, or refused."""
    tensors = problem(subject, heads_q=2, heads_kv=2)
    keep = torch.rand(2, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.4
    keep[..., 0] = True
    want = right(tensors, keep=keep[None].expand(2, 2, 5, 7)).out

    def probe(way: str) -> None:
        try:
            out = subject.attend(way, *tensors, keep=keep)
        except Exception:
            if subject.name == "qkv":  # its documentation defines how it is read
                raise
            return
        if not torch.allclose(out.double(), want, atol=1e-4):
            raise Wrong("read as something other than the last three axes")

    return by_way(subject, probe)


@row(28, "masks of uint8, of 0 and 1 as floats")
def masks_that_are_not_boolean(subject: Subject) -> str:
    tensors = problem(subject)
    cases: dict[str, Callable[[], str | None]] = {
        "uint8": lambda: _all_refuse(subject, tensors, lambda: {"keep": torch.ones(2, 6, 5, 7, dtype=torch.uint8)})
    }
    if subject.name in ("qkv", "jax.nn"):  # in the others a float mask is added to scores, and 0 and 1 are valid
        cases["float"] = lambda: _all_refuse(subject, tensors, lambda: {"keep": torch.ones(2, 6, 5, 7)})
    return each(cases)


@row(29, "bias that learns; mask that would")
def a_bias_check_gradients(subject: Subject) -> str:
    tensors = (*problem(subject), torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(4)))
    wanted = right_gradients(tensors)

    def probe(way: str) -> None:
        check_gradients(subject, tensors, wanted, way)

    by_way(subject, probe)
    if subject.name == "qkv":
        mask = lambda: qkv.Dense(torch.ones(5, 7, requires_grad=True))  # noqa: E731
        refused(lambda: qkv.attention(*tensors[:3], mask=mask()), subject.error)
        return "the bias has the oracle's gradient; a mask that requires one is refused"
    return "the bias has the oracle's gradient"


@row(30, "window sides 0, negative, beyond the keys")
def windows(subject: Subject) -> str:
    tensors = problem(subject, len_q=7)
    one = torch.eye(7, dtype=torch.bool).expand(2, 6, 7, 7)
    causal = torch.ones(7, 7, dtype=torch.bool).tril().expand(2, 6, 7, 7)
    everything = right(tensors, keep=causal if subject.name == "transformers" else None).out
    right_side = 0 if subject.name == "transformers" else 10**6  # its windows are causal
    return each(
        {
            "0": lambda: answers(subject, tensors, torch.float32, want=right(tensors, keep=one).out, window=(0, 0)),
            "beyond": lambda: answers(subject, tensors, torch.float32, want=everything, window=(10**6, right_side)),
            "negative": lambda: _all_refuse(subject, tensors, lambda: {"window": (-2, 0)}),
        }
    )


@row(31, "lengths negative, too large, float, too few")
def lengths_that_cannot_be(subject: Subject) -> str:
    tensors = problem(subject)
    if subject.name == "torch MultiheadAttention":
        short = lambda: {"padding": torch.zeros(2, 6, dtype=torch.bool)}  # noqa: E731
        return _all_refuse(subject, tensors, short)
    fitting = torch.arange(7) < torch.tensor([4, 7])[:, None, None, None]
    want = right(tensors, keep=fitting.expand(2, 6, 5, 7)).out
    bad = {"negative": [-1, 4], "beyond the keys": [8, 4], "float": [2.0, 4.0], "too few": [4], "too many": [4, 4, 4]}
    cases: dict[str, Callable[[], str | None]] = {
        "sound": lambda: answers(subject, tensors, torch.float32, want=want, lengths=torch.tensor([4, 7]))
    }
    for name, lengths in bad.items():
        cases[name] = lambda given=lengths: _all_refuse(subject, tensors, lambda: {"lengths": torch.tensor(given)})
    try:
        return each(cases)
    except NotOffered:
        raise NotOffered("takes no lengths") from None
