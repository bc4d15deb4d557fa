#pragma once

// What the functions of the extension are given: torch's tensors, read through DLPack's C interface without a copy.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "dlpack.h"
#include "src/cache.h"

namespace qkv::python {

using Four = std::array<int64_t, 4>;
using Numbers = std::optional<std::vector<int64_t>>;

// A tensor whose memory is borrowed while a function runs.
class Tensor : public nanobind::object {
public:
    NB_OBJECT_DEFAULT(Tensor, object, "torch.Tensor", is_tensor)

    static bool is_tensor(PyObject* object);
};
using MaybeTensor = std::optional<Tensor>;

// DLPack's functions for the class of a tensor.
const dlpack::ExchangeApi* interface_of(const Tensor& tensor);

// Throws ValueError for a tensor that is not in main memory, or has no memory (meta, fake).
dlpack::View view_of(const Tensor& tensor);

// The same with this number of dimensions.
dlpack::View view_of(const Tensor& tensor, int rank);

// The dtype of floating-point numbers.
Dtype dtype_of(const dlpack::View& view);

inline void* data_of(const dlpack::View& view) { return static_cast<char*>(view.data) + view.byte_offset; }

// The address of a contiguous tensor, nullptr for None.
template <typename T>
T* data_of(const MaybeTensor& tensor) {
    return tensor ? static_cast<T*>(data_of(view_of(*tensor))) : nullptr;
}

inline Tensor4 tensor_of(const dlpack::View& view) {
    const int64_t* s = view.strides;
    return {data_of(view), {s[0], s[1], s[2], s[3]}};
}

inline Four shape_of(const dlpack::View& view) {
    return {view.shape[0], view.shape[1], view.shape[2], view.shape[3]};
}

// Whether the axes, from the outer to the inner one, are those of a contiguous tensor.
bool in_order(const dlpack::View& view, const std::array<int, 4>& axes);

// False for contiguous (batch, heads, n, width), true for (batch, n, heads, width) in memory; ValueError for others.
bool heads_last(const dlpack::View& out);

inline const int64_t* data_of(const Numbers& numbers) { return numbers ? numbers->data() : nullptr; }

}  // namespace qkv::python
