"""Steps of a cache layer with padding anywhere, dense masks, weights and chunks."""

import copy

import pytest
import torch
import transformers

import qkv
from qkv.errors import BackendRefused, MaskError


def models(**options):
    """The same weights on eager and on qkv, with scores that spread."""
    qkv.hf.register()
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 61, "pad_token_id": 0}
    kind = options.pop("kind", transformers.MistralConfig)
    more = {"initializer_range": 0.4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    config = kind(**{**sizes, **more, **options})
    eager = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("qkv")
    return eager, ours


def run(model, tokens, mask, cuts, cache, **options):
    """Logits of the tokens, given in chunks."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    parts = []
    with torch.no_grad():
        for start, stop in zip([0, *cuts], [*cuts, tokens.shape[1]], strict=True):
            parts.append(
                model(
                    tokens[:, start:stop], attention_mask=mask[:, :stop], position_ids=positions[:, start:stop],
                    past_key_values=cache, **options,
                )
            )  # fmt: skip
    return parts


def logits(parts):
    return torch.cat([part.logits for part in parts], 1)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("cuts", [[], [4], [3, 7, 8, 9, 15]])
@pytest.mark.parametrize("where", ["left", "right", "middle", "anywhere", "a whole row", "later"])
def test_padding_anywhere_in_any_chunks(window, cuts, where):
    eager, ours = models(sliding_window=window)
    n = 19
    tokens = torch.randint(1, 61, (3, n), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, n, dtype=torch.long)
    if where == "left":
        mask[1, :6], mask[2, :1] = 0, 0
    elif where == "right":
        mask[1, 12:], mask[2, 18:] = 0, 0
    elif where == "middle":
        mask[0, 5:8], mask[2, 9:14] = 0, 0
    elif where == "anywhere":
        mask = (torch.rand(3, n, generator=torch.Generator().manual_seed(2)) > 0.35).long()
    elif where == "a whole row":
        mask[1] = 0
    else:
        mask[1, :2], mask[1, 10:13] = 0, 0
    wanted = logits(run(eager, tokens, mask, cuts, transformers.DynamicCache(config=eager.config)))
    cache = qkv.hf.cache(ours)
    found = logits(run(ours, tokens, mask, cuts, cache))
    real = mask.bool()
    if window is not None:
        # A window may hide all that a query could see: eager then gives the mean of everything, qkv 0.
        at = torch.arange(n)
        near = (at[:, None] - at < window) & (at <= at[:, None])
        real = real & (near & mask.bool()[:, None]).any(-1)
    assert float((found - wanted)[real].abs().max()) < 1e-4 * float(wanted.abs().max())
    assert found.isfinite().all()
    assert cache.get_seq_length() == n
    if window is None:
        assert cache.layers[0].cache.lengths.tolist() == mask.sum(1).tolist(), "padding is not kept"


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [[], [4, 9]])
@pytest.mark.parametrize("window", [None, 5])
def test_weights_are_those_of_eager(window, cuts):
    eager, ours = models(sliding_window=window)
    tokens = torch.randint(1, 61, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :3] = 0
    options = {"output_attentions": True}
    theirs = run(eager, tokens, mask, cuts, transformers.DynamicCache(), **options)
    found = run(ours, tokens, mask, cuts, qkv.hf.cache(ours), **options)
    stop = 0
    for part, other in zip(found, theirs, strict=True):
        start, stop = stop, stop + part.logits.shape[1]
        for ours_, theirs_ in zip(part.attentions, other.attentions, strict=True):
            assert torch.allclose(ours_[0], theirs_[0], atol=1e-5)
            assert torch.allclose(ours_[1, :, max(3 - start, 0) :], theirs_[1, :, max(3 - start, 0) :], atol=1e-5)


def test_the_mask_of_a_past_token_may_not_change():
    _, ours = models()
    tokens = torch.randint(1, 61, (2, 6))
    for before, after in (([1] * 5, [0] + [1] * 5), ([0] + [1] * 4, [1] * 6)):
        cache = qkv.hf.cache(ours)
        with torch.no_grad():
            ours(tokens[:, :5], attention_mask=torch.tensor([before] * 2), past_key_values=cache)
            with pytest.raises(MaskError, match="another value for a past token"):
                ours(tokens[:, 5:], attention_mask=torch.tensor([after] * 2), past_key_values=cache)


def test_a_four_dimensional_mask_with_a_cache():
    eager, ours = models()
    tokens = torch.randint(1, 61, (2, 9), generator=torch.Generator().manual_seed(1))
    keep = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(3)) > 0.4
    keep = (keep & torch.ones(9, 9, dtype=torch.bool).tril()) | torch.eye(9, dtype=torch.bool)
    added = torch.zeros(2, 1, 9, 9).masked_fill(~keep, torch.finfo(torch.float32).min)
    with torch.no_grad():
        wanted = eager(tokens, attention_mask=added).logits
        for given in (keep, added):
            cache = qkv.hf.cache(ours)
            first = ours(tokens[:, :5], attention_mask=given[:, :, :5, :5], past_key_values=cache).logits
            rest = ours(tokens[:, 5:], attention_mask=given[:, :, 5:], past_key_values=cache).logits
            assert torch.allclose(torch.cat([first, rest], 1), wanted, atol=1e-4)


def test_both_ways_at_once_but_not_behind_a_past():
    eager, ours = models()
    tokens = torch.randint(1, 61, (2, 7), generator=torch.Generator().manual_seed(1))
    both = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    with torch.no_grad():
        wanted = eager(tokens, attention_mask=torch.zeros(2, 1, 7, 7)).logits
        cache = qkv.hf.cache(ours)
        assert torch.allclose(ours(tokens, attention_mask=both, past_key_values=cache).logits, wanted, atol=1e-4)
        with pytest.raises(BackendRefused, match="MistralAttention 0"):
            ours(tokens, attention_mask=torch.ones(2, 1, 7, 14, dtype=torch.bool), past_key_values=cache)


@pytest.mark.slow
def test_chunked_attention():
    more = {"intermediate_size_mlp": 32, "num_local_experts": 2, "attention_chunk_size": 5, "num_hidden_layers": 4}
    eager, ours = models(kind=transformers.Llama4TextConfig, **more)
    tokens = torch.randint(1, 61, (3, 17), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 17, dtype=torch.long)
    mask[1, :4] = 0
    real = mask.bool()
    wanted = logits(run(eager, tokens, mask, [], None))
    for cuts in ([], [6, 7, 12]):
        cache = qkv.hf.cache(ours)
        found = logits(run(ours, tokens, mask, cuts, cache))
        assert float((found - wanted)[real].abs().max()) < 1e-4 * float(wanted.abs().max())


def test_a_layer_that_reads_anothers_keys_is_refused():
    _, ours = models()
    layer = ours.model.layers[0].self_attn
    cache, function = qkv.hf.cache(ours), transformers.AttentionInterface()["qkv"]
    key = torch.randn(1, 2, 3, 6)
    held = cache.update(key, key, 0)
    function(layer, torch.randn(1, 4, 3, 6), *held, None)
    with pytest.raises(BackendRefused, match="MistralAttention 0"):
        function(layer, torch.randn(1, 4, 3, 6), *held, None)
    cache.update(key, key, 1)
    with pytest.raises(BackendRefused, match="without calling"):
        cache.update(key, key, 1)


def test_layers_that_hold_different_numbers_of_tokens_are_found_out():
    """As after a forward pass that was interrupted; `reset` makes the cache good again."""
    _, ours = models()
    tokens = torch.randint(1, 61, (1, 5))
    cache = qkv.hf.cache(ours)
    with torch.no_grad():
        wanted = ours(tokens, past_key_values=cache).logits
        cache.layers[1].crop(-1)
        with pytest.raises(MaskError, match="reset"):
            ours(tokens[:, :1], past_key_values=cache)
        cache.reset()
        assert torch.equal(ours(tokens, past_key_values=cache).logits, wanted)


def test_autocast_with_a_cache():
    """Rotary positions leave queries and keys in float32, and values are bfloat16."""
    _, ours = models()
    tokens = torch.randint(1, 61, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = ours(tokens, use_cache=False).logits.float()
        cache = qkv.hf.cache(ours)
        found = torch.cat([ours(part, past_key_values=cache).logits for part in (tokens[:, :5], tokens[:, 5:])], 1)
    assert float((found.float() - wanted).abs().max() / wanted.abs().max()) < 0.05


def test_another_batch_is_named():
    _, ours = models()
    cache = qkv.hf.cache(ours)
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        ours(torch.randint(1, 61, (2, 3)), attention_mask=mask[:, :3], past_key_values=cache)
        with pytest.raises(qkv.errors.ShapeError, match="rows"):
            ours(torch.randint(1, 61, (1, 1)), attention_mask=mask[:1], past_key_values=cache)
