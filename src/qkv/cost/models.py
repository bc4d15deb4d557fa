"""Models that are known by name: `models.toml`, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ..errors import OptionTypeError, complaint
from .architecture import Latent, Model
from .naming import resolve
from .shipped import shipped

FILE = "models.toml"
LIST_HINT = "qkv plan --list shows every name; --config PATH takes a config.json, --layers ... sizes by hand"


def models() -> dict[str, Model]:
    """Every preset by its name.

    >>> models()["gpt-2"].parameters
    124439808
    """
    return {name: preset(name) for name in shipped(FILE)["models"]}


def model_named(name: str) -> Model:
    """A preset by a name as people type it.

    >>> model_named("Llama 3 8B").name
    'llama-3-8b'
    """
    return preset(resolve("model", name, shipped(FILE)["models"], "a model that is known by name", LIST_HINT))


def as_model(model: Any) -> Model:
    """A model, the name of a preset, or the path of a config.json or of the folder that holds it."""
    if isinstance(model, Model):
        return model
    if isinstance(model, Path) or (isinstance(model, str) and is_path(model)):
        from .configs import read_config

        return read_config(model)
    if not isinstance(model, str):
        raise OptionTypeError(complaint("model", repr(model), "a qkv.cost.Model, the name of a preset, or a path"))
    return model_named(model)


@cache
def preset(name: str) -> Model:
    """A preset by its exact name: what its family has in common, and its own sizes."""
    known = shipped(FILE)
    own = dict(known["models"][name])
    fields = {**known["families"][own.pop("family")], **own}
    share = fields.pop("rotary_share", 0)
    if "latent" in fields:
        fields["latent"] = Latent(
            fields["latent"]["kv_rank"], fields["latent"].get("q_rank"), fields["latent"]["rope_width"]
        )
    width = fields.get("head_width", fields["d_model"] // fields["heads"])
    return Model(name=name, rotary=int(share * width), **fields)


def is_path(text: str) -> bool:
    """Whether a file or folder is meant: presets go first, ./gpt-2 is a folder, gpt-2 is not."""
    if text.endswith(".json") or text.startswith((".", "/", "~", "\\")):
        return True
    path = Path(text)
    try:
        return path.exists() and ("/" in text or text not in shipped(FILE)["models"])
    except (OSError, ValueError):  # a name that no file system takes
        return False
