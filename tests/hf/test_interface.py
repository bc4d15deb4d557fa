"""Models that `register` refuses, and what `attn_implementation="qkv"` refuses before it computes anything."""

from copy import deepcopy

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import qkv
from qkv.errors import BackendRefused, QkvError
from qkv.hf.interface import check_layers
from tests.helpers.hf_harness import close, generate, run
from tests.helpers.tiny_models import (
    FIRST,
    PAD,
    eager,
    inputs,
    llama_like,
    ours,
    output_of,
    prompt,
    quiet,
    register,
    token_ids,
)


class ByItselfAttention(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ByItselfAttention()


def test_a_layer_that_computes_by_itself_is_named():
    with pytest.raises(BackendRefused, match=r"Wrapped.*inner \(ByItselfAttention\)"):
        check_layers(Wrapped())


def test_registering_again_wraps_nothing_again():
    qkv.hf.register()
    before = transformers.PreTrainedModel.set_attn_implementation, transformers.PreTrainedModel.post_init
    qkv.hf.register()
    assert before == (transformers.PreTrainedModel.set_attn_implementation, transformers.PreTrainedModel.post_init)


def test_other_implementations_are_left_alone():
    qkv.hf.register()
    config = transformers.GPTJConfig(n_embd=16, n_head=2, n_layer=1, rotary_dim=4, vocab_size=20, n_positions=32)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with pytest.raises(BackendRefused, match="GPTJForCausalLM"):
        model.set_attn_implementation("qkv")
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        assert model(torch.tensor([[3, 5]])).logits.isfinite().all()


def test_a_table_of_classes_is_refused_before_it_is_looked_into():
    """transformers would say KeyError: 'qkv'."""
    qkv.hf.register()
    config = transformers.GitConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    with pytest.raises(BackendRefused, match="Git"):
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="qkv")


@pytest.mark.slow
def test_a_model_that_computes_with_an_additive_mask_gets_one():
    """DeepSeek-V4 adds numbers to the mask; as booleans they would invert it."""
    qkv.hf.register()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "deepseek_v4", hidden_size=32, num_attention_heads=4, head_dim=8, num_hidden_layers=2, vocab_size=99,
        q_lora_rank=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, sliding_window=5,
        layer_types=["compressed_sparse_attention"] * 2, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)
    tokens = torch.randint(5, 99, (1, 20))
    with torch.no_grad():
        wanted = model(tokens).logits
        model.set_attn_implementation("qkv")
        assert torch.allclose(model(tokens).logits, wanted, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [transformers.BertConfig, transformers.XLMRobertaConfig, transformers.ElectraConfig])
def test_encoders_have_no_cache(kind):
    qkv.hf.register()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.AutoModelForCausalLM.from_config(kind(**sizes, vocab_size=50), attn_implementation="qkv")
    with pytest.raises(BackendRefused, match=f"{type(model).__name__}.*not a decoder"):
        qkv.hf.cache(model)
    decoder = kind(**sizes, vocab_size=50, is_decoder=True)
    qkv.hf.cache(transformers.AutoModelForCausalLM.from_config(decoder, attn_implementation="qkv"))


pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

SMALL = {"vocab_size": 101, "hidden_size": 60, "pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": None}


def gptj():
    more = {key: value for key, value in SMALL.items() if key != "hidden_size"}
    return transformers.GPTJConfig(n_embd=60, n_layer=2, n_head=5, n_positions=61, rotary_dim=4, **more)


def falcon():
    return transformers.FalconConfig(num_hidden_layers=2, num_attention_heads=5, **SMALL)


def bloom():
    return transformers.BloomConfig(n_layer=2, n_head=5, **SMALL)


FOREIGN = {"GPTJ": gptj, "Falcon": falcon, "Bloom": bloom}
by_foreign = pytest.mark.parametrize("name", FOREIGN)


@pytest.fixture(autouse=True)
def registered():
    register()


def build(config, implementation):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    quiet(model)
    return model.eval()


# -------------------------------------------------------------------------------- models with custom attention code


@by_foreign
def test_models_with_custom_attention_are_refused_when_built(name):
    with pytest.raises(BackendRefused, match=name):
        build(FOREIGN[name](), "qkv")


@by_foreign
def test_models_with_custom_attention_are_refused_when_switched(name):
    model = build(FOREIGN[name](), "eager")
    given = {"input_ids": token_ids(2, 7)}
    before = output_of(run(model, given))
    with pytest.raises(BackendRefused, match=name):
        model.set_attn_implementation("qkv")
    assert model.config._attn_implementation == "eager", "a refusal changes nothing"
    assert torch.equal(output_of(run(model, given)), before)


