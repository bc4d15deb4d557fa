"""onnxruntime's Attention operator (opset 23). Inputs and output are bound once: no copy in a step."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from . import DTYPES, Peer, Step, TimedCall

# onnx.TensorProto's numbers; the binding takes them for types that numpy does not have.
ELEMENT = {"float32": 1, "float16": 10, "bfloat16": 16}


@functools.cache
def _session(storage: str, threads: int) -> Any:
    """A model of one node. Sizes are symbolic, so that one session serves all shapes."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    sizes = {
        "query": ["batch", "heads_q", 1, "width"],
        "key": ["batch", "heads_kv", "total", "width"],
        "value": ["batch", "heads_kv", "total", "width"],
    }
    element = ELEMENT[storage]
    assert element == getattr(TensorProto, {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}[storage])
    inputs = [helper.make_tensor_value_info(name, element, dims) for name, dims in sizes.items()]
    out = helper.make_tensor_value_info("out", element, sizes["query"])
    graph = helper.make_graph([helper.make_node("Attention", list(sizes), ["out"])], "decode", inputs, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Its threads may spin within a step, as they do for users, but not while the next entry runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class OnnxRuntime(Peer):
    name = "onnx"
    title = "onnxruntime, Attention of opset 23, all bound; joined likewise"
    package = "onnxruntime"

    def refuses(self, step: Step, storage: str) -> str | None:
        if reason := super().refuses(step, storage):
            return reason
        try:
            _session(storage, torch.get_num_threads())
        except Exception as error:
            return f"onnxruntime: {str(error).split(' : ')[-1][:58]}"
        return None

    def prepare(self, step: Step, storage: str) -> TimedCall:
        session = _session(storage, torch.get_num_threads())
        out = torch.empty(step.query.shape, dtype=DTYPES[storage])
        binding = session.io_binding()
        for name, tensor in (("query", step.query), ("key", step.all_key), ("value", step.all_value)):
            binding.bind_input(name, "cpu", 0, ELEMENT[storage], list(tensor.shape), tensor.data_ptr())
        binding.bind_output("out", "cpu", 0, ELEMENT[storage], list(out.shape), out.data_ptr())

        def run() -> Tensor:
            session.run_with_iobinding(binding)
            return out

        return TimedCall(run)


PEERS = [OnnxRuntime()]
