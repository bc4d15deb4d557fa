// From scores to weights, along an aligned row of scores whose length is a multiple of 16.

#include "isa_kernels.h"
#include "vector_math.h"

namespace qkv::QKV_ISA {

namespace {

// Four chains of additions, assigned by the position in the page, so that the sum does not depend on where a row
// starts.
constexpr int kChains = 4;

// body(i, n) for every vector: it begins at i and belongs to chain n, a compile-time constant after unrolling.
template <typename Body>
QKV_INLINE void for_each_vector(int64_t count, Body body) {
    int64_t i = 0;
    for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
        QKV_UNROLL
        for (int n = 0; n < kChains; ++n) body(i + n * kLanes, n);
    }
    QKV_UNROLL
    for (int n = 0; n < kChains - 1; ++n) {
        if (i + n * kLanes < count) body(i + n * kLanes, n);
    }
}

}  // namespace

void scale_scores(float* scores, int64_t count, float scale, float softcap) {
    const Float factor = constant(softcap == 0.0f ? scale : scale / softcap), cap = constant(softcap);
    for (int64_t i = 0; i < count; i += kLanes) {
        Float score = load(scores + i);
        score = multiply(score, factor);
        if (softcap != 0.0f) score = multiply(hyperbolic_tangent(score), cap);
        store(scores + i, score);
    }
}

float largest_score(const float* scores, int64_t count) {
    Float most[kChains];
    QKV_UNROLL
    for (int i = 0; i < kChains; ++i) most[i] = constant(-__builtin_inff());
    // If the first operand of max is NaN, the result is the second.
    for_each_vector(count, [&](int64_t i, int n) { most[n] = max(load(scores + i), most[n]); });
    return max_lane(max(max(most[0], most[1]), max(most[2], most[3])));
}

// The difference is taken before scaling: it is exact if it is small, however large the scores are.
float exponentials(float* scores, int64_t count, float scale, float highest) {
    Float sum[kChains];
    QKV_UNROLL
    for (int i = 0; i < kChains; ++i) sum[i] = zero();
    const Float factor = constant(scale), top = constant(highest);
    for_each_vector(count, [&](int64_t i, int n) {
        const Float weight = exponential(multiply(subtract(load(scores + i), top), factor));
        sum[n] = add(sum[n], weight);
        store(scores + i, weight);
    });
    return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

// e^-|x| never overflows.
float sigmoids(float* scores, int64_t count, float offset) {
    Float sum[kChains];
    QKV_UNROLL
    for (int i = 0; i < kChains; ++i) sum[i] = zero();
    const Float more = constant(offset), one = constant(1.0f);
    for_each_vector(count, [&](int64_t i, int n) {
        const Float score = add(load(scores + i), more);
        const Float e = exponential(multiply(magnitude(score), constant(-1.0f)));
        const Float weight = divide(where_less(score, zero(), e, one), add(one, e));
        sum[n] = add(sum[n], weight);
        store(scores + i, weight);
    });
    return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

void merge_row(float* total, float kept, const float* part, float taken, int64_t count) {
    const Float keep = constant(kept), take = constant(taken);
    for (int64_t i = 0; i < count; i += kLanes) {
        store(total + i, add(multiply(load(total + i), keep), multiply(load(part + i), take)));
    }
}

void multiply_rows(float* rows, int64_t count, const float* factors) {
    for (int64_t i = 0; i < count; i += kLanes) store(rows + i, multiply(load(rows + i), load(factors + i)));
}

}  // namespace qkv::QKV_ISA
