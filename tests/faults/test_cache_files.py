"""Saved caches that are damaged, claim wrong sizes, or are other files."""

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import save_file

import qkv
from qkv import errors
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, name_of


def parts_of(path):
    """(header as a dictionary, the bytes behind it)."""
    blob = path.read_bytes()
    size = struct.unpack("<Q", blob[:8])[0]
    return json.loads(blob[8 : 8 + size]), blob[8 + size :]


def write(path, header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.fixture(params=STORAGE, ids=name_of)
def saved(request, tmp_path):
    cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=request.param)
    pairs = tokens(70, batch=2, heads=(6, 3), widths=(7, 5), dtype=torch.float32, seed=0)[1:]
    cache.append(*pairs, lengths=[70, 3])
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    return path


def refuses_to_load(path):
    with pytest.raises(errors.QkvError) as caught:
        qkv.KVCache.load(path)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert str(caught.value)
    return str(caught.value)


def test_row_49_truncated_files(saved):
    blob = saved.read_bytes()
    header = 8 + struct.unpack("<Q", blob[:8])[0]
    for size in {0, 1, 7, 8, 9, header - 1, header, header + 1, (header + len(blob)) // 2, len(blob) - 1}:
        saved.write_bytes(blob[:size])
        refuses_to_load(saved)


def test_row_49_bytes_behind_the_end(saved):
    blob = saved.read_bytes()
    for more in (b"\0", b"x" * 4096):
        saved.write_bytes(blob + more)
        refuses_to_load(saved)


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**40, 2**31, 10**8 + 1])
def test_row_49_headers_that_claim_to_be_huge(saved, size):
    saved.write_bytes(struct.pack("<Q", size) + saved.read_bytes()[8:])
    refuses_to_load(saved)


def test_row_49_a_pickle_with_another_name(tmp_path):
    path = tmp_path / "cache.safetensors"
    torch.save({"key": torch.zeros(3)}, path)
    refuses_to_load(path)
    path.write_bytes(pickle.dumps({"key": 1}))
    refuses_to_load(path)


def test_row_49_headers_that_are_no_headers(saved):
    _, body = parts_of(saved)
    for header in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"a": 1}', b"{" * 10000):
        write(saved, header, body)
        refuses_to_load(saved)


def without(header, name):
    """The header without one tensor; its bytes go too, so that the file stays sound."""
    first, last = header[name]["data_offsets"]
    kept = {}
    for other, entry in header.items():
        if other == name:
            continue
        entry = dict(entry)
        if "data_offsets" in entry:
            entry["data_offsets"] = [o - (last - first) * (o >= last) for o in entry["data_offsets"]]
        kept[other] = entry
    return kept, (first, last)


def names_in(header):
    return [name for name in header if name != "__metadata__"]


def test_row_49_a_missing_tensor(saved):
    header, body = parts_of(saved)
    assert names_in(header)
    for name in names_in(header):
        less, (first, last) = without(header, name)
        write(saved, less, body[:first] + body[last:])
        refuses_to_load(saved)


@pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**64, 10**30])
def test_row_49_an_empty_tensor_with_a_size_that_no_tensor_can_have(size, tmp_path):
    """Found by the campaign of checkpoints: no byte contradicts it."""
    path = tmp_path / "cache.safetensors"
    qkv.KVCache(2, 3, 7).save(path)
    header, body = parts_of(path)
    assert header["key"]["shape"][2] == 0
    for name, axis in (("key", 3), ("value", 3), ("key", 1)):
        wrong = json.loads(json.dumps(header))
        wrong[name]["shape"][axis] = size
        write(path, wrong, body)
        refuses_to_load(path)


def test_row_49_a_tensor_too_many(saved):
    header, body = parts_of(saved)
    more = header | {"extra": {"dtype": "F32", "shape": [2], "data_offsets": [len(body), len(body) + 8]}}
    write(saved, more, body + b"\0" * 8)
    refuses_to_load(saved)


