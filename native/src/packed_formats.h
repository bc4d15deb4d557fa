#pragma once

// The quantised formats, as GGUF defines them: a weight is scale · (number - offset) + minimum.
//
//   columns, bytes  of a block
//   granule         columns with one scale
//   offset          what is subtracted from stored numbers; 0 if they are signed or the format has minimums
//   minimum         whether granules have a minimum
//   is_signed       whether the stored numbers are signed bytes
//   steps           of kStep weights in a unit, the smallest part of a row that is made of whole steps and blocks
//   weights<s>      step s of the unit at an address; `next` is where the second block of a step is (bytes ahead)

#include "packed_table.h"
#include "packed_vector.h"

// Lambdas of the kernels must be inlined, like their functions.
#define QKV_STEP __attribute__((always_inline))

namespace qkv::QKV_ISA {

template <WeightFormat format>
struct Blocks;

// Formats with blocks of 32 columns: half-precision scale (and minimum), then the rest.
template <int size, int from, bool with_minimum>
struct SmallBlocks {
    static constexpr int columns = 32, bytes = size, granule = 32, steps = 1, quants = from;
    static constexpr bool minimum = with_minimum, is_signed = false;
};

template <>
struct Blocks<WeightFormat::q8_0> : SmallBlocks<34, 2, false> {
    static constexpr int offset = 0;
    static constexpr bool is_signed = true;
    template <int>
    static QKV_INLINE Bytes weights(const char* at, int64_t next) {
        return whole_bytes(at + quants, next);
    }
};

template <int size, int from, bool with_minimum, int less>
struct HalfByteBlocks : SmallBlocks<size, from, with_minimum> {
    static constexpr int offset = less;
    template <int>
    static QKV_INLINE Bytes weights(const char* at, int64_t next) {
        return half_bytes(at + from, next);
    }
};
template <>
struct Blocks<WeightFormat::q4_0> : HalfByteBlocks<18, 2, false, 8> {};
template <>
struct Blocks<WeightFormat::q4_1> : HalfByteBlocks<20, 4, true, 0> {};

template <int size, int from, bool with_minimum, int less>
struct FiveBitBlocks : SmallBlocks<size, from, with_minimum> {
    static constexpr int offset = less;
    template <int>
    static QKV_INLINE Bytes weights(const char* at, int64_t next) {
        return unite(half_bytes(at + from, next), fifth_bits(at + from - 4, next));
    }
};
template <>
struct Blocks<WeightFormat::q5_0> : FiveBitBlocks<22, 6, false, 16> {};
template <>
struct Blocks<WeightFormat::q5_1> : FiveBitBlocks<24, 8, true, 0> {};

QKV_INLINE float widen_half(const char* at) {
#if defined(__AVX2__)
    return _cvtsh_ss(read<uint16_t>(at));
#else
    return widen_one_float16(read<uint16_t>(at));
#endif
}

// Scales and minimums of 8 granules have 6 bits, in 12 bytes after two half-precision factors.
template <int size>
struct GroupBlocks {
    static constexpr int columns = 256, bytes = size, granule = 32, steps = 256 / kStep, offset = 0;
    static constexpr bool minimum = true, is_signed = false;

    // Eight bytes each.
    static QKV_INLINE void unpack_scales(const char* at, uint64_t& scale, uint64_t& least) {
        const uint32_t a = read<uint32_t>(at + 4), b = read<uint32_t>(at + 8), c = read<uint32_t>(at + 12);
        const uint32_t low = 0x0f0f0f0f, six = 0x3f3f3f3f, high = 0x30303030;
        scale = (a & six) | uint64_t{(c & low) | (a >> 2 & high)} << 32;
        least = (b & six) | uint64_t{(c >> 4 & low) | (b >> 2 & high)} << 32;
    }

    static QKV_INLINE void scales(const char* at, float* scale, float* least) {
        uint64_t scale_bytes, least_bytes;
        unpack_scales(at, scale_bytes, least_bytes);
        widen_eight(scale_bytes, widen_half(at), scale);
        widen_eight(least_bytes, -widen_half(at + 2), least);
    }

    static QKV_INLINE void widen_eight(uint64_t bytes, float factor, float* to) {
#if defined(__AVX2__)
        const __m256i numbers = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
        _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(numbers), _mm256_set1_ps(factor)));
#else
        for (int i = 0; i < 8; ++i) to[i] = factor * static_cast<float>(bytes >> (8 * i) & 0xff);
#endif
    }
};

template <>
struct Blocks<WeightFormat::q4_k> : GroupBlocks<144> {
    template <int s>
    static QKV_INLINE Bytes weights(const char* at, int64_t) {
        return group_bytes<s>(at + 16);
    }
};

template <>
struct Blocks<WeightFormat::q5_k> : GroupBlocks<176> {
    template <int s>
    static QKV_INLINE Bytes weights(const char* at, int64_t) {
        return unite(group_bytes<s>(at + 48), group_bits<s>(at + 16));
    }
};

