"""Tiny random models of the transformers architectures, made so that attention matters.

Default initialisation hides everything: scores near 0 make every softmax uniform, and a lost window, softcap or sink
changes no digit. Here weights are drawn anew from a generator that the parameter's name seeds: scores have a spread of
several units, norms are near 1, sinks and relative biases are of order 1, biases are not 0.

TABLE names each architecture once: how it is built, what its attention has, which calls it supports, and how often
one forward calls its attention. CHECKS are the columns of the matrix; `why_not` says why a cell is not applicable.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.helpers.tiny_hybrids import HYBRIDS

IMPLEMENTATION = "qkv"  # what is tested; "sdpa" tries the harness itself
TOLERANCE = 2e-5  # float32: the largest difference, relative to the largest |logit|

PAD, START, FIRST = 1, 2, 3  # token ids: padding, the decoder's first, the first of the ordinary ones
WINDOW = 5

CHECKS = (
    "forward",
    "pad left",
    "pad right",
    "default cache",
    "static cache",
    "qkv cache",
    "beams",
    "beams, qkv cache",
    "chunked prefill",
    "attentions",
    "served",
)
GENERATES = ("default cache", "static cache", "qkv cache", "beams", "beams, qkv cache", "chunked prefill")


@dataclass(frozen=True)
class Tiny:
    """One architecture. `layers` is how often one forward calls each class of attention, known from the config."""

    name: str
    kind: str  # encoder, decoder, encoder-decoder, vision, speech
    auto: str  # the Auto class
    config: Callable[[], Any]
    layers: dict[str, int]
    has: frozenset[str] = frozenset()  # of softcap, scale, window, bias, sink
    caches: int = 0  # layers of a cache
    beams: bool = True
    recurrent: str = (
        ""  # the class of its layers of linear attention; padding behind a prompt moves transformers' states
    )
    gain: float = 1.6  # of what makes queries and keys
    reasons: dict[str, str] = field(default_factory=dict)  # check -> why not

    @property
    def generates(self) -> bool:
        return self.caches > 0

    @property
    def weighted(self) -> dict[str, int]:
        """The layers that have weights."""
        return {kind: count for kind, count in self.layers.items() if kind != self.recurrent}

    def build(self, attn_implementation: str, config: Any = None) -> Any:
        config = deepcopy(config) if config is not None else self.config()
        model = getattr(transformers, self.auto).from_config(config, attn_implementation=attn_implementation)
        quiet(model)
        model.eval()
        return model


def why_not(tiny: Tiny, check: str) -> str | None:
    """Why a check is not applicable to an architecture; None where there is a test."""
    if check in tiny.reasons:
        return tiny.reasons[check]
    if check in GENERATES and not tiny.generates:
        return "it generates nothing: no cache, no beams"
    if "beams" in check and not tiny.beams:
        return "it has no beam search"
    if check.startswith("pad") and tiny.kind == "vision":
        return "images have no padding"
    return None


def names(check: str) -> list[str]:
    return [tiny.name for tiny in TABLE.values() if why_not(tiny, check) is None]


def quiet(model: Any) -> None:
    """Generation ends by length alone, and no default of an architecture interferes."""
    settings = getattr(model, "generation_config", None)
    if settings is None:
        return
    for key in (
        "eos_token_id",
        "forced_eos_token_id",
        "forced_bos_token_id",
        "suppress_tokens",
        "begin_suppress_tokens",
        "bad_words_ids",
        "max_length",
        "early_stopping",
        "no_repeat_ngram_size",
    ):
        if getattr(settings, key, None) is not None:
            setattr(settings, key, None)
    settings.pad_token_id, settings.bos_token_id = PAD, START
    settings.decoder_start_token_id = START
    settings.num_beams = 1
    settings.do_sample = False


# ---------------------------------------------------------------------------------------------------------- weights

QUERY_KEY = (
    "q_proj",
    "k_proj",
    "query",
    "key",
    "q_lin",
    "k_lin",
    "c_attn",
    "qkv_proj",
    "Wqkv",
    "query_key_value",
    "q_b_proj",
    "kv_b_proj",
)


def draw(model: nn.Module, gain: float) -> None:
    """Draw new weights, which depend on a parameter's name and shape only."""
    norms = {name for name, module in model.named_modules() if "norm" in type(module).__name__.lower()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator)
            owner, _, last = name.rpartition(".")
            parts = name.split(".")
            module = model.get_submodule(owner)
            queries = any(part in QUERY_KEY for part in parts) or (parts[-2:-1] in (["q"], ["k"]))
            if last == "sinks":
                parameter.copy_(noise + 0.5)
            elif "relative_attention_bias" in name:
                parameter.copy_(1.5 * noise)
            elif owner in norms and last == "weight":
                if any(part in ("q_norm", "k_norm", "query_norm", "key_norm") for part in parts):
                    parameter.mul_(1.5).add_(0.1 * noise)  # these set the spread where they stand
                else:
                    if "1P" in type(module).__name__:
                        parameter.zero_()
                    parameter.add_(0.1 * noise)  # 1 + 0.1 noise, or 0.1 noise where the norm itself adds 1
            elif parameter.ndim <= 1 or last == "bias" or last.endswith("_bias"):
                parameter.copy_(0.3 * noise)
            elif isinstance(module, nn.Embedding) or last in ("cls_token", "position_embeddings", "class_embedding"):
                small = "position" in name or "type" in name or ".wpe" in name
                parameter.copy_((0.5 if small else 1.0) * noise)
            else:
                across = parameter.shape[0] if type(module).__name__ == "Conv1D" else parameter[0].numel()
                if parameter.ndim == 3 and not isinstance(module, nn.Conv1d):
                    across = parameter.shape[1]  # experts: (expert, in, out)
                parameter.copy_((gain if queries else 1.0) / across**0.5 * noise)


