"""Outputs frozen bit for bit: hashes of the outputs of some 3,000 random calls, to show that a change changes no bit.

    python -m campaigns.frozen --write FILE       compute every case twice, store the hashes of those that repeat
    python -m campaigns.frozen --check FILE       compute again and compare; exit code 1 if a hash differs
    python -m campaigns.frozen --against PYTHON   compare with another interpreter that has another copy of qkv

Bits depend on the processor and on torch: the file says where it was written, and --check elsewhere exits with code 3.
The hash of a case covers every output: values, lse, weights, gradients, contents of caches. For a case that raises, the
built-in base classes of the error are stored. This file imports nothing of campaigns, so it also runs by its path.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import and_, or_
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import qkv

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
STORED = (torch.float32, torch.float16, torch.bfloat16, torch.int8)
NAN, INF = float("nan"), float("inf")
FLAGS = re.compile(r"fma|f16c|avx.*|amx.*|asimd.*|f?bf16|i8mm|sve.*")  # instruction sets that choose between kernels


class Case(NamedTuple):
    """A computation with a name; run() gives everything that is hashed, or a string that is stored as it is."""

    name: str
    run: Callable[[], Any]
    threads: int = 1


def attempt(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What the call returns, or the built-in base classes of the error that it raises."""
    try:
        return function(*given, **options)
    except Exception as error:
        bases = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"}
        return "error:" + "|".join(sorted(bases - {"object", "BaseException", "Exception"}))


