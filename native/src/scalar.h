#pragma once

// Conversion of single numbers between float32 and the formats of tensors and caches. Always inlined, so that files
// compiled for different instruction sets share no code.

#include <cstdint>
#include <cstring>

#include "dtype.h"

namespace qkv {

#define QKV_ALWAYS inline __attribute__((always_inline))

// Loads use memcpy: a tensor over foreign memory may start at any byte.
template <typename Word>
QKV_ALWAYS Word read(const char* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

QKV_ALWAYS float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

QKV_ALWAYS uint32_t to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

QKV_ALWAYS float widen_one_bfloat16(uint16_t half) { return from_bits(uint32_t{half} << 16); }

QKV_ALWAYS float widen_one_float16(uint16_t half) {
    const uint32_t sign = uint32_t{half & 0x8000u} << 16;
    const uint32_t exponent = (half >> 10) & 0x1f;
    const uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign == 0 ? magnitude : -magnitude;
}

QKV_ALWAYS float widen(const char* from, Dtype dtype) {
    if (dtype == Dtype::float32) return read<float>(from);
    if (dtype == Dtype::bfloat16) return widen_one_bfloat16(read<uint16_t>(from));
    if (dtype == Dtype::int8) return static_cast<float>(static_cast<int8_t>(*from));
    return widen_one_float16(read<uint16_t>(from));
}

// To the nearest, ties to even; NaN stays NaN.
QKV_ALWAYS uint16_t narrow_to_bfloat16(float x) {
    const uint32_t bits = to_bits(x);
    if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

QKV_ALWAYS uint16_t narrow_to_float16(float x) {
    const uint32_t bits = to_bits(x);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above round to infinity
    if (magnitude < 0x38800000) {
        // Below the smallest normal number: adding 1/2 leaves exactly the bits of a subnormal.
        const float shifted = from_bits(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (to_bits(shifted) - to_bits(0.5f)));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

// float32 rounded to the nearest of another format, for float32, float16 and bfloat16.
QKV_ALWAYS void narrow_row(const float* from, int64_t count, Dtype dtype, char* to) {
    if (dtype == Dtype::float32) {
        std::memcpy(to, from, count * sizeof(float));
        return;
    }
    for (int64_t c = 0; c < count; ++c) {
        const uint16_t half = dtype == Dtype::bfloat16 ? narrow_to_bfloat16(from[c]) : narrow_to_float16(from[c]);
        std::memcpy(to + 2 * c, &half, sizeof half);
    }
}

}  // namespace qkv
