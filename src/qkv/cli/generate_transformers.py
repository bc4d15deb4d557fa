"""Text from a checkpoint in transformers: encoder-decoders on qkv's attention, and PyTorch's for comparison."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # set before transformers is imported: no downloads
os.environ.setdefault("TQDM_DISABLE", "1")  # qkv shows its own progress

import torch
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .. import hf
from ..errors import OptionError, ShapeError, complaint
from ..hf.checkpoint import Loaded, load
from ..runtime.templates import TemplateProcess
from .generate import STORAGE, Options, Run

_TOKENS = (
    "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip


class _Clock(StoppingCriteria):
    """Records when tokens arrive, and passes those of the first prompt on. It never stops the generation."""

    def __init__(self, say: Callable[[int], None] | None) -> None:
        self.times, self.say = [perf_counter()], say

    def __call__(self, input_ids: Any, scores: Any, **others: Any) -> Any:
        self.times.append(perf_counter())
        if self.say is not None:
            self.say(int(input_ids[0, -1]))
        return torch.zeros(len(input_ids), dtype=torch.bool)


def run_transformers(
    options: Options, stream: Callable[[Any], Any] | None, compare: bool
) -> tuple[Any, list[str], Run]:
    """Plan, texts and figures: on qkv's attention, or with `compare` on transformers' own."""
    loaded, inputs = _ready(options)
    found = (
        generate_default(loaded, inputs, options)
        if compare
        else generate(loaded, inputs, options, stream and stream(loaded.tokenizer))
    )
    text = [loaded.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found.tokens]
    return plan_of(loaded.model, inputs, options), text, found


def _ready(options: Options) -> tuple[Loaded, dict[str, torch.Tensor]]:
    """The model, and the prompts as tokens, padded on the left."""
    loaded = load(options.model)
    model, tokenizer = loaded
    prompts = options.prompts
    if options.chat:
        if not getattr(tokenizer, "chat_template", None):
            raise OptionError(
                complaint("--chat", "a tokenizer without a chat template", "one with a template", "leave --chat out")
            )
        words = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        with TemplateProcess() as process:
            prompts = [process.render(tokenizer.get_chat_template(), prompt, words) for prompt in prompts]
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None and len(prompts) > 1:
        raise OptionError(
            complaint("--prompt", f"{len(prompts)} prompts", "one, as the tokenizer has no padding token")
        )
    encoded = tokenizer(prompts, return_tensors="pt", padding=len(prompts) > 1, add_special_tokens=not options.chat)
    ids = encoded["input_ids"]
    longest = 0 if model.config.is_encoder_decoder else ids.shape[1]
    most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if ids.shape[1] == 0:
        raise OptionError(complaint("prompt", "text without a token", "text to continue"))
    if int(ids.max()) >= model.config.get_text_config(decoder=False).vocab_size:
        raise OptionError(
            complaint("model", "a tokenizer with more tokens than the model", "a tokenizer of the same model")
        )
    if most is not None and longest + options.new > most:
        given = f"{longest} tokens of prompt and {options.new} new ones"
        raise ShapeError(complaint("prompt", given, f"at most {most} together, the model's positions"))
    return loaded, {"input_ids": ids, "attention_mask": encoded["attention_mask"]}


def plan_of(model: PreTrainedModel, inputs: dict[str, torch.Tensor], options: Options) -> dict[str, Any]:
    """What will run, and how large its cache will be."""
    config: Any = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    kv_heads = _option(config, "num_key_value_heads") or heads
    width = _option(config, "head_dim") or config.hidden_size // heads
    rows, prompt = inputs["input_ids"].shape
    kinds = getattr(config, "layer_types", None)
    layers = config.num_hidden_layers if kinds is None else sum(kind != "linear_attention" for kind in kinds)
    token = layers * kv_heads * STORAGE[options.kv_cache].token_bytes(width)
    return {
        "model": type(model).__name__,
        "parameters": model.num_parameters(),
        "layers": config.num_hidden_layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_width": width,
        "prompts": rows,
        "prompt_tokens": prompt,
        "new_tokens": options.new,
        "kv_cache": options.kv_cache,
        "cache_bytes_per_token": token,
    }


def _option(config: Any, name: str) -> int | None:
    """The number of all layers; None where it is missing, or where layers differ."""
    try:
        return getattr(config, name, None)
    except Exception:  # where layers differ, transformers raises no AttributeError
        return None


def generate(loaded: Loaded, inputs: dict[str, torch.Tensor], options: Options, say: Any) -> Run:
    """Generate with qkv's attention and cache."""
    cache = hf.cache(loaded.model, dtype=STORAGE[options.kv_cache].dtype)
    return _run(loaded, inputs, options, f"qkv {options.kv_cache}", cache, lambda: cache.nbytes, say)