template <>
struct Blocks<WeightFormat::q6_k> {
    static constexpr int columns = 256, bytes = 210, granule = 16, steps = 256 / kStep, offset = 32;
    static constexpr bool minimum = false, is_signed = false;

    static QKV_INLINE void scales(const char* at, float* scale, float*) {
        const float factor = widen_half(at + 208);
        for (int i = 0; i < 16; i += kLanes) {
            store_unaligned(scale + i, multiply(widen_int8(at + 192 + i), constant(factor)));
        }
    }
    template <int s>
    static QKV_INLINE Bytes weights(const char* at, int64_t) {
        return six_bits<s>(at, at + 128);
    }
};

// The scales (and minimums) of the granules of a row. `halves` is scratch for 2 · slots 16-bit numbers, zero after the
// last block; what follows the last granule in `scale` and `least` becomes or stays zero.
template <typename B>
QKV_INLINE void collect_scales(const char* row, int64_t columns, uint16_t* halves) {
    if constexpr (B::columns == 32) {
        for (int64_t b = 0; b < columns / 32; ++b) {
            if constexpr (B::minimum) {
                const uint32_t both = read<uint32_t>(row + b * B::bytes);
                std::memcpy(halves + 2 * b, &both, sizeof both);
            } else {
                halves[b] = read<uint16_t>(row + b * B::bytes);
            }
        }
    }
}

template <typename B>
QKV_INLINE void form_scales(const char* row, int64_t columns, const uint16_t* halves, int64_t slots, float* scale,
                            float* least) {
    if constexpr (B::columns == 32) {
        for (int64_t b = 0; b < slots; b += kLanes) {
            if constexpr (B::minimum) {
                Float factor, minimum;
                widen_float16_pairs(halves + 2 * b, factor, minimum);
                store(scale + b, factor);
                store(least + b, minimum);
            } else {
                store(scale + b, widen_float16(halves + b));
            }
        }
    } else {
        for (int64_t b = 0; b < columns / 256; ++b) {
            B::scales(row + b * B::bytes, scale + b * (256 / B::granule), least + 8 * b);
        }
    }
}

// body(Blocks<format>) for a quantised format that is known at run time.
template <typename Body>
QKV_INLINE void with_blocks(WeightFormat format, Body body) {
    switch (format) {
        case WeightFormat::q8_0: return body(Blocks<WeightFormat::q8_0>{});
        case WeightFormat::q4_0: return body(Blocks<WeightFormat::q4_0>{});
        case WeightFormat::q4_1: return body(Blocks<WeightFormat::q4_1>{});
        case WeightFormat::q5_0: return body(Blocks<WeightFormat::q5_0>{});
        case WeightFormat::q5_1: return body(Blocks<WeightFormat::q5_1>{});
        case WeightFormat::q4_k: return body(Blocks<WeightFormat::q4_k>{});
        case WeightFormat::q5_k: return body(Blocks<WeightFormat::q5_k>{});
        case WeightFormat::q6_k: return body(Blocks<WeightFormat::q6_k>{});
        default: return;
    }
}

// body(unit address, its first step, distance to the second block, whole) for the units of a row; `whole` is false for a
// last block that fills only half of a step.
template <typename B, typename Body>
QKV_INLINE void for_each_unit(const char* row, int64_t columns, Body body) {
    constexpr int64_t unit_columns = B::columns > kStep ? B::columns : kStep;
    constexpr int64_t unit_bytes = unit_columns / B::columns * B::bytes;
    int64_t at = 0;
    for (; at + unit_columns <= columns; at += unit_columns, row += unit_bytes) body(row, at, int64_t{B::bytes}, true);
    if (unit_columns > B::columns && at < columns) body(row, at, int64_t{0}, false);
}

// Weights of a step as signed bytes, without the offset.
template <typename B, int s>
QKV_INLINE Bytes signed_weights(const char* at, int64_t next) {
    const Bytes weights = B::template weights<s>(at, next);
    if constexpr (B::offset != 0) return subtract_byte(weights, B::offset);
    return weights;
}

// The p-th kLanes of a step whose first column is `column`, as float32.
template <typename B, int p>
QKV_INLINE Float scaled_part(const Bytes& weights, const float* scale, const float* least, int64_t column) {
    const Float number = widen_part<p>(weights), factor = broadcast(scale + column / B::granule);
    if constexpr (B::minimum) return multiply_add(number, factor, broadcast(least + column / B::granule));
    return multiply(number, factor);
}

// body(std::integral_constant<int, i>) for i < count, without std.
template <int i>
struct Constant {
    constexpr int operator()() const { return i; }
};

template <int count, int i = 0, typename Body>
QKV_INLINE void for_each_step(Body body) {
    if constexpr (i < count) {
        body(Constant<i>{});
        for_each_step<count, i + 1>(body);
    }
}

}  // namespace qkv::QKV_ISA
