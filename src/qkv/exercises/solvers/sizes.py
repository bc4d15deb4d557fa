"""Solvers on sizes: parameters, operations, bytes of caches, weights, tensors and training, and what is saved."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from ...cost.architecture import Model
from ...cost.blocks import model_cost
from ...cost.counting import layer
from ...cost.polynomial import Polynomial
from ..findings import CannotSolve, refuse
from ..record import Asked, Exercise
from ..solving import Answer, solver
from .architecture import DATA, Lines, Setting, answer, evaluated, model_of, rule, total

OPERATIONS: dict[str, list[str]] = DATA["operations"]
_ONE_LAYER = re.compile(r"\b(per|one|a|each|single|every) (?:\w+[- ])?(layer|block)|^(?:\w+[- ])*(layer|block)$")
_WITH_NETWORK = ("model", "active", "layer", "feed-forward", "experts")


def part_of(words: str, known: dict[str, Any]) -> str:
    """The part of a model that words name."""
    plain = re.sub(r"^(the|an|of the|of) |[\^{}()$\\]|\bt\b", "", words.strip().lower().replace("_{", "_")).strip()
    for name, pattern in DATA["parts"].items():
        if (name in known or name == "refused") and re.search(pattern, plain):
            if name == "refused":
                break
            return name
    raise CannotSolve("not_understood", found=words)


def one_layer(setting: Setting) -> bool:
    return bool(_ONE_LAYER.search(setting.words)) and not re.search(r"\ball\b|layers", setting.words)


def one_token(setting: Setting) -> bool:
    return bool(re.search(r"\btoken\b", setting.words))


def sized_model(setting: Setting, part: str, *needed: str) -> Model:
    """The model with what a part needs; one layer of it where the question asks for one."""
    wanted = ["width", *(["ff_width"] if part in _WITH_NETWORK else []), *needed]
    if part in ("model", "active") and setting.has("vocabulary"):
        wanted.append("layers")
    model = model_of(setting, *wanted)
    if part == "layer" or one_layer(setting):
        return replace(model, layers=1, window_layers=None if model.window else 0, dense_layers=0, final_norm=False)
    if part in ("model", "active") and not setting.has("layers") and not setting.is_named:
        setting.assume("the number of layers", "one")
    return model


# --- parameters ---


def parameter_lines(setting: Setting, model: Model, part: str) -> Lines:
    """The parameters of a part of the model, by line. What the text does not list is left out: a router, embeddings."""
    found: Lines = []
    for name, count in model.parameter_lines:
        chosen = "norm" in name if part == "norms" else name.startswith(tuple(DATA["parameters"][part]))
        if "norm" in name and part not in ("norms", "model", "active", "layer"):
            chosen = False
        if name.endswith("router") and part != "router" and not setting.is_named:
            chosen = False
        if name.startswith(("embedding: tokens", "logits")) and not setting.has("vocabulary") and not setting.is_named:
            chosen = False
        if part == "active" and "experts" in name:
            name, count = name.replace("experts", "active experts"), count * model.experts_active / model.experts
        if chosen:
            found.append((name, count))
    return found


def _other_parameters(setting: Setting, model: Model, part: str) -> Lines:
    """The parameters under other usual conventions that the text does not settle."""
    structure, named, whole_model = setting.exercise.structure, setting.is_named, part in ("model", "active")
    others: list[tuple[bool, str, dict[str, Any]]] = [
        (structure.biases is None, "with biases", {"qkv_bias": True, "out_bias": True, "ff_bias": True}),
        (structure.norm is None and (whole_model or part == "layer"),
         "with two layer norms a layer and a final one" if whole_model else "with two layer norms",
         {"norm": "layer", "norms_per_layer": 2, "final_norm": whole_model}),
        (structure.gated is None and part in _WITH_NETWORK, "with a gated network, three matrices", {"gated": True}),
        (structure.tied is None and whole_model, "with the output matrix tied to the embedding", {"tied": True}),
    ]  # fmt: skip
    if named:
        others = [(structure.norm is None and whole_model, "without norms", {"norm": "none"})]
    found = [(name, total(parameter_lines(setting, replace(model, **changes), part)))
             for applies, name, changes in others if applies]  # fmt: skip
    lines = parameter_lines(setting, model, part)
    if model.experts and (whole_model or part == "layer") and not named:
        found.append(
            ("with a router of width times experts", total(lines) + model.layers * model.experts * model.d_model)
        )
    if part == "embeddings" and structure.tied is None and model.kind != "encoder":
        found.append(("with an output matrix apart", total(lines) + model.vocabulary * model.d_model))
    if part == "model" and setting.has("vocabulary"):
        found.append(
            ("without embeddings", total([each for each in lines if not each[0].startswith(("embed", "logits"))]))
        )
    if not whole_model and model.layers != 1 and part not in ("embeddings", "unembedding"):
        found.append(("one layer", total(lines) / model.layers))
    return found


def _assume_conventions(setting: Setting, part: str) -> None:
    structure, whole_model = setting.exercise.structure, part in ("model", "active")
    if setting.is_named:
        return
    if structure.gated is None and part in _WITH_NETWORK:
        setting.assume("whether the feed-forward network is gated", "two matrices, not gated,")
    if structure.biases is None:
        setting.assume("whether there are biases", "none")
    if whole_model and not setting.has("vocabulary"):
        setting.assume("the vocabulary", "no embedding")
    elif whole_model and structure.tied is None:
        setting.assume("whether the output matrix is the embedding", "a matrix apart")


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
    _assume_conventions(setting, "model")
    model = sized_model(setting, "model", *([] if setting.is_named else ["layers"]))
    return total(parameter_lines(setting, model, "active" if active and model.experts else "model"))


@solver("parameters")
def parameters(exercise: Exercise, asked: Asked) -> Answer:
    """Parameters of a model or of a part, by line."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "N", "P", "params", "parameters", "N_params")) is not None:
        return answer(setting, stated, "parameters", "the rule that the exercise gives")
    if setting.has("in_features", "out_features"):
        return _linear_parameters(setting)
    part = part_of(asked.object, DATA["parameters"])
    extra = {"embeddings": ["vocabulary"], "unembedding": ["vocabulary"], "experts": ["experts"], "router": ["experts"]}
    model = sized_model(setting, part, *extra.get(part, ["active_experts"] if part == "active" else []))
    _assume_conventions(setting, part)
    lines = parameter_lines(setting, model, part)
    refuse(not lines, "missing", needs=f"the sizes of {asked.object}")
    also = _other_parameters(setting, model, part)
    return answer(setting, total(lines), f"parameters of the {part}", lines=lines, also=also)


