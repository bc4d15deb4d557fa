#pragma once

#include "kernel_table.h"
#include "tensor.h"

namespace qkv {

struct ArgmaxProblem {
    Dtype dtype;  // float32, float16 or bfloat16
    int64_t batch, heads_q, heads_kv, len_q, len_k, width;
    Tensor4 query, key;
    const int64_t* starts;  // (batch, len_q), contiguous; nullptr: from the first key
    const int64_t* stops;   // (batch, len_q), contiguous; nullptr: to the last key
    int64_t* result;        // (batch, heads_q, len_q), contiguous
};

constexpr int64_t kNoKey = -1;
constexpr int64_t kNan = -2;

// result[b, h, i] = argmax over j in [starts[b, i], stops[b, i]) of Σ_c query[b, h, i, c] · key[b, g, j, c], with
// g = h / (heads_q / heads_kv); the lowest j on ties; kNoKey if no score in range is above -inf; kNan if any score
// in range is NaN. Keys out of range are never read. Extra memory: a few tiles for each thread and, if many queries
// share the keys, a float32 copy of kPackedBytes of keys, or of one head's keys if these are more. Throws
// std::bad_alloc.
void argmax_scores(const KernelTable& kernels, const ArgmaxProblem& problem, int threads);

// Keys are packed for as many (batch, head) pairs at a time as fit into this, and for at least one.
constexpr int64_t kPackedBytes = int64_t{64} << 20;

}  // namespace qkv
