"""Policies in a whole model: native steps against the reference, layers with windows, `generate`, what is refused."""

import pytest
import torch

import qkv
from qkv import ops
from qkv.cache import FirstLast, HeavyHitters, SnapKV
from qkv.errors import BackendRefused, OptionError, OptionTypeError
from qkv.runtime import reference
from qkv.runtime.architectures import read_program
from qkv.runtime.files import open_source
from qkv.runtime.native import NativeProgram
from tests.helpers.hf_harness import close
from tests.helpers.runtime_files import ALL, build, write_folder, write_gguf

pytestmark = pytest.mark.skipif(not ops.available(), reason=str(ops.reasons()))
TOKENS = torch.randint(3, 101, (2, 170), generator=torch.Generator().manual_seed(6))
LENGTHS = torch.tensor([150, 93])
POLICIES = {
    "ring": FirstLast(4, 60),
    "first and last": FirstLast(4, 36, every=20, positions="renumbered"),
    "heavy": HeavyHitters(20, 20, every=16),
    "renumbered": HeavyHitters(20, 20, positions="renumbered"),
    "snapkv": SnapKV(50, observe=9),
}


@pytest.fixture(scope="module", params=ALL)
def program(request, tmp_path_factory):
    return read_program(open_source(write_folder(build(request.param), tmp_path_factory.mktemp(request.param))))


def logits_and_caches(run, program, policy):
    """A ragged prompt in two calls, what evicts after it, then steps."""
    caches = reference.new_caches(program, 2, torch.float32, None, policy)
    parts = [run(TOKENS[:, :80], caches, every=True), run(TOKENS[:, 80:150], caches, lengths=LENGTHS - 80)]
    for cache in caches:
        if cache.evicts_after_prompt:
            cache.evict()
    parts += [run(TOKENS[:, at : at + 1], caches) for at in range(150, 170)]
    return [part.flatten(0, -2) for part in parts], caches


@pytest.mark.parametrize("name", POLICIES)
def test_native_steps_are_those_of_the_reference(program, name):
    policy = POLICIES[name]
    if policy.positions == "renumbered" and program.positions is not None:
        with pytest.raises(OptionError, match="learned positions"):
            reference.new_caches(program, 2, torch.float32, None, policy)
        return
    native, cached = logits_and_caches(NativeProgram(program).run, program, policy)
    wanted, others = logits_and_caches(lambda *given, **more: reference.run(program, *given, **more), program, policy)
    close(torch.cat(native), torch.cat(wanted), tolerance=2e-5, what=name)
    for layer, one, other in zip(program.layers, cached, others, strict=True):
        assert one.lengths.tolist() == [170, 113]
        assert torch.equal(one.positions(), other.positions())
        if layer.attention.window is not None:
            assert (one.window, one.sinks, one.eviction) == (layer.attention.window, 0, None)
        elif name == "ring":
            assert (one.window, one.sinks) == (60, 4)
        else:
            assert one.stored.max() < 113
            if policy.uses_importance:
                torch.testing.assert_close(one.importance(), other.importance(), rtol=1e-3, atol=1e-3)


def test_a_policy_that_keeps_everything_changes_nothing(program):
    run = NativeProgram(program).run
    plain, _ = logits_and_caches(run, program, None)
    found, _ = logits_and_caches(run, program, HeavyHitters(100, 100))
    assert torch.equal(torch.cat(found), torch.cat(plain))


def test_generate_and_what_is_refused(tmp_path):
    path = write_folder(build("llama"), tmp_path)
    model = qkv.runtime.load(path)
    prompt = TOKENS[0, :120].tolist()
    cache = model.cache(1, eviction=SnapKV(40, observe=8))
    found = model.generate(prompt, 9, cache=cache)
    assert cache.layers[0].stored.tolist() == [48]
    assert cache.length == 128
    assert cache.nbytes < model.cache(1, capacity=128).nbytes
    fork = cache.fork()
    model.step(prompt[:3], fork)
    fork.crop(128)
    with pytest.raises(OptionError, match="at least 120"):
        fork.crop(119)
    fork.evict(FirstLast(2, 6))
    assert (fork.layers[0].stored.tolist(), cache.layers[0].stored.tolist()) == ([8], [48])
    # What the prompt's last token said is said before the eviction.
    assert found.tokens[0] == model.generate(prompt, 1).tokens[0]
    with pytest.raises(OptionTypeError, match="a policy of qkv"):
        model.cache(1, eviction="h2o")
    file = write_gguf(build("llama"), tmp_path / "model.gguf", vocabulary=True)
    outside = qkv.runtime.load(file, backend="transformers")
    with pytest.raises(BackendRefused, match="runs in transformers"):
        outside.cache(1, eviction=FirstLast(2, 6))
    other = reference.new_caches(model.program, 1, torch.float32, None)
    windowed = [qkv.KVCache(1, each.heads, each.width, window=9) for each in other]
    assert NativeProgram(model.program).run(TOKENS[:1, :9], windowed).shape == (1, 101)
