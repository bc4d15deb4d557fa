"""Saved caches and states: they are loaded bit for bit, and a failed save keeps the old file."""

import json
import os
from math import inf, nan
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import qkv
from qkv import errors
from qkv.errors import OptionError
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, Plain, holds, name_of, same_bits, untouched

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)


def sequence(n, seed=0, dtype=torch.float32, batch=3):
    return tokens(n, batch=batch, heads=(4, 2), widths=(11, 5), dtype=dtype, seed=seed)


def both(storage=torch.float32, **options):
    cache = qkv.KVCache(3, 2, 11, value_width=5, dtype=storage, **options)
    return cache, Plain.like(cache)


def there_and_back(cache, path):
    cache.save(path)
    return qkv.KVCache.load(path)


@pytest.mark.slow
@by_storage
@pytest.mark.parametrize("options", [{}, {"window": 40}, {"capacity": 300}, {"window": 70, "capacity": 300}], ids=str)
def test_it_comes_back_bit_for_bit(storage, options, tmp_path):
    cache, plain = both(storage, **options)
    tensors = sequence(130)
    cache.append(*tensors[1:], lengths=torch.tensor([130, 0, 65]))
    plain.append(*tensors[1:], lengths=[130, 0, 65])
    again = there_and_back(cache, tmp_path / "cache.safetensors")
    for name in ("batch", "heads", "width", "value_width", "capacity", "window", "dtype", "length"):
        assert getattr(again, name) == getattr(cache, name), name
    holds(again, plain)
    for seed, n in enumerate((1, 3, 66), start=1):
        step = sequence(n, seed)
        found = qkv.decode(*step, again)
        same_bits(found, qkv.decode(*step, cache), "after loading")
        plain.decode(*step).check(found)


@pytest.mark.slow
@by_storage
def test_an_empty_cache(storage, tmp_path):
    cache, plain = both(storage)
    again = there_and_back(cache, tmp_path / "cache.safetensors")
    step = sequence(2)
    plain.decode(*step).check(qkv.decode(*step, again))


def test_after_a_crop_a_reorder_and_a_fork(tmp_path):
    cache, plain = both()
    cache.append(*sequence(130)[1:])
    plain.append(*sequence(130)[1:])
    forked, model = cache.fork(), plain.fork()
    for one in (forked, model):
        one.crop(70)
        one.reorder([2, 2, 0, 1])
    forked.append(*sequence(1, 5, batch=4)[1:])
    model.append(*sequence(1, 5, batch=4)[1:])
    holds(there_and_back(forked, tmp_path / "cache.safetensors"), model)
    holds(there_and_back(cache, tmp_path / "cache.safetensors"), plain)


@by_storage
def test_numbers_that_are_not_finite_come_back_too(storage, tmp_path):
    cache, plain = both(storage)
    _, key, value = (tensor.clone() for tensor in sequence(5))
    key[0, 0, 1, 2], value[1, 1, 2, 3], value[2, 0, 4, 0] = nan, inf, -inf
    cache.append(key, value)
    plain.append(key, value)
    again = there_and_back(cache, tmp_path / "cache.safetensors")
    holds(again, plain)
    step = sequence(1, 1)
    plain.decode(*step).check(qkv.decode(*step, again))


def test_what_is_gone_is_not_written(tmp_path):
    """Cropped tokens are not in the file."""
    secret = 123456.75
    cache, _ = both()
    cache.append(*sequence(66)[1:])
    cache.append(*(torch.full_like(tensor, secret) for tensor in sequence(10)[1:]))
    cache.crop(66)
    cache.save(tmp_path / "cache.safetensors")
    assert torch.tensor([secret]).numpy().tobytes() not in (tmp_path / "cache.safetensors").read_bytes()


def test_it_is_an_ordinary_safetensors_file(tmp_path):
    cache, _ = both(torch.bfloat16)
    cache.append(*sequence(70)[1:])
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        assert names
        total = sum(file.get_tensor(name).numel() for name in names)
    assert total >= 3 * 2 * 70 * 16
    size = int.from_bytes(path.read_bytes()[:8], "little")
    json.loads(path.read_bytes()[8 : 8 + size])


def test_paths_of_both_kinds(tmp_path):
    cache, plain = both()
    cache.append(*sequence(3)[1:])
    plain.append(*sequence(3)[1:])
    cache.save(str(tmp_path / "cache.safetensors"))
    holds(qkv.KVCache.load(str(tmp_path / "cache.safetensors")), plain)
    holds(qkv.KVCache.load(tmp_path / "cache.safetensors"), plain)


