"""LLM-Viewer's published formulas, written again from what they define: the numbers that its users plan with.

It is a web page and a script that is on no package index (github.com/hahnyuan/LLM-Viewer, model_analyzer.py with the
configurations for Llama, OPT and Mixtral, as of July 2024), so that there is nothing to install and run. Where its
formulas are wrong, they are wrong here too: `qkv.cost.audit` shows what that does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cost.architecture import Model

SOFTMAX_FLOPS = 5  # largest, subtract, exp, sum, divide
NORM_FLOPS = 7
ACTIVATION_FLOPS = 2


@dataclass(frozen=True)
class Viewed:
    """Flops by part of a whole model, and bytes, as LLM-Viewer has them."""

    flops: dict[str, int]
    cache_held: int
    cache_read: int
    flash_stored: int


def viewed(model: Model, batch: int, context: int, stage: str, item: int = 2) -> Viewed:
    """What LLM-Viewer says of a prompt of so many tokens, or (stage "decode") of one more with so many in the cache.

    It knows d_model, heads, kv_heads, d_ff, layers and the vocabulary: a head is d_model / heads wide, every layer
    sees every key, causal or not, experts are one network, and logits are made for one token of each sequence.

    >>> from qkv.cost.architecture import Model
    >>> llama = Model(layers=32, d_model=4096, heads=32, d_ff=11008)
    >>> viewed(llama, 1, 4096, "prefill").flash_stored // 32  # of each layer; the answers themselves are 33554432
    2147483648
    """
    d, heads = model.d_model, model.heads
    tokens, queries = (batch, 1) if stage == "decode" else (batch * context, context)
    width = d // heads
    keys = key_numbers(model)
    scores = batch * heads * queries * context
    matrices = 3 if model.gated else 2
    layer = {
        "projections": 2 * tokens * d * (2 * d + 2 * keys),
        "scores": 4 * scores * width + SOFTMAX_FLOPS * scores,
        "feed-forward": 2 * tokens * matrices * d * model.d_ff + ACTIVATION_FLOPS * tokens * d,
        "norms": 2 * (NORM_FLOPS + 1) * tokens * d,  # two norms, two sums
    }
    flops = {part: model.layers * count for part, count in layer.items()}
    # A multiplication and an addition are one here, and two everywhere else.
    flops["logits"] = batch * d * model.vocabulary
    return Viewed(
        flops,
        cache_held=model.layers * item * 2 * batch * context * keys,
        # Flash attention: keys of all query heads, once, where keys and values of the key/value heads are read.
        cache_read=model.layers * item * batch * context * width * heads,
        # The answer of flash attention is taken to be as large as the scores, and written first as zeros.
        flash_stored=model.layers * 2 * item * scores,
    )


def key_numbers(model: Model) -> int:
    """Numbers of a token's keys in one layer."""
    return model.d_model * model.kv_heads // model.heads
