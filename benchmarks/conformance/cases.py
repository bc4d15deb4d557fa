"""The node test cases of the onnx package, read into arrays with the names of the operator's definition."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor

PACKAGE = "onnx.backend.test.case.node"
# The module with the cases of an operator: the loader of all operators takes ten times as long.
FILES = {"Attention": "attention", "LinearAttention": "linear_attention"}
# Warnings of other operators' cases at the limits of a type.
WARNINGS = (
    "overflow encountered in cast",
    "invalid value encountered in divide",
    "divide by zero encountered in divide",
    "divide by zero encountered in log",
)


class Refused(Exception):
    """The case is outside the equation, or of the inputs that qkv accepts; the text says why."""


@dataclass(frozen=True)
class Case:
    """One node, its inputs and the outputs that are wanted, by the names of the operator's definition."""

    name: str
    operator: str
    opset: int
    attributes: dict[str, Any]
    inputs: dict[str, np.ndarray]
    wanted: dict[str, np.ndarray]
    rtol: float
    atol: float
    model: onnx.ModelProto

    def tensor(self, name: str) -> Tensor | None:
        """An input as a tensor; None where the node has none."""
        return to_tensor(self.inputs[name]) if name in self.inputs else None


@functools.cache
def base_cases(operator: str, *, everything: bool = False) -> tuple[Case, ...]:
    """The cases of an operator, without those in which it is expanded into other operators.

    everything: use the loader of all operators, to check that no case is in another module.
    """
    with _restore_numpy_state():
        if everything:
            from onnx.backend.test.loader import load_node_model_tests

            found = load_node_model_tests()
        else:
            importlib.import_module(f"{PACKAGE}.{FILES[operator]}")
            found = importlib.import_module(PACKAGE)._NodeTestCases
    wanted = (test for test in found if _is_of(operator, test))
    return tuple(read(test.model, *test.data_sets[0], test.rtol, test.atol) for test in wanted)


def _is_of(operator: str, test: Any) -> bool:
    nodes = test.model.graph.node
    return len(nodes) == 1 and nodes[0].op_type == operator


@contextmanager
def _restore_numpy_state() -> Iterator[None]:
    """The modules use numpy's global random state, which is restored, and some of them warn."""
    state = np.random.get_state()
    with warnings.catch_warnings():
        for message in WARNINGS:
            warnings.filterwarnings("ignore", message, RuntimeWarning, module=rf"{PACKAGE}\.")
        try:
            yield
        finally:
            np.random.set_state(state)


def read(model: onnx.ModelProto, inputs: list[Any], outputs: list[Any], rtol: float, atol: float) -> Case:
    """A model of one node, with its inputs and expected outputs."""
    (node,) = model.graph.node
    (opset,) = [entry.version for entry in model.opset_import if entry.domain == node.domain]
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    attributes = {
        name: helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    attributes |= {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return Case(
        name=model.graph.name.removeprefix("test_"),
        operator=node.op_type,
        opset=schema.since_version,
        attributes=attributes,
        inputs=_named(schema.inputs, node.input, inputs),
        wanted=_named(schema.outputs, node.output, outputs),
        rtol=rtol,
        atol=atol,
        model=model,
    )


def _named(parameters: Any, used: Any, arrays: list[Any]) -> dict[str, np.ndarray]:
    """An empty name in a node leaves its parameter out."""
    present = [parameter.name for parameter, name in zip(parameters, used, strict=False) if name]
    return dict(zip(present, arrays, strict=True))


def to_tensor(array: np.ndarray) -> Tensor:
    """A copy; torch reads numpy's bfloat16 as bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_array(tensor: Tensor) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
    return tensor.contiguous().numpy()
