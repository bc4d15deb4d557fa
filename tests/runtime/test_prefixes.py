"""Caches of a model in files, and `PrefixStore`: the longest known prefix, in memory and in a folder, within bytes."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import qkv
from qkv.cache import FirstLast, HeavyHitters
from qkv.errors import BackendRefused, OptionError, OptionTypeError
from qkv.runtime import PrefixStore
from tests.helpers.runtime_files import ALL, CONTEXT, build, write_folder
from tests.helpers.small_checkpoint import write as write_words

BYTES = 1 << 30


@pytest.fixture(scope="module", params=ALL)
def any_model(request, tmp_path_factory):
    return qkv.runtime.load(write_folder(build(request.param), tmp_path_factory.mktemp(request.param)), threads=1)


def load(folder, name="llama", **options):
    return qkv.runtime.load(write_folder(build(name), folder), threads=1, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(tmp_path_factory.mktemp("store"))


def prompt(seed, n):
    return torch.randint(3, 99, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits(model, tokens, cache=None, **options):
    return model.step([tokens], model.cache(**options) if cache is None else cache)


def filled(model, tokens, **options):
    cache = model.cache(**options)
    logits(model, tokens, cache)
    return cache


def saved(model, path, tokens, **options):
    cache = filled(model, tokens, **options)
    model.save_cache(cache, path, tokens=tokens)
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, "int4"])
def test_a_cache_comes_back_with_all_layers(any_model, dtype, tmp_path):
    cache = saved(any_model, tmp_path / "a.prefix", prompt(0, 101), dtype=dtype)
    for _ in range(2):
        again = any_model.load_cache(tmp_path / "a.prefix", tokens=prompt(0, 101))
        assert (again.batch, again.length, again.nbytes) == (cache.batch, cache.length, cache.nbytes)
        mine = cache.fork()
        for seed in range(2):
            assert torch.equal(logits(any_model, prompt(seed, 5), again), logits(any_model, prompt(seed, 5), mine))
    assert os.listdir(tmp_path) == ["a.prefix"]


def test_rows_eviction_and_formats_by_layer(model, tmp_path):
    tokens = torch.tensor([prompt(0, 90), prompt(1, 90)])
    evicting, auto = model.cache(2, eviction=HeavyHitters(20, 23, every=9)), model.cache(2, dtype="auto", bound=0.02)
    for cache, options in ((evicting, {"eviction": HeavyHitters(20, 23, every=9)}), (auto, {})):
        model.step(tokens, cache, lengths=[90, 53])
        model.save_cache(cache, tmp_path / "a.prefix", tokens=prompt(5, 143))
        again = model.load_cache(tmp_path / "a.prefix", **options)
        assert [layer.dtype for layer in again.layers] == [layer.dtype for layer in cache.layers]
        assert [layer.eviction for layer in again.layers] == [layer.eviction for layer in cache.layers]
        for t in range(12):
            step = tokens[:, t : t + 1]
            assert torch.equal(model.step(step, again), model.step(step, cache))


def test_a_file_of_another_model_or_of_other_tokens_is_refused(model, tmp_path):
    path = tmp_path / "a.prefix"
    saved(model, path, prompt(0, 41))
    os.mkdir(tmp_path / "other")
    theirs = build("llama")
    with torch.no_grad():
        theirs.model.layers[1].self_attn.k_proj.weight *= 1.01
    other = qkv.runtime.load(write_folder(theirs, tmp_path / "other"))
    int8 = qkv.runtime.load(tmp_path / "other", activations="int8")
    same = qkv.runtime.load(write_folder(build("llama"), tmp_path / "other"))
    assert len({model.identity, other.identity, int8.identity}) == 3
    assert same.identity == model.identity
    for wrong in (other, int8):
        with pytest.raises(OptionError, match=r"model: got .* has the keys of another model"):
            wrong.load_cache(path)
    with pytest.raises(OptionError, match="of which the first 40 are these"):
        model.load_cache(path, tokens=[*prompt(0, 40), 5])
    with pytest.raises(OptionTypeError, match=r"model\.cache\(\)"):
        model.save_cache(qkv.KVCache(1, 1, 4), path)
    with pytest.raises(OptionError, match=r"model\.load_cache or qkv\.hf\.load_cache reads"):
        qkv.KVCache.map(path)
    qkv.KVCache(1, 2, 4).freeze().save(path, model=model.identity)
    with pytest.raises(OptionError, match="path: got"):
        model.load_cache(path)


def test_a_model_that_runs_in_transformers_saves_its_rows(tmp_path):
    model = qkv.runtime.load(write_words(tmp_path, max_position_embeddings=CONTEXT), backend="transformers")
    cache = model.cache(2)
    model.step([[5, 7, 11], [13, 17, 19]], cache, lengths=[3, 2])
    model.save_cache(cache, tmp_path / "a.prefix", tokens=[5, 7, 11, 13, 17])
    again = model.load_cache(tmp_path / "a.prefix", tokens=[5, 7, 11, 13, 17])
    assert again.lengths.tolist() == [3, 2]
    for step in ([[5], [6]], [[8], [9]]):
        assert torch.equal(model.step(step, again), model.step(step, cache))
    with pytest.raises(BackendRefused, match="eviction"):
        model.load_cache(tmp_path / "a.prefix", eviction=FirstLast(1, 2))


@pytest.mark.parametrize("options", [{}, {"dtype": "int8/int4"}], ids=str)
def test_the_longest_known_prefix_is_found(model, options):
    store, shared = PrefixStore(model, BYTES, **options), prompt(0, 53)
    for seed, n in ((1, 41), (2, 71), (3, 0)):
        tokens = shared + prompt(seed, n)
        cache, known = store.find(tokens)
        assert known == (0 if seed == 1 else 53 if n else 49)
        logits(model, tokens[known:], cache)
        store.keep(tokens, cache)
    assert len(store) == 2, "the third is the beginning of others"
    for tokens, known in (
        (shared + prompt(2, 71)[:60] + [7] * 9, 113),
        (shared + prompt(1, 41)[:23] + [7] * 9, 76),
        (prompt(9, 90), 0),
        (shared[:31], 0),
        (shared, 49),
    ):
        found, n = store.find(tokens)
        assert (n, found.length) == (known, known)
        assert torch.equal(logits(model, tokens[n:], found), logits(model, tokens, **options))
    assert store.hits == 5


def test_the_least_recently_used_goes_first_and_comes_back_from_the_folder(model, tmp_path):
    page = saved(model, tmp_path / "page", prompt(0, 64)).nbytes
    prompts = [prompt(seed, 51) for seed in range(5)]

    def fill(store):
        for tokens in prompts:
            cache, known = store.find(tokens)
            logits(model, tokens[known:], cache)
            store.keep(tokens, cache)
            assert store.nbytes <= 3 * page
            store.find(prompts[0])

    def known(store):
        return [store.find(tokens)[1] for tokens in prompts]

    forgetful = PrefixStore(model, 3 * page)
    fill(forgetful)
    assert known(forgetful) == [47, 0, 0, 47, 47]
    store = PrefixStore(model, 3 * page, folder=tmp_path / "folder")
    fill(store)
    assert len(os.listdir(tmp_path / "folder")) == 2
    assert known(store) == [47] * 5, "two of them from files, in whose place others are written"
    store.save()
    assert len(os.listdir(tmp_path / "folder")) == 5
    later = PrefixStore(model, 3 * page, folder=tmp_path / "folder")
    assert known(later) == [47] * 5
    found, n = later.find(prompts[2] + [9] * 7)
    assert n == 51
    assert torch.equal(logits(model, [9] * 7, found), logits(model, prompts[2] + [9] * 7))
    small = PrefixStore(model, page - 1, folder=tmp_path / "small")
    small.keep(prompts[0], new(small, 0))
    assert not os.listdir(tmp_path / "small"), "what never fits does not come back either"


def test_the_folder_is_bounded_and_each_model_and_format_has_its_own_files(model, tmp_path):
    saved(model, tmp_path / "page", prompt(0, 51))
    size, folder = (tmp_path / "page").stat().st_size, tmp_path / "folder"
    store = PrefixStore(model, BYTES, folder=folder, folder_limit=3 * size)
    for seed in range(5):
        store.keep(prompt(seed, 51), new(store, seed))
        store.save()
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * size
    reopened = PrefixStore(model, BYTES, folder=folder)
    assert [reopened.find(prompt(seed, 51))[1] for seed in range(5)] == [0, 0, 47, 47, 47]
    assert PrefixStore(model, BYTES, folder=folder, dtype="int8").find(prompt(4, 51))[1] == 0
    longer, cache = prompt(4, 51) + prompt(7, 30), store.find(prompt(4, 51) + prompt(7, 30))[0]
    logits(model, longer[51:], cache)
    store.keep(longer, cache)
    store.save()
    assert len(os.listdir(folder)) == 2, "one of two pages takes the place of its beginning, and of the oldest"
    assert [PrefixStore(model, BYTES, folder=folder).find(prompt(seed, 51))[1] for seed in (2, 3, 4)] == [0, 47, 47]


def new(store, seed):
    cache, known = store.find(prompt(seed, 51))
    logits(store.model, prompt(seed, 51)[known:], cache)
    return cache


def test_files_of_the_folder_that_are_damaged_or_gone(model, tmp_path):
    folder = tmp_path / "folder"
    store = PrefixStore(model, BYTES, folder=folder)
    for seed in range(3):
        store.keep(prompt(seed, 51), new(store, seed))
    store.save()
    first, second, third = sorted(folder.iterdir(), key=lambda path: path.stat().st_atime_ns)
    reading = PrefixStore(model, BYTES, folder=folder)
    assert reading.find(prompt(2, 51))[1] == 47
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"is removed from the prefixes: path: got"):
        assert reading.find(prompt(0, 51))[1] == 0
    assert not first.exists()
    second.unlink()
    assert reading.find(prompt(1, 51))[1] == 0
    third.unlink()
    assert reading.find(prompt(2, 51))[1] == 47, "it is mapped"
    (folder / f"{reading._kind}-0.prefix").write_text("text")
    with pytest.warns(UserWarning, match="is removed"):
        PrefixStore(model, BYTES, folder=folder).find(prompt(0, 51))
    assert not os.listdir(folder)


def test_rows_with_a_window_or_a_policy_are_found_whole(tmp_path):
    windowed, full = load(tmp_path, "gemma3"), load(tmp_path, "llama")
    for model, options in ((windowed, {}), (full, {"eviction": HeavyHitters(20, 23, every=9)})):
        store = PrefixStore(model, BYTES, folder=tmp_path / model.identity, **options)
        tokens = prompt(0, 90)
        cache, _ = store.find(tokens)
        logits(model, tokens, cache)
        store.keep(tokens, cache)
        store.save()
        for found in (store, PrefixStore(model, BYTES, folder=tmp_path / model.identity, **options)):
            cache, known = found.find(tokens + prompt(1, 9))
            assert known == 90
            again = store.find(tokens + prompt(1, 9))[0]
            assert torch.equal(logits(model, prompt(1, 9), cache), logits(model, prompt(1, 9), again))
            part = tokens[:50] + prompt(1, 9)
            cache, known = found.find(part)
            assert known == 0 or not options, "a policy has moved what it kept"
            torch.testing.assert_close(logits(model, part[known:], cache), logits(model, part, **options))


def test_what_a_store_refuses(model, tmp_path):
    with pytest.raises(OptionError, match="limit"):
        PrefixStore(model, -1)
    with pytest.raises(OptionError, match=r"bound: got 0\.1, wanted None: prefixes are rows of one cache"):
        PrefixStore(model, 1, dtype="auto", bound=0.1)
    nothing = PrefixStore(model, 0, folder=tmp_path)
    nothing.keep(prompt(0, 51), new(nothing, 0))
    assert (len(nothing), nothing.find(prompt(0, 51))[1]) == (0, 0)


def test_threads_share_a_store(model):
    texts = [prompt(at, 41 + at) for at in range(3)]
    wanted = [logits(model, text) for text in texts]
    store = PrefixStore(model, 1 << 17)  # so few bytes that prefixes come and go

    def work(thread):
        for turn in range(17):
            at = (thread + turn) % len(texts)
            cache, known = store.find(texts[at])
            found = logits(model, texts[at][known:], cache)
            assert torch.allclose(found, wanted[at], atol=1e-4)
            store.keep(texts[at], cache)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.hits


def test_a_cache_of_another_origin_is_refused_and_the_store_goes_on(model):
    store, text = PrefixStore(model, BYTES, dtype=torch.int8), prompt(1, 67)
    for options in ({}, {"dtype": "int4"}, {"dtype": torch.int8}, {"eviction": FirstLast(4, 16)}):
        with pytest.raises(OptionError, match="cache: got ModelCache, wanted a cache that `find` returned"):
            store.keep(text, filled(model, text, **options))
    cache, known = store.find(text)
    assert not known
    logits(model, text, cache)
    store.keep(text, cache)
    assert store.find([*text, 5, 6, 7, 8])[1] == len(text)
    for wrong in ("abc", None, [], [1.5], [[1, 2]], 7):
        with pytest.raises(OptionError, match="tokens: got"):
            store.find(wrong)
