"""Solvers on sizes: parameters, operations, bytes of caches, weights, tensors and training, and what is saved."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from fractions import Fraction
from math import prod
from typing import Any

from ...cost.architecture import Model
from ...cost.blocks import model_cost
from ...cost.counting import layer
from ...cost.polynomial import Polynomial
from ..findings import CannotSolve, refuse
from ..units import element_bytes
from .architecture import DATA, Found, Lines, Setting, evaluated, model_of, numbers, rule, sized, total, written

WHOLE = ("model", "active")


def part_of(words: str, table: str) -> str:
    """The part of a model that words name, of those that a table has."""
    plain = re.sub(DATA["marks"]["with_router"], "", words.strip().lower().replace("_{", "_"))
    plain = re.sub(r"^(the|an|of the|of) |[\^{}()$\\]|\bt\b", "", plain).strip()
    found = [name for name, pattern in DATA["parts"].items() if re.search(pattern, plain)]
    known = [name for name in found if name in DATA[table]]
    refuse(not known or "refused" in found, "not_understood", found=words)
    return known[0]


# --- parameters ---


def counts_router(setting: Setting) -> bool:
    """Whether the question, or a given, says that experts have a router."""
    said = (f"{each.symbol} {each.value} {each.of}" for each in setting.exercise.of_role("claim", "other"))
    return setting.preset is not None or setting.says("with_router") or any("router" in each.lower() for each in said)


def parameter_lines(setting: Setting, model: Model, part: str, router: bool) -> Lines:
    """The parameters of a part of the model, by line. What the text does not list is left out: a router, embeddings."""
    found: Lines = []
    embedded = part not in WHOLE or setting.has("vocabulary") or setting.preset is not None
    for name, count in model.parameter_lines:
        chosen = ("norms" if "norm" in name else name).startswith(tuple(DATA["parameters"][part]))
        if name.endswith("router"):
            chosen = part == "router" or (router and (chosen or part == "experts"))
        if part == "active" and "experts" in name:
            name, count = name.replace("experts", "active experts"), count * model.experts_active / model.experts
        if chosen and (embedded or not name.startswith(("embedding: tokens", "logits"))):
            found.append((name, count))
    return found


def _other_parameters(setting: Setting, model: Model, part: str, lines: Lines, router: bool) -> Lines:
    """The parameters under other usual conventions that the text does not settle; what is taken is noted."""
    structure, named, found, others = setting.exercise.structure, setting.preset is not None, total(lines), []
    for row in DATA["conventions"]:
        if getattr(structure, row["field"]) is None and named == row.get("named", False):
            final = {"final_norm": part in WHOLE} if row["field"] == "norm" else {}
            changed = replace(model, **row["changes"], **final)
            others.append((row, total(parameter_lines(setting, changed, part, router))))
    with_router = {"also": "a router of width times experts", "convention": "whether experts have a router"}
    others.append(({**with_router, "value": "none"}, total(parameter_lines(setting, model, part, True))))
    for row, other in others:
        if other != found and "value" in row:
            setting.assume(row["convention"], row["value"])
    also: Lines = [(row["also"], other) for row, other in others]
    if part in WHOLE and not setting.has("vocabulary") and not named:
        setting.assume("the vocabulary", "no embedding")
    if part == "embeddings" and structure.tied is None and model.kind != "encoder":
        also.append(("an output matrix apart", found + model.vocabulary * model.d_model))
    if part == "model":
        inner = [line for line in lines if not line[0].startswith(("embed", "logits"))]
        also.append(("no embeddings", total(inner)))
    elif part not in (*WHOLE, "embeddings", "unembedding"):
        also.append(("one layer alone", found / model.layers))
    return also


def parameters_of(setting: Setting, *, active: bool = False) -> Any:
    """All parameters: as given, or counted from the structure (with experts, the active ones where wanted)."""
    if active and setting.has("active_parameters"):
        return setting.need("active_parameters")
    if setting.has("parameters"):
        if active and setting.has("experts"):
            setting.assume("the number of active parameters", "all parameters")
        return setting.need("parameters")
    if (stated := rule(setting, "N", "P", "params", "parameters", "N_params")) is not None:
        return stated
    model = model_of(setting, "weights")
    part, router = "active" if active and model.experts else "model", counts_router(setting)
    lines = parameter_lines(setting, model, part, router)
    _other_parameters(setting, model, part, lines, router)
    return total(lines)


@sized
def parameters(setting: Setting) -> Found:
    """Parameters of a model or of a part, by line."""
    if setting.has("in_features", "out_features"):
        return _linear_parameters(setting)
    part = part_of(setting.words, "parameters")
    model, router = model_of(setting, part), counts_router(setting)
    refuse(part in ("active", "experts", "router") and not model.experts, "missing", needs="the number of experts")
    lines = parameter_lines(setting, model, part, router)
    refuse(not total(lines), "missing", needs="the kind of norm" if part == "norms" else "its sizes")
    also = _other_parameters(setting, model, part, lines, router)
    return Found(total(lines), lines=lines, also=also)


def _linear_parameters(setting: Setting) -> Found:
    setting.kind("linear")
    biased, biases = setting.exercise.structure.biases, setting.one("experts") * setting.need("out_features")
    matrix = biases * setting.need("in_features")
    if biased is None:
        setting.assume("whether there are biases", "none")
    if biased:
        return Found(matrix + biases, lines=[("matrix", matrix), ("biases", biases)], also=[("no biases", matrix)])
    return Found(matrix, also=[("biases", matrix + biases)])


# --- operations ---


def is_causal(setting: Setting) -> bool | None:
    """Whether pairs are causal; None where nothing is said."""
    said = setting.exercise.convention("pairs", "causal" if "causal" in setting.exercise.structure.mask else None)
    return None if said is None else said == "causal"


def decodes(setting: Setting) -> bool:
    return setting.exercise.structure.phase == "decode" or setting.says("decodes")


def work(setting: Setting, part: str, causal: bool) -> tuple[Lines, Lines]:
    """Matrix products, and other operations, of one forward pass of a part, by line."""
    batch, length, keys = setting.one("batch"), setting.size("length"), setting.size("keys_length")
    model, step, named = model_of(setting, part), decodes(setting), setting.preset is not None
    context = keys if step and keys is not None else length
    made: tuple[Lines, Lines] = ([], [])
    if setting.exercise.structure.source == "cross" or (keys is not None and not step):
        refuse(part not in ("scores", "weighted", "attention", "attention layer", "projections"), "not_understood",
               found=f"{setting.asked.object} of cross-attention")  # fmt: skip
        sizes = (batch, setting.need("length"), setting.need("keys_length"))
        ledger = layer(*sizes, model.d_model, model.heads, model.kv_heads, head_width=model.head_width)
        lines = []
        for line in ledger.lines:
            kind = "projections" if "projection" in line.name else "scores"
            name = f"{kind}: {'queries by keys' if line.name == 'scores' else line.name}"
            lines.append(replace(line, name=name).times(model.layers))
    else:
        if context is None:
            refuse(part in ("scores", "weighted", "attention"), "missing", needs="the length")
            if part in (*WHOLE, "layer", "attention layer"):
                setting.assume("the length", "the products with weights alone, without scores,")
        if model.latent is not None and not step and part not in ("feed-forward", "unembedding", "router", "experts"):
            raise CannotSolve("unsettled", convention="whether latent vectors are expanded to keys and values")
        new: Any = setting.one("tokens_count") if context is None else context
        sizes = (batch, 1, 0 if context is None else context - 1) if step else (batch, new, 0)
        if model.window is not None:
            setting.assume("which pairs are counted", "causal ones within the window")
            model, sizes, causal = in_numbers(setting, model), tuple(numbers(setting, *sizes)), True
        lines = model_cost(model, *sizes, weights=2, cache=2, item=2, causal=causal or step).lines
    for line in lines:
        left_out = line.name.startswith("scores") and context is None
        left_out |= line.name.endswith("router") and part != "router" and not named and not counts_router(setting)
        left_out |= line.name.startswith("logits") and part in WHOLE and not setting.has("vocabulary") and not named
        if line.name.startswith(tuple(DATA["operations"][part])) and not left_out:
            made[0 if line.product else 1].append((line.name, line.flops))
    return made


def in_numbers(setting: Setting, model: Model) -> Model:
    """A model with windows in numbers: which windows are full cannot be seen in formulas."""
    each = {each.name: getattr(model, each.name) for each in fields(model)}
    known = {name: value.substituted(setting.values) for name, value in each.items() if isinstance(value, Polynomial)}
    refuse(isinstance(known.get("window"), Polynomial), "missing", needs="a number for the width of the window")
    return replace(model, **known)


def by_parameters(setting: Setting) -> bool:
    """Whether operations follow from a number of parameters alone."""
    counted = setting.has("parameters") or setting.has("active_parameters")
    return counted and not setting.has("layers") and not setting.has("width")


def tokens_of(setting: Setting) -> Any:
    if decodes(setting):
        return setting.one("batch")
    if setting.says("one_token"):
        return Polynomial.of(1)
    if setting.has("training_tokens") or setting.has("tokens_count"):
        return setting.need("training_tokens", "tokens_count")
    if not setting.has("length") and not setting.has("batch"):
        setting.assume("the number of tokens", "one")
    return setting.one("length") * setting.one("batch")


@sized
def flops(setting: Setting) -> Found:
    """Operations of a part, or of the model."""
    said = [name for name in DATA["phases"] if name in setting.words]
    times, reason = DATA["phases"].get(said[0] if said else setting.exercise.structure.phase, (1, ""))
    mac = int(setting.exercise.convention("flops_per_mac", 2))
    lines: Lines = []
    if by_parameters(setting):
        setting.kind("by_parameters")
        lines.append(("operations", times * mac * parameters_of(setting, active=True) * tokens_of(setting)))
        also, reason = [], reason or "each parameter is multiplied and added once for every token"
    elif setting.has("in_features", "out_features"):
        setting.kind("linear")
        sides = setting.need("in_features") * setting.need("out_features") * setting.one("active_experts")
        lines, also = [("operations", times * mac * tokens_of(setting) * sides)], []
    else:
        lines, also = counted_flops(setting, part_of(setting.words, "operations"), times, mac)
    if not setting.exercise.said("flops_per_mac"):
        also = [("a multiply-add as one operation", total(lines) / 2), *also]
    return Found(total(lines), reason, lines, also)


def counted_flops(setting: Setting, part: str, times: int, mac: int) -> tuple[Lines, Lines]:
    """Operations of a part by line, and their totals under other conventions."""
    exercise, causal = setting.exercise, is_causal(setting)
    # A token of a pass takes an equal share.
    shared = setting.says("one_token") and setting.has("length") and not decodes(setting)
    tokens = setting.need("length") * setting.one("batch") if shared else 1
    counts_others = bool(exercise.convention("exp_counts", False))

    def count(part: str, causal: bool, others: bool) -> Lines:
        products, rest = work(setting, part, causal)
        scaled = [(name, Polynomial.of(made) * Fraction(times * mac, 2) / tokens) for name, made in products]
        return scaled + [(name, Polynomial.of(made) * times / tokens) for name, made in rest if others]

    lines, also = count(part, bool(causal), counts_others), []
    paired = any(name.startswith("scores") for name, _ in lines) and not decodes(setting)
    if paired and not setting.has("window") and exercise.structure.source != "cross" and not setting.has("keys_length"):
        if causal is None:
            setting.assume("which pairs are counted", "all pairs of tokens")
        other = total(count(part, not causal, counts_others))
        also.append(("all pairs counted" if causal else "causal pairs alone", other))
    if not exercise.said("exp_counts") and part in ("attention", "attention layer"):
        also.append(("scaling, softmax and division counted", total(count(part, bool(causal), True))))
    if part == "attention":
        setting.assume("whether attention has its projections", "scores and weighted values alone")
        also.append(("the four projections", total(count("attention layer", bool(causal), counts_others))))
    return lines, also


@sized
def training_flops(setting: Setting) -> Found:
    """Operations of training: a rule of the text, or 6 N D."""
    return Found(*training_work(setting))


def training_work(setting: Setting) -> tuple[Any, str]:
    """Operations of training, and why."""
    if setting.has("flops"):
        return setting.need("flops"), "as given"
    if (stated := rule(setting, "C", "F", "flops", "C_train")) is not None:
        if "N" in stated.free_symbols - set(setting.names.values()):
            setting.values["N"] = evaluated(setting, parameters_of(setting, active=True))
        return stated, "the rule that the exercise gives"
    tokens = setting.need("training_tokens", "tokens_count")
    return 6 * parameters_of(setting, active=True) * tokens, "2 N for a token forward, and 4 N backward"


@sized
def multiplications(setting: Setting) -> Found:
    """Multiplications, or additions, of matrix products."""
    adds, causal, also = setting.says("additions"), is_causal(setting), []
    if setting.has("in_features", "out_features"):
        setting.kind("linear")
        wide = setting.need("in_features") - (1 if adds else 0)
        return Found(tokens_of(setting) * wide * setting.need("out_features"))
    part = part_of(re.sub(DATA["marks"]["counted"], "", setting.words), "operations")
    model, lines = model_of(setting, part), []
    # A row of so many numbers is added up in one fewer additions.
    inner = {"scores: queries by keys": model.head_width, "projections: output": model.heads * model.value_width,
             "scores: weighted values": setting.size("keys_length") or setting.size("length"),
             "feed-forward: down": model.d_ff}  # fmt: skip
    for name, count in work(setting, part, bool(causal))[0]:
        unclear = causal or "experts" in name or "latent" in name
        refuse(adds and unclear, "not_understood", found=f"additions of {name}")
        made = Polynomial.of(count) / 2
        lines.append((name, made - made / inner.get(name, model.d_model) if adds else made))
    if causal is None and not adds and any(name.startswith("scores") for name, _ in lines) and model.window is None:
        setting.assume("which pairs are counted", "all pairs of tokens")
        also.append(("causal pairs alone", total(work(setting, part, True)[0]) / 2))
    return Found(total(lines), lines=lines, also=also)


# --- bytes ---


def cache_of(setting: Setting, *, token: bool) -> Any:
    """Bytes of the key/value cache, for one token or for the length and batch that are given."""
    model, size = model_of(setting, "cache"), setting.bytes_of("cache")
    settled = setting.has("kv_heads") or setting.preset is not None or setting.exercise.structure.variant is not None
    if setting.has("heads") and model.latent is None and not settled:
        setting.assume("the number of key/value heads", "as many as heads")
    if token:
        return Polynomial.of(model.cache_numbers) * size
    length, batch = setting.need("length", "keys_length"), setting.one("batch")
    if model.window is not None:
        return batch * size * in_numbers(setting, model).cache_bytes(numbers(setting, length)[0], 1, 1)
    return Polynomial.of(model.cache_numbers) * size * length * batch


@sized
def cache_bytes(setting: Setting) -> Found:
    """Bytes of keys and values that are kept."""
    token = setting.says("one_token")
    if not token and not any(setting.has(role) for role in ("length", "keys_length", "batch")):
        setting.assume("the length", "one token")
        token = True
    found = cache_of(setting, token=token)
    what = "a latent vector and rotated coordinates" if setting.has("latent_width") else "a key and a value"
    return Found(found, f"{what} for each token and layer")


@sized
def weight_bytes(setting: Setting) -> Found:
    """Bytes of the weights in a format; where none is said, the usual ones are named and none is taken."""
    if setting.format_of("weights") is None:
        count = parameters_of(setting)
        figures = {name: written(setting, evaluated(setting, count * element_bytes(name)), "B")[0]
                   for name in ("fp32", "bf16", "int8")}  # fmt: skip
        shown = "; ".join(f"{name.replace('bf16', 'fp16 or bf16')}: {text}" for name, text in figures.items())
        raise CannotSolve("unsettled", convention=f"the number format ({shown})", figures=figures)
    return Found(weights_of(setting))


def weights_of(setting: Setting) -> Any:
    """Bytes of the weights; bytes that are given too must agree."""
    found = Polynomial.of(parameters_of(setting)) * setting.bytes_of("weights")
    if setting.has("bytes") and setting.format_of("weights") is not None:
        counted, given = numbers(setting, found, setting.need("bytes"))
        shown = {name: written(setting, each, "B")[0] for name, each in (("first", given), ("second", counted))}
        refuse(abs(counted - given) * 100 > given, "contradiction", what="the size of the weights", **shown)
    return found


@sized
def tensor_bytes(setting: Setting) -> Found:
    """Bytes of one tensor: one that is given with its shape, or one of a layer."""
    words, size = setting.words.replace("^t", ""), setting.bytes_of("activations")
    for given in setting.exercise.givens:
        if given.shape and given.symbol.lower() == words:
            sides = [setting.expression(str(side), "the shape") for side in given.shape]
            return Found(prod(sides, start=Polynomial.of(size)))
    name = next((name for name, (pattern, _) in DATA["tensors"].items() if re.search(pattern, words)), "")
    refuse(not name, "not_understood", found=f"the tensor {setting.asked.object}")
    found = size * tensor(setting, name)
    also = [("all layers", found * setting.one("layers"))] if re.search("score|attention", words) else []
    return Found(found, also=also)


def tensor(setting: Setting, name: str) -> Polynomial:
    """The numbers of a tensor of a layer; in a decode step there is one query."""
    return _product(setting, DATA["tensors"][name][1])


def _product(setting: Setting, roles: str) -> Polynomial:
    model = model_of(setting, "tensor")
    sizes = {"batch": setting.one("batch"), "keys_length": setting.need("keys_length", "length")}
    step = setting.asked.quantity != "tensor_bytes" and (decodes(setting) or setting.says("one_query"))
    sizes["length"] = Polynomial.of(1) if step else setting.need("length", "keys_length")
    return prod((sizes[role] if role in sizes else getattr(model, DATA["fields"][role]) for role in roles.split()),
                start=Polynomial.of(1))  # fmt: skip


def moved(setting: Setting) -> tuple[Any, Any, str]:
    """Operations, bytes read and written, and what moves, of the object of the question."""
    if setting.has("flops", "bytes"):
        return setting.need("flops"), setting.need("bytes"), "what is given"
    if setting.has("in_features", "out_features"):
        setting.kind("linear")
        wide, out, tokens = setting.need("in_features"), setting.need("out_features"), tokens_of(setting)
        inputs = setting.bytes_of("activations") * tokens * (wide + out)
        matrix = wide * out * setting.bytes_of("weights")
        return 2 * tokens * wide * out, matrix + inputs, "inputs, the matrix and outputs"
    if decodes(setting) and setting.words in ("", "model", "the model"):
        kind = "step"
    else:
        kind = setting.kind("moved").removesuffix("_of_model")
    if kind == "weights":
        return 2 * parameters_of(setting, active=True) * tokens_of(setting), weights_of(setting), "all weights"
    pairs = 2 * _product(setting, "batch length keys_length heads head_width")
    if kind == "step":
        each = 2 * parameters_of(setting, active=True) * setting.one("batch")
        made = each + 2 * pairs * model_of(setting, "weights").layers
        return made, weights_of(setting) + cache_of(setting, token=False), "the weights and the cache"
    products, tensors, stored, what = DATA["moved"][kind]
    return products * pairs, setting.bytes_of(stored) * sum(tensor(setting, name) for name in tensors), what


@sized
def moved_bytes(setting: Setting) -> Found:
    """Bytes read and written."""
    _, found, what = moved(setting)
    also: Lines = []
    if what == DATA["moved"]["attention"][3]:
        setting.assume("whether scores are written to memory", "a kernel that keeps scores near the cores")
        again = 4 * setting.bytes_of("activations") * tensor(setting, "scores")
        also = [("scores and weights written and read again", found + again)]
    return Found(found, what, also=also)


@sized
def intensity(setting: Setting) -> Found:
    """Operations for each byte moved."""
    made, size, what = moved(setting)
    if not any(isinstance(evaluated(setting, each), Polynomial) for each in (made, size)):
        made, size = setting.short("flops", made), setting.short("bytes", size)
    return Found(setting.settled(made) / setting.settled(size), f"{what} are moved")


@sized
def activation_bytes(setting: Setting) -> Found:
    """Activations that training stores, by a rule of the text or the usual one for 16-bit layers."""
    model, length = model_of(setting, "activations"), setting.need("length")
    rows = setting.one("batch") * length * model.layers
    if setting.kind() == "recomputed":
        found = rows * model.d_model * setting.bytes_of("activations")
        return Found(found, "the input of each layer is kept")
    setting.assume("what a layer stores", "34 n d + 5 h n^2 bytes for each sequence (16 bits, a mask of 1 byte)")
    kept, scores = 34 * rows * model.d_model, 5 * rows * length * model.heads
    also = [("scores computed again in the backward pass", kept)]
    return Found(kept + scores, also=also)


@sized
def training_bytes(setting: Setting) -> Found:
    """Weights, gradients and the two states of Adam."""
    lines = training_lines(setting)
    lines = {"weights": lines[:1], "gradients": lines[1:2], "optimizer": lines[2:]}.get(setting.kind(), lines)
    also = [("no copy of the weights in float32", total([line for line in lines if "copy" not in line[0]]))]
    return Found(total(lines), lines=lines, also=also)


def training_lines(setting: Setting) -> Lines:
    """Bytes of weights, gradients and the states of Adam; with 16 bits, a copy of the weights too."""
    count, item = Polynomial.of(parameters_of(setting)), setting.bytes_of("weights")
    copied = [("a copy of the weights in float32", 4 * count)] if item < 4 else []
    setting.assume("the optimizer", "Adam" + (", in float32, with a copy of the weights," if copied else ""))
    return [("weights", item * count), ("gradients", item * count), ("two moments in float32", 8 * count), *copied]


@sized
def savings(setting: Setting) -> Found:
    """A ratio or a percentage: the record against its changes, active experts against all, cached heads against all."""
    words, asked = f"{setting.words} {setting.asked.unit.lower()}", setting.asked
    setting.asked = asked.model_copy(update={"unit": ""})
    percent = bool(re.search(r"%|percent|saving|reduction|reduced by", words))
    kind = "flops" if not setting.words and setting.has("experts") else setting.kind()
    if asked.changes:
        both = setting, Setting(setting.exercise.with_changes(asked), setting.asked)
        sized_alike = any(each.format_of("cache") is not None for each in both)
        before, after = (_compared(each, kind, sized_alike) for each in both)
        what = f"{kind} before and after the change"
    elif kind != "cache" and setting.has("experts", "active_experts"):
        before, after, what = setting.need("experts"), setting.need("active_experts"), "active of all"
        if kind == "parameters":
            before, after = parameters_of(setting), parameters_of(setting, active=True)
        percent = not re.search(r"ratio|times|factor|speed", words)
    else:
        refuse(kind != "cache", "not_understood", found=f"savings of {asked.object}")
        model, what = model_of(setting, "cache"), "numbers cached for each token and layer"
        refuse(model.kv_heads == model.heads and model.latent is None, "missing", needs="the number of key/value heads")
        before, after = model.heads * (model.head_width + model.value_width), model.cache_numbers_per_layer
    ratio, share = Polynomial.of(before) / after, 100 - 100 * Polynomial.of(after) / before
    if percent:
        return Found(share, what, also=[("the ratio of the two", ratio)], unit="%")
    return Found(ratio, what, also=[("the share that is saved, in percent", share)])


def _compared(setting: Setting, kind: str, sized: bool) -> Any:
    """The figure of one record that savings compare, with its own numbers; in bytes where a format is said."""
    if kind == "cache":
        tokens = setting.one("length") * setting.one("batch") * (setting.bytes_of("cache") if sized else 1)
        found = tokens * model_of(setting, "cache").cache_numbers
    elif kind == "parameters":
        found = parameters_of(setting)
    else:
        found = total(counted_flops(setting, "model", 1, 2)[0])
    return Polynomial.of(found).substituted(setting.values)
