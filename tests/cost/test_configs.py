"""config.json of every supported architecture: the number of parameters in transformers; clear errors for others."""

import json
import math
import time

import pytest

from qkv.cost import config_model, plan, read_config
from qkv.cost.configs import FAMILIES_FILE, MAX_CONFIG_BYTES, model_of
from qkv.cost.lookup import read_data
from qkv.errors import OptionError, OptionTypeError, QkvError

LLAMA = {
    "hidden_size": 84, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 53, "vocab_size": 131, "max_position_embeddings": 97, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GPT = {
    "n_embd": 84,
    "n_layer": 5,
    "n_head": 6,
    "vocab_size": 131,
    "n_positions": 97,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {"d_model": 84, "num_layers": 5, "num_heads": 6, "d_kv": 11, "d_ff": 53, "vocab_size": 131}
FALCON = {"hidden_size": 84, "num_hidden_layers": 5, "num_attention_heads": 6, "vocab_size": 131}
WINDOW = {"sliding_window": 17}
MOE = {"num_experts": 7, "num_experts_per_tok": 3}
DEEPSEEK = {
    **LLAMA, "num_key_value_heads": 6, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 19,
    "n_shared_experts": 2, "first_k_dense_replace": 2, "kv_lora_rank": 23, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 11, "v_head_dim": 13, "n_group": 1, "topk_group": 1,
}  # fmt: skip
SMALL = {
    "bert": [LLAMA],
    "bloom": [{"hidden_size": 84, "n_layer": 5, "n_head": 6, "vocab_size": 131}],
    "deepseek_v2": [{**DEEPSEEK, "q_lora_rank": 29}, {**DEEPSEEK, "q_lora_rank": None}],
    "deepseek_v3": [{**DEEPSEEK, "q_lora_rank": 29, "attention_bias": True}],
    "distilbert": [{"dim": 84, "n_layers": 5, "n_heads": 6, "hidden_dim": 53, "vocab_size": 131}],
    "falcon": [
        {**FALCON, "multi_query": True},
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 3, "bias": True},
        {**FALCON, "multi_query": False, "parallel_attn": False, "alibi": True, "ffn_hidden_size": 53},
    ],
    "gemma": [{**LLAMA, "head_dim": 22}],
    "gemma2": [{**LLAMA, "head_dim": 22, **WINDOW}],
    "gemma3_text": [{**LLAMA, "head_dim": 22, **WINDOW}],
    "gpt2": [GPT, {**GPT, "n_inner": 53}],
    "gpt_neox": [LLAMA],
    "gpt_oss": [{**LLAMA, **WINDOW, "head_dim": 22, "num_local_experts": 7, "num_experts_per_tok": 3}],
    "gptj": [{**GPT, "rotary_dim": 6}],
    "granite": [LLAMA],
    "llama": [LLAMA, {**LLAMA, "head_dim": 22, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}],
    "mistral": [{**LLAMA, **WINDOW}, {**LLAMA, "sliding_window": None, "head_dim": 22}],
    "mixtral": [{**LLAMA, "num_local_experts": 7, "num_experts_per_tok": 2}],
    "olmo": [LLAMA],
    "olmo2": [LLAMA],
    "olmoe": [{**LLAMA, **MOE}],
    "opt": [{**LLAMA, "ffn_dim": 53, "word_embed_proj_dim": 84}],
    "phi": [LLAMA],
    "phi3": [{**LLAMA, **WINDOW}],
    "qwen2": [LLAMA, {**LLAMA, "use_sliding_window": True, "max_window_layers": 2, **WINDOW}],
    "qwen2_moe": [
        {**LLAMA, **MOE, "moe_intermediate_size": 19, "shared_expert_intermediate_size": 57, "mlp_only_layers": [0]}
    ],
    "qwen3": [{**LLAMA, "head_dim": 22}],
    "qwen3_moe": [{**LLAMA, **MOE, "moe_intermediate_size": 19}],
    "roberta": [LLAMA],
    "smollm3": [LLAMA],
    "starcoder2": [{**LLAMA, **WINDOW}, {**LLAMA, "use_bias": False}],
    "t5": [{**T5, "num_decoder_layers": 3}, {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}],
    "xlm-roberta": [LLAMA],
}
CASES = [(kind, at) for kind, configs in SMALL.items() for at in range(len(configs))]


def test_every_family_is_compared_with_transformers():
    assert set(SMALL) == set(read_data(FAMILIES_FILE))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "at"), CASES)
