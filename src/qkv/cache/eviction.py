"""What a cache may forget: policies that choose the tokens of a row that stay, and the record of what has gone.

A policy chooses for each key/value head of a row; every head keeps the same number of tokens. Keys that stay are copied
into new pages, in order, so that index t of a row, its slot, is no longer position t: `Remaining` knows the positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_size
from ..shapes import Bool, Float, Int

# Keys (heads, tokens, width) in float32, and by how many positions to move each (heads, tokens) → moved keys.
Rotate = Callable[[Tensor, Tensor], Tensor]
_NUMBERINGS = ("absolute", "renumbered")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What all policies have.

    Args:
        every: `KVCache(eviction=...)` evicts when a row has this many tokens more than it is to keep.
        positions: "absolute": tokens that stay keep their positions. "renumbered": they are numbered without gaps, up
            to the newest, whose position stays; masks see the new positions. That is StreamingLLM's numbering: scores
            of rotated keys depend on differences of positions only.
        rotate: With "renumbered", turns rotated keys: rotate(keys (heads, tokens, width) in float32, shift (heads,
            tokens)). They are rounded to the storage format again at each eviction. None for keys without positions.
    """

    every: int = 64
    positions: str = "absolute"
    rotate: Rotate | None = None

    uses_importance = False
    after_prompt = False  # whether a cache leaves the moment to its caller, `KVCache.evict`
    observe = None  # whether only the last queries of a prompt count

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            if each.type == "int":
                check_size(each.name, given, least=int(each.name in ("every", "pool", "observe")))
            elif each.name != "positions" and not (callable(given) or (given is None and each.name == "rotate")):
                raise OptionTypeError(complaint(each.name, repr(given), "a function"))
        if self.positions not in _NUMBERINGS:
            raise OptionError(complaint("positions", repr(self.positions), " or ".join(map(repr, _NUMBERINGS))))
        if self.rotate is not None and self.positions == "absolute":
            raise OptionError(complaint("rotate", "a function", "None where positions stay absolute"))

    @property
    def keep(self) -> int:
        """The tokens that a row keeps."""
        raise NotImplementedError

    def select(
        self, importance: Float[Tensor, "heads stored"] | None, positions: Int[Tensor, "heads stored"], length: int
    ) -> Bool[Tensor, "*heads stored"]:
        """Which tokens of a row stay. length: its tokens so far, evicted ones included."""
        raise NotImplementedError


@dataclass(frozen=True)
class FirstLast(Policy):
    """The first and the last of the stored tokens (StreamingLLM); `KVCache(window=, sinks=)` is the same as a mask.

    >>> FirstLast(2, 3).select(None, torch.arange(7)[None], 7).int()
    tensor([1, 1, 0, 0, 1, 1, 1], dtype=torch.int32)
    """

    first: int
    last: int

    @property
    def keep(self) -> int:
        return self.first + self.last

    def select(self, importance: Tensor | None, positions: Tensor, length: int) -> Tensor:
        slots = torch.arange(positions.shape[1])
        return (slots < self.first) | (slots >= len(slots) - self.last)


@dataclass(frozen=True)
class HeavyHitters(Policy):
    """The tokens with the largest importance, and the most recent ones (H2O). The later one of equals stays.

    >>> importance = torch.tensor([[5.0, 1.0, 4.0, 9.0, 0.5, 0.5]])
    >>> HeavyHitters(2, 2).select(importance, torch.arange(6)[None], 6).int()
    tensor([[1, 0, 0, 1, 1, 1]], dtype=torch.int32)
    """

    heavy: int
    recent: int

    uses_importance = True

    @property
    def keep(self) -> int:
        return self.heavy + self.recent

    def select(self, importance: Tensor | None, positions: Tensor, length: int) -> Tensor:
        assert importance is not None
        return _heaviest(importance, self.heavy, self.recent)


