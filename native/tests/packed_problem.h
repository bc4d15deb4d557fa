#pragma once

// Packed matrices of random bytes, and their weights by the definitions of GGUF, one at a time and in double.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "packed.h"

namespace packed {

using qkv::WeightFormat;

constexpr WeightFormat kFormats[] = {WeightFormat::f32,  WeightFormat::bf16, WeightFormat::f16,  WeightFormat::q8_0,
                                     WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0, WeightFormat::q5_1,
                                     WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k};

inline double half_at(const uint8_t* at) {
    const int bits = at[0] | at[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

struct Weight {
    double step, number, least;  // step · number + least
    double value() const { return step * number + least; }
    double size() const { return std::fabs(step * number) + std::fabs(least); }
};

inline Weight small_block(WeightFormat format, const uint8_t* block, int i) {
    const bool least = format == WeightFormat::q4_1 || format == WeightFormat::q5_1;
    const bool five = format == WeightFormat::q5_0 || format == WeightFormat::q5_1;
    const double d = half_at(block), m = least ? half_at(block + 2) : 0.0;
    const uint8_t* rest = block + (least ? 4 : 2);
    if (format == WeightFormat::q8_0) return {d, static_cast<double>(static_cast<int8_t>(rest[i])), 0.0};
    int number = rest[(five ? 4 : 0) + i % 16];
    number = i < 16 ? number & 15 : number >> 4;
    if (five && (rest[i / 8] >> (i % 8) & 1)) number += 16;
    if (!least) number -= five ? 16 : 8;
    return {d, static_cast<double>(number), m};
}

inline Weight large_block(WeightFormat format, const uint8_t* block, int i) {
    if (format == WeightFormat::q6_k) {
        const int part = i / 128, within = i % 128, lane = within % 32;
        const int low = block[64 * part + within % 64], high = block[128 + 32 * part + lane];
        const int number = (within < 64 ? low & 15 : low >> 4) | (high >> (within / 32 * 2) & 3) << 4;
        return {half_at(block + 208) * static_cast<int8_t>(block[192 + i / 16]), number - 32.0, 0.0};
    }
    const bool five = format == WeightFormat::q5_k;
    const int j = i / 32;
    const uint8_t* packed = block + 4;
    const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    const int least = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    int number = block[(five ? 48 : 16) + i / 64 * 32 + i % 32];
    number = j % 2 == 0 ? number & 15 : number >> 4;
    if (five && (block[16 + i % 32] >> j & 1)) number += 16;
    return {half_at(block) * scale, static_cast<double>(number), -half_at(block + 2) * least};
}

struct Matrix {
    WeightFormat format;
    int64_t rows, columns, row_bytes;
    std::vector<uint8_t> bytes;

    // One byte after an aligned address, as in a file.
    Matrix(WeightFormat f, int64_t n, int64_t k, unsigned seed)
        : format(f), rows(n), columns(k), row_bytes(k / qkv::block_columns(f) * qkv::block_bytes(f)),
          bytes(1 + n * row_bytes) {
        std::mt19937 random(seed);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
        const int64_t block = qkv::block_bytes(f);
        for (int64_t at = 1; at < static_cast<int64_t>(bytes.size()); at += block) {
            uint8_t* b = bytes.data() + at;
            // Finite factors; some are subnormal.
            const auto half = [&](uint8_t* to) { to[1] = static_cast<uint8_t>(to[1] % 64 | (to[1] & 128)); };
            if (f == WeightFormat::f32 || f == WeightFormat::bf16) {
                const float x = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
                std::memcpy(b, reinterpret_cast<const char*>(&x) + 4 - block, block);
            } else if (f == WeightFormat::q6_k) {
                half(b + 208);
            } else {
                half(b);
                if (f != WeightFormat::f16 && f != WeightFormat::q8_0 && f != WeightFormat::q4_0 &&
                    f != WeightFormat::q5_0) {
                    half(b + 2);
                }
            }
        }
    }

    qkv::PackedMatrix view() const { return {bytes.data() + 1, format, rows, columns, row_bytes}; }

    Weight weight(int64_t row, int64_t column) const {
        const int64_t inside = qkv::block_columns(format);
        const uint8_t* block = bytes.data() + 1 + row * row_bytes + column / inside * qkv::block_bytes(format);
        if (inside == 32) return small_block(format, block, static_cast<int>(column % 32));
        if (inside == 256) return large_block(format, block, static_cast<int>(column % 256));
        if (format == WeightFormat::f16) return {1.0, half_at(block), 0.0};
        float x = 0;
        const size_t size = format == WeightFormat::f32 ? 4 : 2;
        std::memcpy(reinterpret_cast<char*>(&x) + 4 - size, block, size);
        return {1.0, x, 0.0};
    }
};

inline std::vector<float> random_rows(int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> rows(count);
    for (float& x : rows) x = normal(random);
    for (size_t i = 5; i < rows.size(); i += 97) rows[i] *= 40;  // outliers
    return rows;
}

// Rows of x in blocks of 32, as the kernels promise: with 15 bits if they are few or the block has an outlier, otherwise 8.
inline std::vector<double> rounded(const std::vector<float>& x, int64_t columns) {
    const bool few = static_cast<int64_t>(x.size()) <= qkv::kFewRows * columns;
    std::vector<double> result(x.size());
    double squares = 0;
    for (size_t b = 0; b < x.size(); b += 32) {
        if (b % columns == 0) {
            squares = 0;
            for (size_t i = b; i < b + columns; ++i) squares += x[i] * x[i];  // squares in float, as in the kernels
        }
        float most = 0;
        for (size_t i = b; i < b + 32; ++i) most = std::max(most, std::fabs(x[i]));
        const bool finite = squares <= std::numeric_limits<float>::max();
        const bool split = few || (finite && static_cast<double>(most) * most > qkv::kSplitAbove * squares / columns);
        const float steps = split ? qkv::kFineSteps : 127.0f, inverse = most > 1e-34f ? steps / most : 0;
        for (size_t i = b; i < b + 32; ++i) result[i] = std::nearbyint(x[i] * inverse) * static_cast<double>(most / steps);
    }
    return result;
}

// What the weights of a format are multiplied by.
inline std::vector<double> taken(const std::vector<float>& x, int64_t columns, WeightFormat format,
                                 qkv::Activations activations) {
    std::vector<double> result(x.begin(), x.end());
    if (activations == qkv::Activations::float32) return result;
    if (qkv::is_quantised(format)) return rounded(x, columns);
    if (format != WeightFormat::bf16 || static_cast<int64_t>(x.size()) <= qkv::kFewRows * columns) return result;
    for (double& number : result) {
        if (number == 0.0 || !std::isfinite(number)) continue;
        const double step = std::ldexp(1.0, std::max(std::ilogb(number) - 7, -133));
        number = std::nearbyint(number / step) * step;
    }
    return result;
}

}  // namespace packed
