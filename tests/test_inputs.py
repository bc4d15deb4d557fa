"""Arguments of attention: what is checked, what is normalised, and each refusal."""

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import (
    DtypeError,
    MaskError,
    MaskTypeError,
    OptionError,
    OptionTypeError,
    QkvError,
    ShapeError,
)
from qkv.inputs import (
    ALIGNMENT,
    BACKEND_NAMES,
    DTYPES,
    AttentionInputs,
    aligned_layout,
    check_dropout,
    compact,
    compute_dtype,
    fold_group,
    in_transform,
    is_traced,
    read_inputs,
    unfold_group,
)


def call(query, key, value, **options):
    given = {
        "similarity": None,
        "mask": None,
        "bias": None,
        "dropout": 0.0,
        "backend": "auto",
        "return_lse": False,
        "return_weights": False,
    } | options
    return read_inputs(query, key, value, *given.values())


def test_sizes_are_read_off_the_shapes() -> None:
    read = call(torch.zeros(2, 6, 5, 11), torch.zeros(2, 3, 7, 11), torch.zeros(2, 3, 7, 13))
    assert (read.group, read.heads_kv, read.width, read.width_v) == (2, 3, 11, 13)
    assert (read.extent.batch, read.extent.heads, read.extent.len_q, read.extent.len_k) == (2, 6, 5, 7)


