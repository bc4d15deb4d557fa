"""Bytes of tensors in any layout, compared with those of NumPy."""

import pytest
import torch
from torch import nn

from qkv.cache.prefixes import fingerprint
from qkv.nn.packed import PackedLinear
from qkv.parallel.consensus import value_text
from qkv.raw import as_bytes

LAYOUTS = {
    "whole": lambda x: x,
    "a part": lambda x: x[2:5, 1:],
    "transposed": lambda x: x.transpose(0, 2),
    "spread": lambda x: x[..., 1],
    "a column": lambda x: x[1, :, 2:],
    "one number": lambda x: x.transpose(0, 2)[2:, 3:4, 4:5],
    "a scalar": lambda x: x[6, 4, 2],
    "repeated": lambda x: x[:1].expand(2, 5, 3),
    "empty": lambda x: x[:, :0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.bool])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_bytes_lie_row_by_row(layout, dtype):
    tensor = layout(torch.arange(7 * 5 * 3).view(7, 5, 3).to(dtype))
    found = as_bytes(tensor)
    assert found.shape == (tensor.nbytes,)
    assert found.numpy().tobytes() == tensor.numpy().tobytes()


def test_bytes_of_a_whole_tensor_are_not_copied():
    tensor = torch.zeros(3, 5)
    assert as_bytes(tensor).data_ptr() == tensor.data_ptr()


def test_a_single_number_may_have_any_stride():
    """torch calls it contiguous and leaves its strides, so that `view` refuses to show its bytes."""
    number = torch.arange(35.0).view(5, 7).T[3:4, 2:3]
    assert number.contiguous().stride() == (1, 7)
    assert fingerprint(number) == fingerprint(number.clone(memory_format=torch.contiguous_format))
    assert value_text(number) == value_text(torch.tensor([[17.0]]))
    layer = nn.Linear(1, 3, bias=False)
    layer.weight = nn.Parameter(torch.arange(35.0).view(5, 7).T[:3, 2:3])
    x = torch.ones(2, 1)
    assert PackedLinear.from_linear(layer)(x).tolist() == layer(x).tolist()
