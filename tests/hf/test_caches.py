"""qkv.hf.cache: contents, bytes, and operations that behave as those of transformers' caches.

An operation is judged by what comes after it: the same operation on a DynamicCache under eager attention, then the
same continuation, must give the same logits.
"""

import threading
from copy import deepcopy

import pytest
import torch
import transformers

import qkv
from tests.helpers.hf_harness import close, difference, generate, run
from tests.helpers.tiny_models import (
    TABLE,
    WINDOW,
    eager,
    inputs,
    llama_like,
    ours,
    output_of,
    prompt,
    register,
    token_ids,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

# Three times what rounding keys and values costs under eager attention, in the worst of DECODERS.
LOOSE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.int8: 4e-2}
by_dtype = pytest.mark.parametrize("dtype", LOOSE, ids=lambda d: str(d).removeprefix("torch."))
DECODERS = ["llama", "mistral", "gemma2", "gemma3", "gpt_oss", "gpt2", "deepseek_v3"]
by_decoder = pytest.mark.parametrize("name", DECODERS)
FULL = ["llama", "gpt2", "gemma", "deepseek_v3"]  # no windows


@pytest.fixture(autouse=True)
def registered():
    register()


def step(model, cache, ids, mask=None):
    given = {"input_ids": ids}
    if mask is not None:
        given["attention_mask"] = mask
    return run(model, given, past_key_values=cache, use_cache=True).logits


class Both:
    """The same calls on eager attention with a DynamicCache and on qkv with its own."""

    def __init__(self, name, mask=None, ids=None, **options):
        self.name, self.mask = name, mask
        self.theirs = transformers.DynamicCache(config=eager(name).config)
        self.found = qkv.hf.cache(ours(name), **options)
        self.feed(token_ids(3, 11) if ids is None else ids)

    def feed(self, ids, tolerance=2e-5):
        """Both see the tokens; their logits agree at real ones."""
        mask = self.mask
        if mask is not None and int(self.theirs.get_seq_length()):
            self.mask = mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        wanted = step(eager(self.name), self.theirs, ids, mask)
        found = step(ours(self.name), self.found, ids, mask)
        real = None if mask is None else mask[:, -ids.shape[1] :].bool()
        close(found, wanted, real, tolerance=tolerance)
        assert int(self.found.get_seq_length()) == int(self.theirs.get_seq_length())

    def do(self, operation, *arguments):
        for cache in (self.theirs, self.found):
            getattr(cache, operation)(*arguments)
        if self.mask is not None and operation != "crop":
            if operation == "batch_repeat_interleave":
                self.mask = self.mask.repeat_interleave(arguments[0], dim=0)
            else:
                self.mask = self.mask[arguments[0]]

    def go_on(self, batch):
        """Three more tokens, one at a time, then four at once."""
        for at in range(3):
            self.feed(token_ids(batch, 1, seed=50 + at))
        self.feed(token_ids(batch, 4, seed=60))


def padded(name, side="left"):
    given, _ = inputs(name, side)
    return Both(name, mask=given["attention_mask"], ids=given["input_ids"])


# ------------------------------------------------------------------------------------------------------- operations


@pytest.mark.slow
@by_decoder
def test_steps_and_chunks_agree(name):
    Both(name).go_on(3)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@by_decoder
def test_steps_and_chunks_agree_behind_padding(name, side):
    padded(name, side).go_on(3)


REORDERINGS = ([2, 0, 1], [1, 1, 1], [0, 0, 2], [0, 1, 2])


@pytest.mark.slow
@by_decoder
@pytest.mark.parametrize("index", REORDERINGS, ids=str)
def test_reorder_cache(name, index):
    both = Both(name)
    both.do("reorder_cache", torch.tensor(index))
    both.go_on(3)
    both.do("reorder_cache", torch.tensor([1, 2, 0]))
    both.go_on(3)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_reorder_cache_behind_padding(name):
    both = padded(name)
    both.do("reorder_cache", torch.tensor([2, 2, 0]))
    both.go_on(3)


@pytest.mark.slow
@by_decoder
@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_batch_repeat_interleave(name, repeats):
    both = Both(name)
    both.do("batch_repeat_interleave", repeats)
    both.go_on(3 * repeats)


