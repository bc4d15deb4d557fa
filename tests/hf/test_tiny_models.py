"""The tiny models are suitable for comparisons: every feature changes their logits, and float32 errors are small.

Nothing here needs qkv: eager attention is compared with eager attention.
"""

from copy import deepcopy

import pytest
import torch

from tests.helpers.hf_harness import difference, run
from tests.helpers.tiny_models import TABLE, TOLERANCE, attention_modules, eager, inputs, names, output_of, variant

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

FEATURES = ("softcap", "scale", "window", "bias", "sink")
HAVING = [(tiny.name, feature) for tiny in TABLE.values() for feature in FEATURES if feature in tiny.has]
WIDE = {"sliding_window": 4096, "local_attention": 4096}


def without(name, feature):
    """The same model, its feature taken away."""
    tiny = TABLE[name]
    if feature == "window":
        return variant(name, **WIDE)
    if feature == "softcap":
        return variant(name, attn_logit_softcapping=None)
    model = deepcopy(eager(name))
    if feature == "scale":
        for module in attention_modules(model, tiny.layers):
            width = getattr(module, "head_dim", None) or module.key_value_proj_dim
            assert module.scaling != pytest.approx(width**-0.5), "its scale is the usual one"
            module.scaling = width**-0.5
    elif feature == "bias":
        for key, parameter in model.named_parameters():
            if "relative_attention_bias" in key:
                parameter.data.zero_()
    elif feature == "sink":
        for key, parameter in model.named_parameters():
            if key.endswith("sinks"):
                parameter.data.fill_(-1e9)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feature"), HAVING, ids=lambda word: word)
def test_every_feature_matters(name, feature):
    given, _ = inputs(name)
    wanted = output_of(run(eager(name), given))
    off = difference(output_of(run(without(name, feature), given)), wanted)
    print(f"{name} without its {feature}: logits move by {off / TOLERANCE:.0f} tolerances")
    assert off > 100 * TOLERANCE


SCALED = [tiny.name for tiny in TABLE.values() if tiny.name != "modernbert"]  # its scale is written into the call


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALED)
def test_scores_matter(name):
    """Scores 10 % larger are another model: softmax is neither uniform nor saturated."""
    model = deepcopy(eager(name))
    for module in attention_modules(model, TABLE[name].weighted):
        attribute = "scaling" if hasattr(module, "scaling") else "scale"
        setattr(module, attribute, 1.1 * getattr(module, attribute))
    given, _ = inputs(name)
    off = difference(output_of(run(model, given)), output_of(run(eager(name), given)))
    print(f"{name} with scores 10 % larger: logits move by {off / TOLERANCE:.0f} tolerances")
    assert off > 100 * TOLERANCE


def padded():
    """(name, side) where padding can show: behind a causal mask padding on the right cannot."""
    causal = {tiny.name for tiny in TABLE.values() if tiny.kind == "decoder"} | {"clip_text", "whisper"}
    return [(name, "left") for name in names("pad left")] + [
        (n, "right") for n in names("pad right") if n not in causal
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), padded(), ids=lambda word: word)
def test_padding_matters(name, side):
    """Padding that is attended to shows at real tokens."""
    given, real = inputs(name, side)
    unmasked = {key: torch.ones_like(value) if "mask" in key else value for key, value in given.items()}
    wanted = output_of(run(eager(name), given))
    off = difference(output_of(run(eager(name), unmasked)), wanted, real)
    print(f"{name} without its padding on the {side}: logits move by {off / TOLERANCE:.0f} tolerances")
    assert off > 100 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_float32_error_is_below_the_tolerance(name):
    given, _ = inputs(name)
    wide = {key: value.double() if value.is_floating_point() else value for key, value in given.items()}
    exact = output_of(run(deepcopy(eager(name)).double(), wide))
    off = difference(output_of(run(eager(name), given)), exact)
    print(f"{name}: eager float32 is {off / TOLERANCE:.2f} tolerances from eager float64")
    assert off < TOLERANCE / 4


@pytest.mark.parametrize("name", names("attentions"))
def test_attention_is_neither_uniform_nor_one_hot(name):
    given, _ = inputs(name)
    out = run(eager(name), given, output_attentions=True)
    weights = [w for key in out if key.endswith("attentions") for w in out[key]]
    assert len(weights) == sum(TABLE[name].weighted.values())
    for layer, weight in enumerate(weights):
        last = weight[:, :, -1].double()  # the last query sees the most
        seen = (last > 0).sum(-1)
        perplexity = torch.exp(-(last * last.clamp_min(1e-300).log()).sum(-1))[seen > 2]
        share = float((perplexity / seen[seen > 2]).mean())
        assert 0.08 < share < 0.9, f"layer {layer}: {share:.2f} of the keys seen are attended to"
