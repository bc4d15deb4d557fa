"""Random walks over a KVCache and its forks, compared with plain lists; for test_cache.py and campaigns/caches.py.

A rule is counted only if it changed or checked something.
"""

from collections import Counter
from math import inf, nan
from tempfile import TemporaryDirectory

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import qkv
from qkv import errors
from qkv.cache import FirstLast, HeavyHitters, Select
from tests.helpers.decode_cases import MASKS, SIMILARITIES, Scene, make_bias, make_mask, make_similarity, tokens
from tests.helpers.decode_reference import LATENTS, PAGE, QUERIES, STORAGE, Plain, holds, page_bytes, untouched

# Mostly one token; sometimes enough to fill a page exactly, or more.
COUNTS = st.sampled_from((1, 1, 1, 2, 3, 5, 0, 29, 61, 63, 64, 65, 70))
SEEDS = st.integers(0, 999)
MOST = 400
POLICIES = {
    "none": None,
    "first and last": FirstLast(2, 30, every=1),
    "by position": Select(lambda importance, at, length: (5 * at + length) % 3 > 0, 40, every=9),
    "renumbered": FirstLast(3, 61, every=64, positions="renumbered"),
    "nothing": Select(lambda importance, at, length: at < 0, 0, every=70),
}
# How often each rule was applied in this process.
DONE: Counter[str] = Counter()