@pytest.mark.slow
@by_decoder
@pytest.mark.parametrize("index", [[1], [2, 0], [0, 0, 1, 2]], ids=str)
def test_batch_select_indices(name, index):
    both = Both(name)
    both.do("batch_select_indices", torch.tensor(index))
    both.go_on(len(index))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_repeat_then_select_behind_padding(name):
    """What contrastive search does: repeat each row for its candidates, then keep the best of each."""
    both = padded(name)
    both.do("batch_repeat_interleave", 2)
    both.feed(token_ids(6, 1, seed=9))
    both.do("batch_select_indices", torch.tensor([1, 2, 5]))
    both.go_on(3)


def test_operations_on_an_empty_cache():
    """transformers' caches take them before the first token; and the first tokens may then be of any batch."""
    cache = qkv.hf.cache(ours("llama"))
    cache.reorder_cache(torch.tensor([0]))
    cache.reset()
    cache.crop(0)
    assert int(cache.get_seq_length()) == 0
    assert cache.nbytes >= 0
    close(step(ours("llama"), cache, token_ids(4, 5)), output_of(run(eager("llama"), {"input_ids": token_ids(4, 5)})))


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("count", [1, 3, 10])
def test_crop_then_continue_is_never_having_seen_them(name, count):
    both = Both(name)
    both.do("crop", -count)
    assert int(both.found.get_seq_length()) == 11 - count
    both.go_on(3)
    ids = token_ids(3, 11)
    fresh, again = qkv.hf.cache(ours(name)), qkv.hf.cache(ours(name))
    for cache in (fresh, again):
        step(ours(name), cache, ids[:, : 11 - count])
    step(ours(name), again, ids[:, 11 - count :])
    again.crop(-count)
    more = token_ids(3, 2, seed=70)
    assert torch.equal(step(ours(name), again, more), step(ours(name), fresh, more)), "not the same bits"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt_oss"])
def test_crop_before_the_window_is_full(name):
    both = Both(name, ids=token_ids(3, WINDOW - 1))
    both.do("crop", -2)
    both.go_on(3)


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt_oss"])
def test_crop_behind_a_full_window_is_right_or_refused(name):
    """A ring has let tokens go: transformers refuses unless the past was recorded, and so may qkv."""
    cache = qkv.hf.cache(ours(name))
    ids = token_ids(3, 13)
    step(ours(name), cache, ids)
    try:
        cache.crop(-2)
    except (qkv.errors.QkvError, RuntimeError):
        assert int(cache.get_seq_length()) == 13, "a refusal changes nothing"
        return
    fresh = transformers.DynamicCache(config=eager(name).config)
    step(eager(name), fresh, ids[:, :11])
    more = token_ids(3, 2, seed=70)
    close(step(ours(name), cache, more), step(eager(name), fresh, more))


@pytest.mark.slow
@by_decoder
def test_crop_with_a_recorded_past(name):
    """How assisted decoding calls it: activate_past_recording, forward, crop."""
    both = Both(name, ids=token_ids(1, 11))
    both.do("activate_past_recording")
    for at in range(4):
        both.feed(token_ids(1, 4, seed=80 + at))
        both.do("crop", -2)
        assert int(both.found.get_seq_length()) == 11 + 2 * (at + 1)


@by_decoder
def test_reset(name):
    cache = qkv.hf.cache(ours(name))
    first = step(ours(name), cache, token_ids(3, 11))
    cache.reset()
    assert int(cache.get_seq_length()) == 0
    assert torch.equal(step(ours(name), cache, token_ids(3, 11)), first)


def test_reset_of_an_encoder_decoder():
    model, cache = ours("bart"), qkv.hf.cache(ours("bart"))
    given, _ = inputs("bart")
    other, _ = inputs("bart", seed=9)
    for one in (given, other):
        cache.reset()
        close(output_of(run(model, one, past_key_values=cache)), output_of(run(eager("bart"), one, use_cache=False)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "t5", "t5gemma", "whisper"])
def test_operations_on_an_encoder_decoder(name):
    """Crop, select and reorder go on both of its caches, crop on the decoder's own."""
    given, _ = inputs(name)
    ids = given.pop("decoder_input_ids")[:, :4]
    results = []
    for model, cache in ((eager(name), None), (ours(name), qkv.hf.cache(ours(name)))):
        out = run(model, {**given, "decoder_input_ids": ids}, past_key_values=cache)
        cache = out.past_key_values
        cache.crop(-1)
        cache.reorder_cache(torch.tensor([2, 0, 0]))
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 2, 5, 1]))
        encoded = run(model.get_encoder(), given)
        rows = torch.tensor([2, 0, 0]).repeat_interleave(2)[torch.tensor([0, 2, 5, 1])]
        encoded.last_hidden_state = encoded.last_hidden_state[rows]
        more = {"encoder_outputs": encoded, "decoder_input_ids": token_ids(4, 2, seed=8)}
        results.append(run(model, more, past_key_values=cache).logits)
    close(results[1], results[0])


