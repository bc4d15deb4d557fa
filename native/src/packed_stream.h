#pragma once

// AVX-512: rows of a quantised matrix are read once, in order; the scales of 16 granules are in a register.

#include "packed_formats.h"

namespace qkv::QKV_ISA {

// 128 columns of a row in two vectors of bytes, as they are read fastest: place i of 16 bytes has the columns from
// 16 · order[i] on. `steps` are where the other blocks of 32 columns begin; u is the unit of a block of 256 columns.
template <WeightFormat format>
struct Unit {
    static constexpr int order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    template <typename B, int u>
    static QKV_INLINE void load(const char* at, const int64_t* steps, Bytes (&weights)[2]) {
        if constexpr (B::columns == 32) {
            weights[0] = B::template weights<0>(at, steps[1]);
            weights[1] = B::template weights<0>(at + steps[2], steps[3] - steps[2]);
        } else {
            weights[0] = B::template weights<2 * u>(at, 0);
            weights[1] = B::template weights<2 * u + 1>(at, 0);
        }
    }
};

// The low bits of four blocks, then the high ones.
template <int from, bool five>
struct HalfByteUnit {
    static constexpr int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    template <typename B, int>
    static QKV_INLINE void load(const char* at, const int64_t* steps, Bytes (&weights)[2]) {
        Bytes four = _mm512_castsi128_si512(load_quarter(at + from));
        four = _mm512_inserti32x4(four, load_quarter(at + steps[1] + from), 1);
        four = _mm512_inserti32x4(four, load_quarter(at + steps[2] + from), 2);
        four = _mm512_inserti32x4(four, load_quarter(at + steps[3] + from), 3);
        weights[0] = low_bits(four);
        weights[1] = low_bits(_mm512_srli_epi16(four, 4));
        if constexpr (five) {
            uint64_t low = 0, high = 0;
            QKV_UNROLL
            for (int b = 0; b < 4; ++b) {
                const uint64_t bits = read<uint32_t>(at + steps[b] + from - 4);
                low |= (bits & 0xffff) << (16 * b);
                high |= bits >> 16 << (16 * b);
            }
            weights[0] = unite(weights[0], _mm512_maskz_set1_epi8(low, 16));
            weights[1] = unite(weights[1], _mm512_maskz_set1_epi8(high, 16));
        }
    }
};
template <>
struct Unit<WeightFormat::q4_0> : HalfByteUnit<2, false> {};
template <>
struct Unit<WeightFormat::q4_1> : HalfByteUnit<4, false> {};
template <>
struct Unit<WeightFormat::q5_0> : HalfByteUnit<6, true> {};
template <>
struct Unit<WeightFormat::q5_1> : HalfByteUnit<8, true> {};

// Groups of 64 columns have their low bits in 32 bytes, then their high ones: two groups are read together.
template <int from, bool five>
struct GroupUnit {
    static constexpr int order[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    template <typename B, int u>
    static QKV_INLINE void load(const char* at, const int64_t*, Bytes (&weights)[2]) {
        const Bytes both = _mm512_loadu_si512(at + from + 64 * u);
        weights[0] = low_bits(both);
        weights[1] = low_bits(_mm512_srli_epi16(both, 4));
        if constexpr (five) {
            const Bytes bits = _mm512_broadcast_i64x4(load_half(at + 16));
            QKV_UNROLL
            for (int i = 0; i < 2; ++i) {
                const Bytes own = per_half(0x0101 << (4 * u + i), 0x0101 << (4 * u + i + 2));
                weights[i] = unite(weights[i], _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(bits, own), 16));
            }
        }
    }
};
template <>
struct Unit<WeightFormat::q4_k> : GroupUnit<16, false> {};
template <>
struct Unit<WeightFormat::q5_k> : GroupUnit<48, true> {};

template <typename B>
struct UnitChoice;
template <WeightFormat format>
struct UnitChoice<Blocks<format>> {
    using type = Unit<format>;
};
template <typename B>
using UnitOf = typename UnitChoice<B>::type;

// In a vector of 16 scales, those of the lanes of both vectors of unit u; `together` if they are the same for both.
template <typename B>
struct UnitLanes {
    static constexpr int units = B::granule == 16 || B::columns == 256 ? 2 : 4;
    alignas(64) int32_t at[units][2][16];
    bool together = true, in_order = true;
    constexpr UnitLanes() : at() {
        for (int i = 0; i < 8; ++i) {
            const int column = 16 * UnitOf<B>::order[i];
            for (int u = 0; u < units; ++u) {
                for (int lane = 0; lane < 4; ++lane) at[u][i / 4][i % 4 * 4 + lane] = (128 * u + column) / B::granule;
            }
            in_order = in_order && column == 16 * i;
            together = together && column / B::granule == 16 * UnitOf<B>::order[(i + 4) % 8] / B::granule;
        }
    }
};
template <typename B>
constexpr UnitLanes<B> kUnitLanes = {};

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
    int used;  // windows
    explicit Windows(int64_t blocks) : used(static_cast<int>((blocks - 1) * B::bytes / 64) + 1) {
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
                if (w >= windows.used) break;
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
            if (w >= windows.used) break;
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
        // The bytes of a 6-bit number: what it shares a word with, and its upper bits for the last four of each.
        const __m128i head = load_quarter(at);
        const __m128i lower = _mm_shuffle_epi8(head, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
        const __m128i upper = _mm_shuffle_epi8(head, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
        const __m128i bits = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f);
        const __m128i bytes = _mm_or_si128(_mm_and_si128(_mm_srlv_epi32(lower, _mm_setr_epi32(0, 0, 0, 4)), bits),
                                           _mm_and_si128(_mm_srli_epi32(upper, 2), _mm_set1_epi8(0x30)));
        const Float factors = _mm512_castps128_ps512(_mm_cvtph_ps(head));
        const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        return multiply(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), _mm512_permutexvar_ps(halves, factors));
    } else {
        return multiply(widen_int8(at + 192), constant(widen_half(at + 208)));
    }
}

