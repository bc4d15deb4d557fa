"""The sums of a LinearState: by the native kernel, or by torch in float64 and off the CPU."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .. import kernels
from ..kernels.linear import IDENTITY, Rule, linear, state_floats
from ..maps import Maps

_PIECE = 1 << 19


class Sums(Protocol):
    """Σ φ(k) (v, 1)ᵀ over some tokens, in a tensor of the engine's own making; None stands for no tokens."""

    def bytes_of_a_head(self) -> int: ...

    def folded(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        """The sums with these tokens as well, in a new tensor."""
        ...

    def attended(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        """V' over the sums and the keys j ≤ i + offset."""
        ...

    def folding(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """V' over the sums and the keys j ≤ i, and the sums with all of them."""
        ...

    def plain(self, sums: Tensor) -> Tensor:
        """(batch, heads, features, value_width + 1)."""
        ...

    def packed(self, plain: Tensor) -> Tensor:
        """The way back."""
        ...


def engine_of(dtype: torch.dtype, device: torch.device, maps: Maps, value_width: int) -> Sums:
    if device.type == "cpu" and dtype is not torch.float64 and not kernels.reasons():
        return NativeSums(maps, value_width)
    return TorchSums(maps, value_width, torch.float64 if dtype is torch.float64 else torch.float32)


class NativeSums:
    def __init__(self, maps: Maps, value_width: int) -> None:
        self._maps, self._value_width = maps, value_width
        # A map that the library does not know is applied before it is called.
        self._known = maps.rule is not None
        self._rule = maps.rule if maps.rule is not None else Rule(IDENTITY, maps.features)

    def bytes_of_a_head(self) -> int:
        return 4 * state_floats(self._rule, self._value_width)

    def folded(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        return self.folding(sums, None, key, value, keep)[1]

    def attended(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        q, k, v = self._ready(query, key, value, keep)
        out = linear(
            q, k, v, self._rule,
            keep=keep, offset=offset, normalize=self._maps.normalize, state=sums, direct=True,
        )  # fmt: skip
        assert out is not None
        return out.to(query.dtype)

    def folding(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        batch, heads, n, _ = key.shape
        floats = state_floats(self._rule, self._value_width)
        sums = torch.zeros(batch, heads, floats) if sums is None else sums.clone()
        rows = heads if query is None else query.shape[1]
        piece = n if self._known else max(64, _PIECE // max(1, self._maps.features * batch * rows))
        outs = []
        for start in range(0, n, piece):
            part = slice(start, start + piece)
            kept = None if keep is None else keep[:, part]
            asked = None if query is None else query[:, :, part]
            q, k, v = self._ready(asked, key[:, :, part], value[:, :, part], kept)
            outs.append(linear(q, k, v, self._rule, keep=kept, offset=0, normalize=self._maps.normalize, state=sums))
        out = None if query is None else torch.cat([o for o in outs if o is not None], dim=2).to(query.dtype)
        return out, sums

    def plain(self, sums: Tensor) -> Tensor:
        values, below = self._parts(sums)
        return torch.cat([values[..., : self._value_width], below.unsqueeze(-1)], dim=-1)

    def packed(self, plain: Tensor) -> Tensor:
        sums = torch.zeros(*plain.shape[:2], state_floats(self._rule, self._value_width))
        values, below = self._parts(sums)
        values[..., : self._value_width], below[:] = plain[..., :-1], plain[..., -1]
        return sums

    def _parts(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Views: Σ φ(k) vᵀ with its rows filled up, and Σ φ(k)."""
        count, slots = self._maps.features, -(-self._value_width // 16) * 16
        values = sums[..., : count * slots].unflatten(-1, (count, slots))
        return values, sums[..., count * slots : count * (slots + 1)]

    def _ready(
        self, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        if self._known:
            return query, key, value
        key, value = key.float(), value.float()
        if keep is not None:
            key = key.masked_fill(~keep[:, None, :, None], 0.0)
        return None if query is None else self._maps.query(query.float()), self._maps.key(key), value


class TorchSums:
    def __init__(self, maps: Maps, value_width: int, dtype: torch.dtype) -> None:
        self._maps, self._value_width, self._dtype = maps, value_width, dtype

    def bytes_of_a_head(self) -> int:
        return self._maps.features * (self._value_width + 1) * self._dtype.itemsize

    def folded(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        batch, heads, n, _ = key.shape
        piece = max(1, _PIECE // max(1, self._maps.features * batch * heads))
        for start in range(0, n, piece):
            part = slice(start, start + piece)
            kept = None if keep is None else keep[:, part]
            features, values = self._tokens(key[:, :, part], value[:, :, part], kept)
            more = features.mT @ values
            sums = more if sums is None else sums + more
        assert sums is not None
        return sums

    def attended(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        batch, heads_q, n, _ = query.shape
        heads = key.shape[1]
        features, values = self._tokens(key, value, keep)
        asked = self._maps.query(query.to(self._dtype)).reshape(batch, heads, heads_q // heads * n, -1)
        rows = torch.arange(n, device=query.device).repeat(heads_q // heads).unsqueeze(1) + offset
        seen = torch.arange(key.shape[2], device=query.device) <= rows
        y = (asked @ features.mT).masked_fill(~seen, 0.0) @ values
        y = y if sums is None else y + asked @ sums
        above, below = y[..., :-1], y[..., -1:]
        if self._maps.normalize:
            above = torch.where(below == 0, 0.0, above / torch.where(below == 0, 1.0, below))
        return above.reshape(batch, heads_q, n, -1).to(query.dtype)

    def folding(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        if query is None:
            return None, self.folded(sums, key, value, keep)
        outs = []
        for start in range(0, key.shape[2], 128):
            part = slice(start, start + 128)
            kept = None if keep is None else keep[:, part]
            outs.append(self.attended(sums, query[:, :, part], key[:, :, part], value[:, :, part], kept, 0))
            sums = self.folded(sums, key[:, :, part], value[:, :, part], kept)
        assert sums is not None
        return torch.cat(outs, dim=2), sums

    def plain(self, sums: Tensor) -> Tensor:
        return sums

    def packed(self, plain: Tensor) -> Tensor:
        return plain.to(self._dtype)

    def _tokens(self, key: Tensor, value: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """φ(k) and (v, 1), 0 where a token does not count."""
        hidden = None if keep is None else ~keep[:, None, :, None]
        key, value = key.to(self._dtype), value.to(self._dtype)
        values = torch.cat([value, value.new_ones((*value.shape[:3], 1))], dim=-1)
        if hidden is None:
            return self._maps.key(key), values
        features = self._maps.key(key.masked_fill(hidden, 0.0))
        return features.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
