"""Presets: their totals are the published ones, and transformers builds models of the same size."""

import json

import pytest

from qkv.cost import models
from qkv.cost.architecture import as_model, is_path, model_named
from qkv.cost.lookup import _normalized
from qkv.errors import OptionError, OptionTypeError

# Parameters of the checkpoints, as their files list them.
CHECKPOINTS = {
    "gpt-2": 124439808, "gpt-2-medium": 354823168, "gpt-2-large": 774030080, "gpt-2-xl": 1557611200,
    "bert-base": 109482240, "bert-large": 335141888, "roberta-base": 124645632, "roberta-large": 355359744,
    "minilm-l6": 22713216, "t5-small": 60506624, "t5-base": 222903552, "t5-large": 737668096, "t5-3b": 2851598336,
    "t5-11b": 11307321344, "flan-t5-small": 76961152, "flan-t5-base": 247577856, "flan-t5-large": 783150080,
    "flan-t5-xl": 2849757184, "flan-t5-xxl": 11135332352, "llama-7b": 6738415616, "llama-13b": 13015864320,
    "llama-33b": 32528943616, "llama-65b": 65285660672, "llama-2-7b": 6738415616, "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192, "llama-3-8b": 8030261248, "llama-3-70b": 70553706496, "llama-3.1-8b": 8030261248,
    "llama-3.1-70b": 70553706496, "llama-3.3-70b": 70553706496, "llama-3.1-405b": 405853388800,
    "llama-3.2-1b": 1235814400, "llama-3.2-3b": 3212749824, "mistral-7b": 7241732096, "mixtral-8x7b": 46702792704,
    "mistral-nemo-12b": 12247782400, "mistral-small-24b": 23572403200, "mixtral-8x22b": 140620634112,
    "gemma-2b": 2506172416, "gemma-7b": 8537680896, "gemma-2-2b": 2614341888, "gemma-2-9b": 9241705984,
    "gemma-2-27b": 27227128320, "gemma-3-270m": 268098176, "gemma-3-1b": 999885952, "gemma-3-4b": 3880263168,
    "gemma-3-12b": 11766034176, "gemma-3-27b": 27009346304, "qwen2-7b": 7615616512, "qwen2.5-0.5b": 494032768,
    "qwen2.5-1.5b": 1543714304, "qwen2.5-3b": 3085938688, "qwen2.5-7b": 7615616512, "qwen2.5-14b": 14770033664,
    "qwen2.5-32b": 32763876352, "qwen2.5-72b": 72706203648, "qwen3-0.6b": 596049920, "qwen3-1.7b": 1720574976,
    "qwen3-4b": 4022468096, "qwen3-8b": 8190735360, "qwen3-14b": 14768307200, "qwen3-32b": 32762123264,
    "qwen3-30b-a3b": 30532122624, "qwen3-235b-a22b": 235093634560, "phi-2": 2779683840, "phi-1.5": 1418270720,
    "phi-3-mini": 3821079552, "phi-3-medium": 13960238080, "phi-4": 14659507200, "smollm2-135m": 134515008,
    "smollm2-360m": 361821120, "smollm2-1.7b": 1711376384, "smollm3-3b": 3075098624, "tinyllama-1.1b": 1100048384,
    "pythia-70m": 70426624, "pythia-160m": 162322944, "pythia-410m": 405334016, "pythia-1b": 1011781632,
    "pythia-1.4b": 1414647808, "pythia-2.8b": 2775208960, "pythia-6.9b": 6857302016, "pythia-12b": 11846072320,
    "deepseek-v2": 235741434880, "deepseek-v2-lite": 15706484224, "deepseek-v3": 671026404352,
    "falcon-7b": 6921720704, "falcon-40b": 41303293952, "opt-125m": 125239296, "opt-1.3b": 1315758080,
    "opt-2.7b": 2651596800, "opt-6.7b": 6658473984, "opt-13b": 12853473280, "opt-30b": 29974540288,
    "bloom-560m": 559214592, "bloom-7b1": 7069016064, "bloom-176b": 176247271424, "bloom-1b1": 1065314304,
    "bloom-1b7": 1722408960, "bloom-3b": 3002557440, "olmo-1b": 1176764416, "olmo-7b": 6888095744,
    "olmo-2-7b": 7298617344, "olmo-2-13b": 13716198400, "starcoder2-3b": 3030371328, "starcoder2-7b": 7173923840,
    "starcoder2-15b": 15957889024, "gpt-j-6b": 6050882784, "gpt-neox-20b": 20554567680, "yi-6b": 6061035520,
    "yi-34b": 34388917248, "gpt-oss-20b": 20914757184, "gpt-oss-120b": 116829156672,
}  # fmt: skip
# Millions that papers give.
PAPERS = {
    "gpt-3-125m": 125, "gpt-3-350m": 356, "gpt-3-760m": 760, "gpt-3-1.3b": 1320, "gpt-3-2.7b": 2650,
    "gpt-3-6.7b": 6660, "gpt-3-13b": 12850, "gpt-3-175b": 174600, "opt-66b": 66000, "deepseek-r1": 671000,
    "bert-base": 110, "bert-large": 340, "t5-11b": 11300, "mixtral-8x7b": 47000, "llama-65b": 65200,
}  # fmt: skip
# Billions that a token meets.
ACTIVE = {
    "mixtral-8x7b": 12.9, "deepseek-v2": 21, "deepseek-v3": 37, "qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22,
    "gpt-oss-20b": 3.6, "gpt-oss-120b": 5.1,
}  # fmt: skip
# Presets whose sizes are also what transformers takes where a config says nothing.
USUAL = {
    "bert-base": "bert", "deepseek-v3": "deepseek_v3", "falcon-7b": "falcon", "gemma-7b": "gemma",
    "gemma-2-2b": "gemma2", "gpt-2": "gpt2", "gpt-neox-20b": "gpt_neox", "gpt-oss-120b": "gpt_oss", "gpt-j-6b": "gptj",
    "llama-7b": "llama", "mistral-7b": "mistral", "mixtral-8x7b": "mixtral", "olmo-7b": "olmo", "opt-125m": "opt",
    "phi-1.5": "phi", "phi-3-mini": "phi3", "smollm3-3b": "smollm3", "starcoder2-3b": "starcoder2", "t5-small": "t5",
}  # fmt: skip


