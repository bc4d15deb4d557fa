"""What the model of a file takes on a machine before it runs: time of a step and of a prompt, and memory.

Of a GGUF file, or a folder with safetensors, only the header, the configuration, the norms and what is not mapped are
read: transposed products of GPT-2, those of GPT-NeoX that take turns, learned positions. A step takes as long as it
takes to read the packed weights and the cache, a prompt as long as its products; the rates of packed products are those
that `qkv calibrate` measured here, by format of the weights and by mode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..cache.formats import FORMATS as STORAGE
from ..cost.machine import HERE, Hardware, Machine, as_hardware
from ..cost.readable import in_columns, in_words, integer_text, quantity, readable_seconds, wrap_lines
from ..cost.sizes import check_size
from ..errors import OptionError, complaint
from ..ops.packed import ACTIVATION_CODES, BLOCKS, packed_linear
from ..runtime.architectures import read_program
from ..runtime.files import open_source
from ..runtime.program import Program

DEFAULT_TOKENS = 1024
FEW_ROWS = 16  # tokens that one pass over the weights serves; more are a prompt
_COLUMNS = 4096
_MANY = 256  # rows of a product whose multiply rate is measured


class _Weight(NamedTuple):
    """A matrix that every token is multiplied by."""

    format: str
    numbers: int
    nbytes: int


@dataclass(frozen=True)
class FilePlan:
    """The result of `plan_file`; printing it shows a table. Bytes are exact, seconds are predicted.

    step_seconds, prompt_seconds: By mode of the activations. formats: Bytes of the matrices by format. notes: What
    readers of the figures need to know.
    """

    name: str
    architecture: str
    hardware: str
    context: int
    batch: int
    prompt: int
    cache: str
    parameters: int
    formats: dict[str, int]
    weight_bytes: int
    cache_bytes: int
    cache_bytes_per_token: int
    step_bytes: int
    prompt_flops: int
    step_seconds: dict[str, float]
    prompt_seconds: dict[str, float]
    fits: bool
    memory: int
    notes: list[str] = field(default_factory=list)

    @property
    def held_bytes(self) -> int:
        """Weights and cache."""
        return self.weight_bytes + self.cache_bytes

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return {**asdict(self), "held_bytes": self.held_bytes}

    def against(self, activations: str, *, step: float | None = None, prompt: float | None = None) -> dict[str, float]:
        """The errors of the predictions, predicted / measured − 1, for the seconds that were measured.

        Args:
            activations: The mode that was measured: "float32" or "int8".
            step: Seconds of a step after `context` − 1 tokens.
            prompt: Seconds of a prompt of `prompt` tokens.

        Returns:
            A dictionary with "step", "prompt" or both.
        """
        pairs = {"step": (self.step_seconds, step), "prompt": (self.prompt_seconds, prompt)}
        return {name: found[activations] / real - 1 for name, (found, real) in pairs.items() if real}

    def __str__(self) -> str:
        first = f"{self.name} on {self.hardware}: {readable_seconds(self.step_seconds['int8'])} a token, "
        first += f"{self.batch / self.step_seconds['int8']:.3g} tokens/s with activations in int8"
        options = f"{self.architecture}, {in_words(self.parameters)} parameters, batch {integer_text(self.batch)}, "
        options += f"context {integer_text(self.context)}, cache in {self.cache}"
        formats = ", ".join(f"{name} {quantity(size, 'B')}" for name, size in self.formats.items())
        held = f"of {quantity(self.memory, 'B')}: {'fits' if self.fits else 'does not fit'}"
        rows = [
            ("weights", quantity(self.weight_bytes, "B"), formats),
            ("cache", quantity(self.cache_bytes, "B"), f"{quantity(self.cache_bytes_per_token, 'B')} a token"),
            ("memory", quantity(self.held_bytes, "B"), f"weights and cache alone, {held}"),
        ]
        times = [("activations", *self.step_seconds)]
        times.append(("a step", *map(readable_seconds, self.step_seconds.values())))
        name = f"a prompt of {integer_text(self.prompt)} tokens"
        times.append((name, *map(readable_seconds, self.prompt_seconds.values())))
        counts = f"a step reads {quantity(self.step_bytes, 'B')}; the prompt takes {quantity(self.prompt_flops)} flops"
        lines = [line for note in [counts, *self.notes] for line in wrap_lines(note, "  ")]
        head = [*wrap_lines(first, ""), *wrap_lines(options, "  ")]
        return "\n".join([*head, "", in_columns(rows, "<><"), "", in_columns(times, "<>>"), "", *lines])


def plan_file(
    path: str | os.PathLike[str],
    hardware: Any = HERE,
    *,
    context: int | None = None,
    batch: int = 1,
    prompt: int | None = None,
    cache: str = "float32",
) -> FilePlan:
    """Predict a decoding step, a prompt and the memory of a model in the formats of its file.

    Args:
        path: A GGUF file, a folder with one, or a folder with config.json and safetensors, that `qkv.runtime` runs.
        hardware: A `Hardware` or its name; "here" is this machine, as `qkv calibrate` measured it.
        context: Tokens of each sequence, the newest included; 1024, or the model's limit if less.
        batch: Sequences.
        prompt: Tokens of the prompt; `context` by default.
        cache: Storage format of keys and values: float32, float16, bfloat16, int8, int4 or int8/int4.

    Returns:
        A `FilePlan`; `against` compares it with what was measured.

    Raises:
        OptionError: The file is damaged or not covered, or a value is out of range.
    """
    source = open_source(path)
    program, machine = read_program(source), as_hardware(hardware)
    context = min(DEFAULT_TOKENS, program.context) if context is None else context
    prompt = context if prompt is None else prompt
    for name, size in (("context", context), ("batch", batch), ("prompt", prompt)):
        check_size(name, size)
        if name != "batch" and size > program.context:
            raise OptionError(complaint(name, size, f"at most {program.context}, the model's context"))
    storage = {each.name: each for each in STORAGE.values()}
    if cache not in storage:
        raise OptionError(complaint("cache", repr(cache), f"one of {', '.join(storage)}"))
    parts = [layer.attention for layer in program.layers]
    token_bytes = [part.kv_heads * storage[cache].token_bytes(part.width) for part in parts]
    windows = [context if part.window is None else part.window for part in parts]
    cache_bytes = batch * sum(each * min(context, most) for each, most in zip(token_bytes, windows, strict=True))
    weights, logits = _weights(program)
    shapes = {name: source.shape(name) for name in source.names()}
    formats: dict[str, int] = {}
    for matrix in (source.matrix(name) for name, shape in shapes.items() if len(shape) > 1):
        formats[matrix.format.name] = formats.get(matrix.format.name, 0) + matrix.data.nbytes
    run = _Run(machine, Machine.stored() if machine.name == HERE else None)
    pairs = [prompt * min(prompt, most) - min(prompt, most) * (min(prompt, most) - 1) // 2 for most in windows]
    attention = batch * sum(4 * part.heads * part.width * n for part, n in zip(parts, pairs, strict=True))
    read = cache_bytes / machine.bandwidth
    steps, prompts = {}, {}
    for mode in ACTIVATION_CODES:
        steps[mode] = read + sum(run.seconds(each, mode, batch) for each in (*weights, logits))
        products = sum(run.seconds(each, mode, batch * prompt) for each in weights)
        prompts[mode] = products + run.seconds(logits, mode, batch) + attention / run.multiply_rate
    weight_bytes = sum(formats.values())
    return FilePlan(
        name=Path(path).name,
        architecture=program.architecture,
        hardware=machine.name,
        context=context,
        batch=batch,
        prompt=prompt,
        cache=cache,
        parameters=sum(torch.Size(shape).numel() for shape in shapes.values()),
        formats=formats,
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        cache_bytes_per_token=sum(token_bytes),
        step_bytes=sum(each.nbytes for each in weights) + logits.nbytes + cache_bytes,
        prompt_flops=2 * batch * (prompt * sum(each.numbers for each in weights) + logits.numbers) + attention,
        step_seconds=steps,
        prompt_seconds=prompts,
        fits=weight_bytes + cache_bytes <= machine.memory,
        memory=machine.memory,
        notes=run.notes(weights),
    )


def _weights(program: Program) -> tuple[list[_Weight], _Weight]:
    """The matrices of all layers, and that of the logits; the embedding is not multiplied."""
    matrices = []
    for layer in program.layers:
        attention, forward = layer.attention, layer.feed_forward
        linears = [attention.query, attention.key, attention.value, attention.output, forward.up, forward.down]
        matrices += [each.weight for each in (*linears, forward.gate) if each is not None]
    found = [_Weight(each.format.name, each.rows * each.columns, each.data.nbytes) for each in matrices]
    last = program.logits.weight
    return found, _Weight(last.format.name, last.rows * last.columns, last.data.nbytes)


@dataclass(frozen=True)
class _Run:
    """Rates of a machine; `measured` is this one's calibration."""

    hardware: Hardware
    measured: Machine | None

    def seconds(self, weight: _Weight, mode: str, rows: int) -> float:
        """The time of a product with so many rows: of reading the weight, or of multiplying."""
        passes = 1 if rows <= FEW_ROWS else 0  # the weights of a prompt are read while others are multiplied
        read = passes * weight.nbytes / self.rate("read", weight.format, mode)
        return max(read, 2 * rows * weight.numbers / self.rate("multiply", weight.format, mode)) if rows > 1 else read

    @property
    def multiply_rate(self) -> float:
        """Flops a second of plain products."""
        return self.hardware.rate("float32" if "float32" in self.hardware.rates else "bfloat16")

    def rate(self, kind: str, blocks: str, mode: str) -> float:
        """Bytes or flops a second of packed products; a machine that was not calibrated has the rates of others."""
        otherwise = self.hardware.bandwidth if kind == "read" else self.multiply_rate
        return (self.measured.roofs if self.measured else {}).get(_rate_name(kind, blocks, mode), otherwise)

    def notes(self, weights: list[_Weight]) -> list[str]:
        if self.measured and all(_rate_name("read", each.format, "int8") in self.measured.roofs for each in weights):
            return ["rates of packed products: measured by qkv calibrate"]
        hint = ": run qkv calibrate" if self.hardware.name == HERE else ""
        return [f"packed products were not measured on {self.hardware.name}, its peak rates are assumed{hint}"]


