"""Dependence against derivatives, and receptive fields against layers that are followed."""

from __future__ import annotations

import itertools

import pytest
import torch

from qkv.exercises import Exercise, solve

ENTRIES = {"i": "x_{b,j}", "ii": "x_{b',j} where b' ≠ b", "iii": "x_{b,j'}", "iv": "x_{b',j'}"}


def solved(quantity: str, target: str, options: dict[str, str] | None = None, asked: dict | None = None, **fields):
    listed = [{"label": label, "text": text} for label, text in (options or {}).items()]
    question = {"quantity": quantity, "object": target, "options": listed, "several": True, **(asked or {})}
    return solve(Exercise.from_plain({"asked": [question], **fields})).parts[0]


def normalised(kind: str, x: torch.Tensor) -> torch.Tensor:
    axis = 0 if kind == "batch" else 1
    if kind == "rms":
        return x / x.square().mean(1, keepdim=True).sqrt()
    return (x - x.mean(axis, keepdim=True)) / x.std(axis, keepdim=True)


@pytest.mark.parametrize("kind", ["layer", "batch", "rms"])
def test_norms_against_derivatives(kind: str):
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (gradient,) = torch.autograd.grad(normalised(kind, x)[1, 2], x)
    places = {"i": (1, 2), "ii": (0, 2), "iii": (1, 3), "iv": (0, 3)}
    expected = tuple(label for label, place in places.items() if gradient[place].abs() > 1e-9)
    part = solved("dependence", f"{kind} norm", ENTRIES, givens=[{"role": "input", "shape": ["B", "D"]}])
    assert part.answer is not None, part.refusal
    assert part.answer.value == expected


def test_options_in_words_and_stored_statistics():
    words = {
        "A": "other features of the same example",
        "B": "the same feature in other examples",
        "C": "the entry itself",
    }
    for target, expected in (
        ("layer norm", ("A", "C")),
        ("batch norm", ("B", "C")),
        ("batch norm in evaluation", ("C",)),
    ):
        part = solved("dependence", target, words, givens=[{"role": "input", "shape": ["B", "D"]}])
        assert part.answer is not None, part.refusal
        assert part.answer.value == expected


def test_causal_attention_sees_what_comes_before():
    part = solved("dependence", "causal attention", asked={"row": 3}, givens=[{"role": "length", "value": 7}])
    assert part.answer is not None, part.refusal
    assert part.answer.value == (1, 2, 3)
    windowed = solved("dependence", "attention", asked={"row": 5}, structure={"mask": "causal & window(2, 0)"})
    assert windowed.answer is not None
    assert windowed.answer.value == (3, 4, 5)


@pytest.mark.parametrize(("heads", "layers"), [(1, 4), (2, 3), (3, 2)])
def test_argmax_heads_with_a_residual(heads: int, layers: int):
    seen = {()}
    for layer in range(layers):  # paths that never meet: each position meets fresh ones
        seen |= {(*path, (layer, head)) for path in seen for head in range(heads)}
    givens = [{"role": "heads", "value": heads}, {"role": "layers", "value": layers}]
    part = solved("receptive_field", "argmax", givens=givens, structure={"residual": True})
    assert part.answer is not None, part.refusal
    assert part.answer.value == len(seen) == (heads + 1) ** layers
    assert part.answer.derivation.holds


def test_letters_and_the_end_of_the_sequence():
    letters = solved(
        "receptive_field", "argmax", givens=[{"role": "heads", "symbol": "k"}, {"role": "layers", "symbol": "n"}]
    )
    assert letters.answer is not None
    assert letters.answer.text == "(k + 1)^n"
    sizes = [{"role": role, "value": value} for role, value in (("heads", 3), ("layers", 5), ("length", 100))]
    assert solved("receptive_field", "argmax", givens=sizes).answer.value == 100  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(("left", "right", "layers"), [(2, 0, 3), (3, 3, 2), (1, 0, 5)])
def test_windows_against_layers_that_are_followed(left: int, right: int, layers: int):
    seen = {0}
    for _ in range(layers):
        seen = {place + step for place, step in itertools.product(seen, range(-left, right + 1))}
    part = solved("receptive_field", "window", givens=[{"role": "layers", "value": layers}],
                  structure={"mask": f"window({left}, {right})"})  # fmt: skip
    assert part.answer is not None, part.refusal
    assert part.answer.value == len(seen)


def test_both_readings_of_a_window():
    givens = [{"role": "window", "value": 8}, {"role": "layers", "value": 5}]
    answer = solved("receptive_field", "window", givens=givens).answer
    assert answer is not None
    assert (answer.value, answer.also[0].value) == (36, 41)
    assert solved("receptive_field", "window on each side", givens=givens).answer.value == 81  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("encoder", {"encoder self-attention": "padding mask"}),
        ("decoder", {"decoder self-attention": "causal mask"}),
        ("decoder, padded on the left", {"decoder self-attention": "causal mask and padding mask"}),
        ("encoder-decoder", {"encoder self-attention": "padding mask", "decoder self-attention": "causal mask",
                             "cross-attention": "padding mask"}),
    ],
)  # fmt: skip
def test_masks_of_models(target: str, expected: dict[str, str]):
    part = solved("masks_needed", target)
    assert part.answer is not None, part.refusal
    assert {place: item.text for place, item in part.answer.items.items()} == expected


def test_what_is_missing_is_said():
    assert solved("receptive_field", "", givens=[{"role": "layers", "value": 2}]).answer is None
    assert solved("masks_needed", "a toaster").answer is None
    assert solved("dependence", "layer norm and batch norm").answer is None
