"""Sizes of a model from the config.json of a Hugging Face checkpoint: a local file, parsed as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from .architecture import Latent, Model
from .sizes import LARGEST

MAX_CONFIG_BYTES = 8 << 20  # a hundred times the largest known config
SUPPORTED_LAYERS = ("full_attention", "sliding_attention")
_BY_HAND = "give the sizes by hand: qkv plan --layers ... --width ... --heads ..., or qkv.cost.Model(...)"


def read_config(path: str | Path) -> Model:
    """The model that a config.json describes.

    Args:
        path: the file, or the folder that contains it.

    Returns:
        A `Model` named after the folder.

    Raises:
        OptionError: the file cannot be read, or describes an architecture that is not supported.
    """
    if not isinstance(path, str | Path):
        raise OptionTypeError(complaint("config", repr(path), "the path of a config.json or of its folder"))
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            file = file / "config.json"
        if not file.is_file():
            hint = "qkv plan --list shows the models with presets"
            raise OptionError(complaint("config", f"{str(path)!r}", "a config.json, or a folder with one", hint))
        size = file.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise OptionError(complaint("config", f"{file.name} of {size} bytes", f"at most {MAX_CONFIG_BYTES} bytes"))
        text = file.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(complaint("config", f"{file.name}: {error}", "a file that can be read as JSON")) from None
    folder = file.resolve().parent.name
    name = folder if file.name == "config.json" and folder else file.stem
    return config_model(text, _printable(name), _printable(file.name))


def config_model(text: str | bytes, name: str = "config", file: str = "config.json") -> Model:
    """The model that the text of a config.json describes.

    >>> sizes = '"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257'
    >>> config_model(f'{{"model_type": "gpt2", {sizes}}}').parameters
    124439808
    """
    if not isinstance(text, str | bytes):
        raise OptionTypeError(complaint("config", type(text).__name__, "the text of a config.json"))
    try:
        # Files of some systems start with a byte order mark.
        config = json.loads(text.removeprefix("\ufeff") if isinstance(text, str) else text)
    except (ValueError, RecursionError) as error:
        raise OptionError(complaint("config", f"{file}: {error}", "a file that can be read as JSON")) from None
    if not isinstance(config, dict):
        raise OptionTypeError(complaint("config", f"{file}: {_short(config)}", "a JSON object"))
    return model_of(config, name, file)


def model_of(config: dict[str, Any], name: str, file: str = "config.json") -> Model:
    """The model of a parsed config.

    >>> sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    >>> sizes |= {"vocab_size": 30522, "max_position_embeddings": 512}
    >>> model_of({"model_type": "bert", **sizes}, "mine").parameters
    109482240
    """

    kind, text = config.get("model_type"), config.get("text_config")
    if isinstance(text, dict) and isinstance(kind, str) and kind not in FAMILIES:
        config, kind = text, text.get("model_type", f"{kind}_text")
    if not isinstance(kind, str) or kind not in FAMILIES:
        wanted = f"one of {', '.join(sorted(FAMILIES))}"
        raise OptionError(complaint("model_type", _short(kind), wanted, _BY_HAND))
    fields = Fields(config, file)
    given = FAMILIES[kind](fields)
    try:
        return Model(name=name, source=f"{file} ({kind})", **given)
    except ShapeError as error:
        raise OptionError(f"{file}: {error}") from None


class Fields:
    """The entries of a config; each is checked when it is read."""

    def __init__(self, config: dict[str, Any], file: str) -> None:
        self.config, self.file = config, file

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number under the first of these names that is present; else `default`."""
        found = self.optional_size(*names, least=least)
        if found is None and default is None:
            self._refuse(names[0], "nothing", "a whole number")
        return default if found is None else found  # pyright: ignore[reportReturnType]

    def optional_size(self, *names: str, least: int = 1) -> int | None:
        """The same, or None if all are missing or null."""
        for name in names:
            found = self.config.get(name)
            if found is None:
                continue
            if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= LARGEST:
                self._refuse(name, _short(found), f"a whole number from {least} to 2^63 - 1")
            return found
        return None

    def flag(self, name: str, default: bool) -> bool:
        found = self.config.get(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            self._refuse(name, _short(found), "true or false")
        return found

    def share(self, *names: str, default: float) -> float:
        """A number from 0 to 1, at the top level or in rope_parameters, where newer configs have it."""
        inner = self.config.get("rope_parameters")
        for where in (self.config, inner if isinstance(inner, dict) else {}):
            for name in names:
                found = where.get(name)
                if found is None:
                    continue
                if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1:
                    self._refuse(name, _short(found), "a number from 0 to 1")
                return float(found)
        return default

    def word(self, name: str, default: str) -> str:
        found = self.config.get(name)
        if found is None:
            return default
        if not isinstance(found, str):
            self._refuse(name, _short(found), "text")
        return found

    def kinds_of_layers(self, layers: int) -> list[str] | None:
        """The kind of attention of each layer, if the config lists them."""
        found = self.config.get("layer_types")
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != layers or not all(isinstance(kind, str) for kind in found):
            self._refuse("layer_types", _short(found), f"a list of {layers} names, one per layer")
        for kind in found:
            if kind not in SUPPORTED_LAYERS:
                self._refuse("layer_types", _short(kind), f"layers of {' or '.join(SUPPORTED_LAYERS)}")
        return found

    def list_length(self, name: str) -> int:
        found = self.config.get(name)
        if found is not None and not isinstance(found, list):
            self._refuse(name, _short(found), "a list")
        return len(found or [])

    def must_be(self, name: str, wanted: Any) -> None:
        """Refuse an entry with another value, which means an architecture that is not supported."""
        found = self.config.get(name, wanted)
        if found not in (wanted, None):
            self._refuse(name, _short(found), f"{wanted!r}; other values are not supported")

    def _refuse(self, name: str, given: str, wanted: str) -> None:
        raise OptionError(complaint(f"{self.file}, {name}", given, wanted, _BY_HAND if given == "nothing" else ""))


def _printable(name: str) -> str:
    """A file name without characters that control a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


ModelFields = dict[str, Any]


def _decoder(fields: Fields, *, tied: bool = False) -> ModelFields:
    """The fields that most decoders since LLaMA share."""
    d, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    layers = fields.size("num_hidden_layers")
    given: ModelFields = {
        "layers": layers,
        "d_model": d,
        "heads": heads,
        "kv_heads": fields.size("num_key_value_heads", default=heads),
        "head_width": fields.optional_size("head_dim"),
        "d_ff": fields.size("intermediate_size"),
        "vocabulary": fields.size("vocab_size"),
        "tied": fields.flag("tie_word_embeddings", tied),
        "context": fields.size("max_position_embeddings", default=0),
        "qkv_bias": fields.flag("attention_bias", False),
        "out_bias": fields.flag("attention_bias", False),
        "ff_bias": fields.flag("mlp_bias", False),
    }
    return _rotated(fields, given)


def _rotated(fields: Fields, given: ModelFields, share: float = 1.0) -> ModelFields:
    width = given.get("head_width")
    width = given["d_model"] // given["heads"] if width is None else width
    given["rotary"] = int(fields.share("partial_rotary_factor", "rotary_pct", default=share) * width)
    return given


def _windows(fields: Fields, given: ModelFields, windowed: int | None = None) -> ModelFields:
    """Add the window, with the listed layers, or `windowed` of them, or all."""
    window = fields.optional_size("sliding_window")
    kinds = fields.kinds_of_layers(given["layers"])
    if kinds is not None:
        windowed = kinds.count("sliding_attention")
    windowed = given["layers"] if windowed is None else windowed
    return {**given, "window": window, "window_layers": windowed} if window and windowed else given


def _llama(fields: Fields) -> ModelFields:
    return _decoder(fields)


def _smollm3(fields: Fields) -> ModelFields:
    given = _decoder(fields, tied=True)
    return _windows(fields, given) if fields.flag("use_sliding_window", False) else given


def _mistral(fields: Fields) -> ModelFields:
    return _windows(fields, {**_decoder(fields), "qkv_bias": False, "out_bias": False, "ff_bias": False})


def _mixtral(fields: Fields) -> ModelFields:
    experts = {"experts": fields.size("num_local_experts"), "experts_active": fields.size("num_experts_per_tok")}
    return {**_mistral(fields), **experts}


def _qwen2(fields: Fields) -> ModelFields:
    given = {**_decoder(fields), "qkv_bias": True, "out_bias": False, "ff_bias": False}
    if not fields.flag("use_sliding_window", False):
        return given
    first = fields.size("max_window_layers", default=0, least=0)
    return _windows(fields, given, max(given["layers"] - first, 0))


def _qwen2_moe(fields: Fields) -> ModelFields:
    fields.must_be("decoder_sparse_step", 1)
    wide = fields.size("moe_intermediate_size")
    shared = fields.size("shared_expert_intermediate_size")
    if shared % wide:
        given, wanted = f"{shared} with experts of {wide}", "a multiple of moe_intermediate_size"
        raise OptionError(complaint(f"{fields.file}, shared_expert_intermediate_size", given, wanted))
    return {
        **_qwen2(fields),
        "experts": fields.size("num_experts"),
        "experts_active": fields.size("num_experts_per_tok"),
        "expert_d_ff": wide,
        "shared_experts": shared // wide,
        "shared_gate": True,
        "dense_layers": fields.list_length("mlp_only_layers"),
    }


def _qwen3(fields: Fields, width: int | None = 128) -> ModelFields:
    width = fields.optional_size("head_dim") or width
    given = _rotated(fields, {**_decoder(fields), "head_width": width, "qk_norm": "head", "ff_bias": False})
    if not fields.flag("use_sliding_window", False):
        return given
    first = fields.size("max_window_layers", default=0, least=0)
    return _windows(fields, given, max(given["layers"] - first, 0))


def _qwen3_moe(fields: Fields) -> ModelFields:
    fields.must_be("decoder_sparse_step", 1)
    return {
        **_qwen3(fields, None),
        "experts": fields.size("num_experts", "num_local_experts"),
        "experts_active": fields.size("num_experts_per_tok"),
        "expert_d_ff": fields.size("moe_intermediate_size"),
        "dense_layers": fields.list_length("mlp_only_layers"),
    }


def _gemma(fields: Fields) -> ModelFields:
    width = fields.size("head_dim", default=256)
    return _rotated(fields, {**_decoder(fields, tied=True), "head_width": width, "ff_bias": False})


def _gemma2(fields: Fields) -> ModelFields:
    given = {**_gemma(fields), "norms_per_layer": 4}
    return _windows(fields, given, (given["layers"] + 1) // 2)


def _gemma3(fields: Fields) -> ModelFields:
    """Configs omit values that equal these defaults."""
    defaults = {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 4096,
        "max_position_embeddings": 131072,
    }  # fmt: skip
    fields = Fields(
        {**defaults, **{name: value for name, value in fields.config.items() if value is not None}}, fields.file
    )
    given = {**_gemma(fields), "norms_per_layer": 4, "qk_norm": "head"}
    every = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _windows(fields, given, given["layers"] - given["layers"] // every)


def _phi3(fields: Fields) -> ModelFields:
    return _windows(fields, {**_decoder(fields), "qkv_bias": False, "out_bias": False, "ff_bias": False})


def _olmo(fields: Fields) -> ModelFields:
    return {**_decoder(fields), "norm": "none"}


def _olmo2(fields: Fields) -> ModelFields:
    return {**_decoder(fields), "qk_norm": "wide"}


def _olmoe(fields: Fields) -> ModelFields:
    experts = {"experts": fields.size("num_experts"), "experts_active": fields.size("num_experts_per_tok")}
    return {**_olmo2(fields), **experts}


def _starcoder2(fields: Fields) -> ModelFields:
    biased = fields.flag("use_bias", True)
    biases = {"qkv_bias": biased, "out_bias": biased, "ff_bias": biased}
    return _windows(fields, {**_decoder(fields, tied=True), "gated": False, "norm": "layer", **biases})


def _gpt_oss(fields: Fields) -> ModelFields:
    given = _decoder(fields)
    bias = fields.flag("attention_bias", True)
    given |= {"qkv_bias": bias, "out_bias": bias, "ff_bias": True, "router_bias": True, "sinks": True}
    given["experts"] = fields.size("num_local_experts", "num_experts")
    given["experts_active"] = fields.size("num_experts_per_tok", "experts_per_token")
    return _windows(fields, given, (given["layers"] + 1) // 2)


def _deepseek(fields: Fields) -> ModelFields:
    fields.must_be("moe_layer_freq", 1)
    rope = fields.size("qk_rope_head_dim")
    given = {
        **_decoder(fields),
        "head_width": fields.size("qk_nope_head_dim") + rope,
        "value_width": fields.size("v_head_dim"),
        "latent": Latent(fields.size("kv_lora_rank"), fields.optional_size("q_lora_rank"), rope),
        "rotary": 0,  # counted by the latent lines
        "ff_bias": False,
        "experts": fields.size("n_routed_experts"),
        "experts_active": fields.size("num_experts_per_tok"),
        "expert_d_ff": fields.size("moe_intermediate_size"),
        "shared_experts": fields.size("n_shared_experts", default=0, least=0),
        "dense_layers": fields.size("first_k_dense_replace", default=0, least=0),
    }
    given["kv_heads"] = given["heads"]
    return given


def _biased(given: ModelFields) -> ModelFields:
    """GPT-2 and its descendants: layer norms, biases everywhere, two feed-forward matrices."""
    every = {"qkv_bias": True, "out_bias": True, "ff_bias": True}
    return {"gated": False, "norm": "layer", **every, **given}


def _gpt2(fields: Fields) -> ModelFields:
    d = fields.size("n_embd")
    positions = fields.size("n_positions", "n_ctx")
    given = {"layers": fields.size("n_layer"), "d_model": d, "heads": fields.size("n_head")}
    given |= {"d_ff": fields.size("n_inner", default=4 * d), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", True), "positions": positions, "context": positions}
    return _biased(given)


def _gptj(fields: Fields) -> ModelFields:
    d, heads = fields.size("n_embd"), fields.size("n_head")
    given = {"layers": fields.size("n_layer"), "d_model": d, "heads": heads, "norms_per_layer": 1, "head_bias": True}
    given |= {"d_ff": fields.size("n_inner", default=4 * d), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", False), "context": fields.size("n_positions", default=0)}
    given["rotary"] = fields.size("rotary_dim", default=d // heads)
    return {**_biased(given), "qkv_bias": False, "out_bias": False}


def _gpt_neox(fields: Fields) -> ModelFields:
    biased = fields.flag("attention_bias", True)
    given = {**_decoder(fields), "kv_heads": None, "qkv_bias": biased, "out_bias": biased, "ff_bias": True}
    return _rotated(fields, _biased(given), 0.25)


def _opt(fields: Fields) -> ModelFields:
    d = fields.size("hidden_size")
    fields.must_be("word_embed_proj_dim", d)
    fields.must_be("do_layer_norm_before", True)
    positions, biased = fields.size("max_position_embeddings"), fields.flag("enable_bias", True)
    given: ModelFields = {
        "layers": fields.size("num_hidden_layers"),
        "d_model": d,
        "heads": fields.size("num_attention_heads"),
    }
    given |= {"d_ff": fields.size("ffn_dim"), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", True), "positions": positions + 2, "context": positions}
    given |= {"qkv_bias": biased, "out_bias": biased, "ff_bias": biased}
    given["norm"] = "layer" if fields.flag("layer_norm_elementwise_affine", True) else "none"
    given["final_norm"] = not fields.flag("_remove_final_layer_norm", False)
    return _biased(given)


def _bloom(fields: Fields) -> ModelFields:
    given = {"layers": fields.size("n_layer", "num_hidden_layers"), "d_model": fields.size("hidden_size", "n_embed")}
    given |= {"heads": fields.size("n_head", "num_attention_heads"), "vocabulary": fields.size("vocab_size")}
    given |= {"tied": fields.flag("tie_word_embeddings", True), "embedding_norm": True}
    return _biased(given)


def _falcon(fields: Fields) -> ModelFields:
    d, heads = fields.size("hidden_size"), fields.size("num_attention_heads", "n_head")
    new = fields.flag("new_decoder_architecture", False)
    shared = fields.flag("multi_query", True)
    kv_heads = fields.size("num_kv_heads", "n_head_kv", default=heads) if new else 1 if shared else heads
    parallel, biased = fields.flag("parallel_attn", True), fields.flag("bias", False)
    norms = fields.size("num_ln_in_parallel_attn", default=2) if new else 1 if parallel else 2
    given: ModelFields = {"layers": fields.size("num_hidden_layers", "n_layer"), "d_model": d, "heads": heads}
    given |= {"kv_heads": kv_heads, "norms_per_layer": norms, "d_ff": fields.size("ffn_hidden_size", default=4 * d)}
    given |= {"vocabulary": fields.size("vocab_size"), "tied": fields.flag("tie_word_embeddings", True)}
    given |= {"qkv_bias": biased, "out_bias": biased, "ff_bias": biased}
    given["context"] = fields.size("max_position_embeddings", default=2048)
    given = _biased(given)
    return given if fields.flag("alibi", False) else _rotated(fields, given)


def _phi(fields: Fields) -> ModelFields:
    fields.must_be("qk_layernorm", False)
    given = {**_decoder(fields), "qkv_bias": True, "out_bias": True, "ff_bias": True}
    given |= {"norms_per_layer": 1, "head_bias": True}
    return _rotated(fields, _biased(given), 0.5)


def _bert(fields: Fields) -> ModelFields:
    positions = fields.size("max_position_embeddings")
    given: ModelFields = {
        "kind": "encoder",
        "layers": fields.size("num_hidden_layers"),
        "d_model": fields.size("hidden_size"),
        "heads": fields.size("num_attention_heads"),
        "d_ff": fields.size("intermediate_size"),
        "vocabulary": fields.size("vocab_size"),
        "positions": positions,
        "context": positions,
        "segments": fields.size("type_vocab_size", default=2),
        "tied": True,
        "embedding_norm": True,
        "final_norm": False,
        "pooler": True,
    }
    return _biased(given)


def _roberta(fields: Fields) -> ModelFields:
    """Two rows of the position table are for padding."""
    given = _bert(fields)
    return {**given, "context": max(given["positions"] - 2, 1)}


def _distilbert(fields: Fields) -> ModelFields:
    positions = fields.size("max_position_embeddings")
    given: ModelFields = {"kind": "encoder", "layers": fields.size("n_layers"), "d_model": fields.size("dim")}
    given |= {
        "heads": fields.size("n_heads"),
        "d_ff": fields.size("hidden_dim"),
        "vocabulary": fields.size("vocab_size"),
    }
    given |= {"positions": positions, "context": positions, "tied": True, "embedding_norm": True, "final_norm": False}
    return _biased(given)


def _t5(fields: Fields) -> ModelFields:
    encoder = fields.size("num_layers")
    return {
        "kind": "encoder-decoder",
        "layers": fields.size("num_decoder_layers", default=encoder),
        "encoder_layers": encoder,
        "d_model": fields.size("d_model"),
        "heads": fields.size("num_heads"),
        "head_width": fields.size("d_kv"),
        "d_ff": fields.size("d_ff"),
        "gated": fields.word("feed_forward_proj", "relu").startswith("gated"),
        "vocabulary": fields.size("vocab_size"),
        "tied": fields.flag("tie_word_embeddings", True),
        "relative_buckets": fields.size("relative_attention_num_buckets", default=32),
        "context": fields.size("n_positions", default=0),
    }


FAMILIES: dict[str, Callable[[Fields], ModelFields]] = {
    "bert": _bert, "bloom": _bloom, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "distilbert": _distilbert,
    "falcon": _falcon, "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3, "gpt2": _gpt2, "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss, "gptj": _gptj, "granite": _llama, "llama": _llama, "mistral": _mistral, "mixtral": _mixtral,
    "olmo": _olmo, "olmo2": _olmo2, "olmoe": _olmoe, "opt": _opt, "phi": _phi, "phi3": _phi3, "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe, "roberta": _roberta, "smollm3": _smollm3,
    "starcoder2": _starcoder2, "t5": _t5, "xlm-roberta": _roberta,
}  # fmt: skip
