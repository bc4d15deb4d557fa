import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError
from qkv.masks import Causal, Extent, Segments

EXTENT = Extent(2, 3, 5, 7)
QUERIES = [[0, 0, 1, 1, 2], [5, 5, 5, 5, 5]]
KEYS = [[0, 1, 1, 1, 2, 2, 9], [5, 5, 4, 4, 4, 4, 4]]


def whole(mask, extent=EXTENT):
    return mask.tile(extent, (0, extent.len_q), (0, extent.len_k), "cpu")


def test_lists_numpy_and_torch_agree():
    holds = (
        list,
        np.array,
        torch.tensor,
        lambda ids: np.array(ids, dtype=np.uint16),
        lambda ids: torch.tensor(ids).byte(),
    )
    tiles = [whole(Segments(hold(QUERIES), hold(KEYS))) for hold in holds]
    want = np.array(QUERIES)[:, None, :, None] == np.array(KEYS)[:, None, None]
    assert all(np.array_equal(tile.numpy(), want) for tile in tiles)


def test_one_row_of_ids_serves_every_batch_row():
    ids = [3, 3, 1, 1, 1]
    extent = Extent(2, 3, 5, 5)
    assert whole(Segments(ids), extent).shape == (1, 1, 5, 5)
    assert Segments(ids).population(extent) == 2 * 3 * (4 + 9)
    assert Segments(ids, [ids, [3] * 5]).population(extent) == 3 * (4 + 9 + 10)


def test_wrong_kinds_and_shapes():
    for wrong in ([0.0, 1.0], torch.ones(5), [True, False], np.array([2**63], dtype=np.uint64), torch.ones(2).bool()):
        with pytest.raises(MaskTypeError) as caught:
            Segments(wrong)
        assert str(caught.value).startswith("query_ids (of a Segments mask): got ")
        assert "wanted integers of shape (batch, len_q) or (len_q,)" in str(caught.value)
    with pytest.raises(MaskError, match=r"key_ids \(of a Segments mask\): got shape \(1, 1, 2\)"):
        Segments([0], [[[0, 1]]])
    with pytest.raises(MaskError, match=r"got shape \(5,\), wanted shape \(2, 7\) or \(7,\). Hint: give key_ids="):
        Segments([0] * 5).resolved(EXTENT)
    with pytest.raises(MaskError, match=r"query_ids .*got shape \(3, 5\), wanted shape \(2, 5\) or \(5,\)\.$"):
        Segments(np.zeros((3, 5), dtype=int), [0] * 7).resolved(EXTENT)


@pytest.mark.parametrize("hold", [list, tuple, np.array, torch.tensor])
def test_from_cumulative_lengths(hold):
    packed = Segments.from_cu_seqlens(hold([0, 2, 2, 5]), hold([0, 3, 4, 7]))
    assert packed.query_ids.tolist() == [0, 0, 2, 2, 2]
    assert packed.key_ids.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert packed.population(EXTENT) == 6 * (6 + 9)
    assert isinstance(packed.query_ids, torch.Tensor) == (hold is torch.tensor)
    alike = Segments.from_cu_seqlens(hold([0, 2, 5]))
    assert alike.key_ids is alike.query_ids
    assert (alike & Causal()).population() == 3 + 6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 3, 5], "got 1 first, wanted integers that start at 0 and never decrease. Hint: put a 0"),
        ([0, 5, 3], "got 5 and then 3 at index 2"),
        ([], "got an empty list"),
        ([0.0, 2.0], "wanted integers"),
        ([[0, 2], [2, 5]], "one dimension"),
        (5, "one dimension"),
        (None, "got None"),
    ],
    ids=str,
)
def test_boundaries_that_decrease_or_do_not_start_at_0(wrong, message):
    with pytest.raises(MaskError) as caught:
        Segments.from_cu_seqlens(wrong)
    assert str(caught.value).startswith("cu_seqlens_q: got ")
    assert message in str(caught.value)


def test_the_same_number_of_documents():
    with pytest.raises(MaskError, match="cu_seqlens_k: got 3 documents, wanted 2, as in cu_seqlens_q"):
        Segments.from_cu_seqlens([0, 2, 5], [0, 1, 2, 5])


def test_documents_by_row():
    packed = Segments(torch.tensor(QUERIES), KEYS)
    assert packed.documents_by_row(EXTENT) == [[(0, 2, 0, 1), (2, 4, 1, 4), (4, 5, 4, 6)], [(0, 5, 0, 2)]]
    assert Segments([0, 1, 0]).documents_by_row(Extent(1, 1, 3, 3)) is None
    assert Segments([], []).documents_by_row(Extent(1, 1, 0, 0)) == [[]]


def test_repr_abbreviates():
    assert repr(Segments([0, 1])) == "Segments(<int64 (2,)>)"
    assert repr(Segments([0, 1], torch.zeros(2, 3, dtype=torch.int32))) == "Segments(<int64 (2,)>, <int32 (2, 3)>)"
