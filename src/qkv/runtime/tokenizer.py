"""Text to tokens and back, from a GGUF file's own vocabulary or a folder's tokenizer.json, with `tokenizers`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtra, OptionError, QkvError, complaint
from ..hf.folders import read_json
from .architectures import SPLITS
from .files import SafetensorsFolder, Source
from .gguf import GgufArray, damaged

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "▁"


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer: `tokenizer` is a tokenizers.Tokenizer, `start` precedes a text."""

    tokenizer: Any
    start: tuple[int, ...] = ()

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        """The tokens of a text; with `bare`, without those that precede every text.

        Raises:
            OptionError: It holds half of a surrogate pair, as what is not UTF-8 becomes when it is read.
        """
        if not text.isascii() and any(0xD800 <= ord(sign) < 0xE000 for sign in text):
            raise OptionError(complaint("prompt", "bytes that are not UTF-8", "text"))
        return [*(() if bare else self.start), *self.tokenizer.encode(text, add_special_tokens=not bare).ids]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without those that control the model."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def token_bytes(self, vocabulary: int) -> tuple[list[bytes], set[int]]:
        """The bytes of each token of a model, empty where the tokenizer has none, and the tokens that control it."""
        decoder = str(self.tokenizer.decoder and self.tokenizer.decoder.__getstate__())
        byte_of = _bytes_of_letters() if "ByteLevel" in decoder else None
        found = [b""] * vocabulary
        for text, token in self.tokenizer.get_vocab(with_added_tokens=False).items():
            if byte_of is not None and set(text) <= byte_of.keys():
                found[token] = bytes(byte_of[letter] for letter in text)
            elif "ByteFallback" in decoder and re.fullmatch("<0x[0-9A-F]{2}>", text):
                found[token] = bytes.fromhex(text[3:5])
            else:
                found[token] = text.replace(_SPACE, " ").encode()
        added = self.tokenizer.get_added_tokens_decoder()
        for token, each in added.items():
            found[token] = each.content.encode()
        return found, {token for token, each in added.items() if each.special}

    def stream(self) -> Callable[[int], str]:
        """A function of the next token that returns the text it completes: a token may be half of a character."""
        from tokenizers.decoders import DecodeStream

        state = DecodeStream(skip_special_tokens=True)
        return lambda token: state.step(self.tokenizer, token) or ""


def _bytes_of_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: printable ones are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


def read_tokenizer(source: Source, vocabulary: int) -> TextTokenizer:
    """The tokenizer of a file; OptionError if it is damaged, unknown, or of a model with another vocabulary."""
    if importlib.util.find_spec("tokenizers") is None:
        raise MissingExtra("text for qkv.runtime", "tokenizers", "hf")
    name = source.path.name
    try:
        found = _from_folder(source) if isinstance(source, SafetensorsFolder) else _from_metadata(name, source.metadata)
    except (QkvError, MemoryError):
        raise
    except BaseException as error:
        # A panic of the tokenizers' Rust code is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise damaged(name, f"a tokenizer that cannot be read: {' '.join(str(error).split())[:200]}") from error
    if isinstance(source, SafetensorsFolder):
        largest = max((*found.tokenizer.get_vocab().values(), *found.start), default=0)
    else:
        largest = max(source.metadata["tokenizer.ggml.tokens"].count - 1, *found.start, 0)
    if largest >= vocabulary:
        given = f"{name} with a tokenizer of {largest + 1} tokens"
        raise OptionError(complaint("path", given, f"at most {vocabulary}, the model's", "it is of another model"))
    return found


def read_chat_template(source: Source) -> tuple[str, dict[str, Any]]:
    """The chat template of a file, an untrusted program, and the tokens that it may name."""
    given: dict[str, Any] = {}
    if isinstance(source, SafetensorsFolder):
        path, alone = source.path / "tokenizer_config.json", source.path / "chat_template.jinja"
        given = read_json(path) if path.is_file() else {}
        given["chat_template"] = alone.read_text("utf-8") if alone.is_file() else given.get("chat_template")
    else:
        tokens = source.metadata.get("tokenizer.ggml.tokens")
        texts = tokens.texts() if isinstance(tokens, GgufArray) else []
        for name in ("bos", "eos"):
            at = source.metadata.get(f"tokenizer.ggml.{name}_token_id")
            given[f"{name}_token"] = texts[at] if type(at) is int and 0 <= at < len(texts) else ""
        given["chat_template"] = source.metadata.get("tokenizer.chat_template")
    if not isinstance(given["chat_template"], str):
        raise OptionError(complaint("chat", f"{source.path.name} without a chat template", "one with a template"))
    words = {name: given.get(name) for name in ("bos_token", "eos_token")}
    words = {name: each.get("content") if isinstance(each, dict) else each for name, each in words.items()}
    return given["chat_template"], words


