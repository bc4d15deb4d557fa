#pragma once

// Counts the work of kernels as they run. The counters belong to the process and only grow.

#include <cstdint>

#include "kernel_table.h"

namespace qkv {

// A multiplication and an addition are two flops; padding of vectors and tiles counts.
struct Counts {
    int64_t score_flops;    // queries by keys: pages and tiles
    int64_t value_flops;    // weights by values: pages
    int64_t other_flops;    // products of the linear kernel: of matrices, and sums over their rows or columns
    int64_t feature_flops;  // monomials, powers and squares
    int64_t exponentials;   // a hyperbolic tangent counts as one
    int64_t tiles;          // pages and tiles of scores
};

// The same kernels with counting. Throws std::invalid_argument for a table that is not one of runnable_kernels().
const KernelTable& counting(const KernelTable& kernels);

// Since the start of the process.
Counts counts();

}  // namespace qkv
