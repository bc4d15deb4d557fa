"""Helpers of the tests of qkv.hf: differences relative to the largest logit, generation, prefill in chunks."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerationMixin

from tests.helpers.tiny_models import LENGTHS, TABLE, TOLERANCE, eager, inputs, output_of, prompt

NEW = 9  # tokens generated: with a prompt of 13, rings of 5 turn more than once
CHUNKS = (5, 1, 4, 3)


def difference(found: Tensor, wanted: Tensor, real: Tensor | None = None) -> float:
    """The largest difference at real positions, relative to the largest |wanted| there."""
    assert found.shape == wanted.shape, f"shape {tuple(found.shape)}, wanted {tuple(wanted.shape)}"
    if real is not None:
        found, wanted = found[real], wanted[real]
    assert found.isfinite().all(), "not finite at real tokens"
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())


def close(
    found: Tensor, wanted: Tensor, real: Tensor | None = None, *, tolerance: float = TOLERANCE, what: str = "logits"
) -> None:
    off = difference(found, wanted, real)
    assert off <= tolerance, f"{what} differ by {off:.1e} of the largest; at most {tolerance:.0e} is wanted"


def run(model: Any, given: dict[str, Tensor], **more: Any) -> Any:
    with torch.no_grad():
        return model(**given, **more)


def generate(model: Any, given: dict[str, Tensor], n: int = NEW, **more: Any) -> Any:
    """Greedy by default. Every class has GenerationMixin's generate, except Whisper with its long-form one."""
    return GenerationMixin.generate(
        model,
        **given,
        min_new_tokens=n,
        max_new_tokens=n,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **more,
    )


@functools.cache
def wanted_generation(name: str, side: str | None) -> tuple[Tensor, Tensor]:
    return greedy(eager(name), name, side)


def greedy(model: Any, name: str, side: str | None, **more: Any) -> tuple[Tensor, Tensor]:
    """(tokens, logits of each step): by generate, or step by step where generate would read the logits of padding."""
    if side == "right" and TABLE[name].kind == "decoder":
        return by_hand(model, name, **more)
    out = generate(model, prompt(name, side), **more)
    return out.sequences[:, -NEW:], torch.stack(out.logits, dim=1)


def by_hand(model: Any, name: str, past_key_values: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
    """Greedy steps behind a prompt with padding on the right: the first logits are those of the last real token.

    The padding stays where it is, between the prompt and what is generated, and the mask says so.
    """
    given = prompt(name, "right")
    ids, mask, n = given["input_ids"], given["attention_mask"], torch.tensor(LENGTHS[3])
    with_positions = "position_ids" in inspect.signature(model.forward).parameters
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    tokens, logits = [], []
    for step in range(NEW):
        more = {"position_ids": positions} if with_positions else {}
        out = run(model, {"input_ids": ids, "attention_mask": mask}, past_key_values=past_key_values, **more)
        past_key_values = out.past_key_values
        row = torch.arange(len(ids))
        logits.append(out.logits[row, n - 1] if step == 0 else out.logits[:, -1])
        ids = logits[-1].argmax(-1, keepdim=True)
        tokens.append(ids)
        positions = (n + step)[:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return torch.cat(tokens, dim=1), torch.stack(logits, dim=1)


def same_generation(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    """Logits close at every step, and the same tokens."""
    for step in range(wanted[1].shape[1]):
        close(found[1][:, step], wanted[1][:, step], what=f"logits of step {step}")
    assert found[0].tolist() == wanted[0].tolist()


def same_beams(found: Any, wanted: Any) -> None:
    assert found.sequences.tolist() == wanted.sequences.tolist()
    close(found.sequences_scores, wanted.sequences_scores, tolerance=10 * TOLERANCE, what="scores of beams")


def in_chunks(model: Any, name: str, given: dict[str, Tensor], cache: Any, chunks: tuple[int, ...] = CHUNKS) -> Tensor:
    """Logits of all positions, fed in chunks through a cache (None: the model's own); the mask grows with them."""
    encoder_decoder = TABLE[name].kind in ("encoder-decoder", "speech")
    ids_name, mask_name = (
        ("decoder_input_ids", "decoder_attention_mask") if encoder_decoder else ("input_ids", "attention_mask")
    )
    given = dict(given)
    ids, mask = given.pop(ids_name), given.pop(mask_name, None)
    if encoder_decoder:
        source = {key: given[key] for key in ("input_ids", "input_features", "attention_mask") if key in given}
        given = {"encoder_outputs": run(model.get_encoder(), source)}
        if "attention_mask" in source:
            given["attention_mask"] = source["attention_mask"]
    found, at = [], 0
    for n in chunks:
        step = {ids_name: ids[:, at : at + n]}
        if mask is not None:
            step[mask_name] = mask[:, : at + n]
        out = run(model, {**given, **step}, past_key_values=cache, use_cache=True)
        found.append(output_of(out))
        assert cache is None or out.past_key_values is cache
        cache, at = out.past_key_values, at + n
        assert int(cache.get_seq_length()) == at, f"get_seq_length {cache.get_seq_length()} after {at} positions"
    assert at == ids.shape[1]
    return torch.cat(found, dim=1)


@functools.cache
def wanted_in_chunks(name: str, side: str | None, chunks: tuple[int, ...]) -> Tensor:
    """Eager attention in the same chunks, which change positions in some architectures (M2M-100 with padding)."""
    return in_chunks(eager(name), name, inputs(name, side)[0], None, chunks)


@functools.cache
def wanted_forward(name: str, side: str | None) -> Tensor:
    """The output of eager attention for the whole batch."""
    given, _ = inputs(name, side)
    more = {"use_cache": False} if TABLE[name].generates else {}
    return output_of(run(eager(name), given, **more))