def _linear_parameters(setting: Setting) -> Answer:
    out, biased = setting.need("out_features"), setting.exercise.structure.biases
    lines: Lines = [("matrix", setting.one("experts") * setting.need("in_features") * out)]
    biases = setting.one("experts") * out
    if biased is None:
        setting.assume("whether there are biases", "none")
    also = [("without biases", lines[0][1])] if biased else [("with biases", lines[0][1] + biases)]
    lines += [("biases", biases)] if biased else []
    return answer(setting, total(lines), "parameters", lines=lines, also=also)


# --- operations ---


def _phase(setting: Setting) -> tuple[int, str]:
    said = [name for name in ("training", "backward", "forward") if name in setting.words]
    phase = said[0] if said else setting.exercise.structure.phase
    if phase == "training":
        return 3, "forward and backward, 3 times the forward pass"
    return (2, "the backward pass takes twice the forward pass") if phase == "backward" else (1, "")


def is_causal(exercise: Exercise) -> bool | None:
    """Whether pairs are causal; None where nothing is said."""
    if exercise.convention("pairs") is not None:
        return exercise.convention("pairs") == "causal"
    return True if "causal" in exercise.structure.mask else None


def decodes(setting: Setting) -> bool:
    return setting.exercise.structure.phase == "decode" or bool(re.search(r"decod|generat", setting.words))


