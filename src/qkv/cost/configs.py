"""Sizes of a model from the config.json of a Hugging Face checkpoint: a local file, parsed as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from .architecture import Latent, Model
from .lookup import read_data
from .sizes import LARGEST

FAMILIES_FILE = "families.toml"
MAX_CONFIG_BYTES = 8 << 20  # a hundred times the largest known config
SUPPORTED_LAYERS = ("full_attention", "sliding_attention")
# Kinds of layers, and the beginnings of names of sizes, that only models with linear attention have.
_LINEAR_LAYERS = ("linear_attention", "hybrid", "mamba", "recurrent")
_LINEAR_FIELDS = ("linear_num_", "linear_key_", "linear_conv_", "mamba_", "ssm_", "time_step_")
_BY_HAND = "give the sizes by hand: qkv plan --layers ... --width ... --heads ..., or qkv.cost.Model(...)"


def read_config(path: str | Path) -> Model:
    """The model that a config.json describes.

    Args:
        path: the file, or the folder that contains it.

    Returns:
        A `Model` named after the folder.

    Raises:
        OptionError: the file cannot be read, or describes an architecture that is not supported.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> sizes = '"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257'
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "config.json").write_text(f'{{"model_type": "gpt2", {sizes}}}')
    ...     read_config(folder).d_model
    768
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
    except OptionError:
        raise
    except (OSError, ValueError) as error:
        raise OptionError(complaint("config", f"{file.name}: {error}", "a file that can be read as JSON")) from None
    folder = file.resolve().parent.name
    name = folder if file.name == "config.json" and folder else file.stem
    return config_model(text, _printable(name), _printable(file.name))


def config_model(text: str | bytes, name: str = "config", file: str = "config.json") -> Model:
    """The model that the text of a config.json describes.

    Args:
        text: The text of the file.
        name: The name of the model.
        file: The name of the file, for errors.

    Returns:
        A `Model` with the sizes of the file.

    Raises:
        OptionError: it is not JSON, or describes an architecture that is not supported.
        OptionTypeError: it is not a JSON object.

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

    kind, text, families = config.get("model_type"), config.get("text_config"), read_data(FAMILIES_FILE)
    if isinstance(text, dict) and isinstance(kind, str) and kind not in families:
        config, kind = text, text.get("model_type", f"{kind}_text")
    _refuse_linear_attention(config, kind)
    if not isinstance(kind, str) or kind not in families:
        wanted = f"one of {', '.join(sorted(families))}"
        raise OptionError(complaint("model_type", _short(kind), wanted, _BY_HAND))
    given = read_family(kind, Fields(config, file))
    try:
        return Model(name=name, source=f"{file} ({kind})", **given)
    except ShapeError as error:
        raise OptionError(f"{file}: {error}") from None


def _refuse_linear_attention(config: dict[str, Any], kind: Any) -> None:
    """Hybrids and recurrent models: counted as softmax attention, their cache would be far too large."""
    lists = [config[name] for name in ("layer_types", "layers_block_type") if isinstance(config.get(name), list)]
    listed = any(kind in _LINEAR_LAYERS for kinds in lists for kind in kinds if isinstance(kind, str))
    if listed or any(name.startswith(_LINEAR_FIELDS) for name in config):
        hint = "qkv.cost.count(..., state=qkv.GatedDelta) counts such a layer by itself"
        given = f"{_short(kind)}, with layers of linear attention"
        raise OptionError(complaint("model_type", given, "a model of softmax attention in all layers", hint))


class Fields:
    """The entries of a config; each is checked when it is read, and null is as good as missing."""

    def __init__(self, config: dict[str, Any], file: str) -> None:
        self.config, self.file = {name: value for name, value in config.items() if value is not None}, file

    def entry(
        self, names: Sequence[str], good: Callable[[Any], bool], wanted: str, default: Any = None, inside: str = ""
    ) -> Any:
        """The first of these entries that is there, at the top level or in the object `inside`; else the default."""
        inner = self.config.get(inside)
        for where in (self.config, inner if isinstance(inner, dict) else {}):
            for name in names:
                if (found := where.get(name)) is not None:
                    return found if good(found) else self.refuse(name, _short(found), wanted)
        return default

    def size(self, names: Sequence[str], default: int | None = None, least: int = 1, optional: bool = False) -> Any:
        """A whole number; None only if it is optional."""
        wanted = f"a whole number from {least} to 2^63 - 1"
        found = self.entry(names, lambda found: type(found) is int and least <= found <= LARGEST, wanted, default)
        return self.refuse(names[0], "nothing", "a whole number") if found is None and not optional else found

    def flag(self, name: str, default: bool = False) -> bool:
        return self.entry([name], lambda found: isinstance(found, bool), "true or false", default)

    def share(self, names: Sequence[str], default: float) -> float:
        """A number from 0 to 1; newer configs have it in rope_parameters."""

        def good(found: Any) -> bool:
            return type(found) in (int, float) and 0 <= found <= 1

        return float(self.entry(names, good, "a number from 0 to 1", default, "rope_parameters"))

    def kinds_of_layers(self, layers: int) -> list[str] | None:
        """The kind of attention of each layer, if the config lists them."""

        def good(found: Any) -> bool:
            return isinstance(found, list) and len(found) == layers and all(isinstance(kind, str) for kind in found)

        found = self.entry(["layer_types"], good, f"a list of {layers} names, one per layer")
        for kind in found or ():
            if kind not in SUPPORTED_LAYERS:
                self.refuse("layer_types", _short(kind), f"layers of {' or '.join(SUPPORTED_LAYERS)}")
        return found

    def must_be(self, name: str, wanted: Any) -> None:
        """Refuse an entry with another value, which means an architecture that is not supported."""
        self.entry([name], lambda found: found == wanted, f"{wanted!r}; other values are not supported")

    def refuse(self, name: str, given: str, wanted: str) -> NoReturn:
        raise OptionError(complaint(f"{self.file}, {name}", given, wanted, _BY_HAND if given == "nothing" else ""))


def _printable(name: str) -> str:
    """A file name without characters that control a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_family(kind: str, fields: Fields) -> dict[str, Any]:
    """The fields of `Model` that a config of a family gives, as families.toml says."""
    family = _family(kind)
    fields = Fields({**family.pop("config", {}), **fields.config}, fields.file)
    window, must = family.pop("window", None), family.pop("must", {})
    given: dict[str, Any] = {}
    for name, rule in family.items():
        given[name] = _read(rule, fields, given) if isinstance(rule, dict) else rule
    for name, wanted in must.items():
        fields.must_be(name, given.get(wanted, wanted))
    if kind == "falcon":
        given |= _falcon(fields, given)
    if "kv_rank" in given:
        given["latent"] = Latent(given.pop("kv_rank"), given.pop("q_rank"), given.pop("rope_width"))
        given["head_width"] += given["latent"].rope_width  # the config has the width of the other coordinates
    return given if window is None else {**given, **_windows(window, fields, given["layers"])}


