#pragma once

// Vectors of 8-bit weights; on top of vector_math.h, under its rules. A step is kStep weights in the order of columns.

#include "vector_math.h"

namespace qkv::QKV_ISA {

constexpr int64_t kAhead = 6144;  // bytes between what is read and what is prefetched

#if defined(__AVX512VNNI__)

constexpr int kStep = 64;

using Bytes = __m512i;
using Whole = __m512i;

QKV_INLINE __m256i load_half(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
QKV_INLINE __m128i load_quarter(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
QKV_INLINE Bytes per_half(int low, int high) {
    return _mm512_inserti64x4(_mm512_set1_epi16(static_cast<short>(low)), _mm256_set1_epi16(static_cast<short>(high)), 1);
}
QKV_INLINE Bytes low_bits(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }

QKV_INLINE Bytes load_digits(const int8_t* from) { return _mm512_loadu_si512(from); }
QKV_INLINE Bytes subtract_byte(Bytes x, int offset) {
    return _mm512_sub_epi8(x, _mm512_set1_epi8(static_cast<char>(offset)));
}
QKV_INLINE Bytes unite(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }

// Blocks of 32 columns; the next block begins `next` bytes later.
QKV_INLINE Bytes whole_bytes(const char* at, int64_t next) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_half(at)), load_half(at + next), 1);
}
// Half bytes: columns 0 to 15 are the low bits, 16 to 31 the high ones.
QKV_INLINE Bytes half_bytes(const char* at, int64_t next) {
    const Bytes first = _mm512_broadcast_i32x4(load_quarter(at));
    const Bytes both = _mm512_mask_broadcast_i32x4(first, 0xff00, load_quarter(at + next));
    const Bytes shifts = _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                                          0x0004000400040004, 0, 0);
    return low_bits(_mm512_srlv_epi16(both, shifts));
}
// 16 where the bit of a column is set.
QKV_INLINE Bytes fifth_bits(const char* at, int64_t next) {
    const uint64_t bits = read<uint32_t>(at) | uint64_t{read<uint32_t>(at + next)} << 32;
    return _mm512_maskz_set1_epi8(bits, 16);
}
// Step s of a block of 256 columns, in groups of 64 columns: the low bits of 32 bytes, then the high ones.
template <int s>
QKV_INLINE Bytes group_bytes(const char* at) {
    return low_bits(_mm512_srlv_epi16(_mm512_broadcast_i64x4(load_half(at + 32 * s)), per_half(0, 4)));
}
// Its fifth bits: bit i of every byte belongs to columns 32·i and after.
template <int s>
QKV_INLINE Bytes group_bits(const char* at) {
    const Bytes bits = per_half(0x0101 << (2 * s), 0x0101 << (2 * s + 1));
    return _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(_mm512_broadcast_i64x4(load_half(at)), bits), 16);
}
// Step s of a block of 256 columns with 6 bits: four in `low`, two in `high`.
template <int s>
QKV_INLINE Bytes six_bits(const char* low, const char* high) {
    const Bytes four = _mm512_loadu_si512(low + 64 * (s / 2));
    const Bytes two = _mm512_broadcast_i64x4(load_half(high + 32 * (s / 2)));
    const Bytes upper = s % 2 == 0 ? _mm512_sllv_epi16(two, per_half(4, 2)) : _mm512_srlv_epi16(two, per_half(0, 2));
    const Bytes lower = low_bits(s % 2 == 0 ? four : _mm512_srli_epi16(four, 4));
    return _mm512_ternarylogic_epi32(upper, _mm512_set1_epi8(0x30), lower, 0xea);  // (a & b) | c
}

// Sums of products of neighbours, each in a lane; lanes are in the order of columns.
QKV_INLINE Whole dot(Bytes weights, Bytes digits) {
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, digits);
}
QKV_INLINE Whole times(int factor, Bytes digits) { return dot(_mm512_set1_epi8(static_cast<char>(factor)), digits); }
QKV_INLINE Whole minus(Whole a, Whole b) { return _mm512_sub_epi32(a, b); }
QKV_INLINE Whole shift_up(Whole x, int bits) { return _mm512_slli_epi32(x, bits); }
QKV_INLINE Float to_float(Whole x) { return _mm512_cvtepi32_ps(x); }

// A number for every `granule` columns of a step, in the lanes of dot().
template <int granule>
QKV_INLINE Float spread(const float* from) {
    if constexpr (granule == 32) {
        const Float two = _mm512_castpd_ps(_mm512_set1_pd(read<double>(reinterpret_cast<const char*>(from))));
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), two);
    } else {
        const Float four = _mm512_broadcast_f32x4(_mm_loadu_ps(from));
        return _mm512_permutevar_ps(four, _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
    }
}

