"""Random walks over a LinearState and its forks, compared with plain lists; for test_cache.py and campaigns/caches.py.

A rule is counted only if it changed or checked something.
"""

from collections import Counter
from math import inf, nan

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import qkv
from qkv import errors
from tests.helpers.linear_reference import (
    append_rows,
    close,
    decode_rows,
    draw,
    lengths_of,
    no_rows,
    recalls,
    similarities,
)

WIDTH, VALUE_WIDTH = 4, 3
SIMILARITIES = similarities(WIDTH)
# Mostly one token; 16 fill the buffer of recent tokens exactly, 129 exceed what is kept in addition to the sums.
COUNTS = st.sampled_from((1, 1, 1, 2, 3, 5, 0, 15, 16, 17, 33, 129))
SEEDS = st.integers(0, 999)
MOST = 300
# How often each rule was applied in this process.
DONE: Counter[str] = Counter()


class States(RuleBasedStateMachine):
    """Up to four states, forks of one another, each with its plain list."""

    @initialize(
        name=st.sampled_from(sorted(SIMILARITIES)),
        dtype=st.sampled_from((torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)),
        batch=st.integers(1, 3),
        heads=st.sampled_from(((1, 1), (2, 2), (4, 2), (3, 1))),
    )
    def begin(self, name, dtype, batch, heads):
        self.similarity, self.dtype, self.heads = SIMILARITIES[name], dtype, heads
        state = qkv.LinearState(self.similarity, batch, heads[1], WIDTH, value_width=VALUE_WIDTH)
        self.pairs = [(state, no_rows(batch, heads[1], (WIDTH, VALUE_WIDTH)))]

    def take(self, which):
        return self.pairs[which % len(self.pairs)]

    def fresh(self, n, seed, batch):
        widths = WIDTH, VALUE_WIDTH
        return draw(n, batch=batch, heads=self.heads, widths=widths, dtype=self.dtype, seed=seed)

    def ragged(self, n, seed, batch, padding):
        """The tensors, the same with NaN and infinity at padding, and the numbers of real tokens."""
        tensors = self.fresh(n, seed, batch)
        if padding is None:
            return tensors, tensors, None
        lengths = torch.randint(0, n + 1, (batch,), generator=torch.Generator().manual_seed(seed)).tolist()
        dirty = [tensor.clone() for tensor in tensors]
        for b, count in enumerate(lengths):
            gone = slice(0, n - count) if padding == "left" else slice(count, n)
            for tensor, bad in zip(dirty, (nan, inf, nan), strict=True):
                tensor[b, :, gone] = bad
        return tensors, dirty, lengths

    @rule(which=st.integers(0, 3), n=COUNTS, seed=SEEDS, padding=st.sampled_from((None, None, "left", "right")))
    def append(self, which, n, seed, padding):
        state, rows = self.take(which)
        if max(lengths_of(rows)) + n > MOST:
            return
        tensors, dirty, lengths = self.ragged(n, seed, len(rows), padding)
        append_rows(rows, *tensors[1:], lengths, padding or "right")
        state.append(*dirty[1:], lengths=lengths, padding=padding or "right")
        DONE["append"] += 1

    @rule(which=st.integers(0, 3), n=COUNTS, seed=SEEDS, padding=st.sampled_from((None, None, None, "left", "right")))
    def decode(self, which, n, seed, padding):
        state, rows = self.take(which)
        if max(lengths_of(rows)) + n > MOST:
            return
        tensors, dirty, lengths = self.ragged(n, seed, len(rows), padding)
        wanted = decode_rows(rows, *tensors, self.similarity, lengths, padding or "right")
        close(qkv.decode(*dirty, state, lengths=lengths, padding=padding or "right"), wanted, what="decode")
        DONE["decode"] += 1

    @rule(which=st.integers(0, 3), seed=SEEDS, times=st.integers(1, 9))
    def steps(self, which, seed, times):
        """One token after another, as a model decodes."""
        state, rows = self.take(which)
        for t in range(times):
            if max(lengths_of(rows)) >= MOST:
                return
            tensors = self.fresh(1, seed + t, len(rows))
            close(qkv.decode(*tensors, state), decode_rows(rows, *tensors, self.similarity), what="step")
            DONE["step"] += 1

    @rule(which=st.integers(0, 3))
    def snapshot(self, which):
        self.take(which)[0].snapshot()
        DONE["snapshot"] += 1

    @rule(which=st.integers(0, 3), back=st.integers(0, 40))
    def crop(self, which, back):
        """Summed tokens cannot be removed: the crop is exact, or it is refused and changes nothing."""
        state, rows = self.take(which)
        n = max(0, state.length - back)
        before = recalls(state, dtype=self.dtype)
        try:
            state.crop(n)
        except errors.QkvError:
            assert n < state.length
            assert torch.equal(before, recalls(state, dtype=self.dtype)), "a crop that was refused changed the state"
            DONE["crop that is refused"] += 1
            return
        rows[:] = [(keys[:, :n], values[:, :n]) for keys, values in rows]
        DONE["crop"] += 1

    @rule(which=st.integers(0, 3), n=COUNTS)
    def poison_and_crop(self, which, n):
        """Append tokens of NaN, then crop them, whether they are in the sums or not."""
        state, rows = self.take(which)
        if len(set(lengths_of(rows))) > 1:
            return
        state.snapshot()
        state.append(*(torch.full_like(tensor, nan) for tensor in self.fresh(n, 1, len(rows))[1:]))
        state.crop(max(lengths_of(rows)))
        DONE["poison and crop"] += 1

    @rule(which=st.integers(0, 3), index=st.lists(st.integers(0, 99), min_size=1, max_size=4), tensor=st.booleans())
    def reorder(self, which, index, tensor):
        state, rows = self.take(which)
        index = [i % len(rows) for i in index]
        state.reorder(torch.tensor(index) if tensor else index)
        rows[:] = [rows[i] for i in index]
        DONE["reorder"] += 1

    @rule(which=st.integers(0, 3))
    def fork(self, which):
        state, rows = self.take(which)
        if len(self.pairs) < 4:
            self.pairs.append((state.fork(), list(rows)))
            DONE["fork"] += 1

    @precondition(lambda self: len(self.pairs) > 2)
    @rule(which=st.integers(0, 3))
    def drop(self, which):
        self.pairs.pop(which % len(self.pairs))
        DONE["drop"] += 1

    @precondition(lambda self: max(state.length for state, _ in self.pairs) > 40)
    @rule(which=st.integers(0, 3))
    def reset(self, which):
        state, rows = self.take(which)
        state.reset()
        rows[:] = no_rows(len(rows), self.heads[1], (WIDTH, VALUE_WIDTH))
        DONE["reset"] += 1

    @invariant()
    def lengths_agree(self):
        for state, rows in getattr(self, "pairs", ()):
            assert state.lengths.tolist() == lengths_of(rows)
            assert state.length == max(lengths_of(rows))
            assert state.batch == len(rows)

    def teardown(self):
        for state, rows in getattr(self, "pairs", ()):
            fresh = self.fresh(2, 7, len(rows))
            close(qkv.decode(*fresh, state), decode_rows(rows, *fresh, self.similarity), what="at the end")