def _rate_name(kind: str, blocks: str, mode: str) -> str:
    return f"packed.{blocks}.{mode if BLOCKS[blocks][0] > 1 else 'float32'}.{kind}"


def packed_rates(far: int, best_time: Callable[[Any], float]) -> Iterator[tuple[str, Callable[[], float]]]:
    """Names of the rates of packed products, each with a function that measures it.

    Args:
        far: Bytes of a matrix that no processor cache holds.
        best_time: The least seconds of a call.
    """

    def product(blocks: str, mode: str, nbytes: int, rows: int) -> tuple[int, float]:
        """Bytes of the matrix, and seconds."""
        elements, size = BLOCKS[blocks]
        row_bytes = _COLUMNS // elements * size
        weight = torch.full((max(1, nbytes // row_bytes), row_bytes), 0x11, dtype=torch.uint8)  # small finite numbers
        x = torch.ones(rows, _COLUMNS)
        return weight.nbytes, best_time(lambda: packed_linear(x, weight, None, blocks, _COLUMNS, mode))

    def read(blocks: str, mode: str) -> float:
        nbytes, seconds = product(blocks, mode, far, 1)
        return nbytes / seconds

    def multiply(blocks: str, mode: str) -> float:
        elements, size = BLOCKS[blocks]
        nbytes, seconds = product(blocks, mode, 256 * _COLUMNS // elements * size, _MANY)
        return 2 * _MANY * (nbytes // size * elements) / seconds

    for blocks, (elements, _) in BLOCKS.items():
        for mode in ACTIVATION_CODES if elements > 1 else ("float32",):
            yield _rate_name("read", blocks, mode), lambda given=(blocks, mode): read(*given)
            yield _rate_name("multiply", blocks, mode), lambda given=(blocks, mode): multiply(*given)
