"""Promises about bits: the same inputs give the same, however they lie in memory and whatever is beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..cases import CallCase
from ..poison import layouts, poisoned_memory
from .accuracy import close
from .registry import check
from .subject import Answer, Case, Subject, apart, ask, assert_same_bits, cotangent_like, gradient_noise, gradients


@check(6, wants=["lse"])
def layouts_give_the_same_bits(subject: Subject, case: Case) -> None:
    """Transposed, sliced, strided, expanded and misaligned tensors give what contiguous ones give."""
    call = case.call
    named = {name: dict(layouts(call.kwargs[name])) for name in ("query", "key", "value")}
    if call.built_bias is not None:
        named["bias"] = dict(layouts(call.built_bias)) if call.built_bias.dim() > 1 else {}
    plain = {name: tensor.contiguous() for name, tensor in call.kwargs.items() if name in named}
    wanted = ask(subject, case, lse=True, **plain)
    for layout in named["query"]:
        given: dict[str, Any] = {name: views.get(layout, plain[name]) for name, views in named.items()}
        found = ask(subject, case, lse=True, **given)
        for part in ("out", "lse"):
            assert_same_bits(getattr(found, part), getattr(wanted, part), f"{case.backend}: {part}, layout {layout}")


@check(6, wants=["lse"])
def repeats_give_the_same_bits(subject: Subject, case: Case) -> None:
    """The same call again gives the same bits, with NaN in all cache that is newly allocated."""
    first = ask(subject, case, lse=True)
    with poisoned_memory():
        second = ask(subject, case, lse=True)
    _same(case, second, first, "the second time, in memory full of NaN")


@check(6, wants=["grad"])
def gradients_repeat(subject: Subject, case: Case) -> None:
    """The backward pass reads no cache that it did not write, and gives the same bits again."""
    first = gradients(subject, case)
    with poisoned_memory():
        second = gradients(subject, case)
    for name, grad in second.items():
        assert_same_bits(grad, first[name], f"{case.backend}: gradient of {name} the second time")


@check(6, applies=lambda call: call.batch > 1, wants=["lse"])
def batch_companions_do_not_matter(subject: Subject, case: Case) -> None:
    """Other numbers in the other batch rows change nothing here: no bit, where the backend claims so."""
    call = case.call
    before = ask(subject, case, lse=True)
    other = {name: call.kwargs[name].clone() for name in ("query", "key", "value")}
    for tensor in other.values():
        tensor[1:] = 7 * tensor[1:] + 2
    after = ask(subject, case, lse=True, **other)
    mine = Answer(after.out[:1], None if after.lse is None else after.lse[:1])
    if subject.keeps(case.backend, "batch companions"):
        _same(case, mine, Answer(before.out[:1], None if before.lse is None else before.lse[:1]), "beside others")
    else:
        merged = Answer(
            torch.cat([mine.out, before.out[1:]]),
            None if mine.lse is None or before.lse is None else torch.cat([mine.lse, before.lse[1:]]),
        )
        close(subject, case, merged)


def _alone(call: CallCase) -> tuple[CallCase, ...]:
    return (call.but(batch=1),)


def _fits_any_batch(call: CallCase) -> bool:
    kinds = frozenset() if call.mask is None else call.mask.kinds()
    return call.batch > 1 and call.bias in (None, "row") and kinds <= {"and", "or", "causal", "window"}


@check(6, applies=_fits_any_batch, wants=["lse"], also=_alone)
def a_batch_row_alone_gives_the_same(subject: Subject, case: Case) -> None:
    """A batch row computed alone is what it is in the batch: bit for bit, where the backend claims so."""
    call = case.call
    first = {name: call.kwargs[name][:1] for name in ("query", "key", "value")}
    together, alone = ask(subject, case, lse=True), ask(subject, case, lse=True, **first)
    mine = Answer(together.out[:1], None if together.lse is None else together.lse[:1])
    if subject.keeps(case.backend, "batch companions"):
        _same(case, alone, mine, "alone")
    else:
        rest = None if together.lse is None or alone.lse is None else torch.cat([alone.lse, together.lse[1:]])
        close(subject, case, Answer(torch.cat([alone.out, together.out[1:]]), rest))


@check(6, wants=["lse"])
def threads_do_not_matter(subject: Subject, case: Case) -> None:
    """One thread gives what two give: bit for bit, where the backend claims so."""
    with _threads(2):
        two = ask(subject, case, lse=True)
    with _threads(1):
        one = ask(subject, case, lse=True)
    if subject.keeps(case.backend, "threads"):
        _same(case, one, two, "with one thread instead of two")
    else:
        close(subject, case, one)
        close(subject, case, two)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _same(case: Case, found: Answer, wanted: Answer, when: str) -> None:
    assert_same_bits(found.out, wanted.out, f"{case.backend}: out {when}")
    assert_same_bits(found.lse, wanted.lse, f"{case.backend}: lse {when}")


@check(6, applies=lambda call: call.attended.numel() > 0, wants=["grad"])
def gradients_do_not_depend_on_layout(subject: Subject, case: Case) -> None:
    """A cotangent that is expanded or transposed gives the gradients that a contiguous one gives, up to rounding."""
    out = ask(subject, case).out
    plain = cotangent_like(out)
    constant = torch.ones_like(out)
    for layout, wanted, found in (
        ("transposed", plain, plain.transpose(-1, -2).contiguous().transpose(-1, -2)),
        ("expanded", constant, constant.new_ones(()).expand(out.shape)),
    ):
        before, after = gradients(subject, case, wanted), gradients(subject, case, found)
        for name, grad in after.items():
            off = apart(grad, before[name])
            allowed = 64 * torch.finfo(grad.dtype).eps * float(before[name].abs().max())
            allowed = max(allowed, gradient_noise(case.call, grad.dtype))
            assert off <= allowed, f"{case.backend}: gradient of {name}, cotangent {layout}, moved by {off:.3g}"
