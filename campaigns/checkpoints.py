"""Files that qkv loads: caches, states, models, checkpoints of transformers and llama.cpp, configs and calibrations.

Each loads completely and equal to its file, or is refused with one of qkv's errors; in bounded time and memory, with
the file unchanged, and with nothing run, fetched or written.
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
from qkv.hf.checkpoint import Loaded
from qkv.hf.checkpoint import load as load_folder
from qkv.hf.folders import open_checkpoint, read_tensors
from qkv.lab.checkpoints import read_header
from qkv.raw import as_bytes

from .broken_files import broken
from .campaign import Batch, Campaign
from .saved_files import ELU, POLYNOMIAL, saved_by_others, saved_by_qkv
from .trials import Trial, address_space, gathered, try_all

SECONDS = 4.0
ADDRESSES = 3 << 30  # bytes, more than torch and transformers have taken
LONGEST_MESSAGE = 3000  # characters of an error
WEIGHTS = "model.safetensors"
# Audit events of Python that no file may cause.
FORBIDDEN = frozenset(
    ("pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect")
)


class Reader(NamedTuple):
    """share: of the inputs; file: its name; check: compares what was loaded with the file."""

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
    # Any byte other than 0 is True.
    return {n: (k, s, bytes(map(bool, b)) if k == "BOOL" else b) for n, (k, s, b) in tensors.items()}, about


def saves_the_same(found: Any, path: Path) -> None:
    """Saving what was loaded gives a file with the same contents."""
    again, data = path.with_name("again"), path.read_bytes()
    save = qkv.nn.save if isinstance(found, torch.nn.Module) else type(found).save
    save(found, again)
    tensors, about = bits(again.read_bytes())
    before, metadata = bits(data)
    assert tensors.keys() == before.keys()
    for name, tensor in tensors.items():
        assert tensor[:2] == before[name][:2], name
        # After the last token of a row a cache has zeros; its file may have anything.
        if not isinstance(found, qkv.KVCache) or name in ("lengths", "starts"):
            assert tensor[2] == before[name][2], name
    if isinstance(found, qkv.KVCache):
        has_same_tokens(found, data)
    for name in set(about) - {"description"}:
        assert about[name] == metadata[name], name


def has_same_tokens(cache: qkv.KVCache, data: bytes) -> None:
    """Compare the keys and values of each row, up to its length."""
    tensors = safetensors.torch.load(data)
    for row in range(cache.batch):
        start, stored = cache.stored_row(row)
        length = int(tensors["lengths"][row]) - start
        for name in ("key", "value", "key_scale", "value_scale"):
            if name in tensors:
                one, other = getattr(stored, name)[:, :length], tensors[name][row, :, :length]
                assert one.shape == other.shape, name
                assert as_bytes(one).equal(as_bytes(other)), name


def reads_the_same(found: Any, path: Path) -> None:
    checkpoint, (tensors, _) = found
    entries, _ = bits(path.read_bytes())
    assert checkpoint.tensors.keys() == tensors.keys() == entries.keys()
    for name, entry in checkpoint.tensors.items():
        assert (entry.dtype, list(entry.shape)) == entries[name][:2]
        if entry.dtype != "BOOL":
            assert as_bytes(tensors[name]).numpy().tobytes() == entries[name][2]


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
    "weights": Reader(0.1, WEIGHTS, lambda path: (open_checkpoint(path.parent), read_tensors(path)), reads_the_same),
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


def check_promise(trial: Trial, folder: Path) -> bool:
    """Whether the file was loaded, not refused; raises if a promise does not hold."""
    reader = READERS[trial.kind]
    path = folder / trial.kind / reader.file
    path.write_bytes(trial.given)
    message = None
    try:
        with nothing_done(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers warns about sizes that are refused later
            found = reader.load(path)
    except QkvError as refused:
        message = str(refused)
    assert path.read_bytes() == trial.given, "the file has changed"
    if message is None:
        reader.check(found, path)
        return True
    assert len(message) < LONGEST_MESSAGE, message
    assert "allocate" not in message, message
    message.encode()
    return False


_WATCHED = [False]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _WATCHED[0] and (event in FORBIDDEN or (event == "open" and str(arguments[1] or "r")[0] in "wax")):
        raise AssertionError(f"a file caused {event}{arguments!r}")


@contextmanager
def nothing_done() -> Iterator[None]:
    """Raise AssertionError if anything is run, sent or written; imports write no bytecode meanwhile."""
    kept_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _WATCHED[0] = True
    try:
        yield
    finally:
        _WATCHED[0], sys.dont_write_bytecode = False, kept_bytecode


def run(seed: int, count: int) -> Batch:
    # In memory if possible: a disk would take most of the time.
    in_memory = Path("/dev/shm")
    if not _has_audit_hook:
        sys.addaudithook(_audit)
        _has_audit_hook.append(True)
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as name:
        folder = Path(name)
        seeds = {**saved_by_qkv(folder / "seeds"), **saved_by_others(folder)}
        for kind in READERS:
            (folder / kind).mkdir(exist_ok=True)
            for data in seeds[kind]:
                # A valid file loads; and its imports happen before memory is limited.
                assert check_promise(Trial(kind, data), folder), kind
        with address_space(ADDRESSES):
            draw = lambda chance, pool: drawn(chance, seeds)  # noqa: E731
            folders = ("cache", "nn", "hf", "cost", "lab")
            slow = ("transformers", "transformers' config", "GGUF")
            return try_all(
                seed, count, draw, lambda trial: check_promise(trial, folder), folders, SECONDS, untraced=slow
            )


_has_audit_hook: list[bool] = []

CAMPAIGN = Campaign(
    about="a valid file loads with its contents, others are refused, in bounded memory; nothing is run or written",
    unit="files",
    goal=1_000_000,
    batch=20_000,
    run=run,
    gather=gathered,
)
