"""`qkv generate`: text from a local model on `qkv.runtime`, and with PyTorch's attention for comparison."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported, if it is: no downloads
os.environ.setdefault("TQDM_DISABLE", "1")  # qkv shows its own progress

from rich.console import Console
from rich.table import Table

from .. import runtime
from ..cache.eviction import named_policy
from ..cache.formats import FORMATS
from ..errors import MissingExtra, OptionError, ShapeError, complaint
from ..render.escapes import clean, json_text
from ..runtime.chat import ChatTemplate
from ..runtime.files import SafetensorsFolder, open_source
from ..runtime.program import NotCovered
from .waiting import waiting

STORAGE = {each.short: each for each in FORMATS.values()}


class Options(NamedTuple):
    """The arguments of the command; `qkv chat` shares those before the prompts."""

    model: str
    new: int
    kv_cache: str
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    activations: str
    prompts: list[str] = []  # noqa: RUF012 - of a named tuple, which is frozen
    compare: bool = False
    chat: bool = False
    keep: int | None = None
    evict: str = "streaming"

    def choice(self, turn: int = 0) -> dict[str, Any]:
        """How tokens are chosen, as `Model.generate` takes it; each turn of a chat has another seed."""
        seed = None if self.seed is None else self.seed + turn
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "seed": seed}


class Run(NamedTuple):
    """The tokens and the speed of one implementation."""

    name: str
    tokens: list[list[int]]
    prefill: float  # tokens a second
    decode: float
    cache_bytes: int


def show(options: Options) -> None:
    """Stream the text, then print the figures."""
    err, out = Console(stderr=True), Console()
    single = len(options.prompts) == 1
    streams: list[_TextStream] = []

    def stream(tokenizer: Any) -> _TextStream:
        streams.append(_TextStream(tokenizer))
        return streams[0]

    with err.status("generating") if not single or not sys.stdout.isatty() else nullcontext():
        said = lambda plan: err.print(_sentence(plan), highlight=False)  # noqa: E731
        _, text, first = _generate(options, stream if single else None, said)
    if streams:
        streams[0].end()
    else:
        for prompt, found in zip(options.prompts, text, strict=True):
            out.print(f"» {clean(prompt)}", style="bold", markup=False, highlight=False)
            out.print(clean(found), markup=False, highlight=False)
    runs = [first]
    if options.compare:
        with err.status("generating with PyTorch's default"):
            runs.append(_compared(options))
    err.print(_table(runs))


def show_json(options: Options) -> None:
    plan, text, first = _generate(options, None, lambda plan: None)
    runs = [first, _compared(options)] if options.compare else [first]
    report = {"plan": plan, "text": text, "runs": {run.name: run._asdict() for run in runs}}
    if options.compare:
        report["same_tokens"] = runs[0].tokens == runs[1].tokens
    print(json_text(report, indent=None))


def _compared(options: Options) -> Run:
    if find_spec("transformers") is None:
        raise MissingExtra("qkv generate --compare", "transformers", "hf")
    from .generate_transformers import run_transformers

    return run_transformers(options, None, compare=True)[2]


def _generate(
    options: Options, stream: Callable[[Any], Any] | None, said: Callable[[Any], None]
) -> tuple[dict[str, Any], list[str], Run]:
    """Plan, texts and figures; the plan is passed to `said` before tokens come."""
    _check(options)
    if _is_encoder_decoder(options.model):
        if find_spec("transformers") is None:
            raise MissingExtra("an encoder-decoder", "transformers", "hf")
        if options.keep is not None:
            raise OptionError(complaint("--keep", options.keep, "None for an encoder-decoder, which evicts nothing"))
        from .generate_transformers import run_transformers

        found = run_transformers(options, stream, compare=False)
        said(found[0])
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the plan has the reason
        with waiting(f"loading {options.model}"):
            model = runtime.load(options.model, activations=options.activations)
    prompts = options.prompts
    if options.chat:
        template = ChatTemplate(options.model)
        prompts = [template.render([{"role": "user", "content": prompt}]) for prompt in prompts]
    encode, name = model.tokenizer.encode, f"qkv {options.kv_cache}"
    tokens = [encode(prompt, bare=options.chat) for prompt in prompts]
    if not all(tokens):
        raise OptionError(complaint("prompt", "text without a token", "text to continue"))
    longest = max(map(len, tokens))
    if longest + options.new - 1 > model.context:
        given = f"{longest} tokens of prompt and {options.new} new ones"
        raise ShapeError(
            complaint("--prompt, --new", given, f"at most {model.context} together, the model's positions")
        )
    plan = _plan_of(model, longest, options)
    said(plan)
    eviction = None if options.keep is None else named_policy(options.evict, options.keep)
    cache = model.cache(len(prompts), dtype=STORAGE[options.kv_cache].dtype, eviction=eviction)
    say, times = stream and stream(model.tokenizer), [perf_counter()]

    def arrived(row: int, token: int, _: str) -> None:
        if row == 0 and say is not None:
            say(token)
        times.append(perf_counter())

    found = model.generate(tokens, options.new, **options.choice(), cache=cache, on_token=arrived)
    start, first, last = times[0], times[len(tokens)], times[-1]
    later = len(times) - 1 - len(tokens)
    decode = later / (last - first) if later else 0.0
    text = [model.tokenizer.decode(each.tokens) for each in found]
    prefill = sum(map(len, tokens)) / (times[1] - start)
    return plan, text, Run(name, [each.tokens for each in found], prefill, decode, cache.nbytes)


def _check(options: Options) -> None:
    for at, prompt in enumerate(options.prompts):
        if any(0xD800 <= ord(sign) < 0xE000 for sign in prompt):
            raise OptionError(complaint(f"--prompt {at + 1}", "bytes that are not UTF-8", "text"))
        if not prompt.strip():
            raise OptionError(complaint(f"--prompt {at + 1}", "nothing", "text to continue"))
    if options.temperature and not 1e-4 <= options.temperature <= 1e4:
        wanted = "0, or a number from 0.0001 to 10000"
        raise OptionError(complaint("--temperature", options.temperature, wanted))


def _is_encoder_decoder(path: str) -> bool:
    try:
        source = open_source(path)
    except NotCovered:
        return False
    return isinstance(source, SafetensorsFolder) and source.config.get("is_encoder_decoder") is True


def _plan_of(model: runtime.Model, prompt: int, options: Options) -> dict[str, Any]:
    """What will run, and how large its cache will be."""
    plan = {"model": "", "backend": model.backend, "reason": model.reason, "activations": options.activations}
    plan |= {"prompts": len(options.prompts), "prompt_tokens": prompt, "new_tokens": options.new}
    plan["kv_cache"] = options.kv_cache
    if model.backend == "transformers":
        return plan | {"model": os.path.basename(options.model)}
    program, parts = model.program, [layer.attention for layer in model.program.layers]
    layout = STORAGE[options.kv_cache]
    return plan | {
        "model": program.architecture,
        "layers": len(parts),
        "heads": parts[0].heads,
        "kv_heads": parts[0].kv_heads,
        "head_width": parts[0].width,
        "weights": program.layers[0].feed_forward.up.weight.format.name,
        "cache_bytes_per_token": sum(part.kv_heads * layout.token_bytes(part.width) for part in parts),
    }


class _TextStream:
    """Prints text as tokens arrive: a token may be half of a character, and control characters are replaced."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.tokens, self.shown = tokenizer, [], 0

    def __call__(self, token: int) -> None:
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens)
        if not text.endswith("\ufffd"):
            print(clean(text[self.shown :]), end="", flush=True)
            self.shown = len(text)

    def end(self) -> None:
        print(clean(self.tokenizer.decode(self.tokens)[self.shown :]), flush=True)


def _sentence(plan: dict[str, Any]) -> str:
    """The plan in two lines."""
    if "layers" not in plan:
        return f"{plan['model']} runs in transformers\n{plan.get('reason', '')}".rstrip()
    total = plan["prompts"] * (plan["prompt_tokens"] + plan["new_tokens"]) * plan["cache_bytes_per_token"]
    return (
        f"{plan['model']}, weights in {plan.get('weights', 'float32')}: {plan['layers']} layers on qkv, "
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