def generate_default(loaded: Loaded, inputs: dict[str, torch.Tensor], options: Options) -> Run:
    """Generate with transformers' own attention and cache, and the same weights."""
    model = loaded.model
    name = "sdpa" if model._supports_sdpa else "eager"
    model.set_attn_implementation(name)
    cache: Cache = DynamicCache(config=model.config)
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, DynamicCache())
    try:
        return _run(loaded, inputs, options, f"{name} f32", cache, lambda: _bytes(cache), None)
    finally:
        model.set_attn_implementation("qkv")


def _run(
    loaded: Loaded,
    inputs: dict[str, torch.Tensor],
    options: Options,
    name: str,
    cache: Any,
    nbytes: Callable[[], int],
    say: Any,
) -> Run:
    clock = _Clock(say)
    # An encoder-decoder's answer begins with its start token.
    prompt = 1 if loaded.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    torch.manual_seed(options.seed)
    loaded.model.generation_config = _choices(loaded, options)
    with torch.no_grad():
        found: Any = loaded.model.generate(  # pyright: ignore[reportCallIssue]
            **inputs,  # pyright: ignore[reportArgumentType]
            past_key_values=cache,
            logits_processor=LogitsProcessorList([_RefuseNaN()]),
            stopping_criteria=StoppingCriteriaList([clock]),
        )
    tokens = [row[prompt:].tolist() for row in found]
    start, first, *rest = clock.times
    rows = len(options.prompts)
    decode = rows * len(rest) / (rest[-1] - first) if rest else 0.0
    return Run(name, tokens, int(inputs["attention_mask"].sum()) / (first - start), decode, nbytes())


def _choices(loaded: Loaded, options: Options) -> GenerationConfig:
    """The command line's options and the checkpoint's special tokens; its other settings, as beams, are ignored."""
    own = loaded.model.generation_config
    tokens = {name: getattr(own, name, None) for name in _TOKENS} if own is not None else {}
    tokens["pad_token_id"] = loaded.tokenizer.pad_token_id
    choice: dict[str, Any] = {"do_sample": False}
    if options.temperature > 0:
        choice = {"do_sample": True, "temperature": options.temperature, "top_k": options.top_k or 0}
        choice["top_p"] = 1.0 if options.top_p is None else options.top_p
    return GenerationConfig(max_new_tokens=options.new, num_beams=1, **tokens, **choice)


class _RefuseNaN(LogitsProcessor):
    """Raises where a logit is NaN: no token can be chosen."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if bool(scores.isnan().any()):
            hint = "the checkpoint has non-finite weights, or is damaged"
            raise OptionError(complaint("model", "logits that are NaN", "finite logits", hint))
        return scores


def _bytes(cache: Any) -> int:
    if isinstance(cache, EncoderDecoderCache):
        return _bytes(cache.self_attention_cache) + _bytes(cache.cross_attention_cache)
    states = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
    found = [each for layer in states for each in (*layer.conv_states.values(), *layer.recurrent_states.values())]
    for layer in cache.layers:
        if layer not in states and layer.is_initialized:
            found += [layer.keys, layer.values]
    return sum(tensor.nbytes for tensor in found if tensor is not None)