@dataclass(frozen=True)
class SnapKV(Policy):
    """A selection after the prompt: what its last queries attend to, pooled over neighbours, and those tokens.

    The importance of a cache with this policy is that of the last `observe` queries of the last call of so many tokens,
    and of those of shorter calls since, but for single tokens. `evict()` after the prompt selects; the tokens that
    follow stay.

    Args:
        most: Tokens that stay, the last `observe` included.
        observe: The last queries of the prompt.
        pool: The importance of a key becomes the largest one of this many neighbours.
    """

    most: int
    observe: int = 32  # pyright: ignore[reportIncompatibleVariableOverride]
    pool: int = 7

    uses_importance = True
    after_prompt = True

    @property
    def keep(self) -> int:
        return self.most

    def select(self, importance: Tensor | None, positions: Tensor, length: int) -> Tensor:
        assert importance is not None
        recent = min(self.observe, self.most)
        earlier = importance[:, : max(importance.shape[1] - recent, 0)]
        padded = torch.nn.functional.pad(earlier, (self.pool // 2, (self.pool - 1) // 2), value=-torch.inf)
        pooled = padded.unfold(1, self.pool, 1).amax(-1) if earlier.shape[1] else earlier
        pooled = torch.cat([pooled, importance[:, earlier.shape[1] :]], dim=1)
        return _heaviest(pooled, self.most - recent, recent)


@dataclass(frozen=True)
class Select(Policy):
    """A function of one's own: function(importance, positions, length), as `Policy.select`.

    Args:
        function: Returns booleans (stored,), or (heads, stored) with as many in each head, True for what stays.
        most: `KVCache(eviction=...)` calls it when a row has `every` tokens more.
    """

    function: Callable[[Tensor | None, Tensor, int], Tensor]
    most: int = 0

    @property
    def keep(self) -> int:
        return self.most

    def select(self, importance: Tensor | None, positions: Tensor, length: int) -> Tensor:
        return self.function(importance, positions, length)


def _heaviest(importance: Tensor, heavy: int, recent: int) -> Tensor:
    """The `heavy` largest before the `recent` last, in each head. NaN counts as the largest: it is not hidden."""
    stored = importance.shape[1]
    before = max(stored - recent, 0)
    chosen = torch.ones_like(importance, dtype=torch.bool)
    chosen[:, :before] = False
    ranked = importance[:, :before].flip(1).sort(dim=1, descending=True, stable=True).indices
    return chosen.scatter_(1, before - 1 - ranked[:, :heavy], True)


def named_policy(name: str, keep: int) -> Policy:
    """A policy that keeps this many tokens: "streaming", "h2o" or "snapkv".

    >>> named_policy("h2o", 101)
    HeavyHitters(every=64, positions='absolute', rotate=None, heavy=50, recent=51)
    """
    return {
        "streaming": FirstLast(min(4, keep // 2), keep - min(4, keep // 2)),
        "h2o": HeavyHitters(keep // 2, keep - keep // 2),
        "snapkv": SnapKV(keep, min(32, max(keep // 4, 1))),
    }[name]


def as_policy(given: Any, name: str = "eviction") -> Policy:
    """A policy; a function becomes one."""
    if isinstance(given, Policy):
        return given
    function: Any = given
    if callable(given) and not isinstance(given, type):
        return Select(function)
    wanted = "a policy of qkv.cache, such as HeavyHitters(96, 32), or a function"
    raise OptionTypeError(complaint(name, repr(given), wanted))


def selected(policy: Policy, importance: Tensor | None, positions: Tensor, length: int) -> Int[Tensor, "heads kept"]:
    """The slots of a row that stay, ascending; OptionError if a policy returns anything else than booleans."""
    found: Any = policy.select(importance, positions, length)
    if not isinstance(found, Tensor) or found.dtype is not torch.bool:
        given = f"{found.dtype} values" if isinstance(found, Tensor) else type(found).__name__
        raise OptionTypeError(complaint("eviction", f"{given} from {policy!r}", "a tensor of booleans, True stays"))
    if found.shape not in (positions.shape, positions.shape[1:]):
        wanted = f"{tuple(positions.shape[1:])}, or {tuple(positions.shape)} with the heads"
        raise ShapeError(complaint("eviction", f"shape {tuple(found.shape)} from {policy!r}", wanted))
    found = found.cpu().expand(positions.shape)
    counts = found.sum(1)
    if len(counts.unique()) > 1:
        hint = "a page stores as many tokens of each head"
        raise ShapeError(complaint("eviction", f"{counts.tolist()} tokens by head", "as many for each head", hint))
    return found.nonzero()[:, 1].view(len(found), -1)


class Remaining(NamedTuple):
    """Positions of the tokens of rows from which some were evicted; immutable.

    gone: How many each row has lost: slot t ≥ counts[b] is position t + gone[b].
    counts: The slots of each row whose positions are in `at`.
    at: (batch, heads, slots), ascending in each head.
    since: The row can be cropped to this length or more: what it attended to then is stored.
    """

    gone: np.ndarray
    counts: np.ndarray
    at: np.ndarray
    since: np.ndarray

    @classmethod
    def all(cls, batch: int, heads: int) -> Remaining:
        """Nothing was evicted."""
        zeros = [np.zeros(batch, dtype=np.int64) for _ in range(3)]
        return cls(zeros[0], zeros[1], np.zeros((batch, heads, 0), dtype=np.int64), zeros[2])

    def take_rows(self, index: np.ndarray) -> Remaining:
        return Remaining(*(each[index] for each in self))

    def with_rows_of(self, other: Remaining) -> Remaining:
        slots = max(self.at.shape[2], other.at.shape[2])
        gaps = [slots - each.at.shape[2] for each in (self, other)]
        padded = [
            np.pad(each.at, ((0, 0), (0, 0), (0, gap))) if gap else each.at
            for each, gap in zip((self, other), gaps, strict=True)
        ]
        gone, counts, since = (np.concatenate([getattr(each, n) for each in (self, other)]) for n in _PER_ROW)
        return Remaining(gone, counts, np.concatenate(padded), since)

    def with_rows(self, changed: dict[int, tuple[int, np.ndarray | None, int]]) -> Remaining:
        """Other rows: gone, positions (heads, slots) or None for slots without gaps, since."""
        slots = max([self.at.shape[2], *(at.shape[1] for _, at, _ in changed.values() if at is not None)])
        gone, counts, since = (getattr(self, name).copy() for name in _PER_ROW)
        places = np.pad(self.at, ((0, 0), (0, 0), (0, slots - self.at.shape[2])))
        for row, (lost, at, after) in changed.items():
            gone[row], since[row] = lost, after
            counts[row] = 0 if at is None else at.shape[1]
            if at is not None:
                places[row, :, : at.shape[1]] = at
        return Remaining(gone, counts, places[:, :, : int(counts.max(initial=0))], since)

    def is_valid(self, lengths: np.ndarray) -> bool:
        """Whether rows with these slots can have lost tokens so, for the numbers of a file."""
        slots = self.at.shape[2]
        sizes = (self.counts >= 0) & (self.counts <= np.minimum(lengths, slots)) & (self.gone >= 0)
        sizes &= (self.since >= 0) & (self.since <= lengths + self.gone) & (self.gone < 1 << 48)
        known = np.arange(slots) < self.counts[:, None, None]
        ends = (self.counts + self.gone)[:, None, None]
        ascending = (np.diff(self.at, axis=2, prepend=-1) > 0) & (self.at < ends)
        return bool(sizes.all() and (ascending | ~known).all())

    def positions(self, slots: int) -> Int[Tensor, "batch heads slots"]:
        """The positions of the first slots."""
        batch, heads, known = self.at.shape
        found = np.broadcast_to(np.arange(slots) + self.gone[:, None, None], (batch, heads, slots)).copy()
        known = min(known, slots)
        explicit = (np.arange(known) < self.counts[:, None])[:, None]
        found[:, :, :known] = np.where(explicit, self.at[:, :, :known], found[:, :, :known])
        return torch.from_numpy(found)


_PER_ROW = "gone", "counts", "since"