// The p-th kLanes of a step of signed bytes.
template <int p>
QKV_INLINE Float widen_part(Bytes x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(x, p)));
}

QKV_INLINE void widen_float16_pairs(const void* from, Float& even, Float& odd) {
    const __m512i pairs = _mm512_loadu_si512(from);
    even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
    odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
}

#elif defined(__AVX2__)

constexpr int kStep = 32;

using Bytes = __m256i;
using Whole = __m256i;

QKV_INLINE __m256i load_half(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
QKV_INLINE Bytes low_bits(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }

QKV_INLINE Bytes load_digits(const int8_t* from) { return load_half(from); }
QKV_INLINE Bytes subtract_byte(Bytes x, int offset) {
    return _mm256_sub_epi8(x, _mm256_set1_epi8(static_cast<char>(offset)));
}
QKV_INLINE Bytes unite(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }

QKV_INLINE Bytes whole_bytes(const char* at, int64_t) { return load_half(at); }
QKV_INLINE Bytes half_bytes(const char* at, int64_t) {
    const Bytes both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    return low_bits(_mm256_srlv_epi32(both, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)));
}
QKV_INLINE Bytes bit_of(Bytes x, Bytes bits) {
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(x, bits), bits), _mm256_set1_epi8(16));
}
QKV_INLINE Bytes fifth_bits(const char* at, int64_t) {
    const Bytes which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const Bytes spread = _mm256_shuffle_epi8(_mm256_set1_epi32(read<int32_t>(at)), which);
    return bit_of(spread, _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201)));
}
template <int s>
QKV_INLINE Bytes group_bytes(const char* at) {
    const Bytes both = load_half(at + 32 * (s / 2));
    return low_bits(s % 2 == 0 ? both : _mm256_srli_epi16(both, 4));
}
template <int s>
QKV_INLINE Bytes group_bits(const char* at) {
    return bit_of(load_half(at), _mm256_set1_epi8(static_cast<char>(1 << s)));
}
template <int s>
QKV_INLINE Bytes six_bits(const char* low, const char* high) {
    constexpr int quarter = s % 4;
    const Bytes four = load_half(low + 64 * (s / 4) + 32 * (quarter % 2)), two = load_half(high + 32 * (s / 4));
    const Bytes upper = quarter < 2 ? _mm256_slli_epi16(two, 4 - 2 * quarter) : _mm256_srli_epi16(two, 2 * quarter - 4);
    return unite(low_bits(quarter < 2 ? four : _mm256_srli_epi16(four, 4)),
                 _mm256_and_si256(upper, _mm256_set1_epi8(0x30)));
}

// Weights below 64: pairs do not overflow 16 bits.
QKV_INLINE Whole dot(Bytes weights, Bytes digits) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(weights, digits), _mm256_set1_epi16(1));
}
QKV_INLINE Whole times(int factor, Bytes digits) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(static_cast<char>(factor)), digits),
                             _mm256_set1_epi16(1));
}
QKV_INLINE Whole minus(Whole a, Whole b) { return _mm256_sub_epi32(a, b); }
QKV_INLINE Whole unite_parts(Whole high, Whole low, int bits) {
    return _mm256_add_epi32(_mm256_slli_epi32(high, bits), low);
}
QKV_INLINE Whole dot_signed(Bytes weights, Bytes digits) {
    return dot(_mm256_abs_epi8(weights), _mm256_sign_epi8(digits, weights));
}
QKV_INLINE Float to_float(Whole x) { return _mm256_cvtepi32_ps(x); }

template <int granule>
QKV_INLINE Float spread(const float* from) {
    if constexpr (granule == 32) return _mm256_broadcast_ss(from);
    return _mm256_set_m128(_mm_broadcast_ss(from + 1), _mm_broadcast_ss(from));
}

template <int p>
QKV_INLINE Float widen_part(Bytes x) {
    const __m128i half = _mm256_extracti128_si256(x, p / 2);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(p % 2 == 0 ? half : _mm_srli_si128(half, 8)));
}

QKV_INLINE void widen_float16_pairs(const void* from, Float& even, Float& odd) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i sorted = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(load_half(from), order), 0xd8);
    even = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
    odd = _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
}

#else

constexpr int kStep = 32;

// Plain loops, which compilers turn into vectors; inlined everywhere they would take minutes to compile.
#define QKV_OUTLINE inline __attribute__((noinline))

