"""Models that no program describes: transformers runs them, with qkv's attention and packed weights."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..cache.mapped import PagesFile
from ..cache.prefixes import fingerprint
from ..errors import BackendRefused, OptionError, complaint
from ..hf import cache as hf_cache
from ..hf import load as hf_load
from ..hf.caches import identity, read_layers, write_layers
from ..inputs import check_size
from ..nn.packed import PackedLinear
from ..shapes import Float, Int
from .blocks import PackedMatrix
from .files import Source
from .gguf import GgufFile
from .native import quantized
from .reference import torch_threads
from .tokenizer import TextTokenizer


@dataclass
class RowCaches:
    """Keys and values of a model that runs in transformers: a `qkv.hf.PagedCache` for each row."""

    rows: list[Any]

    @property
    def batch(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max())

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        return torch.tensor([row.get_seq_length() for row in self.rows])

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    def fork(self, rows: Any = None) -> RowCaches:
        """An independent cache with the same tokens, which are not copied."""
        return RowCaches([self.rows[at].fork() for at in (range(len(self.rows)) if rows is None else rows)])

    def crop(self, n: Any) -> None:
        """Keep the first n tokens of each row; a number, or one for each row."""
        kept = torch.as_tensor(n).expand(self.batch).tolist()
        rows = self.fork().rows
        for row, count in zip(rows, kept, strict=True):
            row.crop(min(check_size("n", count, least=0) - row.get_seq_length(), 0))
        self.rows = rows

    def reorder(self, index: Any) -> None:
        """Replace the rows by rows[index]."""
        self.rows = [self.rows[at].fork() for at in torch.as_tensor(index).tolist()]

    def extend(self, other: RowCaches) -> None:
        """Append the rows of another cache of the same model, which keeps them."""
        self.rows = self.rows + other.fork().rows


class TransformersModel:
    """A causal model of transformers. Rows of a batch run one after the other.

    Weights stay in the blocks of a GGUF file where transformers does not reorder them, and in 16 bits where that is
    exact; both without a change of the numbers.
    """

    def __init__(self, path: str | os.PathLike[str], source: Source | None, weights: str | None, mode: str) -> None:
        self.model, tokenizer = hf_load(path)
        config = self.model.config
        if config.is_encoder_decoder:
            hint = "qkv.hf.load runs it, and `qkv generate` does"
            raise OptionError(complaint("path", f"{type(self.model).__name__}, an encoder-decoder", "a decoder", hint))
        _pack_products(self.model, source, weights, mode)
        text = config.get_text_config(decoder=True)
        self.vocabulary: int = text.vocab_size
        self.context: int = getattr(text, "max_position_embeddings", None) or 1 << 31
        self.tokenizer = TextTokenizer(tokenizer.backend_tokenizer)
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [ends]
        self.stop_tokens = frozenset(token for token in ends if type(token) is int)
        self.identity = fingerprint(identity(self.model), mode)
        parameters = inspect.signature(self.model.forward).parameters
        self._last_only = "logits_to_keep" in parameters
        self._cache_name = "cache_params" if "cache_params" in parameters else "past_key_values"  # Mamba-2's

    def new_cache(
        self, batch: int, dtype: torch.dtype | str, capacity: int | None, eviction: Any, bound: float | None
    ) -> RowCaches:
        if eviction is not None:
            reason = "this model runs in transformers, which counts the positions of a cache itself"
            raise BackendRefused(complaint("eviction", repr(eviction), "None", reason), (reason,))
        if bound is not None:
            wanted = 'None for a model that runs in transformers: give a format, dtype="int8" for example'
            raise OptionError(complaint("bound", bound, wanted))
        return RowCaches([hf_cache(self.model, dtype=dtype, capacity=capacity) for _ in range(batch)])

    def save_cache(self, cache: RowCaches, path: str | os.PathLike[str], tokens: Any) -> None:
        write_layers(path, cache.rows, model=self.identity, tokens=tokens)

    def load_cache(self, file: PagesFile, check: bool | None, like: RowCaches | None, eviction: Any) -> RowCaches:
        layers = len(self.new_cache(1, torch.float32, None, eviction, None).rows[0].layers)
        dtype = next((record["dtype"] for record in file.records if record is not None), torch.float32)
        found = self.new_cache(len(file.records) // layers, dtype, None, None, None)
        read_layers(file, found.rows, check)
        return found

    def run(
        self,
        tokens: Int[Tensor, "batch n"],
        cache: RowCaches,
        *,
        lengths: Int[Tensor, " batch"] | None,
        padding: str,
        every: bool,
        threads: int | None,
    ) -> Float[Tensor, "*rows vocabulary"]:
        """As `NativeProgram.run`."""
        batch, n = tokens.shape
        counts = [n] * batch if lengths is None else lengths.tolist()
        out = torch.zeros((batch, n, self.vocabulary) if every else (batch, self.vocabulary))
        forks = cache.fork().rows
        more: dict[str, Any] = {} if every or not self._last_only else {"logits_to_keep": 1}
        with torch.no_grad(), torch_threads(threads):
            for at, count in enumerate(counts):
                if count:
                    place = slice(n - count, n) if padding == "left" else slice(0, count)
                    given = tokens[at : at + 1, place]
                    more[self._cache_name] = forks[at]
                    logits = self.model(given, use_cache=True, **more).logits[0]
                    out[(at, place) if every else at] = logits if every else logits[-1]
        cache.rows = forks  # only now: what raises changes nothing
        return out


def _pack_products(model: nn.Module, source: Source | None, weights: str | None, mode: str) -> None:
    """Put a `PackedLinear` in place of every linear layer."""
    in_file: dict[Any, PackedMatrix] = {}
    if isinstance(source, GgufFile):
        matrices = (source.matrix(name) for name in source.names() if len(source.shape(name)) == 2)
        in_file = {_key(matrix.dense(torch.tensor([0])), matrix.rows): matrix for matrix in matrices}
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Conv1D":  # GPT-2's linear layer, with its weight transposed
            old: Any = module
            linear = nn.Linear(1, 1)
            linear.weight, linear.bias = nn.Parameter(old.weight.T.contiguous()), old.bias
        elif type(module) is nn.Linear:
            linear = module
        else:
            continue
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, _packed(linear, in_file, weights, mode))


def _packed(linear: nn.Linear, in_file: dict[Any, PackedMatrix], weights: str | None, mode: str) -> PackedLinear:
    weight = linear.weight.detach()
    found = in_file.get(_key(weight[:1], len(weight)))
    if found is not None and found.format.is_quantized and torch.equal(found.dense(), weight):
        return PackedLinear(torch.from_numpy(found.data.copy()), found.format.name, linear.bias, mode)
    if weights is not None:
        return quantized(linear, weights, mode)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = weight.to(dtype)
        if torch.equal(narrow.float(), weight):
            linear.weight = nn.Parameter(narrow, requires_grad=False)
            break
    return PackedLinear.from_linear(linear, mode)


def _key(row: Tensor, rows: int) -> tuple[int, bytes]:
    return rows, row.float().numpy().tobytes()
