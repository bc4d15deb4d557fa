"""Files that are damaged at random: a model or one line of a qkv error, and memory within bounds."""

import os
import random
import signal
import subprocess
import sys

import pytest
import torch

import qkv
from qkv.errors import QkvError
from tests.helpers.runtime_files import build, write_folder, write_gguf

MUTATIONS = 300
HEADER = 6000  # bytes: what describes the tensors, not the numbers of the tensors


def mutated(data: bytes, seed: int) -> bytes:
    """Some bytes replaced, inserted or removed, mostly of the header; or the end cut off."""
    draw, changed = random.Random(seed), bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(min(len(changed), HEADER if draw.random() < 0.9 else len(changed)))
        kind = draw.randrange(5)
        if kind == 0:
            changed[at] = draw.randrange(256)
        elif kind == 1:
            changed[at : at + 8] = draw.choice((0, 1, 2**31, 2**62, 2**64 - 1)).to_bytes(8, "little")
        elif kind == 2:
            del changed[at : at + draw.randrange(1, 40)]
        elif kind == 3:
            changed[at:at] = changed[at : at + draw.randrange(1, 40)]
        else:
            changed = changed[: max(at, 30)]
    return bytes(changed)


def attempt(path) -> str:
    """What becomes of a file: "runs", or the message of an error."""
    try:
        model = qkv.runtime.load(path, backend="native")
        model.step([3, 4], model.cache())
        model.generate([3, 4], 2)
    except QkvError as error:
        return str(error)
    return "runs"


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_mutated_files(kind, tmp_path):
    model = build("llama", num_hidden_layers=1, attention_bias=False, mlp_bias=False)
    if kind == "gguf":
        opened = file = write_gguf(model, tmp_path / "model.gguf", quantized="q4_1", vocabulary=True)
    else:
        opened = write_folder(model, tmp_path / "model")
        file = opened / "model.safetensors"
    data, outcomes = file.read_bytes(), set()
    assert attempt(opened) == "runs"
    for seed in range(MUTATIONS):
        file.unlink()
        file.write_bytes(mutated(data, seed))
        said = attempt(opened)
        assert "\n" not in said, seed
        outcomes.add(said)
    assert len(outcomes) > 20, "mutations reach different checks"


LIMIT = 128  # MiB more addresses than the process has before the first damaged file


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS and /proc")
def test_damaged_files_take_little_memory(tmp_path):
    """In a process that cannot get more: a size from the header that is allocated unchecked raises MemoryError."""
    model = build("llama", num_hidden_layers=1, attention_bias=False, mlp_bias=False)
    write_gguf(model, tmp_path / "model.gguf", quantized="q4_1", vocabulary=True)
    write_folder(model, tmp_path / "model")
    code = f"""
import resource
from pathlib import Path
from tests.runtime.test_hostile import LIMIT, MUTATIONS, attempt, mutated
for opened, file in (("model.gguf", "model.gguf"), ("model", "model/model.safetensors")):
    opened, file = Path({str(tmp_path)!r}) / opened, Path({str(tmp_path)!r}) / file
    data = file.read_bytes()
    assert attempt(opened) == "runs"
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (LIMIT << 20), resource.RLIM_INFINITY))
    for seed in range(MUTATIONS):
        file.unlink()
        file.write_bytes(mutated(data, seed))
        attempt(opened)
    try:
        bytearray((LIMIT + 64) << 20)
    except MemoryError:
        print("limited")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["limited", "limited"], done.stderr[-2000:]


def test_a_cache_that_no_memory_holds_is_refused(tmp_path):
    model = qkv.runtime.load(write_gguf(build("llama"), tmp_path / "model.gguf"))
    for capacity in (1 << 42, 1 << 61):
        with pytest.raises((MemoryError, QkvError)) as caught:
            model.cache(capacity=capacity)
        assert "\n" not in str(caught.value)
    assert model.step([3, 4], model.cache()).isfinite().all()


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"model_type": 7}', "[" * 100_000, '{"num_hidden_layers": 1e400}', "\x00"]
)
def test_foreign_configurations(text, tmp_path):
    folder = write_folder(build("llama"), tmp_path / "model")
    (folder / "config.json").write_text(text)
    said = attempt(folder)
    assert said != "runs"
    assert "\n" not in said


@pytest.mark.slow
def test_a_forked_process_can_run_the_model(tmp_path):
    path = write_gguf(build("llama"), tmp_path / "model.gguf")
    code = f"""
import os, torch, qkv
model = qkv.runtime.load({str(path)!r}, threads=2)
wanted = model.step([3, 4, 5], model.cache())
child = os.fork()
if child == 0:
    same = torch.equal(model.step([3, 4, 5], model.cache()), wanted)
    os._exit(0 if same else 3)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(model.step([3, 4, 5], model.cache()), wanted)
print("passed")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["passed"], done.stderr


def test_ctrl_c_inside_a_step_is_raised_after_it_and_layers_agree(tmp_path, monkeypatch):
    model = qkv.runtime.load(write_folder(build("gemma3"), tmp_path))
    cache, advance = model.cache(), qkv.KVCache.advance
    calls = []

    def interrupted(self, *given):
        calls.append(self)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, *given)

    monkeypatch.setattr(qkv.KVCache, "advance", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        model.step([3, 4], cache)
    assert signal.getsignal(signal.SIGINT) is handler
    assert len({layer.length for layer in cache.layers}) == 1
    monkeypatch.undo()
    cache.crop(0)
    assert torch.equal(model.step([3, 4], cache), model.step([3, 4], model.cache()))
