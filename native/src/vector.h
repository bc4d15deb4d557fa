#pragma once

// The vector operations of the kernels. Included only by files that are compiled once per instruction set, with QKV_ISA
// as the namespace. Those files use nothing from the standard library that emits code: the linker would keep one copy
// for all of them, perhaps one with instructions that this CPU does not have.

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define QKV_INLINE inline __attribute__((always_inline))
#ifdef __clang__
#define QKV_UNROLL _Pragma("unroll")
#else
#define QKV_UNROLL _Pragma("GCC unroll 32")
#endif

namespace qkv::QKV_ISA {

#if defined(__AVX512F__)

constexpr int kVectorBytes = 64;
constexpr int kTileRows = 8;
constexpr int kTileVectors = 3;  // 32 registers: 24 sums, 3 keys, a query
constexpr int kMaskChains = 4;   // a masked comparison waits for the one before it

using Float = __m512;
using Mask = __mmask16;

QKV_INLINE Float zero() { return _mm512_setzero_ps(); }
QKV_INLINE Float broadcast(const float* from) { return _mm512_set1_ps(*from); }
QKV_INLINE Float load(const float* from) { return _mm512_load_ps(from); }
QKV_INLINE void store(float* to, Float x) { _mm512_store_ps(to, x); }
QKV_INLINE void store_unaligned(float* to, Float x) { _mm512_storeu_ps(to, x); }
// The first `count` lanes; the others are 0, and are not read or written.
QKV_INLINE Float load_some(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<Mask>((1u << count) - 1), from);
}
QKV_INLINE void store_some(float* to, Float x, int64_t count) {
    _mm512_mask_storeu_ps(to, static_cast<Mask>((1u << count) - 1), x);
}
QKV_INLINE Float multiply_add(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
QKV_INLINE Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
QKV_INLINE float max_lane(Float x) { return _mm512_reduce_max_ps(x); }
QKV_INLINE Mask every_lane() { return 0xffff; }
QKV_INLINE Mask and_less_equal(Mask also, Float a, Float b) {
    return _mm512_mask_cmp_ps_mask(also, a, b, _CMP_LE_OQ);
}
QKV_INLINE Mask both(Mask a, Mask b) { return a & b; }
QKV_INLINE bool all(Mask m) { return m == 0xffff; }
QKV_INLINE uint32_t equal_bits(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
QKV_INLINE uint32_t nan_bits(Float x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
QKV_INLINE Float widen_float16(const void* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
}

#elif defined(__AVX2__)

constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;  // 16 registers: 12 sums, 2 keys, a query
constexpr int kMaskChains = 1;

using Float = __m256;
using Mask = __m256;

QKV_INLINE Float zero() { return _mm256_setzero_ps(); }
QKV_INLINE Float broadcast(const float* from) { return _mm256_broadcast_ss(from); }
QKV_INLINE Float load(const float* from) { return _mm256_load_ps(from); }
QKV_INLINE void store(float* to, Float x) { _mm256_store_ps(to, x); }
QKV_INLINE void store_unaligned(float* to, Float x) { _mm256_storeu_ps(to, x); }
QKV_INLINE __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
QKV_INLINE Float load_some(const float* from, int64_t count) { return _mm256_maskload_ps(from, first_lanes(count)); }
QKV_INLINE void store_some(float* to, Float x, int64_t count) { _mm256_maskstore_ps(to, first_lanes(count), x); }
QKV_INLINE Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
QKV_INLINE Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
QKV_INLINE float max_lane(Float x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
QKV_INLINE Mask every_lane() { return _mm256_castsi256_ps(_mm256_set1_epi32(-1)); }
QKV_INLINE Mask and_less_equal(Mask also, Float a, Float b) {
    return _mm256_and_ps(also, _mm256_cmp_ps(a, b, _CMP_LE_OQ));
}
QKV_INLINE Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
QKV_INLINE bool all(Mask m) { return _mm256_movemask_ps(m) == 0xff; }
QKV_INLINE uint32_t equal_bits(Float a, Float b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
QKV_INLINE uint32_t nan_bits(Float x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
QKV_INLINE Float widen_float16(const void* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}

#else

constexpr int kVectorBytes = 16;
constexpr int kTileRows = 6;
#if defined(__aarch64__)
constexpr int kTileVectors = 4;  // 32 registers: 24 sums, 4 keys, a query
#else
constexpr int kTileVectors = 2;  // 16 registers: 12 sums, 2 keys, a query, a product
#endif
constexpr int kMaskChains = 1;

typedef float Float __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(16)));

QKV_INLINE Float zero() { return Float{}; }
QKV_INLINE Float broadcast(const float* from) { return Float{*from, *from, *from, *from}; }
QKV_INLINE Float load(const float* from) { return *reinterpret_cast<const Float*>(from); }
QKV_INLINE void store(float* to, Float x) { *reinterpret_cast<Float*>(to) = x; }
QKV_INLINE void store_unaligned(float* to, Float x) { std::memcpy(to, &x, sizeof x); }
QKV_INLINE Float load_some(const float* from, int64_t count) {
    Float x = zero();
    for (int64_t n = 0; n < count; ++n) x[n] = from[n];
    return x;
}
QKV_INLINE void store_some(float* to, Float x, int64_t count) {
    for (int64_t n = 0; n < count; ++n) to[n] = x[n];
}
QKV_INLINE Float multiply_add(Float a, Float b, Float c) {
#if defined(__aarch64__)
    return reinterpret_cast<Float>(vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a),
                                             reinterpret_cast<float32x4_t>(b)));
#else
    return a * b + c;
#endif
}
QKV_INLINE Float max(Float a, Float b) { return a > b ? a : b; }
QKV_INLINE float max_lane(Float x) {
    const float low = x[0] > x[1] ? x[0] : x[1];
    const float high = x[2] > x[3] ? x[2] : x[3];
    return low > high ? low : high;
}
QKV_INLINE Mask every_lane() { return Mask{-1, -1, -1, -1}; }
QKV_INLINE Mask and_less_equal(Mask also, Float a, Float b) { return also & (a <= b); }
QKV_INLINE Mask both(Mask a, Mask b) { return a & b; }
QKV_INLINE bool all(Mask m) { return (m[0] & m[1] & m[2] & m[3]) != 0; }
QKV_INLINE uint32_t bits(Mask m) { return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8); }
QKV_INLINE uint32_t equal_bits(Float a, Float b) { return bits(a == b); }
QKV_INLINE uint32_t nan_bits(Float x) { return bits(x != x); }

#endif

constexpr int kLanes = kVectorBytes / 4;
constexpr int kTileKeys = kTileVectors * kLanes;

}  // namespace qkv::QKV_ISA
