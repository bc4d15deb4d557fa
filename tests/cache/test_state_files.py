"""Files of states that say too little."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import qkv
from qkv.errors import OptionError

ELU = qkv.FeatureMap(qkv.features.elu1)


@pytest.mark.parametrize("name", ["dtype", "batch", "similarity", "version"])
def test_a_state_that_does_not_say_what_it_is_is_refused(tmp_path, name):
    path = tmp_path / "state"
    state = qkv.LinearState(ELU, 2, 3, 5)
    for _ in range(2):
        state.save(path)
        with safe_open(path, framework="pt") as file:
            about, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert qkv.LinearState.load(path, ELU).lengths.equal(state.lengths)
        save_file(tensors, path, {key: text for key, text in about.items() if key != name})
        with pytest.raises(OptionError):
            qkv.LinearState.load(path, ELU)
        state.append(torch.ones(2, 3, 7, 5), torch.ones(2, 3, 7, 5))


def changed(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def test_more_rows_than_lengths_take_no_memory(tmp_path):
    path = tmp_path / "state"
    qkv.LinearState(ELU, 2, 3, 5).save(path)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    changed(path, b'"batch":"2"', b'"batch":"999999999999999999"')
    path.write_bytes((size + 17).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(OptionError, match="not as many lengths"):
        qkv.LinearState.load(path, ELU)
