"""The native step: logits of the float32 execution; prompts, chunks, steps, ragged batches, forks, threads, formats."""

import dataclasses
import threading

import pytest
import torch

from qkv import ops
from qkv.errors import OptionError, OptionTypeError
from qkv.runtime import native, reference
from qkv.runtime.architectures import read_program
from qkv.runtime.blocks import FORMATS, PackedMatrix
from qkv.runtime.files import open_source
from qkv.runtime.native import NativeProgram
from qkv.runtime.program import Linear
from tests.helpers.hf_harness import close
from tests.helpers.runtime_files import ALL, NAMES, build, write_folder, write_gguf

pytestmark = pytest.mark.skipif(not ops.available(), reason=str(ops.reasons()))
TOLERANCE = 3e-6  # of the largest logit
INT8_TOLERANCE = 0.01  # what lies between two steps may be rounded either way, and later layers follow
TOKENS = torch.randint(3, 101, (2, 23), generator=torch.Generator().manual_seed(5))
LONG = torch.randint(3, 101, (2, 150), generator=torch.Generator().manual_seed(6))


@pytest.fixture(scope="module", params=ALL)
def program(request, tmp_path_factory):
    return read_program(open_source(write_folder(build(request.param), tmp_path_factory.mktemp(request.param))))


def caches_for(program, batch=2, dtype=torch.float32, capacity=None):
    return reference.new_caches(program, batch, dtype, capacity)


def wanted_logits(program, tokens, **options):
    return reference.run(program, tokens, caches_for(program, len(tokens)), every=True, **options)


def test_logits_are_those_of_the_reference_and_native_code_ran(program):
    executable, caches = NativeProgram(program), caches_for(program)
    ops.reset_calls()
    found = executable.run(TOKENS, caches, every=True)
    assert ops.calls()["program"] == 1
    close(found, wanted_logits(program, TOKENS), tolerance=TOLERANCE)
    assert all(cache.lengths.tolist() == [23, 23] for cache in caches)
    last = executable.run(TOKENS, caches_for(program))
    close(last, found[:, -1], tolerance=TOLERANCE)


