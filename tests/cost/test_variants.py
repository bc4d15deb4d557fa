"""Caches and decode steps of attention variants, against counts by hand, plans and formulas."""

import pytest
import torch

from qkv.cache.pages import page_layout, to_storage
from qkv.cost import Hardware, Model, plan
from qkv.cost.sizes import BITS
from qkv.cost.variants import VARIANTS, formulas_of, past, seconds_by_roofline, smaller_from
from qkv.errors import OptionError, ShapeError

SIZES = [
    {"batch": 1, "heads": 1, "kv_heads": 1, "width": 8},
    {"batch": 3, "heads": 12, "kv_heads": 4, "width": 40},
    {"batch": 64, "heads": 64, "kv_heads": 8, "width": 256},
]
TOKENS = (0, 1, 63, 4099)
CACHES = ("float32", "bfloat16", "float16", "int8")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("cache", CACHES)
def test_counts_by_hand(sizes, cache):
    b, h, w, item = sizes["batch"], sizes["heads"], sizes["width"], BITS[cache] // 8
    for n in TOKENS:
        for way, g in (("MHA", h), ("GQA", sizes["kv_heads"]), ("MQA", 1)):
            found = past(way, tokens=n, cache=cache, **sizes)
            a_token = b * g * 2 * w
            assert (found.kv_heads, found.cache_bytes) == (g, item * n * a_token)
            assert found.scale_bytes == (2 * 4 * b * g * n if cache == "int8" else 0)
            # Queries, the new key and the new value come in float32; the new ones go to the cache, answers out.
            assert found.step.read == found.cache_bytes + 4 * (b * h * w + a_token)
            assert found.step.written == item * a_token + 4 * b * h * w
            pairs = b * h * (n + 1)
            assert found.step.products == 2 * pairs * 2 * w
            assert found.step.elementwise == 5 * pairs + b * h * w
        linear = past("linear", tokens=n, cache=cache, **sizes)
        assert linear.cache_bytes == 4 * b * sizes["kv_heads"] * w * (w + 1)
        assert linear == past("linear", tokens=0, **sizes)
        assert linear.scale_bytes == 0


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("cache", CACHES)
def test_formulas_give_the_numbers(sizes, cache):
    letters = dict(zip("bhgw", sizes.values(), strict=True)) | {"c": BITS[cache] // 8}
    for way in VARIANTS:
        for n in TOKENS:
            found, texts = past(way, tokens=n, cache=cache, **sizes), formulas_of(way)._asdict()
            alone = texts.pop("intensity")
            counted = {"held": found.cache_bytes} | {
                name: getattr(found.step, name) for name in ("read", "written", "flops")
            }
            for name, text in texts.items():
                assert eval(text.replace("·", "*"), {"__builtins__": {}}, letters | {"n": n}) == counted[name], name
            memory = sum(line.traffic for line in found.step.lines if line.name.startswith("cache"))
            intensity = eval(alone.replace("·", "*"), {"__builtins__": {}}, letters)
            assert intensity == pytest.approx(found.step.products / memory, rel=1e-15)


def test_the_plan_says_the_same():
    model = Model(layers=1, d_model=24 * 32, heads=24, kv_heads=6, head_width=32)
    found = plan(model, "t4", context=1001, batch=5, weights="float32", cache="int8")
    sizes = {"batch": 5, "heads": 24, "kv_heads": 6, "width": 32, "cache": "int8"}
    ours = past("GQA", tokens=1000, **sizes)
    scores, cache = found.parts["scores"], found.parts["cache"]
    assert (ours.step.flops, ours.step.traffic) == (scores.flops + cache.flops, scores.bytes + cache.bytes)
    kept = {way: past(way, tokens=1001, **sizes).cache_bytes for way in VARIANTS}
    assert kept == {way: found.variants["GQA(6)" if way == "GQA" else way].cache_bytes for way in VARIANTS}


@pytest.mark.parametrize("cache", ["int8", "int4"])
def test_scales_are_those_that_a_cache_keeps(cache):
    one = to_storage(page_layout(cache, 4, 64, 64), torch.ones(4, 100, 64), torch.ones(4, 100, 64))
    found = past("GQA", batch=3, heads=8, kv_heads=4, width=64, tokens=100, cache=cache)
    assert found.scale_bytes == 3 * (one.key_scale.nbytes + one.value_scale.nbytes)
    assert found.cache_bytes == 3 * (one.key.nbytes + one.value.nbytes)


@pytest.mark.parametrize(("rate", "bandwidth"), [(80e9, 8e9), (1e9, 8e9)])
def test_the_roofline_is_one_of_the_whole_step(rate, bandwidth):
    step = past("GQA", batch=1, heads=32, kv_heads=8, width=128, tokens=4096, cache="bfloat16").step
    flops = 32 * (4097 * (4 * 128 + 5) + 128)
    moved = 2 * 2 * 8 * 128 * 4097 + 4 * (2 * 32 * 128 + 2 * 8 * 128)
    seconds = seconds_by_roofline(step, Hardware("mine", {"float32": rate}, bandwidth, 2**34))
    assert seconds == {80e9: moved / 8e9, 1e9: flops / 1e9}[rate]
    assert flops / seconds == pytest.approx(min(rate, step.intensity * bandwidth))


@pytest.mark.parametrize("sizes", SIZES)
def test_where_the_state_is_smaller(sizes):
    for way in ("MHA", "GQA", "MQA"):
        at = smaller_from(way, cache="bfloat16", **sizes)
        assert at is not None
        state = past("linear", tokens=0, **sizes).cache_bytes
        kept = [past(way, tokens=n, cache="bfloat16", **sizes).cache_bytes for n in (at - 1, at)]
        assert kept[0] <= state < kept[1]


def test_refusals():
    with pytest.raises(OptionError, match="one of MHA, GQA, MQA, linear"):
        past("mla", batch=1, heads=1, kv_heads=1, width=8, tokens=1)
    with pytest.raises(ShapeError):
        past("GQA", batch=1, heads=6, kv_heads=4, width=8, tokens=1)
    with pytest.raises(OptionError, match="int3"):
        past("GQA", batch=1, heads=6, kv_heads=3, width=8, tokens=1, cache="int3")
