"""Solvers on sizes: parameters, operations, bytes of caches, weights, tensors and training, and what is saved."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ...cost.architecture import Model
from ...cost.blocks import model_cost
from ...cost.counting import layer
from ...cost.polynomial import Polynomial, whole
from ..findings import CannotSolve
from ..record import Asked, Exercise
from ..solving import Answer, solver
from .architecture import Lines, Setting, answer, evaluated, model_of, rule, total

# The words of a question, and the parts of a model that they name; the first that matches counts.
_PARTS = (
    ("unembedding", r"unembed|output embedding|lm head|language[- ]model head|vocabulary projection|^logits?$"),
    ("embeddings", r"embed"),
    ("router", r"router|^gate$"),
    ("active", r"active|activated|per token used"),
    ("experts", r"^(all )?(the )?experts?|^moe"),
    ("feed-forward", r"feed|ffn|ffw|mlp|^ff\b"),
    ("query", r"quer|^w_?q$"),
    ("key", r"^keys?\b|key proj|key matri|^w_?k$"),
    ("value", r"^values?\b|value proj|value matri|^w_?v$"),
    ("projected", r"output proj|output matri|^w_?o$"),
    ("norms", r"norm"),
    ("projections", r"project|qkv"),
    ("scores", r"score|logit|q ?k|dot[- ]product"),
    ("weighted", r"a ?v\b|weighted|times v|weights? v|^output$|^attention output"),
    ("attention layer", r"multi-?head|(attention|mha) (layer|block|module|sub-?layer)|with projections"),
    ("attention", r"attention|mha|gqa|mqa|mla"),
    ("layer", r"layer|block"),
    ("linear", r"linear|dense|matmul|matrix (product|multipl)"),
    ("model", r"^$|model|total|all|forward|transformer|network|pass|training|step|token|sequence|prompt|backward"),
)  # fmt: skip
_PARAMETER_LINES = {
    "attention": ("projections", "scores"), "attention layer": ("projections", "scores"),
    "projections": ("projections",), "feed-forward": ("feed-forward",), "norms": ("norms",), "embeddings": ("embedding",), "unembedding": ("logits",),
    "query": ("projections: query",), "key": ("projections: key",), "value": ("projections: value",),
    "projected": ("projections: output",), "router": ("feed-forward: router",), "experts": ("feed-forward: experts",),
    "layer": ("projections", "scores", "feed-forward", "norms"),
    "model": ("",), "active": ("",),
}  # fmt: skip
_FLOP_LINES = {
    **_PARAMETER_LINES, "attention": ("scores",), "scores": ("scores: queries by keys",),
    "weighted": ("scores: weighted values",), "attention layer": ("projections", "scores"), "unembedding": ("logits",),
    "experts": ("feed-forward",), "active": ("",), "layer": ("projections", "scores", "feed-forward"),
}  # fmt: skip
_ONE_LAYER = re.compile(
    r"\b(per|one|a|each|single|every) (?:\w+[- ])?(layer|block)|^(?:an? )?(?:\w+[- ])*(layer|block)$"
)
_ONE_TOKEN = re.compile(r"\btoken\b|per token")


def part_of(asked: Asked, known: Any) -> str:
    """The part of a model that a question names."""
    words = re.sub(r"^(the|an|of the|of) ", "", asked.object.strip().lower().replace("\\", "").replace("_{", "_"))
    words = re.sub(r"[\^{}()$]|\bt\b", "", words).strip()
    for name, pattern in _PARTS:
        if re.search(pattern, words) and name in known:
            return name
    raise CannotSolve("not_understood", found=f"{asked.quantity.replace('_', ' ')} of {asked.object}")


def one_layer(asked: Asked) -> bool:
    words = asked.object.strip().lower()
    return bool(_ONE_LAYER.search(words)) and not re.search(r"all|layers", words)


def _is_norm(name: str) -> bool:
    return "norm" in name


def parameter_lines(setting: Setting, model: Model, part: str) -> Lines:
    """The parameters of a part of the model, by line."""
    wanted = _PARAMETER_LINES[part]
    found: Lines = []
    for name, count in model.parameter_lines:
        if part == "norms":
            chosen = _is_norm(name)
        else:
            chosen = name.startswith(wanted) and not (_is_norm(name) and part != "model" and part != "active")
        if name == "feed-forward: router" and part != "router" and setting.exercise.given("model") is None:
            chosen = False
        if name.startswith(("embedding", "logits")) and part in ("model", "active", "unembedding", "embeddings"):
            chosen = chosen and (setting.size("vocabulary") is not None or "positions" in name
                                 or setting.exercise.given("model") is not None)  # fmt: skip
        if part == "active" and name.startswith(("feed-forward: experts", "feed-forward: biases of experts")):
            count = count * model.experts_active / model.experts
            name = name.replace("experts", "active experts")
        if chosen:
            found.append((name, count))
    return found


def _alternatives(setting: Setting, model: Model, part: str) -> list[tuple[str, Model]]:
    """The model under other usual conventions that the text does not settle."""
    structure, named = setting.exercise.structure, setting.exercise.given("model") is not None
    found: list[tuple[str, Model]] = []
    if structure.biases is None and not named:
        found.append(("with biases", replace(model, qkv_bias=True, out_bias=True, ff_bias=True)))
    if structure.norm is None and part in ("model", "active", "layer"):
        if named:
            found.append(("without norms", replace(model, norm="none")))
        else:
            normed = replace(model, norm="layer", norms_per_layer=2, final_norm=True)
            found.append(("with layer norms, two a layer and a final one", normed))
    if structure.gated is None and not named and part in ("model", "active", "layer", "feed-forward", "experts"):
        found.append(("with a gated feed-forward network, three matrices", replace(model, gated=True)))
    if structure.tied is None and not named and part in ("model", "active"):
        found.append(("with the output matrix tied to the embedding", replace(model, tied=True)))
    return found


def parameters_of(setting: Setting, *, active: bool = False) -> Any:
    """All parameters: as given, or counted from the structure (with experts, the active ones where wanted)."""
    if active and (found := setting.size("active_parameters")) is not None:
        return found
    if (found := setting.size("parameters")) is not None:
        return found
    if (stated := rule(setting, "N", "P", "params", "parameters", "N_params")) is not None:
        return stated
    _assume_conventions(setting, "model")
    model = model_of(setting, "width", "layers", "ff_width")
    return total(parameter_lines(setting, model, "active" if active and model.experts else "model"))


def _assume_conventions(setting: Setting, part: str) -> None:
    structure = setting.exercise.structure
    if setting.exercise.given("model") is not None:
        return
    if structure.gated is None and part in ("model", "active", "layer", "feed-forward", "experts"):
        setting.assume("whether the feed-forward network is gated", "two matrices, not gated,")
    if structure.biases is None:
        setting.assume("whether there are biases", "none")
    if structure.tied is None and part in ("model", "active") and setting.size("vocabulary") is not None:
        setting.assume("whether the output matrix is the embedding", "a matrix apart")
    if setting.size("vocabulary") is None and part in ("model", "active"):
        setting.assume("the vocabulary", "no embedding")


@solver("parameters")
def parameters(exercise: Exercise, asked: Asked) -> Answer:
    """Parameters of a model or of a part, by line."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "N", "P", "params", "parameters", "N_params")) is not None:
        setting.note("the rule of the text is evaluated as it stands")
        return answer(setting, stated, title="parameters", reason="the rule that the exercise gives")
    if setting.size("in_features") is not None and setting.size("out_features") is not None:
        return _linear_parameters(setting)
    part = part_of(asked, _PARAMETER_LINES)
    model = _sized_model(setting, part)
    _assume_conventions(setting, part)
    lines = parameter_lines(setting, model, part)
    if not lines:
        raise CannotSolve("missing", needs={"embeddings": "the vocabulary", "unembedding": "the vocabulary"}.get(
            part, f"the sizes of {asked.object}"))  # fmt: skip
    also = [(name, total(parameter_lines(setting, other, part))) for name, other in _alternatives(setting, model, part)]
    also += _more_parameters(setting, model, part)
    return answer(setting, total(lines), lines=lines, title=f"parameters of the {part}", also=also)