struct Bytes {
    uint8_t at[kStep];
};
using Whole = Int;

// Bytes from a function of the column.
template <typename Function>
QKV_INLINE Bytes bytes_of(Function function) {
    Bytes made;
    for (int i = 0; i < kStep; ++i) made.at[i] = static_cast<uint8_t>(function(i));
    return made;
}

QKV_INLINE Bytes load_digits(const int8_t* from) { return read<Bytes>(reinterpret_cast<const char*>(from)); }
QKV_OUTLINE Bytes subtract_byte(const Bytes& x, int offset) {
    return bytes_of([&](int i) { return x.at[i] - offset; });
}
QKV_OUTLINE Bytes unite(const Bytes& a, const Bytes& b) {
    return bytes_of([&](int i) { return a.at[i] | b.at[i]; });
}

QKV_INLINE Bytes whole_bytes(const char* at, int64_t) { return read<Bytes>(at); }
QKV_OUTLINE Bytes half_bytes(const char* at, int64_t) {
    Bytes made;
    for (int i = 0; i < 16; ++i) made.at[i] = static_cast<uint8_t>(at[i]) & 15;
    for (int i = 0; i < 16; ++i) made.at[16 + i] = static_cast<uint8_t>(at[i]) >> 4;
    return made;
}
QKV_OUTLINE Bytes fifth_bits(const char* at, int64_t) {
    const uint32_t bits = read<uint32_t>(at);
    return bytes_of([&](int i) { return (bits >> i & 1) << 4; });
}
template <int s>
QKV_OUTLINE Bytes group_bytes(const char* at) {
    const Bytes both = read<Bytes>(at + 32 * (s / 2));
    return bytes_of([&](int i) { return s % 2 == 0 ? both.at[i] & 15 : both.at[i] >> 4; });
}
template <int s>
QKV_OUTLINE Bytes group_bits(const char* at) {
    const Bytes bits = read<Bytes>(at);
    return bytes_of([&](int i) { return (bits.at[i] >> s & 1) << 4; });
}
template <int s>
QKV_OUTLINE Bytes six_bits(const char* low, const char* high) {
    const Bytes four = read<Bytes>(low + 64 * (s / 4) + 32 * (s % 2)), two = read<Bytes>(high + 32 * (s / 4));
    return bytes_of([&](int i) {
        return (s % 4 < 2 ? four.at[i] & 15 : four.at[i] >> 4) | (two.at[i] >> (2 * (s % 4)) & 3) << 4;
    });
}

// The first 16 columns are in lanes 0 and 1.
template <typename Weight>
QKV_INLINE Whole dot_of(const Bytes& digits, Weight weight) {
    int32_t sums[4] = {};
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 8; ++i) {
            const int at = 16 * half + i;
            sums[2 * half] += weight(at) * static_cast<int8_t>(digits.at[at]);
            sums[2 * half + 1] += weight(at + 8) * static_cast<int8_t>(digits.at[at + 8]);
        }
    }
    return Whole{sums[0], sums[1], sums[2], sums[3]};
}
QKV_OUTLINE Whole dot(const Bytes& weights, const Bytes& digits) {
    return dot_of(digits, [&](int i) { return int{weights.at[i]}; });
}
QKV_OUTLINE Whole times(int factor, const Bytes& digits) {
    return dot_of(digits, [=](int) { return factor; });
}
QKV_INLINE Whole minus(Whole a, Whole b) { return a - b; }
QKV_INLINE Whole unite_parts(Whole high, Whole low, int bits) { return high * (1 << bits) + low; }
QKV_OUTLINE Whole dot_signed(const Bytes& weights, const Bytes& digits) {
    return dot_of(digits, [&](int i) { return int{static_cast<int8_t>(weights.at[i])}; });
}
QKV_INLINE Float to_float(Whole x) { return __builtin_convertvector(x, Float); }

template <int granule>
QKV_INLINE Float spread(const float* from) {
    const float second = granule == 32 ? from[0] : from[1];
    return Float{from[0], from[0], second, second};
}

QKV_INLINE void widen_float16_pairs(const uint16_t* from, Float& even, Float& odd) {
    const uint16_t sorted[8] = {from[0], from[2], from[4], from[6], from[1], from[3], from[5], from[7]};
    even = widen_float16(sorted);
    odd = widen_float16(sorted + 4);
}

template <int p>
QKV_INLINE Float widen_part(const Bytes& x) {
    return widen_int8(x.at + kLanes * p);
}

#endif

constexpr int kParts = kStep / kLanes;

}  // namespace qkv::QKV_ISA
