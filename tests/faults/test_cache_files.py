"""Saved caches and prefixes that are damaged, claim wrong sizes, are other files, or change while they are read.

The hash of a prefix's header finds all of it; here it is computed again, so that what lies behind it is tested too.
"""

import json
import os
import pickle
import struct

import pytest
import torch
from safetensors.torch import save_file

import qkv
from qkv import errors
from qkv.cache.mapped import _sum
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, in_a_process, untouched


def parts_of(path):
    """(header as a dictionary, the bytes behind it)."""
    blob = path.read_bytes()
    size = struct.unpack("<Q", blob[:8])[0]
    return json.loads(blob[8 : 8 + size]), blob[8 + size :]


def write(path, header, body):
    forged = path.suffix == ".prefix" and isinstance(header, dict) and isinstance(header.get("__metadata__"), dict)
    if forged and header["__metadata__"].get("sum") == parts_of(path)[0]["__metadata__"]["sum"]:
        ends = [entry.get("data_offsets", [0, 0])[1] for name, entry in header.items() if name.endswith(".pages")]
        header["__metadata__"]["sum"] = _sum(header, body[max(ends, default=0) :])
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = text.ljust(len(text) + -(8 + len(text)) % 4096) if forged else text
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def filled(storage=torch.float32, **options):
    cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage, **options)
    cache.append(*tokens(70, batch=2, heads=(6, 3), widths=(7, 5), dtype=torch.float32, seed=0)[1:], lengths=[70, 3])
    return cache


@pytest.fixture(params=[(storage, kind) for storage in STORAGE for kind in ("cache", "prefix")], ids=str)
def saved(request, tmp_path):
    storage, kind = request.param
    cache = filled(storage)
    path = tmp_path / f"cache.{kind}"
    (cache if kind == "cache" else cache.freeze()).save(path)
    return path


def refuses_to_load(path):
    with pytest.raises(errors.QkvError) as caught:
        (qkv.KVCache.map if path.suffix == ".prefix" else qkv.KVCache.load)(path)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert str(caught.value)
    assert "\n" not in str(caught.value)
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
    held, whole = header.get("__metadata__", {}), saved.read_bytes()
    for name in held:
        for value in {None, "", "-1", "x", "1e9", str(2**70), "[]", "{}", "\x00"} - {held[name]}:
            wrong = json.loads(json.dumps(header))
            if value is None:
                del wrong["__metadata__"][name]
            else:
                wrong["__metadata__"][name] = value
            saved.write_bytes(whole)
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


@pytest.fixture
def prefix_file(tmp_path):
    path = tmp_path / "known.prefix"
    filled(torch.bfloat16).freeze().save(path, model="llama of 2", tokens=range(73))
    return path


def refuses(match, path, **options):
    with pytest.raises(errors.OptionError, match=match) as caught:
        qkv.KVCache.map(path, **options)
    assert "\n" not in str(caught.value)


def test_prefixes_of_another_model_of_other_tokens_or_of_no_name(prefix_file, tmp_path):
    assert qkv.KVCache.map(prefix_file, model="llama of 2", tokens=list(range(73))).lengths.tolist() == [70, 3]
    refuses(r"model: got 'llama of 3', wanted 'llama of 2', as saved", prefix_file, model="llama of 3")
    refuses(r"tokens: got 73 tokens, .* 73, of which the first 72 are these", prefix_file, tokens=[*range(72), 5])
    filled().freeze().save(tmp_path / "unnamed.prefix")
    refuses("wanted none, as saved", tmp_path / "unnamed.prefix", model="llama of 2")
    refuses("that were saved, none", tmp_path / "unnamed.prefix", tokens=[1])
    with pytest.raises(errors.ShapeError, match="tokens: got 72, wanted 73"):
        filled().freeze().save(tmp_path / "unnamed.prefix", tokens=range(72))


