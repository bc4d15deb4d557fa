"""ggml's flash_attn_ext, mul_mat and soft_max_ext, with ctypes from the shared libraries of llama-cpp-python.

One graph of one node for each cache. float32, float16 and bfloat16 read torch's memory (the layouts agree); q8_0, its
8-bit storage, is made by ggml's quantiser. Queries and sums are float32.
"""

from __future__ import annotations

import ctypes as c
import functools
import weakref
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import Peer, Step, TimedCall

TYPE = {"float32": 0, "float16": 1, "int8": 8, "bfloat16": 30}  # enum ggml_type; int8 is its q8_0
BLOCK = 32  # numbers that share a scale in q8_0


class _Parameters(c.Structure):
    """struct ggml_init_params"""

    _fields_ = (("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool))


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_version": (c.c_char_p, []),
    "ggml_tensor_overhead": (c.c_size_t, []),
    "ggml_graph_overhead_custom": (c.c_size_t, [c.c_size_t, c.c_bool]),
    "ggml_row_size": (c.c_size_t, [c.c_int, c.c_int64]),
    "ggml_init": (c.c_void_p, [_Parameters]),
    "ggml_free": (None, [c.c_void_p]),
    "ggml_new_tensor_4d": (c.c_void_p, [c.c_void_p, c.c_int, *[c.c_int64] * 4]),
    "ggml_mul_mat": (c.c_void_p, [c.c_void_p] * 3),
    "ggml_soft_max_ext": (c.c_void_p, [*[c.c_void_p] * 3, *[c.c_float] * 2]),
    "ggml_flash_attn_ext": (c.c_void_p, [*[c.c_void_p] * 5, *[c.c_float] * 3]),
    "ggml_new_graph_custom": (c.c_void_p, [c.c_void_p, c.c_size_t, c.c_bool]),
    "ggml_build_forward_expand": (None, [c.c_void_p, c.c_void_p]),
    "ggml_quantize_chunk": (c.c_size_t, [c.c_int, c.c_void_p, c.c_void_p, *[c.c_int64] * 3, c.c_void_p]),
    "ggml_backend_cpu_buffer_from_ptr": (c.c_void_p, [c.c_void_p, c.c_size_t]),
    "ggml_backend_buffer_free": (None, [c.c_void_p]),
    "ggml_backend_tensor_alloc": (c.c_int, [c.c_void_p, c.c_void_p, c.c_void_p]),
    "ggml_backend_graph_compute": (c.c_int, [c.c_void_p, c.c_void_p]),
    "ggml_backend_cpu_init": (c.c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c.c_void_p, c.c_int]),
}


