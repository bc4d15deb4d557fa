"""Masks in words: sentences, lists and tables are read, and every table of masks is judged as a table."""

from __future__ import annotations

from itertools import product

import pytest

from qkv.problems.judging.masking import CAUSAL, CROSS, DECODER, ENCODER, PADDING, SCENARIOS, Masks

TRANSLATION = SCENARIOS["translation"].answer
EVERY = [frozenset(), frozenset({PADDING}), frozenset({CAUSAL}), frozenset({PADDING, CAUSAL})]


@pytest.mark.parametrize("answer", [
    "A padding mask on the encoder's self-attention and on cross-attention, a causal mask on decoder self-attention.",
    ("Encoder self-attention: key padding mask. Decoder self-attention: causal mask (and padding). Cross-attention: "
    "source padding mask."),
    "Encoder: padding mask\nDecoder self-attention: causal + padding mask\nCross-attention: encoder padding mask",
    ("In the encoder only the padding mask; in the decoder's self-attention a causal mask; in encoder-decoder "
    "attention the padding mask of the source."),
    ("The causal mask goes on decoder self-attention only, the padding mask on encoder self-attention and "
    "cross-attention."),
    ("- Encoder self-attention: padding mask only\n- Decoder self-attention: causal mask (no padding mask needed)\n"
    "- Cross-attention: key padding mask, no causal mask"),
    ("**Encoder:**\n- self-attention: key_padding_mask\n**Decoder:**\n- self-attention: causal\n"
    "- cross-attention: key_padding_mask"),
    ("| module | mask |\n|---|---|\n| encoder self-attention | padding |\n| decoder self-attention | causal |\n"
    "| cross-attention | padding |"),
])  # fmt: skip
def test_ways_to_say_it(answer: str) -> None:
    assert TRANSLATION.check(answer).kind == "right", (TRANSLATION.read(answer), TRANSLATION.check(answer))


@pytest.mark.parametrize(("answer", "kind"), [
    ("Encoder: padding and causal. Decoder: causal. Cross-attention: padding.", "wrong"),
    ("causal mask in all attention modules", "wrong"), ("decoder: causal", "incomplete"), ("I do not know", "unread"),
    ("", "unread"), ("Encoder self-attention: none; decoder: causal; cross-attention: none", "wrong"),
    ("mask " * 3000, "unread"), ("padding, " * 2000, "unread"),
])  # fmt: skip
def test_others(answer: str, kind: str) -> None:
    assert TRANSLATION.check(answer).kind == kind


def test_every_table_is_read_back() -> None:
    for put in product(EVERY, repeat=3):
        table = dict(zip((ENCODER, DECODER, CROSS), put, strict=True))
        masks = Masks(table)
        assert masks.read(masks.text) == table
        assert masks.check(masks.text)
        fits = (put[0] == {PADDING}, CAUSAL in put[1], put[2] == {PADDING})
        assert bool(TRANSLATION.check(masks.text)) == all(fits)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    scenario = SCENARIOS[name]
    assert scenario.answer.check(scenario.answer.text)
    for known in scenario.misconceptions():
        assert not scenario.answer.check(known.planted)
        assert scenario.answer.same(known.planted, known.planted)


def test_only_one_place_needs_no_name() -> None:
    encoder, decoder = SCENARIOS["encoder"].answer, SCENARIOS["decoder"].answer
    assert encoder.check("just the padding mask; no causal mask, since it reads in both directions")
    assert encoder.check("Both masks").kind == "wrong"
    assert decoder.check("only a causal mask; with padding on the right the padding mask is not needed")
    assert decoder.check("causal and padding masks")
    assert SCENARIOS["left padding"].answer.check("a causal mask").kind == "wrong"


@pytest.mark.parametrize(("scenario", "answer", "kind"), [
    ("encoder", "a padding mask on the cross-attention", "wrong"),
    ("encoder", "No causal mask.", "incomplete"),
    ("encoder", "Only the padding mask is used, while tokens see each other in both directions.", "right"),
    ("decoder", "A causal mask on the cross-attention to the encoder.", "wrong"),
    ("decoder", "The decoder needs both the causal mask and the padding mask.", "conditional"),
    ("decoder", "A causal mask. If one pads on the left, a padding mask has to be added.", "right"),
    ("translation", "Padding mask on the encoder self-attention and causal mask on the decoder self-attention.",
     "incomplete"),
    ("translation", "Encoder: hide pads; decoder self-attention: hide the future; cross-attention: hide pads", "right"),
    ("translation", "Encoder: padding; decoder: causal; cross: causal and padding", "wrong"),
])  # fmt: skip
def test_the_attention_that_is_named_counts(scenario: str, answer: str, kind: str) -> None:
    assert SCENARIOS[scenario].answer.check(answer).kind == kind
