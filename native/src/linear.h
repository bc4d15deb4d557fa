#pragma once

// Attention whose similarity is a product of features, sim(q, k) = φ(q)·φ(k), in time linear in the lengths:
//   S = Σ_j φ(k_j) v_jᵀ, z = Σ_j φ(k_j), V'_i = φ(q_i)·S / φ(q_i)·z
// over the attended keys. Queries are processed in chunks. Keys that all queries of a chunk attend to are in the state
// (S, z); keys that only some of them attend to are scored one by one.

#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "tensor.h"

namespace qkv {

// The feature map φ. Elementwise maps have as many features as the vectors are wide. `power` is (q·k + offset)^degree,
// degree 1 or more: a feature for each monomial, none of which is ever written to memory for more than a chunk of
// tokens.
struct FeatureRule {
    Map map;
    int64_t width;
    int degree;
    float offset;

    // The coordinates of monomials: those of a vector, and a 1 after them for the offset.
    int64_t coordinates() const { return map == Map::power && offset != 0.0f ? width + 1 : width; }
    int64_t count() const;
};

struct LinearProblem {
    FeatureRule rule;
    Dtype dtype;  // of query, key, value and out: float32, float16 or bfloat16
    int64_t batch, heads_q, heads_kv, len_q, len_k, value_width;
    Tensor4 query, key, value;
    const uint8_t* keep;  // (batch, len_k), 0 drops a key for all queries; or nullptr
    bool causal;
    int64_t offset;  // if causal: query i attends to key j if j <= i + offset
    bool normalize;
    void* out;  // (batch, heads_q, len_q, value_width), contiguous; nullptr: only update the state
    // (batch, heads_kv, linear_state_size): the state of earlier keys, to which these keys are added; aligned to 64
    // bytes. Or nullptr.
    float* state;
    // Score every key and only read the state: faster for few keys.
    bool direct;
};

// The floats of a state: count() rows of value slots, then z.
int64_t linear_value_slots(int64_t value_width);
int64_t linear_state_size(const FeatureRule& rule, int64_t value_width);

// Dropped keys may have any contents. A denominator of 0 gives a row of 0, with NaN where a numerator is not finite. The
// same bits for any number of threads, any other batch rows and any layout. Throws std::bad_alloc.
void linear(const KernelTable& kernels, const LinearProblem& problem, int threads);

}  // namespace qkv