class _Library:
    """The functions above, from the library of ggml that has them."""

    def __init__(self) -> None:
        spec = util.find_spec("llama_cpp")
        if spec is None or not spec.submodule_search_locations:
            raise OSError("llama_cpp is not installed")
        folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
        # torch is loaded already, so ggml uses its OpenMP runtime: one pool of threads, not two.
        parts = [c.CDLL(str(folder / f"lib{part}.so")) for part in ("ggml-base", "ggml-cpu")]
        for name, (result, arguments) in SIGNATURES.items():
            function = next((getattr(part, name) for part in parts if hasattr(part, name)), None)
            if function is None:
                raise OSError(f"ggml has no {name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@functools.cache
def _library() -> _Library:
    return _Library()


@functools.cache
def _backend(threads: int) -> Any:
    library = _library()
    backend = library.ggml_backend_cpu_init()
    library.ggml_backend_cpu_set_n_threads(backend, threads)
    return backend


def quantized(tensor: Tensor, kind: int = TYPE["int8"]) -> Tensor:
    """The bytes of a float32 tensor in a quantized type, row by row."""
    library, width = _library(), tensor.shape[-1]
    rows = tensor.numel() // width
    out = torch.empty(rows * library.ggml_row_size(kind, width), dtype=torch.uint8)
    library.ggml_quantize_chunk(kind, tensor.data_ptr(), out.data_ptr(), 0, rows, width, None)
    return out


class _Node:
    """A graph of one operation, the last of `nodes`; each node has memory that torch owns."""

    out: Tensor

    def _build(self, context: Any, nodes: list[Any], memories: list[Tensor]) -> None:
        library, buffers = _library(), []
        for node, memory in zip(nodes, memories, strict=True):
            buffers.append(library.ggml_backend_cpu_buffer_from_ptr(memory.data_ptr(), memory.nbytes))
            if library.ggml_backend_tensor_alloc(buffers[-1], node, memory.data_ptr()):
                raise MemoryError("ggml_backend_tensor_alloc")
        self.graph = library.ggml_new_graph_custom(context, 8, False)
        library.ggml_build_forward_expand(self.graph, nodes[-1])
        self.backend, self.compute = _backend(torch.get_num_threads()), library.ggml_backend_graph_compute
        weakref.finalize(self, _release, context, buffers)

    def __call__(self) -> Tensor:
        if self.compute(self.backend, self.graph):
            raise RuntimeError("ggml_backend_graph_compute")
        return self.out


def _new_context() -> Any:
    library = _library()
    size = 8 * library.ggml_tensor_overhead() + library.ggml_graph_overhead_custom(8, False)
    return library.ggml_init(_Parameters(size, None, True))


class Product(_Node):
    """out (n, rows) = mul_mat of weights (rows, row_bytes) in a type of ggml, and x (n, columns) in float32."""

    def __init__(self, weight: Tensor, kind: int, columns: int, x: Tensor) -> None:
        library, context = _library(), _new_context()
        self.out, self.inputs = torch.empty(len(x), len(weight)), (weight, x)
        nodes = [
            library.ggml_new_tensor_4d(context, kind, columns, len(weight), 1, 1),
            library.ggml_new_tensor_4d(context, TYPE["float32"], columns, len(x), 1, 1),
        ]
        self._build(context, [*nodes, library.ggml_mul_mat(context, *nodes)], [weight, x, self.out])


class _Attention(_Node):
    """out (batch, 1, heads_q, width) = flash_attn_ext(query, key, value), all in memory that torch owns."""

    def __init__(self, step: Step, storage: str) -> None:
        library = _library()
        batch, heads, _, width = step.query.shape
        kv_heads, total = step.all_key.shape[1:3]
        query = step.query.float()
        key, value = step.all_key, step.all_value
        if storage == "int8":
            key, value = quantized(key), quantized(value)
        self.out = torch.empty(batch, 1, heads, width)
        self.inputs = (query, key, value)
        context = _new_context()

        def tensor(kind: str, length: int, heads: int) -> Any:
            return library.ggml_new_tensor_4d(context, TYPE[kind], width, length, heads, batch)

        nodes = [tensor("float32", 1, heads), tensor(storage, total, kv_heads), tensor(storage, total, kv_heads)]
        nodes.append(library.ggml_flash_attn_ext(context, *nodes, None, width**-0.5, 0.0, 0.0))
        self._build(context, nodes, [*self.inputs, self.out])


class _Products(_Node):
    """The same as llama.cpp computes it without flash attention: softmax(k q) of values that are stored transposed."""

    def __init__(self, step: Step, storage: str) -> None:
        library, context = _library(), _new_context()
        batch, heads, _, width = step.query.shape
        kv_heads, total = step.all_key.shape[1:3]
        query, key, value = step.query.float(), step.all_key, step.all_value.mT.contiguous()
        scores, weights = torch.empty(batch, heads, total), torch.empty(batch, heads, total)
        self.out = torch.empty(batch, heads, 1, width)
        self.inputs = (query, key, value, scores, weights)

        def tensor(kind: str, *sizes: int) -> Any:
            return library.ggml_new_tensor_4d(context, TYPE[kind], *sizes, batch)

        q, k = tensor("float32", width, 1, heads), tensor(storage, width, total, kv_heads)
        v = tensor(storage, total, width, kv_heads)
        product = library.ggml_mul_mat(context, k, q)
        soft = library.ggml_soft_max_ext(context, product, None, width**-0.5, 0.0)
        nodes = [q, k, v, product, soft, library.ggml_mul_mat(context, v, soft)]
        self._build(context, nodes, [query, key, value, scores, weights, self.out])


def _release(context: Any, buffers: list[Any]) -> None:
    library = _library()
    for buffer in buffers:
        library.ggml_backend_buffer_free(buffer)
    library.ggml_free(context)


def absent() -> str | None:
    """Why ggml cannot be called here, or None."""
    try:
        _library()
    except OSError as error:
        return str(error)
    return None


class Ggml(Peer):
    name = "ggml"
    title = "ggml's flash_attn_ext (llama.cpp's), int8 as q8_0; joined likewise"
    package = "llama-cpp-python"
    storages = ("float32", "float16", "bfloat16", "int8")

    def absent(self) -> str | None:
        return super().absent() or absent()

    def version(self) -> str:
        return f"ggml {_library().ggml_version().decode()} in {self.package} {metadata.version(self.package)}"

    def refuses(self, step: Step, storage: str) -> str | None:
        partial = storage == "int8" and step.query.shape[-1] % BLOCK
        return super().refuses(step, storage) or (f"q8_0 needs widths in multiples of {BLOCK}" if partial else None)

    def prepare(self, step: Step, storage: str) -> TimedCall:
        return TimedCall(_Attention(step, storage))

    def answer(self, out: Tensor) -> Tensor:
        return out.transpose(1, 2)


class GgmlProducts(Ggml):
    name = "mulmat"
    title = "ggml's mul_mat and soft_max_ext, llama.cpp without flash attention; joined likewise"
    storages = ("float32", "float16", "bfloat16")
    owns = True  # values are transposed

    def prepare(self, step: Step, storage: str) -> TimedCall:
        return TimedCall(_Products(step, storage))

    def answer(self, out: Tensor) -> Tensor:
        return out


PEERS = [Ggml(), GgmlProducts()]
