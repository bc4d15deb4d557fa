// Elementwise work of a transformer on one row: norms, rotations, activations. Rows need not be aligned.

#include "isa_kernels.h"
#include "vector_math.h"

namespace qkv::QKV_ISA {

namespace {

constexpr int kChains = 4;

// Σ value(x[i]) over `count` elements, in kChains chains of vectors; the rest of the last vector counts as 0.
template <typename Value>
QKV_INLINE float sum_row(const float* x, int64_t count, Value value) {
    Float sums[kChains];
    QKV_UNROLL
    for (int n = 0; n < kChains; ++n) sums[n] = zero();
    int64_t i = 0;
    for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
        QKV_UNROLL
        for (int n = 0; n < kChains; ++n) sums[n] = add(sums[n], value(load_unaligned(x + i + n * kLanes)));
    }
    for (; i + kLanes <= count; i += kLanes) sums[0] = add(sums[0], value(load_unaligned(x + i)));
    float sum = sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
    for (; i < count; ++i) {
        alignas(kVectorBytes) float lane[kLanes];
        store(lane, value(constant(x[i])));
        sum += lane[0];
    }
    return sum;
}

QKV_INLINE Float sigmoid(Float x) {
    const Float e = exponential(subtract(zero(), magnitude(x)));
    return divide(where_less(x, zero(), e, constant(1.0f)), add(constant(1.0f), e));
}

template <Activation activation>
QKV_INLINE Float activate(Float x) {
    if constexpr (activation == Activation::silu) return multiply(x, sigmoid(x));
    if constexpr (activation == Activation::relu) return max(zero(), x);  // NaN stays NaN
    if constexpr (activation == Activation::gelu) {
        alignas(kVectorBytes) float lanes[kLanes];
        store(lanes, x);
        for (int n = 0; n < kLanes; ++n) lanes[n] *= 0.5f * (1.0f + __builtin_erff(lanes[n] * 0.70710678f));
        return load(lanes);
    }
    // x/2 · (1 + tanh u) = x · sigmoid(2u).
    const Float cube = multiply(multiply(x, x), x);
    const Float u = multiply(multiply_add(cube, constant(0.044715f), x), constant(2 * 0.79788456f));
    return multiply(x, sigmoid(u));
}

template <Activation activation>
void activate_with(float* x, const float* factors, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        Float y = activate<activation>(load_unaligned(x + i));
        if (factors != nullptr) y = multiply(y, load_unaligned(factors + i));
        store_unaligned(x + i, y);
    }
    for (; i < count; ++i) {
        alignas(kVectorBytes) float lanes[kLanes];
        store(lanes, activate<activation>(constant(x[i])));
        x[i] = factors == nullptr ? lanes[0] : lanes[0] * factors[i];
    }
}

}  // namespace

void normalize_row(const float* x, int64_t count, const float* weight, const float* bias, float eps, bool centred,
                   float* to) {
    float mean = 0.0f;
    if (centred) mean = sum_row(x, count, [](Float v) { return v; }) / static_cast<float>(count);
    const Float middle = constant(mean);
    const float squares = sum_row(x, count, [&](Float v) {
        const Float difference = subtract(v, middle);
        return multiply(difference, difference);
    });
    const float factor = 1.0f / __builtin_sqrtf(squares / static_cast<float>(count) + eps);
    for (int64_t i = 0; i < count; ++i) to[i] = (x[i] - mean) * factor * weight[i];
    if (bias == nullptr) return;
    for (int64_t i = 0; i < count; ++i) to[i] += bias[i];
}

void rotate_pairs(float* vector, int64_t pairs, const float* cosines, const float* sines, bool interleaved) {
    if (interleaved) {
        for (int64_t i = 0; i < pairs; ++i) {
            const float a = vector[2 * i], b = vector[2 * i + 1];
            vector[2 * i] = a * cosines[i] - b * sines[i];
            vector[2 * i + 1] = b * cosines[i] + a * sines[i];
        }
        return;
    }
    float* other = vector + pairs;
    for (int64_t i = 0; i < pairs; ++i) {
        const float a = vector[i], b = other[i];
        vector[i] = a * cosines[i] - b * sines[i];
        other[i] = b * cosines[i] + a * sines[i];
    }
}

void activate_row(float* x, const float* factors, int64_t count, Activation activation) {
    switch (activation) {
        case Activation::silu: return activate_with<Activation::silu>(x, factors, count);
        case Activation::gelu: return activate_with<Activation::gelu>(x, factors, count);
        case Activation::gelu_tanh: return activate_with<Activation::gelu_tanh>(x, factors, count);
        case Activation::relu: return activate_with<Activation::relu>(x, factors, count);
    }
}

}  // namespace qkv::QKV_ISA