def test_what_is_no_prefix(prefix_file, tmp_path):
    filled().save(tmp_path / "cache.safetensors")
    refuses("format 'qkv.KVCache'", tmp_path / "cache.safetensors")
    os.mkfifo(tmp_path / "pipe")
    refuses("a pipe or a device", tmp_path / "pipe")
    with pytest.raises(errors.OptionTypeError, match="path"):
        qkv.KVCache.map(3)
    with pytest.raises(OSError, match="nowhere"):
        qkv.KVCache.map(tmp_path / "nowhere")
    with pytest.raises(errors.QkvError, match=r"qkv\.KVCache"):
        qkv.KVCache.load(prefix_file.rename(tmp_path / "known.safetensors"))


def test_every_byte_of_a_header_and_of_small_pages_counts(prefix_file):
    blob = prefix_file.read_bytes()
    count = struct.unpack("<Q", blob[:8])[0]
    text = blob[8 : 8 + count].rstrip()
    for at in [0, 3, *range(8, 8 + len(text), 7), *range(8 + count, len(blob), 997), len(blob) - 1]:
        prefix_file.write_bytes(blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])
        refuses("path: got", prefix_file)


def test_pages_are_compared_with_their_hash_if_that_is_cheap_or_asked_for(prefix_file, monkeypatch):
    blob = prefix_file.read_bytes()
    count = struct.unpack("<Q", blob[:8])[0]
    prefix_file.write_bytes(blob[: 8 + count + 64] + b"?" + blob[8 + count + 65 :])
    refuses("pages that their hash does not fit", prefix_file)
    assert qkv.KVCache.map(prefix_file, check=False).length == 70
    monkeypatch.setattr("qkv.cache.mapped._CHECKED", 1 << 10)
    assert qkv.KVCache.map(prefix_file).length == 70
    refuses("pages that their hash does not fit", prefix_file, check=True)


def forge(path, name, change):
    """Change the numbers of an array, with hashes that fit."""
    header, body = parts_of(path)
    first, last = header[name]["data_offsets"]
    numbers = torch.frombuffer(bytearray(body[first:last]), dtype=torch.int64).view(header[name]["shape"])
    change(numbers)
    write(path, header, body[:first] + numbers.numpy().tobytes() + body[last:])


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        *[("0.table", (0,), value) for value in (-1, 1, 3, 2**62)],
        *[("0.rows", (0, 0), value) for value in (-1, 60, 200, 2**48, 2**63 - 1, -(2**63))],
        *[("0.rows", (1, 1), value) for value in (-1, 1, 2**40)],
    ],
)
def test_forged_tables_and_lengths(prefix_file, name, at, value):
    forge(prefix_file, name, lambda numbers: numbers.__setitem__(at, value))
    refuses("path: got", prefix_file)


@pytest.mark.parametrize("change", [{"heads": 2**39}, {"width": 11}, {"window": 0}, {"capacity": 69}, {"dtype": "x"}])
def test_forged_sizes(prefix_file, change):
    header, body = parts_of(prefix_file)
    record = json.loads(header["__metadata__"]["caches"])[0]
    for records in ([record | change], [record, None], [{}], [record | {"heads": "3"}], [record | {"width": 7.0}], 7):
        header["__metadata__"]["caches"] = json.dumps(records)
        write(prefix_file, header, body)
        refuses("path: got", prefix_file)