@by_foreign
def test_models_with_custom_attention_are_refused_when_loaded(name, tmp_path):
    model = build(FOREIGN[name](), "eager")
    model.save_pretrained(tmp_path)
    with pytest.raises(BackendRefused, match=name):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="qkv")


@by_foreign
def test_other_implementations_of_those_models_still_load(name):
    """The refusal is qkv's alone: register() leaves what others ask for as it was."""
    given = {"input_ids": token_ids(2, 7)}
    assert output_of(run(build(FOREIGN[name](), "eager"), given)).isfinite().all()


@pytest.mark.slow
def test_an_argument_that_attention_does_not_know_is_refused_by_name():
    """It would change the answer if it were dropped."""
    function = transformers.AttentionInterface()["qkv"]
    module = ours("llama").model.layers[0].self_attn
    query, key = torch.randn(2, 6, 5, 14), torch.randn(2, 2, 5, 14)
    with pytest.raises(QkvError, match="logit_twist"):
        function(module, query, key, key, None, scaling=0.3, logit_twist=torch.ones(6))


# ------------------------------------------------------------------------------------------------------- the cache


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_cache_for_a_model_that_is_not_on_qkv_is_refused(implementation):
    model = build(llama_like("LlamaConfig"), implementation)
    with pytest.raises(QkvError, match="qkv"):
        qkv.hf.cache(model)
    with pytest.raises(QkvError, match=r"set_attn_implementation|attn_implementation"):
        qkv.hf.cache(model, dtype=torch.int8)


def test_a_cache_used_after_the_model_left_qkv_is_refused():
    model = build(llama_like("LlamaConfig"), "qkv")
    cache = qkv.hf.cache(model)
    model.set_attn_implementation("eager")
    with pytest.raises(QkvError):
        run(model, {"input_ids": token_ids(2, 7)}, past_key_values=cache)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.complex64], ids=str)
def test_a_storage_format_that_is_none_is_refused(dtype):
    with pytest.raises(QkvError, match="dtype"):
        qkv.hf.cache(ours("llama"), dtype=dtype)


@pytest.mark.parametrize("dtype", ["int9", "float", 8], ids=str)
def test_a_dtype_that_is_no_dtype_is_refused(dtype):
    with pytest.raises(QkvError, match="dtype"):
        qkv.hf.cache(ours("llama"), dtype=dtype)


@pytest.mark.parametrize("capacity", [-1, 2.5, "many", True], ids=str)
def test_a_capacity_that_is_none_is_refused(capacity):
    with pytest.raises(QkvError, match="capacity"):
        cache = qkv.hf.cache(ours("llama"), capacity=capacity)
        run(ours("llama"), {"input_ids": token_ids(2, 7)}, past_key_values=cache)  # layers may be made late


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_more_tokens_than_the_capacity_are_refused(name):
    model = ours(name)
    cache = qkv.hf.cache(model, capacity=8)
    given = {"input_ids": token_ids(2, 6)}
    grown = "decoder_input_ids" if name == "bart" else "input_ids"
    run(model, {**given, grown: token_ids(2, 6)}, past_key_values=cache)
    with pytest.raises(QkvError, match="capacity"):
        run(model, {**given, grown: token_ids(2, 3)}, past_key_values=cache)


def test_a_capacity_that_is_large_enough_serves():
    cache = qkv.hf.cache(ours("llama"), capacity=64)
    given = prompt("llama", "left")
    found = generate(ours("llama"), given, past_key_values=cache)
    assert found.sequences.tolist() == generate(eager("llama"), given).sequences.tolist()


def filled(name="llama", n=7, **options):
    cache = qkv.hf.cache(ours(name), **options)
    run(ours(name), {"input_ids": token_ids(2, n)}, past_key_values=cache)
    return cache


READERS = {
    "keys": lambda layer: torch.add(layer.keys, 0),
    "values": lambda layer: torch.add(layer.values, 0),
    "joined": lambda layer: torch.cat([layer.keys, layer.values], dim=-2),
    "as numbers": lambda layer: layer.keys.float().sum().item(),
    "indexed": lambda layer: layer.values[:, :, -1:].tolist(),
}


@pytest.mark.parametrize("reader", READERS)
def test_keys_and_values_are_no_tensors(reader):
    cache = filled()
    with pytest.raises(QkvError, match=r"cache|pages|tensors"):
        READERS[reader](cache.layers[0])


def test_the_cache_shows_the_tensors():
    cache = filled()
    theirs = run(eager("llama"), {"input_ids": token_ids(2, 7)}, use_cache=True).past_key_values
    for ours_, layer in zip(cache.layers, theirs.layers, strict=True):
        assert isinstance(ours_.cache, qkv.KVCache)
        key, value = ours_.cache.tensors()
        close(key, layer.keys, what="keys")
        close(value, layer.values, what="values")


