"""The part of a block that looks at each token alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from ..inputs import check_dropout, check_size
from ..shapes import Float
from ..similarity import ANY_SOFTMAX
from .module import Described, check_features, one_of

Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh-gelu": partial(F.gelu, approximate="tanh"),
}
_KINDS = {"plain": False, "gated": True}


class FeedForward(Described):
    """plain: out(activation(up(x))); gated: out(activation(gate(x)) · up(x)). (batch, n, width) → the same.

    hidden: 4·width when None; for gated the multiple of 8 next above 8/3·width, which has as many weights.
    activation: "gelu", "relu", "silu", "tanh-gelu", or a function. dropout: of the hidden features, while training.

    >>> import torch
    >>> FeedForward(6, kind="gated", activation="silu")(torch.randn(2, 5, 6)).shape
    torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        kind: str = "plain",
        activation: str | Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width = check_size("width", width)
        gated = one_of("kind", kind, _KINDS)
        usual = 8 * -(-self.width // 3) if gated else 4 * self.width
        self.hidden = usual if hidden is None else check_size("hidden", hidden)
        self.activation = activation if callable(activation) else one_of("activation", activation, _ACTIVATIONS)
        self.up = nn.Linear(self.width, self.hidden, bias)
        self.gate = nn.Linear(self.width, self.hidden, bias) if gated else None
        self.out = nn.Linear(self.hidden, self.width, bias)
        self.dropout = nn.Dropout(check_dropout(dropout, ANY_SOFTMAX))

    def forward(self, x: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n width"]:
        check_features("x", x, self.width, self.up)
        up = self.up(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.out(self.dropout(hidden))