def work(setting: Setting, model: Model, part: str, causal: bool) -> tuple[Lines, Lines]:
    """Matrix products, and other operations, of one forward pass of a part, by line."""
    batch, length, keys = setting.one("batch"), setting.size("length"), setting.size("keys_length")
    step = decodes(setting)
    context = keys if step and keys is not None else length
    if setting.exercise.structure.source == "cross" or (keys is not None and not step):
        return _cross_work(setting, model, part)
    if context is None:
        refuse(part in ("scores", "weighted", "attention"), "missing", needs="the length")
        if part in ("model", "layer", "active", "attention layer"):
            setting.assume("the length", "the products with weights alone, without scores,")
    if model.latent is not None and not step and part not in ("feed-forward", "unembedding", "router", "experts"):
        raise CannotSolve("unsettled", convention="whether latent vectors are expanded to keys and values")
    new: Any = setting.one("tokens_count") if context is None else context
    sizes = (batch, 1, 0 if context is None else context - 1) if step else (batch, new, 0)
    if model.window is not None:
        setting.assume("which pairs are counted", "causal ones within the window")
        model, sizes, causal = _in_numbers(setting, model), tuple(evaluated(setting, each) for each in sizes), True
        if any(isinstance(each, Polynomial) for each in sizes):
            raise CannotSolve("missing", needs="numbers for all sizes of a model with windows")
    found: tuple[Lines, Lines] = ([], [])
    for line in model_cost(model, *sizes, weights=2, cache=2, item=2, causal=causal or step).lines:
        left_out = line.name.startswith("scores") and context is None
        left_out |= line.name.endswith("router") and part != "router" and not setting.is_named
        left_out |= line.name.startswith("logits") and not setting.has("vocabulary") and not setting.is_named
        if line.name.startswith(tuple(OPERATIONS[part])) and not left_out:
            found[0 if line.product else 1].append((line.name, line.flops))
    return found


def _in_numbers(setting: Setting, model: Model) -> Model:
    """A model with windows in numbers: which windows are full cannot be seen in formulas."""
    changed = {}
    for each in fields(model):
        if isinstance(value := getattr(model, each.name), Polynomial):
            changed[each.name] = value.substituted(setting.values)
    if any(isinstance(value, Polynomial) for value in changed.values()):
        raise CannotSolve("missing", needs="numbers for all sizes of a model with windows")
    return replace(model, **changed)


def _cross_work(setting: Setting, model: Model, part: str) -> tuple[Lines, Lines]:
    if part not in ("scores", "weighted", "attention", "attention layer", "projections"):
        raise CannotSolve("not_understood", found=f"{setting.asked.object} of cross-attention")
    sizes = (setting.one("batch"), setting.need("length"), setting.need("keys_length"))
    ledger = layer(*sizes, model.d_model, model.heads, model.kv_heads, head_width=model.head_width)
    found: tuple[Lines, Lines] = ([], [])
    for line in ledger.lines:
        name = "queries by keys" if line.name == "scores" else line.name
        name = f"projections: {name}" if "projection" in name else f"scores: {name}"
        if name.startswith(tuple(OPERATIONS[part])):
            found[0 if line.product else 1].append((name, model.layers * line.flops))
    return found


def by_parameters(setting: Setting) -> bool:
    """Whether operations follow from a number of parameters alone."""
    counted = setting.has("parameters") or setting.has("active_parameters")
    return counted and not setting.has("layers") and not setting.has("width")


def _tokens(setting: Setting) -> Any:
    if one_token(setting) or decodes(setting):
        return setting.one("batch") if decodes(setting) else 1
    for role in ("training_tokens", "tokens_count"):
        if setting.has(role):
            return setting.size(role)
    if not setting.has("length") and not setting.has("batch"):
        setting.assume("the number of tokens", "one")
    return setting.one("length") * setting.one("batch")


