"""`load`, `step` and `generate`: tokens of transformers, ragged batches, stops, and what happens at the edges."""

import signal
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

import qkv
from qkv.errors import DtypeError, OptionError, OptionTypeError, QkvError, ShapeError
from qkv.nn.generate import log_probabilities
from tests.helpers.hf_harness import close
from tests.helpers.runtime_files import ALL, CONTEXT, NAMES, build, eager_logits, write_folder, write_gguf

PROMPTS = ([5, 17, 33, 60, 9, 88], [44, 3], [71, 70, 12, 13])


@pytest.fixture(scope="module", params=ALL)
def pair(request, tmp_path_factory):
    model = build(request.param)
    return model, qkv.runtime.load(write_folder(model, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return qkv.runtime.load(write_gguf(build("llama"), path, vocabulary=True))


def greedy(model, prompt, new):
    settings = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=1, pad_token_id=0)
    return model.generate(torch.tensor([prompt]), generation_config=settings)[0, len(prompt) :].tolist()


def test_greedy_tokens_of_transformers_alone_and_in_a_batch(pair):
    theirs, model = pair
    wanted = [greedy(theirs, prompt, 9) for prompt in PROMPTS]
    found = model.generate([list(prompt) for prompt in PROMPTS], 9)
    assert [each.tokens for each in found] == wanted
    for prompt, each, one in zip(PROMPTS, found, wanted, strict=True):
        alone = model.generate(prompt, 9)
        assert alone.tokens == one
        assert alone.finish == each.finish == ("stop" if one[-1] == 1 else "length")
        assert alone.logprobs == pytest.approx(each.logprobs, abs=1e-4)


def test_logprobs_are_those_of_the_model(pair):
    theirs, model = pair
    found = model.generate(PROMPTS[0], 5, logprobs=3)
    whole = torch.tensor([[*PROMPTS[0], *found.tokens]])
    wanted = log_probabilities(eager_logits(theirs, whole)[0, len(PROMPTS[0]) - 1 : -1])
    for at, (token, value, top) in enumerate(zip(found.tokens, found.logprobs, found.top, strict=True)):
        assert value == pytest.approx(float(wanted[at, token]), abs=1e-4)
        assert list(top) == wanted[at].topk(3).indices.tolist()
        assert list(top.values()) == pytest.approx(wanted[at].topk(3).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("pair", NAMES, indirect=True)
def test_sampling_is_reproducible_and_follows_its_options(pair):
    _, model = pair
    one, two = (model.generate(PROMPTS[0], 12, temperature=1.5, seed=7).tokens for _ in range(2))
    assert one == two
    assert any(model.generate(PROMPTS[0], 12, temperature=1.5, seed=seed).tokens != one for seed in range(8, 12))
    best = model.generate(PROMPTS[0], 6).tokens
    assert model.generate(PROMPTS[0], 6, temperature=1.0, top_k=1, seed=1).tokens == best
    assert model.generate(PROMPTS[0], 6, temperature=1.0, top_p=1e-9, seed=1).tokens == best


def test_a_loop_of_steps(pair):
    theirs, model = pair
    tokens = torch.tensor([PROMPTS[0]])
    cache = model.cache()
    logits = model.step(tokens, cache)
    assert logits.shape == (1, 101)
    close(logits, eager_logits(theirs, tokens)[:, -1], tolerance=3e-6)
    every = model.step(tokens, cache.fork(), every=True)
    close(every, eager_logits(theirs, tokens.repeat(1, 2))[:, 6:], tolerance=3e-6)
    assert (cache.length, cache.lengths.tolist(), cache.batch) == (6, [6], 1)
    assert cache.nbytes == sum(layer.nbytes for layer in cache.layers)
    cache.crop(3)
    close(model.step(tokens[:, 3:], cache), logits, tolerance=3e-6)
    cache.reorder([0, 0])
    assert model.step([[4], [5]], cache).shape == (2, 101)


def test_verified_tokens_are_cropped(pair):
    _, model = pair
    cache, draft = model.cache(), [9, 9, 9]
    model.step(PROMPTS[0], cache)
    model.step(draft, cache, every=True)
    cache.crop(len(PROMPTS[0]) + 1)
    close(model.step([3], cache), model.step([*PROMPTS[0], 9, 3], model.cache()), tolerance=3e-6)


def speculate(model, draft, prompts, new):
    """Greedy tokens by verification: `draft` proposes tokens, one step checks them all, crop removes the wrong ones."""
    cache = model.cache(len(prompts))
    longest = max(map(len, prompts))
    padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
    logits = model.step(padded, cache, lengths=[len(prompt) for prompt in prompts])
    found = [[token] for token in logits.argmax(-1).tolist()]
    while min(map(len, found)) < new:
        before = cache.lengths
        guesses = torch.tensor([[own[-1], *draft(row, own)] for row, own in enumerate(found)])
        best = model.step(guesses, cache, every=True).argmax(-1)
        right = (guesses[:, 1:] == best[:, :-1]).cumprod(1).sum(1)
        cache.crop(before + right + 1)
        for row, own in enumerate(found):
            own += best[row, : right[row] + 1].tolist()
    return [own[:new] for own in found]


def test_verification_of_drafted_tokens_gives_the_greedy_ones(pair):
    _, model = pair
    prompts, new = [list(prompt) for prompt in PROMPTS], 13
    wanted = [each.tokens for each in model.generate(prompts, new, stop=())]
    full = [own + greedy_rest(model, prompt, own, new) for prompt, own in zip(prompts, wanted, strict=True)]
    drafts = {
        "right": lambda row, own: (full[row] + [0] * 8)[len(own) : len(own) + 3],
        "wrong": lambda row, own: [7, 7, 7],
        "mixed": lambda row, own: [(full[row] + [0] * 8)[len(own)], 7, 7] if row else [7, 7, 7],
    }
    for name, draft in drafts.items():
        assert speculate(model, draft, prompts, new) == full, name


def greedy_rest(model, prompt, tokens, new):
    """Greedy tokens after a stop token, which `generate` does not add."""
    cache, found = model.cache(), []
    logits = model.step([*prompt, *tokens], cache)
    while len(tokens) + len(found) < new:
        found.append(int(logits.argmax()))
        logits = model.step(found[-1:], cache)
    return found


@pytest.mark.slow
def test_beams_find_the_best_of_all_continuations(pair):
    """With as many beams as there are tokens, a search of two tokens is exhaustive."""
    _, model = pair
    for penalty in (0.0, 1.0, 2.5):
        found = model.generate([list(prompt) for prompt in PROMPTS], 2, beams=101, length_penalty=penalty)
        for prompt, each in zip(PROMPTS, found, strict=True):
            cache = model.cache()
            first = log_probabilities(model.step(prompt, cache))[0]
            cache.reorder([0] * 101)
            second = log_probabilities(model.step(torch.arange(101).unsqueeze(1), cache))
            scores = {
                (a, b): float(first[a] + second[a, b]) / 2**penalty for a in range(101) if a != 1 for b in range(101)
            }
            scores |= {(1,): float(first[1])}
            best = max(scores, key=lambda tokens: scores[tokens])
            assert tuple(each.tokens) == best
            assert sum(each.logprobs) / len(best) ** penalty == pytest.approx(scores[best], abs=1e-4)
            assert each.finish == ("stop" if best[-1] == 1 else "length")


def test_one_beam_is_greedy_and_more_are_not_worse(pair):
    _, model = pair
    cache = model.cache()
    model.step(PROMPTS[1], cache)
    alone = model.generate(PROMPTS[0], 7, beams=1, cache=cache.fork())
    assert alone.tokens == model.generate(PROMPTS[0], 7, cache=cache.fork()).tokens
    several = model.generate(PROMPTS[0], 7, beams=5, length_penalty=0.0, cache=cache)
    assert sum(several.logprobs) >= sum(alone.logprobs) - 1e-4
    assert cache.batch == 1
    assert cache.length == len(PROMPTS[1]) + len(PROMPTS[0]) + len(several.tokens) - 1
    for options in ({"temperature": 1.0}, {"logprobs": 2}, {"on_token": print}, {"beams": 0}):
        with pytest.raises(QkvError, match="beams"):
            model.generate(PROMPTS[0], 2, **{"beams": 3, **options})


def test_forks_of_a_prefix(pair):
    _, model = pair
    prefix = model.cache()
    model.step(PROMPTS[0], prefix)
    for rest in PROMPTS[1:]:
        found = model.generate(rest, 6, cache=prefix.fork())
        assert found.tokens == model.generate([*PROMPTS[0], *rest], 6).tokens
    assert prefix.length == len(PROMPTS[0])


def test_a_long_prompt_runs_in_chunks(pair, monkeypatch):
    _, model = pair
    prompts = [torch.arange(3, 60).tolist(), [7, 8, 9], torch.arange(3, 20).tolist()]
    whole = model.generate(prompts, 4)
    monkeypatch.setattr("qkv.runtime.model._CHUNK", 16)
    parts = model.generate(prompts, 4)
    assert [each.tokens for each in parts] == [each.tokens for each in whole]


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.int8])
def test_other_storage_formats_are_close(pair, storage):
    _, model = pair
    cache = model.cache(dtype=storage, capacity=64)
    assert cache.layers[0].dtype is storage
    found, wanted = model.step(PROMPTS[0], cache), model.step(PROMPTS[0], model.cache())
    assert 0 < (found - wanted).abs().max() < 0.2 * wanted.abs().max()


