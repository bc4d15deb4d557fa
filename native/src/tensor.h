#pragma once

#include <cstdint>

#include "dtype.h"

namespace qkv {

// Any layout: strides in elements, in the order batch, head, position, width.
struct Tensor4 {
    const void* data;
    int64_t stride[4];
};

// The address of a row of a tensor.
inline const void* row_address(const Tensor4& tensor, Dtype dtype, int64_t batch, int64_t head, int64_t position) {
    const int64_t offset = batch * tensor.stride[0] + head * tensor.stride[1] + position * tensor.stride[2];
    return static_cast<const char*>(tensor.data) + offset * element_size(dtype);
}

}  // namespace qkv