@functools.cache
def eager(name: str) -> Any:
    """The reference: the model's eager attention. Shared: do not change it."""
    tiny = TABLE[name]
    model = tiny.build("eager")
    draw(model, tiny.gain)
    return model


def variant(name: str, **changes: Any) -> Any:
    """Eager attention in the same weights with other settings in its config (and in the parts of its config)."""
    tiny = TABLE[name]
    config = tiny.config()
    for part in (config, getattr(config, "encoder", None), getattr(config, "decoder", None)):
        for key, value in changes.items():
            if part is not None and hasattr(part, key):
                setattr(part, key, value)
    model = tiny.build("eager", config)
    model.load_state_dict(eager(name).state_dict())
    return model


@functools.cache
def ours(name: str) -> Any:
    """The same weights with qkv's attention. Shared: do not change it."""
    register()
    tiny = TABLE[name]
    model = tiny.build(IMPLEMENTATION)
    model.load_state_dict(eager(name).state_dict())
    return model


def register() -> None:
    if IMPLEMENTATION == "qkv":
        import qkv

        qkv.hf.register()


def pair(name: str) -> tuple[Any, Any]:
    return eager(name), ours(name)


def attention_modules(model: nn.Module, classes: Iterable[str]) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ in classes]


def expected_served(tiny: Tiny, model: nn.Module) -> Counter[str]:
    """The expected layer_calls() after one forward: class names with layer numbers where the module has one."""
    found: Counter[str] = Counter()
    for module in attention_modules(model, tiny.layers):
        layer = getattr(module, "layer_idx", None)
        found[type(module).__name__ + (f" {layer}" if layer is not None else "")] += 1
    if tiny.name == "albert":  # one set of weights, run again for each layer
        (key,) = found
        found[key] = model.config.num_hidden_layers
    return found


# ----------------------------------------------------------------------------------------------------------- inputs


