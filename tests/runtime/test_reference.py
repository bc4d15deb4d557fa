"""The float32 execution of a program: transformers' eager logits; prompts, chunks, steps, ragged batches and forks."""

import dataclasses

import pytest
import torch

import qkv
from qkv.nn.positions import PositionRange
from qkv.runtime import reference
from qkv.runtime.architectures import read_program
from qkv.runtime.files import open_source
from qkv.runtime.program import Rotary
from tests.helpers.hf_harness import close
from tests.helpers.runtime_files import FAMILIES, NAMES, build, eager_logits, write_folder, write_gguf

TOLERANCE = 3e-6  # of the largest logit
TOKENS = torch.randint(3, 101, (2, 23), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module", params=[*NAMES, *FAMILIES])
def pair(request, tmp_path_factory):
    model = build(request.param)
    folder = write_folder(model, tmp_path_factory.mktemp(request.param))
    return model, read_program(open_source(folder))


def run(program, tokens, caches=None, **options):
    caches = reference.new_caches(program, len(tokens), torch.float32, None) if caches is None else caches
    return reference.run(program, tokens, caches, every=True, **options)


def test_logits_of_transformers(pair):
    model, program = pair
    close(run(program, TOKENS), eager_logits(model, TOKENS), tolerance=TOLERANCE)


@pytest.mark.parametrize("name", [*NAMES, "mistral", "qwen3", "gemma2", "phi3", "starcoder2", "gpt2"])
def test_logits_of_a_gguf_file(name, tmp_path):
    """GGUF files have neither windows of qwen2 and qwen3 nor another scale of gemma2 and gemma3."""
    options = {"gemma2": {"query_pre_attn_scalar": 14}, "gemma3": {"query_pre_attn_scalar": 32}}
    options |= {each: {"use_sliding_window": False} for each in ("qwen2", "qwen3")}
    model = build(name, **options.get(name, {}))
    program = read_program(open_source(write_gguf(model, tmp_path / "model.gguf")))
    close(run(program, TOKENS), eager_logits(model, TOKENS), tolerance=TOLERANCE)
    rotary = program.layers[0].attention.rotary
    assert rotary is None if name == "gpt2" else rotary.interleaved == (name in ("llama", "mistral"))


def changed(program, /, **parts):
    """A program with other settings, also of the layers, attentions and feed-forwards that have them."""

    def replaced(part, values):
        return dataclasses.replace(part, **{k: v for k, v in values.items() if getattr(part, k) is not None})

    layers = []
    for layer in program.layers:
        attention = replaced(layer.attention, parts.get("attention", {}))
        forward = replaced(layer.feed_forward, parts.get("feed_forward", {}))
        new = {"attention": attention, "feed_forward": forward, **parts.get("layer", {})}
        layers.append(dataclasses.replace(layer, **new))
    return dataclasses.replace(program, layers=tuple(layers), **parts.get("program", {}))


def features(program):
    """Changes of a program, each of one feature that it has."""
    first = program.layers[0]
    attention, forward, rotary = first.attention, first.feed_forward, first.attention.rotary
    yield {"attention": {"scale": 0.9 * attention.scale}}
    yield {"program": {"embedding_scale": 1.1 * program.embedding_scale}}
    yield {"layer": {"parallel": not first.parallel}}
    yield {"feed_forward": {"activation": "relu"}}
    for name in ("logits_softcap", "positions"):
        if getattr(program, name) is not None:
            yield {"program": {name: None}}
    for name in ("rotary", "query_norm", "key_norm", "window", "softcap"):
        if any(getattr(layer.attention, name) is not None for layer in program.layers):
            yield {"attention": {name: None}}
    if rotary is not None and 2 * len(rotary.frequencies) < attention.width:
        yield {"attention": {"rotary": Rotary(torch.cat([rotary.frequencies] * (attention.width // 4)))}}
    for name in ("query", "key", "value", "output"):
        if (linear := getattr(attention, name)).bias is not None:
            yield {"attention": {name: dataclasses.replace(linear, bias=None)}}
    for name in ("up", "down", "gate"):
        if (linear := getattr(forward, name)) is not None and linear.bias is not None:
            yield {"feed_forward": {name: dataclasses.replace(linear, bias=None)}}
    norms = ("attention_norm", "feed_forward_norm", "attention_post_norm", "feed_forward_post_norm")
    for kind, name, norm in [("layer", name, getattr(first, name)) for name in norms] + [
        ("program", "norm", program.norm)
    ]:
        if norm is not None:
            yield {kind: {name: dataclasses.replace(norm, eps=0.0)}}
            yield {kind: {name: dataclasses.replace(norm, weight=torch.ones_like(norm.weight))}}
            yield {kind: {name: dataclasses.replace(norm, kind="layer" if norm.kind == "rms" else "rms")}}
            if norm.bias is not None:
                yield {kind: {name: dataclasses.replace(norm, bias=None)}}


def test_no_feature_is_without_effect(pair):
    """If one of these did not change the logits, the test above could not see that it is missing."""
    _, program = pair
    whole = run(program, TOKENS)
    for part in features(program):
        other = run(changed(program, **part), TOKENS)
        assert (other - whole).abs().max() > 100 * TOLERANCE * whole.abs().max(), part


def test_chunks_and_steps_give_the_logits_of_the_prompt(pair):
    _, program = pair
    whole = run(program, TOKENS)
    for sizes in ((7, 16), (1,) * 23, (22, 1)):
        caches = reference.new_caches(program, 2, torch.float32, None)
        parts = [run(program, part, caches) for part in TOKENS.split(sizes, dim=1)]
        close(torch.cat(parts, dim=1), whole, tolerance=TOLERANCE, what=f"chunks of {sizes[0]}")


@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_row_of_a_ragged_batch_is_the_row_alone(pair, padding):
    _, program = pair
    lengths = torch.tensor([23, 9])
    tokens = TOKENS.clone()
    parts = [TOKENS[1, :9], torch.full((14,), -5)]
    tokens[1] = torch.cat(parts if padding == "right" else parts[::-1])
    caches = reference.new_caches(program, 2, torch.float32, None)
    found = run(program, tokens, caches, lengths=lengths, padding=padding)
    alone = run(program, TOKENS[1:, :9])
    close(found[1, :9] if padding == "right" else found[1, 14:], alone[0], tolerance=TOLERANCE)
    close(found[0], run(program, TOKENS[:1])[0], tolerance=TOLERANCE)
    last = reference.run(program, TOKENS[:, :1], caches, lengths=torch.tensor([0, 1]))
    close(last[1:], run(program, torch.cat([TOKENS[1:, :9], TOKENS[1:, :1]], dim=1))[:, -1], tolerance=TOLERANCE)
    assert caches[0].lengths.tolist() == [23, 10]


def test_forks_and_reordered_rows_continue_their_own_prefix(pair):
    _, program = pair
    caches = reference.new_caches(program, 1, torch.float32, None)
    run(program, TOKENS[:1, :11], caches)
    fork = [cache.fork() for cache in caches]
    other = run(program, TOKENS[1:, :5], fork)
    whole = run(program, torch.cat([TOKENS[:1, :11], TOKENS[1:, :5]], dim=1))
    close(other, whole[:, 11:], tolerance=TOLERANCE)
    close(run(program, TOKENS[:1, 11:], caches), run(program, TOKENS[:1])[:, 11:], tolerance=TOLERANCE)


def test_a_step_that_is_interrupted_changes_no_cache(pair, monkeypatch):
    _, program = pair
    caches = reference.new_caches(program, 2, torch.float32, None)
    long = torch.randint(3, 101, (2, 140), generator=torch.Generator().manual_seed(6))
    run(program, long[:, :70], caches)
    calls = []

    def interrupted(*tensors, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return qkv.decode(*tensors, **options)

    with monkeypatch.context() as patch:
        patch.setattr(reference, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(program, long[:, 70:], caches)
    assert all(cache.lengths.tolist() == [70, 70] for cache in caches)
    assert not any(cache.keep_past for cache in caches)
    close(run(program, long[:, 70:], caches), run(program, long)[:, 70:], tolerance=TOLERANCE)
    windows = [cache for cache in caches if cache.window]
    assert all(cache.start > 0 for cache in windows), "what has left the window is evicted"


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_rotation_is_that_of_the_module(interleaved, fraction):
    x = torch.randn(2, 3, 7, 16)
    module = qkv.nn.Rotary(base=300.0, fraction=fraction, interleaved=interleaved)
    (wanted,) = module(x, position_range=PositionRange(4, 7, 11))
    width = int(16 * fraction)
    frequencies = 300.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    rotary = Rotary(frequencies, interleaved=interleaved)
    found = reference._rotated(rotary, x, *reference._angles(rotary, torch.arange(4, 11)))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("pair", NAMES, indirect=True)
def test_sinks_softcap_layer_norm_and_plain_feed_forward(pair):
    """What these architectures do not have, against the equations in float64."""
    _, program = pair
    layer = program.layers[0]
    attention = dataclasses.replace(
        layer.attention, sinks=torch.tensor([0.3, -1.0, 2.0, 0.0]), softcap=2.0, rotary=None, window=None
    )
    forward = dataclasses.replace(layer.feed_forward, gate=None, activation="relu")
    norm = dataclasses.replace(layer.attention_norm, kind="layer", bias=torch.linspace(-1, 1, program.width))
    new = dataclasses.replace(layer, attention=attention, feed_forward=forward, attention_norm=norm)
    small = dataclasses.replace(program, layers=(new,))
    found = run(small, TOKENS[:1])

    def linear(each, x):
        y = x @ each.weight.dense().double().T
        return y if each.bias is None else y + each.bias.double()

    def rms(each, x):
        return x if each is None else x / (x.square().mean(-1, keepdim=True) + each.eps).sqrt() * each.weight.double()

    x = program.embedding.dense(TOKENS[0]).double() * program.embedding_scale
    h = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    h = h * norm.weight.double() + norm.bias.double()
    parts = attention.query, attention.key, attention.value
    q, k, v = (linear(each, h).unflatten(-1, (-1, attention.width)).transpose(0, 1) for each in parts)
    q, k = rms(attention.query_norm, q), rms(attention.key_norm, k)
    k, v = (each.repeat_interleave(2, dim=0) for each in (k, v))
    scores = 2 * torch.tanh(q @ k.transpose(1, 2) * attention.scale / 2)
    weights = scores.exp().tril()
    total = weights.sum(-1, keepdim=True) + attention.sinks.double().exp().view(-1, 1, 1)
    out = (weights / total @ v).transpose(0, 1).flatten(1)
    x = x + rms(layer.attention_post_norm, linear(attention.output, out))
    inner = linear(forward.up, rms(layer.feed_forward_norm, x)).relu()
    x = x + rms(layer.feed_forward_post_norm, linear(forward.down, inner))
    logits = linear(program.logits, rms(program.norm, x))
    if program.logits_softcap is not None:
        logits = program.logits_softcap * torch.tanh(logits / program.logits_softcap)
    close(found[0], logits, tolerance=TOLERANCE)


@pytest.mark.parametrize("few", [True, False])
def test_int8_activations_are_close_and_exact_on_the_grid(few):
    x = torch.randint(-127, 128, (3, 64)).float()
    x[:, ::32] = 127
    assert torch.equal(reference.round_blocks(x, few), x)
    x = torch.randn(5, 96)
    x[0, 70], x[1, 2], x[2, 40], x[3] = 40.0, torch.inf, torch.nan, 0.0
    found = reference.round_blocks(x, few)
    off, most = (found - x).abs(), x.unflatten(-1, (3, 32)).abs().amax(-1)
    steps = torch.full((5, 3), 127.0 * (128 if few else 1))
    steps[0, 2] = 127 * 128  # the block with the outlier
    for row, block in [(0, 0), (0, 1), (0, 2), (1, 1), (2, 0), (2, 2), (4, 1)]:
        here = off[row, 32 * block : 32 * block + 32]
        assert 0 < here.max() <= 0.501 * most[row, block] / steps[row, block]
    assert found[1, :32].isnan().all()
    assert found[2, 40].isnan()
    assert torch.equal(found[3], torch.zeros(96))


def test_weights_that_are_nan_are_not_hidden(pair):
    _, program = pair
    norm = dataclasses.replace(program.norm, weight=torch.full_like(program.norm.weight, torch.nan))
    assert run(dataclasses.replace(program, norm=norm), TOKENS).isnan().all()
