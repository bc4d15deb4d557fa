"""Configurations that are broken in every way that somebody thought of who had not read the reader."""

import json
import math
import time

import pytest

from qkv.cost import plan, read_config
from qkv.errors import QkvError

# Every size another: 5 layers, 6 heads of 11 on 3 heads of keys.
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 66,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 71,
    "vocab_size": 101,
    "max_position_embeddings": 97,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
LLAMA_PARAMETERS = 2 * 101 * 66 + 66 + 5 * (2 * 66 * 66 + 2 * 66 * 33 + 3 * 66 * 71 + 2 * 66)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text.strip()
    assert "\n" not in text.strip(), text
    assert "Traceback" not in text
    return text


def written(tmp_path, content, name="config.json") -> str:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")
    return str(path)


def test_a_config_is_read(tmp_path):
    path = written(tmp_path, json.dumps(LLAMA))
    model = read_config(path)
    assert model.parameters == LLAMA_PARAMETERS
    assert model.cache_numbers == 2 * 5 * 3 * 11
    assert read_config(str(tmp_path)).parameters == LLAMA_PARAMETERS
    assert plan(path, "h100-sxm", context=31).weight_bytes == 2 * LLAMA_PARAMETERS


@pytest.mark.parametrize(
    ("change", "parameters"),
    [
        ({"head_dim": None}, LLAMA_PARAMETERS),
        ({"pretraining_tp": 1, "auto_map": {"AutoModel": "evil.Code"}, "rope_scaling": None}, LLAMA_PARAMETERS),
        ({"tie_word_embeddings": True}, LLAMA_PARAMETERS - 101 * 66),
        # Heads wider than d_model / heads: queries and output of 6·13, keys and values of 3·13.
        ({"head_dim": 13}, LLAMA_PARAMETERS + 5 * (2 * 66 * (78 - 66) + 2 * 66 * (39 - 33))),
        ({"num_key_value_heads": None}, LLAMA_PARAMETERS + 5 * 2 * 66 * 33),
    ],
)
def test_what_configs_leave_open_is_understood(tmp_path, change, parameters):
    assert read_config(written(tmp_path, json.dumps(LLAMA | change))).parameters == parameters


BROKEN = {
    "no width": ({"hidden_size": ...}, "hidden_size"),
    "no layers": ({"num_hidden_layers": ...}, "num_hidden_layers"),
    "no heads": ({"num_attention_heads": ...}, "num_attention_heads"),
    "heads do not divide the width": ({"num_attention_heads": 7, "num_key_value_heads": 7}, "7"),
    "heads of keys do not divide": ({"num_key_value_heads": 4}, "4"),
    "more heads of keys": ({"num_key_value_heads": 12}, "12"),
    "no head of keys": ({"num_key_value_heads": 0}, "num_key_value_heads"),
    "negative width": ({"hidden_size": -66}, "hidden_size"),
    "zero width": ({"hidden_size": 0}, "hidden_size"),
    "width in words": ({"hidden_size": "66"}, "hidden_size"),
    "width null": ({"hidden_size": None}, "hidden_size"),
    "width a fraction": ({"hidden_size": 66.5}, "hidden_size"),
    "width a list": ({"hidden_size": [66]}, "hidden_size"),
    "layers true": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "layers an object": ({"num_hidden_layers": {}}, "num_hidden_layers"),
    "layers not a number": ({"num_hidden_layers": math.nan}, "num_hidden_layers"),
    "layers infinite": ({"num_hidden_layers": math.inf}, "num_hidden_layers"),
    "layers beyond counting": ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
    "negative vocabulary": ({"vocab_size": -1}, "vocab_size"),
    "feed-forward of nothing": ({"intermediate_size": -71}, "intermediate_size"),
    "head of nothing": ({"head_dim": -11}, "head_dim"),
    "head in words": ({"head_dim": "11"}, "head_dim"),
    "no architecture": ({"model_type": ...}, "model_type"),
    "architecture of tomorrow": ({"model_type": "mamba9"}, "mamba9"),
    "architecture a list": ({"model_type": ["llama"]}, "model_type"),
    "architecture null": ({"model_type": None}, "model_type"),
    "architecture a list around a text model": ({"model_type": ["llava"], "text_config": LLAMA}, "model_type"),
    "text model a list": ({"model_type": "llava", "text_config": [LLAMA]}, ""),
    "window negative": ({"model_type": "mistral", "sliding_window": -4}, "sliding_window"),
    "window in words": ({"model_type": "mistral", "sliding_window": "4096"}, "sliding_window"),
    "more experts used than there are": (
        {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
        "3",
    ),
    "no experts": ({"model_type": "mixtral", "num_local_experts": -2, "num_experts_per_tok": 1}, "experts"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_config_is_refused_by_the_field_that_is_wrong(tmp_path, case):
    change, said = BROKEN[case]
    config = {key: value for key, value in (LLAMA | change).items() if value is not ...}
    with pytest.raises(QkvError) as caught:
        read_config(written(tmp_path, json.dumps(config)))
    assert said in one_line(caught.value)


def test_an_architecture_that_is_not_covered_says_which_are_and_what_to_do(tmp_path):
    with pytest.raises(QkvError) as caught:
        read_config(written(tmp_path, json.dumps(LLAMA | {"model_type": "mamba9"})))
    assert all(word in str(caught.value) for word in ("mamba9", "llama", "gpt2", "--layers"))


FILES = {
    "empty": b"",
    "words": b"hello, world",
    "cut short": json.dumps(LLAMA).encode()[:40],
    "a list": b"[1, 2, 3]",
    "a number": b"17",
    "null": b"null",
    "two values": b"{} {}",
    "bytes": bytes(range(256)) * 3,
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
    "a comment": b"// sizes\n{}",
    "nested without end": b"[" * 100_000,
    "objects without end": b'{"a":' * 100_000,
    "a number of ten thousand digits": json.dumps(LLAMA).encode().replace(b"66", b"6" * 10_000),
    "an empty object": b"{}",
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_config_is_refused(tmp_path, case):
    with pytest.raises(QkvError) as caught:
        read_config(written(tmp_path, FILES[case]))
    assert len(one_line(caught.value)) < 1000


def test_paths_that_lead_nowhere(tmp_path):
    huge = tmp_path / "huge.json"
    with open(huge, "wb") as file:
        file.truncate(2**31)
    (tmp_path / "folder").mkdir()
    start = time.perf_counter()
    for path in (tmp_path / "missing.json", tmp_path / "folder", huge, "", "a\0b"):
        with pytest.raises(QkvError) as caught:
            read_config(path if isinstance(path, str) else str(path))
        one_line(caught.value)
    assert time.perf_counter() - start < 2