def test_the_first_prompt_decides_the_format_of_each_layer(text_model):
    prompt, plain = torch.arange(3, 43)[None], text_model.cache()
    wanted = text_model.step(prompt, plain, every=True)
    for ragged in (False, True):
        cache = text_model.cache(dtype="auto", bound=0.3)
        given = {"lengths": torch.tensor([40]), "padding": "left"} if ragged else {}
        close(text_model.step(prompt, cache, every=True, **given), wanted, tolerance=1e-4)
        assert {layer.format.of_values.name for layer in cache.layers} == {"int4"}
        assert cache.nbytes < 0.2 * plain.nbytes
        found = text_model.step([7], cache)
        assert 0 < (found - text_model.step([7], plain)).abs().max() < 0.5 * wanted.abs().max()
        plain.crop(40)
    exact = text_model.cache(dtype="auto", bound=1e-7)
    text_model.step(prompt, exact)
    assert {layer.dtype for layer in exact.layers} == {torch.float32}
    short = text_model.cache(dtype="auto", bound=0.3)
    with pytest.raises(OptionError, match="at least 32 tokens"):
        text_model.step(prompt[:, :20], short)
    assert (short.length, short.layers[0].bound) == (0, 0.3)
    with pytest.raises(OptionTypeError, match="bound"):
        text_model.cache(dtype="auto")


