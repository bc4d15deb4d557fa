"""Random Attention and LinearAttention nodes, with onnx's results for them, computed in two ways.

The evaluator has a function for each operator; the definition of Attention also spells it out in smaller operators,
which the evaluator runs one by one. The two share little but the matrix product.
"""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.backend.test.case.node import function_testcase_helper
from onnx.reference import ReferenceEvaluator

from benchmarks.conformance.cases import Case, read

BATCH, HEADS_KV, LEN_Q, LEN_K, WIDTH, WIDTH_V, PAST = 2, 3, 5, 7, 11, 13, 17
# The allowed difference of two computations, by the dtype of the less exact one.
TOLERANCE = {"float64": (1e-9, 1e-11), "float32": (1e-4, 1e-5)}


def drawn_attention(seed: int, *, spelt_out: bool = False) -> Case:
    """One node of opset 23, 24 or 25: layout, heads, mask, past, lengths, window, softcap and scores at random."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    opset = draw.choice((23, 24, 25))
    cache = draw.choice(("none", "past") if opset == 23 else ("none", "past", "lengths"))
    dtype = np.dtype("float32" if cache == "past" else "float64")
    heads = HEADS_KV * draw.choice((1, 2, 3))
    packed = draw.random() < 0.5
    total = LEN_K + (PAST if cache == "past" else 0)

    def normal(heads: int, length: int, width: int, flat: bool = packed) -> np.ndarray:
        array = numbers.standard_normal((BATCH, heads, length, width)).astype(dtype)
        return array.transpose(0, 2, 1, 3).reshape(BATCH, length, heads * width) if flat else array

    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": HEADS_KV} if packed else {}
    attributes |= {"is_causal": draw.randint(0, 1), "softcap": draw.choice((0.0, 1.5))}
    # The evaluator takes the root of a scale in float32: this one has an exact root.
    attributes |= draw.choice(({}, {"scale": 0.25}))
    if opset == 25:
        attributes |= {"left_window_size": draw.choice((-1, 0, 3)), "right_window_size": draw.choice((-1, 0, 2))}
    precision = draw.choice((None, TensorProto.FLOAT, TensorProto.DOUBLE))
    attributes |= {} if precision is None else {"softmax_precision": precision}
    inputs: dict[str, np.ndarray | None] = {
        "Q": normal(heads, LEN_Q, WIDTH),
        "K": normal(HEADS_KV, LEN_K, WIDTH),
        "V": normal(HEADS_KV, LEN_K, WIDTH_V),
        "attn_mask": _mask(draw, numbers, (heads, total), dtype, bool(attributes["is_causal"]), opset),
    }
    outputs = ["Y"]
    if cache == "past":
        inputs["past_key"] = normal(HEADS_KV, PAST, WIDTH, flat=False)
        inputs["past_value"] = normal(HEADS_KV, PAST, WIDTH_V, flat=False)
        outputs += ["present_key", "present_value"]
    elif cache == "lengths":
        inputs |= {"past_key": None, "past_value": None}
        inputs["nonpad_kv_seqlen"] = numbers.integers(0, LEN_K + 1, BATCH)
    if draw.random() < 0.6:
        attributes["qk_matmul_output_mode"] = draw.randint(0, 3)
        outputs += ["", "", "qk_matmul_output"] if len(outputs) == 1 else ["qk_matmul_output"]
    # The body makes 1/√width and the softmax of floats in float32.
    coarser = "float32" if spelt_out or precision == TensorProto.FLOAT else dtype.name
    return evaluated("Attention", opset, inputs, outputs, attributes, coarser, spelt_out)


def _mask(
    draw: random.Random,
    numbers: np.random.Generator,
    sizes: tuple[int, int],
    dtype: np.dtype,
    causal: bool,
    opset: int,
) -> np.ndarray | None:
    """None, booleans or numbers; axes of 1 or fewer axes; from opset 24 on sometimes shorter than the keys."""
    if draw.random() < 0.3:
        return None
    # The evaluator needs the axis of queries whole with a causal mask.
    rows = LEN_Q if causal else draw.choice((1, LEN_Q))
    heads, columns = sizes
    columns -= draw.choice((0, 0, 2)) if opset >= 24 else 0
    shape = (draw.choice((1, BATCH)), draw.choice((1, heads)), rows, columns)[draw.randint(0, 2) :]
    if draw.random() < 0.5:
        return numbers.random(shape) < 0.7
    mask = numbers.standard_normal(shape).astype(dtype)
    return np.where(numbers.random(shape) < 0.2, -np.inf, mask).astype(dtype)


def drawn_linear(seed: int) -> Case:
    """One node with the update rule that qkv computes, with and without a past."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    heads = HEADS_KV * draw.choice((1, 2, 5))

    def normal(*shape: int) -> np.ndarray:
        return numbers.standard_normal(shape).astype(np.float32)

    inputs: dict[str, np.ndarray | None] = {
        "query": normal(BATCH, LEN_K, heads * WIDTH),
        "key": normal(BATCH, LEN_K, HEADS_KV * WIDTH),
        "value": normal(BATCH, LEN_K, HEADS_KV * WIDTH_V),
        "past_state": normal(BATCH, HEADS_KV, WIDTH, WIDTH_V) if draw.random() < 0.5 else None,
    }
    attributes = {
        "q_num_heads": heads,
        "kv_num_heads": HEADS_KV,
        "update_rule": "linear",
        "scale": draw.choice((0.0, 0.7)),
    }
    return evaluated("LinearAttention", 27, inputs, ["output", "present_state"], attributes, "float32")


def evaluated(
    operator: str,
    opset: int,
    inputs: dict[str, np.ndarray | None],
    outputs: list[str],
    attributes: dict[str, Any],
    coarser: str,
    spelt_out: bool = False,
) -> Case:
    """Return the node as a case, with the evaluator's outputs as the expected ones."""
    given = {name: array for name, array in inputs.items() if array is not None}
    node = helper.make_node(operator, [name if name in given else "" for name in inputs], outputs, **attributes)
    protos = [numpy_helper.from_array(array, name) for name, array in given.items()]
    infos = [helper.make_tensor_value_info(p.name, p.data_type, list(p.dims)) for p in protos]
    results = [helper.make_tensor_value_info(name, protos[0].data_type, None) for name in outputs if name]
    graph = helper.make_graph([node], f"{operator}, drawn", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    runs = _in_smaller_operators(model) if spelt_out else model
    with warnings.catch_warnings():
        # Its Softmax subtracts −inf from itself in a row that is fully masked; the body sets such rows to 0 after it.
        warnings.filterwarnings("ignore", "invalid value encountered in subtract", RuntimeWarning, r"onnx\.reference\.")
        wanted = ReferenceEvaluator(runs).run(None, given)
    return read(model, list(given.values()), list(wanted), *TOLERANCE[coarser])


def _in_smaller_operators(model: ModelProto) -> ModelProto:
    """Return the model with its node replaced by the function body of the operator's definition."""
    (node,) = copy.deepcopy(model).graph.node
    kinds = {info.name: info.type for info in model.graph.input}
    types = [kinds.get(name, TypeProto()) for name in node.input]
    ((nodes, opsets),), _ = function_testcase_helper(node, types, "drawn", model.opset_import)
    graph = helper.make_graph(nodes, "spelt out", list(model.graph.input), list(model.graph.output))
    return helper.make_model(graph, opset_imports=opsets)