// What a job computes once from the rows of x, in its scratch: digits in the order of units; `start` begins the integer
// sums so that the offset of the weights is gone; `factors` are what scale vectors of a block of 256 columns are
// multiplied by.
template <typename B>
struct StreamRows {
    const int8_t *digits, *fine;  // [row][32 · slots]
    int32_t* start;               // [row][columns / 4], half of them if lanes are together
    float* factors;               // [row][columns / 256][16]
    int64_t slots;
};

template <typename B>
constexpr int kLess = B::is_signed ? 128 : B::offset;

template <typename B>
QKV_INLINE StreamRows<B> prepare_stream(const PackedRows& rows, float* scratch) {
    StreamRows<B> stream = {rows.digits, rows.fine, reinterpret_cast<int32_t*>(scratch),
                            scratch + rows.count * 8 * rows.slots, rows.slots};
    if constexpr (!kUnitLanes<B>.in_order) {
        int8_t* ordered = reinterpret_cast<int8_t*>(scratch + rows.count * 10 * rows.slots);
        const int64_t size = 32 * rows.count * rows.slots;
        for (int64_t c = 0; c < size; c += 128) {
            QKV_UNROLL
            for (int i = 0; i < 8; ++i) {
                const int64_t from = c + 16 * UnitOf<B>::order[i];
                _mm_store_si128(reinterpret_cast<__m128i*>(ordered + c + 16 * i), load_quarter(rows.digits + from));
                _mm_store_si128(reinterpret_cast<__m128i*>(ordered + size + c + 16 * i), load_quarter(rows.fine + from));
            }
        }
        stream.digits = ordered;
        stream.fine = ordered + size;
    }
    for (int64_t x = 0; x < rows.count; ++x) {
        if constexpr (kLess<B> != 0) {
            constexpr int together = kUnitLanes<B>.together ? 2 : 1;
            for (int64_t c = 0; c < rows.columns; c += together * kStep) {
                const int64_t at = 32 * x * rows.slots + c;
                __m512i sum = _mm512_setzero_si512();
                QKV_UNROLL
                for (int i = 0; i < together; ++i) {
                    sum = minus(sum, shift_up(times(kLess<B>, load_digits(stream.digits + at + i * kStep)), kFineBits));
                    sum = minus(sum, times(kLess<B>, load_digits(stream.fine + at + i * kStep)));
                }
                _mm512_store_si512(stream.start + at / (4 * together), sum);
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

// Unit u of a row, which begins at a column: sums[i][x] += dot · scales.
template <typename B, int u, int X>
QKV_INLINE void stream_unit(const char* at, const int64_t* steps, int64_t column, const StreamRows<B>& stream,
                            const Float (&scale)[X], Float (&sums)[2][X]) {
    constexpr const UnitLanes<B>& lanes = kUnitLanes<B>;
    constexpr int kind = u % UnitLanes<B>::units, together = lanes.together ? 2 : 1;
    Bytes weights[2];
    UnitOf<B>::template load<B, kind>(at, steps, weights);
    if constexpr (B::is_signed) {
        QKV_UNROLL
        for (int i = 0; i < 2; ++i) weights[i] = _mm512_xor_si512(weights[i], _mm512_set1_epi8(-128));
    }
    QKV_UNROLL
    for (int x = 0; x < X; ++x) {
        const int64_t first = 32 * x * stream.slots + column;
        QKV_UNROLL
        for (int i = 0; i < 2; i += together) {
            const int64_t from = first + i * kStep;
            __m512i product = dot(weights[i], load_digits(stream.digits + from));
            if constexpr (together == 2) {
                product = _mm512_dpbusd_epi32(product, weights[1], load_digits(stream.digits + from + kStep));
            }
            product = shift_up(product, kFineBits);
            if constexpr (kLess<B> != 0) {
                product = _mm512_add_epi32(product, _mm512_load_si512(stream.start + from / (4 * together)));
            }
            product = _mm512_dpbusd_epi32(product, weights[i], load_digits(stream.fine + from));
            if constexpr (together == 2) {
                product = _mm512_dpbusd_epi32(product, weights[1], load_digits(stream.fine + from + kStep));
            }
            // Sums apart, so that additions do not wait for each other.
            Float& sum = sums[together == 2 ? u % 2 : i][x];
            sum = multiply_add(to_float(product), _mm512_permutexvar_ps(_mm512_load_si512(lanes.at[kind][i]), scale[x]), sum);
        }
    }
}

template <int64_t size>
QKV_INLINE void prefetch_ahead(const char* at) {
    QKV_UNROLL
    for (int64_t line = 0; line < size; line += 64) _mm_prefetch(at + line + kAhead, _MM_HINT_T0);
}

// sums[x] of a row, in lanes.
template <typename B, int X>
QKV_INLINE void stream_row(const char* row, const PackedRows& rows, const StreamRows<B>& stream, float* to) {
    Float sums[2][X], scale[X];
    QKV_UNROLL
    for (int x = 0; x < X; ++x) sums[0][x] = sums[1][x] = zero();
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
        const Windows<B> all(16);
        constexpr int64_t steps[4] = {0, B::bytes, 2 * B::bytes, 3 * B::bytes};
        for (int64_t b = 0; b < whole; b += 16) {
            with_scales(b, all, 16);
            const char* at = row + b * B::bytes;
            for_each_step<4>([&](auto u) QKV_STEP {
                prefetch_ahead<4 * B::bytes>(at + 4 * u() * B::bytes);
                stream_unit<B, u(), X>(at + 4 * u() * B::bytes, steps, 32 * b + 128 * u(), stream, scale, sums);
            });
        }
        const int64_t left = blocks - whole;
        if (left > 0) with_scales(whole, Windows<B>(left), left);
        for_each_step<4>([&](auto u) QKV_STEP {
            if (4 * u() >= left) return;
            // Blocks beyond the row are the first one again, with scale 0.
            int64_t some[4];
            for (int i = 0; i < 4; ++i) some[i] = 4 * u() + i < left ? steps[i] : 0;
            const char* at = row + (whole + 4 * u()) * B::bytes;
            prefetch_ahead<4 * B::bytes>(at);
            stream_unit<B, u(), X>(at, some, 32 * whole + 128 * u(), stream, scale, sums);
        });
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
            prefetch_ahead<B::bytes>(at);
            for_each_step<2>([&](auto u) QKV_STEP {
                stream_unit<B, u(), X>(at, nullptr, 256 * b + 128 * u(), stream, scale, sums);
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
