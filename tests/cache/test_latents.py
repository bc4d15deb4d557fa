"""Caches of latents, and `decode_latents` in both forms against attention over the keys and values of every head."""

import json
from math import nan

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import qkv
from qkv import errors, ops
from qkv.cache import FirstLast, decode_latents
from qkv.cache.latents import expand_latents
from qkv.cost.price import latent_flops
from tests.helpers.decode_reference import LATENTS, Plain, holds, name_of, numbers, same_bits, stored, untouched

HEADS, RANK, ROPE, PLAIN, VALUE = 7, 11, 4, 5, 3
by_storage = pytest.mark.parametrize("storage", LATENTS, ids=name_of)
by_form = pytest.mark.parametrize("form", ["absorbed", "expanded"])


def new(storage=torch.float32, batch=3, heads=1, **options):
    return qkv.KVCache(batch, heads, RANK + ROPE, value_width=RANK, dtype=storage, latent=True, **options)


def tokens(n, seed=0, batch=3, dtype=torch.float32):
    """The queries before the projection, and what is cached."""
    query = numbers((batch, HEADS, n, PLAIN + ROPE), dtype, seed)
    return query, numbers((batch, 1, n, RANK + ROPE), dtype, seed + 1)


def matrices(dtype=torch.float32):
    return numbers((HEADS, PLAIN + VALUE, RANK), dtype, 99) * RANK**-0.5


def wanted(query, keys, storage, lengths=None, **options):
    """The last queries over all tokens (batch, 1, total, …), of which each row has `lengths`, in float64."""
    key, value = expand_latents(stored(keys, storage), matrices().double(), PLAIN + ROPE)
    total, n = keys.shape[2], query.shape[2]
    mask = qkv.Causal(offset=total - n)
    if lengths is not None:
        mask = mask & qkv.Padding(lengths=lengths)
    return qkv.attention(query.double(), key, value, mask=mask, **options)


@by_storage
@by_form
def test_both_forms_are_attention_with_the_keys_and_values_of_every_head(storage, form):
    cache, given = new(storage), []
    for seed, n in enumerate((1, 67, 1, 3, 130, 1)):
        query, key = tokens(n, 2 * seed)
        given.append(key)
        out = decode_latents(query, key, matrices(), cache, form=form)
        torch.testing.assert_close(
            out.double(), wanted(query, torch.cat(given, 2), storage), rtol=0, atol=3e-6, msg=f"{n} tokens"
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=name_of)
def test_every_dtype_of_queries(dtype):
    cache, given = new(), []
    for seed, n in ((0, 66), (2, 2)):
        query, key = tokens(n, seed, dtype=dtype)
        given.append(key)
        out = decode_latents(query, key, matrices(dtype), cache)
        assert out.dtype is dtype
    answer = wanted(query, torch.cat(given, 2), torch.float32)
    torch.testing.assert_close(out.double(), answer, rtol=0, atol=60 * torch.finfo(dtype).eps + 1e-6)


@by_form
@pytest.mark.parametrize("padding", ["left", "right"])
def test_ragged_rows(form, padding):
    cache, lengths = new(), torch.tensor([5, 0, 2])
    query, key = tokens(5)
    real = torch.arange(5) < lengths[:, None] if padding == "right" else torch.arange(5) >= 5 - lengths[:, None]
    dirty = key.masked_fill(~real[:, None, :, None], nan)
    decode_latents(query, dirty, matrices(), cache, form=form, lengths=lengths, padding=padding)
    assert torch.equal(cache.lengths, lengths)
    more, after = tokens(1, 2)
    out = decode_latents(more, after, matrices(), cache, form=form)
    for b, count in enumerate(lengths.tolist()):
        own = torch.cat([key[b : b + 1, :, real[b]], after[b : b + 1]], 2)
        answer = wanted(more[b : b + 1], own, torch.float32)
        assert own.shape[2] == count + 1
        torch.testing.assert_close(out[b : b + 1].double(), answer, rtol=0, atol=3e-6)


@by_form
def test_weights_masks_and_similarities(form):
    cache = new()
    query, key = tokens(70)
    decode_latents(query, key, matrices(), cache, form=form)
    more, after = tokens(2, 2)
    keep = numbers((3, 1, 2, 72), seed=5) > 0
    similarity = qkv.Softmax(softcap=2.0, sink=0.5)
    options = {"similarity": similarity, "return_weights": True}
    found = decode_latents(more, after, matrices(), cache, form=form, mask=qkv.masks.Dense(keep), **options)
    both = torch.cat([key, after], 2).double()
    ones = expand_latents(both, matrices().double(), PLAIN + ROPE)
    mask = qkv.Causal(offset=70) & qkv.masks.Dense(keep)
    answer = qkv.attention(more.double(), *ones, mask=mask, **options)
    for one, other in zip(found, answer, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=3e-6)


