"""`qkv generate`: text from a local checkpoint with qkv's kernels and caches, and with PyTorch's for comparison."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # set before transformers is imported: no downloads
os.environ.setdefault("TQDM_DISABLE", "1")  # qkv shows its own progress

import torch
from rich.console import Console
from rich.table import Table
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
from ..cache.formats import FORMATS
from ..errors import OptionError, ShapeError, complaint
from ..hf.checkpoint import Loaded, load
from ..hf.folders import one_line
from ..render.escapes import clean, json_text

_TOKENS = (
    "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip
STORAGE = {each.short: each for each in FORMATS.values()}


class Options(NamedTuple):
    """The arguments of the command."""

    model: str
    prompts: list[str]
    new: int
    kv_cache: str
    compare: bool
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    chat: bool


class Run(NamedTuple):
    """The tokens and the speed of one implementation."""

    name: str
    tokens: list[list[int]]
    prefill: float  # tokens a second
    decode: float
    cache_bytes: int


class _Clock(StoppingCriteria):
    """Records when tokens arrive, and passes those of the first prompt on. It never stops the generation."""

    def __init__(self, say: Callable[[int], None] | None) -> None:
        self.times, self.say = [perf_counter()], say

    def __call__(self, input_ids: Any, scores: Any, **others: Any) -> Any:
        self.times.append(perf_counter())
        if self.say is not None:
            self.say(int(input_ids[0, -1]))
        return torch.zeros(len(input_ids), dtype=torch.bool)


def show(options: Options) -> None:
    """Stream the text, then print the figures."""
    err, out = Console(stderr=True), Console()
    with err.status("reading the checkpoint"):
        loaded, inputs = _ready(options)
    plan = plan_of(loaded.model, inputs, options)
    err.print(_sentence(plan), highlight=False)
    single = len(options.prompts) == 1
    stream = _TextStream(loaded.tokenizer) if single else None
    with err.status("generating") if not single or not sys.stdout.isatty() else nullcontext():
        first = generate(loaded, inputs, options, stream)
    if stream is not None:
        stream.end()
    else:
        for prompt, tokens in zip(options.prompts, first.tokens, strict=True):
            out.print(f"» {clean(prompt)}", style="bold", markup=False, highlight=False)
            text = clean(loaded.tokenizer.decode(tokens, skip_special_tokens=True))
            out.print(text, markup=False, highlight=False)
    runs = [first]
    if options.compare:
        with err.status("generating with PyTorch's default"):
            runs.append(generate_default(loaded, inputs, options))
    err.print(_table(runs))


def show_json(options: Options) -> None:
    loaded, inputs = _ready(options)
    runs = [generate(loaded, inputs, options, None)]
    if options.compare:
        runs.append(generate_default(loaded, inputs, options))
    text = [loaded.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in runs[0].tokens]
    figures = {run.name: run._asdict() for run in runs}
    report = {"plan": plan_of(loaded.model, inputs, options), "text": text, "runs": figures}
    if options.compare:
        report["same_tokens"] = runs[0].tokens == runs[1].tokens
    print(json_text(report, indent=None))


def _ready(options: Options) -> tuple[Loaded, dict[str, torch.Tensor]]:
    """The model, and the prompts as tokens, padded on the left."""
    for at, prompt in enumerate(options.prompts):
        if any(0xD800 <= ord(sign) < 0xE000 for sign in prompt):
            raise OptionError(complaint(f"prompt {at + 1}", "bytes that are not UTF-8", "text"))
        if not prompt.strip():
            raise OptionError(complaint(f"prompt {at + 1}", "nothing", "text to continue"))
    if options.temperature and not 1e-4 <= options.temperature <= 1e4:
        wanted = "0, or a number from 0.0001 to 10000"
        raise OptionError(complaint("--temperature", options.temperature, wanted))
    loaded = load(options.model)
    model, tokenizer = loaded
    prompts = options.prompts
    if options.chat:
        if not getattr(tokenizer, "chat_template", None):
            raise OptionError(
                complaint("--chat", "a tokenizer without a chat template", "one with a template", "leave --chat out")
            )
        prompts = [_in_template(tokenizer, prompt) for prompt in prompts]
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


def _in_template(tokenizer: Any, prompt: str) -> str:
    """Apply the chat template, an untrusted program that transformers runs in a sandbox; its errors are reported."""
    from jinja2 import TemplateError

    try:
        chat = [{"role": "user", "content": prompt}]
        return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        given = f"a chat template that fails ({type(error).__name__}: {one_line(error)[:200]})"
        raise OptionError(complaint("--chat", given, "one that accepts a question", "leave --chat out")) from error


def plan_of(model: PreTrainedModel, inputs: dict[str, torch.Tensor], options: Options) -> dict[str, Any]:
    """What will run, and how large its cache will be."""
    config: Any = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    kv_heads = _option(config, "num_key_value_heads") or heads
    width = _option(config, "head_dim") or config.hidden_size // heads
    rows, prompt = inputs["input_ids"].shape
    token = config.num_hidden_layers * kv_heads * 2 * STORAGE[options.kv_cache].token_bytes(width)
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
    pairs = [(layer.keys, layer.values) for layer in cache.layers if layer.is_initialized]
    return sum(tensor.nbytes for pair in pairs for tensor in pair)


class _TextStream:
    """Prints text as tokens arrive: a token may be half of a character, and control characters are replaced."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.tokens, self.shown = tokenizer, [], 0

    def __call__(self, token: int) -> None:
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if not text.endswith("\ufffd"):
            print(clean(text[self.shown :]), end="", flush=True)
            self.shown = len(text)

    def end(self) -> None:
        print(clean(self.tokenizer.decode(self.tokens, skip_special_tokens=True)[self.shown :]), flush=True)


def _sentence(plan: dict[str, Any]) -> str:
    """The plan in two lines."""
    total = plan["prompts"] * (plan["prompt_tokens"] + plan["new_tokens"]) * plan["cache_bytes_per_token"]
    return (
        f"{plan['model']}, {plan['parameters'] / 1e6:.1f}M: {plan['layers']} layers on qkv, "
        f"{plan['heads']} heads on {plan['kv_heads']} x {plan['head_width']}\n"
        f"cache {plan['kv_cache']}: {plan['cache_bytes_per_token']} bytes a token, "
        f"{plan['prompt_tokens']} + {plan['new_tokens']} tokens: {total / 1e6:.1f} MB"
    )


def _table(runs: list[Run]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, side in (("", "left"), ("prefill tok/s", "right"), ("decode tok/s", "right"), ("cache MB", "right")):
        table.add_column(name, justify=side)  # pyright: ignore[reportArgumentType]
    for run in runs:
        table.add_row(
            run.name, f"{run.prefill:.1f}", f"{run.decode:.1f}" if run.decode else "-", f"{run.cache_bytes / 1e6:.2f}"
        )
    if len(runs) == 2:
        same = "the same tokens" if runs[0].tokens == runs[1].tokens else "different tokens"
        speed = f"{runs[0].decode / runs[1].decode:.2f}x" if runs[1].decode else ""
        table.caption = f"{same}; {speed} decoding"
    return table
