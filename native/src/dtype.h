#pragma once

#include <cstdint>

namespace qkv {

// The numbers are part of the bindings: src/qkv/ops/kernels.py passes them.
enum class Dtype : int { float64 = 0, float32 = 1, float16 = 2, bfloat16 = 3, int8 = 4, int4 = 5 };

// Bytes of a number; int4 has two numbers in a byte (formats.h, stored_bytes).
constexpr int64_t element_size(Dtype dtype) {
    return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : dtype == Dtype::int8 || dtype == Dtype::int4 ? 1 : 2;
}

}  // namespace qkv
