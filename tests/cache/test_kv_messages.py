"""Messages and reprs of caches, and bytes written by torch and by the native library."""

import os
import stat

import pytest
import torch
from safetensors import safe_open

import qkv
from qkv import errors
from qkv.cache import kv as stores
from tests.helpers.decode_reference import STORAGE, name_of


def tokens(batch: int, heads: int, n: int, widths: tuple[int, int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    key, value = (torch.randn(batch, heads, n, width, generator=made) for width in widths)
    return key, value


@pytest.mark.parametrize("storage", STORAGE, ids=name_of)
@pytest.mark.parametrize("padding", ["right", "left"])
def test_torch_writes_what_the_native_library_writes(storage, padding, monkeypatch) -> None:
    native, plain = (qkv.KVCache(3, 2, 7, value_width=5, dtype=storage) for _ in range(2))
    for seed, (n, lengths) in enumerate([(70, None), (9, [9, 0, 4]), (1, None), (66, [0, 66, 1])]):
        key, value = tokens(3, 2, n, (7, 5), seed)
        native.append(key, value, lengths, padding)
        with monkeypatch.context() as without:
            without.setattr(stores, "cache_append", None)
            plain.append(key, value, lengths, padding)
    assert native.lengths.tolist() == plain.lengths.tolist() == [80, 137, 76]
    for row in range(3):
        (start, one), (other_start, other) = native.stored_row(row), plain.stored_row(row)
        assert start == other_start
        for mine, yours in zip(one, other, strict=True):
            assert (mine is None) == (yours is None)
            assert mine is None or torch.equal(mine, yours)


def test_a_cache_says_its_sizes_and_its_limits() -> None:
    cache = qkv.KVCache(2, 3, 7)
    assert repr(cache) == "KVCache(2 x 3 heads x 0 tokens, width 7, float32)"
    cache.append(*tokens(2, 3, 4, (7, 7)))
    assert repr(cache) == "KVCache(2 x 3 heads x 4 tokens, width 7, float32)"
    limited = qkv.KVCache(1, 1, 7, value_width=5, capacity=9, window=4, dtype=torch.int8)
    assert repr(limited) == "KVCache(1 x 1 heads x 0 tokens, width 7/5, int8, capacity=9, window=4)"


def test_a_state_says_its_sizes() -> None:
    similarity = qkv.FeatureMap(qkv.features.elu1)
    assert repr(qkv.LinearState(similarity, 2, 3, 7)).endswith(", 2 x 3 heads x 0 tokens, width 7)")
    state = qkv.LinearState(similarity, 2, 3, 7, value_width=5)
    state.append(*tokens(2, 3, 4, (7, 5)))
    assert repr(state) == f"LinearState({similarity!r}, 2 x 3 heads x 4 tokens, width 7/5)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bytes_of_a_state_grow_with_batch_heads_and_dtype(dtype: torch.dtype) -> None:
    """Recent tokens in the inputs' dtype, and sums of float32 or float64, for each batch row and head."""

    def held(batch: int, heads: int) -> int:
        state = qkv.LinearState(qkv.FeatureMap(qkv.features.elu1), batch, heads, 16)
        state.append(*(tensor.to(dtype) for tensor in tokens(batch, heads, 1, (16, 16))))
        return state.nbytes

    one = held(1, 1)
    assert held(2, 1) == held(1, 2) == 2 * one
    assert held(3, 5) == 15 * one
    recent = 16 * (16 + 16) * dtype.itemsize
    sums = 16 * (16 + 1) * (8 if dtype is torch.float64 else 4)
    assert recent + sums <= one <= recent + sums + 64  # the library fills up a line of the processor's cache


@pytest.mark.parametrize("make", [qkv.KVCache, lambda *s, **o: qkv.LinearState(qkv.Polynomial(2), *s, **o)])
def test_what_does_not_fit_is_called_by_its_name(make) -> None:
    kv_cache = make(2, 3, 7, value_width=5)
    key, value = tokens(2, 3, 4, (7, 5))
    refused = [
        ((key[..., :6], value), errors.ShapeError, r"^key: got shape \(2, 3, 4, 6\), wanted \(2, 3, n, 7\)"),
        ((key, value[..., :4]), errors.ShapeError, r"^value: got shape \(2, 3, 4, 4\), wanted \(2, 3, n, 5\)"),
        ((key[:1], value), errors.ShapeError, r"^key: "),
        ((key, value[:, :2]), errors.ShapeError, r"^value: "),
        ((key[0], value), errors.ShapeError, r"^key: "),
        ((key, value[:, :, :3]), errors.ShapeError, r"^value: got 3 tokens with 4 keys"),
        ((key, value.double()), errors.DtypeError, r"^value: got torch\.float64 on cpu with"),
        ((key.long(), value), errors.DtypeError, r"^key: got dtype torch\.int64"),
        ((key, value.tolist()), errors.DtypeError, r"^value: got list"),
        ((key.to("meta"), value), errors.DtypeError, r"^key: got a meta tensor"),
        ((key, value.to_sparse()), errors.DtypeError, r"^value: got layout torch\.sparse"),
        ((key.clone().requires_grad_(), value), errors.BackendRefused, r"^key: got a tensor that requires grad"),
    ]
    for given, error, words in refused:
        with pytest.raises(error, match=words):
            kv_cache.append(*given)
    assert kv_cache.length == 0
    kv_cache.append(key, value)
    with pytest.raises(errors.DtypeError, match=r"^key: .*torch\.float32 on cpu, as the cache was given before"):
        kv_cache.append(key.double(), value.double())
    assert kv_cache.lengths.tolist() == [4, 4]


@pytest.mark.parametrize("argument", ["batch", "heads", "width", "value_width"])
@pytest.mark.parametrize("make", [qkv.KVCache, lambda **o: qkv.LinearState(qkv.Polynomial(2), **o)])
def test_a_size_that_is_none_is_called_by_its_name(argument: str, make) -> None:
    sizes = {"batch": 1, "heads": 1, "width": 4, "value_width": 4}
    for wrong, error in ((0, errors.OptionError), (1.5, errors.OptionTypeError), (True, errors.OptionTypeError)):
        with pytest.raises(error, match=f"^{argument}: "):
            make(**sizes | {argument: wrong})


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([1, 5], r"^lengths\[1\]: got 5, wanted 0 to 4"),
        ([-1, 4], r"^lengths\[0\]: got -1"),
        ([1], r"^lengths: got shape \(1,\), wanted \(2,\)"),
        ([1.0, 2.0], "^lengths: "),
        ("ab", "^lengths: "),
    ],
)
def test_lengths_that_are_none_are_called_by_their_place(lengths: object, words: str) -> None:
    kv_cache = qkv.KVCache(2, 1, 4)
    with pytest.raises(errors.QkvError, match=words):
        kv_cache.append(*tokens(2, 1, 4, (4, 4)), lengths)
    kv_cache.append(*tokens(2, 1, 4, (4, 4)), [0, 4])
    assert kv_cache.lengths.tolist() == [0, 4]