def test_chunks_and_steps_give_the_logits_of_the_prompt(program, monkeypatch):
    executable = NativeProgram(program)
    whole = wanted_logits(program, LONG)
    for sizes in ((150,), (70, 80), (9,) * 16 + (6,), (1,) * 150):
        caches = caches_for(program)
        parts = [executable.run(part, caches, every=True) for part in LONG.split(sizes, dim=1)]
        close(torch.cat(parts, dim=1), whole, tolerance=TOLERANCE, what=f"chunks of {sizes[0]}")
    monkeypatch.setattr(native, "_MAX_ROWS", 14)
    ops.reset_calls()
    caches = caches_for(program)
    close(NativeProgram(program).run(LONG, caches, every=True), whole, tolerance=TOLERANCE, what="calls of 7 tokens")
    assert ops.calls()["program"] == 22
    close(NativeProgram(program).run(LONG, caches_for(program)), whole[:, -1], tolerance=TOLERANCE)
    assert all(cache.start > 0 for cache in caches if cache.window), "what has left the window is evicted"


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("most", [4, 512])
def test_a_row_of_a_ragged_batch_is_the_row_alone(program, padding, most, monkeypatch):
    monkeypatch.setattr(native, "_MAX_ROWS", most)
    executable, lengths = NativeProgram(program), torch.tensor([9, 0, 23])
    tokens, real = torch.full((3, 23), -5), TOKENS.new_zeros((3, 23), dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        place = slice(0, length) if padding == "right" else slice(23 - length, 23)
        tokens[row, place], real[row, place] = TOKENS[row % 2, :length], True
    caches = caches_for(program, 3)
    found = executable.run(tokens, caches, lengths=lengths, padding=padding, every=True)
    assert caches[0].lengths.tolist() == [9, 0, 23]
    for row, source in ((0, 0), (2, 0)):
        alone = wanted_logits(program, TOKENS[source : source + 1, : lengths[row]])
        close(found[row, real[row]], alone[0], tolerance=TOLERANCE)
    assert not found[~real].any(), "logits of padding are 0"
    last = executable.run(TOKENS[:1, :1].expand(3, 1), caches, lengths=torch.tensor([0, 1, 1]))
    close(last[1:2], wanted_logits(program, TOKENS[:1, :1])[:, 0], tolerance=TOLERANCE)
    both = torch.cat([TOKENS[:1], TOKENS[:1, :1]], dim=1)
    close(last[2:], wanted_logits(program, both)[:, -1], tolerance=TOLERANCE)
    assert not last[0].any()
    assert caches[-1].lengths.tolist() == [9, 1, 24]


def test_forks_reordered_rows_and_cropped_drafts(program):
    executable, caches = NativeProgram(program), caches_for(program, 1)
    executable.run(TOKENS[:1, :11], caches)
    fork = [cache.fork() for cache in caches]
    other = executable.run(TOKENS[1:, :5], fork, every=True)
    whole = wanted_logits(program, torch.cat([TOKENS[:1, :11], TOKENS[1:, :5]], dim=1))
    close(other, whole[:, 11:], tolerance=TOLERANCE)
    executable.run(TOKENS[1:, :3], caches)
    for cache in caches:
        cache.crop(11)
        cache.reorder([0, 0])
    both = executable.run(TOKENS[:1, 11:].expand(2, -1), caches, every=True)
    close(both[1:], wanted_logits(program, TOKENS[:1])[:, 11:], tolerance=TOLERANCE)
    assert torch.equal(both[0], both[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
def test_storage_formats_of_the_cache(program, dtype):
    caches, same = caches_for(program, dtype=dtype, capacity=30), caches_for(program, dtype=dtype)
    found = NativeProgram(program).run(TOKENS, caches, every=True)
    # Rounding to the storage format turns last bits of keys and values into steps of the format.
    close(found, reference.run(program, TOKENS, same, every=True), tolerance=1e-2)
    with pytest.raises(ValueError, match="capacity"):
        NativeProgram(program).run(TOKENS, caches)
    assert caches[0].lengths.tolist() == [23, 23]


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_bits_do_not_depend_on_threads(program, activations):
    executable = NativeProgram(program, activations)
    found = []
    for threads in (1, 2, 3):
        caches = caches_for(program)
        prompt = executable.run(LONG, caches, every=True, threads=threads)
        found.append(torch.cat([prompt, executable.run(TOKENS[:, :1], caches, every=True, threads=threads)], dim=1))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("quantized", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "f16", "bf16"])
def test_formats_of_weights(quantized, tmp_path):
    path = write_gguf(build("llama", head_dim=32), tmp_path / "model.gguf", quantized=quantized)
    program = read_program(open_source(path))
    assert program.embedding.format.name == program.layers[0].feed_forward.down.weight.format.name == quantized
    whole = wanted_logits(program, TOKENS)
    executable, caches = NativeProgram(program), caches_for(program)
    close(executable.run(TOKENS, caches, every=True), whole, tolerance=TOLERANCE)
    close(
        executable.run(TOKENS[:, :1], caches), wanted_logits(program, _with_first(TOKENS))[:, -1], tolerance=TOLERANCE
    )
    rounded, caches = NativeProgram(program, "int8"), caches_for(program)
    same = caches_for(program)
    for tokens in (TOKENS, TOKENS[:, :1]):  # many rows, then few
        wanted = reference.run(program, tokens, same, every=True, activations="int8")
        close(rounded.run(tokens, caches, every=True), wanted, tolerance=INT8_TOLERANCE)
    if program.embedding.format.is_quantized:
        off = (rounded.run(TOKENS, caches_for(program), every=True) - whole).abs().max() / whole.abs().max()
        assert off > 10 * TOLERANCE, "int8 rounds"


def _with_first(tokens):
    return torch.cat([tokens, tokens[:, :1]], dim=1)


@pytest.mark.parametrize("program", NAMES, indirect=True)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gated", [True, False])
def test_parts_that_these_architectures_do_not_have(program, activation, gated):
    """Sinks, softcap, LayerNorm, a plain feed-forward, rotation of a part of a head, no norm."""
    layer = program.layers[0]
    rotary = dataclasses.replace(layer.attention.rotary, frequencies=layer.attention.rotary.frequencies[:3], scale=1.3)
    attention = dataclasses.replace(
        layer.attention, sinks=torch.tensor([0.3, -1.0, 2.0, 0.0]), softcap=2.0, rotary=rotary, window=None
    )
    forward = dataclasses.replace(layer.feed_forward, activation=activation)
    if not gated:
        forward = dataclasses.replace(forward, gate=None)
    norm = dataclasses.replace(layer.attention_norm, kind="layer", bias=torch.linspace(-1, 1, program.width))
    new = dataclasses.replace(layer, attention=attention, feed_forward=forward, attention_norm=norm)
    bare = dataclasses.replace(layer, feed_forward_norm=None, attention=dataclasses.replace(attention, rotary=None))
    changed = dataclasses.replace(program, layers=(new, bare))
    found = NativeProgram(changed).run(TOKENS, caches_for(changed), every=True)
    close(found, wanted_logits(changed, TOKENS), tolerance=TOLERANCE)


def test_sizes_that_fill_no_vector():
    """Widths of 34 and 5 pairs: every loop has a rest."""
    generator = torch.Generator().manual_seed(1)
    found = read_small(generator)
    tokens = torch.randint(0, 13, (2, 9), generator=generator)
    logits = NativeProgram(found).run(tokens, caches_for(found), every=True)
    close(logits, wanted_logits(found, tokens), tolerance=TOLERANCE)


def read_small(generator):
    from qkv.runtime.program import Attention, FeedForward, Layer, Norm, Program, Rotary

    def linear(rows, columns, bias=True):
        data = torch.randn(rows, columns, generator=generator) * columns**-0.5
        packed = PackedMatrix(data.numpy().view("uint8"), FORMATS["f32"], rows, columns)
        return Linear(packed, torch.randn(rows, generator=generator) if bias else None)

    def norm(width, kind):
        bias = torch.randn(width, generator=generator) if kind == "layer" else None
        return Norm(torch.randn(width, generator=generator), 0.1, kind, bias)

    frequencies = torch.linspace(1, 0.1, 5, dtype=torch.float64)
    parts = linear(30, 34), linear(10, 34), linear(10, 34), linear(34, 30)
    attention = Attention(*parts, 3, 1, 10, 0.4, norm(10, "layer"), norm(10, "rms"), Rotary(frequencies), 4)
    forward = FeedForward(linear(51, 34), linear(34, 51), linear(51, 34), "gelu_tanh")
    layer = Layer(attention, forward, norm(34, "rms"), norm(34, "layer"), norm(34, "layer"), None)
    return Program("small", linear(13, 34).weight, (layer,) * 2, norm(34, "layer"), linear(13, 34), 100, 0.7, 3.0)


def test_threads_may_share_a_program(program):
    executable, found = NativeProgram(program), {}

    def work(at):
        caches = caches_for(program)
        for part in TOKENS.split(6, dim=1):
            found[at] = executable.run(part, caches)

    workers = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    close(found[0], wanted_logits(program, TOKENS)[:, -1], tolerance=TOLERANCE)
    assert all(torch.equal(found[0], found[at]) for at in range(4))


def test_what_is_refused_changes_no_cache(program):
    executable, caches = NativeProgram(program), caches_for(program)
    executable.run(TOKENS, caches)
    for wrong in (-1, program.vocabulary):
        with pytest.raises(OptionError, match="tokens"):
            executable.run(TOKENS.masked_fill(TOKENS[1, 2] == TOKENS, wrong), caches)
    other = [*caches[:-1], caches[-1].fork()]
    other[-1].crop(22)
    with pytest.raises(OptionError, match="the same tokens"):
        executable.run(TOKENS, other)
    for strange in (caches_for(program, 3), caches[:-1]):
        with pytest.raises(OptionTypeError, match="cache"):
            executable.run(TOKENS, strange)
    with pytest.raises(OptionError, match="activations"):
        NativeProgram(program, "int4")
    assert all(cache.lengths.tolist() == [23, 23] for cache in caches)


def test_an_interrupted_prompt_changes_no_cache(program, monkeypatch):
    monkeypatch.setattr(native, "_MAX_ROWS", 64)
    executable, caches = NativeProgram(program), caches_for(program)
    executable.run(LONG[:, :70], caches)
    chunks = native._chunks

    def interrupted(*given):
        yield next(chunks(*given))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(native, "_chunks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executable.run(LONG[:, 70:], caches)
    assert all(cache.lengths.tolist() == [70, 70] for cache in caches)
    close(executable.run(LONG[:, 70:], caches), wanted_logits(program, LONG)[:, -1], tolerance=TOLERANCE)


def test_weights_that_are_nan_are_not_hidden(program):
    norm = dataclasses.replace(program.norm, weight=torch.full_like(program.norm.weight, torch.nan))
    executable = NativeProgram(dataclasses.replace(program, norm=norm))
    assert executable.run(TOKENS, caches_for(program)).isnan().all()