def test_group_folds_into_rows_by_the_one_head_mapping() -> None:
    heads, rows = torch.arange(6), torch.arange(5)
    tensor = (heads[:, None] * 100 + rows)[None, :, :, None].expand(2, 6, 5, 1)
    folded = fold_group(tensor, 3)
    assert folded.shape == (2, 3, 10, 1)
    for kv_head in range(3):
        assert {int(h) // 100 for h in folded[0, kv_head, :, 0]} == {2 * kv_head, 2 * kv_head + 1}
    assert torch.equal(unfold_group(folded, 6), tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_halves_compute_in_float32(dtype: torch.dtype) -> None:
    assert compute_dtype(dtype) is torch.float32
    assert compute_dtype(torch.float64) is torch.float64


def off_by_one(*shape: int) -> torch.Tensor:
    """Plain, and one number off every boundary."""
    return torch.randn(torch.Size(shape).numel() + 1)[1:].view(shape)


@pytest.mark.parametrize(
    "given",
    [
        torch.randn(3, 7, 5).transpose(0, 1),
        torch.randn(2, 3, 7, 11)[:, :, 1:],
        torch.randn(2, 1, 7, 11).expand(2, 3, 7, 11),
        torch.randn(1, 1, 7, 11).expand(2, 3, 7, 11),
        torch.randn(2, 3, 1, 16).expand(2, 3, 7, 16),
        torch.randn(2, 3, 1, 16)[:, :1].as_strided((2, 1, 1, 16), (48, 5, 3, 1)),
        off_by_one(2, 3, 7, 11),
        off_by_one(1, 1, 5, 16).expand(2, 3, 5, 16),
        torch.randn(7, 5).T,
    ],
    ids=lambda given: str(given.stride()),
)
def test_compact_and_aligned_layout_give_the_same_numbers_aligned(given: torch.Tensor) -> None:
    plain = compact(given)
    assert torch.equal(plain, given)
    assert plain.data_ptr() % ALIGNMENT == 0
    if given.dim() == 4:
        assert torch.equal(aligned_layout(given), given)
        assert aligned_layout(given).data_ptr() % ALIGNMENT == 0
    if 0 not in plain.stride():
        assert plain.stride() == torch.empty(plain.shape).stride()
        assert compact(plain) is plain


def test_nothing_is_copied_that_is_expanded_or_lies_well() -> None:
    wide = torch.randn(1, 1, 5, 16).expand(10**6, 10**6, 5, 16)
    assert compact(wide).stride() == aligned_layout(wide).stride() == (0, 0, 16, 1)
    projected = torch.randn(2, 7, 3, 16).transpose(1, 2)  # heads after the length
    cached = torch.randn(2, 3, 13, 16)[:, :, 1:8]
    shared = torch.randn(2, 1, 7, 16).expand(2, 3, 7, 16)
    for good in (projected, cached, shared, torch.randn(2, 3, 7, 11)):
        assert aligned_layout(good) is good


@pytest.mark.parametrize(
    "bad",
    [
        torch.randn(2, 3, 7, 16)[..., :11],  # rows on boundaries, where those of a plain copy are not
        torch.randn(2, 3, 7, 17)[..., :16],
        torch.randn(2, 3, 1, 16).expand(2, 3, 7, 16),  # all rows are one
        torch.randn(2, 3, 16, 7).mT,
        off_by_one(2, 3, 7, 16),
    ],
    ids=lambda bad: str(bad.stride()),
)
def test_aligned_layout_copies_what_would_round_differently(bad: torch.Tensor) -> None:
    assert aligned_layout(bad).stride() == torch.empty(bad.shape).stride()
    assert torch.equal(aligned_layout(bad), bad)


def test_gradients_go_through_a_compact_copy() -> None:
    leaf = torch.randn(2 * 3 * 7 + 1, requires_grad=True)
    compact(leaf[1:].view(2, 3, 7)).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.0] + [1.0] * 42


def test_signature_knows_sizes_and_kinds_but_no_numbers() -> None:
    def signature(value, **options):
        q = torch.full((2, 6, 5, 11), value)
        k = torch.full((2, 3, 5, 11), value)
        return call(q, k, k, **options).signature

    assert signature(0.0) == signature(1.0)
    assert signature(0.0, mask=qkv.Padding(lengths=[1, 2])) == signature(0.0, mask=qkv.Padding(lengths=[3, 4]))
    different = [{}, {"mask": qkv.Causal()}, {"mask": qkv.Causal(1)}, {"similarity": qkv.Argmax()}]
    different += [
        {"similarity": qkv.Softmax(scale=2.0)},
        {"dropout": 0.1},
        {"backend": "reference"},
        {"return_lse": True},
    ]
    assert len({signature(0.0, **options) for options in different}) == len(different)
    hash(signature(0.0, mask=qkv.Predicate(lambda b, h, i, j: i >= j)))


def test_three_dimensional_bias_means_the_callers_scores() -> None:
    q = torch.zeros(5, 5, 7)
    per_batch = torch.randn(5, 1, 5)
    assert call(q, q, q, bias=per_batch).bias.shape == (5, 1, 1, 5)
    heads = q[None]
    assert call(heads, heads, heads, bias=per_batch).bias.shape == (1, 5, 1, 5)


REFUSED = {
    "a list": (lambda q: ([1.0], q, q), {}, DtypeError, "query"),
    "five dimensions": (lambda q: (q[None], q[None], q[None]), {}, ShapeError, "5 dimensions"),
    "another rank": (lambda q: (q, q[0], q), {}, ShapeError, "key"),
    "integers": (lambda q: (q.long(), q.long(), q.long()), {}, DtypeError, "int64"),
    "another batch": (lambda q: (q, q[:1], q[:1]), {}, ShapeError, "batch 1"),
    "an unknown backend": (lambda q: (q, q, q), {"backend": "fast"}, OptionError, "'fast'"),
    "a function": (lambda q: (q, q, q), {"similarity": torch.exp}, OptionTypeError, "Similarity\\(function\\)"),
    "a class": (lambda q: (q, q, q), {"similarity": qkv.Argmax}, OptionTypeError, "Argmax\\(...\\)"),
    "a raw mask": (lambda q: (q, q, q), {"mask": torch.ones(5, 5, dtype=torch.bool)}, QkvError, "Dense"),
    "bias with argmax": (
        lambda q: (q, q, q),
        {"similarity": qkv.Argmax(), "bias": torch.zeros(5, 5)},
        OptionError,
        "bias",
    ),
    "bias of a wrong shape": (lambda q: (q, q, q), {"bias": torch.zeros(4, 5)}, ShapeError, r"\(4, 5\)"),
    "a sink of a wrong shape": (
        lambda q: (q, q, q),
        {"similarity": qkv.Softmax(sink=torch.zeros(4))},
        ShapeError,
        "one logit per query head",
    ),
    "lse of features": (
        lambda q: (q, q, q),
        {"similarity": qkv.Polynomial(), "return_lse": True},
        OptionError,
        "return_lse",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_message(name: str) -> None:
    tensors, options, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        call(*tensors(torch.zeros(2, 3, 5, 7)), **options)
    assert "wanted" in str(caught.value)


def test_a_parameter_is_no_tracer_and_other_subclasses_are() -> None:
    class Subclass(torch.Tensor):
        pass

    assert not is_traced(torch.zeros(2), torch.nn.Parameter(torch.zeros(2)))
    assert is_traced(torch.zeros(2).as_subclass(Subclass))


SIZES = {"batch": 2, "heads": 6, "heads_kv": 3, "len_q": 5, "len_k": 7, "width": 11, "width_v": 13}


def read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity=None,
    mask=None,
    bias=None,
    dropout=0.0,
    backend="auto",
    return_lse=False,
    return_weights=False,
) -> AttentionInputs:
    return read_inputs(query, key, value, similarity, mask, bias, dropout, backend, return_lse, return_weights)


def tensors(dims: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Of SIZES; with fewer dimensions the first of its heads and batch rows."""
    query = torch.randn(2, 6, 5, 11, dtype=dtype)
    key, value = torch.randn(2, 3, 7, 11, dtype=dtype), torch.randn(2, 3, 7, 13, dtype=dtype)
    first = {4: (...,), 3: (slice(None), 0), 2: (0, 0)}[dims]
    return query[first], key[first], value[first]


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_every_field_says_what_the_shapes_say(dims: int) -> None:
    given = tensors(dims)
    call = read(*given, backend="reference", return_lse=True, return_weights=True, dropout=0.25)
    batch, heads, heads_kv = (2 if dims > 2 else 1), (6 if dims == 4 else 1), (3 if dims == 4 else 1)
    assert call.query.shape == (batch, heads, 5, 11)
    assert call.key.shape == (batch, heads_kv, 7, 11)
    assert call.value.shape == (batch, heads_kv, 7, 13)
    for had, has in zip(given, call[:3], strict=True):
        assert torch.equal(had.flatten(), has.flatten())
    assert tuple(call.extent) == (batch, heads, 5, 7, dims)
    assert (call.heads_kv, call.width, call.width_v, call.group) == (heads_kv, 11, 13, heads // heads_kv)
    assert (call.backend, call.return_lse, call.return_weights, call.dropout) == ("reference", True, True, 0.25)
    assert (call.needs_grad, call.traced, call.mask, call.bias) == (False, False, None, None)
    assert isinstance(call.similarity, qkv.Softmax)


def test_one_key_value_head_serves_every_query_head() -> None:
    query = torch.zeros(1, 6, 2, 4)
    assert read(query, query[:, :1], query[:, :1]).group == 6
    assert read(torch.zeros(1, 0, 2, 4), torch.zeros(1, 0, 2, 4), torch.zeros(1, 0, 2, 4)).group == 0


@pytest.mark.parametrize("learning", range(5))
def test_one_input_that_learns_is_enough(learning: int) -> None:
    bias, sink = torch.zeros(5, 7), torch.zeros(6)
    inputs = [*tensors(), bias, sink]
    inputs[learning].requires_grad_()
    call = read(*inputs[:3], bias=inputs[3], similarity=qkv.Softmax(sink=inputs[4]))
    assert call.needs_grad is True
    with torch.no_grad():
        assert read(*inputs[:3], bias=inputs[3], similarity=qkv.Softmax(sink=inputs[4])).needs_grad is False


class Subclass(Tensor):
    """torch's way to stand between us and the numbers."""


@pytest.mark.parametrize("other", range(3))
def test_one_input_that_is_traced_is_enough(other: int) -> None:
    given = list(tensors())
    given[other] = given[other].as_subclass(Subclass)
    assert read(*given).traced is True


@pytest.mark.parametrize("spread", range(3))
def test_a_dtensor_is_refused_in_any_place(spread: int) -> None:
    given = list(tensors())
    given[spread] = given[spread].as_subclass(type("DTensor", (Tensor,), {}))
    with pytest.raises(DtypeError, match=r"qkv\.parallel\.attention"):
        read(*given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sink_has_the_dtype_of_the_scores(dtype: torch.dtype) -> None:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    given = tensors(dtype=dtype)
    number = read(*given, similarity=qkv.Softmax(sink=2.5)).sink
    assert number is not None
    assert number.shape == (1, 1, 1)
    assert number.dtype is wide
    assert number.item() == 2.5
    logits = torch.arange(6, dtype=torch.float16)
    each = read(*given, similarity=qkv.Softmax(sink=logits)).sink
    assert each is not None
    assert each.shape == (6, 1, 1)
    assert each.dtype is wide
    assert each.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    one = read(*given, similarity=qkv.Softmax(sink=torch.tensor([[2.0]]))).sink
    assert one is not None
    assert one.shape == (1, 1, 1)
    assert read(*given).sink is None
    assert read(*given, similarity=qkv.Argmax()).sink is None


@pytest.mark.parametrize("sink", [torch.zeros(6, dtype=torch.long), torch.zeros(6, device="meta")])
def test_a_sink_of_another_kind_is_refused(sink: Tensor) -> None:
    with pytest.raises(DtypeError, match="sink"):
        read(*tensors(), similarity=qkv.Softmax(sink=sink))


def test_a_sink_of_as_many_logits_in_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(6,\): one logit"):
        read(*tensors(), similarity=qkv.Softmax(sink=torch.zeros(6, 1)))


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_a_bias_is_the_callers_scores_in_four_dimensions(dims: int) -> None:
    """Every shape that broadcasts to the scores, expanded or not, adds what torch's own broadcasting adds."""
    scores = {4: (2, 6, 5, 7), 3: (2, 5, 7), 2: (5, 7)}[dims]
    shape = {4: (2, 6), 3: (2, 1), 2: (1, 1)}[dims]
    for kept in range(len(scores) + 1):
        for ones in range(2 ** (len(scores) - kept)):
            sizes = [1 if ones >> axis & 1 else size for axis, size in enumerate(scores[kept:])]
            bias = torch.randn(sizes)
            for given in (bias, bias.expand(scores)):
                result = read(*tensors(dims), bias=given).bias
                assert result is not None
                assert result.dim() == 4
                assert result.is_contiguous()
                assert torch.equal(result.expand(*shape, 5, 7).reshape(scores), bias.expand(scores))
                assert result.numel() == bias.numel()


@pytest.mark.parametrize("shape", [(4, 7), (5, 6), (3, 5, 7), (2, 6, 5, 7, 1), (1, 1, 1, 1, 1), (2, 5, 7)])
def test_a_bias_that_does_not_broadcast_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="bias"):
        read(*tensors(), bias=torch.zeros(shape))


def test_a_bias_of_matrices_has_two_dimensions() -> None:
    with pytest.raises(ShapeError, match="bias"):
        read(*tensors(2), bias=torch.zeros(1, 5, 7))


def test_a_bias_is_of_the_inputs_dtype_or_of_the_arithmetics() -> None:
    with pytest.raises(DtypeError, match=r"bias.*query's torch\.float64"):
        read(*tensors(dtype=torch.float64), bias=torch.zeros(5, 7))
    halves = tensors(dtype=torch.float16)
    for fits in (torch.float16, torch.float32):
        assert read(*halves, bias=torch.zeros(5, 7, dtype=fits)).bias is not None
    for wrong in (torch.bfloat16, torch.float64, torch.long):
        with pytest.raises(DtypeError, match=r"bias.*query's torch\.float16"):
            read(*halves, bias=torch.zeros(5, 7, dtype=wrong))


WRONG_BIASES = {
    "a list": (lambda: [[0.0]], DtypeError, r"bias.*list"),
    "a mask": (lambda: torch.ones(5, 7, dtype=torch.bool), MaskTypeError, "Dense"),
    "elsewhere": (lambda: torch.zeros(5, 7, device="meta"), DtypeError, "meta"),
    "sparse": (lambda: torch.zeros(5, 7).to_sparse(), DtypeError, "sparse"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.zeros(5, 7)], layout=torch.strided),
        DtypeError,
        "a dense tensor",
    ),
}


@pytest.mark.parametrize("name", WRONG_BIASES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_bias_of_another_kind_is_refused(name: str) -> None:
    make, error, words = WRONG_BIASES[name]
    bias = make()
    with pytest.raises(error, match=words):
        read(*tensors(), bias=bias)


@pytest.mark.parametrize("similarity", [qkv.Argmax(), qkv.Polynomial(), qkv.FeatureMap(qkv.features.elu1)])
def test_a_bias_belongs_to_softmax(similarity: object) -> None:
    with pytest.raises(OptionError, match="bias"):
        read(*tensors(), similarity=similarity, bias=torch.zeros(5, 7))


@pytest.mark.parametrize("flag", ["return_lse", "return_weights"])
@pytest.mark.parametrize("given", [1, 0, None, "True"])
def test_a_flag_is_true_or_false_and_named(flag: str, given: object) -> None:
    with pytest.raises(OptionTypeError, match=f"^{flag}: "):
        read(*tensors(), **{flag: given})


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "linear", "argmax", "native"])
def test_a_backend_is_read_by_its_name(backend: str) -> None:
    assert read(*tensors(), backend=backend).backend == backend