# ------------------------------------------------------------------------------------------------------------ bytes


def of_width_64(**more):
    return llama_like(
        "LlamaConfig", head_dim=64, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=1100, **more
    )


def nbytes(model, dtype, n=1000, batch=1):
    cache = qkv.hf.cache(model, dtype=dtype)
    step(model, cache, token_ids(batch, n))
    return cache.nbytes


@pytest.mark.slow
def test_bytes_of_the_storage_formats():
    model = transformers.AutoModelForCausalLM.from_config(of_width_64(), attn_implementation="qkv").eval()
    whole = nbytes(model, torch.float32)
    assert isinstance(whole, int)
    exact = 3 * 2 * 2 * 64 * 4 * 1000  # layers, keys and values, heads, width, bytes, tokens
    assert exact <= whole <= 1.10 * exact, "pages of tokens, and no more"
    assert nbytes(model, None) == whole
    assert nbytes(model, torch.bfloat16) <= 0.55 * whole
    assert nbytes(model, torch.float16) <= 0.55 * whole
    assert nbytes(model, torch.int8) <= 0.30 * whole
    assert nbytes(model, "int4") <= 0.16 * whole


def test_bytes_are_those_of_the_caches():
    cache = qkv.hf.cache(ours("llama"))
    step(ours("llama"), cache, token_ids(3, 11))
    assert cache.nbytes == sum(layer.cache.nbytes for layer in cache.layers)
    assert len(cache) == len(cache.layers) == 3


