"""Models that no program describes: transformers runs them with packed weights, and a warning says so."""

import pytest
import torch
import transformers
from torch import nn

import qkv
from qkv.errors import OptionError, OptionTypeError, ShapeError
from qkv.nn.packed import PackedLinear
from tests.helpers.hf_harness import close
from tests.helpers.runtime_files import build, eager_logits, write_folder, write_gguf
from tests.helpers.small_checkpoint import write
from tests.helpers.tiny_hybrids import qwen3_5 as hybrid
from tests.helpers.tiny_models import draw

PROMPTS = ([3, 4, 5, 6, 7], [8, 9], [10, 11, 12])


@pytest.fixture(scope="module", params=["phi", "gpt2"])
def pair(request, tmp_path_factory):
    folder = write(tmp_path_factory.mktemp(request.param))  # for its tokenizer
    if request.param == "phi":
        sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.PhiConfig(vocab_size=20, max_position_embeddings=41, eos_token_id=1, **sizes)
    else:
        sizes = {"n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": 20, "n_positions": 41}
        config = transformers.GPT2Config(scale_attn_by_inverse_layer_idx=True, eos_token_id=1, **sizes)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    draw(theirs, 1.6)
    theirs.save_pretrained(folder)
    with pytest.warns(UserWarning, match="runs in transformers: path: got a model with (the architecture|scale_attn)"):
        model = qkv.runtime.load(folder)
    return theirs, model, folder


@pytest.mark.slow
def test_it_says_so_and_has_no_product_of_torch(pair):
    _, model, folder = pair
    assert model.backend == "transformers"
    what = "scale_attn_by_inverse_layer_idx True" if "gpt2" in str(folder) else "the architecture 'phi'"
    assert what in model.reason
    kinds = [type(module) for module in model._runner.model.modules()]
    assert PackedLinear in kinds
    assert nn.Linear not in kinds
    with pytest.raises(OptionError, match="a program"):
        _ = model.program
    with pytest.raises(OptionError, match=what):
        qkv.runtime.load(folder, backend="native")


def test_logits_are_those_of_eager_attention(pair):
    theirs, model, _ = pair
    tokens, cache = torch.tensor([PROMPTS[0]]), model.cache()
    whole = eager_logits(theirs, tokens)
    close(model.step(tokens, model.cache(), every=True), whole, tolerance=3e-6)
    parts = [model.step(part, cache, every=True) for part in tokens.split(2, dim=1)]
    close(torch.cat(parts, dim=1), whole, tolerance=3e-6)
    cache.crop(3)
    close(model.step(tokens[:, 3:], cache), whole[:, -1], tolerance=3e-6)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_rows_of_a_ragged_batch_forks_and_reordered_rows(pair, padding):
    theirs, model, _ = pair
    tokens = torch.zeros(3, 5, dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        place = slice(0, len(prompt)) if padding == "right" else slice(5 - len(prompt), 5)
        tokens[row, place] = torch.tensor(prompt)
    cache = model.cache(3)
    found = model.step(tokens, cache, lengths=[5, 2, 3], padding=padding)
    for row, prompt in enumerate(PROMPTS):
        close(found[row], eager_logits(theirs, torch.tensor([prompt]))[0, -1], tolerance=3e-6)
    fork = cache.fork()
    fork.reorder([2, 2])
    other = model.step([[3], [4]], fork)
    close(other[1], eager_logits(theirs, torch.tensor([[*PROMPTS[2], 4]]))[0, -1], tolerance=3e-6)
    assert cache.lengths.tolist() == [5, 2, 3]
    cache.crop([2, 2, 1])
    assert cache.lengths.tolist() == [2, 2, 1]
    assert model.step([[3], [0], [0]], cache, lengths=[1, 0, 0])[1:].eq(0).all()


def test_generated_tokens_and_text(pair):
    theirs, model, _ = pair
    settings = transformers.GenerationConfig(max_new_tokens=9, do_sample=False, eos_token_id=1, pad_token_id=0)
    for prompt, found in zip(PROMPTS, model.generate([list(each) for each in PROMPTS], 9), strict=True):
        wanted = theirs.generate(torch.tensor([prompt]), generation_config=settings)[0, len(prompt) :].tolist()
        assert found.tokens == wanted
    assert model.generate("one two", 4).text


def test_what_raises_changes_no_cache(pair, monkeypatch):
    _, model, _ = pair
    cache = model.cache(2)
    model.step([[3, 4], [5, 6]], cache)
    calls = []

    def interrupted(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*given, **options)

    original = model._runner.model.forward
    monkeypatch.setattr(model._runner.model, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.step([[3], [4]], cache)
    assert cache.lengths.tolist() == [2, 2]
    with pytest.raises(ShapeError, match="context"):
        model.step([[3] * 40] * 2, cache)
    with pytest.raises(OptionTypeError, match="cache"):
        model.step([[3], [4]], None)


@pytest.mark.slow
def test_states_of_a_hybrid(tmp_path):
    folder = write(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_config(hybrid(), attn_implementation="eager").eval()
    draw(theirs, 1.6)
    theirs.save_pretrained(folder)
    with pytest.warns(UserWarning, match="runs in transformers"):
        model = qkv.runtime.load(folder)
    tokens, cache = torch.tensor([[*PROMPTS[0], *PROMPTS[1]]]), model.cache()
    whole = eager_logits(theirs, tokens)
    parts = [model.step(part, cache, every=True) for part in tokens.split(3, dim=1)]
    close(torch.cat(parts, dim=1), whole)
    with pytest.raises(OptionError, match="a gate cannot be undone"):
        cache.crop(5)
    settings = transformers.GenerationConfig(max_new_tokens=9, do_sample=False, eos_token_id=1, pad_token_id=0)
    wanted = theirs.generate(tokens, generation_config=settings)[0, 7:].tolist()
    assert model.generate([tokens[0].tolist()], 9)[0].tokens == wanted


@pytest.mark.slow
def test_blocks_of_a_file_are_kept(tmp_path):
    theirs = build("qwen2")
    path = write_gguf(theirs, tmp_path / "model.gguf", quantized="q8_0", vocabulary=True)
    model = qkv.runtime.load(path, backend="transformers")
    native = qkv.runtime.load(path)
    kinds = {module.blocks for module in model._runner.model.modules() if isinstance(module, PackedLinear)}
    assert kinds == {"q8_0"}
    tokens = [5, 17, 33, 60]
    close(model.step(tokens, model.cache()), native.step(tokens, native.cache()), tolerance=3e-6)


def test_half_precision_is_kept_and_weights_are_quantized_if_asked(tmp_path):
    folder = write(tmp_path)
    config = transformers.PhiConfig(
        vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    transformers.PhiForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for weights, blocks in ((None, "bf16"), ("q8_0", "q8_0")):
        with pytest.warns(UserWarning, match="runs in transformers"):
            model = qkv.runtime.load(folder, weights=weights)
        kinds = {module.blocks for module in model._runner.model.modules() if isinstance(module, PackedLinear)}
        assert kinds == {blocks}


def test_the_reference_agrees_with_the_native_program(tmp_path):
    folder = write_folder(build("gemma3"), tmp_path)
    models = [qkv.runtime.load(folder, backend=backend) for backend in ("auto", "native", "reference")]
    assert [model.backend for model in models] == ["native", "native", "reference"]
    found = [model.step(PROMPTS[0], model.cache(), every=True) for model in models]
    assert torch.equal(found[0], found[1])
    close(found[2], found[0], tolerance=3e-6)
