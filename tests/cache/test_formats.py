"""Storage formats: a record is all that layout, files and decoding need, with and without a native kernel."""

import re
from pathlib import Path

import pytest
import torch

import qkv
from qkv import errors
from qkv.cache.formats import FORMATS, StorageFormat, register, storage_format
from tests.helpers.decode_reference import Plain, numbers, same_bits

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
FLOAT8 = torch.float8_e4m3fn


@pytest.fixture
def float8(monkeypatch):
    """The format that docs/extending.md adds, until the test ends."""
    monkeypatch.setitem(FORMATS, FLOAT8, FORMATS[torch.int8])
    del FORMATS[FLOAT8]
    text = PAGE.read_text(encoding="utf-8").split("## Adding a storage format")[1]
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0].split("\ncache = ")[0], names)
    return storage_format(FLOAT8)


def test_codes_are_those_of_the_native_library():
    text = (PAGE.parents[1] / "native" / "src" / "dtype.h").read_text()
    codes = dict(re.findall(r"(\w+) = (\d)", text))
    assert {each.name: str(each.code) for each in FORMATS.values() if each.values is None}.items() <= codes.items()
    for each in FORMATS.values():
        if each.values is not None:
            assert each.native_code == int(codes[each.name.split("/")[0]]) + 16 * int(codes[each.values.name])


def test_names_are_unique():
    with pytest.raises(errors.OptionError, match="no other format has"):
        register(StorageFormat(FLOAT8, "int8"))
    *names, last = (each.name for each in FORMATS.values())
    with pytest.raises(errors.DtypeError, match=re.escape(f"torch.{', '.join(names)} or {last}")):
        storage_format(torch.float64)


@pytest.mark.parametrize("each", FORMATS.values(), ids=lambda each: each.name)
def test_bytes_of_a_token_are_those_of_its_tensors(each):
    stored, scales = each.store(numbers((3, 7), seed=1))
    assert stored.nbytes + (0 if scales is None else scales.nbytes) == 3 * each.row_bytes(7)
    assert each.token_bytes(7) == each.row_bytes(7) + each.of_values.row_bytes(7)
    read = each.read(stored, scales, 7)
    assert read.dtype is each.read_dtype
    assert read.shape == (3, 7)


def test_a_format_of_the_documentation_decodes_what_it_stores(float8, tmp_path):
    cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=FLOAT8)
    plain = Plain(2, 3, 7, 5, torch.float32)
    query = numbers((2, 6, 70, 7), seed=1)
    key, value = numbers((2, 3, 70, 7), seed=2), numbers((2, 3, 70, 5), seed=3)
    rounded = [float8.read(*float8.store(tensor), tensor.shape[-1]) for tensor in (key, value)]
    plain.decode(query, *rounded).check(qkv.decode(query, key, value, cache))
    for found, wanted in zip(cache.tensors(), rounded, strict=True):
        same_bits(found, wanted)
    assert "float8_e4m3fn" in str(qkv.explain(query, key, value, cache=cache))
    cache.save(tmp_path / "cache")
    for found, wanted in zip(qkv.KVCache.load(tmp_path / "cache").tensors(), rounded, strict=True):
        same_bits(found, wanted)
