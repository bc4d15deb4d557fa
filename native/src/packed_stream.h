#pragma once

// AVX-512: rows of a quantised matrix are read once, in order; the scales of 16 granules are in a register.

#include "packed_formats.h"

namespace qkv::QKV_ISA {

// In a scale vector, the lanes that belong to step s.
template <int granule>
struct StepLanes {
    alignas(64) int32_t at[8][16];
    constexpr StepLanes() : at() {
        constexpr int steps = granule == 16 ? 4 : 8;
        for (int s = 0; s < steps; ++s) {
            for (int lane = 0; lane < 16; ++lane) at[s][lane] = (s * kStep + 4 * lane) / granule;
        }
    }
};
template <int granule>
constexpr StepLanes<granule> kStepLanes = {};

// Half-precision numbers (or pairs) at the beginning of 16 blocks: every window of 64 bytes has some, and no two of them
// are at the same place of their window. One masked load for each window collects them.
template <typename B>
struct Windows {
    static constexpr int element = B::minimum ? 4 : 2;
    static constexpr int count = (15 * B::bytes + element + 63) / 64;
    static constexpr bool apart = (B::bytes / element) % 2 == 1;

    static constexpr uint32_t mask(int window, int64_t blocks) {
        uint32_t bits = 0;
        for (int b = 0; b < 16 && b < blocks; ++b) {
            if (b * B::bytes / 64 == window) bits |= uint32_t{1} << (b * B::bytes % 64 / element);
        }
        return bits;
    }

    uint32_t masks[count];
    explicit Windows(int64_t blocks) {
        for (int w = 0; w < count; ++w) masks[w] = mask(w, blocks);
    }
};

template <typename B>
struct WindowOrder {
    alignas(64) uint16_t words[32];
    alignas(64) int32_t pairs[16];
    constexpr WindowOrder() : words(), pairs() {
        for (int b = 0; b < 16; ++b) words[b] = pairs[b] = b * B::bytes % 64 / (B::minimum ? 4 : 2);
    }
};
template <typename B>
constexpr WindowOrder<B> kWindowOrder = {};

// The scales of 16 blocks of 32 columns, or of the first ones that `windows` has; 0 for the others.
template <typename B>
QKV_INLINE void load_scales(const char* at, const Windows<B>& windows, int64_t blocks, Float& scale, Float& least) {
    if constexpr (B::minimum) {
        __m512i pairs;
        if constexpr (Windows<B>::apart) {
            pairs = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(windows.masks[0]), at);
            QKV_UNROLL
            for (int w = 1; w < Windows<B>::count; ++w) {
                pairs = _mm512_mask_loadu_epi32(pairs, static_cast<__mmask16>(windows.masks[w]), at + 64 * w);
            }
            const __m512i order = _mm512_load_si512(kWindowOrder<B>.pairs);
            pairs = _mm512_maskz_permutexvar_epi32(static_cast<__mmask16>((1 << blocks) - 1), order, pairs);
        } else {
            const __m512i places = _mm512_mullo_epi32(
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(B::bytes));
            pairs = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), static_cast<__mmask16>((1 << blocks) - 1),
                                                places, at, 1);
        }
        scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
        least = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
    } else {
        __m512i words = _mm512_maskz_loadu_epi16(windows.masks[0], at);
        QKV_UNROLL
        for (int w = 1; w < Windows<B>::count; ++w) {
            words = _mm512_mask_loadu_epi16(words, windows.masks[w], at + 64 * w);
        }
        const __m512i order = _mm512_load_si512(kWindowOrder<B>.words);
        words = _mm512_maskz_permutexvar_epi16((1u << blocks) - 1, order, words);
        scale = _mm512_cvtph_ps(_mm512_castsi512_si256(words));
        least = zero();
    }
}

// The scales of a block of 256 columns: 16, or 8 and then 8 minimums with the opposite sign.
template <typename B>
QKV_INLINE Float load_block_scales(const char* at) {
    if constexpr (B::minimum) {
        uint64_t scale, least;
        B::unpack_scales(at, scale, least);
        const __m512i numbers = _mm512_cvtepu8_epi32(_mm_set_epi64x(static_cast<int64_t>(least), static_cast<int64_t>(scale)));
        const Float factors = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(read<int32_t>(at))));
        const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        return multiply(_mm512_cvtepi32_ps(numbers), _mm512_permutexvar_ps(halves, factors));
    } else {
        return multiply(widen_int8(at + 192), constant(widen_half(at + 208)));
    }
}

