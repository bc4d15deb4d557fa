"""Argmax by a running best: ties, NaN, both engines, and no table of scores."""

import subprocess
import sys

import pytest
import torch

import qkv
from qkv import ops
from qkv.backends import argmax
from qkv.backends.base import RUNS
from qkv.masks import Extent

MASKS = {
    "none": None,
    "causal": qkv.Causal(2),
    "behind the diagonal": qkv.Causal(-3),
    "padded and causal": qkv.Causal(2) & qkv.Padding(lengths=[3, 29]),
    "left padding": qkv.Padding(keep=torch.arange(31) >= torch.tensor([[5], [0]])) & qkv.Causal(8),
    "window": qkv.Window(2, 3, offset=8),
    "holes": qkv.Padding(keep=torch.arange(31).expand(2, 31) % 3 != 0),
    "documents": qkv.Segments(torch.arange(23) // 7, torch.arange(31) // 9),
    "any": qkv.Dense(torch.arange(23 * 31).reshape(23, 31) % 7 != 0) | qkv.Causal(0),
}


def integers(seed: int, *shape: int) -> torch.Tensor:
    """Small whole numbers: every product is exact in every dtype, and ties abound."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = ((2, 6, 23, 5), (2, 3, 31, 5), (2, 3, 31, 7))
    return tuple(integers(seed, *shape).to(dtype) for seed, shape in enumerate(shapes))


def by_definition(query, key, value, mask) -> torch.Tensor:
    extent = Extent(2, 6, 23, 31)
    resolved = None if mask is None else mask.resolved(extent)
    out = torch.zeros(2, 6, 23, 7)
    for b in range(2):
        for h in range(6):
            scores = query[b, h].double() @ key[b, h // 2].double().T
            for i in range(23):
                seen = [j for j in range(31) if resolved is None or resolved.allows(b, h, i, j, extent)]
                if seen:
                    out[b, h, i] = value[b, h // 2, max(seen, key=lambda j, row=scores[i]: (row[j], -j))]
    return out


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_best_key_and_the_lowest_of_equals(name: str, dtype: torch.dtype) -> None:
    query, key, value = inputs(dtype)
    out = qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=MASKS[name], backend="argmax")
    assert torch.equal(out.float(), by_definition(query, key, value, MASKS[name]))


def test_the_native_kernel_serves_what_it_should_and_nothing_else() -> None:
    assert ops.available(), ops.reasons()
    for dtype, name, engine in (
        (torch.float32, "none", "native"),
        (torch.bfloat16, "padded and causal", "native"),
        (torch.float16, "left padding", "native"),
        (torch.float32, "window", "native"),
        (torch.float32, "holes", "blocks"),
        (torch.float64, "none", "blocks"),
        (torch.float32, "few", "native"),
    ):
        RUNS.clear()
        ops.reset_calls()
        query, key, value = inputs(dtype)
        query = query[:, :, :2] if name == "few" else query
        qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=MASKS.get(name), backend="argmax")
        assert dict(RUNS) == {f"hard.{engine}": 1}
        assert ops.calls()["argmax_scores"] == (engine == "native")


@pytest.mark.parametrize("backend", ["argmax", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nan_is_lost_only_where_it_is_masked(backend: str, dtype: torch.dtype) -> None:
    query, key, value = inputs(dtype)
    mask = qkv.Causal(2)
    clean = qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=mask, backend=backend)
    key[1, 1, 20, 3] = float("nan")
    value[0, 0, 30] = float("nan")
    out = qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=mask, backend=backend)
    sees = torch.zeros(2, 6, 23, dtype=torch.bool)
    sees[1, 2:4, 18:] = True  # query i sees key 20 from i = 18 on; heads 2 and 3 read key/value head 1
    assert out[sees].isnan().all()
    assert torch.equal(out[~sees], clean[~sees])


def test_blocks_of_keys_agree_with_one_block(monkeypatch) -> None:
    query, key, value = inputs(torch.float64)
    whole = qkv.attention(query, key, value, similarity=qkv.Argmax(), backend="argmax")
    monkeypatch.setattr(argmax, "KEYS", 7)
    monkeypatch.setattr(argmax, "BLOCK", 2 * 6 * 7 * 3)
    assert torch.equal(qkv.attention(query, key, value, similarity=qkv.Argmax(), backend="argmax"), whole)


def test_bits_do_not_depend_on_threads_or_companions(threads) -> None:
    query, key, value = (torch.randn(3, 2, 301, 17) for _ in range(3))
    answers = []
    for count in (1, 2, 3):
        threads(count)
        answers.append(qkv.attention(query, key, value, similarity=qkv.Argmax(), backend="argmax"))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    alone = qkv.attention(query[1:2], key[1:2], value[1:2], similarity=qkv.Argmax(), backend="argmax")
    assert torch.equal(alone, answers[0][1:2])


def test_memory_does_not_grow_with_the_product_of_lengths() -> None:
    """A table of scores would take 4 GB here; the answer takes 2 MB."""
    code = (
        "import resource, torch, qkv; torch.set_num_threads(1);"
        "q, k = torch.randn(1, 1, 32768, 8), torch.randn(1, 1, 32768, 8);"
        "qkv.attention(q[:, :, :8], k[:, :, :8], k[:, :, :8], similarity=qkv.Argmax());"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "qkv.attention(q, k, k, similarity=qkv.Argmax(), backend='argmax');"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 64 * 2**20