def products(run):
    """Flops of the products that ran: torch's, and those of the native kernels."""
    from torch.utils.flop_counter import FlopCounterMode

    with ops.count_executed() as work, FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() + work.score_flops + work.value_flops


# Widths and numbers of tokens that fill vectors, so that kernels compute nothing that is not needed.
WIDE = {"plain": 48, "rope": 16, "value": 32}
SIZES = {"rank": 64, **WIDE}


@by_form
def test_the_formula_of_each_form_is_the_count(form):
    heads, past = 3, 95
    cache = qkv.KVCache(1, 1, 80, value_width=64, latent=True)
    cache.append(numbers((1, 1, past, 80)))
    query, key, up = numbers((1, heads, 1, 64)), numbers((1, 1, 1, 80)), numbers((heads, 80, 64))
    absorbed, expanded = latent_flops(heads, **SIZES, queries=1, keys=past + 1, pairs=past + 1)
    found = products(lambda: decode_latents(query, key, up, cache, form=form))
    assert found == (absorbed if form == "absorbed" else expanded)


@pytest.mark.parametrize(("past", "n"), [(0, 1), (300, 1), (300, 40), (0, 129)])
def test_the_form_with_fewer_flops_runs(past, n):
    query, key = tokens(n, batch=1)
    pairs = n * past + n * (n + 1) // 2
    counts = {"queries": n, "keys": past + n, "pairs": pairs}
    absorbed, expanded = latent_flops(HEADS, RANK, plain=PLAIN, rope=ROPE, value=VALUE, **counts)
    answers = []
    for form in (None, "absorbed" if absorbed <= expanded else "expanded"):
        cache = new(batch=1)
        if past:
            cache.append(tokens(past, 4, batch=1)[1])
        answers.append(decode_latents(query, key, matrices(), cache, form=form))
    same_bits(*answers)
    assert (absorbed <= expanded) == (past > 0 and n == 1), "both are tested"


def test_a_failed_call_changes_nothing():
    for form in ("absorbed", "expanded"):
        cache = new()
        cache.append(tokens(5)[1])
        query, key = tokens(3, 2)
        with untouched(cache), pytest.raises(errors.MaskError):
            mask = qkv.masks.Dense(torch.ones(3, 1, 3, 5, dtype=torch.bool))
            decode_latents(query, key, matrices(), cache, mask=mask, form=form)


def test_caches_that_forget_run_absorbed():
    for options in ({"window": 40}, {"eviction": FirstLast(2, 30, every=1)}, {"importance": True}):
        cache = new(**options)
        for seed in range(3):
            out = decode_latents(*tokens(50, seed), matrices(), cache)
        assert bool(out.isfinite().all())
        with pytest.raises(errors.OptionError, match="absorbed"):
            decode_latents(*tokens(1), matrices(), cache, form="expanded")


