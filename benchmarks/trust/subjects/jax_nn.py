"""jax.nn.dot_product_attention, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import Subject, only


def to_array(tensor: Any) -> Any:
    """The array of a tensor for numpy and JAX, with its strides; bfloat16 passes as bits."""
    import ml_dtypes

    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.detach()
    float8s = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn}
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if tensor.dtype in float8s:
        return tensor.view(torch.uint8).numpy().view(float8s[tensor.dtype])
    return tensor.numpy()


def to_tensor(array: Any) -> Tensor:
    found = np.array(array)
    if found.dtype.name == "bfloat16":
        return torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(found)


def _long(array: Any) -> Any:
    """(batch, heads, length, width) -> (batch, length, heads, width), and back."""
    return array.swapaxes(1, 2)


class JaxNn(Subject):
    name, short = "jax.nn", "JAX"
    packages = ("jax", "jaxlib")
    takes_strides = False
    own_value_width = False

    def attend(self, way: str, query: Any, key: Any, value: Any, **options: Any) -> Tensor:
        return to_tensor(_long(self._run([to_array(t) for t in (query, key, value)], options)))

    def _run(self, arrays: list[Any], options: dict[str, Any]) -> Any:
        import jax

        only(options, "keep", "bias", "scale", "causal", "window", "lengths")
        query, key, value = (_long(array) for array in arrays)
        given: dict[str, Any] = {"scale": options.get("scale"), "is_causal": bool(options.get("causal"))}
        if options.get("keep") is not None:
            given["mask"] = to_array(options["keep"])
        if options.get("bias") is not None:
            given["bias"] = to_array(options["bias"])
        if options.get("window") is not None:
            given["local_window_size"] = options["window"]
        if options.get("lengths") is not None:
            lengths = np.asarray(options["lengths"])
            given["key_value_seq_lengths"] = lengths.astype(np.int32) if lengths.dtype.kind == "i" else lengths
        return jax.nn.dot_product_attention(query, key, value, **given)

    def gradients(self, way: str, tensors: tuple[Tensor, ...], cotangent: Tensor, **options: Any) -> list[Tensor]:
        import jax
        import jax.numpy as jnp

        arrays = [jnp.array(to_array(tensor)) for tensor in tensors]

        def run(*arrays: Any) -> Any:
            bias = {"bias": arrays[3]} if len(arrays) == 4 else {}
            return _long(self._run(list(arrays[:3]), options | bias))

        out, back = jax.vjp(run, *arrays)
        return [to_tensor(out), *map(to_tensor, back(jnp.array(to_array(cotangent.to(tensors[0].dtype)))))]


SUBJECTS = [JaxNn()]
