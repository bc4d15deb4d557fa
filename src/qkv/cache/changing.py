"""The contents of a `LinearState` whose sums change before a token is added: `Decay`, `Gated` and the delta rules.

A gate or a correction cannot be undone, so rolling back goes forward: the state before the last tokens is kept together
with these tokens, and a shorter state is computed from both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..backends.chunked import scan
from ..backends.recurrent import Tokens, finish, prepare, start
from ..errors import OptionTypeError, complaint
from ..inputs import AttentionInputs, read_inputs
from ..masks import Padding
from ..shapes import Bool, Float
from ..similarity import AnySimilarity
from ..states import KINDS, AnyState, Decay
from .inputs import check_no_gradient


class StateContents(NamedTuple):
    """The contents, immutable; forks and snapshots share them.

    state: after all tokens; None before the first. before: the state before the `recent` tokens, of which `keep` are
    real, None for all. lengths: tokens of each row. summed: those in `before`.
    """

    state: Float[Tensor, "batch heads features columns"] | None
    before: Float[Tensor, "batch heads features columns"] | None
    recent: Tokens | None
    keep: Bool[Tensor, "batch recent"] | None
    lengths: np.ndarray
    summed: np.ndarray

    def cropped(self, lengths: np.ndarray) -> StateContents:
        """The first `lengths` tokens of each row; only recent tokens are removed."""
        if self.recent is None or self.before is None or np.array_equal(lengths, self.lengths):
            return self
        keep, wanted = self.kept(), torch.from_numpy(lengths - self.summed).to(self.before.device)
        keep = keep & (keep.cumsum(1) <= wanted.unsqueeze(1))
        columns = int(keep.any(0).nonzero().max()) + 1 if bool(keep.any()) else 0
        keep, recent = keep[:, :columns], _masked(self.recent.part(0, columns), keep[:, :columns])
        state = scan(recent, self.before, keep)[1] if columns else self.before
        return StateContents(state, self.before, recent, keep, lengths, self.summed)

    def kept(self) -> Bool[Tensor, "batch recent"]:
        assert self.recent is not None
        batch, _, columns, _ = self.recent.key.shape
        return self.recent.key.new_ones(batch, columns, dtype=torch.bool) if self.keep is None else self.keep

    def taken(self, rows: np.ndarray) -> StateContents:
        """The rows of the batch with these indices."""
        index = torch.from_numpy(rows)
        state, before, keep = (
            None if t is None else t[index.to(t.device)] for t in (self.state, self.before, self.keep)
        )
        recent = None if self.recent is None else Tokens(*(None if t is None else t[index] for t in self.recent))  # pyright: ignore[reportArgumentType]
        return StateContents(state, before, recent, keep, self.lengths[rows], self.summed[rows])


def empty_contents(batch: int) -> StateContents:
    zeros = np.zeros(batch, dtype=np.int64)
    return StateContents(None, None, None, None, zeros, zeros)


def _masked(tokens: Tokens, keep: Tensor) -> Tokens:
    """Tokens that change nothing where `keep` is False."""
    by_shape = {3: ~keep[:, None], 4: ~keep[:, None, :, None]}
    return Tokens(*(None if t is None else t.masked_fill(by_shape[t.dim()], 0.0) for t in tokens))  # pyright: ignore[reportArgumentType]


def check_change(given: object) -> AnyState | type[AnyState] | None:
    """The `state=` of a `LinearState`: a class, whose gates come with the tokens, or a `Decay`, the same for all."""
    is_kind = isinstance(given, type) and issubclass(given, AnyState) and given is not Decay
    if given is None or is_kind or isinstance(given, Decay):
        return given  # pyright: ignore[reportReturnType]
    names = ", ".join(f"qkv.{kind.__name__}" for kind in KINDS if kind is not Decay)
    hint = "gates are given with the tokens: decode(..., state=...)"
    raise OptionTypeError(
        complaint("state", repr(given), f"None, one of the classes {names}, or qkv.Decay(rate)", hint)
    )


def state_of_tokens(change: AnyState | type[AnyState], given: object) -> AnyState:
    """The gates of the new tokens; those of a `Decay` are known."""
    if isinstance(change, AnyState):
        if given is not None and given is not change:
            raise OptionTypeError(complaint("state", repr(given), f"None, or the state's own {change!r}"))
        return change
    if type(given) is not change:
        raise OptionTypeError(
            complaint("state", repr(given), f"a qkv.{change.__name__} with the gates of the new tokens")
        )
    return given  # pyright: ignore[reportReturnType]


def advance(
    contents: StateContents,
    similarity: AnySimilarity,
    change: AnyState,
    tokens: tuple[Tensor | None, Tensor, Tensor],
    keep: Bool[Tensor, "batch n"] | None,
    rollback: int,
) -> tuple[Tensor, StateContents]:
    """Append tokens and attend from their queries (None: from the keys). Returns the output and new contents."""
    query, key, value = tokens
    for name in ("rate", "log_gate", "beta"):
        if isinstance(gate := getattr(change, name, None), Tensor):
            check_no_gradient(name, gate)
    mask = None if keep is None else Padding(keep=keep)
    none = None, 0.0, "auto", False, False
    call = read_inputs(
        key if query is None else query, key, value, similarity, mask, *none, change, contents.state, True
    )
    with torch.no_grad(), torch.autocast(key.device.type, enabled=False):
        return _advance(contents, call, rollback)


def _advance(contents: StateContents, call: AttentionInputs, rollback: int) -> tuple[Tensor, StateContents]:
    assert call.state is not None
    prepared, n, keep = prepare(call), call.extent.len_k, call.state.keep
    counts = n if keep is None else keep.sum(1).cpu().numpy()
    lengths, state = contents.lengths + counts, start(call)
    if not rollback:
        out, last = scan(prepared, state, keep)
        contents = StateContents(last, last, None, None, lengths, lengths)
        return finish(call, (out, last)).out, contents
    before, recent, summed, kept = contents.before, contents.recent, contents.summed, keep
    first, outs = _tail(keep, n, rollback), []
    if first:  # longer than the tail that may be removed
        head = None if keep is None else keep[:, :first]
        out, state = scan(prepared.part(0, first), state, head)
        outs.append(out)
        before, recent, kept = state, None, None if keep is None else keep[:, first:]
        summed = contents.lengths + (first if head is None else head.sum(1).cpu().numpy())
    else:
        before = state if before is None else before
        if recent is not None and (contents.keep is not None or keep is not None):
            real = keep if keep is not None else torch.ones(len(lengths), n, dtype=torch.bool, device=state.device)
            kept = torch.cat([contents.kept(), real], dim=1)
    tail = prepared.part(first, n)
    out, last = scan(tail, state, None if keep is None else keep[:, first:])
    tail = tail._replace(query=tail.key)
    joined = tail if recent is None else _joined(recent, tail)
    fresh = StateContents(last, before, joined, kept, lengths, summed)
    return finish(call, (torch.cat([*outs, out], dim=2), last)).out, _folded(fresh, rollback)


def _folded(contents: StateContents, rollback: int) -> StateContents:
    """The contents with the oldest recent tokens moved into `before`, once there are twice as many as needed."""
    recent, before = contents.recent, contents.before
    assert recent is not None
    assert before is not None
    columns = recent.key.shape[2]
    first = _tail(contents.keep, columns, rollback)
    if first < max(rollback, 8):
        return contents
    old = None if contents.keep is None else contents.keep[:, :first]
    before = scan(recent.part(0, first), before, old)[1]
    summed = contents.summed + (first if old is None else old.sum(1).cpu().numpy())
    keep = None if contents.keep is None else contents.keep[:, first:]
    return contents._replace(before=before, recent=recent.part(first, columns), keep=keep, summed=summed)


def _joined(one: Tokens, other: Tokens) -> Tokens:
    """Both, one after the other; where one has a gate for each feature, so has the whole."""
    gates = one.gate, other.gate
    if gates[0] is not None and gates[1] is not None and gates[0].dim() != gates[1].dim():
        wide = one.key.shape[3]
        gates = tuple(g if g.dim() == 4 else g[..., None].expand(*g.shape, wide) for g in gates if g is not None)
        one, other = one._replace(gate=gates[0]), other._replace(gate=gates[1])
    pairs = zip(one, other, strict=True)
    return Tokens(*(None if a is None or b is None else torch.cat([a, b], dim=2) for a, b in pairs))  # pyright: ignore[reportArgumentType]


def _tail(keep: Bool[Tensor, "batch n"] | None, n: int, rollback: int) -> int:
    """The column from which every row has its last `rollback` real tokens; 0 where a row has fewer."""
    if keep is None:
        return max(0, n - rollback)
    later = keep.flip(1).cumsum(1).flip(1)  # real tokens from each column on
    enough = (later >= rollback).sum(1)  # columns before and at the tail's first
    return max(0, int(enough.min()) - 1)
