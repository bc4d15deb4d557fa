"""transformers with torch's scaled_dot_product_attention and its dynamic cache; weights of GGUF are dequantized."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from transformers import DynamicCache

from . import Engine, Rows

_CHUNK = 1024


class Sdpa(Engine):
    """Rows are padded on the left. Steps are taken back by `crop`."""

    def __init__(self, path: Path, context: int, threads: int, dtype: str) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        options = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
        place = path if path.is_dir() else path.parent
        named = {} if path.is_dir() else {"gguf_file": path.name}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(place, **named, **options).eval()
        self.cache_format = dtype
        self.cache = DynamicCache(config=self.model.config)
        self.mask = torch.ones((1, 0), dtype=torch.long)

    def fill(self, rows: Rows) -> None:
        longest = max(map(len, rows))
        kept = self.mask.shape[1]
        if len(rows) > 1 or len(self.mask) > 1 or kept > longest:
            self.cache, kept = DynamicCache(config=self.model.config), 0
        self.mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        tokens = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
        for start in range(kept, longest, _CHUNK):
            self._run(tokens[:, start : start + _CHUNK], start)

    def _run(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Logits after tokens of which the first is in column `start`."""
        total = start + tokens.shape[1]
        grown = torch.ones((len(tokens), max(0, total - self.mask.shape[1])), dtype=torch.long)
        mask = torch.cat([self.mask, grown], dim=1)[:, :total]
        options = {}
        if not bool(mask.all()):  # a mask keeps sdpa from its faster path
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, start:]
            options = {"attention_mask": mask, "position_ids": positions}
        return self.model(tokens, past_key_values=self.cache, logits_to_keep=1, **options).logits[:, -1]

    def steps(self, count: int) -> list[float]:
        depth, times = self.mask.shape[1], []
        tokens = torch.full((len(self.mask), 1), 7)
        for at in range(count):
            before = time.perf_counter()
            self._run(tokens, depth + at)
            times.append(time.perf_counter() - before)
        self.cache.crop(-count)
        return times

    def prompt(self, tokens: Sequence[int]) -> float:
        given = torch.tensor([tokens])
        self.mask = torch.ones((1, 0), dtype=torch.long)
        before = time.perf_counter()
        self.cache = DynamicCache(config=self.model.config)
        self._run(given, 0)
        seconds = time.perf_counter() - before
        self.mask = torch.ones(given.shape, dtype=torch.long)
        return seconds

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        cache, found = DynamicCache(config=self.model.config), []
        given = torch.tensor([tokens])
        while len(found) < count:
            found.append(int(self.model(given, past_key_values=cache, logits_to_keep=1).logits[0, -1].argmax()))
            given = torch.tensor([[found[-1]]])
        return found

    def logits(self, tokens: Sequence[int]) -> list[float]:
        return self.model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].float().tolist()


ENGINE = Sdpa