@solver("flops")
def flops(exercise: Exercise, asked: Asked) -> Answer:
    """Operations of a part, or of the model."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "C", "F", "flops", "C_forward")) is not None:
        return answer(setting, stated, "operations", "the rule that the exercise gives", dimension="FLOP")
    times, reason = _phase(setting)
    mac = int(exercise.convention("flops_per_mac", 2))
    if by_parameters(setting):
        found = times * mac * parameters_of(setting, active=True) * _tokens(setting)
        reason = reason or "each parameter is multiplied and added once for every token"
    elif setting.has("in_features", "out_features"):
        sides = setting.need("in_features") * setting.need("out_features")
        found = times * mac * _tokens(setting) * sides * setting.one("active_experts")
    else:
        part = part_of(asked.object, OPERATIONS)
        lines, also = counted_flops(setting, part, times, mac)
        title = f"operations of the {part}"
        return answer(setting, total(lines), title, reason, lines=lines, also=also, dimension="FLOP")
    return answer(setting, found, "operations", reason, dimension="FLOP", also=_macs(setting, found))


def counted_flops(setting: Setting, part: str, times: int, mac: int) -> tuple[Lines, Lines]:
    """Operations of a part by line, and their totals under other conventions."""
    exercise, causal = setting.exercise, is_causal(setting.exercise)
    model = sized_model(setting, part)
    # A token of a pass takes an equal share.
    shared = one_token(setting) and setting.has("length") and not decodes(setting)
    tokens = setting.need("length") * setting.one("batch") if shared else 1
    counts_others = bool(exercise.convention("exp_counts", False))

    def scaled(made: tuple[Lines, Lines], others: bool) -> Lines:
        products = [(name, Polynomial.of(count) * Fraction(times * mac, 2) / tokens) for name, count in made[0]]
        rest = [(name, Polynomial.of(count) * times / tokens) for name, count in made[1]] if others else []
        return products + rest

    made = work(setting, model, part, bool(causal))
    lines = scaled(made, counts_others)
    also = _macs(setting, total(lines))
    paired = any(name.startswith("scores") for name, _ in lines) and not decodes(setting) and model.window is None
    if paired and exercise.structure.source != "cross" and not setting.has("keys_length"):
        if causal is None:
            setting.assume("which pairs are counted", "all pairs of tokens")
        other = total(scaled(work(setting, model, part, not causal), counts_others))
        also.append(("counting all pairs" if causal else "counting causal pairs only", other))
    if not exercise.said("exp_counts") and part in ("attention", "attention layer"):
        also.append(("with scaling, softmax and division", total(scaled(made, True))))
    if part == "attention":
        setting.assume("whether attention has its projections", "scores and weighted values alone")
        layered = work(setting, model, "attention layer", bool(causal))
        also.append(("with the four projections", total(scaled(layered, counts_others))))
    return lines, also


def _macs(setting: Setting, found: Any) -> Lines:
    said = setting.exercise.said("flops_per_mac")
    return [] if said else [("with a multiply-add as one operation", Polynomial.of(found) / 2)]


@solver("training_flops")
def training_flops(exercise: Exercise, asked: Asked) -> Answer:
    """Operations of training: a rule of the text, or 6 N D."""
    setting = Setting(exercise, asked)
    found, reason = training_work(setting)
    return answer(setting, found, "operations of training", reason, dimension="FLOP")


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


@solver("multiplications")
def multiplications(exercise: Exercise, asked: Asked) -> Answer:
    """Multiplications, or additions, of matrix products."""
    setting = Setting(exercise, asked)
    adds = "addition" in setting.words
    if setting.has("in_features", "out_features"):
        wide = setting.need("in_features") - (1 if adds else 0)
        return answer(setting, _tokens(setting) * wide * setting.need("out_features"), asked.quantity)
    part = part_of(re.sub(r"(scalar )?(additions|multiplications)( (of|in|for))?", "", setting.words), OPERATIONS)
    causal, model = is_causal(exercise), sized_model(setting, part)
    # A row of so many numbers is added up in one fewer additions.
    inner = {"scores: queries by keys": model.head_width, "projections: output": model.heads * model.value_width,
             "scores: weighted values": setting.size("keys_length") or setting.size("length"),
             "feed-forward: down": model.d_ff}  # fmt: skip
    lines: Lines = []
    for name, count in work(setting, model, part, bool(causal))[0]:
        made = Polynomial.of(count) / 2
        if adds and (causal or "experts" in name or "latent" in name):
            raise CannotSolve("not_understood", found=f"additions of {name}")
        lines.append((name, made - made / inner.get(name, model.d_model) if adds else made))
    also: Lines = []
    if causal is None and not adds and any(name.startswith("scores") for name, _ in lines) and model.window is None:
        setting.assume("which pairs are counted", "all pairs of tokens")
        also = [("counting causal pairs only", total(work(setting, model, part, True)[0]) / 2)]
    return answer(setting, total(lines), "additions" if adds else "multiplications", lines=lines, also=also)


# --- bytes ---


def cache_of(setting: Setting, *, token: bool) -> Any:
    """Bytes of the key/value cache, for one token or for the length and batch that are given."""
    model = model_of(setting, *([] if setting.has("latent_width") else ["width"]))
    heads_alone = setting.has("heads") and not setting.has("kv_heads") and not setting.is_named
    if heads_alone and model.latent is None and setting.exercise.structure.variant is None:
        setting.assume("the number of key/value heads", "as many as heads")
    if one_layer(setting):
        model = replace(model, layers=1, window_layers=None if model.window else 0)
    elif not setting.has("layers") and not setting.is_named:
        refuse(setting.asked.quantity != "cache_bytes", "missing", needs="the number of layers")
        setting.assume("the number of layers", "one")
    size = setting.bytes_of("cache")
    if token:
        return Polynomial.of(model.cache_numbers) * size
    length, batch = setting.need("length", "keys_length"), setting.one("batch")
    if model.window is not None:
        tokens = evaluated(setting, length)
        if isinstance(tokens, Polynomial):
            raise CannotSolve("missing", needs="a number for the length, to see which windows are full")
        return batch * size * _in_numbers(setting, model).cache_bytes(tokens, 1, 1)
    return Polynomial.of(model.cache_numbers) * size * length * batch


@solver("cache_bytes")
def cache_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes of keys and values that are kept."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "M", "cache", "M_KV", "KV")) is not None:
        return answer(setting, stated, "cache", "the rule that the exercise gives", dimension="B")
    token = one_token(setting)
    if not token and not setting.has("length") and not setting.has("keys_length") and not setting.has("batch"):
        setting.assume("the length", "one token")
        token = True
    found = cache_of(setting, token=token)
    what = "a latent vector and rotated coordinates" if setting.has("latent_width") else "a key and a value"
    return answer(setting, found, "bytes of the cache", f"{what} for each token and layer", dimension="B")


@solver("weight_bytes")
def weight_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes of the weights in a format."""
    setting = Setting(exercise, asked)
    return answer(setting, weights_of(setting), "bytes of the weights", dimension="B")


