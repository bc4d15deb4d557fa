"""What torch's operators do, by name, as far as `watch` has to be told. What works in place goes without its `_`."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What numbers are moved, made or picked by, without arithmetic.
MOVES = _names(
    "clone _to_copy copy cat stack index index_select gather embedding take masked_select scatter index_put index_copy "
    "_index_put_impl constant_pad_nd fill zero zeros zeros_like new_zeros ones ones_like new_ones full full_like "
    "new_full scalar_tensor arange linspace eye flip roll repeat repeat_interleave tril triu lift_fresh nonzero "
    "_local_scalar_dense slice_backward select_backward slice_scatter select_scatter masked_scatter equal "
    "empty empty_like empty_strided new_empty new_empty_strided resize"
)
# One operation for each number, where torch's own tags do not say so.
ELEMENTWISE = _names(
    "cumsum cumprod elu_backward softplus_backward hardtanh_backward leaky_relu_backward log_sigmoid_backward glu "
    "bernoulli rand randn rand_like randn_like normal uniform exponential random randint randperm "
    "embedding_dense_backward scatter_add index_add fmod mse_loss"
)
# Several operations for each number, in one operator.
FUSED = {
    "_softmax": 5,  # largest, subtract, exp, sum, divide
    "_log_softmax": 5,
    "_softmax_backward_data": 4,  # multiply, sum, subtract, multiply
    "_log_softmax_backward_data": 4,
    "native_layer_norm": 7,  # mean, subtract, square, sum, multiply, weight, bias
    "native_layer_norm_backward": 13,
    "_fused_rms_norm": 4,  # square, sum, multiply, weight
    "native_dropout": 2,  # draw, multiply
}
# Makes room, and writes nothing into it.
EMPTY = _names("empty empty_like empty_strided new_empty new_empty_strided resize")
# Looks at a tensor for its shape and dtype alone.
LIKE = _names(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full new_empty "
    "new_empty_strided"
)
# Writes over what was there without a look at it.
OVERWRITES = _names("copy fill zero bernoulli normal uniform exponential random")
# Reads as much of its first tensor as comes out, or writes in place as much as its last tensor brings.
PICKS = _names("index index_select gather embedding take")
PLACES = _names("index_put _index_put_impl scatter index_copy scatter_add index_add")
# Of those, what adds to the numbers that are there, and so reads them.
PLACES_SUMS = _names("scatter_add index_add")
# Questions that no number is read for.
QUESTIONS = _names("_fused_sdp_choice is_same_size sym_size sym_stride sym_numel sym_storage_offset")
# Adds its first tensor to a product.
ADDS = _names("addmm baddbmm addmv addbmm addr")
