#pragma once

// The storage formats of a cache: one traits struct for each, and the list of them. src/qkv/cache/formats.py has the same
// formats for Python. A new one also needs a number in dtype.h, and to be widened in scalar.h and vector_math.h.
//
//   Bits      the type of a stored number
//   pair      channels of a key that are stored next to each other
//   scaled    whether a page has a float for each token, for keys and for values, by which stored numbers are multiplied
//   exponent  without scales: the bits that are all set in infinity and NaN
//   large     without scales: the exponent of kLargeValue; that of infinity if the format has no such number
//   largest   with scales: the stored number of the largest magnitude of a token
//   narrow    the nearest stored number; with scales, x has been divided by the scale

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtype.h"
#include "scalar.h"

namespace qkv {

// A sum of 2^32 smaller numbers is finite.
constexpr float kLargeValue = 0x1p96f;

template <Dtype storage>
struct Format;

template <>
struct Format<Dtype::float32> {
    using Bits = uint32_t;
    static constexpr int pair = 1;
    static constexpr bool scaled = false;
    static constexpr Bits exponent = 0x7f800000, large = 0x6f800000;
    static QKV_ALWAYS Bits narrow(float x) { return to_bits(x); }
};

template <>
struct Format<Dtype::float16> {
    using Bits = uint16_t;
    static constexpr int pair = 1;
    static constexpr bool scaled = false;
    static constexpr Bits exponent = 0x7c00, large = exponent;
    static QKV_ALWAYS Bits narrow(float x) { return narrow_to_float16(x); }
};

template <>
struct Format<Dtype::bfloat16> {
    using Bits = uint16_t;
    static constexpr int pair = 2;  // one shift and one mask widen both
    static constexpr bool scaled = false;
    static constexpr Bits exponent = 0x7f80, large = 0x6f80;
    static QKV_ALWAYS Bits narrow(float x) { return narrow_to_bfloat16(x); }
};

template <>
struct Format<Dtype::int8> {
    using Bits = int8_t;
    static constexpr int pair = 1;
    static constexpr bool scaled = true;
    static constexpr float largest = 127.0f;
    static QKV_ALWAYS Bits narrow(float x) {
        const float steps = std::nearbyint(x);
        return static_cast<Bits>(steps < -largest ? -largest : steps > largest ? largest : steps);
    }
};

constexpr Dtype kStorageFormats[] = {Dtype::float32, Dtype::float16, Dtype::bfloat16, Dtype::int8};

// body(std::integral_constant<Dtype, storage>) for a format that is known at run time.
template <typename Body>
QKV_ALWAYS constexpr decltype(auto) with_format(Dtype storage, Body body) {
    switch (storage) {
        case Dtype::float16: return body(std::integral_constant<Dtype, Dtype::float16>{});
        case Dtype::bfloat16: return body(std::integral_constant<Dtype, Dtype::bfloat16>{});
        case Dtype::int8: return body(std::integral_constant<Dtype, Dtype::int8>{});
        default: return body(std::integral_constant<Dtype, Dtype::float32>{});
    }
}

QKV_ALWAYS constexpr int pair_of(Dtype storage) {
    return with_format(storage, [](auto format) { return Format<format()>::pair; });
}

QKV_ALWAYS constexpr bool is_scaled(Dtype storage) {
    return with_format(storage, [](auto format) { return Format<format()>::scaled; });
}

}  // namespace qkv
