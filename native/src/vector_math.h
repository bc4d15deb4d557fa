#pragma once

// Arithmetic, storage formats and exponentials on vectors; on top of vector.h, under its rules.

#include "scalar.h"
#include "vector.h"

namespace qkv::QKV_ISA {

#if defined(__AVX512F__)

using Int = __m512i;

QKV_INLINE Float constant(float x) { return _mm512_set1_ps(x); }
QKV_INLINE Float load_unaligned(const void* from) { return _mm512_loadu_ps(from); }
QKV_INLINE Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
QKV_INLINE Float subtract(Float a, Float b) { return _mm512_sub_ps(a, b); }
QKV_INLINE Float multiply(Float a, Float b) { return _mm512_mul_ps(a, b); }
QKV_INLINE Float divide(Float a, Float b) { return _mm512_div_ps(a, b); }
QKV_INLINE Float magnitude(Float x) { return _mm512_abs_ps(x); }
QKV_INLINE Float with_sign_of(Float x, Float sign) {
    return _mm512_or_ps(x, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
QKV_INLINE Float where_less(Float a, Float b, Float then, Float otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
}
// x · 2^n for integer n from -126 to 127; `rounded` is n + kToWhole.
QKV_INLINE Float times_power_of_two(Float x, Float n, Float) { return _mm512_scalef_ps(x, n); }

// Combines lane i with lane i + half, halving until one lane is left.
QKV_INLINE float sum_lanes(Float x) { return _mm512_reduce_add_ps(x); }

QKV_INLINE Float widen_bfloat16(const void* from) {
    const Int halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}
QKV_INLINE Float widen_int8(const void* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from))));
}
QKV_INLINE Int load_words(const void* from) { return _mm512_loadu_si512(from); }
QKV_INLINE Int load_bytes(const void* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
// n - 15/2 for the four bits n of each word from bit `at` on.
QKV_INLINE Float widen_int4(Int words, int at) {
    const Float numbers = _mm512_setr_ps(-7.5f, -6.5f, -5.5f, -4.5f, -3.5f, -2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f,
                                         4.5f, 5.5f, 6.5f, 7.5f);
    return _mm512_permutexvar_ps(at == 0 ? words : _mm512_srli_epi32(words, at), numbers);
}
QKV_INLINE void widen_bfloat16_pairs(const void* from, Float& even, Float& odd) {
    const Int pairs = _mm512_loadu_si512(from);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

#elif defined(__AVX2__)

using Int = __m256i;

QKV_INLINE Float constant(float x) { return _mm256_set1_ps(x); }
QKV_INLINE Float load_unaligned(const void* from) { return _mm256_loadu_ps(static_cast<const float*>(from)); }
QKV_INLINE Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
QKV_INLINE Float subtract(Float a, Float b) { return _mm256_sub_ps(a, b); }
QKV_INLINE Float multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
QKV_INLINE Float divide(Float a, Float b) { return _mm256_div_ps(a, b); }
QKV_INLINE Float magnitude(Float x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
QKV_INLINE Float with_sign_of(Float x, Float sign) {
    return _mm256_or_ps(x, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
QKV_INLINE Float where_less(Float a, Float b, Float then, Float otherwise) {
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
QKV_INLINE Float times_power_of_two(Float x, Float, Float rounded) {
    const Int n = _mm256_sub_epi32(_mm256_castps_si256(rounded), _mm256_set1_epi32(0x4b400000 - 127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(n, 23)));
}

QKV_INLINE float sum_lanes(Float x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

QKV_INLINE Float widen_bfloat16(const void* from) {
    const Int halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}
QKV_INLINE Float widen_int8(const void* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
}
QKV_INLINE Int load_words(const void* from) { return _mm256_loadu_si256(static_cast<const Int*>(from)); }
QKV_INLINE Int load_bytes(const void* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
}
// n - 15/2: the bits are those of n + 2^22, where the last bit is worth 1/2.
QKV_INLINE Float widen_int4(Int words, int at) {
    const Int doubled = at == 0 ? _mm256_slli_epi32(words, 1) : _mm256_srli_epi32(words, at - 1);
    const Int number = _mm256_or_si256(_mm256_and_si256(doubled, _mm256_set1_epi32(30)), _mm256_set1_epi32(0x4a800000));
    return _mm256_sub_ps(_mm256_castsi256_ps(number), _mm256_set1_ps(0x1p22f + 7.5f));
}
QKV_INLINE void widen_bfloat16_pairs(const void* from, Float& even, Float& odd) {
    const Int pairs = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

#else

typedef int32_t Int __attribute__((vector_size(16)));
typedef uint16_t FourHalves __attribute__((vector_size(8)));
typedef int8_t FourBytes __attribute__((vector_size(4)));

QKV_INLINE Float constant(float x) { return Float{x, x, x, x}; }
QKV_INLINE Float load_unaligned(const void* from) { return read<Float>(static_cast<const char*>(from)); }
QKV_INLINE Float add(Float a, Float b) { return a + b; }
QKV_INLINE Float subtract(Float a, Float b) { return a - b; }
QKV_INLINE Float multiply(Float a, Float b) { return a * b; }
QKV_INLINE Float divide(Float a, Float b) { return a / b; }
QKV_INLINE Float magnitude(Float x) {
    return reinterpret_cast<Float>(reinterpret_cast<Int>(x) & 0x7fffffff);
}
QKV_INLINE Float with_sign_of(Float x, Float sign) {
    return reinterpret_cast<Float>(reinterpret_cast<Int>(x) | (reinterpret_cast<Int>(sign) & INT32_MIN));
}
QKV_INLINE Float where_less(Float a, Float b, Float then, Float otherwise) { return a < b ? then : otherwise; }
QKV_INLINE Float times_power_of_two(Float x, Float, Float rounded) {
    return x * reinterpret_cast<Float>((reinterpret_cast<Int>(rounded) - (0x4b400000 - 127)) << 23);
}

QKV_INLINE float sum_lanes(Float x) { return (x[0] + x[2]) + (x[1] + x[3]); }

QKV_INLINE Float widen_bfloat16(const void* from) {
    return reinterpret_cast<Float>(__builtin_convertvector(read<FourHalves>(static_cast<const char*>(from)), Int)
                                   << 16);
}
QKV_INLINE Float widen_int8(const void* from) {
    return __builtin_convertvector(
        __builtin_convertvector(read<FourBytes>(static_cast<const char*>(from)), Int), Float);
}
QKV_INLINE Float widen_float16(const void* from) {
    const Int half = __builtin_convertvector(read<FourHalves>(static_cast<const char*>(from)), Int);
    const Int size = half & 0x7fff;
    const Int finite = reinterpret_cast<Int>(reinterpret_cast<Float>(size << 13) * 0x1p112f);
    const Int odd = size << 13 | 0x7f800000;
    return reinterpret_cast<Float>((size < 0x7c00 ? finite : odd) | (half & 0x8000) << 16);
}
QKV_INLINE Int load_words(const void* from) { return read<Int>(static_cast<const char*>(from)); }
QKV_INLINE Int load_bytes(const void* from) {
    return __builtin_convertvector(read<FourBytes>(static_cast<const char*>(from)), Int);
}
// n - 15/2: the bits are those of n + 2^22, where the last bit is worth 1/2.
QKV_INLINE Float widen_int4(Int words, int at) {
    const Int doubled = at == 0 ? words << 1 : words >> (at - 1);
    return reinterpret_cast<Float>((doubled & 30) | 0x4a800000) - (0x1p22f + 7.5f);
}
QKV_INLINE void widen_bfloat16_pairs(const void* from, Float& even, Float& odd) {
    const Int pairs = read<Int>(static_cast<const char*>(from));
    even = reinterpret_cast<Float>(pairs << 16);
    odd = reinterpret_cast<Float>(pairs & static_cast<int32_t>(0xffff0000));
}

#endif

// Adding it leaves the nearest integer in the low bits, for magnitudes below 2^22.
constexpr float kToWhole = 0x1.8p23f;

// e^x for x <= 0, within 2 ulp (native/tests/test_exponential.cpp); 0 for subnormal results, which cost a
// hundred times as much. NaN stays NaN.
// x = n·ln 2 + r with |r| <= ln 2 / 2, then e^r by a polynomial. The first part of ln 2 has few bits: n times it is
// exact.
QKV_INLINE Float exponential(Float x) {
    const Float least = constant(-87.3365f);
    const Float within = max(least, x);
    const Float rounded = multiply_add(within, constant(0x1.715476p0f), constant(kToWhole));
    const Float n = subtract(rounded, constant(kToWhole));
    Float r = multiply_add(n, constant(-0.693359375f), within);
    r = multiply_add(n, constant(2.12194440e-4f), r);
    Float q = constant(0.0013814467f);
    q = multiply_add(q, r, constant(0.008368781f));
    q = multiply_add(q, r, constant(0.041668393f));
    q = multiply_add(q, r, constant(0.1666652f));
    q = multiply_add(q, r, constant(0.49999994f));
    const Float power = add(multiply_add(multiply(r, r), q, r), constant(1.0f));
    return where_less(x, least, zero(), times_power_of_two(power, n, rounded));
}

// Within 8 ulp; NaN stays NaN. Near 0 a series, elsewhere (1 - e^-2|x|) / (1 + e^-2|x|), which would lose digits there.
QKV_INLINE Float hyperbolic_tangent(Float x) {
    const Float size = magnitude(x);
    const Float e = exponential(multiply(size, constant(-2.0f)));
    const Float far = divide(subtract(constant(1.0f), e), add(constant(1.0f), e));
    const Float square = multiply(x, x);
    Float q = constant(-0.008863235529902197f);
    q = multiply_add(q, square, constant(0.021869488536155203f));
    q = multiply_add(q, square, constant(-0.05396825396825397f));
    q = multiply_add(q, square, constant(0.13333333333333333f));
    q = multiply_add(q, square, constant(-0.3333333333333333f));
    const Float near = multiply_add(multiply(square, size), q, size);
    return with_sign_of(where_less(size, constant(0.3f), near, far), x);
}

// A vector of stored numbers, of any format but without its scales.
template <Dtype storage>
QKV_INLINE Float widen_vector(const char* from) {
    if constexpr (storage == Dtype::float32) return load_unaligned(from);
    if constexpr (storage == Dtype::float16) return widen_float16(from);
    if constexpr (storage == Dtype::bfloat16) return widen_bfloat16(from);
    if constexpr (storage == Dtype::int8) return widen_int8(from);
}

// The scales of as many tokens.
template <Dtype storage>
QKV_INLINE Float widen_scales(const char* from) {
    if constexpr (storage == Dtype::int4) return widen_bfloat16(from);
    return load_unaligned(from);
}

}  // namespace qkv::QKV_ISA
