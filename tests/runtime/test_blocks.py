"""Weight formats: unpacked and packed as the gguf package does, to the bit."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.runtime.blocks import FORMAT_OF_CODE, FORMATS, PACKED, PackedMatrix, pack


def from_numbers(x):
    return PackedMatrix(np.ascontiguousarray(x, dtype=np.float32).view(np.uint8), FORMATS["f32"], *x.shape, "w")


@pytest.mark.parametrize("name", FORMATS)
def test_any_bytes_are_unpacked_as_gguf_does(name):
    layout, rng = FORMATS[name], np.random.default_rng(3)
    kind = gguf.GGMLQuantizationType[name.upper()]
    assert (kind.value, gguf.GGML_QUANT_SIZES[kind]) == (layout.code, (layout.elements, layout.nbytes))
    assert FORMAT_OF_CODE[layout.code] is layout
    data = rng.integers(0, 256, (37, 3 * layout.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(data, kind)
        matrix = PackedMatrix(data, layout, 37, 3 * layout.elements)
        found = matrix.dense().numpy()
        assert np.array_equal(found, wanted, equal_nan=True)
        rows = torch.tensor([5, 0, 5, 36])
        assert np.array_equal(matrix.dense(rows).numpy(), wanted[rows], equal_nan=True)


@pytest.mark.parametrize("name", PACKED)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.0, 1e-6, 1.0, 300.0]))
def test_numbers_are_packed_as_gguf_does(name, seed, scale):
    x = (scale * np.random.default_rng(seed).standard_normal((5, 96))).astype(np.float32)
    x[0, :32] = 0
    packed = pack(from_numbers(x), name)
    assert np.array_equal(packed.data, gguf.quants.quantize(x, gguf.GGMLQuantizationType[name.upper()]))
    assert (packed.rows, packed.columns, packed.row_bytes) == (5, 96, FORMATS[name].row_bytes(96))


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(OptionError, match="multiple of 32"):
        pack(from_numbers(np.ones((2, 40))), "q8_0")
    with pytest.raises(OptionError, match="beyond float16"):
        pack(from_numbers(np.full((2, 32), np.inf)), "q8_0")
    with pytest.raises(OptionError, match="formats of the file are kept"):
        pack(pack(from_numbers(np.ones((2, 32))), "q4_1"), "q8_0")


def test_scales_that_are_not_finite_are_found():
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    assert from_numbers(x).is_finite()
    packed = pack(from_numbers(x), "q4_1")
    assert packed.is_finite()
    for at in (0, 2):
        data = packed.data.copy()
        data[1, 20 + at : 22 + at] = 0xFF
        assert not PackedMatrix(data, FORMATS["q4_1"], 3, 64).is_finite()
    x[2, 7] = np.nan
    assert not from_numbers(x).is_finite()
