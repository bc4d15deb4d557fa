"""Layers of linear attention on qkv equal transformers' torch functions; padding moves no state."""

import copy
import functools
import warnings

import pytest
import torch
import transformers

import qkv
from qkv.backends.base import RUNS
from qkv.errors import BackendRefused, MaskError
from qkv.hf.recurrent import _switched_forward
from tests.helpers.hf_harness import close, difference
from tests.helpers.tiny_hybrids import CACHED, HYBRIDS, mamba2
from tests.helpers.tiny_models import TOLERANCE, draw, pad, quiet, token_ids

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

LENGTHS = [13, 8, 3]
FAST = ("qwen3_next", "minimax", "mamba2")  # one of each kind


def families(names):
    """The others take the same ways, and are slow to build."""
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


def built(config, implementation):
    qkv.hf.register()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    quiet(model)
    return model.eval()


def pair_of(config):
    eager = built(config, "eager")
    draw(eager, 1.6)
    ours = built(copy.deepcopy(config), "qkv")
    ours.load_state_dict(eager.state_dict())
    return eager, ours


@functools.cache
def pair(name):
    """(transformers' functions, qkv's states) with the same weights. Shared: do not change them."""
    return pair_of(HYBRIDS[name][0]())


def logits(model, ids, mask=None, **more):
    given = {} if mask is None else {"attention_mask": mask}
    with torch.no_grad():
        return model(ids, **given, **more).logits


def cache_of(model, cache):
    return {"cache_params" if "Mamba2" in type(model).__name__ else "past_key_values": cache}


