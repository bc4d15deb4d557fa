"""Arguments of `decode` and of caches: what a call becomes, and hints in refusals."""

import numpy as np
import pytest
import torch

import qkv
from qkv.cache.inputs import check_crop, check_lengths, check_rows, read_decode_inputs
from qkv.errors import BackendRefused, OptionError, OptionTypeError, ShapeError

QUERY, KEY = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 5, 8)


def message(error: type[Exception], function, *args, **options) -> str:
    with pytest.raises(error) as caught:
        function(*args, **options)
    return str(caught.value)


def test_positions_are_counted_over_the_tokens_that_are_stored() -> None:
    cache = qkv.KVCache(batch=2, heads=2, width=8)
    cache.append(KEY[:, :, :3], KEY[:, :, :3], lengths=[3, 1])
    mask = qkv.Window(left=1) & qkv.Causal()
    read = read_decode_inputs(QUERY, KEY, KEY, cache, None, mask, None, [5, 2], "left")
    assert read.past.tolist() == [3, 1]
    assert read.counts is not None
    assert read.counts.tolist() == [5, 2]
    assert (read.left, read.is_argmax) == (True, False)
    assert (read.extent.len_q, read.extent.len_k) == (5, 8)
    kept = read.keep((0, 5), (0, 8))
    for row, first in enumerate((3, -2)):  # the position of the first new query; that of row 1 is padding
        for i in range(5):
            at = first + i
            assert kept[row, 0, i].nonzero().flatten().tolist() == [j for j in (at - 1, at) if j >= 0], (row, i)


def test_lengths_crops_and_rows_are_read_as_integers() -> None:
    assert check_lengths(None, "right", 2, 5) == (None, False)
    counts, left = check_lengths(torch.tensor([5, 2]), "left", 2, 5)
    assert counts is not None
    assert (counts.tolist(), left) == ([5, 2], True)
    assert check_crop(4, np.array([7, 3]), "cache").tolist() == [4, 3]
    assert check_crop([6, 0], np.array([7, 3]), "cache").tolist() == [6, 0]
    assert check_rows([1, 1, 0], 2).tolist() == [1, 1, 0]
    assert "lengths[1]" in message(OptionError, check_lengths, [5, 6], "right", 2, 5)
    assert "crop keeps the first n tokens" in message(OptionError, check_crop, [6, 4], np.array([7, 3]), "cache")
    assert "index[2]" in message(OptionError, check_rows, [1, 1, 2], 2)


def test_a_cache_made_with_query_heads_is_named_as_the_cause() -> None:
    cache = qkv.KVCache(batch=2, heads=4, width=8)
    text = message(ShapeError, qkv.decode, QUERY, KEY, KEY, cache)
    assert "made with the query heads; make the KVCache with the key/value heads, heads=2" in text
    one = torch.zeros(2, 1, 2, 8)
    cache = qkv.KVCache(batch=2, heads=2, width=8)
    assert "call .transpose(1, 2)" in message(ShapeError, qkv.decode, QUERY[:, :, :1], one, one, cache)
    assert "Hint" not in message(ShapeError, qkv.decode, QUERY, KEY[:1], KEY[:1], cache)


def test_each_similarity_is_sent_to_the_cache_that_serves_it() -> None:
    similarity = qkv.Similarity(lambda query, key: query @ key.transpose(-1, -2))
    cache = qkv.KVCache(batch=2, heads=2, width=8)
    text = message(OptionTypeError, qkv.LinearState, similarity, 2, 2, 8)
    assert "Similarity has no finite feature map: decode it with a qkv.KVCache" in text
    assert "qkv.LinearState" in message(BackendRefused, qkv.decode, QUERY, KEY, KEY, cache, similarity=qkv.Polynomial())
    assert "qkv.KVCache" in message(OptionTypeError, qkv.LinearState, qkv.Softmax(), 2, 2, 8)