def weights_of(setting: Setting) -> Any:
    return Polynomial.of(parameters_of(setting)) * setting.bytes_of("weights")


@solver("tensor_bytes")
def tensor_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes of one tensor."""
    setting = Setting(exercise, asked)
    found = _tensor(setting, setting.words.replace("^t", "")) * setting.bytes_of("activations")
    also = [("in all layers", found * setting.one("layers"))] if re.search("score|attention", setting.words) else []
    return answer(setting, found, f"bytes of {asked.object}", also=also, dimension="B")


def _tensor(setting: Setting, words: str) -> Polynomial:
    """The numbers of a tensor: one that is given with its shape, or one of a layer."""
    for given in setting.exercise.givens:
        if given.shape and given.symbol.lower() == words:
            found = Polynomial.of(1)
            for side in given.shape:
                found = found * (side if isinstance(side, int) else setting.expression(str(side), "the shape"))
            return found
    name = next((name for name, pattern in DATA["tensors"].items() if re.search(pattern, words)), None)
    if name is None:
        raise CannotSolve("not_understood", found=f"the tensor {setting.asked.object}")
    length = setting.need("length", "keys_length")
    keys = setting.need("keys_length", "length")
    if name == "scores":
        if not setting.has("heads"):
            setting.assume("the number of heads", "one")
        return setting.one("batch") * setting.one("heads") * length * keys
    if name == "logits":
        return setting.one("batch") * length * setting.need("vocabulary")
    model = model_of(setting, "width", *(["ff_width"] if name == "hidden" else []))
    wide = {"query": model.heads * model.head_width, "key": model.kv_heads * model.head_width,
            "hidden": model.d_ff, "activations": model.d_model}[name]  # fmt: skip
    return setting.one("batch") * (keys if name == "key" else length) * wide


def moved(setting: Setting) -> tuple[Any, Any, str]:
    """Operations, bytes read and written, and what moves, of the object of the question."""
    words, step = setting.words, decodes(setting) or "step" in setting.words
    if setting.has("flops", "bytes"):
        return setting.need("flops"), setting.need("bytes"), "what is given"
    if setting.has("in_features", "out_features"):
        wide, out, tokens = setting.need("in_features"), setting.need("out_features"), Polynomial.of(_tokens(setting))
        inputs = setting.bytes_of("activations") * tokens * (wide + out)
        matrix = wide * out * setting.bytes_of("weights")
        return 2 * tokens * wide * out, matrix + inputs, "inputs, the matrix and outputs"
    if re.search(r"weights|parameters", words) and not re.search(r"attention|a v\b", words):
        return 2 * parameters_of(setting, active=True) * _tokens(setting), weights_of(setting), "all weights"
    length, keys = setting.need("length", "keys_length"), setting.need("keys_length", "length")
    if step and not re.search(r"attention|cache|score|weighted", words):
        model = model_of(setting, "width", "layers")
        pairs = 4 * setting.one("batch") * keys * model.heads * model.head_width * model.layers
        made = 2 * parameters_of(setting, active=True) * setting.one("batch") + pairs
        return made, weights_of(setting) + cache_of(setting, token=False), "the weights and the cache"
    model, item = model_of(setting, "width"), setting.bytes_of("activations")
    queries = setting.one("batch") * (1 if step else length)
    asks, stored = (
        queries * model.heads * model.head_width,
        setting.one("batch") * keys * model.kv_heads * model.head_width,
    )
    cells, once = queries * keys * model.heads, 2 * queries * keys * model.heads * model.head_width
    if re.search(r"score|q ?k", words):
        return once, item * (asks + stored + cells), "queries, keys and scores"
    if re.search(r"\ba ?v\b|weighted", words):
        return once, item * (cells + stored + asks), "weights, values and outputs"
    if "cache" in words:
        return 2 * once, 2 * setting.bytes_of("cache") * stored, "cached keys and values"
    if "attention" in words or words == "":
        return 2 * once, item * (2 * asks + 2 * stored), "queries, keys, values and outputs"
    raise CannotSolve("not_understood", found=f"the bytes that {setting.asked.object} moves")


@solver("moved_bytes")
def moved_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes read and written."""
    setting = Setting(exercise, asked)
    _, found, what = moved(setting)
    also: Lines = []
    if what == "queries, keys, values and outputs":
        setting.assume("whether scores are written to memory", "a kernel that keeps scores near the cores")
        scores = _tensor(setting, "scores") / (setting.one("length") if decodes(setting) else 1)
        also = [
            ("with scores and weights written and read again", found + 4 * setting.bytes_of("activations") * scores)
        ]
    return answer(setting, found, "bytes moved", what, also=also, dimension="B")