@pytest.mark.parametrize(("index", "words"), [([0, 2], r"^index\[1\]: got 2, wanted 0 to 1"), ([-1], r"^index\[0\]: ")])
def test_rows_that_are_not_there_are_called_by_their_place(index: list[int], words: str) -> None:
    kv_cache = qkv.KVCache(2, 1, 4)
    with pytest.raises(errors.OptionError, match=words):
        kv_cache.reorder(index)


def states(tmp_path):
    cache, state = qkv.KVCache(1, 1, 4), qkv.LinearState(qkv.Polynomial(2), 1, 1, 4)
    for kv_cache in (cache, state):
        kv_cache.append(*tokens(1, 1, 3, (4, 4)))
        yield kv_cache, tmp_path / f"{type(kv_cache).__name__}.safetensors"


def test_a_file_keeps_its_mode_and_a_new_one_has_the_umasks(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        for kv_cache, path in states(tmp_path):
            kv_cache.save(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            for mode in (0o600, 0o664):
                path.chmod(mode)
                kv_cache.save(path)
                assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)


@pytest.mark.parametrize("limits", [{"capacity": 1}, {"window": 1}, {"capacity": 7, "window": 2}, {}])
def test_limits_come_back_from_a_file(limits: dict[str, int], tmp_path) -> None:
    cache = qkv.KVCache(1, 1, 4, **limits)
    cache.append(*tokens(1, 1, 1, (4, 4)))
    cache.save(tmp_path / "it")
    loaded = qkv.KVCache.load(tmp_path / "it")
    assert (loaded.capacity, loaded.window) == (limits.get("capacity"), limits.get("window"))
    assert repr(loaded) == repr(cache)


def test_files_say_what_they_are_and_are_the_same_when_saved_again(tmp_path) -> None:
    def read(path):
        with safe_open(path, framework="pt") as file:
            return file.metadata(), {name: file.get_tensor(name).tolist() for name in file.keys()}  # noqa: SIM118

    for kv_cache, path in states(tmp_path):
        kv_cache.save(path)
        about, tensors = read(path)
        assert (about["format"], about["version"]) == (f"qkv.{type(kv_cache).__name__}", "1")
        extra = (qkv.Polynomial(2),) if isinstance(kv_cache, qkv.LinearState) else ()
        type(kv_cache).load(path, *extra).save(path.with_suffix(".again"))
        assert read(path.with_suffix(".again")) == (about, tensors)