def generation(model, ids, mask, **more):
    options = {"min_new_tokens": 7, "max_new_tokens": 7, "output_logits": True, "return_dict_in_generate": True}
    out = model.generate(ids, attention_mask=mask, do_sample=False, **options, **more)
    return out.sequences[:, ids.shape[1] :].tolist(), torch.stack(out.logits, dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", families(HYBRIDS))
def test_a_forward_pass_equals_that_of_transformers(name):
    eager, ours = pair(name)
    ids = token_ids(3, 13)
    qkv.hf.reset_layer_calls()
    RUNS.clear()
    close(logits(ours, ids, use_cache=False), logits(eager, ids, use_cache=False))
    kind, layers = HYBRIDS[name][1:]
    assert sum(n for layer, n in qkv.hf.layer_calls().items() if layer.startswith(kind)) == layers
    assert RUNS["linear.state"] == layers, "the native kernel did not run"
    padded, mask = pad(ids, LENGTHS, "left")
    close(logits(ours, padded, mask), logits(eager, padded, mask), mask.bool())


@pytest.mark.parametrize("side", ["whole", "left"])
@pytest.mark.parametrize("name", families(HYBRIDS))
def test_generation_equals_that_of_transformers(name, side):
    eager, ours = pair(name)
    ids, mask = pad(token_ids(3, 13), LENGTHS if side == "left" else [13] * 3, "left")
    wanted, steps = generation(eager, ids, mask)
    caches = [{}] if name not in CACHED else [{}, cache_of(ours, qkv.hf.cache(ours, rollback=2))]
    for more in caches:
        found, logits_of_steps = generation(ours, ids, mask, **more)
        assert found == wanted
        close(logits_of_steps, steps)


@pytest.mark.parametrize("name", families(["qwen3_next", "qwen3_5", "kimi_linear", "minimax", "mamba2"]))
def test_every_parameter_of_the_layers_matters(name):
    """Otherwise the tests above would not see what an implementation leaves out."""
    eager = pair(name)[0]
    ids = token_ids(2, 13)
    wanted = logits(eager, ids, use_cache=False)
    changed = copy.deepcopy(eager)
    layer = next(module for module in changed.modules() if type(module).__name__ == HYBRIDS[name][1])
    for at, parameter in layer.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(0.5) if at == "A_log" else parameter.zero_()
        assert difference(logits(changed, ids, use_cache=False), wanted) > 300 * TOLERANCE, at
        with torch.no_grad():
            parameter.copy_(kept)
    if name == "minimax":
        layer.slope_rate.mul_(0.5)  # only the states use it; the other buffers are made of it
        found = logits(copy.deepcopy(pair(name)[1]), ids, use_cache=False)
        moved = copy.deepcopy(pair(name)[1])
        next(m for m in moved.modules() if type(m).__name__ == HYBRIDS[name][1]).slope_rate.mul_(0.5)
        assert difference(logits(moved, ids, use_cache=False), found) > 300 * TOLERANCE


@pytest.mark.parametrize("name", families(CACHED))
def test_padding_moves_nothing_whatever_it_holds(name):
    """Each row alone gives the same, also where padding holds NaN, comes token by token, or stands behind a prompt."""
    ours = copy.deepcopy(pair(name)[1])
    with torch.no_grad():
        ours.get_input_embeddings().weight[1] = torch.nan
    ids = token_ids(3, 13)
    wanted = [logits(pair(name)[1], ids[row : row + 1, 13 - n :])[0] for row, n in enumerate(LENGTHS)]
    padded, mask = pad(ids, LENGTHS, "left")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for chunks in ([13], [5, 1, 4, 3], [1] * 13):
        cache, parts, at = qkv.hf.cache(ours), [], 0
        for n in chunks:
            more = {} if name == "mamba2" else {"position_ids": positions[:, at : at + n]}  # Bamba needs it
            parts.append(logits(ours, padded[:, at : at + n], mask[:, : at + n], **cache_of(ours, cache), **more))
            at += n
        found = torch.cat(parts, dim=1)
        for row, n in enumerate(LENGTHS):
            close(found[row, 13 - n :], wanted[row], what=f"row {row} in chunks of {chunks}")
    if name == "mamba2":
        return  # it has no position_ids, and needs none
    shown = [ids[row, 13 - n :] for row, n in enumerate(LENGTHS)]
    behind = torch.stack([torch.nn.functional.pad(row, (0, 13 - len(row)), value=1) for row in shown])
    real, next_ids = torch.arange(13) < torch.tensor(LENGTHS)[:, None], token_ids(3, 2, seed=3)
    cache = qkv.hf.cache(ours)
    logits(ours, behind, real.long(), past_key_values=cache)
    places = torch.tensor(LENGTHS)[:, None] + torch.arange(2)
    given = torch.cat([real.long(), torch.ones(3, 2, dtype=torch.long)], dim=1)
    found = logits(ours, next_ids, given, past_key_values=cache, position_ids=places)
    for row, tokens in enumerate(shown):
        alone = logits(pair(name)[1], torch.cat([tokens, next_ids[row]])[None])[0, -2:]
        close(found[row], alone, what=f"row {row} after padding")


def test_a_bias_before_the_convolution_does_not_come_from_padding():
    """transformers' own padding moves Mamba-2 here: a projection of 0 is its bias."""
    eager, ours = pair_of(mamba2(use_bias=True))
    ids = token_ids(3, 13)
    close(logits(ours, ids), logits(eager, ids))
    padded, mask = pad(ids, LENGTHS, "left")
    found, theirs = logits(ours, padded, mask), logits(eager, padded, mask)
    for row, n in enumerate(LENGTHS[1:], 1):
        alone = logits(eager, ids[row : row + 1, 13 - n :])[0]
        close(found[row, 13 - n :], alone)
        assert difference(theirs[row, 13 - n :], alone) > 100 * TOLERANCE


@pytest.mark.parametrize("name", families(["qwen3_next", "minimax", "granitemoehybrid"]))
def test_gradients_without_a_cache_are_those_of_transformers(name):
    grads = []
    for model in pair(name):
        model.zero_grad()
        out = model(token_ids(2, 11), use_cache=False).logits
        (out * torch.linspace(-1, 1, out.shape[-1])).sum().backward()
        grads.append({at: p.grad for at, p in model.named_parameters() if p.grad is not None})
        model.zero_grad()
    assert grads[0].keys() == grads[1].keys()
    for at, wanted in grads[0].items():
        if wanted.abs().max() > 0:
            close(grads[1][at], wanted, tolerance=20 * TOLERANCE, what=at)
    with pytest.raises(qkv.errors.QkvError, match=r"gradient|no_grad"):
        model = pair(name)[1]
        model(token_ids(2, 3), past_key_values=qkv.hf.cache(model))


def test_half_precision_is_near_single():
    eager, ours = (copy.deepcopy(model).to(torch.bfloat16) for model in pair("qwen3_next"))
    ids = token_ids(2, 13)
    wanted = logits(pair("qwen3_next")[0], ids)
    theirs, found = difference(logits(eager, ids), wanted), difference(logits(ours, ids), wanted)
    assert logits(ours, ids).dtype is torch.bfloat16
    assert found <= 2 * theirs


def test_layers_follow_the_setting_of_their_model():
    model = copy.deepcopy(pair("qwen3_next")[1])
    ids = token_ids(2, 7)
    for setting, runs in (("eager", 0), ("qkv", 2), ("sdpa", 0)):
        model.set_attn_implementation(setting)
        RUNS.clear()
        logits(model, ids)
        assert RUNS["linear.state"] == runs
    late = copy.deepcopy(pair("qwen3_next")[0])
    late.set_attn_implementation("qkv")
    RUNS.clear()
    close(logits(late, ids), logits(pair("qwen3_next")[0], ids))
    assert RUNS["linear.state"] == 2


def test_captured_layers_keep_their_neighbors_on_states():
    model = pair("qwen3_next")[1]
    RUNS.clear()
    layers = qkv.hf.capture(model, {"input_ids": token_ids(2, 7)})
    assert [layer.layer for layer in layers] == [1, 3]
    assert RUNS["linear.state"] == 2


def test_what_the_convolution_would_mix_is_refused():
    model, ids = pair("qwen3_next")[1], token_ids(1, 7)
    with pytest.raises(BackendRefused, match=r"Qwen3NextGatedDeltaNet 0.*cu_seq_lens_q= packs"):
        logits(model, ids, cu_seq_lens_q=torch.tensor([0, 3, 7], dtype=torch.int32))
    with pytest.raises(MaskError, match="position_ids: got several documents in a row"):
        logits(model, ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), use_cache=False)
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 1]])
    with pytest.raises(MaskError, match="padding between real tokens"):
        logits(model, ids, mask)
    with pytest.raises(BackendRefused, match="its mask has the shape"):
        model.model.layers[0].linear_attn(torch.zeros(1, 7, 60), attention_mask=torch.ones(1, 1, 7, 7))


