"""Files of pages as they are in memory, which several processes map at once: prefixes, and the caches of a model.

A safetensors file whose data begin at a multiple of 4,096 bytes: first `i.pages` (pages, page_bytes) of each cache i.
Then, for each, `i.rows` (batch, 2), the slots in use and the first page number of each row; `i.table`, its pages as
indices of `i.pages`, row after row; after an eviction `i.gone`, `i.counts`, `i.at` and `i.since` of `Remaining`;
`i.importance` (batch, heads, slots) if it is kept. At the end `tokens`, and what a caller adds. The metadata have the
sizes of the caches, the model, `contents`, the hash of all pages, and `sum`, that of everything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, OptionTypeError, QkvError, ShapeError, complaint
from ..ops.kernels import guard_mapping, unguard_mapping
from .eviction import Policy, Remaining
from .files import check_decided, check_path, check_regular_file, damaged_file, printable, read_header, replacing
from .formats import FORMATS
from .pages import MOST_TOKENS, PAGE, PageTable, address_of, allocate, clear_unused, pages_for, row_ranges

if TYPE_CHECKING:
    from .kv import KVCache

_FORMAT, _VERSION = "qkv.Prefix", "1"
_DTYPES = {"U8": torch.uint8, "I64": torch.int64, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGNMENT = 4096
_MAX_HEADER = 1 << 22
_AT_ONCE = 8 << 20  # bytes of pages that are written at a time
_CHECKED = 64 << 20  # bytes of pages that are compared with their hash unless the caller says so
_MAX_BARE = 64 << 20  # bytes of tables and sums that a file may ask for beyond its own size
_SIZES = "heads", "width", "value_width"
_LIMITS = "window", "sinks", "capacity"


def write_pages(
    path: str | os.PathLike[str],
    caches: Sequence[KVCache | None],
    *,
    count: int = 0,
    model: str | None = None,
    tokens: Any = None,
    about: dict[str, str] | None = None,
    more: dict[str, Tensor] | None = None,
) -> None:
    """Write the pages of caches to a file; None stands for a cache that does not exist yet.

    count: How many tokens their rows have. about, more: What the caller wants back in `PagesFile.about` and `.arrays`.
    """
    target = check_path(path)
    # A fork keeps every page as it is, so no lock is held while the file is written.
    kept = [None if cache is None else cache.fork() for cache in caches]
    for each in kept:
        if each is not None:
            check_decided(each)
    whole: dict[str, tuple[KVCache, list[int], np.ndarray]] = {}
    small: dict[str, Tensor] = {}
    records = []
    for number, cache in enumerate(kept):
        records.append(None)
        if cache is not None:
            records[-1] = {name: getattr(cache, name) for name in (*_SIZES, *_LIMITS, "latent")}
            records[-1] |= {"dtype": cache.format.name}
            order, arrays = _arrays_of(cache)
            whole[f"{number}.pages"] = cache, *order
            small |= {f"{number}.{name}": tensor for name, tensor in arrays.items()}
    if tokens is not None:
        small["tokens"] = given = as_tokens(tokens)
        if len(given) != count:
            raise ShapeError(complaint("tokens", len(given), f"{count}, as many as the cache has"))
    small |= {name: tensor.contiguous() for name, tensor in (more or {}).items()}
    shapes = {name: (torch.uint8, (len(at), of.page_layout.page_bytes)) for name, (of, at, _) in whole.items()}
    shapes |= {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in small.items()}
    header: dict[str, Any] = {"__metadata__": {}, **_entries(shapes)}
    named = {"format": _FORMAT, "version": _VERSION, "caches": json.dumps(records), **(about or {})}
    header["__metadata__"] = named | ({} if model is None else {"model": model}) | dict.fromkeys(_HASHES, "0" * 64)
    rest = b"".join(tensor.numpy().tobytes() for tensor in small.values())
    start = 8 + len(json.dumps(header))
    start += -start % _ALIGNMENT
    with replacing(target) as part, part.open("r+b") as file:
        file.seek(start)
        digest = hashlib.sha256()
        for cache, addresses, counts in whole.values():
            step = max(1, _AT_ONCE // cache.page_layout.page_bytes)
            for at in range(0, len(addresses), step):
                with cache.lock:
                    pages = cache.view().pool.gather(addresses[at : at + step])
                clear_unused(cache.page_layout, pages, counts[at : at + step])
                digest.update(pages.numpy().data)
                file.write(pages.numpy().data)
        file.write(rest)
        header["__metadata__"]["contents"] = digest.hexdigest()
        header["__metadata__"]["sum"] = _sum(header, rest)
        file.seek(0)
        file.write((start - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(start - 8))


_HASHES = "contents", "sum"


def _entries(shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, dict[str, Any]]:
    """The header of tensors that lie one behind another."""
    found, end = {}, 0
    for name, (dtype, shape) in shapes.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        found[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    return found


def _sum(header: dict[str, Any], rest: bytes) -> str:
    about = {name: text for name, text in header["__metadata__"].items() if name != "sum"}
    text = json.dumps({**header, "__metadata__": about}, sort_keys=True)
    return hashlib.sha256(text.encode() + rest).hexdigest()


def as_tokens(tokens: Any) -> Tensor:
    """The tokens of all rows, one row after another, as int64."""
    found = np.asarray(tokens)
    if found.size and found.dtype.kind not in "iu":
        raise OptionTypeError(complaint("tokens", f"{found.dtype} values", "integers"))
    return torch.from_numpy(found.reshape(-1).astype(np.int64))


def _arrays_of(cache: KVCache) -> tuple[tuple[list[int], np.ndarray], dict[str, Tensor]]:
    """The pages of a cache and how many tokens each has, and the small arrays of the file."""
    table, lengths = cache.page_table, cache.stored_lengths
    index = {address: number for number, address in enumerate(dict.fromkeys(table.all()))}
    numbers = np.array([index[address] for address in table.all()], dtype=np.int64)
    rows, places = row_ranges(table.first, table.stop)
    counts = np.zeros(len(index), dtype=np.int64)
    np.maximum.at(counts, numbers, np.clip(lengths[rows] - places * PAGE, 0, PAGE))
    arrays = {"rows": np.stack([lengths, table.first], axis=1), "table": numbers}
    if cache.evicted:
        arrays |= cache.native_arrays[1]._asdict()
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    if (sums := cache.importance_sums) is not None:
        tensors["importance"] = sums[:, :, : int(lengths.max())].contiguous()
    return (list(index), counts), tensors


class PagesFile:
    """A file that `write_pages` wrote, open, with its header and small arrays read and checked.

    about: Its metadata. arrays: Its small arrays by name. records: The sizes of each cache, or None.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_path(path)
        check_regular_file(self.path)
        self._file: BinaryIO | None = self.path.open("rb", buffering=0)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            self._read(self._file)
        except QkvError:
            self.close()
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:  # JSON of another form
            raise self.damaged(f"an invalid header: {error!r}") from error

    def _read(self, file: Any) -> None:
        header, self._start, size = read_header(self.path, file, _MAX_HEADER)
        self._state = _state_of(file)
        self.about: dict[str, str] = header.get("__metadata__", {})
        kind = self.about.get("format"), self.about.get("version")
        if kind != (_FORMAT, _VERSION):
            raise self.damaged(f"format {kind[0]!r}, version {kind[1]!r}, not {_FORMAT!r}, {_VERSION!r}")
        self._places = {name: entry for name, entry in header.items() if name != "__metadata__"}
        self._shapes = {name: (_DTYPES[each["dtype"]], tuple(each["shape"])) for name, each in self._places.items()}
        sound = all(type(n) is int and n >= 0 for _, shape in self._shapes.values() for n in shape)
        end = max((each["data_offsets"][1] for each in self._places.values()), default=0)
        if not sound or self._places != _entries(self._shapes) or end != size - self._start or self._start % _ALIGNMENT:
            raise self.damaged(f"{size} bytes, which its header does not describe")
        pages = [each["data_offsets"][1] for name, each in self._places.items() if name.endswith(".pages")]
        self._pages_end = max(pages, default=0)
        file.seek(self._start + self._pages_end)
        rest = bytearray(end - self._pages_end)
        self._fill(file, rest)
        if self.about.get("sum") != _sum(header, bytes(rest)):
            raise self.damaged("a header that its hash does not fit")
        self.arrays: dict[str, Tensor] = {}
        for name, (dtype, shape) in self._shapes.items():
            begin, end = (at - self._pages_end for at in self._places[name]["data_offsets"])
            if not name.endswith(".pages") and begin >= 0:
                part = np.frombuffer(rest[begin:end], dtype=np.uint8)
                self.arrays[name] = torch.from_numpy(part).view(dtype).view(shape)
        if "tokens" in self.arrays and (self.arrays["tokens"].dim(), self.arrays["tokens"].dtype) != (1, torch.int64):
            raise self.damaged("tokens of another form")
        self.records: list[dict[str, Any] | None] = json.loads(self.about["caches"])
        names = {each.name for each in FORMATS.values()}
        for record in self.records:
            sizes = [] if record is None else [record[name] for name in _SIZES]
            sizes += [] if record is None else [record[name] for name in _LIMITS if record[name] is not None]
            named = record is None or (record["dtype"] in names and isinstance(record["latent"], bool))
            if not (named and all(type(n) is int and 0 <= n < 1 << 40 for n in sizes)):
                raise self.damaged(f"invalid sizes {record}")

    def _fill(self, file: Any, buffer: Any) -> None:
        view, at = memoryview(buffer), 0
        while at < len(view):
            count = file.readinto(view[at : at + (1 << 30)])
            if not count:
                raise self.damaged(f"{at} bytes where {len(view)} were")
            at += count

    def damaged(self, what: str) -> OptionError:
        """The error on a file that is of no use, and is closed."""
        self.close()
        return damaged_file(self.path, what)

    def expect(self, model: str | None, tokens: Any) -> None:
        """Refuse the file of another model, or of other tokens."""
        saved = self.about.get("model")
        if model is not None and saved != model:
            named = "none" if saved is None else repr(printable(saved))
            hint = f"{self.path.name} has the keys of another model, in another format, or was saved without its name"
            self.close()
            raise OptionError(complaint("model", repr(model), f"{named}, as saved", printable(hint)))
        if tokens is not None:
            given, kept = as_tokens(tokens), self.arrays.get("tokens")
            if kept is None or not torch.equal(given, kept):
                same = 0 if kept is None else int((given[: len(kept)] == kept[: len(given)]).cumprod(0).sum())
                found = "none" if kept is None else f"{len(kept)}, of which the first {same} are these"
                self.close()
                raise OptionError(complaint("tokens", f"{len(given)} tokens", f"those that were saved, {found}"))

    def check(self) -> None:
        """Refuse a mapped file that has changed since it was opened, whatever its path is now."""
        if self._file is not None and _state_of(self._file) != self._state:
            given = printable(f"{self.path.name}, which another program has cut off or changed while it was mapped")
            raise OptionError(complaint("path", given, "a file that stays", "replace a file, do not write to it"))

    def caches(
        self,
        *,
        check: bool | None = None,
        eviction: Policy | None = None,
        likes: Sequence[KVCache] | None = None,
        extras: Collection[str] = (),
    ) -> list[KVCache | None]:
        """The caches, with their pages mapped.

        likes: Empty caches of the same kind, whose pools they are to share. extras: The arrays that a caller has added.
        """
        if likes is not None and len(likes) != len(self.records):
            raise self.damaged(f"{len(self.records)} caches, not {len(likes)}")
        ready = [
            None if record is None else self._cache(number, record, eviction, None if likes is None else likes[number])
            for number, record in enumerate(self.records)
        ]
        wanted = {name for each in ready if each is not None for name in each[1]}
        wanted |= {"tokens"} & set(self.arrays)
        if set(self._shapes) != wanted.union(extras):
            raise self.damaged(f"arrays that do not fit: {sorted(wanted.union(extras) ^ set(self._shapes))[:5]}")
        pages = self._pages(check)
        found: list[KVCache | None] = []
        for number, each in enumerate(ready):
            found.append(None)
            if each is not None:
                like, _, table, lengths, remaining, importance = each
                begin, end = self._places[f"{number}.pages"]["data_offsets"]
                with like.lock:
                    of_cache = pages[begin:end].view(-1, like.page_layout.page_bytes)
                    addresses = like.view().pool.add_file(of_cache)
                    rows, places = row_ranges(table.first, table.stop)
                    numbers = self.arrays[f"{number}.table"].numpy()
                    table.put(rows, places, np.array(addresses, dtype=np.int64)[numbers].tolist())
                    record = self.records[number] or {}
                    found[-1] = like.with_pages(table, lengths, record["capacity"], remaining, importance)
        return found

    def _cache(self, number: int, record: dict[str, Any], eviction: Policy | None, like: KVCache | None) -> Any:
        """An empty cache of the record, the names of its arrays, and what they say, checked; nothing is mapped yet."""
        from .kv import KVCache, check_forgetting

        evicted, counted = (f"{number}.{name}" in self._shapes for name in ("gone", "importance"))
        check_forgetting(record["window"], record["sinks"], eviction if like is None else like.eviction, counted)
        names = "rows", "table", *(Remaining._fields if evicted else ()), *(("importance",) if counted else ())
        arrays = {name: self.arrays.get(f"{number}.{name}", torch.empty(())) for name in names}
        if like is None:
            dtype = next(each.dtype for each in FORMATS.values() if each.name == record["dtype"])
            options = {name: record[name] for name in ("value_width", "window", "sinks", "latent")}
            try:
                like = KVCache(
                    1, record["heads"], record["width"], dtype=dtype, importance=counted, eviction=eviction, **options
                )
            except (QkvError, RuntimeError) as error:  # torch raises RuntimeError for impossible sizes
                raise self.damaged(str(error)) from error
        kind = {name: getattr(like, name) for name in (*_SIZES, "window", "sinks", "latent")} | {
            "dtype": like.format.name
        }
        if {name: record[name] for name in kind} != kind or counted != (like.importance_sums is not None):
            raise self.damaged(f"a cache of {record}, not {kind}")
        batch, heads = arrays["rows"].shape[0] if arrays["rows"].dim() else 0, like.heads
        slots = arrays["at"].shape[-1] if evicted and arrays["at"].dim() else 0
        pages = self._shapes.get(f"{number}.pages", (None, (0,)))
        expected = dict.fromkeys(("gone", "counts", "since"), (batch,))
        expected |= {"rows": (batch, 2), "table": (arrays["table"].numel(),), "at": (batch, heads, slots)}
        fit = pages == (torch.uint8, (pages[1][0], like.page_layout.page_bytes)) and batch > 0
        fit = fit and all(a.dtype is torch.int64 and a.shape == expected[n] for n, a in arrays.items() if n in expected)
        if not fit:
            raise self.damaged(f"arrays of other sizes in cache {number}")
        lengths, first = arrays["rows"].T.contiguous().numpy()
        window, capacity, stop = record["window"], record["capacity"], pages_for(lengths)
        latest = np.zeros_like(lengths) if window is None or record["sinks"] else np.maximum(lengths - window, 0)
        valid = (lengths >= 0) & (lengths <= MOST_TOKENS) & (first >= 0) & (first <= latest // PAGE)
        if not valid.all() or (capacity is not None and int(lengths.max()) > capacity):
            raise self.damaged("invalid lengths or first pages")
        slots = 1 << max(6, (int((stop - first).max()) - 1).bit_length())
        if batch * slots * (8 + 4 * PAGE * heads * counted) > _MAX_BARE + 2 * self._state[0]:
            raise self.damaged(f"{batch} rows of up to {int(lengths.max())} tokens in {self._state[0]} bytes")
        numbers = arrays["table"].numpy()
        if len(numbers) != int((stop - first).sum()) or not np.array_equal(np.unique(numbers), np.arange(pages[1][0])):
            raise self.damaged("a table of other pages")
        remaining, importance = Remaining.all(batch, heads), arrays.get("importance")
        if evicted:
            remaining = Remaining(*(arrays[name].numpy() for name in Remaining._fields))
            if not remaining.is_valid(lengths):
                raise self.damaged("invalid positions")
        if importance is not None:
            if importance.dtype is not torch.float32 or importance.shape != (batch, heads, int(lengths.max())):
                raise self.damaged("importance of another size")
            importance = torch.nn.functional.pad(importance, (0, slots * PAGE - importance.shape[2]))
        table = PageTable(np.zeros((batch, slots), dtype=np.int64), first, stop)
        return like, {f"{number}.{name}" for name in ("pages", *names)}, table, lengths, remaining, importance

    def _pages(self, check: bool | None) -> Tensor:
        """The bytes of all pages, mapped, or read where a mapping could end the process."""
        assert self._file is not None
        mapping = None
        with contextlib.suppress(
            OSError, ValueError
        ):  # a file system that cannot map, or a file that is shorter by now
            mapping = _Mapping(self._file, self._start + self._pages_end)
        mapped = mapping is not None and mapping.guarded
        if mapped:
            pages = torch.from_numpy(np.asarray(mapping))[self._start :]
        else:
            pages = allocate((self._pages_end,), torch.uint8)
            self._file.seek(self._start)
            self._fill(self._file, pages.numpy())
        checked = check or not mapped or (check is None and len(pages) <= _CHECKED)
        if checked and hashlib.sha256(pages.numpy().data).hexdigest() != self.about.get("contents"):
            raise self.damaged("pages that their hash does not fit")
        self.check()
        if not mapped:
            self.close()
        return pages

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


def _state_of(file: Any) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


class _Mapping:
    """The first bytes of a file, mapped; numpy's arrays of it keep it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._bytes = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        self._address = address_of(np.frombuffer(self._bytes, dtype=np.uint8))
        self.guarded = guard_mapping(self._address, size)
        # "Writable": torch refuses others. The pages are protected, and no cache writes to those of a file.
        self.__array_interface__ = {"data": (self._address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        if getattr(self, "guarded", False):
            unguard_mapping(self._address)