def test_parameters_are_those_of_the_real_architecture(kind, at, tmp_path):
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(kind, **SMALL[kind][at])
    encoders = {"bert", "roberta", "xlm-roberta", "distilbert"}
    makes = transformers.AutoModel if kind in encoders else transformers.AutoModelForCausalLM
    makes = transformers.AutoModelForSeq2SeqLM if kind == "t5" else makes
    with torch.device("meta"):
        built = makes.from_config(config)
    config.save_pretrained(tmp_path)
    if not (tmp_path / "config.json").exists():
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    ours = read_config(tmp_path)
    assert ours.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert ours.name == tmp_path.name
    kinds = getattr(config, "layer_types", None) or []
    if ours.window is not None and kinds:
        assert ours.window_layers == kinds.count("sliding_attention")


def write(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_files_and_folders_are_read(tmp_path):
    path = write(tmp_path, {"model_type": "llama", **LLAMA})
    assert read_config(path) == read_config(str(path)) == read_config(tmp_path)
    assert read_config(path).kv_heads == 3


def test_the_text_part_of_a_model_with_pictures(tmp_path):
    """What gemma-3-4b's config leaves out is as transformers has it."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    model = read_config(write(tmp_path, {"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}}))
    assert model.parameters == 3880263168
    assert (model.window, model.window_layers) == (1024, 29)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[1]", "object"),
        ("null", "object"),
        ("[" * 10**5, "JSON"),
        ("{}", "model_type"),
        ({"model_type": 7}, "model_type"),
        ({"model_type": "mamba"}, "'mamba'.*llama.*--layers"),
        ({"model_type": "mamba2", "time_step_rank": 8}, "'mamba2', with layers of linear attention"),
        ({"model_type": "qwen3_next", **LLAMA, "linear_num_key_heads": 2}, "'qwen3_next', with layers of linear"),
        (
            {"model_type": "qwen3_5", "text_config": {**LLAMA, "linear_conv_kernel_dim": 4}},
            "qwen3_5_text', with",
        ),
        ({"model_type": "llama", **LLAMA, "layer_types": ["linear_attention"] * 5}, "softmax attention in all layers"),
        ({"model_type": "llama"}, "hidden_size.*nothing"),
        ({"model_type": "opt", **LLAMA, "ffn_dim": 53, "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ({"model_type": "mixtral", **LLAMA, "num_local_experts": 2, "num_experts_per_tok": 3}, "experts_active"),
        ({"model_type": "llama", **LLAMA, "num_key_value_heads": 4}, "divides"),
        ({"model_type": "llama", **LLAMA, "hidden_size": 85}, "divides"),
        ({"model_type": "gemma2", **LLAMA, "layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_invalid_files_are_refused(tmp_path, content, words):
    with pytest.raises(OptionError, match=f"(?s){words}"):
        read_config(write(tmp_path, content))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
        for value in (0, -1, 1.5, "84", True, [84], {"a": 1}, 2**63, 1e400)
    ],
)
def test_invalid_fields_are_refused(tmp_path, name, value):
    with pytest.raises(OptionError, match=name):
        read_config(write(tmp_path, {"model_type": "llama", **LLAMA, name: value}))


def test_flags_are_true_or_false():
    with pytest.raises(OptionError, match="attention_bias"):
        model_of({"model_type": "llama", **LLAMA, "attention_bias": "no"}, "x")


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing.json", "/dev/null", "a\0b.json", "x" * 5000 + ".json"):
        with pytest.raises(QkvError):
            read_config(path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(OptionError, match="JSON"):
        read_config(binary)


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(OptionError, match="bytes"):
        read_config(path)


def test_a_text_is_read_as_its_file_is(tmp_path):
    config = {"model_type": "llama", **LLAMA}
    path = write(tmp_path, config)
    of_file, text = read_config(path), path.read_text(encoding="utf-8")
    for given in (text, text.encode(), "\ufeff" + text):
        assert config_model(given, of_file.name) == of_file
    for given, error in (
        ("{", OptionError),
        ("[" * 100_000, OptionError),
        ("7", OptionTypeError),
        (7, OptionTypeError),
    ):
        with pytest.raises(error, match="config"):
            config_model(given)


def test_an_object_is_wanted(tmp_path):
    with pytest.raises(OptionTypeError, match="object"):
        read_config(write(tmp_path, '"llama"'))


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
    change, words = BROKEN[case]
    config = {key: value for key, value in (LLAMA | change).items() if value is not ...}
    with pytest.raises(QkvError) as caught:
        read_config(written(tmp_path, json.dumps(config)))
    assert words in one_line(caught.value)


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