def test_row_49_another_dtype_of_the_same_size(saved):
    other = {
        "F32": "I32",
        "I32": "F32",
        "F16": "BF16",
        "BF16": "F16",
        "I8": "U8",
        "U8": "I8",
        "I64": "F64",
        "F64": "I64",
    }
    header, body = parts_of(saved)
    for name in names_in(header):
        wrong = json.loads(json.dumps(header))
        wrong[name]["dtype"] = other[wrong[name]["dtype"]]
        write(saved, wrong, body)
        refuses_to_load(saved)


def test_row_49_another_shape_of_the_same_size(saved):
    header, body = parts_of(saved)
    for name in names_in(header):
        shape = header[name]["shape"]
        for other in ([*shape, 1], shape[::-1], [-1, *shape[1:]]):
            if other == shape:
                continue
            wrong = json.loads(json.dumps(header))
            wrong[name]["shape"] = other
            write(saved, wrong, body)
            refuses_to_load(saved)


def test_row_49_offsets_that_overlap_or_leave_the_file(saved):
    header, body = parts_of(saved)
    for name in names_in(header):
        first, last = header[name]["data_offsets"]
        for offsets in ([first + 1, last + 1], [last, first], [first, last + 2**40], [0, 2**63], [-8, last]):
            if offsets == [first, last]:
                continue
            wrong = json.loads(json.dumps(header))
            wrong[name]["data_offsets"] = offsets
            write(saved, wrong, body)
            refuses_to_load(saved)


def test_row_49_metadata_that_is_gone_or_means_nothing(saved):
    header, body = parts_of(saved)
    held = header.get("__metadata__", {})
    for name in held:
        for value in {None, "", "-1", "x", "1e9", str(2**70), "[]", "{}", "\x00"} - {held[name]}:
            wrong = json.loads(json.dumps(header))
            if value is None:
                del wrong["__metadata__"][name]
            else:
                wrong["__metadata__"][name] = value
            write(saved, wrong, body)
            refuses_to_load(saved)
    if held:
        wrong = {name: entry for name, entry in header.items() if name != "__metadata__"}
        write(saved, wrong, body)
        refuses_to_load(saved)


def test_row_49_a_safetensors_file_of_another_program(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"model.embed_tokens.weight": torch.zeros(4, 4)}, path)
    assert "KVCache" in refuses_to_load(path) or "cache" in refuses_to_load(path)


def test_row_49_lengths_that_the_file_cannot_hold(saved):
    """Whole numbers that may be lengths, made absurd: an error, never a crash or a huge allocation."""
    header, body = parts_of(saved)
    whole = [name for name in names_in(header) if header[name]["dtype"] in ("I64", "I32")]
    for name in whole:
        first, last = header[name]["data_offsets"]
        width = {"I64": 8, "I32": 4}[header[name]["dtype"]]
        for value in (-1, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1))):
            bad = body[:first] + value.to_bytes(width, "little", signed=True) + body[first + width :]
            assert len(bad) == len(body)
            assert last - first >= width
            write(saved, header, bad)
            refuses_to_load(saved)


@pytest.mark.parametrize("size", [2**40, 2**61, 2**63 - 1])
@pytest.mark.parametrize("axis", [0, 1, 3])
def test_row_49_sizes_that_cost_nothing_in_an_empty_file(axis, size, tmp_path):
    """Zero tokens have zero bytes, whatever the other axes claim."""
    path = tmp_path / "cache.safetensors"
    qkv.KVCache(2, 3, 7, value_width=5).save(path)
    header, body = parts_of(path)
    for name in names_in(header):
        if len(header[name]["shape"]) == 4:
            header[name]["shape"][axis] = size
    write(path, header, body)
    try:
        cache = qkv.KVCache.load(path)
    except errors.QkvError:
        return
    # Where it is a cache after all, its first token is too much for the machine.
    assert cache.length == 0
    assert cache.nbytes == 0
