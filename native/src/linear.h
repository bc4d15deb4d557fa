#pragma once

// Attention whose similarity is a product of features, sim(q, k) = φ(q)·φ(k), in time linear in the lengths:
//   S = Σ_j φ(k_j) v_jᵀ, z = Σ_j φ(k_j), V'_i = φ(q_i)·S / φ(q_i)·z
// over the keys that a query sees. Queries go in chunks. What all of a chunk see is in the state (S, z); the keys that
// only some of it see are scored one by one.

#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "tensor.h"

namespace qkv {

// What φ is. Elementwise maps have as many features as the vectors are wide. `power` is (q·k + offset)^degree, degree
// 1 or more: a feature for each monomial, none of which is ever written to memory for more than a chunk of tokens.
struct FeatureRule {
    Map map;
    int64_t width;
    int degree;
    float offset;

    // The coordinates that monomials are made of: those of a vector, and a 1 behind them that stands for the offset.
    int64_t coordinates() const { return map == Map::power && offset != 0.0f ? width + 1 : width; }
    int64_t count() const;
};

struct LinearProblem {
    FeatureRule rule;
    Dtype dtype;  // of query, key, value and out: float32, float16 or bfloat16
    int64_t batch, heads_q, heads_kv, len_q, len_k, value_width;
    Tensor4 query, key, value;
    const uint8_t* keep;  // (batch, len_k), 0 where a key counts for nobody; or nullptr
    bool causal;
    int64_t offset;  // query i sees key j when j <= i + offset; only where causal
    bool normalize;
    void* out;  // (batch, heads_q, len_q, value_width), contiguous; nullptr: only the state is wanted
    // (batch, heads_kv, floats_of_state): what came before these keys, and on return these keys as well; aligned to 64 bytes. Or
    // nullptr.
    float* state;
    // Score every key, and only read the state: for few keys, which are not worth adding to it yet.
    bool direct;
};

// A state: count() rows of value slots, then z.
int64_t linear_value_slots(int64_t value_width);
int64_t linear_state_floats(const FeatureRule& rule, int64_t value_width);

// Keys that do not count may hold anything. A sum of 0 below the fraction gives a row of 0. The same bits for any
// number of threads, any batch companions and any layout. Throws std::bad_alloc.
void linear(const KernelTable& kernels, const LinearProblem& problem, int threads);

}  // namespace qkv
