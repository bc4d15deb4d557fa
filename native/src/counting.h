#pragma once

// What kernels execute, counted as they run. The counters are the process's, and only ever grow.

#include <cstdint>

#include "kernel_table.h"

namespace qkv {

// Two flops for a multiplication and an addition, of numbers that fill up a vector or a tile as of all others.
struct Counts {
    int64_t score_flops;    // queries by keys: pages and tiles
    int64_t value_flops;    // weights by values: pages
    int64_t other_flops;    // products of the linear form: of matrices, and sums over their rows or columns
    int64_t feature_flops;  // monomials, powers and squares, made number by number
    int64_t exponentials;   // a hyperbolic tangent takes one
    int64_t tiles;          // pages and tiles of scores
};

// The same kernels, which count what they do before they do it. Throws std::invalid_argument for a table that is none
// of runnable_kernels().
const KernelTable& counting(const KernelTable& kernels);

// Since the process began.
Counts counts();

}  // namespace qkv