@pytest.mark.parametrize("backend", ["", "Dense", None, 3, ["reference"]])
def test_an_unknown_backend_is_refused_with_the_known_ones(backend: object) -> None:
    with pytest.raises(OptionError, match=", ".join(BACKEND_NAMES)):
        read(*tensors(), backend=backend)


def test_dropout_is_a_probability() -> None:
    softmax = qkv.Softmax()
    for fits in (0, 0.0, 0.5, 1, 1.0):
        read_as = check_dropout(fits, softmax)
        assert type(read_as) is float
        assert read_as == fits
        assert read(*tensors(), dropout=fits).dropout == fits
    for wrong in (-0.001, 1.001, float("nan")):
        with pytest.raises(OptionError, match="turns it off"):
            check_dropout(wrong, softmax)
    for wrong in (True, False, "0.1", None, 1j):
        with pytest.raises(OptionTypeError, match="dropout"):
            check_dropout(wrong, softmax)
        with pytest.raises(OptionTypeError, match="dropout"):
            read(*tensors(), dropout=wrong)
    assert check_dropout(0, qkv.Argmax()) == 0.0
    with pytest.raises(OptionError, match="argmax has one key"):
        check_dropout(0.1, qkv.Argmax())


def without(place: int, change) -> tuple[Tensor, ...]:
    given = list(tensors())
    given[place] = change(given[place])
    return tuple(given)


