"""onnxruntime's Attention operator: a model of one node, of opset 23, or 24 if lengths are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import Subject, only
from .jax_nn import to_tensor
from .pytorch import joined

# onnx.TensorProto's numbers
ELEMENT = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int32: 6, torch.int64: 7, torch.bool: 9, torch.float16: 10,
    torch.float64: 11, torch.complex64: 14, torch.bfloat16: 16, torch.float8_e4m3fn: 17,
}  # fmt: skip


def session(tensors: dict[str, Tensor], opset: int, **attributes: Any) -> Any:
    import onnxruntime as ort
    from onnx import helper

    ort.set_default_logger_severity(4)
    inputs = [helper.make_tensor_value_info(name, ELEMENT[t.dtype], [None] * t.dim()) for name, t in tensors.items()]
    out = helper.make_tensor_value_info("out", ELEMENT[tensors["query"].dtype], None)
    places = ["query", "key", "value", "mask", "", "", "lengths"]
    names = [name if name in tensors else "" for name in places]
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, ["out"], **attributes)
    model = helper.make_model(
        helper.make_graph([node], "probe", inputs, [out]), opset_imports=[helper.make_opsetid("", opset)], ir_version=11
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class OnnxRuntime(Subject):
    name, short = "onnxruntime", "ORT"
    packages = ("onnxruntime", "onnx")
    dtypes = (torch.float32, torch.float16)
    has_gradients = False
    takes_strides = False

    def attend(self, way: str, query: Any, key: Any, value: Any, **options: Any) -> Tensor:
        only(options, "keep", "bias", "scale", "softcap", "causal", "lengths")
        tensors = {"query": query, "key": key, "value": value}
        mask = joined(options.get("keep"), options.get("bias"))
        if mask is not None:
            tensors["mask"] = mask
        if options.get("lengths") is not None:
            tensors["lengths"] = torch.as_tensor(options["lengths"])
        given: dict[str, Any] = {"is_causal": 1} if options.get("causal") else {}
        given |= {name: float(options[name]) for name in ("scale", "softcap") if options.get(name) is not None}
        running = session(tensors, 24 if "lengths" in tensors else 23, **given)
        fed = {name: np.asarray(tensor.detach().numpy()) for name, tensor in tensors.items()}
        return to_tensor(running.run(None, fed)[0])


SUBJECTS = [OnnxRuntime()]