def test_packed_weights_equal_the_dequantized_model(tmp_path):
    model = build("llama")
    folder = write_folder(model, tmp_path / "model")
    plain = qkv.runtime.load(folder)
    tokens = torch.tensor([PROMPTS[0]])
    for name, most in (("q8_0", 0.05), ("q4_1", 0.6)):
        packed = qkv.runtime.load(folder, weights=name)
        assert {packed.program.embedding.format.name, packed.program.logits.weight.format.name} == {name}
        from_file = qkv.runtime.load(write_gguf(model, tmp_path / f"{name}.gguf", quantized=name))
        found, wanted = (each.step(tokens, each.cache(), every=True) for each in (packed, from_file))
        close(found, wanted, tolerance=3e-6)
        exact = plain.step(tokens, plain.cache(), every=True)
        assert 1e-4 < (found - exact).abs().max() / exact.abs().max() < most
        rounded = qkv.runtime.load(folder, weights=name, activations="int8")
        assert 1e-4 < (rounded.step(tokens, rounded.cache(), every=True) - found).abs().max() / exact.abs().max() < 0.1
        with pytest.raises(OptionError, match="formats of the file are kept"):
            qkv.runtime.load(tmp_path / f"{name}.gguf", weights="q8_0")


def test_a_tied_matrix_is_packed_once(tmp_path):
    model = qkv.runtime.load(write_folder(build("qwen2"), tmp_path), weights="q8_0")
    assert model.program.logits.weight is model.program.embedding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_widened_exactly(tmp_path, dtype):
    folder = write_folder(build("qwen2").to(dtype), tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ours = qkv.runtime.load(folder)
    found = ours.step(PROMPTS[0], ours.cache(), every=True)
    close(found, eager_logits(theirs, torch.tensor([PROMPTS[0]])), tolerance=3e-6)
    assert ours.program.embedding.format.name == str(dtype).replace("torch.", "").replace("float", "f")


def test_text_stops_and_streams(text_model):
    model = text_model
    whole = model.generate("the bathe", 20)
    assert whole.text == model.tokenizer.decode(whole.tokens)
    pieces = []
    again = model.generate("the bathe", 20, on_token=lambda row, token, text: pieces.append((row, token, text)))
    assert [token for _, token, _ in pieces] == again.tokens == whole.tokens
    assert "".join(text for _, _, text in pieces) == whole.text
    assert len(whole.text) > 4, "the test needs text to cut"
    stop = whole.text[2:4]
    cut = model.generate("the bathe", 20, stop=[stop, "never"])
    assert (cut.text, cut.finish) == (whole.text[: whole.text.index(stop)], "stop")
    shown = []
    model.generate("the bathe", 20, stop=stop, on_token=lambda row, token, text: shown.append(text))
    assert "".join(shown) == cut.text, "no part of a stop text is shown"
    number = whole.tokens[2]
    ended = model.generate("the bathe", 20, stop=number)
    assert ended.tokens == whole.tokens[: whole.tokens.index(number) + 1]
    assert ended.finish == "stop"


def test_a_callback_ends_generation(text_model):
    found = text_model.generate(["the", "a"], 20, on_token=lambda row, token, text: row == 0)
    assert [len(each.tokens) for each in found] == [1, 1]
    assert {each.finish for each in found} == {"callback"}


def test_context_overflow(pair):
    _, model = pair
    with pytest.raises(ShapeError, match=f"at most {CONTEXT}"):
        model.generate(PROMPTS[0], CONTEXT)
    cache = model.cache()
    model.step(list(range(3, 100)) * 2, cache)
    with pytest.raises(ShapeError, match="in total"):
        model.step(list(range(3, 21)), cache)
    assert cache.length == 194
    assert model.step(list(range(3, 20)), cache).isfinite().all(), "the last position"


def test_wrong_arguments_are_refused(pair, text_model):
    _, model = pair
    cache = model.cache(2)
    for error, words, call in (
        (ShapeError, "no token", lambda: model.generate([])),
        (ShapeError, "no token", lambda: text_model.generate("")),
        (ShapeError, "no token", lambda: model.generate([[3], []])),
        (OptionError, "101", lambda: model.step([[101], [0]], cache)),
        (OptionError, "-1", lambda: model.generate([-1])),
        (DtypeError, "float", lambda: model.generate([0.5])),
        (OptionTypeError, "integers", lambda: model.step([["a"]], cache)),
        (ShapeError, "(2, n)", lambda: model.step([[1]], cache)),
        (ShapeError, "(2, n)", lambda: model.step(torch.zeros(2, 0, dtype=torch.long), cache)),
        (OptionTypeError, "model.cache()", lambda: model.step([[1]], cache.layers)),
        (QkvError, "temperature", lambda: model.generate([3], temperature=-1.0)),
        (QkvError, "top_p", lambda: model.generate([3], temperature=1.0, top_p=2.0)),
        (QkvError, "max_new_tokens", lambda: model.generate([3], 0)),
        (QkvError, "stop", lambda: model.generate([3], stop=[1.5])),
        (ShapeError, "(2, n)", lambda: model.generate([3], cache=cache)),
    ):
        with pytest.raises(error) as caught:
            call()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert cache.length == 0


def test_wrong_options_of_load_are_refused(tmp_path):
    folder = write_folder(build("llama"), tmp_path)
    for options in ({"weights": "q3_k"}, {"activations": "int4"}, {"threads": 0}):
        with pytest.raises(QkvError, match=next(iter(options))):
            qkv.runtime.load(folder, **options)
    for path in (tmp_path / "nothing", 7, ""):
        with pytest.raises(QkvError, match="path"):
            qkv.runtime.load(path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(QkvError, match="0 GGUF files"):
        qkv.runtime.load(tmp_path)


def test_nan_in_weights_is_named(tmp_path):
    folder = write_folder(build("llama"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model = qkv.runtime.load(folder)
    with pytest.raises(OptionError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        model.generate([3, 4], 2)
    assert model.step([3, 4], model.cache()).isnan().any()


def test_truncated_safetensors_are_refused(tmp_path):
    folder = write_folder(build("llama"), tmp_path / "model")
    data = (folder / "model.safetensors").read_bytes()
    for part in (0.0, 0.01, 0.5, 0.99):
        (folder / "model.safetensors").write_bytes(data[: int(part * len(data))])
        with pytest.raises(OptionError, match=r"model\.safetensors"):
            qkv.runtime.load(folder)


def test_a_checkpoint_of_several_files(tmp_path, pair):
    theirs, model = pair
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = qkv.runtime.load(tmp_path)
    assert torch.equal(ours.step(PROMPTS[0], ours.cache()), model.step(PROMPTS[0], model.cache()))


def test_threads_are_restored(pair):
    _, model = pair
    before, other = torch.get_num_threads(), qkv.runtime.load(model._runner.source.path, threads=2)
    found = other.step(PROMPTS[0], other.cache())
    assert torch.get_num_threads() == before
    close(found, model.step(PROMPTS[0], model.cache()), tolerance=3e-6)


def test_ctrl_c_ends_generation_and_leaves_the_cache_whole(pair):
    _, model = pair
    cache = model.cache()
    timer = threading.Timer(0.15, signal.raise_signal, [signal.SIGINT])
    running = threading.active_count()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            model.generate(PROMPTS[0], 100, cache=cache.fork())
            model.step([3], cache) if cache.length < 100 else cache.crop(1)
    timer.join()
    assert threading.active_count() == running
    assert len({tuple(layer.lengths.tolist()) for layer in cache.layers}) == 1


def test_importing_qkv_does_not_import_the_runtime():
    import subprocess
    import sys

    code = "import sys, qkv; assert 'runtime' in dir(qkv); print('qkv.runtime' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_a_gguf_file_needs_no_transformers(tmp_path):
    import subprocess
    import sys

    path = write_gguf(build("llama"), tmp_path / "model.gguf", vocabulary=True)
    code = f"import sys, qkv; qkv.runtime.load({str(path)!r}).generate('the', 2); print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_rows_are_appended_to_all_layers_or_none(text_model):
    cache, other = text_model.cache(2), text_model.cache()
    text_model.step(torch.tensor([PROMPTS[1], PROMPTS[1]]), cache)
    text_model.step(PROMPTS[2], other)
    other.layers[-1] = qkv.KVCache(1, 2, 32, dtype=torch.bfloat16)
    with pytest.raises(QkvError):
        cache.extend(other)
    assert [layer.batch for layer in cache.layers] == [2] * 3
    wanted = text_model.cache(2)
    text_model.step(torch.tensor([PROMPTS[1], PROMPTS[1]]), wanted)
    assert torch.equal(text_model.step([[7], [9]], cache), text_model.step([[7], [9]], wanted))