def test_a_mask_that_changes_the_past_is_refused():
    """Tokens that were padding are not kept, and tokens that were kept cannot become padding in silence."""
    model = ours("llama")
    given, _ = inputs("llama", "left")
    cache = qkv.hf.cache(model)
    run(model, given, past_key_values=cache)
    mask = given["attention_mask"]
    more = {"input_ids": token_ids(3, 1, seed=4)}
    for change in ("forgets", "recalls"):
        changed = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], dim=1)
        if change == "forgets":
            changed[0, 2] = 0
        else:
            changed[2] = 1
        with pytest.raises(QkvError, match="mask"):
            run(model, {**more, "attention_mask": changed}, past_key_values=deepcopy(cache))


def test_a_step_without_the_mask_of_a_padded_past_is_refused():
    """Leaving the mask out says that all past tokens are real; those that were padding are gone."""
    model = ours("llama")
    given, _ = inputs("llama", "left")
    cache = qkv.hf.cache(model)
    run(model, given, past_key_values=cache)
    with pytest.raises(QkvError, match="mask"):
        run(model, {"input_ids": token_ids(3, 1, seed=4)}, past_key_values=cache)


def test_a_mask_of_a_wrong_size_is_refused():
    model = ours("llama")
    cache = qkv.hf.cache(model)
    run(model, {"input_ids": token_ids(2, 7)}, past_key_values=cache)
    with pytest.raises((QkvError, ValueError)):
        run(
            model,
            {"input_ids": token_ids(2, 1), "attention_mask": torch.ones(2, 3, dtype=torch.long)},
            past_key_values=cache,
        )


OTHERS = {"other kv heads": {"num_key_value_heads": 3}, "another width": {"head_dim": 10}}


@pytest.mark.parametrize("other", OTHERS)
def test_the_cache_of_another_model_is_refused(other):
    """Nothing is broadcast. An empty cache may also do as if it had been made for the model."""
    other_model = build(llama_like("LlamaConfig", **{"head_dim": 14, **OTHERS[other]}), "qkv")
    given = {"input_ids": token_ids(2, 3)}
    with pytest.raises(QkvError):
        run(other_model, given, past_key_values=filled())
    try:
        found = run(other_model, given, past_key_values=qkv.hf.cache(ours("llama")))
    except QkvError:
        return
    close(output_of(found), output_of(run(other_model, given, use_cache=False)))


def test_a_cache_of_a_model_with_fewer_layers_is_refused():
    small = build(llama_like("LlamaConfig", head_dim=14, num_hidden_layers=2), "qkv")
    with pytest.raises(QkvError):
        run(ours("llama"), {"input_ids": token_ids(2, 3)}, past_key_values=qkv.hf.cache(small))


def test_another_batch_is_refused():
    cache = filled()
    with pytest.raises(QkvError):
        run(ours("llama"), {"input_ids": token_ids(3, 1)}, past_key_values=cache)
    assert int(cache.get_seq_length()) == 7


def step(query, key, cache):
    """One layer's step as a model makes it; the tokens may be looked at in update or in attention."""
    model = ours("llama")
    keys, values = cache.update(key, key, 0)
    return transformers.AttentionInterface()["qkv"](
        model.model.layers[0].self_attn, query, keys, values, None, scaling=14**-0.5
    )


def test_other_devices_are_refused():
    query, key = torch.randn(2, 6, 5, 14), torch.randn(2, 2, 5, 14)
    with pytest.raises(QkvError):
        step(query, key.to("meta"), qkv.hf.cache(ours("llama")))
    with pytest.raises(QkvError):
        step(query.to("meta"), key.to("meta"), qkv.hf.cache(ours("llama")))


def test_a_model_on_the_meta_device_is_not_computed_through_a_cache():
    with torch.device("meta"):
        model = build(llama_like("LlamaConfig"), "qkv")
    with pytest.raises(QkvError):
        run(model, {"input_ids": token_ids(2, 3).to("meta")}, past_key_values=qkv.hf.cache(model))


def test_tokens_of_a_dtype_that_cannot_be_kept_are_refused():
    query, key = torch.randn(2, 6, 5, 14), torch.ones(2, 2, 5, 14, dtype=torch.int64)
    with pytest.raises(QkvError):
        step(query, key, qkv.hf.cache(ours("llama")))


