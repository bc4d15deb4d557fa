"""JAX: jax.nn.dot_product_attention under jit, on the CPU, in its own layout (batch, length, heads, width)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import Peer, Step, TimedCall


@functools.cache
def _attend() -> Callable[..., Any]:
    # JAX reads it once, when it makes its pool of threads.
    os.environ.setdefault("PJRT_NPROC", str(torch.get_num_threads()))
    import jax

    return jax.jit(jax.nn.dot_product_attention)


def _to_jax(tensor: Tensor) -> Any:
    """(batch, heads, length, width) in torch -> (batch, length, heads, width) in memory that JAX owns.

    Shared memory is released by JAX in threads that may outlive the interpreter.
    """
    import jax.numpy as jnp
    from jax.dlpack import from_dlpack

    return jnp.array(from_dlpack(tensor.transpose(1, 2).contiguous()), copy=True).block_until_ready()


class Jax(Peer):
    name = "jax"
    title = "JAX, jitted jax.nn.dot_product_attention; joined likewise"
    package = "jax"
    owns = True

    def refuses(self, step: Step, storage: str) -> str | None:
        if storage == "float16":
            return "its dot_general has no float16 with float32 sums on CPUs"
        return super().refuses(step, storage)

    def prepare(self, step: Step, storage: str) -> TimedCall:
        attend = _attend()
        query, key, value = (_to_jax(tensor) for tensor in (step.query, step.all_key, step.all_value))
        return TimedCall(lambda: attend(query, key, value).block_until_ready())

    def answer(self, out: Any) -> Tensor:
        return torch.from_dlpack(out).transpose(1, 2)


PEERS = [Jax()]