WRONG_TENSORS = {
    "another dtype": (lambda t: t.double(), DtypeError, ("query's", "convert with .to(dtype)")),
    "no floats": (lambda t: t.long(), DtypeError, ("int64", ".float() converts")),
    "an array": (lambda t: t.numpy(), DtypeError, ("ndarray", "torch.as_tensor")),
    "sparse": (lambda t: t.to_sparse(), DtypeError, ("sparse", "qkv.varlen")),
    "nested": (lambda t: torch.nested.nested_tensor(list(t)), DtypeError, ("nested", "varlen")),
    "elsewhere": (lambda t: t.to("meta"), DtypeError, ("meta", "device")),
    "fewer axes": (lambda t: t[0], ShapeError, ("3 dimensions", "as many as query has")),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", WRONG_TENSORS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_one_wrong_tensor_is_found_and_named(name: str, place: int) -> None:
    change, error, words = WRONG_TENSORS[name]
    with pytest.raises(error) as caught:
        read(*without(place, change))
    text = str(caught.value)
    blamed = ("query", "key", "value")[place]
    if place or name not in ("another dtype", "elsewhere", "fewer axes"):
        assert text.startswith(blamed + ":")
        assert all(word in text for word in words)
    else:  # the query sets the example, and what differs from it is named
        assert text.startswith("key:")


@pytest.mark.parametrize("dims", [0, 1, 5])
def test_other_ranks_are_refused_alike(dims: int) -> None:
    other = torch.zeros((2,) * dims)
    with pytest.raises(ShapeError, match=f"^query: got {dims} dimensions"):
        read(other, other, other)


def test_meta_tensors_hold_no_numbers() -> None:
    with pytest.raises(DtypeError, match=r"^query: got a meta tensor"):
        read(*(tensor.to("meta") for tensor in tensors()))


def far(*shape: int) -> Tensor:
    """A shape of any size without the cache."""
    return torch.zeros(1).expand(shape)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ((1, 1, 2**31, 1), (1, 1, 2**32, 1)),  # scores
        ((1, 1, 1, 2**61), (1, 1, 1, 2**61)),  # bytes of the output
        ((4, 2**10, 2**10, 2**39), (4, 2**10, 1, 2**39)),
    ],
)
def test_sizes_that_overflow_are_refused_and_the_largest_that_do_not_are_read(query, key) -> None:
    with pytest.raises(ShapeError, match="overflow 64 bits"):
        read(far(*query), far(*key), far(*key))
    assert_read_when_halved(query, key)


