"""The GGUF reader: what the gguf package reads, and one sentence for each file that is damaged or hostile."""

import os
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.runtime.gguf import GgufFile

INTEGERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(7)
    writer.add_float32("a.number", 0.25)
    writer.add_bool("a.flag", True)
    writer.add_array("a.texts", ["one", "zwei", "三", ""])
    writer.add_array("a.numbers", [3, 1, 4, 1, 5])
    for at, kind in enumerate((gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0)):
        numbers = rng.standard_normal((5, 96)).astype(np.float32)
        writer.add_tensor(f"packed.{at}", gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.add_tensor("matrix", rng.standard_normal((3, 7)).astype(np.float32))
    writer.add_tensor("half", rng.standard_normal((2, 6)).astype(np.float16))
    writer.add_tensor("vector", rng.standard_normal(11).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_reads_what_the_gguf_package_reads(whole):
    found, wanted = GgufFile(whole), gguf.GGUFReader(whole)
    for name, field in wanted.fields.items():
        if name.startswith("GGUF."):
            continue
        value = found.metadata[name]
        if hasattr(value, "texts"):
            value = value.texts() or value.numbers().tolist()
        assert value == field.contents(), name
    assert found.names() == [tensor.name for tensor in wanted.tensors]
    for tensor in wanted.tensors:
        matrix = found.matrix(tensor.name)
        assert matrix.format.name == tensor.tensor_type.name.lower()
        assert found.shape(tensor.name) == tuple(int(n) for n in tensor.shape[::-1])
        assert matrix.data.tobytes() == tensor.data.tobytes()
        assert matrix.data.shape == (matrix.rows, matrix.format.row_bytes(matrix.columns))


def test_weights_are_views_of_the_mapped_file(whole):
    file = GgufFile(whole)
    address = file.matrix("matrix").data.ctypes.data
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split() for line in maps if str(whole) in line]
    ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    assert any(start <= address < stop for start, stop in ranges)
    assert not file.matrix("matrix").data.flags.writeable


def refused(path, *words):
    tracemalloc.start()
    try:
        with pytest.raises(OptionError) as caught:
            GgufFile(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    assert all(word in text for word in words), text
    assert peak < 2 << 20


def header(tensors=0, metadata=b"", count=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + metadata


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def tensor(name="t", shape=(32,), code=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


HOSTILE = {
    "nothing": (b"", "no header"),
    "foreign": (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
    "version": (header(version=1) + bytes(8), "version 1"),
    "big-endian": (header(version=3 << 24) + bytes(8), "version 50331648"),
    "many tensors": (header(tensors=2**62) + bytes(64), "4611686018427387904 tensors"),
    "many metadata": (header(count=2**62) + bytes(64), "4611686018427387904 metadata"),
    "long name": (header(1, struct.pack("<Q", 2**63) + bytes(64)), "a text of 9223372036854775808 bytes"),
    "not UTF-8": (header(0, text(b"\xff\xfe") + struct.pack("<II", 4, 1), 1), "not UTF-8"),
    "unknown type": (header(0, text("a") + struct.pack("<II", 99, 1), 1), "type 99"),
    "nested arrays": (header(0, text("a") + struct.pack("<IIQ", 9, 9, 2) + bytes(64), 1), "array of type 9"),
    "long array": (header(0, text("a") + struct.pack("<IIQ", 9, 5, 2**61) + bytes(64), 1), "needs"),
    "many texts": (header(0, text("a") + struct.pack("<IIQ", 9, 8, 2**40) + bytes(64), 1), "1099511627776 texts"),
    "long text": (header(0, text("a") + struct.pack("<IIQQ", 9, 8, 2, 2**63 - 9) + bytes(64), 1), "needs"),
    "twice": (header(0, 2 * (text("a") + struct.pack("<II", 4, 1)), 2), "a twice"),
    "alignment": (header(0, text("general.alignment") + struct.pack("<II", 4, 24), 1), "alignment of 24"),
    "no dimensions": (header(1, text("t") + struct.pack("<IIQ", 0, 0, 0)) + bytes(64), "0 dimensions"),
    "many dimensions": (header(1, text("t") + struct.pack("<I", 2**31) + bytes(64)), "2147483648 dimensions"),
    "size 0": (header(1, tensor(shape=(0,))) + bytes(64), "shape (0,)"),
    "huge": (header(1, tensor(shape=(2**32, 2**32))) + bytes(64), "shape (4294967296, 4294967296)"),
    "after the end": (header(1, tensor(shape=(32, 999))) + bytes(256), "bytes after the file"),
    "far offset": (header(1, tensor(offset=2**63)) + bytes(256), "bytes after the file"),
    "not aligned": (header(1, tensor(offset=4)) + bytes(256), "not aligned"),
    "unknown blocks": (header(1, tensor(code=10)) + bytes(256), "blocks of type 10"),
    "part of a block": (header(1, tensor(shape=(33,), code=8)) + bytes(256), "shape (33,) in q8_0"),
    "overlapping": (header(2, tensor("a") + tensor("b", offset=64)) + bytes(512), "overlaps"),
    "same name": (header(2, tensor("a") + tensor("a", offset=128)) + bytes(512), "tensor a twice"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line_and_little_memory(tmp_path, name):
    data, words = HOSTILE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    refused(path, words)


def test_every_truncation_is_refused(whole, tmp_path):
    data, path = whole.read_bytes(), tmp_path / "model.gguf"
    last = GgufFile(whole).matrix("vector").data.tobytes()
    size = data.rindex(last) + len(last)  # padding follows
    for end in (*range(0, size, 7), size - 1):
        path.write_bytes(data[:end])
        with pytest.raises(OptionError) as caught:
            GgufFile(path)
        assert "\n" not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    refused(tmp_path / "model.gguf", "not a regular file")
    refused(tmp_path, "not a regular file")


@settings(max_examples=300)
@given(data=st.data())
def test_changed_bytes_are_read_or_refused(whole, tmp_path_factory, data):
    """No other error, nothing outside the file."""
    contents = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 900))
        new = data.draw(
            st.sampled_from([b"\xff", b"\0", struct.pack("<Q", 2**64 - 1), struct.pack("<Q", 2**31), b"\x09"])
        )
        contents[at : at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(contents)
    try:
        file = GgufFile(path)
    except OptionError:
        return
    for name in file.names():
        assert file.matrix(name).data.size <= len(contents)
    for value in file.metadata.values():
        if hasattr(value, "texts"):
            assert len(value.texts()) + len(value.numbers()) == value.count
