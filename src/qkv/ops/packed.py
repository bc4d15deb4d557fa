"""Products of packed weights, and whole transformers, as the native library executes them.

    qkv::packed_linear(x, weight, bias, blocks, columns, activations) -> y

y = Wx + b in float32, for the rows x; weight is W as bytes (rows, row_bytes), in a format of GGUF files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .loader import require_native

# Numbers and bytes of a block, in the order of the native library's codes (native/src/packed_table.h).
BLOCKS = {
    "f32": (1, 4), "bf16": (1, 2), "f16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "q5_0": (32, 22), "q5_1": (32, 24), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
}  # fmt: skip
FORMAT_CODES = {name: code for code, name in enumerate(BLOCKS)}
ACTIVATION_CODES = {"float32": 0, "int8": 1}
FEW_ROWS = 3  # of x, which are multiplied in another order, and rounded finer, than more of them

_LIBRARY = torch.library.Library("qkv", "FRAGMENT")
_LIBRARY.define(
    "packed_linear(Tensor x, Tensor weight, Tensor? bias, str blocks, int columns, str activations) -> Tensor"
)


def _packed_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, blocks: str, columns: int, activations: str
) -> Tensor:
    native = require_native("qkv::packed_linear")
    rows = x.detach().to(torch.float32).reshape(-1, columns).contiguous()
    out = torch.empty((len(rows), len(weight)))
    matrix = weight.data_ptr(), FORMAT_CODES[blocks], len(weight), columns, weight.shape[1]
    added = None if bias is None else bias.detach().to(torch.float32).contiguous()
    mode, threads = ACTIVATION_CODES[activations], torch.get_num_threads()
    native.packed_product([matrix], rows, [out], [added], activations=mode, threads=threads)
    return out.to(x.dtype).view(*x.shape[:-1], len(weight))


def _fake(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_LIBRARY.impl("packed_linear", _packed_linear, "CPU")
torch.library.register_fake("qkv::packed_linear", _fake, lib=_LIBRARY)
packed_linear = torch.ops.qkv.packed_linear.default


def transformer_layer(**parts: Any) -> Any:
    """A layer of a program, native/src/program.h: sizes, and addresses of weights that the caller keeps."""
    return require_native("qkv.runtime").transformer_layer(**parts)


def new_program(**parts: Any) -> Any:
    """A transformer as one native call, native/src/program.h; the caller keeps the weights and checks sizes."""
    return require_native("qkv.runtime").Program(**parts)
