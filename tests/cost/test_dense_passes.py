"""`dense` by formula and by count: the same integers."""

import random

import pytest
import torch

import qkv
from cost_draws import DTYPES, Draw, draw, draw_mask
from formula_mutants import mutants
from qkv import ops
from qkv.cost import dense_passes
from qkv.cost.dense_passes import Cells, Options, dense
from qkv.cost.passes import Features
from qkv.cost.sizes import Sizes
from qkv.inputs import compute_dtype
from qkv.profiling.watch import Watch, watch

MASKS = ("none", "causal", "window", "left", "lengths", "given")
MAPS = {"identity": (0, 0), "relu": (1, 0), "squared": (1, 0), "elu1": (2, 1)}
HERE = dense_passes.__name__
NUMBERS = ("products", "elementwise", "read", "written", "peak")

# Without the native library, torch looks whether the numbers are finite, and is seen doing it.
needs_library = pytest.mark.skipif(not ops.available(), reason="no native library")


def softmax_call(rng: random.Random, drawn: Draw, dtype: torch.dtype, cells: Cells | None) -> tuple[dict, Options]:
    sizes = drawn.sizes
    shape = tuple(rng.choice((1, full)) for full in drawn.extent.shape) if rng.random() < 0.4 else None
    sink = rng.choice((0, 0, 1, sizes.heads))
    is_number = sink == 1 and rng.random() < 0.5
    logits = 0.5 if is_number else torch.linspace(-1, 1, sink, dtype=compute_dtype(dtype)) if sink else None
    softcap, lse = rng.random() < 0.3, rng.random() < 0.4
    arguments = {
        "similarity": qkv.Softmax(softcap=3.0 if softcap else None, sink=logits),
        "bias": None if shape is None else torch.ones(shape, dtype=dtype),
        "return_lse": lse,
    }
    return arguments, Options(cells, shape, softcap, sink, is_number, lse)  # pyright: ignore[reportArgumentType]


def counted(drawn: Draw, **arguments: object) -> Watch:
    with torch.no_grad(), watch() as seen:
        qkv.attention(*drawn.tensors, backend="reference", **arguments)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert not seen.unknown
    return seen


def numbers(thing: object) -> dict[str, int]:
    return {name: getattr(thing, name) for name in NUMBERS}


@needs_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_softmax(dtype: torch.dtype, seed: int) -> None:
    rng = random.Random(seed)
    drawn = draw(rng, dtype)
    mask, cells = draw_mask(rng, drawn.sizes, MASKS)
    arguments, options = softmax_call(rng, drawn, dtype, cells)
    formula = dense(drawn.sizes, dtype.itemsize, "softmax", options)
    assert numbers(counted(drawn, mask=mask, **arguments)) == numbers(formula)


@needs_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("similarity", ["polynomial", "features", "argmax"])
def test_other_similarities(similarity: str, dtype: torch.dtype, seed: int) -> None:
    rng = random.Random(1000 + seed)
    drawn = draw(rng, dtype)
    mask, cells = draw_mask(rng, drawn.sizes, MASKS)
    name = rng.choice(sorted(MAPS))
    steps, beside = MAPS[name]
    features = Features(drawn.sizes.width, steps, beside=beside) if similarity == "features" else None
    given = {
        "polynomial": qkv.Polynomial(rng.randrange(1, 4), 0.5),
        "features": qkv.FeatureMap(getattr(qkv.features, name)),
        "argmax": qkv.Argmax(),
    }[similarity]
    formula = dense(drawn.sizes, dtype.itemsize, similarity, Options(cells), features)
    assert numbers(counted(drawn, similarity=given, mask=mask)) == numbers(formula)


@needs_library
def test_any_number_that_is_wrong_in_the_formula_shows() -> None:
    counts = []
    for seed in range(24):
        rng = random.Random(seed)
        dtype = DTYPES[seed % 3]
        drawn = draw(rng, dtype)
        mask, cells = draw_mask(rng, drawn.sizes, MASKS)
        arguments, options = softmax_call(rng, drawn, dtype, cells)
        features = Features(drawn.sizes.width, 2, beside=1)
        for name, given, formula in (
            ("softmax", arguments, (options, None)),
            ("polynomial", {"similarity": qkv.Polynomial()}, (Options(cells), None)),
            ("features", {"similarity": qkv.FeatureMap(qkv.features.elu1)}, (Options(cells), features)),
            ("argmax", {"similarity": qkv.Argmax()}, (Options(cells), None)),
        ):
            counts.append((numbers(counted(drawn, mask=mask, **given)), (drawn.sizes, dtype.itemsize, name, *formula)))
    functions = {name for name, thing in vars(dense_passes).items() if getattr(thing, "__module__", "") == HERE}
    tried = 0
    for wrong, names in mutants(dense_passes, {name for name in functions if name.islower()}):
        assert any(numbers(names["reference"](*arguments)) != found for found, arguments in counts), wrong  # pyright: ignore[reportCallIssue]
        tried += 1
    assert tried > 100


def test_peak_of_the_equation_is_three_score_matrices_and_little_else() -> None:
    sizes = Sizes(batch=2, heads=3, heads_kv=3, len_q=1009, len_k=1013, width=5, width_v=7)
    scores = 4 * sizes.cells
    assert 3 * scores < dense(sizes, 4, "softmax").peak < 3.05 * scores


def test_any_size() -> None:
    tokens = 10**15
    sizes = Sizes(1, 1, 1, tokens, tokens, 64, 64)
    assert dense(sizes, 2, "softmax").products == 256 * tokens**2
