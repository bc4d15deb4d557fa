"""One decoding step of latent attention (MLA) after a long past: the layer of transformers, and qkv's.

`layer` is DeepseekV3Attention of transformers, all of it: projections of the token, rotary positions, cache, attention
and output. Its own path computes keys and values of every head from all latents in each step (eager or SDPA); with
`qkv.hf.cache` it runs absorbed. The target is 4 times the speed of the faster one.

`step` is `qkv.cache.decode_latents` alone: the projections into the latent space and out of it, and `qkv.decode` on the
latents, cold. `decode` is the latter. GB/s are those of the latents, which are read once. All heads read the same
latents, almost four operations a head for each number: flops bind where the cores cannot multiply as fast as they read.
`of read` is the bandwidth over the read roof, `of flops` the rate over that of torch's product of matrices, both of the
same run. The target is 60% of the one that binds.

`python -m benchmarks latents [--quick]`
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import qkv
from qkv.cache.latents import decode_latents
from qkv.cost.price import latent_flops

from .decode import ms
from .harness import LiveTable
from .peers import TimedCall
from .roofs import Roofs, describe
from .rotation import caches, compare


class Sizes(NamedTuple):
    """Widths of a layer, and the tokens before the step."""

    heads: int
    d_model: int
    past: int
    rank: int = 512
    rope: int = 64
    plain: int = 128
    value: int = 128

    @property
    def latents(self) -> int:
        return self.past * (self.rank + self.rope)

    @property
    def flops(self) -> int:
        """Of scores and weighted latents."""
        widths = {"plain": 0, "rope": self.rope, "value": 0}
        return latent_flops(self.heads, self.rank, **widths, queries=0, keys=0, pairs=self.past)[0]


LITE, LARGE = Sizes(16, 2048, 4096), Sizes(128, 7168, 4096)  # DeepSeek-V2-Lite and V3
BARS = {"layer": 4.0, "roof": 0.6}
ALLOWED = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 4e-3, "int8": 4e-2}


def layers(sizes: Sizes, dtype: torch.dtype) -> dict[str, tuple[Any, Any]]:
    """The model of one layer under each implementation of attention, with the cache that it uses."""
    import transformers

    qkv.hf.register()
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        hidden_size=sizes.d_model, num_attention_heads=sizes.heads, num_key_value_heads=sizes.heads, q_lora_rank=None,
        kv_lora_rank=sizes.rank, qk_rope_head_dim=sizes.rope, qk_nope_head_dim=sizes.plain, v_head_dim=sizes.value,
        num_hidden_layers=1, first_k_dense_replace=1, intermediate_size=64, vocab_size=64, dtype=dtype,
    )  # fmt: skip
    eager = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype).eval()
    found = {}
    for name in ("eager", "sdpa", "qkv"):
        model = copy.deepcopy(eager)
        model.set_attn_implementation(name)
        found[name] = model, qkv.hf.cache(model) if name == "qkv" else transformers.DynamicCache(config=config)
    return found


def layer_call(model: Any, cache: Any, sizes: Sizes, token: torch.Tensor) -> tuple[Callable[[], Any], TimedCall]:
    """A step of the layer after random latents."""
    attention, dtype = model.model.layers[0].self_attn, token.dtype
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(1, 1, sizes.past, sizes.rank, generator=generator).to(dtype)
    rotary = torch.randn(1, 1, sizes.past, sizes.rope, generator=generator).to(dtype)
    layer: Any = cache.layers[0] if cache.layers else None
    if hasattr(layer, "stored"):
        layer.lazy_initialization(latents, rotary)
        layer.cache.append(torch.cat([latents, rotary], dim=-1))
        layer.length = sizes.past
    else:
        cache.update(latents, rotary, 0)
    positions = model.model.rotary_emb(token, torch.tensor([[sizes.past]]))

    def run() -> Any:
        return attention(token, position_embeddings=positions, attention_mask=None, past_key_values=cache)[0]

    return run, TimedCall(run, lambda: cache.crop(-1))


def step_calls(sizes: Sizes, dtype: str, kind: torch.dtype) -> dict[str, list[TimedCall]]:
    """`step` and `decode` on as many caches and matrices as make them cold."""
    found: dict[str, list[TimedCall]] = {"step": [], "decode": []}
    width = sizes.rank + sizes.rope
    query = torch.randn(1, sizes.heads, 1, sizes.plain + sizes.rope).to(kind)
    inner = torch.randn(1, sizes.heads, 1, width).to(kind)
    key = torch.randn(1, 1, 1, width).to(kind)
    for _ in range(caches(sizes.latents * qkv.cache.formats.storage_format(dtype).element.itemsize)):
        cache = qkv.KVCache(1, 1, width, value_width=sizes.rank, dtype=dtype, latent=True)
        cache.append(torch.randn(1, 1, sizes.past, width).to(kind))
        up = (torch.randn(sizes.heads, sizes.plain + sizes.value, sizes.rank) * sizes.rank**-0.5).to(kind)

        def undo(cache: Any = cache) -> None:
            cache.crop(sizes.past)

        found["step"].append(TimedCall(lambda up=up, cache=cache: decode_latents(query, key, up, cache), undo))
        found["decode"].append(TimedCall(lambda cache=cache: qkv.decode(inner, key, None, cache), undo))
    return found


def measure(sizes: Sizes, dtype: str, table: LiveTable, roofs: Roofs, quick: bool) -> None:
    kind = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    rounds = {"rounds": 3 if quick else 7, "seconds": 0.0 if quick else 1.0}
    token = torch.randn(1, 1, sizes.d_model).to(kind)
    calls, answers = {}, {}
    if dtype != "int8":
        for name, (model, cache) in layers(sizes, kind).items():
            run, call = layer_call(model, cache, sizes, token)
            answers[name], calls[name] = run().double(), [call]
            cache.crop(-1)
    for name, answer in answers.items():
        error = float((answer - answers["eager"]).abs().max() / answers["eager"].abs().max())
        if not error <= ALLOWED[dtype]:
            raise AssertionError(f"{name} in {dtype} is {error:.1e} of the largest output away from eager")
    whole = compare(calls, **rounds) if calls else None
    del calls, answers
    first = len(roofs.taken)
    roofs.measure()
    own = compare(step_calls(sizes, dtype, kind), **rounds)
    roofs.measure()
    roof = roofs.best_since(first)
    size = sizes.past * qkv.cache.formats.storage_format(dtype).row_bytes(sizes.rank + sizes.rope)
    bandwidth, rate = size / own.median("decode"), sizes.flops / own.median("decode")
    peer = None if whole is None else whole.best_of(["eager", "sdpa"])
    ratio = None if whole is None or peer is None else whole.ratio(peer, "qkv")
    bound = roof.bound(size, sizes.flops)
    met = (ratio is None or ratio >= BARS["layer"]) and roof.seconds(size, sizes.flops) >= BARS["roof"] * own.median(
        "decode"
    )
    cells = [f"{sizes.heads} heads x {sizes.past}", dtype]
    cells += ["-"] * 4 if whole is None or ratio is None else [
        *(ms(whole.median(name)) for name in ("eager", "sdpa", "qkv")), f"{ratio:.0f}x"
    ]  # fmt: skip
    cells += [ms(own.median("step")), ms(own.median("decode")), f"{bandwidth / 1e9:.1f}"]
    cells += [f"{bandwidth / roof.bandwidth:.0%}", f"{rate / roof.rate:.0%}", bound, "met" if met else "NOT MET"]
    data = {"sizes": sizes._asdict(), "dtype": dtype, "bound": bound, "ratio": ratio, "peer": peer, "met": met}
    data |= {"roof": {"bandwidth": roof.bandwidth, "rate": roof.rate}, "bandwidth": bandwidth, "rate": rate}
    table.add(cells, data | {"step": own.times, "layer": None if whole is None else whole.times})


def run() -> None:
    quick = "--quick" in sys.argv
    columns = {"ms": 17, "storage": 8, "eager": 6, "sdpa": 6, "qkv": 6, "ratio": 6, "step": 6, "decode": 6}
    columns |= {"GB/s": 5, "of read": 7, "of flops": 8, "bound": 5, "": 7}
    table = LiveTable("latents", "Latent attention: a layer of transformers, and the step alone, cold", columns)
    roofs = Roofs()
    cells = [(LITE, "float32"), (LITE, "bfloat16"), (LITE, "int8")] + ([] if quick else [(LARGE, "float32")])
    with torch.no_grad():
        for sizes, dtype in cells:
            measure(sizes, dtype, table, roofs, quick)
    table.note(describe(roofs))