@by_storage
def test_a_token_takes_one_row(storage):
    """r + rope numbers, in rows of a multiple of 16; a header of 64 bytes a page, and a scale a token in int8."""
    for rank, rope in ((512, 64), (64, 16), (11, 4)):
        cache = qkv.KVCache(2, 1, rank + rope, value_width=rank, dtype=storage, latent=True)
        cache.append(torch.zeros(2, 1, 640, rank + rope))
        row = -(-(rank + rope) // 16) * 16
        size = cache.format.row_bytes(row)
        assert cache.nbytes == 2 * 10 * (64 + 64 * size)
        assert size == row * cache.format.element.itemsize + (4 if storage is torch.int8 else 0)


@by_storage
@pytest.mark.parametrize("heads", [1, 2])
def test_it_comes_back_from_a_file_bit_for_bit(storage, heads, tmp_path):
    cache = new(storage, heads=heads)
    plain = Plain.like(cache)
    key = numbers((3, heads, 130, RANK + ROPE), seed=3)
    key[0, 0, 3, 1], key[1, 0, 7, RANK] = nan, nan
    for each in (cache, plain):
        each.append(key, None, lengths=[130, 0, 65])
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    again = qkv.KVCache.load(path)
    assert again.latent
    assert again.nbytes == cache.nbytes
    holds(again, plain)
    query, key = numbers((3, 4 * heads, 1, RANK + ROPE), seed=5), numbers((3, heads, 1, RANK + ROPE), seed=6)
    same_bits(qkv.decode(query, key, None, again), qkv.decode(query, key, None, cache))


def test_a_damaged_file_is_refused(tmp_path):
    cache = new()
    cache.append(tokens(5)[1])
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    tensors = load_file(path)
    for name, text in (("value_width", "99"), ("width", "14"), ("value_width", "0"), ("latent", ""), ("dtype", "int4")):
        save_file(tensors, path, about | {name: text})
        with pytest.raises(errors.OptionError, match="file"):
            qkv.KVCache.load(path)
    assert json.dumps(about)


def test_renumbered_latents_are_rotated_as_a_whole():
    """A policy that turns keys to new positions is given the whole row, and all of it is stored."""
    policy = FirstLast(2, 30, every=1, positions="renumbered", rotate=lambda key, by: key + by[..., None])
    cache = new(batch=1, eviction=policy)
    key = tokens(70, batch=1)[1]
    cache.append(key)
    kept = torch.cat([key[:, :, :2], key[:, :, -30:]], 2)
    moved = torch.tensor([*[38] * 2, *[0] * 30])
    same_bits(cache.tensors()[0], kept + moved[:, None])
    same_bits(cache.tensors()[1], (kept + moved[:, None])[..., :RANK])


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("int8 stores latents", {"dtype": "int4"}),
        ("int8 stores latents", {"dtype": "int8/int4"}),
        ("a storage format", {"dtype": "auto", "bound": 0.1}),
        ("at most 15", {"value_width": 16}),
        ("latent", {"latent": 3}),
    ],
)
def test_caches_that_are_refused(words, options):
    given = {"value_width": RANK, "latent": True} | options
    with pytest.raises(errors.QkvError, match=words):
        qkv.KVCache(3, 1, RANK + ROPE, **given)


def test_calls_that_are_refused():
    cache = new()
    query, key = tokens(2)
    inner = numbers((3, HEADS, 2, RANK + ROPE))
    for call in (
        lambda: qkv.decode(inner, key, key[..., :RANK], cache),
        lambda: cache.append(key, key[..., :RANK]),
        lambda: qkv.explain(inner, key, key, cache=cache),
    ):
        with pytest.raises(errors.OptionTypeError, match="None with latent=True"):
            call()
    with pytest.raises(errors.QkvError, match="value"):
        qkv.decode(inner, key, None, qkv.KVCache(3, 1, RANK + ROPE))
    plain = qkv.KVCache(3, 1, RANK + ROPE, value_width=RANK)
    up = matrices()
    for words, given in (
        ("latent=True", (query, key, up, plain)),
        ("query: got width 3", (query[..., :3], key, up, cache)),
        ("up: got shape", (query, key, up[:5], cache)),
        ("up: got shape", (query, key, up[:, :PLAIN], cache)),
        ("up: got shape", (query, key, up[..., :5], cache)),
        ("key: ", (query, key[0], up, cache)),
        ("key: ", (query, key[..., :9], up, cache)),
    ):
        with untouched(cache), pytest.raises(errors.QkvError, match=words):
            decode_latents(*given)
    with pytest.raises(errors.OptionError, match="form"):
        decode_latents(query, key, up, cache, form="folded")
    with pytest.raises(errors.OptionError, match="float64"):
        decode_latents(*tokens(1, dtype=torch.float64), up, new(), form="expanded")


def test_it_is_explained_and_compiled():
    cache, other = new(batch=1), new(batch=1)
    inner, key = numbers((1, HEADS, 1, RANK + ROPE)), numbers((1, 1, 1, RANK + ROPE), seed=1)
    assert qkv.explain(inner, key, None, cache=cache).backend == "native"
    step = torch.compile(lambda q, k: qkv.decode(q, k, None, cache), backend="eager", fullgraph=True)
    for _ in range(3):
        same_bits(step(inner, key), qkv.decode(inner, key, None, other))


def test_argmax_takes_the_value_of_the_best_latent():
    cache = new(batch=1)
    key = numbers((1, 1, 70, RANK + ROPE))
    cache.append(key)
    query = key[:, :, 33:34].expand(1, HEADS, 1, -1)
    out = qkv.attend(query, cache, similarity=qkv.Argmax())
    best = (key[0, 0] @ key[0, 0, 33]).argmax()
    same_bits(out[0, 0, 0], key[0, 0, best, :RANK])
