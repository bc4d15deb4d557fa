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
// g = h / (heads_q / heads_kv); the lowest j on ties; kNoKey when there is none with a score above -inf; kNan
// when any score in range is NaN. Keys out of range are never looked at. Extra memory: a float32 copy of
// kPackedBytes of keys, or of one head's keys where these are more, and a few tiles for each thread; the copy only
// where many queries share it. Throws std::bad_alloc.
void argmax_scores(const KernelTable& kernels, const ArgmaxProblem& problem, int threads);

// Keys are packed for as many (batch, head) at a time as fit here, and for one at least.
constexpr int64_t kPackedBytes = int64_t{64} << 20;

}  // namespace qkv