def assert_read_when_halved(query: tuple[int, ...], key: tuple[int, ...]) -> None:
    halved = [*query[:3], query[3] // 2] if query[3] > 1 else [*query[:2], query[2] // 2, 1]
    fitting = [*key[:3], key[3] // 2] if key[3] > 1 else list(key)
    assert read(far(*halved), far(*fitting), far(*fitting)).width == halved[3]


def test_the_largest_number_of_scores_is_read() -> None:
    """2⁶³ − 1, in two factors."""
    query, key = far(1, 1, 49 * 73 * 127, 1), far(1, 1, 337 * 92737 * 649657, 1)
    extent = read(query, key, key).extent
    assert extent.len_q * extent.len_k == 2**63 - 1


def test_a_key_with_more_axes_than_a_matrix_is_named() -> None:
    query, key, value = tensors(2)
    with pytest.raises(ShapeError, match=r"^key: got 3 dimensions"):
        read(query, key[None], value)


def test_the_signature_knows_a_bias() -> None:
    given = tensors()
    signatures = {read(*given, bias=bias).signature for bias in (None, torch.zeros(5, 7), torch.zeros(6, 1, 7))}
    assert len(signatures) == 3


def test_forward_mode_counts_as_tracing() -> None:
    assert not in_transform()
    with torch.autograd.forward_ad.dual_level():
        assert in_transform()
    assert torch.func.vmap(lambda x: x + in_transform())(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_a_mask_that_was_written_to_is_noticed() -> None:
    keep = torch.ones(5, 7, dtype=torch.bool)
    call = read(*tensors(), mask=qkv.Dense.borrowed(keep))
    before = call.mask_versions()
    call.check_mask_unchanged(before)
    keep[0, 0] = False
    with pytest.raises(MaskError, match=r"clone\(\)"):
        call.check_mask_unchanged(before)
    assert read(*tensors()).mask_versions() == ()


@pytest.mark.parametrize("heads_kv", [1, 2, 3, 6])
def test_groups_fold_and_unfold(heads_kv: int) -> None:
    tensor = torch.randn(2, 6, 5, 4)
    folded = fold_group(tensor, heads_kv)
    assert folded.shape == (2, heads_kv, 6 // heads_kv * 5, 4)
    assert torch.equal(unfold_group(folded, 6), tensor)
    assert (folded is tensor) == (heads_kv == 6)
    assert unfold_group(tensor, 6) is tensor


@pytest.mark.parametrize("front", [(), (1,), (2,), (3,), (2, 3), (2, 4), (2, 1, 3)])
def test_one_matrix_that_all_see_stays_one(front: tuple[int, ...]) -> None:
    """Where its copies would start on boundaries too, and only there."""
    for rows, width in ((4, 16), (5, 16), (4, 8), (5, 8), (3, 11)):
        shown = torch.randn(rows, width).expand(*front, rows, width)
        result = compact(shown)
        assert torch.equal(result, shown)
        one = (rows * width * 4) % 64 == 0 and torch.Size(front).numel() > 1
        assert result.untyped_storage().nbytes() == rows * width * 4 * (
            1 if one or not front else shown[..., 0, 0].numel()
        )
    half = torch.randn(2, 1, 4, 16).expand(2, 3, 4, 16)  # each batch row has its own
    assert compact(half).stride() == (192, 64, 16, 1)


def test_a_plain_copy_has_plain_strides() -> None:
    for other in (torch.randn(1, 1, 16, 4).mT, torch.randn(200).as_strided((1, 1, 7, 16), (3, 5, 16, 1))):
        result = compact(other)
        assert torch.equal(result, other)
        assert result.stride() == torch.empty(other.shape).stride()


@pytest.mark.parametrize("step", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_aligned_layout_depends_on_every_stride(step: tuple[int, int, int]) -> None:
    strides = [size + 1 * off for size, off in zip((3 * 7 * 16, 7 * 16, 16), step, strict=True)]
    bad = torch.randn(4096).as_strided((2, 3, 7, 16), (*strides, 1))
    assert aligned_layout(bad) is not bad
    assert torch.equal(aligned_layout(bad), bad)
    wide = torch.randn(8192).as_strided((2, 3, 7, 16), (352, 128, 32, 1))
    assert aligned_layout(wide) is wide


QUERY, KEY = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 5, 8)
TORCH_ARGUMENTS = {
    "is_causal": (True, "mask=qkv.Causal()"),
    "attn_mask": (
        torch.ones(5, 5),
        "mask=qkv.Dense(attn_mask) for booleans (True attends), bias=attn_mask",
    ),
    "scale": (0.5, "similarity=qkv.Softmax(scale=...)"),
    "enable_gqa": (True, "leave it out: heads are read off the shapes"),
    "dropout_p": (0.1, "dropout=..."),
}


def message(error: type[Exception], function, *args, **options) -> str:
    with pytest.raises(error) as caught:
        function(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", TORCH_ARGUMENTS)
def test_torchs_arguments_are_refused_with_qkvs(name: str) -> None:
    value, hint = TORCH_ARGUMENTS[name]
    text = message(OptionTypeError, qkv.attention, QUERY, KEY, KEY, **{name: value})
    assert text.startswith(f"{name}: got ")
    assert hint in text
    assert "qkv.compat.scaled_dot_product_attention takes torch's arguments" in text
    assert "qkv.attention takes similarity, mask, bias, state, initial_state, dropout, backend, return_lse" in text
    assert hint in message(TypeError, qkv.explain, QUERY, KEY, KEY, **{name: value})


def test_unknown_arguments_of_varlen_and_decode() -> None:
    x, edges = torch.zeros(5, 2, 4), torch.tensor([0, 2, 5])
    assert "mask=qkv.Causal()" in message(OptionTypeError, qkv.varlen, x, x, x, edges, is_causal=True)
    assert "bias=" not in message(OptionTypeError, qkv.varlen, x, x, x, edges, attn_mask=None)
    cache = qkv.KVCache(batch=2, heads=2, width=8)
    assert "decode is causal" in message(OptionTypeError, qkv.decode, QUERY, KEY, KEY, cache, is_causal=True)
    assert "decode has no dropout" in message(OptionTypeError, qkv.decode, QUERY, KEY, KEY, cache, dropout_p=0.1)
    assert cache.length == 0


def test_a_misspelt_argument_is_corrected() -> None:
    assert "Hint: write backend=." in message(OptionTypeError, qkv.attention, QUERY, KEY, KEY, backnd="auto")
    assert "Hint" not in message(OptionTypeError, qkv.attention, QUERY, KEY, KEY, xyz=1)


@pytest.mark.parametrize(
    ("query", "key", "value", "names"),
    [
        ((2, 5, 4, 8), (2, 7, 4, 8), (2, 7, 4, 8), "query, key and value"),
        ((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6), "query, key and value"),
        ((2, 4, 5, 8), (2, 4, 5, 8), (2, 5, 4, 8), "value"),
        ((2, 4, 5, 8), (2, 5, 4, 8), (2, 4, 5, 8), "key"),
        ((2, 5, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8), "query"),
        ((2, 4, 5, 8), (2, 5, 4, 8), (2, 5, 4, 8), "query, or key and value"),
        ((2, 6, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), None),
        ((2, 4, 5, 8), (2, 4, 5, 7), (2, 4, 5, 8), None),
    ],
)
def test_swapped_axes_of_heads_and_tokens_are_noticed(query, key, value, names: str | None) -> None:
    text = message(ShapeError, qkv.attention, *(torch.zeros(shape) for shape in (query, key, value)))
    if names is None:
        assert "transpose" not in text
    else:
        assert f"If {names} came as (batch, length, heads, width): call .transpose(1, 2) first." in text
