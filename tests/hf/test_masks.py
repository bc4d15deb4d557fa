"""`LazyMask` against the mask functions of transformers."""

import pytest
import torch
from transformers import masking_utils as theirs

from qkv.errors import MaskError, QkvError
from qkv.hf.masks import LazyMask, make_mask, read_mask_tensor
from qkv.masks import Dense, Padding

BATCH, QUERIES = 3, 7
LEFT = torch.tensor([0, 2, 5])
IDS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3]] * BATCH)
FUNCTIONS = {
    "causal": theirs.causal_mask_function,
    "bidirectional": theirs.bidirectional_mask_function,
    "window": theirs.sliding_window_causal_mask_function(4),
    "window both ways": theirs.sliding_window_bidirectional_mask_function(3),
    "chunks": theirs.chunked_causal_mask_function(5, LEFT),
    "documents": theirs.and_masks(theirs.causal_mask_function, theirs.packed_sequence_mask_function(IDS)),
    "blocks": theirs.or_masks(theirs.causal_mask_function, theirs.blockwise_overlay(IDS)),
    "user-defined": lambda batch, head, query, key: (query + key) % 3 != batch,
}
RULES = set(FUNCTIONS) - {"blocks", "user-defined"}


@pytest.mark.parametrize("padding", [None, "left", "right", "holes"])
@pytest.mark.parametrize("place", [(7, 0, 0), (13, 6, 0), (9, 6, 4)], ids=["prompt", "after a past", "after a ring"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_cells_are_those_of_transformers(name, place, padding):
    keys, queries_from, keys_from = place
    keep = torch.ones(BATCH, 13, dtype=torch.bool)
    at = torch.arange(13)
    if padding == "left":
        keep = at >= LEFT[:, None]
    elif padding == "right":
        keep = at < 13 - LEFT[:, None]
    elif padding == "holes":
        keep = torch.rand(BATCH, 13, generator=torch.Generator().manual_seed(0)) > 0.3
    keep = keep[:, : keys_from + keys]
    sizes = (BATCH, QUERIES, keys, queries_from, keys_from)
    given = {"mask_function": FUNCTIONS[name], "attention_mask": keep if padding else None}
    wanted = theirs.sdpa_mask(*sizes, **given, allow_is_causal_skip=False)
    found = make_mask(*sizes, **given)
    assert isinstance(found, LazyMask)
    assert found.shape == wanted.shape
    assert torch.equal(found.cells(), wanted)
    dense = [part for part in found.rules.others if isinstance(part, Dense)]
    assert bool(dense) == (name not in RULES), "a rule stays a rule"


def test_computing_with_it_is_computing_with_its_cells():
    found = make_mask(2, 5, 5)
    cells = found.cells()
    assert torch.equal(found[:, :, 2:], cells[:, :, 2:])
    assert torch.equal(~found, ~cells)
    assert torch.equal(torch.where(found, 1.0, -1.0), torch.where(cells, 1.0, -1.0))
    assert "Causal" in repr(found)


def test_places_of_a_static_cache_are_no_padding():
    keep = torch.ones(2, 6, dtype=torch.bool)
    found = make_mask(2, 2, 64, torch.tensor(4), 0, attention_mask=keep)
    assert found.keep is None
    assert int(found.cells().sum()) == 2 * (5 + 6)


def test_a_mask_that_is_too_short():
    with pytest.raises(MaskError, match="3 columns"):
        make_mask(2, 1, 8, 7, attention_mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.slow
def test_a_traced_program_gets_cells():
    def cells(keep):
        return make_mask(2, 5, 5, attention_mask=keep)

    keep = torch.tensor([[True] * 5, [False] + [True] * 4])
    compiled = torch.compile(cells, backend="eager")(keep)
    assert not isinstance(compiled, LazyMask)
    assert torch.equal(compiled, make_mask(2, 5, 5, attention_mask=keep).cells())


def test_cells_of_the_callers_own():
    query = torch.zeros(2, 3, 4, 8)
    mask, bias = read_mask_tensor(query, torch.ones(2, 6), 6)
    assert isinstance(mask, Padding)
    assert bias is None
    mask, bias = read_mask_tensor(query, torch.zeros(2, 1, 4, 9), 6)
    assert mask is None
    assert bias.shape == (2, 1, 4, 6)
    for wrong in (
        torch.ones(2, 1, 4, 6, dtype=torch.int64),
        torch.ones(2, 4, 6),
        "causal",
        torch.ones(2, 6).to("meta"),
    ):
        with pytest.raises(QkvError, match="attention_mask"):
            read_mask_tensor(query, wrong, 6)