def test_saving_does_not_touch_the_cache(tmp_path):
    cache, _ = both()
    cache.append(*sequence(70)[1:])
    with untouched(cache):
        cache.save(tmp_path / "cache.safetensors")


def test_the_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A temporary file in the same directory → fsync → rename."""
    happened = []
    target = tmp_path / "cache.safetensors"
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def record(name, run):
        def wrapped(*args, **kwargs):
            if name == "rename":
                assert Path(args[0]).parent == tmp_path, "the temporary file is not in the directory of its target"
            happened.append(name)
            return run(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(os, "fsync", record("fsync", fsync))
    monkeypatch.setattr(os, "replace", record("rename", replace))
    monkeypatch.setattr(os, "rename", record("rename", rename))
    cache, plain = both()
    cache.append(*sequence(3)[1:])
    plain.append(*sequence(3)[1:])
    cache.save(target)
    assert "fsync" in happened
    assert "rename" in happened
    assert happened.index("fsync") < happened.index("rename")
    assert [path.name for path in tmp_path.iterdir()] == ["cache.safetensors"]
    holds(qkv.KVCache.load(target), plain)


@pytest.mark.parametrize("fails", ["fsync", "rename"])
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(fails, tmp_path, monkeypatch):
    cache, plain = both()
    cache.append(*sequence(3)[1:])
    plain.append(*sequence(3)[1:])
    target = tmp_path / "cache.safetensors"
    cache.save(target)
    before = target.read_bytes()

    def broken(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        for name in ("replace", "rename") if fails == "rename" else ("fsync",):
            patched.setattr(os, name, broken)
        other = cache.fork()
        other.append(*sequence(70)[1:])
        with pytest.raises(OSError, match="No space left"):
            other.save(target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["cache.safetensors"]
    holds(qkv.KVCache.load(target), plain)


def test_folders_that_are_not_there(tmp_path):
    cache, _ = both()
    with pytest.raises((OSError, errors.QkvError)):
        cache.save(tmp_path / "nowhere" / "cache.safetensors")
    with pytest.raises((OSError, errors.QkvError)):
        qkv.KVCache.load(tmp_path / "nothing.safetensors")
    with pytest.raises((OSError, errors.QkvError)):
        qkv.KVCache.load(tmp_path)


ELU = qkv.FeatureMap(qkv.features.elu1)


@pytest.mark.parametrize("name", ["dtype", "batch", "similarity", "version"])
def test_a_state_that_does_not_say_what_it_is_is_refused(tmp_path, name):
    path = tmp_path / "state"
    state = qkv.LinearState(ELU, 2, 3, 5)
    for _ in range(2):
        state.save(path)
        with safe_open(path, framework="pt") as file:
            about, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert qkv.LinearState.load(path, ELU).lengths.equal(state.lengths)
        save_file(tensors, path, {key: text for key, text in about.items() if key != name})
        with pytest.raises(OptionError):
            qkv.LinearState.load(path, ELU)
        state.append(torch.ones(2, 3, 7, 5), torch.ones(2, 3, 7, 5))


def changed(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def test_more_rows_than_lengths_take_no_memory(tmp_path):
    path = tmp_path / "state"
    qkv.LinearState(ELU, 2, 3, 5).save(path)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    changed(path, b'"batch":"2"', b'"batch":"999999999999999999"')
    path.write_bytes((size + 17).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(OptionError, match="another number of lengths"):
        qkv.LinearState.load(path, ELU)


def test_escape_characters_of_a_file_are_not_repeated_in_a_message(tmp_path):
    red = "\x1b[31m\r\x9b"
    path = tmp_path / f"name{red[:5]}"
    qkv.KVCache(1, 1, 4).save(path)
    tensors = load_file(path)
    good = {"format": "qkv.KVCache", "version": "1", "dtype": "float32", "capacity": "", "window": ""}
    state = {"format": "qkv.LinearState", "version": "1", "similarity": red}
    for about, names in [({**good, name: red}, {}) for name in good] + [(good, {red: torch.ones(1)}), (state, {})]:
        save_file(tensors | names, path, about)
        with pytest.raises(OptionError) as refused:
            qkv.LinearState.load(path, ELU) if about is state else qkv.KVCache.load(path)
        assert str(refused.value).isprintable()
    path.write_bytes((len(red) + 2).to_bytes(8, "little") + f'"{red}"'.encode())
    with pytest.raises(OptionError) as refused:
        qkv.KVCache.load(path)
    assert str(refused.value).isprintable()