def _sized_model(setting: Setting, part: str) -> Model:
    needed = ["width"]
    if part in ("model", "active", "layer", "feed-forward", "experts"):
        needed.append("ff_width")
    if part in ("embeddings", "unembedding"):
        needed.append("vocabulary")
    if part in ("model", "active") and setting.size("vocabulary") is not None:
        needed.append("layers")
    if part in ("experts", "router"):
        needed.append("experts")
    if part == "active":
        needed.append("active_experts")
    model = model_of(setting, *needed)
    if part == "layer" or one_layer(setting.asked):
        return replace(model, layers=1, window_layers=None if model.window else 0, dense_layers=0, final_norm=False)
    if setting.size("layers") is None and part in ("model", "active"):
        setting.assume("the number of layers", "one")
    return model


def _more_parameters(setting: Setting, model: Model, part: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    lines = total(parameter_lines(setting, model, part))
    if model.experts and part in ("model", "active", "layer") and setting.exercise.given("model") is None:
        found.append(("with a router of width times experts", lines + model.layers * model.experts * model.d_model))
    if part == "embeddings" and setting.exercise.structure.tied is None and model.kind != "encoder":
        found.append(("with an output matrix apart", lines + model.vocabulary * model.d_model))
    if part == "model" and setting.size("vocabulary") is not None and setting.exercise.given("model") is None:
        inner = [line for line in parameter_lines(setting, model, part) if not line[0].startswith(("embed", "logits"))]
        found.append(("without embeddings", total(inner)))
    if part in ("attention", "feed-forward", "projections", "norms", "attention layer") and model.layers != 1:
        found.append(("one layer", total(parameter_lines(setting, replace(model, layers=1, dense_layers=0), part))))
    return found


def _linear_parameters(setting: Setting) -> Answer:
    wide, out = setting.need("in_features"), setting.need("out_features")
    experts = setting.size("experts")
    biased = setting.exercise.structure.biases
    lines: Lines = [("matrix", wide * out * (1 if experts is None else experts))]
    biases = out * (1 if experts is None else experts)
    if biased:
        lines.append(("biases", biases))
    elif biased is None:
        setting.assume("whether there are biases", "none")
    also = [("with biases" if not biased else "without biases", lines[0][1] + (0 if biased else biases))]
    return answer(setting, total(lines), lines=lines, title="parameters", also=also)


# --- operations ---


def _phase_factor(setting: Setting) -> tuple[int, str]:
    phase = setting.exercise.structure.phase
    if setting.asked.quantity == "training_flops" or "training" in setting.asked.object.lower():
        phase = "training"
    if "backward" in setting.asked.object.lower():
        phase = "backward"
    return {"training": (3, "forward and backward, 3 times the forward pass"),
            "backward": (2, "the backward pass takes twice the forward pass")}.get(phase or "", (1, ""))  # fmt: skip


def is_causal(exercise: Exercise) -> bool | None:
    """Whether pairs are causal; None where nothing is said."""
    if exercise.convention("pairs") is not None:
        return exercise.convention("pairs") == "causal"
    return True if "causal" in exercise.structure.mask else None


def work(setting: Setting, model: Model, part: str, causal: bool) -> tuple[Lines, Lines]:
    """Matrix products, and other operations, of one forward pass of a part, by line."""
    exercise = setting.exercise
    batch = setting.size("batch") or 1
    length = setting.size("length")
    decode = exercise.structure.phase == "decode" or ("decode" in setting.asked.object.lower())
    keys = setting.size("keys_length")
    if exercise.structure.source == "cross" or (keys is not None and not decode):
        return _cross_work(setting, model, part, batch, length, keys)
    if part in ("scores", "weighted", "attention") and length is None and keys is None:
        raise CannotSolve("missing", needs="the length")
    if decode:
        context = keys if keys is not None else length
        sizes = (batch, 1, 0 if context is None else context - 1)
        causal = True
    else:
        sizes = (batch, setting.size("tokens_count") or 1 if length is None else length, 0)
    if length is None and keys is None and part in ("model", "layer", "active", "attention layer"):
        setting.assume("the length", "the products with weights alone, without scores,")
    ledger = model_cost(model, *sizes, weights=2, cache=2, item=2, causal=causal)
    products: Lines = []
    others: Lines = []
    for line in ledger.lines:
        name = line.name
        if not name.startswith(_FLOP_LINES[part]) or (name.startswith("scores") and length is None and keys is None):
            continue
        if "router" in name and exercise.given("model") is None and part != "router":
            continue
        if name.startswith("logits") and setting.size("vocabulary") is None and exercise.given("model") is None:
            continue
        (products if line.product else others).append((name, line.flops))
    return products, others


def _cross_work(setting: Setting, model: Model, part: str, batch: Any, length: Any, keys: Any) -> tuple[Lines, Lines]:
    if length is None or keys is None:
        raise CannotSolve("missing", needs="the number of queries and the number of keys")
    if part not in ("scores", "weighted", "attention", "attention layer", "projections"):
        raise CannotSolve("not_understood", found=f"{setting.asked.object} of cross-attention")
    found = layer(batch, length, keys, model.d_model, model.heads, model.kv_heads, head_width=model.head_width)
    names = {"scores": "queries by keys"}
    products: Lines = []
    others: Lines = []
    for line in found.lines:
        name = names.get(line.name, line.name)
        name = f"projections: {name}" if "projection" in name else f"scores: {name}"
        if name.startswith(_FLOP_LINES[part]):
            (products if line.product else others).append((name, model.layers * line.flops))
    return products, others


def flops_of(setting: Setting, part: str, *, causal: bool) -> tuple[Model, Lines, Lines]:
    needed = ["width"] + (["ff_width"] if part in ("model", "layer", "feed-forward", "active", "experts") else [])
    if part in ("model", "active") and setting.size("vocabulary") is not None:
        needed.append("layers")
    model = model_of(setting, *needed)
    if part == "layer" or one_layer(setting.asked):
        model = replace(model, layers=1, dense_layers=0)
    return model, *work(setting, model, part, causal)


def _by_parameters(setting: Setting) -> bool:
    """Whether operations follow from a number of parameters alone."""
    counted = setting.size("parameters") is not None or setting.size("active_parameters") is not None
    return counted and setting.size("layers") is None and setting.size("width") is None


def _tokens(setting: Setting) -> Any:
    if _ONE_TOKEN.search(setting.asked.object.lower()) or setting.exercise.structure.phase == "decode":
        return setting.size("batch") or 1 if setting.exercise.structure.phase == "decode" else 1
    for role in ("training_tokens", "tokens_count"):
        if (found := setting.size(role)) is not None:
            return found
    length, batch = setting.size("length"), setting.size("batch")
    if length is None and batch is None:
        setting.assume("the number of tokens", "one")
    return (1 if length is None else length) * (1 if batch is None else batch)


@solver("flops")
def flops(exercise: Exercise, asked: Asked) -> Answer:
    """Operations of a part, or of the model."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "C", "F", "flops", "C_forward")) is not None:
        setting.note("the rule of the text is evaluated as it stands")
        return answer(setting, stated, title="operations", reason="the rule that the exercise gives", dimension="FLOP")
    factor, reason = _phase_factor(setting)
    mac = _per_mac(setting)
    if _by_parameters(setting):
        found = factor * mac * parameters_of(setting, active=True) * _tokens(setting)
        reason = reason or "each parameter is multiplied and added once for every token"
        return answer(setting, found, title="operations", reason=reason, dimension="FLOP", also=_macs(setting, found))
    if setting.size("in_features") is not None and setting.size("out_features") is not None:
        return _linear_flops(setting, factor * mac)
    part = part_of(asked, _FLOP_LINES)
    found, lines, also = counted_flops(setting, part, factor, mac)
    return answer(setting, found, lines=lines, title=f"operations of the {part}", reason=reason, also=also,
                  dimension="FLOP")  # fmt: skip


def counted_flops(setting: Setting, part: str, factor: int, mac: int) -> tuple[Any, Lines, list[tuple[str, Any]]]:
    """Operations of a part with their lines, and under other conventions."""
    exercise, causal = setting.exercise, is_causal(setting.exercise)
    model, products, others = flops_of(setting, part, causal=bool(causal))
    per_token = _ONE_TOKEN.search(setting.asked.object.lower()) and setting.size("length") is not None
    tokens = (setting.size("length") or 1) * (setting.size("batch") or 1) if per_token else 1
    counts_other = bool(exercise.convention("exp_counts", False))

    def whole_pass(products: Lines, others: Lines) -> Lines:
        scaled = [(name, _times(count, factor * mac, 2) / tokens) for name, count in products]
        return scaled + ([(name, _times(count, factor, 1) / tokens) for name, count in others] if counts_other else [])

    lines = whole_pass(products, others)
    found = total(lines)
    also = _macs(setting, found)
    pairs = any(name.startswith("scores") for name, _ in products) and exercise.structure.phase != "decode"
    if pairs and causal is None and exercise.structure.source != "cross" and setting.size("keys_length") is None:
        setting.assume("which pairs are counted", "all pairs of tokens")
        half = work(setting, model, part, True)
        also.append(("counting causal pairs only", total(whole_pass(*half))))
    elif pairs and causal:
        also.append(("counting all pairs", total(whole_pass(*work(setting, model, part, False)))))
    if not exercise.said("exp_counts") and others and part in ("scores", "weighted", "attention", "attention layer"):
        with_others = found + total([(name, _times(count, factor, 1) / tokens) for name, count in others])
        also.append(("with scaling, softmax and division", with_others))
    if part == "attention":
        setting.assume("whether attention has its projections", "scores and weighted values alone")
        layered = whole_pass(*work(setting, model, "attention layer", bool(causal)))
        also.append(("with the four projections", total(layered)))
    return found, lines, also


def _times(count: Any, factor: int, by: int) -> Polynomial:
    return Polynomial.of(count) * Fraction(factor, by)


def _per_mac(setting: Setting) -> int:
    return int(setting.exercise.convention("flops_per_mac", 2))


def _macs(setting: Setting, found: Any) -> list[tuple[str, Any]]:
    if setting.exercise.said("flops_per_mac"):
        return []
    return [("with a multiply-add as one operation", Polynomial.of(found) / 2)]


def _linear_flops(setting: Setting, factor: int) -> Answer:
    wide, out = setting.need("in_features"), setting.need("out_features")
    active = setting.size("active_experts")
    found = factor * _tokens(setting) * wide * out * (1 if active is None else active)
    return answer(setting, found, title="operations", reason="a row of the matrix for each output", dimension="FLOP",
                  also=_macs(setting, found))  # fmt: skip


@solver("training_flops")
def training_flops(exercise: Exercise, asked: Asked) -> Answer:
    """Operations of training: a rule of the text, or 6 N D."""
    setting = Setting(exercise, asked)
    found, reason = training_work(setting)
    also = []
    if setting.size("experts") is not None and setting.size("active_parameters") is None:
        also.append(("with all parameters", 6 * parameters_of(setting) * setting.need("training_tokens")))
    return answer(setting, found, title="operations of training", reason=reason, also=also, dimension="FLOP")


def training_work(setting: Setting) -> tuple[Any, str]:
    """Operations of training, and why."""
    if (stated := setting.size("flops")) is not None:
        return stated, "as given"
    if (stated := rule(setting, "C", "F", "flops", "C_train", "FLOPs")) is not None:
        if "N" in stated.free_symbols - set(setting.values) and setting.size("parameters") is None:
            setting.values["N"] = evaluated(setting, parameters_of(setting))
        return stated, "the rule that the exercise gives"
    tokens = setting.need("training_tokens", "tokens_count")
    return 6 * parameters_of(setting, active=True) * tokens, "2 N for a token forward, and 4 N backward"


@solver("multiplications")
def multiplications(exercise: Exercise, asked: Asked) -> Answer:
    """Multiplications, or additions, of matrix products."""
    setting = Setting(exercise, asked)
    adds = "addition" in asked.object.lower()
    words = re.sub(r"(scalar )?(additions|multiplications)( (of|in))?", "", asked.object, flags=re.IGNORECASE).strip()
    wanted = asked.model_copy(update={"object": words})
    if setting.size("in_features") is not None and setting.size("out_features") is not None:
        wide, out, tokens = setting.need("in_features"), setting.need("out_features"), _tokens(setting)
        return answer(setting, tokens * (wide - 1 if adds else wide) * out, title=asked.quantity)
    part = part_of(wanted, _FLOP_LINES)
    causal = is_causal(exercise)
    model, products, _ = flops_of(setting, part, causal=bool(causal))
    inner = {"scores: queries by keys": model.head_width, "projections: output": model.heads * model.value_width,
             "scores: weighted values": setting.size("keys_length") or setting.size("length"),
             "feed-forward: down": model.d_ff}  # fmt: skip
    lines: Lines = []
    for name, count in products:
        made = Polynomial.of(count) / 2
        if adds and name not in inner and not name.startswith(("projections", "feed-forward: up", "logits")):
            raise CannotSolve("not_understood", found=f"additions of {name}")
        if adds and causal and name == "scores: weighted values":
            raise CannotSolve("unsettled", convention="how additions of causal rows are counted")
        lines.append((name, made - made / inner.get(name, model.d_model) if adds else made))
    also = []
    if causal is None and any(name.startswith("scores") for name, _ in products) and not adds:
        setting.assume("which pairs are counted", "all pairs of tokens")
        half = work(setting, model, part, True)[0]
        also.append(("counting causal pairs only", Polynomial.of(total(half)) / 2))
    return answer(setting, total(lines), lines=lines, title="additions" if adds else "multiplications", also=also)


# --- bytes ---


def cache_of(setting: Setting, *, token: bool) -> tuple[Any, Lines]:
    """Bytes of the key/value cache, for one token or for the length and batch that are given."""
    model = model_of(setting, *(() if setting.size("latent_width") is not None else ("width",)))
    structure = setting.exercise.structure
    if model.latent is None and structure.variant is None and setting.size("kv_heads") is None \
            and setting.exercise.given("model") is None and setting.size("heads") is not None:  # fmt: skip
        setting.assume("the number of key/value heads", "as many as heads")
    if one_layer(setting.asked):
        model = replace(model, layers=1, window_layers=None if model.window else 0)
    elif setting.size("layers") is None and setting.exercise.given("model") is None:
        setting.assume("the number of layers", "one")
    numbers, size = Polynomial.of(model.cache_numbers), setting.bytes_of("cache")
    length = setting.size("keys_length") if setting.size("length") is None else setting.size("length")
    if token or length is None:
        if not token and setting.size("batch") is not None:
            raise CannotSolve("missing", needs="the length")
        return numbers * size, [("numbers a token", numbers)]
    window, batch = setting.size("window"), setting.size("batch") or 1
    if window is not None:
        kept = [evaluated(setting, each) for each in (window, length)]
        if any(isinstance(each, Polynomial) for each in kept):
            raise CannotSolve("missing", needs="numbers for the window and the length")
        length = min(kept)
    return numbers * size * length * batch, [("numbers a token", numbers)]


@solver("cache_bytes")
def cache_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes of keys and values that are kept."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "M", "cache", "M_KV", "KV")) is not None:
        return answer(setting, stated, title="cache", reason="the rule that the exercise gives", dimension="B")
    token = bool(_ONE_TOKEN.search(asked.object.lower()))
    found, _ = cache_of(setting, token=token)
    if not token and setting.size("length") is None and setting.size("keys_length") is None:
        setting.assume("the length", "one token")
    latent = setting.size("latent_width") is not None
    reason = "a latent vector and rotated coordinates for each layer" if latent else "a key and a value for each layer"
    return answer(setting, found, title="bytes of the cache", reason=reason, dimension="B")


@solver("weight_bytes")
def weight_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes of the weights in a format."""
    setting = Setting(exercise, asked)
    return answer(setting, weights_of(setting), title="bytes of the weights", dimension="B")


def weights_of(setting: Setting) -> Any:
    return Polynomial.of(parameters_of(setting)) * setting.bytes_of("weights")


_TENSORS = (
    ("logits", r"vocabulary|^logits$|output logits"),
    ("scores", r"score|attention weight|attention matri|^weights$|^a$|logit|softmax|q ?k"),
    ("query", r"^q$|quer|^output$"), ("key", r"^[kv]$|key|value"), ("hidden", r"hidden|feed|ff|mlp|intermediate"),
    ("activations", r"^x$|activation|token|input|residual|embedding|layer output"),
)  # fmt: skip


@solver("tensor_bytes")
def tensor_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes of one tensor."""
    setting = Setting(exercise, asked)
    numbers = _tensor(setting, asked.object.lower().strip().replace("^t", ""))
    also = []
    if asked.object.lower().startswith(("score", "attention")) and setting.size("layers") is not None:
        also.append(("in all layers", numbers * setting.size("layers") * setting.bytes_of("activations")))
    found = numbers * setting.bytes_of("activations")
    return answer(setting, found, title=f"bytes of {asked.object}", also=also, dimension="B")


def _tensor(setting: Setting, words: str) -> Polynomial:
    for given in setting.exercise.givens:
        if given.shape and given.symbol and given.symbol.lower() == words:
            found = Polynomial.of(1)
            for side in given.shape:
                found = found * (side if isinstance(side, int) else setting.expression(str(side), "the shape"))
            return found
    name = next((name for name, pattern in _TENSORS if re.search(pattern, words)), None)
    if name is None:
        raise CannotSolve("not_understood", found=f"the tensor {setting.asked.object}")
    batch, length = setting.size("batch") or Polynomial.of(1), setting.need("length", "keys_length")
    if name == "scores":
        heads = setting.size("heads")
        if heads is None:
            setting.assume("the number of heads", "one")
        keys = setting.size("keys_length")
        return batch * (1 if heads is None else heads) * length * (length if keys is None else keys)
    if name == "logits":
        return batch * length * setting.need("vocabulary")
    model = model_of(setting, "width", *(("ff_width",) if name == "hidden" else ()))
    keys = setting.size("keys_length")
    wide = {"query": model.heads * model.head_width, "key": model.kv_heads * model.head_width,
            "hidden": model.d_ff, "activations": model.d_model}[name]  # fmt: skip
    return batch * (keys if name == "key" and keys is not None else length) * wide


def moved(setting: Setting) -> tuple[Any, Any, str]:
    """Operations, bytes read and written, and what moves, of the object of the question."""
    words, item = setting.asked.object.lower(), setting.bytes_of("activations")
    if setting.size("in_features") is not None and setting.size("out_features") is not None:
        wide, out, tokens = setting.need("in_features"), setting.need("out_features"), Polynomial.of(_tokens(setting))
        weights = wide * out * setting.bytes_of("weights")
        return 2 * tokens * wide * out, weights + item * tokens * (wide + out), "inputs, the matrix and outputs"
    if setting.size("flops") is not None and setting.size("bytes") is not None:
        return setting.size("flops"), setting.size("bytes"), "as given"
    decode = setting.exercise.structure.phase == "decode" or re.search(r"decod|generat|step", words)
    if re.search(r"weights|parameters", words) and "attention" not in words:
        return 2 * parameters_of(setting, active=True) * _tokens(setting), weights_of(setting), "every weight once"
    length = setting.need("length", "keys_length")
    model, batch = model_of(setting, "width"), setting.size("batch") or Polynomial.of(1)
    keys = setting.size("keys_length")
    keys, queries = (length if keys is None else keys), (Polynomial.of(1) if decode else length)
    cells = batch * model.heads * queries * keys
    asks, stored = batch * queries * model.heads * model.head_width, batch * keys * model.kv_heads * model.head_width
    if re.search(r"score|q ?k", words):
        return 2 * cells * model.head_width, item * (asks + stored + cells), "queries, keys and scores"
    if re.search(r"\ba ?v\b|weighted", words):
        return 2 * cells * model.head_width, item * (cells + stored + asks), "weights, values and outputs"
    if re.search(r"attention|cache", words) or words == "":
        if re.search("cache", words) and decode:
            return 4 * cells * model.head_width, 2 * setting.bytes_of("cache") * stored, "cached keys and values"
        return 4 * cells * model.head_width, item * (2 * asks + 2 * stored), "queries, keys, values and outputs"
    if decode:
        work = 2 * parameters_of(setting, active=True) * batch + 4 * cells * model.head_width * model.layers
        return work, weights_of(setting) + cache_of(setting, token=False)[0], "the weights and the cache"
    raise CannotSolve("not_understood", found=f"the bytes that {setting.asked.object} moves")


@solver("moved_bytes")
def moved_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Bytes read and written."""
    setting = Setting(exercise, asked)
    _, found, what = moved(setting)
    return answer(setting, found, title="bytes moved", reason=what, also=_materialised(setting, found), dimension="B")


def _materialised(setting: Setting, found: Any) -> list[tuple[str, Any]]:
    if not re.search(r"attention", setting.asked.object.lower()) or setting.exercise.structure.phase == "decode":
        return []
    setting.assume("whether scores are written to memory", "a kernel that keeps scores near the cores")
    model = model_of(setting, "width")
    length = setting.need("length")
    cells = (setting.size("batch") or 1) * model.heads * length * (setting.size("keys_length") or length)
    return [("with scores and weights written and read again", found + 4 * setting.bytes_of("activations") * cells)]


@solver("intensity")
def intensity(exercise: Exercise, asked: Asked) -> Answer:
    """Operations for each byte moved."""
    setting = Setting(exercise, asked)
    work, size, what = moved(setting)
    work, size = (evaluated(setting, each) for each in (work, size))
    if isinstance(work, Polynomial) or isinstance(size, Polynomial):
        return answer(setting, Polynomial.of(work) / size, title="operations for each byte", reason=f"{what} are moved")
    setting.values |= {"C": work, "M": size}
    found = Polynomial.name("C") / Polynomial.name("M")
    return answer(setting, found, title="operations for each byte", reason=f"{what} are moved")


@solver("activation_bytes")
def activation_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Activations that training stores, by a rule of the text or the usual one for 16-bit layers."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "M", "A", "activations", "M_act")) is not None:
        return answer(setting, stated, title="activations", reason="the rule that the exercise gives", dimension="B")
    model = model_of(setting, "width")
    rows = (setting.size("batch") or 1) * setting.need("length")
    layers = 1 if one_layer(asked) else model.layers
    if re.search(r"checkpoint|recomput", asked.object.lower()):
        found = Polynomial.of(layers) * rows * model.d_model * setting.bytes_of("activations")
        return answer(setting, found, title="activations", reason="the input of each layer is kept", dimension="B")
    setting.need("heads")
    setting.assume("what a layer stores", "34 n d + 5 h n^2 bytes for each sequence (16 bits, a mask of 1 byte)")
    found = Polynomial.of(layers) * (34 * rows * model.d_model + 5 * rows * setting.need("length") * model.heads)
    kept = Polynomial.of(layers) * 34 * rows * model.d_model
    return answer(setting, found, title="activations", dimension="B",
                  also=[("with scores computed again in the backward pass", kept)])  # fmt: skip


@solver("training_bytes")
def training_bytes(exercise: Exercise, asked: Asked) -> Answer:
    """Weights, gradients and the two states of Adam."""
    setting = Setting(exercise, asked)
    if (stated := rule(setting, "M", "memory", "M_train")) is not None:
        return answer(setting, stated, title="memory", reason="the rule that the exercise gives", dimension="B")
    count, item, words = Polynomial.of(parameters_of(setting)), setting.bytes_of("weights"), asked.object.lower()
    mixed = Fraction(item) < 4
    states: Lines = [("first and second moments in float32", 8 * count)]
    if mixed:
        states.append(("weights in float32", 4 * count))
    setting.assume("the optimizer", "Adam" + (", in float32, with a copy of the weights," if mixed else ""))
    lines: Lines = [("weights", item * count), ("gradients", item * count), *states]
    if "gradient" in words:
        lines = lines[1:2]
    elif re.search(r"optimi[sz]er|adam|moment|state", words):
        lines = states
    elif re.fullmatch(r"(the )?weights?|parameters?", words):
        lines = lines[:1]
    also = [
        ("without a copy of the weights in float32", total([each for each in lines if "weights in" not in each[0]]))
    ]
    return answer(setting, total(lines), lines=lines, title="memory", also=also if mixed else [], dimension="B")


@solver("savings")
def savings(exercise: Exercise, asked: Asked) -> Answer:
    """A ratio or a percentage between two structures: experts against all, key/value heads against heads."""
    setting = Setting(exercise, asked)
    words = f"{asked.object} {asked.unit}".lower()
    if setting.size("experts") is not None and setting.size("active_experts") is not None:
        before, after, what = setting.need("experts"), setting.need("active_experts"), "active experts of all"
        percent = not re.search(r"ratio|times|factor|speed", words)
    elif setting.size("latent_width") is not None:
        model = model_of(setting, "heads")
        before = 2 * model.kv_heads * model.head_width
        after, what = model.cache_numbers_per_layer, "numbers cached for each token and layer"
        percent = bool(re.search(r"%|percent|saving|reduction|reduced by", words))
    else:
        before = setting.need("heads")
        after = Polynomial.of(1) if exercise.structure.variant == "mqa" else setting.need("kv_heads")
        what = "key/value heads against heads"
        percent = bool(re.search(r"%|percent|saving|reduction|reduced by", words))
    ratio = Polynomial.of(before) / after
    if isinstance(evaluated(setting, ratio), Polynomial):
        formula = 1 - Polynomial.of(after) / before if percent else ratio
        return answer(setting, formula, title="saved", reason=what)
    kept = 1 / Fraction(evaluated(setting, ratio))
    plain = asked.model_copy(update={"unit": ""})
    setting = replace(setting, asked=plain)
    saved = Polynomial.of(1) - Polynomial.of(after) / before
    if percent:
        found = answer(setting, 100 * saved, title="saved, in percent", reason=what,
                       also=[("as a ratio of the two", ratio)])  # fmt: skip
        return replace(found, text=f"{found.text}%", unit="%")
    return answer(setting, ratio, title="ratio", reason=what,
                  also=[("saved, in percent", whole((1 - kept) * 100))])  # fmt: skip