def _family(kind: str) -> dict[str, Any]:
    """The rules of a family, those of the family that it is like first."""
    own = dict(read_data(FAMILIES_FILE)[kind])
    like = own.pop("like", None)
    return own if like is None else {**_family(like), **own}


def _read(rule: dict[str, Any], fields: Fields, given: dict[str, Any]) -> Any:
    """A field of the model by its rule; `given` has the fields before it."""
    default: Any = rule.get("default")
    if "flag" in rule:
        found = fields.flag(rule["flag"], default)
        return found if "words" not in rule else rule["words"][0 if found else 1]
    if "share" in rule:
        return int(fields.share(rule["share"], default) * _head_width(given))
    if "word" in rule:
        return fields.entry([rule["word"]], lambda found: isinstance(found, str), "text", "").startswith(rule["starts"])
    if "length" in rule:
        return len(fields.entry([rule["length"]], lambda found: isinstance(found, list), "a list", ()))
    if "same" in rule:
        found = given[rule["same"]]
    elif default == "none":
        return fields.size(rule["size"], optional=True)
    else:
        if isinstance(default, str):
            default = rule.get("times", 1) * (_head_width(given) if default == "head_width" else given[default])
        found = fields.size(rule["size"], default, rule.get("least", 1))
    if "over" in rule:
        found, rest = divmod(found, by := given[rule["over"]])
        if rest:
            shown = f"{found * by + rest} with experts of {by}"
            fields.refuse(rule["size"][0], shown, "a multiple of moe_intermediate_size")
    return max(found + rule["plus"], 1) if "plus" in rule else found


def _head_width(given: dict[str, Any]) -> int:
    width = given.get("head_width")
    return given["d_model"] // given["heads"] if width is None else width


def _windows(rule: dict[str, Any], fields: Fields, layers: int) -> dict[str, Any]:
    """The window and its number of layers: as the config lists them, else as the family has them."""
    if "if" in rule and not fields.flag(rule["if"]):
        return {}
    window, kinds = fields.size(["sliding_window"], optional=True), fields.kinds_of_layers(layers)
    if kinds is not None:
        windowed = kinds.count("sliding_attention")
    elif "after" in rule:
        windowed = max(layers - fields.size(rule["after"], 0, least=0), 0)
    elif "every" in rule:
        windowed = layers - layers // fields.size(rule["every"], rule["default"])
    else:
        windowed = layers if rule["layers"] == "all" else (layers + 1) // 2
    return {"window": window, "window_layers": windowed} if window and windowed else {}


def _falcon(fields: Fields, given: dict[str, Any]) -> dict[str, Any]:
    """Falcon's key/value heads and norms depend on its generation; without ALiBi it rotates."""
    new, shared = fields.flag("new_decoder_architecture"), fields.flag("multi_query", True)
    heads, parallel = given["heads"], fields.flag("parallel_attn", True)
    found: dict[str, Any] = {
        "kv_heads": fields.size(["num_kv_heads", "n_head_kv"], heads) if new else 1 if shared else heads,
        "norms_per_layer": fields.size(["num_ln_in_parallel_attn"], 2) if new else 1 if parallel else 2,
    }
    if not fields.flag("alibi"):
        found["rotary"] = int(fields.share(["partial_rotary_factor", "rotary_pct"], 1.0) * _head_width(given))
    return found
