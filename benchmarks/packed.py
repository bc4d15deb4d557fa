"""Products of packed weights, y = Wx: GB/s of weights for few rows of x, GFLOP/s for a prompt, compared with ggml.

W is 8960×1536, in as many copies as are needed to read it from memory and not from the processor's caches. "read" is a
plain read of the same buffer in the same rounds: no product can be faster for one row. ggml's mul_mat reads the same
bytes, without the repacking that llama.cpp does at load for some formats; its activations are 8-bit for blocks.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from qkv.cost.machine import last_level_cache
from qkv.ops.packed import BLOCKS, packed_linear
from qkv.runtime.blocks import FORMATS

from .harness import LiveTable
from .peers import TimedCall
from .peers.ggml import Product, absent, quantized
from .rotation import compare

ROWS, COLUMNS = 8960, 1536
FEW, MANY = (1, 2, 4, 8, 16), 512
WIDTHS = {"format": 8, "by": 8, "read": 6, **{f"{n} row{'s' * (n > 1)}": 7 for n in FEW}, "512": 6}


def weights(name: str, copies: int) -> Tensor:
    """Bytes (copies, rows, row_bytes) of normal numbers in a format."""
    numbers = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) / COLUMNS**0.5
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    floats = name in dtypes
    packed = numbers.to(dtypes[name]).view(torch.uint8) if floats else quantized(numbers, FORMATS[name].code)
    return packed.view(1, ROWS, -1).repeat(copies, 1, 1)


def read(buffer: Tensor) -> Any:
    halves = buffer.view(-1)[: buffer.numel() // 8 * 8].view(torch.float32).chunk(2)
    return lambda: torch.dot(*halves)


def entries(data: Tensor, name: str, modes: tuple[str, ...], rows: int) -> dict[str, list[TimedCall]]:
    """Calls by mode, on each copy of the weights."""
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(1))

    def ours(mode: str, matrix: Tensor) -> TimedCall:
        return TimedCall(lambda: packed_linear(x, matrix, None, name, COLUMNS, mode))

    found = {mode: [ours(mode, matrix) for matrix in data] for mode in modes}
    if absent() is None:
        products = [Product(matrix, FORMATS[name].code, COLUMNS, x) for matrix in data]
        found["ggml"] = [TimedCall(product) for product in products]
        check(found, products[0])
    return found


def check(found: dict[str, list[TimedCall]], product: Product) -> None:
    """The products are the same, up to the rounding of x to 8 bits (and to bfloat16 in ggml)."""
    exact = found["float32"][0].run()
    for name, calls in found.items():
        worst = float((calls[0].run() - exact).abs().max() / exact.abs().max())
        assert worst < 0.03, f"{name} differs by {worst}"


def run() -> None:
    quick = "--quick" in sys.argv
    if reason := absent():
        print(f"ggml: absent: {reason}")
    title = f"Packed products, W {ROWS}×{COLUMNS}: GB/s of weights by rows of x; GFLOP/s for {MANY} rows"
    table = LiveTable("packed", title, WIDTHS)
    rounds = 3 if quick else 7
    for name in ("bf16", "q8_0", "q4_1", "q4_k") if quick else BLOCKS:
        modes = ("float32", "int8") if FORMATS[name].is_quantized else ("float32",)
        size = ROWS * FORMATS[name].row_bytes(COLUMNS)
        data = weights(name, max(3, -(-4 * last_level_cache() // size)))
        field = {"read": [TimedCall(read(data))]}
        for rows in FEW:
            field |= {f"{mode} {rows}": calls for mode, calls in entries(data, name, modes, rows).items()}
        few = compare(field, seconds=0, rounds=rounds)
        many = compare(entries(data[:1], name, modes, MANY), seconds=0, rounds=3)
        roof = data.nbytes / few.median("read") / 1e9
        for mode in many.times:
            rates = {rows: size / few.median(f"{mode} {rows}") / 1e9 for rows in FEW}
            flops = 2 * ROWS * COLUMNS * MANY / many.median(mode) / 1e9
            shown = [f"{rate:.1f}" for rate in rates.values()]
            spread = {rows: few.spread(f"{mode} {rows}") for rows in FEW}
            figures = {"read": roof, "rates": rates, "spread": spread, "gflops": flops}
            table.add([name, mode, f"{roof:.1f}", *shown, f"{flops:.0f}"], {"format": name, "by": mode, **figures})