def test_a_model_in_bfloat16_keeps_bfloat16():
    model = deepcopy(ours("llama")).to(torch.bfloat16)
    cache = qkv.hf.cache(model)
    found = step(model, cache, token_ids(3, 11))
    assert found.dtype is torch.bfloat16
    assert cache.layers[0].cache.dtype is torch.bfloat16
    wanted = step(eager("llama"), None, token_ids(3, 11))
    theirs = step(deepcopy(eager("llama")).to(torch.bfloat16), None, token_ids(3, 11))
    assert difference(found, wanted) < max(0.05, 2 * difference(theirs, wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=["float32", "int8"])
def test_padding_costs_nothing(dtype):
    """A row of 900 tokens with a row of 100: the bytes of 1000 tokens, not of 1800."""
    config = of_width_64(num_hidden_layers=1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="qkv").eval()
    one = nbytes(model, dtype, n=1000)
    for side in ("left", "right"):
        mask = torch.ones(2, 900, dtype=torch.long)
        mask[1, :800] = 0
        cache = qkv.hf.cache(model, dtype=dtype)
        step(model, cache, token_ids(2, 900), mask if side == "left" else mask.flip(1))
        assert cache.nbytes <= 1.15 * one, side
        assert sorted(cache.layers[0].cache.lengths.tolist()) == [100, 900]
        assert int(cache.get_seq_length()) == 900


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=["float32", "int8"])
def test_sliding_layers_are_rings(dtype):
    """Bytes stay bounded while five windows and more go by."""
    window, more = 70, {"max_position_embeddings": 600, "num_hidden_layers": 2}
    ids = token_ids(2, 40 + 6 * window)
    plain, sliding = (
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="qkv").eval()
        for config in (llama_like("LlamaConfig", **more), llama_like("MistralConfig", sliding_window=window, **more))
    )
    whole = qkv.hf.cache(plain, dtype=dtype)
    step(plain, whole, ids)
    cache, seen = qkv.hf.cache(sliding, dtype=dtype), []
    for part in ids.split(10, dim=1):
        step(sliding, cache, part)
        seen.append(cache.nbytes)
    early = 3 * window // 10
    assert max(seen[early:]) <= max(seen[:early]), "it grows with every window"
    assert max(seen) <= 0.6 * whole.nbytes
    assert int(cache.get_seq_length()) == ids.shape[1]
    assert all(layer.cache.window is not None for layer in cache.layers)
    assert all(layer.cache.window is None for layer in whole.layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt_oss", "gemma2", "starcoder2", "cohere2"])
def test_generation_over_five_windows(name):
    given = prompt(name, "left")
    wanted = generate(eager(name), given, n=5 * WINDOW)
    found = generate(ours(name), given, n=5 * WINDOW, past_key_values=qkv.hf.cache(ours(name)))
    for at, (a, b) in enumerate(zip(found.logits, wanted.logits, strict=True)):
        close(a, b, tolerance=5e-5, what=f"logits of step {at}")
    assert found.sequences.tolist() == wanted.sequences.tolist()


@pytest.mark.slow
@by_dtype
@by_decoder
def test_logits_of_the_storage_formats(name, dtype):
    """The same tokens fed to each: rounding shows, and no more than rounding."""
    ids = token_ids(3, 20)
    wanted = output_of(run(eager(name), {"input_ids": ids}))
    cache = qkv.hf.cache(ours(name), dtype=dtype)
    found = torch.cat([step(ours(name), cache, part) for part in ids.split([13, 1, 1, 5], dim=1)], dim=1)
    assert cache.layers[0].cache.dtype is dtype
    off = difference(found, wanted)
    print(f"{name}, {dtype}: {off:.1e}")
    assert off <= LOOSE[dtype]
    if dtype is not torch.float32:
        assert off > 1e-7, "nothing was rounded"


# ---------------------------------------------------------------------------------------------- assisted decoding


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gemma3", "gpt_oss"])
def test_prompt_lookup_gives_the_same_greedy_tokens(name):
    """Candidates from the prompt itself, checked several at once, those that fail cropped again."""
    ids = token_ids(1, 6).repeat(1, 4)
    wanted = generate(eager(name), {"input_ids": ids}, n=12).sequences.tolist()
    looked = generate(ours(name), {"input_ids": ids}, n=12, prompt_lookup_num_tokens=2)
    assert looked.sequences.tolist() == wanted
    cache = qkv.hf.cache(ours(name))
    looked = generate(ours(name), {"input_ids": ids}, n=12, prompt_lookup_num_tokens=2, past_key_values=cache)
    assert looked.sequences.tolist() == wanted


def test_an_assistant_gives_the_same_greedy_tokens():
    ids = token_ids(1, 9)
    wanted = generate(eager("llama"), {"input_ids": ids}, n=12).sequences.tolist()
    cache = qkv.hf.cache(ours("llama"))
    found = generate(
        ours("llama"), {"input_ids": ids}, n=12, assistant_model=deepcopy(ours("qwen3")), past_key_values=cache
    )
    assert found.sequences.tolist() == wanted


def test_a_conversation_goes_on_with_the_same_cache():
    """generate, then more tokens, then generate: the cache is the past."""
    cache, theirs = qkv.hf.cache(ours("llama")), transformers.DynamicCache(config=eager("llama").config)
    a = b = token_ids(2, 7)
    for turn in range(3):
        a = generate(ours("llama"), {"input_ids": a}, n=5, past_key_values=cache).sequences
        b = generate(eager("llama"), {"input_ids": b}, n=5, past_key_values=theirs).sequences
        assert a.tolist() == b.tolist()
        more = token_ids(2, 3, seed=30 + turn)
        a, b = torch.cat([a, more], dim=1), torch.cat([b, more], dim=1)


def test_sampling_draws_the_same_tokens():
    drawn = []
    for model, cache in ((eager("llama"), None), (ours("llama"), qkv.hf.cache(ours("llama")))):
        torch.manual_seed(3)
        more = {} if cache is None else {"past_key_values": cache}
        ids = model.generate(
            **prompt("llama", "left"), max_new_tokens=9, do_sample=True, num_return_sequences=2, top_k=20, **more
        )
        drawn.append(ids.tolist())
    assert drawn[0] == drawn[1]


# ----------------------------------------------------------------------------------------------- threads, copies


@pytest.mark.slow
def test_two_threads_with_two_caches():
    names = ("llama", "gpt_oss")
    wanted = {name: generate(eager(name), prompt(name, "left")).sequences.tolist() for name in names}
    found, errors = {}, []

    def work(at, name):
        try:
            for _ in range(3):
                cache = qkv.hf.cache(ours(name))
                out = generate(ours(name), prompt(name, "left"), past_key_values=cache)
                found.setdefault((at, name), []).append(out.sequences.tolist())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(at, name)) for at in range(2) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(one == wanted[name] for (_, name), all_ in found.items() for one in all_)