@pytest.mark.parametrize("count", [8, 100])
def test_cropping_more_than_there_is_is_refused_or_empties(count):
    """transformers' own slices to nothing; a refusal is as good. What is wrong is to keep anything."""
    cache = filled(n=7)
    try:
        cache.crop(-count)
    except QkvError:
        assert int(cache.get_seq_length()) == 7, "a refusal changes nothing"
    else:
        assert int(cache.get_seq_length()) == 0


def test_cropping_to_a_positive_length_is_refused():
    """transformers refuses it too: it used to mean the length to keep."""
    cache = filled(n=7)
    with pytest.raises(ValueError):
        cache.crop(3)
    assert int(cache.get_seq_length()) == 7


@pytest.mark.parametrize("index", [[0, 2], [-3, 0], [5]], ids=str)
def test_rows_that_are_not_there_are_refused(index):
    cache = filled()
    for change in (cache.reorder_cache, cache.batch_select_indices):
        with pytest.raises((QkvError, IndexError)):
            change(torch.tensor(index))
    assert int(cache.get_seq_length()) == 7


def test_no_repeats_are_refused():
    cache = filled()
    for n in (0, -1):
        with pytest.raises(QkvError):
            cache.batch_repeat_interleave(n)


# -------------------------------------------------------------------------------------- training, without a cache


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert", "t5", "bart", "mistral", "vit", "modernbert"])
def test_gradients_are_those_of_eager(name):
    given, _ = inputs(name)
    more = {} if name in ("bert", "vit", "modernbert") else {"use_cache": False}
    gradients = []
    for source in (eager(name), ours(name)):
        model = deepcopy(source)
        logits = output_of(model(**given, **more))
        weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(7))
        (logits * weights).sum().backward()
        gradients.append({key: p.grad for key, p in model.named_parameters()})
    theirs, found = gradients
    largest = max(float(g.abs().max()) for g in theirs.values() if g is not None)
    for key, gradient in theirs.items():
        assert (found[key] is None) == (gradient is None), key
        if gradient is not None:
            off = float((found[key] - gradient).abs().max()) / largest
            assert off < 1e-4, f"{key}: {off:.1e} of the largest gradient"


@pytest.mark.parametrize(("name", "side"), [("llama", "right"), ("bert", "left"), ("bart", "right")], ids=str)
def test_gradients_with_padding(name, side):
    """Only real tokens are judged, so only they carry gradient."""
    given, real = inputs(name, side)
    more = {} if name == "bert" else {"use_cache": False}
    gradients = []
    for source in (eager(name), ours(name)):
        model = deepcopy(source)
        logits = output_of(model(**given, **more))
        weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(7)) * real[:, :, None]
        (logits * weights).sum().backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    theirs, found = gradients
    largest = max(float(g.abs().max()) for g in theirs.values())
    for key, gradient in theirs.items():
        off = float((found[key] - gradient).abs().max()) / largest
        assert off < 1e-4, f"{key}: {off:.1e} of the largest gradient"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "gpt_oss", "t5"])
def test_training_with_dropout(name):
    """Dropout is drawn: never the same twice, the same from the same seed, and the mean is what eval says."""
    register()
    source = ours(name)
    config = deepcopy(source.config)
    for key in ("attention_dropout", "attention_probs_dropout_prob"):
        if hasattr(config, key):
            setattr(config, key, 0.3)
    for key in ("hidden_dropout_prob", "resid_pdrop", "embd_pdrop"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    model = type(source)._from_config(config, attn_implementation="qkv")
    model.load_state_dict(source.state_dict())
    model.train()
    given, _ = inputs(name)
    more = {} if name == "bert" else {"use_cache": False}

    def once(seed):
        torch.manual_seed(seed)
        return output_of(model(**given, **more))

    first = once(1)
    assert first.isfinite().all()
    assert torch.equal(first, once(1))
    assert not torch.equal(first, once(2))
    first.square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(g.isfinite().all() for g in gradients)
    model.eval()
    close(output_of(run(model, given, **more)), output_of(run(eager(name), given, **more)))


def test_gradients_through_a_cache_are_refused_or_right():
    """Pages keep no graph: a gradient that would be lost in silence is refused."""
    model = deepcopy(ours("llama"))
    cache = qkv.hf.cache(model)
    try:
        loss = model(input_ids=token_ids(2, 5), past_key_values=cache).logits.square().sum()
        loss = loss + model(input_ids=token_ids(2, 2, seed=3), past_key_values=cache).logits.square().sum()
        loss.backward()
    except QkvError:
        return
    theirs = deepcopy(eager("llama"))
    out = theirs(input_ids=token_ids(2, 5), use_cache=True)
    more = theirs(input_ids=token_ids(2, 2, seed=3), past_key_values=out.past_key_values)
    (out.logits.square().sum() + more.logits.square().sum()).backward()
    for (key, a), b in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4 * float(b.grad.abs().max())), key


