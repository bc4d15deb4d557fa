"""Files that are loaded: caches, states, models, checkpoints of transformers and llama.cpp, configs and calibrations.

Each is whole and equal to what its file says, or refused with an error of qkv; in bounded time and memory, with the
file as it was, and with nothing run, fetched or written.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors.torch
import torch

import qkv
from qkv.cost import Machine, Model
from qkv.cost.configs import config_model
from qkv.errors import QkvError
from qkv.hf.checkpoint import Loaded, open_checkpoint, read_tensors
from qkv.hf.checkpoint import load as load_folder
from qkv.lab.checkpoints import read_header

from .broken_files import broken
from .campaign import Batch, Campaign
from .saved_files import ELU, POLYNOMIAL, saved_by_others, saved_by_qkv
from .trials import Trial, address_space, gathered, try_all

SECONDS = 4.0
ADDRESSES = 3 << 30  # bytes beyond what torch and transformers have taken
LONGEST_WORDS = 3000  # of an error
WEIGHTS = "model.safetensors"
# What Python tells of before it does it, and what no file may bring about.
FORBIDDEN = frozenset(
    ("pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect")
)


class Reader(NamedTuple):
    """share: of the inputs; file: the name that it is saved by; check: of what was loaded, against the file."""

    share: float
    file: str
    load: Callable[[Path], Any]
    check: Callable[[Any, Path], None]


def bits(data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors of a file as bytes with their shapes and dtypes, and its metadata."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = header.pop("__metadata__", None) or {}
    body = data[8 + size :]
    tensors = {name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for name, e in header.items()}
    # Any byte but 0 is true.
    return {n: (k, s, bytes(map(bool, b)) if k == "BOOL" else b) for n, (k, s, b) in tensors.items()}, about


def saves_the_same(found: Any, path: Path) -> None:
    """What was loaded is saved as what was there, and that once more as the same bytes."""
    again, data = path.with_name("again"), path.read_bytes()
    save = qkv.nn.save if isinstance(found, torch.nn.Module) else type(found).save
    save(found, again)
    tensors, about = bits(again.read_bytes())
    before, said = bits(data)
    assert tensors.keys() == before.keys()
    for name, tensor in tensors.items():
        assert tensor[:2] == before[name][:2], name
        # Behind the last token of a row a cache has zeros, whatever its file had.
        if not isinstance(found, qkv.KVCache) or name in ("lengths", "starts"):
            assert tensor[2] == before[name][2], name
    if isinstance(found, qkv.KVCache):
        holds_the_same(found, data)
    for name in set(about) - {"description"}:
        assert about[name] == said[name], name


def holds_the_same(cache: qkv.KVCache, data: bytes) -> None:
    """Key for key and value for value, as far as a row is long."""
    tensors = safetensors.torch.load(data)
    for row in range(cache.batch):
        start, stored = cache._stored_row(row)
        held = int(tensors["lengths"][row]) - start
        for name in ("key", "value", "key_scale", "value_scale"):
            if name in tensors:
                one, other = getattr(stored, name)[:, :held], tensors[name][row, :, :held]
                assert one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8)), name


def tells_the_same(found: Any, path: Path) -> None:
    checkpoint, (tensors, _) = found
    entries, _ = bits(path.read_bytes())
    assert checkpoint.tensors.keys() == tensors.keys() == entries.keys()
    for name, entry in checkpoint.tensors.items():
        assert (entry.dtype, list(entry.shape)) == entries[name][:2]
        if entry.dtype != "BOOL":
            assert tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes() == entries[name][2]


def is_a_model(found: Any, path: Path) -> None:
    assert isinstance(found, Loaded)
    assert not found.model.training
    assert all(not each.is_meta for each in found.model.parameters())


def has_sizes(found: Any, path: Path) -> None:
    assert isinstance(found, Model)
    assert found.parameters > 0
    assert found.cache_bytes(tokens=1) >= 0


def is_stored_the_same(found: Any, path: Path) -> None:
    assert Machine.read(found.store(path.with_name("again"))) == found


def has_names(found: Any, path: Path) -> None:
    assert all(isinstance(name, str) for name in found)


READERS = {
    "cache": Reader(0.3, "cache", qkv.KVCache.load, saves_the_same),
    "state": Reader(0.1, "state", lambda path: qkv.LinearState.load(path, ELU), saves_the_same),
    "polynomial state": Reader(0.1, "state", lambda path: qkv.LinearState.load(path, POLYNOMIAL), saves_the_same),
    "model": Reader(0.2, "model", qkv.nn.load, saves_the_same),
    "weights": Reader(0.1, WEIGHTS, lambda path: (open_checkpoint(path.parent), read_tensors(path)), tells_the_same),
    "config": Reader(0.08, "config.json", lambda path: config_model(path.read_bytes()), has_sizes),
    "machine": Reader(0.08, "machine.json", Machine.read, is_stored_the_same),
    "GGUF header": Reader(0.035, "model.gguf", read_header, has_names),
    "transformers": Reader(0.002, WEIGHTS, lambda path: load_folder(path.parent), is_a_model),
    "transformers' config": Reader(0.002, "config.json", lambda path: load_folder(path.parent), is_a_model),
    "GGUF": Reader(0.001, "model.gguf", load_folder, is_a_model),
}


def drawn(chance: random.Random, seeds: dict[str, list[bytes]]) -> Trial:
    (kind,) = chance.choices(list(READERS), [reader.share for reader in READERS.values()])
    return Trial(kind, broken(chance, chance.choice(seeds[kind])))


def kept(trial: Trial, folder: Path) -> bool:
    """Whether it was loaded. Anything but what is promised is raised."""
    reader = READERS[trial.kind]
    path = folder / trial.kind / reader.file
    path.write_bytes(trial.given)
    words = None
    try:
        with nothing_done(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers, about sizes that are refused a moment later
            found = reader.load(path)
    except QkvError as refused:
        words = str(refused)
    assert path.read_bytes() == trial.given, "the file is another now"
    if words is None:
        reader.check(found, path)
        return True
    assert len(words) < LONGEST_WORDS, words
    assert "allocate" not in words, words
    words.encode()
    return False


_WATCHED = [False]


def _told(event: str, arguments: tuple[Any, ...]) -> None:
    if _WATCHED[0] and (event in FORBIDDEN or (event == "open" and str(arguments[1] or "r")[0] in "wax")):
        raise AssertionError(f"a file brought about {event}{arguments!r}")


@contextmanager
def nothing_done() -> Iterator[None]:
    """An AssertionError where anything is run, sent or written; what is imported meanwhile leaves no bytecode."""
    kept_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _WATCHED[0] = True
    try:
        yield
    finally:
        _WATCHED[0], sys.dont_write_bytecode = False, kept_bytecode


def run(seed: int, count: int) -> Batch:
    # In cache, where there is such a place: a disk would be most of the time.
    cache = Path("/dev/shm")
    if not _told_once:
        sys.addaudithook(_told)
        _told_once.append(True)
    with tempfile.TemporaryDirectory(dir=cache if cache.is_dir() else None) as name:
        folder = Path(name)
        seeds = {**saved_by_qkv(folder / "seeds"), **saved_by_others(folder)}
        for kind in READERS:
            (folder / kind).mkdir(exist_ok=True)
            for data in seeds[kind]:
                # What was saved is loaded; and what is imported for it is there before cache is counted.
                assert kept(Trial(kind, data), folder), kind
        with address_space(ADDRESSES):
            draw = lambda chance, pool: drawn(chance, seeds)  # noqa: E731
            rooms = ("cache", "nn", "hf", "cost", "lab")
            slow = ("transformers", "transformers' config", "GGUF")
            return try_all(seed, count, draw, lambda trial: kept(trial, folder), rooms, SECONDS, untraced=slow)


_told_once: list[bool] = []

CAMPAIGN = Campaign(
    about="a valid file loads with its contents, others are refused, in bounded memory; nothing is run or written",
    unit="files",
    goal=1_000_000,
    batch=20_000,
    run=run,
    gather=gathered,
)