@solver("intensity")
def intensity(exercise: Exercise, asked: Asked) -> Answer:
    """Operations for each byte moved."""
    setting = Setting(exercise, asked)
    made, size, what = moved(setting)
    if not isinstance(evaluated(setting, made), Polynomial) and not isinstance(evaluated(setting, size), Polynomial):
        made, size = setting.short("flops", made), setting.short("bytes", size)
    return answer(setting, Polynomial.of(made) / size, "operations for each byte", f"{what} are moved")


@solver("activation_bytes")
def activation_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Activations that training stores, by a rule of the text or the usual one for 16-bit layers."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "M", "A", "activations", "M_act")) is not None:
        return answer(setting, stated, "activations", "the rule that the exercise gives", dimension="B")
    model, length = model_of(setting, "width"), setting.need("length")
    rows = setting.one("batch") * length * (1 if one_layer(setting) else model.layers)
    if re.search(r"checkpoint|recomput", setting.words):
        found = rows * model.d_model * setting.bytes_of("activations")
        return answer(setting, found, "activations", "the input of each layer is kept", dimension="B")
    setting.need("heads")
    setting.assume("what a layer stores", "34 n d + 5 h n^2 bytes for each sequence (16 bits, a mask of 1 byte)")
    kept, scores = 34 * rows * model.d_model, 5 * rows * length * model.heads
    also = [("with scores computed again in the backward pass", kept)]
    return answer(setting, kept + scores, "activations", dimension="B", also=also)