# --------------------------------------------------------------------------- masks that users give, and odd ones


def masks(n=11):
    generator = torch.Generator().manual_seed(3)
    keep = torch.rand(3, 1, n, n, generator=generator) < 0.6
    return keep | torch.eye(n, dtype=torch.bool)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gpt_oss", "phi", "gemma"])
def test_masks_of_four_dimensions(name):
    """Boolean: True attends. Float: added to the scores. Eager is given the float one: it adds whatever it gets."""

    def added(mask):
        return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)

    ids, as_bool = token_ids(3, 11), masks()
    as_float = added(as_bool)
    if name == "gpt_oss":  # full layers and sliding layers each get one
        as_bool = {"full_attention": as_bool, "sliding_attention": as_bool.flip(0)}
        as_float = {kind: added(mask) for kind, mask in as_bool.items()}
    wanted = output_of(run(eager(name), {"input_ids": ids, "attention_mask": as_float}))
    close(output_of(run(ours(name), {"input_ids": ids, "attention_mask": as_float})), wanted)
    close(output_of(run(ours(name), {"input_ids": ids, "attention_mask": as_bool})), wanted)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_float_mask_may_add_any_number(name):
    generator = torch.Generator().manual_seed(5)
    bias = torch.randn(3, 1, 11, 11, generator=generator)
    causal = torch.ones(11, 11, dtype=torch.bool).tril()
    bias = bias.masked_fill(~causal, torch.finfo(torch.float32).min)
    given = {"input_ids": token_ids(3, 11), "attention_mask": bias}
    close(output_of(run(ours(name), given)), output_of(run(eager(name), given)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_packed_documents_do_not_see_one_another(name):
    """Positions that begin again say where documents begin: transformers' masks know, and qkv's has to."""
    positions = torch.tensor([[*range(6), *range(4), *range(3)]] * 2)
    given = {"input_ids": token_ids(2, 13), "position_ids": positions}
    wanted = output_of(run(eager(name), given, use_cache=False))
    whole = output_of(run(eager(name), {**given, "attention_mask": torch.ones(2, 13)}, use_cache=False))
    assert (wanted - whole).abs().max() > 0.1, "eager packs"
    close(output_of(run(ours(name), given, use_cache=False)), wanted)


def test_a_query_with_nothing_to_see_gets_nothing():
    """Rows of padding on the left: finite, whatever the padding's own tokens are, and the rest is not touched."""
    given, real = inputs("llama", "left")
    first = output_of(run(ours("llama"), given))
    assert first.isfinite().all()
    other = dict(given)
    other["input_ids"] = torch.where(real, given["input_ids"], FIRST + 5)
    assert torch.equal(output_of(run(ours("llama"), other))[real], first[real])


class Masks(TorchDispatchMode):
    """Sees every tensor that is made with a cell for each query and key, and without a place for each head."""

    def __init__(self, length, batch):
        super().__init__()
        self.length, self.batch, self.seen = length, batch, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, torch.Tensor) and one.ndim >= 2 and one.shape[-1] * one.shape[-2] >= self.length**2:
                scores = one[..., 0, 0].numel() > self.batch and one.dtype is not torch.bool
                held = one.untyped_storage().nbytes() // one.itemsize
                if not scores and held >= self.length**2:
                    self.seen.append((str(function), tuple(one.shape), one.dtype))
        return out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("side", [None, "left", "right"], ids=["whole", "left", "right"])
def test_no_mask_of_every_pair_is_made(name, side):
    """Causal, window and padding stay structured: a mask with a cell for each query and key would be seen here."""
    length = 1511
    sizes = {"max_position_embeddings": 1600, "sliding_window": 37, "head_dim": 14, "num_hidden_layers": 2}
    config = llama_like(type(ours(name).config).__name__, **sizes)
    model = type(ours(name))._from_config(config, attn_implementation="qkv").eval()
    given = {"input_ids": token_ids(2, length)}
    if side:
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, 1000:] = 0
        given["attention_mask"] = mask.flip(1) if side == "left" else mask
    with Masks(length, batch=2) as masks_made:
        run(model, given, use_cache=False)
    assert not masks_made.seen, masks_made.seen[:3]


def test_errors_are_of_qkv_and_of_python():
    """Each is also a ValueError or a TypeError."""
    with pytest.raises(ValueError):
        build(bloom(), "qkv")
    with pytest.raises((ValueError, TypeError)):
        qkv.hf.cache(ours("llama"), dtype=torch.float64)
