"""The bytes of a page, written and read with torch, and that the native library writes the same ones."""

import pytest
import torch

from qkv import ops
from qkv.cache import KVCache
from qkv.cache.pages import PAGE, STORAGE_CODE, from_storage, page_layout, read_pages, to_storage, write_page
from qkv.ops.kernels import cache_append

WIDTHS = [(1, 1), (5, 17), (64, 64), (11, 16), (16, 3)]
by_storage = pytest.mark.parametrize("storage", STORAGE_CODE, ids=lambda d: str(d).removeprefix("torch."))
by_width = pytest.mark.parametrize(("width", "values"), WIDTHS)


def tokens(layout, count: int = PAGE, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(layout.heads, count, layout.width, generator=generator)
    return to_storage(layout, key, torch.randn(layout.heads, count, layout.value_width, generator=generator))


@by_storage
@by_width
def test_every_part_is_aligned(storage, width, values) -> None:
    layout = page_layout(storage, 3, width, values)
    assert not [at for at in (layout.keys_at, layout.values_at, layout.head_bytes, layout.page_bytes) if at % 64]
    expected = 64 + (512 if storage is torch.int8 else 0)
    size, pair = storage.itemsize, 2 if storage is torch.bfloat16 else 1
    expected += size * 64 * pair * -(-width // pair) + size * 64 * -(-values // 16) * 16
    assert layout.head_bytes == expected
    assert layout.page_bytes == 3 * expected


@by_storage
@by_width
def test_what_is_written_is_read(storage, width, values) -> None:
    layout = page_layout(storage, 3, width, values)
    pages = torch.randint(0, 255, (2, layout.page_bytes), dtype=torch.uint8)
    first, second = tokens(layout), tokens(layout, seed=1)
    for slot in range(0, PAGE, 7):
        part = slice(slot, min(PAGE, slot + 7))
        write_page(layout, pages[0], slot, type(first)(*(t if t is None else t[:, part] for t in first)))
    write_page(layout, pages[1], 0, second)
    found = read_pages(layout, pages)
    for name in found._fields:
        one, other, both = getattr(first, name), getattr(second, name), getattr(found, name)
        assert (both is None) == (one is None)
        if both is not None:
            assert torch.equal(both, torch.cat([one, other], dim=1)), name
    key, value = from_storage(found)
    assert key.shape == (3, 2 * PAGE, width)
    assert value.shape == (3, 2 * PAGE, values)


def test_a_coordinate_is_a_run_of_tokens() -> None:
    layout = page_layout(torch.float32, 1, 3, 5)
    page = torch.zeros(layout.page_bytes, dtype=torch.uint8)
    stored = tokens(layout)
    write_page(layout, page, 0, stored)
    floats = page.view(torch.float32)
    assert torch.equal(floats[16 : 16 + 64], stored.key[0, :, 0])
    assert torch.equal(floats[16 + 3 * 64 : 16 + 3 * 64 + 5], stored.value[0, 0])
    assert not floats[16 + 3 * 64 + 5 : 16 + 3 * 64 + 16].any()


@by_storage
def test_the_header_tells_of_values_that_are_not_finite(storage) -> None:
    layout = page_layout(storage, 2, 4, 4)
    page = torch.randint(1, 255, (layout.page_bytes,), dtype=torch.uint8)
    marks = page.view(2, -1)[:, 0]
    clean, bad = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    bad[1, 1, 2] = float("inf")
    write_page(layout, page, 0, to_storage(layout, bad, clean))
    assert marks.tolist() == [0, 0]
    write_page(layout, page, 3, to_storage(layout, clean, bad))
    write_page(layout, page, 6, to_storage(layout, clean, clean))
    assert marks.tolist() == [0, 1]
    write_page(layout, page, 0, to_storage(layout, clean, clean))
    assert marks.tolist() == [0, 0]


@by_storage
@by_width
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_native_library_writes_the_same_bytes(storage, width, values, dtype) -> None:
    assert ops.available(), ops.reasons()
    assert cache_append is not None
    one, other = (KVCache(2, 3, width, value_width=values, dtype=storage) for _ in range(2))
    generator = torch.Generator().manual_seed(4)
    for n in (1, 70, 5):
        key = torch.randn(2, 3, n, width, generator=generator).to(dtype)
        value = torch.randn(2, 3, n, values, generator=generator).to(dtype)
        value[0, 0, 0, 0] = float("nan")
        key[1, 1, 0] = 0
        with one._pool.lock:
            one.append(key, value)
        other._reserve(n, None)
        for row in range(2):
            other._write_row(row, int(other._lengths[row]), to_storage(other._layout, key[row], value[row]))
        other._publish(key, None)
    for row in range(2):
        pages = [cache._pool.gather(cache._table.row_pages(row).tolist()) for cache in (one, other)]
        assert torch.equal(pages[0].view(2 * 3, -1)[:, 0], pages[1].view(2 * 3, -1)[:, 0])
        for found, wanted in zip(one._stored_row(row)[1], other._stored_row(row)[1], strict=True):
            if found is not None:
                torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
