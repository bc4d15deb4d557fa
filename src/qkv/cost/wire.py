"""What it takes to spread a call over ranks: bytes on the wire, messages, the busiest rank's flops, what a rank holds.

A leaf: no torch; whole numbers in, whole numbers out; symbols in, formulas out. Shards are equal, n/R tokens each. With
symbols R is even, a window reaches no further than the rank before, and heads divide among ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ..errors import OptionError, complaint
from .formats import check_size, is_symbol
from .ledger import Number

SUMS = 4  # bytes of a number in which sums are kept: float32, where inputs are not wider
INDEX = 8  # bytes of a key's position
MANY = 8  # ranks from which on answers are merged by doubling
LEAST_PIECE, PIECES = 1024, 64  # tokens of a message of `ring` at least, and messages for a shard at most


@dataclass(frozen=True)
class Spread:
    """A call over `ranks` equal shards of `tokens` queries, keys and values. item: bytes of a number. window: keys that
    a query sees of those before it, itself included. learns: with the backward pass. features: a head's, for `scan`."""

    batch: Number
    heads: Number
    kv_heads: Number
    width: Number
    value_width: Number
    tokens: Number
    ranks: Number
    item: Number = 4
    causal: bool = True
    window: Number | None = None
    learns: bool = False
    features: Number | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "width", "value_width", "tokens", "ranks", "item"):
            check_size(name, getattr(self, name))
        for name in ("window", "features"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.window is not None and not self.causal:
            raise OptionError(complaint("window", self.window, "None beside causal=False", "a window looks back"))

    @property
    def shard(self) -> Number:
        return _over(self.tokens, self.ranks)

    @property
    def sums(self) -> Number:
        return SUMS if is_symbol(self.item) else max(SUMS, self.item)

    @property
    def swaps(self) -> bool:
        """Whether `ring` has queries change places: a causal call without a window, on several ranks."""
        return self.causal and self.window is None and self.ranks != 1


class Phase(NamedTuple):
    """A pass of the busiest rank: bytes that arrive before it can compute, while it does, and after; messages in a row;
    flops."""

    before: Number
    during: Number
    after: Number
    messages: Number
    flops: Number

    @property
    def sent(self) -> Number:
        return self.before + self.during + self.after

    def seconds(self, bandwidth: float, latency: float, rate: float) -> float:
        """before + max(compute, during) + after. Messages wait where most bytes travel.

        >>> Phase(before=100, during=400, after=0, messages=3, flops=50).seconds(100.0, 0.0, 10.0)
        6.0
        """
        waits = float(self.messages) * latency
        beside = waits if self.during else 0.0
        outside = float(self.before + self.after) / bandwidth + waits - beside
        return outside + max(float(self.flops) / rate, float(self.during) / bandwidth + beside)


class Wire(NamedTuple):
    """total: bytes that all ranks send together. held: bytes of a rank at the worst moment, its own shard and answer
    included. backward: None where nothing is learnt. What `sent`, `messages` and `flops` say is of the busiest rank; it
    receives as much as it sends."""

    split: str
    total: Number
    forward: Phase
    backward: Phase | None
    held: Number

    @property
    def _phases(self) -> tuple[Phase, ...]:
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    @property
    def sent(self) -> Number:
        return sum(phase.sent for phase in self._phases)

    @property
    def messages(self) -> Number:
        return sum(phase.messages for phase in self._phases)

    @property
    def flops(self) -> Number:
        return sum(phase.flops for phase in self._phases)

    def seconds(self, bandwidth: float, latency: float, rate: float) -> float:
        """Both passes, with a link of so many bytes a second and seconds a message, at so many flops a second."""
        return sum(phase.seconds(bandwidth, latency, rate) for phase in self._phases)


def wire(split: str, spread: Spread) -> Wire:
    """What a split takes: "ring", "gather", "heads", "scan" or "best".

    >>> call = Spread(batch=1, heads=8, kv_heads=2, width=64, value_width=64, tokens=4096, ranks=4, causal=False)
    >>> wire("ring", call).sent, wire("heads", call).sent, wire("gather", call).messages
    (3145728, 4718592, 3)
    """
    if split not in _OF_SPLIT:
        raise OptionError(complaint("split", repr(split), f"one of {', '.join(SPLITS)}"))
    found = _OF_SPLIT[split](spread)
    phases = [None if phase is None else Phase(*map(_whole, phase)) for phase in (found.forward, found.backward)]
    assert phases[0] is not None
    return Wire(split, _whole(found.total), phases[0], phases[1], _whole(found.held))


def merged_step(
    batch: Number, heads: Number, value_width: Number, ranks: int, sums: Number = SUMS
) -> tuple[Number, Number]:
    """(bytes, messages) that a rank sends for a token of a layer that is decoded from a cache spread over ranks: its
    answer and its log-sum-exp, to every other rank; from MANY ranks on by doubling, to ⌈log₂ ranks⌉ of them.

    >>> merged_step(batch=1, heads=32, value_width=128, ranks=4)
    (49536, 3)
    >>> merged_step(batch=1, heads=32, value_width=128, ranks=1024)
    (165120, 10)
    """
    times = ranks - 1 if ranks < MANY else (ranks - 1).bit_length()
    return times * batch * heads * (value_width + 1) * sums, times


def pair_flops(spread: Spread, pairs: Number, *, backward: bool = False) -> Number:
    """Of products: a score and a weighted value for each pair of a query and a key; backward, the score again and four
    products that give the gradients of weights, values, queries and keys."""
    each = 3 * spread.width + 2 * spread.value_width if backward else spread.width + spread.value_width
    return 2 * spread.batch * pairs * each


def _ring(s: Spread) -> Wire:
    """Every rank sends its keys and values to those that see them. Under a causal mask rank r works on the first half
    of its own queries and the second half of rank R − 1 − r's, so that all have as much to do."""
    share, keys = s.shard, s.batch * s.kv_heads * (s.width + s.value_width)
    if s.swaps:
        all_keys, most = share * _over_whole(s.ranks * (3 * s.ranks - 2), 4), (s.ranks - 1) * share
        swapping = s.ranks if is_symbol(s.ranks) else s.ranks - s.ranks % 2
        pairs = s.heads * _over(s.tokens * (s.tokens + 1), 2 * s.ranks)
    else:
        (all_keys, most), swapping = _fetched(s), 0
        pairs = s.heads * _busiest_pairs(s)
    rows = s.batch * s.heads * _over(share, 2)  # of the half that changes places
    there, back = rows * s.width * s.item, rows * (s.value_width + 1) * s.sums
    there, back = (there, back) if swapping != 0 else (0, 0)
    moves = 2 if swapping != 0 else 0
    others = _peers(s)
    forward = Phase(there, most * keys * s.item, back, others + moves, pair_flops(s, pairs))
    total = all_keys * keys * s.item + swapping * (there + back)
    backward = None
    if s.learns:
        # Queries, answers, what comes back for them, and log-sum-exps go there; gradients of queries come back.
        there = rows * ((s.width + 2 * s.value_width) * s.item + s.sums) if swapping != 0 else 0
        back = rows * s.width * s.sums if swapping != 0 else 0
        during = most * keys * (s.item + s.sums)
        backward = Phase(there, during, back, 2 * others + moves, pair_flops(s, pairs, backward=True))
        total = total + all_keys * keys * (s.item + s.sums) + swapping * (there + back)
    # Two messages of keys and values are under way; answers are sums until the end.
    held = shard_bytes(s) + 2 * _piece(share) * keys * s.item + s.batch * s.heads * share * (s.value_width + 1) * s.sums
    if swapping != 0:
        held = held + rows * s.width * s.item
    if s.learns:
        held = held + 2 * _piece(share) * keys * s.sums + share * (keys + s.batch * s.heads * s.width) * s.sums
    return Wire("ring", total, forward, backward, held)


def _gather(s: Spread) -> Wire:
    """Every rank fetches the keys and values that its own queries see, and then computes."""
    keys = s.batch * s.kv_heads * (s.width + s.value_width) * s.item
    all_keys, most = _fetched(s)
    pairs = s.heads * _busiest_pairs(s)
    forward = Phase(most * keys, 0, 0, _peers(s), pair_flops(s, pairs))
    back = Phase(0, 0, most * keys, _peers(s), pair_flops(s, pairs, backward=True)) if s.learns else None
    passes = 2 if s.learns else 1
    # Once as they came, and once beside the rank's own in one piece.
    held = shard_bytes(s) + (2 * most + s.shard) * keys * passes
    return Wire("gather", passes * all_keys * keys, forward, back, held)


def _heads(s: Spread) -> Wire:
    """Tokens are exchanged for heads: every rank has all tokens of some heads, and answers go back."""
    others, share = s.ranks - 1, s.shard
    # Fewer key/value heads than ranks go to several each.
    own_heads, own_kv = _over(s.heads, s.ranks), _over(_larger(s.kv_heads, s.ranks), s.ranks)
    if not is_symbol(own_heads):
        own_heads, own_kv = math.ceil(own_heads), math.ceil(own_kv)
    ends = s.width + s.value_width
    there = others * share * s.batch * (own_heads * s.width + own_kv * ends) * s.item
    back = others * share * s.batch * own_heads * s.value_width * s.item
    pairs = own_heads * _pairs(s, s.tokens)
    forward = Phase(there, 0, back, 2 * others, pair_flops(s, pairs))
    # Gradients take the same ways in the other direction.
    backward = Phase(back, 0, there, 2 * others, pair_flops(s, pairs, backward=True)) if s.learns else None
    held = shard_bytes(s) + s.batch * s.tokens * (own_heads + own_kv) * ends * s.item * (2 if s.learns else 1)
    return Wire("heads", (2 if s.learns else 1) * s.ranks * (there + back), forward, backward, held)


def _scan(s: Spread) -> Wire:
    """Sums of features travel, whatever the length. Under a causal mask to the ranks 1, 2, 4, … places on; otherwise a
    piece to every rank, which adds them up and sends the sum to all."""
    if s.features is None:
        raise OptionError(complaint("features", "None", "how many a head has, for scan"))
    state = s.batch * s.kv_heads * s.features * (s.value_width + 1) * s.sums
    others = s.ranks - 1
    if s.causal:
        messages = _log2(s.ranks)
        sent = messages * state
        # Rank r has ⌈log₂(R - r)⌉ ranks to send to; with symbols R is a power of two.
        total = (s.ranks * messages - (s.ranks if is_symbol(s.ranks) else 2**messages) + 1) * state
    else:
        messages, sent = 2 * others, _over(2 * others * state, s.ranks)
        total = 2 * others * state
    each = 2 * s.batch * s.features * (s.value_width + 1)
    flops = each * s.shard * (s.heads + s.kv_heads)  # every query reads the state, every key is added to it
    forward = Phase(sent, 0, 0, messages, flops)
    backward = Phase(sent, 0, 0, messages, 2 * flops) if s.learns else None
    return Wire("scan", (2 if s.learns else 1) * total, forward, backward, shard_bytes(s) + 3 * state)


def _best(s: Spread) -> Wire:
    """Queries go to the ranks that may see them, and the best keys with their positions come back; then each query asks
    everybody for the value that it took, and one has it."""
    all_rows, most = _asked(s)
    rows = s.batch * s.heads
    found = INDEX + s.width * s.item
    during, values = most * rows * (s.width * s.item + found), rows * s.shard * s.value_width * s.item
    values = values if s.ranks != 1 else 0
    flops = 2 * s.batch * s.heads * _busiest_pairs(s) * s.width
    forward = Phase(0, during, most * rows * INDEX + values, 4 * _peers(s), flops)
    # Values have a gradient, queries and keys have none.
    backward = Phase(values, 0, 0, _peers(s), 0) if s.learns else None
    total = all_rows * rows * (s.width * s.item + found + INDEX) + s.ranks * values * (2 if s.learns else 1)
    held = shard_bytes(s) + rows * s.shard * (2 * s.width * s.item + 2 * found)
    return Wire("best", total, forward, backward, held)


_OF_SPLIT: dict[str, Callable[[Spread], Wire]] = {
    "ring": _ring, "gather": _gather, "heads": _heads, "scan": _scan, "best": _best
}  # fmt: skip
SPLITS = tuple(_OF_SPLIT)


def shard_bytes(s: Spread) -> Number:
    """Bytes of a rank's queries, keys, values and answers; with gradients of each."""
    held = s.batch * s.shard * (s.heads + s.kv_heads) * (s.width + s.value_width) * s.item
    return 2 * held if s.learns else held


def _fetched(s: Spread) -> tuple[Number, Number]:
    """Tokens whose keys travel when every rank works on its own queries: of all ranks, and of the busiest."""
    share, others = s.shard, s.ranks - 1
    if not s.causal:
        return s.ranks * others * share, others * share
    if s.window is None:
        return share * _over(s.ranks * others, 2), others * share
    back = s.window - 1  # tokens before a shard that it sees
    if is_symbol(back) or is_symbol(share) or is_symbol(others):
        return others * back, back
    near = min(math.floor(back / share), others)  # ranks that see everything before them
    return share * Fraction(near * (near + 1), 2) + (others - near) * back, min(back, others * share)


def _peers(s: Spread) -> Number:
    """Ranks that see the busiest rank's keys."""
    if s.window is None or s.ranks == 1:
        return s.ranks - 1
    if is_symbol(s.window) or is_symbol(s.shard):
        return 1
    return min(math.ceil((s.window - 1) / s.shard), s.ranks - 1)


def _asked(s: Spread) -> tuple[Number, Number]:
    """Queries that travel, each to every other rank that has keys it may see: of all ranks, and of the busiest."""
    others, reach = s.ranks - 1, _peers(s)
    if not s.causal:
        return s.shard * s.ranks * others, s.shard * others
    return s.shard * (reach * others - _over(reach * (reach - 1), 2)), reach * s.shard


def _busiest_pairs(s: Spread) -> Number:
    """Pairs of the rank with most to do, of one head, when every rank works on its own queries."""
    if not s.causal:
        return s.tokens * s.shard
    if s.window is not None and (is_symbol(s.window) or is_symbol(s.tokens) or is_symbol(s.ranks)):
        return s.shard * s.window
    return _pairs(s, s.tokens) - _pairs(s, s.tokens - s.shard)


def _pairs(s: Spread, tokens: Number) -> Number:
    """Pairs of the first queries, of one head."""
    if not s.causal:
        return tokens * s.tokens
    whole = _over(tokens * (tokens + 1), 2)
    if s.window is None:
        return whole
    if is_symbol(s.window) or is_symbol(tokens):
        return tokens * s.window - _over(s.window * (s.window - 1), 2)
    return whole if tokens <= s.window else tokens * s.window - _over(s.window * (s.window - 1), 2)


def _piece(share: Number) -> Number:
    """Tokens of a message."""
    longest = _over(share, PIECES)
    return longest if is_symbol(share) else min(share, max(LEAST_PIECE, longest))


def _log2(ranks: Number) -> Number:
    if is_symbol(ranks):
        import sympy

        return sympy.ceiling(sympy.log(ranks, 2))
    return (ranks - 1).bit_length()


def _larger(one: Number, other: Number) -> Number:
    if is_symbol(one) or is_symbol(other):
        import sympy

        return sympy.Max(one, other)
    return max(one, other)


def _over(number: Number, by: Number) -> Number:
    """Exactly: a fraction, until everything is added up."""
    if is_symbol(number) or is_symbol(by):
        return number / by
    return Fraction(number) / by


def _over_whole(number: Number, by: int) -> Number:
    """Without what is left over."""
    return number / by if is_symbol(number) else number // by


def _whole(number: Number) -> Number:
    """A fraction of a byte is a byte."""
    return math.ceil(number) if isinstance(number, Fraction | int) else number
