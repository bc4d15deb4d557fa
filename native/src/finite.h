#pragma once

#include "kernel_table.h"

namespace qkv {

// Buffers below this many bytes are scanned by the caller's thread.
constexpr int64_t kFiniteParallelBytes = int64_t{1} << 21;

// Whether `count` contiguous elements are all finite; true for 0 elements.
bool all_finite(const KernelTable& kernels, const void* data, int64_t count, Dtype dtype, int threads);

}  // namespace qkv
