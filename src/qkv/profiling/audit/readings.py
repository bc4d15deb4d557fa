"""What qkv counts for each part of a model, and what the part comes to for those who take it for something else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...cost.architecture import Model
from ...cost.blocks import model_cost, parts
from ...cost.ledger import Ledger
from .causes import Part
from .viewer import key_numbers, viewed

ITEM = 2  # bytes of a number: 16 bits for weights, cache and what stands between
WINDOW = "ignores the window"
CAUSAL = "counts scores that the causal mask hides"
HEADS = "takes a head to be d_model / heads wide"
LATENT = "takes latent attention for heads that are d_model / heads wide"
EXPERTS = "takes the experts for one network that is d_ff wide"
NO_LOGITS = "makes logits, which an encoder has none of"
NO_CACHE = "keeps keys and values, which an encoder need not"
QUERY_HEADS = "takes query heads for key/value heads (GQA ignored)"
KEYS_ONLY = "reads the keys and not the values"
SQUARE = "takes the answer for queries × keys, not queries × head width"
TWICE = "writes the answer twice"


@dataclass(frozen=True)
class Reading:
    """One stage of a model: what qkv counts, by part, and the steps from its bytes to LLM-Viewer's."""

    stage: str
    batch: int
    new: int
    past: int
    ledger: Ledger
    parts: dict[str, Part]
    held: Part
    read: Part
    stored: Part

    @property
    def absorbed(self) -> bool:
        """Whether latent attention runs in the latent space, which decoding makes cheaper."""
        return any(line.name == "projections: queries into the latent space" for line in self.ledger.lines)


def reading(model: Model, stage: str, batch: int, context: int) -> Reading:
    """Of a prompt ("prefill"), or of one token ("decode") that is the last of the context."""
    new, past = (1, context - 1) if stage == "decode" else (context, 0)
    ledger = model_cost(model, batch, new, past, logit_tokens=1, item=ITEM)
    found = parts(ledger)
    everywhere = replace(model, window=None, window_layers=0)
    unwindowed = parts(model_cost(everywhere, batch, new, past, item=ITEM))["scores"].products
    theirs, tokens, d = viewed(model, batch, context, stage, ITEM), batch * new, model.d_model
    keys, narrow = key_numbers(model), HEADS if model.latent is None else LATENT
    cells = batch * model.heads * new * context * model.layers
    readings = {
        "projections": ((narrow, 2 * tokens * d * (2 * d + 2 * keys) * model.layers),),
        "scores": ((WINDOW, unwindowed), (CAUSAL, unwindowed + _hidden(model, batch, new, ledger)),
                   (narrow, 4 * cells * (d // model.heads))),
        "feed-forward": ((EXPERTS, 2 * tokens * (3 if model.gated else 2) * d * model.d_ff * model.layers),),
        "logits": ((NO_LOGITS, 2 * batch * d * model.vocabulary),),
    }  # fmt: skip
    numbers = _numbers(model, batch, new, past, cells)
    items = {
        name: Part(
            "SDPA" if name == "scores" else name,
            found[name].products if name in found else 0,
            found[name].elementwise if name in found else 0,
            readings.get(name, ()),
            numbers.get(name, ()),
        )
        for name in {**found, **theirs.flops}
    }
    held = model.cache_bytes(context, batch, ITEM)
    open_held = everywhere.cache_bytes(context, batch, ITEM)
    plain, wide = (
        model.layers * ITEM * 2 * batch * context * count for count in (keys, model.heads * (d // model.heads))
    )
    square = ITEM * cells
    first = NO_CACHE if model.kind == "encoder" else narrow
    return Reading(
        stage, batch, new, past, ledger, items,
        Part("the cache", held, 0, ((WINDOW, open_held), (first, plain))),
        Part("the cache", held, 0, ((WINDOW, open_held), (narrow, plain), (QUERY_HEADS, wide), (KEYS_ONLY, wide // 2))),
        Part("the answers", found["scores"].written, 0, ((SQUARE, square), (TWICE, 2 * square))),
    )  # fmt: skip


def _hidden(model: Model, batch: int, new: int, ledger: Ledger) -> int:
    """Flops of products for scores above the diagonal."""
    if model.kind == "encoder":
        return 0
    wide = model.head_width + model.value_width
    if model.latent is not None and any("latent space" in line.name for line in ledger.lines):
        wide = 2 * model.latent.kv_rank + model.latent.rope_width
    return model.layers * model.heads * 2 * wide * batch * (new * (new - 1) // 2)


def _numbers(model: Model, batch: int, new: int, past: int, cells: int) -> dict[str, tuple[tuple[str, int], ...]]:
    """How many numbers elementwise work is done on."""
    tokens, d, encoder = batch * new, model.d_model, model.encoder_layers if past == 0 else 0
    sparse = model.layers - model.dense_layers if model.experts else 0
    dense = (model.layers - sparse + encoder) * model.d_ff
    activations = tokens * (dense + sparse * (model.experts_active + model.shared_experts) * model.expert_d_ff)
    routed = activations + tokens * sparse * model.experts
    cross = model.layers * (model.kind == "encoder-decoder")
    scaled = (model.layers + encoder) * model.norms_per_layer + cross + model.final_norm * (1 + (encoder > 0))
    passed = tokens * d * model.layers
    return {
        "scores": (("score", cells),),
        "feed-forward": (
            ("number of an activation", activations),
            ("number of an activation or of the choice of experts", routed),
            ("of d_model, not d_ff, numbers of an activation", passed),
        ),
        "norms": (("number that is normalised", tokens * d * scaled), ("number of a layer's norms and sums", passed)),
        "embedding": (("number that is normalised", tokens * d * (1 + (encoder > 0))),),
    }
