"""`PackedLinear`: a linear layer whose weights stay in the blocks of a GGUF file."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import BackendRefused, OptionError, OptionTypeError, ShapeError, complaint
from ..ops.packed import ACTIVATION_CODES, BLOCKS, packed_linear
from ..raw import as_bytes
from ..shapes import Float

_FORMAT_OF_DTYPE = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class PackedLinear(nn.Module):
    """y = Wx + b with packed weights, in place of an `nn.Linear`; it runs on the CPU and has no gradient.

    Products are accumulated in float32; y has the dtype of x.

    Args:
        packed: W as bytes, uint8 (rows, row_bytes): the rows as they lie in a GGUF file.
        blocks: f32, bf16, f16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k.
        bias: b; None for none.
        activations: What weights are multiplied by: "float32", or "int8", x rounded in blocks of 32.

    Raises:
        OptionError: A name is unknown.
        ShapeError: The bytes are not rows of whole blocks, or the bias has another size.

    >>> layer, x = nn.Linear(64, 5, dtype=torch.bfloat16), torch.randn(2, 64)
    >>> packed = PackedLinear.from_linear(layer)
    >>> torch.allclose(packed(x), layer.float()(x), atol=1e-5), packed.blocks
    (True, 'bf16')
    """

    packed: Tensor
    bias: Tensor | None

    def __init__(
        self, packed: Tensor, blocks: str, bias: Float[Tensor, " rows"] | None = None, activations: str = "float32"
    ) -> None:
        super().__init__()
        if blocks not in BLOCKS:
            raise OptionError(complaint("blocks", repr(blocks), ", ".join(BLOCKS)))
        if activations not in ACTIVATION_CODES:
            raise OptionError(complaint("activations", repr(activations), " or ".join(ACTIVATION_CODES)))
        elements, nbytes = BLOCKS[blocks]
        if packed.dtype is not torch.uint8 or packed.dim() != 2 or not packed.numel() or packed.shape[1] % nbytes:
            given = f"{packed.dtype} of shape {tuple(packed.shape)}"
            raise ShapeError(complaint("packed", given, f"uint8 (rows, row_bytes), blocks of {nbytes} bytes"))
        if bias is not None and bias.shape != (len(packed),):
            raise ShapeError(complaint("bias", f"shape {tuple(bias.shape)}", f"({len(packed)},)"))
        self.blocks, self.activations = blocks, activations
        self.in_features, self.out_features = packed.shape[1] // nbytes * elements, len(packed)
        self.register_buffer("packed", packed.contiguous())
        self.register_buffer("bias", None if bias is None else bias.detach())

    @classmethod
    def from_linear(cls, linear: nn.Linear, activations: str = "float32") -> PackedLinear:
        """A layer with its weights as they are; `qkv.runtime.native.quantized` packs them to blocks."""
        weight = linear.weight.detach().cpu()
        if weight.dtype not in _FORMAT_OF_DTYPE:
            raise OptionTypeError(complaint("linear", f"weights in {weight.dtype}", "float32, bfloat16 or float16"))
        return cls(
            as_bytes(weight).view(len(weight), weight.shape[1] * weight.itemsize),
            _FORMAT_OF_DTYPE[weight.dtype],
            linear.bias,
            activations,
        )

    def forward(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows outputs"]:
        if x.requires_grad and torch.is_grad_enabled():
            reason = "packed weights have no gradient"
            message = complaint("x", "a tensor that requires grad", "one that does not", f"{reason}: torch.no_grad()")
            raise BackendRefused(message, (reason,))
        if x.shape[-1] != self.in_features:
            raise ShapeError(complaint("x", f"shape {tuple(x.shape)}", f"(…, {self.in_features})"))
        return packed_linear(x, self.packed, self.bias, self.blocks, self.in_features, self.activations)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.blocks}, activations={self.activations!r}"
