"""Every architecture has the same outputs with qkv as with eager attention, for every kind of call.

One row an architecture, one column a check; what is not applicable has its reason in tiny_models. The matrix is
printed at the end of a run. Differences are relative to the largest |logit|: TOLERANCE, stated once, in tiny_models.
"""

import functools
from collections import Counter

import pytest
import torch
from transformers import Cache, EncoderDecoderCache, StaticCache

from tests.helpers.hf_harness import (
    CHUNKS,
    NEW,
    close,
    generate,
    greedy,
    in_chunks,
    run,
    same_beams,
    same_generation,
    wanted_forward,
    wanted_generation,
    wanted_in_chunks,
)
from tests.helpers.tiny_models import (
    CHECKS,
    TABLE,
    eager,
    expected_served,
    inputs,
    names,
    ours,
    output_of,
    pair,
    prompt,
    why_not,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

TESTS: dict[str, tuple[str, list[str]]] = {}  # check -> (its test, the architectures it runs)


def checks(check, quick=None):
    """Parametrises a test over the architectures that a check applies to; with `quick` all others are slow."""

    def mark(test):
        TESTS[check] = (test.__name__, names(check))
        slow = [] if quick is None else [name for name in names(check) if name not in quick]
        each = [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in names(check)]
        return pytest.mark.parametrize("name", each)(test)

    return mark


@pytest.fixture(autouse=True)
def cell(request, record_property):
    """The cell of the matrix that a test fills travels with its report, from worker processes too."""
    by_test = {test: check for check, (test, _) in TESTS.items()}
    check = by_test.get(request.node.originalname)
    if check and "name" in request.node.callspec.params:
        record_property("matrix", [request.node.callspec.params["name"], check])


def hf():
    import qkv

    return qkv.hf


@pytest.mark.slow
@checks("forward")
def test_forward(name):
    given, _ = inputs(name)
    close(output_of(run(ours(name), given)), wanted_forward(name, None))
    one, _ = inputs(name, batch=1, seed=5)
    close(output_of(run(ours(name), one)), output_of(run(eager(name), one)))


@pytest.mark.slow
@checks("pad left")
def test_padding_on_the_left(name):
    given, real = inputs(name, "left")
    close(output_of(run(ours(name), given)), wanted_forward(name, "left"), real)


@pytest.mark.slow
@checks("pad right")
def test_padding_on_the_right(name):
    given, real = inputs(name, "right")
    close(output_of(run(ours(name), given)), wanted_forward(name, "right"), real)


def checks_sides(check):
    """The same, and over the sides that generation pads: Whisper's encoder has no mask.

    With padding on the right generate() would read logits of padding, so that steps are taken by hand there; beams
    cannot be, and pad on the right only where that is the encoder's input.
    """
    padded = {None: "whole", "left": "left", "right": "right"}

    def applies(name, side):
        if side is None or name == "whisper":
            return side is None
        if side == "right" and TABLE[name].recurrent:  # transformers' steps after such padding are others than ours
            return False
        return not (side == "right" and "beams" in check and TABLE[name].kind == "decoder")

    def mark(test):
        TESTS[check] = (test.__name__, names(check))
        cases = [
            pytest.param(name, side, id=f"{name}-{word}")
            for name in names(check)
            for side, word in padded.items()
            if applies(name, side)
        ]
        return pytest.mark.parametrize(("name", "side"), cases)(test)

    return mark


@pytest.mark.slow
@checks_sides("default cache")
def test_greedy_generation_with_the_default_cache(name, side):
    same_generation(greedy(ours(name), name, side), wanted_generation(name, side))


@pytest.mark.slow
@checks_sides("static cache")
def test_greedy_generation_with_a_static_cache(name, side):
    if side == "right" and TABLE[name].kind == "decoder":
        more = {"past_key_values": StaticCache(config=ours(name).config, max_cache_len=37)}
    else:
        more = {"cache_implementation": "static", "disable_compile": True}
    same_generation(greedy(ours(name), name, side, **more), wanted_generation(name, side))


@pytest.mark.slow
@checks_sides("qkv cache")
def test_greedy_generation_with_a_cache_of_qkv(name, side):
    cache = hf().cache(ours(name))
    assert isinstance(cache, Cache)
    assert isinstance(cache, EncoderDecoderCache) == (TABLE[name].kind != "decoder")
    assert len(cache) == TABLE[name].caches
    assert int(cache.get_seq_length()) == 0
    hf().reset_layer_calls()
    found = greedy(ours(name), name, side, past_key_values=cache)
    same_generation(found, wanted_generation(name, side))
    for key, times in expected_served(TABLE[name], decoder_of(name)).items():
        assert hf().layer_calls()[key] >= NEW * times, f"{key} was not served in every step"


def decoder_of(name):
    return ours(name) if TABLE[name].kind == "decoder" else ours(name).get_decoder()


@pytest.mark.slow
@checks_sides("beams")
def test_beams_with_the_default_cache(name, side):
    same_beams(beams(ours(name), name, side), beams_of_eager(name, side))


@pytest.mark.slow
@checks_sides("beams, qkv cache")
def test_beams_with_a_cache_of_qkv(name, side):
    same_beams(beams(ours(name), name, side, past_key_values=hf().cache(ours(name))), beams_of_eager(name, side))


def beams(model, name, side, **more):
    return generate(model, prompt(name, side), num_beams=3, output_scores=True, **more)


@functools.cache
def beams_of_eager(name, side):
    return beams(eager(name), name, side)


@pytest.mark.slow
@pytest.mark.parametrize("side", [None, "left", "right"], ids=["whole", "left", "right"])
@checks("chunked prefill")
def test_prefill_in_chunks_with_a_cache_of_qkv(name, side):
    given, real = inputs(name, side)
    for chunks in (CHUNKS, (1,) * 13, (13,)):
        found = in_chunks(ours(name), name, given, hf().cache(ours(name)), chunks)
        wanted = wanted_forward(name, side) if TABLE[name].recurrent else wanted_in_chunks(name, side, chunks)
        close(found, wanted, real, what=f"logits in chunks of {chunks}")


ATTENTIONS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")


@pytest.mark.slow
@pytest.mark.parametrize("side", [None, "right"], ids=["whole", "right"])
@checks("attentions")
def test_attentions_are_those_of_eager(name, side):
    if side and why_not(TABLE[name], f"pad {side}"):
        return
    given, real = inputs(name, side)
    theirs, found = (run(model, given, output_attentions=True) for model in (eager(name), ours(name)))
    close(output_of(found), output_of(theirs), real if side else None)
    layers = 0
    for key in ATTENTIONS:
        weights = getattr(theirs, key, None)
        if weights is None:
            continue
        assert len(found[key]) == len(weights), key
        for layer, (a, b) in enumerate(zip(found[key], weights, strict=True)):
            rows = real
            if key == "encoder_attentions" and "attention_mask" in given:
                rows = given["attention_mask"].bool()
            if not side or rows.shape[1] != b.shape[2]:
                rows = torch.ones(b.shape[0], b.shape[2], dtype=torch.bool)
            close(a.transpose(1, 2), b.transpose(1, 2), rows, what=f"{key} of layer {layer}")
            layers += 1
    assert layers == sum(TABLE[name].weighted.values())


@checks("served", quick=("bert", "llama", "deepseek_v3", "qwen3_next", "t5", "whisper", "vit"))
def test_every_attention_layer_is_served(name):
    tiny, model = TABLE[name], ours(name)
    expected = expected_served(tiny, model)
    assert sum(expected.values()) == sum(tiny.layers.values()), "the table and the model disagree"
    given, _ = inputs(name)
    hf().reset_layer_calls()
    assert hf().layer_calls() == Counter()
    run(model, given)
    found = hf().layer_calls()
    assert isinstance(found, Counter)
    assert found == expected
    run(eager(name), given)
    assert hf().layer_calls() == expected, "eager attention is not ours"
    run(model, given)
    assert hf().layer_calls() == expected + expected
    hf().reset_layer_calls()
    assert not hf().layer_calls()


def test_the_matrix_is_complete():
    assert len(TABLE) >= 24
    assert set(TESTS) == set(CHECKS)
    for tiny in TABLE.values():
        for check in CHECKS:
            reason = why_not(tiny, check)
            if reason is None:
                assert tiny.name in TESTS[check][1], f"{tiny.name}: nothing tests {check}"
            else:
                assert len(reason) > 10, f"{tiny.name}: {check} is left out without a reason"
    kinds = Counter(tiny.kind for tiny in TABLE.values())
    assert all(kinds[kind] for kind in ("encoder", "decoder", "encoder-decoder", "vision", "speech")), kinds
    for feature in ("softcap", "scale", "window", "bias", "sink"):
        assert any(feature in tiny.has for tiny in TABLE.values()), feature


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt_oss", "t5", "bart", "modernbert"])
def test_every_way_to_select_attention_in_transformers(name, tmp_path):
    """from_pretrained, set_attn_implementation there and back: the same logits through each."""
    given, _ = inputs(name)
    wanted = wanted_forward(name, None)
    theirs, _ = pair(name)
    theirs.save_pretrained(tmp_path)
    more = {"experts_implementation": "eager"} if name == "gpt_oss" else {}
    model = type(theirs).from_pretrained(tmp_path, attn_implementation="qkv", **more)
    assert model.config._attn_implementation == "qkv"
    close(output_of(run(model, given)), wanted)
    model.set_attn_implementation("eager")
    hf().reset_layer_calls()
    close(output_of(run(model, given)), wanted, tolerance=1e-7)
    assert not hf().layer_calls()
    model.set_attn_implementation("qkv")
    close(output_of(run(model, given)), wanted)
    assert sum(hf().layer_calls().values()) == sum(TABLE[name].layers.values())


def test_register_may_be_called_again():
    hf().register()
    assert hf().register() is None
    given, _ = inputs("llama")
    close(output_of(run(ours("llama"), given)), wanted_forward("llama", None))
