"""Masks and similarities survive the way through an operator's arguments."""

import pytest
import torch

import qkv
from qkv.backends.description import (
    describe_mask,
    describe_similarity,
    mask_from_description,
    similarity_from_description,
)
from qkv.masks import Extent

EXTENT = Extent(2, 3, 5, 5)
IDS = torch.tensor([[0, 0, 1, 1, 2], [4, 4, 4, 0, 0]])
MASKS = {
    "none": None,
    "causal": qkv.Causal(),
    "offset": qkv.Causal(offset=-2),
    "window": qkv.Window(left=2, offset=1),
    "lengths": qkv.Padding(lengths=[3, 5]),
    "lengths in a tensor": qkv.Padding(lengths=torch.tensor([0, 4])),
    "keep": qkv.Padding(keep=torch.rand(2, 5) < 0.5),
    "drop in an array": qkv.Padding(drop=(torch.rand(2, 5) < 0.5).numpy()),
    "segments": qkv.Segments(IDS),
    "dense": qkv.Dense(torch.rand(3, 5, 5) < 0.5),
    "predicate": qkv.Predicate(lambda batch, head, query, key: (query - key + head) % 3 == 0),
    "joined": (qkv.Causal() & qkv.Window(left=1)) | (qkv.Padding(lengths=[2, 1]) & qkv.Segments(IDS)),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_is_made_again(mask: qkv.masks.Mask | None) -> None:
    resolved = None if mask is None else mask.resolved(EXTENT)
    description = describe_mask(resolved, EXTENT, torch.device("cpu"))
    assert description is not None
    again = mask_from_description(*description)
    if mask is None:
        assert again is None
        return
    cells = [m.tile(EXTENT, (0, 5), (0, 5)).expand(2, 3, 5, 5) for m in (mask, again) if m is not None]
    assert torch.equal(*cells)


@pytest.mark.parametrize("name", ["causal", "window", "lengths", "lengths in a tensor", "segments"])
def test_masks_of_data_keep_their_kind(name: str) -> None:
    """Described by their cells, they would lose the fast backends."""
    description = describe_mask(MASKS[name], EXTENT, torch.device("cpu"))
    assert description is not None
    assert type(mask_from_description(*description)) is type(MASKS[name])


def test_a_function_needs_the_sizes() -> None:
    assert describe_mask(MASKS["predicate"], None, torch.device("cpu")) is None
    assert describe_mask(qkv.Causal() & MASKS["predicate"], None, torch.device("cpu")) is None


SINK = torch.randn(3)
SIMILARITIES = [
    qkv.Softmax(),
    qkv.Softmax(scale=0.0, softcap=2.5, sink=-1.0),
    qkv.Softmax(scale=-0.5, sink=SINK),
    qkv.Argmax(),
    qkv.Polynomial(degree=3, offset=-0.5),
    qkv.FeatureMap(qkv.features.elu1),
    qkv.FeatureMap(qkv.features.squared, normalize=False),
    qkv.FeatureMap(qkv.features.polynomial(3, 0.5), normalize=False),
]


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=repr)
def test_a_similarity_is_made_again(similarity: qkv.similarity.AnySimilarity) -> None:
    description = describe_similarity(similarity)
    assert description is not None
    given = getattr(similarity, "sink", None)
    again = similarity_from_description(*description, given if isinstance(given, torch.Tensor) else None)
    assert repr(again) == repr(similarity)
    assert type(again) is type(similarity)


def test_functions_of_the_caller_are_not_described() -> None:
    assert describe_similarity(qkv.Similarity(lambda q, k: q @ k.mT)) is None
    assert describe_similarity(qkv.FeatureMap(torch.exp)) is None