class Caches(RuleBasedStateMachine):
    """Up to four caches, forks of one another, each with its plain list."""

    @initialize(
        storage=st.sampled_from(STORAGE),
        dtype=st.sampled_from((*QUERIES, torch.float32)),
        batch=st.integers(1, 3),
        heads=st.sampled_from(((1, 1), (2, 2), (4, 2), (3, 1), (6, 2))),
        widths=st.sampled_from(((1, 1), (3, 2), (5, 7), (8, 16), (17, 3))),
        window=st.sampled_from((None, None, 1, 3, 40, 64, 70)),
        capacity=st.sampled_from((None, None, None, 130)),
        sinks=st.sampled_from((0, 2, 65)),
        policy=st.sampled_from((*POLICIES, *["none"] * 3)),
        importance=st.booleans(),
        latent=st.booleans(),
    )
    def begin(self, storage, dtype, batch, heads, widths, window, capacity, sinks, policy, importance, latent):
        self.dtype, self.heads, self.widths, self.importance = dtype, heads, widths, importance and window is None
        self.latent = latent and storage in LATENTS and widths[0] >= widths[1]
        forgetting = {"window": window, "sinks": sinks} if window else {"eviction": POLICIES[policy]}
        evicts = (window and sinks) or policy != "none"
        self.capacity = None if evicts else capacity
        forgetting |= {"importance": self.importance, "capacity": self.capacity, "latent": self.latent}
        cache = qkv.KVCache(batch, heads[1], widths[0], value_width=widths[1], dtype=storage, **forgetting)
        self.pairs = [(cache, Plain.like(cache))]
        self.prefixes = []

    def take(self, which):
        return self.pairs[which % len(self.pairs)]

    def fresh(self, n, seed, batch):
        query, key, value = tokens(n, batch=batch, heads=self.heads, widths=self.widths, dtype=self.dtype, seed=seed)
        return query, key, None if self.latent else value

    def ragged(self, n, seed, batch, padding):
        """Options for the call, and its tensors with NaN and infinity at padding."""
        tensors = self.fresh(n, seed, batch)
        if padding is None:
            return tensors, tensors, {}
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(0, n + 1, (batch,), generator=generator)
        dirty = [None if tensor is None else tensor.clone() for tensor in tensors]
        for b, count in enumerate(lengths.tolist()):
            gone = slice(0, n - count) if padding == "left" else slice(count, n)
            for tensor, bad in zip(dirty, (nan, inf, nan), strict=True):
                if tensor is not None:
                    tensor[b, :, gone] = bad
        return tensors, dirty, {"lengths": lengths, "padding": padding}

    def fits(self, plain, n, options):
        counts = options["lengths"].tolist() if options else [n] * plain.batch
        longest = max(have + more for have, more in zip(plain.lengths, counts, strict=True))
        stored = max(have + more for have, more in zip(plain.stored, counts, strict=True))
        return (self.capacity is None or stored <= self.capacity) and longest <= MOST, longest

    @rule(which=st.integers(0, 3), n=COUNTS, seed=SEEDS, padding=st.sampled_from((None, None, "left", "right")))
    def append(self, which, n, seed, padding):
        cache, plain = self.take(which)
        tensors, dirty, options = self.ragged(n, seed, plain.batch, padding)
        fits, longest = self.fits(plain, n, options)
        if fits:
            plain.append(*tensors[1:], **options)
            if plain.policy is not None and n and (not options or options["lengths"].any()):
                plain.evict(plain.policy, plain.policy.keep + plain.policy.every)
            cache.append(*dirty[1:], **options)
            DONE["append"] += 1
        elif self.capacity is not None and longest <= MOST:
            with untouched(cache):
                try:
                    cache.append(*dirty[1:], **options)
                except errors.QkvError:
                    DONE["append beyond the capacity"] += 1
                    return
                raise AssertionError("a row went beyond the capacity")

    @rule(
        which=st.integers(0, 3),
        n=COUNTS,
        seed=SEEDS,
        padding=st.sampled_from((None, None, None, "left", "right")),
        mask=st.sampled_from((*MASKS, *["none"] * len(MASKS))),
        similarity=st.sampled_from((*SIMILARITIES, "default")),
        bias=st.sampled_from((None, None, None, "full", "keys", "new queries")),
        weights=st.booleans(),
    )
    def decode(self, which, n, seed, padding, mask, similarity, bias, weights):
        cache, plain = self.take(which)
        tensors, dirty, options = self.ragged(n, seed, plain.batch, padding)
        fits, total = self.fits(plain, n, options)
        if not fits:
            return
        if n == total and (padding or any(plain.lengths)) and mask.startswith(("dense", "segments")):
            # A query axis of this size could be the whole sequence's or the new queries'.
            mask = "none"
        scene = Scene(plain.batch, self.heads[0], n, total, seed)
        built, keep = make_mask(mask, scene) if n and total else (None, None)
        if built is not None and plain.window is not None and not plain.sinks:
            built = built & qkv.Window(left=plain.window - 1, offset=0)
        kind = make_similarity(similarity if similarity != "argmax" or not self.importance else "sink", *self.kind)
        added = None
        if bias is not None and n and total and similarity != "argmax":
            added = make_bias(bias, scene, self.dtype)
        expected = plain.decode(*tensors, similarity=kind, keep=keep, bias=added, **options)
        options |= {"mask": built, "bias": added, "return_weights": weights}
        found = qkv.decode(*dirty, cache, similarity=kind, **options)
        expected.check(found[0] if weights else found)
        if weights and expected.weights is not None and n and not plain.sinks:  # whose slots move in this call
            expected.check_weights(found[1])
            DONE["weights"] += 1
        DONE["decode"] += 1

    @property
    def kind(self):
        return self.heads[0], self.dtype

    @rule(
        which=st.integers(0, 3),
        n=st.integers(1, 5),
        seed=SEEDS,
        similarity=st.sampled_from((*SIMILARITIES, "default")),
        offset=st.sampled_from((None, None, 0, 40)),
    )
    def attend(self, which, n, seed, similarity, offset):
        """Every stored key that the mask allows, and in a window those of the last token."""
        cache, plain = self.take(which)
        query = self.fresh(n, seed, plain.batch)[0]
        last = torch.tensor(plain.lengths)[:, None].expand(-1, n) - 1
        keep = None if offset is None else lambda b, h, i, p, j: j <= i + offset
        mask = None if offset is None else qkv.Causal(offset=offset)
        kind = make_similarity(similarity, *self.kind)
        with untouched(cache):
            out, weights = qkv.attend(query, cache, similarity=kind, mask=mask, return_weights=True)
        expected = plain.attend(query, last, similarity=kind, keep=keep)
        expected.check(out)
        if expected.weights is not None:
            if plain.sinks:
                at = cache.positions().repeat_interleave(self.heads[0] // self.heads[1], 1).unsqueeze(2)
                wide = torch.zeros(*weights.shape[:3], plain.length + 1)
                at = at.where(at >= 0, plain.length).expand(weights.shape)
                weights = wide.scatter(3, at, weights)[..., : plain.length]
            expected.check_weights(weights)
        DONE["attend"] += 1

    @precondition(lambda self: self.pairs[0][0].window is None)
    @rule(which=st.integers(0, 3), policy=st.sampled_from((*list(POLICIES)[1:], "by importance")))
    def evict(self, which, policy):
        cache, plain = self.take(which)
        if policy == "by importance" and self.importance:
            # Two sums that differ by rounding could be ordered otherwise: those of the cache decide.
            chosen = HeavyHitters(20, 9)
            sums = iter([cache.importance()[b, :, :stored] for b, stored in enumerate(plain.stored) if stored > 29])
            plain.evict(Select(lambda importance, at, length: chosen.select(next(sums), at, length), 29))
        elif policy != "by importance":
            chosen = POLICIES[policy]
            plain.evict(chosen)
        else:
            return
        before = cache.nbytes
        cache.evict(chosen)
        assert cache.nbytes <= before or len(self.pairs) > 1
        DONE["evict"] += 1

    @rule(which=st.integers(0, 3), seed=SEEDS, times=st.integers(1, 9))
    def steps(self, which, seed, times):
        """One token after another, as a model decodes: later steps reuse the checks of the first."""
        cache, plain = self.take(which)
        for t in range(times):
            if not self.fits(plain, 1, {})[0]:
                return
            tensors = self.fresh(1, seed + t, plain.batch)
            plain.decode(*tensors).check(qkv.decode(*tensors, cache))
            DONE["step"] += 1

    @rule(which=st.integers(0, 3), share=st.floats(0, 1))
    def crop(self, which, share):
        cache, plain = self.take(which)
        n = round(share * plain.length)
        if not plain.can_crop(n):
            with untouched(cache):
                try:
                    cache.crop(n)
                except errors.QkvError:
                    DONE["crop to where tokens were evicted"] += 1
                    return
            raise AssertionError("a crop that lacks tokens")
        if plain.window is not None and any(length > n for length in plain.lengths):
            # A window has evicted tokens: the crop is exact or refused.
            try:
                cache.crop(n)
            except errors.QkvError:
                DONE["crop that a ring refuses"] += 1
                return
        else:
            cache.crop(n)
        plain.crop(n)
        DONE["crop"] += 1

    @rule(which=st.integers(0, 3), n=COUNTS, seed=SEEDS)
    def poison_and_crop(self, which, n, seed):
        """Append tokens of NaN, then crop them."""
        cache, plain = self.take(which)
        fits, _ = self.fits(plain, n, {})
        if not fits or len(set(plain.lengths)) > 1 or plain.window is not None or plain.policy is not None:
            return
        given = self.fresh(n, seed, plain.batch)[1:]
        cache.append(*(None if tensor is None else torch.full_like(tensor, nan) for tensor in given))
        cache.crop(plain.length)
        DONE["poison and crop"] += 1

    @rule(which=st.integers(0, 3), index=st.lists(st.integers(0, 99), min_size=1, max_size=4), tensor=st.booleans())
    def reorder(self, which, index, tensor):
        cache, plain = self.take(which)
        index = [i % plain.batch for i in index]
        cache.reorder(torch.tensor(index) if tensor else index)
        plain.reorder(index)
        DONE["reorder"] += 1

    @rule(which=st.integers(0, 3), other=st.integers(0, 3))
    def extend(self, which, other):
        (cache, plain), (more, plain_more) = self.take(which), self.take(other)
        if cache.lock is not more.lock:  # of a file, or of what it was before
            with untouched(cache):
                try:
                    cache.extend(more)
                except errors.QkvError:
                    DONE["extend by a cache of other pages"] += 1
                    return
            raise AssertionError("a cache with pages of two pools")
        if plain.batch + plain_more.batch <= 5:
            cache.extend(more)
            plain.extend(plain_more)
            DONE["extend"] += 1

    @rule(which=st.integers(0, 3), rows=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def fork(self, which, rows):
        cache, plain = self.take(which)
        if len(self.pairs) < 4:
            own = plain.fork()
            if rows is not None:
                own.reorder(rows := [row % plain.batch for row in rows])
            self.pairs.append((cache.fork(rows), own))
            DONE["fork" if rows is None else "fork of some rows"] += 1

    @rule(which=st.integers(0, 3), mapped=st.booleans())
    def freeze(self, which, mapped):
        """Tokens that stay as they are, in this process or in a file; the two latest are kept."""
        cache, plain = self.take(which)
        prefix = cache.freeze()
        if mapped:
            with TemporaryDirectory() as folder:
                prefix.save(f"{folder}/walk.prefix", model="a walk", tokens=range(sum(plain.lengths)))
                prefix = qkv.KVCache.map(f"{folder}/walk.prefix", model="a walk", eviction=cache.eviction)
        self.prefixes = [*self.prefixes[-1:], (prefix, plain.fork())]
        DONE["map" if mapped else "freeze"] += 1

    @precondition(lambda self: self.prefixes and len(self.pairs) < 4)
    @rule(which=st.integers(0, 1))
    def fork_of_a_prefix(self, which):
        prefix, plain = self.prefixes[which % len(self.prefixes)]
        self.pairs.append((prefix.fork(), plain.fork()))
        DONE["fork of a prefix"] += 1

    @precondition(lambda self: len(self.pairs) > 2)
    @rule(which=st.integers(0, 3))
    def drop(self, which):
        self.pairs.pop(which % len(self.pairs))
        DONE["drop"] += 1

    @precondition(lambda self: max(plain.length for _, plain in self.pairs) > PAGE)
    @rule(which=st.integers(0, 3))
    def reset(self, which):
        cache, plain = self.take(which)
        cache.reset()
        plain.reset()
        DONE["reset"] += 1

    @rule(which=st.integers(0, 3))
    def look(self, which):
        holds(*self.take(which))
        DONE["look"] += 1

    @invariant()
    def lengths_agree(self):
        for cache, plain in getattr(self, "pairs", ()):
            assert cache.lengths.tolist() == plain.lengths
            assert cache.length == plain.length
            if plain.window is None:
                assert torch.equal(cache.positions(), plain.positions())
                assert cache.stored.tolist() == plain.stored
            if self.importance:
                torch.testing.assert_close(cache.importance().double(), plain.importance(), rtol=1e-4, atol=1e-4)
            assert cache.batch == plain.batch
            one = page_bytes(cache.heads, cache.width, cache.value_width, cache.dtype, cache.latent)
            assert cache.nbytes % one == 0

    def teardown(self):
        frozen = [(prefix.fork(), plain) for prefix, plain in getattr(self, "prefixes", ())]
        for cache, plain in [*getattr(self, "pairs", ()), *frozen]:
            holds(cache, plain)
