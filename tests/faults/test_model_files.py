"""Damaged files of every kind that qkv reads: caches, models, checkpoints of transformers."""

import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

import qkv
from benchmarks.trust.damage import DAMAGE
from qkv import errors
from tests.helpers.small_checkpoint import write

IT = "it.safetensors"
SIMILARITY = qkv.Polynomial(degree=2)


def tokens(n=70):
    return torch.ones(2, 3, n, 7), torch.ones(2, 3, n, 5)


def save_cache(folder):
    cache = qkv.KVCache(2, 3, 7, value_width=5)
    cache.append(*tokens())
    cache.save(folder / IT)


def save_state(folder):
    cache = qkv.LinearState(SIMILARITY, 2, 3, 7, value_width=5)
    cache.append(*tokens())
    cache.save(folder / IT)


def save_model(folder):
    torch.manual_seed(0)
    qkv.nn.save(qkv.nn.Decoder(12, heads=3, layers=2, vocabulary=31), folder / IT)


KINDS = {
    "KVCache": (IT, save_cache, lambda folder: qkv.KVCache.load(folder / IT)),
    "LinearState": (IT, save_state, lambda folder: qkv.LinearState.load(folder / IT, SIMILARITY)),
    "qkv.nn": (IT, save_model, lambda folder: qkv.nn.load(folder / IT)),
    "qkv.hf": ("model.safetensors", write, lambda folder: qkv.hf.load(folder)),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    """(name, file, a folder with a sound one, how it is read)."""
    name = request.param
    file, save, load = KINDS[name]
    folder = tmp_path_factory.mktemp("whole") / "it"
    folder.mkdir()
    save(folder)
    load(folder)
    return name, file, folder, load


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_row_49_damage_of_every_kind_is_refused(kind, damage, tmp_path):
    name, file, whole, load = kind
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    DAMAGE[damage](folder / file)
    if damage == "NaN in the weights" and name in ("KVCache", "LinearState"):
        load(folder)  # a cache may contain NaN: its tokens are the caller's data
        return
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    # A link that leads to no file is a file that cannot be read.
    with pytest.raises((errors.OptionError, OSError)) as caught:
        load(folder)
    assert isinstance(caught.value, errors.OptionError) or "link" in damage, repr(caught.value)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # in kB


def test_row_49_a_model_that_diverged_is_not_saved(tmp_path):
    model = qkv.nn.Attention(12, heads=3)
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    with pytest.raises(errors.OptionError, match="NaN in"):
        qkv.nn.save(model, tmp_path / IT)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork")  # of Python 3.12: the child only saves
def test_row_49_a_power_cut_while_saving(tmp_path):
    """A child saves two models in turn and is killed in the middle: the file is one of them, whole."""
    torch.manual_seed(0)
    models = [qkv.nn.Decoder(64, heads=4, layers=2, vocabulary=31).eval() for _ in range(2)]
    qkv.nn.save(models[0], tmp_path / IT)
    sums = [[parameter.double().sum().item() for parameter in model.parameters()] for model in models]
    for turn in range(10):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    for model in models:
                        qkv.nn.save(model, tmp_path / IT)
            finally:
                os._exit(1)
        time.sleep(0.05 + 0.013 * turn)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        found = qkv.nn.load(tmp_path / IT)
        assert [parameter.double().sum().item() for parameter in found.parameters()] in sums
