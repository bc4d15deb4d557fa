"""Layers of a transformers `Cache` for linear attention: a `qkv.LinearState`, and the last inputs of the convolution.

Positions are those of transformers, which count padding; neither the state nor the inputs that are kept have any. To
remove tokens the state keeps the last `rollback` updates (`LinearState`), and the layer as many more inputs.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from ..cache import LinearState
from ..cache.decode import decode
from ..errors import MaskError, OptionError, ShapeError, complaint
from ..features import identity
from ..inputs import check_size
from ..similarity import FeatureMap
from ..states import AnyState, Decay
from .layers import cache_refused

# Queries and keys are features already, and nothing divides the sums.
PLAIN = FeatureMap(identity, normalize=False)


class Step(NamedTuple):
    """New positions of a layer, (batch, n). keep: which are real, None for all; left: whether padding comes first.

    window: the inputs of the convolution that are kept after these tokens.
    """

    batch: int
    n: int
    keep: Tensor | None = None
    left: bool = False
    window: Tensor | None = None

    @property
    def counts(self) -> Tensor:
        """Real tokens of each row."""
        return torch.full((self.batch,), self.n) if self.keep is None else self.keep.sum(1).cpu()


class StateLayer(LinearAttentionCacheLayerMixin):
    """A layer of `qkv.hf.cache` with linear attention. Its `LinearState`, `state`, is created with the first tokens."""

    is_compileable = False

    def __init__(self, rollback: int, name: str = "a layer") -> None:
        super().__init__()
        self.rollback, self.name = rollback, name
        self.state: LinearState | None = None
        self._clear()

    def _clear(self) -> None:
        self.length = 0
        self._real: Tensor | None = None  # (batch, length), True for real tokens; None: all are real
        self._window: Tensor | None = None  # (batch, channels, kernel - 1 + rollback), the last real inputs
        self._removable = torch.zeros(0, dtype=torch.long)  # tokens of each row that `crop` can remove
        self._step: Step | None = None

    @property
    def batch_size(self) -> int:
        return -1 if self.state is None else self.state.batch

    @property
    def is_croppable(self) -> bool:
        return self.rollback > 0

    @property
    def nbytes(self) -> int:
        window = 0 if self._window is None else self._window.nbytes
        return window if self.state is None else window + self.state.nbytes

    def __repr__(self) -> str:
        return f"StateLayer({self.name}: {self.state if self.state is not None else 'empty'})"

    def get_seq_length(self) -> int:
        return self.length

    # What a layer calls, in this order.

    def begin(self, batch: int, n: int, keep: Tensor | None) -> None:
        """Announce the tokens of a call, before anything changes."""
        if self.length and batch != self.batch_size:
            raise ShapeError(complaint("input", f"{batch} rows", f"{self.batch_size}, as in the cache"))
        if not self.length:  # all tokens were removed; the next may have another batch
            self._clear()
        left = False
        if keep is not None:
            some = keep.any(1)
            first, last = some & ~keep[:, 0], some & ~keep[:, -1]
            left = bool(first.any())
            if left and bool(last.any()):
                given, wanted = "padding on the left of some rows and on the right of others", "padding on one side"
                raise MaskError(complaint("attention_mask", given, wanted))
            if left and self.length and bool(self._positions(self.length)[first.cpu()].any()):
                hint = "put the padding of a chunk behind its tokens"
                given = "padding between the past tokens of a row and its new ones"
                raise MaskError(complaint("attention_mask", given, "none there: the convolution reads both", hint))
        self._step = Step(batch, n, keep, left)

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int = 0, **_: Any) -> Tensor:
        """The inputs (batch, channels, kernel - 1 + n) that the convolution of the new tokens reads."""
        if conv_kernel_size < 1:
            raise cache_refused(self.name, "its convolution does not say how many inputs it reads")
        step, size = self._step, conv_kernel_size - 1 + self.rollback
        assert step is not None
        before = conv_states.new_zeros(*conv_states.shape[:2], size) if self._window is None else self._window
        joined = torch.cat([before, conv_states], dim=-1)
        right = step.keep is not None and not step.left
        window = _columns(joined, step.counts, size) if right else joined[..., step.n :].contiguous()
        self._step = step._replace(window=window)
        return joined[..., self.rollback :]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, change: AnyState) -> Tensor:
        """Append the tokens and attend from them: tensors (batch, heads, n, …)."""
        step = self._step
        assert step is not None
        if self.state is None or (self.length == 0 and self.state.batch != step.batch):
            self.lazy_initialization(key, value, change)
        assert self.state is not None
        lengths = None if step.keep is None else step.counts
        gates = None if isinstance(change, Decay) else change
        options: dict[str, Any] = {"state": gates, "lengths": lengths, "padding": "left" if step.left else "right"}
        out = decode(query, key, value, self.state, **options)
        if step.keep is not None or self._real is not None:
            new = torch.ones(step.batch, step.n, dtype=torch.bool) if step.keep is None else step.keep.cpu()
            self._real = torch.cat([self._positions(self.length), new], dim=1)
        removable = self._removable if self.length else torch.zeros(step.batch, dtype=torch.long)
        self._removable = (removable + step.counts).clamp(max=self.rollback)
        self.length, self._window, self._step = self.length + step.n, step.window, None
        return out

    def lazy_initialization(self, key: Tensor, value: Tensor, change: AnyState) -> None:  # pyright: ignore
        """Create the state with the sizes of these tokens."""
        batch, heads, _, width = key.shape
        kind = change if isinstance(change, Decay) else type(change)
        options: dict[str, Any] = {"value_width": value.shape[3], "state": kind, "rollback": self.rollback}
        self.state = LinearState(PLAIN, batch, heads, width, **options)

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Nothing: `attend` has changed the state."""
        return recurrent_states

    # The interface of transformers' cache layers.

    def check_crop(self, tokens_to_remove: int) -> None:
        """Refuse what `crop` cannot remove."""
        if tokens_to_remove > 0 or self.length + tokens_to_remove < 0:
            wanted = f"from {-self.length} to 0: the number of removed tokens, negative as in transformers"
            raise OptionError(complaint("tokens_to_remove", tokens_to_remove, wanted))
        if self.state is not None and bool((self._removed(tokens_to_remove) > self._removable).any()):
            least = -int(self._removable.min())
            hint = f"a gate cannot be undone; make the cache with rollback= (here {self.rollback})"
            raise OptionError(complaint("tokens_to_remove", tokens_to_remove, f"at least {least}", hint))

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -tokens_to_remove tokens, at most `rollback` of each row."""
        self.check_crop(tokens_to_remove)
        if self.state is None or not tokens_to_remove:
            return
        removed = self._removed(tokens_to_remove)
        self.state.crop(torch.from_numpy(self.state.row_lengths) - removed)
        if self._window is not None:
            self._window = _columns(self._window, -removed, self._window.shape[2])
        self.length, self._removable = self.length + tokens_to_remove, self._removable - removed
        self._real = None if self._real is None else self._real[:, : self.length]

    def fork(self) -> StateLayer:
        """An independent layer with the same tokens, which are not copied."""
        new = copy.copy(self)
        new.state = None if self.state is None else self.state.fork()
        return new

    def reset(self) -> None:
        self._clear()
        if self.state is not None:
            self.state.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is None:
            return
        self.state.reorder(beam_idx)
        index = beam_idx.cpu()
        self._real = None if self._real is None else self._real[index]
        self._window = None if self._window is None else self._window[beam_idx]
        self._removable = self._removable[index] if self.length else self._removable

    def batch_repeat_interleave(self, repeats: int) -> None:
        repeats = check_size("repeats", repeats)
        if self.state is not None:
            self.reorder_cache(torch.arange(self.state.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.reorder_cache(torch.arange(self.state.batch)[indices])

    def _positions(self, length: int) -> Tensor:
        """(batch, length) booleans: which positions are real."""
        return torch.ones(self.batch_size, length, dtype=torch.bool) if self._real is None else self._real[:, :length]

    def _removed(self, tokens_to_remove: int) -> Tensor:
        """Real tokens of each row among the last ones."""
        return self._positions(self.length)[:, self.length + tokens_to_remove :].sum(1)


def _columns(inputs: Tensor, first: Tensor, count: int) -> Tensor:
    """(batch, channels, count): `count` columns of each row from its own `first` on; zeros before column 0."""
    index = (first[:, None] + torch.arange(count)).to(inputs.device)[:, None].expand(-1, inputs.shape[1], -1)
    return inputs.gather(2, index.clamp(min=0)).masked_fill(index < 0, 0.0)
