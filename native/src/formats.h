#pragma once

// The storage formats of a cache: one traits struct for each, and the list of them. src/qkv/cache/formats.py has the same
// formats for Python. A new one also needs a number in dtype.h, and to be widened in scalar.h and vector_math.h.
//
//   Bits      the type of a stored number, or of what two of them share
//   bits      of a stored number
//   pair      channels of a key that are stored next to each other
//   slots     channels of a value are padded to a multiple of it
//   group     channels that share a scale, by which stored numbers are multiplied; kWholeRow: all; 0: no scales
//   Scale     with scales: how one is stored
//   rotated   whether what is stored is rotated (rotation.h): keys and values that are rotated are rounded in a
//             basis in which outliers are spread over all channels of a token
//   exponent  without scales: the bits that are all set in infinity and NaN
//   large     without scales: the exponent of kLargeValue; that of infinity if the format has no such number
//   largest   with scales: the stored number of the largest magnitude of a group
//   narrow    the nearest stored number; with scales, x has been divided by the scale
//
// int4 has the 16 numbers ±1/2, ±3/2, … ±15/2, stored as n for n - 15/2. Byte i of the 16 bytes of a group has channel i in
// its low half and channel 16 + i in its high half.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtype.h"
#include "scalar.h"

namespace qkv {

// A sum of 2^32 smaller numbers is finite.
constexpr float kLargeValue = 0x1p96f;

constexpr int kWholeRow = -1;

template <Dtype storage>
struct Format;

template <>
struct Format<Dtype::float32> {
    using Bits = uint32_t;
    static constexpr int pair = 1;
    static constexpr int bits = 32, slots = 16, group = 0;
    static constexpr bool rotated = false;
    static constexpr Bits exponent = 0x7f800000, large = 0x6f800000;
    static QKV_ALWAYS Bits narrow(float x) { return to_bits(x); }
};

template <>
struct Format<Dtype::float16> {
    using Bits = uint16_t;
    static constexpr int pair = 1;
    static constexpr int bits = 16, slots = 16, group = 0;
    static constexpr bool rotated = false;
    static constexpr Bits exponent = 0x7c00, large = exponent;
    static QKV_ALWAYS Bits narrow(float x) { return narrow_to_float16(x); }
};

template <>
struct Format<Dtype::bfloat16> {
    using Bits = uint16_t;
    static constexpr int pair = 2;  // one shift and one mask widen both
    static constexpr int bits = 16, slots = 16, group = 0;
    static constexpr bool rotated = false;
    static constexpr Bits exponent = 0x7f80, large = 0x6f80;
    static QKV_ALWAYS Bits narrow(float x) { return narrow_to_bfloat16(x); }
};

template <>
struct Format<Dtype::int8> {
    using Bits = int8_t;
    using Scale = float;
    static constexpr int pair = 1;
    static constexpr int bits = 8, slots = 16, group = kWholeRow;
    static constexpr bool rotated = false;
    static constexpr float largest = 127.0f;
    static QKV_ALWAYS Bits narrow(float x) {
        const float steps = std::nearbyint(x);
        return static_cast<Bits>(steps < -largest ? -largest : steps > largest ? largest : steps);
    }
};

template <>
struct Format<Dtype::int4> {
    using Bits = uint8_t;
    using Scale = uint16_t;  // bfloat16
    static constexpr int pair = 8;  // a 32-bit word
    static constexpr int bits = 4, slots = 32, group = 32;
    static constexpr bool rotated = true;
    static constexpr float largest = 7.5f;
    static QKV_ALWAYS Bits narrow(float x) {
        const float step = std::floor(x) + 8.0f;
        return static_cast<Bits>(step < 0.0f ? 0.0f : step > 15.0f ? 15.0f : step);
    }
};

// The formats of keys and of values. Latents are keys whose first channels are the values.
struct Storage {
    Dtype keys, values;
    bool latent = false;