@solver("training_bytes")
def training_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Weights, gradients and the two states of Adam."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "M", "memory", "M_train")) is not None:
        return answer(setting, stated, "memory", "the rule that the exercise gives", dimension="B")
    lines, copied = training_lines(setting)
    if "gradient" in setting.words:
        lines = lines[1:2]
    elif re.search(r"optimi[sz]er|adam|moment|state", setting.words):
        lines = lines[2:]
    elif re.fullmatch(r"(the )?(weights?|parameters?)", setting.words):
        lines = lines[:1]
    fewer = total([line for line in lines if line[0] != copied])
    also = [("without a copy of the weights in float32", fewer)]
    return answer(setting, total(lines), "memory", lines=lines, also=also, dimension="B")


def training_lines(setting: Setting) -> tuple[Lines, str]:
    """Bytes of weights, gradients and the states of Adam; with 16 bits, a copy of the weights too."""
    count, item, copied = Polynomial.of(parameters_of(setting)), setting.bytes_of("weights"), "weights in float32"
    lines: Lines = [("weights", item * count), ("gradients", item * count), ("two moments in float32", 8 * count)]
    lines += [(copied, 4 * count)] if item < 4 else []
    setting.assume("the optimizer", "Adam" + (", in float32, with a copy of the weights," if item < 4 else ""))
    return lines, copied


@solver("savings")
def savings(exercise: Exercise, asked: Asked) -> Answer:
    """A ratio or a percentage between two structures: experts against all, key/value heads against heads."""
    setting = Setting(exercise, asked.model_copy(update={"unit": ""}))
    words = f"{asked.object} {asked.unit}".lower()
    percent = bool(re.search(r"%|percent|saving|reduction|reduced by", words))
    if setting.has("experts", "active_experts"):
        before, after, what = setting.need("experts"), setting.need("active_experts"), "active experts of all"
        percent = not re.search(r"ratio|times|factor|speed", words)
    elif setting.has("latent_width"):
        model = model_of(setting, "heads")
        before, after = 2 * model.kv_heads * model.head_width, model.cache_numbers_per_layer
        what = "numbers cached for each token and layer"
    else:
        before, what = setting.need("heads"), "key/value heads against heads"
        after = Polynomial.of(1) if exercise.structure.variant == "mqa" else setting.need("kv_heads")
    ratio, share = Polynomial.of(before) / after, 100 - 100 * Polynomial.of(after) / before
    also = [("as a ratio of the two", ratio)] if percent else [("saved, in percent", share)]
    found = answer(setting, share if percent else ratio, "saved, in percent" if percent else "ratio", what, also=also)
    return replace(found, text=f"{found.text}%", unit="%") if percent and found.form == "number" else found
