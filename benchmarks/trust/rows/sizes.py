"""Rows 37 and 38: more rows than 16 bits count, offsets beyond 31 bits, sizes whose product overflows 63."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..inputs import by_way, problem, right
from ..subjects import Subject
from ..verdict import NotOffered, close, each, refused, same_bits
from . import row


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """Limit the address space of this process to `more` bytes than now."""
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115 - closed by the count of references
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _many_queries(subject: Subject) -> str:
    count = 2**16 + 1
    heads = {"heads_kv": 1} if subject.grouped else {"heads_kv": 2}
    query, key, value = problem(subject, batch=1, heads_q=2, len_q=count, **heads)
    rows = torch.tensor([0, 1, 32767, 32768, 65534, 65535, 65536])
    want = right((query[:, :, rows], key, value)).out
    return by_way(subject, lambda way: close(subject.attend(way, query, key, value)[:, :, rows], want, torch.float32))


def _far_apart(subject: Subject) -> str:
    """Three items, 2^30 numbers apart: the last starts at 2^31, which only 64-bit offsets reach."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    sparse = torch.frombuffer(mmap.mmap(-1, 4 * (2**31 + 2**22), flags=flags), dtype=torch.float32)

    def far(tensor: Tensor, axis: int, start: int) -> Tensor:
        strides = list(tensor.stride())
        strides[axis] = 2**30
        return sparse.as_strided(tensor.shape, strides, start).copy_(tensor)

    def probe(way: str, axis: int) -> None:
        sizes = {"batch": 1, "heads_q": 1, "heads_kv": 1, "len_q": 2, "len_k": 2}
        three = {0: ("batch",), 1: ("heads_q", "heads_kv"), 2: ("len_q", "len_k")}[axis]
        near = problem(subject, **sizes | dict.fromkeys(three, 3))
        want = subject.attend(way, *near)
        close(want, right(near).out, torch.float32)
        apart = [far(tensor, axis, 65536 * at) for at, tensor in enumerate(near)]
        same_bits(subject.attend(way, *apart), want, f"2^30 apart along axis {axis}")

    return by_way(subject, lambda way: each({f"axis {axis}": lambda axis=axis: probe(way, axis) for axis in range(3)}))


@row(37, "2^16 + 1 queries; offsets beyond 2^31")
def beyond_31_bits(subject: Subject) -> str:
    each({"queries": lambda: _many_queries(subject), "offsets": lambda: _far_apart(subject)})
    return "right beyond 16 bits of rows and 31 bits of offsets"


@row(38, "sizes whose product overflows")
def sizes_that_overflow(subject: Subject) -> str:
    if not subject.takes_strides:
        raise NotOffered("such an array cannot be made for it")
    shapes = {
        "scores": ((1, 1, 2**40, 1), (1, 1, 2**40, 1), (1, 1, 2**40, 1)),
        "result": ((1, 1, 2**62, 1), (1, 1, 1, 1), (1, 1, 1, 4)),
        "batch": ((2**20, 2**20, 2**20, 1), (2**20, 2**20, 16, 1), (2**20, 2**20, 16, 1)),
    }
    if not subject.own_value_width:
        del shapes["result"]

    def probe(name: str) -> str:
        tensors = [torch.ones(1, 1, 1, 1).expand(shape) for shape in shapes[name]]
        return by_way(subject, lambda way: refused(lambda: subject.attend(way, *tensors), subject.error))

    with address_space(4 * 10**9):
        return each({name: lambda name=name: probe(name) for name in shapes})