    constexpr Storage(Dtype both = Dtype::float32) : keys(both), values(both) {}
    constexpr Storage(Dtype keys, Dtype values) : keys(keys), values(values) {}
    static constexpr Storage of_latents(Dtype format) {
        Storage storage = format;
        storage.latent = true;
        return storage;
    }
    // As Python passes it: the number of the keys' format, plus 16 times that of the values' if it is another one, or
    // plus kLatentCode.
    static constexpr Storage of_code(int64_t code) {
        if (code >= kLatentCode) return of_latents(static_cast<Dtype>(code - kLatentCode));
        return {static_cast<Dtype>(code % 16), static_cast<Dtype>(code < 16 ? code : code / 16)};
    }

    static constexpr int64_t kLatentCode = 256;
};

// Those that tests, fuzzers and the self-check run; any two formats can be combined.
constexpr Storage kStorageFormats[] = {Dtype::float32, Dtype::float16, Dtype::bfloat16, Dtype::int8, Dtype::int4,
                                       {Dtype::int8, Dtype::int4},
                                       Storage::of_latents(Dtype::float32), Storage::of_latents(Dtype::float16),
                                       Storage::of_latents(Dtype::bfloat16), Storage::of_latents(Dtype::int8)};

// body(std::integral_constant<Dtype, storage>) for a format that is known at run time.
template <typename Body>
QKV_ALWAYS constexpr decltype(auto) with_format(Dtype storage, Body body) {
    switch (storage) {
        case Dtype::float16: return body(std::integral_constant<Dtype, Dtype::float16>{});
        case Dtype::bfloat16: return body(std::integral_constant<Dtype, Dtype::bfloat16>{});
        case Dtype::int8: return body(std::integral_constant<Dtype, Dtype::int8>{});
        case Dtype::int4: return body(std::integral_constant<Dtype, Dtype::int4>{});
        default: return body(std::integral_constant<Dtype, Dtype::float32>{});
    }
}

QKV_ALWAYS constexpr int pair_of(Dtype storage) {
    return with_format(storage, [](auto format) { return Format<format()>::pair; });
}

template <Dtype storage>
constexpr bool kScaled = Format<storage>::group != 0;

QKV_ALWAYS constexpr bool is_scaled(Dtype storage) {
    return with_format(storage, [](auto format) { return kScaled<format()>; });
}

QKV_ALWAYS constexpr bool is_rotated(Dtype storage) {
    return with_format(storage, [](auto format) { return Format<format()>::rotated; });
}

// Bytes of `count` numbers, a multiple of what shares a byte.
QKV_ALWAYS constexpr int64_t stored_bytes(Dtype storage, int64_t count) {
    return with_format(storage, [&](auto format) { return count * Format<format()>::bits / 8; });
}

// The channels of a row of `width`, with padding: of a value, and of a key.
QKV_ALWAYS constexpr int64_t value_slots_of(Dtype storage, int64_t width) {
    return with_format(storage, [&](auto format) {
        return (width + Format<format()>::slots - 1) / Format<format()>::slots * Format<format()>::slots;
    });
}

QKV_ALWAYS constexpr int64_t key_slots_of(Dtype storage, int64_t width) {
    return with_format(storage, [&](auto format) {
        constexpr int unit = Format<format()>::group > 0 ? Format<format()>::group : Format<format()>::pair;
        return (width + unit - 1) / unit * unit;
    });
}

// The scales of a token, and the bytes of one.
QKV_ALWAYS constexpr int64_t scales_of(Dtype storage, int64_t width) {
    return with_format(storage, [&](auto format) {
        constexpr int group = Format<format()>::group;
        return group == 0 ? int64_t{0} : group == kWholeRow ? int64_t{1} : (width + group - 1) / group;
    });
}

QKV_ALWAYS constexpr int64_t scale_size(Dtype storage) { return storage == Dtype::int4 ? 2 : 4; }

}  // namespace qkv
