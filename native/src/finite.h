#pragma once

#include "kernel_table.h"

namespace qkv {

// Buffers below this many bytes are scanned by the caller's thread.
constexpr int64_t kFiniteParallelBytes = int64_t{1} << 21;

// No NaN and no infinity among `count` contiguous elements; true when there are none.
bool all_finite(const KernelTable& kernels, const void* data, int64_t count, Dtype dtype, int threads);

}  // namespace qkv
