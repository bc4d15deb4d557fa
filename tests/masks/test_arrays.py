import warnings

import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError
from qkv.masks.grid import as_booleans, as_integers, brief_repr, describe, is_tensor, shape_of, tensor_version, to_numpy


def test_torch_tensors_are_kept_and_the_rest_is_copied():
    tensor, array = torch.ones(2, 3).bool(), np.ones((2, 3), dtype=bool)
    assert as_booleans("keep", tensor, "(2, 3)") is tensor
    copied = as_booleans("keep", array, "(2, 3)")
    array[:] = False
    assert copied.all()
    assert is_tensor(tensor)
    assert not is_tensor(array)


def test_empty_lists_have_no_wrong_kind():
    assert as_booleans("keep", [[], []], "(2, 0)").shape == (2, 0)
    assert as_integers("ids", [], "(0,)").dtype == np.int64
    with pytest.raises(MaskTypeError):
        as_booleans("keep", np.zeros(0), "(0,)")


def test_integers_are_not_booleans_and_fit_64_bits():
    for wrong in ([True], [2**63], [2**70], [1.0], torch.ones(2).bool(), torch.ones(2).to(torch.uint32), "3"):
        with pytest.raises(MaskTypeError, match="wanted integers of shape"):
            as_integers("ids", wrong, "(len,)")
    assert as_integers("ids", np.array([255], dtype=np.uint8), "(len,)").tolist() == [255]


def test_ragged_lists():
    with pytest.raises(MaskError, match="a list whose rows have different lengths"):
        as_integers("ids", [[1], [1, 2]], "(len,)")


def test_nested_tensors():
    with warnings.catch_warnings(action="ignore"):  # a prototype, says torch
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(MaskTypeError, match="nested tensor, wanted an ordinary"):
        as_booleans("keep", nested, "(2, 3)")


def test_words():
    assert describe(torch.zeros(2, 3)) == "a torch.float32 tensor of shape (2, 3)"
    assert describe([[True]]) == "bool values of shape (1, 1)"
    assert describe("x" * 99).endswith("...")
    assert brief_repr(tuple(range(9))) == "<9 integers>"
    assert brief_repr(torch.zeros(2, 3).bool()) == "<bool (2, 3)>"
    assert shape_of((1, 2, 3)) == (3,)


def test_versions():
    tensor = torch.zeros(3)
    before = tensor_version(tensor)
    tensor += 1
    assert tensor_version(tensor) != before
    assert tensor_version((1, 2)) == 0
    with torch.inference_mode():
        assert tensor_version(torch.zeros(3)) is None
    assert to_numpy(torch.zeros(3, requires_grad=True)).tolist() == [0, 0, 0]