def test_every_preset_names_its_source_and_has_a_published_total():
    known = models()
    assert len(known) > 100
    assert all(model.source and model.context for model in known.values())
    assert set(known) == {*CHECKPOINTS, *PAPERS}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parameters_of_checkpoints(name):
    assert models()[name].parameters == CHECKPOINTS[name]


@pytest.mark.parametrize("name", PAPERS)
def test_parameters_that_papers_give(name):
    assert models()[name].parameters == pytest.approx(PAPERS[name] * 1e6, rel=0.02)


@pytest.mark.parametrize("name", ACTIVE)
def test_parameters_that_a_token_meets(name):
    model = models()[name]
    # Cards differ in whether the embedding, of which a token meets one row, is counted.
    low = model.active_parameters - model.vocabulary * model.d_model
    assert 0.97 * low <= ACTIVE[name] * 1e9 <= 1.03 * model.active_parameters


@pytest.mark.parametrize("name", USUAL)
def test_transformers_builds_models_of_the_same_size(name):
    import torch
    import transformers

    from qkv.cost.configs import model_of

    config = transformers.AutoConfig.for_model(USUAL[name])
    kinds = {"bert": transformers.AutoModel, "t5": transformers.AutoModelForSeq2SeqLM}
    with torch.device("meta"):
        built = kinds.get(USUAL[name], transformers.AutoModelForCausalLM).from_config(config)
    ours = models()[name]
    assert sum(parameter.numel() for parameter in built.parameters()) == ours.parameters
    read = model_of(json.loads(json.dumps(config.to_dict(), default=str)), name)
    assert read.parameters == ours.parameters
    assert read.cache_numbers == ours.cache_numbers


# Bytes of a token's cache in 16 bits.
CACHES = {
    "llama-2-7b": 524288, "llama-2-70b": 327680, "llama-3-8b": 131072, "llama-3.1-405b": 516096, "mistral-7b": 131072,
    "falcon-7b": 8192, "gpt-3-175b": 4718592, "deepseek-v3": 70272, "qwen2.5-7b": 57344, "gpt-2": 36864,
    "bert-base": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", CACHES)
def test_cache_of_a_token(name):
    assert models()[name].cache_bytes(1) == CACHES[name]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Llama 3 8B", "llama-3-8b"),
        ("meta-llama/Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("GPT2", "gpt-2"),
        ("gpt2-xl", "gpt-2-xl"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("falcon_40b", "falcon-40b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("tinyllama", "tinyllama-1.1b"),
    ],
)
def test_names_as_people_type_them(typed, meant):
    assert model_named(typed).name == meant


def test_no_two_names_read_alike():
    names = [_normalized(name) for name in models()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("typed", "near"), [("lama-3-8b", "llama-3-8b"), ("gpt-5", "gpt-"), ("llama", "llama-2-")])
def test_unknown_names_are_answered_with_the_nearest(typed, near):
    with pytest.raises(OptionError, match="nearest") as caught:
        model_named(typed)
    assert near in str(caught.value)
    assert "--list" in str(caught.value)


def test_what_is_no_model_is_refused():
    for given in ("", "???", "x" * 10**5):
        with pytest.raises(OptionError):
            as_model(given)
    with pytest.raises(OptionTypeError, match=r"qkv\.cost\.Model"):
        as_model(7)
    assert as_model(models()["gpt-2"]) is models()["gpt-2"]


def test_paths_are_told_from_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt-2").mkdir()
    (tmp_path / "mine").mkdir()
    assert not is_path("gpt-2")
    assert not is_path("meta-llama/Llama-3-8B")
    assert all(map(is_path, ("./gpt-2", "mine", "config.json", str(tmp_path))))
