"""`load`: a local checkpoint, safetensors or GGUF, as a model that is set to "qkv", and its tokenizer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
)

from ..errors import DtypeError, OptionError, OptionTypeError, QkvError, complaint
from ..inputs import _DTYPE_SET
from .checkpoint import CONFIG, check_counts, line, opened, quiet
from .registry import NAME, register

_MAGIC = b"GGUF"
_SHORTEST = 32  # bytes that a tensor takes in a header


class Loaded(NamedTuple):
    """A model in eval mode, and what turns text into its tokens."""

    model: PreTrainedModel
    tokenizer: Any


def load(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    implementation: str = NAME,
    generates: bool = True,
) -> Loaded:
    """A model that generates, from a folder of transformers or a GGUF file on this machine; nothing is fetched.

    path: a folder with config.json and safetensors, a .gguf file, or a folder with one. dtype: what it computes in.
    implementation: "qkv", or what transformers has, to compare with. generates=False: the layers alone,
    of encoders too.

    Everything is checked before a model is returned: pickles are refused, and so are files that are damaged, that lack
    weights the model needs, hold others or hold them in other shapes, and weights that are NaN.
    """
    register()
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise OptionTypeError(complaint("model", repr(path), "the path of a folder or of a GGUF file"))
    if dtype not in _DTYPE_SET:
        raise DtypeError(
            complaint("dtype", dtype, "torch.float32, float64, bfloat16 or float16", "what it computes in")
        )
    if implementation not in (NAME, "sdpa", "eager"):
        raise OptionError(complaint("implementation", repr(implementation), f"{NAME!r}, 'sdpa' or 'eager'"))
    place = Path(path)
    if not place.exists():
        hint = "qkv fetches nothing; save_pretrained() writes such a folder"
        raise _wrong(f"{str(path)!r}, which is not there", hint)
    gguf = _gguf(place)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if gguf is None:
        opened(place)
        folder = place
    else:
        folder, options["gguf_file"] = gguf.parent, gguf.name
    with quiet():
        config = _attempt(f"{place}: its configuration", lambda: AutoConfig.from_pretrained(folder, **options))
        if gguf is not None:
            check_counts(config.to_dict(), tensors := _tensors(gguf))
            # For each module transformers makes a table of all layers: of a few hundred that nobody wrote, for hours.
            if isinstance(layers := getattr(config, "num_hidden_layers", 0), int) and layers > tensors:
                raise _wrong(f"{place}, of {layers} layers and {tensors} tensors", "its header is damaged")
        # With the configuration, which would be read again: of a GGUF file that is most of the time.
        options["config"] = config
        tokenizer = _attempt(f"{place}: its tokenizer", lambda: AutoTokenizer.from_pretrained(folder, **options))
        with_head = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        kind = with_head if generates else AutoModel
        more = {**options, "dtype": dtype, "attn_implementation": implementation, "output_loading_info": True}
        if gguf is None:
            more["use_safetensors"] = True
        model, info = _attempt(f"{place}: its weights", lambda: kind.from_pretrained(folder, **more))
    # A pooler is behind all layers: encoders that were trained without one do without.
    missing = {key for key in info["missing_keys"] if generates or not key.startswith("pooler.")}
    if missing or info["mismatched_keys"]:
        lacking = sorted(missing) + sorted(str(entry[0]) for entry in info["mismatched_keys"])
        given = f"{place}, in which {len(lacking)} weights are missing or of another shape ({lacking[0]} …)"
        raise _wrong(given, f"its {CONFIG} and its weights are not of one model")
    # Layers without a head leave the head's weights over.
    if generates and (spare := sorted(info["unexpected_keys"])):
        given = f"{place}, with {len(spare)} weights that the model does not have ({spare[0]} …)"
        raise _wrong(given, f"its {CONFIG} and its weights are not of one model")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and bool(weight.isnan().any()):
            raise _wrong(f"{place}, with NaN in {name}", "a download may be damaged, or training had diverged")
    return Loaded(model.eval(), tokenizer)


def _gguf(place: Path) -> Path | None:
    """The GGUF file that is meant, if one is."""
    if place.is_file():
        found = [place]
    elif (place / CONFIG).is_file():
        return None
    else:
        found = sorted(path for path in place.glob("*.gguf") if path.is_file())
        if not found:
            return None
        if len(found) > 1:
            raise _wrong(f"{place} with {len(found)} GGUF files", f"name one of them, for example {found[0].name}")
    with found[0].open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise _wrong(f"{found[0]}, which does not begin as GGUF files do", "pickles are never read")
    return found[0]


def _tensors(gguf: Path) -> int:
    """How many tensors the file says that it has, and has room to describe."""
    with gguf.open("rb") as file:
        head = file.read(16)
    return min(int.from_bytes(head[8:], "little"), gguf.stat().st_size // _SHORTEST)


def _attempt(what: str, read: Any) -> Any:
    """transformers says what is wrong in many ways and on many lines; here it is one error of one line."""
    try:
        return read()
    except QkvError:
        raise
    except MemoryError:
        raise
    except Exception as error:
        raise _wrong(
            f"{what} cannot be read ({line(error)[:300]})", "it may be cut short, or not what its name says"
        ) from error


def _wrong(given: str, hint: str) -> OptionError:
    return OptionError(complaint("model", given, "a folder of transformers with safetensors, or a GGUF file", hint))
