"""Rows 37 and 38 of the table of bad inputs: more than 2^16 rows, more than 2^31 numbers, more than 2^63."""

import json
import mmap
import resource
import time

import pytest
import torch

import qkv
from qkv import errors
from tests.helpers.faults_reference import by_way, close, in_separate_process, same_bits


@pytest.mark.slow
@by_way
def test_row_37_more_than_65536_queries(way):
    count = 2**16 + 1
    sizes = {"batch": 1, "heads_q": 2, "heads_kv": 1, "len_q": count, "width": 5, "width_v": 3}
    q, k, v = way.problem(torch.float32, **sizes)
    rows = torch.tensor([0, 1, 32767, 32768, 65529, 65530, 65531, 65534, 65535, 65536])
    out, _ = way.attend(q, k, v)
    close(out[:, :, rows], way.reference(q[:, :, rows], k, v).out, torch.float32)
    keep = torch.arange(7) <= rows[:, None] + 7 - count
    out, _ = way.attend(q, k, v, mask=qkv.Causal(offset=7 - count))
    close(out[:, :, rows], way.reference(q[:, :, rows], k, v, keep=keep).out, torch.float32)
    assert not out[:, :, :65530].any()


@pytest.mark.slow
@by_way
def test_row_37_more_than_65536_sequences(way):
    sizes = {"heads_q": 2, "heads_kv": 1, "len_q": 1, "len_k": 3, "width": 5, "width_v": 2}
    q, k, v = way.problem(torch.float32, batch=2**16 + 1, **sizes)
    rows = torch.tensor([0, 1, 32767, 32768, 65534, 65535, 65536])
    out, _ = way.attend(q, k, v)
    close(out[rows], way.reference(q[rows], k[rows], v[rows]).out, torch.float32)


@pytest.fixture(scope="module")
def desert():
    """More than 2^31 float32 numbers of address space; only the pages that are written exist."""
    size = 4 * (2**31 + 2**22)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.float32)


@by_way
@pytest.mark.parametrize("axis", [0, 1, 2], ids=("batch", "head", "length"))
def test_row_37_offsets_beyond_31_bits(way, desert, axis):
    """Three items, 2^30 numbers apart: the last begins at 2^31 and is found only by 64-bit offsets."""
    sizes = {"batch": 1, "heads_q": 1, "heads_kv": 1, "len_q": 2, "len_k": 2, "width": 5, "width_v": 3}
    three = {0: ("batch",), 1: ("heads_q", "heads_kv"), 2: ("len_q", "len_k")}[axis]
    near = way.problem(torch.float32, **sizes | dict.fromkeys(three, 3))
    far = []
    for number, tensor in enumerate(near):
        strides = list(tensor.stride())
        strides[axis] = 2**30
        far.append(desert.as_strided(tensor.shape, strides, 4096 * number).copy_(tensor))
    want = way.attend(*near)
    close(want[0], way.reference(*near).out, torch.float32)
    for chosen in ((0,), (1,), (2,), (0, 1, 2)):
        got = way.attend(*(far[at] if at in chosen else near[at] for at in range(3)))
        same_bits(got[0], want[0])
        if way.softmax:
            same_bits(got[1], want[1])


@by_way
def test_row_37_mask_offsets_beyond_31_bits(way, desert):
    q, k, v = way.problem(torch.float32, len_q=3)
    keep = torch.tensor([[1, 0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0, 1]]).bool()
    far = desert.view(torch.bool).as_strided((3, 7), (2**31 + 5, 1), 65536).copy_(keep)
    got, want = way.attend(q, k, v, mask=qkv.Dense(far))[0], way.attend(q, k, v, mask=qkv.Dense(keep))[0]
    close(want, way.reference(q, k, v, keep=keep).out, torch.float32)
    same_bits(got, want)


@pytest.mark.slow
def test_row_37_expanded_keys_of_more_than_two_to_the_31_numbers():
    """65537 sequences share one cache by stride 0: 2^31 + 2^15 numbers of keys that nothing may copy.

    It runs in a process that may take 4 GB more than torch itself; a copy of the keys would be 8.6 GB.
    """
    said = in_separate_process("""
        import json, resource
        import torch
        from tests.helpers.faults_reference import ARGMAX, SOFTMAX, numbers
        batch, length = 2**16 + 1, 2**9
        q = numbers((batch, 1, 1, 64), torch.float32, 1)
        base_k, base_v = (numbers((1, 1, length, 64), torch.float32, seed) for seed in (2, 3))
        k, v = (tensor.expand(batch, 1, length, 64) for tensor in (base_k, base_v))
        assert k.numel() > 2**31
        for way in SOFTMAX + ARGMAX[1:]:  # everything is loaded before the limit falls
            way.attend(q[:2], k[:2], v[:2])
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 4 * 10**9,) * 2)
        rows = [0, 1, 32767, 32768, batch - 2, batch - 1]
        off_by = {}
        for way in SOFTMAX + ARGMAX[1:]:
            try:
                out, _ = way.attend(q, k, v, lse=False)
                want = way.reference(q[rows], k[rows], v[rows]).out
                off_by[str(way)] = float((out[rows].double() - want).abs().max())
            except (MemoryError, RuntimeError) as error:
                off_by[str(way)] = repr(error)
        print(json.dumps(off_by))
    """)
    off_by = json.loads(said.splitlines()[-1])
    assert len(off_by) == 6
    wrong = {way: off for way, off in off_by.items() if isinstance(off, str) or not off < 1e-4}
    assert wrong == {}


@by_way
@pytest.mark.parametrize(
    ("shapes", "number"),
    [
        (((1, 1, 2**40, 1), (1, 1, 2**40, 1), (1, 1, 2**40, 1)), 2**40),
        (((1, 1, 2**62, 1), (1, 1, 1, 1), (1, 1, 1, 4)), 2**62),
        (((2**20, 2**20, 2**20, 1), (2**20, 2**20, 16, 1), (2**20, 2**20, 16, 1)), 2**20),
    ],
    ids=("scores", "result", "batch"),
)
def test_row_38_sizes_whose_product_overflows(way, shapes, number):
    """torch lets none of the inputs overflow: here the scores, or the result, would."""
    q, k, v = (torch.ones(1, 1, 1, 1).expand(shape) for shape in shapes)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    way.refuses(errors.ShapeError, ("query", number), q, k, v)
    assert time.perf_counter() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # in kB
