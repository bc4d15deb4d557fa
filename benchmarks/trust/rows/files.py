"""Row 49: files that are damaged, lie, or are something else; and a process that is killed while it writes one."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import qkv

from ..damage import DAMAGE
from ..subjects import Subject
from ..verdict import NotOffered, Wrong, each, refused
from . import row


class Kept(NamedTuple):
    """A kind of file: where it lies in its folder, how it is written and how it is read."""

    file: str
    save: Callable[[Path], Any]
    load: Callable[[Path], Any]
    weights: bool = True  # NaN has no business there; a cache holds what it was given


def _llama(width: int = 24) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "vocab_size": 20}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    )


def _checkpoint(folder: Path) -> None:
    """A model with a tokenizer of words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    _llama().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(20)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def _of_transformers() -> dict[str, Kept]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    load = AutoModelForCausalLM.from_pretrained
    return {
        "from_pretrained": Kept("model.safetensors", _checkpoint, lambda folder: load(folder, use_safetensors=True))
    }


def _of_qkv() -> dict[str, Kept]:
    tokens = torch.ones(2, 3, 5, 8)
    similarity = qkv.Polynomial(degree=2)

    def cache(folder: Path) -> None:
        kv_cache = qkv.KVCache(2, 3, 8)
        kv_cache.append(tokens, tokens)
        kv_cache.save(folder / "it.safetensors")

    def state(folder: Path) -> None:
        kv_cache = qkv.LinearState(similarity, 2, 3, 8)
        kv_cache.append(tokens, tokens)
        kv_cache.save(folder / "it.safetensors")

    def model(folder: Path) -> None:
        qkv.nn.save(qkv.nn.Decoder(24, heads=4, layers=2, vocabulary=20), folder / "it.safetensors")

    it = "it.safetensors"
    return {
        "KVCache": Kept(it, cache, lambda folder: qkv.KVCache.load(folder / it), weights=False),
        "LinearState": Kept(it, state, lambda folder: qkv.LinearState.load(folder / it, similarity), weights=False),
        "qkv.nn": Kept(it, model, lambda folder: qkv.nn.load(folder / it)),
        "qkv.hf": Kept("model.safetensors", _checkpoint, lambda folder: qkv.hf.load(folder)),
    }


@row(49, "checkpoints damaged, lying; power cut", seconds=240)
def damaged_files(subject: Subject) -> str:
    if subject.name not in ("qkv", "transformers"):
        raise NotOffered("keeps no files")
    kinds = _of_qkv() if subject.name == "qkv" else _of_transformers()
    # A name that is a link, and leads to no file, is a file that cannot be read: OSError says so too.
    errors: Any = (subject.error, OSError) if subject.name == "qkv" else Exception
    with tempfile.TemporaryDirectory() as scratch:
        cases: dict[str, Callable[[], str | None]] = {}
        for name, kept in kinds.items():
            whole = Path(scratch, name)
            whole.mkdir()
            kept.save(whole)
            kept.load(whole)
            for damage, spoil in DAMAGE.items():
                if kept.weights or damage != "NaN in the weights":
                    cases[f"{name}, {damage}"] = lambda kept=kept, whole=whole, spoil=spoil: _spoilt(
                        kept, whole, spoil, errors
                    )
        cases["power cut"] = lambda: _power_cut(subject, Path(scratch, "cut"))
        each(cases)
    return f"{len(cases) - 1} kinds of damage refused; a file is old or new after a power cut"


def _spoilt(kept: Kept, whole: Path, spoil: Callable[[Path], None], errors: Any) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(whole, Path(scratch, "copy"))
        spoil(folder / kept.file)
        return refused(lambda: kept.load(folder), errors)


def _power_cut(subject: Subject, folder: Path) -> None:
    """A child saves one of two models in turn, over and over, and is killed: afterwards one of them is there."""
    folder.mkdir()
    if subject.name == "qkv":
        torch.manual_seed(0)
        models = [qkv.nn.Decoder(256, heads=4, layers=4, vocabulary=20).eval() for _ in range(2)]
        save = lambda model: qkv.nn.save(model, folder / "it.safetensors")  # noqa: E731
        load = lambda: qkv.nn.load(folder / "it.safetensors")  # noqa: E731
    else:
        from transformers import AutoModelForCausalLM

        models = [_llama(256), _llama(256)]
        save = lambda model: model.save_pretrained(folder)  # noqa: E731
        load = lambda: AutoModelForCausalLM.from_pretrained(folder)  # noqa: E731
    save(models[0])
    firsts = [next(iter(model.parameters())).detach() for model in models]
    for turn in range(8):
        child = os.fork()
        if child == 0:
            while True:
                for model in models:
                    save(model)
        time.sleep(0.3 + 0.037 * turn)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        try:
            found = next(iter(load().parameters())).detach()
        except Exception as error:  # whatever says that the file is torn
            raise Wrong(
                f"after {turn + 1} kills while saving neither the old nor the new file loads ({error})"
            ) from error
        if not any(torch.equal(found, first) for first in firsts):
            raise Wrong("a mixture of two files was loaded")