def test_rows_that_would_cost_more_memory_than_the_file_has(tmp_path):
    """One page, which a long row repeats, and many rows: the table would have a place for each page of each row."""
    path, many, long = tmp_path / "bomb.prefix", 1 << 16, 1 << 14
    cache = qkv.KVCache(1, 1, 1, dtype=torch.float16)
    cache.append(torch.ones(1, 1, 64, 1), torch.ones(1, 1, 64, 1))
    cache.freeze().save(path)
    header, body = parts_of(path)
    page = header["0.pages"]["data_offsets"][1]
    rows = torch.zeros(many, 2, dtype=torch.int64)
    rows[0, 0] = 64 * long
    for name, array in (("0.rows", rows), ("0.table", torch.zeros(long, dtype=torch.int64))):
        header[name] = header[name] | {"shape": list(array.shape)}
    sizes = [page, 16 * many, 8 * long]
    for at, name in enumerate(("0.pages", "0.rows", "0.table")):
        header[name]["data_offsets"] = [sum(sizes[:at]), sum(sizes[: at + 1])]
    write(path, header, body[:page] + rows.numpy().tobytes() + bytes(8 * long))
    refuses(r"65536 rows of up to 1048576 tokens", path)


def test_a_prefix_that_is_replaced_while_it_is_mapped(prefix_file):
    """The old file stays for those who mapped it, the new one is for those who come."""
    prefix, old = qkv.KVCache.map(prefix_file), filled(torch.bfloat16)
    short = qkv.KVCache(2, 3, 7, value_width=5)
    short.freeze().save(prefix_file)
    for found, wanted in zip(prefix.fork().tensors(), old.tensors(), strict=True):
        assert torch.equal(found, wanted)
    assert qkv.KVCache.map(prefix_file).length == 0
    prefix_file.unlink()
    assert prefix.fork().length == 70


def test_a_prefix_that_is_written_to_while_it_is_mapped(prefix_file):
    prefix = qkv.KVCache.map(prefix_file)
    copy = prefix.fork()
    with untouched(copy), prefix_file.open("r+b") as file:
        os.utime(prefix_file, ns=(5, 5))
        with pytest.raises(errors.OptionError, match="cut off or changed while it was mapped"):
            prefix.fork()
        file.seek(0, 2)
        file.write(b"more")
    with pytest.raises(errors.OptionError, match="cut off or changed while it was mapped"):
        prefix.fork()


@pytest.mark.slow
def test_a_prefix_that_is_cut_off_while_it_is_mapped(tmp_path):
    """SIGBUS does not end the process: what is gone is NaN, in every format, and no cache forks any more."""
    for number, storage in enumerate(STORAGE):
        cache = qkv.KVCache(1, 3, 7, value_width=5, dtype=storage)
        cache.append(*tokens(1500, batch=1, heads=(6, 3), widths=(7, 5), dtype=torch.float32, seed=0)[1:])
        cache.freeze().save(tmp_path / f"{number}.prefix")
    said = in_a_process(
        f"""
        import os, torch, qkv
        for number in range({len(STORAGE)}):
            path = f"{tmp_path}/{{number}}.prefix"
            prefix = qkv.KVCache.map(path)
            cache = prefix.fork()
            whole = cache.tensors()[1]
            os.truncate(path, 3 * os.path.getsize(path) // 4)
            found = cache.tensors()[1]
            assert torch.equal(found[:, :, :1000], whole[:, :, :1000]) and found[:, :, -100:].isnan().all()
            query = torch.ones(1, 6, 1, 7)
            assert qkv.attend(query, cache).isnan().all()
            try:
                prefix.fork()
            except qkv.errors.OptionError as error:
                assert "cut off or changed while it was mapped" in str(error)
            else:
                raise AssertionError("a fork")
            cache.crop(1000)
            assert qkv.attend(query, cache).isfinite().all()
            os.truncate(path, 0)
            assert cache.fork().tensors()[0].isnan().any()
            print(number)
        """
    )
    assert said.split() == [str(number) for number in range(len(STORAGE))]


@pytest.mark.slow
def test_without_the_native_library_a_prefix_is_read(prefix_file):
    said = in_a_process(
        f"""
        import os, torch, qkv
        prefix = qkv.KVCache.map({str(prefix_file)!r}, model="llama of 2")
        os.truncate({str(prefix_file)!r}, 0)
        print(prefix.fork().tensors()[0].isfinite().all())
        """,
        QKV_NATIVE="0",
    )
    assert said == "tensor(True)\n"