def token_ids(batch: int, length: int, vocabulary: int = 97, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(FIRST, vocabulary, (batch, length), generator=generator)


def pad(ids: Tensor, lengths: list[int], side: str) -> tuple[Tensor, Tensor]:
    """(ids with padding, mask: 1 for real tokens)."""
    at = torch.arange(ids.shape[1])
    n = torch.tensor(lengths)[:, None]
    real = at < n if side == "right" else at >= ids.shape[1] - n
    return torch.where(real, ids, PAD), real.long()


LENGTHS = {1: [13], 2: [13, 7], 3: [13, 8, 3]}


def inputs(name: str, side: str | None = None, batch: int = 3, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """(arguments of forward, which of the output's positions are real).

    side pads the batch: rows have 13, 8 and 3 tokens. Encoder-decoders get padding on both of their inputs.
    """
    tiny = TABLE[name]
    generator = torch.Generator().manual_seed(2000 + seed)
    if tiny.kind == "vision":
        pixels = torch.randn(batch, 3, 12, 12, generator=generator)
        return {"pixel_values": pixels}, torch.ones(batch, 1, dtype=torch.bool)
    given: dict[str, Tensor] = {}
    if tiny.kind == "speech" and not tiny.generates:
        samples = torch.randn(batch, 220, generator=generator)
        given["input_values"] = samples
        if side == "right":
            mask = torch.ones(batch, 220, dtype=torch.long)
            for row, n in enumerate((220, 160, 90)[:batch]):
                mask[row, n:] = 0
            given["attention_mask"], given["input_values"] = mask, samples * mask
        frames = eager(name)._get_feat_extract_output_lengths(torch.full((batch,), 220))
        real = torch.ones(batch, int(frames[0]), dtype=torch.bool)
        if side == "right":
            lengths = eager(name)._get_feat_extract_output_lengths(given["attention_mask"].sum(-1))
            real = torch.arange(int(frames[0])) < lengths[:, None]
        return given, real
    length = 13
    if tiny.kind == "speech":
        given["input_features"] = torch.randn(batch, 8, 46, generator=generator)
    else:
        ids = token_ids(batch, length + 4 * (tiny.kind == "encoder-decoder"), seed=seed)
        if side:
            lengths = [ids.shape[1] - length + n for n in LENGTHS[batch]]
            ids, given["attention_mask"] = pad(ids, lengths, side)
        given["input_ids"] = ids
    if tiny.kind in ("encoder-decoder", "speech"):
        ids = token_ids(batch, length, seed=seed + 1)
        if side:
            ids, given["decoder_attention_mask"] = pad(ids, LENGTHS[batch], side)
        given["decoder_input_ids"] = ids
        mask = given.get("decoder_attention_mask")
    else:
        mask = given.get("attention_mask")
    return given, torch.ones(batch, length, dtype=torch.bool) if mask is None else mask.bool()


def prompt(name: str, side: str | None = None, batch: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Arguments of generate. Encoder-decoders start from their start token, so only the encoder's input is padded."""
    given, _ = inputs(name, side, batch, seed)
    return {key: value for key, value in given.items() if not key.startswith("decoder")}


def output_of(out: Any) -> Tensor:
    for key in ("logits", "last_hidden_state"):
        if (found := getattr(out, key, None)) is not None:
            return found
    raise AssertionError(f"{type(out).__name__} has neither logits nor states")


# ------------------------------------------------------------------------------------------------------ the builders

TOKENS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": None}
POSITIONS = {"max_position_embeddings": 211}


def bert_like(cls: str, **more: Any) -> Any:
    given = {
        "vocab_size": 101,
        "hidden_size": 55,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 53,
        "tie_word_embeddings": False,
    }
    return getattr(transformers, cls)(**{**TOKENS, **POSITIONS, **given, **more})


def llama_like(cls: str, **more: Any) -> Any:
    """Grouped heads 6/2 of width 10, so that heads × width is not the width of the model where the config allows."""
    given = {
        "vocab_size": 101,
        "hidden_size": 60,
        "intermediate_size": 53,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    }
    return getattr(transformers, cls)(**{**TOKENS, **POSITIONS, **given, **more})


def alternating(n: int, kinds: tuple[str, ...] = ("sliding_attention", "full_attention")) -> list[str]:
    return [kinds[at % len(kinds)] for at in range(n)]


def distilbert() -> Any:
    return transformers.DistilBertConfig(
        vocab_size=101, dim=55, n_heads=5, n_layers=3, hidden_dim=53, **POSITIONS, **TOKENS, tie_word_embeddings=False
    )


def albert() -> Any:
    return bert_like("AlbertConfig", embedding_size=23)


def electra() -> Any:
    return bert_like("ElectraConfig", embedding_size=23)


def modernbert() -> Any:
    more = {"hidden_size": 60, "num_attention_heads": 5, "layer_types": alternating(3), "local_attention": 6}
    return bert_like("ModernBertConfig", cls_token_id=2, sep_token_id=2, **more)


def gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=101, n_positions=211, n_embd=55, n_layer=3, n_head=5, **TOKENS, tie_word_embeddings=False
    )


def gpt_bigcode() -> Any:
    return transformers.GPTBigCodeConfig(
        vocab_size=101,
        n_positions=211,
        n_embd=55,
        n_layer=3,
        n_head=5,
        multi_query=True,
        **TOKENS,
        tie_word_embeddings=False,
    )


def gpt_neox() -> Any:
    more = {"hidden_size": 60, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
    return bert_like("GPTNeoXConfig", **more)


def opt() -> Any:
    return transformers.OPTConfig(
        vocab_size=101,
        hidden_size=55,
        num_hidden_layers=3,
        ffn_dim=53,
        num_attention_heads=5,
        word_embed_proj_dim=55,
        **POSITIONS,
        **TOKENS,
        tie_word_embeddings=False,
    )


def gemma2() -> Any:
    more = {"num_hidden_layers": 4, "head_dim": 14, "query_pre_attn_scalar": 5, "sliding_window": WINDOW}
    return llama_like("Gemma2Config", attn_logit_softcapping=3.0, final_logit_softcapping=30.0, **more)


def gemma3() -> Any:
    return llama_like(
        "Gemma3TextConfig",
        num_hidden_layers=4,
        num_key_value_heads=1,
        head_dim=14,
        query_pre_attn_scalar=5,
        sliding_window=WINDOW,
        layer_types=alternating(4, ("sliding_attention", "sliding_attention", "full_attention")),
    )


def mixtral() -> Any:
    return llama_like("MixtralConfig", num_local_experts=3, experts_implementation="eager")


def phi() -> Any:
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.4}
    return llama_like("PhiConfig", num_key_value_heads=3, rope_parameters=rope)


def gpt_oss() -> Any:
    return llama_like(
        "GptOssConfig",
        num_hidden_layers=4,
        head_dim=14,
        experts_implementation="eager",
        num_local_experts=3,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        layer_types=alternating(4),
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )


def smollm3() -> Any:
    more = {"use_sliding_window": True, "sliding_window": WINDOW, "no_rope_layer_interval": 2}
    return llama_like("SmolLM3Config", layer_types=alternating(3), **more)


def qwen2() -> Any:
    more = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    return llama_like("Qwen2Config", **more)


def cohere2() -> Any:
    return llama_like("Cohere2Config", sliding_window=WINDOW, layer_types=alternating(3), logit_scale=1.0)


def deepseek_v3() -> Any:
    """Keys of width 14, values of width 11."""
    return llama_like(
        "DeepseekV3Config",
        num_attention_heads=5,
        num_key_value_heads=5,
        q_lora_rank=19,
        kv_lora_rank=17,
        qk_rope_head_dim=8,
        qk_nope_head_dim=6,
        v_head_dim=11,
        first_k_dense_replace=2,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=29,
        experts_implementation="eager",
    )


def t5(cls: str = "T5Config") -> Any:
    return getattr(transformers, cls)(
        vocab_size=101,
        d_model=55,
        d_kv=11,
        d_ff=53,
        num_layers=3,  # transformers' own caches count the encoder's layers: other numbers break eager too
        num_decoder_layers=3,
        num_heads=5,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        decoder_start_token_id=START,
        tie_word_embeddings=False,
        **TOKENS,
    )


def t5gemma() -> Any:
    part = {
        "vocab_size": 101,
        "hidden_size": 60,
        "intermediate_size": 53,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "query_pre_attn_scalar": 5,
        "sliding_window": WINDOW,
        "layer_types": alternating(2),
        "attn_logit_softcapping": 3.0,
        **TOKENS,
        **POSITIONS,
    }
    decoder = {**part, "num_hidden_layers": 3, "layer_types": alternating(3), "is_decoder": True}
    return transformers.T5GemmaConfig(encoder=part, decoder=decoder, vocab_size=101, **TOKENS)


def bart_like(cls: str, **more: Any) -> Any:
    given = {
        "vocab_size": 101,
        "d_model": 55,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 5,
        "decoder_attention_heads": 5,
        "encoder_ffn_dim": 53,
        "decoder_ffn_dim": 47,
        "decoder_start_token_id": START,
        "forced_eos_token_id": None,
        "tie_word_embeddings": False,
    }
    return getattr(transformers, cls)(**{**TOKENS, **POSITIONS, **given, **more})


def whisper() -> Any:
    more = {"d_model": 60, "num_mel_bins": 8, "max_source_positions": 23, "max_target_positions": 211}
    config = bart_like("WhisperConfig", **more)
    config.suppress_tokens = config.begin_suppress_tokens = None
    return config


def vision(cls: str, **more: Any) -> Any:
    given = {
        "hidden_size": 55,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 53,
        "image_size": 12,
        "patch_size": 3,
    }
    return getattr(transformers, cls)(**{**given, **more})


def clip_text() -> Any:
    more = {"max_position_embeddings": 31, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": 100}
    given = {"hidden_size": 55, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 53}
    return transformers.CLIPTextConfig(vocab_size=101, **given, **more)


def wav2vec2() -> Any:
    return transformers.Wav2Vec2Config(
        vocab_size=101,
        hidden_size=60,
        num_hidden_layers=3,
        num_attention_heads=5,
        intermediate_size=53,
        conv_dim=(11, 13),
        conv_kernel=(7, 3),
        conv_stride=(5, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
        layerdrop=0.0,
        feat_extract_norm="layer",
        **TOKENS,
    )


def a_hybrid(name: str, attention: str, **more: Any) -> Tiny:
    """Two layers of attention, two of linear attention."""
    config, recurrent, _ = HYBRIDS[name]
    return Tiny(name, "decoder", LM, config, {attention: 2, recurrent: 2}, caches=4, recurrent=recurrent, **more)


LM, MASKED, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"


def an_encoder(name: str, config: Callable[[], Any], attention: str, layers: int = 3, **more: Any) -> Tiny:
    return Tiny(name, "encoder", MASKED, config, {attention: layers}, **more)


def a_decoder(name: str, config: Callable[[], Any], attention: str, layers: int = 3, *has: str, **more: Any) -> Tiny:
    return Tiny(name, "decoder", LM, config, {attention: layers}, frozenset(has), caches=layers, **more)


def a_pair(name: str, config: Callable[[], Any], attention: str, encoder: int = 2, *has: str, **more: Any) -> Tiny:
    """Encoder layers; three decoder layers, each with self- and cross-attention."""
    calls = {attention: encoder + 2 * 3}
    return Tiny(name, "encoder-decoder", SEQ2SEQ, config, calls, frozenset(has), caches=3, **more)


ENTRIES = [
    an_encoder("bert", lambda: bert_like("BertConfig"), "BertSelfAttention"),
    an_encoder("roberta", lambda: bert_like("RobertaConfig"), "RobertaSelfAttention"),
    an_encoder("distilbert", distilbert, "DistilBertSelfAttention"),
    an_encoder("electra", electra, "ElectraSelfAttention"),
    an_encoder("albert", albert, "AlbertAttention"),
    an_encoder("modernbert", modernbert, "ModernBertAttention", has=frozenset({"window"})),
    a_decoder("gpt2", gpt2, "GPT2Attention"),
    a_decoder("gpt_bigcode", gpt_bigcode, "GPTBigCodeAttention"),
    a_decoder("gpt_neox", gpt_neox, "GPTNeoXAttention"),
    a_decoder("opt", opt, "OPTAttention"),
    a_decoder("llama", lambda: llama_like("LlamaConfig", head_dim=14), "LlamaAttention"),
    a_decoder("mistral", lambda: llama_like("MistralConfig", sliding_window=WINDOW), "MistralAttention", 3, "window"),
    a_decoder("mixtral", mixtral, "MixtralAttention"),
    a_decoder("qwen2", qwen2, "Qwen2Attention", 3, "window"),
    a_decoder("qwen3", lambda: llama_like("Qwen3Config", head_dim=14), "Qwen3Attention"),
    a_decoder("gemma", lambda: llama_like("GemmaConfig", head_dim=14, num_key_value_heads=1), "GemmaAttention"),
    a_decoder("gemma2", gemma2, "Gemma2Attention", 4, "softcap", "scale", "window"),
    a_decoder("gemma3", gemma3, "Gemma3Attention", 4, "scale", "window"),
    a_decoder("phi", phi, "PhiAttention"),
    a_decoder("phi3", lambda: llama_like("Phi3Config", sliding_window=WINDOW), "Phi3Attention", 3, "window"),
    a_decoder(
        "starcoder2", lambda: llama_like("Starcoder2Config", sliding_window=WINDOW), "Starcoder2Attention", 3, "window"
    ),
    a_decoder("olmo2", lambda: llama_like("Olmo2Config"), "Olmo2Attention"),
    a_decoder(
        "olmo3",
        lambda: llama_like("Olmo3Config", sliding_window=WINDOW, layer_types=alternating(3)),
        "Olmo3Attention",
        3,
        "window",
    ),
    a_decoder("cohere", lambda: llama_like("CohereConfig", logit_scale=1.0), "CohereAttention"),
    a_decoder("cohere2", cohere2, "Cohere2Attention", 3, "window"),
    a_decoder(
        "granite", lambda: llama_like("GraniteConfig", attention_multiplier=0.47), "GraniteAttention", 3, "scale"
    ),
    a_decoder("gpt_oss", gpt_oss, "GptOssAttention", 4, "sink", "window"),
    a_decoder("smollm3", smollm3, "SmolLM3Attention", 3, "window"),
    a_decoder("stablelm", lambda: llama_like("StableLmConfig"), "StableLmAttention"),
    a_decoder("glm", lambda: llama_like("GlmConfig", head_dim=14), "GlmAttention"),
    a_decoder("nemotron", lambda: llama_like("NemotronConfig", head_dim=14), "NemotronAttention"),
    a_decoder("deepseek_v3", deepseek_v3, "DeepseekV3Attention"),
    a_hybrid("qwen3_next", "Qwen3NextAttention"),
    a_hybrid("qwen3_5", "Qwen3_5Attention"),
    a_hybrid(
        "minimax",
        "MiniMaxAttention",
        reasons={
            "beams": "transformers does not reorder its states",
            "beams, qkv cache": "transformers does not reorder its states",
            "attentions": "transformers returns states among its weights",
        },
    ),
    a_hybrid("granitemoehybrid", "GraniteMoeHybridAttention"),
    a_pair("t5", t5, "T5Attention", 3, "bias", "scale", gain=0.8),
    a_pair("mt5", lambda: t5("MT5Config"), "MT5Attention", 3, "bias", "scale", gain=0.8),
    a_pair("bart", lambda: bart_like("BartConfig"), "BartAttention"),
    a_pair("mbart", lambda: bart_like("MBartConfig"), "MBartAttention"),
    a_pair("marian", lambda: bart_like("MarianConfig"), "MarianAttention"),
    a_pair("pegasus", lambda: bart_like("PegasusConfig"), "PegasusAttention"),
    a_pair("m2m_100", lambda: bart_like("M2M100Config"), "M2M100Attention"),
    Tiny(
        "t5gemma",
        "encoder-decoder",
        SEQ2SEQ,
        t5gemma,
        {"T5GemmaSelfAttention": 5, "T5GemmaCrossAttention": 3},
        frozenset({"softcap", "scale", "window"}),
        caches=3,
    ),
    Tiny(
        "whisper",
        "speech",
        "AutoModelForSpeechSeq2Seq",
        whisper,
        {"WhisperAttention": 8},
        caches=3,
    ),
    Tiny(
        "wav2vec2",
        "speech",
        "AutoModelForCTC",
        wav2vec2,
        {"Wav2Vec2Attention": 3},
        reasons={"pad left": "its convolutions count lengths from the left: only trailing samples are padding"},
    ),
    Tiny("vit", "vision", "AutoModel", lambda: vision("ViTConfig"), {"ViTAttention": 3}),
    Tiny("dinov2", "vision", "AutoModel", lambda: vision("Dinov2Config"), {"Dinov2Attention": 3}),
    Tiny("clip_vision", "vision", "AutoModel", lambda: vision("CLIPVisionConfig"), {"CLIPAttention": 3}),
    Tiny("siglip_vision", "vision", "AutoModel", lambda: vision("SiglipVisionConfig"), {"SiglipAttention": 3}),
    Tiny("clip_text", "encoder", "AutoModel", clip_text, {"CLIPAttention": 3}),
]
TABLE: dict[str, Tiny] = {tiny.name: tiny for tiny in ENTRIES}
