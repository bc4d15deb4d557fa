"""Sizes from the config.json of a Hugging Face checkpoint: a file on this machine, read as JSON and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from .architecture import Model
from .formats import LARGEST

MOST_BYTES = 8 << 20  # the largest known config is a hundredth of this
_BY_HAND = "give the sizes by hand: qkv plan --layers ... --width ... --heads ..., or qkv.cost.Model(...)"


def read_config(path: str | Path) -> Model:
    """The model that a config.json describes. path: the file, or the folder that holds it."""
    if not isinstance(path, str | Path):
        raise OptionTypeError(complaint("config", repr(path), "the path of a config.json, or of its folder"))
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            file = file / "config.json"
        if not file.is_file():
            hint = "qkv plan --list shows the models that are known by name"
            raise OptionError(complaint("config", f"{str(path)!r}", "a config.json or a folder that holds one", hint))
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise OptionError(
                complaint("config", f"{file.name} of {size} bytes", f"at most {MOST_BYTES}: a config.json")
            )
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
        # A file from another system may start with a mark of its byte order.
        config = json.loads(text.removeprefix("\ufeff") if isinstance(text, str) else text)
    except (ValueError, RecursionError) as error:
        raise OptionError(complaint("config", f"{file}: {error}", "a file that can be read as JSON")) from None
    if not isinstance(config, dict):
        raise OptionTypeError(complaint("config", f"{file}: {_short(config)}", "a JSON object"))
    return model_of(config, name, file)


def model_of(config: dict[str, Any], name: str, file: str = "config.json") -> Model:
    """The model of a config that has been read.

    >>> sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    >>> sizes |= {"vocab_size": 30522, "max_position_embeddings": 512}
    >>> model_of({"model_type": "bert", **sizes}, "mine").parameters
    109482240
    """
    from .families import FAMILIES

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


COVERED_LAYERS = ("full_attention", "sliding_attention")


class Fields:
    """The entries of a config, each checked as it is read."""

    def __init__(self, config: dict[str, Any], file: str) -> None:
        self.config, self.file = config, file

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number under the first of these names that has one; `default` where none has."""
        found = self.optional_size(*names, least=least)
        if found is None and default is None:
            self._refuse(names[0], "nothing", "a whole number")
        return default if found is None else found  # pyright: ignore[reportReturnType]

    def optional_size(self, *names: str, least: int = 1) -> int | None:
        """The same; None where it is missing or null."""
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
        """A number from 0 to 1, also where newer configs keep it."""
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
        """What each layer's attention is, where the config lists it."""
        found = self.config.get("layer_types")
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != layers or not all(isinstance(kind, str) for kind in found):
            self._refuse("layer_types", _short(found), f"a list of {layers} names, one for each layer")
        for kind in found:
            if kind not in COVERED_LAYERS:
                self._refuse("layer_types", _short(kind), f"layers of {' or '.join(COVERED_LAYERS)}")
        return found

    def list_length(self, name: str) -> int:
        found = self.config.get(name)
        if found is not None and not isinstance(found, list):
            self._refuse(name, _short(found), "a list")
        return len(found or [])

    def must_be(self, name: str, wanted: Any) -> None:
        """An entry that, with another value, would mean an architecture that is not covered."""
        found = self.config.get(name, wanted)
        if found not in (wanted, None):
            self._refuse(name, _short(found), f"{wanted!r}: other values are not covered")

    def _refuse(self, name: str, given: str, wanted: str) -> None:
        raise OptionError(complaint(f"{self.file}, {name}", given, wanted, _BY_HAND if given == "nothing" else ""))


def _printable(name: str) -> str:
    """A stranger's name for a folder, without what would steer a terminal."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
