#pragma once

// Attention with a state S (width × value_width) for each key/value head, which changes with every token:
//   S' = diag(e^g) S, S = S' + k uᵀ, o = Sᵀ q, with u = v (linear) or u = β (v - S'ᵀ k) (delta rule).
// Prompts are processed in chunks: a chunk's u solve a lower triangular system, from which outputs and the next state
// follow by products of matrices. Factors of gates are products of e^g, never quotients, so that a gate may be -inf and
// nothing overflows; such a gate forgets even a NaN. A chunk with NaN or infinities is processed token by token: they
// reach no earlier token.

#include <cstdint>

#include "kernel_table.h"
#include "tensor.h"

namespace qkv {

struct StateProblem {
    Dtype dtype;  // of query, key, value and out: float32, float16 or bfloat16
    int64_t batch, heads_q, heads_kv, length, width, value_width;
    Tensor4 query, key, value;
    // (batch, heads_kv, length, gate_width), g <= 0 or -inf; gate_width is 0 (none), 1 or `width`.
    int64_t gate_width;
    Dtype gate_dtype;
    Tensor4 gate;
    bool delta;
    // β of the delta rule, (batch, heads_kv, length, 1).
    Dtype beta_dtype;
    Tensor4 beta;
    const uint8_t* keep;    // (batch, length), 0: the token changes nothing, its output is 0; or nullptr
    const uint8_t* resets;  // (batch, length), not 0: the state is 0 before this token; or nullptr
    float* state;           // (batch, heads_kv, width, value_width), contiguous, updated in place; or nullptr, which is 0
    void* out;              // (batch, heads_q, length, value_width) with these strides; the last is 1
    int64_t out_stride[3];
};

// Tokens in a chunk, with gates for a head and with gates for a channel.
constexpr int64_t kStateChunk = 64, kChannelChunk = kGroupTokens;

// Tokens that are dropped may have any contents. The same bits for any number of threads, any other batch rows and any
// layout. Throws std::bad_alloc.
void state_attention(const KernelTable& kernels, const StateProblem& problem, int threads);

}  // namespace qkv