def test_two_threads_on_one_model():
    """Nothing of one call is kept where another finds it: other lengths, other padding, one with a cache."""
    whole, left = prompt("mistral"), prompt("mistral", "left")
    wanted = [generate(eager("mistral"), given).sequences.tolist() for given in (whole, left)]
    found, errors = [[], []], []

    def work(at, given):
        try:
            for turn in range(4):
                more = {"past_key_values": qkv.hf.cache(ours("mistral"))} if turn % 2 else {}
                found[at].append(generate(ours("mistral"), given, **more).sequences.tolist())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate((whole, left))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert found == [[wanted[0]] * 4, [wanted[1]] * 4]


@by_decoder
def test_a_deep_copy_goes_its_own_way(name):
    """A prefix is read once and continued twice: the copy and the original do not see one another."""
    both = padded(name)
    copy = deepcopy(both.found)
    assert type(copy) is type(both.found)
    mask = both.mask
    assert int(copy.get_seq_length()) == int(both.found.get_seq_length())
    both.go_on(3)
    theirs = transformers.DynamicCache(config=eager(name).config)
    given, _ = inputs(name, "left")
    step(eager(name), theirs, given["input_ids"], mask)
    more = token_ids(3, 2, seed=90)
    longer = torch.cat([mask, torch.ones_like(more)], dim=1)
    close(step(ours(name), copy, more, longer), step(eager(name), theirs, more, longer))
    both.go_on(3)


def test_a_deep_copy_of_an_encoder_decoder_goes_its_own_way():
    given, _ = inputs("bart")
    cache = qkv.hf.cache(ours("bart"))
    run(ours("bart"), given, past_key_values=cache)
    copy = deepcopy(cache)
    one = {**given, "decoder_input_ids": token_ids(3, 2, seed=91)}
    two = {**given, "decoder_input_ids": token_ids(3, 2, seed=92)}
    for more, which in ((one, cache), (two, copy)):
        whole = {**given, "decoder_input_ids": torch.cat([given["decoder_input_ids"], more["decoder_input_ids"]], 1)}
        wanted = output_of(run(eager("bart"), whole, use_cache=False))[:, -2:]
        close(output_of(run(ours("bart"), more, past_key_values=which)), wanted)


def test_the_table_of_decoders_has_every_kind_of_layer():
    assert {"softcap", "window", "scale", "sink"} <= set().union(*(TABLE[name].has for name in DECODERS))


@pytest.mark.parametrize("name", DECODERS)
def test_a_cache_in_a_file_goes_on_as_it_was(name, tmp_path):
    """With padding on the left; a copy, and the file's, have the same logits to a bit."""
    model, ids = ours(name), token_ids(3, 11)
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[1, :4] = 0
    cache = qkv.hf.cache(model)
    step(model, cache, ids, mask)
    tokens = ids[mask.bool()] if name == "llama" else None
    qkv.hf.save_cache(model, cache, tmp_path / "a.prefix", tokens=tokens)
    again = qkv.hf.load_cache(model, tmp_path / "a.prefix", tokens=tokens)
    assert (again.get_seq_length(), again.nbytes) == (11, cache.nbytes)
    for seed in range(2):
        mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], 1)
        new = token_ids(3, 1, seed=seed)
        assert torch.equal(step(model, again, new, mask), step(model, cache, new, mask))
    if name in FULL:
        again.crop(-5)
        cache.crop(-5)
        assert torch.equal(step(model, again, ids[:, :3], mask[:, :11]), step(model, cache, ids[:, :3], mask[:, :11]))


def test_files_of_caches_that_are_refused(tmp_path):
    llama, path = ours("llama"), tmp_path / "a.prefix"
    cache = qkv.hf.cache(llama, dtype="int4")
    qkv.hf.save_cache(llama, cache, path)
    assert qkv.hf.load_cache(llama, path).get_seq_length() == 0, "an empty one, whose layers have no sizes yet"
    step(llama, cache, token_ids(1, 5))
    qkv.hf.save_cache(llama, cache, path)
    assert qkv.hf.load_cache(llama, path).layers[0].tokens.dtype == torch.int4
    with pytest.raises(qkv.errors.OptionError, match="has the keys of another model"):
        qkv.hf.load_cache(ours("mistral"), path)
    with pytest.raises(qkv.errors.BackendRefused, match="DynamicCache does not only have keys and values in pages"):
        qkv.hf.save_cache(llama, transformers.DynamicCache(config=llama.config), path)  # pyright: ignore
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(qkv.errors.OptionError, match="path: got"):
        qkv.hf.load_cache(llama, path)