def feed(digest: Any, thing: Any) -> None:
    """Add a result to a hash: the dtype, shape and bits of tensors, with one bit pattern for every NaN."""
    if isinstance(thing, Tensor):
        thing = thing.detach()
        thing = thing.masked_fill(thing.isnan(), NAN) if thing.is_floating_point() else thing
        digest.update(f"{thing.dtype} {tuple(thing.shape)} ".encode())
        digest.update(thing.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(thing, tuple | list):
        digest.update(f"{len(thing)} of ".encode())
        for part in thing:
            feed(digest, part)
    else:
        assert isinstance(thing, bytes | str | int | None), f"no hash for {type(thing)}"
        digest.update(thing if isinstance(thing, bytes) else repr(thing).encode())


def outcome(case: Case) -> str:
    torch.set_num_threads(case.threads)
    found = attempt(case.run)
    if isinstance(found, str):
        return found
    digest = hashlib.sha256()
    feed(digest, found)
    return digest.hexdigest()[:12]


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def keep(draw: random.Random, *shape: int) -> Tensor:
    return normal(draw.randrange(1 << 30), *shape) < 0.3


def gaussian(query: Tensor, key: Tensor) -> Tensor:
    return torch.exp(-(query[..., :, None, :] - key[..., None, :, :]).square().sum(-1) / (2 * query.shape[-1]))


# Similarities by name. Maps are made once: the choice of a backend is remembered by the identity of the map.
SOFTMAX: dict[str, Any] = {
    "softmax": None, "scale": qkv.Softmax(scale=-0.7), "sink": qkv.Softmax(scale=0.4, sink=0.25),
    "softcap": qkv.Softmax(softcap=1.5), "sinks": lambda width, heads, seed: qkv.Softmax(sink=normal(seed, heads)),
    "softcap sinks": lambda width, heads, seed: qkv.Softmax(scale=0.3, softcap=2.5, sink=normal(seed, heads)),
}  # fmt: skip
RANDOM = {width: qkv.FeatureMap(qkv.features.positive_random(width, 11, seed=3)) for width in (3, 7, 11, 13, 16, 17)}
SUMMED: dict[str, Any] = {
    "square": qkv.Polynomial(2), "cube": qkv.Polynomial(3, offset=-0.5), "random": lambda width, *_: RANDOM[width],
    **{name: qkv.FeatureMap(getattr(qkv.features, name)) for name in ("elu1", "relu", "identity", "squared")},
    "elu1 sums": qkv.FeatureMap(qkv.features.elu1, normalize=False),
    "monomials": qkv.FeatureMap(qkv.features.polynomial(3, 0.5)),
    "own map": qkv.FeatureMap(lambda x: torch.cat([torch.sigmoid(x), x.square()], dim=-1)),
}  # fmt: skip
SIMILARITIES: dict[str, Any] = {**SOFTMAX, **SUMMED, "argmax": qkv.Argmax(), "gaussian": qkv.Similarity(gaussian)}
SIMILARITIES["signed"] = qkv.Similarity(lambda query, key: query @ key.mT + 0.5)
# Masks by name, for the sizes r of a call. In MASKS "|" binds before "&".
SINGLE: dict[str, Callable[[Any, random.Random], Any]] = {
    "causal": lambda r, draw: qkv.Causal() if r.len_q == r.len_k else qkv.Causal(offset=r.len_k - r.len_q),
    "causal offset": lambda r, draw: qkv.Causal(offset=draw.randrange(-3, 7)),
    "window": lambda r, draw: qkv.Window(draw.randrange(7), draw.randrange(5), offset=r.len_k - r.len_q),
    "open window": lambda r, draw: qkv.Window(left=5),  # takes the offset of the Causal that it is joined with
    "lengths": lambda r, draw: qkv.Padding([draw.randrange(r.len_k + 1) for _ in range(r.batch)]),
    "keep": lambda r, draw: qkv.Padding(keep=keep(draw, r.batch, r.len_k)),
    "drop": lambda r, draw: qkv.Padding(drop=keep(draw, r.batch, r.len_k)),
    "segments": lambda r, draw: qkv.Segments(torch.arange(r.len_q) // 5, torch.arange(r.len_k) // draw.choice((3, 7))),
    "cells": lambda r, draw: qkv.Dense(keep(draw, *scores(r))),
    "keys": lambda r, draw: qkv.Dense(keep(draw, r.len_k)),
    "predicate": lambda r, draw: qkv.Predicate(lambda b, h, i, j: (7 * i + 3 * j + h + b) % 4 != 0),
}
ONE_STATE = ("", "causal", "causal offset", "lengths", "keep", "drop", "causal & lengths", "causal offset & keep")
MASKS = (
    *(*ONE_STATE, "window", "segments", "cells", "keys", "predicate", "causal & open window", "causal & segments"),
    *("causal | lengths", "window | predicate & lengths", "cells & causal & drop", "segments | keys"),
)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda tensor: tensor,
    "batch inside": lambda tensor: tensor.transpose(0, -2).contiguous().transpose(0, -2),
    "heads inside": lambda tensor: tensor[None].transpose(-3, -2).contiguous().transpose(-3, -2)[0],
    "columns": lambda tensor: tensor.mT.contiguous().mT,
    "unaligned": lambda tensor: torch.cat([tensor[..., :1], tensor], dim=-1)[..., 1:],
    "expanded": lambda tensor: tensor[:1].expand_as(tensor),
}


def similarity_of(name: str, width: int, heads: int, seed: int) -> Any:
    found = SIMILARITIES[name]
    return found(width, heads, seed) if inspect.isfunction(found) else found


def scores(r: Any) -> tuple[int, ...]:
    """The shape of the scores, in as many dimensions as the call has."""
    return (*(r.batch,)[: r.dims - 2], *(r.heads,)[: max(0, r.dims - 3)], r.len_q, r.len_k)


def mask_of(r: Any, draw: random.Random) -> Any:
    parts = r.mask.split(" & ") if r.mask else ()
    masks = [reduce(or_, [SINGLE[name](r, draw) for name in part.split(" | ")]) for part in parts]
    return reduce(and_, masks) if masks else None


def recipe(seed: int, large: bool = False) -> Any:
    """A random call of `attention`; its tensors are drawn by `arguments`."""
    draw = random.Random(seed)
    r = SimpleNamespace(seed=seed, dtype=draw.choice((torch.float32, *DTYPES)), dims=draw.choice((4, 4, 4, 3, 2)))
    r.similarity = draw.choice((*SIMILARITIES, *SOFTMAX, *SOFTMAX, *["argmax"] * 5))
    softmax, summed = r.similarity in SOFTMAX, r.similarity in SUMMED
    if large:  # several blocks of scores, and more keys than one block of torch's kernel has
        r.dims, r.batch, (r.heads, r.heads_kv), lengths = 4, 1, draw.choice(((3, 3), (6, 2))), (521, 1031)
    else:
        r.batch = draw.choice((2, 3)) if r.dims > 2 else 1
        r.heads, r.heads_kv = draw.choice(((5, 5), (6, 2), (15, 3), (7, 1))) if r.dims == 4 else (1, 1)
        lengths = (1, 11, 13, 23, 29, 31, 37, 67, 71, 131)
    r.len_q, r.len_k = draw.sample(lengths, 2)
    r.len_k = r.len_q if draw.random() < 0.2 else r.len_k
    r.width, r.width_v = draw.sample((3, 7, 11, 13) if summed else (3, 7, 17, 19, 41), 2)
    if draw.random() < 0.3:  # equal widths: what torch's kernel takes as it is
        r.width = r.width_v = draw.choice((16, 17) if summed else (16, 19, 64))
    r.mask = draw.choice(ONE_STATE if summed and draw.random() < 0.7 else MASKS)
    r.bias = draw.choice(("", "", "full", "keys", "holes")) if softmax else ""
    r.dropout = 0.3 if r.similarity != "argmax" and draw.random() < 0.08 else 0.0
    r.layout = draw.choice(("plain", *LAYOUTS))
    r.values = draw.choice(("normal",) * 6 + ("large", "integers", "masked", "masked", "attended", "overflow"))
    r.gradient, r.lse = draw.random() < 0.45, softmax and draw.random() < 0.4
    r.weights = not large and draw.random() < 0.15
    return r


def accepting(r: Any) -> list[str]:
    """Backends that accept the call; of sdpa and blockwise the one that the old form streaming came to."""
    softmax = r.similarity in SOFTMAX
    sdpa = softmax and "softcap" not in r.similarity and not r.dropout
    accepts = {
        "sdpa": sdpa,
        "blockwise": not sdpa and r.similarity != "argmax",
        "linear": r.similarity in SUMMED and r.mask in ONE_STATE and not r.dropout,
        "argmax": r.similarity == "argmax",
        "native": softmax and not (r.dropout or r.gradient or r.dtype is torch.float64),
    }
    return ["auto", "reference", *(name for name, accepted in accepts.items() if accepted and not r.weights)]


def arguments(r: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """Tensors and options of a call. Values "masked" have NaN and infinity where nothing is attended."""
    draw, lead = random.Random(r.seed + 1), (r.batch,)[: r.dims - 2]
    sizes = ((r.heads, r.len_q, r.width), (r.heads_kv, r.len_k, r.width), (r.heads_kv, r.len_k, r.width_v))
    shapes = [(*lead, *(size if r.dims == 4 else size[1:])) for size in sizes]
    tensors = [normal(r.seed + i, *shape, dtype=torch.float64) for i, shape in enumerate(shapes)]
    if r.values == "integers":  # many scores are equal
        tensors = [(2 * tensor).round() for tensor in tensors]
    tensors[0] *= {"large": 30.0, "overflow": 1e30}.get(r.values, 1.0)
    for tensor in tensors if r.values == "attended" else ():
        tensor.view(-1)[draw.randrange(tensor.numel())] = draw.choice((NAN, INF, -INF, 1.0))
    tensors = [LAYOUTS[r.layout](tensor.to(r.dtype)) for tensor in tensors]
    mask, bias = mask_of(r, draw), None
    if r.values == "masked":
        lengths = [draw.randrange(r.len_k + 1) for _ in range(r.batch)]
        mask = qkv.Padding(lengths) if mask is None else mask & qkv.Padding(lengths)
        tensors[1:] = [tensor.clone() for tensor in tensors[1:]]
        for tensor in tensors[1:]:
            for b, length in enumerate(lengths):
                (tensor if r.dims == 2 else tensor[b])[..., length:, :] = draw.choice((NAN, INF, -INF))
    if r.bias:
        bias = normal(r.seed + 5, *(scores(r)[-1:] if r.bias == "keys" else scores(r)), dtype=r.dtype)
        bias = bias.masked_fill(keep(draw, *bias.shape), -INF) if r.bias == "holes" else bias
    similarity = similarity_of(r.similarity, r.width, r.heads, r.seed)
    return tensors, {"similarity": similarity, "mask": mask, "bias": bias, "dropout": r.dropout}


def with_gradients(answer: Any, leaves: list[Tensor], seed: int) -> Any:
    """The outputs, and the gradients of all leaves that require one, for random gradients of the outputs."""
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    outs = [out for out in (answer if isinstance(answer, tuple) else (answer,)) if out.requires_grad]
    given = [normal(seed + i, *out.shape, dtype=out.dtype) for i, out in enumerate(outs)]
    return [answer, *torch.autograd.grad(outs, leaves, given, allow_unused=True)] if outs else [answer]


def attention(r: Any, backend: str) -> Any:
    """A call of `attention`; with backend "" what `explain` says of it: the backend that auto takes."""
    tensors, options = arguments(r)
    given = (*tensors, options["bias"], getattr(options["similarity"], "sink", None))
    leaves = [leaf.requires_grad_(r.gradient) for leaf in given if isinstance(leaf, Tensor)]
    options |= {"return_lse": r.lse, "return_weights": r.weights}
    if not backend:
        return qkv.explain(*tensors, **options).backend
    torch.manual_seed(r.seed)
    return with_gradients(qkv.attention(*tensors, **options, backend=backend), leaves, r.seed + 7)


def varlen(seed: int, backend: str) -> Any:
    draw = random.Random(seed)
    names = {"linear": SUMMED, "sdpa": ("softmax", "sinks"), "blockwise": ("softcap",), "argmax": ("argmax",)}
    name, dtype = draw.choice(tuple(names.get(backend, SOFTMAX))), draw.choice(DTYPES)
    rows = [draw.choice((0, 1, 7, 29, 67)) for _ in range(draw.choice((1, 3, 5)))]
    columns = rows if seed % 3 else [draw.choice((0, 5, 31)) for _ in rows]
    edges = [torch.tensor([0, *counts]).cumsum(0).int() for counts in ((rows,) if seed % 3 == 1 else (rows, columns))]
    shapes = ((sum(rows), 6, 7), (sum(columns), 2, 7), (sum(columns), 2, 11))
    tensors = [normal(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    tensors = [tensor.requires_grad_(seed % 2 > 0 and backend != "native") for tensor in tensors]
    options = {"similarity": similarity_of(name, 7, 6, seed), "mask": draw.choice((None, qkv.Causal(offset=seed % 3)))}
    return with_gradients(qkv.varlen(*tensors, *edges, **options, backend=backend), tensors, seed)


def compat(seed: int) -> Any:
    draw = random.Random(seed)
    dtype, lead = draw.choice(DTYPES), draw.choice(((), (5,), (2, 5), (2, 3, 5), (2, 6)))
    layout, (len_q, len_k) = draw.choice([*LAYOUTS][:4]), draw.sample((1, 7, 31, 67), 2)
    width, width_v = draw.choice(((3, 11), (13, 7), (16, 16), (17, 17)))
    shared = (2, 3) if lead == (2, 6) else (*lead[:-1], 1) if lead and draw.random() < 0.2 else lead
    shapes = ((*lead, len_q, width), (*shared, len_k, width), (*shared, len_k, width_v))
    tensors = [LAYOUTS[layout](normal(seed + i, *shape, dtype=dtype)) for i, shape in enumerate(shapes)]
    tensors = [tensor.requires_grad_(seed % 2 > 0) for tensor in tensors]
    shape = draw.choice(((len_k,), (len_q, len_k), (*lead, len_q, len_k), (len_q, 1)))
    added = normal(seed + 3, *shape, dtype=draw.choice((dtype, torch.float32)))
    masks: Any = ({}, {"is_causal": True}, {"attn_mask": keep(draw, *shape)}, {"attn_mask": added})
    options: Any = {"scale": draw.choice((None, None, 0.3)), "dropout_p": draw.choice((0.0,) * 9 + (0.2,))}
    options |= {"enable_gqa": lead == (2, 6)} | draw.choice(masks)
    torch.manual_seed(seed)
    out = qkv.compat.scaled_dot_product_attention(*tensors, **options)
    return with_gradients(out, tensors, seed)


def sequence(seed: int, linear: bool, ending: str = "contents") -> Any:
    """Random calls on a KVCache or a LinearState: what they gave, errors included, and what the caches hold.

    ending: "saved" also saves and loads the cache; "chosen" is the backend that `explain` names for the next step.
    """
    draw, counter, results, others = random.Random(seed), iter(range(seed, 2 * seed)), list[Any](), list[Any]()
    heads, heads_kv = draw.choice(((5, 5), (6, 2), (7, 1)))
    width, width_v = draw.choice(((13, 11), (16, 16), (7, 19)))
    dtype, held = draw.choice((torch.float32, *DTYPES)), [*SOFTMAX, "softmax", "argmax"]
    similarity = similarity_of(draw.choice([*SUMMED] if linear else held), width, heads, seed)
    limits = {"capacity": draw.choice((None, None, 67, 200)), "window": draw.choice((None, None, 5, 67))}
    new: Any = partial(qkv.KVCache, dtype=STORED[seed % 4], **limits)
    new = partial(qkv.LinearState, similarity) if linear else new
    cache = new(draw.choice((2, 3)), heads_kv, width, value_width=width_v)

    def tokens(n: int) -> list[Tensor]:
        sizes = ((heads, width), (heads_kv, width), (heads_kv, width_v))
        return [normal(next(counter), cache.batch, h, n, w, dtype=dtype) for h, w in sizes]

    def decode(n: int, **options: Any) -> None:
        asked = None if linear and n == 1 else similarity
        results.append(attempt(qkv.decode, *tokens(n), cache, similarity=asked, **options))

    decode(draw.choice((1, 7, 31, 61, 67, 131)))
    verbs = ("step", "step", "step", "chunk", "ragged", "append", "crop", "fork", "reorder")
    verbs += ("snapshot",) if linear else ("mask", "mask", "bias")
    for verb in draw.choices(verbs, k=draw.randrange(4, 12)):
        n, rows = draw.choice((1, 1, 3, 5)), range(cache.batch)
        counts: Any = [draw.randrange(n + 1) for _ in rows]
        ragged = {"lengths": draw.choice((counts, torch.tensor(counts))), "padding": draw.choice(("right", "left"))}
        if verb in ("step", "chunk"):
            decode(1 if verb == "step" else n)
        elif verb == "ragged":
            decode(n, **ragged)
        elif verb == "mask":
            r = SimpleNamespace(batch=cache.batch, heads=heads, len_q=n, len_k=cache.length + n, dims=4)
            mask = SINGLE[draw.choice(("keep", "drop", "cells", "keys", "predicate"))](r, draw)
            decode(n, mask=draw.choice((mask, qkv.Window(left=7), qkv.Window(11) & mask)))
        elif verb == "bias":
            shape = draw.choice(((1,), (heads, n, 1), (cache.batch, 1, 1, 1)))
            decode(n, bias=normal(next(counter), *shape[:-1], cache.length + n, dtype=dtype))
        elif verb == "fork":  # the cache that was forked continues with another token
            others.append(cache)
            cache = cache.fork()
            results.append(attempt(others[-1].append, *tokens(1)[1:]))
        elif verb == "append":
            results.append(attempt(cache.append, *tokens(n)[1:], **(ragged if draw.random() < 0.5 else {})))
        elif verb == "crop":
            results.append(attempt(cache.crop, max(0, cache.length - draw.randrange(7))))
        elif verb == "reorder":
            results.append(attempt(cache.reorder, [draw.choice(rows) for _ in range(draw.choice((2, 3)))]))
        else:
            cache.snapshot()
    if ending == "chosen":
        return qkv.explain(*tokens(1), cache=cache, similarity=similarity).backend
    if ending == "saved":
        with tempfile.TemporaryDirectory() as folder:
            cache.save(path := Path(folder) / "cache")
            content = path.read_bytes()
            cache = type(cache).load(path, *((similarity,) if linear else ()))
        size = 8 + int.from_bytes(content[:8], "little")
        # safetensors does not fix the order of the metadata.
        results += [json.dumps(json.loads(content[8:size]), sort_keys=True), content[size:]]
    decode(1)
    return [results, [[each.lengths, None if linear else each.tensors()] for each in (cache, *others)]]


def module(seed: int, kind: str) -> Any:
    """Outputs and gradients of a module of qkv.nn with random weights, tokens of `generate`, or logits step by step."""
    draw, nn, heads, kv_heads, width = random.Random(seed), qkv.nn, 6, 2 + seed % 2, 23
    name = draw.choice(("softmax", "softmax", "scale", "softcap sinks", "argmax", "square", "elu1"))
    places = [lambda: None, nn.Rotary, partial(nn.Learned, 41, width), partial(nn.Sinusoidal, width)]
    biases = [partial(nn.ALiBi, heads), partial(nn.RelativeBias, heads, bidirectional=False)]
    place: Callable[[], Any] = draw.choice([*places, *biases] if name in SOFTMAX else places)
    similarity = similarity_of(name, 10, heads, seed)
    options: dict[str, Any] = {"kv_heads": kv_heads, "head_width": 10, "similarity": similarity}
    lengths, stored = draw.choice((None, [11, 5])), draw.choice(STORED)
    torch.manual_seed(seed)
    tokens, source, x = torch.randint(31, (2, 11)), torch.randint(31, (2, 7)), normal(seed, 2, 11, width)
    if kind == "Attention":
        layer = nn.Attention(width, heads, positions=place(), bias=True, **options)
        out = layer(x.requires_grad_(), mask=draw.choice((None, qkv.Causal(), qkv.Padding([11, 5]))))
        return with_gradients(out, [x, *layer.parameters()], seed)
    options |= {"layout": draw.choice(("pre-norm", "post-norm", "residual")), "norm": draw.choice(("layer", "rms"))}
    options |= {"feed_forward": draw.choice(("plain", "gated")), "vocabulary": 31, "positions": place()}
    if kind == "EncoderDecoder":
        model = nn.EncoderDecoder(width, heads, 2, decoder_positions=place(), **options)
        return with_gradients(model(source, tokens, [7, 3], lengths), list(model.parameters()), seed)
    new: Any = partial(nn.Encoder, classes=5) if kind == "Encoder" else nn.Decoder
    model = new(width, heads, 2, **options)
    if kind in ("Encoder", "Decoder"):
        return with_gradients(model(tokens, lengths), list(model.parameters()), seed)
    if kind == "generate":
        how = draw.choice(({}, {"temperature": 0.8, "top_k": 7, "seed": 5}, {"beams": 3, "stop": 4}, {"stop": (3, 5)}))
        made = nn.generate(model, tokens, new=13, lengths=lengths, **how, cache_dtype=stored)
        return [made.tokens, made.lengths, made.scores]
    new = partial(qkv.LinearState, similarity) if name in SUMMED else partial(qkv.KVCache, dtype=stored)
    caches = [new(2, kv_heads, 10) for _ in range(2)]
    parts = ((tokens[:, :7], None), (tokens[:, 7:8], None), (tokens[:, 8:], [3, 1]))
    with torch.no_grad():
        return [model.eval().forward(part, counts, cache=caches) for part, counts in parts]


# Arguments that spoil attention(x, x, x), where x has the shape (2, 3, 5, 7).
SPOILING = """
query=x.int(); key=x.double(); value=x.half(); query=[1.0]; key=None; query=x[0]; query=x[0, 0, 0]; query=x[None]
key=x[..., :3]; value=x[:1]; value=x[:, :, :2]; key=x[:, :2], value=x[:, :2]; key=x.to("meta"); query=x.to_sparse()
backend="nonsense"; backend=None; backend=3; backend="linear"; backend="argmax"; backend="native", dropout=0.5
backend="native", return_weights=True; backend="native", similarity=Polynomial(); backend="sdpa", return_weights=True
backend="native", query=x.clone().requires_grad_(); backend="blockwise", similarity=Argmax(); dropout=1.5; dropout=-0.1
backend="linear", similarity=Polynomial(), dropout=0.5; backend="linear", similarity=Similarity(gaussian); dropout=True
backend="linear", similarity=Polynomial(), mask=Window(2, offset=0); backend="argmax", similarity=Polynomial()
dropout="0.1"; dropout=nan; dropout=0.5, similarity=Argmax(); similarity=Softmax; similarity=gaussian; similarity="x"
similarity=Softmax(sink=torch.ones(5)); similarity=Softmax(sink=torch.ones(3).int()); mask=x > 0; mask="x"; mask=Causal
mask=Dense(torch.ones(4, 5) > 0); mask=Padding([5]); mask=Padding([5, 6]); mask=Segments([0, 0, 1]); extra=1; dropout=x
mask=Causal(), query=x[:, :, :3]; mask=Window(1), query=x[:, :, :3]; mask=Predicate(lambda b, h, i, j: i - j)
mask=Causal(1) & Causal(2) & Window(1); bias=x[..., :5] > 0; bias=torch.ones(4, 5); bias=x.double()[..., :5]; bias=[1.0]
bias=torch.ones(5), similarity=Polynomial(); return_lse=True, similarity=Argmax(); return_lse=1; return_weights="yes"
"""
# Other calls that are refused; c is an empty KVCache and s an empty LinearState for x, d a Decoder, p a prompt.
REFUSED = """
Softmax(scale=nan); Softmax(scale="1"); Softmax(softcap=0); Softmax(sink="x"); Polynomial(-1); Polynomial(1.5); Dense(x)
FeatureMap(3); FeatureMap(gaussian, normalize=1); Similarity(3); features.positive_random(0); Causal(1.5); Window(-1)
features.polynomial(2, -1.0); Window(right="2"); Padding(); Padding([-1]); Padding(keep=[0.5]); c.crop(1)
Padding([1], keep=[True]); Segments("ab"); Dense(None); Predicate(3); Causal() & 3; KVCache(0, 2, 7); KVCache(2, 2)
KVCache(2, 2, 7, dtype=torch.float64); KVCache(2, 2, 7, window=0); LinearState(Softmax(), 2, 3, 7); c.crop(-1)
LinearState(Polynomial(9), 2, 3, 64); c.crop(0.5); c.reorder([2]); c.reorder([0.5]); c.reorder([]); s.crop(1)
s.reorder([2]); c.append(x, x[:1]); c.append(x, None); c.append(x.int(), x); c.append(x, x, [9, 1]); s.append(x, x[:1])
decode(x, x, x, None); decode(x, x, x[0], c); decode(x[..., :3], x, x, c); decode(x[0], x, x, c); decode(x, x, x, 3)
decode(x[:, :2], x, x, c); decode(x.double(), x, x, c); decode(x, x, x.clone().requires_grad_(), c); decode(x, x, x)
decode(x, x, x, c, lengths=[1]); decode(x, x, x, c, lengths=[9, 1]); decode(x, x, x, c, padding="middle")
decode(x, x, x, c, mask=x > 0); decode(x, x, x, c, similarity=Polynomial()); decode(x, x, x, c, bias=torch.ones(3))
decode(x, x, x, c, mask=Dense(torch.ones(4, 4) > 0)); decode(x, x, x, s, mask=Causal()); decode(x[0], x, x, s)
decode(x, x, x, s, similarity=Polynomial(3)); KVCache.load("/nonexistent/x"); KVCache.load(__file__); KVCache.load(3)
LinearState.load(__file__, Polynomial()); nn.load(__file__); sdpa(x, x, x, is_causal=1); sdpa(x, x[:, :2], x[:, :2])
sdpa(x, x, x, x[..., :5] > 0, is_causal=True); sdpa(x, x, x, scale=nan); sdpa(x, x, x, dropout_p=2.0); sdpa(x, x, x, 3)
varlen(x[0], x[0], x[0], torch.tensor([0, 5])); varlen(x, x, x, torch.tensor([0, 2])); varlen(x[0], x[0], x[0], 3)
nn.Attention(12, 5); nn.Attention(12, 4, kv_heads=3); nn.Attention(12, 4, positions=nn.ALiBi(3)); nn.Attention(12, 4)(x)
nn.Decoder(12, 3, 2); d(x); d(p + 31); nn.generate(d, p, new=0); nn.generate(d, x, new=2); nn.generate(3, p, new=2)
"""


def refused(text: str, function: Callable[..., Any] | None = None) -> Any:
    """Evaluate a call that is refused; with a function the text is arguments that replace some of a valid call."""
    x, names = torch.ones(2, 3, 5, 7), {name: getattr(qkv, name) for name in qkv.__all__ if name[0].isupper()}
    names |= {"features": qkv.features, "nn": qkv.nn, "decode": qkv.decode, "varlen": qkv.varlen, "torch": torch}
    names |= {"sdpa": qkv.compat.scaled_dot_product_attention, "gaussian": gaussian, "nan": NAN, "__file__": __file__}
    names |= {"c": qkv.KVCache(2, 3, 7), "s": qkv.LinearState(qkv.Polynomial(), 2, 3, 7), "x": x}
    names |= {"d": qkv.nn.Decoder(12, 3, 1, vocabulary=31), "p": torch.ones(1, 2, dtype=torch.int64)}
    found = eval(text, names)
    found = found if function is None else function(**({"query": x, "key": x, "value": x} | found))
    return found if isinstance(found, Tensor) else "accepted"


def cases() -> Iterator[Case]:
    """All cases, always in the same order. One seed in five runs with two threads, but not gradients of monomials:
    torch adds up the gradient of an indexed tensor in the order in which its threads come."""
    for seed in range(1000, 6000, 10):
        r = recipe(seed, large=seed >= 5760)
        monomials = r.gradient and r.similarity in ("square", "cube", "monomials")
        yield Case(f"chosen/{seed}", partial(attention, r, ""))
        for backend in accepting(r) if seed >= 2000 else ():
            threads = 1 + (seed % 50 == 0 and not monomials)
            yield Case(f"attention/{seed}/{backend}", partial(attention, r, backend), threads)
    for seed in range(10_000, 10_112):
        backend = ("auto", "reference", "sdpa", "blockwise", "linear", "argmax", "native")[seed % 7]
        threads = 1 + (seed % 5 == 0 and backend != "linear")
        yield Case(f"varlen/{seed}/{backend}", partial(varlen, seed, backend), threads)
    for seed in range(20_000, 20_200):
        yield Case(f"compat/{seed}", partial(compat, seed), 1 + (seed % 5 == 0))
    for seed in range(30_000, 30_420):
        name = "state" if seed % 3 == 0 else "decode"
        yield Case(f"{name}/{seed}", partial(sequence, seed, name == "state"), 1 + (seed % 5 == 0))
    for seed in range(40_000, 40_060):
        yield Case(f"saved/{seed}", partial(sequence, seed, seed % 3 == 0, "saved"))
        yield Case(f"chosen for cache/{seed}", partial(sequence, seed, False, "chosen"))
    for seed in range(50_000, 50_150):
        kind = ("Attention", "Encoder", "EncoderDecoder", "Decoder", "generate", "steps")[seed % 6]
        yield Case(f"nn/{seed}/{kind}", partial(module, seed, kind), 1 + (seed % 5 == 0))
    spoiling, others = (re.split(r"; |\n", table.strip()) for table in (SPOILING, REFUSED))
    draw = random.Random(60_000)
    pairs = [" | ".join(f"dict({text})" for text in draw.sample(spoiling, 2)) for _ in range(60)]
    for text in (*(f"dict({text})" for text in spoiling), *pairs):
        yield Case(f"refused/attention/{text}", partial(refused, text, qkv.attention))
        yield Case(f"refused/explain/{text}", partial(refused, text, qkv.explain))
    yield from (Case(f"refused/{text}", partial(refused, text)) for text in others)


def fingerprint() -> dict[str, Any]:
    """What bits depend on besides qkv."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().split("\n\n")[0].splitlines() if file.exists() else []
    about = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    return {
        "processor": " ".join(about.get(name, "") for name in ("model name", "cpu family", "model", "stepping")),
        "flags": sorted(filter(FLAGS.fullmatch, about.get("flags", about.get("Features", "")).split())),
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        "environment": {name: os.environ[name] for name in ("QKV_ISA", "QKV_NATIVE", "MKL_CBWR") if name in os.environ},
    }


def write(file: Path, chosen: list[Case], once: bool) -> dict[str, Any]:
    """Store the hashes of cases that give the same when they are computed again in the opposite order."""
    found = {case.name: outcome(case) for case in chosen}
    again = found if once else {case.name: outcome(case) for case in reversed(chosen)}
    kept = {name: text for name, text in found.items() if again[name] == text}
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(text)}" for name, text in kept.items())
    file.write_text(f'{{"fingerprint":{json.dumps(fingerprint())},\n"cases":{{\n{lines}\n}}}}\n')
    return {"written": len(kept), "left out because they do not repeat": [name for name in found if name not in kept]}


def compared(chosen: list[Case], before: dict[str, str], whole: bool) -> dict[str, Any]:
    """How many cases are equal, and the first that differ; `whole`: a case that is no longer there differs too."""
    now = {case.name: outcome(case) for case in chosen}
    names = list(before) if whole else [name for name in now if name in before]
    differ = [name for name in names if now.get(name) != before[name]]
    first = [f"{name}: {before[name]} before, {now.get(name, 'no such case')} now" for name in differ[:20]]
    return {"equal": len(names) - len(differ), "different": len(differ), "first that differ": first}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.frozen", description=(__doc__ or "").splitlines()[0])
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--write", metavar="FILE", type=Path, help="store the hashes of all cases that repeat")
    task.add_argument("--check", metavar="FILE", type=Path, help="compute again and compare with the file")
    task.add_argument("--against", metavar="PYTHON", help="compare with the qkv of another interpreter on this machine")
    parser.add_argument("--limit", type=int, metavar="N", help="about N cases, spread over all")
    parser.add_argument("--once", action="store_true", help="with --write: compute once and store everything")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    # Measured figures of the machine would decide which backend auto takes.
    os.environ["QKV_CACHE"] = os.environ["XDG_CACHE_HOME"] = "/nonexistent"
    begun, chosen = time.perf_counter(), list(cases())
    assert len({case.name for case in chosen}) == len(chosen), "two cases have the same name"
    chosen = chosen[:: max(1, len(chosen) // asked.limit)] if asked.limit else chosen
    told: dict[str, Any] = {"qkv": str(Path(qkv.__file__).parent)}
    if asked.write:
        told |= write(asked.write, chosen, asked.once)
    elif asked.against:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "other.json"
            command = [asked.against, "-P", __file__, f"--write={file}", "--once", "--json"]
            command += [f"--limit={asked.limit}"] if asked.limit else []
            free = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=free)
            told["compared with"] = json.loads(done.stdout)["qkv"]
            told |= compared(chosen, json.loads(file.read_text())["cases"], not asked.limit)
    else:
        stored = json.loads(asked.check.read_text())
        if stored["fingerprint"] == fingerprint():
            told |= compared(chosen, stored["cases"], not asked.limit)
        else:
            told["problem"] = "written on another machine: hashes cannot be compared; run --against"
            told |= {"written on": stored["fingerprint"], "this machine": fingerprint()}
    told["seconds"] = round(time.perf_counter() - begun, 1)
    rows = {name: "\n  ".join(["", *text]) if type(text) is list else text for name, text in told.items()}
    print(json.dumps(told, indent=1) if asked.json else "\n".join(f"{name}: {text}" for name, text in rows.items()))
    return 3 if "problem" in told else int(told.get("different", 0) > 0)


if __name__ == "__main__":
    sys.exit(main())