// What a job computes once from the rows of x, in its scratch: `start` begins the integer sums of a step so that the
// offset of the weights is gone; `factors` are what scale vectors of a block of 256 columns are multiplied by.
template <typename B>
struct StreamRows {
    int32_t* start;  // [row][columns / 4]
    float* factors;  // [row][columns / 256][16]
    int64_t slots;
};

template <typename B>
constexpr int kLess = B::is_signed ? 128 : B::offset;

template <typename B>
QKV_INLINE StreamRows<B> prepare_stream(const PackedRows& rows, float* scratch) {
    const StreamRows<B> stream = {reinterpret_cast<int32_t*>(scratch), scratch + rows.count * 8 * rows.slots, rows.slots};
    for (int64_t x = 0; x < rows.count; ++x) {
        if constexpr (kLess<B> != 0) {
            for (int64_t c = 0; c < rows.columns; c += kStep) {
                const int64_t at = 32 * x * rows.slots + c;
                const Whole high = shift_up(times(kLess<B>, load_digits(rows.digits + at)), kFineBits);
                const Whole low = times(kLess<B>, load_digits(rows.fine + at));
                _mm512_store_si512(stream.start + at / 4, minus(minus(_mm512_setzero_si512(), high), low));
            }
        }
        if constexpr (B::columns == 256 && B::minimum) {
            for (int64_t b = 0; b < rows.columns / 32; ++b) {
                float* to = stream.factors + (2 * x * rows.slots) + b / 8 * 16 + b % 8;
                to[0] = rows.scales[x * rows.slots + b];
                to[8] = -rows.sums[x * rows.slots + b];
            }
        }
    }
    return stream;
}

// A step of a row: sums[x] += dot · scales.
template <typename B, int s, int X>
QKV_INLINE void stream_step(const char* at, int64_t next, int64_t column, __m512i lanes, const PackedRows& rows,
                            const StreamRows<B>& stream, const Float (&scale)[X], Float (&sums)[X]) {
    Bytes weights = B::template weights<s>(at, next);
    if constexpr (B::is_signed) weights = _mm512_xor_si512(weights, _mm512_set1_epi8(-128));
    QKV_UNROLL
    for (int x = 0; x < X; ++x) {
        const int64_t at = 32 * x * stream.slots + column;
        Whole product = shift_up(dot(weights, load_digits(rows.digits + at)), kFineBits);
        if constexpr (kLess<B> != 0) product = _mm512_add_epi32(product, _mm512_load_si512(stream.start + at / 4));
        product = _mm512_dpbusd_epi32(product, weights, load_digits(rows.fine + at));
        sums[x] = multiply_add(to_float(product), _mm512_permutexvar_ps(lanes, scale[x]), sums[x]);
    }
}