def read_stop_tokens(source: Source) -> frozenset[int]:
    """The tokens that end a text, according to a file."""
    if isinstance(source, SafetensorsFolder):
        options = source.path / "generation_config.json"
        found = (read_json(options) if options.is_file() else source.config).get("eos_token_id")
        found = found if isinstance(found, list) else [found]
    else:
        found = [source.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return frozenset(token for token in found if type(token) is int)


def _from_folder(folder: SafetensorsFolder) -> TextTokenizer:
    from tokenizers import Tokenizer

    path = folder.path / "tokenizer.json"
    if not path.is_file():
        raise OptionError(complaint("path", f"{folder.path} without tokenizer.json", "a tokenizer", "pass tokens"))
    return TextTokenizer(Tokenizer.from_file(str(path)))


def _from_metadata(name: str, metadata: dict[str, Any]) -> TextTokenizer:
    from tokenizers import AddedToken

    def get(key: str, kind: type, default: Any = None) -> Any:
        found = metadata.get(f"tokenizer.ggml.{key}", default)
        if found is not default and type(found) is not kind:
            raise damaged(name, f"tokenizer.ggml.{key}: {str(found)[:100]}")
        return found

    def texts(key: str) -> list[str]:
        found = get(key, GgufArray)
        return [] if found is None else found.texts()

    tokens, kind = texts("tokens"), get("model", str)
    if not tokens:
        raise OptionError(complaint("path", f"{name} without a vocabulary", "a tokenizer", "pass tokens"))
    if kind == "gpt2":
        merges = [tuple(pair.split(" ", 1)) for pair in texts("merges")]
        tokenizer = _byte_level(name, tokens, merges, get("pre", str, "gpt-2"))
    elif kind == "llama":
        scores = get("scores", GgufArray)
        gemma = metadata.get("general.architecture") in ("gemma2", "gemma3")
        # Gemma's scores do not follow the order of its merges; the order of its tokens does.
        order = range(0, -len(tokens), -1) if gemma or scores is None else scores.numbers().tolist()
        unknown = get("unknown_token_id", int, 0)
        tokenizer = _sentencepiece(tokens, order, unknown, get("add_space_prefix", bool, not gemma))
    else:
        raise OptionError(complaint("path", f"{name} with a tokenizer of kind {kind!r}", "gpt2 or llama"))
    kinds = get("token_type", GgufArray)
    pairs = zip(tokens, [] if kinds is None else kinds.numbers().tolist(), strict=False)
    pairs = [(t, k) for t, k in pairs if k in (_CONTROL, _USER_DEFINED) and tokenizer.token_to_id(t) is not None]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in pairs if k == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in pairs if k == _USER_DEFINED])
    first = get("bos_token_id", int)
    start = (first,) if first is not None and get("add_bos_token", bool, kind == "llama") else ()
    return TextTokenizer(tokenizer, start)


def _byte_level(name: str, tokens: list[str], merges: list[Any], split: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if split not in SPLITS:
        hint = "pass tokens instead of text, or use qkv.hf.load"
        raise OptionError(complaint("path", f"{name} with tokenizer.ggml.pre {split!r}", ", ".join(SPLITS), hint))
    rule = SPLITS[split]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rule.get("whole", False)))
    if rule.get("normalized"):
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.get("digits") else []
    if "pattern" in rule:
        steps.append(pre_tokenizers.Split(Regex(rule["pattern"]), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex="pattern" not in rule))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens: list[str], order: Any, unknown: int, prefix: bool) -> Any:
    """Byte pairs with merges from the vocabulary: a token's better scores are merged first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    # Tokens of several spaces are stored as spaces.
    vocabulary = {token if token.strip(" ") else _SPACE * len(token): index for index, token in enumerate(tokens)}
    found = []
    for token, index in vocabulary.items():
        for at in range(1, len(token)):
            if token[:at] in vocabulary and token[at:] in vocabulary:
                found.append((-order[index], -at, token[:at], token[at:]))
    merges = [(left, right) for _, _, left, right in sorted(found)]
    word = tokens[unknown] if unknown < len(tokens) else None
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=word, fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    back: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer
