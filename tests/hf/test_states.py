"""Caches that mix softmax and linear attention: rolling back, forks, beams, and what is refused."""

import copy
import random

import pytest
import torch

import qkv
from qkv.errors import BackendRefused, MaskError, OptionError, ShapeError
from tests.helpers.hf_harness import close, difference
from tests.helpers.tiny_models import pad, token_ids
from tests.hf.test_recurrent import CACHED, LENGTHS, cache_of, families, generation, logits, pair

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


def feed(model, cache, ids, mask, stop, **more):
    """Logits of the positions from the cache's length to `stop`."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    start = cache.get_seq_length()
    if "Mamba2" not in type(model).__name__:
        more["position_ids"] = positions[:, start:stop]
    return logits(model, ids[:, start:stop], mask[:, :stop], **cache_of(model, cache), **more)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["whole", "left"])
@pytest.mark.parametrize("name", families(CACHED))
def test_rejected_drafts_leave_no_trace(name, side):
    """Drafts of several tokens are verified at once, and some of them removed: what follows is a fresh run."""
    model = pair(name)[1]
    ids, mask = pad(token_ids(3, 31), [31, 26, 21] if side == "left" else [31] * 3, "left")
    wrong, fresh = token_ids(3, 31, seed=5), qkv.hf.cache(model)
    wanted = feed(model, fresh, ids, mask, 31)
    cache = qkv.hf.cache(model, rollback=5)
    found = [feed(model, cache, ids, mask, 13)]
    for draft, accepted in ((5, 2), (5, 0), (1, 1), (4, 3), (5, 5), (3, 0), (2, 1), (5, 1)):
        at = cache.get_seq_length()
        guess = torch.cat([ids[:, : at + accepted], wrong[:, at + accepted : at + draft]], dim=1)
        scores = feed(model, cache, guess, mask, at + draft)
        cache.crop(accepted - draft)
        assert cache.get_seq_length() == at + accepted
        found.append(scores[:, :accepted])
    found.append(feed(model, cache, ids, mask, 31))
    close(torch.cat(found, dim=1), wanted, mask.bool())


def test_generation_after_crop_is_a_fresh_one():
    model = pair("qwen3_next")[1]
    ids, mask = pad(token_ids(2, 11), [11, 6], "left")
    cache = qkv.hf.cache(model, rollback=8)
    first, scores = generation(model, ids, mask, past_key_values=cache)
    cache.crop(10 - cache.get_seq_length())  # generate runs the last token of the prompt again
    again, scores_again = generation(model, ids, mask, past_key_values=cache)
    assert again == first
    close(scores_again, scores)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", families(["qwen3_next", "minimax", "granitemoehybrid", "kimi_linear"]))
def test_any_sequence_of_changes_equals_a_fresh_run(name, seed):
    """Appends, crops, forks, reorderings and resets, checked against one forward pass over what should be there."""
    model, rng = pair(name)[1], random.Random(seed)
    cache, ids = qkv.hf.cache(model, rollback=3), torch.zeros(2, 0, dtype=torch.long)
    forks, removable, steps = [], 0, []
    for step in range(14):
        change = rng.choice(["append", "append", "append", "crop", "reorder", "fork", "swap", "reset"])
        steps.append(change)
        if change == "append" or not ids.shape[1]:
            new = token_ids(len(ids), rng.choice([1, 1, 2, 7]), seed=100 * seed + step)
            ids = torch.cat([ids, new], dim=1)
            found = feed(model, cache, ids, torch.ones_like(ids), ids.shape[1])
            wanted = logits(model, ids, use_cache=False)[:, -new.shape[1] :]
            close(found, wanted, what=f"logits after {steps}")
            removable = min(3, removable + new.shape[1])
        elif change == "crop":
            n = rng.randint(0, removable)
            cache.crop(-n)
            ids, removable = ids[:, : ids.shape[1] - n], removable - n
        elif change == "reorder":
            rows = torch.tensor([rng.randrange(len(ids)) for _ in range(rng.choice([1, 2, 3]))])
            cache.reorder_cache(rows)
            ids = ids[rows]
        elif change == "fork":
            forks.append((cache.fork() if rng.random() < 0.7 else copy.deepcopy(cache), ids, removable))
        elif change == "swap" and forks:
            cache, ids, removable = forks.pop(rng.randrange(len(forks)))
        elif change == "reset" and rng.random() < 0.3:
            cache.reset()
            ids, removable = ids[:, :0], 0
        assert cache.get_seq_length() == ids.shape[1]


@pytest.mark.parametrize("name", families(["qwen3_next", "minimax", "bamba"]))
def test_beams_are_those_of_transformers(name):
    """Without a cache: transformers does not reorder the states of MiniMax."""
    eager, ours = pair(name)
    ids, mask = pad(token_ids(3, 13), LENGTHS, "left")
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    options |= {"attention_mask": mask, "output_scores": True, "return_dict_in_generate": True}
    wanted = eager.generate(ids, use_cache=False, **options)
    found = ours.generate(ids, past_key_values=qkv.hf.cache(ours), **options)
    assert found.sequences.tolist() == wanted.sequences.tolist()
    close(found.sequences_scores, wanted.sequences_scores, tolerance=1e-4)


def test_batch_methods_of_transformers():
    model = pair("qwen3_next")[1]
    ids, mask = pad(token_ids(3, 13), LENGTHS, "left")
    cache = qkv.hf.cache(model, rollback=2)
    feed(model, cache, ids, mask, 11)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([5, 0]))
    assert cache.batch_size == 2
    found = feed(model, cache, ids[[2, 0]], mask[[2, 0]], 13)
    close(found, feed(model, qkv.hf.cache(model), ids, mask, 13)[[2, 0], 11:])
    cache.crop(-2)
    close(feed(model, cache, ids[[2, 0]], mask[[2, 0]], 13), found)


def test_what_cannot_be_removed_leaves_all_layers_as_they_are():
    model = pair("qwen3_next")[1]
    ids = token_ids(2, 17)
    mask = torch.ones_like(ids)
    cache = qkv.hf.cache(model, rollback=4)
    assert cache.is_croppable
    assert not qkv.hf.cache(model).is_croppable
    feed(model, cache, ids, mask, 13)
    cache.crop(-3)
    for wrong in (-2, -11, 1):
        with pytest.raises(OptionError, match="tokens_to_remove"):
            cache.crop(wrong)
        assert [layer.length for layer in cache.layers] == [10] * 4
    with pytest.raises(OptionError, match=r"at least -1.*rollback= \(here 4\)"):
        cache.crop(-2)
    close(feed(model, cache, ids, mask, 17), logits(model, ids, use_cache=False)[:, 10:])


def test_a_pass_that_stopped_halfway_is_noticed():
    model = pair("qwen3_next")[1]
    broken = copy.deepcopy(model)
    broken.model.layers[1].mlp = torch.nn.Bilinear(2, 3, 5)
    ids = token_ids(2, 9)
    cache = qkv.hf.cache(model)
    feed(model, cache, ids, torch.ones_like(ids), 5)
    with pytest.raises((RuntimeError, TypeError)):
        feed(broken, cache, ids, torch.ones_like(ids), 9)
    with pytest.raises(qkv.errors.QkvError, match=r"updated some layers only|new tokens from position"):
        logits(model, ids[:, :2], past_key_values=cache)
    cache.reset()
    close(feed(model, cache, ids, torch.ones_like(ids), 9), logits(model, ids, use_cache=False))


def test_rows_and_padding_that_do_not_fit_are_refused():
    model = pair("qwen3_next")[1]
    ids = token_ids(2, 9)
    cache = qkv.hf.cache(model)
    feed(model, cache, ids, torch.ones_like(ids), 5)
    layer = cache.layers[0]
    with pytest.raises(ShapeError, match="3 rows"):
        layer.begin(3, 2, None)
    with pytest.raises(MaskError, match="between the past tokens of a row and its new ones"):
        layer.begin(2, 2, torch.tensor([[True, True], [False, True]]))
    with pytest.raises(MaskError, match="padding on the left of some rows and on the right of others"):
        layer.begin(2, 2, torch.tensor([[True, False], [False, True]]))
    with pytest.raises(OptionError, match="rollback"):
        qkv.hf.cache(model, rollback=-1)
    layer.begin(2, 2, None)
    with pytest.raises(BackendRefused, match="does not say how many inputs it reads"):
        layer.update_conv_state(torch.zeros(2, 94, 2))


def test_another_batch_may_follow_once_all_tokens_are_removed():
    model = pair("qwen3_next")[1]
    cache = qkv.hf.cache(model, rollback=3)
    feed(model, cache, token_ids(3, 2), torch.ones(3, 2, dtype=torch.long), 2)
    cache.crop(-2)
    ids = token_ids(2, 5)
    close(feed(model, cache, ids, torch.ones_like(ids), 5), logits(model, ids, use_cache=False))


def test_memory_does_not_grow_and_is_what_is_held():
    model = pair("qwen3_next")[1]
    cache = qkv.hf.cache(model, dtype=torch.int8)
    ids = token_ids(2, 40)
    for stop in (9, 40):
        feed(model, cache, ids, torch.ones_like(ids), stop)
        state = cache.layers[0]
        # 6 heads of 7 x 11, and three inputs of a convolution over 2 * 14 + 66 channels, in float32
        assert state.nbytes == 4 * 2 * (6 * 7 * 11 + 3 * 94)
    assert cache.nbytes == sum(layer.nbytes for layer in cache.layers)
    exact = logits(model, ids, use_cache=False)
    assert difference(feed(model, qkv.hf.cache(model, dtype=torch.int8), ids, torch.ones_like(ids), 40), exact) < 0.05
    assert "StateLayer" in repr(state)
    assert "PagedCache(4 layers, 40 tokens" in repr(cache)