def test_a_mask_for_another_number_of_keys_is_refused():
    """transformers' cache counts no tokens if MiniMax's first layer is linear; its mask then covers the new ones."""
    config = HYBRIDS["minimax"][0]()
    config.layer_types = ["linear_attention", "full_attention"] * 2
    eager, ours = pair_of(config)
    ids, mask = pad(token_ids(2, 9), [9, 5], "left")
    out = ours(ids, attention_mask=mask, use_cache=True)
    with pytest.raises(BackendRefused, match="mask is for 1 keys, and its cache has 10"):
        ours(ids[:, :1], attention_mask=torch.ones(2, 10), past_key_values=out.past_key_values)
    whole, _ = generation(ours, ids, mask, past_key_values=qkv.hf.cache(ours))
    parts = [generation(eager, ids[i : i + 1, 9 - n :], None, use_cache=False)[0][0] for i, n in enumerate([9, 5])]
    assert whole == parts


@pytest.mark.slow
def test_other_recurrences_are_named():
    config = transformers.JambaConfig(
        vocab_size=101, hidden_size=24, intermediate_size=29, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=1, mamba_dt_rank=5,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="JambaMambaMixer runs in transformers"):
        built(config, "qkv")
    with warnings.catch_warnings(), pytest.raises(BackendRefused, match=r"qkv.hf.cache does not support"):
        warnings.simplefilter("ignore")
        qkv.hf.cache(built(config, "qkv"))


def test_a_layer_that_skips_its_recurrence_is_refused():
    class Layer(torch.nn.Module):
        layer_idx = 5

        def forward(self, hidden_states, cache_params=None, attention_mask=None, **kwargs):
            return hidden_states

    layer = Layer()
    layer._qkv_config = pair("qwen3_next")[1].config
    Layer.forward = _switched_forward(Layer.forward, None)
    with pytest.raises(BackendRefused, match=r"Layer 5.*did not call the function of its recurrence"):
        layer(torch.zeros(1, 3, 7))


def test_an_error_inside_a_layer_leaves_nothing_behind():
    eager, ours = pair("qwen3_next")
    broken = copy.deepcopy(ours)
    broken.model.layers[0].linear_attn.norm = torch.nn.Bilinear(2, 3, 5)
    with pytest.raises(RuntimeError):
        logits(broken, token_ids(1, 3))
    RUNS.clear()
    logits(eager, token_ids(1, 3))
    assert not RUNS["linear.state"]