// sums[x] of a row, in lanes.
template <typename B, int X>
QKV_INLINE void stream_row(const char* row, const PackedRows& rows, const StreamRows<B>& stream, float* to) {
    // Even and odd steps are summed apart, so that additions do not wait for each other.
    Float sums[2][X], scale[X];
    QKV_UNROLL
    for (int x = 0; x < X; ++x) sums[0][x] = sums[1][x] = zero();
    const auto lanes = [](int s) QKV_STEP { return _mm512_load_si512(kStepLanes<B::granule>.at[s]); };
    if constexpr (B::columns == 32) {
        const int64_t blocks = rows.columns / 32, whole = blocks / 16 * 16;
        const auto with_scales = [&](int64_t b, const Windows<B>& windows, int64_t count) QKV_STEP {
            Float own, least;
            load_scales<B>(row + b * B::bytes, windows, count, own, least);
            QKV_UNROLL
            for (int x = 0; x < X; ++x) {
                scale[x] = multiply(own, load_unaligned(rows.scales + x * rows.slots + b));
                if constexpr (B::minimum) {
                    sums[0][x] = multiply_add(least, load_unaligned(rows.sums + x * rows.slots + b), sums[0][x]);
                }
            }
        };
        const Windows<B> all(16), some(blocks - whole);
        for (int64_t b = 0; b < whole; b += 16) {
            with_scales(b, all, 16);
            const char* at = row + b * B::bytes;
            for_each_step<8>([&](auto s) QKV_STEP {
                _mm_prefetch(at + 2 * s() * B::bytes + kAhead, _MM_HINT_T0);
                stream_step<B, 0, X>(at + 2 * s() * B::bytes, B::bytes, 32 * b + s() * kStep, lanes(s()), rows, stream,
                                     scale, sums[s() % 2]);
            });
        }
        if (whole < blocks) with_scales(whole, some, blocks - whole);
        for (int64_t b = whole; b < blocks; b += 2) {
            stream_step<B, 0, X>(row + b * B::bytes, b + 1 < blocks ? B::bytes : 0, 32 * b,
                                 lanes(static_cast<int>(b - whole) / 2), rows, stream, scale, sums[0]);
        }
    } else {
        for (int64_t b = 0; b < rows.columns / 256; ++b) {
            const char* at = row + b * B::bytes;
            const Float own = load_block_scales<B>(at);
            QKV_UNROLL
            for (int x = 0; x < X; ++x) {
                const float* others = B::minimum ? stream.factors + 2 * x * stream.slots : rows.pairs + 2 * x * rows.slots;
                scale[x] = multiply(own, load_unaligned(others + 16 * b));
                if constexpr (B::minimum) sums[0][x] = _mm512_mask_add_ps(sums[0][x], 0xff00, sums[0][x], scale[x]);
            }
            for_each_step<4>([&](auto s) QKV_STEP {
                _mm_prefetch(at + s() * 64 + kAhead, _MM_HINT_T0);
                stream_step<B, s(), X>(at, 0, 256 * b + s() * kStep, lanes(s()), rows, stream, scale, sums[s() % 2]);
            });
        }
    }
    QKV_UNROLL
    for (int x = 0; x < X; ++x) store(to + x * kLanes, add(sums[0][x], sums[1][x]));
}

// The same for x in float32: weights are widened with scales that lie in a cache line.
template <typename B, int X>
QKV_INLINE void stream_row_float32(const char* row, const PackedRows& rows, float* to) {
    alignas(64) float scale[16], least[16];
    Float sums[2][X];
    QKV_UNROLL
    for (int x = 0; x < X; ++x) sums[0][x] = sums[1][x] = zero();
    // `inside` is the column in the scale vector.
    const auto step = [&](const Bytes& weights, int64_t column, int64_t inside, bool whole) QKV_STEP {
        for_each_step<kParts>([&](auto p) QKV_STEP {
            if (p() * kLanes >= 32 && !whole) return;
            const Float weight = scaled_part<B, p()>(weights, scale, least, inside + p() * kLanes);
            QKV_UNROLL
            for (int x = 0; x < X; ++x) {
                const Float other = load_unaligned(rows.x + x * rows.columns + column + p() * kLanes);
                sums[p() % 2][x] = multiply_add(weight, other, sums[p() % 2][x]);
            }
        });
    };
    if constexpr (B::columns == 32) {
        const int64_t blocks = rows.columns / 32, whole = blocks / 16 * 16;
        const auto with_scales = [&](int64_t b, const Windows<B>& windows, int64_t count) QKV_STEP {
            Float own, minimum;
            load_scales<B>(row + b * B::bytes, windows, count, own, minimum);
            store(scale, own);
            store(least, minimum);
        };
        const Windows<B> all(16), some(blocks - whole);
        for (int64_t b = 0; b < blocks; b += 2) {
            if (b % 16 == 0) b < whole ? with_scales(b, all, 16) : with_scales(b, some, blocks - whole);
            const bool two = b + 1 < blocks;
            _mm_prefetch(row + b * B::bytes + kAhead, _MM_HINT_T0);
            step(signed_weights<B, 0>(row + b * B::bytes, two ? B::bytes : 0), 32 * b, 32 * (b % 16), two);
        }
    } else {
        for (int64_t b = 0; b < rows.columns / 256; ++b) {
            const char* at = row + b * B::bytes;
            const Float own = load_block_scales<B>(at);
            store(scale, own);
            if constexpr (B::minimum) _mm256_store_ps(least, _mm512_extractf32x8_ps(subtract(zero(), own), 1));
            for_each_step<4>([&](auto s) QKV_STEP {
                _mm_prefetch(at + s() * 64 + kAhead, _MM_HINT_T0);
                step(signed_weights<B, s()>(at, 0), 256 * b + s() * kStep, s() * kStep, true);
            });
        }
    }
    QKV_UNROLL
    for (int x = 0; x < X; ++x) store(to + x * kLanes, add(sums[0][x], sums[1][x]));
}

}  // namespace qkv::QKV_ISA
