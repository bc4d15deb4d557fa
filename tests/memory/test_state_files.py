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
